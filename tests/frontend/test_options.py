"""The settings as options, and back."""

from __future__ import annotations

import argparse
import dataclasses

import pytest

from frontend.__main__ import main
from frontend.options import (
    add_options,
    settings_from,
    settings_of_environment,
    settings_to_arguments,
    settings_to_environment,
)
from frontend.settings import Settings


def parsed(arguments: list[str], defaults: Settings) -> Settings:
    parser = argparse.ArgumentParser()
    add_options(parser, defaults)
    return settings_from(parser.parse_args(arguments), defaults)


def test_an_option_that_is_not_given_keeps_its_default():
    defaults = Settings(port=8000)
    assert parsed([], defaults) == defaults
    assert parsed(["--host=::1"], defaults) == dataclasses.replace(defaults, host="::1")


@pytest.mark.parametrize(("has_ipv6", "host"), [(True, "::"), (False, "0.0.0.0")])
def test_every_address_is_every_ipv4_address_on_a_machine_without_ipv6(
    monkeypatch: pytest.MonkeyPatch, has_ipv6: bool, host: str
) -> None:
    monkeypatch.setattr("socket.has_dualstack_ipv6", lambda: has_ipv6)
    settings = parsed(["--host=::", "--admin-host=::", "--admin-port=9", "--allow-anonymous"], Settings())
    assert (settings.host, settings.admin_host) == (host, host)


def test_settings_survive_the_way_through_options():
    settings = Settings(
        host="0.0.0.0",
        port=1,
        triton_endpoints=("triton:8001", "org/demo=triton:8001,other:8001"),
        strict_extra=True,
        validation_status=422,
        default_model="org/demo",
        root_paths=("/openai", "/inference/v1"),
        completion_max_tokens=0,
        context_length_exceeded_behavior="error",
        include_stop_str_in_output=True,
        request_timeout_s=0.25,
        stream_keepalive_s=0,
        tls_cert="cert.pem",
        tls_key="key.pem",
        admin_port=2,
        triton_tls_ca="ca.pem",
        triton_tls_cert="mine.pem",
        triton_tls_key="mine.key",
        triton_tls_name="triton.example.com",
        cors_origins=("https://a.example", "http://[::1]:3000"),
        allow_anonymous=True,
    )
    assert parsed(settings_to_arguments(settings), Settings()) == settings


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["api", "--triton=nowhere"], "--triton='nowhere': 'nowhere' must be host:port"),
        (["health", "--triton=nowhere"], "--triton='nowhere': 'nowhere' must be host:port"),
        (["api", "--model-limit=demo"], "--model-limit='demo': must be MODEL:name=value"),
        (["api", "--redis-url=redis+sentinel://a:26379/main"], "--redis-url: must be redis://HOST:PORT/DATABASE"),
        (["api", "--redis-url=redis://:pass/word@a:6379"], "--redis-url: must be redis://HOST:PORT/DATABASE"),
        (["api", "--redis-url=redis://a?socket_timeot=1"], "--redis-url: "),
    ],
)
def test_a_text_that_breaks_its_grammar_ends_the_command_before_anything_is_started(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    assert capsys.readouterr().err.startswith(f"error: {message}")


@pytest.mark.parametrize("command", ["health", "drain"])
@pytest.mark.parametrize("value", ["demo=a:1", "a:1,b:1"])
def test_an_option_for_one_server_takes_neither_a_model_nor_a_second_server(
    command: str, value: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([command, f"--triton={value}"]) == 2
    assert capsys.readouterr().err == f"error: --triton='{value}': must be one host:port, without a model\n"


def test_the_standard_variables_say_where_spans_go():
    def endpoint(**environment: str) -> str:
        return settings_of_environment(environment, Settings()).otlp_endpoint

    assert endpoint() == ""
    assert endpoint(OTEL_EXPORTER_OTLP_ENDPOINT="http://c:4318/") == "http://c:4318/v1/traces"
    both = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://t/x"}
    assert endpoint(**both) == "http://t/x"


def test_secrets_are_in_no_command_line():
    settings = Settings(port=1, redis_url="redis://:password@redis:6379/0", triton_key="password" * 4)
    assert "password" not in " ".join(settings_to_arguments(settings))
    told = settings_of_environment(settings_to_environment(settings), Settings())
    assert parsed(settings_to_arguments(settings), told) == settings
