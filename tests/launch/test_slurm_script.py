"""The script itself, with stand-ins for Slurm's programs; a real Slurm runs it in test_slurm_jobs.py."""

from __future__ import annotations

import os
import signal
import socket
import stat
import subprocess
import time
from pathlib import Path

import pytest

from ludus.launch.ray_node import TrainingCommand, job_name
from ludus.launch.slurm import HEAD_SILENT_S, SlurmJob


def job(tmp_path: Path, **changes: object) -> SlurmJob:
    training = TrainingCommand(experiment="kuhn", run=str(tmp_path / "run 1"), settings=("budget=1e6", "name='a b'"))
    settings = {"name": "kuhn", "training": training, "folder": str(tmp_path), "programs": str(tmp_path / "bin")}
    return SlurmJob(**(settings | changes))  # type: ignore[arg-type]


def directives(script: str) -> list[str]:
    return [line.removeprefix("#SBATCH ") for line in script.splitlines() if line.startswith("#SBATCH")]


@pytest.mark.parametrize("runtime", ["local", "ray"])
def test_the_script_is_shell(tmp_path: Path, runtime: str) -> None:
    script = job(tmp_path, runtime=runtime, nodes=3, setup=("module() { :; }", "module load cuda")).script()
    done = subprocess.run(["bash", "-n"], input=script, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_what_slurm_is_asked_for(tmp_path: Path) -> None:
    asked = job(
        tmp_path, nodes=4, gpus_per_node=2, time="1-00:00:00", partition="long", directives=("--mem=64G",)
    ).script()
    expected = {"--nodes=4", "--gpus-per-node=2", "--time=1-00:00:00", "--partition=long", "--mem=64G"}
    expected |= {"--requeue", "--exclusive", "--signal=B:USR1@120", "--ntasks-per-node=1"}
    assert expected <= set(directives(asked))


def test_what_is_not_asked_for_is_left_out(tmp_path: Path) -> None:
    options = {option.partition("=")[0] for option in directives(job(tmp_path).script())}
    assert not options & {"--gpus-per-node", "--time", "--partition", "--account"}


def test_without_a_number_of_actors_the_cores_of_all_nodes_decide(tmp_path: Path) -> None:
    script = job(tmp_path, runtime="ray", nodes=2).script()
    assert "node '{}' '{}'" in script
    assert "ludus_" not in script


def test_names_are_fit_for_schedulers() -> None:
    assert [job_name(text) for text in ("tic_tac_toe", "My Run!", "---", "x" * 80)] == [
        "tic-tac-toe",
        "my-run",
        "ludus",
        "x" * 50,
    ]


STEP = r"""#!/bin/bash
printf '%s\n' "$@" > "$HOME/srun.txt"
echo x >> "$HOME/steps.txt"
[ -e "$HOME/no ray" ] && exit 0
[ -n "$mark" ] && touch "$mark.began"
trap '' USR1 TERM
until [ -e "$HOME/stopped" ]; do sleep 0.05; done
exit 130
"""


def start(tmp_path: Path, asked: SlurmJob) -> subprocess.Popen[str]:
    """The script, with stand-ins that write down how they are called; `ludus stop` ends the step with 130."""
    stand_ins = {
        "srun": STEP,
        "ludus": '#!/bin/bash\necho "$@" >> "$HOME/ludus.txt"; touch "$HOME/stopped"\n',
        "scontrol": '#!/bin/bash\n[ "$1" = show ] && echo localhost || echo "$@" >> "$HOME/scontrol.txt"\n',
    }
    (tmp_path / "bin").mkdir()
    for name, text in stand_ins.items():
        file = tmp_path / "bin" / name
        file.write_text(text)
        file.chmod(0o755)
    environment = {
        "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}",
        "HOME": str(tmp_path),
        "SLURM_JOB_ID": "17",
        "SLURM_JOB_NODELIST": "n[1-2]",
    }
    process = subprocess.Popen(["bash", "-c", asked.script()], env=environment, text=True)
    until = time.monotonic() + 20
    while not (tmp_path / "srun.txt").exists():
        assert process.poll() is None
        assert time.monotonic() < until
        time.sleep(0.02)
    return process


@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGTERM])
def test_a_warning_saves_the_run_and_only_the_time_limit_queues_up_again(
    tmp_path: Path, number: signal.Signals
) -> None:
    process = start(tmp_path, job(tmp_path))
    process.send_signal(number)
    assert process.wait(20) == 130
    assert (tmp_path / "ludus.txt").read_text() == f"stop {tmp_path}/run 1\n"
    requeued = tmp_path / "scontrol.txt"
    assert requeued.exists() == (number == signal.SIGUSR1)
    if requeued.exists():
        assert requeued.read_text() == "requeue 17\n"


def test_the_step_trains_and_goes_on(tmp_path: Path) -> None:
    process = start(tmp_path, job(tmp_path, actors_per_node=3))
    (tmp_path / "stopped").touch()
    assert process.wait(20) == 130
    words = (tmp_path / "srun.txt").read_text().splitlines()
    assert words == [
        *("--cpu-bind=none", "ludus", "train", "kuhn", "--run", f"{tmp_path}/run 1", "--resume-or-start"),
        *("--runtime", "local", "--set", "actors=3", "--set", "budget=1e6", "--set", "name='a b'"),
    ]


def test_a_job_whose_ray_does_not_start_tries_again_and_then_fails(tmp_path: Path) -> None:
    (tmp_path / "no ray").touch()  # symmetric-run ends with 0 then
    process = start(tmp_path, job(tmp_path, runtime="ray"))
    assert process.wait(20) == 1
    assert (tmp_path / "steps.txt").read_text() == "x\n" * 3
    assert not list(tmp_path.glob("*.job-*"))


def test_a_cluster_has_a_token_that_others_cannot_read(tmp_path: Path) -> None:
    process = start(tmp_path, job(tmp_path, runtime="ray", nodes=2, actors_per_node=8))
    (tmp_path / "stopped").touch()
    assert process.wait(20) == 130
    token = tmp_path / "run 1.token"
    assert stat.S_IMODE(token.stat().st_mode) == 0o600
    first = token.read_text()
    assert len(first) == 64
    words = (tmp_path / "srun.txt").read_text().splitlines()
    assert '{"ludus_actor": 8, "ludus_learner": 1}' in words
    assert '{"ludus_actor": 8}' in words
    again = subprocess.run(["bash", "-c", job(tmp_path, runtime="ray").script()], env={
        "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}", "HOME": str(tmp_path),
        "SLURM_JOB_ID": "17", "SLURM_JOB_NODELIST": "n1"})  # fmt: skip
    assert again.returncode == 130
    assert token.read_text() == first


OTHER_NODE = """#!/bin/bash
touch "$mark.began"
export address="$HEAD" SLURM_NODEID=1
exec "${@:2}"
"""


@pytest.mark.parametrize("told", [False, True])
def test_other_nodes_stay_with_a_head_that_answers_and_leave_without_being_told(tmp_path: Path, told: bool) -> None:
    """`told`: the head says that all is over; else it is silent from some moment on."""
    script = job(tmp_path, runtime="ray", nodes=2).script()
    patience = f"-ge {HEAD_SILENT_S} "
    assert patience in script
    stand_ins = {
        "srun": OTHER_NODE,
        "ray": '#!/bin/bash\necho "$@" >> "$HOME/ray.txt"\n',
        "scontrol": "#!/bin/bash\necho localhost\n",
    }
    (tmp_path / "bin").mkdir()
    for name, text in stand_ins.items():
        (tmp_path / "bin" / name).write_text(text)
        (tmp_path / "bin" / name).chmod(0o755)
    over = tmp_path / "run 1.job-17-0-1.over"
    with socket.create_server(("127.0.0.1", 0)) as head:
        head.settimeout(20)
        environment = {
            "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}",
            "HOME": str(tmp_path),
            "SLURM_JOB_ID": "17",
            "SLURM_JOB_NODELIST": "n[1-2]",
            "HEAD": f"127.0.0.1:{head.getsockname()[1]}",
        }
        shorter = ["bash", "-c", script.replace(patience, "-ge 1 ")]
        process = subprocess.Popen(shorter, env=environment, text=True, stderr=subprocess.PIPE)
        try:
            for _ in range(2):  # two seconds apart, which is longer than its patience
                head.accept()[0].close()
            assert process.poll() is None
            if told:
                over.touch()
            head.close()
            _, said = process.communicate(timeout=20)
        except BaseException:
            over.touch()  # nobody stays behind
            process.communicate()
            raise
    assert process.returncode == 0
    assert ("leaves: no answer from 127.0.0.1:" in said) == (not told)
    asked = (tmp_path / "ray.txt").read_text().splitlines()
    assert asked[-1] == "stop --force"
    assert "symmetric-run" in asked[1]
