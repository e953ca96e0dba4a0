"""The checks before a server is started."""

from __future__ import annotations

import resource
import socket
from importlib import resources
from pathlib import Path
from types import SimpleNamespace

import pytest

from frontend.__main__ import main
from frontend.launcher.checks import PortChoice, check_machine, check_repository, free_ports
from frontend.launcher.errors import LaunchError
from tests.llama_packages import install_build

HOST = "127.0.0.1"


def test_the_default_shared_memory_of_a_container_is_too_small(monkeypatch):
    num_free = [64 * 2**20 // 4096, 65 * 2**20 // 4096]
    monkeypatch.setattr("os.statvfs", lambda path: SimpleNamespace(f_bavail=num_free.pop(0), f_frsize=4096))
    with pytest.raises(LaunchError, match=r"^/dev/shm has 64 MiB free: .* --shm-size"):
        check_machine()
    check_machine()


def test_a_repository_of_another_version_is_to_be_rendered_again(tmp_path):
    """Its stages imported modules that had other names: Triton said `No module named`."""
    stage = tmp_path / "demo__engine"
    (stage / "1").mkdir(parents=True)
    (stage / "config.pbtxt").touch()
    (tmp_path / "demo").mkdir()
    (tmp_path / "demo" / "config.pbtxt").touch()
    ours = resources.files("model_repository").joinpath("engine", "1", "model.py").read_text()
    (stage / "1" / "model.py").write_text(ours)
    with pytest.raises(LaunchError, match="conch__arbiter: another version"):
        check_repository(tmp_path)
    for name in ("conch__arbiter", "conch__loader1", "conch__loader2"):
        (tmp_path / name).mkdir()
    check_repository(tmp_path)
    (stage / "1" / "model.py").write_text(ours.replace("import", "from old import", 1))
    with pytest.raises(LaunchError, match=r"demo__engine: another version .*: `conch render --repository .* again$"):
        check_repository(tmp_path)


def test_a_temporary_folder_that_cannot_be_written_is_named(monkeypatch):
    """Triton aborted in the middle of its start."""
    monkeypatch.setattr("os.access", lambda path, mode: path != "/tmp")
    with pytest.raises(LaunchError, match=r"^/tmp cannot be written: Triton makes files there, "):
        check_machine()


@pytest.mark.parametrize(
    ("limit", "allowed", "message"),
    [
        (resource.RLIMIT_NOFILE, 64, r"^ulimit -n \(open files\) is 64: Triton needs at least 256, "),
        (resource.RLIMIT_AS, 1_500_000 * 1024, r"^ulimit -v \(KiB of addresses\) is 1500000: .* at least 3145728, "),
    ],
)
def test_a_limit_that_is_too_low_is_named(monkeypatch, limit, allowed, message):
    getrlimit = resource.getrlimit
    monkeypatch.setattr("resource.getrlimit", lambda asked: (allowed, 0) if asked == limit else getrlimit(asked))
    with pytest.raises(LaunchError, match=message):
        check_machine()


@pytest.mark.parametrize("words", [["serve", "demo"], ["triton", "--repository=r"], ["doctor"]])
def test_a_state_folder_that_cannot_be_written_is_named(words: list[str], tmp_path: Path, capsys) -> None:
    (tmp_path / "file").touch()
    assert main([*words, f"--home={tmp_path}/file/state"]) in (1, 2)
    rule = f"--home={tmp_path}/file/state: {tmp_path}/file is not a folder that you may write to: name another"
    assert rule in "".join(capsys.readouterr())


def test_ports_that_are_chosen_are_free_and_different():
    ports = free_ports([PortChoice("--a", HOST, 0), PortChoice("--b", HOST, 0)])
    assert set(ports) == {"--a", "--b"}
    assert len(set(ports.values())) == 2


def test_a_port_that_is_named_is_never_chosen_for_another():
    with socket.create_server((HOST, 0)) as listener:
        named = listener.getsockname()[1]
    assert free_ports([PortChoice("--any", HOST, 0), PortChoice("--named", HOST, named)])["--named"] == named


def test_a_port_that_nobody_chose_gives_way():
    """A second server on a machine needed an option for each of its ports."""
    with socket.create_server((HOST, 0)) as listener:
        usual = listener.getsockname()[1]
        other = free_ports([PortChoice("--a", HOST, usual, is_chosen=False)])["--a"]
        assert other not in (0, usual)
    assert free_ports([PortChoice("--a", HOST, usual, is_chosen=False)]) == {"--a": usual}
    both = free_ports([PortChoice("--a", HOST, usual, is_chosen=False), PortChoice("--b", HOST, usual)])
    assert both["--b"] == usual != both["--a"]


def test_a_port_that_lingers_after_a_connection_counts_as_free():
    with socket.create_server((HOST, 0)) as listener:
        port = listener.getsockname()[1]
        with socket.create_connection((HOST, port)), listener.accept()[0]:
            pass
    assert free_ports([PortChoice("--a", HOST, port)]) == {"--a": port}


def test_an_address_that_is_not_this_machines_is_refused():
    with pytest.raises(LaunchError, match="--a chooses another port"):
        free_ports([PortChoice("--a", "192.0.2.1", 0)])


@pytest.mark.parametrize("command", ["serve", "triton"])
def test_two_builds_of_llama_cpp_end_the_start(command: str, tmp_path: Path, monkeypatch, capfd) -> None:
    """Each engine stage failed with an import error, or computed with the files of the other build."""
    for package in ("cyllama", "cyllama-vulkan"):
        install_build(tmp_path, package, monkeypatch)
    assert main([command, f"--repository={tmp_path}/none", f"--home={tmp_path}/home"]) == 1
    [line] = capfd.readouterr().err.splitlines()
    assert line.startswith("error: cyllama and cyllama-vulkan are installed, and share the folder cyllama: ")
