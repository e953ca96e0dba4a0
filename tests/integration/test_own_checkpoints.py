"""Models of one's own: tokens, kinds of KV cache, sampling defaults, and a chat template that is an attack."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from build_engines.__main__ import main
from build_engines.checkpoint import Checkpoint
from build_engines.llama_cpp.gguf_file import write_gguf
from tests.build_engines.llama_cpp.reference import Reference
from tests.build_engines.tensorrt_llm.builder import BIN, H100
from tests.build_engines.tiny_checkpoint import tokenizer_description, write_checkpoint
from tests.integration.api import CHAT, COMPLETIONS, EMBEDDINGS, Answer, Api
from tests.integration.conftest import running_stack
from tests.model_repository.engine.tiny_models import write_model
from tests.tensorrt_llm_artifact import install_double

REFERENCES = {name: Reference.load(name) for name in ("mistral", "qwen3")}
ARCHITECTURES = ("gemma3", "qwen35")  # of llama.cpp: with a sliding window, and with recurrent layers
DAMAGED = {"damaged": "qwen3moe", "damaged-embedder": "bert"}  # name to architecture
BAD = "~"  # the weights of its token are NaN
TEMPLATE = """\
{% set word, one = messages[-1].content, messages | length %}
{% if word == 'fill' %}{{ 'a' * (5 * 10**9 * one) }}{% endif %}
{{ word }}"""


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    """A server of `own`, `off` (without its own defaults), `hostile`, REFERENCES, ARCHITECTURES and DAMAGED."""
    folder = tmp_path_factory.mktemp("own")
    checkpoint, hostile = (write_checkpoint(folder / name) for name in ("checkpoint", "hostile"))
    generation = json.loads((checkpoint / "generation_config.json").read_text())
    (checkpoint / "generation_config.json").write_text(json.dumps(generation | {"top_k": 1}))
    (hostile / "chat_template.jinja").write_text(TEMPLATE)
    own = {"checkpoint": str(checkpoint)}
    models = {"own": own, "off": own | {"default": {"sampling": "openai"}}, "hostile": {"checkpoint": str(hostile)}}
    for name, reference in REFERENCES.items():
        models[name] = {"checkpoint": str(reference.write_checkpoint(folder / name)), "precision": "f32"}
    write_gguf(Checkpoint.load(checkpoint), folder / "tokenizer.gguf", "f32")
    for name in ARCHITECTURES:
        file = write_model(folder / f"{name}.gguf", name, tokenizer_of=folder / "tokenizer.gguf")
        models[name] = {"gguf": str(file)}
    nan_rows = {"token_embd.weight": tokenizer_description()["model"]["vocab"][BAD]}
    for name, architecture in DAMAGED.items():
        file = write_model(folder / f"{name}.gguf", architecture, folder / "tokenizer.gguf", nan_rows=nan_rows)
        models[name] = {"gguf": str(file)}
    (folder / "models.yaml").write_text(json.dumps({"models": models}))
    assert main(["build", str(folder / "models.yaml"), "--home", str(folder), "--num-threads", "1"]) == 0
    with running_stack(folder / "repository", tmp_path_factory) as stack:
        yield Api(stack.url)


def chat(api: Api, model: str, word: str, **fields: Any) -> Answer:
    return api.post(CHAT, {"model": model, "messages": [{"role": "user", "content": word}], "max_tokens": 20} | fields)


def test_a_checkpoint_outside_the_catalog_answers_on_the_pytorch_backend(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """On the double of TensorRT-LLM, which computes a Llama."""
    reference, folder = Reference.load("llama"), tmp_path_factory.mktemp("gpu")
    checkpoint = reference.write_checkpoint(folder / "my-llama")
    options = ("--runtime", "tensorrt_llm", "--gpu", "h100", "--home", str(folder), "--max-sequences", "4")
    assert main(["build", str(checkpoint), *options]) == 0
    install_double(folder / "repository")
    path = f"{BIN}:{os.environ['PATH']}"
    fields = {"max_tokens": len(reference.greedy), "temperature": 0, "ignore_eos": True, "return_token_ids": True}
    with running_stack(folder / "repository", tmp_path_factory, PATH=path, CONCH_DOUBLE_GPUS=H100) as stack:
        answer = Api(stack.url).post(COMPLETIONS, {"model": "my-llama", "prompt": reference.prompt} | fields)
    assert answer.body["choices"][0]["token_ids"] == reference.greedy


@pytest.mark.parametrize("name", REFERENCES)
def test_a_converted_model_continues_as_in_transformers(name: str, api: Api) -> None:
    reference = REFERENCES[name]
    fields = {"max_tokens": len(reference.greedy), "temperature": 0, "ignore_eos": True, "return_token_ids": True}
    answer = api.post(COMPLETIONS, {"model": name, "prompt": reference.prompt} | fields)
    assert answer.body["choices"][0]["token_ids"] == reference.greedy


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_what_the_kv_cache_keeps_changes_no_answer(name: str, api: Api) -> None:
    """A salt of its own lets a request reuse nothing."""
    prompts = [[*range(40, 40 + length), last] for length in (60, 30, 60, 50) for last in (3, 4, 5)]
    fields = {"model": name, "max_tokens": 20, "temperature": 0, "ignore_eos": True, "return_token_ids": True}

    def answer(prompt: list[int], **salt: str) -> Answer:
        return api.post(COMPLETIONS, fields | salt | {"prompt": prompt})

    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(answer, prompts))
    assert max(one.body["usage"]["prompt_tokens_details"]["cached_tokens"] for one in answers) > 0
    for prompt, reused in zip(prompts, answers, strict=True):
        alone = answer(prompt, cache_salt=str(prompt))
        assert reused.body["choices"][0]["token_ids"] == alone.body["choices"][0]["token_ids"]


def test_a_model_draws_by_its_own_defaults_unless_the_operator_turns_them_off(api: Api) -> None:
    cards = {card["id"]: card["default_parameters"] for card in api.get("/v1/models").body["data"]}
    assert (cards["own"], cards["off"]) == ({"top_k": 1}, {})
    for model, fields, is_greedy in (("own", {}, True), ("own", {"top_k": 0}, False), ("off", {}, False)):
        choices = chat(api, model, "a", n=4, seed=1, ignore_eos=True, return_token_ids=True, **fields).body["choices"]
        assert (len({str(choice["token_ids"]) for choice in choices}) == 1) == is_greedy, (model, fields)


def test_a_template_that_fills_the_memory_fails_its_request_and_no_other(api: Api) -> None:
    assert chat(api, "hostile", "hello").status == 200
    refused = chat(api, "hostile", "fill")
    assert (refused.status, refused.error["message"]) == (
        400,
        "messages: the model's chat template takes too much memory for it",
    )
    assert chat(api, "hostile", "hello").status == 200


def test_a_vector_that_is_not_finite_is_an_error_and_the_next_one_is_right(api: Api) -> None:
    first, refused, next_one = (
        api.post(EMBEDDINGS, {"model": "damaged-embedder", "input": [text, "hello"]}) for text in ("hi", BAD, "hi")
    )
    assert (refused.status, refused.error["code"], refused.error["param"]) == (500, "not_finite", "input[0]")
    assert (first.status, next_one.body["data"]) == (200, first.body["data"])


def test_logits_that_are_not_finite_end_an_answer_and_the_next_one_is_right(api: Api) -> None:
    fields = {"temperature": 0, "structured_outputs": {"regex": f"[a-z]{{4}}{BAD}[a-z]"}}
    alone = chat(api, "damaged", "hi", temperature=0)
    refused = chat(api, "damaged", "hi", **fields)
    assert (refused.status, refused.error["code"]) == (500, "not_finite")
    messages = [{"role": "user", "content": "hi"}]
    *events, last = api.events(CHAT, {"model": "damaged", "messages": messages, "max_tokens": 20} | fields)
    choices = [choice for event in events for choice in event["choices"]]
    assert choices and all(choice["finish_reason"] is None for choice in choices)
    assert last["error"]["code"] == "not_finite"
    assert chat(api, "damaged", "hi", temperature=0).text == alone.text
