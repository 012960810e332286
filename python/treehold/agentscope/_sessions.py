"""Agents, their sessions and states, schedules and teams."""

from __future__ import annotations

import warnings
import weakref
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

from agentscope.app.storage import (
    AgentRecord,
    ScheduleRecord,
    SessionConfig,
    SessionOrigin,
    SessionRecord,
    TeamRecord,
)
from agentscope.state import AgentState

from treehold import Batch, Row
from treehold.agentscope._core import encoded, naive_utc, utc_now
from treehold.agentscope._keys import Space, checked, joined, split
from treehold.agentscope._removal import Removal, Spaces
from treehold.agentscope._rows import decoded
from treehold.agentscope.errors import SessionNotFound
from treehold.errors import Conflict

Slot = tuple[Space, str]


class _Versions:
    """Which version of which session's state an `AgentState` in memory is based on."""

    def __init__(self) -> None:
        self._of: dict[int, tuple[weakref.ref[AgentState], Slot, int]] = {}

    def note(self, state: AgentState, slot: Slot, version: int) -> None:
        identity = id(state)

        def forget(reference: weakref.ref[AgentState]) -> None:
            noted = self._of.get(identity)
            if noted is not None and noted[0] is reference:
                del self._of[identity]

        self._of[identity] = (weakref.ref(state, forget), slot, version)

    def of(self, state: AgentState, slot: Slot) -> int | None:
        noted = self._of.get(id(state))
        return noted[2] if noted is not None and noted[0]() is state and noted[1] == slot else None


class Sessions(Spaces):
    """The part of the storage for agents, sessions, schedules and teams."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._versions = _Versions()

    async def upsert_agent(self, user_id: str, agent_record: AgentRecord) -> str:
        """Creates or replaces an agent."""
        await self._upsert(AgentRecord, self._agents(user_id), agent_record)
        return agent_record.id

    async def list_agents(self, user_id: str) -> list[AgentRecord]:
        """Returns the user's agents without those that were made for a team."""
        return [record for record in await self._list(AgentRecord, self._agents(user_id)) if record.source == "user"]

    async def get_agent(self, user_id: str, agent_id: str) -> AgentRecord | None:
        """Returns an agent, if it exists."""
        return await self._get(AgentRecord, self._agents(user_id), agent_id)

    async def delete_agent(self, user_id: str, agent_id: str) -> bool:
        """Deletes an agent with its sessions and schedules in one commit, and returns whether it existed."""
        return await self._remove(lambda removal: removal.agent(user_id, agent_id))

    async def upsert_session(
        self,
        user_id: str,
        agent_id: str,
        config: SessionConfig,
        state: AgentState | None = None,
        session_id: str | None = None,
        origin: SessionOrigin | None = None,
        source: str | None = None,
        source_schedule_id: str | None = None,
        source_chat_id: str | None = None,
        source_chat_name: str | None = None,
        source_channel_id: str | None = None,
    ) -> SessionRecord:
        """Creates a session, or gives an existing one a configuration and, if it is given, a state."""
        fresh = SessionRecord.model_validate(
            {
                "user_id": user_id,
                "agent_id": agent_id,
                "config": config,
                **({"id": session_id} if session_id else {}),
                **_origin(origin, source, source_schedule_id, source_channel_id, source_chat_id, source_chat_name),
            }
        )
        sessions, states, identity = self._sessions(user_id), self._states(user_id), checked("session id", fresh.id)
        created = naive_utc(fresh.created_at)

        async def plan(batch: Batch) -> tuple[SessionRecord, bool]:
            row, state_row = await self._row(sessions, identity), await self._row(states, identity)
            record = fresh if row is None else decoded(SessionRecord, row)
            if row is None:
                record.created_at = created
            record.updated_at, record.config = utc_now(), config
            batch.require(sessions, identity, None if row is None else row.version)
            batch.put(sessions, identity, encoded(record, exclude={"state"}))
            if row is None:
                for space in self._index_of(record):
                    batch.put(space, identity, b"")
            if state is not None or state_row is None:
                record.state = AgentState() if state is None else state
                self._put_state(batch, states, identity, record.state, state_row)
                return record, True
            record.state = decoded(AgentState, state_row)
            self._versions.note(record.state, (states, identity), state_row.version)
            return record, False

        (record, wrote_state), versions = await self._rows.committed(plan)
        if wrote_state:
            self._versions.note(record.state, (states, identity), versions[-1])
        return record

    async def update_session_state(self, user_id: str, agent_id: str, session_id: str, state: AgentState) -> None:
        """Replaces the state of a session.

        A state that was read from this storage replaces only the version that was read: `Conflict` means that another process
        saved the session since. A state that the caller made itself replaces whatever there is.
        """
        sessions, states = self._sessions(user_id), self._states(user_id)

        async def plan(batch: Batch) -> None:
            row, state_row = await self._row(sessions, session_id), await self._row(states, session_id)
            if row is None:
                raise SessionNotFound(f"there is no session `{session_id}`; create it with `upsert_session`")
            batch.require(sessions, session_id, True)
            self._put_state(batch, states, session_id, state, state_row)

        _, versions = await self._rows.committed(plan)
        self._versions.note(state, (states, session_id), versions[-1])

    def _put_state(self, batch: Batch, states: Space, key: str, state: AgentState, row: Row | None) -> None:
        based_on, present = self._versions.of(state, (states, key)), None if row is None else row.version
        if based_on is not None and based_on != present:
            raise Conflict(
                f"another process saved the state of session `{key}` since it was read; read the session and repeat the turn",
                current_version=present,
            )
        batch.require(states, key, present).put(states, key, encoded(state))

    async def get_session(self, user_id: str, agent_id: str, session_id: str) -> SessionRecord | None:
        """Returns a session with its state, if it exists."""
        found = await self._sessions_at(user_id, [checked("session id", session_id)])
        return found[0] if found else None

    async def set_session_team_id(self, user_id: str, session_id: str, team_id: str | None) -> None:
        """Sets or clears the team of a session, if it exists."""
        sessions = self._sessions(user_id)

        async def plan(batch: Batch) -> None:
            row = await self._row(sessions, session_id)
            if row is None:
                return
            record = decoded(SessionRecord, row)
            if record.team_id != team_id:
                record.team_id, record.updated_at = team_id, utc_now()
                batch.require(sessions, session_id, row.version)
                batch.put(sessions, session_id, encoded(record, exclude={"state"}))

        await self._rows.changed(plan)

    async def list_sessions(self, user_id: str, agent_id: str) -> list[SessionRecord]:
        """Returns the sessions of an agent, newest first."""
        return await self._sessions_in(user_id, self._sessions_of(user_id, "agent", agent_id))

    async def list_sessions_by_schedule(self, user_id: str, schedule_id: str) -> list[SessionRecord]:
        """Returns the sessions that a schedule started, newest first."""
        return await self._sessions_in(user_id, self._sessions_of(user_id, "schedule", schedule_id))

    async def list_sessions_by_channel(self, user_id: str, channel_id: str) -> list[SessionRecord]:
        """Returns the sessions that a channel opened, newest first."""
        return await self._sessions_in(user_id, self._sessions_of(user_id, "channel", channel_id))

    async def delete_session(self, user_id: str, agent_id: str, session_id: str) -> bool:
        """Deletes a session with its messages, and the team that it leads, in one commit. Returns whether it existed."""
        return await self._remove(lambda removal: removal.session(user_id, session_id))

    @asynccontextmanager
    async def turn(self, user_id: str, agent_id: str, session_id: str) -> AsyncGenerator[SessionRecord, None]:
        """Reads a session for one turn of its agent and saves its state at the end.

        Give the record's `state` to the agent. The state is also saved when the turn fails, and the turn's own error is raised
        even if that fails too. `Conflict` means that another process saved the session during the turn; its state stays.
        """
        record = await self.get_session(user_id, agent_id, session_id)
        if record is None:
            raise SessionNotFound(f"there is no session `{session_id}`; create it with `upsert_session`")
        try:
            yield record
        except BaseException:
            with suppress(Exception):
                await self.update_session_state(user_id, agent_id, session_id, record.state)
            raise
        await self.update_session_state(user_id, agent_id, session_id, record.state)

    async def upsert_schedule(self, user_id: str, record: ScheduleRecord) -> str:
        """Creates or replaces a schedule."""
        schedules, created = self._schedules(user_id), naive_utc(record.created_at)

        async def plan(batch: Batch) -> None:
            await self._stamp(batch, ScheduleRecord, schedules, record, created)
            batch.put(schedules, record.id, encoded(record)).put(await self._all_schedules(), joined(user_id, record.id), b"")

        await self._rows.changed(plan)
        return record.id

    async def get_schedule(self, user_id: str, schedule_id: str) -> ScheduleRecord | None:
        """Returns a schedule, if it exists."""
        return await self._get(ScheduleRecord, self._schedules(user_id), schedule_id)

    async def list_schedules(self, user_id: str) -> list[ScheduleRecord]:
        """Returns the user's schedules."""
        return await self._list(ScheduleRecord, self._schedules(user_id))

    async def list_all_schedules(self) -> list[ScheduleRecord]:
        """Returns the schedules of all users."""
        by_user: dict[str, list[str]] = {}
        for key in await self._rows.keys(await self._all_schedules()):
            user_id, schedule_id = split(key)
            by_user.setdefault(user_id, []).append(schedule_id)
        found: list[ScheduleRecord] = []
        for user_id, schedules in by_user.items():
            rows = await self._rows.get_many(self._schedules(user_id), schedules)
            found.extend(decoded(ScheduleRecord, row) for row in rows)
        return found

    async def delete_schedule(self, user_id: str, schedule_id: str) -> bool:
        """Deletes a schedule with its sessions in one commit, and returns whether it existed."""
        return await self._remove(lambda removal: removal.schedule(user_id, schedule_id))

    async def upsert_team(self, user_id: str, record: TeamRecord) -> TeamRecord:
        """Creates or replaces a team."""
        await self._upsert(TeamRecord, self._teams(user_id), record)
        return record

    async def get_team(self, user_id: str, team_id: str) -> TeamRecord | None:
        """Returns a team, if it exists."""
        return await self._get(TeamRecord, self._teams(user_id), team_id)

    async def list_teams(self, user_id: str) -> list[TeamRecord]:
        """Returns the user's teams."""
        return await self._list(TeamRecord, self._teams(user_id))

    async def delete_team(self, user_id: str, team_id: str) -> bool:
        """Deletes a team, the agents made for it and the sessions it borrowed, in one commit. Returns whether it existed."""
        return await self._remove(lambda removal: removal.team(user_id, team_id))

    async def _remove(self, start: Callable[[Removal], Awaitable[bool]]) -> bool:
        async def plan(batch: Batch) -> bool:
            removal = Removal(self, batch)
            existed = await start(removal)
            removal.finish()
            return existed

        return await self._rows.changed(plan)

    async def _sessions_in(self, user_id: str, index: Space) -> list[SessionRecord]:
        found = await self._sessions_at(user_id, await self._rows.keys(index))
        return sorted(found, key=lambda record: record.created_at, reverse=True)

    async def _sessions_at(self, user_id: str, keys: list[str]) -> list[SessionRecord]:
        states = self._states(user_id)
        by_key = {row.key: row for row in await self._rows.get_many(states, keys)}
        found: list[SessionRecord] = []
        for row in await self._rows.get_many(self._sessions(user_id), keys):
            state = by_key.get(row.key)
            if state is None:
                continue  # Deleted, or created, between the two reads.
            record = decoded(SessionRecord, row)
            record.state = decoded(AgentState, state)
            record.updated_at = max(record.updated_at, naive_utc(state.updated_at))
            self._versions.note(record.state, (states, row.key), state.version)
            found.append(record)
        return found


def _origin(
    origin: SessionOrigin | None,
    source: str | None,
    schedule_id: str | None,
    channel_id: str | None,
    chat_id: str | None,
    chat_name: str | None,
) -> dict[str, Any]:
    """Returns the fields of a record that say how the session came to be."""
    if origin is not None:
        return {"origin": origin}
    flat = {
        "source_schedule_id": schedule_id,
        "source_channel_id": channel_id,
        "source_chat_id": chat_id,
        "source_chat_name": chat_name,
    }
    if source is None and not any(flat.values()):
        return {"origin": {"type": "user"}}
    warnings.warn("the arguments `source…` are deprecated; pass `origin`", DeprecationWarning, stacklevel=3)
    return {"source": source or "user", **flat}
