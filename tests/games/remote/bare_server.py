"""Nim on a game server that knows nothing of ludus: written from docs/game-server.md, with grpcio alone.

    python bare_server.py PORT     prints the port that it listens at, and serves until it is killed

A heap of 7 to 13 stones; two seats take 1 to 3 in turn, and whoever takes the last wins.
"""

import json
import random
import struct
import sys
from concurrent.futures import ThreadPoolExecutor

import grpc

SPEC = {
    "name": "nim",
    "kinds": [
        {
            "name": "player",
            "observation": {"heap": {"type": "Vector", "size": 1, "dtype": "float32"}},
            "critic": {},
            "action": {"take": {"type": "Choice", "num": 3, "when": None, "masked": True}},
            "rewards": [],
        }
    ],
    "seats": [0, 0],
    "teams": [0, 1],
    "max_length": 13,
    "zero_sum": True,
    "reward_is_score": True,
    "timed": False,
}


def varint(value):
    encoded = b""
    while value > 127:
        encoded += bytes([value & 127 | 128])
        value >>= 7
    return encoded + bytes([value])


def read_varint(frame, place):
    value = shift = 0
    while True:
        byte = frame[place]
        value |= (byte & 127) << shift
        place, shift = place + 1, shift + 7
        if byte < 128:
            return value, place


def frame(header, arrays=b""):
    text = json.dumps(header).encode()
    return b"\x0a" + varint(len(text)) + text + b"\x12" + varint(len(arrays)) + arrays


def unframe(content):
    parts, place = {1: b"{}", 2: b""}, 0
    while place < len(content):
        tag, place = read_varint(content, place)
        size, place = read_varint(content, place)
        parts[tag >> 3] = content[place : place + size]
        place += size
    return json.loads(parts[1]), parts[2]


def padded(arrays):
    body = b""
    for array in arrays:
        body += bytes(-len(body) % 8) + array
    return body


class Table:
    def __init__(self):
        self.reset(0)

    def reset(self, seed):
        self.heap = 7 + random.Random(seed).randrange(7)
        self.seat, self.reward, self.over = 0, [0.0, 0.0], False

    def step(self, take):
        if self.over:
            return
        self.heap -= take + 1
        if self.heap == 0:
            self.over = True
            self.reward = [1.0, -1.0] if self.seat == 0 else [-1.0, 1.0]
        else:
            self.seat = 1 - self.seat

    def to_act(self):
        return [not self.over and self.seat == seat for seat in (0, 1)]

    def legal(self):
        return [take < self.heap for take in range(3)]


def view(tables):
    def floats(rows):
        flat = [number for row in rows for number in row]
        return struct.pack(f"<{len(flat)}f", *flat)

    def bools(rows):
        return bytes(int(value) for row in rows for value in row)

    return padded(
        [
            floats([table.heap, table.heap] for table in tables),  # observation: [tables, seats, 1]
            bools(table.legal() * 2 for table in tables),  # legal: [tables, seats, 3]
            bools(table.to_act() for table in tables),
            floats(table.reward for table in tables),
            bools([table.over] for table in tables),
            bools([False] for table in tables),  # truncated
            floats(table.reward for table in tables),  # score
            struct.pack(f"<{len(tables)}q", *[0] * len(tables)),  # clock
            b"",  # further rewards: none
        ]
    )


def play(frames, context):
    tables = []
    for content in frames:
        header, arrays = unframe(content)
        message = header["message"]
        if message == "hello":
            if header["protocol"] != 1:
                context.abort(grpc.StatusCode.FAILED_PRECONDITION, "this server speaks protocol 1")
            tables = [Table() for _ in range(header["tables"])]
            welcome = {"protocol": 1, "server": "bare", "game": "nim", "spec": SPEC}
            yield frame({"message": "welcome", **welcome, "bots": ["random", "perfect"], "pictures": False})
        elif message == "reset":
            rows = header["rows"]
            numbers = struct.unpack(f"<{rows}q{rows}Q", arrays)
            for table, seed in zip(numbers[:rows], numbers[rows:], strict=True):
                tables[table].reset(seed)
            yield frame({"message": "view", "lost": {}}, view([tables[table] for table in numbers[:rows]]))
        elif message == "step":
            takes = struct.unpack(f"<{2 * len(tables)}i", arrays[: 8 * len(tables)])
            for index, table in enumerate(tables):
                table.step(takes[2 * index + table.seat])
            yield frame({"message": "view", "lost": {}}, view(tables))
        elif message == "act":
            rows = header["rows"]
            numbers = struct.unpack(f"<{2 * rows}qQ", arrays)
            takes = [_perfect(tables[table]) for table in numbers[:rows]]
            yield frame({"message": "actions"}, struct.pack(f"<{rows}i", *takes))


def _perfect(table):
    return max(0, min((table.heap % 4 or 1) - 1, table.heap - 1))


class Methods(grpc.GenericRpcHandler):
    def service(self, details):
        if details.method == "/ludus.GameServer/Play":
            return grpc.stream_stream_rpc_method_handler(play)
        return None


if __name__ == "__main__":
    server = grpc.server(ThreadPoolExecutor(16), handlers=[Methods()])
    print(server.add_insecure_port(f"127.0.0.1:{sys.argv[1]}"), flush=True)
    server.start()
    server.wait_for_termination()
