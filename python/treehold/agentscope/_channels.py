"""Channels: records that all users share, each driven by one bot of a platform."""

from __future__ import annotations

from agentscope.app.storage import ChannelRecord

from treehold import Batch
from treehold.agentscope._core import Core, encoded, naive_utc
from treehold.agentscope._keys import checked
from treehold.agentscope._rows import decoded
from treehold.agentscope.errors import NameTaken


class Channels(Core):
    """The part of the storage for channels. A channel's row names its bot in its metadata."""

    async def upsert_channel(self, record: ChannelRecord, platform_bot_id: str) -> str:
        """Creates or replaces a channel. Raises `NameTaken` if the bot drives another one."""
        channels, bots = await self._all("channels"), await self._all("bots")
        bot, created = checked("bot id", platform_bot_id), naive_utc(record.created_at)

        async def plan(batch: Batch) -> None:
            holder = await self._store.aget(bots, bot)
            if holder is not None and holder.body.decode() != record.id:
                raise NameTaken(f"the bot `{bot}` drives the channel `{holder.body.decode()}`; delete that channel first")
            row = await self._row(channels, record.id)
            present = await self._stamp(batch, ChannelRecord, channels, record, created)
            if row is not None and present is not None:
                batch.require(channels, record.id, row.version)
                if row.meta.decode() != bot:
                    batch.delete(bots, row.meta.decode())
                if present.user_id != record.user_id:
                    batch.delete(self._layout.user(present.user_id, "channels"), record.id)
            batch.require(bots, bot, None if holder is None else holder.version).put(bots, bot, record.id.encode())
            batch.put(channels, record.id, encoded(record), meta=bot.encode())
            batch.put(self._layout.user(record.user_id, "channels"), record.id, b"")

        await self._rows.changed(plan)
        return record.id

    async def get_channel(self, channel_id: str) -> ChannelRecord | None:
        """Returns a channel, if it exists."""
        return await self._get(ChannelRecord, await self._all("channels"), channel_id)

    async def list_channels(self, user_id: str) -> list[ChannelRecord]:
        """Returns the user's channels."""
        keys = await self._rows.keys(self._layout.user(user_id, "channels"))
        return [decoded(ChannelRecord, row) for row in await self._rows.get_many(await self._all("channels"), keys)]

    async def list_all_channels(self) -> list[ChannelRecord]:
        """Returns the channels of all users."""
        return await self._list(ChannelRecord, await self._all("channels"))

    async def delete_channel(self, channel_id: str, platform_bot_id: str) -> bool:
        """Deletes a channel, frees its bot, and returns whether it existed."""
        channels, bots = await self._all("channels"), await self._all("bots")

        async def plan(batch: Batch) -> bool:
            row = await self._row(channels, channel_id)
            if row is None:
                return False
            batch.require(channels, channel_id, row.version).delete(channels, channel_id).delete(bots, row.meta.decode())
            batch.delete(self._layout.user(decoded(ChannelRecord, row).user_id, "channels"), channel_id)
            return True

        return await self._rows.changed(plan)

    async def get_channel_id_by_platform_bot_id(self, platform_bot_id: str) -> str | None:
        """Returns the channel that a bot drives, if there is one."""
        row = await self._store.aget(await self._all("bots"), checked("bot id", platform_bot_id))
        return None if row is None else row.body.decode()
