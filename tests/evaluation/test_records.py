"""A person's game in the ledger: issued and ended once, apart from training; and its replay."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import pytest
from played_runs import folded, opponents_of, small, trained

from ludus.cli.control import ask
from ludus.cli.play import _Records
from ludus.data.records import Match, MatchFinished, MatchIssued, MatchVoid, Pair, RecordGame, Result, Side
from ludus.data.replay import decode_replay
from ludus.evaluation.play.house import PersonsGame, PlayHost, require_playable
from ludus.evaluation.play.replays import replay_reader
from ludus.evaluation.play.session import GameSeats, PlaySession, SeatedOpponent, WrongMove, finished
from ludus.evaluation.play.views import find_view
from ludus.games.builtin.beacon import Beacon
from ludus.games.builtin.hills import Hills
from ludus.games.builtin.kuhn import Kuhn
from ludus.games.builtin.siege import Siege
from ludus.games.builtin.sumo import Sumo
from ludus.games.builtin.tic_tac_toe import TicTacToe
from ludus.games.seat_rows import GameError
from ludus.league.matches import changed_incarnation, check_result
from ludus.recipes import connect_four
from ludus.store.run_folder import RunFolder
from ludus.workers.player_cache import SeatedPlayer


@pytest.fixture(scope="module")
def finished_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    experiment = small(connect_four.experiment(), TicTacToe())
    return trained(tmp_path_factory.mktemp("runs") / "run", experiment).path


@pytest.fixture
def run(finished_run: Path, tmp_path: Path) -> RunFolder:
    shutil.copytree(finished_run, tmp_path / "run")
    return RunFolder.open(tmp_path / "run")


def house(run: RunFolder) -> PlayHost:
    source = TicTacToe()
    return PlayHost(source, opponents_of(run), person="ann", keep=_Records(run, source).keep)


def play_out(game: PersonsGame) -> None:
    while game.is_open:
        game.move(min(game.session.options()))


def human_rows(run: RunFolder) -> list[object]:
    """The rows of human matches, in order."""
    with run.ledger(read_only=True) as ledger:
        events = [event for _, event in ledger.replay()]
    issued = [event for event in events if isinstance(event, MatchIssued) and event.match.purpose == "human"]
    numbers = {event.match.id for event in issued}
    ends: Sequence[object] = [
        event
        for event in events
        if (isinstance(event, MatchFinished) and event.result.match_id in numbers)
        or (isinstance(event, MatchVoid) and event.match_id in numbers)
    ]
    return [*issued, *ends]


@pytest.mark.parametrize("seat", [0, 1])
def test_a_game_is_issued_and_finished_once_and_stays_out_of_training(run: RunFolder, seat: int) -> None:
    before = folded(run)
    game = house(run).start("main", seat)
    play_out(game)
    assert human_rows(run) == [], "it is recorded when it is over"
    assert game.must_be_settled
    game.settle()
    game.settle()
    game.close("too late")

    [issued, ended] = human_rows(run)
    assert isinstance(issued, MatchIssued)
    assert isinstance(ended, MatchFinished)
    sides = ["main", "main"]
    sides[seat] = "ann"
    assert [side.players for side in issued.match.sides] == [(name,) for name in sides]
    assert issued.match.id == ended.result.match_id == before.matches.last_id + 1
    model = game.line.model
    assert model.startswith("main:0:")
    assert ended.result.last_models == (("", model) if seat == 0 else (model, ""))
    outcome = game.session.ended
    assert outcome is not None
    assert ended.result.score_sum == outcome.score

    after = folded(run)
    assert after.payoffs.human.counts(["ann", "main"])[0].tolist() == [[0, 1], [1, 0]]
    for name in ("training", "evaluation", "combined"):
        assert getattr(after.payoffs, name).fingerprint() == getattr(before.payoffs, name).fingerprint()
    assert after.standings == before.standings
    assert after.matches.finished == before.matches.finished + 1
    assert after.matches.open_matches == before.matches.open_matches


def test_the_replay_can_be_stepped_through(run: RunFolder) -> None:
    game = house(run).start("main.1", 0)
    play_out(game)
    game.settle()
    assert game.kept is not None
    assert game.kept.replay == f"human-main.1-{game.kept.match_id:06d}.replay"
    path = run.path / "replays" / game.kept.replay
    assert game.kept.text == f"recorded as match {game.kept.match_id}; {path}"
    replay = decode_replay(path.read_bytes())
    assert [seat.name for seat in replay.seats] == ["ann", "main.1"]
    assert [seat.model for seat in replay.seats] == ["", game.line.model]

    shown = replay_reader(run)(game.kept.replay)
    steps = shown["steps"]
    assert len(steps) == replay.num_steps + 1
    for number, step in enumerate(steps):
        assert 9 - step["view"]["stones"].count(-1) == number
    assert steps[1]["done"] == [{"seat": 0, "name": "1"}], "the lowest cell"
    assert steps[-1]["view"]["stones"] == game.show()["view"]["stones"]
    assert shown["outcome"] in ("ann wins", "main.1 wins", "draw")


@pytest.mark.parametrize("name", ["../run.json", "run.json", "nothing.replay", "a/b.replay", "..", ""])
def test_a_reader_stays_in_the_folder_of_replays(run: RunFolder, name: str) -> None:
    (run.path / "replays").mkdir()
    with pytest.raises(ValueError, match="the run has no replay"):
        replay_reader(run)(name)


def test_a_link_or_a_damaged_file_is_no_replay(run: RunFolder) -> None:
    replays = run.path / "replays"
    replays.mkdir()
    (replays / "out.replay").symlink_to(run.path / "run.json")
    with pytest.raises(ValueError, match=r"no replay 'out\.replay'"):
        replay_reader(run)("out.replay")
    (replays / "bad.replay").write_bytes(b"\x89LUDUS\r\n garbage")
    with pytest.raises(ValueError, match=r"bad\.replay does not play: "):
        replay_reader(run)("bad.replay")


def test_a_game_that_is_left_is_void_and_one_that_never_began_leaves_no_trace(run: RunFolder) -> None:
    game = house(run).start("perfect", 0)
    game.close("the person left")
    assert human_rows(run) == []
    game = house(run).start("perfect", 0)
    game.move(4)
    game.close("the person left")
    [issued, ended] = human_rows(run)
    assert isinstance(issued, MatchIssued)
    assert ended == MatchVoid(issued.match.id, "the person left")
    assert game.kept is not None
    assert game.kept.text == f"recorded as match {issued.match.id}, void: the person left"
    assert not (run.path / "replays").exists()
    assert folded(run).payoffs.human.counts(["ann", "perfect"])[0].sum() == 0
    with pytest.raises(WrongMove, match="the game has ended"):
        game.move(0)


def evaluated(run: RunFolder, player: str) -> None:
    """Add an evaluation of a player that it won."""
    match = folded(run).evaluation_match(10**6, ((player,), ("random",)), tables=1, episodes_per_table=1)
    result = Result(
        match_id=match.id,
        episodes=1,
        steps=5,
        decisions=(3, 2),
        pairs=(Pair(0, 1, 1, 0, 0),),
        score_sum=(1.0, -1.0),
        score_square_sum=(1.0, 1.0),
        first_models=("", ""),
        last_models=("", ""),
    )
    with run.ledger() as ledger:
        ledger.append([MatchIssued(match), MatchFinished(result)])


def test_a_tag_is_recorded_as_the_player_whose_model_it_is(run: RunFolder) -> None:
    opponents = opponents_of(run)
    frozen = folded(run).players["main.2"]
    assert opponents.names()[:3] == ["main", "main.2", "main.1"]
    assert frozen.model is not None
    evaluated(run, "main.2")
    assert opponents.names()[:2] == ["main@best", "main"]
    assert opponents.weights_of("main") == "average"
    assert opponents.weights_of("random") is None
    assert opponents.seat("main@best")[0] == "main.2"
    assert opponents.seat(str(frozen.model))[0] == "main.2"
    assert opponents.seat("main.1")[0] == "main.1"
    assert opponents.seat("main")[0] == "main"
    assert opponents.seat("perfect")[1].model is None
    assert opponents.is_taken("random")
    assert not opponents.is_taken("ann")


def test_games_that_cannot_be_played_are_refused_by_name(run: RunFolder) -> None:
    with pytest.raises(GameError, match="siege cannot be played by a person: a decision there is more than"):
        require_playable(Siege())
    with pytest.raises(GameError, match="sumo cannot be played by a person: its head 'thrust' takes real numbers"):
        require_playable(Sumo())
    with pytest.raises(WrongMove, match="tic_tac_toe has seats 0 to 1, not 2"):
        house(run).start("perfect", 2)

    with pytest.raises(GameError, match="beacon has one team: there is nobody to play against"):
        require_playable(Beacon())


def test_a_game_in_a_team_has_a_result_of_both(run: RunFolder) -> None:
    source = Hills()
    line = GameSeats(person="ann", opponent="push", model="main:0:3", seat=2)
    agent = SeatedOpponent(SeatedPlayer(bot=source.bots()["random"]), seed=0)
    with closing(PlaySession(source, find_view(source), agent, 2, seed=4)) as session:
        while session.ended is None:
            session.move(min(session.options()))
        edit = finished(source.spec, line, session.ended)
    assert edit.sides == (("push",), ("ann", "push"))
    assert edit.result is not None
    assert edit.result.last_models == ("main:0:3", ",main:0:3")
    assert edit.result.decisions == (2 * 24, 2 * 24)
    match = Match(0, "human", tuple(Side(players=side) for side in edit.sides), 1, 1)
    check_result(match, edit.result)
    assert not changed_incarnation(edit.result)


def test_a_person_who_shares_a_team_is_one_of_its_line_up() -> None:
    spec = Hills().spec
    line = GameSeats(person="ann", opponent="main", model="main:0:1", seat=1)
    assert line.sides(spec) == (("main", "ann"), ("main",))
    assert GameSeats(person="ann", opponent="main", model="", seat=1).sides(Kuhn().spec) == (("main",), ("ann",))


def result(wins: int, losses: int) -> Result:
    return Result(
        match_id=0,
        episodes=1,
        steps=5,
        decisions=(3, 2),
        pairs=(Pair(side=0, other=1, wins=wins, draws=0, losses=losses),),
        score_sum=(1.0, -1.0),
        score_square_sum=(1.0, 1.0),
        first_models=("", ""),
        last_models=("", ""),
    )


@pytest.mark.parametrize(
    ("edit", "said"),
    [
        (RecordGame(sides=(("ann",), ("main",)), result=result(1, 1)), "do not add up to episodes=1"),
        (RecordGame(sides=(("ann",),), result=result(1, 0)), "has 1 sides; the game has 2 teams"),
        (RecordGame(sides=(("no name",), ("main",)), void="left"), "player id 'no name' is refused"),
    ],
)
def test_what_cannot_be_a_game_of_the_run_is_refused_and_not_written(
    run: RunFolder, edit: RecordGame, said: str
) -> None:
    before = folded(run).num_events
    answer, is_training = ask(run, edit)
    assert not is_training
    assert answer.refused is not None
    assert said in answer.refused
    assert folded(run).num_events == before
    assert ask(run, RecordGame(sides=(("ann",), ("main",)), result=result(1, 0)))[0].refused is None
