//! Turns for changes of a host directory, across the whole process.
//!
//! A batch is checked first and applied afterwards. Nothing may be moved between the two: during `rename h -> .vscode`, a write of
//! `h/tasks.json` would become a write of `.vscode/tasks.json`. So a batch that moves something runs alone in its directory and in all
//! directories above and beneath it. Other batches run concurrently.

use parking_lot::Mutex;
use std::path::PathBuf;
use std::sync::Arc;
use tokio::sync::oneshot;

/// The directory that a tree changes.
#[derive(Debug, Default)]
pub(super) struct Ground {
    /// The canonical path; `None` for a tree that is not a host directory and overlaps no other.
    root: Option<PathBuf>,
}

impl Ground {
    pub(super) fn new(root: PathBuf) -> Self {
        Self { root: Some(root) }
    }

    /// Returns whether changes of the two can reach the same file.
    fn overlaps(self: &Arc<Self>, other: &Arc<Self>) -> bool {
        let overlap = |one: &PathBuf, other: &PathBuf| one.starts_with(other) || other.starts_with(one);
        Arc::ptr_eq(self, other) || self.root.as_ref().zip(other.root.as_ref()).is_some_and(|(one, other)| overlap(one, other))
    }
}

/// Everyone who has a turn or waits for one, in order of arrival.
static LINE: Mutex<Line> = Mutex::new(Line { next: 0, claims: Vec::new() });

#[derive(Debug)]
struct Line {
    next: u64,
    claims: Vec<Claim>,
}

#[derive(Debug)]
struct Claim {
    ticket: u64,
    ground: Arc<Ground>,
    is_alone: bool,
    /// The number of earlier claims that must end first.
    waits_for: usize,
    begins: Option<oneshot::Sender<()>>,
}

impl Claim {
    fn excludes(&self, ground: &Arc<Ground>, is_alone: bool) -> bool {
        (self.is_alone || is_alone) && self.ground.overlaps(ground)
    }
}

/// A turn, over when dropped.
#[derive(Debug)]
pub(super) struct Turn {
    ticket: u64,
}

/// Waits for a turn in a directory, alone or with others.
///
/// Turns are first come, first served, so nobody waits forever.
pub(super) async fn turn(ground: &Arc<Ground>, is_alone: bool) -> Turn {
    let (turn, begins) = {
        let mut line = LINE.lock();
        let ticket = line.next;
        line.next += 1;
        let waits_for = line.claims.iter().filter(|claim| claim.excludes(ground, is_alone)).count();
        let (sender, receiver) = oneshot::channel();
        line.claims.push(Claim { ticket, ground: ground.clone(), is_alone, waits_for, begins: Some(sender) });
        (Turn { ticket }, (waits_for > 0).then_some(receiver))
    };
    if let Some(begins) = begins {
        begins.await.expect("a queued claim keeps its sender until its turn begins");
    }
    turn
}

impl Drop for Turn {
    fn drop(&mut self) {
        let mut line = LINE.lock();
        let at = line.claims.binary_search_by_key(&self.ticket, |claim| claim.ticket).expect("every turn has a claim in the line");
        let over = line.claims.remove(at);
        for later in &mut line.claims[at..] {
            if over.excludes(&later.ground, later.is_alone) {
                later.waits_for -= 1;
                if later.waits_for == 0 {
                    // If the waiter was cancelled, it has removed or will remove its own claim.
                    let _ = later.begins.take().map(|begins| begins.send(()));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt as _;

    fn ground(root: &str) -> Arc<Ground> {
        Arc::new(Ground::new(PathBuf::from(root)))
    }

    #[tokio::test]
    async fn exclusive_turn_blocks_only_overlapping_directories() {
        let alone = turn(&ground("/turns/a"), true).await;
        for overlapping in ["/turns/a", "/turns", "/turns/a/b"] {
            for is_alone in [false, true] {
                assert!(turn(&ground(overlapping), is_alone).now_or_never().is_none(), "{overlapping}");
            }
        }
        for apart in ["/turns/ab", "/turns/b/a"] {
            assert!(turn(&ground(apart), true).now_or_never().is_some(), "{apart}");
        }
        let unnamed = Arc::new(Ground::default());
        assert!(turn(&unnamed, true).now_or_never().is_some());
        drop(alone);
        let _one = turn(&ground("/turns/a"), false).now_or_never().expect("the exclusive turn has ended");
        let _other = turn(&ground("/turns/a/b"), false).now_or_never().expect("two shared turns overlap");
        assert!(turn(&ground("/turns"), true).now_or_never().is_none());
    }

    #[tokio::test]
    async fn exclusive_turn_is_not_overtaken_and_blocks_nobody_once_abandoned() {
        let place = ground("/in-order");
        let first = turn(&place, false).await;
        let mut mover = Box::pin(turn(&place, true));
        assert!(futures::poll!(&mut mover).is_pending());
        let mut writer = Box::pin(turn(&place, false));
        assert!(futures::poll!(&mut writer).is_pending(), "it waits behind the exclusive turn");
        drop(mover);
        assert!(futures::poll!(&mut writer).is_ready(), "the turns before it have ended");
        drop(first);
    }
}
