"""Prove the Helm chart on a real Kubernetes control plane, with played kubelets. README.md describes it."""

from __future__ import annotations

import argparse
import contextlib
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path

from tests.workshop.control_plane import scenarios
from tests.workshop.control_plane.api import Api
from tests.workshop.control_plane.binaries import Missing, Programs, find
from tests.workshop.control_plane.cluster import control_plane
from tests.workshop.control_plane.kubelets import Kubelets
from tests.workshop.control_plane.releases import Helm, HelmLibrary, HelmProgram


def main() -> int:
    """Run the scenarios and return the exit status: 0 if all passed, 2 if there is no control plane."""
    options = _parser().parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the started processes end too
    try:
        if options.logs is not None and options.logs.exists() and any(options.logs.iterdir()):
            raise Missing(f"--logs {options.logs}: expected an empty folder")
        programs = find(options.source, options.binaries, options.lws_source)
    except Missing as exc:
        print(f"error: {exc}", file=sys.stderr)
        return 2
    with contextlib.ExitStack() as stack:
        folder = options.logs or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="control-plane-")))
        folder.mkdir(parents=True, exist_ok=True)
        print(f"start Kubernetes {programs.version()} on loopback", flush=True)
        api = stack.enter_context(control_plane(programs, folder))
        kubelets = stack.enter_context(Kubelets(api))
        kubelets.add_node("cpu")
        found = [path for path in (options.helm or [shutil.which("helm")]) if path]
        helms: list[Helm] = [HelmProgram(Path(path), api.kubeconfig, folder) for path in found]
        results = _run(api, kubelets, helms or [HelmLibrary(api.kubeconfig)], programs, options.only)
    return _summary(results)


def _run(api: Api, kubelets: Kubelets, helms: list[Helm], programs: Programs, only: str) -> list[tuple[str, str, str]]:
    """Run all scenarios with each Helm, and return the Helm, the name and the result of each."""
    results: list[tuple[str, str, str]] = []

    def run(version: str, name: str, scenario: Callable[[str], str]) -> None:
        if only not in name:
            return
        started = time.monotonic()
        try:
            result, text = "ok", scenario(f"n{len(results)}")
            if kubelets.errors:
                result, text = "FAILED", f"played kubelets: {kubelets.errors[0]}"
        except Exception as exc:
            result, text = "FAILED", str(exc) or traceback.format_exc(limit=-1)
        kubelets.errors.clear()
        results.append((version, name, result))
        print(f"{result:6} {version}: {name} ({time.monotonic() - started:.0f} s): {text}", flush=True)

    run("server", "admission", lambda namespace: scenarios.admission(api, namespace))
    for helm in helms:
        for name, function in (scenarios.ALL | ({} if programs.why_no_lws else scenarios.NEEDS_LWS)).items():

            def in_namespace(
                namespace: str, helm: Helm = helm, function: Callable[[scenarios.Release], str] = function
            ) -> str:
                with scenarios.release(api, kubelets, helm, namespace) as it:
                    return function(it)

            run(f"Helm {helm.version}", name, in_namespace)
    if programs.why_no_lws:
        for name in (each for each in scenarios.NEEDS_LWS if only in each):
            results.append(("", name, "skipped"))
            print(f"skip   {name}: no LeaderWorkerSet controller: {programs.why_no_lws}", flush=True)
    return results


def _summary(results: list[tuple[str, str, str]]) -> int:
    print()
    for version, name, result in results:
        print(f"{name:20}{version:28}{result}")
    num_failed = sum(result == "FAILED" for _, _, result in results)
    num_ok = sum(result == "ok" for _, _, result in results)
    print(f"{num_ok} passed, {num_failed} failed, {len(results) - num_ok - num_failed} skipped")
    return int(num_failed > 0)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.workshop.control_plane", description=__doc__)
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--source", type=Path, metavar="DIR", help="build the programs from this tree of Kubernetes")
    where.add_argument("--binaries", type=Path, metavar="DIR", help="folder with the built programs")
    parser.add_argument("--lws-source", type=Path, metavar="DIR", help="tree of LeaderWorkerSet: CRDs and controller")
    parser.add_argument("--helm", action="append", metavar="FILE", help="a helm program; repeat it for several")
    parser.add_argument("--only", default="", metavar="TEXT", help="run the scenarios with this text in their names")
    parser.add_argument("--logs", type=Path, metavar="DIR", help="keep the logs in this new or empty folder")
    return parser


if __name__ == "__main__":
    sys.exit(main())
