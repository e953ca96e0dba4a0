"""A group of fake nodes on loopback: what the pods of a LeaderWorkerSet run, as process 1 where that is possible."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

from tests.helm.chart import CHART
from tests.helm.sandbox import why_impossible
from tests.waiting import wait_until

SCRIPT = CHART / "files" / "start-ranks.sh"
DOUBLES = Path(__file__).parent / "doubles"
RANKS_PER_NODE = 2
AS_PROCESS_1 = [] if why_impossible() else ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]


@dataclass
class Group:
    """A leader and its workers, as the controller of LeaderWorkerSets makes them."""

    number: int
    folder: Path
    key: Path
    port: int
    num_nodes: int = 2
    environment: dict[str, str] = field(default_factory=dict)
    running: list[subprocess.Popen[str]] = field(default_factory=list)

    @property
    def leader_address(self) -> str:
        return f"demo-llama-{self.number}.demo-llama.serving"

    def address(self, index: int) -> str:
        """Of a node, on loopback."""
        return f"127.0.{self.number + 1}.{index + 1}"

    def start(self, index: int, *command: str, **environment: str) -> subprocess.Popen[str]:
        """Start what the pod of this index runs."""
        self.folder.mkdir(exist_ok=True)
        hosts = self.folder / "hosts"
        names = {worker: f"{self.leader_address.replace('.', f'-{worker}.', 1)}" for worker in range(1, self.num_nodes)}
        hosts.write_text("".join(f"Host {name}\n  HostName {self.address(n)}\n" for n, name in names.items()))
        ours = {
            "PATH": f"{DOUBLES}:{os.environ['PATH']}",
            "HOME": str(self.folder),
            "TMPDIR": str(self.folder),
            "LWS_LEADER_ADDRESS": self.leader_address,
            "LWS_GROUP_SIZE": str(self.num_nodes),
            "LWS_WORKER_INDEX": str(index),
            "CONCH_NUM_RANKS": str(RANKS_PER_NODE * self.num_nodes),
            "CONCH_RANKS_PER_NODE": str(RANKS_PER_NODE),
            "CONCH_START_TIMEOUT_S": "30",
            "CONCH_SSH_PORT": str(self.port),
            "CONCH_SSH_ADDRESS": self.address(index),
            "CONCH_SSH_KEY": str(self.key),
            "RANKS_FOLDER": str(self.folder),
            "FAKE_HOSTS": str(hosts),
        }
        process = subprocess.Popen(
            [*AS_PROCESS_1, "/bin/bash", str(SCRIPT), *command],
            env=ours | self.environment | environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self.running.append(process)
        return process

    def ranks(self) -> dict[int, list[str]]:
        """Return what each rank that runs has written, when all of them have."""
        files = [self.folder / f"rank-{rank}" for rank in range(RANKS_PER_NODE * self.num_nodes)]
        wait_until(lambda: all(file.is_file() and file.read_text() for file in files), "every rank runs")
        return {rank: file.read_text().split() for rank, file in enumerate(files)}

    def end(self) -> None:
        """End everything that was started."""
        for process in self.running:
            for pid in (*descendants(process.pid), process.pid):  # an SSH server's have process groups of their own
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            process.communicate()


def tell(process: subprocess.Popen[str], number: signal.Signals) -> None:
    """Send a signal to what a pod runs, as the kubelet does: to its process 1 alone."""
    pid = descendants(process.pid)[0] if AS_PROCESS_1 else process.pid
    os.kill(pid, number)


def heard(process: subprocess.Popen[str], words: str) -> None:
    """Read what a pod says until it has said something."""
    assert process.stdout is not None
    for line in process.stdout:
        if words in line:
            return
    raise AssertionError(f"it ended without a word of {words!r}")


def descendants(pid: int) -> list[int]:
    """Return the processes below a process, each before those below it."""
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:  # it has ended
        return []
    return [found for child in children for found in (int(child), *descendants(int(child)))]


def ranks_below(pid: int) -> list[int]:
    """Return the ranks that work below a process."""
    ranks = []
    for each in descendants(pid):
        with contextlib.suppress(OSError):  # it has just ended
            if Path(f"/proc/{each}/comm").read_text() == "sleep\n":
                ranks.append(each)
    return ranks
