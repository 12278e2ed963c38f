import pytest

from ludus.games.builtin.connect_four import ConnectFour
from ludus.games.builtin.goofspiel import Goofspiel
from ludus.games.builtin.hills import Hills
from ludus.games.builtin.kuhn import Kuhn
from ludus.games.builtin.leduc import Leduc
from ludus.games.builtin.siege import Siege
from ludus.games.builtin.sumo import Sumo
from ludus.games.builtin.tic_tac_toe import TicTacToe
from ludus.games.check import check_game
from ludus.games.game import GameSource


@pytest.mark.parametrize(
    "source",
    [
        ConnectFour(),
        ConnectFour(threats=False),
        ConnectFour(all_threats=True),
        TicTacToe(),
        Hills(),
        Siege(),
        Goofspiel(),
        Goofspiel(num_cards=3),
        Kuhn(seats=3, critic_state=True),
        Leduc(critic_state=True),
        Sumo(),
        Sumo(decisions=5),
    ],
    ids=repr,
)
def test_keeps_the_promises_of_a_game(source: GameSource) -> None:
    report = check_game(source, episodes=6, tables=3, bot_seconds=0.1)
    assert report.ok, str(report)
