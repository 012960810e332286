//! Loading pages and contents that are not in memory.

use super::StateNode;
use super::page::{Link, Miss, Page, PageId};
use async_trait::async_trait;
use bytes::Bytes;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use treehold_core::error::{Error, ErrorKind, Result};

/// A store of saved pages and contents.
#[async_trait]
pub(crate) trait PageSource: Send + Sync + fmt::Debug {
    /// Returns pages in the order of `ids`.
    ///
    /// Cost: one round trip.
    ///
    /// # Errors
    /// [`Corrupt`](ErrorKind::Corrupt) for a missing or unreadable page, and those of the store.
    async fn pages(&self, ids: &[PageId]) -> Result<Vec<Page>>;

    /// Returns contents in the order of `hashes`.
    ///
    /// Cost: one round trip.
    ///
    /// # Errors
    /// As [`PageSource::pages`].
    async fn bodies(&self, hashes: &[[u8; 32]]) -> Result<Vec<Bytes>>;

    /// Returns a range of a content of `size_bytes` bytes, without the rest. The hash of a part is not known, so only the size is
    /// checked.
    ///
    /// Cost: one round trip.
    ///
    /// # Errors
    /// As [`PageSource::pages`].
    async fn body_part(&self, hash: &[u8; 32], size_bytes: u64, range: Range<u64>) -> Result<Bytes>;
}

/// Loads what a miss names. Returns about how many bytes of memory that took.
pub(super) async fn load(source: Option<&Arc<dyn PageSource>>, miss: Miss) -> Result<u64> {
    match miss {
        Miss::Page(link) => load_pages(source, &[link]).await,
        Miss::Body(node) => {
            let content = bodies(source, std::slice::from_ref(&node)).await?.pop().unwrap_or_default();
            let size_bytes = content.len() as u64;
            node.load(content);
            Ok(size_bytes)
        }
    }
}

/// Loads pages, except those already in memory. Returns about how many bytes of memory they take.
pub(super) async fn load_pages(source: Option<&Arc<dyn PageSource>>, links: &[Arc<Link>]) -> Result<u64> {
    let missing: Vec<(&Arc<Link>, PageId)> =
        links.iter().filter(|link| link.loaded().is_none()).filter_map(|link| Some((link, link.id()?))).collect();
    if missing.is_empty() {
        return Ok(0);
    }
    let ids: Vec<PageId> = missing.iter().map(|(_, id)| *id).collect();
    let pages = source.ok_or_else(no_source)?.pages(&ids).await?;
    let size_bytes = pages.iter().map(Page::memory_bytes).sum();
    missing.iter().zip(pages).for_each(|((link, _), page)| link.load(page));
    Ok(size_bytes)
}

/// Returns the contents of files, without keeping newly loaded ones in memory.
pub(super) async fn bodies(source: Option<&Arc<dyn PageSource>>, nodes: &[Arc<StateNode>]) -> Result<Vec<Bytes>> {
    let unread = nodes.iter().enumerate().filter(|(_, node)| node.content().is_none());
    let unread: Vec<(usize, [u8; 32])> = unread.filter_map(|(at, node)| Some((at, node.body()?.hash))).collect();
    let mut contents: Vec<Bytes> = nodes.iter().map(|node| node.content().cloned().unwrap_or_default()).collect();
    if !unread.is_empty() {
        let hashes: Vec<[u8; 32]> = unread.iter().map(|(_, hash)| *hash).collect();
        let read = source.ok_or_else(no_source)?.bodies(&hashes).await?;
        unread.iter().zip(read).for_each(|((at, _), content)| contents[*at] = content);
    }
    Ok(contents)
}

/// Returns a range of the content of a file that is not in memory.
pub(super) async fn part(source: Option<&Arc<dyn PageSource>>, node: &StateNode, range: Range<u64>) -> Result<Bytes> {
    let (source, body) = source.zip(node.body()).ok_or_else(no_source)?;
    source.body_part(&body.hash, node.size_bytes(), range).await
}

fn no_source() -> Error {
    Error::new(ErrorKind::Internal, "a part of a tree is neither in memory nor in a known store")
}
