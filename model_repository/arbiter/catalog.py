"""The models of a repository, loaded or not, read from their config.pbtxt."""

from __future__ import annotations

import ast
import hashlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path

import msgspec
from msgspec.structs import replace

from model_repository.arbiter.types import OfferedModel
from model_repository.contract.tensors import ensemble_of_stage
from model_repository.model_parameters import PARAMETER, ModelParameters
from model_repository.system.devices import DeviceUse

# A parameter in protobuf's text format: its value is in double quotes, with the escapes of C, as Python's bytes have.
_VALUE = re.compile(rf'key: "{PARAMETER}"\s+value \{{\s+string_value: ("(?:[^"\\]|\\.)*")')


@dataclass(frozen=True, slots=True)
class Entry:
    """A model of the catalog."""

    replicas: tuple[ModelParameters, ...]
    texts: tuple[msgspec.Raw, ...]  # the parameters of each replica, as JSON

    @property
    def model_id(self) -> str:
        """The id of the model."""
        return self.replicas[0].model_id

    @property
    def ensembles(self) -> list[str]:
        """The names of the replicas' ensembles in Triton."""
        return [replica.ensemble for replica in self.replicas]

    @property
    def memory_bytes(self) -> int:
        """The memory of all replicas, which are loaded together."""
        return sum(replica.memory_bytes for replica in self.replicas)

    @property
    def devices(self) -> dict[str, DeviceUse]:
        """The parts of devices that all replicas together hold, by name."""
        uses = dict[str, DeviceUse]()
        for name, use in chain.from_iterable(replica.devices.items() for replica in self.replicas):
            uses[name] = replace(use, used_bytes=use.used_bytes + (uses[name].used_bytes if name in uses else 0))
        return uses

    @property
    def needs_gpus(self) -> bool:
        """Whether its memory is that of GPUs."""
        return "num_gpus" in self.replicas[0].requires


@dataclass(frozen=True, slots=True)
class Catalog:
    """All models of one moment."""

    version: str = ""
    entries: Mapping[str, Entry] = field(default_factory=dict)  # by model id

    def offered(self, total_bytes: int) -> Iterator[OfferedModel]:
        """Yield the models as the arbiter counts them.

        Models on GPUs of their own take no memory from others. Where several have a GPU in common, one is loaded at a
        time: each uses up the memory of its GPUs.
        """
        gpus = [set(replica.gpus) for each in self.entries.values() if each.needs_gpus for replica in each.replicas]
        is_shared = len(gpus) > 1 and (not all(gpus) or len(set().union(*gpus)) < sum(map(len, gpus)))
        for name, entry in self.entries.items():
            size_bytes = total_bytes * is_shared if entry.needs_gpus else entry.memory_bytes
            first = entry.replicas[0]
            yield OfferedModel(name, size_bytes, first.is_pinned, first.max_idle_s, devices=entry.devices)

    @classmethod
    def read(cls, repository: Path) -> Catalog:
        """Read a repository. Models of other projects and versions are left out."""
        texts: dict[str, list[bytes]] = {}
        digest = hashlib.blake2b(digest_size=16)
        replicas: dict[str, list[ModelParameters]] = {}
        for path in _configs(repository):
            try:
                found = _VALUE.search(path.read_text("latin-1"))  # bytes
                if found is None:
                    continue
                text = ast.literal_eval("b" + found[1].encode("ascii", "backslashreplace").decode())
                parameters = ModelParameters.from_config({PARAMETER: text.decode()})
            except (OSError, SyntaxError, ValueError):
                continue
            digest.update(text)
            texts.setdefault(parameters.model_id, []).append(text)
            replicas.setdefault(parameters.model_id, []).append(parameters)
        entries = {
            model_id: Entry(tuple(own), tuple(map(msgspec.Raw, texts[model_id]))) for model_id, own in replicas.items()
        }
        return cls(digest.hexdigest(), entries)


def marks_of(repository: Path) -> dict[Path, object] | None:
    """Return values that differ after a change of a model, by its config.pbtxt; None: the repository is not there."""
    try:
        return {path: (status.st_mtime_ns, status.st_ino) for path in _configs(repository) if (status := path.stat())}
    except OSError:  # it is being replaced
        return None


def _configs(repository: Path) -> list[Path]:
    """Return the configurations of the models' public ensembles."""
    folders = sorted(folder for folder in repository.iterdir() if ensemble_of_stage(folder.name) == folder.name)
    return [path for folder in folders if (path := folder / "config.pbtxt").is_file()]
