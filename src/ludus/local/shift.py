"""Who works together from one start of all workers to the next, and what is noted of their progress."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from ludus.assemble import surroundings
from ludus.experiment import Experiment
from ludus.league.league import League
from ludus.live.edits import Editor
from ludus.live.settings import effective
from ludus.local.crew import Crew
from ludus.local.faults import FaultLog
from ludus.local.remote_learner import RemoteLearner
from ludus.local.serving import Serving
from ludus.local.upkeep import Tally, Upkeep
from ludus.observe.metrics import RunMetrics
from ludus.runtime.supervision import LearningWatch
from ludus.store.ledger import Ledger
from ludus.store.run_folder import RunFolder
from ludus.workers.controller import Controller
from ludus.workers.evaluation_book import EvaluationBook
from ludus.workers.evaluator import Evaluator


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """What stays, whatever is started again."""

    written: Experiment
    """As the run folder has it, without what the ledger says was changed since."""
    folder: RunFolder
    league: League
    ledger: Ledger
    crew: Crew
    faults: FaultLog
    tally: Tally


class Shift:
    """The controller of the workers that were started together, and its helpers."""

    def __init__(self, run: Run, learner: RemoteLearner, default_actors: int) -> None:
        """`default_actors`: how many there are where the experiment does not say."""
        now = effective(run.written, run.league)
        self.learner = learner
        self.controller = Controller(
            league=run.league,
            ledger=run.ledger,
            models=run.folder.models,
            learner=learner,
            evaluator=Evaluator(now.evaluation, run.league),
            evaluations=EvaluationBook(run.folder),
            episodes_per_table=now.actor.episodes_per_table,
        )
        self.upkeep = Upkeep(
            crew=run.crew,
            controller=self.controller,
            learner=learner,
            rules=now.supervision,
            faults=run.faults,
            logs=run.folder.logs,
            tally=run.tally,
        )
        self.serving = Serving(
            crew=run.crew,
            controller=self.controller,
            learner=learner,
            upkeep=self.upkeep,
            faults=run.faults,
            tally=run.tally,
        )
        around = surroundings(run.written, run.folder)

        def check(changed: Experiment) -> None:
            around.check(changed)
            self.upkeep.require_room(changed.actors or default_actors)

        self.editor = Editor(self.controller, dataclasses.replace(around, check=check))


class ProgressNotes:
    """Writes what the learner tells into the metrics of the run."""

    def __init__(self, experiment: Experiment, folder: RunFolder) -> None:
        self._metrics = RunMetrics(folder, experiment.metrics)
        self._watch = LearningWatch(experiment.supervision.most_refused)
        self.episodes: dict[str, float] = {}
        """What learning players got out of episodes of late."""

    def note(self, run: Run, learner: RemoteLearner, controller: Controller) -> None:
        """What is new since the last time; an error if nothing has been learned for too long."""
        launcher = run.crew.launcher
        for decisions, statistics in learner.news:
            episodes = controller.episodes.take()
            self.episodes |= episodes
            self._metrics.append(
                {
                    "decisions": decisions,
                    "episodes": run.tally.episodes,
                    "matches": run.league.matches.finished,
                    "updates": sum(report.step for report in learner.reports.values()),
                    "restarts": run.tally.restarts,
                    "dropped_reward": float(launcher.parts.dropped_reward.sum()),
                    **launcher.inference.update(),
                    **statistics,
                    **episodes,
                }
            )
            self._watch.see(statistics)
        learner.news.clear()

    def close(self) -> None:
        self._metrics.close()
