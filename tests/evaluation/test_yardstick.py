"""`ludus eval --yardstick` and `Run.yardstick`: shares of moves that keep the value of a position."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from command_line import Ludus, rows
from played_runs import small, trained

from ludus import Run
from ludus.config import ConfigError
from ludus.data.trees import IntArray, Tree
from ludus.evaluation.yardstick import measure_player, yardstick_of
from ludus.experiment import Experiment
from ludus.games.bots import RandomBot
from ludus.games.builtin.connect_four import ConnectFour, ConnectFourState
from ludus.games.game import Bot, GameBatch, Yardstick
from ludus.games.seat_groups import group_seats
from ludus.lookup import find_experiment
from ludus.models.network_policy import ActorCritic
from ludus.workers.player_cache import SeatedPlayer

GAME = ConnectFour()
FULL = GAME.yardstick()
SMALL = replace(FULL, sets=tuple(replace(one, moves=one.moves[::20], scores=one.scores[::20]) for one in FULL.sets))


@dataclass(frozen=True)
class FromScores:
    """Knows the scores of the positions and plays the best move, or the worst."""

    best: bool

    def act(self, game: GameBatch, tables: IntArray, seats: IntArray, rng: np.random.Generator) -> Tree:
        known = {
            (state.mover, state.other): scores
            for one in SMALL.sets
            for moves, scores in zip(one.moves, one.scores, strict=True)
            for state in [_position(moves)]
        }
        chosen = []
        for table in tables.tolist():
            state = game.tree_state(table)  # type: ignore[attr-defined]
            scores = known[state.mover, state.other]
            chosen.append(np.nanargmax(scores) if self.best else np.nanargmin(scores))
        return {"move": np.array(chosen, np.int32)}


def _position(moves: tuple[int, ...]) -> ConnectFourState:
    state = ConnectFourState(0, 0)
    for move in moves:
        state = state.child(move)
    return state


def measured(bot: Bot, yardstick: Yardstick = SMALL, game: ConnectFour = GAME) -> list[dict[str, object]]:
    return measure_player(game, yardstick, "one", SeatedPlayer(bot=bot))


def test_best_moves_score_everything_and_worst_moves_nothing_that_counts() -> None:
    best, worst = measured(FromScores(best=True)), measured(FromScores(best=False))
    assert [row["set"] for row in best] == [*(one.name for one in SMALL.sets), "all"]
    for row in best:
        assert (row["keeps_value"], row["keeps_value_decisive"], row["optimal"]) == (1.0, 1.0, 1.0)
    for row in worst:
        assert row["keeps_value_decisive"] == 0.0
        # What is left are the positions in which every move keeps the value.
        assert row["keeps_value"] == pytest.approx(1 - row["decisive"] / row["positions"])  # type: ignore[operator]


def test_random_play_keeps_what_uniform_play_keeps() -> None:
    *_, row = measured(RandomBot(), FULL)
    assert row["positions"] == sum(len(one.moves) for one in FULL.sets)
    for part in ("keeps_value", "keeps_value_decisive"):
        low, high = row[f"{part}_interval"]  # type: ignore[misc]
        assert low < row[f"uniform_{part}"] < high
        assert high - low < 0.07


def test_a_deeper_search_keeps_more() -> None:
    kept = [measured(GAME.bots()[name], FULL) for name in ("random", "alpha_beta_2", "alpha_beta_4")]
    late, all_sets = ([float(rows[place]["optimal"]) for rows in kept] for place in (-2, -1))  # type: ignore[arg-type]
    assert late[0] + 0.2 < late[1] < late[2]
    assert all_sets[0] + 0.2 < all_sets[1] < all_sets[2]


def test_seats_with_policies_of_their_own_and_wrappers_are_asked_alike() -> None:
    grouped = group_seats(GAME, "per_seat")
    assert len(grouped.spec.kinds) == 2
    assert yardstick_of(grouped).opponents == FULL.opponents
    rules = GAME.bots()["rules"]
    wrapped = measure_player(grouped, SMALL, "one", SeatedPlayer(bot=grouped.bots()["rules"]))
    assert wrapped[-1]["decisive"] == measured(rules)[-1]["decisive"]
    assert wrapped[-1]["keeps_value"] > wrapped[-1]["uniform_keeps_value"]


def test_a_game_without_a_yardstick_is_named_with_those_that_have_one() -> None:
    with pytest.raises(ConfigError, match=r"kuhn has no yardstick; these built-in games have: connect_four \("):
        yardstick_of(find_experiment("kuhn").game)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The network has a memory, so that the whole game before a position is shown to it."""
    experiment: Experiment = small(find_experiment("connect_four"))
    experiment = replace(experiment, model=ActorCritic(hidden=(8,), memory=4), policies="per_seat")
    return trained(tmp_path_factory.mktemp("yardstick") / "run", experiment).path


def test_command_prints_a_row_per_player_and_set_and_keeps_them(run: Path, ludus: Ludus) -> None:
    found = rows(ludus("eval", str(run), "main", "rules", "--yardstick", "--json").out)
    assert [(row["player"], row["set"]) for row in found] == [
        (player, name) for player in ("main", "rules") for name in (*(one.name for one in FULL.sets), "all")
    ]
    assert {row["weights"] for row in found} == {"average", None}
    assert found[0]["model"].startswith("main:")
    assert Run(run).metrics("yardsticks")[-12:] == found


def test_command_shows_a_table_and_plays_games_if_asked(run: Path, ludus: Ludus) -> None:
    shown = ludus("eval", str(run), "main", "--yardstick", "-n", "2").out
    assert "keeps the value" in shown
    assert "30-41 stones" in shown
    for bot in FULL.opponents:
        assert bot in shown


def test_greedy_players_choose_the_same_again(run: Path) -> None:
    first, second = (Run(run).yardstick("main", greedy=True, seed=seed) for seed in (1, 2))
    assert first.keeps_value == second.keeps_value
    assert first.rows[0]["greedy"] is True


def test_commands_that_make_no_sense_say_so(run: Path, tmp_path: Path, ludus: Ludus) -> None:
    pictures = ludus("eval", str(run), "main", "--yardstick", "--render", str(tmp_path / "x.gif"))
    assert (pictures.code, "--yardstick asks for single moves" in pictures.err) == (2, True)
    unknown = ludus("eval", str(run), "mian", "--yardstick")
    assert (unknown.code, "did you mean 'main'" in unknown.err) == (2, True)
