"""Graphs of LangGraph on the checkpointer and the store."""

from __future__ import annotations

import operator
from typing import Annotated, Any, TypedDict

import pytest
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage
from langchain_core.runnables import RunnableConfig
from langgraph.channels.delta import DeltaChannel
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.store.base import BaseStore
from langgraph.types import Command, Send, interrupt

from treehold import Store
from treehold.langgraph import TreeholdSaver, TreeholdStore

CONFIG: RunnableConfig = {"configurable": {"thread_id": "t"}}

DURABILITIES = ("sync", "async", "exit")


def merged(files: dict[str, Any] | None, changed: dict[str, Any] | None) -> dict[str, Any]:
    return {**(files or {}), **(changed or {})}


def merged_all(files: dict[str, Any], changes: list[dict[str, Any]]) -> dict[str, Any]:
    for change in changes:
        files = merged(files, change)
    return files


class State(TypedDict):
    messages: Annotated[list[AnyMessage], add_messages]
    files: Annotated[dict[str, Any], merged]
    notes: Annotated[dict[str, Any], DeltaChannel(merged_all, snapshot_frequency=3)]
    log: Annotated[list[str], operator.add]


def graph_on(saver: Any, store: BaseStore | None = None) -> Any:
    """A graph with a loop, parallel tasks, a subgraph and an interrupt."""

    def think(state: State) -> Any:
        turn = len(state["log"])
        return {
            "messages": [AIMessage(content=f"thought {turn}")],
            "files": {f"/f{turn}": {"content": "x" * 3000}},
            "notes": {f"/n{turn}": {"content": f"note {turn}"}},
            "log": [f"think {turn}"],
        }

    def fan_out(state: State) -> list[Send]:
        return [Send("work", {"number": number}) for number in range(3)]

    def work(state: Any) -> Any:
        return {"log": [f"work {state['number']}"], "notes": {f"/w{state['number']}": {"content": str(state["number"])}}}

    def ask(state: State) -> Any:
        answer = interrupt("continue?")
        return {"log": [f"answer {answer}"]}

    def inner(state: State) -> Any:
        return {"log": ["inner"]}

    def again(state: State) -> str:
        return "think" if sum(entry.startswith("think") for entry in state["log"]) < 4 else "ask"

    sub = StateGraph(State)
    sub.add_node("inner", inner)
    sub.add_edge(START, "inner")
    builder = StateGraph(State)
    builder.add_node("think", think)
    builder.add_node("work", work)
    builder.add_node("sub", sub.compile(checkpointer=True))
    builder.add_node("ask", ask)
    builder.add_edge(START, "think")
    builder.add_conditional_edges("think", fan_out, ["work"])
    builder.add_edge("work", "sub")
    builder.add_conditional_edges("sub", again, ["think", "ask"])
    builder.add_edge("ask", END)
    return builder.compile(checkpointer=saver, store=store)


def shown(snapshot: Any) -> Any:
    """Returns what two runs of one graph have in common: everything but ids and times."""
    values = dict(snapshot.values)
    values["messages"] = [(message.type, message.content) for message in values.get("messages", [])]
    return values, snapshot.next, [interrupt.value for interrupt in snapshot.interrupts], snapshot.metadata.get("step")


START_STATE: Any = {"messages": [HumanMessage(content="go")], "files": {"/in": {"content": "y" * 50_000}}, "notes": {}, "log": []}


@pytest.mark.parametrize("durability", DURABILITIES)
def test_graph_runs_as_on_the_in_memory_saver(store: Store, durability: Any) -> None:
    transcripts = []
    for saver in (InMemorySaver(), TreeholdSaver(store)):
        graph = graph_on(saver)
        graph.invoke(START_STATE, CONFIG, durability=durability)
        transcript = [shown(graph.get_state(CONFIG))]
        # A restarted process goes on from what is stored.
        graph = graph_on(saver if isinstance(saver, InMemorySaver) else TreeholdSaver(store))
        graph.invoke(Command(resume="yes"), CONFIG, durability=durability)
        transcript.extend(shown(snapshot) for snapshot in graph.get_state_history(CONFIG))
        transcripts.append(transcript)
    assert transcripts[0] == transcripts[1]
    assert transcripts[1][0][2] == ["continue?"]


@pytest.mark.parametrize("durability", DURABILITIES)
async def test_async_graph_runs_as_on_the_in_memory_saver(store: Store, durability: Any) -> None:
    transcripts = []
    for saver in (InMemorySaver(), TreeholdSaver(store)):
        graph = graph_on(saver)
        await graph.ainvoke(START_STATE, CONFIG, durability=durability)
        await graph.ainvoke(Command(resume="yes"), CONFIG, durability=durability)
        transcripts.append([shown(snapshot) async for snapshot in graph.aget_state_history(CONFIG)])
    assert transcripts[0] == transcripts[1]


def test_graph_continues_from_any_earlier_checkpoint(store: Store) -> None:
    transcripts = []
    for saver in (InMemorySaver(), TreeholdSaver(store)):
        graph = graph_on(saver)
        graph.invoke(START_STATE, CONFIG)
        history = list(graph.get_state_history(CONFIG))
        transcript = []
        for earlier in history[3:8]:
            # A fork, an update as a node, and a copy; each makes a branch of its own.
            graph.invoke(None, earlier.config)
            transcript.append(shown(graph.get_state(CONFIG)))
            forked = graph.update_state(earlier.config, {"notes": {"/fork": {"content": "f"}}, "log": ["forked"]}, as_node="think")
            transcript.append(shown(graph.get_state(forked)))
            copied = graph.update_state(earlier.config, None, as_node="__copy__")
            transcript.append(shown(graph.get_state(copied)))
        # No branch changed another.
        transcript.extend(shown(graph.get_state(earlier.config)) for earlier in history)
        transcripts.append(transcript)
    assert transcripts[0] == transcripts[1]


def test_pruned_thread_goes_on_with_its_state(store: Store) -> None:
    graph = graph_on(TreeholdSaver(store))
    graph.invoke(START_STATE, CONFIG)
    before = shown(graph.get_state(CONFIG))
    TreeholdSaver(store).prune(["t"])
    graph = graph_on(TreeholdSaver(store))
    assert shown(graph.get_state(CONFIG)) == before
    assert len(list(graph.get_state_history(CONFIG))) == 1
    finished = graph.invoke(Command(resume="yes"), CONFIG)
    assert finished["log"][-1] == "answer yes"
    assert set(before[0]["notes"]) <= set(finished["notes"])


def test_copied_thread_goes_on_beside_the_original(store: Store) -> None:
    saver = TreeholdSaver(store)
    graph = graph_on(saver)
    graph.invoke(START_STATE, CONFIG)
    saver.copy_thread("t", "copy")
    copy: RunnableConfig = {"configurable": {"thread_id": "copy"}}
    assert shown(graph.get_state(copy)) == shown(graph.get_state(CONFIG))
    graph.invoke(Command(resume="copy"), copy)
    assert graph.get_state(CONFIG).next == ("ask",)
    assert graph.get_state(copy).values["log"][-1] == "answer copy"


def test_nodes_reach_the_store(store: Store) -> None:
    def remember(state: State, *, store: BaseStore) -> Any:
        store.put(("ada",), "theme", {"colour": "red"})
        return {"log": [store.search(("ada",), filter={"colour": "red"})[0].key]}

    builder = StateGraph(State)
    builder.add_node("remember", remember)
    builder.add_edge(START, "remember")
    graph = builder.compile(checkpointer=TreeholdSaver(store), store=TreeholdStore(store))
    assert graph.invoke({"messages": [], "log": []}, CONFIG)["log"] == ["theme"]
    assert TreeholdStore(store).get(("ada",), "theme") is not None
