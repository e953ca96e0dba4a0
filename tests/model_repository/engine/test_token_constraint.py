"""A completion of certain tokens only."""

from __future__ import annotations

import numpy as np

from model_repository.engine.constraint import ConstraintCompiler
from model_repository.engine.token_constraint import AllowedTokenIds

EOS = 0
PIECES = [b"", b"a", b"b", b"c", b"d"]


def test_the_allowed_tokens_may_come_at_any_time_and_no_others() -> None:
    constraint = AllowedTokenIds((3, 1), len(PIECES) + 1, None)
    for _ in range(2):
        assert np.flatnonzero(constraint.allowed()).tolist() == [1, 3]
        assert constraint.accept_token(1) and constraint.accept_token(3)
        assert not constraint.accept_token(2) and not constraint.accept_token(EOS)


def test_another_constraint_holds_beside_it() -> None:
    compiler = ConstraintCompiler(PIECES, frozenset([EOS]), len(PIECES))
    inner = compiler.start("start: /a[bc]/")
    both = AllowedTokenIds((EOS, 1, 3, 4), len(PIECES), inner)
    assert not both.accept_token(2) and not both.accept_token(4)
    assert both.accept_token(1)
    assert np.flatnonzero(both.allowed()).tolist() == [3]
    assert both.accept_token(3)
    assert both.accept_token(EOS)
