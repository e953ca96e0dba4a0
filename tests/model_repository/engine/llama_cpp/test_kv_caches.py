"""Every kind of KV cache, beside other sequences: tiny models of random weights on the real llama.cpp."""

from __future__ import annotations

import dataclasses
import itertools
import random
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from model_repository.contract.output import DrawnLogprob
from model_repository.contract.request import EngineRequest, Params, SamplingParams
from model_repository.engine.llama_cpp.library import llama, model_params
from model_repository.engine.llama_cpp.runtime import LlamaCppRuntime
from model_repository.engine.runtime import EngineConfig
from model_repository.runtimes import NGRAM
from tests.build_engines.tiny_checkpoint import CONFIG
from tests.model_repository.engine.tiny_models import FULL_ATTENTION, RECURRENT, SLIDING_WINDOW, write_model

VOCAB_SIZE: int = CONFIG["vocab_size"]
CONTEXT_WINDOW = 512
MAX_ROUNDING = 0.01  # of a log probability: most differ by 1e-5, Gemma's by 1e-3
PROMPT = range(100)
DRAWN = range(200, 204)  # few tokens, so that texts repeat themselves
UNUSED = itertools.count(1)  # numbers of sequences


@dataclasses.dataclass(slots=True)
class Sent:
    """A request and its answer so far."""

    prompt: Sequence[int]
    num_tokens: int
    is_scored: bool = False
    num_cached: int = 0
    token_ids: list[int] = dataclasses.field(default_factory=list)
    logprobs: list[float] = dataclasses.field(default_factory=list)  # of token_ids
    scores: Sequence[DrawnLogprob] = ()  # of the prompt's tokens

    @property
    def text(self) -> list[int]:
        return [*self.prompt, *self.token_ids]


@pytest.fixture(scope="module")
def artifact_dir(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model of an architecture, in a folder with its name."""
    return write_model(tmp_path_factory.mktemp(request.param) / "model.gguf", request.param).parent


@pytest.fixture
def speculative() -> str | None:
    return None


def config_of(artifact_dir: Path, speculative: str | None = None) -> EngineConfig:
    """Three slots in one context, and a KV cache in f32, so that only a wrong one makes a difference."""
    return EngineConfig(
        runtime="llama_cpp",
        artifact_dir=artifact_dir,
        context_window=CONTEXT_WINDOW,
        eos_token_ids=frozenset(),
        max_sequences=3,
        num_threads=1,
        precision="f32",
        speculative=speculative,
        options={"contexts": "1"},
    )


@pytest.fixture
def runtime(artifact_dir: Path, speculative: str | None) -> Iterator[LlamaCppRuntime]:
    with closing(LlamaCppRuntime(config_of(artifact_dir, speculative), [b"a"] * VOCAB_SIZE)) as runtime:
        yield runtime


def submit(runtime: LlamaCppRuntime, running: dict[int, Sent], sent: Sent) -> None:
    params = Params(
        sampling=SamplingParams(temperature=0.0, logit_bias=dict.fromkeys(DRAWN, 50.0)),
        has_logprobs=True,
        num_prompt_logprobs=0 if sent.is_scored else None,
    )
    number = next(UNUSED)
    running[number] = sent
    runtime.submit(number, EngineRequest(prompt_token_ids=tuple(sent.prompt), max_tokens=100, params=params))


def step(runtime: LlamaCppRuntime, running: dict[int, Sent]) -> list[Sent]:
    """Add the tokens of one step; free and return the finished sequences."""
    finished = []
    for output in runtime.step():
        if output.sequence not in running:
            continue  # the step drew more tokens than the request needs
        sent = running[output.sequence]
        assert output.token_id is not None and output.logprob is not None and output.logprob.logprob is not None
        if not sent.token_ids:
            sent.num_cached, sent.scores = output.num_cached_tokens, output.prompt_logprobs
        sent.token_ids.append(output.token_id)
        sent.logprobs.append(output.logprob.logprob)
        if len(sent.token_ids) == sent.num_tokens:
            runtime.free(output.sequence)
            finished.append(running.pop(output.sequence))
    return finished


def complete(runtime: LlamaCppRuntime, *requests: Sent) -> None:
    """Run requests together."""
    running: dict[int, Sent] = {}
    for sent in requests:
        submit(runtime, running, sent)
    while running:
        step(runtime, running)


class Alone:
    """Computes whole texts on the cores, each from an empty KV cache in one call."""

    def __init__(self, model: Path) -> None:
        self._model = llama.LlamaModel(str(model), model_params())
        self._params = params = llama.LlamaContextParams()
        params.n_ctx = params.n_batch = params.n_ubatch = CONTEXT_WINDOW
        params.n_threads = params.n_threads_batch = 1
        params.type_k = params.type_v = params.flash_attn_type = 0  # f32 without flash attention

    def logprobs(self, text: Sequence[int]) -> np.ndarray:
        """Return the log probabilities of the next token after each token, float [num_tokens, vocab_size]."""
        batch = llama.LlamaBatch(n_tokens=len(text), embd=0, n_seq_max=1)
        for position, token_id in enumerate(text):
            batch.add(token_id, position, [0], True)
        with closing(llama.LlamaContext(self._model, self._params)) as context, closing(batch):
            context.decode(batch)
            logits = np.stack([context.get_logits_ith(row) for row in range(len(text))], dtype=np.float64)
        return logits - np.logaddexp.reduce(logits, axis=1, keepdims=True)

    def close(self) -> None:
        self._model.close()


def draw(rng: random.Random, earlier: Sequence[Sent]) -> list[Sent]:
    """Return requests for one prompt, which may begin like others or like an earlier text, or go on from one."""
    kind = rng.choice(("new", "turn", "beginning")) if earlier else "new"
    prompt = [*range(rng.randint(1, 250))] if kind == "new" else rng.choice(earlier).text
    if kind == "beginning":
        prompt = prompt[: rng.randint(1, len(prompt))]
    prompt = prompt[:400] + rng.choices(range(VOCAB_SIZE), k=rng.choice((0, 1, 5, 50)))
    num_tokens, is_scored = rng.choice((1, 2, 8, 24, 60)), rng.random() < 0.1
    return [Sent(prompt, num_tokens, is_scored) for _ in range(rng.choice((1, 1, 1, 3)))]


def complete_mix(runtime: LlamaCppRuntime, count: int) -> list[Sent]:
    """Return about so many answers. Several are made at a time, and some requests are cancelled."""
    rng, running, finished = random.Random(0), dict[int, Sent](), list[Sent]()
    while len(finished) < count:
        while len(running) < rng.choice((1, 3, 6)):
            for sent in draw(rng, finished):
                submit(runtime, running, sent)
        if rng.random() < 0.05:
            number = rng.choice(list(running))
            runtime.free(number)
            del running[number]
        finished += step(runtime, running)
    return finished


def check(model: Path, finished: Sequence[Sent], max_error: float) -> None:
    """Check that each token of the answers is the likeliest one, and that log probabilities are those alone."""
    with closing(Alone(model)) as alone:
        for sent in finished:
            expected = alone.logprobs(sent.text)[:-1]
            own = expected[range(len(expected)), sent.text[1:]]
            begin = len(sent.prompt) - 1
            np.testing.assert_allclose(sent.logprobs, own[begin:], atol=max_error)
            np.testing.assert_allclose(sent.logprobs, expected[begin:, DRAWN].max(axis=1), atol=max_error)
            if sent.is_scored:
                scores = np.array([score.logprob for score in sent.scores[1:]], dtype=np.float64)
                np.testing.assert_allclose(scores, own[:begin], atol=max_error)


@pytest.mark.parametrize("speculative", [None, NGRAM])
@pytest.mark.parametrize("artifact_dir", [*FULL_ATTENTION, *SLIDING_WINDOW, *RECURRENT], indirect=True)
def test_answers_beside_others_are_those_of_a_text_that_is_computed_alone(
    artifact_dir: Path, speculative: str | None, runtime: LlamaCppRuntime
) -> None:
    """Copies lacked the tokens before a sliding window, and answers went on from their ends.

    A recurrent model cannot forget wrong drafts, so it has none.
    """
    finished = complete_mix(runtime, 60)
    has_drafts = speculative is not None and artifact_dir.name.removesuffix("0") not in RECURRENT
    assert (runtime.stats().num_accepted_tokens > 0) == (runtime.stats().num_draft_tokens > 0) == has_drafts
    check(artifact_dir / "model.gguf", finished, MAX_ROUNDING)


@pytest.mark.parametrize("artifact_dir", [*FULL_ATTENTION, *SLIDING_WINDOW, *RECURRENT], indirect=True)
def test_completions_of_one_prompt_compute_it_once(runtime: LlamaCppRuntime) -> None:
    completions = [Sent(PROMPT, 1) for _ in range(3)]
    complete(runtime, *completions)
    assert sorted(sent.num_cached for sent in completions) == [0, 99, 99]


@pytest.mark.parametrize(
    ("artifact_dir", "num_cached"),
    [(name, 90 * (name not in RECURRENT)) for name in (*FULL_ATTENTION, *SLIDING_WINDOW, *RECURRENT)],
    indirect=["artifact_dir"],
)
def test_a_further_turn_reuses_all_and_a_beginning_is_reused_if_the_model_can_forget_the_rest(
    num_cached: int, runtime: LlamaCppRuntime
) -> None:
    """For a recurrent model llama.cpp refused the step, and everybody's request failed."""
    first = Sent(PROMPT, 10)
    complete(runtime, first)
    turn, beginning = Sent([*first.text, 7], 1), Sent([*PROMPT[:90], 7], 1)
    complete(runtime, turn)
    complete(runtime, beginning)
    assert turn.num_cached == len(first.text) - 1  # the last drawn token was never computed
    assert beginning.num_cached == num_cached
