"""The decode loop of llama.cpp without Conch, greedy: `python -m tests.workshop.cards.bare_loop FILE --sequences 8`.

It computes as many sequences as it is told in each step, and prints its tokens/s with the time of the prompts.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path

from model_repository.engine.llama_cpp.context import context_params
from model_repository.engine.llama_cpp.library import llama, load_backends, model_params
from model_repository.engine.llama_cpp.weights import EXACT
from model_repository.system.cores import num_physical_cores

PROMPT = "Write one sentence about the number"  # and the number of the sequence


def main() -> None:
    """Measure, and print JSON."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("model", type=Path, metavar="FILE", help="a GGUF file")
    parser.add_argument("--gpu-layers", type=int, default=0, metavar="N", help="that devices compute (%(default)s)")
    parser.add_argument("--precision", default="f16", help="of the KV cache, f16 or f32 (%(default)s)")
    parser.add_argument("--sequences", type=int, default=1, metavar="N", help="in each step (%(default)s)")
    parser.add_argument("--tokens", type=int, default=128, metavar="N", help="of each sequence (%(default)s)")
    parser.add_argument("--repeats", type=int, default=3, metavar="N", help="beside the first (%(default)s)")
    options = parser.parse_args()
    if options.precision == "f32":
        os.environ.update(EXACT)  # as the engine does
    load_backends()
    model = llama.LlamaModel(str(options.model), model_params(options.gpu_layers))
    params = context_params(options.sequences, 2048, is_f32=options.precision == "f32")
    params.n_threads = params.n_threads_batch = num_physical_cores()
    context = llama.LlamaContext(model, params)
    numbers = range(1 + options.repeats)
    rates = [_tokens_per_s(model, context, options.sequences, options.tokens, number) for number in numbers]
    json.dump({"tokens_per_s": rates[1:]}, sys.stdout)


def _tokens_per_s(
    model: llama.LlamaModel, context: llama.LlamaContext, num_sequences: int, num_tokens: int, repeat: int
) -> float:
    sampler = llama.LlamaSampler(llama.LlamaSamplerChainParams())
    sampler.add_greedy()
    batch = llama.LlamaBatch(n_tokens=512, embd=0, n_seq_max=1)
    context.kv_cache_clear()
    began_s = time.monotonic()
    texts = [f"{num_sequences}.{repeat} {PROMPT} {number}" for number in range(num_sequences)]
    prompts = [model.get_vocab().tokenize(text, True, True) for text in texts]
    rows = []
    for sequence, prompt in enumerate(prompts):
        for position, token_id in enumerate(prompt):
            is_last = position == len(prompt) - 1
            batch.add(token_id, position, [sequence], is_last)
        rows.append(batch.n_tokens - 1)
    for step in range(num_tokens):
        context.decode(batch)
        drawn = [sampler.sample(context, row) for row in rows]
        batch.clear()
        for sequence, token_id in enumerate(drawn):
            batch.add(token_id, len(prompts[sequence]) + step, [sequence], True)
        rows = list(range(num_sequences))
    return num_sequences * num_tokens / (time.monotonic() - began_s)


if __name__ == "__main__":
    main()
