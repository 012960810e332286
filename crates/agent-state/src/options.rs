//! Limits, retention and expiry.

use crate::slot::StateSlot;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// The settings of [`AgentStates`](crate::AgentStates).
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct AgentStatesOptions {
    /// The largest value or list in bytes. Default 64 MiB. The store may allow less for what a message does not hold.
    pub value_bytes_max: usize,
    /// The largest message of a `context`, or element of a list, in bytes. Default 16 MiB.
    pub message_bytes_max: usize,
    /// The longest key in bytes. Default 255.
    pub key_bytes_max: usize,
    /// The most keys of a session. Default 1,000.
    pub keys_max: usize,
    /// The most entries of one page. Default 1,000.
    pub page_max: usize,
    /// How long a message stays readable after it left its value; `None` keeps it as long as the session. Default 30 days.
    pub retention: Option<Duration>,
    /// When sessions expire. By default never.
    pub expiry: Expiry,
}

impl Default for AgentStatesOptions {
    fn default() -> Self {
        Self {
            value_bytes_max: 64 << 20,
            message_bytes_max: 16 << 20,
            key_bytes_max: 255,
            keys_max: 1_000,
            page_max: 1_000,
            retention: Some(Duration::from_secs(30 * 24 * 60 * 60)),
            expiry: Expiry::never(),
        }
    }
}

impl AgentStatesOptions {
    /// Starts from the defaults.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the largest value or list in bytes.
    #[must_use]
    pub fn with_value_bytes_max(mut self, bytes: usize) -> Self {
        self.value_bytes_max = bytes;
        self
    }

    /// Sets the largest message in bytes.
    #[must_use]
    pub fn with_message_bytes_max(mut self, bytes: usize) -> Self {
        self.message_bytes_max = bytes;
        self
    }

    /// Sets the longest key in bytes; more than 255 count as 255.
    #[must_use]
    pub fn with_key_bytes_max(mut self, bytes: usize) -> Self {
        self.key_bytes_max = bytes.min(255);
        self
    }

    /// Sets the most keys of a session.
    #[must_use]
    pub fn with_keys_max(mut self, keys: usize) -> Self {
        self.keys_max = keys;
        self
    }

    /// Sets the most entries of one page.
    #[must_use]
    pub fn with_page_max(mut self, entries: usize) -> Self {
        self.page_max = entries;
        self
    }

    /// Sets how long a message stays readable after it left its value; `None` keeps it as long as the session.
    #[must_use]
    pub fn with_retention(mut self, retention: Option<Duration>) -> Self {
        self.retention = retention;
        self
    }

    /// Sets when sessions expire. An expired session is absent at once. A sweep frees its space, later by less than a quarter of the time to
    /// live, or than 64 seconds if that is more, and never by over 12 days.
    #[must_use]
    pub fn with_expiry(mut self, expiry: Expiry) -> Self {
        self.expiry = expiry;
        self
    }
}

/// When sessions expire, by their class. A save renews the time. An expired session is absent as a whole.
///
/// # Examples
/// ```
/// use std::time::Duration;
/// use treehold_agent_state::{Expiry, StateSlot};
///
/// let day = Duration::from_secs(24 * 60 * 60);
/// let expiry = Expiry::never().with_prefix("guest-", Some(day)).with_prefix("guest-vip-", None);
/// let of = |session| Ok::<_, treehold_core::Error>(expiry.time_to_live(&StateSlot::new(None, session)?));
/// assert_eq!(of("guest-7")?, Some(day));
/// assert_eq!(of("guest-vip-7")?, None);
/// assert_eq!(of("s1")?, None);
/// # Ok::<(), treehold_core::Error>(())
/// ```
#[derive(Clone, Default)]
pub struct Expiry {
    default: Option<Duration>,
    prefixes: Vec<(String, Option<Duration>)>,
    by: Option<Arc<TimeToLive>>,
}

/// Decides how long a session lives.
type TimeToLive = dyn Fn(&StateSlot) -> Option<Duration> + Send + Sync;

/// The shortest time that a session lives without a save.
const TIME_TO_LIVE_MIN: Duration = Duration::from_secs(1);

impl Expiry {
    /// Keeps every session until it is deleted.
    pub fn never() -> Self {
        Self::default()
    }

    /// Lets every session expire when it was not saved for this long, at least a second.
    pub fn after(time_to_live: Duration) -> Self {
        Self { default: Some(time_to_live), ..Self::default() }
    }

    /// Asks a function how long a session lives without a save; `None` means until it is deleted. It must return the same time for a slot
    /// each time. Otherwise the last save decides.
    pub fn by(time_to_live: impl Fn(&StateSlot) -> Option<Duration> + Send + Sync + 'static) -> Self {
        Self { by: Some(Arc::new(time_to_live)), ..Self::default() }
    }

    /// Adds a class: the sessions whose ids start with a prefix. The longest matching prefix decides; of equal ones, the last.
    #[must_use]
    pub fn with_prefix(mut self, prefix: impl Into<String>, time_to_live: Option<Duration>) -> Self {
        self.prefixes.push((prefix.into(), time_to_live));
        self
    }

    /// Returns how long a session lives without a save; `None` means until it is deleted.
    pub fn time_to_live(&self, slot: &StateSlot) -> Option<Duration> {
        let matching = self.prefixes.iter().filter(|(prefix, _)| slot.session().starts_with(prefix.as_str()));
        let class = matching.max_by_key(|(prefix, _)| prefix.len()).map(|(_, time_to_live)| *time_to_live);
        let found = class.unwrap_or_else(|| self.by.as_ref().map_or(self.default, |by| by(slot)));
        found.map(|time_to_live| time_to_live.max(TIME_TO_LIVE_MIN))
    }
}

impl fmt::Debug for Expiry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("Expiry");
        debug.field("default", &self.default).field("prefixes", &self.prefixes).field("by", &self.by.is_some()).finish()
    }
}
