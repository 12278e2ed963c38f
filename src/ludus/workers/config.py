"""Settings of the workers, as parts of an experiment."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Literal, get_args

from ludus.algorithms.teacher import Recomputed
from ludus.data.checks import require_in, require_one_of
from ludus.data.schedules import LiveField, Schedule, at
from ludus.models.policy import require_device_name
from ludus.workers.optimiser import AdamSettings

_INTERVALS = {
    "[1, inf]": ("batch_size", "minibatch_size", "epochs", "buffer_size", "reuse", "ranks"),
    "[0, 1)": ("adam_beta1", "adam_beta2", "average_decay"),
    "(0, inf]": ("adam_epsilon", "max_gradient_norm"),
    "[0, inf]": ("max_lag", "recompute_lag"),
}
"""Ranges of `LearnerConfig`."""
OF_THE_RUN = ("schedule", "buffer_worker", "device", "ranks", "placement")
"""Settings of `LearnerConfig` that a role cannot have its own values of: all players share what they are about."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LearnerConfig:
    """Settings of the learner: batches, gradient steps, and the schedule of acting and learning."""

    batch_size: int = 16384
    """Decisions of one update of a player."""
    minibatch_size: LiveField[int] = 4096
    """Decisions in one gradient step."""
    epochs: LiveField[int] = 2
    """Passes over a batch."""
    learning_rate: LiveField[Schedule] = 3e-4
    """Learning rate of Adam."""
    max_gradient_norm: LiveField[float] = 0.5
    """Longer gradients are clipped to this norm."""
    adam_beta1: LiveField[float] = 0.9
    """Decay of the mean of the gradients."""
    adam_beta2: LiveField[float] = 0.999
    """Decay of the mean of their squares."""
    adam_epsilon: LiveField[float] = 1e-5
    """Added to the root of that mean."""
    average_decay: LiveField[float] = 0.99
    """Decay per update of the averaged weights, which are published beside the live ones."""
    buffer_size: int = 65536
    """Decisions that may wait for the learner; beyond that the oldest are dropped."""
    schedule: Literal["sync", "async"] = "sync"
    """sync: acting and learning alternate, so that every decision is trained on by the weights that made it.
    async: they run at the same time, if the runtime has a process for each."""
    max_lag: int = 1
    """Asynchronous schedule: updates by which the acting weights may be older than the learning ones. Actors wait
    for a learner that is further behind, and older decisions are not trained on."""
    reuse: int = 1
    """Asynchronous schedule: updates that may train on the same trajectory."""
    recompute: tuple[Recomputed, ...] = ()
    """Columns that are recomputed with the newest weights for each update of a trajectory: its values; its
    advantages, corrected for the change of the policy since; the outputs of the teacher."""
    buffer_worker: bool = False
    """Whether a separate process recomputes them, so that the learner only takes gradient steps."""
    recompute_lag: int = 1
    """Buffer worker: updates by which the recomputing weights may be older than the learning ones."""
    device: str = "auto"
    """Device of the learner: "auto" (a GPU if there is one), "cpu", "cuda" or "cuda:1"."""
    stacked: LiveField[Literal["auto", "on", "off"]] = "auto"
    """Whether players that are ready together are trained in one backward pass; "auto": where that is faster."""
    ranks: int = 1
    """Processes that train the same players, each on its part of every batch; gradients are averaged."""
    placement: Literal["together", "per_player"] = "together"
    """together: one learner process trains all players. per_player: each learning player has its own, on its own core
    and GPU where there are several; one that fails is restarted alone. The serial runtime always has one learner."""

    def __post_init__(self) -> None:
        for interval, names in _INTERVALS.items():
            require_in(self, interval, **{name: getattr(self, name) for name in names})
        if self.buffer_size < self.batch_size:
            raise ValueError(f"buffer_size ({self.buffer_size}) must hold a batch of batch_size ({self.batch_size})")
        for progress in (0.0, 1.0):
            require_in(self, "[0, inf)", learning_rate=at(self.learning_rate, progress))
        for one in self.recompute:
            require_one_of(self, get_args(Recomputed), recompute=one)
        if self.buffer_worker and not self.recompute:
            raise ValueError("buffer_worker=true needs recompute: values, advantages or teacher; else it has no work")
        require_one_of(self, ("sync", "async"), schedule=self.schedule)
        if self.uses > self.lag + 1:
            raise ValueError(f"reuse ({self.reuse}) can be at most max_lag + 1 ({self.lag + 1}), or data is too old")
        require_device_name("device", self.device)
        require_one_of(self, ("auto", "on", "off"), stacked=self.stacked)
        require_one_of(self, ("together", "per_player"), placement=self.placement)
        if self.placement == "per_player" and (self.ranks > 1 or self.stacked == "on"):
            wrong = f"ranks={self.ranks}" if self.ranks > 1 else "stacked=on"
            raise ValueError(
                f"placement=per_player has one process for each player, got {wrong}, which is for placement=together"
            )
        if self.stacked == "on" and self.ranks > 1:
            raise ValueError(f"stacked=on is for one rank, got ranks={self.ranks}, which train one player at a time")

    @property
    def adam(self) -> AdamSettings:
        return AdamSettings(self.adam_beta1, self.adam_beta2, self.adam_epsilon, self.max_gradient_norm)

    @property
    def lag(self) -> int:
        """`max_lag` as the schedule allows it."""
        return self.max_lag if self.schedule == "async" else 0

    @property
    def uses(self) -> int:
        """`reuse` as the schedule allows it."""
        return self.reuse if self.schedule == "async" else 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Openings:
    """Training episodes that start after random legal moves, so that players meet positions that they do not lead to
    themselves. Nobody trains on these moves. Evaluation always starts at the beginning."""

    moves: int = 0
    """Most steps with random moves; each number from 0 on is equally likely. A game that ends in them starts again
    from its beginning."""
    share: float = 1.0
    """Of the training episodes; the others start at the beginning."""

    def __post_init__(self) -> None:
        require_in(self, "[0, inf]", moves=self.moves)
        require_in(self, "[0, 1]", share=self.share)

    def lengths(self, chances: Any, draws: Any) -> Any:
        """Numbers of random steps, from two arrays or tensors of uniform numbers, as floats without fractions."""
        return (chances < self.share) * (draws * (self.moves + 1) // 1)


@dataclass(frozen=True, kw_only=True, slots=True)
class DeviceConfig:
    """Settings of the device runtime, in which everything of a training lives on `learner.device`."""

    precision: Literal["float32", "bfloat16"] = "float32"
    """Of matrix products; weights, optimiser, advantages and losses are float32 either way. On a CPU without
    instructions for bfloat16 everything is float32."""
    compile: bool = True
    """Compile the steps of play and the losses, on a GPU. The first updates then take a minute or two."""
    autotune: bool = False
    """While compiling, try several kernels for each matrix product: another minute, then about a sixth faster."""
    graph: bool = True
    """Record an iteration as one CUDA graph, on a GPU."""
    updates_per_round: int | None = None
    """Updates between two looks at matches, requests and metrics; None: as many as take about a quarter of a second
    on a GPU, one on a CPU. With a number, a run can be repeated."""

    def __post_init__(self) -> None:
        require_one_of(self, ("float32", "bfloat16"), precision=self.precision)
        require_in(self, "[1, inf]", updates_per_round=self.updates_per_round)


@dataclass(frozen=True, kw_only=True, slots=True)
class Supervision:
    """How failed workers are handled."""

    hung_after_s: float = 60.0
    """Seconds without a heartbeat after which a worker is replaced; a step or a checkpoint must take less. Time in
    which a worker waits for a processor does not count."""
    quarantine_after: int = 3
    """Failures of an actor, without progress of the learner in between, after which it is not restarted."""
    back_off_s: float = 0.5
    """Pause before a failed actor is restarted; doubled after each further failure."""
    most_failures: int = 5
    """Failures of the learner without a checkpoint, or of the policy worker without progress, that end the run."""
    most_void: int = 100
    """Matches of one actor that the game has made void, with no match of any actor finished in between, after which
    the run ends."""
    most_refused: int = 20
    """Consecutive updates refused because of a NaN or an infinity, after which the run ends."""
    stop_within_s: float = 20.0
    """Seconds that a requested stop waits for the learner to save; after that the latest checkpoint is used."""
    leave_within_s: float = 60.0
    """Seconds that a leaving actor may take to finish its open matches; after that they are void."""

    def __post_init__(self) -> None:
        for setting in fields(self):
            interval = "[1, inf)" if isinstance(setting.default, int) else "[0, inf)"
            require_in(self, interval, **{setting.name: getattr(self, setting.name)})
