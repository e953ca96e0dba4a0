"""The default install, run: the rendered commands, environment, probes and test as processes on this machine.

Points 32, 38, 39, 41 and 44 of the checklist, as far as processes can show them.
"""

from __future__ import annotations

import json
import re
import signal
import subprocess
from collections.abc import Iterator
from functools import partial

import pytest

from tests.helm.chart import PodTemplate, pods, render
from tests.helm.sandbox import Sandbox, sandbox, why_impossible
from tests.helm.test_monitoring import NAME, expressions
from tests.waiting import DEADLINE_S, wait_until

NUM_STREAMS = 4
VALUES = {
    "frontend": {"service": {"port": 8000}},  # of the pod: nothing translates ports here
    "metrics": {"prometheusRule": {"enabled": True}, "dashboards": {"enabled": True}},
}

pytestmark = [pytest.mark.usefixtures("servers"), pytest.mark.skipif(why_impossible() != "", reason=why_impossible())]


class Install:
    """The pods of a release that run."""

    def __init__(self, box: Sandbox) -> None:
        self.box = box
        by_owner = {pod.owner: pod for pod in pods(box.rendered)}
        self.model, self.frontend = by_owner["Deployment/demo-demo"], by_owner["Deployment/demo-frontend"]
        self.test = by_owner["Pod/demo-test-api"]

    def start(self) -> None:
        """Start both pods, as a cluster does, and wait until they are ready."""
        [init] = self.model.spec["initContainers"]
        process = self.box.run(self.model, init)
        said, _ = process.communicate(timeout=DEADLINE_S)
        assert process.returncode == 0, said
        self.triton = self.box.run(self.model, self.model.main)
        self.api = self.box.run(self.frontend, self.frontend.main)
        for pod, process in ((self.model, self.triton), (self.frontend, self.api)):
            wait_until(partial(self._is_ready, pod, process), f"{pod.owner} is ready")

    def _is_ready(self, pod: PodTemplate, process: subprocess.Popen[str]) -> bool:
        assert process.poll() is None, process.communicate()[0]
        return self.box.probe(pod, pod.main["startupProbe"]) and self.box.probe(pod, pod.main["readinessProbe"])


@pytest.fixture(scope="module")
def install(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Install]:
    """The release, ready."""
    with sandbox(render(VALUES), tmp_path_factory.mktemp("sandbox")) as box:
        found = Install(box)
        found.start()
        yield found


def test_32_the_root_file_system_of_a_running_pod_cannot_be_written(install: Install) -> None:
    for pod in (install.model, install.frontend):
        script = "id -u; for d in / /usr /etc /home /tmp /home/conch; do touch $d/x 2>/dev/null && echo $d; done; true"
        said, _ = install.box.run(pod, pod.main, ["sh", "-c", script]).communicate(timeout=DEADLINE_S)
        assert said.split() == ["65532", "/tmp", "/home/conch"]


def test_every_probe_of_a_running_pod_succeeds(install: Install) -> None:
    for pod in (install.model, install.frontend):
        for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
            assert install.box.probe(pod, pod.main[probe]), f"{pod.owner} {probe}"


def test_41_the_test_of_the_chart_passes(install: Install) -> None:
    process = install.box.run(install.test, install.test.main)
    said, _ = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 0, said
    served, chat, stream = said.splitlines()
    assert served.startswith("ok: serves demo")
    assert "Paris" in chat
    assert re.fullmatch(r"ok: demo streams \d+ events", stream)


def test_without_values_the_api_wants_the_key_of_the_release(install: Install) -> None:
    script = 'printf conch_wrong >/tmp/key; CONCH_KEY_FILE=/tmp/key exec "$@"'
    process = install.box.run(
        install.test, install.test.main, ["sh", "-c", script, "sh", *install.test.main["command"]]
    )
    said, _ = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 1
    assert "/v1/models: 401 " in said


def test_41_the_test_of_the_chart_fails_for_a_model_that_is_not_served(install: Install) -> None:
    command = [*install.test.main["command"], "other"]
    process = install.box.run(install.test, install.test.main, command)
    said, _ = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 1
    assert "failed: GET /v1/models: other are missing in demo" in said


def test_38_39_scraped_metrics_have_every_name_in_alerts_and_dashboards(install: Install) -> None:
    texts = []
    for pod, port_name in ((install.frontend, "operations"), (install.model, "metrics")):
        [port] = [each["containerPort"] for each in pod.main["ports"] if each["name"] == port_name]
        wait_until(partial(_has_metrics, install, port), "metrics of ours are there")
        texts.append(_metrics(install, port))
    exported = set(NAME.findall("\n".join(texts)))
    asked = {name for text in expressions(install.box.rendered) for name in NAME.findall(text)}
    assert len(asked) > 20
    assert asked <= exported
    assert "conch_requests_in_flight" in exported, "what KEDA asks for"


def test_the_operations_port_opens_no_admin_routes_without_keys(install: Install) -> None:
    assert install.box.fetch("http://127.0.0.1:9000/health/ready") is not None
    assert install.box.fetch("http://127.0.0.1:8000/metrics") is None, "metrics are not on the API's port"


def test_45_excess_requests_are_refused_at_once_with_retry_after(install: Install) -> None:
    limits = {"maxInFlight": 1, "maxQueueWaitSeconds": 0.01, "requestsPerMinute": 2}
    [frontend] = [pod for pod in pods(render({"frontend": {"limits": limits}})) if pod.owner == install.frontend.owner]
    words = [*frontend.main["command"], *frontend.main["args"], "--port=8100", "--admin-port=9100"]
    process = install.box.run(frontend, frontend.main, words)
    wait_until(lambda: install.box.fetch("http://127.0.0.1:9100/health/ready") is not None, "the frontend is ready")
    url = "http://127.0.0.1:8100"
    said, _ = _client(install, url, _CROWD).communicate(timeout=DEADLINE_S)
    assert said.count("\n") == 3, said
    whole, full, spent = said.splitlines()
    assert whole == "data: [DONE]"
    assert re.fullmatch("503 [1-9][0-9]*", full), "the model is full"
    assert re.fullmatch("429 [1-9][0-9]*", spent), "the caller has had its share"
    process.send_signal(signal.SIGTERM)
    assert process.wait(DEADLINE_S) == 0


def test_44_a_frontend_finishes_its_streams_after_sigterm(install: Install) -> None:
    clients = [streaming(install) for _ in range(NUM_STREAMS)]
    install.api.send_signal(signal.SIGTERM)
    for client in clients:
        assert_whole(client)
    assert install.api.wait(DEADLINE_S) == 0, "it ends by itself, with status 0"


def test_22_triton_finishes_its_requests_before_sigterm(install: Install) -> None:
    words = install.model.main["lifecycle"]["preStop"]["exec"]["command"]
    words = [re.sub("--notice-s=.*", "--notice-s=1", word) for word in words]
    said, _ = install.box.run(install.model, install.model.main, words).communicate(timeout=DEADLINE_S)
    assert said == "ok: nothing runs at 127.0.0.1:8001 any more\n"
    install.triton.send_signal(signal.SIGTERM)
    install.triton.wait(DEADLINE_S)


def streaming(install: Install, url: str = "http://demo-frontend:8000") -> subprocess.Popen[str]:
    """Start a stream, through the Service; return its client when the first event is there."""
    client = _client(install, url)
    assert client.stdout is not None
    assert client.stdout.readline().startswith("data: ")
    return client


def assert_whole(client: subprocess.Popen[str]) -> None:
    """Check that a stream went on to its end."""
    said, _ = client.communicate(timeout=DEADLINE_S)
    lines = [line for line in said.splitlines() if line]
    assert lines[-1] == "data: [DONE]", lines[-3:]
    assert not [line for line in lines if '"error"' in line]
    assert '"finish_reason":"length"' in said.replace(": ", ":")


def _client(install: Install, url: str, program: str = "") -> subprocess.Popen[str]:
    messages = [{"role": "user", "content": "Count from 1 to 20."}]
    body = {"model": "demo", "messages": messages, "max_tokens": 200, "ignore_eos": True, "stream": True}
    words = ["python3", "-c", program or _CLIENT, f"{url}/v1/chat/completions", json.dumps(body)]
    return install.box.run(install.test, install.test.main, words)


_ASK = """
import json, os, sys, urllib.error, urllib.request as u
headers = {"Content-Type": "application/json", "x-api-key": open(os.environ["CONCH_KEY_FILE"]).read()}
def ask(**fields):
    body = json.dumps(json.loads(sys.argv[2]) | fields).encode()
    try:
        return u.urlopen(u.Request(sys.argv[1], body, headers))
    except urllib.error.HTTPError as refused:
        return refused
"""
_CLIENT = f"""{_ASK}
for line in ask():
    sys.stdout.write(line.decode()); sys.stdout.flush()
"""
# One process, since another could come too late. It asks for one token at a time until its share is used up: on a slow
# machine the share, which fills again in half a minute, would never be used up by longer answers.
_CROWD = f"""{_ASK}
running = ask(max_tokens=400)  # long enough for the next request to meet it
running.readline()
full = ask()
print(running.read().decode().split("\\n\\n")[-2])
print(full.status, full.headers["Retry-After"])
spent = next(answer for answer in iter(lambda: ask(max_tokens=1), None) if answer.read() and answer.status == 429)
print(spent.status, spent.headers["Retry-After"])
"""


def _has_metrics(install: Install, port: int) -> bool:
    return "conch_" in _metrics(install, port)


def _metrics(install: Install, port: int) -> str:
    return install.box.fetch(f"http://127.0.0.1:{port}/metrics") or ""
