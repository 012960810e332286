//! `import` and `export`: a directory of the host into the tree, and back. Both continue where an earlier run was interrupted.

use crate::backend::{Backend, BackendExt, ContentStream, StreamOptions};
use crate::cli::commands::glob::{add_failures, check_found};
use crate::cli::commands::write::attempt;
use crate::cli::context::Context;
use crate::cli::exit::{self, Failure, Outcome, error_of, tell};
use crate::cli::output::{Progress, counted};
use crate::cli::signal::{self, StopSignal};
use crate::error::ErrorRecord;
use crate::ops::{ApplyOptions, Change, Entry, EntryKind, Failure as Unread, GlobOptions, OnFailure, StatOptions, WriteMode};
use crate::{Error, ErrorKind, StateBackend, VfsPath, VfsPathBuf};
use bytes::Bytes;
use clap::Args;
use futures::FutureExt;
use serde::Serialize;
use std::collections::HashMap;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;

/// Copy a directory of the host into the tree
///
/// Copies the files and directories in DIR to PATH, which is created if it does not exist. A file that PATH has with the same content is
/// left unchanged, so an interrupted command continues when it is run again. A file with other content is a conflict, which is listed and
/// left unchanged without `--force`; the exit code is 4. Links are not followed. Files that PATH has besides stay.
#[derive(Debug, Args)]
#[command(after_long_help = "Examples:
  treehold import ~/notes /memories/notes
  treehold import . / --skip-ignored --dry-run")]
pub(crate) struct Import {
    /// Directory of the host
    #[arg(value_name = "DIR")]
    directory: PathBuf,
    /// Directory of the tree
    path: String,
    #[command(flatten)]
    how: How,
    /// Skip what `.gitignore` and `.ignore` exclude
    #[arg(long)]
    skip_ignored: bool,
}

/// Copy a part of the tree to a directory of the host
///
/// Copies the files and directories at PATH into DIR, which is created if it does not exist. A file that DIR has with the same content is
/// left unchanged, so an interrupted command continues when it is run again. A file with other content is a conflict, which is listed and
/// left unchanged without `--force`; the exit code is 4. Files that make tools run code later, such as git hooks, are refused.
#[derive(Debug, Args)]
#[command(after_long_help = "Examples:
  treehold export /memories ~/backup/memories
  treehold --thread monday export / ./monday")]
pub(crate) struct Export {
    /// Directory of the tree
    path: String,
    /// Directory of the host
    #[arg(value_name = "DIR")]
    directory: PathBuf,
    #[command(flatten)]
    how: How,
}

#[derive(Debug, Clone, Copy, Args)]
struct How {
    /// Replace files with other content
    #[arg(short, long)]
    force: bool,
    /// Only count what would be copied
    #[arg(long)]
    dry_run: bool,
}

/// The most changes that are applied together.
const BATCH_CHANGES_MAX: usize = 256;

/// The most bytes that are applied together.
const BATCH_BYTES_MAX: usize = 8 << 20;

/// The most bytes of one file.
const FILE_BYTES_MAX: u64 = 64 << 20;

/// The most conflicts and failures that are listed.
const LISTED_MAX: usize = 100;

/// What was done.
#[derive(Debug, Default, Serialize)]
struct Report {
    /// The files that were copied, and their bytes.
    files: usize,
    bytes: u64,
    /// The files that the target had already with the same content.
    unchanged: usize,
    /// The links and special files of the source.
    skipped: usize,
    dry_run: bool,
    /// Whether a signal stopped it.
    interrupted: bool,
    #[serde(skip)]
    stopped_by: Option<StopSignal>,
    /// The first files that the target has with other content.
    conflicts: Vec<VfsPathBuf>,
    conflicts_count: usize,
    /// The first paths that could not be copied.
    failures: Vec<Unread>,
    failures_count: usize,
    /// The refused paths beneath hidden directories, such as `.git`: the directory, its first path, and how many more there are.
    #[serde(skip)]
    hidden: Vec<(VfsPathBuf, VfsPathBuf, usize)>,
}

impl Report {
    fn interrupt(&mut self, signal: StopSignal) {
        self.interrupted = true;
        self.stopped_by = Some(signal);
    }

    fn conflict(&mut self, path: VfsPathBuf) {
        self.conflicts_count += 1;
        if self.conflicts.len() < LISTED_MAX {
            self.conflicts.push(path);
        }
    }

    fn fail(&mut self, path: &VfsPath, error: &Error) {
        self.failures_count += 1;
        if error.kind() == ErrorKind::PermissionDenied
            && let Some(directory) = hidden_directory(path)
        {
            let has_room = self.hidden.len() < LISTED_MAX;
            match self.hidden.iter_mut().find(|(known, ..)| **known == *directory) {
                Some((_, _, more)) => *more += 1,
                None if has_room => self.hidden.push((directory.to_owned(), path.to_owned(), 0)),
                None => {}
            }
        }
        if self.failures.len() < LISTED_MAX {
            self.failures.push(Unread { path: path.to_owned(), error: ErrorRecord::from(error) });
        }
    }
}

/// Returns the first hidden name on a path, as what is protected by name is refused with all that is beneath it.
fn hidden_directory(path: &VfsPath) -> Option<&VfsPath> {
    path.ancestors().chain([path]).find(|above| above.name().starts_with('.'))
}

impl Import {
    pub(crate) async fn run(self, context: &mut Context) -> Result<Outcome, Failure> {
        let base = VfsPathBuf::parse(&self.path)?;
        self.check_directory()?;
        let source = context.config()?.read_directory(&self.directory)?;
        let target = context.tree().await?;
        let from = Side::host(source).with_ignored(!self.skip_ignored);
        let to = Side::tree(target, base);
        Copying::new(from, to, self.how)
            .run(context, "importing", async |context, changes| {
                context.lasting(async |context| attempt(context, changes).await.map(drop)).await
            })
            .await
    }
}

impl Import {
    /// Checks that the source is a directory of the host, and says what copies a file.
    fn check_directory(&self) -> Result<(), Error> {
        let shown = self.directory.display();
        match std::fs::metadata(&self.directory) {
            Ok(found) if found.is_file() => {
                let message = format!("`{shown}` is a file; `treehold write {} < {shown}` copies it into the tree", self.path);
                Err(Error::new(ErrorKind::NotADirectory, message))
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                Err(Error::new(ErrorKind::NotFound, format!("`{shown}` does not exist on this machine; name a directory of it")))
            }
            // Anything else is found by opening it.
            _ => Ok(()),
        }
    }
}

impl Export {
    pub(crate) async fn run(self, context: &mut Context) -> Result<Outcome, Failure> {
        let base = VfsPathBuf::parse(&self.path)?;
        let from = Side::tree(context.tree().await?, base);
        // A target that would be created for nothing hides a mistyped source.
        if !from.tree.stat(&from.base, &StatOptions::new()).await?.is_directory() {
            let (path, file) = (&from.base, self.directory.display());
            let message = format!("`{path}` is not a directory; `treehold cat {path} > {file}` copies a file to the host");
            return Err(Error::not_a_directory(path).with_message(message).into());
        }
        let directory: Arc<dyn Backend> = match self.how.dry_run && !self.directory.exists() {
            true => Arc::new(StateBackend::new()),
            false => context.config()?.write_directory(&self.directory)?,
        };
        Copying::new(from, Side::host(directory.clone()), self.how)
            .run(context, "exporting", async |_, changes| {
                Ok(directory.apply(changes, &ApplyOptions::new().with_allow_partial(true)).await.map(drop)?)
            })
            .await
    }
}

/// A directory in a tree.
struct Side {
    tree: Arc<dyn Backend>,
    base: VfsPathBuf,
    /// Whether files that `.gitignore` excludes belong to it.
    ignored: bool,
    /// Whether it is a directory of the host, whose paths the user does not know.
    is_host: bool,
}

impl Side {
    fn host(tree: Arc<dyn Backend>) -> Self {
        Self { tree, base: VfsPathBuf::root(), ignored: true, is_host: true }
    }

    fn tree(tree: Arc<dyn Backend>, base: VfsPathBuf) -> Self {
        Self { tree, base, ignored: true, is_host: false }
    }

    fn with_ignored(self, ignored: bool) -> Self {
        Self { ignored, ..self }
    }

    /// Lists everything beneath the directory in path order, and what could not be read. A missing directory is empty.
    async fn list(&self, progress: &Progress) -> Result<(Vec<Entry>, Vec<Unread>), Error> {
        let mut options = GlobOptions::new("**")
            .with_directories(true)
            .with_hidden(true)
            .with_ignored(self.ignored)
            .with_on_failure(OnFailure::Partial)
            .with_limit(10_000);
        let (mut entries, mut failures) = (Vec::new(), Vec::new());
        loop {
            let page = match self.tree.glob(&self.base, &options).await {
                Err(error) if error.kind() == ErrorKind::NotFound && error.path() == Some(&self.base) => break,
                page => page?,
            };
            entries.extend(page.entries);
            add_failures(&mut failures, page.failures);
            check_found(entries.len())?;
            progress.tell(entries.len() as u64, "paths found");
            match page.truncated {
                Some(cut) => options.start_after = Some(cut.next_after(options.start_after.as_ref())?),
                None => break,
            }
        }
        Ok((entries, failures))
    }

    /// Reads a whole file.
    async fn content(&self, path: &VfsPath, size_bytes: u64) -> Result<Bytes, Error> {
        if size_bytes > FILE_BYTES_MAX {
            let message = format!("`{path}` has {size_bytes} bytes; files over {FILE_BYTES_MAX} bytes are not copied");
            return Err(Error::new(ErrorKind::TooLarge, message).at(path));
        }
        match self.tree.read_bytes(path.as_str()).await {
            Err(error) if error.kind() == ErrorKind::TooLarge => {}
            read => return read,
        }
        let mut stream = ContentStream::open(&*self.tree, path, &StreamOptions::new()).await?;
        let mut content = Vec::new();
        while let Some(part) = stream.next().await? {
            content.extend_from_slice(&part);
        }
        Ok(content.into())
    }
}

/// A copy in progress.
struct Copying {
    from: Side,
    to: Side,
    how: How,
    report: Report,
    batch: Vec<Change>,
    batch_bytes: usize,
}

impl Copying {
    fn new(from: Side, to: Side, how: How) -> Self {
        let report = Report { dry_run: how.dry_run, ..Report::default() };
        Self { from, to, how, report, batch: Vec::new(), batch_bytes: 0 }
    }

    /// Copies everything, and reports what was done. `apply` applies changes to the target durably.
    async fn run(
        mut self,
        context: &mut Context,
        doing: &'static str,
        apply: impl AsyncFn(&mut Context, &[Change]) -> Result<(), Failure>,
    ) -> Result<Outcome, Failure> {
        let mut stop = std::pin::pin!(signal::stop());
        let progress = context.progress(doing);
        let (entries, failures) = self.from.list(&progress).await?;
        for failure in failures {
            let rest = failure.path.strip_prefix(&self.from.base).unwrap_or(&failure.path);
            self.report.fail(&self.named(rest), &self.told(self.from.is_host, error_of(&failure.error)));
        }
        let (there, _) = self.to.list(&progress).await?;
        let there: HashMap<VfsPathBuf, Entry> = there.into_iter().map(|entry| (entry.path.clone(), entry)).collect();
        let total = entries.len() as u64;
        for (done, entry) in entries.iter().enumerate() {
            if let Some(signal) = asked_to_stop(&mut stop) {
                self.report.interrupt(signal);
                break;
            }
            progress.share(done as u64, total, format_args!("{doing}: {done} of {total}"));
            self.add(entry, &there).await?;
            if self.batch.len() >= BATCH_CHANGES_MAX || self.batch_bytes >= BATCH_BYTES_MAX {
                self.flush(context, &mut stop, &apply).await?;
            }
        }
        self.flush(context, &mut stop, &apply).await?;
        drop(progress);
        self.end(context, doing)
    }

    /// Adds what brings one entry to the target.
    async fn add(&mut self, entry: &Entry, there: &HashMap<VfsPathBuf, Entry>) -> Result<(), Failure> {
        let Some(rest) = entry.path.strip_prefix(&self.from.base) else { return Ok(()) };
        let path = self.to.base.concat(rest);
        let known = there.get(&path);
        match entry.kind {
            EntryKind::Directory => {
                if known.is_none() {
                    self.batch.push(Change::CreateDir { path });
                }
                return Ok(());
            }
            EntryKind::File => {}
            EntryKind::Symlink | EntryKind::Other => {
                self.report.skipped += 1;
                return Ok(());
            }
        }
        let content = match self.from.content(&entry.path, entry.size_bytes).await {
            Ok(content) => content,
            Err(error) => return self.tolerate(rest, self.from.is_host, error.into()),
        };
        let mode = match known {
            None => WriteMode::CreateNew,
            Some(other) if other.kind != EntryKind::File => {
                self.report.conflict(self.named(rest));
                return Ok(());
            }
            Some(other) => {
                let is_same = other.size_bytes == content.len() as u64
                    && match self.to.content(&path, other.size_bytes).await {
                        Ok(other) => other == content,
                        Err(error) => return self.tolerate(rest, self.to.is_host, error.into()),
                    };
                if is_same {
                    self.report.unchanged += 1;
                    return Ok(());
                }
                if !self.how.force {
                    self.report.conflict(self.named(rest));
                    return Ok(());
                }
                other.version.map_or(WriteMode::Overwrite, WriteMode::IfVersion)
            }
        };
        self.batch_bytes += content.len();
        self.batch.push(Change::Write { path, content, mode });
        Ok(())
    }

    /// Applies what was added. If that fails as a whole, each change is applied alone, so that one refused file does not keep others away.
    async fn flush(
        &mut self,
        context: &mut Context,
        stop: &mut Pin<&mut impl Future<Output = StopSignal>>,
        apply: &impl AsyncFn(&mut Context, &[Change]) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let batch = std::mem::take(&mut self.batch);
        self.batch_bytes = 0;
        if batch.is_empty() {
            return Ok(());
        }
        if self.how.dry_run || apply(context, &batch).await.is_ok() {
            batch.iter().for_each(|change| self.count(change));
            return Ok(());
        }
        for change in &batch {
            if self.report.interrupted {
                break;
            }
            if let Some(signal) = asked_to_stop(stop) {
                self.report.interrupt(signal);
                break;
            }
            match apply(context, std::slice::from_ref(change)).await {
                Ok(()) => self.count(change),
                // It was applied before the batch failed.
                Err(Failure::Library(error)) if error.kind() == ErrorKind::AlreadyExists && self.has(change).await => self.count(change),
                Err(failure) => {
                    let rest = change.path().strip_prefix(&self.to.base).unwrap_or(change.path());
                    self.tolerate(rest, self.to.is_host, failure)?;
                }
            }
        }
        Ok(())
    }

    /// Returns whether the target has the content of a change.
    async fn has(&self, change: &Change) -> bool {
        match change {
            Change::Write { path, content, .. } => self.to.content(path, content.len() as u64).await.is_ok_and(|there| there == *content),
            _ => false,
        }
    }

    fn count(&mut self, change: &Change) {
        if let Change::Write { content, .. } = change {
            self.report.files += 1;
            self.report.bytes += content.len() as u64;
        }
    }

    /// Returns the base of the side in the tree.
    fn tree_base(&self) -> &VfsPath {
        if self.from.is_host { &self.to.base } else { &self.from.base }
    }

    /// Returns the path in the tree of what lies at a path beneath both sides.
    fn named(&self, rest: &VfsPath) -> VfsPathBuf {
        self.tree_base().concat(rest)
    }

    /// Returns an error with paths of the tree.
    fn told(&self, is_of_host: bool, error: Error) -> Error {
        if is_of_host { error.rebased(self.tree_base(), &[]) } else { error }
    }

    /// Records a failure that concerns one path beneath both sides; others end the copy.
    fn tolerate(&mut self, rest: &VfsPath, is_of_host: bool, failure: Failure) -> Result<(), Failure> {
        let Failure::Library(error) = failure else { return Err(failure) };
        let (path, error) = (self.named(rest), self.told(is_of_host, error));
        match error.kind() {
            ErrorKind::QuotaExceeded | ErrorKind::Unavailable | ErrorKind::Deadline | ErrorKind::Corrupt | ErrorKind::Internal => {
                Err(error.into())
            }
            ErrorKind::AlreadyExists | ErrorKind::Conflict => {
                self.report.conflict(path);
                Ok(())
            }
            _ => {
                self.report.fail(&path, &error);
                Ok(())
            }
        }
    }

    /// Reports what was done.
    fn end(self, context: &mut Context, doing: &str) -> Result<Outcome, Failure> {
        let report = self.report;
        if !context.out.is_text() {
            context.out.json(&report)?;
        }
        let mut listed = report.conflicts.len();
        for failure in &report.failures {
            let mut error = error_of(&failure.error).at(&failure.path);
            let directory = hidden_directory(&failure.path).filter(|_| error.kind() == ErrorKind::PermissionDenied);
            if let Some((directory, first, more)) = report.hidden.iter().find(|(known, ..)| Some(&**known) == directory) {
                if *first != failure.path {
                    continue;
                }
                if *more > 0 {
                    let message = format!("{}; the same holds for {more} more beneath `{directory}`", exit::message(&error));
                    error = error.with_message(message);
                }
                listed += more;
            }
            listed += 1;
            tell(&error, &context.global);
        }
        for path in &report.conflicts {
            let message = format!("`{path}` has other content; `--force` replaces it");
            tell(&Error::new(ErrorKind::Conflict, message).at(path), &context.global);
        }
        let unlisted = report.conflicts_count + report.failures_count - listed;
        if unlisted > 0 {
            context.out.notice(format_args!("{unlisted} more are not listed"));
        }
        let done = match (doing, report.dry_run) {
            ("importing", false) => "imported",
            ("importing", true) => "would import",
            (_, false) => "exported",
            (_, true) => "would export",
        };
        let mut line = format!("{done} {} of {} bytes", counted(report.files, "file", "files"), report.bytes);
        let others = [
            (report.unchanged, "unchanged"),
            (report.skipped, "skipped as no regular files"),
            (report.conflicts_count, "in conflict"),
            (report.failures_count, "failed"),
        ];
        for (count, what) in others.into_iter().filter(|(count, _)| *count > 0) {
            line.push_str(&format!(", {count} {what}"));
        }
        if report.interrupted {
            line.push_str("; interrupted: run the command again to continue");
        }
        context.out.notice(line);
        if let Some(signal) = report.stopped_by {
            return Ok(Outcome::Interrupted(signal));
        }
        Ok(match report.failures.first() {
            Some(failure) => Outcome::Failed(error_of(&failure.error).kind()),
            None if report.conflicts_count > 0 => Outcome::Failed(ErrorKind::Conflict),
            None => Outcome::Done,
        })
    }
}

/// Returns the signal that has asked the command to stop, if any.
fn asked_to_stop(stop: &mut Pin<&mut impl Future<Output = StopSignal>>) -> Option<StopSignal> {
    stop.as_mut().now_or_never()
}
