"""Images through the runtime, against the double: the recorded input processor takes texts beside pictures."""

from __future__ import annotations

import io
import json
import pickle
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from tensorrt_llm._input_processor import InputProcessor
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from model_repository.byte_table import FILE_NAME, save_byte_table
from model_repository.contract.request import IMAGE_PLACE, EngineRequest, OutputFormat, StructuredOutput
from model_repository.engine.runtime import EngineConfig, ImageCounts, Prepared
from model_repository.engine.tensorrt_llm.image_prompts import ImagePrompts, reads_images
from model_repository.engine.tensorrt_llm.sampling import SamplingPlan, SamplingPlanner
from model_repository.errors import EngineFailed, InvalidRequest, PromptTooLong
from tests.model_repository.engine.tensorrt_llm.conftest import BYTE_TABLE, RUNTIME, Tiny, request
from tests.waiting import DEADLINE_S

BEGIN, PLACE, END, TURN = range(96, 100)
SPECIAL = ["<|vision_start|>", "<|image_pad|>", "<|vision_end|>", "<|im_end|>"]
TABLE = [*BYTE_TABLE, *[b""] * len(SPECIAL)]
MIN_PIXELS, MAX_PIXELS = 56 * 56, 12_845_056  # of Qwen2.5-VL


def write_model(folder: Path, model_type: str = "qwen2_5_vl") -> Path:
    """Write an artifact whose model reads images, as its build does."""
    folder.mkdir(exist_ok=True)
    save_byte_table(folder / FILE_NAME, TABLE)
    tokenizer = Tokenizer(models.BPE({**{f"unused{i}": i for i in range(3)}, **spellings()}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(
        [AddedToken(token, special=True) for token in ("unused1", "unused2", *SPECIAL)]
    )  # its ends, too
    config = {"model_type": model_type, "vocab_size": len(TABLE), "vision_config": {}}
    config |= {"vision_start_token_id": BEGIN, "image_token_id": PLACE, "vision_end_token_id": END}
    processor = {"patch_size": 14, "merge_size": 2, "min_pixels": MIN_PIXELS, "max_pixels": MAX_PIXELS}
    for name in ("checkpoint", "tokenizer"):
        (folder / name).mkdir()
        tokenizer.save(str(folder / name / "tokenizer.json"))
    for name, content in (("config.json", config), ("preprocessor_config.json", processor)):
        (folder / "checkpoint" / name).write_text(json.dumps(content), encoding="utf-8")
    return folder


def spellings() -> dict[str, int]:
    """Return the bytes of the table as a byte-level vocabulary spells them: all but the last as themselves."""
    return {"\u0121" if text == b"\x7f" else text.decode(): index for index, text in enumerate(TABLE) if text}


def config_of(folder: Path, **options: str) -> EngineConfig:
    return EngineConfig(
        runtime="tensorrt_llm",
        artifact_dir=write_model(folder),
        context_window=256,
        eos_token_ids=frozenset([1, 2]),
        max_sequences=2,
        options={"backend": "pytorch", **options},
    )


@pytest.fixture
def tiny(tmp_path: Path) -> Iterator[Tiny]:
    runtime = RUNTIME.TensorRtLlmRuntime(config_of(tmp_path), TABLE, environment={})
    yield Tiny(runtime)
    runtime.close()


@pytest.fixture
def prompts(tmp_path: Path) -> ImagePrompts:
    write_model(tmp_path)
    return ImagePrompts(tmp_path / "checkpoint", tmp_path / "tokenizer" / "tokenizer.json", 100_000)


def picture(width: int, height: int, colour: str = "red") -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (width, height), colour).save(file, "PNG")
    return file.getvalue()


def prepared(tiny: Tiny, *images: bytes, **fields: Any) -> Prepared:
    """Prepare a prompt with a text behind each image."""
    found: Prepared = tiny.runtime.prepare(
        request(prompt_token_ids=(10, *[IMAGE_PLACE, 11] * len(images), TURN), images=images, **fields)
    )
    return found


def drawn(tiny: Tiny, ready: Prepared) -> list[int | None]:
    """Run a prepared request, and return its tokens."""
    tiny.num_submitted += 1
    tiny.runtime.submit(tiny.num_submitted, ready.request, ready)
    found: list[int | None] = []
    while len(found) < ready.request.max_tokens:
        outputs = tiny.runtime.step() or ()
        assert not any(output.error for output in outputs), outputs
        found += [output.token_id for output in outputs]
    tiny.runtime.free(tiny.num_submitted)
    return found


def test_a_prompt_has_the_tokens_that_the_input_processor_makes(tiny: Tiny) -> None:
    ready = prepared(tiny, picture(56, 84), picture(84, 84))
    first, second = [IMAGE_PLACE] * 6, [IMAGE_PLACE] * 9
    assert ready.request.prompt_token_ids == (10, BEGIN, *first, END, 11, BEGIN, *second, END, 11, TURN)
    drawn(tiny, ready)
    assert tiny.runtime.stats().images == ImageCounts(2, 15)


def test_each_picture_goes_to_its_place(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    encode, encoded = InputProcessor.encode, []

    def recorded(self: InputProcessor, inputs: Any) -> list[int]:
        encoded.append(encode(self, inputs))
        return encoded[-1]

    monkeypatch.setattr(InputProcessor, "encode", recorded)
    red, blue = picture(56, 56, "red"), picture(56, 56, "blue")
    for images in ((red, blue), (blue, red)):
        drawn(tiny, prepared(tiny, *images))
    (_, _, first, *_, other, _, _, _), swapped = encoded
    assert first != other
    assert swapped == [{first: other, other: first}.get(token_id, token_id) for token_id in encoded[0]]


def test_streams_get_tokens_while_a_picture_is_processed(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    encode, has_begun, may_end = InputProcessor.encode, threading.Event(), threading.Event()

    def slow(self: InputProcessor, inputs: Any) -> list[int]:
        if "multi_modal_data" in inputs:
            has_begun.set()
            may_end.wait(DEADLINE_S)
        return encode(self, inputs)

    monkeypatch.setattr(InputProcessor, "encode", slow)
    stream = tiny.submit(prompt_token_ids=(10, TURN), max_tokens=200)
    while not tiny.runtime.step():
        pass
    ready = prepared(tiny, picture(56, 56))
    tiny.runtime.submit(stream + 1, ready.request, ready)
    assert has_begun.wait(DEADLINE_S)
    num_tokens = 0
    while num_tokens < 100:
        outputs = tiny.runtime.step() or ()
        num_tokens += len(outputs)
        assert {output.sequence for output in outputs} <= {stream}
    may_end.set()
    while not any(output.sequence == stream + 1 for output in tiny.runtime.step() or ()):
        pass


def test_a_structured_output_does_not_send_the_pictures_again(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    generate_async, sent = type(tiny.runtime._llm).generate_async, []

    def recorded(self: Any, **keywords: Any) -> Any:
        sent.append(keywords["sampling_params"].logits_processor)
        return generate_async(self, **keywords)

    monkeypatch.setattr(type(tiny.runtime._llm), "generate_async", recorded)
    file = picture(56, 56)
    drawn(tiny, prepared(tiny, file, structured_output=StructuredOutput(OutputFormat.REGEX, "a{16}")))
    assert file not in pickle.dumps(sent)


def test_penalties_see_the_tokens_of_the_text_only(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    plan, planned = SamplingPlanner.plan, []

    def recorded(self: SamplingPlanner, asked: EngineRequest, num_given: int) -> SamplingPlan:
        planned.append(asked.prompt_token_ids)
        return plan(self, asked, num_given)

    monkeypatch.setattr(SamplingPlanner, "plan", recorded)
    drawn(tiny, prepared(tiny, picture(56, 56), sampling={"repetition_penalty": 1.5}))
    assert planned == [(10, BEGIN, END, 11, TURN)]


@pytest.mark.parametrize("size", [(1, 1), (20, 3900), (2048, 2048), (700, 2), (97, 55)])
def test_the_input_processor_keeps_every_size(tmp_path: Path, prompts: ImagePrompts, size: tuple[int, int]) -> None:
    if max(size) > 200 * min(size):
        with pytest.raises(InvalidRequest, match="one side may be 200 times as long"):
            prompts.prepare(request(prompt_token_ids=(IMAGE_PLACE, 10), images=(picture(*size),)))
        return
    ready = prompts.prepare(request(prompt_token_ids=(IMAGE_PLACE, 10), images=(picture(*size),)))
    config = json.loads((tmp_path / "checkpoint" / "config.json").read_text(encoding="utf-8"))
    processor = InputProcessor(tmp_path / "checkpoint", config)
    encoded = processor.encode(prompts.inputs(ready.request.prompt_token_ids, ready.pictures))
    assert len(encoded) == len(ready.request.prompt_token_ids)
    [fitted] = ready.pictures
    assert MIN_PIXELS <= fitted.width * fitted.height <= 8192 * 14 * 14


@pytest.mark.parametrize(
    "token_ids",
    [
        tuple(TABLE.index(bytes([byte])) for byte in b"<|im_end|>"),  # a user's text that spells a special token
        (0, 10),  # no text
    ],
)
def test_other_tokens_than_those_of_the_text_are_refused(tiny: Tiny, token_ids: tuple[int, ...]) -> None:
    with pytest.raises(InvalidRequest, match="takes prompts as text") as caught:
        tiny.submit(prompt_token_ids=token_ids)
    assert caught.value.field == "prompt_token_ids"


def test_a_token_that_the_model_reads_as_an_image_is_refused(tiny: Tiny) -> None:
    with pytest.raises(InvalidRequest, match=f"{PLACE}: this model reads the token as an image") as caught:
        tiny.submit(prompt_token_ids=(10, BEGIN, PLACE, END))
    assert caught.value.field == "prompt_token_ids"


def test_what_does_not_fit_is_refused(tiny: Tiny) -> None:
    with pytest.raises(PromptTooLong, match=r"the prompt has 261 tokens"):
        prepared(tiny, picture(28 * 16, 28 * 16))
    with pytest.raises(InvalidRequest, match="not a readable file") as caught:
        prepared(tiny, picture(56, 56), b"GIF89a")
    assert caught.value.field == "images[1]"


def test_images_reach_two_types_of_models_and_the_others_get_text(tmp_path: Path) -> None:
    for model_type, is_read in (("qwen2_5_vl", True), ("gemma4", False)):
        write_model(tmp_path / model_type, model_type)
        assert reads_images(tmp_path / model_type / "checkpoint") is is_read


def test_a_model_that_reads_images_has_no_pauses(tmp_path: Path) -> None:
    config = config_of(tmp_path, scheduler_policy="max_utilization")
    with pytest.raises(EngineFailed, match="option scheduler_policy=max_utilization: not with a model that reads"):
        RUNTIME.TensorRtLlmRuntime(config, TABLE, environment={})


def test_a_model_without_a_tokenizer_does_not_start(tmp_path: Path) -> None:
    write_model(tmp_path, "qwen2_vl")
    (tmp_path / "tokenizer" / "tokenizer.json").unlink()
    with pytest.raises(EngineFailed, match="not a model that reads images"):
        ImagePrompts(tmp_path / "checkpoint", tmp_path / "tokenizer" / "tokenizer.json", 256)
