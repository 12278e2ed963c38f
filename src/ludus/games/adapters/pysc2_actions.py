"""The actions of a seat as PySC2's function calls, and which of them its units can perform."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ludus.data.specs import ActionSpec, Choice, Head, Point, Pointer, When
from ludus.data.trees import Array
from ludus.games.adapters.pysc2 import PySC2
from ludus.games.adapters.pysc2_library import actions, features, queries
from ludus.games.seat_rows import GameError, nearest

Unit = features.FeatureUnit

FUNCTION, DELAY, UNITS = "function", "delay", "units"
NO_OP = 0
"""The option of the head `function`, and PySC2's number."""

_COUNTED = {
    "select_unit_id": ("multi_select",),
    "build_queue_id": ("build_queue", "production_queue"),
    "unload_id": ("cargo",),
}
"""Arguments that name a row of a list on the screen -> the lists; only existing rows are legal."""
_ORDER = (
    "queued", "control_group_act", "control_group_id", "select_point_act", "select_add", "select_worker",
    "select_unit_act", "select_unit_id", "build_queue_id", "unload_id", "screen", "screen2", "minimap", "unit_tags",
    "target_unit_tag", "world",
)  # fmt: skip
"""Arguments in the order in which they are decided."""

OWN = 1
"""PySC2's alliance of a seat's own units."""


class FunctionCodec:
    """Converts the actions of a seat to PySC2's function calls and back."""

    def __init__(self, source: PySC2) -> None:
        self.raw = source.interface == "raw"
        self._table = actions.RAW_FUNCTIONS if self.raw else actions.FUNCTIONS
        self.functions = _choose(self._table, source.functions, source.specific_functions)
        """Functions by option of the head `function`."""
        self.option_of = {int(function.id): option for option, function in enumerate(self.functions)}
        self._sizes = {"screen": source.screen, "minimap": source.minimap, "world": source.raw_resolution}
        self._sizes["screen2"] = source.screen
        """Length of the sides of what an argument points at."""
        self._picks = source.max_selected
        heads: dict[str, Head] = {FUNCTION: Choice(num=len(self.functions))}
        if source.max_delay:
            heads[DELAY] = Choice(num=source.max_delay, masked=False)
        types = actions.RAW_TYPES if self.raw else actions.TYPES
        arguments = [{argument.name for argument in function.args} for function in self.functions]
        self._takes: dict[str, list[int]] = {}
        """Argument -> the options of the functions that take it."""
        for name in _ORDER:
            options = [option for option, taken in enumerate(arguments) if name in taken]
            if options:
                self._takes[name] = options
                heads[name] = self._head(getattr(types, name), When(head=FUNCTION, values=tuple(options)))
        self.spec = ActionSpec(heads=heads)

    def _head(self, argument: Any, when: When) -> Head:
        if argument.name in self._sizes:
            size = self._sizes[argument.name]
            return Point(height=size, width=size, when=when)
        if argument.name == "unit_tags":
            return Pointer(into=UNITS, picks=self._picks, when=when)
        if argument.name == "target_unit_tag":
            return Pointer(into=UNITS, when=when)
        return Choice(num=argument.sizes[0], when=when, masked=argument.name in _COUNTED)

    def blank(self) -> dict[str, Any]:
        """The action that does nothing; heads that do not count are 0, or -1 throughout."""
        arrays = self.spec.arrays
        return {name: [-1] * array.shape[0] if array.shape else 0 for name, array in arrays.items()}

    def decode(self, action: Mapping[str, Any], unit_of_row: Sequence[int] | Array = ()) -> Any:
        """PySC2's call. `unit_of_row`: for raw actions, PySC2's index of the unit in each row of `units`."""
        function = self.functions[int(action[FUNCTION])]
        arguments = []
        for argument in function.args:
            value = action[argument.name]
            if argument.name in self._sizes:
                y, x = divmod(int(value), self._sizes[argument.name])
                arguments.append([x, y])
            elif argument.name == "unit_tags":
                arguments.append([int(unit_of_row[row]) for row in np.atleast_1d(value) if row >= 0])
            elif argument.name == "target_unit_tag":
                arguments.append([int(unit_of_row[int(value)])])
            else:
                arguments.append([int(value)])
        return actions.FunctionCall(function.id, arguments)

    def encode(self, call: Any, row_of_unit: Mapping[int, int] | None = None) -> dict[str, Any]:
        """Our action for a PySC2 call, with delay 0; units beyond the number of picks are left out."""
        function = int(call.function)
        if function not in self.option_of:
            raise UnknownFunctionError(f"{self._table[function].name} is not among the functions of this game")
        action = self.blank()
        action[FUNCTION] = self.option_of[function]
        rows = row_of_unit or {}
        for argument, values in zip(self.functions[action[FUNCTION]].args, call.arguments, strict=True):
            name = argument.name
            if name in self._sizes:
                size = self._sizes[name]
                x, y = (min(max(int(value), 0), size - 1) for value in values)
                action[name] = y * size + x
            elif name in ("unit_tags", "target_unit_tag"):
                places = [rows[int(unit)] for unit in values if int(unit) in rows]
                if not places:
                    raise UnknownFunctionError(f"none of the units of its {name} is among those seen")
                if name == "target_unit_tag" or self._picks == 1:
                    action[name] = places[0]
                else:
                    places = list(dict.fromkeys(places))[: self._picks]
                    action[name] = places + [-1] * (self._picks - len(places))
            else:
                action[name] = int(values[0])
        return action

    def within(self, abilities: Collection[int]) -> NDArray[np.bool_]:
        """[options]: the raw functions that use one of these abilities, or none at all."""
        usable = {0, *abilities}
        for ability in abilities:
            usable |= {int(function.general_id) for function in actions.RAW_ABILITY_IDS.get(ability, ())}
        return np.array([int(function.ability_id) in usable for function in self.functions])

    def write_legal(
        self,
        legal: Mapping[str, NDArray[np.bool_]],
        observation: Any,
        alliance: Array,
        abilities: Collection[int] | None = None,
    ) -> None:
        """Write the masks of one seat. `alliance`: PySC2's number for each row of `units`, 1 for its own.
        `abilities` of its units, for raw functions; None: unknown, so that all are legal."""
        function = legal[FUNCTION]
        if self.raw:
            function[:] = True if abilities is None else self.within(abilities)
            for name, rows in (("unit_tags", alliance == OWN), ("target_unit_tag", alliance > 0)):
                if name in self._takes:
                    legal[name][:] = False
                    legal[name][: len(rows)] = rows
                    if not rows.any():
                        function[self._takes[name]] = False
            return
        function[:] = False
        options = [self.option_of.get(int(number), NO_OP) for number in observation["available_actions"]]
        function[options] = True
        function[NO_OP] = True
        for name, lists in _COUNTED.items():
            if name in self._takes:
                count = max(len(observation[listed]) for listed in lists)
                legal[name][:] = np.arange(len(legal[name])) < count
                if not count:
                    function[self._takes[name]] = False


def _choose(table: Any, names: Sequence[str], specific: bool) -> list[Any]:
    """The functions by option: `no_op` and the named ones, or all; `specific` includes special cases of general
    functions, such as the cancelling of one certain building."""
    if not names:
        return [function for function in table if specific or not function.general_id]
    known = {function.name: function for function in table}
    for name in names:
        if name not in known:
            raise GameError(f"StarCraft II has no function {name!r}{nearest(name, known, cutoff=0.0)}")
    return [table[NO_OP], *(known[name] for name in dict.fromkeys(names) if int(known[name].id) != NO_OP)]


class UnknownFunctionError(ValueError):
    """A called function is not among the chosen ones, or an argument has no place in our heads."""


def query_abilities(controller: Any, units: Array) -> set[int]:
    """Ask the game for the abilities of a seat's units, whatever they cost: one unit of each type and add-on is asked.

    PySC2 shows the abilities of selected units only, and raw actions select nothing.
    """
    own = units[units[:, Unit.alliance] == OWN]
    _, first = np.unique(own[:, [Unit.unit_type, Unit.addon_unit_type]], axis=0, return_index=True)
    if not len(first):
        return set()
    request = queries.RequestQuery(ignore_resource_requirements=True)
    for tag in own[first, Unit.tag].tolist():
        request.abilities.add(unit_tag=tag)
    answers = controller.query(request).abilities
    return {int(ability.ability_id) for answer in answers for ability in answer.abilities}
