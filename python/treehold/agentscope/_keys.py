"""Where records live: one namespace for each kind of each user, with identifiers as they are.

Identifiers are components of a namespace or whole keys, so no two tuples of identifiers share a row, whatever characters they
contain. Where several identifiers make one key, each is percent-encoded and `/` joins them.
"""

from __future__ import annotations

from urllib.parse import quote, unquote

from treehold.errors import InvalidArgument

ID_BYTES_MAX = 256
"""The longest identifier. A namespace holds two of them beside its names, and a key three that are percent-encoded."""

RESERVED_ROOT = "_treehold"
"""The component under which treehold keeps its own rows in the partition of a user."""

SHARED_COMPONENT = "~shared"
"""The component, beside those of users, of what they share."""

Space = tuple[str, ...]


def checked(what: str, value: str) -> str:
    """Returns an identifier that can be stored, or raises `InvalidArgument`."""
    if not isinstance(value, str):  # pyright: ignore[reportUnnecessaryIsInstance]  # callers are not always checked
        raise InvalidArgument(f"the {what} is a {type(value).__name__}; pass a text")
    if not value:
        raise InvalidArgument(f"the {what} is empty; pass the identifier of a record")
    if "\0" in value:
        raise InvalidArgument(f"the {what} contains NUL; use an identifier without it")
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        raise InvalidArgument(f"the {what} is not valid Unicode; use an identifier without lone surrogates") from None
    if size > ID_BYTES_MAX:
        raise InvalidArgument(f"the {what} is over {ID_BYTES_MAX} bytes; use a shorter identifier")
    return value


def joined(*identifiers: str) -> str:
    """Returns one key for several identifiers."""
    return "/".join(quote(identifier, safe="") for identifier in identifiers)


def split(key: str) -> tuple[str, ...]:
    """Returns the identifiers of a key that `joined` made."""
    return tuple(unquote(part) for part in key.split("/"))


class Layout:
    """The namespaces beneath the root of a storage.

    All are in one partition, because a change of a user's record often changes rows that users share, and a commit changes rows of one
    partition. Beneath a root of one component, that is the partition of `users`, so everything lies there, for every root alike.
    """

    def __init__(self, root: Space) -> None:
        for part in root:
            checked("component of the namespace", part)
        if not root:
            raise InvalidArgument("the namespace is empty; name at least one component")
        self.root = root

    def user(self, user_id: str, kind: str, *identifiers: str) -> Space:
        """Returns the namespace of a kind of a user's records."""
        if user_id in (RESERVED_ROOT, SHARED_COMPONENT):
            raise InvalidArgument(f"the user id is `{user_id}`, which is reserved; use another identifier")
        return (*self.root, "users", checked("user id", user_id), kind, *identifiers)

    def all(self, kind: str) -> Space:
        """Returns a namespace that users share. None of them is beneath that of a user."""
        return (*self.root, "users", SHARED_COMPONENT, kind)

    def former_all(self, kind: str) -> Space:
        """Returns where earlier versions had a namespace that users share."""
        return (*self.root, "all", kind)
