"""The files of sentence-transformers in a checkpoint: they say that the model embeds, and how."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from build_engines.errors import UnsupportedCheckpoint
from build_engines.json_files import class_of, is_below, read_json, read_json_list
from model_repository.model_facts import Pooling

MODULES = "modules.json"
LOGIT_SCORE = "LogitScore"  # a kind of module: the next token of a model that generates is a judgement
PROMPTS = "config_sentence_transformers.json"
MODULE_FILES = ("*_Pooling/config.json", f"*_{LOGIT_SCORE}/config.json")  # patterns
ENCODERS = ("BertModel", "BertForMaskedLM")  # classes of transformers that embed also without these files
_POOLINGS = {"mean": Pooling.MEAN, "cls": Pooling.CLS, "lasttoken": Pooling.LAST}
# Every embedding is normalized, also without the module for it.
_KINDS = ("Transformer", "Pooling", "Normalize", LOGIT_SCORE)


def read_pooling(folder: Path, config: Mapping[str, Any]) -> Pooling | None:
    """Return how the model of a checkpoint that does not score pools; None: it generates.

    Without the files an encoder has the mean, as in sentence-transformers.

    Raises:
        UnsupportedCheckpoint: the model has other modules than a transformer, or another pooling; names it.
        BuildError: a file is missing or malformed.
    """
    if not (folder / MODULES).is_file():
        return Pooling.MEAN if class_of(config) in ENCODERS else None
    path = f"{module_paths(folder).get('Pooling', '1_Pooling')}/config.json"
    modes = _modes(read_json(folder / path))
    if len(modes) != 1 or str(modes[0]) not in _POOLINGS:
        found = ", ".join(map(str, modes)) or "none"
        raise UnsupportedCheckpoint(f"{path}: pooling {found}: expected one of {', '.join(_POOLINGS)}")
    return _POOLINGS[str(modes[0])]


def module_paths(folder: Path) -> dict[str, str]:
    """Return the folder of each module by its kind; none without the files.

    Raises:
        UnsupportedCheckpoint: a kind is unknown, or a path leads out of the checkpoint; names the module.
        BuildError: the file is malformed.
    """
    paths = {}
    for module in read_json_list(folder / MODULES) if (folder / MODULES).is_file() else ():
        kind = str(module.get("type")).rpartition(".")[2] if isinstance(module, dict) else ""
        if kind not in _KINDS:
            raise UnsupportedCheckpoint(f"{MODULES}: {module!r:.200}: expected a type of {', '.join(_KINDS)}")
        path = module.get("path", "")
        if not isinstance(path, str) or not is_below(path):
            raise UnsupportedCheckpoint(f"{MODULES}: path={path!r:.80}: expected a folder of the checkpoint")
        paths[kind] = path
    return paths


def _modes(config: Mapping[str, Any]) -> list[Any]:
    """Return the ways of pooling: one field names them, or in most files each has a field of its own."""
    named = config.get("pooling_mode")
    if named is not None:
        return named if isinstance(named, list) else [named]
    fields = [name.removeprefix("pooling_mode_") for name, value in config.items() if value is True]
    return [name.removesuffix("_tokens").removesuffix("_token") for name in fields if f"pooling_mode_{name}" in config]
