"""A stand-in for the gamecore server: its HTTP interface, and a simulator process for every game.

In its battles each camp has a crystal; a hero that attacks (button 3) takes a point from the other's. As a
program it is the simulator.
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from stand_in_hok import HEADS_1V1, receive, send

ATTACK = 3


class StandInServer:
    def __init__(self, *, crystal: int = 4, features: int = 0, **plan: int) -> None:
        """`crash_at`: the frame in which simulators end; `refuse`: every game is refused."""
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
            self._games[name] = subprocess.Popen([sys.executable, __file__, json.dumps(config)])
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


def simulate(config: dict[str, Any]) -> None:
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
    features = config["features"] or (725 if config["game_mode"] == "1v1" else 4586)
    crystals, latest, frame = [config["crystal"]] * 2, [[0.0] * 6] * (2 * size), 0
    while True:
        frame += 1
        if frame == config.get("crash_at"):
            sys.exit(3)
        over = min(crystals) <= 0 or frame >= config["max_frame_num"]
        hits = [0, 0]
        for camp, side in enumerate(sides):
            if side is None:
                hits[1 - camp] += frame % 12 == 0  # the server's own player
                continue
            shown = []
            for place in range(size):
                echo = [frame / 100, *(crystals[one] / 10 for one in (camp, 1 - camp)), *latest[camp * size + place]]
                reward = (crystals[camp] - crystals[1 - camp]) / 100
                shown.append({"observation": (echo + [0.5] * features)[:features], "legal": legal(), "reward": reward})
            organs = [{"type": 24, "camp": one + 1, "hp": crystals[one]} for one in range(2)]
            send(
                side,
                {
                    "sgame_id": f"{config['runtime_id']}-{camp}-{frame}",
                    "frame_no": frame,
                    "gameover": over,
                    "heroes": shown,
                    "organ_list": [*organs, {"type": 21, "camp": 1, "hp": 0}],
                },
            )
            for place, action in enumerate(receive(side).get("actions") or []):
                latest[camp * size + place] = [float(one) for one in (*action, 0)[:6]]
                hits[1 - camp] += action[0] == ATTACK
        if over:
            return
        for camp, count in enumerate(hits):
            crystals[camp] -= count


def legal() -> list[int]:
    """Moving, attacking and the first skill, and all that goes with them; nothing else has a target."""
    flags = [1 if button in (0, 2, ATTACK, 4) else 0 for button in range(HEADS_1V1[0])]
    flags += [1] * 64
    for button in range(HEADS_1V1[0]):
        flags += [1 if button in (ATTACK, 4) and target < 3 else 0 for target in range(HEADS_1V1[5])]
    return flags


if __name__ == "__main__":
    try:
        simulate(json.loads(sys.argv[1]))
    except (EOFError, ConnectionError):
        sys.exit(1)
