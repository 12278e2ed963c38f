"""The examples do what they say: each is trained for real, from the experiment that its run folder holds."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ludus.config import encode
from ludus.data.addresses import load_address
from ludus.data.records import MatchIssued
from ludus.games.check import check_game
from ludus.games.lift import Lifted
from ludus.league.league import League
from ludus.runtime.assemble import load_experiment, new_league
from ludus.runtime.coordinator import Coordinator
from ludus.runtime.rounds import FINISHED
from ludus.runtime.serial import SerialWorkers, serial_training
from ludus.store.run_folder import RunFolder

EXAMPLES = Path(__file__).parent.parent / "examples"


@contextmanager
def trained(file: str, path: Path) -> Iterator[tuple[Coordinator[SerialWorkers], str]]:
    """The training of a file's experiment, and why it ended."""
    experiment = load_address(f"{EXAMPLES / file}:experiment")()
    folder = RunFolder.create(path / "run", encode(experiment), seed=experiment.seed)
    as_written = load_experiment(folder)
    assert as_written == experiment
    training = serial_training(as_written, folder)
    try:
        yield training, training.run()
    finally:
        training.close()


def updates(training: Coordinator[SerialWorkers]) -> list[dict[str, float]]:
    """What every update of the learner reported."""
    lines = (training.folder.metrics / "train.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def measured(league: League, opponent: str) -> list[float]:
    """Win rates against the opponent of the snapshots that have met it in evaluation, oldest first."""
    payoff = league.payoffs.view("evaluation")
    met = [player for player in league.candidates.frozen() if payoff.games(player, opponent)]
    return [payoff.win_rate(player, opponent) for player in met]


def test_the_game_keeps_its_promises() -> None:
    report = check_game(Lifted(load_address(f"{EXAMPLES / 'my_game.py'}:LiarsDice")))
    assert report.ok, str(report)


# The bars are above what the best fixed order of actions gets that does not look at the game: 0.50 against
# `doubter`, 0.77 against `random`. (In connect four it is 0.90: winning against `random` says little there.)
@pytest.mark.parametrize(
    ("file", "opponent", "bar"),
    [("my_game.py", "doubter", 0.65), ("my_network.py", "random", 0.85), ("my_algorithm.py", "random", 0.8)],
)
def test_the_player_learns_more_than_a_fixed_order(file: str, opponent: str, bar: float, tmp_path: Path) -> None:
    with trained(file, tmp_path) as (training, reason):
        win_rates = measured(training.league, opponent)
        rows = updates(training)
    assert reason == FINISHED
    assert win_rates[0] < 0.6
    assert win_rates[-1] > bar
    assert all(math.isfinite(value) for row in rows for value in row.values())
    assert rows[-1]["main/entropy"] < rows[0]["main/entropy"]


def test_the_player_meets_its_nemesis_and_learns_to_hold_it(tmp_path: Path) -> None:
    with trained("my_matchmaking.py", tmp_path) as (training, reason):
        win_rates = measured(training.league, "rules")
        opponents = nemeses(training)
    assert reason == FINISHED
    assert win_rates[0] < 0.2
    assert win_rates[-1] > 0.45  # the best fixed order of cells gets 0.42
    # The strongest script is found at once, and others become the nemesis when it no longer wins.
    assert opponents.count("rules") > len(opponents) / 4
    assert len(set(opponents)) > 1


def nemeses(training: Coordinator[SerialWorkers]) -> list[str]:
    """The opponents of all training matches, each checked against the win rates of its moment by replaying
    the ledger."""
    opponents = []
    league = new_league(training.experiment)
    with training.folder.ledger(read_only=True) as ledger:
        for _, event in ledger.replay():
            if isinstance(event, MatchIssued) and event.match.purpose == "training":
                (opponent,) = event.match.sides[1].players
                win_rates = league.payoff.win_rates("main", league.candidates.others("main"))
                assert league.payoff.win_rate("main", opponent) <= win_rates.min() + 0.02
                opponents.append(opponent)
            league.apply(event)
    return opponents


def test_middleware_ends_the_run_early(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with trained("my_middleware.py", tmp_path) as (training, reason):
        assert reason.startswith("entropy")
        assert reason.endswith("is below 0.05")
        assert training.learner.decisions < training.experiment.budget / 10
        assert training.league.payoff.win_rate("main", "rock") > 0.6
        assert len(capsys.readouterr().out.splitlines()) == training.learner.players["main"].step


def test_every_example_says_how_it_is_run() -> None:
    files = sorted(EXAMPLES.glob("*.py"))
    assert files
    for file in files:
        assert f"    ludus train examples/{file.name}:experiment\n" in file.read_text(encoding="utf-8")
