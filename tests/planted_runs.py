"""Run folders that nobody trained: a ledger, metrics and a status, as a run would have written them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np

from ludus.config import apply_encoded, encode
from ludus.data.records import (
    AnyEvent,
    LearnerProgress,
    Match,
    MatchFinished,
    MatchIssued,
    MatchLeased,
    MatchVoid,
    Pair,
    PlayerAdded,
    PlayerRemoved,
    PlayerReset,
    Result,
    RunStarted,
    SettingsChanged,
)
from ludus.games.builtin.connect_four import ConnectFour
from ludus.league import presets
from ludus.league.league import League
from ludus.league.rules import EvaluationConfig, LeagueRules
from ludus.store.run_control import Bottleneck, RunStatus, WorkerStatus, write_status
from ludus.store.run_folder import MetricsFile, RunFolder

EPISODES = 40


def rules_with_bots() -> LeagueRules:
    return presets.pfsp(period=1000, bots=("random", "alpha_beta_2"))


def experiment_of(rules: LeagueRules, **more: Any) -> dict[str, Any]:
    return {
        "name": "connect_four",
        "game": encode(ConnectFour()),
        "league": encode(rules),
        "evaluation": encode(EvaluationConfig(opponents=("random",))),
        "algorithm": {"type": "PPO", "gamma": 1.0, "clip": 0.2},
        "learner": {"type": "LearnerConfig", "batch_size": 1024},
        "budget": 100_000,
        "seed": 3,
        **more,
    }


def league_for(rules: LeagueRules) -> League:
    return League(rules, num_teams=2, seats_per_team=(1, 1), seed=3, change_rules=apply_encoded)


def events_of(rules: LeagueRules, *, snapshots: int, matches: int, seed: int = 0) -> Iterator[AnyEvent]:
    """A life of a league: snapshots, matches of all purposes, voids, a reset, an edit, a restart."""
    league, rng = league_for(rules), np.random.default_rng(seed)
    match_id = 0

    def tell(event: AnyEvent) -> AnyEvent:
        league.apply(event)
        return event

    def result(match: Match) -> Result:
        wins, draws, losses = rng.multinomial(match.episodes, rng.dirichlet((2, 0.3, 2))).tolist()
        model = tuple("" if side.players[0] in ("random", "alpha_beta_2") else "main:0:1" for side in match.sides)
        return Result(
            match_id=match.id,
            episodes=match.episodes,
            steps=9 * match.episodes,
            decisions=(5, 5),
            pairs=(Pair(0, 1, wins, draws, losses),),
            score_sum=(float(wins - losses), float(losses - wins)),
            score_square_sum=(float(wins + losses), float(wins + losses)),
            first_models=model,
            last_models=model,
        )

    yield tell(RunStarted(0))
    for event in league.initial_events():
        yield tell(event)
    for number in range(1, snapshots + 1):
        for player in league.candidates.learning():
            incarnation = league.standings[player].incarnation
            yield tell(LearnerProgress(player, incarnation, number, 1000 * number))
        yield tell(PlayerAdded(f"main.{number}", "frozen", "main", f"main:0:{number}", parent_decisions=1000 * number))
        if number == snapshots // 2:
            yield tell(SettingsChanged({"algorithm.clip": 0.1}, reason="a test"))
            yield tell(SettingsChanged({"league.payoff.decay_games": 20.0}))
        for _ in range(matches // snapshots):
            match_id += 1
            players = list(league.candidates)
            if match_id % 3:
                match = league.next_match(match_id, tables=1, episodes_per_table=EPISODES)
            else:
                sides = [players[one] for one in rng.integers(len(players), size=2)]
                if match_id % 9 == 0:
                    sides[0] = "a_person"
                purpose = "human" if match_id % 9 == 0 else "evaluation"
                match = league.evaluation_match(match_id, sides, tables=1, episodes_per_table=EPISODES, purpose=purpose)
            yield tell(MatchIssued(match))
            yield tell(MatchLeased(match.id, "actor-0"))
            if match_id == matches // 2:
                yield tell(PlayerReset("main", 1, None, reason="a test"))
                yield tell(LearnerProgress("main", 1, 0, 1000 * number))
            if match_id == 2 * matches // 3:
                yield tell(RunStarted(1))
                yield tell(MatchVoid(match.id, "restart"))
            elif match_id % 17 == 0:
                yield tell(MatchVoid(match.id, "env_crash: <b>a table</b> broke"))
            else:
                yield tell(MatchFinished(result(match)))
    yield tell(PlayerRemoved("main.1", "a test"))
    match_id += 1
    yield tell(MatchIssued(league.next_match(match_id, tables=1, episodes_per_table=EPISODES)))


def plant(
    path: Path, *, snapshots: int = 6, matches: int = 120, rules: LeagueRules | None = None, **experiment: Any
) -> RunFolder:
    """A finished run."""
    rules = rules or rules_with_bots()
    folder = RunFolder.create(path, experiment_of(rules, **experiment), seed=3, command=("ludus", "train"))
    with closing(folder.ledger()) as ledger:
        ledger.append(events_of(rules, snapshots=snapshots, matches=matches))
    write_metrics(folder, rows=30)
    write_status(folder.status, status_of("finished"))
    return folder


def write_metrics(folder: RunFolder, *, rows: int, entropy_falls: bool = False, start: int = 0) -> None:
    with closing(MetricsFile(folder.metrics / "train.jsonl")) as file:
        for row in range(start, start + rows):
            file.append(
                {
                    "decisions": 100 * (row + 1),
                    "decisions_per_s": 1000.0 + row,
                    "main/entropy": 1.5 * (0.8**row if entropy_falls else 0.99**row),
                    "main/policy_loss": -0.01,
                    "main/value_loss": 0.5 / (row + 1),
                    "main/lag": 1.0,
                    "main/skipped": 0.0,
                    "main/refused": 0.0,
                }
            )


def status_of(state: str, **changes: Any) -> RunStatus:
    now = time.time()
    values: dict[str, Any] = {
        "time": now,
        "state": state,
        "experiment": "connect_four",
        "trial": None,
        "runtime": "local",
        "node": "a_node",
        "pid": 1,
        "started": now - 100,
        "time_limit_h": 72.0,
        "decisions": 6000,
        "budget": 100_000,
        "decisions_per_s": 500.0,
        "lag": {"main": 1.5},
        "episodes": 4000,
        "matches": 100,
        "restarts": 0,
    }
    return RunStatus(**{**values, **changes})


WORKERS = (
    WorkerStatus(
        name="actor-0",
        state="working",
        pid=2,
        node="a_node",
        started=0.0,
        shares={"game": 0.5},
        cores=0.9,
        memory=2**28,
    ),
    WorkerStatus(name="learner", state="working", pid=3, node="a_node", started=0.0),
)
BOTTLENECK = Bottleneck(what="game", why="actors spend their time in it", advice="`ludus scale RUN actors=3`")
