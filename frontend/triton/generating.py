"""The chunks of one completion, from one replica, or after its death from the next one."""

from __future__ import annotations

import secrets
from array import array
from collections.abc import Callable
from typing import Self

from msgspec.structs import replace

from frontend.errors import (
    APIError,
    BadAnswer,
    BreaksEngine,
    CannotContinue,
    EngineFailed,
    InvalidRequest,
    ModelNotReady,
    ModelUnloaded,
    NotTaken,
    StageUnhealthy,
    TritonUnreachable,
)
from frontend.triton.chunk_queue import TOKEN_BYTES, Announced, Resumed
from frontend.triton.leases import Hold
from frontend.triton.pool import Place, ReplicaPool
from frontend.triton.resuming import Suspect
from frontend.triton.routing import Beginnings
from model_repository.capabilities import Capability
from model_repository.contract.output import Chunk, GenerationChunk, Usage
from model_repository.contract.request import GenerationRequest

MAX_RESUMPTIONS = 8  # of one completion
_DEATHS = EngineFailed | StageUnhealthy | TritonUnreachable
_MIN_KEPT_BYTES = 4096  # of ids, before their memory is counted


class Generating:
    """The chunks of one completion. If its engine, or a part on the way to it, dies, it goes on as if nothing had been.

    A request that fails before its first chunk is first sent again at once, if another replica is ready.

    The last chunk carries the finish reason. The reader must close it: early, that cancels the generation.

    Args:
        pool: of the replicas.
        model_id: the model's.
        request: the completion.
        on_end: see `Generations.running`.
        index: of the completion in its request, for the reader: it comes with each chunk, and with the error.
    """

    def __init__(
        self,
        pool: ReplicaPool,
        model_id: str,
        request: GenerationRequest,
        on_end: Callable[[Usage | None], None] = lambda _: None,
        index: int = 0,
    ) -> None:
        self._pool, self._model_id, self._request, self._on_end, self._index = pool, model_id, request, on_end, index
        self._is_running = self._is_last = self._is_second = False
        self._failure: APIError | None = None  # the last one, after which it goes on
        ids = request.params.resume_token_ids
        self._has_begun = ids is not None  # in another process
        # Of the tokens so far; None: they are too many.
        self._ids: bytearray | None = bytearray(array("i", ids or ()).tobytes())
        self._num_kept_bytes = 0  # of them, as counted
        self._num_resumptions = 0
        self._suspect = Suspect(request.params.sender)
        self._hold: Hold | None = None  # since its engine died
        self._beginnings: Beginnings | None = None

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> tuple[int, Chunk]:
        """Return the index and the next chunk.

        Raises:
            APIError: the request was refused, or failed.
        """
        if self._is_last:
            raise StopAsyncIteration
        try:
            if not self._is_running:
                await self._begin()
            while True:
                try:
                    chunk = await self._attempt.get()
                except APIError as exc:
                    self._leave(exc)
                    if self._begins_elsewhere(exc):
                        continue
                    self._prepare_to_wait(exc)
                    return self._index, Resumed(text="")
                self._note(chunk)
                return self._index, chunk
        except APIError as exc:
            exc.index = self._index
            raise

    async def aclose(self) -> None:
        """Leave the chunks."""
        if self._is_running:
            self._leave()
        self._suspect.is_over = True
        if self._hold is not None:
            self._hold.release()
        self._forget()

    def _note(self, chunk: Chunk) -> None:
        self._has_begun = self._has_begun or not isinstance(chunk, Announced)
        self._is_last = self._suspect.is_over = chunk.finish_reason is not None
        if self._is_last:
            self._serving.succeeded()
        elif isinstance(chunk, GenerationChunk) and not isinstance(chunk, Announced):
            if not self._suspect.num_tokens:
                self._serving.begun()
            self._suspect.num_tokens += chunk.num_tokens
            if self._ids is not None:
                packed = chunk.packed_token_ids
                self._ids += packed
                if len(packed) != TOKEN_BYTES * chunk.num_tokens:  # those of an older Triton are not known
                    self._forget()
                elif len(self._ids) >= self._num_kept_bytes + _MIN_KEPT_BYTES:
                    self._count_kept()

    def _count_kept(self) -> None:
        """Count the memory of the ids, and forget them if their sender has too many."""
        kept, sender, num_bytes = self._pool.kept, self._suspect.sender, len(self._ids or b"")
        kept.add(sender, num_bytes - self._num_kept_bytes)
        self._num_kept_bytes = num_bytes
        if kept.is_full(sender):
            self._forget()

    def _forget(self) -> None:
        self._pool.kept.add(self._suspect.sender, -self._num_kept_bytes)
        self._ids, self._num_kept_bytes = None, 0

    async def _begin(self) -> None:
        pool, model_id, failure = self._pool, self._model_id, self._failure
        place = None
        if failure is None:
            self._mark()
            place = pool.first(model_id, self._request.params.lora_name, self._beginnings)
            if place is not None and self._has_begun and not place.can(Capability.RESUME):
                place = None
        if place is None:
            failure = failure or ModelNotReady("The model tries requests that may have ended its engine.")
            self._hold = pool.hold_again(model_id, self._suspect.sender)
            try:
                await self._hold.ready()
            except APIError:
                raise failure from None
            within_s = pool.resume_within_s - self._hold.age_s
            place = await pool.resuming(model_id).place(self._suspect, self._fits, within_s, failure)
        self._begin_at(place)

    def _fits(self, place: Place) -> bool:
        is_able = not self._has_begun or place.can(Capability.RESUME)
        return is_able and place.is_ready(self._request.params.lora_name)

    def _mark(self) -> None:
        """Have the engine know the beginnings of the prompt by their marks."""
        self._beginnings = self._pool.beginnings_of(self._model_id, self._request)
        if self._beginnings is not None and self._beginnings.marks:
            params = replace(self._request.params, marks=b"".join(self._beginnings.marks))
            self._request = replace(self._request, params=params)

    def _begin_at(self, place: Place) -> None:
        self._place = replica, ensemble = place
        self._serving = replica.serving(ensemble, self._beginnings)
        self._attempt = replica.triton.generations.running(ensemble, self._request, self._on_end)
        self._is_running = True

    def _leave(self, error: APIError | None = None) -> None:
        self._is_running = False
        self._attempt.close()
        self._serving.end(error)

    def _begins_elsewhere(self, exc: APIError) -> bool:
        """Begin the completion a second time, at once, if it has not begun and no engine has died with it."""
        is_first = not (self._has_begun or self._is_second or self._num_resumptions)
        if not is_first or (self._pool.resume_within_s and self._is_death(exc)):
            return False
        lora_name = self._request.params.lora_name
        other = self._pool.second(self._model_id, lora_name, self._place, exc, self._beginnings)
        if other is None:
            return False
        self._is_second = True
        self._send_again()
        self._begin_at(other)
        return True

    def _is_death(self, exc: APIError) -> bool:
        """Whether the request may have ended an engine."""
        return self._attempt.was_sent and isinstance(exc, _DEATHS) and not isinstance(exc, NotTaken | BadAnswer)

    def _prepare_to_wait(self, exc: APIError) -> None:
        """Have the completion go on behind its tokens so far, once there is a place.

        Raises:
            APIError: it cannot go on.
        """
        pool, is_death = self._pool, self._is_death(exc)
        if is_death and pool.resume_within_s and pool.resuming(self._model_id).line.died(self._suspect, self._place):
            raise BreaksEngine() from exc
        if isinstance(exc, InvalidRequest) and not isinstance(exc, CannotContinue) and not self._suspect.num_tokens:
            raise self._failure or exc  # an engine may not be able to go on behind these tokens
        is_moved = isinstance(exc, ModelUnloaded) and pool.serves_elsewhere(self._model_id, self._place)
        is_lost = isinstance(exc, _DEATHS) and not isinstance(exc, BadAnswer)
        is_unknown = self._has_begun and self._ids is None
        if not (is_moved or is_lost) or is_unknown or not pool.resume_within_s:
            raise exc
        if self._num_resumptions == MAX_RESUMPTIONS:
            raise exc
        self._num_resumptions += 1
        self._failure = exc
        if self._hold is not None:
            self._hold.release()
        if self._has_begun:
            self._send_again(resume_token_ids=tuple(array("i", bytes(self._ids or b""))))
        else:
            self._send_again()

    def _send_again(self, **changes: object) -> None:
        # The cancellation of the attempt before may still be on its way.
        params = replace(self._request.params, cancel_key=secrets.token_hex(16), **changes)
        self._request = replace(self._request, params=params)
