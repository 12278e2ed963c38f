"""The ledger: every event of a run in order. An append returns only after its events are synced to disk. Each issued
match gets exactly one terminal row, finished or void. The league is a fold over these rows."""

from __future__ import annotations

import sqlite3
import threading
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from ludus.data.records import AnyEvent, Match, MatchFinished, MatchIssued, MatchLeased, MatchVoid
from ludus.store.files import UNREADABLE, StoreError

APPLICATION_ID = int.from_bytes(b"Ludu", "big")
SCHEMA_VERSION = 2  # 2: settings name classes by their public names

_ISSUED = "kind = 'match_issued'"
_ENDED = "kind IN ('match_finished', 'match_void')"
_OPEN = (
    f"SELECT seq, body FROM rows AS issued WHERE {_ISSUED}"
    f" AND NOT EXISTS (SELECT 1 FROM rows WHERE match_id = issued.match_id AND {_ENDED}) ORDER BY match_id"
)
_ENDS = (
    "SELECT ended.seq, issued.seq, issued.body, CASE ended.kind WHEN 'match_void' THEN ended.body END"
    " FROM rows AS ended JOIN rows AS issued"
    f" ON issued.match_id = ended.match_id AND issued.{_ISSUED}"
    f" WHERE ended.seq > ? AND ended.{_ENDED} ORDER BY ended.seq LIMIT ?"
)
_PRESENCE = "kind IN ('player_absent', 'player_returned', 'player_removed')"
_SCHEMA = (
    "CREATE TABLE rows (seq INTEGER PRIMARY KEY AUTOINCREMENT,"
    " kind TEXT NOT NULL, match_id INTEGER NULL, body BLOB NOT NULL)",
    f"CREATE UNIQUE INDEX issued_once ON rows (match_id) WHERE {_ISSUED}",
    f"CREATE UNIQUE INDEX ended_once ON rows (match_id) WHERE {_ENDED}",
    "CREATE TRIGGER never_changed BEFORE UPDATE ON rows BEGIN SELECT RAISE(ABORT, 'the ledger is append-only'); END",
    "CREATE TRIGGER never_removed BEFORE DELETE ON rows BEGIN SELECT RAISE(ABORT, 'the ledger is append-only'); END",
)
_BUSY_TIMEOUT_S = 30.0
_PAGE_ROWS = 4096

_CAUSES = {
    "SQLITE_FULL": "the disk is full; free some space, nothing was half written",
    "SQLITE_IOERR": "the disk failed, nothing was half written",
    "SQLITE_READONLY": "it is read-only",
    "SQLITE_CANTOPEN": "it cannot be opened; is its folder there, and may you write in it?",
    "SQLITE_BUSY": "another process is writing it",
    "SQLITE_NOTADB": "it is not a ledger of ludus but some other file",
    "SQLITE_CORRUPT": "it is damaged",
}


class LedgerError(StoreError):
    """The ledger cannot be opened, read or written. A failed write leaves it unchanged."""


class InvalidEvent(LedgerError, ValueError):  # noqa: N818
    """An event that does not decode to itself."""


class UnknownMatch(LedgerError):  # noqa: N818
    """A lease or an end of a match that was never issued."""


class DuplicateMatch(LedgerError):  # noqa: N818
    """A match id issued twice."""


class DuplicateResult(LedgerError):  # noqa: N818
    """A second end of a match. The first stands; `first == second` distinguishes a resend from a conflict."""

    def __init__(self, path: Path, first: AnyEvent, second: AnyEvent) -> None:
        self.first, self.second = first, second
        self.match_id = _match_id(second)
        super().__init__(
            f"ledger {path}: match {self.match_id} has already ended ({_outcome(first)});"
            f" refused its second end ({_outcome(second)})"
        )


class Ledger:
    """One SQLite file in WAL mode. Threads may share an instance, other processes read while it writes."""

    def __init__(self, path: str | Path, *, read_only: bool = False) -> None:
        self.path = Path(path)
        self._read_only = read_only
        self._lock = threading.RLock()
        self._encoder = msgspec.json.Encoder()
        self._decoder: msgspec.json.Decoder[AnyEvent] = msgspec.json.Decoder(AnyEvent)
        if read_only and not self.path.is_file():
            raise LedgerError(f"no ledger at {self.path}; has the run been started?")
        with self._named_errors():
            self._connection = self._connect()
            try:
                self._prepare()
            except BaseException:
                self._connection.close()
                raise

    def append(self, events: Iterable[AnyEvent]) -> list[int]:
        """Append all events or none, with one sync. After this returns they survive any crash."""
        rows = [(event, self._encode(event)) for event in events]
        if not rows:
            return []
        with self._transaction():
            return [self._insert(event, body) for event, body in rows]

    def tail(self, after: int, limit: int = _PAGE_ROWS) -> list[tuple[int, AnyEvent]]:
        """Up to `limit` rows after row `after`."""
        found = self._query("SELECT seq, body FROM rows WHERE seq > ? ORDER BY seq LIMIT ?", (after, limit))
        return [(seq, self._decode(seq, body)) for seq, body in found]

    def replay(self, after: int = 0) -> Iterator[tuple[int, AnyEvent]]:
        """All rows after row `after`, in order. They are read in pages, so that no writer waits."""
        while page := self.tail(after):
            yield from page
            after = page[-1][0]

    def match(self, match_id: int) -> Match | None:
        """The match as it was issued; None if it never was."""
        found = self._query(f"SELECT seq, body FROM rows WHERE match_id = ? AND {_ISSUED}", (match_id,))
        event = self._decode(*found[0]) if found else None
        return event.match if isinstance(event, MatchIssued) else None

    def next_match_id(self) -> int:
        """The lowest id above all issued ones; the first is 1."""
        [(last,)] = self._query(f"SELECT coalesce(max(match_id), 0) FROM rows WHERE {_ISSUED}")
        return int(last) + 1

    def open_matches(self) -> list[Match]:
        """Matches that were issued and have not ended, by id."""
        issued = (self._decode(seq, body) for seq, body in self._query(_OPEN))
        return [event.match for event in issued if isinstance(event, MatchIssued)]

    def end_of(self, match_id: int) -> AnyEvent | None:
        """The end of a match; None while it is open."""
        found = self._query(f"SELECT seq, body FROM rows WHERE match_id = ? AND {_ENDED}", (match_id,))
        return self._decode(*found[0]) if found else None

    def ends(self, after: int = 0) -> Iterator[tuple[int, Match, MatchVoid | None]]:
        """(row, match, event if void) of matches that ended after row `after`. It is quick: no result is decoded."""
        while page := self._query(_ENDS, (after, _PAGE_ROWS)):
            for after, number, body, void in page:
                issued = self._decode(number, body)
                end = None if void is None else self._decode(after, void)
                assert isinstance(issued, MatchIssued)
                assert isinstance(end, MatchVoid | None)
                yield after, issued.match, end

    def absences(self, after: int = 0) -> Iterator[tuple[int, AnyEvent]]:
        """Rows after row `after` in which players become absent, return or are removed."""
        found = self._query(f"SELECT seq, body FROM rows WHERE seq > ? AND {_PRESENCE} ORDER BY seq", (after,))
        for seq, body in found:
            yield seq, self._decode(seq, body)

    def void_open(self, reason: str) -> int:
        """Void all open matches, as after a restart; returns their number."""
        with self._transaction():
            voided = [MatchVoid(match.id, reason) for match in self.open_matches()]
            for event in voided:
                self._insert(event, self._encode(event))
        return len(voided)

    def counts(self) -> Counter[str]:
        """Number of rows of each kind."""
        return Counter(dict(self._query("SELECT kind, count(*) FROM rows GROUP BY kind")))

    def close(self) -> None:
        with self._lock, self._named_errors():
            self._connection.close()

    def __enter__(self) -> Ledger:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _connect(self) -> sqlite3.Connection:
        uri = self.path.resolve().as_uri()
        if not self._read_only:
            return _open_uri(f"{uri}?mode=rwc")
        connection = _open_uri(f"{uri}?mode=ro")
        try:
            connection.execute("SELECT count(*) FROM sqlite_master")
        except sqlite3.OperationalError as error:
            connection.close()
            # Reading a WAL database needs its shared-memory file. An archived run on read-only media has none
            # and cannot get one, but without a log beside it the file is complete and nobody can be writing.
            if error.sqlite_errorname != "SQLITE_CANTOPEN" or Path(f"{self.path}-wal").exists():
                raise
            return _open_uri(f"{uri}?immutable=1")
        return connection

    def _prepare(self) -> None:
        """Check an existing file before anything is written, or create the tables of a new one."""
        if self._is_blank():
            if self._read_only:
                raise LedgerError(f"ledger {self.path} is empty: the run has not written anything yet")
            self._create()
        version = self._pragma("user_version")
        if version != SCHEMA_VERSION:
            advice = "update ludus" if version > SCHEMA_VERSION else "train the run again, or use an older ludus"
            raise LedgerError(
                f"ledger {self.path} has format {version}, this ludus reads format {SCHEMA_VERSION}: {advice}"
            )
        if not self._read_only:
            self._connection.execute("PRAGMA journal_mode = WAL")
            self._connection.execute("PRAGMA synchronous = FULL")

    def _is_blank(self) -> bool:
        application = self._pragma("application_id")
        if application == APPLICATION_ID:
            return False
        tables = [name for (name,) in self._query("SELECT name FROM sqlite_master WHERE type = 'table'")]
        if application or tables:
            raise LedgerError(
                f"{self.path} is not a ledger of ludus but another SQLite database"
                f" (application id {application}, tables {', '.join(tables) or 'none'})"
            )
        return True

    def _create(self) -> None:
        self._connection.execute("PRAGMA journal_mode = WAL")
        self._connection.execute("PRAGMA synchronous = FULL")
        with self._transaction():
            if self._is_blank():  # still, now that no other process can be creating it
                for statement in _SCHEMA:
                    self._connection.execute(statement)
                self._connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
                self._connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")

    def _insert(self, event: AnyEvent, body: bytes) -> int:
        match_id = _match_id(event)
        follows = isinstance(event, MatchLeased | MatchFinished | MatchVoid)
        if follows and not self._query(f"SELECT 1 FROM rows WHERE match_id = ? AND {_ISSUED}", (match_id,)):
            raise UnknownMatch(
                f"ledger {self.path}: match {match_id} was never issued, the last one is"
                f" {self.next_match_id() - 1}; refused {_outcome(event)}"
            )
        try:
            cursor = self._connection.execute(
                "INSERT INTO rows (kind, match_id, body) VALUES (?, ?, ?)", (_kind(event), match_id, body)
            )
        except sqlite3.IntegrityError:
            assert match_id is not None
            raise self._duplicate(event, match_id) from None
        assert cursor.lastrowid is not None
        return cursor.lastrowid

    def _duplicate(self, event: AnyEvent, match_id: int) -> LedgerError:
        if isinstance(event, MatchIssued):
            return DuplicateMatch(
                f"ledger {self.path}: match {match_id} is issued already; the next free id is {self.next_match_id()}"
            )
        first = self.end_of(match_id)
        assert first is not None
        return DuplicateResult(self.path, first, event)

    def _encode(self, event: AnyEvent) -> bytes:
        """Encode an event and decode it again: a NaN would be written as null and make the run unreadable."""
        try:
            body = self._encoder.encode(event)
            self._decoder.decode(body)
        except (*UNREADABLE, TypeError, ValueError, OverflowError) as error:
            raise InvalidEvent(f"ledger {self.path}: refused {event!r}, it does not read back: {error}") from error
        match_id = _match_id(event)
        if match_id is not None and not 1 <= match_id < 2**63:
            raise InvalidEvent(f"ledger {self.path}: match id {match_id} is not between 1 and 2**63 - 1")
        return body

    def _decode(self, seq: int, body: bytes) -> AnyEvent:
        try:
            return self._decoder.decode(body)
        except UNREADABLE as error:
            raise LedgerError(f"ledger {self.path}: row {seq} is damaged: {error}") from error

    def _pragma(self, name: str) -> int:
        [(value,)] = self._query(f"PRAGMA {name}")
        return int(value)

    def _query(self, statement: str, values: tuple[int | str | None, ...] = ()) -> list[tuple[Any, ...]]:
        with self._lock, self._named_errors():  # the lock hides rows that are not yet committed
            return self._connection.execute(statement, values).fetchall()

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        with self._lock, self._named_errors():
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._connection.execute("COMMIT")
            except BaseException:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                raise

    @contextmanager
    def _named_errors(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            name = getattr(error, "sqlite_errorname", "")
            cause = next((text for code, text in _CAUSES.items() if name.startswith(code)), "it failed")
            raise LedgerError(f"ledger {self.path}: {cause} ({error})") from error


def _open_uri(uri: str) -> sqlite3.Connection:
    return sqlite3.connect(uri, uri=True, timeout=_BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False)


def _kind(event: AnyEvent) -> str:
    return str(event.__struct_config__.tag)


def _match_id(event: AnyEvent) -> int | None:
    match event:
        case MatchIssued():
            return event.match.id
        case MatchFinished():
            return event.result.match_id
        case MatchLeased() | MatchVoid():
            return event.match_id
    return None


def _outcome(event: AnyEvent) -> str:
    match event:
        case MatchFinished():
            pairs = [f"side {p.side} v {p.other} {p.wins}-{p.draws}-{p.losses}" for p in event.result.pairs]
            return f"finished: {event.result.episodes} episodes, {', '.join(pairs) or 'no pairs'}"
        case MatchVoid():
            return f"void: {event.reason}"
        case MatchLeased():
            return f"lease to {event.holder}"
    return _kind(event)
