"""The client of chats in the terminal: the models that it talks to."""

from __future__ import annotations

import json
from collections.abc import Generator
from typing import Any

import pytest

from frontend.cli.chat_client import ChatClient, ChatFailed

CHATS = {"id": "demo", "owned_by": "conch", "max_model_len": 64, "task": "generate"}
EMBEDS = {"id": "bge-m3", "owned_by": "conch", "max_model_len": 64, "task": "embed"}


class Server(ChatClient):
    """Has these models."""

    def __init__(self, *cards: dict[str, Any]) -> None:
        super().__init__("http://server")
        self._cards = cards

    def _lines(self, method: str, path: str, body: dict[str, Any] | None = None) -> Generator[bytes]:
        yield json.dumps({"data": self._cards}).encode()


def test_a_model_that_embeds_is_no_choice_for_a_chat() -> None:
    assert Server(EMBEDS, CHATS).models() == {"demo": 64}


@pytest.mark.parametrize(("cards", "model"), [([CHATS, EMBEDS], "bge-m3"), ([EMBEDS], "")])
def test_a_chat_with_a_model_that_embeds_is_refused_with_its_path(cards: list[dict[str, Any]], model: str) -> None:
    with pytest.raises(ChatFailed, match=r"^bge-m3 does not chat: its task is embed, at http://server/v1/embeddings$"):
        Server(*cards).models(model)


def test_a_server_that_names_no_tasks_has_models_that_chat() -> None:
    assert Server({"id": "other", "owned_by": "somebody"}).models() == {"other": 0}
