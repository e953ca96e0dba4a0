"""`python -m frontend keys`, as a person uses it."""

from __future__ import annotations

from pathlib import Path

import pytest

from frontend.__main__ import main
from frontend.gateway.key_file import PREFIX, hash_of, read_keys


def test_add_prints_the_key_once_and_keeps_its_hash(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "keys.json"
    options = ["--role=admin", "--model=demo", "--model=my-org/*", "--project=p", "--max-concurrent=2"]
    assert main(["keys", "add", f"--file={file}", "--name=alice", "--expires-in-days=30", *options]) == 0
    out, err = capsys.readouterr()
    key = out.strip()
    assert key.startswith(PREFIX) and len(key) >= len(PREFIX) + 43
    assert key not in err
    assert key not in file.read_text()
    (kept,) = read_keys(file)
    assert kept.sha256 == hash_of(key)
    assert (kept.role, kept.models, kept.projects, kept.limits.max_concurrent) == (
        "admin",
        ("demo", "my-org/*"),
        ("p",),
        2,
    )
    assert kept.created_at is not None and kept.expires_at is not None
    assert (kept.expires_at - kept.created_at).days == 30


def test_list_shows_rights_and_no_hash(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "keys.json"
    main(["keys", "add", f"--file={file}", "--name=alice", "--organization=org-1", "--requests-per-minute=60"])
    capsys.readouterr()
    assert main(["keys", "list", f"--file={file}"]) == 0
    out = capsys.readouterr().out
    assert "alice" in out and "models: all" in out and "organizations: org-1" in out and "requests_per_minute=60" in out
    assert read_keys(file)[0].sha256 not in out


def test_remove_removes_one_key(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "keys.json"
    for name in ("alice", "bob"):
        main(["keys", "add", f"--file={file}", f"--name={name}"])
    assert main(["keys", "remove", f"--file={file}", "--name=alice"]) == 0
    assert "Running servers delete what they stored for it" in capsys.readouterr().err
    assert [key.name for key in read_keys(file)] == ["bob"]
    assert main(["keys", "remove", f"--file={file}", "--name=alice"]) == 2
    assert "--name=alice" in capsys.readouterr().err


def test_a_key_that_is_made_again_has_another_owner(tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    owners = set()
    for _ in range(2):
        main(["keys", "add", f"--file={file}", "--name=alice"])
        owners |= {key.caller().owner for key in read_keys(file)}
        main(["keys", "remove", f"--file={file}", "--name=alice"])
    assert len(owners) == 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--name=a b"], "Expected `str` matching regex"),
        (["--name=a", "--max-concurrent=-1"], "Expected `int` >= 1 - at `$.keys[0].limits.max_concurrent`"),
        (["--name=a", "--expires-in-days=0"], "--expires-in-days=0: must be above 0"),
        (["--name=a", "--expires-in-days=nan"], "--expires-in-days=nan: must be above 0"),
    ],
)
def test_a_value_that_breaks_a_rule_is_one_line_and_makes_no_key(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str], message: str
) -> None:
    file = tmp_path / "keys.json"
    assert main(["keys", "add", f"--file={file}", *options]) == 2
    out, err = capsys.readouterr()
    assert not out and message in err and err.count("\n") == 1
    assert not file.exists()


def test_a_missing_file_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for action in (["list"], ["remove", "--name=a"]):
        assert main(["keys", *action, f"--file={tmp_path / 'no.json'}"]) == 2
        assert "no.json: cannot be read: No such file or directory" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
