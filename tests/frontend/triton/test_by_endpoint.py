"""What is made for each replica."""

from __future__ import annotations

import pytest

from frontend.settings import Settings
from frontend.triton.endpoints import ANY_MODEL
from frontend.triton.pool import ByEndpoint, ReplicaPool
from frontend.triton.replica import Replica
from tests.fakes import FakeTriton


def replica(endpoint: str) -> Replica:
    return Replica(endpoint, FakeTriton(), Settings())


async def test_each_current_replica_has_one_made_once():
    pool = ReplicaPool([replica("a:1")])
    made = ByEndpoint(pool, lambda each: [each.endpoint])
    first = made["a:1"]
    pool.add("b:1", [ANY_MODEL], lambda endpoint, model_filter: replica(endpoint))
    assert dict(made) == {"a:1": ["a:1"], "b:1": ["b:1"]}
    assert made["a:1"] is first
    pool.remove("a:1", [ANY_MODEL])
    assert dict(made) == {"b:1": ["b:1"]}
    assert len(made) == 1
    with pytest.raises(KeyError):
        made["a:1"]
