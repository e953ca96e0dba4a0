"""Models as /v1/models shows them."""

from __future__ import annotations

from frontend.translate.model_cards import model_card, model_list
from frontend.triton.models import ModelSnapshot
from tests.fakes import served_model

MODEL = served_model("org/team/demo", aliases=("gpt-4o", 'a "b"/é:1'), adapters=("formal",))
NAMES = ModelSnapshot(ready={MODEL.id: MODEL}).names()


def test_a_model_is_its_own_root() -> None:
    assert model_card(NAMES["org/team/demo"]) == {
        "id": "org/team/demo",
        "object": "model",
        "created": 1700000000,
        "owned_by": "conch",
        "root": "org/team/demo",
        "parent": None,
        "max_model_len": 2048,
    }


def test_an_alias_has_the_model_as_root_and_no_parent() -> None:
    card = model_card(NAMES['a "b"/é:1'])
    assert (card["id"], card["root"], card["parent"]) == ('a "b"/é:1', "org/team/demo", None)


def test_an_adapter_has_the_model_as_root_and_parent() -> None:
    card = model_card(NAMES["formal"])
    assert (card["id"], card["root"], card["parent"]) == ("formal", "org/team/demo", "org/team/demo")


def test_every_name_is_listed_once_and_in_order() -> None:
    listed = model_list(NAMES)
    assert listed["object"] == "list"
    assert [card["id"] for card in listed["data"]] == ['a "b"/é:1', "formal", "gpt-4o", "org/team/demo"]
    assert model_list({})["data"] == []
