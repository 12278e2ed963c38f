"""Bridge to `hok`, the closed library of Honor of Kings, which decides for camps.

The library is for Python 3.7 to 3.9 and owns the connection of the simulators, so this file runs in a Python of its
own: `python3.9 gamecore_bridge.py 1v1`. Requests and answers are lines of JSON:

    {"type": "open", "addresses": ["tcp://0.0.0.0:35300", "tcp://0.0.0.0:35301"], "eval": false, "masks": true}
        {"open": true}
    {"type": "next"}
        {"camp": 0, "frame": 12, "over": false, "heroes": [...], "lost_camp": null, "state": [[...], [...]]}
    {"type": "act", "actions": [[2, 7, 9, 0, 0, 0]]}
        {"acted": true}

`next` returns the next frame in which a camp has to decide, or its last one. A hero is {"observation": [...],
"legal": [...], "reward": 0.1}, where 3v3 without "masks" leaves out "legal"; `camp` is a place in "addresses";
`lost_camp` is the camp (1 or 2) whose crystal has fallen; `state` has, for each camp, the health of its towers and of
its crystal, then money, kills, deaths and damage to heroes of every hero. `act` is for the camp of that frame. Every
camp receives every frame, camp 0 first, and must answer before the next frame.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

TOWER, CRYSTAL = 21, 24
"""Types of organs; the crystal decides the game."""
HEADS_1V1 = (12, 16, 16, 16, 16, 8)
HEADS_3V3 = (13, 25, 42, 42, 39)
FLOOR = 1e-4
"""Probability of options that were not chosen: the library takes probabilities and draws a legal option itself, also
if the chosen one is illegal."""


class Camps:
    """The camps of a battle, each at its address."""

    def __init__(self, library: Any, codes: Any) -> None:
        self.library = library
        self.codes = codes
        self.games: dict[str, str] = {}
        self.listening: set[str] = set()

    def listen(self, addresses: list[str]) -> None:
        self.games = {}
        for address in addresses:
            if address not in self.listening:
                server = self.library.server_manager.Add(address)
                if not server or server.Reset(address) < 0:
                    raise RuntimeError(f"cannot listen at {address}")
                self.listening.add(address)

    def send(self, address: str, heroes: Any) -> None:
        """Let the library carry out the actions of all heroes of a camp."""
        code, answer = self.library.ResultProcess(heroes, self.games[address])
        if code != int(self.codes.PROCESS_ACTION_SUCCESS):
            raise RuntimeError(f"ResultProcess answered {code}")
        self.library.SendResp(address, self.games[address], answer)


class Camps1v1(Camps):
    """One hero per camp. The library gives masks and carries out the given action."""

    frames_per_decision = 3

    def __init__(self) -> None:
        import hok.hok1v1
        from hok.hok1v1.lib import interface

        super().__init__(interface.Interface(), interface)
        self.library.Init(os.path.join(os.path.dirname(hok.hok1v1.__file__), "config.dat"))
        self.first: dict[str, int] = {}

    def open(self, addresses: list[str], eval_mode: bool, masks: bool) -> None:
        self.library.Reset(eval_mode, list(self.games.values()))
        self.first = {}
        self.listen(addresses)

    def receive(self, address: str) -> dict[str, Any] | None:
        """The frame, if the camp has to decide in it or the game is over; else None."""
        state, game = self.library.RecvAIFrameState(address)
        self.games[address] = game
        if state != self.codes.PARSE_CONTINUE:
            self.library.SendDefaultResp(address)
            return None
        frame = self.library.GetAIFrameState(game)
        since = frame.frame_no - self.first.setdefault(address, frame.frame_no)
        if since % self.frames_per_decision and not frame.gameover:
            self.library.SendNoneResp(address, game)
            return None
        found = self.library.FeatureProcess(state, game)
        if found[0] == 2:
            hero = found[1]
            rewards = hero["reward"]
            seen = {
                "observation": [float(one) for one in hero["observation"]],
                "legal": [int(one) for one in hero["legal_action"]],
                "reward": float(rewards[-1] if isinstance(rewards, tuple) else rewards or 0.0),
            }
            return described(frame, [seen])
        if frame.gameover:
            return described(frame, [])
        if found[0] == 3:
            self.library.SendDefaultResp(address)
        elif found[0] == 4:
            self.library.SendNoneResp(address, game)
        elif found[0] == 5:
            self.library.SendResp(address, game, int(found[1]))
        else:
            raise RuntimeError(f"FeatureProcess answered {found[0]}: {found[1:]}")
        return None

    def act(self, address: str, actions: list[list[int]]) -> None:
        blank = tuple((0,) * size for size in HEADS_1V1)
        self.send(address, tuple((*blank, *((value,) for value in action), (0,)) for action in actions))

    def end(self, address: str) -> None:
        self.library.SendGameoverResp(address, self.games[address])


class Camps3v3(Camps):
    """Three heroes per camp. The library selects the frames for decisions itself."""

    def __init__(self) -> None:
        from hok.hok3v3.hero_config import interface_default_config
        from hok.hok3v3.lib import lib3v3
        from hok.hok3v3.reward import update_reward_config

        super().__init__(lib3v3.Interface(), lib3v3.ReturnCode)
        self.library.Init(interface_default_config)
        update_reward_config(self.library, None)
        self.masks = True

    def open(self, addresses: list[str], eval_mode: bool, masks: bool) -> None:
        self.masks = masks
        self.library.Reset(list(self.games.values()))
        self.library.SetEvalMode(eval_mode)
        self.listen(addresses)

    def receive(self, address: str) -> dict[str, Any] | None:
        state, game = self.library.RecvAIFrameState(address)
        self.games[address] = game
        if state != int(self.codes.PARSE_CONTINUE):
            self.library.SendEmptyResp(address)
            raise RuntimeError(f"RecvAIFrameState answered {state}")
        code, answer = self.library.FeatureProcess(state, game)
        data = self.library.GetGameData(game)
        heroes = [
            {"observation": [float(one) for one in hero.feature], "reward": float(hero.reward)}
            for hero in data.feature_process
        ]
        decides = code == int(self.codes.FEATURE_PROCESS_SUCCESS)
        if decides and self.masks and not data.frame_state.gameover:
            for hero, legal in zip(heroes, self.legal(game, len(heroes))):  # noqa: B905 - not in Python 3.9
                hero["legal"] = legal
        if decides or data.frame_state.gameover:
            return described(data.frame_state, heroes)
        if code != int(self.codes.FEATURE_PROCESS_SEND_CACHED):
            raise RuntimeError(f"FeatureProcess answered {code}")
        self.library.SendResp(address, game, answer)
        return None

    def legal(self, game: str, heroes: int) -> list[list[int]]:
        """What is legal, head after head. The library tells it with the result of an action, so it gets one that is
        never sent: every option with the same probability."""
        even = tuple((1.0 / size,) * size for size in HEADS_3V3)
        code, _ = self.library.ResultProcess((((*even, (0.0,)),) * heroes,), game)
        if code != int(self.codes.PROCESS_ACTION_SUCCESS):
            raise RuntimeError(f"ResultProcess answered {code}; the option masks=false does without it")
        results = self.library.GetGameData(game).result_process
        return [[int(flag) for head in hero.legal_action for flag in head] for hero in results]

    def act(self, address: str, actions: list[list[int]]) -> None:
        heroes = []
        for action in actions:
            rows = []
            for size, chosen in zip(HEADS_3V3, action):  # noqa: B905 - not in Python 3.9
                row = [FLOOR] * size
                row[chosen] = 1.0 - FLOOR * (size - 1)
                rows.append(tuple(row))
            heroes.append((*rows, (0.0,)))
        self.send(address, (tuple(heroes),))

    def end(self, address: str) -> None:
        self.library.SendEmptyResp(address)


def described(frame: Any, heroes: list[dict[str, Any]]) -> dict[str, Any]:
    fallen = [organ.camp for organ in frame.organ_list if organ.type == CRYSTAL and organ.hp <= 0]
    return {
        "frame": frame.frame_no,
        "over": bool(frame.gameover),
        "heroes": heroes,
        "lost_camp": int(fallen[0]) if fallen else None,
        "state": [camp_state(frame, camp) for camp in (1, 2)],
    }


def camp_state(frame: Any, camp: int) -> list[float]:
    organs = [organ for organ in frame.organ_list if organ.camp == camp]
    numbers = [float(sum(max(organ.hp, 0) for organ in organs if organ.type == kind)) for kind in (TOWER, CRYSTAL)]
    for hero in frame.hero_list:
        if hero.camp == camp:
            numbers += [float(one) for one in (hero.moneyCnt, hero.killCnt, hero.deadCnt, hero.totalHurtToHero)]
    return numbers


class Bridge:
    def __init__(self, camps: Any) -> None:
        self.camps = camps
        self.addresses: list[str] = []
        self.turn = 0
        """The camp that receives the next frame."""
        self.deciding = 0

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        if request["type"] == "open":
            self.addresses, self.turn = request["addresses"], 0
            self.camps.open(self.addresses, request["eval"], request["masks"])
            return {"open": True}
        if request["type"] == "act":
            self.camps.act(self.addresses[self.deciding], request["actions"])
            return {"acted": True}
        while True:
            camp, self.turn = self.turn, (self.turn + 1) % len(self.addresses)
            frame = self.camps.receive(self.addresses[camp])
            if frame is not None:
                self.deciding = camp
                if frame["over"]:
                    self.camps.end(self.addresses[camp])
                return {"camp": camp, **frame}


def main(mode: str) -> None:
    # Output of the library must not mix with the lines of JSON.
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    bridge = None
    for line in sys.stdin:
        try:
            if bridge is None:
                bridge = Bridge(Camps1v1() if mode == "1v1" else Camps3v3())
            answer = bridge.answer(json.loads(line))
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        out.write(json.dumps(answer) + "\n")
        out.flush()


if __name__ == "__main__":
    main(sys.argv[1])
