"""Replays of StarCraft II as episodes of a dataset, replayed by the game through PySC2.

A replay runs only in the version of the game that made it; replays of versions that are not installed are skipped.
"""

from __future__ import annotations

import io
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import mpyq
import numpy as np
from s2protocol.decoders import VersionedDecoder

from ludus.data.replay import (
    OUTCOMES,
    DecodedReplay,
    Episode,
    EpisodeFacts,
    EpisodeFilter,
    NoOp,
    Outcome,
    column_specs,
    kept_decisions,
)
from ludus.data.specs import SeatKind
from ludus.data.trees import Tree, allocate, under
from ludus.games.adapters.pysc2 import PySC2
from ludus.games.adapters.pysc2_actions import (
    DELAY,
    FUNCTION,
    NO_OP,
    FunctionCodec,
    UnknownFunctionError,
    query_abilities,
)
from ludus.games.adapters.pysc2_history import BUILD_ORDER, NUM_FACTS, ActionHistory
from ludus.games.adapters.pysc2_library import (
    closing_on_error,
    features,
    flags,
    installed_versions,
    messages,
    run_configs,
    sc2_env,
)
from ludus.games.adapters.pysc2_observations import ObservationCodec
from ludus.games.adapters.pysc2_session import LOST, interface_options
from ludus.games.adapters.pysc2_tables import has_strategies

_RACES = {"Terr": "terran", "Zerg": "zerg", "Prot": "protoss"}
_OUTCOMES: dict[str, Outcome] = {"Win": "win", "Loss": "loss", "Tie": "draw", "Undecided": "draw"}
_METADATA = "replay.gamemetadata.json"
_NUMBER, _FILE_VERSION, _HEADER = range(3)
_HEADER_TYPES = (
    ("_int", [(0, 64)]),
    ("_struct", [[("major", _NUMBER, 1), ("minor", _NUMBER, 2), ("revision", _NUMBER, 3), ("build", _NUMBER, 5)]]),
    ("_struct", [[("version", _FILE_VERSION, 1), ("game_steps", _NUMBER, 3)]]),
)
"""The used fields of a header, as types of s2protocol: name, type and number. The decoder skips all others."""


class DamagedReplayError(ValueError):
    """The file is no replay of StarCraft II, or an incomplete one."""


class ReplayPlayer(NamedTuple):
    race: str
    outcome: Outcome
    mmr: int = 0
    """Rating; 0 if the replay does not say."""


class ReplayHeader(NamedTuple):
    version: str
    """Version of the game, such as `4.10.0`."""
    build: int
    """Build of the program that plays it."""
    game_steps: int
    map: str
    """Title of the map; empty in old replays."""
    players: tuple[ReplayPlayer, ...]
    """Players in PySC2's order; empty in old replays."""


def read_header(content: bytes) -> ReplayHeader:
    try:
        archive = mpyq.MPQArchive(io.BytesIO(content), listfile=False)
        header = VersionedDecoder(archive.header["user_data_header"]["content"], _HEADER_TYPES).instance(_HEADER)
        version = header["version"]
        metadata = json.loads(archive.read_file(_METADATA) or b"{}")
        return ReplayHeader(
            version=".".join(str(version[name]) for name in ("major", "minor", "revision")),
            build=version["build"],
            game_steps=header["game_steps"],
            map=str(metadata.get("Title", "")),
            players=tuple(_player(player) for player in metadata.get("Players", ())),
        )
    except Exception as error:  # arbitrary bytes may raise anything in the reader of archives
        raise DamagedReplayError(f"it cannot be read: {type(error).__name__}: {error}") from error


def _player(facts: dict[str, Any]) -> ReplayPlayer:
    race = str(facts.get("AssignedRace", facts.get("SelectedRace", "")))
    return ReplayPlayer(
        race=_RACES.get(race, race.lower()),
        outcome=_OUTCOMES.get(facts.get("Result", ""), "draw"),
        mmr=max(0, int(facts.get("MMR", 0))),
    )


class SC2Replays:
    """An `EpisodeSource` from .SC2Replay files of games between two players."""

    def __init__(self, source: PySC2, files: Mapping[str, Path], no_op: NoOp | None = None) -> None:
        self._source = source
        self._codecs = FunctionCodec(source), ObservationCodec(source)
        self._files = files
        self._no_op = no_op
        self.game = source.spec.name
        self.kind: SeatKind = source.spec.kinds[0]
        self.strategy = (BUILD_ORDER, NUM_FACTS, True) if has_strategies(source) else None
        """Build orders are known with the raw interface, which shows all units of a player."""
        self._versions: Mapping[str, Any] | None = None
        self._process: Any = None
        self._playing = ""
        """Version of the running process."""

    def replays(self) -> Sequence[str]:
        return list(self._files)

    def decode(self, names: Sequence[str], wanted: EpisodeFilter) -> Iterator[DecodedReplay]:
        try:
            for name in names:
                yield self._decode(name, wanted)
        finally:
            self.close()

    def close(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            with suppress(Exception):
                process.close()

    def _decode(self, name: str, wanted: EpisodeFilter) -> DecodedReplay:
        try:
            content = self._files[name].read_bytes()
            header = read_header(content)
        except OSError as error:
            return DecodedReplay(name=name, skipped=f"cannot be read: {error.strerror}")
        except DamagedReplayError as error:
            return DecodedReplay(name=name, skipped=str(error))
        version = self._installed(header)
        if version is None:
            known = ", ".join(sorted(self._versions or ()))
            return DecodedReplay(
                name=name,
                skipped=f"it needs StarCraft II {header.version} (build {header.build}), which is not "
                f"installed; there are {known}",
            )
        if len(header.players) != 2:
            return DecodedReplay(name=name, skipped=f"it has {len(header.players)} players, not 2")
        chosen, dropped = self._chosen(name, header, wanted)
        left_out: Counter[str] = Counter()
        try:
            episodes = tuple(
                self._watch(version, content, facts, header.players[facts.seat].mmr, left_out) for facts in chosen
            )
        except (*LOST, ValueError) as error:
            self.close()
            return DecodedReplay(name=name, skipped=f"the game does not show it: {error}")
        return DecodedReplay(name=name, episodes=episodes, dropped=dropped, left_out=left_out)

    def _installed(self, header: ReplayHeader) -> str | None:
        """PySC2's name of the version that plays the replay; None: not installed."""
        if self._versions is None:
            self._versions = installed_versions()
        if header.version in self._versions:
            return header.version
        # PySC2 knows a program newer than itself only as the latest.
        return "latest" if self._versions["latest"].build_version == header.build else None

    def _chosen(
        self, name: str, header: ReplayHeader, wanted: EpisodeFilter
    ) -> tuple[list[EpisodeFacts], Counter[str]]:
        chosen, dropped = [], Counter[str]()
        for seat, player in enumerate(header.players):
            facts = EpisodeFacts(
                replay=name,
                game=self.game,
                map=header.map,
                version=header.version,
                matchup=tuple(one.race for one in header.players),
                player=player.race,
                seat=seat,
                outcome=player.outcome,
                score=OUTCOMES[player.outcome],
                length=header.game_steps // self._source.step_mul,
            )
            reason = wanted.drops(facts)
            if reason is None:
                chosen.append(facts)
            else:
                dropped[reason] += 1
        return chosen, dropped

    def _watch(self, version: str, content: bytes, facts: EpisodeFacts, mmr: int, left_out: Counter[str]) -> Episode:
        controller = self._controller(version)
        interface = features.parse_agent_interface_format(**interface_options(self._source))
        request = messages.RequestStartReplay(
            replay_data=content,
            options=sc2_env.SC2Env._get_interface(interface, require_raw=False),
            observed_player_id=facts.seat + 1,
        )
        info = controller.replay_info(content)
        if info.local_map_path.lower().endswith(".sc2map"):
            request.map_data = run_configs.get(version=self._playing).map_data(info.local_map_path)
        controller.start_replay(request)
        shown = features.features_from_game_info(controller.game_info(), agent_interface_format=interface)
        stream = _Stream(self._source, self.kind, *self._codecs, shown, left_out)
        stream.history.begin(mmr)
        stream.watch(controller, self._source.step_mul, self._source.max_delay)
        episode = stream.episode(facts, self._no_op, timed=self._source.spec.timed)
        return episode if self.strategy is None else replace(episode, **stream.history.strategy)

    def _controller(self, version: str) -> Any:
        """PySC2's `RemoteController` of a process of this version."""
        if self._process is None or self._playing != version:
            self.close()
            flags.FLAGS["sc2_timeout"].value = self._source.time_limit_s
            with closing_on_error():
                self._process = run_configs.get(version=version).start(want_rgb=False)
            self._playing = version
        return self._process.controller


class _Stream:
    """One player's decisions: observations and the actions that followed."""

    def __init__(
        self,
        source: PySC2,
        kind: SeatKind,
        actions: FunctionCodec,
        observations: ObservationCodec,
        shown: Any,
        left_out: Counter[str],
    ) -> None:
        self._source = source
        self._kind = kind
        self.history = ActionHistory.alone(actions)
        self._abilities: set[int] | None = None
        """Abilities of the player's units; None: unknown."""
        self._actions = actions
        self._observations = observations
        self._shown = shown
        self._left_out = left_out
        self._rows: list[Tree] = []
        self._clock: list[int] = []
        self._end = 0

    def watch(self, controller: Any, step_mul: int, max_delay: int) -> None:
        """Watch to the end. With delays, a decision is made where the player acts, or after `max_delay` steps."""
        controller.step()
        before = controller.observe()
        while not before.player_result:
            controller.step(1 if max_delay else step_mul)
            after = controller.observe()
            now = before.observation.game_loop
            if after.actions or not max_delay or not self._clock or now - self._clock[-1] >= max_delay:
                self._decide(before, after.actions, None if after.player_result else controller)
            if after.observation.game_loop <= now and not after.player_result:
                raise ValueError(f"it stands still at game step {now}")
            self._end, before = after.observation.game_loop, after

    def _decide(self, response: Any, acted: Sequence[Any], controller: Any) -> None:
        """`controller` of the game, which is a step ahead of the response; None: it has ended."""
        row = allocate(column_specs(self._kind), ())
        response.ClearField("actions")  # PySC2 would translate these too, and fail for unknown ones
        observation = self._shown.transform_obs(response)
        rows, legal = under("observation.", row), under("legal.", row)
        if self._actions.raw:
            self.history.see(observation, self._source.raw_resolution)
        if self._source.inputs == "published" and controller is not None:
            self._abilities = query_abilities(controller, observation["raw_units"])
        seen = self._observations.write(rows, observation, self.history)
        self._actions.write_legal(legal, observation, seen.alliance, self._abilities)
        self._observations.write_critic(rows, observation, None)  # a replay shows one player at a time
        action = self._action(acted, observation, seen.row_of_unit)
        self.history.decide(action, response.observation.game_loop)
        for head, value in action.items():
            row[f"action.{head}"][...] = value
            # The player's action was legal, even if the last observation was too early to show it.
            if head in legal and self._counts(head, action):
                legal[head][[one for one in np.atleast_1d(value) if one >= 0]] = True
        self._observations.write_available(rows, legal)
        self._rows.append(row)
        self._clock.append(response.observation.game_loop)

    def _counts(self, head: str, action: Mapping[str, Any]) -> bool:
        when = self._kind.action.heads[head].when
        return when is None or action[FUNCTION] in when.values

    def _action(self, acted: Sequence[Any], observation: Any, row_of_unit: Mapping[int, int]) -> dict[str, Any]:
        """The first of the actions that has a place in our heads."""
        codec, shown = self._actions, self._shown
        found: dict[str, Any] | None = None
        for action in acted:
            try:
                call = shown.reverse_raw_action(action, observation) if codec.raw else shown.reverse_action(action)
            except ValueError as error:
                self._left_out[f"PySC2 does not know it: {error}"] += 1
                continue
            if int(call.function) == NO_OP:
                continue
            try:
                encoded = codec.encode(call, row_of_unit)
            except UnknownFunctionError as error:
                self._left_out[str(error)] += 1
                continue
            if found is None:
                found = encoded
            else:
                self._left_out["another action came in the same decision"] += 1
        return codec.blank() if found is None else found

    def episode(self, facts: EpisodeFacts, no_op: NoOp | None, *, timed: bool) -> Episode:
        if not self._rows:
            raise ValueError("it ends before it begins")
        clock = np.array(self._clock)
        kept = np.ones(len(clock), np.bool_)
        if no_op is not None:
            kept = kept_decisions(np.array([row[f"action.{no_op.head}"] == no_op.value for row in self._rows]))
        # Only kept rows are stacked: a game has thousands of decisions, and a screen is large.
        rows = [self._rows[place] for place in np.flatnonzero(kept)]
        columns = {name: np.stack([row[name] for row in rows]) for name in rows[0]}
        if DELAY in self._kind.action.heads:
            lasts = np.diff(np.append(clock, self._end))
            columns[f"action.{DELAY}"][:] = np.maximum(lasts[kept] - 1, 0)
        time = clock if timed else np.arange(len(clock))
        end = self._end if timed else len(clock)
        columns["elapsed"][:] = np.diff(np.append(time[kept], end))
        columns["reward"][-1] = facts.score
        columns["over"][-1] = True
        return Episode(facts=replace(facts, length=len(clock)), columns=columns)
