"""Windows to clone from: outcomes, strategies and the kinds of seat that they are for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from ludus.algorithms.cloning import OUTCOME
from ludus.data.replay import DatasetError, DecodedReplay, Episode, EpisodeFacts, column_specs
from ludus.data.specs import ActionSpec, Choice, Entities, GameSpec, ObservationSpec, Point, SeatKind, Vector
from ludus.data.trees import Array
from ludus.games.builtin.tic_tac_toe import TicTacToe
from ludus.games.seat_groups import group_seats
from ludus.games.strategies import PART, WithStrategies
from ludus.replays.cloning_plan import ReplayWindows, require_fit, vocabularies, windows_by_kind
from ludus.replays.dataset import ReplayDataset
from ludus.replays.dataset_writer import write_dataset

BOARD = TicTacToe().spec.kinds[0]
TYPED = SeatKind(
    name="player",
    observation=ObservationSpec(parts={"units": Entities(maximum=4, features=2, types=9)}),
    action=ActionSpec(heads={"order": Choice(num=6)}),
)


def columns(kind: SeatKind, rows: int, rng: np.random.Generator) -> dict[str, Array]:
    found = {name: np.zeros((rows, *spec.shape), spec.dtype) for name, spec in column_specs(kind).items()}
    for name, mask in found.items():
        if name.startswith("legal."):
            mask[:] = True
    if kind is TYPED:
        found["observation.units"][..., 0] = rng.choice([2, 5, 7], (rows, 4))
        found["observation.units_length"][:] = rng.integers(1, 4, rows)
        found["observation.units"][:, 3, 0] = 8  # padding
        found["action.order"][:] = rng.choice([0, 3, 4], rows)
    return found


def write(
    folder: Path,
    kind: SeatKind,
    *,
    strategies: bool = False,
    episodes: int = 40,
    make: Callable[[SeatKind, int, np.random.Generator], dict[str, Array]] = columns,
) -> ReplayDataset:
    """Episode i is of seat i % 2, won by seat 0, and built i."""
    rng = np.random.default_rng(0)
    strategy = (3, 2, False) if strategies else None
    with write_dataset(folder, game="game", kind=kind, strategy=strategy, settings={}) as writer:
        for number in range(episodes):
            rows = int(rng.integers(1, 30))
            facts = EpisodeFacts(
                replay=str(number),
                game="game",
                map="",
                version="",
                matchup=("a", "b"),
                player="a",
                seat=number % 2,
                outcome="loss" if number % 2 else "win",
                score=0.0,
                length=rows,
            )
            built = {
                "build_order": np.array([number % 4, number % 3, -1], np.int16),
                "built": np.array([number % 2, 1], np.bool_),
            }
            episode = Episode(facts=facts, columns=make(kind, rows, rng), **built if strategies else {})
            writer.add(DecodedReplay(name=str(number), episodes=(episode,)))
    return ReplayDataset.open(folder)


def test_every_decision_knows_how_its_episode_ended(tmp_path: Path) -> None:
    dataset = write(tmp_path / "data", BOARD)
    batch = ReplayWindows(dataset, 8).draw(np.random.default_rng(1), 2_000)
    assert batch.extra[OUTCOME].shape == batch.valid.shape == (9, batch.valid.shape[1])
    assert {*np.unique(batch.extra[OUTCOME])} == {-1.0, 1.0}
    assert np.ptp(batch.extra[OUTCOME], axis=0).max() == 0
    assert 1_700 < batch.valid.sum() < 2_300


def test_windows_are_no_longer_than_episodes(tmp_path: Path) -> None:
    dataset = write(tmp_path / "data", BOARD)
    longest = int(dataset.episodes.decisions.max())
    batch = ReplayWindows(dataset, 500).draw(np.random.default_rng(1), 1_000)
    assert len(batch.valid) == longest + 1


def test_seats_go_to_the_policy_that_acts_for_them(tmp_path: Path) -> None:
    dataset = write(tmp_path / "data", BOARD)
    spec = group_seats(TicTacToe(), "per_seat").spec
    found = windows_by_kind(TicTacToe(), spec, dataset, 8)
    assert [*found] == [0, 1]
    for kind, outcome in ((0, 1.0), (1, -1.0)):
        batch = found[kind].draw(np.random.default_rng(0), 100)
        assert {*np.unique(batch.extra[OUTCOME])} == {outcome}
    only = dataset.where(dataset.episodes.seat == 1)
    assert [*windows_by_kind(TicTacToe(), spec, only, 8)] == [1]


def test_the_first_difference_is_named(tmp_path: Path) -> None:
    dataset = write(tmp_path / "data", TYPED)
    with pytest.raises(DatasetError, match=r"does not fit 'player': observation.units"):
        require_fit(TicTacToe(), TicTacToe().spec, dataset)


def test_strategies_are_those_of_the_episode_and_sometimes_hidden(tmp_path: Path) -> None:
    dataset = write(tmp_path / "data", BOARD, strategies=True)
    game = WithStrategies(game=TicTacToe(), strategies=str(tmp_path / "data" / "strategies.npz"))
    found = windows_by_kind(game, game.spec, dataset, 8)[0]
    batch = found.draw(np.random.default_rng(0), 8_000)
    shown = batch.observation[PART]
    assert shown.shape[2:] == game.spec.kinds[0].observation.arrays[PART].shape
    hidden = ~shown.any(-1)
    assert (hidden.all(0) | ~hidden.any(0)).all()
    assert 0.05 < hidden[0].mean() < 0.15
    assert {*np.unique(shown[0, ~hidden[0], 0])} == {1.0}
    # of all strategies, those that windows show: what seat 1 built has its first fact, and it always loses
    assert ((shown[0, :, -2] == 1) == (batch.extra[OUTCOME][0] == -1))[~hidden[0]].all()
    assert (shown[0, ~hidden[0], -1] == 1).all()


def test_strategies_may_come_in_parts(tmp_path: Path) -> None:
    dataset = write(tmp_path / "data", BOARD, strategies=True)
    game = WithStrategies(
        game=TicTacToe(), strategies=str(tmp_path / "data" / "strategies.npz"), separate=True, groups={"a": 1, "b": 1}
    )
    batch = windows_by_kind(game, game.spec, dataset, 8)[0].draw(np.random.default_rng(0), 1_000)
    arrays = game.spec.kinds[0].observation.arrays
    assert {name: array.shape[2:] for name, array in batch.observation.items()} == {
        name: spec.shape for name, spec in arrays.items()
    }
    shown = batch.observation[PART][..., 0] > 0
    assert (batch.observation["z_build_order_length"][~shown] == 0).all()
    assert ((batch.observation["z_a"][0, :, 0] == 1) == (batch.extra[OUTCOME][0] == -1))[shown[0]].all()


def test_strategies_that_are_not_there_are_missed(tmp_path: Path) -> None:
    write(tmp_path / "with", BOARD, strategies=True)
    dataset = write(tmp_path / "without", BOARD)
    game = WithStrategies(game=TicTacToe(), strategies=str(tmp_path / "with" / "strategies.npz"))
    with pytest.raises(DatasetError, match="without has no strategies"):
        require_fit(game, game.spec, dataset)


def test_vocabularies_are_what_a_network_can_know(tmp_path: Path) -> None:
    kind = SeatKind(
        name="player",
        observation=ObservationSpec(parts={"units": Entities(maximum=4, features=2, types=6)}),
        action=ActionSpec(heads={"place": Point(height=2, width=2), **TYPED.action.heads}),
    )

    def given(kind: SeatKind, rows: int, rng: np.random.Generator) -> dict[str, Array]:
        found = columns(kind, rows, rng)
        found["observation.units"][..., 0] = rng.choice([-1, 2, 5, 7], (rows, 4))
        found["observation.units_length"][:] = 4
        found["action.order"][:] = rng.choice([3, 4], rows)
        return found

    dataset = write(tmp_path / "data", kind, make=given)
    assert vocabularies(dataset) == {"actions": (3, 4), "entity_types": (2, 5)}


def test_vocabularies_are_what_occurs(tmp_path: Path) -> None:
    dataset = write(tmp_path / "data", TYPED)
    assert vocabularies(dataset) == {"actions": (0, 3, 4), "entity_types": (2, 5, 7)}
    assert vocabularies(dataset, {"units": False}) == {"actions": (0, 3, 4)}, "the network reads no units"
    spec = GameSpec.symmetric(
        name="other",
        num_seats=1,
        observation=ObservationSpec(parts={"self": Vector(size=1)}),
        action=TYPED.action,
        max_length=3,
    )
    with pytest.raises(DatasetError, match=r"observation\.units"):
        require_fit(TicTacToe(), spec, dataset)
