"""All Tritons behind the frontend as one: each request goes to one replica of its model, and if that fails to another.

Replicas are the engines of a model in several Tritons, or in one.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from hashlib import blake2b
from typing import NamedTuple

from frontend import loop_time
from frontend.errors import APIError, Draining, ModelNotFound, ModelNotReady, NotTaken, TritonTimeout, TritonUnreachable
from frontend.triton.chunk_queue import UnreadBytes
from frontend.triton.client import TritonClient
from frontend.triton.endpoints import ModelFilter
from frontend.triton.leases import Hold, ModelLeases, Waiter
from frontend.triton.models import ModelName, ModelSnapshot, ModelUnion
from frontend.triton.replica import Replica
from frontend.triton.resuming import Resuming
from frontend.triton.routing import Beginnings, Kept, Work, cheapest
from frontend.triton.waking import Waking
from model_repository.capabilities import Capability
from model_repository.contract.arbiter import ModelStatus, State
from model_repository.contract.request import GenerationRequest, Prompt, TokenizeAnswer
from model_repository.model_facts import Task

logger = logging.getLogger(__name__)

RETRY_SHARE = 0.1  # retries per first attempt
MAX_SAVED = 10.0  # unused retries that accumulate; also the budget at the start

_NEAREST_FIRST: tuple[str, ...] = (State.LOADED, State.LOADING, State.UNLOADING, State.FAILED, State.UNLOADED)
# Timeouts of the list of models. An endpoint that did not answer the last time gets the shorter one: a hanging server
# must not slow down the requests to the others.
_LIST_TIMEOUT_S = 1.0
_ABSENT_TIMEOUT_S = 0.25


class RetryBudget:
    """A token bucket that is refilled by first attempts instead of time. Pure."""

    def __init__(self) -> None:
        self._saved = MAX_SAVED

    def count_request(self) -> None:
        """Count a first attempt."""
        self._saved = min(MAX_SAVED, self._saved + RETRY_SHARE)

    def try_spend(self) -> bool:
        """Spend one retry, and return whether there was one."""
        if self._saved < 1.0:
            return False
        self._saved -= 1.0
        return True


type Connect = Callable[[str, ModelFilter], Replica]  # makes the replica of an endpoint


class Place(NamedTuple):
    """One replica of a model."""

    replica: Replica  # its Triton
    ensemble: str  # its name there

    def __str__(self) -> str:
        return f"{self.ensemble} at {self.replica.endpoint}"

    @property
    def work(self) -> Work:
        """What this process has the replica, and its whole Triton, do."""
        return self.replica.work_of(self.ensemble)

    @property
    def kept(self) -> Kept:
        """The marks in its KV cache."""
        return self.replica.kept[self.ensemble]

    @property
    def quiet_s(self) -> float:
        """The seconds since the last request of this process began there."""
        return self.replica.quiet_s(self.ensemble)

    def was_seen_after(self, time_s: float) -> bool:
        """Whether its engine has answered a question that was asked later, by time.monotonic()."""
        return self.replica.monitor.states[self.ensemble].asked_s > time_s

    def can(self, capability: Capability) -> bool:
        """Whether the model has a capability there."""
        model = self.replica.models.latest.by_ensemble.get(self.ensemble)
        return model is not None and capability in model.parameters.capabilities

    @property
    def keeps_prompts(self) -> bool:
        """Whether the model's prompts stay in a KV cache."""
        return self.replica.models.latest.by_ensemble[self.ensemble].parameters.task is Task.GENERATE

    def is_ready(self, lora_name: str) -> bool:
        """Whether it may get requests, for an adapter if one is named."""
        return self.replica.state_of(self.ensemble, lora_name) == "ready"


class ReplicaPool:
    """All replicas. The one at which a request costs least gets it: see `routing`.

    Args:
        replicas: the first ones; `add` and `remove` change them.
        on_retired: called with the endpoint of a removed replica when its last request has ended.
        expected: ids of the models that are named in the settings; they are known even while no endpoint serves them.
        is_complete: only the expected models can be served, so no endpoint has to answer for the list of models.
        load_wait_s: the longest wait of a request for the load of its model.
        wake_timeout_s: the longest wait of a request for an expected model that no endpoint serves; 0: it is refused.
        resume_within_s: the longest pause of a completion after the death of its engine; 0: it ends.
        key: Triton's key, which all frontends have, for the marks of prompts.
        clock: monotonic seconds, of the replicas too.
    """

    def __init__(
        self,
        replicas: Sequence[Replica],
        on_retired: Callable[[str], None] = lambda endpoint: None,
        *,
        expected: Collection[str] = (),
        is_complete: bool = False,
        load_wait_s: float = 300.0,
        wake_timeout_s: float = 0.0,
        resume_within_s: float = 0.0,
        key: str = "",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.replicas = tuple(replicas)
        self._retired: dict[Replica, asyncio.Task[None]] = {}  # removed, with requests that still run
        self._running: dict[Replica, asyncio.Task[None]] = {}
        self._is_running = False
        self._on_retired = on_retired
        self._budget = RetryBudget()
        self._union = ModelUnion(expected, is_remembering=wake_timeout_s > 0)
        self._expected = frozenset(expected)
        self._is_complete = is_complete
        self._load_wait_s, self._wake_timeout_s, self.resume_within_s = load_wait_s, wake_timeout_s, resume_within_s
        self._marks_key = blake2b(key.encode() or secrets.token_bytes()).digest()
        self._clock = clock
        self._resuming: dict[str, Resuming[Place]] = {}  # by model
        self.kept = UnreadBytes()  # of the token ids with which completions can be resumed
        self._waking = Waking(self._nearest_leases)
        self._has_tried_all = False  # every endpoint has answered or failed once
        self._end_error: APIError | None = None  # set by `end_all`

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Monitor the replicas within the block."""
        self._is_running = True
        for replica in self.replicas:
            self._start(replica)
        try:
            yield
        finally:
            self._is_running = False
            tasks = [*self._retired.values(), *self._running.values()]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._waking.end_all(Draining())

    def add(self, endpoint: str, models: Collection[str], connect: Connect) -> None:
        """Send requests for these models to an endpoint too. A new endpoint becomes a replica."""
        for replica in self.replicas:
            if replica.endpoint == endpoint:
                replica.model_filter.add(models)
                return
        replica = connect(endpoint, ModelFilter(models))
        self.replicas = (*self.replicas, replica)
        if self._is_running:
            self._start(replica)

    def remove(self, endpoint: str, models: Collection[str]) -> None:
        """Undo an `add`. A replica without models gets no more requests, and is closed after its last one."""
        for replica in self.replicas:
            if replica.endpoint == endpoint and not replica.model_filter.remove(models):
                self.replicas = tuple(each for each in self.replicas if each is not replica)
                self._retired[replica] = asyncio.create_task(self._retire(replica))

    def answers(self, endpoint: str) -> bool:
        """Whether an endpoint is a replica, and answered when its models were last fetched."""
        return any(each.endpoint == endpoint and each.models.error is None for each in self.replicas)

    def _start(self, replica: Replica) -> None:
        replica.on_unreachable = self._relocate
        self._running[replica] = asyncio.create_task(replica.run())

    async def _retire(self, replica: Replica) -> None:
        await replica.until_idle()
        if (task := self._running.pop(replica, None)) is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        await replica.triton.close()
        del self._retired[replica]
        self._on_retired(replica.endpoint)

    def tritons(self) -> dict[str, TritonClient]:
        """Return the client of each endpoint."""
        return {replica.endpoint: replica.triton for replica in self.replicas}

    def endpoints(self) -> dict[str, str]:
        """Return the state of each endpoint: `ready`, or the code of its last error."""
        errors = {replica.endpoint: replica.models.error for replica in self.replicas}
        return {endpoint: "ready" if error is None else str(error.code) for endpoint, error in errors.items()}

    def states_by_endpoint(self) -> dict[str, dict[str, str]]:
        """Return the states of the models at each endpoint, by id; see `Replica.states`."""
        return {place: states for replica in self.replicas for place, states in replica.states().items()}

    def state_of(self, model_id: str) -> str:
        """Return `ready` if at least one replica of the model is ready, else the states of all its replicas."""
        states = {state for place in self._places(model_id) if (state := place.replica.state_of(place.ensemble))}
        return "ready" if "ready" in states else ", ".join(sorted(states))

    def status_of(self, model_id: str) -> ModelStatus | None:
        """Return the state of the model where it is nearest to being loaded; None: its Tritons have no arbiter."""
        present = [each for each in self.replicas if each.models.error is None]
        found = (each.leases.statuses[model_id] for each in present if model_id in each.leases.statuses)
        is_served = any(each.models.latest.replicas_of(model_id) for each in present)
        absent = None if is_served else ModelStatus(State.UNLOADED, memory_bytes=0)
        by_state = {status.state: status for status in found}
        return next((by_state[state] for state in _NEAREST_FIRST if state in by_state), absent)

    def serves_elsewhere(self, model_id: str, place: Place) -> bool:
        """Whether another replica of the model is ready."""
        return any(each != place for each in self._ready(model_id))

    def num_ready(self, model_id: str) -> int:
        """Return the number of ready replicas of the model."""
        return len(self._ready(model_id))

    def require_available(self, model_id: str) -> None:
        """Refuse a request for a model that no replica can serve now.

        Raises:
            ModelNotReady: no replica of the model is ready.
        """
        if not self._ready(model_id):
            state = self.state_of(model_id)
            raise ModelNotReady(f"The model cannot answer now (state: {state or 'not loaded'}).")

    def hold(self, model_id: str, sender: str = "", may_name: Callable[[str], bool] = lambda name: False) -> Hold:
        """Return the hold of a request on the model at one of its Tritons; see `Hold.at`.

        Raises:
            ModelNotReady: no replica of the model is ready, and none can be loaded.
            QueueFull: too many requests wait for the model.
            Draining: the server stops.
        """
        if self._end_error is not None:
            raise self._end_error
        leases = self._nearest_leases(model_id)
        if leases is not None:
            return Hold.at(leases, Waiter(model_id, sender, self._load_wait_s, may_name))
        if not self._wake_timeout_s or model_id not in self._expected:
            self.require_available(model_id)
        return Hold.at(self._waking, Waiter(model_id, sender, self._wake_timeout_s, may_name))

    def hold_again(self, model_id: str, sender: str) -> Hold:
        """Return the hold of a completion after a death. It waits for any Triton that can serve the model.

        Raises:
            QueueFull: too many requests wait for the model.
            Draining: the server stops.
        """
        if self._end_error is not None:
            raise self._end_error
        return Hold.at(self._nearest_leases(model_id) or self._waking, Waiter(model_id, sender, self.resume_within_s))

    def resuming(self, model_id: str) -> Resuming[Place]:
        """Return the completions of a model that go on after a death."""
        if (found := self._resuming.get(model_id)) is None:
            found = self._resuming[model_id] = Resuming(lambda: self._ready(model_id), self._clock)
        return found

    def _relocate(self, holds: list[Hold]) -> None:
        """Have the requests that waited at a Triton wait for another one."""
        if self._is_running and self._end_error is None:
            self._waking.take_all(holds)
        else:
            for hold in holds:
                hold.drop(self._end_error or Draining())

    @contextlib.asynccontextmanager
    async def held(self, model_id: str, sender: str) -> AsyncIterator[None]:
        """Hold a model, loaded, within the block; see `hold`."""
        hold = self.hold(model_id, sender)
        try:
            await hold.ready()
            yield
        finally:
            hold.release()

    def _nearest_leases(self, model_id: str) -> ModelLeases | None:
        """Return the leases of the Triton that can serve the model soonest; None: none can."""
        able = [each for each in self.replicas if each.may_serve(model_id)]
        if len(able) > 1:  # one Triton loads the model for all
            able.sort(key=lambda each: (each.leases.distance(model_id), each.num_in_flight.total()))
        return able[0].leases if able else None

    def serves(self, name: ModelName) -> bool:
        """Whether a replica is ready for this model and adapter."""
        return bool(self._ready(name.model_id, name.lora_name))

    async def snapshot(self) -> ModelSnapshot:
        """Return the models of all replicas that answer.

        Raises:
            APIError: no replica answers, and other models than the expected ones might be served.
        """
        replicas = self.replicas
        tasks = {replica: replica.models.refreshing() for replica in replicas}
        present = [task for replica, task in tasks.items() if replica.models.error is None]
        if present:
            await loop_time.wait(present, _LIST_TIMEOUT_S)
        elif tasks:
            await asyncio.wait(tasks.values(), timeout=_ABSENT_TIMEOUT_S, return_when=asyncio.FIRST_COMPLETED)
        has_answer = any(task.done() and replica.models.error is None for replica, task in tasks.items())
        for replica, task in tasks.items():
            # If no endpoint answers in time, this machine may be slow: the known models stay, and the health monitor
            # decides.
            if task in present and not task.done() and (has_answer or not replica.models.has_tried):
                replica.models.error = TritonTimeout()
        self._has_tried_all = self._has_tried_all or all(replica.models.has_tried for replica in replicas)
        errors = [error for replica in replicas if (error := replica.models.error) is not None]
        if len(errors) == len(replicas) and not (self._is_complete and self._has_tried_all):
            raise errors[0] if errors else TritonUnreachable()  # a DNS name has no address yet
        return self._union.of({replica.endpoint: replica.models for replica in replicas})

    async def check(self, model_id: str, requests: Sequence[tuple[int, GenerationRequest]]) -> None:
        """Have the tokenizer stage check numbered requests without generating a token. Their model is held.

        Raises:
            APIError: one of them would be refused, or no replica answered.
        """
        await self._call(model_id, lambda triton, ensemble: triton.check(ensemble, requests))

    async def tokenize(
        self, model_id: str, prompt: Prompt, *, add_special_tokens: bool, sender: str, has_strings: bool = False
    ) -> TokenizeAnswer:
        """Return a prompt's tokens; see `TritonClient.tokenize`. The model is held.

        Raises:
            APIError: the prompt was refused, or no replica answered.
        """
        return await self._call(
            model_id,
            lambda triton, ensemble: triton.tokenize(
                ensemble, prompt, add_special_tokens=add_special_tokens, sender=sender, has_strings=has_strings
            ),
        )

    async def detokenize(
        self, model_id: str, token_ids: Sequence[int], *, has_special_tokens: bool, sender: str
    ) -> str:
        """Return the text of token ids; special tokens are left out unless requested. The model is held.

        Raises:
            APIError: the ids were refused, or no replica answered.
        """
        return await self._call(
            model_id,
            lambda triton, ensemble: triton.detokenize(
                ensemble, token_ids, has_special_tokens=has_special_tokens, sender=sender
            ),
        )

    def end_all(self, error: APIError) -> int:
        """End all generations and waits, now and later, with an error; return how many generations were running."""
        self._end_error = error
        for replica in (*self.replicas, *self._retired):
            replica.leases.end_all(error)
        self._waking.end_all(error)
        for resuming in self._resuming.values():
            resuming.end_all(error)
        return sum(replica.triton.generations.end_all(error) for replica in (*self.replicas, *self._retired))

    async def close(self) -> None:
        """Close all connections."""
        await asyncio.gather(*(replica.triton.close() for replica in (*self.replicas, *self._retired)))

    async def _call[Answer](self, model_id: str, call: Callable[[TritonClient, str], Awaitable[Answer]]) -> Answer:
        self._budget.count_request()
        place = self.choose(model_id)
        try:
            with place.replica.serving(place.ensemble):
                return await call(place.replica.triton, place.ensemble)
        except APIError as exc:
            other = self.second(model_id, "", place, exc)
            if other is None:
                raise
        with other.replica.serving(other.ensemble):
            return await call(other.replica.triton, other.ensemble)

    def _places(self, model_id: str) -> list[Place]:
        """Return the replicas of a model, ready or not."""
        return [Place(each, name) for each in self.replicas for name in each.models.latest.replicas_of(model_id)]

    def _ready(self, model_id: str, lora_name: str = "") -> list[Place]:
        """Return the replicas of a model that may get a request, for an adapter if one is named."""
        return [
            place
            for place in self._places(model_id)
            if place.is_ready(lora_name) and place.replica.leases.is_held(model_id)
        ]

    def beginnings_of(self, model_id: str, request: GenerationRequest) -> Beginnings | None:
        """Return the beginnings of a request's prompt; None: the model has one replica, or keeps no prompts."""
        places = self._places(model_id)
        if len(places) < 2 or not places[0].keeps_prompts:
            return None
        return Beginnings.of(self._marks_key, request)

    def first(self, model_id: str, lora_name: str, beginnings: Beginnings | None) -> Place | None:
        """Return the replica for the first attempt of a completion; None: it must wait in the line of `resuming`.

        Raises:
            APIError: see `choose`.
        """
        if self._end_error is not None:  # the request may have waited in a queue until now
            raise self._end_error
        self._budget.count_request()
        place = self.choose(model_id, lora_name, beginnings)
        resuming = self._resuming.get(model_id)
        return place if resuming is None or resuming.line.takes_new(place) else None

    def choose(
        self,
        model_id: str,
        lora_name: str = "",
        beginnings: Beginnings | None = None,
        *,
        other_than: Place | None = None,
    ) -> Place:
        """Return the replica for a request.

        Args:
            beginnings: of its prompt; None: the replica with the fewest requests gets it.
            other_than: where it has failed; another Triton is preferred.

        Raises:
            APIError: no replica is ready for it.
        """
        able = [place for place in self._ready(model_id, lora_name) if place != other_than]
        if (resuming := self._resuming.get(model_id)) is not None:
            able = [place for place in able if resuming.line.takes_new(place)] or able
        # A Triton that is about to unload the model gets no new requests.
        able = [place for place in able if place.replica.leases.may_begin(model_id)] or able
        if other_than is not None:
            able = [place for place in able if place.replica is not other_than.replica] or able
        if able:
            return cheapest(able, beginnings)
        self.require_available(model_id)
        raise ModelNotReady(f"The adapter {lora_name} is not ready at any endpoint now.")

    def second(
        self, model_id: str, lora_name: str, first: Place, exc: APIError, beginnings: Beginnings | None = None
    ) -> Place | None:
        """Return the replica for a second attempt after a failure before the first chunk; None: no second attempt."""
        if isinstance(exc, Draining) or (exc.status < 500 and not isinstance(exc, ModelNotFound)):
            return None  # it was ended on purpose, or every replica would refuse it
        try:
            other = self.choose(model_id, lora_name, beginnings, other_than=first)
        except APIError:
            if not isinstance(exc, NotTaken):
                return None
            other = first
        if not self._budget.try_spend():
            logger.info("a request failed at %s, and the retry budget is spent: %s", first, exc.code)
            return None
        logger.info("a request failed at %s, sent again to %s: %s", first, other, exc.code)
        return other
