"""Traces at another server: reached by its URL or its name, together with local ones, and through a cache."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

import treehold
from treehold.traces import (
    AgentTool,
    CachedRemoteStore,
    DatabaseTraceStore,
    HybridTraceStore,
    NewMessage,
    NewTrace,
    Peers,
    RemoteTraceStore,
    RunContext,
    RunRequest,
    TraceRuns,
    UnknownAgent,
)


class Server(NamedTuple):
    """A server of traces in a process of its own."""

    url: str
    host: str
    key: str
    store: str
    stop: Callable[[], None]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    directory = tmp_path / "server"
    directory.mkdir()
    (directory / "treehold.toml").write_text('data = "data"\n[stores.default]\nurl = "sqlite:server.db"\n[traces]\nown_location = "@cloud"\n')
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TREEHOLD_")}
    program = [sys.executable, "-m", "treehold", "--config", str(directory / "treehold.toml"), "--user", "ada"]
    made = subprocess.run([*program, "token", "create", "--access", "admin"], capture_output=True, text=True, env=environment, timeout=60)
    assert made.returncode == 0, made.stderr
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        host = f"127.0.0.1:{probe.getsockname()[1]}"
    with open(tmp_path / "server.log", "wb") as log:
        process = subprocess.Popen([*program, "serve", "--tokens", "--listen", host], stdout=log, stderr=log, env=environment)
    until = time.monotonic() + 60
    while True:
        assert process.poll() is None and time.monotonic() < until, (tmp_path / "server.log").read_text()
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", int(host.rpartition(":")[2])), timeout=1):
            break

    def stop() -> None:
        process.send_signal(signal.SIGINT)
        process.wait(timeout=60)

    yield Server(f"http://{host}", host, made.stdout.strip(), f"sqlite:{directory / 'server.db'}", stop)
    if process.poll() is None:
        stop()


class Idle:
    """Runs nothing."""

    def run(self, context: RunContext, request: RunRequest, /) -> str:
        return "idle"


@pytest.fixture
def local() -> DatabaseTraceStore:
    return DatabaseTraceStore("memory:", user="ada")


def test_traces_of_a_server_have_qualified_ids_and_the_same_methods(server: Server, local: DatabaseTraceStore) -> None:
    remote = RemoteTraceStore(server.url, server.key)
    id = remote.create_trace(NewTrace("make tea", trace_id="abc-123"))
    assert id == f"agent://{server.host}/abc-123"
    remote.add_messages("abc-123", [NewMessage("user", {"z": 1, "a": 2}), NewMessage("assistant", "hot")])
    found = remote.get_trace(id)
    assert found is not None and (found.trace_id, found.remote, found.total_messages, found.uid) == (id, True, 2, "ada")
    assert list(remote.get_main_path_messages(id)[0].content) == ["z", "a"]
    assert [event.event for event in remote.get_events(id)] == ["trace_created", "message_added", "message_added"]
    assert (remote.get_trace("none"), [trace.trace_id for trace in remote.list_traces()]) == (None, [id])
    watched = remote.watch(id, 2)
    assert next(watched).event_id == 3
    everywhere = HybridTraceStore(local, Peers({"cloud": {"url": server.url, "api_key": server.key}}))
    answer = AgentTool(everywhere).agent("x", agent_url=server.url)
    assert (answer["status"], answer["remote"]) == ("failed", True) and "runner" in answer["error"]
    with TraceRuns(everywhere, Idle()) as runs, pytest.raises(treehold.Unsupported):
        runs.start("@cloud/abc-123")
    assert remote.delete_trace(id) and remote.get_trace(id) is None


def test_wrong_key_is_refused_and_never_looks_like_an_absent_trace(server: Server) -> None:
    with pytest.raises(treehold.PermissionDenied):
        RemoteTraceStore(server.url, "wrong").get_trace("abc-123")
    with pytest.raises(treehold.PermissionDenied):
        RemoteTraceStore(server.url).create_trace("x")


def test_call_goes_where_its_id_says(server: Server, local: DatabaseTraceStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLOUD_KEY", server.key)
    peers = Peers({"cloud": {"url": server.url, "api_key": "env:CLOUD_KEY", "type": "terminal"}})
    traces = HybridTraceStore(local, peers, own_location="@laptop")
    here, there = traces.create_trace("here"), traces.create_trace(NewTrace("there", trace_id="@cloud/there"))
    assert there == "@cloud/there"
    traces.add_goal(there, "boil")
    assert [goal.description for goal in traces.get_goal_tree(f"agent://{server.host}/there").goals] == ["boil"]
    assert [trace.trace_id for trace in traces.list_traces()] == [here]
    found = traces.get_trace(f"@laptop/{here}")
    assert found is not None and found.trace_id == here
    server.stop()
    assert traces.get_trace(here) is not None, "a local id needs no server"
    with pytest.raises(treehold.Unavailable):
        traces.get_trace(there)


def test_cache_serves_what_it_knows_while_the_owner_is_away(server: Server, tmp_path: Path) -> None:
    remote = RemoteTraceStore(server.url, server.key)
    copies = f"sqlite:{tmp_path / 'copies.db'}"
    cache = CachedRemoteStore(copies, remote, final_age_seconds=0)
    id = cache.create_trace("x")
    cache.add_message(id, NewMessage("user", "hello"))
    assert [message.content for message in cache.get_main_path_messages(id)] == ["hello"]
    # The owner is the truth: what others write there is seen.
    RemoteTraceStore(server.url, server.key).add_message(id, NewMessage("user", "again"))
    page = cache.get_main_path_messages(id)
    assert ([message.content for message in page], page.stale, cache.usage[0]) == (["hello", "again"], False, 1)
    server.stop()
    trace, page = cache.get_trace(id), cache.get_main_path_messages(id)
    assert trace is not None and trace.stale and page.stale and len(page) == 2
    with pytest.raises(treehold.Unavailable):
        cache.add_message(id, NewMessage("user", "lost"))
    again = CachedRemoteStore(copies, remote).get_trace(id)
    assert again is not None and again.stale, "copies survive the process"
    cache.invalidate(id)
    cache.clear()
    assert cache.usage == (0, 0)


def test_place_that_is_not_registered_is_refused_without_a_connection(local: DatabaseTraceStore) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        listener.setblocking(False)
        host = f"127.0.0.1:{listener.getsockname()[1]}"
        traces = HybridTraceStore(local, Peers({"cloud": {"url": "https://cloud.example"}}))
        for id in (f"agent://{host}/x", "@clowd/x"):
            with pytest.raises(UnknownAgent):
                traces.get_trace(id)
            answer = AgentTool(traces).agent("x", id)
            assert answer["status"] == "failed"
        with pytest.raises(BlockingIOError):
            listener.accept()


def test_registry_reads_the_file_of_the_original_and_hides_keys(tmp_path: Path) -> None:
    file = tmp_path / "agents.yaml"
    file.write_text("agents:\n  laptop:\n    url: https://laptop.example:8000\n    api_key: s3cret\n    type: terminal\n")
    peers = Peers({"cloud": {"url": "https://cloud.example", "api_key": "s3cret"}}, file=file)
    assert (peers.names, repr(peers)) == (["cloud", "laptop"], 'Peers(["cloud", "laptop"])')
    peers.check("@laptop")
    peers.check("agent://laptop.example:8000")
    with pytest.raises(UnknownAgent, match="did you mean `laptop`"):
        peers.check("@lapto")
    with pytest.raises(UnknownAgent):
        peers.check("agent://elsewhere.example")
    Peers(unregistered_hosts=True).check("agent://elsewhere.example")


REFUSED: dict[str, Callable[[], object]] = {
    "http to another machine": lambda: Peers({"a": {"url": "http://cloud.example"}}),
    "no URL": lambda: Peers({"a": {"url": "cloud"}}),
    "a name with a slash": lambda: Peers({"a/b": {"url": "https://cloud.example"}}),
    "no place": lambda: Peers().check("laptop"),
    "a path": lambda: RemoteTraceStore("ftp://cloud.example"),
    "a key beside a registry": lambda: RemoteTraceStore("@a", "key", peers=Peers({"a": {"url": "https://cloud.example"}})),
    "an agent that is not registered": lambda: RemoteTraceStore("@b", peers=Peers({"a": {"url": "https://cloud.example"}})),
    "an own place that is none": lambda: RemoteTraceStore("https://cloud.example", own_location="cloud"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_malformed_place_is_refused_when_it_is_named(case: str) -> None:
    with pytest.raises(treehold.InvalidArgument) as refused:
        REFUSED[case]()
    assert "s3cret" not in str(refused.value)
