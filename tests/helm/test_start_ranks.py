"""The start script of a group of nodes, with the real SSH server and client on loopback and a double of mpirun."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.helm.node_group import Group, descendants, heard, ranks_below, tell
from tests.waiting import DEADLINE_S, wait_until

pytestmark = [
    pytest.mark.usefixtures("servers"),
    pytest.mark.skipif(
        not Path("/usr/sbin/sshd").exists() or not Path("/usr/bin/ssh").exists(),
        reason="needs the Debian packages openssh-server and openssh-client",
    ),
]


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


def test_each_leader_starts_the_ranks_of_its_own_group_once_its_workers_are_there(groups: list[Group]) -> None:
    awkward = """mlx5_0:1,'"$x\\;`"""
    for number, group in enumerate(groups):
        command = ("sh", "-c", 'touch "$RANKS_FOLDER/served"; exec sleep 60')
        leader = group.start(0, *command, NCCL_IB_HCA=awkward, HOST_IP=f"10.0.{number}.1")
        heard(leader, f"waiting for demo-llama-{number}-1.demo-llama.serving")
        group.start(1, NCCL_IB_HCA=awkward, HOST_IP=f"10.0.{number}.2")
    for number, group in enumerate(groups):
        ranks = group.ranks()
        assert {words[1] for words in ranks.values()} == {"4"}
        assert [ranks[rank][2] for rank in (0, 1)] == ["leader", "leader"]
        for rank in (2, 3):  # SSH_CONNECTION: client's address and port, server's address and port
            assert ranks[rank][4:6] == [group.address(1), str(group.port)]
        # Each rank has the environment of its own pod.
        assert [words[-2:] for words in ranks.values()] == [[awkward, f"10.0.{number}.{node}"] for node in (1, 1, 2, 2)]
        wait_until((group.folder / "served").is_file, "rank 0 runs the command")


def test_a_worker_listens_on_every_address_of_its_pod(groups: list[Group]) -> None:
    worker = groups[0].start(1, CONCH_SSH_ADDRESS="")
    heard(worker, "waits for the leader")
    for address in ("127.0.0.1", "::1"):
        wait_until(partial(is_open, address, groups[0].port), f"it listens on {address}")


def test_the_leader_ends_when_a_rank_dies(groups: list[Group]) -> None:
    group = groups[0]
    worker, leader = group.start(1), group.start(0, "sleep", "60")
    group.ranks()
    wait_until(lambda: bool(ranks_below(worker.pid)), "there is a rank to kill")
    os.kill(ranks_below(worker.pid)[0], signal.SIGKILL)
    assert leader.wait(DEADLINE_S) != 0


def test_a_worker_stays_after_sigterm_until_the_leader_has_ended_its_ranks(groups: list[Group]) -> None:
    group = groups[0]
    worker, leader = group.start(1), group.start(0, "sleep", "60")
    group.ranks()
    wait_until(lambda: len(ranks_below(worker.pid)) == 2, "its ranks work")
    ranks = ranks_below(worker.pid)
    tell(worker, signal.SIGTERM)
    heard(worker, "worker 1 received SIGTERM and waits for the end of its ranks")
    wait_until(lambda: not is_open(group.address(1), group.port), "nobody else can reach it")
    assert set(ranks) <= set(ranks_below(worker.pid))
    assert (worker.poll(), leader.poll()) == (None, None)
    tell(leader, signal.SIGTERM)
    assert (leader.wait(DEADLINE_S), worker.wait(DEADLINE_S)) == (143, 0)


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGSTOP], ids=["is killed", "cannot be heard any more"])
def test_a_leader_that_is_gone_keeps_no_worker(groups: list[Group], end: signal.Signals) -> None:
    group = groups[0]
    worker = group.start(1, CONCH_SSH_ALIVE_S="1")
    leader = group.start(0, "sleep", "60")
    group.ranks()
    tell(worker, signal.SIGTERM)
    heard(worker, "waits for the end of its ranks")
    for pid in descendants(leader.pid):
        with contextlib.suppress(ProcessLookupError):  # the end of process 1 ends the others
            os.kill(pid, end)
    assert worker.wait(DEADLINE_S) == 0


def test_what_waits_for_others_ends_at_sigterm(groups: list[Group]) -> None:
    worker, leader = groups[0].start(1), groups[1].start(0, "sleep", "60")
    heard(worker, "waits for the leader")
    heard(leader, "waiting for")
    for process in (worker, leader):
        tell(process, signal.SIGTERM)
    said, _ = worker.communicate(timeout=DEADLINE_S)
    assert (worker.returncode, leader.wait(DEADLINE_S)) == (0, 143)
    assert "its ranks" not in said


def test_a_worker_that_never_comes_is_named_after_a_bounded_wait(groups: list[Group]) -> None:
    groups[0].environment["CONCH_START_TIMEOUT_S"] = "1"
    said, _ = groups[0].start(0, "true").communicate(timeout=DEADLINE_S)
    assert "error: not reached within 1 s: demo-llama-0-1.demo-llama.serving" in said
    assert "a group needs 2 nodes" in said
    assert groups[0].running[0].returncode == 1


def test_a_worker_of_another_release_is_not_reached(groups: list[Group], keys: list[Path]) -> None:
    groups[0].environment["CONCH_START_TIMEOUT_S"] = "1"
    groups[0].start(1, CONCH_SSH_KEY=str(keys[1]))
    said, _ = groups[0].start(0, "true").communicate(timeout=DEADLINE_S)
    assert "error: not reached within 1 s: demo-llama-0-1" in said


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({"CONCH_NUM_RANKS": "5"}, "error: 5 ranks are not 2 on each of 2 nodes"),
        ({"CONCH_SSH_KEY": "/nowhere"}, "error: /nowhere: cannot be read: multinode.sshKeySecret must have the key"),
        ({"CONCH_SSH_KEY": "/etc/hostname"}, "error: /etc/hostname: not a private SSH key without a passphrase"),
    ],
)
def test_a_wrong_environment_is_refused_before_a_start(
    groups: list[Group], environment: dict[str, str], message: str
) -> None:
    groups[0].environment |= environment
    said, _ = groups[0].start(0, "true").communicate(timeout=DEADLINE_S)
    assert message in said
    assert groups[0].running[0].returncode == 1


def is_open(address: str, port: int) -> bool:
    """Whether somebody listens there."""
    try:
        with socket.create_connection((address, port)):
            return True
    except ConnectionRefusedError:
        return False
