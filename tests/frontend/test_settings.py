"""The configuration: every bad value is refused by its setting's name."""

from __future__ import annotations

from typing import Any

import pytest

from frontend.settings import GROUPS, SETTINGS, Setting, Settings, SettingsError, flag_of
from model_repository.contract.request import ContextOverflow
from model_repository.model_parameters import RequestDefaults


def bad_values(declared: Setting) -> list[Any]:
    match declared.default:
        case _ if declared.choices:
            return ["cut", True, None]
        case bool():
            return ["yes", 1, None]
        case int():
            return [declared.low - 1, declared.high + 1, 1.5, "1", True, None]
        case float():
            return [-1, float("nan"), float("inf"), "1", True, *([] if declared.is_zero_allowed else [0])]
        case tuple():
            return ["text", ("",), None]
        case _:
            return [1, None]


@pytest.mark.parametrize("name", SETTINGS)
def test_a_value_of_another_type_or_beyond_the_range_is_refused_with_the_settings_name(name: str) -> None:
    label = SETTINGS[name].variable if SETTINGS[name].flag is None else flag_of(name)
    for value in bad_values(SETTINGS[name]):
        with pytest.raises(SettingsError, match=f"^{label}(=|: )"):
            Settings(**{name: value})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("host", ""),
        ("triton_endpoints", ()),
        ("triton_tls_cert", "cert.pem"),
        ("triton_tls_name", "triton"),  # without triton_tls_ca
        ("root_paths", ("openai",)),
        ("root_paths", ("/openai/",)),
        ("root_paths", ("/a", "/b c")),
        ("root_paths", ("/{id}",)),
        ("tls_key", "key.pem"),
        ("tls_cert", "cert.pem"),
        ("tls_client_ca", "ca.pem"),
        ("cors_origins", ("a.example",)),
        ("cors_origins", ("https://a.example/",)),
        ("otlp_endpoint", "collector:4318"),
        ("host", "0.0.0.0"),
        ("host", "example.org"),
        ("admin_host", ""),
        ("admin_port", 8080),  # the API's
    ],
)
def test_a_value_that_breaks_a_rule_is_refused_with_the_settings_name(name: str, value: Any) -> None:
    with pytest.raises(SettingsError, match=f"^{flag_of(name)}="):
        Settings(**{name: value})


def test_a_secret_is_in_no_error() -> None:
    for name, label in (("redis_url", "--redis-url"), ("triton_key", "CONCH_TRITON_KEY")):
        with pytest.raises(SettingsError, match=f"^{label}: must be ") as caught:
            Settings(**{name: "password"})  # type: ignore[arg-type]
        assert "password" not in str(caught.value)
    assert "password" not in repr(Settings(redis_url="redis://:password@redis", triton_key="password" * 4))


@pytest.mark.parametrize("name", ["a:8001", "a b", "https://a"])
def test_the_name_in_tritons_certificates_is_a_name_alone(name: str) -> None:
    with pytest.raises(SettingsError, match=r"^--triton-tls-name="):
        Settings(triton_tls_ca="ca.pem", triton_tls_name=name)


def test_request_defaults_are_the_settings_and_zero_fills_the_window() -> None:
    assert Settings().request_defaults == RequestDefaults(
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
    assert settings.request_defaults == RequestDefaults(
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
    with pytest.raises(SettingsError, match=r"^--admin-host=.*--key-file FILE names the keys, and --allow-anonymous"):
        Settings(admin_host="0.0.0.0", admin_port=1)
    Settings(admin_host="0.0.0.0")  # nothing listens there


def test_each_setting_has_one_heading() -> None:
    assert sorted(name for names in GROUPS.values() for name in names) == sorted(SETTINGS)
