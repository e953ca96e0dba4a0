"""Makes signatures, enumerations and classes from the recorded contract; what is uncertain in it is refused."""

from __future__ import annotations

import enum
import functools
import inspect
import json
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

_DATA = Path(__file__).resolve().parents[3] / "data"
CONTRACT_FILE = _DATA / os.environ.get("TENSORRT_LLM_CONTRACT", "tensorrt_llm_contract.json")

_SCALARS: Mapping[str, tuple[type, ...]] = {
    "bool": (bool,),
    "float": (float, int),
    "int": (int,),
    "str": (str,),
    "Path": (Path,),
    "None": (type(None),),
}
_CONTAINERS: Mapping[str, type] = {"list": list, "dict": dict, "Sequence": list, "Mapping": dict}


@functools.cache
def contract() -> Any:
    """Return the recorded contract."""
    return json.loads(CONTRACT_FILE.read_text(encoding="utf-8"))


def require(name: str) -> None:
    """Check that a release has a module, for this module to be imported.

    Raises:
        ImportError: as without that module.
    """
    if name not in contract()["exports"]:
        raise ImportError(f"No module named {name!r}")


@functools.cache
def enumeration(name: str) -> Any:
    """Return a recorded enumeration; its members' values are their names."""
    return enum.Enum(name, {member: member for member in contract()["enums"][name]})


class Recorded:
    """A callable as it is recorded.

    Args:
        name: in the contract's `callables`.
        is_certain: refuse its uncertain parameters.
    """

    def __init__(self, name: str, *, is_certain: bool = True) -> None:
        entry = contract()["callables"][name]
        self.name = name
        self.refused = {param["name"] for param in entry["params"] if is_certain and param.get("uncertain")}
        params = [param for param in entry["params"] if param["name"] not in self.refused]
        self.types = {param["name"]: param["type"] for param in params}
        self.allowed_keys: list[str] = next((param["allowed_keys"] for param in params if "allowed_keys" in param), [])
        self.signature = inspect.Signature([_parameter(param) for param in params])

    def bind(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Return every argument by name, defaults too.

        Raises:
            TypeError: there is no such parameter, a required one is missing, or a value is of another type.
            ValueError: a value is none of those recorded.
        """
        bound = self.signature.bind(*args, **kwargs)
        for name, value in bound.arguments.items():
            if self.signature.parameters[name].kind is not inspect.Parameter.VAR_KEYWORD:
                self.check(name, value)
        bound.apply_defaults()
        return dict(bound.arguments)

    def check(self, name: str, value: Any) -> None:
        """Check the type of one argument."""
        kinds = list(_kinds(self.types[name]))
        if any(_is_of(value, kind) for kind in kinds):
            return
        if any(kind.startswith("Literal[") for kind in kinds) and isinstance(value, str):
            raise ValueError(f"{self.name}: {name}={value!r}: expected {self.types[name]}")
        raise TypeError(f"{self.name}: {name}={value!r}: expected {self.types[name]}")


@functools.cache
def recorded_class(name: str, *, is_certain: bool = True) -> Any:
    """Return a class whose constructor takes what is recorded, and keeps it as attributes."""
    recorded = Recorded(f"{name}.__init__", is_certain=is_certain)

    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        self.__dict__.update(recorded.bind(*args, **kwargs))

    return type(name.rpartition(".")[2], (), {"__init__": __init__, "__doc__": f"As {name} is recorded."})


def _parameter(param: Mapping[str, Any]) -> inspect.Parameter:
    kind = getattr(inspect.Parameter, param["kind"])
    is_plain = kind is not inspect.Parameter.VAR_KEYWORD and not param["required"]
    return inspect.Parameter(param["name"], kind, default=param.get("default") if is_plain else inspect.Parameter.empty)


def _kinds(text: str) -> Iterator[str]:
    """Yield the members of a union, at its top level."""
    depth, begin = 0, 0
    text = re.sub(r"^\w+ \((.*)\)$", r"\1", text)  # a name and, in brackets, what it stands for
    for index, character in enumerate(text):
        depth += (character in "[(") - (character in "])")
        if character == "|" and depth == 0:
            yield text[begin:index].strip()
            begin = index + 1
    yield text[begin:].strip()


def _is_of(value: Any, kind: str) -> bool:
    """Whether a value is of a kind. Numbers keep strictly to theirs, since a bool is an int in Python."""
    if kind in _SCALARS:
        return isinstance(value, _SCALARS[kind]) and (kind == "bool" or not isinstance(value, bool))
    if kind.startswith("Literal["):
        return value in [word.strip().strip("'") for word in kind[len("Literal[") : -1].split(",")]
    container = _CONTAINERS.get(kind.partition("[")[0])
    if container is not None:
        item_kind = kind.partition("[")[2][:-1]
        if isinstance(value, list) and item_kind in _SCALARS and not all(_is_of(item, item_kind) for item in value):
            return False
        return isinstance(value, container)
    if kind in contract()["typed_dicts"]:
        recorded = contract()["typed_dicts"][kind]
        return isinstance(value, dict) and recorded["required"].keys() <= value.keys() <= (
            recorded["required"].keys() | recorded["optional"].keys()
        )
    if kind == "torch.Tensor":
        return isinstance(value, np.ndarray)
    if kind in ("LogitsProcessor", "BatchedLogitsProcessor"):
        return callable(value)
    if kind == "one of the *DecodingConfig classes":
        return type(value).__name__.endswith("DecodingConfig")
    if kind in ("Any", "object", "mpi4py communicator"):
        return True
    return kind in [base.__name__ for base in type(value).__mro__] or kind == "MpiSession"
