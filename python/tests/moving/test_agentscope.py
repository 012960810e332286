"""Rows that the users of agentscope's storage share, which earlier versions stored in a partition of their own."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from agentscope.app.storage import (
    AgentData,
    AgentRecord,
    ChannelRecord,
    EmbeddingModelConfig,
    KnowledgeBaseData,
    KnowledgeBaseRecord,
    KnowledgeDocumentData,
    KnowledgeDocumentRecord,
    ScheduleRecord,
)
from failing import Counting, Failing, Stopped, archived, contents, relocate, versions

from treehold import Batch, InvalidArgument, Store
from treehold.agentscope import NameTaken, TreeholdStorage
from treehold.agentscope._core import SHARED

ROOTS = [("agentscope",), ("acme", "ada"), ("acme", "ada", "agents")]

OLD = datetime.now(timezone.utc) - timedelta(days=2)


def channel(name: str, user: str) -> ChannelRecord:
    routing = {"bindings": [{"match_value": "*", "agent_id": "a"}]}
    session = {"chat_model_config": {}}
    return ChannelRecord.model_validate({"id": name, "channel_type": "chat", "user_id": user, "routing": routing, "session": session})


def schedule(name: str, user: str) -> ScheduleRecord:
    model = {"type": "t", "credential_id": "c", "model": "m", "parameters": {}}
    data = {"name": name, "cron_expression": "0 9 * * *", "chat_model_config": model}
    return ScheduleRecord.model_validate({"id": name, "user_id": user, "agent_id": "a", "data": data})


def base(user: str) -> KnowledgeBaseRecord:
    model = EmbeddingModelConfig(type="t", credential_id="c", model="m", dimensions=8)
    return KnowledgeBaseRecord(id="b", user_id=user, data=KnowledgeBaseData(name="b", collection_name="c", embedding_model_config=model))


def document(name: str, user: str) -> KnowledgeDocumentRecord:
    data = KnowledgeDocumentData(filename="f", size=1, blob_uri="local://f")
    return KnowledgeDocumentRecord(id=name, user_id=user, knowledge_base_id="b", data=data, created_at=OLD)


USERS = ["ann", "bots", "channels", "moving", "schedules", "all", "users"]
"""Some are named like what users share."""


async def fill(storage: TreeholdStorage) -> None:
    for user in USERS:
        await storage.upsert_agent(user, AgentRecord(id="a", user_id=user, data=AgentData(name="a")))
        await storage.upsert_channel(channel(f"c-{user}", user), f"bot-{user}")
        await storage.upsert_schedule(user, schedule("s", user))
        await storage.upsert_knowledge_base(user, base(user))
        await storage.upsert_knowledge_document(user, document("d", user))


def make_old(store: Store, root: tuple[str, ...]) -> None:
    """Moves the rows that users share where an earlier version kept them."""
    for kind in SHARED:
        relocate(store, (*root, "users", "~shared", kind), (*root, "all", kind))


async def check(store: Store, storage: TreeholdStorage, root: tuple[str, ...]) -> None:
    assert sorted(record.id for record in await storage.list_all_channels()) == sorted(f"c-{user}" for user in USERS)
    assert sorted(record.user_id for record in await storage.list_all_schedules()) == sorted(USERS)
    waiting = await storage.list_knowledge_documents_pending_since(datetime.now(timezone.utc))
    assert sorted(record.user_id for record in waiting) == sorted(USERS)
    for user in USERS:
        assert await storage.get_channel_id_by_platform_bot_id(f"bot-{user}") == f"c-{user}"
        assert [record.id for record in await storage.list_channels(user)] == [f"c-{user}"]
    with pytest.raises(NameTaken):
        await storage.upsert_channel(channel("other", "ann"), "bot-bots")
    spaces = {space for space, _ in contents(store)}
    assert {space[: len(root) + 1] for space in spaces} == {(*root, "users")}
    assert {space[len(root) + 1] for space in spaces} == {*USERS, "~shared"}
    assert (*root, "users", "~shared", "moving") not in spaces


@pytest.mark.parametrize("root", ROOTS)
async def test_shared_rows_of_earlier_versions_are_found_and_change_with_those_of_users(store: Store, root: tuple[str, ...]) -> None:
    await fill(TreeholdStorage(store, namespace=root))
    make_old(store, root)
    storage = TreeholdStorage(store, namespace=root)
    await check(store, storage, root)
    before = contents(store), versions(store)
    await check(store, TreeholdStorage(store, namespace=root), root)
    assert (contents(store), versions(store)) == before
    # One partition, for a storage with a root of one component too.
    assert len({space[:2] for space, _ in contents(store)}) == 1
    assert await storage.delete_agent("ann", "a")
    assert await storage.delete_channel("c-ann", "bot-ann")
    assert await storage.delete_knowledge_base("ann", "b")
    assert "ann" not in {record.user_id for record in await storage.list_all_schedules()}
    await storage.upsert_channel(channel("new", "ann"), "bot-ann")
    for user in USERS[1:]:
        await storage.delete_schedule(user, "s")
        await storage.delete_channel(f"c-{user}", f"bot-{user}")
        await storage.delete_knowledge_document(user, "b", "d")
    assert [record.id for record in await storage.list_all_channels()] == ["new"]
    assert await storage.list_all_schedules() == []
    assert await storage.list_knowledge_documents_pending_since(datetime.now(timezone.utc)) == []


async def test_rows_of_a_user_named_like_shared_ones_are_apart(store: Store) -> None:
    storage = TreeholdStorage(store)
    await fill(storage)
    for user in SHARED:
        if user in USERS:
            prefix = ("agentscope", "users", user)
            assert {record.user_id for record in await storage.list_agents(user)} == {user}
            assert prefix not in {space for space, _ in contents(store)}
            # Whoever reads or removes everything of a user leaves what users share.
            for space in store.namespaces(prefix=prefix)[0]:
                store.commit(Batch().delete_prefix(space))
    assert sorted(record.id for record in await storage.list_all_channels()) == sorted(f"c-{user}" for user in USERS)


@pytest.mark.parametrize("user", ["~shared", "_treehold"])
async def test_reserved_user_id_is_refused(store: Store, user: str) -> None:
    storage = TreeholdStorage(store)
    with pytest.raises(InvalidArgument, match="reserved"):
        await storage.upsert_agent(user, AgentRecord(id="a", user_id=user, data=AgentData(name="a")))
    with pytest.raises(InvalidArgument, match="reserved"):
        await storage.upsert_channel(channel("c", user), "bot")
    assert contents(store) == {}


async def test_change_is_the_first_use_of_shared_rows_too(store: Store) -> None:
    await fill(TreeholdStorage(store))
    make_old(store, ("agentscope",))
    storage = TreeholdStorage(store)
    with pytest.raises(NameTaken):
        await storage.upsert_channel(channel("other", "ann"), "bot-bots")
    await check(store, storage, ("agentscope",))


async def test_move_of_shared_rows_that_stops_at_any_commit_continues(store: Store, moment: str) -> None:
    for commits in count():
        for space in store.namespaces()[0]:
            store.commit(Batch().delete_prefix(space))
        await fill(TreeholdStorage(store))
        make_old(store, ("agentscope",))
        storage = TreeholdStorage(store)
        failing: Any = Failing(store, commits, moment)
        storage._store = failing
        try:
            await storage.list_all_channels()
        except Stopped:
            storage._store = store
            await check(store, storage, ("agentscope",))
        else:
            assert commits > 8
            return


async def test_storage_looks_once_for_rows_to_move_and_only_where_users_share_some(store: Store) -> None:
    counting: Any = Counting(store)
    storage = TreeholdStorage(store)
    storage._store = counting
    await storage.get_agent("ann", "a")
    assert counting.calls == ["aget"]
    counting.calls.clear()
    for _ in range(2):
        await storage.get_channel_id_by_platform_bot_id("bot")
    assert counting.calls == ["ascan"] * 4 + ["aget_many", "aget", "aget"]


async def test_archive_has_what_users_share(tmp_path: Path) -> None:
    url = f"sqlite:{tmp_path / 'rows.db'}"
    with Store.open(url) as store:
        await fill(TreeholdStorage(store))
    with Store.open(archived(tmp_path, url)) as store:
        await check(store, TreeholdStorage(store), ("agentscope",))
