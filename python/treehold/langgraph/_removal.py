"""Removing checkpoints and the content that only they held; copying threads.

A removal never breaks what remains. A checkpoint whose value of a delta channel is spread over its ancestors keeps
them: they are no longer listed or read as checkpoints, but `_history` finds them.

Content is removed by mark and sweep, without a lock and beside all other work:

- A put relies on content only while the checkpoint that it follows is there, and requires its version. What the put
  stores itself has a newer version than the sweep and stays.
- Content is removed only at the version at which it was found.
- Every removal of checkpoints rewrites one row, which the sweep compares before and after it lists the checkpoints. So a
  checkpoint cannot take over content from another behind the back of the list.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from treehold import AlreadyExists, Batch, Conflict, Row
from treehold._io import Commit, CurrentVersion, GetMany, Namespace, Scan, Steps

from . import _keys as keys
from ._content import Tree, Whole, name_of_text, split_names, text_of_name
from ._records import Record, decode_record, encode_record
from ._threads import ATTEMPTS, PAGE_CONTENTS, PAGE_ROWS, Missing, StoredWrite, Threads

BATCH_ROWS = 500
"""The most checkpoints that one commit removes."""

SWEPT_ROWS = 100
"""The most pieces of content that one commit removes."""

COPIED_BYTES = 8 << 20
"""Once a batch of copied content has this size, it is committed."""

Place = tuple[str, str]
"""The namespace and the id of a checkpoint."""


def delete_thread(threads: Threads, thread_id: str) -> Steps[None]:
    """Removes everything of a thread in one commit."""
    namespace = threads.namespace(thread_id)
    runs = yield from threads.keys_of(namespace, keys.RUN)
    batch = Batch().delete_prefix(namespace, "")
    for run in runs:
        batch.delete(threads.runs, run.removeprefix(keys.RUN) + keys.SEPARATOR + namespace[-1])
    yield Commit(batch)


def keep_latest(threads: Threads, thread_id: str) -> Steps[None]:
    """Removes all checkpoints of a thread but the latest of each namespace."""

    def victims(records: Mapping[Place, Record]) -> set[Place]:
        latest: dict[str, str] = {}
        for checkpoint_ns, checkpoint_id in records:
            latest[checkpoint_ns] = max(latest.get(checkpoint_ns, ""), checkpoint_id)
        return {place for place in records if latest[place[0]] != place[1]}

    yield from _remove(threads, threads.namespace(thread_id), victims)


def delete_for_runs(threads: Threads, run_ids: Iterable[str]) -> Steps[None]:
    """Removes the checkpoints that runs made, in all threads."""
    wanted = set(run_ids)
    places: dict[Namespace, list[str]] = {}
    for run_id in wanted:
        prefix = keys.part(run_id, "run id") + keys.SEPARATOR
        for key in (yield from threads.keys_of(threads.runs, prefix)):
            places.setdefault((*threads.root, key.removeprefix(prefix)), []).append(run_id)
    for namespace, runs in places.items():
        run_keys = [keys.RUN + keys.part(run_id, "run id") for run_id in runs]
        found: Sequence[Row | None] = yield GetMany(namespace, run_keys, with_values=False)

        def victims(records: Mapping[Place, Record]) -> set[Place]:
            return {place for place, record in records.items() if record.run_id in wanted}

        yield from _remove(threads, namespace, victims)
        batch = Batch()
        for key, row in zip(run_keys, found, strict=True):
            batch.require(namespace, key, _version(row)).delete(namespace, key)
            batch.delete(threads.runs, key.removeprefix(keys.RUN) + keys.SEPARATOR + namespace[-1])
        try:
            yield Commit(batch)
        except Conflict:
            # One of the runs goes on and was noted again.
            continue


def _remove(threads: Threads, namespace: Namespace, victims: Callable[[Mapping[Place, Record]], set[Place]]) -> Steps[None]:
    """Removes checkpoints of a thread, and sweeps."""
    for attempt in range(ATTEMPTS):
        since: int = yield CurrentVersion(namespace)
        records, hidden = yield from _records(threads, namespace)
        chosen = victims(records)
        if not chosen:
            return
        needed = yield from _needed(threads, namespace, records, hidden, chosen)
        is_delta = any(record.delta_channels for record in (*records.values(), *hidden.values()))
        steps = _removals(threads, namespace, records, hidden, chosen, needed)
        try:
            for batch in steps:
                batch.put(namespace, keys.REMOVALS, b"")
                if is_delta:
                    # A checkpoint that was put meanwhile may need ancestors too.
                    batch.require_none_beneath_since(namespace, keys.CHECKPOINT, since)
                yield Commit(batch)
        except Conflict:
            if attempt == ATTEMPTS - 1:
                raise
            continue
        break
    yield from sweep(threads, namespace)


def _records(threads: Threads, namespace: Namespace) -> Steps[tuple[dict[Place, Record], dict[Place, Record]]]:
    """Reads all checkpoints of a thread, and those that are kept aside."""
    found: list[dict[Place, Record]] = []
    for kind in (keys.CHECKPOINT, keys.HIDDEN):
        records: dict[Place, Record] = {}
        for row in (yield from threads.rows_of(namespace, kind)):
            record = decode_record(threads.serde, row)
            records[record.checkpoint_ns, record.checkpoint_id] = record
        found.append(records)
    return found[0], found[1]


def _needed(
    threads: Threads,
    namespace: Namespace,
    records: Mapping[Place, Record],
    hidden: Mapping[Place, Record],
    victims: set[Place],
) -> Steps[dict[Place, set[str]]]:
    """Returns the removed checkpoints that remaining ones need, and the channels they need them for."""
    deltas: dict[str, set[str]] = {}
    for (checkpoint_ns, _), record in (*records.items(), *hidden.items()):
        deltas.setdefault(checkpoint_ns, set()).update(record.delta_channels)
    written: dict[Place, set[str]] = {}
    if any(deltas.values()):
        written = yield from _written(namespace, (*records, *hidden))
    needed: dict[Place, set[str]] = {}
    for place, record in records.items():
        if place in victims:
            continue
        checkpoint_ns = place[0]
        remaining = deltas[checkpoint_ns] - set(record.references)
        visited = {place}
        chain: list[Place] = []
        chains: dict[str, int] = {}
        parent_id = record.parent_id
        while parent_id is not None and remaining:
            parent = checkpoint_ns, parent_id
            ancestor = records.get(parent) or hidden.get(parent)
            if ancestor is None or parent in visited:
                break
            visited.add(parent)
            chain.append(parent)
            for channel in tuple(remaining):
                if channel in written.get(parent, ()):
                    chains[channel] = len(chain)
                if channel in ancestor.references:
                    chains[channel] = len(chain)
                    remaining.discard(channel)
            parent_id = ancestor.parent_id
        for channel, length in chains.items():
            for ancestor_place in chain[:length]:
                if ancestor_place in victims or ancestor_place in hidden:
                    needed.setdefault(ancestor_place, set()).add(channel)
    return needed


def _written(namespace: Namespace, checkpoints: Iterable[Place]) -> Steps[dict[Place, set[str]]]:
    """Returns the channels that the pending writes of checkpoints are for."""
    places = {keys.writes_prefix(*place): place for place in checkpoints}
    written: dict[Place, set[str]] = {}
    after: str | None = None
    while True:
        page = yield Scan(namespace, keys.WRITE, after, limit=PAGE_ROWS, with_values=False)
        for row in page.rows:
            prefix = keys.SEPARATOR.join(row.key.split(keys.SEPARATOR)[:3]) + keys.SEPARATOR
            if prefix in places:
                written.setdefault(places[prefix], set()).add(StoredWrite.of_row(row).channel)
        after = page.next
        if after is None:
            return written


def _removals(
    threads: Threads,
    namespace: Namespace,
    records: Mapping[Place, Record],
    hidden: Mapping[Place, Record],
    victims: set[Place],
    needed: Mapping[Place, set[str]],
) -> Iterable[Batch]:
    """Makes the batches of a removal. What remains needed is set aside before anything is removed."""
    batch, rows = Batch(), 0
    aside = [place for place in needed if place in victims]
    unneeded = [place for place in (*victims, *hidden) if place not in needed]
    for place in (*aside, *unneeded):
        key = keys.checkpoint_key(*place)
        hidden_key = keys.checkpoint_key(*place, keys.HIDDEN)
        if place in needed:
            record = records[place]
            references = {name: at for name, at in record.references.items() if name in needed[place]}
            meta, body = encode_record(
                threads.serde, place[0], record.parent_id, record.checkpoint, record.metadata, references, {}
            )
            batch.require(namespace, key, record.version).put(namespace, hidden_key, body, meta=meta)
            batch.delete(namespace, key)
        else:
            batch.delete(namespace, key).delete(namespace, hidden_key)
            batch.delete_prefix(namespace, keys.writes_prefix(*place))
        rows += 1
        if rows == BATCH_ROWS:
            yield batch
            batch, rows = Batch(), 0
    if rows:
        yield batch


def sweep(threads: Threads, namespace: Namespace) -> Steps[int]:
    """Removes the content of a thread that no checkpoint holds, and returns how many rows."""
    for _ in range(ATTEMPTS):
        before: Sequence[Row | None] = yield GetMany(namespace, [keys.REMOVALS])
        since: int = yield CurrentVersion(namespace)
        rows: list[Row] = []
        for kind in (keys.CHECKPOINT, keys.HIDDEN):
            rows.extend((yield from threads.rows_of(namespace, kind)))
        after: Sequence[Row | None] = yield GetMany(namespace, [keys.REMOVALS])
        # Replacing a checkpoint removes what it was.
        is_replaced = any(row.version > since and row.created_at != row.updated_at for row in rows)
        if is_replaced or _version(before[0]) != _version(after[0]):
            continue
        try:
            held = yield from _held(threads, namespace, rows)
        except Missing:
            # Another sweep got in between.
            continue
        return (yield from _sweep(namespace, held, since))
    return 0


def _version(row: Row | None) -> int | None:
    return None if row is None else row.version


def _held(threads: Threads, namespace: Namespace, rows: Iterable[Row]) -> Steps[set[bytes]]:
    """Returns the names of all content that checkpoints hold, given their rows."""
    held: set[bytes] = set()
    trees: set[Tree] = set()
    for row in rows:
        record = decode_record(threads.serde, row)
        for place in (*record.references.values(), *record.donors.values()):
            if isinstance(place, Whole):
                held.add(place.name)
            elif isinstance(place, Tree):
                trees.add(place)
    for tree in trees:
        held.update(split_names(tree.names))
        if tree.level > 0:
            pages, _ = yield from threads.pages(namespace, [tree])
            for name, below in pages.items():
                held.add(name)
                held.update(below)
    return held


def _sweep(namespace: Namespace, held: set[bytes], since: int) -> Steps[int]:
    swept = 0
    after: str | None = None
    while True:
        page = yield Scan(namespace, keys.CONTENT, after, limit=PAGE_ROWS, with_values=False)
        garbage = [
            row
            for row in page.rows
            if row.version <= since and name_of_text(row.key.removeprefix(keys.CONTENT)) not in held
        ]
        for start in range(0, len(garbage), SWEPT_ROWS):
            swept += yield from _sweep_rows(namespace, garbage[start : start + SWEPT_ROWS])
        after = page.next
        if after is None:
            return swept


def _sweep_rows(namespace: Namespace, rows: Sequence[Row]) -> Steps[int]:
    """Removes rows at their versions. Rows that changed meanwhile stay."""
    batch = Batch()
    for row in rows:
        batch.require(namespace, row.key, row.version).delete(namespace, row.key)
    try:
        yield Commit(batch)
        return len(rows)
    except Conflict:
        if len(rows) == 1:
            return 0
    middle = len(rows) // 2
    first = yield from _sweep_rows(namespace, rows[:middle])
    second = yield from _sweep_rows(namespace, rows[middle:])
    return first + second


def copy_thread(threads: Threads, source_id: str, others: Threads, target_id: str) -> Steps[None]:
    """Copies a thread into one of others that does not exist. The copy appears in one commit, complete."""
    source, target = threads.namespace(source_id), others.namespace(target_id)
    for _ in range(ATTEMPTS):
        page = yield Scan(target, keys.CHECKPOINT, limit=1, with_values=False)
        if page.rows:
            raise AlreadyExists(f"the thread `{target_id}` exists; delete it first, or copy into another")
        rows: list[Row] = []
        for kind in (keys.CHECKPOINT, keys.HIDDEN):
            rows.extend((yield from threads.rows_of(source, kind)))
        try:
            held = yield from _held(threads, source, rows)
            yield from _copy_contents(source, target, sorted(held))
        except Missing:
            # A removal got in between.
            continue
        for kind in (keys.WRITE, keys.RUN):
            rows.extend((yield from threads.rows_of(source, kind)))
        if not rows:
            return
        batch = Batch().require_none_beneath(target, keys.CHECKPOINT)
        for row in rows:
            batch.put(target, row.key, row.body, meta=row.meta)
            if row.key.startswith(keys.RUN):
                batch.put(others.runs, row.key.removeprefix(keys.RUN) + keys.SEPARATOR + target[-1], b"")
        if keys.is_digest(target[-1]):
            batch.put(target, keys.THREAD, target_id.encode("utf-8"))
        try:
            yield Commit(batch)
            return
        except Conflict:
            continue
    raise Conflict("the thread is written or pruned all the time; copy it later")


def _copy_contents(source: Namespace, target: Namespace, names: Sequence[bytes]) -> Steps[None]:
    for start in range(0, len(names), PAGE_CONTENTS):
        found = [keys.content_key(text_of_name(name)) for name in names[start : start + PAGE_CONTENTS]]
        rows: Sequence[Row | None] = yield GetMany(source, found)
        batch, size = Batch(), 0
        for row in rows:
            if row is None:
                raise Missing
            body = row.body
            batch.put(target, row.key, body, meta=row.meta)
            size += len(body)
            if size >= COPIED_BYTES:
                yield Commit(batch)
                batch, size = Batch(), 0
        if size:
            yield Commit(batch)
