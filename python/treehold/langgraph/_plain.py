"""Values of plain data: frozen copies, comparisons and sizes.

A frozen value is a copy of the containers that shares the leaves. Leaves are immutable, so a value with the same leaves
in the same containers is unchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, cast
from uuid import UUID

kind_of: Callable[[Any], Any] = type
"""`type`, declared so that type checkers do not narrow the value."""

IMMUTABLE: frozenset[type] = frozenset(
    (str, bytes, int, float, bool, type(None), complex, date, datetime, time, timedelta, Decimal, UUID)
)
"""Types of which a value never changes."""

_COMPARABLE: frozenset[type] = frozenset((str, bytes, int, bool, type(None)))
"""Immutable types whose equal values of the same type are serialized to equal bytes."""


def freeze(value: Any) -> Any:
    """Copies the containers of a value and shares its leaves.

    Raises `TypeError` for a value with mutable objects other than dicts and lists.
    """
    kind = kind_of(value)
    if kind in IMMUTABLE:
        return value
    if kind is dict:
        items = cast("dict[Any, Any]", value).items()
        if any(type(key) not in IMMUTABLE for key, _ in items):
            raise TypeError
        return {key: item if type(item) in IMMUTABLE else freeze(item) for key, item in items}
    if kind is list:
        return [item if type(item) in IMMUTABLE else freeze(item) for item in cast("list[Any]", value)]
    if kind is tuple:
        return tuple(freeze(item) for item in cast("tuple[Any, ...]", value))
    raise TypeError


def thaw(frozen: Any) -> Any:
    """Copies the containers of a frozen value, so that its user may change them."""
    kind = kind_of(frozen)
    if kind is dict:
        return {key: item if type(item) in IMMUTABLE else thaw(item) for key, item in frozen.items()}
    if kind is list:
        return [item if type(item) in IMMUTABLE else thaw(item) for item in frozen]
    if kind is tuple:
        return tuple(thaw(item) for item in frozen)
    return frozen


def is_same(value: Any, frozen: Any) -> bool:
    """Returns whether a value is certainly serialized as the frozen one was: same types, order and leaves."""
    kind = kind_of(value)
    if kind is not type(frozen):
        return False
    if kind is dict:
        return len(value) == len(frozen) and all(
            is_same(key, frozen_key) and is_same(item, frozen_item)
            for (key, item), (frozen_key, frozen_item) in zip(value.items(), frozen.items(), strict=True)
        )
    if kind is list or kind is tuple:
        return len(value) == len(frozen) and all(map(is_same, value, frozen))
    return value is frozen or (kind in _COMPARABLE and bool(value == frozen))


def reads_back(read: Any, value: Any) -> bool:
    """Returns whether a value that was read is what was written: same types, order and leaves."""
    kind = kind_of(value)
    if kind is not type(read):
        return False
    if kind is dict:
        return len(read) == len(value) and all(
            reads_back(read_key, key) and reads_back(read_item, item)
            for (read_key, read_item), (key, item) in zip(read.items(), value.items(), strict=True)
        )
    if kind is list or kind is tuple:
        return len(read) == len(value) and all(map(reads_back, read, value))
    if kind in _COMPARABLE:
        return bool(read == value)
    # Equal times may have different zones, and equal floats different signs.
    return kind in IMMUTABLE and repr(read) == repr(value)


def approximate_size(value: Any, bound: int) -> int | None:
    """Estimates the serialized size of a value; stops soon after `bound`. `None` if it holds other than plain data."""
    kind = kind_of(value)
    if kind is str or kind is bytes:
        return len(value)
    if kind in IMMUTABLE:
        return 8
    if kind is dict:
        total = 0
        for key, item in cast("dict[Any, Any]", value).items():
            key_size, size = approximate_size(key, bound), approximate_size(item, bound - total)
            if key_size is None or size is None:
                return None
            total += key_size + size
            if total > bound:
                break
        return total
    if kind is list or kind is tuple:
        total = 0
        for item in cast("Sequence[Any]", value):
            size = approximate_size(item, bound - total)
            if size is None:
                return None
            total += size
            if total > bound:
                break
        return total
    return None
