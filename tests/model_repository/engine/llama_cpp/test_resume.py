"""Completions that go on behind their first tokens, on a tiny model of random weights in f32."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from build_engines.vocabulary import token_bytes
from model_repository.byte_table import FILE_NAME, load_byte_table
from model_repository.contract.output import TokenDelta, Usage
from model_repository.contract.request import (
    EngineRequest,
    Mirostat,
    OutputFormat,
    SamplingParams,
    StructuredOutput,
    Thinking,
)
from model_repository.engine.llama_cpp.runtime import LlamaCppRuntime
from model_repository.engine.output_streams import OutputSender, OutputStream
from model_repository.engine.runtime import EngineConfig
from model_repository.engine.sequence import EngineSequence
from model_repository.errors import InvalidRequest
from model_repository.reasoning_formats import REASONING_FORMATS
from model_repository.runtimes import NGRAM
from tests.build_engines.tiny_checkpoint import CONFIG, tokenizer_description
from tests.model_repository.engine.engine_requests import changed
from tests.model_repository.engine.fake_engine import FakeResponder
from tests.model_repository.engine.tiny_adapter import write_adapter

EOS = 261
PROMPT = tuple(range(40, 60))
NUM_TOKENS = 24
NUMBERS = itertools.count(1)
TOKEN_IDS = {token: token_id for token_id, token in enumerate(token_bytes(tokenizer_description(), 256))}
A, B, C, D = (TOKEN_IDS[letter] for letter in (b"a", b"b", b"c", b"d"))
SCHEMA = '{"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"], "additionalProperties": false}'


def sampled(**fields: Any) -> dict[str, Any]:
    return {"sampling": SamplingParams(**{"seed": 7} | fields)}


def structured(format: OutputFormat, content: str, **fields: Any) -> dict[str, Any]:
    return sampled(**fields) | {"structured_output": StructuredOutput(format, content)}


THINK = REASONING_FORMATS["think"]
KINDS: dict[str, dict[str, Any]] = {
    "greedy": sampled(temperature=0.0),
    "seeded": sampled(),
    "often without a choice": sampled(top_p=0.02),  # then no random number is drawn
    "truncated": sampled(top_k=40, min_p=0.01, temperature=1.5),
    "penalties": sampled(repetition_penalty=1.5, frequency_penalty=1.5, presence_penalty=1.0, top_k=4),
    "mirostat": sampled(mirostat=Mirostat(target=2.0, learning_rate=0.5)),
    "mirostat with penalties": sampled(mirostat=Mirostat(target=2.0), repetition_penalty=1.5),
    "mirostat with a grammar": structured(OutputFormat.REGEX, "[a-f]{40}", mirostat=Mirostat(target=2.0)),
    "schema": structured(OutputFormat.JSON_SCHEMA, SCHEMA),
    "expression": structured(OutputFormat.REGEX, "([a-c][x-z]){20}"),  # most free draws are refused
    "truncated expression": structured(OutputFormat.REGEX, "([a-c][x-z]){20}", top_p=0.5),
    "bad words": sampled(top_k=3) | {"bad_words": ("a", "b")},
    "allowed tokens": sampled() | {"allowed_token_ids": tuple(range(60, 80))},
    "bias": sampled(logit_bias={70: 4.0, 71: -100.0}),
    "least number of tokens": sampled(logit_bias={EOS: 12.0}) | {"min_tokens": 9},
    "stop sequence": sampled(logit_bias={A: 6.0, B: 6.0}) | {"stop": ("aabb", "abba")},
    "log probabilities": sampled() | {"num_logprobs": 3},
    "adapter": sampled() | {"lora_name": "a"},
    "thinking": sampled(logit_bias={TOKEN_IDS[bytes([each])]: 5.0 for each in THINK.end.encode()})
    | {"thinking": Thinking(THINK, True)},
    "budget of thinking": sampled() | {"thinking": Thinking(THINK, True, budget=6)},
    "thinking, then a form": structured(OutputFormat.REGEX, "[a-z]{20}")
    | {"thinking": Thinking(THINK, True, budget=4)},
    "prompt": sampled() | {"has_token_ids": True, "num_prompt_logprobs": 2},
    "usage": sampled() | {"has_usage": True},
}


@pytest.fixture(scope="module")
def runtimes(tiny_artifact: Path) -> Iterator[dict[bool, LlamaCppRuntime]]:
    """Runtimes by whether they draft tokens."""
    write_adapter(tiny_artifact / "a.gguf", 0)
    table = load_byte_table(tiny_artifact / FILE_NAME)

    def start(speculative: str | None) -> LlamaCppRuntime:
        config = EngineConfig(
            runtime="llama_cpp",
            artifact_dir=tiny_artifact,
            context_window=CONFIG["max_position_embeddings"],
            eos_token_ids=frozenset([EOS]),
            max_sequences=2,
            num_threads=1,
            precision="f32",
            adapters={"a": "a.gguf"},
            speculative=speculative,
        )
        return LlamaCppRuntime(config, table)

    found = {False: start(None), True: start(NGRAM)}
    yield found
    for each in found.values():
        each.close()


def deltas_of(runtime: LlamaCppRuntime, request: EngineRequest) -> list[TokenDelta]:
    """Complete a request alone, and return its deltas."""
    number, prepared = next(NUMBERS), runtime.prepare(request)
    sequence = EngineSequence(
        number,
        prepared.request,
        stream=OutputStream(1, "key", FakeResponder(), 0.0, OutputSender(lambda number: None)),
        item=3,
        byte_table=runtime._byte_table,
        eos_token_ids=frozenset([EOS]),
        now_s=0.0,
    )
    runtime.submit(number, prepared.request, prepared)
    deltas: list[TokenDelta] = []
    while sequence.finish_reason is None:
        for output in runtime.step():
            assert output.error is None
            if sequence.finish_reason is None:
                sequence.add_output(output, 0.0)
            if sequence.pending_output() is not None:
                deltas.append(sequence.next_delta())
    runtime.free(number)
    return deltas


def joined_spans(deltas: Sequence[TokenDelta]) -> list[bool]:
    """Return whether each byte of thinking and answer is thinking."""
    is_thinking = list[bool]()
    for delta in deltas:
        for index, size in enumerate(delta.spans):
            is_thinking += [index % 2 == 0] * size
    return is_thinking


def facts(deltas: Sequence[TokenDelta]) -> tuple[Any, ...]:
    """Return everything that a client gets in all, but for times and rounding."""
    details = [each.details for each in deltas if each.details is not None]
    logprobs = [drawn for each in details for drawn in each.logprobs]
    usage = deltas[-1].usage
    assert usage is not None
    return (
        [token_id for each in deltas for token_id in each.token_ids],
        deltas[-1].num_cut_bytes,
        deltas[-1].finish_reason,
        Usage(
            num_input_tokens=usage.num_input_tokens,
            num_output_tokens=usage.num_output_tokens,
            num_reasoning_tokens=usage.num_reasoning_tokens,
        ),
        joined_spans(deltas),
        [token_id for drawn in logprobs for token_id, _ in drawn.top],
        [round(drawn.logprob or 0.0, 2) for drawn in logprobs],
        [token_id for each in details for token_id in each.prompt_token_ids],
        [drawn.rank for each in details for drawn in each.prompt_logprobs],
        details[-1].stop_reason if details else None,
    )


@pytest.mark.parametrize("has_drafts", [False, True], ids=["alone", "speculation"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_resumed_completion_is_the_one_that_was_never_cut(
    runtimes: dict[bool, LlamaCppRuntime], kind: str, has_drafts: bool
) -> None:
    runtime = runtimes[has_drafts]
    request = changed(EngineRequest(prompt_token_ids=PROMPT, max_tokens=NUM_TOKENS), is_stream=True, **KINDS[kind])
    whole = deltas_of(runtime, request)
    assert len(whole) > 3
    for num_seen in range(1, len(whole)):
        seen = whole[:num_seen]
        token_ids = tuple(token_id for each in seen for token_id in each.token_ids)
        rest = deltas_of(runtime, changed(request, resume_token_ids=token_ids, cache_salt="another engine"))
        assert facts([*seen, *rest]) == facts(whole), num_seen


@pytest.mark.parametrize("token_ids", [(70, EOS), (70,) * NUM_TOKENS, (C, A, B, D)])
def test_a_completion_that_has_ended_is_not_resumed(
    runtimes: dict[bool, LlamaCppRuntime], token_ids: tuple[int, ...]
) -> None:
    request = EngineRequest(prompt_token_ids=PROMPT, max_tokens=NUM_TOKENS)
    with pytest.raises(InvalidRequest, match="the completion ended"):
        deltas_of(runtimes[False], changed(request, stop=("ab",), resume_token_ids=token_ids))


def test_tokens_that_a_form_does_not_allow_are_refused(runtimes: dict[bool, LlamaCppRuntime]) -> None:
    request = EngineRequest(prompt_token_ids=PROMPT, max_tokens=NUM_TOKENS)
    fields = structured(OutputFormat.REGEX, "[a-c]{9}")
    with pytest.raises(InvalidRequest, match=f"{D} cannot follow"):
        runtimes[False].prepare(changed(request, resume_token_ids=(A, D), **fields))
