"""What the chart must do on a control plane. Each function is a scenario: it returns what it has checked."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

from tests.helm.cases import CASES, with_gpu_model
from tests.helm.chart import RELEASE, KubernetesObject, Values, pods_of, render
from tests.helm.pod_security import violations
from tests.workshop.control_plane.api import RESOURCES, Api, ApiError, wait_for
from tests.workshop.control_plane.kubelets import LWS, RACK, Kubelets, kept_folder, ready_addresses
from tests.workshop.control_plane.releases import Helm

PRODUCT = "NVIDIA-H100-80GB-HBM3"  # of the profile h100
MODEL = "llama"
FULL = {"parallelism": {"tensor": 8}, "gpus": {"perNode": 8, "profile": "h100"}}
REPLACE = {"maxSurge": 0, "maxUnavailable": 1}
PENDING_S = 5.0  # for this time a pod that fits no node is watched
RESTRICTED = "pod-security.kubernetes.io/enforce"
# What a namespace has without a release; the last one is made by the controllers of OpenShift.
OWN = {("ServiceAccount", "default"), ("ConfigMap", "kube-root-ca.crt"), ("ConfigMap", "openshift-service-ca.crt")}
KEYS = {("Secret", f"{RELEASE}-{name}") for name in ("api-keys", "triton-key")}  # which outlive a release


@dataclass
class Release:
    """A release in a namespace of its own, and the GPU nodes that are there for it."""

    api: Api
    kubelets: Kubelets
    helm: Helm
    namespace: str
    nodes: list[str] = field(default_factory=list)

    def add_nodes(self, number: int) -> list[str]:
        """Add nodes with 8 GPUs each."""
        for _ in range(number):
            self.nodes.append(f"{self.namespace}-{len(self.nodes)}")
            self.kubelets.add_node(self.nodes[-1], gpus=8, product=PRODUCT)
        return self.nodes

    def install(self, values: Values, *, waits: bool = True) -> None:
        self.helm.install(self.namespace, values, waits=waits)

    def upgrade(self, values: Values) -> None:
        self.helm.upgrade(self.namespace, values, waits=False)

    def pods(self, model: str = MODEL) -> list[KubernetesObject]:
        """Pods of a model that are not terminating."""
        found = self.api.list("Pod", self.namespace, f"conch/model={model}")
        return [each for each in found if "deletionTimestamp" not in each["metadata"]]

    def ready(self, model: str = MODEL) -> list[str]:
        """Names of the model's ready pods, without the workers of groups."""
        found = [each for each in self.pods(model) if each["metadata"]["labels"].get(f"{LWS}/worker-index", "0") == "0"]
        return sorted(each["metadata"]["name"] for each in found if _condition(each, "Ready"))

    def wait_for_new(self, old: list[str], model: str = MODEL) -> list[str]:
        """Wait until ready pods have replaced the old ones, and return their names."""

        def is_replaced() -> list[str]:
            names = {each["metadata"]["name"] for each in self.pods(model)}
            ready = self.ready(model)
            return ready if len(ready) == len(old) and not names & set(old) else []

        return wait_for(is_replaced, f"{', '.join(old)} replaced by ready pods")

    def folder(self) -> str:
        """Folder of the artifact, by the newest pod."""
        newest = max(self.pods(), key=lambda pod: str(pod["metadata"]["creationTimestamp"]))
        [build] = [each for each in newest["spec"]["initContainers"] if each["name"] in ("build", "download")]
        return kept_folder(build)

    def num_builds(self) -> int:
        """Builds that have ended well."""
        return sum(number for (namespace, _), number in self.kubelets.builds.items() if namespace == self.namespace)

    def now(self) -> str:
        """Resource version from which `fewest_ready` and `deleted` read."""
        return self.api.version("Pod", self.namespace)

    def fewest_ready(self, since: str, model: str = MODEL) -> int:
        """Smallest number of ready addresses behind a model since a resource version, from every change."""
        service = f"{RELEASE}-{model}-pods"
        events = [
            each
            for _, each in self.api.history("EndpointSlice", self.namespace, since)
            if each["metadata"]["labels"]["kubernetes.io/service-name"] == service
        ]
        current = self.api.list("EndpointSlice", self.namespace)
        return min(len(ready_addresses(slices, service)) for slices in [current, *([each] for each in events)])

    def deleted(self, since: str, model: str = MODEL) -> list[str]:
        """Names of the model's pods that were deleted or began to terminate since a resource version."""
        return sorted(
            {
                each["metadata"]["name"]
                for what, each in self.api.history("Pod", self.namespace, since)
                if each["metadata"]["labels"].get("conch/model") == model
                and (what == "DELETED" or "deletionTimestamp" in each["metadata"])
            }
        )

    def left(self) -> set[tuple[str, str]]:
        """Kind and name of the objects in the namespace, without those of every namespace."""
        kinds = set(RESOURCES) - {"EndpointSlice", "Lease"}
        found = set()
        for kind in kinds:
            try:
                found |= {(kind, each["metadata"]["name"]) for each in self.api.list(kind, self.namespace)}
            except ApiError as exc:
                if exc.status not in (HTTPStatus.NOT_FOUND, HTTPStatus.METHOD_NOT_ALLOWED):
                    raise
        return found - OWN

    def evict(self, pod: str) -> None:
        """Evict a pod as `kubectl drain` does.

        Raises:
            ApiError: a PodDisruptionBudget forbids it.
        """
        body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod}}
        self.api.request("POST", self.api.path("Pod", pod, self.namespace) + "/eviction", body)

    def cordon(self, node: str, is_cordoned: bool = True) -> None:
        self.api.patch("Node", node, {"spec": {"unschedulable": is_cordoned}})


@contextmanager
def release(api: Api, kubelets: Kubelets, helm: Helm, namespace: str) -> Iterator[Release]:
    """Make a namespace with Pod Security `restricted`, and remove everything at the end."""
    api.create({"kind": "Namespace", "metadata": {"name": namespace, "labels": {RESTRICTED: "restricted"}}})
    wait_for(lambda: api.get("ServiceAccount", "default", namespace), "the namespace has its service account")
    found = Release(api, kubelets, helm, namespace)
    try:
        yield found
    finally:
        kubelets.lost.clear()
        api.delete("Namespace", namespace)
        with suppress(AssertionError):  # the result of the scenario counts more
            wait_for(lambda: api.get("Namespace", namespace) is None, "")
        for node in found.nodes:
            kubelets.remove_node(node)


def default_install(it: Release) -> str:
    """Install, test and uninstall the default values."""
    it.install({})
    kinds = {kind for kind, _ in it.left()}
    for each in it.api.list("Deployment", it.namespace):
        name, status = each["metadata"]["name"], each["status"]
        assert status.get("readyReplicas") == each["spec"]["replicas"], f"--wait returned before {name} was ready"
    slices = it.api.list("EndpointSlice", it.namespace)
    for each in it.api.list("Service", it.namespace):
        assert ready_addresses(slices, each["metadata"]["name"]), f"{each['metadata']['name']} selects no ready pod"
    it.helm.test(it.namespace)
    it.helm.uninstall(it.namespace)
    _wait_until_nothing_but(it, set())
    return f"{len(kinds)} kinds of objects admitted, --wait ready, every Service has endpoints, test, nothing left"


def full_node(it: Release) -> str:
    """A model takes all GPUs of the only node: its pod builds there, and then serves."""
    it.add_nodes(1)
    it.install(with_gpu_model(**FULL))
    assert len(it.ready()) == 1, "--wait returned before the model was ready"
    assert it.num_builds() == 1, f"{it.num_builds()} builds"
    it.helm.uninstall(it.namespace)
    _wait_until_nothing_but(it, _claims(with_gpu_model(**FULL)))
    it.install(with_gpu_model(**FULL))
    assert it.num_builds() == 1, "a new release built again what the kept cache has"
    return "built in the pod with the 8 GPUs, ready, the cache's claim kept, the next release built nothing"


def harmless_changes(it: Release) -> str:
    """Changes that need no new engine neither build nor interrupt."""
    first, second = it.add_nodes(2)
    values = with_gpu_model(**FULL) | {"huggingface": {"existingSecret": "token"}}
    it.api.create({"kind": "Secret", "metadata": {"name": "token"}, "stringData": {"token": "t"}}, it.namespace)
    it.install(values)
    old, folder, since = it.ready(), it.folder(), it.now()
    values["models"][0]["serving"] = {"maxSequences": 8}
    it.upgrade(values)
    new = it.wait_for_new(old)
    _assert_served(it, since)
    assert it.folder() == folder, "a setting of the repository changed the folder of the artifact"
    assert it.num_builds() == 1, "a setting of the repository built the engine again"
    for node in (first, second):
        it.cordon(node)  # the running pod stays, and there is no free GPU any more
    values["models"][0]["aliases"] = ["gpt-4o"]
    labels = {"commonLabels": {"a": "b"}, "commonAnnotations": {"a": "b"}}
    for change in ({"frontend": {"replicas": 2}}, labels, {"huggingface": {"existingSecret": "other"}}):
        values |= change
        since = it.now()
        it.upgrade(values)
        time.sleep(PENDING_S)
        assert it.deleted(since).count(new[0]) == 0, f"{change} evicted the pod of the model"
        _assert_served(it, since)
        assert it.folder() == folder, f"{change} changed the folder of the artifact"
    frontends = it.api.list("Pod", it.namespace, "app.kubernetes.io/component=frontend")
    assert len(frontends) == 2, f"{len(frontends)} frontends"
    return (
        "repository: new pod beside the old one, same folder, no build; alias, labels, replicas, Secret: no pod evicted"
    )


def other_engine(it: Release) -> str:
    """A change that needs another engine: beside the old pod if there are GPUs; otherwise as the strategy says."""
    nodes = it.add_nodes(2)
    values = with_gpu_model(**FULL)
    it.install(values)
    old, since = it.ready(), it.now()
    new = _with_new_engine(it, values, old)
    _assert_served(it, since)
    assert it.num_builds() == 2, f"{it.num_builds()} builds"
    for node in nodes:
        it.cordon(node, node != _node_of(it, new[0]))
    since = it.now()
    _set_revision(values, "v3")
    it.upgrade(values)
    time.sleep(PENDING_S)
    waiting = [each["status"]["phase"] for each in it.pods() if each["metadata"]["name"] not in new]
    assert waiting == ["Pending"], f"new pods are {waiting}"
    assert it.ready() == new, "the old pod does not serve any more"
    _assert_served(it, since)
    values["models"][0]["strategy"] = REPLACE
    since = it.now()
    it.upgrade(values)
    it.wait_for_new(new)
    assert it.fewest_ready(since) == 0, "with one node and maxSurge 0 there must be an interruption"
    assert it.num_builds() == 3, f"{it.num_builds()} builds"
    return "free GPUs: old pod ready until the new one was; no GPUs: new pod Pending, old serves; maxSurge 0: replaced"


def failed_build(it: Release) -> str:
    """A build that fails twice is tried again by the cluster, in the same pod."""
    it.add_nodes(1)
    it.kubelets.num_failures[it.namespace] = 2
    it.install(with_gpu_model(**FULL), waits=False)
    [pod] = wait_for(it.pods, "the pod exists")
    seen = wait_for(lambda: _waiting_reasons(it, "build"), "the build is in back-off")
    assert seen == ["CrashLoopBackOff"], f"the build waits for {seen}"
    ready = wait_for(it.ready, "the pod is ready")
    assert ready == [pod["metadata"]["name"]], "another pod was made"
    assert it.kubelets.num_failures[it.namespace] == 0
    return "failed twice, CrashLoopBackOff, then the same pod was ready"


def rollback(it: Release) -> str:
    """A rollback finds the artifact of the former release."""
    it.add_nodes(2)
    values = with_gpu_model(**FULL)
    it.install(values)
    old, folder = it.ready(), it.folder()
    new = _with_new_engine(it, values, old)
    assert it.folder() != folder, "another revision has the same folder"
    since = it.now()
    it.helm.rollback(it.namespace, 1)
    it.wait_for_new(new)
    _assert_served(it, since)
    assert it.folder() == folder, "the rollback has another folder"
    assert it.num_builds() == 2, f"{it.num_builds()} builds: the rollback built again"
    return "old pod ready until the new one was, the first folder again, no third build"


def disruptions(it: Release) -> str:
    """Two replicas: evictions one by one, a drain, and the loss of a node."""
    it.add_nodes(3)
    it.install(with_gpu_model(**FULL, replicas=2))
    first, second = it.ready()
    since = it.now()
    drained = _node_of(it, first)
    it.cordon(drained)
    it.evict(first)
    try:
        it.evict(second)
        raise AssertionError("a second eviction was allowed before the first pod was replaced")
    except ApiError as exc:
        assert exc.status == HTTPStatus.TOO_MANY_REQUESTS, str(exc)
    wait_for(lambda: len(it.ready()) == 2, "two pods are ready after the drain")
    assert all(_node_of(it, name) != drained for name in it.ready()), "a pod is still on the drained node"
    _assert_served(it, since)
    it.cordon(drained, is_cordoned=False)
    lost = _node_of(it, second)
    it.kubelets.lost.add(lost)
    wait_for(lambda: second not in it.ready(), "the pod of the lost node is not ready any more")
    wait_for(lambda: len(it.ready()) == 2, "a new pod is ready on another node", 90)
    assert all(_node_of(it, name) != lost for name in it.ready()), "a ready pod is on the lost node"
    _assert_served(it, since)
    return "second eviction refused (429), drained node left, lost node's pod replaced, never without a ready pod"


def two_nodes(it: Release) -> str:
    """The example of 405B: a group of two pods with 8 GPUs each, and its rolling update with all GPUs taken."""
    it.add_nodes(2)
    _create_key(it)
    values = copy.deepcopy(CASES["llama3-1-405b-h100"])
    name = values["models"][0]["name"]
    it.api.create({"kind": "Secret", "metadata": {"name": "huggingface"}}, it.namespace)
    it.install(values)
    waited = "--wait waited" if it.ready(name) else "--wait did not wait"
    wait_for(lambda: it.ready(name), "the group is ready")
    assert len({each["spec"]["nodeName"] for each in it.pods(name)}) == 2, "the pods of the group share a node"
    assert it.num_builds() == 1, f"{it.num_builds()} builds"
    it.helm.test(it.namespace)
    before = {each["metadata"]["uid"] for each in it.pods(name)}
    values["models"][0]["serving"] = {"maxSequences": 8}
    it.upgrade(values)

    def is_replaced() -> bool:
        uids = {each["metadata"]["uid"] for each in it.pods(name)}
        return len(uids) == 2 and not uids & before and bool(it.ready(name))

    wait_for(is_replaced, "the group was replaced")
    assert it.num_builds() == 1, "a setting of the repository built the engine again"
    it.helm.uninstall(it.namespace)
    _wait_until_nothing_but(it, _claims(values) | {("Secret", "ranks"), ("Secret", "huggingface")})
    return f"a pod on each node, {waited}, leader built, test, rolled with all GPUs taken, no new build, nothing left"


def two_groups(it: Release) -> str:
    """Two groups of two pods on two nodes of one rack, with exclusive placement: one group must serve.

    Without it each group may get one node, and then neither serves.
    """
    it.add_nodes(2)
    _create_key(it)
    it.install(_over_two_nodes(replicas=2, annotations={f"{LWS}/exclusive-topology": RACK}), waits=False)
    wait_for(lambda: len([each for each in it.pods() if "nodeName" in each["spec"]]) == 2, "both nodes are taken")
    try:
        wait_for(it.ready, "one group is ready", 15)
    except AssertionError:
        bound = sorted(each["metadata"]["name"] for each in it.pods() if "nodeName" in each["spec"])
        waiting = sorted(each["metadata"]["name"] for each in it.pods() if "nodeName" not in each["spec"])
        raise AssertionError(f"deadlock: {bound} have the GPUs, and wait for {waiting}, which are Pending") from None
    return "one group serves, the other waits"


def one_node_to_two(it: Release) -> str:
    """A model becomes a LeaderWorkerSet and a Deployment again."""
    it.add_nodes(2)
    _create_key(it)
    small, large = with_gpu_model(**FULL), _over_two_nodes()
    it.install(small)
    it.upgrade(large)
    wait_for(lambda: len(it.pods()) == 2 and it.ready(), "the group is ready")
    assert not it.api.get("Deployment", f"{RELEASE}-{MODEL}", it.namespace), "the Deployment is left"
    it.helm.rollback(it.namespace, 1)
    wait_for(lambda: len(it.pods()) == 1 and it.ready(), "the Deployment is ready again")
    assert not it.api.list("LeaderWorkerSet", it.namespace), "the LeaderWorkerSet is left"
    assert it.num_builds() == 2, f"{it.num_builds()} builds"
    return "Deployment -> LeaderWorkerSet -> rollback to the Deployment: ready each time, nothing left, no third build"


def admission(api: Api, namespace: str) -> str:
    """Dry run of every object, and of every pod under Pod Security `restricted`, of all examples and test cases."""
    api.create({"kind": "Namespace", "metadata": {"name": namespace, "labels": {RESTRICTED: "restricted"}}})
    wait_for(lambda: api.get("ServiceAccount", "default", namespace), "the namespace has its service account")
    num_objects, num_pods, num_outside, skipped, errors = 0, 0, 0, list[str](), list[str]()
    query = {"dryRun": "All", "fieldValidation": "Strict"}
    for name, values in CASES.items():
        for each in render(values).objects:
            what = f"{name}: {each['kind']} {each['metadata']['name']}"
            try:
                if each["kind"] != "Pod":  # a pod follows below
                    api.create(each, namespace, **query)
                    num_objects += 1
            except ApiError as exc:
                if exc.status == HTTPStatus.NOT_FOUND:
                    skipped.append(each["kind"])
                else:
                    errors.append(f"{what}: {exc}")
            for pod in pods_of(each):
                num_pods += 1
                # Objects that the values name, and that a user creates before the installation.
                spec = {key: value for key, value in pod.spec.items() if key != "priorityClassName"}
                spec |= {"serviceAccountName": "default"}
                body = {"kind": "Pod", "metadata": {"name": "pod", "labels": pod.labels}, "spec": spec}
                is_outside = bool(violations(pod))
                num_outside += is_outside
                try:
                    api.create(body, namespace, **query)
                    refusal = ""
                except ApiError as exc:
                    refusal = str(exc)
                if is_outside is not ("violates PodSecurity" in refusal) or (refusal and not is_outside):
                    errors.append(f"{what}: pod of {pod.owner}: {refusal or 'was admitted'}")
    api.delete("Namespace", namespace)
    assert not errors, f"{len(errors)} refused; first: {errors[0]}"
    skips = f"; {len(skipped)} skipped, without a CRD: {', '.join(sorted(set(skipped)))}" if skipped else ""
    return (
        f"{len(CASES)} value files: {num_objects} objects and {num_pods} pods admitted, except the {num_outside} pods "
        f"with hostPath or IPC_LOCK{skips}"
    )


ALL: dict[str, Callable[[Release], str]] = {
    "default install": default_install,
    "full node": full_node,
    "harmless changes": harmless_changes,
    "other engine": other_engine,
    "failed build": failed_build,
    "rollback": rollback,
    "disruptions": disruptions,
}
NEEDS_LWS: dict[str, Callable[[Release], str]] = {
    "two nodes": two_nodes,
    "two groups": two_groups,
    "one node to two": one_node_to_two,
}


def _over_two_nodes(**settings: Any) -> Values:
    model = with_gpu_model(**{**FULL, "parallelism": {"tensor": 8, "pipeline": 2}}, **settings)
    return model | {"multinode": {"sshKeySecret": "ranks"}}


def _create_key(it: Release) -> None:
    body = {"kind": "Secret", "metadata": {"name": "ranks"}, "type": "kubernetes.io/ssh-auth"}
    it.api.create(body | {"stringData": {"ssh-privatekey": "played"}}, it.namespace)


def _claims(values: Values) -> set[tuple[str, str]]:
    """Claims that a release keeps."""
    return {
        ("PersistentVolumeClaim", each["metadata"]["name"]) for each in render(values).of_kind("PersistentVolumeClaim")
    }


def _set_revision(values: Values, revision: str) -> None:
    values["models"][0]["source"] = {"huggingface": {"repo": "meta-llama/Llama-3.1-8B-Instruct", "revision": revision}}


def _with_new_engine(it: Release, values: Values, old: list[str]) -> list[str]:
    """Change the source, so that another engine is needed, and return the ready pods that replace the old ones."""
    _set_revision(values, "v2")
    it.upgrade(values)
    return it.wait_for_new(old)


def _assert_served(it: Release, since: str) -> None:
    fewest = it.fewest_ready(since)
    assert fewest >= 1, "the model was without a ready pod"


def _node_of(it: Release, pod: str) -> str:
    [found] = [each["spec"]["nodeName"] for each in it.pods() if each["metadata"]["name"] == pod]
    return str(found)


def _waiting_reasons(it: Release, container: str) -> list[str]:
    statuses = [
        each
        for pod in it.pods()
        for each in pod["status"].get("initContainerStatuses", [])
        if each["name"] == container and each["restartCount"]
    ]
    return [each["state"]["waiting"]["reason"] for each in statuses if "waiting" in each["state"]]


def _wait_until_nothing_but(it: Release, others: set[tuple[str, str]]) -> None:
    expected = KEYS | others
    try:
        wait_for(lambda: it.left() == expected, "")
    except AssertionError:
        raise AssertionError(f"left after uninstall: {sorted(it.left() - expected)}") from None


def _condition(each: KubernetesObject, kind: str) -> bool:
    return any(one["type"] == kind and one["status"] == "True" for one in each["status"].get("conditions", []))
