"""How threads, checkpoints and writes are named in a store.

Each thread has one namespace, so deleting a thread is one atomic delete of everything in it. It is in the same partition as the
list of runs, since both change together. Its keys are parts joined by U+0001:

    c <checkpoint namespace> <id, descending>                         a checkpoint
    h <checkpoint namespace> <id, descending>                         a removed checkpoint that delta channels still need
    w <checkpoint namespace> <id, descending> <task id> <index>       a pending write
    d <name>                                                          content of channels
    x <run id>                                                        the thread has checkpoints of this run
    r                                                                 rewritten by every removal of checkpoints
    t                                                                 the thread's id, if its component is a digest

Ids come from outside and may hold any text. Every encoding here is injective, so no id can name the rows of another.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256

from treehold import Batch, InvalidArgument

SEPARATOR = "\x01"

RESERVED_ROOT = "_treehold"
"""The component under which treehold keeps its own rows: the first of a namespace, or the first after its partition."""

CHECKPOINT = "c" + SEPARATOR
HIDDEN = "h" + SEPARATOR
WRITE = "w" + SEPARATOR
CONTENT = "d" + SEPARATOR
RUN = "x" + SEPARATOR
REMOVALS = "r"
THREAD = "t"

RUNS = "~runs"
"""The component, beside those of threads, of the namespace that lists the threads of each run."""

MOVING = "%moving" + SEPARATOR
"""The prefix of the keys, beside those of runs, of threads that are being moved here. No `part` is equal to its text."""

PREFIXES = (CONTENT, HIDDEN, WRITE, CHECKPOINT, RUN)
"""What the keys in the namespace of a thread start with."""

ITEM_VECTORS = "item-vectors"
"""The component beneath the reserved one of the vectors of items."""

LEFT_VECTORS = "item-vectors-left"
"""The component beneath the reserved one of the row about vectors that stay where an earlier version stored them."""

COMPONENT_BYTES_MAX = 200
"""The longest thread id that is a component of a namespace as it is."""

PART_BYTES_MAX = 400
"""The longest text that is a part of a key as it is."""

ID_BYTES_MAX = 400
"""The longest checkpoint id. Its order matters, so it cannot be shortened to a digest."""

_PART_ESCAPES = str.maketrans({"\x00": "%00", SEPARATOR: "%01", "%": "%25"})


def _descending_characters() -> dict[int, str]:
    """Maps characters so that the mapped texts sort in the opposite order.

    Printable ASCII maps to itself, mirrored, so a UUID keeps its length. A control character sorts before all printable
    ones, so it maps to something that sorts after them. The end of a text sorts before any character, so it maps to
    what sorts last (`_END`). Characters beyond ASCII map to what sorts first; `_descending` does that.
    """
    table = {code: chr(0x9E - code) for code in range(0x20, 0x7F)}
    table.update({code: "\x7f" + chr(0x40 - code) for code in range(0x20)})
    return table


_DESCENDING = _descending_characters()
_END = "\x7f\x7f"


def utf8_length(text: str, what: str) -> int:
    """Returns the length of a text in bytes, and refuses one that no store can hold."""
    try:
        return len(text.encode("utf-8"))
    except UnicodeEncodeError:
        raise InvalidArgument(f"the {what} contains half of a surrogate pair; use valid Unicode") from None


def descending(checkpoint_id: str) -> str:
    """Encodes a checkpoint id so that keys in ascending order list the newest id first."""
    if utf8_length(checkpoint_id, "checkpoint id") > ID_BYTES_MAX:
        raise InvalidArgument(f"the checkpoint id is over {ID_BYTES_MAX} bytes; use a UUID")
    if not checkpoint_id:
        raise InvalidArgument("the checkpoint id is empty; use a UUID")
    if checkpoint_id.isascii() and "\x7f" not in checkpoint_id:
        return checkpoint_id.translate(_DESCENDING) + _END
    encoded = (_DESCENDING.get(ord(character)) or f"\x02{0x10FFFF - ord(character):06x}" for character in checkpoint_id)
    return "".join(encoded) + _END


def part(text: str, what: str) -> str:
    """Encodes a text as a part of a key. A long text becomes its digest, which no other encoding produces."""
    if utf8_length(text, what) > PART_BYTES_MAX:
        return "%~" + sha256(text.encode("utf-8")).hexdigest()
    return text.translate(_PART_ESCAPES)


def part_from(encoded: str) -> str:
    """Reads what `part` wrote."""
    if encoded.startswith("%~"):
        raise InvalidArgument("a long part of a key is stored as its digest only; it cannot be read back")
    return encoded.replace("%01", SEPARATOR).replace("%00", "\x00").replace("%25", "%")


def descending_from(encoded: str) -> str:
    """Reads what `descending` wrote."""
    rest = encoded.removesuffix(_END)
    found: list[str] = []
    place = 0
    while place < len(rest):
        character = rest[place]
        if character == "\x7f":
            found.append(chr(0x40 - ord(rest[place + 1])))
            place += 2
        elif character == "\x02":
            found.append(chr(0x10FFFF - int(rest[place + 1 : place + 7], 16)))
            place += 7
        else:
            found.append(chr(0x9E - ord(character)))
            place += 1
    return "".join(found)


def component(thread_id: str) -> str:
    """Encodes a thread id as a component of a namespace."""
    # The reserved component may be the first one after the partition.
    if thread_id and thread_id != RESERVED_ROOT and not thread_id.startswith("~") and utf8_length(thread_id, "thread id") <= COMPONENT_BYTES_MAX:
        return thread_id
    utf8_length(thread_id, "thread id")
    return "~" + sha256(thread_id.encode("utf-8")).hexdigest()


def is_reserved(namespace: Sequence[str]) -> bool:
    """Returns whether a namespace is where treehold keeps its own rows."""
    # The partition has two components, or an empty second one.
    return RESERVED_ROOT in (*namespace[:1], *namespace[2:3])


def labels_of(root: tuple[str, ...], namespace: Sequence[str]) -> tuple[str, ...] | None:
    """Returns the namespace of items in a namespace of the store beneath `root`; `None` where no item can be."""
    labels = tuple(namespace[len(root) :])
    # Beneath a tenant are also its own namespaces, with an empty label, and the program's rows.
    return None if is_reserved(namespace) or "" in labels else labels


def root_of(namespace: tuple[str, ...]) -> tuple[str, ...]:
    """Returns what the namespaces of threads begin with. They are all in one partition."""
    return (*namespace, "") if len(namespace) == 1 else namespace


def vectors_of(items: tuple[str, ...]) -> tuple[str, ...]:
    """Returns the namespace of the vectors of items. It is in the partition of the items, because both change together."""
    partition = (*items, "") if len(items) == 1 else items[:2]
    return (*partition, RESERVED_ROOT, ITEM_VECTORS, *items[2:])


def left_vectors_of(items: tuple[str, ...]) -> tuple[str, ...]:
    """Returns the namespace of the row that says which vectors of an earlier version stay."""
    vectors = vectors_of(items)
    return (*vectors[:3], LEFT_VECTORS, *vectors[4:])


def items_of(vectors: tuple[str, ...]) -> tuple[str, ...] | None:
    """Returns the namespace that `vectors_of` made another of, if it did."""
    if vectors[2:4] != (RESERVED_ROOT, ITEM_VECTORS):
        return None
    return vectors[:1] if vectors[1:2] == ("",) and len(vectors) == 4 else (*vectors[:2], *vectors[4:])


def is_valid(namespace: tuple[str, ...]) -> bool:
    """Returns whether a store accepts a namespace: neither too many components nor too long a text."""
    try:
        Batch().delete(namespace, RESERVED_ROOT)
    except InvalidArgument:
        return False
    return True


def is_digest(component: str) -> bool:
    """Returns whether a component is the digest of a thread id, which the row `t` then holds."""
    return component.startswith("~")


def namespace_prefix(kind: str, checkpoint_ns: str) -> str:
    """Returns the prefix of the keys of one kind in a checkpoint namespace."""
    return kind + part(checkpoint_ns, "checkpoint namespace") + SEPARATOR


def checkpoint_key(checkpoint_ns: str, checkpoint_id: str, kind: str = CHECKPOINT) -> str:
    """Returns the key of a checkpoint."""
    return namespace_prefix(kind, checkpoint_ns) + descending(checkpoint_id)


def writes_prefix(checkpoint_ns: str, checkpoint_id: str) -> str:
    """Returns the prefix of the keys of a checkpoint's pending writes."""
    return namespace_prefix(WRITE, checkpoint_ns) + descending(checkpoint_id) + SEPARATOR


def write_key(prefix: str, task_id: str, index: int) -> str:
    """Returns the key of a pending write."""
    return f"{prefix}{part(task_id, 'task id')}{SEPARATOR}{index}"


def content_key(name: str) -> str:
    """Returns the key of a piece of content."""
    return CONTENT + name
