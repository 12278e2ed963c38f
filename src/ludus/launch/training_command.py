"""The command that every launcher runs: it begins a run, or goes on with it after whatever ended it."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

ACTOR_PLACES, LEARNER_PLACES = "ludus_actor", "ludus_learner"
"""What a node offers to Ray: places for actors, and one for the learner."""


@dataclass(frozen=True, kw_only=True)
class TrainingCommand:
    """What to train, and where it is kept."""

    experiment: str
    """Recipe, FILE.py:NAME or FILE.yaml."""
    run: str
    settings: tuple[str, ...] = ()

    def words(self, *, runtime: str, address: str | None = None) -> list[str]:
        words = ["ludus", "train", self.experiment, "--run", self.run, "--resume-or-start"]
        words += ["--runtime", runtime]
        if address is not None:
            words += ["--address", address]
        for setting in self.settings:
            words += ["--set", setting]
        return words

    @property
    def file(self) -> Path | None:
        """The user's own file that the experiment is in, if it is one."""
        place, _, _ = self.experiment.rpartition(":")
        for name in (place, self.experiment):
            if name.endswith((".py", ".yaml", ".yml")):
                return Path(name)
        return None


def job_name(text: str) -> str:
    """Small letters, digits and dashes, as schedulers and DNS want them."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:50].strip("-") or "ludus"


def places(workers: int, *, learner: bool) -> dict[str, int]:
    """The resources of a node with this many actors."""
    offered = {ACTOR_PLACES: workers} if workers else {}
    return offered | ({LEARNER_PLACES: 1} if learner else {})


def beside(run: str | os.PathLike[str], ending: str) -> Path:
    """A file of the job: next to the run folder, which is the run's alone."""
    run = Path(run)
    return run.with_name(run.name + ending)
