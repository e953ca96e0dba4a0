"""Runs rendered containers as plain processes: their own command, environment, user, volumes and read-only root.

Linux namespaces stand in for a container engine: one network namespace for all pods, in which the names of Services are
names of loopback, and a mount namespace for each container.
"""

from __future__ import annotations

import base64
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.helm.chart import CHART, NAMESPACE, PodTemplate, Rendered
from tests.waiting import wait_until

_RUN = Path(__file__).parent / "run_container.sh"
_PATH = f"{sys.prefix}/bin:/usr/bin:/bin"


def why_impossible() -> str:
    """Return what keeps containers from being run so; empty: nothing."""
    if os.geteuid() != 0:
        return "needs root, for namespaces"
    done = subprocess.run(["unshare", "--net", "--mount", "mount", "-t", "tmpfs", "x", "/mnt"], capture_output=True)
    return "" if done.returncode == 0 else f"namespaces cannot be made here: {done.stderr.decode()}"


@dataclass
class Sandbox:
    """Where the pods of a release run."""

    rendered: Rendered
    folder: Path
    holder: subprocess.Popen[bytes]
    started: list[subprocess.Popen[str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._nsswitch.write_text("passwd: files\ngroup: files\nhosts: files\n")  # no name server is asked
        names = [each["metadata"]["name"] for each in self.rendered.of_kind("Service")]
        known = " ".join(f"{name} {name}.{NAMESPACE}.svc" for name in names)
        self._hosts.write_text(f"127.0.0.1 localhost {known}\n")

    def run(self, pod: PodTemplate, container: dict[str, Any], command: Iterable[str] = ()) -> subprocess.Popen[str]:
        """Start a container, or another command in it, as a probe or a hook is run."""
        words = [*command] or [*container["command"], *container.get("args", [])]
        root = self._new_folder("root")
        environment = {"PATH": _PATH} | {each["name"]: self._value_of(each) for each in container.get("env", [])}
        words = [word.replace("$(POD_IP)", environment.get("POD_IP", "")) for word in words]
        (env_file := self._new_folder("env") / "env").write_text("".join(f"{k}={v}\n" for k, v in environment.items()))
        variables = {
            "PATH": os.environ["PATH"],
            "ROOT": str(root),
            "ENV_FILE": str(env_file),
            "HOSTS": str(self._hosts),
            "NSSWITCH": str(self._nsswitch),
            "READABLE": " ".join(_python_folders()),
            "VOLUMES": " ".join(self._volumes(pod, container)),
            "SHM": _shared_memory(pod),
        }
        user = str(pod.spec["securityContext"]["runAsUser"])
        namespaces = ["nsenter", f"--net=/proc/{self.holder.pid}/ns/net", "unshare", "--mount"]
        process = subprocess.Popen(
            [*namespaces, "bash", str(_RUN), user, *words],
            env=variables,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.started.append(process)
        return process

    def _value_of(self, variable: dict[str, Any]) -> str:
        """Return the value of an environment variable, which may come from a Secret; the pod's address is loopback."""
        if "value" in variable:
            return str(variable["value"])
        if "fieldRef" in variable["valueFrom"]:
            return "127.0.0.1"
        named = variable["valueFrom"]["secretKeyRef"]
        return _bytes(self.rendered.one("Secret", named["name"])["data"][named["key"]], "Secret").decode()

    def probe(self, pod: PodTemplate, probe: dict[str, Any]) -> bool:
        """Run a probe once; return whether it succeeded."""
        if "exec" in probe:
            process = self.run(pod, pod.main, probe["exec"]["command"])
            process.communicate(timeout=probe["timeoutSeconds"])
            return process.returncode == 0
        ports = {port["name"]: port["containerPort"] for port in pod.main["ports"]}
        target = probe["httpGet"]
        url = f"http://127.0.0.1:{ports[target['port']]}{target['path']}"
        code = "import sys, urllib.request; urllib.request.urlopen(sys.argv[1], timeout=10)"
        inside = ["nsenter", f"--net=/proc/{self.holder.pid}/ns/net"]
        return subprocess.run([*inside, sys.executable, "-c", code, url], capture_output=True).returncode == 0

    def _new_folder(self, kind: str) -> Path:
        folder = self.folder / f"{kind}-{len(list(self.folder.iterdir()))}"
        folder.mkdir()
        return folder

    @property
    def _hosts(self) -> Path:
        return self.folder / "hosts"

    @property
    def _nsswitch(self) -> Path:
        return self.folder / "nsswitch.conf"

    def _volumes(self, pod: PodTemplate, container: dict[str, Any]) -> Iterator[str]:
        volumes = {volume["name"]: volume for volume in pod.spec["volumes"]}
        for mount in container["volumeMounts"]:
            if mount["mountPath"] != "/dev/shm":
                yield f"{self._folder_of(pod, volumes[mount['name']])}:{mount['mountPath']}"

    def _folder_of(self, pod: PodTemplate, volume: dict[str, Any]) -> Path:
        """Return the folder of a volume, which a pod's containers share."""
        folder = self.folder / pod.owner.replace("/", "-") / volume["name"]
        if not folder.is_dir():
            folder.mkdir(parents=True)
            for name, content in _files_of(self.rendered, volume).items():
                (folder / name).write_bytes(content)
            os.chown(folder, 0, pod.spec["securityContext"]["fsGroup"])
            folder.chmod(0o775)
        return folder


@contextmanager
def sandbox(rendered: Rendered, folder: Path) -> Iterator[Sandbox]:
    """Make the namespace, and end everything in it at the end of the block."""
    holder = subprocess.Popen(["unshare", "--net", "sleep", "infinity"])
    made = Sandbox(rendered, folder, holder)
    try:
        ready = ["nsenter", f"--net=/proc/{holder.pid}/ns/net", "ip", "link", "set", "lo", "up"]
        wait_until(lambda: _is_in_namespace(holder.pid), "the network namespace is there")
        subprocess.run(ready, check=True)
        yield made
    finally:
        for pid in _processes_in_namespace_of(holder.pid):  # as the end of a container ends what it has started
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for process in made.started:
            process.communicate()
        holder.wait()


def _is_in_namespace(pid: int) -> bool:
    return _namespace(pid) != _namespace(os.getpid())


def _processes_in_namespace_of(pid: int) -> list[int]:
    return [int(each.name) for each in Path("/proc").glob("[0-9]*") if _namespace(int(each.name)) == _namespace(pid)]


def _namespace(pid: int) -> str:
    try:
        return os.readlink(f"/proc/{pid}/ns/net")
    except OSError:  # it has ended
        return ""


def _files_of(rendered: Rendered, volume: dict[str, Any]) -> dict[str, bytes]:
    """Return what a ConfigMap or a Secret puts into a volume."""
    for kind, key in (("ConfigMap", "configMap"), ("Secret", "secret")):
        if key in volume:
            found = rendered.one(kind, volume[key].get("name") or volume[key]["secretName"])
            paths = {item["key"]: item["path"] for item in volume[key].get("items", [])} or {
                name: name for name in found["data"]
            }
            return {path: _bytes(found["data"][name], kind) for name, path in paths.items()}
    return {}


def _bytes(text: str, kind: str) -> bytes:
    return base64.b64decode(text) if kind == "Secret" else text.encode()


def _shared_memory(pod: PodTemplate) -> str:
    sizes = [volume["emptyDir"]["sizeLimit"] for volume in pod.spec["volumes"] if volume["name"] == "shared-memory"]
    return sizes[0].removesuffix("i").lower() if sizes else "64m"


def _python_folders() -> list[str]:
    """Return where this Python and what it imports are."""
    folders = {Path(sys.prefix), Path(sys.base_prefix), CHART.parent, *(Path(each) for each in sys.path if each)}
    found = sorted({each.resolve() for each in folders if each.is_dir()} | {Path(sys.prefix)})
    outermost = [each for each in found if not any(other in each.parents for other in found)]
    return [str(each) for each in outermost if not str(each).startswith("/usr")]
