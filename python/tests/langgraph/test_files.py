"""Checkpoints of a graph and the files of its thread in one commit."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypedDict

import pytest
from langchain_core.runnables import RunnableConfig
from langgraph.graph import START, StateGraph

from treehold import InvalidArgument, NotFound, Session, Store, Workspace
from treehold.langgraph import TreeholdSaver

# Files are saved with the checkpoints of the graph only.
WORKSPACE = """
[threads]
store = "default"
durability = "exit"

[stores.default]
url = "sqlite:{data}/agent.db"

[routes."/"]
type = "state"
"""

CONFIG: RunnableConfig = {"configurable": {"thread_id": "t"}}


class State(TypedDict):
    turn: int


def open_session(directory: Path) -> tuple[Workspace, Session]:
    workspace = Workspace.open(config=WORKSPACE, data=directory)
    return workspace, workspace.session(thread="t")


@pytest.fixture
def session(tmp_path: Path) -> Iterator[Session]:
    """A session on a store of its own."""
    workspace, opened = open_session(tmp_path)
    yield opened
    opened.close()
    workspace.close()


def graph_on(session: Session, saver: TreeholdSaver) -> Any:
    """A graph whose node writes a file for each turn."""

    def write(state: State) -> State:
        session.write(f"/turn-{state['turn']}.md", f"turn {state['turn']}\n")
        session.write("/latest.md", f"{state['turn']}\n")
        return {"turn": state["turn"]}

    builder = StateGraph(State)
    builder.add_node("write", write)
    builder.add_edge(START, "write")
    return builder.compile(checkpointer=saver)


def saver_of(session: Session) -> TreeholdSaver:
    return TreeholdSaver(session.store, sessions=lambda config: session)


def saver_without_files(session: Session) -> TreeholdSaver:
    """A saver on the rows of the thread of a session that leaves the files alone."""
    return TreeholdSaver(session.store, namespace=(*session.partition, "langgraph", "checkpoints"))


def test_checkpoint_and_files_are_there_after_a_restart(session: Session, tmp_path: Path) -> None:
    graph = graph_on(session, saver_of(session))
    graph.invoke({"turn": 1}, CONFIG)
    # Another process opens the same store, while this one has saved nothing else.
    workspace, other = open_session(tmp_path)
    assert graph_on(other, saver_of(other)).get_state(CONFIG).values == {"turn": 1}
    assert other.read("/turn-1.md").text() == "turn 1\n"
    other.close()
    workspace.close()


def test_each_checkpoint_has_the_files_of_its_moment(session: Session) -> None:
    saver = saver_of(session)
    graph = graph_on(session, saver)
    configs = []
    for turn in (1, 2, 3):
        graph.invoke({"turn": turn}, CONFIG)
        configs.append(graph.get_state(CONFIG).config)
    for turn, config in enumerate(configs, start=1):
        assert saver.files_at(config).read("/latest.md").text() == f"{turn}\n"
        assert saver.files_at(config).exists("/turn-3.md") == (turn == 3)
    saver.restore_files(configs[0])
    assert session.read("/latest.md").text() == "1\n"
    graph.invoke({"turn": 4}, configs[0])
    assert not session.exists("/turn-2.md")
    assert session.read("/turn-4.md").text() == "turn 4\n"
    assert saver.files_at(configs[2]).read("/latest.md").text() == "3\n"


async def test_async_checkpoints_have_their_files_too(session: Session) -> None:
    saver = saver_of(session)
    graph = graph_on(session, saver)
    await graph.ainvoke({"turn": 1}, CONFIG)
    first = (await graph.aget_state(CONFIG)).config
    await graph.ainvoke({"turn": 2}, CONFIG)
    assert (await saver.afiles_at(first)).read("/latest.md").text() == "1\n"
    await saver.arestore_files(first)
    assert session.read("/latest.md").text() == "1\n"


def transactions(log: Path) -> int:
    """Counts the transactions in a write-ahead log of SQLite: the frames that end one."""
    content = log.read_bytes()
    page = int.from_bytes(content[8:12], "big")
    frames = range(32, len(content), 24 + page)
    salts = content[16:24]
    return sum(content[at + 4 : at + 8] != bytes(4) for at in frames if content[at + 8 : at + 16] == salts)


def test_files_and_channels_are_one_transaction(session: Session, tmp_path: Path) -> None:
    saver = saver_of(session)
    config: Any = {"configurable": {"thread_id": "t", "checkpoint_ns": ""}}
    log = tmp_path / "agent.db-wal"
    checkpoint: Any = {"v": 4, "id": "1", "ts": "", "channel_values": {"a": "x"}, "channel_versions": {"a": 1}, "versions_seen": {}}
    config = saver.put(config, checkpoint, {}, {"a": 1})
    before = transactions(log)
    session.write("/a.md", "a\n")
    assert transactions(log) == before
    checkpoint = {**checkpoint, "id": "2", "channel_values": {"a": "y" * 500}, "channel_versions": {"a": 2}}
    config = saver.put(config, checkpoint, {}, {"a": 2})
    assert transactions(log) == before + 1
    assert saver.files_at(config).read("/a.md").text() == "a\n"
    # Without files there are as many transactions as commits.
    saver_without_files(session).put(config, {**checkpoint, "id": "3"}, {}, {})
    session.write("/a.md", "b\n")
    session.checkpoint()
    assert transactions(log) == before + 3


def test_checkpoint_that_follows_a_removed_one_has_all_values(session: Session) -> None:
    saver = saver_of(session)
    config: Any = {"configurable": {"thread_id": "t", "checkpoint_ns": ""}}

    def put(config: RunnableConfig, checkpoint_id: str, values: dict[str, Any], new: dict[str, Any]) -> RunnableConfig:
        versions = dict.fromkeys(values, 1) | new
        checkpoint: Any = {"v": 4, "id": checkpoint_id, "ts": "", "channel_values": values, "channel_versions": versions, "versions_seen": {}}
        return saver.put(config, checkpoint, {}, new)

    root = put(config, "1", {"a": "x" * 500, "b": 1}, {"a": 1, "b": 1})
    steps = saver._put_steps

    def prune_first(config: RunnableConfig, stored: Any) -> Any:
        # The base is read; then another process removes it.
        inner = steps(config, stored)
        yield_ = next(inner)
        while True:
            if type(yield_).__name__ == "CommitWithFiles":
                saver_without_files(session).prune(["t"], strategy="delete")
            try:
                answer = yield yield_
                yield_ = inner.send(answer)
            except StopIteration as end:
                return end.value

    saver._put_steps = prune_first  # type: ignore[method-assign]
    child = put(root, "2", {"a": "x" * 500, "b": 2}, {"b": 2})
    saver._put_steps = steps  # type: ignore[method-assign]
    found = saver_without_files(session).get_tuple(child)
    assert found is not None and found.checkpoint["channel_values"] == {"a": "x" * 500, "b": 2}


def test_saver_on_another_store_is_refused(session: Session) -> None:
    with Store.open("memory:") as other:
        saver = TreeholdSaver(other, sessions=lambda config: session)
        with pytest.raises(InvalidArgument, match="session.store"):
            graph_on(session, saver).invoke({"turn": 1}, CONFIG)


def test_checkpoint_without_files_is_not_found(session: Session) -> None:
    plain = saver_without_files(session)
    graph_on(session, plain).invoke({"turn": 1}, CONFIG)
    config = graph_on(session, plain).get_state(CONFIG).config
    with pytest.raises(NotFound):
        saver_of(session).files_at(config)
    with pytest.raises(InvalidArgument, match="sessions"):
        plain.files_at(config)
