"""What a .SC2Replay file says about itself: read without the game."""

from __future__ import annotations

import io
import json
from dataclasses import dataclass
from typing import Any

import mpyq

from ludus.data.episodes import Outcome

SUFFIX = ".SC2Replay"

_RACES = {"Terr": "terran", "Zerg": "zerg", "Prot": "protoss"}
_OUTCOMES: dict[str, Outcome] = {"Win": "win", "Loss": "loss", "Tie": "draw", "Undecided": "draw"}
_METADATA = "replay.gamemetadata.json"
_VERSION, _GAME_STEPS = 1, 3
"""Fields of the header."""


class DamagedReplayError(ValueError):
    """Not a replay of StarCraft II, or not all of one."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ReplayPlayer:
    race: str
    outcome: Outcome


@dataclass(frozen=True, kw_only=True, slots=True)
class ReplayHeader:
    version: str
    """Of the game, such as `4.10.0`."""
    build: int
    """Of the program that plays it."""
    game_steps: int
    map: str
    """Its title; empty in old replays."""
    players: tuple[ReplayPlayer, ...]
    """In PySC2's order; none in old replays."""


def read_header(content: bytes) -> ReplayHeader:
    try:
        archive = mpyq.MPQArchive(io.BytesIO(content), listfile=False)
        header = _Decoder(archive.header["user_data_header"]["content"]).value()
        version, game_steps = header[_VERSION], header[_GAME_STEPS]
        metadata = json.loads(archive.read_file(_METADATA) or b"{}")
        return ReplayHeader(
            version=".".join(str(version[field]) for field in (1, 2, 3)),
            build=int(version[5]),
            game_steps=int(game_steps),
            map=str(metadata.get("Title", "")),
            players=tuple(_player(player) for player in metadata.get("Players", ())),
        )
    except Exception as error:  # whatever bytes may do to the reader of archives
        raise DamagedReplayError(f"it cannot be read: {type(error).__name__}: {error}") from error


def _player(facts: dict[str, Any]) -> ReplayPlayer:
    race = str(facts.get("AssignedRace", facts.get("SelectedRace", "")))
    return ReplayPlayer(
        race=_RACES.get(race, race.lower()), outcome=_OUTCOMES.get(facts.get("Result", ""), "draw")
    )


class _Decoder:
    """The game's own encoding, in which every value says what it is; structures become field -> value."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def value(self) -> Any:
        kind = self._bytes(1)[0]
        if kind == 0:
            return [self.value() for _ in range(self._number())]
        if kind == 1:
            return self._bytes((self._number() + 7) // 8)
        if kind == 2:
            return self._bytes(self._number())
        if kind == 3:
            return {self._number(): self.value()}
        if kind == 4:
            return self.value() if self._bytes(1)[0] else None
        if kind == 5:
            return {self._number(): self.value() for _ in range(self._number())}
        if kind in (6, 7, 8):
            return int.from_bytes(self._bytes({6: 1, 7: 4, 8: 8}[kind]), "little")
        if kind == 9:
            return self._number()
        raise ValueError(f"its header has a value of kind {kind}")

    def _number(self) -> int:
        """Seven bits a byte, the lowest first; the first bit of all is the sign."""
        byte = self._bytes(1)[0]
        sign, number, shift = byte & 1, byte >> 1 & 0x3F, 6
        while byte & 0x80:
            byte = self._bytes(1)[0]
            number |= (byte & 0x7F) << shift
            shift += 7
        return -number if sign else number

    def _bytes(self, count: int) -> bytes:
        taken = self._data[self._at : self._at + count]
        if len(taken) < count:
            raise ValueError("its header ends too soon")
        self._at += count
        return taken
