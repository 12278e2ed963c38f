"""The services of a run: the same for every runtime, told to the workers, noted when lost."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from ludus.cli.main import main
from ludus.config import ConfigError, encode
from ludus.data.addresses import load_address
from ludus.experiment import Experiment
from ludus.league.rules import EvaluationConfig
from ludus.runtime.assemble import load_experiment
from ludus.runtime.rounds import FINISHED
from ludus.runtime.serial import serial_training
from ludus.runtime.services import fix_services, run_services
from ludus.services.endpoints import CallRefused
from ludus.services.remote_registry import RemoteRegistry
from ludus.services.resources import UserService
from ludus.store.run_control import WorkerStatus, read_status
from ludus.store.run_folder import RunFolder, read_metrics

EXAMPLE = Path(__file__).parents[2] / "examples" / "my_service.py"


def example(**changes: object) -> Experiment:
    experiment: Experiment = load_address(f"{EXAMPLE}:experiment")()
    return replace(experiment, **changes)  # type: ignore[arg-type]


def test_the_example_in_the_serial_runtime(tmp_path: Path) -> None:
    brief = EvaluationConfig(opponents=("advised",), episodes=16)
    experiment = example(budget=1_000, runtime="serial", evaluation=brief)
    folder = RunFolder.create(tmp_path / "run", encode(experiment), seed=0, command=())
    assert load_experiment(folder) == experiment
    with run_services(experiment, folder) as host:
        assert host is not None
        assert os.environ["LUDUS_SERVICES"] == f"file:{tmp_path / 'run' / 'services'}"
        with closing(serial_training(experiment, folder)) as training:
            assert training.run() == FINISHED
            payoff = training.league.payoffs.view("evaluation")
            assert any(payoff.games(one, "advised") for one in training.league.candidates.frozen())
    assert "LUDUS_SERVICES" not in os.environ
    logs = [(folder.logs / f"service-adviser-{number}.log").read_text() for number in range(2)]
    assert "learner: entropy" in "".join(logs)


def test_workers_on_other_machines_find_them_with_the_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the Ray runtime wants it: on TCP, here by loopback."""
    monkeypatch.delenv("LUDUS_SERVICES_TOKEN", raising=False)
    services = {"adviser": UserService(address=f"{EXAMPLE.parent / 'services' / 'adviser.py'}:Adviser")}
    experiment = example(services=services)
    folder = RunFolder.create(tmp_path / "run", encode(experiment), seed=0, command=())
    code = "from ludus import Solver; Solver('adviser').solve('note', 'elsewhere', 0.5)"
    with run_services(experiment, folder, host="127.0.0.1"):
        address, token = os.environ["LUDUS_SERVICES"], os.environ["LUDUS_SERVICES_TOKEN"]
        assert address.startswith("tcp:127.0.0.1:")
        assert len(token) == 64
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        registry = RemoteRegistry(address, token)
        (found,) = registry.find("adviser")
        assert found.address.startswith("tcp:127.0.0.1:")
        registry.close()
        registry = RemoteRegistry(address, "guess")
        with pytest.raises(CallRefused, match="a wrong token"):
            registry.find("adviser")
    assert "LUDUS_SERVICES_TOKEN" not in os.environ
    assert "elsewhere: entropy 0.500" in (folder.logs / "service-adviser-0.log").read_text()


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    wrong = example(services={"adviser": UserService(address="nowhere.py:Adviser")})
    with pytest.raises(ConfigError, match=r"services\.adviser: there is no file 'nowhere\.py'"):
        fix_services(wrong)
    with pytest.raises(ValueError, match="'a/b' cannot name a service"):
        example(services={"a/b": UserService(address="x.py:X")})


@pytest.mark.parametrize("runtime", ["serial", "local", "ray"])
def test_a_gpu_that_is_not_there_is_refused_before_there_is_a_run(
    runtime: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    if runtime == "ray":
        pytest.importorskip("ray")
    monkeypatch.setenv("PATH", "/nowhere")  # where there is no nvidia-smi, there is no GPU
    command = ["train", f"{EXAMPLE}:experiment", "--run", str(tmp_path / "run"), "--runtime", runtime, "--quiet"]
    with pytest.raises(SystemExit) as ended:
        main([*command, "--set", "services.adviser.resources={gpus: 1}"])
    assert ended.value.code == 2
    assert "error: services.adviser asks for 2 x 1 gpus, but this machine has none" in capsys.readouterr().err
    with pytest.raises(SystemExit) as ended:
        main([*command, "--set", "services.adviser.resources={cpu: 1}"])
    assert ended.value.code == 2
    assert "did you mean 'cpus'" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_a_service_that_does_not_start_ends_the_run_before_it_begins(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = ["--set", "services.adviser.options={wons: 1}", "--runtime", "serial", "--quiet"]
    with pytest.raises(SystemExit) as ended:
        main(["train", f"{EXAMPLE}:experiment", "--run", str(tmp_path / "run"), *settings])
    assert ended.value.code == 1
    said = capsys.readouterr().err
    assert "error: service 'adviser'" in said
    assert "wons" in said


@pytest.mark.slow
def test_the_local_runtime_trains_on_while_services_are_killed(tmp_path: Path) -> None:
    run = tmp_path / "run"
    program = [sys.executable, "-m", "ludus.cli.main", "train", f"{EXAMPLE}:experiment", "--run", str(run)]
    program += ["--set", "budget=1000000000", "--json", "--actors", "1"]
    killed = 0
    again: list[WorkerStatus] = []
    with subprocess.Popen(program, stdout=subprocess.PIPE, text=True) as training:
        assert training.stdout is not None
        until = time.monotonic() + 120
        for line in training.stdout:
            status = read_status(run / "status.json")
            services = [one for one in (status.workers if status else ()) if one.name.startswith("service-")]
            again = [one for one in services if one.restarts and one.address]
            if "decisions" in line and len(again) == killed < 2:  # the one before is back
                entry = run / "services" / "adviser" / f"adviser-{killed}.json"
                os.kill(json.loads(entry.read_text())["pid"], signal.SIGKILL)
                killed += 1
            elif len(again) == 2 or time.monotonic() > until:
                training.send_signal(signal.SIGINT)
                break
        training.communicate()
    assert training.returncode == 130
    faults, _ = read_metrics(run / "metrics" / "faults.jsonl")
    assert [fault["class"] for fault in faults] == ["service_lost"] * 2  # and no actor was lost with them
    assert not (run / "services").exists()
    for number, one in enumerate(again):
        assert (one.restarts, one.node) == (1, socket.gethostname())
        assert one.address == f"unix:{run}/services/adviser-{number}.sock"
    assert len(again) == 2


@pytest.mark.slow
@pytest.mark.parametrize("placed", [False, True])
def test_the_example_on_ray_and_its_evaluation(tmp_path: Path, placed: bool) -> None:
    """`placed`: by Ray, since it says what it needs."""
    pytest.importorskip("ray")
    run = tmp_path / "run"
    ludus = [sys.executable, "-m", "ludus.cli.main"]
    settings = ["--set", "budget=1000", "--runtime", "ray", "--actors", "1", "--quiet"]
    if placed:
        settings += ["--set", "services.adviser.resources={cpus: 0.25, custom: {large: 1}}"]
    subprocess.run([*ludus, "train", f"{EXAMPLE}:experiment", "--run", str(run), *settings], check=True)
    logs = [(run / "logs" / f"service-adviser-{number}.log").read_text() for number in range(2)]
    assert "learner: entropy" in "".join(logs)
    assert not (run / "metrics" / "faults.jsonl").read_text()
    command = [*ludus, "eval", str(run), "main", "advised", "--episodes", "16", "--json"]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    assert json.loads(done.stdout)["players"] == ["main", "advised"]


def test_without_services_nothing_is_started(tmp_path: Path) -> None:
    experiment = example(services={})
    folder = RunFolder.create(tmp_path / "run", encode(experiment), seed=0, command=())
    with run_services(fix_services(experiment), folder) as host:
        assert host is None
    assert not (tmp_path / "run" / "services").exists()
