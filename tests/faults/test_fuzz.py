"""Everything that reads from outside, given damaged and hostile bytes: valid examples, changed at random.

A reader may return a value or raise the errors that it promises: no other exception, no hang, no large allocation. Some
hundred cases each take about a second; `pytest tests/faults/test_fuzz.py --fuzz-seconds=60` takes a minute each. Seeds
are fixed for a number of cases and drawn for a time; a failure names its seed and prints the bytes. Bytes that once
crashed a reader are kept in `KEPT`.
"""

from __future__ import annotations

import json
import random
import re
import resource
import signal
import socket
import sqlite3
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
import pytest
import safetensors.numpy
import torch
from planted_runs import plant
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

import ludus as front_door
from ludus.data.replay import DatasetError, Packed, Replay, ReplayError, SeatPlayer, decode_replay, encode_replay
from ludus.data.specs import spec_from_json, spec_to_json
from ludus.evaluation.game_recorder import game_line
from ludus.games.bots import Rows
from ludus.games.builtin.kuhn import Kuhn
from ludus.games.builtin.skirmish import Skirmish
from ludus.games.outside_bots import _actions
from ludus.games.program import Program, ProgramLost
from ludus.games.remote import messages
from ludus.games.seat_rows import GameError
from ludus.observe.recorded_games import GameFolder, GameMove, GamePlayer, GameRecord, GameStep, encode_game
from ludus.observe.study_results import read_result
from ludus.observe.web.page_server import PageAccess, PageServer
from ludus.replays.dataset import INDEX, map_column, read_index
from ludus.replays.dataset_writer import write_dataset
from ludus.runtime.imported_models import BadCheckpoint, read_foreign
from ludus.services import wire
from ludus.services.endpoints import BadFrame
from ludus.store.checkpoints import BadTensorFile, decode_tensors, encode_tensors
from ludus.store.files import StoreError, seal
from ludus.store.ledger import Ledger, LedgerError
from ludus.store.run_folder import RunFolder
from ludus.system.arrays import WireError

CASES = 300
HANG_S = 20
MOST_MB = 400
"""That a target may add to the memory of this process."""
SPEC = Kuhn().spec
EDGES = (
    *(b"\0", b"\xff", b"\x80", b"\x7f\xff\xff\xff", b"\xff" * 8, b"[" * 2000, b"{", b'"', b"\\", b"\\ud800", b"\n"),
    *(b"1e999", b"-1", b"null", b"[]", b"18446744073709551616", b"NaN", b"PK\x03\x04", b"a" * 500),
)


def changed(content: bytes, chance: random.Random) -> bytes:
    """The content with a few bytes flipped, removed, repeated or replaced by awkward ones."""
    new = bytearray(content)
    for _ in range(chance.choice((1, 1, 1, 2, 3, 8))):
        place, size = chance.randrange(len(new) + 1), chance.choice((1, 1, 2, 4, 8, 40))
        match chance.randrange(6):
            case 0 if new:
                new[min(place, len(new) - 1)] ^= 1 << chance.randrange(8)
            case 1:
                del new[place : place + size]
            case 2:
                new[place:place] = chance.choice(EDGES)
            case 3:
                new[place : place + size] = chance.choice(EDGES)
            case 4:
                new[place:place] = new[place : place + size * 4]
            case _:
                del new[place:]
    return bytes(new)


@dataclass(frozen=True)
class Target:
    """A reader, valid examples for it, and the errors that it promises."""

    examples: tuple[bytes, ...]
    read: Callable[[bytes], object]
    promised: tuple[type[Exception], ...]
    share: float = 1.0
    """Of the usual number of cases, for a slow reader."""


@contextmanager
def time_limit(told: str) -> Iterator[None]:
    def late(*_: object) -> None:
        raise AssertionError(f"hangs: {told}")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(HANG_S)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def fuzz(target: Target, seconds: float) -> int:
    """The number of cases that were tried."""
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for example in target.examples:
        target.read(example)
    until, tried = time.monotonic() + seconds, 0
    first = random.SystemRandom().randrange(2**32) if seconds else 0
    while time.monotonic() < until if seconds else tried < CASES * target.share:
        seed = first + tried
        chance = random.Random(seed)
        content = changed(chance.choice(target.examples), chance)
        tried += 1
        try:
            with time_limit(f"seed {seed}: {content[:500]!r}"):
                target.read(content)
        except target.promised:
            continue
        except Exception as error:
            raise AssertionError(f"seed {seed}: {type(error).__name__}: {error}: {content[:2000]!r}") from error
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory) / 1024
    assert grown < MOST_MB, f"took {grown:.0f} MB"
    return tried


# --- files ---


def a_replay() -> bytes:
    return encode_replay(
        Replay(
            game="skirmish", options={"mode": "1v1"}, version="3", map="1v1", seed=1,
            seats=(SeatPlayer("rush"), SeatPlayer("main", "main:0:12")), teams=(0, 1), score=(1.0, -1.0),
            truncated=False, num_steps=3, seen=7, step=Packed.of(np.array([0, 0, 2])),
            seat=Packed.of(np.array([0, 1, 1])), action=({"order": Packed.of(np.array([0, 300, 2]))},),
        )
    )  # fmt: skip


def read_replay(content: bytes) -> None:
    replay = decode_replay(content)
    for packed in (replay.step, replay.seat, *(one for heads in replay.action for one in heads.values())):
        packed.array()


def of_tensors(folder: Path) -> Target:
    arrays = {"a/weight": np.ones((2, 3), np.float32), "b": np.zeros(4, np.int64), "empty": np.zeros((0, 3))}
    return Target((encode_tensors(arrays), encode_tensors(arrays, {"facts": "{}"})), decode_tensors, (BadTensorFile,))


def of_foreign(folder: Path) -> Target:
    path = folder / "file.pt"
    torch.save({"model": {"weight": torch.ones(2, 3)}, "step": 3}, path)
    zipped = path.read_bytes()
    torch.save({"model": {"weight": torch.ones(2, 3)}}, path, _use_new_zipfile_serialization=False)
    examples = zipped, path.read_bytes(), safetensors.numpy.save({"weight": np.ones((2, 3), np.float32)})

    def read(content: bytes) -> None:
        path.write_bytes(content)
        foreign = read_foreign(path)
        foreign.arrays(foreign.find_place())

    return Target(examples, read, (BadCheckpoint,))


def of_ledger_file(folder: Path) -> Target:
    run = plant(folder / "run", matches=6)
    with closing(sqlite3.connect(run.ledger_path)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        connection.execute("PRAGMA journal_mode=DELETE")
    example, path = run.ledger_path.read_bytes(), folder / "ledger.db"

    def read(content: bytes) -> None:
        for beside in folder.glob("ledger.db*"):
            beside.unlink()
        path.write_bytes(content)
        with closing(Ledger(path, read_only=True)) as ledger:
            for _ in ledger.replay():
                pass
            ledger.open_matches(), list(ledger.settings())

    return Target((example,), read, (LedgerError,), share=0.5)


def of_ledger_rows(folder: Path) -> Target:
    """The decoder of rows, whatever protects them on the disk."""
    with closing(Ledger(folder / "ledger.db")) as ledger, closing(plant(folder / "run", matches=4).ledger()) as planted:
        examples = tuple(ledger._encode(event) for _, event in planted.replay())
    return Target(examples, lambda content: ledger._decode(1, content), (LedgerError,))


def of_run_file(folder: Path) -> Target:
    run = plant(folder / "run", matches=2, bots={"one": "program:true"})
    file = run.path / "run.json"

    def read(content: bytes) -> None:
        file.write_bytes(content)
        opened = RunFolder.open(run.path)
        opened.require_own_code()

    return Target((file.read_bytes(),), read, (StoreError,), share=0.5)


def of_dataset(folder: Path) -> Target:
    sys.path.append(str(Path(__file__).parents[1] / "store"))  # where the tests of datasets have theirs
    from made_episodes import KIND, STRATEGY, replays

    with write_dataset(
        folder / "data", game="made", kind=KIND, strategy=STRATEGY, settings={"outcome": None}
    ) as writer:
        for one in replays(4):
            writer.add(one)
    file = folder / "data" / INDEX

    def read(content: bytes) -> None:
        file.write_bytes(content)
        for column in read_index(folder / "data").columns:
            map_column(folder / "data", column)

    return Target((file.read_bytes(),), read, (DatasetError,), share=0.5)


def of_exported_agents(folder: Path) -> Target:
    """The network and the manifest, and one decision of a file that loads."""
    pytest.importorskip("onnx", reason="pip install -e '.[export]' adds onnx")
    pytest.importorskip("onnxruntime", reason="pip install -e '.[export]' adds onnxruntime")
    settings = {"budget": 1, "model.hidden": (4,), "evaluation.opponents": (), "evaluation.past": 0}
    run = front_door.train("kuhn", run=folder / "run", runtime="serial", quiet=True, **settings)
    file = folder / "agent.onnx"
    run.load_agent("main").export(file)

    def read(content: bytes) -> None:
        file.write_bytes(content)
        agent = front_door.load_agent(file)
        seen = agent.spec.kinds[0].observation
        agent.act({name: np.zeros(seen.arrays[name].shape) for name in seen.parts})

    return Target((file.read_bytes(),), read, (GameError,), share=0.5)


def of_recorded_games(folder: Path) -> Target:
    """A game and the list of games."""
    games = GameFolder(folder)
    record = GameRecord(
        game="kuhn", players=[GamePlayer(name="main.1"), GamePlayer(name="random")], teams=[0, 1], score=["1", "-1"],
        points=[1.0, -1.0], outcome="main.1 wins", decisions=1, every=1, score_range=(-1.0, 1.0), real_time=False,
        steps=[GameStep(view={"cards": [0, None]}, done=[GameMove(seat=0, name="bet", options=[("bet", 1.0)])])],
    )  # fmt: skip
    line = game_line(record, "000001", ["main.1", "random"], 0, 100, 7, 50)
    games.add(games.open(), line, encode_game(record), most=5)

    def read(content: bytes) -> None:
        (games.path / "index.json").write_bytes(content)
        games.open()
        (games.path / "000002.json").write_bytes(content)
        for find in (games.listed, lambda: games.read("000002")):
            with suppress(StoreError):
                find()

    return Target((encode_game(record), (games.path / "index.json").read_bytes()), read, ())


def of_sealed(folder: Path) -> Target:
    """Results of a study, and lines of a tournament."""
    result = seal({"value": 0.5, "values": {"random": 0.5}, "measured_by": ["train", "eval"]})

    def read(content: bytes) -> None:
        (folder / "result.json").write_bytes(content)
        found = read_result(folder / "result.json", ["train", "eval"])
        assert found is not None
        assert found.value == 0.5, "damage is read as a result"

    return Target((msgspec.json.encode(result),), read, (StoreError,))


def of_replays(folder: Path) -> Target:
    return Target((a_replay(),), read_replay, (ReplayError,))


# --- messages ---


def of_game_requests(folder: Path) -> Target:
    tables = np.arange(2)
    examples = (
        messages.pack(messages.Hello(protocol=messages.PROTOCOL, game="kuhn", options={"seats": 2}, tables=2)),
        messages.pack(messages.Reset(rows=2), messages.array_parts([tables, tables.astype(np.uint64)])),
        messages.pack(messages.Act(bot="random", rows=2), messages.array_parts([tables, tables, tables[:1]])),
        messages.pack(messages.Step(), messages.action_parts(messages.SharedActions(SPEC, 2).actions)),
    )

    def read(content: bytes) -> None:
        header, body = messages.unpack(content)
        request = messages.read_header(header, messages.AnyRequest)
        if isinstance(request, messages.Reset):
            messages.read_integers(body, tables=min(max(request.rows, 0), 9), seeds=min(max(request.rows, 0), 9))
        elif isinstance(request, messages.Step):
            messages.SharedActions(SPEC, 2).take(body)

    return Target(examples, read, (WireError,))


def of_game_answers(folder: Path) -> Target:
    view = messages.SharedView(SPEC, 2)
    welcome = messages.Welcome(
        protocol=1, server="x", game="kuhn", spec=spec_to_json(Skirmish().spec), bots=["random"], pictures=False
    )
    examples = messages.pack(messages.View(), messages.view_parts(view.view)), messages.pack(welcome)

    def read(content: bytes) -> None:
        header, body = messages.unpack(content)
        answer = messages.read_header(header, messages.AnyAnswer)
        if isinstance(answer, messages.View):
            view.take(body)
        elif isinstance(answer, messages.Welcome):
            with suppress(ValueError, TypeError, LookupError, AttributeError):  # as `read_spec` turns into its own
                spec_from_json(answer.spec)

    return Target(examples, read, (WireError,))


def of_service_frames(folder: Path) -> Target:
    def packed(*sent: wire.Message) -> bytes:
        return b"".join(bytes(piece) for one in sent for piece in wire.pack(one))

    examples = (
        packed(wire.CallerHello(wire.PROTOCOL, "token")),
        packed(wire.Call(1, "add", [np.arange(6).reshape(2, 3), {"a": [1, "b", None]}], {"x": np.ones(3)})),
        packed(wire.CallResult(1, {"value": np.zeros(2)}), wire.CallFailure(2, "ValueError", "no", "file")),
    )

    def read(content: bytes) -> None:
        reader = wire.FrameReader(2**20)
        while content:
            room = reader.room()
            count = min(len(room), len(content))
            room[:count] = content[:count]
            content = content[count:]
            list(reader.take(count))

    return Target(examples, read, (BadFrame,))


def of_bots(folder: Path) -> Target:
    tables = Kuhn().tables(2)
    tables.reset(np.arange(2), np.arange(2, dtype=np.uint64))
    rows = Rows.of(tables, np.arange(2), np.zeros(2, np.int64))
    parse = Program._parse.__get__(object())  # it needs nothing of the process
    examples = b'{"id": 1, "actions": [0, 1]}', b'{"id": 1, "actions": [{"move": 0}, {"move": 1}]}', b'{"error": "no"}'

    def read(content: bytes) -> None:
        with suppress(ProgramLost):
            _actions(parse(content), 1, rows)

    return Target(examples, read, ())


FILES = {
    "safetensors": of_tensors, "checkpoints of others": of_foreign, "ledger file": of_ledger_file,
    "ledger rows": of_ledger_rows, "run.json": of_run_file, "dataset": of_dataset, "replays": of_replays,
    "exported agents": of_exported_agents, "recorded games": of_recorded_games, "results with a digest": of_sealed,
}  # fmt: skip
MESSAGES = {
    "requests to a game server": of_game_requests, "answers of a game server": of_game_answers,
    "frames of services": of_service_frames, "lines of bots": of_bots,
}  # fmt: skip
TARGETS = FILES | MESSAGES

RUN_FILE = b'{"format": 2, "ludus": "", "python": "", "created": "", "seed": 3, "command": [], "experiment": %b}'
KEPT: dict[str, tuple[bytes, ...]] = {
    "run.json": (RUN_FILE % b'{"name": "\xff"}', RUN_FILE % b"7"),
    "lines of bots": (b'{"id": 1, "actions": "\xff"}', b'{"id": 1, "actions": ' + b"[" * 100_000),
}
"""Bytes that crashed a reader."""


@pytest.fixture
def seconds(request: pytest.FixtureRequest) -> float:
    return float(request.config.getoption("--fuzz-seconds"))


@pytest.mark.parametrize("name", TARGETS)
def test_damaged_input_is_read_or_refused_by_name(
    name: str, tmp_path: Path, seconds: float, record_property: Callable[[str, object], None]
) -> None:
    target = TARGETS[name](tmp_path)
    for content in KEPT.get(name, ()):
        with suppress(*target.promised):
            target.read(content)
    if name == "dataset":
        for wrong in (b'"in416"', b'"O"', b'"V9"'):  # types of a column
            with pytest.raises(DatasetError):
                target.read(re.sub(rb'"stored":"\w+"', b'"stored":' + wrong, target.examples[0]))
    record_property("told", f"{fuzz(target, seconds):,} cases")


@pytest.mark.parametrize("body", [None, 7, 0.5])
def test_a_row_that_is_no_text_is_refused_by_name(tmp_path: Path, body: object) -> None:
    """SQLite does not check the type of a column in a damaged file; found by the seed 130."""
    with closing(Ledger(tmp_path / "ledger.db")) as ledger, pytest.raises(LedgerError, match="row 3 is damaged"):
        ledger._decode(3, body)  # type: ignore[arg-type]


async def answer(request: Request) -> Response:
    return PlainTextResponse(f"{request.method} {len(await request.body())}")


def test_a_page_survives_damaged_requests(seconds: float) -> None:
    requests = (
        b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nAccept: text/html\r\nCookie: a=b; c=d\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: 127.0.0.1\r\nOrigin: http://127.0.0.1\r\nContent-Type: application/json\r\n"
        b"Content-Length: 12\r\n\r\n" + json.dumps({"move": 1}).encode(),
        b"POST /sign-in HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 9\r\n\r\ntoken=abc",
        b"GET /ws HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n\x81\x85\0\0\0\0hello",
    )
    app = Starlette(routes=[Route("/", answer, methods=["GET", "POST"])])
    server = PageServer(app, PageAccess(token="0123456789abcdef"))
    server.start()

    def read(content: bytes) -> None:
        with socket.create_connection(("127.0.0.1", server.port), timeout=20) as link, suppress(ConnectionError):
            link.sendall(content)
            link.shutdown(socket.SHUT_WR)
            told = link.recv(100)
            assert not told or told.startswith(b"HTTP/1.1 "), told
            assert not told.startswith(b"HTTP/1.1 5"), told

    try:
        fuzz(Target(requests, read, ()), seconds)
    finally:
        server.close()


def test_the_fuzzer_tells_of_an_error_that_was_not_promised() -> None:
    def careless(content: bytes) -> object:
        return msgspec.json.decode(content)["id"]

    with pytest.raises(AssertionError, match=r"seed \d+: "):
        fuzz(Target((b'{"id": 1}',), careless, (msgspec.DecodeError,)), 0)
    assert fuzz(Target((b'{"id": 1}',), careless, (Exception,)), 0) == CASES
