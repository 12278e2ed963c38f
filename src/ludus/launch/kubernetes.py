"""Manifests for KubeRay: a head with the controller, a group of nodes for actors, one node for the learner, and a
volume that all of them mount. The operator makes and distributes Ray's token."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from ludus.config import load_yaml
from ludus.launch.ray_node import TrainingCommand, node_resources

Manifest = dict[str, Any]

RUNS, OWN_CODE = "/runs", "/experiment"
"""Mount points of the volume of the runs and of the user's own files."""
OWN_CODE_BYTES = 900_000
"""The limit of Kubernetes for a ConfigMap, less some overhead."""
USER = 1000
"""The user of the images in deploy/, which is not root."""
LEARNER_CPUS = 4
RETRIES = 5
"""New clusters for a job whose head has died; each goes on with the run."""
KEPT_S = 600
"""Seconds that a finished cluster is kept for inspection."""


@dataclass(frozen=True, kw_only=True)
class KubernetesJob:
    """One training on a Kubernetes cluster with the KubeRay operator, 1.6 or newer."""

    name: str
    training: TrainingCommand
    ray_version: str
    kind: str = "job"
    """job: a RayJob that trains. cluster: a RayCluster to train on by hand."""
    namespace: str | None = None
    image: str = "ludus:cpu"
    learner_image: str = "ludus:gpu"
    actor_nodes: int = 2
    actors_per_node: int = 8
    gpus: int = 1
    memory: str = "16Gi"
    claim: str = "ludus-runs"
    storage: str | None = None
    """Size of the claim, if it is to be made; None: it is there."""
    storage_class: str | None = None

    def manifests(self) -> list[Manifest]:
        found = [self._claim()] if self.storage is not None else []
        own = self._own_files()
        if own:
            found.append(self._object("v1", "ConfigMap", f"{self.name}-experiment") | {"data": own})
        cluster = self._cluster(bool(own))
        if self.kind == "cluster":
            return [*found, self._object("ray.io/v1", "RayCluster", self.name) | {"spec": cluster}]
        job = {
            "entrypoint": shlex.join(self._training(bool(own)).words(runtime="ray", address="auto")),
            "backoffLimit": RETRIES,
            "shutdownAfterJobFinishes": True,
            "ttlSecondsAfterFinished": KEPT_S,
            "rayClusterSpec": cluster,
        }
        return [*found, self._object("ray.io/v1", "RayJob", self.name) | {"spec": job}]

    def _object(self, version: str, kind: str, name: str) -> Manifest:
        labels = {"app.kubernetes.io/name": "ludus", "app.kubernetes.io/instance": self.name}
        metadata: Manifest = {"name": name, "labels": labels}
        if self.namespace is not None:
            metadata["namespace"] = self.namespace
        return {"apiVersion": version, "kind": kind, "metadata": metadata}

    def _claim(self) -> Manifest:
        spec: Manifest = {
            "accessModes": ["ReadWriteMany"],  # head and learner both write
            "resources": {"requests": {"storage": self.storage}},
        }
        if self.storage_class is not None:
            spec["storageClassName"] = self.storage_class
        return self._object("v1", "PersistentVolumeClaim", self.claim) | {"spec": spec}

    # --- the user's own files ---

    def _training(self, has_own: bool) -> TrainingCommand:
        file = self.training.file
        if not has_own or file is None:
            return self.training
        _, colon, name = self.training.experiment.rpartition(":")
        return replace(self.training, experiment=f"{OWN_CODE}/{file.name}{colon}{name if colon else ''}")

    def _own_files(self) -> dict[str, str]:
        """Name -> text of the experiment's file, and of the one that a YAML file builds on."""
        file = self.training.file
        if file is None:
            return {}
        files = [file]
        if file.suffix != ".py":
            path, colon, _ = load_yaml(file)[0].rpartition(":")
            files += [Path(path)] if colon and path.endswith(".py") else []
        if any(one.parent.resolve() != file.parent.resolve() for one in files):
            raise ValueError(f"{file} builds on {files[-1]}; put both into one folder, or into the image")
        texts = {one.name: one.read_text(encoding="utf-8") for one in files}
        size = sum(len(text.encode()) for text in texts.values())
        if size > OWN_CODE_BYTES:
            raise ValueError(f"{file}: {size} bytes, and a ConfigMap holds {OWN_CODE_BYTES}; put it into the image")
        return texts

    # --- the cluster ---

    def _cluster(self, has_own: bool) -> Manifest:
        learner = self._group("learner", self.learner_image, nodes=1, actors=0, gpus=self.gpus)
        actors = self._group("actors", self.image, nodes=self.actor_nodes, actors=self.actors_per_node)
        return {
            "rayVersion": self.ray_version,
            "authOptions": {"mode": "token"},
            # The controller is all that the head does: work of others would slow every match down.
            "headGroupSpec": {
                "rayStartParams": {"num-cpus": "0"},
                "template": self._pod("ray-head", self.image, cpus=2, own=has_own),
            },
            "workerGroupSpecs": [learner, actors] if self.actor_nodes else [learner],
        }

    def _group(self, name: str, image: str, *, nodes: int, actors: int, gpus: int = 0) -> Manifest:
        offered = node_resources(actors, learner=not actors)
        return {
            "groupName": name,
            "replicas": nodes,
            "minReplicas": nodes,
            "maxReplicas": nodes,
            # In quotes: the operator puts it on the command line of a shell.
            "rayStartParams": {"resources": shlex.quote(json.dumps(offered))},
            "template": self._pod("ray-worker", image, cpus=actors or LEARNER_CPUS, gpus=gpus),
        }

    def _pod(self, name: str, image: str, *, cpus: int, gpus: int = 0, own: bool = False) -> Manifest:
        amounts = {"cpu": str(cpus), "memory": self.memory}
        if gpus:
            amounts["nvidia.com/gpu"] = str(gpus)
        mounts = [{"name": "runs", "mountPath": RUNS}, {"name": "shared-memory", "mountPath": "/dev/shm"}]
        volumes: list[Manifest] = [
            {"name": "runs", "persistentVolumeClaim": {"claimName": self.claim}},
            # Slots, weights and Ray's objects lie in shared memory; the default of 64 MB holds none of them.
            {"name": "shared-memory", "emptyDir": {"medium": "Memory", "sizeLimit": self.memory}},
        ]
        if own:
            mounts.append({"name": "experiment", "mountPath": OWN_CODE})
            volumes.append({"name": "experiment", "configMap": {"name": f"{self.name}-experiment"}})
        container = {
            "name": name,
            "image": image,
            "resources": {"requests": dict(amounts), "limits": dict(amounts)},
            "volumeMounts": mounts,
        }
        security = {"runAsUser": USER, "runAsGroup": USER, "fsGroup": USER, "runAsNonRoot": True}
        return {"spec": {"containers": [container], "securityContext": security, "volumes": volumes}}


def as_yaml(manifests: Sequence[Manifest]) -> str:
    return yaml.safe_dump_all(manifests, sort_keys=False, width=1000)
