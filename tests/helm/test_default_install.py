"""The default install, run: the rendered commands, environment, probes and test as processes on this machine."""

from __future__ import annotations

import re
import signal
import subprocess
from functools import partial
from pathlib import Path

import pytest

from tests.helm.chart import PodTemplate, pods, render
from tests.helm.sandbox import Sandbox, sandbox, why_impossible
from tests.waiting import DEADLINE_S, wait_until

pytestmark = [pytest.mark.usefixtures("servers"), pytest.mark.skipif(why_impossible() != "", reason=why_impossible())]

WRITES = "id -u; for d in / /usr /etc /home /tmp /home/conch; do touch $d/x 2>/dev/null && echo $d; done; true"


def test_the_default_install_becomes_ready_passes_its_test_and_ends(tmp_path: Path) -> None:
    rendered = render({"frontend": {"service": {"port": 8000}}})  # of the pod: nothing translates ports here
    by_owner = {pod.owner: pod for pod in pods(rendered)}
    model, frontend = by_owner["Deployment/demo-demo"], by_owner["Deployment/demo-frontend"]
    with sandbox(rendered, tmp_path) as box:
        [init] = model.spec["initContainers"]
        assert said_by(box.run(model, init))
        processes = [(pod, box.run(pod, pod.main)) for pod in (model, frontend)]
        for pod, process in processes:
            wait_until(partial(is_ready, box, pod, process), f"{pod.owner} is ready")
            assert box.probe(pod, pod.main["livenessProbe"])
            assert said_by(box.run(pod, pod.main, ["sh", "-c", WRITES])).split() == ["65532", "/tmp", "/home/conch"]

        test = by_owner["Pod/demo-test-api"]
        said = said_by(box.run(test, test.main))
        assert re.fullmatch(r"ok: serves demo.*\nok: demo answers .*Paris.*\nok: demo streams \d+ events\n", said), said
        wrong_key = ["sh", "-c", 'printf conch_wrong >/tmp/key; CONCH_KEY_FILE=/tmp/key exec "$@"', "sh"]
        said = said_by(box.run(test, test.main, [*wrong_key, *test.main["command"]]), status=1)
        assert "/v1/models: 401 " in said

        command = model.main["lifecycle"]["preStop"]["exec"]["command"]
        command = [re.sub("--notice-s=.*", "--notice-s=1", word) for word in command]
        assert said_by(box.run(model, model.main, command)) == "ok: nothing runs at 127.0.0.1:8001 any more\n"
        for _, process in processes:
            process.send_signal(signal.SIGTERM)
            said_by(process)


def is_ready(box: Sandbox, pod: PodTemplate, process: subprocess.Popen[str]) -> bool:
    """Run the probes that a pod must pass before it gets requests."""
    assert process.poll() is None, process.communicate()[0]
    return box.probe(pod, pod.main["startupProbe"]) and box.probe(pod, pod.main["readinessProbe"])


def said_by(process: subprocess.Popen[str], status: int = 0) -> str:
    """Return the output of a process that ends with this status."""
    said, _ = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == status, said
    return said
