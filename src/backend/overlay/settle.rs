//! An overlay's changes, written to the tree beneath.
//!
//! What both trees agree on is nothing to keep, so afterwards the upper tree is *tidied*: files that are the same below go, with
//! their marks, and so do directories that held nothing else. Whatever stopped an apply halfway, doing it again finds what is
//! left: what was written already is no difference any more.
//!
//! Other processes may change the same overlay meanwhile. So before anything is written below, the marks say what is about to be
//! left there ([`Intent`]): a path that was changed in the overlay after that, and is below as the apply left it, is based on that
//! and in no conflict. Intents stand in the upper tree, so this holds after a crash and a lost answer too.

use super::difference::{OverlayDifference, OverlayDifferenceKind};
use super::marks::Intent;
use super::merge::absent;
use super::tidy::{Claim, Plan};
use super::{OverlayBackend, pause};
use crate::backend::Backend;
use crate::error::{Error, ErrorKind, ErrorRecord, Result};
use crate::ops::{ApplyOptions, Change, Entry, EntryKind, Failure, ReadOptions, ReviewPurpose, WriteMode};
use crate::path::{VfsPath, VfsPathBuf};
use bytes::Bytes;
use futures::FutureExt as _;
use serde::Serialize;
use std::borrow::Borrow;
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::ops::Bound;

/// The most bytes of content that are handed at once to a lower tree whose batches are not atomic.
const CHUNK_BYTES: usize = 16 << 20;

/// The most changes that are handed to it at once.
const CHUNK_CHANGES: usize = 256;

/// How often an apply that met changes of the overlay starts over.
const OVERTAKEN_MAX: u32 = 16;

/// Whose side wins where both trees changed a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum OverlayStrategy {
    /// The overlay's: the lower tree gets it, whatever it has now.
    Ours,
    /// The lower tree's: the overlay drops its own.
    Theirs,
}

/// How to write an overlay's differences to the tree beneath.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct OverlayApplyOptions {
    /// Only what lies at and beneath these paths; all when empty.
    pub paths: Vec<VfsPathBuf>,
    /// Whose side wins in a conflict. Default nobody's: with a conflict nothing is written.
    pub strategy: Option<OverlayStrategy>,
    /// Whose side wins at and beneath single paths; the longest counts.
    pub strategies: BTreeMap<VfsPathBuf, OverlayStrategy>,
    /// Only tells what would be done.
    pub dry_run: bool,
}

impl OverlayApplyOptions {
    /// Writes all differences, unless one is in conflict.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a path.
    #[must_use]
    pub fn with_path(mut self, path: impl Into<VfsPathBuf>) -> Self {
        self.paths.push(path.into());
        self
    }

    /// Sets whose side wins.
    #[must_use]
    pub fn with_strategy(mut self, strategy: OverlayStrategy) -> Self {
        self.strategy = Some(strategy);
        self
    }

    /// Sets whose side wins at and beneath a path.
    #[must_use]
    pub fn with_strategy_for(mut self, path: impl Into<VfsPathBuf>, strategy: OverlayStrategy) -> Self {
        self.strategies.insert(path.into(), strategy);
        self
    }

    /// Only tells what would be done.
    #[must_use]
    pub fn with_dry_run(mut self, dry_run: bool) -> Self {
        self.dry_run = dry_run;
        self
    }

    fn strategy_of(&self, path: &VfsPath) -> Option<OverlayStrategy> {
        let nearest = path.ancestors().filter_map(|above| self.strategies.get(above)).last();
        self.strategies.get(path).or(nearest).copied().or(self.strategy)
    }
}

/// What [`OverlayBackend::apply_changes`] did.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
#[non_exhaustive]
pub struct OverlayApplied {
    /// What was written to the lower tree (of a dry run: would be), in path order.
    pub applied: Vec<OverlayDifference>,
    /// What was dropped because the lower tree's side won.
    pub dropped: Vec<OverlayDifference>,
    /// What both trees changed. When there is any, nothing was written.
    pub conflicts: Vec<OverlayDifference>,
    /// What stopped the lower tree from taking the rest, or the overlay from being emptied. What had been written stays; apply
    /// again for the rest.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failure: Option<Failure>,
}

/// One change of the lower tree, and the difference it settles.
struct Step {
    change: Change,
    of: usize,
}

/// What stopped an apply.
struct Halt {
    failure: Failure,
    /// Whether the overlay was changed meanwhile, so that starting over gets on.
    is_overtaken: bool,
}

impl Halt {
    fn new(path: &VfsPath, error: &Error) -> Self {
        Self { failure: Failure { path: path.to_owned(), error: ErrorRecord::from(error) }, is_overtaken: false }
    }

    fn overtaken(path: &VfsPath) -> Self {
        let message = format!("`{path}` was changed in the overlay while it was applied; apply again");
        Self { is_overtaken: true, ..Self::new(path, &Error::conflict(path, None).with_message(message)) }
    }
}

impl OverlayBackend {
    /// Writes the overlay's differences to the tree beneath, each on the condition that the lower tree still has the version
    /// the overlay started from, and empties the overlay of them.
    ///
    /// What the lower tree protects is written only where it is named: [`OverlayApplyOptions::paths`] holds it, or something beneath it.
    /// Otherwise nothing is written at all. Conflicts are found before anything is written; when there is one that no strategy decides, nothing is. Where the lower
    /// tree's batches are atomic all is written or nothing; elsewhere what makes way is removed first, then directories are
    /// made, files written, and the rest removed last. The first failure ends it, and the result says what had been written.
    ///
    /// The overlay may be changed meanwhile, by other processes too: a change made after its path was written below stays in the
    /// overlay as a difference from what was written; one made before starts the apply over.
    ///
    /// # Errors
    /// [`PermissionDenied`](crate::ErrorKind::PermissionDenied) for what is protected and not named; those of reading the two trees and of
    /// the upper one. What else the lower tree refuses is in the result.
    pub async fn apply_changes(&self, options: &OverlayApplyOptions) -> Result<OverlayApplied> {
        let _turn = self.turn.lock().await;
        let mut all = OverlayApplied::default();
        for attempt in 0..=OVERTAKEN_MAX {
            let (applied, is_overtaken) = self.apply_once(options).await?;
            let has_settled = !all.applied.is_empty() || !all.dropped.is_empty();
            if has_settled && !applied.conflicts.is_empty() {
                // A part was written before somebody changed the tree beneath: applying again tells of that.
                return Ok(all);
            }
            let again: HashSet<&VfsPath> = applied.applied.iter().chain(&applied.dropped).map(|again| &*again.path).collect();
            all.applied.retain(|before| !again.contains(&*before.path));
            all.dropped.retain(|before| !again.contains(&*before.path));
            all.applied.extend(applied.applied);
            all.dropped.extend(applied.dropped);
            all.applied.sort_by(|a, b| a.path.cmp(&b.path));
            all.dropped.sort_by(|a, b| a.path.cmp(&b.path));
            all.conflicts = applied.conflicts;
            all.failure = applied.failure;
            if !is_overtaken {
                break;
            }
            pause(attempt).await;
        }
        Ok(all)
    }

    /// Applies what differs now; tells too whether the overlay was changed meanwhile, which is the failure then.
    async fn apply_once(&self, options: &OverlayApplyOptions) -> Result<(OverlayApplied, bool)> {
        let chosen = chosen(self.all_differences(VfsPath::ROOT).await?, &options.paths);
        self.review(ReviewPurpose::Change, &chosen, false).await?;
        let mut applied = OverlayApplied::default();
        let mut dropped: BTreeSet<VfsPathBuf> = BTreeSet::new();
        for difference in chosen.iter().filter(|difference| difference.conflict.is_some()) {
            match options.strategy_of(&difference.path) {
                None => applied.conflicts.push(difference.clone()),
                Some(OverlayStrategy::Theirs) => {
                    dropped.insert(difference.path.clone());
                }
                Some(OverlayStrategy::Ours) => {}
            }
        }
        if !applied.conflicts.is_empty() {
            return Ok((applied, false));
        }
        close(&mut dropped, &chosen);
        let (theirs, ours): (Vec<_>, Vec<_>) = chosen.into_iter().partition(|difference| dropped.contains(&difference.path));
        applied.dropped = theirs;
        let steps = self.steps(&ours).await?;
        if let Some(guard) = &self.guard {
            let changes: Vec<Change> = steps.iter().map(|step| step.change.clone()).collect();
            guard.check(&*self.lower, &changes, &options.paths).await?;
        }
        if options.dry_run {
            applied.applied = ours;
            return Ok((applied, false));
        }
        let mut done = vec![0; ours.len()];
        let due = steps.iter().fold(vec![0; ours.len()], |mut due, step| {
            due[step.of] += 1;
            due
        });
        let mut halt = self.claim(&ours).await?;
        if halt.is_none() {
            let write = async {
                halt = self.write_below(&ours, steps, &mut done).await;
            };
            match &self.guard {
                Some(guard) => guard.during(&options.paths, write.boxed()).await,
                None => write.await,
            }
        }
        let is_overtaken = halt.as_ref().is_some_and(|halt| halt.is_overtaken);
        applied.failure = halt.map(|halt| halt.failure);
        let mut begun = Vec::new();
        for (difference, (done, due)) in ours.into_iter().zip(done.iter().zip(&due)) {
            if done == due {
                applied.applied.push(difference);
            } else if *due > 1 {
                begun.push(difference.path);
            }
        }
        // What was written is told, whatever becomes of the rest: the next apply empties the overlay of it.
        if let Err(error) = self.empty(begun, &applied.dropped).await {
            applied.failure.get_or_insert(Failure { path: VfsPathBuf::root(), error: ErrorRecord::from(&error) });
        }
        Ok((applied, is_overtaken))
    }

    /// Says in the marks what is about to be left below; returns what stopped that.
    async fn claim(&self, differences: &[OverlayDifference]) -> Result<Option<Halt>> {
        let mut claims = Vec::with_capacity(differences.len());
        for difference in differences {
            let intent = match &difference.after {
                None => Intent::Nothing,
                Some(after) if after.is_directory() => Intent::Directory,
                Some(after) => match self.read_upper(&difference.path, &ReadOptions::new().with_bytes_max(u64::MAX)).await? {
                    Some(read) if Some(read.version) == after.version => Intent::File(*blake3::hash(&read.content).as_bytes()),
                    _ => return Ok(Some(Halt::overtaken(&difference.path))),
                },
            };
            // What makes way is removed first.
            let intents = if becomes_other(difference) { vec![Intent::Nothing, intent] } else { vec![intent] };
            claims.push(Claim { difference, intents });
        }
        match self.change_upper(Plan::Claim(&claims)).await {
            Ok(()) => Ok(None),
            Err(error) if error.kind() == ErrorKind::Conflict => Ok(Some(Halt::overtaken(error.path().unwrap_or(VfsPath::ROOT)))),
            Err(error) => Err(error),
        }
    }

    /// Empties the overlay of what was applied and dropped.
    async fn empty(&self, begun: Vec<VfsPathBuf>, dropped: &[OverlayDifference]) -> Result<()> {
        let mut halfway = Vec::new();
        for path in begun {
            if absent(self.lower.stat(&path).await)?.is_none() {
                halfway.push(path);
            }
        }
        self.change_upper(Plan::Restart(&halfway)).await?;
        let dropped: Vec<&VfsPath> = dropped.iter().map(|difference| &*difference.path).collect();
        self.drop_each(&dropped).await?;
        self.tidy().await
    }

    /// Makes the changes of the lower tree that settle differences, in an order in which each finds what it needs.
    async fn steps(&self, differences: &[OverlayDifference]) -> Result<Vec<Step>> {
        let mut way = Vec::new();
        let mut directories = Vec::new();
        let mut writes = Vec::new();
        let mut removals = Vec::new();
        let replaced: BTreeSet<&VfsPath> =
            differences.iter().filter(|difference| becomes_other(difference)).map(|difference| &*difference.path).collect();
        for (of, difference) in differences.iter().enumerate() {
            let path = difference.path.clone();
            let removal = difference.before.as_ref().map(|before| Change::Delete {
                path: path.clone(),
                recursive: false,
                expect: if is_plain(before) { before.version } else { None },
            });
            let makes_way = is_at_or_beneath(&difference.path, &replaced);
            match (&difference.after, removal) {
                (None, Some(change)) if makes_way => way.push(Step { change, of }),
                (None, Some(change)) => removals.push(Step { change, of }),
                (None, None) => {}
                (Some(after), removal) => {
                    let mut mode = WriteMode::CreateNew;
                    match (removal, &difference.before) {
                        (Some(change), _) if becomes_other(difference) => way.push(Step { change, of }),
                        (Some(_), Some(Entry { version: Some(version), .. })) => mode = WriteMode::IfVersion(*version),
                        _ => {}
                    }
                    if after.is_directory() {
                        directories.push(Step { change: Change::CreateDir { path }, of });
                    } else {
                        // The content is read when it is written.
                        writes.push(Step { change: Change::Write { path, content: Bytes::new(), mode }, of });
                    }
                }
            }
        }
        // What lies beneath goes before what holds it.
        way.reverse();
        removals.reverse();
        Ok(way.into_iter().chain(directories).chain(writes).chain(removals).collect())
    }

    /// Takes the steps, counts those taken of each difference, and returns what stopped them, if anything did.
    async fn write_below(&self, differences: &[OverlayDifference], steps: Vec<Step>, done: &mut [usize]) -> Option<Halt> {
        let is_atomic = self.lower.capabilities().atomic_batch;
        let options = ApplyOptions::new().with_allow_partial(!is_atomic);
        let mut steps = steps.into_iter().peekable();
        while steps.peek().is_some() {
            let (mut batch, mut owners, mut size_bytes) = (Vec::new(), Vec::new(), 0);
            while (is_atomic || (size_bytes < CHUNK_BYTES && batch.len() < CHUNK_CHANGES))
                && let Some(Step { mut change, of }) = steps.next()
            {
                if let Change::Write { path, content, .. } = &mut change {
                    let after = differences[of].after.as_ref().and_then(|after| after.version);
                    match self.read_upper(path, &ReadOptions::new().with_bytes_max(u64::MAX)).await {
                        Ok(Some(read)) if Some(read.version) == after => *content = read.content,
                        Ok(_) => return Some(Halt::overtaken(path)),
                        Err(error) => return Some(Halt::new(path, &error)),
                    }
                    size_bytes += content.len();
                }
                batch.push(change);
                owners.push(of);
            }
            match self.lower.apply(&batch, &options).await {
                Ok(_) => owners.iter().for_each(|of| done[*of] += 1),
                Err(error) => {
                    owners[..error.applied().min(owners.len())].iter().for_each(|of| done[*of] += 1);
                    let path = error.change().and_then(|index| batch.get(index)).or(batch.first()).map(|change| change.path().to_owned());
                    return Some(Halt::new(&path.unwrap_or_else(VfsPathBuf::root), &error));
                }
            }
        }
        None
    }
}

fn is_plain(entry: &Entry) -> bool {
    entry.kind == EntryKind::File
}

/// Tells whether what is there has to be removed before the other is put.
fn becomes_other(difference: &OverlayDifference) -> bool {
    match (&difference.before, &difference.after) {
        (Some(before), Some(after)) => before.is_directory() != after.is_directory() || !is_plain(before),
        _ => false,
    }
}

/// Adds to what is dropped what cannot stay without it: what lies beneath a path that is not put there, and a directory that would
/// have to go while something in it is kept.
fn close(dropped: &mut BTreeSet<VfsPathBuf>, differences: &[OverlayDifference]) {
    for difference in differences {
        let is_needed = difference.after.is_some() && difference.path.ancestors().any(|above| dropped.contains(above));
        if is_needed {
            dropped.insert(difference.path.clone());
        }
    }
    for difference in differences.iter().rev() {
        let had_children = difference.before.as_ref().is_some_and(Entry::is_directory);
        let keeps = || holds_any(dropped, &difference.path);
        if had_children && !dropped.contains(&difference.path) && keeps() {
            dropped.insert(difference.path.clone());
        }
    }
}

/// Chooses the differences at and beneath paths, and what they need: the directories above that are files below.
fn chosen(differences: Vec<OverlayDifference>, paths: &[VfsPathBuf]) -> Vec<OverlayDifference> {
    if paths.is_empty() {
        return differences;
    }
    let paths: BTreeSet<&VfsPath> = paths.iter().map(|path| &**path).collect();
    let is_needed = |difference: &OverlayDifference| {
        let becomes_directory =
            difference.kind == OverlayDifferenceKind::Changed && difference.after.as_ref().is_some_and(Entry::is_directory);
        becomes_directory && holds_any(&paths, &difference.path)
    };
    differences.into_iter().filter(|difference| is_at_or_beneath(&difference.path, &paths) || is_needed(difference)).collect()
}

/// Tells whether a path is one of others, or beneath one. Cost: a look for each directory above it.
pub(super) fn is_at_or_beneath<P: Borrow<VfsPath> + Ord>(path: &VfsPath, others: &BTreeSet<P>) -> bool {
    others.contains(path) || path.ancestors().any(|above| others.contains(above))
}

/// Tells whether one of some paths is at or beneath another. Cost: one look, as what lies beneath a path follows it directly.
fn holds_any<P: Borrow<VfsPath> + Ord>(paths: &BTreeSet<P>, above: &VfsPath) -> bool {
    let mut behind = paths.range::<VfsPath, _>((Bound::Included(above), Bound::Unbounded));
    behind.next().is_some_and(|path| path.borrow().starts_with(above))
}
