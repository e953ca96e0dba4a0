"""Each large file is read once."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from build_engines import digests as module
from build_engines.digests import Digests


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A file that is large enough for the tests to keep its digest."""
    path = tmp_path / "weights"
    path.write_bytes(b"x" * 100)
    return path


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Which files were read."""
    read, paths = module._read_digest, list[Path]()

    def noted(path: Path, *args: object) -> str:
        paths.append(path)
        return read(path, None)

    monkeypatch.setattr(module, "_read_digest", noted)
    return paths


def digests(folder: Path, smallest_bytes: int = 100) -> Digests:
    return Digests.beside(folder / "artifact", smallest_bytes)


def test_a_large_file_is_read_once(file: Path, reads: list[Path], tmp_path: Path) -> None:
    first = digests(tmp_path).of(file)
    assert digests(tmp_path).of(file) == first
    assert reads == [file]


def test_a_read_only_folder_keeps_no_digests(file: Path, reads: list[Path], tmp_path: Path) -> None:
    (tmp_path / "folder").touch()
    for _ in range(2):
        assert digests(tmp_path / "folder").of(file) == hashlib.sha256(b"x" * 100).hexdigest()
    assert reads == [file, file]


def test_a_hard_link_is_the_file_that_was_read(file: Path, reads: list[Path], tmp_path: Path) -> None:
    first = digests(tmp_path).of(file)
    os.link(file, tmp_path / "link")
    assert digests(tmp_path).of_all({"weights": tmp_path / "link"}) == {"weights": first}
    assert reads == [file]


def test_a_small_file_is_always_read(file: Path, reads: list[Path], tmp_path: Path) -> None:
    for _ in range(2):
        digests(tmp_path, smallest_bytes=101).of(file)
    assert reads == [file, file]
    assert not (tmp_path / module.FILE_NAME).exists()


@pytest.mark.parametrize("content", [b"y" * 100, b"x" * 101])
def test_a_file_that_was_written_again_is_read_again(content: bytes, file: Path, tmp_path: Path) -> None:
    first = digests(tmp_path).of(file)
    file.write_bytes(content)
    os.utime(file, ns=(0, 1))
    assert digests(tmp_path).of(file) == hashlib.sha256(content).hexdigest() != first


@pytest.mark.parametrize("content", ["", "{", "[]", '"text"'])
def test_a_damaged_file_of_digests_is_ignored(content: str, file: Path, tmp_path: Path) -> None:
    (tmp_path / module.FILE_NAME).write_text(content)
    assert digests(tmp_path).of(file) == hashlib.sha256(b"x" * 100).hexdigest()
