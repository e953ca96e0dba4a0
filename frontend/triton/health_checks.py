"""Checks whether an engine or a stage works. The monitor and the command `health` share it."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Awaitable
from typing import NamedTuple

from frontend import loop_time
from frontend.errors import (
    APIError,
    ModelNotFound,
    NotFinite,
    QueueFull,
    StageUnhealthy,
    TritonTimeout,
    TritonUnreachable,
)
from frontend.triton.client import TritonClient
from frontend.triton.models import in_order
from model_repository.contract.output import EngineStats
from model_repository.contract.request import (
    GenerationRequest,
    Params,
    TextPrompt,
)
from model_repository.contract.tensors import ensemble_of_stage, stage_name

_SHARE_OF_TOKEN = 0.7  # part of the deadline; in the rest a busy engine may show tokens of other requests
_POLL_S = 0.1
CHECK_PROMPT = TextPrompt("Hello")
_CHECK_SENDER = "health check"  # no work of another sender is ahead of its own


class HealthResult(NamedTuple):
    """The result of a health check."""

    is_well: bool
    reason: str  # one line
    is_silent: bool = False  # Triton gave no answer at all, not even an error
    names: tuple[str, ...] | None = None  # all served models, if all were checked and none failed


async def check_engine(triton: TritonClient, ensemble: str, *, deadline_s: float, stall_s: float) -> EngineStats:
    """Return the statistics of an engine that works.

    Raises:
        APIError: it does not answer, or it has been in one step for longer than `stall_s`.
    """
    stats = await triton.engine_stats(ensemble, deadline_s)
    if stats.step_age_ms > stall_s * 1000:
        raise StageUnhealthy(stage_name(ensemble, "engine"))
    return stats


async def check_text_stage(triton: TritonClient, stage: str, *, deadline_s: float) -> None:
    """Have a tokenizer or a detokenizer, by its Triton name, show that it works.

    A stage that only has much to do works: Triton has counted other executions meanwhile.

    Raises:
        TritonTimeout: it neither answers nor executes anything.
        APIError: it is dead, not loaded or not reached.
    """
    ensemble = ensemble_of_stage(stage)
    num_before = await triton.num_executions(stage)
    work: Awaitable[object]
    if stage == stage_name(ensemble, "tokenizer"):
        work = triton.tokenize(ensemble, CHECK_PROMPT, add_special_tokens=False, sender=_CHECK_SENDER)
    else:
        work = triton.check_detokenizer(ensemble)
    try:
        await loop_time.within(deadline_s, work)
    except (TimeoutError, TritonTimeout) as exc:
        if await triton.num_executions(stage) == num_before:
            raise TritonTimeout() from exc


async def require_tokens(triton: TritonClient, ensemble: str, before: EngineStats, *, deadline_s: float) -> bool:
    """Have a model make one token, through all its stages. A busy engine may make tokens of other requests instead.

    Overload is no fault: without this replica the others would be overloaded too.

    Args:
        triton: the endpoint.
        ensemble: of the model.
        before: the engine's statistics from just before.
        deadline_s: for everything together.

    Returns:
        Whether the token came; False: the engine made tokens of other requests.

    Raises:
        APIError: the engine made no token before the deadline.
    """
    try:
        await _generate_one_token(triton, ensemble, deadline_s=_SHARE_OF_TOKEN * deadline_s)
    except NotFinite:  # the stages work, and each such request gets this error
        return True
    except APIError as exc:
        if not isinstance(exc, QueueFull | TritonTimeout):  # other requests were first
            raise
        if not await _is_busy(triton, ensemble, before, within_s=(1 - _SHARE_OF_TOKEN) * deadline_s):
            raise
        return False
    return True


async def _generate_one_token(triton: TritonClient, ensemble: str, *, deadline_s: float) -> None:
    request = GenerationRequest(
        prompt=CHECK_PROMPT,
        params=Params(
            max_tokens=1,
            cancel_key=secrets.token_hex(16),
            priority=-1,
        ),
    )

    async def generate() -> None:
        async with triton.generations.running(ensemble, request) as attempt:
            while (await attempt.get()).finish_reason is None:
                pass

    try:
        await loop_time.within(deadline_s, generate())
    except TimeoutError as exc:
        raise TritonTimeout("The model did not make a token in time.") from exc


async def _is_busy(triton: TritonClient, ensemble: str, before: EngineStats, *, within_s: float) -> bool:
    """Return whether an engine with a queue makes tokens: more than the one that may be of a health check."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(within_s):
            while True:
                now = await triton.engine_stats(ensemble, within_s)
                if now.epoch != before.epoch or not now.num_waiting:
                    return False
                if now.num_step_tokens > before.num_step_tokens + 1:
                    return True
                await asyncio.sleep(_POLL_S)
    return False


async def check_health(
    triton: TritonClient, *, model: str, deadline_s: float, stall_s: float, is_generating: bool
) -> HealthResult:
    """Return whether the engines of an endpoint work, and the reason in one line.

    Args:
        triton: the endpoint.
        model: the id of the only model to check; empty: all that are served, at least one. Of several replicas those
            are checked that are loaded. A model that a request loads is well, and this does not load it.
        deadline_s: for everything together.
        stall_s: the longest time that an engine may be in one step.
        is_generating: have each engine make a token, not only answer.
    """
    words: list[str] = []
    try:
        async with asyncio.timeout(deadline_s):
            served = await triton.snapshot()
            ensembles = served.replicas_of(model) if model else list(served.by_ensemble)
            asleep = [] if ensembles else await triton.asleep()
            for ensemble in ensembles:
                stats = await check_engine(triton, ensemble, deadline_s=deadline_s, stall_s=stall_s)
                word = "answers"
                if is_generating:
                    is_ours = await require_tokens(triton, ensemble, stats, deadline_s=deadline_s / len(ensembles))
                    word = "made a token" if is_ours else "is busy"
                words.append(f"{ensemble} {word}")
    except TimeoutError:
        return HealthResult(False, f"no answer within {deadline_s:g} s", is_silent=True)
    except ModelNotFound:
        return HealthResult(False, f"{model}: not served" if model else "a model was unloaded meanwhile")
    except APIError as exc:
        is_silent = isinstance(exc, TritonTimeout | TritonUnreachable)
        return HealthResult(False, f"{exc.code}: {exc}", is_silent)
    if asleep and (not model or model in asleep):
        return HealthResult(True, f"{', '.join(asleep)}: loaded by a request", names=None if model else ())
    if model and not ensembles:
        return HealthResult(False, f"{model}: not served")
    if not ensembles:
        return HealthResult(False, "no model is ready", names=())
    names = tuple(name.requested for name in in_order(served.names().values()))
    return HealthResult(True, ", ".join(words), names=None if model else names)
