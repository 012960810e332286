//! The patches of `overlay diff --git` and `checkpoint diff --git`.

use super::diff;
use super::overlay::Asked;
use crate::backend::{OverlayDiffOptions, OverlayDifference};
use crate::cli::context::Context;
use crate::cli::exit::{Failure, Outcome};
use crate::cli::git_patch::{Mode, Side, is_refused, section};
use crate::cli::output::counted;
use crate::ops::{Entry, EntryKind, ReadOptions};
use crate::{Backend, Error, ErrorKind, OverlayBackend, VfsPath, VfsPathBuf};
use bytes::Bytes;
use std::path::{Path, PathBuf};

/// The content and kind of a file on one side of a change.
pub(super) type Content = (Mode, Bytes);

/// Why a change is not in the patch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Left {
    /// A rule hides its content.
    Hidden,
    /// Git refuses a patch of the path, as it may be one of a repository.
    Refused,
    /// Git has no such kind of file, or the tier does not tell where a link leads.
    Kind,
}

/// A patch that is printed file by file.
#[derive(Debug)]
pub(crate) struct GitPatch {
    unified: usize,
    /// The number of changes that are left out by each reason.
    left: [usize; 3],
    /// A new directory of which no file was printed yet.
    directory: Option<VfsPathBuf>,
    empty_directories: usize,
}

impl GitPatch {
    /// Starts a patch with some lines of context around each difference.
    pub(crate) fn new(unified: usize) -> Self {
        Self { unified, left: [0; 3], directory: None, empty_directories: 0 }
    }

    /// Counts a change that is left out.
    pub(crate) fn leave_out(&mut self, reason: Left) {
        self.left[reason as usize] += 1;
    }

    /// Adds a directory, which git knows only by the files in it.
    pub(crate) fn directory(&mut self, path: &VfsPath, is_new: bool) {
        self.pass(path);
        if is_new {
            self.directory = Some(path.to_owned());
        }
    }

    /// Passes on to a path. Paths come in order, so a new directory is empty if the next path is not in it.
    fn pass(&mut self, path: &VfsPath) {
        if self.directory.take().is_some_and(|directory| !path.starts_with(&directory)) {
            self.empty_directories += 1;
        }
    }

    /// Prints the change of a file.
    pub(crate) fn file(
        &mut self,
        context: &mut Context,
        path: &VfsPath,
        before: Option<(Mode, Bytes)>,
        after: Option<(Mode, Bytes)>,
    ) -> Result<(), Failure> {
        self.pass(path);
        if is_refused(path) {
            self.leave_out(Left::Refused);
            return Ok(());
        }
        fn side((mode, content): &(Mode, Bytes)) -> Side<'_> {
            Side { mode: *mode, content }
        }
        let text = section(path.relative(), before.as_ref().map(side), after.as_ref().map(side), self.unified);
        diff::print(&mut context.out, &text)
    }

    /// Ends the patch, and says what is not in it.
    pub(crate) fn finish(mut self, context: &mut Context, any: bool) -> Result<Outcome, Failure> {
        self.pass(VfsPath::ROOT);
        if self.empty_directories > 0 {
            let count = counted(self.empty_directories, "empty directory is", "empty directories are");
            context.out.notice(format_args!("{count} left out; git records files only"));
        }
        let reasons = [
            (Left::Hidden, "as a rule hides the content", ErrorKind::PermissionDenied),
            (Left::Refused, "as git refuses paths of repositories", ErrorKind::Unsupported),
            (Left::Kind, "as git cannot record that kind of file here", ErrorKind::Unsupported),
        ];
        let mut failed = None;
        for (reason, why, kind) in reasons {
            let count = self.left[reason as usize];
            if count > 0 {
                context.out.notice(format_args!("{} left out, {why}", counted(count, "change is", "changes are")));
                failed = failed.or(Some(kind));
            }
        }
        Ok(match failed {
            Some(kind) => Outcome::Failed(kind),
            None => Outcome::found(any),
        })
    }
}

/// Prints the changes of one overlay as a patch of git.
pub(super) async fn print(context: &mut Context, mut asked: Vec<Asked>, unified: usize) -> Result<Outcome, Failure> {
    if asked.len() > 1 {
        let routes: Vec<String> = asked.iter().map(|one| format!("`{}`", one.route)).collect();
        let message = format!("a patch has the paths of one overlay; name one of {}", routes.join(", "));
        return Err(Error::invalid_argument(message).into());
    }
    let Some(Asked { route, overlay, paths }) = asked.pop() else { return Ok(Outcome::Nothing) };
    let config = context.config()?;
    let host = config.filesystem_root(route.as_str(), &config.scope())?;
    let mut options = OverlayDiffOptions::new().with_path(paths.first().cloned().unwrap_or_else(VfsPathBuf::root));
    let mut patch = GitPatch::new(unified);
    let mut any = false;
    loop {
        let page = overlay.diff(&options).await.map_err(|error| error.rebased(&route, &[]))?;
        for difference in page.differences {
            any = true;
            print_one(context, &mut patch, &route, &overlay, host.as_deref(), &difference).await?;
        }
        match page.truncated {
            Some(cut) => options.start_after = Some(cut.next_after(options.start_after.as_ref())?),
            None => break,
        }
    }
    patch.finish(context, any)
}

async fn print_one(
    context: &mut Context,
    patch: &mut GitPatch,
    route: &VfsPath,
    overlay: &OverlayBackend,
    host: Option<&Path>,
    difference: &OverlayDifference,
) -> Result<(), Failure> {
    let path = &difference.path;
    let kind = |entry: &Option<Entry>| entry.as_ref().map(|entry| entry.kind).filter(|kind| *kind != EntryKind::Directory);
    let (before, after) = (kind(&difference.before), kind(&difference.after));
    if before.is_none() && after.is_none() {
        patch.directory(path, difference.after.is_some());
        return Ok(());
    }
    if !difference.is_readable {
        patch.leave_out(Left::Hidden);
        return Ok(());
    }
    let at = host.map(|host| host.join(path.relative()));
    let before = match before {
        None => None,
        Some(kind) => match lower_content(&**overlay.lower(), path, kind, at.as_ref()).await.map_err(|error| error.rebased(route, &[]))? {
            Some(content) => Some(content),
            None => {
                patch.leave_out(Left::Kind);
                return Ok(());
            }
        },
    };
    let after = match after {
        None => None,
        Some(_) => {
            let content =
                overlay.read(path, &ReadOptions::new().with_bytes_max(u64::MAX)).await.map_err(|error| error.rebased(route, &[]))?;
            // An overlay keeps the mode of a file that it changes.
            let mode = before.as_ref().map_or(Mode::File, |(mode, _)| if *mode == Mode::Link { Mode::File } else { *mode });
            Some((mode, content.content))
        }
    };
    patch.file(context, path, before, after)
}

/// Returns a file of the lower tree, or `None` for what git cannot record.
async fn lower_content(lower: &dyn Backend, path: &VfsPath, kind: EntryKind, host: Option<&PathBuf>) -> Result<Option<Content>, Error> {
    match kind {
        EntryKind::File => {
            let content = lower.read(path, &ReadOptions::new().with_bytes_max(u64::MAX)).await?.content;
            Ok(Some((host.map_or(Mode::File, |host| mode_of(host)), content)))
        }
        EntryKind::Symlink => {
            let target = host.and_then(|host| std::fs::read_link(host).ok());
            Ok(target.map(|target| (Mode::Link, Bytes::from(target.into_os_string().into_encoded_bytes()))))
        }
        _ => Ok(None),
    }
}

/// Returns whether a host file is executable, as git records it.
fn mode_of(host: &Path) -> Mode {
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        if std::fs::symlink_metadata(host).is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o100 != 0) {
            return Mode::Executable;
        }
    }
    #[cfg(not(unix))]
    let _ = host;
    Mode::File
}
