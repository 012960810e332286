//! Commits that move the head of a thread, also where the store did not answer whether it committed.

use super::StoreCheckpointer;
use crate::checkpoint::fault::busy;
use crate::checkpoint::namespaces::{UserNamespaces, checkpoint_key, read_head};
use crate::checkpoint::record::Record;
use crate::checkpoint::{CheckpointId, Head, Saved};
use bytes::Bytes;
use jiff::Timestamp;
use treehold_core::backoff::LostRaces;
use treehold_core::error::{Error, ErrorKind, Result};
use treehold_store::{Batch, BatchWrite, Condition, OutboxRows, TakenEntries};

impl StoreCheckpointer {
    /// Adds a checkpoint to a batch as the new head. The head's row keeps the creation time of the thread.
    pub(super) fn put_head(
        mut batch: Batch,
        place: &UserNamespaces,
        thread: &str,
        record: &Record,
        created_at: Option<Timestamp>,
    ) -> Result<Batch> {
        let bytes = Bytes::from(record.to_bytes()?);
        batch = batch.put_with_meta(&place.checkpoints, checkpoint_key(thread, record.checkpoint.id), bytes.clone(), Bytes::new());
        let (namespace, key) = (place.heads.clone(), thread.to_owned());
        batch.writes.push(BatchWrite::Put { namespace, key, meta: Bytes::new(), value: bytes, time_to_live: None, created_at });
        Ok(batch)
    }

    /// Commits a batch that ends with the put of a head. If the outcome is unknown, looks for the checkpoint: if it exists, the batch was
    /// committed, whether it is the head or others have continued from it.
    pub(super) async fn commit(
        &self,
        batch: Batch,
        place: &UserNamespaces,
        thread: &str,
        record: Record,
        taken: TakenEntries,
    ) -> Result<Saved> {
        let id = record.checkpoint.id;
        match self.store.commit(batch).await {
            Ok(versions) => {
                taken.committed(Some(id));
                let version = versions.last().copied();
                let version = version.ok_or_else(|| Error::new(ErrorKind::Internal, "a batch with puts returned no version"))?;
                Ok(Saved { checkpoint: record.checkpoint, head: Some(Head { id, version }) })
            }
            Err(error) if error.may_have_effect() && error.kind() != ErrorKind::Conflict => {
                match self.confirm_in(place, thread, id).await {
                    Ok(Some(saved)) => {
                        taken.committed(Some(id));
                        Ok(saved)
                    }
                    // The outcome remains unknown, as the first error says.
                    _ => Err(error),
                }
            }
            Err(error) => {
                taken.failed(&error);
                Err(error)
            }
        }
    }

    /// Makes a checkpoint that a read shows durable.
    ///
    /// A read may show commits that are not durable yet: InnoDB without a binary log, and PostgreSQL waiting for a standby, show a commit
    /// before the disk or the standby has it. So the checkpoint's own row, which no other save depends on, is put again unchanged. That
    /// write is acknowledged only once everything before it is durable.
    pub(super) async fn confirm_in(&self, place: &UserNamespaces, thread: &str, id: CheckpointId) -> Result<Option<Saved>> {
        let key = checkpoint_key(thread, id);
        let mut races = LostRaces::new();
        loop {
            let Some(item) = self.store.get_many(&place.checkpoints, &[&key], false).await?.pop().flatten() else { return Ok(None) };
            let Record { checkpoint, .. } = Record::from_bytes(&item.meta)?;
            let head = self.store.get(&place.heads, thread).await?;
            let head = head.map(|item| read_head(&item)).transpose()?.map(|(_, head)| head).filter(|head| head.id == id);
            let batch = Batch::new().expect(&place.checkpoints, &key, Condition::Version(item.version));
            match self.store.commit(batch.put_with_meta(&place.checkpoints, &*key, item.meta, Bytes::new())).await {
                Ok(_) => return Ok(Some(Saved { checkpoint, head })),
                // Another caller confirmed it, or it was pruned.
                Err(error) if error.kind() == ErrorKind::Conflict => {}
                Err(error) => return Err(error),
            }
            if !races.lost().await {
                return Err(busy(thread));
            }
        }
    }
}

/// Adds the rows of an outbox to the batch of a checkpoint.
pub(super) fn with_outbox(mut batch: Batch, taken: &TakenEntries, id: CheckpointId) -> Result<Batch> {
    // A state's files have versions of their own, which the entries know.
    let mut rows = OutboxRows::of_checkpoint(id);
    taken.write(&mut rows)?;
    batch.writes.extend(rows.into_writes());
    Ok(batch)
}
