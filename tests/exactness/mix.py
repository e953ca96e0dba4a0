"""A random mix of everything that the CPU engine does, on the real llama.cpp. Each answer must be the one alone."""

from __future__ import annotations

import dataclasses
import itertools
import queue
import random
from collections.abc import Callable, Mapping
from pathlib import Path

from msgspec.structs import replace
from tokenizers import Tokenizer

from build_engines.build import build
from build_engines.cpu_spec import CpuSpec
from build_engines.digests import Digests
from build_engines.model_source import find_source
from model_repository.byte_table import FILE_NAME, load_byte_table
from model_repository.contract.output import OutputBatch, TokenDelta
from model_repository.contract.request import (
    IMAGE_PLACE,
    EngineRequest,
    EngineRequestBatch,
    Mirostat,
    OutputFormat,
    Params,
    SamplingParams,
    StructuredOutput,
)
from model_repository.engine.adapters.folder import Adapter
from model_repository.engine.engine import Engine
from model_repository.engine.inbox import CancelKey, SetAdapter, Submit
from model_repository.engine.llama_cpp.runtime import LlamaCppRuntime
from model_repository.engine.loader import make_emitter
from model_repository.engine.runtime import EngineConfig
from model_repository.errors import StageError, UnknownAdapter
from model_repository.structured_output.grammar import structured_output_to_grammar
from tests.exactness.answers import Answer, Comparison, measure_rounding
from tests.pictures import circle
from tests.waiting import DEADLINE_S

LATER = "later"  # an adapter that is loaded and unloaded beside the requests
SYSTEMS = (
    "",
    "You are Marvin, a helpful assistant.",
    "You are a pirate.",
    *(f"You are Marvin, a helpful assistant. {'The sky is blue. ' * number}" for number in (3, 10, 40, 90)),
)
QUESTIONS = (
    "What is the capital of Peru?",
    "How do you say cat in French?",
    "Count from 1 to 30.",
    "Count from 1 to 60.",
    "What is the capital of Japan? Answer in JSON.",
    "zq xv",
)
_FORMS = (
    StructuredOutput(OutputFormat.JSON_OBJECT),
    StructuredOutput(OutputFormat.REGEX, "[a-z é心]{3,20}"),
    StructuredOutput(OutputFormat.CHOICE, '["one", "one or two", "Lima"]'),
)


@dataclasses.dataclass(frozen=True, slots=True)
class Case:
    """A request, and the number of outputs after which its client leaves."""

    request: EngineRequest
    max_outputs: int | None = None
    is_hang_up: bool = False  # the client leaves without a cancel


class Cases:
    """Draws requests to the demo model."""

    def __init__(self, artifact: Path, seed: int = 0) -> None:
        self.random = random.Random(seed)
        self._tokenizer = Tokenizer.from_file(str(artifact / "tokenizer" / "tokenizer.json"))
        self._pictures = [circle(colour) for colour in ("red", "blue", "green")]

    def encode(self, system: str, question: str, begun_answer: str = "") -> tuple[int, ...]:
        """Return the prompt of a chat."""
        turns = {"system": system, "user": question} if system else {"user": question}
        texts = [f"<|im_start|>{role}\n{text}<|im_end|>\n" for role, text in turns.items()]
        text = f"{''.join(texts)}<|im_start|>assistant\n{begun_answer}"
        return tuple(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def draw(self) -> list[Case]:
        """Return one case, or several of one prompt."""
        rng = self.random
        prompt = self.encode(rng.choice(SYSTEMS), rng.choice(QUESTIONS), rng.choice(("", "", "The ")))
        images: tuple[bytes, ...] = ()
        params = self._params()
        if rng.random() < 0.15:
            images = tuple(rng.sample(self._pictures, rng.randint(1, 2)))
            prompt = self.encode(rng.choice(SYSTEMS[:4]), "What colour is it?")
            prompt = (*prompt[:-12], *[IMAGE_PLACE] * len(images), *prompt[-12:])
            params = replace(params, lora_name="pictures", is_echo=False)
        cases = []
        for number in range(rng.choice((1, 1, 1, 3))):
            sampling = replace(params.sampling, seed=params.sampling.seed + number)
            request = EngineRequest(
                prompt_token_ids=prompt,
                max_tokens=params.max_tokens,
                params=replace(params, sampling=sampling),
                images=images,
                grammar=structured_output_to_grammar(form) if (form := params.structured_output) else "",
                echo=(b"",) * len(prompt) if params.is_echo else (),
            )
            leaves = rng.random() < 0.15
            cases.append(Case(request, rng.randint(1, 8) if leaves else None, is_hang_up=rng.random() < 0.5))
        return cases

    def _params(self) -> Params:
        rng = self.random
        return Params(
            max_tokens=rng.choice((1, 8, 24, 24, 60)),
            min_tokens=rng.choice((0, 0, 0, 5)),
            stop=rng.choice(((), (), (", 5", " of"), ("猫", "心", "the"))),
            bad_words=rng.choice(((), (), (), (" is", "Lima"))),
            include_stop=rng.random() < 0.5,
            ignore_eos=rng.random() < 0.3,
            structured_output=rng.choice(_FORMS) if rng.random() < 0.15 else None,
            sampling=SamplingParams(
                temperature=rng.choice((0.0, 0.0, 0.0, 0.7, 1.3)),
                top_p=rng.choice((1.0, 1.0, 0.8)),
                top_k=rng.choice((0, 0, 20)),
                min_p=rng.choice((0.0, 0.0, 0.05)),
                repetition_penalty=rng.choice((1.0, 1.0, 1.0, 1.2)),
                presence_penalty=rng.choice((0.0, 0.0, 0.0, 0.8)),
                logit_bias={rng.randrange(3000): rng.choice((-100.0, 4.0))} if rng.random() < 0.2 else {},
                mirostat=Mirostat(target=3.0) if rng.random() < 0.05 else None,
                seed=rng.randrange(1000),
            ),
            lora_name=rng.choice(("formal", "pictures", LATER)) if rng.random() < 0.3 else "",
            has_logprobs=rng.random() < 0.5,
            num_top_logprobs=rng.choice((0, 3)),
            is_echo=rng.random() < 0.1,
            has_token_ids=True,
            is_stream=True,
            priority=rng.choice((-1, 0, 0, 0, 1)),
        )


class _Client:
    """Reads the answer to a request, and may leave before its end."""

    def __init__(self, case: Case, cancel: Callable[[], None], ended: queue.SimpleQueue[_Client]) -> None:
        self.case = case
        self._cancel = cancel
        self._ended = ended
        self._deltas: list[TokenDelta] = []
        self.error: StageError | None = None

    def send(self, batch: OutputBatch) -> None:
        """Read a batch, or leave."""
        self._deltas += [item for _, item in batch.items if isinstance(item, TokenDelta)]
        if self.case.max_outputs is None or len(self._deltas) < self.case.max_outputs:
            return
        if self.case.is_hang_up:
            raise ConnectionError("the reader is gone")
        self._cancel()

    def fail(self, error: StageError) -> None:
        """Record an error in place of an answer."""
        self.error = error
        self._ended.put(self)

    def close(self, batch: OutputBatch | None = None) -> None:
        """Record the end."""
        if batch is not None:
            self._deltas += [item for _, item in batch.items if isinstance(item, TokenDelta)]
        self._ended.put(self)

    def answer(self) -> Answer:
        details = [delta.details for delta in self._deltas if delta.details is not None]
        token_ids = tuple(token_id for delta in self._deltas for token_id in delta.token_ids)
        logprobs = [each for item in details for each in item.logprobs]
        num_scores = len(logprobs) - len(token_ids) if logprobs else 0
        drawn = zip(token_ids, logprobs[num_scores:], strict=False)
        tops = tuple({**dict(each.top), token_id: each.logprob or 0.0} for token_id, each in drawn)
        end = None if self.error is None else self.error.message()
        is_whole = bool(self._deltas) and self._deltas[-1].finish_reason is not None
        if is_whole:
            end = f"{self._deltas[-1].finish_reason} {details[-1].stop_reason}"
        return Answer(token_ids, tops, tuple(each.logprob or 0.0 for each in logprobs[:num_scores]), end, is_whole)


class Mix:
    """Two engines of the demo model, in f32: one for the mix, and one for a request alone.

    Args:
        artifact: of `build demo`.
        num_slots: sequences of the mix that run at a time.
        speculative: of the engine for the mix.
    """

    def __init__(
        self, artifact: Path, *, num_slots: int = 6, num_contexts: int = 1, speculative: str | None = None
    ) -> None:
        config = EngineConfig(
            runtime="llama_cpp",
            artifact_dir=artifact,
            context_window=1024,
            eos_token_ids=frozenset({3054, 3056}),
            max_sequences=num_slots,
            num_threads=num_contexts,
            precision="f32",
            options={"contexts": str(num_contexts)},
            adapters={name: f"adapters/demo-{name}.gguf" for name in ("formal", "pictures")},
        )
        self._later = Adapter.of_artifact(artifact / config.adapters["formal"])
        self._is_loaded = False  # LATER, in the mix
        self._mixed = _started(replace(config, speculative=speculative))
        self._alone = _started(replace(config, max_sequences=1, options={"contexts": "1"}))
        self._set(self._alone, self._later)
        prompt = Cases(artifact).encode(SYSTEMS[-1], QUESTIONS[2])
        rounding = measure_rounding(artifact / "model.gguf", prompt)
        self.comparison = Comparison(rounding, len(load_byte_table(artifact / FILE_NAME)))
        self._artifact = artifact
        self._cancel_keys = map(str, itertools.count(1))
        self._num_slots = num_slots

    @property
    def num_accepted_tokens(self) -> int:
        """Drafted tokens of the mix that were drawn."""
        return self._mixed.stats().num_accepted_tokens

    def close(self) -> None:
        """End both engines."""
        self._mixed.close()
        self._alone.close()

    def run(self, seed: int, num_requests: int) -> None:
        """Send random requests, a random number at a time, and compare each answer with that alone.

        Raises:
            Difference: rounding does not explain an answer.
        """
        cases = Cases(self._artifact, seed)
        ended: queue.SimpleQueue[_Client] = queue.SimpleQueue()
        num_sent, max_outstanding, clients = 0, 1, list[_Client]()
        while len(clients) < num_sent or num_sent < num_requests:
            if num_sent - len(clients) < max_outstanding and num_sent < num_requests:
                for case in cases.draw():
                    self._set_later(case, cases.random)
                    self._ask(self._mixed, case, ended)
                    num_sent += 1
            else:
                clients.append(ended.get(timeout=DEADLINE_S))
                if len(clients) % 10 == 0:  # sometimes slots are free, sometimes requests wait
                    max_outstanding = cases.random.choice(
                        (1, self._num_slots - 2, self._num_slots, 3 * self._num_slots)
                    )
        for client in clients:
            request = client.case.request
            if isinstance(client.error, UnknownAdapter) and request.params.lora_name == LATER:
                continue  # its constraints were compiled for longer than the adapter was loaded

            def ask(biases: Mapping[int, float], num_top: int, request: EngineRequest = request) -> Answer:
                return self._answer_alone(_with_biases(request, biases, num_top))

            name = f"{request.params} images={len(request.images)} prompt={request.prompt_token_ids}"
            self.comparison.compare(name, ask, self._answer_alone(request), client.answer())

    def _answer_alone(self, request: EngineRequest) -> Answer:
        self._alone.runtime._forget_all()  # type: ignore[attr-defined]  # its thread has no work
        ended: queue.SimpleQueue[_Client] = queue.SimpleQueue()
        self._ask(self._alone, Case(request), ended)
        return ended.get(timeout=DEADLINE_S).answer()

    def _ask(self, engine: Engine, case: Case, ended: queue.SimpleQueue[_Client]) -> None:
        cancel_key = next(self._cancel_keys)
        request = replace(case.request, params=replace(case.request.params, cancel_key=cancel_key))
        client = _Client(case, lambda: engine.post(CancelKey(cancel_key)), ended)
        engine.post(Submit(EngineRequestBatch("", ((0, request),)), client))

    def _set_later(self, case: Case, rng: random.Random) -> None:
        """Load the adapter that the case needs, or unload it now and then: running sequences keep it."""
        is_needed = case.request.params.lora_name == LATER
        if is_needed and not self._is_loaded:
            self._set(self._mixed, self._later)
            self._is_loaded = True
        elif self._is_loaded and not is_needed and rng.random() < 0.2:
            self._set(self._mixed, None)
            self._is_loaded = False

    @staticmethod
    def _set(engine: Engine, adapter: Adapter | None) -> None:
        order = SetAdapter(LATER, adapter)
        engine.post(order)
        order.done.result(DEADLINE_S)


def build_demo(folder: Path) -> Path:
    """Build the demo model as `build demo` does."""
    source = find_source("demo", None, Digests())
    spec = CpuSpec(
        model_id="demo",
        checkpoint=source.checkpoint,
        projector=source.projector,
        adapters=source.adapters,
        precision=source.precision,
    )
    return build(spec, folder)


def _started(config: EngineConfig) -> Engine:
    byte_table = load_byte_table(config.artifact_dir / FILE_NAME)
    engine = Engine(config, LlamaCppRuntime(config, byte_table), byte_table, emitter=make_emitter(config, 2))
    engine.start()
    return engine


def _with_biases(request: EngineRequest, biases: Mapping[int, float], num_top: int) -> EngineRequest:
    """Return the request with moved logits, and with log probabilities if their number is not 0."""
    params = request.params
    given = params.sampling.logit_bias
    moved = {token_id: given.get(token_id, 0.0) + bias for token_id, bias in biases.items()}
    banned = {token_id: bias for token_id, bias in given.items() if bias == -100.0}
    sampling = replace(params.sampling, logit_bias={**given, **moved, **banned})
    params = replace(params, sampling=sampling)
    if num_top:
        params = replace(params, has_logprobs=True, num_top_logprobs=num_top)
    return replace(request, params=params)
