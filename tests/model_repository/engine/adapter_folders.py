"""Folders of built adapters, with contents that no runtime would load."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from model_repository.engine.adapters.folder import AdapterManifest
from model_repository.engine.adapters.root import AdapterRoot

WEIGHTS = b"weights"


def write_folder(folder: Path, weights: bytes = WEIGHTS, **fields: Any) -> Path:
    """Write an adapter of rank 8 for the base `base`, or as the fields of its manifest say."""
    folder.mkdir(parents=True)
    (folder / "adapter.gguf").write_bytes(weights)
    known: dict[str, Any] = {"runtime": "llama_cpp", "base": "base", "rank": 8, "modules": ()}
    known["files"] = {"adapter.gguf": hashlib.sha256(weights).hexdigest()}
    AdapterManifest(**known | fields).save(folder)
    return folder


def root_of(folder: Path, **fields: Any) -> AdapterRoot:
    """Return the root that an engine of the model `org/demo` would have."""
    known: dict[str, Any] = {"ensemble": "org--demo", "runtime": "llama_cpp", "base": "base"}
    return AdapterRoot(folder=folder, **known | {"max_adapters": 2, "max_rank": 64} | fields)
