"""A model's new fact, a runtime or a task takes three or four source files, and no golden one."""

from __future__ import annotations

import pytest

from tests.workshop import additions


@pytest.mark.parametrize("name", additions.ADDITIONS)
def test_an_addition_works_and_takes_few_files(name: str) -> None:
    num_files, num_golden = additions.run(name)
    assert (num_files <= 4, num_golden) == (True, 0)
