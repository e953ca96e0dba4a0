"""The tokenizer stage without Triton, with the tokenizer of the demo model."""

from __future__ import annotations

import copy
import dataclasses
import json
from collections.abc import Iterable
from typing import Any

import msgspec
import numpy as np
import pytest
from msgspec.structs import replace

from model_repository.capabilities import Capability
from model_repository.contract.codec import message_tensor, pack, payload_of, unpack
from model_repository.contract.request import (
    ChatPrompt,
    DetokenizeRequest,
    EngineRequest,
    EngineRequestBatch,
    GenerationRequest,
    OutputFormat,
    PairPrompt,
    Params,
    Prompt,
    RequestBatch,
    SamplingParams,
    StructuredOutput,
    TextPrompt,
    Thinking,
    TokenizeAnswer,
    TokenizeRequest,
    TokenPrompt,
    ToolUse,
)
from model_repository.contract.rules import prompt_too_long
from model_repository.contract.spec import TensorSpec
from model_repository.contract.tensors import DETOKENIZE, ENGINE_REQUESTS, REQUEST_BATCH, TEXT, TOKENIZE, TOKENS
from model_repository.errors import InvalidRequest, PromptTooLong, Unsupported
from model_repository.reasoning_formats import REASONING_FORMATS
from model_repository.tokenizer.constraint import Form
from model_repository.tokenizer.stage import TokenizerStage
from model_repository.tokenizer.vocabulary import Vocabulary
from model_repository.tool_formats import TOOL_FORMATS, ToolFormat
from tests.build_engines.tiny_embedders import word_piece_description
from tests.build_engines.tiny_scorers import cross_encoder_description
from tests.fakes import served_model
from tests.model_repository.tokenizer.models import (
    DEMO_BYTES,
    DEMO_FILES,
    SPECIAL_IDS,
    byte_table,
    files,
    sentencepiece,
)
from tests.model_repository.tokenizer.unbounded_checker import UnboundedChecker

MODEL = served_model(capabilities=frozenset(Capability) - {Capability.IMAGES}).parameters
STAGE = TokenizerStage(DEMO_FILES, DEMO_BYTES, MODEL, UnboundedChecker())
TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}
CHAT = ChatPrompt(({"role": "user", "content": "hi"},))


def request(prompt: Prompt = CHAT, images: tuple[bytes, ...] = (), **params: Any) -> GenerationRequest:
    return GenerationRequest(prompt=prompt, params=Params(**params), images=images)


def refusal(
    asked: GenerationRequest, error: type[InvalidRequest] = InvalidRequest, stage: TokenizerStage = STAGE
) -> str:
    with pytest.raises(error) as caught:
        stage.encode(asked)
    assert type(caught.value) is error
    return caught.value.message().removeprefix(f"[{error.code}] ")


def test_everything_of_a_request_goes_to_the_engine() -> None:
    output = StructuredOutput(OutputFormat.REGEX, "a+")
    params = Params(
        sampling=SamplingParams(temperature=0.5, logit_bias={3: 1.0}, seed=7),
        stop=("a", "b"),
        is_echo=True,
        has_logprobs=True,
        structured_output=output,
    )

    class Checker(UnboundedChecker):
        def form(self, request: GenerationRequest, tool_format: ToolFormat) -> Form:
            return Form("start: /a+/", is_combined=True, num_bytes=4096, ignored_keywords=("schema.not",))

    stage = TokenizerStage(DEMO_FILES, DEMO_BYTES, MODEL, Checker())
    encoded = stage.encode(GenerationRequest(prompt=TokenPrompt((1, 2)), params=params, request_id="req_abc"))
    assert encoded == EngineRequest(
        prompt_token_ids=(1, 2),
        max_tokens=16,
        params=params,
        echo=(DEMO_BYTES[1], DEMO_BYTES[2]),
        grammar="start: /a+/",
        is_combined=True,
        grammar_bytes=4096,
        ignored_keywords=("schema.not",),
        request_id="req_abc",
    )


def test_the_thinking_of_a_chat_goes_to_the_engine_with_its_budget() -> None:
    stage = TokenizerStage(DEMO_FILES, DEMO_BYTES, replace(MODEL, reasoning_format="think"), UnboundedChecker())
    thinking = Thinking(REASONING_FORMATS["think"], is_open=False, budget=5)
    assert stage.encode(request(thinking_budget=5)).thinking == thinking
    assert stage.encode(request(TextPrompt("a"))).thinking is None
    chat = msgspec.structs.replace(CHAT, tool_use=ToolUse(tools=(TOOL,)))
    assert stage.encode(request(chat)).thinking == Thinking(thinking.format, is_open=False, call="<tool_call>")
    rule = "thinking_budget: needs messages, and a model that thinks"
    assert refusal(request(TextPrompt("a"), thinking_budget=5), Unsupported, stage) == rule
    assert refusal(request(thinking_budget=5), Unsupported) == rule


@pytest.mark.parametrize(("prompt", "field"), [(TextPrompt(""), "text_input"), (TokenPrompt(()), "input_ids")])
def test_an_empty_prompt_is_refused(prompt: Prompt, field: str) -> None:
    assert refusal(request(prompt)) == f"{field}: the prompt is empty"


def test_a_middle_ends_where_the_model_ends_it() -> None:
    prompt, end = TextPrompt("a", "b"), SPECIAL_IDS["<|endoftext|>"]
    encoded = STAGE.encode(request(prompt, stop_token_ids=(5,)))
    assert (encoded.params.stop_token_ids, encoded.end_token_ids) == ((5,), (end,))
    assert STAGE.encode(request(prompt, ignore_eos=True)).end_token_ids == ()
    assert STAGE.encode(request(TextPrompt("a"))).end_token_ids == ()


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
    assert message.startswith(f"{field}: {prompt_too_long(2048, 'at least ')}")


def test_a_truncated_prompt_is_its_last_tokens_also_where_the_whole_does_not_fit() -> None:
    text = "one two three " * 4000
    whole = Vocabulary(DEMO_FILES.tokenizer).encode(text)
    encoded = STAGE.encode(request(TextPrompt(text), truncate_prompt_tokens=5, max_tokens=3000, is_echo=True))
    assert encoded.prompt_token_ids == tuple(whole[-5:])
    assert encoded.max_tokens == MODEL.context_window - 5
    assert encoded.echo == tuple(DEMO_BYTES[token_id] for token_id in whole[-5:])
    fitted = STAGE.encode(request(TokenPrompt(tuple(whole)), truncate_prompt_tokens=-1, max_tokens=48))
    assert (fitted.prompt_token_ids, fitted.max_tokens) == (tuple(whole[-2000:]), 48)
    assert STAGE.encode(request(truncate_prompt_tokens=1000)) == replace(
        STAGE.encode(request()), params=Params(truncate_prompt_tokens=1000)
    )


def test_a_conversation_without_its_oldest_turns_has_as_many_tokens_as_are_counted() -> None:
    turns = tuple({"role": role, "content": "Yes. " * 60} for _ in range(800) for role in ("user", "assistant"))
    prompt = ChatPrompt((*turns, {"role": "user", "content": "Why?"}), max_prompt_tokens=1500)
    encoded = STAGE.encode(request(prompt, max_tokens=548))
    assert encoded.prompt_token_ids == STAGE.tokenize(TokenizeRequest(prompt)).token_ids
    assert 1200 < len(encoded.prompt_token_ids) <= 1500
    assert encoded.max_tokens == 548
    long = ChatPrompt(({"role": "user", "content": "a b " * 40_000},), max_prompt_tokens=1500)
    assert refusal(request(long), PromptTooLong).startswith("messages: ")


def test_a_truncated_prompt_that_ends_inside_the_thinking_still_does() -> None:
    stage = TokenizerStage(DEMO_FILES, DEMO_BYTES, replace(MODEL, reasoning_format="think"), UnboundedChecker())
    chat = ChatPrompt(
        (*CHAT.messages, {"role": "assistant", "content": "<think>"}),
        add_generation_prompt=False,
        continue_final_message=True,
    )
    encoded = stage.encode(request(chat, truncate_prompt_tokens=1))
    assert len(encoded.prompt_token_ids) == 1
    assert encoded.thinking == stage.encode(request(chat)).thinking == Thinking(REASONING_FORMATS["think"], True)


def test_a_text_to_truncate_may_be_as_long_as_one_that_fits_or_is_only_tokenized() -> None:
    message = refusal(request(TextPrompt("a" * 600_000), truncate_prompt_tokens=5))
    assert message == "text_input: 600000 bytes: at most 500000 are tokenized"
    stage = TokenizerStage(DEMO_FILES, DEMO_BYTES, replace(MODEL, context_window=100_000), UnboundedChecker())
    assert len(stage.encode(request(TextPrompt("a" * 600_000), truncate_prompt_tokens=5)).prompt_token_ids) == 5


def test_the_completions_of_one_prompt_cost_little(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def counted(name: str, function: Any) -> Any:
        def call(*args: Any, **others: Any) -> Any:
            calls.append(name)
            return function(*args, **others)

        return call

    for name in ("encode", "encode_parts"):
        monkeypatch.setattr(Vocabulary, name, counted(name, getattr(Vocabulary, name)))
    checker = UnboundedChecker()
    monkeypatch.setattr(checker, "form", counted("constraint", checker.form))
    stage = TokenizerStage(DEMO_FILES, DEMO_BYTES, MODEL, checker)
    chat = ChatPrompt(({"role": "user", "content": "<hi> <|im_end|>"},))

    def siblings(**others: Any) -> list[EngineRequest]:
        calls.clear()
        return [
            stage.encode(request(copy.deepcopy(chat), sampling=SamplingParams(seed=seed), **others))
            for seed in range(4)
        ]

    encoded = siblings(structured_output=StructuredOutput(OutputFormat.JSON_SCHEMA, '{"type": "integer"}'))
    assert sorted(calls) == ["constraint", "encode_parts"]
    assert [item.params.sampling.seed for item in encoded] == [0, 1, 2, 3]
    assert len({item.prompt_token_ids for item in encoded}) == 1
    siblings(structured_output=StructuredOutput(OutputFormat.REGEX, "a"))
    assert calls == ["constraint"]
    assert siblings(is_echo=True)[0].echo
    assert calls == ["encode_parts"]
    assert not siblings()[0].grammar
    assert calls == []


def test_no_tenant_gets_a_prompt_sooner_because_another_one_had_it(monkeypatch: pytest.MonkeyPatch) -> None:
    owners, encode_pieces = [], Vocabulary.encode_pieces

    def recorded(vocabulary: Vocabulary, pieces: Iterable[str], owner: str) -> Any:
        owners.append(owner)
        return encode_pieces(vocabulary, pieces, owner)

    monkeypatch.setattr(Vocabulary, "encode_pieces", recorded)
    stage = TokenizerStage(DEMO_FILES, DEMO_BYTES, MODEL, UnboundedChecker())
    for _ in range(2):
        for salt, sender in (("a", "s"), ("b", "s"), ("", "s"), ("", "t")):
            stage.encode(request(cache_salt=salt, sender=sender))
        for sender in ("a", "u"):
            stage.tokenize(TokenizeRequest(CHAT, sender=sender))
    assert owners == ["a", "b", "s", "t", "u"]


@pytest.mark.parametrize("tool_format", sorted(TOOL_FORMATS))
def test_tools_become_a_structured_output_in_the_models_format(tool_format: str) -> None:
    stage = TokenizerStage(
        DEMO_FILES, DEMO_BYTES, msgspec.structs.replace(MODEL, tool_call_format=tool_format), UnboundedChecker()
    )
    chat = msgspec.structs.replace(CHAT, tool_use=ToolUse(tools=(TOOL,)))
    encoded = stage.encode(request(chat))
    assert encoded.is_combined and "add" in encoded.grammar


# --- messages -------------------------------------------------------------------------------------------------------


def answered(*items: tuple[int, GenerationRequest]) -> EngineRequestBatch:
    """Return the answer to a frontend's batch."""
    outputs = STAGE.answer(STAGE.read(message_tensor(REQUEST_BATCH, pack(RequestBatch("key", items)))))
    assert outputs.keys() == {"engine_requests"}
    return unpack(EngineRequestBatch, payload_of(outputs, ENGINE_REQUESTS), "engine_requests")


def test_a_batch_keeps_the_stream_and_the_numbers_and_each_refusal_is_an_item(
    caplog: pytest.LogCaptureFixture,
) -> None:
    first, last = request(), request(TextPrompt("a"), cancel_key="secret")
    bad = msgspec.structs.replace(request(TokenPrompt((-1,))), request_id="req_abc")
    batch = answered((7, first), (-3, bad), (5, last))
    refused = "[invalid_value] input_ids: -1 is not a token: they are 0 to 3071"
    assert batch == EngineRequestBatch("key", ((7, STAGE.encode(first)), (-3, refused), (5, STAGE.encode(last))))
    assert caplog.messages == ["refused: invalid_value request_id=req_abc"]


def test_a_refusal_with_half_of_a_surrogate_pair_is_an_item_too() -> None:
    """It has no UTF-8: no request of its batch was answered."""
    schema = json.dumps({"type": "object", "properties": {"\ud800": {"type": 5}}})
    bad = request(structured_output=StructuredOutput(OutputFormat.JSON_SCHEMA, schema))
    [(_, refused), (_, encoded)] = answered((1, bad), (2, request())).items
    assert isinstance(refused, str)
    assert refused.startswith("[invalid_value] guided_decoding_guide: ")
    assert encoded == STAGE.encode(request())


@pytest.mark.parametrize("spec", [REQUEST_BATCH, TOKENIZE, DETOKENIZE], ids=lambda spec: spec.name)
def test_a_malformed_message_is_refused(spec: TensorSpec) -> None:
    with pytest.raises(InvalidRequest) as caught:
        STAGE.read(message_tensor(spec, b"nonsense"))
    assert caught.value.field == spec.name


def tokenized(prompt: Prompt, stage: TokenizerStage = STAGE, **options: Any) -> TokenizeAnswer:
    outputs = stage.answer(TokenizeRequest(prompt, **options))
    assert outputs.keys() == {"tokens"}
    return unpack(TokenizeAnswer, payload_of(outputs, TOKENS), "tokens")


@pytest.mark.parametrize(
    "prompt", [TextPrompt("a" * 500_001), ChatPrompt(({"role": "user", "content": "a" * 500_000},))]
)
def test_a_prompt_that_is_only_tokenized_has_a_limit(prompt: Prompt) -> None:
    with pytest.raises(InvalidRequest, match=r"bytes: at most 500000 are tokenized"):
        tokenized(prompt)


@pytest.mark.parametrize(("add_special_tokens", "expected"), [(True, ("<s>", "▁a")), (False, ("▁a",))])
def test_the_tokens_that_the_tokenizer_adds_can_be_left_out(
    add_special_tokens: bool, expected: tuple[str, ...]
) -> None:
    model = files(sentencepiece())
    stage = TokenizerStage(model, byte_table(model.tokenizer), MODEL, UnboundedChecker())
    assert tokenized(TextPrompt("a"), stage, add_special_tokens=add_special_tokens).strings == expected


@pytest.mark.parametrize(("has_special_tokens", "expected"), [(True, "<s> a"), (False, " a")])
def test_a_text_shows_special_tokens_on_request(has_special_tokens: bool, expected: str) -> None:
    model = files(sentencepiece())
    stage = TokenizerStage(model, byte_table(model.tokenizer), MODEL, UnboundedChecker())
    token_ids = tuple(model.tokenizer.encode("a").ids)
    outputs = stage.answer(DetokenizeRequest(token_ids, has_special_tokens))
    assert payload_of(outputs, TEXT).decode() == expected
    for outside in (-1, 2**40):
        with pytest.raises(InvalidRequest, match=f"^{outside} is not a token: they are 0 to "):
            stage.answer(DetokenizeRequest((*token_ids, outside), has_special_tokens))


def test_a_prompt_that_is_only_tokenized_may_be_longer_than_the_window_and_empty() -> None:
    assert len(tokenized(TextPrompt("日" * 4000)).token_ids) > MODEL.context_window
    assert tokenized(TextPrompt("")) == TokenizeAnswer((), ())
    whole = tokenized(TextPrompt("a"))
    assert tokenized(TextPrompt("a"), has_strings=False) == TokenizeAnswer(whole.token_ids, ())


# --- models that embed ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def embedder() -> TokenizerStage:
    """The stage of a BERT, with a window of eight tokens."""
    files_of_bert = files(word_piece_description())
    parameters = replace(MODEL, pooling="mean", context_window=8, capabilities=frozenset({"temperature"}))
    return TokenizerStage(files_of_bert, byte_table(files_of_bert.tokenizer), parameters, UnboundedChecker())


def pieces(stage: TokenizerStage, text: str, **params: Any) -> list[str]:
    encoded = stage.encode(request(TextPrompt(text), **params))
    assert encoded.max_tokens == encoded.params.max_tokens == 0
    return [TOKENS_OF_BERT[token_id] for token_id in encoded.prompt_token_ids]


TOKENS_OF_BERT = {token_id: token for token, token_id in word_piece_description()["model"]["vocab"].items()}


def test_a_prompt_to_embed_may_fill_the_window(embedder: TokenizerStage) -> None:
    assert pieces(embedder, "The red foxs run") == ["[CLS]", "the", "red", "fox", "##s", "run", "[SEP]"]
    assert len(pieces(embedder, "a b c d e f")) == 8
    rule = f"text_input: {prompt_too_long(8, '9 tokens')}"
    assert refusal(request(TextPrompt("a b c d e f g")), PromptTooLong, embedder) == rule


@pytest.mark.parametrize("kept", [4, -1])
def test_a_truncated_prompt_to_embed_keeps_its_beginning_and_its_end_token(kept: int, embedder: TokenizerStage) -> None:
    text = ["[CLS]", *"abcdef", "[SEP]"] if kept == -1 else ["[CLS]", "a", "b", "[SEP]"]
    assert pieces(embedder, "a b c d e f g h", truncate_prompt_tokens=kept) == text


def test_a_grpc_client_needs_only_a_prompt(embedder: TokenizerStage) -> None:
    """Its request is greedy, which no model that embeds could honour."""
    sent = embedder.read({"text_input": np.array([[b"a"]], dtype=np.object_)})
    assert isinstance(sent, GenerationRequest)
    assert len(embedder.encode(sent).prompt_token_ids) == 3


def test_token_ids_are_truncated_at_their_end(embedder: TokenizerStage) -> None:
    ids = embedder.encode(request(TokenPrompt((5, 6, 7, 8)), truncate_prompt_tokens=2)).prompt_token_ids
    assert ids == (5, 6)


@pytest.mark.parametrize(
    ("params", "field"),
    [
        ({"stop": ("a",)}, "stop_words"),
        ({"is_echo": True}, "exclude_input_in_output"),
        ({"ignore_eos": True}, "ignore_eos"),
        ({"sampling": SamplingParams(temperature=0.5)}, "temperature"),
    ],
    ids=str,
)
def test_a_field_of_completions_is_refused(params: dict[str, Any], field: str, embedder: TokenizerStage) -> None:
    rule = f"{field}: this model has no completions"
    assert refusal(request(TextPrompt("a"), **params), Unsupported, embedder) == rule


# --- models that score pairs ------------------------------------------------------------------------------------------

JUDGE = (
    '{{ "<|im_start|>" }}{{ messages | selectattr("role", "eq", "query") | map(attribute="content") | first }}\n'
    '{{ messages | selectattr("role", "eq", "document") | map(attribute="content") | first }}{{ "<|im_end|>" }}!'
)


def scorer(**changes: Any) -> TokenizerStage:
    """The stage of a cross-encoder, with a window of eight tokens."""
    files_of_bert = files(cross_encoder_description())
    parameters = replace(MODEL, pooling="rank", context_window=8, capabilities=frozenset({"temperature"}), **changes)
    return TokenizerStage(files_of_bert, byte_table(files_of_bert.tokenizer), parameters, UnboundedChecker())


def pair_pieces(first: str, second: str, **params: Any) -> str:
    encoded = scorer().encode(request(PairPrompt((first, second)), **params))
    return " ".join(TOKENS_OF_BERT[token_id] for token_id in encoded.prompt_token_ids)


def test_a_pair_has_the_tokenizers_tokens_around_its_texts() -> None:
    assert pair_pieces("the fox", "runs") == "[CLS] the fox [SEP] run ##s [SEP]"
    assert pair_pieces("the fox", " ") == "[CLS] the fox [SEP] [SEP]"


def test_a_text_of_a_pair_cannot_end_the_pair() -> None:
    assert pair_pieces("a", "[SEP]", truncate_prompt_tokens=8).count("[SEP]") == 2


def test_the_second_half_of_a_vocabulary_of_two_halves_is_for_the_second_text() -> None:
    files_of_bert = files(cross_encoder_description())
    table = byte_table(files_of_bert.tokenizer)
    parameters = replace(MODEL, pooling="rank", capabilities=frozenset({"temperature"}), has_token_types=True)
    stage = TokenizerStage(files_of_bert, table * 2, parameters, UnboundedChecker())
    ids = stage.encode(request(PairPrompt(("a", "a")))).prompt_token_ids
    assert ids == (2, 5, 3, 5 + len(table), 3 + len(table))


def test_a_long_pair_is_refused_or_loses_the_end_of_its_second_text() -> None:
    rule = f"text_pair: {prompt_too_long(8, '9 tokens')}"
    assert refusal(request(PairPrompt(("a b", "c d e f"))), PromptTooLong, scorer()) == rule
    assert pair_pieces("a b", "c d e f", truncate_prompt_tokens=-1) == "[CLS] a b [SEP] c d e [SEP]"


@pytest.mark.parametrize("first", ["a b", "c"])
def test_a_number_that_leaves_no_second_text_is_refused_with_the_smallest_that_does(first: str) -> None:
    smallest = len(first.split()) + 4
    asked = request(PairPrompt((first, "c d e f")), truncate_prompt_tokens=smallest - 1)
    rule = f"truncate_prompt_tokens: {smallest - 1} leaves no token of the second text: at least {smallest} does"
    assert refusal(asked, stage=scorer()) == rule
    assert pair_pieces(first, "c d e f", truncate_prompt_tokens=smallest) == f"[CLS] {first} [SEP] c [SEP]"


def judge(template: str = JUDGE) -> TokenizerStage:
    parameters = replace(MODEL, pooling="rank", capabilities=frozenset({"temperature"}))
    return TokenizerStage(
        dataclasses.replace(DEMO_FILES, chat_template=template), DEMO_BYTES, parameters, UnboundedChecker()
    )


def judged(stage: TokenizerStage, second: str, num_tokens: int | None = None) -> str:
    """Return the text that a judge gets of a pair."""
    asked = request(PairPrompt(("red<|im_end|>", second)), truncate_prompt_tokens=num_tokens)
    names = {token_id: name for name, token_id in SPECIAL_IDS.items()}
    ids = stage.encode(asked).prompt_token_ids
    return b"".join(names[each].encode() if each in names else DEMO_BYTES[each] for each in ids).decode()


def test_a_rerankers_template_writes_its_pairs() -> None:
    """The texts stay text."""
    assert judged(judge(), "a green house") == "<|im_start|>red<|im_end|>\na green house<|im_end|>!"
    ends = judge().encode(request(PairPrompt(("a", "b")))).prompt_token_ids
    assert SPECIAL_IDS["<|im_end|>"] in ends


@pytest.mark.parametrize("end", ['{{ "<|im_end|>" }}!', "\n\nRelevant:"], ids=["token", "text"])
def test_a_template_stays_whole_around_the_beginning_of_the_second_text(end: str) -> None:
    """The end of a text may share a token with the template behind it."""
    stage = judge(JUDGE.replace('{{ "<|im_end|>" }}!', end))
    text = "a green house\n"
    whole = judged(stage, text)
    beginning, _, behind = whole.partition(text)
    asked = request(PairPrompt(("red<|im_end|>", text)), truncate_prompt_tokens=1)
    smallest = int(refusal(asked, stage=stage).split("at least ")[1].split()[0])
    for num_tokens in range(smallest, smallest + 3):
        kept = judged(stage, text, num_tokens)
        assert kept.startswith(beginning + "a") and kept.endswith(behind.strip())
        assert len(beginning + behind) < len(kept) < len(whole)


def test_pairs_need_a_model_that_scores(embedder: TokenizerStage) -> None:
    for stage in (STAGE, embedder):
        rule = "text_pair: this model does not score pairs"
        assert refusal(request(PairPrompt(("a", "b"))), Unsupported, stage) == rule


def test_a_tokenizer_without_tokens_for_pairs_is_named() -> None:
    parameters = replace(MODEL, pooling="rank", capabilities=frozenset({"temperature"}))
    stage = TokenizerStage(
        dataclasses.replace(DEMO_FILES, chat_template=None), DEMO_BYTES, parameters, UnboundedChecker()
    )
    rule = "model: this model's tokenizer has no token between the texts of a pair"
    for text in ("b", " "):
        assert refusal(request(PairPrompt(("a", text))), Unsupported, stage) == rule


@pytest.mark.parametrize("texts", [("a",), ("a", "b", "c"), ("a", "")], ids=str)
def test_a_pair_is_of_two_texts(texts: tuple[str, ...]) -> None:
    rule = "text_pair: expected two texts, neither of them empty"
    assert refusal(request(PairPrompt(texts)), stage=scorer()) == rule
