"""The sampling defaults of a model, from generation_config.json to the drawn tokens."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from build_engines.__main__ import main
from tests.build_engines.tiny_checkpoint import write_checkpoint
from tests.integration.api import CHAT, Api
from tests.integration.conftest import running_stack


def test_a_model_draws_by_its_own_defaults_unless_the_operator_turns_them_off(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    checkpoint = write_checkpoint(tmp_path / "checkpoint")
    generation = json.loads((checkpoint / "generation_config.json").read_text())
    (checkpoint / "generation_config.json").write_text(json.dumps(generation | {"top_k": 1}))
    own = {"checkpoint": str(checkpoint)}
    (tmp_path / "models.yaml").write_text(
        json.dumps({"models": {"own": own, "off": own | {"default": {"sampling": "openai"}}}})
    )
    build = ["build", str(tmp_path / "models.yaml"), "--state-dir", str(tmp_path)]
    assert main([*build, "--num-threads", "1"]) == 0
    with running_stack(tmp_path / "repository", tmp_path_factory) as stack:
        api = Api(stack.url)
        cards = {card["id"]: card["default_parameters"] for card in api.get("/v1/models").body["data"]}
        assert cards == {"own": {"top_k": 1}, "off": {}}
        for model, fields, is_greedy in (("own", {}, True), ("own", {"top_k": 0}, False), ("off", {}, False)):
            body = {"model": model, "messages": [{"role": "user", "content": "a"}], "n": 4, "seed": 1, "max_tokens": 20}
            choices = api.post(CHAT, body | {"ignore_eos": True, "return_token_ids": True} | fields).body["choices"]
            assert (len({str(choice["token_ids"]) for choice in choices}) == 1) == is_greedy, (model, fields)
