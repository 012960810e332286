//! `cat` and `head`: content, byte for byte.

use crate::context::Context;
use crate::exit::{Failure, Outcome};
use clap::Args;
use serde::Serialize;
use stratafs::ops::{FileRead, ReadOptions, Version, Window};
use stratafs::{Backend, Error, ErrorKind, VfsPath};

/// How many bytes of a large file are read at a time.
const CHUNK_BYTES: u64 = 8 << 20;

/// Print files
///
/// The bytes come out as they are stored; nothing is added. With `--json` the content must be text.
#[derive(Debug, Args)]
#[command(after_long_help = "Examples:
  stratafs cat /memories/notes.md
  stratafs cat /workspace/log.txt --offset 100 --limit 20    lines 101 to 120")]
pub(crate) struct Cat {
    /// Files
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<String>,
    /// Pass over the first N lines
    #[arg(long, value_name = "N")]
    offset: Option<usize>,
    /// Print at most N lines
    #[arg(long, value_name = "N")]
    limit: Option<usize>,
}

/// Print the first lines of files
#[derive(Debug, Args)]
pub(crate) struct Head {
    /// Files
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<String>,
    /// Print at most N lines
    #[arg(short = 'n', long, value_name = "N", default_value_t = 10)]
    lines: usize,
}

impl Cat {
    pub(crate) async fn run(self, context: &mut Context) -> Result<Outcome, Failure> {
        let lines = (self.offset.is_some() || self.limit.is_some())
            .then(|| ReadOptions::lines(self.offset.unwrap_or(0), self.limit.unwrap_or(usize::MAX)));
        print_all(context, &self.paths, lines).await
    }
}

impl Head {
    pub(crate) async fn run(self, context: &mut Context) -> Result<Outcome, Failure> {
        print_all(context, &self.paths, Some(ReadOptions::lines(0, self.lines))).await
    }
}

async fn print_all(context: &mut Context, paths: &[String], lines: Option<ReadOptions>) -> Result<Outcome, Failure> {
    let tree = context.tree().await?;
    for path in paths {
        let path = VfsPath::parse(path)?;
        match &lines {
            _ if !context.out.is_text() => {
                let read = tree.read(&path, lines.as_ref().unwrap_or(&ReadOptions::new())).await?;
                let text = std::str::from_utf8(&read.content).map_err(|error| {
                    Error::invalid_argument(format!("`{path}` is not UTF-8 text; leave `--json` out to get its bytes"))
                        .at(&path)
                        .with_source(error)
                })?;
                context.out.json(&FileText::new(&path, &read, text))?;
            }
            Some(options) => {
                let content = tree.read(&path, options).await?.content;
                context.out.bytes(&content)?;
            }
            None => print_whole(context, &*tree, &path).await?,
        }
    }
    Ok(Outcome::Done)
}

/// Prints a whole file, a large one in pieces of one version.
async fn print_whole(context: &mut Context, tree: &dyn Backend, path: &VfsPath) -> Result<(), Failure> {
    let mut offset = 0;
    let mut version: Option<Version> = None;
    loop {
        let read = tree.read(path, &ReadOptions::bytes(offset, CHUNK_BYTES)).await?;
        if version.is_some_and(|version| version != read.version) {
            return Err(Error::new(ErrorKind::Conflict, format!("`{path}` changed while it was read; run the command again"))
                .at(path)
                .with_current_version(Some(read.version))
                .into());
        }
        version = Some(read.version);
        context.out.bytes(&read.content)?;
        offset += read.content.len() as u64;
        if offset >= read.size_bytes || read.content.is_empty() {
            return Ok(());
        }
    }
}

/// A file as JSON.
#[derive(Debug, Serialize)]
struct FileText<'a> {
    path: &'a VfsPath,
    content: &'a str,
    version: Version,
    size_bytes: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    window: Option<Window>,
}

impl<'a> FileText<'a> {
    fn new(path: &'a VfsPath, read: &FileRead, content: &'a str) -> Self {
        Self { path, content, version: read.version, size_bytes: read.size_bytes, window: read.window }
    }
}
