"""Programs of a Kubernetes control plane: found in a folder, or built from a source tree."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

KUBERNETES = ("kube-apiserver", "kube-controller-manager", "kube-scheduler")
LWS_MANAGER = "lws-manager"


class Missing(Exception):
    """A program that cannot be found or built."""


@dataclass(frozen=True, slots=True)
class Programs:
    """Paths of the programs to start."""

    etcd: Path
    folder: Path  # of the programs in KUBERNETES, and of LWS_MANAGER if it could be built
    lws_source: Path | None  # has the controller's CRDs and webhooks
    why_no_lws: str  # empty: there is a controller

    def version(self) -> str:
        """Version of the API server."""
        answer = subprocess.run([self.folder / KUBERNETES[0], "--version"], capture_output=True, text=True, check=True)
        return answer.stdout.split()[-1]


def find(source: Path | None, folder: Path | None, lws_source: Path | None) -> Programs:
    """Find the programs in `folder`, and build the missing ones from the sources.

    Args:
        source: tree of Kubernetes with its vendored modules; built programs are left in `source`/_output/bin.
        lws_source: tree of LeaderWorkerSet.

    Raises:
        Missing: there is neither a program nor a source for it.
    """
    etcd = shutil.which("etcd")
    if etcd is None:
        raise Missing("etcd is not on PATH: install the package etcd-server")
    if folder is None:
        assert source is not None
        folder = source / "_output" / "bin"
        folder.mkdir(parents=True, exist_ok=True)
    missing = [name for name in KUBERNETES if not (folder / name).is_file()]
    if missing and source is None:
        raise Missing(f"{folder}: no {', '.join(missing)}")
    if missing and (error := _build(source, folder, *(f"./cmd/{name}" for name in missing))):
        raise Missing(f"{source}: {error}")
    why_no_lws = "no --lws-source"
    if lws_source is not None:
        is_built = (folder / LWS_MANAGER).is_file()
        why_no_lws = "" if is_built else _build(lws_source, folder / LWS_MANAGER, "./cmd")
    return Programs(Path(etcd), folder, lws_source, why_no_lws)


def _build(source: Path | None, output: Path, *packages: str) -> str:
    """Build Go packages and return an error message, empty if there is none."""
    assert source is not None
    go = shutil.which("go")
    if go is None:
        return "go is not on PATH"
    print(f"build {' '.join(packages)} in {source}: this takes minutes", flush=True)  # noqa: T201
    is_vendored = (source / "vendor").is_dir()
    environment = os.environ | {"CGO_ENABLED": "0"} | ({"GOFLAGS": "-mod=vendor"} if is_vendored else {})
    command = [go, "build", f"-ldflags=-s -w {_version_flags(source)}", "-o", str(output), *packages]
    done = subprocess.run(command, cwd=source, env=environment, stderr=subprocess.PIPE, text=True, check=False)
    return "" if done.returncode == 0 else f"go build failed: {done.stderr.strip().splitlines()[-1]}"


def _version_flags(source: Path) -> str:
    """Linker flags that set the version of Kubernetes, which a tree without its git history does not know."""
    path = source / "staging" / "src" / "k8s.io" / "component-base" / "version" / "base.go"
    found = re.search(r'DefaultKubeBinaryVersion = "(\d+)\.(\d+)"', path.read_text()) if path.is_file() else None
    if found is None:
        return ""
    values = {"gitVersion": f"v{found[1]}.{found[2]}.0", "gitMajor": found[1], "gitMinor": found[2]}
    return " ".join(f"-X k8s.io/component-base/version.{name}={value}" for name, value in values.items())
