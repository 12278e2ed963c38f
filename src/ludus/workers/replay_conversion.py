"""Fills a dataset from any source of episodes, and says beforehand whether the disk is large enough."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass

from ludus.data.dataset_format import DatasetError
from ludus.data.episodes import EpisodeFilter, EpisodeSource
from ludus.store.dataset_writer import SPARE_BYTES, DatasetWriter

SAMPLE_REPLAYS = 32
"""Replays with episodes from which the need for disk space is estimated."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ConversionProgress:
    """How far a conversion is."""

    replays: int
    total: int
    episodes: int
    decisions: int
    num_bytes: int
    estimated_bytes: int
    """Of the whole dataset, by what the replays so far take."""


def convert(
    source: EpisodeSource,
    writer: DatasetWriter,
    wanted: EpisodeFilter,
    progress: Callable[[ConversionProgress], None] = lambda _: None,
) -> None:
    """Add all replays that the dataset does not have yet. Raises `DatasetError` if they will not fit on the
    disk: as soon as that can be estimated, and whenever it is about to happen."""
    names = source.replays()
    todo = [name for name in names if name not in writer.done]
    before, bytes_before = len(names) - len(todo), writer.num_bytes
    samples = 0
    for number, replay in enumerate(source.decode(todo, wanted), 1):
        writer.add(replay)
        written = writer.num_bytes - bytes_before
        estimate = bytes_before + written * len(todo) // number
        samples += bool(replay.episodes)
        if (replay.episodes and samples == SAMPLE_REPLAYS) or number == len(todo):
            _require_room(writer, estimate)
        progress(
            ConversionProgress(
                replays=before + number,
                total=len(names),
                episodes=writer.num_episodes,
                decisions=writer.num_decisions,
                num_bytes=writer.num_bytes,
                estimated_bytes=estimate,
            )
        )


def _require_room(writer: DatasetWriter, estimate: int) -> None:
    free = shutil.disk_usage(writer.folder).free
    needed = estimate - writer.committed_bytes
    if needed + SPARE_BYTES > free:
        raise DatasetError(
            f"{writer.folder}: by the replays so far, the dataset needs about {needed >> 20} MiB more and "
            f"{free >> 20} MiB are free; choose fewer replays, or a folder on a larger disk"
        )
