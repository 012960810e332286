//! The contents of some files, searched together.

use super::{in_background, workers};
use crate::error::Result;
use crate::path::VfsPathBuf;
use crate::search::{FileOutcome, GrepCollector, GrepMatcher, parallel};
use bytes::Bytes;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// The most bytes that are searched without a thread of their own.
const BYTES_AT_ONCE: u64 = 128 << 10;

/// The content of a file that was selected, or why there is none to search.
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

/// Searches the files of one chunk, many bytes on all cores; a break says that a limit was reached.
pub(in crate::backend) async fn search_chunk(
    matcher: Arc<GrepMatcher>,
    mut collector: GrepCollector,
    files: Vec<(VfsPathBuf, Body)>,
) -> Result<(GrepCollector, ControlFlow<()>)> {
    let work = move |(path, body): (VfsPathBuf, Body)| {
        let outcome = match body {
            Body::Read(content) => matcher.search(&path, &content).detached(),
            Body::Decided(outcome) => outcome,
        };
        (path, outcome)
    };
    let size_bytes: u64 = files.iter().map(|(_, body)| body.size_bytes()).sum();
    let mut flow = ControlFlow::Continue(());
    if size_bytes <= BYTES_AT_ONCE {
        for file in files {
            let (path, outcome) = work(file);
            flow = collector.push(path, outcome);
            if flow.is_break() {
                break;
            }
        }
        return Ok((collector, flow));
    }
    in_background(move |stop| {
        let files = files.into_iter().take_while(|_| !stop.load(Ordering::Relaxed));
        parallel::ordered(files, workers(), work, |(path, outcome)| {
            flow = collector.push(path, outcome);
            flow
        });
        (collector, flow)
    })
    .await
}
