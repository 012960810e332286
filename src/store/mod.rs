//! Namespaced rows: the one trait that holds everything durable.
//!
//! A [`Store`] is an ordered map from (namespace, key) to an [`Item`] with a small `meta` and a body. Reads are methods,
//! every mutation is a [`Batch`] for the one method [`commit`](Store::commit): preconditions, puts and deletes, all or
//! nothing. Versions come from one counter of the store and only grow. A scan pages by key, never by offset, and does not
//! read bodies unless asked; with a delimiter it passes over whole subtrees by seeking.
//!
//! Start with [`MemoryStore`], the reference; the other engines are one file each beside it, behind a feature of their name.

use crate::error::{Error, ErrorKind, Result};
use crate::ops::{Durability, Version};
use async_trait::async_trait;
use bytes::Bytes;
use jiff::Timestamp;
use serde::Serialize;
use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

#[cfg(any(feature = "sled", feature = "sqlite"))]
mod committer;
mod memory;
mod page;
#[cfg(feature = "sled")]
mod sled;
#[cfg(feature = "sqlite")]
mod sqlite;

pub use memory::MemoryStore;
#[cfg(feature = "sled")]
pub use sled::{SledOptions, SledStore};
#[cfg(feature = "sqlite")]
pub use sqlite::{SqliteOptions, SqliteStore};

/// The longest key in bytes.
pub const KEY_BYTES_MAX: usize = 4096;

/// The longest `meta` of an item in bytes.
pub const META_BYTES_MAX: usize = 64 << 10;

/// The most components of a namespace.
pub const NAMESPACE_COMPONENTS_MAX: usize = 16;

/// Namespaced key-value rows with conditional, atomic batches.
///
/// `Display` names the store as a configuration would, without secrets: `sqlite:agent.db`.
#[async_trait]
pub trait Store: Send + Sync + fmt::Display + fmt::Debug {
    /// Declares what the engine offers.
    fn capabilities(&self) -> StoreCapabilities;

    /// Returns one item with its body, or none. An item whose time to live is over is absent at once.
    ///
    /// Cost: one round trip.
    ///
    /// # Errors
    /// [`Unavailable`](ErrorKind::Unavailable), [`Corrupt`](ErrorKind::Corrupt) or [`Internal`](ErrorKind::Internal) by the engine; never an absent item instead.
    async fn get(&self, namespace: &Namespace, key: &str) -> Result<Option<Item>>;

    /// Returns several items in the order of `keys`, all as of one moment; without `with_values` the bodies are not read.
    ///
    /// Cost: one round trip, however many keys.
    ///
    /// # Errors
    /// As [`Store::get`].
    async fn get_many(&self, namespace: &Namespace, keys: &[&str], with_values: bool) -> Result<Vec<Option<Item>>>;

    /// Returns a page of one namespace in key order, all as of one moment.
    ///
    /// Cost: one round trip a page; with a delimiter one seek for each group, whatever lies in it.
    ///
    /// # Errors
    /// As [`Store::get`].
    async fn scan(&self, namespace: &Namespace, options: ScanOptions) -> Result<Scan>;

    /// Returns a page of the namespaces that hold at least one live item, in order.
    ///
    /// # Errors
    /// As [`Store::get`].
    async fn namespaces(&self, options: NamespacesOptions) -> Result<NamespacePage>;

    /// Applies a batch: every precondition is checked and every write done as one step that others see whole or not at all.
    ///
    /// Returns the versions of the puts, in their order. All puts of one batch are newer than anything committed before, and
    /// no two are the same. Returns when the batch is as durable as [`StoreCapabilities::durability`] says. Writes take
    /// effect in the order they stand in, so a later one of the same key wins. Cost: one round trip.
    ///
    /// # Errors
    /// [`Conflict`](ErrorKind::Conflict) when a precondition does not hold ([`Error::change`] is its index and
    /// [`Error::current_version`] what it met), [`TooLarge`](ErrorKind::TooLarge) for a body over the engine's limit, before
    /// anything is sent, and the engine's own as in [`Store::get`].
    async fn commit(&self, batch: Batch) -> Result<Vec<Version>>;

    /// Returns the version of the newest commit anywhere in the store: it grows whenever anything changes, deletes included.
    /// What polls for changes compares it. An item whose time is over, or that is swept then, is no commit.
    ///
    /// # Errors
    /// As [`Store::get`].
    async fn current_version(&self) -> Result<Version>;

    /// Removes up to `limit` items whose time to live is over and returns how many it removed.
    ///
    /// # Errors
    /// As [`Store::get`].
    async fn sweep(&self, limit: usize) -> Result<usize>;
}

#[async_trait]
impl<S: Store + ?Sized> Store for Arc<S> {
    fn capabilities(&self) -> StoreCapabilities {
        (**self).capabilities()
    }

    async fn get(&self, namespace: &Namespace, key: &str) -> Result<Option<Item>> {
        (**self).get(namespace, key).await
    }

    async fn get_many(&self, namespace: &Namespace, keys: &[&str], with_values: bool) -> Result<Vec<Option<Item>>> {
        (**self).get_many(namespace, keys, with_values).await
    }

    async fn scan(&self, namespace: &Namespace, options: ScanOptions) -> Result<Scan> {
        (**self).scan(namespace, options).await
    }

    async fn namespaces(&self, options: NamespacesOptions) -> Result<NamespacePage> {
        (**self).namespaces(options).await
    }

    async fn commit(&self, batch: Batch) -> Result<Vec<Version>> {
        (**self).commit(batch).await
    }

    async fn current_version(&self) -> Result<Version> {
        (**self).current_version().await
    }

    async fn sweep(&self, limit: usize) -> Result<usize> {
        (**self).sweep(limit).await
    }
}

/// An ordered list of components that rows live under; matched whole, never as a text prefix.
///
/// As text the components are joined by `/`, with `%`, `/` and control characters inside a component written as `%XX`.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Namespace {
    /// The escaped components, each followed by `/`: so that one namespace is beneath another exactly if its text starts
    /// with the other's, and the order of texts keeps what lies beneath a namespace together.
    encoded: String,
}

impl Namespace {
    /// Makes a namespace of components.
    ///
    /// # Errors
    /// [`InvalidArgument`](ErrorKind::InvalidArgument) for no component, an empty one, too many, or a text over 1,024 bytes.
    pub fn new(components: impl IntoIterator<Item = impl AsRef<str>>) -> Result<Self> {
        let mut encoded = String::new();
        let mut count = 0;
        for component in components {
            let component = component.as_ref();
            if component.is_empty() {
                return Err(Error::invalid_argument("a namespace component is empty; leave it out or name it"));
            }
            for character in component.chars() {
                if character == '%' || character == '/' || character.is_control() {
                    let mut buffer = [0; 4];
                    for byte in character.encode_utf8(&mut buffer).bytes() {
                        encoded.push_str(&format!("%{byte:02X}"));
                    }
                } else {
                    encoded.push(character);
                }
            }
            encoded.push('/');
            count += 1;
        }
        if count == 0 {
            return Err(Error::invalid_argument("a namespace needs at least one component"));
        }
        if count > NAMESPACE_COMPONENTS_MAX || encoded.len() > 1024 {
            return Err(Error::invalid_argument(format!(
                "the namespace is too long; use at most {NAMESPACE_COMPONENTS_MAX} components and 1024 bytes in all"
            )));
        }
        Ok(Self { encoded })
    }

    /// Parses the text that `Display` prints.
    ///
    /// # Errors
    /// [`InvalidArgument`](ErrorKind::InvalidArgument) for an empty component or a bad escape.
    pub fn parse(text: &str) -> Result<Self> {
        let components = text
            .strip_suffix('/')
            .unwrap_or(text)
            .split('/')
            .map(|component| {
                unescape(component).ok_or_else(|| {
                    Error::invalid_argument(format!("the namespace `{text}` has a bad escape; write `%25` for a percent sign"))
                })
            })
            .collect::<Result<Vec<_>>>()?;
        Self::new(components)
    }

    /// Returns the components, unescaped.
    pub fn components(&self) -> impl DoubleEndedIterator<Item = Cow<'_, str>> {
        self.encoded[..self.encoded.len() - 1]
            .split('/')
            .map(|component| unescape(component).expect("components are escaped by construction"))
    }

    /// Tells whether `prefix` is this namespace or one above it, by whole components.
    pub fn starts_with(&self, prefix: &Self) -> bool {
        self.encoded.starts_with(&prefix.encoded)
    }

    /// Returns the text that engines store: escaped components, each followed by `/`. It never holds a control character.
    pub fn encoded(&self) -> &str {
        &self.encoded
    }

    /// Reads back what [`Namespace::encoded`] gave.
    ///
    /// # Errors
    /// [`Corrupt`](ErrorKind::Corrupt) when it is not such a text.
    pub fn from_encoded(encoded: &str) -> Result<Self> {
        Self::parse(encoded)
            .ok()
            .filter(|namespace| namespace.encoded == encoded)
            .ok_or_else(|| Error::new(ErrorKind::Corrupt, "a stored namespace cannot be read back; run `stratafs doctor`"))
    }
}

fn unescape(component: &str) -> Option<Cow<'_, str>> {
    if !component.contains('%') {
        return Some(Cow::Borrowed(component));
    }
    let mut bytes = Vec::with_capacity(component.len());
    let mut rest = component.bytes();
    while let Some(byte) = rest.next() {
        if byte == b'%' {
            let digit = |byte: Option<u8>| char::from(byte?).to_digit(16);
            bytes.push((digit(rest.next())? * 16 + digit(rest.next())?) as u8);
        } else {
            bytes.push(byte);
        }
    }
    String::from_utf8(bytes).ok().map(Cow::Owned)
}

impl fmt::Display for Namespace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.encoded[..self.encoded.len() - 1])
    }
}

impl fmt::Debug for Namespace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Namespace({self})")
    }
}

impl Serialize for Namespace {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// One row. Times are whole microseconds in every store, so an item moves between stores unchanged.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Item {
    /// The key.
    pub key: String,
    /// The small part, which every read returns.
    pub meta: Bytes,
    /// The body; empty when the read did not ask for it.
    pub value: Bytes,
    /// The version of the put that wrote it.
    pub version: Version,
    /// When the key first appeared; a put that replaces an item keeps it.
    pub created_at: Timestamp,
    /// When it was last put.
    pub modified_at: Timestamp,
    /// When it becomes absent by itself: it is live before this moment and absent from it on.
    pub expires_at: Option<Timestamp>,
}

impl Item {
    /// Makes an item.
    pub fn new(key: impl Into<String>, meta: Bytes, value: Bytes, version: Version, created_at: Timestamp, modified_at: Timestamp) -> Self {
        Self { key: key.into(), meta, value, version, created_at, modified_at, expires_at: None }
    }

    /// Sets when it becomes absent by itself.
    #[must_use]
    pub fn with_expires_at(mut self, expires_at: Option<Timestamp>) -> Self {
        self.expires_at = expires_at;
        self
    }
}

/// How to scan a namespace.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ScanOptions {
    /// Only keys that start with this.
    pub prefix: String,
    /// Groups the keys that hold this character after the prefix: each group is returned once, as [`ScanEntry::Group`].
    pub delimiter: Option<char>,
    /// Only keys after this one. A group's name is a key in this sense: what lies in the group is not after it, so the
    /// cursor of a page that ended with a group passes over the group.
    pub start_after: Option<String>,
    /// The most entries returned. Default 1,000. With 0 the page is empty and its `next` tells whether anything is there:
    /// it is `start_after` again, or the empty key, which is before all others.
    pub limit: usize,
    /// Reads bodies. Default false.
    pub with_values: bool,
    /// Ends the page early once the bodies in it are this many bytes. The entry that goes over it is still on the page, so
    /// every page makes progress. Default 8 MiB.
    pub bytes_max: usize,
}

impl Default for ScanOptions {
    fn default() -> Self {
        Self { prefix: String::new(), delimiter: None, start_after: None, limit: 1_000, with_values: false, bytes_max: 8 << 20 }
    }
}

impl ScanOptions {
    /// Scans the whole namespace, keys only, 1,000 entries a page.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the prefix.
    #[must_use]
    pub fn with_prefix(mut self, prefix: impl Into<String>) -> Self {
        self.prefix = prefix.into();
        self
    }

    /// Sets the delimiter.
    #[must_use]
    pub fn with_delimiter(mut self, delimiter: char) -> Self {
        self.delimiter = Some(delimiter);
        self
    }

    /// Goes on after a key or group.
    #[must_use]
    pub fn with_start_after(mut self, key: impl Into<String>) -> Self {
        self.start_after = Some(key.into());
        self
    }

    /// Sets the most entries returned.
    #[must_use]
    pub fn with_limit(mut self, limit: usize) -> Self {
        self.limit = limit;
        self
    }

    /// Reads bodies.
    #[must_use]
    pub fn with_values(mut self, with_values: bool) -> Self {
        self.with_values = with_values;
        self
    }

    /// Sets how many bytes of bodies end a page.
    #[must_use]
    pub fn with_bytes_max(mut self, bytes_max: usize) -> Self {
        self.bytes_max = bytes_max;
        self
    }
}

/// One entry of a scan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ScanEntry {
    /// A row.
    Item(Item),
    /// All keys that share the text up to and with the delimiter.
    Group {
        /// That text.
        name: String,
        /// The row whose key is just that text, if there is one (without its body).
        item: Option<Item>,
    },
}

impl ScanEntry {
    /// Returns the key, or the group's name.
    pub fn key(&self) -> &str {
        match self {
            Self::Item(item) => &item.key,
            Self::Group { name, .. } => name,
        }
    }
}

/// A page of a scan.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Scan {
    /// The entries in key order.
    pub entries: Vec<ScanEntry>,
    /// Where to go on, as [`ScanOptions::start_after`]; none when there is no more.
    pub next: Option<String>,
}

impl Scan {
    /// Makes a page.
    pub fn new(entries: Vec<ScanEntry>, next: Option<String>) -> Self {
        Self { entries, next }
    }
}

/// How to list namespaces.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct NamespacesOptions {
    /// Only this namespace and those beneath it.
    pub beneath: Option<Namespace>,
    /// Only namespaces after this one.
    pub start_after: Option<Namespace>,
    /// The most returned. Default 1,000.
    pub limit: usize,
}

impl Default for NamespacesOptions {
    fn default() -> Self {
        Self { beneath: None, start_after: None, limit: 1_000 }
    }
}

impl NamespacesOptions {
    /// Lists all namespaces, 1,000 a page.
    pub fn new() -> Self {
        Self::default()
    }

    /// Lists a namespace and those beneath it.
    #[must_use]
    pub fn with_beneath(mut self, namespace: Namespace) -> Self {
        self.beneath = Some(namespace);
        self
    }

    /// Goes on after a namespace.
    #[must_use]
    pub fn with_start_after(mut self, namespace: Namespace) -> Self {
        self.start_after = Some(namespace);
        self
    }

    /// Sets the most returned.
    #[must_use]
    pub fn with_limit(mut self, limit: usize) -> Self {
        self.limit = limit;
        self
    }
}

/// A page of namespaces.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct NamespacePage {
    /// The namespaces in order.
    pub namespaces: Vec<Namespace>,
    /// Whether there are more after the last.
    pub more: bool,
}

impl NamespacePage {
    /// Makes a page.
    pub fn new(namespaces: Vec<Namespace>, more: bool) -> Self {
        Self { namespaces, more }
    }
}

/// What must hold for a batch to be applied.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Condition {
    /// No live item has the key.
    Absent,
    /// A live item has the key.
    Exists,
    /// The live item at the key has this version.
    Version(Version),
    /// No live item has a key that starts with the key and is longer than it.
    NoneBeneath,
    /// No live item whose key starts with the key and is longer than it is newer than this version: since a scan that began
    /// after [`Store::current_version`] returned it, nothing was put there. What moves a whole subtree relies on it.
    NoneBeneathSince(Version),
}

impl Condition {
    /// Decides by the version met: of the live item at the key, of [`Condition::NoneBeneath`] any live one beneath it, and of
    /// [`Condition::NoneBeneathSince`] any live one beneath it that is newer.
    pub(crate) fn holds(&self, met: Option<Version>) -> bool {
        match self {
            Self::Absent | Self::NoneBeneath | Self::NoneBeneathSince(_) => met.is_none(),
            Self::Exists => met.is_some(),
            Self::Version(version) => met == Some(*version),
        }
    }
}

/// A condition at a place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Precondition {
    /// The namespace.
    pub namespace: Namespace,
    /// The key; of [`Condition::NoneBeneath`] and [`Condition::NoneBeneathSince`], the prefix.
    pub key: String,
    /// What must hold.
    pub condition: Condition,
}

/// One write of a batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BatchWrite {
    /// Puts an item: creates it, or replaces it whole and keeps its creation time.
    Put {
        /// The namespace.
        namespace: Namespace,
        /// The key.
        key: String,
        /// The small part.
        meta: Bytes,
        /// The body.
        value: Bytes,
        /// How long it lives; for good when none.
        time_to_live: Option<Duration>,
        /// Sets the creation time instead of keeping or starting one: for what is moved or copied in.
        created_at: Option<Timestamp>,
    },
    /// Removes the item of one key; one that is absent is no error.
    Delete {
        /// The namespace.
        namespace: Namespace,
        /// The key.
        key: String,
    },
    /// Removes every item whose key starts with the prefix.
    DeletePrefix {
        /// The namespace.
        namespace: Namespace,
        /// The prefix; the empty one removes the whole namespace.
        prefix: String,
    },
}

/// Preconditions and writes that take effect as one.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Batch {
    /// What must hold.
    pub preconditions: Vec<Precondition>,
    /// What is written, in order.
    pub writes: Vec<BatchWrite>,
}

impl Batch {
    /// Makes an empty batch.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a precondition.
    #[must_use]
    pub fn expect(mut self, namespace: &Namespace, key: impl Into<String>, condition: Condition) -> Self {
        self.preconditions.push(Precondition { namespace: namespace.clone(), key: key.into(), condition });
        self
    }

    /// Adds a put without meta that lives for good.
    #[must_use]
    pub fn put(self, namespace: &Namespace, key: impl Into<String>, value: impl Into<Bytes>) -> Self {
        self.put_with_meta(namespace, key, Bytes::new(), value)
    }

    /// Adds a put that lives for good.
    #[must_use]
    pub fn put_with_meta(mut self, namespace: &Namespace, key: impl Into<String>, meta: impl Into<Bytes>, value: impl Into<Bytes>) -> Self {
        self.writes.push(BatchWrite::Put {
            namespace: namespace.clone(),
            key: key.into(),
            meta: meta.into(),
            value: value.into(),
            time_to_live: None,
            created_at: None,
        });
        self
    }

    /// Adds a delete.
    #[must_use]
    pub fn delete(mut self, namespace: &Namespace, key: impl Into<String>) -> Self {
        self.writes.push(BatchWrite::Delete { namespace: namespace.clone(), key: key.into() });
        self
    }

    /// Adds the delete of every key with a prefix.
    #[must_use]
    pub fn delete_prefix(mut self, namespace: &Namespace, prefix: impl Into<String>) -> Self {
        self.writes.push(BatchWrite::DeletePrefix { namespace: namespace.clone(), prefix: prefix.into() });
        self
    }

    /// Tells whether the batch writes nothing.
    pub fn is_empty(&self) -> bool {
        self.writes.is_empty()
    }

    /// Checks keys, metas and bodies against the limits of a store; every engine calls it before anything is sent.
    ///
    /// # Errors
    /// [`InvalidArgument`](ErrorKind::InvalidArgument) for a key that is empty, too long or holds NUL,
    /// [`TooLarge`](ErrorKind::TooLarge) for a meta or body over the limit.
    pub fn validate(&self, capabilities: &StoreCapabilities) -> Result<()> {
        for write in &self.writes {
            let BatchWrite::Put { key, meta, value, .. } = write else { continue };
            if key.is_empty() || key.contains('\0') {
                return Err(Error::invalid_argument("a key is empty or holds NUL; name the row by a text"));
            }
            if key.len() > KEY_BYTES_MAX {
                return Err(Error::invalid_argument(format!("the key is over {KEY_BYTES_MAX} bytes; shorten it")));
            }
            if meta.len() > META_BYTES_MAX {
                return Err(Error::new(
                    ErrorKind::TooLarge,
                    format!("the meta of a row is over {META_BYTES_MAX} bytes; put it into the value"),
                ));
            }
            if capabilities.value_bytes_max.is_some_and(|max| value.len() as u64 > max) {
                return Err(Error::new(
                    ErrorKind::TooLarge,
                    format!(
                        "the content has {} bytes and this store takes at most {}; split it",
                        value.len(),
                        capabilities.value_bytes_max.unwrap_or_default()
                    ),
                ));
            }
        }
        Ok(())
    }
}

/// Makes the `conflict` of a precondition that did not hold.
pub(crate) fn precondition_failed(index: usize, precondition: &Precondition, current: Option<Version>) -> Error {
    let key = precondition.key.replace('\u{1}', "/");
    let message = match (&precondition.condition, current) {
        (Condition::Absent, _) => format!("`{key}` exists already"),
        (Condition::NoneBeneath, _) => format!("`{key}` is not empty"),
        (Condition::NoneBeneathSince(_), _) => format!("something was put beneath `{key}` meanwhile"),
        (Condition::Exists | Condition::Version(_), None) => format!("`{key}` does not exist any more"),
        (Condition::Exists | Condition::Version(_), Some(version)) => format!("`{key}` has changed: its version is now `{version}`"),
    };
    Error::new(ErrorKind::Conflict, message).with_current_version(current).in_batch(index, 0)
}

/// Cuts a time to whole microseconds, towards the past: what every engine stores. The last second of the calendar, which has
/// no microseconds, is cut to its start.
pub(crate) fn whole_microseconds(time: Timestamp) -> Timestamp {
    let cut = time.as_nanosecond().div_euclid(1_000);
    i64::try_from(cut)
        .ok()
        .and_then(|cut| Timestamp::from_microsecond(cut).ok())
        .unwrap_or_else(|| Timestamp::from_second(time.as_second()).expect("the second of a time is in the calendar"))
}

/// Returns when a time to live that starts now is over; one that goes beyond the calendar ends with it.
pub(crate) fn expiry(now: Timestamp, time_to_live: Duration) -> Timestamp {
    now.checked_add(time_to_live).map_or(whole_microseconds(Timestamp::MAX), whole_microseconds)
}

/// What an engine offers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct StoreCapabilities {
    /// What an acknowledged commit survives.
    pub durability: Durability,
    /// Several processes may use the same data at once.
    pub shared: bool,
    /// The largest body in bytes, where there is a limit.
    pub value_bytes_max: Option<u64>,
}

impl StoreCapabilities {
    /// Declares an engine without limits for one process.
    pub fn new(durability: Durability) -> Self {
        Self { durability, shared: false, value_bytes_max: None }
    }

    /// Sets whether several processes may use the same data.
    #[must_use]
    pub fn with_shared(mut self, shared: bool) -> Self {
        self.shared = shared;
        self
    }

    /// Sets the largest body in bytes.
    #[must_use]
    pub fn with_value_bytes_max(mut self, value_bytes_max: Option<u64>) -> Self {
        self.value_bytes_max = value_bytes_max;
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn namespaces_escape_and_read_back() {
        for components in [&["a"][..], &["a", "b"], &["a/b"], &["a%2Fb"], &["tenant", "ada\u{1}", "é ü"], &["%"]] {
            let namespace = Namespace::new(components).expect("a legal namespace");
            assert_eq!(namespace.components().collect::<Vec<_>>(), components);
            assert_eq!(Namespace::parse(&namespace.to_string()).expect("its own text"), namespace);
            assert_eq!(Namespace::from_encoded(namespace.encoded()).expect("its own text"), namespace);
        }
        assert!(Namespace::new(Vec::<String>::new()).is_err());
        assert!(Namespace::new([""]).is_err());
        assert!(Namespace::parse("a//b").is_err());
        assert!(Namespace::parse("a%zz").is_err());
    }

    #[test]
    fn times_are_cut_to_what_every_engine_can_store() {
        for time in [Timestamp::MIN, Timestamp::MAX, Timestamp::UNIX_EPOCH, Timestamp::now()] {
            let cut = whole_microseconds(time);
            assert!(cut <= time && time.duration_since(cut).as_secs_f64() < 1.0, "{time}");
            assert_eq!(Timestamp::from_microsecond(cut.as_microsecond()).expect("it can be read back"), cut);
        }
        assert_eq!(expiry(Timestamp::now(), Duration::MAX), whole_microseconds(Timestamp::MAX));
    }

    #[test]
    fn a_namespace_holds_only_whole_components() {
        let namespace = |text: &str| Namespace::parse(text).expect("a legal namespace");
        assert!(namespace("a/b").starts_with(&namespace("a")));
        assert!(namespace("a").starts_with(&namespace("a")));
        assert!(!namespace("ab").starts_with(&namespace("a")));
    }
}
