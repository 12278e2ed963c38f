"""Tables on a device: blocks of them by match, and `steps` steps of play with the weights of all players in one stack.

Tables come in blocks, one for each match: `learners` x `blocks` x `tables`. In a block side 0 is the learning player of
the block. A *group* is what one set of weights decides on in a step:

- Where two seats move in turn, each block has two halves. In step t side (t + half) % 2 decides in a half, so that the
  rows of a set of weights are known beforehand and nothing is gathered. A table at which the other side is to move
  waits for one step, as it does after an episode if the sides' change of seats wants the other one to begin.
- Otherwise every side of a block is a group in every step, and rows of seats that need not act are masked.

Sides rotate through the seats: side s sits on seat (s + episode) % sides.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.func import functional_call

from ludus.games.device.tensor_game import TensorGame, TensorState, random_starts, select
from ludus.models.decisions import DrawnOnDevice
from ludus.models.network_policy import NetworkPolicy
from ludus.workers.config import Openings

_SAME_SCORE = 1e-5
"""Relative difference up to which two sides of an episode have drawn."""
Weights = dict[str, Tensor]
Compile = Callable[[Callable[..., Any]], Callable[..., Any]]
"""Returns a function compiled, or as it is."""


@dataclass(frozen=True, kw_only=True)
class Layout:
    """The fixed shapes of a training."""

    learners: int
    blocks: int
    """Blocks, and so matches at a time, of each learning player."""
    tables: int
    """Tables of a block."""
    sides: int
    steps: int
    """Steps of an iteration."""
    in_turn: bool
    """Two seats that move in turn: a fixed schedule of halves instead of masks."""

    @property
    def num_blocks(self) -> int:
        return self.learners * self.blocks

    @property
    def num_tables(self) -> int:
        return self.num_blocks * self.tables

    @property
    def phases(self) -> int:
        """Steps after which the same side decides in a group again."""
        return 2 if self.in_turn else 1

    @property
    def rows(self) -> int:
        """Rows of a group."""
        return self.tables // 2 if self.in_turn else self.tables

    @property
    def groups(self) -> int:
        return self.num_blocks * (2 if self.in_turn else self.sides)

    @property
    def num_rows(self) -> int:
        """Rows of a step: decisions that may be made in it."""
        return self.groups * self.rows

    @property
    def own_rows(self) -> int:
        """Rows of one learning player's blocks in a step."""
        return self.num_rows // self.learners

    @cached_property
    def side_of_group(self) -> Tensor:
        """[phases, groups]"""
        group = torch.arange(self.groups)
        if not self.in_turn:
            return (group % self.sides).unsqueeze(0)
        return torch.stack([(group + phase) % 2 for phase in range(2)])

    @cached_property
    def block_of_group(self) -> Tensor:
        return torch.arange(self.groups) // (self.groups // self.num_blocks)

    @classmethod
    def fit(
        cls, game: TensorGame, *, learners: int, num_tables: int, matches: int, batch_size: int, setting: str = "actor"
    ) -> Layout:
        """Equal blocks for all learning players, of no more than `num_tables` tables and, unless each player needs one,
        `matches` blocks; and steps for a batch of `batch_size` decisions of each player in self-play."""
        sides = game.spec.num_teams
        in_turn = sides == 2 and not game.simultaneous
        blocks = max(1, matches // learners)
        tables = num_tables // (learners * blocks)
        tables -= tables % 2 if in_turn else 0
        if tables < 1:
            raise ValueError(
                f"{setting}.num_tables={num_tables} is too few for {learners * blocks} blocks of tables: "
                f"{blocks} of each of the {learners} learning players ({setting}.matches={matches})"
            )
        decisions = blocks * tables * (sides if game.simultaneous else 1)
        steps = max(2, -(-batch_size // decisions))
        steps += steps % 2 if in_turn else 0
        return cls(learners=learners, blocks=blocks, tables=tables, sides=sides, steps=steps, in_turn=in_turn)


class Seats(NamedTuple):
    """The matches at the tables, as tensors that are rewritten between iterations; their memory stays."""

    weights: Tensor
    """[blocks, sides] int64: row of the stack of weights that a side plays with."""
    trains: Tensor
    """[blocks, sides] bool."""
    quota: Tensor
    """[blocks] int32: episodes of each table that count for the match."""
    restart: Tensor
    """[blocks] bool: a new match begins with the next iteration."""

    @classmethod
    def allocate(cls, layout: Layout, device: torch.device) -> Seats:
        blocks, sides = layout.num_blocks, layout.sides
        return cls(
            torch.zeros(blocks, sides, dtype=torch.int64, device=device),
            torch.zeros(blocks, sides, dtype=torch.bool, device=device),
            torch.zeros(blocks, dtype=torch.int32, device=device),
            torch.ones(blocks, dtype=torch.bool, device=device),
        )


class Tally(NamedTuple):
    """Sums over the counted episodes of a match: names of the columns that `Rollout.tally` holds per block."""

    episodes: int
    steps: int
    decisions: slice
    wins: slice
    draws: slice
    score: slice
    square: slice
    width: int

    @classmethod
    def of(cls, sides: int) -> Tally:
        ends = [2]
        for width in (sides, sides**2, sides**2, sides, sides):
            ends.append(ends[-1] + width)
        decisions, wins, draws, score, square = (slice(first, last) for first, last in pairwise(ends))
        return cls(0, 1, decisions, wins, draws, score, square, ends[-1])


class Played(NamedTuple):
    """What was played in an iteration, by step; row r of a step belongs to group r // rows."""

    state: TensorState
    """Before the step, as far as decisions depend on it: [steps, tables, ...]."""
    seat: Tensor
    """[steps, rows] int64."""
    acted: Tensor
    """[steps + 1, rows]; the last row says who would decide next."""
    action: Tensor
    log_prob: Tensor
    value: Tensor
    """[steps + 1, rows]"""
    reward: Tensor
    """[steps, tables, sides]"""
    over: Tensor
    """[steps, tables]"""


class Tables(NamedTuple):
    """The state of all tables between two steps."""

    game: TensorState
    episode: Tensor
    """[tables] int32: episodes that the table has finished in its match."""
    earned: Tensor
    """[tables, sides] float32: reward of each side in this episode."""
    length: Tensor
    """[tables] int32: steps of this episode."""


class Rollout:
    """Plays. All tensors that last from one iteration to the next keep their memory, for CUDA graphs."""

    def __init__(
        self,
        game: TensorGame,
        layout: Layout,
        policy: NetworkPolicy,
        device: torch.device,
        *,
        openings: Openings,
        compiled: Compile,
        precision: torch.dtype,
    ) -> None:
        """`policy`: a single model that shows the architecture."""
        self._game, self._layout, self._device = game, layout, device
        self._policy, self._precision = policy, precision
        self._openings = openings
        self._columns = Tally.of(layout.sides)
        self.seats = Seats.allocate(layout, device)
        tables, sides = layout.num_tables, layout.sides
        start = game.start(torch.zeros(tables, game.start_draws, device=device))
        self.tables = Tables(
            start,
            torch.zeros(tables, dtype=torch.int32, device=device),
            torch.zeros(tables, sides, device=device),
            torch.zeros(tables, dtype=torch.int32, device=device),
        )
        self.tally = torch.zeros(layout.num_blocks, self._columns.width, dtype=torch.float64, device=device)
        self._sides = layout.side_of_group.repeat_interleave(layout.rows, 1).to(device)
        self._blocks = layout.block_of_group.to(device)
        self._sides_by_group = layout.side_of_group.to(device)
        self._step_game = game.step if game.recordable else _not_compiled(game.step)
        self._decide, self._advance = compiled(self._decide_step), compiled(self._advance_step)

    def play(self, weights: Tensor, views: Callable[[Tensor], Weights], generator: torch.Generator | None) -> Played:
        """Play `steps` steps. `weights` [players, numbers]: all players' stack; `views` splits rows of it into
        parameters. The tables are left as they are afterwards."""
        game, layout = self._game, self._layout

        def draw(*shape: int) -> Tensor:
            return torch.rand(*shape, device=self._device, generator=generator)

        starts = self._starts(draw)
        tables = self._begin_matches(starts(0))
        everyone = views(weights)
        acting = [self._weights_of_groups(everyone, phase) for phase in range(layout.phases)]
        chances = draw(layout.steps + 1, layout.num_rows, 1)
        luck = draw(layout.steps, layout.num_tables, game.step_draws)
        rows: list[tuple[TensorState, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]] = []
        for step in range(layout.steps):
            phase = step % layout.phases
            before = game.seen_of(tables.game)
            seat, acted, action, log_prob, value = self._decide(
                before, tables.episode, self._sides[phase], acting[phase], chances[step]
            )
            tables, reward, over, tally = self._advance(
                tables, action, acted, self._sides[phase], luck[step], starts(step + 1), self.seats.quota
            )
            self.tally += tally
            rows.append((before, seat, acted, action, log_prob, value, reward, over))
        phase = layout.steps % layout.phases
        _, next_acted, _, _, next_value = self._decide(
            game.seen_of(tables.game), tables.episode, self._sides[phase], acting[phase], chances[-1]
        )
        _keep(self.tables, tables)
        states, seats, acted_, actions, log_probs, values, rewards, overs = zip(*rows, strict=True)
        return Played(
            state={name: torch.stack([state[name] for state in states]) for name in states[0]},
            seat=torch.stack(seats),
            acted=torch.stack([*acted_, next_acted]),
            action=torch.stack(actions),
            log_prob=torch.stack(log_probs),
            value=torch.stack([*values, next_value]),
            reward=torch.stack(rewards),
            over=torch.stack(overs),
        )

    def _starts(self, draw: Callable[..., Tensor]) -> Callable[[int], TensorState]:
        """New episodes for all tables, by step. With openings they are drawn from a pool of an eighth of the tables
        that each iteration fills anew."""
        game, num_tables = self._game, self._layout.num_tables
        if not self._openings.moves:
            draws = draw(self._layout.steps + 1, num_tables, game.start_draws)
            return lambda step: game.start(draws[step])
        size = max(1, num_tables // 8)
        moves = self._openings.lengths(draw(size), draw(size)).long()
        pool = random_starts(game, moves, self._openings.moves, draw)
        index = (draw(self._layout.steps + 1, num_tables) * size).long()
        return lambda step: {name: tensor.index_select(0, index[step]) for name, tensor in pool.items()}

    def _begin_matches(self, fresh: TensorState) -> Tables:
        """The tables, started again where a new match begins."""
        new = self.seats.restart.repeat_interleave(self._layout.tables)
        now = self.tables
        self.tally.masked_fill_(self.seats.restart.unsqueeze(1), 0.0)
        self.seats.restart.zero_()
        return Tables(
            select(new, fresh, now.game),
            torch.where(new, 0, now.episode),
            torch.where(new.unsqueeze(1), 0.0, now.earned),
            torch.where(new, 0, now.length),
        )

    def _weights_of_groups(self, everyone: Weights, phase: int) -> Weights:
        """The weights that decide in each group in this phase. Each parameter is copied into memory of its own that is
        aligned as fast matrix products need it."""
        index = self.seats.weights[self._blocks].gather(1, self._sides_by_group[phase].unsqueeze(1)).squeeze(1)
        return {name: one.index_select(0, index).to(self._precision) for name, one in everyone.items()}

    def observe(self, state: TensorState, seat: Tensor) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Observations and legal masks of rows."""
        return self._game.observe(state, seat), {self._game.head: self._game.legal(state, seat)}

    def _by_row(self, by_table: Tensor) -> Tensor:
        """Of each row its table's value: [tables, ...] to [rows, ...]."""
        layout = self._layout
        if layout.in_turn:
            return by_table
        blocks = by_table.view(layout.num_blocks, 1, layout.tables, *by_table.shape[1:])
        return blocks.expand(-1, layout.sides, *blocks.shape[2:]).reshape(-1, *by_table.shape[1:])

    def _decide_step(
        self, state: TensorState, episode: Tensor, sides: Tensor, weights: Weights, chances: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        layout = self._layout
        seat = (sides + self._by_row(episode)) % layout.sides
        state = {name: self._by_row(tensor) for name, tensor in state.items()}
        acted = self._game.to_act(state).gather(1, seat.unsqueeze(1)).squeeze(1)

        def grouped(tree: Mapping[str, Tensor]) -> dict[str, Tensor]:
            return {name: tensor.view(layout.groups, layout.rows, *tensor.shape[1:]) for name, tensor in tree.items()}

        observation, legal = map(grouped, self.observe(state, seat))
        chooser = DrawnOnDevice(chances.view(layout.groups, layout.rows, -1))
        with torch.autocast(
            self._device.type, self._precision, enabled=self._precision != torch.float32, cache_enabled=False
        ):
            decisions, value = functional_call(self._policy, weights, (observation, legal, chooser))
        decision = decisions.by_head[self._game.head]
        return seat, acted, decision.action.flatten(), decision.log_prob.flatten(), value.flatten().float()

    def _advance_step(
        self,
        tables: Tables,
        action: Tensor,
        acted: Tensor,
        sides: Tensor,
        luck: Tensor,
        fresh: TensorState,
        quota: Tensor,
    ) -> tuple[Tables, Tensor, Tensor, Tensor]:
        """Play the actions; tables that are over start again. Returns the tables, the reward of each side, whether the
        episode is over, and what the step adds to the tally."""
        layout = self._layout
        episode = tables.episode.unsqueeze(1)
        side = torch.arange(layout.sides, device=action.device)
        seat_of_side = (side + episode) % layout.sides
        if layout.in_turn:
            moved = acted
            actions = action.unsqueeze(1).expand(-1, 2)
            decided = acted.unsqueeze(1) & (sides.unsqueeze(1) == side)
        else:
            moved = torch.ones_like(tables.length, dtype=torch.bool)
            by_side = action.view(layout.num_blocks, layout.sides, layout.tables).transpose(1, 2).flatten(0, 1)
            actions = by_side.gather(1, (side - episode) % layout.sides)  # of seat q, side (q - episode)
            decided = acted.view(layout.num_blocks, layout.sides, layout.tables).transpose(1, 2).flatten(0, 1)
        played = self._step_game(tables.game, actions, luck)
        over = played.over & moved
        reward = torch.where(moved.unsqueeze(1), played.reward, 0.0).gather(1, seat_of_side)
        earned = tables.earned + reward
        length = tables.length + moved
        counts = tables.episode < quota.repeat_interleave(layout.tables)
        tally = self._summed(counts, counts & over, decided, earned, length)
        after = Tables(
            select(over, fresh, select(moved, played.state, tables.game)),
            tables.episode + over,
            torch.where(over.unsqueeze(1), 0.0, earned),
            torch.where(over, 0, length),
        )
        return after, reward, over, tally

    def _summed(self, counts: Tensor, ended: Tensor, decided: Tensor, earned: Tensor, length: Tensor) -> Tensor:
        """[blocks, columns of the tally]"""
        one, other = earned.unsqueeze(2), earned.unsqueeze(1)
        # Equal scores may differ by the rounding of their rewards' sums.
        margin = _SAME_SCORE * (1.0 + one.abs() + other.abs())
        at_end = [
            torch.ones_like(earned[:, :1]),
            length.unsqueeze(1).float(),
            (one - other > margin).flatten(1).float(),
            ((one - other).abs() <= margin).flatten(1).float(),
            earned,
            earned.square(),
        ]
        columns = torch.cat(at_end, 1) * ended.unsqueeze(1)
        columns = torch.cat((columns[:, :2], (decided & counts.unsqueeze(1)).float(), columns[:, 2:]), 1)
        return columns.view(self._layout.num_blocks, self._layout.tables, -1).sum(1)


def _not_compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, around which what calls it is compiled."""
    kept: Callable[..., Any] = torch.compiler.disable(function)  # type: ignore[no-untyped-call]
    return kept


def _keep(lasting: Tables, new: Tables) -> None:
    for name, tensor in lasting.game.items():
        tensor.copy_(new.game[name])
    for old, tensor in zip(lasting[1:], new[1:], strict=True):
        old.copy_(tensor)
