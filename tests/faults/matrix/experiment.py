"""The experiments that faults are injected into: Kuhn poker, small enough to start in seconds.

Game, algorithm and actors do something bad when they find an order; faulty_game.py says how.
"""

from __future__ import annotations

import itertools
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from ludus import (
    PFSP,
    PPO,
    ActorConfig,
    ActorCritic,
    BySteps,
    EvaluationConfig,
    Experiment,
    LeagueRules,
    LearnerConfig,
    Mixture,
    Role,
    SelfPlay,
    Supervision,
)
from ludus.algorithms.algorithm import Loss
from ludus.data.addresses import load_address
from ludus.games import Kuhn
from ludus.games.isolation.isolated import Isolation
from ludus.league import BoundedHistory
from ludus.league.payoff import PayoffRules
from ludus.workers.messages import ReportResult

GAME = Path(__file__).with_name("faulty_game.py")
FaultyKuhn, KEPT, marks, order = (load_address(f"{GAME}:{name}") for name in ("FaultyKuhn", "KEPT", "marks", "order"))
BATCH = 1_000
CHECKPOINT_EVERY = 3_000
PROMOTED_EVERY = 8_000
SELF_PLAY = 0.5
HUNG_AFTER_S = 6.0


# --- an algorithm ---


@dataclass(frozen=True, kw_only=True)
class FaultyPPO(PPO):
    """PPO that carries out orders for `algorithm`: die in a gradient step, or give a loss that is no number."""

    def loss(self, policy: Any, batch: Any) -> Loss:
        made = super().loss(policy, batch)
        given = order("algorithm")
        if given == "kill":
            made.total.backward()  # type: ignore[no-untyped-call]
            os.kill(os.getpid(), signal.SIGKILL)
        if given == "eat":  # until the kernel ends it
            while True:
                KEPT.append(np.ones(2**24, np.uint8))
        return made if given is None else replace(made, total=made.total * float(given))


# --- what actors tell ---


def telling(worker: Any, step: Callable[[], Any]) -> Any:
    """Notes every result whose report was answered, and carries out orders for `actor` on the way of a report."""
    if worker.name.startswith("actor") and not hasattr(worker, "notes_results"):
        worker.notes_results = True
        if hasattr(worker.seating._client, "_ask"):  # not the controller itself, as in the serial runtime
            _note_results(worker.seating._client)
    if worker.name.startswith("actor") and order("weights") is not None:
        _drop_every_third(worker._inference)
    return step()


def _drop_every_third(inference: Any, dropped: int = 10) -> None:
    """The actor misses every third renewal of its weights, so many times."""
    plain, calls = inference.refresh, itertools.count(1)

    def refresh() -> None:
        number = next(calls)
        if number % 3 or number > 3 * dropped:
            plain()

    inference.refresh = refresh


def _note_results(client: Any) -> None:
    plain_ask, kept = client._ask, []

    def ask(request: Any) -> Any:
        if not isinstance(request, ReportResult):
            return plain_ask(request)
        given = order("actor")
        if given == "die unheard":
            from ludus.system.process import send

            send(client._control, request)
            os.kill(os.getpid(), signal.SIGKILL)
        if given == "delay":
            time.sleep(1.0)
        if given == "swap" and not kept:
            kept.append(request)
            return None
        answer = plain_ask(request)
        _acknowledged(request)
        if given == "repeat":
            plain_ask(request)
        for late in [kept.pop() for _ in kept[:1]]:
            plain_ask(late)
            _acknowledged(late)
        return answer

    client._ask = ask


def _acknowledged(request: ReportResult) -> None:
    fd = os.open(marks() / "acknowledged", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(fd, b"%d\n" % request.result.match_id)
    os.close(fd)


# --- experiments ---


def plain(**changes: Any) -> Experiment:
    opponents = Mixture(branches=((SELF_PLAY, SelfPlay()), (1 - SELF_PLAY, PFSP(weighting="squared"))))
    history = BoundedHistory(size=5, strongest=1, delete_models=True)
    role = Role(matchmaking=opponents, promotion=BySteps(every=PROMOTED_EVERY), history=history)
    described = Experiment(
        name="faulty",
        game=FaultyKuhn(),
        budget=10**9,
        model=ActorCritic(hidden=(16,)),
        algorithm=FaultyPPO(),
        actor=ActorConfig(num_tables=32, matches=2, episodes_per_table=8, unroll_length=8),
        learner=LearnerConfig(
            batch_size=BATCH,
            minibatch_size=100 * BATCH,
            epochs=1,
            buffer_size=8 * BATCH,
            learning_rate=0.003,
            device="cpu",
        ),
        league=LeagueRules(roles={"main": role}, bots=("random",), payoff=PayoffRules(decay=1.0)),
        evaluation=EvaluationConfig(opponents=("random",), past=1, episodes=32),
        checkpoint_every=CHECKPOINT_EVERY,
        middleware=(telling,),
        supervision=Supervision(hung_after_s=HUNG_AFTER_S, back_off_s=0.05, most_failures=1000, quarantine_after=1000),
        actors=1,
    )
    return replace(described, **changes)


def asking() -> Experiment:
    """Policies run in a policy worker."""
    described = plain()
    return replace(described, actor=replace(described.actor, inference="worker", inference_device="cpu"), actors=2)


def resetting() -> Experiment:
    """Every promotion resets the player, as an exploiter's does."""
    role = Role(promotion=BySteps(every=2 * BATCH), reset_probability=1.0)
    return plain(league=LeagueRules(roles={"main": role}, bots=("random",), payoff=PayoffRules(decay=1.0)))


def isolated() -> Experiment:
    """The game runs in a process of its own, which may take so much memory."""
    patient = replace(plain().supervision, hung_after_s=60.0)  # longer than a game may take to start
    return plain(isolation=Isolation(step_seconds=10.0, memory_mb=300.0), supervision=patient)


def plain_on_device(**changes: Any) -> Experiment:
    """For the device runtime: game and algorithm as they are, since it takes no orders, in batches of `BATCH`."""
    described = plain()
    actor = ActorConfig(num_tables=BATCH // 10, episodes_per_table=8, unroll_length=10)
    learner = replace(described.learner, minibatch_size=BATCH)
    described = replace(
        described, game=Kuhn(), algorithm=PPO(), middleware=(), actor=actor, learner=learner, actors=None
    )
    return replace(described, **changes)


def resetting_on_device() -> Experiment:
    return plain_on_device(league=resetting().league)
