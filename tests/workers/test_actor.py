"""The actor's settings, its synchronous schedule, and games that show what is no number."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from broken_games import Flickering
from table_play import GAMES, SMALL, Play, self_play, side

from ludus.games.lift import Lifted
from ludus.workers.actor import ActorConfig


def test_progress_counts_the_decisions_that_are_played() -> None:
    play = self_play(GAMES["siege"], hand_over_after=23)
    counted = sum(play.actor.step().count for _ in range(60))
    assert len(play.completed) > 5
    assert counted == sum(len(made) for episode in play.tables.log for made in episode.decisions.values())


@pytest.mark.parametrize("unroll_length", [1, 3, 7])
def test_unroll_length_bounds_the_trajectories(unroll_length: int) -> None:
    play = self_play(GAMES["leduc"], unroll_length=unroll_length).run(60)
    lengths = np.concatenate([handed.length for handed in play.handed])
    assert lengths.max() == lengths.min() == unroll_length, "short episodes are packed until a slot is full"
    assert all(handed.batch.valid.shape[0] == unroll_length + 1 for handed in play.handed)


def test_tables_matches_and_episodes() -> None:
    play = self_play(GAMES["kuhn"], num_tables=6, matches=3, episodes_per_table=4).run(40)
    assert play.tables.num_tables == 6
    assert {(match.tables, match.episodes_per_table) for match in play.desk.issued} == {(2, 4)}
    assert len(play.actor.seating.save()[1]["matches"]) >= 3


@pytest.mark.parametrize("after", [10, 40])
def test_a_hand_over_comes_as_soon_as_there_are_enough_decisions(after: int) -> None:
    play = self_play(GAMES["hills"], hand_over_after=after, unroll_length=6)  # 16 decisions a step
    for _ in range(30):
        before = len(play.completed)
        play.actor.step()
        if len(play.completed) > before:
            handed = sum(int(one.batch.valid.sum()) for one in play.handed)
            open_decisions = sum(int(writer.open.sum()) for writer in play.actor.recorder.writers)
            assert handed + open_decisions >= len(play.completed) * after
            assert all(writer.row.max() == 0 for writer in play.actor.recorder.writers), (
                "all but the open rows are gone"
            )
    acts = -(-after // 16)  # then one step without an act of its own: the new weights decide again
    assert len(play.completed) == (30 - acts) // (acts + 1) + 1


def test_after_a_hand_over_the_new_weights_act() -> None:
    play = self_play(GAMES["rock_paper_scissors"], hand_over_after=16, new_weights=True).run(60)
    for number, (_, group) in enumerate(_by_completion(play)):
        versions = {int(v) for handed in group for v in handed.batch.version[handed.batch.valid]}
        assert versions == {number}, "every seat acts in every step, so nothing may be older"


def _by_completion(play: Play) -> list[tuple[int, list[Any]]]:
    """What was handed over for each update, told by the versions: weights change at each."""
    groups: dict[int, list[Any]] = {}
    for handed in play.handed:
        groups.setdefault(int(handed.batch.version[handed.batch.valid].max()), []).append(handed)
    return sorted(groups.items())


@pytest.mark.parametrize("name", ["num_tables", "matches", "episodes_per_table", "unroll_length"])
def test_sizes_below_one_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} must be at least 1, got 0"):
        ActorConfig(**{name: 0})


def test_slots_are_all_there_after_long_play() -> None:
    play = Play(
        GAMES["siege"], [(side("main", trains=True), side("rules")), (side("main"), side("rules"))], hand_over_after=50
    ).run(150)
    for pool, writer in zip(play.pools, play.actor.recorder.writers, strict=True):
        held = int((writer.slot >= 0).sum())
        assert writer.num_free + held == pool.num_slots


def test_trajectories_of_a_side_go_on_over_its_turns_on_the_other_team() -> None:
    """Asymmetric seats: a slot is not cut short whenever the side sits elsewhere."""
    play = self_play(GAMES["siege"], unroll_length=30).run(150)
    lengths = np.concatenate([handed.length for handed in play.handed])
    assert len(lengths) >= 4
    assert lengths.min() == 30


@pytest.mark.parametrize("memory", [0, 8])
@pytest.mark.parametrize("shown", [np.nan, np.inf, -np.inf])
def test_it_plays_on_where_a_game_shows_no_number(shown: float, memory: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Flickering, "shown", shown)
    model = type(SMALL)(hidden=(8,), memory=memory, activation="relu")
    play = self_play(Lifted(Flickering), model=model).run(40)
    assert len(play.desk.results) > 3
    broken = [(~np.isfinite(handed.batch.observation["turn"])).any((0, 2)) for handed in play.handed]
    assert 0 < np.concatenate(broken).mean() < 1, "the trajectories say which of them are broken"
    for handed in play.handed:
        assert np.isfinite(handed.batch.value).all()
        assert all(np.isfinite(array).all() for array in handed.batch.state.values())


def test_an_error_that_is_not_about_numbers_is_not_hidden() -> None:
    play = self_play(GAMES["kuhn"]).run(1)
    for mask in play.tables.view.legal[0].values():
        mask[...] = False
    with pytest.raises(ValueError, match="no option is legal"):
        play.run(1)
