//! JSON objects by namespace and key, with a version that starts at 1 and grows by 1.
//!
//! This is the key-value store of AgentScope's bundle: `get`, `put`, `putIfVersion`, `search` and `delete`. A value keeps its exact text.
//! That is why it does not go through [`JsonStore`](treehold_store::JsonStore), whose searches parse values.
//!
//! An item is a row whose metadata is its version. After a deletion the last version stays for a day in a row without a value, so that a
//! writer that still expects the deleted item does not replace one that was created since.

mod search;

pub use search::{KvCursor, KvPage, KvSearch, OFFSET_MAX, PAGE_MAX};

use crate::owner::{BundleOwner, check_object};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use treehold_core::error::{Error, ErrorKind, Result};
use treehold_core::json::Json;
use treehold_core::ops::Version;
use treehold_core::retry::Attempts;
use treehold_store::{Batch, Condition, Item, Namespace, Store};

/// The longest key in bytes.
pub const KEY_BYTES_MAX: usize = 1024;

/// How long the version of a deleted item is kept.
const GRAVE_KEPT: Duration = Duration::from_secs(24 * 60 * 60);

/// What the key of an item starts with.
const LIVE: char = 'i';

/// What the key of a deleted item's version starts with.
const GRAVE: char = 'g';

/// An item.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct KvItem {
    /// The components of its namespace.
    pub namespace: Vec<String>,
    /// Its key.
    pub key: String,
    /// Its value, a JSON object.
    pub value: Json,
    /// Its version, at least 1.
    pub version: u64,
}

/// The items of an owner in a store. Clones share them.
///
/// # Examples
/// ```
/// use std::sync::Arc;
/// use treehold_agent_state::{BundleOwner, Json, kv::KeyValues};
/// use treehold_store::MemoryStore;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> treehold_core::Result<()> {
/// let items = KeyValues::new(Arc::new(MemoryStore::new()), BundleOwner::of_user("acme", "ada", "helper")?);
/// assert_eq!(items.put(&["notes"], "today", &Json::parse(r#"{"text": "walk the dog"}"#)?).await?, 1);
/// assert_eq!(items.put_if_version(&["notes"], "today", &Json::parse("{}")?, 1).await?, 2);
/// assert!(items.put_if_version(&["notes"], "today", &Json::parse("{}")?, 1).await.is_err());
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct KeyValues {
    store: Arc<dyn Store>,
    owner: BundleOwner,
    value_bytes_max: usize,
}

impl KeyValues {
    /// Opens the items of an owner. A value has at most 1 MiB.
    pub fn new(store: Arc<dyn Store>, owner: BundleOwner) -> Self {
        Self { store, owner, value_bytes_max: 1 << 20 }
    }

    /// Sets the largest value in bytes. Default 1 MiB.
    #[must_use]
    pub fn with_value_bytes_max(mut self, value_bytes_max: usize) -> Self {
        self.value_bytes_max = value_bytes_max;
        self
    }

    /// Returns the owner.
    pub fn owner(&self) -> &BundleOwner {
        &self.owner
    }

    /// Returns the store that keeps the items.
    pub fn store(&self) -> &Arc<dyn Store> {
        &self.store
    }

    /// Returns an item, or `None`. Cost: one round trip.
    ///
    /// # Errors
    /// [`InvalidArgument`](ErrorKind::InvalidArgument) for a bad namespace or key, [`Corrupt`](ErrorKind::Corrupt) for a row that cannot be
    /// read. Otherwise as [`Store::get`].
    pub async fn get<S: AsRef<str>>(&self, namespace: &[S], key: &str) -> Result<Option<KvItem>> {
        let rows = self.rows(namespace)?;
        check_key(key)?;
        let Some(row) = self.store.get(&rows, &live(key)).await? else { return Ok(None) };
        item_of(namespace.iter().map(|component| component.as_ref().to_owned()).collect(), &row).map(Some)
    }

    /// Creates or replaces an item. Returns its version. Cost: two round trips; a lost race is repeated.
    ///
    /// # Errors
    /// [`InvalidArgument`](ErrorKind::InvalidArgument) for a bad namespace or key and for a value that is not a JSON object,
    /// [`TooLarge`](ErrorKind::TooLarge) for a value over the limit. Otherwise as [`Store::commit`].
    pub async fn put<S: AsRef<str>>(&self, namespace: &[S], key: &str, value: &Json) -> Result<u64> {
        self.write(namespace, key, value, None).await
    }

    /// Replaces the item with this version, or creates it if `expected` is 0. Returns the new version. Cost: two round trips.
    ///
    /// # Errors
    /// [`Conflict`](ErrorKind::Conflict) if the item has another version, which is [`Error::current_version`]; there is none if the item
    /// does not exist. Otherwise as [`KeyValues::put`].
    pub async fn put_if_version<S: AsRef<str>>(&self, namespace: &[S], key: &str, value: &Json, expected: u64) -> Result<u64> {
        self.write(namespace, key, value, Some(expected)).await
    }

    /// Removes an item. Removing an absent one is not an error. Cost: two round trips; a lost race is repeated.
    ///
    /// # Errors
    /// As [`KeyValues::get`].
    pub async fn delete<S: AsRef<str>>(&self, namespace: &[S], key: &str) -> Result<()> {
        let rows = self.rows(namespace)?;
        check_key(key)?;
        let mut attempts = Attempts::new();
        loop {
            let found = self.store.get_many(&rows, &[&live(key)], false).await?;
            let Some(row) = found.into_iter().next().flatten() else { return Ok(()) };
            let version = version_of(&row)?.to_string();
            let batch = Batch::new().expect(&rows, live(key), Condition::Version(row.version)).delete(&rows, live(key)).put_item(
                &rows,
                grave(key),
                version,
                "",
                Some(GRAVE_KEPT),
            );
            match self.store.commit(batch).await {
                Err(error) if error.kind() == ErrorKind::Conflict => attempts.lost().await?,
                done => return done.map(drop),
            }
        }
    }

    async fn write<S: AsRef<str>>(&self, namespace: &[S], key: &str, value: &Json, expected: Option<u64>) -> Result<u64> {
        let rows = self.rows(namespace)?;
        check_key(key)?;
        check_object("value", value, self.value_bytes_max)?;
        let (live, grave) = (live(key), grave(key));
        let mut attempts = Attempts::new();
        loop {
            let found = self.store.get_many(&rows, &[&live, &grave], false).await?;
            let [item, buried] = <[_; 2]>::try_from(found).map_err(|_| Error::new(ErrorKind::Internal, "a store returned too few rows"))?;
            let current = item.as_ref().map(version_of).transpose()?;
            if expected.is_some_and(|expected| expected != current.unwrap_or(0)) {
                return Err(conflict(key, current));
            }
            let last = match current {
                Some(version) => version,
                None => buried.as_ref().map(version_of).transpose()?.unwrap_or(0),
            };
            let next = last.checked_add(1).ok_or_else(|| damaged(key))?;
            let batch = Batch::new()
                .expect(&rows, &*live, condition(item.as_ref()))
                .expect(&rows, &*grave, condition(buried.as_ref()))
                .put_with_meta(&rows, &*live, next.to_string(), value.as_str().to_owned());
            let batch = if buried.is_some() { batch.delete(&rows, &*grave) } else { batch };
            match self.store.commit(batch).await {
                Err(error) if error.kind() == ErrorKind::Conflict => attempts.lost().await?,
                done => return done.map(|_| next),
            }
        }
    }

    fn rows<S: AsRef<str>>(&self, namespace: &[S]) -> Result<Namespace> {
        self.owner.rows("kv", namespace.iter().map(AsRef::as_ref))
    }
}

impl fmt::Debug for KeyValues {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

impl fmt::Display for KeyValues {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "KeyValues({})", self.store)
    }
}

fn live(key: &str) -> String {
    format!("{LIVE}{key}")
}

fn grave(key: &str) -> String {
    format!("{GRAVE}{key}")
}

fn condition(row: Option<&Item>) -> Condition {
    row.map_or(Condition::Absent, |row| Condition::Version(row.version))
}

fn check_key(key: &str) -> Result<()> {
    let problem = match key {
        "" => "is empty; name one".to_owned(),
        long if long.len() > KEY_BYTES_MAX => format!("is over {KEY_BYTES_MAX} bytes; shorten it"),
        bad if bad.contains('\0') => "holds a NUL; remove it".to_owned(),
        _ => return Ok(()),
    };
    Err(Error::invalid_argument(format!("the key {problem}")))
}

fn conflict(key: &str, current: Option<u64>) -> Error {
    let shown: String = key.escape_debug().collect();
    let message = match current {
        Some(version) => format!("`{shown}` has the version {version}; read it and decide again"),
        None => format!("`{shown}` does not exist; expect the version 0 to create it"),
    };
    Error::new(ErrorKind::Conflict, message).with_current_version(current.map(Version::new)).without_effect()
}

fn damaged(key: &str) -> Error {
    let shown: String = key.escape_debug().collect();
    Error::new(ErrorKind::Corrupt, format!("the stored item `{shown}` cannot be read; delete it or restore a backup"))
}

/// Reads the version in the metadata of an item or of a deleted item.
fn version_of(row: &Item) -> Result<u64> {
    let number = std::str::from_utf8(&row.meta).ok().and_then(|meta| meta.parse().ok()).filter(|number| *number > 0);
    number.ok_or_else(|| damaged(row.key.get(1..).unwrap_or_default()))
}

fn item_of(namespace: Vec<String>, row: &Item) -> Result<KvItem> {
    let key = row.key.strip_prefix(LIVE).unwrap_or_default();
    let value = Json::from_bytes(&row.value).map_err(|error| damaged(key).with_source(error))?;
    Ok(KvItem { namespace, key: key.to_owned(), value, version: version_of(row)? })
}
