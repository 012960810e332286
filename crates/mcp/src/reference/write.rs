//! Writing: whole files, directories, moves.

use super::arguments::Arguments;
use super::paths::{Allowed, has_parent};
use super::{Answer, Refused, failed, text};
use treehold_core::error::{Error, ErrorKind};
use treehold_core::ops::{Change, StatOptions, WriteMode};
use treehold_core::path::VfsPath;
use treehold_tree::backend::{Backend, BackendExt};
use uuid::Uuid;

pub(super) async fn file(tree: &dyn Backend, allowed: &Allowed, arguments: &Arguments) -> Answer {
    let path = allowed.path(tree, arguments.text("path")).await?;
    if !has_parent(tree, &path).await {
        return Err(failed(&Error::not_found(&path), "open", &path));
    }
    let content = arguments.text("content").to_owned().into();
    let change = Change::Write { path: path.clone(), content, mode: WriteMode::Overwrite };
    tree.apply_one(change).await.map_err(|error| refusal(&error, &path))?;
    Ok(vec![text(format!("Successfully wrote to {}", arguments.text("path")))])
}

/// Returns the refusal of a write. The reference server writes a temporary file and renames it, so some errors name that file.
pub(super) fn refusal(error: &Error, path: &VfsPath) -> Refused {
    if error.kind() == ErrorKind::IsDirectory {
        let temporary = format!("{path}.{}.tmp", Uuid::now_v7().simple());
        return Refused(format!("EISDIR: illegal operation on a directory, rename '{temporary}' -> '{path}'"));
    }
    failed(error, "open", path)
}

pub(super) async fn directory(tree: &dyn Backend, allowed: &Allowed, arguments: &Arguments) -> Answer {
    let path = allowed.path(tree, arguments.text("path")).await?;
    tree.apply_one(Change::CreateDir { path: path.clone() }).await.map_err(|error| match error.kind() {
        ErrorKind::NotADirectory | ErrorKind::AlreadyExists => failed(&Error::already_exists(&path), "mkdir", &path),
        _ => failed(&error, "mkdir", &path),
    })?;
    Ok(vec![text(format!("Successfully created directory {}", arguments.text("path")))])
}

pub(super) async fn moved(tree: &dyn Backend, allowed: &Allowed, arguments: &Arguments) -> Answer {
    let (source, destination) = (arguments.text("source"), arguments.text("destination"));
    let (from, to) = (allowed.path(tree, source).await?, allowed.path(tree, destination).await?);
    let exists = || Refused(format!("Destination already exists: {to}"));
    let failing = |reason: &str| Refused(format!("{reason}, rename '{from}' -> '{to}'"));
    if tree.stat(&to, &StatOptions::new()).await.is_ok() {
        return Err(exists());
    }
    if tree.stat(&from, &StatOptions::new()).await.is_err() || !has_parent(tree, &to).await {
        return Err(failing("ENOENT: no such file or directory"));
    }
    if to.starts_with(&from) {
        return Err(failing("EINVAL: invalid argument"));
    }
    let change = Change::Rename { from: from.clone(), to: to.clone(), overwrite: false };
    tree.apply_one(change).await.map_err(|error| match error.kind() {
        ErrorKind::AlreadyExists => exists(),
        ErrorKind::NotFound => failing("ENOENT: no such file or directory"),
        _ => failed(&error, "rename", &from),
    })?;
    Ok(vec![text(format!("Successfully moved {source} to {destination}"))])
}
