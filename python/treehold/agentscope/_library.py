"""Credentials, and the MCP servers and skills that a user installed."""

from __future__ import annotations

from typing import Any, cast

from agentscope.app.storage import CredentialRecord, MCPRecord, SkillRecord
from agentscope.credential import CredentialBase
from pydantic import SecretStr

from treehold import Batch
from treehold.agentscope._core import Core, encoded, naive_utc
from treehold.agentscope._keys import Space, checked
from treehold.agentscope._rows import decoded
from treehold.agentscope.errors import NameTaken


class Library(Core):
    """The part of the storage for credentials, MCP servers and skills."""

    async def upsert_credential(self, user_id: str, credential_data: CredentialBase) -> str:
        """Creates or updates a credential, names it after its type if it has no name, and returns its id."""
        space = self._layout.user(user_id, "credentials")
        if not credential_data.name:
            credential_data.name = await self._credential_name(user_id, credential_data)
        data = credential_data.model_dump(mode="json")
        for field in type(credential_data).model_fields:
            value = getattr(credential_data, field)
            if isinstance(value, SecretStr):
                data[field] = value.get_secret_value()
        record = CredentialRecord(user_id=user_id, data=data)
        if credential_data.id:
            record.id = credential_data.id
        await self._upsert(CredentialRecord, space, record)
        return record.id

    async def _credential_name(self, user_id: str, credential: CredentialBase) -> str:
        kind = str(getattr(credential, "type", ""))
        base = kind.removesuffix("_credential").replace("_", " ").title() or "Credential"
        taken: set[Any] = set()
        for present in await self.list_credentials(user_id):
            data = cast("dict[str, Any]", present.data)  # pyright: ignore[reportUnknownMemberType]
            if data.get("type") == kind and present.id != credential.id:
                taken.add(data.get("name"))
        name, number = base, 2
        while name in taken:
            name, number = f"{base} ({number})", number + 1
        return name

    async def list_credentials(self, user_id: str) -> list[CredentialRecord]:
        """Returns the user's credentials."""
        return await self._list(CredentialRecord, self._layout.user(user_id, "credentials"))

    async def get_credential(self, user_id: str, credential_id: str) -> CredentialRecord | None:
        """Returns a credential, if it exists."""
        return await self._get(CredentialRecord, self._layout.user(user_id, "credentials"), credential_id)

    async def delete_credential(self, user_id: str, credential_id: str) -> bool:
        """Deletes a credential and returns whether it existed."""
        return await self._delete(self._layout.user(user_id, "credentials"), credential_id)

    async def upsert_mcp(self, user_id: str, mcp_record: MCPRecord) -> str:
        """Creates or updates an MCP server. Raises `NameTaken` if another one of the user has its name."""
        space, names = self._layout.user(user_id, "mcps"), self._layout.user(user_id, "mcp-names")
        mcp_record.user_id = user_id
        created = naive_utc(mcp_record.created_at)

        async def plan(batch: Batch) -> None:
            present = await self._stamp(batch, MCPRecord, space, mcp_record, created)
            await self._claim(batch, "MCP", names, mcp_record.name, mcp_record.id, None if present is None else present.name)
            batch.put(space, mcp_record.id, encoded(mcp_record))

        await self._rows.changed(plan)
        return mcp_record.id

    async def list_mcps(self, user_id: str) -> list[MCPRecord]:
        """Returns the MCP servers that the user installed."""
        return await self._list(MCPRecord, self._layout.user(user_id, "mcps"))

    async def get_mcp(self, user_id: str, mcp_id: str) -> MCPRecord | None:
        """Returns an MCP server by its id, if it exists."""
        return await self._get(MCPRecord, self._layout.user(user_id, "mcps"), mcp_id)

    async def get_mcp_by_name(self, user_id: str, name: str) -> MCPRecord | None:
        """Returns an MCP server by its name, if it exists."""
        holder = await self._holder(self._layout.user(user_id, "mcp-names"), name)
        return None if holder is None else await self.get_mcp(user_id, holder)

    async def delete_mcp(self, user_id: str, mcp_id: str) -> bool:
        """Deletes an MCP server, frees its name, and returns whether it existed."""
        space, names = self._layout.user(user_id, "mcps"), self._layout.user(user_id, "mcp-names")

        async def plan(batch: Batch) -> bool:
            row = await self._row(space, mcp_id)
            if row is None:
                return False
            batch.require(space, mcp_id, row.version).delete(space, mcp_id).delete(names, decoded(MCPRecord, row).name)
            return True

        return await self._rows.changed(plan)

    async def upsert_skill(self, user_id: str, skill_record: SkillRecord) -> str:
        """Creates or updates a skill. Raises `NameTaken` if another one of the user has its name."""
        space, names = self._layout.user(user_id, "skills"), self._layout.user(user_id, "skill-names")
        skill_record.user_id = user_id
        created = naive_utc(skill_record.created_at)

        async def plan(batch: Batch) -> None:
            present = await self._stamp(batch, SkillRecord, space, skill_record, created)
            await self._claim(batch, "skill", names, skill_record.name, skill_record.id, None if present is None else present.name)
            batch.put(space, skill_record.id, encoded(skill_record))

        await self._rows.changed(plan)
        return skill_record.id

    async def list_skills(self, user_id: str) -> list[SkillRecord]:
        """Returns the skills that the user installed."""
        return await self._list(SkillRecord, self._layout.user(user_id, "skills"))

    async def get_skill(self, user_id: str, skill_id: str) -> SkillRecord | None:
        """Returns a skill by its id, if it exists."""
        return await self._get(SkillRecord, self._layout.user(user_id, "skills"), skill_id)

    async def get_skill_by_name(self, user_id: str, name: str) -> SkillRecord | None:
        """Returns a skill by its name, if it exists."""
        holder = await self._holder(self._layout.user(user_id, "skill-names"), name)
        return None if holder is None else await self.get_skill(user_id, holder)

    async def delete_skill(self, user_id: str, skill_id: str) -> bool:
        """Deletes a skill, frees its name, and returns whether it existed."""
        space, names = self._layout.user(user_id, "skills"), self._layout.user(user_id, "skill-names")

        async def plan(batch: Batch) -> bool:
            row = await self._row(space, skill_id)
            if row is None:
                return False
            batch.require(space, skill_id, row.version).delete(space, skill_id).delete(names, decoded(SkillRecord, row).name)
            return True

        return await self._rows.changed(plan)

    async def _holder(self, names: Space, name: str) -> str | None:
        row = await self._store.aget(names, checked("name", name))
        return None if row is None else row.body.decode()

    async def _claim(self, batch: Batch, what: str, names: Space, name: str, holder: str, former: str | None) -> None:
        """Gives a name to a record and frees the one that it had."""
        row = await self._store.aget(names, checked("name", name))
        if row is not None and row.body.decode() != holder:
            raise NameTaken(f"the user has another {what} named {name!r}; choose another name or delete that one")
        batch.require(names, name, None if row is None else row.version).put(names, name, holder.encode())
        if former is not None and former != name:
            batch.delete(names, former)


