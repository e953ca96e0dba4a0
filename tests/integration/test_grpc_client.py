"""A program that uses the ensemble as it would use NVIDIA's TensorRT-LLM ensemble, with the official gRPC client."""

from __future__ import annotations

import queue
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

from tests.integration.stack import Stack
from tests.sbom import TRITON_VERSION
from tests.waiting import DEADLINE_S


@pytest.fixture
def client(stack: Stack) -> Iterator[triton.InferenceServerClient]:
    """NVIDIA's own client."""
    with triton.InferenceServerClient(stack.endpoint) as client:
        yield client


def test_the_bill_of_materials_names_the_version_of_the_server(client: triton.InferenceServerClient) -> None:
    """The wheel that carries the server does not tell."""
    assert client.get_server_metadata().version == TRITON_VERSION


def tensor(name: str, value: Any, dtype: Any) -> triton.InferInput:
    """Return a tensor of shape [1, 1], as NVIDIA's client examples do."""
    data = np.array([[value]], dtype=dtype)
    datatype = np_to_triton_dtype(data.dtype)
    item = triton.InferInput(name, data.shape, datatype)
    item.set_data_from_numpy(data)
    return item


def generate(client: triton.InferenceServerClient, *inputs: triton.InferInput) -> list[Any]:
    """Return every response of one request."""
    answers: queue.SimpleQueue[tuple[Any, InferenceServerException | None]] = queue.SimpleQueue()
    client.start_stream(lambda result, error: answers.put((result, error)), stream_timeout=DEADLINE_S)
    client.async_stream_infer("demo", list(inputs), enable_empty_final_response=True)
    results = []
    while True:
        result, error = answers.get(timeout=DEADLINE_S)
        if error is not None:
            raise error
        results.append(result)
        if result.get_response().parameters["triton_final_response"].bool_param:
            client.stop_stream()
            return results


def text_of(results: list[Any]) -> str:
    texts = [result.as_numpy("text_output") for result in results]
    return b"".join(text.reshape(-1)[0] for text in texts if text is not None).decode()


def test_nvidias_usual_inputs_are_taken_whole_and_streamed(client: triton.InferenceServerClient) -> None:
    inputs = [
        tensor("text_input", "The capital of France is", object),
        tensor("max_tokens", 6, np.int32),
        tensor("bad_words", "", object),
        tensor("stop_words", "", object),
        tensor("pad_id", 2, np.int32),
        tensor("temperature", 1.0, np.float32),
        tensor("top_k", 1, np.int32),
        tensor("beam_width", 1, np.int32),
        tensor("repetition_penalty", 1.0, np.float32),
        tensor("length_penalty", 1.0, np.float32),
        tensor("return_log_probs", False, np.bool_),
        tensor("return_num_output_tokens", True, np.bool_),
    ]
    [whole] = generate(client, *inputs)
    assert "Paris" in text_of([whole])
    assert whole.as_numpy("text_output").shape == (1, 1)
    assert whole.as_numpy("num_output_tokens").item() <= 6
    results = generate(client, *inputs, tensor("stream", True, np.bool_))
    assert len(results) > 1
    assert text_of(results) == text_of([whole])


def test_the_stream_of_a_reader_that_pauses_is_whole(stack: Stack) -> None:
    """Triton cancelled such streams without a word, by the notes of its release 26.11."""
    read = stack.read_late("demo")
    assert read.is_whole, read


@pytest.mark.faults  # five pings take a minute
@pytest.mark.parametrize("has_call", [True, False])
def test_a_client_may_ping_a_silent_connection_every_ten_seconds(paced_stack: Stack, *, has_call: bool) -> None:
    """Triton closed it with GOAWAY and `too_many_pings`."""
    pings = triton.KeepAliveOptions(
        keepalive_time_ms=10_000, keepalive_permit_without_calls=True, http2_max_pings_without_data=0
    )
    errors: queue.SimpleQueue[InferenceServerException | None] = queue.SimpleQueue()
    with triton.InferenceServerClient(paced_stack.endpoint, keepalive_options=pings) as client:
        assert client.is_server_live()
        if has_call:
            client.start_stream(lambda result, error: errors.put(error))
        with pytest.raises(queue.Empty):
            errors.get(timeout=55)
        assert client.is_server_live()
