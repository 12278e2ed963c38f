"""Learning on a device: from what was played to batches of each learning player, and gradient steps of all of them.

The algorithm of the experiment does what it does elsewhere: `prepare` on the trajectories of one player, `loss` on
minibatches, whose network is run for all players in one stacked pass. Observations are not kept but computed again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor
from torch.func import functional_call

from ludus.algorithms.losses import is_constant
from ludus.data.batch import Batch
from ludus.data.search import SEARCH_POLICY
from ludus.data.trees import under
from ludus.games.device.tensor_game import TensorState
from ludus.models.decisions import Recorded
from ludus.models.network_policy import NetworkPolicy, stack_policies
from ludus.models.policy import Policy, Unrolled, uses_convolutions
from ludus.models.tensors import DeferredChecks
from ludus.workers.device.played import Played
from ludus.workers.device.player_view import PlayerView, reads_rows
from ludus.workers.device.rollout import Compile, Layout, Rollout, Weights
from ludus.workers.device.streams import Sequences, Streams, by_step, sequences, trajectories
from ludus.workers.optimiser import StackedOptimiser
from ludus.workers.stacked_training import OneOfStack
from ludus.workers.trained_player import TrainedPlayer

_MOST_ROWS_IN_CHUNK = 256
_CHUNKS_IN_MINIBATCH = 64
_SHARES = 16
_MOST_LEFT_OUT_OF_STEP = 0.5
"""Share of a minibatch up to which decisions are left out, rather than that one more gradient step is mostly padding:
every step takes as long as a full one, and which matches have two sides that train is chance."""
_MOST_LEFT_OUT = 0.125
"""Share of a player's decisions that are left out at most."""


class Learning:
    """The learning players as one stack, and their updates. `weights` [players, numbers of a model] begins with theirs.
    The players' own policies, optimisers and averages are views of the stack, so that they can be saved and reset."""

    def __init__(
        self, players: Sequence[TrainedPlayer], rollout: Rollout, layout: Layout, weights: Tensor, *, compiled: Compile
    ) -> None:
        self._players, self._rollout, self._layout = players, rollout, layout
        self._device = weights.device
        saved = [player.save() for player in players]
        single: list[Any] = [player.policies[0] for player in players]
        self._stack = stack_policies(single)
        self._optimiser = StackedOptimiser(
            list(self._stack.parameters()),
            [player.optimiser for player in players],
            players[0].config.adam,
            weights[: len(players)],
        )
        self._optimiser.share()
        self._optimiser.descend = compiled(self._optimiser.descend)  # type: ignore[method-assign]
        for player, state in zip(players, saved, strict=True):
            player.load(*state)  # the averages were copies of the memory before
        self._live = weights[: len(players)]
        self._shapes = {name: tuple(one.shape) for name, one in single[0].named_parameters()}
        self._single = single[0]
        count = len(players)
        self.rates = torch.zeros(count, device=self._device)
        self.progress = torch.zeros((), device=self._device)
        self.trainable = torch.ones(count, len(self._shapes), dtype=torch.bool, device=self._device)
        self.decisions = torch.zeros(count, dtype=torch.int64, device=self._device)
        """Trained on since they were last read."""
        self.unused = torch.zeros_like(self.decisions)
        """Not trained on in the first epoch: only a bootstrap, or left out, see `minibatches_for`."""
        self.left_out = torch.zeros_like(self.decisions)
        """Those of them that could have been trained on."""
        self.skipped = torch.zeros_like(self.decisions)
        """Gradient steps that were not finite."""
        self.lowest = torch.zeros(count, device=self._device)
        self.highest = torch.zeros_like(self.lowest)
        """Of the values that a player gave its decisions in the latest update."""
        self.statistics: dict[str, Tensor] = {}
        """Of the latest update: [players], sums over its gradient steps."""
        self._whole = players[0].is_whole
        """Whether players train on sequences of decisions instead of single ones."""
        self._sparse = rollout.timed and not layout.in_turn and not self._whole
        """Whether many rows are no decisions: they are left out of minibatches one by one."""
        self._share = 1.0
        """Share of the rows that are trained on, at most."""
        self._fold, self._cut = compiled(self._trajectories), compiled(self._sequences_of)
        self._losses = compiled(self._losses_of)
        self._prepare_all = compiled(self._prepared_of_all)
        self._sides = layout.side_of_group.to(self._device).repeat_interleave(layout.rows, 1)
        self._plan_chunks()

    def views(self, rows: Tensor) -> Weights:
        """Rows of weights [..., numbers] as parameters by name."""
        sizes = [int(torch.Size(shape).numel()) for shape in self._shapes.values()]
        parts = torch.split(rows, sizes, -1)
        return {
            name: part.view(*rows.shape[:-1], *shape)
            for (name, shape), part in zip(self._shapes.items(), parts, strict=True)
        }

    def reconfigure(self) -> None:
        """Take over changed settings of the players' algorithms and learners."""
        self._optimiser.settings = self._players[0].config.adam
        self._plan_chunks()

    # --- an update ---

    def update(self, played: Played, minibatches: int) -> None:
        """Train every player on its decisions, in `minibatches` per epoch (see `minibatches_for`)."""
        trained = self._rollout.trained_rows()
        streams: Streams = self._fold(self._sides, trained.unsqueeze(0), played)
        with torch.no_grad():
            rows = self._sequences(streams, played) if self._whole else self._single_rows(streams, played)
            valid, value = (self._per_player(rows.columns[name]) for name in ("valid", "value"))
            trains = valid.any(2) if self._sparse else self._trained_chunks(trained)
            parts = [self._shuffled(trains, minibatches) for _ in range(self._players[0].config.epochs)]
            order, used = parts[0]
            counted = (valid.sum(2).gather(1, order) * used).sum(1)
            decided = ~streams.idle[:-1] & trained
            self.decisions += counted
            self.left_out += valid.flatten(1).sum(1) - counted
            self.lowest.copy_(torch.where(valid, value, torch.inf).flatten(1).amin(1))
            self.highest.copy_(torch.where(valid, value, -torch.inf).flatten(1).amax(1))
            self.unused += decided.view(-1, self._layout.learners, self._layout.own_rows).sum((0, 2)) - counted
            self._add_prepared(rows)
        for name in self.statistics:
            self.statistics[name].zero_()
        for order, used in parts:
            for number in range(minibatches):
                part = slice(number * self._chunks, (number + 1) * self._chunks)
                self._step(rows, order[:, part], used[:, part])

    def sizes(self) -> Tensor:
        """[players]: the root mean square of each player's weights."""
        return self._live.square().mean(1).sqrt()

    def follow(self) -> None:
        """Complete the update of every player: its step, its averaged weights and its references."""
        for player in self._players:
            player.follow()

    def minibatches_for(self, trained_sides: Sequence[int]) -> int:
        """Gradient steps of an epoch, given by player the number of sides that train in its blocks. They need not hold
        all decisions: see `_MOST_LEFT_OUT`."""
        layout = self._layout
        per_side = self._num_chunks // (layout.blocks * layout.sides)
        full = math.ceil(max(trained_sides) * per_side * self._share) / self._chunks
        return max(1, math.ceil(full - min(_MOST_LEFT_OUT_OF_STEP, full * _MOST_LEFT_OUT)))

    def measure(self, decisions: Sequence[int], trained_sides: Sequence[int], updates: int) -> None:
        """Learn from some updates how many rows are decisions that can be trained on, in a game whose seats wait for
        the clock: gradient steps are for as many, and a tenth more. The number is coarse, since each has a graph of its
        own."""
        if not self._sparse or not updates:
            return
        rows = self._layout.steps * self._layout.tables * updates
        shares = [count / (sides * rows) for count, sides in zip(decisions, trained_sides, strict=True) if sides]
        if shares:
            self._share = min(1.0, math.ceil(max(shares) * 1.1 * _SHARES) / _SHARES)

    # --- minibatches: random chunks of rows ---

    def _plan_chunks(self) -> None:
        """Choose the rows of a chunk and the chunks of a minibatch. A chunk has rows of one group in one step; where
        many rows are no decisions it is one row, and with sequences it is one of them."""
        layout, size = self._layout, self._players[0].config.minibatch_size
        times = layout.pieces * layout.phases if self._whole else layout.steps
        if self._whole:
            self._chunk, width = layout.turns // layout.pieces + 1, 1
            size = max(1, round(size / (self._chunk - 1)))
            total = times * layout.own_rows
        else:
            total = times * layout.own_rows
            most = 1 if self._sparse else _MOST_ROWS_IN_CHUNK
            wanted = min(most, max(1, min(size, total) // _CHUNKS_IN_MINIBATCH))
            width = next(rows for rows in range(min(wanted, layout.rows), 0, -1) if layout.rows % rows == 0)
            self._chunk = width
        self._num_chunks = total // width
        self._chunks = -(-self._num_chunks // max(1, round(total / size)))
        # Convolutions of a few models run one by one, and of many as products that take more memory.
        splits = self._device.type == "cuda" and not uses_convolutions(self._single)
        most = self.most_splits if splits else 1
        self._split = next(parts for parts in range(min(most, self._chunks), 0, -1) if self._chunks % parts == 0)
        self._per_time = layout.own_rows // width
        time, chunk = torch.arange(times).unsqueeze(1), torch.arange(self._per_time)
        player = torch.arange(layout.learners).view(-1, 1, 1)
        self._index = ((time * layout.learners + player) * self._per_time + chunk).flatten(1).to(self._device)
        """[players, chunks]: number of the chunk among those of all players."""
        row = torch.arange(layout.num_rows)
        if not layout.in_turn:  # the rows of all sides share the states of their tables
            row = row // (layout.sides * layout.tables) * layout.tables + row % layout.tables
        self._table_of_row = row.to(self._device)

    def _trained_chunks(self, trained: Tensor) -> Tensor:
        """[players, chunks]: whether their side trains."""
        by_phase = trained[:, :: self._layout.own_rows // self._per_time]  # a chunk has rows of one side
        times = self._index.shape[1] // self._per_time // self._layout.phases
        return by_phase.expand(times, -1, -1).reshape(-1)[self._index]

    def _per_player(self, chunks: Tensor) -> Tensor:
        """[chunks, ...] of all players to [players, chunks, ...]."""
        return chunks.view(-1, self._layout.learners, self._per_time, *chunks.shape[1:]).transpose(0, 1).flatten(1, 2)

    def _of_all(self, chunks: Tensor) -> Tensor:
        """[players, chunks, ...] to [chunks, ...] of all players."""
        by_time = _unflattened(chunks, 1, (-1, self._per_time)).transpose(0, 1)
        return by_time.flatten(0, 2)

    def _shuffled(self, trains: Tensor, minibatches: int) -> tuple[Tensor, Tensor]:
        """[players, chunks of so many minibatches] in random order, those that train first, and which of them do."""
        keys = torch.rand(trains.shape, device=self._device, generator=self.generator) + (~trains)
        order = keys.argsort(1)
        missing = -order.shape[1] % self._chunks
        used = torch.arange(order.shape[1] + missing, device=self._device) < trains.sum(1, keepdim=True)
        size = minibatches * self._chunks
        return torch.cat((order, order[:, :missing]), 1)[:, :size], used[:, :size]

    most_splits = 64
    """Most parts of a player's minibatch, on a GPU: see `_split_weights`."""
    generator: torch.Generator | None = None
    """Draws the order of minibatches; None: the default one."""

    # --- what the losses read ---

    def _single_rows(self, streams: Streams, played: Played) -> _Rows:
        """Single decisions, in chunks of rows that lie together."""
        steps = self._layout.steps

        def chunks(column: Tensor, axes: int) -> Tensor:
            return column.reshape(-1, self._chunk, *column.shape[axes:])

        columns = {f"action.{head}": chunks(column[:steps], 2) for head, column in played.action.items()}
        columns |= {"seat": chunks(played.seat[:steps], 2), "log_prob": chunks(played.log_prob[:steps], 2)}
        columns |= {"value": chunks(streams.value[:-1], 3), "valid": chunks(streams.valid[:-1], 3)}
        if played.search_policy is not None:
            columns[SEARCH_POLICY] = chunks(played.search_policy, 2)
        table = self._table_of_row[:: self._chunk] // self._chunk
        step = torch.arange(steps, device=self._device).unsqueeze(1)
        state_index = (step * (self._layout.num_tables // self._chunk) + table).flatten()
        return _Rows(played, columns, state_index, streams, {})

    def _sequences(self, streams: Streams, played: Played) -> _Rows:
        """Sequences of decisions, one in each chunk."""
        layout = self._layout
        cut: Sequences = self._cut(streams, played)

        def chunks(column: Tensor) -> Tensor:
            return column.flatten(0, 2)

        columns = {name: chunks(column) for name, column in cut.columns.items()}
        columns |= {
            f"action.{head}": chunks(by_step(layout, column, cut.step)) for head, column in played.action.items()
        }
        columns |= {name: chunks(by_step(layout, getattr(played, name), cut.step)) for name in ("seat", "log_prob")}
        state_index = chunks(cut.step * layout.num_tables + self._table_of_row.unsqueeze(1))
        memory = {name: tensor.flatten(0, 2) for name, tensor in played.memory.items()}
        return _Rows(played, columns, state_index, streams, memory)

    def _trajectories(self, sides: Tensor, trained: Tensor, played: Played) -> Streams:
        return trajectories(self._layout, sides, trained, played)

    def _sequences_of(self, streams: Streams, played: Played) -> Sequences:
        return sequences(self._layout, streams, played)

    def _states(self, rows: _Rows, chunks: Tensor) -> TensorState:
        """The states of the rows of chunks: [rows, ...]."""
        index = rows.state_index.index_select(0, chunks.flatten())

        def pick(tensor: Tensor) -> Tensor:
            if self._whole:
                return tensor.flatten(0, 1).index_select(0, index.flatten())
            steps = tensor[: self._layout.steps]
            return steps.reshape(-1, self._chunk, *tensor.shape[2:]).index_select(0, index).flatten(0, 1)

        return {name: pick(tensor) for name, tensor in rows.played.state.items()}

    # --- the algorithms' own columns ---

    def _add_prepared(self, rows: _Rows) -> None:
        """Add the columns of the players' algorithms."""
        if self._whole or any(reads_rows(player.algorithm) for player in self._players):
            rows.columns.update(self._prepared_of_all(rows.streams, rows))
        else:
            rows.columns.update(self._prepare_all(rows.streams, None))

    def _prepared_of_all(self, streams: Streams, rows: _Rows | None) -> dict[str, Tensor]:
        """The extra columns of all players. `rows`: needed where `prepare` reads more than the streams."""
        own = [self._prepared(number, streams, rows) for number in range(self._layout.learners)]
        return {name: self._of_all(torch.stack([extra[name] for extra in own])) for name in own[0]}

    def _prepared(self, number: int, streams: Streams, rows: _Rows | None) -> dict[str, Tensor]:
        """The extra columns of one player's algorithm, [chunks, rows of a chunk, ...]."""
        player = self._players[number]
        if self._whole:
            assert rows is not None
            batch = self._sequence_batch(number, rows)
        else:
            batch = self._stream_batch(number, streams)
        references: dict[str, Policy] = {}
        if rows is not None and reads_rows(player.algorithm):
            batch = self._with_rows(number, rows, batch)
            references = {name: self._view_of(one) for name, one in player.references_of(0).items()}
        policy: Any = PlayerView(self._single, self.views(self._live[number]), self._rollout.precise)
        prepared = player.algorithm.prepare(policy, references, batch)
        extra = dict(prepared.extra)
        if prepared.value is not batch.value:
            extra["value"] = prepared.value
        if self._whole:
            return {name: column.transpose(0, 1) for name, column in extra.items()}
        return {name: column[:-1].reshape(-1, self._chunk, *column.shape[2:]) for name, column in extra.items()}

    def _view_of(self, policy: Policy) -> Policy:
        weights: Weights = dict(cast("NetworkPolicy", policy).named_parameters())
        return cast("Policy", PlayerView(self._single, weights, self._rollout.precise))

    def _stream_batch(self, number: int, streams: Streams) -> Batch:
        """The streams of one player as a batch [turns + 1, phases x rows], without observations."""
        layout = self._layout

        def own(column: Tensor) -> Tensor:
            split = _unflattened(column, 2, (layout.learners, layout.own_rows))
            return split[:, :, number].flatten(1, 2)

        columns: dict[str, Any] = {
            name: own(column) for name, column in streams._asdict().items() if column is not None
        }
        nothing: dict[str, Any] = {name: {} for name in ("observation", "legal", "action")}
        first = torch.zeros_like(columns["valid"])
        return Batch(first=first, progress=self.progress, fixed_shapes=True, **nothing, **columns)

    def _sequence_batch(self, number: int, rows: _Rows) -> Batch:
        """The sequences of one player as a batch [length + 1, sequences], without observations."""
        own: dict[str, Any] = {
            name: self._per_player(column)[number].transpose(0, 1) for name, column in rows.columns.items()
        }
        state = {name: self._per_player(tensor)[number] for name, tensor in rows.memory.items()}
        action = {name.removeprefix("action."): own.pop(name) for name in list(own) if name.startswith("action.")}
        del own["seat"]
        return Batch(
            observation={}, legal={}, action=action, state=state, progress=self.progress, fixed_shapes=True, **own
        )

    def _with_rows(self, number: int, rows: _Rows, batch: Batch) -> Batch:
        """The batch with observations. Of streams the last row repeats the one before, and only its value is used."""
        layout, chunks = self._layout, self._index[number]
        if not self._whole:
            by_step = chunks.view(layout.steps, -1)
            chunks = torch.cat((by_step, by_step[-layout.phases :])).flatten()
        seat = rows.columns["seat"].index_select(0, chunks).flatten()
        observation, legal = self._rollout.observe(self._states(rows, chunks), seat)
        leading = batch.first.shape

        def shaped(tree: Mapping[str, Tensor]) -> dict[str, Tensor]:
            if self._whole:
                return {name: _unflattened(tensor, 0, leading[::-1]).transpose(0, 1) for name, tensor in tree.items()}
            return {name: tensor.view(*leading, *tensor.shape[1:]) for name, tensor in tree.items()}

        changed: dict[str, Any] = {"observation": shaped(observation), "legal": shaped(legal)}
        if not self._whole:
            given = {name: one.index_select(0, chunks).flatten(0, 1) for name, one in rows.columns.items()}
            changed["action"] = shaped(under("action.", given))
            changed["log_prob"] = shaped(given)["log_prob"]
        return replace(batch, **changed)

    # --- gradient steps ---

    def _step(self, rows: _Rows, order: Tensor, used: Tensor) -> None:
        """One gradient step of all players, on the chunks `order` [players, chunks] of which some are `used`."""
        total, statistics, present = self._losses(rows, self._index.gather(1, order), used, self.progress)
        broken = self._optimiser.step(total, self.rates, self.trainable & present.unsqueeze(1))
        with torch.no_grad():
            self.skipped += broken & present
            taken = present & ~broken
            for name, values in {"gradient_steps": taken.float(), **statistics}.items():
                if name not in self.statistics:
                    self.statistics[name] = torch.zeros_like(self.rates)
                self.statistics[name] += torch.where(taken, values.float(), 0.0)

    def _split_weights(self) -> Weights:
        """The weights of the stack, each player's `split` times: products that sum a gradient over all rows are then
        many of a size that fills a GPU."""
        return {
            name: one.unsqueeze(1).expand(-1, self._split, *one.shape[1:]).flatten(0, 1)
            for name, one in self._stack.named_parameters()
        }

    def _losses_of(
        self, rows: _Rows, chunks: Tensor, used: Tensor, progress: Tensor
    ) -> tuple[Tensor, dict[str, Tensor], Tensor]:
        """The loss and the statistics of each player on its chunks, and whether it has any decision there: [players].
        What is picked here is never written if this is compiled."""

        def pick(column: Tensor) -> Tensor:
            return _unflattened(column.index_select(0, chunks.flatten()), 0, chunks.shape)

        minibatch = {name: pick(column) for name, column in rows.columns.items()}
        minibatch["valid"] = minibatch["valid"] & used.unsqueeze(2)
        memory = {name: pick(tensor) for name, tensor in rows.memory.items()}
        state = self._states(rows, chunks)
        learners, length = self._layout.learners, self._chunk if self._whole else 1
        observation, legal = self._rollout.observe(state, minibatch["seat"].flatten())

        def stacked(tree: Mapping[str, Tensor], done: int) -> dict[str, Tensor]:
            """[players x split, rows, ...]; rows of sequences in the order of time."""
            found = {}
            for name, tensor in tree.items():
                rows = _unflattened(tensor.flatten(0, done - 1), 0, (learners * self._split, -1, length))
                found[name] = rows.transpose(1, 2).flatten(1, 2)
            return found

        columns = stacked(minibatch, 3)
        seen = stacked(observation, 1), stacked(legal, 1)
        before = {
            name: _unflattened(tensor.flatten(0, 1), 0, (learners * self._split, -1)) for name, tensor in memory.items()
        }
        given = (*seen, before, Recorded(under("action.", columns), columns["valid"]))
        first = _unflattened(columns["first"], 1, (length, -1)) if self._whole else None
        with self._rollout.precise(), DeferredChecks(collect=False):
            decisions, values, _ = functional_call(self._single, self._split_weights(), (*given, first))
        unrolled = decisions.unrolled(
            values.float(), (*columns["valid"].shape,), rewards=len(self._single.kind.rewards)
        )
        by_player = {**columns, **{f"observation.{name}": tensor for name, tensor in seen[0].items()}}
        by_player |= {f"legal.{name}": tensor for name, tensor in seen[1].items()}
        totals, measured = [], []
        for number, player in enumerate(self._players):
            one = partial(self._of_player, number=number, length=length)
            own = {name: one(column) for name, column in by_player.items()}
            batch = self._loss_batch(own, {name: tensor[number] for name, tensor in memory.items()}, progress)
            outputs = _mapped(unrolled, one)
            policy: Any = OneOfStack(self._stack, outputs, {})
            loss = player.algorithm.loss(policy, batch)
            totals.append(loss.total)
            with torch.no_grad():  # `Loss.measured` itself cannot be compiled
                details = {**loss.statistics, **(loss.details() if loss.details is not None else {})}
                measured.append({**details, "constant_policy": is_constant(outputs, batch.valid)})
        names = dict.fromkeys(name for one in measured for name in one)
        nothing = torch.zeros_like(totals[0].detach())
        statistics = {name: torch.stack([one.get(name, nothing) for one in measured]) for name in names}
        return torch.stack(totals), statistics, minibatch["valid"].flatten(1).any(1)

    def _of_player(self, column: Tensor, number: int, length: int) -> Tensor:
        """Of a column [players x split, rows, ...] the rows of one player: [rows, ...], or [time, sequences, ...]."""
        own = _unflattened(column, 0, (-1, self._split))[number]
        if not self._whole:
            return own.flatten(0, 1)
        return _unflattened(own, 1, (length, -1)).transpose(0, 1).flatten(1, 2)

    def _loss_batch(self, own: dict[str, Tensor], state: dict[str, Tensor], progress: Tensor) -> Batch:
        """The minibatch of one player."""
        groups = {f"{group}.": group for group in ("observation", "legal", "action")}
        trees: dict[str, Any] = {group: under(prefix, own) for prefix, group in groups.items()}
        rest = {name: column for name, column in own.items() if not name.startswith(tuple(groups)) and name != "seat"}
        named: dict[str, Any] = {name: rest.pop(name) for name in _BATCH_COLUMNS if name in rest}
        named.setdefault("first", named["valid"])
        return Batch(**trees, **named, state=state, extra=rest, progress=progress, fixed_shapes=True)


_BATCH_COLUMNS = ("log_prob", "value", "valid", "first", "reward", "rewards", "elapsed", "over", "follows")


class _Rows(NamedTuple):
    """All that is trained on in an update, in chunks."""

    played: Played
    columns: dict[str, Tensor]
    """[chunks of all players, rows of a chunk, ...]"""
    state_index: Tensor
    """By chunk: the number of a chunk of states, or [chunks, rows of a chunk]: those of single states."""
    streams: Streams
    memory: dict[str, Tensor]
    """[chunks, ...]: before the first row of each sequence, if the policy has memory."""


def _unflattened(tensor: Tensor, axis: int, sizes: Sequence[int]) -> Tensor:
    return tensor.reshape(*tensor.shape[:axis], *sizes, *tensor.shape[axis + 1 :])


def _mapped(unrolled: Unrolled, function: Callable[[Tensor], Tensor]) -> Unrolled:
    return Unrolled(
        log_prob=function(unrolled.log_prob),
        entropy=function(unrolled.entropy),
        value=function(unrolled.value),
        log_probs={head: function(log_probs) for head, log_probs in unrolled.log_probs.items()},
        in_use=function(unrolled.in_use),
        values=None if unrolled.values is None else function(unrolled.values),
        action_values=None if unrolled.action_values is None else function(unrolled.action_values),
    )
