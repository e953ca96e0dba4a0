"""The part of the GPU path that needs one GPU with torch, but neither TensorRT-LLM nor Triton nor the network.

python3 -m tests.workshop.gpu_acceptance.device [FILE.json]

It runs our edits of logits, which are TensorRT-LLM's logits processors, on the GPU. It needs torch, msgspec and
llguidance, and for `precision` transformers and tokenizers. The exit status is 1 if a check
failed. Without a GPU it is a trial.
"""

from __future__ import annotations

import json
import multiprocessing
import pickle
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import numpy.typing as npt
import torch

from model_repository.byte_table import FILE_NAME, save_byte_table
from model_repository.contract.request import EngineRequest, Mirostat, OutputFormat, SamplingParams, StructuredOutput
from model_repository.engine.tensorrt_llm import tensors
from model_repository.engine.tensorrt_llm.processors import AllowedTokens, LogitsChain, Shaping, VocabularyFile
from model_repository.structured_output.grammar import structured_output_to_grammar
from model_repository.system.machine import read_machine
from tests.workshop.gpu_acceptance.reference import TOLERANCE

DEMO = Path(__file__).parents[3] / "build_engines" / "demo" / "checkpoint"
_HAS_GPU = torch.cuda.is_available()
_IS_DOUBLE = not hasattr(torch, "bfloat16")
_DEVICE = "cuda" if _HAS_GPU else "cpu"
_ROUNDING = {"float32": 1e-4, "float16": 3e-2, "bfloat16": 3e-1}  # of logits up to 40
_SLEEP = 1_200_000_000  # cycles of the GPU's clock, about 0.6 s
type Check = Iterator[tuple[str, bool, str]]  # name, whether it is right, detail


def edits() -> Check:
    """Edits equal numpy's, in a stream that is passed by its address and is busy before."""
    rng = np.random.default_rng(1)
    stream = torch.cuda.Stream() if _HAS_GPU else None
    for kind, rounding in _ROUNDING.items():
        for vocab, padding, shape in ((3072, 0, (1, 1)), (32000, 64, (1,)), (151669, 267, ())):
            values = (rng.standard_normal((*shape, vocab + padding)) * 8).astype(np.float32)
            ids, banned = rng.permutation(vocab)[:700].astype(np.int64), rng.random(vocab) < 0.7
            amounts = rng.standard_normal(len(ids)).astype(np.float32)
            logits = torch.from_numpy(values).to(_DEVICE).to(getattr(torch, kind, np.float32))
            want = tensors.to_array(logits).astype(np.float64)
            if stream is not None:
                stream.wait_stream(torch.cuda.current_stream())
            with tensors.on_stream(stream and stream.cuda_stream):
                if _HAS_GPU:
                    torch.cuda._sleep(2_000_000)
                tensors.ban_from(logits, vocab)
                tensors.divide(logits, ids, 1.3)
                tensors.shift(logits, ids.tolist(), amounts)
                tensors.ban(logits, banned)
                tensors.ban_below(logits, 2.5)
                got = tensors.to_array(logits)
            want[..., vocab:] = -np.inf
            want[..., ids] = np.where(want[..., ids] > 0, want[..., ids] / 1.3, want[..., ids] * 1.3) + amounts
            want[..., :vocab][..., banned] = -np.inf
            edge = want.max() - 2.5
            is_near = np.abs(want - edge) < 0.15  # rounding may decide these either way
            want[want < edge] = -np.inf
            both = np.isfinite(got) & np.isfinite(want)
            worst = np.abs(got[both] - want[both]).max()
            is_right = ((np.isfinite(got) == np.isfinite(want)) | is_near).all() and worst <= rounding
            yield f"edits in {kind}, {vocab} tokens", bool(is_right), f"they differ by up to {worst:.2g}"


def pinned_copies() -> Check:
    """Pinned memory is not used again before the stream has read it, and the host does not wait for the stream."""
    vocab, number = 151936, 400
    for kind in ("cold", "warm") if _HAS_GPU else ():  # cold: the allocation of pinned memory may itself wait
        rows = [torch.zeros(1, 1, vocab, device=_DEVICE) for _ in range(number)]
        torch.cuda.synchronize()
        stream = torch.cuda.Stream()
        with tensors.on_stream(stream.cuda_stream):
            torch.cuda._sleep(_SLEEP)  # all copies wait behind it
            started = time.monotonic()
            for index, row in enumerate(rows):
                tensors.ban(row, np.arange(vocab) % number != index)
            queued_s = time.monotonic() - started
        torch.cuda.synchronize()
        whole_s = time.monotonic() - started
        finite = [np.flatnonzero(np.isfinite(tensors.to_array(row).reshape(-1))) for row in rows]
        num_wrong = sum(not np.array_equal(each, np.arange(i, vocab, number)) for i, each in enumerate(finite))
        yield f"{number} masks from pinned memory, {kind}", not num_wrong, f"{num_wrong} wrong"
        detail = f"queued in {queued_s * 1e3:.0f} of {whole_s * 1e3:.0f} ms"
        yield f"the host does not wait, {kind}", kind == "cold" or queued_s < 0.7 * whole_s, detail


def chains() -> Check:
    """A chain that was pickled into another process draws the same tokens there, here, and on the CPU."""
    context = multiprocessing.get_context("spawn")
    for name, made in _edits(_vocabulary(96)).items():
        blob = pickle.dumps(LogitsChain(made(), 96, 0, is_called_per_chunk=True))
        with context.Pool(1) as pool:
            there = pool.apply(draw, (blob, _DEVICE))
        here, plain = draw(blob, _DEVICE), draw(blob, "cpu")
        yield f"pickled: {name}", here == there == plain, f"{len(blob)} bytes; {len({*here})} different tokens"


def draw(blob: bytes, device: str) -> list[int]:
    """Return 24 greedy tokens of random logits under a pickled chain."""
    chain, rng, tokens = pickle.loads(blob), np.random.default_rng(3), [10, 11, 12]
    with _pinning(device):
        for _ in range(24):
            row = torch.from_numpy((rng.standard_normal((1, 1, 101)) * 3).astype(np.float32)).to(device)
            address = torch.cuda.current_stream().cuda_stream if device == "cuda" else None
            chain(1, row, [tokens], address, None)
            tokens = [*tokens, int(tensors.to_array(row).argmax())]
    return tokens[3:]


def costs() -> Check:
    """Time that edits add to a step: on the host for each row, and in all with the GPU's work."""
    vocab = 128256 if _HAS_GPU else 3072
    for name, made in _edits(_vocabulary(vocab)).items():
        for num_rows in (1, 32, 128) if _HAS_GPU else (2,):
            rows = [LogitsChain(made(), vocab, 1, is_called_per_chunk=True) for _ in range(num_rows)]
            values = np.random.default_rng(2).standard_normal((num_rows, 1, vocab + 64)).astype(np.float32)
            times, drawn = [], list[int]()
            for _ in range(12):
                logits = torch.from_numpy(values.copy()).to(_DEVICE)
                if _HAS_GPU:
                    torch.cuda.synchronize()
                started = time.perf_counter()
                for index, chain in enumerate(rows):
                    chain(index, logits[index : index + 1], [[5, 6, *drawn]], None, None)
                host_s = time.perf_counter() - started
                drawn.append(int(tensors.to_array(logits[:1]).argmax()))  # waits for the GPU
                times.append((host_s, time.perf_counter() - started))
            host_s, whole_s = np.median(times[2:], axis=0)
            first = f"first {times[0][0] * 1e3:.1f} ms"
            detail = f"{host_s / num_rows * 1e6:.0f} us a row on the host, {whole_s * 1e3:.2f} ms in all, {first}"
            yield f"{name}, {num_rows} rows of {vocab} tokens", True, detail


def precision() -> Check:
    """Greedy tokens of the demo model in 16 bits are nearly the likeliest in 32: the kit's TOLERANCE is wide enough."""
    if _IS_DOUBLE:
        return
    from tokenizers import Tokenizer
    from transformers import AutoModelForCausalLM

    tokenizer = Tokenizer.from_file(str(DEMO / "tokenizer.json"))
    exact = AutoModelForCausalLM.from_pretrained(DEMO, dtype=torch.float32).eval()
    for kind in (torch.float16, torch.bfloat16):
        model = AutoModelForCausalLM.from_pretrained(DEMO, dtype=kind).to(_DEVICE).eval()
        lacks: list[float] = []
        for place in ("France", "Japan", "Peru", "Kenya", "Norway", "Italy"):
            text = f"<|im_start|>user\nWhat is the capital of {place}?<|im_end|>\n<|im_start|>assistant\n"
            ids = tokenizer.encode(text).ids
            with torch.inference_mode():
                prompt = torch.tensor([ids], device=_DEVICE)
                answer = model.generate(prompt, max_new_tokens=64, do_sample=False)[0].tolist()
                rows = exact(torch.tensor([answer])).logits[0][len(ids) - 1 : -1].numpy()
            lacks += (rows.max(-1) - rows[range(len(rows)), answer[len(ids) :]]).tolist()
        detail = f"{lacks.count(0)} of {len(lacks)} tokens are the likeliest; the others lack up to {max(lacks):.3f}"
        yield f"demo model in {kind}", max(lacks) < TOLERANCE, detail


def machine() -> Check:
    """nvidia-smi is read."""
    found = read_machine()
    yield "the GPU is read", not _HAS_GPU or bool(found.gpu_names and not found.gpu_error), str(found)


def _pinning(device: str) -> AbstractContextManager[Any]:
    """Leave out the pinning of memory, which needs a GPU, where there is none."""
    is_possible = device == "cuda" or _IS_DOUBLE
    return nullcontext() if is_possible else mock.patch.object(torch.Tensor, "pin_memory", lambda self: self)


def _vocabulary(size: int) -> VocabularyFile:
    rng, folder = np.random.default_rng(2), Path(tempfile.mkdtemp())
    words: list[npt.NDArray[Any]] = [rng.integers(97, 123, length) for length in rng.integers(2, 9, max(0, size - 96))]
    table = [b"", b"", b"", *(bytes([byte]) for byte in range(32, 125)), *(bytes(word.tolist()) for word in words)]
    save_byte_table(folder / FILE_NAME, table)
    return VocabularyFile(folder / FILE_NAME, size, frozenset([1]))


def _edits(vocabulary: VocabularyFile) -> dict[str, Callable[[], list[Any]]]:
    def allowed(kind: OutputFormat, text: str) -> AllowedTokens:
        grammar = structured_output_to_grammar(StructuredOutput(kind, text))
        request = EngineRequest(prompt_token_ids=(10, 11, 12), max_tokens=64, grammar=grammar)
        return AllowedTokens(vocabulary, request, has_grammar=True)

    properties = {"a": {"type": "string"}, "b": {"type": "integer"}}
    schema = json.dumps({"type": "object", "properties": properties, "required": ["a"], "additionalProperties": False})
    prompt = (np.arange(2000) % vocabulary.size).tolist()
    penalties = SamplingParams(temperature=0.7, repetition_penalty=1.4, presence_penalty=0.3, frequency_penalty=0.2)
    mirostat = SamplingParams(temperature=0.7, mirostat=Mirostat(), seed=5)
    return {
        "JSON schema": lambda: [allowed(OutputFormat.JSON_SCHEMA, schema)],
        "wide regular expression": lambda: [allowed(OutputFormat.REGEX, "[a-z ]{1,2000}")],
        "penalties": lambda: [Shaping(penalties, {70: 2.0}, prompt)],
        "min_p": lambda: [Shaping(SamplingParams(temperature=0.7, min_p=0.05), {}, [])],
        "mirostat": lambda: [Shaping(mirostat, {}, [])],
    }


def _show(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main() -> int:
    """Run the checks and return the exit status."""
    _show(f"torch {getattr(torch, '__version__', 'double')} on {_DEVICE}")
    found: list[dict[str, object]] = []
    for check in (edits, pinned_copies, chains, costs, precision, machine):
        started = time.monotonic()
        try:
            with _pinning(_DEVICE):
                results = list(check())
        except Exception as exc:
            results = [(check.__name__, False, f"{type(exc).__name__}: {exc}")]
        for name, is_right, detail in results:
            _show(f"{'passed' if is_right else 'FAILED'}: {name}: {detail}")
            found.append({"check": name, "passed": is_right, "detail": detail})
        _show(f"  {check.__name__}: {time.monotonic() - started:.1f} s")
    if len(sys.argv) > 1:
        Path(sys.argv[1]).write_text(json.dumps(found, indent=1), encoding="utf-8")
    return int(not all(each["passed"] for each in found))


if __name__ == "__main__":
    sys.exit(main())
