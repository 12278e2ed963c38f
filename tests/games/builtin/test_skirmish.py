from collections.abc import Callable, Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from ludus.games.builtin import skirmish_rules as rules
from ludus.games.builtin.skirmish import Mode, Skirmish, SkirmishTables
from ludus.games.builtin.skirmish_battle import State
from ludus.games.builtin.skirmish_rules import (
    ADVANCE,
    ATTACK,
    BASE,
    BOW,
    FIGHTERS,
    GATHER,
    HORSE,
    MOVE,
    NO_OP,
    SLOTS,
    SPEAR,
    WORKER,
)
from ludus.games.builtin.skirmish_view import ENEMY, HERO_SCALARS, KIND, OWN, SCALARS, SELF, X, Y
from ludus.games.catalog import as_source
from ludus.games.check import check_game
from ludus.games.game import Actions, Bot, GameBatch, HasStrategy, allocate_actions
from ludus.games.remote.matches import ServerMatches
from ludus.games.remote.messages import Camp, MatchConfig

BotStep = Callable[[GameBatch, Sequence[Bot], np.random.Generator], None]


def fresh(num_tables: int = 1, mode: Mode = "1v1") -> SkirmishTables:
    game = Skirmish(mode=mode).tables(num_tables)
    assert isinstance(game, SkirmishTables)
    game.reset(np.arange(num_tables), np.arange(num_tables, dtype=np.uint64))
    return game


def pauses(game: SkirmishTables, delay: int = 8) -> Actions:
    """Everybody does nothing for so many ticks."""
    actions = allocate_actions(game.spec, game.num_tables)
    actions[0]["delay"][:] = delay - 1
    return actions


def place(state: State, side: int, kind: int, number: int, x: float, y: float) -> NDArray[np.int64]:
    """New idle units of one kind at table 0; returns their slots."""
    slots = np.flatnonzero(~state.alive[0, side])[:number]
    at = (0, side, slots)
    state.alive[at], state.kind[at], state.health[at] = True, kind, rules.HEALTH[kind]
    state.x[at], state.y[at], state.order[at] = x, y, NO_OP
    return slots


def rows_of(game: SkirmishTables, seat: int, flag: int, kind: int) -> NDArray[np.int64]:
    """Entity rows of a kind that the seat owns, or sees of the enemy."""
    entities = game.view.observation[0]["entities"][0, seat]
    return np.flatnonzero((entities[:, flag] > 0) & (entities[:, KIND] == kind))


@pytest.mark.parametrize("mode", ["1v1", "3v3", "5v5"])
def test_keeps_the_promises_of_a_game(mode: Mode) -> None:
    report = check_game(Skirmish(mode=mode), episodes=2, tables=2, max_steps=40, bot_seconds=0.05)
    assert report.ok, str(report)


def test_both_sides_begin_with_the_same_view() -> None:
    for mode in ("1v1", "5v5"):
        game = fresh(3, mode)
        half = game.spec.num_seats // 2
        for name, array in game.view.observation[0].items():
            assert array[:, :half] == pytest.approx(array[:, half:], abs=1e-5), name
        for name, array in game.view.legal[0].items():
            np.testing.assert_array_equal(array[:, :half], array[:, half:], err_msg=name)


def test_workers_earn_what_a_base_spends() -> None:
    game = fresh()
    start = game.state.resources[0].copy()
    actions = pauses(game, delay=1)
    actions[0]["action"][0, 0] = rules.TRAIN[SPEAR]
    game.step(actions)
    assert game.state.resources[0].tolist() == [start[0] - rules.COST[SPEAR], start[1]]

    actions = pauses(game)
    actions[0]["action"][0, 1] = GATHER
    actions[0]["units"][0, 1] = -1
    workers = rows_of(game, 1, OWN, WORKER)
    actions[0]["units"][0, 1, : len(workers)] = workers
    game.step(actions)
    for _ in range(6):
        game.step(pauses(game))
    assert (game.state.kind[0, 0][game.state.alive[0, 0]] == SPEAR).sum() == 1
    assert game.state.resources[0, 1] > start[1]
    assert game.state.resources[0, 0] == start[0] - rules.COST[SPEAR]
    taken = rules.PATCH_AMOUNT * rules.PATCHES - game.state.patch[0].sum()
    in_hand = rules.LOAD * int(game.state.carries[0].sum())
    assert taken == game.state.resources[0, 1] - start[1] + in_hand


def test_what_cannot_be_paid_is_masked() -> None:
    game = fresh()
    game.state.resources[0] = rules.COST[SPEAR] - 1
    game.step(pauses(game, delay=1))
    allowed = game.view.legal[0]["action"][0, 0]
    assert allowed[rules.TRAIN[WORKER]]
    assert not any(allowed[rules.TRAIN[kind]] for kind in FIGHTERS)
    assert not allowed[ATTACK]


def test_the_enemy_is_seen_only_near_own_units() -> None:
    game = fresh()
    assert not rows_of(game, 0, ENEMY, BASE).size
    base_x, base_y = game.state.x[0, 1, 0], game.state.y[0, 1, 0]
    place(game.state, 0, HORSE, 1, base_x - 4.0, base_y)
    game.step(pauses(game, delay=1))
    (row,) = rows_of(game, 0, ENEMY, BASE)
    seen = game.view.observation[0]["entities"][0, 0, row]
    assert seen[[X, Y]] * rules.MAP == pytest.approx([base_x, base_y])
    assert game.view.legal[0]["target_unit"][0, 0, row]
    assert game.view.legal[0]["action"][0, 0, ATTACK]
    # The other side sees the horse, on a map that is turned.
    (row,) = rows_of(game, 1, ENEMY, HORSE)
    seen = game.view.observation[0]["entities"][0, 1, row]
    horse = np.flatnonzero(game.state.kind[0, 0] == HORSE)[0]
    assert seen[X] * rules.MAP == pytest.approx(rules.MAP - game.state.x[0, 0, horse])


def test_a_seat_acts_again_after_its_delay() -> None:
    game = fresh()
    actions = pauses(game)
    actions[0]["delay"][0] = (2, 4)
    game.step(actions)
    assert game.view.clock[0] == 3
    assert game.view.to_act[0].tolist() == [True, False]
    actions[0]["delay"][0] = (1, 0)
    game.step(actions)
    assert game.view.clock[0] == 5
    assert game.view.to_act[0].tolist() == [True, True]


def test_an_attack_goes_for_the_unit_that_is_named() -> None:
    game = fresh()
    place(game.state, 0, SPEAR, 2, 15.0, 16.0)
    place(game.state, 1, BOW, 1, 16.0, 16.0)
    far = place(game.state, 1, WORKER, 1, 18.5, 16.0)[0]
    game.step(pauses(game, delay=1))
    spears = rows_of(game, 0, OWN, SPEAR)
    (row,) = rows_of(game, 0, ENEMY, WORKER)
    actions = pauses(game)
    actions[0]["action"][0, 0] = ATTACK
    actions[0]["units"][0, 0] = -1
    actions[0]["units"][0, 0, : len(spears)] = spears
    actions[0]["target_unit"][0, 0] = row
    for _ in range(3):
        game.step(actions)
        actions = pauses(game)
    assert not game.state.alive[0, 1, far]


def test_a_fallen_base_decides() -> None:
    game = fresh()
    game.state.health[0, 1, 0] = 1
    game.state.alive[0, 1, 1:] = False  # a spear takes on workers before it takes on a base
    place(game.state, 0, SPEAR, 1, float(game.state.x[0, 1, 0]) - 1, float(game.state.y[0, 1, 0]))
    game.step(pauses(game))
    assert game.view.over[0]
    assert game.view.score[0].tolist() == game.view.reward[0].tolist() == [1.0, -1.0]


def test_the_time_limit_gives_half_the_lead() -> None:
    game = fresh(2)
    game.state.tick[:] = rules.LAST_TICK - 1
    game.state.health[1, 1, 0] //= 2
    left = (game.state.health * game.state.alive)[1].sum(axis=1)
    game.step(pauses(game))
    assert game.view.over.all()
    assert game.view.score[0].tolist() == [0.0, 0.0]
    lead = 0.5 * (left[0] - left[1]) / left.sum()
    assert game.view.score[1] == pytest.approx([lead, -lead])


def test_the_bases_alone_decide_between_heroes() -> None:
    game = fresh(2, mode="3v3")
    game.state.tick[:] = rules.LAST_TICK - 1
    game.state.health[0, 0, 1] //= 2
    game.state.health[1, 1, 0] -= 2
    game.step(pauses(game))
    assert game.view.over.all()
    assert game.view.score[0].tolist() == [0.0, 0.0]
    assert game.view.score[1, 0] == pytest.approx(1 / (2 * rules.HEALTH[BASE] - 2))
    assert game.view.reward[1].tolist() == [*[game.view.score[1, 0]] * 3, *[game.view.score[1, 1]] * 3]


def test_a_dead_hero_waits_and_comes_back() -> None:
    game = fresh(mode="3v3")
    assert [rows_of(game, seat, SELF, kind).size for seat, kind in enumerate(FIGHTERS)] == [1, 1, 1]
    game.state.health[0, 0, 1] = 1
    place(game.state, 1, BOW, 2, float(game.state.x[0, 0, 1]) - 1, float(game.state.y[0, 0, 1]))
    game.step(pauses(game, delay=1))
    assert game.view.to_act[0].tolist() == [False, True, True, True, True, True]
    for _ in range(rules.RESPAWN_TICKS // 8 - 1):
        game.step(pauses(game))
        assert not game.view.to_act[0, 0]
    game.step(pauses(game))
    assert game.view.to_act[0, 0]
    assert game.view.clock[0] == 1 + rules.RESPAWN_TICKS
    assert game.state.health[0, 0, 1] == rules.HERO_HEALTH * rules.HEALTH[SPEAR]


def test_a_full_side_trains_no_more() -> None:
    game = fresh()
    game.state.resources[0] = 10_000
    place(game.state, 0, WORKER, SLOTS, 3.0, 3.0)
    game.step(pauses(game, delay=1))
    allowed = game.view.legal[0]["action"][0]
    assert not allowed[0, list(rules.TRAIN.values())].any()
    assert allowed[1, list(rules.TRAIN.values())].all()


def test_keeps_what_was_trained_in_order() -> None:
    game = fresh(2)
    assert isinstance(game, HasStrategy)
    game.state.resources[:] = 10_000
    wanted = [SPEAR, SPEAR, HORSE, SPEAR]
    for kind in wanted:
        actions = pauses(game, delay=1)
        actions[0]["action"][1, 0] = rules.TRAIN[kind]
        game.step(actions)
    for _ in range(4):
        game.step(pauses(game))
    order = game.strategy.build_order
    assert order[1, 0].tolist() == [*wanted, *[-1] * (rules.BUILD_ORDER - len(wanted))]
    assert (order[[0, 0, 1], [0, 1, 1]] == -1).all()
    none, one, three = ([number <= made for number in rules.BUILT] for made in (0, 1, 3))
    assert game.strategy.built[1, 0].tolist() == [*none, *three, *one, *none]
    assert not game.strategy.built[0].any()
    game.reset(np.array([1]), np.array([0], np.uint64))
    assert (game.strategy.build_order == -1).all()
    assert not game.strategy.built.any()


def test_a_long_build_order_is_cut() -> None:
    game = fresh()
    assert isinstance(game, HasStrategy)
    game.state.resources[:] = 10_000
    for _ in range(200):
        actions = pauses(game, delay=2)
        game.state.alive[0, 0, 5:] = False  # room for more
        allowed = game.view.legal[0]["action"][0, 0, rules.TRAIN[HORSE]]
        actions[0]["action"][0, 0] = rules.TRAIN[HORSE] if allowed else NO_OP
        game.step(actions)
    assert game.state.made[0, 0].sum() > rules.BUILD_ORDER
    assert (game.strategy.build_order[0, 0] == HORSE).all()
    assert game.strategy.built[0, 0].sum() == len(rules.BUILT)


def test_heroes_build_nothing() -> None:
    assert not isinstance(fresh(mode="3v3"), HasStrategy)


def test_names_what_is_not_legal() -> None:
    game = fresh()
    actions = pauses(game)
    actions[0]["action"][0, 1] = ATTACK
    with pytest.raises(ValueError, match=rf"skirmish: table 0, seat 1: action {ATTACK} is not one of \[0, 1, 2"):
        game.step(actions)
    actions[0]["action"][0, 1] = MOVE
    actions[0]["units"][0, 1] = [0, *[-1] * (rules.PICKS - 1)]  # the base
    with pytest.raises(ValueError, match=r"seat 1: units 0 is not one of \[1, 2, 3, 4\]"):
        game.step(actions)
    actions[0]["action"][0, 1] = ADVANCE
    actions[0]["units"][0, 1, 0] = 1
    actions[0]["target_point"][0, 1] = rules.CELLS**2
    with pytest.raises(ValueError, match=r"target_point 256 is not one of 0 to 255"):
        game.step(actions)


def test_names_a_mode_that_does_not_exist() -> None:
    with pytest.raises(ValueError, match="one of 1v1, 3v3, 5v5, got '2v2'"):
        Skirmish(mode="2v2")  # type: ignore[arg-type]


LINE_UPS = (("spear", "horse", "bow"), ("bow", "bow", "spear"))


def with_skills() -> SkirmishTables:
    """Heroes with skills who stand far from each other, in the middle of the map."""
    game = Skirmish(mode="3v3", heroes=LINE_UPS).tables(1)
    assert isinstance(game, SkirmishTables)
    game.reset(np.array([0]), np.array([0], np.uint64))
    game.state.x[0, :, 1:4], game.state.y[0, :, 1:4] = [[14, 16, 18], [4, 6, 8]], [[16, 16, 16], [28, 28, 28]]
    return game


def used(game: SkirmishTables, seat: int) -> None:
    """The seat uses its skill; everybody else waits for a tick."""
    game._show(np.array([0]))  # what the tests have moved
    actions = pauses(game, delay=1)
    actions[0]["action"][0, seat] = rules.SKILL
    game.step(actions)


def test_heroes_with_skills_keep_the_promises_of_a_game() -> None:
    report = check_game(Skirmish(mode="3v3", heroes=LINE_UPS), episodes=2, tables=2, max_steps=40, bot_seconds=0.05)
    assert report.ok, str(report)


def test_each_side_has_its_own_line_up() -> None:
    game = with_skills()
    assert game.state.kind[0, :, 1:4].tolist() == [[SPEAR, HORSE, BOW], [BOW, BOW, SPEAR]]
    with pytest.raises(ValueError, match="mode 3v3 has 3 heroes for each of 2 sides"):
        Skirmish(mode="3v3", heroes=(("spear",), ("bow",)))
    with pytest.raises(ValueError, match="mode 1v1 has no heroes"):
        Skirmish(heroes=(("spear",), ("bow",)))
    with pytest.raises(ValueError, match="a hero is one of spear, horse, bow, got 'mage'"):
        Skirmish(mode="3v3", heroes=(("spear", "horse", "mage"), ("spear", "horse", "bow")))


def test_a_horse_charges_at_the_nearest_enemy() -> None:
    game = with_skills()
    (near,) = place(game.state, 1, SPEAR, 1, 20.0, 16.0)
    game.state.health[0, 1, near] = full = 1000
    used(game, 1)
    assert game.state.x[0, 0, 2] == pytest.approx(20.0)
    assert full - game.state.health[0, 1, near] >= rules.CHARGE_DAMAGE


def test_a_bow_shoots_at_all_enemies_around_the_nearest() -> None:
    game = with_skills()
    game.state.order[0, 0, 1:4] = rules.MOVE  # nobody fights
    game.state.goal_x[0, 0, 1:4], game.state.goal_y[0, 0, 1:4] = 0, 16
    near = place(game.state, 1, WORKER, 3, 20.0, 18.0)
    (far,) = place(game.state, 1, WORKER, 1, 20.0, 24.0)
    game.state.health[0, 1, [*near, far]] = 500
    used(game, 2)
    assert (500 - game.state.health[0, 1, near]).tolist() == [rules.VOLLEY_DAMAGE] * 3
    assert game.state.health[0, 1, far] == 500
    assert game.state.x[0, 0, 3] < 18


def test_a_spear_heals_own_units_around_it_and_not_beyond_their_health() -> None:
    game = with_skills()
    full = game.state.full_health()[0, 0]
    game.state.health[0, 0, 1:4] = [full[1] - 20, full[2] - 200, 1]
    game.state.x[0, 0, 3] = 30
    used(game, 0)
    assert game.state.health[0, 0, 1:4].tolist() == [full[1], full[2] - 200 + rules.AID, 1]


def test_a_skill_has_to_wait_and_is_masked_until_then() -> None:
    game = with_skills()
    place(game.state, 1, WORKER, 1, 20.0, 16.0)
    game.state.health[0, 1, 4] = 10_000
    game.step(pauses(game, delay=1))
    skill, waits = game.view.legal[0]["action"][0, :, rules.SKILL], SCALARS + HERO_SCALARS
    assert skill.tolist() == [False, True, True, False, False, False]  # nobody to heal, no enemy near
    used(game, 1)
    assert skill.tolist() == [False, False, True, False, False, False]
    shown = game.view.observation[0]["scalars"][0, 1, waits:]
    assert shown.tolist() == pytest.approx([23 / 40, 0, 1, 0])
    with pytest.raises(ValueError, match=r"seat 1: action 4 is not one of \[0, 1, 2, 3\]"):
        used(game, 1)
    for _ in range(rules.SKILL_TICKS[HORSE]):
        game.step(pauses(game, delay=1))
    assert skill[1]


def test_a_match_on_a_game_server_names_the_heroes_of_each_camp() -> None:
    matches = ServerMatches(lambda _, options: as_source(Skirmish, options, "skirmish"), most_at_once=1)
    camps = tuple(Camp(bot=bot, heroes=heroes) for bot, heroes in zip(("push", "random"), LINE_UPS, strict=True))
    matches.start("one", MatchConfig(camps=camps, options={"mode": "3v3"}))
    result = matches.table("one").wait(60.0)
    assert (result.state, len(result.scores)) == ("finished", 1), result
