"""A stand-in for the gamecore server: its HTTP interface, and a simulator process for every game.

In its battles each camp has a crystal; a hero that attacks (button 3) takes a point from the other's. With `seed` it
plays the battles of Ludus' own stand-in. As a program it is the simulator.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from stand_in_hok import HEADS_1V1, HEADS_3V3, receive, send

ATTACK = 3


class StandInServer:
    def __init__(self, *, crystal: int = 4, features: int = 0, **plan: int) -> None:
        """`crash_at`: the frame in which simulators end; `refuse`: every game is refused; `seed`: of real battles."""
        self.asked: list[tuple[str, Any]] = []
        self.tasks: dict[str, list[Any]] = {}
        self._plan = {"crystal": crystal, "features": features, **plan}
        self._games: dict[str, subprocess.Popen[bytes]] = {}
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                content = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                status, answer = outer._answer(self.path, content)
                data = json.dumps(answer).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, format: str, *words: Any) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(10)
        for name in self._games:
            self._end(name)

    def _end(self, name: str) -> None:
        if name in self._games:
            self._games[name].kill()
            self._games[name].wait()

    def running(self) -> list[str]:
        return [name for name, game in self._games.items() if game.poll() is None]

    def _answer(self, path: str, content: Any) -> tuple[int, Any]:
        call = path.removeprefix("/v2/")
        self.asked.append((call, content))
        name = content.get("runtime_id", "")
        if call == "newGame":
            if self._plan.get("refuse"):
                return 500, {"error": "no licence"}
            config = {**content["simulator_config"], **self._plan, "runtime_id": name}
            self._end(name)
            paths = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
            self._games[name] = subprocess.Popen([sys.executable, __file__, json.dumps(config)], env=paths)
            task = content["simulator_config"].get("task_id")
            if task:
                self.tasks.setdefault(task, []).append({"runtime_id": name})
            return 200, {"code": 0}
        if call == "stopGame":
            self._end(name)
        if call == "exists":
            return 200, {"exists": name in self.running()}
        if call == "taskList":
            return 200, {"data": {"task_ids": list(self.tasks)}}
        if call == "taskDetail":
            return 200, {"data": {"game_states": self.tasks.get(content["task_id"])}}
        if call == "taskRemove":
            self.tasks.pop(content["task_id"])
        if call == "taskClear":
            self.tasks.clear()
        return (200, {}) if call in ("stopGame", "taskRemove", "taskClear") else (404, {"error": call})


def connected(config: dict[str, Any]) -> list[socket.socket | None]:
    """The connection to the program of each camp; None: the server's own player has it."""
    heroes = config["hero_conf"]
    size = len(heroes) // 2
    sides: list[socket.socket | None] = []
    for camp in range(2):
        infos = [hero["request_info"] for hero in heroes[camp * size : (camp + 1) * size]]
        if not infos[0]:
            sides.append(None)
            continue
        assert infos[0]["timeout"] == 30_000
        assert all(info == {"request_id": camp * size} for info in infos[1:])
        side = socket.create_connection((infos[0]["ip"], infos[0]["port"]), 20)
        side.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sides.append(side)
    return sides


def simulate(config: dict[str, Any]) -> None:
    sides, size = connected(config), len(config["hero_conf"]) // 2
    features = config["features"] or (725 if config["game_mode"] == "1v1" else 4586)
    crystals, latest, frame = [config["crystal"]] * 2, [[0.0] * 6] * (2 * size), 0
    while True:
        frame += 1
        if frame == config.get("crash_at"):
            sys.exit(3)
        over = min(crystals) <= 0 or frame >= config["max_frame_num"]
        hits = [0, 0]
        organs = [{"type": 24, "camp": one + 1, "hp": crystals[one]} for one in range(2)]
        known = {"moneyCnt": 10 * frame, "killCnt": 0, "deadCnt": 0, "totalHurtToHero": 0}
        for camp, side in enumerate(sides):
            if side is None:
                hits[1 - camp] += frame % 12 == 0  # the server's own player
                continue
            shown = []
            for place in range(size):
                echo = [frame / 100, *(crystals[one] / 10 for one in (camp, 1 - camp)), *latest[camp * size + place]]
                reward = (crystals[camp] - crystals[1 - camp]) / 100
                flags = legal() if config["game_mode"] == "1v1" else [1] * sum(HEADS_3V3)
                shown.append({"observation": (echo + [0.5] * features)[:features], "legal": flags, "reward": reward})
            state = {
                "sgame_id": f"{config['runtime_id']}-{camp}-{frame}",
                "frame_no": frame,
                "gameover": over,
                "heroes": shown,
                "organ_list": [*organs, {"type": 21, "camp": 1, "hp": 0}],
                "hero_list": [{"camp": 1 + place // size, **known} for place in range(2 * size)],
            }
            send(side, state)
            for place, action in enumerate(receive(side).get("actions") or []):
                latest[camp * size + place] = [float(one) for one in (*action, 0)[:6]]
                hits[1 - camp] += action[0] == ATTACK
        if over:
            return
        for camp, count in enumerate(hits):
            crystals[camp] -= count


def simulate_battle(config: dict[str, Any]) -> None:
    """A battle of Ludus' own stand-in, by frames: a tick is every third one, from the third on."""
    import numpy as np

    from ludus.games.adapters import gamecore_battle as rules, gamecore_stand_in as stand_in
    from ludus.games.adapters.gamecore_client import Hero

    sides, size = connected(config), len(config["hero_conf"]) // 2
    heroes = [Hero(hero_id=hero["hero_id"], skill_id=hero.get("skill_id")) for hero in config["hero_conf"]]
    arena = stand_in.arena_of(config["game_mode"], (heroes[:size], heroes[size:]))
    battle = arena.allocate(1)
    arena.start(battle, np.array([0]), np.array([config["seed"]], np.uint64))
    rewards = np.zeros((1, 2, size), np.float32)
    frame = 2
    while True:
        frame += 1
        over = bool(arena.over(battle)[0]) or frame - 3 >= config["max_frame_num"]
        seen, flags = stand_in.features(arena, battle), stand_in.flags(arena, battle)
        own = arena.common_ai(battle)
        orders = stand_in.orders(arena, battle, np.zeros((1, 2, size, 6 if size == 1 else 5), np.int64))
        for camp, side in enumerate(sides):
            if side is None:
                for name in ("button", "way", "target"):
                    getattr(orders, name)[:, camp] = getattr(own, name)[:, camp]
                continue
            shown = [
                {
                    "observation": seen[0, camp, hero].tolist(),
                    "legal": flags[0, camp, hero].astype(int).tolist(),
                    "reward": float(rewards[0, camp, hero]),
                }
                for hero in range(size)
            ]
            state = {
                "sgame_id": f"{config['runtime_id']}-{camp}-{frame}",
                "frame_no": frame,
                "gameover": over,
                "heroes": shown,
                "organ_list": [
                    {"type": kind, "camp": one + 1, "hp": float(battle.hp[0, one, slot])}
                    for one in range(2)
                    for kind, slot in ((21, rules.TOWER), (24, rules.CRYSTAL))
                ],
                "hero_list": [
                    {
                        "camp": one + 1,
                        "moneyCnt": float(battle.gold[0, one, hero]),
                        "killCnt": float(battle.kills[0, one, hero]),
                        "deadCnt": float(battle.deaths[0, one, hero]),
                        "totalHurtToHero": float(battle.hurt[0, one, hero]),
                    }
                    for one in range(2)
                    for hero in range(size)
                ],
            }
            send(side, state)
            given = receive(side).get("actions")
            if given:
                rows = np.zeros((1, 2, size, len(given[0])), np.int64)
                rows[0, camp] = given
                chosen = stand_in.orders(arena, battle, rows)
                for name in ("button", "way", "target"):
                    getattr(orders, name)[:, camp] = getattr(chosen, name)[:, camp]
        if over:
            return
        if frame % 3 == 0:
            rewards = arena.play(battle, orders)


def legal() -> list[int]:
    """Moving, attacking and the first skill, and all that goes with them; nothing else has a target."""
    flags = [1 if button in (0, 2, ATTACK, 4) else 0 for button in range(HEADS_1V1[0])]
    flags += [1] * 64
    for button in range(HEADS_1V1[0]):
        flags += [1 if button in (ATTACK, 4) and target < 3 else 0 for target in range(HEADS_1V1[5])]
    return flags


if __name__ == "__main__":
    try:
        plan = json.loads(sys.argv[1])
        (simulate_battle if "seed" in plan else simulate)(plan)
    except (EOFError, ConnectionError):
        sys.exit(1)
