"""What a cluster keeps, in memory: objects, who set which of their fields, and what it refuses.

Fields that nobody knows are refused, fields that cannot be changed, fields of others, and pods outside of the Pod
Security Standard `restricted`. There are no controllers: nothing runs, a pod has succeeded as soon as it exists.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

from tests.helm.chart import NAMESPACE, KubernetesObject, pods_of
from tests.helm.pod_security import violations
from tests.helm.validation import error_of

VERSION = "1.34"

# Source: Kubernetes' validation of updates, by kind.
_UNCHANGEABLE = {
    "Deployment": (("spec", "selector"),),
    "PersistentVolumeClaim": (
        ("spec", "accessModes"),
        ("spec", "storageClassName"),
        ("spec", "volumeName"),
        ("spec", "selector"),
    ),
    "Service": (("spec", "clusterIP"),),
}

type Path = tuple[str, ...]  # of a field; a list is one field


class Refused(Exception):
    """A request is not carried out."""

    def __init__(self, status: HTTPStatus, reason: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason


@dataclass(slots=True)
class Stored:
    """An object, and who set which of its fields."""

    body: KubernetesObject
    owners: dict[str, set[Path]] = field(default_factory=dict)


class Cluster:
    """One namespace of it."""

    def __init__(self) -> None:
        self.objects: dict[tuple[str, str], Stored] = {}  # by kind and name
        self.events: list[tuple[str, KubernetesObject]] = []  # what happened, and to what; their number is the version
        self._changed = threading.Condition()
        self._is_closed = False

    def names(self) -> set[tuple[str, str]]:
        """Return kind and name of everything."""
        return set(self.objects)

    def scale(self, kind: str, name: str, replicas: int) -> None:
        """Set a number of replicas as an autoscaler does: from then on the field is its own."""
        stored = self.objects[kind, name]
        path: Path = ("spec", "replicas")
        for owned in stored.owners.values():
            owned.discard(path)
        stored.owners["autoscaler"] = {path}
        stored.body["spec"]["replicas"] = replicas

    def get(self, kind: str, name: str) -> KubernetesObject:
        """Return an object.

        Raises:
            Refused: there is none.
        """
        if (kind, name) not in self.objects:
            raise Refused(HTTPStatus.NOT_FOUND, "NotFound", f"{kind} {name} not found")
        return self.objects[kind, name].body

    def listed(self, kind: str, selector: str) -> list[KubernetesObject]:
        """Return the objects of a kind whose labels are those of a selector."""
        wanted = dict(each.split("=", 1) for each in selector.split(",") if each)
        found = [stored.body for (each, _), stored in self.objects.items() if each == kind]
        return [body for body in found if wanted.items() <= body["metadata"].get("labels", {}).items()]

    def put(self, body: KubernetesObject, *, is_new: bool) -> KubernetesObject:
        """Create or replace an object.

        Raises:
            Refused: it exists already, or not yet, or is none that a cluster takes.
        """
        with self._changed:
            key = body["kind"], body["metadata"]["name"]
            if not is_new:
                self.get(*key)
                return self._store(body, self.objects[key].owners)
            if key in self.objects:
                raise Refused(HTTPStatus.CONFLICT, "AlreadyExists", f"{key[0]} {key[1]} already exists")
            return self._store(body, {})

    def apply(self, body: KubernetesObject, manager: str, *, is_forced: bool) -> KubernetesObject:
        """Make an object what a manager says of it; what it said before and does not any more goes.

        Raises:
            Refused: a field belongs to somebody else, cannot be changed, or is none.
        """
        with self._changed:
            stored = self.objects.get((body["kind"], body["metadata"]["name"]))
            fields = dict(_fields(body))
            if stored is None:
                return self._store(copy.deepcopy(body), {manager: set(fields)})
            merged, owners = copy.deepcopy(stored.body), {who: set(paths) for who, paths in stored.owners.items()}
            for other in owners.keys() - {manager}:
                taken = {path for path in owners[other] & fields.keys() if _at(merged, path) != fields[path]}
                if taken and not is_forced:
                    raise Refused(HTTPStatus.CONFLICT, "Conflict", f"conflict with {other}: {sorted(taken)}")
                owners[other] -= taken
            for path in owners.get(manager, set()) - fields.keys():
                if not any(path in paths for other, paths in owners.items() if other != manager):
                    _remove(merged, path)
            for path, value in fields.items():
                _set(merged, path, copy.deepcopy(value))
            return self._store(merged, owners | {manager: set(fields)})

    def delete(self, kind: str, name: str) -> KubernetesObject:
        """Remove an object.

        Raises:
            Refused: there is none.
        """
        with self._changed:
            body = self.get(kind, name)
            del self.objects[kind, name]
            self._tell("DELETED", body)
            return body

    def since(self, version: int) -> list[tuple[str, KubernetesObject]]:
        """Wait for what happens after a version, and return it; nothing once the server is closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_closed or len(self.events) > version)
            return [] if self._is_closed else self.events[version:]

    def close(self) -> None:
        """End what waits for events."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    def _store(self, body: KubernetesObject, owners: dict[str, set[Path]]) -> KubernetesObject:
        kind, name = body["kind"], body["metadata"]["name"]
        known = {key: value for key, value in body.items() if key != "status"}
        if found := error_of(known, VERSION):
            raise Refused(HTTPStatus.UNPROCESSABLE_ENTITY, "Invalid", found)
        for pod in pods_of(body):
            if found := "; ".join(violations(pod)):
                raise Refused(HTTPStatus.FORBIDDEN, "Forbidden", f"{pod.owner} violates PodSecurity: {found}")
        before = self.objects.get((kind, name))
        for path in _UNCHANGEABLE.get(kind, ()):
            if before is not None and _at(before.body, path) != _at(body, path):
                raise Refused(
                    HTTPStatus.UNPROCESSABLE_ENTITY, "Invalid", f"{kind} {name}: {'.'.join(path)}: field is immutable"
                )
        version = str(len(self.events) + 1)
        body["metadata"] |= {"resourceVersion": version, "namespace": NAMESPACE}
        body["metadata"].setdefault("uid", version)
        if kind == "Pod":
            body["status"] = {"phase": "Succeeded"}
        self.objects[kind, name] = Stored(body, owners)
        self._tell("ADDED" if before is None else "MODIFIED", body)
        return body

    def _tell(self, what: str, body: KubernetesObject) -> None:
        self.events.append((what, body))
        self._changed.notify_all()


def _fields(body: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Yield the fields of an object, those inside of others, with their values."""
    for name, value in body.items():
        if isinstance(value, dict) and value:
            yield from _fields(value, (*path, name))
        else:
            yield (*path, name), value


def _at(body: Any, path: Path) -> Any:
    for name in path:
        body = body.get(name) if isinstance(body, dict) else None
    return body


def _set(body: Any, path: Path, value: Any) -> None:
    for name in path[:-1]:
        if not isinstance(body.get(name), dict):
            body[name] = {}
        body = body[name]
    body[path[-1]] = value


def _remove(body: Any, path: Path) -> None:
    """Remove a field, and what that leaves empty."""
    parent = _at(body, path[:-1])
    if isinstance(parent, dict):
        parent.pop(path[-1], None)
        if not parent and path[:-1]:
            _remove(body, path[:-1])
