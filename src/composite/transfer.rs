//! Renames and copies between mounts: copy, verify, then delete what is still as it was copied.
//!
//! Everything here goes through the composite itself, in the caller's paths, so a copy is of what the caller sees, mounts in
//! it included. The order of the steps is the promise: until the source is deleted, in one batch of its backend and only where
//! each file still has the version that was copied, both are there. A fault or a conflict leaves both, never neither; a
//! directory that was copied in part stays, and the error says so; from the first write on, an error leaves the effect open. What was moved between mounts is new in its tier: it has a
//! creation time of its own. No link of the host is followed: the target is written by what stood there when it was looked at, as a
//! new file or over the version of the old one, and a link in its place is refused before anything is copied. Memory: one file at a time, and one entry for each path beneath the source.

use super::CompositeBackend;
use crate::backend::Backend;
use crate::error::{Error, ErrorKind, Result};
use crate::ops::{ApplyOptions, Change, Changed, Entry, EntryKind, LsOptions, ReadOptions, Version, WriteMode};
use crate::path::{InvalidPath, PATH_BYTES_MAX, VfsPath, VfsPathBuf};
use bytes::Bytes;

/// A rename or copy whose ends lie in different mounts.
struct Transfer<'a> {
    from: &'a VfsPath,
    to: &'a VfsPath,
    /// Replaces a file at the target.
    overwrite: bool,
    /// Deletes the source in the end.
    moves: bool,
    /// Refuses to follow links on the way to either end.
    refuse_links: bool,
}

/// How often a file whose target changes meanwhile is put there again.
const ATTEMPTS_MAX: usize = 64;

/// What was copied of one file: the version of the source, and what stands at the target now.
struct CopiedFile {
    source: Version,
    target: Version,
    size_bytes: u64,
}

impl CompositeBackend {
    /// Carries a rename or copy out.
    pub(super) async fn transfer(&self, change: &Change, options: &ApplyOptions) -> Result<Changed> {
        let transfer = Transfer::of(change, options)?;
        // Nothing is made by then, so whatever fails may be tried again.
        let (entries, replaces) = self.look(&transfer).await.map_err(Error::without_effect)?;
        let is_directory = entries.first().is_some_and(Entry::is_directory);
        let mut versions = Vec::with_capacity(entries.len());
        let mut result = Changed::new(change.kind(), transfer.to).with_created(replaces.is_none()).with_entries(entries.len());
        for entry in &entries {
            match self.carry(entry, &transfer, replaces).await {
                Ok(Some(copied)) => {
                    versions.push(Some(copied.source));
                    if !is_directory {
                        result = result.with_file(copied.target, copied.size_bytes);
                    }
                }
                Ok(None) => versions.push(None),
                Err(error) if versions.is_empty() => return Err(error),
                Err(error) => return Err(transfer.in_part(error)),
            }
        }
        if transfer.moves {
            let deletes = entries.into_iter().zip(versions).rev();
            let deletes = deletes.map(|(entry, expect)| Change::Delete { path: entry.path, recursive: false, expect });
            self.delete_moved(&transfer, deletes.collect()).await?;
        }
        Ok(result)
    }

    /// Looks at both ends: returns what is to be carried, the source first, and the version of the file that it replaces.
    async fn look(&self, transfer: &Transfer<'_>) -> Result<(Vec<Entry>, Option<Version>)> {
        if transfer.moves {
            self.check_writable(transfer.from)?;
        }
        let source = self.stat(transfer.from).await?;
        let replaces = self.check_free(transfer.to, transfer.overwrite && !source.is_directory()).await?;
        // The whole source is listed before anything is made, so a target that shows in it by another mount is not copied again.
        Ok((self.walk(source, transfer).await?, replaces))
    }

    /// Refuses to move what will not go away, before anything is copied.
    fn check_writable(&self, path: &VfsPath) -> Result<()> {
        let backend = &self.router.mount(self.router.find(path).mount).backend;
        if backend.capabilities().writable { Ok(()) } else { Err(Error::read_only(path)) }
    }

    /// Checks that nothing stands at the target, or only a file that may be replaced; returns the version of that file.
    async fn check_free(&self, to: &VfsPath, replaces_file: bool) -> Result<Option<Version>> {
        match self.stat(to).await {
            Ok(entry) if entry.is_directory() || !replaces_file => Err(Error::already_exists(to)),
            Ok(Entry { kind: EntryKind::File, version: Some(version), .. }) => Ok(Some(version)),
            Ok(_) => {
                let message = format!(
                    "`{to}` is a link, device or pipe of the host, which nothing of another mount replaces; nothing was copied, delete it \
                     first or name another target"
                );
                Err(Error::unsupported(message).at(to))
            }
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Returns a file, or a directory and all it holds, parents first. Refuses what cannot stand at the target.
    async fn walk(&self, source: Entry, transfer: &Transfer<'_>) -> Result<Vec<Entry>> {
        let mut entries = Vec::new();
        let mut next = vec![source];
        while let Some(entry) = next.pop() {
            if transfer.target_of(&entry).as_str().len() > PATH_BYTES_MAX {
                return Err(Error::from(InvalidPath::Long).at(&entry.path));
            }
            match entry.kind {
                EntryKind::File => {}
                EntryKind::Directory => next.extend(self.children(&entry.path, transfer).await?.into_iter().rev()),
                EntryKind::Symlink | EntryKind::Other => {
                    let message = format!(
                        "`{}` is a link, device or pipe of the host and cannot be carried to another mount; nothing was copied, \
                         name the files beside it one by one",
                        entry.path
                    );
                    return Err(Error::unsupported(message).at(&entry.path));
                }
            }
            entries.push(entry);
        }
        Ok(entries)
    }

    async fn children(&self, path: &VfsPath, transfer: &Transfer<'_>) -> Result<Vec<Entry>> {
        let mut options = LsOptions::new().with_refuse_links(transfer.refuse_links);
        let mut children = Vec::new();
        loop {
            let listing = self.ls(path, &options).await?;
            // What cannot be read cannot be carried, and a copy without it would pass for the whole.
            if let Some(failure) = listing.failures.into_iter().next() {
                return Err(Error::from(&failure.error).at(&failure.path));
            }
            children.extend(listing.entries);
            match listing.truncated {
                Some(cut) => options.start_after = Some(cut.cursor),
                None => return Ok(children),
            }
        }
    }

    /// Makes the target of one path of the source: a directory, or a file as it is now.
    async fn carry(&self, entry: &Entry, transfer: &Transfer<'_>, replaces: Option<Version>) -> Result<Option<CopiedFile>> {
        let target = transfer.target_of(entry);
        if entry.is_directory() {
            let made = self.make(Change::CreateDir { path: target.clone() }, transfer).await?;
            return if made.created { Ok(None) } else { Err(Error::already_exists(&target)) };
        }
        let options = ReadOptions::new().with_bytes_max(self.transfer_bytes_max).with_refuse_links(transfer.refuse_links);
        let read = self.read(&entry.path, &options).await.map_err(Error::without_effect)?;
        let (source, size_bytes) = (read.version, read.content.len() as u64);
        let made = self.put(&target, read.content, transfer, replaces).await?.version;
        let made =
            made.ok_or_else(|| Error::new(ErrorKind::Internal, format!("`{target}` got no version")).at(&target).with_unknown_effect())?;
        if transfer.moves {
            self.verify(&target, made, size_bytes).await.map_err(Error::with_unknown_effect)?;
        }
        Ok(Some(CopiedFile { source, target: made, size_bytes }))
    }

    /// Writes a file over what stood at its target when that was looked at. Where another writer was there meanwhile, the target is
    /// looked at again: what may be replaced was not said to be of one version.
    async fn put(&self, target: &VfsPath, content: Bytes, transfer: &Transfer<'_>, replaces: Option<Version>) -> Result<Changed> {
        let (mut replaces, mut attempts) = (replaces, 0);
        loop {
            let mode = replaces.map_or(WriteMode::CreateNew, WriteMode::IfVersion);
            let write = Change::Write { path: target.to_owned(), content: content.clone(), mode };
            let error = match self.make(write, transfer).await {
                Ok(made) => return Ok(made),
                Err(error) => error,
            };
            let is_other = matches!(error.kind(), ErrorKind::Conflict | ErrorKind::AlreadyExists) && !error.may_have_effect();
            if !is_other || !transfer.replaces(target) || attempts == ATTEMPTS_MAX {
                return Err(error);
            }
            attempts += 1;
            replaces = self.check_free(target, true).await.map_err(Error::without_effect)?;
        }
    }

    /// Makes one change of a transfer, which follows no link at its end.
    async fn make(&self, change: Change, transfer: &Transfer<'_>) -> Result<Changed> {
        let options = ApplyOptions::new().with_refuse_links(transfer.refuse_links);
        let mut results = self.apply(std::slice::from_ref(&change), &options).await?;
        results.pop().ok_or_else(|| Error::new(ErrorKind::Internal, "a batch of one change returned no result"))
    }

    /// Looks at a copy again before its source goes.
    async fn verify(&self, path: &VfsPath, version: Version, size_bytes: u64) -> Result<()> {
        let copy = self.stat(path).await?;
        if copy.version != Some(version) {
            return Err(Error::conflict(path, copy.version));
        }
        if copy.size_bytes != size_bytes {
            let message = format!("`{path}` has {} bytes after {size_bytes} were copied to it; the source stays", copy.size_bytes);
            return Err(Error::new(ErrorKind::Corrupt, message).at(path));
        }
        Ok(())
    }

    /// Deletes what was moved, children first: files by the version copied, and directories only empty, so that what came or
    /// changed meanwhile stays.
    async fn delete_moved(&self, transfer: &Transfer<'_>, deletes: Vec<Change>) -> Result<()> {
        let Err(error) = self.apply(&deletes, &ApplyOptions::new().with_refuse_links(transfer.refuse_links)).await else { return Ok(()) };
        let kind = match error.kind() {
            // No longer a file, no longer there, no longer empty: all of them say that somebody else was here.
            ErrorKind::InvalidArgument | ErrorKind::NotFound | ErrorKind::NotADirectory | ErrorKind::IsDirectory => ErrorKind::Conflict,
            other => other,
        };
        let (from, to) = (transfer.from, transfer.to);
        let stays = match error.applied() {
            0 => "both stay",
            _ => "what is left of the source stays",
        };
        let message = format!("`{to}` is a copy of `{from}`, which could not be deleted: {}; {stays}", error.message());
        let current = error.current_version();
        Err(Error::new(kind, message).at(from).with_current_version(current).with_source(error).with_unknown_effect())
    }
}

impl<'a> Transfer<'a> {
    fn of(change: &'a Change, options: &ApplyOptions) -> Result<Self> {
        let refuse_links = options.refuse_links;
        match change {
            Change::Rename { from, to, overwrite } => Ok(Self { from, to, overwrite: *overwrite, moves: true, refuse_links }),
            Change::Copy { from, to, overwrite } => Ok(Self { from, to, overwrite: *overwrite, moves: false, refuse_links }),
            other => Err(Error::new(ErrorKind::Internal, format!("{} has no target", other.kind())).at(other.path())),
        }
    }

    /// Tells whether a file at the target may be replaced: in a directory that the transfer itself made, none is there to be.
    fn replaces(&self, target: &VfsPath) -> bool {
        self.overwrite && target == self.to
    }

    fn target_of(&self, entry: &Entry) -> VfsPathBuf {
        self.to.concat(entry.path.strip_prefix(self.from).unwrap_or(VfsPath::ROOT))
    }

    /// Says of an error what is left where. Whatever the step that failed says of itself, those before it took effect.
    fn in_part(&self, error: Error) -> Error {
        let message = format!("{}; `{}` is whole, and what was copied of it stays at `{}`", error.message(), self.from, self.to);
        error.with_message(message).with_unknown_effect()
    }
}
