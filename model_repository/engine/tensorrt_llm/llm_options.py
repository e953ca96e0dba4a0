"""Keywords of TensorRT-LLM's LLM that a user gives with --llm-option, and Conch passes on."""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from importlib import resources
from typing import Any

from model_repository.engine.tensorrt_llm.releases import RELEASES, release_of
from model_repository.system.command_parser import did_you_mean, json_or_text

SPECULATION = "speculative_config"


@functools.cache
def _table() -> dict[str, Any]:
    file = resources.files("model_repository").joinpath("engine", "tensorrt_llm", "llm_options.toml")
    return tomllib.loads(file.read_text(encoding="utf-8"))


def read_llm_options(items: Sequence[str]) -> dict[str, Any]:
    """Read KEY=VALUE items.

    A value is JSON, or else a text. A key may name a member of an object, such as `moe_config.backend`.

    Raises:
        ValueError: names the item and the rule.
    """
    options: dict[str, Any] = {}
    for item in items:
        key, separator, text = item.partition("=")
        *path, last = key.split(".")
        if not all((*path, last)) or not separator:
            raise ValueError(f"{item}: expected KEY=VALUE")
        place = options
        for name in path:
            place = place.setdefault(name, {})
            if not isinstance(place, dict):
                raise ValueError(f"{key}: {name} has a value already, which is no object")
        if last in place:
            raise ValueError(f"{key}: given twice")
        place[last] = json_or_text(text)
    return options


def check_llm_options(
    options: Mapping[str, Any], backend: str, version: str | None, *, pp_size: int, has_adapters: bool
) -> None:
    """Check the keys of options, and that they work together and with the model's own settings.

    TensorRT-LLM checks the values itself at its start.

    Args:
        version: of the installed TensorRT-LLM; None: the options of each recorded release are accepted.

    Raises:
        ValueError: names the key and the rule.
    """
    releases = [release.version for release in (RELEASES if version is None else [release_of(version)])]
    keywords, decided = _table()["keywords"], _table()["decided"]
    known = {key for release in releases for key in keywords[release].get(backend, ())}
    for key in _keys(options):
        if key in decided:
            raise ValueError(f"{key}: Conch sets this itself: {decided[key]}")
        if key.partition(".")[0] not in known:
            of = f"backend={backend} of TensorRT-LLM {' and '.join(releases)}"
            raise ValueError(f"{key}: {of} has no such option{did_you_mean(key, sorted(known))}")
    settings = {**options} | {"pipeline_parallel_size": pp_size, "lora_config": has_adapters}
    for rule in _table()["refused"]:
        one, other = rule["together"]
        for release in releases:
            if release in rule["matrix"] and _is_on(settings, one) and _is_on(settings, other):
                pair = " and ".join(rule["matrix"][release])
                raise ValueError(f"{one}: not together with {other}: TensorRT-LLM {release} does not support {pair}")


def _keys(options: Mapping[str, Any]) -> Iterator[str]:
    """Yield each key, and with a dot those of its object."""
    for key, value in options.items():
        yield key
        if isinstance(value, dict):
            yield from (f"{key}.{name}" for name in value)


def _is_on(settings: Mapping[str, Any], key: str) -> bool:
    """Whether a setting differs from its default: a size of 1 does not."""
    value: Any = settings
    for name in key.split("."):
        value = value.get(name) if isinstance(value, Mapping) else None
    return value is True or value not in (None, False, 0, 1)
