"""Runners in Python, and the tool by which an agent starts another one."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

import treehold
from treehold.traces import (
    AgentTool,
    DatabaseTraceStore,
    NewMessage,
    RunContext,
    RunRequest,
    RunResult,
    TraceRuns,
    TraceStore,
)

WORKERS = Path(__file__).parent / "trace_workers.py"

TIMEOUT = 60


class Scripted:
    """Answers with what it is asked, as a script says: `say …`, `fail …`, `raise …`, `wait`, or `agent …`."""

    def __init__(self) -> None:
        self.asked: list[RunRequest] = []
        self.begun = asyncio.Event()
        self.cancelled = threading.Event()
        self.late: list[BaseException] = []

    async def run(self, context: RunContext, request: RunRequest, /) -> RunResult | str:
        self.asked.append(request)
        try:
            return await self.follow(context)
        except asyncio.CancelledError:
            try:
                await context.traces.aadd_message(context.trace_id, NewMessage("assistant", "too late"))
            except treehold.Error as error:
                self.late.append(error)
            finally:
                self.cancelled.set()
            raise

    async def follow(self, context: RunContext) -> RunResult | str:
        path = await context.traces.aget_main_path_messages(context.trace_id)
        command, _, rest = str([message for message in path if message.role == "user"][-1].content).partition(" ")
        if command == "fail":
            return RunResult.failed(rest)
        if command == "raise":
            raise ZeroDivisionError(rest)
        if command == "wait":
            await context.traces.aadd_message(context.trace_id, NewMessage("assistant", "I am at it"))
            await asyncio.Event().wait()
        if command == "agent":
            answer = await AgentTool(context.runs).aagent(rest, trace_id=context.trace_id)
            rest = f"{answer['status']}: {answer.get('summary', answer.get('error'))}"
        await context.traces.aadd_message(context.trace_id, NewMessage("assistant", rest))
        return rest


@pytest.fixture
def runner() -> Scripted:
    return Scripted()


@pytest.fixture
async def runs(traces: DatabaseTraceStore, runner: Scripted) -> AsyncIterator[TraceRuns]:
    async with TraceRuns(traces, runner) as runs:
        yield runs


async def ask(runs: TraceRuns, trace: str, text: str, **options: Any) -> RunResult:
    await runs.astart(trace, [NewMessage("user", text)], **options)
    result = await runs.aresult(trace, TIMEOUT)
    assert result is not None
    return result


def texts(traces: TraceStore, trace: str) -> list[Any]:
    return [message.content for message in traces.get_main_path_messages(trace)]


async def test_run_continues_and_rewinds_its_trace(traces: DatabaseTraceStore, runs: TraceRuns, runner: Scripted) -> None:
    trace = await traces.acreate_trace("compare")
    assert await ask(runs, trace, "say one", config={"model": "m"}) == RunResult("completed", "one")
    assert await ask(runs, trace, "say two") == RunResult("completed", "two")
    assert await ask(runs, trace, "say three", after_sequence=2) == RunResult("completed", "three")
    assert texts(traces, trace) == ["say one", "one", "say three", "three"]
    assert [request.messages[0].content for request in runner.asked] == ["say one", "say two", "say three"]
    assert (runner.asked[0].config, runner.asked[2].after_sequence) == ({"model": "m"}, 2)
    found = traces.get_trace(trace)
    assert found is not None and (found.status, found.run_config, runs.count) == ("completed", {"model": "m"}, 0)


async def test_run_beside_the_main_path_leaves_the_head(traces: DatabaseTraceStore, runs: TraceRuns) -> None:
    trace = await traces.acreate_trace("x")
    await ask(runs, trace, "say one")
    await ask(runs, trace, "say aside", branch_type="reflection")
    assert texts(traces, trace) == ["say one", "one"]
    assert [message.branch_type for message in traces.get_trace_messages(trace)] == [None, None, "reflection", "reflection"]


@pytest.mark.parametrize(("asked", "error"), [("fail no kettle", "no kettle"), ("raise by zero", "ZeroDivisionError: by zero")])
async def test_failed_run_ends_with_a_status_and_its_reason(asked: str, error: str, traces: DatabaseTraceStore, runs: TraceRuns) -> None:
    trace = await traces.acreate_trace("x")
    result = await ask(runs, trace, asked)
    assert result.status == "failed" and result.error is not None and error in result.error
    found = traces.get_trace(trace)
    assert found is not None and found.status == "failed"


async def test_stopped_run_cancels_its_coroutine_and_writes_nothing_more(
    traces: DatabaseTraceStore, runs: TraceRuns, runner: Scripted
) -> None:
    trace = await traces.acreate_trace("x")
    events = await traces.awatch(trace)
    await runs.astart(trace, [NewMessage("user", "wait")])
    async for event in events:
        if event.other.get("sequence") == 2:
            break
    assert runs.count == 1
    with pytest.raises(treehold.Conflict):
        await runs.astart(trace, [NewMessage("user", "say more")])
    assert await runs.aresult(trace, 0) is None
    assert await runs.astop(trace) and not await runs.astop(trace)
    assert await asyncio.to_thread(runner.cancelled.wait, TIMEOUT)
    found = traces.get_trace(trace)
    assert found is not None and found.status == "stopped"
    assert texts(traces, trace) == ["wait", "I am at it"]
    assert [type(error) for error in runner.late] == [treehold.Conflict]


async def test_run_past_its_deadline_is_ended(traces: DatabaseTraceStore, runner: Scripted) -> None:
    for seconds in (0.2, 2, 20):
        async with TraceRuns(traces, runner, deadline_seconds=seconds) as runs:
            trace = await traces.acreate_trace("x")
            result = await ask(runs, trace, "wait")
            assert result.status == "failed" and "took longer" in (result.error or "")
            # A slow machine may not reach the runner in so short a time.
            if runner.asked:
                assert await asyncio.to_thread(runner.cancelled.wait, TIMEOUT)
                return
    raise AssertionError("the runner was not reached")


async def test_shutdown_stops_all_runs_and_refuses_others(traces: DatabaseTraceStore, runner: Scripted) -> None:
    runs = TraceRuns(traces, runner, runs_per_user_max=1)
    trace, other = await traces.acreate_trace("x"), await traces.acreate_trace("y")
    await runs.astart(trace, [NewMessage("user", "wait")])
    with pytest.raises(treehold.Unavailable, match="too many"):
        await runs.astart(other, [NewMessage("user", "wait")])
    assert await runs.ashutdown(TIMEOUT)
    with pytest.raises(treehold.Unavailable, match="shuts down"):
        await runs.astart(trace, [NewMessage("user", "say x")])
    assert texts(traces, other) == []


def test_plain_function_runs_with_synchronous_calls(traces: DatabaseTraceStore) -> None:
    class Plain:
        def run(self, context: RunContext, request: RunRequest, /) -> str:
            context.traces.add_message(context.trace_id, NewMessage("assistant", "plain"))
            return "done"

    trace = traces.create_trace("x")
    with TraceRuns(traces, Plain()) as runs:
        runs.start(trace)
        assert runs.result(trace, TIMEOUT) == RunResult("completed", "done")
    assert texts(traces, trace) == ["plain"]


@pytest.mark.parametrize("runner", [None, object(), Scripted])
def test_object_that_cannot_run_is_refused_at_once(runner: Any) -> None:
    traces = DatabaseTraceStore("memory:")
    if runner is Scripted:
        with pytest.raises(treehold.InvalidArgument, match="elsewhere"), TraceRuns(traces, Scripted()) as runs:
            runs.start("@laptop/abc")
        return
    with pytest.raises(treehold.InvalidArgument, match="method `run"):
        TraceRuns(traces, runner)


def test_run_of_another_process_is_refused_and_can_be_stopped(tmp_path: Path) -> None:
    url = f"sqlite:{tmp_path / 'shared.db'}"
    traces = DatabaseTraceStore(url, tenant="acme", user="ada")
    trace = traces.create_trace("x")
    other = subprocess.Popen([sys.executable, str(WORKERS), "hold", url, trace, "30"], stdout=subprocess.PIPE, text=True)
    assert other.stdout is not None and other.stdout.readline() == "running\n"
    with TraceRuns(traces, Scripted()) as runs:
        with pytest.raises(treehold.Conflict):
            runs.start(trace, [NewMessage("user", "say x")])
        assert runs.stop(trace)
        runs.start(trace, [NewMessage("user", "say mine")])
        assert runs.result(trace, TIMEOUT) == RunResult("completed", "mine")
    assert other.communicate(timeout=TIMEOUT)[0] == "stopped\n"
    assert texts(traces, trace) == ["I am at it", "say mine", "mine"]


def test_trace_of_a_killed_process_runs_again_once_its_lease_ends(tmp_path: Path) -> None:
    url = f"sqlite:{tmp_path / 'shared.db'}"
    traces = DatabaseTraceStore(url, tenant="acme", user="ada")
    trace = traces.create_trace("x")
    for lease_seconds in ("1", "30"):
        command = [sys.executable, str(WORKERS), "hold", url, trace, lease_seconds]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as other:
            assert other.stdout is not None
            said = other.stdout.readline()
            other.kill()
        # On a slow disk, the short lease may end before the run begins.
        if said == "running\n":
            break
    else:
        raise AssertionError(said)
    found = traces.get_trace(trace)
    assert found is not None and found.status == "running"
    with TraceRuns(traces, Scripted()) as runs:
        started = False
        while not started:
            with contextlib.suppress(treehold.Conflict):
                runs.start(trace, [NewMessage("user", "say mine")])
                started = True
        assert runs.result(trace, TIMEOUT) == RunResult("completed", "mine")


async def test_agent_starts_another_agent_and_continues_it(traces: DatabaseTraceStore, runs: TraceRuns) -> None:
    trace = await traces.acreate_trace("x")
    assert (await ask(runs, trace, "agent say hello")).summary == "completed: hello"
    [goal] = traces.get_goal_tree(trace).goals
    [sub] = goal.sub_trace_ids
    assert (goal.type, sub.startswith(f"{trace}@agent-")) == ("agent_call", True)
    assert texts(traces, sub) == ["say hello", "hello"]
    answer = await AgentTool(runs).aagent("say again", sub)
    assert answer == {"status": "completed", "summary": "again", "sub_trace_id": sub}
    assert texts(traces, sub) == ["say hello", "hello", "say again", "again"]
    kinds = [event.event for event in traces.get_events(trace)]
    assert kinds.index("sub_trace_started") < kinds.index("sub_trace_completed")


FAILURES: dict[str, tuple[Callable[[AgentTool], dict[str, Any]], str]] = {
    "unknown trace": (lambda tool: tool.agent("say x", "none"), "Trace not found"),
    "malformed trace": (lambda tool: tool.agent("say x", "agent://h"), "bad trace id"),
    "unknown agent": (lambda tool: tool.agent("say x", agent_url="@laptop"), "no agent is registered"),
    "failed run": (lambda tool: tool.agent("fail so"), "so"),
    "no task": (lambda tool: tool.agent([]), "1 to 16 tasks"),
    "late": (lambda tool: tool.agent("wait"), "did not end within"),
}


@pytest.mark.parametrize("case", FAILURES)
def test_failure_of_the_tool_is_an_answer(case: str, traces: DatabaseTraceStore, runner: Scripted) -> None:
    call, error = FAILURES[case]
    with TraceRuns(traces, runner) as runs:
        answer = call(AgentTool(runs, deadline_seconds=0.3 if case == "late" else 60))
        for seconds in (3, 30):
            # A slow machine may not start the agent in so short a time.
            if "could not be started within" in answer["error"]:
                answer = call(AgentTool(runs, deadline_seconds=seconds))
    assert answer["status"] == "failed" and error in answer["error"]


def test_several_tasks_are_several_agents(traces: DatabaseTraceStore, runner: Scripted) -> None:
    with TraceRuns(traces, runner) as runs:
        answer = AgentTool(runs).agent(["say one", "fail two"])
    assert [each["status"] for each in answer["results"]] == ["completed", "failed"] and answer["status"] == "failed"
    assert len({each["sub_trace_id"] for each in answer["results"]}) == 2


def test_tool_of_a_session_works_for_the_owner_of_the_traces_alone(traces: DatabaseTraceStore, runner: Scripted) -> None:
    trace = traces.create_trace("x")
    with TraceRuns(traces, runner) as runs, treehold.Workspace.of(agents=AgentTool(runs)) as workspace:
        assert "agent" in [tool["name"] for tool in workspace.tools("mcp")]
        with workspace.session(thread=trace, tenant="acme", user="ada") as session:
            result = session.call("agent", {"task": ["say tea"]})
            assert not result.is_error and result.data is not None and result.data["summary"] == "tea"
        with workspace.session(thread=trace, tenant="acme", user="eve") as session:
            result = session.call("agent", {"task": ["say tea"]})
            assert (result.is_error, result.code) == (True, "permission_denied")
    assert len(traces.get_goal_tree(trace).goals) == 1, "the trace of the thread is that of the caller"


async def test_cancelled_call_stops_the_agent_that_it_started(traces: DatabaseTraceStore, runs: TraceRuns, runner: Scripted) -> None:
    call = asyncio.ensure_future(AgentTool(runs).aagent("wait"))
    while not traces.list_traces() or not traces.get_trace_messages(traces.list_traces()[0].trace_id, since_sequence=1):
        await asyncio.sleep(0.01)
    call.cancel()
    assert await asyncio.to_thread(runner.cancelled.wait, TIMEOUT)
    [trace] = traces.list_traces()
    assert (await runs.aresult(trace.trace_id, TIMEOUT)) == RunResult("stopped", error="the run was stopped")


def test_program_that_ends_during_a_run_ends_without_a_crash(tmp_path: Path) -> None:
    code = f"""
import asyncio, threading
from treehold.traces import DatabaseTraceStore, TraceRuns
begun = threading.Event()
class Runner:
    async def run(self, context, request, /):
        print("running", flush=True)
        begun.set()
        await asyncio.Event().wait()
traces = DatabaseTraceStore("sqlite:{tmp_path / 'a.db'}")
runs = TraceRuns(traces, Runner())
trace = traces.create_trace("x")
runs.start(trace)
begun.wait()
assert runs.result(trace, 0) is None
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "running\n", "")
