"""The models of several replicas as one list."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Collection, Mapping

from msgspec.structs import replace

from frontend.triton.models import ModelDirectory, ModelSnapshot, ServedModel

logger = logging.getLogger(__name__)

# Adapters may differ: a request for an adapter goes where it is. Settings of the machine may differ, too.
_COMPARED = (
    "context_window",
    "max_sequences",
    "runtime",
    "fingerprint",
    "aliases",
    "capabilities",
    "tool_call_format",
    "reasoning_format",
    "template_fields",
    "defaults",
)


class ModelUnion:
    """Unites the models of the replicas. If two replicas describe a model differently, the first one counts.

    Args:
        expected: ids of models that are known also where no replica has heard of them.
    """

    def __init__(self, expected: Collection[str] = ()) -> None:
        self._expected = expected
        self._logged: set[tuple[str, str, tuple[str, ...]]] = set()

    def of(self, directories: Mapping[str, ModelDirectory]) -> ModelSnapshot:
        """Return the models that are ready at one endpoint at least, and the others that are known.

        Args:
            directories: by endpoint; those that do not answer count with what they served before.
        """
        ready: dict[str, ServedModel] = {}
        unready = dict.fromkeys(self._expected, "not loaded")
        for endpoint, directory in directories.items():
            unready |= directory.latest.unready
            for model in directory.latest.ready.values():
                if directory.error is not None:
                    unready[model.id] = "unreachable"
                elif model.id in ready:
                    ready[model.id] = self._merged(ready[model.id], model, endpoint)
                else:
                    ready[model.id] = model
        return ModelSnapshot(ready=ready, unready={key: state for key, state in unready.items() if key not in ready})

    def _merged(self, first: ServedModel, other: ServedModel, endpoint: str) -> ServedModel:
        parameters = first.parameters
        differing = tuple(name for name in _COMPARED if getattr(parameters, name) != getattr(other.parameters, name))
        if differing and (key := (first.id, endpoint, differing)) not in self._logged:
            self._logged.add(key)
            logger.error("%s at %s is not what it is elsewhere: %s differ", first.id, endpoint, ", ".join(differing))
        adapters = {**parameters.adapters, **other.parameters.adapters}
        if len(adapters) == len(parameters.adapters):
            return first
        return dataclasses.replace(first, parameters=replace(parameters, adapters=adapters))
