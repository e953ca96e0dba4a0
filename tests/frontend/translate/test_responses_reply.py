"""Answers in the form of Responses: the order of events, whole and streamed alike, and errors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types.responses import Response
from pydantic import TypeAdapter

from frontend import errors
from frontend.errors import APIError
from frontend.protocol.response_objects import ResponseStreamEvent
from frontend.protocol.responses import ResponsesRequest, opened_thinking
from frontend.translate.places import Places
from frontend.translate.responses_chat import responses_to_chat
from frontend.translate.responses_reply import ResponsesReply
from frontend.triton.models import ModelName
from model_repository.contract.codec import pack_logprobs
from model_repository.contract.output import FinishReason, GenerationChunk, TokenLogprob, TopLogprob, Usage
from model_repository.model_parameters import API_SAMPLING
from model_repository.tool_formats import HERMES
from tests.fakes import served_model
from tests.frontend.answers import written
from tests.frontend.bodies import RESPONSE, WEATHER, read
from tests.frontend.translate.test_chat_reasoning import chunks_of
from tests.responses_types import checked_response, checked_response_event

NAME = ModelName(requested="r", model=served_model(reasoning_format="think"))
FUNCTION: Any = WEATHER["function"]
TOOLS = [{"type": "function", **FUNCTION}, {"type": "custom", "name": "type"}]
CALL = HERMES.calls_text([("get_weather", '{"city": "Zürich"}')])
TYPING = HERMES.calls_text([("type", '{"input": "a\\n\\"é"}')])
USAGE = Usage(num_input_tokens=7, num_output_tokens=5, num_cached_tokens=3, num_reasoning_tokens=2)
OURS: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)


def reply_to(**fields: Any) -> ResponsesReply:
    body = read(ResponsesRequest, RESPONSE | fields)[0]
    return ResponsesReply(body, responses_to_chat(body, NAME, Places(body)), NAME, 1)


def events_of(reply: ResponsesReply, chunks: Sequence[GenerationChunk]) -> list[dict[str, Any]]:
    """Return the events of a stream, which the client's types and ours allow."""
    events = [*reply.opening(chunks[0])]
    events += [written(event) for chunk in chunks for event in reply.events(0, chunk)]
    numbered = [{**event, "sequence_number": number} for number, event in enumerate(events)]
    for event in numbered:
        checked_response_event(event)
        assert OURS.validate_python(event, strict=True) == event
    return numbered


def put_together(events: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield the items of a stream as a client adds up its deltas. Events are in OpenAI's order."""
    place = iter(events)
    assert [next(place)["type"] for _ in range(2)] == ["response.created", "response.in_progress"]
    for index, added in enumerate(place):
        if added["type"] in ("response.completed", "response.incomplete"):
            assert next(place, None) is None
            return
        assert (added["type"], added["output_index"]) == ("response.output_item.added", index)
        kind = added["item"]["type"]
        if kind in ("message", "reasoning"):
            part = next(place)
            assert part["type"].endswith("_part.added") and part["part"]["text"] == ""
        text = ""
        for event in place:
            assert event["item_id"] == added["item"]["id"]
            if event["type"].endswith(".done"):
                break
            text += event["delta"]
        assert text in event.values()
        if kind in ("message", "reasoning"):
            part = next(place)
            assert part["type"].endswith("_part.done") and part["part"]["text"] == text
        done = next(place)
        assert (done["type"], done["output_index"]) == ("response.output_item.done", index)
        yield done["item"]


def shown(items: Sequence[Any]) -> list[Any]:
    """Return items without their random ids."""
    return [{key: value for key, value in each.items() if key not in ("id", "call_id")} for each in items]


@given(
    thinking=st.sampled_from(["", "<think>\nHm. </think>", "<think>"]),
    answer=st.lists(st.sampled_from(["Hi", " there", "\n", CALL, TYPING, CALL[:20], "<"]), max_size=4).map("".join),
    places=st.sets(st.integers(1, 150), max_size=9),
    reason=st.sampled_from(FinishReason),
    fields=st.sampled_from([{}, {"tools": TOOLS}, {"tools": TOOLS, "tool_choice": "required"}]),
    include=st.sampled_from([[], ["reasoning.encrypted_content"]]),
    reasoning=st.sampled_from([{}, {"summary": "auto"}]),
)
def test_a_stream_adds_up_to_the_whole_answer(
    thinking: str,
    answer: str,
    places: set[int],
    reason: FinishReason,
    fields: dict[str, Any],
    include: list[str],
    reasoning: dict[str, str],
) -> None:
    fields = fields | {"include": include, "reasoning": reasoning}
    [chunk] = chunks_of(thinking, answer, set(), reason)
    whole = written(reply_to(**fields).whole([chunk]))
    checked_response(whole)
    events = events_of(reply_to(**fields), chunks_of(thinking, answer, places, reason))
    items = list(put_together(events))
    last = events[-1]["response"]
    assert items == last["output"]
    assert shown(items) == shown(whole["output"])
    assert (last["status"], last["incomplete_details"], last["usage"]) == (
        whole["status"],
        whole["incomplete_details"],
        whole["usage"],
    )


def answered(text: str, reason: FinishReason = FinishReason.STOP, **fields: Any) -> Response:
    chunk = GenerationChunk(text=text, finish_reason=reason, usage=USAGE)
    return checked_response(written(reply_to(**fields).whole([chunk])))


@pytest.mark.parametrize(
    ("answer", "status", "items"),
    [
        (answered("a"), "completed", [("message", "completed")]),
        (answered(""), "completed", [("message", "completed")]),
        (answered("a", FinishReason.LENGTH), "incomplete", [("message", "incomplete")]),
        (answered(CALL, tools=TOOLS), "completed", [("function_call", "completed")]),
        (
            answered("Hi." + CALL[:50], FinishReason.LENGTH, tools=TOOLS),
            "incomplete",
            [("message", "completed"), ("function_call", "incomplete")],
        ),
        (
            answered(CALL + CALL[:50], tools=TOOLS),
            "completed",
            [("function_call", "completed"), ("function_call", "incomplete")],
        ),
        (
            answered(CALL[:9], FinishReason.LENGTH, tools=TOOLS, tool_choice="required"),
            "incomplete",
            [("message", "incomplete")],
        ),
    ],
)
def test_an_answer_and_its_items_say_whether_they_are_whole(
    answer: Response, status: str, items: list[tuple[str, str]]
) -> None:
    assert answer.status == status
    assert [(item.type, item.status) for item in answer.output] == items  # type: ignore[union-attr]
    reason = answer.incomplete_details and answer.incomplete_details.reason
    assert reason == ("max_output_tokens" if status == "incomplete" else None)


def test_calls_have_arguments_or_the_input_itself() -> None:
    function, custom = answered(CALL + TYPING, tools=TOOLS).output
    assert function.type == "function_call"
    assert (function.name, function.arguments) == ("get_weather", '{"city": "Zürich"}')
    assert custom.type == "custom_tool_call"
    assert (custom.name, custom.input) == ("type", 'a\n"é')


def test_a_call_of_a_tool_in_a_namespace_names_both() -> None:
    """Codex has the tools of MCP servers in namespaces."""
    space = {"type": "namespace", "name": "maps", "description": "Places.", "tools": [TOOLS[0], {"type": "x"}]}
    call = HERMES.calls_text([("maps__get_weather", "{}")])
    answer = answered(call, tools=[space])
    [item] = answer.output
    assert item.type == "function_call" and (item.namespace, item.name) == ("maps", "get_weather")
    asked = read(ResponsesRequest, RESPONSE | {"tools": [space], "input": [item.to_dict()]})
    assert asked[1] == ["tools[0].description", "tools[0].tools[1]"]
    [message] = responses_to_chat(asked[0], NAME, Places(asked[0])).messages
    assert message.tool_calls is not None and message.tool_calls[0].function is not None
    assert message.tool_calls[0].function.name == "maps__get_weather"


def test_the_tokens_are_counted() -> None:
    usage = answered("a").usage
    assert usage is not None
    assert (usage.input_tokens, usage.output_tokens, usage.total_tokens) == (7, 5, 12)
    assert usage.input_tokens_details.cached_tokens == 3
    assert usage.output_tokens_details.reasoning_tokens == 2


def test_the_thinking_comes_in_an_opaque_form_too_if_it_is_included() -> None:
    [chunk] = chunks_of("<think>Hm.</think>", "Hi.", set(), FinishReason.STOP)
    for include in ([], ["reasoning.encrypted_content"]):
        thinking = checked_response(written(reply_to(include=include).whole([chunk]))).output[0]
        assert thinking.type == "reasoning" and thinking.content is not None
        assert [part.text for part in thinking.content] == ["Hm."]
        sealed = thinking.encrypted_content
        assert (None if sealed is None else opened_thinking(sealed)) == ("Hm." if include else None)


@pytest.mark.parametrize("name", ["summary", "generate_summary"])
def test_the_thinking_is_the_summary_of_a_client_that_asks_for_one(name: str) -> None:
    """The AI SDK, Codex and LiteLLM show a summary alone."""
    [chunk] = chunks_of("<think>Hm.</think>", "Hi.", set(), FinishReason.STOP)
    answer = checked_response(written(reply_to(reasoning={name: "concise"}).whole([chunk])))
    thinking = answer.output[0]
    assert thinking.type == "reasoning"
    assert ([part.text for part in thinking.summary], thinking.content) == (["Hm."], [])
    assert answer.reasoning is not None and answer.reasoning.summary == "concise"


def token(text: str) -> TokenLogprob:
    top = (TopLogprob(token_id=1, logprob=-0.5, token_bytes=text.encode()),)
    return TokenLogprob(token_id=1, logprob=-0.5, token_bytes=text.encode(), top=top)


def test_log_probabilities_are_those_of_the_text() -> None:
    thinking = "<think>Hm.</think>"
    chunks = [
        GenerationChunk(text=thinking, spans=(len(thinking), 0), logprobs=pack_logprobs([token("Hm.")])),
        GenerationChunk(text="", logprobs=pack_logprobs([token("\\u00c3")])),
        GenerationChunk(text="Hi.", logprobs=pack_logprobs([token("Hi.")])),
        GenerationChunk(text="", finish_reason=FinishReason.STOP, usage=USAGE),
    ]
    fields = {"include": ["message.output_text.logprobs"], "top_logprobs": 1}
    events = events_of(reply_to(**fields), chunks)
    sent = [each for event in events for each in event.get("logprobs", ()) if event["type"].endswith("text.delta")]
    [text] = events[-1]["response"]["output"][-1]["content"]
    assert [each["token"] for each in sent] == [each["token"] for each in text["logprobs"]] == ["\\u00c3", "Hi."]
    assert text["logprobs"][1]["top_logprobs"] == [{"token": "Hi.", "logprob": -0.5, "bytes": [72, 105, 46]}]


def test_the_request_is_repeated() -> None:
    schema = {"type": "object", "properties": {"a": {"default": None}}}
    fields: dict[str, Any] = {
        "instructions": "Be nice.",
        "max_output_tokens": 9,
        "max_tool_calls": 2,
        "metadata": {"a": "b"},
        "parallel_tool_calls": False,
        "prompt_cache_key": "k",
        "reasoning": {"effort": "low"},
        "safety_identifier": "s",
        "service_tier": "flex",
        "temperature": 0.5,
        "text": {"format": {"type": "json_schema", "name": "a", "schema": schema}},
        "tool_choice": {"type": "function", "name": "get_weather"},
        "tools": [*TOOLS, {"type": "web_search"}],
        "top_p": 0.25,
        "truncation": "auto",
        "user": "u",
    }
    repeated = reply_to(**fields).whole([GenerationChunk(text="a", finish_reason=FinishReason.STOP, usage=USAGE)])
    tools = [{"description": None, "strict": None} | TOOLS[0], TOOLS[1]]
    expected = fields | {"tools": tools, "reasoning": {"effort": "low", "summary": None}}
    assert {name: repeated[name] for name in fields} == expected
    assert (repeated["model"], repeated["store"], repeated["created_at"]) == ("r", False, 1)


def test_sampling_that_the_request_leaves_out_is_the_models_own() -> None:
    repeated = reply_to(top_p=0.25).whole([GenerationChunk(text="a", finish_reason=FinishReason.STOP, usage=USAGE)])
    names = ("temperature", "top_p", "presence_penalty", "frequency_penalty")
    own = API_SAMPLING | NAME.model.parameters.defaults
    assert [repeated[name] for name in names] == [own["temperature"], 0.25, 0.0, 0.0]


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.EngineFailed(), "server_error"),
        (errors.GenerationTimeout("a"), "server_error"),
        (errors.RateLimited("a", headers={}), "rate_limit_exceeded"),
        (errors.InvalidRequest("a"), "invalid_prompt"),
    ],
)
def test_a_stream_that_fails_ends_with_the_error_and_the_failed_answer(error: APIError, code: str) -> None:
    reply = reply_to()
    reply.opening(GenerationChunk(text=""))
    reply.events(0, GenerationChunk(text="Hi"))
    told, failed = (
        checked_response_event({**written(event), "sequence_number": number})
        for number, event in enumerate(reply.failure(error))
    )
    assert (told.type, told.message, told.code) == ("error", error.message, error.code)
    response = failed.response
    assert (failed.type, response.status, response.error.code) == ("response.failed", "failed", code)
    [message] = response.output
    assert (message.status, message.content[0].text) == ("incomplete", "Hi")


def queued() -> ResponsesReply:
    body = read(ResponsesRequest, RESPONSE | {"tools": TOOLS})[0]
    chat = responses_to_chat(body, NAME, Places(body))
    return ResponsesReply(body, chat, NAME, 1, identity="resp_1", clock=lambda: 2.0)


def test_the_same_chunks_make_the_same_events_of_an_answer_in_the_background() -> None:
    chunks = [
        GenerationChunk(text="Let me see. "),
        GenerationChunk(text=CALL + TYPING, finish_reason=FinishReason.STOP, usage=USAGE),
    ]
    first, second = queued(), queued()
    events = events_of(first, chunks)
    assert events == events_of(second, chunks)
    assert [event["type"] for event in events[:2]] == ["response.created", "response.queued"]
    assert {event["response"]["status"] for event in events[:2]} == {"queued"}
    [begun] = first.begin()
    assert OURS.validate_python({**begun, "sequence_number": 2})["response"]["id"] == "resp_1"
    items = events[-1]["response"]["output"]
    assert len({item["id"] for item in items} | {item.get("call_id") for item in items}) == 6
    assert first.ended is not None
    assert written(first.ended) == events[-1]["response"]


def test_a_stopped_answer_has_its_text_so_far() -> None:
    reply = queued()
    events_of(reply, [GenerationChunk(text="Let me")])
    [last] = reply.cancelled()
    response = written(last)["response"]
    assert (last["type"], response["status"]) == ("response.cancelled", "cancelled")
    assert (response["output"][0]["status"], response["output"][0]["content"][0]["text"]) == ("incomplete", "Let me")
