"""Strict validation of rendered objects: Kubernetes' own by its schemas, others by those in crds/."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import kubernetes_validate.utils

from tests.helm.chart import KubernetesObject, Rendered

KUBERNETES_VERSIONS = tuple(f"1.{minor}" for minor in range(29, 38))
# It reads its megabytes of schemas for each object otherwise.
kubernetes_validate.utils.schema_contents = functools.cache(kubernetes_validate.utils.schema_contents)

CRDS = Path(__file__).parent / "crds"


def errors(rendered: Rendered, kubernetes_version: str) -> list[str]:
    """Return one line for each object that a cluster of this version would refuse or prune."""
    return [found for each in rendered.objects if (found := error_of(each, kubernetes_version))]


def error_of(each: KubernetesObject, kubernetes_version: str) -> str:
    """Return why a cluster of this version would refuse or prune an object; empty: it would not."""
    try:
        if (crd := CRDS / f"{each['kind']}.json").is_file():
            jsonschema.validate(each, json.loads(crd.read_text(encoding="utf-8")))
            for template in _pod_templates(each):
                kubernetes_validate.validate(template, kubernetes_version, strict=True)
        else:
            kubernetes_validate.validate(each, kubernetes_version, strict=True)
    except jsonschema.ValidationError as exc:
        where = "/".join(map(str, exc.absolute_path))
        return f"{each['kind']} {each['metadata']['name']}: {where}: {exc.message}"
    return ""


def _pod_templates(each: KubernetesObject) -> list[dict[str, Any]]:
    """Return the pods inside an object whose own schema does not look into them."""
    template = each["spec"].get("leaderWorkerTemplate", {})
    return [
        {"apiVersion": "v1", "kind": "Pod", **template[name]}
        for name in ("leaderTemplate", "workerTemplate")
        if name in template
    ]
