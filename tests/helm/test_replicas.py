"""Two replicas of a model behind the name of the headless Service, run as processes: one comes, one goes."""

from __future__ import annotations

import dataclasses
import json
import signal
import subprocess
from functools import partial
from pathlib import Path

import pytest

from tests.helm.chart import PodTemplate, render
from tests.helm.sandbox import Sandbox, sandbox, why_impossible
from tests.helm.test_default_install import NUM_STREAMS, VALUES, Install, assert_whole, streaming
from tests.waiting import DEADLINE_S, wait_until

FIRST, SECOND = "127.0.0.1", "127.0.0.2"

pytestmark = [pytest.mark.usefixtures("servers"), pytest.mark.skipif(why_impossible() != "", reason=why_impossible())]


def replica(box: Sandbox, pod: PodTemplate, address: str) -> PodTemplate:
    """Return a replica of a model's pod. Pods have networks of their own; these share one."""
    text = json.dumps(pod.spec).replace("--triton=127.0.0.1:", f"--triton={address}:")
    text = text.replace("--address=0.0.0.0", f"--address={address}").replace("$(POD_IP)", address)
    return dataclasses.replace(pod, owner=f"{pod.owner}-{address}", spec=json.loads(text))


def start(box: Sandbox, pod: PodTemplate) -> subprocess.Popen[str]:
    """Start a model's pod, and return when it is ready."""
    said, _ = box.run(pod, pod.spec["initContainers"][0]).communicate(timeout=DEADLINE_S)
    process = box.run(pod, pod.main)
    wait_until(partial(box.probe, pod, pod.main["readinessProbe"]), f"{pod.owner} is ready: {said}")
    return process


def endpoints(box: Sandbox) -> dict[str, str]:
    """Return the state of each endpoint, as the frontend tells it."""
    body = box.fetch("http://127.0.0.1:9000/health/ready")
    return dict(json.loads(body)["endpoints"]) if body else {}


def test_replicas_come_and_go_without_a_stream_that_breaks(tmp_path: Path) -> None:
    with sandbox(render(VALUES), tmp_path) as box:
        install = Install(box)
        pods = [replica(box, install.model, address) for address in (FIRST, SECOND)]
        first = start(box, pods[0])
        box.run(install.frontend, install.frontend.main)
        wait_until(lambda: endpoints(box) == {f"{FIRST}:8001": "ready"}, "the first replica is known")

        start(box, pods[1])
        box.name_services(FIRST, SECOND)
        both = {f"{FIRST}:8001": "ready", f"{SECOND}:8001": "ready"}
        wait_until(lambda: endpoints(box) == both, "the second replica is known")

        # What a cluster does with a pod that is to go: its address is forgotten, its preStop runs, then it is told.
        clients = [streaming(install) for _ in range(NUM_STREAMS)]
        box.name_services(SECOND)
        command = pods[0].main["lifecycle"]["preStop"]["exec"]["command"]
        said, _ = box.run(pods[0], pods[0].main, command).communicate(timeout=DEADLINE_S)
        assert said == f"ok: nothing runs at {FIRST}:8001 any more\n"
        first.send_signal(signal.SIGTERM)
        for client in clients:
            assert_whole(client)
        wait_until(lambda: endpoints(box) == {f"{SECOND}:8001": "ready"}, "the first replica is forgotten")
        assert_whole(streaming(install))
