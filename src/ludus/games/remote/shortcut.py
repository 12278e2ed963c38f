"""Shortcuts: unix sockets between a game server and clients of the same user on the same machine.

A stream of play begins with gRPC. If the client then reaches the socket that the server has named in its welcome, the
frames of this stream go through the socket, without the threads of gRPC. The stream stays open and says how and why it
ends. Clients on other machines cannot reach the socket and keep using gRPC.
"""

from __future__ import annotations

import os
import secrets
import select
import socket
import struct
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from ludus.games.remote.messages import Frame, Shortcut, TooLongError
from ludus.system.arrays import WireError

SUPPORTED = sys.platform == "linux"  # only Linux has socket names that are no files, and tells the user of a peer
_PREFIX = "ludus-tables-"
_KEY_BYTES = 16
_ADMITTED = b"+"
_GREETING_S = 2.0  # how long either side waits for the first message
_PAUSE_S = 0.1
_LENGTH = struct.Struct("<I")
_PIECE = 2**16
_CREDENTIALS = struct.Struct("3i")


class FrameSocket:
    """Frames through a socket, each with its length in front."""

    def __init__(self, connected: socket.socket, most_bytes: int) -> None:
        self._socket = connected
        self._most = most_bytes
        self._ending = threading.Lock()
        self._incoming = select.poll()
        self._incoming.register(connected, select.POLLIN)

    def send(self, frame: bytes) -> None:
        if len(frame) > self._most:
            raise TooLongError(f"sent message larger than max ({len(frame)} vs. {self._most})")
        length = _LENGTH.pack(len(frame))
        if len(frame) < _PIECE:
            self._socket.sendall(length + frame)  # a copy takes less time than another call
        else:
            self._socket.sendall(length)
            self._socket.sendall(frame)

    def receive(self) -> Frame | None:
        """The next frame; None at the end."""
        try:
            return self._receive()
        except ConnectionError:
            return None

    def _receive(self) -> Frame | None:
        told = self._socket.recv(_PIECE)
        while len(told) < _LENGTH.size:
            more = self._socket.recv(_PIECE)
            if not more:
                return None
            told += more
        (size,) = _LENGTH.unpack_from(told)
        if size > self._most:
            raise TooLongError(f"received message larger than max ({size} vs. {self._most})")
        begun = len(told) - _LENGTH.size
        if begun == size:
            return told[_LENGTH.size :]
        if begun > size:
            raise WireError("a frame before the last one was answered")
        frame = bytearray(size)
        frame[:begun] = told[_LENGTH.size :]
        rest = memoryview(frame)[begun:]
        while rest:
            taken = self._socket.recv_into(rest)
            if not taken:
                return None
            rest = rest[taken:]
        return frame

    def require_silence(self) -> None:
        """Raise `WireError` if there is anything to read before the next frame is sent: a second answer to the last one
        would be taken for the answer to the next."""
        if self._incoming.poll(0) and self._socket.recv(1, socket.MSG_PEEK):
            raise WireError("it answered twice")

    def hang_up(self) -> None:
        """Ends `receive`; may be called from any thread."""
        with self._ending, suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        with self._ending:
            self._socket.close()


class Shortcuts:
    """The server's end: waits for the clients that a shortcut was offered to."""

    def __init__(self, most_bytes: int) -> None:
        self._most = most_bytes
        self._name = _PREFIX + secrets.token_hex(8)
        self._connections: dict[str, FrameSocket | None] = {}
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind("\0" + self._name)
        self._listener.listen()
        threading.Thread(target=self._admit, name="shortcuts", daemon=True).start()

    @contextmanager
    def offer(self) -> Iterator[Shortcut]:
        """Offer a shortcut for one stream, until the stream ends."""
        offered = Shortcut(name=self._name, key=secrets.token_hex(_KEY_BYTES))
        with self._lock:
            self._connections[offered.key] = None
        try:
            yield offered
        finally:
            with self._lock:
                connection = self._connections.pop(offered.key)
            if connection is not None:
                connection.hang_up()  # also where a process that the game has forked holds the socket
                connection.close()

    def reached(self, offered: Shortcut) -> FrameSocket:
        """The socket of the client. Raises `WireError` if the client has not reached it."""
        with self._lock:
            connection = self._connections[offered.key]
        if connection is None:
            raise WireError("switch before the shortcut was reached")
        return connection

    def close(self) -> None:
        self._closed.set()
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes the thread that waits there
        self._listener.close()

    def _admit(self) -> None:
        while not self._closed.is_set():
            try:
                client, _ = self._listener.accept()
            except OSError:  # the end, or too many open files
                self._closed.wait(_PAUSE_S)
                continue
            if _is_ours(client):  # one that says nothing must not keep the others waiting
                threading.Thread(target=self._greet, args=(client,), name="greeting", daemon=True).start()
            else:
                client.close()

    def _greet(self, client: socket.socket) -> None:
        try:
            client.settimeout(_GREETING_S)
            key = client.recv(_KEY_BYTES).hex()
            client.settimeout(None)
            with self._lock:
                if key not in self._connections or self._connections[key] is not None:
                    raise PermissionError("this shortcut was not offered, or is taken")
                self._connections[key] = FrameSocket(client, self._most)
            client.sendall(_ADMITTED)
        except OSError:
            client.close()


def listen(most_bytes: int) -> Shortcuts | None:
    """The server's end, where shortcuts are supported."""
    try:
        return Shortcuts(most_bytes) if SUPPORTED else None
    except OSError:
        return None


def reach(offered: Shortcut | None, most_bytes: int) -> FrameSocket | None:
    """The client's end; None if the shortcut cannot be reached."""
    if offered is None or not SUPPORTED or not offered.name.startswith(_PREFIX):
        return None
    server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        server.settimeout(_GREETING_S)
        server.connect("\0" + offered.name)
        if _is_ours(server):
            server.sendall(bytes.fromhex(offered.key)[:_KEY_BYTES])
            if server.recv(1) == _ADMITTED:
                server.settimeout(None)
                return FrameSocket(server, most_bytes)
    except (OSError, ValueError):
        pass
    server.close()
    return None


def _is_ours(connected: socket.socket) -> bool:
    """Whether the other end is a process of the same user."""
    told = connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    _, user, _ = _CREDENTIALS.unpack(told)
    return bool(user == os.getuid())
