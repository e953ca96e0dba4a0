"""The frontend's settings as command-line options, and back."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Collection, Mapping
from typing import Any

from frontend.settings import Settings
from model_repository.contract.tensors import KEY_VARIABLE

_HELP = {
    "host": "address to listen on; 0.0.0.0: every one",
    "port": "port to listen on; 0: any free one",
    "workers": "processes on the port; 0: one for every four cores, at most 8",
    "triton_endpoints": "Triton's gRPC endpoint; dns:HOST:PORT: one at each address of the name; repeatable: a request "
    "goes to the one with the fewest; MODEL=: of what is served there only this model is offered, and it is expected",
    "dns_interval_s": "between two looks at what a name stands for, of an endpoint dns:NAME:PORT",
    "triton_tls_ca": "PEM file of the authorities of the Tritons' certificates; with it, connections to them use TLS",
    "triton_tls_cert": "PEM file of the certificate that the frontend shows them",
    "triton_tls_key": "PEM file of that certificate's key",
    "triton_tls_name": "that the Tritons' certificates have; else each must have the host of its endpoint",
    "max_body_bytes": "longer request bodies are refused",
    "validation_status": "HTTP status of requests that break the schema: 400 or 422",
    "strict_extra": "refuse unknown fields, unfollowed hints and unenforced JSON schema keywords",
    "default_model": "for requests that name none",
    "root_paths": "serve the API below this path too; repeatable",
    "completion_max_tokens": "of a completion that does not say; 0: what the context window leaves",
    "chat_max_tokens": "of a chat completion that does not say, likewise",
    "context_length_exceeded_behavior": "truncate (lower max_tokens) or error",
    "include_stop_str_in_output": "keep stop sequences in the text unless a request says otherwise",
    "max_logprobs": "of a completion; 20 at most",
    "max_choices": "completions that one request may ask for",
    "stats_interval_s": "between two looks at an engine",
    "stats_deadline_s": "after which an engine has missed a look",
    "engine_stall_s": "seconds after which an engine that is still in one step is taken for lost",
    "stage_stall_s": "seconds after which a stage that brings nothing, beside an engine that works, is taken for stuck",
    "breaker_failures": "in a row, after which a model gets no requests at an endpoint until a probe succeeds",
    "breaker_pause_s": "from then, or from a probe that failed, to the next probe",
    "probe_deadline_s": "for the token that a probe asks for",
    "retry_share": "share of the requests that may be sent again, if they failed before their first chunk",
    "drain_timeout_s": "that requests in flight may go on after SIGTERM; a second signal ends them",
    # Connections and hostile input.
    "header_timeout_s": "seconds for the head of a request",
    "body_timeout_s": "seconds for the body of a request",
    "keepalive_timeout_s": "seconds that a connection stays open between two requests",
    "stalled_reader_s": "seconds after which a client is cut off that does not read its answer",
    "ping_interval_s": "seconds of silence in a stream, then a comment keeps it alive; 0: never",
    "request_timeout_s": "seconds for a whole answer; 0: as long as it takes",
    "max_url_bytes": "longer URLs are refused",
    "max_header_bytes": "longer headers are refused",
    "max_headers": "requests with more headers are refused",
    "max_json_depth": "of lists and objects in a body",
    "max_content_parts": "of all messages of a chat together",
    "tls_cert": "PEM file of the certificate chain; with it, whoever connects uses TLS",
    "tls_key": "PEM file of the certificate's key",
    "tls_client_ca": "PEM file of the authorities of clients' certificates, which are then required",
    "cors_origins": "web pages of this origin may call the API; *: of any; repeatable",
    "allow_hosts": "further name in the header Host that a server without keys on loopback accepts; *: all; repeatable",
    "key_file": "JSON file of API keys, as `keys add` writes it; empty: no keys, on loopback only",
    "key_interval_s": "between two looks at the key file",
    "allow_anonymous": "without a key file, listen on other addresses than loopback: whoever reaches them is let in",
    "launcher_key_sha256": "hash of one more key, with which `serve` asks for the first tokens",
    "admin_host": "address of health, metrics and admin routes",
    "admin_port": "port of health, metrics and admin routes, another than the API's; 0: there is none",
    "admin_tls": "show --tls-cert there too; clients' certificates are not asked for",
    "log_format": "text, or json: one object a line",
    "metrics_compat": "vllm: have the metrics that vLLM has under its names, too",
    "metrics_by_key": "count requests and tokens by the name of the key, too",
    "otlp_endpoint": "post OpenTelemetry spans to this URL; else OTEL_EXPORTER_OTLP_* says where, if anywhere",
    "requests_per_minute": "of a key that has no such limit of its own; 0: no limit",
    "tokens_per_minute": "likewise, of prompts and completions",
    "max_concurrent": "requests at a time, likewise",
    "max_priority": "that a key may ask for which does not say: low, normal or high",
    "model_limits": "limits of one model, such as demo:rpm=60,in_flight=32 (docs/limits.md); repeatable",
    "max_in_flight": "completions at each replica of a model at a time; 0: as many as it decodes at a time",
    "max_in_flight_prompt_tokens": "tokens of their prompts, estimated; 0: no bound",
    "max_queue_wait_s": "seconds that a request may wait for its turn at a model; beyond it: 503",
    "redis_url": "a Redis in which replicas share the rates of the keys; else CONCH_REDIS_URL says which",
    "limits_on_failure": "open: what cannot be counted goes on; closed: it is refused",
    "limits_socket": "Unix socket of an admission process; several workers start one by themselves",
}

# How a Triton is connected to, and what a server that is connected to shows.
TLS_TO_TRITON = frozenset({"triton_tls_ca", "triton_tls_cert", "triton_tls_key", "triton_tls_name"})
TLS_OF_SERVER = frozenset({"tls_cert", "tls_key", "tls_client_ca"})

# Settings with secrets, and their variables: every user of the machine sees a command line.
_VARIABLES = {"redis_url": "CONCH_REDIS_URL", "triton_key": KEY_VARIABLE}

# Settings that are lists: the option that adds one, and what it is.
_REPEATED = {
    "triton_endpoints": ("--triton", "[MODEL[,ALIAS...]=][dns:]HOST:PORT[,...]"),
    "root_paths": ("--root-path", "PATH"),
    "cors_origins": ("--cors-origin", "ORIGIN"),
    "allow_hosts": ("--allow-host", "NAME"),
    "model_limits": ("--model-limit", "MODEL:LIMITS"),
}


def add_options(
    parser: argparse._ActionsContainer, defaults: Settings, *, without: Collection[str] = (), only: Collection[str] = ()
) -> None:
    """Add one option per setting, except those that the caller decides, or only those that it wants."""
    for field in dataclasses.fields(Settings):
        if field.name in {*without, "triton_key"} or (only and field.name not in only):
            continue
        default = getattr(defaults, field.name)
        kind: dict[str, Any] = {"type": type(default), "metavar": field.name.rpartition("_")[2].upper()}
        if isinstance(default, bool):
            kind = {"action": "store_true"}
        elif isinstance(default, tuple):
            kind = {"action": "append", "metavar": _REPEATED[field.name][1]}
            default = ", ".join(default) or "none"
        text = f"{_HELP.get(field.name, '')} ({default})".strip()
        parser.add_argument(_flag(field.name), dest=field.name, default=argparse.SUPPRESS, help=text, **kind)


def settings_from(options: argparse.Namespace, defaults: Settings) -> Settings:
    """Return the settings that the options say.

    Raises:
        SettingsError: a value breaks a rule.
    """
    names = [field.name for field in dataclasses.fields(Settings) if field.name in options]
    given = {name: getattr(options, name) for name in names}
    lists = {name: tuple(value) for name, value in given.items() if isinstance(value, list)}
    return dataclasses.replace(defaults, **given | lists)


def settings_of_environment(environment: Mapping[str, str], defaults: Settings) -> Settings:
    """Return the defaults with what variables say in place of options.

    Raises:
        SettingsError: a value breaks a rule.
    """
    traces = environment.get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "")
    if not traces and (base := environment.get("OTEL_EXPORTER_OTLP_ENDPOINT")):
        traces = f"{base.rstrip('/')}/v1/traces"
    redis_url, triton_key = (environment.get(variable, "") for variable in _VARIABLES.values())
    return dataclasses.replace(defaults, otlp_endpoint=traces, redis_url=redis_url, triton_key=triton_key)


def settings_to_environment(settings: Settings) -> dict[str, str]:
    """Return the variables that say what `settings_to_arguments` leaves out."""
    return {variable: getattr(settings, name) for name, variable in _VARIABLES.items()}


def settings_to_arguments(settings: Settings) -> list[str]:
    """Return the options that say these settings, but for what must not be seen."""
    arguments = []
    for field in dataclasses.fields(Settings):
        if field.name in _VARIABLES:
            continue
        flag, value = _flag(field.name), getattr(settings, field.name)
        if isinstance(value, bool):
            arguments += [flag] if value else []
        else:
            arguments += [f"{flag}={item}" for item in (value if isinstance(value, tuple) else (value,))]
    return arguments


def _flag(name: str) -> str:
    return _REPEATED[name][0] if name in _REPEATED else "--" + name.replace("_", "-")
