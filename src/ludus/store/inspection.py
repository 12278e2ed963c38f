"""Whether the parts of a run are whole and fit together, and the repair of a ledger. The ledger names its latest
checkpoint, and a checkpoint names the row of the ledger at which it was made and the digest of that row."""

from __future__ import annotations

import os
import sqlite3
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path

import msgspec

from ludus.data.records import AnyEvent, LearnerProgress, ModelId, PlayerAdded, PlayerRemoved, PlayerReset
from ludus.store.checkpoints import Checkpoint, Checkpoints, DamagedCheckpoints, read_checkpoint, serial
from ludus.store.files import UNREADABLE, StoreError, read_file, sync_folder
from ludus.store.ledger import (
    NOT_ACCEPTED,
    PAGE_ROWS,
    UNCHAINED_VERSION,
    CheckpointNote,
    Ledger,
    LedgerError,
    free_name,
    require_regular,
)
from ludus.store.model_pool import ModelPool, ModelPoolError, UnknownModel, Variant, require_pinned
from ludus.store.run_folder import RunFolder, read_metrics

NO_NOTE = "the ledger's note of its latest checkpoint was removed"
SNAPSHOT_FACTS = {"decisions"}
"""What a run notes of a snapshot of its own. Models that were imported have their source."""


def note_checkpoint(ledger: Ledger, checkpoints: Checkpoints, row: int, chain: bytes, decisions: int) -> None:
    """Let the ledger name the newest checkpoint, unless it does already: nothing may have been saved."""
    known, newest = ledger.latest_checkpoint(), checkpoints.newest
    if newest is not None and (known is None or known.name != newest):
        ledger.note_checkpoint(CheckpointNote(name=newest, row=row, chain=chain.hex(), decisions=decisions))


def latest_state(ledger: Ledger, checkpoints: Checkpoints) -> tuple[Checkpoint | None, str | None]:
    """The latest checkpoint that can be read, and why the run cannot simply go on from it: None if it can."""
    noted = ledger.latest_checkpoint()
    try:
        checkpoint = checkpoints.load_latest()
    except DamagedCheckpoints as error:
        return None, str(error)
    if checkpoint is None and noted is not None:
        return None, f"its checkpoint is gone: the ledger names {_described(noted)}"
    if checkpoint is None:
        learned = 0 if ledger.has_note() else _learned(ledger)
        return (
            None,
            None if not learned else f"its checkpoint is gone: {NO_NOTE}, and {learned:,} decisions of learning",
        )
    row, chain = int(checkpoint.facts["events"]), checkpoint.facts.get("chain", "")
    found = ledger.chain_at(row)
    if found is None:
        last = ledger.position[0]
        return checkpoint, (
            f"its ledger is older than its checkpoint: it ends at row {last:,}, and {checkpoint.name} was made at row "
            f"{row:,}"
        )
    if chain and found.hex() != chain:
        return checkpoint, (
            f"its ledger is not the one that its checkpoint was made with: row {row:,} is not the row at which "
            f"{checkpoint.name} was made"
        )
    return checkpoint, None


def newer_models(ledger: Ledger, pool: ModelPool, checkpoint: Checkpoint | None) -> str | None:
    """Why the models are of a later time than ledger and checkpoint, as after a copy of these two alone was restored;
    None if they are not. A run that is killed leaves at most one snapshot that its ledger does not name."""
    saved = {} if checkpoint is None else checkpoint.facts.get("learner", {})
    latest = {player: (int(facts["incarnation"]), int(facts["step"])) for player, facts in saved.items()}
    named: set[str | None] = set()
    for event in ledger.learned():
        if isinstance(event, PlayerAdded | PlayerReset):
            named.add(event.model)
        if isinstance(event, LearnerProgress | PlayerReset):
            step = event.step if isinstance(event, LearnerProgress) else 0
            latest[event.player] = max(latest.get(event.player, (0, 0)), (event.incarnation, step))
    strays = defaultdict[str, list[ModelId]](list)
    for entry in pool.entries():
        model = entry.model
        known = latest.get(model.player)
        if known is None or entry.variant != "live" or entry.facts.keys() != SNAPSHOT_FACTS:
            continue
        if (model.incarnation, model.step) > known and str(model) not in named:
            strays[model.player].append(model)
    for player, models in strays.items():
        if len(models) > 1:
            at = max(int(pool.entry(model).facts["decisions"]) for model in models)
            return (
                f"its ledger and checkpoint are older than its models: they know {player} up to step "
                f"{latest[player][1]:,}, and there are {len(models)} later snapshots, up to {max(models)} at {at:,} "
                "decisions"
            )
    return None


def fallen_back(ledger: Ledger, checkpoint: Checkpoint) -> str | None:
    """What is lost if the checkpoint is not the latest that the ledger knows of; None if it is."""
    noted = ledger.latest_checkpoint()
    if not ledger.has_note():
        return f"{NO_NOTE}; {checkpoint.name} is used, at {checkpoint.step:,} decisions"
    older = noted is not None and serial(noted.name) > serial(checkpoint.name)
    if not older and not checkpoint.damaged:
        return None
    missing = ", ".join(checkpoint.damaged) or ("" if noted is None else noted.name)
    latest = "" if noted is None or not older else f" (at {noted.decisions:,} decisions)"
    how = "cannot be read" if checkpoint.damaged else "is gone"
    return f"checkpoint {missing}{latest} {how}; {checkpoint.name} is used, at {checkpoint.step:,} decisions"


def continues_exactly(folder: RunFolder) -> bool:
    """Whether a serial run was saved with its tables and has played nothing since, so that it goes on as if it had
    never ended."""
    if not folder.ledger_path.exists():
        return False
    with folder.ledger(read_only=True) as ledger:
        checkpoint, reason = latest_state(ledger, folder.checkpoints("run"))
        if checkpoint is None or reason is not None or "actor" not in checkpoint.facts:
            return False
        return not any(True for _ in ledger.replay(after=checkpoint.facts["events"]))


def _learned(ledger: Ledger) -> int:
    """Decisions that all learning players together were trained on, as the rows have it."""
    latest = {event.player: event.decisions for event in ledger.learned() if isinstance(event, LearnerProgress)}
    return sum(latest.values())


def _described(noted: CheckpointNote) -> str:
    return f"{noted.name}, made at {noted.decisions:,} decisions (row {noted.row:,}), and no checkpoint is there"


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """One part of a run folder, as it was found."""

    what: str
    whole: bool
    here: str
    """What is there, or what is wrong, in a sentence."""


class LedgerReading(msgspec.Struct, kw_only=True):
    """How far a ledger can be read."""

    rows: int = 0
    """Rows from the first on that match their checksums and follow from each other."""
    written: int = 0
    """Rows that were written, as far as SQLite knows."""
    results: int | None = 0
    """Finished matches after the last good row; None: they cannot be counted."""
    damage: str | None = None
    unchained: bool = False
    """It is of the format before rows had checksums."""
    frozen: dict[str, PlayerAdded] = {}
    """Frozen players by the good rows."""


def read_ledger(folder: RunFolder, apply: Callable[[AnyEvent], None]) -> LedgerReading:
    """Read as many rows as are whole and as `apply` accepts."""
    require_regular(folder.ledger_path)
    reading = LedgerReading(frozen={})
    if not folder.ledger_path.exists():
        reading.damage = "it is gone"
        return reading
    try:
        for row, event in _good_rows(folder.ledger_path, reading):
            try:
                apply(event)
            except NOT_ACCEPTED as error:
                reading.damage = f"row {row} does not follow from the rows before it: {error}"
                break
            reading.rows = row
            if isinstance(event, PlayerAdded) and event.role == "frozen":
                reading.frozen[event.player] = event
            elif isinstance(event, PlayerRemoved):
                reading.frozen.pop(event.player, None)
    except LedgerError as error:
        reading.damage = str(error).removeprefix(f"ledger {folder.ledger_path}: ").partition("; `ludus doctor")[0]
    _count_lost(folder.ledger_path, reading)
    return reading


def inspect_run(folder: RunFolder, reading: LedgerReading) -> Iterator[Part]:
    """The parts of a run, each with what is whole of it."""
    here = f"{reading.rows:,} rows" + (", every checksum matches" if not reading.unchained else ", without checksums")
    if reading.damage is not None:
        here = f"whole up to row {reading.rows:,} of {reading.written:,}: {reading.damage}"
        here = here if reading.rows else f"no row can be read: {reading.damage}"
    yield Part(what="ledger", whole=reading.damage is None and not reading.unchained, here=here)
    for place in sorted(path for path in (folder.path / "checkpoints").glob("*") if path.is_dir()):
        yield _inspect_checkpoints(place)
    yield from _inspect_fit(folder, reading)
    yield _inspect_models(folder, reading)
    for path in sorted(folder.metrics.glob("*.jsonl")):
        lines, records = read_file(path).count(b"\n"), len(read_metrics(path)[0])
        lost = "" if records == lines else f", {lines - records:,} more cannot be read"
        yield Part(what=f"metrics/{path.name}", whole=not lost, here=f"{records:,} records{lost}")


def repair_ledger(folder: RunFolder, reading: LedgerReading) -> Path:
    """Replace the ledger by one with its good rows; returns where the old file is kept. The caller holds the lock of
    the run."""
    path = folder.ledger_path
    aside = path.with_name(f".{path.name}.repair")
    for end in ("", "-wal", "-shm"):
        Path(f"{aside}{end}").unlink(missing_ok=True)
    with Ledger(aside) as mended:
        if reading.unchained:
            mended.append(event for row, event in _good_rows(path, LedgerReading()) if row <= reading.rows)
        else:
            mended.copy_rows(path, reading.rows)
        if not mended.has_note():
            checkpoint, reason = latest_state(mended, folder.checkpoints("run"))
            if checkpoint is not None and reason is None:
                row, chain = int(checkpoint.facts["events"]), checkpoint.facts.get("chain", "")
                mended.note_checkpoint(
                    CheckpointNote(name=checkpoint.name, row=row, chain=chain, decisions=checkpoint.step)
                )
    kept = free_name(path, "damaged")
    # The file first. Without its log, which has the latest rows of a run that was killed, it would be an older ledger;
    # without the file there is none, which every command refuses. The log must not be applied to the new file.
    for end in ("", "-wal"):
        with suppress(FileNotFoundError):
            os.replace(f"{path}{end}", f"{kept}{end}")
    Path(f"{path}-shm").unlink(missing_ok=True)
    os.replace(aside, path)
    sync_folder(path.parent)
    return kept


def _good_rows(path: Path, reading: LedgerReading) -> Iterator[tuple[int, AnyEvent]]:
    """Rows from the first on; raises `LedgerError` at the first that is damaged."""
    if _version(path) == UNCHAINED_VERSION:
        reading.unchained = True
        yield from _unchained_rows(path)
        return
    with Ledger(path, read_only=True, salvage=True) as ledger:
        after, limit = 0, PAGE_ROWS
        while True:
            try:
                page = ledger.tail(after, limit)
            except LedgerError:
                if limit == 1:
                    raise
                limit = 1  # row by row, up to the one that is damaged
                continue
            if not page:
                break
            yield from page
            after = page[-1][0]
    with Ledger(path, read_only=True) as ledger:  # without salvage, which ignores damage beside the rows
        ledger.check()


def _version(path: Path) -> int | None:
    with suppress(sqlite3.Error), closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as opened:
        [(version,)] = opened.execute("PRAGMA user_version")
        return int(version)
    return None


def _unchained_rows(path: Path) -> Iterator[tuple[int, AnyEvent]]:
    decoder = msgspec.json.Decoder(AnyEvent)
    row = 0
    try:
        with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as opened:
            for seq, body in opened.execute("SELECT seq, CAST(body AS BLOB) FROM rows ORDER BY seq"):
                row += 1
                if seq != row:
                    raise LedgerError(f"row {row} is missing")
                yield seq, decoder.decode(body)
    except (sqlite3.Error, *UNREADABLE) as error:
        raise LedgerError(f"row {row + 1} cannot be read: {error}") from error


def _count_lost(path: Path, reading: LedgerReading) -> None:
    reading.written, reading.results = reading.rows, None
    with suppress(sqlite3.Error), closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as opened:
        opened.execute("PRAGMA writable_schema = ON")
        [(reading.written,)] = opened.execute("SELECT coalesce(max(seq), 0) FROM sqlite_sequence WHERE name = 'rows'")
        lost = "SELECT count(*) FROM rows WHERE seq > ? AND kind = 'match_finished'"
        [(reading.results,)] = opened.execute(lost, (reading.rows,))


def _inspect_checkpoints(place: Path) -> Part:
    good, bad = [], []
    for path in sorted(place.glob("*.safetensors")):
        try:
            read_checkpoint(path)
            good.append(path.name)
        except (StoreError, OSError) as error:
            bad.append(f"{path.name}: {error}")
    here = f"{len(good)} can be read" + (f", the newest is {good[-1]}" if good else "")
    return Part(what=f"checkpoints/{place.name}", whole=not bad, here="; ".join([here, *bad]))


def _inspect_fit(folder: RunFolder, reading: LedgerReading) -> Iterator[Part]:
    """Whether the ledger and the checkpoints of the whole run fit together."""
    if reading.damage is not None or reading.unchained:
        return
    with folder.ledger(read_only=True) as ledger:
        checkpoint, reason = latest_state(ledger, folder.checkpoints("run"))
        if checkpoint is not None and reason is None:
            reason = fallen_back(ledger, checkpoint)
        with suppress(ModelPoolError):  # which the part "models" names
            reason = reason or newer_models(ledger, folder.models, checkpoint)
    yield Part(what="ledger and checkpoint", whole=reason is None, here=reason or "they fit together")


def _left_since(folder: RunFolder, reading: LedgerReading) -> set[str]:
    """Players that have left the league since the ledger was read."""
    with suppress(LedgerError), folder.ledger(read_only=True) as ledger:
        return {event.player for _, event in ledger.absences(reading.rows) if isinstance(event, PlayerRemoved)}
    return set()


def _inspect_models(folder: RunFolder, reading: LedgerReading) -> Part:
    """Every model of the pool, and those that frozen players of the league are pinned to."""
    pool, bad, good = folder.models, [], 0
    try:
        wanted = {(entry.model, entry.variant) for entry in pool.entries()}
    except ModelPoolError as error:
        return Part(what="models", whole=False, here=str(error))
    pinned = {(ModelId.parse(one.model), one.weights): one for one in reading.frozen.values() if one.model is not None}
    deleted: dict[tuple[ModelId, Variant], str] = {}
    for model, variant in sorted(wanted | pinned.keys()):
        try:
            pool.fetch(model, variant)
            if (model, variant) in pinned:
                require_pinned(pool, model, pinned[model, variant])
            good += 1
        except UnknownModel as error:
            deleted[model, variant] = str(error)
        except (ModelPoolError, OSError) as error:
            bad.append(str(error))
    if deleted:  # a run that trains may have deleted them since their players left the league
        left = _left_since(folder, reading)
        bad += [why for one, why in deleted.items() if one in pinned and pinned[one].player not in left]
    more = f" and {len(bad) - 4} more" if len(bad) > 4 else ""
    return Part(what="models", whole=not bad, here="; ".join([f"{good:,} match their digests", *bad[:4]]) + more)
