"""Trees: every tier, the composite, the overlay and the layers."""

import pickle
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import Any

import pytest

import treehold
from treehold import Backend, Change

TIERS = ["state", "store", "filesystem", "composite"]


def make(tier: str, directory: Path) -> Backend:
    if tier == "state":
        return treehold.StateBackend()
    if tier == "store":
        return treehold.StoreBackend(treehold.Store.open("memory:"), ("acme", "files"))
    if tier == "filesystem":
        return treehold.FilesystemBackend(directory / "root", create_root=True)
    return treehold.Subtree(treehold.CompositeBackend(treehold.StateBackend(), {"/m": treehold.StateBackend()}), "/m")


@pytest.fixture(params=TIERS)
def tree(request: pytest.FixtureRequest, tmp_path: Path) -> Backend:
    return make(request.param, tmp_path)


def test_written_content_is_read_back_whole_by_lines_and_by_bytes(tree: Backend) -> None:
    changed = tree.write("/d/a.md", "one\ntwo\nthree\n")
    assert (changed.created, changed.size_bytes, changed.path) == (True, 14, "/d/a.md")
    read = tree.read("/d/a.md")
    assert (read.content, read.text(), len(read), read.size_bytes) == (b"one\ntwo\nthree\n", "one\ntwo\nthree\n", 14, 14)
    assert read.version == changed.version == tree.version("/d/a.md")
    lines = tree.read(PurePosixPath("/d/a.md"), offset=1, limit=1)
    assert lines.content == b"two\n" and lines.window is not None
    assert (lines.window.offset, lines.window.lines, lines.window.total_lines, lines.window.next_offset) == (1, 1, 3, 2)
    assert tree.read_range("/d/a.md", 4, 3).content == b"two"
    assert tree.read_bytes("/d/a.md") == tree.read_text("/d/a.md").encode()


@pytest.mark.parametrize("content", [b"\x00\xff", bytearray(b"abc"), memoryview(b"abc"), "é\ud7ff", b""])
def test_any_buffer_is_content(tree: Backend, content: Any) -> None:
    tree.write("/f", content)
    expected = content.encode() if isinstance(content, str) else bytes(content)
    assert tree.read_bytes("/f") == expected


def test_number_and_lone_surrogate_are_no_content(tree: Backend) -> None:
    with pytest.raises(TypeError):
        tree.write("/f", 7)  # type: ignore[arg-type]
    with pytest.raises(UnicodeEncodeError):
        tree.write("/f", "\ud800")
    assert not tree.exists("/f")


def test_crlf_is_shown_as_lf_and_edit_keeps_endings(tree: Backend) -> None:
    tree.write("/dos.txt", "one\r\ntwo\r\nthree\r\n")
    shown = tree.read("/dos.txt", offset=1, limit=2, unix_lines=True)
    assert shown.text() == "two\nthree\n" and shown.size_bytes == 17
    assert tree.read_many(["/dos.txt"], unix_lines=True)[0].text() == "one\ntwo\nthree\n"  # type: ignore[union-attr]
    assert tree.edit("/dos.txt", shown.text(), "2\n3\n").replacements == 1
    assert tree.read_bytes("/dos.txt") == b"one\r\n2\r\n3\r\n"


def test_failures_are_classes_with_code_path_and_hint(tree: Backend) -> None:
    with pytest.raises(treehold.NotFound) as missing:
        tree.read("/none/x")
    assert (missing.value.code, missing.value.path, missing.value.operation) == ("not_found", "/none/x", missing.value.operation)
    assert isinstance(missing.value, FileNotFoundError) and "/none/x" in str(missing.value)
    tree.write("/a", "x x")
    with pytest.raises(treehold.Ambiguous) as ambiguous:
        tree.edit("/a", "x", "y")
    assert ambiguous.value.lines == [1, 1] and ambiguous.value.hint is not None
    with pytest.raises(treehold.NoMatch):
        tree.edit("/a", "z", "y")
    with pytest.raises(treehold.Conflict) as conflict:
        tree.write("/a", "y", if_version=1 << 40)
    assert conflict.value.current_version == tree.version("/a")
    with pytest.raises(treehold.AlreadyExists):
        tree.write("/a", "y", mode="create")
    with pytest.raises(NotADirectoryError):
        tree.ls("/a")
    with pytest.raises(treehold.InvalidPath):
        tree.read("relative")
    with pytest.raises(treehold.InvalidArgument):
        tree.write("/a", "y", mode="nonsense")  # type: ignore[arg-type]
    again = pickle.loads(pickle.dumps(conflict.value))
    assert type(again) is treehold.Conflict
    assert (again.path, again.current_version, str(again)) == (conflict.value.path, conflict.value.current_version, str(conflict.value))


def test_read_many_answers_in_order_with_errors_of_their_own(tree: Backend) -> None:
    tree.write_many({f"/f{number}": str(number) for number in range(100)})
    reads = tree.read_many([f"/f{number}" for number in reversed(range(100))] + ["/none", "nonsense"])
    assert [read.text() for read in reads[:100] if isinstance(read, treehold.FileRead)] == [str(n) for n in reversed(range(100))]
    assert isinstance(reads[100], treehold.NotFound) and isinstance(reads[101], treehold.InvalidPath)


def test_batch_is_applied_as_a_whole_or_not_at_all(tree: Backend) -> None:
    tree.write("/a", "1")
    changes = [Change.write("/b", "2"), Change.move("/a", "/c"), Change.edit("/c", ("1", "3")), Change.create_dir("/d")]
    assert [change.kind for change in changes] == ["write", "move", "edit", "create_dir"]
    if tree.capabilities.atomic_batch:
        with pytest.raises(treehold.NotFound) as caught:
            tree.apply([*changes, Change.delete("/none")])
        assert (caught.value.change, caught.value.applied) == (4, 0)
        assert tree.exists("/a") and not tree.exists("/b")
    done = tree.apply(changes, allow_partial=True)
    assert [changed.path for changed in done] == ["/b", "/c", "/c", "/d"]
    assert tree.read_text("/c") == "3"
    assert tree.delete("/d").entries == 1 and tree.copy("/c", "/e").created


def test_infos_say_what_the_entries_say(tree: Backend) -> None:
    for path in ("/b", "/b.d/inner", "/B", "/é"):
        tree.write(path, path)
    listing = tree.ls("/")
    expected = [
        {
            "path": entry.path + ("/" if entry.is_dir else ""),
            "is_dir": entry.is_dir,
            "size": 0 if entry.is_dir else entry.size_bytes,
            "modified_at": entry.modified_at_iso or "",
        }
        for entry in listing.entries
    ]
    assert listing.infos() == sorted(expected, key=lambda info: str(info["path"]))
    assert len(listing.infos()) == 4


def test_listing_glob_and_grep_page_to_their_ends(tree: Backend) -> None:
    tree.write_many((f"/d/{number:02}.md", f"needle {number}\nother\n") for number in range(25))
    names: list[str] = []
    after = None
    while True:
        page = tree.ls("/d", limit=10, after=after)
        names += [entry.name for entry in page]
        after = page.next
        if after is None:
            break
    assert names == [f"{number:02}.md" for number in range(25)]
    found = tree.glob("*.md", "/d", limit=10)
    assert len(found) == 10 and found.next == "/d/09.md" and found[-1].path == "/d/09.md"
    assert len(tree.glob("*.md", after=found.next)) == 15
    result = tree.grep("needle", matches_max=10)
    assert len(result) == 10 and result.matches[0] == ("/d/00.md", 1, "needle 0")
    rest = tree.grep("needle", cursor=result.next)
    assert len(rest.files) == 15 and rest.next is None
    [file] = tree.grep(r"needle 1\d?$", "/d/11.md", regex=True, after=1).files
    assert [(line.line, line.is_match, line.text) for line in file.lines] == [(1, True, "needle 11"), (2, False, "other")]
    hits = tree.search("needle 7").hits
    assert hits[0].path == "/d/07.md"
    assert [entry.path for entry in tree.tree("/", depth=1).entries] == ["/d"]


def test_hidden_directories_are_entered_for_plain_names(tree: Backend) -> None:
    tree.write_many({"/.github/ci.yml": "x", "/.github/.env": "x", "/a.yml": "x"})
    assert [entry.path for entry in tree.glob("*.yml")] == ["/a.yml"]
    assert [entry.path for entry in tree.glob("*.yml", hidden_directories=True)] == ["/.github/ci.yml", "/a.yml"]
    assert [entry.path for entry in tree.glob("*", hidden=True)] == ["/.github/.env", "/.github/ci.yml", "/a.yml"]
    assert [file.path for file in tree.grep("x", hidden_directories=True).files] == ["/.github/ci.yml", "/a.yml"]


def test_links_are_listed_with_what_they_lead_to(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "f").write_text("12345")
    (tmp_path / "file").symlink_to("d/f")
    (tmp_path / "dir").symlink_to("d")
    (tmp_path / "out").symlink_to("/etc/passwd")
    (tmp_path / "loop").symlink_to("loop")
    tree = treehold.FilesystemBackend(tmp_path)
    plain = {entry.name: entry for entry in tree.ls("/")}
    assert plain["file"].kind == "symlink" and plain["file"].target is None
    listed = {entry.name: entry for entry in tree.ls("/", links=True)}
    target = listed["file"].target
    assert target is not None and (target.path, target.kind, target.size_bytes) == ("/d/f", "file", 5)
    target = listed["dir"].target
    assert target is not None and target.is_dir and listed["dir"].leads_to == "/d"
    assert listed["out"].target is None and listed["loop"].target is None and listed["d"].target is None


def test_composite_shows_paths_of_the_caller_in_results_and_errors(tmp_path: Path) -> None:
    store = treehold.Store.open("memory:")
    routes = {"/memories": treehold.StoreBackend(store, "m"), "/workspace": treehold.FilesystemBackend(tmp_path)}
    tree = treehold.CompositeBackend(treehold.StateBackend(), routes)
    assert tree.routes == ["/memories", "/workspace"]
    tree.write("/memories/a.md", "needle")
    tree.write("/workspace/b.md", "needle")
    tree.write("/c.md", "needle")
    assert [entry.path for entry in tree.ls()] == ["/c.md", "/memories", "/workspace"]
    assert [path for path, _, _ in tree.grep("needle").matches] == ["/c.md", "/memories/a.md", "/workspace/b.md"]
    assert [entry.path for entry in tree.glob("{memories,workspace}/*.md")] == ["/memories/a.md", "/workspace/b.md"]
    assert (tmp_path / "b.md").read_text() == "needle"
    with pytest.raises(treehold.NotFound) as caught:
        tree.read("/memories/none")
    assert caught.value.path == "/memories/none" and "/memories/none" in caught.value.message
    assert str(tree).startswith("Composite(State, /memories => Store(memory)")


def test_overlay_keeps_the_lower_tree_as_it_was() -> None:
    lower, upper = treehold.StateBackend(), treehold.StateBackend()
    lower.write("/a", "1")
    overlay = treehold.OverlayBackend(lower, upper)
    overlay.write("/a", "2")
    overlay.write("/b", "3")
    assert (lower.read_text("/a"), overlay.read_text("/a"), lower.exists("/b")) == ("1", "2", False)


def test_layers_refuse_limit_record_and_ask() -> None:
    state = treehold.StateBackend()
    with pytest.raises(treehold.ReadOnly):
        treehold.read_only(state).write("/a", "x")
    with pytest.raises(treehold.QuotaExceeded):
        treehold.quota(state, bytes_max=2).write("/a", "xxx")
    rules = [treehold.Rule("deny", "read", ["/secret"]), treehold.Rule("ask", ["write", "delete"], ["/ask/**"])]
    asked: list[tuple[str, list[str]]] = []

    def approve(operation: str, paths: list[str]) -> bool:
        asked.append((operation, paths))
        return "yes" in paths[0]

    guarded = treehold.permissions(state, rules, approver=approve)
    state.write("/secret", "x")
    with pytest.raises(treehold.NotFound):
        guarded.read("/secret")
    guarded.write("/ask/yes", "x")
    with pytest.raises(treehold.PermissionDenied):
        guarded.write("/ask/no", "x")
    assert asked == [("write", ["/ask/yes"]), ("write", ["/ask/no"])]
    records: list[dict[str, Any]] = []
    audited = treehold.audit(treehold.limit(treehold.retry(treehold.timeout(state, 30)), 4), records.append)
    audited.read("/secret")
    assert records[-1]["operation"] == "read"
    with pytest.raises(treehold.InvalidArgument):
        treehold.Rule("perhaps", "read", ["/x"])  # type: ignore[arg-type]


def test_audit_callback_may_call_the_tree_itself() -> None:
    state = treehold.StateBackend()
    state.write("/log", "")
    audited = treehold.audit(state, lambda record: (state.append("/log", "x"), None)[1])
    audited.read("/log")
    audited.read("/log")
    assert state.read_text("/log") == "xx"


def test_audit_to_a_file_writes_a_line_for_each_call(tmp_path: Path) -> None:
    audited = treehold.audit(treehold.StateBackend(), tmp_path / "audit.jsonl")
    audited.write("/a", "x")
    audited.read("/a")
    assert len((tmp_path / "audit.jsonl").read_text().splitlines()) == 2


def test_edit_text_follows_the_rules_of_edit() -> None:
    assert treehold.edit_text("a b a", "a", "c", True) == ("c b c", 2)
    assert treehold.edit_text("x\r\ny\r\n", "x\ny", "z\nw") == ("z\r\nw\r\n", 1)
    with pytest.raises(treehold.Ambiguous) as caught:
        treehold.edit_text("a\na", "a", "c")
    assert caught.value.lines == [1, 2] and caught.value.occurrences == 2
    with pytest.raises(treehold.NoMatch):
        treehold.edit_text("a", "b", "c")


def test_objects_show_what_they_hold(tree: Backend) -> None:
    tree.write("/a", "x")
    shown: list[Callable[[], object]] = [lambda: tree, lambda: tree.read("/a"), lambda: tree.stat("/a"), lambda: tree.ls("/"), lambda: tree.tree()]
    for show in shown:
        assert type(show()).__name__.removesuffix("Backend") in repr(show()) or "<" in repr(show())
