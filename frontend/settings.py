"""The frontend's configuration: read once at the start, checked when it is made, passed as an argument."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from frontend.limits.asks import Priority
from frontend.limits.model_limits import ModelLimit
from model_repository.generation import ContextOverflow
from model_repository.model_parameters import RequestDefaults

_ROOT_PATH = re.compile(r"(/[\w.~-]+)+", re.ASCII)
_ENDPOINT = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^\s:/\[\]]+):(?P<port>[0-9]{1,5})")
_REDIS_SCHEMES = ("redis://", "rediss://", "unix://")


class SettingsError(ValueError):
    """A setting breaks a rule; the message names it, its value and the rule."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What the frontend needs to know beyond what Triton tells it.

    Raises:
        SettingsError: at construction.
    """

    host: str = "127.0.0.1"
    port: int = 8080  # 0: any free one
    workers: int = 0  # processes on the port; 0: by the number of cores
    triton_endpoints: tuple[str, ...] = ("127.0.0.1:8001",)  # gRPC, host:port; exactly one for now
    max_body_bytes: int = 10 * 2**20
    validation_status: int = 400  # of schema failures; 422 is FastAPI's
    strict_extra: bool = False  # refuse fields that nobody knows, instead of listing them in x-ignored-params
    default_model: str = ""  # for requests that name none; empty: they are refused
    root_paths: tuple[str, ...] = ()  # the API is served below each of these too, such as /openai
    # What a request gets where it says nothing, and its model neither.
    completion_max_tokens: int = 16  # 0: what the context window leaves
    chat_max_tokens: int = 256  # likewise
    context_length_exceeded_behavior: str = "truncate"
    include_stop_str_in_output: bool = False
    max_logprobs: int = 5  # of a completion; chats have OpenAI's limit, 20
    max_choices: int = 1024  # completions that one request may ask for: prompts times n or best_of
    stats_interval_s: float = 1.0  # between two looks at an engine
    stats_deadline_s: float = 2.0  # an engine that takes longer to answer has missed; two misses in a row lose it
    engine_stall_s: float = 60.0  # an engine that has been in one step for longer hangs, and is lost
    shutdown_timeout_s: float = 3.0  # how long requests in flight may go on after SIGTERM
    # Limits and admission (docs/limits.md). The first four are of a key that has none of its own; 0: no limit.
    requests_per_minute: int = 0
    tokens_per_minute: int = 0
    max_concurrent: int = 0  # requests of a key at a time
    max_priority: str = "high"
    model_limits: tuple[str, ...] = ()  # MODEL:name=value,...
    max_in_flight: int = 1024  # completions that a model generates at a time; 0: no bound
    max_in_flight_prompt_tokens: int = 4 * 2**20  # estimated, likewise
    max_queued: int = 1024  # requests that wait for a model
    max_queue_wait_s: float = 5.0
    redis_url: str = ""  # where replicas share the keys' rates; empty: each keeps its own
    limits_on_failure: str = "open"  # or closed: what becomes of requests that cannot be counted
    limits_socket: str = ""  # of the admission process; several workers start one by themselves

    def __post_init__(self) -> None:
        if not self.host:
            self._refuse("host", "must not be empty")
        self._require_int("port", 0, 65535)
        self._require_int("workers", 0, 256)
        self._require_int("max_body_bytes", 1, 2**31 - 1)
        self._require_int("completion_max_tokens", 0, 2**31 - 1)
        self._require_int("chat_max_tokens", 0, 2**31 - 1)
        self._require_int("max_logprobs", 0, 20)
        self._require_int("max_choices", 1, 2**20)
        if self.context_length_exceeded_behavior not in tuple(ContextOverflow):
            self._refuse("context_length_exceeded_behavior", f"must be {' or '.join(ContextOverflow)}")
        if not all(_ROOT_PATH.fullmatch(path) for path in self.root_paths):
            self._refuse("root_paths", "each must be a path such as /openai, without a slash at its end")
        for name in ("stats_interval_s", "stats_deadline_s", "engine_stall_s"):
            self._require_seconds(name, is_zero_allowed=False)
        self._require_seconds("shutdown_timeout_s", is_zero_allowed=True)
        if self.validation_status not in (400, 422):
            self._refuse("validation_status", "must be 400 or 422")
        self._check_endpoints()
        self._check_limits()

    def request_defaults(self) -> RequestDefaults:
        """Return what a request gets where it says nothing, and its model neither."""
        return RequestDefaults(
            completion_max_tokens=self.completion_max_tokens or None,
            chat_max_tokens=self.chat_max_tokens or None,
            context_length_exceeded_behavior=ContextOverflow(self.context_length_exceeded_behavior),
            include_stop_str_in_output=self.include_stop_str_in_output,
        )

    def _check_endpoints(self) -> None:
        if isinstance(self.triton_endpoints, str) or len(self.triton_endpoints) != 1:
            self._refuse("triton_endpoints", "must be a list of one host:port; several are not supported yet")
        for endpoint in self.triton_endpoints:
            found = _ENDPOINT.fullmatch(endpoint)
            if found is None or not 1 <= int(found["port"]) <= 65535:
                self._refuse("triton_endpoints", "each must be host:port, such as 127.0.0.1:8001")

    def _check_limits(self) -> None:
        for name in ("requests_per_minute", "tokens_per_minute", "max_concurrent", "max_in_flight", "max_queued"):
            self._require_int(name, 0, 2**31 - 1)
        self._require_int("max_in_flight_prompt_tokens", 0, 2**31 - 1)
        self._require_seconds("max_queue_wait_s", is_zero_allowed=False)
        if self.max_priority not in tuple(Priority):
            self._refuse("max_priority", f"must be {', '.join(Priority)}")
        if self.limits_on_failure not in ("open", "closed"):
            self._refuse("limits_on_failure", "must be open or closed")
        if self.redis_url and not self.redis_url.startswith(_REDIS_SCHEMES):
            raise SettingsError(f"redis_url: must begin with {', '.join(_REDIS_SCHEMES)}")  # it may hold a password
        for text in self.model_limits:
            try:
                ModelLimit.parse(text)
            except ValueError as exc:
                raise SettingsError(f"model_limits={text!r}: {exc}") from exc

    def _require_int(self, name: str, low: int, high: int) -> None:
        value = getattr(self, name)
        if type(value) is not int or not low <= value <= high:
            self._refuse(name, f"must be a whole number from {low} to {high}")

    def _require_seconds(self, name: str, *, is_zero_allowed: bool) -> None:
        value = getattr(self, name)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
            self._refuse(name, "must be a number of seconds")
        if value == 0 and not is_zero_allowed:
            self._refuse(name, "must be above 0")

    def _refuse(self, name: str, rule: str) -> None:
        raise SettingsError(f"{name}={getattr(self, name)!r}: {rule}")
