"""The Pod Security Standard `restricted`."""

from __future__ import annotations

from tests.helm.chart import PodTemplate


def violations(pod: PodTemplate) -> list[str]:
    """Return what the Pod Security Standard `restricted` has against a pod.

    Source: Kubernetes' documentation of the Pod Security Standards.
    """
    found = []
    for volume in pod.spec.get("volumes", []):
        kind = next(key for key in volume if key != "name")
        allowed = (
            "configMap",
            "csi",
            "downwardAPI",
            "emptyDir",
            "ephemeral",
            "persistentVolumeClaim",
            "projected",
            "secret",
        )
        found += [f"volume {kind}"] if kind not in allowed else []
    for setting in ("hostNetwork", "hostPID", "hostIPC"):
        found += [setting] if pod.spec.get(setting) else []
    of_pod = pod.spec.get("securityContext", {})
    for container in pod.containers:
        context = of_pod | container.get("securityContext", {})
        capabilities = context.get("capabilities", {})
        added = set(capabilities.get("add", [])) - {"NET_BIND_SERVICE"}
        found += [f"capability {name}" for name in sorted(added)]
        found += [] if capabilities.get("drop") == ["ALL"] else ["capabilities are kept"]
        found += [] if context.get("allowPrivilegeEscalation") is False else ["privilege escalation"]
        found += [] if context.get("runAsNonRoot") is True and context.get("runAsUser") != 0 else ["root"]
        found += ["privileged"] if context.get("privileged") else []
        found += [] if context.get("seccompProfile", {}).get("type") == "RuntimeDefault" else ["seccomp"]
        found += [f"host port {port}" for port in container.get("ports", []) if "hostPort" in port]
    return found
