"""A stand-in for the closed library `hok`: the calls that its public code makes of it, nothing behind them.

A simulator calls an address, shows a frame and waits for the answer, then shows the next. Between the two,
frames are JSON with a length in front; the real ones are ZeroMQ messages that nobody has published.
"""
# ruff: noqa: N802 - the names are the library's

from __future__ import annotations

import enum
import json
import os
import socket
from pathlib import Path
from types import SimpleNamespace
from typing import Any

HERE = Path(__file__).parent
HEADS_1V1, HEADS_3V3 = (12, 16, 16, 16, 16, 8), (13, 25, 42, 42, 39)
PARSE_CONTINUE, PARSE_NONE_ACTION, SEND_SUCCESS, PROCESS_ACTION_SUCCESS = 10, 11, 20, 30


class ReturnCode(enum.IntEnum):
    PARSE_CONTINUE = 40
    FEATURE_PROCESS_SUCCESS = 50
    FEATURE_PROCESS_SEND_CACHED = 51
    PROCESS_ACTION_SUCCESS = 60
    SEND_SUCCESS = 70


def install(folder: Path) -> str:
    """A package `hok` in the folder; gives a PYTHONPATH with which it is found."""
    shared = "from stand_in_hok import *\nfrom stand_in_hok import ReturnCode\n"
    files = {
        "hok/__init__.py": "",
        "hok/hok1v1/__init__.py": "",
        "hok/hok1v1/config.dat": "",
        "hok/hok1v1/lib/__init__.py": "",
        "hok/hok1v1/lib/interface.py": f"{shared}from stand_in_hok import Interface1v1 as Interface\n",
        "hok/hok3v3/__init__.py": "",
        "hok/hok3v3/hero_config.py": "interface_default_config = 'config.dat'\n",
        "hok/hok3v3/reward.py": "def update_reward_config(library, config): library.rewarded = True\n",
        "hok/hok3v3/lib/__init__.py": "",
        "hok/hok3v3/lib/lib3v3.py": f"{shared}from stand_in_hok import Interface3v3 as Interface\n",
    }
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return f"{folder}{os.pathsep}{HERE}"


def send(connection: socket.socket, message: Any) -> None:
    data = json.dumps(message).encode()
    connection.sendall(len(data).to_bytes(4, "big") + data)


def receive(connection: socket.socket) -> Any:
    data = b""
    while len(data) < 4 or len(data) < 4 + int.from_bytes(data[:4], "big"):
        part = connection.recv(65536)
        if not part:
            raise EOFError
        data += part
    return json.loads(data[4:])


class _Server:
    def __init__(self) -> None:
        self.listener: Any = None
        self.caller: Any = None

    def Reset(self, address: str) -> int:
        self.listener = socket.create_server(("127.0.0.1", int(address.rpartition(":")[2])))
        return 0

    def receive(self) -> Any:
        while True:
            if self.caller is None:
                self.caller, _ = self.listener.accept()
                self.caller.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            try:
                return receive(self.caller)
            except EOFError:
                self.caller = None


class _Manager(dict):  # type: ignore[type-arg]
    def Add(self, address: str) -> _Server:
        self[address] = _Server()
        return self[address]  # type: ignore[no-any-return]


class _Interface:
    continues: int
    heads: tuple[int, ...]

    def __init__(self) -> None:
        self.server_manager = _Manager()
        self.frames: dict[str, Any] = {}
        self.answers: list[Any] = []
        print("the library talks to standard output")  # as the real one may

    def Init(self, config: str) -> None:
        assert config.endswith("config.dat")

    def RecvAIFrameState(self, address: str) -> tuple[int, str]:
        frame = self.server_manager[address].receive()
        self.frames[frame["sgame_id"]] = frame
        return self.continues, frame["sgame_id"]

    def ResultProcess(self, camps: Any, game: str) -> tuple[int, int]:
        self.answers.append([self.chosen(hero) for hero in self.heroes(camps)])
        return PROCESS_ACTION_SUCCESS, len(self.answers) - 1

    def SendResp(self, address: str, game: str, number: int) -> int:
        return self._reply(address, {"actions": self.answers[number]})

    def SendGameoverResp(self, address: str, game: str) -> int:
        return self._reply(address, {"end": True})

    def _reply(self, address: str, answer: Any) -> int:
        send(self.server_manager[address].caller, answer)
        return SEND_SUCCESS

    def _frame(self, game: str) -> Any:
        frame = self.frames[game]
        lists = {name: [SimpleNamespace(**one) for one in frame[name]] for name in ("organ_list", "hero_list")}
        return SimpleNamespace(frame_no=frame["frame_no"], gameover=frame["gameover"], sgame_id=game, **lists)

    def heroes(self, camps: Any) -> Any:
        raise NotImplementedError

    def chosen(self, hero: Any) -> list[int]:
        raise NotImplementedError


class Interface1v1(_Interface):
    continues, heads = PARSE_CONTINUE, HEADS_1V1

    def Reset(self, eval_mode: bool, games: list[str]) -> None:
        for game in games:
            self.frames.pop(game, None)

    def GetAIFrameState(self, game: str) -> Any:
        return self._frame(game)

    def FeatureProcess(self, state: int, game: str) -> Any:
        hero = self.frames[game]["heroes"][0]
        rewards = (*(0.0,) * 8, hero["reward"])
        return 2, {"observation": hero["observation"], "legal_action": hero["legal"], "reward": rewards}

    def SendNoneResp(self, address: str, game: str) -> int:
        return self._reply(address, {"none": True})

    def SendDefaultResp(self, address: str) -> int:
        return self._reply(address, {"none": True})

    def heroes(self, camps: Any) -> Any:
        return camps

    def chosen(self, hero: Any) -> list[int]:
        """Six rows of probabilities, six actions, a value."""
        assert [len(row) for row in hero] == [*HEADS_1V1, 1, 1, 1, 1, 1, 1, 1]
        return [action for (action,) in hero[6:12]]


def _by_head(flags: list[int]) -> list[list[int]]:
    ends = [sum(HEADS_3V3[: place + 1]) for place in range(len(HEADS_3V3))]
    return [flags[end - size : end] for size, end in zip(HEADS_3V3, ends, strict=True)]


class Interface3v3(_Interface):
    continues, heads = ReturnCode.PARSE_CONTINUE, HEADS_3V3

    def __init__(self) -> None:
        super().__init__()
        self.results: set[str] = set()
        """Games whose result has been processed: only then the library tells what was legal."""

    def Reset(self, games: list[str]) -> None:
        for game in games:
            self.frames.pop(game, None)

    def SetEvalMode(self, eval_mode: bool) -> None:
        assert self.rewarded  # type: ignore[attr-defined]

    def FeatureProcess(self, state: int, game: str) -> tuple[int, int]:
        if self.frames[game]["frame_no"] % 3 == 0:
            return ReturnCode.FEATURE_PROCESS_SUCCESS, -1
        self.answers.append(None)
        return ReturnCode.FEATURE_PROCESS_SEND_CACHED, len(self.answers) - 1

    def GetGameData(self, game: str) -> Any:
        shown = self.frames[game]["heroes"]
        heroes = [SimpleNamespace(feature=hero["observation"], reward=hero["reward"]) for hero in shown]
        results = [SimpleNamespace(legal_action=_by_head(hero["legal"])) for hero in shown if game in self.results]
        return SimpleNamespace(frame_state=self._frame(game), feature_process=heroes, result_process=results)

    def ResultProcess(self, camps: Any, game: str) -> tuple[int, int]:
        self.results.add(game)
        super().ResultProcess(camps, game)
        return ReturnCode.PROCESS_ACTION_SUCCESS, len(self.answers) - 1

    def SendEmptyResp(self, address: str) -> int:
        return self._reply(address, {"none": True})

    def heroes(self, camps: Any) -> Any:
        assert len(camps) == 1
        return camps[0]

    def chosen(self, hero: Any) -> list[int]:
        """Five rows of probabilities and a value; the library draws."""
        assert [len(row) for row in hero] == [*HEADS_3V3, 1]
        assert all(abs(sum(row) - 1) < 1e-6 for row in hero[:5])
        return [max(range(len(row)), key=lambda option: row[option]) for row in hero[:5]]
