"""The pictures of the documentation are those that the program draws."""

from __future__ import annotations

from pathlib import Path

from tests.workshop.drawings import drawings

PICTURES = Path(__file__).parents[2] / "docs" / "pictures"


def test_the_committed_pictures_are_drawn_by_the_program() -> None:
    assert {path.name: path.read_text(encoding="utf-8") for path in PICTURES.glob("*.svg")} == dict(drawings())
