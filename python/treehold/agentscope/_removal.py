"""What goes with a record: one plan for a deletion and all that depends on it, committed at once."""

# The plan reads rows through the storage's own methods, which are private to the package.
# pyright: reportPrivateUsage=false

from __future__ import annotations

from agentscope.app.storage import (
    ScheduleRecord,
    SessionRecord,
    SOPRecord,
    SOPRunRecord,
    TeamMember,
    TeamRecord,
)

from treehold import Batch
from treehold.agentscope._core import Core, encoded, utc_now
from treehold.agentscope._keys import Space, checked, joined
from treehold.agentscope._rows import decoded


class Spaces(Core):
    """The namespaces of agents, sessions and what refers to them."""

    def _agents(self, user_id: str) -> Space:
        return self._layout.user(user_id, "agents")

    def _sessions(self, user_id: str) -> Space:
        """The sessions without their states."""
        return self._layout.user(user_id, "sessions")

    def _states(self, user_id: str) -> Space:
        """The states of the sessions, under the same keys."""
        return self._layout.user(user_id, "states")

    def _sessions_of(self, user_id: str, what: str, identifier: str) -> Space:
        """The ids of the sessions of an agent, a schedule or a channel."""
        return self._layout.user(user_id, f"sessions-of-{what}", checked(f"{what} id", identifier))

    def _schedules(self, user_id: str) -> Space:
        return self._layout.user(user_id, "schedules")

    async def _all_schedules(self) -> Space:
        return await self._all("schedules")

    def _teams(self, user_id: str) -> Space:
        return self._layout.user(user_id, "teams")

    def _sops(self, user_id: str) -> Space:
        return self._layout.user(user_id, "sops")

    def _runs(self, user_id: str) -> Space:
        return self._layout.user(user_id, "sop-runs")

    def _runs_of(self, user_id: str, sop_id: str) -> Space:
        return self._layout.user(user_id, "runs-of-sop", checked("SOP id", sop_id))

    def _index_of(self, record: SessionRecord) -> list[Space]:
        """Returns the namespaces that list a session."""
        user_id, origin = record.user_id, record.origin
        spaces = [self._sessions_of(user_id, "agent", record.agent_id)]
        if origin.type == "schedule":
            spaces.append(self._sessions_of(user_id, "schedule", origin.schedule_id))
        elif origin.type == "channel":
            spaces.append(self._sessions_of(user_id, "channel", origin.channel_id))
        return spaces


class Removal:
    """A deletion as a plan. Nothing happens before its batch is committed."""

    def __init__(self, spaces: Spaces, batch: Batch) -> None:
        self._in = spaces
        self._batch = batch
        self._gone: set[tuple[Space, str]] = set()
        self._teams: dict[str, dict[str, tuple[TeamRecord, int]]] = {}
        self._scrubbed: set[tuple[str, str]] = set()
        self._detached: dict[tuple[str, str], tuple[SessionRecord, int]] = {}

    async def session(self, user_id: str, session_id: str) -> bool:
        """Plans to delete a session with its state and messages, and the team that it leads."""
        spaces, sessions = self._in, self._in._sessions(user_id)
        row = await spaces._row(sessions, session_id)
        if row is None or not self._first(sessions, session_id):
            return False
        record = decoded(SessionRecord, row)
        self._detached.pop((user_id, session_id), None)
        self._batch.require(sessions, session_id, row.version).delete(sessions, session_id)
        self._batch.delete(spaces._states(user_id), session_id)
        for space in spaces._index_of(record):
            self._batch.delete(space, session_id)
        for kind in ("messages", "message-positions"):
            self._batch.delete_prefix(spaces._layout.user(user_id, kind, session_id))
        if record.team_id is not None:
            team = (await self._user_teams(user_id)).get(record.team_id)
            if team is not None and team[0].session_id == session_id:
                await self.team(user_id, record.team_id)
        return True

    async def agent(self, user_id: str, agent_id: str) -> bool:
        """Plans to delete an agent with its sessions and schedules, and to take it out of its teams."""
        spaces, agents = self._in, self._in._agents(user_id)
        row = await spaces._row(agents, agent_id)
        if not self._first(agents, agent_id):
            return False
        for session_id in await spaces._rows.keys(spaces._sessions_of(user_id, "agent", agent_id)):
            await self.session(user_id, session_id)
        for schedule in await spaces._list(ScheduleRecord, spaces._schedules(user_id)):
            if schedule.agent_id == agent_id:
                await self.schedule(user_id, schedule.id)
        for team_id, (team, _) in (await self._user_teams(user_id)).items():
            members = [member for member in team.data.members if member.agent_id != agent_id]
            legacy = [member for member in team.data.model_dump()["member_ids"] if member != agent_id]
            if (spaces._teams(user_id), team_id) not in self._gone and (
                len(members) != len(team.data.members) or len(legacy) != len(team.data.model_dump()["member_ids"])
            ):
                team.data = team.data.model_copy(update={"members": members, "member_ids": legacy})
                self._scrubbed.add((user_id, team_id))
        if row is None:
            return False
        self._batch.require(agents, agent_id, row.version).delete(agents, agent_id)
        return True

    async def schedule(self, user_id: str, schedule_id: str) -> bool:
        """Plans to delete a schedule with the sessions that it started."""
        spaces, schedules = self._in, self._in._schedules(user_id)
        row = await spaces._row(schedules, schedule_id)
        if row is None or not self._first(schedules, schedule_id):
            return False
        for session_id in await spaces._rows.keys(spaces._sessions_of(user_id, "schedule", schedule_id)):
            await self.session(user_id, session_id)
        self._batch.require(schedules, schedule_id, row.version).delete(schedules, schedule_id)
        self._batch.delete(await spaces._all_schedules(), joined(user_id, schedule_id))
        return True

    async def team(self, user_id: str, team_id: str) -> bool:
        """Plans to delete a team: agents that were made for it go, agents that were invited lose the team's session."""
        spaces, teams = self._in, self._in._teams(user_id)
        present = (await self._user_teams(user_id)).get(checked("team id", team_id))
        if present is None or not self._first(teams, team_id):
            return False
        record, version = present
        self._batch.require(teams, team_id, version).delete(teams, team_id)
        for member in record.data.members or await self._legacy_members(user_id, record):
            if member.role == "created":
                await self.agent(member.owner_id, member.agent_id)
            else:
                await self.session(user_id, member.session_id)
        sessions = spaces._sessions(user_id)
        leader = await spaces._row(sessions, record.session_id)
        if leader is not None and (sessions, record.session_id) not in self._gone:
            session = decoded(SessionRecord, leader)
            session.team_id = None
            self._detached[(user_id, session.id)] = (session, leader.version)
        return True

    async def sop(self, user_id: str, sop_id: str) -> bool:
        """Plans to delete a procedure with its runs."""
        spaces, sops = self._in, self._in._sops(user_id)
        row = await spaces._row(sops, sop_id)
        for run_id in await spaces._rows.keys(spaces._runs_of(user_id, sop_id)):
            await self.run(user_id, run_id)
        if row is None:
            return False
        decoded(SOPRecord, row)
        self._batch.require(sops, sop_id, row.version).delete(sops, sop_id)
        return True

    async def run(self, user_id: str, run_id: str) -> bool:
        """Plans to delete a run with its sessions."""
        spaces, runs = self._in, self._in._runs(user_id)
        row = await spaces._row(runs, run_id)
        if row is None or not self._first(runs, run_id):
            return False
        record = decoded(SOPRunRecord, row)
        for session_id in record.sessions.values():
            await self.session(user_id, session_id)
        self._batch.require(runs, run_id, row.version).delete(runs, run_id)
        self._batch.delete(spaces._runs_of(user_id, record.sop_id), run_id)
        return True

    def finish(self) -> None:
        """Adds the changes of records that stay."""
        for user_id, team_id in self._scrubbed:
            teams = self._in._teams(user_id)
            if (teams, team_id) not in self._gone:
                record, version = self._teams[user_id][team_id]
                record.updated_at = utc_now()
                self._batch.require(teams, team_id, version).put(teams, team_id, encoded(record))
        for (user_id, session_id), (session, version) in self._detached.items():
            sessions = self._in._sessions(user_id)
            session.updated_at = utc_now()
            self._batch.require(sessions, session_id, version).put(sessions, session_id, encoded(session, exclude={"state"}))

    def _first(self, space: Space, key: str) -> bool:
        if (space, key) in self._gone:
            return False
        self._gone.add((space, key))
        return True

    async def _user_teams(self, user_id: str) -> dict[str, tuple[TeamRecord, int]]:
        teams = self._teams.get(user_id)
        if teams is None:
            rows = await self._in._rows.scan(self._in._teams(user_id))
            teams = self._teams[user_id] = {row.key: (decoded(TeamRecord, row), row.version) for row in rows}
        return teams

    async def _legacy_members(self, user_id: str, record: TeamRecord) -> list[TeamMember]:
        """Returns the members of a record that names only agents. All of them were made for the team."""
        return [
            TeamMember(owner_id=user_id, agent_id=agent_id, session_id="", role="created")
            for agent_id in record.data.model_dump()["member_ids"]
        ]


