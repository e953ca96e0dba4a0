"""The rendered commands, read by the programs that they are for."""

from __future__ import annotations

import re
from dataclasses import dataclass

import pytest

from build_engines import __main__ as build_engines
from frontend import __main__ as frontend
from frontend.options import settings_from
from frontend.settings import Settings
from frontend.triton.endpoints import Endpoints
from tests.helm.cases import CASES, SHAPES, case, models_of, with_demo
from tests.helm.chart import Rendered, pods, render

START_RANKS = "/etc/conch/scripts/start-ranks.sh"  # it runs its arguments


@dataclass(frozen=True)
class Command:
    """What a container, or a probe of it, runs."""

    owner: str
    words: list[str]

    @property
    def module(self) -> str:
        """The module that Python runs; empty: none."""
        return self.words[2] if self.words[:2] == ["python3", "-m"] else ""


def commands(rendered: Rendered) -> list[Command]:
    """Return every command of every container."""
    found = []
    for pod in pods(rendered):
        for container in pod.containers:
            found.append(Command(pod.owner, [*container["command"], *container.get("args", [])]))
            for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
                if "exec" in container.get(probe, {}):
                    found.append(Command(f"{pod.owner} {probe}", container[probe]["exec"]["command"]))
            if "lifecycle" in container:
                found.append(Command(f"{pod.owner} preStop", container["lifecycle"]["preStop"]["exec"]["command"]))
    return [Command(each.owner, _inner(each.words)) for each in found]


def _inner(words: list[str]) -> list[str]:
    """Return the command that the script of the ranks runs."""
    return words[2:] if words[1:2] == [START_RANKS] else words


@pytest.mark.parametrize("name", SHAPES)
def test_every_command_is_one_that_its_program_takes(name: str) -> None:
    seen = set()
    for command in commands(render(CASES[name])):
        parser = {"frontend": frontend._parser, "build_engines": build_engines._parser}.get(command.module)
        if parser is not None:
            options = parser().parse_args(command.words[3:])
            seen.add(command.words[3])
            assert options.command
        else:
            assert not command.words or command.words[0] == "sleep" or command.words[1].startswith("/etc/conch/"), (
                command
            )
    assert {"api", "triton", "health", "drain"} <= seen
    assert seen & {"build", "render"}


@pytest.mark.parametrize("name", SHAPES)
def test_the_frontends_options_are_settings_that_hold_together(name: str) -> None:
    [command] = [each for each in commands(render(CASES[name])) if each.words[3:4] == ["api"]]
    settings = settings_from(frontend._parser().parse_args(command.words[3:]), Settings())
    assert settings.admin_port == 9000
    endpoints = Endpoints.parse(settings.triton_endpoints)
    assert endpoints.expected == {model.get("servedName") or model["name"] for model in models_of(name)}
    assert endpoints.is_complete


def test_values_become_options() -> None:
    [command] = [each for each in commands(case("cpu")) if each.words[3:4] == ["api"]]
    assert {
        "--workers=2",
        "--model-limit=demo:in_flight=16,queue_wait_s=2.5",
        "--default-model=demo",
        "--tls-client-ca=/etc/conch/tls/ca.crt",
        "--request-timeout-s=0.5",
        "--idle-timeout-s=3700",
        "--tokens-per-minute=100000",
        "--metrics-by-key",
        "--otlp-endpoint=http://collector.monitoring:4318/v1/traces",
    } <= set(command.words)
    assert "--allow-anonymous" not in command.words


def test_large_numbers_are_not_rounded() -> None:
    limits = {"maxBodyBytes": 2**31 - 1, "maxInFlight": 123456789}
    [command] = [each for each in commands(render({"frontend": {"limits": limits}})) if each.words[3:4] == ["api"]]
    assert {"--max-body-bytes=2147483647", "--max-in-flight=123456789"} <= set(command.words)


def test_a_model_with_names_of_any_characters_is_passed_on_as_it_is() -> None:
    source = {"existingClaim": "c", "path": "x"}
    aliases = ['a "b"', "#1: x=y"]
    rendered = render(with_demo(servedName="org/a:b", aliases=aliases, limits={"maxInFlight": 2}, source=source))
    words = [word for command in commands(rendered) for word in command.words]
    target = '--triton=org/a:b,a "b",#1: x=y=dns:demo-demo-pods:8001'
    assert {"org/a:b", "--model-limit=org/a:b:in_flight=2", target} <= set(words)


def test_a_model_from_a_gguf_file_is_built_of_all_its_files() -> None:
    source = {"existingClaim": "c", "gguf": "a.gguf", "tokenizer": "folder", "mmproj": "b.gguf"}
    words = [word for command in commands(render(with_demo(source=source))) for word in command.words]
    assert {"--gguf=/source/a.gguf", "--tokenizer=/source/folder", "--mmproj=/source/b.gguf"} <= set(words)


def test_a_gguf_file_of_the_hub_is_built_at_its_revision() -> None:
    source = {"repo": "a/b", "revision": "v2", "gguf": "Q8_0"}
    values = with_demo(source={"huggingface": source}) | {"cache": {"type": "pvc"}}
    [words] = [each.words for each in commands(render(values)) if each.words[3:4] == ["build"]]
    assert "--gguf=a/b@v2:Q8_0" in words and not any(word.startswith("--checkpoint") for word in words)


@pytest.mark.parametrize("name", CASES)
def test_what_is_built_can_be_planned(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    for command in commands(render(CASES[name])):
        if command.words[3:4] == ["build"] and "--runtime=tensorrt_llm" in command.words:
            words = [re.sub("^--checkpoint=/source/.*", "--checkpoint=a/b@main", word) for word in command.words[3:]]
            assert build_engines.main([*words, "--dry-run"]) == 0, capsys.readouterr().err
