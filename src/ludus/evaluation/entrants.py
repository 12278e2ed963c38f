"""Players by address, from any runs and bots of one game, loaded to meet. This is the one place where an address
becomes a player:

RUN                 the best snapshot of the first learning player of a run
RUN#PLAYER          a player of a run, named as in `ludus eval`: main, main.3, main@best, main:0:12
bot:NAME            a bot of the game
FILE.onnx           an exported agent
FILE.py:CLASS       a bot of your own, also "program:COMMAND"

NAME= in front gives a player another name. Runs are only read."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from ludus.config import ConfigError, as_config_error, encode
from ludus.data.checks import unknown
from ludus.evaluation.exploitability import Member
from ludus.experiment import Experiment
from ludus.games.catalog import resolve
from ludus.games.exported import SUFFIX
from ludus.games.game import GameSource
from ludus.games.outside_bots import fixed_addresses, named_address, with_bots
from ludus.league.league import League
from ludus.runtime.assemble import load_players, load_state
from ludus.runtime.services import services_at_hand
from ludus.store.model_pool import Variant
from ludus.store.run_folder import RunFolder
from ludus.workers.player_cache import FixedPlayers, SeatedPlayer, played_weights

BOT = "bot:"
_NAMED = re.compile(r"([\w.@+\-]+)=(.+)")


@dataclass(frozen=True, kw_only=True, slots=True)
class Entrant:
    """A player that is loaded."""

    name: str
    """As tables show it."""
    address: str
    seated: SeatedPlayer
    weights: Variant | None
    """None for a bot."""
    digest: str
    """Of what plays: the weights, the file of an exported agent or of a bot of the user's own, or the bot's name."""


@dataclass(frozen=True, kw_only=True)
class Field:
    """Players of one game that can sit at the same tables."""

    game: GameSource
    game_digest: str
    """Of the game without the bots of the user's own that play: others may join later."""
    entrants: tuple[Entrant, ...]

    @property
    def players(self) -> FixedPlayers:
        return FixedPlayers({one.name: one.seated for one in self.entrants})


def split_address(text: str) -> tuple[str, str | None]:
    """Run and player of `RUN#PLAYER`; the player is None for a run alone."""
    run, hash_sign, player = text.rpartition("#")
    return (run, player) if hash_sign else (text, None)


def is_run_address(text: str) -> bool:
    """Whether a text is `RUN#PLAYER`."""
    run, player = split_address(text)
    return player is not None and (Path(run) / "run.json").is_file()


class RunPlayers:
    """Loads players of one run."""

    def __init__(self, folder: RunFolder) -> None:
        self.folder = folder
        self.experiment: Experiment
        self.league: League
        self.experiment, self.league = load_state(folder)

    @property
    def usual(self) -> str:
        """The player that a run alone stands for."""
        for player in self.league.standings:
            return f"{player}@best" if self.league.candidates.history_of(player) else player
        raise ConfigError(f"{self.folder.path} has no learning player yet: write RUN#PLAYER")

    def load(self, name: str, *, weights: Variant, greedy: bool) -> tuple[SeatedPlayer, Variant | None]:
        """A player, and the weights that it plays with."""
        (seated,) = load_players(
            self.experiment, self.folder, self.league, [name], weights=weights, greedy=greedy
        ).values()
        return seated, played_weights(self.league, self.folder.models, name, weights)


def require_same_tables(first: RunPlayers, other: RunPlayers) -> None:
    """Refuse runs whose players cannot sit at the same tables."""
    a, b = first.experiment, other.experiment
    if encode(a.game) != encode(b.game):
        raise ConfigError(
            f"{first.folder.path} plays {a.game.spec.name} and {other.folder.path} plays {b.game.spec.name} with other "
            "settings, or another game: their players cannot meet"
        )
    if a.policies != b.policies:
        raise ConfigError(
            f"the policies of {first.folder.path} and {other.folder.path} divide the seats in different ways: they "
            "cannot sit at the same tables"
        )


@contextmanager
def load_field(
    addresses: Sequence[str], *, weights: Variant = "average", greedy: bool = False, game: str | None = None
) -> Iterator[Field]:
    """Load players by their addresses. Services of the runs end with the block. `game`: address of the game, where all
    players are bots."""
    named = [_named(text) for text in addresses]
    outside = {name or found[0]: found[1] for name, address in named if (found := _outside_bot(address)) is not None}
    runs: dict[Path, RunPlayers] = {}
    with ExitStack() as services:
        for path in (_run_of(address) for _, address in named if _bot(address) is None):
            if path not in runs:
                runs[path] = RunPlayers(RunFolder.open(path))
                require_same_tables(next(iter(runs.values())), runs[path])
                services.enter_context(services_at_hand(runs[path].experiment, runs[path].folder))
        alone = _game(next(iter(runs.values()), None), game, {})
        played = _game(next(iter(runs.values()), None), game, outside) if outside else alone
        bots = played.bots()
        entrants = []
        used: Variant | None
        for name, address in named:
            bot = _bot(address)
            if bot is not None:
                own = _outside_bot(address)
                key = bot if own is None else name or own[0]
                if key not in bots:
                    raise ConfigError(f"{address}: {unknown(f'bot of {played.spec.name}', key, bots)}")
                seated, used, shown = SeatedPlayer(bot=bots[key]), None, name or key
                digest = _digest(f"{BOT}{key}") if own is None else _outside_digest(own[1])
            else:
                run = runs[_run_of(address)]
                player = split_address(address)[1] or run.usual
                seated, used = run.load(player, weights=weights, greedy=greedy)
                digest = Member(name=player, seated=seated, weights=used).digest or _digest(f"{BOT}{player}")
                shown = name or f"{run.folder.path.name}#{player}"
            entrants.append(Entrant(name=shown, address=address, seated=seated, weights=used, digest=digest))
        game_digest = _digest(msgspec.json.encode(encode(alone), order="sorted").decode())
        yield Field(game=played, game_digest=game_digest, entrants=tuple(_told_apart(entrants)))


def _game(run: RunPlayers | None, game: str | None, outside: Mapping[str, str]) -> GameSource:
    """The game as it is played outside of training, with further bots."""
    with as_config_error():
        if run is None:
            if game is None:
                raise ConfigError("only bots are named: which game do they play? --game ADDRESS")
            return with_bots(resolve(game), fixed_addresses(outside))
        if game is not None:
            raise ConfigError(f"--game {game}: the runs say what is played; leave it out")
        bots = {**run.experiment.bots, **fixed_addresses(outside)}
        return replace(run.experiment, bots=bots).measured_game


def _named(text: str) -> tuple[str | None, str]:
    match = None if Path(split_address(text)[0]).exists() else _NAMED.fullmatch(text)
    return (match[1], match[2]) if match else (None, text)


def _run_of(address: str) -> Path:
    run = Path(split_address(address)[0])
    if not (run / "run.json").is_file():
        raise ConfigError(
            f"{address!r} is no player: there is no run folder {run}. Write RUN, RUN#PLAYER, FILE.onnx, "
            "bot:NAME or FILE.py:CLASS"
        )
    return run


def _bot(address: str) -> str | None:
    """The name or address of a bot; None for a player of a run."""
    if address.startswith(BOT):
        return address.removeprefix(BOT)
    return address if _outside_bot(address) is not None else None


def _outside_bot(address: str) -> tuple[str, str] | None:
    return None if Path(split_address(address)[0]).is_dir() else named_address(address.removeprefix(BOT))


def _told_apart(entrants: list[Entrant]) -> Iterator[Entrant]:
    """With whole addresses as names where short ones are the same."""
    names = [one.name for one in entrants]
    for one in entrants:
        name = one.address if names.count(one.name) > 1 else one.name
        yield replace(one, name=name)
    first: dict[str, Entrant] = {}
    for one in entrants:
        same = first.setdefault(one.digest, one)
        if same is not one:
            raise ConfigError(f"{same.address} and {one.address} are the same player; name it once")


def _outside_digest(address: str) -> str:
    """Of the file that plays, so that another one in its place is another player."""
    if address.endswith(SUFFIX):
        return hashlib.sha256(Path(address).read_bytes()).hexdigest()
    file = Path(address.rpartition(":")[0])
    content = file.read_bytes() if file.suffix == ".py" and file.is_file() else b""
    return hashlib.sha256(address.encode() + content).hexdigest()


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
