"""The folders of running servers, and their locks."""

from __future__ import annotations

import os
from contextlib import ExitStack
from pathlib import Path

import pytest

from frontend.__main__ import main
from frontend.launcher.state_lock import server_lock
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
    with server_lock(tmp_path, "8123", is_shared=False) as file:
        folder = Path(file.name).parent
        assert list(running_servers(tmp_path)) == [], "it has no address yet"
        write_holder(file, url="http://127.0.0.1:8123", models=["org/a"])
        [server] = running_servers(tmp_path)
        assert (server.pid, server.folder, server.models) == (os.getpid(), folder, ("org/a",))
        assert server.port == 8123
        assert main(["stop", "9", f"--home={tmp_path}"]) == 1
        assert "9: no server with this port or process id" in capsys.readouterr().err
    assert list(running_servers(tmp_path)) == []
    assert main(["stop", f"--home={tmp_path}"]) == 1


def test_servers_on_any_port_have_the_first_folder_that_is_free(tmp_path: Path) -> None:
    def names() -> list[str]:
        with ExitStack() as stack:
            locks = [stack.enter_context(server_lock(tmp_path, "any", is_shared=True)) for _ in range(2)]
            return [Path(lock.name).parent.name for lock in locks]

    assert [names(), names()] == [["any", "any-2"]] * 2
