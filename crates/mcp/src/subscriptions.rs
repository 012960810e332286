//! The subscriptions of one connection: `resources/subscribe` for one resource each, and `subscriptions/listen`.

use super::uri;
use super::watches::{WATCHED_MAX, Watched};
use parking_lot::Mutex;
use rmcp::model::{ErrorCode, ResourceUpdatedNotificationParam, SubscriptionFilter};
use rmcp::service::{Peer, SubscriptionContext};
use rmcp::{ErrorData, RoleServer};
use serde_json::json;
use std::collections::{HashMap, VecDeque};
use tokio::task::AbortHandle;
use treehold_agent::session::Writes;
use treehold_core::error::ErrorKind;

/// How many accepted subscriptions may wait to start.
const ACCEPTED_MAX: usize = 64;

/// The most concurrent subscriptions of a user across all connections: each `subscriptions/listen`, and each resource of
/// `resources/subscribe`.
pub(super) const SUBSCRIPTIONS_MAX: usize = 1_000;

/// Returns the error for too many subscriptions, with one of the codes reserved for servers
/// ([JSON-RPC](https://www.jsonrpc.org/specification#error_object)).
pub(super) fn too_many() -> ErrorData {
    let message = format!("this user has {SUBSCRIPTIONS_MAX} subscriptions, the most allowed; end one, or try again later");
    ErrorData::new(ErrorCode(-32000), message, Some(json!({"code": ErrorKind::Unavailable.code()})))
}

/// The subscriptions of one connection. They end with it.
#[derive(Debug, Default)]
pub(super) struct Subscriptions {
    /// The task of each individually subscribed resource.
    told: Mutex<HashMap<String, AbortHandle>>,
    /// Accepted subscriptions that have not started, with the write mark at that moment: the client may write as soon as it is notified.
    accepted: Mutex<VecDeque<(Vec<String>, u64)>>,
}

impl Subscriptions {
    /// Returns the accepted part of a request: resources of this tree. Lists of tools and mounts change only with the server.
    pub(super) fn accept(&self, requested: &SubscriptionFilter, writes: &Writes) -> SubscriptionFilter {
        let mut accepted = SubscriptionFilter::new();
        if let Some(uris) = &requested.resource_subscriptions {
            let uris: Vec<String> = uris.iter().filter(|uri| uri::path(uri).is_some()).take(WATCHED_MAX).cloned().collect();
            let mut waiting = self.accepted.lock();
            waiting.push_back((uris.clone(), writes.now()));
            if waiting.len() > ACCEPTED_MAX {
                waiting.pop_front();
            }
            accepted.resource_subscriptions = Some(uris);
        }
        accepted
    }

    /// Returns the write mark from when a subscription was accepted.
    pub(super) fn mark(&self, uris: &[String]) -> Option<u64> {
        let mut waiting = self.accepted.lock();
        let at = waiting.iter().position(|(accepted, _)| accepted == uris)?;
        waiting.remove(at).map(|(_, mark)| mark)
    }

    /// Starts notifying about a resource. Returns false if [`WATCHED_MAX`] resources are already subscribed.
    pub(super) fn add(&self, uri: String, watched: Watched, peer: Peer<RoleServer>) -> bool {
        let mut told = self.told.lock();
        if told.len() >= WATCHED_MAX && !told.contains_key(&uri) {
            return false;
        }
        let task = tokio::spawn(tell(watched, peer));
        if let Some(before) = told.insert(uri, task.abort_handle()) {
            before.abort();
        }
        true
    }

    /// Stops notifying about a resource.
    pub(super) fn remove(&self, uri: &str) {
        if let Some(task) = self.told.lock().remove(uri) {
            task.abort();
        }
    }
}

impl Drop for Subscriptions {
    fn drop(&mut self) {
        for task in self.told.get_mut().values() {
            task.abort();
        }
    }
}

async fn tell(mut watched: Watched, peer: Peer<RoleServer>) {
    loop {
        for uri in watched.changed().await {
            if peer.notify_resource_updated(ResourceUpdatedNotificationParam::new(uri)).await.is_err() {
                return;
            }
        }
    }
}

/// Notifies about the resources of a subscription until the client ends it.
pub(super) async fn listen(mut watched: Watched, mark: u64, subscription: SubscriptionContext) {
    let sink = subscription.sink();
    let telling = async {
        let mut changed = watched.missed(mark);
        loop {
            for uri in changed {
                if sink.notify_resource_updated(uri).await.is_err() {
                    return;
                }
            }
            changed = watched.changed().await;
        }
    };
    tokio::select! {
        () = telling => {}
        () = subscription.cancelled() => {}
    }
}
