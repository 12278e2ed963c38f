"""Inference inside an actor: the rows of many players in few calls, with the same answers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ludus.data.records import ModelId
from ludus.data.specs import ActionSpec, Entities, ObservationSpec, Pointer, SeatKind
from ludus.data.trees import take
from ludus.games.builtin.connect_four import ConnectFour
from ludus.games.builtin.hills import Hills
from ludus.games.game import GameSource
from ludus.models.network_policy import ActorCritic, NetworkPolicy
from ludus.workers.inference import ActingRows, Group, InlineInference, PolicyStack
from ludus.workers.player_cache import FixedPlayers, SeatedPlayer

MODEL = ActorCritic(hidden=(16, 16))
WITH_MEMORY = ActorCritic(hidden=(16,), memory=8)


def seated(game: GameSource, model: ActorCritic, number: int, *, pinned: bool) -> SeatedPlayer:
    policies = tuple(model.build(kind, 10 * number + i) for i, kind in enumerate(game.spec.kinds))
    return SeatedPlayer(policies=policies, model=ModelId(f"p{number}", 0, number), pinned=pinned)


def players(game: GameSource, model: ActorCritic, count: int) -> dict[str, SeatedPlayer]:
    """`learner` and `count` pinned ones."""
    pinned = {f"p{i}": seated(game, model, i, pinned=True) for i in range(1, count + 1)}
    return {"learner": seated(game, model, 0, pinned=False), **pinned}


def rows_for(game: GameSource, held: dict[str, SeatedPlayer], counts: dict[str, int], seed: int = 0) -> ActingRows:
    """Random observations of the first kind of seat; everything is legal that is at the start."""
    rng = np.random.default_rng(seed)
    total = sum(counts.values())
    tables = game.tables(total)
    tables.reset(np.arange(total), np.arange(total, dtype=np.uint64) + np.uint64(seed))
    kind, column = 0, 0
    policy = held["learner"].policies[kind]
    stops = np.cumsum(list(counts.values())).tolist()
    return ActingRows(
        kind=kind,
        groups=tuple(
            Group(player, stop - count, stop, want_value=player == "learner")
            for (player, count), stop in zip(counts.items(), stops, strict=True)
        ),
        observation={
            name: rng.integers(0, 2, (total, *array.shape[2:])).astype(array.dtype)
            for name, array in tables.view.observation[kind].items()
        },
        legal=take(tables.view.legal[kind], (np.arange(total), column)),
        state={
            name: rng.normal(size=(total, *spec.shape)).astype(np.float32) for name, spec in policy.state_arrays.items()
        },
        uniforms=rng.random((total, policy.num_draws), dtype=np.float32),
    )


class CountedCalls:
    """How often, and with how many rows, policies were asked."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.shapes: list[tuple[int, ...]] = []
        plain = NetworkPolicy.act

        def act(policy: NetworkPolicy, observation: Any, legal: Any, state: Any, uniforms: Any, **how: Any) -> Any:
            self.shapes.append(uniforms.shape[:-1])
            return plain(policy, observation, legal, state, uniforms, **how)

        monkeypatch.setattr(NetworkPolicy, "act", act)


@pytest.mark.parametrize("game", [ConnectFour(), Hills()], ids=["connect_four", "hills"])
@pytest.mark.parametrize("model", [MODEL, WITH_MEMORY], ids=["plain", "memory"])
@pytest.mark.parametrize(
    "counts",
    [
        {"p2": 3, "learner": 5, "p1": 1, "p4": 7, "p3": 2},
        {"p1": 2, "learner": 9, "p2": 11},  # convolutions get 10 and 12
        {"learner": 17},
    ],
    ids=["few", "filled up", "alone"],
)
def test_stacked_players_decide_as_each_alone(game: GameSource, model: ActorCritic, counts: dict[str, int]) -> None:
    held = players(game, model, 4)
    rows = rows_for(game, held, counts)
    inference = InlineInference(FixedPlayers(held), [held["learner"].policies[0].num_draws])
    answer = inference.act(rows)
    for group in rows.groups:
        here = slice(group.start, group.stop)
        alone = (
            held[group.player]
            .policies[0]
            .act(
                take(rows.observation, here),
                take(rows.legal, here),
                take(rows.state, here),
                rows.uniforms[here],
                want_value=group.want_value,
            )
        )
        for name, action in alone.action.items():
            np.testing.assert_array_equal(answer.acted.action[name][here], action)
        np.testing.assert_allclose(answer.acted.log_prob[here], alone.log_prob, atol=1e-5)
        np.testing.assert_allclose(answer.acted.value[here], alone.value, atol=1e-5)
        for name, state in alone.state.items():
            np.testing.assert_allclose(answer.acted.state[name][here], state, atol=1e-5)
        assert set(answer.version[here].tolist()) == {held[group.player].step}


def test_one_dense_call_and_one_stacked_call(monkeypatch: pytest.MonkeyPatch) -> None:
    game = ConnectFour()
    held = players(game, MODEL, 16)
    calls = CountedCalls(monkeypatch)
    rows = rows_for(game, held, {"learner": 64, **{f"p{i}": 4 for i in range(1, 17)}})
    InlineInference(FixedPlayers(held), [1]).act(rows)
    assert sorted(calls.shapes) == [(16, 4), (64,)]


@pytest.mark.parametrize(("game", "few"), [(Hills(), True), (ConnectFour(), False)], ids=["planes", "vector"])
def test_convolutions_see_few_numbers_of_rows(game: GameSource, few: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    held = players(game, MODEL, 2)
    inference = InlineInference(FixedPlayers(held), [held["learner"].policies[0].num_draws])
    calls = CountedCalls(monkeypatch)
    counts = range(1, 41)
    for count in counts:
        answer = inference.act(rows_for(game, held, {"learner": count, "p1": 2, "p2": count}))
        assert len(answer.version) == len(answer.acted.value) == 2 * count + 2
    alone = {shape[-1] for shape in calls.shapes if len(shape) == 1}
    together = {shape[-1] for shape in calls.shapes if len(shape) == 2}
    sizes = {*range(1, 9), 10, 12, 14, 16, 20, 24, 28, 32, 40}
    assert alone == (sizes if few else set(counts))
    assert together == ((sizes if few else set(counts)) - {1})


def test_who_has_left_makes_room_for_the_next() -> None:
    game = ConnectFour()
    held = players(game, MODEL, 9)
    stack = PolicyStack()
    for first in range(1, 7):
        here = [(f"p{i}", held[f"p{i}"]) for i in range(first, first + 3)]
        places = stack.seat(here, kind=0)
        assert stack.size == 3
        assert len(set(places)) == 3
        for (_, one), place in zip(here, places, strict=True):
            for name, tensor in one.policies[0].state_dict().items():
                np.testing.assert_array_equal(stack.policy.state_dict()[name][place], tensor)
    stack.seat([(f"p{i}", held[f"p{i}"]) for i in range(1, 10)], kind=0)
    assert stack.size == 9
    stack.seat([("p1", held["p1"]), ("p2", held["p2"])], kind=0)
    assert stack.size == 2  # a call costs as much as the stack is large


def test_a_value_that_is_trained_on_is_never_left_out() -> None:
    """Also where the player that wants it is pinned, as in a match between two frozen copies."""
    game = ConnectFour()
    held = players(game, MODEL, 2)
    rows = rows_for(game, held, {"p1": 2, "p2": 2})
    asked = ActingRows(
        kind=0,
        groups=tuple(Group(g.player, g.start, g.stop, want_value=True) for g in rows.groups),
        observation=rows.observation,
        legal=rows.legal,
        state=rows.state,
        uniforms=rows.uniforms,
    )
    assert InlineInference(FixedPlayers(held), [1]).act(asked).acted.value.all()


def test_rows_that_fill_a_stack_up_have_a_legal_action() -> None:
    """A pointer into the things in sight has none on a row that is all zero."""
    kind = SeatKind(
        name="seat",
        observation=ObservationSpec(parts={"things": Entities(maximum=6, features=3)}),
        action=ActionSpec(heads={"target": Pointer(into="things")}),
    )
    held = {
        f"p{i}": SeatedPlayer(policies=(MODEL.build(kind, i),), model=ModelId(f"p{i}", 0, i), pinned=True)
        for i in range(3)
    }
    num_rows, rng = 8, np.random.default_rng(0)
    inference = InlineInference(FixedPlayers(held), [1])
    for counts in ({"p0": 5, "p1": 3}, {"p0": 3, "p1": 4, "p2": 1}, {"p0": 6, "p2": 2}):
        stops = np.cumsum(list(counts.values())).tolist()
        rows = ActingRows(
            kind=0,
            groups=tuple(
                Group(player, stop - count, stop, want_value=False)
                for (player, count), stop in zip(counts.items(), stops, strict=True)
            ),
            observation={
                "things": rng.normal(size=(num_rows, 6, 3)).astype(np.float32),
                "things_length": np.full(num_rows, 4, np.int32),
            },
            legal={"target": np.ones((num_rows, 6), np.bool_)},
            state={},
            uniforms=rng.random((num_rows, 1), dtype=np.float32),
        )
        [answer] = inference.act_all([rows])
        assert (answer.acted.action["target"] < 4).all()
