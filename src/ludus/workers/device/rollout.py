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
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call

from ludus.data.search import GumbelSearch
from ludus.games.device.tensor_game import TensorBots, TensorGame, TensorState, random_starts, select
from ludus.models.decisions import DrawnOnDevice, Recorded
from ludus.models.network_policy import NetworkPolicy
from ludus.models.tensors import DeferredChecks
from ludus.workers.config import Openings
from ludus.workers.device.played import Advanced, Decided, Played, Seats, Tables, Tally
from ludus.workers.device.search import SearchedRows, TensorSearch

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
    pieces: int = 1
    """Sequences that the decisions of a side at a table in one iteration are cut into, where players train on
    sequences."""

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
    def turns(self) -> int:
        """Times that each side may decide in an iteration."""
        return self.steps // self.phases

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
        cls,
        game: TensorGame,
        *,
        learners: int,
        num_tables: int,
        matches: int,
        batch_size: int,
        unroll_length: int | None = None,
        setting: str = "actor",
    ) -> Layout:
        """Equal blocks for all learning players, of no more than `num_tables` tables and, unless each player needs one,
        `matches` blocks; and steps for a batch of `batch_size` decisions of each player in self-play, if every seat
        decides whenever it may. `unroll_length`: of sequences, where players train on them."""
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
        phases = 2 if in_turn else 1
        steps = max(2, -(-batch_size // decisions))
        turns = -(-steps // phases)
        pieces = 1 if unroll_length is None else max(1, round(turns / unroll_length))
        steps = -(-turns // pieces) * pieces * phases
        return cls(
            learners=learners, blocks=blocks, tables=tables, sides=sides, steps=steps, in_turn=in_turn, pieces=pieces
        )


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
        search: GumbelSearch | None = None,
    ) -> None:
        """`policy`: a single model that shows the architecture. `search`: of sides that train, before each decision;
        only where two seats move in turn."""
        self._game, self._layout, self._device = game, layout, device
        self._policy, self._precision = policy, precision
        self._openings = openings
        self.alike = False
        """Whether the same weights decide in all groups, as in self-play: all rows are one group then, which is faster
        where a network has convolutions. The engine sets it, between iterations that are no CUDA graph."""
        self.timed = game.spec.timed
        self._columns = Tally.of(layout.sides)
        self.seats = Seats.allocate(layout.num_blocks, layout.sides, device)
        tables, sides = layout.num_tables, layout.sides
        start = game.start(torch.zeros(tables, game.start_draws, device=device))
        self.tables = Tables(
            start,
            torch.zeros(tables, dtype=torch.int32, device=device),
            torch.zeros(tables, sides, device=device),
            torch.zeros(tables, dtype=torch.int32, device=device),
        )
        self.memory = {
            name: torch.zeros(layout.phases, layout.num_rows, *spec.shape, device=device)
            for name, spec in policy.state_arrays.items()
        }
        """[phases, rows, ...]: of the side that decides in a row in that phase."""
        self.fresh = torch.ones(layout.phases, layout.num_rows, dtype=torch.bool, device=device)
        """[phases, rows]: whether it has not decided in this episode yet; kept up only with memory."""
        self.tally = torch.zeros(layout.num_blocks, self._columns.width, dtype=torch.float64, device=device)
        self._sides = layout.side_of_group.repeat_interleave(layout.rows, 1).to(device)
        self._blocks = layout.block_of_group.to(device)
        self._sides_by_group = layout.side_of_group.to(device)
        apart = game.step_apart(compiled)
        self._step_game = game.step if apart is None else _not_compiled(apart)
        self._decide, self._advance = compiled(self._decide_step), compiled(self._advance_step)
        self._bots = game.tensor_bots()
        if self._bots is not None:
            self._meet(self._bots, start)
        self._search = None
        if search is not None:
            rows, step = layout.num_rows, self._step_game
            self._search = TensorSearch(game, search, rows, self._evaluated, device, compiled, step)

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
        chances = draw(layout.steps + 1, layout.num_rows, self._policy.num_draws)
        luck = draw(layout.steps, layout.num_tables, game.step_draws)
        trains, noise = self.trained_rows(), None
        scripted, looks = self._scripted_rows(draw)
        if self._search is not None:
            noise = draw(layout.steps, layout.num_rows, game.num_options)
        policies: list[Tensor] = []
        memory, fresh = self.memory, self.fresh
        piece = layout.turns // layout.pieces * layout.phases
        states, firsts, kept = [], [], []
        decided: list[Decided] = []
        advanced: list[Advanced] = []
        for step in range(layout.steps + 1):
            phase = step % layout.phases
            if memory and step % piece == 0 and step < layout.steps:
                kept.append(memory)
            before = game.seen_of(tables.game)
            states.append(before)
            firsts.append(fresh[phase])
            own = {name: tensor[phase] for name, tensor in memory.items()}
            made = self._decide(
                before,
                tables.episode,
                own,
                self._sides[phase],
                acting[phase],
                chances[step],
                None if scripted is None else scripted[phase],
                None if looks is None else looks[step],
            )
            if self._search is not None and noise is not None and step < layout.steps:
                found = self._search.search(tables.game, noise[step], acting[phase])
                made = _searched(made, found, trains[phase])
                policies.append(found.policy)
            decided.append(made)
            if step == layout.steps:
                break
            luck_now, quota = luck[step], self.seats.quota
            after = self._advance(
                tables, made.action, made.acted, self._sides[phase], luck_now, starts(step + 1), quota
            )
            tables = after.tables
            self.tally += after.tally
            advanced.append(after)
            if memory:
                memory, fresh = self._remember(memory, fresh, made, after.over, phase)
        times = [one.elapsed for one in advanced if one.elapsed is not None]
        cuts = [one.truncated for one in advanced if one.truncated is not None]
        played = Played(
            state={name: torch.stack([state[name] for state in states]) for name in states[0]},
            seat=torch.stack([one.seat for one in decided]),
            acted=torch.stack([one.acted for one in decided]),
            action={
                head: torch.stack([one.action[head].to(compact) for one in decided])
                for head, compact in self._action_types.items()
            },
            log_prob=torch.stack([one.log_prob for one in decided]),
            value=torch.stack([one.value for one in decided]),
            reward=torch.stack([one.reward for one in advanced]),
            over=torch.stack([one.over for one in advanced]),
            elapsed=torch.stack(times) if times else None,
            first=torch.stack(firsts) if memory else None,
            memory={name: torch.stack([one[name] for one in kept]) for name in self.memory},
            search_policy=torch.stack(policies) if policies else None,
            truncated=torch.stack(cuts) if cuts else None,
        )
        _keep(self.tables, tables)
        for name, tensor in self.memory.items():
            tensor.copy_(memory[name])
        self.fresh.copy_(fresh)
        return played

    @cached_property
    def _action_types(self) -> dict[str, torch.dtype]:
        """The smallest type that holds the options of each head, and -1."""
        kind = self._game.spec.kinds[0]
        types = (torch.int8, torch.int16, torch.int32)
        return {
            head: next(one for one in types if kind.num_options(head) <= torch.iinfo(one).max)
            for head in kind.action.heads
        }

    def _remember(
        self, memory: dict[str, Tensor], fresh: Tensor, made: Decided, over: Tensor, phase: int
    ) -> tuple[dict[str, Tensor], Tensor]:
        """The memory of all sides after a step: it changes with a decision and is zero after the end of an episode."""
        now = torch.arange(self._layout.phases, device=over.device).unsqueeze(1) == phase
        acted, ended = now & made.acted, self._by_row(over).expand_as(fresh)
        new = {
            name: _where(ended, torch.zeros_like(tensor), _where(acted, made.memory[name].expand_as(tensor), tensor))
            for name, tensor in memory.items()
        }
        return new, ended | (fresh & ~acted)

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
        self.seats.restart.zero_()
        if self.memory:
            rows = self._by_row(new)
            for tensor in self.memory.values():
                tensor.copy_(_where(rows.expand(tensor.shape[:2]), torch.zeros_like(tensor), tensor))
            self.fresh |= rows
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
        index = index[: self._groups]
        return {name: one.index_select(0, index).to(self._precision) for name, one in everyone.items()}

    def trained_rows(self) -> Tensor:
        """[phases, rows]: whether the side of a row trains."""
        return self._by_side(self.seats.trains)

    def _by_side(self, seats: Tensor) -> Tensor:
        """[phases, rows]: what `seats` [blocks, sides] has for the side of each row."""
        by_group = seats.index_select(0, self._blocks)
        by_phase = [by_group.gather(1, side.unsqueeze(1)).squeeze(1) for side in self._sides_by_group]
        return torch.stack(by_phase).repeat_interleave(self._layout.rows, 1)

    def observe(self, state: TensorState, seat: Tensor) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Observations and legal masks of rows."""
        return self._game.observe(state, seat), self._game.masks(state, seat)

    def _by_row(self, by_table: Tensor) -> Tensor:
        """Of each row its table's value: [tables, ...] to [rows, ...]."""
        layout = self._layout
        if layout.in_turn:
            return by_table
        blocks = by_table.view(layout.num_blocks, 1, layout.tables, *by_table.shape[1:])
        return blocks.expand(-1, layout.sides, *blocks.shape[2:]).reshape(-1, *by_table.shape[1:])

    def _decide_step(
        self,
        state: TensorState,
        episode: Tensor,
        memory: dict[str, Tensor],
        sides: Tensor,
        weights: Weights,
        chances: Tensor,
        scripted: Tensor | None,
        looks: Tensor | None,
    ) -> Decided:
        layout = self._layout
        seat = (sides + self._by_row(episode)) % layout.sides
        state = {name: self._by_row(tensor) for name, tensor in state.items()}
        acted = self._game.to_act(state).gather(1, seat.unsqueeze(1)).squeeze(1)
        observation, legal = map(self._grouped, self.observe(state, seat))
        chooser = DrawnOnDevice(chances.view(self._groups, len(chances) // self._groups, -1))
        given = (observation, legal, self._grouped(memory), chooser)
        with self.precise(), DeferredChecks(collect=False):
            decisions, values, after = functional_call(self._policy, weights, given)
        action = {head: one.action.flatten(0, 1) for head, one in decisions.by_head.items()}
        if scripted is not None and looks is not None:
            action = self._with_bots(action, observation, legal, scripted, looks)
        columns = [one.log_prob.flatten() for one in decisions.by_head.values()]
        return Decided(
            seat,
            acted,
            action,
            torch.stack(columns, -1),
            values[..., 0].flatten().float(),
            {name: tensor.flatten(0, 1).float() for name, tensor in after.items()},
        )

    # --- scripted players ---

    def _meet(self, bots: TensorBots, state: TensorState) -> None:
        """Let them act once, so that their constants are on the device."""
        rows = {name: tensor[:1] for name, tensor in state.items()}
        first = torch.zeros(1, dtype=torch.int64, device=self._device)
        bots.act(first, *self.observe(rows, first), torch.zeros(1, bots.draws, device=self._device))

    def _scripted_rows(self, draw: Callable[..., Tensor]) -> tuple[Tensor | None, Tensor | None]:
        """Of the rows that bots may play, the number of the bot or -1, [phases, rows], and their uniform numbers,
        [steps + 1, rows, draws]; None if the game has no bots."""
        if self._bots is None:
            return None, None
        numbers = torch.stack([self._of_others(one) for one in self._by_side(self.seats.bots)])
        return numbers, draw(self._layout.steps + 1, numbers.shape[1], self._bots.draws)

    def _of_others(self, rows: Tensor) -> Tensor:
        """Of rows [rows, ...] those that bots may play: of sides 1 and later, where these lie at the same places in
        every step; else all."""
        if self._layout.in_turn:
            return rows
        return self._by_block(rows)[:, 1:].flatten(0, 2)

    def _by_block(self, rows: Tensor) -> Tensor:
        """Rows as [blocks, sides, tables, ...], where sides do not move in turn."""
        return rows.view(self._layout.num_blocks, self._layout.sides, self._layout.tables, *rows.shape[1:])

    def _with_bots(
        self,
        action: dict[str, Tensor],
        observation: Mapping[str, Tensor],
        legal: Mapping[str, Tensor],
        scripted: Tensor,
        looks: Tensor,
    ) -> dict[str, Tensor]:
        """The actions, those of bots in their rows. `observation` and `legal` by group."""
        assert self._bots is not None
        seen, masks = (
            {name: self._of_others(tensor.flatten(0, 1)) for name, tensor in tree.items()}
            for tree in (observation, legal)
        )
        theirs = self._bots.act(scripted.clamp(min=0), seen, masks, looks)
        found = {}
        for head, own in action.items():
            mixed = _where(scripted >= 0, theirs[head].to(own.dtype), self._of_others(own))
            if not self._layout.in_turn:
                sides = mixed.view(self._layout.num_blocks, -1, self._layout.tables, *mixed.shape[1:])
                mixed = torch.cat((self._by_block(own)[:, :1], sides), 1).flatten(0, 2)
            found[head] = mixed
        return found

    def _evaluated(self, state: TensorState, seat: Tensor, weights: Weights) -> tuple[Tensor, Tensor]:
        """Log-probabilities of all options of the only head, and values, for these seats."""
        observation, legal = map(self._grouped, self.observe(state, seat))
        nothing = torch.zeros_like(seat, dtype=torch.int64).view(self._groups, -1)
        recorded = Recorded({self._game.head: nothing}, torch.zeros_like(nothing, dtype=torch.bool))
        with self.precise(), DeferredChecks(collect=False):
            decisions, values, _ = functional_call(self._policy, weights, (observation, legal, {}, recorded))
        log_probs: Tensor = decisions.by_head[self._game.head].log_probs
        return log_probs.flatten(0, 1), values[..., 0].flatten().float()

    def _grouped(self, tree: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Rows by group: [groups, rows of a group, ...]."""
        groups, rows = self._groups, self._layout.num_rows // self._groups
        return {name: tensor.view(groups, rows, *tensor.shape[1:]) for name, tensor in tree.items()}

    @property
    def _groups(self) -> int:
        return 1 if self.alike else self._layout.groups

    def precise(self) -> torch.autocast:
        """The precision of matrix products."""
        enabled = self._precision != torch.float32
        return torch.autocast(self._device.type, self._precision, enabled=enabled, cache_enabled=False)

    def _advance_step(
        self,
        tables: Tables,
        action: dict[str, Tensor],
        acted: Tensor,
        sides: Tensor,
        luck: Tensor,
        fresh: TensorState,
        quota: Tensor,
    ) -> Advanced:
        """Play the actions; tables that are over start again."""
        layout = self._layout
        episode = tables.episode.unsqueeze(1)
        side = torch.arange(layout.sides, device=acted.device)
        seat_of_side = (side + episode) % layout.sides

        def by_table(rows: Tensor) -> Tensor:
            """[rows, ...] to [tables, sides, ...]."""
            return (
                rows.view(layout.num_blocks, layout.sides, layout.tables, *rows.shape[1:]).transpose(1, 2).flatten(0, 1)
            )

        if layout.in_turn:
            moved = acted
            actions = {head: one.unsqueeze(1).expand(-1, 2, *one.shape[1:]) for head, one in action.items()}
            decided = acted.unsqueeze(1) & (sides.unsqueeze(1) == side)
        else:
            moved = torch.ones_like(tables.length, dtype=torch.bool)
            side_of_seat = (side - episode) % layout.sides
            actions = {head: _pick_seats(by_table(one), side_of_seat) for head, one in action.items()}
            decided = by_table(acted)
        played = self._step_game(tables.game, self._game.given(actions), luck)
        over = played.over & moved
        rewards = played.reward.unsqueeze(2)
        if played.rewards is not None:
            rewards = torch.cat((rewards, played.rewards), 2)
        rewards = _pick_seats(_where(moved, rewards, torch.zeros_like(rewards)), seat_of_side)
        earned = tables.earned + rewards[:, :, 0]
        length = tables.length + moved
        counts = tables.episode < quota.repeat_interleave(layout.tables)
        tally = self._summed(counts, counts & over, decided, earned, length)
        after = Tables(
            select(over, fresh, select(moved, played.state, tables.game)),
            tables.episode + over,
            torch.where(over.unsqueeze(1), 0.0, earned),
            torch.where(over, 0, length),
        )
        elapsed = None if played.elapsed is None else torch.where(moved, played.elapsed, 0).float()
        truncated = None if played.truncated is None else played.truncated & moved
        return Advanced(after, rewards, over, elapsed, tally, truncated)

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


def _searched(made: Decided, found: SearchedRows, trains: Tensor) -> Decided:
    """The decisions, those of sides that train by what a search found."""
    [(head, action)] = made.action.items()
    return made._replace(
        action={head: torch.where(trains, found.action, action)},
        log_prob=torch.where(trains.unsqueeze(1), found.log_prob.unsqueeze(1), made.log_prob),
        value=torch.where(trains, found.value, made.value),
    )


def _not_compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, around which what calls it is compiled."""
    kept: Callable[..., Any] = torch.compiler.disable(function)  # type: ignore[no-untyped-call]
    return kept


def _where(where: Tensor, one: Tensor, other: Tensor) -> Tensor:
    """`torch.where`, for a condition with fewer axes than the rest."""
    return torch.where(where.view(*where.shape, *(1,) * (one.dim() - where.dim())), one, other)


def _pick_seats(columns: Tensor, index: Tensor) -> Tensor:
    """[tables, sides, ...] in the order of `index` [tables, sides]."""
    index = index.view(*index.shape, *(1,) * (columns.dim() - 2)).expand_as(columns)
    return columns.gather(1, index)


def _keep(lasting: Tables, new: Tables) -> None:
    for name, tensor in lasting.game.items():
        tensor.copy_(new.game[name])
    for old, tensor in zip(lasting[1:], new[1:], strict=True):
        old.copy_(tensor)
