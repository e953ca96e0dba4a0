"""A checkpoint folder in Hugging Face's layout."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from build_engines.errors import BuildError, UnsupportedCheckpoint
from build_engines.json_files import read_json
from build_engines.scores import Scores, read_scores
from build_engines.sentence_transformers import read_pooling
from model_repository.model_facts import Pooling
from model_repository.model_parameters import API_SAMPLING, checked_defaults

logger = logging.getLogger(__name__)

# A model that reads images may leave out the fields of its language model that have transformers' own defaults. Other
# types of models write them.
_DEFAULTS: dict[str, dict[str, Any]] = {
    "llama": {
        "hidden_size": 4096,
        "intermediate_size": 11008,
        "max_position_embeddings": 2048,
        "num_attention_heads": 32,
        "num_hidden_layers": 32,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10_000.0,
        "vocab_size": 32000,
        "eos_token_id": 2,
    },
    "gemma3_text": {
        "head_dim": 256,
        "max_position_embeddings": 131_072,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "sliding_window_pattern": 6,
        "vocab_size": 262_208,
    },
}
_KINDS: dict[str, type] = {  # fields of config.json that are not numbers
    "architectures": list,
    "layer_types": list,
    "mlp_only_layers": list,
    "rope_parameters": dict,
    "rope_scaling": dict,
    "text_config": dict,
    "vision_config": dict,
}
_MAX_VOCAB_SIZE = 2**24
MAX_WHOLE_NUMBER = 2**31 - 1
_MAX_FLOAT, _MIN_FLOAT = 3e38, 2e-38  # range of 32-bit numbers
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint's folder and configuration."""

    folder: Path
    config: dict[str, Any]  # the language model's
    whole_config: dict[str, Any]  # config.json, in which a model that reads images has the other one
    eos_token_ids: tuple[int, ...]
    sampling: dict[str, float]  # the author's values for requests without these fields
    pooling: Pooling | None = None  # the model embeds; None: it generates
    scores: Scores | None = None  # the model scores; its pooling is Pooling.RANK

    @classmethod
    def load(cls, folder: Path) -> Checkpoint:
        """Read config.json and generation_config.json.

        Raises:
            BuildError: a file is missing or malformed.
        """
        config, whole_config = read_config(folder)
        generation = read_json(folder / "generation_config.json", is_optional=True)
        require(config, "max_position_embeddings", "vocab_size")
        whole_number("config.json: max_position_embeddings", config["max_position_embeddings"], 2)
        whole_number("config.json: vocab_size", config["vocab_size"], 2, _MAX_VOCAB_SIZE)
        eos_token_ids = named_eos_token_ids(generation) or named_eos_token_ids(config)
        scores = read_scores(folder, config)
        pooling = read_pooling(folder, config) if scores is None else Pooling.RANK
        if not eos_token_ids and pooling is None:
            raise BuildError("neither generation_config.json nor config.json names an eos_token_id")
        sampling = named_sampling(generation)
        return cls(folder, config, whole_config, eos_token_ids, sampling, pooling, scores)

    @property
    def has_images(self) -> bool:
        """Whether the model reads images."""
        return self.whole_config is not self.config

    @property
    def context_window(self) -> int:
        """Tokens of prompt and completion together."""
        return int(self.config["max_position_embeddings"])

    @property
    def min_dimensions(self) -> int:
        """The length of the shortest useful beginning of a vector; 0: none is useful.

        Raises:
            UnsupportedCheckpoint: the field is malformed.
        """
        lengths = self.config.get("matryoshka_dimensions")
        if not lengths:
            return int(self.config.get("is_matryoshka") is True)
        if not isinstance(lengths, list):
            raise UnsupportedCheckpoint(f"config.json: matryoshka_dimensions={lengths!r:.80}: expected a list")
        return min(whole_number("config.json: matryoshka_dimensions", each) for each in lengths)


def read_config(folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the configuration of the language model, and the whole config.json: the same if it reads no images.

    Raises:
        BuildError: it is missing or malformed.
    """
    whole = read_json(folder / "config.json")
    _check_kinds(whole)
    if whole.get("text_config") is None:
        return whole, whole
    config = _DEFAULTS.get(str(whole["text_config"].get("model_type")), {}) | whole["text_config"]
    _check_kinds(config)
    if config.get("model_type") == "llama":
        config["architectures"] = ["LlamaForCausalLM"]  # SmolVLM has a name of its own for it
    return config, whole


def _check_kinds(config: Mapping[str, Any]) -> None:
    for name, kind in _KINDS.items():
        if not isinstance(config.get(name), kind | None):
            expected = "an object" if kind is dict else "a list"
            raise UnsupportedCheckpoint(f"config.json: {name}={config[name]!r:.80}: expected {expected}")


def named_eos_token_ids(config: dict[str, Any]) -> tuple[int, ...]:
    """Return the end-of-generation token ids that a configuration names; none if it does not.

    Raises:
        BuildError: they are something else than token ids.
    """
    value = config.get("eos_token_id")
    token_ids = [] if value is None else value if isinstance(value, list) else [value]
    for token_id in token_ids:
        if type(token_id) is not int or not 0 <= token_id <= MAX_WHOLE_NUMBER:
            raise BuildError(f"eos_token_id={json.dumps(value)}: expected a token id, or a list of them")
    return tuple(token_ids)


def named_sampling(named: Mapping[str, Any], file_name: str = "generation_config.json") -> dict[str, float]:
    """Return the sampling defaults in the metadata of a file. A value that breaks its rule is left out with a warning.

    `do_sample` is not read, as in vLLM and SGLang: without it transformers is greedy whatever the other values say, and
    most files do not have it.
    """
    sampling: dict[str, Any] = {}
    for name in API_SAMPLING:
        if named.get(name) is not None:
            try:
                sampling |= checked_defaults({name: named[name]})
            except ValueError as exc:
                logger.warning("warning: %s: %s: left out", file_name, exc)
    return sampling


def read_chat_templates(folder: Path) -> dict[str, str]:
    """Return the chat templates that the tokenizer stage will use, by name: `default`, `tool_use`; none are fine.

    Raises:
        BuildError: tokenizer_config.json says something else than a template or a list of named ones, or
            chat_template.jinja is not UTF-8.
    """
    path = folder / "tokenizer_config.json"
    named = read_json(path, is_optional=True).get("chat_template") or []
    if isinstance(named, str):
        named = [{"name": "default", "template": named}]
    try:
        templates = {str(item["name"]): str(item["template"]) for item in named}
    except (KeyError, TypeError) as exc:
        raise BuildError(f"{path}: chat_template: expected a text, or a list of objects of name and template") from exc
    if (folder / "chat_template.jinja").is_file():
        try:
            templates["default"] = (folder / "chat_template.jinja").read_text(encoding="utf-8")
        except UnicodeDecodeError as exc:
            raise BuildError(f"{folder / 'chat_template.jinja'}: not UTF-8 ({exc})") from exc
    return templates


def require(config: dict[str, Any], *names: str) -> None:
    """Check that config.json has all of these.

    Raises:
        BuildError: names the first that is missing.
    """
    for name in names:
        if name not in config:
            raise BuildError(f"config.json: {name} is missing")


def whole_number(field: str, value: object, at_least: int = 1, at_most: int = MAX_WHOLE_NUMBER) -> int:
    """Return a number of a configuration.

    Args:
        field: with the name of its file.

    Raises:
        UnsupportedCheckpoint: it is not a whole number within the bounds.
    """
    if type(value) is not int or not at_least <= value <= at_most:
        raise UnsupportedCheckpoint(f"{field}={value!r:.80}: expected a whole number from {at_least} to {at_most}")
    return value


def positive_number(field: str, value: object, at_most: float = _MAX_FLOAT) -> float:
    """Return a number of a configuration.

    Args:
        field: with the name of its file.

    Raises:
        UnsupportedCheckpoint: it is not a number above 0 and up to the bound.
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or not _MIN_FLOAT <= value <= at_most:
        raise UnsupportedCheckpoint(
            f"{field}={value!r:.80}: expected a number above 0 (from {_MIN_FLOAT} to {at_most:g})"
        )
    return float(value)
