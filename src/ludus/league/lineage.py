"""Where the weights and settings of each learning player come from: a fold over the ledger."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from ludus.data.records import PlayerAdded, PlayerReset, Settings


@dataclass(frozen=True, kw_only=True, slots=True)
class Descent:
    """The start of a learning player, or one of its resets."""

    decisions: int
    """That it had trained on by then."""
    model: str | None
    """What it went on from; None: fresh weights."""
    donor: str | None
    """The player that it took over from, if it was one."""
    settings: Settings
    """Of its own, from then on."""
    reason: str


class LineageBook:
    """The descents of every learning player that ever was, oldest first."""

    def __init__(self) -> None:
        self._descents: dict[str, list[Descent]] = {}

    def join(self, event: PlayerAdded) -> None:
        first = Descent(
            decisions=0, model=event.model, donor=None, settings=dict(event.settings), reason=event.reason
        )
        self._descents[event.player] = [first]

    def reset(self, event: PlayerReset, decisions: int, settings: Settings) -> None:
        descent = Descent(
            decisions=decisions,
            model=event.model,
            donor=event.donor,
            settings=dict(settings),
            reason=event.reason,
        )
        self._descents[event.player].append(descent)

    @property
    def descents(self) -> Mapping[str, list[Descent]]:
        return MappingProxyType(self._descents)
