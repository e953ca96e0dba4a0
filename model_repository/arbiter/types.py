"""The models of an arbiter, its actions, and the errors of refusals: plain values."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from model_repository.contract.arbiter import State
from model_repository.system.devices import DeviceUse
from model_repository.system.model_memory import MODEL_SHARE

RAM = ""  # the machine's kind of memory
OPERATOR = ""  # the client and the key of an operator's load; it gets no lease, and its loads have no bound


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes by kind of memory: RAM, and the names of devices. A kind that is not named has 0."""

    sizes: Mapping[str, int] = field(default_factory=dict)

    def __add__(self, other: Memory) -> Memory:
        return Memory({kind: self.of(kind) + other.of(kind) for kind in self.sizes.keys() | other.sizes.keys()})

    def __sub__(self, other: Memory) -> Memory:
        return self + Memory({kind: -size for kind, size in other.sizes.items()})

    def of(self, kind: str) -> int:
        return self.sizes.get(kind, 0)

    def lacking(self, room: Memory) -> list[str]:
        """Return the kinds that a room has too little of."""
        return [kind for kind, size in sorted(self.sizes.items()) if size > 0 and size > room.of(kind)]

    def fits_in(self, room: Memory) -> bool:
        return not self.lacking(room)


@dataclass(frozen=True, slots=True)
class OfferedModel:
    name: str
    size_bytes: int  # RAM that the loaded model holds
    is_pinned: bool = False  # only an operator unloads it
    keep_alive_s: float = math.inf  # from the last use until it is unloaded; inf: never
    load_s: float = 1.0  # estimate; each load replaces it
    devices: Mapping[str, DeviceUse] = field(default_factory=dict)  # by name

    @property
    def memory(self) -> Memory:
        """The memory that the loaded model holds."""
        return Memory({RAM: self.size_bytes, **{name: use.used_bytes for name, use in self.devices.items()}})


def total_of(models: Iterable[OfferedModel], total_bytes: int) -> Memory:
    """Return the bound on the memory of all models together: of RAM the given one, of devices that of their plan."""
    uses = {name: use for model in models for name, use in model.devices.items()}
    rooms = {name: use.room_bytes or int(MODEL_SHARE * use.total_bytes) for name, use in uses.items()}
    return Memory({RAM: total_bytes, **rooms})


@dataclass(frozen=True, slots=True)
class ModelTooLarge:
    """The model does not fit beside the pinned ones."""

    code: ClassVar[str] = "model_too_large"
    needed_bytes: int
    total_bytes: int
    pinned: tuple[str, ...] = ()  # names of the others
    kind: str = RAM  # of the memory that does not suffice


@dataclass(frozen=True, slots=True)
class LoadFailed:
    code: ClassVar[str] = "load_failed"
    cause: str
    retry_after_s: float


@dataclass(frozen=True, slots=True)
class Load:
    """The driver answers with `loaded` or `load_failed`."""

    model: str


@dataclass(frozen=True, slots=True)
class Unload:
    """The driver answers with `unloaded`, when the memory is free."""

    model: str


@dataclass(frozen=True, slots=True)
class Abort:
    """Stop a load, or unload its model if it has just ended. The driver answers with `unloaded`."""

    model: str


@dataclass(frozen=True, slots=True)
class Grant:
    client: str
    model: str
    lease: int  # its number; it takes the place of an earlier lease of this client, recalled or not
    is_busy: bool = True  # requests have waited for it


@dataclass(frozen=True, slots=True)
class Recall:
    client: str
    model: str
    lease: int


@dataclass(frozen=True, slots=True)
class Refuse:
    client: str
    model: str
    error: ModelTooLarge | LoadFailed


type Action = Load | Unload | Abort | Grant | Recall | Refuse


@dataclass(frozen=True, slots=True)
class Status:
    state: State
    size_bytes: int
    used_s: float  # time of the last use or load; -inf: never
    until_s: float  # time at which it is unloaded without further use; inf: never, or not known while in use
    num_waiting: int  # clients
    is_busy: bool  # requests run
    cause: str  # of the failure of its last load; empty: it did not fail
    position: int | None  # in the line of models that wait for a load: 0 is loading; None: no client waits
