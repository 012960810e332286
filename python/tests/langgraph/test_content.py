"""How values become rows: what is stored comes back, and costs what changed."""

from __future__ import annotations

import copy
from datetime import datetime, timezone
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.checkpoint.serde.types import _DeltaSnapshot as DeltaSnapshot

from treehold import Corrupt
from treehold.langgraph import _content as content
from treehold.langgraph._content import ContentCache, ContentCodec, Donor, Inline, Run, Tree, Typed, Whole


class Rows:
    """Content rows in a dict, and what a saver does with a codec."""

    def __init__(self, codec: ContentCodec) -> None:
        self.codec = codec
        self.rows: dict[bytes, Typed] = {}
        self.written = 0

    def names(self, tree: Tree) -> tuple[list[bytes], list[bytes], set[bytes]]:
        names, runs, pages = content.split_names(tree.names), [], set()
        for level in range(tree.level, 0, -1):
            pages.update(names)
            if level == 1:
                runs = names
            names = [name for page in names for name in content.split_names(self.rows[page][1])]
        return names, runs, pages

    def donor(self, place: content.Reference | None) -> Donor:
        if isinstance(place, Whole):
            return Donor([place.name])
        if not isinstance(place, Tree):
            return Donor()
        names, runs, pages = self.names(place)
        return Donor(names, runs, frozenset(pages))

    def put(self, value: Any, last: content.Reference | None = None) -> content.Reference:
        encoded = self.codec.encode(value, self.donor(last))
        self.written = sum(len(payload) for _, payload in encoded.rows.values())
        self.rows.update(encoded.rows)
        place = content.reference(encoded.reference.encoded())
        assert place == encoded.reference
        return place

    def get(self, place: content.Reference, codec: ContentCodec | None = None) -> Any:
        codec = codec or self.codec
        if isinstance(place, Inline):
            return codec.serde.loads_typed(place.typed)
        if isinstance(place, Whole):
            return codec.serde.loads_typed(self.rows[place.name])
        names, runs, _ = self.names(place)
        cached = codec.cache.get(runs or names)
        pieces = []
        for name in runs or names:
            piece = cached.get(name)
            if piece is None and runs:
                chunks = content.split_names(self.rows[name][1])
                piece = Run(name, [codec.chunk(place.container, chunk, self.rows[chunk]) for chunk in chunks])
            elif piece is None:
                piece = codec.chunk(place.container, name, self.rows[name])
            assert not isinstance(piece, bytes)
            pieces.append(piece)
        return codec.value(place, pieces)


def codec(cache_bytes: int = 64 << 20) -> ContentCodec:
    return ContentCodec(JsonPlusSerializer(), ContentCache(cache_bytes))


def file(text: str) -> dict[str, Any]:
    return {"content": text, "encoding": "utf-8", "created_at": "2026-01-01", "modified_at": "2026-01-01"}


def files(count: int, size: int = 1000) -> dict[str, Any]:
    return {f"/d{place % 7}/f{place}.md": file(chr(97 + place % 26) * size) for place in range(count)}


def test_small_value_lies_in_the_record() -> None:
    rows = Rows(codec())
    for value in (None, 1, "a", b"b", [1, 2], {"a": 1}, (1, 2), True, 1.5):
        place = rows.put(value)
        assert isinstance(place, Inline)
        assert rows.get(place) == rows.codec.serde.loads_typed(rows.codec.serde.dumps_typed(value))
    assert not rows.rows


def test_value_reads_the_same_with_and_without_the_cache() -> None:
    rows = Rows(codec())
    entry = {"tuple": (1, 2), "time": datetime(2026, 1, 2, tzinfo=timezone.utc), "float": -0.0, "n": Decimal("1.10")}
    value = {f"k{number}": {**entry, "pad": "x" * 1000} for number in range(100)}
    place = rows.put(value)
    assert repr(rows.get(place)) == repr(rows.get(place, codec(0)))
    assert repr(rows.get(place)) == repr(rows.codec.serde.loads_typed(rows.codec.serde.dumps_typed(value)))
    assert rows.put(value, place) == place
    assert rows.written == 0


def test_large_text_is_one_row_that_the_next_version_shares() -> None:
    rows = Rows(codec())
    place = rows.put("x" * 1000)
    assert isinstance(place, Whole)
    assert rows.put("x" * 1000, place) == place
    assert rows.written == 0


@pytest.mark.parametrize("count", [40, 400, 20_000])
def test_edit_in_many_files_stores_a_chunk_and_its_page(count: int) -> None:
    rows = Rows(codec())
    value = files(count)
    place = rows.put(value)
    assert isinstance(place, Tree)
    assert rows.get(place) == value
    for edited in (0, count // 2, count - 1):
        value = dict(value)
        path = list(value)[edited]
        value[path] = file("edited")
        place = rows.put(value, place)
        assert rows.get(place) == value
        assert list(rows.get(place)) == list(value)
        assert 0 < rows.written < content.CHUNK_BYTES_MAX + 6000


def test_insertion_and_removal_leave_other_chunks_as_they_are() -> None:
    rows = Rows(codec())
    value = files(2000)
    place = rows.put(value)
    for key in ("/d3/f3.md", "/d3/f1004.md"):
        value = {path: entry for path, entry in value.items() if path != key}
        value[f"/new{key}"] = file("new")
        place = rows.put(value, place)
        assert rows.get(place) == value
        assert list(rows.get(place)) == list(value)
        assert 0 < rows.written < 4 * content.CHUNK_BYTES_MAX


def test_insertion_at_the_front_of_a_list_leaves_other_chunks_as_they_are() -> None:
    rows = Rows(codec())
    value = [f"{place} " + "x" * 300 for place in range(3000)]
    place = rows.put(value)
    for changed in (["new", *value], [*value, "last"], value[:1500] + ["middle"] + value[1500:], value[1:]):
        other = rows.put(changed, place)
        assert rows.get(other) == changed
        assert 0 < rows.written < 3 * content.CHUNK_BYTES_MAX


def test_appended_message_does_not_rewrite_the_others() -> None:
    rows = Rows(codec())
    messages: list[Any] = [HumanMessage(content=f"{place} " + "x" * 500, id=str(place)) for place in range(500)]
    place = rows.put(messages)
    assert isinstance(place, Tree)
    messages = [*messages, AIMessage(content="answer", id="answer")]
    place = rows.put(messages, place)
    assert rows.get(place) == messages
    assert 0 < rows.written < 2 * content.CHUNK_BYTES_MAX


def test_message_changed_in_place_is_stored() -> None:
    rows = Rows(codec())
    messages = [HumanMessage(content=f"{place} " + "x" * 500, id=str(place)) for place in range(500)]
    place = rows.put(messages)
    messages[250].content = "changed"
    place = rows.put(messages, place)
    assert rows.get(place)[250].content == "changed"


@pytest.mark.parametrize("change", ["entry", "nested", "type", "order", "bool", "negative_zero"])
def test_entry_changed_in_place_is_stored(change: str) -> None:
    rows = Rows(codec())
    value: dict[str, Any] = {**files(500), "/x": {"n": 1, "l": [1, {"deep": ["a"]}], "f": 0.0, "t": "text", "u": "other"}}
    place = rows.put(value)
    entry = value["/x"]
    match change:
        case "entry":
            entry["t"] = "changed"
        case "nested":
            entry["l"][1]["deep"].append("b")
        case "type":
            entry["n"] = 1.0
        case "bool":
            entry["n"] = True
        case "negative_zero":
            entry["f"] = -0.0
        case _:
            entry["t"] = entry.pop("t")
            entry["n"] = entry.pop("n")
    expected = repr(value)
    place = rows.put(value, place)
    assert repr(rows.get(place)) == expected
    assert repr(rows.get(place, codec())) == expected


def test_field_that_moved_to_the_next_entry_is_stored() -> None:
    rows = Rows(codec())
    value: dict[str, Any] = {**files(100), "/x": {"a": "first", "b": "second"}, "/y": {"c": "third"}}
    place = rows.put(value)
    # The same keys and texts follow each other, in other entries.
    value["/y"] = {"b": value["/x"].pop("b"), **value["/y"]}
    place = rows.put(value, place)
    assert rows.get(place)["/x"] == {"a": "first"}
    assert rows.get(place)["/y"] == {"b": "second", "c": "third"}


def test_value_read_may_be_changed_without_changing_what_is_stored() -> None:
    rows = Rows(codec())
    value: dict[str, Any] = {**files(300), "/x": {"l": [1, {"deep": ["a"]}]}}
    place = rows.put(value)
    expected = copy.deepcopy(value)
    read = rows.get(place)
    read["/x"]["l"][1]["deep"].append("b")
    read["/d0/f0.md"]["content"] = "changed"
    read.clear()
    value["/x"]["l"].clear()
    assert rows.get(place) == expected


def test_value_without_a_cache_is_read_and_shares_what_is_unchanged() -> None:
    rows = Rows(codec(0))
    value = files(1000)
    place = rows.put(value)
    assert rows.get(place) == value
    value = {**value, "/d0/f0.md": file("edited")}
    place = rows.put(value, place)
    assert rows.get(place) == value
    assert 0 < rows.written < content.CHUNK_BYTES_MAX + 6000


def test_snapshot_of_a_delta_channel_is_split_like_its_value() -> None:
    rows = Rows(codec())
    value = files(1000)
    place = rows.put(DeltaSnapshot(value))
    assert isinstance(place, Tree) and place.is_snapshot
    read = rows.get(place)
    assert type(read) is DeltaSnapshot and read.value == value
    place = rows.put(DeltaSnapshot({**value, "/new": file("new")}), place)
    assert 0 < rows.written < content.CHUNK_BYTES_MAX + 6000
    assert rows.put(DeltaSnapshot("small")).is_snapshot
    assert rows.get(rows.put(DeltaSnapshot("small"))) == DeltaSnapshot("small")


def test_encrypted_value_shows_nothing_and_shares_what_is_unchanged() -> None:
    serde = EncryptedSerializer.from_pycryptodome_aes(key=b"0123456789abcdef")
    rows = Rows(ContentCodec(serde, ContentCache(64 << 20)))
    value = {**files(1000), "/secret": file("treasure" * 20)}
    place = rows.put(value)
    assert rows.get(place) == value
    assert not any(b"treasure" in payload or b"aaaa" in payload for _, payload in rows.rows.values())
    value = {**value, "/d0/f0.md": file("edited")}
    place = rows.put(value, place)
    assert 0 < rows.written < content.CHUNK_BYTES_MAX + 6000
    assert rows.get(place, ContentCodec(serde, ContentCache(0))) == value
    messages: list[Any] = [HumanMessage(content=f"{number} " + "x" * 500) for number in range(300)]
    place = rows.put(messages)
    rows.put([*messages, HumanMessage(content="last")], place)
    assert 0 < rows.written < 2 * content.CHUNK_BYTES_MAX


def test_subclass_of_dict_keeps_its_type() -> None:
    class Mine(dict[str, Any]):
        pass

    rows = Rows(ContentCodec(JsonPlusSerializer(pickle_fallback=True), ContentCache(0)))
    value = Mine(files(100))
    assert isinstance(rows.put(value), Whole)


def test_unknown_reference_is_corrupt() -> None:
    with pytest.raises(Corrupt, match="upgrade treehold"):
        content.reference([9, "new"])


ENTRIES = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.floats(allow_nan=False) | st.text(max_size=4) | st.binary(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner, max_size=3),
    max_leaves=6,
)

BIG = st.builds(lambda entry, size: {"entry": entry, "pad": "x" * size}, ENTRIES, st.integers(0, 30_000))


def edits(value: Any, changes: list[tuple[int, int, Any]]) -> Any:
    """Applies changes to a dict or list, some in place."""
    for kind, place, entry in changes:
        if isinstance(value, dict):
            value = dict(value) if kind % 2 else value
            paths = list(value)
            path = paths[place % len(paths)] if paths else "new"
            match kind // 2:
                case 0:
                    value[path] = entry
                case 1:
                    value[f"{path}{place}"] = entry
                case 2:
                    value.pop(path, None)
                case _:
                    if isinstance(value.get(path), dict):
                        value[path]["entry"] = entry
        else:
            value = list(value) if kind % 2 else value
            match kind // 2:
                case 0:
                    value.append(entry)
                case 1:
                    value.insert(place % (len(value) + 1), entry)
                case 2:
                    del value[place % (len(value) + 1) : place % (len(value) + 1) + 1]
                case _:
                    if value and isinstance(value[place % len(value)], dict):
                        value[place % len(value)]["entry"] = entry
    return value


@settings(max_examples=150, deadline=None)
@given(
    st.dictionaries(st.text(max_size=3), BIG, max_size=12) | st.lists(BIG, max_size=12),
    st.lists(st.lists(st.tuples(st.integers(0, 7), st.integers(0, 50), BIG), max_size=4), max_size=4),
    st.sampled_from([0, 40_000, 64 << 20]),
    st.booleans(),
)
def test_any_history_of_a_value_reads_back(
    value: Any, history: list[list[tuple[int, int, Any]]], cache_bytes: int, is_read: bool
) -> None:
    rows = Rows(codec(cache_bytes))
    place: content.Reference | None = None
    stored: list[tuple[content.Reference, str]] = []
    for changes in [[], *history]:
        value = edits(value, changes)
        expected = repr(value)
        place = rows.put(value, place)
        stored.append((place, expected))
        for earlier, text in stored:
            assert repr(rows.get(earlier)) == text
            assert repr(rows.get(earlier, codec(0))) == text
        if is_read:
            value = rows.get(place)
