"""The choice of a tritonserver, and its command line."""

from __future__ import annotations

import stat
import sys
import sysconfig
from pathlib import Path

import pytest

from frontend.launcher.errors import LaunchError
from frontend.launcher.libpython import LIBRARY, libpython_dir
from frontend.launcher.triton_server import find_triton, triton_folder

NOWHERE = Path("/nowhere/tritonserver")


def program(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch(mode=0o755)
    return path


def test_a_named_server_that_is_no_program_is_refused(tmp_path):
    with pytest.raises(LaunchError, match=f"^--tritonserver={tmp_path}: expected a program that can be run$"):
        find_triton(tmp_path, tmp_path, {})


def test_a_server_on_path_comes_before_the_usual_place(tmp_path):
    on_path, full = program(tmp_path / "a" / "tritonserver"), program(tmp_path / "b" / "tritonserver")
    assert find_triton(None, tmp_path, {"PATH": str(on_path.parent)}, full=full).binary == on_path
    assert find_triton(None, tmp_path, {"PATH": str(tmp_path)}, full=full).binary == full


def test_a_full_server_uses_the_backends_of_its_own_tree(tmp_path):
    named = program(tmp_path / "bin" / "tritonserver")
    assert find_triton(named, tmp_path, {}).backend_dir is None
    (tmp_path / "backends").mkdir()
    installation = find_triton(named, tmp_path, {})
    assert installation.backend_dir == tmp_path / "backends"
    assert "LD_LIBRARY_PATH" not in installation.environment


def test_the_server_of_the_wheel_gets_its_libraries_and_its_backend(tmp_path):
    installation = find_triton(None, tmp_path, {"PATH": "/bin", "LD_LIBRARY_PATH": "/mine"}, full=NOWHERE)
    assert installation.binary.parts[-4:] == ("pytriton", "tritonserver", "bin", "tritonserver")
    folders = [Path(folder) for folder in installation.environment["LD_LIBRARY_PATH"].split(":")]
    assert any(folders[0].glob("libcudart*"))
    assert (libpython_dir() is None) == (len(folders) == 2)
    assert folders[-1] == Path("/mine")
    backend = tmp_path / "backends" / "python"
    assert installation.backend_dir == Path("backends")
    assert {"libtriton_python.so", "triton_python_backend_stub"} <= {path.name for path in backend.iterdir()}
    assert all(path.exists() for path in backend.iterdir()), "no link leads nowhere"


def test_the_folder_is_made_anew_at_every_start_for_its_user_alone(tmp_path):
    for _ in range(2):
        folder = triton_folder(tmp_path, tmp_path)
        find_triton(None, folder, {"PATH": "/bin"}, full=NOWHERE)
        stub, module = folder / "backends" / "python" / "triton_python_backend_stub", folder / "json.py"
        assert stub.exists() and not module.exists()
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        stub.unlink()  # as after an environment that was made anew elsewhere
        module.touch()  # a stage would import it


def test_stages_run_in_this_environment(tmp_path):
    environment = find_triton(None, tmp_path, {"PATH": "/bin", "KEPT": "as it is"}, full=NOWHERE).environment
    assert environment["KEPT"] == "as it is"
    if sys.prefix != sys.base_prefix:
        assert environment["PATH"] == f"{sys.prefix}/bin:/bin"


@pytest.mark.parametrize("place", ["sys.prefix", "frontend.launcher.triton_server._CODE"])
def test_code_that_tritons_python_cannot_import_is_named(place, tmp_path, monkeypatch):
    monkeypatch.setattr(place, "/home/jürgen/conch")
    with pytest.raises(LaunchError, match=r"^/home/jürgen/conch: .* a letter outside ASCII: move it"):
        find_triton(None, tmp_path, {})


def test_a_missing_wheel_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setattr("frontend.launcher.triton_server.why_unusable", lambda: None)
    with pytest.raises(LaunchError, match="nvidia-pytriton"):
        find_triton(None, tmp_path, {}, full=NOWHERE)


def test_the_server_of_the_wheel_is_refused_beside_numpy_2(tmp_path, monkeypatch):
    """Its Python backend was built for numpy 1: the first text of a request ended the stage with SIGABRT."""
    (tmp_path / "numpy-2.3.5.dist-info").mkdir()
    (tmp_path / "numpy-2.3.5.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: numpy\nVersion: 2.3.5\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(LaunchError, match=r"^numpy 2\.3\.5: the server of nvidia-pytriton needs a numpy below 2$"):
        find_triton(None, tmp_path, {}, full=NOWHERE)


def test_the_library_of_this_python_is_where_it_is_said_to_be():
    folder = libpython_dir()
    assert folder is None or (folder / LIBRARY).is_file()


def test_a_folder_that_cannot_be_searched_has_no_library(monkeypatch):
    """Such a folder was a traceback. The name stands for one without permission: root may search all."""
    monkeypatch.setattr("sys.base_prefix", "x" * 256)
    assert libpython_dir() in (None, Path(sysconfig.get_config_var("LIBDIR")))
