"""What one model is allowed, as the command line says it."""

from __future__ import annotations

import dataclasses

import pytest

from frontend.gateway.admission import Bounds
from frontend.gateway.model_limits import ModelLimit, model_limits_of
from frontend.gateway.types import RateLimits
from frontend.settings import Settings, SettingsError

BOUNDS = Bounds(max_in_flight=8, max_in_flight_prompt_tokens=100, max_queue_wait_s=5.0)


def test_a_model_has_rates_and_bounds_of_its_own_and_the_rest_of_all_models() -> None:
    limit = ModelLimit.parse("org/a:b:rpm=60,tpm=1000,concurrent=2,in_flight=32,queue_wait_s=0.5")
    assert (limit.model, limit.rates) == (
        "org/a:b",
        RateLimits(requests_per_minute=60, tokens_per_minute=1000, max_concurrent=2),
    )
    assert limit.applied_to(BOUNDS) == dataclasses.replace(BOUNDS, max_in_flight=32, max_queue_wait_s=0.5)


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("demo", "must be MODEL:name=value"),
        ("demo:", "must be MODEL:name=value"),
        ("demo:speed=1", "'speed' must be one of rpm, tpm"),
        ("demo:rpm=1.5", "rpm must be a whole number from 0"),
        ("demo:in_flight=-1", "in_flight must be a whole number from 0"),
        ("demo:queue_share=0.5", "'queue_share' must be one of rpm, tpm"),
        ("demo:queue_wait_s=0", r"queue_wait_s must be a number from 0\.001"),
        ("demo:queue_wait_s=inf", r"queue_wait_s must be a number from 0\.001"),
    ],
)
def test_what_is_no_limit_is_refused_with_the_rule(text: str, rule: str) -> None:
    with pytest.raises(ValueError, match=rule):
        ModelLimit.parse(text)


def test_a_setting_that_is_no_limit_is_refused_with_its_name_and_value():
    with pytest.raises(SettingsError, match=r"^model_limits='demo': must be MODEL:name=value"):
        model_limits_of(Settings(model_limits=("demo:rpm=1", "demo")))
