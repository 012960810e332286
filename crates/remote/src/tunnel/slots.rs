//! The state of each name.

use super::Place;
use super::line::Line;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::Instant;

/// Which machine a tunnel belongs to.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Key {
    pub(super) tenant: Option<String>,
    pub(super) name: String,
}

/// The slots by name. A name without a slot was never connected, or broke long ago.
#[derive(Debug)]
pub(super) struct Slots {
    table: Mutex<Table>,
    /// Counts the tunnels that opened or were given up.
    changed: watch::Sender<u64>,
}

#[derive(Debug, Default)]
struct Table {
    slots: HashMap<Key, Slot>,
    newest: u64,
}

#[derive(Debug)]
struct Slot {
    /// Which reservation the slot belongs to.
    number: u64,
    state: State,
}

#[derive(Debug)]
enum State {
    /// A connection is being opened. The name was lost at that time, if it was connected before.
    Opening(Option<Instant>),
    Open {
        line: Arc<Line>,
        _place: Place,
    },
    Lost(Instant),
}

impl Default for Slots {
    fn default() -> Self {
        Self { table: Mutex::default(), changed: watch::Sender::new(0) }
    }
}

impl Slots {
    /// Reserves a name, unless it is connected or being opened. Returns the number of the reservation.
    pub(super) fn reserve(&self, key: &Key, keep_lost: Duration) -> Option<u64> {
        let mut table = self.table.lock();
        let now = Instant::now();
        // A name that broke long ago counts as never connected.
        table.slots.retain(|_, slot| !matches!(slot.state, State::Lost(at) if at + keep_lost <= now));
        let lost_at = match table.slots.get(key).map(|slot| &slot.state) {
            Some(State::Open { .. } | State::Opening(_)) => return None,
            Some(State::Lost(at)) => Some(*at),
            None => None,
        };
        table.newest += 1;
        let number = table.newest;
        table.slots.insert(key.clone(), Slot { number, state: State::Opening(lost_at) });
        Some(number)
    }

    /// Opens a reserved name. Returns false if the reservation has ended.
    pub(super) fn open(&self, key: &Key, number: u64, line: Arc<Line>, place: Place) -> bool {
        let mut table = self.table.lock();
        let Some(slot) = table.slots.get_mut(key).filter(|slot| slot.number == number) else { return false };
        slot.state = State::Open { line, _place: place };
        drop(table);
        self.changed.send_modify(|count| *count += 1);
        true
    }

    /// Ends a reservation: requests wait for the name to return if it was connected.
    pub(super) fn lost(&self, key: &Key, number: u64) {
        let mut table = self.table.lock();
        let Some(slot) = table.slots.get_mut(key).filter(|slot| slot.number == number) else { return };
        match slot.state {
            State::Open { .. } => slot.state = State::Lost(Instant::now()),
            State::Opening(Some(at)) => slot.state = State::Lost(at),
            State::Opening(None) => drop(table.slots.remove(key)),
            State::Lost(_) => return,
        }
        drop(table);
        self.changed.send_modify(|count| *count += 1);
    }

    /// Ends the tunnel of a name in favour of another connection.
    pub(super) fn end(&self, key: &Key, line: &Arc<Line>) {
        self.close(key, line);
        line.replace();
    }

    /// Gives up the tunnel of a name, whose running requests may still end.
    pub(super) fn close(&self, key: &Key, line: &Arc<Line>) {
        let mut table = self.table.lock();
        if let Some(slot) = table.slots.get_mut(key)
            && let State::Open { line: open, .. } = &slot.state
            && Arc::ptr_eq(open, line)
        {
            slot.state = State::Lost(Instant::now());
        }
    }

    /// Returns the tunnel of a name.
    pub(super) fn line(&self, key: &Key) -> Option<Arc<Line>> {
        match &self.table.lock().slots.get(key)?.state {
            State::Open { line, .. } => Some(line.clone()),
            State::Opening(_) | State::Lost(_) => None,
        }
    }

    pub(super) fn count_open(&self) -> usize {
        self.table.lock().slots.values().filter(|slot| matches!(slot.state, State::Open { .. })).count()
    }

    /// Returns the tunnel of a name. Waits for one that broke, until `keep_lost` after it did and for at most `timeout`.
    pub(super) async fn wait(&self, key: &Key, keep_lost: Duration, timeout: Duration) -> Option<Arc<Line>> {
        let end = Instant::now() + timeout;
        let mut changed = self.changed.subscribe();
        loop {
            changed.mark_unchanged();
            let until = match &self.table.lock().slots.get(key)?.state {
                State::Open { line, .. } => return Some(line.clone()),
                State::Opening(None) => return None,
                State::Opening(Some(at)) | State::Lost(at) => end.min(*at + keep_lost),
            };
            tokio::time::timeout_at(until, changed.changed()).await.ok()?.ok()?;
        }
    }
}
