"""All Tritons behind the frontend as one: each request goes to one of them, and once more elsewhere if that fails."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import aclosing
from weakref import WeakKeyDictionary

from msgspec.structs import replace

from frontend import loop_time
from frontend.errors import APIError, Draining, ModelNotFound, ModelNotReady, NotTaken, TritonTimeout, TritonUnreachable
from frontend.triton.endpoints import ModelFilter
from frontend.triton.model_union import ModelUnion
from frontend.triton.models import ModelSnapshot, Triton
from frontend.triton.replica import Replica
from model_repository.contract.output import GenerationChunk
from model_repository.contract.request import GenerationRequest, Prompt, TokenizeAnswer

logger = logging.getLogger(__name__)

MAX_SAVED = 10.0  # retries, that were not needed while all was well; also what there is at the start

# How long the list of models waits for an endpoint. One that has not answered the last time is hardly waited for: a
# server that hangs must not slow down the requests that go to the others.
_PATIENCE_S = 1.0
_PATIENCE_WITH_THE_ABSENT_S = 0.25


class RetryBudget:
    """A token bucket that requests fill, not time. Pure.

    Args:
        share: of the requests that may be sent again, 0 to 1.
    """

    def __init__(self, share: float) -> None:
        self._share = share
        self._saved = MAX_SAVED if share else 0.0

    def count_request(self) -> None:
        """Note a request that was not sent before."""
        self._saved = min(MAX_SAVED, self._saved + self._share)

    def take(self) -> bool:
        """Return whether a request may be sent again."""
        if self._saved < 1.0:
            return False
        self._saved -= 1.0
        return True


type Connect = Callable[[str, ModelFilter], Replica]  # makes the replica of an endpoint


class ReplicaPool:
    """The replicas. They have no order: the one with the fewest requests gets the next one.

    Args:
        replicas: the first ones; `add` and `remove` change them.
        retry_share: of the requests that may be sent a second time, 0 to 1.
        on_retired: told the endpoint of one that was removed, when its last request has ended.
        expected: ids of models that are meant to be served: where they are not, they are known all the same.
        is_complete: nothing but those can be served, so that no endpoint has to answer for the list of models.
    """

    def __init__(
        self,
        replicas: Sequence[Replica],
        retry_share: float,
        on_retired: Callable[[str], None] = lambda endpoint: None,
        *,
        expected: Collection[str] = (),
        is_complete: bool = False,
    ) -> None:
        self.replicas = tuple(replicas)
        self._retired: dict[Replica, asyncio.Task[None]] = {}  # those that still have requests
        self._running: dict[Replica, asyncio.Task[None]] = {}
        self._is_running = False
        self._on_retired = on_retired
        self._budget = RetryBudget(retry_share)
        self._union = ModelUnion(expected)
        self._is_complete = is_complete
        self._is_looked_at = False  # every endpoint, once
        self._end_error: APIError | None = None  # with which everything was ended

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Watch the replicas within the block."""
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

    def add(self, endpoint: str, models: Collection[str], connect: Connect) -> None:
        """Have requests for these models go to an endpoint: to the replica that is there, or to one more."""
        for replica in self.replicas:
            if replica.endpoint == endpoint:
                replica.model_filter.add(models)
                return
        replica = connect(endpoint, ModelFilter(models))
        self.replicas = (*self.replicas, replica)
        if self._is_running:
            self._start(replica)

    def remove(self, endpoint: str, models: Collection[str]) -> None:
        """Undo an `add`. A replica for which none is left gets no more requests, and is watched until its last ends."""
        for replica in self.replicas:
            if replica.endpoint == endpoint and not replica.model_filter.remove(models):
                self.replicas = tuple(each for each in self.replicas if each is not replica)
                self._retired[replica] = asyncio.create_task(self._retire(replica))

    def answers(self, endpoint: str) -> bool:
        """Whether an endpoint is there, and answered when it was last asked what it serves."""
        return any(each.endpoint == endpoint and each.models.error is None for each in self.replicas)

    def _start(self, replica: Replica) -> None:
        self._running[replica] = asyncio.create_task(replica.run())

    async def _retire(self, replica: Replica) -> None:
        await replica.until_idle()
        if (task := self._running.pop(replica, None)) is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        await replica.triton.close()
        del self._retired[replica]
        self._on_retired(replica.endpoint)

    def endpoints(self) -> dict[str, str]:
        """Return what each endpoint is worth: `ready`, or the code of the error that it last brought."""
        errors = {replica.endpoint: replica.models.error for replica in self.replicas}
        return {endpoint: "ready" if error is None else str(error.code) for endpoint, error in errors.items()}

    def states_by_endpoint(self) -> dict[str, dict[str, str]]:
        """Return the state of each model at each endpoint that serves it, by id."""
        return {replica.endpoint: replica.states() for replica in self.replicas}

    def state_of(self, slug: str) -> str:
        """Return `ready` if the model is at one endpoint at least, else what keeps it from answering."""
        states = {state for replica in self.replicas if (state := replica.state_of(slug)) is not None}
        return "ready" if "ready" in states else ", ".join(sorted(states))

    def num_ready(self, slug: str) -> int:
        """Return at how many endpoints the model could answer now."""
        return sum(replica.state_of(slug) == "ready" for replica in self.replicas)

    def require_available(self, slug: str) -> None:
        """Refuse a request that could not be served now.

        Raises:
            ModelNotReady: every replica that has the model is away, or its model is.
        """
        state = self.state_of(slug)
        if state != "ready":
            raise ModelNotReady(f"The model cannot answer now (state: {state or 'not loaded'}).")

    async def generate(self, slug: str, request: GenerationRequest) -> AsyncGenerator[GenerationChunk, None]:
        """Yield the completion; the last chunk carries the finish reason. Leaving it cancels the generation.

        Raises:
            APIError: the request was refused, or failed.
        """
        if self._end_error is not None:  # it may have waited for its turn until now
            raise self._end_error
        self._budget.count_request()
        replica = self._choose(slug, request.params.lora_name)
        has_begun = is_second = False
        while True:
            try:
                with replica.serving(slug):
                    async with aclosing(replica.triton.generate(slug, request)) as chunks:
                        async for chunk in chunks:
                            has_begun = True
                            if chunk.finish_reason is not None:
                                replica.succeeded(slug)
                            yield chunk
                return
            except APIError as exc:
                other = None if has_begun or is_second else self._second(slug, request.params.lora_name, replica, exc)
                if other is None:
                    raise
                replica, is_second = other, True
                # The cancellation of the first attempt may still be on its way.
                request = replace(request, params=replace(request.params, cancel_key=secrets.token_hex(16)))

    async def snapshot(self) -> ModelSnapshot:
        """Return what the replicas serve together, as far as they answer.

        Raises:
            APIError: none of them does, and one of them might serve what nobody has named.
        """
        replicas = self.replicas
        tasks = {replica: replica.models.refreshing() for replica in replicas}
        present = [task for replica, task in tasks.items() if replica.models.error is None]
        if present:
            await loop_time.wait(present, _PATIENCE_S)
        elif tasks:
            await asyncio.wait(tasks.values(), timeout=_PATIENCE_WITH_THE_ABSENT_S, return_when=asyncio.FIRST_COMPLETED)
        has_answer = any(task.done() and replica.models.error is None for replica, task in tasks.items())
        for replica, task in tasks.items():
            # Where no endpoint answers in time, the machine may be slow: what is known is served, and the watch of the
            # engines decides.
            if task in present and not task.done() and (has_answer or not replica.models.is_looked_at):
                replica.models.error = TritonTimeout()
        self._is_looked_at = self._is_looked_at or all(replica.models.is_looked_at for replica in replicas)
        errors = [error for replica in replicas if (error := replica.models.error) is not None]
        if len(errors) == len(replicas) and not (self._is_complete and self._is_looked_at):
            raise errors[0] if errors else TritonUnreachable()  # a name that stands for nothing yet
        return self._union.of({replica.endpoint: replica.models for replica in replicas})

    async def check(self, slug: str, request: GenerationRequest) -> None:
        """Have the tokenizer stage look at a request, without generating anything.

        Raises:
            APIError: the request would be refused, or nobody answered.
        """
        await self._ask(slug, lambda triton: triton.check(slug, request))

    async def tokenize(self, slug: str, prompt: Prompt, *, add_special_tokens: bool) -> TokenizeAnswer:
        """Return a prompt's tokens.

        Raises:
            APIError: the prompt was refused, or nobody answered.
        """
        return await self._ask(
            slug, lambda triton: triton.tokenize(slug, prompt, add_special_tokens=add_special_tokens)
        )

    async def detokenize(self, slug: str, token_ids: Sequence[int], *, has_special_tokens: bool) -> str:
        """Return the text of token ids; special tokens are left out unless asked for.

        Raises:
            APIError: the ids were refused, or nobody answered.
        """
        return await self._ask(
            slug, lambda triton: triton.detokenize(slug, token_ids, has_special_tokens=has_special_tokens)
        )

    def end_all(self, error: APIError) -> int:
        """End every generation under way, and those that would begin, with an error; return how many are under way."""
        self._end_error = error
        return sum(replica.triton.end_all(error) for replica in (*self.replicas, *self._retired))

    async def close(self) -> None:
        """Let go of every connection."""
        await asyncio.gather(*(replica.triton.close() for replica in (*self.replicas, *self._retired)))

    async def _ask[Answer](self, slug: str, ask: Callable[[Triton], Awaitable[Answer]]) -> Answer:
        self._budget.count_request()
        replica = self._choose(slug)
        try:
            with replica.serving(slug):
                return await ask(replica.triton)
        except APIError as exc:
            other = self._second(slug, "", replica, exc)
            if other is None:
                raise
        with other.serving(slug):
            return await ask(other.triton)

    def _choose(self, slug: str, lora_name: str = "", *, other_than: Replica | None = None) -> Replica:
        """Return the replica that gets a request.

        Raises:
            APIError: none can.
        """
        able = [each for each in self.replicas if each is not other_than and each.state_of(slug, lora_name) == "ready"]
        if able:
            fewest = min(replica.num_in_flight for replica in able)
            return random.choice([replica for replica in able if replica.num_in_flight == fewest])
        self.require_available(slug)
        raise ModelNotReady(f"The adapter {lora_name} is nowhere that can answer now.")

    def _second(self, slug: str, lora_name: str, first: Replica, exc: APIError) -> Replica | None:
        """Return where a request that failed before its first chunk is sent again; None: nowhere."""
        if isinstance(exc, Draining) or (exc.status < 500 and not isinstance(exc, ModelNotFound)):
            return None  # it was meant to end, or would be refused elsewhere too
        try:
            other = self._choose(slug, lora_name, other_than=first)
        except APIError:
            if not isinstance(exc, NotTaken):
                return None
            other = first
        if not self._budget.take():
            logger.info("%s failed at %s, and too many requests were sent again: %s", slug, first.endpoint, exc.code)
            return None
        logger.info("%s failed at %s, sent again to %s: %s", slug, first.endpoint, other.endpoint, exc.code)
        return other


class ByEndpoint[Value](Mapping[str, Value]):
    """What is made for each replica that a pool has at the moment; a replica keeps what was made for it.

    Args:
        make: called once for each replica.
    """

    def __init__(self, pool: ReplicaPool, make: Callable[[Replica], Value]) -> None:
        self._pool = pool
        self._make = make
        self._made: WeakKeyDictionary[Replica, Value] = WeakKeyDictionary()

    def __getitem__(self, endpoint: str) -> Value:
        for replica in self._pool.replicas:
            if replica.endpoint == endpoint:
                if replica not in self._made:
                    self._made[replica] = self._make(replica)
                return self._made[replica]
        raise KeyError(endpoint)

    def __iter__(self) -> Iterator[str]:
        return iter([replica.endpoint for replica in self._pool.replicas])

    def __len__(self) -> int:
        return len(self._pool.replicas)
