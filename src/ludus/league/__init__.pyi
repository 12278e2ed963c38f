"""The public names of `ludus.league`."""

# Also in `ludus`
from ludus.league.rules import LeagueRules  # The settings of a league: roles, bots, payoff.
from ludus.league.rules import Role  # What a number of learning players have in common.
from ludus.league.matchmaking import Matchmaker  # Interface of a rule that chooses opponents.
from ludus.league.matchmaking import SelfPlay  # Opponents: the player's own latest weights.
from ludus.league.matchmaking import PFSP  # Opponents: snapshots by how the player does against them.
from ludus.league.matchmaking import UniformPast  # Opponents: every snapshot alike.
from ludus.league.matchmaking import Mixture  # Opponents: one of several rules at random.
from ludus.league.psro import MetaStrategy  # Opponents: the meta-strategy of all snapshots (PSRO).
from ludus.league.matchmaking import Candidates  # The players that a rule may choose from.
from ludus.league.payoff import Payoff  # Win rates and scores between players, from results.
from ludus.league.promotion import BySteps  # A snapshot every so many decisions.
from ludus.league.promotion import ByUpdates  # A snapshot every so many updates.
from ludus.league.promotion import ByTime  # A snapshot every so many seconds of training.
from ludus.league.promotion import ByWinRate  # A snapshot once opponents are beaten often enough.
from ludus.league.promotion import ByScore  # A snapshot when the mean score has grown.
from ludus.league.population import Population  # Population-based training of a role's settings.

# More
from ludus.league.matchmaking import Live  # Opponents: a learning player of another role as it is now.
from ludus.league.matchmaking import Latest  # Opponents: the newest snapshot.
from ludus.league.matchmaking import FixedLaw  # Opponents: given players with given shares.
from ludus.league.quality import QualityScores  # Opponents: snapshots by their quality scores.
from ludus.league.matchmaking import LiveOrPast  # Opponents: a live rival, or its past while it is too strong.
from ludus.league.matchmaking import Verification  # Opponents: AlphaStar's verification matches.
from ludus.league.matchmaking import ForgottenOrStrong  # Opponents: forgotten snapshots and strong exploiters.
from ludus.league.matchmaking import Law  # Player id to probability.
from ludus.league.matchmaking import uniform  # The same probability for every player.
from ludus.league.promotion import Promotion  # Interface of a rule that says when to take a snapshot.
from ludus.league.promotion import Snapshot  # The answer of a promotion rule: freeze the player now.
from ludus.league.promotion import Never  # No snapshot but the initial one.
from ludus.league.promotion import AnyOf  # A snapshot as soon as one of several rules asks for it.
from ludus.league.promotion import AllOf  # A snapshot when all of several rules ask for it.
from ludus.league.promotion import BoundedHistory  # Which snapshots stay when there are many.
from ludus.league.promotion import Restart  # Interface of a rule that chooses what a reset player starts from.
from ludus.league.promotion import FromStart  # A reset player starts from what it began with.
from ludus.league.promotion import AfterReset  # What happens to a player after a reset.
from ludus.league.payoff import PayoffRules  # How fast old games fade.
from ludus.league.population import Selection  # Interface of a rule that chooses the donor of a member.
from ludus.league.population import Truncation  # The worst members take over from the best.
from ludus.league.population import BinaryTournament  # A member takes over from one that beats it.
from ludus.league.population import SearchSpace  # Interface of the values that a setting may have.
from ludus.league.population import Uniform  # A number, each alike.
from ludus.league.population import LogUniform  # A number, each order of magnitude alike.
from ludus.league.population import OneOf  # One of several values.
from ludus.league.rules import Exploiters  # Best responses that a run trains against its own snapshots.
from ludus.league.players import Player  # A member of the league.
from ludus.league.players import Standing  # What is known about one learning player.
from ludus.data.records import Match  # Players on the seats of tables, for a number of episodes.
from ludus.data.records import Side  # The players of one team in a match.
from ludus.data.records import Result  # The result of a match.
from ludus.data.records import Pair  # Wins, draws and losses of one side against another.
from ludus.data.records import MatchIssued  # Ledger event: a match was issued.
from ludus.data.records import RunStarted  # Ledger event: the run was started.
from ludus.league.measures import measure  # Measures of a whole league, with intervals.
from ludus.league.psro import META_SOLVERS  # Solvers of MetaStrategy by name.
from ludus.league.players import SCRIPTED  # The role of scripted players.
from ludus.league.presets import MAIN  # The role of main players in the presets.
from ludus.league.presets import MAIN_EXPLOITER  # The role of main exploiters in the presets.
from ludus.league import presets  # Leagues that were published, by name.

__all__ = [
    "MAIN",
    "MAIN_EXPLOITER",
    "META_SOLVERS",
    "PFSP",
    "SCRIPTED",
    "AfterReset",
    "AllOf",
    "AnyOf",
    "BinaryTournament",
    "BoundedHistory",
    "ByScore",
    "BySteps",
    "ByTime",
    "ByUpdates",
    "ByWinRate",
    "Candidates",
    "Exploiters",
    "FixedLaw",
    "ForgottenOrStrong",
    "FromStart",
    "Latest",
    "Law",
    "LeagueRules",
    "Live",
    "LiveOrPast",
    "LogUniform",
    "Match",
    "MatchIssued",
    "Matchmaker",
    "MetaStrategy",
    "Mixture",
    "Never",
    "OneOf",
    "Pair",
    "Payoff",
    "PayoffRules",
    "Player",
    "Population",
    "Promotion",
    "QualityScores",
    "Restart",
    "Result",
    "Role",
    "RunStarted",
    "SearchSpace",
    "Selection",
    "SelfPlay",
    "Side",
    "Snapshot",
    "Standing",
    "Truncation",
    "Uniform",
    "UniformPast",
    "Verification",
    "measure",
    "presets",
    "uniform",
]  # fmt: skip
