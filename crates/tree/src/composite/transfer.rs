//! Renames and copies between mounts: copy, verify, then delete what is unchanged since the copy.
//!
//! Everything here goes through the composite itself, in the caller's paths, so a copy contains what the caller sees,
//! including mounts within the source. The order of the steps is the guarantee: the source is deleted last, in one
//! batch of its backend and only where each file still has the copied version. So a fault or conflict leaves both
//! source and target, never neither. A partially copied directory stays, and the error says so; from the first write
//! on, errors leave the effect open.
//!
//! Moved files are new in their tier, with a new creation time. Host links are not followed: each target is written
//! according to what was found there, as a new file or over that version, and a link at the target is refused before
//! anything is copied. Memory: one file at a time, and one entry per path of the source.

use super::CompositeBackend;
use crate::backend::Backend;
use bytes::Bytes;
use treehold_core::backoff::LostRaces;
use treehold_core::error::{Error, ErrorKind, Result};
use treehold_core::ops::{
    ApplyOptions, Change, Changed, Entry, EntryKind, Extensions, LsOptions, ReadOptions, StatOptions, Version, WriteMode,
};
use treehold_core::path::{InvalidPath, PATH_BYTES_MAX, VfsPath, VfsPathBuf};
use treehold_store::Outbox;

/// A rename or copy between different mounts.
struct Transfer<'a> {
    from: &'a VfsPath,
    to: &'a VfsPath,
    /// Whether to replace a file at the target.
    overwrite: bool,
    /// Whether to delete the source at the end.
    moves: bool,
    /// Whether to refuse following links on the way to either end.
    refuse_links: bool,
    /// The extensions of its last step. The others have no outbox: its rows commit when all is done.
    extensions: Extensions,
}

/// The copy of one file: the version of the source, and the state of the target.
struct CopiedFile {
    source: Version,
    target: Version,
    size_bytes: u64,
}

impl CompositeBackend {
    /// Performs a rename or copy.
    pub(super) async fn transfer(&self, change: &Change, options: &ApplyOptions) -> Result<Changed> {
        let transfer = Transfer::of(change, options)?;
        // Nothing has been written yet, so any failure may be retried.
        let (entries, replaces) = self.look(&transfer).await.map_err(Error::without_effect)?;
        let is_directory = entries.first().is_some_and(Entry::is_directory);
        let mut versions = Vec::with_capacity(entries.len());
        let mut result = Changed::new(change.kind(), transfer.to).with_created(replaces.is_none()).with_entries(entries.len());
        for (index, entry) in entries.iter().enumerate() {
            let is_last = !transfer.moves && index + 1 == entries.len();
            match self.carry(entry, &transfer, replaces, is_last).await {
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

    /// Examines both ends. Returns the entries to copy, the source first, and the version of the file that will be
    /// replaced.
    async fn look(&self, transfer: &Transfer<'_>) -> Result<(Vec<Entry>, Option<Version>)> {
        if transfer.moves {
            self.check_writable(transfer.from)?;
        }
        let source = self.stat(transfer.from, &transfer.stat_options()).await?;
        let replaces = self.check_free(transfer.to, transfer.overwrite && !source.is_directory(), transfer).await?;
        // List the whole source before writing anything, so that a target visible in the source through another mount
        // is not copied again.
        Ok((self.walk(source, transfer).await?, replaces))
    }

    /// Refuses to move out of a read-only backend, before anything is copied.
    fn check_writable(&self, path: &VfsPath) -> Result<()> {
        let backend = &self.router.mount(self.router.find(path).mount).backend;
        if backend.capabilities().writable { Ok(()) } else { Err(Error::read_only(path)) }
    }

    /// Checks that the target is free, or a file that may be replaced. Returns the version of that file.
    async fn check_free(&self, to: &VfsPath, replaces_file: bool, transfer: &Transfer<'_>) -> Result<Option<Version>> {
        match self.stat(to, &transfer.stat_options()).await {
            Ok(entry) if entry.is_directory() || !replaces_file => Err(Error::already_exists(to)),
            Ok(Entry { kind: EntryKind::File, version: Some(version), .. }) => Ok(Some(version)),
            Ok(_) => {
                let message = format!(
                    "`{to}` is a link, device or pipe of the host, which a copy from another mount cannot replace; \
                        nothing was copied, delete it first or name another target"
                );
                Err(Error::unsupported(message).at(to))
            }
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Returns a file, or a directory with all its descendants, parents first. Refuses entries that the target cannot
    /// hold.
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
                        "`{}` is a link, device or pipe of the host and cannot be copied to another mount; nothing \
                            was copied, name the files beside it one by one",
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
            // An unreadable part cannot be copied, and a copy without it would look complete.
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

    /// Creates the target of one source entry: a directory, or a file with its current content.
    async fn carry(&self, entry: &Entry, transfer: &Transfer<'_>, replaces: Option<Version>, is_last: bool) -> Result<Option<CopiedFile>> {
        let target = transfer.target_of(entry);
        if entry.is_directory() {
            let made = self.make(Change::CreateDir { path: target.clone() }, &transfer.options(is_last)).await?;
            return if made.created { Ok(None) } else { Err(Error::already_exists(&target)) };
        }
        let options = ReadOptions::new().with_bytes_max(self.transfer_bytes_max).with_refuse_links(transfer.refuse_links);
        let read = self.read(&entry.path, &options).await.map_err(Error::without_effect)?;
        let (source, size_bytes) = (read.version, read.content.len() as u64);
        let made = self.put(&target, read.content, transfer, replaces, is_last).await?.version;
        let made =
            made.ok_or_else(|| Error::new(ErrorKind::Internal, format!("`{target}` got no version")).at(&target).with_unknown_effect())?;
        if transfer.moves {
            self.verify(&target, made, size_bytes, transfer).await.map_err(Error::with_unknown_effect)?;
        }
        Ok(Some(CopiedFile { source, target: made, size_bytes }))
    }

    /// Writes a file over the version found at its target. If another writer changed the target meanwhile, examines it
    /// again: the caller allowed a replacement, not one particular version.
    async fn put(
        &self,
        target: &VfsPath,
        content: Bytes,
        transfer: &Transfer<'_>,
        replaces: Option<Version>,
        is_last: bool,
    ) -> Result<Changed> {
        let (mut replaces, mut races) = (replaces, LostRaces::new());
        loop {
            let mode = replaces.map_or(WriteMode::CreateNew, WriteMode::IfVersion);
            let write = Change::Write { path: target.to_owned(), content: content.clone(), mode };
            let error = match self.make(write, &transfer.options(is_last)).await {
                Ok(made) => return Ok(made),
                Err(error) => error,
            };
            let is_other = matches!(error.kind(), ErrorKind::Conflict | ErrorKind::AlreadyExists) && !error.may_have_effect();
            if !is_other || !transfer.replaces(target) || !races.lost().await {
                return Err(error);
            }
            replaces = self.check_free(target, true, transfer).await.map_err(Error::without_effect)?;
        }
    }

    /// Applies one change of a transfer, following no link at its target.
    async fn make(&self, change: Change, options: &ApplyOptions) -> Result<Changed> {
        let mut results = self.apply(std::slice::from_ref(&change), options).await?;
        results.pop().ok_or_else(|| Error::new(ErrorKind::Internal, "a batch of one change returned no result"))
    }

    /// Examines a copy again before its source is deleted.
    async fn verify(&self, path: &VfsPath, version: Version, size_bytes: u64, transfer: &Transfer<'_>) -> Result<()> {
        let copy = self.stat(path, &transfer.stat_options()).await?;
        if copy.version != Some(version) {
            return Err(Error::conflict(path, copy.version));
        }
        if copy.size_bytes != size_bytes {
            let message = format!("`{path}` has {} bytes after {size_bytes} were copied to it; the source stays", copy.size_bytes);
            return Err(Error::new(ErrorKind::Corrupt, message).at(path));
        }
        Ok(())
    }

    /// Deletes what was moved, children first: files only in the copied version, and directories only if empty, so that
    /// concurrent additions and changes stay.
    async fn delete_moved(&self, transfer: &Transfer<'_>, deletes: Vec<Change>) -> Result<()> {
        let Err(error) = self.apply(&deletes, &transfer.options(true)).await else { return Ok(()) };
        let kind = match error.kind() {
            // The file or directory changed kind, vanished or is not empty: all mean that somebody else changed it.
            ErrorKind::InvalidArgument | ErrorKind::NotFound | ErrorKind::NotADirectory | ErrorKind::IsDirectory => ErrorKind::Conflict,
            other => other,
        };
        let (from, to) = (transfer.from, transfer.to);
        let stays = match error.applied() {
            0 => "both stay",
            _ => "the rest of the source stays",
        };
        let message = format!("`{to}` is a copy of `{from}`, which could not be deleted: {}; {stays}", error.message());
        let current = error.current_version();
        Err(Error::new(kind, message).at(from).with_current_version(current).with_source(error).with_unknown_effect())
    }
}

impl<'a> Transfer<'a> {
    fn of(change: &'a Change, options: &ApplyOptions) -> Result<Self> {
        let refuse_links = options.refuse_links;
        let mut extensions = options.extensions.clone();
        let outbox = Outbox::of(&extensions);
        if !outbox.is_empty() {
            // The steps are not the changes that the caller made.
            extensions.insert(outbox.without_changes());
        }
        match change {
            Change::Rename { from, to, overwrite } => Ok(Self { from, to, overwrite: *overwrite, moves: true, refuse_links, extensions }),
            Change::Copy { from, to, overwrite } => Ok(Self { from, to, overwrite: *overwrite, moves: false, refuse_links, extensions }),
            other => Err(Error::new(ErrorKind::Internal, format!("{} has no target", other.kind())).at(other.path())),
        }
    }

    fn stat_options(&self) -> StatOptions {
        StatOptions::new().with_refuse_links(self.refuse_links)
    }

    /// Returns the options of one of its steps.
    fn options(&self, is_last: bool) -> ApplyOptions {
        let mut options = ApplyOptions::new().with_refuse_links(self.refuse_links);
        options.extensions = self.extensions.clone();
        if !is_last {
            options.extensions.remove::<Outbox>();
        }
        options
    }

    /// Returns whether a file at the target may be replaced. Directories that the transfer created contain none.
    fn replaces(&self, target: &VfsPath) -> bool {
        self.overwrite && target == self.to
    }

    fn target_of(&self, entry: &Entry) -> VfsPathBuf {
        self.to.concat(entry.path.strip_prefix(self.from).unwrap_or(VfsPath::ROOT))
    }

    /// Adds to an error what was left where. Earlier steps took effect, whatever the failed step says about itself.
    fn in_part(&self, error: Error) -> Error {
        let message = format!("{}; `{}` is whole, and what was copied of it stays at `{}`", error.message(), self.from, self.to);
        error.with_message(message).with_unknown_effect()
    }
}
