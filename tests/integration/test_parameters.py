"""Walks the parameter table: every enforced field shows its effect, every refused one its 400."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable
from typing import Any

import pytest

from frontend.reference.parameters import Parameter, Treatment, parameters
from tests.integration.api import CHAT, COMPLETIONS, DEMO, WEATHER, Answer, Api, chat_text, text_of
from tests.integration.stack import ENGINE_MODEL, PACED_MODEL
from tests.pictures import circle, data_uri
from tests.waiting import wait_until

# Another test has those of embeddings: test_retrieval.py.
ROWS = [row for row in parameters() if row.endpoint in (CHAT, COMPLETIONS)]

type Effect = Callable[[Api, str], None]

EFFECTS: dict[str, Effect] = {}
VAGUE = "zq xv"


def effect(*names: str) -> Callable[[Effect], Effect]:
    """Register what proves that fields are enforced."""

    def register(function: Effect) -> Effect:
        EFFECTS.update(dict.fromkeys(names, function))
        return function

    return register


def rows(treatment: Treatment, runtime: str) -> list[Any]:
    """Return the rows of the table that a runtime treats so."""
    return [
        pytest.param(row, id=f"{row.endpoint.rpartition('/v1/')[2]}-{row.name}")
        for row in ROWS
        if row.treatments[runtime] is treatment
    ]


def proofs(runtime: str) -> list[Any]:
    """Return each proof that a runtime enforces something, once for each endpoint.

    The double of TensorRT-LLM serves no model that reads images.
    """
    proven: dict[tuple[Effect, str], list[str]] = {}
    for row in ROWS:
        is_served = row.treatments[runtime] is not Treatment.REFUSED
        if row.name in EFFECTS and is_served and (row.name, runtime) != ("images", "tensorrt_llm"):
            proven.setdefault((EFFECTS[row.name], row.endpoint), []).append(row.name)
    return [
        pytest.param(proof, endpoint, id=f"{endpoint.rpartition('/v1/')[2]}-{'+'.join(names)}")
        for (proof, endpoint), names in proven.items()
    ]


def test_a_bookkeeping_field_changes_no_answer(api: Api) -> None:
    plain = {endpoint: api.ask(endpoint, temperature=1, seed=3).text for endpoint in (CHAT, COMPLETIONS)}
    for param in rows(Treatment.LOGGED, "llama_cpp"):
        [row] = param.values
        answer = api.ask(row.endpoint, temperature=1, seed=3, **{row.name: row.body[row.name]})
        assert answer.text == plain[row.endpoint], row.name


@pytest.mark.parametrize("row", [param for param in rows(Treatment.REFUSED, "synthetic") if param.values[0].needed])
def test_a_field_that_the_runtime_lacks_is_refused(api: Api, row: Parameter) -> None:
    answer = api.post(row.endpoint, dict(row.body) | {"model": PACED_MODEL})
    assert (answer.status, answer.error["code"]) == (400, "unsupported_value")
    assert ("reads none" if row.name == "images" else "synthetic") in answer.error["message"]


def test_llama_cpp_lacks_no_field_that_another_runtime_has() -> None:
    assert not [param for param in rows(Treatment.REFUSED, "llama_cpp") if param.values[0].needed]


@pytest.mark.parametrize("row", [param for param in rows(Treatment.REFUSED, "llama_cpp") if not param.values[0].needed])
def test_a_field_that_is_not_served_is_refused_and_its_neutral_value_is_not(api: Api, row: Parameter) -> None:
    refused = api.ask(row.endpoint, **{row.name: {"harmful": "value"}})
    assert (refused.status, refused.error["param"]) == (400, row.name)
    assert api.ask(row.endpoint, **{row.name: row.body[row.name]}, max_tokens=1).status == 200


@pytest.mark.parametrize("row", rows(Treatment.HINT, "llama_cpp"))
def test_a_hint_is_listed_and_its_neutral_value_is_not(api: Api, row: Parameter) -> None:
    assert api.ask(row.endpoint, **{row.name: "x"}, max_tokens=1).headers["x-ignored-params"] == row.name
    assert "x-ignored-params" not in api.ask(row.endpoint, **{row.name: row.body[row.name]}, max_tokens=1).headers


# --- the effects -----------------------------------------------------------------------------------------------------
def stop_of(api: Api) -> str:
    """Return a text in the middle of the answer."""
    answer = api.subject.answer
    middle = len(answer) // 2 - 3
    return answer[middle : middle + 3]


def head(api: Api, stop: str) -> str:
    """Return what stands before a text in the answer."""
    return api.subject.answer.partition(stop)[0]


def token_ids(answer: Answer) -> list[int]:
    """Return the first choice's token ids."""
    ids: list[int] = answer.choice["token_ids"]
    return ids


def hot(api: Api, endpoint: str, **fields: Any) -> str:
    """Return 20 tokens drawn where the model has no idea what comes."""
    return api.ask(endpoint, VAGUE, **{"temperature": 2, "max_tokens": 20} | fields).text


def with_seeds(api: Api) -> Api:
    """Return a client of a model that honours seeds: TensorRT-LLM's PyTorch backend does not, its engines do."""
    engine = dataclasses.replace(api, subject=dataclasses.replace(api.subject, model=ENGINE_MODEL))
    for each in (api, engine):
        answer = each.ask(COMPLETIONS, seed=1, max_tokens=1)
        if answer.status == 200 and "x-ignored-params" not in answer.headers:
            return each
    pytest.skip("the model draws without a seed")


def babble(api: Api, endpoint: str, **fields: Any) -> list[int]:
    """Return 120 tokens that nothing ends."""
    return token_ids(api.ask(endpoint, **{"ignore_eos": True, "max_tokens": 120, "return_token_ids": True} | fields))


def surprise(api: Api, endpoint: str, **fields: Any) -> float:
    """Return the mean surprise in bits, of the raw distribution, where the model has no idea what comes."""
    body = api.question_body(endpoint) | ({"messages": VAGUE} if endpoint == CHAT else {"prompt": VAGUE})
    body |= {"ignore_eos": True, "max_tokens": 200, "temperature": 1.5, "n": 2, "seed": 5}
    answer = api.post(endpoint, body | {"logprobs": True if endpoint == CHAT else 0} | fields)
    logprobs = [choice["logprobs"] for choice in answer.body["choices"]]
    if endpoint == CHAT:
        values = [item["logprob"] for each in logprobs for item in each["content"]]
    else:
        values = [value for each in logprobs for value in each["token_logprobs"]]
    return -sum(values) / len(values) / math.log(2)


@effect("model")
def _names_the_model(api: Api, endpoint: str) -> None:
    assert api.ask(endpoint, model="nobody/knows").status == 404
    assert api.ask(endpoint, model=api.subject.alias, max_tokens=1).body["model"] == api.subject.alias


@effect("messages", "prompt")
def _is_what_is_answered(api: Api, endpoint: str) -> None:
    assert api.ask(endpoint).text == api.subject.answer
    assert "Paris" in api.ask(endpoint, "What is the capital of France?").text


@effect("images")
def _is_what_the_prompt_asks_about(api: Api, endpoint: str) -> None:
    prompt = chat_text("<image>\nWhat colour is it?")
    shown = [{"model": "demo-pictures", "images": [data_uri(circle(colour))]} for colour in ("red", "blue")]
    texts = [api.ask(endpoint, prompt=prompt, **fields).text for fields in shown]
    assert texts == ["It is red.", "It is blue."]


@effect("max_tokens", "max_completion_tokens")
def _ends_by_length(api: Api, endpoint: str) -> None:
    for name in ("max_tokens", "max_completion_tokens"):
        answer = api.ask(endpoint, **{name: 3})
        assert (answer.choice["finish_reason"], answer.body["usage"]["completion_tokens"]) == ("length", 3)
    both = api.ask(endpoint, max_tokens=2, max_completion_tokens=4)
    assert both.body["usage"]["completion_tokens"] == 4


@effect("min_tokens")
def _does_not_end_early(api: Api, endpoint: str) -> None:
    # A bias that wants nothing but the end.
    fields = {"logit_bias": {str(api.subject.end_token): 100}}
    assert api.ask(endpoint, **fields).body["usage"]["completion_tokens"] == 1
    assert api.ask(endpoint, **fields, min_tokens=8).body["usage"]["completion_tokens"] == 9
    second = api.subject.answer[1]
    assert api.ask(endpoint, stop=second, min_tokens=12).text.startswith(api.subject.answer[:7])


@effect("stop", "include_stop_str_in_output")
def _ends_at_a_stop_sequence(api: Api, endpoint: str) -> None:
    stop = stop_of(api)
    answer = api.ask(endpoint, stop=[stop, "never"])
    assert answer.text == head(api, stop)
    assert (answer.choice["finish_reason"], answer.choice["stop_reason"]) == ("stop", stop)
    assert api.ask(endpoint, stop=[stop], include_stop_str_in_output=True).text == head(api, stop) + stop
    assert api.ask(endpoint).choice["stop_reason"] is None


@effect("stop_token_ids")
def _ends_at_a_token(api: Api, endpoint: str) -> None:
    ids = token_ids(api.ask(endpoint, return_token_ids=True))
    before = api.text_of_tokens(ids[: ids.index(ids[1])])
    answer = api.ask(endpoint, stop_token_ids=[ids[1]])
    assert (answer.text, answer.choice["finish_reason"], answer.choice["stop_reason"]) == (before, "stop", ids[1])


@effect("allowed_token_ids")
def _draws_only_these_tokens(api: Api, endpoint: str) -> None:
    first, second, *_ = token_ids(api.ask(endpoint, return_token_ids=True))
    hot_fields = {"temperature": 2, "seed": 1, "max_tokens": 20, "return_token_ids": True}
    drawn = token_ids(api.ask(endpoint, **hot_fields, allowed_token_ids=[first, second]))
    assert (len(drawn), set(drawn)) == (20, {first, second})
    assert api.ask(endpoint, allowed_token_ids=[10**8]).status == 400


@effect("ignore_eos")
def _goes_on_past_the_end(api: Api, endpoint: str) -> None:
    answer = api.ask(endpoint, ignore_eos=True, max_tokens=60)
    assert (answer.choice["finish_reason"], answer.body["usage"]["completion_tokens"]) == ("length", 60)
    assert answer.text.startswith(api.subject.answer)


@effect("context_length_exceeded_behavior")
def _refuses_what_does_not_fit(api: Api, endpoint: str) -> None:
    stop = stop_of(api)
    fields = {"max_tokens": 100_000_000, "stop": [stop]}
    refused = api.ask(endpoint, **fields, context_length_exceeded_behavior="error")
    assert (refused.status, refused.error["code"]) == (400, "context_length_exceeded")
    assert api.ask(endpoint, **fields, context_length_exceeded_behavior="truncate").text == head(api, stop)


@effect("temperature")
def _is_greedy_at_zero(api: Api, endpoint: str) -> None:
    assert {api.ask(endpoint).text for _ in range(3)} == {api.subject.answer}
    assert len({hot(api, endpoint, seed=seed) for seed in range(4)}) == 4


@effect("top_p", "top_k", "min_p")
def _truncates_the_distribution(api: Api, endpoint: str) -> None:
    greedy = hot(api, endpoint, temperature=0)
    for fields in ({"top_p": 0}, {"top_k": 1}, {"min_p": 1}):
        assert hot(api, endpoint, seed=1, **fields) == greedy
    for fields in ({"top_p": 1}, {"top_k": 0}, {"top_k": -1}, {"min_p": 0}):
        assert hot(api, endpoint, seed=1, **fields) != greedy


@effect("seed")
def _repeats(api: Api, endpoint: str) -> None:
    api = with_seeds(api)
    texts = [hot(api, endpoint, seed=seed) for seed in (1, 1, 2, -1, -1)]
    assert texts[0] == texts[1] != texts[2]
    assert texts[3] == texts[4]


@effect("repetition_penalty")
def _makes_repetition_less_likely(api: Api, endpoint: str) -> None:
    num_distinct = [len(set(babble(api, endpoint, repetition_penalty=value))) for value in (0.7, 1, 1.5)]
    assert num_distinct[0] <= num_distinct[1] < num_distinct[2]
    # The prompt's tokens count too: the answer to a question about 1 to 9 is made of them.
    assert api.ask(endpoint, repetition_penalty=2).text != api.subject.answer


@effect("presence_penalty", "frequency_penalty")
def _makes_the_completions_tokens_less_likely(api: Api, endpoint: str) -> None:
    for name in ("presence_penalty", "frequency_penalty"):
        num_distinct = [len(set(babble(api, endpoint, **{name: value}))) for value in (-2, 0, 2)]
        assert num_distinct[0] <= num_distinct[1] < num_distinct[2]


@effect("logit_bias")
def _forces_and_bans(api: Api, endpoint: str) -> None:
    greedy = babble(api, endpoint)
    assert set(babble(api, endpoint, logit_bias={"11": 100}, max_tokens=20)) == {11}
    banned = babble(api, endpoint, logit_bias={str(greedy[0]): -100})
    assert greedy[0] not in banned


@effect("bad_words")
def _leaves_texts_out(api: Api, endpoint: str) -> None:
    answer = api.ask(endpoint).text
    half = answer.strip()[: len(answer.strip()) // 2]
    text = api.ask(endpoint, bad_words=["never said", half]).text
    assert text and half not in text
    assert api.ask(endpoint, bad_words=["never said"]).text == answer
    assert not {*half} & {*api.ask(endpoint, bad_words=sorted({*half}), temperature=2, max_tokens=100).text}


@effect("mirostat_target", "mirostat_tau", "mirostat", "mirostat_lr", "mirostat_eta")
def _holds_the_surprise_near_its_target(api: Api, endpoint: str) -> None:
    # How near, test_logprobs.py measures; here that each spelling of it works.
    free = surprise(api, endpoint)
    for target, rate in (("mirostat_target", "mirostat_lr"), ("mirostat_tau", "mirostat_eta")):
        low, slow = (surprise(api, endpoint, **{target: free * 0.2}, **more) for more in ({}, {rate: 0.001}))
        assert low < free
        assert abs(slow - free * 0.2) > abs(low - free * 0.2)
    assert surprise(api, endpoint, mirostat=2) != free
    api = with_seeds(api)
    assert hot(api, endpoint, seed=1, mirostat=0) == hot(api, endpoint, seed=1)


@effect("n")
def _draws_several(api: Api, endpoint: str) -> None:
    api = with_seeds(api)
    answers = [api.ask(endpoint, VAGUE, n=3, temperature=2, seed=4, max_tokens=20) for _ in range(2)]
    texts = [[text_of(choice) for choice in answer.body["choices"]] for answer in answers]
    assert texts[0] == texts[1] and len(set(texts[0])) == 3
    assert [choice["index"] for choice in answers[0].body["choices"]] == [0, 1, 2]
    assert hot(api, endpoint, seed=5) == texts[0][1]


@effect("best_of")
def _answers_the_likeliest(api: Api, endpoint: str) -> None:
    api = with_seeds(api)
    fields = {"temperature": 1.8, "seed": 9, "logprobs": 0, "max_tokens": 20}
    drawn = api.ask(endpoint, VAGUE, n=6, **fields).body["choices"]
    means = [sum(item["logprobs"]["token_logprobs"]) / max(1, len(item["logprobs"]["tokens"])) for item in drawn]
    ranked = [text_of(drawn[index]) for index in sorted(range(6), key=lambda index: -means[index])]
    best = api.ask(endpoint, VAGUE, n=2, best_of=6, **fields)
    assert [text_of(choice) for choice in best.body["choices"]] == ranked[:2]
    assert best.body["usage"]["completion_tokens"] > sum(len(c["logprobs"]["tokens"]) for c in best.body["choices"])


@effect("response_format", "structured_outputs", "regex", "ebnf")
def _prescribes_the_form(api: Api, endpoint: str) -> None:
    fields = {"temperature": 1.5, "seed": 2}
    schema = {"type": "object", "properties": {"a": {"type": "integer", "minimum": 3, "maximum": 5}}, "required": ["a"]}
    named = {"name": "x", "schema": schema, "strict": True}
    for form in ({"type": "json_object", "schema": schema}, {"type": "json_schema", "json_schema": named}):
        assert json.loads(api.ask(endpoint, **fields, response_format=form).text)["a"] in (3, 4, 5)
    question = "What is the capital of Japan? Answer in JSON."
    assert isinstance(json.loads(api.ask(endpoint, question, response_format={"type": "json_object"}).text), dict)
    assert api.ask(endpoint, **fields, structured_outputs={"choice": ["yes", "no"]}).text in ("yes", "no")
    grammar = 'root ::= "x" [0-9] "y"'
    for described in (
        {"response_format": {"type": "grammar", "grammar": grammar}},
        {"response_format": {"type": "regex", "regex": "x[0-9]y"}},
        {"ebnf": grammar},
        {"regex": "x[0-9]y"},
    ):
        assert api.ask(endpoint, **fields, **described).text[0::2] == "xy"


@effect("return_tokens_as_token_ids")
def _names_tokens_by_their_ids(api: Api, endpoint: str) -> None:
    fields = {"logprobs": True if endpoint == CHAT else 1, "return_token_ids": True}
    answer = api.ask(endpoint, return_tokens_as_token_ids=True, **fields)
    logprobs = answer.choice["logprobs"]
    names = [item["token"] for item in logprobs["content"]] if endpoint == CHAT else logprobs["tokens"]
    assert names == [f"token_id:{token_id}" for token_id in token_ids(answer)]


@effect("return_token_ids")
def _tells_the_token_ids(api: Api, endpoint: str) -> None:
    answer = api.ask(endpoint, return_token_ids=True)
    assert api.text_of_tokens(token_ids(answer)) == api.subject.answer + api.subject.end_text
    assert len(token_ids(answer)) == answer.body["usage"]["completion_tokens"]
    prompt = (answer.body if endpoint == CHAT else answer.choice)["prompt_token_ids"]
    assert len(prompt) == answer.body["usage"]["prompt_tokens"]
    assert "token_ids" not in api.ask(endpoint).choice


@effect("stream", "stream_options")
def _streams(api: Api, endpoint: str) -> None:
    body = api.question_body(endpoint)
    options = {"include_usage": True, "include_obfuscation": True}
    events = api.events(endpoint, body | {"stream_options": options})
    pieces = [event["choices"][0] for event in events if event["choices"]]
    streamed = "".join(piece["text"] if "text" in piece else piece["delta"].get("content", "") for piece in pieces)
    assert streamed == api.subject.answer
    assert events[-1]["choices"] == []
    usage = events[-1]["usage"]
    assert usage["completion_tokens"] == api.post(endpoint, body).body["usage"]["completion_tokens"]
    assert all(event["usage"] is None for event in events[:-1])
    assert all(event["obfuscation"] for event in events[:-1])
    timed = api.events(endpoint, body | {"stream_options": {"include_timing": True}})
    assert timed[-1]["timing"].keys() == {"tokenize", "queue", "prefill", "decode"}
    assert all("timing" not in event for event in timed[:-1])
    counted = api.events(endpoint, body | {"stream_interval_ms": 0, "stream_options": {"continuous_usage_stats": True}})
    counts = [event["usage"]["completion_tokens"] for event in counted]
    assert counts == sorted(counts) and counts[-1] == usage["completion_tokens"]
    assert len(set(counts)) > 2


@effect("stream_interval_ms")
def _sends_each_token_by_itself(api: Api, endpoint: str) -> None:
    # That they gather without it takes a load that is too much for this machine: the engine's own tests show that.
    body = api.question_body(endpoint) | {"return_token_ids": True}
    events = api.events(endpoint, body | {"stream_interval_ms": 0})
    counts = sorted(len(event["choices"][0].get("token_ids") or ()) for event in events)
    assert counts[len(counts) // 2] == 1  # not of each: a runtime may bring two in one step
    assert sum(counts) == api.post(endpoint, body).body["usage"]["completion_tokens"]
    for refused in ({"stream_interval_ms": 1001, "stream": True}, {"stream_interval_ms": 0}):
        assert api.post(endpoint, body | refused).error["param"] == "stream_interval_ms"


@effect("logprobs", "top_logprobs")
def _tells_log_probabilities(api: Api, endpoint: str) -> None:
    if endpoint == CHAT:
        content = api.ask(endpoint, logprobs=True, top_logprobs=2).choice["logprobs"]["content"]
        assert bytes(byte for item in content for byte in item["bytes"]).decode() == api.subject.answer
        assert all(len(item["top_logprobs"]) == 2 and item["logprob"] <= 0 for item in content)
    else:
        logprobs = api.ask(endpoint, logprobs=2).choice["logprobs"]
        assert "".join(logprobs["tokens"]) == api.subject.answer + api.subject.end_text
        assert all(2 <= len(top) <= 3 for top in logprobs["top_logprobs"])
        assert logprobs["text_offset"][0] == len(api.subject.prompt_text)


@effect("prompt_logprobs")
def _tells_log_probabilities_of_the_prompt(api: Api, endpoint: str) -> None:
    answer = api.ask(endpoint, prompt_logprobs=2, return_token_ids=True)
    place = answer.body if endpoint == CHAT else answer.choice
    assert answer.text == api.subject.answer
    first, *others = place["prompt_logprobs"]
    _, *ids = place["prompt_token_ids"]
    assert first is None
    assert [next(iter(scored)) for scored in others] == list(map(str, ids))
    for scored, token_id in zip(others, ids, strict=True):
        ranks = {each["rank"]: each["logprob"] for each in scored.values()}
        assert {1, 2, scored[str(token_id)]["rank"]} == set(ranks)
        assert [ranks[rank] for rank in sorted(ranks)] == sorted(ranks.values(), reverse=True)
    refused = api.ask(endpoint, prompt_logprobs=2, stream=True)
    assert (refused.status, refused.error["param"]) == (400, "prompt_logprobs")


@effect("truncate_prompt_tokens")
def _keeps_the_end_of_the_prompt(api: Api, endpoint: str) -> None:
    fields = {"return_token_ids": True, "max_tokens": 4}

    def prompt_of(answer: Answer) -> list[int]:
        ids: list[int] = (answer.body if endpoint == CHAT else answer.choice)["prompt_token_ids"]
        assert answer.body["usage"]["prompt_tokens"] == len(ids)
        return ids

    whole = prompt_of(api.ask(endpoint, **fields))
    kept = api.ask(endpoint, truncate_prompt_tokens=3, **fields)
    assert prompt_of(kept) == whole[-3:]
    assert kept.text == api.ask(COMPLETIONS, prompt=whole[-3:], max_tokens=4).text
    long = "one two three " * 8000
    assert api.ask(endpoint, long, **fields).error["code"] == "context_length_exceeded"
    assert prompt_of(api.ask(endpoint, long, truncate_prompt_tokens=3, **fields)) == whole[-3:]
    [card] = [each for each in api.get("/v1/models").body["data"] if each["id"] == api.subject.model]
    fitted = api.ask(endpoint, long, truncate_prompt_tokens=-1, **fields)
    assert fitted.body["usage"]["prompt_tokens"] == card["max_model_len"] - 4
    assert api.ask(endpoint, truncate_prompt_tokens=0).error["param"] == "truncate_prompt_tokens"


@effect("echo")
def _begins_with_the_prompt(api: Api, endpoint: str) -> None:
    assert api.ask(endpoint, echo=True).text == api.subject.prompt_text + api.subject.answer
    assert api.ask(endpoint, prompt="The sea and", echo=True, max_tokens=1).text.startswith("The sea and")
    scored = api.ask(endpoint, echo=True, max_tokens=0, logprobs=0)
    assert (scored.text, scored.body["usage"]["completion_tokens"]) == (api.subject.prompt_text, 0)


@effect("suffix")
def _fills_in_the_middle(api: Api, endpoint: str) -> None:
    body = {"model": api.subject.model, "prompt": "def add(a, b):\n    ", "temperature": 0, "max_tokens": 30}
    plain, filled = (api.post(endpoint, body | {"suffix": suffix}) for suffix in ("", "\n"))
    if api.subject.model != DEMO.model and filled.status == 400:  # a model that was not trained for it
        assert filled.error["param"] == "suffix"
        return
    assert filled.body["usage"]["prompt_tokens"] == plain.body["usage"]["prompt_tokens"] + 4
    assert filled.text.partition("\n")[0] == "return a + b"


@effect("tools", "functions")
def _offers_tools(api: Api, endpoint: str) -> None:
    question = "What is the weather in Paris?"
    [call] = api.ask(endpoint, question, tools=[WEATHER]).choice["message"]["tool_calls"]
    assert (call["function"]["name"], json.loads(call["function"]["arguments"])) == ("get_weather", {"city": "Paris"})
    choice = api.ask(endpoint, question, functions=[WEATHER["function"]]).choice
    assert choice["message"]["function_call"]["name"] == "get_weather"
    assert choice["finish_reason"] == "function_call"


@effect("tool_choice", "function_call", "parallel_tool_calls")
def _decides_whether_tools_are_called(api: Api, endpoint: str) -> None:
    required = api.ask(endpoint, tools=[WEATHER], tool_choice="required", parallel_tool_calls=False).choice
    assert len(required["message"]["tool_calls"]) == 1 and required["finish_reason"] == "tool_calls"
    named = {"type": "function", "function": {"name": "get_weather"}}
    assert api.ask(endpoint, tools=[WEATHER], tool_choice=named).choice["finish_reason"] == "stop"
    other = {"type": "function", "function": {"name": "other"}}
    allowed = {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [named]}}
    called = api.ask(endpoint, tools=[other, WEATHER], tool_choice=allowed).choice["message"]["tool_calls"]
    assert {call["function"]["name"] for call in called} == {"get_weather"}
    assert "tool_calls" not in api.ask(endpoint, tools=[WEATHER], tool_choice="none").choice["message"]
    called = api.ask(endpoint, functions=[WEATHER["function"]], function_call={"name": "get_weather"}).choice
    assert set(json.loads(called["message"]["function_call"]["arguments"])) == {"city"}


@effect("chat_template_kwargs")
def _reaches_the_template(api: Api, endpoint: str) -> None:
    refused = api.ask(endpoint, chat_template_kwargs={"messages": []})
    assert (refused.status, refused.error["param"]) == (400, "chat_template_kwargs")
    unread = api.ask(endpoint, chat_template_kwargs={"colour": "red"}, max_tokens=1)
    assert unread.headers["x-ignored-params"] == "chat_template_kwargs.colour"


@effect("reasoning_effort", "enable_thinking", "thinking_budget_tokens", "thinking_token_budget", "include_reasoning")
def _switches_and_limits_the_thinking(api: Api, endpoint: str) -> None:
    """test_thinking.py has more."""
    model = {"model": "demo-thinking"} if api.get("/v1/models/demo-thinking").status == 200 else {}
    switches: dict[str, Any] = {
        "reasoning_effort": "high",
        "enable_thinking": True,
        "thinking_budget_tokens": 1,
        "thinking_token_budget": 1,
        "include_reasoning": False,
    }
    answer = api.ask(endpoint, max_tokens=1, **model, **switches)
    if answer.status == 400:  # the demo model's template refuses it, without the name that thinks
        assert "only demo-thinking has learned to think" in answer.error["message"]
        return
    ignored = answer.headers.get("x-ignored-params")
    if ignored is not None:  # the model does not think
        assert set(ignored.split(",")) == set(switches)
        return

    def thinking(**fields: Any) -> tuple[int, bool]:
        """Return the number of thinking tokens, and whether they are in the answer."""
        answer = api.ask(endpoint, max_tokens=30, **model, **fields)
        num_tokens = answer.body["usage"]["completion_tokens_details"]["reasoning_tokens"]
        return num_tokens, "reasoning" in answer.choice["message"]

    assert thinking() == (0, False)
    num_tokens, is_shown = thinking(enable_thinking=True)
    assert num_tokens > 5 and is_shown
    assert thinking(reasoning_effort="xhigh") == (num_tokens, True)
    assert thinking(enable_thinking=True, include_reasoning=False) == (num_tokens, False)
    for budget in ("thinking_budget_tokens", "thinking_token_budget"):
        assert thinking(enable_thinking=True, **{budget: 1}) == (5, True)  # with the end marker's


@effect("add_generation_prompt")
def _leaves_the_turn_unopened(api: Api, endpoint: str) -> None:
    opened, unopened = (
        api.ask(endpoint, add_generation_prompt=value, max_tokens=1).body["usage"] for value in (True, False)
    )
    assert unopened["prompt_tokens"] < opened["prompt_tokens"]


@effect("service_tier", "priority")
def _says_in_which_class_it_waited(api: Api, endpoint: str) -> None:
    for fields, tier in (
        ({"service_tier": "flex"}, "flex"),
        ({"priority": -1}, "priority"),
        ({"priority": 0}, "default"),
    ):
        assert api.ask(endpoint, **fields, max_tokens=1).body["service_tier"] == tier
    assert "service_tier" not in api.ask(endpoint, max_tokens=1).body


@effect("keep_alive", "ttl")
def _says_when_the_unused_model_leaves(api: Api, endpoint: str) -> None:
    def leaves_in_s() -> float:
        status = api.get(f"/v1/models/{api.subject.model}").body["status"]
        return float(status.get("expires_s", math.inf))

    for fields in ({"keep_alive": "10m"}, {"ttl": 600}):
        assert api.ask(endpoint, max_tokens=1, **fields).status == 200
        wait_until(lambda: 300 < leaves_in_s() <= 600, f"it leaves later: {fields}")
        assert api.ask(endpoint, max_tokens=1, keep_alive=-1).status == 200
        wait_until(lambda: leaves_in_s() == math.inf, "it stays")


@effect("prompt_cache_options", "prompt_cache_retention")
def _says_how_many_tokens_the_cache_has_from_now_on(api: Api, endpoint: str) -> None:
    """test_routing.py shows that they stay."""
    answer = api.ask(endpoint, max_tokens=1, prompt_cache_options={"ttl": "1s"}, prompt_cache_retention="in_memory")
    usage = answer.body["usage"]
    details = usage["prompt_tokens_details"]
    assert details["cached_tokens"] + details["cache_write_tokens"] == usage["prompt_tokens"]
    assert answer.headers.get("x-ignored-params") in (None, "prompt_cache_options")  # TensorRT-LLM does not keep it
    for refused in ({"prompt_cache_options": {"ttl": "25h"}}, {"prompt_cache_retention": "1h"}):
        assert api.ask(endpoint, **refused).status == 400


@effect("store")
def _is_stored(api: Api, endpoint: str) -> None:
    for is_stored, status in ((True, 200), (False, 404)):
        answer = api.ask(endpoint, max_tokens=1, store=is_stored)
        assert api.get(f"{endpoint}/{answer.body['id']}").status == status


@effect("continue_final_message")
def _goes_on_with_the_last_message(api: Api, endpoint: str) -> None:
    stop = stop_of(api)
    messages = [
        {"role": "user", "content": "Count from 1 to 9."},
        {"role": "assistant", "content": head(api, stop)},
    ]
    fields = {"add_generation_prompt": False, "continue_final_message": True}
    assert api.ask(endpoint, messages=messages, **fields).text == api.subject.answer.removeprefix(head(api, stop))


# Behind the effects, which it needs to know.
@pytest.mark.parametrize(("proof", "endpoint"), proofs("llama_cpp"))
def test_an_enforced_field_shows_an_effect(api: Api, proof: Effect, endpoint: str) -> None:
    proof(api, endpoint)


@pytest.mark.parametrize(("proof", "endpoint"), proofs("tensorrt_llm"))
def test_the_tensorrt_llm_runtime_shows_the_same_effects(tensorrt_llm_api: Api, proof: Effect, endpoint: str) -> None:
    proof(tensorrt_llm_api, endpoint)


def test_a_model_of_tensorrt_llm_that_reads_no_images_refuses_them(tensorrt_llm_api: Api) -> None:
    answer = tensorrt_llm_api.ask(COMPLETIONS, prompt="<image>?", images=[data_uri(circle("red"))])
    assert (answer.status, answer.error["code"], answer.error["param"]) == (400, "unsupported_value", "images")


def test_every_enforced_field_has_a_proof_and_every_proof_a_field() -> None:
    enforced = rows(Treatment.ENFORCED, "llama_cpp") + rows(Treatment.EMULATED, "llama_cpp")
    assert {param.values[0].name for param in enforced} <= EFFECTS.keys() <= {row.name for row in ROWS}
