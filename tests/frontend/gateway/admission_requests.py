"""Requests for the tests of the limits, and a clock that the tests move."""

from __future__ import annotations

from typing import Any

from frontend.gateway.types import AdmissionRequest, RateLimits, Scope


class Clock:
    """A clock that stands still until a test moves it."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def scope(key: str = "k", model: str = "", **limits: int) -> Scope:
    """Return a scope with these limits."""
    return Scope(key, model, RateLimits(**limits))


def counted(key: str = "k", num_tokens: int = 10, num_completions: int = 1, **limits: int) -> AdmissionRequest:
    """Return a request with limits that needs no place."""
    return AdmissionRequest(
        sender=key,
        scopes=(Scope(key, "", RateLimits(**limits)),),
        num_charged_tokens=num_tokens,
        num_completions=num_completions,
    )


def generation(sender: str = "k", **fields: Any) -> AdmissionRequest:
    """Return a completion without limits that needs a place."""
    defaults: dict[str, Any] = {"model": "m", "num_tokens": 10, "num_prompt_tokens": 5}
    return AdmissionRequest(sender=sender, **defaults | fields)
