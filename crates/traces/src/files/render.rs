//! The contents of the files.

use crate::layout::render;
pub(super) use crate::layout::render::{event, time_of};
use crate::model::{GoalTree, Message, Trace};
use bytes::Bytes;
use jiff::Timestamp;
use treehold_core::error::Result;
use treehold_core::ops::{Entry, FileRead, ReadOptions, Version};
use treehold_core::path::VfsPathBuf;
use treehold_core::text;

/// A content with its version and times.
#[derive(Debug, Clone)]
pub(super) struct Rendered {
    pub(super) content: Bytes,
    version: Version,
    created_at: Option<Timestamp>,
    modified_at: Option<Timestamp>,
}

impl Rendered {
    pub(super) fn new(content: impl Into<Bytes>, created_at: Option<Timestamp>, modified_at: Option<Timestamp>) -> Self {
        let content = content.into();
        Self { version: version_of(&content), content, created_at, modified_at }
    }

    pub(super) fn entry(&self, path: VfsPathBuf) -> Entry {
        Entry::file(path, self.content.len() as u64, self.version).with_times(self.created_at, self.modified_at)
    }

    pub(super) async fn read(self, options: &ReadOptions) -> Result<FileRead> {
        let (content, window) = text::cut_apart(&self.content, options).await?;
        let mut read = FileRead::new(self.content, self.version, self.modified_at);
        (read.content, read.window) = (content, window);
        Ok(read)
    }
}

/// Returns the version of a content.
pub(super) fn version_of(content: &[u8]) -> Version {
    let hash = blake3::hash(content);
    let (start, _) = hash.as_bytes().split_first_chunk().expect("a hash has 32 bytes");
    Version::new(u64::from_le_bytes(*start))
}

pub(super) fn meta(trace: &Trace) -> Result<Rendered> {
    let created_at = trace.created_at.as_deref().and_then(time_of);
    Ok(Rendered::new(render::content(&render::trace(trace)?), created_at, trace.completed_at.as_deref().and_then(time_of).or(created_at)))
}

pub(super) fn goals(trace: &Trace, goals: &GoalTree) -> Result<Rendered> {
    let created_at = trace.created_at.as_deref().and_then(time_of);
    Ok(Rendered::new(render::content(&render::goals(goals)?), created_at, created_at))
}

pub(super) fn message(message: &Message) -> Result<Rendered> {
    let created_at = message.created_at.as_deref().and_then(time_of);
    Ok(Rendered::new(render::content(&render::message(message)?), created_at, created_at))
}
