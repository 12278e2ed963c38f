"""`ludus study --address`: the nodes of a cluster train the runs of a study, also after it was killed."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path

import pytest
from command_line import LUDUS, SMALL
from processes import descendants, is_gone, wait_until
from ray_runs import needs_ray

import ludus
from ludus.observe.study_results import StudyResults
from ludus.runtime.ray.loopback import LoopbackCluster

pytestmark = [pytest.mark.slow, needs_ray]
QUICK = {name: value for name, value in SMALL.items() if name != "runtime"} | {"budget": 20_000, "model.hidden": "16"}


def written(folder: Path, **more: object) -> str:
    study = {"experiment": "kuhn", "seeds": 3, "settings": QUICK, "objective": "nash_conv", **more}
    (folder / "study.yaml").write_text(json.dumps(study))  # which is YAML
    return "study.yaml"


def test_a_study_on_nodes_ends_with_the_table_of_one_here(tmp_path: Path) -> None:
    file = written(tmp_path)
    with LoopbackCluster(1, 1) as nodes:

        def start() -> subprocess.Popen[bytes]:
            command = [*LUDUS, "study", file, "--into", "there", "--address", nodes.address]
            with (tmp_path / "log").open("ab") as log:
                return subprocess.Popen(command, cwd=tmp_path, env=nodes.environment, stdout=log, stderr=log)

        def training() -> list[int]:
            lines = {pid: Path(f"/proc/{pid}/cmdline") for pid in descendants(nodes.pid)}
            return [pid for pid, line in lines.items() if line.exists() and b"--resume-or-start" in line.read_bytes()]

        broken = start()
        wait_until(lambda: len(training()) == 2, "a run on each node", 120)
        children = training()
        broken.kill()
        broken.wait()
        wait_until(lambda: all(map(is_gone, children)), "the runs to end with the study", 60)

        stopped = start()
        wait_until(lambda: len([*(tmp_path / "there/results").glob("*.json")]) >= 1, "a result", 300)
        stopped.send_signal(signal.SIGTERM)
        assert stopped.wait(120) == 130
        assert start().wait(300) == 0, (tmp_path / "log").read_text()
    logs = "".join(log.read_text() for log in (tmp_path / "there/logs").glob("*.log"))
    assert all(f"/{node[:6]}" in logs for node in nodes.ids)
    here = ludus.Study.load(tmp_path / file).run(tmp_path / "here", quiet=True)
    there = StudyResults(tmp_path / "there")
    assert there.is_complete
    assert there.to_dict()["settings"] == here.to_dict()["settings"]


def test_what_nodes_cannot_run_is_named(tmp_path: Path) -> None:
    with LoopbackCluster(1) as nodes:

        def told(**more: object) -> tuple[int, str]:
            command = [*LUDUS, "study", written(tmp_path, **more), "--into", "s", "--address", nodes.address]
            done = subprocess.run(command, cwd=tmp_path, env=nodes.environment, capture_output=True, text=True)
            return done.returncode, done.stderr + done.stdout

        assert told(runtime="local")[0] == 2
        assert "settings: {actors: N} says it" in told(runtime="local")[1]
        assert (
            "a run needs 3 cores, and no node of the cluster has that; at most 1"
            in told(runtime="local", settings={**QUICK, "actors": 2})[1]
        )
        nodes.add(2)  # the only node with room for an actor and a learner
        written(tmp_path, runtime="local", settings={**QUICK, "actors": 1, "budget": 10**9}, seeds=1)
        command = [*LUDUS, "study", "study.yaml", "--into", "lost", "--address", nodes.address]
        with (tmp_path / "log").open("wb") as log:
            study = subprocess.Popen(command, cwd=tmp_path, env=nodes.environment, stdout=log, stderr=log)
        logged = tmp_path / "lost/logs/as_it_is-seed0.log"
        wait_until(lambda: logged.exists() and "on node" in logged.read_text(), "a run on a node", 120)
        assert f"/{nodes.ids[1][:6]}" in logged.read_text()
        nodes.kill(1)
        assert study.wait(200) == 1
        assert "lost with its node" in (tmp_path / "log").read_text()
