//! What the tree holds, and what running changes were promised.

use super::plan::Growth;
use super::{QuotaLimits, Usage};
use parking_lot::Mutex;

/// The usage and the sum of all reservations. Invariant: the usage, while it is known, is what the tree holds but for the
/// changes that run; each of those has reserved at least what it adds.
#[derive(Debug, Default)]
pub(super) struct Ledger {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// None until it is counted, and from a change with an open end until it is counted again.
    usage: Option<Usage>,
    epoch: u64,
    reserved: Growth,
}

impl Ledger {
    pub(super) fn usage(&self) -> Option<Usage> {
        self.state.lock().usage
    }

    /// Returns the number of the epoch, which ends when the content is replaced past the layer.
    pub(super) fn epoch(&self) -> u64 {
        self.state.lock().epoch
    }

    /// Takes a count over that was begun in an epoch; tells whether it is still the same.
    pub(super) fn set(&self, usage: Usage, epoch: u64) -> bool {
        let mut state = self.state.lock();
        let is_current = state.epoch == epoch;
        if is_current {
            state.usage = Some(usage);
        }
        is_current
    }

    /// Ends the epoch: what was counted, or is being counted, counts no more.
    pub(super) fn forget(&self) {
        let mut state = self.state.lock();
        state.usage = None;
        state.epoch += 1;
    }

    /// Promises room for a growth, or returns the usage, promises included, that leaves none.
    ///
    /// When the usage is not known, which a turn rules out, nothing is refused and the tree is counted at the next change.
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

/// Room that was promised. Dropped before it is settled, it leaves the usage to be counted again.
#[derive(Debug)]
pub(super) struct Reservation<'a> {
    ledger: &'a Ledger,
    growth: Growth,
    is_settled: bool,
}

impl Reservation<'_> {
    /// Ends the promise by what was really added.
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
