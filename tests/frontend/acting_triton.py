"""A fake Triton in a process of its own, which answers each request with as much as the real stages would.

python -m tests.frontend.acting_triton prints its port, and serves until its standard input ends.
"""

from __future__ import annotations

import asyncio
import itertools
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import grpc
import numpy as np

from model_repository.contract.codec import pack_logprobs, unpack
from model_repository.contract.output import (
    Chunk,
    FinishReason,
    GenerationChunk,
    Timing,
    TokenLogprob,
    TopLogprob,
    Usage,
    VectorChunk,
)
from model_repository.contract.request import (
    ChatPrompt,
    DetokenizeRequest,
    EngineRequest,
    EngineRequestBatch,
    GenerationRequest,
    PairPrompt,
    Prompt,
    RequestBatch,
    TextPrompt,
    TokenizeAnswer,
    TokenizeRequest,
    TokenPrompt,
)
from model_repository.contract.tensors import (
    ARBITER,
    DETOKENIZE,
    REQUEST_BATCH,
    TEXT,
    TOKENIZE,
    ensemble_of_stage,
)
from model_repository.model_facts import Task
from model_repository.model_parameters import ModelParameters
from tests.fakes import served_model
from tests.frontend.triton.server import FakeTritonServer, OutputStream, infer_response, listen, text_of

SAY = "SAY "  # the rest of a prompt behind it is the completion, again and again
WINDOW = 65_536
MAX_TOKENIZED = 500_000  # each byte may be a token
NUM_DIMENSIONS = 1024
MODELS: dict[str, ModelParameters] = {
    model.parameters.model_id: model.parameters
    for model in (
        served_model("chat", context_window=WINDOW, aliases=("demo",)),
        served_model("thinker", context_window=WINDOW, reasoning_format="think", tool_call_format="glm"),
        served_model("embedder", context_window=WINDOW, pooling="mean"),
        served_model("reranker", context_window=WINDOW, pooling="rank", labels=("relevance",)),
        served_model("classifier", context_window=WINDOW, pooling="rank", labels=tuple(map(str, range(1000)))),
    )
}
_USUAL_LENGTH = 40  # tokens of a completion that may end
_PART_SIZE = 512  # log probabilities in a message
_TOKEN_CHARS = 4
_TIMING = Timing(arrival_time_ns=0, first_scheduled_time_ns=1000, first_token_time_ns=2000, last_token_time_ns=3000)
_USAGE = Usage(num_input_tokens=7, num_output_tokens=0)


class Steps(OutputStream):
    """An output stream whose batches have the chunks of all completions at one step, as an engine's have."""

    def __init__(self) -> None:
        super().__init__()
        self._playing: dict[int, Iterator[Chunk]] = {}
        self._step: asyncio.Task[None] | None = None

    def play(self, plays: dict[int, Iterator[Chunk]]) -> None:
        self._playing |= plays
        if self._step is None or self._step.done():
            self._step = asyncio.get_running_loop().create_task(self._run())
            self._plays.add(self._step)

    async def _run(self) -> None:
        while self._playing:
            items = [(number, chunk) for number, play in self._playing.items() if (chunk := next(play, None))]
            for number in [number for number in self._playing if number not in {number for number, _ in items}]:
                del self._playing[number]
            self.put(*items)
            await asyncio.sleep(0)


class ActingTriton(FakeTritonServer):
    """Plays what a request asks for: tokens, log probabilities, ids, thinking, vectors and scores."""

    output_stream = Steps

    def __init__(self) -> None:
        super().__init__()
        ensembles = {parameters.ensemble: parameters for parameters in MODELS.values()}
        self.index = [(name, "READY") for name in ensembles]
        self.configs = {name: ("ensemble", parameters.to_config()) for name, parameters in ensembles.items()}

    async def _take(self, message: Any) -> str:
        batch = unpack(RequestBatch, text_of(message, REQUEST_BATCH), REQUEST_BATCH.name)
        ensemble = ensemble_of_stage(message.model_name)
        [model] = [each for each in MODELS.values() if each.ensemble == ensemble]
        stream = cast(Steps, self.streams[batch.stream])
        stream.play({number: _play(request, model) for number, request in batch.items})
        return ""

    async def ModelInfer(self, request: Any, context: Any) -> Any:
        if request.inputs[0].name == TOKENIZE.name:
            asked = unpack(TokenizeRequest, text_of(request, TOKENIZE), TOKENIZE.name)
            num_tokens = _num_tokens(asked.prompt)
            if num_tokens > MAX_TOKENIZED:
                await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "prompt: too long")
            self.tokenizer_answer = TokenizeAnswer(tuple(range(num_tokens)), ("word",) * num_tokens * asked.has_strings)
        elif request.inputs[0].name == DETOKENIZE.name:
            token_ids = unpack(DetokenizeRequest, text_of(request, DETOKENIZE), DETOKENIZE.name).token_ids
            self.tokenizer_answer = infer_response(TEXT, "".join(f"{token:04}" for token in token_ids).encode())
        elif request.model_name != ARBITER:
            batch = unpack(RequestBatch, text_of(request, REQUEST_BATCH), REQUEST_BATCH.name)
            accepted = EngineRequest(prompt_token_ids=(1,), max_tokens=1)
            self.tokenizer_answer = EngineRequestBatch("", tuple((number, accepted) for number, _ in batch.items))
        return await super().ModelInfer(request, context)


def _play(request: GenerationRequest, model: ModelParameters) -> Iterator[Chunk]:
    yield GenerationChunk(text="")  # the engine has accepted it
    params = request.params
    if model.task is not Task.GENERATE:
        size = len(model.labels) or NUM_DIMENSIONS
        numbers = np.linspace(-1, 1, size, dtype="<f4").tobytes()
        yield VectorChunk(embedding=numbers, usage=_USAGE, timing=_TIMING)
        return
    num_tokens = min(params.max_tokens, WINDOW if params.ignore_eos else _USUAL_LENGTH)
    text = _text(request.prompt)
    said = text.partition(SAY)[2] or "some word, "
    tokens = [said[at : at + _TOKEN_CHARS] for at in range(0, len(said), _TOKEN_CHARS)]
    drawn = list(itertools.islice(itertools.cycle(tokens), num_tokens))
    size = 1 if params.is_stream else num_tokens
    if params.has_logprobs and not params.is_stream:  # the engine sends many of them in parts
        size = _PART_SIZE // (1 + params.num_top_logprobs)
    num_prompt_tokens = min(_num_tokens(request.prompt), WINDOW)
    for start in range(0, num_tokens, size):
        part = drawn[start : start + size]
        is_thinking = bool(model.reasoning_format) and start < num_tokens // 2
        text = "".join(part)
        yield GenerationChunk(
            text=text,
            token_ids=tuple(range(len(part))) if params.has_token_ids else (),
            prompt_token_ids=tuple(range(num_prompt_tokens)) if params.has_token_ids and not start else (),
            logprobs=_logprobs(part, params.num_top_logprobs) if params.has_logprobs else (),
            prompt_logprobs=_prompt_logprobs(num_prompt_tokens, params.num_prompt_logprobs),
            spans=((len(text),) if params.is_stream else (len(text) // 2, len(text) - len(text) // 2))
            if is_thinking
            else (),
            finish_reason=FinishReason.LENGTH if start + size >= num_tokens else None,
            timing=_TIMING if start + size >= num_tokens else None,
            usage=Usage(num_input_tokens=7, num_output_tokens=num_tokens),
        )


def _prompt_logprobs(num_tokens: int, num_top: int | None) -> tuple[bytes, ...]:
    return () if num_top is None else _logprobs(["word"] * num_tokens, num_top)


def _logprobs(tokens: list[str], num_top: int) -> tuple[bytes, ...]:
    top = tuple(TopLogprob(number, b"word", -1.25 - number) for number in range(num_top))
    drawn = (TokenLogprob(number, token.encode(), -0.125, top, 1) for number, token in enumerate(tokens))
    return pack_logprobs(drawn)


def _text(prompt: Prompt) -> str:
    match prompt:
        case TextPrompt(text):
            return text
        case ChatPrompt(messages):
            return str(messages[-1]["content"])
        case _:
            return ""


def _num_tokens(prompt: Prompt) -> int:
    match prompt:
        case TokenPrompt(token_ids):
            return len(token_ids)
        case PairPrompt(texts):
            return sum(map(_num_tokens_of, texts))
        case ChatPrompt(messages):
            return sum(_num_tokens_of(message["content"]) for message in messages)
        case TextPrompt(text):
            return _num_tokens_of(text)


def _num_tokens_of(text: str) -> int:
    """Return the number of a text's tokens: its bytes, if they are in no word."""
    return len(text) // _TOKEN_CHARS if text.isascii() else len(text.encode())


@contextmanager
def acting() -> Iterator[str]:
    """Run it in a process of its own, and yield its endpoint."""
    command = [sys.executable, "-m", __name__]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield f"127.0.0.1:{int(process.stdout.readline())}"
        finally:
            process.kill()


async def _main() -> None:
    triton = ActingTriton()
    server, port = await listen(triton)
    sys.stdout.write(f"{port}\n")
    sys.stdout.flush()
    await asyncio.to_thread(sys.stdin.read)
    await server.stop(0)


if __name__ == "__main__":
    asyncio.run(_main())
