"""Loads and unloads models while the server runs. Triton does both, so that all workers see it."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

from frontend.errors import APIError, InvalidRequest, ModelNotFound
from frontend.triton.models import Triton
from model_repository.contract.tensors import ENSEMBLES, model_id_to_slug, stage_name

logger = logging.getLogger(__name__)

STAGES = ("tokenizer", "engine", "detokenizer")

_POLL_S = 0.1
_STATS_DEADLINE_S = 2.0


@dataclass(frozen=True, slots=True)
class Unloading:
    """How an unload went."""

    num_ended: int  # requests that were still running when the time was up; they ended with an error


class ModelControl:
    """Loads and unloads at one endpoint, one model at a time.

    Args:
        clock: seconds, monotonic.
        sleep: lets time pass.
    """

    def __init__(
        self,
        triton: Triton,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._triton = triton
        self._clock = clock
        self._sleep = sleep
        self._turn = asyncio.Lock()

    async def load(self, model_id: str) -> None:
        """Load a model; return when it is ready. One that is ready already stays as it is.

        Raises:
            ModelNotFound: the repository has none of this id.
            APIError: Triton did not do it.
        """
        slug = _slug(model_id)
        async with self._turn:
            if await self._is_ready(model_id):
                return
            if slug not in await self._triton.repository():
                raise ModelNotFound(model_id)
            logger.warning("loading %s", model_id)
            await self._triton.load(slug, stage_name(slug, "engine"))  # and with its ensemble all that it needs

    async def unload(self, model_id: str, timeout_s: float) -> Unloading:
        """Unload a model: no request is let in from now on, those under way have so long, then they are ended.

        Raises:
            ModelNotFound: no model of this id is loaded.
            APIError: Triton did not do it.
        """
        slug = _slug(model_id)
        async with self._turn:
            if not await self._is_ready(model_id):
                raise ModelNotFound(model_id)
            logger.warning("unloading %s", model_id)
            await self._triton.unload(slug)  # Triton refuses what comes now; what runs only needs the stages
            num_running = await self._wait_until_idle(slug, timeout_s)
            if num_running:
                logger.warning("ending %d requests of %s", num_running, model_id)
                await self._triton.fail_running(slug)
            await self._unload_all(slug, [stage_name(slug, stage) for stage in STAGES])
        return Unloading(num_ended=num_running)

    async def _is_ready(self, model_id: str) -> bool:
        return model_id in (await self._triton.snapshot()).ready  # now, not a second ago

    async def _wait_until_idle(self, slug: str, timeout_s: float) -> int:
        """Return how many requests are still there when none is, or when the time is up."""
        give_up_at = self._clock() + timeout_s
        while True:
            try:
                stats = await self._triton.engine_stats(slug, _STATS_DEADLINE_S)
            except APIError as exc:  # an engine that is down has nothing to wait for
                logger.warning("the engine of %s does not answer: %s", slug, exc.code)
                return 0
            num_running = stats.num_active + stats.num_waiting
            if not num_running or self._clock() >= give_up_at:
                return num_running
            await self._sleep(_POLL_S)

    async def _unload_all(self, slug: str, stages: Sequence[str]) -> None:
        for name in (*stages, *(stage_name(slug, each) for each in ENSEMBLES if each)):
            await self._triton.unload(name)


class EndpointsControl:
    """Loads and unloads at every endpoint.

    Args:
        controls: by endpoint; those that are there when something is asked for.
    """

    def __init__(self, controls: Mapping[str, ModelControl]) -> None:
        self._controls = controls

    async def load(self, model_id: str) -> None:
        """Load a model wherever the repository has it; return when it is ready there.

        Raises:
            ModelNotFound: no repository has one of this id.
            APIError: a Triton did not do it; others may have.
        """
        await self._everywhere(lambda control: control.load(model_id))

    async def unload(self, model_id: str, timeout_s: float) -> Unloading:
        """Unload a model wherever it is loaded, at the same time; the arguments are those of `ModelControl.unload`.

        Raises:
            ModelNotFound: no model of this id is loaded.
            APIError: a Triton did not do it; others may have.
        """
        unloadings = await self._everywhere(lambda control: control.unload(model_id, timeout_s))
        return Unloading(num_ended=sum(unloading.num_ended for unloading in unloadings))

    async def _everywhere[Result](self, work: Callable[[ModelControl], Awaitable[Result]]) -> list[Result]:
        """Return the results of those endpoints that know the model; all come to their ends first.

        Raises:
            ModelNotFound: none does.
            APIError: one failed.
        """
        controls = dict(self._controls)
        outcomes = await asyncio.gather(*map(work, controls.values()), return_exceptions=True)
        unknown: ModelNotFound | None = None
        results: list[Result] = []
        failures: list[BaseException] = []
        for endpoint, outcome in zip(controls, outcomes, strict=True):
            match outcome:
                case ModelNotFound():
                    unknown = outcome
                case BaseException():
                    logger.error("%s did not do it: %s", endpoint, outcome)
                    failures.append(outcome)
                case _:
                    results.append(outcome)
        if failures:
            raise failures[0]
        if unknown is not None and not results:
            raise unknown
        return results


def _slug(model_id: str) -> str:
    try:
        return model_id_to_slug(model_id)
    except ValueError as exc:
        raise InvalidRequest(str(exc), param="model") from exc
