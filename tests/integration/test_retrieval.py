"""Retrieval with the official client: a real embedder, all-MiniLM-L6-v2, behind /v1/embeddings."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from openai import OpenAI

from tests.integration.api import EMBEDDINGS, Api
from tests.integration.conftest import build, run_build, running_stack
from tests.integration.stack import Stack
from tests.raw_model import real_embedder

MODEL = "all-minilm"
NUM_DIMENSIONS = 384
CONTEXT_WINDOW = 512
# A query by the number of its document.
DOCUMENTS = [
    "The Eiffel Tower was built for the world's fair of 1889 in Paris.",
    "Photosynthesis turns sunlight, water and carbon dioxide into sugar and oxygen.",
    "To boil an egg, put it into hot water for eight minutes.",
    "The heart pumps blood through arteries and veins.",
    "A mortgage is a loan that is secured by a house.",
    "Penguins are birds that cannot fly, but swim very well.",
    "The French Revolution began in 1789 with the storming of the Bastille.",
    "Python is a programming language with dynamic types.",
    "Mount Everest is the highest mountain of the earth.",
    "The violin has four strings and is played with a bow.",
    "Vaccines train the immune system to recognize a virus.",
    "Football is played by two teams of eleven players.",
    "An earthquake is caused by the sudden movement of plates of the earth's crust.",
    "Shakespeare wrote the tragedy of Romeo and Juliet.",
    "A battery stores electrical energy in chemical form.",
    "The Amazon rainforest has more species than any other forest.",
    "Sourdough bread rises by wild yeast and bacteria.",
    "The moon causes the tides of the oceans.",
    "Chess is a board game for two players, with a king to be mated.",
    "Apollo 11 brought the first people to the moon in 1969.",
]
QUERIES = {
    0: "famous iron landmark in France",
    1: "How do plants make their food?",
    2: "cooking eggs for breakfast",
    4: "borrowing money from a bank to buy a home",
    5: "flightless animals in Antarctica",
    7: "software development and coding",
    9: "musical instruments of an orchestra",
    10: "How does the body learn to fight a disease?",
    12: "Why does the ground shake?",
    16: "baking a loaf at home",
    17: "Why does the sea level rise and fall twice a day?",
    19: "Neil Armstrong's landing",
}

type Vectors = npt.NDArray[np.float64]


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    folder = tmp_path_factory.mktemp("retrieval")
    artifact = build(folder, MODEL, "--checkpoint", str(real_embedder()), "--precision", "f32")
    run_build("render", artifact, "--repository", str(folder / "repository"))
    with running_stack(folder / "repository", tmp_path_factory) as stack:
        yield stack


@pytest.fixture
def client(stack: Stack) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{stack.url}/v1", api_key="none", max_retries=0, timeout=60) as client:
        yield client


@pytest.fixture
def api(stack: Stack) -> Api:
    return Api(stack.url)


def embedded(client: OpenAI, inputs: Any, **fields: Any) -> Vectors:
    answer = client.embeddings.create(model=MODEL, input=inputs, **fields)
    assert [each.index for each in answer.data] == list(range(len(answer.data)))
    return np.array([each.embedding for each in answer.data])


def test_a_query_finds_its_document_among_twenty(client: OpenAI) -> None:
    documents, queries = embedded(client, DOCUMENTS), embedded(client, list(QUERIES.values()))
    assert documents.shape == (len(DOCUMENTS), NUM_DIMENSIONS)
    assert (queries @ documents.T).argmax(axis=1).tolist() == list(QUERIES)


def test_a_batch_has_the_vectors_of_single_inputs(client: OpenAI) -> None:
    alone = np.concatenate([embedded(client, each) for each in DOCUMENTS])
    assert np.abs(embedded(client, DOCUMENTS) - alone).max() < 1e-4


def test_base64_has_the_same_numbers_as_floats(api: Api) -> None:
    body = {"model": MODEL, "input": DOCUMENTS[0]}
    numbers, packed = (
        api.post(EMBEDDINGS, body | {"encoding_format": each}).body["data"][0]["embedding"]
        for each in ("float", "base64")
    )
    assert np.array_equal(np.array(numbers, np.float32), np.frombuffer(base64.b64decode(packed), "<f4"))
