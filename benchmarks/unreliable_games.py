"""A league on games that crash, hang, leak and show garbage at random: does every match end in exactly one
row, and do memory and the number of processes stay flat?

python benchmarks/unreliable_games.py                            24 games, ten minutes
python benchmarks/unreliable_games.py --games 8 --minutes 1
"""

from __future__ import annotations

import os
import tempfile
import time
from collections import Counter
from contextlib import closing
from pathlib import Path

from _report import parser, write
from _unreliable_game import MEMORY_MB

from ludus.config import encode
from ludus.data.addresses import load_address
from ludus.data.records import MatchFinished, MatchIssued, MatchVoid
from ludus.experiment import Experiment
from ludus.games.isolation.isolated import Isolation
from ludus.league.matchmaking import SelfPlay
from ludus.league.promotion import BySteps
from ludus.league.rules import EvaluationConfig, LeagueRules, Role
from ludus.models.network_policy import ActorCritic
from ludus.runtime.coordinator import Training
from ludus.runtime.processes import ProcessWorkers, local_training
from ludus.store.run_folder import RunFolder
from ludus.workers.actor import ActorConfig
from ludus.workers.config import LearnerConfig
from ludus.workers.worker import StopTraining

STEP_SECONDS = 2.0


def experiment(games: int, mean_seconds: float) -> Experiment:
    # By address, so that worker processes and the processes of the games find it too.
    game = load_address(f"{Path(__file__).with_name('_unreliable_game.py')}:Unreliable")(mean_seconds=mean_seconds)
    return Experiment(
        name="unreliable",
        game=game,
        isolation=Isolation(processes=games, step_seconds=STEP_SECONDS, memory_mb=MEMORY_MB),
        budget=10**12,
        model=ActorCritic(hidden=(32,)),
        actor=ActorConfig(num_tables=games, matches=games, episodes_per_table=8, unroll_length=16),
        learner=LearnerConfig(batch_size=2_048, minibatch_size=1_024, epochs=1),
        league=LeagueRules(
            roles={"main": Role(matchmaking=SelfPlay(), promotion=BySteps(every=50_000))}, bots=("random",)
        ),
        evaluation=EvaluationConfig(opponents=("random",), past=1, ladder=0, episodes=16),
        checkpoint_every=100_000,
        runtime="local",
    )


def below(pid: int) -> list[int]:
    try:
        files = [file.read_text() for file in Path(f"/proc/{pid}/task").glob("*/children")]
    except OSError:
        return []
    children = [int(child) for text in files for child in text.split()]
    return [*children, *(one for child in children for one in below(child))]


def memory_mb(pid: int) -> float:
    """Its share of what it has in memory."""
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError:
        return 0.0
    return next((int(line.split()[1]) / 1024 for line in text.splitlines() if line.startswith("Pss:")), 0.0)


class Watch:
    """Ends the run in time, and looks at it now and then."""

    def __init__(self, minutes: float) -> None:
        self._start = self._looked = time.monotonic()
        self._seconds, self._every = 60 * minutes, max(5.0, 60 * minutes / 12)
        self.rows: list[list[str]] = []

    def __call__(self, training: Training) -> None:
        now = time.monotonic()
        if now - self._start > self._seconds:
            raise StopTraining("time is up")
        if now - self._looked < self._every:
            return
        self._looked = now
        processes = below(os.getpid())
        assert isinstance(training.workers, ProcessWorkers)
        own = [os.getpid(), *training.workers.actor_pids, training.workers.learner_pid]
        matches = training.league.matches
        files = sum(len(os.listdir(f"/proc/{pid}/fd")) for pid in own)
        row = [
            f"{(now - self._start) / 60:.1f}",
            f"{matches.finished:,}",
            f"{matches.void:,}",
            str(len(processes)),
            str(files),
            f"{sum(map(memory_mb, own)):,.0f}",
            f"{sum(memory_mb(pid) for pid in processes if pid not in own):,.0f}",
        ]
        self.rows.append(row)
        print("  ".join(row), flush=True)


COLUMNS = [
    "minutes",
    "finished",
    "void",
    "processes",
    "open files of the trainer",
    "memory of the trainer, MB",
    "of the games, MB",
]


def ends(folder: RunFolder) -> list[list[str]]:
    with folder.ledger(read_only=True) as ledger:
        events = [event for _, event in ledger.replay()]
    issued = Counter(event.match.id for event in events if isinstance(event, MatchIssued))
    finished = [event.result.match_id for event in events if isinstance(event, MatchFinished)]
    void = {event.match_id: event.reason for event in events if isinstance(event, MatchVoid)}
    number = Counter([*finished, *(event.match_id for event in events if isinstance(event, MatchVoid))])
    why = Counter(": ".join(reason.split(": ")[:2]) for reason in void.values())
    rows = [["issued", str(len(issued))], ["finished", str(len(finished))]]
    rows += [[f"void: {reason}", str(count)] for reason, count in why.most_common()]
    twice = sum(count > 1 for count in (*number.values(), *issued.values()))
    rows += [["without an end", str(len(issued.keys() - number.keys()))], ["with more than one", str(twice)]]
    return rows


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--games", type=int, default=24)
    options.add_argument("--minutes", type=float, default=10.0)
    options.add_argument("--mean-seconds", type=float, default=60.0, help="Life of a game's process.")
    chosen = options.parse_args()
    described = experiment(chosen.games, chosen.mean_seconds)
    watch = Watch(chosen.minutes)
    before = set(below(os.getpid()))
    with tempfile.TemporaryDirectory() as place:
        folder = RunFolder.create(Path(place) / "run", encode(described), seed=0, command=())
        with folder.lock(), closing(local_training(described, folder, 1)) as training:
            reason = training.run(watch)
            restarts, faults = training.restarts, dict(training.faults.counts)
        rows = ends(folder)
    left = set(below(os.getpid())) - before
    write(
        "unreliable_games",
        f"{chosen.games} games that crash, hang, leak and show garbage",
        [("How matches ended", ["", "matches"], rows), ("Over time", COLUMNS, watch.rows)],
        facts={
            "ended": reason,
            "life of a game": f"{chosen.mean_seconds:g} s on average",
            "workers started again": str(restarts),
            "faults": ", ".join(f"{kind} {count}" for kind, count in sorted(faults.items())) or "none",
            "processes left behind": str(len(left)),
        },
        keep=chosen.minutes >= 10,
    )


if __name__ == "__main__":
    main()
