"""Walks random histories of a game tree, and compares it with the tables where they can be searched."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ludus.data.specs import Choice, GameSpec, Point
from ludus.data.tree_game import CHANCE, OVER, TreeState
from ludus.games.bots import RandomBot
from ludus.games.checking.episodes import draw_seeds
from ludus.games.checking.play import TOLERANCE, WatchedTables
from ludus.games.checking.report import Evidence
from ludus.games.checking.showing import crop, difference, seat_legal, seat_observation
from ludus.games.game import Actions, GameSource, HasTrees


def walk(state: TreeState, spec: GameSpec, evidence: Evidence, rng: np.random.Generator, where: str) -> None:
    """One random history from `state` to its end, checked on the way."""
    decisions = step = 0
    while state.seat() != OVER:
        seat = state.seat()
        if seat == CHANCE:
            action = _chance(state, evidence, rng, where, step)
        else:
            known = 0 <= seat < spec.num_seats
            if not evidence.expect("tree", known, where, step, f"seat {seat} of {spec.num_seats}"):
                return
            decisions += 1
            action = _decision(state, spec, evidence, rng, f"{where}, seat {seat}", step)
        limit = spec.max_length * spec.num_seats
        if action is None or not evidence.expect(
            "tree", decisions <= limit, where, step, f"no end after {decisions} decisions"
        ):
            return
        child = state.child(action)
        same = state.seat() == seat
        evidence.expect("tree", same, where, step, f"child() changed the seat to {state.seat()}")
        state, step = child, step + 1
    returns = list(state.returns())
    right = len(returns) == spec.num_seats and bool(np.isfinite(returns).all())
    evidence.expect("tree", right, where, step, f"returns {returns} for {spec.num_seats} seats")
    if right and spec.zero_sum:
        total = sum(float(np.mean([returns[seat] for seat in seats])) for seats in spec.seats_of_team)
        evidence.expect("tree", abs(total) < TOLERANCE, where, step, f"returns {returns} are not zero-sum")


def _chance(
    state: TreeState, evidence: Evidence, rng: np.random.Generator, where: str, step: int
) -> int | None:
    outcomes = list(state.chance_outcomes())
    weights = [float(weight) for _, weight in outcomes]
    total = sum(weights)
    right = bool(outcomes) and abs(total - 1) < 1e-6 and min(weights) > 0
    if not evidence.expect("tree", right, where, step, f"chance outcomes {outcomes[:8]} sum to {total:g}"):
        return None
    return outcomes[rng.choice(len(outcomes), p=np.array(weights) / total)][0]


def _decision(
    state: TreeState,
    spec: GameSpec,
    evidence: Evidence,
    rng: np.random.Generator,
    where: str,
    step: int,
) -> int | None:
    legal = list(state.legal_actions())
    ascending = bool(legal) and legal == sorted(set(legal))
    evidence.expect("tree", ascending, where, step, f"legal actions {legal}: needs some, ascending")
    key, again = state.information_state(), state.information_state()
    stable = key == again and hash(key) == hash(again)
    evidence.expect("tree", stable, where, step, f"information state {key!r}, then {again!r}")
    kind, observation = spec.kinds[spec.seats[state.seat()]], state.observation()
    for name, want in kind.observation.arrays.items():
        have = observation.get(name)
        right = have is not None and (np.shape(have), np.asarray(have).dtype) == (want.shape, want.dtype)
        seen = f"observation {name!r} is {have!r}, expected {want.dtype}{list(want.shape)}"
        if not evidence.expect("tree", right, where, step, seen):
            return None
    return int(rng.choice(legal)) if legal else None


def compare_with_tables(
    source: GameSource, evidence: Evidence, rng: np.random.Generator, *, num_tables: int, max_steps: int
) -> None:
    """Step tables and their tree states side by side, where the tables can be searched."""
    batch = source.tables(num_tables)
    try:
        if not isinstance(batch, HasTrees):
            return
        tables = WatchedTables(batch, evidence)
        tables.reset(np.arange(num_tables), draw_seeds(rng, num_tables))
        for _ in range(max_steps):
            running = np.flatnonzero(~(tables.ended | tables.broken)).tolist()
            if not running:
                return
            states = {table: batch.tree_state(table) for table in running}
            for table, state in states.items():
                _compare(state, tables, evidence, table)
                walk(state, tables.spec, evidence, rng, f"tree of table {table}")
            actions = tables.choose(RandomBot(), rng)
            after = {table: _successor(state, tables, actions, table) for table, state in states.items()}
            tables.step(actions)
            for table, successor in after.items():
                if successor is not None and successor.seat() != CHANCE and not tables.view.truncated[table]:
                    _compare(successor, tables, evidence, table)
    finally:
        batch.close()


def _compare(state: TreeState, tables: WatchedTables, evidence: Evidence, table: int) -> None:
    spec, view, step, seat = tables.spec, tables.view, int(tables.steps[table]), state.seat()
    where = f"tree of table {table}, seat {seat}"
    if seat == OVER or view.over[table]:
        both = seat == OVER and bool(view.over[table])
        evidence.expect("tree", both, where, step, f"the tree says {seat}, over is {view.over[table]}")
        if both:
            total, returns = tables.total[table], np.asarray(state.returns(), np.float64)
            seen = f"returns {returns.tolist()}, but total reward {total.tolist()}"
            evidence.expect("tree", np.allclose(total, returns, atol=TOLERANCE), where, step, seen)
        return
    to_act = np.flatnonzero(view.to_act[table]).tolist()
    if not evidence.expect("tree", seat in to_act, where, step, f"the table waits for seats {to_act}"):
        return
    kind = spec.kinds[spec.seats[seat]]
    in_tree = {name: np.asarray(array) for name, array in state.observation().items()}
    changed = difference(seat_observation(spec, view, table, seat), crop(kind, in_tree))
    evidence.expect("tree", changed is None, where, step, f"table, then tree: {changed}")
    masks = list(seat_legal(spec, view, table, seat).values())
    if len(masks) == 1 and _single_number(spec, seat):
        legal, allowed = list(state.legal_actions()), np.flatnonzero(masks[0]).tolist()
        evidence.expect("tree", legal == allowed, where, step, f"legal {legal}, but the mask has {allowed}")


def _successor(state: TreeState, tables: WatchedTables, actions: Actions, table: int) -> TreeState | None:
    """The state after all seats to act have acted; None if their actions are not single numbers."""
    spec = tables.spec
    waiting: Sequence[int] = np.flatnonzero(tables.view.to_act[table]).tolist()
    for _ in waiting:
        seat = state.seat()
        if seat not in waiting or not _single_number(spec, seat):
            return None
        (chosen,) = actions[spec.seats[seat]].values()
        state = state.child(int(chosen[table, spec.column_of_seat[seat]]))
    return state


def _single_number(spec: GameSpec, seat: int) -> bool:
    heads = list(spec.kinds[spec.seats[seat]].action.heads.values())
    return len(heads) == 1 and isinstance(heads[0], (Choice, Point))
