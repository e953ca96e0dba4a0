"""A plugin of pytest: the tests of llama.cpp and vLLM use the server at PEER_SERVER_URL.

It runs in their checkouts without our packages: `tests` is vLLM's there.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

import anthropic
import openai
import pytest
import yaml

_URL = os.environ["PEER_SERVER_URL"]
_REASONS = yaml.safe_load(Path(__file__).with_name("reasons.yaml").read_text())
_CLIENT: Any = {"api_key": "none", "max_retries": 0, "timeout": 600}


class RemoteServer:
    """In place of vLLM's: starts nothing."""

    def __init__(self, *_: Any, **__: Any) -> None: ...

    def __enter__(self) -> RemoteServer:
        return self

    def __exit__(self, *_: object) -> None: ...

    def get_async_client(self) -> openai.AsyncOpenAI:
        return openai.AsyncOpenAI(base_url=f"{_URL}/v1", **_CLIENT)

    def get_async_client_anthropic(self) -> anthropic.AsyncAnthropic:
        return anthropic.AsyncAnthropic(base_url=_URL, **_CLIENT)


def _stand_in(name: str, **names: Any) -> None:
    module = ModuleType(name)
    module.__spec__ = ModuleSpec(name, None)
    module.__dict__.update(names)
    sys.modules[name] = module


def pytest_load_initial_conftests() -> None:
    """Replace the modules that start servers, and packages of which no test that runs needs more than the name."""
    _stand_in("wget")
    _stand_in("filelock", FileLock=contextlib.nullcontext)
    _stand_in("gpt_oss")
    _stand_in("openai_harmony", Message=None)
    if not Path("utils.py").exists():
        _stand_in("tests.utils", RemoteOpenAIServer=RemoteServer)
        return
    utils: Any = importlib.import_module("utils")
    utils.ServerPreset.load_all = lambda: None  # downloads models
    utils.ServerProcess.make_url = lambda _, path, host=None: f"{_URL}/v1{path.removeprefix('/v1')}"
    utils.match_regex = lambda *_: True  # compares texts with those of a story model
    host, _, os.environ["PORT"] = _URL.removeprefix("http://").partition(":")
    utils.ServerProcess.server_host = host


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests that do not pass with the reason."""
    for item in items:
        name = f"{item.path.stem}::{item.name.partition('[')[0]}"
        for mark, reasons in _REASONS.items():
            for reason, tests in reasons.items():
                if name in tests or item.path.stem in tests:
                    strict = {"strict": True} if mark == "xfail" else {}
                    item.add_marker(getattr(pytest.mark, mark)(reason=reason, **strict))
