//! Decides the outcome of each path that either side changed.
//!
//! A conflict at a path is decided for that path alone, with one exception: if it concerns a directory that the other side removed or
//! replaced by a file, everything changed beneath is decided with it. A directory that one side removed disappears if nothing remains in
//! it.

use super::lines::{Merged, Texts, merge_all};
use super::{
    MergeChange, MergeConflict, MergeConflictKind, MergeHunk, MergeOptions, MergeOrigin, MergeOutcome, MergeResolution, MergeSide,
    MergeStatus, MergeStrategy,
};
use crate::backend::{Graft, StateDifference, StateNode, StateSnapshot};
use crate::checkpoint::diff::is_same_content;
use crate::checkpoint::{ChangeKind, Reviewer};
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::ops::Bound;
use std::sync::Arc;
use treehold_core::error::{Error, ErrorKind, Result};
use treehold_core::ops::{Difference, ReviewPurpose, Sight, Standing};
use treehold_core::path::{VfsPath, VfsPathBuf};
use treehold_core::text::merge::MarkerNames;

/// The number of differences that are examined at once.
const STEP: usize = 1_000;

type Node = Option<Arc<StateNode>>;

/// The changes of one side: at each path, the base's node and the side's node.
#[derive(Debug, Default)]
struct Changed(BTreeMap<VfsPathBuf, (Node, Node)>);

impl Changed {
    async fn between(base: &StateSnapshot, side: &StateSnapshot) -> Result<Self> {
        let mut changed = BTreeMap::new();
        let mut after: Option<VfsPathBuf> = None;
        loop {
            let differences = side.differences(base, after.as_deref(), STEP).await?;
            after = differences.last().map(|last| last.path().to_owned());
            let is_last = differences.len() < STEP;
            let differ = differences.into_iter().filter(|difference| !is_same_content(difference));
            changed.extend(differ.map(|difference| {
                let nodes = (difference.older().cloned(), difference.newer().cloned());
                match difference {
                    StateDifference::Added(path, _) | StateDifference::Changed(path, ..) | StateDifference::Removed(path, _) => {
                        (path, nodes)
                    }
                }
            }));
            if is_last {
                return Ok(Self(changed));
            }
        }
    }

    fn beneath<'c>(&'c self, path: &'c VfsPath) -> impl Iterator<Item = (&'c VfsPathBuf, &'c (Node, Node))> {
        self.0.range::<VfsPath, _>((Bound::Excluded(path), Bound::Unbounded)).take_while(move |(beneath, _)| beneath.starts_with(path))
    }

    /// Returns whether the side has anything beneath a path that it changed or added.
    fn has_beneath(&self, path: &VfsPath) -> bool {
        self.beneath(path).any(|(_, (_, newer))| newer.is_some())
    }

    /// Returns whether the side removed a directory that contains a path.
    fn removed_above(&self, path: &VfsPath) -> bool {
        path.ancestors().any(|above| matches!(self.0.get(above), Some((Some(_), None))))
    }
}

/// The action at a path.
#[derive(Debug)]
struct Step {
    path: VfsPathBuf,
    graft: Graft,
    origin: MergeOrigin,
    /// What our side has there.
    ours: Node,
}

/// A path that needs a decision.
#[derive(Debug)]
struct Case {
    path: VfsPathBuf,
    kind: MergeConflictKind,
    sides: [Node; 3],
    /// The paths changed beneath it, if they are decided with it.
    beneath: Vec<VfsPathBuf>,
    hunks: Vec<MergeHunk>,
    hunks_total: u64,
    /// The merged lines of both sides, if the strategy uses them.
    lines: Option<Bytes>,
}

/// The actions of a merge, and its conflicts.
#[derive(Debug)]
pub(super) struct Plan {
    steps: Vec<Step>,
    conflicts: Vec<MergeConflict>,
    /// For each conflict, the differences that are decided with it.
    beneath: Vec<Vec<Difference>>,
    ours: Changed,
}

/// Plans the merge of the changes that ours and theirs made to a base; `None` if theirs changed nothing.
///
/// # Errors
/// [`InvalidArgument`](treehold_core::error::ErrorKind::InvalidArgument) for a resolution of a path without a conflict, and the errors of the store.
pub(super) async fn plan(
    [base, ours, theirs]: [&StateSnapshot; 3],
    options: &MergeOptions,
    names: MarkerNames<'_>,
) -> Result<Option<Plan>> {
    let their_changes = Changed::between(base, theirs).await?;
    if their_changes.0.is_empty() {
        return Ok(None);
    }
    let our_changes = Changed::between(base, ours).await?;
    let mut sorted = Sorted { ours: &our_changes, theirs: &their_changes, steps: Vec::new(), cases: Vec::new(), texts: Vec::new() };
    sorted.sort();
    let Sorted { mut steps, mut cases, texts, .. } = sorted;
    let merged = merge_all([base, ours, theirs], &texts, options, names).await?;
    for (file, merged) in texts.into_iter().zip(merged) {
        let Texts { path, base, ours, theirs } = file;
        match merged {
            Merged::Clean(content) => {
                steps.push(Step { path, graft: Graft::Content(content), origin: MergeOrigin::Lines, ours: Some(ours) })
            }
            Merged::Conflict { kind, hunks, hunks_total, decided } => {
                let sides = [base, Some(ours), Some(theirs)];
                cases.push(Case { path, kind, sides, beneath: Vec::new(), hunks, hunks_total, lines: decided });
            }
        }
    }
    cases.sort_by(|one, other| one.path.cmp(&other.path));
    let mut conflicts = Vec::with_capacity(cases.len());
    let mut beneath = Vec::with_capacity(cases.len());
    let mut used = HashSet::new();
    for case in cases {
        let said = options.resolution(&case.path).map(|(said, resolution)| {
            used.insert(said.to_owned());
            resolution
        });
        let resolution = said.or(options.strategy.map(MergeResolution::Strategy));
        let decision = resolution.as_ref().and_then(|resolution| case.decide(resolution, &our_changes, &their_changes));
        let decided = decision.as_ref().and(resolution);
        steps.extend(decision.into_iter().flatten());
        beneath.push(case.differences_beneath(&our_changes, &their_changes));
        conflicts.push(case.into_conflict(decided));
    }
    if let Some(unused) = options.resolutions.keys().find(|said| !used.contains(*said)) {
        let message = format!("`{unused}` is not a conflict of this merge; leave its resolution out");
        return Err(Error::invalid_argument(message).at(unused));
    }
    steps.sort_by(|one, other| one.path.cmp(&other.path));
    Ok(Some(Plan { steps, conflicts, beneath, ours: our_changes }))
}

/// The changed paths, sorted by action.
struct Sorted<'c> {
    ours: &'c Changed,
    theirs: &'c Changed,
    steps: Vec<Step>,
    cases: Vec<Case>,
    texts: Vec<Texts>,
}

impl Sorted<'_> {
    fn sort(&mut self) {
        let (ours, theirs) = (self.ours, self.theirs);
        let paths: BTreeSet<&VfsPathBuf> = ours.0.keys().chain(theirs.0.keys()).collect();
        // The path of a conflict that covers everything beneath it.
        let mut cover: Option<&VfsPathBuf> = None;
        for path in paths {
            if cover.is_some_and(|cover| path.starts_with(cover)) {
                self.cases.last_mut().expect("the covering conflict was pushed before").beneath.push(path.clone());
                continue;
            }
            cover = match (ours.0.get(path), theirs.0.get(path)) {
                (Some((base, node)), None) => self.one_sided(path, [base, node, base], theirs, None),
                (None, Some((base, node))) => self.one_sided(path, [base, base, node], ours, Some(node)),
                (Some((base, our)), Some((_, their))) => self.two_sided(path, [base, our, their]),
                (None, None) => None,
            };
        }
    }

    /// Handles a path that only one side changed; `take` is the node to take. Returns the path if it covers what lies beneath.
    fn one_sided<'p>(&mut self, path: &'p VfsPathBuf, sides: [&Node; 3], other: &Changed, take: Option<&Node>) -> Option<&'p VfsPathBuf> {
        let [base, our, their] = sides;
        let changed = if take.is_some() { their } else { our };
        let had_directory = base.as_ref().is_some_and(|base| base.is_directory());
        let has_file = changed.as_ref().is_some_and(|node| !node.is_directory());
        let is_added = base.is_none() && changed.is_some();
        if had_directory && has_file && other.has_beneath(path) {
            return Some(self.case(path, MergeConflictKind::FileAndDirectory, sides));
        }
        if is_added && other.removed_above(path) {
            return Some(self.case(path, MergeConflictKind::DirectoryRemoved, sides));
        }
        if let Some(node) = take {
            let graft = node.clone().map_or(Graft::Nothing, Graft::Node);
            self.steps.push(Step { path: path.clone(), graft, origin: MergeOrigin::Theirs, ours: our.clone() });
        }
        None
    }

    fn two_sided<'p>(&mut self, path: &'p VfsPathBuf, sides: [&Node; 3]) -> Option<&'p VfsPathBuf> {
        match sides {
            [_, None, None] => None,
            [_, Some(our), Some(their)] if our.is_directory() && their.is_directory() => None,
            [base, Some(our), Some(their)] if !our.is_directory() && !their.is_directory() => {
                let is_same = our.size_bytes() == their.size_bytes() && our.hash().is_some_and(|hash| their.hash() == Some(hash));
                if !is_same {
                    let base = base.clone().filter(|base| !base.is_directory());
                    self.texts.push(Texts { path: path.clone(), base, ours: our.clone(), theirs: their.clone() });
                }
                None
            }
            [_, Some(_), Some(_)] => Some(self.case(path, MergeConflictKind::FileAndDirectory, sides)),
            [_, None, Some(_)] | [_, Some(_), None] => Some(self.case(path, MergeConflictKind::ChangedAndRemoved, sides)),
        }
    }

    fn case<'p>(&mut self, path: &'p VfsPathBuf, kind: MergeConflictKind, sides: [&Node; 3]) -> &'p VfsPathBuf {
        let sides = sides.map(Clone::clone);
        self.cases.push(Case { path: path.clone(), kind, sides, beneath: Vec::new(), hunks: Vec::new(), hunks_total: 0, lines: None });
        path
    }
}

impl Case {
    /// Returns the steps of a resolution; `None` if it does not decide this conflict.
    fn decide(&self, resolution: &MergeResolution, ours: &Changed, theirs: &Changed) -> Option<Vec<Step>> {
        let step = |path: &VfsPathBuf, graft: Graft| {
            let node = |changed: &Changed| changed.0.get(path).map(|(base, node)| (base.clone(), node.clone()));
            // A side that did not change the path has what the base has there.
            let our = node(ours).map(|(_, node)| node).or_else(|| node(theirs).map(|(base, _)| base)).flatten();
            Step { path: path.clone(), graft, origin: MergeOrigin::Decided, ours: our }
        };
        let all = || std::iter::once(&self.path).chain(&self.beneath);
        let nothing_beneath = || self.beneath.iter().map(|path| step(path, Graft::Nothing));
        match resolution {
            MergeResolution::Strategy(MergeStrategy::Ours) => Some(Vec::new()),
            MergeResolution::Strategy(MergeStrategy::Theirs) => {
                let their = |path: &VfsPathBuf| match theirs.0.get(path) {
                    Some((_, node)) => node.clone(),
                    None => ours.0.get(path).and_then(|(base, _)| base.clone()),
                };
                Some(all().map(|path| step(path, their(path).map_or(Graft::Nothing, Graft::Node))).collect())
            }
            MergeResolution::Strategy(MergeStrategy::Union | MergeStrategy::Markers) => {
                self.lines.clone().map(|lines| vec![step(&self.path, Graft::Content(lines))])
            }
            MergeResolution::Content(content) => {
                let file = step(&self.path, Graft::Content(content.clone()));
                Some(nothing_beneath().chain([file]).collect())
            }
            MergeResolution::Remove => Some(all().map(|path| step(path, Graft::Nothing)).collect()),
        }
    }

    /// Returns the differences that are decided with it, as the two sides have them.
    fn differences_beneath(&self, ours: &Changed, theirs: &Changed) -> Vec<Difference> {
        let side = |changed: &Changed, other: &Changed, path: &VfsPathBuf| {
            // A side that did not change the path has what the base has there.
            let node = changed.0.get(path).map(|(_, node)| node).or_else(|| other.0.get(path).map(|(base, _)| base));
            node.and_then(|node| node.as_ref().map(|node| standing_of(node)))
        };
        self.beneath.iter().map(|path| Difference::new(path.clone(), side(ours, theirs, path), side(theirs, ours, path))).collect()
    }

    fn into_conflict(self, decided: Option<MergeResolution>) -> MergeConflict {
        let [base, ours, theirs] = self.sides.map(|node| node.map(|node| MergeSide::of(&node)));
        let (path, kind, hunks, hunks_total) = (self.path, self.kind, self.hunks, self.hunks_total);
        MergeConflict { path, kind, base, ours, theirs, hunks, hunks_total, beneath: self.beneath.len() as u64, decided }
    }
}

impl Plan {
    /// Asks whether the merge's changes are allowed, and whether its conflicts may be shown. For an unreadable file no lines are shown.
    ///
    /// # Errors
    /// The errors of [`Backend::review`](crate::backend::Backend::review), and `permission_denied` for a conflict at a hidden path.
    pub(super) async fn review(&mut self, reviewer: &Reviewer) -> Result<()> {
        let standing = |node: &Node| node.as_ref().map(|node| standing_of(node));
        let changes: Vec<Difference> = self
            .steps
            .iter()
            .map(|step| {
                let after = match &step.graft {
                    Graft::Nothing => None,
                    Graft::Node(node) => Some(standing_of(node)),
                    Graft::Content(content) => Some(Standing::File(content.len() as u64)),
                };
                Difference::new(step.path.clone(), standing(&step.ours), after)
            })
            .collect();
        reviewer.ask(ReviewPurpose::Change, &changes).await?;
        let side = |side: &Option<MergeSide>| side.as_ref().map(MergeSide::standing);
        let told: Vec<Difference> = self
            .conflicts
            .iter()
            .map(|conflict| Difference::new(conflict.path.clone(), side(&conflict.ours), side(&conflict.theirs)))
            .collect();
        let sights = reviewer.ask(ReviewPurpose::Show, &told).await?;
        for ((conflict, beneath), sight) in self.conflicts.iter_mut().zip(&self.beneath).zip(sights) {
            let shown = reviewer.ask(ReviewPurpose::Show, beneath).await?.into_iter().filter(|sight| *sight > Sight::Hidden);
            conflict.beneath = shown.count() as u64;
            match sight {
                Sight::Hidden => {
                    let message =
                        "the two threads differ in something that a rule hides from you; ask somebody who may read it to merge them";
                    return Err(Error::new(ErrorKind::PermissionDenied, message));
                }
                Sight::Named => {
                    (conflict.hunks, conflict.hunks_total) = (Vec::new(), 0);
                    // A hash would reveal what a short file holds.
                    [&mut conflict.base, &mut conflict.ours, &mut conflict.theirs].into_iter().flatten().for_each(|side| side.hash = None);
                }
                Sight::Open => {}
            }
        }
        Ok(())
    }

    /// Fills in the outcome, and returns the actions.
    pub(super) fn tell(self, outcome: &mut MergeOutcome, options: &MergeOptions) -> Vec<(VfsPathBuf, Graft)> {
        let removed: HashSet<&VfsPathBuf> = self.steps.iter().filter(|step| step.graft.is_nothing()).map(|step| &step.path).collect();
        let is_left = |path: &VfsPath| self.ours.beneath(path).any(|(beneath, (_, node))| node.is_some() && !removed.contains(beneath));
        let changes: Vec<Option<MergeChange>> = self.steps.iter().map(|step| step.change(is_left)).collect();
        // Content that our side already has is not put again. A directory is removed once nothing is left in it.
        let is_done: Vec<bool> =
            self.steps.iter().zip(&changes).map(|(step, change)| change.is_none() && !step.graft.is_nothing()).collect();
        let mut changes: Vec<MergeChange> = changes.into_iter().flatten().collect();
        // A directory that our side removed comes back with what is put in it.
        let mut back: BTreeMap<&VfsPath, MergeOrigin> = BTreeMap::new();
        for change in changes.iter().filter(|change| change.change == ChangeKind::Added) {
            let gone = change.path.ancestors().filter(|above| matches!(self.ours.0.get(*above), Some((_, None))));
            back.extend(gone.map(|above| (above, change.origin)));
        }
        back.retain(|path, _| changes.binary_search_by(|change| VfsPath::cmp(&change.path, path)).is_err());
        let back: Vec<MergeChange> = back
            .into_iter()
            .map(|(path, origin)| MergeChange { path: path.to_owned(), change: ChangeKind::Added, is_directory: true, origin })
            .collect();
        changes.extend(back);
        changes.sort_by(|one, other| one.path.cmp(&other.path));
        outcome.changes_total = changes.len() as u64;
        outcome.changes = changes.into_iter().take(options.limit).collect();
        outcome.conflicts_total = self.conflicts.len() as u64;
        outcome.undecided = self.conflicts.iter().filter(|conflict| conflict.decided.is_none()).count() as u64;
        outcome.status = if outcome.undecided == 0 { MergeStatus::Merged } else { MergeStatus::Conflict };
        // If not all conflicts are listed, undecided ones come first.
        let mut conflicts = self.conflicts;
        if conflicts.len() > options.limit {
            conflicts.sort_by_key(|conflict| conflict.decided.is_some());
            conflicts.truncate(options.limit);
            conflicts.sort_by(|one, other| one.path.cmp(&other.path));
        }
        outcome.conflicts = conflicts;
        self.steps.into_iter().zip(is_done).filter(|(_, is_done)| !is_done).map(|(step, _)| (step.path, step.graft)).collect()
    }
}

/// Returns the kind and size of a node.
fn standing_of(node: &StateNode) -> Standing {
    if node.is_directory() { Standing::Directory } else { Standing::File(node.size_bytes()) }
}

impl Step {
    /// Returns the change that our side sees; `None` if it already has the same node, or a directory that is not empty.
    fn change(&self, is_left: impl Fn(&VfsPath) -> bool) -> Option<MergeChange> {
        let (change, is_directory) = match (&self.ours, &self.graft) {
            (None, Graft::Nothing) => return None,
            (Some(ours), Graft::Nothing) if ours.is_directory() && is_left(&self.path) => return None,
            (Some(ours), Graft::Nothing) => (ChangeKind::Removed, ours.is_directory()),
            (Some(ours), Graft::Node(node)) if ours.is_directory() && node.is_directory() => return None,
            (Some(_), Graft::Node(node)) => (ChangeKind::Changed, node.is_directory()),
            (Some(ours), Graft::Content(content)) if ours.hash() == Some(*blake3::hash(content).as_bytes()) => return None,
            (Some(_), Graft::Content(_)) => (ChangeKind::Changed, false),
            (None, Graft::Node(node)) => (ChangeKind::Added, node.is_directory()),
            (None, Graft::Content(_)) => (ChangeKind::Added, false),
        };
        Some(MergeChange { path: self.path.clone(), change, is_directory, origin: self.origin })
    }
}
