"""The engine: one iteration of play and learning of all players, compiled and recorded as a CUDA graph on a GPU.

Where the game is not recordable, only learning is recorded, and play runs step by step.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch._functorch import config as functorch

from ludus.data.schedules import at
from ludus.data.trees import Array
from ludus.games.device.tensor_game import TensorGame
from ludus.models.network_policy import can_stack
from ludus.models.policy import architecture_digest
from ludus.models.tensors import on_device
from ludus.workers.config import DeviceConfig, Openings
from ludus.workers.device.learning import Learning
from ludus.workers.device.played import Played
from ludus.workers.device.rollout import Layout, Rollout
from ludus.workers.trained_player import TrainedPlayer

_log = logging.getLogger(__name__)
_NO_OPENINGS = Openings()
_WARM_UP = 3
"""Iterations before the first one is recorded: kernels and buffers have to exist."""


class Engine:
    """Plays and trains. Between calls of `iterate` the host may change matches, weights and settings. A GPU does all in
    the order in which it is asked: a match that is seated while it computes begins with the next `iterate`."""

    def __init__(
        self,
        game: TensorGame,
        layout: Layout,
        players: Sequence[TrainedPlayer],
        config: DeviceConfig,
        *,
        seed: int,
        openings: Openings = _NO_OPENINGS,
    ) -> None:
        """`players`: on the device on which everything happens."""
        self.layout, self.players = layout, list(players)
        bots = game.tensor_bots()
        self.bots: tuple[str, ...] = () if bots is None else bots.names
        """By number, as `seat` takes them."""
        self.device = players[0].device
        policies = [player.policies[0] for player in players]
        for player, policy in zip(players, policies, strict=True):
            if not can_stack(policy) or architecture_digest(policy) != architecture_digest(policies[0]):
                raise ValueError(f"{player.player!r} has another network than {players[0].player!r}: they cannot stack")
        first = policies[0]
        assert can_stack(first)
        numbers = sum(one.numel() for one in first.parameters())
        self._first_frozen = len(players)
        frozen = layout.num_blocks * (layout.sides - 1)
        self.weights = torch.zeros(len(players) + frozen, numbers, device=self.device)
        """[players, numbers]: the learning players, then a place for every opponent of every block."""
        self._generator = torch.Generator(self.device).manual_seed(seed)
        self._on_gpu = self.device.type == "cuda"
        self._compiles = config.compile and self._on_gpu
        self._autotunes = config.autotune
        if self._compiles:  # its advice on speed is not for users
            warnings.filterwarnings("ignore", category=UserWarning, module=r"torch\._inductor")
        self._records = config.graph and self._on_gpu
        self._records_play = game.recordable
        self._played: Played | None = None
        """What was played, in memory that stays, where only learning is recorded."""
        if self._records and not self._records_play:
            _log.warning("%s is played step by step: only learning is a CUDA graph", game.spec.name)
        searches = {player.algorithm.search for player in players}
        if len(searches) > 1:
            raise ValueError("all players search before each decision in the same way, or none does")
        self.rollout = Rollout(
            game,
            layout,
            first,
            self.device,
            openings=openings,
            compiled=self._compiled,
            precision=_precision(config, self.device),
            search=searches.pop(),
        )
        self.learning = Learning(players, self.rollout, layout, self.weights, compiled=self._compiled)
        self.learning.generator = self._generator
        self._deciding: list[set[int]] = [{0} for _ in range(layout.num_blocks)]
        """By block, the rows of `weights` that decide there."""
        self._graphs: dict[int, Any] = {}
        """By number of minibatches: the recorded iteration."""
        self._iterations = 0
        self._unread = 0
        """Iterations since `read`."""
        self._trained_sides = [0] * len(players)
        self.outputs: list[list[float]] = []
        """By player, when it was last read: the size of its weights, and the lowest and highest value that it gave."""
        self._told: tuple[float, list[float], list[list[bool]]] | None = None
        """Settings that the device has."""

    # --- what the host changes between iterations ---

    def seat(
        self,
        block: int,
        weights: Sequence[int],
        trains: Sequence[bool],
        episodes_per_table: int,
        bots: Sequence[int] | None = None,
    ) -> None:
        """Begin a match at the tables of a block. `weights`: by side, a row of `Engine.weights`; `bots`: by side, the
        number of the bot that plays instead, or -1."""
        self._deciding[block] = set(weights)
        self.rollout.alike = not self._records_play and len(set.union(*self._deciding)) == 1
        seats, sides = self.rollout.seats, self.layout.sides
        bots = [-1] * sides if bots is None else bots
        host = on_device(np.array([*weights, *map(int, trains), *bots, episodes_per_table]), self.device)
        seats.weights[block] = host[:sides]
        seats.trains[block] = host[sides : 2 * sides].bool()
        seats.bots[block] = host[2 * sides : 3 * sides]
        seats.quota[block] = host[-1].int()
        seats.restart[block] = True
        self.rollout.tally[block] = 0.0

    def expect(self, trained_sides: Sequence[int]) -> None:
        """By player: the number of sides at its blocks that train, which the number of gradient steps follows."""
        self._trained_sides = list(trained_sides)

    def row_of_opponent(self, block: int, side: int) -> int:
        """The row of `weights` for the frozen player on a side (1 or later) of a block."""
        return self._first_frozen + block * (self.layout.sides - 1) + side - 1

    def load_opponent(self, row: int, arrays: Mapping[str, Array]) -> None:
        """Put the weights of a frozen player, by KIND/PARAMETER, into a row."""
        policy = self.players[0].policies[0]
        flat = [np.asarray(arrays[f"{policy.kind.name}/{name}"], np.float32).reshape(-1) for name in self._names]
        self.weights[row] = on_device(np.concatenate(flat), self.device)

    @property
    def _names(self) -> list[str]:
        policy: Any = self.players[0].policies[0]
        return [name for name, _ in policy.named_parameters()]

    def reconfigure(self) -> None:
        """Settings of the players have changed, which may be part of the recorded iterations."""
        self.learning.reconfigure()
        self._graphs.clear()
        self._iterations = 0

    # --- iterations ---

    def iterate(self, progress: float) -> None:
        """Play and train once. Does not wait for a GPU."""
        learning = self.learning
        rates = [at(player.config.learning_rate, progress) for player in self.players]
        trainable = [player.trainable for player in self.players]
        if (progress, rates, trainable) != self._told:  # a copy from the host would wait for the device
            learning.progress.fill_(progress)
            learning.rates.copy_(torch.tensor(rates))
            learning.trainable.copy_(torch.tensor(trainable))
            self._told = (progress, rates, trainable)
        minibatches = learning.minibatches_for(self._trained_sides)
        if self._iterations < _WARM_UP or not self._records:
            self._iterate(minibatches)
        elif self._records_play:
            self._replay(minibatches, lambda: self._iterate(minibatches))
        else:
            played = self._in_place(self._play())
            self._replay(minibatches, lambda: learning.update(played, minibatches))
        learning.follow()
        self._iterations += 1
        self._unread += 1

    def _iterate(self, minibatches: int) -> None:
        self.learning.update(self._play(), minibatches)

    @torch.no_grad()
    def _play(self) -> Played:
        return self.rollout.play(self.weights, self.learning.views, self._generator)

    def _in_place(self, played: Played) -> Played:
        """What was played, in the memory that the recorded learning reads."""
        if self._played is None:
            self._played = played
            return played
        for kept, new in zip(self._played.tensors(), played.tensors(), strict=True):
            kept.copy_(new)
        return self._played

    def _replay(self, minibatches: int, iterate: Callable[[], None]) -> None:
        """Run the rest of an iteration from its CUDA graph, which is recorded first; without one where that fails."""
        if minibatches not in self._graphs:
            self._record(minibatches, iterate)
        graph = self._graphs.get(minibatches)
        if graph is None:
            iterate()
        else:
            graph.replay()

    def _record(self, minibatches: int, iterate: Callable[[], None]) -> None:
        graph = torch.cuda.CUDAGraph()
        try:
            graph.register_generator_state(self._generator)
            pool = next(iter(self._graphs.values())).pool() if self._graphs else None
            torch.cuda.synchronize(self.device)
            with torch.cuda.graph(graph, pool=pool):
                iterate()
        except (RuntimeError, AttributeError) as error:
            _log.warning("the iteration cannot be a CUDA graph and runs step by step, which is slower: %s", error)
            self._records = False
            torch.cuda.synchronize(self.device)
            return
        self._graphs[minibatches] = graph

    def _compiled(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, compiled if this engine compiles; as it is if the compiler refuses it. Any other error ends the
        training: what has failed while it ran may have changed weights already, as may a part before a graph break."""
        if not self._compiles:
            return function
        # Else a backward pass is compiled when it first runs: after `call`, which could not go on without.
        with suppress(AttributeError):  # older versions of PyTorch do not have it
            functorch.force_non_lazy_backward_lowering = True
        # Importing it takes a second, for which only those that compile should wait.
        from torch._dynamo.exc import TorchDynamoException

        options: dict[str, Any] = {"max_autotune_gemm": True} if self._autotunes else {}
        chosen = torch.compile(function, dynamic=False, options=options)

        def call(*given: Any) -> Any:
            nonlocal chosen
            if chosen is function:
                return function(*given)
            try:
                return chosen(*given)
            except TorchDynamoException as error:
                name = getattr(function, "__name__", "a part")
                _log.warning("%s cannot be compiled and runs as it is, which is slower: %s", name.strip("_"), error)
                chosen = function
                return function(*given)

        return call

    # --- what the host reads ---

    def is_idle(self) -> bool:
        """Whether a GPU has done all that was asked of it."""
        return not self._on_gpu or torch.cuda.current_stream(self.device).query()

    def tally(self) -> NDArray[np.float64]:
        """Sums of the matches at the blocks, [blocks, columns], as they are now; waits for the device."""
        tally: NDArray[np.float64] = self.rollout.tally.to("cpu", copy=True).numpy()
        return tally

    def read(self) -> list[dict[str, float]]:
        """Waits for the device. Adds what was counted to the players; returns the statistics of their latest update."""
        learning = self.learning
        counters = (learning.decisions, learning.unused, learning.skipped, learning.left_out)
        counts = torch.stack(counters).cpu()
        for tensor in counters:
            tensor.zero_()
        for number, player in enumerate(self.players):
            decisions, unused, skipped, _ = counts[:, number].tolist()
            player.decisions += decisions
            player.unused += unused
            player.skipped += skipped
        self.outputs = torch.stack((learning.sizes(), learning.lowest, learning.highest), 1).tolist()
        learning.measure((counts[0] + counts[3]).tolist(), self._trained_sides, self._unread)
        self._unread = 0
        names = list(learning.statistics)
        if not names:
            return [{} for _ in self.players]
        values = torch.stack([learning.statistics[name] for name in names]).cpu()
        found = []
        for number in range(len(self.players)):
            sums: dict[str, float] = dict(zip(names, values[:, number].tolist(), strict=True))
            steps = sums.pop("gradient_steps")
            found.append({"gradient_steps": steps, **{name: total / max(steps, 1) for name, total in sums.items()}})
        return found


def _precision(config: DeviceConfig, device: torch.device) -> torch.dtype:
    """Of matrix products. A CPU without bfloat16 would emulate it, several times slower than float32."""
    if config.precision == "float32":
        return torch.float32
    if device.type == "cpu":
        able = getattr(torch.cpu, "get_capabilities", dict[str, bool])()  # older versions of PyTorch do not have it
        if not any(able.get(name) for name in ("avx512_bf16", "amx_bf16", "bf16")):
            _log.warning("this CPU has no instructions for bfloat16: matrix products are float32")
            return torch.float32
    return torch.bfloat16
