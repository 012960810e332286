"""Random histories of items against a dict."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test
from langgraph.store.base import GetOp, ListNamespacesOp, MatchCondition, PutOp, SearchOp

from treehold import Conflict, Store
from treehold.langgraph import TreeholdStore

LABELS = st.sampled_from(("a", "ab", "b", "a/b", "a%", "*x", "é\n"))
NAMESPACES = st.lists(LABELS, max_size=3).map(tuple)
PATTERNS = st.lists(LABELS | st.just("*"), max_size=3).map(tuple)
KEYS = st.sampled_from(("k", "k2", "", "\x00", "\x01%00", "a/b", "K"))
VALUES = st.fixed_dictionaries(
    {"n": st.integers(-2, 2) | st.sampled_from((0.5, True, None, "1", [1, "x"])), "s": st.sampled_from(("a", "b", "ab"))},
    optional={"o": st.fixed_dictionaries({"p": st.integers(0, 2)})},
)
FILTERS = st.sampled_from(
    (
        None,
        {},
        {"n": 1},
        {"n": True},
        {"n": [1, "x"]},
        {"n": {"$gte": 0}},
        {"n": {"$gt": -1.5, "$lte": 1}},
        {"n": {"$ne": None}},
        {"n": {"$lt": float("inf")}},
        {"s": {"$gt": "a"}},
        {"s": "a", "n": {"$ne": 0}},
        {"o": {"p": 1}},
        {"o": {"p": {"$lt": 2}}},
        {"missing": {"$ne": 1}},
        {"missing": None},
    )
)


def is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def equals(value: Any, expected: Any) -> bool:
    if is_number(value) != is_number(expected):
        return False
    return bool(value == expected) if is_number(value) else type(value) is type(expected) and value == expected


def compare(value: Any, name: str, operand: Any) -> bool:
    if name == "$ne":
        return not equals(value, operand)
    if not (is_number(value) and is_number(operand) or isinstance(value, str) and isinstance(operand, str)):
        return False
    return bool({"$gt": value > operand, "$gte": value >= operand, "$lt": value < operand, "$lte": value <= operand}[name])


def matches(value: Any, wanted: Any) -> bool:
    for field, expected in (wanted or {}).items():
        found = value.get(field, ...) if isinstance(value, dict) else ...
        if isinstance(expected, dict) and any(name.startswith("$") for name in expected):
            if not all(compare(found, name, operand) for name, operand in expected.items()):
                return False
        elif isinstance(expected, dict):
            if not isinstance(found, dict) or not matches(found, expected):
                return False
        elif not equals(found, expected):
            return False
    return True


def encoded(label: str) -> bytes:
    """Encodes a label as the store sorts it."""
    escaped = "".join(f"%{byte:02X}" if chr(byte) in "%/" or byte < 32 else chr(byte) for byte in label.encode("utf-8")) + "/"
    return escaped.encode("latin-1")


def place(entry: tuple[tuple[str, ...], str]) -> tuple[bytes, bytes]:
    namespace, key = entry
    stored = key if key and "\x00" not in key and key[0] != "\x01" else "\x01" + key.replace("%", "%25").replace("\x00", "%00")
    return b"".join(map(encoded, namespace)), stored.encode("utf-8")


class Model(RuleBasedStateMachine):
    """Does everything to a store and to a dict, and compares what they return."""

    @initialize()
    def open(self) -> None:
        rows = Store.open("memory:")
        # Neighbours whose items must never show.
        self.neighbours = [TreeholdStore(rows, namespace=name) for name in (("t",), ("t", "item"), ("t", "items2"))]
        for neighbour in self.neighbours:
            neighbour.put(("a",), "k", {"n": 1, "s": "neighbour"})
        self.store = TreeholdStore(rows, namespace=("t", "items"))
        self.items: dict[tuple[tuple[str, ...], str], Any] = {}
        self.created: dict[tuple[tuple[str, ...], str], Any] = {}
        self.turn = 0

    def batch(self, ops: list[Any]) -> list[Any]:
        self.turn += 1
        return asyncio.run(self.store.abatch(ops)) if self.turn % 2 else self.store.batch(ops)

    @rule(puts=st.lists(st.tuples(NAMESPACES, KEYS, VALUES | st.none()), max_size=4), reads=st.lists(st.tuples(NAMESPACES, KEYS), max_size=3))
    def mixed_batch(self, puts: Any, reads: Any) -> None:
        ops: list[Any] = []
        for number in range(max(len(puts), len(reads))):
            ops.extend(PutOp(*put) for put in puts[number : number + 1])
            ops.extend(GetOp(*read) for read in reads[number : number + 1])
        results = self.batch(ops)
        for op, result in zip(ops, results, strict=True):
            if isinstance(op, PutOp):
                assert result is None
                continue
            expected = self.items.get((op.namespace, op.key))
            assert (None if result is None else result.value) == expected
            assert result is None or (result.namespace, result.key) == (op.namespace, op.key)
        for namespace, key, value in puts:
            if value is None:
                self.items.pop((namespace, key), None)
                self.created.pop((namespace, key), None)
            else:
                self.items[namespace, key] = value
        for at in self.items:
            item = self.batch([GetOp(*at)])[0]
            assert item is not None
            # An overwrite keeps the time of creation.
            assert self.created.setdefault(at, item.created_at) == item.created_at <= item.updated_at
            assert json.dumps(item.value) == json.dumps(self.items[at])

    def found(self, prefix: tuple[str, ...], wanted: Any) -> list[tuple[tuple[str, ...], str]]:
        found = [at for at, value in self.items.items() if at[0][: len(prefix)] == prefix and matches(value, wanted)]
        return sorted(found, key=place)

    @rule(prefix=NAMESPACES, wanted=FILTERS, limit=st.integers(0, 4), offset=st.integers(0, 3))
    def search(self, prefix: tuple[str, ...], wanted: Any, limit: int, offset: int) -> None:
        results = self.batch([SearchOp(prefix, wanted, limit, offset)])[0]
        assert [(item.namespace, item.key) for item in results] == self.found(prefix, wanted)[offset : offset + limit]
        assert all(item.value == self.items[item.namespace, item.key] and item.score is None for item in results)

    @rule(prefix=NAMESPACES, wanted=FILTERS, limit=st.integers(1, 3))
    def pages(self, prefix: tuple[str, ...], wanted: Any, limit: int) -> None:
        found, cursor = [], None
        while True:
            page = self.store.search_page(prefix, filter=wanted, limit=limit, after=cursor)
            assert len(page.items) == limit or page.next is None
            found.extend((item.namespace, item.key) for item in page.items)
            cursor = page.next
            if cursor is None:
                break
        assert found == self.found(prefix, wanted)

    @rule(
        conditions=st.lists(st.tuples(st.sampled_from(("prefix", "suffix")), PATTERNS), max_size=2),
        depth=st.none() | st.integers(0, 3),
        limit=st.integers(0, 5),
        offset=st.integers(0, 3),
    )
    def namespaces(self, conditions: Any, depth: int | None, limit: int, offset: int) -> None:
        def is_listed(namespace: tuple[str, ...]) -> bool:
            for kind, path in conditions:
                if len(path) > len(namespace):
                    return False
                labels = namespace[: len(path)] if kind == "prefix" else namespace[len(namespace) - len(path) :]
                if any(wanted not in ("*", label) for wanted, label in zip(path, labels, strict=True)):
                    return False
            return True

        every = {namespace for namespace, _ in self.items if is_listed(namespace)}
        shown = sorted({namespace[:depth] for namespace in every}, key=lambda namespace: place((namespace, "k")))
        op = ListNamespacesOp(tuple(MatchCondition(*condition) for condition in conditions) or None, depth, limit, offset)
        assert self.batch([op])[0] == shown[offset : offset + limit]

    @rule(namespace=NAMESPACES.filter(bool), key=KEYS, value=VALUES, is_current=st.booleans())
    def put_if(self, namespace: tuple[str, ...], key: str, value: Any, is_current: bool) -> None:
        item = self.batch([GetOp(namespace, key)])[0]
        version = None if item is None else item.version
        if is_current:
            self.store.put_if(namespace, key, value, version=version)
            self.items[namespace, key] = value
            return
        try:
            self.store.put_if(namespace, key, value, version=(version or 0) + 1_000_000)
        except Conflict:
            return
        raise AssertionError("a put with another version was not refused")


def test_any_history_of_items_equals_a_dict() -> None:
    checks = settings(max_examples=100, stateful_step_count=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    run_state_machine_as_test(Model, settings=checks)
