"""Specs of a game: the shapes of observations and actions per kind of seat, seats and teams, and their JSON form.
Everything that allocates arrays (games, trajectory slots, networks) reads only these specs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from fnmatch import fnmatchcase
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ludus.data.checks import require_in

_MOST_FLOAT32 = float(np.finfo(np.float32).max)

CRITIC_PREFIX = "critic."  # arrays of critic-only parts carry this prefix, so one flat tree holds the whole observation


@dataclass(frozen=True, kw_only=True, slots=True)
class ArraySpec:
    """Shape and dtype of one array, without the leading table, time or batch axes."""

    shape: tuple[int, ...]
    dtype: np.dtype[np.generic]


def array_spec(shape: tuple[int, ...], dtype: str) -> ArraySpec:
    return ArraySpec(shape=shape, dtype=np.dtype(dtype))


@dataclass(frozen=True, kw_only=True, slots=True)
class Vector:
    """A fixed number of scalars."""

    size: int
    dtype: str = "float32"

    def __post_init__(self) -> None:
        require_in(self, "[1, inf]", size=self.size)

    def arrays(self, name: str) -> dict[str, ArraySpec]:
        return {name: array_spec((self.size,), self.dtype)}


@dataclass(frozen=True, kw_only=True, slots=True)
class Planes:
    """A picture: channels x height x width."""

    channels: int
    height: int
    width: int
    dtype: str = "float32"

    def __post_init__(self) -> None:
        require_in(self, "[1, inf]", channels=self.channels, height=self.height, width=self.width)

    def arrays(self, name: str) -> dict[str, ArraySpec]:
        return {name: array_spec((self.channels, self.height, self.width), self.dtype)}


@dataclass(frozen=True, kw_only=True, slots=True)
class Entities:
    """A list of up to `maximum` entities with `features` numbers each. It has two arrays: NAME holds the features,
    NAME_length the number of real rows."""

    maximum: int
    features: int
    dtype: str = "float32"
    types: int = 0
    """If above 0, the first feature of a row is its type, in [0, types)."""
    categories: tuple[int, ...] = ()
    """The last features of a row are categories too, such as an order; the number of values of each."""

    def __post_init__(self) -> None:
        require_in(self, "[1, inf]", maximum=self.maximum, features=self.features)
        require_in(self, "[0, inf]", types=self.types)
        if (self.types > 0) + len(self.categories) > self.features or min(self.categories, default=1) < 1:
            raise ValueError(f"Entities.categories must fit into {self.features} features, got {self.categories}")

    def arrays(self, name: str) -> dict[str, ArraySpec]:
        return {name: array_spec((self.maximum, self.features), self.dtype), length_name(name): array_spec((), "int32")}


Part = Vector | Planes | Entities


def length_name(entities: str) -> str:
    """The name of the array that holds the number of real rows of an `Entities` part."""
    return f"{entities}_length"


@dataclass(frozen=True, kw_only=True)
class ObservationSpec:
    """The named parts that a seat sees, and critic-only parts, which exist in training only."""

    parts: Mapping[str, Part]
    critic: Mapping[str, Part] = field(default_factory=dict)
    common: tuple[str, ...] = field(default=(), repr=False)
    """Critic-only parts that are the same for all seats that act at the same time (checked)."""

    def __post_init__(self) -> None:
        if unknown := [name for name in self.common if name not in self.critic]:
            raise ValueError(
                f"common names {unknown[0]!r}; the critic-only parts are {', '.join(self.critic) or 'none'}"
            )

    @cached_property
    def arrays(self) -> dict[str, ArraySpec]:
        """Every array of one observation by name; critic-only ones start with `critic.`."""
        specs: dict[str, ArraySpec] = {}
        for name, part in self.parts.items():
            specs.update(part.arrays(name))
        for name, part in self.critic.items():
            specs.update(part.arrays(CRITIC_PREFIX + name))
        return specs


@dataclass(frozen=True, kw_only=True, slots=True)
class When:
    """A condition: the head counts only if an earlier `Choice` head took one of these values."""

    head: str
    values: tuple[int, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Choice:
    """One of `num` options. Legal mask: [num]."""

    num: int
    when: When | None = None
    masked: bool = True

    def __post_init__(self) -> None:
        require_in(self, "[1, inf]", num=self.num)


@dataclass(frozen=True, kw_only=True, slots=True)
class Pointer:
    """Up to `picks` different rows of the `Entities` part `into`. Legal mask: [maximum]. With one pick the action is an
    index. With more it is `picks` indices, -1 after the end; the network also has an end token, so fewer may be picked,
    but at least one."""

    into: str
    picks: int = 1
    when: When | None = None
    masked: bool = True

    def __post_init__(self) -> None:
        require_in(self, "[1, inf]", picks=self.picks)


@dataclass(frozen=True, kw_only=True, slots=True)
class Point:
    """A place on a map, as the flat index y * width + x. Legal mask: [height * width]."""

    height: int
    width: int
    when: When | None = None
    masked: bool = False

    def __post_init__(self) -> None:
        require_in(self, "[1, inf]", height=self.height, width=self.width)


@dataclass(frozen=True, kw_only=True, slots=True)
class Box:
    """`size` real numbers, number i between `low[i]` and `high[i]`. A single bound holds for all of them. It has no
    mask."""

    size: int
    low: float | Sequence[float] = -1.0
    high: float | Sequence[float] = 1.0
    when: When | None = None

    def __post_init__(self) -> None:
        require_in(self, "[1, inf]", size=self.size)
        for name, bound in (("low", self.low), ("high", self.high)):
            bounds = tuple(map(float, bound)) if isinstance(bound, Sequence) else (float(bound),) * self.size
            if len(bounds) != self.size or not max(map(abs, bounds)) <= _MOST_FLOAT32:
                raise ValueError(f"Box.{name} must be one finite number or {self.size} of them, got {bound!r}")
            object.__setattr__(self, name, bounds)
        if crossed := [index for index, (low, high) in enumerate(zip(*self.bounds, strict=True)) if low >= high]:
            low, high = (bound[crossed[0]] for bound in self.bounds)
            raise ValueError(f"Box.low must be below Box.high, got {low} and {high} for number {crossed[0]}")
        low32, high32 = np.array(self.bounds, np.float32)
        with np.errstate(over="ignore"):
            span = high32 - low32
        if len(odd := np.flatnonzero((span == 0) | np.isinf(span))):
            low, high = (bound[odd[0]] for bound in self.bounds)
            raise ValueError(
                f"Box.low and Box.high must have a distance in float32, got {low} and {high} for number {odd[0]}"
            )

    @property
    def bounds(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """`low` and `high` with one bound for each number."""
        assert isinstance(self.low, tuple)
        assert isinstance(self.high, tuple)
        return self.low, self.high

    @property
    def masked(self) -> bool:
        return False

    def outside(self, numbers: NDArray[Any]) -> NDArray[np.bool_]:
        """Which of `numbers` [..., size] are NaN or beyond their bounds, as float32."""
        low, high = np.array(self.bounds, np.float32)
        with np.errstate(over="ignore"):
            rounded = numbers.astype(np.float32, copy=False)
        inside: NDArray[np.bool_] = (rounded >= low) & (rounded <= high)
        return ~inside

    def refusal(self, value: float, number: int) -> str:
        """Why the number at this place may not have this value, for messages."""
        low, high = (bound[number] for bound in self.bounds)
        shortest = str(np.float32(value)).removesuffix(".0")
        return f"{shortest} at number {number}, but its bounds are {low:g} to {high:g}"


Head = Choice | Pointer | Point | Box


@dataclass(frozen=True, kw_only=True)
class ActionSpec:
    """Heads in the order in which they are decided; a later head may depend on earlier ones."""

    heads: Mapping[str, Head]

    def __post_init__(self) -> None:
        if not self.heads:
            raise ValueError("an ActionSpec needs at least one head")
        seen: dict[str, Head] = {}
        for name, head in self.heads.items():
            if head.when is not None:
                what, before = f"head {name!r} depends on {head.when.head!r}", seen.get(head.when.head)
                if not isinstance(before, Choice):
                    raise ValueError(f"{what}, which is not an earlier Choice")
                for value in head.when.values:
                    if not 0 <= value < before.num:
                        raise ValueError(f"{what} being {value}, but that head has {before.num} options")
            seen[name] = head

    @cached_property
    def arrays(self) -> dict[str, ArraySpec]:
        """The array of each head's action: float32 of a `Box`, int32 of others."""
        return {name: _action_array(head) for name, head in self.heads.items()}

    @cached_property
    def boxes(self) -> dict[str, Box]:
        """The heads that are real numbers."""
        return {name: head for name, head in self.heads.items() if isinstance(head, Box)}


def _action_array(head: Head) -> ArraySpec:
    if isinstance(head, Box):
        return array_spec((head.size,), "float32")
    return array_spec((head.picks,) if isinstance(head, Pointer) and head.picks > 1 else (), "int32")


@dataclass(frozen=True, kw_only=True)
class SeatKind:
    """Observation, action and rewards of one kind of seat."""

    name: str
    observation: ObservationSpec
    action: ActionSpec
    rewards: tuple[str, ...] = ()
    """Names of further rewards besides the main one, each with its own value estimate."""

    def __post_init__(self) -> None:
        if len(set(self.rewards)) < len(self.rewards):
            raise ValueError(f"kind {self.name!r} names a reward twice: {', '.join(self.rewards)}")
        for name, head in self.action.heads.items():
            if isinstance(head, Pointer) and not isinstance(self.observation.parts.get(head.into), Entities):
                raise ValueError(
                    f"head {name!r} of kind {self.name!r} points into {head.into!r}, "
                    "which is not an Entities part of its observation"
                )

    @property
    def is_one_choice(self) -> bool:
        """Whether an action is one `Choice` and nothing else."""
        return [type(head) for head in self.action.heads.values()] == [Choice]

    def num_options(self, head: str) -> int:
        """The number of options that the head's mask covers; 0 for a `Box`, which has no options."""
        spec = self.action.heads[head]
        if isinstance(spec, Box):
            return 0
        if isinstance(spec, Choice):
            return spec.num
        if isinstance(spec, Point):
            return spec.height * spec.width
        entities = self.observation.parts[spec.into]
        assert isinstance(entities, Entities)
        return entities.maximum

    def can_count(self, head: str, legal: Mapping[str, NDArray[Any]]) -> bool:
        """Whether the head can count under these masks: it has no condition, or one that can be met."""
        when = self.action.heads[head].when
        if when is None:
            return True
        earlier = legal.get(when.head)
        possible = earlier is None or bool(earlier[list(when.values)].any())
        return possible and self.can_count(when.head, legal)

    @cached_property
    def legal_arrays(self) -> dict[str, ArraySpec]:
        """The bool mask of each masked head."""
        masked = (name for name, head in self.action.heads.items() if head.masked)
        return {name: array_spec((self.num_options(name),), "bool") for name in masked}

    @property
    def decision_arrays(self) -> dict[str, ArraySpec]:
        """All arrays of one decision: `observation.NAME`, `legal.NAME` and `action.NAME`."""
        groups = {"observation": self.observation.arrays, "legal": self.legal_arrays, "action": self.action.arrays}
        return {f"{group}.{name}": spec for group, arrays in groups.items() for name, spec in arrays.items()}


@dataclass(frozen=True, kw_only=True)
class GameSpec:
    """The fixed facts of a game. `seats[i]` is the kind (an index into `kinds`) of seat i; `teams[i]` is its team,
    counted from 0."""

    name: str
    kinds: tuple[SeatKind, ...]
    seats: tuple[int, ...]
    teams: tuple[int, ...]
    max_length: int
    """Most `step` calls in one episode."""
    zero_sum: bool = True
    """The teams' episode totals add up to zero (checked)."""
    reward_is_score: bool = True
    """A team's score is the mean of its seats' total reward (checked); off for shaped rewards."""
    timed: bool = False
    """The game keeps a clock; otherwise a decision takes one unit of the seat's time."""
    repeatable: bool = True
    """An episode is a function of its seed and actions (checked); if not, a resumed run restarts open episodes."""
    hidden_information: bool | None = None
    """Whether seats have private information; None: unknown. It decides the default algorithm of a game."""
    chance: bool | None = None
    """Whether anything but the actions decides what follows a position; None: unknown. Search needs to know."""
    team_roles: tuple[str, ...] = field(default=(), compare=False)
    """The role of each team; teams with the same role can be exchanged. Empty: by the kinds of their seats."""

    def __post_init__(self) -> None:
        require_in(self, "[1, inf]", max_length=self.max_length)
        if self.team_roles and len(self.team_roles) != self.num_teams:
            raise ValueError(f"{self.name}: {len(self.team_roles)} roles for {self.num_teams} teams: {self.team_roles}")
        if not self.seats or len(self.seats) != len(self.teams):
            raise ValueError(
                f"{self.name}: {len(self.seats)} seats and {len(self.teams)} teams; need one of each per seat"
            )
        if sorted(set(self.teams)) != list(range(max(self.teams) + 1)):
            raise ValueError(f"{self.name}: teams must be numbered from 0 without gaps, got {self.teams}")
        if sorted(set(self.seats)) != list(range(len(self.kinds))):
            raise ValueError(f"{self.name}: every kind needs a seat and every seat a kind, got {self.seats}")

    @property
    def num_seats(self) -> int:
        return len(self.seats)

    @property
    def num_teams(self) -> int:
        return max(self.teams) + 1

    @cached_property
    def seats_of_kind(self) -> tuple[tuple[int, ...], ...]:
        """Per kind, its seats in order, which are the columns of that kind's arrays."""
        return tuple(
            tuple(seat for seat, kind in enumerate(self.seats) if kind == index) for index in range(len(self.kinds))
        )

    @cached_property
    def column_of_seat(self) -> tuple[int, ...]:
        """Seat -> its column in the arrays of its kind."""
        return tuple(self.seats_of_kind[kind].index(seat) for seat, kind in enumerate(self.seats))

    @cached_property
    def seats_of_team(self) -> tuple[tuple[int, ...], ...]:
        return tuple(
            tuple(seat for seat, team in enumerate(self.teams) if team == index) for index in range(self.num_teams)
        )

    @cached_property
    def roles(self) -> tuple[str, ...]:
        """The role of each team, such as ("adversary", "agent x2")."""
        if self.team_roles:
            return self.team_roles
        counts = [Counter(self.kinds[self.seats[seat]].name for seat in seats) for seats in self.seats_of_team]
        return tuple(
            " + ".join(kind if count == 1 else f"{kind} x{count}" for kind, count in sorted(one.items()))
            for one in counts
        )

    @property
    def role_names(self) -> tuple[str, ...]:
        """The same with a different name for each team."""
        return tuple(
            role if self.roles.count(role) == 1 else f"{role} (team {team})" for team, role in enumerate(self.roles)
        )

    @property
    def compares_roles(self) -> bool:
        """Whether a team's score says little about its players, because it depends on the team: scores do not add up
        to zero, or teams have different roles. Players are then compared with others in the same role."""
        scores_differ = self.reward_is_score and not self.zero_sum  # shaped rewards say nothing about scores
        return self.num_teams > 1 and (scores_differ or len(set(self.roles)) > 1)

    @classmethod
    def symmetric(
        cls,
        *,
        name: str,
        num_seats: int,
        observation: ObservationSpec,
        action: ActionSpec,
        max_length: int,
        teams: tuple[int, ...] | None = None,
        zero_sum: bool = True,
        reward_is_score: bool = True,
        timed: bool = False,
        repeatable: bool = True,
        hidden_information: bool | None = None,
        chance: bool | None = None,
    ) -> GameSpec:
        """A game whose seats are all of one kind. Every seat is its own team unless `teams` is given."""
        return cls(
            name=name,
            kinds=(SeatKind(name="player", observation=observation, action=action),),
            seats=(0,) * num_seats,
            teams=tuple(range(num_seats)) if teams is None else teams,
            max_length=max_length,
            zero_sum=zero_sum,
            reward_is_score=reward_is_score,
            timed=timed,
            repeatable=repeatable,
            hidden_information=hidden_information,
            chance=chance,
        )


def patterns_of_seats(patterns: Collection[str], seats: Sequence[Sequence[str]], setting: str) -> tuple[str, ...]:
    """For each seat, given by its names, the first pattern that matches one of them. Raises unless every seat has a
    pattern and every pattern a seat."""
    fitting = [
        [pattern for pattern in patterns if any(fnmatchcase(name, pattern) for name in names)] for names in seats
    ]
    for names, found in zip(seats, fitting, strict=True):
        if not found:
            given = ", ".join(patterns) or "none"
            raise ValueError(f"{setting}: no pattern fits {names[0]}, only {given} given; put '*' last for all others")
    for pattern in patterns:
        if not any(pattern in found for found in fitting):
            shown = ", ".join(" = ".join(names) for names in seats)
            raise ValueError(f"{setting}: {pattern!r} fits no seat; the seats are {shown}")
        if not any(found[0] == pattern for found in fitting):
            raise ValueError(f"{setting}: every seat that {pattern!r} fits has an earlier pattern; the first one holds")
    return tuple(found[0] for found in fitting)


_PARTS: Mapping[str, type[Part]] = {cls.__name__: cls for cls in (Vector, Planes, Entities)}
_HEADS: Mapping[str, type[Head]] = {cls.__name__: cls for cls in (Choice, Pointer, Point, Box)}


def kind_to_json(kind: SeatKind) -> dict[str, Any]:
    common = {"common": list(kind.observation.common)} if kind.observation.common else {}
    return common | {
        "name": kind.name,
        "observation": {name: _tagged(part) for name, part in kind.observation.parts.items()},
        "critic": {name: _tagged(part) for name, part in kind.observation.critic.items()},
        "action": {name: _tagged(head) for name, head in kind.action.heads.items()},
        "rewards": list(kind.rewards),
    }


def kind_from_json(data: Mapping[str, Any]) -> SeatKind:
    """Raises ValueError, TypeError or LookupError if `kind_to_json` did not write the data."""
    return SeatKind(
        name=data["name"],
        observation=ObservationSpec(
            parts={name: _made(_PARTS, part) for name, part in data["observation"].items()},
            critic={name: _made(_PARTS, part) for name, part in data["critic"].items()},
            common=tuple(data.get("common", ())),
        ),
        action=ActionSpec(heads={name: _head(head) for name, head in data["action"].items()}),
        rewards=tuple(data["rewards"]),
    )


def spec_to_json(spec: GameSpec) -> dict[str, Any]:
    plain = {one.name: getattr(spec, one.name) for one in fields(spec) if one.name != "team_roles"}
    kinds = [kind_to_json(kind) for kind in spec.kinds]
    named = {"team_roles": list(spec.team_roles)} if spec.team_roles else {}
    return plain | {"kinds": kinds, "seats": list(spec.seats), "teams": list(spec.teams)} | named


def spec_from_json(data: Mapping[str, Any]) -> GameSpec:
    """Raises ValueError, TypeError or LookupError if `spec_to_json` did not write the data."""
    kinds = tuple(kind_from_json(kind) for kind in data["kinds"])
    lists = {name: tuple(data[name]) for name in ("seats", "teams", "team_roles") if name in data}
    return GameSpec(**{**data, "kinds": kinds, **lists})


def differences(one: SeatKind, other: SeatKind) -> dict[str, tuple[Any, Any]]:
    """Where two kinds differ, names aside: path -> both values (None: missing). The order of heads counts."""
    left, right = (dict(_flat("", kind_to_json(kind))) for kind in (one, other))
    paths = [path for path in dict.fromkeys([*left, *right]) if path != "name"]
    found = {path: (left.get(path), right.get(path)) for path in paths if left.get(path) != right.get(path)}
    orders = tuple(list(kind.action.heads) for kind in (one, other))
    if not found and orders[0] != orders[1]:
        found["action"] = (orders[0], orders[1])
    return found


def _tagged(spec: Part | Head) -> dict[str, Any]:
    facts = asdict(spec)
    if categories := facts.pop("categories", ()):
        facts["categories"] = list(categories)
    if isinstance(spec, Box):
        facts |= {"low": list(spec.bounds[0]), "high": list(spec.bounds[1])}
    if facts.get("when") is not None:
        facts["when"] = {"head": spec.when.head, "values": list(spec.when.values)}  # type: ignore[union-attr]
    return {"type": type(spec).__name__, **facts}


def _made(classes: Mapping[str, Any], data: Mapping[str, Any]) -> Any:
    facts: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in data.items()}
    return classes[facts.pop("type")](**facts)


def _head(data: Mapping[str, Any]) -> Head:
    when = data["when"]
    found = None if when is None else When(head=when["head"], values=tuple(when["values"]))
    head: Head = _made(_HEADS, {**data, "when": found})
    return head


def _flat(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for name, item in value.items():
            yield from _flat(f"{path}.{name}" if path else name, item)
    else:
        yield path, value
