"""All wiring: from an `Experiment` and a run folder to workers that know each other."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, Literal, Protocol

import msgspec
import numpy as np

from ludus.config import ConfigError, decode, encode
from ludus.data.flat_tree import ForgetfulSeatError
from ludus.data.records import ModelId
from ludus.data.trajectory import SlotPool, TrajectoryLayout
from ludus.data.trees import Array, IntArray, Tree, under
from ludus.experiment import Experiment
from ludus.league.league import League
from ludus.league.players import unknown
from ludus.models.policy import Policy
from ludus.models.weights import load_weights
from ludus.runtime.program import Progress
from ludus.runtime.serial import FINISHED, run_serial
from ludus.runtime.supervision import LearningWatch, Supervision, TrainingFailed
from ludus.runtime.weight_board import LocalBoard, WeightBoard
from ludus.store.checkpoints import Checkpoint
from ludus.store.metrics_file import MetricsFile
from ludus.store.model_pool import ModelPool
from ludus.store.run_folder import RunFolder, RunFolderError
from ludus.workers.actor import Actor
from ludus.workers.buffer import Buffer
from ludus.workers.controller import Controller
from ludus.workers.devices import NoSuchDeviceError, find_device
from ludus.workers.evaluator import Evaluator
from ludus.workers.exploitability import ExactGame, Probs
from ludus.workers.inline_inference import InlineInference
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


def draws_per_row(experiment: Experiment) -> list[int]:
    """Per kind of seat, the uniform numbers that a policy uses up for one row."""
    return [policy.num_draws for policy in build_policies(experiment, experiment.seed)]


def load_experiment(folder: RunFolder) -> Experiment:
    """The experiment that is written in a run folder. Imports the code that it names."""
    experiment = decode(msgspec.json.decode(folder.facts.experiment))
    if not isinstance(experiment, Experiment):
        raise TypeError(f"{folder.path} holds a {type(experiment).__name__}, not an Experiment")
    return experiment


def learning_players(experiment: Experiment) -> list[str]:
    rules = experiment.league
    return [player for role in rules.roles for player in rules.players_of(role)]


def start_models(experiment: Experiment) -> dict[str, str]:
    """The models that learning players begin with, where they do not begin with fresh weights."""
    rules = experiment.league
    return {
        player: role.start
        for name, role in rules.roles.items()
        for player in rules.players_of(name)
        if role.start is not None
    }


def slots_per_actor(experiment: Experiment) -> tuple[int, ...]:
    """Per kind of seat: a slot that each stream writes into and one that it may need next, those that may
    wait in the buffers, and those of hand-overs that are on the way there while the learner is busy."""
    streams = StreamNumbers(experiment.game.spec, experiment.actor.num_tables)
    learner = experiment.learner
    on_the_way = (learner.lag + (learner.uses > 1)) * _slots_for(experiment, learner.batch_size)
    waiting = len(learning_players(experiment)) * (slots_per_buffer(experiment) + on_the_way)
    return tuple(2 * streams.count(kind) + waiting for kind in range(len(experiment.game.spec.kinds)))


def slots_per_buffer(experiment: Experiment) -> int:
    """Slots of one actor that may wait for the learner of one player."""
    return _slots_for(experiment, experiment.learner.buffer_size)


def _slots_for(experiment: Experiment, decisions: int) -> int:
    """Twice what full trajectories need, since many are cut short, and one for each seat at the tables,
    since a hand-over cuts them all."""
    full = -(-decisions // experiment.actor.unroll_length)
    return 2 * full + experiment.actor.num_tables * experiment.game.spec.num_seats


def new_pools(
    experiment: Experiment,
    num_actors: int = 1,
    new: Callable[[tuple[int, ...], Any], Array] = np.zeros,
) -> tuple[SlotPool, ...]:
    """Trajectory slots of all actors, one pool per kind of seat."""
    policies = build_policies(experiment, experiment.seed)
    return tuple(
        SlotPool(
            TrajectoryLayout(
                kind=policy.kind, unroll_length=experiment.actor.unroll_length, state=policy.state_arrays
            ),
            num_actors * count,
            new,
        )
        for policy, count in zip(policies, slots_per_actor(experiment), strict=True)
    )


def require_devices(experiment: Experiment) -> None:
    """Refuse an experiment that asks for a GPU that this machine does not have."""
    asked = {"learner.device": experiment.learner.device}
    if experiment.actor.inference == "worker":
        asked["actor.inference_device"] = experiment.actor.inference_device
    for setting, device in asked.items():
        try:
            find_device(device, setting)
        except NoSuchDeviceError as error:
            raise ConfigError(str(error)) from None


def new_learner(
    experiment: Experiment,
    pools: tuple[SlotPool, ...],
    board: WeightBoard,
    models: ModelPool,
    free: Callable[[int, IntArray], None],
    num_actors: int = 1,
) -> Learner:
    """A learner that hosts all learning players, with fresh weights."""
    players = {}
    for index, player in enumerate(learning_players(experiment)):
        seed = int(np.random.SeedSequence([experiment.seed, index]).generate_state(1)[0])
        players[player] = TrainedPlayer(
            player, build_policies(experiment, seed), experiment.algorithm, experiment.learner, seed=seed
        )
    buffers = {
        player: Buffer(
            pools,
            max_decisions=experiment.learner.buffer_size,
            max_slots=slots_per_buffer(experiment),
            free=free,
            num_actors=num_actors,
            max_lag=experiment.learner.lag,
            uses=experiment.learner.uses,
        )
        for player in players
    }
    return Learner(
        name="learner",
        players=players,
        buffers=buffers,
        pools=pools,
        board=board,
        models=models,
        budget=experiment.budget,
    )


class Training(Protocol):
    """A run that is going on, in whichever runtime."""

    experiment: Experiment
    folder: RunFolder
    league: League

    def run(self, watch: Callable[[Training], None] | None = None) -> str:
        """Train until the budget is spent or somebody stops it; the state is saved either way."""

    def numbers(self) -> dict[str, float]:
        """How far the run is, and the latest statistics of its learners."""

    def close(self) -> None: ...


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
        pools = new_pools(experiment)
        taking_turns = replace(experiment, learner=replace(experiment.learner, schedule="sync"))
        self.learner = new_learner(
            taking_turns, pools, board, folder.models, lambda kind, slots: self.actor.free(kind, slots)
        )
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
            inference=InlineInference(shelf, draws_per_row(experiment)),
            pools=pools,
            trajectories=self.learner,
            hand_over_after=experiment.learner.batch_size,
            seed=experiment.seed,
        )
        self._saved_at = 0
        self._statistics: dict[str, float] = {}
        self._watch_learning = LearningWatch(experiment.supervision.most_refused)
        self._resume()

    # --- running ---

    def run(self, watch: Callable[[Training], None] | None = None) -> str:
        """Train until the budget is spent or somebody stops it; the state is saved either way. At the end of
        the budget, what has been learned is frozen and measured."""

        noted = self.learner.batches

        def after_round(progress: dict[str, Progress]) -> None:
            nonlocal noted
            learned = progress["learner"]
            if self.learner.batches != noted:  # middleware may add statistics to rounds without a batch
                noted = self.learner.batches
                self._statistics |= learned.statistics
                self._metrics.append(self.numbers())
                self._check_learning(learned.statistics)
                if self.learner.decisions - self._saved_at >= self.experiment.checkpoint_every:
                    self.save(clean=False)
            if watch is not None:
                watch(self)

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
            "episodes": self.actor.episodes,
            "matches": self.league.matches.finished,
            "updates": sum(trained.step for trained in self.learner.players.values()),
            "dropped_reward": self.actor.dropped_reward,
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
            self.experiment, budget=1, checkpoint_every=1, middleware=(), supervision=Supervision()
        )
        settings = encode(without)
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
        if checkpoint is None:
            self.learner.start_from(start_models(self.experiment))
        self.controller.repeat_resets(after=checkpoint.facts["events"] if checkpoint else 0)
        for player, trained in self.learner.players.items():
            if starts:
                trained.incarnation = max(trained.incarnation, self.league.standings[player].incarnation) + 1


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
        seated[name] = SeatedPlayer(policies=policies, model=model, greedy=greedy, pinned=True)
    return seated


def _learned(
    experiment: Experiment, folder: RunFolder, player: str, weights: Literal["live", "average"]
) -> tuple[ModelId, Tree]:
    checkpoint = folder.checkpoints(CHECKPOINT).load_latest()
    if checkpoint is None:
        raise RunFolderError(f"{folder.path} has no checkpoint yet; its snapshots can be named instead")
    here = replace(experiment.learner, device="cpu")  # whatever the machine has that the run was trained on
    trained = TrainedPlayer(player, build_policies(experiment, 0), experiment.algorithm, here, seed=0)
    trained.load(under(f"learner/{player}/", checkpoint.arrays), checkpoint.facts["learner"][player])
    return trained.model, trained.weights() if weights == "live" else trained.average_weights()


def exact_report(experiment: Experiment, folder: RunFolder, league: League) -> dict[str, float] | None:
    """NashConv of the first learning player's live and averaged weights and of the equilibrium mixture of
    the frozen players, by what it is; None where the game tree cannot be walked, its information states do
    not hold all that a seat has seen, or the policies are not one table of action probabilities."""
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

    player = next(iter(league.standings))
    report = {
        f"live weights of {player}": game.nash_conv(table(_learned(experiment, folder, player, "live")[1])),
        f"averaged weights of {player}": game.nash_conv(
            table(_learned(experiment, folder, player, "average")[1])
        ),
    }
    frozen = [league.players[name] for name in league.candidates.frozen()]
    if experiment.game.spec.num_seats == 2 and frozen:
        tables = [table(folder.models.fetch(ModelId.parse(one.model or ""), one.weights)) for one in frozen]
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
