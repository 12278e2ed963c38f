"""Exact values of phantom games: two seats place stones on one board, and each sees only its own attempts. An attempt
at a cell with a stone of the other seat fails, shows that stone, and the seat tries again (phantom tic-tac-toe, dark
hex).

On 3x3 cells these games have 10^10 histories. But a failed attempt changes nothing for the other seat, so the failed
attempts of each seat are summed by themselves: stones come onto the board in 10^5 orders, here called *lines*, and
there are 10^8 pairs of a line and a sequence of attempts of one seat that fits it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ludus.data.game_tree import TIE, ExactTree, Probs
from ludus.data.trees import Tree

Won = NDArray[np.bool_]
"""[seats, 2^cells]: whether the stones of a seat, a bit for each cell, win."""
Ints = NDArray[np.int32]
"""Numbers of lines, sequences or information states; of these there are many."""
Moves = NDArray[np.int8]
"""[..., cells]: attempts in their order: cell + 1 if a stone was placed, -(cell + 1) if one was there, 0 for none."""
Observe = Callable[[int, Moves], Tree]
"""The observations of a seat after its attempts [rows, cells]; zeros for what only critics see."""

HEX_STEPS = ((0, 1), (0, -1), (1, 0), (-1, 0), (1, -1), (-1, 1))


def three_in_a_row() -> Won:
    lines = [0b111, 0b111000, 0b111000000, 0b1001001, 0b10010010, 0b100100100, 0b100010001, 0b1010100]
    won = np.array([any(stones & line == line for line in lines) for stones in range(2**9)])
    return np.stack([won, won])


def hex_connection(rows: int, columns: int) -> Won:
    """Seat 0 connects the first and the last row, seat 1 the first and the last column."""
    place = [divmod(cell, columns) for cell in range(rows * columns)]
    beside = [
        sum(1 << other for other, (r, c) in enumerate(place) if (r - row, c - column) in HEX_STEPS)
        for row, column in place
    ]
    won = np.zeros((2, 2 ** len(place)), np.bool_)
    for seat, last in enumerate((rows - 1, columns - 1)):
        begin, end = (sum(1 << cell for cell, at in enumerate(place) if at[seat] == edge) for edge in (0, last))
        for stones in range(won.shape[1]):
            reached, before = stones & begin, 0
            while reached != before:
                before = reached
                for cell, cells in enumerate(beside):
                    reached |= stones & cells * (reached >> cell & 1)
            won[seat, stones] = bool(reached & end)
    return won


class PhantomTree(ExactTree):
    """A phantom game. Its information states are the sequences of attempts after which a seat is to move, first those
    of seat 0. 3x3 cells need 3 GiB of memory and, on an idle core, 15 seconds."""

    num_seats = 2

    def __init__(self, won: Won, observe: Observe) -> None:
        self._seats, self._payoff = _explore(won)
        self._observe = observe
        first, second = (len(seat.decides) for seat in self._seats)
        self._rows = (slice(0, first), slice(first, first + second))
        self.infostate_seat = np.repeat(np.arange(2), (first, second))
        cells = won.shape[1].bit_length() - 1
        self.legal = np.ones((first + second, cells), np.bool_)
        for rows, seat in zip(self._rows, self._seats, strict=True):
            for attempt in seat.moves[seat.decides].T:
                done = np.flatnonzero(attempt)
                self.legal[rows][done, np.abs(attempt[done]) - 1] = False

    def observe(self, rows: slice) -> Tree:
        found = []
        for number, (own, seat) in enumerate(zip(self._rows, self._seats, strict=True)):
            begin, end = max(rows.start, own.start), min(rows.stop, own.stop)
            if begin < end:
                found.append(self._observe(number, seat.moves[seat.decides[begin - own.start : end - own.start]]))
        return {name: np.concatenate([part[name] for part in found]) for name in found[0]}

    def values(self, probs: Probs) -> NDArray[np.float64]:
        value = float(self._lines(0, probs) * self._lines(1, probs) @ self._payoff)
        return np.array([value, -value])

    def best_response(self, seat: int, probs: Probs) -> tuple[float, Probs]:
        own, rows = self._seats[seat], self._rows[seat]
        gain = self._lines(1 - seat, probs) * self._payoff * (1 - 2 * seat)
        worth = np.bincount(own.fits, gain[own.line], len(own.moves))
        action_values = np.zeros(self.legal[rows].shape)
        policy = np.array(probs)
        policy[rows] = 0.0
        for layer in reversed(own.layers):
            sequences = np.arange(layer.start, layer.stop)[own.infostate[layer] >= 0]
            states = own.infostate[sequences]
            values = np.where(self.legal[rows][states], action_values[states], -np.inf)
            highest = values.max(axis=1)
            policy[rows][states, (values >= highest[:, None] - TIE).argmax(axis=1)] = 1.0
            worth[sequences] += highest
            if layer.start:  # no two sequences of a layer end with the same decision
                action_values.reshape(-1)[own.decision[layer]] += worth[layer]
        return float(worth[0]), policy

    def mixture(self, policies: Iterable[Probs], weights: ArrayLike) -> Probs:
        total = np.zeros(self.legal.shape)
        shares = np.asarray(weights, np.float64)
        for policy, share in zip(policies, np.broadcast_to(shares, (2, shares.shape[-1])).T, strict=True):
            for rows, seat, part in zip(self._rows, self._seats, share, strict=True):
                total[rows] += (part * seat.reach(policy[rows])[seat.decides])[:, None] * policy[rows]
        reached, policy = total.sum(axis=1, keepdims=True), self.uniform()
        np.divide(total, reached, out=policy, where=reached > 0.0)
        return policy

    def _lines(self, seat: int, probs: Probs) -> NDArray[np.float64]:
        """[finished lines]: the probability that a seat plays its part of each, whatever attempts fail."""
        own = self._seats[seat]
        reach = own.reach(probs[self._rows[seat]])
        return np.bincount(own.line, reach[own.fits], len(self._payoff)).astype(np.float64, copy=False)


@dataclass(frozen=True, eq=False)
class _Seat:
    """All sequences of attempts of one seat. Every one comes after its beginnings."""

    moves: Moves  # [sequences, cells]
    cell: NDArray[np.int8]  # [sequences]: the cell of the last attempt
    before: Ints  # [sequences]: the sequence without its last attempt; 0 for the empty one
    infostate: Ints  # [sequences]: the information state of this seat, from 0; -1 where the seat never moves
    layers: tuple[slice, ...]  # of sequences: the empty one, then those that were found together
    line: Ints  # [pairs]: a finished line ...
    fits: Ints  # [pairs]: ... and a sequence of all attempts of the seat that fits it

    @cached_property
    def decides(self) -> Ints:
        """[information states]: their sequences."""
        return np.flatnonzero(self.infostate >= 0).astype(np.int32)

    @cached_property
    def decision(self) -> Ints:
        """[sequences]: information state * cells + cell of the last attempt; of no meaning for the empty one."""
        return self.infostate[self.before] * np.int32(self.moves.shape[1]) + self.cell

    def reach(self, probs: Probs) -> NDArray[np.float64]:
        """[sequences]: the product of the probabilities [information states, cells] of the attempts."""
        flat, reach = probs.reshape(-1), np.ones(len(self.moves))
        for layer in self.layers[1:]:
            reach[layer] = reach[self.before[layer]] * flat[self.decision[layer]]
        return reach


def _explore(won: Won) -> tuple[tuple[_Seat, _Seat], NDArray[np.float64]]:
    """Follow all lines, stone by stone. Also what seat 0 gets at the end of each."""
    cells = won.shape[1].bit_length() - 1
    seats = (_Exploration(cells), _Exploration(cells))
    stones = np.zeros((2, 1), np.int32)
    payoffs: list[NDArray[np.float64]] = []
    finished = 0
    for ply in range(cells):
        mover = ply % 2
        seats[mover].fail(stones[1 - mover])
        is_free = ~(stones[0] | stones[1])[:, None] >> np.arange(cells) & 1
        free = np.nonzero(is_free)[1].astype(np.int8).reshape(-1, cells - ply)
        stones = np.repeat(stones, cells - ply, axis=1)
        stones[mover] |= np.int32(1) << free.reshape(-1)
        wins = won[mover, stones[mover]]
        over = wins | (ply == cells - 1)
        for number, seat in enumerate(seats):
            seat.place(free, own=number == mover)
            seat.finish(over, finished)
        payoffs.append(wins[over] * (1.0 - 2.0 * mover))
        finished += int(over.sum())
        stones = stones[:, ~over]
    return (seats[0].result(), seats[1].result()), np.concatenate(payoffs)


class _Exploration:
    """The sequences of one seat while the lines grow, and which of them fit which line."""

    def __init__(self, cells: int) -> None:
        self._cells = cells
        self._moves: list[Moves] = [np.zeros((1, cells), np.int8)]
        self._cell = [np.zeros(1, np.int8)]
        self._before = [np.zeros(1, np.int32)]
        self._decides: list[NDArray[np.bool_]] = []
        self._since, self._end = 0, 1
        """An attempt may follow these sequences; what was tried in them, and a bit for each of these cells:"""
        self._begin, self._tried = self._moves[0], np.zeros(1, np.int32)
        self._line: Ints = np.zeros(1, np.int32)
        self._fits: Ints = np.zeros(1, np.int32)
        self._pairs: list[tuple[Ints, Ints]] = []

    def fail(self, others: Ints) -> None:
        """Before a stone of this seat: none, one or more attempts at stones of the other seat ([lines])."""
        line, fits = self._line, self._fits
        lines, all_fits = [line], [fits]
        while len(fits):
            hidden = others[line] & ~self._tried[fits - self._since]
            chosen = [np.flatnonzero(hidden >> cell & 1) for cell in range(self._cells)]
            cell = np.repeat(np.arange(self._cells, dtype=np.int8), list(map(len, chosen)))
            pairs = np.concatenate(chosen)
            line, fits = line[pairs], self._grow(fits[pairs], cell, -1)
            lines.append(line)
            all_fits.append(fits)
        self._line, self._fits = np.concatenate(lines), np.concatenate(all_fits)
        decides = np.zeros(len(self._begin), np.bool_)
        decides[self._fits - self._since] = True
        self._decides.append(decides)

    def place(self, free: NDArray[np.int8], *, own: bool) -> None:
        """Each line goes on with a stone in each of its free cells [lines, free cells]."""
        num = free.shape[1]
        fits = np.repeat(self._fits, num)
        if own:
            end = self._end
            fits = self._grow(fits, free[self._line].reshape(-1), 1)
            new = slice(end - self._since, None)
            self._begin, self._tried, self._since = self._begin[new], self._tried[new], end
        self._line = np.add.outer(self._line * np.int32(num), np.arange(num, dtype=np.int32)).reshape(-1)
        self._fits = fits

    def finish(self, over: NDArray[np.bool_], finished: int) -> None:
        """Lines end; so many have ended before."""
        ends = over[self._line]
        number = np.where(over, np.cumsum(over) + finished, np.cumsum(~over)).astype(np.int32) - 1
        self._pairs.append((number[self._line[ends]], self._fits[ends]))
        self._line, self._fits = number[self._line[~ends]], self._fits[~ends]

    def result(self) -> _Seat:
        decides = np.concatenate([*self._decides, np.zeros(len(self._begin), np.bool_)])
        ends = np.cumsum([0, *map(len, self._moves)]).tolist()
        line, fits = map(np.concatenate, zip(*self._pairs, strict=True))
        return _Seat(
            moves=np.concatenate(self._moves),
            cell=np.concatenate(self._cell),
            before=np.concatenate(self._before),
            infostate=np.where(decides, np.cumsum(decides) - 1, -1).astype(np.int32),
            layers=tuple(slice(begin, end) for begin, end in pairwise(ends)),
            line=line,
            fits=fits,
        )

    def _grow(self, before: Ints, cell: NDArray[np.int8], sign: int) -> Ints:
        """The sequences that go on with an attempt, as a new layer of which each is there once."""
        code: Ints = (before - np.int32(self._since)) * np.int32(self._cells) + cell
        is_found = np.zeros(len(self._begin) * self._cells, np.bool_)
        is_found[code] = True
        found = np.flatnonzero(is_found)
        begin, last = np.divmod(found, self._cells)
        moves, tried = self._begin[begin], self._tried[begin]
        length = sum(tried >> cell & 1 for cell in range(self._cells))
        moves[np.arange(len(moves)), length] = sign * (last + 1)
        number: Ints = (np.cumsum(is_found, dtype=np.int32) + np.int32(self._end - 1))[code]
        self._moves.append(moves)
        self._cell.append(last.astype(np.int8))
        self._before.append((begin + self._since).astype(np.int32))
        self._begin = np.concatenate([self._begin, moves])
        self._tried = np.concatenate([self._tried, tried | (1 << last).astype(np.int32)])
        self._end += len(moves)
        return number
