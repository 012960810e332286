"""How items of LangGraph's store are rows.

An item is a JSON item as every entry point of treehold writes and reads it: its body is JSON, its metadata the mark
`json` with the time to live that reads restart.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import datetime, timedelta, timezone
from math import isfinite
from typing import Any, cast

from langgraph.store.base import InvalidNamespaceError, Item, SearchItem

from treehold import Corrupt, InvalidArgument, Row
from treehold._io import Namespace

from ._keys import RESERVED_ROOT, is_reserved
from ._types import is_dict, is_mapping

MARK = b"json"
"""What the metadata of every item starts with."""

REFRESH_AFTER = 10
"""A read does not extend an item's life during the first 1/10 of its time to live."""

TTL_MINUTES_MAX = 1_440_000_000
"""The longest time to live, 1,000,000 days: its end is a time that exists."""

COMPONENTS_MAX = 16
"""The most components of a namespace of a store."""


class InvalidNamespace(InvalidArgument, InvalidNamespaceError):
    """A namespace that no item can have."""


class TreeholdItem(Item):
    """An item with its version, for a conditional put."""

    __slots__ = ("expires_at", "version")

    version: int
    expires_at: datetime | None


class TreeholdSearchItem(SearchItem):
    """A found item with its version, for a conditional put."""

    __slots__ = ("expires_at", "version")

    version: int
    expires_at: datetime | None


def checked_namespace(labels: Iterable[Any], root: Namespace) -> Namespace:
    """Checks the namespace of an item. It may be empty."""
    if isinstance(labels, str):
        raise InvalidNamespace(f"the namespace `{labels}` is a text; pass a tuple of texts, such as ('{labels}',)")
    namespace = tuple(labels)
    for label in namespace:
        if not isinstance(label, str):
            raise InvalidNamespace(f"the namespace `{namespace}` has the label `{label!r}`; labels are texts")
        if not label:
            raise InvalidNamespace(f"the namespace `{namespace}` has an empty label; leave it out or name it")
        if "." in label or "\x00" in label:
            raise InvalidNamespace(f"the label `{label!r}` of a namespace contains `.` or NUL; replace it")
        try:
            label.encode("utf-8")
        except UnicodeEncodeError:
            raise InvalidNamespace(f"the label {label!r} contains half of a surrogate pair; use valid Unicode") from None
    if is_reserved((*root, *namespace)):
        raise InvalidNamespace(f"the namespace `{namespace}` lies where treehold keeps its own rows; use another label than `{RESERVED_ROOT}`")
    if len(root) + len(namespace) > COMPONENTS_MAX:
        most = COMPONENTS_MAX - len(root)
        raise InvalidNamespace(f"the namespace `{namespace}` has {len(namespace)} labels; use at most {most}")
    return namespace


def key_of(key: Any) -> str:
    """Encodes the key of an item. Only keys that a store cannot hold change."""
    if not isinstance(key, str):
        raise InvalidArgument(f"the key of an item is `{key!r}`; use a text")
    try:
        key.encode("utf-8")
    except UnicodeEncodeError:
        raise InvalidArgument(f"the key {key!r} contains half of a surrogate pair; use valid Unicode") from None
    if key and "\x00" not in key and not key.startswith("\x01"):
        return key
    return "\x01" + key.replace("%", "%25").replace("\x00", "%00")


def key_from(stored: str) -> str:
    """Reads what `key_of` wrote."""
    if not stored.startswith("\x01"):
        return stored
    return stored[1:].replace("%00", "\x00").replace("%25", "%")


def body_of(key: str, value: Any) -> bytes:
    """Writes a value as JSON."""
    if not is_mapping(value):
        raise InvalidArgument(f"the value of `{key}` is not a mapping; items are objects with named fields")
    try:
        fields = dict(value)
        _check_names(key, fields)
        text = json.dumps(fields, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        return text.encode("utf-8")
    except RecursionError:
        raise InvalidArgument(f"the value of `{key}` is nested too deeply, or contains itself") from None
    except UnicodeEncodeError:
        raise InvalidArgument(f"the value of `{key}` contains half of a surrogate pair; use valid Unicode") from None
    except (TypeError, ValueError) as error:
        message = f"the value of `{key}` cannot be written as JSON: {error}; convert it to texts, numbers, lists or dicts"
        raise InvalidArgument(message) from error


def _check_names(key: str, value: Any) -> None:
    """Refuses fields whose names are not texts, which JSON would turn into texts."""
    if is_dict(value):
        for name, item in value.items():
            if not isinstance(name, str):
                raise InvalidArgument(f"the value of `{key}` has a field named `{name!r}`; names of fields are texts")
            if isinstance(item, (dict, list, tuple)):
                _check_names(key, item)
    else:
        for item in cast("Iterable[Any]", value):
            if isinstance(item, (dict, list, tuple)):
                _check_names(key, item)


def seconds_of(ttl: Any) -> float | None:
    """Converts a time to live in minutes."""
    if ttl is None:
        return None
    if isinstance(ttl, bool) or not isinstance(ttl, (int, float)) or not isfinite(ttl) or ttl <= 0:
        raise InvalidArgument(f"the ttl is `{ttl!r}`; use a positive number of minutes, or None")
    if ttl > TTL_MINUTES_MAX:
        raise InvalidArgument(f"the ttl is `{ttl!r}`, and the longest is {TTL_MINUTES_MAX} minutes; use None for an item that stays")
    return float(ttl) * 60


def meta_of(ttl_seconds: float | None) -> bytes:
    """Makes the metadata of an item."""
    return MARK if ttl_seconds is None else MARK + b";ttl=%d" % round(ttl_seconds * 1_000_000)


def is_item(row: Row) -> bool:
    """Returns whether a row can be an item, judging by its metadata."""
    return not row.meta or row.meta.startswith(MARK)


def ttl_of(row: Row) -> float | None:
    """Returns the seconds that the item was put for."""
    meta = row.meta
    prefix = MARK + b";ttl="
    digits = meta.removeprefix(prefix)
    return int(digits) / 1_000_000 if meta.startswith(prefix) and digits.isdigit() else None


def is_worth_refreshing(row: Row, now: datetime) -> bool:
    """Returns whether a read should restart the life of an item."""
    ttl = ttl_of(row)
    if ttl is None or row.expires_at is None:
        return False
    return row.expires_at - now < timedelta(seconds=ttl * (1 - 1 / REFRESH_AFTER))


def utc_now() -> datetime:
    """Returns the time."""
    return datetime.now(timezone.utc)


def value_of(row: Row) -> dict[str, Any] | None:
    """Reads the value of an item; `None` if the row is not one."""
    if not is_item(row):
        return None
    try:
        value: Any = json.loads(row.body)
    except ValueError:
        return None
    return value if is_dict(value) else None


def item_of(namespace: Namespace, row: Row) -> TreeholdItem:
    """Reads an item."""
    value = value_of(row)
    if value is None:
        raise Corrupt(f"the row `{row.key!r}` of `{namespace}` is not an item; it was written by other means")
    item = TreeholdItem(
        value=value,
        key=key_from(row.key),
        namespace=namespace,
        created_at=row.created_at,
        updated_at=row.updated_at,
    )
    item.version, item.expires_at = row.version, row.expires_at
    return item


def found_item_of(namespace: Namespace, row: Row, value: dict[str, Any], score: float | None) -> TreeholdSearchItem:
    """Makes an item that a search found."""
    item = TreeholdSearchItem(
        namespace=namespace,
        key=key_from(row.key),
        value=value,
        created_at=row.created_at,
        updated_at=row.updated_at,
        score=score,
    )
    item.version, item.expires_at = row.version, row.expires_at
    return item
