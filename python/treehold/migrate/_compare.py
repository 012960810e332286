"""Compares values of any type strictly."""

from __future__ import annotations

from typing import Any

from langgraph.checkpoint.serde.base import SerializerProtocol

from treehold.langgraph._types import is_array, is_mapping


def are_same(one: Any, other: Any, serde: SerializerProtocol | None = None) -> bool:
    """Returns whether two values are the same in type and content, whatever the order of names in mappings.

    Objects that compare as different are the same if they serialize alike, given a serializer.
    """
    if type(one) is not type(other):
        return False
    if is_mapping(one) and is_mapping(other):
        return len(one) == len(other) and all(name in other and are_same(one[name], other[name], serde) for name in one)
    if is_array(one) and is_array(other):
        return len(one) == len(other) and all(are_same(*pair, serde) for pair in zip(one, other, strict=True))
    try:
        if one == other or (one != one and other != other):
            return True
    except Exception:  # Arrays and the like have no single answer.
        pass
    return serde is not None and serde.dumps_typed(one) == serde.dumps_typed(other)
