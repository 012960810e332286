//! Saving a state as a checkpoint: the parts of it that are not stored yet, in one batch with its record.

use super::commit::with_outbox;
use super::{StoreCheckpointer, holder};
use crate::backend::StateSnapshot;
use crate::checkpoint::fault::{busy, no_checkpoint, saved_meanwhile};
use crate::checkpoint::namespaces::{UserNamespaces, checkpoint_key, named_key, thread_of};
use crate::checkpoint::pages::{Unsaved, body_key, load_foreign, pack_key};
use crate::checkpoint::record::{self, Record, Root};
use crate::checkpoint::{Checkpoint, CheckpointId, Parent, PutOptions, Saved};
use bytes::Bytes;
use std::sync::atomic::Ordering;
use treehold_core::error::{Error, ErrorKind, Result};
use treehold_core::scope::Scope;
use treehold_core::work;
use treehold_store::{Batch, Condition, Outbox};

/// How often a checkpoint is put together. Each time hashes what changed since the last checkpoint.
const PUTS_MAX: u32 = 16;

/// The most bytes of contents in a checkpoint's batch. Larger contents are put beforehand, and the batch depends on them.
const BATCH_BYTES_MAX: usize = 32 << 20;

impl StoreCheckpointer {
    /// Saves a state as the new head of the scope's thread.
    pub(super) async fn put_state(&self, scope: &Scope, state: &StateSnapshot, options: &PutOptions) -> Result<Saved> {
        let (place, thread) = (self.place(scope)?, thread_of(scope)?);
        record::check_notes(options)?;
        let totals = state.totals().await?;
        let mut pack = self.pack_number();
        // Whether the holder of the state's stored pages is gone.
        let mut is_unheld = false;
        let outbox = Outbox::of(&options.extensions);
        for attempt in 0..PUTS_MAX {
            let id = options.id_after(self.clock.now(), options.head.map(|head| head.id));
            let parent = options.head.map(|head| Parent { thread: None, id: head.id, restored: None });
            // Stored parts are relied on only while a checkpoint holds them, and are written again otherwise.
            let known = state.known();
            let newest = state.version().number();
            let held = known.as_ref().filter(|(version, holder)| *version <= newest && holder.origin == place.pages.origin && !is_unheld);
            let held = held.map(|(_, holder)| holder);
            let mut unsaved = self.unsaved(&place, state, held.map(|holder| holder.origin), pack).await?;
            self.next_pack.fetch_max(pack + unsaved.packs.len() as u64, Ordering::Relaxed);
            if state.known() != known {
                // Another put of the same state marked its pages meanwhile.
                continue;
            }
            let root = unsaved.root.ok_or_else(|| Error::new(ErrorKind::Internal, "a tree without a root was saved"))?;
            let root = Root { pack: root.pack, index: root.index, version: state.version().number() };
            let record = Record { checkpoint: Checkpoint::new(id, parent, self.clock.now(), options, totals), root };
            let condition = options.head.map_or(Condition::Absent, |head| Condition::Version(head.version));
            let mut batch = Batch::new().expect(&place.heads, thread, condition);
            for (number, _) in &unsaved.packs {
                batch = batch.expect(&place.pages.packs, pack_key(*number), Condition::Absent);
            }
            let packs_end = 1 + unsaved.packs.len();
            // The parent exists if the first condition holds.
            let head_key = options.head.map(|head| checkpoint_key(thread, head.id));
            let holder_key = held.map(|holder| holder.name.as_ref()).filter(|name| Some(*name) != head_key.as_deref());
            let holder_at = holder_key.map(|key| {
                batch = std::mem::take(&mut batch).expect(&place.checkpoints, key, Condition::Exists);
                packs_end
            });
            let merged_at = packs_end + usize::from(holder_at.is_some());
            if let Some(merged) = &options.merged {
                // Content taken from it is only guaranteed to stay as long as it exists.
                batch = batch.expect(&place.checkpoints, checkpoint_key(&merged.thread, merged.id), Condition::Exists);
                batch = batch.put(&place.pruned, named_key(&merged.thread), Bytes::new());
            }
            if unsaved.body_bytes() > BATCH_BYTES_MAX {
                batch = self.put_bodies(&place, &mut unsaved, batch).await?;
            }
            for (hash, content) in &unsaved.bodies {
                batch = batch.put_with_meta(&place.pages.bodies, body_key(hash), record::encode(&content.len())?, content.clone());
            }
            for (number, bytes) in &mut unsaved.packs {
                batch = batch.put(&place.pages.packs, pack_key(*number), std::mem::take(bytes));
            }
            let created_at = options.head.is_none().then_some(record.checkpoint.created_at);
            let taken = outbox.take(&self.store, &place.heads.partition());
            let batch = with_outbox(batch, &taken, id)?;
            match self.commit(Self::put_head(batch, &place, thread, &record, created_at)?, &place, thread, record, taken).await {
                Ok(saved) => {
                    if unsaved.can_be_marked() {
                        state.settle(&known, holder(&place, thread, id), || unsaved.mark_saved(&self.cache));
                    }
                    return Ok(saved);
                }
                Err(error) if error.kind() == ErrorKind::Conflict => match error.change() {
                    Some(0) => return Err(saved_meanwhile(thread, error.current_version())),
                    // Another checkpointer of this store took the number.
                    Some(index) if index < packs_end => pack += 7_919 << attempt,
                    index if index == holder_at && index.is_some() => is_unheld = true,
                    Some(index) if index == merged_at && options.merged.is_some() => {
                        return Err(options.merged.as_ref().map_or(error, |merged| no_checkpoint(&merged.thread, merged.id)));
                    }
                    // A sweep removed a content that was put before its checkpoint.
                    _ => {}
                },
                Err(error) => return Err(error),
            }
        }
        Err(busy(thread))
    }

    /// Returns a number for the packs of a put, larger than all earlier ones.
    fn pack_number(&self) -> u64 {
        let now = first_pack(self.clock.now());
        let next = |last: u64| Some(last.max(now) + 1);
        self.next_pack.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next).map_or(now, |last| last.max(now))
    }

    /// Collects the parts of a state that are not stored yet, on a separate thread because contents are hashed.
    async fn unsaved(&self, place: &UserNamespaces, state: &StateSnapshot, relied_on: Option<u32>, pack: u64) -> Result<Unsaved> {
        load_foreign(state, relied_on).await?;
        let (root, origin) = (state.root().clone(), place.pages.origin);
        work::run(work::LARGE, move |_| Unsaved::of(&root, relied_on, origin, pack)).await?
    }

    /// Puts contents before the checkpoint that holds them, and makes its batch depend on them.
    async fn put_bodies(&self, place: &UserNamespaces, unsaved: &mut Unsaved, mut batch: Batch) -> Result<Batch> {
        let bodies = std::mem::take(&mut unsaved.bodies);
        let mut early = Batch::new();
        let mut early_keys: Vec<String> = Vec::new();
        let mut size_bytes = 0;
        let mut rest = bodies.into_iter().peekable();
        while let Some((hash, content)) = rest.next() {
            size_bytes += content.len();
            let key = body_key(&hash);
            early = early.put_with_meta(&place.pages.bodies, key.clone(), record::encode(&content.len())?, content);
            early_keys.push(key);
            if size_bytes >= BATCH_BYTES_MAX || rest.peek().is_none() {
                let versions = self.store.commit(std::mem::take(&mut early)).await?;
                for (key, version) in early_keys.drain(..).zip(versions) {
                    batch = batch.expect(&place.pages.bodies, key, Condition::Version(version));
                }
                size_bytes = 0;
            }
        }
        Ok(batch)
    }
}

/// Returns the number of a first pack. Numbers are never reused, even if the clock goes back, because they identify pages.
fn first_pack(now: jiff::Timestamp) -> u64 {
    let microseconds = u64::try_from(now.as_microsecond()).unwrap_or(0);
    let random = CheckpointId::new(now, None).to_bytes();
    (microseconds << 10) | u64::from(u16::from_be_bytes([random[14], random[15]]) & 0x3FF)
}
