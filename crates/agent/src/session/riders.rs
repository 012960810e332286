//! The queue of riders for the next checkpoint: events of state changes, and audit rows of the calls that made them.

use parking_lot::Mutex;
use std::sync::Arc;
use treehold_core::ops::{Along, Changed, Version};
use treehold_store::{Rider, Store};

/// The most events and rows that wait. Beyond it they fold into one event, that the state was replaced, and rows are written when their
/// calls end.
const RIDERS_MAX: usize = 10_000;

/// Riders, each with the version of the state that contains its changes.
#[derive(Debug, Default)]
pub(super) struct Riders(Mutex<Held>);

#[derive(Debug, Default)]
struct Held {
    riders: Vec<(Version, Rider)>,
    /// The number of queued events and rows.
    count: usize,
}

impl Riders {
    /// Queues a batch's riders until its version is saved.
    pub(super) fn hold(&self, along: &Along, version: Version, changed: &[Changed]) {
        let mut held = self.0.lock();
        for rider in along.iter::<Rider>() {
            rider.0.know(changed);
            rider.0.take();
            held.count += weight(rider);
            held.riders.push((version, rider.clone()));
        }
        if held.count > RIDERS_MAX {
            let folded = held.riders.iter().find_map(|(_, rider)| rider.0.folded());
            held.riders = folded.map(|folded| (version, folded)).into_iter().collect();
            held.count = held.riders.len();
        }
    }

    /// Returns the riders of changes that a version contains.
    pub(super) fn waiting(&self, version: Version) -> Vec<Rider> {
        self.0.lock().riders.iter().filter(|(of, _)| *of <= version).map(|(_, rider)| rider.clone()).collect()
    }

    /// Dequeues the riders that were committed with the checkpoint of a version, and sends those that its store did not take.
    pub(super) async fn went(&self, version: Version, went: Vec<Rider>, store: Option<&Arc<dyn Store>>) {
        {
            let mut held = self.0.lock();
            held.riders.retain(|(of, _)| *of > version);
            held.count = held.riders.iter().map(|(_, rider)| weight(rider)).sum();
        }
        for Rider(rider) in went.iter().filter(|rider| !store.is_some_and(|store| rider.0.is_of(store))) {
            rider.send(rider.count()).await;
        }
    }

    /// Drops all riders: their changes are gone.
    pub(super) fn clear(&self) {
        *self.0.lock() = Held::default();
    }
}

fn weight(rider: &Rider) -> usize {
    rider.0.count().max(1)
}
