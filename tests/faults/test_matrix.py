"""A part of the fault matrix, each row once: those that share one run. `make test-faults N=...` runs all of it."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from random import Random

import pytest
from matrix import check, inputs
from matrix.rows import all_rows
from matrix.subject import Bench, Broken, Subject

QUICK = (3, 4, 14, 24, 25, 27, 33, 38)
REFERENCE = range(1, 37)
ROOT = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.ci
def test_faults_break_no_invariant(tmp_path: Path) -> None:
    """One run for all of them: it is started once and stopped in good order in the end."""
    bench = Bench(tmp_path)
    try:
        for number in QUICK:
            seed = f"{number}/local/0"
            with named(seed):
                bench.injected(lambda number=number, seed=seed: all_rows()[number].inject(bench, Random(seed)))
        bench.injected(bench.close)
    finally:
        bench.abandon()


@contextmanager
def named(seed: str) -> Iterator[None]:
    """An error says which injection it comes from: `python -m matrix --again ROW RUNTIME NUMBER` repeats it."""
    try:
        yield
    except Broken as broken:
        raise AssertionError(f"injection {seed}: {broken}") from broken


def test_every_row_of_the_reference_is_there() -> None:
    assert set(REFERENCE) <= set(all_rows())
    assert set(inputs.INPUTS) == set(range(1, 27))
    for _, _, tests in inputs.INPUTS.values():
        for test in tests:
            file, _, name = test.partition("::")
            assert f"def {name}" in (ROOT / "tests" / file).read_text(), test


# --- the checker itself: it must find what is wrong ---


def trained(folder: Path) -> Path:
    """A run that ended in good order."""
    run = Subject(folder, "plain", "serial", "budget=10000")
    done = run.ludus(*run.command[3:], most_s=300.0)  # beside other tests
    assert done.returncode == 0, done.stderr
    return run.run


def rewrite(run: Path, *statements: str) -> None:
    """Change rows behind the back of the ledger."""
    with closing(sqlite3.connect(run / "ledger.db", isolation_level=None)) as connection:
        for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall():
            connection.execute(f"DROP TRIGGER {name}")
        for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE name LIKE '%_once'").fetchall():
            connection.execute(f"DROP INDEX {name}")
        for statement in statements:
            connection.execute(statement)


def flip_model(run: Path) -> None:
    file = min((run / "models" / "main").glob("0-*[0-9].safetensors"))
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)


LAST_RESULT = "(SELECT max(seq) FROM rows WHERE kind = 'match_finished')"
DAMAGES: tuple[tuple[Callable[[Path], object], str], ...] = (
    (lambda run: rewrite(run, f"DELETE FROM rows WHERE seq = {LAST_RESULT}"), "I3: 1 acknowledged"),
    (
        lambda run: rewrite(
            run,
            "UPDATE rows SET kind = 'match_void', body = json_object('event', 'match_void', 'match_id', match_id,"
            f" 'reason', 'a player was reset') WHERE seq = {LAST_RESULT}",
        ),
        "I3: 1 acknowledged",
    ),
    (
        lambda run: rewrite(
            run,
            f"CREATE TABLE copied AS SELECT * FROM rows WHERE seq = {LAST_RESULT}",
            "UPDATE copied SET seq = (SELECT max(seq) + 1 FROM rows)",
            "INSERT INTO rows SELECT * FROM copied",
        ),
        "I1: matches",
    ),
    (lambda run: rewrite(run, f"UPDATE rows SET match_id = 999 WHERE seq = {LAST_RESULT}"), "I1: row"),
    (
        lambda run: rewrite(
            run, 'UPDATE rows SET body = replace(body, \'"last_models":["main:0:\', \'"last_models":["main:7:\')'
        ),
        "I6: match",
    ),
    (lambda run: rewrite(run, "UPDATE rows SET body = replace(body, '\"wins\":1', '\"wins\":2')"), "another one"),
    (flip_model, "digest"),
    (lambda run: (run / "models" / "main" / "x.tmp").touch(), "I7: temporary"),
)


def test_the_checker_finds_what_is_wrong(tmp_path: Path) -> None:
    whole = trained(tmp_path / "whole")
    for number, (damage, told) in enumerate(DAMAGES):
        copy = tmp_path / str(number)
        shutil.copytree(whole, copy)
        rules, known = check.Rules(lost_decisions=0), check.Known()
        finished = [check.match_of(row) for row in check.read_rows(copy) if row["event"] == "match_finished"]
        acknowledged = [match for match in finished if match is not None]
        assert check.check(copy, rules, known, acknowledged=acknowledged) == []
        damage(copy)
        broken = check.check(copy, rules, known, closed=True, acknowledged=acknowledged)
        assert any(told in one for one in broken), (told, broken)


def test_a_result_of_a_player_that_was_reset_is_void() -> None:
    issued = {"seq": 1, "event": "match_issued", "match": {"id": 7}}
    reset = {"seq": 2, "event": "player_reset"}
    void = {"seq": 3, "event": "match_void", "match_id": 7, "reason": "a player was reset"}
    assert list(check._acknowledged([issued, reset, void], [7])) == []
    assert list(check._acknowledged([issued, void], [7])), "nobody was reset"


def test_the_checker_shares_no_code_with_the_product() -> None:
    text = Path(check.__file__).read_text()
    assert "import ludus" not in text
    assert "from ludus" not in text
