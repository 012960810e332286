"""The history of delta channels: the nearest stored value and the writes since.

A graph stores the value of a delta channel only now and then. In between, its value is the nearest stored one of an
ancestor, to which the writes of the checkpoints on the way are applied. Ancestors that were removed are kept aside as
long as a checkpoint needs them for this.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from langgraph.checkpoint.base import DeltaChannelHistory, PendingWrite

from treehold import Corrupt, Row
from treehold._io import GetMany, Namespace, Scan, Steps

from . import _keys as keys
from ._content import Reference
from ._records import Record, decode_record
from ._threads import PAGE_CONTENTS, PAGE_ROWS, Missing, StoredWrite, Threads

AHEAD_MAX = 64
"""The most checkpoints that are read ahead of the walk to the root."""


def history(
    threads: Threads, thread_id: str, checkpoint_ns: str, checkpoint_id: str | None, channels: Sequence[str]
) -> Steps[dict[str, DeltaChannelHistory]]:
    """Returns the history of channels, up to a checkpoint or to the latest one."""
    namespace = threads.namespace(thread_id)
    was_missing = False
    while True:
        try:
            return (yield from _history(threads, namespace, checkpoint_ns, checkpoint_id, channels))
        except Missing:
            # A removal got in between. It keeps what the remaining checkpoints need.
            if was_missing:
                raise Corrupt("content of a checkpoint is missing; restore the store from a backup") from None
            was_missing = True


def _history(
    threads: Threads, namespace: Namespace, checkpoint_ns: str, checkpoint_id: str | None, channels: Sequence[str]
) -> Steps[dict[str, DeltaChannelHistory]]:
    chains, seeds = yield from _walk(threads, namespace, checkpoint_ns, checkpoint_id, channels)
    writes = yield from _writes(threads, namespace, checkpoint_ns, chains)
    values = yield from threads.values(namespace, seeds)
    found: dict[str, DeltaChannelHistory] = {}
    for channel in channels:
        entry: DeltaChannelHistory = {"writes": writes.get(channel, [])}
        if channel in values:
            entry["seed"] = values[channel]
        found[channel] = entry
    return found


def _walk(
    threads: Threads, namespace: Namespace, checkpoint_ns: str, checkpoint_id: str | None, channels: Sequence[str]
) -> Steps[tuple[dict[str, list[str]], dict[str, Reference]]]:
    """Walks to the root. Returns, for each channel, the ancestors up to the one with its value, and that value."""
    chains: dict[str, list[str]] = {channel: [] for channel in channels}
    seeds: dict[str, Reference] = {}
    target = yield from threads.row(namespace, checkpoint_ns, checkpoint_id)
    if target is None:
        return chains, seeds
    ancestors = _Ancestors(threads, namespace, checkpoint_ns)
    remaining = set(channels)
    visited = {decode_record(threads.serde, target).checkpoint_id}
    parent_id = decode_record(threads.serde, target).parent_id
    while parent_id is not None and remaining and parent_id not in visited:
        visited.add(parent_id)
        record = yield from ancestors.get(parent_id)
        if record is None:
            break
        for channel in tuple(remaining):
            chains[channel].append(parent_id)
            place = record.references.get(channel)
            if place is not None:
                seeds[channel] = place
                remaining.discard(channel)
        parent_id = record.parent_id
    return chains, seeds


class _Ancestors:
    """Reads ancestors, and those that probably come next together with them."""

    def __init__(self, threads: Threads, namespace: Namespace, checkpoint_ns: str) -> None:
        self._threads = threads
        self._namespace = namespace
        self._checkpoint_ns = checkpoint_ns
        self._rows: dict[str, Row] = {}
        self._ahead = 1

    def get(self, checkpoint_id: str) -> Steps[Record | None]:
        """Returns an ancestor, also one that was removed and is kept aside."""
        key = keys.checkpoint_key(self._checkpoint_ns, checkpoint_id)
        row = self._rows.get(key)
        if row is None:
            hidden = keys.checkpoint_key(self._checkpoint_ns, checkpoint_id, keys.HIDDEN)
            found: Sequence[Row | None] = yield GetMany(self._namespace, [key, hidden])
            row = found[0] or found[1]
            if row is None:
                return None
            # In a thread without branches, ancestors follow each other. Read further ahead while that proves right.
            kind = keys.CHECKPOINT if found[0] else keys.HIDDEN
            page = yield Scan(
                self._namespace, keys.namespace_prefix(kind, self._checkpoint_ns), row.key, limit=self._ahead
            )
            self._ahead = min(4 * self._ahead, AHEAD_MAX)
            self._rows = {_checkpoint_key(ahead.key): ahead for ahead in page.rows}
        return decode_record(self._threads.serde, row)


def _checkpoint_key(key: str) -> str:
    return keys.CHECKPOINT + key.removeprefix(keys.CHECKPOINT).removeprefix(keys.HIDDEN)


def _writes(
    threads: Threads, namespace: Namespace, checkpoint_ns: str, chains: Mapping[str, Sequence[str]]
) -> Steps[dict[str, list[PendingWrite]]]:
    """Reads the writes of ancestors to channels, oldest first."""
    prefix = keys.namespace_prefix(keys.WRITE, checkpoint_ns)
    wanted: dict[str, set[str]] = {}
    for channel, chain in chains.items():
        for checkpoint_id in chain:
            wanted.setdefault(keys.descending(checkpoint_id), set()).add(channel)
    if not wanted:
        return {}
    last = max(wanted)
    # Keys list the newest checkpoint first. Their metadata names the channel, so only what is wanted is read.
    after: str | None = prefix + min(wanted)
    stored: list[tuple[str, StoredWrite, str]] = []
    while after is not None:
        page = yield Scan(namespace, prefix, after, limit=PAGE_ROWS, with_values=False)
        after = page.next
        for row in page.rows:
            order = row.key.removeprefix(prefix).split(keys.SEPARATOR, 1)[0]
            if order > last:
                after = None
                break
            write = StoredWrite.of_row(row)
            if write.channel in wanted.get(order, ()):
                stored.append((order, write, row.key))
    # The newest checkpoint sorts first, so two stable sorts put the oldest first and keep the order within each.
    stored.sort(key=lambda entry: entry[1].order)
    stored.sort(key=lambda entry: entry[0], reverse=True)
    found: dict[str, list[PendingWrite]] = {}
    for start in range(0, len(stored), PAGE_CONTENTS):
        some = stored[start : start + PAGE_CONTENTS]
        rows: Sequence[Row | None] = yield GetMany(namespace, [key for _, _, key in some])
        for (_, write, _), row in zip(some, rows, strict=True):
            if row is None:
                raise Missing
            value = threads.serde.loads_typed((write.typed[0], row.body))
            found.setdefault(write.channel, []).append((write.task_id, write.channel, value))
    return found
