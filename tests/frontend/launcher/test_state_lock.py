"""The folders of running servers, and their locks."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from frontend.__main__ import main
from frontend.launcher.state_lock import locked, server_folder
from model_repository.system.home import conch_home
from model_repository.system.lock_file import write_holder
from model_repository.system.running_servers import running_servers


@pytest.mark.parametrize(
    ("variables", "home"),
    [
        ({"CONCH_HOME": "/a", "XDG_DATA_HOME": "/b"}, Path("/a")),
        ({"XDG_DATA_HOME": "/b"}, Path("/b/conch")),
        ({"CONCH_HOME": ""}, Path.home() / ".local" / "share" / "conch"),
    ],
)
def test_the_home_is_the_users_unless_a_variable_names_one(variables: dict[str, str], home: Path) -> None:
    assert conch_home(variables) == home


def test_a_server_is_known_while_its_lock_is_held(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = server_folder(tmp_path, 8123)
    with locked(folder) as file:
        write_holder(file, url="http://127.0.0.1:8123", models=["org/a"])
        [server] = running_servers(tmp_path)
        assert (server.pid, server.folder, server.models) == (os.getpid(), folder, ("org/a",))
        assert server.port == 8123
        assert main(["stop", "9", f"--home={tmp_path}"]) == 1
        assert "9: no server with this port or process id" in capsys.readouterr().err
    assert list(running_servers(tmp_path)) == []
    assert main(["stop", f"--home={tmp_path}"]) == 1


def test_the_folder_of_a_process_that_has_ended_goes(tmp_path: Path) -> None:
    left, own = tmp_path / "servers" / "pid-99999999", server_folder(tmp_path, 0)
    left.mkdir(parents=True)
    own.mkdir()
    assert server_folder(tmp_path, 0) == own == tmp_path / "servers" / f"pid-{os.getpid()}"
    assert not left.exists() and own.exists()
