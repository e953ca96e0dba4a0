"""What is observed of a server that does not do as it should."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, cast

import pytest

from build_engines.selfcheck import observations
from build_engines.selfcheck.client import CheckFailed, Client
from build_engines.selfcheck.observations import Subject
from build_engines.selfcheck.report import Verdict
from build_engines.selfcheck.unproved import UNPROVED, observe_all
from model_repository.engine.tensorrt_llm.options import Backend


class BadServer:
    """Stands where the client does: ignores every field, and never says the same twice."""

    def __init__(self) -> None:
        self._numbers = itertools.count(20)

    def choice(self, **fields: Any) -> dict[str, Any]:
        """Return some choice."""
        number = next(self._numbers)
        return {
            "text": f"text {number}",
            "token_ids": [number],
            "finish_reason": "length",
            "logprobs": {"token_logprobs": [-number]},
        }

    def choices_at_once(self, requests: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return some choices."""
        return [self.choice(**fields) for fields in requests]

    def ask(self, path: str, **fields: Any) -> dict[str, Any]:
        """Return a chat, or a completion without a cache."""
        usage = {"prompt_tokens": 9, "completion_tokens": 1, "prompt_tokens_details": {"cached_tokens": 0}}
        return {"choices": [{"message": {"content": "I know nothing."}, "finish_reason": "stop"}], "usage": usage}


class DeadServer:
    """Stands where the client does, and nobody answers."""

    def __getattr__(self, name: str) -> Any:
        raise ConnectionRefusedError("nobody listens")


def subject(client: object) -> Subject:
    """Return a model behind a client."""
    return Subject(cast(Client, client), prompt=[1, 2], eos_token_ids=(3,), context_window=2048)


@pytest.mark.parametrize(
    ("observe", "message"),
    [
        (observations.chat, "no Paris in 'I know nothing.'"),
        (observations.seed_repeats, "the same seed gave two texts"),
        (observations.logprobs_are_raw, "the constraint gave 'text 21', not 'text 20'"),
        (observations.processors_reach_the_workers, "gave 'text 20'"),
        (observations.processors_know_their_tokens, "gave"),
        (observations.penalties_have_effect, "1 distinct tokens with the penalty, 1 without"),
        (observations.bias_has_effect, "forced 11, got"),
        (observations.end_token_is_told, "finish_reason length"),
        (observations.prompts_are_cached, "none of 9 tokens came from the cache"),
        (observations.batches_change_nothing, "alone 'text 20', beside others 'text 21'"),
    ],
)
def test_a_server_that_does_otherwise_fails(observe: Callable[[Subject], str], message: str) -> None:
    with pytest.raises(CheckFailed) as caught:
        observe(subject(BadServer()))
    assert message in str(caught.value)


def test_a_server_that_dies_fails_every_point_that_asks_it_and_ends_none() -> None:
    findings = list(observe_all(subject(DeadServer()), Backend.ENGINE))
    asked = [finding for finding in findings if finding.verdict is Verdict.FAILED]
    assert len(findings) == len(UNPROVED)
    asks = [each for each in UNPROVED if each.observe is not None and each.backend is not Backend.PYTORCH]
    assert [finding.name for finding in asked] == [each.claim for each in asks]
    assert {finding.detail for finding in asked} == {"nobody listens"}


def test_what_only_one_backend_does_is_not_tried_on_the_other() -> None:
    """TensorRT-LLM's PyTorch backend has no seed for one request, and an engine does not count cached tokens."""
    for backend, claim in (
        (Backend.PYTORCH, "The same seed gives the same text, on the engine backend."),
        (Backend.ENGINE, "Prompts that begin alike share KV cache blocks, and `cached_tokens` says so, on the PyTorch"),
    ):
        [finding] = [each for each in observe_all(subject(DeadServer()), backend) if each.name.startswith(claim)]
        assert (finding.verdict, finding.detail) == (Verdict.NOT_TRIED, f"this is the backend {backend}")
