"""Retrieval with the official client: a real embedder, all-MiniLM-L6-v2, behind /v1/embeddings."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import numpy.typing as npt
import openai
import pytest
from openai import OpenAI

from frontend.reference.parameters import Treatment, parameters
from tests.integration.api import EMBEDDINGS, QUEUE_FIELDS, Answer, Api
from tests.integration.conftest import build, run_build, running_stack
from tests.integration.stack import Stack
from tests.raw_model import real_embedder
from tests.waiting import DEADLINE_S, wait_until

MODEL, SHORTENED = "all-minilm", "all-minilm-shortened"
ALIAS = "my-"
EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "retrieval.py"
NUM_DIMENSIONS = 384
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
    """A server of the model, and of the same one as if it had been trained for shorter vectors."""
    folder = tmp_path_factory.mktemp("retrieval")
    shutil.copytree(real_embedder(), folder / "checkpoint", copy_function=os.symlink)
    config = json.loads((real_embedder() / "config.json").read_text())
    (folder / "checkpoint" / "config.json").unlink()
    (folder / "checkpoint" / "config.json").write_text(json.dumps(config | {"matryoshka_dimensions": [64, 32]}))
    sources = {MODEL: real_embedder(), SHORTENED: folder / "checkpoint"}
    artifacts = [
        build(folder, name, "--checkpoint", str(source), "--precision", "f32", "--alias", ALIAS + name)
        for name, source in sources.items()
    ]
    run_build("render", *artifacts, "--repository", str(folder / "repository"))
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
    """Return the vectors of inputs, as the client reads them: it asks for base64 by itself."""
    answer = client.embeddings.create(**{"model": MODEL, "input": inputs} | fields)
    assert [each.index for each in answer.data] == list(range(len(answer.data)))
    return np.array([each.embedding for each in answer.data])


def post(api: Api, inputs: Any = DOCUMENTS[0], **fields: Any) -> Answer:
    return api.post(EMBEDDINGS, {"model": MODEL, "input": inputs} | fields)


def test_a_query_finds_its_document_among_twenty(client: OpenAI) -> None:
    documents, queries = embedded(client, DOCUMENTS), embedded(client, list(QUERIES.values()))
    assert documents.shape == (len(DOCUMENTS), NUM_DIMENSIONS)
    assert (queries @ documents.T).argmax(axis=1).tolist() == list(QUERIES)


def test_the_example_prints_the_nearest_document_first(stack: Stack) -> None:
    options = ["--url", f"{stack.url}/v1", "--model", MODEL, "Which animals live in Antarctica?"]
    command = [sys.executable, str(EXAMPLE), *options]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=DEADLINE_S)
    assert "Penguins" in done.stdout.splitlines()[0]


def test_a_batch_has_the_vectors_of_single_inputs(client: OpenAI) -> None:
    alone = np.concatenate([embedded(client, each) for each in DOCUMENTS])
    assert np.abs(embedded(client, DOCUMENTS) - alone).max() < 1e-4


def test_every_input_of_the_largest_body_is_answered(client: OpenAI) -> None:
    vectors = embedded(client, [[101, 2000 + number % 20, 102] for number in range(2048)])
    assert np.abs(vectors - vectors[np.arange(2048) % 20]).max() < 1e-4


def test_an_input_that_is_too_long_is_named_with_its_number_of_tokens(client: OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        embedded(client, ["short", "word " * 600])
    assert caught.value.param == "input[1]"
    assert "maximum context length is 512 tokens: the prompt has 602 tokens" in caught.value.message


def test_a_chat_with_the_model_is_refused(client: OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match=r"the task of this model is embed, and .* needs generate"):
        client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "Hello"}])


async def test_a_client_that_hangs_up_frees_the_queue(stack: Stack) -> None:
    before = stack.stats(MODEL).num_finished
    async with aiohttp.ClientSession() as session:
        body = {"model": MODEL, "input": [" ".join(DOCUMENTS)] * 500}
        posted = asyncio.create_task(session.post(stack.url + EMBEDDINGS, json=body))
        await asyncio.to_thread(wait_until, lambda: stack.stats(MODEL).num_finished > before, "the first has a vector")
        posted.cancel()
        await asyncio.gather(posted, return_exceptions=True)
        await asyncio.to_thread(stack.wait_until_idle, MODEL)
    assert stack.stats(MODEL).num_finished < before + 500


# --- the table of fields ---------------------------------------------------------------------------------------------
ROWS = [row for row in parameters() if row.endpoint == EMBEDDINGS]


def names(treatment: Treatment) -> list[str]:
    return [row.name for row in ROWS if row.treatments["llama_cpp"] is treatment]


def vector(answer: Answer) -> Vectors:
    assert answer.status == 200, answer.body
    return np.array(answer.body["data"][0]["embedding"])


def _names_the_model(api: Api) -> None:
    assert post(api, model=ALIAS + MODEL).body["model"] == ALIAS + MODEL


def _is_embedded(api: Api) -> None:
    tokens = api.post("/tokenize", {"model": MODEL, "prompt": DOCUMENTS[0]}).body["tokens"]
    text, others = vector(post(api)), (tokens, [tokens], [DOCUMENTS[0]])
    assert all(np.abs(text - vector(post(api, each))).max() < 1e-6 for each in others)
    assert post(api).body["usage"] == {"prompt_tokens": len(tokens), "total_tokens": len(tokens)}


def _shortens_the_vector(api: Api) -> None:
    whole, part = vector(post(api, model=SHORTENED)), vector(post(api, model=SHORTENED, dimensions=32))
    assert np.allclose(part, whole[:32] / np.linalg.norm(whole[:32]), atol=1e-6)
    for fields in ({"dimensions": 32}, {"model": SHORTENED, "dimensions": 31}, {"model": SHORTENED, "dimensions": 385}):
        assert (post(api, **fields).status, post(api, **fields).error["param"]) == (400, "dimensions")


def _has_the_same_numbers_in_base64(api: Api) -> None:
    packed = post(api, encoding_format="base64").body["data"][0]["embedding"]
    assert np.array_equal(vector(post(api)).astype("<f4"), np.frombuffer(base64.b64decode(packed), "<f4"))


def _keeps_the_first_tokens(api: Api) -> None:
    whole = post(api, "penguins swim", truncate_prompt_tokens=-1)
    part = post(api, "penguins swim well in the sea", truncate_prompt_tokens=4)
    assert part.body["usage"]["prompt_tokens"] == 4
    assert np.abs(vector(part) - vector(whole)).max() < 1e-4


PROOFS = {
    "model": _names_the_model,
    "input": _is_embedded,
    "dimensions": _shortens_the_vector,
    "encoding_format": _has_the_same_numbers_in_base64,
    "truncate_prompt_tokens": _keeps_the_first_tokens,
}


@pytest.mark.parametrize("name", sorted(set(names(Treatment.ENFORCED)) - QUEUE_FIELDS))
def test_an_enforced_field_has_an_effect(api: Api, name: str) -> None:
    PROOFS[name](api)


def test_fields_without_effect_are_logged_or_listed(api: Api) -> None:
    assert names(Treatment.LOGGED) == ["user"]
    assert names(Treatment.HINT) == ["cache_salt"]
    answer = post(api, user="u-1", cache_salt="a")
    assert answer.headers["x-ignored-params"] == "cache_salt"
    assert np.array_equal(vector(answer), vector(post(api)))


# Behind the others: the model is loaded again.
def test_inputs_survive_a_killed_engine(stack: Stack, api: Api) -> None:
    with ThreadPoolExecutor(1) as pool:
        before, num_inputs = stack.stats(MODEL).num_finished, 100  # all of them run at the same time
        posted = pool.submit(post, api, [" ".join(DOCUMENTS)] * num_inputs)

        def num_finished() -> int:
            """Return 0 until all inputs are at the engine: it confirms them with its next vector."""
            stats = stack.stats(MODEL)
            finished = stats.num_finished - before
            return finished if finished + stats.num_active + stats.num_waiting == num_inputs else 0

        first = wait_until(num_finished, "the first has a vector")
        wait_until(lambda: num_finished() > first, "the engine has confirmed all")
        stack.kill_stage(f"{MODEL}__engine")

        def has_answer() -> bool:
            stack.start_again_if_ended()  # a Triton may end with its stage
            return posted.done()

        wait_until(has_answer, "the inputs are sent again")
        answer = posted.result()
    assert answer.status == 200 and len(answer.body["data"]) == num_inputs, answer.body
    assert int(answer.headers["x-resumed"]) > 0

    def embeds() -> bool:
        stack.start_again_if_ended()
        return post(api).status == 200

    wait_until(embeds, "the model embeds again")
