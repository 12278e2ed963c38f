from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from command_line import TINY, Ludus


def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, text: str) -> Path:
    """A program of the name that writes its words down."""
    folder = tmp_path / "programs"
    folder.mkdir()
    (folder / name).write_text(f'#!/bin/sh\necho "$@" > {folder}/words\n{text}\n')
    (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    return folder / "words"


def test_a_dry_run_prints_and_writes_nothing(ludus: Ludus, tmp_path: Path) -> None:
    (tmp_path / "hosts.yaml").write_text("head: a\nhosts: [{address: b}]")
    for words, begins in (
        (("slurm", "kuhn", "--nodes", "2"), "#!/bin/bash\n#SBATCH"),
        (("kubernetes", "kuhn"), "apiVersion: ray.io/v1"),
        (("hosts", "hosts.yaml", "kuhn"), "/"),
    ):
        code, output, errors = ludus("launch", *words, "--dry-run")
        assert (code, errors) == (0, "")
        assert output.startswith(begins)
    assert [file.name for file in tmp_path.iterdir()] == ["hosts.yaml"]


def test_one_node_needs_no_ray(ludus: Ludus) -> None:
    scripts = {
        words: ludus("launch", "slurm", "kuhn", "--dry-run", *words)[1]
        for words in ((), ("--nodes", "2"), ("--runtime", "ray"))
    }
    assert [("symmetric-run" in script) for script in scripts.values()] == [False, True, True]
    code, _, errors = ludus("launch", "slurm", "kuhn", "--nodes", "2", "--runtime", "local")
    assert code == 2
    assert "--runtime local is one node, not 2" in errors


def test_the_script_is_written_and_sent(ludus: Ludus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code, output, _ = ludus("launch", "slurm", "kuhn", "--run", "shared/first")
    script = tmp_path / "shared" / "first.sbatch"
    assert code == 0
    assert f"sbatch {script}" in output
    assert f"--output={tmp_path}/shared/first.slurm-%j.log" in script.read_text()
    words = stand_in(tmp_path, monkeypatch, "sbatch", "echo '1234;cluster'")
    code, output, _ = ludus("launch", "slurm", "kuhn", "--run", "shared/first", "--submit")
    assert (code, output) == (0, "1234\n")
    assert words.read_text() == f"--parsable {script}\n"


def test_manifests_are_written_and_sent(ludus: Ludus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = stand_in(tmp_path, monkeypatch, "kubectl", "echo rayjob.ray.io/duel created")
    code, output, _ = ludus("launch", "kubernetes", "kuhn", "--name", "Duel", "--submit", "--storage", "1Gi")
    assert (code, output) == (0, "rayjob.ray.io/duel created\n")
    assert words.read_text() == "apply -f duel.yaml\n"
    kinds = [one["kind"] for one in yaml.safe_load_all((tmp_path / "duel.yaml").read_text())]
    assert kinds == ["PersistentVolumeClaim", "RayJob"]


def test_a_refusal_of_the_scheduler_is_passed_on(ludus: Ludus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(tmp_path, monkeypatch, "sbatch", "echo 'invalid partition' >&2; exit 1")
    code, _, errors = ludus("launch", "slurm", "kuhn", "--submit")
    assert code == 1
    assert "sbatch refuses: invalid partition" in errors
    monkeypatch.setenv("PATH", str(tmp_path))
    code, _, errors = ludus("launch", "slurm", "kuhn", "--submit")
    assert code == 2
    assert "'sbatch' is not on this machine" in errors


@pytest.mark.parametrize("launcher", ["slurm", "kubernetes"])
def test_what_could_not_train_is_refused_before_it_waits(ludus: Ludus, launcher: str) -> None:
    code, _, errors = ludus("launch", launcher, "kunh", "--dry-run")
    assert code == 2
    assert "did you mean 'kuhn'?" in errors
    code, _, errors = ludus("launch", launcher, "kuhn", "--set", "bugdet=5", "--dry-run")
    assert code == 2
    assert "did you mean 'budget'?" in errors


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("somewhere:port",), "'somewhere:port' is not HOST or HOST:PORT"),
        (("somewhere:70000",), "is not HOST or HOST:PORT"),
        (("127.0.0.1",), "no token: a cluster rejects nodes without it"),
        (("127.0.0.1", "--token-file", "nowhere"), "token file nowhere: No such file"),
        (("127.0.0.1", "--token-file", "token", "--workers", "0"), "--workers 0 is for --role learner"),
    ],
)
def test_what_cannot_join_is_told_why(
    ludus: Ludus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], message: str
) -> None:
    for name in ("LUDUS_TOKEN", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "token").touch(0o600)
    (tmp_path / "token").write_text(32 * "0")
    code, _, errors = ludus("join", *words)
    assert code == 2
    assert message in errors


def test_trials_have_folders_of_their_own(ludus: Ludus, tmp_path: Path) -> None:
    (tmp_path / "hosts.yaml").write_text("head: a\nhosts: [{address: b}]")
    for words, folder in (
        (("slurm", "kuhn"), f"{tmp_path}/runs/kuhn-a"),
        (("kubernetes", "kuhn"), "/runs/kuhn-a"),
        (("hosts", "hosts.yaml", "kuhn"), f"{tmp_path}/runs/kuhn-a"),
    ):
        code, output, _ = ludus("launch", *words, "--trial", "a", "--dry-run")
        assert code == 0
        assert f"--run {folder} --resume-or-start" in output
        assert "--trial a" in output
        code, _, errors = ludus("launch", *words, "--trial", "a/b", "--dry-run")
        assert (code, "trial must be letters" in errors) == (2, True)


def test_a_job_for_a_run_with_other_settings_is_refused(ludus: Ludus) -> None:
    assert ludus("train", "rps", "--run", "runs/mine", *TINY, "--quiet")[0] == 0
    job = ("launch", "slurm", "rps", "--run", "runs/mine", "--dry-run", *TINY)
    code, _, errors = ludus(*job)
    assert (code, "runs/mine is a run already: the job resumes it" in errors) == (0, True)
    code, _, errors = ludus(*job, "--set", "seed=4")
    assert (code, "seed: 0 in the run, 4 asked for" in errors) == (2, True)
