"""Limits of single models on the command line."""

from __future__ import annotations

import dataclasses

import pytest

from frontend.gateway.policy import Policy
from frontend.gateway.types import RateLimits, Scope
from frontend.settings import Settings, SettingsError


def test_a_model_has_its_own_rates_and_bounds_and_otherwise_those_of_all_models() -> None:
    policy = Policy(Settings(model_limits=("org/a:b:rpm=60,tpm=1000,concurrent=2,in_flight=32,queue_wait_s=0.5",)))
    assert policy.scopes("k", RateLimits(), "org/a:b") == (Scope("k", "org/a:b", RateLimits(60, 1000, 2)),)
    assert policy.scopes("k", RateLimits(), "other") == ()
    other = policy.bounds("other")
    assert policy.bounds("org/a:b") == dataclasses.replace(other, max_in_flight=32, max_queue_wait_s=0.5)
    assert policy.longest_wait_s == other.max_queue_wait_s == 30


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("demo", "must be MODEL:name=value"),
        ("demo:speed=1", "unknown field `speed`; names: rpm, tpm"),
        ("demo:rpm=1.5", "Expected `int`.*rpm"),
        ("demo:in_flight=-1", "Expected `int` >= 0 - at `\\$.in_flight`"),
        ("demo:queue_wait_s=0", "Expected `float` > 0.0 - at `\\$.queue_wait_s`"),
        ("demo:queue_wait_s=inf", "Expected `float` < 2147483648.0 - at `\\$.queue_wait_s`"),
    ],
)
def test_a_bad_limit_is_refused_with_its_value_and_the_rule(text: str, rule: str) -> None:
    with pytest.raises(SettingsError, match=f"^--model-limit='{text}': .*{rule}"):
        Policy(Settings(model_limits=("demo:rpm=1", text)))
