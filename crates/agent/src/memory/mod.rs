//! Memory files such as `/memories/AGENTS.md`, read again for each turn and rendered into the system prompt.
//!
//! [`MemoryReader::read`] reads the sources in order; [`MemoryFiles::prompt`] renders the result within a token budget. Missing
//! sources are skipped; unreadable ones are mentioned. [`MemoryReader::read_with_index`] also lists what else lies under some
//! directories, newest first, so that a model knows which notes it has. A reader caches each file with its version, so an unchanged file costs one
//! `stat`. So calling it for each turn is cheap, and a thread that has been open for days still sees what another wrote a moment
//! ago. [`Session::memory`](crate::session::Session::memory) is the usual entry point.

mod comments;
mod index;
mod prompt;
mod settings;
mod tokens;

pub use comments::without_comments;
pub use index::{INDEX_FILES_MAX, MemoryIndex, MemoryNote};
pub use prompt::{GUIDANCE, IndexShare, MemoryPrompt, MemoryShare, PromptOptions, READ_GUIDANCE};
pub use settings::MemorySettings;
pub use tokens::estimate_tokens;

use self::index::KeptLine;
use futures::StreamExt;
use futures::future::BoxFuture;
use parking_lot::Mutex;
use schemars::JsonSchema;
use serde::Serialize;
use std::collections::HashMap;
use std::sync::Arc;
use treehold_core::error::{Error, ErrorKind, ErrorRecord, Result};
use treehold_core::file;
use treehold_core::ops::{Failure, ReadOptions, StatOptions, Version};
use treehold_core::path::{VfsPath, VfsPathBuf};
use treehold_core::work;
use treehold_tree::backend::Backend;

/// The largest memory file: 1 MiB.
pub const FILE_BYTES_MAX: u64 = 1 << 20;

/// How many sources are read concurrently.
const LOOKS_MAX: usize = 32;

/// A memory file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[non_exhaustive]
pub struct MemoryFile {
    /// Its path.
    pub path: VfsPathBuf,
    /// The version that was read.
    pub version: Version,
    /// Its text [without comments](without_comments).
    pub text: Arc<str>,
}

/// The memory that was found.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, JsonSchema)]
#[non_exhaustive]
pub struct MemoryFiles {
    /// The files, in the order of the sources.
    pub files: Vec<MemoryFile>,
    /// The sources that do not exist.
    pub absent: Vec<VfsPathBuf>,
    /// The sources and indexed directories that could not be read.
    pub failures: Vec<Failure>,
    /// What else lies under the indexed directories, in their order.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub index: Vec<MemoryIndex>,
}

/// Reads memory files and caches them for the next read.
///
/// Use one reader for one tree only, since another tree may have different content with the same version.
///
/// ```
/// use treehold_agent::memory::{MemoryReader, PromptOptions};
/// use treehold_core::VfsPathBuf;
/// use treehold_tree::backend::{BackendExt, StateBackend};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> treehold_core::Result<()> {
/// let tree = StateBackend::new();
/// tree.write("/memories/AGENTS.md", "Answer in French. <!-- asked on Monday -->\n").await?;
/// let sources = ["/memories/AGENTS.md", "/workspace/AGENTS.md"].map(VfsPathBuf::parse).into_iter().collect::<Result<Vec<_>, _>>()?;
///
/// let memory = MemoryReader::new().read(&tree, &sources).await;
/// assert_eq!(&*memory.files[0].text, "Answer in French. \n");
/// assert_eq!(memory.absent, [sources[1].clone()]);
/// assert!(memory.prompt(&PromptOptions::new()).text.contains("Answer in French."));
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Default)]
pub struct MemoryReader {
    kept: Mutex<HashMap<VfsPathBuf, MemoryFile>>,
    /// The first lines of indexed files.
    lines: Mutex<HashMap<VfsPathBuf, KeptLine>>,
}

impl MemoryReader {
    /// Creates a reader with an empty cache.
    pub fn new() -> Self {
        Self::default()
    }

    /// Reads the sources that changed since the last call. Duplicate sources are read once.
    ///
    /// Cost: one `stat` for each cached file, one read for each other, both for a file that changed. All sources are read
    /// concurrently, so this takes about one round trip, or two if some changed.
    pub async fn read(&self, tree: &dyn Backend, sources: &[VfsPathBuf]) -> MemoryFiles {
        let mut asked: Vec<(VfsPathBuf, Option<MemoryFile>)> = Vec::with_capacity(sources.len());
        for path in sources {
            if !asked.iter().any(|(other, _)| other == path) {
                asked.push((path.clone(), self.kept.lock().get(path).cloned()));
            }
        }
        let looks = asked.into_iter().map(|(path, kept)| async move { (look(tree, &path, kept).await, path) });
        let found: Vec<(Result<MemoryFile>, VfsPathBuf)> = futures::stream::iter(looks).buffered(LOOKS_MAX).collect().await;
        let mut memory = MemoryFiles::default();
        for (looked, path) in found {
            match looked {
                Ok(file) => memory.files.push(file),
                Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => memory.absent.push(path),
                Err(error) => memory.failures.push(Failure { path, error: ErrorRecord::from(&error) }),
            }
        }
        *self.kept.lock() = memory.files.iter().map(|file| (file.path.clone(), file.clone())).collect();
        memory
    }

    /// Like [`read`](Self::read), and lists what else lies under some directories. Directories that do not exist, and those without
    /// another file, are left out.
    ///
    /// Cost: that of `read`; for each directory a listing of up to [`INDEX_FILES_MAX`] files, and the first 2 KiB of each of the 100
    /// newest that changed since the last call.
    pub async fn read_with_index(&self, tree: &dyn Backend, sources: &[VfsPathBuf], directories: &[VfsPathBuf]) -> MemoryFiles {
        let lists: Vec<BoxFuture<'_, (MemoryIndex, Vec<Failure>)>> =
            directories.iter().map(|path| Box::pin(self.list(tree, path, sources)) as _).collect();
        let lists = futures::stream::iter(lists).buffered(LOOKS_MAX).collect::<Vec<_>>();
        let (mut memory, lists) = futures::join!(self.read(tree, sources), lists);
        for (index, failures) in lists {
            memory.failures.extend(failures);
            memory.index.extend((index.files > 0).then_some(index));
        }
        self.forget_lines(&memory.index);
        memory
    }
}

/// Returns the cached file if its version is current, else reads it.
async fn look(tree: &dyn Backend, path: &VfsPath, kept: Option<MemoryFile>) -> Result<MemoryFile> {
    if let Some(kept) = kept
        && tree.stat(path, &StatOptions::new()).await?.version == Some(kept.version)
    {
        return Ok(kept);
    }
    let read = tree.read(path, &ReadOptions::new().with_bytes_max(FILE_BYTES_MAX)).await?;
    if file::is_binary(&read.content) {
        return Err(Error::invalid_argument(format!("`{path}` is binary; memory is text")).at(path));
    }
    let version = read.version;
    let text = work::run(read.content.len() as u64, move |_| {
        let text = read.text_lossy();
        without_comments(text.strip_prefix('\u{feff}').unwrap_or(&text))
    });
    Ok(MemoryFile { path: path.to_owned(), version, text: text.await?.into() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use treehold_tree::backend::{BackendExt, StateBackend};
    use treehold_tree::layer::{Fault, Layered};

    fn paths<const N: usize>(paths: [&str; N]) -> Vec<VfsPathBuf> {
        paths.iter().map(|path| VfsPathBuf::parse(path).expect("a legal path")).collect()
    }

    fn texts(memory: &MemoryFiles) -> Vec<&str> {
        memory.files.iter().map(|file| &*file.text).collect()
    }

    #[tokio::test]
    async fn sources_are_sorted_into_files_absent_and_failures() {
        let tree = StateBackend::new();
        tree.write("/b.md", "\u{feff}second\n").await.expect("written");
        tree.write("/a.md", "first\n").await.expect("written");
        tree.write("/image", &b"\0"[..]).await.expect("written");
        tree.write("/large", "x".repeat(FILE_BYTES_MAX as usize + 1)).await.expect("written");
        tree.create_dir("/d").await.expect("made");
        let sources = paths(["/b.md", "/none.md", "/a.md", "/b.md", "/d", "/image", "/a.md/beneath", "/large"]);
        let memory = MemoryReader::new().read(&tree, &sources).await;
        assert_eq!(texts(&memory), ["second\n", "first\n"]);
        assert_eq!(memory.absent, paths(["/none.md", "/a.md/beneath"]));
        let failures: Vec<(&str, &str)> =
            memory.failures.iter().map(|failure| (failure.path.as_str(), failure.error.code.as_str())).collect();
        assert_eq!(failures, [("/d", "is_directory"), ("/image", "invalid_argument"), ("/large", "too_large")]);
    }

    #[tokio::test]
    async fn first_lines_are_read_once_for_each_version() {
        let tree = Layered::new(Fault::never(), StateBackend::new());
        for name in ["a", "b", "c"] {
            tree.write(&format!("/d/{name}.md"), name).await.expect("written");
        }
        let (reader, sources, directories) = (MemoryReader::new(), paths(["/d/a.md"]), paths(["/d"]));
        let mut before = tree.layer().calls();
        let mut calls = || {
            let now = tree.layer().calls();
            now - std::mem::replace(&mut before, now)
        };
        let lines = |memory: &MemoryFiles| memory.index[0].notes.iter().map(|note| note.first_line.clone()).collect::<Vec<_>>();
        let first = reader.read_with_index(&tree, &sources, &directories).await;
        assert_eq!((lines(&first), calls()), (vec!["c".to_owned(), "b".to_owned()], 4), "a read, a listing, two first lines");
        let second = reader.read_with_index(&tree, &sources, &directories).await;
        assert_eq!((second, calls()), (first, 2), "a stat and a listing");
        tree.write("/d/b.md", "new").await.expect("written");
        calls();
        let third = reader.read_with_index(&tree, &sources, &directories).await;
        assert_eq!((lines(&third), calls()), (vec!["new".to_owned(), "c".to_owned()], 3));
    }

    #[tokio::test]
    async fn directory_that_cannot_be_listed_is_a_failure() {
        let tree = Layered::new(Fault::from_nth(0), StateBackend::new());
        let memory = MemoryReader::new().read_with_index(&tree, &[], &paths(["/d"])).await;
        assert_eq!((memory.index, memory.failures.len(), memory.failures[0].error.code.as_str()), (Vec::new(), 1, "unavailable"));
    }

    #[tokio::test]
    async fn unchanged_files_cost_one_stat() {
        let tree = Layered::new(Fault::never(), StateBackend::new());
        tree.write("/a.md", "1").await.expect("written");
        tree.write("/b.md", "1").await.expect("written");
        let (reader, sources) = (MemoryReader::new(), paths(["/a.md", "/b.md", "/none.md"]));
        let mut before = tree.layer().calls();
        let mut calls = || {
            let now = tree.layer().calls();
            now - std::mem::replace(&mut before, now)
        };
        assert_eq!(texts(&reader.read(&tree, &sources).await), ["1", "1"]);
        assert_eq!(calls(), 3, "three reads");
        assert_eq!(texts(&reader.read(&tree, &sources).await), ["1", "1"]);
        assert_eq!(calls(), 3, "two stats, and a read of the new file");
        tree.write("/b.md", "2").await.expect("written");
        assert_eq!(calls(), 1);
        assert_eq!(texts(&reader.read(&tree, &sources).await), ["1", "2"]);
        assert_eq!(calls(), 4, "one stat, and one read of the changed file");
        tree.delete("/a.md").await.expect("removed");
        let memory = reader.read(&tree, &sources).await;
        assert_eq!((texts(&memory), &memory.absent), (vec!["2"], &paths(["/a.md", "/none.md"])));
        tree.write("/a.md", "1").await.expect("written");
        assert_eq!(texts(&reader.read(&tree, &sources).await), ["1", "2"]);
    }

    #[tokio::test]
    async fn failed_sources_are_reported_and_not_cached() {
        for failing in 0..4 {
            let tree = Layered::new(Fault::nth(failing), StateBackend::new());
            tree.inner().write("/a.md", "a").await.expect("written");
            tree.inner().write("/b.md", "b").await.expect("written");
            let (reader, sources) = (MemoryReader::new(), paths(["/a.md", "/b.md"]));
            let both = [reader.read(&tree, &sources).await, reader.read(&tree, &sources).await];
            let failed = &both[failing as usize / 2];
            assert_eq!((failed.files.len(), failed.failures.len(), failed.absent.len()), (1, 1, 0), "{failing}");
            assert_eq!(failed.failures[0].error.code, "unavailable");
            assert_eq!(texts(&both[1 - failing as usize / 2]), ["a", "b"], "{failing}");
        }
    }
}
