"""The storage on a store that two storages share, as two processes would."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest
from agentscope.app.storage import (
    AgentData,
    AgentRecord,
    EmbeddingModelConfig,
    KnowledgeBaseData,
    KnowledgeBaseRecord,
    KnowledgeDocumentData,
    KnowledgeDocumentRecord,
    ScheduleOrigin,
    SessionConfig,
    SkillRecord,
    StorageBase,
    TeamData,
    TeamMember,
    TeamRecord,
)
from agentscope.message import UserMsg
from agentscope.state import AgentState

import treehold
from treehold.agentscope import NameTaken, SessionNotFound, TreeholdStorage

CONFIG = SessionConfig(workspace_id="w")


@pytest.fixture
async def two(tmp_path: Path) -> AsyncIterator[tuple[TreeholdStorage, TreeholdStorage]]:
    url = f"sqlite:{tmp_path / 'agents.db'}"
    async with TreeholdStorage(url) as one, TreeholdStorage(url) as other:
        yield one, other


def agent(name: str = "a", user: str = "u") -> AgentRecord:
    return AgentRecord(id=name, user_id=user, data=AgentData(name=name))


def test_storage_leaves_no_method_of_the_interface_to_its_defaults() -> None:
    public = [name for name in vars(StorageBase) if not name.startswith("_")]
    assert len(public) > 60
    assert [name for name in public if getattr(TreeholdStorage, name) is getattr(StorageBase, name)] == []
    assert not TreeholdStorage.__abstractmethods__


async def test_storage_before_async_with_says_what_to_do() -> None:
    with pytest.raises(treehold.InvalidArgument, match="async with"):
        _ = TreeholdStorage("memory:").store


async def test_state_that_another_process_saved_is_not_overwritten(two: tuple[TreeholdStorage, TreeholdStorage]) -> None:
    one, other = two
    session = await one.upsert_session("u", "a", CONFIG)
    mine, theirs = await one.get_session("u", "a", session.id), await other.get_session("u", "a", session.id)
    assert mine is not None and theirs is not None
    theirs.state.summary = "theirs"
    await other.update_session_state("u", "a", session.id, theirs.state)
    mine.state.summary = "mine"
    with pytest.raises(treehold.Conflict):
        await one.update_session_state("u", "a", session.id, mine.state)
    kept = await one.get_session("u", "a", session.id)
    assert kept is not None and kept.state.summary == "theirs"


async def test_state_saved_twice_by_one_process_conflicts_with_nobody(two: tuple[TreeholdStorage, TreeholdStorage]) -> None:
    one, _ = two
    session = await one.upsert_session("u", "a", CONFIG)
    for text in ("first", "second"):
        session.state.summary = text
        await one.update_session_state("u", "a", session.id, session.state)
    kept = await one.get_session("u", "a", session.id)
    assert kept is not None and kept.state.summary == "second"


async def test_configuration_change_does_not_conflict_with_a_running_turn(two: tuple[TreeholdStorage, TreeholdStorage]) -> None:
    one, other = two
    session = await one.upsert_session("u", "a", CONFIG)
    async with one.turn("u", "a", session.id) as record:
        await other.upsert_session("u", "a", SessionConfig(workspace_id="w", name="renamed"), session_id=session.id)
        record.state.summary = "done"
    kept = await other.get_session("u", "a", session.id)
    assert kept is not None and (kept.config.name, kept.state.summary) == ("renamed", "done")


async def test_failed_turn_saves_its_state_and_raises_its_own_error(two: tuple[TreeholdStorage, TreeholdStorage]) -> None:
    one, other = two
    session = await one.upsert_session("u", "a", CONFIG)
    with pytest.raises(ZeroDivisionError):
        async with one.turn("u", "a", session.id) as record:
            record.state.summary = "half"
            raise ZeroDivisionError
    kept = await other.get_session("u", "a", session.id)
    assert kept is not None and kept.state.summary == "half"


async def test_missing_session_raises_what_agentscope_catches(two: tuple[TreeholdStorage, TreeholdStorage]) -> None:
    with pytest.raises(SessionNotFound) as caught:
        await two[0].update_session_state("u", "a", "none", AgentState())
    assert isinstance(caught.value, KeyError) and caught.value.code == "not_found"


async def test_messages_of_two_processes_at_once_are_all_kept_in_one_order(two: tuple[TreeholdStorage, TreeholdStorage]) -> None:
    await asyncio.gather(
        *(storage.upsert_message("u", "s", UserMsg(id=f"{who}{n}", name="u", content="x")) for n in range(8) for who, storage in enumerate(two))
    )
    seen, _ = await two[0].list_messages("u", "s")
    assert sorted(message.id for message in seen) == sorted(f"{who}{n}" for n in range(8) for who in range(2))
    paged: list[str] = []
    before: str | None = None
    while True:
        page, more = await two[1].list_messages("u", "s", limit=3, before=before)
        paged = [message.id for message in page] + paged
        if not more:
            break
        before = page[0].id
    assert paged == [message.id for message in seen]


async def test_name_that_two_processes_claim_at_once_goes_to_one(two: tuple[TreeholdStorage, TreeholdStorage]) -> None:
    def skill(name: str) -> SkillRecord:
        return SkillRecord.model_validate(
            {"id": name, "user_id": "u", "name": "pdf", "description": "", "markdown": "", "source": "/pdf", "path": "/pdf"}
        )

    results = await asyncio.gather(
        two[0].upsert_skill("u", skill("1")), two[1].upsert_skill("u", skill("2")), return_exceptions=True
    )
    assert sorted(type(result) for result in results if not isinstance(result, str)) == [NameTaken]
    assert len(await two[0].list_skills("u")) == 1


async def test_lease_that_two_processes_take_at_once_goes_to_one(two: tuple[TreeholdStorage, TreeholdStorage]) -> None:
    base = KnowledgeBaseRecord(
        id="b",
        user_id="u",
        data=KnowledgeBaseData(
            name="b", collection_name="c", embedding_model_config=EmbeddingModelConfig(type="t", credential_id="c", model="m", dimensions=8)
        ),
    )
    document = KnowledgeDocumentRecord(
        id="d", user_id="u", knowledge_base_id="b", data=KnowledgeDocumentData(filename="f", size=1, blob_uri="local://f")
    )
    with pytest.raises(treehold.NotFound):
        await two[0].upsert_knowledge_document("u", document)
    await two[0].upsert_knowledge_base("u", base)
    await two[0].upsert_knowledge_document("u", document)
    taken = await asyncio.gather(
        *(storage.acquire_knowledge_document_lease("u", "b", "d", f"n{n}", timedelta(minutes=1)) for n, storage in enumerate(two))
    )
    assert sorted(taken) == [False, True]


async def test_deleted_team_takes_its_agents_and_frees_its_leader(two: tuple[TreeholdStorage, TreeholdStorage]) -> None:
    one, other = two
    for name in ("leader", "made", "guest"):
        await one.upsert_agent("u", agent(name))
        await one.upsert_session("u", name, CONFIG, session_id=f"s-{name}")
    members = [
        TeamMember(owner_id="u", agent_id="made", session_id="s-made", role="created"),
        TeamMember(owner_id="u", agent_id="guest", session_id="s-guest", role="invited"),
    ]
    await one.upsert_team("u", TeamRecord(id="t", user_id="u", session_id="s-leader", data=TeamData(name="t", members=members)))
    await one.set_session_team_id("u", "s-leader", "t")
    await one.upsert_message("u", "s-made", UserMsg(id="m", name="u", content="x"))
    assert await other.delete_team("u", "t")
    assert [record.id for record in await one.list_agents("u")] == ["guest", "leader"]
    assert await one.get_session("u", "guest", "s-guest") is None
    assert await one.get_message("u", "s-made", "m") is None
    leader = await one.get_session("u", "leader", "s-leader")
    assert leader is not None and leader.team_id is None


HOSTILE = ["a/b", "..", ".", "%2F", "a\nb", "users", "é", "all", "x" * 256]


@pytest.mark.parametrize("identifier", HOSTILE)
async def test_hostile_identifier_names_only_its_own_records(identifier: str) -> None:
    storage = TreeholdStorage(treehold.Store.open("memory:"))
    for user in (identifier, "plain"):
        await storage.upsert_agent(user, agent(identifier, user))
        origin = ScheduleOrigin(schedule_id=identifier)
        await storage.upsert_session(user, identifier, CONFIG, session_id=identifier, origin=origin)
        await storage.upsert_message(user, identifier, UserMsg(id=identifier, name="u", content=user))
    assert await storage.delete_agent("plain", identifier)
    kept = await storage.get_session(identifier, identifier, identifier)
    assert kept is not None and kept.origin == ScheduleOrigin(schedule_id=identifier)
    assert [record.id for record in await storage.list_sessions_by_schedule(identifier, identifier)] == [identifier]
    assert await storage.get_message("plain", identifier, identifier) is None
    message = await storage.get_message(identifier, identifier, identifier)
    assert message is not None and message.get_text_content() == identifier


@pytest.mark.parametrize("identifier", ["", "a\0b", "\ud800", "x" * 257])
async def test_identifier_that_cannot_be_stored_is_refused_with_a_reason(identifier: str) -> None:
    storage = TreeholdStorage(treehold.Store.open("memory:"))
    with pytest.raises(treehold.InvalidArgument):
        await storage.get_agent(identifier, "a")
    with pytest.raises(treehold.InvalidArgument):
        await storage.get_agent("u", identifier)


async def test_list_over_its_limit_is_refused_not_cut() -> None:
    storage = TreeholdStorage(treehold.Store.open("memory:"), list_max=2)
    for name in "abc":
        await storage.upsert_agent("u", agent(name))
    with pytest.raises(treehold.TooLarge, match="list_max"):
        await storage.list_agents("u")
