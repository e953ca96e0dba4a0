"""Links between the pages lead to files, headings and pages that are there, and the index has each page."""

from __future__ import annotations

import posixpath

import pytest

from tests.docs.pages import PAGES, ROOT, anchors, links

INDEX = "docs/README.md"


@pytest.mark.parametrize("page", PAGES)
def test_each_link_of_a_page_has_its_target(page: str) -> None:
    broken = [f"{page}:{line}: {target}" for line, target in links(page) if not _exists(page, target)]
    assert broken == []


def test_the_index_has_each_page() -> None:
    listed = {_path(INDEX, target) for _, target in links(INDEX)}
    assert set(PAGES) - listed - {INDEX} == set()


def _exists(page: str, target: str) -> bool:
    if "://" in target:
        return True
    path, _, anchor = _path(page, target), *target.partition("#")[1:]
    return (ROOT / path).exists() and (not anchor or anchor in anchors(path))


def _path(page: str, target: str) -> str:
    name = target.partition("#")[0]
    return posixpath.normpath(posixpath.join(posixpath.dirname(page), name)) if name else page
