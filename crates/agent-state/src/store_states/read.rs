//! Reading a value: its head, and the messages of its window.

use super::StoreStates;
use super::head::{Look, decoded};
use crate::contract::StateVersion;
use crate::rows::{Form, Owner, corrupt, position_key};
use crate::slot::StateSlot;
use crate::value::{Body, Digest, NO_MESSAGES, Segment, chain, hex};
use bytes::Bytes;
use treehold_core::error::Result;
use treehold_core::retry::Attempts;
use treehold_core::work;
use treehold_store::{Item, ScanEntry, ScanOptions};

/// The most rows of a log that are read at once.
const PAGE_ROWS: u64 = 1_000;

impl StoreStates {
    /// Reads a value and puts it together; `None` if it is absent.
    pub(super) async fn read<T: Send + 'static>(
        &self,
        slot: &StateSlot,
        form: Form,
        key: &str,
        make: fn(&Body, &[Bytes]) -> Result<T>,
    ) -> Result<Option<(T, StateVersion)>> {
        self.check_key(key)?;
        let owner = self.owner(slot.user())?;
        let (mut attempts, mut missing_at) = (Attempts::new(), None);
        loop {
            let seen = self.look(&owner, slot, form, key, Look::ToRead).await?;
            let Some(head) = seen.live() else { return Ok(None) };
            let body = decoded(head).await?;
            if let Some(items) = self.read_window(&owner, &head.meta.data, &body, true).await? {
                let bytes = items.iter().fold(head.value.len(), |bytes, item| bytes.saturating_add(item.value.len()));
                let value = work::run(bytes as u64, move |_| make(&body, &messages_of(&body, items)?)).await??;
                return Ok(Some((value, head.state_version()?)));
            }
            // Another writer replaced the window meanwhile, unless the head is still the same.
            if missing_at.replace(head.version) == Some(head.version) {
                return Err(corrupt("log of a state"));
            }
            attempts.lost().await?;
        }
    }

    /// Reads the digests of the messages of a window; `None` if one is missing.
    pub(super) async fn read_digests(&self, owner: &Owner, data: &str, body: &Body) -> Result<Option<Vec<Digest>>> {
        let Some(window) = &body.window else { return Ok(Some(Vec::new())) };
        let Some(items) = self.read_window(owner, data, body, false).await? else { return Ok(None) };
        let digests: Vec<Digest> = items.iter().map(digest_in).collect::<Result<_>>()?;
        let digest = digests.iter().fold(NO_MESSAGES, |digest, next| chain(&digest, next));
        if hex(&digest) == window.digest { Ok(Some(digests)) } else { Err(corrupt("log of a state")) }
    }

    /// Reads the rows of a window; `None` if one is missing. Cost: one round trip for each run, or more for long ones.
    async fn read_window(&self, owner: &Owner, data: &str, body: &Body, with_values: bool) -> Result<Option<Vec<Item>>> {
        let (Some(window), Some(log)) = (&body.window, &body.log) else { return Ok(Some(Vec::new())) };
        let mut items = Vec::new();
        for run in &window.runs {
            let rows = owner.log_of(data, &log.id, log.segments.get(run.segment).and_then(Segment::id))?;
            let mut next = run.from;
            while next < run.to {
                let limit = (run.to - next).min(PAGE_ROWS) as usize;
                let mut options = ScanOptions::new().with_values(with_values).with_limit(limit);
                options.start_after = next.checked_sub(1).map(position_key);
                let page = self.store().scan(&rows, options).await?;
                let before = next;
                for entry in page.entries {
                    let ScanEntry::Item(item) = entry else { continue };
                    if item.key != position_key(next) {
                        return Ok(None);
                    }
                    items.push(item);
                    next += 1;
                }
                if next == before {
                    return Ok(None);
                }
            }
        }
        Ok(Some(items))
    }
}

/// Reads the digest of a message from its row.
pub(super) fn digest_in(item: &Item) -> Result<Digest> {
    Digest::try_from(&item.meta[..]).map_err(|_| corrupt("message"))
}

/// Returns the messages of a window, after checking that they are those that were saved.
fn messages_of(body: &Body, items: Vec<Item>) -> Result<Vec<Bytes>> {
    let Some(window) = &body.window else { return Ok(Vec::new()) };
    let mut digest = NO_MESSAGES;
    let mut messages = Vec::with_capacity(items.len());
    for item in items {
        digest = chain(&digest, blake3::hash(&item.value).as_bytes());
        messages.push(item.value);
    }
    if hex(&digest) == window.digest { Ok(messages) } else { Err(corrupt("log of a state")) }
}
