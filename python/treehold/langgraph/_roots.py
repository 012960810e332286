"""Where the threads of a saver lie, and moving those that earlier versions stored elsewhere.

All rows that a commit of a thread changes are in one partition. Without a session they are at the namespace of the saver. A thread
with a session is in the partition of the session, since its checkpoints are committed together with the files.

Earlier versions kept the threads of sessions at the namespace of the saver too, and those of a namespace of one component beneath
it, each in a partition of its own.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence

from treehold import Row, Session
from treehold._io import GetMany, Namespace, Namespaces, Scan, Steps
from treehold._moving import Fence, Move, has_rows, is_moved, move

from . import _keys as keys
from ._content import ContentCodec
from ._threads import Bases, Threads

SETTLED_MAX = 10_000
"""How many threads are remembered as moved."""


class Roots:
    """The roots of the threads of one saver."""

    def __init__(self, namespace: Namespace, codec: ContentCodec, *, has_sessions: bool) -> None:
        self._namespace = namespace
        self._codec = codec
        self._has_sessions = has_sessions
        self._bases = Bases()
        self._settled: OrderedDict[Namespace, None] = OrderedDict()
        self._lock = threading.Lock()
        self.plain = self._threads(keys.root_of(namespace))
        """The threads without a session."""

    def of(self, thread_id: str, session: Session | None) -> Steps[Threads]:
        """Returns where a thread lies. One that an earlier version stored elsewhere is moved.

        Cost: nothing at the namespace of the saver, if that has several components; else two reads at the first use of the thread.
        Where others keep rows in the namespace that an earlier version had for the thread, up to six more.
        """
        threads = self.plain if session is None else self._threads(self._root_in(session.partition))
        yield from self._settle(threads, threads.namespace(thread_id)[-1])
        return threads

    def all(self, *, everywhere: bool = False) -> Steps[list[Threads]]:
        """Returns where threads lie. What was moved in part is moved to its end.

        Without sessions, that is the namespace of the saver alone; `everywhere` looks for threads of sessions too.

        Cost: with sessions, a read for each 1,000 namespaces of the store and one for each partition with threads. Nothing without
        them, but for a namespace of one component, beneath which threads of an earlier version are moved.
        """
        if self.plain.root != self._namespace:
            yield from self._settle_all()
        if not self._has_sessions and not everywhere:
            return [self.plain]
        found = {self.plain.root: self.plain}
        depth = 2 + len(self._namespace)
        after: Namespace | None = None
        while True:
            page = yield Namespaces(None, after)
            for space in map(tuple, page.namespaces):
                root = space[:depth]
                is_named = len(space) == depth + 1 and space[2:depth] == self._namespace
                if is_named and root not in found and "" not in space and not keys.is_reserved(space):
                    found[root] = self._threads(root)
            after = page.next
            if after is None:
                break
        for threads in list(found.values()):
            started = yield Scan(threads.runs, keys.MOVING, with_values=False)
            for row in started.rows:
                yield from self._settle(threads, row.key.removeprefix(keys.MOVING))
        return list(found.values())

    def holding(self, thread_id: str) -> Steps[list[Threads]]:
        """Returns where a thread without a known session lies: nowhere, in one place, or where several sessions have one of its id.

        Cost: without sessions, what `of` costs. With them, what `all` costs, and what `holding` costs.
        """
        plain = yield from self.of(thread_id, None)
        if not self._has_sessions:
            return [plain]
        return (yield from holding((yield from self.all()), thread_id))

    def _threads(self, root: Namespace) -> Threads:
        return Threads(root, self._codec, self._bases)

    def _root_in(self, partition: Namespace) -> Namespace:
        """Returns the root in the partition of a session: the namespace of the saver, or one of that name in the partition."""
        return self._namespace if self._namespace[:2] == partition else (*partition, *self._namespace)

    def _former(self, threads: Threads) -> list[Namespace]:
        """Returns the roots that threads may have had: in earlier versions, or before they had a session."""
        return [root for root in dict.fromkeys((self._namespace, self.plain.root)) if root != threads.root]

    def _settle(self, threads: Threads, component: str) -> Steps[None]:
        """Moves a thread that lies elsewhere, once."""
        former = self._former(threads)
        target = (*threads.root, component)
        with self._lock:
            if not former or target in self._settled:
                return
        fence = Fence(threads.runs, keys.MOVING + component)
        if not (yield from is_moved([_rows_of(root, threads, component) for root in former], fence)):
            yield from self._move(former, threads, component, fence)
        with self._lock:
            self._settled[target] = None
            while len(self._settled) > SETTLED_MAX:
                self._settled.popitem(last=False)

    def _settle_all(self) -> Steps[None]:
        """Moves the threads of a namespace of one component. Namespaces of others beneath it stay.

        Cost: a read for each 1,000 namespaces, and for each one of two components the reads of a thread's first use.
        """
        after: Namespace | None = None
        while True:
            page = yield Namespaces(self._namespace, after)
            for space in map(tuple, page.namespaces):
                if len(space) == 2 and space[-1] != keys.RUNS:
                    yield from self._settle(self.plain, space[-1])
            after = page.next
            if after is None:
                return

    def _move(self, former: Sequence[Namespace], threads: Threads, component: str, fence: Fence) -> Steps[None]:
        runs: list[str] = []
        removals: list[Move] = []
        for root in former:
            space = (*root, component)
            runs.extend((yield from threads.keys_of(space, keys.RUN)))
            found: Sequence[Row | None] = yield GetMany(space, [keys.REMOVALS])
            # A row of others may have this key.
            if found[0] is not None and not found[0].body and (yield from has_rows(_rows_of(root, threads, component))):
                removals.append(Move(space, (*threads.root, component), (), (keys.REMOVALS,)))
        listed = [key.removeprefix(keys.RUN) + keys.SEPARATOR + component for key in runs]
        # The list of runs moves first, because it is found by rows of the thread.
        moves = [Move((*root, keys.RUNS), threads.runs, (), listed) for root in former]
        moves.extend(removals)
        moves.extend(_rows_of(root, threads, component) for root in former)
        yield from move(moves, fence)


def holding(roots: Sequence[Threads], thread_id: str) -> Steps[list[Threads]]:
    """Returns those of several roots that have rows of a thread.

    Cost: one read for each root without a namespace of that name, and up to seven for one with it.
    """
    found: list[Threads] = []
    for threads in roots:
        if (yield from _holds(threads, thread_id)):
            found.append(threads)
    return found


def _holds(threads: Threads, thread_id: str) -> Steps[bool]:
    space = threads.namespace(thread_id)
    if (yield from has_rows(Move(space, (), keys.PREFIXES))):
        return True
    # Others may have rows with these keys, but not without a body, nor where a digest is.
    rows: Sequence[Row | None] = yield GetMany(space, [keys.REMOVALS, keys.THREAD])
    removals, name = rows
    return (removals is not None and not removals.body) or (name is not None and keys.is_digest(space[-1]))


def _rows_of(root: Namespace, threads: Threads, component: str) -> Move:
    """Returns the move of a thread's rows from a former root. Others may keep rows in the same namespace, which stay."""
    # Only a digest is explained by a row; elsewhere, one with this key belongs to others.
    named = (keys.THREAD,) if keys.is_digest(component) else ()
    return Move((*root, component), (*threads.root, component), keys.PREFIXES, named)
