"""Learning on a device: from what was played to batches of each learning player, and gradient steps of all of them.

The algorithm of the experiment does what it does elsewhere: `prepare` on the trajectories of one player, `loss` on
minibatches, whose network is run for all players in one stacked pass. Observations are not kept but computed again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor
from torch.func import functional_call

from ludus.algorithms.actor_critic import A2C
from ludus.algorithms.algorithm import Algorithm
from ludus.algorithms.ppo import PPO
from ludus.data.batch import Batch
from ludus.models.decisions import Recorded
from ludus.models.network_policy import NetworkPolicy, stack_policies
from ludus.models.policy import Policy, Unrolled
from ludus.workers.device.rollout import Compile, Layout, Played, Rollout, Weights
from ludus.workers.optimiser import StackedOptimiser
from ludus.workers.stacked_training import OneOfStack
from ludus.workers.trained_player import TrainedPlayer

_MOST_ROWS_IN_CHUNK = 256
_CHUNKS_IN_MINIBATCH = 64


class Streams(NamedTuple):
    """Trajectories, one for each side of each table: columns [rows in time + 1, phases, rows of a step]. In time, a row
    is `layout.phases` steps. The fields are those of `Batch`."""

    reward: Tensor
    over: Tensor
    elapsed: Tensor
    valid: Tensor
    follows: Tensor
    idle: Tensor
    value: Tensor


def trajectories(layout: Layout, sides: Tensor, trained: Tensor, played: Played) -> Streams:
    """What each side earned by each of its decisions, up to its next one. `sides`, `trained` [phases, rows]: the side
    of a row, and whether it trains.

    A decision is trained on if the value of the side's next one is known, or the episode ended: of the side that waits
    for the other at the end of an iteration the last decision is only a bootstrap (docs/decisions/0008).
    """
    rows = layout.steps // layout.phases
    shape = (rows, layout.phases, layout.num_rows)
    acted, value = played.acted[:-1].view(shape), played.value[:-1].view(shape)
    reward, over = _windows(layout, sides, played, shape)
    last = torch.arange(layout.phases, device=value.device).unsqueeze(1) == 0  # phase 0 decides next
    known = played.acted[-1] & last
    following = torch.where(known, played.value[-1], 0.0)
    owed = torch.zeros_like(following)
    ended = torch.zeros_like(known)
    columns: list[tuple[Tensor, ...]] = []
    for row in reversed(range(rows)):
        owed = reward[row] + torch.where(over[row], 0.0, owed)
        ended = over[row] | ended
        decides = acted[row]
        complete = decides & (ended | known)
        following_before, following = following, torch.where(decides, value[row], following)
        columns.append((torch.where(decides, owed, 0.0), decides & ended, decides, complete, following))
        known = known | decides
        owed = torch.where(decides, 0.0, owed)
        ended = ended & ~decides
        if row == rows - 1:
            bootstrap = following_before
    rewards, overs, decisions, completes, values = (torch.stack(column[::-1]) for column in zip(*columns, strict=True))
    nothing = torch.zeros_like(decisions[:1])
    only_bootstrap = torch.cat((decisions & ~completes, nothing))
    zeros = torch.zeros_like(rewards[:1])
    return Streams(
        reward=torch.cat((rewards, zeros)),
        over=torch.cat((overs, nothing)),
        elapsed=torch.cat((decisions.float(), zeros)),
        valid=torch.cat((completes & trained, nothing)),
        follows=torch.cat((~only_bootstrap[1:], nothing)),
        idle=torch.cat((~decisions, nothing)),
        value=torch.cat((values, bootstrap.unsqueeze(0))),
    )


def _windows(layout: Layout, sides: Tensor, played: Played, shape: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """Reward of the side of each row, and whether the episode ended, in the steps of one row in time."""
    if not layout.in_turn:
        by_side = played.reward.view(layout.steps, layout.num_blocks, layout.tables, layout.sides).transpose(2, 3)
        over = played.over.view(layout.steps, layout.num_blocks, 1, layout.tables).expand_as(by_side)
        return by_side.reshape(shape), over.reshape(shape)
    # Row `phase` in time is step `phase` and the one after it, in which the other side moves.
    rewards, overs = [], []
    for phase in range(2):
        index = sides[phase].view(1, -1, 1).expand(layout.steps, -1, 1)
        own = played.reward.gather(2, index).squeeze(2)
        first, over = own[phase::2], played.over[phase::2]
        second, over_after = own[phase + 1 :: 2], played.over[phase + 1 :: 2]
        if phase:  # the step after the last one is not played yet
            second, over_after = (torch.cat((one, torch.zeros_like(one[:1]))) for one in (second, over_after))
        rewards.append(first + torch.where(over, 0.0, second))
        overs.append(over | over_after)
    return torch.stack(rewards, 1), torch.stack(overs, 1)


class PlayerView:
    """One player of the stack as a policy, for `Algorithm.prepare`."""

    value_scale = None

    def __init__(self, policy: NetworkPolicy, weights: Weights) -> None:
        self.kind = policy.kind
        self.state_arrays = policy.state_arrays
        self._policy, self._weights = policy, weights

    def unroll(self, batch: Batch) -> Unrolled:
        leading = tuple(batch.first.shape)

        def rows(tree: Mapping[str, Tensor]) -> dict[str, Tensor]:
            return {name: tensor.reshape(-1, *tensor.shape[len(leading) :]) for name, tensor in tree.items()}

        recorded = Recorded(rows(batch.action), batch.valid.reshape(-1), checked=False)
        given = (rows(batch.observation), rows(batch.legal), recorded)
        decisions, value = functional_call(self._policy, self._weights, given)
        unrolled: Unrolled = decisions.unrolled(value, None, leading)
        return unrolled


def reads_rows(algorithm: Algorithm) -> bool:
    """Whether `prepare` runs networks, and so needs the observations of the whole batch. That of A2C and PPO does so
    only if it is asked to."""
    known = type(algorithm) in (PPO, A2C)
    return not known or bool(algorithm.references) or getattr(algorithm, "recompute_values", False)


class Learning:
    """The learning players as one stack, and their updates. `weights` [players, numbers of a model] begins with theirs.
    The players' own policies, optimisers and averages are views of the stack, so that they can be saved and reset."""

    def __init__(
        self,
        players: Sequence[TrainedPlayer],
        rollout: Rollout,
        layout: Layout,
        weights: Tensor,
        *,
        compiled: Compile,
        precision: torch.dtype,
    ) -> None:
        self._players, self._rollout, self._layout = players, rollout, layout
        self._device, self._precision = weights.device, precision
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
        self.stale = torch.zeros_like(self.decisions)
        """Not trained on, because they only served as a bootstrap."""
        self.skipped = torch.zeros_like(self.decisions)
        """Gradient steps that were not finite."""
        self.lowest = torch.zeros(count, device=self._device)
        self.highest = torch.zeros_like(self.lowest)
        """Of the values that a player gave its decisions in the latest update."""
        self.statistics: dict[str, Tensor] = {}
        """Of the latest update: [players], sums over its gradient steps."""
        self._fold = compiled(lambda sides, trained, played: trajectories(layout, sides, trained, played))
        self._losses = compiled(self._losses_of)
        self._block_of_group, self._side_of_group = (
            tensor.to(self._device) for tensor in (layout.block_of_group, layout.side_of_group)
        )
        self._sides = self._side_of_group.repeat_interleave(layout.rows, 1)
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
        trained = self._trained_rows()
        streams: Streams = self._fold(self._sides, trained.unsqueeze(0), played)
        with torch.no_grad():
            columns = self._columns(played, streams)
            self.decisions += self._per_player(columns["valid"]).sum(1)
            valid, value = (self._per_player(columns[name]) for name in ("valid", "value"))
            self.lowest.copy_(torch.where(valid, value, torch.inf).amin(1))
            self.highest.copy_(torch.where(valid, value, -torch.inf).amax(1))
            self.stale += self._per_player(~streams.idle[:-1] & trained & ~streams.valid[:-1]).sum(1)
        trains_chunk = self._chunked(trained.unsqueeze(0).expand(self._rows_in_time, -1, -1))[..., 0]
        for name in self.statistics:
            self.statistics[name].zero_()
        for _ in range(self._players[0].config.epochs):
            order, used = self._shuffled(trains_chunk)
            for number in range(minibatches):
                part = slice(number * self._chunks, (number + 1) * self._chunks)
                self._step(played, columns, order[:, part], used[:, part])

    def sizes(self) -> Tensor:
        """[players]: the root mean square of each player's weights."""
        return self._live.square().mean(1).sqrt()

    def follow(self) -> None:
        """Complete the update of every player: its step, its averaged weights and its references."""
        for player in self._players:
            player.follow()

    def minibatches_for(self, trained_sides: Sequence[int]) -> int:
        """Gradient steps of an epoch, given by player the number of sides that train in its blocks."""
        layout = self._layout
        per_side = self._num_chunks // (layout.blocks * layout.sides)
        return max(1, -(-max(trained_sides) * per_side // self._chunks))

    # --- minibatches: random chunks of rows that lie together ---

    def _plan_chunks(self) -> None:
        """Choose the rows of a chunk and the chunks of a minibatch. A chunk has rows of one group in one step."""
        layout, size = self._layout, self._players[0].config.minibatch_size
        self._rows_in_time = layout.steps // layout.phases
        total = layout.steps * layout.own_rows
        wanted = min(_MOST_ROWS_IN_CHUNK, max(1, min(size, total) // _CHUNKS_IN_MINIBATCH))
        self._chunk = next(rows for rows in range(min(wanted, layout.rows), 0, -1) if layout.rows % rows == 0)
        self._num_chunks = total // self._chunk
        self._chunks = -(-self._num_chunks // max(1, round(total / size)))
        most = self.most_splits if self._device.type == "cuda" else 1
        self._split = next(parts for parts in range(min(most, self._chunks), 0, -1) if self._chunks % parts == 0)
        per_step = layout.own_rows // self._chunk
        step, chunk = torch.arange(layout.steps).unsqueeze(1), torch.arange(per_step)
        player = torch.arange(layout.learners).view(-1, 1, 1)
        self._index = ((step * layout.learners + player) * per_step + chunk).flatten(1).to(self._device)
        """[players, chunks]: number of the chunk among those of all players."""
        index = self._index
        if not layout.in_turn:  # the rows of all sides share the states of their tables
            in_group = layout.rows // self._chunk
            group = index // in_group
            index = group // layout.sides * in_group + index % in_group
        self._state_index = index

    def _trained_rows(self) -> Tensor:
        """[phases, rows]: whether the side of a row trains."""
        by_group = self._rollout.seats.trains.index_select(0, self._block_of_group)
        by_phase = [by_group.gather(1, side.unsqueeze(1)).squeeze(1) for side in self._side_of_group]
        return torch.stack(by_phase).repeat_interleave(self._layout.rows, 1)

    def _per_player(self, rows: Tensor) -> Tensor:
        """[time, phases, rows] to [players, ...]."""
        split = rows.reshape(*rows.shape[:2], self._layout.learners, self._layout.own_rows)
        return split.movedim(2, 0).flatten(1)

    def _chunked(self, rows: Tensor) -> Tensor:
        """[time, phases, rows] to [players, chunks, rows of a chunk]."""
        return rows.reshape(-1, self._chunk).index_select(0, self._index.flatten()).view(*self._index.shape, -1)

    def _shuffled(self, trains: Tensor) -> tuple[Tensor, Tensor]:
        """[players, chunks] in random order, those that train first, and which of them do; filled up to whole
        minibatches."""
        keys = torch.rand(trains.shape, device=self._device, generator=self.generator) + (~trains)
        order = keys.argsort(1)
        missing = -order.shape[1] % self._chunks
        used = torch.arange(order.shape[1] + missing, device=self._device) < trains.sum(1, keepdim=True)
        return torch.cat((order, order[:, :missing]), 1), used

    most_splits = 64
    """Most parts of a player's minibatch, on a GPU: see `_split_weights`."""
    generator: torch.Generator | None = None
    """Draws the order of minibatches; None: the default one."""

    # --- columns ---

    def _columns(self, played: Played, streams: Streams) -> dict[str, Tensor]:
        """All that the loss reads beside the states, [time, phases, rows, ...]."""
        shape = streams.valid[:-1].shape
        columns = {
            "seat": played.seat.view(shape),
            "action": played.action.view(shape),
            "log_prob": played.log_prob.view(shape),
            "value": streams.value[:-1],
            "valid": streams.valid[:-1],
        }
        own = [self._prepared(number, played, streams) for number in range(self._layout.learners)]
        for name in own[0]:
            joined = torch.stack([extra[name] for extra in own], 2)
            columns[name] = joined.flatten(2, 3)
        return columns

    def _prepared(self, number: int, played: Played, streams: Streams) -> dict[str, Tensor]:
        """The extra columns of one player's algorithm, [time, phases, own rows, ...]."""
        layout, player = self._layout, self._players[number]
        phases, rows = layout.phases, layout.own_rows

        def own(column: Tensor) -> Tensor:
            return column.view(len(column), phases, layout.learners, rows)[:, :, number].flatten(1, 2)

        columns: dict[str, Any] = {name: own(column) for name, column in streams._asdict().items()}
        first = torch.zeros_like(columns["valid"])
        batch = Batch(
            observation={}, legal={}, action={}, first=first, progress=self.progress, fixed_shapes=True, **columns
        )
        policy: Any = PlayerView(self._single, self.views(self._live[number]))
        references: dict[str, Policy] = {}
        if reads_rows(player.algorithm):
            batch = self._with_rows(number, played, batch)
            references = {
                name: cast("Policy", PlayerView(self._single, dict(cast("NetworkPolicy", one).named_parameters())))
                for name, one in player.references_of(0).items()
            }
        prepared = player.algorithm.prepare(policy, references, batch)
        extra = dict(prepared.extra)
        if prepared.value is not batch.value:
            extra["value"] = prepared.value
        return {name: column[:-1].unflatten(1, (phases, rows)) for name, column in extra.items()}

    def _with_rows(self, number: int, played: Played, batch: Batch) -> Batch:
        """The batch with the observations of one player; the last row repeats the one before, and only its value is
        used."""
        layout = self._layout
        index = self._index[number].view(layout.steps, -1)
        chunks = torch.cat((index, index[-layout.phases :])).flatten()
        of_state = self._state_index[number].view(layout.steps, -1)
        states = torch.cat((of_state, of_state[-layout.phases :])).flatten()
        observation, legal, seen = self._rows(played, chunks, states)
        leading = batch.first.shape

        def shaped(tree: Mapping[str, Tensor]) -> dict[str, Tensor]:
            return {name: tensor.view(*leading, *tensor.shape[1:]) for name, tensor in tree.items()}

        return replace(
            batch,
            observation=shaped(observation),
            legal=shaped(legal),
            action=shaped({self._head: seen["action"]}),
            log_prob=seen["log_prob"].view(*leading, 1),
        )

    @property
    def _head(self) -> str:
        return next(iter(self._stack.kind.action.heads))

    def _rows(
        self, played: Played, chunks: Tensor, states: Tensor
    ) -> tuple[dict[str, Tensor], dict[str, Tensor], dict[str, Tensor]]:
        """Observations, legal masks, and actions and log-probabilities of the rows of chunks."""

        def pick(column: Tensor, index: Tensor) -> Tensor:
            """[steps, rows, ...] to [rows of the chunks, ...]."""
            rest = column.shape[2:]
            return column.reshape(-1, self._chunk, *rest).index_select(0, index).flatten(0, 1)

        state = {name: pick(tensor, states) for name, tensor in played.state.items()}
        seat = pick(played.seat, chunks)
        observation, legal = self._rollout.observe(state, seat)
        return observation, legal, {name: pick(getattr(played, name), chunks) for name in ("action", "log_prob")}

    # --- gradient steps ---

    def _step(self, played: Played, columns: Mapping[str, Tensor], order: Tensor, used: Tensor) -> None:
        """One gradient step of all players, on the chunks `order` [players, chunks] of which some are `used`."""
        flat = (self._index.gather(1, order), self._state_index.gather(1, order))
        count = self._layout.learners

        def pick(column: Tensor, index: Tensor, skipped: int) -> Tensor:
            rest = column.shape[skipped:]
            chosen = column.reshape(-1, self._chunk, *rest).index_select(0, index.flatten())
            return chosen.view(count, -1, *rest)

        minibatch = {name: pick(column, flat[0], 3) for name, column in columns.items()}
        minibatch["valid"] = minibatch["valid"] & used.repeat_interleave(self._chunk, 1)
        state = {name: pick(tensor, flat[1], 2).flatten(0, 1) for name, tensor in played.state.items()}
        total, statistics = self._losses(state, minibatch, self.progress)
        with torch.no_grad():
            present = minibatch["valid"].any(1)
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
        self, state: dict[str, Tensor], minibatch: dict[str, Tensor], progress: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The loss and the statistics of each player, [players]."""
        valid = minibatch["valid"]
        observation, legal = self._rollout.observe(state, minibatch["seat"].flatten())

        shape = (self._layout.learners * self._split, -1)

        def stacked(tree: Mapping[str, Tensor]) -> dict[str, Tensor]:
            return {name: tensor.view(*shape, *tensor.shape[1:]) for name, tensor in tree.items()}

        seen = stacked(observation), stacked(legal)
        recorded = Recorded({self._head: minibatch["action"].view(shape)}, valid.view(shape), checked=False)
        with torch.autocast(
            self._device.type, self._precision, enabled=self._precision != torch.float32, cache_enabled=False
        ):
            decisions, value = functional_call(self._stack, self._split_weights(), (*seen, recorded))
        unrolled = decisions.unrolled(value.float(), None, tuple(valid.shape))
        totals, measured = [], []
        for number, player in enumerate(self._players):
            own = {name: column[number] for name, column in minibatch.items()}
            batch = Batch(
                observation={},
                legal={},
                action={self._head: own.pop("action")},
                log_prob=own.pop("log_prob").unsqueeze(-1),
                value=own.pop("value"),
                valid=own.pop("valid"),
                first=valid[number],
                extra=own,
                progress=progress,
                fixed_shapes=True,
            )
            policy: Any = OneOfStack(self._stack, _of_player(unrolled, number), {})
            loss = player.algorithm.loss(policy, batch)
            totals.append(loss.total)
            with torch.no_grad():  # `Loss.measured` itself cannot be compiled
                measured.append({**loss.statistics, **(loss.details() if loss.details is not None else {})})
        names = dict.fromkeys(name for one in measured for name in one)
        nothing = torch.zeros_like(totals[0].detach())
        statistics = {name: torch.stack([one.get(name, nothing) for one in measured]) for name in names}
        return torch.stack(totals), statistics


def _of_player(unrolled: Unrolled, number: int) -> Unrolled:
    return Unrolled(
        log_prob=unrolled.log_prob[number],
        entropy=unrolled.entropy[number],
        value=unrolled.value[number],
        log_probs={head: log_probs[number] for head, log_probs in unrolled.log_probs.items()},
        in_use=unrolled.in_use[number],
    )
