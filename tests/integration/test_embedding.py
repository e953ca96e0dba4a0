"""A model that embeds, on the real Triton, for a gRPC client."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from model_repository.contract.codec import tensor
from model_repository.contract.tensors import INPUTS
from model_repository.errors import Unsupported, error_from_message
from tests.build_engines.llama_cpp.reference import EmbeddingReference
from tests.build_engines.tiny_embedders import write_embedder
from tests.integration.conftest import build, run_build, running_stack
from tests.integration.stack import Stack

MODEL = "tiny/bert"
ENSEMBLE = "tiny--bert"
EXPECTED = EmbeddingReference.load("bert")


@pytest.fixture(scope="module")
def embedder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """A server of a tiny BERT: it is ready only once the health check has an answer of the model."""
    folder: Path = tmp_path_factory.mktemp("embedder")
    checkpoint = write_embedder(folder / "checkpoint", "bert", EXPECTED.seed)
    artifact = build(folder, MODEL, "--checkpoint", str(checkpoint), "--precision", "f32")
    run_build("render", artifact, "--repository", str(folder / "repository"))
    with running_stack(folder / "repository", tmp_path_factory) as stack:
        yield stack


def test_a_client_gets_the_vector_of_its_prompt(embedder: Stack) -> None:
    prompt = EXPECTED.prompts[1]
    [answer] = embedder.infer(ENSEMBLE, {"input_ids": tensor(INPUTS["input_ids"], *prompt)})
    assert answer["embedding"].shape == (1, len(EXPECTED.embeddings[1]))
    assert np.abs(answer["embedding"][0] - EXPECTED.with_f16_gelu[1]).max() < 1e-4
    assert answer["num_input_tokens"].tolist() == [[len(prompt)]]
    assert not {"finish_reason", "text_output"} & answer.keys()
    [same] = embedder.infer(ENSEMBLE, {"text_input": tensor(INPUTS["text_input"], "The red fox")})
    assert np.linalg.norm(same["embedding"]) == pytest.approx(1, abs=1e-5)
    assert embedder.stats(MODEL).num_finished >= 2


def test_a_field_of_completions_is_refused(embedder: Stack) -> None:
    inputs = {"text_input": tensor(INPUTS["text_input"], "a"), "stop_words": tensor(INPUTS["stop_words"], "b")}
    [response] = embedder.stream(ENSEMBLE, inputs)
    error = error_from_message(response.error_message)
    assert isinstance(error, Unsupported)
    assert error.field == "stop_words"
