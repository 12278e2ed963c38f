from __future__ import annotations

import json
import os
import shlex
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml
from kuberay_schema import whole_schema, written_schema

from ludus.launch.kubernetes import KubernetesJob, Manifest, as_yaml
from ludus.launch.ray_node import TrainingCommand

LATEST = kubernetes_validate.latest_version()
CRDS = os.environ.get("LUDUS_KUBERAY_CRDS")


def job(**changes: Any) -> KubernetesJob:
    training = TrainingCommand(experiment="kuhn", run="/runs/kuhn", settings=("budget=1e6",))
    settings: dict[str, Any] = {"name": "kuhn", "training": training, "ray_version": "2.60.0"}
    return KubernetesJob(**(settings | changes))


JOBS = {
    "job": job(storage="100Gi", storage_class="nfs", namespace="league"),
    "cluster": job(kind="cluster"),
    "without a GPU": job(gpus=0, actor_nodes=0),
}


def read_back(asked: KubernetesJob) -> list[Manifest]:
    """As kubectl would read it."""
    return list(yaml.safe_load_all(as_yaml(asked.manifests())))


def ray_object(manifests: list[Manifest]) -> Manifest:
    [found] = [one for one in manifests if one["apiVersion"] == "ray.io/v1"]
    return found


def cluster_of(found: Manifest) -> Manifest:
    spec: Manifest = found["spec"]
    return spec.get("rayClusterSpec", spec)


def check(manifests: list[Manifest]) -> None:
    """Strictly: a field that does not exist is an error."""
    for one in manifests:
        if one["apiVersion"] != "ray.io/v1":
            kubernetes_validate.validate(one, LATEST, strict=True)
            continue
        jsonschema.validate(one, written_schema(one["kind"]), cls=jsonschema.Draft202012Validator)
        cluster = cluster_of(one)
        for group in (cluster["headGroupSpec"], *cluster.get("workerGroupSpecs", [])):
            pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, **group["template"]}
            kubernetes_validate.validate(pod, LATEST, strict=True)


@pytest.mark.parametrize("name", JOBS)
def test_manifests_are_valid(name: str) -> None:
    check(read_back(JOBS[name]))


@pytest.mark.parametrize("place", ["core", "ray", "group", "pod"])
def test_a_misspelt_field_would_be_found(place: str) -> None:
    manifests = read_back(JOBS["job"])
    cluster = cluster_of(ray_object(manifests))
    group = cluster["workerGroupSpecs"][0]
    where = {
        "core": manifests[0]["spec"],
        "ray": cluster,
        "group": group,
        "pod": group["template"]["spec"]["containers"][0],
    }[place]
    where["comand"] = "x"
    with pytest.raises((jsonschema.ValidationError, kubernetes_validate.ValidationError)):
        check(manifests)


@pytest.mark.skipif(CRDS is None, reason="LUDUS_KUBERAY_CRDS names no folder with KubeRay's definitions")
@pytest.mark.parametrize("name", JOBS)
def test_manifests_fit_the_definitions_of_the_operator(name: str) -> None:
    assert CRDS is not None
    found = ray_object(read_back(JOBS[name]))
    schema = whole_schema(Path(CRDS), found["kind"])
    jsonschema.validate(found, schema, cls=jsonschema.Draft202012Validator)
    cluster_of(found)["headGroupSpec"]["template"]["spec"]["containers"][0]["comand"] = "x"
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(found, schema, cls=jsonschema.Draft202012Validator)


@pytest.mark.skipif(CRDS is None, reason="LUDUS_KUBERAY_CRDS names no folder with KubeRay's definitions")
@pytest.mark.parametrize("kind", ["RayJob", "RayCluster"])
def test_our_schema_allows_no_more_than_that_of_the_operator(kind: str) -> None:
    assert CRDS is not None
    check_part_of(written_schema(kind)["properties"]["spec"], whole_schema(Path(CRDS), kind)["properties"]["spec"])


def check_part_of(ours: dict[str, Any], theirs: dict[str, Any]) -> None:
    assert ours.get("type", "string") == theirs["type"]
    assert set(ours.get("enum", [])) <= set(theirs.get("enum", []))
    if not ours.get("properties") and "items" not in ours:
        return  # a plain value, texts by name, or a pod, which has a schema of its own
    assert set(theirs.get("required", [])) <= set(ours.get("required", []))
    for name, schema in ours.get("properties", {}).items():
        check_part_of(schema, theirs["properties"][name])
    if "items" in ours:
        check_part_of(ours["items"], theirs["items"])


def test_actors_and_learner_have_nodes_of_their_own() -> None:
    cluster = cluster_of(ray_object(read_back(job(actor_nodes=3, actors_per_node=16, gpus=2))))
    learner, actors = cluster["workerGroupSpecs"]
    offered = [json.loads(shlex.split(one["rayStartParams"]["resources"])[0]) for one in (learner, actors)]
    assert offered == [{"ludus_learner": 1}, {"ludus_actor": 16}]
    assert (learner["replicas"], actors["replicas"]) == (1, 3)
    limits = [one["template"]["spec"]["containers"][0]["resources"]["limits"] for one in (learner, actors)]
    assert limits[0]["nvidia.com/gpu"] == "2"
    assert "nvidia.com/gpu" not in limits[1]
    assert limits[1]["cpu"] == "16"
    assert cluster["headGroupSpec"]["rayStartParams"]["num-cpus"] == "0"


def test_the_cluster_asks_for_a_token() -> None:
    for asked in JOBS.values():
        cluster = cluster_of(ray_object(read_back(asked)))
        assert cluster["authOptions"] == {"mode": "token"}
        assert tuple(map(int, cluster["rayVersion"].split("."))) >= (2, 52, 0)


def test_a_job_goes_on_with_its_run() -> None:
    spec = ray_object(read_back(JOBS["job"]))["spec"]
    assert shlex.split(spec["entrypoint"]) == [
        *("ludus", "train", "kuhn", "--run", "/runs/kuhn", "--resume-or-start"),
        *("--runtime", "ray", "--address", "auto", "--set", "budget=1e6"),
    ]
    assert spec["backoffLimit"] > 0


def test_the_experiment_of_a_user_travels_with_the_job(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("def experiment(): ...\n")
    (tmp_path / "mine.yaml").write_text("recipe: mine.py:experiment\nbudget: 5\n")
    for address, files in (("mine.py:experiment", {"mine.py"}), ("mine.yaml", {"mine.yaml", "mine.py"})):
        training = TrainingCommand(experiment=str(tmp_path / address), run="/runs/mine")
        manifests = read_back(job(training=training))
        check(manifests)
        [texts] = [one["data"] for one in manifests if one["kind"] == "ConfigMap"]
        assert texts == {name: (tmp_path / name).read_text() for name in files}
        assert f"/experiment/{address}" in ray_object(manifests)["spec"]["entrypoint"]
        head = cluster_of(ray_object(manifests))["headGroupSpec"]["template"]["spec"]
        assert {"name": "experiment", "mountPath": "/experiment"} in head["containers"][0]["volumeMounts"]


def test_a_file_that_is_too_large_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("#" * 1_000_000)
    training = TrainingCommand(experiment=f"{tmp_path / 'mine.py'}:experiment", run="/runs/mine")
    with pytest.raises(ValueError, match=r"1000000 bytes.*put it into the image"):
        job(training=training).manifests()
