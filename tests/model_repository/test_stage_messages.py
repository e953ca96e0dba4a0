"""What travels between the stages comes back unchanged."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from model_repository.errors import InvalidRequest
from model_repository.generation import FinishReason, Guide, GuideKind, Mirostat, SamplingParams, Timing, Usage
from model_repository.stage_messages import (
    DrawnLogprob,
    EngineRequest,
    EngineStats,
    Release,
    ReleaseDetails,
    TokenizeOptions,
)

REQUEST = EngineRequest(
    prompt_token_ids=(3, 1, 4000),
    max_tokens=17,
    sampling=SamplingParams(
        temperature=0.25,
        top_p=0.5,
        top_k=40,
        min_p=0.25,
        repetition_penalty=1.5,
        presence_penalty=-0.75,
        frequency_penalty=0.125,
        logit_bias={5: -100.0, 0: 1.5},
        mirostat=Mirostat(target=3.0, learning_rate=0.25),
        seed=2**64 - 1,
    ),
    stop=("€", '"\n'),
    stop_token_ids=(0, 7),
    end_token_ids=(3, 151_645),
    include_stop=True,
    ignore_eos=True,
    bad_words=("damn", "é"),
    min_tokens=2,
    echo=(b"", b"\xff\x00", "é".encode()),
    num_logprobs=0,
    has_token_ids=True,
    has_usage=True,
    has_timing=True,
    guide=Guide(GuideKind.CHOICE, '["a", "é"]'),
    sender="key-1",
    lora_name="adapter",
    is_stream=True,
    priority=1,
    cancel_key="secret",
    delivery_key="another secret",
    delivery_number=-(2**63),
    stream_interval_ms=0,
)
DETAILS = ReleaseDetails(
    prompt_token_ids=(0, 7),
    echo=(b"", b"\xff\xe2\x82"),
    logprobs=(DrawnLogprob(None), DrawnLogprob(-0.1, ((5, -0.1), (6, -3.0))), DrawnLogprob(-float("inf"))),
    cum_logprob=0.0,
    has_token_ids=True,
    has_special_tokens=True,
    stop_reason=0,
    timing=Timing(arrival_time_ns=0, first_scheduled_time_ns=1, first_token_time_ns=2, last_token_time_ns=2**62),
)
COUNTS = st.integers(0, 2**31 - 1)
LOGPROBS = st.floats(max_value=0, allow_nan=False)
BYTES = st.lists(st.binary(max_size=4), max_size=3).map(tuple)


def test_the_examples_set_every_field() -> None:
    """So that the round trips below would notice a field that gets lost."""
    plain = EngineRequest(prompt_token_ids=(), max_tokens=1, sampling=SamplingParams())
    for full, empty in ((REQUEST, plain), (REQUEST.sampling, plain.sampling), (DETAILS, ReleaseDetails())):
        for field in dataclasses.fields(full):
            assert getattr(full, field.name) != getattr(empty, field.name), field.name


@pytest.mark.parametrize(
    "request_",
    [
        REQUEST,
        EngineRequest(prompt_token_ids=(1,), max_tokens=1, sampling=SamplingParams()),
        EngineRequest(prompt_token_ids=(1,), max_tokens=0, sampling=SamplingParams(), echo=(b"",)),
    ],
)
def test_an_engine_request_survives_its_tensors(request_: EngineRequest) -> None:
    prompt = np.array(request_.prompt_token_ids, dtype=np.int32)
    assert EngineRequest.from_tensors(prompt, request_.params_json()) == request_


@pytest.mark.parametrize("field", [field.name for field in dataclasses.fields(EngineRequest)][3:])
def test_each_field_of_an_engine_request_travels_alone(field: str) -> None:
    request = EngineRequest(prompt_token_ids=(1,), max_tokens=1, sampling=SamplingParams())
    request = dataclasses.replace(request, **{field: getattr(REQUEST, field)})
    assert set(json.loads(request.params_json())) == {"max_tokens", "sampling", field}
    assert EngineRequest.from_tensors(np.array([1], dtype=np.int32), request.params_json()) == request


@given(
    echo=st.lists(st.tuples(COUNTS, st.binary(max_size=4)), max_size=3),
    logprobs=st.lists(
        st.builds(DrawnLogprob, st.none() | LOGPROBS, st.lists(st.tuples(COUNTS, LOGPROBS), max_size=3).map(tuple)),
        max_size=3,
    ).map(tuple),
    cum_logprob=st.none() | LOGPROBS,
    has_token_ids=st.booleans(),
    has_special_tokens=st.booleans(),
    stop_reason=st.none() | st.text(max_size=3) | COUNTS,
)
def test_details_survive_json(echo: list[tuple[int, bytes]], **fields: Any) -> None:
    details = ReleaseDetails(
        prompt_token_ids=tuple(token_id for token_id, _ in echo), echo=tuple(text for _, text in echo), **fields
    )
    assert ReleaseDetails.from_json(details.to_json()) == details


def test_these_details_survive_json() -> None:
    assert ReleaseDetails.from_json(DETAILS.to_json()) == DETAILS


def test_details_carry_only_what_they_say() -> None:
    assert json.loads(ReleaseDetails().to_json()) == {}
    assert json.loads(ReleaseDetails(has_token_ids=True).to_json()) == {"has_token_ids": True}


@given(
    sequence=st.integers(0, 2**60),
    token_ids=st.lists(COUNTS, max_size=5).map(tuple),
    num_cut_bytes=COUNTS,
    finish=st.one_of(st.none(), st.tuples(st.sampled_from(FinishReason), COUNTS, COUNTS, COUNTS)),
    details=st.none() | st.just(DETAILS),
)
def test_a_release_survives_packing(
    sequence: int,
    token_ids: tuple[int, ...],
    num_cut_bytes: int,
    finish: tuple[FinishReason, int, int, int] | None,
    details: ReleaseDetails | None,
) -> None:
    release = Release(sequence=sequence, token_ids=token_ids, num_cut_bytes=num_cut_bytes, details=details)
    if finish is not None:
        usage = Usage(num_input_tokens=finish[1], num_output_tokens=finish[2], num_cached_tokens=finish[3])
        release = dataclasses.replace(release, finish_reason=finish[0], usage=usage)
    assert Release.from_array(release.to_array(), details) == release


@pytest.mark.parametrize("finish_reason", [None, *FinishReason])
def test_a_release_may_carry_the_counts_so_far(finish_reason: FinishReason | None) -> None:
    usage = Usage(num_input_tokens=7, num_output_tokens=0, num_cached_tokens=6)
    release = Release(sequence=1, token_ids=(5,), finish_reason=finish_reason, usage=usage)
    assert Release.from_array(release.to_array()) == release


@pytest.mark.parametrize(
    ("release", "is_probe"),
    [
        (Release(sequence=1), True),
        (Release(sequence=1, token_ids=(5,)), False),
        (Release(sequence=1, finish_reason=FinishReason.STOP), False),
        (Release(sequence=1, details=DETAILS), False),
    ],
)
def test_a_probe_has_neither_tokens_nor_details_nor_an_end(release: Release, is_probe: bool) -> None:
    assert Release.from_array(release.to_array(), release.details).is_probe is is_probe


@pytest.mark.parametrize("options", [TokenizeOptions(), TokenizeOptions(add_special_tokens=False)])
def test_options_survive_json(options: TokenizeOptions) -> None:
    assert TokenizeOptions.from_json(json.loads(options.to_json())) == options


def test_options_left_out_have_their_defaults() -> None:
    assert TokenizeOptions.from_json({}) == TokenizeOptions()


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (None, "expected a JSON object"),
        ([], "expected a JSON object"),
        ({"add_special_tokens": 1}, '"add_special_tokens": expected true or false under add_special_tokens'),
        ({"special": True}, '"special": expected true or false under add_special_tokens'),
    ],
)
def test_options_that_are_none_are_refused(fields: Any, message: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        TokenizeOptions.from_json(fields)
    assert caught.value.message() == f"[invalid_value] tokenize: {message}"


def test_stats_survive_json() -> None:
    fields = [field.name for field in dataclasses.fields(EngineStats)]
    numbers: dict[str, Any] = {name: index + 1 for index, name in enumerate(fields)}
    stats = EngineStats(**numbers | {"adapters": {"polite": "", "brief": "teams/brief"}})
    assert EngineStats.from_json(stats.to_json()) == stats


@pytest.mark.parametrize(
    "fields",
    [
        {"max_tokens": "5"},
        {"max_tokens": None},
        {"max_tokens": 1.5},
        {"max_tokens": True},
        {"sampling": 1},
        {"sampling": {"temperature": "a"}},
        {"sampling": {"seed": "1"}},
        {"sampling": {"logit_bias": [[1, "x"]]}},
        {"sampling": {"logit_bias": 3}},
        {"sampling": {"mirostat": {"target": "x"}}},
        {"sampling": {"mirostat": {"other": 1}}},
        {"stop": 5},
        {"stop": [5]},
        {"stop_token_ids": ["a"]},
        {"echo": ["€"]},
        {"guide": 1},
        {"guide": ["other", ""]},
        {"guide": ["regex", 5]},
        {"num_logprobs": "x"},
        {"min_tokens": {}},
        {"lora_name": 5},
        {"is_stream": 1},
        {"priority": 10**30 * 1.0},
        {"stream_interval_ms": "x"},
        {"prompt_token_ids": [1]},
        {"stop": ["a", ""]},
        {"sampling": {"seed": 2**64}},
        {"sampling": {"seed": -1}},
        {"delivery_number": 2**63},
        {"unknown": 1},
    ],
    ids=str,
)
def test_engine_params_of_another_form_are_the_senders_mistake(fields: dict[str, Any]) -> None:
    refuse_engine_params(json.dumps({"max_tokens": 3, "sampling": {}} | fields).encode())


@pytest.mark.parametrize("params", [b"nonsense", b"", b"\xff", b"[]", b"1", b"null", b"{}", b'{"max_tokens": 3}'])
def test_engine_params_that_are_no_request_are_the_senders_mistake(params: bytes) -> None:
    refuse_engine_params(params)


def refuse_engine_params(params: bytes) -> None:
    with pytest.raises(InvalidRequest) as refused:
        EngineRequest.from_tensors(np.zeros(1, np.int32), params)
    assert refused.value.field == "engine_params"
