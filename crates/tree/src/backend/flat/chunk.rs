//! The contents of some files, searched together.

use crate::background::{in_background, workers};
use bytes::Bytes;
use std::mem;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use treehold_core::error::Result;
use treehold_core::path::VfsPathBuf;
use treehold_core::search::{FileOutcome, GrepCollector, GrepMatcher, parallel};

/// The most bytes that are searched on the calling thread.
const BYTES_AT_ONCE: u64 = 128 << 10;

/// The content of a selected file, or the reason why it cannot be searched.
pub(in crate::backend) enum Body {
    Read(Bytes),
    Decided(FileOutcome),
}

impl Body {
    fn size_bytes(&self) -> u64 {
        match self {
            Self::Read(content) => content.len() as u64,
            Self::Decided(_) => 0,
        }
    }
}

/// Searches the files of one chunk, a large one on all cores. A break means that a limit was reached.
pub(in crate::backend) async fn search_chunk(
    matcher: Arc<GrepMatcher>,
    collector: GrepCollector,
    files: Vec<(VfsPathBuf, Body)>,
) -> Result<(GrepCollector, ControlFlow<()>)> {
    let size_bytes = files.iter().map(|(_, body)| body.size_bytes()).sum();
    let search = move |(path, body): &mut (VfsPathBuf, Body)| match body {
        Body::Read(content) => matcher.search(path, content).detached(),
        Body::Decided(outcome) => mem::replace(outcome, FileOutcome::Gone),
    };
    search_each(collector, files, size_bytes, search, |(path, _)| path.clone()).await
}

/// Searches the files of one chunk, of the given total size, as [`search_chunk`] does, each by `search`. `path` builds the path of
/// a file that is in the result.
///
/// Files are borrowed, not moved: most have no match, and moving a file would take as long as searching it.
pub(in crate::backend) async fn search_each<F: Send + Sync + 'static>(
    mut collector: GrepCollector,
    mut files: Vec<F>,
    size_bytes: u64,
    search: impl Fn(&mut F) -> FileOutcome + Send + Sync + 'static,
    path: impl Fn(&F) -> VfsPathBuf + Send + 'static,
) -> Result<(GrepCollector, ControlFlow<()>)> {
    let mut flow = ControlFlow::Continue(());
    if size_bytes <= BYTES_AT_ONCE {
        for file in &mut files {
            let outcome = search(file);
            flow = collector.push_with(|| path(file), outcome);
            if flow.is_break() {
                break;
            }
        }
        return Ok((collector, flow));
    }
    let (collector, flow, _files) = in_background(move |stop| {
        let lent = files.iter_mut().take_while(|_| !stop.load(Ordering::Relaxed));
        parallel::ordered(
            lent,
            workers(),
            |file| {
                let outcome = search(file);
                (&*file, outcome)
            },
            |(file, outcome)| {
                flow = collector.push_with(|| path(file), outcome);
                flow
            },
        );
        (collector, flow, files)
    })
    .await?;
    // Free the files on the thread that allocates the next ones: freeing memory of another thread is slow because of contention.
    Ok((collector, flow))
}
