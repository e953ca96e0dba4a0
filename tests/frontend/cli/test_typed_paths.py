"""Paths as a person types them, and the files in messages."""

from __future__ import annotations

from pathlib import Path

import pytest

from frontend.cli.typed_paths import completed_paths, document_part, path_and_rest


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("cat.png", "my cat.png", "it's", ".hidden", "bell\a"):
        (tmp_path / name).touch()
    (tmp_path / "sub folder").mkdir()
    (tmp_path / "sub folder" / "a b").touch()
    return tmp_path


@pytest.mark.parametrize(
    ("text", "path", "rest"),
    [
        ("cat.png", "cat.png", ""),
        ("my\\ cat.png What's this?", "my cat.png", "What's this?"),
        ("'my cat.png' # this?", "my cat.png", "# this?"),
        ("~/cat.png", "{home}/cat.png", ""),
        ("'~/my cat.png'", "{home}/my cat.png", ""),
        ("~no-such-user/cat.png", "~no-such-user/cat.png", ""),
    ],
)
def test_a_path_is_read_as_a_shell_reads_it(text: str, path: str, rest: str, folder: Path) -> None:
    assert path_and_rest(text) == (Path(path.format(home=folder)), rest)


@pytest.mark.parametrize(
    ("text", "completed"),
    [
        ("", ["cat.png ", "it\\'s ", "my\\ cat.png ", "sub\\ folder/"]),
        ("c", ["cat.png "]),
        (".", [".hidden "]),
        ("my\\ c", ["my\\ cat.png "]),
        ("my\\", []),
        ("'my c", ["'my cat.png' "]),
        ('"it', ['"it\'s" ']),
        ("'sub", ["'sub folder/"]),
        ("sub\\ folder/", ["sub\\ folder/a\\ b "]),
        ("~/ca", ["~/cat.png "]),
        ("cat.png What", []),
        ("'cat.png' What", []),
        ("no-such-folder/", []),
    ],
)
def test_a_half_typed_path_is_completed_with_its_quotes(text: str, completed: list[str]) -> None:
    assert list(completed_paths(text)) == completed
    for each in completed:
        assert each.endswith("/") or path_and_rest(each)[0].exists()


@pytest.mark.parametrize(
    ("name", "kind"), [("a.pdf", "application/pdf"), ("a.html", "text/html"), ("Makefile", "application/octet-stream")]
)
def test_a_document_has_its_name_and_type(name: str, kind: str) -> None:
    Path(name).write_bytes(b"\0x")
    file = {"filename": name, "file_data": f"data:{kind};base64,AHg="}
    assert document_part(Path(name)) == {"type": "file", "file": file}


def test_an_image_is_no_document() -> None:
    with pytest.raises(ValueError, match=r"^/image sends images$"):
        document_part(Path("cat.png"))
