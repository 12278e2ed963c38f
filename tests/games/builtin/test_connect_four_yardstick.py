"""The stored positions of connect four, and the solver that made them."""

from __future__ import annotations

import os
import shutil
from functools import cache

import numpy as np
import pytest
from connect_four_yardstick import Solver, position, written
from test_connect_four_bots import random_positions

from ludus.games.builtin.connect_four import BOARD, POSITIONS, STAGES, ConnectFour, ConnectFourState, has_four

COMPILER = os.environ.get("CC", "cc")
needs_compiler = pytest.mark.skipif(shutil.which(COMPILER) is None, reason=f"no C compiler {COMPILER!r}")
LINES = [line for line in POSITIONS.read_text().splitlines() if not line.startswith("#")]


@pytest.fixture(scope="module")
def solver() -> Solver:
    return Solver()


@cache
def brute_force(state: ConnectFourState) -> int:
    """The score of the seat to move: 22 minus the winner's stones if somebody wins."""
    if has_four(state.other):
        return -(22 - state.other.bit_count())
    if state.stones == BOARD:
        return 0
    return max(-brute_force(state.child(column)) for column in state.legal_actions())


@needs_compiler
def test_solver_equals_brute_force_on_late_positions(solver: Solver) -> None:
    states = random_positions(150, seed=3, least_plies=29)
    assert len({state.stones.bit_count() for state in states}) > 8
    for state in states:
        legal = state.legal_actions()
        expected = [-brute_force(state.child(column)) if column in legal else None for column in range(7)]
        assert list(solver.scores(state)) == expected


@needs_compiler
@pytest.mark.parametrize(
    ("moves", "score"),
    [
        ("2252576253462244111563365343671351441", -1),
        ("7422341735647741166133573473242566", 1),
        ("23163416124767223154467471272416755633", 0),
    ],
)
def test_solver_agrees_with_published_scores(solver: Solver, moves: str, score: int) -> None:
    """From the test sets of Pascal Pons' solver, which count columns from 1."""
    scores = solver.scores(position([int(move) - 1 for move in moves]))
    assert max(one for one in scores if one is not None) == score


@needs_compiler
def test_mirror_images_have_mirrored_scores(solver: Solver) -> None:
    for line in LINES[-40::4]:
        moves = [int(move) for move in line.split()[0]]
        mirrored = solver.scores(position([6 - move for move in moves]))
        assert mirrored[::-1] == solver.scores(position(moves))


@needs_compiler
def test_stored_scores_are_those_of_the_solver(solver: Solver) -> None:
    late = [line for line in LINES if len(line.split()[0]) >= STAGES[1].stop]
    for line in late[::9]:
        moves, source, _ = line.split(" ", 2)
        assert written([int(move) for move in moves], source, solver) == line


@needs_compiler
@pytest.mark.slow
def test_stored_scores_of_early_positions_are_those_of_the_solver(solver: Solver) -> None:
    early = [line for line in LINES if len(line.split()[0]) < STAGES[1].stop]
    for line in early[::60]:
        moves, source, _ = line.split(" ", 2)
        assert written([int(move) for move in moves], source, solver) == line


def test_sets_are_as_described() -> None:
    yardstick = ConnectFour().yardstick()
    assert sum(len(one.moves) for one in yardstick.sets) == len(LINES)
    assert set(yardstick.opponents) <= ConnectFour().bots().keys()
    sources = [(len(line.split()[0]), line.split()[1]) for line in LINES]
    seen: set[tuple[int, int]] = set()
    for stage, one in zip(STAGES, yardstick.sets, strict=True):
        here = [source for stones, source in sources if stones in stage]
        assert here.count("random") == here.count("bots") == 150
        for moves, scores in zip(one.moves, one.scores, strict=True):
            state = position(moves)
            assert len(moves) in stage
            assert state.seat() >= 0  # nobody has won
            assert np.flatnonzero(~np.isnan(scores)).tolist() == state.legal_actions()
            images = {(two.mover, two.other) for two in (state, position([6 - move for move in moves]))}
            assert not images & seen
            seen |= images


def test_a_win_at_once_has_the_highest_score() -> None:
    for one in ConnectFour().yardstick().sets:
        for moves, scores in zip(one.moves, one.scores, strict=True):
            state = position(moves)
            winning = [column for column in state.legal_actions() if has_four(state.child(column).other)]
            best = np.flatnonzero(scores == np.nanmax(scores)).tolist()
            assert best == winning or not winning
            assert not winning or scores[winning[0]] == 22 - state.child(winning[0]).other.bit_count()
