from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
from numpy.typing import NDArray

from ludus.games.builtin.siege import (
    ATTACKER,
    DEFENDER,
    HOLD,
    LAST_TICK,
    MARCH,
    MOST_TOWNS,
    PAUSES,
    RAID,
    STORM,
    WAIT,
    Siege,
)
from ludus.games.game import GameBatch, allocate_actions

Play = Callable[..., NDArray[np.float32]]
SOURCE = Siege()
BOTS = SOURCE.bots()


@dataclass
class SlowSiege:
    """The rules, tick by tick."""

    values: list[int]
    walls: list[int]
    guard: int | None
    tick: int = 0
    attack: tuple[int, int, int] | None = None
    """Arrives at, town, damage."""
    march: tuple[int, int] | None = None
    free: tuple[int, int] = (0, 0)
    """Ticks at which the seats act next."""

    def command(self, attack: tuple[int, int, int] | None, defence: tuple[int, int] | None) -> None:
        attacker_free, defender_free = self.free
        if attack is not None:
            order, target, pause = attack
            attacker_free = self.tick + {WAIT: PAUSES[pause], RAID: 4, STORM: 7}[order]
            self.attack = None if order == WAIT else (attacker_free, target, {RAID: 1, STORM: 3}[order])
        if defence is not None:
            order, target = defence
            defender_free = self.tick + {HOLD: 2, MARCH: 3}[order]
            if order == MARCH:
                self.guard, self.march = None, (defender_free, target)
        self.free = (attacker_free, defender_free)

    def run(self) -> int:
        """Ticks until a seat must act or the end; returns the attacker's points."""
        points = 0
        while True:
            self.tick += 1
            if self.march is not None and self.march[0] == self.tick:
                self.guard, self.march = self.march[1], None
            if self.attack is not None and self.attack[0] == self.tick:
                _, town, damage = self.attack
                self.attack = None
                if self.guard == town:
                    points -= 2
                else:
                    self.walls[town] = max(0, self.walls[town] - damage)
                    points += 0 if self.walls[town] else self.values[town]
            if self.tick in self.free or self.tick == LAST_TICK or not any(self.walls):
                return points


def start(game: GameBatch, table: int) -> SlowSiege:
    """Read the first position off what the defender sees."""
    seen = {name: array[table, 0] for name, array in game.view.observation[DEFENDER].items()}
    towns = seen["towns"][: seen["towns_length"]]
    return SlowSiege(
        values=[round(3 * float(value)) for value in towns[:, 0]],
        walls=[round(3 * float(walls)) for walls in towns[:, 1]],
        guard=int(towns[:, 3].argmax()),
    )


def test_follows_the_rules_on_random_games() -> None:
    num_tables = 60
    game = SOURCE.tables(num_tables)
    tables = np.arange(num_tables)
    game.reset(tables, tables.astype(np.uint64))
    slow = [start(game, table) for table in range(num_tables)]
    actions = allocate_actions(game.spec, num_tables)
    rng = np.random.default_rng(0)
    view = game.view
    lone_turns = 0
    while view.to_act.any():
        for seat in (ATTACKER, DEFENDER):
            rows = np.flatnonzero(view.to_act[:, seat])
            for head, values in BOTS["random"].act(game, rows, np.full(len(rows), seat), rng).items():
                actions[seat][head][rows, 0] = values
        live = np.flatnonzero(view.to_act.any(axis=1))
        acting = view.to_act.copy()
        lone_turns += int((acting.sum(axis=1) == 1).sum())
        game.step(actions)
        for table in live:
            attack = tuple(int(actions[ATTACKER][head][table, 0]) for head in ("order", "target", "pause"))
            defence = tuple(int(actions[DEFENDER][head][table, 0]) for head in ("order", "target"))
            one = slow[table]
            one.command(
                attack if acting[table, ATTACKER] else None,  # type: ignore[arg-type]
                defence if acting[table, DEFENDER] else None,  # type: ignore[arg-type]
            )
            points = one.run()
            over = not any(one.walls)
            assert view.clock[table] == one.tick
            assert view.reward[table] == pytest.approx([points / 10, -points / 10])
            assert view.over[table] == over
            assert view.truncated[table] == (not over and one.tick == LAST_TICK)
            if not (over or view.truncated[table]):
                assert view.to_act[table].tolist() == [free == one.tick for free in one.free]
            check_view(game, int(table), one)
    assert lone_turns > 100
    assert view.over.any()
    assert view.truncated.any()


def check_view(game: GameBatch, table: int, one: SlowSiege) -> None:
    towns = range(len(one.walls))
    attacked = None if one.attack is None else one.attack[1]
    stormed = attacked if one.attack is not None and one.attack[2] == 3 else None
    for seat in (ATTACKER, DEFENDER):
        seen = {name: array[table, 0] for name, array in game.view.observation[seat].items()}
        assert seen["towns_length"] == len(towns)
        expected = [
            [one.values[town] / 3, one.walls[town] / 3, one.walls[town] > 0, one.guard == town]
            + ([stormed == town] if seat == DEFENDER else [])
            for town in towns
        ]
        assert seen["towns"][: len(towns)] == pytest.approx(np.array(expected, np.float64))
        assert not seen["towns"][len(towns) :].any()
        assert seen["time"][0] == pytest.approx(1 - one.tick / LAST_TICK)
        if not game.view.over[table]:
            mask = game.view.legal[seat]["target"][table, 0]
            assert np.flatnonzero(mask).tolist() == [town for town in towns if one.walls[town] > 0]
        plans = seen["critic.plans"]
        assert np.flatnonzero(plans[:MOST_TOWNS]).tolist() == ([] if attacked is None else [attacked])
        marched_to = [] if one.march is None else [one.march[1]]
        assert np.flatnonzero(plans[MOST_TOWNS : 2 * MOST_TOWNS]).tolist() == marched_to
    storm_left = game.view.observation[DEFENDER]["time"][table, 0, 1]
    ticks = 0 if one.attack is None or stormed is None else one.attack[0] - one.tick
    assert storm_left == pytest.approx(ticks / 7)


def test_the_seats_see_and_do_different_things() -> None:
    attacker, defender = SOURCE.spec.kinds
    assert attacker.action != defender.action
    assert attacker.observation != defender.observation
    assert SOURCE.spec.timed


def test_names_the_order_that_is_not_legal() -> None:
    game = SOURCE.tables(1)
    game.reset(np.array([0]), np.array([0], np.uint64))
    actions = allocate_actions(game.spec, 1)
    length = int(game.view.observation[ATTACKER]["towns_length"][0, 0])
    actions[ATTACKER]["order"][:] = RAID
    actions[ATTACKER]["target"][:] = 6
    with pytest.raises(ValueError, match=rf"seat 0: target 6 is not one of .*{length - 1}\]"):
        game.step(actions)
    actions[ATTACKER]["target"][:] = 0
    actions[DEFENDER]["order"][:] = 2
    with pytest.raises(ValueError, match=r"siege: table 0, seat 1: order 2 is not one of \[0, 1\]"):
        game.step(actions)


def test_rules_beat_random_in_both_seats(play: Play) -> None:
    random, rules = BOTS["random"], BOTS["rules"]
    assert play(SOURCE, [rules, random])[:, 0].mean() > 0.2
    assert play(SOURCE, [random, rules])[:, 1].mean() > 0.2


def test_the_rules_are_near_a_balance_and_see_storms_coming(play: Play) -> None:
    assert abs(play(SOURCE, [BOTS["rules"], BOTS["rules"]], 300)[:, 0].mean()) < 0.2
    assert play(SOURCE, [BOTS["storming"], BOTS["rules"]])[:, 1].mean() > 0.5
