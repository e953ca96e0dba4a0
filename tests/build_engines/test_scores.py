"""How a checkpoint scores, and its template of pairs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from build_engines.checkpoint import Checkpoint
from build_engines.cpu_spec import CpuSpec
from build_engines.errors import UnsupportedCheckpoint
from build_engines.scores import Scores, pair_template, read_scores
from model_repository.model_facts import Pooling
from model_repository.tokenizer.chat_prompt import writes_pairs
from model_repository.tokenizer.chat_template import ChatTemplate
from tests.build_engines.tiny_checkpoint import CHAT_TEMPLATE
from tests.build_engines.tiny_embedders import QWEN3
from tests.build_engines.tiny_scorers import FALSE_ID, TRUE_ID, write_cross_encoder, write_judge

PAIR = {"messages": [{"role": "query", "content": "Q?"}, {"role": "document", "content": "D."}]}


def test_a_classifier_has_the_labels_of_its_configuration(tmp_path: Path) -> None:
    checkpoint = Checkpoint.load(write_cross_encoder(tmp_path, labels=("good", "bad")))
    assert checkpoint.pooling is Pooling.RANK
    assert checkpoint.scores == Scores(labels=("good", "bad"), has_token_types=True)


def test_a_judge_has_the_tokens_of_its_module_and_the_authors_instruction(tmp_path: Path) -> None:
    folder = write_judge(tmp_path)
    prompts = {"prompts": {"a": "x", "search": "Judge it."}, "default_prompt_name": "search"}
    (folder / "config_sentence_transformers.json").write_text(json.dumps(prompts))
    scores = Checkpoint.load(folder).scores
    assert scores == Scores(labels=("yes", "no"), token_ids=(TRUE_ID, FALSE_ID), instruction="Judge it.")
    source = CpuSpec(model_id="judge", checkpoint=folder).source_files()
    assert {"config_sentence_transformers.json", "1_LogitScore/config.json", "modules.json"} <= set(source)


def test_the_template_of_qwen3_reranker_is_that_of_its_model_card() -> None:
    template = ChatTemplate(pair_template(Scores(labels=()), None), {})
    assert writes_pairs(template)
    assert template.render(PAIR) == (
        "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct "
        'provided. Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n'
        "<Instruct>: Given a web search query, retrieve relevant passages that answer the query\n"
        "<Query>: Q?\n<Document>: D.<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
    )


@pytest.mark.parametrize("own", [None, "{{ messages[0].content }}{{ messages[-1].content }}"])
def test_the_authors_instruction_is_the_system_message_of_a_pair(own: str | None) -> None:
    scores = Scores(labels=(), instruction='Say "yes".')
    assert 'Say "yes".' in ChatTemplate(pair_template(scores, own), {}).render(PAIR)


def test_a_chat_template_is_not_one_for_pairs() -> None:
    """Most write messages of any role."""
    assert not writes_pairs(ChatTemplate(CHAT_TEMPLATE, {}))


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"problem_type": "regression"}, "problem_type='regression': expected single_label_classification"),
        ({"id2label": {"1": "a"}}, "id2label={'1': 'a'}: expected 0, 1 and so on"),
        ({"id2label": ["a"]}, r"id2label=\['a'\]: expected 0, 1 and so on"),
    ],
)
def test_a_configuration_that_cannot_be_honoured_is_named(config: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedCheckpoint, match=message):
        read_scores(tmp_path, {"architectures": ["BertForSequenceClassification"], **config})


@pytest.mark.parametrize("config", [{"false_token_id": None}, {"true_token_id": 288}, {"true_token_id": True}], ids=str)
def test_a_judge_needs_two_tokens(config: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(UnsupportedCheckpoint, match=r"1_LogitScore/config\.json: .*: expected two tokens"):
        Checkpoint.load(write_judge(tmp_path, **config))


def test_only_qwen3_judges(tmp_path: Path) -> None:
    """llama.cpp has no classification head of most other architectures."""
    write_judge(tmp_path)
    with pytest.raises(UnsupportedCheckpoint, match="LlamaForCausalLM with LogitScore: expected Qwen3ForCausalLM"):
        read_scores(tmp_path, QWEN3 | {"architectures": ["LlamaForCausalLM"]})
