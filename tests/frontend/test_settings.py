"""The configuration: every bad value is refused by its setting's name."""

from __future__ import annotations

from typing import Any

import pytest

from frontend.settings import Settings, SettingsError
from model_repository.contract.request import ContextOverflow
from model_repository.model_parameters import RequestDefaults


def test_the_defaults_are_valid() -> None:
    Settings()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("host", ""),
        ("port", -1),
        ("port", 65536),
        ("port", "80"),
        ("port", True),
        ("workers", -1),
        ("workers", 257),
        ("triton_endpoints", ()),
        ("triton_endpoints", "127.0.0.1:8001"),
        ("triton_tls_cert", "cert.pem"),
        ("triton_tls_key", "key.pem"),
        ("triton_tls_name", "triton"),  # without triton_tls_ca
        ("max_body_bytes", 0),
        ("validation_status", 418),
        ("validation_status", True),
        ("completion_max_tokens", -1),
        ("completion_max_tokens", 2**31),
        ("chat_max_tokens", 2**31),
        ("chat_max_tokens", None),
        ("max_choices", 0),
        ("max_choices", 2**20 + 1),
        ("max_choices", 1.5),
        ("context_length_exceeded_behavior", "cut"),
        ("context_length_exceeded_behavior", ""),
        ("root_paths", ("openai",)),
        ("root_paths", ("/openai/",)),
        ("root_paths", ("/",)),
        ("root_paths", ("",)),
        ("root_paths", ("/a", "/b c")),
        ("root_paths", ("/{id}",)),
        ("stats_interval_s", True),
        ("stats_interval_s", 0),
        ("stats_deadline_s", float("nan")),
        ("drain_timeout_s", -1),
        ("breaker_failures", 0),
        ("breaker_pause_s", 0),
        ("probe_deadline_s", 0),
        ("retry_share", 1.5),
        ("retry_share", True),
        ("header_timeout_s", 0),
        ("stalled_reader_s", 0),
        ("ping_interval_s", -1),
        ("max_json_depth", 129),
        ("max_url_bytes", 1),
        ("max_headers", 0),
        ("max_content_parts", 0),
        ("tls_key", "key.pem"),
        ("tls_cert", "cert.pem"),
        ("tls_client_ca", "ca.pem"),
        ("cors_origins", ("a.example",)),
        ("cors_origins", ("https://a.example/",)),
        ("host", "0.0.0.0"),
        ("host", "::"),
        ("host", "example.org"),
        ("host", "10.0.0.1"),
        ("admin_host", ""),
        ("admin_port", -1),
        ("key_interval_s", 0),
        ("admin_port", 8080),  # the API's
        ("admin_tls", True),  # without a port, and a certificate
        ("launcher_key_sha256", "x"),
    ],
)
def test_a_bad_value_is_refused_with_the_settings_name(name: str, value: Any) -> None:
    with pytest.raises(SettingsError, match=f"^{name}="):
        Settings(**{name: value})


@pytest.mark.parametrize("endpoint", ["triton:8001", "10.0.0.1:8001", "[::1]:8001", "triton.conch.svc.cluster.local:1"])
def test_endpoints_are_host_and_port(endpoint: str) -> None:
    assert Settings(triton_endpoints=(endpoint,)).triton_endpoints == (endpoint,)


@pytest.mark.parametrize("name", ["a:8001", "a b", "https://a"])
def test_the_name_in_tritons_certificates_is_a_name_alone(name: str) -> None:
    with pytest.raises(SettingsError, match=r"^triton_tls_name="):
        Settings(triton_tls_ca="ca.pem", triton_tls_name=name)


def test_endpoints_of_a_name_may_have_certificates() -> None:
    assert Settings(triton_endpoints=("dns:pods:8001",), triton_tls_ca="ca.pem").triton_endpoints


@pytest.mark.parametrize("path", ["/openai", "/inference/v1", "/a.b/c-d_e~f"])
def test_a_root_path_is_a_path_without_a_slash_at_its_end(path: str) -> None:
    assert Settings(root_paths=(path,)).root_paths == (path,)


def test_request_defaults_are_the_settings_and_zero_fills_the_window() -> None:
    assert Settings().request_defaults() == RequestDefaults(
        completion_max_tokens=16,
        chat_max_tokens=256,
        context_length_exceeded_behavior=ContextOverflow.TRUNCATE,
        include_stop_str_in_output=False,
    )
    settings = Settings(
        completion_max_tokens=0,
        chat_max_tokens=0,
        context_length_exceeded_behavior="error",
        include_stop_str_in_output=True,
    )
    assert settings.request_defaults() == RequestDefaults(
        completion_max_tokens=None,
        chat_max_tokens=None,
        context_length_exceeded_behavior=ContextOverflow.ERROR,
        include_stop_str_in_output=True,
    )


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "::1", "localhost"])
def test_loopback_is_listened_on_without_keys(host: str) -> None:
    Settings(host=host, admin_host=host, admin_port=1)


@pytest.mark.parametrize("fields", [{"key_file": "keys.json"}, {"allow_anonymous": True}])
def test_other_addresses_need_keys_or_a_word(fields: dict[str, Any]) -> None:
    Settings(host="0.0.0.0", admin_host="0.0.0.0", admin_port=1, **fields)
    with pytest.raises(SettingsError, match=r"^admin_host=.*--key-file FILE names them, and --allow-anonymous"):
        Settings(admin_host="0.0.0.0", admin_port=1)
    Settings(admin_host="0.0.0.0")  # nothing listens there
