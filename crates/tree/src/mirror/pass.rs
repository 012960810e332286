//! One comparison of the tree and the directory, and everything that follows from it.

use super::bases::Bases;
use super::event::{MirrorAction, MirrorEvent, MirrorReport, MirrorSide};
use super::files::{Files, Ground, Job, Outcome, is_race, is_refusal};
use super::plan::{self, Known, Step, TreeNode};
use super::scan::{self, TreeScan};
use crate::backend::HostNode;
use crate::checkpoint::MergeConflictKind;
use futures::stream::{self, StreamExt};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use treehold_core::error::{Error, ErrorKind, Result};
use treehold_core::ops::{ApplyOptions, Change, EntryKind, Version, WriteMode};
use treehold_core::path::{VfsPath, VfsPathBuf};
use treehold_core::work;
use uuid::Uuid;

/// How many comparisons follow from one, because a side changed meanwhile.
const PASSES_MAX: usize = 8;

/// How often a file that keeps changing is left for the next look before it is taken as it is.
const UNSETTLED_MAX: u32 = 5;

/// What the first comparison of a mirror has to make sure of before it changes anything.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum First {
    /// The directory does not lie in the tree, where it would mirror itself without end.
    New,
    /// The tree still has a file. Otherwise its store may have been replaced by a new one, which has no common past with the directory, so
    /// what was last mirrored is forgotten.
    Resumed,
}

/// How to look at the two sides.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Look {
    /// Lists the tree. Otherwise the tree counts as unchanged.
    pub(super) tree: bool,
    /// Takes files of the directory as they are. Otherwise one that just changed is left for the next look, because its writer may not
    /// have finished.
    pub(super) at_once: bool,
    /// Set for the first comparison of a mirror, which is of everything.
    pub(super) first: Option<First>,
}

/// What a mirror remembers between comparisons.
#[derive(Debug, Default)]
pub(super) struct Memory {
    known: BTreeMap<VfsPathBuf, Known>,
    /// The last failure at each path, so that it is reported once.
    reported: HashMap<VfsPathBuf, String>,
    /// Changes of the directory that were seen once, and how often they looked different.
    unsettled: HashMap<VfsPathBuf, (Option<Version>, u32)>,
    /// Changes of the directory that are not in the tree.
    failed: HashMap<VfsPathBuf, Option<Version>>,
    /// Whether the directory holds names that no path can express.
    has_unnameable: bool,
}

impl Memory {
    /// Starts with what an earlier mirror knew.
    pub(super) fn resumed(known: BTreeMap<VfsPathBuf, Known>) -> Self {
        Self { known, ..Self::default() }
    }

    /// Returns whether a file is known that both sides had.
    pub(super) fn knows_files(&self) -> bool {
        self.known.values().any(|known| known.file().is_some())
    }

    /// Returns whether the directory holds changes that are not in the tree.
    pub(super) fn has_unsaved(&self) -> bool {
        self.has_unnameable || !self.failed.is_empty()
    }
}

/// The two sides, as they were listed.
#[derive(Debug, Default)]
struct Sides {
    tree: BTreeMap<VfsPathBuf, TreeNode>,
    /// Empty files of the tree that count as absent.
    empty: HashMap<VfsPathBuf, Option<Version>>,
    host: BTreeMap<VfsPathBuf, HostNode>,
    /// Paths of which one side is unknown, with everything beneath.
    unknown: BTreeSet<VfsPathBuf>,
    /// Paths at which the listing of the directory failed in part.
    incomplete: BTreeSet<VfsPathBuf>,
    /// Whether the tree was listed without a gap.
    is_tree_known: bool,
}

/// One comparison in progress.
pub(super) struct Comparison<'m> {
    pub(super) files: &'m Files,
    pub(super) memory: &'m mut Memory,
    pub(super) report: MirrorReport,
    /// The paths to be compared again.
    again: BTreeSet<VfsPathBuf>,
}

impl<'m> Comparison<'m> {
    pub(super) fn new(files: &'m Files, memory: &'m mut Memory) -> Self {
        Self { files, memory, report: MirrorReport::default(), again: BTreeSet::new() }
    }

    /// Compares paths and everything beneath them until both sides agree. Returns the paths that still changed at the end.
    pub(super) async fn run(&mut self, paths: impl IntoIterator<Item = VfsPathBuf>, look: Look) -> Result<BTreeSet<VfsPathBuf>> {
        let mut paths: BTreeSet<VfsPathBuf> = paths.into_iter().collect();
        let mut look = look;
        for _ in 0..PASSES_MAX {
            if paths.is_empty() {
                break;
            }
            self.pass(&paths, look).await?;
            paths = std::mem::take(&mut self.again);
            (look.tree, look.first) = (true, None);
        }
        Ok(paths)
    }

    async fn pass(&mut self, paths: &BTreeSet<VfsPathBuf>, look: Look) -> Result<()> {
        let bases = self.bases(paths).await?;
        let is_in = |path: &VfsPath| bases.iter().any(|base| path.starts_with(base));
        let lists_tree =
            look.tree || self.memory.known.iter().any(|(path, known)| is_in(path) && known.file().is_some_and(|f| f.tree.is_none()));
        let mut sides = self.sides(&bases, lists_tree, look.first).await?;
        if look.first == Some(First::Resumed) && sides.lacks_files() {
            self.files.on_host(|ground| ground.bases.as_ref().map_or(Ok(()), Bases::clear)).await?;
            self.memory.known.clear();
        }
        let known: Vec<VfsPathBuf> = self.memory.known.keys().filter(|path| is_in(path)).cloned().collect();
        let all: BTreeSet<VfsPathBuf> = known.into_iter().chain(sides.tree.keys().chain(sides.host.keys()).cloned()).collect();
        self.limit_bytes(&mut sides, &is_in);
        if self.files.options.write_back {
            self.settle_clashes(&mut sides).await?;
        }
        let mut steps: BTreeMap<&VfsPathBuf, Step> = BTreeMap::new();
        for path in &all {
            if !path.is_root()
                && !sides.is_unknown(path)
                && let Some(step) = self.step(path, &sides, look)
            {
                steps.insert(path, step);
            }
        }
        self.clear(&mut sides, &mut steps).await;
        self.directories(&sides, &steps).await;
        self.transfer(&sides, &steps, |step| matches!(step, Step::PutHost | Step::PutTree | Step::Both)).await;
        self.transfer(&sides, &steps, |step| matches!(step, Step::RemoveHost | Step::RemoveTree)).await;
        self.remove_directories(&steps).await;
        if bases.contains(VfsPath::ROOT) {
            let memory = &mut *self.memory;
            let is_there = |path: &VfsPathBuf| all.contains(path) || sides.incomplete.contains(path) || sides.is_unknown(path);
            memory.reported.retain(|path, _| is_there(path));
            memory.unsettled.retain(|path, _| is_there(path));
            memory.failed.retain(|path, _| is_there(path));
        }
        Ok(())
    }

    /// Returns the paths to list: the given ones, or the nearest above whose parent is a directory on both sides. None lies in another.
    async fn bases(&self, paths: &BTreeSet<VfsPathBuf>) -> Result<BTreeSet<VfsPathBuf>> {
        let mut bases = BTreeSet::new();
        for path in paths {
            let mut base: &VfsPath = path;
            while let Some(parent) = base.parent() {
                let at = parent.to_owned();
                let is_known = parent.is_root() || self.memory.known.get(parent) == Some(&Known::Directory);
                let is_directory = async {
                    let node = self.files.on_host(move |ground| ground.host.look(&at)).await?;
                    Ok::<_, Error>(node.is_some_and(|node| node.kind == EntryKind::Directory))
                };
                if is_known && is_directory.await? {
                    break;
                }
                base = parent;
            }
            bases.insert(base.to_owned());
        }
        let is_inner = |path: &VfsPathBuf| path.ancestors().any(|above| above != &**path && bases.contains(above));
        let inner: Vec<VfsPathBuf> = bases.iter().filter(|path| is_inner(path)).cloned().collect();
        bases.retain(|path| !inner.contains(path));
        Ok(bases)
    }

    /// Lists both sides.
    async fn sides(&mut self, bases: &BTreeSet<VfsPathBuf>, lists_tree: bool, first: Option<First>) -> Result<Sides> {
        let options = &self.files.options;
        let (nodes_max, parallel) = (options.nodes_max, options.parallel);
        let mut sides = Sides::default();
        for base in bases {
            let (at, ground) = (base.clone(), self.files.ground.clone());
            // The directory first: what is written to the tree meanwhile is then found there and not taken for a removal.
            let scanned = work::run(work::LARGE, move |stop| ground.host.scan(&at, nodes_max, stop)).await??;
            sides.host.extend(scanned.nodes);
            for (directory, error) in scanned.unread {
                // A mirror that is overwritten makes room by removing what the tree does not have.
                if self.files.options.write_back || error.kind() != ErrorKind::TooLarge {
                    sides.unknown.insert(directory.clone());
                }
                self.fail(&directory, &error);
                sides.incomplete.insert(directory);
            }
            if base.is_root() {
                self.memory.has_unnameable = self.files.options.write_back && !scanned.unnameable.is_empty();
            }
            for (directory, name, error) in scanned.unnameable {
                let shown = error.path().unwrap_or(&directory).to_owned();
                if self.files.options.write_back {
                    self.fail(&shown, &error);
                } else {
                    match self.files.on_host(move |ground| ground.host.remove_name(&directory, &name)).await {
                        Ok(()) => self.emit(MirrorEvent::new(MirrorAction::Overwritten, &shown).with_error(&error)),
                        Err(error) => self.fail(&shown, &error),
                    }
                }
                sides.incomplete.insert(shown);
            }
            if lists_tree {
                let scanned = match first {
                    Some(First::New) => self.scan_apart().await?,
                    _ => scan::scan(&*self.files.tree, base, nodes_max, parallel).await?,
                };
                sides.is_tree_known = scanned.unknown.is_empty();
                sides.tree.extend(scanned.nodes);
                for (path, error) in scanned.unknown {
                    if path.is_root() {
                        return Err(error);
                    }
                    self.fail(&path, &error);
                    sides.unknown.insert(path);
                }
            } else {
                let known = self.memory.known.iter().filter(|(path, _)| path.starts_with(base));
                sides.tree.extend(known.map(|(path, known)| {
                    let node = match known {
                        Known::Directory => TreeNode::Directory,
                        Known::File(file) => TreeNode::File { version: file.tree, size_bytes: file.size_bytes },
                    };
                    (path.clone(), node)
                }));
            }
        }
        if self.files.options.skip_empty {
            let is_empty = |node: &TreeNode| matches!(node, TreeNode::File { size_bytes: 0, .. });
            let empty: Vec<VfsPathBuf> = sides.tree.iter().filter(|(_, node)| is_empty(node)).map(|(path, _)| path.clone()).collect();
            for path in empty {
                if let Some(TreeNode::File { version, .. }) = sides.tree.remove(&path) {
                    sides.empty.insert(path, version);
                }
            }
        }
        Ok(sides)
    }

    /// Lists the tree, and fails if the directory lies in it.
    async fn scan_apart(&self) -> Result<TreeScan> {
        let name = format!("treehold-mirror-{}", Uuid::now_v7().simple());
        let path = VfsPathBuf::parse(format!("/{name}")).expect("a plain name");
        let at = path.clone();
        let node = self.files.on_host(move |ground| ground.host.write(&at, b"", None)).await?;
        let (nodes_max, parallel) = (self.files.options.nodes_max, self.files.options.parallel);
        let scanned = scan::scan(&*self.files.tree, VfsPath::ROOT, nodes_max, parallel).await;
        self.files.on_host(move |ground| ground.host.remove(&path, node)).await?;
        let scanned = scanned?;
        if scanned.nodes.keys().any(|path| path.name() == name) {
            let message =
                "the directory of the mirror lies in the tree that it would mirror; name another directory, or mirror another part";
            return Err(Error::invalid_argument(message));
        }
        Ok(scanned)
    }

    /// Leaves out files beyond the limit of all bytes together.
    fn limit_bytes(&mut self, sides: &mut Sides, is_in: &impl Fn(&VfsPath) -> bool) {
        let elsewhere = self.memory.known.iter().filter(|(path, _)| !is_in(path)).filter_map(|(_, known)| known.file());
        let mut bytes: u64 = elsewhere.map(|file| file.size_bytes).sum();
        let bytes_max = self.files.options.bytes_max;
        let mut over = Vec::new();
        for (path, node) in &sides.tree {
            let TreeNode::File { size_bytes, .. } = node else { continue };
            match bytes.checked_add(*size_bytes).filter(|sum| *sum <= bytes_max) {
                Some(sum) => bytes = sum,
                None => over.push(path.clone()),
            }
        }
        for path in over {
            let message = format!("the files of the mirror have over {bytes_max} bytes; mirror a part of the tree, or raise the limit");
            self.fail(&path, &Error::new(ErrorKind::TooLarge, message).at(&path));
            sides.unknown.insert(path);
        }
    }

    /// Decides what to do at a path; `None` for something that waits for a later look.
    fn step(&mut self, path: &VfsPathBuf, sides: &Sides, look: Look) -> Option<Step> {
        let (base, tree, host) = (self.memory.known.get(path), sides.tree.get(path), sides.host.get(path));
        if !self.files.options.write_back {
            return Some(plan::one_way(base, tree, host));
        }
        let mut step = plan::two_way(base, tree, host);
        // Only a link or a special file is cleared, which the user may have made.
        if step == Step::ClearHost && self.files.options.loses_nothing() {
            step = Step::Leave;
        }
        let stamp = host.map(|node| node.stamp);
        if matches!(step, Step::Nothing | Step::Adopt | Step::Forget) {
            self.memory.unsettled.remove(path);
            self.memory.failed.remove(path);
            return Some(step);
        }
        let takes_host =
            matches!(step, Step::PutTree | Step::Both | Step::RemoveTree | Step::RemoveTreeDirectory | Step::MakeTreeDirectory);
        if !takes_host || look.at_once {
            return Some(step);
        }
        if !look.tree && self.memory.failed.get(path) == Some(&stamp) {
            return None;
        }
        let (seen, times) = self.memory.unsettled.get(path).copied().unwrap_or((None, 0));
        if times > UNSETTLED_MAX || (times > 0 && seen == stamp) {
            self.memory.unsettled.remove(path);
            return Some(step);
        }
        self.memory.unsettled.insert(path.clone(), (stamp, times + 1));
        None
    }

    /// Decides about paths where one side has a file and the other a directory. If only the directory changed, the tree follows; otherwise
    /// what the tree has replaces what the directory has.
    async fn settle_clashes(&mut self, sides: &mut Sides) -> Result<()> {
        let mut roots: Vec<VfsPathBuf> = Vec::new();
        for (path, node) in &sides.host {
            let is_clash = sides.tree.get(path).is_some_and(|tree| match node.kind {
                EntryKind::Directory => tree.is_file(),
                EntryKind::File => !tree.is_file(),
                _ => false,
            });
            if is_clash && !sides.is_unknown(path) && !roots.iter().any(|root| path.starts_with(root)) {
                roots.push(path.clone());
            }
        }
        for root in roots {
            let known = &self.memory.known;
            let is_tree_changed = |path: &VfsPath, node: &TreeNode| match node {
                TreeNode::File { version, .. } => plan::is_tree_changed(known.get(path), *version),
                TreeNode::Directory => known.get(path) != Some(&Known::Directory),
            };
            let is_host_changed = |path: &VfsPath, node: &HostNode| match node.kind {
                EntryKind::File => plan::is_host_changed(known.get(path), node),
                EntryKind::Directory => known.get(path) != Some(&Known::Directory),
                _ => true,
            };
            let tree: Vec<_> = sides.tree.iter().filter(|(path, _)| path.starts_with(&root)).collect();
            let host: Vec<_> = sides.host.iter().filter(|(path, _)| path.starts_with(&root)).collect();
            let tree_changed = tree.iter().any(|(path, node)| is_tree_changed(path, node));
            let host_changed = host.iter().any(|(path, node)| is_host_changed(path, node));
            let replaced = match (tree_changed, host_changed) {
                (false, true) => {
                    let mut changes: Vec<Change> = tree
                        .iter()
                        .rev()
                        .map(|(path, node)| {
                            let expect = known.get(*path).and_then(Known::file).and_then(|file| file.tree).filter(|_| node.is_file());
                            Change::Delete { path: (*path).clone(), recursive: false, expect }
                        })
                        .collect();
                    // Deeper paths first, whatever the order of the names.
                    changes.sort_by_key(|change| std::cmp::Reverse(change.path().depth()));
                    Some(self.replace_in_tree(&root, changes).await)
                }
                _ => None,
            };
            match replaced {
                Some(Ok(())) => self.emit(MirrorEvent::new(MirrorAction::WrittenBack, &root)),
                Some(Err(error)) if is_race(&error) => {}
                Some(Err(error)) if !is_refusal(&error) => {
                    self.memory.failed.insert(root.clone(), None);
                    self.fail(&root, &error);
                    sides.unknown.insert(root);
                    continue;
                }
                _ if host_changed && self.files.options.loses_nothing() => {
                    let message = format!("`{root}` is a file on one side and a directory on the other; rename one of them");
                    self.memory.failed.insert(root.clone(), None);
                    self.fail(&root, &Error::new(ErrorKind::Conflict, message).at(&root));
                    sides.unknown.insert(root);
                    continue;
                }
                other => {
                    let at = root.clone();
                    if let Err(error) = self.files.on_host(move |ground| ground.host.remove_all(&at)).await {
                        self.fail(&root, &error);
                        sides.unknown.insert(root);
                        continue;
                    }
                    match other {
                        Some(Err(error)) => self.emit(MirrorEvent::new(MirrorAction::Refused, &root).with_error(&error)),
                        _ if host_changed => {
                            self.emit(MirrorEvent::conflict(&root, MergeConflictKind::FileAndDirectory, MirrorSide::Tree));
                        }
                        _ => {}
                    }
                }
            }
            self.forget_beneath(&root).await;
            self.again.insert(root.clone());
            sides.unknown.insert(root);
        }
        Ok(())
    }

    /// Removes what the tree has at a path, and makes what the directory has there, without what is beneath.
    async fn replace_in_tree(&self, root: &VfsPathBuf, mut changes: Vec<Change>) -> Result<()> {
        let (at, bytes_max) = (root.clone(), self.files.options.file_bytes_max);
        let content = self.files.on_host(move |ground| match ground.host.look(&at)? {
            Some(node) if node.kind == EntryKind::File => ground.host.read(&at, bytes_max).map(|(content, _)| Some(content)),
            Some(_) => Ok(None),
            None => Err(Error::not_found(&at)),
        });
        changes.push(match content.await? {
            Some(content) => Change::Write { path: root.clone(), content, mode: WriteMode::CreateNew },
            None => Change::CreateDir { path: root.clone() },
        });
        self.files.tree.apply(&changes, &ApplyOptions::new().with_allow_partial(true)).await.map(drop)
    }

    /// Removes from the directory what is in the way of the tree's nodes, or replaces them. The steps there become those for an empty place.
    async fn clear(&mut self, sides: &mut Sides, steps: &mut BTreeMap<&VfsPathBuf, Step>) {
        let mut cleared: Vec<VfsPathBuf> = Vec::new();
        let paths: Vec<VfsPathBuf> = steps.iter().filter(|(_, step)| **step == Step::ClearHost).map(|(path, _)| (*path).clone()).collect();
        for path in paths {
            if cleared.iter().any(|above| path.starts_with(above)) {
                continue;
            }
            let at = path.clone();
            let removed = self.files.on_host(move |ground| ground.host.remove_all(&at)).await;
            if let Err(error) = removed {
                self.fail(&path, &error);
                sides.unknown.insert(path.clone());
                steps.retain(|at, _| !at.starts_with(&path));
                continue;
            }
            let was_known = self.memory.known.contains_key(&path);
            let action = if was_known && !sides.tree.contains_key(&path) { MirrorAction::Removed } else { MirrorAction::Overwritten };
            self.emit(MirrorEvent::new(action, &path));
            self.forget_beneath(&path).await;
            sides.host.retain(|at, _| !at.starts_with(&path));
            cleared.push(path);
        }
        for (path, step) in steps.iter_mut() {
            if cleared.iter().any(|above| path.starts_with(above)) {
                *step = match sides.tree.get(*path) {
                    Some(TreeNode::Directory) => Step::MakeHostDirectory,
                    Some(TreeNode::File { .. }) => Step::PutHost,
                    None => Step::Forget,
                };
            }
        }
    }

    /// Creates the missing directories of both sides, and reports nodes that cannot be written back.
    async fn directories(&mut self, sides: &Sides, steps: &BTreeMap<&VfsPathBuf, Step>) {
        let mut ordered: Vec<(&VfsPathBuf, Step)> = steps.iter().map(|(path, step)| (*path, *step)).collect();
        ordered.sort_by_key(|(path, _)| path.depth());
        for (path, step) in ordered {
            let at = path.clone();
            match step {
                Step::Forget => {
                    if self.memory.known.remove(path).is_some() {
                        let _ = self.files.on_host(move |ground| ground.forget(&at)).await;
                    }
                    self.memory.reported.remove(path);
                }
                Step::Adopt if self.memory.known.get(path) != Some(&Known::Directory) => {
                    self.made(path, self.files.on_host(move |ground| ground.keep(&at, None)).await, None);
                }
                Step::MakeHostDirectory => {
                    let is_new = !sides.host.contains_key(path);
                    let made = match self.files.check_protected(Change::CreateDir { path: path.clone() }).await {
                        Ok(()) => {
                            let made = self.files.on_host(move |ground| {
                                ground.host.create_dir(&at)?;
                                ground.keep(&at, None)
                            });
                            made.await
                        }
                        refused => refused,
                    };
                    self.made(path, made, Some(if is_new { MirrorAction::Mirrored } else { MirrorAction::Overwritten }));
                }
                Step::MakeTreeDirectory => {
                    let change = Change::CreateDir { path: path.clone() };
                    match self.files.tree.apply(&[change], &ApplyOptions::new()).await {
                        Ok(_) => {
                            let kept = self.files.on_host(move |ground| ground.keep(&at, None)).await;
                            self.made(path, kept, Some(MirrorAction::WrittenBack));
                        }
                        Err(error) if is_refusal(&error) => self.refuse_directory(path, &error).await,
                        Err(error) => {
                            self.memory.failed.insert(path.clone(), sides.host.get(path).map(|node| node.stamp));
                            self.made(path, Err(error), None);
                        }
                    }
                }
                Step::Leave => {
                    let message = format!("`{path}` is a link, device, pipe or socket, which is not written back; use a file");
                    self.fail(path, &Error::unsupported(message).at(path));
                    self.memory.known.remove(path);
                }
                _ => {}
            }
        }
    }

    /// Removes a directory that the tree refused. Its files are refused too, and removed one by one.
    async fn refuse_directory(&mut self, path: &VfsPathBuf, error: &Error) {
        if self.files.options.loses_nothing() {
            return self.fail(path, error);
        }
        let at = path.clone();
        match self.files.on_host(move |ground| ground.host.remove_empty(&at)).await {
            Ok(true) => self.emit(MirrorEvent::new(MirrorAction::Refused, path).with_error(error)),
            // Rules may admit what is in it.
            Ok(false) => {}
            Err(error) => self.fail(path, &error),
        }
    }

    fn made(&mut self, path: &VfsPathBuf, made: Result<()>, action: Option<MirrorAction>) {
        match made {
            Ok(()) => {
                self.memory.known.insert(path.clone(), Known::Directory);
                self.memory.failed.remove(path);
                match action {
                    Some(action) => self.emit(MirrorEvent::new(action, path)),
                    None => drop(self.memory.reported.remove(path)),
                }
            }
            Err(error) if is_race(&error) => drop(self.again.insert(path.clone())),
            Err(error) => self.fail(path, &error),
        }
    }

    /// Does the steps of files, several at once.
    async fn transfer(&mut self, sides: &Sides, steps: &BTreeMap<&VfsPathBuf, Step>, is_wanted: impl Fn(Step) -> bool) {
        let files = self.files;
        let jobs: Vec<Job> = steps
            .iter()
            .filter(|(path, step)| is_wanted(**step) && !self.is_beneath_failure(path))
            .map(|(path, step)| Job {
                step: *step,
                path: (*path).clone(),
                base: self.memory.known.get(*path).and_then(Known::file).copied(),
                tree: sides.tree.get(*path).and_then(|node| match node {
                    TreeNode::File { version, size_bytes } => Some((*version, *size_bytes)),
                    TreeNode::Directory => None,
                }),
                empty: sides.empty.get(*path).copied().flatten(),
                host: sides.host.get(*path).copied(),
            })
            .collect();
        // The changes of the directory that a failure would leave there.
        let unsaved: HashMap<VfsPathBuf, Option<Version>> = jobs
            .iter()
            .filter(|job| matches!(job.step, Step::PutTree | Step::Both | Step::RemoveTree))
            .map(|job| (job.path.clone(), job.host.map(|node| node.stamp)))
            .collect();
        let mut done = stream::iter(jobs.into_iter().map(|job| files.run(job))).buffer_unordered(files.options.parallel);
        while let Some(outcome) = done.next().await {
            self.finish(outcome, &unsaved);
        }
    }

    fn finish(&mut self, outcome: Outcome, unsaved: &HashMap<VfsPathBuf, Option<Version>>) {
        let Outcome { path, known, events, again, failed } = outcome;
        if let Some(known) = known {
            match known {
                Some(known) => drop(self.memory.known.insert(path.clone(), known)),
                None => drop(self.memory.known.remove(&path)),
            }
            self.memory.failed.remove(&path);
            self.memory.reported.remove(&path);
        }
        events.into_iter().for_each(|event| self.emit(event));
        if let Some(error) = failed {
            if let Some(stamp) = unsaved.get(&path) {
                self.memory.failed.insert(path.clone(), *stamp);
            }
            self.fail(&path, &error);
        }
        if again {
            self.again.insert(path);
        }
    }

    /// Returns whether the directory of a path could not be created.
    fn is_beneath_failure(&self, path: &VfsPath) -> bool {
        path.parent().is_some_and(|parent| {
            let is_made = parent.is_root() || self.memory.known.get(parent) == Some(&Known::Directory);
            !is_made && self.memory.reported.contains_key(parent)
        })
    }

    /// Removes directories that the other side no longer has, the deepest first, if they are empty.
    async fn remove_directories(&mut self, steps: &BTreeMap<&VfsPathBuf, Step>) {
        let is_removal = |step: Step| matches!(step, Step::RemoveHostDirectory | Step::RemoveTreeDirectory);
        let mut ordered: Vec<(&VfsPathBuf, Step)> = steps.iter().filter(|(_, step)| is_removal(**step)).map(|(p, s)| (*p, *s)).collect();
        ordered.sort_by_key(|(path, _)| std::cmp::Reverse(path.depth()));
        for (path, step) in ordered {
            let at = path.clone();
            let removed = if step == Step::RemoveHostDirectory {
                self.files.on_host(move |ground| ground.host.remove_empty(&at)).await
            } else {
                let change = Change::Delete { path: path.clone(), recursive: false, expect: None };
                match self.files.tree.apply(&[change], &ApplyOptions::new()).await {
                    Ok(_) => Ok(true),
                    Err(error) if is_refusal(&error) => {
                        self.emit(MirrorEvent::new(MirrorAction::Refused, path).with_error(&error));
                        Ok(false)
                    }
                    // It is not empty: somebody put something in it.
                    Err(error) if error.kind() == ErrorKind::InvalidArgument => Ok(false),
                    Err(error) if error.kind() == ErrorKind::NotFound => Ok(true),
                    Err(error) => Err(error),
                }
            };
            match removed {
                Ok(true) => {
                    let at = path.clone();
                    let _ = self.files.on_host(move |ground| ground.forget(&at)).await;
                    self.memory.known.remove(path);
                    let action = if step == Step::RemoveHostDirectory { MirrorAction::Removed } else { MirrorAction::RemovedFromTree };
                    self.emit(MirrorEvent::new(action, path));
                }
                // It has new content, so it counts as new on this side.
                Ok(false) => {
                    self.memory.known.remove(path);
                    self.again.insert(path.clone());
                }
                Err(error) => self.fail(path, &error),
            }
        }
    }

    async fn forget_beneath(&mut self, root: &VfsPath) {
        let known: Vec<VfsPathBuf> = self.memory.known.keys().filter(|path| path.starts_with(root)).cloned().collect();
        for path in &known {
            self.memory.known.remove(path);
        }
        // A base that stays is compared with its hash before it is used.
        let forget = move |ground: &Ground| known.iter().try_for_each(|path| ground.forget(path));
        if let Err(error) = self.files.on_host(forget).await {
            self.fail(root, &error);
        }
    }

    /// Reports what was done.
    fn emit(&mut self, event: MirrorEvent) {
        if event.action != MirrorAction::Failed {
            self.memory.reported.remove(&event.path);
        }
        self.report.count(&event);
        if let Some(observer) = &self.files.options.observer {
            observer(&event);
        }
    }

    /// Reports a failure: to the observer only once, until something else happens at the path.
    fn fail(&mut self, path: &VfsPath, error: &Error) {
        let event = MirrorEvent::new(MirrorAction::Failed, &path.to_owned()).with_error(error);
        if self.memory.reported.get(path).is_some_and(|message| message == error.message()) {
            self.report.count(&event);
            return;
        }
        self.emit(event);
        self.memory.reported.insert(path.to_owned(), error.message().to_owned());
    }
}

impl Sides {
    /// Returns whether the tree is known to have no file. Nothing is removed because of what is unknown.
    fn lacks_files(&self) -> bool {
        self.is_tree_known && self.empty.is_empty() && !self.tree.values().any(TreeNode::is_file)
    }

    fn is_unknown(&self, path: &VfsPath) -> bool {
        !self.unknown.is_empty() && (self.unknown.contains(path) || path.ancestors().any(|above| self.unknown.contains(above)))
    }
}
