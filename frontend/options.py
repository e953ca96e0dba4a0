"""The settings as command-line options and environment variables, and back."""

from __future__ import annotations

import argparse
import dataclasses
import socket
from collections.abc import Collection, Mapping
from typing import Any

from frontend.settings import GROUPS, SETTINGS, Setting, Settings, flag_of

# TLS of the connections to Tritons, and of a server's own port.
TLS_TO_TRITON = frozenset({"triton_tls_ca", "triton_tls_cert", "triton_tls_key", "triton_tls_name"})
TLS_OF_SERVER = frozenset({"tls_cert", "tls_key", "tls_client_ca"})


def add_options(
    parser: argparse.ArgumentParser, defaults: Settings, *, without: Collection[str] = (), only: Collection[str] = ()
) -> None:
    """Add one option for each setting, under the heading of its group: without some settings, or for some only."""
    for title, names in GROUPS.items():
        shown = [
            name
            for name in names
            if SETTINGS[name].flag is not None and name not in without and (not only or name in only)
        ]
        if not shown:
            continue
        group = parser.add_argument_group(title)
        for name in shown:
            _add_option(group, name, getattr(defaults, name))


def _add_option(group: argparse._ArgumentGroup, name: str, default: Any) -> None:
    setting = SETTINGS[name]
    metavar = setting.metavar or name.rpartition("_")[2].upper()
    kind: dict[str, Any] = {"type": type(default), "metavar": "N" if isinstance(default, int) else metavar}
    if isinstance(default, bool):
        kind = {"action": "store_true"}
    elif isinstance(default, tuple):
        kind = {"action": "append", "metavar": metavar}
    shown = default_text(default)
    text = f"{explanation(setting)} (default: {shown})" if shown else explanation(setting)
    group.add_argument(flag_of(name), dest=name, default=argparse.SUPPRESS, help=text, **kind)


def explanation(setting: Setting) -> str:
    """Return the help text of a setting, with what follows from its kind."""
    repeatable = " Repeatable." if isinstance(setting.default, tuple) else ""
    return (
        setting.help
        + repeatable
        + (f" Also from {setting.variable}." if setting.variable and setting.flag is not None else "")
    )


def default_text(default: object) -> str:
    """Return a default as an option would give it; empty for an empty text or list, and for a switch that is off."""
    match default:
        case False:
            return ""
        case float():
            return f"{default:g}"
        case tuple():
            return ", ".join(default)
        case _:
            return str(default)


def settings_from(options: argparse.Namespace, defaults: Settings) -> Settings:
    """Return the defaults with the values of the options that were given.

    Raises:
        SettingsError: a value breaks a rule.
    """
    given = {name: getattr(options, name) for name in SETTINGS if name in options}
    if not socket.has_dualstack_ipv6():
        given |= {name: "0.0.0.0" for name in ("host", "admin_host") if given.get(name) == "::"}
    lists = {name: tuple(value) for name, value in given.items() if isinstance(value, list)}
    return dataclasses.replace(defaults, **given | lists)


def settings_of_environment(environment: Mapping[str, str], defaults: Settings) -> Settings:
    """Return the defaults with the values of environment variables.

    Raises:
        SettingsError: a value breaks a rule.
    """
    given = {name: environment.get(setting.variable, "") for name, setting in SETTINGS.items() if setting.variable}
    if not given["otlp_endpoint"] and (base := environment.get("OTEL_EXPORTER_OTLP_ENDPOINT")):
        given["otlp_endpoint"] = f"{base.rstrip('/')}/v1/traces"
    return dataclasses.replace(defaults, **given)  # type: ignore[arg-type]


def settings_to_environment(settings: Settings) -> dict[str, str]:
    """Return the variables of the secrets."""
    return {setting.variable: getattr(settings, name) for name, setting in SETTINGS.items() if setting.is_secret}


def settings_to_arguments(settings: Settings) -> list[str]:
    """Return the options of all settings but the secrets: every user of the machine sees a command line."""
    arguments = []
    for name, setting in SETTINGS.items():
        if setting.is_secret:
            continue
        flag, value = flag_of(name), getattr(settings, name)
        if isinstance(value, bool):
            arguments += [flag] if value else []
        else:
            arguments += [f"{flag}={item}" for item in (value if isinstance(value, tuple) else (value,))]
    return arguments
