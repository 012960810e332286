"""Selecting items by the fields of their values.

The rules are those of JSON items in every tier: all fields must match; a field matches by equality, by operators or, given
an object without operators, if each of its fields matches. Numbers compare as numbers and texts character by character;
values of different kinds are never less or greater. An absent field equals nothing, so `$ne` matches it.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from treehold import Error, InvalidArgument, JsonFilter

from ._types import is_array, is_dict, is_list, is_mapping

DEPTH_MAX = 32
"""The deepest nesting of a filter."""

TESTS_MAX = 256
"""The most fields and comparisons of a filter, which are all tried on each item."""

EXACT = 2**53
"""Below it, floating point has every integer, so that Python and the core compare numbers alike."""

_ABSENT = object()

_ORDERS: Mapping[str, Callable[[Any, Any], bool]] = {
    "$gt": operator.gt,
    "$gte": operator.ge,
    "$lt": operator.lt,
    "$lte": operator.le,
}

Test: TypeAlias = Callable[[Any], bool]


class Filter:
    """A parsed filter."""

    def __init__(self, fields: Any) -> None:
        """Parses a filter, and refuses one that makes no sense."""
        self._tests = 0
        self.is_empty = not fields
        if fields is not None and not is_mapping(fields):
            raise InvalidArgument("a filter must be a mapping, such as {'status': 'open'}")
        for name in fields or ():
            if isinstance(name, str) and name.startswith("$"):
                message = f"the operator `{name}` is in the place of a field name; write {{'field': {{'{name}': …}}}}"
                raise InvalidArgument(message)
        self._matches = self._fields(fields or {}, 0)
        self.native = None if self.is_empty else _native(fields)
        """The filter for a search in the core, which finds what matches and perhaps more; `None` if only Python can decide."""

    def matches(self, value: Any) -> bool:
        """Returns whether a value matches."""
        return self._matches(value)

    def _fields(self, fields: Mapping[Any, Any], depth: int) -> Test:
        if depth > DEPTH_MAX:
            raise InvalidArgument(f"the filter is more than {DEPTH_MAX} levels deep")
        self._count(len(fields))
        tests: list[tuple[str, Test]] = []
        for name, expected in fields.items():
            if not isinstance(name, str):
                raise InvalidArgument(f"the filter has the field `{name!r}`; names of fields are texts")
            tests.append((name, self._test(expected, depth + 1)))

        def matches(value: Any) -> bool:
            return is_dict(value) and all(test(value.get(name, _ABSENT)) for name, test in tests)

        return matches

    def _test(self, expected: Any, depth: int) -> Test:
        if not is_mapping(expected) or not expected:
            return lambda value: _equals(value, expected)
        operators = [name for name in expected if isinstance(name, str) and name.startswith("$")]
        if not operators:
            return self._fields(expected, depth)
        if len(operators) < len(expected):
            raise InvalidArgument("a filter mixes operators and fields in one mapping; put them into two")
        self._count(len(operators))
        comparisons = [_comparison(name, expected[name]) for name in operators]
        return lambda value: all(comparison(value) for comparison in comparisons)

    def _count(self, tests: int) -> None:
        self._tests += tests
        if self._tests > TESTS_MAX:
            raise InvalidArgument(f"the filter has over {TESTS_MAX} fields and comparisons; select by fewer")


def _native(fields: Any) -> JsonFilter | None:
    """Makes the filter of the core, if it matches whatever the one in Python does."""
    if not _is_exact(fields):
        return None
    try:
        return JsonFilter(fields)
    except (Error, TypeError, ValueError, OverflowError):
        return None  # It compares with what JSON cannot hold.


def _is_exact(value: Any) -> bool:
    """Returns whether all numbers of a filter compare in the core as in Python."""
    if is_mapping(value):
        return all(map(_is_exact, value.values()))
    if is_array(value):
        return all(map(_is_exact, value))
    return not _is_number(value) or -EXACT < value < EXACT


def _comparison(name: str, operand: Any) -> Test:
    if name == "$eq":
        return lambda value: _equals(value, operand)
    if name == "$ne":
        return lambda value: not _equals(value, operand)
    order = _ORDERS.get(name)
    if order is None:
        raise InvalidArgument(f"`{name}` is not an operator; use $eq, $ne, $gt, $gte, $lt or $lte")
    if _is_number(operand):
        return lambda value: _is_number(value) and order(value, operand)
    if isinstance(operand, str):
        return lambda value: isinstance(value, str) and order(value, operand)
    raise InvalidArgument(f"`{name}` compares numbers or texts, not `{operand!r}`")


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _equals(value: Any, expected: Any) -> bool:
    if value is _ABSENT:
        return False
    if _is_number(value) or _is_number(expected):
        return _is_number(value) and _is_number(expected) and bool(value == expected)
    if is_mapping(expected):
        return (
            is_dict(value)
            and len(value) == len(expected)
            and all(_equals(value.get(name, _ABSENT), item) for name, item in expected.items())
        )
    if is_array(expected):
        return is_list(value) and len(value) == len(expected) and all(map(_equals, value, expected))
    return type(value) is type(expected) and bool(value == expected)
