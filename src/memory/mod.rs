//! Memory in the prompt: files such as `/memories/AGENTS.md`, read anew for each turn and put into words for a system prompt.
//!
//! [`MemoryReader::read`] looks at the sources in their order; [`MemoryFiles::prompt`] puts what it found into words, within a budget of
//! tokens. A source that is absent is passed over, one that cannot be read is told of. A reader keeps what it read with its version: as
//! long as that is the version of the file, the file is looked at and not read. So a call for each turn is cheap, and a thread that has
//! been open for days is told what another wrote a moment ago. [`Session::memory`](crate::Session::memory) is the usual door.

mod comments;
mod prompt;
mod settings;
mod tokens;

pub use comments::without_comments;
pub use prompt::{GUIDANCE, MemoryPrompt, MemoryShare, PromptOptions, READ_GUIDANCE};
pub use settings::MemorySettings;
pub use tokens::estimate_tokens;

use crate::backend::Backend;
use crate::error::{Error, ErrorKind, ErrorRecord, Result};
use crate::file;
use crate::ops::{Failure, ReadOptions, Version};
use crate::path::{VfsPath, VfsPathBuf};
use crate::work;
use futures::StreamExt;
use parking_lot::Mutex;
use schemars::JsonSchema;
use serde::Serialize;
use std::collections::HashMap;
use std::sync::Arc;

/// The largest file that is taken for memory: 1 MiB.
pub const FILE_BYTES_MAX: u64 = 1 << 20;

/// How many sources are looked at at once.
const LOOKS_MAX: usize = 32;

/// One file of memory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[non_exhaustive]
pub struct MemoryFile {
    /// Where it stands.
    pub path: VfsPathBuf,
    /// The version that was read.
    pub version: Version,
    /// Its text [without comments](without_comments).
    pub text: Arc<str>,
}

/// What was found at the sources of memory.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, JsonSchema)]
#[non_exhaustive]
pub struct MemoryFiles {
    /// The files, in the order of the sources.
    pub files: Vec<MemoryFile>,
    /// The sources at which nothing is.
    pub absent: Vec<VfsPathBuf>,
    /// The sources that could not be read.
    pub failures: Vec<Failure>,
}

/// Reads memory, and keeps what it read for the next time.
///
/// It belongs to one tree: another tree may have other content under the same version.
///
/// ```
/// use stratafs::memory::{MemoryReader, PromptOptions};
/// use stratafs::{BackendExt, StateBackend, VfsPathBuf};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> stratafs::Result<()> {
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
}

impl MemoryReader {
    /// Makes a reader that has read nothing yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Looks at the sources, each once however often it is named, and reads those that changed.
    ///
    /// Cost: one look (`stat`) at each file that was read before, one read of each other; a file that changed takes both. All sources are
    /// looked at together, so it takes the time of one, or of two where some changed.
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
}

/// Returns what is kept of a file as long as it is the file's version, else what it holds now.
async fn look(tree: &dyn Backend, path: &VfsPath, kept: Option<MemoryFile>) -> Result<MemoryFile> {
    if let Some(kept) = kept
        && tree.stat(path).await?.version == Some(kept.version)
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
    use crate::backend::{BackendExt, StateBackend};
    use crate::layer::{Fault, Layered};

    fn paths<const N: usize>(paths: [&str; N]) -> Vec<VfsPathBuf> {
        paths.iter().map(|path| VfsPathBuf::parse(path).expect("a legal path")).collect()
    }

    fn texts(memory: &MemoryFiles) -> Vec<&str> {
        memory.files.iter().map(|file| &*file.text).collect()
    }

    #[tokio::test]
    async fn sources_are_told_in_their_order_and_by_what_they_are() {
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
    async fn what_did_not_change_is_looked_at_and_what_did_is_read() {
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
        assert_eq!(calls(), 3, "two looks, and a read of what was not there");
        tree.write("/b.md", "2").await.expect("written");
        assert_eq!(calls(), 1);
        assert_eq!(texts(&reader.read(&tree, &sources).await), ["1", "2"]);
        assert_eq!(calls(), 4, "a look and a read of what changed");
        tree.delete("/a.md").await.expect("removed");
        let memory = reader.read(&tree, &sources).await;
        assert_eq!((texts(&memory), &memory.absent), (vec!["2"], &paths(["/a.md", "/none.md"])));
        tree.write("/a.md", "1").await.expect("written");
        assert_eq!(texts(&reader.read(&tree, &sources).await), ["1", "2"]);
    }

    #[tokio::test]
    async fn what_cannot_be_looked_at_is_told_of_and_not_remembered() {
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
