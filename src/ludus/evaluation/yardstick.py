"""How well a player decides in positions whose outcome is known: the yardstick of a game, without an opponent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ludus.config import ConfigError
from ludus.data.trees import IntArray, Tree, allocate, put, take
from ludus.evaluation.measures import Weights
from ludus.games.catalog import list_games, resolve
from ludus.games.game import GameBatch, GameSource, HasYardstick, Seat, Yardstick, allocate_actions
from ludus.games.recording import innermost
from ludus.league.payoff import wilson_interval
from ludus.lookup import add_bots
from ludus.runtime.assemble import load_players, load_state
from ludus.runtime.services import services_at_hand
from ludus.store.run_folder import MetricsFile, RunFolder
from ludus.workers.inference import ActingRows, Group, InlineInference
from ludus.workers.player_cache import FixedPlayers, SeatedPlayer, played_weights

YARDSTICKS = "yardsticks.jsonl"
"""The file of the run's metrics that holds what was measured."""
ALL = "all"
"""The name of the last row of a player: all sets together."""


@dataclass(frozen=True, slots=True)
class YardstickResult:
    """Shares of decisions that keep the value of a position, by player and set."""

    rows: tuple[dict[str, Any], ...]
    """As plain values, one per player and set: what `ludus eval --yardstick --json` prints."""
    opponents: tuple[str, ...] = ()
    """Bots of the yardstick, for games."""

    @property
    def keeps_value(self) -> float:
        """Of the first player, over all sets."""
        return float(next(row["keeps_value"] for row in self.rows if row["set"] == ALL))

    def to_dict(self) -> list[dict[str, Any]]:
        return [dict(row) for row in self.rows]

    def __str__(self) -> str:
        return "\n".join(
            f"{row['player']}, {row['set']}: keeps the value in {share(row, 'keeps_value')} of {row['positions']} "
            f"positions and in {share(row, 'keeps_value_decisive')} of {row['decisive']} decisive ones, "
            f"optimal in {share(row, 'optimal')}"
            for row in self.rows
        )

    __repr__ = __str__


def share(row: Mapping[str, Any], name: str) -> str:
    """A share of a row with its interval of 95 %, in per cent; "-" if the row has no position for it."""
    if row[name] is None:
        return "-"
    low, high = row[f"{name}_interval"]
    return f"{row[name]:.1%} ({100 * low:.1f}-{100 * high:.1f})"


def yardstick_of(game: GameSource) -> Yardstick:
    """The yardstick of a game, through its wrappers. Raises ConfigError if it has none."""
    inner = innermost(game)
    if not isinstance(inner, HasYardstick):
        built_in = [entry.address for entry in list_games() if entry.library is None]
        known = ", ".join(name for name in built_in if isinstance(innermost(resolve(name)), HasYardstick))
        raise ConfigError(
            f"{game.spec.name} has no yardstick; these built-in games have: {known} "
            "(docs/yardstick.md: a yardstick for your own game)"
        )
    return inner.yardstick()


def measure_yardstick(
    folder: RunFolder, players: Sequence[str], *, weights: Weights, greedy: bool, seed: int
) -> YardstickResult:
    """Ask players of a run, or bots of its game, for a move in every position of the yardstick. The results are kept in
    the run's metrics. Without players: the first learning player."""
    experiment, league = load_state(folder)
    experiment, named = add_bots(experiment, players or list(league.standings)[:1], taken=league.players)
    game = experiment.measured_game
    yardstick = yardstick_of(game)
    rows: list[dict[str, Any]] = []
    with services_at_hand(experiment, folder):
        seated = load_players(experiment, folder, league, named, weights=weights, greedy=greedy)
        for name, one in seated.items():
            about = {
                "time": datetime.now(UTC).isoformat(timespec="seconds"),
                "player": name,
                "model": one.model_name,
                "weights": played_weights(league, folder.models, name, weights),
                "greedy": greedy,
            }
            rows += [about | row for row in measure_player(game, yardstick, name, one, seed=seed)]
    with MetricsFile(folder.metrics / YARDSTICKS) as file:
        for row in rows:
            file.append(row)
    return YardstickResult(tuple(rows), yardstick.opponents)


def measure_player(
    game: GameSource, yardstick: Yardstick, name: str, player: SeatedPlayer, *, seed: int = 0
) -> list[dict[str, Any]]:
    """A row per set, and one for all of them."""
    questions = _Questions(game, name, player, np.random.default_rng(seed))
    chosen = [questions.ask(one.moves) for one in yardstick.sets]
    rows = [_row(one.name, one.scores, moves) for one, moves in zip(yardstick.sets, chosen, strict=True)]
    scores = np.concatenate([one.scores for one in yardstick.sets])
    return [*rows, _row(ALL, scores, np.concatenate(chosen))]


def _row(name: str, scores: NDArray[np.float64], chosen: IntArray) -> dict[str, Any]:
    got, best = scores[np.arange(len(chosen)), chosen], np.nanmax(scores, axis=1)
    keeping = np.sign(scores) == np.sign(best)[:, None]
    by_chance = keeping.sum(axis=1) / (~np.isnan(scores)).sum(axis=1)
    decisive = by_chance < 1.0
    kept = np.sign(got) == np.sign(best)
    return {
        "set": name,
        "positions": len(chosen),
        **_share("keeps_value", kept),
        "uniform_keeps_value": float(by_chance.mean()),
        "decisive": int(decisive.sum()),
        **_share("keeps_value_decisive", kept[decisive]),
        "uniform_keeps_value_decisive": float(by_chance[decisive].mean()) if decisive.any() else None,
        **_share("optimal", got == best),
    }


def _share(name: str, hits: NDArray[np.bool_]) -> dict[str, Any]:
    if not len(hits):
        return {name: None, f"{name}_interval": None}
    return {name: float(hits.mean()), f"{name}_interval": list(wilson_interval(float(hits.sum()), len(hits)))}


class _Questions:
    """Puts tables into positions and asks one player for its move. A player with memory sees the whole game before,
    from both seats; a bot is asked in the position itself."""

    def __init__(self, game: GameSource, name: str, player: SeatedPlayer, rng: np.random.Generator) -> None:
        self._game, self._name, self._player, self._rng = game, name, player, rng
        self._inference = InlineInference(
            FixedPlayers({name: player}), [policy.num_draws for policy in player.policies]
        )
        ((self._head, _),) = game.spec.kinds[0].action.heads.items()

    def ask(self, positions: Sequence[tuple[int, ...]]) -> IntArray:
        """The move in each position."""
        lengths = np.array([len(moves) for moves in positions])
        chosen = np.zeros(len(positions), np.int64)
        for length in np.unique(lengths).tolist():
            here = np.flatnonzero(lengths == length)
            moves = np.array([positions[index] for index in here.tolist()], np.int64).reshape(len(here), length)
            chosen[here] = self._ask(moves)
        return chosen

    def _ask(self, moves: IntArray) -> IntArray:
        """`moves` [positions, plies]: all of the same length."""
        count, plies = moves.shape
        tables = self._game.tables(count)
        try:
            tables.reset(np.arange(count), np.zeros(count, np.uint64))
            actions = allocate_actions(tables.spec, count)
            memory = [
                allocate(policy.state_arrays, (count, len(seats)))
                for policy, seats in zip(self._player.policies, tables.spec.seats_of_kind, strict=False)
            ]
            remembers = self._player.bot is None and any(memory)
            for ply in range(plies):
                seats = _to_move(tables)
                if remembers:
                    self._decide(tables, seats, memory)
                _put_moves(tables, actions, self._head, seats, moves[:, ply])
                tables.step(actions)
            return self._decide(tables, _to_move(tables), memory)
        finally:
            tables.close()

    def _decide(self, tables: GameBatch, seats: IntArray, memory: Sequence[Tree]) -> IntArray:
        spec, chosen = tables.spec, np.zeros(len(seats), np.int64)
        kinds, columns = np.asarray(spec.seats)[seats], np.asarray(spec.column_of_seat)[seats]
        for kind in np.unique(kinds).tolist():
            rows = np.flatnonzero(kinds == kind)
            if self._player.bot is not None:
                chosen[rows] = self._player.bot.act(tables, rows, seats[rows], self._rng)[self._head]
                continue
            at = (rows, columns[rows])
            draws = self._rng.random((len(rows), self._inference.num_draws(kind)), np.float32)
            asked = ActingRows(
                kind=kind,
                groups=(Group(self._name, 0, len(rows), False),),
                observation=take(tables.view.observation[kind], at),
                legal=take(tables.view.legal[kind], at),
                state=take(memory[kind], at),
                uniforms=draws,
            )
            acted = self._inference.act(asked).acted
            put(memory[kind], at, acted.state)
            chosen[rows] = acted.action[self._head]
        return chosen


def _to_move(tables: GameBatch) -> IntArray:
    """[tables]: the one seat that must act."""
    to_act = tables.view.to_act
    if not (to_act.sum(axis=1) == 1).all():
        table = int(np.flatnonzero(to_act.sum(axis=1) != 1)[0])
        raise ValueError(
            f"{tables.spec.name}: {int(to_act[table].sum())} seats must act in a position of its yardstick"
        )
    seats: IntArray = to_act.argmax(axis=1)
    return seats


def _put_moves(tables: GameBatch, actions: Sequence[Tree], head: str, seats: IntArray, moves: IntArray) -> None:
    for table, (seat, move) in enumerate(zip(seats.tolist(), moves.tolist(), strict=True)):
        place: Seat = tables.spec.column_of_seat[seat]
        actions[tables.spec.seats[seat]][head][table, place] = move
