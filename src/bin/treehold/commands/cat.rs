//! `cat` and `head`: content, byte for byte.

use crate::args::{When, at_least_one};
use crate::context::Context;
use crate::exit::{Failure, Outcome};
use crate::output::as_text;
use clap::Args;
use serde::Serialize;
use treehold::ops::{FileRead, ReadOptions, Version, Window};
use treehold::{Backend, Error, ErrorKind, VfsPath, VfsPathBuf};

/// The size of the pieces in which a file too large for one read is read, in bytes.
const CHUNK_BYTES: u64 = 8 << 20;

/// How often reading a large file restarts if it changes meanwhile.
const STARTS_MAX: usize = 10;

/// Print files
///
/// The bytes come out as they are stored; nothing is added. With `--json` what is not UTF-8 text stands in base64.
#[derive(Debug, Args)]
#[command(after_long_help = "Examples:
  treehold cat /memories/notes.md
  treehold cat /workspace/log.txt --offset 100 --limit 20    lines 101 to 120
  treehold cat /plan.md --at before    as it was at a checkpoint")]
pub(crate) struct Cat {
    /// Files
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<String>,
    /// Pass over the first N lines
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
/// Of several files each is headed by its path.
#[derive(Debug, Args)]
pub(crate) struct Head {
    /// Files
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
        let tree = context.tree_at(&self.when).await?;
        print_all(context, &*tree, &self.paths, lines, false).await
    }
}

impl Head {
    pub(crate) async fn run(self, context: &mut Context) -> Result<Outcome, Failure> {
        let tree = context.tree_at(&self.when).await?;
        print_all(context, &*tree, &self.paths, Some(ReadOptions::lines(0, self.lines)), true).await
    }
}

async fn print_all(
    context: &mut Context,
    tree: &dyn Backend,
    paths: &[String],
    lines: Option<ReadOptions>,
    headed: bool,
) -> Result<Outcome, Failure> {
    if !context.out.is_text() {
        let mut files = Vec::with_capacity(paths.len());
        for path in paths {
            let path = VfsPathBuf::parse(path)?;
            let read = tree.read(&path, lines.as_ref().unwrap_or(&ReadOptions::new())).await?;
            files.push(FileContent::new(path, read));
        }
        context.out.json_list(&files)?;
        return Ok(Outcome::Done);
    }
    for (index, path) in paths.iter().enumerate() {
        let path = VfsPathBuf::parse(path)?;
        if headed && paths.len() > 1 {
            // Print the header only for an existing file.
            tree.stat(&path).await?;
            if index > 0 {
                context.out.empty_line()?;
            }
            context.out.line(format_args!("==> {path} <=="))?;
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

/// Prints a whole file: in one piece if one read returns it, otherwise in pieces of one version. If the file changes before anything is
/// printed, reading restarts.
async fn print_whole(context: &mut Context, tree: &dyn Backend, path: &VfsPath) -> Result<(), Failure> {
    match tree.read(path, &ReadOptions::new()).await {
        Err(error) if error.kind() == ErrorKind::TooLarge => {}
        read => return context.out.content(&read?.content),
    }
    'start: for _ in 0..STARTS_MAX {
        let first = tree.read(path, &ReadOptions::bytes(0, CHUNK_BYTES)).await?;
        let mut unprinted = first.content;
        let mut offset = unprinted.len() as u64;
        let mut printed = 0;
        while offset < first.size_bytes {
            let read = tree.read(path, &ReadOptions::bytes(offset, CHUNK_BYTES)).await?;
            if read.version != first.version || read.content.is_empty() {
                if printed == 0 {
                    continue 'start;
                }
                let message = format!("`{path}` changed after {printed} of its bytes were printed; leave them, and run the command again");
                return Err(Error::new(ErrorKind::Conflict, message).at(path).with_current_version(Some(read.version)).into());
            }
            context.out.content(&unprinted)?;
            printed += unprinted.len();
            offset += read.content.len() as u64;
            unprinted = read.content;
        }
        return context.out.content(&unprinted);
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
