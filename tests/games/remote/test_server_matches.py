"""Matches that a server plays by itself, as the client of a game core asks for them."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from game_servers import eventually, serving
from processes import ctrl_c
from troubled_games import Trouble, TroubledKuhn

from ludus.data.specs import ActionSpec, Choice, GameSpec, ObservationSpec, Vector
from ludus.data.trees import put
from ludus.games.bots import RandomBot
from ludus.games.catalog import resolve
from ludus.games.game import Action, Turn, allocate_actions
from ludus.games.lift import Lifted
from ludus.games.remote.client import CampSeats, GameClient
from ludus.games.remote.matches import ServerMatches
from ludus.games.remote.messages import Camp, MatchConfig, MatchResult
from ludus.games.remote.tables import ServerLost
from ludus.games.seat_rows import GameError

GUESSING = f"{Path(__file__).parents[1] / 'aiming_game.py'}:Guessing"
TWO_BOTS = MatchConfig(camps=(Camp(bot="random"), Camp(bot="random")), episodes=3, evaluation=True)


@pytest.fixture
def client() -> Iterator[GameClient]:
    with serving("connect_four") as server, GameClient(server) as client:
        yield client


def decide(seats: CampSeats, rng: np.random.Generator) -> None:
    """At random for the own seats that are to act."""
    actions = allocate_actions(seats.spec, 1)
    for seat in np.flatnonzero(seats.view.to_act[0]).tolist():
        assert seat in seats.seats
        game: CampSeats = seats
        chosen = RandomBot().act(game, np.array([0]), np.array([seat]), rng)  # type: ignore[arg-type]
        put(actions[seats.spec.seats[seat]], ([0], [seats.spec.column_of_seat[seat]]), chosen)
    seats.step(actions)


def test_bots_play_a_match_and_the_result_is_kept(client: GameClient) -> None:
    client.start_game("one", TWO_BOTS)
    result = client.wait_game("one", timeout_s=30.0)
    assert result.state == "finished"
    assert len(result.scores) == 3
    assert all(sum(score) == 0.0 for score in result.scores)
    assert result.evaluation
    assert result.steps >= 3 * 7
    assert client.result("one") == result
    assert client.list() == (result,)
    assert not client.exists("one")


def test_a_match_is_the_same_for_the_same_seed(client: GameClient) -> None:
    scores = []
    for number in range(2):
        client.start_game(str(number), TWO_BOTS)
        scores.append(client.wait_game(str(number), 30.0).scores)
    assert scores[0] == scores[1]


def test_a_match_that_is_started_twice_is_played_once(client: GameClient) -> None:
    client.start_game("one", TWO_BOTS)
    first = client.wait_game("one", 30.0)
    assert client.start_game("one", TWO_BOTS) == first
    with pytest.raises(GameError, match="already, with another configuration"):
        client.start_game("one", MatchConfig(camps=TWO_BOTS.camps))
    assert client.list() == (first,)


def test_a_frame_limit_cuts_an_episode_off(client: GameClient) -> None:
    config = MatchConfig(camps=TWO_BOTS.camps, frame_limit=2, episodes=2)
    client.start_game("short", config)
    result = client.wait_game("short", 30.0)
    assert (result.steps, result.cut_off, result.scores) == (4, 2, ((0.0, 0.0), (0.0, 0.0)))


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (MatchConfig(camps=(Camp(bot="random"),)), "2 camps, not 1"),
        (MatchConfig(camps=(Camp(bot="rnadom"), Camp(bot="random"))), "no bot 'rnadom'"),
        (MatchConfig(camps=TWO_BOTS.camps, episodes=0), "episodes"),
        (MatchConfig(camps=TWO_BOTS.camps, episodes=10**9), "episodes must be 1 to 1000"),
        (MatchConfig(camps=TWO_BOTS.camps, join_seconds=1e300), "join_seconds"),
        (MatchConfig(camps=TWO_BOTS.camps, move_seconds=-1.0), "move_seconds"),
        (MatchConfig(camps=TWO_BOTS.camps, frame_limit=-1), "frame_limit"),
        (MatchConfig(camps=TWO_BOTS.camps, options={"mode": "3v3"}), "mode"),
        (MatchConfig(camps=(Camp(bot="random", heroes=(190,)), Camp(bot="random"))), "heroes"),
    ],
)
def test_what_cannot_be_played_is_refused(client: GameClient, config: MatchConfig, said: str) -> None:
    with pytest.raises(GameError, match=said):
        client.start_game("wrong", config)
    assert client.list() == ()


def test_a_match_that_nobody_knows(client: GameClient) -> None:
    assert not client.exists("none")
    for ask in (client.result, client.stop_game, client.wait_game):
        with pytest.raises(GameError, match="no match 'none'"):
            ask("none")  # type: ignore[operator]


def test_options_choose_the_mode() -> None:
    config = MatchConfig(camps=(Camp(bot="random"),) * 2, options={"mode": "3v3"}, frame_limit=3)
    with serving("skirmish") as server, GameClient(server) as client:
        client.start_game("heroes", config)
        assert client.wait_game("heroes", 60.0).state == "finished"


def test_a_match_is_stopped(client: GameClient) -> None:
    config = MatchConfig(camps=(Camp(), Camp(bot="random")))
    assert client.start_game("one", config).state == "waiting"
    assert client.exists("one")
    with pytest.raises(TimeoutError, match="waiting"):
        client.wait_game("one", 0.0)
    stopped = client.stop_game("one")
    assert (stopped.state, stopped.reason) == ("stopped", "asked for by a client")
    assert not client.exists("one")


def test_nobody_is_waited_for_without_end(client: GameClient) -> None:
    client.start_game("alone", MatchConfig(camps=(Camp(), Camp(bot="random")), join_seconds=0.1))
    result = client.wait_game("alone", 30.0)
    assert (result.state, result.reason) == ("void", "nobody joined camp 0 within 0.1 s")
    client.start_game("slow", MatchConfig(camps=(Camp(), Camp(bot="random")), move_seconds=0.1))
    seats = client.join("slow", 0)
    result = client.wait_game("slow", 30.0)
    assert (result.state, result.reason) == ("void", "camp 0 did not decide within 0.1 s")
    seats.close()


def test_those_who_wait_leave_room_for_others() -> None:
    """A server of one client has 33 threads; as many calls that wait would hold all of them for half a minute."""
    with serving("connect_four", clients_max=1) as server, GameClient(server) as client, ThreadPoolExecutor(33) as pool:
        client.start_game("long", MatchConfig(camps=(Camp(), Camp(bot="random")), join_seconds=60.0))
        waiting = [pool.submit(client.wait_game, "long", 25.0) for _ in range(33)]
        ended = eventually(lambda: _stopped(client), most_s=10.0)
        results = [one.exception() or one.result() for one in waiting]
    assert ended
    assert any(isinstance(one, MatchResult) and one.state == "stopped" for one in results)


def _stopped(client: GameClient) -> bool:
    """Tries to stop the match; false where the server has no room for the call."""
    try:
        return client.stop_game("long").ended
    except (GameError, ServerLost):
        return False


def test_a_player_joins_and_plays_against_a_bot(client: GameClient) -> None:
    client.start_game("one", MatchConfig(camps=(Camp(bot="random"), Camp()), episodes=2, seed=4))
    rng = np.random.default_rng(0)
    seats = client.join("one", 1)
    assert seats.seats == (1,)
    ends = []
    while seats.playing:
        if seats.view.over[0]:
            ends.append(tuple(seats.view.score[0].tolist()))
        decide(seats, rng)
    result = client.wait_game("one", 30.0)
    assert result.state == "finished"
    assert list(result.scores) == ends


MOVE = np.zeros((1, 2), np.int32)


@pytest.mark.parametrize(
    ("actions", "said"),
    [
        (({"mvoe": MOVE},), r"actions\[0\] has the heads move, not mvoe"),
        ({"move": MOVE}, "a tuple of 1, a mapping for each kind of seat"),
        (({"move": MOVE}, {"move": MOVE}), "a tuple of 1"),
        (({"move": [[0.5, 0]]},), "holds integers of shape .1, 2., not float64"),
        (({"move": [0, 0]},), "not int64 of shape .2,."),
        ((MOVE,), "has the heads move, not ndarray"),
        (({"move": [[2**32 + 1, 0]]},), "holds numbers that are no int32"),
    ],
)
def test_what_are_no_actions_is_said_and_may_be_said_better(
    client: GameClient, actions: tuple[Mapping[str, np.ndarray], ...], said: str
) -> None:
    client.start_game("corrected", MatchConfig(camps=(Camp(), Camp(bot="random"))))
    seats = client.join("corrected", 0)
    with pytest.raises(ValueError, match=said):
        seats.step(actions)
    rng = np.random.default_rng(0)
    while seats.playing:
        decide(seats, rng)
    assert client.wait_game("corrected", 30.0).state == "finished"


def test_actions_may_be_lists_of_any_integers(client: GameClient) -> None:
    client.start_game("lists", MatchConfig(camps=(Camp(), Camp(bot="random"))))
    seats = client.join("lists", 0)
    moves = 0
    while seats.playing:
        seats.step(({"move": seats.view.legal[0]["move"].argmax(-1).tolist()},))
        moves += 1
    assert moves > 3
    assert client.wait_game("lists", 30.0).state == "finished"


def test_a_player_joins_a_match_with_real_numbers() -> None:
    with serving(resolve(GUESSING), name="guessing") as server, GameClient(server) as client:
        client.start_game("one", MatchConfig(camps=(Camp(), Camp(bot="random")), seed=1))
        seats = client.join("one", 0)
        guess = np.zeros((1, 2, 1))
        with pytest.raises(ValueError, match=r"holds numbers of shape \(1, 2, 1\), not int64 of shape \(1, 2, 1\)"):
            seats.step(({"guess": guess.astype(np.int64)},))
        while seats.playing:
            guess[0, 0] = np.clip(seats.view.observation[0]["hint"][0, 0], -1, 1)
            seats.step(({"guess": guess},))
        result = client.wait_game("one", 30.0)
    assert result.state == "finished"
    assert result.scores[0][0] > 0, "whoever takes the hint is nearer than a random guess"


def test_a_player_sees_that_the_frame_limit_has_cut_its_episode_off(client: GameClient) -> None:
    client.start_game("short", MatchConfig(camps=(Camp(), Camp(bot="random")), frame_limit=3, episodes=2))
    seats, rng, cuts = client.join("short", 0), np.random.default_rng(0), 0
    while seats.playing:
        if seats.view.truncated[0]:
            assert not seats.view.to_act.any()
            cuts += 1
        decide(seats, rng)
    result = client.wait_game("short", 30.0)
    assert (cuts, result.cut_off, result.steps) == (2, 2, 6)


class PaysLater:
    """Seats 0, 1, 1 and 0 take turns; seat 0 is paid 1 for every turn of seat 1."""

    spec = GameSpec.symmetric(
        name="pays_later",
        num_seats=2,
        observation=ObservationSpec(parts={"turn": Vector(size=1)}),
        action=ActionSpec(heads={"move": Choice(num=2)}),
        max_length=4,
        zero_sum=False,
    )
    seats = (0, 1, 1, 0)

    def reset(self, seed: int) -> Turn:
        self.turn = 0
        return self._turn((0.0, 0.0))

    def step(self, actions: Mapping[int, Action]) -> Turn:
        paid = (float(self.seats[self.turn]), 5.0)
        self.turn += 1
        return self._turn(paid)

    def _turn(self, paid: tuple[float, float]) -> Turn:
        over = self.turn == len(self.seats)
        to_act = {} if over else {self.seats[self.turn]: np.full(1, self.turn, np.float32)}
        return Turn(observations=to_act, reward=paid, over=over, score=(2.0, 20.0) if over else None)


def test_a_player_is_shown_what_it_earned_while_others_decided() -> None:
    with serving(Lifted(PaysLater)) as server, GameClient(server) as client:
        client.start_game("one", MatchConfig(camps=(Camp(), Camp(bot="random")), episodes=2))
        seats, rng, shown = client.join("one", 0), np.random.default_rng(0), []
        while seats.playing:
            shown.append(seats.view.reward[0].tolist())
            decide(seats, rng)
    # Its first turn, its second, the end; what the other earns is not shown.
    assert shown == [[0.0, 0.0], [2.0, 0.0], [0.0, 0.0]] * 2


def test_a_player_is_told_that_the_server_is_lost() -> None:
    """Which is not the end of the match."""
    trouble = Trouble()
    trouble.before_step = trouble.wait
    with serving(TroubledKuhn(trouble)) as server, GameClient(server) as client:
        client.start_game("one", MatchConfig(camps=(Camp(), Camp(bot="random"))))
        seats = client.join("one", 0, turn_seconds=0.5)
        with pytest.raises(ServerLost, match=r"no answer within 0\.5 s"):
            decide(seats, np.random.default_rng(0))
        trouble.going_on.set()


def test_a_late_answer_is_not_taken_for_the_next_one() -> None:
    trouble = Trouble()
    trouble.before_step = trouble.wait
    with serving(TroubledKuhn(trouble)) as server, GameClient(server) as client:
        client.start_game("one", MatchConfig(camps=(Camp(), Camp(bot="random"))))
        seats = client.join("one", 0)
        with ctrl_c(0.3):
            decide(seats, np.random.default_rng(0))
        assert not seats.playing
        trouble.going_on.set()
        assert client.wait_game("one", 30.0).reason == "camp 0 has left"


def test_two_players_meet_and_neither_sees_what_the_other_sees() -> None:
    shown: dict[int, list[bool]] = {0: [], 1: []}
    with serving("kuhn") as server, GameClient(server) as client:
        client.start_game("duel", MatchConfig(camps=(Camp(), Camp()), episodes=4))

        def play(camp: int) -> None:
            seats, rng = client.join("duel", camp), np.random.default_rng(camp)
            while seats.playing:
                (observation,) = seats.view.observation
                other = [array[0, 1 - camp] for array in observation.values()]
                shown[camp].append(any(np.asarray(array).any() for array in other))
                decide(seats, rng)

        players = [threading.Thread(target=play, args=(camp,)) for camp in (0, 1)]
        for player in players:
            player.start()
        for player in players:
            player.join(30.0)
        result = client.wait_game("duel", 30.0)
    assert result.state == "finished", result
    assert len(result.scores) == 4
    assert shown[0]
    assert shown[1]
    assert not any(shown[0] + shown[1])


def test_a_camp_has_one_player_and_a_bot_has_none(client: GameClient) -> None:
    client.start_game("one", MatchConfig(camps=(Camp(), Camp(bot="random"))))
    seats = client.join("one", 0)
    for camp, said in ((0, "has its player"), (1, "played by bot"), (2, "camps 0 to 1")):
        with pytest.raises(GameError, match=said):
            client.join("one", camp)
    seats.close()
    result = client.wait_game("one", 30.0)
    assert (result.state, result.reason) == ("void", "camp 0 has left")
    with pytest.raises(GameError, match="has ended: void"):
        client.join("one", 0)


def test_a_game_that_fails_voids_the_match() -> None:
    trouble = Trouble(before_step=lambda: 1 // 0)  # type: ignore[arg-type,return-value]
    with serving(TroubledKuhn(trouble)) as server, GameClient(server) as client:
        client.start_game("one", TWO_BOTS)
        result = client.wait_game("one", 30.0)
        assert result.state == "void"
        assert result.reason is not None
        assert "ZeroDivisionError" in result.reason
        assert eventually(lambda: trouble.opened == trouble.closed)


def test_only_the_latest_results_are_kept_and_only_so_many_are_played() -> None:
    book = ServerMatches(lambda name, options: resolve("kuhn"), most_at_once=1, kept=3)
    for number in range(5):
        book.start(str(number), TWO_BOTS)
        book.table(str(number)).wait(30.0)
    assert [result.match for result in book.all()] == ["2", "3", "4"]
    book.start("waits", MatchConfig(camps=(Camp(), Camp())))
    with pytest.raises(ValueError, match="1 matches are going on"):
        book.start("more", TWO_BOTS)
    book.close()
    ended: MatchResult = book.table("waits").result
    assert (ended.state, ended.reason) == ("stopped", "the server ends")


def test_no_match_begins_before_the_program_of_the_game_is_ready() -> None:
    with (
        serving("kuhn", why_not_ready=lambda: "the game's program is not ready: starting") as server,
        GameClient(server) as client,
        pytest.raises(ServerLost, match="not ready: starting"),
    ):
        client.start_game("early", TWO_BOTS)


def test_a_game_that_hangs_keeps_no_player_and_no_other_match() -> None:
    trouble, hanging = Trouble(), threading.Event()

    def hang() -> None:
        hanging.set()
        trouble.wait()

    trouble.before_step = hang
    config = MatchConfig(camps=(Camp(), Camp(bot="random")))
    book = ServerMatches(lambda name, options: TroubledKuhn(trouble), most_at_once=4)
    book.start("hangs", config)
    book.start("waits", config)
    player = book.table("hangs").join(0)
    assert player.next_view() is not None
    player.decide(memoryview(bytes(8)))
    assert hanging.wait(20.0)
    book.table("hangs").ask_to_stop("enough")
    assert not book.table("hangs").wait_stopped(0.2).ended
    assert player.next_view() is None
    book.table("waits").ask_to_stop("enough")
    assert book.table("waits").wait_stopped(20.0).state == "stopped"
    trouble.going_on.set()
    assert book.table("hangs").wait(20.0).state == "stopped"


def test_what_the_page_shows_is_what_happens(capsys: pytest.CaptureFixture[str]) -> None:
    page = (Path(__file__).parents[3] / "docs" / "game-server.md").read_text(encoding="utf-8")
    shown = "".join(re.findall(r"```python no-run\n(.*?)```", page, re.DOTALL))
    with serving("connect_four") as server:
        exec(shown.replace("127.0.0.1:23432", server), {})
    bots, joined = capsys.readouterr().out.splitlines()[-2:]
    assert bots == str(((1.0, -1.0),) * 4)
    assert len(joined) > 2
