"""A game that is not written in torch, in the engine and in whole trainings: only learning can be recorded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from command_line import Ludus
from engines import new_engine
from whole_runs import check_ledger

pytest.importorskip("pgx", reason="Pgx is not installed: pip install -e '.[pgx]'")

from ludus import ActorCritic
from ludus.algorithms import GumbelAlphaZero, GumbelSearch
from ludus.algorithms.algorithm import Algorithm
from ludus.data.records import MatchFinished, MatchIssued
from ludus.workers.device.engine import Engine

SEARCH = GumbelAlphaZero(search=GumbelSearch(simulations=4))


def test_only_what_decisions_depend_on_is_kept_for_learning() -> None:
    engine = new_engine("pgx:tic_tac_toe", tables=64)
    assert set(engine.rollout.tables.game) == {"observation", "legal", "seat", "players", "bytes", "words"}
    assert set(engine._play().state) == {"observation", "legal", "seat"}


def test_engines_with_the_same_seed_train_the_same() -> None:
    engines = [new_engine("pgx:kuhn_poker", tables=64, batch=256, seed=seed) for seed in (3, 3, 4)]
    for engine in engines:
        for _ in range(2):
            engine.iterate(0.0)
    one, same, other = (engine.weights for engine in engines)
    assert torch.equal(one, same)
    assert not torch.equal(one, other)


def test_rows_with_the_same_weights_are_one_group() -> None:
    """In self-play, where it changes nothing but the speed; not where a frozen player has a seat."""
    together, apart = (new_engine("pgx:tic_tac_toe", tables=64, algorithm=SEARCH) for _ in range(2))
    assert together.rollout.alike
    apart.rollout.alike = False
    for engine in (together, apart):
        engine.iterate(0.0)
    torch.testing.assert_close(together.weights[0], apart.weights[0], atol=2e-4, rtol=0.0)
    together.seat(1, [0, together.row_of_opponent(1, 1)], [True, False], 4)
    assert not together.rollout.alike
    assert not new_engine("tic_tac_toe").rollout.alike, "its play may be a CUDA graph"


@pytest.mark.slow
@pytest.mark.ci
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of the compiler
@pytest.mark.parametrize("algorithm", [None, SEARCH], ids=["ppo", "search"])
def test_all_but_the_rules_is_compiled(monkeypatch: pytest.MonkeyPatch, algorithm: Algorithm | None) -> None:
    def compiled(engine: Engine, function: Any) -> Any:
        return torch.compile(function, dynamic=False, backend="aot_eager")

    torch._dynamo.utils.counters.clear()
    model = ActorCritic(hidden=(16,), activation="relu")  # tanh has a way for CPUs only
    monkeypatch.setattr(Engine, "_compiled", compiled)
    engine = new_engine(
        "pgx:tic_tac_toe", learners=2, tables=64, batch=128, minibatch=64, model=model, algorithm=algorithm
    )
    engine.iterate(0.0)
    monkeypatch.setattr(Engine, "_compiled", lambda engine, function: function)
    breaks = list(torch._dynamo.utils.counters["graph_break"])
    torch._dynamo.reset()
    plain = new_engine(
        "pgx:tic_tac_toe", learners=2, tables=64, batch=128, minibatch=64, model=model, algorithm=algorithm
    )
    plain.iterate(0.0)
    torch.testing.assert_close(engine.weights, plain.weights, atol=2e-4, rtol=0.0)
    assert len(breaks) == 1, breaks
    assert "TensorPgx.step" in breaks[0]


IN_CI = [pytest.param(runtime, marks=pytest.mark.ci) for runtime in ("device", "local")]


@pytest.mark.slow
@pytest.mark.parametrize("runtime", [*IN_CI, "serial"])
def test_tic_tac_toe_beats_random_play(ludus: Ludus, tmp_path: Path, runtime: str) -> None:
    given = {
        "runtime": runtime,
        "budget": "40_000",
        "model.hidden": "32",
        "actor.num_tables": "256",
        "actor.episodes_per_table": "4",
        "learner.device": "cpu",
        "learner.batch_size": "1024",
        "learner.minibatch_size": "512",
        "learner.learning_rate": "3e-3",
        "league.roles.main.snapshot_weights": "live",
        "league.roles.main.matchmaking": "SelfPlay",
        "evaluation.episodes": "512",
    }
    shown = ludus("train", "pgx:tic_tac_toe", "--run", "xo", "--quiet", *_settings(given))
    assert shown.code == 0, shown.err
    events = check_ledger(tmp_path / "xo")
    issued = {event.match.id: event.match for event in events if isinstance(event, MatchIssued)}
    shares: dict[str, float] = {}
    for event in events:
        if isinstance(event, MatchFinished):
            match, [pair] = issued[event.result.match_id], event.result.pairs
            if match.purpose == "evaluation" and match.sides[1].players == ("random",):
                shares[match.sides[0].players[0]] = (pair.wins + pair.draws / 2) / event.result.episodes
    assert shares.pop("main.1") < 0.57  # not trained yet; the deviation of a share is 0.02
    assert [*shares.values()][-1] > 0.58, shares


def _settings(given: dict[str, str]) -> list[str]:
    return [part for path, value in given.items() for part in ("--set", f"{path}={value}")]
