//! Traces elsewhere: the registry of peers, and the remote, hybrid and cached stores.
#![cfg(all(feature = "remote", feature = "conformance"))]

#[path = "routing/cached.rs"]
mod cached;
#[path = "routing/copies.rs"]
mod copies;
#[path = "routing/drips.rs"]
mod drips;
#[path = "routing/hostile.rs"]
mod hostile;
#[path = "routing/hosts.rs"]
mod hosts;
#[path = "routing/hybrid.rs"]
mod hybrid;
#[path = "routing/ids.rs"]
mod ids;
#[path = "routing/support.rs"]
mod support;
#[path = "routing/watch.rs"]
mod watch;
