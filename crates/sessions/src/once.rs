//! Idempotency keys. A commit writes its key among its rows, so a repetition is recognised even if the process died before it answered.

use crate::rows::{Head, Part};
use crate::sessions::Sessions;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::fmt;
use treehold_core::error::{Error, Result};
use treehold_core::json::{row, stored};
use treehold_core::ops::Version;
use treehold_store::{Batch, Condition, escape_key};

/// The longest idempotency key in bytes.
pub const IDEMPOTENCY_KEY_BYTES_MAX: usize = 255;

/// The source of the error for an idempotency key that was used for another write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct KeyReused;

impl fmt::Display for KeyReused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the idempotency key was used for another write")
    }
}

impl std::error::Error for KeyReused {}

/// What a write with an idempotency key did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct KeyUse {
    /// Whether an earlier call with the same key made the write.
    pub repeated: bool,
    /// When the key expires.
    pub expires_at: Option<Timestamp>,
}

/// An idempotency key and a digest of the write that it stands for.
#[derive(Debug)]
pub(crate) struct Once {
    key: String,
    digest: String,
}

/// An earlier write with the same key.
#[derive(Debug)]
pub(crate) struct Earlier {
    /// The version of the key, less than those of the rows that the same commit appended.
    pub(crate) version: Version,
    pub(crate) expires_at: Option<Timestamp>,
    /// The result, if the write was an append of messages.
    pub(crate) appended: Option<Value>,
}

impl Earlier {
    pub(crate) fn key_use(&self) -> KeyUse {
        KeyUse { repeated: true, expires_at: self.expires_at }
    }
}

/// The row of a key.
#[derive(Serialize, Deserialize)]
struct KeyRow {
    digest: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    appended: Option<Value>,
}

impl Once {
    /// Makes the key of a write from the texts that make it up.
    ///
    /// # Errors
    /// [`InvalidArgument`](treehold_core::error::ErrorKind::InvalidArgument) for an empty key or one over [`IDEMPOTENCY_KEY_BYTES_MAX`].
    pub(crate) fn new<'a>(key: &str, texts: impl IntoIterator<Item = &'a str>) -> Result<Self> {
        if key.is_empty() || key.len() > IDEMPOTENCY_KEY_BYTES_MAX {
            let message = format!("an idempotency key must have 1 to {IDEMPOTENCY_KEY_BYTES_MAX} bytes");
            return Err(Error::invalid_argument(message));
        }
        let mut hasher = blake3::Hasher::new();
        for text in texts {
            hasher.update(&(text.len() as u64).to_le_bytes());
            hasher.update(text.as_bytes());
        }
        Ok(Self { key: key.to_owned(), digest: hasher.finalize().to_hex().to_string() })
    }

    /// Returns the earlier write with this key.
    ///
    /// # Errors
    /// [`InvalidArgument`](treehold_core::error::ErrorKind::InvalidArgument) from [`KeyReused`] if the key was used for another write, and
    /// errors of the store.
    pub(crate) async fn find(&self, sessions: &Sessions, head: &Head) -> Result<Option<Earlier>> {
        let Some(item) = sessions.store.get(&head.part(Part::Keys)?, &escape_key(&self.key)).await? else { return Ok(None) };
        let earlier: KeyRow = stored("idempotency key", &item.value)?;
        if earlier.digest != self.digest {
            let message = format!("the idempotency key `{}` was used for another write; use a new one", self.key.escape_debug());
            return Err(Error::invalid_argument(message).with_source(KeyReused));
        }
        Ok(Some(Earlier { version: item.version, expires_at: item.expires_at, appended: earlier.appended }))
    }

    /// Adds the key to a commit, which fails if another one has written it meanwhile.
    pub(crate) fn put(&self, batch: Batch, sessions: &Sessions, head: &Head, appended: Option<Value>) -> Result<Batch> {
        let (rows, key) = (head.part(Part::Keys)?, escape_key(&self.key));
        let value = row(&KeyRow { digest: self.digest.clone(), appended });
        Ok(batch.expect(&rows, &key, Condition::Absent).put_for(&rows, key, value, sessions.options.idempotency_time))
    }

    /// Returns what a commit made now did.
    pub(crate) fn used(sessions: &Sessions) -> KeyUse {
        let expires_at = sessions.clock.now().checked_add(sessions.options.idempotency_time).ok();
        KeyUse { repeated: false, expires_at }
    }
}
