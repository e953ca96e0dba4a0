"""The frontend's settings, each declared once: for options, checks, docs/settings.md and the Helm chart."""

from __future__ import annotations

import functools
import ipaddress
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from model_repository.contract.request import ContextOverflow
from model_repository.contract.spec import MAX_INT32
from model_repository.contract.tensors import KEY_VARIABLE
from model_repository.model_parameters import RequestDefaults

_HOST_NAME = r"[0-9A-Za-z._-]+"
_ORIGIN = r"\*|[a-z][a-z0-9+.-]*://(\[[0-9a-f:.]+\]|[a-z0-9.-]+)(:[0-9]{1,5})?"


class SettingsError(ValueError):
    """A setting breaks a rule; the message names the setting, its value and the rule."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """The declaration of one setting, without its name.

    The type of the default is the type of the setting. A text may also be empty where its default is empty, and a list
    where its default is an empty list.
    """

    default: Any
    help: str
    low: int = 0  # least number
    high: int = MAX_INT32  # largest whole number
    is_zero_allowed: bool = True  # 0 is a value for seconds
    choices: tuple[str | int, ...] = ()
    pattern: str = r".+"  # a text, or each text of a list, must match it
    form: str = "text"  # the pattern in words
    flag: str | None = ""  # the option; empty: from the name; None: no option
    metavar: str = ""
    variable: str = ""  # an environment variable, used where the option is absent
    is_secret: bool = False  # not shown in errors, nor on the command lines of child processes
    chart_value: str = ""  # the path of the Helm chart's value
    chart_default: Any = None  # the chart's default; None: the same

    @property
    def values(self) -> str:
        """The allowed values in words; of a list, those of each item."""
        match self.default:
            case _ if self.choices:
                return " or ".join(str(choice) or "empty" for choice in self.choices)
            case bool():
                return "true or false"
            case int():
                return f"a whole number from {self.low} to {self.high}"
            case float():
                return f"a number of seconds, {'0 or more' if self.is_zero_allowed else 'above 0'}"
            case _:
                return self.form

    def allows(self, value: Any) -> bool:
        """Return whether a value is valid, apart from the rules for several settings."""
        match self.default:
            case _ if self.choices:
                return isinstance(value, type(self.default)) and value in self.choices
            case bool():
                return isinstance(value, bool)
            case int():
                return type(value) is int and self.low <= value <= self.high
            case float():
                is_number = isinstance(value, int | float) and not isinstance(value, bool)
                return is_number and 0 <= value < math.inf and (value != 0 or self.is_zero_allowed)
            case tuple():
                return isinstance(value, tuple) and bool(value or not self.default) and all(map(self._matches, value))
            case _:
                return isinstance(value, str) and (value == self.default or self._matches(value))

    def _matches(self, text: str) -> bool:
        return re.fullmatch(self.pattern, text, re.ASCII) is not None


def setting[T](default: T, help: str, **declaration: Any) -> T:
    """Declare a field of `Settings`; the arguments are the fields of `Setting`."""
    declared = Setting(default=default, help=help, **declaration)
    return field(default=default, repr=not declared.is_secret, metadata={"setting": declared})


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The configuration of the frontend: read once at the start, checked when it is made, passed as an argument.

    `triton_endpoints` and `model_limits` are texts with a grammar: `frontend.triton.endpoints` and
    `frontend.gateway.policy` read and check them.

    Raises:
        SettingsError: at construction.
    """

    host: str = setting("127.0.0.1", "Address of the API; :: is every address, 0.0.0.0 every IPv4 address.")
    port: int = setting(8080, "Port of the API; 0 is any free port.", high=65535)
    workers: int = setting(
        0,
        "Processes that share the port; 0: one process for every four cores, at most 8.",
        high=256,
        chart_value="frontend.workers",
        chart_default=1,
    )
    triton_endpoints: tuple[str, ...] = setting(
        ("127.0.0.1:8001",),
        "gRPC endpoints of Tritons that serve the same models. dns:HOST:PORT means one endpoint for each address of "
        "the name. With MODEL= the endpoints are used for this model only, and the model is expected to be served; "
        "ALIAS is a further name of it.",
        form="[MODEL[,ALIAS...]=][dns:]HOST:PORT[,...]",
        flag="--triton",
        metavar="[MODEL[,ALIAS...]=][dns:]HOST:PORT[,...]",
    )
    triton_tls_ca: str = setting(
        "",
        "PEM file of the authorities that signed the Tritons' certificates; with it, connections to Tritons use TLS.",
    )
    triton_tls_cert: str = setting("", "PEM file of the certificate that the frontend shows to Tritons.")
    triton_tls_key: str = setting("", "PEM file of the key of the certificate for Tritons.")
    triton_tls_name: str = setting(
        "",
        "Name in the Tritons' certificates; empty: each certificate must name the host of its endpoint.",
        pattern=_HOST_NAME,
        form="a name such as triton.example.com",
    )
    triton_key: str = setting(
        "",
        "Key to the restricted APIs of the Tritons; without it, the frontend cannot load or reload models.",
        pattern=r"[!-~]{32,}",
        form="32 or more characters of printable ASCII, without spaces",
        flag=None,
        variable=KEY_VARIABLE,
        is_secret=True,
    )
    max_body_bytes: int = setting(
        10 * 2**20,
        "Largest body of a request, in bytes; a larger body gets 413.",
        low=1,
        chart_value="frontend.limits.maxBodyBytes",
    )
    validation_status: int = setting(
        400, "HTTP status of a request that breaks the schema; FastAPI uses 422.", choices=(400, 422)
    )
    strict_extra: bool = setting(
        False, "Refuse unknown fields, unsupported hints and unenforced keywords of JSON schemas with 400."
    )
    default_model: str = setting(
        "",
        "Model of requests that name no model; empty: such requests are refused.",
        chart_value="frontend.defaultModel",
    )
    root_paths: tuple[str, ...] = setting(
        (),
        "Path below which the API is served too, such as /openai.",
        pattern=r"(/[\w.~-]+)+",
        form="a path such as /openai, without a slash at its end",
        flag="--root-path",
        metavar="PATH",
    )
    completion_max_tokens: int = setting(
        16, "max_tokens of completions that set none; 0: the rest of the context window."
    )
    chat_max_tokens: int = setting(
        256,
        "max_tokens of chat completions that set none; 0: the rest of the context window, as for models that think.",
    )
    context_length_exceeded_behavior: str = setting(
        "truncate",
        "If prompt and max_tokens exceed the context window: truncate lowers max_tokens, error refuses the request. "
        "A request or its model may choose otherwise.",
        choices=tuple(ContextOverflow),
    )
    include_stop_str_in_output: bool = setting(
        False, "Keep the stop sequence in the text, unless the request or its model sets it."
    )
    keep_billing_header: bool = setting(
        False,
        "Keep the line x-anthropic-billing-header in the system prompts of Claude Code. It changes with each request, "
        "and no prompt would begin like an earlier one.",
    )
    max_document_pages: int = setting(
        300, "Pages that a document of a chat may have, or slides; larger ones are refused.", low=1
    )
    max_logprobs: int = setting(5, "Largest `logprobs` of /v1/completions; a chat may always ask for 20.", high=20)
    engine_stall_s: float = setting(
        60.0,
        "Seconds that one step of an engine may take; an engine with a longer step is treated as lost, and reloaded.",
        is_zero_allowed=False,
    )
    drain_timeout_s: float = setting(
        25.0,
        "Seconds that running requests may take to end after SIGTERM; a second signal ends them at once.",
        chart_value="frontend.drain.maxStreamSeconds",
        chart_default=600,
    )
    stream_keepalive_s: float = setting(
        15.0, "Seconds without output before a stream carries a keepalive comment; 0: no comments."
    )
    request_timeout_s: float = setting(
        0.0, "Seconds that a whole answer may take; 0: no limit.", chart_value="frontend.limits.requestTimeoutSeconds"
    )
    idle_timeout_s: float = setting(
        620.0,
        "Seconds that a connection stays open without a request; longer than balancers keep theirs (Google's 600), "
        "which would otherwise answer some requests with 502.",
        is_zero_allowed=False,
        chart_value="frontend.limits.idleTimeoutSeconds",
    )
    tls_cert: str = setting("", "PEM file of the server's certificate chain; with it, the server uses TLS.")
    tls_key: str = setting("", "PEM file of the key of the server's certificate.")
    tls_client_ca: str = setting(
        "",
        "PEM file of the authorities that sign clients' certificates; with it, each client must show a certificate. "
        "The operations port of the frontend demands none.",
    )
    cors_origins: tuple[str, ...] = setting(
        (),
        "Origin of web pages that may call the API, such as https://a.example; * is every origin.",
        pattern=_ORIGIN,
        form="an origin such as https://a.example, without a path, or *",
        flag="--cors-origin",
        metavar="ORIGIN",
    )
    allow_hosts: tuple[str, ...] = setting(
        (),
        "Further name that the header Host may have at a server on loopback without API keys; * is every name.",
        pattern=rf"\*|{_HOST_NAME}",
        form="a name such as llm.example.com, without a port, or *",
        flag="--allow-host",
        metavar="NAME",
    )
    fetch_hosts: tuple[str, ...] = setting(
        (),
        "Host that images and documents of chats are fetched from, at public addresses; * is any host. Without it no "
        "URL is fetched.",
        pattern=rf"\*|{_HOST_NAME}(:[0-9]{{1,5}})?",
        form="a name such as files.example.com, with a port if it is not the usual one, or *",
        flag="--fetch-host",
        metavar="HOST",
    )
    key_file: str = setting(
        "",
        "JSON file of the API keys, as `keys add` writes it; empty: no key is needed, and only loopback may be used.",
    )
    allow_anonymous: bool = setting(
        False, "Listen on addresses other than loopback without a key file; every client is then let in."
    )
    admin_host: str = setting("127.0.0.1", "Address on which the operations port listens.")
    admin_port: int = setting(
        0, "Port of health, metrics and admin routes, different from the API's port; 0: no such port.", high=65535
    )
    web_pages: str = setting(
        "auto",
        "Web pages: a playground at /, the API at /docs, and the server's state at / of the operations port. auto: on "
        "loopback without API keys.",
        choices=("auto", "on", "off"),
    )
    log_format: str = setting(
        "text",
        "Format of the log; json is one object in each line.",
        choices=("text", "json"),
        chart_value="frontend.logFormat",
        chart_default="json",
    )
    metrics_compat: str = setting(
        "", "Second set of metrics: vllm exports vLLM's metrics under their names too.", choices=("", "vllm")
    )
    picker_metrics: bool = setting(
        False,
        "Let endpoint pickers of InferencePools read the engines' queues, KV caches and adapters at /metrics of the "
        "API's port, without a key.",
    )
    metrics_by_key: bool = setting(False, "Count requests and tokens by the name of the API key too.")
    otlp_endpoint: str = setting(
        "",
        "URL to which OpenTelemetry spans are posted, such as http://collector:4318/v1/traces; empty: no spans.",
        pattern=r"https?://.*",
        form="a URL such as http://collector:4318/v1/traces",
        variable="OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
        chart_value="tracing.otlpEndpoint",
    )
    requests_per_minute: int = setting(
        0,
        "Requests per minute of an API key without a limit of its own; 0: no limit.",
        chart_value="frontend.limits.requestsPerMinute",
    )
    tokens_per_minute: int = setting(
        0,
        "Tokens of prompts and completions per minute of an API key without a limit of its own; 0: no limit.",
        chart_value="frontend.limits.tokensPerMinute",
    )
    max_concurrent: int = setting(
        0,
        "Completions at the same time of an API key without a limit of its own; 0: no limit.",
        chart_value="frontend.limits.maxConcurrent",
    )
    max_priority: str = setting(
        "",
        "Highest priority that requests of an API key without a limit of its own may have; empty: normal for keys with "
        "the role user, high for admins and without a key file.",
        choices=("", "low", "normal", "high"),
    )
    model_limits: tuple[str, ...] = setting(
        (),
        "Limits of one model, such as demo:rpm=60,in_flight=32; docs/limits.md names them.",
        form="MODEL:name=value,...",
        flag="--model-limit",
        metavar="MODEL:LIMITS",
    )
    max_in_flight: int = setting(
        0,
        "Completions at the same time at each replica of a model; 0: as many as the replica decodes in one step.",
        chart_value="frontend.limits.maxInFlight",
    )
    max_queue_wait_s: float = setting(
        30.0,
        "Seconds that a request may wait for a model; a request with a longer wait gets 503. `serve` and `run` on "
        "loopback without API keys: 600.",
        is_zero_allowed=False,
        chart_value="frontend.limits.maxQueueWaitSeconds",
    )
    load_wait_s: float = setting(
        300.0,
        "Seconds that a request may wait until its model is loaded.",
        is_zero_allowed=False,
    )
    resume_within_s: float = setting(
        60.0,
        "Longest pause of a completion after the death of its engine, in seconds; 0: it ends with an error.",
    )
    wake_timeout_s: float = setting(
        0.0,
        "Seconds that a request may wait for a model that `--triton MODEL=ENDPOINT` names while no endpoint serves it, "
        "as after scaling to zero; 0: it gets 503 at once.",
        chart_value="frontend.wakeTimeoutSeconds",
    )
    redis_url: str = setting(
        "",
        "URL of a Redis in which several frontends share the rates of the keys; empty: each frontend counts alone.",
        pattern=r"rediss?://[^/?#]+(/[0-9]*)?(\?.*)?|unix://.*",
        form="redis://HOST:PORT/DATABASE, rediss://HOST:PORT/DATABASE or unix://PATH",
        variable="CONCH_REDIS_URL",
        is_secret=True,
    )
    limits_on_failure: str = setting(
        "open",
        "Treatment of requests while the shared limits cannot be reached: open serves them, closed refuses them.",
        choices=("open", "closed"),
    )

    store: str = setting(
        "",
        "Place of conversations and answers that the server keeps for its clients: none, memory, a file, or the URL of "
        "a PostgreSQL or Redis that several frontends share; empty: memory.",
        pattern=r"none|memory|/.+|\./.+|(redis|rediss|unix|postgres|postgresql)://.+",
        form="none, memory, the path of a file (/... or ./...), postgresql://... or redis://...",
        metavar="PLACE",
        variable="CONCH_STORE",
        is_secret=True,
    )
    store_age_s: float = setting(
        0.0, "Seconds that something stays stored after its last use; 0: an hour in memory, else 30 days."
    )
    store_bytes: int = setting(
        0, "Bytes that are stored for all keys together; 0: 64 MiB in memory, else no limit.", high=2**50
    )
    store_key_bytes: int = setting(0, "Bytes that are stored for one API key; 0: no limit.", high=2**50)
    store_key_objects: int = setting(
        0, "Answers, chats and conversations that are stored for one API key; 0: no limit."
    )

    def __post_init__(self) -> None:
        for name, declared in SETTINGS.items():
            if not declared.allows(getattr(self, name)):
                each = "each " if isinstance(declared.default, tuple) else ""
                self._refuse(name, f"{each}must be {declared.values}")
        if self.admin_port and self.admin_port == self.port:
            self._refuse("admin_port", "must be another port than that of the API")
        if self.picker_metrics and not self.admin_port:
            self._refuse("picker_metrics", "needs --admin-port, which has the other metrics then")
        for name in ("host", *(["admin_host"] if self.admin_port else [])):
            if not (self.key_file or self.allow_anonymous or is_loopback(getattr(self, name))):
                rule = "without API keys only loopback is allowed; --key-file FILE names the keys, and"
                self._refuse(name, f"{rule} --allow-anonymous lets every client in")
        if bool(self.tls_cert) != bool(self.tls_key):
            self._refuse("tls_cert" if self.tls_cert else "tls_key", "--tls-cert and --tls-key go together")
        if self.tls_client_ca and not self.tls_cert:
            self._refuse("tls_client_ca", "needs --tls-cert and --tls-key")
        if bool(self.triton_tls_cert) != bool(self.triton_tls_key) or (self.triton_tls_cert and not self.triton_tls_ca):
            name = "triton_tls_cert" if self.triton_tls_cert else "triton_tls_key"
            self._refuse(name, "--triton-tls-cert and --triton-tls-key go together, and with --triton-tls-ca")
        if self.triton_tls_name and not self.triton_tls_ca:
            self._refuse("triton_tls_name", "needs --triton-tls-ca")

    @functools.cached_property
    def request_defaults(self) -> RequestDefaults:
        """The values for fields that a request and its model leave out."""
        return RequestDefaults(
            completion_max_tokens=self.completion_max_tokens or None,
            chat_max_tokens=self.chat_max_tokens or None,
            context_length_exceeded_behavior=ContextOverflow(self.context_length_exceeded_behavior),
            include_stop_str_in_output=self.include_stop_str_in_output,
        )

    @property
    def has_web_pages(self) -> bool:
        """Whether the server has pages for browsers."""
        if self.web_pages == "auto":
            return is_loopback(self.host) and not self.key_file
        return self.web_pages == "on"

    @property
    def triton_security(self) -> str:
        """The security of connections to Tritons, for a log line."""
        if not self.triton_tls_ca:
            return "without TLS"
        return "over TLS" if self.triton_tls_cert else "over TLS, without a certificate of the frontend's"

    def _refuse(self, name: str, rule: str) -> None:
        declared = SETTINGS[name]
        label = declared.variable if declared.flag is None else flag_of(name)
        raise SettingsError(f"{label}: {rule}" if declared.is_secret else f"{label}={getattr(self, name)!r}: {rule}")


SETTINGS: Mapping[str, Setting] = {each.name: each.metadata["setting"] for each in fields(Settings)}

# The headings of the options, with their settings.
GROUPS: Mapping[str, tuple[str, ...]] = {
    "network": (
        "host", "port", "admin_host", "admin_port", "web_pages", "root_paths", "cors_origins", "allow_hosts",
        "fetch_hosts", "max_body_bytes", "idle_timeout_s", "stream_keepalive_s",
    ),
    "TLS of the server": ("tls_cert", "tls_key", "tls_client_ca"),
    "Tritons": (
        "triton_endpoints", "triton_tls_ca", "triton_tls_cert", "triton_tls_key", "triton_tls_name", "triton_key",
    ),
    "keys and limits": (
        "key_file", "allow_anonymous", "requests_per_minute", "tokens_per_minute", "max_concurrent", "max_priority",
        "model_limits", "max_in_flight", "max_queue_wait_s", "load_wait_s",
        "wake_timeout_s", "resume_within_s", "redis_url", "limits_on_failure",
    ),
    "models and requests": (
        "default_model", "completion_max_tokens", "chat_max_tokens", "context_length_exceeded_behavior",
        "include_stop_str_in_output", "keep_billing_header", "max_logprobs", "max_document_pages",
        "request_timeout_s", "strict_extra",
        "validation_status",
    ),
    "stored conversations": ("store", "store_age_s", "store_bytes", "store_key_bytes", "store_key_objects"),
    "logs and metrics": ("log_format", "metrics_compat", "picker_metrics", "metrics_by_key", "otlp_endpoint"),
    "expert": ("workers", "drain_timeout_s", "engine_stall_s"),
}  # fmt: skip


def flag_of(name: str) -> str:
    """Return the option of a setting."""
    return SETTINGS[name].flag or "--" + name.replace("_", "-")


@functools.lru_cache(maxsize=256)
def is_loopback(host: str) -> bool:
    """Whether only this machine reaches an address. A name other than localhost may stand for any address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
