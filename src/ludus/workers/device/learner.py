"""The learner of the device runtime: the learning players of an engine, as the controller and checkpoints see them."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable
from functools import cached_property

from ludus.data.records import ModelId, PlayerReset, Settings
from ludus.data.schedules import at
from ludus.workers.config import DeviceConfig
from ludus.workers.device.engine import Engine
from ludus.workers.learner import Learner, naming
from ludus.workers.trained_player import SAME
from ludus.workers.worker import Diverged, Progress

_ROUND_S = 0.25
"""Seconds of a round on a GPU: long enough that the host costs little, short enough for requests."""
_MOST_UPDATES = 1000
_SURE_AFTER = 3
"""Rounds in which a network gives all positions the same value, after which it is dead."""


class DeviceLearner(Learner):
    """Trains its players by iterations of an engine. They have no buffers: an iteration plays what it trains on."""

    engine: Engine
    config: DeviceConfig
    turn_over: Callable[[], None]
    """Work of the host in every round, while the device computes."""
    meanwhile: Callable[[], bool]
    """Further work of the host as long as the device computes; says whether there was any."""
    _updates = 1

    @cached_property
    def _differed(self) -> set[str]:
        """Players whose values of different positions have differed."""
        return set()

    @cached_property
    def _constant(self) -> Counter[str]:
        """Rounds in a row in which all values of a player were the same, although they had differed before."""
        return Counter()

    def step(self) -> Progress:
        """Some updates of all players."""
        engine, before = self.engine, self.decisions
        began = time.monotonic()
        updates = self._num_updates()
        for _ in range(updates):
            engine.iterate(self.progress)
        try:
            self.turn_over()
            while self.meanwhile() and not engine.is_idle():
                pass
        finally:  # whatever ends the run: weights and counts belong together
            measured = engine.read()
        self._require_sound()
        self.batches += updates
        took = time.monotonic() - began
        self._updates = min(_MOST_UPDATES, max(1, round(updates * _ROUND_S / max(took, 1e-6)), updates // 2))
        statistics: dict[str, float] = {}
        for trained, own in zip(engine.players, measured, strict=True):
            own |= {
                "learning_rate": at(trained.config.learning_rate, self.progress),
                "unused": trained.unused,
                "skipped": trained.skipped,
                "refused": trained.refused,
            }
            if trained.is_value_only:
                own["value_only"] = 1.0
            statistics |= {f"{trained.player}/{name}": value for name, value in own.items()}
        self._per_update = (self.decisions - before) / updates
        return Progress(count=self.decisions - before, statistics=statistics)

    @property
    def is_doubtful(self) -> bool:
        """A player may be dead, see `_require_sound`: its weights should not be saved."""
        return any(self._constant.values())

    def _require_sound(self) -> None:
        """Raise `Diverged` if the weights of a player have exploded or its network is dead, which gives all positions
        the same value although it did not before. Looks at what was read anyway, after every round. All tables may
        show the same position once, when matches begin: so a few rounds must agree."""
        for trained, (size, lowest, highest) in zip(self.engine.players, self.engine.outputs, strict=True):
            name = trained.player
            rate = trained.require_size(size, self.progress)
            if lowest > highest:  # it made no decision
                continue
            if highest - lowest > SAME * max(abs(lowest), abs(highest)):
                self._differed.add(name)
                self._constant[name] = 0
            elif name in self._differed:
                self._constant[name] += 1
                if self._constant[name] >= _SURE_AFTER:
                    raise Diverged(
                        f"updates {rate} have spoilt the network of {name}: it gives every position the value "
                        f"{highest:.3g}, which it did not before"
                    )

    _per_update = math.inf
    """Decisions of an update of all players, as far as they are known."""

    def _num_updates(self) -> int:
        """Updates of this round, no more than the budget is good for."""
        if self.config.updates_per_round is not None:
            wanted = self.config.updates_per_round
        else:
            wanted = self._updates if self.engine.device.type == "cuda" else 1
        left = (self._budget - self.decisions) / self._per_update if self._per_update else wanted
        return max(1, min(wanted, math.ceil(left)))

    def publish(self, player: str) -> None:
        """The engine plays with the weights that it trains."""

    def reset(self, event: PlayerReset) -> None:
        self._differed.discard(event.player)
        self._constant.pop(event.player, None)
        weights = self._initial[event.player]
        if event.model is not None:
            weights = self._models.fetch(ModelId.parse(event.model))
        with naming(event.player, event.model):
            self.players[event.player].reset(weights, event.incarnation, event.value_only)

    def configure(self, player: str, settings: Settings) -> None:
        trained = self.players[player]
        before = trained.algorithm, trained.config
        super().configure(player, settings)
        if hasattr(self, "engine") and (trained.algorithm, trained.config) != before:
            self.engine.reconfigure()
