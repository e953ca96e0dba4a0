"""How a checkpoint scores: by a classification head, or by two rows of its output matrix."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from build_engines.errors import UnsupportedCheckpoint
from build_engines.json_files import class_of, read_json
from build_engines.sentence_transformers import LOGIT_SCORE, PROMPTS, module_paths
from model_repository.model_parameters import JUDGEMENTS

CLASSIFIERS = ("BertForSequenceClassification",)  # classes of transformers
_JUDGES = ("Qwen3ForCausalLM",)  # a class that generates: its next token is the judgement

# Qwen3-Reranker's, by its model card, for messages as its own template in sentence-transformers' form has them.
_TEMPLATE = """\
<|im_start|>system
Judge whether the Document meets the requirements based on the Query and the Instruct provided. \
Note that the answer can only be "yes" or "no".<|im_end|>
<|im_start|>user
<Instruct>: {{ messages | selectattr("role", "eq", "system") | map(attribute="content") | first \
| default("Given a web search query, retrieve relevant passages that answer the query") }}
<Query>: {{ messages | selectattr("role", "eq", "query") | map(attribute="content") | first }}
<Document>: {{ messages | selectattr("role", "eq", "document") | map(attribute="content") | first }}<|im_end|>
<|im_start|>assistant
{{ "<think>\\n\\n</think>\\n\\n" }}"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scores:
    """The scores of a model."""

    labels: tuple[str, ...]
    token_ids: tuple[int, ...] = ()  # rows of the output matrix that compute them; empty: a classification head does
    has_token_types: bool = False  # see ModelParameters
    instruction: str = ""  # the author's, for the template of pairs; empty: the template's own


def read_scores(folder: Path, config: Mapping[str, Any]) -> Scores | None:
    """Return how the model of a checkpoint scores; None: it embeds or generates.

    Raises:
        UnsupportedCheckpoint: the model scores in another way; names the field.
        BuildError: a file is missing or malformed.
    """
    architecture = class_of(config)
    if architecture in CLASSIFIERS:
        problem = config.get("problem_type")
        if problem not in (None, "single_label_classification"):
            raise UnsupportedCheckpoint(f"config.json: problem_type={problem!r}: expected single_label_classification")
        return Scores(labels=label_names(config), has_token_types=config.get("type_vocab_size", 2) > 1)
    path = module_paths(folder).get(LOGIT_SCORE)
    if path is None:
        return None
    if architecture not in _JUDGES:
        raise UnsupportedCheckpoint(f"architecture {architecture} with {LOGIT_SCORE}: expected {', '.join(_JUDGES)}")
    judging = read_json(folder / path / "config.json")
    token_ids: tuple[Any, ...] = tuple(judging.get(f"{name}_token_id") for name in ("true", "false"))
    if not all(type(each) is int and 0 <= each < int(config["vocab_size"]) for each in token_ids):
        rule = "expected two tokens, true_token_id and false_token_id"
        raise UnsupportedCheckpoint(f"{path}/config.json: {judging!r:.200}: {rule}")
    match read_json(folder / PROMPTS, is_optional=True):
        case {"prompts": {**prompts}, "default_prompt_name": str(name)} if isinstance(prompts.get(name), str):
            return Scores(labels=JUDGEMENTS, token_ids=token_ids, instruction=str(prompts[name]))
    return Scores(labels=JUDGEMENTS, token_ids=token_ids)


def label_names(config: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the labels of a classification head in their order. Without them transformers has two.

    Raises:
        UnsupportedCheckpoint: they are not numbered from 0.
    """
    named = config.get("id2label") or {"0": "LABEL_0", "1": "LABEL_1"}
    try:
        labels = {int(number): str(label) for number, label in named.items()}
        return tuple(labels[number] for number in range(len(labels)))
    except (AttributeError, KeyError, ValueError) as exc:
        raise UnsupportedCheckpoint(f"config.json: id2label={named!r:.200}: expected 0, 1 and so on") from exc


def pair_template(scores: Scores, own: str | None) -> str:
    """Return the chat template of a model that judges pairs, with the author's instruction.

    Args:
        own: the model's, if it has one for pairs.
    """
    template = own or _TEMPLATE
    if not scores.instruction:
        return template
    # JSON is Jinja, too.
    system = json.dumps([{"role": "system", "content": scores.instruction}])
    return f"{{%- set messages = {system} + messages -%}}\n{template}"
