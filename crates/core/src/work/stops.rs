//! Counts the stop checks of work and the bytes processed between them.

use super::{Owner, Stop};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock};

/// The recorded stop checks of one owner's work, which can be ended at a chosen check.
#[derive(Debug)]
pub struct Watch {
    /// The check at which the work is to end, counted from 1.
    ends_at: usize,
    looks: AtomicUsize,
    /// The number of checks after the one that ended the work.
    later: AtomicUsize,
    /// The most bytes processed between two checks.
    step_bytes_max: AtomicUsize,
}

static WATCHES: LazyLock<Mutex<HashMap<Owner, Arc<Watch>>>> = LazyLock::new(Mutex::default);

impl Watch {
    /// Watches an owner's work and ends it at check `ends_at`; `usize::MAX` lets it finish.
    pub fn start(owner: Owner, ends_at: usize) -> Arc<Self> {
        let watch = Self { ends_at, looks: AtomicUsize::new(0), later: AtomicUsize::new(0), step_bytes_max: AtomicUsize::new(0) };
        let watch = Arc::new(watch);
        WATCHES.lock().insert(owner, watch.clone());
        watch
    }

    pub(super) fn of(owner: &Owner) -> Option<Arc<Self>> {
        WATCHES.lock().get(owner).cloned()
    }

    pub(super) fn looked(&self, bytes: usize, stop: &Stop) {
        self.step_bytes_max.fetch_max(bytes, Ordering::Relaxed);
        let looks = self.looks.fetch_add(1, Ordering::Relaxed) + 1;
        if looks == self.ends_at {
            stop.flag.store(true, Ordering::Relaxed);
        } else if looks > self.ends_at {
            self.later.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Returns how many checks there were.
    pub fn looks(&self) -> usize {
        self.looks.load(Ordering::Relaxed)
    }

    /// Returns how many checks followed the one that ended the work.
    pub fn later(&self) -> usize {
        self.later.load(Ordering::Relaxed)
    }

    /// Returns the most bytes between two checks.
    pub fn step_bytes_max(&self) -> usize {
        self.step_bytes_max.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::super::LOOK_BYTES;
    use super::*;
    use crate::path::VfsPath;
    use crate::work;
    use bytes::Bytes;

    /// The most bytes between two checks: a single step may process a few times [`LOOK_BYTES`].
    const STEP_BYTES_MAX: usize = 4 * LOOK_BYTES;

    /// Returns numbered lines; every hundredth contains `needle`.
    fn content() -> Bytes {
        let line = |number: usize| if number.is_multiple_of(100) { "some needle\n".to_owned() } else { format!("line number {number}\n") };
        (0..800_000).map(line).collect::<String>().into()
    }

    #[test]
    fn pure_work_ends_at_first_check_that_finds_stop_set() {
        let text = content();
        let other: Vec<u8> = text.iter().rev().copied().collect();
        let merge = || drop(crate::text::merge::merge(&text, &other, &text));
        let words = || drop(crate::search::words::FileWords::of(VfsPath::ROOT, &text));
        let trigrams = || drop(crate::search::trigram::Signature::of(&text));
        let works: [(&str, &dyn Fn()); 3] = [("merge", &merge), ("words", &words), ("trigrams", &trigrams)];
        for (name, work) in works {
            let watch =
                Arc::new(Watch { ends_at: 3, looks: AtomicUsize::new(0), later: AtomicUsize::new(0), step_bytes_max: AtomicUsize::new(0) });
            let stop = Stop { watch: Some(watch.clone()), ..Stop::default() };
            assert!(stop.during(work).is_err(), "{name} did not stop");
            assert_eq!((watch.looks(), watch.later()), (3, 0), "{name}");
            assert!(watch.step_bytes_max() <= STEP_BYTES_MAX, "{name}");
        }
        work::advance(usize::MAX);
    }
}
