"""The serial runtime: a run in one process, that can be repeated exactly."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from ludus.config import encode
from ludus.data.records import SettingsChanged
from ludus.data.trees import under
from ludus.experiment import Experiment
from ludus.models.policy import use_threads
from ludus.observe.metrics import RunMetrics
from ludus.runtime.assemble import (
    CHECKPOINT,
    Training,
    build_policies,
    draws_per_row,
    learning_players,
    load_learner,
    new_league,
    new_learner,
    new_pools,
    surroundings,
)
from ludus.runtime.edits import Editor, Orders, answer_requests
from ludus.runtime.serial import FINISHED, INTERRUPTED, TIME_LIMIT, run_serial
from ludus.runtime.settings import effective
from ludus.runtime.status import Beside, StatusWriter, nobody
from ludus.store.checkpoints import Checkpoint
from ludus.store.run_control import LOOK_EVERY_S, RequestFolder
from ludus.store.run_folder import RunFolder
from ludus.workers.actor import Actor
from ludus.workers.controller import Controller
from ludus.workers.evaluator import EvaluationBook, Evaluator
from ludus.workers.inference import InlineInference
from ludus.workers.player_cache import LocalWeights, PlayerCache
from ludus.workers.worker import LearningWatch, Progress, StopTraining, Supervision, TrainingFailed, Worker


class SerialTraining:
    """A run in one process: builds the workers, runs them, saves and resumes them."""

    def __init__(self, experiment: Experiment, folder: RunFolder, *, beside: Beside = nobody) -> None:
        """`beside`: how the services are that run with it."""
        use_threads(1)
        self._written = experiment
        self.folder = folder
        self.league = new_league(experiment)
        self._ledger = folder.ledger()
        self._checkpoints = folder.checkpoints(CHECKPOINT)
        self._metrics = RunMetrics(folder, experiment.metrics)
        self._requests = RequestFolder(folder.requests)
        self._orders = Orders()
        self._status = StatusWriter(self, self._orders, lambda: ((), None), beside)
        self._workers: list[Worker] = []
        self._measuring: list[Worker] = []
        """Those that go on when the budget is spent."""
        self._saved_at = 0
        self._statistics: dict[str, float] = {}
        self._earlier = {"episodes": 0.0, "dropped_reward": 0.0}
        """Counted by actors that were replaced."""
        self._watch_learning = LearningWatch(experiment.supervision.most_refused)
        for _, event in self._ledger.replay():
            self.league.apply(event)
        self._build()
        self._resume("restart")

    def _build(self) -> None:
        """Workers for the learning players of now."""
        experiment = self._written
        self.experiment = effective(experiment, self.league)
        self._hosted = learning_players(self.league)
        board = LocalWeights()
        pools = new_pools(experiment, len(self._hosted))
        taking_turns = replace(experiment, learner=replace(experiment.learner, schedule="sync"))
        self.learner = new_learner(
            taking_turns,
            self._hosted,
            pools,
            board,
            experiment.models.open(self.folder),
            lambda kind, slots: self.actor.recorder.free(kind, slots),
            spent=self.league.decisions_of_removed,
        )
        self.controller = Controller(
            league=self.league,
            ledger=self._ledger,
            models=self.folder.models,
            learner=self.learner,
            evaluator=Evaluator(self.experiment.evaluation, self.league),
            evaluations=EvaluationBook(self.folder),
            episodes_per_table=experiment.actor.episodes_per_table,
        )
        self._editor = Editor(self.controller, surroundings(experiment, self.folder))
        shelf = PlayerCache(
            build=lambda: build_policies(experiment, experiment.seed),
            board=board,
            frozen=self.controller,
            bots=experiment.grouped_game.bots(),
            capacity=experiment.actor.models_in_memory,
        )
        self.actor = Actor(
            name="actor",
            game=experiment.grouped_game.tables(experiment.actor.num_tables),
            config=experiment.actor,
            desk=self.controller,
            inference=InlineInference(shelf, draws_per_row(experiment)),
            pools=pools,
            trajectories=self.learner,
            hand_over_after=experiment.learner.batch_size,
            seed=experiment.seed,
        )
        self._line_up()
        self._noted = self.learner.batches

    def _line_up(self) -> None:
        """Who works now: nobody, if all rest."""
        paused = self._orders.paused
        self._workers[:] = () if paused else (self.learner, self.controller, self.actor)
        self._measuring[:] = () if paused else (self.actor,)

    # --- running ---

    def run(self, watch: Callable[[Training], None] | None = None) -> str:
        """Train until the budget is spent or somebody stops it; the state is saved either way. At the end of
        the budget, what has been learned is frozen and measured."""

        def after_round(progress: dict[str, Progress]) -> None:
            if self.learner.batches != self._noted:  # middleware may add statistics without a batch
                self._noted = self.learner.batches
                learned = progress["learner"]
                self._statistics |= {**learned.statistics, **self.controller.episodes.take()}
                self._metrics.append(self.numbers())
                self._check_learning(learned.statistics)
                if self.learner.decisions - self._saved_at >= self.experiment.checkpoint_every:
                    self.save(clean=False)
            self._look_around()
            if watch is not None:
                watch(self)

        reason = "failed"
        try:
            reason = self._train(after_round)
        except KeyboardInterrupt:
            reason = INTERRUPTED
            raise
        finally:
            self._status.end(reason)
        return reason

    def _train(self, after_round: Callable[[dict[str, Progress]], None]) -> str:
        while True:
            reason = run_serial(
                self._workers,
                middleware=self.experiment.middleware,
                finished=lambda: self._is_spent,
                after_round=after_round,
            )
            if reason == FINISHED:
                self.controller.freeze_all()
                reason = run_serial(
                    self._measuring,
                    middleware=self.experiment.middleware,
                    finished=lambda: not (self._is_spent and self.controller.is_measuring),
                    after_round=lambda _: self._look_around(),
                )
            if reason != FINISHED or self._is_spent:  # the budget may have grown meanwhile
                break
        self.save(clean=True)
        return reason

    @property
    def _is_spent(self) -> bool:
        return self.learner.decisions >= self.experiment.budget

    def _look_around(self) -> None:
        """Do what commands have asked for; all workers are between two steps."""
        self._take_requests()
        self._orders.end_at_once()
        if self._orders.stop:
            raise StopTraining(INTERRUPTED)
        if self._orders.is_overdue(self.experiment.time_limit_h):
            raise StopTraining(TIME_LIMIT)
        if self._orders.paused == bool(self._workers):
            self._line_up()
            self._status.publish(at_once=True)
        self._status.publish()
        if self._orders.paused:
            time.sleep(LOOK_EVERY_S)

    def _take_requests(self) -> None:
        if answer_requests(self._requests, self._editor, self._orders):
            self.experiment = self._editor.now
            self.controller.change_evaluation(self.experiment.evaluation)
            if self._hosted.keys() != self.league.standings.keys():
                self._rebuild()

    def _rebuild(self) -> None:
        """Go on with workers for the learning players of now, from a checkpoint of this moment."""
        self.save(clean=False)
        self._earlier["episodes"] += self.actor.episodes
        self._earlier["dropped_reward"] += self.actor.recorder.dropped_reward
        self.actor.close()
        self._build()
        self._resume("league edited")

    def _check_learning(self, statistics: Mapping[str, float]) -> None:
        try:
            self._watch_learning.see(statistics)
        except TrainingFailed:
            self.save(clean=False)
            raise

    def numbers(self) -> dict[str, float]:
        """How far the run is, and the latest statistics of its learners."""
        return {
            "decisions": self.learner.decisions,
            "episodes": self._earlier["episodes"] + self.actor.episodes,
            "matches": self.league.matches.finished,
            "updates": sum(trained.step for trained in self.learner.players.values()),
            "dropped_reward": self._earlier["dropped_reward"] + self.actor.recorder.dropped_reward,
            **self._statistics,
        }

    def close(self) -> None:
        self.actor.close()
        self.controller.close()
        self._metrics.close()

    # --- stopping and going on ---

    def save(self, *, clean: bool) -> None:
        """Write a checkpoint. A clean one holds the tables too, so that a resume goes on exactly here; any
        other holds the learners, and a resume starts new matches."""
        arrays, facts = self.learner.save()
        saved = {f"learner/{name}": array for name, array in arrays.items()}
        all_facts: dict[str, Any] = {"learner": facts, "events": self.league.num_events}
        if clean:
            actor_arrays, all_facts["actor"] = self.actor.save()
            all_facts["buffers"] = self.learner.save_buffers()
            all_facts["experiment"] = self._fingerprint()
            saved |= {f"actor/{name}": array for name, array in actor_arrays.items()}
        self._checkpoints.save(self.learner.decisions, saved, all_facts)
        self._saved_at = self.learner.decisions

    def _fingerprint(self) -> str:
        """The tables of a checkpoint fit only the experiment that they were played under; how long it runs
        and who looks on changes nothing about them."""
        without = replace(
            self._written,
            budget=1,
            checkpoint_every=1,
            middleware=(),
            supervision=Supervision(),
            trial=None,
            time_limit_h=1.0,
            actors=None,
            metrics=(),
        )
        settings = encode(without)
        return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()

    def _resume(self, reason: str) -> None:
        checkpoint = self._checkpoints.load_latest()
        load_learner(self.learner, self._hosted, checkpoint)
        self._saved_at = self.learner.decisions
        if checkpoint is not None and self._fits_exactly(checkpoint):
            self._go_on(checkpoint)
        else:
            self._start_again(reason, after=checkpoint.facts["events"] if checkpoint else 0)
        self.controller.configure_learner()
        for player in self.learner.players:
            self.learner.publish(player)

    def _fits_exactly(self, checkpoint: Checkpoint) -> bool:
        """The tables can be brought back, and nothing has happened since but changes of settings, which hold
        from now on."""
        if not self._written.game.spec.repeatable:
            return False
        if "actor" not in checkpoint.facts or checkpoint.facts["experiment"] != self._fingerprint():
            return False
        since = self._ledger.replay(after=checkpoint.facts["events"])
        return all(isinstance(event, SettingsChanged) for _, event in since)

    def _go_on(self, checkpoint: Checkpoint) -> None:
        self.actor.load(under("actor/", checkpoint.arrays), checkpoint.facts["actor"])
        self.learner.load_buffers(checkpoint.facts["buffers"])

    def _start_again(self, reason: str, after: int) -> None:
        """Open matches are void; weights that were published after the checkpoint keep their ids, so the
        players go on under a new incarnation. The checkpoint is of event `after`."""
        starts = self.league.starts
        self.controller.start(starts, reason)
        self.controller.repeat_resets(after)
        for player, trained in self.learner.players.items():
            if starts:
                trained.incarnation = max(trained.incarnation, self.league.standings[player].incarnation) + 1
