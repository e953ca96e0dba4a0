"""What this process may use of the models of one Triton. The arbiter in Triton decides: it loads and unloads them.

With the lease of a model its requests need no message. Without one they wait until the arbiter has loaded the model.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import secrets
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Container, Coroutine, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol, Self

import msgspec

from frontend.errors import (
    APIError,
    LoadFailed,
    ModelNotReady,
    ModelTooLarge,
    NotFound,
    QueueFull,
    StageUnhealthy,
    TritonKeyRefused,
    TritonTimeout,
    TritonUnreachable,
    retry_headers,
)
from frontend.triton.models import ModelSnapshot, ServedModel
from model_repository.contract.arbiter import (
    ArbiterAnswer,
    ArbiterRequest,
    GivenLease,
    HeldLease,
    LoadRefusal,
    ModelStatus,
    State,
    Wish,
)
from model_repository.contract.tensors import CALL_TIMEOUT_S
from model_repository.model_parameters import PARAMETER, ModelParameters

logger = logging.getLogger(__name__)

MAX_WAITING = 2048  # requests for one model
_ORDINALS = ("", "first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth", "tenth")
_NEVER = -1.0  # JSON has no infinite number
_RETRY_S = 0.5  # after a Triton that did not answer
_MAX_TIMEOUTS = 3  # in a row, after which the arbiter counts as dead
_ABSENT_S = 5.0  # between two questions for an arbiter that is not there

type Ask = Callable[[ArbiterRequest], Awaitable[ArbiterAnswer]]


class Holder(Protocol):
    """Where holds wait."""

    clock: Callable[[], float]
    statuses: Mapping[str, ModelStatus]
    why_late: str  # what else keeps a request from its model

    def take(self, hold: Hold) -> None:
        """Have a hold wait, or give it the lease.

        Raises:
            QueueFull: too many requests wait for the model.
        """

    def requeue(self, hold: Hold) -> bool:
        """See `Hold.requeue`."""

    def leave(self, hold: Hold) -> None:
        """End a hold."""

    def keep(self, model_id: str, keep_alive_s: float | None) -> None:
        """See `Hold.keep`."""


@dataclass(frozen=True, slots=True)
class Waiter:
    """A request that uses a model, or waits for it."""

    model_id: str
    sender: str = ""
    max_wait_s: float = 0.0
    may_name: Callable[[str], bool] = lambda name: False  # whether an error may name a model to the sender


class Hold:
    """A request's part in the lease of a model, or its place among those that wait for it.

    Args:
        holder: the leases of the model's Triton, or the place for models without a Triton.
    """

    __slots__ = ("_granted", "_holder", "_is_released", "_keep_alive_s", "_since_s", "_waiter", "waited_s")

    def __init__(self, holder: Holder, waiter: Waiter) -> None:
        self._holder, self._waiter, self._since_s, self.waited_s = holder, waiter, holder.clock(), 0.0
        self._granted: asyncio.Future[None] | None = None  # None: it has the lease
        self._is_released = False
        self._keep_alive_s: float | None = None

    @classmethod
    def at(cls, holder: Holder, waiter: Waiter) -> Self:
        """Return a request's hold, which has the lease at once, or waits for it.

        Raises:
            QueueFull: too many requests wait for the model.
        """
        hold = cls(holder, waiter)
        holder.take(hold)
        return hold

    @property
    def model_id(self) -> str:
        """The model's."""
        return self._waiter.model_id

    @property
    def sender(self) -> str:
        """Of the request."""
        return self._waiter.sender

    @property
    def is_ready(self) -> bool:
        """Whether the request may run."""
        return self._granted is None

    @property
    def age_s(self) -> float:
        """Seconds since the request came."""
        return self._holder.clock() - self._since_s

    @property
    def news(self) -> str:
        """The state of the model while the request waits, in words."""
        status = self._holder.statuses.get(self.model_id)
        if status is None or not status.position:
            share = "" if status is None or status.share is None else f" ({status.share:.0%})"
            return f"loading{share}"
        ordinal = _ORDINALS[status.position] if status.position < len(_ORDINALS) else f"number {status.position}"
        return f"{ordinal} in line"

    def keep(self, keep_alive_s: float | None) -> None:
        """Set the time without use after which the model is unloaded; inf: never; None: the model decides."""
        self._keep_alive_s = keep_alive_s
        self._holder.keep(self.model_id, keep_alive_s)

    async def ready(self) -> None:
        """Wait until the request may run.

        Raises:
            ModelTooLarge: it never fits.
            LoadFailed: the model's load has failed.
            ModelNotReady: it was not loaded in time.
            Draining: the server stops.
        """
        if self._granted is None:
            return
        try:
            async with asyncio.timeout(max(0.0, self._waiter.max_wait_s - self.age_s)):
                await asyncio.shield(self._granted)
        except TimeoutError as exc:
            max_wait_s, why_late = self._waiter.max_wait_s, self._holder.why_late
            text = f"The model was not loaded within {max_wait_s:g} seconds: {why_late}."
            raise ModelNotReady(text, headers=retry_headers(1.0)) from exc
        self._granted, self.waited_s = None, self.age_s

    def wait(self) -> None:
        """Have it wait for the lease."""
        if self._granted is None:
            self._granted = asyncio.get_running_loop().create_future()
            self._granted.add_done_callback(lambda done: done.cancelled() or done.exception())  # its request left

    def move(self, holder: Holder) -> None:
        """Have it wait there, or give it the lease. It does not wait any more where it waited.

        Raises:
            QueueFull: too many requests wait for the model there.
        """
        holder.take(self)
        self._holder = holder
        holder.keep(self.model_id, self._keep_alive_s)

    def requeue(self) -> bool:
        """Give a recalled lease back before the request has begun, and wait for it anew; return whether it waits.

        Raises:
            QueueFull: too many requests wait for the model.
        """
        if not self._holder.requeue(self):
            return False
        self._since_s = self._holder.clock()
        return True

    def grant(self) -> None:
        """Give it the lease."""
        if self._granted is not None and not self._granted.done():
            self._granted.set_result(None)

    def refuse(self, refusal: LoadRefusal) -> None:
        """End its wait."""
        self.fail(error_of(self.model_id, refusal, self._waiter.may_name))

    def fail(self, error: APIError) -> None:
        """End its wait with an error."""
        if self._granted is not None and not self._granted.done():
            self._granted.set_exception(error)

    def drop(self, error: APIError) -> None:
        """End its wait with an error. It waits nowhere any more."""
        self._is_released = True
        self.fail(error)

    def release(self) -> None:
        """End it: the request has ended, or waits no longer. A second call does nothing."""
        if not self._is_released:
            self._is_released = True
            self._holder.leave(self)


class ModelLeases:
    """Leases of the models of one Triton.

    Args:
        ask: sends a request to the arbiter.
        mend: has Triton load the arbiter again.
        is_listed: whether a model, by its id, is in our list of loaded models.
        refresh: fetches that list.
        on_left: called with the id of a model after the end of its lease.
        on_unreachable: called with the requests that wait, for another Triton, when this one cannot be reached.
        clock: monotonic seconds.
    """

    why_late = "other models are in use, or its load takes longer"

    def __init__(
        self,
        ask: Ask,
        mend: Callable[[], Awaitable[None]],
        is_listed: Callable[[str], bool],
        refresh: Callable[[], Awaitable[object]],
        on_left: Callable[[str], None],
        on_unreachable: Callable[[list[Hold]], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._ask, self._mend, self._on_left, self._on_unreachable = ask, mend, on_left, on_unreachable
        self._is_listed, self._refresh = is_listed, refresh
        self.clock = clock
        self.statuses: Mapping[str, ModelStatus] = {}
        self._models: Mapping[str, ServedModel] = {}  # the catalog, by id
        self._catalog = ""
        self._has_arbiter: bool | None = None  # None: it has not answered yet
        self._num_timeouts = 0  # in a row
        self._is_away = False  # its Triton could not be reached
        self._leases: dict[str, GivenLease] = {}
        self._num_used: Counter[str] = Counter()  # requests that run, by model
        self._num_begun: Counter[str] = Counter()  # all requests, by model
        self._keep_alive_s: dict[str, float | None] = {}  # of the latest request of each model
        self._repairing: set[str] = set()
        self._waiting: dict[str, list[Hold]] = {}
        self._client, self._serial = secrets.token_hex(8), 0
        self._news = asyncio.Event()  # the arbiter should hear of
        self._is_known = asyncio.Event()  # whether there is an arbiter
        self._is_running = False
        self._tasks: set[asyncio.Future[Any]] = set()

    # --- for requests ---

    def may_begin(self, model_id: str) -> bool:
        """Whether a request of the model may run at once."""
        lease = self._leases.get(model_id)
        return self._is_free or (lease is not None and not lease.is_recalled and not self._is_away)

    def is_held(self, model_id: str) -> bool:
        """Whether this process has the lease of a model, recalled or not."""
        return self._is_free or model_id in self._leases

    @property
    def _is_free(self) -> bool:
        """Whether models are used without leases."""
        return self._has_arbiter is False or not self._is_running

    def distance(self, model_id: str) -> int:
        """Return the nearness of a model to running a request here: 0 at once, 1 soon, 2 after a load."""
        if self.may_begin(model_id):
            return 0
        status = self.statuses.get(model_id)
        is_wished = model_id in self._waiting or (status is not None and status.state in (State.LOADED, State.LOADING))
        return 1 if is_wished else 2

    def can_load(self, model_id: str) -> bool:
        """Whether the arbiter has the model in its repository."""
        return model_id in self.statuses

    def take(self, hold: Hold) -> None:
        """Give a hold the lease, or have it wait."""
        model_id = hold.model_id
        if self.may_begin(model_id):
            self.begin(model_id)
            if self._is_listed(model_id):
                hold.grant()
            else:
                hold.wait()
                self._spawn(self._grant(model_id, [hold]))
            return
        waiting = self._waiting.setdefault(model_id, [])
        add_waiting(waiting, hold)
        if len(waiting) == 1:
            self._news.set()

    def requeue(self, hold: Hold) -> bool:
        """See `Hold.requeue`."""
        if self.may_begin(hold.model_id):
            return False
        self.take(hold)
        self.end(hold.model_id)
        return True

    def leave(self, hold: Hold) -> None:
        """End a hold."""
        waiting = self._waiting.get(hold.model_id)
        if waiting is None or hold not in waiting:
            self.end(hold.model_id)
            return
        waiting.remove(hold)
        if not waiting:
            del self._waiting[hold.model_id]
            self._news.set()

    def keep(self, model_id: str, keep_alive_s: float | None) -> None:
        """Note the time without use after which a model is unloaded; see `Hold.keep`."""
        self._keep_alive_s[model_id] = keep_alive_s

    def begin(self, model_id: str) -> None:
        """Count a request of a model as running."""
        self._num_used[model_id] += 1
        self._num_begun[model_id] += 1

    def end(self, model_id: str) -> None:
        """Count it no more."""
        self._num_used[model_id] -= 1
        if not self._num_used[model_id]:
            del self._num_used[model_id]
            if model_id in self._leases and self._leases[model_id].is_recalled:
                self._news.set()

    def give_up(self) -> None:
        """Give all requests that wait to another Triton."""
        if self._waiting:
            waiting, self._waiting = self._waiting, {}
            self._on_unreachable([hold for holds in waiting.values() for hold in holds])

    def end_all(self, error: APIError) -> None:
        """End all waits with an error."""
        for model_id in [*self._waiting]:
            self._end_waits(model_id, lambda hold: hold.fail(error))

    def _end_waits(self, model_id: str, end: Callable[[Hold], None]) -> None:
        for hold in self._waiting.pop(model_id, ()):
            self.begin(model_id)  # until it is released
            end(hold)

    @contextlib.contextmanager
    def repairing(self, model_id: str) -> Iterator[bool]:
        """Keep a model where it is while a stage of it is reloaded; yield whether this process may do that."""
        if not self.may_begin(model_id):
            yield False
            return
        self.begin(model_id)
        self._repairing.add(model_id)
        self._news.set()
        try:
            yield True
        finally:
            self._repairing.discard(model_id)
            self.end(model_id)
            self._news.set()

    # --- for lists of models ---

    async def known(self) -> None:
        """Wait until the arbiter of a Triton that answers has answered once, or is known to be missing."""
        if self._is_running:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._is_known.wait(), CALL_TIMEOUT_S)

    def completed(self, snapshot: ModelSnapshot, offered: Container[str]) -> ModelSnapshot:
        """Return a list of what Triton has loaded with the models that the arbiter can load."""
        asleep = {
            model_id: model
            for model_id, model in self._models.items()
            if model_id not in snapshot.ready and model_id in offered
        }
        unready = {model_id: state for model_id, state in snapshot.unready.items() if model_id not in asleep}
        return replace(snapshot, unready=unready, asleep=asleep)

    # --- the exchange with the arbiter ---

    async def run(self) -> None:
        """Keep the arbiter and this process informed of each other, until cancelled."""
        self._is_running = True
        try:
            while True:
                self._news.clear()
                try:
                    pause_s = await self._exchange()
                except Exception:
                    logger.exception("unexpected exception in the exchange with the arbiter of models")
                    pause_s = _RETRY_S
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._news.wait(), pause_s)
        finally:
            tasks = [*self._tasks]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self.give_up()

    async def _exchange(self) -> float:
        """Ask once; return the seconds until the next question, which news bring forward."""
        asking = asyncio.ensure_future(self._ask(self._question()))
        self._tasks.add(asking)
        asking.add_done_callback(self._end_asking)
        news = asyncio.ensure_future(self._news.wait())
        try:
            await asyncio.wait((asking, news), return_when=asyncio.FIRST_COMPLETED)
        finally:
            news.cancel()
        if not asking.done():
            return 0.0  # the next question ends it
        pause_s = await self._take(asking)
        if self._has_arbiter is not None:
            self._is_known.set()
        return pause_s

    def _end_asking(self, asking: asyncio.Future[ArbiterAnswer]) -> None:
        self._tasks.discard(asking)
        if not asking.cancelled():
            asking.exception()  # marks it as seen: an answer that was overtaken is not read

    def _question(self) -> ArbiterRequest:
        """Return our whole state; leases that were recalled and are not used end with it."""
        self._serial += 1
        idle = [name for name, lease in self._leases.items() if lease.is_recalled and not self._num_used[name]]
        for name in idle:
            del self._leases[name]
            self._forget(name)
        return ArbiterRequest(
            client=self._client,
            serial=self._serial,
            leases={
                name: HeldLease(
                    lease.number,
                    is_busy=self._num_used[name] > 0,
                    num_begun=self._num_begun[name],
                    is_repairing=name in self._repairing,
                    keep_alive_s=_NEVER if self._keep_alive_s.get(name) == math.inf else self._keep_alive_s.get(name),
                )
                for name, lease in self._leases.items()
            },
            wishes={name: Wish(waiting[0].sender, waiting[0].age_s) for name, waiting in self._waiting.items()},
            catalog=self._catalog,
        )

    async def _take(self, asking: asyncio.Future[ArbiterAnswer]) -> float:
        """Take an answer; return the seconds until the next question."""
        try:
            answer = asking.result()
        except (NotFound, TritonKeyRefused):  # Triton's repository has no arbiter, or we do not have Triton's key
            self._has_arbiter = False
            self.statuses, self._models, self._leases = {}, {}, {}
            self._catalog = ""
            self._grant_waiting()
            return _ABSENT_S
        except (StageUnhealthy, ModelNotReady, TritonTimeout) as exc:
            self._num_timeouts += 1
            if isinstance(exc, TritonTimeout) and self._num_timeouts < _MAX_TIMEOUTS:
                return _RETRY_S
            self._num_timeouts = 0
            logger.warning("the arbiter of models is down, and loaded again")
            with contextlib.suppress(APIError):
                await self._mend()
            return _RETRY_S
        except APIError as exc:
            if isinstance(exc, TritonUnreachable):
                with contextlib.suppress(APIError):
                    await self._refresh()  # which notes it
                self._is_away = True  # it may have begun anew, and have nothing loaded
                self.give_up()
            return _RETRY_S  # the leases stay: requests find out by themselves
        self._has_arbiter, self._is_away, self._num_timeouts = True, False, 0
        self._apply(answer)
        return 0.0

    def _apply(self, answer: ArbiterAnswer) -> None:
        self.statuses = answer.statuses
        if answer.models is not None:
            self._models = dict(_catalog_of(answer.models))
            self._catalog = answer.catalog
        lost, self._leases = self._leases.keys() - answer.leases.keys(), dict(answer.leases)
        for model_id in lost:
            self._forget(model_id)
        for model_id, refusal in answer.refusals.items():
            self._end_waits(model_id, partial(Hold.refuse, refusal=refusal))
        self._grant_waiting()

    def _forget(self, model_id: str) -> None:
        """Forget what belongs to a lease that has ended: the next one begins anew."""
        if model_id not in self._waiting:
            self._keep_alive_s.pop(model_id, None)
        del self._num_begun[model_id]
        self._on_left(model_id)

    def _grant_waiting(self) -> None:
        for model_id in [name for name in self._waiting if self.may_begin(name)]:
            holds = self._waiting.pop(model_id)
            for _ in holds:
                self.begin(model_id)
            self._spawn(self._grant(model_id, holds))

    async def _grant(self, model_id: str, holds: Iterable[Hold]) -> None:
        try:
            if not self._is_listed(model_id):
                await self._refresh()
        except APIError:
            logger.debug("%s is not in the list of models", model_id)  # requests find out by themselves
        except Exception:
            logger.exception("unexpected exception while models are listed")
        finally:
            for hold in holds:
                hold.grant()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def add_waiting(waiting: list[Hold], hold: Hold) -> None:
    """Have a hold wait behind others for the same model.

    Raises:
        QueueFull: there are too many.
    """
    if len(waiting) >= MAX_WAITING:
        raise QueueFull(f"{MAX_WAITING} requests wait for the model already.")
    hold.wait()
    waiting.append(hold)


def _catalog_of(models: Mapping[str, Sequence[msgspec.Raw]]) -> Iterator[tuple[str, ServedModel]]:
    for model_id, (first, *_) in models.items():
        try:
            parameters = ModelParameters.from_config({PARAMETER: bytes(first).decode()})
        except ValueError as exc:
            logger.error("%s cannot be loaded: %s", model_id, exc)
        else:
            yield model_id, ServedModel(ensemble=parameters.ensemble, parameters=parameters)


def error_of(model_id: str, refusal: LoadRefusal, may_name: Callable[[str], bool]) -> APIError:
    """Return the error of requests for a model that is not loaded for them."""
    if refusal.code == ModelTooLarge.code:
        names = ", ".join(filter(may_name, refusal.pinned))
        pinned = f" beside the models that stay loaded ({names})" if names else ""
        needed, total = refusal.needed_bytes, refusal.total_bytes
        memory = f"the memory of {refusal.device}" if refusal.device else "memory"
        text = f"model={model_id}: it needs {needed} bytes of {memory}, and all models together have {total}{pinned}"
        return ModelTooLarge(text)
    text = f"model={model_id}: it does not load: {refusal.cause}"
    return LoadFailed(text, headers=retry_headers(refusal.retry_after_s))
