//! Restores, forks and copies, which write no tree: their checkpoints have trees that are stored already.

use super::StoreCheckpointer;
use super::commit::with_outbox;
use crate::checkpoint::fault::{busy, no_thread, saved_meanwhile, taken};
use crate::checkpoint::namespaces::{PRUNED_KEY, UserNamespaces, checkpoint_key, named_key, read_head, thread_of};
use crate::checkpoint::record::{self, Record};
use crate::checkpoint::{At, Checkpoint, CheckpointId, Head, Parent, PutOptions, Saved};
use bytes::Bytes;
use treehold_core::backoff::LostRaces;
use treehold_core::error::{ErrorKind, Result};
use treehold_core::scope::Scope;
use treehold_store::{Batch, BatchWrite, Condition, Outbox};

impl StoreCheckpointer {
    /// Makes the tree of an earlier checkpoint the head of its thread again.
    pub(super) async fn restore_to(&self, scope: &Scope, id: CheckpointId, options: &PutOptions) -> Result<Saved> {
        let (place, thread) = (self.place(scope)?, thread_of(scope)?);
        record::check_notes(options)?;
        let mut races = LostRaces::new();
        loop {
            let (record, _) = self.require(&place, thread, At::Id(id)).await?;
            let (_, head) = self.require(&place, thread, At::Latest).await?;
            let head = head.ok_or_else(|| no_thread(thread))?;
            if options.head.is_some_and(|expected| expected != head) {
                return Err(saved_meanwhile(thread, Some(head.version)));
            }
            let parent = Parent { thread: None, id: head.id, restored: Some(id) };
            match self.point(&place, thread, &record, parent, Some(head), options).await {
                Err(error) if error.kind() == ErrorKind::Conflict => {}
                ended => return ended,
            }
            if !races.lost().await {
                return Err(busy(thread));
            }
        }
    }

    /// Starts a thread at a checkpoint of another one.
    pub(super) async fn fork_into(&self, scope: &Scope, at: At, thread: &str, options: &PutOptions) -> Result<Saved> {
        let (place, source) = (self.place(scope)?, thread_of(scope)?);
        self.place(&scope.clone().with_thread(thread))?;
        record::check_notes(options)?;
        let mut races = LostRaces::new();
        loop {
            let (record, _) = self.require(&place, source, at).await?;
            let parent = Parent { thread: Some(source.to_owned()), id: record.checkpoint.id, restored: None };
            match self.point(&place, thread, &record, parent, None, options).await {
                Err(error) if error.kind() == ErrorKind::Conflict && error.change() == Some(0) => return Err(taken(thread)),
                // It was pruned since it was found. The latest is a different one by now; an id has no other.
                Err(error) if error.kind() == ErrorKind::Conflict => {}
                ended => return ended,
            }
            if !races.lost().await {
                return Err(busy(source));
            }
        }
    }

    /// Copies a thread with all of its checkpoints.
    pub(super) async fn copy_into(&self, scope: &Scope, thread: &str) -> Result<u64> {
        let (place, source) = (self.place(scope)?, thread_of(scope)?);
        self.place(&scope.clone().with_thread(thread))?;
        let mut races = LostRaces::new();
        loop {
            let pruned =
                self.store.get(&place.pruned, PRUNED_KEY).await?.map_or(Condition::Absent, |item| Condition::Version(item.version));
            let Some(head) = self.store.get(&place.heads, source).await? else { return Err(no_thread(source)) };
            // Unless checkpoints are removed meanwhile, everything being copied stays.
            let mut batch = Batch::new().expect(&place.heads, thread, Condition::Absent).expect(&place.pruned, PRUNED_KEY, pruned);
            let newest = read_head(&head)?.1.id;
            let mut count = 0;
            self.each(&place, source, |_, record| {
                if record.checkpoint.id <= newest {
                    let key = checkpoint_key(thread, record.checkpoint.id);
                    batch = std::mem::take(&mut batch).put_with_meta(&place.checkpoints, key, record.to_bytes()?, Bytes::new());
                    count += 1;
                }
                Ok(())
            })
            .await?;
            let (namespace, key, created_at) = (place.heads.clone(), thread.to_owned(), Some(head.created_at));
            batch.writes.push(BatchWrite::Put { namespace, key, meta: Bytes::new(), value: head.value, time_to_live: None, created_at });
            match self.store.commit(batch).await {
                Ok(_) => return Ok(count),
                Err(error) if error.kind() == ErrorKind::Conflict && error.change() == Some(0) => return Err(taken(thread)),
                Err(error) if error.kind() == ErrorKind::Conflict => {}
                Err(error) => return Err(error),
            }
            if !races.lost().await {
                return Err(busy(source));
            }
        }
    }

    /// Makes a checkpoint with an already stored tree the head of a thread.
    async fn point(
        &self,
        place: &UserNamespaces,
        thread: &str,
        to: &Record,
        parent: Parent,
        head: Option<Head>,
        options: &PutOptions,
    ) -> Result<Saved> {
        let source = parent.thread.clone().unwrap_or_else(|| thread.to_owned());
        let after = head.map_or(parent.id, |head| head.id.max(parent.id));
        let id = options.id_after(self.clock.now(), Some(after));
        let checkpoint = Checkpoint::new(id, Some(parent), self.clock.now(), options, (to.checkpoint.entries, to.checkpoint.size_bytes));
        let record = Record { checkpoint, root: to.root };
        let condition = head.map_or(Condition::Absent, |head| Condition::Version(head.version));
        let batch = Batch::new()
            .expect(&place.heads, thread, condition)
            // Its pages are only guaranteed to stay as long as it exists.
            .expect(&place.checkpoints, checkpoint_key(&source, to.checkpoint.id), Condition::Exists)
            .put(&place.pruned, named_key(&source), Bytes::new());
        let created_at = head.is_none().then_some(record.checkpoint.created_at);
        let taken = Outbox::of(&options.extensions).take(&self.store, &place.heads.partition());
        let batch = with_outbox(batch, &taken, id)?;
        self.commit(Self::put_head(batch, place, thread, &record, created_at)?, place, thread, record, taken).await
    }
}
