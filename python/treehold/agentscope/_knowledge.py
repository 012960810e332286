"""Knowledge bases, their documents, and the leases of the workers that index them."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta

from agentscope.app.storage import KnowledgeBaseRecord, KnowledgeDocumentRecord, KnowledgeDocumentStatus

from treehold import Batch
from treehold.agentscope._core import Core, encoded, naive_utc, utc_now
from treehold.agentscope._keys import Space, checked, joined, split
from treehold.agentscope._rows import decoded
from treehold.errors import InvalidArgument, NotFound

_DONE = ("ready", "error")


class Knowledge(Core):
    """The part of the storage for knowledge."""

    async def upsert_knowledge_base(self, user_id: str, record: KnowledgeBaseRecord) -> KnowledgeBaseRecord:
        """Creates or replaces a knowledge base of the user."""
        _require_owner(user_id, record.user_id)
        await self._upsert(KnowledgeBaseRecord, self._layout.user(user_id, "bases"), record)
        return record

    async def get_knowledge_base(self, user_id: str, knowledge_base_id: str) -> KnowledgeBaseRecord | None:
        """Returns a knowledge base, if it exists."""
        return await self._get(KnowledgeBaseRecord, self._layout.user(user_id, "bases"), knowledge_base_id)

    async def list_knowledge_bases(self, user_id: str) -> list[KnowledgeBaseRecord]:
        """Returns the user's knowledge bases."""
        return await self._list(KnowledgeBaseRecord, self._layout.user(user_id, "bases"))

    async def delete_knowledge_base(self, user_id: str, knowledge_base_id: str) -> bool:
        """Deletes a knowledge base with its documents and returns whether it existed."""
        bases, documents = self._layout.user(user_id, "bases"), self._documents(user_id, knowledge_base_id)

        async def plan(batch: Batch) -> bool:
            row = await self._row(bases, knowledge_base_id)
            if row is None:
                return False
            batch.require(bases, knowledge_base_id, row.version).delete(bases, knowledge_base_id)
            batch.delete_prefix(documents).delete_prefix(await self._open(), joined(user_id, knowledge_base_id) + "/")
            return True

        return await self._rows.changed(plan)

    async def upsert_knowledge_document(self, user_id: str, record: KnowledgeDocumentRecord) -> KnowledgeDocumentRecord:
        """Creates or replaces a document. Raises `NotFound` if its knowledge base does not exist."""
        _require_owner(user_id, record.user_id)
        bases, space = self._layout.user(user_id, "bases"), self._documents(user_id, record.knowledge_base_id)
        created = naive_utc(record.created_at)

        async def plan(batch: Batch) -> None:
            if await self._row(bases, record.knowledge_base_id) is None:
                raise NotFound(f"there is no knowledge base `{record.knowledge_base_id}`; create it before its documents")
            batch.require(bases, record.knowledge_base_id, True)
            await self._stamp(batch, KnowledgeDocumentRecord, space, record, created)
            await self._put_document(batch, space, record)

        await self._rows.changed(plan)
        return record

    async def get_knowledge_document(
        self, user_id: str, knowledge_base_id: str, document_id: str
    ) -> KnowledgeDocumentRecord | None:
        """Returns a document, if it exists."""
        return await self._get(KnowledgeDocumentRecord, self._documents(user_id, knowledge_base_id), document_id)

    async def list_knowledge_documents(self, user_id: str, knowledge_base_id: str) -> list[KnowledgeDocumentRecord]:
        """Returns the documents of a knowledge base."""
        return await self._list(KnowledgeDocumentRecord, self._documents(user_id, knowledge_base_id))

    async def delete_knowledge_document(self, user_id: str, knowledge_base_id: str, document_id: str) -> bool:
        """Deletes a document and returns whether it existed."""
        space = self._documents(user_id, knowledge_base_id)

        async def plan(batch: Batch) -> bool:
            row = await self._row(space, document_id)
            if row is None:
                return False
            batch.require(space, document_id, row.version).delete(space, document_id)
            batch.delete(await self._open(), joined(user_id, knowledge_base_id, document_id))
            return True

        return await self._rows.changed(plan)

    async def update_knowledge_document_status(
        self,
        user_id: str,
        knowledge_base_id: str,
        document_id: str,
        status: KnowledgeDocumentStatus,
        error: str | None = None,
        chunk_count: int | None = None,
    ) -> None:
        """Sets the status of a document, if it exists, and leaves its lease."""

        def change(record: KnowledgeDocumentRecord) -> bool:
            record.status = status
            if error is not None:
                record.data.error = error
            if chunk_count is not None:
                record.data.chunk_count = chunk_count
            return True

        await self._change_document(user_id, knowledge_base_id, document_id, change)

    async def acquire_knowledge_document_lease(
        self,
        user_id: str,
        knowledge_base_id: str,
        document_id: str,
        processing_node: str,
        lease_ttl: timedelta,
        now: datetime | None = None,
    ) -> bool:
        """Takes the lease of a document that no worker holds at the moment, and returns whether it did."""
        time = utc_now() if now is None else naive_utc(now)

        def change(record: KnowledgeDocumentRecord) -> bool:
            end = record.lease_expires_at
            if record.processing_node is not None and end is not None and end >= time:
                return False
            record.processing_node, record.lease_expires_at = processing_node, time + lease_ttl
            return True

        return await self._change_document(user_id, knowledge_base_id, document_id, change)

    async def renew_knowledge_document_lease(
        self,
        user_id: str,
        knowledge_base_id: str,
        document_id: str,
        processing_node: str,
        lease_ttl: timedelta,
        now: datetime | None = None,
    ) -> bool:
        """Extends the lease that a worker holds, and returns whether it still holds it."""
        time = utc_now() if now is None else naive_utc(now)

        def change(record: KnowledgeDocumentRecord) -> bool:
            if record.processing_node != processing_node:
                return False
            record.lease_expires_at = time + lease_ttl
            return True

        return await self._change_document(user_id, knowledge_base_id, document_id, change)

    async def release_knowledge_document_lease(
        self, user_id: str, knowledge_base_id: str, document_id: str, processing_node: str
    ) -> None:
        """Gives up the lease, if the worker holds it."""

        def change(record: KnowledgeDocumentRecord) -> bool:
            if record.processing_node != processing_node:
                return False
            record.processing_node = record.lease_expires_at = None
            return True

        await self._change_document(user_id, knowledge_base_id, document_id, change)

    async def list_knowledge_documents_with_expired_lease(self, now: datetime | None = None) -> list[KnowledgeDocumentRecord]:
        """Returns the unfinished documents of all users whose lease is over."""
        time = utc_now() if now is None else naive_utc(now)
        return [
            record
            for record in await self._open_documents()
            if record.processing_node is not None and record.lease_expires_at is not None and record.lease_expires_at < time
        ]

    async def list_knowledge_documents_pending_since(self, threshold: datetime) -> list[KnowledgeDocumentRecord]:
        """Returns the documents of all users that no worker has started and that are older than `threshold`."""
        time = naive_utc(threshold)
        return [record for record in await self._open_documents() if record.status == "pending" and record.created_at < time]

    def _documents(self, user_id: str, knowledge_base_id: str) -> Space:
        return self._layout.user(user_id, "documents", checked("knowledge base id", knowledge_base_id))

    async def _open(self) -> Space:
        """The documents of all users that are neither ready nor failed."""
        return await self._all("open-documents")

    async def _put_document(self, batch: Batch, space: Space, record: KnowledgeDocumentRecord) -> None:
        key = joined(record.user_id, record.knowledge_base_id, record.id)
        batch.put(space, record.id, encoded(record))
        if record.status in _DONE:
            batch.delete(await self._open(), key)
        else:
            batch.put(await self._open(), key, b"")

    async def _open_documents(self) -> list[KnowledgeDocumentRecord]:
        by_base: dict[tuple[str, str], list[str]] = {}
        for key in await self._rows.keys(await self._open()):
            user_id, knowledge_base_id, document_id = split(key)
            by_base.setdefault((user_id, knowledge_base_id), []).append(document_id)
        found: list[KnowledgeDocumentRecord] = []
        for (user_id, knowledge_base_id), documents in by_base.items():
            rows = await self._rows.get_many(self._documents(user_id, knowledge_base_id), documents)
            found.extend(record for row in rows if (record := decoded(KnowledgeDocumentRecord, row)).status not in _DONE)
        return found

    async def _change_document(
        self,
        user_id: str,
        knowledge_base_id: str,
        document_id: str,
        change: Callable[[KnowledgeDocumentRecord], bool],
    ) -> bool:
        space = self._documents(user_id, knowledge_base_id)

        async def plan(batch: Batch) -> bool:
            row = await self._row(space, document_id)
            if row is None:
                return False
            record = decoded(KnowledgeDocumentRecord, row)
            if not change(record):
                return False
            record.updated_at = utc_now()
            batch.require(space, document_id, row.version)
            await self._put_document(batch, space, record)
            return True

        return await self._rows.changed(plan)


def _require_owner(user_id: str, owner: str) -> None:
    if owner != user_id:
        raise InvalidArgument("`record.user_id` is another user than `user_id`; pass the owner of the record")
