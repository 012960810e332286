//! Restoring files and directories to what they were at a moment.

use super::RESTORE_BYTES_MAX;
use super::road::Road;
use crate::session::Session;
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet};
use treehold_core::error::{Error, ErrorKind, Result};
use treehold_core::ops::{CHANGES_MAX, Change, Changed, Entry, Forgotten, GlobOptions, OnFailure, ReadOptions, StatOptions, WriteMode};
use treehold_core::path::{VfsPath, VfsPathBuf};
use treehold_tree::backend::Backend;

/// The tool that the author of a restored file names.
const RESTORE: &str = "restore";

impl Session {
    /// Restores files and directories to what they were at a moment, as [`Workspace::tree_as_of`](crate::workspace::Workspace::tree_as_of)
    /// names it. A path that did not exist then is removed. A directory gets the files that it had; what it has besides is removed.
    ///
    /// Returns the changes; files that are as they were are left alone. Paths in several mounts are restored in as many steps. A file that
    /// is named by several paths, because several mounts show it, is changed once, by one that the tree permits.
    ///
    /// Cost: reads all content, then and now.
    ///
    /// # Errors
    /// [`Unsupported`](ErrorKind::Unsupported) for a mount that keeps no past, [`NotFound`](ErrorKind::NotFound) for a path that existed
    /// neither then nor now, [`TooLarge`](ErrorKind::TooLarge) for over 256 MiB or 20,000 changes, [`Conflict`](ErrorKind::Conflict) if a
    /// file changes meanwhile, and the errors of reading and writing these paths.
    pub async fn restore_files(&self, paths: &[VfsPathBuf], at: &str) -> Result<Vec<Changed>> {
        let changes = self.plan_restore(paths, at).await?;
        self.apply_as(&changes, self.author_of(RESTORE, None)).await
    }

    /// Returns the changes that [`Session::restore_files`] would make now, and makes none. A directory that did not exist then is one
    /// recursive removal.
    ///
    /// Cost: reads all content, then and now. Where several mounts show the same rows, one review for each of them, and one for each path
    /// if none permits everything.
    ///
    /// # Errors
    /// As [`Session::restore_files`], without those of writing.
    pub async fn plan_restore(&self, paths: &[VfsPathBuf], at: &str) -> Result<Vec<Change>> {
        let past = self.workspace.tree_as_of(&self.scope, at).await?;
        let mut changes = Restoration { now: &*self.backend, past: &*past, left: RESTORE_BYTES_MAX, changes: Vec::new() };
        for path in paths {
            changes.restore(path).await?;
        }
        self.without_repeats(changes.changes).await
    }

    /// Keeps one of several changes of the same file through several mounts of its rows: one that the tree permits, if it permits any.
    async fn without_repeats(&self, changes: Vec<Change>) -> Result<Vec<Change>> {
        let histories = self.workspace.histories(&self.scope, &self.thread)?;
        let mut repeats: BTreeSet<usize> = BTreeSet::new();
        for history in &histories {
            if history.mounts.len() < 2 {
                continue;
            }
            let mut files: BTreeMap<VfsPathBuf, Vec<(usize, Road)>> = BTreeMap::new();
            for (number, change) in changes.iter().enumerate() {
                let at = self.workspace.mount_of(change.path());
                let Some(mount) = history.mounts.iter().position(|mount| **mount == *at) else { continue };
                let file = change.path().strip_prefix(at).unwrap_or(VfsPath::ROOT).to_owned();
                files.entry(file).or_default().push((number, Road { mount, change: change.clone() }));
            }
            let (mut numbers, mut roads) = (Vec::new(), Vec::new());
            for mut of_file in files.into_values().filter(|of_file| of_file.len() > 1) {
                of_file.sort_by_key(|(_, road)| road.mount);
                let (of_file, by): (Vec<usize>, Vec<Road>) = of_file.into_iter().unzip();
                numbers.push(of_file);
                roads.push(by);
            }
            // A change that is refused everywhere is refused when it is made.
            let (chosen, _) = self.choose_roads(&roads).await;
            for (numbers, chosen) in numbers.into_iter().zip(chosen) {
                let kept = numbers[chosen];
                repeats.extend(numbers.into_iter().filter(|number| *number != kept));
            }
        }
        let changes = changes.into_iter().enumerate().filter(|(number, _)| !repeats.contains(number));
        Ok(changes.map(|(_, change)| change).collect())
    }
}

/// What a restore changes.
struct Restoration<'t> {
    now: &'t dyn Backend,
    past: &'t dyn Backend,
    /// How many more bytes may be read.
    left: u64,
    changes: Vec<Change>,
}

impl Restoration<'_> {
    async fn restore(&mut self, path: &VfsPath) -> Result<()> {
        let (then, now) = (entry_at(self.past, path).await?, entry_at(self.now, path).await?);
        match (then, now) {
            (None, None) => Err(Error::not_found(path)),
            (None, Some(now)) if now.is_directory() => self.push(Change::Delete { path: now.path, recursive: true, expect: None }),
            (None, Some(now)) => self.push(Change::Delete { path: now.path, recursive: false, expect: now.version }),
            (Some(then), now) if then.is_directory() => self.restore_directory(path, now).await,
            (Some(then), now) => self.restore_file(&then.path, now).await,
        }
    }

    async fn restore_file(&mut self, path: &VfsPath, now: Option<Entry>) -> Result<()> {
        let content = self.read(self.past, path).await?;
        let mode = match &now {
            Some(now) if now.is_directory() => {
                let message = format!("`{path}` was a file and is a directory now; delete it first, or restore what lies above it");
                return Err(Error::new(ErrorKind::IsDirectory, message).at(path));
            }
            Some(now) if self.read(self.now, path).await? == content && now.size_bytes == content.len() as u64 => return Ok(()),
            Some(now) => now.version.map_or(WriteMode::Overwrite, WriteMode::IfVersion),
            None => WriteMode::CreateNew,
        };
        self.push(Change::Write { path: path.to_owned(), content, mode })
    }

    async fn restore_directory(&mut self, path: &VfsPath, now: Option<Entry>) -> Result<()> {
        let mut files = match now {
            Some(now) if now.is_directory() => files_beneath(self.now, path).await?,
            Some(now) => {
                self.push(Change::Delete { path: now.path, recursive: false, expect: now.version })?;
                BTreeMap::new()
            }
            None => BTreeMap::new(),
        };
        let then = files_beneath(self.past, path).await?;
        // Removals come first: a file may stand where a directory was.
        for (path, entry) in files.iter().filter(|(path, _)| !then.contains_key(*path)) {
            self.push(Change::Delete { path: path.clone(), recursive: false, expect: entry.version })?;
        }
        for path in then.into_keys() {
            let now = files.remove(&path);
            self.restore_file(&path, now).await?;
        }
        Ok(())
    }

    async fn read(&mut self, tree: &dyn Backend, path: &VfsPath) -> Result<Bytes> {
        let options = ReadOptions::new().with_bytes_max(self.left);
        let content = tree.read(path, &options).await?.content;
        self.left = self.left.saturating_sub(content.len() as u64);
        Ok(content)
    }

    fn push(&mut self, change: Change) -> Result<()> {
        if self.changes.len() == CHANGES_MAX {
            let message = format!("the restore would change over {CHANGES_MAX} files; restore directories one by one");
            return Err(Error::new(ErrorKind::TooLarge, message).at(change.path()));
        }
        self.changes.push(change);
        Ok(())
    }
}

async fn entry_at(tree: &dyn Backend, path: &VfsPath) -> Result<Option<Entry>> {
    match tree.stat(path, &StatOptions::new()).await {
        Ok(entry) => Ok(Some(entry)),
        // What is not known is not absent: a restore would remove the file of today.
        Err(error) if Forgotten::is_source_of(&error) => Err(error),
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => Ok(None),
        Err(error) => Err(error),
    }
}

async fn files_beneath(tree: &dyn Backend, path: &VfsPath) -> Result<BTreeMap<VfsPathBuf, Entry>> {
    let options = GlobOptions::new("**").with_hidden(true).with_ignored(true).with_on_failure(OnFailure::Fail).with_limit(CHANGES_MAX + 1);
    let found = tree.glob(path, &options).await?;
    if found.entries.len() > CHANGES_MAX {
        let message = format!("`{path}` holds over {CHANGES_MAX} files; restore what lies in it in parts");
        return Err(Error::new(ErrorKind::TooLarge, message).at(path));
    }
    Ok(found.entries.into_iter().filter(|entry| !entry.is_directory()).map(|entry| (entry.path.clone(), entry)).collect())
}
