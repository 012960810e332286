//! The newest common ancestor of two checkpoints.
//!
//! Ids increase along every path from a checkpoint to its descendants, also across threads. Visiting ancestors in descending order of ids
//! therefore reaches the nearest common one first. The parent of a restored checkpoint is the one before it; the restored tree counts as a
//! change like any other, but the merges that it undid do not count, so that they can be repeated. A copied thread has the checkpoints of
//! the original under ids of its own.

use crate::checkpoint::{At, Checkpoint, CheckpointId, Checkpointer, ListOptions, ThreadCheckpoint};
use std::collections::{BTreeMap, HashMap};
use treehold_core::error::{Error, ErrorKind, Result};
use treehold_core::scope::Scope;

/// The number of checkpoints of a thread that are read at once.
const PAGE: usize = 64;

/// Which of the two checkpoints descend from a checkpoint: ours, theirs.
type Sides = [bool; 2];

/// How a checkpoint was reached.
#[derive(Debug, Clone, Copy, Default)]
struct Met {
    by: Sides,
    /// Which sides reached it across pruned checkpoints of its thread: a common ancestor may have been among these.
    behind_gap: Sides,
    /// Whether it is an ancestor of the nearest common one.
    is_older: bool,
    /// For each side that reached it only across a restore: the checkpoint that was restored. What newer ones merged was undone.
    undone_after: [Option<CheckpointId>; 2],
}

impl Met {
    /// Adds that it was reached in another way too.
    fn add(&mut self, how: Self) {
        for side in 0..2 {
            self.undone_after[side] = match (self.by[side], how.by[side]) {
                (true, true) => self.undone_after[side].zip(how.undone_after[side]).map(|(one, other)| one.max(other)),
                (true, false) => self.undone_after[side],
                (false, _) => how.undone_after[side],
            };
        }
        self.by = both(self.by, how.by);
        self.behind_gap = both(self.behind_gap, how.behind_gap);
        self.is_older |= how.is_older;
    }

    /// Returns how an ancestor is reached from here, across a restore of `restored` if there is one.
    fn onwards(self, to: CheckpointId, restored: Option<CheckpointId>) -> Self {
        let undone_after = self.undone_after.map(|undone| undone.into_iter().chain(restored).min().filter(|restored| to > *restored));
        Self { behind_gap: [false; 2], undone_after, ..self }
    }

    /// Returns how what the checkpoint merged is reached: not by the sides on which the merge was undone.
    fn of_merge(self) -> Self {
        let counts = self.undone_after.map(|undone| undone.is_none());
        let by = [self.by[0] && counts[0], self.by[1] && counts[1]];
        Self { by, behind_gap: [false; 2], undone_after: [None; 2], ..self }
    }
}

/// The checkpoints of threads, read on demand.
struct Threads<'c> {
    checkpointer: &'c dyn Checkpointer,
    scope: &'c Scope,
    known: HashMap<String, BTreeMap<CheckpointId, Checkpoint>>,
}

/// Returns the newest common ancestor of two checkpoints, which may be one of the two.
///
/// Cost: one or two round trips for every 64 checkpoints of a thread that are newer than it.
///
/// # Errors
/// [`NotFound`](ErrorKind::NotFound) when there is none, or when it was pruned. [`Ambiguous`](ErrorKind::Ambiguous) after a criss-cross
/// merge, which leaves two common ancestors of which neither descends from the other: comparing with only one of them would silently lose
/// changes that one side reverted.
pub(super) async fn nearest(
    checkpointer: &dyn Checkpointer,
    scope: &Scope,
    [ours, theirs]: [&ThreadCheckpoint; 2],
) -> Result<ThreadCheckpoint> {
    let mut threads = Threads { checkpointer, scope, known: HashMap::new() };
    let mut ahead: BTreeMap<(CheckpointId, String), Met> = BTreeMap::new();
    let mut has_gap = false;
    let mut nearest: Option<ThreadCheckpoint> = None;
    meet(&mut ahead, ours.clone(), Met { by: [true, false], ..Met::default() });
    meet(&mut ahead, theirs.clone(), Met { by: [false, true], ..Met::default() });
    while let Some(((id, thread), mut met)) = ahead.pop_last() {
        // The same checkpoint may have been reached in a copy of the thread.
        while let Some(entry) = ahead.last_entry().filter(|entry| entry.key().0 == id) {
            let ((_, copy), of_copy) = entry.remove_entry();
            if is_same(checkpointer, scope, id, [&thread, &copy]).await? {
                met.add(of_copy);
            }
            threads.go_on(&mut ahead, &mut has_gap, &copy, id, of_copy).await?;
        }
        let is_there = threads.get(&thread, id).await?.is_some();
        if met.by == [true; 2] && !met.is_older {
            let found = ThreadCheckpoint { thread: thread.clone(), id };
            match &nearest {
                Some(first) => return Err(criss_cross(first, &found)),
                None if is_there && met.behind_gap != [true; 2] => nearest = Some(found),
                None => return Err(pruned(ours, theirs)),
            }
            met.is_older = true;
        }
        threads.go_on(&mut ahead, &mut has_gap, &thread, id, met).await?;
        // Ids only get smaller from here, so everything left is older than what was found.
        if nearest.is_some() && ahead.values().all(|met| met.is_older) {
            break;
        }
    }
    nearest.ok_or_else(|| if has_gap { pruned(ours, theirs) } else { unrelated(ours, theirs) })
}

fn both(one: Sides, other: Sides) -> Sides {
    [one[0] || other[0], one[1] || other[1]]
}

fn meet(ahead: &mut BTreeMap<(CheckpointId, String), Met>, checkpoint: ThreadCheckpoint, how: Met) {
    ahead.entry((checkpoint.id, checkpoint.thread)).or_default().add(how);
}

/// Returns whether two threads share a checkpoint, because they may also have given the same id to two.
async fn is_same(checkpointer: &dyn Checkpointer, scope: &Scope, id: CheckpointId, threads: [&String; 2]) -> Result<bool> {
    let [one, other] = threads.map(|thread| scope.clone().with_thread(thread));
    let (one, other) = (checkpointer.open(&one, At::Id(id)).await?, checkpointer.open(&other, At::Id(id)).await?);
    Ok(match (one, other) {
        (Some(one), Some(other)) => one.checkpoint == other.checkpoint && one.state == other.state,
        _ => false,
    })
}

impl Threads<'_> {
    /// Returns a checkpoint, and caches older ones of its thread. Successive requests for a thread must go back in time.
    async fn get(&mut self, thread: &str, id: CheckpointId) -> Result<Option<&Checkpoint>> {
        let known = self.known.entry(thread.to_owned()).or_default();
        if known.first_key_value().is_none_or(|(oldest, _)| id < *oldest) {
            let scope = self.scope.clone().with_thread(thread);
            let found = self.checkpointer.get(&scope, At::Id(id)).await?.map(|saved| saved.checkpoint);
            let older = self.checkpointer.list(&scope, &ListOptions::new().with_start_after(id).with_limit(PAGE)).await?;
            *known = found.into_iter().chain(older.checkpoints).map(|checkpoint| (checkpoint.id, checkpoint)).collect();
        }
        Ok(known.get(&id))
    }

    /// Visits a checkpoint's parents; for a pruned one, the next older checkpoint of its thread.
    async fn go_on(
        &mut self,
        ahead: &mut BTreeMap<(CheckpointId, String), Met>,
        has_gap: &mut bool,
        thread: &str,
        id: CheckpointId,
        met: Met,
    ) -> Result<()> {
        let Some(checkpoint) = self.get(thread, id).await? else {
            *has_gap = true;
            let older = self.known.get(thread).and_then(|known| known.range(..id).next_back());
            if let Some((older, _)) = older {
                meet(ahead, ThreadCheckpoint { thread: thread.to_owned(), id: *older }, Met { behind_gap: met.by, ..met });
            }
            return Ok(());
        };
        if let Some(parent) = &checkpoint.parent {
            let above = parent.thread.as_deref().unwrap_or(thread).to_owned();
            meet(ahead, ThreadCheckpoint { thread: above, id: parent.id }, met.onwards(parent.id, parent.restored));
            if let Some(restored) = parent.restored {
                meet(ahead, ThreadCheckpoint { thread: thread.to_owned(), id: restored }, met.onwards(restored, None));
            }
        }
        let of_merge = met.of_merge();
        if let Some(merged) = checkpoint.merged.clone().filter(|_| of_merge.by != [false; 2]) {
            meet(ahead, merged, of_merge);
        }
        Ok(())
    }
}

fn pruned(ours: &ThreadCheckpoint, theirs: &ThreadCheckpoint) -> Error {
    let message =
        format!("the common ancestor of threads `{}` and `{}` was pruned; name a checkpoint as the base", ours.thread, theirs.thread);
    Error::new(ErrorKind::NotFound, message)
}

fn criss_cross(one: &ThreadCheckpoint, other: &ThreadCheckpoint) -> Error {
    let message = format!(
        "the threads have two unrelated common ancestors, checkpoint `{}` of thread `{}` and `{}` of thread `{}`; name one as the base",
        one.id, one.thread, other.id, other.thread
    );
    Error::new(ErrorKind::Ambiguous, message)
}

fn unrelated(ours: &ThreadCheckpoint, theirs: &ThreadCheckpoint) -> Error {
    let message = format!("threads `{}` and `{}` have no common ancestor; name a checkpoint as the base", ours.thread, theirs.thread);
    Error::new(ErrorKind::NotFound, message)
}
