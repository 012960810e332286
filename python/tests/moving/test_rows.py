"""Moving rows of one namespace to another."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from itertools import count
from typing import Any

import pytest
from failing import Counting, Failing, Stopped, contents

from treehold import Batch, Conflict, Store, _moving
from treehold._io import Steps, arun, run
from treehold._moving import Fence, Move, is_moved, move

SOURCE, TARGET = ("a", "old", "x"), ("a", "new", "x")

MOVE = Move(SOURCE, TARGET)

FENCE = Fence(("a", "new"), "fence")


def fill(store: Store, rows: int = 130) -> None:
    batch = Batch().put(TARGET, "007", "newer", meta="n")
    store.commit(batch)
    batch = Batch()
    for number in range(rows):
        batch.put(SOURCE, f"{number:03}", f"body {number}", meta=f"meta {number}", ttl_seconds=600 if number % 2 else None)
    store.commit(batch)


def check(store: Store, rows: int = 130) -> None:
    moved = store.scan(TARGET).rows
    assert [row.key for row in moved] == [f"{number:03}" for number in range(rows)]
    for number, row in enumerate(moved):
        if number == 7:
            assert (row.body, row.meta, row.expires_at) == (b"newer", b"n", None)
            continue
        assert (row.body, row.meta) == (f"body {number}".encode(), f"meta {number}".encode())
        assert (row.expires_at is not None) == bool(number % 2)
        if row.expires_at is not None:
            assert abs(row.expires_at - datetime.now(timezone.utc) - timedelta(seconds=600)) < timedelta(seconds=60)
    assert {space for space, _ in contents(store)} == {TARGET}
    assert run(is_moved([MOVE], FENCE), store)


@pytest.mark.parametrize("fence", [FENCE, None])
async def test_moved_rows_keep_bodies_metadata_and_lives(store: Store, fence: Fence | None) -> None:
    fill(store)
    assert not run(is_moved([MOVE], FENCE), store)
    await arun(move([MOVE], fence), store)
    check(store)
    before = contents(store)
    run(move([MOVE], fence), store)
    assert contents(store) == before


@pytest.mark.parametrize("fence", [FENCE, None])
def test_move_that_stops_at_any_commit_continues(store: Store, moment: str, fence: Fence | None) -> None:
    for commits in count():
        for space in (SOURCE, TARGET, FENCE.namespace):
            store.commit(Batch().delete_prefix(space))
        fill(store)
        failing: Any = Failing(store, commits, moment)
        try:
            run(move([MOVE], fence), failing)
        except Stopped:
            if fence is not None:
                assert not run(is_moved([MOVE], fence), store) or {space for space, _ in contents(store)} == {TARGET}
            run(move([MOVE], fence), store)
            check(store)
        else:
            assert commits > 5
            return


def test_only_the_named_keys_move(store: Store) -> None:
    store.commit(Batch().put(SOURCE, "a1", "x").put(SOURCE, "a2", "x").put(SOURCE, "b", "x").put(SOURCE, "bb", "x").put(SOURCE, "c", "x"))
    run(move([Move(SOURCE, TARGET, ("a",), ("b", "none"))], FENCE), store)
    assert [row.key for row in store.scan(TARGET).rows] == ["a1", "a2", "b"]
    assert [row.key for row in store.scan(SOURCE).rows] == ["bb", "c"]


def test_large_rows_move_in_several_commits(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_moving, "BATCH_BYTES", 2500)
    for number in range(10):
        store.commit(Batch().put(SOURCE, str(number), "x" * 1000))
    counting: Any = Counting(store)
    run(move([MOVE], None), counting)
    assert [len(row.body) for row in store.scan(TARGET).rows] == [1000] * 10
    # Puts of 3, 3, 3 and 1 row, and the removal of all.
    assert counting.calls == ["scan", *["commit"] * 5]


def stepwise(steps: Steps[None], store: Store, name: str) -> Any:
    """Runs steps up to a request."""
    request = next(steps)
    while type(request).__name__ != name or len(getattr(request, "batch", ())) < 2:
        request = steps.send(request.answer(store))
    return request


def resume(steps: Steps[None], request: Any, store: Store) -> None:
    """Runs steps from a request to their end."""
    while True:
        try:
            try:
                answer = request.answer(store)
            except Conflict as error:
                request = steps.throw(error)
            else:
                request = steps.send(answer)
        except StopIteration:
            return


def test_row_that_was_removed_after_another_process_moved_it_does_not_return(store: Store) -> None:
    store.commit(Batch().put(SOURCE, "a", "x").put(SOURCE, "b", "x"))
    slow = move([MOVE], FENCE)
    late = stepwise(slow, store, "Commit")
    # Another process moves everything, and its users remove a row.
    run(move([MOVE], FENCE), store)
    assert run(is_moved([MOVE], FENCE), store)
    store.commit(Batch().delete(TARGET, "a"))
    with pytest.raises(Conflict):
        late.answer(store)
    resume(slow, late, store)
    assert [row.key for row in store.scan(TARGET).rows] == ["b"]
    assert run(is_moved([MOVE], FENCE), store)


def test_end_of_a_move_stops_a_process_that_read_the_rows_meanwhile(store: Store) -> None:
    store.commit(Batch().put(SOURCE, "a", "x").put(SOURCE, "b", "x"))
    first = move([MOVE], FENCE)
    put = stepwise(first, store, "Commit")
    request = first.send(put.answer(store))
    # The other process reads the rows before the first one removes them from the old place.
    second = move([MOVE], FENCE)
    late = stepwise(second, store, "Commit")
    resume(first, request, store)
    store.commit(Batch().delete(TARGET, "a"))
    resume(second, late, store)
    assert [row.key for row in store.scan(TARGET).rows] == ["b"]
    assert run(is_moved([MOVE], FENCE), store)


def test_rows_are_not_in_use_while_somebody_may_still_put_some(store: Store) -> None:
    store.commit(Batch().put(SOURCE, "a", "x").put(SOURCE, "b", "x"))
    slow = move([MOVE], FENCE)
    late = stepwise(slow, store, "Commit")
    store.commit(Batch().delete_prefix(SOURCE))
    assert not run(is_moved([MOVE], FENCE), store)
    late.answer(store)


def test_two_moves_in_turns_both_end(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_moving, "WAIT_SECONDS_MAX", 0.001)
    fill(store)
    running = [move([MOVE], FENCE) for _ in range(2)]
    answers: list[Any] = [None, None]
    # One of them runs three steps for each of the other.
    turns = [0, 1, 1, 1]
    while running[0] is not None or running[1] is not None:
        for turn in turns:
            steps = running[turn]
            if steps is None:
                continue
            try:
                answer = answers[turn]
                request = steps.throw(answer) if isinstance(answer, Exception) else steps.send(answer)
                answers[turn] = request.answer(store)
            except StopIteration:
                running[turn] = None  # type: ignore[call-overload]
            except Conflict as error:
                answers[turn] = error
    check(store)


@pytest.mark.parametrize("fence", [FENCE, None])
def test_row_that_is_written_at_the_old_place_during_a_move_replaces_the_moved_one(store: Store, fence: Fence | None) -> None:
    store.commit(Batch().put(SOURCE, "a", "1").put(SOURCE, "b", "1").put(SOURCE, "c", "1"))
    store.commit(Batch().put(TARGET, "c", "theirs"))
    steps = move([MOVE], fence)
    request = stepwise(steps, store, "Commit")
    while not isinstance(request, _moving.Scan) and store.get(TARGET, "a") is None:
        try:
            request = steps.send(request.answer(store))
        except Conflict as error:
            request = steps.throw(error)
    store.commit(Batch().put(SOURCE, "a", "2", meta="m").put(SOURCE, "c", "2"))
    resume(steps, request, store)
    assert {row.key: (row.body, row.meta) for row in store.scan(TARGET).rows} == {
        "a": (b"2", b"m"), "b": (b"1", b""), "c": (b"theirs", b"")
    }  # fmt: skip
    assert run(is_moved([MOVE], FENCE), store)


@pytest.mark.parametrize("rows", [1, 130])
def test_move_that_continues_a_stopped_one_replaces_what_that_put_by_later_rows(store: Store, rows: int) -> None:
    changed = f"{rows - 1:03}"
    for commits in count():
        for space in (SOURCE, TARGET, FENCE.namespace):
            store.commit(Batch().delete_prefix(space))
        fill(store, rows)
        failing: Any = Failing(store, commits, "after")
        try:
            run(move([MOVE], FENCE), failing)
        except Stopped:
            if store.get(SOURCE, changed) is None:
                continue
            store.commit(Batch().put(SOURCE, changed, "later"))
            run(move([MOVE], FENCE), store)
            row = store.get(TARGET, changed)
            assert row is not None and row.body == b"later"
            user = store.get(TARGET, "007")
            assert user is not None and user.body == b"newer"
            assert run(is_moved([MOVE], FENCE), store)
        else:
            return


def test_row_that_users_changed_at_the_new_place_is_not_replaced(store: Store) -> None:
    store.commit(Batch().put(SOURCE, "a", "1").put(SOURCE, "b", "1"))
    steps = move([MOVE], FENCE)
    request = stepwise(steps, store, "Commit")
    request = steps.send(request.answer(store))
    store.commit(Batch().put(TARGET, "a", "user"))
    store.commit(Batch().put(SOURCE, "a", "2"))
    resume(steps, request, store)
    assert {row.key: row.body for row in store.scan(TARGET).rows} == {"a": b"user", "b": b"1"}
    assert run(is_moved([MOVE], FENCE), store)


def test_late_deletion_of_an_outdated_move_spares_a_later_row(store: Store) -> None:
    store.commit(Batch().put(SOURCE, "a", "1").put(SOURCE, "b", "1"))
    slow = move([MOVE], FENCE)
    put = stepwise(slow, store, "Commit")
    late = slow.send(put.answer(store))
    # Another move reads the rows, one of which changes, before the first one deletes what it read.
    other = move([MOVE], FENCE)
    request = stepwise(other, store, "Commit")
    store.commit(Batch().put(SOURCE, "a", "2"))
    with pytest.raises(Conflict) as refused:
        late.answer(store)
    resume(other, request, store)
    resume(slow, slow.throw(refused.value), store)
    assert {row.key: row.body for row in store.scan(TARGET).rows} == {"a": b"2", "b": b"1"}
    assert run(is_moved([MOVE], FENCE), store)


def test_foreign_rows_at_the_old_place_are_nothing_to_move(store: Store) -> None:
    some = Move(SOURCE, TARGET, ("a", "b"), ("key",))
    store.commit(Batch().put(SOURCE, "c", "theirs"))
    counting: Any = Counting(store)
    assert run(is_moved([some], FENCE), counting)
    assert counting.calls == ["scan", "scan", "scan", "get_many", "get_many"]
    for key in ("b1", "key"):
        store.commit(Batch().put(SOURCE, key, "x"))
        assert not run(is_moved([some], FENCE), store)
        run(move([some], FENCE), store)
        assert run(is_moved([some], FENCE), store)


def test_waits_of_interrupted_moves_grow_up_to_a_bound_and_differ() -> None:
    waits = [[_moving._wait_seconds(attempt) for _ in range(20)] for attempt in range(_moving.ATTEMPTS_MAX)]
    assert all(len(set(some)) > 1 for some in waits)
    assert max(waits[0]) <= _moving.WAIT_SECONDS_MIN
    assert min(waits[3]) > max(waits[1])
    assert max(map(max, waits)) <= _moving.WAIT_SECONDS_MAX
    assert min(waits[-1]) >= _moving.WAIT_SECONDS_MAX / 2
