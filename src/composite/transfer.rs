//! Renames and copies between mounts: copy, verify, then delete what is still as it was copied.
//!
//! Everything here goes through the composite itself, in the caller's paths, so a copy is of what the caller sees, mounts in
//! it included. The order of the steps is the promise: until the source is deleted, in one batch of its backend and only where
//! each file still has the version that was copied, both are there. A fault or a conflict leaves both, never neither.
//! Memory: one file at a time, and one entry for each path beneath the source.

use super::CompositeBackend;
use crate::backend::{Backend, BackendExt};
use crate::error::{Error, ErrorKind, Result};
use crate::ops::{ApplyOptions, Change, Changed, Entry, EntryKind, LsOptions, ReadOptions, Version, WriteMode};
use crate::path::{VfsPath, VfsPathBuf};

/// What was copied of one path of the source: of a file, with the version it had.
struct Copied {
    path: VfsPathBuf,
    version: Option<Version>,
}

impl CompositeBackend {
    /// Carries a rename or copy out whose ends lie in different mounts.
    pub(super) async fn transfer(&self, change: &Change) -> Result<Changed> {
        let (from, to, overwrite, moves) = match change {
            Change::Rename { from, to, overwrite } => (from, to, *overwrite, true),
            Change::Copy { from, to, overwrite } => (from, to, *overwrite, false),
            other => return Err(Error::new(ErrorKind::Internal, format!("{} has no target", other.kind())).at(other.path())),
        };
        let source = self.stat(from).await?;
        let created = self.check_free(to, overwrite && !source.is_directory()).await?;
        // The whole source is listed before anything is made, so a target that shows in it by another mount is not copied again.
        let entries = self.walk(source).await?;
        let mut copied = Vec::with_capacity(entries.len());
        let mut result = Changed::new(change.kind(), to.to_owned()).with_created(created).with_entries(entries.len());
        for entry in &entries {
            let target = to.concat(entry.path.strip_prefix(from).unwrap_or(VfsPath::ROOT));
            let version = match entry.kind {
                EntryKind::Directory => self.make_directory(&target).await.map(|()| None)?,
                _ => {
                    let (version, made) = self.copy_file(&entry.path, &target, overwrite && !created, moves).await?;
                    if entry.path == *from {
                        result = result.with_file(made.0, made.1);
                    }
                    Some(version)
                }
            };
            copied.push(Copied { path: entry.path.clone(), version });
        }
        if moves {
            self.delete_copied(from, to, copied).await?;
        }
        Ok(result)
    }

    /// Checks that nothing stands at the target, or only a file that may be replaced; tells whether it is new.
    async fn check_free(&self, to: &VfsPath, replaces_file: bool) -> Result<bool> {
        match self.stat(to).await {
            Ok(entry) if entry.is_directory() || !replaces_file => Err(Error::already_exists(to)),
            Ok(_) => Ok(false),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(true),
            Err(error) => Err(error),
        }
    }

    /// Returns a file, or a directory and all it holds, parents first. Refuses what has no content to carry.
    async fn walk(&self, source: Entry) -> Result<Vec<Entry>> {
        let mut entries = Vec::new();
        let mut next = vec![source];
        while let Some(entry) = next.pop() {
            match entry.kind {
                EntryKind::File => {}
                EntryKind::Directory => next.extend(self.children(&entry.path).await?.into_iter().rev()),
                EntryKind::Symlink | EntryKind::Other => {
                    let message =
                        format!("`{}` is a link or device of the host and cannot be carried to another mount; leave it out", entry.path);
                    return Err(Error::unsupported(message).at(&entry.path));
                }
            }
            entries.push(entry);
        }
        Ok(entries)
    }

    async fn children(&self, path: &VfsPath) -> Result<Vec<Entry>> {
        let mut options = LsOptions::new();
        let mut children = Vec::new();
        loop {
            let listing = self.ls(path, &options).await?;
            children.extend(listing.entries);
            match listing.truncated {
                Some(cut) => options.start_after = Some(cut.cursor),
                None => return Ok(children),
            }
        }
    }

    async fn make_directory(&self, path: &VfsPath) -> Result<()> {
        match self.apply_one(Change::CreateDir { path: path.to_owned() }).await? {
            made if made.created => Ok(()),
            _ => Err(Error::already_exists(path)),
        }
    }

    /// Copies one file. Returns the version of the source that was copied, and the version and size of the copy.
    async fn copy_file(&self, from: &VfsPath, to: &VfsPath, overwrite: bool, verify: bool) -> Result<(Version, (Version, u64))> {
        let read = self.read(from, &ReadOptions::new().with_bytes_max(self.transfer_bytes_max)).await?;
        let size_bytes = read.content.len() as u64;
        let mode = if overwrite { WriteMode::Overwrite } else { WriteMode::CreateNew };
        let made = self.apply_one(Change::Write { path: to.to_owned(), content: read.content, mode }).await?;
        let made = made.version.ok_or_else(|| Error::new(ErrorKind::Internal, format!("writing `{to}` gave it no version")).at(to))?;
        if verify {
            let copy = self.stat(to).await?;
            if copy.version != Some(made) {
                return Err(Error::conflict(to, copy.version));
            }
            if copy.size_bytes != size_bytes {
                let message = format!("`{to}` has {} bytes where {size_bytes} were copied; `{from}` is left as it is", copy.size_bytes);
                return Err(Error::new(ErrorKind::Corrupt, message).at(to));
            }
        }
        Ok((read.version, (made, size_bytes)))
    }

    /// Deletes what was moved: files by the version copied, and directories only empty, so that what came or changed since
    /// stays.
    async fn delete_copied(&self, from: &VfsPath, to: &VfsPath, copied: Vec<Copied>) -> Result<()> {
        let delete = |copied: Copied| Change::Delete { path: copied.path, recursive: false, expect: copied.version };
        let deletes: Vec<Change> = copied.into_iter().rev().map(delete).collect();
        let Err(error) = self.apply(&deletes, &ApplyOptions::new()).await else { return Ok(()) };
        let kind = match error.kind() {
            ErrorKind::InvalidArgument | ErrorKind::NotFound | ErrorKind::NotADirectory | ErrorKind::IsDirectory => ErrorKind::Conflict,
            other => other,
        };
        let message = format!("`{from}` changed while it was moved ({error}); `{to}` is its copy, and both stay");
        Err(Error::new(kind, message).at(from).with_current_version(error.current_version()).with_source(error))
    }
}
