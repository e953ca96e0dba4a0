"""The start script of a group of nodes, with the real SSH server and client on loopback and a double of mpirun."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.helm.chart import CHART

SCRIPT = CHART / "files" / "start-ranks.sh"
DOUBLES = Path(__file__).parent / "doubles"
RANKS_PER_NODE = 2
PATIENCE_S = 60

pytestmark = pytest.mark.skipif(
    not Path("/usr/sbin/sshd").exists() or not Path("/usr/bin/ssh").exists(),
    reason="needs the Debian packages openssh-server and openssh-client",
)


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

    def start(self, index: int, *command: str, key: Path | None = None) -> subprocess.Popen[str]:
        """Start what the pod of this index runs."""
        self.folder.mkdir(exist_ok=True)
        hosts = self.folder / "hosts"
        names = {worker: f"{self.leader_address.replace('.', f'-{worker}.', 1)}" for worker in range(1, self.num_nodes)}
        hosts.write_text("".join(f"Host {name}\n  HostName {self.address(n)}\n" for n, name in names.items()))
        environment = {
            "PATH": f"{DOUBLES}:{os.environ['PATH']}",
            "HOME": str(self.folder),
            "TMPDIR": str(self.folder),
            "LWS_LEADER_ADDRESS": self.leader_address,
            "LWS_GROUP_SIZE": str(self.num_nodes),
            "LWS_WORKER_INDEX": str(index),
            "CONCH_NUM_RANKS": str(RANKS_PER_NODE * self.num_nodes),
            "CONCH_RANKS_PER_NODE": str(RANKS_PER_NODE),
            "CONCH_START_TIMEOUT_S": "30",
            "CONCH_FORWARDED": "NCCL_IB_HCA RANKS_FOLDER",
            "CONCH_SSH_PORT": str(self.port),
            "CONCH_SSH_ADDRESS": self.address(index),
            "CONCH_SSH_KEY": str(key or self.key),
            "NCCL_IB_HCA": "mlx5",
            "RANKS_FOLDER": str(self.folder),
            "FAKE_HOSTS": str(hosts),
        }
        process = subprocess.Popen(
            ["/bin/bash", str(SCRIPT), *command],
            env=environment | self.environment,
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
        wait_until(lambda: all(file.is_file() and file.read_text() for file in files))
        return {rank: file.read_text().split() for rank, file in enumerate(files)}

    def end(self) -> None:
        """End everything that was started."""
        for process in self.running:
            for pid in (*_descendants(process.pid), process.pid):  # an SSH server's have process groups of their own
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            process.communicate()


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two private keys. A server that root starts wants a folder that Debian's own unit makes."""
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
    folder = tmp_path_factory.mktemp("keys")
    for name in ("ours", "theirs"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / name], check=True)
    return [folder / "ours", folder / "theirs"]


@pytest.fixture
def groups(keys: list[Path], tmp_path: Path) -> Iterator[list[Group]]:
    """Two groups; nothing of them runs yet, and nothing is left of them."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    both = [Group(number, tmp_path / f"group-{number}", keys[0], port) for number in range(2)]
    yield both
    for group in both:
        group.end()


def wait_until(is_so) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not is_so():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.02)


def test_each_leader_starts_the_ranks_of_its_own_group(groups: list[Group]) -> None:
    for group in groups:
        group.start(1)
        group.start(0, "sh", "-c", 'echo "$NCCL_IB_HCA" > "$RANKS_FOLDER/served"; exec sleep 60')
    for group in groups:
        ranks = group.ranks()
        assert {words[1] for words in ranks.values()} == {"4"}
        assert {words[-1] for words in ranks.values()} == {"mlx5"}, "variables of the network reach every rank"
        assert [ranks[rank][2] for rank in (0, 1)] == ["leader", "leader"]
        for rank in (2, 3):  # SSH_CONNECTION: client's address and port, server's address and port
            assert ranks[rank][4:6] == [group.address(1), str(group.port)]
        wait_until((group.folder / "served").is_file)


def test_the_leader_waits_for_a_worker_that_comes_later(groups: list[Group]) -> None:
    leader = groups[0].start(0, "sleep", "60")
    assert leader.stdout is not None
    assert leader.stdout.readline() == "waiting for demo-llama-0-1.demo-llama.serving\n"
    groups[0].start(1)
    assert len(groups[0].ranks()) == 4


@pytest.mark.parametrize("node", [0, 1], ids=["on the leader's node", "on a worker's"])
def test_the_leader_ends_when_a_rank_dies(groups: list[Group], node: int) -> None:
    group = groups[0]
    worker = group.start(1)
    leader = group.start(0, "sleep", "60")
    group.ranks()
    killed = leader if node == 0 else worker
    wait_until(lambda: ranks_below(killed.pid))
    os.kill(ranks_below(killed.pid)[0], signal.SIGKILL)
    assert leader.wait(PATIENCE_S) != 0


def test_a_worker_that_never_comes_is_named_after_a_bounded_wait(groups: list[Group]) -> None:
    groups[0].environment["CONCH_START_TIMEOUT_S"] = "1"
    said, _ = groups[0].start(0, "true").communicate(timeout=PATIENCE_S)
    assert "error: not reached within 1 s: demo-llama-0-1.demo-llama.serving" in said
    assert "a group needs 2 nodes" in said
    assert groups[0].running[0].returncode == 1


def test_a_worker_of_another_release_is_not_reached(groups: list[Group], keys: list[Path]) -> None:
    groups[0].environment["CONCH_START_TIMEOUT_S"] = "2"
    groups[0].start(1, key=keys[1])
    said, _ = groups[0].start(0, "true").communicate(timeout=PATIENCE_S)
    assert "error: not reached within 2 s: demo-llama-0-1" in said


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({"CONCH_NUM_RANKS": "5"}, "error: 5 ranks are not 2 on each of 2 nodes"),
        ({"CONCH_SSH_KEY": "/nowhere"}, "error: /nowhere: cannot be read: multinode.sshKeySecret must have the key"),
        ({"CONCH_SSH_KEY": "/etc/hostname"}, "error: /etc/hostname: not a private SSH key without a passphrase"),
    ],
)
def test_what_is_wrong_is_said_before_anything_is_started(
    groups: list[Group], environment: dict[str, str], message: str
) -> None:
    groups[0].environment |= environment
    said, _ = groups[0].start(0, "true").communicate(timeout=PATIENCE_S)
    assert message in said
    assert groups[0].running[0].returncode == 1


def _descendants(pid: int) -> list[int]:
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:  # it has ended
        return []
    return [found for child in children for found in (int(child), *_descendants(int(child)))]


def ranks_below(pid: int) -> list[int]:
    """Return the ranks that work below a process."""
    with contextlib.suppress(OSError):
        return [each for each in _descendants(pid) if Path(f"/proc/{each}/comm").read_text() == "sleep\n"]
    return []
