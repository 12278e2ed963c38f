"""All wiring: from an `Experiment` and a run folder to workers that know each other."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, Literal

import msgspec
import numpy as np

from ludus.config import ConfigError, decode, encode
from ludus.data.flat_tree import ForgetfulSeatError
from ludus.data.records import ModelId
from ludus.data.trajectory import SlotPool, TrajectoryLayout
from ludus.data.trees import IntArray, Tree, under
from ludus.experiment import Experiment
from ludus.league.league import League
from ludus.league.players import unknown
from ludus.models.policy import Policy
from ludus.models.weights import load_weights
from ludus.runtime.program import Progress
from ludus.runtime.serial import FINISHED, run_serial
from ludus.runtime.weight_board import LocalBoard
from ludus.store.checkpoints import Checkpoint
from ludus.store.metrics_file import MetricsFile
from ludus.store.run_folder import RunFolder, RunFolderError
from ludus.workers.actor import Actor
from ludus.workers.buffer import Buffer
from ludus.workers.controller import Controller
from ludus.workers.evaluator import Evaluator
from ludus.workers.exploitability import ExactGame, Probs
from ludus.workers.learner import Learner
from ludus.workers.shelf import SeatedPlayer, Shelf
from ludus.workers.streams import StreamNumbers
from ludus.workers.threads import use_threads
from ludus.workers.trained_player import TrainedPlayer

CHECKPOINT = "run"
"""Name of the checkpoints that hold the whole state of a run."""


def new_league(experiment: Experiment) -> League:
    spec = experiment.game.spec
    rules = experiment.league
    bots = dict.fromkeys((*rules.bots, *experiment.evaluation.opponents))
    return League(
        replace(rules, bots=tuple(bots)),
        num_teams=spec.num_teams,
        seats_per_team=tuple(len(seats) for seats in spec.seats_of_team),
        seed=experiment.seed,
    )


def build_policies(experiment: Experiment, seed: int) -> tuple[Policy, ...]:
    """Fresh policies, one per kind of seat."""
    return tuple(
        experiment.model.build(kind, seed + index) for index, kind in enumerate(experiment.game.spec.kinds)
    )


def load_experiment(folder: RunFolder) -> Experiment:
    """The experiment that is written in a run folder. Imports the code that it names."""
    experiment = decode(msgspec.json.decode(folder.facts.experiment))
    if not isinstance(experiment, Experiment):
        raise TypeError(f"{folder.path} holds a {type(experiment).__name__}, not an Experiment")
    return experiment


class SerialTraining:
    """A run in one process: builds the workers, runs them, saves and resumes them."""

    def __init__(self, experiment: Experiment, folder: RunFolder) -> None:
        use_threads(1)
        self.experiment = experiment
        self.folder = folder
        self.league = new_league(experiment)
        ledger = folder.ledger()
        self._ledger = ledger
        self._checkpoints = folder.checkpoints(CHECKPOINT)
        self._metrics = MetricsFile(folder.metrics / "train.jsonl")

        board = LocalBoard()
        template = build_policies(experiment, experiment.seed)
        pools = self._new_pools(template)
        self.learner = self._new_learner(pools, board)
        self.controller = Controller(
            league=self.league,
            ledger=ledger,
            models=folder.models,
            learner=self.learner,
            evaluator=Evaluator(experiment.evaluation, self.league),
            episodes_per_table=experiment.actor.episodes_per_table,
        )
        shelf = Shelf(
            build=lambda: build_policies(experiment, experiment.seed),
            board=board,
            frozen=self.controller,
            bots=experiment.game.bots(),
            capacity=experiment.actor.models_in_memory,
        )
        self.actor = Actor(
            name="actor",
            game=experiment.game.tables(experiment.actor.num_tables),
            config=experiment.actor,
            desk=self.controller,
            players=shelf,
            pools=pools,
            trajectories=self.learner,
            hand_over_after=experiment.learner.batch_size,
            seed=experiment.seed,
        )
        self._saved_at = 0
        self._resume()

    # --- running ---

    def run(self, watch: Callable[[SerialTraining, dict[str, Progress]], None] | None = None) -> str:
        """Train until the budget is spent or somebody stops it; the state is saved either way. At the end of
        the budget, what has been learned is frozen and measured."""

        def after_round(progress: dict[str, Progress]) -> None:
            learned = progress["learner"]
            if learned.count:
                self._metrics.append(
                    {
                        "decisions": self.learner.decisions,
                        "episodes": self.actor.episodes,
                        "matches": self.league.matches.finished,
                        "dropped_reward": self.actor.dropped_reward,
                        **learned.statistics,
                    }
                )
                if self.learner.decisions - self._saved_at >= self.experiment.checkpoint_every:
                    self.save(clean=False)
            if watch is not None:
                watch(self, progress)

        reason = run_serial(
            (self.learner, self.controller, self.actor),
            middleware=self.experiment.middleware,
            finished=lambda: self.learner.decisions >= self.experiment.budget,
            after_round=after_round,
        )
        if reason == FINISHED:
            self.controller.freeze_all()
            reason = run_serial(
                (self.actor,),
                middleware=self.experiment.middleware,
                finished=lambda: not self.controller.is_measuring,
                after_round=lambda _: None,
            )
        self.save(clean=True)
        return reason

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
        settings = encode(replace(self.experiment, budget=1, checkpoint_every=1, middleware=()))
        return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()

    def _resume(self) -> None:
        self.controller.follow_ledger()
        starts = self.league.starts
        checkpoint = self._checkpoints.load_latest()
        exact = (
            checkpoint is not None
            and "actor" in checkpoint.facts
            and checkpoint.facts["events"] == self.league.num_events
            and checkpoint.facts["experiment"] == self._fingerprint()
        )
        if checkpoint is not None:
            self.learner.load(under("learner/", checkpoint.arrays), checkpoint.facts["learner"])
            self._saved_at = self.learner.decisions
        if exact:
            assert checkpoint is not None
            self._go_on(checkpoint)
        else:
            self._start_again(starts, checkpoint)
        for player in self.learner.players:
            self.learner.publish(player)

    def _go_on(self, checkpoint: Checkpoint) -> None:
        self.actor.load(under("actor/", checkpoint.arrays), checkpoint.facts["actor"])
        self.learner.load_buffers(checkpoint.facts["buffers"])

    def _start_again(self, starts: int, checkpoint: Checkpoint | None) -> None:
        """Open matches are void; weights that were published after the checkpoint keep their ids, so the
        players go on under a new incarnation."""
        self.controller.start(starts)
        if checkpoint is not None:
            self.controller.repeat_resets(after=checkpoint.facts["events"])
        for player, trained in self.learner.players.items():
            weights = self.controller.start_weights(player)
            if checkpoint is None and weights is not None:
                trained.restart_from(weights)
            if starts:
                trained.incarnation = max(trained.incarnation, self.league.standings[player].incarnation) + 1

    # --- building ---

    def _new_pools(self, template: tuple[Policy, ...]) -> tuple[SlotPool, ...]:
        """Every stream writes into one slot; the others wait in the buffers."""
        actor = self.experiment.actor
        streams = StreamNumbers(self.experiment.game.spec, actor.num_tables)
        pools = []
        for kind, policy in enumerate(template):
            layout = TrajectoryLayout(
                kind=policy.kind, unroll_length=actor.unroll_length, state=policy.state_arrays
            )
            waiting = len(self._learning_players) * self._slots_per_buffer
            pools.append(SlotPool(layout, streams.count(kind) + waiting))
        return tuple(pools)

    @property
    def _learning_players(self) -> list[str]:
        rules = self.experiment.league
        return [player for role in rules.roles for player in rules.players_of(role)]

    @property
    def _slots_per_buffer(self) -> int:
        """Twice what full trajectories need, since many are cut short, and one for each seat at the tables,
        since a hand-over cuts them all."""
        actor, learner = self.experiment.actor, self.experiment.learner
        full = -(-learner.buffer_size // actor.unroll_length)
        return 2 * full + actor.num_tables * self.experiment.game.spec.num_seats

    def _new_learner(self, pools: tuple[SlotPool, ...], board: LocalBoard) -> Learner:
        experiment = self.experiment
        ids = self._learning_players

        def free(kind: int, slots: IntArray) -> None:
            self.actor.free(kind, slots)

        players = {}
        for index, player in enumerate(ids):
            seed = int(np.random.SeedSequence([experiment.seed, index]).generate_state(1)[0])
            players[player] = TrainedPlayer(
                player,
                build_policies(experiment, seed),
                experiment.algorithm,
                experiment.learner,
                seed=seed,
            )
        return Learner(
            name="learner",
            players=players,
            buffers={
                player: Buffer(
                    pools,
                    max_decisions=experiment.learner.buffer_size,
                    max_slots=self._slots_per_buffer,
                    free=free,
                )
                for player in ids
            },
            pools=pools,
            board=board,
            free=free,
            budget=experiment.budget,
        )


def load_players(
    experiment: Experiment,
    folder: RunFolder,
    league: League,
    names: Iterable[str],
    *,
    weights: Literal["live", "average"] = "live",
    greedy: bool = False,
) -> dict[str, SeatedPlayer]:
    """Players of a run by name: bots of the game, frozen players as they are pinned, learning players as the
    latest checkpoint has them."""
    bots = experiment.game.bots()
    seated: dict[str, SeatedPlayer] = {}
    for name in names:
        if name in bots:
            seated[name] = SeatedPlayer(bot=bots[name])
            continue
        player = league.players.get(name)
        if player is None:
            known = [*league.standings, *league.candidates.frozen(), *bots]
            raise ConfigError(unknown("player", name, known))
        policies = build_policies(experiment, experiment.seed)
        if player.learning:
            model, arrays = _learned(experiment, folder, name, weights)
        else:
            assert player.model is not None
            model = ModelId.parse(player.model)
            arrays = folder.models.fetch(model, player.weights)
        load_weights(policies, arrays)
        seated[name] = SeatedPlayer(policies=policies, model=model, greedy=greedy)
    return seated


def _learned(
    experiment: Experiment, folder: RunFolder, player: str, weights: Literal["live", "average"]
) -> tuple[ModelId, Tree]:
    checkpoint = folder.checkpoints(CHECKPOINT).load_latest()
    if checkpoint is None:
        raise RunFolderError(f"{folder.path} has no checkpoint yet; its snapshots can be named instead")
    trained = TrainedPlayer(
        player, build_policies(experiment, 0), experiment.algorithm, experiment.learner, seed=0
    )
    trained.load(under(f"learner/{player}/", checkpoint.arrays), checkpoint.facts["learner"][player])
    return trained.model, trained.weights() if weights == "live" else trained.average_weights()


def exact_report(training: SerialTraining) -> dict[str, float] | None:
    """NashConv of the first learning player's live and averaged weights and of the equilibrium mixture of
    the frozen players, by what it is; None where the game tree cannot be walked, its information states do
    not hold all that a seat has seen, or the policies are not one table of action probabilities."""
    experiment = training.experiment
    root = experiment.game.tree()
    if root is None:
        return None
    game = ExactGame(root)
    try:
        _ = game.tree
    except ForgetfulSeatError:
        return None
    policies = build_policies(experiment, experiment.seed)
    if len(policies) > 1 or policies[0].state_arrays:
        return None
    policy = policies[0]

    def table(weights: Tree) -> Probs:
        load_weights((policy,), weights)
        return game.probabilities(policy)

    player, trained = next(iter(training.learner.players.items()))
    report = {
        f"live weights of {player}": game.nash_conv(table(trained.weights())),
        f"averaged weights of {player}": game.nash_conv(table(trained.average_weights())),
    }
    frozen = training.league.candidates.frozen()
    if experiment.game.spec.num_seats == 2 and frozen:
        tables = [table(training.controller.fetch_frozen(frozen_player)[1]) for frozen_player in frozen]
        mixture, weights = game.equilibrium_mixture(tables)
        count = int((weights > 1e-6).sum())
        report[f"equilibrium mixture of the league ({count} of {len(frozen)} frozen players)"] = (
            game.nash_conv(mixture)
        )
    return report


__all__ = [
    "SerialTraining",
    "build_policies",
    "exact_report",
    "load_experiment",
    "load_players",
    "new_league",
]
