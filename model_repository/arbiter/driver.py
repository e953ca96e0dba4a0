"""Carries out what an arbiter decides: one thread decides, and each load or unload has a thread of its own."""

from __future__ import annotations

import logging
import math
import queue
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol

from model_repository.arbiter.arbiter import Arbiter
from model_repository.arbiter.catalog import Catalog, Entry, marks_of
from model_repository.arbiter.clients import Clients, Reply, refusal_of
from model_repository.arbiter.types import Abort, Action, Grant, Load, Recall, Refuse, Status, Unload
from model_repository.contract.arbiter import ArbiterAnswer, ArbiterRequest, ModelStatus, State
from model_repository.contract.engine_file import share_of_load, stop_engine

logger = logging.getLogger(__name__)

_LOOK_INTERVAL_S = 1.0  # between two looks at what Triton has loaded
# Looks in a row that find a model away, after which it counts as lost. A frontend repairs a dead engine only while it
# holds the model, and may find it after seven seconds.
MAX_MISSES = 10


class LoadError(Exception):
    """A load that failed; its text is for clients, and has no path."""


class Triton(Protocol):
    """The server around the arbiter."""

    def is_loaded(self, entry: Entry) -> bool:
        """Whether a replica of a model is ready."""

    def load(self, entry: Entry) -> None:
        """Load all replicas of a model.

        Raises:
            LoadError: all of them failed.
        """

    def unload(self, entry: Entry, end_requests_at_s: float) -> None:
        """Unload a model; return when its memory is free.

        Args:
            end_requests_at_s: time.monotonic() from which running requests end with an error; inf: they may run.
        """


@dataclass(frozen=True, slots=True)
class _Asked:
    request: ArbiterRequest
    reply: Reply


type _Event = _Asked | Callable[[], Iterable[Action]] | None  # None: the end


class Driver:
    """Runs an arbiter in a thread from its start to `close`.

    Args:
        repository: the folder of all models.
        triton: see Triton.
        total_bytes: bound on the memory of all models together.
        clock: monotonic seconds.
    """

    def __init__(
        self, repository: Path, triton: Triton, total_bytes: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._repository, self._triton, self._total_bytes, self._clock = repository, triton, total_bytes, clock
        self._catalog, self._marks = Catalog(), dict[Path, object]()
        self._entries: dict[str, Entry] = {}  # by model: of the catalog, or with which it was loaded
        self._arbiter = Arbiter([], total_bytes, clock)
        self._clients = Clients(self._arbiter, clock)
        self._events: queue.SimpleQueue[_Event] = queue.SimpleQueue()
        self._aborted: set[str] = set()  # models whose load shall stop
        self._end_at_s: dict[str, float] = {}  # by model: of an operator's unload
        self._num_misses: dict[str, int] = {}
        self._looked_s = -math.inf
        self._told: object = None  # the states that all clients have heard
        self._thread = threading.Thread(target=self._run, name="arbiter", daemon=True)
        self._thread.start()

    def ask(self, request: ArbiterRequest, reply: Reply) -> None:
        """Answer a request; any thread may call this, and `reply` is called in another one."""
        self._events.put(_Asked(request, _logged(reply)))

    def close(self) -> None:
        """Answer all requests, without which Triton does not end, and end the thread. Loads end with the process."""
        self._events.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (event := self._next_event()) is not None:
            self._perform(self._look)
            self._perform(partial(self._asked, event) if isinstance(event, _Asked) else event)
            self._perform(self._answer)
            if self._clients.due_s <= self._clock():
                self._events.put(self._clients.end_gone)  # after requests of clients that only seem to be gone
        self._clients.answer(self._filled, is_news=True)

    def _next_event(self) -> _Event:
        due_s = min(self._clients.due_s, self._arbiter.due_s or math.inf)
        try:
            return self._events.get(timeout=None if due_s == math.inf else max(0.0, due_s - self._clock()))
        except queue.Empty:
            return self._arbiter.tick

    def _perform(self, step: Callable[[], Iterable[Action]]) -> None:
        """Carry out the actions that follow from a step. An unexpected exception ends no other step."""
        try:
            self._carry_out(step())
        except Exception:
            logger.exception("unexpected exception in the arbiter of models")

    def _answer(self) -> Iterable[Action]:
        states = [(each.state, each.position) for each in self._arbiter.status().values()]
        self._clients.answer(self._filled, is_news=states != self._told)
        self._told = states
        return ()

    def _asked(self, asked: _Asked) -> Iterable[Action]:
        request = asked.request
        if request.client:
            loaded = [name for name, each in self._arbiter.status().items() if each.state is State.LOADED]
            return self._clients.ask(request, asked.reply, loaded)
        actions: list[Action] = []
        try:
            if request.load and self._arbiter.knows(request.load):
                actions = self._arbiter.load(request.load)
            elif request.unload and self._arbiter.knows(request.unload):
                self._end_at_s[request.unload] = self._clock() + request.timeout_s
                actions = self._arbiter.unload(request.unload)
            self._carry_out(actions)
        finally:
            refused = {action.model: refusal_of(action.error) for action in actions if isinstance(action, Refuse)}
            asked.reply(self._filled(ArbiterAnswer(refusals=refused), self._catalog.version))
        return ()

    def _look(self) -> Iterable[Action]:
        """Notice changes of the repository, and models that others have loaded or unloaded."""
        if self._clock() - self._looked_s < _LOOK_INTERVAL_S:
            return ()
        self._looked_s = self._clock()
        self._read_catalog()
        for name in self._aborted:
            self._stop_load(name)  # its engine's process may have begun since the last time
        for name, status in self._arbiter.status().items():
            if status.state in (State.LOADING, State.UNLOADING):
                continue
            is_loaded = self._triton.is_loaded(self._entries[name])
            is_missed = status.state is State.LOADED and not is_loaded and not self._clients.is_repairing(name)
            self._num_misses[name] = self._num_misses.get(name, 0) + 1 if is_missed else 0
            if is_loaded and status.state is not State.LOADED:
                logger.info("%s is loaded, by others", name)
                self._end_at_s.pop(name, None)
                self._carry_out(self._arbiter.loaded(name))
                self._carry_out(self._clients.adopt(name))
            elif self._num_misses[name] >= MAX_MISSES:
                logger.warning("%s is not loaded any more", name)
                self._clients.forget(name)
                self._carry_out(self._arbiter.lost(name))
        return ()

    def _read_catalog(self) -> None:
        marks = marks_of(self._repository)
        if marks is not None and marks != self._marks:
            catalog = Catalog.read(self._repository)
            if marks_of(self._repository) == marks:  # otherwise it is being replaced
                self._catalog, self._marks = catalog, marks
        statuses = self._arbiter.status()
        for name, entry in self._catalog.entries.items():
            if name not in statuses or statuses[name].state in (State.UNLOADED, State.FAILED):
                self._entries[name] = entry
        self._carry_out(self._arbiter.offer(self._catalog.offered(self._total_bytes)))

    def _carry_out(self, actions: Iterable[Action]) -> None:
        for action in actions:
            match action:
                case Load(model=name):
                    logger.info("loading %s", name)
                    self._end_at_s.pop(name, None)  # of an order for the model when it was not loaded
                    self._start(self._load, name)
                case Unload(model=name):
                    logger.info("unloading %s", name)
                    self._start(self._unload, name)
                case Abort(model=name):
                    logger.info("stopping the load of %s: nobody waits for it any more", name)
                    self._aborted.add(name)
                    self._stop_load(name)
                case Grant() | Recall() | Refuse():
                    self._clients.tell(action)

    def _stop_load(self, name: str) -> None:
        for ensemble in self._entries[name].ensembles:
            stop_engine(ensemble)

    def _start(self, work: Callable[[Entry], Callable[[], Iterable[Action]]], name: str) -> None:
        """Do work on a model in a thread; its result is the next event."""
        entry = self._entries[name]
        threading.Thread(target=lambda: self._events.put(work(entry)), name=f"model {name}", daemon=True).start()

    def _load(self, entry: Entry) -> Callable[[], Iterable[Action]]:
        name, cause = entry.model_id, ""
        try:
            self._triton.load(entry)
        except LoadError as exc:
            cause = str(exc)
        except Exception:
            logger.exception("unexpected exception while %s was loaded", name)
            cause = "internal error, see the server's log"
        return lambda: self._loaded(name, cause)

    def _loaded(self, name: str, cause: str) -> Iterable[Action]:
        if self._was_aborted(name):
            self._start(self._unload, name)
            return ()
        if cause:
            logger.error("%s does not load: %s", name, cause)
            # Stages beside the one that failed may be there.
            self._start(self._remove_rest(name, cause), name)
            return ()
        logger.info("%s is loaded", name)
        return self._arbiter.loaded(name)

    def _remove_rest(self, name: str, cause: str) -> Callable[[Entry], Callable[[], Iterable[Action]]]:
        def remove(entry: Entry) -> Callable[[], Iterable[Action]]:
            unloaded = self._unload(entry)
            return lambda: unloaded() if self._was_aborted(name) else self._arbiter.load_failed(name, cause)

        return remove

    def _was_aborted(self, name: str) -> bool:
        """Return whether a load was to stop, which counts once."""
        was_aborted = name in self._aborted
        self._aborted.discard(name)
        return was_aborted

    def _unload(self, entry: Entry) -> Callable[[], Iterable[Action]]:
        name = entry.model_id
        try:
            self._triton.unload(entry, self._end_at_s.pop(name, math.inf))
        except Exception:
            logger.exception("unexpected exception while %s was unloaded", name)
        return lambda: self._arbiter.unloaded(name)

    def _filled(self, answer: ArbiterAnswer, catalog: str) -> ArbiterAnswer:
        """Return an answer with what every client gets."""
        statuses = {name: self._status(name, each) for name, each in self._arbiter.status().items()}
        models = None
        if catalog != self._catalog.version:
            models = {name: entry.texts for name, entry in self._catalog.entries.items()}
        return ArbiterAnswer(answer.leases, answer.refusals, statuses, self._total_bytes, self._catalog.version, models)

    def _status(self, name: str, status: Status) -> ModelStatus:
        now, is_loading = self._clock(), status.state is State.LOADING
        entry = self._entries.get(name)
        return ModelStatus(
            state=status.state,
            memory_bytes=status.size_bytes if entry is None else entry.memory_bytes,
            share=_mean_share(entry.ensembles) if is_loading and entry is not None else None,
            position=status.position,
            idle_s=now - status.used_s if status.used_s > -math.inf and not status.is_busy else None,
            expires_s=status.until_s - now if status.until_s < math.inf else None,
            cause=status.cause,
            device_bytes={} if entry is None else {name: use.used_bytes for name, use in entry.devices.items()},
        )


def _logged(reply: Reply) -> Reply:
    """Return a reply that raises no error: a client that is gone must not keep others from their answers."""

    def send(answer: ArbiterAnswer) -> None:
        try:
            reply(answer)
        except Exception:
            logger.exception("an answer of the arbiter of models could not be sent")

    return send


def _mean_share(ensembles: Sequence[str]) -> float | None:
    shares = [share for ensemble in ensembles if (share := share_of_load(ensemble)) is not None]
    return sum(shares) / len(ensembles) if shares else None
