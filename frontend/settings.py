"""The frontend's configuration: read once at the start, checked when it is made, passed as an argument."""

from __future__ import annotations

import ipaddress
import math
import re
from dataclasses import dataclass, field

from model_repository.contract.request import ContextOverflow
from model_repository.contract.tensors import KEY_VARIABLE
from model_repository.model_parameters import RequestDefaults

_ROOT_PATH = re.compile(r"(/[\w.~-]+)+", re.ASCII)
_HOST_NAME = re.compile(r"[0-9A-Za-z._-]+")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_TRITON_KEY = re.compile(r"[!-~]{32,}")

_ORIGIN = re.compile(r"\*|[a-z][a-z0-9+.-]*://(\[[0-9a-f:.]+\]|[a-z0-9.-]+)(:[0-9]{1,5})?")
MIN_STAGE_STALL_S = 2.0
_REDIS_SCHEMES = ("redis://", "rediss://", "unix://")


class SettingsError(ValueError):
    """A setting breaks a rule; the message names it, its value and the rule."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What the frontend needs to know beyond what Triton tells it.

    `triton_endpoints` and `model_limits` are texts with a grammar: `frontend.triton.endpoints` and
    `frontend.gateway.model_limits` read and check them.

    Raises:
        SettingsError: at construction.
    """

    host: str = "127.0.0.1"
    port: int = 8080  # 0: any free one
    workers: int = 0  # processes on the port; 0: by the number of cores
    triton_endpoints: tuple[str, ...] = ("127.0.0.1:8001",)  # gRPC: [MODEL=][dns:]host:port,...
    dns_interval_s: float = 2.0  # between two looks at what an endpoint dns:NAME:PORT stands for
    triton_tls_ca: str = ""  # PEM file of who signs the Tritons' certificates; empty: no TLS to them
    triton_tls_cert: str = ""  # PEM file of the certificate that the Tritons want of us; empty: none
    triton_tls_key: str = ""  # PEM file of its key
    triton_tls_name: str = ""  # that the Tritons' certificates have; empty: each has the host of its endpoint
    triton_key: str = field(default="", repr=False)  # to the restricted APIs of the Tritons; empty: they stay closed
    max_body_bytes: int = 10 * 2**20
    validation_status: int = 400  # of schema failures; 422 is FastAPI's
    strict_extra: bool = False  # refuse what else would be listed in x-ignored-params
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
    stage_stall_s: float = 20.0  # a stage beside an engine at work that has brought nothing for so long is looked at
    # Replicas, faults, drain.
    breaker_failures: int = 5  # of a model at an endpoint, in a row, after which it gets no requests there
    breaker_pause_s: float = 1.0  # from then, or from a probe that failed, to the next probe
    probe_deadline_s: float = 30.0  # for the token that a probe asks for
    retry_share: float = 0.1  # of the requests that may be sent a second time; 0: none
    drain_timeout_s: float = 25.0  # how long requests in flight may go on after SIGTERM
    # Connections and hostile input.
    header_timeout_s: float = 10.0  # for the head of a request
    body_timeout_s: float = 60.0  # for its body, from the end of its head
    keepalive_timeout_s: float = 75.0  # between two requests
    stalled_reader_s: float = 30.0  # a client that reads nothing for so long, though there is something, is cut off
    ping_interval_s: float = 15.0  # of silence in a stream, then a comment goes out; 0: none does
    request_timeout_s: float = 0.0  # for the whole answer; 0: as long as it takes
    max_url_bytes: int = 8192
    max_header_bytes: int = 16384  # of one header
    max_headers: int = 100
    max_json_depth: int = 128  # of lists and objects in a body
    max_content_parts: int = 4096  # of all messages of a chat together
    tls_cert: str = ""  # PEM file of the certificate and what it was signed with; empty: no TLS
    tls_key: str = ""  # PEM file of its key
    tls_client_ca: str = ""  # PEM file of who signs clients' certificates; empty: clients need none
    cors_origins: tuple[str, ...] = ()  # of web pages that may call the API: such as https://a.example, or *
    allow_hosts: tuple[str, ...] = ()  # names in the header Host, beside loopback's, without keys on loopback; *: any
    # Who may do what.
    key_file: str = ""  # of the API keys; empty: there are none, and whoever reaches the port may use it
    key_interval_s: float = 1.0  # between two looks at the key file
    allow_anonymous: bool = False  # listen on other addresses than loopback without a key file
    launcher_key_sha256: str = ""  # of one more key, with which the launcher asks for the first tokens
    admin_host: str = "127.0.0.1"
    admin_port: int = 0  # of health, metrics and admin routes; 0: there is none
    admin_tls: bool = False  # it shows tls_cert too, and asks for no certificate: probes of a cluster have none
    # What operators see.
    log_format: str = "text"  # or json: one object a line
    metrics_compat: str = ""  # vllm: the metrics that vLLM has, once more under its names
    metrics_by_key: bool = False  # requests and tokens by the name of the caller's key
    otlp_endpoint: str = ""  # spans are posted here, such as http://collector:4318/v1/traces; empty: there are none
    # Limits and admission (docs/limits.md). The first four are of a key that has none of its own; 0: no limit.
    requests_per_minute: int = 0
    tokens_per_minute: int = 0
    max_concurrent: int = 0  # requests of a key at a time
    max_priority: str = "high"
    model_limits: tuple[str, ...] = ()  # MODEL:name=value,...
    max_in_flight: int = 0  # completions of a replica of a model at a time; 0: as many as it decodes at a time
    max_in_flight_prompt_tokens: int = 4 * 2**20  # of a replica too, estimated; 0: no bound
    max_queue_wait_s: float = 30.0  # a request that would wait longer for a model is refused
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
        positive = (
            "stats_interval_s",
            "stats_deadline_s",
            "engine_stall_s",
            "breaker_pause_s",
            "probe_deadline_s",
            "dns_interval_s",
            "key_interval_s",
            "stage_stall_s",
        )
        for name in positive:
            self._require_seconds(name, is_zero_allowed=False)
        if self.stage_stall_s < MIN_STAGE_STALL_S:
            self._refuse("stage_stall_s", f"must be at least {MIN_STAGE_STALL_S:g}: each stream hears once a second")
        self._require_seconds("drain_timeout_s", is_zero_allowed=True)
        self._require_int("breaker_failures", 1, 2**31 - 1)
        if isinstance(self.retry_share, bool) or not 0 <= self.retry_share <= 1:
            self._refuse("retry_share", "must be a number from 0 to 1")
        self._check_connections()
        self._check_access()
        if self.validation_status not in (400, 422):
            self._refuse("validation_status", "must be 400 or 422")
        self._require_one_of("log_format", "text", "json")
        self._require_one_of("metrics_compat", "", "vllm")
        if self.otlp_endpoint and not self.otlp_endpoint.startswith(("http://", "https://")):
            self._refuse("otlp_endpoint", "must be a URL such as http://collector:4318/v1/traces")
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

    @property
    def triton_security(self) -> str:
        """How Tritons are connected to, for a log line."""
        if not self.triton_tls_ca:
            return "without TLS"
        return "over TLS" if self.triton_tls_cert else "over TLS, without a certificate of the frontend's"

    def _check_connections(self) -> None:
        for name in ("header_timeout_s", "body_timeout_s", "keepalive_timeout_s", "stalled_reader_s"):
            self._require_seconds(name, is_zero_allowed=False)
        for name in ("ping_interval_s", "request_timeout_s"):
            self._require_seconds(name, is_zero_allowed=True)
        self._require_int("max_url_bytes", 64, 2**20)
        self._require_int("max_header_bytes", 64, 2**20)
        self._require_int("max_headers", 8, 1024)
        self._require_int("max_json_depth", 8, 128)  # what serializes a body further on has limits of its own
        self._require_int("max_content_parts", 1, 2**20)
        if bool(self.tls_cert) != bool(self.tls_key):
            self._refuse("tls_cert" if self.tls_cert else "tls_key", "tls_cert and tls_key go together")
        if self.tls_client_ca and not self.tls_cert:
            self._refuse("tls_client_ca", "it needs tls_cert and tls_key")
        if not all(_ORIGIN.fullmatch(origin) for origin in self.cors_origins):
            self._refuse("cors_origins", "each must be an origin such as https://a.example, without a path, or *")
        if not all(host == "*" or _HOST_NAME.fullmatch(host) for host in self.allow_hosts):
            self._refuse("allow_hosts", "each must be a name such as llm.example.com, without a port, or *")

    def _check_access(self) -> None:
        if not self.admin_host:
            self._refuse("admin_host", "must not be empty")
        self._require_int("admin_port", 0, 65535)
        if self.admin_port and self.admin_port == self.port:
            self._refuse("admin_port", "must be another port than that of the API")
        if self.admin_tls and not (self.admin_port and self.tls_cert):
            self._refuse("admin_tls", "it needs admin_port, tls_cert and tls_key")
        if self.launcher_key_sha256 and not _SHA256.fullmatch(self.launcher_key_sha256):
            self._refuse("launcher_key_sha256", "must be 64 hexadecimal digits")
        for name in ("host", *(["admin_host"] if self.admin_port else [])):
            if not (self.key_file or self.allow_anonymous or is_loopback(getattr(self, name))):
                rule = "without API keys only loopback is listened on; --key-file FILE names them, and"
                self._refuse(name, f"{rule} --allow-anonymous lets everybody in")

    def _check_endpoints(self) -> None:
        if isinstance(self.triton_endpoints, str) or not self.triton_endpoints:
            self._refuse("triton_endpoints", "must be a list of host:port, at least one")
        if self.triton_key and not _TRITON_KEY.fullmatch(self.triton_key):  # the value is a secret
            raise SettingsError(f"{KEY_VARIABLE}: must be 32 or more characters of printable ASCII, without spaces")
        if bool(self.triton_tls_cert) != bool(self.triton_tls_key) or (self.triton_tls_cert and not self.triton_tls_ca):
            name = "triton_tls_cert" if self.triton_tls_cert else "triton_tls_key"
            self._refuse(name, "triton_tls_cert and triton_tls_key go together, and with triton_tls_ca")
        if self.triton_tls_name and not (self.triton_tls_ca and _HOST_NAME.fullmatch(self.triton_tls_name)):
            self._refuse("triton_tls_name", "must be a name such as triton.example.com, and goes with triton_tls_ca")

    def _check_limits(self) -> None:
        for name in ("requests_per_minute", "tokens_per_minute", "max_concurrent", "max_in_flight"):
            self._require_int(name, 0, 2**31 - 1)
        self._require_int("max_in_flight_prompt_tokens", 0, 2**31 - 1)
        self._require_seconds("max_queue_wait_s", is_zero_allowed=False)
        if self.max_priority not in ("low", "normal", "high"):
            self._refuse("max_priority", "must be low, normal, high")
        if self.limits_on_failure not in ("open", "closed"):
            self._refuse("limits_on_failure", "must be open or closed")
        if self.redis_url and not self.redis_url.startswith(_REDIS_SCHEMES):
            raise SettingsError(f"redis_url: must begin with {', '.join(_REDIS_SCHEMES)}")  # it may hold a password

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

    def _require_one_of(self, name: str, *words: str) -> None:
        if getattr(self, name) not in words:
            self._refuse(name, f"must be {' or '.join(word or 'empty' for word in words)}")

    def _refuse(self, name: str, rule: str) -> None:
        raise SettingsError(f"{name}={getattr(self, name)!r}: {rule}")


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches an address. A name other than localhost may stand for any."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
