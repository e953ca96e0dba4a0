"""The real llama.cpp on a tiny SmolVLM of random weights: images in the batch of other sequences."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from build_engines.build import build
from build_engines.cpu_spec import CpuSpec
from model_repository.byte_table import FILE_NAME, load_byte_table
from model_repository.contract.request import IMAGE_PLACE, EngineRequest, Params, SamplingParams
from model_repository.engine.llama_cpp import image_prompts
from model_repository.engine.llama_cpp.runtime import LlamaCppRuntime
from model_repository.engine.runtime import EngineConfig, Prepared
from model_repository.errors import EngineFailed, InternalError, InvalidRequest, PromptTooLong, Unsupported
from model_repository.runtimes import PROJECTOR
from tests.build_engines.llama_cpp.reference import ImageReference
from tests.build_engines.tiny_checkpoint import CONFIG
from tests.build_engines.tiny_smolvlm import image_token_ids, picture, write_smolvlm
from tests.model_repository.engine.tiny_adapter import write_adapter
from tests.model_repository.engine.tiny_models import write_model
from tests.processes import is_running
from tests.waiting import wait_until

pytestmark = pytest.mark.usefixtures("servers")

NUM_TOKENS = 12
BEFORE, AFTER = (40, 41, 42), (50, 51, 52, 53)
NUM_IMAGE_TOKENS = len(image_token_ids())
RED, BLUE = picture(1), picture(2)


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("smolvlm")
    built = build(CpuSpec(model_id="tiny", checkpoint=write_smolvlm(folder / "checkpoint"), precision="f32"), folder)
    write_adapter(built / "a.gguf", 1)
    return built


def started(artifact: Path, **changes: object) -> LlamaCppRuntime:
    options: dict[str, Any] = {
        "context_window": CONFIG["max_position_embeddings"],
        "max_sequences": 3,
        "num_threads": 1,
        "adapters": {"a": "a.gguf"},
    } | changes
    config = EngineConfig(
        runtime="llama_cpp",
        artifact_dir=artifact,
        eos_token_ids=frozenset([261]),
        precision="f32",
        **options,
    )
    return LlamaCppRuntime(config, load_byte_table(artifact / FILE_NAME))


@pytest.fixture
def runtime(artifact: Path) -> Iterator[LlamaCppRuntime]:
    runtime = started(artifact)
    yield runtime
    runtime.close()


def request(images: Sequence[bytes] = (RED,), after: Sequence[int] = AFTER, lora_name: str = "") -> EngineRequest:
    params = Params(
        max_tokens=NUM_TOKENS, ignore_eos=True, sampling=SamplingParams(temperature=0.0), lora_name=lora_name
    )
    prompt = (*BEFORE, *[IMAGE_PLACE] * len(images), *after)
    return EngineRequest(prompt_token_ids=prompt, max_tokens=NUM_TOKENS, images=tuple(images), params=params)


def answers(runtime: LlamaCppRuntime, *prepared: Prepared) -> list[tuple[list[int | None], int]]:
    """Run requests together; return the tokens of each, and its number of cached prompt tokens."""
    tokens: dict[int, list[int | None]] = {}
    num_cached: dict[int, int] = {}
    for number, each in enumerate(prepared):
        tokens[number] = []
        runtime.submit(number, each.request, each)
    while runtime.has_work:
        for output in runtime.step():
            assert output.error is None
            tokens[output.sequence].append(output.token_id)
            num_cached[output.sequence] = output.num_cached_tokens
            if len(tokens[output.sequence]) == NUM_TOKENS:
                runtime.free(output.sequence)
    return [(tokens[number], num_cached[number]) for number in tokens]


def answer(runtime: LlamaCppRuntime, request: EngineRequest) -> tuple[list[int | None], int]:
    [found] = answers(runtime, runtime.prepare(request))
    return found


def keeper_of(runtime: LlamaCppRuntime) -> int:
    assert runtime._images is not None
    return runtime._images._process._pid


def child_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/task/{pid}/children").read_text())


def test_the_answer_is_the_one_of_transformers(runtime: LlamaCppRuntime) -> None:
    reference = ImageReference.load()
    assert (picture(reference.picture), tuple(reference.before), tuple(reference.after)) == (RED, BEFORE, AFTER)
    assert reference.margin > 1e-3  # rounding does not decide
    assert answer(runtime, request())[0] == reference.greedy[:NUM_TOKENS]


def test_an_image_counts_as_its_tokens_and_changes_the_answer(runtime: LlamaCppRuntime) -> None:
    prepared = runtime.prepare(request())
    places = [IMAGE_PLACE] * NUM_IMAGE_TOKENS
    assert prepared.request.prompt_token_ids == (*BEFORE, *places, *AFTER)
    [(red, num_cached)] = answers(runtime, prepared)
    assert num_cached == 0
    blue, num_cached = answer(runtime, request([BLUE]))
    assert (blue != red, num_cached) == (True, len(BEFORE))
    text, _ = answer(runtime, request([]))
    assert text not in (red, blue)


def test_the_same_image_again_is_cached_and_not_computed(runtime: LlamaCppRuntime) -> None:
    first, _ = answer(runtime, request())
    prefix = len(BEFORE) + NUM_IMAGE_TOKENS
    assert answer(runtime, request()) == (first, prefix + len(AFTER) - 1)
    _, num_cached = answer(runtime, request(after=(99, 98)))
    assert num_cached == prefix
    counts = runtime.stats().images
    assert (counts.num_images, counts.num_tokens, counts.passed_s > 0) == (1, NUM_IMAGE_TOKENS, True)


@pytest.mark.parametrize("architecture", ["gemma3", "lfm2"])
def test_images_are_reused_before_a_sliding_window_and_by_a_recurrent_model(
    architecture: str, artifact: Path, tmp_path: Path
) -> None:
    """Copies lacked the tokens before a sliding window. A salt of its own lets a request reuse nothing."""
    for name in (FILE_NAME, PROJECTOR):
        (tmp_path / name).symlink_to(artifact / name)
    write_model(tmp_path / "model.gguf", architecture, tokenizer_of=artifact / "model.gguf")
    with closing(started(tmp_path, adapters={})) as runtime:
        for images in ([RED, BLUE, RED], [RED, BLUE, BLUE], [RED, BLUE, RED, RED], [RED], [RED, BLUE], [BLUE]):
            asked = request(images)
            salted = replace(asked, params=replace(asked.params, cache_salt=str(images)))
            assert answer(runtime, asked)[0] == answer(runtime, salted)[0]


def test_a_broken_image_is_refused_by_its_number(runtime: LlamaCppRuntime) -> None:
    with pytest.raises(InvalidRequest) as caught:
        runtime.prepare(request([RED, b"x"]))
    assert caught.value.field == "images[1]"
    assert answer(runtime, request())[1] == 0


def test_a_process_that_is_killed_at_work_fails_one_request(runtime: LlamaCppRuntime) -> None:
    first, _ = answer(runtime, request())
    child = child_of(keeper_of(runtime))
    os.kill(child, signal.SIGSTOP)
    threading.Timer(0.2, os.kill, (child, signal.SIGKILL)).start()
    with pytest.raises(InternalError):
        runtime.prepare(request([BLUE]))
    assert answer(runtime, request())[0] == first


def test_a_device_that_failed_is_computed_on_by_another_process(
    artifact: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("the device is lost")

    monkeypatch.setattr(image_prompts._Computer, "compute", fail)
    with closing(started(artifact, gpu_layers=1)) as runtime:
        keeper = keeper_of(runtime)
        first = child_of(keeper)
        for _ in range(2):
            with pytest.raises(InternalError):
                runtime.prepare(request())
        assert (keeper_of(runtime), is_running(first)) == (keeper, False)
        runtime.stats()


def test_without_its_keeper_an_engine_with_a_device_is_broken(artifact: Path) -> None:
    """A fork of a process that has computed on a device hung in the device's driver."""
    with closing(started(artifact, gpu_layers=1)) as runtime:
        keeper = keeper_of(runtime)
        child = child_of(keeper)
        os.kill(keeper, signal.SIGKILL)
        for call in (lambda: runtime.prepare(request()), runtime.stats):
            with pytest.raises(EngineFailed, match=f"process {keeper} of the engine has ended"):
                call()
        wait_until(lambda: not is_running(child), "the keeper's child has ended")


def test_a_thread_that_has_computed_may_start_a_runtime(artifact: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image_prompts, "_MAX_S", 20.0)
    for _ in range(2):  # the first leaves OpenMP's threads to this thread
        with closing(started(artifact, num_threads=2, options={"contexts": "1"})) as runtime:
            answer(runtime, request())


def test_a_process_that_hangs_fails_one_request_and_is_replaced(
    artifact: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(image_prompts, "_MAX_S", 3.0)
    runtime = started(artifact)

    def tokens() -> list[int | None] | None:
        try:
            return answer(runtime, request())[0]
        except InternalError:  # on a busy machine a process may be too slow without hanging
            return None

    first = wait_until(tokens, "an answer")
    child = child_of(keeper_of(runtime))
    os.kill(child, signal.SIGSTOP)
    with pytest.raises(InternalError):
        runtime.prepare(request([BLUE]))
    assert wait_until(tokens, "an answer of the successor") == first
    assert not is_running(child)
    runtime.close()


def test_a_file_that_is_no_projector_is_reported(artifact: Path, tmp_path: Path) -> None:
    for path in artifact.iterdir():
        (tmp_path / path.name).symlink_to(path)
    (tmp_path / PROJECTOR).unlink()
    (tmp_path / PROJECTOR).symlink_to(artifact / "model.gguf")
    with pytest.raises(EngineFailed, match="does not load it"):
        started(tmp_path)


def test_a_model_without_projector_refuses_images(artifact: Path, tmp_path: Path) -> None:
    for path in artifact.iterdir():
        if path.name != PROJECTOR:
            (tmp_path / path.name).symlink_to(path)
    runtime = started(tmp_path)
    with pytest.raises(Unsupported, match="this model reads no images"):
        runtime.prepare(request())
    runtime.close()


def test_the_prompt_must_fit_the_window_with_its_images(artifact: Path) -> None:
    runtime = started(artifact, context_window=len(BEFORE) + NUM_IMAGE_TOKENS + len(AFTER) + 2)
    assert runtime.prepare(request()).request.max_tokens == 2
    with pytest.raises(PromptTooLong) as caught:
        runtime.prepare(request([RED, BLUE]))
    assert caught.value.field == "images"
    runtime.close()
