"""The ledger: every event of a run in order. An append returns only after its events are synced to disk. Each issued
match gets exactly one terminal row, finished or void. The league is a fold over these rows. Each row carries a digest
of itself and the row before it, so that a changed, missing or moved row is found when it is read."""

from __future__ import annotations

import os
import sqlite3
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from hashlib import blake2b
from itertools import count
from pathlib import Path
from typing import Any

import msgspec

from ludus.data.records import AnyEvent, Match, MatchFinished, MatchIssued, MatchLeased, MatchVoid, Settings
from ludus.store.files import UNREADABLE, StoreError, sync_folder

APPLICATION_ID = int.from_bytes(b"Ludu", "big")
SCHEMA_VERSION = 3  # 3: rows carry checksums
UNCHAINED_VERSION = 2  # 2: settings name classes by their public names
DIGEST_BYTES = 16
GENESIS = bytes(DIGEST_BYTES)  # the digest before row 1

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
_LEARNED = "kind IN ('player_added', 'player_reset', 'learner_progress')"
_ROWS = (  # cast, so that a damaged cell comes back as bytes of any content and the row can be named
    "SELECT seq, CAST(kind AS BLOB), CAST(match_id AS BLOB), CAST(body AS BLOB), CAST(chain AS BLOB)"
    " FROM rows WHERE seq >= ? ORDER BY seq LIMIT ?"
)
_NOTED = "SELECT CAST(body AS BLOB), CAST(digest AS BLOB) FROM {}"
_SCHEMA = (
    "CREATE TABLE rows (seq INTEGER PRIMARY KEY AUTOINCREMENT,"
    " kind TEXT NOT NULL, match_id INTEGER NULL, body BLOB NOT NULL, chain BLOB NOT NULL)",
    "CREATE TABLE latest_checkpoint (id INTEGER PRIMARY KEY CHECK (id = 1), body BLOB NOT NULL, digest BLOB NOT NULL)",
    f"CREATE UNIQUE INDEX issued_once ON rows (match_id) WHERE {_ISSUED}",
    f"CREATE UNIQUE INDEX ended_once ON rows (match_id) WHERE {_ENDED}",
    "CREATE TRIGGER never_changed BEFORE UPDATE ON rows BEGIN SELECT RAISE(ABORT, 'the ledger is append-only'); END",
    "CREATE TRIGGER never_removed BEFORE DELETE ON rows BEGIN SELECT RAISE(ABORT, 'the ledger is append-only'); END",
)
_IGNORE_SCHEMA = "PRAGMA writable_schema = ON"  # SQLite then skips descriptions that it cannot read
_BUSY_TIMEOUT_S = 30.0
PAGE_ROWS = 4096
NOT_ACCEPTED = (ValueError, LookupError, TypeError, ArithmeticError, AssertionError)
"""Errors by which a fold refuses an event."""

_CAUSES = {
    "SQLITE_FULL": "the disk is full; free some space, nothing was half written",
    "SQLITE_IOERR": "the disk failed, nothing was half written",
    "SQLITE_READONLY": "it is read-only",
    "SQLITE_CANTOPEN": "it cannot be opened; is its folder there, and may you write in it?",
    "SQLITE_BUSY": "another process is writing it",
    "SQLITE_NOTADB": "it is not a ledger of ludus but some other file",
    "SQLITE_CORRUPT": "it is damaged",
    "SQLITE_ERROR": "its tables are not those of a ledger",
}
_DAMAGE = ("SQLITE_NOTADB", "SQLITE_CORRUPT", "SQLITE_ERROR")


class LedgerError(StoreError):
    """The ledger cannot be opened, read or written. A failed write leaves it unchanged."""


class DamagedLedger(LedgerError):  # noqa: N818
    """Rows that were changed or lost on disk, or that do not follow from the rows before them."""

    def __init__(self, path: Path, what: str) -> None:
        super().__init__(f"ledger {path}: {what}; `ludus doctor {path.parent}` tells what is whole and how to keep it")


class MissingLedger(LedgerError):  # noqa: N818
    """The ledger was removed or replaced."""


class RefusedEvent(DamagedLedger, ValueError):  # noqa: N818
    """A whole row that the fold of the rows before it does not accept."""


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


class CheckpointNote(msgspec.Struct, frozen=True, kw_only=True):
    """What the ledger knows of the latest checkpoint. The checkpoint holds the row and its digest as well."""

    name: str
    row: int
    """The last row when the checkpoint was made."""
    chain: str
    """Its digest, in hexadecimal digits."""
    decisions: int
    """That all learning players together had trained on."""


NONE_YET = CheckpointNote(name="", row=0, chain="", decisions=0)
"""What a new ledger notes, so that a note that was removed is missed."""


class Ledger:
    """One SQLite file in WAL mode. Threads may share an instance, other processes read while it writes."""

    def __init__(self, path: str | Path, *, read_only: bool = False, salvage: bool = False) -> None:
        """`salvage`: to read rows although the descriptions of other tables and indices are damaged."""
        self.path = Path(path)
        self._read_only = read_only
        self._salvage = salvage
        self._lock = threading.RLock()
        self._encoder = msgspec.json.Encoder()
        self._decoder: msgspec.json.Decoder[AnyEvent] = msgspec.json.Decoder(AnyEvent)
        if read_only and not self.path.is_file():
            raise LedgerError(f"no ledger at {self.path}; has the run been started?")
        require_regular(self.path)
        with self._named_errors():
            self._connection = self._connect()
            try:
                self._prepare()
                self._file, self._folder = _identity(self.path), _identity(self.path.parent)
            except BaseException:
                self._connection.close()
                raise

    def append(self, events: Iterable[AnyEvent]) -> list[int]:
        """Append all events or none, with one sync. After this returns they survive any crash."""
        rows = [(event, self._encode(event)) for event in events]
        if not rows:
            return []
        with self._transaction():
            return self._insert(rows)

    def tail(self, after: int, limit: int = PAGE_ROWS) -> list[tuple[int, AnyEvent]]:
        """Up to `limit` rows after row `after`. Raises `DamagedLedger` for rows that do not match their checksums."""
        checked, decode = self._checked(after, limit), self._decoder.decode
        try:
            return [(seq, decode(body)) for seq, body in checked]
        except (*UNREADABLE, TypeError):
            return [(seq, self._decode(seq, body)) for seq, body in checked]  # raises, and names the row

    def replay(self, after: int = 0) -> Iterator[tuple[int, AnyEvent]]:
        """All rows after row `after`, in order. They are read in pages, so that no writer waits."""
        while page := self.tail(after):
            yield from page
            after = page[-1][0]

    def fold(self, apply: Callable[[AnyEvent], None], after: int = 0) -> int:
        """Apply all events after row `after`; returns the last row. Raises `RefusedEvent` for the first event that
        `apply` does not accept."""
        for row, event in self.replay(after):
            try:
                apply(event)
            except NOT_ACCEPTED as error:
                what = f"row {row} ({_kind(event)}) does not follow from the rows before it: {error}"
                raise RefusedEvent(self.path, what) from error
            after = row
        return after

    def verify(self, after: int = 0) -> int:
        """Compare all rows after row `after` with their checksums, without decoding them; returns the last row."""
        while page := self._checked(after, PAGE_ROWS):
            after = page[-1][0]
        return after

    def check(self) -> None:
        """Check the whole file: every row, its pages, its indices, and the note of the latest checkpoint."""
        self.verify()  # first: it names the row, if it is a row
        [(verdict,), *_] = self._query("PRAGMA integrity_check(1)")
        if verdict != "ok":
            raise DamagedLedger(self.path, f"it is damaged ({' '.join(str(verdict).split())})")
        self.latest_checkpoint()

    @property
    def position(self) -> tuple[int, bytes]:
        """The last row and its digest."""
        found = self._query("SELECT seq, CAST(chain AS BLOB) FROM rows ORDER BY seq DESC LIMIT 1")
        return found[0] if found else (0, GENESIS)

    def chain_at(self, row: int) -> bytes | None:
        """The digest of a row; None if there is no such row."""
        if row == 0:
            return GENESIS
        found = self._query("SELECT CAST(chain AS BLOB) FROM rows WHERE seq = ?", (row,))
        return found[0][0] if found else None

    def note_checkpoint(self, note: CheckpointNote) -> None:
        """Remember the latest checkpoint. It is no event: when a run saves does not change its league."""
        with self._transaction():
            self._write_note(note)

    def _write_note(self, note: CheckpointNote) -> None:
        body = self._encoder.encode(note)
        self._connection.execute(
            "INSERT OR REPLACE INTO latest_checkpoint (id, body, digest) VALUES (1, ?, ?)", (body, _digest(body))
        )

    def has_note(self) -> bool:
        """Whether the note of the latest checkpoint is there. Only somebody who writes into the file removes it."""
        return bool(self._query(_NOTED.format("latest_checkpoint")))

    def latest_checkpoint(self) -> CheckpointNote | None:
        """None: there was none yet, or the note was removed."""
        found = self._query(_NOTED.format("latest_checkpoint"))
        if not found:
            return None
        [(body, digest)] = found
        if digest != _digest(body):
            raise DamagedLedger(self.path, "its note of the latest checkpoint does not match its checksum")
        note = msgspec.json.decode(body, type=CheckpointNote)
        return None if note == NONE_YET else note

    def require_in_place(self) -> None:
        """Raise `MissingLedger` if the file that is open here is no longer the one at its path."""
        self.require_folder()
        if _identity(self.path) != self._file:
            how = "was replaced by another file" if self.path.exists() else "was removed"
            raise MissingLedger(f"ledger {self.path} {how} while the run was using it")

    def require_folder(self) -> None:
        """Raise `MissingLedger` if another folder, or none, is at the path of the one in which the ledger is."""
        if not self.is_folder_in_place:
            raise MissingLedger(f"run folder {self.path.parent} was moved or removed while the run was using it")

    @property
    def is_folder_in_place(self) -> bool:
        """Whether the folder in which the ledger was opened is still at its path."""
        return _identity(self.path.parent) == self._folder

    def copy_rows(self, source: Path, last: int) -> None:
        """Copy the rows of another ledger up to row `last`, and the note of its checkpoint if that is whole, into this
        one, which is new."""
        with self._lock, self._named_errors():
            self._connection.execute(_IGNORE_SCHEMA)
            self._connection.execute("ATTACH ? AS source", (f"{source.resolve().as_uri()}?mode=ro",))
            with self._transaction():
                # A limit, so that the page after the last row, which may be damaged, is not touched.
                self._connection.execute("INSERT INTO rows SELECT * FROM source.rows ORDER BY seq LIMIT ?", (last,))
                self._connection.execute("DELETE FROM latest_checkpoint")
                with suppress(sqlite3.DatabaseError):
                    noted = self._connection.execute(_NOTED.format("source.latest_checkpoint")).fetchall()
                    if noted and _digest(noted[0][0]) == noted[0][1]:
                        self._connection.execute("INSERT INTO latest_checkpoint VALUES (1, ?, ?)", noted[0])
            self._connection.execute("DETACH source")
            self._connection.execute("PRAGMA writable_schema = OFF")
        self.check()

    def rescue(self) -> Path:
        """Write everything that this connection still sees to the path of the ledger, or beside it if another file is
        there now, and close the connection; returns where it is."""
        target = free_name(self.path, "rescued") if self.path.exists() else self.path
        aside = target.with_name(f".{target.name}.rescue")
        aside.unlink(missing_ok=True)
        with self._lock, self._named_errors(), closing(sqlite3.connect(aside)) as copy:
            self._connection.backup(copy)
        self.close()
        if target == self.path:  # a log that is left of the removed file would be applied to the new one
            for end in ("-wal", "-shm"):
                Path(f"{target}{end}").unlink(missing_ok=True)
        os.replace(aside, target)
        sync_folder(target.parent)
        return target

    def match(self, match_id: int) -> Match | None:
        """The match as it was issued; None if it never was."""
        event = self._event_of(match_id, _ISSUED)
        return event.match if isinstance(event, MatchIssued) else None

    def next_match_id(self) -> int:
        """The lowest id above all issued ones; the first is 1."""
        [(last,)] = self._query(f"SELECT coalesce(max(match_id), 0) FROM rows WHERE {_ISSUED}")
        return int(last) + 1

    def settings(self) -> Iterator[Settings]:
        """Settings in all rows, whatever kind a row says it is of. Rows of matches, the most, are not decoded."""
        # A name in JSON may be written with escapes, so a row with a backslash is looked at too.
        holds = "instr(body, CAST('settings' AS BLOB)) OR instr(body, CAST('\\' AS BLOB))"
        for seq, body in self._query(f"SELECT seq, body FROM rows WHERE {holds} ORDER BY seq"):
            if found := getattr(self._decode(seq, body), "settings", None):
                yield found

    def open_matches(self) -> list[Match]:
        """Matches that were issued and have not ended, by id."""
        issued = (self._decode(seq, body) for seq, body in self._query(_OPEN))
        return [event.match for event in issued if isinstance(event, MatchIssued)]

    def end_of(self, match_id: int) -> AnyEvent | None:
        """The end of a match; None while it is open."""
        return self._event_of(match_id, _ENDED)

    def ends(self, after: int = 0) -> Iterator[tuple[int, Match, MatchVoid | None]]:
        """(row, match, event if void) of matches that ended after row `after`. It is quick: no result is decoded."""
        while page := self._query(_ENDS, (after, PAGE_ROWS)):
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

    def learned(self) -> Iterator[AnyEvent]:
        """Rows that name models of learning players: what they have published, and what was frozen."""
        for seq, body in self._query(f"SELECT seq, body FROM rows WHERE {_LEARNED} ORDER BY seq"):
            yield self._decode(seq, body)

    def void_open(self, reason: str) -> int:
        """Void all open matches, as after a restart; returns their number."""
        with self._transaction():
            voided = [MatchVoid(match.id, reason) for match in self.open_matches()]
            self._insert([(event, self._encode(event)) for event in voided])
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
        if self._salvage:
            connection.execute(_IGNORE_SCHEMA)
        try:
            connection.execute("SELECT count(*) FROM sqlite_master")
        except sqlite3.OperationalError as error:
            connection.close()
            # Reading a WAL database needs its shared-memory file. An archived run on read-only media has none
            # and cannot get one, but without a log beside it the file is complete and nobody can be writing.
            log, kind = Path(f"{self.path}-wal"), error.sqlite_errorname
            has_log = log.exists() and log.stat().st_size > 0
            if not kind.startswith(("SQLITE_CANTOPEN", "SQLITE_READONLY")) or has_log:
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
            advice = (
                "update ludus"
                if version > SCHEMA_VERSION
                else f"`ludus doctor {self.path.parent} --repair` writes it anew and keeps the old file"
            )
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
                self._write_note(NONE_YET)
                self._connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
                self._connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")

    def _checked(self, after: int, limit: int) -> list[tuple[int, bytes]]:
        """(row, body) of up to `limit` rows after row `after`, compared with their checksums."""
        found = self._read(after, limit + 1 if after else limit)
        chain = GENESIS
        if after:
            if not found or found[0][0] != after:
                raise DamagedLedger(self.path, f"row {after} is missing")
            (*_, chain), *found = found
        checked, row = [], after
        for seq, kind, match_id, body, digest in found:
            row += 1
            if seq != row:
                raise DamagedLedger(self.path, f"row {row} is missing")
            chain = chained(chain, seq, kind, match_id or b"", body)
            if digest != chain:
                raise DamagedLedger(self.path, f"row {row} ({_legible(kind)}) does not match its checksum")
            checked.append((seq, body))
        if len(found) < limit:
            self._require_last()
        return checked

    def _event_of(self, match_id: int, kind: str) -> AnyEvent | None:
        found = self._query(f"SELECT seq FROM rows WHERE match_id = ? AND {kind}", (match_id,))
        return self.tail(found[0][0] - 1, limit=1)[0][1] if found else None

    def _read(self, first: int, limit: int) -> list[tuple[Any, ...]]:
        """Raw rows from row `first` on. A page of the file that cannot be read is named by the row that it has."""
        found: list[tuple[Any, ...]] = []
        with self._lock, self._named_errors():
            try:
                found.extend(self._connection.execute(_ROWS, (first, limit)))  # keeps those before an error
            except sqlite3.DatabaseError as error:
                if not error.sqlite_errorname.startswith("SQLITE_CORRUPT"):
                    raise
                row = found[-1][0] + 1 if found else max(first, 1)
                raise DamagedLedger(self.path, f"row {row} cannot be read ({error})") from error
        return found

    def _require_last(self) -> None:
        """SQLite counts the rows that were ever written: without its count, lost rows at the end would not be seen."""
        [(last, counted)] = self._query(
            "SELECT coalesce((SELECT max(seq) FROM rows), 0),"
            " coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'rows'), 0)"
        )
        if last != counted:
            raise DamagedLedger(self.path, f"its last row is {last}, but {counted} were written")

    def _insert(self, rows: list[tuple[AnyEvent, bytes]]) -> list[int]:
        """Insert encoded events after the last row, in the transaction of the caller."""
        seq, chain = self.position
        numbers = []
        for event, body in rows:
            match_id, kind = _match_id(event), _kind(event)
            follows = isinstance(event, MatchLeased | MatchFinished | MatchVoid)
            if follows and not self._query(f"SELECT 1 FROM rows WHERE match_id = ? AND {_ISSUED}", (match_id,)):
                raise UnknownMatch(
                    f"ledger {self.path}: match {match_id} was never issued, the last one is"
                    f" {self.next_match_id() - 1}; refused {_outcome(event)}"
                )
            seq += 1
            chain = chained(chain, seq, kind.encode(), b"" if match_id is None else b"%d" % match_id, body)
            try:
                self._connection.execute(
                    "INSERT INTO rows (seq, kind, match_id, body, chain) VALUES (?, ?, ?, ?, ?)",
                    (seq, kind, match_id, body, chain),
                )
            except sqlite3.IntegrityError:
                assert match_id is not None
                raise self._duplicate(event, match_id) from None
            numbers.append(seq)
        return numbers

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
        except (*UNREADABLE, TypeError) as error:  # TypeError: a damaged file may hold a number or nothing there
            raise DamagedLedger(self.path, f"row {seq} is damaged: {error}") from error

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
        except UnicodeDecodeError as error:  # of a message in which SQLite quotes a damaged table
            raise DamagedLedger(self.path, f"it is damaged ({error})") from error
        except sqlite3.Error as error:
            name = getattr(error, "sqlite_errorname", "")
            cause = next((text for code, text in _CAUSES.items() if name.startswith(code)), "it failed")
            if name.startswith(_DAMAGE):
                raise DamagedLedger(self.path, f"{cause} ({error})") from error
            raise LedgerError(f"ledger {self.path}: {cause} ({error})") from error


def free_name(path: Path, what: str) -> Path:
    """The first of ledger.WHAT-1.db, ledger.WHAT-2.db and so on that is free."""
    names = (path.with_name(f"{path.stem}.{what}-{number}{path.suffix}") for number in count(1))
    return next(name for name in names if not name.exists())


def chained(before: bytes, seq: int, kind: bytes, match_id: bytes, body: bytes) -> bytes:
    """The digest of a row, given that of the row before it."""
    return blake2b(b"%s%d %s %s %s" % (before, seq, kind, match_id, body), digest_size=DIGEST_BYTES).digest()


def _digest(content: bytes) -> bytes:
    return blake2b(content, digest_size=DIGEST_BYTES).digest()


def _legible(kind: bytes) -> str:
    return ascii(kind.decode("utf-8", "replace"))[1:-1]


def _identity(path: Path) -> tuple[int, int] | None:
    """Which file is at a path; None: no file."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


def require_regular(path: Path) -> None:
    """Raises `LedgerError` if a file of the ledger is a pipe or device: SQLite would wait for it."""
    for end in ("", "-wal", "-shm", "-journal"):
        beside = Path(f"{path}{end}")
        if beside.exists() and not beside.is_file():
            raise LedgerError(f"{beside} cannot be read: it is not a regular file")


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
