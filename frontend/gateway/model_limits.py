"""`--model-limit MODEL:name=value,...`: what each key may do with one model, and how much that model takes."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass

from frontend.gateway.admission import Bounds
from frontend.gateway.types import RateLimits
from frontend.settings import Settings, SettingsError

# What a limit is called on the command line: the field it stands for, of a key's rates or of the model's bounds.
_OF_A_KEY = {"rpm": "requests_per_minute", "tpm": "tokens_per_minute", "concurrent": "max_concurrent"}
_OF_THE_MODEL = {
    "in_flight": "max_in_flight",
    "prompt_tokens": "max_in_flight_prompt_tokens",
    "queue_wait_s": "max_queue_wait_s",
}
_MAX = 2**31 - 1
_MIN_S = 0.001


@dataclass(frozen=True, slots=True)
class ModelLimit:
    """The limits that one model has of its own."""

    model: str
    rates: RateLimits
    bounds: dict[str, int | float]

    @classmethod
    def parse(cls, text: str) -> ModelLimit:
        """Read one.

        Raises:
            ValueError: it is none; the message says the rule.
        """
        model, _, values = text.rpartition(":")  # a model's own name may have a colon
        if not model or not values:
            raise ValueError("must be MODEL:name=value, such as demo:rpm=60,in_flight=32")
        rates: dict[str, int] = {}
        bounds: dict[str, int | float] = {}
        for item in values.split(","):
            name, _, value = item.partition("=")
            if name in _OF_A_KEY:
                rates[_OF_A_KEY[name]] = _whole_number(name, value)
            elif name == "queue_wait_s":
                bounds[_OF_THE_MODEL[name]] = _seconds(name, value)
            elif name in _OF_THE_MODEL:
                bounds[_OF_THE_MODEL[name]] = _whole_number(name, value)
            else:
                raise ValueError(f"{name!r} must be one of {', '.join((*_OF_A_KEY, *_OF_THE_MODEL))}")
        return cls(model, RateLimits(**rates), bounds)

    def applied_to(self, bounds: Bounds) -> Bounds:
        """Return the bounds of all models with what this one has of its own."""
        return dataclasses.replace(bounds, **self.bounds)  # type: ignore[arg-type]  # parse made them


def model_limits_of(settings: Settings) -> dict[str, ModelLimit]:
    """Return the limits that single models have, by model.

    Raises:
        SettingsError: one breaks a rule.
    """
    found = {}
    for text in settings.model_limits:
        try:
            limit = ModelLimit.parse(text)
        except ValueError as exc:
            raise SettingsError(f"model_limits={text!r}: {exc}") from exc
        found[limit.model] = limit
    return found


def _whole_number(name: str, value: str) -> int:
    if not value.isdecimal() or int(value) > _MAX:
        raise ValueError(f"{name} must be a whole number from 0 to {_MAX}")
    return int(value)


def _seconds(name: str, value: str) -> float:
    try:
        seconds = float(value)
    except ValueError:
        seconds = math.nan
    if not _MIN_S <= seconds <= _MAX:
        raise ValueError(f"{name} must be a number from {_MIN_S:g} to {_MAX}")
    return seconds
