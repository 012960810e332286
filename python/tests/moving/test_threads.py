"""Threads, which earlier versions stored in another partition than their files, or than the list of their runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from failing import Counting, Failing, Stopped, contents, relocate, versions
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base.id import uuid6
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.sqlite import SqliteSaver

from treehold import AlreadyExists, Batch, Conflict, InvalidArgument, Session, Store, Workspace, migrate
from treehold.langgraph import TreeholdSaver, TreeholdStore
from treehold.langgraph import _keys as keys

DEFAULT = ("langgraph", "checkpoints")

WORKSPACE = """
[threads]
store = "default"
durability = "exit"

[stores.default]
url = "sqlite:{data}/agent.db"

[routes."/"]
type = "state"
"""

Open = Callable[[str, str], Session]


@pytest.fixture
def open_session(tmp_path: Path) -> Iterator[Open]:
    """Opens the session of a user's thread."""
    workspace = Workspace.open(config=WORKSPACE, data=tmp_path)
    sessions: dict[tuple[str, str], Session] = {}

    def opened(user: str, thread: str) -> Session:
        if (user, thread) not in sessions:
            sessions[user, thread] = workspace.session(thread=thread, user=user, tenant="acme")
        return sessions[user, thread]

    yield opened
    for session in sessions.values():
        session.close()
    workspace.close()


def saver_on(open_session: Open, store: Any = None, **options: Any) -> TreeholdSaver:
    """A saver with the sessions of several users, whose name begins the id of a thread."""

    def sessions(config: RunnableConfig) -> Session | None:
        thread: str = config["configurable"]["thread_id"]
        return open_session(thread.split("-")[0], thread) if "-" in thread else None

    return TreeholdSaver(store or open_session("ada", "ada-1").store, sessions=sessions, **options)


def at(thread: str, checkpoint_id: str | None = None) -> RunnableConfig:
    configurable = {"thread_id": thread, "checkpoint_ns": ""}
    if checkpoint_id is not None:
        configurable["checkpoint_id"] = checkpoint_id
    return {"configurable": configurable}


def put(saver: TreeholdSaver, config: RunnableConfig, values: dict[str, Any], run_id: str | None = None) -> RunnableConfig:
    checkpoint: Any = {
        "v": 4,
        "id": str(uuid6()),
        "ts": "2026-01-01T00:00:00+00:00",
        "channel_values": values,
        "channel_versions": dict.fromkeys(values, 1),
        "versions_seen": {},
    }
    metadata: Any = {"source": "loop", "step": 0, "parents": {}} | ({} if run_id is None else {"run_id": run_id})
    return saver.put(config, checkpoint, metadata, dict.fromkeys(values, 1))


LONG = "ada-" + "x" * 230

FILES = {f"/f{number}": "x" * 500 for number in range(200)}


def fill(saver: TreeholdSaver, *threads: str) -> dict[str, list[RunnableConfig]]:
    """Stores threads with two checkpoints, pending writes, runs and content."""
    made: dict[str, list[RunnableConfig]] = {}
    for thread in threads:
        first = put(saver, at(thread), {"of": thread, "files": FILES}, "first run")
        second = put(saver, first, {"of": thread, "files": {**FILES, "/new": thread}}, "second run")
        saver.put_writes(second, [("channel", thread)], "task")
        made[thread] = [first, second]
    return made


def check_thread(saver: TreeholdSaver, thread: str, configs: list[RunnableConfig]) -> None:
    first, second = saver.get_tuple(configs[0]), saver.get_tuple(at(thread))
    assert first is not None and second is not None
    assert first.checkpoint["channel_values"] == {"of": thread, "files": FILES}
    assert second.config == configs[1] and second.parent_config == configs[0]
    assert second.checkpoint["channel_values"] == {"of": thread, "files": {**FILES, "/new": thread}}
    assert second.pending_writes == [("task", "channel", thread)]


def spaces_of(store: Store) -> list[tuple[str, ...]]:
    """Lists the namespaces with rows of savers."""
    return [space for space in store.namespaces()[0] if "_treehold" not in space]


def test_threads_of_earlier_versions_move_to_the_partitions_of_their_sessions(open_session: Open) -> None:
    store = open_session("ada", "ada-1").store
    made = fill(TreeholdSaver(store), "ada-1", "bob-1", LONG, "alone")
    saver = saver_on(open_session)
    # A list of everything finds threads wherever they are.
    assert {found.config["configurable"]["thread_id"] for found in saver.list(None)} == set(made)
    for thread, configs in made.items():
        check_thread(saver, thread, configs)
    assert {found.config["configurable"]["thread_id"] for found in saver.list(None)} == set(made)
    assert len(list(saver.list(None))) == 2 * len(made)
    roots = {"ada-1": ("acme", "ada", *DEFAULT), "bob-1": ("acme", "bob", *DEFAULT), LONG: ("acme", "ada", *DEFAULT), "alone": DEFAULT}
    threads = {(*root, keys.component(thread)) for thread, root in roots.items()}
    assert set(spaces_of(store)) == threads | {(*root, keys.RUNS) for root in roots.values()}
    assert len(store.scan((*DEFAULT, keys.RUNS)).rows) == 2
    before = contents(store), versions(store)
    again = saver_on(open_session)
    for thread, configs in made.items():
        check_thread(again, thread, configs)
    assert (contents(store), versions(store)) == before


def test_checkpoint_follows_a_moved_one_together_with_files(open_session: Open) -> None:
    session = open_session("ada", "ada-1")
    made = fill(TreeholdSaver(session.store), "ada-1")
    saver = saver_on(open_session)
    session.write("/a.md", "one\n")
    config = put(saver, made["ada-1"][1], {"of": "ada-1", "files": FILES})
    assert saver.files_at(config).read("/a.md").text() == "one\n"
    check = saver.get_tuple(config)
    assert check is not None and check.parent_config == made["ada-1"][1]
    assert not [space for space in spaces_of(session.store) if space[:2] == DEFAULT]


async def test_async_twins_move_threads_too(open_session: Open) -> None:
    session = open_session("ada", "ada-1")
    made = fill(TreeholdSaver(session.store), "ada-1", "ada-2")
    saver = saver_on(open_session)
    found = await saver.aget_tuple(at("ada-1"))
    assert found is not None and found.config == made["ada-1"][1]
    await saver.aput_writes(made["ada-2"][1], [("more", 1)], "other")
    assert spaces_of(session.store) == [("acme", "ada", *DEFAULT, name) for name in ("ada-1", "ada-2", keys.RUNS)]
    listed = [each.config["configurable"]["thread_id"] async for each in saver.alist(None)]
    assert sorted(listed) == ["ada-1"] * 2 + ["ada-2"] * 2


def test_move_of_a_thread_that_stops_at_any_commit_continues(open_session: Open, moment: str) -> None:
    store = open_session("ada", "ada-1").store
    for commits in count():
        for space in spaces_of(store):
            store.commit(Batch().delete_prefix(space))
        made = fill(TreeholdSaver(store), "ada-1", "ada-2")
        try:
            saver_on(open_session, Failing(store, commits, moment)).get_tuple(at("ada-1"))
        except Stopped:
            pass
        else:
            assert commits > 5
            return
        saver = saver_on(open_session)
        if commits % 2:
            # A list finishes what was begun, and leaves the other thread.
            assert len(list(saver.list(None))) == 4
            assert (*DEFAULT, "ada-1") not in spaces_of(store)
            assert (*DEFAULT, "ada-2") in spaces_of(store)
        check_thread(saver, "ada-1", made["ada-1"])
        check_thread(saver, "ada-2", made["ada-2"])
        assert spaces_of(store) == [("acme", "ada", *DEFAULT, name) for name in ("ada-1", "ada-2", keys.RUNS)]
        assert len(store.scan(("acme", "ada", *DEFAULT, keys.RUNS)).rows) == 4


def test_several_savers_that_move_a_thread_at_once_all_find_it(open_session: Open) -> None:
    session = open_session("ada", "ada-1")
    made = fill(TreeholdSaver(session.store), "ada-1")
    savers = [saver_on(open_session) for _ in range(6)]
    with ThreadPoolExecutor(len(savers)) as pool:
        for checked in [pool.submit(check_thread, saver, "ada-1", made["ada-1"]) for saver in savers]:
            checked.result()
    assert spaces_of(session.store) == [("acme", "ada", *DEFAULT, name) for name in ("ada-1", keys.RUNS)]


def test_removals_and_copies_reach_threads_in_all_partitions(open_session: Open) -> None:
    store = open_session("ada", "ada-1").store
    made = fill(TreeholdSaver(store), "ada-1", "bob-1", "bob-2", "alone")
    saver = saver_on(open_session)
    for thread in ("ada-1", "bob-1"):
        check_thread(saver, thread, made[thread])
    saver.delete_for_runs(["first run"])
    for thread, configs in made.items():
        assert saver.get_tuple(configs[0]) is None, thread
        assert saver.get_tuple(configs[1]) is not None, thread
    saver.copy_thread("ada-1", "bob-3")
    copied = saver.get_tuple(at("bob-3"))
    assert copied is not None and copied.checkpoint["channel_values"]["of"] == "ada-1"
    with pytest.raises(AlreadyExists):
        saver.copy_thread("ada-1", "alone")
    put(saver, made["bob-1"][1], {"of": "x"})
    saver.prune(["bob-1"])
    assert len(list(saver.list(at("bob-1")))) == 1
    for thread in (*made, "bob-3"):
        saver.delete_thread(thread)
    assert list(saver.list(None)) == []
    assert spaces_of(store) == []


def test_thread_in_the_partition_of_the_session_stays_where_it_is(open_session: Open) -> None:
    session = open_session("ada", "ada-1")
    root = ("acme", "ada", "threads")
    made = fill(TreeholdSaver(session.store, namespace=root), "ada-1")
    saver = saver_on(open_session, namespace=root)
    check_thread(saver, "ada-1", made["ada-1"])
    put(saver, made["ada-1"][1], {"of": "ada-1"})
    assert spaces_of(session.store) == [(*root, "ada-1"), (*root, keys.RUNS)]
    # A thread of another user has the namespace as a name in its own partition.
    put(saver, at("bob-1"), {"of": "bob-1"})
    assert ("acme", "bob", *root, "bob-1") in spaces_of(session.store)
    assert [found.checkpoint["channel_values"]["of"] for found in saver.list(None, limit=1)] == ["bob-1"]


def test_each_thread_is_looked_for_once(open_session: Open) -> None:
    session = open_session("ada", "ada-1")
    counting: Any = Counting(session.store)
    saver = saver_on(open_session, counting)
    for _ in range(2):
        saver.get_tuple(at("ada-1"))
    assert counting.calls == ["scan", "get_many", "scan", "scan"]
    counting.calls.clear()
    plain = TreeholdSaver(counting)
    plain.get_tuple(at("ada-1"))
    assert counting.calls == ["scan"]


# Beneath a namespace of one component, each thread was a partition.


def test_threads_beneath_one_component_move_to_its_partition(store: Store, moment: str) -> None:
    for commits in count():
        for space in store.namespaces()[0]:
            store.commit(Batch().delete_prefix(space))
        made = fill(TreeholdSaver(store, namespace=("scratch", "x")), "t", "u", "v" * 300)
        for thread in made:
            relocate(store, ("scratch", "x", keys.component(thread)), ("acme", keys.component(thread)))
        relocate(store, ("scratch", "x", keys.RUNS), ("acme", keys.RUNS))
        # Rows of others stay.
        store.commit(Batch().put(("acme", "t"), "/notes.md", "theirs").put(("acme", "t"), "readme", "theirs"))
        failing: Any = Failing(store, commits, moment)
        is_done = False
        try:
            saver = TreeholdSaver(failing, namespace=("acme",))
            assert saver.get_tuple(at("t")) is not None
            assert len(list(saver.list(None))) == 6
            is_done = True
        except Stopped:
            saver = TreeholdSaver(store, namespace=("acme",))
        for thread, configs in made.items():
            check_thread(saver, thread, configs)
        assert [row.key for row in store.scan(("acme", "t")).rows] == ["/notes.md", "readme"]
        threads = {("acme", "", keys.component(thread)) for thread in made}
        assert set(store.namespaces()[0]) == threads | {("acme", "", keys.RUNS), ("acme", "t")}
        assert len(store.scan(("acme", "", keys.RUNS)).rows) == 6
        if is_done:
            assert commits > 10
            break
    saver = TreeholdSaver(store, namespace=("acme",))
    saver.delete_for_runs(["first run", "second run"])
    assert list(saver.list(None)) == []


def test_saver_of_one_component_does_all_of_a_thread_in_one_partition(store: Store) -> None:
    saver = TreeholdSaver(store, namespace=("acme",))
    made = fill(saver, "t")
    check_thread(saver, "t", made["t"])
    saver.copy_thread("t", "u")
    saver.prune(["u"])
    saver.delete_for_runs(["first run"])
    assert len(list(saver.list(None))) == 2
    for thread in "tu":
        saver.delete_thread(thread)
    assert contents(store) == {}


def test_thread_of_one_component_moves_on_to_the_partition_of_its_session(open_session: Open) -> None:
    store = open_session("ada", "ada-1").store
    plain = TreeholdSaver(store, namespace=("acme",))
    made = fill(plain, "ada-1", "ada-2")
    relocate(store, ("acme", "", "ada-2"), ("acme", "ada-2"))
    saver = saver_on(open_session, namespace=("acme",))
    for thread, configs in made.items():
        check_thread(saver, thread, configs)
    put(saver, made["ada-1"][1], {"of": "ada-1"})
    root = ("acme", "ada", "acme")
    assert spaces_of(store) == [(*root, name) for name in ("ada-1", "ada-2", keys.RUNS)]


def test_saver_of_one_component_leaves_rows_of_other_applications(store: Store) -> None:
    items = TreeholdStore(store, namespace=("acme",))
    for key in ("t", "r", "notes"):
        items.put(("ada",), key, {"of": key})
    before = contents(store)
    saver = TreeholdSaver(store, namespace=("acme",))
    assert list(saver.list(None)) == []
    assert saver.get_tuple(at("ada")) is None
    assert contents(store) == before
    # A thread of an earlier version in the same namespace moves alone.
    made = fill(TreeholdSaver(store, namespace=("scratch", "x")), "ada")
    for name in ("ada", keys.RUNS):
        relocate(store, ("scratch", "x", name), ("acme", name))
    saver = TreeholdSaver(store, namespace=("acme",))
    check_thread(saver, "ada", made["ada"])
    assert {key: row for key, row in contents(store).items() if key[0] == ("acme", "ada")} == before
    put(saver, made["ada"][1], {"of": "ada"})
    assert items.get(("ada",), "t") is not None


def test_rows_of_others_in_the_former_namespace_are_no_move_for_each_process(store: Store) -> None:
    store.commit(Batch().put(("acme", "ada"), "/notes.md", "theirs"))
    counting: Any = Counting(store)
    TreeholdSaver(counting, namespace=("acme",)).get_tuple(at("ada"))
    assert "commit" not in counting.calls
    assert counting.calls == ["scan"] * (1 + len(keys.PREFIXES)) + ["get_many", "scan"]


def test_row_of_removals_moves_with_its_thread(store: Store) -> None:
    saver = TreeholdSaver(store, namespace=("scratch", "x"))
    made = fill(saver, "ada")
    saver.prune(["ada"])
    assert store.get(("scratch", "x", "ada"), keys.REMOVALS) is not None
    for name in ("ada", keys.RUNS):
        relocate(store, ("scratch", "x", name), ("acme", name))
    assert TreeholdSaver(store, namespace=("acme",)).get_tuple(at("ada")) is not None
    assert [space for space in store.namespaces()[0] if space[:2] != ("acme", "")] == []
    assert made


# Where only the id of a thread is known, there may be no session for it.


def saver_by_user(open_session: Open) -> TreeholdSaver:
    """A saver whose sessions need more of a configuration than the id of a thread."""

    def sessions(config: RunnableConfig) -> Session | None:
        user = config["configurable"].get("user")
        return None if user is None else open_session(user, config["configurable"]["thread_id"])

    return TreeholdSaver(open_session("ada", "ada-1").store, sessions=sessions)


def of_user(user: str, config: RunnableConfig) -> RunnableConfig:
    return {"configurable": {**config["configurable"], "user": user}}


def fill_by_user(saver: TreeholdSaver, user: str, *threads: str) -> None:
    for thread in threads:
        first = put(saver, of_user(user, at(thread)), {"of": thread, "files": FILES}, "first run")
        put(saver, of_user(user, first), {"of": thread, "files": {**FILES, "/new": thread}}, "second run")


@pytest.mark.parametrize("is_async", [False, True])
async def test_removals_find_threads_for_whose_id_there_is_no_session(open_session: Open, is_async: bool) -> None:
    saver = saver_by_user(open_session)
    store = saver.store
    fill_by_user(saver, "ada", "x", LONG, "z")
    fill_by_user(saver, "bob", "y", "kept")
    # Rows of others that look a little like those of a thread.
    for key in ("r", "t"):
        store.commit(Batch().put(("acme", "eve", *DEFAULT, "x"), key, "theirs"))
    store.commit(Batch().put(("acme", "eve", *DEFAULT, "e"), "c\x01", "damaged"))
    if is_async:
        await saver.aprune(["x"])
    else:
        saver.prune(["x"])
    assert len(list(saver.list(of_user("ada", at("x"))))) == 1
    for thread in ("x", LONG, "y", "nobody's"):
        if is_async:
            await saver.adelete_thread(thread)
        else:
            saver.delete_thread(thread)
    saver.prune(["z"], strategy="delete")
    store.commit(Batch().delete_prefix(("acme", "eve", *DEFAULT, "e")))
    spaces = [("acme", "bob", *DEFAULT, "kept"), ("acme", "bob", *DEFAULT, keys.RUNS), ("acme", "eve", *DEFAULT, "x")]
    assert spaces_of(store) == spaces
    saver.delete_for_runs(["first run", "second run"])
    saver.delete_thread("kept")
    assert spaces_of(store) == spaces[2:]


def test_copies_find_threads_for_whose_id_there_is_no_session(open_session: Open) -> None:
    saver = saver_by_user(open_session)
    fill_by_user(saver, "ada", "x", "same")
    fill_by_user(saver, "bob", "y", "same")
    saver.copy_thread("x", "copy")
    found = saver.get_tuple(of_user("ada", at("copy")))
    assert found is not None and found.checkpoint["channel_values"]["of"] == "x"
    with pytest.raises(AlreadyExists):
        saver.copy_thread("x", "y")
    with pytest.raises(InvalidArgument, match="acme/ada/langgraph/checkpoints, acme/bob/langgraph/checkpoints"):
        saver.copy_thread("same", "other")
    saver.copy_thread("nobody's", "other")
    assert saver.get_tuple(at("other")) is None
    saver.delete_thread("same")
    for user in ("ada", "bob"):
        assert saver.get_tuple(of_user(user, at("same"))) is None


def test_threads_with_sessions_move_out_and_are_verified(open_session: Open, tmp_path: Path) -> None:
    saver = saver_by_user(open_session)
    fill_by_user(saver, "ada", "x", LONG)
    fill_by_user(saver, "bob", "y")
    fill(TreeholdSaver(saver.store), "alone")
    plain = TreeholdSaver(saver.store)
    # A move into this namespace is refused, because it has threads.
    with pytest.raises(Conflict):
        migrate.copy_saver(InMemorySaver(), TreeholdSaver(saver.store))
    place = str(tmp_path / "theirs.db")
    with migrate.open_saver(place, writable=True) as theirs:
        report = migrate.copy_saver(plain, theirs)
        assert (report.read, report.written, report.verified, report.differences) == (8, 8, 8, 0)
    with SqliteSaver.from_conn_string(place) as sqlite:
        found = sqlite.get_tuple(at(LONG))
        assert found is not None and found.checkpoint["channel_values"]["of"] == LONG
    with migrate.open_saver(place) as theirs:
        assert migrate.verify_saver(plain, theirs).is_good
        assert migrate.verify_saver(theirs, plain).is_good
        # What is there already is not written again elsewhere.
        before = contents(saver.store)
        assert migrate.copy_saver(theirs, plain, resume=True).present == 8
        assert contents(saver.store) == before
        put(saver, of_user("bob", at("y")), {"of": "y"})
        assert migrate.verify_saver(theirs, plain).differences == 1
        assert migrate.verify_saver(plain, theirs).differences == 1


def test_moving_out_threads_of_one_id_in_several_partitions_is_refused(open_session: Open) -> None:
    saver = saver_by_user(open_session)
    for user in ("ada", "bob"):
        fill_by_user(saver, user, "same")
    with pytest.raises(InvalidArgument, match="several partitions"):
        migrate.copy_saver(TreeholdSaver(saver.store), InMemorySaver())
    one = TreeholdSaver(saver.store, namespace=("acme", "ada", *DEFAULT))
    assert migrate.copy_saver(one, InMemorySaver()).read == 2
