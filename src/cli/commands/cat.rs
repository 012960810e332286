//! `cat` and `head`: content, byte for byte.

use super::diff::named;
use crate::backend::{ContentStream, StreamOptions};
use crate::cli::args::{When, at_least_one};
use crate::cli::context::Context;
use crate::cli::exit::{Failure, Outcome};
use crate::cli::output::as_text;
use crate::ops::{FileRead, ReadOptions, StatOptions, Version, Window};
use crate::{Backend, Error, ErrorKind, VfsPath, VfsPathBuf};
use bytes::Bytes;
use clap::Args;
use serde::Serialize;

/// How often reading a large file restarts if it changes meanwhile.
const STARTS_MAX: usize = 10;

/// Print the content of files
///
/// Writes the stored bytes unchanged. `PATH@MOMENT` names an earlier version of a file. With `--json`, content that is not UTF-8 is
/// encoded as base64.
#[derive(Debug, Args)]
#[command(after_long_help = "Examples:
  treehold cat /memories/notes.md
  treehold cat /workspace/log.txt --offset 100 --limit 20    # lines 101 to 120
  treehold cat /plan.md --at before                          # as of a checkpoint
  treehold cat /memories/notes.md --at ~1                    # the version before
  treehold cat /memories/notes.md@v1 /memories/notes.md@v2")]
pub(crate) struct Cat {
    /// Files to print, each as `PATH` or `PATH@MOMENT`
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<String>,
    /// Skip the first N lines
    #[arg(long, value_name = "N")]
    offset: Option<usize>,
    /// Print at most N lines
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    limit: Option<usize>,
    #[command(flatten)]
    when: When,
}

/// Print the first lines of files
///
/// With several files, a header names each one. `PATH@MOMENT` names an earlier version of a file.
#[derive(Debug, Args)]
pub(crate) struct Head {
    /// Files to print, each as `PATH` or `PATH@MOMENT`
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<String>,
    /// Print at most N lines
    #[arg(short = 'n', long, value_name = "N", default_value_t = 10)]
    lines: usize,
    #[command(flatten)]
    when: When,
}

impl Cat {
    pub(crate) async fn run(self, context: &mut Context) -> Result<Outcome, Failure> {
        let lines = (self.offset.is_some() || self.limit.is_some())
            .then(|| ReadOptions::lines(self.offset.unwrap_or(0), self.limit.unwrap_or(usize::MAX)));
        print_all(context, &self.when, &self.paths, lines, false).await
    }
}

impl Head {
    pub(crate) async fn run(self, context: &mut Context) -> Result<Outcome, Failure> {
        print_all(context, &self.when, &self.paths, Some(ReadOptions::lines(0, self.lines)), true).await
    }
}

async fn print_all(
    context: &mut Context,
    when: &When,
    paths: &[String],
    lines: Option<ReadOptions>,
    headed: bool,
) -> Result<Outcome, Failure> {
    let tree = context.tree_at(when).await?;
    if !context.out.is_text() {
        let mut files = Vec::with_capacity(paths.len());
        for text in paths {
            let (path, of) = named(context, &tree, text).await?;
            let read = of.as_ref().unwrap_or(&tree).read(&path, lines.as_ref().unwrap_or(&ReadOptions::new())).await?;
            files.push(FileContent::new(path, read));
        }
        context.out.json_list(&files)?;
        return Ok(Outcome::Done);
    }
    for (index, text) in paths.iter().enumerate() {
        let (path, of) = named(context, &tree, text).await?;
        let moment = if of.is_some() { &text[text.rfind('@').unwrap_or(text.len())..] } else { "" };
        let tree: &dyn Backend = &**of.as_ref().unwrap_or(&tree);
        if headed && paths.len() > 1 {
            // Print the header only for an existing file.
            tree.stat(&path, &StatOptions::new()).await?;
            if index > 0 {
                context.out.empty_line()?;
            }
            context.out.line(format_args!("==> {path}{moment} <=="))?;
        }
        match &lines {
            Some(options) => {
                let content = tree.read(&path, options).await?.content;
                context.out.content(&content)?;
            }
            None => print_whole(context, tree, &path).await?,
        }
    }
    Ok(Outcome::Done)
}

/// Prints a whole file: in one piece if one read returns it, otherwise in parts of one version. If the file changes before anything is
/// printed, reading restarts.
pub(crate) async fn print_whole(context: &mut Context, tree: &dyn Backend, path: &VfsPath) -> Result<(), Failure> {
    match tree.read(path, &ReadOptions::new()).await {
        Err(error) if error.kind() == ErrorKind::TooLarge => {}
        read => return context.out.content(&read?.content),
    }
    for _ in 0..STARTS_MAX {
        let mut stream = ContentStream::open(tree, path, &StreamOptions::new()).await?;
        let mut unprinted = Bytes::new();
        let mut printed = 0;
        loop {
            match stream.next().await {
                Ok(Some(part)) => {
                    context.out.content(&unprinted)?;
                    printed += unprinted.len();
                    unprinted = part;
                }
                Ok(None) => return context.out.content(&unprinted),
                Err(error) if error.kind() == ErrorKind::Conflict && printed == 0 => break,
                Err(error) if error.kind() == ErrorKind::Conflict => {
                    let message =
                        format!("`{path}` changed after {printed} of its bytes were printed; discard them, and run the command again");
                    return Err(error.with_message(message).into());
                }
                Err(error) => return Err(error.into()),
            }
        }
    }
    let message = format!("`{path}` changed {STARTS_MAX} times while it was read, and nothing was printed; run the command again");
    Err(Error::new(ErrorKind::Conflict, message).at(path).into())
}

/// A file as JSON.
#[derive(Debug, Serialize)]
struct FileContent {
    path: VfsPathBuf,
    content: String,
    encoding: &'static str,
    version: Version,
    size_bytes: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    window: Option<Window>,
}

impl FileContent {
    fn new(path: VfsPathBuf, read: FileRead) -> Self {
        let (content, encoding) = as_text(&read.content);
        Self { path, content, encoding, version: read.version, size_bytes: read.size_bytes, window: read.window }
    }
}
