"""An actor that asks a policy worker plays and records exactly as one that runs the policies itself."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import pytest
from table_play import GAMES, SMALL, Play, self_play, side
from test_actor_trajectories import SCHEDULES, STEPS, WITH_MEMORY, check_unroll
from test_policy_worker import rows_at_start

from ludus.data.batch import Batch
from ludus.data.records import ModelId
from ludus.models.network_policy import ActorCritic
from ludus.runtime.actor_process import RemoteInference
from ludus.system.shared_memory import Signal
from ludus.workers.policy_worker import COUNTERS, InferenceFailed, PolicyWorker, RequestArea


@dataclass
class Serving:
    """A policy worker in a thread, with memory and two signals between it and the actor, as in processes."""

    asked: Signal
    woken: Signal
    stopped: bool = False
    on_wait: Callable[[], None] = lambda: None
    area: RequestArea | None = None
    worker: PolicyWorker | None = None

    def __call__(self, play: Play) -> RemoteInference:
        policies = play.build()
        rows = [play.num_tables * len(seats) for seats in play.spec.seats_of_kind]
        self.area = RequestArea(policies, rows, np.zeros)
        self.worker = PolicyWorker(
            play.inline,
            [self.area],
            policies,
            delay_s=0.0,
            wake=lambda actor: self.woken.notify(),
            counters=np.zeros(len(COUNTERS)),
        )
        return RemoteInference(
            self.area,
            weights=play.board,
            learning=play.learning,
            bots=play.game.bots(),
            draws=[policy.num_draws for policy in policies],
            find_frozen=lambda player: str(play.frozen[player][0]),
            wake_worker=self.asked,
            woken=self.woken,
            show_life=lambda: self.on_wait(),
        )

    def serve(self) -> None:
        while not self.stopped:
            if self.worker is None or self.worker.patience(0.0) is None:
                self.asked.wait(0.05)
            else:
                self.worker.step()


@contextmanager
def serving() -> Iterator[Serving]:
    served = Serving(Signal.create(), Signal.create())
    thread = threading.Thread(target=served.serve)
    thread.start()
    try:
        yield served
    finally:
        served.stopped = True
        thread.join()
        served.asked.close()
        served.woken.close()


def assert_equal(one: Any, other: Any) -> None:
    if isinstance(one, dict):
        assert one.keys() == other.keys()
        for name, value in one.items():
            assert_equal(value, other[name])
    else:
        assert np.array_equal(one, other)


def assert_same_play(one: Play, other: Play) -> None:
    """Bit for bit: trajectories with memory and versions, matches and results with their models."""
    assert [handed.player for handed in one.handed] == [handed.player for handed in other.handed]
    for mine, theirs in zip(one.handed, other.handed, strict=True):
        assert np.array_equal(mine.length, theirs.length)
        for column in fields(Batch):
            assert_equal(getattr(mine.batch, column.name), getattr(theirs.batch, column.name))
    assert one.desk.issued == other.desk.issued
    assert one.desk.results == other.desk.results


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("model", [SMALL, WITH_MEMORY], ids=["plain", "memory"])
@pytest.mark.parametrize("game", ["kuhn", "connect_four", "siege", "cartpole"])
def test_the_same_trajectories_as_inline(game: str, model: ActorCritic, schedule: str) -> None:
    options: dict[str, Any] = {"model": model, **SCHEDULES[schedule]}
    inline = self_play(GAMES[game], **options).run(STEPS)
    with serving() as served:
        asked = self_play(GAMES[game], **options, inference=served).run(STEPS)
    assert_same_play(inline, asked)
    assert len(inline.handed) > 3
    policies = asked.build()
    compared = sum(check_unroll(asked, handed, policies)[0] for handed in asked.handed)
    assert compared > sum(len(asked.trained(kind)) for kind in range(len(asked.pools))) / 3


def test_all_kinds_of_seats_are_asked_for_in_one_request() -> None:
    kinds: list[int] = []
    with serving() as served:
        play = self_play(GAMES["siege"], inference=served)
        decide = play.inline.act
        play.inline.act = lambda rows: (kinds.append(rows.kind), decide(rows))[1]  # type: ignore[method-assign]
        play.run(1)
    assert served.worker is not None
    assert served.worker.counters[COUNTERS.index("requests")] == 1
    assert kinds == [0, 1]


def test_the_same_matches_against_frozen_players_and_bots() -> None:
    fresh = self_play(GAMES["connect_four"]).fresh
    frozen = {f"old{step}": (ModelId("main", 0, step), fresh(step)) for step in (3, 4, 5)}
    main = side("main", trains=True)
    line_ups = [(main, side("old3")), (side("old4"), side("old5")), (main, side("random")), (main, main)]
    options: dict[str, Any] = {"matches": 4, "num_tables": 8, "frozen": frozen, "hand_over_after": 60}
    inline = Play(GAMES["connect_four"], line_ups, new_weights=True, **options).run(STEPS)
    with serving() as served:
        asked = Play(GAMES["connect_four"], line_ups, new_weights=True, inference=served, **options).run(STEPS)
    assert_same_play(inline, asked)
    results = asked.desk.results.values()
    assert {"main:0:3", "main:0:4", "main:0:5"} <= {name for one in results for name in one.first_models}
    assert any(one.first_models != one.last_models for one in results), "no weights changed during a match"


def test_what_a_predecessor_asked_is_answered_before_the_next_asks() -> None:
    """An actor that dies with a request under way leaves its area waiting; rows of two must never mix."""
    inline = self_play(GAMES["connect_four"]).run(STEPS)
    left = rows_at_start(inline.stamped, inline.build()[0], 0, count=3, player="main")
    with serving() as served:
        asked = self_play(GAMES["connect_four"], inference=served)
        assert served.area is not None
        worker, served.worker = served.worker, None
        assert worker is not None
        served.area.ask([left])
        served.on_wait = lambda: setattr(served, "worker", worker)
        asked.run(STEPS)
    assert_same_play(inline, asked)
    assert worker.counters[COUNTERS.index("requests")] == STEPS + 1


def test_an_actor_fails_with_the_error_of_its_rows() -> None:
    with serving() as served:
        play = self_play(GAMES["connect_four"], inference=served)
        play.run(1)
        for mask in play.tables.view.legal[0].values():
            mask[...] = False
        with pytest.raises(InferenceFailed, match="no option is legal"):
            play.run(1)
