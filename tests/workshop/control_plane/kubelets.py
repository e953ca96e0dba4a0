"""Played kubelets: they bring the pods of fake nodes through their phases, without a container."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlsplit

from tests.helm.chart import KubernetesObject
from tests.workshop.control_plane.api import Api, ApiError

STORAGE_CLASS = "played"
RACK = "conch.test/rack"  # label of all GPU nodes, with one value
LWS = "leaderworkerset.sigs.k8s.io"
_PERIOD_S = 0.1
_HEARTBEAT_S = 2.0
_START_S = 0.3  # of a container that does not build
_END_S = 0.6  # of a terminating pod
_GONE = (404, 409, 422)  # the object was changed or deleted since it was read


@dataclass(slots=True)
class _Pod:
    """A pod on a fake node, and how far it has come."""

    body: KubernetesObject
    ip: str
    since: float  # when the current container started
    container: int = 0  # index among the init containers; after the last one the main container runs
    restarts: int = 0  # of the current init container
    retry_at: float = 0.0  # end of the back-off after a failure
    is_ready: bool = False
    phase: str = "Pending"
    sent: Any = None
    ends_at: float = 0.0

    @property
    def init_containers(self) -> list[dict[str, Any]]:
        return list(self.body["spec"].get("initContainers", []))


@dataclass
class Kubelets:
    """The kubelets of all fake nodes, and the provisioner of their volumes.

    A build takes `build_s`, and leaves its folder in the cache of its namespace. Pods of the same folder wait for it.
    """

    api: Api
    build_s: float = 3.0
    num_failures: Counter[str] = field(default_factory=Counter)  # by namespace: builds that are still to fail
    builds: Counter[tuple[str, str]] = field(default_factory=Counter)  # by namespace and folder: finished builds
    nodes: set[str] = field(default_factory=set)
    lost: set[str] = field(default_factory=set)  # nodes that no longer answer
    errors: list[str] = field(default_factory=list)
    _pods: dict[str, _Pod] = field(default_factory=dict)  # by uid
    _builders: dict[tuple[str, str], str] = field(default_factory=dict)  # by namespace and folder: the building pod
    _num_ips: int = 0
    _stop: threading.Event = field(default_factory=threading.Event)

    def __enter__(self) -> Kubelets:
        self.api.create(
            {
                "kind": "StorageClass",
                "metadata": {
                    "name": STORAGE_CLASS,
                    "annotations": {"storageclass.kubernetes.io/is-default-class": "true"},
                },
                "provisioner": "conch.test/played",
            }
        )
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def add_node(self, name: str, gpus: int = 0, product: str = "") -> None:
        """Add a node; with GPUs it has the label and the taint of a GPU node."""
        labels = {"kubernetes.io/hostname": name} | ({"nvidia.com/gpu.product": product, RACK: "one"} if gpus else {})
        taints = [{"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}] if gpus else []
        self.api.create({"kind": "Node", "metadata": {"name": name, "labels": labels}, "spec": {"taints": taints}})
        amounts = {"cpu": "192", "memory": "2Ti", "pods": "110", "ephemeral-storage": "8Ti"}
        amounts |= {"nvidia.com/gpu": str(gpus), "rdma/hca": "8"} if gpus else {}
        self.api.patch("Node", name, {"status": {"capacity": amounts, "allocatable": amounts}}, subresource="status")
        self._beat(name)
        self.nodes.add(name)

    def remove_node(self, name: str) -> None:
        """Remove a node; the control plane then deletes its pods."""
        self.nodes.discard(name)
        self.api.delete("Node", name)
        self.lost.discard(name)

    def _run(self) -> None:
        next_heartbeat = 0.0
        while not self._stop.wait(_PERIOD_S):
            try:
                if time.monotonic() >= next_heartbeat:
                    next_heartbeat = time.monotonic() + _HEARTBEAT_S
                    for name in self.nodes - self.lost:
                        self._beat(name)
                self._provision()
                self._step_pods()
            except (ApiError, OSError) as exc:
                self.errors.append(f"{type(exc).__name__}: {exc}")

    def _beat(self, name: str) -> None:
        ready = {"type": "Ready", "status": "True", "reason": "Played", "message": "", "lastHeartbeatTime": _now()}
        with _may_be_gone():
            self.api.patch("Node", name, {"status": {"conditions": [ready]}}, subresource="status")

    def _provision(self) -> None:
        """Give every pending claim a volume."""
        for claim in self.api.list("PersistentVolumeClaim"):
            metadata, spec = claim["metadata"], claim["spec"]
            if claim["status"]["phase"] != "Pending" or spec.get("storageClassName") != STORAGE_CLASS:
                continue
            body = {
                "kind": "PersistentVolume",
                "metadata": {"name": f"{metadata['namespace']}-{metadata['name']}"},
                "spec": {
                    "capacity": spec["resources"]["requests"],
                    "accessModes": spec["accessModes"],
                    "storageClassName": STORAGE_CLASS,
                    "hostPath": {"path": "/played"},
                    "persistentVolumeReclaimPolicy": "Retain",
                    "claimRef": {key: metadata[key] for key in ("namespace", "name", "uid")},
                },
            }
            with _may_be_gone():
                self.api.create(body)

    def _step_pods(self) -> None:
        now = time.monotonic()
        bodies = {each["metadata"]["uid"]: each for each in self.api.list("Pod")}
        bodies = {uid: each for uid, each in bodies.items() if each["spec"].get("nodeName") in self.nodes - self.lost}
        for uid in self._pods.keys() - bodies.keys():
            del self._pods[uid]
            self._builders = {folder: builder for folder, builder in self._builders.items() if builder != uid}
        for uid, body in bodies.items():
            if uid not in self._pods:
                self._num_ips += 1
                self._pods[uid] = _Pod(body, f"10.0.{self._num_ips // 250}.{self._num_ips % 250 + 1}", now)
            pod = self._pods[uid]
            pod.body = body
            with _may_be_gone():
                self._step(pod, now)

    def _step(self, pod: _Pod, now: float) -> None:
        metadata = pod.body["metadata"]
        if "deletionTimestamp" in metadata:
            pod.ends_at = pod.ends_at or now + _END_S
            if now >= pod.ends_at:
                options = {"gracePeriodSeconds": 0, "preconditions": {"uid": metadata["uid"]}}
                self.api.delete("Pod", metadata["name"], metadata["namespace"], options)
            return
        if pod.container < len(pod.init_containers):
            self._step_init_container(pod, now)
        elif pod.phase == "Pending":
            pod.phase = "Running"
        elif now - pod.since >= _START_S:
            if pod.body["spec"]["restartPolicy"] == "Never":
                pod.phase = "Succeeded" if self._is_answered(pod) else "Failed"
            else:
                pod.is_ready = self._has_workers(pod)
        status = _status(pod, now)
        if status != pod.sent:
            self.api.patch("Pod", metadata["name"], {"status": status}, metadata["namespace"], "status")
            pod.sent = status

    def _step_init_container(self, pod: _Pod, now: float) -> None:
        namespace, container = pod.body["metadata"]["namespace"], pod.init_containers[pod.container]
        if now < pod.retry_at:
            return
        if pod.retry_at:
            pod.retry_at, pod.since = 0.0, now
        folder = (namespace, kept_folder(container)) if container["name"] in ("build", "download") else None
        if folder is not None and not self.builds[folder]:
            uid = pod.body["metadata"]["uid"]
            if self._builders.setdefault(folder, uid) != uid:
                pod.since = now
            if now - pod.since < self.build_s:
                return
            del self._builders[folder]
            if self.num_failures[namespace]:
                self.num_failures[namespace] -= 1
                pod.restarts += 1
                pod.retry_at = now + pod.restarts
                return
            self.builds[folder] += 1
        elif now - pod.since < _START_S:
            return
        pod.container, pod.since, pod.restarts = pod.container + 1, now, 0

    def _is_answered(self, pod: _Pod) -> bool:
        """Whether the Service in a test's command has a ready pod."""
        host = next(urlsplit(word).hostname for word in pod.body["spec"]["containers"][0]["command"] if "://" in word)
        return bool(ready_addresses(self.api.list("EndpointSlice", pod.body["metadata"]["namespace"]), str(host)))

    def _has_workers(self, pod: _Pod) -> bool:
        """Whether all workers of a leader run; True for a pod without workers."""
        metadata = pod.body["metadata"]
        labels = metadata.get("labels", {})
        if labels.get(f"{LWS}/worker-index") != "0":
            return True
        wanted = {key: labels[key] for key in (f"{LWS}/name", f"{LWS}/group-index")}
        group = [
            each
            for each in self._pods.values()
            if each.phase == "Running"
            and each.body["metadata"]["namespace"] == metadata["namespace"]
            and wanted.items() <= each.body["metadata"]["labels"].items()
        ]
        return len(group) == int(metadata["annotations"][f"{LWS}/size"])


def kept_folder(build: dict[str, Any]) -> str:
    """Folder in the cache that a build writes, and in which it looks for its artifact."""
    return next(word for word in build["command"] if word.startswith("--kept="))


def ready_addresses(slices: list[KubernetesObject], service: str) -> set[str]:
    """Addresses of the ready pods behind a Service."""
    return {
        address
        for each in slices
        if each["metadata"]["labels"]["kubernetes.io/service-name"] == service
        for endpoint in each["endpoints"] or []
        if endpoint["conditions"]["ready"]
        for address in endpoint["addresses"]
    }


def _status(pod: _Pod, now: float) -> dict[str, Any]:
    """Status of a pod as a kubelet writes it."""
    init = [_container_status(pod, index, now) for index in range(len(pod.init_containers))]
    main = [_container_status(pod, len(init) + index, now) for index in range(len(pod.body["spec"]["containers"]))]
    is_initialized = pod.container >= len(init)
    conditions = {"Initialized": is_initialized, "ContainersReady": pod.is_ready, "Ready": pod.is_ready}
    before = {each["type"]: each for each in pod.body["status"].get("conditions") or []}
    for kind, is_true in conditions.items():
        status = "True" if is_true else "False"
        if before.get(kind, {}).get("status") != status:
            before[kind] = {"type": kind, "status": status, "lastTransitionTime": _now()}
    return {
        "phase": pod.phase,
        "podIP": pod.ip,
        "podIPs": [{"ip": pod.ip}],
        "conditions": list(before.values()),
        "initContainerStatuses": init,
        "containerStatuses": main,
    }


def _container_status(pod: _Pod, index: int, now: float) -> dict[str, Any]:
    init = pod.init_containers
    container = [*init, *pod.body["spec"]["containers"]][index]
    is_current = index == pod.container or (index >= len(init) and pod.container >= len(init))
    is_past = index < pod.container and index < len(init)
    restarts = pod.restarts if is_current else 0
    if is_past or (is_current and pod.phase in ("Succeeded", "Failed")):
        state: dict[str, Any] = {"terminated": {"exitCode": int(pod.phase == "Failed"), "reason": "Completed"}}
    elif not is_current or (pod.phase == "Pending" and index >= len(init)):
        state = {"waiting": {"reason": "PodInitializing"}}
    elif now < pod.retry_at:
        state = {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off restarting failed container"}}
    else:
        state = {"running": {}}
    failure = {"terminated": {"exitCode": 1, "reason": "Error"}} if restarts else {}
    return {
        "name": container["name"],
        "image": container["image"],
        "imageID": "",
        "ready": is_past or (index >= len(init) and pod.is_ready),
        "started": "running" in state,
        "restartCount": restarts,
        "state": state,
        "lastState": failure,
    }


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


@contextlib.contextmanager
def _may_be_gone() -> Any:
    try:
        yield
    except ApiError as exc:
        if exc.status not in _GONE:
            raise
