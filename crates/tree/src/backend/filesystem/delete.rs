//! Deletes files, links and directories.

use super::change::{Writer, check_expected};
use super::directory::unfinished_name;
use super::ground::Claim;
use super::root::OpenedName;
use super::temp::move_new;
use super::{sweep, tree};
use rustix::fs::{AtFlags, renameat, unlinkat};
use rustix::io::Errno;
use std::ffi::OsString;
use treehold_core::error::{Error, Result};
use treehold_core::ops::{Changed, EntryKind, OpKind, Version};
use treehold_core::path::VfsPath;

impl Writer<'_> {
    /// Deletes the node at a path. A link is deleted itself, not its target.
    pub(super) fn delete(&self, path: &VfsPath, recursive: bool, expect: Option<Version>) -> Result<Changed> {
        if path.is_root() {
            return Err(Error::invalid_argument("the root cannot be deleted; name a path beneath it").at(path));
        }
        let claim = self.claim(path, false)?;
        let Some(current) = claim.place.current else { return Err(Error::not_found(path)) };
        let removed = match current.kind {
            EntryKind::Directory if expect.is_some() => {
                let message = format!("`{path}` is a directory and directories have no version; delete it without one");
                return Err(Error::invalid_argument(message).at(path));
            }
            EntryKind::Directory if recursive => self.delete_tree(path, claim)?,
            EntryKind::Directory => self.delete_empty(path, &claim)?,
            EntryKind::Symlink if expect.is_some() => {
                // The version at a link is that of its target, which is also what a read of the link returns.
                let file = self.root.open_file(path).map_err(|_| Error::conflict(path, None))?;
                check_expected(path, expect, file.meta.version(path))?;
                self.delete_name(path, &claim)?
            }
            _ => {
                check_expected(path, expect, current.version(path))?;
                self.delete_name(path, &claim)?
            }
        };
        Ok(Changed::new(OpKind::Delete, path).with_entries(removed))
    }

    fn delete_name(&self, path: &VfsPath, claim: &Claim) -> Result<usize> {
        let fault = |errno| self.root.fault(path, errno);
        unlinkat(&claim.place.directory, &claim.place.name, AtFlags::empty()).map_err(fault)?;
        self.effect();
        self.sync_directory(&claim.place.directory).map_err(fault)?;
        Ok(1)
    }

    fn delete_empty(&self, path: &VfsPath, claim: &Claim) -> Result<usize> {
        let OpenedName { directory, name, .. } = &claim.place;
        let removed = match unlinkat(directory, name, AtFlags::REMOVEDIR) {
            // Leftovers of a crash, which listings do not show, do not make a directory non-empty.
            Err(Errno::NOTEMPTY | Errno::EXIST) if sweep::empty_of_leftovers(self.root, directory, name) => {
                unlinkat(directory, name, AtFlags::REMOVEDIR)
            }
            other => other,
        };
        removed.map_err(|errno| match errno {
            Errno::NOTEMPTY | Errno::EXIST => {
                Error::invalid_argument(format!("the directory `{path}` is not empty; delete it recursively")).at(path)
            }
            errno => self.root.fault(path, errno),
        })?;
        self.effect();
        self.sync_directory(directory).map_err(|errno| self.root.fault(path, errno))?;
        Ok(1)
    }

    /// Renames a directory out of sight at once, then removes its contents without the lock.
    fn delete_tree(&self, path: &VfsPath, claim: Claim) -> Result<usize> {
        let fault = |errno| self.root.fault(path, errno);
        let Claim { place: OpenedName { directory, name, .. }, lock } = claim;
        let aside = OsString::from(unfinished_name());
        renameat(&directory, &name, &directory, &aside).map_err(fault)?;
        self.effect();
        drop(lock);
        let removed = self.sync_directory(&directory).and_then(|()| tree::remove(self.root, &directory, &aside));
        removed.map_err(|errno| {
            // Bring the rest back into sight, unless something new has taken the name.
            let _ = move_new(&directory, &aside, &directory, &name);
            let error = fault(errno);
            let message = format!("`{path}` was deleted only in part, and the rest remains: {}", error.message());
            error.with_message(message)
        })
    }
}
