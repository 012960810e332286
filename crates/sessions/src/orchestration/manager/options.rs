//! Options of a manager.

use crate::sessions::Ids;
use std::time::Duration;
use treehold_core::clock::Clock;

/// Options of an [`OrchestrationManager`](super::OrchestrationManager).
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct ManagerOptions {
    /// The name under which the manager claims the orchestration. A manager with the same name takes over at once, a manager
    /// with another name only when the lease ends. Default: a random name.
    pub holder: String,
    /// How long the claim lasts after the process stopped. A living manager renews it three times as often. Default 30 seconds.
    pub lease: Duration,
    /// The source of the times in events. Default: the system's clock.
    pub clock: Clock,
    /// The source of the ids of events, inputs and jobs. Default: random ids.
    pub ids: Ids,
}

impl Default for ManagerOptions {
    fn default() -> Self {
        Self { holder: Ids::random().next(), lease: Duration::from_secs(30), clock: Clock::system(), ids: Ids::random() }
    }
}

impl ManagerOptions {
    /// Starts from the defaults.
    pub fn new() -> Self {
        Self::default()
    }

    /// Names the holder of the claim: 1 to 255 bytes without control characters. A host that gives the same name after a
    /// restart continues at once. Two processes must never have the same name.
    #[must_use]
    pub fn with_holder(mut self, holder: impl Into<String>) -> Self {
        self.holder = holder.into();
        self
    }

    /// Sets how long the claim lasts after the process stopped.
    #[must_use]
    pub fn with_lease(mut self, lease: Duration) -> Self {
        self.lease = lease;
        self
    }

    /// Sets the source of times.
    #[must_use]
    pub fn with_clock(mut self, clock: Clock) -> Self {
        self.clock = clock;
        self
    }

    /// Sets the source of ids.
    #[must_use]
    pub fn with_ids(mut self, ids: Ids) -> Self {
        self.ids = ids;
        self
    }
}
