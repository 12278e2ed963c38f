"""A person's game: moves, what the agent answers, what it thinks, orders, and what is refused."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from played_runs import small

from ludus.algorithms.ppo import PPO
from ludus.data.records import ModelId
from ludus.evaluation.play.session import PlaySession, SeatedOpponent, WrongMove, within
from ludus.evaluation.play.views import find_view
from ludus.experiment import Experiment
from ludus.games.builtin.connect_four import ConnectFour
from ludus.games.builtin.kuhn import Kuhn
from ludus.games.builtin.skirmish import Skirmish
from ludus.games.builtin.skirmish_rules import SLOTS
from ludus.games.builtin.tic_tac_toe import TicTacToe
from ludus.games.game import GameBatch, GameSource, allocate_actions
from ludus.models.network_policy import ActorCritic
from ludus.recipes import connect_four, kuhn, skirmish
from ludus.runtime.networks import build_policies
from ludus.workers.player_cache import SeatedPlayer


def against_bot(source: GameSource, bot: str, seat: int, seed: int = 0) -> PlaySession:
    agent = SeatedOpponent(SeatedPlayer(bot=source.bots()[bot]), seed=0)
    return PlaySession(source, find_view(source), agent, seat, seed=seed)


def untrained(experiment: Experiment) -> SeatedPlayer:
    """A player with fresh weights."""
    return SeatedPlayer(policies=build_policies(experiment, 0), model=ModelId("main", 0, 1))


def against_main(experiment: Experiment, seat: int) -> PlaySession:
    source = experiment.game
    return PlaySession(source, find_view(source), SeatedOpponent(untrained(experiment), seed=1), seat, seed=0)


def test_the_agent_answers_every_move_until_the_end() -> None:
    with closing(against_bot(TicTacToe(), "perfect", 1)) as session:
        shown = session.show()
        assert shown["view"]["stones"].count(0) == 1, "seat 0 has begun"
        assert not session.started
        while session.ended is None:
            session.move(min(session.options()))
            assert session.started
        assert session.show()["over"] is True
        assert session.ended.score[1] <= 0, "nobody beats it"
        assert sum(session.ended.decisions) == session.ended.recording.num_steps
        assert session.options() == {}
        with pytest.raises(WrongMove, match="the game is over"):
            session.move(0)


@pytest.mark.parametrize("option", [-1, 9, 4])
def test_a_wrong_move_is_refused_and_changes_nothing(option: int) -> None:
    with closing(against_bot(TicTacToe(), "perfect", 0)) as session:
        session.move(4)
        before = session.show()
        with pytest.raises(WrongMove, match=rf"option {option} is not legal; legal are "):
            session.move(option)
        assert session.show() == before
        with pytest.raises(WrongMove, match="tic_tac_toe is not played in real time"):
            session.tick([])


def test_in_an_open_game_the_agent_tells_what_it_thought() -> None:
    with closing(against_main(small(connect_four.experiment()), 1)) as session:
        told = session.show(thoughts=True)["thoughts"]
        assert sum(option["p"] for option in told["yours"]["options"]) == pytest.approx(1, abs=1e-3)
        assert told["its"]["chose"] in range(7)
        assert told["its"]["value"] is not None
        assert session.show()["thoughts"] is None, "only on request"


@pytest.mark.parametrize("seat", [0, 1])
def test_a_move_that_was_taken_back_leaves_no_trace(seat: int) -> None:
    with closing(against_main(small(connect_four.experiment()), seat)) as session:
        assert not session.can_undo, "nothing has been played"
        with pytest.raises(WrongMove, match="there is no move of yours to take back"):
            session.undo()
        session.move(3)
        before = session.show(thoughts=True)
        session.move(3)
        assert session.show(thoughts=True) != before
        session.undo()
        assert session.show(thoughts=True) == before
        while session.ended is None:
            session.move(min(session.options()))
        assert not session.can_undo
        assert session.ended.recording.num_steps == sum(session.ended.decisions), "the replay has the game that counts"
        with pytest.raises(WrongMove, match="the game is over"):
            session.undo()


def test_an_agent_forgets_what_was_taken_back() -> None:
    experiment = replace(small(connect_four.experiment()), model=ActorCritic(hidden=(8,), memory=4))
    with closing(against_main(experiment, 0)) as session:
        session.move(2)
        before = session.show(thoughts=True)["thoughts"]["yours"]
        for column in (0, 6):
            session.move(column)
            session.undo()
        assert session.show(thoughts=True)["thoughts"]["yours"] == before


def test_what_was_revealed_cannot_be_taken_back() -> None:
    with closing(against_bot(Kuhn(), "equilibrium", 0)) as cards, closing(against_bot(Skirmish(), "rush", 0)) as battle:
        with pytest.raises(WrongMove, match="no undo: a move would be taken back with what it has revealed"):
            cards.undo()
        with pytest.raises(WrongMove, match="no undo: time does not go back in a real-time game"):
            battle.undo()


def test_the_analysis_has_every_turn_with_the_value_and_the_likeliest_move() -> None:
    with closing(against_main(small(connect_four.experiment()), 0)) as session:
        assert session.show()["analysis"] is None, "while the game goes on, only with thoughts"
        values, likeliest, moves = [], [], []
        while session.ended is None:
            yours = session.show(thoughts=True)["thoughts"]["yours"]
            values.append(yours["value"])
            likeliest.append(max(yours["options"], key=lambda option: option["p"])["name"])
            moves.append(min(session.options()))
            session.move(moves[-1])
        told = session.show()["analysis"]
        assert [turn["value"] for turn in told["turns"]] == values
        assert [turn["best"] for turn in told["turns"]] == likeliest
        assert [turn["played"] for turn in told["turns"]] == [str(move + 1) for move in moves]
        assert told["end"] == {"step": sum(session.ended.decisions), "value": session.ended.score[0]}
        assert told["range"] == (-1.0, 1.0)
        after = [*values[1:], session.ended.score[0]]
        falls = [
            a - b if m != p else 0
            for a, b, m, p in zip(values, after, likeliest, map(str, (m + 1 for m in moves)), strict=True)
        ]
        assert told["worst"] == (int(np.argmax(falls)) if max(falls) > 0 else None)


def test_against_a_bot_a_judge_evaluates() -> None:
    experiment = small(connect_four.experiment())
    source = experiment.game
    agent = SeatedOpponent(SeatedPlayer(bot=source.bots()["random"]), seed=0)
    judge = SeatedOpponent(untrained(experiment), seed=1)
    with (
        closing(PlaySession(source, find_view(source), agent, 0, seed=0, judge=judge)) as session,
        closing(against_main(experiment, 0)) as other,
        closing(against_bot(source, "random", 0)) as alone,
    ):
        assert session.show()["evaluation"] == other.show()["evaluation"]
        assert alone.show()["evaluation"] is None


@pytest.mark.parametrize(("value", "shown"), [(1.7, 1.0), (-1.2, -1.0), (0.25, 0.25)])
def test_an_expected_score_stays_within_the_scores_of_the_game(value: float, shown: float) -> None:
    assert within(value, (-1.0, 1.0)) == shown
    assert within(value, None) == value


def test_in_a_game_of_cards_its_thoughts_wait_for_the_end() -> None:
    """What it thinks of its own place would tell its card. What it thinks of the person's depends on what the
    person sees: it is the same whatever card the agent holds."""
    source = Kuhn()
    seated = untrained(small(replace(kuhn.experiment(), game=source, model=ActorCritic(), algorithm=PPO())))
    by_card: dict[str, list[Any]] = {}
    others: dict[str, set[str]] = {}
    for seed in range(12):
        with closing(PlaySession(source, find_view(source), SeatedOpponent(seated, seed=1), 0, seed=seed)) as session:
            shown = session.show(thoughts=True)
            [own, hidden] = shown["view"]["hands"]
            assert hidden["card"] is None
            assert shown["thoughts"]["its"] is None
            by_card.setdefault(own["card"], []).append(shown["thoughts"]["yours"])
            while session.ended is None:
                session.move(1)
            shown = session.show(thoughts=True)
            others.setdefault(own["card"], set()).add(shown["view"]["hands"][1]["card"])
            assert shown["view"]["hands"][1]["card"] is not None
            assert shown["thoughts"]["its"]["value"] is not None
            assert shown["thoughts"]["its"]["options"][0]["name"] == "fold"
    assert max(map(len, others.values())) == 2, "both cards that it could hold have come up"
    for told in by_card.values():
        assert all(one == told[0] for one in told)


def looked_at(memory: int, columns: list[int]) -> float:
    """What a policy thinks of seat 0's place after these moves, having seen it at all its turns."""
    source = ConnectFour()
    policy = ActorCritic(hidden=(8,), memory=memory).build(source.spec.kinds[0], seed=0)
    agent = SeatedOpponent(SeatedPlayer(policies=(policy,), model=ModelId("main", 0, 1)), seed=0)
    tables = source.tables(1)
    tables.reset(np.array([0]), np.array([0], np.uint64))
    actions = allocate_actions(source.spec, 1)
    for turn, column in enumerate(columns):
        agent.look(tables, turn % 2)
        actions[0]["move"][:] = column
        tables.step(actions)
    opinion = agent.look(tables, 0)
    assert opinion is not None
    return opinion.value


def test_an_agent_with_memory_remembers_each_seat() -> None:
    one_way, other_way = [0, 6, 1, 5], [1, 6, 0, 5]
    assert looked_at(0, one_way) == looked_at(0, other_way), "the same board"
    assert looked_at(8, one_way) != looked_at(8, other_way), "but another game"


def test_a_bot_tells_nothing() -> None:
    with closing(against_bot(ConnectFour(), "rules", 1)) as session:
        told = session.show(thoughts=True)["thoughts"]
        assert told == {"thinks": False, "yours": None, "its": None}


def own(session: PlaySession, kind: int) -> list[int]:
    view = session.show()["view"]
    return [unit[0] for unit in view["units"] if unit[2] == session.seat and unit[1] == kind]


@pytest.mark.parametrize("seat", [0, 1])
def test_orders_move_units_one_order_a_tick(seat: int) -> None:
    with closing(against_bot(Skirmish(), "boom", seat)) as session:
        workers = own(session, 1)
        assert len(workers) == 4

        def at(unit: int) -> tuple[float, float]:
            [found] = [one for one in session.show()["view"]["units"] if one[0] == unit]
            return found[3], found[4]

        session.tick([])
        assert not session.started, "to let time go by is nothing yet"
        before = at(workers[0])
        goal = [15.0, 15.0]
        session.tick([{"order": "move", "units": workers[:1], "point": goal}, {"train": "worker"}])
        shown = session.show()
        assert session.started
        assert (shown["view"]["tick"], shown["waiting"]) == (2, 1)
        assert shown["view"]["sides"][seat]["queue"] == [], "the second order waits its tick"
        session.tick([])
        assert session.show()["view"]["sides"][seat]["queue"] == [1]
        for _ in range(30):
            session.tick([])
        after = at(workers[0])
        assert np.hypot(after[0] - goal[0], after[1] - goal[1]) < 2.0
        assert np.hypot(before[0] - goal[0], before[1] - goal[1]) > 8.0
        assert session.show()["view"]["tick"] == 33


def test_more_units_than_a_decision_names_take_several() -> None:
    with closing(against_bot(Skirmish(), "boom", 0)) as session:
        session.tick([{"order": "gather", "units": list(range(1, SLOTS))}])
        assert session.show()["waiting"] == 3, "27 units, 8 an order"
        session.tick([])
        assert session.show()["missed"] == "the units of that order are gone"
        assert session.show()["waiting"] == 0, "what cannot be done costs no tick"
        assert {unit[6] for unit in session.show()["view"]["units"] if unit[1] == 1} == {4}, "all gather"


@pytest.mark.parametrize(
    ("order", "said"),
    [
        (3, "an order is an object, got 3"),
        ({"train": "dragon"}, "train one of worker, spear, horse, bow, not 'dragon'"),
        ({"order": "dance", "units": [1]}, "an order is one of move, advance, attack, gather, skill, not 'dance'"),
        ({"order": "move", "units": "all"}, "the units of an order are their numbers, got 'all'"),
        ({"order": "move", "units": [1], "point": [40, 2]}, "a point is .x, y. from 0 to 32, got .40, 2."),
        ({"order": "attack", "units": [1]}, "a target is the number of a unit, got None"),
    ],
)
def test_an_order_that_makes_no_sense_is_refused(order: Any, said: str) -> None:
    with closing(against_bot(Skirmish(), "boom", 0)) as session:
        with pytest.raises(WrongMove, match=said):
            session.tick([order])
        assert session.show()["view"]["tick"] == 0


@pytest.mark.parametrize(
    ("order", "said"),
    [
        ({"order": "attack", "units": [1], "target": SLOTS}, "the target is out of sight"),
        ({"order": "move", "units": [20], "point": [3, 3]}, "the units of that order are gone"),
        ({"order": "gather", "units": [0]}, "the units of that order are gone"),  # the base is no unit to send
    ],
)
def test_an_order_that_cannot_be_carried_out_is_given_up_and_named(order: Any, said: str) -> None:
    with closing(against_bot(Skirmish(), "boom", 0)) as session:
        session.tick([order])
        assert session.show()["missed"] == said
        session.tick([])
        assert session.show()["missed"] == ""


def test_the_critic_that_sees_through_the_fog_keeps_its_value_to_itself() -> None:
    with closing(against_main(small(skirmish.experiment()), 0)) as session:
        told = session.show(thoughts=True)["thoughts"]
        assert told["yours"]["value"] is None
        assert told["its"] is None
        assert [option["name"] for option in told["yours"]["options"]][:3] == ["nothing", "move", "advance"]


def test_a_hero_takes_orders_too() -> None:
    source = Skirmish(mode="3v3")
    with closing(against_bot(source, "push", 4)) as session:
        view = session.show()["view"]
        assert (view["heroes"], view["own"]) == (3, 2)
        [before] = [unit for unit in view["units"] if unit[0] == 2]
        for _ in range(10):
            session.tick([{"order": "move", "units": [0], "point": [16, 5]}])
        [after] = [unit for unit in session.show()["view"]["units"] if unit[0] == 2]
        assert after[3] > before[3] + 3
        session.tick([{"order": "gather", "units": [0]}])
        assert session.show()["missed"] == "a hero cannot gather"


class Lost:
    """A bot that breaks down."""

    def act(self, game: GameBatch, tables: Any, seats: Any, rng: Any) -> Any:
        raise RuntimeError("no idea")


def test_an_agent_that_fails_ends_the_game_with_an_error() -> None:
    source = TicTacToe()
    agent = SeatedOpponent(SeatedPlayer(bot=Lost()), seed=0)
    session = PlaySession(source, find_view(source), agent, 0, seed=0)
    with closing(session), pytest.raises(RuntimeError, match="no idea"):
        session.move(0)
    with pytest.raises(RuntimeError, match="no idea"):
        PlaySession(source, find_view(source), agent, 1, seed=0)
