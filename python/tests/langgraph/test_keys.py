"""How ids become keys."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from treehold import InvalidArgument
from treehold.langgraph import _keys as keys

IDS = st.text(min_size=1, max_size=12).filter(lambda text: not any("\ud800" <= character <= "\udfff" for character in text))


@given(IDS, IDS)
@example("a", "a\x00")
@example("a", "aa")
@example("\x7f", "~")
@example("\x80", "\x7f")
@example("\U0010ffff", "\uffff")
def test_descending_keys_sort_in_the_opposite_order(one: str, other: str) -> None:
    encoded = keys.descending(one).encode("utf-8"), keys.descending(other).encode("utf-8")
    assert (one < other) == (encoded[0] > encoded[1])
    assert (one == other) == (encoded[0] == encoded[1])
    assert not encoded[1].startswith(encoded[0]) or one == other
    assert keys.SEPARATOR not in keys.descending(one) and "\x00" not in keys.descending(one)


@given(IDS, IDS)
def test_parts_and_components_are_injective(one: str, other: str) -> None:
    assert (keys.part(one, "part") == keys.part(other, "part")) == (one == other)
    assert (keys.component(one) == keys.component(other)) == (one == other)
    assert keys.SEPARATOR not in keys.part(one, "part") and "\x00" not in keys.part(one, "part")


def test_uuid_keeps_its_length() -> None:
    checkpoint_id = "1ef4f797-8335-6428-8001-8a1503f9b875"
    assert len(keys.descending(checkpoint_id)) == len(checkpoint_id) + 2


def test_long_texts_become_digests() -> None:
    assert len(keys.part("x" * 100_000, "task id")) < 100
    assert keys.is_digest(keys.component("x" * 100_000))
    assert keys.component("~" + "a" * 64) != "~" + "a" * 64
    assert keys.component("") != keys.component("~")


@pytest.mark.parametrize("checkpoint_id", ["", "x" * 500, "\ud800"])
def test_checkpoint_id_that_has_no_order_is_refused(checkpoint_id: str) -> None:
    with pytest.raises(InvalidArgument):
        keys.descending(checkpoint_id)
