"""What must hold in a run folder, whatever has happened to its processes. This checker shares no code with the product:
it reads the ledger with SQL, model files by their bytes, and the rest as JSON.

    python tests/faults/matrix/check.py RUN    the invariants that a folder alone can show; exit code 1 if one is broken

What is known of the formats on disk is in `read_rows`, `read_chain`, `read_tensors`, `digest_of` and `model_file`.
"""

from __future__ import annotations

import hashlib
import json
import math
import sqlite3
import struct
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

DTYPES = {
    "BOOL": "|b1",
    "I8": "|i1",
    "U8": "|u1",
    "I16": "<i2",
    "I32": "<i4",
    "I64": "<i8",
    "U16": "<u2",
    "U32": "<u4",
    "U64": "<u8",
    "F16": "<f2",
    "F32": "<f4",
    "F64": "<f8",
    "C64": "<c8",
}
ENDS = ("match_finished", "match_void")
SAME = 1e-9
"""Two numbers that were added up in another order."""

Row = dict[str, Any]
Tensors = dict[str, np.ndarray]


# --- the formats on disk ---


def open_ledger(run: Path) -> closing[sqlite3.Connection]:
    uri = (run / "ledger.db").resolve().as_uri()
    return closing(sqlite3.connect(f"{uri}?mode=ro", uri=True, timeout=30))


def read_rows(run: Path) -> list[Row]:
    """The events of the ledger in order, each with its number `seq` and the match that its row is indexed by."""
    with open_ledger(run) as connection:
        [(state,)] = connection.execute("PRAGMA integrity_check").fetchmany(1)
        if state != "ok":
            raise ValueError(f"SQLite finds the ledger damaged: {state}")
        found = connection.execute("SELECT seq, kind, match_id, body FROM rows ORDER BY seq").fetchall()
    rows = []
    for seq, kind, match_id, body in found:
        event = json.loads(body)
        if event["event"] != kind:
            raise ValueError(f"row {seq} is indexed as {kind} and holds {event['event']}")
        rows.append({**event, "seq": seq, "indexed": match_id})
    return rows


def read_chain(run: Path) -> Iterator[str]:
    """Rows of format 3 and later carry a digest of themselves and of the row before; tells of the first wrong one."""
    with open_ledger(run) as connection:
        if "chain" not in [column[1] for column in connection.execute("PRAGMA table_info(rows)")]:
            return
        found = connection.execute("SELECT seq, kind, match_id, body, chain FROM rows ORDER BY seq").fetchall()
    before = bytes(16)
    for seq, kind, match_id, body, chain in found:
        about = "" if match_id is None else str(match_id)
        written = body.encode() if isinstance(body, str) else body
        content = before + f"{seq} {kind} {about} ".encode() + written
        before = hashlib.blake2b(content, digest_size=16).digest()
        if before != chain:
            yield f"I3: row {seq} of the ledger does not have its checksum"
            return


def read_tensors(file: Path) -> tuple[Tensors, dict[str, str]]:
    """Arrays and texts of a safetensors file; `ValueError` if its header and its bytes do not agree."""
    content = file.read_bytes()
    if len(content) < 8:
        raise ValueError(f"{file.name} has {len(content)} bytes")
    (length,) = struct.unpack("<Q", content[:8])
    if 8 + length > len(content):
        raise ValueError(f"{file.name} is shorter than its header says")
    header = json.loads(content[8 : 8 + length])
    texts = header.pop("__metadata__", {})
    data, ends, arrays = content[8 + length :], 0, {}
    for name, about in sorted(header.items(), key=lambda one: one[1]["data_offsets"]):
        begin, end = about["data_offsets"]
        if begin != ends or end > len(data):
            raise ValueError(f"{file.name}: {name} is from byte {begin} to {end}, which does not fit")
        arrays[name] = np.frombuffer(data[begin:end], DTYPES[about["dtype"]]).reshape(about["shape"])
        ends = end
    if ends != len(data):
        raise ValueError(f"{file.name} has {len(data) - ends} bytes that no array owns")
    return arrays, texts


def digest_of(arrays: Tensors, *texts: str) -> str:
    outline = json.dumps([(name, arrays[name].dtype.str, arrays[name].shape) for name in sorted(arrays)])
    digest = hashlib.sha256()
    for part in (outline, *texts):
        digest.update(struct.pack("<Q", len(part.encode())) + part.encode())
    for name in sorted(arrays):
        digest.update(np.ascontiguousarray(arrays[name]).tobytes())
    return digest.hexdigest()


def model_file(run: Path, model: str, weights: str) -> Path:
    """Of a model id PLAYER:INCARNATION:STEP; beside it is a .json that describes it."""
    player, incarnation, step = model.rsplit(":", 2)
    return run / "models" / player / f"{incarnation}-{step}{'' if weights == 'live' else f'.{weights}'}.safetensors"


def read_lines(file: Path) -> list[dict[str, Any]]:
    """JSON lines; one that its writer did not finish is left out."""
    if not file.exists():
        return []
    found = []
    for line in file.read_text(errors="replace").splitlines():
        try:
            found.append(json.loads(line))
        except ValueError:
            continue
    return found


# --- the invariants ---


@dataclass
class Rules:
    """What this run has promised, by its settings."""

    lost_decisions: int
    """Most decisions by which a learner may fall back: the checkpoint's interval and what was under way."""
    is_sync: bool = True
    """Every decision is trained on by the weights that made it."""
    absent_allowed: bool = False
    """Files of models were damaged on purpose."""


@dataclass
class Known:
    """What earlier checks of the same run have seen."""

    digests: dict[str, str] = field(default_factory=dict)
    rows: list[str] = field(default_factory=list)
    """Of each row seen so far, a digest: rows are never changed or taken back."""


def check(
    run: Path, rules: Rules, known: Known | None = None, *, closed: bool = False, acknowledged: Iterable[int] = ()
) -> list[str]:
    """Every invariant that is broken, in words, with its number. `closed`: the run ended in good order."""
    known = known or Known()
    try:
        rows = read_rows(run)
    except (sqlite3.Error, ValueError, KeyError) as error:
        return [f"I1: the ledger does not read: {error}"]
    return [
        *_append_only(rows, known),
        *read_chain(run),
        *_matches(rows, closed=closed),
        *_acknowledged(rows, acknowledged),
        *_models(run, rows, known, rules),
        *_checkpoints(run, closed=closed),
        *_progress(rows, rules),
        *_versions(run, rows, rules),
        *_resets(rows),
        *(_left_over(run) if closed else ()),
    ]


def _append_only(rows: Sequence[Row], known: Known) -> Iterator[str]:
    marks = [hashlib.sha256(json.dumps(row, sort_keys=True).encode()).hexdigest() for row in rows]
    for number, (before, now) in enumerate(zip(known.rows, marks, strict=False), 1):
        if before != now:
            yield f"I3: row {number} of the ledger is another one than before"
            break
    if len(marks) < len(known.rows):
        yield f"I3: the ledger had {len(known.rows)} rows and has {len(marks)}"
    known.rows[:] = marks
    numbers = [row["seq"] for row in rows]
    if numbers != sorted(set(numbers)):
        yield "I1: rows of the ledger are not in order"


def match_of(row: Row) -> int | None:
    kind = row["event"]
    if kind == "match_issued":
        return int(row["match"]["id"])
    if kind == "match_finished":
        return int(row["result"]["match_id"])
    return int(row["match_id"]) if kind in ("match_leased", "match_void") else None


def _matches(rows: Sequence[Row], *, closed: bool) -> Iterator[str]:
    """I1: each issued match has one end at most, and none if it was never issued; after a good end none is open."""
    issued: Counter[int] = Counter()
    ended: Counter[int] = Counter()
    for row in rows:
        match = match_of(row)
        if match != row["indexed"]:
            yield f"I1: row {row['seq']} is indexed under match {row['indexed']} and is about {match}"
        if row["event"] == "match_issued":
            issued[int(match or 0)] += 1
        elif row["event"] in ENDS:
            ended[int(match or 0)] += 1
            if match not in issued:
                yield f"I1: match {match} ended and was never issued"
            if row["event"] == "match_void" and not row["reason"]:
                yield f"I1: match {match} is void without a reason"
    for name, counts in (("issued", issued), ("ended", ended)):
        twice = [match for match, count in counts.items() if count > 1]
        if twice:
            yield f"I1: matches {twice[:5]} were {name} more than once"
    still_open = issued.keys() - ended.keys()
    if closed and still_open:
        yield f"I1: the run ended in good order and left {len(still_open)} matches open"


def _acknowledged(rows: Sequence[Row], acknowledged: Iterable[int]) -> Iterator[str]:
    kept, before_reset = set[int | None](), set[int | None]()
    for row in rows:
        if row["event"] == "player_reset":
            before_reset |= {
                match_of(one) for one in rows if one["event"] == "match_issued" and one["seq"] < row["seq"]
            }
        # The result of a match whose player was reset meanwhile is taken, and void: it is of other weights.
        of_other_weights = row["event"] == "match_void" and row["reason"] == "a player was reset"
        if row["event"] == "match_finished" or (of_other_weights and match_of(row) in before_reset):
            kept.add(match_of(row))
    lost = sorted({*acknowledged} - kept)  # type: ignore[type-var]
    if lost:
        yield f"I3: {len(lost)} acknowledged results are not in the ledger: {lost[:5]}"


def frozen_players(rows: Sequence[Row]) -> dict[str, Row]:
    """Players of the league that are pinned to a model and were not removed, nor are absent."""
    found: dict[str, Row] = {}
    absent: dict[str, Row] = {}
    for row in rows:
        kind = row["event"]
        if kind == "player_added" and row["role"] == "frozen":
            found[row["player"]] = row
        elif kind == "player_removed":
            found.pop(row["player"], None)
        elif kind == "player_absent" and row["player"] in found:
            absent[row["player"]] = found.pop(row["player"])
        elif kind == "player_returned" and row["player"] in absent:
            found[row["player"]] = absent.pop(row["player"])
    return found


def _models(run: Path, rows: Sequence[Row], known: Known, rules: Rules) -> Iterator[str]:
    """I4: the model of each frozen player opens, has its digest and its whole lineage, and never changes; nothing in it
    is a NaN."""
    for player, row in frozen_players(rows).items():
        model = row["model"]
        file = model_file(run, model, row["weights"])
        try:
            about = json.loads(file.with_suffix(".json").read_text())
            arrays, _ = read_tensors(file)
            digest = digest_of(arrays)
        except (OSError, ValueError, KeyError) as error:
            left = isinstance(error, FileNotFoundError) and player not in frozen_players(read_rows(run))
            if not rules.absent_allowed and not left:  # a run that trains may have retired it since
                yield f"I4: the model {model} of {player} does not open: {error}"
            continue
        if digest != about["digest"] and not rules.absent_allowed:
            yield f"I4: the model {model} of {player} does not have its digest"
        key = f"{model} {row['weights']}"
        if known.digests.setdefault(key, digest) != digest and not rules.absent_allowed:
            yield f"I4: {key} has another content than before"
        if not all(np.isfinite(array).all() for array in arrays.values() if array.dtype.kind == "f"):
            yield f"I4: the model {model} of {player} holds a NaN or an infinity"
        yield from _lineage(run, about, model)
    trained: dict[tuple[Any, ...], int] = {}
    for row in rows:
        if row["event"] == "learner_progress":
            key_of = (row["player"], row["incarnation"], row["step"])
            if trained.setdefault(key_of, row["decisions"]) != row["decisions"]:
                yield f"I4: {key_of} was trained on two numbers of decisions, so it is two models"


def _lineage(run: Path, about: Mapping[str, Any], model: str) -> Iterator[str]:
    """A collected ancestor leaves its description, as .gone."""
    seen = {model}
    while about.get("parent") is not None:
        parent = about["parent"]
        name = parent if isinstance(parent, str) else f"{parent['player']}:{parent['incarnation']}:{parent['step']}"
        if name in seen:
            yield f"I4: the lineage of {model} goes in a circle at {name}"
            return
        seen.add(name)
        files = [model_file(run, name, weights) for weights in ("live", "average")]
        found = _described(files)
        if found is None:
            yield f"I4: the lineage of {model} ends at {name}, which is not there"
            return
        about = found


def _described(files: Sequence[Path]) -> Mapping[str, Any] | None:
    """A run that trains may rename a description to .gone meanwhile."""
    for path in (file.with_suffix(end) for file in files for end in (".json", ".gone")):
        with suppress(FileNotFoundError):
            found: Mapping[str, Any] = json.loads(path.read_text())
            return found
    return None


def _checkpoints(run: Path, *, closed: bool) -> Iterator[str]:
    """I4: at least the newest checkpoint or the one before opens; after a good end the newest does."""
    files = sorted((run / "checkpoints").glob("*/*.safetensors"), key=lambda file: file.name)
    broken = []
    for file in files:
        try:
            arrays, texts = read_tensors(file)
            digest = texts.pop("digest")
            if digest != digest_of(arrays, *(texts[key] for key in ("format", "step", "facts"))):
                raise ValueError("it does not have its digest")
        except (OSError, ValueError, KeyError) as error:
            broken.append(f"{file.name}: {error}")
    if files and len(broken) == len(files):
        yield f"I4: no checkpoint opens: {broken}"
    if closed and broken:
        yield f"I4: after a good end a checkpoint does not open: {broken}"


def _progress(rows: Sequence[Row], rules: Rules) -> Iterator[str]:
    """I5: a learner falls back by no more than was promised, and never within an incarnation."""
    before: dict[str, Row] = {}
    for row in rows:
        if row["event"] != "learner_progress":
            continue
        last = before.get(row["player"], row)
        if last["incarnation"] == row["incarnation"] and row["decisions"] < last["decisions"]:
            yield f"I5: {row['player']} fell back within incarnation {row['incarnation']}"
        lost = last["decisions"] - row["decisions"]
        if lost > rules.lost_decisions:
            yield f"I5: {row['player']} lost {lost:,} decisions of learning, promised are {rules.lost_decisions:,}"
        before[row["player"]] = row


def _versions(run: Path, rows: Sequence[Row], rules: Rules) -> Iterator[str]:
    """I6: a match ends on the weights that it began with: a frozen player on the model that it is pinned to, a learning
    one on its own incarnation and never on an earlier step. Decisions were made by the weights that they train."""
    pinned = {row["player"]: row["model"] for row in rows if row["event"] == "player_added" and row["model"]}
    learning = {row["player"] for row in rows if row["event"] == "learner_progress"}
    sides = {row["match"]["id"]: row["match"]["sides"] for row in rows if row["event"] == "match_issued"}
    for row in rows:
        if row["event"] != "match_finished":
            continue
        result = row["result"]
        found = zip(sides.get(result["match_id"], ()), result["first_models"], result["last_models"], strict=False)
        for side, first, last in found:
            player = side["players"][0]
            if player in learning:
                if not _goes_on(player, first, last):
                    yield f"I6: match {result['match_id']} began with {first} of {player} and ended with {last}"
            elif not first == last == pinned.get(player, ""):
                yield f"I6: match {result['match_id']} was played by {first} to {last} for {player}"
    if rules.is_sync:
        for record in read_lines(run / "metrics" / "train.jsonl"):
            for name, value in record.items():
                if name.endswith("/lag") and value:
                    yield f"I6: {name} is {value} at {record['decisions']} decisions of a synchronous run"
                if name.endswith("/kl") and value is not None and abs(value) > 1e-6:
                    yield f"I6: {name} is {value}: other weights decided than those that were trained"


def _goes_on(player: str, first: str, last: str) -> bool:
    try:
        (one, *from_), (other, *to) = (model.rsplit(":", 2) for model in (first, last))
        return one == other == player and from_[0] == to[0] and int(from_[1]) <= int(to[1])
    except ValueError:
        return False


def _resets(rows: Sequence[Row]) -> Iterator[str]:
    """A reset happens once: each has an incarnation of its own, above those before it."""
    last: dict[str, int] = defaultdict(lambda: -1)
    for row in rows:
        if row["event"] == "player_reset":
            if row["incarnation"] <= last[row["player"]]:
                yield f"I4: {row['player']} was reset to incarnation {row['incarnation']} twice"
            last[row["player"]] = row["incarnation"]


def resets_follow_promotions(rows: Sequence[Row]) -> Iterator[str]:
    """Of a run whose role resets a player after each promotion: exactly one reset between two promotions."""
    due = False
    for row in rows:
        is_promotion = row["event"] == "player_added" and row["role"] == "frozen"
        if is_promotion and row["reason"] not in ("", "initial", "final"):
            if due:
                yield f"I4: {row['player']} was promoted, and the promotion before was never followed by a reset"
            due = True
        elif row["event"] == "player_reset":
            if not due:
                yield f"I4: {row['player']} was reset to incarnation {row['incarnation']} without a promotion"
            due = False


def _left_over(run: Path) -> Iterator[str]:
    """I7, as far as files show it."""
    left = [str(path.relative_to(run)) for path in run.rglob("*.tmp")]
    if left:
        yield f"I7: temporary files are left: {left[:5]}"
    if (run / "lock.json").read_bytes():
        yield "I7: the lock still names somebody"


def sampled_opponents(rows: Sequence[Row], player: str = "main") -> tuple[int, int]:
    """I9: how many training matches put a player against itself, and how many there were."""
    training = [row["match"]["sides"] for row in rows if row["event"] == "match_issued"]
    training = [sides for sides in training if any(side["trains"] for side in sides)]
    return sum(all(side["players"] == [player] for side in sides) for sides in training), len(training)


def sampling_p(itself: int, total: int, share: float) -> float:
    """Two-sided p of the number of self-play matches by the normal approximation of the binomial law."""
    if total < 50:
        return math.nan
    deviation = abs(itself - share * total) / math.sqrt(total * share * (1 - share))
    return math.erfc(deviation / math.sqrt(2))


def check_league(told: Mapping[str, Any], rows: Sequence[Row]) -> Iterator[str]:
    """I2: what `ludus league --json` tells equals our own sums over the rows, for payoffs that do not decay."""
    counts = Counter(row["event"] for row in rows)
    for name, kind in (("issued", "match_issued"), ("finished", "match_finished"), ("void", "match_void")):
        if told["matches"][name] != counts[kind]:
            yield f"I2: `ludus league` tells {told['matches'][name]} {name} matches, the ledger has {counts[kind]}"
    sides = {row["match"]["id"]: row["match"]["sides"] for row in rows if row["event"] == "match_issued"}
    games: Counter[tuple[str, str]] = Counter()
    points: Counter[tuple[str, str]] = Counter()
    for row in rows:
        if row["event"] == "match_finished":
            lineup = [side["players"][0] for side in sides[row["result"]["match_id"]]]
            for pair in row["result"]["pairs"]:
                one, other = lineup[pair["side"]], lineup[pair["other"]]
                if one != other:
                    number = pair["wins"] + pair["draws"] + pair["losses"]
                    games[one, other] += number
                    games[other, one] += number
                    points[one, other] += 2 * pair["wins"] + pair["draws"]
                    points[other, one] += 2 * pair["losses"] + pair["draws"]
    names = [player["id"] for player in told["players"]]
    for i, one in enumerate(names):
        for j, other in enumerate(names):
            if abs(told["games"][i][j] - games[one, other]) > SAME * (1 + games[one, other]):
                yield f"I2: {one} v {other}: {told['games'][i][j]} games are told, the ledger has {games[one, other]}"
            rate = told["win_rates"][i][j]
            if rate is not None and abs(2 * rate * games[one, other] - points[one, other]) > 1e-6 * games[one, other]:
                yield f"I2: {one} v {other}: a win rate of {rate} is told, {points[one, other] / 2} points are there"


if __name__ == "__main__":
    broken = check(Path(sys.argv[1]), Rules(lost_decisions=2**62, is_sync=False))
    print("\n".join(broken) or "every invariant holds that this folder can show")
    sys.exit(bool(broken))
