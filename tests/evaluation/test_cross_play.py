"""`ludus tournament`: players of several runs and bots, resumable, with the runs only read."""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
import subprocess
from pathlib import Path

import pytest
from command_line import LUDUS, TINY, Ludus, exit_code

from ludus.config import ConfigError
from ludus.evaluation.cross_play import CrossPlay, line_ups_of
from ludus.evaluation.entrants import is_run_address, load_field

MEMORY = ("--set", "model.memory=8")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Two small leagues of the same game; the second has another network, with a memory."""
    first, second = (tmp_path_factory.mktemp("runs") / name for name in ("first", "second"))
    assert exit_code("train", "kuhn", "--run", str(first), *TINY, "--quiet") == 0
    assert exit_code("train", "kuhn", "--run", str(second), *TINY, *MEMORY, "--set", "seed=1", "--quiet") == 0
    return first, second


def contents(run: Path) -> dict[str, str]:
    """Digests of all files but those that SQLite keeps beside a database for its readers."""
    files = [path for path in run.rglob("*") if path.is_file() and not path.name.endswith(("-shm", "-wal"))]
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def test_everybody_meets_and_no_run_changes(
    runs: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = [contents(run) for run in runs]
    players = [str(runs[0]), f"{runs[1]}#main.1", "bot:random", "best=bot:equilibrium"]
    page = tmp_path / "page.html"
    assert exit_code("tournament", *players, "-n", "64", "--tables", "16", "--json", "--html", str(page)) == 0
    found = json.loads(capsys.readouterr().out)
    assert [one["name"] for one in found["players"]] == ["first#main@best", "second#main.1", "random", "best"]
    assert [one["weights"] is None for one in found["players"]] == [False, False, True, True]
    assert found["anchor"] == "random"
    assert found["players"][2]["elo"] == 0.0
    for row in range(4):
        for column in range(4):
            if row == column:
                assert found["win_rates"][row][column] is None
                continue
            assert found["games"][row][column] == 64
            rate, (low, high) = found["win_rates"][row][column], found["win_rate_intervals"][row][column]
            assert low <= rate <= high
            assert rate + found["win_rates"][column][row] == pytest.approx(1.0)
            assert found["mean_scores"][row][column] == pytest.approx(-found["mean_scores"][column][row])
    assert sum(one["nash_share"]["value"] for one in found["players"]) == pytest.approx(1.0)
    assert "second#main.1" in page.read_text()
    assert [contents(run) for run in runs] == before


def test_a_tournament_goes_on_with_its_file(runs: tuple[Path, Path], tmp_path: Path, ludus: Ludus) -> None:
    command = ("tournament", str(runs[0]), str(runs[1]), "bot:random", "-n", "32", "--tables", "16", "--json")
    whole = json.loads(ludus(*command, "--into", "whole.jsonl")[1])
    lines = (tmp_path / "whole.jsonl").read_bytes().splitlines(keepends=True)
    assert len(lines) == 3
    # Killed while it wrote the second match: what is left of the line does not count.
    (tmp_path / "cut.jsonl").write_bytes(lines[0] + lines[1][:40])
    assert json.loads(ludus(*command, "--into", "cut.jsonl")[1]) == whole
    # With everything played, nothing is played again.
    assert json.loads(ludus(*command, "--into", "whole.jsonl")[1]) == whole
    assert len((tmp_path / "whole.jsonl").read_bytes().splitlines()) == 3
    # Further players take up what the others have played.
    more = json.loads(ludus(*command, "bot:equilibrium", "--into", "whole.jsonl")[1])
    assert more["win_rates"][0][1] == whole["win_rates"][0][1]
    assert len((tmp_path / "whole.jsonl").read_bytes().splitlines()) == 6
    # Games of other chances are another tournament.
    ludus(*command, "--seed", "1", "--into", "whole.jsonl")
    assert len((tmp_path / "whole.jsonl").read_bytes().splitlines()) == 9


def test_what_a_disk_has_changed_does_not_count(runs: tuple[Path, Path], tmp_path: Path, ludus: Ludus) -> None:
    command = ("tournament", str(runs[0]), "bot:random", "-n", "32", "--most", "96", "--precision", "0.01", "--json")
    whole = json.loads(ludus(*command, "--into", "whole.jsonl")[1])
    content = (tmp_path / "whole.jsonl").read_bytes()
    assert content.count(b"\n") == 3
    chance = random.Random(7)
    for _ in range(12):  # a bit of any match: it is played again, with the chances of its number
        damaged = bytearray(content)
        damaged[chance.randrange(len(damaged))] ^= 1 << chance.randrange(8)
        (tmp_path / "damaged.jsonl").write_bytes(damaged)
        assert json.loads(ludus(*command, "--into", "damaged.jsonl")[1]) == whole
        assert json.loads(ludus(*command, "--into", "damaged.jsonl")[1]) == whole
    first, *others = content.splitlines(keepends=True)
    (tmp_path / "damaged.jsonl").write_bytes(first.replace(b'"episodes":32', b'"episodes":64') + b"".join(others))
    with_words = [word for word in command if word != "--json"]
    _, _, err = ludus(*with_words, "--into", "damaged.jsonl")
    assert "damaged.jsonl: damaged lines (1: 1) do not count; their matches are played again" in err
    # Two commands that write the same file at the same time.
    (tmp_path / "twice.jsonl").write_bytes(content + content)
    assert json.loads(ludus(*command, "--into", "twice.jsonl")[1]) == whole


def test_the_least_certain_pairs_play_on(runs: tuple[Path, Path]) -> None:
    played: list[str] = []
    with load_field(["bot:rock", "bot:paper", "bot:random"], game="rock_paper_scissors") as field:
        cross_play = CrossPlay(field, episodes=32, tables=16, tell=played.append)
        table = cross_play.run(precision=0.08)
        for a, b in (("rock", "paper"), ("rock", "random"), ("paper", "random")):
            low, high = table.payoff.win_rate_interval(a, b)
            assert (high - low) / 2 <= 0.08
        # Paper always beats rock, which is known soon; the other pairs take more games.
        assert table.payoff.games("rock", "paper") < table.payoff.games("rock", "random")
        assert table.payoff.win_rate("paper", "rock") == 1.0
        assert len(CrossPlay(field, episodes=32, tables=16).run(most=40).payoff.matrix(["rock", "paper"])) == 2
        few = CrossPlay(field, episodes=32, tables=16).run(precision=0.01, most=100)
        assert 96 <= few.games.sum() / 2 <= 132


def test_with_three_teams_players_meet_both_ways_round() -> None:
    assert line_ups_of("a", "b", 2) == [("a", "b")]
    assert line_ups_of("a", "b", 3) == [("a", "b", "b"), ("b", "a", "a")]


def test_what_cannot_meet_is_named(runs: tuple[Path, Path], tmp_path: Path, ludus: Ludus) -> None:
    def refusal(*addresses: str, game: str | None = None) -> str:
        with pytest.raises(ConfigError) as error, load_field(addresses, game=game) as field:
            CrossPlay(field, episodes=2)
        return str(error.value)

    first = str(runs[0])
    assert "there is no run folder" in refusal(first, "nothing/here#main")
    assert "did you mean 'equilibrium'" in refusal(first, "bot:equilibriun")
    assert "are the same player" in refusal(f"{first}#main.1", f"{first}#main:0:0")
    assert "which game do they play? --game ADDRESS" in refusal("bot:rock", "bot:paper")
    assert "two players or more" in refusal(first)
    assert "leave it out" in refusal(first, "bot:random", game="rock_paper_scissors")
    assert ludus("train", "rps", "--run", "rps", *TINY, "--quiet")[0] == 0
    assert "their players cannot meet" in refusal(first, str(tmp_path / "rps"))


def test_eval_takes_players_of_other_runs(runs: tuple[Path, Path], ludus: Ludus) -> None:
    foreign = f"{runs[1]}#main.1"
    assert is_run_address(foreign)
    code, out, _ = ludus("eval", f"{runs[0]}#main", foreign, "random", "-n", "32", "--tables", "16", "--json")
    assert code == 0
    rows = [json.loads(line) for line in out.splitlines()]
    assert [row["players"] for row in rows] == [["main", foreign], ["main", "random"]]
    assert rows[0]["models"][1].startswith("main:")


def test_play_takes_a_player_behind_the_run(runs: tuple[Path, Path], ludus: Ludus) -> None:
    shown = ludus("play", f"{runs[0]}#main.1", "--terminal", "--seat", "0", typed="check\ncheck\n")
    assert "main.1" in shown.out + shown.err
    code, _, errors = ludus("play", f"{runs[0]}#main.1", "main", "--terminal")
    assert code == 2
    assert "two opponents are named" in errors


WITHOUT_RIGHTS = (
    "setpriv",
    "--bounding-set=-dac_override,-dac_read_search",
    "--inh-caps=-dac_override,-dac_read_search",
)
"""Root may write everywhere, unless it gives that up."""


@pytest.mark.skipif(os.geteuid() == 0 and shutil.which("setpriv") is None, reason="root, and no setpriv")
def test_a_run_that_may_not_be_written_is_played_with(runs: tuple[Path, Path], tmp_path: Path) -> None:
    archive = tmp_path / "archive"
    shutil.copytree(runs[0], archive)
    for name in ("ledger.db-shm", "ledger.db-wal"):
        (archive / name).unlink(missing_ok=True)
    for path in (archive, *archive.rglob("*")):
        path.chmod(path.stat().st_mode & ~0o222)
    rights = WITHOUT_RIGHTS if os.geteuid() == 0 else ()
    before = contents(archive)
    try:
        for command in (("eval", str(archive), "main", "random"), ("tournament", str(archive), "bot:random")):
            done = subprocess.run(
                [*rights, *LUDUS, *command, "-n", "8", "--tables", "4"], capture_output=True, text=True
            )
            assert done.returncode == 0, done.stderr
            assert "random" in done.stdout
            assert ("is read-only: the results are not kept there" in done.stderr) == (command[0] == "eval")
        assert contents(archive) == before
        assert not (archive / "ledger.db-shm").exists()
    finally:
        for path in (archive, *archive.rglob("*")):
            path.chmod(path.stat().st_mode | 0o200)
