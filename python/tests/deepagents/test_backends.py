"""Rules that hold for every backend that holds files, synchronously and asynchronously."""

from __future__ import annotations

import asyncio
import inspect
from typing import Any

import pytest
from deepagents.backends import utils
from deepagents.backends.protocol import BackendProtocol


@pytest.fixture(params=("sync", "async"))
def call(request: pytest.FixtureRequest) -> Any:
    """Calls a method by its name, or its asynchronous twin."""

    def sync(backend: BackendProtocol, name: str, *args: Any, **kwargs: Any) -> Any:
        return getattr(backend, name)(*args, **kwargs)

    def asynchronous(backend: BackendProtocol, name: str, *args: Any, **kwargs: Any) -> Any:
        method = getattr(backend, "a" + name)
        assert inspect.iscoroutinefunction(method)
        return asyncio.run(method(*args, **kwargs))

    return sync if request.param == "sync" else asynchronous


def paths(entries: Any) -> list[str]:
    return [entry["path"] for entry in entries]


def test_written_file_reads_back_with_its_window(backend: BackendProtocol, call: Any) -> None:
    assert call(backend, "write", "/notes/a.md", "one\ntwo\nthree\n").path == "/notes/a.md"
    result = call(backend, "read", "/notes/a.md", 1, 1)
    assert (result.error, result.file_data["content"]) == (None, "two\n")
    assert (result.start_line, result.end_line, result.total_lines, result.next_offset) == (2, 2, 3, 2)


def test_write_of_existing_file_replaces_it(backend: BackendProtocol, call: Any) -> None:
    call(backend, "write", "/a.md", "old")
    assert call(backend, "write", "/a.md", "new").error is None
    assert call(backend, "read", "/a.md").file_data["content"] == "new"


def test_read_of_missing_file_says_so(backend: BackendProtocol, call: Any) -> None:
    assert call(backend, "read", "/nowhere.md").error == "File '/nowhere.md' not found"


def test_read_past_the_end_tells_the_length(backend: BackendProtocol, call: Any) -> None:
    call(backend, "write", "/a.md", "one\ntwo")
    assert call(backend, "read", "/a.md", 2).error == "Line offset 2 exceeds file length (2 lines)"
    assert call(backend, "read", "/a.md", 9).error == "Line offset 9 exceeds file length (2 lines)"


@pytest.mark.parametrize("limit", [0, -3])
def test_read_of_no_lines_inspects_nothing(backend: BackendProtocol, call: Any, limit: int) -> None:
    call(backend, "write", "/a.md", "one\ntwo")
    result = call(backend, "read", "/a.md", 0, limit)
    assert (result.error, result.file_data["content"], result.no_lines_requested) == (None, "", True)


def test_blank_lines_of_a_file_with_text_are_a_window(backend: BackendProtocol, call: Any) -> None:
    call(backend, "write", "/a.md", "\n\n\ntext\n")
    result = call(backend, "read", "/a.md", 1, 2)
    assert (result.file_data["content"], result.start_line, result.end_line, result.total_lines) == ("\n\n", 2, 3, 4)


def test_lines_end_at_newlines_alone_in_reads_and_searches(backend: BackendProtocol, call: Any) -> None:
    call(backend, "write", "/a.md", "one\u2028still one\x0cstill one\ntwo needle\n")
    assert call(backend, "read", "/a.md").total_lines == 2
    assert call(backend, "grep", "needle").matches == [{"path": "/a.md", "line": 2, "text": "two needle"}]


def test_line_endings_are_shown_as_newlines_and_kept_by_edits(backend: BackendProtocol, call: Any) -> None:
    backend.upload_files([("/a.md", b"one\r\ntwo\r\nthree\n")])
    assert call(backend, "read", "/a.md").file_data["content"] == "one\ntwo\nthree\n"
    assert call(backend, "edit", "/a.md", "one\ntwo", "1\n2").occurrences == 1
    assert backend.download_files(["/a.md"])[0].content == b"1\r\n2\r\nthree\n"


def test_edit_that_matches_nothing_or_several_places_changes_nothing(backend: BackendProtocol, call: Any) -> None:
    call(backend, "write", "/a.md", "ab ab")
    assert call(backend, "edit", "/a.md", "x", "y").error == "Error: String not found in file: 'x'"
    assert call(backend, "edit", "/a.md", "ab", "y").error == utils.perform_string_replacement("ab ab", "ab", "y")
    assert call(backend, "edit", "/a.md", "", "y").error.startswith("Error: old_string cannot be empty")
    assert call(backend, "read", "/a.md").file_data["content"] == "ab ab"


def test_edit_of_all_places_counts_them(backend: BackendProtocol, call: Any) -> None:
    call(backend, "write", "/a.md", "ab ab")
    assert call(backend, "edit", "/a.md", "ab", "y", True).occurrences == 2
    assert call(backend, "edit", "/a.md", "y y", "ab", replace_all=True).occurrences == 1
    assert call(backend, "read", "/a.md").file_data["content"] == "ab"


def test_edit_of_missing_file_says_so(backend: BackendProtocol, call: Any) -> None:
    assert call(backend, "edit", "/a.md", "x", "y").error == "Error: File '/a.md' not found"


def test_listing_shows_one_level_in_path_order(backend: BackendProtocol, call: Any) -> None:
    for path in ("/b.md", "/a/deep/x.md", "/a.md"):
        call(backend, "write", path, "x")
    result = call(backend, "ls", "/")
    assert (result.error, paths(result.entries)) == (None, ["/a.md", "/a/", "/b.md"])
    assert [entry["is_dir"] for entry in result.entries] == [False, True, False]
    assert paths(call(backend, "ls", "/a").entries) == paths(call(backend, "ls", "/a/").entries) == ["/a/deep/"]


def test_listing_gives_sizes_in_bytes(backend: BackendProtocol, call: Any) -> None:
    call(backend, "write", "/a.md", "é")
    backend.upload_files([("/b.bin", b"\xff\x00\xfe")])
    assert [entry["size"] for entry in call(backend, "ls", "/").entries] == [2, 3]
    assert [entry["size"] for entry in call(backend, "glob", "*").matches] == [2, 3]


def test_delete_removes_a_file_or_everything_beneath_a_directory(backend: BackendProtocol, call: Any) -> None:
    for path in ("/a/x.md", "/a/b/y.md", "/ab.md"):
        call(backend, "write", path, "x")
    assert call(backend, "delete", "/a").path == "/a"
    assert paths(call(backend, "glob", "**").matches) == ["/ab.md"]
    assert call(backend, "delete", "/ab.md").path == "/ab.md"
    assert "'/ab.md' not found" in call(backend, "delete", "/ab.md").error


def test_deleted_directory_is_no_longer_listed(backend: BackendProtocol, call: Any) -> None:
    call(backend, "write", "/a/b/x.md", "x")
    call(backend, "write", "/c.md", "x")
    assert paths(call(backend, "ls", "/").entries) == ["/a/", "/c.md"]
    call(backend, "delete", "/a")
    assert paths(call(backend, "ls", "/").entries) == ["/c.md"]


GLOBS = {
    "*.md": ["/.git/z.md", "/a.md", "/src/b.md", "/src/deep/c.md"],
    "**/*.md": ["/a.md", "/src/b.md", "/src/deep/c.md"],
    "/*.md": ["/a.md"],
    "src/*.md": ["/src/b.md"],
    "*/deep/*": ["/src/deep/c.md"],
    ".*": ["/.env"],
    ".git/*": ["/.git/z.md"],
    "{a,b}.md": ["/a.md", "/src/b.md"],
    "{.env,a.md}": ["/.env", "/a.md"],
    "[!a].md": ["/.git/z.md", "/src/b.md", "/src/deep/c.md"],
    "!a.md": [],
    "*.txt": [],
}


@pytest.mark.parametrize("pattern", GLOBS)
def test_glob_has_the_rules_of_deepagents(backend: BackendProtocol, call: Any, pattern: str) -> None:
    for path in ("/a.md", "/src/b.md", "/src/deep/c.md", "/.env", "/.git/z.md"):
        call(backend, "write", path, "x")
    assert paths(call(backend, "glob", pattern).matches) == GLOBS[pattern]


def test_glob_from_a_directory_is_relative_to_it(backend: BackendProtocol, call: Any) -> None:
    for path in ("/a.md", "/src/b.md", "/src/deep/c.md"):
        call(backend, "write", path, "x")
    assert paths(call(backend, "glob", "*.md", "/src").matches) == ["/src/b.md", "/src/deep/c.md"]
    assert paths(call(backend, "glob", "/*.md", "/src/").matches) == ["/src/b.md"]
    assert call(backend, "glob", "*.md", "/nowhere").matches == []


def test_refused_pattern_is_an_error_and_not_an_exception(backend: BackendProtocol, call: Any) -> None:
    call(backend, "write", "/a.md", "x")
    assert "../*.md" in call(backend, "glob", "../*.md").error
    assert "../*.md" in call(backend, "grep", "x", None, "../*.md").error


def test_grep_is_literal_and_by_line(backend: BackendProtocol, call: Any) -> None:
    call(backend, "write", "/a.md", "a.b\naxb\na.b again\n")
    found = call(backend, "grep", "a.b").matches
    assert found == [{"path": "/a.md", "line": 1, "text": "a.b"}, {"path": "/a.md", "line": 3, "text": "a.b again"}]


def test_grep_stops_at_its_limit_and_says_so(backend: BackendProtocol, call: Any) -> None:
    for path in ("/a.md", "/b.md"):
        call(backend, "write", path, "hit\nhit\n")
    three = call(backend, "grep", "hit", max_count=3)
    assert (len(three.matches), three.truncated) == (3, True)
    four = call(backend, "grep", "hit", max_count=4)
    assert (len(four.matches), four.truncated) == (4, False)


def test_grep_filters_files_and_directories(backend: BackendProtocol, call: Any) -> None:
    for path in ("/a.md", "/a.py", "/src/b.md"):
        call(backend, "write", path, "hit")
    assert paths(call(backend, "grep", "hit", "/", "*.md").matches) == ["/a.md", "/src/b.md"]
    assert paths(call(backend, "grep", "hit", "/src").matches) == ["/src/b.md"]
    assert paths(call(backend, "grep", "hit", "/src/b.md").matches) == ["/src/b.md"]
    # A file that is named is searched whatever the filter, as ripgrep does.
    assert paths(call(backend, "grep", "hit", "/src/b.md", "*.py").matches) == ["/src/b.md"]
    assert call(backend, "grep", "hit", "/nowhere").matches == []


def test_grep_gives_the_lines_around_matches(backend: BackendProtocol, call: Any) -> None:
    call(backend, "write", "/a.md", "1\nhit 2\n3\nhit 4\n5\n6\n")
    found = call(backend, "grep", "hit", context_lines=1).matches
    assert [(match["line"], match["context_before"], match["context_after"]) for match in found] == [
        (2, [{"line": 1, "text": "1"}], [{"line": 3, "text": "3"}]),
        (4, [{"line": 3, "text": "3"}], [{"line": 5, "text": "5"}]),
    ]
    with pytest.raises(ValueError, match="non-negative"):
        call(backend, "grep", "hit", context_lines=-1)


def test_uploaded_bytes_come_back_whatever_they_are(backend: BackendProtocol, call: Any) -> None:
    files = [("/a.md", "é\r\n".encode()), ("/b.bin", bytes(range(256))), ("/c/empty", b"")]
    assert [response.error for response in call(backend, "upload_files", files)] == [None, None, None]
    responses = call(backend, "download_files", ["/b.bin", "/nowhere", "/a.md", "/c/empty"])
    assert [response.content for response in responses] == [files[1][1], None, files[0][1], b""]
    assert [response.error for response in responses] == [None, "file_not_found", None, None]


def test_images_are_read_whole_in_base64(backend: BackendProtocol, call: Any) -> None:
    backend.upload_files([("/a.png", b"\x89PNG\xff")])
    data = call(backend, "read", "/a.png", 5, 1).file_data
    assert (data["content"], data["encoding"]) == ("iVBOR/8=", "base64")


def test_override_of_a_synchronous_method_reaches_its_asynchronous_twin(backend: BackendProtocol) -> None:
    vars(backend)["glob"] = lambda pattern, path=None: (pattern, path)
    assert asyncio.run(backend.aglob("*", "/x")) == ("*", "/x")
