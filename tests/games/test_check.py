"""The conformance check passes a sound game and catches every broken promise, with step and value."""

from __future__ import annotations

import itertools
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from counting_game import SPEC, Counting, CountingState, CountingTables

from ludus.data.specs import GameSpec
from ludus.data.trees import IntArray, Tree
from ludus.games import checked_play
from ludus.games.bots import RandomBot
from ludus.games.check import check_game
from ludus.games.checked_play import PROMISES, Report
from ludus.games.game import GameBatch, TableView

TESTED_ELSEWHERE = {"tensor_twin", "bounds"}
"""In tests/games/device and tests/games/test_boxes.py: games with other rules."""
Spoiler = Callable[[CountingTables], None]


def check(source: Counting) -> Report:
    return check_game(source, episodes=16, max_steps=200)


def test_a_sound_game_keeps_every_promise_and_every_promise_is_tested() -> None:
    report = check(Counting())
    assert report.ok, str(report)
    assert [verdict.promise for verdict in report.verdicts] == list(PROMISES)
    assert {verdict.promise for verdict in report.verdicts if not verdict.times} == TESTED_ELSEWHERE


def at_move(move: int, spoil: Callable[[CountingTables, int], None]) -> Spoiler:
    """Spoil tables after so many moves of their episode."""

    def spoiler(tables: CountingTables) -> None:
        for table, state in enumerate(tables.states):
            if len(state.named) == move:
                spoil(tables, table)

    return spoiler


def show(name: str, value: Any) -> Callable[[CountingTables, int], None]:
    """Write a value into one array of the view."""

    def spoil(tables: CountingTables, table: int) -> None:
        getattr(tables.view, name)[table] = value

    return spoil


def observe(name: str, value: float) -> Callable[[CountingTables, int], None]:
    def spoil(tables: CountingTables, table: int) -> None:
        tables.view.observation[0][name][table] = value

    return spoil


def tell_seat_0_another_draw(tables: CountingTables, table: int) -> None:
    if tables.odd[table]:
        tables.view.observation[0]["critic.draw"][table, 0] = 7.0


def mask_nothing(tables: CountingTables, table: int) -> None:
    tables.view.legal[0]["number"][table] = False


def raise_error(tables: CountingTables, table: int) -> None:
    raise RuntimeError(f"out of paper at table {table}")


def twice_the_score(tables: CountingTables, table: int) -> None:
    tables.view.score[table] *= 2


def both_win(tables: CountingTables, table: int) -> None:
    tables.view.reward[table] = tables.view.score[table] = 1.0


def both_ends(tables: CountingTables, table: int) -> None:
    tables.view.over[table] = tables.view.truncated[table] = True


def leave_reward(tables: CountingTables) -> None:
    tables.view.reward[:] = 0.25


def disturb_table_0(tables: CountingTables) -> None:
    tables.view.observation[0]["now"][0, 0, 1] += 1


def forget_ended(tables: CountingTables) -> None:
    if (tables.view.over | tables.view.truncated).all():
        tables.view.reward[:] = 0


def depend_on_table(tables: CountingTables) -> None:
    tables.view.observation[0]["now"][:, :, 1] = np.arange(tables.num_tables)[:, None]


def depend_on_size(tables: CountingTables) -> None:
    tables.view.observation[0]["now"][:, :, 1] = tables.num_tables


def listen_to_idle_seats(tables: CountingTables) -> None:
    now = tables.view.observation[0]["now"]
    for table, state in enumerate(tables.states):
        if len(state.named) == 1:
            now[table, :, 1] = tables.last_actions[table, 1]


class MovingArrays(CountingTables):
    def step(self, actions: Any) -> None:
        super().step(actions)
        self.view = replace(self.view, reward=self.view.reward.copy())


class WrongDtype(CountingTables):
    def __init__(self, source: Counting, num_tables: int) -> None:
        super().__init__(source, num_tables)
        self.view: TableView = replace(self.view, score=self.view.score.astype(np.float64))


class OtherSpec(CountingTables):
    def __init__(self, source: Counting, num_tables: int) -> None:
        super().__init__(source, num_tables)
        self.spec: GameSpec = replace(self.spec, max_length=9)


class GlobalLuck(CountingTables):
    """Draws from a counter that all tables of the process share."""

    counter = itertools.count()

    def reset(self, tables: IntArray, seeds: Any) -> None:
        super().reset(tables, seeds)
        self.view.observation[0]["now"][tables, :, 2] = next(self.counter)


@dataclass(frozen=True)
class Stubborn:
    """Always names the same number."""

    number: int = 0

    def act(self, game: GameBatch, tables: IntArray, seats: IntArray, rng: np.random.Generator) -> Tree:
        return {"number": np.full(len(tables), self.number, np.int32)}


@dataclass(frozen=True)
class WrongHead:
    def act(self, game: GameBatch, tables: IntArray, seats: IntArray, rng: np.random.Generator) -> Tree:
        return {"move": np.zeros(len(tables), np.int32)}


class BadChance(CountingState):
    def chance_outcomes(self) -> Sequence[tuple[int, float]]:
        return [(0, 0.5), (1, 0.25)]


class BadReturns(CountingState):
    def returns(self) -> Sequence[float]:
        return (1.0, 1.0)


class BadOrder(CountingState):
    def legal_actions(self) -> Sequence[int]:
        return [*reversed(super().legal_actions())]


class TreeOfAnother(CountingTables):
    """Its tree states are right, but one move late."""

    def tree_state(self, table: int) -> CountingState:
        state = self.states[table]
        return replace(state, named=state.named[:-1])


RANDOM = {"random": RandomBot()}
BROKEN = [
    ("spec", Counting(make_tables=OtherSpec), 0, r"spec differs"),
    ("calls", Counting(spoil_step=at_move(3, raise_error)), 3, r"RuntimeError: out of paper at table \d"),
    ("shapes", Counting(make_tables=WrongDtype), 0, r"expected float32\[4, 2\], got float64\[4, 2\]"),
    ("in_place", Counting(make_tables=MovingArrays), 1, r"reward became another array"),
    ("observation", Counting(spoil_step=at_move(2, observe("now", np.nan))), 2, r"now\[0\] is nan"),
    ("observation", Counting(spoil_step=at_move(1, observe("named_length", 5))), 1, r"is 5, outside 0 to 4"),
    ("critic", Counting(spoil_step=at_move(2, observe("critic.draw", np.nan))), 2, r"critic.draw\[0\] is nan"),
    ("critic", Counting(spoil_step=at_move(4, tell_seat_0_another_draw)), 4, r"then seat 1: .* was 7.0, then [01].0"),
    ("legal", Counting(spoil_step=at_move(3, mask_nothing)), 3, r"'number' has the mask \[0, 0, 0\]"),
    ("someone_acts", Counting(spoil_step=at_move(2, show("to_act", False))), 2, r"no seat is to act"),
    ("ended_is_quiet", Counting(spoil_step=at_move(4, show("to_act", True))), 4, r"seats \[0, 1\]"),
    ("one_end", Counting(spoil_step=at_move(4, both_ends)), 4, r"both True"),
    ("max_length", Counting(spec_given=replace(SPEC, max_length=3)), 3, r"not ended after 3 steps"),
    ("reward", Counting(spoil_step=at_move(1, show("reward", np.inf))), 1, r"reward \[inf, inf\]"),
    ("zero_sum", Counting(spoil_step=at_move(4, both_win)), 4, r"\[1.0, 1.0\] .* add up to 2"),
    ("score", Counting(spoil_step=at_move(4, show("score", np.nan))), 4, r"score \[nan, nan\]"),
    ("score_is_reward", Counting(spoil_step=at_move(4, twice_the_score)), 4, r"score \[-?2.0, -?2.0\]"),
    ("clock", Counting(spoil_step=at_move(3, show("clock", -1))), 3, r"clock went from \d+ to -1"),
    ("clock", Counting(spoil_step=at_move(4, show("clock", 0))), 4, r"ended at clock 0"),
    ("truncation", Counting(spoil_step=at_move(4, observe("now", np.inf))), 4, r"now\[0\] is inf"),
    ("ended_stays", Counting(spoil_step=forget_ended), 4, r"reward\[0\] was -?1.0, then 0.0"),
    ("fresh", Counting(spoil_reset=leave_reward), 0, r"reward \[0.25, 0.25\]"),
    ("reset_only", Counting(spoil_reset=disturb_table_0), None, r"now\[0, 1\] was \S+, then"),
    ("same_again", Counting(make_tables=GlobalLuck), 0, r"now of seat 0\[2\] was \S+, then"),
    ("same_elsewhere", Counting(spoil_step=depend_on_table), 1, r"now of seat 1\[1\] was \S+, then"),
    ("same_elsewhere", Counting(spoil_step=depend_on_size), 1, r"now of seat 1\[1\] was 4.0, then 6.0"),
    ("idle_actions", Counting(spoil_step=listen_to_idle_seats), 1, r"now of seat 1\[1\] was 0.0, then"),
    ("bots", Counting(players={"stubborn": Stubborn()}), 0, r"no bot 'random' among \['stubborn'\]"),
    ("bots", Counting(players={**RANDOM, "x": Stubborn()}), 1, r"takes 0, but legal are \[1, 2\]"),
    ("bots", Counting(players={**RANDOM, "x": Stubborn(7)}), 0, r"takes 7, but legal are \[0, 1, 2\]"),
    ("bots", Counting(players={**RANDOM, "x": WrongHead()}), 0, r"heads \['move'\], expected \['number'\]"),
    ("tree", Counting(root=BadChance()), 0, r"sum to 0.75"),
    ("tree", Counting(root=BadReturns()), 5, r"returns \[1.0, 1.0\] are not zero-sum"),
    ("tree", Counting(root=BadOrder()), 1, r"legal actions \[2, 1, 0\]"),
    ("tree", Counting(make_tables=TreeOfAnother), 1, r"the table waits for seats \[1\]"),
]


@pytest.mark.parametrize(
    ("promise", "source", "step", "seen"), BROKEN, ids=[f"{b[0]}-{i}" for i, b in enumerate(BROKEN)]
)
def test_a_broken_promise_is_named_with_step_and_value(
    promise: str, source: Counting, step: int | None, seen: str
) -> None:
    report = check(source)
    failures = [failure for failure in report.failures if failure.promise == promise]
    assert not report.ok
    assert failures, f"{promise} was not found broken:\n{report}"
    matching = [failure for failure in failures if re.search(seen, failure.seen)]
    assert matching, f"none says {seen!r}:\n{report}"
    assert step is None or step in [failure.step for failure in matching], str(report)
    assert all(failure.where for failure in matching)
    assert f"step {matching[0].step}" in str(report)


def test_every_promise_has_a_broken_game() -> None:
    assert {promise for promise, *_ in BROKEN} | TESTED_ELSEWHERE == set(PROMISES)


def test_a_step_that_hangs_is_named_and_ends_the_check(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checked_play, "CALL_SECONDS", 0.2)
    report = check(Counting(spoil_step=at_move(2, lambda *_: time.sleep(60))))
    assert not report.ok
    assert "step has not returned for 0.2 s; it is in " in str(report)
    assert str(report).count("has not returned") == 1


def test_a_game_whose_episodes_all_end_at_reset_is_named() -> None:
    def end(tables: CountingTables) -> None:
        tables.view.over[:] = True
        tables.view.to_act[:] = False

    assert "no seat had to act: every episode ended at reset" in str(check(Counting(spoil_reset=end)))


def test_a_source_that_cannot_even_start_gives_a_report() -> None:
    class Nothing:
        @property
        def spec(self) -> GameSpec:
            raise OSError("no such game server")

    report = check_game(Nothing())  # type: ignore[arg-type]
    assert "OSError: no such game server" in str(report)
    assert not report.ok
