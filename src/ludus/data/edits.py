"""What a person may ask of a run while it trains. Settings and models are as typed, not yet checked."""

from __future__ import annotations

import msgspec

from ludus.data.records import Result

RECORDED = "recorded as match "
"""How the answer to `RecordGame` begins; then the number of the match."""


class Edit(msgspec.Struct, frozen=True, kw_only=True, tag_field="edit", forbid_unknown_fields=True):
    """One change of a league: all of it happens or nothing."""


class ChangeSettings(Edit, frozen=True, kw_only=True, tag="set"):
    settings: dict[str, str]
    player: str | None = None
    """Of this learning player alone."""


class AddPlayer(Edit, frozen=True, kw_only=True, tag="add"):
    player: str
    role: str
    source: str | None = None
    """What it starts from or is pinned to: a player, PLAYER@TAG or a model; None: fresh weights."""
    settings: dict[str, str] = {}


class RemovePlayer(Edit, frozen=True, kw_only=True, tag="remove"):
    player: str
    reason: str = "by hand"


class FreezePlayer(Edit, frozen=True, kw_only=True, tag="freeze"):
    player: str


class ResetPlayer(Edit, frozen=True, kw_only=True, tag="reset"):
    player: str
    source: str | None = None
    """What it starts again from; None: what its role says."""


class RecordGame(Edit, frozen=True, kw_only=True, tag="game"):
    """A game that a person has played: it becomes a match of purpose "human", issued and ended at once, so
    that nothing is left open if the person goes away."""

    sides: tuple[tuple[str, ...], ...]
    """Per team: its one player, or the player of each of its seats."""
    result: Result | None = None
    """None: it ended without one. What it says of the match's id is not read: that is given now."""
    void: str = ""
    """Why there is no result."""


class Pause(Edit, frozen=True, kw_only=True, tag="pause"):
    """Nobody plays or learns until somebody says so. Not in the ledger: a resume trains."""


class Continue(Edit, frozen=True, kw_only=True, tag="continue"):
    """The end of a pause."""


class Stop(Edit, frozen=True, kw_only=True, tag="stop"):
    now: bool = False
    """Without saving: what was learned since the latest checkpoint is lost."""


AnyEdit = ChangeSettings | AddPlayer | RemovePlayer | FreezePlayer | ResetPlayer | RecordGame
Order = Pause | Continue | Stop
"""What the process that trains the run does, and the league does not notice."""
