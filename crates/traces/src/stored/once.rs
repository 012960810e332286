//! Idempotency keys. A commit writes its key among its rows, so a repetition is recognised even if the process died before it answered.

use super::StoredTraces;
use super::draft::Draft;
use super::rows::{Opened, Part};
use crate::contract::AddOptions;
use crate::model::NewMessage;
use serde::{Deserialize, Serialize};
use std::fmt;
use treehold_core::error::{Error, Result};
use treehold_core::json::{row, stored};
use treehold_store::{Condition, escape_key};

/// The longest idempotency key in bytes.
const KEY_BYTES_MAX: usize = 255;

/// The source of the error for an idempotency key that was used for other messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct KeyReused;

impl fmt::Display for KeyReused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the idempotency key was used for other messages")
    }
}

impl std::error::Error for KeyReused {}

/// An idempotency key and a digest of the messages that it stands for.
#[derive(Debug)]
pub(super) struct Once {
    key: String,
    digest: String,
}

/// What an earlier call with the same key added.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(super) struct Earlier {
    /// The sequence of the first message.
    pub(super) first: u64,
    /// The number of messages.
    pub(super) count: usize,
    /// The head after the call.
    pub(super) head_sequence: u64,
}

/// The row of a key.
#[derive(Serialize, Deserialize)]
struct KeyRow {
    digest: String,
    added: Earlier,
}

impl Once {
    /// Makes the key of a call, if it has one.
    ///
    /// # Errors
    /// [`InvalidArgument`](treehold_core::error::ErrorKind::InvalidArgument) for an empty key or one over [`KEY_BYTES_MAX`].
    pub(super) fn of(messages: &[NewMessage], options: &AddOptions) -> Result<Option<Self>> {
        let Some(key) = options.idempotency_key.clone() else { return Ok(None) };
        if key.is_empty() || key.len() > KEY_BYTES_MAX {
            return Err(Error::invalid_argument(format!("an idempotency key must have 1 to {KEY_BYTES_MAX} bytes")));
        }
        let mut hasher = blake3::Hasher::new();
        hasher.update(&row(&options.expected_head));
        hasher.update(&row(&messages));
        if let Some(update) = &options.update {
            hasher.update(&row(update));
        }
        Ok(Some(Self { key, digest: hasher.finalize().to_hex().to_string() }))
    }

    /// Returns what an earlier call with this key added.
    ///
    /// # Errors
    /// [`InvalidArgument`](treehold_core::error::ErrorKind::InvalidArgument) from [`KeyReused`] if the key was used for other messages, and
    /// errors of the store.
    pub(super) async fn find(&self, traces: &StoredTraces, opened: &Opened) -> Result<Option<Earlier>> {
        let Some(item) = traces.store().get(&traces.part(opened, Part::Keys)?, &escape_key(&self.key)).await? else { return Ok(None) };
        let earlier: KeyRow = stored("idempotency key", &item.value)?;
        if earlier.digest != self.digest {
            let message = format!("the idempotency key `{}` was used for other messages; use a new one", self.key.escape_debug());
            return Err(Error::invalid_argument(message).with_source(KeyReused).without_effect());
        }
        Ok(Some(earlier.added))
    }

    /// Adds the key to a change.
    pub(super) fn put(&self, draft: &mut Draft<'_>, traces: &StoredTraces, added: Earlier) -> Result<()> {
        let (keys, key) = (draft.part(Part::Keys)?, escape_key(&self.key));
        let value = row(&KeyRow { digest: self.digest.clone(), added });
        let time = traces.options().idempotency_time;
        draft.add(|batch| batch.expect(&keys, &key, Condition::Absent).put_for(&keys, &key, value, time));
        Ok(())
    }
}
