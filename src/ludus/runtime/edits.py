"""Edits of a league, the same for a run that trains and one that is stopped; and orders to one that trains."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from ludus.data.checks import unknown
from ludus.data.records import (
    RECORDED,
    AddPlayer,
    AnyEdit,
    AnyEvent,
    ChangeSettings,
    Continue,
    FreezePlayer,
    ModelId,
    Order,
    Pause,
    PlayerAdded,
    PlayerRemoved,
    RecordGame,
    RemovePlayer,
    ResetPlayer,
    Settings,
    SettingsChanged,
    Stop,
)
from ludus.experiment import Experiment
from ludus.league.league import League, later_settings
from ludus.league.players import BY_HAND, FROZEN, MAX_ID_LENGTH, SCRIPTED
from ludus.models.policy import load_weights
from ludus.runtime.networks import Networks
from ludus.runtime.settings import checked_settings, effective, require_trainable, with_settings
from ludus.store.model_pool import ModelPool, ModelPoolError, Variant
from ludus.store.run_control import EditAnswer, RequestFolder
from ludus.workers.controller import Controller
from ludus.workers.player_cache import resolve_player


class Orders:
    """Orders to a process that trains: pause, continue, stop."""

    def __init__(self) -> None:
        self._started = time.monotonic()
        self.paused = False
        self.stop = False
        """In good order, as at a first Ctrl-C."""
        self._at_once = False

    def obey(self, order: Order) -> str:
        """Take an order. Returns what happens now, for the command that asked."""
        match order:
            case Pause():
                was, self.paused = self.paused, True
                return "it was paused already" if was else "paused: nobody plays or learns"
            case Continue():
                was, self.paused = self.paused, False
                return "it goes on" if was else "it was not paused"
            case Stop(now=now):
                self.stop = True
                self._at_once = self._at_once or now
                return "it stops at once, without saving" if now else "it saves and stops"

    def end_at_once(self) -> None:
        """Raise `KeyboardInterrupt`, as at a second Ctrl-C, if that was ordered and the command has its answer."""
        if self._at_once:
            raise KeyboardInterrupt

    def is_overdue(self, time_limit_h: float) -> bool:
        """Whether the process has trained for as long as it may."""
        return time.monotonic() - self._started >= 3600 * time_limit_h


REFUSALS = (ValueError, LookupError, ModelPoolError)
"""Errors of an edit that cannot be done; the league and the ledger are then as before."""
_ROOM_FOR_NUMBER = 12
"""Characters of a learning player's id left for the number of a snapshot."""


@dataclass(frozen=True, kw_only=True, slots=True)
class EditContext:
    """The parts of a run that an edit needs besides the league and its controller."""

    written: Experiment
    """As the run folder has it, without what the ledger says was changed since."""
    models: ModelPool
    check: Callable[[Experiment], None]
    """Refuses an experiment that cannot be trained."""


class Editor:
    """Does edits by committing events through the controller."""

    def __init__(self, controller: Controller, context: EditContext) -> None:
        self._controller = controller
        self._context = context

    @property
    def _league(self) -> League:
        return self._controller.league

    @property
    def now(self) -> Experiment:
        """The experiment with all changes so far."""
        return effective(self._context.written, self._league)

    @property
    def learning(self) -> set[str]:
        """The learning players of now."""
        return set(self._league.standings)

    def do(self, edit: AnyEdit) -> str:
        """Says what has happened. All of it is in the ledger then; after one of `REFUSALS` nothing is."""
        match edit:
            case ChangeSettings():
                return self._change(edit)
            case AddPlayer():
                return self._add(edit)
            case RemovePlayer():
                return self._remove(edit)
            case FreezePlayer(player=player):
                self._require_learning(player)
                return f"{player} was frozen as {self._controller.freeze_by_hand(player).player}"
            case ResetPlayer():
                return self._reset(edit)
            case RecordGame():
                return f"{RECORDED}{self._controller.record_game(edit.sides, edit.result, edit.void)}"

    def _change(self, edit: ChangeSettings) -> str:
        if edit.player is not None:
            self._require_learning(edit.player)
        settings = checked_settings(self._now_of(edit.player), edit.settings, edit.player)
        changed = SettingsChanged(settings, edit.player, BY_HAND)
        trial = self._tried([changed])
        awaited = {event.player for event in self._league.initial_events()}  # they join at the first start
        joining = [event for event in trial.initial_events() if event.player not in awaited]
        known = {*trial.players, *awaited, *(event.player for event in joining)}
        joining += [
            PlayerAdded(player=bot, role=SCRIPTED)
            for bot in effective(self._context.written, trial).evaluation.opponents
            if bot not in known
        ]
        for event in joining:
            if event.model is not None:  # it must be there
                self._model(event.model, effective(self._context.written, trial), event.role)
        self._commit([changed, *joining])
        shown = ", ".join(
            f"{path}={edit.settings[path] if isinstance(value, dict | list) else _shown(value)}"
            for path, value in settings.items()
        )
        whose = f" for {edit.player}" if edit.player else ""
        keeps = "" if edit.player else self._who_keeps(settings)
        joined = f"; {', '.join(event.player for event in joining)} joined" if joining else ""
        return f"from now on{whose}: {shown}{keeps}{joined}"

    def _add(self, edit: AddPlayer) -> str:
        roles = (*self._league.rules.roles, FROZEN, SCRIPTED)
        if edit.role not in roles:
            raise ValueError(
                f"{unknown('role', edit.role, roles)} (a new one: "
                f"`ludus set RUN 'league.roles.+{edit.role}={{matchmaking: ...}}'`)"
            )
        if edit.player in self._league.players:
            raise ValueError(f"player id {edit.player!r} was given already; ids are never used again")
        if edit.role in (FROZEN, SCRIPTED) and edit.settings:
            raise ValueError(f"settings are for players that learn, and {edit.role} ones do not")
        if edit.role != SCRIPTED and edit.player in self._context.written.grouped_game.bots():
            raise ValueError(f"{edit.player!r} is a bot of the game; give the player another name")
        event = PlayerAdded(player=edit.player, role=edit.role, reason=BY_HAND)
        if edit.role == SCRIPTED:
            self._require_bot(edit)
        elif edit.role == FROZEN:
            if edit.source is None:
                raise ValueError("a frozen player needs --from: a player, PLAYER@best or a model id")
            model, variant = self._model(edit.source, self.now, None)
            event = msgspec.structs.replace(event, model=str(model), weights=variant)
        else:
            event = self._learning(edit, event)
        self._commit([event])
        start = f" with {event.model}" if event.model else ""
        return f"{edit.player} joined as {edit.role}{start}"

    def _learning(self, edit: AddPlayer, event: PlayerAdded) -> PlayerAdded:
        if "." in edit.player:
            raise ValueError(f"{edit.player!r} must not contain '.': snapshots are called PLAYER.NUMBER")
        if len(edit.player) > MAX_ID_LENGTH - _ROOM_FOR_NUMBER:
            raise ValueError(f"{edit.player!r} is too long to number its snapshots")
        settings = self._league.new_settings(edit.role, edit.player)
        checked = checked_settings(with_settings(self.now.of_role(edit.role), settings), edit.settings, edit.player)
        event = msgspec.structs.replace(event, settings=later_settings(settings, checked))
        if edit.source is None:
            return msgspec.structs.replace(event, model=self._league.rules.roles[edit.role].start)
        model = self._model(edit.source, self.now, edit.role)[0]
        parent = model.player if model.player in self._league.players else None
        return msgspec.structs.replace(event, model=str(model), parent=parent)

    def _require_bot(self, edit: AddPlayer) -> None:
        bots = self._context.written.grouped_game.bots()
        if edit.player not in bots:
            raise ValueError(unknown("bot", edit.player, bots))
        if edit.source is not None:
            raise ValueError(f"a bot has no weights, so --from {edit.source} means nothing")

    def _remove(self, edit: RemovePlayer) -> str:
        if edit.player not in self._league.candidates and edit.player not in self._league.absent:
            raise ValueError(unknown("player", edit.player, self._league.candidates))
        if [*self._league.standings] == [edit.player]:
            raise ValueError(f"{edit.player!r} is the last learning player; add another one first")
        opponents = self.now.evaluation.opponents
        if edit.player in opponents:
            others = ",".join(other for other in opponents if other != edit.player)
            raise ValueError(
                f"snapshots are measured against {edit.player!r}; "
                f"change that first: `ludus set RUN evaluation.opponents={others}`"
            )
        self._commit([PlayerRemoved(edit.player, edit.reason)])
        return f"{edit.player} left the league"

    def _reset(self, edit: ResetPlayer) -> str:
        self._require_learning(edit.player)
        event = self._league.reset_of(self._league.standings[edit.player])
        event = msgspec.structs.replace(event, reason=BY_HAND)
        if edit.source is not None:
            role = self._league.role_of(edit.player)
            event = msgspec.structs.replace(event, model=str(self._model(edit.source, self.now, role)[0]))
        self._commit([event])
        return f"{edit.player} starts again from {event.model or 'fresh weights'}"

    def _model(self, source: str, now: Experiment, role: str | None) -> tuple[ModelId, Variant]:
        """The model that is meant, for a player of this role; None: for a frozen one. A learning player's is put
        into the pool as it is now."""
        variant: Variant = "live"
        if source in self._league.standings:
            model = self._controller.publish(source)
        else:
            model, variant = resolve_player(self._league, self._context.models, source)
        networks, weights = Networks(now, self._league.role_of), self._context.models.fetch(model, variant)
        policies = networks.of_model(model, weights) if role is None else networks.of_role(role)
        try:
            load_weights(policies, weights)
        except ValueError as error:
            whose = "this run" if role is None else f"role {role}"
            raise ValueError(f"{source} does not fit the networks of {whose}: {error}") from error
        return model, variant

    def _now_of(self, player: str | None) -> Experiment:
        """The experiment as one player has it."""
        if player is None:
            return self.now
        return with_settings(self.now.of_role(self._league.role_of(player)), self._league.own_settings(player))

    def _who_keeps(self, settings: Settings) -> str:
        """Which players have values of their own for these, or for parts of them, and so go on with those."""
        kept = {
            player: [
                own
                for own in self._league.own_settings(player)
                if any(f"{own}.".startswith(f"{path}.") or f"{path}.".startswith(f"{own}.") for path in settings)
            ]
            for player in self._league.standings
        }
        players = ", ".join(player for player, own in kept.items() if own)
        paths = ", ".join(dict.fromkeys(path for own in kept.values() for path in own))
        return f" (of their own they keep {paths}: {players})" if players else ""

    def _require_learning(self, player: str) -> None:
        if player not in self._league.standings:
            raise ValueError(unknown("learning player", player, self._league.standings))

    def _tried(self, events: Sequence[AnyEvent]) -> League:
        """A copy of the league with these events: what it refuses must not get into the ledger."""
        trial = copy.deepcopy(self._league)
        for event in events:
            trial.apply(event)
        trial.check_players()
        require_trainable(self._context.written, trial)
        self._context.check(effective(self._context.written, trial))
        return trial

    def _commit(self, events: Sequence[AnyEvent]) -> None:
        trial = self._tried(events)
        for bot in effective(self._context.written, trial).evaluation.opponents:
            if bot in trial.players and bot not in trial.candidates:
                raise ValueError(f"snapshots cannot be measured against {bot!r}: it has left the league")
        self._controller.edit(events)


def answer_requests(requests: RequestFolder, editor: Editor, orders: Orders) -> bool:
    """Do what commands have asked for meanwhile; says whether the league has changed. Once learning players
    have joined or left, the rest waits until they have a learner.

    A request that is wrong is refused, and the run goes on. An error of the run is answered and raised.
    """
    changed = False
    learning = editor.learning
    for request in requests.take():
        if request.edit is None:
            request.answer(EditAnswer(refused=request.problem))
            continue
        if isinstance(request.edit, Order):
            request.answer(EditAnswer(done=orders.obey(request.edit)))
            continue
        try:
            request.answer(EditAnswer(done=editor.do(request.edit)))
            changed = True
        except REFUSALS as error:
            request.answer(EditAnswer(refused=str(error)))
        except BaseException as error:  # it may be in the ledger already
            request.answer(EditAnswer(failed=str(error)))
            raise
        if editor.learning != learning:
            break
    return changed


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()
