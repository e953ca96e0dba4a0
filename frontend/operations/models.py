"""Has models loaded and unloaded while the server runs. Triton's arbiter does it, so all workers see the result."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import cast

from frontend.errors import APIError, InvalidRequest, LoadFailed, ModelNotFound, ModelNotReady
from frontend.triton.client import TritonClient
from frontend.triton.leases import error_of
from model_repository.contract.arbiter import ArbiterAnswer, ArbiterRequest, State
from model_repository.contract.tensors import model_id_to_ensemble

logger = logging.getLogger(__name__)

_POLL_S = 0.1
_LOAD_TIMEOUT_S = 1800.0  # a large engine takes minutes to load, and may have to wait for others
STATS_DEADLINE_S = 2.0


class ModelControl:
    """Has the arbiter of one endpoint load and unload models.

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
        """Load a model; return when it is ready. Others may be unloaded for it.

        Raises:
            ModelNotFound: the repository has no model of this id.
            ModelTooLarge: it fits in no case.
            LoadFailed: its load has failed.
            APIError: Triton failed.
        """
        answer = await self._order(model_id, ArbiterRequest(load=model_id))
        if (refusal := answer.refusals.get(model_id)) is not None:
            raise error_of(model_id, refusal, lambda name: True)
        give_up_at = self._clock() + _LOAD_TIMEOUT_S
        while (status := answer.statuses[model_id]).state != State.LOADED:
            if status.state == State.FAILED and status.position is None:  # the load that was ordered
                raise LoadFailed(f"model={model_id}: it does not load: {status.cause}")
            if self._clock() >= give_up_at:
                raise ModelNotReady(f"The model was not loaded within {_LOAD_TIMEOUT_S:g} seconds.")
            await self._sleep(_POLL_S)
            answer = await self._order(model_id, ArbiterRequest())

    async def unload(self, model_id: str, timeout_s: float) -> int:
        """Unload a model; return when its memory is free. Requests end with an error if they run after the timeout.

        Requests that come later have it loaded again.

        Returns:
            Number of requests that ended with an error.

        Raises:
            ModelNotFound: no model of this id is loaded.
            APIError: Triton failed.
        """
        answer = await self._order(model_id, ArbiterRequest())
        if answer.statuses[model_id].state != State.LOADED:
            raise ModelNotFound(model_id)
        ensembles = (await self._triton.snapshot()).replicas_of(model_id)
        answer = await self._order(model_id, ArbiterRequest(unload=model_id, timeout_s=timeout_s))
        give_up_at, num_ended = self._clock() + timeout_s, 0
        while answer.statuses[model_id].state in (State.LOADED, State.UNLOADING):
            if self._clock() >= give_up_at:  # requests may follow that have waited in a frontend
                num_ended += sum(await _all(map(self._end_requests, ensembles)))
            await self._sleep(_POLL_S)
            answer = await self._order(model_id, ArbiterRequest())
        return num_ended

    async def _order(self, model_id: str, order: ArbiterRequest) -> ArbiterAnswer:
        """Return the arbiter's answer to an order.

        Raises:
            ModelNotFound: the repository has no model of this id.
            APIError: Triton failed, or has no arbiter.
        """
        check_id(model_id)
        answer = await self._triton.ask_arbiter(order)
        if model_id not in answer.statuses:
            raise ModelNotFound(model_id)
        return answer

    async def _end_requests(self, ensemble: str) -> int:
        """End the requests of an engine with an error; return how many there were."""
        with contextlib.suppress(APIError):  # an engine that is dead, or unloaded by now, has none
            stats = await self._triton.engine_stats(ensemble, STATS_DEADLINE_S)
            if num_running := stats.num_active + stats.num_waiting:
                logger.warning("ending %d requests of %s", num_running, ensemble)
                await self._triton.fail_running(ensemble)
                return num_running
        return 0


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
