"""Names and defaults of a model."""

from __future__ import annotations

import pytest

from build_engines.errors import BuildError
from build_engines.serving import Loading, Serving, check_id, check_names_differ, names_of
from model_repository.contract.request import ContextOverflow
from model_repository.model_parameters import Load


@pytest.mark.parametrize(
    "alias", ["gpt-4o", "nvidiaLlama-3.1-Nemotron-70B-Instruct", "a/b:c", "two words", "日本", "a--b", '"', "=", "{}"]
)
def test_an_alias_may_hold_any_printable_characters(alias: str) -> None:
    assert Serving.of([alias], {}).aliases == (alias,)


@pytest.mark.parametrize("alias", ["", " ", " a", "a ", "a\n", "a\tb", "\x00", "a\u00a0b", "\u200b", "\udc80"])
def test_an_alias_that_cannot_be_read_is_refused(alias: str) -> None:
    with pytest.raises(BuildError, match=r"alias '.*': printable characters, no space at either end"):
        Serving.of([alias], {})


def test_defaults_are_checked() -> None:
    defaults = Serving.of([], {"context_length_exceeded_behavior": "error"}).defaults
    assert defaults == {"context_length_exceeded_behavior": ContextOverflow.ERROR}
    with pytest.raises(BuildError, match="default chat_max_tokens=0: must be a whole number from 1"):
        Serving.of([], {"chat_max_tokens": 0})
    with pytest.raises(BuildError, match="default max_tokens: expected one of completion_max_tokens"):
        Serving.of([], {"max_tokens": 1})


def test_options_of_loading_are_read_and_shown() -> None:
    loading = Loading.of("demand", "1h30m", True)
    assert loading == Loading(load=Load.DEMAND, keep_alive_s=5400, is_pinned=True)
    assert loading.text == "on demand, unloaded after 5400 s without work, pinned"
    assert Loading.of("start", "-1", None).text == "at the start, never unloaded"
    assert Loading.of(None, None, None).text == ""


def test_an_option_of_loading_is_before_that_of_the_artifact() -> None:
    of_artifact = Loading(load=Load.START, keep_alive_s=60, is_pinned=True)
    assert Loading(load=Load.DEMAND).or_else(of_artifact) == Loading(load=Load.DEMAND, keep_alive_s=60, is_pinned=True)
    assert Loading(keep_alive_s=0, is_pinned=False).or_else(of_artifact) == Loading(
        load=Load.START, keep_alive_s=0, is_pinned=False
    )


def test_an_id_that_cannot_be_a_folder_is_refused() -> None:
    check_id("org/model-7B.v1:latest")
    for name in ("", "a--b", "../a", "a b"):
        with pytest.raises(BuildError, match="letters, digits"):
            check_id(name)


@pytest.mark.parametrize(
    ("aliases", "adapters", "message"),
    [
        (["m"], [], "alias 'm' of m: model m has the same name"),
        (["x", "x"], [], "alias 'x' of m: named twice"),
        ([], ["m"], "adapter m of m: model m has the same name"),
        (["x"], ["x"], "adapter x of m: alias 'x' of m has the same name"),
        (["p"], [], "preset p of m: alias 'p' of m has the same name"),
    ],
)
def test_names_that_are_the_same_are_refused(aliases: list[str], adapters: list[str], message: str) -> None:
    with pytest.raises(BuildError, match=message):
        check_names_differ(names_of("m", aliases, adapters, ["p"]))
