"""The messages between a frontend and the arbiter of its Triton, as JSON.

A frontend sends its whole state in each request, and gets all that concerns it in the answer, so a lost message loses
nothing. An answer comes at once if there is news, otherwise within HELD_S.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

import msgspec

HELD_S = 1.0  # the arbiter holds a request for this time while there is no news
# The variable of the stage's environment with the bytes that all models together may hold; empty: those of the machine.
MODEL_MEMORY_VARIABLE = "CONCH_MODEL_MEMORY"


class State(StrEnum):
    """The state of a model, in the words of /v1/models."""

    UNLOADED = "unloaded"
    LOADING = "loading"
    LOADED = "loaded"
    UNLOADING = "unloading"  # also a load that was aborted, until its memory is free
    FAILED = "failed"  # its last load


class HeldLease(msgspec.Struct, omit_defaults=True, frozen=True):
    """A lease as its holder sees it."""

    number: int
    is_busy: bool = False  # requests of this frontend run
    num_begun: int = 0  # requests of this frontend for the model since its start: short ones run between two messages
    is_repairing: bool = False  # this frontend reloads a stage of the model
    keep_alive_s: float | None = None  # that the latest request asked for; negative: never; None: the model's own


class Wish(msgspec.Struct, omit_defaults=True, frozen=True):
    """A model without a lease, for which requests of a frontend wait."""

    sender: str  # of the oldest of them
    waited_s: float = 0.0  # of the oldest of them


class ArbiterRequest(msgspec.Struct, omit_defaults=True, frozen=True):
    """A frontend's state, or an order of an operator: `{"load": "demo"}`."""

    key: str = ""  # Triton's
    client: str = ""  # a random name of this process
    serial: int = 0  # grows with each request of the client: an older one that comes later is ignored
    leases: Mapping[str, HeldLease] = {}  # all that it holds, by model id
    wishes: Mapping[str, Wish] = {}  # by model id
    catalog: str = ""  # the version of the catalog that the client has
    load: str = ""  # a model id
    unload: str = ""  # a model id
    timeout_s: float = 30.0  # of an unload: time for running requests, which then end with an error


class GivenLease(msgspec.Struct, omit_defaults=True, frozen=True):
    """A lease as the arbiter sees it. With a recalled one no further request begins."""

    number: int
    is_recalled: bool = False


class LoadRefusal(msgspec.Struct, omit_defaults=True, frozen=True):
    """The reason why a model is not loaded for those who wait for it."""

    code: str  # model_too_large or load_failed
    needed_bytes: int = 0
    total_bytes: int = 0
    pinned: tuple[str, ...] = ()  # ids of the models that keep their memory
    cause: str = ""
    retry_after_s: float = 0.0
    device: str = ""  # that has too little memory; empty: the machine


class ModelStatus(msgspec.Struct, omit_defaults=True, frozen=True):
    """The state of a model."""

    state: str  # a value of State, or of that of a later version
    memory_bytes: int
    share: float | None = None  # of a load, 0 to 1; None: not known
    position: int | None = None  # in the line of models that wait for a load: 0 is loading; None: nobody waits
    idle_s: float | None = None  # since its last use; None: it is in use, or never was
    expires_s: float | None = None  # until it is unloaded without further use; None: never, or it is in use
    cause: str = ""  # of the failure of its last load
    device_bytes: Mapping[str, int] = {}  # memory of devices, by name


class ArbiterAnswer(msgspec.Struct, omit_defaults=True, frozen=True):
    """All that concerns a client."""

    leases: Mapping[str, GivenLease] = {}  # all that the client has now, by model id
    refusals: Mapping[str, LoadRefusal] = {}  # of wishes that have ended
    statuses: Mapping[str, ModelStatus] = {}  # of all models
    total_bytes: int = 0  # bound on the memory of all models together
    catalog: str = ""  # the version of the catalog
    # The parameters of config.pbtxt of each replica, by model id; None: the client has this version.
    models: Mapping[str, tuple[msgspec.Raw, ...]] | None = None
