"""Damage of a run folder is named by every command that reads it, `ludus doctor RUN` says what is whole, and --repair
keeps it."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from command_line import Ludus

from ludus.data.records import ModelId, RunStarted
from ludus.evaluation.play.house import Opponents
from ludus.observe.league_fold import read_league
from ludus.runtime.assemble import load_state, new_league
from ludus.runtime.imported_models import ModelRequest, fetch_source
from ludus.store.ledger import Ledger
from ludus.store.model_pool import UnknownModel
from ludus.store.run_folder import RunFolder
from ludus.workers.player_cache import resolve_player

ROW = 40


def damage(run: Path, *statements: str) -> None:
    with closing(sqlite3.connect(run / "ledger.db")) as ledger:
        for statement in ("DROP TRIGGER never_changed", "DROP TRIGGER never_removed", *statements):
            ledger.execute(statement)
        ledger.commit()


def events_of(path: Path) -> list[object]:
    with Ledger(path, read_only=True) as ledger:
        return [event for _, event in ledger.replay()]


OTHER_NUMBERS = f"UPDATE rows SET body = replace(body, '1', '2') WHERE seq = {ROW}"


@pytest.mark.parametrize(
    "command",
    [
        ["league"],
        ["league", "--json"],
        ["status"],
        ["status", "--json"],
        ["eval"],
        ["exploit", "main"],
        ["compare"],
        ["play", "--terminal"],
        ["train", "--resume"],
        ["train", "--resume", "--accept-loss"],
        ["set", "budget=9000"],
        ["report"],
    ],
)
def test_every_command_names_the_damaged_row(command: list[str], run: Path, ludus: Ludus, tmp_path: Path) -> None:
    """Without a traceback, which the fixture would raise."""
    damage(run, OTHER_NUMBERS)
    name, *options = command
    where = {
        "train": ["--run", str(run)],
        "compare": [str(run), str(run)],
        "report": [str(run), "--out", str(tmp_path / "report.html")],
    }.get(name, [str(run)])
    code, out, err = ludus(name, *where, *options)
    text = out + err + ((tmp_path / "report.html").read_text() if (tmp_path / "report.html").exists() else "")
    assert f"row {ROW} (" in text, text
    assert "does not match its checksum" in text
    assert code == (0 if name in ("status", "report") else 1)


def test_the_doctor_says_what_is_whole(run: Path, ludus: Ludus) -> None:
    code, out, _ = ludus("doctor", str(run), "--json")
    assert code == 0
    assert json.loads(out)["whole"]
    damage(run, OTHER_NUMBERS)
    checkpoint = sorted((run / "checkpoints" / "run").iterdir())[0]
    checkpoint.write_bytes(checkpoint.read_bytes()[:-1])
    model = next((run / "models").glob("*/*.safetensors"))
    model.write_bytes(b"")
    with (run / "metrics" / "train.jsonl").open("ab") as file:
        file.write(b"{torn\n")
    code, out, _ = ludus("doctor", str(run), "--json")
    assert code == 1
    found = {part["what"]: part for part in json.loads(out)["parts"]}
    assert {what for what, part in found.items() if not part["whole"]} == {
        "ledger", "checkpoints/run", "models", "metrics/train.jsonl"
    }  # fmt: skip
    assert found["ledger"]["here"].startswith(f"whole up to row {ROW - 1} of ")
    assert checkpoint.name in found["checkpoints/run"]["here"]
    assert str(model) in found["models"]["here"]
    code, out, _ = ludus("doctor", str(run))
    assert code == 1
    assert f"ludus doctor {run} --repair" in out


def test_a_tag_that_was_edited_is_named_and_not_played(run: Path, ludus: Ludus) -> None:
    """`main@best` is what the evaluations say, in `league`, in `eval` and after a resume."""
    best = json.loads(ludus("league", str(run), "--json").out)["tags"]["main"]["best"]["player"]
    models = RunFolder.open(run).models
    right = models.resolve("main@best")
    wrong = next(entry.model for entry in models.entries() if entry.model.player == "main" and entry.model != right)
    models.tag("best", wrong)
    code, out, _ = ludus("doctor", str(run), "--json")
    assert code == 1
    [told] = [part for part in json.loads(out)["parts"] if not part["whole"]]
    assert told["what"] == "tag main@best"
    assert told["here"].startswith(f"it says {wrong}; the evaluations say {right} ({best})")
    folder = RunFolder.open(run)
    league = read_league(folder)[0]
    with folder.ledger(read_only=True) as ledger:
        ledger.fold(league.apply)
    assert resolve_player(league, folder.models, "main@best")[0] == right


@pytest.mark.parametrize("tag", ['"main:0:0"', '"main:0', None])
def test_every_command_means_the_same_by_best(tag: str | None, run: Path, ludus: Ludus, tmp_path: Path) -> None:
    """Also where the file of the tag names another model, is torn or is gone."""
    folder = RunFolder.open(run)
    right = json.loads(ludus("league", str(run), "--json").out)["tags"]["main"]["best"]["model"]
    wrong = next(str(one.model) for one in folder.models.entries() if str(one.model) != right)
    [file] = run.glob("models/main/tags/best")
    if tag is None:
        file.unlink()
    else:
        file.write_text(tag.replace("main:0:0", wrong))
    code, out, err = ludus("models", "list", str(run), "--json")
    assert code == 0, err
    assert [row["model"] for row in map(json.loads, out.splitlines()) if "best" in row["tags"]] == [right]
    code, out, err = ludus("eval", str(run), "main@best", "random", "-n", "8", "--json")
    assert code == 0, err
    assert json.loads(out)["models"][0] == right
    source = fetch_source(ModelRequest(address=f"{run}#main@best"))
    assert source.facts["source"] == f"{run}#main@best ({right}, average)"
    experiment, league = load_state(folder)
    house = Opponents(experiment, folder, league, weights="average", greedy=False)
    assert house.usual() == "main@best"
    assert str(house.seat("main@best")[1].model) == right


def test_a_forged_tag_counts_for_nothing_before_the_first_evaluation(run: Path, ludus: Ludus) -> None:
    folder = RunFolder.open(run)
    experiment, league = load_state(folder)
    snapshot = next(player for player in league.players.values() if player.frozen and player.model is not None)
    (run / "ledger.db").unlink()
    with Ledger(run / "ledger.db") as ledger:
        ledger.append([RunStarted(0), *new_league(experiment).initial_events()])
    folder.models.tag("best", ModelId.parse(str(snapshot.model)))
    code, _, err = ludus("eval", str(run), "main@best", "random", "-n", "8")
    assert code == 2
    assert "main@best: the ledger has no evaluation of a snapshot of 'main' yet" in " ".join(err.split())
    with pytest.raises(UnknownModel, match="no evaluation of a snapshot"):
        fetch_source(ModelRequest(address=f"{run}#main@best"))
    assert not any(
        "best" in json.loads(row)["tags"] for row in ludus("models", "list", str(run), "--json").out.splitlines()
    )
    parts = json.loads(ludus("doctor", str(run), "--json").out)["parts"]
    assert "tag main@best" in [part["what"] for part in parts if not part["whole"]]


@pytest.mark.parametrize(
    ("statements", "good"),
    [
        ([OTHER_NUMBERS], ROW - 1),
        ([f"DELETE FROM rows WHERE seq = {ROW}"], ROW - 1),
        ([f"DELETE FROM rows WHERE seq > {ROW}"], ROW),
        ([f"UPDATE rows SET chain = x'00' WHERE seq >= {ROW}"], ROW - 1),
    ],
)
def test_a_repair_keeps_everything_before_the_damage(
    statements: list[str], good: int, run: Path, trained: Path, ludus: Ludus
) -> None:
    damage(run, *statements)
    damaged = (run / "ledger.db").read_bytes()
    code, out, _ = ludus("doctor", str(run), "--repair")
    assert code == 1, "the checkpoint is newer than the repaired ledger"
    assert f"repaired: {good} rows are kept, {len(events_of(trained / 'ledger.db')) - good} are dropped" in out
    assert f"ludus train --run {run} --resume --accept-loss" in out
    assert (run / "ledger.damaged-1.db").read_bytes() == damaged
    assert events_of(run / "ledger.db") == events_of(trained / "ledger.db")[:good]
    assert ludus("league", str(run), "--json")[0] == 0
    code, _, err = ludus("train", "--run", str(run), "--resume", "--quiet")
    assert code == 2
    assert "its ledger is older than its checkpoint" in " ".join(err.split())
    assert ludus("train", "--run", str(run), "--resume", "--accept-loss", "--quiet", "--set", "budget=7500")[0] == 0
    assert ludus("doctor", str(run))[0] == 0


def test_pages_that_cannot_be_read_are_named_and_repaired(run: Path, ludus: Ludus) -> None:
    content = bytearray((run / "ledger.db").read_bytes())
    with closing(sqlite3.connect(run / "ledger.db")) as ledger:
        query = "SELECT pageno FROM dbstat WHERE name = 'rows' AND pagetype = 'leaf' ORDER BY path"
        try:
            pages = [number for (number,) in ledger.execute(query)]
        except sqlite3.OperationalError:
            pytest.skip("this SQLite has no dbstat")
    start = 4096 * (pages[len(pages) // 2] - 1)
    content[start : start + 4096] = bytes(4096)
    (run / "ledger.db").write_bytes(content)
    code, _, err = ludus("league", str(run))
    assert code == 1
    assert "cannot be read (database disk image is malformed)" in " ".join(err.split())
    assert "repaired: " in ludus("doctor", str(run), "--repair").out
    assert len(events_of(run / "ledger.db")) > 10
    assert ludus("league", str(run))[0] == 0


def test_rows_survive_damage_beside_them(run: Path, trained: Path, ludus: Ludus) -> None:
    path = run / "ledger.db"
    content = path.read_bytes()
    path.write_bytes(content.replace(b"CREATE UNIQUE INDEX issued_once", b"CREATE UNIQUE INDEX issued_onc\x01"))
    assert path.read_bytes() != content
    rows = len(events_of(trained / "ledger.db"))
    code, out, _ = ludus("doctor", str(run), "--repair")
    assert code == 0
    assert f"repaired: {rows} rows are kept, 0 are dropped" in out
    assert events_of(path) == events_of(trained / "ledger.db")


def test_a_ledger_without_checksums_is_refused_and_written_anew(run: Path, trained: Path, ludus: Ludus) -> None:
    damage(run, "ALTER TABLE rows DROP COLUMN chain", "DROP TABLE latest_checkpoint", "PRAGMA user_version = 2")
    code, _, err = ludus("league", str(run))
    assert code == 1
    assert f"has format 2, this ludus reads format 3: `ludus doctor {run} --repair`" in " ".join(err.split())
    code, out, _ = ludus("doctor", str(run), "--repair")
    assert code == 0, out
    assert "written anew with checksums" in out
    assert events_of(run / "ledger.db") == events_of(trained / "ledger.db")
    with RunFolder.open(run).ledger(read_only=True) as one, RunFolder.open(trained).ledger(read_only=True) as other:
        assert one.position == other.position


@pytest.mark.parametrize("gone", [False, True])
def test_what_cannot_be_repaired_is_named_with_how_to_go_on(gone: bool, run: Path, ludus: Ludus) -> None:
    if gone:
        (run / "ledger.db").unlink()
    else:
        (run / "ledger.db").write_bytes(b"not a database" * 1000)
    for options in ([], ["--repair"]):
        code, out, err = ludus("doctor", str(run), *options)
        text = " ".join((out + err).split())
        assert code == 1
        assert ("it is gone" if gone else "it is not a ledger of ludus but some other file") in text
        assert ("remove ledger.db and begin a new league" in text) is not gone
        assert f"ludus train --run {run} --resume --accept-loss" in text
    (run / "ledger.db").unlink(missing_ok=True)
    assert ludus("train", "--run", str(run), "--resume", "--accept-loss", "--quiet", "--set", "budget=7500")[0] == 0
    assert ludus("doctor", str(run))[0] == 0
    assert ludus("doctor", "--repair")[0] == 2
