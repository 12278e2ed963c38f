"""The serial runtime: every worker in one process, one step after the other. Deterministic, and a debugger can
step through it."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ludus.config import encode
from ludus.data.trees import under
from ludus.experiment import Experiment
from ludus.models.policy import use_threads
from ludus.runtime.assemble import CHECKPOINT, inline_inference, load_learner, new_actor, new_learner, new_pools
from ludus.runtime.coordinator import Coordinator, Update
from ludus.runtime.networks import Networks
from ludus.runtime.rounds import step_in_turn
from ludus.runtime.status import ServiceStatus, no_services
from ludus.store.checkpoints import Checkpoint
from ludus.store.run_control import LOOK_EVERY_S, Bottleneck, WorkerStatus
from ludus.store.run_folder import RunFolder
from ludus.workers.actor import Actor
from ludus.workers.config import Supervision
from ludus.workers.controller import Controller
from ludus.workers.learner import Learner
from ludus.workers.messages import HostedPlayer
from ludus.workers.player_cache import LocalWeights
from ludus.workers.worker import Worker


class SerialWorkers:
    """One learner and one actor that take turns in this process."""

    saves_tables = can_save = True
    restarts = 0

    def __init__(self, experiment: Experiment, folder: RunFolder) -> None:
        """`experiment`: as the run folder has it."""
        use_threads(1)
        self._experiment = experiment
        self._folder = folder
        self._checkpoints = folder.checkpoints(CHECKPOINT)
        self._dropped_reward = 0.0
        """Of actors that have ended."""
        self._actor: Actor | None = None
        self.learner: Learner
        self.paused = False

    @property
    def actor(self) -> Actor:
        assert self._actor is not None
        return self._actor

    # --- starting ---

    def start_learner(
        self,
        experiment: Experiment,
        players: Mapping[str, HostedPlayer],
        *,
        start: int,
        spent: int,
        checkpoint: Checkpoint | None,
    ) -> None:
        self._playing = experiment
        self._roles = {player: hosted.role for player, hosted in players.items()}
        self._weights = LocalWeights()
        self._pools = new_pools(experiment, list(self._roles.values()))
        self.learner = new_learner(
            _in_turn(experiment),
            players,
            self._pools,
            self._weights,
            experiment.models.open(self._folder),
            lambda kind, slots: self.actor.recorder.free(kind, slots),
            spent=spent,
        )
        load_learner(self.learner, players, checkpoint)

    def wait_for_learner(self, stopped: Callable[[], bool]) -> None:
        """It has loaded its checkpoint already."""

    def can_replace(self, player: str) -> bool:
        return False

    def replace_learner(self, player: str, hosted: HostedPlayer, resume: Callable[[], None]) -> None:
        """It lives and dies with this process."""

    def start_actors(self, controller: Controller, experiment: Experiment, tables: Checkpoint | None) -> None:
        self._controller = controller
        played, networks = self._playing, Networks(self._playing, controller.league.role_of)
        bots = played.grouped_game.bots()
        self._actor = new_actor(
            played,
            name="actor",
            client=controller,
            inference=inline_inference(played, self._weights, controller, networks, bots=bots),
            pools=self._pools,
            trajectories=self.learner,
            roles=self._roles,
            seed=self._experiment.seed,
        )
        if tables is not None:
            self._actor.load(under("actor/", tables.arrays), tables.facts["actor"])
            self.learner.load_buffers(tables.facts["buffers"])
        for player in self.learner.players:
            self.learner.publish(player)

    # --- running ---

    def run_round(self, finished: Callable[[], bool], *, training: bool) -> Sequence[Update]:
        if self.paused:
            time.sleep(LOOK_EVERY_S)
            return ()
        if not training:
            step_in_turn((self.actor,), self._experiment.middleware, finished)
            self.learner.discard()  # a larger budget shall not begin with all of this as one batch
            return ()
        workers: Sequence[Worker] = (self.learner, self._controller, self.actor)
        batches = self.learner.batches
        done = step_in_turn(workers, self._experiment.middleware, finished)
        if self.learner.batches == batches:  # middleware may add statistics without a batch
            return ()
        return (Update(self.learner.decisions, done[self.learner.name].statistics),)

    def configure(self, experiment: Experiment) -> None:
        """The learner and the controller are told by the editor; the actor has no live settings."""

    def require_room(self, experiment: Experiment) -> None:
        """The number of actors does not matter here."""

    def pause(self, paused: bool) -> None:
        self.paused = paused

    def numbers(self) -> dict[str, float]:
        dropped = 0.0 if self._actor is None else self._actor.recorder.dropped_reward
        return {
            "updates": sum(trained.step for trained in self.learner.players.values()),
            "dropped_reward": self._dropped_reward + dropped,
        }

    def status(self) -> tuple[Sequence[WorkerStatus], Bottleneck | None]:
        return (), None

    # --- saving and ending ---

    def save(self, num_events: int, chain: str, *, clean: bool, patience_s: float | None) -> None:
        """A clean checkpoint holds the tables too, so that a resume continues exactly here; after any other one a
        resume starts new matches. A run that was stopped before its actor started again has no tables."""
        arrays, facts = self.learner.save()
        saved = {f"learner/{name}": array for name, array in arrays.items()}
        all_facts: dict[str, Any] = {"learner": facts, "events": num_events, "chain": chain}
        if clean and self._actor is not None:
            actor_arrays, all_facts["actor"] = self._actor.save()
            all_facts["buffers"] = self.learner.save_buffers()
            all_facts["experiment"] = self._fingerprint()
            saved |= {f"actor/{name}": array for name, array in actor_arrays.items()}
        self._checkpoints.save(self.learner.decisions, saved, all_facts)

    def can_continue(self, checkpoint: Checkpoint) -> bool:
        facts = checkpoint.facts
        return (
            self._experiment.game.spec.repeatable
            and "actor" in facts
            and "waiting" in facts["actor"]["seating"]  # earlier versions have other tables
            and bool(facts["experiment"] == self._fingerprint())
        )

    def _fingerprint(self) -> str:
        """The tables of a checkpoint fit only the experiment that they were played under. How long it runs and
        where its metrics go does not matter to them."""
        without = replace(
            self._experiment,
            budget=1,
            checkpoint_every=1,
            checkpoint_seconds=1.0,
            middleware=(),
            supervision=Supervision(),
            trial=None,
            time_limit_h=1.0,
            actors=None,
            metrics=(),
        )
        settings = encode(without)
        return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()

    def end(self) -> None:
        if self._actor is not None:
            self._dropped_reward += self._actor.recorder.dropped_reward
            self._actor.close()
            self._actor = None

    def close(self) -> None:
        self.end()


def _in_turn(experiment: Experiment) -> Experiment:
    """The experiment with the synchronous schedule, which is the only one here."""
    roles = {
        name: role if role.learner is None else replace(role, learner=replace(role.learner, schedule="sync"))  # type: ignore[type-var]
        for name, role in experiment.league.roles.items()
    }
    learner = replace(experiment.learner, schedule="sync")
    return replace(experiment, learner=learner, league=replace(experiment.league, roles=roles))


def serial_training(
    experiment: Experiment, folder: RunFolder, *, service_status: ServiceStatus = no_services
) -> Coordinator[SerialWorkers]:
    """A training in this process, which can be repeated exactly."""
    return Coordinator(experiment, folder, lambda *_: SerialWorkers(experiment, folder), service_status=service_status)
