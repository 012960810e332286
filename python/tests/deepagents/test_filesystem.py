"""The filesystem backend."""

from __future__ import annotations

import asyncio
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from deepagents.backends.protocol import BackendProtocol
from deepagents.middleware import FilesystemMiddleware

from treehold.deepagents import FilesystemBackend, LocalShellBackend


def paths(entries: Any) -> list[str]:
    return [entry["path"] for entry in entries]


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """A directory with a root and a secret beside it, to which links of the root lead."""
    (tmp_path / "root" / "sub").mkdir(parents=True)
    (tmp_path / "secret.txt").write_text("hit secret")
    (tmp_path / "secrets").mkdir()
    (tmp_path / "secrets" / "key").write_text("hit key")
    (tmp_path / "root" / "file.md").write_text("hit file")
    (tmp_path / "root" / "sub" / "deep.md").write_text("hit deep")
    for name, target in {"out": "../secret.txt", "outdir": "../secrets", "in": "file.md", "indir": "sub", "gone": "nowhere"}.items():
        (tmp_path / "root" / name).symlink_to(target)
    return tmp_path / "root"


def test_links_within_the_root_are_followed_and_others_lead_nowhere(outside: Path) -> None:
    backend = FilesystemBackend(root_dir=outside)
    listed = backend.ls("/").entries or []
    assert [(entry["path"], entry["is_dir"]) for entry in listed] == [("/file.md", False), ("/in", False), ("/indir/", True), ("/sub/", True)]
    data = backend.read("/in").file_data
    assert data is not None and data["content"] == "hit file"
    assert backend.read("/indir/deep.md").error is None
    for path in ("/out", "/outdir/key"):
        assert backend.read(path).error is not None
        assert backend.write(path, "x").error is not None
        assert backend.edit(path, "hit", "x").error is not None
        assert backend.download_files([path])[0].content is None
    assert (outside.parent / "secret.txt").read_text() == "hit secret"
    assert paths(backend.grep("hit").matches) == ["/file.md", "/sub/deep.md"]
    assert paths(backend.glob("**").matches) == ["/file.md", "/sub/deep.md"]


def test_delete_of_a_link_removes_the_link(outside: Path) -> None:
    backend = FilesystemBackend(root_dir=outside)
    for name in ("in", "indir", "out", "gone"):
        assert backend.delete(f"/{name}").error is None
        assert not (outside / name).is_symlink()
    assert (outside / "file.md").exists() and (outside / "sub" / "deep.md").exists()


def test_root_cannot_be_deleted(outside: Path) -> None:
    assert FilesystemBackend(root_dir=outside).delete("/").error is not None
    assert (outside / "file.md").exists()


@pytest.mark.parametrize("name", ["a..b.md", "[...slug].tsx", "..hidden", "a..", "über  space.md", "~tilde"])
def test_unusual_names_are_ordinary(tmp_path: Path, name: str) -> None:
    backend = FilesystemBackend(root_dir=tmp_path)
    assert backend.write(f"/{name}", "hit").error is None
    assert (tmp_path / name).read_text() == "hit"
    assert backend.read(f"/{name}").error is None
    assert backend._real_path(f"/{name}") == f"/{name}"


def test_traversal_raises_as_in_deepagents_and_searches_find_nothing(tmp_path: Path) -> None:
    backend = FilesystemBackend(root_dir=tmp_path / "root")
    for call in (lambda: backend.read("/../x"), lambda: backend.ls("/a/../.."), lambda: backend.write("../x", "")):
        with pytest.raises(ValueError, match="traversal"):
            call()
    assert backend.grep("x", "/..").matches == []
    assert backend.upload_files([("/../x", b"")])[0].error == "invalid_path"


def test_paths_of_the_machine_are_used_without_virtual_mode(tmp_path: Path) -> None:
    backend = FilesystemBackend(root_dir=tmp_path / "root", virtual_mode=False)
    beside = str(tmp_path / "beside" / "a.md")
    assert backend.write(beside, "hit").path == beside
    assert backend.write("in.md", "hit").error is None
    assert (tmp_path / "root" / "in.md").read_text() == "hit"
    assert paths(backend.ls(str(tmp_path)).entries) == [f"{tmp_path}/beside/", f"{tmp_path}/root/"]
    assert paths(backend.grep("hit", str(tmp_path / "beside")).matches) == [beside]
    assert paths(backend.grep("hit").matches) == [str(tmp_path / "root" / "in.md")]
    assert paths(backend.glob("*.md").matches) == [str(tmp_path / "root" / "in.md")]


def test_grep_passes_over_hidden_ignored_and_large_files(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / ".gitignore").write_text("built/\n")
    for path in ("seen.md", ".hidden.md", ".git/config", "built/out.md"):
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text("hit\n")
    (tmp_path / "large.md").write_text("hit\n" + "x" * (2 << 20))
    assert paths(FilesystemBackend(root_dir=tmp_path, max_file_size_mb=1).grep("hit").matches) == ["/seen.md"]
    assert paths(FilesystemBackend(root_dir=tmp_path).grep("hit").matches) == ["/large.md", "/seen.md"]
    assert paths(FilesystemBackend(root_dir=tmp_path).glob("*.md").matches) == ["/built/out.md", "/large.md", "/seen.md"]


def test_readers_see_whole_files_while_they_are_written(tmp_path: Path) -> None:
    backend = FilesystemBackend(root_dir=tmp_path)
    versions = {letter * 200_000 for letter in "abc"}
    backend.write("/a.md", next(iter(versions)))
    stop = threading.Event()

    def write() -> None:
        while not stop.is_set():
            for version in versions:
                backend.write("/a.md", version)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for _ in range(300):
            assert (tmp_path / "a.md").read_text() in versions
    finally:
        stop.set()
        writer.join()


def test_no_acknowledged_edit_of_several_threads_is_lost(tmp_path: Path) -> None:
    FilesystemBackend(root_dir=tmp_path).write("/count.md", "".join(f"[{n}]" for n in range(80)))

    def edit(worker: int) -> int:
        backend = FilesystemBackend(root_dir=tmp_path)
        return sum(backend.edit("/count.md", f"[{n}]", f"<{n}>").error is None for n in range(worker, 80, 4))

    with ThreadPoolExecutor(4) as pool:
        assert sum(pool.map(edit, range(4))) == 80
    assert (tmp_path / "count.md").read_text() == "".join(f"<{n}>" for n in range(80))


def test_edit_keeps_mode_bits(tmp_path: Path) -> None:
    (tmp_path / "run.sh").write_text("echo old\n")
    os.chmod(tmp_path / "run.sh", 0o755)
    FilesystemBackend(root_dir=tmp_path).edit("/run.sh", "old", "new")
    assert (tmp_path / "run.sh").stat().st_mode & 0o777 == 0o755


def test_missing_root_is_empty_until_the_first_write(tmp_path: Path) -> None:
    backend = FilesystemBackend(root_dir=tmp_path / "later")
    assert backend.read("/a.md").error == "File '/a.md' not found"
    assert backend.glob("*").matches == []
    assert not (tmp_path / "later").exists()
    assert backend.write("/a.md", "x").error is None
    assert paths(backend.ls("/").entries) == ["/a.md"]


def test_root_that_is_replaced_is_opened_again(tmp_path: Path) -> None:
    backend = FilesystemBackend(root_dir=tmp_path / "root")
    backend.write("/old.md", "x")
    (tmp_path / "root").rename(tmp_path / "moved")
    (tmp_path / "root").mkdir()
    (tmp_path / "root" / "new.md").write_text("x")
    assert paths(backend.ls("/").entries) == ["/new.md"]


def test_text_file_that_is_not_utf8_cannot_be_read_or_edited(tmp_path: Path) -> None:
    (tmp_path / "a.md").write_bytes(b"caf\xe9")
    backend = FilesystemBackend(root_dir=tmp_path)
    assert "Error reading file '/a.md'" in (backend.read("/a.md").error or "")
    assert backend.edit("/a.md", "x", "y").error is not None
    assert backend.download_files(["/a.md"])[0].content == b"caf\xe9"


def test_middleware_lists_and_reads_through_the_backend(tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text("hello")
    middleware = FilesystemMiddleware(backend=FilesystemBackend(root_dir=tmp_path))
    assert {tool.name for tool in middleware.tools} >= {"ls", "read_file", "write_file", "edit_file", "glob", "grep", "delete"}


def test_shell_backend_runs_commands_beside_native_files(tmp_path: Path) -> None:
    backend = LocalShellBackend(tmp_path, virtual_mode=True, inherit_env=True)
    assert isinstance(backend, BackendProtocol)
    backend.write("/a.md", "hello\n")
    assert backend.execute("cat a.md").output.strip() == "hello"
    assert asyncio.run(backend.aexecute("cat a.md")).exit_code == 0


def test_cancelled_search_ends(tmp_path: Path) -> None:
    for n in range(300):
        (tmp_path / f"{n}.md").write_text("hay\n" * 20_000)
    backend = FilesystemBackend(root_dir=tmp_path)

    async def work() -> None:
        search = asyncio.create_task(backend.agrep("needle"))
        await asyncio.sleep(0)
        search.cancel()
        with pytest.raises(asyncio.CancelledError):
            await search

    asyncio.run(work())


def test_links_that_lead_out_or_nowhere_are_invalid_paths_of_batches(outside: Path) -> None:
    backend = FilesystemBackend(root_dir=outside)
    (outside / "loop").symlink_to("loop")
    for path in ("/out", "/loop"):
        assert backend.upload_files([(path, b"x")])[0].error == "invalid_path"
        assert backend.download_files([path])[0].error == "invalid_path"
    assert backend.download_files(["/gone"])[0].error == "file_not_found"
