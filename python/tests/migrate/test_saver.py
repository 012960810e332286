"""Moving checkpoints."""

from __future__ import annotations

import signal
import subprocess
import sys
from operator import add
from pathlib import Path
from typing import Annotated, Any

import pytest
from databases import KILLED, contents, put_checkpoint, their_saver
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph  # pyright: ignore[reportMissingTypeStubs]
from langgraph.types import Command, interrupt
from typing_extensions import TypedDict

from treehold import Conflict, InvalidArgument, NotFound, Store, migrate
from treehold.langgraph import TreeholdSaver


class State(TypedDict):
    """The state of a graph."""

    log: Annotated[list[str], add]


def ours() -> TreeholdSaver:
    return TreeholdSaver(Store.open("memory:"))


def fill(saver: Any, threads: int = 3, length: int = 8) -> int:
    """Stores threads with a branch, a subgraph, interrupts, and writes of a checkpoint that does not exist."""
    count = 0
    for thread in range(threads):
        parent: str | None = None
        first: str | None = None
        for number in range(1, length + 1):
            values: dict[str, Any] = {
                "files": {f"/f{n}.md": {"content": "x" * 50, "n": n} for n in range(number * 20)},
                "messages": [("human", f"hello {n}") for n in range(number)],
                "step": number,
            }
            writes = [("messages", number), ("__interrupt__", ("why", number)), ("step", {"a", "b"})]
            made = put_checkpoint(saver, f"t{thread}", number, values, parent=parent, writes=writes)
            first, parent = first or made, made
            count += 1
        put_checkpoint(saver, f"t{thread}", 100, {"step": -1, "extra": b"\x00\xff"}, parent=first)
        put_checkpoint(saver, f"t{thread}", 101, {"inner": [1, 2]}, checkpoint_ns="sub|1:x")
        missing: Any = {"thread_id": f"t{thread}", "checkpoint_ns": "sub", "checkpoint_id": "1f0fffff-0000"}
        saver.put_writes({"configurable": missing}, [("a", 1), ("b", 2)], "early", "")
        count += 3
    return count


def test_copy_moves_every_checkpoint_and_leaves_the_source_unchanged(place: str) -> None:
    with their_saver(place) as saver:
        count = fill(saver)
        listed = {found.checkpoint["id"] + found.config["configurable"]["thread_id"] for found in saver.list(None)}  # pyright: ignore[reportTypedDictNotRequiredAccess]
    before = contents(place)
    with migrate.open_saver(place) as source, ours() as target:
        report = migrate.copy_saver(source, target)
        assert report.is_good, report.examples
        assert (report.read, report.written, report.verified) == (count, count, count)
        assert report.parts["writes"] == 3 * (8 * 3 + 2)
        moved = list(target.list(None))
        assert {found.checkpoint["id"] + found.config["configurable"]["thread_id"] for found in moved} == listed  # pyright: ignore[reportTypedDictNotRequiredAccess]
        with their_saver(place) as saver:
            for found in moved:
                theirs = saver.get_tuple(found.config)
                assert theirs is not None
                assert theirs.checkpoint == found.checkpoint
                assert theirs.metadata == found.metadata
                assert theirs.parent_config == found.parent_config
                assert theirs.pending_writes == found.pending_writes
    assert contents(place) == before


def test_copy_out_returns_what_came_in(place: str, tmp_path: Path) -> None:
    memory = InMemorySaver()
    count = fill(memory)
    with ours() as middle:
        assert migrate.copy_saver(memory, middle).is_good
        with migrate.open_saver(place, writable=True) as target:
            report = migrate.copy_saver(middle, target)
            assert report.is_good and report.written == count, report.examples
            with pytest.raises(Conflict, match="holds checkpoints"):
                migrate.copy_saver(middle, target)
            assert migrate.copy_saver(middle, target, resume=True).present == count
    # And the same in another place by their own means.
    with their_saver(place) as saver:
        for found in memory.list(None):
            there = saver.get_tuple(found.config)
            assert there is not None
            assert there.checkpoint["channel_values"] == found.checkpoint["channel_values"]
            assert sorted(map(repr, there.pending_writes or [])) == sorted(map(repr, found.pending_writes or []))


def test_moved_thread_goes_on_in_a_graph(place: str) -> None:
    def ask(state: State) -> dict[str, list[str]]:
        return {"log": [interrupt("name?")]}

    builder = StateGraph(State)
    builder.add_node("ask", ask)  # pyright: ignore[reportUnknownMemberType]
    builder.add_edge(START, "ask")
    config: Any = {"configurable": {"thread_id": "one"}}
    with their_saver(place) as saver:
        builder.compile(checkpointer=saver).invoke({"log": ["begun"]}, config)  # pyright: ignore[reportUnknownMemberType]
    with ours() as target:
        with migrate.open_saver(place) as source:
            assert migrate.copy_saver(source, target).is_good
        result = builder.compile(checkpointer=target).invoke(Command(resume="Ada"), config)  # pyright: ignore[reportUnknownMemberType]
        assert result["log"] == ["begun", "Ada"]


@pytest.mark.parametrize("after", [1, 7])
def test_killed_move_goes_on_where_it_was(place: str, tmp_path: Path, after: int) -> None:
    with their_saver(place) as saver:
        count = fill(saver, threads=2)
    url = f"sqlite:{tmp_path / 'ours.db'}"
    killed = subprocess.run([sys.executable, "-c", KILLED, "saver", place, url, str(after)], timeout=120)
    assert killed.returncode == -signal.SIGKILL
    with migrate.open_saver(place) as source, TreeholdSaver.from_conn_string(url) as target:
        with pytest.raises(Conflict):
            migrate.copy_saver(source, target)
        report = migrate.copy_saver(source, target, resume=True)
        assert report.is_good, report.examples
        assert (report.present, report.written) == (after, count - after)


def test_move_out_that_ended_between_checkpoint_and_writes_is_completed(place: str) -> None:
    memory = InMemorySaver()
    fill(memory, threads=1, length=2)
    with ours() as middle:
        migrate.copy_saver(memory, middle)
        with their_saver(place) as saver:
            for found in memory.list(None):
                # Without its writes, as if the process had ended there.
                config: Any = {"configurable": {**(found.parent_config or found.config)["configurable"]}}  # pyright: ignore[reportTypedDictNotRequiredAccess]
                if found.parent_config is None:
                    del config["configurable"]["checkpoint_id"]
                saver.put(config, found.checkpoint, found.metadata, found.checkpoint["channel_versions"])
        with migrate.open_saver(place, writable=True) as target:
            report = migrate.copy_saver(middle, target, resume=True)
            assert report.is_good, report.examples
            assert (report.written, report.present) == (3, 2)


def test_encrypted_checkpoints_are_read_with_their_serializer(tmp_path: Path) -> None:
    pytest.importorskip("Crypto", reason="pycryptodome is not installed")
    from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
    from langgraph.checkpoint.sqlite import SqliteSaver

    place = str(tmp_path / "theirs.db")
    serde = EncryptedSerializer.from_pycryptodome_aes(key=b"0123456789abcdef")
    with SqliteSaver.from_conn_string(place) as saver:
        saver.serde = serde
        count = fill(saver, threads=1, length=2)
    with migrate.open_saver(place, serde=serde) as source, ours() as target:
        report = migrate.copy_saver(source, target)
        assert report.is_good and report.written == count, report.examples


def test_saver_objects_are_sides_too() -> None:
    from langgraph.checkpoint.sqlite import SqliteSaver

    with SqliteSaver.from_conn_string(":memory:") as saver, ours() as middle, ours() as other:
        memory = InMemorySaver()
        count = fill(memory, threads=1, length=2)
        assert migrate.copy_saver(memory, middle).written == count
        assert migrate.copy_saver(middle, saver).is_good
        assert migrate.copy_saver(saver, other).is_good and migrate.verify_saver(saver, other).verified == count


def test_verify_names_what_differs(place: str) -> None:
    with their_saver(place) as saver:
        fill(saver, threads=2, length=2)
    with migrate.open_saver(place) as source, ours() as target:
        migrate.copy_saver(source, target)
        put_checkpoint(target, "t0", 2, {"step": True})
        put_checkpoint(target, "t9", 1, {"step": 1})
        config: Any = next(iter(target.list({"configurable": {"thread_id": "t1", "checkpoint_ns": ""}}))).config
        target.put_writes(config, [("more", 1)], "task-9")
        reasons = sorted(example.reason for example in migrate.verify_saver(source, target).examples)
        assert reasons == ["missing in the source", "the parents differ", "the pending writes differ"]


def test_dry_run_writes_nothing(place: str) -> None:
    with their_saver(place) as saver:
        count = fill(saver, threads=1)
    with migrate.open_saver(place) as source, ours() as target:
        report = migrate.copy_saver(source, target, dry_run=True)
        assert (report.written, report.verified, report.is_good) == (count, None, True)
        assert target.store.namespaces() == ([], False)


def test_bad_input_is_a_typed_error(tmp_path: Path) -> None:
    with ours() as target, ours() as other:
        with pytest.raises(NotFound), migrate.open_saver(str(tmp_path / "gone.db")) as source:
            migrate.copy_saver(source, target)
        with pytest.raises(InvalidArgument, match="one side"):
            migrate.copy_saver(other, target)
        with pytest.raises(InvalidArgument, match="not a saver"):
            migrate.copy_saver(1, target)  # type: ignore[arg-type]


TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), min_size=1, max_size=6)
LEAVES: st.SearchStrategy[Any] = (
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.floats() | TEXTS | st.binary(max_size=9) | st.sets(TEXTS, max_size=3)
)
CHANNELS = st.dictionaries(
    TEXTS,
    st.recursive(
        LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3), max_leaves=6
    ),
    max_size=3,
)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.tuples(TEXTS, TEXTS, st.integers(1, 9), CHANNELS, st.lists(st.tuples(TEXTS, LEAVES), max_size=3)), max_size=8))
def test_any_checkpoints_survive_the_way_in_and_out(
    made: list[tuple[str, str, int, dict[str, Any], list[tuple[str, Any]]]],
) -> None:
    source, back = InMemorySaver(), InMemorySaver()
    stored: set[tuple[str, str, int]] = set()
    for thread, ns, number, values, writes in made:
        if (thread, ns, number) not in stored:
            stored.add((thread, ns, number))
            put_checkpoint(source, thread, number, values, checkpoint_ns=ns, writes=writes)
    with ours() as middle:
        inward = migrate.copy_saver(source, middle)
        assert inward.is_good and inward.read == len(stored), inward.examples
        outward = migrate.copy_saver(middle, back)
        assert outward.is_good and outward.read == len(stored), outward.examples


@pytest.mark.parametrize("text", ["a", "ab", "\x00\x1f", "ü\U0010ffff", "a\x7f", "1f0-6", "~ }"])
def test_descending_key_reads_back(text: str) -> None:
    from treehold.langgraph import _keys as keys

    assert keys.descending_from(keys.descending(text)) == text
    assert keys.part_from(keys.part(text + "%\x01", "text")) == text + "%\x01"
