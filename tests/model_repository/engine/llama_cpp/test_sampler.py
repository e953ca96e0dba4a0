"""Draws from the logits of a real llama.cpp context: one row, drawn from again and again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from cyllama.llama import llama_cpp as llama

from model_repository.contract.request import EngineRequest, Mirostat, OutputFormat, SamplingParams, StructuredOutput
from model_repository.engine.llama_cpp.sampler import TokenSampler
from model_repository.errors import InvalidRequest
from tests.build_engines.tiny_checkpoint import CONFIG
from tests.model_repository.engine.engine_requests import changed

VOCAB_SIZE: int = CONFIG["vocab_size"]
PROMPT = tuple(range(40, 60))
ROW = len(PROMPT) - 1
EOS = 261
NUM_DRAWS = 6000


@pytest.fixture(scope="module")
def context(tiny_artifact: Path) -> Iterator[llama.LlamaContext]:
    """A context that has computed the prompt."""
    llama.disable_logging()
    llama.ggml_backend_load_all()
    model = llama.LlamaModel(str(tiny_artifact / "model.gguf"), llama.LlamaModelParams())
    params = llama.LlamaContextParams()
    params.n_ctx, params.n_threads, params.n_threads_batch = 256, 1, 1
    context = llama.LlamaContext(model, params)
    batch = llama.LlamaBatch(n_tokens=len(PROMPT), embd=0, n_seq_max=1)
    for position, token_id in enumerate(PROMPT):
        batch.add(token_id, position, [0], position == ROW)
    context.decode(batch)
    yield context
    batch.close()
    context.close()
    model.close()


@pytest.fixture(scope="module")
def logits(context: llama.LlamaContext) -> npt.NDArray[np.float64]:
    return np.array(context.get_logits_ith(ROW), dtype=np.float64)


@pytest.fixture
def likely(logits: npt.NDArray[np.float64]) -> list[int]:
    """All tokens, the most likely first."""
    return [int(token_id) for token_id in np.argsort(-logits, kind="stable")]


class FakeConstraint:
    """Allows tokens by a function of the accepted ones so far."""

    def __init__(self, allowed: Callable[[list[int]], Collection[int]]) -> None:
        self._allowed = allowed
        self.accepted: list[int] = []

    def accept_token(self, token_id: int) -> bool:
        is_allowed = token_id in self._allowed(self.accepted)
        if is_allowed:
            self.accepted.append(token_id)
        return is_allowed

    def allowed(self) -> npt.NDArray[np.bool_]:
        return np.isin(np.arange(VOCAB_SIZE), list(self._allowed(self.accepted)))


def sampler(constraint: Any = None, **fields: Any) -> TokenSampler:
    names = SamplingParams.__struct_fields__
    sampling = SamplingParams(**{name: value for name, value in fields.items() if name in names})
    others = {name: value for name, value in fields.items() if name not in names}
    request = changed(EngineRequest(prompt_token_ids=PROMPT, max_tokens=50), sampling=sampling, **others)
    return TokenSampler(
        request, vocab_size=VOCAB_SIZE, context_window=256, eos_token_ids=frozenset([EOS]), constraint=constraint
    )


def draws(context: llama.LlamaContext, item: TokenSampler, num_draws: int) -> list[int]:
    return [item.draw(context, ROW) for _ in range(num_draws)]


def softmax(logits: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    shares = np.exp(logits - logits.max())
    return shares / shares.sum()


def assert_drawn_from(tokens: list[int], probabilities: npt.NDArray[np.float64]) -> None:
    """Check frequencies by a chi-square test with a very small probability of a false alarm; seeds are fixed anyway."""
    counts = np.bincount(tokens, minlength=VOCAB_SIZE)
    assert not counts[probabilities == 0].any()
    expected = probabilities * len(tokens)
    is_frequent = expected >= 5
    observed = np.append(counts[is_frequent], counts[~is_frequent].sum())
    expected = np.append(expected[is_frequent], expected[~is_frequent].sum())
    is_possible = expected > 0
    distance = ((observed - expected)[is_possible] ** 2 / expected[is_possible]).sum()
    num_classes = is_possible.sum()
    assert distance < num_classes + 4 * np.sqrt(2 * num_classes)


# --- bias ------------------------------------------------------------------------------------------------------------


def test_a_bias_shifts_the_distribution(context: llama.LlamaContext, logits: Any, likely: list[int]) -> None:
    biased = logits.copy()
    biased[likely[50]] += 4.0
    tokens = draws(context, sampler(logit_bias={likely[50]: 4.0}), NUM_DRAWS)
    assert_drawn_from(tokens, softmax(biased))


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_bias_of_minus_100_bans(context: llama.LlamaContext, likely: list[int], temperature: float) -> None:
    """A sum alone would make the token possible: here all others are further than 100 away."""
    bias = {token_id: -100.0 for token_id in likely[:-1]}
    assert set(draws(context, sampler(logit_bias=bias, temperature=temperature), 50)) == {likely[-1]}


# --- end tokens before min_tokens ------------------------------------------------------------------------------------


def test_before_min_tokens_no_end_token_is_drawn(context: llama.LlamaContext, likely: list[int]) -> None:
    bias = {EOS: 50.0, 9: 40.0, 8: 30.0}
    item = sampler(logit_bias=bias, temperature=0.0, min_tokens=3, stop_token_ids=(9,))
    assert draws(context, item, 5) == [8, 8, 8, EOS, EOS]
    item = sampler(logit_bias=bias, temperature=0.0, min_tokens=2, ignore_eos=True)
    assert draws(context, item, 3) == [EOS, EOS, EOS]
    item = sampler(logit_bias=bias, temperature=0.0, min_tokens=3, end_token_ids=(9,))
    assert draws(context, item, 4) == [8, 8, 8, EOS]
    item = sampler(logit_bias={9: 50.0}, temperature=0.0, min_tokens=2, ignore_eos=True, end_token_ids=(9,))
    assert draws(context, item, 2) == [9, 9]


# --- truncation ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("target", [1.0, 4.0])
def test_mirostats_target_is_in_bits(context: llama.LlamaContext, logits: Any, target: float) -> None:
    """It starts with twice the target as the limit, and keeps it without a learning rate."""
    surprises = -np.log2(softmax(logits))
    item = sampler(mirostat=Mirostat(target=target, learning_rate=1e-9))
    possible = max(1, (surprises <= 2 * target).sum())
    assert len(set(draws(context, item, NUM_DRAWS))) <= possible
    assert max(surprises[draws(context, item, 200)]) <= max(2 * target, surprises.min())


# --- constraints -----------------------------------------------------------------------------------------------------


def test_plain_constrained_draws_are_from_the_masked_distribution(
    context: llama.LlamaContext, logits: Any, likely: list[int]
) -> None:
    """A second draw with the first one's random number preferred the tokens beside those refused."""
    allowed = set(likely[1::2])
    masked = np.where(np.isin(np.arange(VOCAB_SIZE), list(allowed)), logits, -np.inf)
    item = sampler(FakeConstraint(lambda _: allowed))
    assert_drawn_from(draws(context, item, NUM_DRAWS), softmax(masked))


@pytest.mark.parametrize(
    "fields",
    [
        {"temperature": 0.0},
        {"temperature": 1.0, "top_k": 3},
        {"top_p": 0.1, "min_p": 0.5, "repetition_penalty": 1.3, "frequency_penalty": 0.3},
        {"mirostat": Mirostat()},
    ],
)
def test_only_allowed_tokens_are_drawn(context: llama.LlamaContext, likely: list[int], fields: dict[str, Any]) -> None:
    """Also when truncation would remove all of them: the mask comes first."""
    constraint = FakeConstraint(lambda accepted: likely[100 + len(accepted) : 110 + len(accepted)])
    tokens = draws(context, sampler(constraint, **fields), 40)
    assert tokens[:-1] == constraint.accepted  # the last one is accepted with the next mask
    if fields == {"temperature": 0.0}:
        assert tokens == likely[100:140]


@pytest.mark.parametrize(
    "fields",
    [{"temperature": 0.0, "frequency_penalty": 2.0}, {"mirostat": Mirostat(target=3.0, learning_rate=0.9)}],
    ids=["penalties", "Mirostat's estimate"],
)
def test_only_the_tokens_that_were_drawn_count(
    context: llama.LlamaContext, likely: list[int], fields: dict[str, Any]
) -> None:
    allowed = likely[60:70]
    banned = dict.fromkeys(set(likely) - set(allowed), -100.0)
    constrained = draws(context, sampler(FakeConstraint(lambda _: allowed), **fields), 100)
    assert constrained == draws(context, sampler(logit_bias=banned, **fields), 100)


@pytest.mark.parametrize(("allowed", "fields"), [(set[int](), {}), ({7}, {"logit_bias": {7: -100.0}})])
def test_when_nothing_can_follow_the_request_is_at_fault(
    context: llama.LlamaContext, allowed: set[int], fields: dict[str, Any]
) -> None:
    regex = StructuredOutput(OutputFormat.REGEX, "x")
    with pytest.raises(InvalidRequest) as caught:
        sampler(FakeConstraint(lambda _: allowed), structured_output=regex, **fields).draw(context, ROW)
    assert caught.value.field == "guided_decoding_guide"
    with pytest.raises(InvalidRequest) as caught:
        sampler(logit_bias=dict.fromkeys(range(VOCAB_SIZE), -100.0)).draw(context, ROW)
    assert caught.value.field == "logit_bias_token_ids"


def test_a_constraint_that_allows_nothing_but_an_end_ends_before_min_tokens(context: llama.LlamaContext) -> None:
    constraint = FakeConstraint(lambda accepted: [{7, EOS}, {EOS}][len(accepted)])
    assert draws(context, sampler(constraint, min_tokens=3, logit_bias={EOS: 50.0}), 2) == [7, EOS]


# --- the random numbers ----------------------------------------------------------------------------------------------


def test_draws_are_from_the_models_distribution(context: llama.LlamaContext, logits: Any) -> None:
    assert_drawn_from(draws(context, sampler(seed=1), NUM_DRAWS), softmax(logits))
    assert_drawn_from(draws(context, sampler(seed=2, temperature=0.5), NUM_DRAWS), softmax(logits / 0.5))


def test_many_seeds_draw_from_the_same_distribution_as_one(context: llama.LlamaContext, logits: Any) -> None:
    counts: Counter[int] = Counter(sampler(seed=seed).draw(context, ROW) for seed in range(2000))
    assert_drawn_from(list(counts.elements()), softmax(logits))


def test_min_tokens_does_not_disturb_the_random_numbers(context: llama.LlamaContext) -> None:
    """The chain is built again when they are reached: generator and penalties go on where they were."""
    fields: dict[str, Any] = {
        "seed": 5,
        "frequency_penalty": 0.5,
        "repetition_penalty": 1.2,
        "top_k": 50,
        "logit_bias": {EOS: -100.0},
    }
    assert draws(context, sampler(**fields, min_tokens=7), 20) == draws(context, sampler(**fields), 20)
