"""The facts of a model, as its parameter in config.pbtxt has them."""

from __future__ import annotations

import msgspec

from model_repository.model_facts import ModelFacts


def test_a_fact_with_its_default_is_written_only_for_earlier_frontends() -> None:
    """A frontend of the release before reads a repository of this one while a cluster is upgraded."""
    written = msgspec.json.decode(msgspec.json.encode(ModelFacts(context_window=8, eos_token_ids=frozenset({2}))))
    assert written == {
        "context_window": 8,
        "eos_token_ids": [2],
        "tool_call_format": "",
        "reasoning_format": "",
        "template_fields": [],
    }
