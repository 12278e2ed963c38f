"""What is recomputed for trajectories that wait: by the learner itself, or by a buffer worker."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
import torch
from stamped_games import number_of
from table_play import GAMES, SMALL, side
from taught_play import TaughtPlay

from ludus.algorithms.actor_critic import A2C, Impala
from ludus.algorithms.algorithm import Algorithm
from ludus.algorithms.alphastar import AlphaStarGradient
from ludus.algorithms.magnet import MagnetPolicyGradient
from ludus.algorithms.ppo import PPO
from ludus.algorithms.teacher import LOG_PROB, VALUE, Recomputed, Teacher
from ludus.data.batch import Batch
from ludus.data.records import PlayerReset
from ludus.data.trees import Tree, allocate
from ludus.experiment import Experiment
from ludus.games.builtin.kuhn import Kuhn
from ludus.models.network_policy import ActorCritic
from ludus.models.policy import load_weights
from ludus.workers.buffer import Buffer
from ludus.workers.buffer_worker import BufferWorker, RecomputeRequests, Recomputing, recomputed_arrays
from ludus.workers.config import LearnerConfig
from ludus.workers.worker import IDLE, Progress

TAUGHT = PPO(teacher=Teacher(weight=0.1))
EVERYTHING: tuple[Recomputed, ...] = ("values", "advantages", "teacher")
ASYNC = LearnerConfig(batch_size=60, minibatch_size=20, buffer_size=400, schedule="async", max_lag=2, device="cpu")
SYNC = replace(ASYNC, schedule="sync")


@dataclass
class RecomputedPlay(TaughtPlay):
    """Actor, learner and buffer worker in turn."""

    worker_rests: bool = False
    requests: RecomputeRequests = field(init=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        what = self.config.recompute
        for pool, policy in zip(self.pools, self.build(), strict=True):
            arrays = recomputed_arrays(what, policy, self.unroll_length)
            pool.recomputed = allocate(arrays, (pool.num_slots, self.unroll_length + 1))
        self.requests = RecomputeRequests([pool.num_slots for pool in self.pools], len(self.learning))
        for number, player in enumerate(self.learning):
            self.learner.buffers[player] = Buffer(
                self.pools,
                max_decisions=self.config.buffer_size,
                max_slots=self.max_slots,
                free=lambda kind, slots: self.actor.recorder.free(kind, slots),
                max_lag=self.config.lag,
                uses=self.config.uses,
                recomputing=Recomputing(self.requests, number, lambda: None),
            )
        if "teacher" in what:
            self.learner.publish_teachers()
        self.worker = self.new_worker()

    def new_worker(self) -> BufferWorker:
        return BufferWorker(
            self.requests,
            self.pools,
            self.learning,
            self.config.recompute,
            build=lambda _: self.build(),
            weights=self.board,
            device=torch.device("cpu"),
            wake=lambda: None,
        )

    def work(self) -> None:
        while not self.worker_rests and self.worker.step() is not IDLE:
            pass

    def train(self, rounds: int) -> list[Progress]:
        said = []
        for _ in range(rounds):
            self.actor.step()
            self.work()
            said.append(self.learner.step())
        return said

    def wait_for_something(self) -> None:
        while not self.learner.buffers["main"].decisions:
            self.actor.step()


def self_play(game: str, **options: Any) -> dict[str, Any]:
    source = GAMES[game]
    sides = tuple(side("main", trains=True) for _ in range(source.spec.num_teams))
    return {"game": source, "line_ups": (sides,), "episodes_per_table": 2 * len(sides), **options}


def recomputed_play(game: str, **options: Any) -> RecomputedPlay:
    return RecomputedPlay(**self_play(game, **options))


def equal(one: Tree, other: Tree) -> bool:
    return all(np.array_equal(one[name], other[name]) for name in one)


class Seen:
    """What each update of a player is made of."""

    def __init__(self, play: TaughtPlay) -> None:
        trained = play.learner.players["main"]
        self.uses: Counter[int] = Counter()
        self.batches: list[Mapping[int, Batch]] = []
        self.weights: list[Tree] = []
        """Before the update."""
        self._update, self._weights = trained.update, trained.weights
        trained.update = self  # type: ignore[method-assign, assignment]

    def __call__(self, batches: Mapping[int, Batch], *arguments: Any) -> dict[str, float]:
        self.batches.append(batches)
        self.weights.append(self._weights())
        for batch in batches.values():
            self.uses.update(number_of(batch.observation["stamp"][..., 0][batch.valid]).tolist())
        return self._update(batches, *arguments)


# --- the numbers ---


@pytest.mark.parametrize("game", ["connect_four", "siege"], ids=["plain", "entities"])
@pytest.mark.parametrize("memory", [0, 8], ids=["plain", "memory"])
def test_what_it_writes_is_a_fresh_forward_pass(game: str, memory: int) -> None:
    config = replace(ASYNC, recompute=EVERYTHING, recompute_lag=0)
    model = ActorCritic(hidden=(16,), entity_size=8, memory=memory)
    play = recomputed_play(game, algorithm=TAUGHT, config=config, model=model)
    seen, first = Seen(play), play.learner.players["main"].weights()
    play.train(140)
    policies, teachers = play.build(), play.build()
    load_weights(teachers, first)
    compared = 0
    for batches, weights in zip(seen.batches, seen.weights, strict=True):
        load_weights(policies, weights)
        for kind, batch in batches.items():
            tensors = replace(batch.map(torch.from_numpy), extra={})
            with torch.no_grad():
                unrolled = policies[kind].unroll(tensors)
                state = {name: torch.zeros_like(array) for name, array in tensors.state.items()}
                taught = teachers[kind].unroll(replace(tensors, state=state))
            after = np.zeros_like(batch.valid)
            after[1:] = batch.valid[:-1] & ~batch.over[:-1]
            rows = batch.valid | after
            np.testing.assert_allclose(batch.extra[VALUE][rows], unrolled.value.numpy()[rows], atol=1e-5)
            valid = batch.valid
            log_prob = unrolled.log_prob.numpy()[valid]
            np.testing.assert_allclose(batch.extra[LOG_PROB][valid], log_prob, atol=1e-5)
            for head, log_p in taught.log_probs.items():
                np.testing.assert_allclose(batch.extra[f"teacher.{head}"][valid], log_p[valid], atol=1e-5)
            compared += int(valid.sum())
    assert len(seen.batches) > 4
    assert compared > 200
    assert not equal(seen.weights[0], seen.weights[-1])


@pytest.mark.parametrize(
    ("algorithm", "what"),
    [
        (PPO(), ("values",)),
        (PPO(normalise_advantage=False), ("advantages",)),
        (TAUGHT, EVERYTHING),
        (A2C(), ("advantages",)),
        (MagnetPolicyGradient(clip=0.2), ("values", "advantages")),
        (AlphaStarGradient(teacher=Teacher()), ("teacher",)),
    ],
    ids=lambda value: "+".join(value) if isinstance(value, tuple) else type(value).__name__,
)
@pytest.mark.parametrize("memory", [0, 8], ids=["plain", "memory"])
def test_the_learner_and_a_buffer_worker_come_to_the_same(
    algorithm: Algorithm, what: tuple[Recomputed, ...], memory: int
) -> None:
    """Where acting and learning take turns: there both have the same trajectories."""
    options = self_play("connect_four", algorithm=algorithm, config=replace(SYNC, recompute=what))
    options["model"] = ActorCritic(hidden=(16,), memory=memory)
    alone, helped = TaughtPlay(**options), RecomputedPlay(**options)
    alone.train(80)
    helped.train(80)
    one, other = (play.learner.players["main"] for play in (alone, helped))
    assert one.step == other.step > 3
    weights, expected = other.weights(), one.weights()
    for name, array in weights.items():
        np.testing.assert_allclose(array, expected[name], atol=1e-5, err_msg=name)


def test_on_trajectories_of_the_live_weights_it_changes_nothing() -> None:
    """There values are what they were, and every probability ratio is 1."""
    options = self_play("connect_four")
    plain = TaughtPlay(**options, config=SYNC)
    plain.train(60)
    recomputed = TaughtPlay(**options, config=replace(SYNC, recompute=("advantages",)))
    recomputed.train(60)
    expected = plain.learner.players["main"].weights()
    for name, array in recomputed.learner.players["main"].weights().items():
        np.testing.assert_allclose(array, expected[name], atol=1e-5, err_msg=name)


def test_on_older_trajectories_it_changes_much() -> None:
    config = replace(ASYNC, learning_rate=0.01, max_lag=3, reuse=3)
    found = []
    for what in ((), ("values",), ("advantages",)):
        play = TaughtPlay(**self_play("connect_four", hand_over_after=25), config=replace(config, recompute=what))
        play.train(30)
        found.append(play.learner.players["main"].weights())
    assert not equal(found[0], found[1])
    assert not equal(found[1], found[2])


# --- what waits for it ---


def test_nothing_is_trained_on_until_it_is_back() -> None:
    play = recomputed_play("connect_four", config=replace(SYNC, recompute=("values",)), worker_rests=True)
    buffer = play.learner.buffers["main"]
    assert all(progress is IDLE for progress in play.train(60))
    assert buffer.held_up().all()
    assert buffer.is_preparing
    assert (buffer.ready, buffer.decisions) == (0, play.made["main"])
    assert buffer.take() == {}
    play.worker.step()
    play.worker_rests = False
    [progress, *_] = [one for one in play.train(1) if one is not IDLE]
    assert progress.statistics["main/recompute_lag"] == 0.0
    assert not buffer.is_preparing


@pytest.mark.parametrize("recompute_lag", [0, 1])
def test_weights_that_recompute_are_not_too_old(recompute_lag: int) -> None:
    config = replace(ASYNC, recompute=("values",), recompute_lag=recompute_lag, reuse=3)
    play = recomputed_play("connect_four", config=config, hand_over_after=25)
    said = [progress.statistics for progress in play.train(200) if progress is not IDLE]
    assert max(one["main/reused"] for one in said) > 0
    lags = [one["main/recompute_lag"] for one in said]
    assert max(lags) <= recompute_lag
    assert (max(lags) > 0) == (recompute_lag > 0)


def test_every_decision_is_trained_on_within_its_limits_or_counted_once() -> None:
    config = replace(ASYNC, recompute=("values",), reuse=2)
    play = recomputed_play("connect_four", config=config, hand_over_after=25)
    seen = Seen(play)
    said = [progress.statistics for progress in play.train(250) if progress is not IDLE]
    main, buffer = play.learner.players["main"], play.learner.buffers["main"]
    assert max(seen.uses.values()) == 2
    assert main.decisions == sum(seen.uses.values())
    assert 0 < max(one["main/max_lag"] for one in said) <= 2
    for one in said:
        shares = [one[f"main/lag_share.{age}"] for age in range(3)]
        assert sum(shares) == pytest.approx(1.0)
        assert one["main/lag"] == pytest.approx(shares[1] + 2 * shares[2])
    for _ in range(20):
        play.actor.step()
    assert buffer.is_preparing
    main.step += 3
    play.learner.buffer_status()  # lets go of what is too old, wherever it is
    assert buffer.decisions == 0
    assert play.made["main"] == len(seen.uses) + main.stale + main.refused + buffer.dropped
    before = main.stale
    play.learner.buffer_status()
    assert main.stale == before > 0
    assert play.worker.step() is IDLE


# --- a worker that dies, a slot that is let go of ---


def test_the_next_worker_finds_what_the_last_one_has_not_done() -> None:
    play = recomputed_play("connect_four", config=replace(SYNC, recompute=("values",)), worker_rests=True)
    play.train(60)
    asked = play.requests.asked[0].copy()
    original = play.pools[0].stack

    class Killed(Exception):  # noqa: N818
        pass

    def die(*_: Any) -> Batch:
        original(*_)
        raise Killed

    play.pools[0].stack = die  # type: ignore[method-assign, assignment]
    with pytest.raises(Killed):
        play.worker.step()
    play.pools[0].stack = original  # type: ignore[method-assign]
    assert np.array_equal(play.requests.asked[0], asked)
    assert not play.requests.answered[0].any()
    play.worker, play.worker_rests = play.new_worker(), False
    play.work()
    main, buffer = play.learner.players["main"], play.learner.buffers["main"]
    assert play.learner.step() is not IDLE
    assert main.decisions + main.stale == play.made["main"]
    assert buffer.dropped == 0


def test_a_slot_that_is_let_go_of_meanwhile_is_not_answered() -> None:
    play = recomputed_play("connect_four", config=replace(SYNC, recompute=("values",)), worker_rests=True)
    play.wait_for_something()
    pool, buffer = play.pools[0], play.learner.buffers["main"]
    number, slots = play.requests.newest(0)
    assert len(slots)
    original = pool.stack

    def copy_late(*arguments: Any) -> Batch:
        buffer.clear()  # and the actor may write into the slots again
        return original(*arguments)

    pool.stack = copy_late  # type: ignore[method-assign, assignment]
    play.worker.step()
    pool.stack = original  # type: ignore[method-assign]
    assert not (play.requests.answered[0] == number).any()
    assert not pool.recomputed[VALUE].any()
    assert play.worker.step() is IDLE


def test_an_answer_to_an_earlier_request_means_nothing() -> None:
    requests = RecomputeRequests([8], num_players=2)
    mine = Recomputing(requests, 1, lambda: None)
    slots = np.array([2, 5])
    mine.ask(0, slots)
    number, found = requests.newest(0)
    assert (found.tolist(), number % requests.num_players) == ([2, 5], 1)
    mine.retract(0, slots[:1])
    Recomputing(requests, 0, lambda: None).ask(0, slots[:1])
    requests.answered[0][slots] = number  # the worker has not noticed
    assert mine.is_done(0, slots).tolist() == [False, True]
    later, left = requests.newest(0)
    assert (left.tolist(), later % requests.num_players) == ([2], 0)
    assert later > number


def test_the_newest_request_is_done_first() -> None:
    requests = RecomputeRequests([8], num_players=1)
    one = Recomputing(requests, 0, lambda: None)
    for asked in ([1, 2], [6], [0]):
        one.ask(0, np.array(asked))
    order = []
    while len(slots := requests.newest(0)[1]):
        order.append(slots.tolist())
        requests.answered[0][slots] = requests.asked[0][slots]
    assert order == [[0], [6], [1, 2]]


@pytest.mark.parametrize("how", ["reset", "forget"])
def test_who_is_reset_or_forgotten_asks_for_nothing(how: str) -> None:
    play = recomputed_play("connect_four", config=replace(SYNC, recompute=("values",)), worker_rests=True)
    play.wait_for_something()
    if how == "reset":
        play.learner.reset(PlayerReset("main", 1, None))
    else:
        play.learner.buffers["main"].forget(0)
    assert play.worker.step() is IDLE


# --- settings ---


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"recompute": ("value",)}, "did you mean 'values'"),
        ({"buffer_worker": True}, "needs recompute: values, advantages or teacher"),
        ({"recompute_lag": -1}, "recompute_lag must be at least 0, got -1"),
    ],
)
def test_bad_settings_are_refused(settings: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        LearnerConfig(**settings)


@pytest.mark.parametrize(
    ("algorithm", "what", "uses"),
    [
        (PPO(), "teacher", "values, advantages"),
        (Impala(), "values", "none"),
        (AlphaStarGradient(teacher=Teacher()), "advantages", "teacher"),
    ],
)
def test_what_an_algorithm_has_no_use_for_is_refused(algorithm: Algorithm, what: str, uses: str) -> None:
    learner = LearnerConfig(recompute=(what,))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=f"no use for recomputed {what}; .* it uses: {uses}$"):
        Experiment(name="wrong", game=Kuhn(), budget=1, algorithm=algorithm, learner=learner)


def test_columns_are_made_for_what_is_asked_for_only() -> None:
    [policy] = (SMALL.build(kind, 0) for kind in GAMES["connect_four"].spec.kinds)
    assert recomputed_arrays(("values",), policy, 4).keys() == {VALUE}
    arrays = recomputed_arrays(EVERYTHING, policy, 4)
    assert {name: spec.shape for name, spec in arrays.items()} == {VALUE: (), LOG_PROB: (1,), "teacher.move": (7,)}
