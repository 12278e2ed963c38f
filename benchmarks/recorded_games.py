"""What recording games costs a training: processor time of the recorder beside that of all processes.

python benchmarks/recorded_games.py connect_four 3e6
"""

from __future__ import annotations

import argparse
import resource
import tempfile
import time
from pathlib import Path

from ludus.evaluation.game_recorder import GameRecorder
from ludus.runtime.rounds import FINISHED
from ludus.runtime.start import training_of
from ludus.training import Plan


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("recipe")
    asked.add_argument("budget", type=float)
    options = asked.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        plan = Plan.make(options.recipe, run=Path(folder) / "run", settings={"budget": int(options.budget)})
        began = time.monotonic()
        with plan.open(["benchmarks/recorded_games.py"]) as (run, experiment):
            with training_of(experiment, run, num_actors=plan.actors, address=None) as training:
                with GameRecorder(training) as recorder:
                    assert training.run() == FINISHED
                    ended = time.monotonic()
                waited = time.monotonic() - ended
            wall = time.monotonic() - began
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    cpu = sum(one.ru_utime + one.ru_stime for one in used)
    print(
        f"{options.recipe}: {recorder.recorded} games, {recorder.seconds:.2f} s of {cpu:.1f} s of processor time "
        f"({recorder.seconds / cpu:.2%}); {wall:.0f} s in all, of which the end waited {waited:.2f} s for them"
    )


if __name__ == "__main__":
    main()
