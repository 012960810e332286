"""The traces of a store: messages as a tree, goals, events, and what is refused."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import treehold
from treehold.traces import (
    BadTraceId,
    DatabaseTraceStore,
    ForeignTrace,
    Goal,
    GoalTree,
    NewGoal,
    NewMessage,
    NewTrace,
    SequenceRange,
    TraceStore,
    UnknownAgent,
    parse_trace_id,
)

WORKERS = Path(__file__).parent / "trace_workers.py"


def contents(page: Any) -> list[Any]:
    return [message.content for message in page]


def say(traces: TraceStore, trace: str, *texts: str, **options: Any) -> None:
    traces.add_messages(trace, [NewMessage("user", text, **options) for text in texts])


def test_trace_keeps_what_it_was_given_and_counts_what_it_holds(traces: DatabaseTraceStore) -> None:
    parent = traces.create_trace("plan")
    new = NewTrace(
        "make tea",
        trace_id=f"{parent}@explore-20260204123456-001",
        mode="call",
        parent_trace_id=parent,
        parent_goal_id="1",
        agent_type="explore",
        run_config={"z": 1, "a": 12345678901234567890123},
        other={"tags": ["x"]},
    )
    trace_id = traces.create_trace(new)
    traces.add_message(trace_id, NewMessage("assistant", {"text": "on it", "tool_calls": []}, tokens=7, cost=0.5))
    trace = traces.get_trace(trace_id)
    assert trace is not None
    for name in ("trace_id", "task", "mode", "parent_trace_id", "parent_goal_id", "agent_type", "run_config", "other"):
        assert getattr(trace, name) == getattr(new, name), name
    assert list(trace.run_config) == ["z", "a"], "the fields keep their order"
    assert (trace.uid, trace.status, trace.total_messages, trace.total_tokens, trace.total_cost) == ("ada", "running", 1, 7, 0.5)
    assert trace.to_dict()["tags"] == ["x"]
    assert type(trace).from_dict(trace.to_dict()) == trace


def test_message_comes_back_as_it_was_written(traces: DatabaseTraceStore) -> None:
    trace = traces.create_trace("x")
    content = {"text": "é\u2028", "big": 10**30, "small": 1e-300, "deep": [[{"": None}]], "z": 1, "a": 2}
    id = traces.add_message(trace, NewMessage("tool", content, tool_call_id="c1", goal_id="1", other={"name": "ls", "more": [1]}))
    message = traces.get_message(trace, id)
    assert message is not None and message == traces.get_message(trace, 1)
    assert (message.content, json.dumps(message.content)) == (content, json.dumps(content))
    assert (message.role, message.tool_call_id, message.goal_id, message.other) == ("tool", "c1", "1", {"name": "ls", "more": [1]})
    assert traces.get_message(trace, "none") is None and traces.get_message(trace, 2) is None


def test_messages_continue_rewind_branch_and_compact(traces: DatabaseTraceStore) -> None:
    trace = traces.create_trace("x")
    say(traces, trace, "1", "2", "3")
    traces.add_message(trace, NewMessage("user", "4", parent_sequence=1))
    assert contents(traces.get_main_path_messages(trace)) == ["1", "4"]
    traces.add_message(trace, NewMessage("assistant", "aside", branch_type="reflection"))
    assert contents(traces.get_main_path_messages(trace)) == ["1", "4"]
    assert contents(traces.get_main_path_messages(trace, 3)) == ["1", "2", "3"]
    traces.add_message(trace, NewMessage("system", "both", summarizes=SequenceRange(1, 4)))
    [summary] = traces.get_main_path_messages(trace)
    assert (summary.content, summary.summarizes) == ("both", SequenceRange(1, 4))
    assert contents(traces.get_trace_messages(trace, since_sequence=3)) == ["4", "aside", "both"]
    assert traces.update_trace(trace, head_sequence=3).head_sequence == 3
    assert contents(traces.get_main_path_messages(trace)) == ["1", "2", "3"]


def test_pages_are_bounded_and_lead_to_each_other(traces: DatabaseTraceStore) -> None:
    trace = traces.create_trace("x")
    say(traces, trace, *map(str, range(7)))
    page = traces.get_main_path_messages(trace, limit=3)
    assert (contents(page), page.earlier, len(page), page[0].sequence) == (["4", "5", "6"], 4, 3, 5)
    assert contents(traces.get_main_path_messages(trace, page.earlier, limit=3)) == ["1", "2", "3"]
    first = traces.get_trace_messages(trace, limit=5)
    assert (first.more, contents(traces.get_trace_messages(trace, offset=5))) == (True, ["5", "6"])
    for number in range(4):
        traces.create_trace(str(number))
    listed = traces.list_traces(limit=3)
    assert ([trace.task for trace in listed], listed.total) == (["3", "2", "1"], 5)
    assert [trace.task for trace in traces.list_traces(cursor=listed.next)] == ["0", "x"]
    traces.update_trace(trace, status="completed")
    assert [found.trace_id for found in traces.list_traces(status="completed", mode="agent")] == [trace]


def test_repeated_call_has_no_second_effect_and_another_head_is_refused(traces: DatabaseTraceStore) -> None:
    trace = traces.create_trace("x")
    for is_repeated in (False, True):
        added = traces.add_messages(trace, [NewMessage("user", "1")], idempotency_key="k", update={"status": "completed"})
        assert (added.head_sequence, added.repeated, [message.sequence for message in added.messages]) == (1, is_repeated, [1])
    found = traces.get_trace(trace)
    assert found is not None and (found.status, found.total_messages) == ("completed", 1)
    with pytest.raises(treehold.Conflict):
        traces.add_message(trace, NewMessage("user", "2"), expected_head=0)
    assert len(traces.get_trace_messages(trace)) == 1


def test_goals_form_a_tree_with_the_statistics_of_their_messages(traces: DatabaseTraceStore) -> None:
    trace = traces.create_trace("x")
    top = traces.add_goal(trace, "tea")
    below = traces.add_goal(trace, NewGoal("boil", parent_id=top.id, reason="hot", other={"n": 1}))
    traces.add_message(trace, NewMessage("assistant", "hot", goal_id=below.id, tokens=3, cost=0.25))
    traces.update_goal(trace, below.id, status="completed", summary="boiled", add_sub_trace="@laptop/abc")
    tree = traces.get_goal_tree(trace)
    found = tree.find(below.id)
    assert found is not None and (found.status, found.summary, found.sub_trace_ids) == ("completed", "boiled", ["@laptop/abc"])
    assert (found.parent_id, found.reason, found.other, found.self_stats.total_tokens) == (top.id, "hot", {"n": 1}, 3)
    above = tree.find(top.id)
    assert above is not None and (above.self_stats.message_count, above.cumulative_stats.message_count) == (0, 1)
    assert contents(traces.get_messages_by_goal(trace, below.id)) == ["hot"]
    traces.update_goal_tree(trace, GoalTree("mission", top.id, [Goal(top.id, "tea")]))
    replaced = traces.get_goal_tree(trace)
    assert (replaced.mission, [goal.description for goal in replaced.goals], tree.find("9")) == ("mission", ["tea"], None)
    assert traces.update_message(trace, 1, goal_id=top.id, tokens=5).tokens == 5


async def test_watch_yields_each_event_once_past_ones_and_new_ones(traces: DatabaseTraceStore) -> None:
    trace = await traces.acreate_trace("x")
    events = await traces.awatch(trace)
    seen = [await anext(events)]
    waiting = asyncio.ensure_future(anext(events))
    await asyncio.sleep(0)
    await traces.aadd_message(trace, NewMessage("user", "1"))
    assert await traces.aappend_event(trace, "noted", {"by": "ada"}) == 3
    seen += [await waiting, await anext(events)]
    assert [(event.event_id, event.event) for event in seen] == [(1, "trace_created"), (2, "message_added"), (3, "noted")]
    assert seen[2].other == {"by": "ada"}
    page = await traces.aget_events(trace, 1, limit=1)
    assert ([event.event for event in page], page.more) == (["message_added"], True)
    assert await traces.adelete_trace(trace) and not await traces.adelete_trace(trace)
    with pytest.raises(treehold.NotFound):
        await anext(events)


def test_traces_are_read_only_files_that_grep_finds(traces: DatabaseTraceStore) -> None:
    trace = traces.create_trace("x")
    say(traces, trace, "the kettle is on")
    tree = treehold.CompositeBackend(treehold.StateBackend(), {"/traces": traces.tree()})
    assert [hit.path for hit in tree.grep("kettle", f"/traces/{trace}/messages").files] == [f"/traces/{trace}/messages/00000001-user.json"]
    assert json.loads(tree.read_text(f"/traces/{trace}/meta.json"))["task"] == "x"
    with pytest.raises(treehold.ReadOnly):
        tree.write(f"/traces/{trace}/meta.json", "{}")


REFUSED: dict[str, tuple[Callable[[TraceStore, str], object], type[treehold.Error]]] = {
    "unknown trace": (lambda traces, _: traces.update_trace("none", status="failed"), treehold.NotFound),
    "unknown parent": (lambda traces, trace: traces.add_message(trace, NewMessage("user", "x", parent_sequence=9)), treehold.InvalidArgument),
    "unknown field": (lambda traces, trace: traces.update_trace(trace, **{"total": 1}), treehold.InvalidArgument),  # type: ignore[arg-type]
    "unknown status": (lambda traces, trace: traces.update_trace(trace, status="done"), treehold.InvalidArgument),  # type: ignore[typeddict-item]
    "unknown status of a list": (lambda traces, _: traces.list_traces(status="done"), treehold.InvalidArgument),  # type: ignore[arg-type]
    "unknown goal": (lambda traces, trace: traces.update_goal(trace, "9", summary="x"), treehold.NotFound),
    "taken goal": (lambda traces, trace: [traces.add_goal(trace, NewGoal("x", id="1")) for _ in range(2)], treehold.AlreadyExists),
    "taken id": (lambda traces, trace: traces.create_trace(NewTrace("x", trace_id=trace)), treehold.AlreadyExists),
    "too large": (lambda traces, trace: traces.add_message(trace, NewMessage("user", "x" * (2 << 20))), treehold.TooLarge),
    "no number of JSON": (lambda traces, trace: traces.add_message(trace, NewMessage("user", float("nan"))), treehold.InvalidArgument),
    "half of a character": (lambda traces, trace: traces.add_message(trace, NewMessage("user", {"x": "\ud800"}, goal_id="\ud800")), treehold.InvalidArgument),
    "malformed id": (lambda traces, _: traces.get_trace("agent://h"), BadTraceId),
    "elsewhere": (lambda traces, _: traces.get_trace("@laptop/abc"), treehold.InvalidArgument),
    "message without an effect": (lambda traces, trace: traces.add_messages(trace, [], update={"task": "y"}), treehold.InvalidArgument),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused_call_raises_the_class_of_its_kind_and_stores_nothing(case: str, traces: DatabaseTraceStore) -> None:
    call, error = REFUSED[case]
    trace = traces.create_trace("x")
    with pytest.raises(error):
        call(traces, trace)
    found = traces.get_trace(trace)
    assert found is not None and (found.status, found.last_sequence, found.task) == ("running", 0, "x")


def test_value_that_json_lacks_is_a_type_error(traces: DatabaseTraceStore) -> None:
    trace = traces.create_trace("x")
    with pytest.raises(TypeError, match="bytes"):
        traces.add_message(trace, NewMessage("user", b"x"))


def test_trace_of_another_user_is_refused_and_of_another_tenant_unknown(store: treehold.Store) -> None:
    ada = DatabaseTraceStore(store, tenant="acme", user="ada")
    trace = ada.create_trace("x")
    with pytest.raises(ForeignTrace) as refused:
        DatabaseTraceStore(store, tenant="acme", user="eve").get_trace(trace)
    assert isinstance(refused.value, treehold.PermissionDenied) and refused.value.code == "permission_denied"
    assert DatabaseTraceStore(store, tenant="other", user="ada").get_trace(trace) is None


@pytest.mark.parametrize(
    ("id", "parsed"),
    [
        ("abc-123", ("local", "abc-123")),
        ("a@explore-20260204123456-001", ("local", "a@explore-20260204123456-001")),
        ("@laptop/abc", ("@laptop", "abc")),
        ("agent://Host:8000/abc", ("agent://host:8000", "abc")),
    ],
)
def test_id_is_split_into_place_and_local_id(id: str, parsed: tuple[str, str]) -> None:
    assert parse_trace_id(id) == parsed


@pytest.mark.parametrize("id", ["", "agent://", "agent://h", "agent://h/", "@/x", "@a/", "a/b", "a\nb", "_treehold", ".."])
def test_malformed_id_is_refused(id: str) -> None:
    with pytest.raises(BadTraceId) as refused:
        parse_trace_id(id)
    assert isinstance(refused.value, ValueError) and not isinstance(refused.value, UnknownAgent)


def test_directory_of_the_original_comes_back_byte_for_byte(traces: DatabaseTraceStore, tmp_path: Path) -> None:
    trace = traces.create_trace("x")
    say(traces, trace, "1", "2")
    report = traces.export_directory(tmp_path / "one")
    assert ([exported.id for exported in report.traces], report.failures) == ([trace], [])
    files = {path.relative_to(tmp_path / "one"): path.read_bytes() for path in (tmp_path / "one").rglob("*") if path.is_file()}
    assert len(files) >= 4
    broken = tmp_path / "one" / "broken"
    broken.mkdir()
    other = DatabaseTraceStore("memory:", user="ada")
    imported = other.import_directory(tmp_path / "one")
    assert [(found.id, found.messages, found.repeated) for found in imported.traces] == [(trace, 2, False)]
    [failure] = imported.failures
    assert (Path(failure.name), failure.code) == (broken, "corrupt"), failure.message
    other.export_directory(tmp_path / "two", among=[trace])
    assert {path.relative_to(tmp_path / "two"): path.read_bytes() for path in (tmp_path / "two").rglob("*") if path.is_file()} == files
    assert other.import_directory(tmp_path / "one").traces[0].repeated
    eve = DatabaseTraceStore("memory:", user="eve")
    assert eve.import_directory(tmp_path / "one").left_out == 1
    assert len(eve.import_directory(tmp_path / "one", any_user=True).traces) == 1
    assert traces.delete_trace(trace) and traces.sweep() == 0


def test_limits_of_a_store_hold(store: treehold.Store) -> None:
    traces = DatabaseTraceStore(store, message_bytes_max=400, page_max=2)
    trace = traces.create_trace("x")
    with pytest.raises(treehold.TooLarge):
        traces.add_message(trace, NewMessage("user", "x" * 400))
    for _ in range(3):
        say(traces, trace, "x")
    assert len(traces.get_trace_messages(trace)) == 2
    assert repr(traces) == 'DatabaseTraceStore(tenant="default", user="default")'


def test_two_processes_append_to_one_trace_without_gaps(tmp_path: Path) -> None:
    url, count = f"sqlite:{tmp_path / 'shared.db'}", 40
    traces = DatabaseTraceStore(url, tenant="acme", user="ada")
    trace = traces.create_trace("x")
    commands = [[sys.executable, str(WORKERS), "append", url, trace, str(count)] for _ in range(2)]
    assert [worker.wait(timeout=120) for worker in [subprocess.Popen(command) for command in commands]] == [0, 0]
    path = traces.get_main_path_messages(trace)
    assert [message.sequence for message in path] == list(range(1, 2 * count + 1)), "each message follows the head"
    found = traces.get_trace(trace)
    assert found is not None and (found.head_sequence, found.total_tokens, found.last_event_id) == (2 * count, 2 * count, 2 * count + 1)
    assert sorted(contents(path)) == sorted([*range(count), *range(count)])


async def test_coroutines_of_one_loop_append_to_one_trace_without_gaps(traces: DatabaseTraceStore) -> None:
    trace = await traces.acreate_trace("x")
    await asyncio.gather(*(traces.aadd_message(trace, NewMessage("user", number)) for number in range(20)))
    assert [message.sequence for message in await traces.aget_main_path_messages(trace)] == list(range(1, 21))
