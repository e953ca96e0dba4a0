"""What the tokenizer stage does with a request, with the tokenizer of the demo model."""

from __future__ import annotations

import copy
import dataclasses
import json
from typing import Any

import pytest

from model_repository import contract
from model_repository.capabilities import Capability
from model_repository.errors import InvalidRequest, PromptTooLong, Unsupported
from model_repository.generation import (
    ChatPrompt,
    ContextOverflow,
    GenerationRequest,
    Guide,
    GuideKind,
    Prompt,
    SamplingParams,
    TextPrompt,
    TokenPrompt,
    ToolUse,
)
from model_repository.request_tensors import request_to_tensors
from model_repository.stage_messages import EngineRequest, TokenizeOptions
from model_repository.tensors import array
from model_repository.tokenizer.constraint import constraint
from model_repository.tokenizer.stage import StageConfig, TokenizerStage
from model_repository.tokenizer.vocabulary import Vocabulary
from model_repository.tool_formats import TOOL_FORMATS
from tests.model_repository.tokenizer.models import (
    DEMO_BYTES,
    DEMO_FILES,
    SPECIAL_IDS,
    byte_table,
    files,
    sentencepiece,
)

CONFIG = StageConfig(
    context_window=2048,
    runtime="llama_cpp",
    capabilities=frozenset(Capability) - {Capability.IMAGES},
    tool_call_format="hermes",
)
STAGE = TokenizerStage(DEMO_FILES, DEMO_BYTES, CONFIG)
TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}
CHAT = ChatPrompt(({"role": "user", "content": "hi"},))


def request(prompt: Prompt = CHAT, **others: Any) -> GenerationRequest:
    return GenerationRequest(**{"prompt": prompt, "max_tokens": 16, "sampling": SamplingParams()} | others)


def refusal(
    asked: GenerationRequest, error: type[InvalidRequest] = InvalidRequest, stage: TokenizerStage = STAGE
) -> str:
    with pytest.raises(error) as caught:
        stage.encode(asked)
    assert type(caught.value) is error
    return caught.value.message().removeprefix(f"[{error.code}] ")


def test_everything_of_a_request_goes_to_the_engine() -> None:
    asked = request(
        TokenPrompt((1, 2)),
        sampling=SamplingParams(temperature=0.5, logit_bias={3: 1.0}, seed=7),
        stop=("a", "b"),
        stop_token_ids=(5,),
        include_stop=True,
        bad_words=("damn",),
        min_tokens=3,
        is_echo=True,
        num_logprobs=2,
        has_token_ids=True,
        has_usage=True,
        has_timing=True,
        guide=Guide(GuideKind.REGEX, "a+"),
        lora_name="poet",
        is_stream=True,
        priority=-1,
        cancel_key="secret",
    )
    encoded = STAGE.encode(asked)
    others = {"prompt_token_ids": (1, 2), "echo": (DEMO_BYTES[1], DEMO_BYTES[2]), "end_token_ids": ()}
    for field in dataclasses.fields(EngineRequest):
        expected = others[field.name] if field.name in others else getattr(asked, field.name)
        assert getattr(encoded, field.name) == expected, field.name


def test_ignored_ends_go_to_the_engine() -> None:
    assert STAGE.encode(request(ignore_eos=True)).ignore_eos


@pytest.mark.parametrize(("prompt", "field"), [(TextPrompt(""), "text_input"), (TokenPrompt(()), "input_ids")])
def test_an_empty_prompt_is_refused(prompt: Prompt, field: str) -> None:
    assert refusal(request(prompt)) == f"{field}: the prompt is empty"


def test_an_empty_text_with_a_bos_token_is_an_empty_prompt() -> None:
    model = files(sentencepiece(), "{{ '' }}")
    stage = TokenizerStage(model, byte_table(model.tokenizer), CONFIG)
    assert refusal(request(TextPrompt("")), stage=stage) == "text_input: the prompt is empty"
    assert refusal(request(), stage=stage) == "messages: the prompt is empty"


def test_an_empty_text_before_a_suffix_is_a_prompt() -> None:
    assert len(STAGE.encode(request(TextPrompt("", "a"))).prompt_token_ids) == 4


def test_a_middle_ends_where_the_model_ends_it() -> None:
    prompt, end = TextPrompt("a", "b"), SPECIAL_IDS["<|endoftext|>"]
    encoded = STAGE.encode(request(prompt, stop_token_ids=(5,)))
    assert (encoded.stop_token_ids, encoded.end_token_ids) == ((5,), (end,))
    assert STAGE.encode(request(prompt, ignore_eos=True)).end_token_ids == ()
    assert STAGE.encode(request(TextPrompt("a"))).end_token_ids == ()


@pytest.mark.parametrize(
    ("others", "message"),
    [
        ({"stop_token_ids": (5, 3072)}, "stop_token_ids: 3072 is not a token: they are 0 to 3071"),
        (
            {"sampling": SamplingParams(logit_bias={3072: 1.0})},
            "logit_bias_token_ids: 3072 is not a token: they are 0 to 3071",
        ),
        ({"prompt": TokenPrompt((-1,))}, "input_ids: -1 is not a token: they are 0 to 3071"),
        ({"min_tokens": 2045, "max_tokens": 4000}, "min_tokens: 2045 do not fit: the context window is 2048 tokens"),
        (
            {"guide": Guide(GuideKind.JSON_OBJECT), "ignore_eos": True},
            "ignore_eos: true goes with neither structured output nor tools",
        ),
    ],
)
def test_what_does_not_fit_the_model_is_refused(others: dict[str, Any], message: str) -> None:
    assert refusal(request(**others)).startswith(message)


def test_a_prompt_that_fills_the_window_is_refused() -> None:
    for prompt, field in (
        (TokenPrompt((1,) * 2048), "input_ids"),
        (TextPrompt("日" * 4000), "text_input"),
        (ChatPrompt(({"role": "user", "content": "日" * 4000},)), "messages"),
    ):
        assert refusal(request(prompt), PromptTooLong).startswith(f"{field}: the prompt has ")


@pytest.mark.parametrize(
    ("prompt", "field"),
    [
        (TextPrompt("a" * 1_000_000), "text_input"),
        (TextPrompt("a" * 400_000, "b" * 400_000), "text_input"),
        (ChatPrompt(({"role": "user", "content": "a" * 1_000_000},)), "messages"),
    ],
)
def test_a_text_that_cannot_fit_the_window_is_not_even_tokenized(
    prompt: Prompt, field: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("encode", "encode_plain", "encode_parts"):
        monkeypatch.setattr(Vocabulary, name, None)
    message = refusal(request(prompt), PromptTooLong)
    assert message.startswith(f"{field}: the prompt has at least ")
    assert message.endswith(" tokens: the context window is 2048 tokens")


def test_a_window_full_of_the_longest_token_is_served() -> None:
    longest = max([*DEMO_BYTES, *(token.encode() for token in SPECIAL_IDS)], key=len).decode()
    num_tokens = len(STAGE.encode(request(TextPrompt(longest))).prompt_token_ids)
    text = longest * (2047 // num_tokens)
    assert len(STAGE.encode(request(TextPrompt(text), max_tokens=1)).prompt_token_ids) <= 2047


def test_the_completions_of_one_prompt_cost_little(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def counted(name: str, function: Any) -> Any:
        def call(*args: Any, **others: Any) -> Any:
            calls.append(name)
            return function(*args, **others)

        return call

    for name in ("encode", "encode_parts"):
        monkeypatch.setattr(Vocabulary, name, counted(name, getattr(Vocabulary, name)))
    check = counted("constraint", constraint)
    stage = TokenizerStage(DEMO_FILES, DEMO_BYTES, CONFIG, check)
    chat = ChatPrompt(({"role": "user", "content": "<hi> <|im_end|>"},))

    def siblings(**others: Any) -> list[EngineRequest]:
        calls.clear()
        return [
            stage.encode(request(copy.deepcopy(chat), sampling=SamplingParams(seed=seed), **others))
            for seed in range(4)
        ]

    encoded = siblings(guide=Guide(GuideKind.JSON_SCHEMA, '{"type": "integer"}'))
    assert sorted(calls) == ["constraint", "encode_parts"]
    assert [item.sampling.seed for item in encoded] == [0, 1, 2, 3]
    assert len({item.prompt_token_ids for item in encoded}) == 1
    siblings(guide=Guide(GuideKind.REGEX, "a"))
    assert calls == ["constraint"]
    assert siblings(is_echo=True)[0].echo
    assert calls == ["encode_parts"]
    assert siblings()[0].guide is None
    assert calls == []


def test_max_tokens_is_lowered_unless_the_request_says_otherwise() -> None:
    prompt = TokenPrompt((1,) * 2040)
    assert STAGE.encode(request(prompt)).max_tokens == 8
    assert refusal(request(prompt, overflow=ContextOverflow.ERROR), PromptTooLong) == (
        "input_ids: the prompt has 2040 tokens and the completion may have 16: the context window is 2048 tokens"
    )


def test_a_prompt_that_is_only_scored_may_fill_the_window() -> None:
    encoded = STAGE.encode(request(TokenPrompt((1,) * 2048), max_tokens=0, is_echo=True, num_logprobs=0))
    assert (encoded.max_tokens, len(encoded.echo)) == (0, 2048)


def test_images_are_not_served() -> None:
    message = "images: this model's runtime, llama_cpp, cannot honour it"
    assert refusal(request(images=(b"a",)), Unsupported) == message


@pytest.mark.parametrize(
    ("others", "field"),
    [
        ({"guide": Guide(GuideKind.JSON_OBJECT)}, "guided_decoding_guide_type"),
        ({"prompt": dataclasses.replace(CHAT, tool_use=ToolUse(tools=(TOOL,)))}, "tools"),
        ({"num_logprobs": 0}, "return_log_probs"),
    ],
)
def test_what_the_runtime_lacks_is_refused(others: dict[str, Any], field: str) -> None:
    config = dataclasses.replace(CONFIG, runtime="synthetic", capabilities=frozenset())
    stage = TokenizerStage(DEMO_FILES, DEMO_BYTES, config)
    message = refusal(request(**others), Unsupported, stage)
    assert message == f"{field}: this model's runtime, synthetic, cannot honour it"


@pytest.mark.parametrize("choice", ["auto", "required", "function:add"])
@pytest.mark.parametrize("tool_format", sorted(TOOL_FORMATS))
def test_tools_become_a_guide_in_the_models_format(choice: str, tool_format: str) -> None:
    stage = TokenizerStage(DEMO_FILES, DEMO_BYTES, dataclasses.replace(CONFIG, tool_call_format=tool_format))
    chat = dataclasses.replace(CHAT, tool_use=ToolUse(tools=(TOOL,), choice=choice))
    guide = stage.encode(request(chat)).guide
    assert guide is not None
    assert guide.kind is GuideKind.LARK
    assert "add" in guide.content


# --- tensors --------------------------------------------------------------------------------------------------------


def test_a_request_becomes_the_engines_tensors() -> None:
    asked = request(num_logprobs=3, is_echo=True)
    outputs = STAGE.answer(request_to_tensors(asked))
    assert outputs.keys() == {spec.name for spec in contract.STEPS["tokenizer"].outputs}
    assert outputs["prompt_token_ids"].dtype == contract.PROMPT_TOKEN_IDS.dtype
    read = EngineRequest.from_tensors(outputs["prompt_token_ids"].reshape(-1), outputs["engine_params"].item())
    assert read == STAGE.encode(asked)


def tokenized(options: str | bytes = "{}", **inputs: Any) -> tuple[list[int], list[str]]:
    specs = {spec.name: spec for spec in contract.PUBLIC_INPUTS}
    tensors = {name: array(specs[name], value) for name, value in inputs.items()}
    outputs = STAGE.answer(tensors | {"tokenize": array(contract.TOKENIZE, options)})
    assert outputs.keys() == {"prompt_token_ids", "token_strings"}
    strings = [item.decode() for item in outputs["token_strings"].reshape(-1)]
    return outputs["prompt_token_ids"].reshape(-1).tolist(), strings


def test_a_prompt_can_be_only_tokenized() -> None:
    token_ids, strings = tokenized(text_input="Hello 日<|im_end|>")
    assert tuple(token_ids) == STAGE.encode(request(TextPrompt("Hello 日<|im_end|>"))).prompt_token_ids
    assert strings[-1] == "<|im_end|>"
    token_ids, strings = tokenized(messages='[{"role": "user", "content": "hi"}]')
    assert tuple(token_ids) == STAGE.encode(request(CHAT)).prompt_token_ids
    assert strings[:2] == ["<|im_start|>", "user"]


def test_what_is_only_tokenized_has_a_limit() -> None:
    for inputs in (
        {"text_input": "a" * 500_001},
        {"messages": json.dumps([{"role": "user", "content": "a" * 500_000}])},
    ):
        with pytest.raises(InvalidRequest, match=r"bytes: at most 500000 are tokenized"):
            tokenized(**inputs)


def test_what_is_only_tokenized_may_be_longer_than_the_window_and_empty() -> None:
    assert len(tokenized(text_input="日" * 4000)[0]) > CONFIG.context_window
    assert tokenized(text_input="") == ([], [])


@pytest.mark.parametrize(("add_special_tokens", "expected"), [(True, ["<s>", "▁a"]), (False, ["▁a"])])
def test_what_the_tokenizer_adds_can_be_left_out(add_special_tokens: bool, expected: list[str]) -> None:
    model = files(sentencepiece())
    stage = TokenizerStage(model, byte_table(model.tokenizer), CONFIG)
    options = TokenizeOptions(add_special_tokens=add_special_tokens)
    assert stage.tokenize(TextPrompt("a"), options)[1] == expected


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("{", "tokenize: not JSON ("),
        ("[]", "tokenize: expected a JSON object"),
        ("null", "tokenize: expected a JSON object"),
        ('{"add_special_tokens": 1}', 'tokenize: "add_special_tokens": expected true or false'),
        ('{"more": true}', 'tokenize: "more": expected true or false under add_special_tokens'),
        (b"\xff", "tokenize: not UTF-8 at byte 0"),
    ],
)
def test_bad_options_are_refused(options: str | bytes, message: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        tokenized(options, text_input="a")
    assert caught.value.message().removeprefix("[invalid_value] ").startswith(message)


# --- configuration --------------------------------------------------------------------------------------------------


def test_the_configuration_is_read_from_parameters() -> None:
    parameters = {
        "context_window": "2048",
        "runtime": "llama_cpp",
        "capabilities": json.dumps(sorted(CONFIG.capabilities)),
        "tool_call_format": "hermes",
        "artifact_dir": "somewhere",
    }
    assert StageConfig.from_parameters(parameters) == CONFIG
