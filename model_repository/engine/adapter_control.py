"""Loads and unloads LoRA adapters while the engine runs, off its thread as far as that goes."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Protocol

from model_repository.engine.adapter_root import AdapterRoot
from model_repository.engine.engine import Engine
from model_repository.engine.runtime import Runtime
from model_repository.errors import EngineFailed, InvalidRequest, StageError, UnknownAdapter, Unsupported

logger = logging.getLogger(__name__)


class Asker(Protocol):
    """Who asked for it."""

    def fail(self, error: Exception) -> None:
        """Tell why it was not done."""


class AdapterControl:
    """Carries out one order at a time, in a thread; an order that is carried out already is fine.

    Args:
        engine: what the adapters are for.
        root: where they come from; None: from nowhere.
    """

    def __init__(self, engine: Engine, root: AdapterRoot | None) -> None:
        self._engine = engine
        self._root = root
        self._turn = threading.Lock()

    def load(self, name: str, source: str, done: Callable[[], None], asker: Asker) -> None:
        """Load an adapter and offer it under a name. Its files are read and checked here, not on the engine's thread.

        Args:
            done: called when it can be used.
            asker: told what is wrong instead.
        """
        self._start(lambda root: self._load(root, name, source), done, asker)

    def unload(self, name: str, done: Callable[[], None], asker: Asker) -> None:
        """Take an adapter from the next requests; those under way keep it.

        Args:
            done: called when no request gets it any more.
            asker: told what is wrong instead.
        """
        self._start(lambda root: self._unload(root, name), done, asker)

    def _start(self, work: Callable[[AdapterRoot], None], done: Callable[[], None], asker: Asker) -> None:
        """Do some work in a thread.

        Raises:
            Unsupported: there is no root.
        """
        root = self._root
        if root is None:
            raise Unsupported("this model takes no adapters while it runs: it was rendered without --adapter-root")

        def run() -> None:
            try:
                with self._turn:
                    work(root)
                done()
            except Exception as exc:
                asker.fail(exc)

        threading.Thread(target=run, name="adapters", daemon=True).start()

    def _load(self, root: AdapterRoot, name: str, source: str) -> None:
        adapter = root.find(name, source)
        loaded = self._engine.adapters()
        if name in loaded:
            if loaded[name].key == adapter.key:
                return
            rule = "another adapter is loaded under this name: unload it first, or build the model without it"
            raise InvalidRequest(f"{name!r}: {rule}", "name")
        if sum(bool(each.source) for each in loaded.values()) >= root.max_adapters:
            rule = f"{root.max_adapters} adapters are loaded already, which is the most (--max-adapters): unload one"
            raise InvalidRequest(f"{name!r}: {rule}", "name")
        self._engine.between_steps(lambda runtime: runtime.load_adapter(name, adapter)).result()
        try:
            root.note(name, adapter)  # last: one whose load ends the process must not end the next one too
        except EngineFailed:
            self._engine.between_steps(lambda runtime: runtime.unload_adapter(name)).result()
            raise
        logger.info("loaded the adapter %s from %s", name, adapter.source)

    def _unload(self, root: AdapterRoot, name: str) -> None:
        loaded = self._engine.adapters()
        if name not in loaded:
            raise UnknownAdapter(f"{name!r}: expected one of {sorted(loaded)}", "name")
        if not loaded[name].source:
            raise InvalidRequest(f"{name!r}: it is part of the model's artifact: build that without it", "name")
        root.forget(name)
        self._engine.between_steps(lambda runtime: runtime.unload_adapter(name)).result()
        logger.info("unloaded the adapter %s", name)


def restore_adapters(runtime: Runtime, root: AdapterRoot) -> None:
    """Load what was loaded when the engine ended; what does not load any more is logged, and left out."""
    for name, source in root.noted():
        try:
            runtime.load_adapter(name, root.find(name, source))
        except StageError as exc:
            logger.error("the adapter %s does not load again: %s", name, exc.text)
        except Exception:  # the model itself is well
            logger.exception("the adapter %s does not load again", name)
        else:
            logger.info("loaded the adapter %s again, from %s", name, source)
