"""Edits of a run that nobody trains: straight into its ledger, in force when it goes on."""

from __future__ import annotations

from dataclasses import replace

from ludus.assemble import CHECKPOINT, build_policies, load_experiment, new_league, surroundings
from ludus.data.edits import AnyEdit
from ludus.data.records import LearnerProgress, ModelId, PlayerReset, Settings
from ludus.data.trees import under
from ludus.experiment import Experiment
from ludus.league.league import League
from ludus.live.edits import REFUSALS, Editor
from ludus.live.settings import effective
from ludus.store.requests import Answer
from ludus.store.run_folder import RunFolder
from ludus.workers.controller import Controller
from ludus.workers.evaluation_book import EvaluationBook
from ludus.workers.evaluator import Evaluator
from ludus.workers.learner import put_into_pool
from ludus.workers.trained_player import TrainedPlayer


class StoppedLearner:
    """Learning players as the latest checkpoint has them. The next start configures and resets them."""

    def __init__(self, experiment: Experiment, folder: RunFolder, league: League) -> None:
        self._experiment = experiment
        self._folder = folder
        self._league = league

    def report(self, player: str) -> LearnerProgress:
        trained = self._load(player)
        return LearnerProgress(player, trained.incarnation, trained.step, trained.decisions)

    def freeze(self, player: str, parent: ModelId | None) -> LearnerProgress:
        trained = self._load(player)
        put_into_pool(self._folder.models, trained, parent)
        return self.report(player)

    def reset(self, event: PlayerReset) -> None:
        pass

    def configure(self, player: str, settings: Settings) -> None:
        pass

    def _load(self, player: str) -> TrainedPlayer:
        checkpoint = self._folder.checkpoints(CHECKPOINT).load_latest()
        if checkpoint is None or player not in checkpoint.facts["learner"]:
            raise ValueError(f"no checkpoint has {player!r} yet; let the run train first")
        here = replace(self._experiment.learner, device="cpu")
        policies = build_policies(self._experiment, self._experiment.seed)
        trained = TrainedPlayer(player, policies, self._experiment.algorithm, here, seed=0)
        trained.load(under(f"learner/{player}/", checkpoint.arrays), checkpoint.facts["learner"][player])
        standing = self._league.standings[player]
        if (trained.incarnation, trained.decisions) < (standing.incarnation, standing.decisions):
            raise ValueError(
                f"the weights of {player!r} are gone that the ledger last heard of: the run did not end in "
                "good order, or a reset is due; let it go on first"
            )
        return trained


def edit_stopped(folder: RunFolder, edit: AnyEdit) -> Answer:
    """Do an edit, or say why not; the caller holds the lock of the run."""
    written = load_experiment(folder)
    league = new_league(written)
    with folder.ledger() as ledger:
        for _, event in ledger.replay():
            league.apply(event)
        now = effective(written, league)
        controller = Controller(
            league=league,
            ledger=ledger,
            models=folder.models,
            learner=StoppedLearner(now, folder, league),
            evaluator=Evaluator(now.evaluation, league),
            evaluations=EvaluationBook(folder),
            episodes_per_table=now.actor.episodes_per_table,
        )
        try:
            return Answer(done=Editor(controller, surroundings(written, folder)).do(edit))
        except REFUSALS as error:
            return Answer(refused=str(error))
