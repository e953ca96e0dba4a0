"""The engine's figures on Triton's metrics port, for monitoring without a frontend."""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import attrgetter
from types import MappingProxyType
from typing import Protocol, get_type_hints

from msgspec import Struct

from model_repository.contract.output import DeviceState, EngineStats, LibraryStats
from model_repository.errors import StageError
from model_repository.metric_family import MetricFamily

logger = logging.getLogger(__name__)

INTERVAL_S = 1.0  # each update is a message to Triton


class Metric(Protocol):
    """Triton's metric of one family."""

    def set(self, value: float) -> None: ...

    def increment(self, value: float) -> None: ...


def _declared(message: type[Struct], of: str = "") -> Iterator[tuple[MetricFamily, str]]:
    """Yield the metrics that a message declares, each with the path of attributes to its value."""
    for name, hint in get_type_hints(message, include_extras=True).items():
        for family in getattr(hint, "__metadata__", ()):
            yield family, f"{of}{name}"


_PATHS = dict((*_declared(EngineStats), *_declared(LibraryStats, "library.")))
FAMILIES = tuple(_PATHS)
_OF_DEVICE = dict(_declared(DeviceState))
DEVICE_FAMILIES = tuple(_OF_DEVICE)  # for each device of the model


def _value(family: MetricFamily, stats: EngineStats) -> float:
    """Return a metric's value, a time in seconds; NaN if it is not known."""
    path = _PATHS[family]
    value: float | None = attrgetter(path)(stats)
    is_state_of_library = path.startswith("library.") and not family.is_counter
    if value is None or (is_state_of_library and not stats.library.is_known):
        return math.nan
    return value / 1e3 if path.endswith("_ms") else value


class EngineMetrics:
    """A thread that copies an engine's figures to Triton's metrics.

    Args:
        metrics: Triton's, in the order of FAMILIES.
        of_devices: by device, in the order of DEVICE_FAMILIES.
    """

    def __init__(
        self,
        stats: Callable[[], EngineStats],
        metrics: Sequence[Metric],
        of_devices: Mapping[str, Sequence[Metric]] = MappingProxyType({}),
    ) -> None:
        self._stats = stats
        self._metrics = metrics
        self._of_devices = of_devices
        self._counted = [0.0] * len(metrics)
        self._is_closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="metrics", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Stop the thread, and wait for its end: later updates would fail in Triton."""
        self._is_closed.set()
        self._thread.join()

    def update(self) -> None:
        """Copy the current figures.

        Raises:
            StageError: the engine has stopped.
        """
        stats = self._stats()
        for index, (family, metric) in enumerate(zip(FAMILIES, self._metrics, strict=True)):
            value = _value(family, stats)
            if family.is_counter:
                metric.increment(value - self._counted[index])
                self._counted[index] = value
            else:
                metric.set(value)
        for name, device in stats.devices.items():
            for path, metric in zip(_OF_DEVICE.values(), self._of_devices[name], strict=True):
                metric.set(getattr(device, path))

    def _run(self) -> None:
        while not self._is_closed.wait(INTERVAL_S):
            try:
                self.update()
            except StageError:  # requests get this error too
                continue
            except Exception:
                logger.exception("the engine's metrics are no longer updated")
                return
