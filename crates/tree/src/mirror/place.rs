//! The directory of a mirror and the private directory beside it.
//!
//! The mirror of `DIR` keeps `.DIR.treehold-mirror` beside it, which whoever uses `DIR` need not reach:
//!
//! | name | content |
//! | --- | --- |
//! | `lock` | locked (`flock`) as long as the mirror lives, so that the kernel releases it however the process ends |
//! | `mirror.json` | which directory and tree this belongs to, whether it is written back, and whether its files stay |
//! | `bases/` | for a mirror that is written back, each file as it was last mirrored: the base of merges |
//!
//! Both directories stay open. Other programs may move them or create others under their names, which the mirror leaves alone.

use super::bases::Bases;
use super::options::MirrorOptions;
use super::state::{self, Identity, Marker, State, failed, open_directory};
use crate::backend::{HostDirectory, open_to_pass};
use rustix::fs::{Mode, fchmod, mkdirat};
use rustix::io::Errno;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use treehold_core::error::{AtHost, Error, ErrorKind, Result};

/// What belongs to a mirror: its directory, its private directory, and the lock.
#[derive(Debug)]
pub(super) struct Place {
    /// Where the directory was when the mirror began.
    pub(super) directory: PathBuf,
    /// Whether the directory holds what an earlier mirror left, which is to be written back.
    pub(super) is_resumed: bool,
    name: OsString,
    handle: File,
    marker: Marker,
    state: State,
}

impl Place {
    /// Takes a directory for a mirror: one that is missing or empty, or that an earlier mirror of the same tree left. With
    /// `existing`, any other too: its files stay, whatever happens. Creates it if it is missing.
    pub(super) fn take(directory: &Path, options: &MirrorOptions) -> Result<Self> {
        let (directory, parent, name) = named(directory)?;
        let created = fs::create_dir_all(&parent).and_then(|()| open_to_pass(&parent));
        let opened = created.map_err(|error| failed("cannot be created", &directory, error))?;
        let state = State::take(opened, &parent, &name)?.ok_or_else(|| {
            let message = "another mirror uses this directory; end it, or name another directory";
            Error::new(ErrorKind::Conflict, message).with_source(AtHost::new(&directory))
        })?;
        match find(&state, &directory, &name, options) {
            Ok((handle, marker, is_resumed)) => {
                state.mark(&marker).map_err(|error| failed("cannot be prepared", &directory, error))?;
                Ok(Self { directory, is_resumed, name, handle, marker, state })
            }
            Err(error) => {
                // What an earlier mirror kept may be needed.
                if state.marker().is_none() {
                    state.remove();
                }
                Err(error)
            }
        }
    }

    /// Opens the bases of merges.
    pub(super) fn bases(&self) -> Result<Bases> {
        self.state.bases()
    }

    /// Opens the directory, wherever it is by now.
    pub(super) fn host(&self, is_read_only: bool) -> Result<HostDirectory> {
        HostDirectory::open(&self.handle, &self.directory, is_read_only)
    }

    /// Returns whether the directory had files of its own, or may have had, before the first of its mirrors.
    pub(super) fn is_existing(&self) -> bool {
        self.marker.existing
    }

    /// Marks the files as kept: only a person removes them, or a later mirror of the directory.
    pub(super) fn keep(&mut self) -> Result<()> {
        let marker = Marker { kept: true, ..self.marker.clone() };
        self.state.mark(&marker).map_err(|error| failed("cannot be marked as kept", &self.directory, error))?;
        self.marker = marker;
        Ok(())
    }

    /// Removes the directory, if it was created for the mirror, and the private directory. The directory must be empty.
    pub(super) fn remove(self) {
        give_up(&self.state, &self.name, &self.handle, self.marker.mode);
        self.state.remove();
    }
}

/// Opens the directory. Returns its new marker, and whether it holds what an earlier mirror left to be written back.
fn find(state: &State, directory: &Path, name: &OsStr, options: &MirrorOptions) -> Result<(File, Marker, bool)> {
    let found = open_directory(state.parent(), name).map_err(|errno| refused(directory, errno))?;
    let identity = found.as_ref().map(|handle| identity(handle, directory)).transpose()?;
    let earlier = state.marker().filter(|marker| identity.is_some_and(|identity| marker.identity.is(identity)));
    match (found, earlier.filter(|earlier| is_continued(earlier, options))) {
        (Some(handle), Some(earlier)) => {
            let is_resumed = earlier.write_back;
            let marker = continued(&handle, earlier, directory, options)?;
            Ok((handle, marker, is_resumed))
        }
        (found, _) => {
            let (handle, marker) = begun(state, found, directory, name, options)?;
            Ok((handle, marker, false))
        }
    }
}

/// Returns whether a mirror continues with what an earlier one left. Otherwise it is the first of the directory.
fn is_continued(earlier: &Marker, options: &MirrorOptions) -> bool {
    match earlier.write_back {
        // The bases are no common past with another tree: what that lacks was not removed there. A read-only mirror is refused.
        true => earlier.tree_id == options.tree_id || !options.write_back,
        // The files of a read-only mirror that was kept may have been edited since.
        false => !options.existing,
    }
}

/// Continues with what an earlier mirror left.
fn continued(handle: &File, earlier: Marker, directory: &Path, options: &MirrorOptions) -> Result<Marker> {
    let kept = match earlier.write_back {
        true if !options.write_back => {
            let message = "an earlier mirror of this directory was written back and may have left edits in it; mirror it with write-back \
                again, or remove the directory";
            return Err(Error::new(ErrorKind::Conflict, message).with_source(AtHost::new(directory)));
        }
        // Edits that were kept are kept until they are written back.
        true => earlier.kept || options.existing,
        false => {
            HostDirectory::open(handle, directory, true)?.clear()?;
            false
        }
    };
    let existing = earlier.existing || options.existing;
    Ok(Marker { tree_id: options.tree_id.clone(), write_back: options.write_back, kept, existing, ..earlier })
}

/// Begins with a directory that is missing or empty, or that may have files.
fn begun(state: &State, found: Option<File>, directory: &Path, name: &OsStr, options: &MirrorOptions) -> Result<(File, Marker)> {
    let earlier = state.marker().filter(|marker| marker.write_back);
    let fault = |error| failed("cannot be created", directory, error);
    let (handle, mode) = match found {
        Some(handle) => {
            let mode = handle.metadata().map_err(fault)?.mode() & 0o777;
            (handle, Some(mode))
        }
        None => {
            mkdirat(state.parent(), name, Mode::RWXU | Mode::RWXG | Mode::RWXO).map_err(|errno| fault(errno.into()))?;
            let made = open_directory(state.parent(), name).and_then(|made| made.ok_or(Errno::NOENT));
            (made.map_err(|errno| refused(directory, errno))?, None)
        }
    };
    let identity = identity(&handle, directory)?;
    let other_left_it = earlier.is_some_and(|earlier| earlier.identity.is(identity));
    let content = state::names(&handle).map_err(|error| failed("cannot be listed", directory, error))?;
    if !content.is_empty() && !options.existing {
        let message = match other_left_it {
            true => {
                "a mirror of another path, user, thread or store, or of an earlier version, left files in the directory; take them over \
                    with `treehold sync`, or name another one"
            }
            false => "the directory of a mirror must be empty or missing, because what is in it would be overwritten; name another one",
        };
        return Err(Error::new(ErrorKind::AlreadyExists, message).with_source(AtHost::new(directory)));
    }
    // They are of another directory, or of another tree.
    state.bases()?.clear()?;
    let (tree_id, write_back, existing) = (options.tree_id.clone(), options.write_back, options.existing);
    let marker = Marker { identity, tree_id, write_back, kept: existing, existing, mode };
    Ok((handle, marker))
}

/// Removes a directory that was created for a mirror, or gives it the mode that it had before.
fn give_up(state: &State, name: &OsStr, handle: &File, mode: Option<u32>) {
    match mode {
        // Somebody may have mounted it, moved it, or put something in it at the last moment.
        None => state::remove_named(state.parent(), name, handle),
        Some(mode) => drop(fchmod(handle, Mode::from_raw_mode(mode))),
    }
}

/// Removes what mirrors of dead processes left in a directory: each mirror's directory and its private directory. Returns how many. Leaves
/// what was kept.
pub(super) fn clear_leftovers(parent: &Path) -> Result<usize> {
    let fault = |error| failed("cannot be listed", parent, error);
    let opened = match File::open(parent) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(0),
        opened => opened.map_err(fault)?,
    };
    let mut count = 0;
    for private in state::names(&opened).map_err(fault)? {
        let Some(name) = state::name_of_private(&private) else { continue };
        if state::has_marker(&parent.join(&private)) && clear_leftover(opened.try_clone().map_err(fault)?, parent, name)? {
            count += 1;
        }
    }
    Ok(count)
}

/// Removes what a mirror of a dead process left under a name. Returns whether it did.
fn clear_leftover(opened: File, parent: &Path, name: &OsStr) -> Result<bool> {
    let Some(state) = State::take(opened, parent, name)? else { return Ok(false) };
    // It is read under the lock: its mirror may have ended just now.
    let marker = state.marker();
    let directory = parent.join(name);
    let found = open_directory(state.parent(), name).ok().flatten();
    if let (Some(marker), Some(handle)) = (&marker, found)
        && marker.identity.is(identity(&handle, &directory)?)
    {
        if marker.kept {
            return Ok(false);
        }
        // Without bases, a directory that is cleared in part is not taken for one whose files were removed.
        state.bases()?.clear()?;
        HostDirectory::open(&handle, &directory, true)?.clear()?;
        give_up(&state, name, &handle, marker.mode);
    }
    state.remove();
    Ok(marker.is_some())
}

/// Returns the absolute path of a directory, the path of its parent, and its name.
fn named(directory: &Path) -> Result<(PathBuf, PathBuf, OsString)> {
    let directory = std::path::absolute(directory).map_err(|error| failed("cannot be found", directory, error))?;
    let name = directory.file_name().filter(|name| name.to_str().is_some()).map(OsStr::to_owned);
    match (name, directory.parent().map(Path::to_owned)) {
        (Some(name), Some(parent)) => Ok((directory, parent, name)),
        _ => {
            let message = "the directory of a mirror needs a name of its own, in UTF-8; name another one";
            Err(Error::invalid_argument(message).with_source(AtHost::new(&directory)))
        }
    }
}

fn identity(handle: &File, directory: &Path) -> Result<Identity> {
    Identity::of(handle).map_err(|error| failed("cannot be opened", directory, error))
}

fn refused(directory: &Path, errno: Errno) -> Error {
    if errno == Errno::NOTDIR {
        let message = "the directory of a mirror must be a directory, not a link or a file; name another one";
        return Error::new(ErrorKind::NotADirectory, message).with_source(AtHost::new(directory));
    }
    failed("cannot be opened", directory, errno.into())
}
