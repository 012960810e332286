"""The laws of mounts, over any mixture of backends."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from deepagents.backends import CompositeBackend as TheirCompositeBackend
from deepagents.backends import FilesystemBackend as TheirFilesystemBackend
from deepagents.backends import LocalShellBackend as TheirLocalShellBackend
from deepagents.backends import StoreBackend as TheirStoreBackend
from deepagents.backends.protocol import BackendProtocol, GlobResult, GrepResult, LsResult
from langgraph.store.memory import InMemoryStore

from treehold.deepagents import CompositeBackend, FilesystemBackend, LocalShellBackend, StoreBackend


def store_of(name: str, theirs: bool = False) -> BackendProtocol:
    cls = TheirStoreBackend if theirs else StoreBackend
    return cls(namespace=lambda _: (name,), store=InMemoryStore())


@pytest.fixture(params=("ours", "theirs", "mixed"))
def composite(request: pytest.FixtureRequest) -> CompositeBackend:
    """A composite with nested mounts of ours, of deepagents', or of both."""
    theirs = {"ours": (False, False, False), "theirs": (True, True, True), "mixed": (True, False, True)}[request.param]
    default, memories, deep = (store_of(name, is_theirs) for name, is_theirs in zip(("default", "memories", "deep"), theirs, strict=True))
    # Hidden by the mounts, however they came there.
    default.write("/memories/hidden.md", "hit hidden")
    memories.write("/deep/hidden.md", "hit hidden")
    composite = CompositeBackend(default, {"/memories/": memories, "/memories/deep": deep, "/a/b/": store_of("b")})
    for path in ("/top.md", "/memories/m.md", "/memories/deep/d.md", "/a/x.md", "/a/b/y.md"):
        assert composite.write(path, f"hit {path}").path == path
    return composite


def paths(entries: Any) -> list[str]:
    return [entry["path"] for entry in entries]


def both(composite: CompositeBackend, name: str, *args: Any, **kwargs: Any) -> Any:
    """Calls a method and its asynchronous twin, which have to agree."""
    result = getattr(composite, name)(*args, **kwargs)
    assert asyncio.run(getattr(composite, "a" + name)(*args, **kwargs)) == result
    return result


def test_longest_prefix_wins_by_whole_segments(composite: CompositeBackend) -> None:
    composite.write("/memoriesx.md", "beside")
    assert composite.default.read("/memoriesx.md").error is None
    assert composite.routes["/memories/deep"].read("/d.md").error is None
    assert composite.routes["/memories/"].read("/deep/d.md").error is not None


def test_mounts_are_listed_at_every_level(composite: CompositeBackend) -> None:
    assert paths(both(composite, "ls", "/").entries) == ["/a/", "/memories/", "/top.md"]
    assert paths(both(composite, "ls", "/a").entries) == ["/a/b/", "/a/x.md"]
    assert paths(both(composite, "ls", "/memories/").entries) == ["/memories/deep/", "/memories/m.md"]


def test_mount_in_a_missing_directory_is_listed(tmp_path: Path) -> None:
    composite = CompositeBackend(FilesystemBackend(root_dir=tmp_path), {"/a/b/": store_of("b")})
    assert paths(both(composite, "ls", "/a").entries) == ["/a/b/"]
    assert both(composite, "ls", "/c").error == "Path '/c': path_not_found"


ALL = ["/a/b/y.md", "/a/x.md", "/memories/deep/d.md", "/memories/m.md", "/top.md"]


@pytest.mark.parametrize(
    ("pattern", "path", "found"),
    [
        ("*.md", None, ALL),
        ("**/*.md", "/", ALL),
        ("*/m.md", "/", ["/memories/m.md"]),
        ("m*/*", "/", ["/memories/m.md"]),
        ("/memories/**", "/", ["/memories/deep/d.md", "/memories/m.md"]),
        ("{memories,a}/*.md", "/", ["/a/x.md", "/memories/m.md"]),
        ("**/deep/*", "/", ["/memories/deep/d.md"]),
        ("/*.md", "/", ["/top.md"]),
        ("*.md", "/a", ["/a/b/y.md", "/a/x.md"]),
        ("b/*", "/a", ["/a/b/y.md"]),
        ("*.md", "/memories", ["/memories/deep/d.md", "/memories/m.md"]),
        ("deep/*.md", "/memories/", ["/memories/deep/d.md"]),
    ],
)
def test_patterns_cross_mounts_and_find_nothing_hidden(composite: CompositeBackend, pattern: str, path: str | None, found: list[str]) -> None:
    assert paths(both(composite, "glob", pattern, path).matches) == found
    assert paths(both(composite, "grep", "hit", path, pattern).matches) == found


def test_grep_searches_every_mount_beneath_its_path(composite: CompositeBackend) -> None:
    assert paths(both(composite, "grep", "hit").matches) == ALL
    assert paths(both(composite, "grep", "hit", "/a").matches) == ["/a/b/y.md", "/a/x.md"]


@pytest.mark.parametrize("count", range(1, 7))
def test_limit_of_a_grep_is_shared_and_exact(composite: CompositeBackend, count: int) -> None:
    found = both(composite, "grep", "hit", max_count=count)
    assert (len(found.matches), found.truncated) == (min(count, len(ALL)), count < len(ALL))
    assert set(paths(found.matches)) <= set(ALL)


def test_errors_name_the_path_of_the_caller(composite: CompositeBackend) -> None:
    assert both(composite, "read", "/memories/no.md").error == "File '/memories/no.md' not found"
    assert both(composite, "edit", "/memories/no.md", "a", "b").error == "Error: File '/memories/no.md' not found"
    assert both(composite, "delete", "/memories/no.md").error == "Error: File '/memories/no.md' not found"


def test_batches_keep_their_order_over_mounts(composite: CompositeBackend) -> None:
    files = [("/memories/1", b"1"), ("/2", b"2"), ("/memories/3", b"3")]
    assert [response.path for response in composite.upload_files(files)] == [path for path, _ in files]
    wanted = ["/2", "/memories/3", "/nowhere", "/memories/1"]
    responses = both(composite, "download_files", wanted)
    assert [(response.path, response.content) for response in responses] == list(zip(wanted, [b"2", b"3", None, b"1"], strict=True))


def test_first_failing_backend_fails_a_search() -> None:
    class Failing(BackendProtocol):
        def grep(self, *_: Any, **__: Any) -> GrepResult:
            return GrepResult(error="cannot search '/'")

        def glob(self, *_: Any) -> GlobResult:
            return GlobResult(error="cannot find")

        def ls(self, path: str) -> LsResult:
            return LsResult(error=f"cannot list '{path}'")

    composite = CompositeBackend(store_of("a"), {"/broken/": Failing()})
    assert both(composite, "grep", "x").error == "cannot search '/broken'"
    assert both(composite, "glob", "*").error == "cannot find"
    assert both(composite, "ls", "/broken").error == "cannot list '/broken'"
    assert paths(both(composite, "ls", "/").entries) == ["/broken/"]


@pytest.mark.parametrize("routes", [{"/a/": 1, "/a": 2}, {"a/": 1}, {"/": 1}, {"": 1}, {"/a/../b": 1}, {"//": 1}])
def test_routes_that_mean_nothing_or_the_same_are_refused(routes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="route"):
        CompositeBackend(store_of("a"), {prefix: store_of("b") for prefix in routes})


def test_commands_go_to_the_default_backend(tmp_path: Path) -> None:
    for shell in (LocalShellBackend(tmp_path, virtual_mode=True), TheirLocalShellBackend(tmp_path, virtual_mode=True)):
        composite = CompositeBackend(shell, {"/memories/": store_of("a")})
        assert both(composite, "execute", "echo hello", timeout=10).output.strip() == "hello"
    with pytest.raises(NotImplementedError, match="execution"):
        CompositeBackend(store_of("a"), {}).execute("echo hello")


def test_classes_are_those_that_the_middleware_looks_for(tmp_path: Path) -> None:
    assert isinstance(CompositeBackend(store_of("a"), {}), TheirCompositeBackend)
    assert isinstance(FilesystemBackend(tmp_path), TheirFilesystemBackend)
    assert isinstance(LocalShellBackend(tmp_path), TheirLocalShellBackend)
    assert isinstance(store_of("a"), TheirStoreBackend)


async def test_mounts_are_searched_concurrently() -> None:
    everyone = asyncio.Barrier(3)

    class Waiting(BackendProtocol):
        async def agrep(self, *_: Any, **__: Any) -> GrepResult:
            await everyone.wait()
            return GrepResult(matches=[{"path": "/x", "line": 1, "text": "hit"}])

    composite = CompositeBackend(store_of("a"), {f"/{name}/": Waiting() for name in "abc"})
    found = await asyncio.wait_for(composite.agrep("hit"), timeout=60)
    assert paths(found.matches) == ["/a/x", "/b/x", "/c/x"]


async def test_cancelled_search_cancels_those_of_the_mounts() -> None:
    cancelled: list[str] = []
    started = asyncio.Event()

    class Endless(BackendProtocol):
        def __init__(self, name: str) -> None:
            self.name = name

        async def agrep(self, *_: Any, **__: Any) -> GrepResult:
            started.set()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                cancelled.append(self.name)
                raise
            return GrepResult()

    composite = CompositeBackend(store_of("a"), {f"/{name}/": Endless(name) for name in "ab"})
    search = asyncio.create_task(composite.agrep("hit"))
    await started.wait()
    search.cancel()
    with pytest.raises(asyncio.CancelledError):
        await search
    assert sorted(cancelled) == ["a", "b"]
