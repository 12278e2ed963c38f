"""Datasets of a bot that always does the same in the same position, and recipes to clone it with."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from ludus.data.replay import DecodedReplay, Episode, EpisodeFacts, Outcome, column_specs
from ludus.data.trees import Array
from ludus.games.builtin.tic_tac_toe import TicTacToe, TicTacToeRules
from ludus.games.game import GameBatch, allocate_actions
from ludus.replays.dataset_writer import write_dataset

RULES = TicTacToeRules()
RECIPE = """
from dataclasses import replace

from ludus.experiment import Experiment
from ludus.games.builtin.tic_tac_toe import TicTacToe
from ludus.league.rules import LeagueRules, Role
from ludus.models.alphastar import AlphaStar
from ludus.models.network_policy import ActorCritic
from ludus.workers.actor import ActorConfig
from ludus.league.rules import EvaluationConfig
from ludus.workers.config import LearnerConfig


def plain():
    return Experiment(
        name="plain",
        game=TicTacToe(),
        budget=500,
        model=ActorCritic(hidden=(64,)),
        actor=ActorConfig(num_tables=32, matches=2, episodes_per_table=4, unroll_length=8),
        learner=LearnerConfig(batch_size=256, minibatch_size=256),
        league=LeagueRules(roles={"main": Role(), "other": Role()}, bots=("random", "rules")),
        evaluation=EvaluationConfig(opponents=("random",), past=0, ladder=0, episodes=32),
        runtime="serial",
    )


def remembering():
    return replace(plain(), model=ActorCritic(hidden=(32,), memory=16))


def alphastar():
    return replace(plain(), model=AlphaStar(memory=16))
"""

Teacher = Callable[[Array, Array], Array]


def same_again(board: Array, legal: Array) -> Array:
    """The bot `rules`, but of equally good cells the first."""
    values = RULES.values({"board": board}) - np.arange(9) / 100
    return np.where(legal, values, -np.inf).argmax(1)


def tic_tac_toe_dataset(folder: Path, games: int, teacher: Teacher = same_again, *, seed: int = 0) -> Path:
    """The teacher's decisions against a player who moves at random; it sits on seat 0 and 1 in turn."""
    spec = TicTacToe().spec
    with write_dataset(folder, game=spec.name, kind=spec.kinds[0], strategy=None, settings={}) as writer:
        for game in range(games):
            episode = _play(TicTacToe().tables(1), teacher, game, seed)
            if episode.num_decisions:
                writer.add(DecodedReplay(name=f"game {game}", episodes=(episode,)))
    return folder


def _play(table: GameBatch, teacher: Teacher, game: int, seed: int) -> Episode:
    rng = np.random.default_rng([seed, game])
    table.reset(np.array([0]), np.array([game], np.uint64))
    view, own = table.view, game % 2
    rows: dict[str, list[Array]] = {name: [] for name in column_specs(table.spec.kinds[0])}
    actions = allocate_actions(table.spec, 1)
    while not view.over[0]:
        mover = int(view.to_act[0].argmax())
        board, legal = view.observation[0]["board"][0, mover], view.legal[0]["move"][0, mover]
        cell = rng.choice(np.flatnonzero(legal))
        if mover == own and rng.random() < 0.8:  # else by chance, for more positions, and not recorded
            cell = teacher(board[None], legal[None])[0]
            rows["observation.board"].append(board.copy())
            rows["legal.move"].append(legal.copy())
            rows["action.move"].append(np.int32(cell))
        actions[0]["move"][0, mover] = cell
        table.step(actions)
    for name, value in (("reward", 0.0), ("elapsed", 1), ("over", False)):
        rows[name] = [np.array(value)] * len(rows["action.move"])
    specs = column_specs(table.spec.kinds[0])
    columns = {
        name: np.array(found, specs[name].dtype).reshape(len(found), *specs[name].shape) for name, found in rows.items()
    }
    score = float(view.score[0, own])
    outcome: Outcome = "win" if score > 0 else "loss" if score < 0 else "draw"
    facts = EpisodeFacts(
        replay=f"game {game}",
        game="tic_tac_toe",
        map="",
        version="1",
        matchup=("teacher", "random"),
        player="teacher",
        seat=own,
        outcome=outcome,
        score=score,
        length=len(rows["action.move"]),
    )
    return Episode(facts=facts, columns=columns)
