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
    reserved: Growth,
}

impl Ledger {
    pub(super) fn usage(&self) -> Option<Usage> {
        self.state.lock().usage
    }

    pub(super) fn set(&self, usage: Usage) {
        self.state.lock().usage = Some(usage);
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
