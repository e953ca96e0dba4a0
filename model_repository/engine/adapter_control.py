"""Loads and unloads LoRA adapters while the engine runs, most of it outside the engine's thread."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from model_repository.engine.adapters.folder import Adapter
from model_repository.engine.adapters.root import AdapterRoot
from model_repository.engine.engine import Engine
from model_repository.engine.inbox import SetAdapter
from model_repository.engine.runtime import Runtime
from model_repository.errors import EngineFailed, InvalidRequest, StageError, UnknownAdapter, Unsupported

logger = logging.getLogger(__name__)


class AdapterControl:
    """Executes one order at a time, in a thread; `fail` gets its error. An order without effect succeeds.

    Args:
        root: the adapters' folder; None: nothing can be loaded.
    """

    def __init__(self, engine: Engine, root: AdapterRoot | None) -> None:
        self._engine = engine
        self._root = root
        self._lock = threading.Lock()

    def load(self, name: str, source: str, done: Callable[[], None], fail: Callable[[Exception], None]) -> None:
        """Load an adapter and offer it under a name; `done` is called when requests can use it.

        Its files are read and checked outside the engine's thread.
        """
        self._start(lambda root: self._load(root, name, source), done, fail)

    def unload(self, name: str, done: Callable[[], None], fail: Callable[[Exception], None]) -> None:
        """Offer an adapter no more; `done` is called when new requests cannot use it. Running requests keep it."""
        self._start(lambda root: self._unload(root, name), done, fail)

    def _start(
        self, work: Callable[[AdapterRoot], None], done: Callable[[], None], fail: Callable[[Exception], None]
    ) -> None:
        root = self._root
        if root is None:
            raise Unsupported("this model takes no adapters while it runs: rendered without --adapter-root")

        def run() -> None:
            try:
                with self._lock:
                    work(root)
                done()
            except Exception as exc:
                fail(exc)

        threading.Thread(target=run, name="adapters", daemon=True).start()

    def _load(self, root: AdapterRoot, name: str, source: str) -> None:
        adapter = root.find(name, source)
        loaded = self._engine.runtime.stats().adapters
        if name in loaded:
            if loaded[name].key == adapter.key:
                return
            rule = "another adapter is loaded under this name: unload it first, or build the model without it"
            raise InvalidRequest(f"{name!r}: {rule}", "name")
        if sum(bool(each.source) for each in loaded.values()) >= root.max_adapters:
            rule = f"{root.max_adapters} adapters are loaded already, which is the most (--max-adapters): unload one"
            raise InvalidRequest(f"{name!r}: {rule}", "name")
        adapter = self._engine.runtime.prepare_adapter(adapter)
        self._set(name, adapter)
        try:
            root.note(name, adapter)  # last: an adapter whose load kills the process must not kill the next one
        except EngineFailed:
            self._set(name, None)
            raise
        logger.info("loaded the adapter %s from %s", name, adapter.source)

    def _unload(self, root: AdapterRoot, name: str) -> None:
        loaded = self._engine.runtime.stats().adapters
        if name not in loaded:
            raise UnknownAdapter(f"{name!r}: expected one of {sorted(loaded)}", "name")
        if not loaded[name].source:
            raise InvalidRequest(f"{name!r}: part of the model's artifact: build that without it", "name")
        root.forget(name)
        self._set(name, None)
        logger.info("unloaded the adapter %s", name)

    def _set(self, name: str, adapter: Adapter | None) -> None:
        """Have the engine load or unload an adapter between two steps."""
        order = SetAdapter(name, adapter)
        self._engine.post(order)
        order.done.result()


def restore_adapters(runtime: Runtime, root: AdapterRoot) -> None:
    """Load the adapters that were loaded when the engine ended. One that fails is logged and left out.

    Raises:
        EngineFailed: an adapter has broken the runtime. The next engine will not load it.
    """
    root.remove_old_copies()
    for name, source in root.noted():
        try:
            runtime.load_adapter(name, runtime.prepare_adapter(root.find(name, source)))
        except StageError as exc:
            logger.error("the adapter %s does not load again: %s", name, exc.text)
            try:
                runtime.stats()
            except EngineFailed:
                root.forget(name)
                raise
        except Exception:  # the model itself works
            logger.exception("the adapter %s does not load again", name)
        else:
            logger.info("loaded the adapter %s again, from %s", name, source)
