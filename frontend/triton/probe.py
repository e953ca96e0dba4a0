"""Asks an engine whether it works: by its own word, or by a token. The watch, the breakers and a command ask alike."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import AsyncGenerator, Awaitable, Sequence
from contextlib import aclosing
from typing import NamedTuple, Protocol

from frontend import loop_time
from frontend.errors import APIError, ModelNotFound, Overloaded, StageUnhealthy, TritonTimeout, TritonUnreachable
from frontend.triton.models import ModelSnapshot
from model_repository.contract.output import EngineStats, GenerationChunk
from model_repository.contract.request import (
    GenerationRequest,
    Params,
    Prompt,
    SamplingParams,
    TextPrompt,
    TokenizeAnswer,
)
from model_repository.contract.tensors import model_id_to_slug, slug_of_stage, stage_name

_SHARE_OF_TOKEN = 0.7  # of the deadline; the rest is for a look at what a busy engine does instead
_POLL_S = 0.1


class ProbeResult(NamedTuple):
    """How a probe went."""

    is_well: bool
    reason: str  # one line
    is_silent: bool = False  # there was no answer at all, not even that something is wrong


class Probed(Protocol):
    """What a probe asks of Triton."""

    def generate(self, slug: str, request: GenerationRequest) -> AsyncGenerator[GenerationChunk, None]:
        """Yield the completion."""

    async def engine_stats(self, slug: str, timeout_s: float) -> EngineStats:
        """Ask a model's engine how it is."""

    async def tokenize(self, slug: str, prompt: Prompt, *, add_special_tokens: bool) -> TokenizeAnswer:
        """Return a prompt's tokens."""

    async def detokenize(self, slug: str, token_ids: Sequence[int], *, has_special_tokens: bool) -> str:
        """Return the text of token ids."""

    async def snapshot(self) -> ModelSnapshot:
        """Return what Triton serves at this moment."""


async def look_at_engine(triton: Probed, slug: str, *, deadline_s: float, stall_s: float) -> EngineStats:
    """Return what an engine says of itself.

    Raises:
        APIError: it does not answer, or it answers but has been in one step for longer than `stall_s`.
    """
    stats = await triton.engine_stats(slug, deadline_s)
    if stats.step_age_ms > stall_s * 1000:
        raise StageUnhealthy(stage_name(slug, "engine"))
    return stats


async def look_at_stage(triton: Probed, stage: str, *, deadline_s: float, stall_s: float) -> None:
    """Have any stage, by its Triton name, show that it works; an engine as `look_at_engine`.

    Raises:
        APIError: it does not answer.
    """
    slug = slug_of_stage(stage)
    look: Awaitable[object]
    if stage == stage_name(slug, "tokenizer"):
        look = triton.tokenize(slug, TextPrompt("Hello"), add_special_tokens=False)
    elif stage == stage_name(slug, "detokenizer"):
        look = triton.detokenize(slug, (), has_special_tokens=False)
    else:
        look = look_at_engine(triton, slug, deadline_s=deadline_s, stall_s=stall_s)
    try:
        await loop_time.within(deadline_s, look)
    except TimeoutError as exc:
        raise TritonTimeout() from exc


async def require_tokens(triton: Probed, slug: str, before: EngineStats, *, deadline_s: float) -> bool:
    """Have a model make a token, the way that every request goes; one that is too busy for it must make others' tokens.

    An overload is no fault: whoever took a replica away for it would only overload the others.

    Args:
        triton: the endpoint.
        slug: the model's.
        before: what its engine has just said of itself.
        deadline_s: for the token, and for a look at what the engine does instead.

    Returns:
        Whether it made ours.

    Raises:
        APIError: it did neither before the deadline.
    """
    try:
        await _generate_one_token(triton, slug, deadline_s=_SHARE_OF_TOKEN * deadline_s)
    except APIError as exc:
        if type(exc) not in (Overloaded, TritonTimeout):  # the queue is full, or ours was not our turn yet
            raise
        if not await _is_busy(triton, slug, before, within_s=(1 - _SHARE_OF_TOKEN) * deadline_s):
            raise
        return False
    return True


async def _generate_one_token(triton: Probed, slug: str, *, deadline_s: float) -> None:
    request = GenerationRequest(
        prompt=TextPrompt("Hello"),
        params=Params(
            max_tokens=1,
            sampling=SamplingParams(temperature=0.0),
            cancel_key=secrets.token_hex(16),
            priority=-1,
        ),
    )

    async def generate() -> None:
        async with aclosing(triton.generate(slug, request)) as chunks:
            async for _ in chunks:
                pass

    try:
        await loop_time.within(deadline_s, generate())
    except TimeoutError as exc:
        raise TritonTimeout("The model did not make a token in time.") from exc


async def _is_busy(triton: Probed, slug: str, before: EngineStats, *, within_s: float) -> bool:
    """Return whether an engine at which others wait makes tokens: more than the one that may be a probe's."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(within_s):
            while True:
                now = await triton.engine_stats(slug, within_s)
                if now.epoch != before.epoch or not now.num_waiting:
                    return False
                if now.num_step_tokens > before.num_step_tokens + 1:
                    return True
                await asyncio.sleep(_POLL_S)
    return False


async def probe(triton: Probed, *, model: str, deadline_s: float, stall_s: float, is_generating: bool) -> ProbeResult:
    """Return whether the engines work, and one line that says why.

    Args:
        triton: the endpoint.
        model: the id of the only one that is asked; empty: all that are served, and there must be one.
        deadline_s: for everything together.
        stall_s: an engine that has been in one step for longer hangs.
        is_generating: ask for a token each, not only for the engine's word.
    """
    words: list[str] = []
    try:
        async with asyncio.timeout(deadline_s):
            slugs = [model_id_to_slug(model)] if model else await _served_slugs(triton)
            for slug in slugs:
                stats = await look_at_engine(triton, slug, deadline_s=deadline_s, stall_s=stall_s)
                word = "answers"
                if is_generating:
                    is_ours = await require_tokens(triton, slug, stats, deadline_s=deadline_s / len(slugs))
                    word = "made a token" if is_ours else "is busy"
                words.append(f"{slug} {word}")
    except TimeoutError:
        return ProbeResult(False, f"no answer within {deadline_s:g} s", is_silent=True)
    except ModelNotFound:
        return ProbeResult(False, f"{model}: not served" if model else "a model was unloaded meanwhile")
    except APIError as exc:
        is_silent = isinstance(exc, TritonTimeout | TritonUnreachable)
        return ProbeResult(False, f"{exc.code}: {exc}", is_silent)
    if not slugs:
        return ProbeResult(False, "no model is ready")
    return ProbeResult(True, ", ".join(words))


async def _served_slugs(triton: Probed) -> list[str]:
    return [served.slug for served in (await triton.snapshot()).ready.values()]
