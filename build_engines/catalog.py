"""The models that can be planned and built: ours, and those in files of the user."""

from __future__ import annotations

import difflib
import reprlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import yaml
from pydantic import TypeAdapter, ValidationError

from build_engines.errors import CatalogError
from build_engines.model_entry import ModelEntry

BUILT_IN = Path(str(resources.files("build_engines").joinpath("catalog.yaml")))

_ENTRY: TypeAdapter[ModelEntry] = TypeAdapter(ModelEntry)
_RULES = {"missing": "is missing", "unexpected_keyword_argument": "unknown key"}  # instead of pydantic's texts


class Catalog:
    """Models by id, in the order of their files.

    Args:
        entries: no two with a name in common.

    Raises:
        CatalogError: two models have the same name.
    """

    def __init__(self, entries: Iterable[ModelEntry]) -> None:
        self._entries: dict[str, ModelEntry] = {}
        self._by_name: dict[str, ModelEntry] = {}
        self._by_short_name: dict[str, list[ModelEntry]] = {}
        for entry in entries:
            self._entries[entry.model_id] = entry
            for name in (entry.model_id, *entry.aliases):
                other = self._by_name.setdefault(name.casefold(), entry)
                if other is not entry:
                    raise CatalogError(f"{entry.model_id}: {name} is a name of {other.model_id} already")
            self._by_short_name.setdefault(entry.short_name.casefold(), []).append(entry)

    @classmethod
    def load(cls, *extra_paths: Path) -> Catalog:
        """Read our own catalog and files of the same form that extend it.

        Raises:
            CatalogError: names the file, the path of the key, the value and the rule.
        """
        files = (BUILT_IN, *extra_paths)
        return cls(_entry(path, *model) for path in files for model in read_models(path).items())

    def __iter__(self) -> Iterator[ModelEntry]:
        return iter(self._entries.values())

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def built(self) -> Catalog:
        """The models that `build` makes for GPUs."""
        return Catalog(entry for entry in self if entry.backends)

    def find(self, name: str, *, takes_part: bool = True) -> ModelEntry:
        """Return the model of an id, an alias, an id without its owner, or an unambiguous part of an id.

        Case is ignored, and in a part of an id everything but letters and digits. A part has no owner.

        Args:
            takes_part: whether a part of an id is enough.

        Raises:
            CatalogError: no such model; lists similar names.
        """
        key = name.casefold()
        found = [self._by_name[key]] if key in self._by_name else self._by_short_name.get(key, [])
        if not found and takes_part:
            found = self._with_part(key)
        if not found:
            raise CatalogError(f"{name}: not in the catalog; {self._nearest(key)}")
        if len(found) > 1:
            raise CatalogError(f"{name}: say which: {_either(found, key)}")
        return found[0]

    def _with_part(self, key: str) -> list[ModelEntry]:
        if "/" in key:  # a whole id: Qwen/Qwen2.5-7B is another model than Qwen/Qwen2.5-7B-Instruct
            return []
        part = _letters_and_digits(key)
        return [entry for entry in self if len(part) > 1 and part in _letters_and_digits(entry.model_id.casefold())]

    def _nearest(self, key: str) -> str:
        names = {**{name: entries[0] for name, entries in self._by_short_name.items()}, **self._by_name}
        near = [names[each] for each in difflib.get_close_matches(key, names, n=5, cutoff=0.4)]
        return f"did you mean {_either(near, key)}?" if near else "`conch list --all` shows its models"


def _either(entries: Iterable[ModelEntry], typed: str) -> str:
    """Name models as the user has typed one: with the owner, or short."""
    return " or ".join(dict.fromkeys(entry.model_id if "/" in typed else entry.tag for entry in entries))


def _letters_and_digits(text: str) -> str:
    return "".join(filter(str.isalnum, text))


def read_models(path: Path) -> dict[Any, Any]:
    """Return the entry of each model in a file with the one key `models`.

    Raises:
        CatalogError: it cannot be read, or has another form.
    """
    return read_sections(path, ("models",))["models"]


def read_sections(path: Path, known: Sequence[str]) -> dict[str, dict[Any, Any]]:
    """Return the sections of a file, each an object by the names of its entries.

    Args:
        known: the names of the sections, of which only the first is required.

    Raises:
        CatalogError: it cannot be read, or has another form.
    """
    try:
        document = yaml.load(path.read_text(encoding="utf-8"), Loader=_UniqueKeyLoader)
    except OSError as exc:
        raise CatalogError(f"{path}: {exc.strerror}") from exc
    except (yaml.YAMLError, UnicodeDecodeError) as exc:
        raise CatalogError(f"{path}: not YAML: {' '.join(str(exc).split())}") from exc
    keys = document.keys() if isinstance(document, dict) else set()
    if known[0] not in keys or keys - set(known) or not all(isinstance(each, dict) for each in document.values()):
        further = "".join(f", and `{name}`, if any, an object by name" for name in known[1:])
        rule = f"expected one key, `{known[0]}`, an object with an entry for each model id{further}"
        raise CatalogError(f"{path}: {rule}")
    sections: dict[str, dict[Any, Any]] = document
    return sections


def _entry(path: Path, model_id: object, fields: object) -> ModelEntry:
    place = f"{path}: models.{model_id}"
    if not isinstance(model_id, str) or not isinstance(fields, Mapping) or "model_id" in fields:
        raise CatalogError(f"{place}: expected a text as the id, and an object without model_id")
    try:
        return _ENTRY.validate_python({"model_id": model_id, **fields})
    except ValidationError as exc:
        first, *others = exc.errors(include_url=False)
        more = f" (and {len(others)} more)" if others else ""
        raise CatalogError(f"{place}.{_broken_rule(first)}{more}") from exc


def _broken_rule(error: Mapping[str, Any]) -> str:
    """Return `path.to.key: value: rule`."""
    # For a key of a mapping, pydantic appends "[key]" to the path.
    key_path = ".".join(str(part) for part in error["loc"] if part != "[key]")
    if error["type"] == "value_error":  # ours, which begins with a key
        return ".".join(filter(None, (key_path, str(error["ctx"]["error"]))))
    rule = _RULES.get(error["type"], error["msg"])
    value = "" if error["type"] == "missing" else f"{reprlib.repr(error['input'])}: "
    return f"{key_path}: {value}{rule}"


class _UniqueKeyLoader(yaml.CSafeLoader):  # type: ignore[misc]  # the library has no types
    """Refuses a repeated key, of which YAML would use the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[object] = set()
        for key_node, _ in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                raise yaml.constructor.ConstructorError(None, None, "a key that is no text", key_node.start_mark)
            key = key_node.value
            if key in seen:
                raise yaml.constructor.ConstructorError(None, None, f"{key}: given twice", key_node.start_mark)
            seen.add(key)
        return super().construct_mapping(node, deep)  # type: ignore[no-any-return]
