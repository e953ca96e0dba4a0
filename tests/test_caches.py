"""Every cache, and what bounds the memory that it takes: one without a bound is an outage that anybody can cause."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import frontend
import model_repository

_PACKAGES = [Path(package.__path__[0]) for package in (frontend, model_repository)]
_CACHE = re.compile(
    r"functools\.(?:lru_)?cache\b|OrderedDict\(\)|\bBoundedCache\(|WeakValueDictionary\(\)|deque\(maxlen"
)

BOUNDS = {
    "model_repository/contract/codec.py": "one decoder for each message of the contract",
    "model_repository/contract/spec.py": "one entry for each message of the contract",
    "model_repository/tokenizer/bounded_cache.py": "MAX_BYTES (test_bounded_cache.py)",
    "model_repository/tokenizer/prompt.py": "that of BoundedCache",
    "model_repository/tokenizer/stage.py": "that of BoundedCache",
    "model_repository/engine/constraint.py": "MAX_BYTES (test_constraint.py)",
    "model_repository/engine/pending_cancels.py": "MAX_KEYS numbers",
    "model_repository/cancel_channel.py": "1,024 numbers",
    "model_repository/structured_output/compilation.py": "one tokenizer of bytes",
    "model_repository/engine/tensorrt_llm/processors.py": "one entry for each model",
    "frontend/app.py": "a lock for each sender of requests that are in flight",
    "frontend/caller.py": "1,024 lists of names, which operators wrote into keys",
    "frontend/gateway/counters.py": "4,096 lists of limits",
    "frontend/openapi.py": "the API's own description",
    "frontend/parameters.py": "the contract's own inputs",
    "frontend/settings.py": "256 hosts, each of a header's length at most",
    "frontend/launcher/child.py": "the last lines of a child's log",
}


@pytest.mark.parametrize("package", _PACKAGES, ids=lambda path: path.name)
def test_every_cache_has_a_bound(package: Path) -> None:
    found = {str(path.relative_to(package.parent)) for path in package.rglob("*.py") if _CACHE.search(path.read_text())}
    assert found == {name for name in BOUNDS if name.startswith(f"{package.name}/")}
