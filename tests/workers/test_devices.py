"""Where learners compute. The second half needs a GPU; on a machine that has one, plain pytest runs it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from table_play import GAMES, self_play
from taught_play import taught_self_play

from ludus.algorithms.actor_critic import Impala
from ludus.algorithms.algorithm import Reference
from ludus.algorithms.magnet import MagnetPolicyGradient
from ludus.algorithms.ppo import PPO
from ludus.cli.main import BAD_USAGE, main
from ludus.data.batch import Batch
from ludus.data.trees import Tree
from ludus.models import policy as devices
from ludus.models.network_policy import ActorCritic
from ludus.models.policy import NoSuchDeviceError, find_device
from ludus.workers.config import LearnerConfig
from ludus.workers.trained_player import TrainedPlayer
from ludus.workers.worker import IDLE

CONFIG = LearnerConfig(batch_size=64, minibatch_size=32, epochs=3, buffer_size=64, learning_rate=0.01, device="cpu")
MODEL = ActorCritic(hidden=(8,), entity_size=4, value_normalisation=True)
ALGORITHMS = {"ppo": PPO(), "impala": Impala(), "magnet": MagnetPolicyGradient(magnet=Reference(decay=0.9))}

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def played(game: str = "connect_four", model: ActorCritic = MODEL) -> dict[int, Batch]:
    play = self_play(GAMES[game], model=model).run(40)
    return {kind: play.joined(kind) for kind in range(len(play.pools))}


def new_player(
    device: str,
    algorithm: str = "ppo",
    game: str = "connect_four",
    model: ActorCritic = MODEL,
    config: LearnerConfig = CONFIG,
) -> TrainedPlayer:
    policies = self_play(GAMES[game], model=model).build(3)
    return TrainedPlayer("main", policies, ALGORITHMS[algorithm], replace(config, device=device), seed=5)


def close(one: Tree, other: Tree, tolerance: float = 1e-4) -> None:
    assert one.keys() == other.keys()
    for name, array in one.items():
        np.testing.assert_allclose(array, other[name], atol=tolerance, rtol=tolerance, err_msg=name)


@pytest.mark.parametrize("wrong", ["gpu", "cuda:", "cuda:x", "cpu:1", "Cuda", "", "mps"])
def test_names_of_devices_are_checked_without_looking_at_the_machine(wrong: str) -> None:
    with pytest.raises(ValueError, match="device must be auto, cpu, cuda or cuda:N, got"):
        LearnerConfig(device=wrong)
    LearnerConfig(device="cuda:63")


@pytest.mark.parametrize(
    ("count", "asked", "there"),
    [
        (0, "cuda", "cuda was asked for; this machine has no usable GPU: use learner.device=cpu or auto"),
        (0, "cuda:1", "cuda:1 was asked for; this machine has no usable GPU"),
        (1, "cuda:1", r"cuda:1 was asked for; this machine has 1 GPU \(cuda:0 to cuda:0\)"),
        (4, "cuda:9", r"cuda:9 was asked for; this machine has 4 GPUs \(cuda:0 to cuda:3\)"),
    ],
)
def test_a_gpu_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch, count: int, asked: str, there: str) -> None:
    monkeypatch.setattr(devices.torch.cuda, "is_available", lambda: count > 0)
    monkeypatch.setattr(devices.torch.cuda, "device_count", lambda: count)
    with pytest.raises(NoSuchDeviceError, match=there):
        find_device(asked)
    assert find_device("auto").type == ("cuda" if count else "cpu")
    assert find_device("cpu") == torch.device("cpu")


def test_auto_is_what_the_machine_has() -> None:
    found = new_player("auto").device
    assert found.type == ("cuda" if torch.cuda.is_available() else "cpu")


@pytest.mark.parametrize("setting", ["learner.device", "actor.inference_device"])
def test_a_run_that_asks_for_a_missing_gpu_is_refused_before_anything_is_written(
    setting: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = [f"{setting}=cuda:63", *(["actor.inference=worker"] if "actor" in setting else [])]
    with pytest.raises(SystemExit) as end:
        main(["train", "kuhn", "--run", str(tmp_path / "run"), *(f"--set={one}" for one in settings)])
    assert end.value.code == BAD_USAGE
    assert "cuda:63 was asked for; this machine has" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


# --- on a GPU ---


@needs_gpu
def test_everything_of_a_player_lives_on_its_device() -> None:
    player = new_player("cuda:0", "magnet")
    player.update(played(), 0.0)
    device = torch.device("cuda", 0)
    for policy in (*player.policies, *player._references["magnet"]):
        assert {tensor.device for tensor in policy.state_dict().values()} == {device}
    assert {tensor.device for tensor in player._averages[0]._average.values()} == {device}
    assert {tensor.device for tensor in player.optimiser.means} == {device}
    arrays, _ = player.save()
    for tree in (player.weights(), player.average_weights(), arrays):
        assert all(isinstance(array, np.ndarray) for array in tree.values())


@needs_gpu
@pytest.mark.parametrize("memory", [0, 4])
@pytest.mark.parametrize("game", ["connect_four", "siege", "hills"])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_gpu_learns_what_a_cpu_learns(
    algorithm: str, game: str, memory: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a few large steps: many small ones make differences in the last digit grow without bound."""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)  # else convolutions keep three digits
    model = replace(MODEL, memory=memory)
    config = replace(CONFIG, epochs=1, minibatch_size=10**6, learning_rate=1e-3)
    batches = played(game, model)
    players = [new_player(device, algorithm, game, model, config) for device in ("cpu", "cuda")]
    for _ in range(2):
        statistics = [player.update(batches, 0.1) for player in players]
    assert players[0].decisions == players[1].decisions > 0
    assert statistics[0].keys() == statistics[1].keys()
    close(players[0].weights(), players[1].weights())
    close(players[0].average_weights(), players[1].average_weights())
    for name, value in statistics[0].items():
        assert statistics[1][name] == pytest.approx(value, abs=1e-2, rel=1e-2), name


@needs_gpu
@pytest.mark.parametrize(("first", "second"), [("cpu", "cuda"), ("cuda", "cpu")])
def test_a_checkpoint_goes_on_on_another_device(first: str, second: str) -> None:
    batches = played()
    player, other = new_player(first, "magnet"), new_player(second, "magnet")
    player.update(batches, 0.1)
    other.load(*player.save())
    (arrays, facts), (other_arrays, other_facts) = player.save(), other.save()
    assert facts == other_facts
    assert all(np.array_equal(array, other_arrays[name]) for name, array in arrays.items())
    for one in (player, other):
        one.update(batches, 0.2)
    close(player.weights(), other.weights())


@needs_gpu
def test_on_a_gpu_too_a_loss_that_is_no_number_is_skipped() -> None:
    batches = played()
    player = new_player("cuda")
    player.update(batches, 0.0)
    before = player.weights()
    spoiled = {k: replace(b, reward=b.reward * np.float32(np.nan)) for k, b in batches.items()}
    skipped: dict[str, Any] = player.update(spoiled, 0.0)
    assert player.skipped > 0
    assert "policy_loss" not in skipped
    learned = {name: array for name, array in player.weights().items() if "value_scale" not in name}
    assert all(np.array_equal(before[name], array) for name, array in learned.items())


@needs_gpu
@pytest.mark.parametrize("schedule", ["sync", "async"])
def test_an_actor_on_the_host_and_a_learner_on_the_gpu(schedule: Any) -> None:
    config = LearnerConfig(
        batch_size=60, minibatch_size=20, buffer_size=200, device="cuda", schedule=schedule, max_lag=3, reuse=2
    )
    play = taught_self_play(GAMES["connect_four"], config=config)
    said = [progress for progress in play.train(100) if progress is not IDLE]
    assert len(said) > 5
    assert play.finite_weights()
    assert max(progress.statistics["main/max_lag"] for progress in said) <= config.lag
