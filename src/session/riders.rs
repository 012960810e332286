//! What waits to go along with the checkpoint that makes changes of a thread's state last: their events, and the rows of the calls that made
//! them.

use crate::ops::{Along, Changed, Version};
use crate::store::{Rider, Store};
use parking_lot::Mutex;
use std::sync::Arc;

/// How many events and rows wait; more are told as one event, that the state is another, and rows are put when their calls end.
const RIDERS_MAX: usize = 10_000;

/// Riders, each with the version of the state that has the changes it is about.
#[derive(Debug, Default)]
pub(super) struct Riders(Mutex<Held>);

#[derive(Debug, Default)]
struct Held {
    riders: Vec<(Version, Rider)>,
    /// How many events and rows they are.
    count: usize,
}

impl Riders {
    /// Has those of a batch wait, which led to a version.
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

    /// Returns those of the changes that a version has.
    pub(super) fn waiting(&self, version: Version) -> Vec<Rider> {
        self.0.lock().riders.iter().filter(|(of, _)| *of <= version).map(|(_, rider)| rider.clone()).collect()
    }

    /// Puts those out of mind that went along with the checkpoint of a version; sends what its store did not take.
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

    /// Puts all out of mind: the changes are gone.
    pub(super) fn clear(&self) {
        *self.0.lock() = Held::default();
    }
}

fn weight(rider: &Rider) -> usize {
    rider.0.count().max(1)
}
