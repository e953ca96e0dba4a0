"""`rm`: removes models from the store."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
from huggingface_hub import constants

from build_engines.__main__ import main
from build_engines.lock import lock_path, locked
from tests.build_engines.serving_home import serving
from tests.build_engines.stand_in_hub import share


@pytest.fixture
def home(checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    """A home with two artifacts of `tiny` and one of `other`. The last build serves one artifact of each model."""
    words = ["--checkpoint", str(checkpoint), "--home", str(tmp_path / "home")]
    assert main(["pull", "tiny", "--precision", "q8_0", *words]) == 0
    models = tmp_path / "models.yaml"
    models.write_text(f"models: {{tiny: {{checkpoint: {checkpoint}}}, other: {{checkpoint: {checkpoint}}}}}")
    assert main(["build", str(models), "--home", str(tmp_path / "home")]) == 0
    capsys.readouterr()
    return tmp_path / "home"


def names(home: Path) -> list[str]:
    """Return the models of the store, one for each artifact."""
    return sorted(path.name.partition("-")[0] for path in home.glob("artifacts/[!.]*/"))


def test_a_model_goes_with_all_its_artifacts_and_out_of_the_last_build(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["rm", "tiny", "--home", str(home)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.startswith(f"removed     {home / 'artifacts'}/tiny-") for line in lines] == [True, True]
    assert all(line.endswith(" MB") for line in lines)
    assert names(home) == ["other"]
    left = {path.parent.name.partition("__")[0] for path in home.glob("repository/*/config.pbtxt")}
    assert left == {"other", "conch"}  # the latter is the arbiter


def test_one_artifact_of_several_goes_by_its_folder(home: Path) -> None:
    [unused] = {path for path in home.glob("artifacts/tiny-*/")} - {
        path
        for path in home.glob("artifacts/tiny-*/")
        if str(path) in (home / "repository/tiny/config.pbtxt").read_text()
    }
    assert main(["rm", unused.name, "--home", str(home)]) == 0
    assert names(home) == ["other", "tiny"]
    assert (home / "repository" / "tiny" / "config.pbtxt").exists()


def test_a_served_model_is_refused_and_nothing_is_removed(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with serving(home, "tiny") as url:
        assert main(["rm", "other", "tiny", "--home", str(home)]) == 1
    assert capsys.readouterr().err == f"error: tiny: {url} serves it; `conch stop 8123` stops that server\n"
    assert names(home) == ["other", "tiny", "tiny"]


def test_an_artifact_of_a_served_model_that_is_not_served_itself_goes(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`list` showed both as served, and `rm` refused both."""
    served, unused = (path.name for path in sorted(home.glob("artifacts/tiny-*/")))
    with serving(home, "tiny", artifacts=[served]) as url:
        assert main(["rm", unused, "--home", str(home)]) == 0
        assert main(["rm", "tiny", "--home", str(home)]) == 1
        (home / "artifacts" / served / "manifest.json").write_text("{}")  # of a later version
        assert main(["rm", served, "--home", str(home)]) == 1
    assert capsys.readouterr().err == f"error: tiny: {url} serves it; `conch stop 8123` stops that server\n" * 2
    assert names(home) == ["other", "tiny"]


def test_an_artifact_that_a_build_uses_is_refused(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    [artifact] = home.glob("artifacts/other-*/")
    with locked(lock_path(artifact), "builds it"):
        assert main(["rm", "other", "--home", str(home)]) == 1
    assert capsys.readouterr().err == f"error: {artifact.name}: a build is using it\n"


@pytest.mark.parametrize(("name", "hint"), [("othr", "did you mean other?"), ("nope", "`conch list` shows the models")])
def test_an_unknown_model_is_refused(name: str, hint: str, home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rm", name, "--home", str(home)]) == 1
    assert capsys.readouterr().err == f"error: {name}: not in the store; {hint}\n"


@pytest.mark.parametrize("is_shared", [False, True])
def test_downloads_of_the_hub_are_named_or_removed(
    checkpoint: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    *,
    is_shared: bool,
) -> None:
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    blobs = tmp_path / "cache" / "models--org--tiny" / "blobs"
    blobs.mkdir(parents=True)
    weights = (checkpoint / "model.safetensors").read_bytes()
    blob = blobs / hashlib.sha256(weights).hexdigest()
    blob.write_bytes(weights)
    if is_shared:
        share(blob)
    (blobs / ("0" * 64)).touch()
    for options, word in (([], "kept        "), (["--downloads"], "removed     ")):
        assert main(["pull", "tiny", "--checkpoint", str(checkpoint), "--home", str(tmp_path)]) == 0
        capsys.readouterr()
        assert main(["rm", "tiny", "--home", str(tmp_path), *options]) == 0
        assert capsys.readouterr().out.splitlines()[1].startswith(f"{word}{blobs.parent}: 0.1 MB of downloads")
    left = [path.name for path in (tmp_path / "cache").rglob("*") if not path.is_dir()]
    assert left == ["0" * 64]


def test_a_link_to_a_users_file_frees_nothing(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["pull", "tiny", "--checkpoint", str(checkpoint), "--home", str(tmp_path)]) == 0
    [weights] = tmp_path.glob("artifacts/tiny-*/model.gguf")
    (tmp_path / "users.gguf").hardlink_to(weights)
    capsys.readouterr()
    assert main(["rm", "tiny", "--home", str(tmp_path)]) == 0
    assert capsys.readouterr().out.endswith(": 0.0 MB\n")
    assert (tmp_path / "users.gguf").stat().st_size > 100_000
