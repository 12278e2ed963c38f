"""JSON schemas of KubeRay's objects. The definitions that the operator installs are megabytes of other
people's text, so what lies here is the part that we write, by hand after those of KubeRay 1.6.2 and 1.7.0,
with everything else refused. Pods are left to the schema of Kubernetes itself.

LUDUS_KUBERAY_CRDS=FOLDER, a folder with the operator's `ray.io_rayjobs.yaml` and `ray.io_rayclusters.yaml`,
checks against the whole ones.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

Schema = dict[str, Any]


def _strict(required: list[str], **properties: Schema) -> Schema:
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


TEXT: Schema = {"type": "string"}
FLAG: Schema = {"type": "boolean"}
WHOLE: Schema = {"type": "integer", "minimum": 0, "maximum": 2**31 - 1}
TEXTS: Schema = {"type": "object", "additionalProperties": TEXT}
POD: Schema = {"type": "object"}

CLUSTER = _strict(
    ["headGroupSpec"],
    rayVersion=TEXT,
    authOptions=_strict([], mode={"enum": ["disabled", "token"]}),
    headGroupSpec=_strict(["template"], rayStartParams=TEXTS, template=POD),
    workerGroupSpecs={
        "type": "array",
        "items": _strict(
            ["groupName", "maxReplicas", "minReplicas", "template"],
            groupName=TEXT,
            replicas=WHOLE,
            minReplicas=WHOLE,
            maxReplicas=WHOLE,
            rayStartParams=TEXTS,
            template=POD,
        ),
    },
)
JOB = _strict(
    [],
    entrypoint=TEXT,
    backoffLimit=WHOLE,
    shutdownAfterJobFinishes=FLAG,
    ttlSecondsAfterFinished=WHOLE,
    rayClusterSpec=CLUSTER,
)


def written_schema(kind: str) -> Schema:
    """Of a RayJob or RayCluster, as we write them."""
    return _strict(
        ["apiVersion", "kind", "metadata", "spec"],
        apiVersion={"const": "ray.io/v1"},
        kind={"const": kind},
        metadata=_strict(["name"], name={"type": "string", "maxLength": 63}, namespace=TEXT, labels=TEXTS),
        spec=JOB if kind == "RayJob" else CLUSTER,
    )


def whole_schema(folder: Path, kind: str) -> Schema:
    """The operator's own definition of version v1, as strict as a server with strict field validation."""
    definition = yaml.load((folder / f"ray.io_{kind.lower()}s.yaml").read_text(), yaml.CSafeLoader)
    [version] = [one for one in definition["spec"]["versions"] if one["name"] == "v1"]
    schema: Schema = _closed(version["schema"]["openAPIV3Schema"])
    schema["properties"]["metadata"] = {"type": "object"}  # every object's, which the server knows
    return schema


def _closed(node: Any) -> Any:
    """Fields that are not named are refused; a number or text is what Kubernetes calls int-or-string."""
    if isinstance(node, list):
        return [_closed(one) for one in node]
    if not isinstance(node, dict):
        return node
    if node.get("x-kubernetes-int-or-string"):
        return {"type": ["integer", "string"]}
    closed = {key: _closed(value) for key, value in node.items()}
    if isinstance(node.get("properties"), dict) and node.get("type") == "object":
        keeps = node.get("x-kubernetes-preserve-unknown-fields", False)
        closed.setdefault("additionalProperties", bool(keeps))
    return closed
