"""The bytes of a vocabulary survive their file."""

from __future__ import annotations

from pathlib import Path

import pytest

from model_repository.byte_table import FILE_NAME, load_byte_table, save_byte_table, vocabulary_size


@pytest.mark.parametrize(
    "table", [[b"a"], [b"", b"\x00", b"\xe2\x82\xac", b"", b"abc", b""], [b"", b""], [bytes([i]) for i in range(256)]]
)
def test_a_byte_table_survives_its_file(table: list[bytes], tmp_path: Path) -> None:
    save_byte_table(tmp_path / FILE_NAME, table)
    assert load_byte_table(tmp_path / FILE_NAME) == table
    assert vocabulary_size(tmp_path / FILE_NAME) == len(table)
