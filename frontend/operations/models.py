"""Loads and unloads models while the server runs. Triton does the work, so all workers see the result."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import cast

from frontend.errors import APIError, InvalidRequest, ModelNotFound
from frontend.triton.client import TritonClient
from frontend.triton.models import ServedModel
from model_repository.contract.tensors import ensemble_to_model_id, model_id_to_ensemble, stage_name

logger = logging.getLogger(__name__)

_POLL_S = 0.1
STATS_DEADLINE_S = 2.0


class ModelControl:
    """Loads and unloads at one endpoint, one model at a time.

    Args:
        clock: monotonic seconds.
        sleep: waits for a number of seconds.
    """

    def __init__(
        self,
        triton: TritonClient,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._triton = triton
        self._clock = clock
        self._sleep = sleep

    async def load(self, model_id: str) -> None:
        """Load the replicas of a model that are not ready; return when they are.

        Raises:
            ModelNotFound: the repository has no model of this id.
            APIError: Triton failed.
        """
        check_id(model_id)
        async with self._triton.repository.lock:
            ensembles = await self._triton.repository.ensembles()
            own = {ensemble for ensemble in ensembles if ensemble_to_model_id(ensemble) == model_id}
            if not own:
                raise ModelNotFound(model_id)
            missing = sorted(own.difference((await self._triton.snapshot()).replicas_of(model_id)))
            if missing:
                logger.warning("loading %s", ", ".join(missing))
            # Triton loads the other stages with the ensemble.
            await _all(self._triton.repository.load(each, stage_name(each, "engine")) for each in missing)

    async def unload(self, model_id: str, timeout_s: float) -> int:
        """Unload a model. New requests are refused, and requests end with an error if they run after the timeout.

        Returns:
            Number of requests that ended with an error.

        Raises:
            ModelNotFound: no model of this id is loaded.
            APIError: Triton failed.
        """
        check_id(model_id)
        async with self._triton.repository.lock:
            served = await self._triton.snapshot()  # fresh, not from the last poll
            ensembles = served.replicas_of(model_id)
            if not ensembles:
                raise ModelNotFound(model_id)
            return sum(await _all(self._unload(served.by_ensemble[each], timeout_s) for each in ensembles))

    async def _unload(self, model: ServedModel, timeout_s: float) -> int:
        ensemble, layout = model.ensemble, model.parameters.layout
        logger.warning("unloading %s", ensemble)
        # Triton refuses new requests now; running ones need only the stages.
        await self._triton.repository.unload(ensemble)
        num_running = await self._wait_until_idle(ensemble, timeout_s)
        if num_running:
            logger.warning("ending %d requests of %s", num_running, ensemble)
            await self._triton.fail_running(ensemble)
        for name in (*layout.stages, *filter(None, layout.ensembles)):
            await self._triton.repository.unload(stage_name(ensemble, name))
        return num_running

    async def _wait_until_idle(self, ensemble: str, timeout_s: float) -> int:
        """Wait until no request is running; return the number that is running at the timeout."""
        give_up_at = self._clock() + timeout_s
        while True:
            try:
                stats = await self._triton.engine_stats(ensemble, STATS_DEADLINE_S)
            except APIError as exc:  # a dead engine has no requests
                logger.warning("the engine of %s does not answer: %s", ensemble, exc.code)
                return 0
            num_running = stats.num_active + stats.num_waiting
            if not num_running or self._clock() >= give_up_at:
                return num_running
            await self._sleep(_POLL_S)


class EndpointsControl:
    """Loads and unloads at every endpoint.

    Args:
        tritons: returns the clients of the present endpoints.
    """

    def __init__(self, tritons: Callable[[], Mapping[str, TritonClient]]) -> None:
        self._tritons = tritons

    async def load(self, model_id: str) -> None:
        """Load a model at every endpoint that has it in its repository; return when it is ready.

        Raises:
            ModelNotFound: no repository has a model of this id.
            APIError: a Triton failed; others may have succeeded.
        """
        await self._everywhere(lambda control: control.load(model_id))

    async def unload(self, model_id: str, timeout_s: float) -> int:
        """Unload a model at all endpoints at once; see `ModelControl.unload`.

        Raises:
            ModelNotFound: no model of this id is loaded.
            APIError: a Triton failed; others may have succeeded.
        """
        return sum(await self._everywhere(lambda control: control.unload(model_id, timeout_s)))

    async def _everywhere[Result](self, work: Callable[[ModelControl], Awaitable[Result]]) -> list[Result]:
        """Return the results of all endpoints with the model, once all are done.

        Raises:
            ModelNotFound: no endpoint has the model.
            APIError: an endpoint failed.
        """
        controls = {endpoint: ModelControl(triton) for endpoint, triton in self._tritons().items()}
        outcomes = await asyncio.gather(*map(work, controls.values()), return_exceptions=True)
        unknown: ModelNotFound | None = None
        results: list[Result] = []
        failures: list[BaseException] = []
        for endpoint, outcome in zip(controls, outcomes, strict=True):
            match outcome:
                case ModelNotFound():
                    unknown = outcome
                case BaseException():
                    logger.error("the command failed at %s: %s", endpoint, outcome)
                    failures.append(outcome)
                case _:
                    results.append(outcome)
        if failures:
            raise failures[0]
        if unknown is not None and not results:
            raise unknown
        return results


async def _all[Result](works: Iterable[Awaitable[Result]]) -> list[Result]:
    """Return the results of the works on the replicas of a model, once all are done, or raise the first error."""
    outcomes = await asyncio.gather(*works, return_exceptions=True)
    for outcome in outcomes:
        if isinstance(outcome, BaseException):
            raise outcome
    return cast(list[Result], outcomes)


def check_id(model_id: str) -> None:
    """Raise InvalidRequest if no model can have the id."""
    try:
        model_id_to_ensemble(model_id)
    except ValueError as exc:
        raise InvalidRequest(str(exc), param="model") from exc
