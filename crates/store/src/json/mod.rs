//! JSON items for applications: a thin, typed interface to any [`Store`].
//!
//! The vocabulary is that of LangGraph's `BaseStore` (namespaces, keys, values, filters, time to live), and so are most
//! rules. The differences: a namespace is matched exactly unless [`JsonSearch::with_beneath`] includes its descendants,
//! pages continue by key instead of by offset, a put keeps the creation time, and every item has a version that a put
//! can require. Items are ordinary rows, so `treehold store` and every engine serve them.
//!
//! Start with [`JsonStore`]. `filter.rs` implements filters, `search.rs` searches and `namespaces.rs` the listing of
//! namespaces.

use super::{Batch, Condition, Item, Namespace, Store};
use bytes::Bytes;
use futures::StreamExt as _;
use jiff::Timestamp;
use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::time::Duration;
use treehold_core::backoff::LostRaces;
use treehold_core::clock::Clock;
use treehold_core::error::{Error, ErrorKind, Result};
use treehold_core::ops::Version;

mod filter;
mod namespaces;
mod search;

pub use filter::JsonFilter;
pub use namespaces::{JsonNamespacePage, NamespaceSearch};
pub use search::{JsonCursor, JsonFound, JsonPage, JsonSearch};

/// The prefix of every item's metadata. Rows without metadata are items too if they contain JSON.
const MARK: &str = "json";

/// A read does not extend an item's life during the first 1/10 of its time to live.
const REFRESH_AFTER: u32 = 10;

/// How many expiries are extended concurrently.
const REFRESHES_AT_ONCE: usize = 16;

/// JSON items in a store.
///
/// # Examples
/// ```
/// use serde_json::{Value, json};
/// use std::sync::Arc;
/// use treehold_store::{Condition, JsonFilter, JsonSearch, JsonStore, MemoryStore, Namespace};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> treehold_core::Result<()> {
/// let items = JsonStore::new(Arc::new(MemoryStore::new()));
/// let tasks = Namespace::new(["ada", "tasks"])?;
/// let version = items.put(&tasks, "walk", &json!({"dog": "Rex", "minutes": 30})).await?;
/// items.put(&tasks, "feed", &json!({"dog": "Rex", "minutes": 5})).await?;
///
/// let long = JsonSearch::new().with_filter(JsonFilter::parse(&json!({"minutes": {"$gte": 10}}))?);
/// let found = items.search::<Value>(&tasks, &long).await?.items;
/// assert_eq!(found.iter().map(|item| &*item.key).collect::<Vec<_>>(), ["walk"]);
///
/// // A put that requires the version read before fails once somebody else has put the item.
/// items.put_if(&tasks, "walk", &json!({"done": true}), Condition::Version(version)).await?;
/// assert!(items.put_if(&tasks, "walk", &json!({"done": false}), Condition::Version(version)).await.is_err());
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct JsonStore {
    store: Arc<dyn Store>,
    time_to_live: Option<Duration>,
    refreshes: bool,
    clock: Clock,
}

/// An item.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[non_exhaustive]
pub struct JsonItem<T> {
    /// The key.
    pub key: String,
    /// The value.
    pub value: T,
    /// The version of the put that wrote it, for a [conditional put](JsonStore::put_if).
    pub version: Version,
    /// When the key first appeared.
    pub created_at: Timestamp,
    /// When it was last put.
    pub modified_at: Timestamp,
    /// When the item expires. If this read extended its life, the expiry before the extension.
    pub expires_at: Option<Timestamp>,
}

impl JsonStore {
    /// Keeps items in `store`, without expiry.
    pub fn new(store: Arc<dyn Store>) -> Self {
        Self { store, time_to_live: None, refreshes: true, clock: Clock::system() }
    }

    /// Sets the clock that decides whether a read extends an item's life. Use the store's clock.
    #[must_use]
    pub fn with_clock(mut self, clock: Clock) -> Self {
        self.clock = clock;
        self
    }

    /// Sets how long an item lives after its last put, or after its last read with
    /// [`with_refresh_on_read`](Self::with_refresh_on_read). Existing items keep theirs.
    #[must_use]
    pub fn with_time_to_live(mut self, time_to_live: Option<Duration>) -> Self {
        self.time_to_live = time_to_live;
        self
    }

    /// Sets whether a read restarts an item's time to live. Default true. Restarting writes the expiry only and leaves
    /// the version unchanged. It is skipped while less than a tenth of the time to live has passed since the last put
    /// or refresh.
    #[must_use]
    pub fn with_refresh_on_read(mut self, refreshes: bool) -> Self {
        self.refreshes = refreshes;
        self
    }

    /// Returns the underlying store.
    pub fn store(&self) -> &Arc<dyn Store> {
        &self.store
    }

    /// Returns whether a row can be an item, judging by its metadata: rows put by other means have none, and rows with
    /// other metadata belong to files or threads.
    pub fn is_item(row: &Item) -> bool {
        row.meta.is_empty() || row.meta.starts_with(MARK.as_bytes())
    }

    /// Returns one item, if it exists.
    ///
    /// Cost: one round trip, plus one if the item's life is extended.
    ///
    /// # Errors
    /// [`InvalidArgument`](ErrorKind::InvalidArgument) when the row is not JSON or does not deserialize to `T`.
    /// Otherwise as [`Store::get`].
    pub async fn get<T: DeserializeOwned>(&self, namespace: &Namespace, key: &str) -> Result<Option<JsonItem<T>>> {
        let Some(row) = self.store.get(namespace, key).await? else { return Ok(None) };
        let item = item_of(namespace, &row)?;
        self.refresh(&[(namespace, &row)]).await;
        Ok(Some(item))
    }

    /// Creates an item, or replaces one and keeps its creation time. Returns its version.
    ///
    /// Cost: one round trip.
    ///
    /// # Errors
    /// [`InvalidArgument`](ErrorKind::InvalidArgument) for a value that JSON cannot represent, such as a map whose keys
    /// are not strings. Otherwise as [`Store::commit`].
    pub async fn put<T: Serialize + ?Sized>(&self, namespace: &Namespace, key: &str, value: &T) -> Result<Version> {
        self.write(Batch::new(), namespace, key, value, self.time_to_live).await
    }

    /// Puts an item that lives for `time_to_live`, or forever, whatever this store's default is.
    ///
    /// # Errors
    /// As [`JsonStore::put`].
    pub async fn put_for<T: Serialize + ?Sized>(
        &self,
        namespace: &Namespace,
        key: &str,
        value: &T,
        time_to_live: Option<Duration>,
    ) -> Result<Version> {
        self.write(Batch::new(), namespace, key, value, time_to_live).await
    }

    /// Puts an item if `condition` holds: `Absent` only creates, `Version` only replaces that version.
    ///
    /// Cost: one round trip.
    ///
    /// # Errors
    /// [`Conflict`](ErrorKind::Conflict) with the current version when the condition does not hold. Otherwise as
    /// [`JsonStore::put`].
    pub async fn put_if<T: Serialize + ?Sized>(
        &self,
        namespace: &Namespace,
        key: &str,
        value: &T,
        condition: Condition,
    ) -> Result<Version> {
        self.write(Batch::new().expect(namespace, key, condition), namespace, key, value, self.time_to_live).await
    }

    /// Replaces an item's value with the result of `change`, and retries with the new value when somebody else put the
    /// item meanwhile, so no update is lost. Returns the new version. `change` receives `None` if there is no item, and
    /// may be called several times.
    ///
    /// Cost: two round trips per attempt.
    ///
    /// # Errors
    /// Those of `change`. [`Conflict`](ErrorKind::Conflict) when [`LostRaces::MAX`] attempts in a row lose to other writers. Otherwise
    /// as [`JsonStore::get`] and [`JsonStore::put`].
    pub async fn update<T: Serialize + DeserializeOwned>(
        &self,
        namespace: &Namespace,
        key: &str,
        mut change: impl FnMut(Option<T>) -> Result<T>,
    ) -> Result<Version> {
        let mut races = LostRaces::new();
        loop {
            let row = self.store.get(namespace, key).await?;
            let condition = row.as_ref().map_or(Condition::Absent, |row| Condition::Version(row.version));
            let value = row.as_ref().map(|row| item_of(namespace, row)).transpose()?.map(|item: JsonItem<T>| item.value);
            // An item keeps the time to live it was put with.
            let time_to_live = row.as_ref().map_or(self.time_to_live, time_to_live_of);
            let batch = Batch::new().expect(namespace, key, condition);
            match self.write(batch, namespace, key, &change(value)?, time_to_live).await {
                Err(error) if error.kind() == ErrorKind::Conflict => {
                    if !races.lost().await {
                        return Err(error);
                    }
                }
                written => return written,
            }
        }
    }

    /// Removes an item. Deleting an absent item is not an error.
    ///
    /// # Errors
    /// As [`Store::commit`].
    pub async fn delete(&self, namespace: &Namespace, key: &str) -> Result<()> {
        self.store.commit(Batch::new().delete(namespace, key)).await.map(drop)
    }

    /// Removes an item if `condition` holds.
    ///
    /// # Errors
    /// [`Conflict`](ErrorKind::Conflict) when the condition does not hold. Otherwise as [`Store::commit`].
    pub async fn delete_if(&self, namespace: &Namespace, key: &str, condition: Condition) -> Result<()> {
        self.store.commit(Batch::new().expect(namespace, key, condition).delete(namespace, key)).await.map(drop)
    }

    async fn write<T: Serialize + ?Sized>(
        &self,
        batch: Batch,
        namespace: &Namespace,
        key: &str,
        value: &T,
        time_to_live: Option<Duration>,
    ) -> Result<Version> {
        let bytes = serde_json::to_vec(value).map_err(|source| {
            Error::invalid_argument(format!("the value of `{key}` cannot be written as JSON: {source}")).with_source(source)
        })?;
        let batch = batch.put_item(namespace, key, meta_of(time_to_live), bytes, time_to_live);
        let versions = self.store.commit(batch).await?;
        versions.first().copied().ok_or_else(|| Error::new(ErrorKind::Internal, "a store returned no version for a put"))
    }

    /// Extends the life of items just read, if enough of it has passed. Failures are only logged, because the values
    /// read are correct regardless.
    async fn refresh(&self, rows: &[(&Namespace, &Item)]) {
        if !self.refreshes {
            return;
        }
        let now = self.clock.now();
        // Take ownership before the first await, so that the future is `Send`.
        let mut touches = Vec::new();
        for (namespace, row) in rows {
            let (Some(time_to_live), Some(expires_at)) = (time_to_live_of(row), row.expires_at) else { continue };
            let begun = expires_at.checked_sub(time_to_live).unwrap_or(row.modified_at);
            let is_young = begun.checked_add(time_to_live / REFRESH_AFTER).is_ok_and(|until| now < until);
            // The version condition keeps the touch from extending an item that was put again meanwhile.
            let batch = Batch::new().expect(namespace, &*row.key, Condition::Version(row.version));
            if !is_young {
                touches.push(self.store.commit(batch.touch(namespace, &*row.key, Some(time_to_live))));
            }
        }
        // Run only a few at once: touches share the store's commits with writers, and a long page must not crowd those
        // out.
        let mut touched = futures::stream::iter(touches).buffer_unordered(REFRESHES_AT_ONCE);
        while let Some(touched) = touched.next().await {
            if let Err(error) = touched
                && error.kind() != ErrorKind::Conflict
            {
                tracing::warn!(%error, "extending the life of an item after a read failed");
            }
        }
    }
}

/// Makes the metadata of an item: the mark and the time to live that reads restart.
fn meta_of(time_to_live: Option<Duration>) -> Bytes {
    match time_to_live {
        Some(duration) => format!("{MARK};ttl={}", duration.as_micros()).into(),
        None => Bytes::from_static(MARK.as_bytes()),
    }
}

/// Returns the time to live that the item was put with.
fn time_to_live_of(row: &Item) -> Option<Duration> {
    let text = std::str::from_utf8(&row.meta).ok()?;
    let micros = text.strip_prefix(MARK)?.strip_prefix(";ttl=")?.parse().ok()?;
    Some(Duration::from_micros(micros))
}

/// Deserializes the item in a row.
fn item_of<T: DeserializeOwned>(namespace: &Namespace, row: &Item) -> Result<JsonItem<T>> {
    if !JsonStore::is_item(row) {
        let message = format!("the row `{}` of `{namespace}` is not a JSON item; it belongs to a file tree or a thread", shown(&row.key));
        return Err(Error::invalid_argument(message));
    }
    let value = serde_json::from_slice(&row.value).map_err(|source| {
        let message = format!("the row `{}` of `{namespace}` does not have the requested JSON type: {source}", shown(&row.key));
        Error::invalid_argument(message).with_source(source)
    })?;
    Ok(with_value(row, value))
}

fn with_value<T>(row: &Item, value: T) -> JsonItem<T> {
    let Item { key, version, created_at, modified_at, expires_at, .. } = row.clone();
    JsonItem { key, value, version, created_at, modified_at, expires_at }
}

fn shown(key: &str) -> String {
    key.escape_debug().collect()
}

#[cfg(test)]
mod tests;
