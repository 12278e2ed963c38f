"""Nim in an engine that knows nothing of ludus: written from docs/game-server.md, with the tables of bare_server.py.

    python bare_engine.py [FAULT]     LUDUS_ENGINE and LUDUS_ENGINE_KEY say where to connect

A fault happens while Ludus connects, or in answer to a message: `crash step`, `hang reset`, `error hello` ...
"""

import os
import socket
import struct
import sys
import time

from bare_server import frame, play, unframe

fault, when = [*sys.argv[1:], "", ""][:2]
asked = []


def exactly(connection, size):
    read = b""
    while len(read) < size:
        more = connection.recv(size - len(read))
        if not more:
            sys.exit(0)  # Ludus has ended the game
        read += more
    return read


def requests(connection):
    while True:
        (size,) = struct.unpack("<I", exactly(connection, 4))
        content = exactly(connection, size)
        asked.append(unframe(content)[0]["message"])
        if asked[-1] == when and fault != "twice":
            fail(connection)  # in place of the answer
        else:
            yield content


def fail(connection):
    print(f"about to {fault}", flush=True)
    if fault == "crash":
        os.abort()
    elif fault == "hang":
        time.sleep(600)
    elif fault == "slow":
        time.sleep(1)
    elif fault == "leave":
        connection.shutdown(socket.SHUT_RDWR)
        time.sleep(600)
    elif fault == "nonsense":
        send(connection, b"\xff\xff")
    elif fault == "long":
        connection.sendall(b"\xff\xff\xff\xff")
    elif fault == "error":
        send(connection, frame({"message": "error", "text": "the level cannot be loaded"}))
    elif fault == "wrong":
        send(connection, frame({"message": "actions"}))


def send(connection, content):
    connection.sendall(struct.pack("<I", len(content)) + content)


host, port = os.environ["LUDUS_ENGINE"].split(":")
if when == "start":
    fail(None)
connected = socket.create_connection((host, int(port)))
key = bytes.fromhex(os.environ["LUDUS_ENGINE_KEY"])
connected.sendall(bytes(16) if fault == "key" else key)
for answer in play(requests(connected), None):
    send(connected, answer)
    if asked[-1] == when and fault == "twice":
        time.sleep(0.2)  # so that it arrives alone
        send(connected, answer)
