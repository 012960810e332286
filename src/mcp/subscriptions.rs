//! The subscriptions of one connection, in the ways of both eras: `resources/subscribe` a resource at a time, and `subscriptions/listen`.

use super::uri;
use super::watches::{WATCHED_MAX, Watched};
use crate::error::ErrorKind;
use crate::session::Writes;
use parking_lot::Mutex;
use rmcp::model::{ErrorCode, ResourceUpdatedNotificationParam, SubscriptionFilter};
use rmcp::service::{Peer, SubscriptionContext};
use rmcp::{ErrorData, RoleServer};
use serde_json::json;
use std::collections::{HashMap, VecDeque};
use tokio::task::AbortHandle;

/// How many accepted subscriptions may wait for their start.
const ACCEPTED_MAX: usize = 64;

/// The most subscriptions that a user has at a time, of all connections together: each `subscriptions/listen`, and each resource of
/// `resources/subscribe`.
pub(super) const SUBSCRIPTIONS_MAX: usize = 1_000;

/// The error of one subscription too many: one of those that a server may define
/// ([JSON-RPC](https://www.jsonrpc.org/specification#error_object)).
pub(super) fn too_many() -> ErrorData {
    let message = format!("this user has {SUBSCRIPTIONS_MAX} subscriptions, and may not have more; end one, or try again later");
    ErrorData::new(ErrorCode(-32000), message, Some(json!({"code": ErrorKind::Unavailable.code()})))
}

/// The subscriptions of one connection; they end with it.
#[derive(Debug, Default)]
pub(super) struct Subscriptions {
    /// The resources subscribed to one by one, and what tells of each.
    told: Mutex<HashMap<String, AbortHandle>>,
    /// What was accepted and has not started yet, with the mark of that moment: the client may write as soon as it is told.
    accepted: Mutex<VecDeque<(Vec<String>, u64)>>,
}

impl Subscriptions {
    /// Returns what of a request is accepted: resources of this tree. Lists of tools and mounts change with the server alone.
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

    /// Returns the mark of when a subscription was accepted.
    pub(super) fn mark(&self, uris: &[String]) -> Option<u64> {
        let mut waiting = self.accepted.lock();
        let at = waiting.iter().position(|(accepted, _)| accepted == uris)?;
        waiting.remove(at).map(|(_, mark)| mark)
    }

    /// Tells of a resource from now on. One more than [`WATCHED_MAX`] is not taken, and `false` returned.
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

    /// Tells of a resource no more.
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

/// Tells of the resources of a subscription until the client ends it.
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
