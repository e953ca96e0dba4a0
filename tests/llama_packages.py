"""Made-up packages with builds of llama.cpp, of names and records alone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest


def install_build(folder: Path, package: str, monkeypatch: pytest.MonkeyPatch, architectures: str = "") -> None:
    """Install a package into a folder, before all others; two of them share their files, as real ones do."""
    (folder / "cyllama").mkdir(exist_ok=True)
    (folder / "cyllama" / "__init__.py").touch()
    names = ("cuda", "hip")
    backends = {
        name: {"architectures": architectures if (name == "hip") == ("rocm" in package) else None} for name in names
    }
    record = {"backend": backends, "versions": {"llama_cpp_version": "b1"}}
    (folder / "cyllama" / "build_config.json").write_text(json.dumps(record), encoding="utf-8")
    named = folder / f"{package.replace('-', '_')}-0.7.0.dist-info"
    named.mkdir()
    (named / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 0.7.0\n", encoding="utf-8")
    monkeypatch.syspath_prepend(str(folder))
