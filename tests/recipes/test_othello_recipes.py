"""The recipes for Pgx's othello on one device: each trains a few updates, made small, on a CPU."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

pytest.importorskip("pgx", reason="Pgx is not installed: pip install -e '.[pgx]'")

from ludus.config import encode
from ludus.lookup import find_experiment
from ludus.runtime.device import device_training, require_on_device
from ludus.runtime.rounds import FINISHED
from ludus.store.run_folder import RunFolder

SMALL = {
    "learner.device": "cpu",
    "budget": 512,
    "openings.moves": 2,
    "model.hidden": [8],
    "model.channels": [4],
    "model.residual_blocks": 1,
    "actor.num_tables": 16,
    "learner.batch_size": 128,
    "learner.buffer_size": 128,
    "learner.minibatch_size": 64,
    "evaluation.episodes": 2,
}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["othello_search", "othello_ppo"])
def test_trains_a_few_updates(name: str, tmp_path: Path) -> None:
    experiment = find_experiment(name, SMALL)
    assert experiment.name == name
    folder = RunFolder.create(tmp_path / "run", encode(experiment), seed=experiment.seed, command=())
    with closing(device_training(experiment, folder)) as training:
        assert training.run() == FINISHED
        assert training.learner.decisions >= 512
        assert training.learner.engine.rollout.alike  # what its speed on a GPU rests on


def test_both_differ_in_what_is_compared_only() -> None:
    search, ppo = (find_experiment(name, {"learner.device": "cpu"}) for name in ("othello_search", "othello_ppo"))
    for experiment in (search, ppo):
        require_on_device(experiment)
    assert search.algorithm.search is not None
    assert ppo.algorithm.search is None
    for part in ("game", "model", "openings", "actor", "league", "evaluation", "device"):
        assert getattr(search, part) == getattr(ppo, part)
