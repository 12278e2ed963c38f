"""A stand-in for the program of StarCraft II: speaks its protocol, and shows PySC2's dummy pictures.

`install(folder)` makes what looks like an installed game. PySC2 finds it by SC2PATH and starts it as it would
the game; everything between the two is real. A file `plan.json` beside it says how games go, and what is
asked of it is written down in `asked.jsonl`.
"""

from __future__ import annotations

import base64
import hashlib
import importlib
import json
import os
import random
import socket
import struct
import sys
import time
from pathlib import Path
from typing import Any

BUILD = 75689
"""Of version 4.10.0."""
PROGRAM = f"Versions/Base{BUILD}/SC2_x64"


def install(folder: Path, **plan: Any) -> Path:
    program = folder / PROGRAM
    program.parent.mkdir(parents=True, exist_ok=True)
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{__file__}" "{folder}" "$@"\n')
    program.chmod(0o755)
    for name in ("mini_games/MoveToBeacon", "Melee/Simple64"):
        path = folder / "Maps" / f"{name}.SC2Map"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"a map")
    change_plan(folder, **plan)
    return folder


def change_plan(folder: Path, **plan: Any) -> None:
    """`ends_at`, `result` of player 1; `crash_at`, `hang_at`, `refuse`: what goes wrong, and when; `strange`:
    how many actions that make no sense a replay has; `units`: raw units, each from a game step `since` on; `effects`;
    `upgrades`; `abilities` of units by type."""
    (folder / "plan.json").write_text(json.dumps(plan))


def asked(folder: Path, kind: str | None = None) -> list[dict[str, Any]]:
    file = folder / "asked.jsonl"
    lines = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    return [line for line in lines if kind in (None, line["kind"])]


class StandIn:
    def __init__(self, folder: Path) -> None:
        shuffle, random.shuffle = random.shuffle, lambda items, draw=None: None  # see pysc2_library
        self.messages = importlib.import_module("s2clientprotocol.sc2api_pb2")
        self.dummy = importlib.import_module("pysc2.tests.dummy_observation")
        random.shuffle = shuffle
        self.folder = folder
        self.plan = json.loads((folder / "plan.json").read_text())
        self.status = self.messages.launched
        self.loop = 0
        self.player = 2
        self.options: Any = None
        self.setup: list[Any] = []

    def note(self, kind: str, **facts: Any) -> None:
        line = json.dumps({"kind": kind, "pid": os.getpid(), "loop": self.loop, **facts})
        with (self.folder / "asked.jsonl").open("a") as file:
            file.write(line + "\n")

    def answer(self, request: Any) -> Any:
        response = self.messages.Response(id=request.id)
        kind = request.WhichOneof("request")
        getattr(self, f"on_{kind}")(getattr(request, kind), getattr(response, kind))
        getattr(response, kind).SetInParent()
        response.status = self.status
        return response

    def on_ping(self, asked: Any, answer: Any) -> None:
        answer.game_version, answer.base_build = "4.10.0", BUILD

    def on_save_map(self, asked: Any, answer: Any) -> None:
        pass

    def on_create_game(self, asked: Any, answer: Any) -> None:
        self.player, self.setup = 1, list(asked.player_setup)
        self.status = self.messages.init_game
        difficulties = [
            self.messages.Difficulty.Name(one.difficulty) for one in self.setup if one.HasField("difficulty")
        ]
        self.note("create_game", seed=asked.random_seed, players=len(self.setup), computers=difficulties)

    def on_join_game(self, asked: Any, answer: Any) -> None:
        self.options, self.loop = asked.options, 0
        answer.player_id = self.player
        self.status = self.messages.in_game

    def on_leave_game(self, asked: Any, answer: Any) -> None:
        self.status = self.messages.launched

    def on_restart_game(self, asked: Any, answer: Any) -> None:
        self.note("restart_game")
        self.loop, self.status = 0, self.messages.in_game

    def on_game_info(self, asked: Any, answer: Any) -> None:
        answer.options.CopyFrom(self.options)
        answer.start_raw.map_size.x = answer.start_raw.map_size.y = 64
        for number in range(1, max(2, self.player) + 1):
            answer.player_info.add(player_id=number, type=self.messages.Participant, race_requested=1)

    def on_action(self, asked: Any, answer: Any) -> None:
        for action in asked.actions:
            if action.ListFields():
                self.note("action", text=str(action))
        answer.result.extend([1] * len(asked.actions))

    def on_step(self, asked: Any, answer: Any) -> None:
        self.loop += asked.count
        if self.loop >= self.plan.get("crash_at", 1 << 30):
            print("assertion failed: too many zerglings", flush=True)
            os._exit(3)
        if self.loop >= self.plan.get("hang_at", 1 << 30):
            time.sleep(3600)

    def on_observation(self, asked: Any, answer: Any) -> None:
        layer = self.options.feature_layer
        shapes = {}
        if self.options.HasField("feature_layer"):
            shapes["feature_screen"] = (0, layer.resolution.y, layer.resolution.x)
            shapes["feature_minimap"] = (0, layer.minimap_resolution.y, layer.minimap_resolution.x)
        builder = self.dummy.Builder(shapes).game_loop(self.loop).player_common(player_id=self.player)
        answer.CopyFrom(builder.score(self.loop // 16).build())
        raw = answer.observation.raw_data
        for facts in self.plan.get("units", ()):
            if facts.get("since", 0) <= self.loop:
                unit = raw.units.add(**{name: facts[name] for name in ("tag", "unit_type", "alliance")})
                unit.pos.x, unit.pos.y = facts["at"]
                unit.attack_upgrade_level = facts.get("attack", 0)
                for ability in facts.get("orders", ()):
                    unit.orders.add(ability_id=ability)
                unit.buff_ids.extend(facts.get("buffs", ()))
        for facts in self.plan.get("effects", ()):
            effect = raw.effects.add(effect_id=facts["effect_id"], alliance=facts["alliance"], radius=2.0)
            effect.pos.add(x=facts["at"][0], y=facts["at"][1])
        raw.player.upgrade_ids.extend(self.plan.get("upgrades", ()))
        for action in self.actions_at.get(self.loop, ()):
            answer.actions.add().CopyFrom(action)
        if self.loop >= self.plan.get("ends_at", 1 << 30):
            self.status = self.messages.ended
            won = self.plan.get("result", 1) == self.player
            for number in (1, 2):
                result = self.messages.Victory if won == (number == self.player) else self.messages.Defeat
                answer.player_result.add(player_id=number, result=result)

    def on_query(self, asked: Any, answer: Any) -> None:
        types = {facts["tag"]: str(facts["unit_type"]) for facts in self.plan.get("units", ())}
        self.note("query", tags=[one.unit_tag for one in asked.abilities])
        for one in asked.abilities:
            found = answer.abilities.add(unit_tag=one.unit_tag)
            for ability in self.plan.get("abilities", {}).get(types[one.unit_tag], ()):
                found.abilities.add(ability_id=ability)

    actions_at: dict[int, list[Any]] = {}  # noqa: RUF012

    def on_replay_info(self, asked: Any, answer: Any) -> None:
        if self.plan.get("refuse"):
            answer.error = self.messages.ResponseReplayInfo.ParsingError

    def on_start_replay(self, asked: Any, answer: Any) -> None:
        self.options, self.player, self.loop = asked.options, asked.observed_player_id, 0
        self.status = self.messages.in_replay
        self.note("start_replay", player=self.player)
        stop = self.messages.Action()
        stop.action_feature_layer.unit_command.ability_id = 3674  # Attack
        stop.action_feature_layer.unit_command.target_screen_coord.x = 5
        stop.action_feature_layer.unit_command.target_screen_coord.y = 7
        strange = self.messages.Action()
        strange.action_ui.toggle_autocast.ability_id = 3674  # no spell
        self.actions_at = {self.plan.get("acts_at", 33): [strange] * self.plan.get("strange", 0) + [stop]}


def serve(folder: Path, port: int) -> None:
    plan = json.loads((folder / "plan.json").read_text())
    if plan.get("refuse_to_start"):
        sys.exit("cannot open display")
    stand_in = StandIn(folder)
    stand_in.note("start", parent=os.getppid())
    with socket.create_server(("127.0.0.1", port)) as server:
        connection, _ = server.accept()
        with connection, connection.makefile("rwb") as stream:
            shake_hands(stream)
            while True:
                request = stand_in.messages.Request.FromString(read_frame(stream))
                if request.WhichOneof("request") == "quit":
                    return
                write_frame(stream, stand_in.answer(request).SerializeToString())


def shake_hands(stream: Any) -> None:
    key = b""
    while line := stream.readline().strip():
        if line.lower().startswith(b"sec-websocket-key:"):
            key = line.split(b":", 1)[1].strip()
    proof = base64.b64encode(hashlib.sha1(key + b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11").digest())
    stream.write(
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        b"Sec-WebSocket-Accept: " + proof + b"\r\n\r\n"
    )
    stream.flush()


def read_frame(stream: Any) -> bytes:
    head = stream.read(2)
    if len(head) < 2 or head[0] & 0x0F == 8:
        sys.exit(0)
    length = head[1] & 0x7F
    if length >= 126:
        length = int.from_bytes(stream.read(2 if length == 126 else 8), "big")
    mask = stream.read(4)
    data = stream.read(length)
    repeated = (mask * (length // 4 + 1))[:length]
    return (int.from_bytes(data, "big") ^ int.from_bytes(repeated, "big")).to_bytes(length, "big")


def write_frame(stream: Any, data: bytes) -> None:
    if len(data) < 126:
        head = struct.pack(">BB", 0x82, len(data))
    elif len(data) < 65536:
        head = struct.pack(">BBH", 0x82, 126, len(data))
    else:
        head = struct.pack(">BBQ", 0x82, 127, len(data))
    stream.write(head + data)
    stream.flush()


if __name__ == "__main__":
    serve(Path(sys.argv[1]), int(sys.argv[sys.argv.index("-port") + 1]))
