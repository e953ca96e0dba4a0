"""Requests from which the tests of the limits start, and a clock that they move."""

from __future__ import annotations

from typing import Any

from frontend.gateway.types import AdmissionRequest, RateLimits, Scope


class Clock:
    """Time that stands still until it is moved."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def scope(key: str = "k", model: str = "", **limits: int) -> Scope:
    """Return a scope with these limits."""
    return Scope(key, model, RateLimits(**limits))


def counted(key: str = "k", num_tokens: int = 10, **limits: int) -> AdmissionRequest:
    """Return a request that is only counted."""
    return AdmissionRequest(key=key, scopes=(Scope(key, "", RateLimits(**limits)),), num_tokens=num_tokens)


def generation(key: str = "k", **fields: Any) -> AdmissionRequest:
    """Return a request that needs admission, and is not counted."""
    given: dict[str, Any] = {"model": "m", "num_tokens": 10, "num_sequences": 1, "num_prompt_tokens": 5}
    return AdmissionRequest(key=key, **given | fields)
