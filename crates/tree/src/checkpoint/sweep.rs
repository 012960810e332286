//! Removing pages and contents that no checkpoint holds any more.
//!
//! A sweep marks every page and content that a checkpoint holds, then removes the rest. It takes no locks. Rows written after the sweep
//! began have a version above its start and are left alone, and a row is removed only if it still has the version at which it was scanned.
//! A checkpoint that is put during a sweep holds only new rows and rows that another checkpoint held at that time. So the marks are
//! complete unless a checkpoint is removed while they are listed; if one is, they are listed again.

use super::Swept;
use super::namespaces::{PRUNED_KEY, UserNamespaces, items, read_head};
use super::pages::pack_key;
use super::record::{self, Record};
use crate::backend::{Page, PageId, PageSource};
use std::collections::HashSet;
use treehold_core::error::{Error, ErrorKind, Result};
use treehold_core::ops::Version;
use treehold_store::{Batch, Condition, Item, Namespace, ScanOptions, Store};

/// The number of pages that are read at once.
const PAGES: usize = 256;

/// The most rows that are removed at once.
const ROWS: usize = 256;

/// The most bytes of contents that are removed at once, unless one content is larger.
const BATCH_BYTES: u64 = 4 << 20;

/// How often all checkpoints are listed, because some were removed meanwhile.
const LISTINGS_MAX: usize = 16;

/// How a sweep works.
pub(super) struct SweepOptions<'s> {
    /// Only counts.
    pub(super) dry_run: bool,
    /// The most rows that are read or removed at once.
    pub(super) rows: usize,
    /// The keys of checkpoints that count as removed.
    pub(super) gone: &'s HashSet<String>,
}

pub(super) async fn sweep(store: &dyn Store, place: &UserNamespaces, options: &SweepOptions<'_>) -> Result<Swept> {
    for _ in 0..LISTINGS_MAX {
        let before = pruned(store, place).await?;
        let began = store.current_version(&place.heads.partition()).await?;
        let roots = roots(store, place, options.gone).await?;
        if pruned(store, place).await? != before {
            continue;
        }
        let marked = match mark(place, roots, options.rows.min(PAGES)).await {
            // Another sweep may have removed a page once its checkpoint was removed.
            Err(error) if error.kind() == ErrorKind::Corrupt && pruned(store, place).await? != before => continue,
            marked => marked?,
        };
        let mut swept = Swept { bodies_kept: marked.bodies.len() as u64, ..Swept::default() };
        let sweep = Sweep { store, began, dry_run: options.dry_run, rows: options.rows.min(ROWS) };
        swept.packs = sweep.rows(&place.pages.packs, |key| marked.packs.contains(key)).await?.0;
        (swept.bodies, swept.body_bytes) = sweep.rows(&place.pages.bodies, |key| marked.bodies.contains(key)).await?;
        return Ok(swept);
    }
    Err(Error::new(ErrorKind::Unavailable, "checkpoints kept being removed during the sweep; sweep again later").without_effect())
}

async fn pruned(store: &dyn Store, place: &UserNamespaces) -> Result<Option<Version>> {
    Ok(store.get(&place.pruned, PRUNED_KEY).await?.map(|item| item.version))
}

/// Returns the roots of all trees, without those of checkpoints that are `gone`.
async fn roots(store: &dyn Store, place: &UserNamespaces, gone: &HashSet<String>) -> Result<HashSet<PageId>> {
    let mut roots = HashSet::new();
    for (namespace, is_heads) in [(&place.checkpoints, false), (&place.heads, true)] {
        let mut options = ScanOptions::new().with_values(is_heads);
        loop {
            let page = store.scan(namespace, options.clone()).await?;
            for item in items(page.entries).filter(|item| is_heads || !gone.contains(&item.key)) {
                let record = if is_heads { read_head(&item)?.0 } else { Record::from_bytes(&item.meta)? };
                roots.insert(record.root.page(place.pages.origin));
            }
            match page.next {
                Some(next) => options.start_after = Some(next),
                None => break,
            }
        }
    }
    Ok(roots)
}

/// The keys of the rows that checkpoints hold.
#[derive(Default)]
struct Marked {
    packs: HashSet<String>,
    bodies: HashSet<String>,
}

async fn mark(place: &UserNamespaces, roots: HashSet<PageId>, pages_max: usize) -> Result<Marked> {
    let mut seen = roots;
    let mut waiting: Vec<PageId> = seen.iter().copied().collect();
    let mut marked = Marked::default();
    while !waiting.is_empty() {
        let some = waiting.split_off(waiting.len().saturating_sub(pages_max));
        marked.packs.extend(some.iter().map(|id| pack_key(id.pack)));
        for page in place.pages.pages(&some).await? {
            match page {
                Page::Inner(children) => {
                    let ids = children.iter().filter_map(|child| child.link.id());
                    waiting.extend(ids.filter(|id| seen.insert(*id)));
                }
                Page::Leaf(rows) => {
                    let bodies = rows.iter().map(|row| &row.node).filter(|node| node.size_bytes() > 0).filter_map(|node| node.body());
                    marked.bodies.extend(bodies.map(|body| super::pages::body_key(&body.hash)));
                }
            }
        }
    }
    Ok(marked)
}

struct Sweep<'s> {
    store: &'s dyn Store,
    /// The version of the user's partition when the sweep began.
    began: Version,
    dry_run: bool,
    /// The most rows that are removed at once.
    rows: usize,
}

impl Sweep<'_> {
    /// Removes the rows of a namespace that are not held. Returns their number, and the total of the sizes in their meta.
    async fn rows(&self, namespace: &Namespace, is_held: impl Fn(&str) -> bool) -> Result<(u64, u64)> {
        let mut options = ScanOptions::new();
        let (mut count, mut size_bytes) = (0, 0);
        loop {
            let page = self.store.scan(namespace, options.clone()).await?;
            let unheld: Vec<_> = items(page.entries).filter(|item| item.version <= self.began && !is_held(&item.key)).collect();
            let mut unheld = &unheld[..];
            while !unheld.is_empty() {
                let (some, rest) = unheld.split_at(self.some(unheld)?);
                for item in self.remove(namespace, some).await? {
                    count += 1;
                    size_bytes += size_of(item)?;
                }
                unheld = rest;
            }
            match page.next {
                Some(next) => options.start_after = Some(next),
                None => return Ok((count, size_bytes)),
            }
        }
    }

    /// Returns how many of the rows to remove at once, at least one.
    fn some(&self, unheld: &[Item]) -> Result<usize> {
        let mut bytes = 0;
        for (count, item) in unheld.iter().enumerate() {
            bytes += size_of(item)?;
            if count > 0 && (count == self.rows || bytes > BATCH_BYTES) {
                return Ok(count);
            }
        }
        Ok(unheld.len())
    }

    /// Removes rows that still have their scanned versions, and returns them.
    async fn remove<'i>(&self, namespace: &Namespace, items: &'i [Item]) -> Result<Vec<&'i Item>> {
        let mut rest: Vec<&Item> = items.iter().collect();
        while !self.dry_run && !rest.is_empty() {
            let batch = rest.iter().fold(Batch::new(), |batch, item| {
                batch.expect(namespace, item.key.as_str(), Condition::Version(item.version)).delete(namespace, item.key.as_str())
            });
            match self.store.commit(batch).await {
                Ok(_) => break,
                // The row was put again, or another sweep removed it.
                Err(error) if error.kind() == ErrorKind::Conflict => match error.change() {
                    Some(index) if index < rest.len() => drop(rest.remove(index)),
                    _ => return Err(error),
                },
                Err(error) => return Err(error),
            }
        }
        Ok(rest)
    }
}

/// Returns the size of the content of a row, 0 for a pack of pages.
fn size_of(item: &Item) -> Result<u64> {
    if item.meta.is_empty() { Ok(0) } else { record::decode(&item.meta) }
}
