"""Something for each replica, by endpoint, while replicas come and go."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from weakref import WeakKeyDictionary

from frontend.triton.pool import ReplicaPool
from frontend.triton.replica import Replica


class ByEndpoint[Value](Mapping[str, Value]):
    """What is made for each replica that a pool has at the moment; a replica keeps what was made for it.

    Args:
        make: called once for each replica.
    """

    def __init__(self, pool: ReplicaPool, make: Callable[[Replica], Value]) -> None:
        self._pool = pool
        self._make = make
        self._made: WeakKeyDictionary[Replica, Value] = WeakKeyDictionary()

    def __getitem__(self, endpoint: str) -> Value:
        for replica in self._pool.replicas:
            if replica.endpoint == endpoint:
                if replica not in self._made:
                    self._made[replica] = self._make(replica)
                return self._made[replica]
        raise KeyError(endpoint)

    def __iter__(self) -> Iterator[str]:
        return iter([replica.endpoint for replica in self._pool.replicas])

    def __len__(self) -> int:
        return len(self._pool.replicas)
