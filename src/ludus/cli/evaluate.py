"""`ludus eval`: matches between players of a run: learning players, snapshots and bots."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec
from rich.table import Table

from ludus.cli.options import (
    AT_LEAST_0,
    COUNT,
    Weights,
    code_trust_option,
    greedy_option,
    json_option,
    seed_option,
    tables_option,
    together,
    weights_option,
)
from ludus.evaluation.entrants import is_run_address, split_address
from ludus.evaluation.measures import seated_matches
from ludus.evaluation.yardstick import measure_yardstick, share
from ludus.games.catalog import list_games, resolve
from ludus.games.game import GameSource
from ludus.games.pictures import pictured
from ludus.league.players import with_weights
from ludus.league.role_scores import RoleLine
from ludus.lookup import open_run
from ludus.models.policy import use_threads
from ludus.observe.terminal import add_numbers, new_console, new_table, role_cells
from ludus.store.run_folder import RunFolder
from ludus.system.machine import install_command

if TYPE_CHECKING:
    from ludus.games.pictures import Moment
    from ludus.workers.player_cache import Players

    Show = Callable[[Moment], None]

EPISODES = 400
LIVE = "live"
SHORT_GAME = 64  # steps of an episode in which every one is looked at for itself, as in a board game
FRAMES_PER_SECOND, OF_SHORT_GAMES = 12, 2
EPISODES_IN_FILE, EPISODES_LIVE = 1, 10
LIBRARIES = {"PIL": "render", "starlette": "web", "uvicorn": "web"}  # library -> the extra that installs it


@dataclass(frozen=True, kw_only=True, slots=True)
class Rendering:
    """The option --render and those that go with it; None: not given."""

    render: str | None
    render_episodes: int | None
    render_size: int | None
    seat: int | None
    fps: int | None
    port: int | None

    @property
    def live(self) -> bool:
        return self.render == LIVE

    def __post_init__(self) -> None:
        further = ("render_episodes", "render_size", "seat", "fps", "port")
        given = [f"--{name.replace('_', '-')}" for name in further if getattr(self, name) is not None]
        if self.render is None and given:
            raise click.UsageError(f"{given[0]} is for pictures: add --render FILE.gif or --render live")
        if self.live and self.render_size is not None:
            raise click.UsageError("--render-size is for a file; a page is as wide as its window")
        if not self.live and self.port is not None:
            raise click.UsageError("--port is for --render live; a file needs none")
        path = Path(self.render or "")
        if self.render is not None and not self.live and path.suffix.lower() != ".gif":
            reason = f"{self.render!r} is neither a name that ends in .gif nor 'live'"
            raise click.BadParameter(reason, param_hint="'--render'")
        if not path.parent.is_dir():
            reason = f"{self.render}: there is no folder {str(path.parent)!r}"
            raise click.BadParameter(reason, param_hint="'--render'")

    def require_possible(self, game: GameSource) -> None:
        """Raise an error before anything is played if it cannot be shown."""
        if self.render is None:
            return
        num_seats = game.spec.num_seats
        if self.seat is not None and self.seat >= num_seats:
            seats = "only seat 0" if num_seats == 1 else f"seats 0 to {num_seats - 1}"
            raise click.BadParameter(f"{self.seat}: {game.spec.name} has {seats}", param_hint="'--seat'")
        if not _has_pictures(game):
            built_in = (entry.address for entry in list_games() if entry.library is None)
            others = ", ".join(name for name in built_in if _has_pictures(resolve(name)))
            raise click.UsageError(
                f"--render: {game.spec.name} has no pictures; these built-in games have: {others} "
                "(docs/evaluation.md: pictures of your own game)"
            )
        for library, extra in LIBRARIES.items():
            if (self.live or extra == "render") and find_spec(library) is None:
                raise click.ClickException(f"--render needs {library}: {install_command(extra)}")

    def play(self, game: GameSource, players: Players, line_ups: Sequence[tuple[str, ...]], *, seed: int) -> None:
        """Play the line-ups with pictures. Messages go to standard error, so that results can be piped."""
        from ludus.evaluation.tournament import EvaluationMatch

        episodes = self.render_episodes or (EPISODES_LIVE if self.live else EPISODES_IN_FILE)
        fps = self.fps or (OF_SHORT_GAMES if game.spec.max_length <= SHORT_GAME else FRAMES_PER_SECOND)

        def play_before(show: Show) -> None:
            EvaluationMatch(game, players, line_ups, show, episodes=episodes, seat=self.seat, seed=seed).run()

        if self.live:
            self._show_live(play_before, fps)
        elif self.render is not None:
            self._write(Path(self.render), play_before, fps)

    def _write(self, path: Path, play_before: Callable[[Show], None], fps: int) -> None:
        from ludus.observe.pictures import Animation

        animation = Animation(frames_per_second=fps, width=self.render_size)
        play_before(animation.add)
        frames = animation.write(path)
        click.echo(f"pictures: {path} ({frames} frames, {path.stat().st_size / 1000:,.0f} kB)", err=True)

    def _show_live(self, play_before: Callable[[Show], None], fps: int) -> None:
        from ludus.observe.live_page import LivePage

        page = LivePage(port=self.port or 0, moments_per_second=fps)
        reason = "the command has stopped"
        try:
            click.echo(f"open {page.url} to watch; play begins then, Ctrl-C ends it", err=True)
            page.wait_for_spectator()
            play_before(page.show)
            reason = "all episodes have been played"
        finally:
            page.close(reason)
        click.echo(reason, err=True)


rendering_options = together(
    click.option("--render", metavar="FILE.gif|live", help="Then play on with pictures: in a file, or in a browser."),
    click.option("--render-episodes", type=COUNT, show_default=f"{EPISODES_IN_FILE}, live {EPISODES_LIVE}",
                 help="Episodes per pair with pictures."),
    click.option("--render-size", type=click.IntRange(64, 2048), show_default="as the game draws them",
                 help="Width of the pictures in pixels."),
    click.option("--seat", type=AT_LEAST_0, show_default="everything", help="Show only what this seat sees."),
    click.option("--fps", type=click.IntRange(1, 50), help="Pictures per second.",
                 show_default=f"{FRAMES_PER_SECOND}, or {OF_SHORT_GAMES} in a short game"),
    click.option("--port", type=click.IntRange(1, 65535), show_default="any that is free", help="Where the page is."),
)  # fmt: skip
"""The options of `Rendering`, under the names of its fields."""


def _has_pictures(game: GameSource) -> bool:
    with closing(game.tables(1)) as tables:
        return pictured(tables) is not None


@click.command("eval")
@click.argument("run", required=False, type=click.Path())
@click.argument("players", nargs=-1)
@click.option(
    "--episodes",
    "-n",
    type=AT_LEAST_0,
    show_default=f"{EPISODES}, with --yardstick 0",
    help="Fewest per pair; 0 with --render: only pictures. With --yardstick, games against its bots.",
)
@click.option("--yardstick", is_flag=True, help="How well PLAYERS decide in positions whose outcome is known.")
@weights_option
@greedy_option
@tables_option
@seed_option
@json_option("One JSON object per pair.")
@rendering_options
@code_trust_option
def eval_command(
    run: str | None,
    players: tuple[str, ...],
    episodes: int | None,
    yardstick: bool,
    weights: Weights,
    greedy: bool,
    tables: int,
    seed: int,
    as_json: bool,
    **rendering: Any,
) -> None:
    """Play the first of PLAYERS against each of the others, seats in rotation. In a game of three teams or more,
    one opponent sits on all other teams; A,B (with a comma) are the players of two of them.

    A player is named by its id (main, main.3, random), by a tag (main@best, main@latest) or by a model
    (main:0:12). With ?search=64 behind its name, a player searches with its network, 64 positions for each move.
    RUN#PLAYER is a player of that run, which may be another one of the same game. A bot from outside is given by its
    address (bots.py:Greedy, "program:node bot.js"), with a name in front if you like (mine=bots.py:Greedy).

    Without players: the first learning player against its first snapshot and the evaluation bots. Results are
    kept in the run's metrics, apart from the league.

    With --render, further episodes are played after that, with pictures.

    With --yardstick, each of PLAYERS (without any: the first learning player) chooses a move in the positions that
    the game keeps for this, and the table shows how many moves keep the value of the position and how many are
    optimal. With -n, each also plays against the bots that belong to the yardstick.
    """
    pictures = Rendering(**rendering)
    use_threads(1)
    if run is not None and is_run_address(run):  # RUN#PLAYER in place of RUN PLAYER
        run, first = split_address(run)
        players = (first or "", *players)
    if yardstick:
        if pictures.render is not None:
            raise click.UsageError("--render is for games; --yardstick asks for single moves")
        how = {"weights": weights, "greedy": greedy}
        _measure_yardstick(open_run(run), players, episodes or 0, tables, as_json, seed, how)
        return
    episodes = EPISODES if episodes is None else episodes
    if not episodes and pictures.render is None:
        raise click.BadParameter("0 episodes, and no --render: nothing to do", param_hint="'--episodes'")
    with seated_matches(open_run(run), players, weights=weights, greedy=greedy) as matches:
        pictures.require_possible(matches.game)
        if episodes:
            measured = matches.play(games=episodes, seed=seed, tables=tables)
            if not measured.kept:
                click.echo(f"{matches.folder.path} is read-only: the results are not kept there", err=True)
            _print_rows(measured.rows, as_json, lambda rows: _table(rows, matches.league.num_teams))
        pictures.play(matches.game, matches.players, matches.line_ups, seed=seed)


def _print_rows(rows: Sequence[dict[str, Any]], as_json: bool, table: Callable[..., Table]) -> None:
    if as_json:
        for row in rows:
            click.echo(json.dumps(row))
    else:
        new_console().print(table(rows))


def _measure_yardstick(
    folder: RunFolder, players: Sequence[str], games: int, tables: int, as_json: bool, seed: int, how: Mapping[str, Any]
) -> None:
    """`how`: which weights of a player are loaded, and whether it is greedy."""
    measured = measure_yardstick(folder, players, seed=seed, **how)
    _print_rows(measured.rows, as_json, _yardstick_table)
    if not games:
        return
    rows: list[dict[str, Any]] = []
    for player in dict.fromkeys(row["player"] for row in measured.rows):
        with seated_matches(folder, (player, *measured.opponents), **how) as matches:
            rows += matches.play(games=games, seed=seed, tables=tables).rows
    _print_rows(rows, as_json, lambda played: _table(played, 2))


def _yardstick_table(rows: Sequence[dict[str, Any]]) -> Table:
    """A row per player and set."""
    table = new_table("player", "positions")
    add_numbers(table, "number", "keeps the value (95 %)", "decisive", "keeps it there", "optimal")
    moves = "take the most probable move" if rows[0]["greedy"] else "sample; --greedy takes the most probable move"
    table.caption = (
        f"A position is decisive if some moves keep its value (win, draw or loss) and others do not. Networks {moves}."
    )
    for row in rows:
        shares = {name: share(row, name) for name in ("keeps_value", "keeps_value_decisive", "optimal")}
        cells = [str(row["positions"]), shares["keeps_value"], str(row["decisive"])]
        cells += [shares["keeps_value_decisive"], shares["optimal"]]
        table.add_row(with_weights(row["player"], row["weights"]), row["set"], *cells)
    return table


def _table(rows: Sequence[dict[str, Any]], teams: int) -> Table:
    """A row per pair of players; with more than two teams it names who else sits at the table."""
    table = new_table("player", *["against"] * (teams > 1), *["beside"] * (teams > 2))
    if teams > 1:
        add_numbers(table, "win rate (95 %)", "won/drawn/lost")
    add_numbers(table, "mean score")
    roles = [one["role"] for one in rows[0].get("roles", ())]
    add_numbers(table, *(f"as {role}" for role in roles))
    used = {weights for row in rows for weights in row["weights"] if weights is not None}
    if len(used) == 1:
        table.caption = f"Played with {used.pop()} weights."
    labelled = bool(table.caption)
    if roles:
        table.caption = (
            f"{table.caption or ''} As a role: mean score, and in brackets its lead over what the others got in that "
            "role in the same games. Win rates compare two players in the same role."
        ).strip()
    for row in rows:
        named = zip(row["players"], row["weights"], strict=True)
        names = row["players"] if labelled else [with_weights(*one) for one in named]
        score = f"{row['score']:+.3f} ±{1.96 * row['score_standard_error']:.3f}"
        numbers = [score, *role_cells(msgspec.convert(row.get("roles", ()), tuple[RoleLine, ...]))]
        pairs: dict[str, dict[str, Any]] = {}
        against = row.get("against", [row] if len(names) > 1 else [])  # a player alone plays against nobody
        for other, pair in zip(names[1:], against, strict=True):
            pairs.setdefault(other, pair)  # of copies, one
        if not pairs:
            table.add_row(names[0], *numbers)
        for other, pair in pairs.items():
            others = [*names[1:]]
            others.remove(other)
            low, high = pair["win_rate_interval"]
            cells = [names[0], other, *[", ".join(others)] * (teams > 2)]
            cells.append(f"{pair['win_rate']:.1%} ({100 * low:.1f}-{100 * high:.1f})")
            table.add_row(*cells, "/".join(str(pair[name]) for name in ("wins", "draws", "losses")), *numbers)
    return table
