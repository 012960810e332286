//! The usage of the tree, and the reservations of running changes.

use super::plan::Growth;
use super::{QuotaLimits, Usage};
use parking_lot::Mutex;

/// The usage and the sum of all reservations. Invariant: a known usage is what the tree holds except for running changes, and each of those
/// has reserved at least what it adds.
#[derive(Debug, Default)]
pub(super) struct Ledger {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// `None` until it is counted, and after a change with an unknown outcome until it is counted again.
    usage: Option<Usage>,
    epoch: u64,
    reserved: Growth,
}

impl Ledger {
    pub(super) fn usage(&self) -> Option<Usage> {
        self.state.lock().usage
    }

    /// Returns the epoch, which ends when the content is replaced past the layer.
    pub(super) fn epoch(&self) -> u64 {
        self.state.lock().epoch
    }

    /// Sets the usage from a count that started in an epoch. Returns whether that epoch is still current.
    pub(super) fn set(&self, usage: Usage, epoch: u64) -> bool {
        let mut state = self.state.lock();
        let is_current = state.epoch == epoch;
        if is_current {
            state.usage = Some(usage);
        }
        is_current
    }

    /// Ends the epoch, which invalidates finished and running counts.
    pub(super) fn forget(&self) {
        let mut state = self.state.lock();
        state.usage = None;
        state.epoch += 1;
    }

    /// Reserves room for a growth. If there is no room, returns the usage, including reservations.
    ///
    /// If the usage is unknown, which cannot happen during a turn, nothing is refused and the next change counts the tree.
    pub(super) fn reserve(&self, growth: Growth, limits: &QuotaLimits) -> Result<Reservation<'_>, Usage> {
        let mut state = self.state.lock();
        let promised = state.usage.map(|usage| state.reserved.after(usage));
        if let Some(usage) = promised.filter(|usage| growth.is_over(*usage, limits)) {
            return Err(usage);
        }
        let growth = growth.without_shrinkage();
        state.reserved += growth;
        Ok(Reservation { ledger: self, growth, is_settled: false })
    }
}

/// Reserved room. Dropped before it is settled, it makes the usage unknown.
#[derive(Debug)]
pub(super) struct Reservation<'a> {
    ledger: &'a Ledger,
    growth: Growth,
    is_settled: bool,
}

impl Reservation<'_> {
    /// Replaces the reservation by what was really added.
    pub(super) fn settle(mut self, added: Growth) {
        let mut state = self.ledger.state.lock();
        state.reserved -= self.growth;
        state.usage = state.usage.map(|usage| added.after(usage));
        self.is_settled = true;
    }
}

impl Drop for Reservation<'_> {
    fn drop(&mut self) {
        if !self.is_settled {
            let mut state = self.ledger.state.lock();
            state.reserved -= self.growth;
            state.usage = None;
        }
    }
}
