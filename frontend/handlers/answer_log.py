"""The log of an answer in the background: its chunks so far, and the events that follow from them.

A process that goes on with an answer first writes the number of its run. Later entries of an earlier run, whose process
was only slow, then count for no reader.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import orjson
from msgspec import Struct

from frontend.errors import APIError, EngineFailed
from frontend.protocol.reading import parse
from frontend.protocol.responses import ResponsesRequest
from frontend.settings import Settings
from frontend.store.types import Item, Store
from frontend.translate.places import Places
from frontend.translate.responses_chat import responses_to_chat
from frontend.translate.responses_reply import ResponsesReply
from frontend.translate.sse import EventEncoder
from frontend.triton.chunk_queue import TOKEN_BYTES
from frontend.triton.models import ModelName, ServedModel
from model_repository.contract.output import GenerationChunk
from model_repository.model_parameters import ModelParameters

LOG_PREFIX = "log_"  # of the ids of logs and their entries
_PAGE = 64  # entries
_EVENT_END = b"\n\n"


class LogBody(Struct, frozen=True):
    """The body of a log: the form of the events depends on it."""

    request: bytes  # JSON, without the input
    requested: str  # the model's name, as the client wrote it
    model: dict[str, str]  # see ModelParameters.to_config
    made: bytes  # JSON: the first items of the output
    created_s: float


class Failure(Struct, frozen=True, array_like=True):
    """The error that ended an answer."""

    status: int
    message: str
    param: str | None
    code: str | None

    @classmethod
    def of(cls, error: APIError) -> Failure:
        """Return the stored form of an error."""
        return cls(error.status, error.message, error.param, error.code)

    def error(self) -> APIError:
        """Return the error."""
        error = APIError(self.message, param=self.param, code=self.code)
        error.status = self.status
        return error


class Entry(Struct, frozen=True, array_like=True, omit_defaults=True):
    """What a run has added to an answer."""

    run: int  # 0: the answer waits for its first one
    number: int = 0  # in the run: the first one begins it, the next one follows once the answer has its place
    chunks: Sequence[GenerationChunk] = ()
    time_s: float = 0.0
    failure: Failure | None = None
    is_cancelled: bool = False

    def item(self) -> Item:
        """Return it as it is stored."""
        return Item(f"{LOG_PREFIX}{secrets.token_hex(8)}", _ENCODER.encode(self))


_ENCODER = msgspec.msgpack.Encoder()
_ENTRY = msgspec.msgpack.Decoder(Entry)
_BODY = msgspec.msgpack.Decoder(LogBody)


def log_id(response_id: str) -> str:
    """Return the id of an answer's log."""
    return LOG_PREFIX + response_id.removeprefix("resp_")


def log_body(body: ResponsesRequest, name: ModelName, made: Sequence[Mapping[str, Any]], created_s: float) -> bytes:
    """Return the body of a new log."""
    fields = body.model_dump(by_alias=True, exclude_none=True, exclude={"input"}) | {"input": "-"}
    return _ENCODER.encode(
        LogBody(orjson.dumps(fields), name.requested, name.model.parameters.to_config(), orjson.dumps(made), created_s)
    )


class Replay:
    """An answer as its log tells it.

    Args:
        response_id: of the answer.
        body: of the log.
    """

    def __init__(self, response_id: str, body: bytes, settings: Settings) -> None:
        decoded = _BODY.decode(body)
        self._time_s = 0.0
        self.requested, self.progress_s = decoded.requested, decoded.created_s
        self.body, _ = parse(ResponsesRequest, decoded.request, settings)
        parameters = ModelParameters.from_config(decoded.model)
        self.name = ModelName(
            requested=decoded.requested, model=ServedModel(ensemble=parameters.ensemble, parameters=parameters)
        )
        self.chat = responses_to_chat(self.body, self.name, Places(self.body))
        self.reply = ResponsesReply(
            self.body,
            self.chat,
            self.name,
            int(decoded.created_s),
            made=orjson.loads(decoded.made),
            identity=response_id,
            clock=lambda: self._time_s,
        )
        self._encoder = EventEncoder(self.reply)
        self._last = (-1, -1)  # run and number of the last entry; one that is not confirmed is written again
        self.num_runs = 0  # that had a place
        self._packed_ids = bytearray()  # of the tokens
        self._num_tokens = 0

    @property
    def has_begun(self) -> bool:
        """Whether the answer had its place."""
        return self.num_runs > 0

    @property
    def is_over(self) -> bool:
        """Whether the answer has its last event."""
        return self.reply.ended is not None

    def token_ids(self) -> tuple[int, ...] | None:
        """Return the ids of the tokens so far; None: there are no tokens.

        Raises:
            EngineFailed: they are not known.
        """
        if len(self._packed_ids) != TOKEN_BYTES * self._num_tokens:
            raise EngineFailed("The answer cannot go on: the ids of its tokens are not known.")
        return tuple(memoryview(self._packed_ids).cast("i")) or None

    def events(self, entry: Entry) -> bytes:
        """Return the events of an entry; none if it does not count."""
        place = entry.run, entry.number
        if place <= self._last or self.is_over:
            return b""
        events = self._encoder.begin(GenerationChunk(text=""))
        if entry.number and not self.has_begun:
            events += self._encoder.further(self.reply.begin())
        self.num_runs += entry.number == 1
        if entry.number:
            self.progress_s = entry.time_s
        self._last, self._time_s = place, entry.time_s
        for chunk in entry.chunks:
            self._packed_ids += chunk.packed_token_ids
            self._num_tokens += chunk.num_tokens
            made = self._encoder.encode(0, chunk)
            events += made if isinstance(made, bytes) else b"".join(made)
        if entry.failure is not None:
            events += self._encoder.further(self.reply.failure(entry.failure.error()))
        elif entry.is_cancelled:
            events += self._encoder.further(self.reply.cancelled())
        return events


class LogReader:
    """Reads a log from its beginning on."""

    def __init__(self, store: Store, owner: str, response_id: str) -> None:
        self._store, self._owner, self._log = store, owner, log_id(response_id)
        self._after = ""

    async def next(self) -> list[Entry] | None:
        """Return the next entries, as far as there are some; None: the log is no longer there.

        Raises:
            StoreUnavailable: see Store.
        """
        page = await self._store.items(self._owner, self._log, after=self._after, limit=_PAGE, is_newest_first=False)
        if page is None or not (page.items or self._after):  # each log has a first entry
            return None
        if page.items:
            self._after = page.items[-1].id
        return [_ENTRY.decode(item.value) for item in page.items]

    async def read_into(self, replay: Replay) -> None:
        """Replay all that is there."""
        while entries := await self.next():
            for entry in entries:
                replay.events(entry)


class Cut:
    """Leaves out the first events of a stream.

    Args:
        num_events: that the client has.
    """

    def __init__(self, num_events: int) -> None:
        self._num_events = num_events

    def rest(self, events: bytes) -> bytes:
        """Return the following events without those that the client has."""
        while self._num_events and events:
            _, _, events = events.partition(_EVENT_END)
            self._num_events -= 1
        return events
