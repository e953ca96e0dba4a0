"""Helm, as a program or as a library, and a release in a namespace of its own."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import helm_python

from tests.helm.chart import CHART, RELEASE, Values

TIMEOUT_S = 90


class HelmFailed(Exception):
    """Helm ended with an error."""


class HelmProgram:
    """A `helm` program. All commands are for the release `demo`."""

    def __init__(self, path: Path, kubeconfig: Path, folder: Path) -> None:
        self._path = path
        homes = {f"HELM_{name}_HOME": str(folder / "helm") for name in ("CACHE", "CONFIG", "DATA")}
        self._environment = os.environ | homes | {"KUBECONFIG": str(kubeconfig)}
        self.version = self._run("version", "--template={{.Version}}")

    def install(self, namespace: str, values: Values, *, waits: bool) -> None:
        self._with_values("install", namespace, values, waits)

    def upgrade(self, namespace: str, values: Values, *, waits: bool) -> None:
        self._with_values("upgrade", namespace, values, waits)

    def rollback(self, namespace: str, revision: int) -> None:
        self._run("rollback", RELEASE, str(revision), f"--namespace={namespace}")

    def test(self, namespace: str) -> None:
        self._run("test", RELEASE, f"--namespace={namespace}", f"--timeout={TIMEOUT_S}s")

    def uninstall(self, namespace: str) -> None:
        self._run("uninstall", RELEASE, f"--namespace={namespace}")

    def _with_values(self, command: str, namespace: str, values: Values, waits: bool) -> None:
        options = ["--wait", f"--timeout={TIMEOUT_S}s"] if waits else []
        self._run(command, RELEASE, str(CHART), f"--namespace={namespace}", "--values=-", *options, values=values)

    def _run(self, *words: str, values: Values | None = None) -> str:
        command = [str(self._path), *words]
        text = None if values is None else json.dumps(values)
        done = subprocess.run(command, env=self._environment, input=text, capture_output=True, text=True, check=False)
        if done.returncode:
            raise HelmFailed(f"helm {words[0]}: {done.stderr.strip()[-400:]}")
        return done.stdout


class HelmLibrary:
    """The library of Helm 4 that the tests of the chart use too."""

    def __init__(self, kubeconfig: Path) -> None:
        self._kubeconfig = kubeconfig
        self.version = f"{helm_python.helm_sdk_version()} (library)"

    def install(self, namespace: str, values: Values, *, waits: bool) -> None:
        wait = "watcher" if waits else None
        self._config(namespace).install(CHART, RELEASE, values, namespace=namespace, wait=wait, timeout=TIMEOUT_S)

    def upgrade(self, namespace: str, values: Values, *, waits: bool) -> None:
        wait = "watcher" if waits else None
        self._config(namespace).upgrade(CHART, RELEASE, values, namespace=namespace, wait=wait, timeout=TIMEOUT_S)

    def rollback(self, namespace: str, revision: int) -> None:
        self._config(namespace).rollback(RELEASE, version=revision)

    def test(self, namespace: str) -> None:
        self._config(namespace).test(RELEASE, timeout=TIMEOUT_S)

    def uninstall(self, namespace: str) -> None:
        self._config(namespace).uninstall(RELEASE)

    def _config(self, namespace: str) -> helm_python.Config:
        return helm_python.Config(kubeconfig_path=self._kubeconfig, namespace=namespace, burst_limit=1000)


type Helm = HelmProgram | HelmLibrary
