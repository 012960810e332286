//! `glob`: paths by pattern, as found by the tool for agents.

use crate::cli::args::{When, at_least_one};
use crate::cli::context::Context;
use crate::cli::exit::{Failure, Outcome, error_of, tell};
use crate::cli::output::Format;
use crate::ops::{Failure as Unread, GlobOptions, GlobResult, OnFailure, StatOptions};
use crate::tools::with_near_paths;
use crate::{Backend, Error, ErrorKind, VfsPath};
use clap::Args;

/// Find files whose path matches a glob pattern
///
/// `*` and `?` match within a name, `**` matches across directories, and `{a,b}` and `[...]` match alternatives. A pattern
/// without `/` matches names at any depth. Hidden files, and files excluded by `.gitignore` and `.ignore`, are skipped.
#[derive(Debug, Args)]
#[command(after_long_help = "Examples:
  treehold glob '*.md'
  treehold glob '{memories,workspace}/**/*.md'
  treehold glob 'src/**' /workspace --dirs")]
pub(crate) struct Glob {
    /// Glob pattern
    pattern: String,
    /// Directory to search
    #[arg(default_value = "/")]
    path: String,
    /// Also print matching directories
    #[arg(short, long)]
    dirs: bool,
    /// Ignore case
    #[arg(short, long)]
    ignore_case: bool,
    /// Include hidden files and directories
    #[arg(long)]
    hidden: bool,
    /// Include files that `.gitignore` and `.ignore` exclude
    #[arg(long)]
    ignored: bool,
    /// Print at most N paths
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    limit: Option<usize>,
    #[command(flatten)]
    when: When,
}

impl Glob {
    pub(crate) async fn run(self, context: &mut Context) -> Result<Outcome, Failure> {
        let path = VfsPath::parse(&self.path)?;
        let options = GlobOptions::new(&self.pattern)
            .with_directories(self.dirs)
            .with_case_insensitive(self.ignore_case)
            .with_hidden(self.hidden)
            .with_ignored(self.ignored)
            .with_on_failure(OnFailure::Partial);
        let tree = context.tree_at(&self.when).await?;
        let result = found(&*tree, &path, options, self.limit).await?;
        let outcome = print_found(context, &result)?;
        if let Some(missing) = self.missing(&*tree, &path).await.filter(|_| outcome == Outcome::Nothing) {
            context.out.notice(missing);
        }
        Ok(outcome)
    }
}

impl Glob {
    /// Says that the first directory of the pattern does not exist, if it has one that is no pattern itself.
    async fn missing(&self, tree: &dyn Backend, path: &VfsPath) -> Option<String> {
        let (first, _) = self.pattern.trim_start_matches('/').split_once('/')?;
        if first.contains(['*', '?', '[', '{', '\\', '!']) {
            return None;
        }
        let directory = path.child(first).ok()?;
        match tree.stat(&directory, &StatOptions::new()).await {
            Err(error) if error.kind() == ErrorKind::NotFound => Some(with_near_paths(tree, error).await.message().to_owned()),
            _ => None,
        }
    }
}

/// Collects all pages, up to a limit.
pub(crate) async fn found(tree: &dyn Backend, path: &VfsPath, mut options: GlobOptions, limit: Option<usize>) -> Result<GlobResult, Error> {
    let mut whole = GlobResult::default();
    loop {
        if let Some(limit) = limit {
            options.limit = (limit - whole.entries.len()).min(10_000);
        }
        let page = tree.glob(path, &options).await?;
        whole.entries.extend(page.entries);
        add_failures(&mut whole.failures, page.failures);
        match page.truncated {
            Some(truncation) if limit.is_none_or(|limit| whole.entries.len() < limit) => {
                check_found(whole.entries.len())?;
                options.start_after = Some(truncation.next_after(options.start_after.as_ref())?);
            }
            truncated => {
                whole.truncated = truncated;
                return Ok(whole);
            }
        }
    }
}

/// The most results that a command without a limit collects, since the tree of another server may be endless.
const FOUND_MAX: usize = 10_000_000;

/// Checks that one command may hold or inspect this many results.
pub(crate) fn check_found(found: usize) -> Result<(), Error> {
    if found <= FOUND_MAX {
        return Ok(());
    }
    let message = format!("there are over {FOUND_MAX} results; name a directory beneath, or set `--limit`");
    Err(Error::new(ErrorKind::TooLarge, message))
}

/// Adds the failures of a page. A failing mount fails on every page but is reported once. Returns how many failures are new.
pub(crate) fn add_failures(all: &mut Vec<Unread>, page: Vec<Unread>) -> usize {
    let before = all.len();
    for failure in page {
        if !all.contains(&failure) {
            all.push(failure);
        }
    }
    all.len() - before
}

/// Prints the results, one path per line.
pub(crate) fn print_found(context: &mut Context, result: &GlobResult) -> Result<Outcome, Failure> {
    let out = &mut context.out;
    match out.format() {
        Format::Json => out.json(result)?,
        Format::JsonLines => out.json_list(&result.entries)?,
        Format::Text => result.entries.iter().try_for_each(|entry| out.line(&entry.path))?,
    }
    Ok(told_found(context, result))
}

/// Reports what is missing from the printed paths, and returns the outcome.
pub(crate) fn told_found(context: &mut Context, result: &GlobResult) -> Outcome {
    if result.truncated.is_some() {
        context.out.notice("there are more paths; raise `--limit`");
    }
    match tell_unread(context, &result.failures, result.failures.len()) {
        Some(kind) => Outcome::Failed(kind),
        None => Outcome::found(!result.entries.is_empty()),
    }
}

/// Reports what a search could not read, and returns the kind of the first failure: an incomplete search has not succeeded.
pub(crate) fn tell_unread(context: &mut Context, failures: &[Unread], count: usize) -> Option<ErrorKind> {
    if !failures.is_empty() {
        // A pager would cover the messages. If its user left early, they matter nevertheless.
        let _ = context.out.close();
    }
    for failure in failures {
        tell(&error_of(&failure.error).at(&failure.path), &context.global);
    }
    if count > failures.len() {
        context.out.notice(format_args!("{} more could not be read", count - failures.len()));
    }
    failures.first().map(|failure| error_of(&failure.error).kind())
}
