"""Backends that are written in Python, as children of composites and layers."""

import asyncio
from collections.abc import Iterable

import pytest

import treehold
from treehold import Entry


class Dictionary(treehold.Backend):
    """Files in a dictionary, by synchronous methods. Several threads call them at once, so they iterate over copies."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}

    def stat(self, path: str) -> Entry:  # type: ignore[override]
        if path in self.files:
            return Entry(path, size_bytes=len(self.files[path]))
        if any(name.startswith(path + "/") for name in list(self.files)):
            return Entry(path, kind="directory")
        raise treehold.NotFound(f"`{path}` does not exist", path=path)

    def ls(self, path: str) -> Iterable[Entry]:  # type: ignore[override]
        beneath = path.rstrip("/") + "/"
        names = {name[len(beneath) :].split("/")[0] for name in list(self.files) if name.startswith(beneath)}
        if not names and path != "/":
            raise treehold.NotFound(f"`{path}` does not exist", path=path)
        return [self.stat(beneath + name) for name in names]

    def read(self, path: str) -> bytes:  # type: ignore[override]
        try:
            return self.files[path]
        except KeyError:
            raise treehold.NotFound(f"`{path}` does not exist", path=path) from None

    def write(self, path: str, content: bytes) -> None:  # type: ignore[override]
        self.files[path] = content

    def delete(self, path: str, *, recursive: bool = False) -> None:  # type: ignore[override]
        self.files = {name: content for name, content in list(self.files.items()) if name != path and not name.startswith(path + "/")}

    def create_dir(self, path: str) -> None:  # type: ignore[override]
        pass


class Asynchronous(treehold.Backend):
    """The same by coroutines, each of which waits for its event loop."""

    def __init__(self) -> None:
        self.inner = Dictionary()
        self.loops: set[asyncio.AbstractEventLoop] = set()

    async def _turn(self) -> None:
        self.loops.add(asyncio.get_running_loop())
        await asyncio.sleep(0)

    async def stat(self, path: str) -> Entry:  # type: ignore[override]
        await self._turn()
        return self.inner.stat(path)

    async def ls(self, path: str) -> Iterable[Entry]:  # type: ignore[override]
        await self._turn()
        return self.inner.ls(path)

    async def read(self, path: str) -> bytes:  # type: ignore[override]
        await self._turn()
        return self.inner.read(path)

    async def write(self, path: str, content: bytes) -> None:  # type: ignore[override]
        await self._turn()
        self.inner.write(path, content)

    async def delete(self, path: str, *, recursive: bool = False) -> None:  # type: ignore[override]
        await self._turn()
        self.inner.delete(path, recursive=recursive)


CHILDREN = [Dictionary, Asynchronous]


@pytest.mark.parametrize("kind", CHILDREN)
def test_child_in_python_reads_writes_edits_and_searches(kind: type[treehold.Backend]) -> None:
    tree = treehold.CompositeBackend(treehold.StateBackend(), {"/py": kind()})
    tree.write("/py/d/a.md", "one\r\nneedle\r\n")
    tree.edit("/py/d/a.md", "one\nneedle", "two\nneedle")
    assert tree.read_bytes("/py/d/a.md") == b"two\r\nneedle\r\n"
    assert tree.read("/py/d/a.md", offset=1, limit=1).text() == "needle\r\n"
    tree.append("/py/d/b.md", "needle")
    assert [entry.path for entry in tree.ls("/py/d")] == ["/py/d/a.md", "/py/d/b.md"]
    assert [entry.path for entry in tree.glob("py/**/*.md")] == ["/py/d/a.md", "/py/d/b.md"]
    assert [path for path, _, _ in tree.grep("needle").matches] == ["/py/d/a.md", "/py/d/b.md"]
    tree.move("/py/d/b.md", "/py/c.md")
    tree.copy("/py/c.md", "/outside.md")
    tree.delete("/py/d", recursive=True)
    assert [entry.path for entry in tree.ls("/py")] == ["/py/c.md"]
    assert tree.read_text("/outside.md") == "needle"
    with pytest.raises(treehold.NotFound) as caught:
        tree.read("/py/none")
    assert caught.value.path == "/py/none"


@pytest.mark.parametrize("kind", CHILDREN)
async def test_child_in_python_serves_many_tasks_of_a_loop(kind: type[treehold.Backend]) -> None:
    tree = treehold.CompositeBackend(treehold.StateBackend(), {"/py": kind()})
    await asyncio.gather(*(tree.awrite(f"/py/{number}", str(number)) for number in range(64)))
    assert len(await tree.als("/py")) == 64
    # A blocking call in the thread of a running loop does not wait for that loop.
    assert tree.read_text("/py/7") == "7"


def test_coroutines_of_a_child_run_on_one_loop_that_lasts() -> None:
    child = Asynchronous()
    tree = treehold.CompositeBackend(treehold.StateBackend(), {"/py": child})
    tree.write("/py/a", "x")
    asyncio.run(tree.aread("/py/a"))  # type: ignore[arg-type]
    assert len(child.loops) == 1 and not next(iter(child.loops)).is_closed()


def test_child_may_ask_the_tree_that_holds_it() -> None:
    class Echo(Dictionary):
        tree: treehold.Backend

        def read(self, path: str) -> bytes:  # type: ignore[override]
            return self.tree.read_bytes("/source")

    child = Echo()
    child.files["/x"] = b""
    child.tree = treehold.CompositeBackend(treehold.StateBackend(), {"/py": child})
    child.tree.write("/source", "from above")
    assert child.tree.read_text("/py/x") == "from above"


def test_exception_of_a_child_is_reported_and_what_it_lacks_is_unsupported() -> None:
    class Broken(treehold.Backend):
        def stat(self, path: str) -> Entry:  # type: ignore[override]
            raise ZeroDivisionError("the child is broken")

        def read(self, path: str) -> bytes:  # type: ignore[override]
            return object()  # type: ignore[return-value]

    tree = treehold.CompositeBackend(treehold.StateBackend(), {"/py": Broken()})
    with pytest.raises(treehold.Internal, match="broken"):
        tree.stat("/py/x")
    with pytest.raises(treehold.Error):
        tree.read("/py/x")
    with pytest.raises(treehold.Unsupported):
        tree.delete("/py/x")


def test_only_backends_can_be_children() -> None:
    with pytest.raises(TypeError):
        treehold.CompositeBackend(treehold.StateBackend(), {"/py": object()})  # type: ignore[dict-item]
