"""What `--triton` says: endpoints, and what is offered of what each of them serves."""

from __future__ import annotations

import pytest

from frontend.settings import SettingsError
from frontend.triton.endpoints import ANY_MODEL, Endpoints, ModelFilter


def test_without_a_model_everything_is_offered_and_nothing_is_expected():
    endpoints = Endpoints.parse(["a:1,b:1", "dns:pods:8001"])
    assert endpoints.models == {"a:1": [ANY_MODEL], "b:1": [ANY_MODEL], "dns:pods:8001": [ANY_MODEL]}
    assert (endpoints.expected, endpoints.is_complete) == (frozenset(), False)


def test_an_endpoint_may_be_named_for_several_models_and_is_one():
    endpoints = Endpoints.parse(["org/demo:v1=a:1,[::1]:2", "other=a:1"])
    assert endpoints.models == {"a:1": ["org/demo:v1", "other"], "[::1]:2": ["org/demo:v1"]}
    assert (endpoints.expected, endpoints.is_complete) == (frozenset({"org/demo:v1", "other"}), True)


def test_an_endpoint_named_with_a_model_and_without_may_serve_anything():
    endpoints = Endpoints.parse(["demo=a:1", "a:1"])
    assert endpoints.models == {"a:1": ["demo", ANY_MODEL]}
    assert (endpoints.expected, endpoints.is_complete) == (frozenset({"demo"}), False)


def test_aliases_stand_for_the_model_beside_them():
    endpoints = Endpoints.parse(['demo,gpt-4o,a "b"=é:1=dns:pods:1', "other=a:1"])
    assert endpoints.aliases == {"gpt-4o": "demo", 'a "b"=é:1': "demo"}
    assert (endpoints.models["dns:pods:1"], endpoints.expected) == (["demo"], frozenset({"demo", "other"}))


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["nowhere"], "--triton='nowhere': 'nowhere' must be host:port"),
        (["a:0"], "'a:0' must be host:port"),
        (["dns:a..b:1"], "'dns:a..b:1' must be host:port"),
        ([f"{'a' * 64}.b:1"], ".b:1' must be host:port"),
        (["demo=a:1,"], "--triton='demo=a:1,': '' must be host:port"),
        (["=a:1"], "--triton='=a:1': model id ''"),
        (["a=b=c:1"], "--triton='a=b=c:1': model id 'a=b'"),
        (["a:1", "a:1"], "--triton='a:1': a:1 can be named once only"),
        (["demo,=a:1"], "--triton='demo,=a:1': an alias must not be empty"),
        (["demo,x=a:1", "other,x=a:1"], "--triton='other,x=a:1': x is a name of demo already"),
        (["demo=a:1", "demo=b:1,a:1"], "--triton='demo=b:1,a:1': a:1 can be named once only for demo"),
    ],
)
def test_what_breaks_a_rule_is_refused_in_a_line_with_option_value_and_rule(texts: list[str], message: str):
    with pytest.raises(SettingsError) as caught:
        Endpoints.parse(texts)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_model_is_offered_as_long_as_one_naming_of_it_is_left():
    model_filter = ModelFilter(["a"])
    model_filter.add(["a", "b"])
    assert ("a" in model_filter, "b" in model_filter, "c" in model_filter) == (True, True, False)
    assert model_filter.remove(["a"])
    assert "a" in model_filter
    assert model_filter.remove(["b"])
    assert "b" not in model_filter
    assert not model_filter.remove(["a"])


def test_every_model_passes_while_any_model_is_in_the_filter():
    model_filter = ModelFilter(["a"])
    model_filter.add([ANY_MODEL])
    assert "b" in model_filter
    model_filter.remove([ANY_MODEL])
    assert "b" not in model_filter
