"""The settings of the limits: rates of keys, bounds of models."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from frontend.gateway.admission import Bounds
from frontend.gateway.types import RateLimits, Scope
from frontend.settings import Settings, SettingsError

type _Whole = Annotated[int, Meta(ge=0, le=2**31 - 1)]


class ModelLimits(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The values of `--model-limit MODEL:name=value,...`: three limits for each key, three bounds of the model."""

    rpm: _Whole = 0
    tpm: _Whole = 0
    concurrent: _Whole = 0
    in_flight: _Whole
    prompt_tokens: _Whole
    queue_wait_s: Annotated[float, Meta(gt=0, lt=2**31)]


MAX_IN_FLIGHT_PROMPT_TOKENS = 4 * 2**20  # estimate for each replica of a model without its own limit


_NO_LIMITS = RateLimits()


class Policy:
    """The limits of each key and model.

    Raises:
        SettingsError: a setting breaks a rule.
    """

    def __init__(self, settings: Settings) -> None:
        self._default = ModelLimits(
            in_flight=settings.max_in_flight,
            prompt_tokens=MAX_IN_FLIGHT_PROMPT_TOKENS,
            queue_wait_s=settings.max_queue_wait_s,
        )
        self._by_model = dict(self._parse(text) for text in settings.model_limits)
        self._rates = {name: RateLimits(each.rpm, each.tpm, each.concurrent) for name, each in self._by_model.items()}
        self.default_rates = RateLimits(
            settings.requests_per_minute, settings.tokens_per_minute, settings.max_concurrent
        )
        self.longest_wait_s = max(limits.queue_wait_s for limits in (self._default, *self._by_model.values()))

    def bounds(self, model: str) -> Bounds:
        """Return the bounds of a model."""
        limits = self._by_model.get(model, self._default)
        return Bounds(limits.in_flight, limits.prompt_tokens, limits.queue_wait_s)

    def scopes(self, key: str, rates: RateLimits, model: str) -> tuple[Scope, ...]:
        """Return the scopes with limits that a request of a key counts in."""
        of_model = self._rates.get(model, _NO_LIMITS)
        return tuple(
            [Scope(key, named, each) for named, each in (("", rates), (model, of_model)) if each != _NO_LIMITS]
        )

    def _parse(self, text: str) -> tuple[str, ModelLimits]:
        model, _, values = text.rpartition(":")  # a model's name may have a colon
        if not model or "=" not in values:
            raise SettingsError(
                f"--model-limit={text!r}: must be MODEL:name=value,... such as demo:rpm=60,in_flight=32"
            )
        given = dict(item.partition("=")[::2] for item in values.split(","))
        try:
            return model, msgspec.convert(msgspec.to_builtins(self._default) | given, ModelLimits, strict=False)
        except msgspec.ValidationError as exc:
            names = ", ".join(ModelLimits.__struct_fields__)
            raise SettingsError(f"--model-limit={text!r}: {exc}; names: {names}") from None
