"""What a value of unknown type is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from typing_extensions import TypeIs


def is_dict(value: Any) -> TypeIs[dict[Any, Any]]:
    """Returns whether a value is a dict."""
    return isinstance(value, dict)


def is_mapping(value: Any) -> TypeIs[Mapping[Any, Any]]:
    """Returns whether a value is a mapping."""
    return isinstance(value, Mapping)


def is_list(value: Any) -> TypeIs[list[Any]]:
    """Returns whether a value is a list."""
    return isinstance(value, list)


def is_array(value: Any) -> TypeIs[list[Any] | tuple[Any, ...]]:
    """Returns whether a value is a list or a tuple, which JSON writes alike."""
    return isinstance(value, (list, tuple))


def are_texts(values: Any) -> TypeIs[Sequence[str]]:
    """Returns whether values are a sequence of texts, and not a text."""
    return not isinstance(values, str) and isinstance(values, Sequence) and all(isinstance(text, str) for text in values)  # pyright: ignore[reportUnknownVariableType]
