"""The types of blocks and items of the vendors' own clients: each is served, skipped, or refused on purpose."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, get_args

import pytest
from anthropic.types.beta import BetaContentBlockParam
from openai.types.responses import ResponseInputItemParam
from typing_extensions import get_type_hints, is_typeddict

from frontend.protocol import messages, responses

# They carry what the user asks about, or change what the model may do.
REFUSED_BLOCKS = {"compaction", "container_upload", "search_result", "tool_addition", "tool_removal"}
REFUSED_ITEMS = {"additional_tools", "configuration_update"}


def types_of(form: Any) -> Iterator[str]:
    if is_typeddict(form):
        yield from re.findall(r"'(\w+)'", repr(get_type_hints(form).get("type")))
    for part in get_args(form):
        yield from types_of(part)


@pytest.mark.parametrize(
    ("form", "known", "refused"),
    [
        (BetaContentBlockParam, {*messages._FIELDS, *messages._SKIPPED}, REFUSED_BLOCKS),
        (ResponseInputItemParam, {*responses._ITEMS, *responses._SKIPPED}, REFUSED_ITEMS),
    ],
    ids=["messages", "responses"],
)
def test_each_type_of_a_client_is_served_or_skipped_or_refused_on_purpose(
    form: Any, known: set[str], refused: set[str]
) -> None:
    found = set(types_of(form))
    assert "tool_result" in found or "function_call" in found
    assert found - known == refused
