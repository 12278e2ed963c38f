"""The policy worker: what several actors ask is answered together, and as each would have answered itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from test_inline_inference import MODEL, WITH_MEMORY, CountedCalls, players, rows_for

from ludus.data.trees import take
from ludus.games.builtin.connect_four import ConnectFour
from ludus.games.builtin.siege import Siege
from ludus.games.game import GameSource
from ludus.models.network_policy import ActorCritic
from ludus.models.policy import Policy
from ludus.store.model_pool import ModelPoolError
from ludus.system.process import PeerGone
from ludus.workers.inference import ActingRows, Group, InferenceResult, InlineInference
from ludus.workers.player_cache import FixedPlayers, SeatedPlayer
from ludus.workers.policy_worker import COUNTERS, InferenceFailed, PolicyWorker, RequestArea

GAME = ConnectFour()


class Surroundings:
    """Areas of several actors, and one policy worker after the other."""

    def __init__(self, num_actors: int, *, game: GameSource = GAME, model: ActorCritic = MODEL) -> None:
        self.held = players(game, model, 3)
        self.policies = self.held["learner"].policies
        self.areas = [RequestArea(self.policies, [16] * len(self.policies), np.zeros) for _ in range(num_actors)]
        self.inline = InlineInference(FixedPlayers(self.held), [policy.num_draws for policy in self.policies])
        self.counters = np.zeros(len(COUNTERS))
        self.woken: list[int] = []
        self.worker = self.start(self.inline)

    def start(self, inference: Any, wake: Callable[[int], None] | None = None) -> PolicyWorker:
        return PolicyWorker(
            inference, self.areas, self.policies, delay_s=5.0, wake=wake or self.woken.append, counters=self.counters
        )

    def ask(self, *requests: ActingRows) -> None:
        """Each actor asks its own."""
        for area, rows in zip(self.areas, requests, strict=True):
            area.ask([rows])

    def answers(self, *requests: ActingRows) -> list[InferenceResult]:
        return [area.answers([rows])[0] for area, rows in zip(self.areas, requests, strict=True)]


def same(answer: InferenceResult, other: InferenceResult) -> None:
    """Equal but for the last bits: matrix products of other sizes add in another order."""
    for name, action in answer.acted.action.items():
        assert np.array_equal(action, other.acted.action[name])
    assert np.array_equal(answer.version, other.version)
    assert np.allclose(answer.acted.log_prob, other.acted.log_prob, atol=1e-5)
    for name, state in answer.acted.state.items():
        assert np.allclose(state, other.acted.state[name], atol=1e-5)


def wanted_values(rows: ActingRows, answer: InferenceResult) -> Any:
    return [answer.acted.value[group.start : group.stop] for group in rows.groups if group.want_value]


@pytest.mark.parametrize("model", [MODEL, WITH_MEMORY], ids=["plain", "memory"])
def test_actors_are_answered_together_as_each_alone(monkeypatch: pytest.MonkeyPatch, model: ActorCritic) -> None:
    around = Surroundings(3, model=model)
    requests = (
        rows_for(GAME, around.held, {"learner": 4, "p1": 3, "p2": 2}, seed=1),
        rows_for(GAME, around.held, {"p2": 5, "learner": 2}, seed=2),
        rows_for(GAME, around.held, {"p3": 6}, seed=3),
    )
    alone = [around.inline.act(rows) for rows in requests]
    around.ask(*requests)
    calls = CountedCalls(monkeypatch)
    assert around.worker.step().count == 22
    assert sorted(calls.shapes) == [(3, 7), (6,)], "one stacked call, and one dense call for the learner"
    assert around.woken == [0, 1, 2]
    for rows, answer, other in zip(requests, around.answers(*requests), alone, strict=True):
        same(answer, other)
        for value, expected in zip(wanted_values(rows, answer), wanted_values(rows, other), strict=True):
            assert np.allclose(value, expected, atol=1e-5)
    versions = around.areas[1].kinds[0].versions(2)
    assert versions == [(0, 2), (0, 0)], "by group, the incarnation and step of who decided"
    assert around.counters[:3].tolist() == [1, 3, 22]


def test_kinds_of_seats_travel_together() -> None:
    game = Siege()
    around = Surroundings(2, game=game, model=ActorCritic(hidden=(8,), channels=(4,), entity_size=8))
    assert len(around.policies) == 2
    both = [rows_at_start(game, around.policies[kind], kind, count=3 - kind) for kind in (0, 1)]
    alone = [around.inline.act(rows) for rows in both]
    around.areas[1].ask(both)
    assert around.worker.step().count == 5
    for answer, other in zip(around.areas[1].answers(both), alone, strict=True):
        same(answer, other)
        assert np.array_equal(answer.acted.value, other.acted.value)
    assert around.woken == [1], "who has not asked is left alone"
    around.areas[1].ask(both[:1])
    assert around.worker.step().count == 3, "the rows of the other kind are those of an older request"


def rows_at_start(game: GameSource, policy: Policy, kind: int, count: int, player: str = "learner") -> ActingRows:
    """What one seat of the kind sees at the start of an episode."""
    tables = game.tables(count)
    tables.reset(np.arange(count), np.arange(count, dtype=np.uint64))
    return ActingRows(
        kind=kind,
        groups=(Group(player, 0, count, want_value=True),),
        observation=take(tables.view.observation[kind], (slice(None), 0)),
        legal=take(tables.view.legal[kind], (slice(None), 0)),
        state={},
        uniforms=np.full((count, policy.num_draws), 0.5, np.float32),
    )


def test_it_waits_for_those_who_asked_last_time_and_not_for_ever() -> None:
    around = Surroundings(2)
    rows = rows_for(GAME, around.held, {"learner": 2})
    worker, (first, second) = around.worker, around.areas
    assert worker.patience(0.0) is None
    first.ask([rows])
    assert worker.patience(first.asked_at) == 0.0, "nobody else was ever there"
    worker.step()
    assert worker.patience(first.asked_at) is None
    second.ask([rows])
    assert worker.patience(second.asked_at + 1.0) == pytest.approx(4.0), "the first one may ask again"
    first.ask([rows])
    assert worker.patience(second.asked_at + 1.0) == 0.0, "all are there"
    assert worker.step().count == 4
    second.ask([rows])
    assert worker.patience(second.asked_at + 5.5) == 0.0, "the bound"
    assert worker.step().count == 2
    second.ask([rows])
    assert worker.patience(second.asked_at) == 0.0, "who has let a batch go is not waited for"


def test_rows_that_cannot_be_decided_on_hurt_nobody_else() -> None:
    around = Surroundings(2)
    good, bad = (rows_for(GAME, around.held, {"learner": 3}, seed=seed) for seed in (1, 2))
    for mask in bad.legal.values():
        mask[1] = False
    around.ask(good, bad)
    assert around.worker.step().count == 3
    same(around.areas[0].answers([good])[0], around.inline.act(good))
    with pytest.raises(InferenceFailed, match=r"ValueError: head '.*', row 1: no option is legal"):
        around.areas[1].answers([bad])
    around.ask(good, good)
    around.worker.step()
    same(around.areas[1].answers([good])[0], around.inline.act(good))


class DamagedPlayers(FixedPlayers):
    def get(self, player: str) -> SeatedPlayer:
        if player == "p1":
            raise ModelPoolError("p1:0:1 has another digest")
        return super().get(player)


def test_weights_that_do_not_open_fail_who_needs_them_as_they_would_inline() -> None:
    around = Surroundings(2)
    damaged = InlineInference(DamagedPlayers(around.held), [1])
    requests = [rows_for(GAME, around.held, counts) for counts in ({"p1": 2}, {"p2": 2})]
    around.ask(*requests)
    assert around.start(damaged).step().count == 2
    with pytest.raises(ModelPoolError, match="p1:0:1 has another digest"):
        around.areas[0].answers([requests[0]])
    same(around.areas[1].answers([requests[1]])[0], around.inline.act(requests[1]))


def test_without_a_controller_it_blames_nobody() -> None:
    around = Surroundings(2)
    requests = [rows_for(GAME, around.held, {"learner": 2}) for _ in range(2)]
    around.ask(*requests)

    class Orphaned(FixedPlayers):
        def get(self, player: str) -> SeatedPlayer:
            raise PeerGone("the controller has died")

    with pytest.raises(PeerGone):
        around.start(InlineInference(Orphaned(around.held), [1])).step()
    assert all(area.is_waiting for area in around.areas)


class Killed(BaseException):
    """Stands for the end of the process: no code of ours runs after it."""


class KilledLater:
    """An inference of which the process dies at the `calls`-th act."""

    def __init__(self, inline: InlineInference, calls: int) -> None:
        self._inline = inline
        self._calls = calls

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inline, name)

    def act_all(self, requests: Sequence[ActingRows]) -> Sequence[InferenceResult]:
        self._calls -= 1
        if self._calls < 0:
            raise Killed
        return self._inline.act_all(requests)


def test_a_worker_that_dies_before_it_answers_leaves_the_requests_to_the_next() -> None:
    around = Surroundings(2)
    requests = [rows_for(GAME, around.held, {"learner": 3}, seed=seed) for seed in (1, 2)]
    around.ask(*requests)
    with pytest.raises(Killed):
        around.start(KilledLater(around.inline, 0)).step()
    assert all(area.is_waiting for area in around.areas)
    assert around.start(around.inline).step().count == 6
    for rows, answer in zip(requests, around.answers(*requests), strict=True):
        same(answer, around.inline.act(rows))


def test_a_worker_that_dies_between_two_answers_has_given_the_first_for_good() -> None:
    around = Surroundings(2)
    requests = [rows_for(GAME, around.held, {"learner": 3}, seed=seed) for seed in (1, 2)]
    around.ask(*requests)

    def dying(actor: int) -> None:
        raise Killed

    with pytest.raises(Killed):
        around.start(around.inline, wake=dying).step()
    assert [area.is_waiting for area in around.areas] == [False, True]
    before = [array.copy() for array in columns(around.answers(*requests)[0])]
    around.held["learner"].policies[0].state_dict()["critic.value.bias"] += 1.0  # newer weights
    assert around.start(around.inline).step().count == 3, "only who was not answered"
    for array, earlier in zip(columns(around.answers(*requests)[0]), before, strict=True):
        assert np.array_equal(array, earlier)
    same(around.answers(*requests)[1], around.inline.act(requests[1]))


def columns(answer: InferenceResult) -> Sequence[Any]:
    acted = answer.acted
    return [*acted.action.values(), acted.log_prob, acted.value, *acted.state.values(), answer.version]
