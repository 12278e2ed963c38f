"""The public HTTP interface of the gamecore server of Honor of Kings: it starts, stops and lists games."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ludus.data.specs import ActionSpec, Choice, When
from ludus.games.seat_rows import GameError

Mode = Literal["1v1", "3v3"]
SimulatorType = Literal["remote", "repeat", "repeat_only", "remote_repeat"]
"""A new battle, one that goes on from a saved scene, or by chance either; see docs/games/gamecore.md."""

REQUEST_TIMEOUT_MS = 30_000
"""How long a simulator waits for the answer to a frame."""
_POLL_S = 1.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Hero:
    """Who fights, and with what; what is left out is the server's choice."""

    hero_id: int
    skill_id: int | None = None
    """The summoner's skill."""
    symbol: tuple[int, ...] = ()
    """Arcana."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CampAddress:
    """Where a simulator finds the program that decides for a camp."""

    ip: str
    port: int


class GamecoreClient:
    """Every call raises `GameError` if the server is not there, refuses, or answers nonsense."""

    def __init__(self, server: str, *, time_limit_s: float = 30.0) -> None:
        self._server = server
        self._limit_s = time_limit_s

    def reach(self) -> None:
        """Asks nothing."""
        try:
            connection = http.client.HTTPConnection(self._server, timeout=self._limit_s)
            connection.connect()
            connection.close()
        except (OSError, http.client.HTTPException) as error:
            raise self._not_there(error) from None

    def start_game(
        self,
        runtime_id: str,
        mode: Mode,
        heroes: Sequence[Sequence[Hero]],
        camps: Sequence[CampAddress | None],
        *,
        simulator: SimulatorType = "remote",
        max_frames: int = 0,
        task_id: str = "",
    ) -> None:
        """A battle of two camps. A camp without an address is played by the server's own `common_ai`. With a
        `task_id` the server keeps what becomes of the battle."""
        entries: list[dict[str, Any]] = []
        for camp, (members, address) in enumerate(zip(heroes, camps, strict=True)):
            for place, hero in enumerate(members):
                entry: dict[str, Any] = {"hero_id": hero.hero_id}
                if hero.skill_id is not None:
                    entry["skill_id"] = hero.skill_id
                if hero.symbol:
                    entry["symbol"] = list(hero.symbol)
                entry["request_info"] = _request_info(address, place, camp * len(members))
                entries.append(entry)
        config: dict[str, Any] = {"game_mode": mode, "hero_conf": entries}
        if max_frames > 0:
            config["max_frame_num"] = max_frames
        if task_id:
            config["task_id"] = task_id
        self._post("newGame", {"simulator_type": simulator, "runtime_id": runtime_id, "simulator_config": config})

    def stop_game(self, runtime_id: str) -> None:
        """Nothing happens if there is no such game."""
        self._post("stopGame", {"runtime_id": runtime_id}, wants_json=False)

    def exists(self, runtime_id: str) -> bool:
        return bool(self._post("exists", {"runtime_id": runtime_id}).get("exists"))

    def wait_game(self, runtime_id: str, limit_s: float) -> bool:
        """Whether the game has ended within the time."""
        deadline = time.monotonic() + limit_s
        while self.exists(runtime_id):
            if time.monotonic() > deadline:
                return False
            time.sleep(min(_POLL_S, limit_s))
        return True

    def task_list(self) -> list[str]:
        return list(self._data("taskList", {}).get("task_ids") or [])

    def task_detail(self, task_id: str) -> list[dict[str, Any]]:
        """What is known of every game of a task."""
        return list(self._data("taskDetail", {"task_id": task_id}).get("game_states") or [])

    def task_remove(self, task_id: str) -> None:
        self._post("taskRemove", {"task_id": task_id})

    def task_clear(self) -> None:
        self._post("taskClear", {})

    def _not_there(self, error: Exception) -> GameError:
        return GameError(
            f"no gamecore server at {self._server} ({error}); set the option server, or GAMECORE_SERVER_ADDR=HOST:PORT"
        )

    def _data(self, call: str, content: Mapping[str, Any]) -> Mapping[str, Any]:
        data = self._post(call, content).get("data")
        return data if isinstance(data, dict) else {}

    def _post(self, call: str, content: Mapping[str, Any], *, wants_json: bool = True) -> dict[str, Any]:
        where = f"gamecore server at {self._server}"
        try:
            connection = http.client.HTTPConnection(self._server, timeout=self._limit_s)
            try:
                body = json.dumps(content)
                connection.request("POST", f"/v2/{call}", body, {"Content-Type": "application/json"})
                response = connection.getresponse()
                answer = response.read()
            finally:
                connection.close()
        except (OSError, http.client.HTTPException) as error:
            raise self._not_there(error) from None
        if response.status >= 400:
            said = answer[:200].decode(errors="replace")
            raise GameError(f"{where} answered {call} with {response.status} {response.reason}: {said}")
        if not wants_json:
            return {}
        try:
            parsed = json.loads(answer)
        except ValueError:
            parsed = None
        if not isinstance(parsed, dict):
            raise GameError(f"{where} answered {call} with {answer[:80]!r}, which is no JSON object")
        return parsed


def _request_info(address: CampAddress | None, place: int, first: int) -> dict[str, Any]:
    """The first hero of a camp names who decides, the others refer to it by its number in the game."""
    if address is None:
        return {}
    if place:
        return {"request_id": first}
    return {"ip": address.ip, "port": address.port, "timeout": REQUEST_TIMEOUT_MS}


BUTTONS_1V1 = (
    "none", "none_2", "move", "attack", "skill_1", "skill_2", "skill_3", "heal", "chosen_skill", "recall",
    "skill_4", "equipment",
)  # fmt: skip
BUTTONS_3V3 = (
    "none", "none_2", "move", "attack", "skill_1", "skill_2", "skill_3", "skill_4", "chosen_skill", "recall",
    "equipment", "heal", "friend",
)  # fmt: skip
_MOVE, _ATTACK, _RECALL = 2, 3, 9
_PLACES, _TARGETS = 16, 8
"""Of the smaller game: steps along a side of what can be pointed at, and things to aim at."""
_SIZES_1V1 = (len(BUTTONS_1V1), _PLACES, _PLACES, _PLACES, _PLACES, len(BUTTONS_1V1) * _TARGETS)
LEGAL_1V1 = sum(_SIZES_1V1)


def _skills(buttons: Sequence[str]) -> tuple[int, ...]:
    return tuple(number for number in range(_ATTACK + 1, len(buttons)) if number != _RECALL)


def _when(*buttons: int) -> When:
    return When(head="button", values=buttons)


def heads_1v1() -> ActionSpec:
    """What may be aimed at depends on the button, so every button that aims has a head of its own for it."""
    skills = _skills(BUTTONS_1V1)
    heads = {"button": Choice(num=len(BUTTONS_1V1))}
    heads |= {name: Choice(num=_PLACES, when=_when(_MOVE)) for name in ("move_x", "move_z")}
    heads |= {name: Choice(num=_PLACES, when=_when(*skills)) for name in ("skill_x", "skill_z")}
    for button in (_ATTACK, *skills):
        heads[f"target_{BUTTONS_1V1[button]}"] = Choice(num=_TARGETS, when=_when(button))
    return ActionSpec(heads=heads)


def heads_3v3() -> ActionSpec:
    """Without masks: the library shows what was legal only after it has acted, and then acts otherwise."""
    skills = _skills(BUTTONS_3V3)
    return ActionSpec(
        heads={
            "button": Choice(num=len(BUTTONS_3V3), masked=False),
            "move": Choice(num=25, masked=False, when=_when(_MOVE)),
            "offset_x": Choice(num=42, masked=False, when=_when(*skills)),
            "offset_z": Choice(num=42, masked=False, when=_when(*skills)),
            "target": Choice(num=39, masked=False, when=_when(_ATTACK, *skills)),
        }
    )


def legal_1v1(flags: Sequence[int]) -> dict[str, NDArray[np.bool_]]:
    """Masks by head from the game's row of flags: one per option, and for the target one per button too."""
    if len(flags) != LEGAL_1V1:
        raise ValueError(f"legal_action has {len(flags)} flags, expected {LEGAL_1V1}")
    parts = np.split(np.array(flags, np.bool_), np.cumsum(_SIZES_1V1)[:-1])
    legal = dict(zip(("button", "move_x", "move_z", "skill_x", "skill_z"), parts[:5], strict=True))
    targets = parts[5].reshape(len(BUTTONS_1V1), _TARGETS)
    for button in (_ATTACK, *_skills(BUTTONS_1V1)):
        legal[f"target_{BUTTONS_1V1[button]}"] = targets[button]
    for name, mask in legal.items():
        if name != "button" and not mask.any():
            mask[0] = True  # not used with this button, but a head that counts needs an option
    return legal


def actions_1v1(action: Mapping[str, int]) -> list[int]:
    """Button, move x and z, skill x and z, target."""
    button = action["button"]
    target = action.get(f"target_{BUTTONS_1V1[button]}", 0)
    return [button, *(action[name] for name in ("move_x", "move_z", "skill_x", "skill_z")), target]


def actions_3v3(action: Mapping[str, int]) -> list[int]:
    return [action[name] for name in ("button", "move", "offset_x", "offset_z", "target")]
