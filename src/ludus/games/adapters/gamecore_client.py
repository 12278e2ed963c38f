"""Client of the gamecore server of Honor of Kings: its public HTTP interface starts, stops and lists games."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from typing import Any, Literal

from ludus.games.seat_rows import GameError

Mode = Literal["1v1", "3v3"]
SimulatorType = Literal["remote", "repeat", "repeat_only", "remote_repeat"]
"""A new battle, one that continues a saved scene, or a random one of the two; see docs/games/gamecore.md."""

REQUEST_TIMEOUT_MS = 30_000
"""Time limit of a simulator for the answer to a frame."""
_POLL_S = 1.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Hero:
    """A hero and its equipment; the server chooses what is left out."""

    hero_id: int
    skill_id: int | None = None
    """The summoner's skill."""
    symbol: tuple[int, ...] = ()
    """Arcana."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CampAddress:
    """Address of the program that decides for a camp."""

    ip: str
    port: int


class GamecoreClient:
    """Every call raises `GameError` if the server is not there, refuses, or sends an invalid answer."""

    def __init__(self, server: str, *, time_limit_s: float = 30.0) -> None:
        self._server = server
        self._limit_s = time_limit_s

    def reach(self) -> None:
        """Open and close a connection."""
        with self._connection():
            pass

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
        """Start a battle of two camps. The server's own `common_ai` plays a camp without an address. With a
        `task_id` the server keeps the outcome of the battle."""
        entries: list[dict[str, Any]] = []
        for camp, (members, address) in enumerate(zip(heroes, camps, strict=True)):
            for place, hero in enumerate(members):
                chosen = {name: value for name, value in asdict(hero).items() if value not in (None, ())}
                entries.append({**chosen, "request_info": _request_info(address, place, camp * len(members))})
        config: dict[str, Any] = {"game_mode": mode, "hero_conf": entries}
        if max_frames > 0:
            config["max_frame_num"] = max_frames
        if task_id:
            config["task_id"] = task_id
        self._post("newGame", {"simulator_type": simulator, "runtime_id": runtime_id, "simulator_config": config})

    def stop_game(self, runtime_id: str) -> None:
        """Stop a game; no error if there is none."""
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
        """The states of all games of a task."""
        return list(self._data("taskDetail", {"task_id": task_id}).get("game_states") or [])

    def task_remove(self, task_id: str) -> None:
        self._post("taskRemove", {"task_id": task_id})

    def task_clear(self) -> None:
        self._post("taskClear", {})

    @contextmanager
    def _connection(self) -> Iterator[http.client.HTTPConnection]:
        try:
            with closing(http.client.HTTPConnection(self._server, timeout=self._limit_s)) as connection:
                connection.connect()
                yield connection
        except (OSError, http.client.HTTPException) as error:
            raise GameError(
                f"no gamecore server at {self._server} ({error}); set the option server, or "
                "GAMECORE_SERVER_ADDR=HOST:PORT"
            ) from None

    def _data(self, call: str, content: Mapping[str, Any]) -> Mapping[str, Any]:
        data = self._post(call, content).get("data")
        return data if isinstance(data, dict) else {}

    def _post(self, call: str, content: Mapping[str, Any], *, wants_json: bool = True) -> dict[str, Any]:
        where = f"gamecore server at {self._server}"
        with self._connection() as connection:
            connection.request("POST", f"/v2/{call}", json.dumps(content), {"Content-Type": "application/json"})
            response = connection.getresponse()
            answer = response.read()
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
    """The first hero of a camp holds its address; the others refer to that hero by its number in the game."""
    if address is None:
        return {}
    if place:
        return {"request_id": first}
    return {"ip": address.ip, "port": address.port, "timeout": REQUEST_TIMEOUT_MS}
