"""Standard operating procedures and their runs."""

from __future__ import annotations

from agentscope.app.storage import SOPRecord, SOPRunRecord
from agentscope.sop import SOPPhase, SOPRunState

from treehold import Batch
from treehold.agentscope._core import encoded, naive_utc, utc_now
from treehold.agentscope._rows import decoded
from treehold.agentscope._sessions import Sessions
from treehold.agentscope.errors import SOPRunNotFound


class Procedures(Sessions):
    """The part of the storage for procedures."""

    async def upsert_sop(self, user_id: str, record: SOPRecord) -> SOPRecord:
        """Creates or replaces a procedure."""
        await self._upsert(SOPRecord, self._sops(user_id), record)
        return record

    async def get_sop(self, user_id: str, sop_id: str) -> SOPRecord | None:
        """Returns a procedure, if it exists."""
        return await self._get(SOPRecord, self._sops(user_id), sop_id)

    async def list_sops(self, user_id: str) -> list[SOPRecord]:
        """Returns the user's procedures."""
        return await self._list(SOPRecord, self._sops(user_id))

    async def delete_sop(self, user_id: str, sop_id: str) -> bool:
        """Deletes a procedure with its runs and their sessions in one commit, and returns whether it existed."""
        return await self._remove(lambda removal: removal.sop(user_id, sop_id))

    async def upsert_sop_run(self, user_id: str, record: SOPRunRecord) -> SOPRunRecord:
        """Creates or replaces a run."""
        runs, created = self._runs(user_id), naive_utc(record.created_at)

        async def plan(batch: Batch) -> None:
            present = await self._stamp(batch, SOPRunRecord, runs, record, created)
            if present is not None and present.sop_id != record.sop_id:
                batch.delete(self._runs_of(user_id, present.sop_id), record.id)
            batch.put(runs, record.id, encoded(record)).put(self._runs_of(user_id, record.sop_id), record.id, b"")

        await self._rows.changed(plan)
        return record

    async def get_sop_run(self, user_id: str, sop_run_id: str) -> SOPRunRecord | None:
        """Returns a run, if it exists."""
        return await self._get(SOPRunRecord, self._runs(user_id), sop_run_id)

    async def list_sop_runs(
        self, user_id: str, sop_id: str | None = None, phase: SOPPhase | None = None
    ) -> list[SOPRunRecord]:
        """Returns the user's runs, of one procedure and in one phase if they are given, newest first."""
        runs = self._runs(user_id)
        if sop_id is None:
            rows = await self._rows.scan(runs)
        else:
            rows = await self._rows.get_many(runs, await self._rows.keys(self._runs_of(user_id, sop_id)))
        found = [record for row in rows if phase in (None, (record := decoded(SOPRunRecord, row)).state.phase)]
        return sorted(found, key=lambda record: record.created_at, reverse=True)

    async def update_sop_run(
        self, user_id: str, sop_run_id: str, state: SOPRunState, sessions: dict[str, str] | None = None
    ) -> None:
        """Sets the state of a run and, if they are given, its sessions."""
        runs = self._runs(user_id)

        async def plan(batch: Batch) -> None:
            row = await self._row(runs, sop_run_id)
            if row is None:
                raise SOPRunNotFound(f"there is no run `{sop_run_id}`; create it with `upsert_sop_run`")
            record = decoded(SOPRunRecord, row)
            record.state, record.updated_at = state, utc_now()
            if sessions is not None:
                record.sessions = sessions
            batch.require(runs, sop_run_id, row.version).put(runs, sop_run_id, encoded(record))

        await self._rows.changed(plan)

    async def delete_sop_run(self, user_id: str, sop_run_id: str) -> bool:
        """Deletes a run with its sessions in one commit, and returns whether it existed."""
        return await self._remove(lambda removal: removal.run(user_id, sop_run_id))
