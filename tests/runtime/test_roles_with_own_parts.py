"""Roles with their own model, algorithm and learner: a small exploiter beside a large main player with a memory."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from edited_runs import Asker, tiny, train
from whole_runs import Outcome, StopAt, assert_same, open_training, run_until, run_whole

import ludus
from ludus.algorithms.actor_critic import Impala
from ludus.algorithms.ppo import PPO
from ludus.algorithms.teacher import Teacher
from ludus.config import ConfigError, decode, encode
from ludus.data.records import AddPlayer, ChangeSettings, ModelId, ResetPlayer
from ludus.experiment import Experiment
from ludus.league.matchmaking import PFSP, SelfPlay
from ludus.league.promotion import BySteps
from ludus.league.rules import LeagueRules, Role
from ludus.models.network_policy import ActorCritic
from ludus.models.policy import joint_memory, memory_columns
from ludus.runtime.launcher import LocalLauncher
from ludus.runtime.networks import Networks
from ludus.runtime.processes import local_training
from ludus.runtime.start import find_initial_models
from ludus.store import run_control
from ludus.store.run_folder import RunFolder
from ludus.workers.config import LearnerConfig
from ludus.workers.messages import HostedPlayer

LARGE = ActorCritic(hidden=(24,), memory=12)
SMALL = ActorCritic(hidden=(6,), memory=4)
LEARNER = LearnerConfig(batch_size=200, minibatch_size=200, epochs=1, buffer_size=1_000)


def league(**exploiter: Any) -> Experiment:
    own: dict[str, Any] = {
        "model": SMALL,
        "algorithm": PPO(clip=0.3),
        "learner": replace(LEARNER, batch_size=100, minibatch_size=50, epochs=2, learning_rate=1e-3),
    }
    roles = {
        "main": Role(matchmaking=SelfPlay(), promotion=BySteps(every=600)),
        "exploiter": Role(matchmaking=PFSP(), promotion=BySteps(every=400), reset_probability=1.0, **(own | exploiter)),
    }
    rules = LeagueRules(roles=roles, bots=("random",))
    return tiny(model=LARGE, algorithm=Impala(), learner=LEARNER, league=rules, budget=2_400)


def sizes(folder: RunFolder, model: str) -> int:
    return sum(array.size for array in folder.models.fetch(ModelId.parse(model)).values())


def test_each_player_trains_with_what_its_role_has(tmp_path: Path) -> None:
    described = league()
    assert decode(encode(described)) == described
    with closing(open_training(tmp_path, described)) as training:
        training.run()
    main, exploiter = training.learner.players["main"], training.learner.players["exploiter"]
    assert isinstance(main.algorithm, Impala)
    assert isinstance(exploiter.algorithm, PPO)
    assert main.policies[0].state_arrays.keys() == exploiter.policies[0].state_arrays.keys()
    assert main.policies[0].state_arrays != exploiter.policies[0].state_arrays
    assert (main.decisions // main.step, exploiter.decisions // exploiter.step) == pytest.approx((200, 100), rel=0.3)
    assert (main.config.epochs, exploiter.config.epochs) == (1, 2)
    assert exploiter.incarnation > 0, "it was reset, to fresh weights of its own network"
    frozen = [training.league.players[name] for name in training.league.candidates.frozen()]
    found = {one.parent: sizes(training.folder, one.model or "") for one in frozen}
    assert found["exploiter"] < found["main"], "snapshots keep the network of their player"


def test_a_run_goes_on_exactly_and_its_players_are_found(tmp_path: Path) -> None:
    whole = run_whole(tmp_path / "whole", league())
    run_until(tmp_path / "stopped", league(), StopAt(60, after=True))
    with closing(open_training(tmp_path / "stopped", league())) as training:
        training.run()
    assert_same(whole, Outcome.of(training))
    run = ludus.Run(tmp_path / "whole")
    results = run.evaluate("exploiter.1", "main.1", games=16)
    assert sum(row["episodes"] for row in results.rows) >= 16
    for player in ("main", "exploiter", "exploiter.1", "exploiter@latest"):
        agent = ludus.load_agent(tmp_path / "whole", player)
        shown = agent.spec.kinds[0].observation.arrays
        assert agent.act({name: np.zeros(one.shape, one.dtype) for name, one in shown.items()}) in (0, 1)
    gain = run.exploit("exploiter.1", method="train", budget=400, seeds=1, games=16)
    assert gain.trained is not None
    assert gain.trained.budget == 400


def test_players_in_processes_of_their_own(tmp_path: Path) -> None:
    """Actors ask the policy worker, whose rows are shared by both networks."""
    described = league()
    described = replace(described, runtime="local", actor=replace(described.actor, inference="worker"))
    folder = RunFolder.create(tmp_path / "run", encode(described), seed=0, command=())
    with folder.lock(), closing(local_training(described, folder, 1)) as training:
        training.run()
        reports = training.learner.reports
        frozen = [training.league.players[name] for name in training.league.candidates.frozen()]
        found = {one.parent: sizes(folder, one.model or "") for one in frozen}
    assert found["exploiter"] < found["main"]
    more = replace(described, budget=2_800)
    with folder.lock(), closing(local_training(more, folder.with_experiment(encode(more)), 1)) as again:
        assert {player: report.decisions for player, report in again.learner.reports.items()} == {
            player: report.decisions for player, report in reports.items()
        }
        again.run()
        assert again.learner.decisions >= 2_800
        assert again.restarts == 0


@pytest.mark.parametrize(
    ("own", "named"),
    [
        ({"learner": replace(LEARNER, schedule="async")}, r"exploiter.learner.schedule is 'async', .* whole run"),
        ({"learner": replace(LEARNER, device="cpu")}, r"exploiter.learner.device is 'cpu', .* is 'auto'"),
        ({"learner": replace(LEARNER, ranks=2)}, r"exploiter.learner.ranks is 2"),
        ({"learner": PPO()}, r"league.roles.exploiter.learner must be a LearnerConfig or None, got PPO"),
        ({"model": PPO()}, r"league.roles.exploiter.model must be a ModelConfig or None"),
        ({"algorithm": SMALL}, r"league.roles.exploiter.algorithm must be a Algorithm or None"),
        ({"model": ActorCritic(central_critic=True)}, r"league.roles.exploiter: central_critic: kind"),
        (
            {"learner": replace(LEARNER, recompute=("teacher",)), "algorithm": PPO()},
            r"league.roles.exploiter: learner.recompute: PPO as it is set has no use for recomputed teacher",
        ),
    ],
)
def test_what_cannot_be_a_roles_own_is_named(own: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        league(**own)


def test_a_role_follows_the_run_in_what_belongs_to_it() -> None:
    described = replace(league(), learner=replace(LEARNER, schedule="async", device="cpu", placement="per_player"))
    own = described.of_role("exploiter").learner
    assert (own.schedule, own.device, own.placement, own.batch_size) == ("async", "cpu", "per_player", 100)


def test_a_start_of_another_network_is_named(tmp_path: Path) -> None:
    run_whole(tmp_path, league())
    taught = league(start=f"{tmp_path}#main", algorithm=PPO(teacher=Teacher(weight=0.1)))
    with pytest.raises(ConfigError, match=r"(?s)league.roles.exploiter.start: main:.* does not fit the networks here"):
        find_initial_models(taught, None)
    fitting = league(start=f"{tmp_path}#exploiter", algorithm=PPO(teacher=Teacher(weight=0.1)))
    assert find_initial_models(fitting, None).brought
    outside = replace(fitting.league, external={"champion": f"{tmp_path}#exploiter"})
    assert find_initial_models(replace(league(), league=replace(outside)), None).brought


def test_edits_reach_one_role(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_control, "LOOK_EVERY_S", 0.0)  # every request is answered in the round after it
    scout = "{model: {type: ActorCritic, hidden: [5]}, algorithm: PPO}"
    asker = Asker(
        [
            (400, ChangeSettings(settings={"learner.learning_rate": "0.002"})),
            (600, ChangeSettings(settings={"league.roles.exploiter.learner.learning_rate": "0.007"})),
            (800, ChangeSettings(settings={"league.roles.exploiter.learner.device": "cpu"})),
            (900, ChangeSettings(settings={"league.roles.exploiter.algorithm": "none"})),
            (1_000, ResetPlayer(player="exploiter", source="main")),
            (1_100, ChangeSettings(settings={"league.roles.+scout": scout})),
            (1_500, AddPlayer(player="second", role="scout")),
        ]
    )
    training = train(tmp_path / "run", replace(league(), budget=9_600), asker)  # requests are read at intervals
    learning = training.learner.players
    assert learning["main"].config.learning_rate == 0.002
    assert learning["exploiter"].config.learning_rate == 0.007
    assert learning["scout"].config.learning_rate == 0.002
    assert "second" in learning
    assert learning["scout"].policies[0].state_arrays == {}
    device, algorithm, reset = asker.refusals
    assert "exploiter.learner.device cannot change while a run trains" in device
    assert "whether a role has an algorithm of its own cannot change" in algorithm
    assert "main does not fit the networks of role exploiter" in reset


def test_memories_of_one_name_and_other_sizes_have_columns_of_their_own() -> None:
    networks = Networks(league(), lambda _: None)
    large, small = (networks.of_role(role)[0].state_arrays for role in ("main", "exploiter"))
    joint = joint_memory([large, small, large])
    assert len(joint) == len(large) + len(small)
    columns = memory_columns(small, joint)
    assert {joint[column] for column in columns.values()} == set(small.values())
    assert not set(columns.values()) & set(memory_columns(large, joint).values())


def test_memory_is_laid_out_anew_for_a_role_that_joined_without_a_player(tmp_path: Path) -> None:
    """Workers lay out their memory with the roles of now: it has to be the same."""
    described = tiny(model=ActorCritic(hidden=(6,)), learner=LEARNER)
    folder = RunFolder.create(tmp_path / "run", encode(described), seed=0, command=())
    players = {"main": HostedPlayer(number=0, role="main", start=None)}
    with closing(LocalLauncher(described, folder)) as launcher:
        launcher.lay_out(players, 1, [])
        assert not launcher.parts.pools[0].layout.state
        before = launcher.parts
        launcher.lay_out(players, 1, [])
        assert launcher.parts is before
        launcher.lay_out(players, 1, [], {"late": {"model": encode(SMALL)}})
        assert launcher.parts.pools[0].layout.state
