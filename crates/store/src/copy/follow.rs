//! Following changes of the source during the copy: found by comparing both sides without bodies, and sent.

use super::{CopyStage, Run, note};
use crate::walk::SideBySide;
use crate::{Batch, Item, Namespace, ScanOptions};
use treehold_core::error::Result;

/// The most deletes in a batch.
const DELETES: usize = 1_000;

impl Run<'_> {
    /// Makes the target equal to the source once, and returns how many rows were written or removed. This needs no record of changes: an
    /// unchanged row has the same version, times and metadata on both sides, and its body is not read.
    pub(super) async fn follow(&mut self) -> Result<u64> {
        let (source, target) = (self.source, self.target);
        let mut sides = SideBySide::new(self.walk_source(ScanOptions::new()), self.walk(target, ScanOptions::new()));
        let (sent, removed) = (self.sent, self.removed);
        let mut sent_rows = None;
        let mut batch = Writes::default();
        let mut rows = 0;
        while let Some(pair) = sides.next().await? {
            rows += 1;
            if rows % 1_000 == 0 {
                self.report(CopyStage::Following, rows, 0);
            }
            match (pair.one, pair.other) {
                (Some(one), Some(other)) if one == other => {}
                (Some(one), _) => {
                    // It may have been removed or have expired since; the next pass finds that.
                    let item = match source.get(&pair.namespace, &one.key).await {
                        Ok(Some(item)) => item,
                        Ok(None) => continue,
                        Err(error) => {
                            self.lose(&pair.namespace, error)?;
                            continue;
                        }
                    };
                    self.check_size(&pair.namespace, &item)?;
                    if !batch.has_room(&item, self.options.batch_bytes) {
                        self.write(&mut batch).await?;
                    }
                    batch.send(&pair.namespace, item);
                }
                // It is unknown whether the source has it.
                (None, Some(_)) if sides.one_may_have_lost(&pair.namespace) => {}
                (None, Some(other)) if self.options.onto => {
                    // Rows that the target had before stay; rows that this copy sent were removed from the source since.
                    let sent_rows = match &mut sent_rows {
                        Some(sent_rows) => sent_rows,
                        unread => unread.insert(note::read_sent(target).await?),
                    };
                    if sent_rows.contains(&self.noted.note.row_hash(&pair.namespace, &other.key, other.version)) {
                        batch.delete(&pair.namespace, other.key);
                    }
                }
                (None, Some(other)) => batch.delete(&pair.namespace, other.key),
                (None, None) => {}
            }
            if batch.deletes >= DELETES {
                self.write(&mut batch).await?;
            }
        }
        self.write(&mut batch).await?;
        self.lost.append(sides.into_lost());
        Ok(self.sent + self.removed - sent - removed)
    }

    async fn write(&mut self, writes: &mut Writes) -> Result<()> {
        let Writes { batch, sends, deletes, .. } = std::mem::take(writes);
        if batch.is_empty() {
            return Ok(());
        }
        let note = self.noted.note.clone();
        self.commit(batch, note).await?;
        self.sent += sends;
        self.removed += deletes as u64;
        Ok(())
    }
}

/// A batch under construction.
#[derive(Debug, Default)]
struct Writes {
    batch: Batch,
    bytes: usize,
    sends: u64,
    deletes: usize,
}

impl Writes {
    fn has_room(&self, item: &Item, bytes_max: usize) -> bool {
        self.sends == 0 || (self.sends < 1_000 && self.bytes + size_bytes(item) <= bytes_max)
    }

    fn send(&mut self, namespace: &Namespace, item: Item) {
        self.bytes += size_bytes(&item);
        self.sends += 1;
        self.batch = std::mem::take(&mut self.batch).restore(namespace, item);
    }

    fn delete(&mut self, namespace: &Namespace, key: String) {
        self.deletes += 1;
        self.batch = std::mem::take(&mut self.batch).delete(namespace, key);
    }
}

fn size_bytes(item: &Item) -> usize {
    item.key.len() + item.meta.len() + item.value.len()
}
