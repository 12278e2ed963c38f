"""The roles of examples/my_role.py, and a league of them trained for a moment."""

from __future__ import annotations

from pathlib import Path

import pytest
from league_rows import play, started

from ludus.config import decode, encode
from ludus.data.addresses import load_address
from ludus.data.records import LearnerProgress, PlayerAdded, PlayerReset
from ludus.experiment import Experiment
from ludus.league.league import League
from ludus.runtime.rounds import FINISHED
from ludus.runtime.serial import serial_training
from ludus.store.run_folder import RunFolder

EXAMPLE = Path(__file__).parents[2] / "examples" / "my_role.py"


def _experiment() -> Experiment:
    experiment = load_address(f"{EXAMPLE}:experiment")()
    assert isinstance(experiment, Experiment)
    assert decode(encode(experiment)) == experiment
    return experiment


def _period(league: League, number: int) -> dict[str, str | None]:
    """Everybody trains until its time-out; where each then starts again."""
    for player, standing in list(league.standings.items()):
        league.apply(LearnerProgress(player, standing.incarnation, number, number * 10_000))
    for snapshot in league.due_snapshots():
        league.apply(snapshot)
    resets = league.due_resets()
    for reset in resets:
        league.apply(reset)
    return {reset.player: reset.model for reset in resets}


def test_each_exploiter_starts_again_from_what_it_chooses() -> None:
    league = started(_experiment().league)
    for snapshot in league.due_snapshots():
        league.apply(snapshot)
    models = []
    for number in range(1, 6):
        models.append(_period(league, number))
        # Against main the first snapshot of `adaptive` is weak, the second nearly as good, the third best.
        wins = {1: 5, 2: 40, 3: 80}.get(number)
        if wins is not None:
            play(league, "main", f"adaptive.{number}", pairs=((100 - wins, 0, wins),))
    frozen = {player.id: player.model for player in league.players.values() if player.frozen}
    assert [one["expert"] for one in models] == [frozen[f"main.{number}"] for number in range(2, 7)]
    assert [one["adaptive"] for one in models] == [None, None, *[frozen["adaptive.2"]] * 3]
    assert [one["cyclic"] for one in models] == [None, None, *[frozen[f"cyclic.{n}"] for n in (1, 2, 3)]]
    assert all(set(one) == {"adaptive", "expert", "cyclic"} for one in models)


@pytest.mark.slow
def test_a_league_of_these_roles_trains(tmp_path: Path) -> None:
    experiment = _experiment()
    training = serial_training(experiment, RunFolder.create(tmp_path / "run", encode(experiment), seed=0))
    try:
        assert training.run() == FINISHED
        with training.folder.ledger(read_only=True) as ledger:
            events = [event for _, event in ledger.replay()]
    finally:
        training.close()
    for player in ("adaptive", "expert", "cyclic"):
        frozen = [e for e in events if isinstance(e, PlayerAdded) and e.parent == player and e.reason != "final"]
        resets = [e for e in events if isinstance(e, PlayerReset) and e.player == player]
        assert len(frozen) == len(resets) > 1
        for snapshot, reset in zip(frozen, resets, strict=True):
            assert events.index(snapshot) < events.index(reset)


def test_the_small_exploiter_has_its_own_network_and_algorithm() -> None:
    experiment = load_address(f"{EXAMPLE}:small_exploiter")()
    main, small = experiment.of_role("main"), experiment.of_role("small")
    assert main is experiment
    assert (main.model.hidden, small.model.hidden) == ((256, 256), (32,))
    assert (type(main.algorithm).__name__, type(small.algorithm).__name__) == ("Impala", "PPO")
    assert (main.learner.batch_size, small.learner.batch_size) == (512, 256)
