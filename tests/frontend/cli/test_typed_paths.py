"""Paths as a person types them, and the files in messages."""

from __future__ import annotations

import base64
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
    ("name", "content", "kind"),
    [
        ("a.PDF", b"%PDF\xff", "application/pdf"),
        ("a.htm", b"<p>", "text/html"),
        ("a.docx", b"PK\0", "application/vnd.openxmlformats-officedocument.wordprocessingml.document"),
        ("a.xlsx", b"PK\0", "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet"),
        ("a.pptx", b"PK\0", "application/vnd.openxmlformats-officedocument.presentationml.presentation"),
        ("a.md", "größer".encode(), "text/plain"),
        ("Makefile", b"", "text/plain"),
    ],
)
def test_a_document_has_its_name_and_type(name: str, content: bytes, kind: str) -> None:
    path = Path(name)
    path.write_bytes(content)
    data = f"data:{kind};base64,{base64.b64encode(content).decode()}"
    assert document_part(path) == {"type": "file", "file": {"filename": name, "file_data": data}}


@pytest.mark.parametrize("content", [b"\x89PNG\r\n\x1a\n", b"\0"])
def test_a_binary_file_of_another_type_is_no_document(content: bytes) -> None:
    Path("cat.png").write_bytes(content)
    with pytest.raises(ValueError, match=r"^expected a PDF, .* or text in UTF-8; /image sends images$"):
        document_part(Path("cat.png"))
