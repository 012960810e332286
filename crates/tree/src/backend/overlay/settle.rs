//! Writing an overlay's changes to its lower tree.
//!
//! Content on which both trees agree need not be kept, so afterwards the upper tree is *tidied*: files that are the same in the lower tree
//! are removed with their marks, and so are directories that held nothing else. If an apply stops halfway for any reason, repeating it
//! finds the rest: what was already written is no longer a difference.
//!
//! Other processes may change the same overlay meanwhile. So before anything is written to the lower tree, the marks record what is about
//! to be left there ([`Intent`]). If a path changes in the overlay after that, and the lower tree has it as the apply left it, then the
//! change is based on that content and is not a conflict. Intents are stored in the upper tree, so this also holds after a crash or a lost
//! answer.

use super::OverlayBackend;
use super::difference::{OverlayDifference, OverlayDifferenceKind};
use super::marks::Intent;
use super::merge::absent;
use super::tidy::{Claim, Plan};
use crate::backend::Backend;
use bytes::Bytes;
use futures::FutureExt as _;
use serde::Serialize;
use std::borrow::Borrow;
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::ops::Bound;
use treehold_core::backoff::LostRaces;
use treehold_core::error::{Error, ErrorKind, ErrorRecord, Result};
use treehold_core::ops::{ApplyOptions, Change, Entry, EntryKind, Failure, ReadOptions, ReviewPurpose, StatOptions, WriteMode};
use treehold_core::path::{VfsPath, VfsPathBuf};

/// The most bytes of content per call to a lower tree whose batches are not atomic.
const CHUNK_BYTES: usize = 16 << 20;

/// The most changes per call to such a tree.
const CHUNK_CHANGES: usize = 256;

/// How often an apply starts over because the overlay changed meanwhile.
const OVERTAKEN_MAX: u32 = 16;

/// Which side wins if both trees changed a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum OverlayStrategy {
    /// The overlay's: it replaces the lower tree's content, whatever that is now.
    Ours,
    /// The lower tree's: the overlay drops its own change.
    Theirs,
}

/// Options for writing an overlay's differences to the lower tree.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct OverlayApplyOptions {
    /// Only differences at and beneath these paths; all if empty.
    pub paths: Vec<VfsPathBuf>,
    /// Which side wins in a conflict. By default neither: with a conflict nothing is written.
    pub strategy: Option<OverlayStrategy>,
    /// Which side wins at and beneath single paths; the longest matching path counts.
    pub strategies: BTreeMap<VfsPathBuf, OverlayStrategy>,
    /// Only returns what would be done.
    pub dry_run: bool,
}

impl OverlayApplyOptions {
    /// Writes all differences, unless there is a conflict.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a path.
    #[must_use]
    pub fn with_path(mut self, path: impl Into<VfsPathBuf>) -> Self {
        self.paths.push(path.into());
        self
    }

    /// Sets which side wins in a conflict.
    #[must_use]
    pub fn with_strategy(mut self, strategy: OverlayStrategy) -> Self {
        self.strategy = Some(strategy);
        self
    }

    /// Sets which side wins in a conflict at and beneath a path.
    #[must_use]
    pub fn with_strategy_for(mut self, path: impl Into<VfsPathBuf>, strategy: OverlayStrategy) -> Self {
        self.strategies.insert(path.into(), strategy);
        self
    }

    /// Only returns what would be done.
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

/// The result of [`OverlayBackend::apply_changes`].
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
#[non_exhaustive]
pub struct OverlayApplied {
    /// The differences that were written to the lower tree (in a dry run: would be), in path order.
    pub applied: Vec<OverlayDifference>,
    /// The differences that were dropped because the lower tree's side won.
    pub dropped: Vec<OverlayDifference>,
    /// The conflicts. If there are any, nothing was written.
    pub conflicts: Vec<OverlayDifference>,
    /// The failure that stopped the lower tree from taking the rest, or the overlay from being emptied. Written changes stay; apply again
    /// for the rest.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failure: Option<Failure>,
}

/// One change of the lower tree, and the difference that it settles.
struct Step {
    change: Change,
    of: usize,
}

/// The failure that stopped an apply.
struct Halt {
    failure: Failure,
    /// Whether the overlay changed meanwhile, so that starting over can succeed.
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
    /// Writes the overlay's differences to the lower tree, each on the condition that the lower tree still has the version the overlay
    /// started from, and removes them from the overlay.
    ///
    /// Paths that the lower tree protects are written only if [`OverlayApplyOptions::paths`] names them, or something beneath them;
    /// otherwise nothing is written at all. Conflicts are found before anything is written; if no strategy decides one, nothing is written.
    /// If the lower tree's batches are atomic, all is written or nothing. Otherwise obstacles are removed first, then directories are
    /// created and files written, and everything else is removed last. The first failure ends the apply, and the result says what was
    /// written.
    ///
    /// The overlay may be changed meanwhile, also by other processes. A change made after its path was written to the lower tree stays in
    /// the overlay as a difference from what was written; an earlier one makes the apply start over.
    ///
    /// # Errors
    /// [`PermissionDenied`](treehold_core::error::ErrorKind::PermissionDenied) for protected paths that are not named; the errors of reading the two trees
    /// and of the upper tree. Other refusals of the lower tree are in the result.
    pub async fn apply_changes(&self, options: &OverlayApplyOptions) -> Result<OverlayApplied> {
        let _turn = self.turn.lock().await;
        let mut all = OverlayApplied::default();
        let mut races = LostRaces::at_most(OVERTAKEN_MAX);
        loop {
            let (applied, is_overtaken) = self.apply_once(options).await?;
            let has_settled = !all.applied.is_empty() || !all.dropped.is_empty();
            if has_settled && !applied.conflicts.is_empty() {
                // A part was written before another writer changed the lower tree; the next apply reports that.
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
            if !is_overtaken || !races.lost().await {
                break;
            }
        }
        Ok(all)
    }

    /// Applies the current differences. Also returns whether the overlay changed meanwhile, which the failure then reports.
    async fn apply_once(&self, options: &OverlayApplyOptions) -> Result<(OverlayApplied, bool)> {
        let chosen = chosen(self.all_differences(VfsPath::ROOT).await?, &options.paths);
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
            self.review(ReviewPurpose::Change, &chosen, false).await?;
            return Ok((applied, false));
        }
        close(&mut dropped, &chosen);
        let (theirs, ours): (Vec<_>, Vec<_>) = chosen.into_iter().partition(|difference| dropped.contains(&difference.path));
        self.review(ReviewPurpose::Change, &ours, false).await?;
        // Where the lower tree's side wins, its content shows again.
        self.review(ReviewPurpose::Change, &theirs, true).await?;
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
        // Report what was written, whatever happens to the rest: the next apply removes it from the overlay.
        if let Err(error) = self.empty(begun, &applied.dropped).await {
            applied.failure.get_or_insert(Failure { path: VfsPathBuf::root(), error: ErrorRecord::from(&error) });
        }
        Ok((applied, is_overtaken))
    }

    /// Records in the marks what is about to be left in the lower tree. Returns the failure, if any.
    async fn claim(&self, differences: &[OverlayDifference]) -> Result<Option<Halt>> {
        let mut claims = Vec::with_capacity(differences.len());
        for difference in differences {
            let intent = match &difference.after {
                None => Intent::Nothing,
                Some(after) if after.is_directory() => Intent::Directory,
                Some(after) => match self.read_upper(&difference.path, &ReadOptions::new().with_bytes_max(u64::MAX)).await {
                    Ok(Some(read)) if Some(read.version) == after.version => Intent::File(*blake3::hash(&read.content).as_bytes()),
                    Err(error) if error.kind() != ErrorKind::IsDirectory => return Err(error),
                    _ => return Ok(Some(Halt::overtaken(&difference.path))),
                },
            };
            // Obstacles are removed first.
            let intents = if becomes_other(difference) { vec![Intent::Nothing, intent] } else { vec![intent] };
            claims.push(Claim { difference, intents });
        }
        match self.change_upper(Plan::Claim(&claims)).await {
            Ok(()) => Ok(None),
            Err(error) if error.kind() == ErrorKind::Conflict => Ok(Some(Halt::overtaken(error.path().unwrap_or(VfsPath::ROOT)))),
            Err(error) => Err(error),
        }
    }

    /// Removes the applied and dropped differences from the overlay.
    async fn empty(&self, begun: Vec<VfsPathBuf>, dropped: &[OverlayDifference]) -> Result<()> {
        let mut halfway = Vec::new();
        for path in begun {
            if absent(self.lower.stat(&path, &StatOptions::new()).await)?.is_none() {
                halfway.push(path);
            }
        }
        self.change_upper(Plan::Restart(&halfway)).await?;
        let dropped: Vec<&VfsPath> = dropped.iter().map(|difference| &*difference.path).collect();
        self.drop_each(&dropped).await?;
        self.tidy().await
    }

    /// Returns the changes of the lower tree that settle differences, each after the changes that it depends on.
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
        // Children are removed before their directory.
        way.reverse();
        removals.reverse();
        Ok(way.into_iter().chain(directories).chain(writes).chain(removals).collect())
    }

    /// Makes the steps, counts them for each difference, and returns the failure that stopped them, if any.
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
                        Err(error) if error.kind() != ErrorKind::IsDirectory => return Some(Halt::new(path, &error)),
                        _ => return Some(Halt::overtaken(path)),
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

/// Returns whether the existing entry must be removed before the new one is put.
fn becomes_other(difference: &OverlayDifference) -> bool {
    match (&difference.before, &difference.after) {
        (Some(before), Some(after)) => before.is_directory() != after.is_directory() || !is_plain(before),
        _ => false,
    }
}

/// Extends the dropped paths by those that depend on them: paths beneath one that is not put there, and a directory that would have to be
/// removed while something in it is kept.
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

/// Selects the differences at and beneath paths, and those they depend on: directories above that are files in the lower tree.
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

/// Returns whether a path equals one of others, or lies beneath one. Cost: a lookup for each directory above it.
pub(super) fn is_at_or_beneath<P: Borrow<VfsPath> + Ord>(path: &VfsPath, others: &BTreeSet<P>) -> bool {
    others.contains(path) || path.ancestors().any(|above| others.contains(above))
}

/// Returns whether any of some paths is at or beneath another. Cost: one lookup, because paths beneath a path follow it directly.
fn holds_any<P: Borrow<VfsPath> + Ord>(paths: &BTreeSet<P>, above: &VfsPath) -> bool {
    let mut behind = paths.range::<VfsPath, _>((Bound::Included(above), Bound::Unbounded));
    behind.next().is_some_and(|path| path.borrow().starts_with(above))
}
