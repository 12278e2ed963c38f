"""The ledger: one end per match, all or nothing, readable while written, refusals by name."""

from __future__ import annotations

import random
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from ludus.data.records import (
    AnyEvent,
    LearnerProgress,
    LossAccepted,
    Match,
    MatchFinished,
    MatchIssued,
    MatchLeased,
    MatchVoid,
    Pair,
    PlayerAbsent,
    PlayerAdded,
    PlayerRemoved,
    PlayerReset,
    PlayerReturned,
    Result,
    RunStarted,
    ScoreMeasured,
    SettingsChanged,
    Side,
)
from ludus.store.ledger import (
    SCHEMA_VERSION,
    CheckpointNote,
    DamagedLedger,
    DuplicateMatch,
    DuplicateResult,
    InvalidEvent,
    Ledger,
    LedgerError,
    MissingLedger,
    UnknownMatch,
)


def issued(match_id: int) -> MatchIssued:
    sides = (Side(("main",), trains=True), Side(("exploiter",)))
    return MatchIssued(Match(match_id, "training", sides, tables=2, episodes_per_table=4))


def finished(match_id: int, wins: int = 5, score: float = 1.0) -> MatchFinished:
    pairs = (Pair(0, 1, wins, 1, 7 - wins),)
    models = ("main:0:1", "exploiter:0:1")
    return MatchFinished(Result(match_id, 8, 90, (45, 45), pairs, (score, -1.0), (8.0, 8.0), models, models))


EVERY_KIND: list[AnyEvent] = [
    RunStarted(0),
    PlayerAdded("main", "main", reason="'; DROP TABLE rows; --"),
    issued(1),
    MatchLeased(1, "actor-0"),
    finished(1),
    issued(2),
    MatchVoid(2, "env_crash"),
    LearnerProgress("main", 0, 10, 1000),
    LossAccepted("its checkpoint is gone", {"main": "main:0:3"}),
    ScoreMeasured("main", "main:0:10", 0.1 + 0.2, 1e-300, 64),
    PlayerReset("main", 1, None),
    PlayerRemoved("main", "שלום\n"),
    PlayerAbsent("main.1", "no file"),
    PlayerReturned("main.1"),
    SettingsChanged({"league.roles.+new": {"$type": "x:Y", "shares": [[0.1, None]]}}, player="main"),
]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger.db"


def test_every_kind_of_event_survives_reopening(path: Path) -> None:
    with Ledger(path) as ledger:
        sequence = ledger.append(EVERY_KIND)
    assert sequence == list(range(1, len(EVERY_KIND) + 1))
    with Ledger(path) as ledger:
        assert list(ledger.replay()) == list(zip(sequence, EVERY_KIND, strict=True))
        assert list(ledger.replay(after=13)) == [(14, EVERY_KIND[13]), (15, EVERY_KIND[14])]
        assert ledger.append([RunStarted(1)]) == [16]


def test_a_commit_waits_for_the_disk(path: Path) -> None:
    with Ledger(path) as ledger:
        assert ledger._pragma("synchronous") == 2  # FULL: the log is synced at every commit
        assert ledger._query("PRAGMA journal_mode") == [("wal",)]


def test_tail_gives_what_is_new(path: Path) -> None:
    with Ledger(path) as ledger:
        ledger.append(EVERY_KIND)
        assert ledger.tail(after=0, limit=2) == [(1, EVERY_KIND[0]), (2, EVERY_KIND[1])]
        assert ledger.tail(after=len(EVERY_KIND)) == []
        ledger.append([RunStarted(1)])
        assert ledger.tail(after=len(EVERY_KIND)) == [(len(EVERY_KIND) + 1, RunStarted(1))]
        assert ledger.append([]) == []


def test_a_replay_of_many_pages_is_complete(path: Path) -> None:
    with Ledger(path) as ledger:
        ledger.append(RunStarted(number) for number in range(10_000))
        assert [event for _, event in ledger.replay()] == [RunStarted(number) for number in range(10_000)]


def test_counts_and_match_ids(path: Path) -> None:
    with Ledger(path) as ledger:
        assert ledger.next_match_id() == 1
        ledger.append([*EVERY_KIND, issued(7)])
        assert ledger.next_match_id() == 8
        counts = ledger.counts()
    assert counts["match_issued"] == 3
    assert counts["match_void"] == 1
    assert counts["never_seen"] == 0
    assert counts.total() == len(EVERY_KIND) + 1


def test_open_matches_are_voided_once(path: Path) -> None:
    with Ledger(path) as ledger:
        ledger.append([issued(number) for number in range(1, 6)])
        ledger.append([finished(2), MatchVoid(4, "env_hang"), MatchLeased(5, "actor-1")])
        assert ledger.open_matches() == [issued(number).match for number in (1, 3, 5)]
        assert ledger.void_open("restart") == 3
        assert ledger.open_matches() == []
        assert ledger.void_open("restart") == 0
        assert [event for _, event in ledger.replay(after=8)] == [MatchVoid(i, "restart") for i in (1, 3, 5)]


@pytest.mark.parametrize("second", [finished(1, wins=2), finished(1), MatchVoid(1, "late")])
def test_the_first_end_of_a_match_stands(path: Path, second: AnyEvent) -> None:
    with Ledger(path) as ledger:
        ledger.append([issued(1), finished(1)])
        with pytest.raises(DuplicateResult, match=r"match 1 has already ended \(finished.*5-1-2\)") as caught:
            ledger.append([RunStarted(1), second])
        assert caught.value.match_id == 1
        assert caught.value.first == finished(1)
        assert caught.value.second == second
        assert [event for _, event in ledger.replay()] == [issued(1), finished(1)]
        assert ledger.append([issued(2)]) == [3]


def test_a_match_can_be_asked_for_as_it_was_issued(path: Path) -> None:
    with Ledger(path) as ledger:
        ledger.append([issued(1), issued(2), finished(2)])
        assert ledger.match(2) == issued(2).match
        assert ledger.match(3) is None


def test_the_end_of_a_match_can_be_asked_for(path: Path) -> None:
    with Ledger(path) as ledger:
        ledger.append([issued(1), finished(1), issued(2), MatchVoid(2, "env_hang"), issued(3)])
        assert [ledger.end_of(number) for number in (1, 2, 3, 9)] == [
            finished(1), MatchVoid(2, "env_hang"), None, None
        ]  # fmt: skip


def test_a_match_is_compared_with_its_checksum_when_it_is_asked_for(path: Path) -> None:
    with Ledger(path) as ledger:
        ledger.append([issued(1), finished(1)])
    tamper(path, "UPDATE rows SET body = replace(body, '90', '91') WHERE seq = 2")
    with Ledger(path) as ledger:
        assert ledger.match(1) == issued(1).match
        with pytest.raises(DamagedLedger, match=r"row 2 \(match_finished\) does not match its checksum"):
            ledger.end_of(1)


def test_matches_that_have_ended_come_with_why_they_are_void(path: Path) -> None:
    with Ledger(path) as ledger:
        ledger.append([issued(1), issued(2), issued(3), MatchVoid(2, "env_hang"), finished(1)])
        assert list(ledger.ends()) == [(4, issued(2).match, MatchVoid(2, "env_hang")), (5, issued(1).match, None)]
        ledger.append([finished(3)])
        assert list(ledger.ends(after=5)) == [(6, issued(3).match, None)]


def test_both_outcomes_are_named(path: Path) -> None:
    with Ledger(path) as ledger:
        ledger.append([issued(1), MatchVoid(1, "env_hang")])
        with pytest.raises(DuplicateResult, match=r"void: env_hang.*finished: 8 episodes, side 0 v 1 2-1-5"):
            ledger.append([finished(1, wins=2)])


@pytest.mark.parametrize("event", [finished(3), MatchVoid(3, "x"), MatchLeased(3, "actor-0")])
def test_unknown_matches_are_refused(path: Path, event: AnyEvent) -> None:
    with Ledger(path) as ledger:
        ledger.append([issued(2)])
        with pytest.raises(UnknownMatch, match="match 3 was never issued, the last one is 2"):
            ledger.append([issued(1), event])
        assert ledger.counts() == {"match_issued": 1}
        ledger.append([issued(3), event])  # the same group may issue it first


def test_a_match_is_issued_once(path: Path) -> None:
    with Ledger(path) as ledger:
        ledger.append([issued(1), issued(5)])
        with pytest.raises(DuplicateMatch, match="match 1 is issued already; the next free id is 6"):
            ledger.append([issued(1)])


@pytest.mark.parametrize(
    "event",
    [
        finished(1, score=float("nan")),
        ScoreMeasured("main", "main:0:1", float("inf"), 0.0, 1),
        RunStarted("zero"),  # type: ignore[arg-type]
        issued(2**63),
        issued(0),
        PlayerAdded("\ud800", "main"),
    ],
)
def test_what_would_not_read_back_is_refused(path: Path, event: AnyEvent) -> None:
    with Ledger(path) as ledger:
        ledger.append([issued(1)])
        with pytest.raises(InvalidEvent):
            ledger.append([RunStarted(0), event])
        assert ledger.counts() == {"match_issued": 1}


def test_rows_cannot_be_changed_or_removed(path: Path) -> None:
    with Ledger(path) as ledger:
        ledger.append(EVERY_KIND)
    connection = sqlite3.connect(path)
    for statement in ("DELETE FROM rows", "UPDATE rows SET kind = 'x'"):
        with pytest.raises(sqlite3.IntegrityError, match="append-only"):
            connection.execute(statement)
    connection.close()


def test_a_second_process_reads_while_the_first_writes(path: Path) -> None:
    reader = (
        "import sys; from ludus.store.ledger import Ledger\n"
        "ledger = Ledger(sys.argv[1], read_only=True)\n"
        "for _ in sys.stdin: print(sum(1 for _ in ledger.replay()), flush=True)\n"
    )
    with (
        Ledger(path) as ledger,
        subprocess.Popen(
            [sys.executable, "-c", reader, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as process,
    ):
        assert process.stdin is not None
        assert process.stdout is not None
        for number in range(1, 4):
            ledger.append([RunStarted(number)])
            process.stdin.write("\n")
            process.stdin.flush()
            assert int(process.stdout.readline()) == number
        process.stdin.close()


def test_a_reader_changes_nothing(path: Path) -> None:
    with pytest.raises(LedgerError, match=r"no ledger at .*ledger\.db"):
        Ledger(path, read_only=True)
    assert not path.exists()
    with Ledger(path) as ledger:
        ledger.append(EVERY_KIND)
    with Ledger(path, read_only=True) as reader:
        with pytest.raises(LedgerError, match="it is read-only"):
            reader.append([RunStarted(2)])
        assert reader.counts().total() == len(EVERY_KIND)


def test_threads_share_a_ledger(path: Path) -> None:
    with Ledger(path) as ledger:
        seen: list[int] = []

        def write(first: int) -> None:
            for number in range(first, first + 20):
                ledger.append([issued(number), finished(number)])
                seen.append(len(ledger.open_matches()))  # never another thread's half-written group

        threads = [threading.Thread(target=write, args=(first,)) for first in (1, 101, 201)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert ledger.counts()["match_finished"] == 60
        assert seen == [0] * 60


def test_other_files_are_refused_untouched(tmp_path: Path) -> None:
    text = tmp_path / "notes.txt"
    text.write_text("not a database, but long enough to be looked at" * 20)
    foreign = tmp_path / "foreign.db"
    connection = sqlite3.connect(foreign)
    connection.execute("CREATE TABLE songs (title)")
    connection.commit()
    connection.close()
    for path, message in ((text, r"notes\.txt: it is not a ledger"), (foreign, r"foreign\.db.*tables songs")):
        before = path.read_bytes()
        with pytest.raises(LedgerError, match=message):
            Ledger(path)
        assert path.read_bytes() == before


def test_a_newer_schema_is_refused_with_both_versions(path: Path) -> None:
    Ledger(path).close()
    connection = sqlite3.connect(path)
    connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION + 2}")
    connection.close()
    for read_only in (False, True):
        with pytest.raises(LedgerError, match=f"format {SCHEMA_VERSION + 2}.*reads format {SCHEMA_VERSION}: update"):
            Ledger(path, read_only=read_only)


def test_places_that_cannot_be_written_are_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    for place in (tmp_path / "file" / "ledger.db", tmp_path / "nowhere" / "ledger.db", Path("/proc/ledger.db")):
        with pytest.raises(LedgerError, match=rf"{place}: it cannot be opened"):
            Ledger(place)


def test_a_closed_ledger_says_so(path: Path) -> None:
    ledger = Ledger(path)
    ledger.close()
    ledger.close()
    with pytest.raises(LedgerError, match="closed"):
        ledger.append([RunStarted(0)])


def tamper(path: Path, *statements: str) -> None:
    """Change rows behind the ledger's back."""
    connection = sqlite3.connect(path)
    for statement in ("DROP TRIGGER never_changed", "DROP TRIGGER never_removed", *statements):
        connection.execute(statement)
    connection.commit()
    connection.close()


@pytest.mark.parametrize(
    ("statements", "named"),
    [
        (["UPDATE rows SET body = x'7b' WHERE seq = 4"], r"row 4 \(match_leased\) does not match its checksum"),
        (["UPDATE rows SET body = '' WHERE seq = 4"], "row 4 .* does not match"),
        (["UPDATE rows SET body = replace(body, '\"wins\":5', '\"wins\":6') WHERE seq = 5"], "row 5 .* does not match"),
        (["UPDATE rows SET kind = 'match_void' WHERE seq = 5"], r"row 5 \(match_void\) does not match"),
        (["UPDATE rows SET kind = x'fffe' WHERE seq = 5"], "row 5 .* does not match"),
        (["UPDATE rows SET match_id = 7 WHERE seq = 4"], "row 4 .* does not match"),
        (["UPDATE rows SET chain = x'00' WHERE seq = 4"], "row 4 .* does not match"),
        (["DELETE FROM rows WHERE seq = 4"], "row 4 is missing"),
        (["DELETE FROM rows WHERE seq >= 13"], "its last row is 12, but 15 were written"),
        (["DELETE FROM rows"], "its last row is 0, but 15 were written"),
        (
            [f"UPDATE rows SET seq = {new} WHERE seq = {old}" for old, new in ((8, 99), (10, 8), (99, 10))],
            r"row 8 \(score_measured\) does not match",
        ),
    ],
)
def test_a_damaged_row_is_named(path: Path, statements: list[str], named: str) -> None:
    """Also where the row is valid JSON, and where rows are lost or have changed places."""
    with Ledger(path) as ledger:
        ledger.append(EVERY_KIND)
    tamper(path, *statements)
    with Ledger(path, read_only=True) as ledger:
        for read in (lambda: list(ledger.replay()), ledger.verify, ledger.check):
            with pytest.raises(DamagedLedger, match=rf"ledger\.db: {named}.*`ludus doctor"):
                read()


def test_a_row_is_compared_with_the_one_before_it_wherever_reading_begins(path: Path) -> None:
    with Ledger(path) as ledger:
        ledger.append(EVERY_KIND)
    tamper(path, "UPDATE rows SET match_id = 7 WHERE seq = 4")
    with Ledger(path, read_only=True) as ledger:
        assert [row for row, _ in ledger.tail(4)] == list(range(5, 16))
        with pytest.raises(DamagedLedger, match="row 4"):
            ledger.tail(3)


def test_a_ledger_that_ends_before_the_row_that_was_read_last_is_damaged(path: Path) -> None:
    """As after a copy of last week has taken its place: a reader that follows it must not take it for quiet."""
    with Ledger(path) as ledger:
        ledger.append(EVERY_KIND[:5])
        for read in (ledger.tail, ledger.verify, lambda after: [*ledger.replay(after)]):
            assert not read(5) or read == ledger.verify
            with pytest.raises(DamagedLedger, match="row 6 is missing"):
                read(6)


def test_no_flipped_bit_changes_what_is_read(path: Path) -> None:
    """Each either changes nothing or is refused by name."""
    with Ledger(path) as ledger:
        ledger.append(EVERY_KIND)
        expected = ledger.tail(0)
    whole = path.read_bytes()
    rng, refused = random.Random(0), 0
    for _ in range(400):
        # In the first pages are the header, the tables and the rows; most of the file is empty.
        content, bit = bytearray(whole), rng.randrange(8)
        position = rng.choice([place for place in range(len(whole)) if whole[place]])
        content[position] ^= 1 << bit
        path.write_bytes(content)
        try:
            with Ledger(path, read_only=True) as ledger:
                assert ledger.tail(0) == expected, (position, bit)
        except LedgerError:
            refused += 1
    assert refused > 200


def test_a_fold_names_the_row_that_it_does_not_accept(path: Path) -> None:
    def apply(event: AnyEvent) -> None:
        if isinstance(event, MatchVoid):
            raise LookupError("no such match")

    with Ledger(path) as ledger:
        ledger.append(EVERY_KIND)
        with pytest.raises(DamagedLedger, match=r"row 7 \(match_void\) does not follow .*: no such match"):
            ledger.fold(apply)
        assert ledger.fold(apply, after=7) == 15


def test_the_latest_checkpoint_is_remembered_beside_the_events(path: Path) -> None:
    with Ledger(path) as ledger:
        ledger.append(EVERY_KIND)
        assert ledger.latest_checkpoint() is None
        for row in (3, 15):
            chain = ledger.chain_at(row)
            assert chain is not None
            note = CheckpointNote(name=f"{row}.safetensors", row=row, chain=chain.hex(), decisions=row)
            ledger.note_checkpoint(note)
        assert ledger.latest_checkpoint() == note
        assert ledger.position == (15, chain)
        assert ledger.chain_at(16) is None
        assert ledger.counts().total() == 15
    tamper(path, "UPDATE latest_checkpoint SET body = replace(body, '15.', '16.')")
    with Ledger(path) as ledger, pytest.raises(DamagedLedger, match="latest checkpoint does not match its checksum"):
        ledger.latest_checkpoint()


@pytest.mark.parametrize("replaced", [False, True])
def test_a_ledger_that_is_gone_is_noticed_and_its_rows_are_rescued(path: Path, replaced: bool) -> None:
    with Ledger(path) as ledger:
        ledger.append(EVERY_KIND[:10])
        ledger.require_in_place()
        path.unlink()  # its log stays
        if replaced:
            path.write_bytes(b"another")
        with pytest.raises(MissingLedger, match=r"ledger\.db was (removed|replaced)"):
            ledger.require_in_place()
        ledger.append(EVERY_KIND[10:])
        rescued = ledger.rescue()
    assert rescued.name == ("ledger.rescued-1.db" if replaced else "ledger.db")
    with Ledger(rescued, read_only=True) as ledger:
        assert [event for _, event in ledger.replay()] == EVERY_KIND
        ledger.check()
