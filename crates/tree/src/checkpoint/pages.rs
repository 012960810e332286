//! The serialized form of trees: changed pages are written together in packs, and contents beside them under their hashes.
//!
//! A page stores each path without the prefix that it shares with the one before, and numbers as distances from a base, so that a file
//! takes about 60 bytes, of which the hash takes 32. A pack starts with the lengths of its pages.

use super::cache::PageCache;
use super::record::{decode, encode, time, unreadable};
use crate::backend::{Child, Link, Page, PageId, PageSource, Row, StateNode, StateSnapshot, StoredBody, Totals};
use async_trait::async_trait;
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::sync::Arc;
use treehold_core::error::{Error, ErrorKind, Result};
use treehold_core::ops::Version;
use treehold_core::path::{SharedPath, VfsPath};
use treehold_core::work::{self, LOOK_BYTES};
use treehold_store::{Namespace, Store};

/// The size after which a pack is closed. Reading a page reads its whole pack.
const PACK_BYTES: usize = 2 << 10;

/// The cost of traversing or writing a page, in bytes hashed.
const PAGE_BYTES: usize = 16 << 10;

/// The pages and contents of the threads of one tenant and user, in a store.
#[derive(Debug, Clone)]
pub(super) struct Pages {
    pub(super) store: Arc<dyn Store>,
    pub(super) cache: Arc<PageCache>,
    pub(super) origin: u32,
    pub(super) packs: Namespace,
    pub(super) bodies: Namespace,
}

#[derive(Serialize, Deserialize)]
enum Written<'w> {
    Leaf {
        base_time: i64,
        base_version: u64,
        #[serde(borrow)]
        rows: Vec<WrittenRow<'w>>,
    },
    Inner {
        #[serde(borrow)]
        children: Vec<WrittenChild<'w>>,
    },
}

#[derive(Serialize, Deserialize)]
struct WrittenPath<'w> {
    /// The length of the prefix shared with the path before, in bytes.
    shared: u16,
    rest: &'w [u8],
}

#[derive(Serialize, Deserialize)]
struct WrittenRow<'w> {
    #[serde(borrow)]
    path: WrittenPath<'w>,
    created_at: i64,
    file: Option<WrittenFile>,
}

#[derive(Serialize, Deserialize)]
struct WrittenFile {
    version: i64,
    modified_at: i64,
    size_bytes: u64,
    hash: [u8; 32],
}

#[derive(Serialize, Deserialize)]
struct WrittenChild<'w> {
    #[serde(borrow)]
    path: WrittenPath<'w>,
    entries: u64,
    size_bytes: u64,
    /// How much older the child's pack is.
    pack_distance: i64,
    index: u32,
}

/// Writes paths without the prefix that they share with the one before.
#[derive(Default)]
struct Shortened<'w>(&'w [u8]);

impl<'w> Shortened<'w> {
    fn next(&mut self, path: &'w VfsPath) -> WrittenPath<'w> {
        let path = path.as_str().as_bytes();
        let shared = self.0.iter().zip(path).take_while(|(one, other)| one == other).count();
        self.0 = path;
        WrittenPath { shared: shared as u16, rest: &path[shared..] }
    }
}

/// Reads what [`Shortened`] wrote.
#[derive(Default)]
struct Lengthened(Vec<u8>);

impl Lengthened {
    fn next(&mut self, written: &WrittenPath<'_>) -> Result<SharedPath> {
        self.0.truncate(written.shared.into());
        self.0.extend_from_slice(written.rest);
        let text = std::str::from_utf8(&self.0).map_err(|error| unreadable().with_source(error))?;
        SharedPath::of_normal(text).ok_or_else(unreadable)
    }
}

fn write_page(
    page: &Page,
    pack: u64,
    ids: &HashMap<*const Link, PageId>,
    bodies: &HashMap<*const StateNode, StoredBody>,
) -> Result<Vec<u8>> {
    let mut paths = Shortened::default();
    let written = match page {
        Page::Leaf(rows) => {
            let base_time = rows.first().map_or(0, |row| row.node.created_at().as_microsecond());
            let base_version = rows.iter().find_map(|row| row.node.version()).map_or(0, Version::number);
            let rows = rows.iter().map(|Row { path, node }| {
                let file = match node.version() {
                    None => None,
                    Some(version) => {
                        let body = bodies.get(&Arc::as_ptr(node)).or(node.body()).ok_or_else(unwritten)?;
                        Some(WrittenFile {
                            version: version.number().wrapping_sub(base_version) as i64,
                            modified_at: node.modified_at().unwrap_or_default().as_microsecond().wrapping_sub(base_time),
                            size_bytes: node.size_bytes(),
                            hash: body.hash,
                        })
                    }
                };
                Ok(WrittenRow { path: paths.next(path), created_at: node.created_at().as_microsecond().wrapping_sub(base_time), file })
            });
            Written::Leaf { base_time, base_version, rows: rows.collect::<Result<_>>()? }
        }
        Page::Inner(children) => {
            let children = children.iter().map(|Child { first, totals, link }| {
                let id = ids.get(&Arc::as_ptr(link)).copied().or(link.id()).ok_or_else(unwritten)?;
                Ok(WrittenChild {
                    path: paths.next(first),
                    entries: totals.entries,
                    size_bytes: totals.size_bytes,
                    pack_distance: pack.wrapping_sub(id.pack) as i64,
                    index: id.index,
                })
            });
            Written::Inner { children: children.collect::<Result<_>>()? }
        }
    };
    encode(&written)
}

fn unwritten() -> Error {
    Error::new(ErrorKind::Internal, "a page was to be written before those beneath it")
}

/// Reads a page of a pack.
pub(super) fn read_page(bytes: &[u8], origin: u32, pack: u64) -> Result<Page> {
    let mut paths = Lengthened::default();
    match decode(bytes)? {
        Written::Leaf { base_time, base_version, rows } => {
            let rows = rows.into_iter().map(|row| {
                let created_at = time(base_time.wrapping_add(row.created_at))?;
                let node = match row.file {
                    None => StateNode::directory(created_at),
                    Some(WrittenFile { version, modified_at, size_bytes, hash }) => {
                        let version = Version::new(base_version.wrapping_add(version as u64));
                        let modified_at = time(base_time.wrapping_add(modified_at))?;
                        StateNode::saved_file(StoredBody { origin, hash }, size_bytes, version, created_at, modified_at)
                    }
                };
                Ok(Row { path: paths.next(&row.path)?, node: Arc::new(node) })
            });
            Ok(Page::Leaf(rows.collect::<Result<_>>()?))
        }
        Written::Inner { children } => {
            if children.is_empty() {
                return Err(unreadable());
            }
            let children = children.into_iter().map(|child| {
                let id = PageId { origin, pack: pack.wrapping_sub(child.pack_distance as u64), index: child.index };
                let totals = Totals { entries: child.entries, size_bytes: child.size_bytes };
                Ok(Child { first: paths.next(&child.path)?, totals, link: Link::stored_at(id) })
            });
            Ok(Page::Inner(children.collect::<Result<_>>()?))
        }
    }
}

/// Returns the hash of a content.
fn hash(content: &[u8]) -> [u8; 32] {
    let mut hasher = blake3::Hasher::new();
    for part in content.chunks(LOOK_BYTES) {
        work::advance(part.len());
        hasher.update(part);
    }
    *hasher.finalize().as_bytes()
}

/// Returns the key of a pack.
pub(super) fn pack_key(pack: u64) -> String {
    format!("{pack:016x}")
}

/// Returns the key of a content.
pub(super) fn body_key(hash: &[u8; 32]) -> String {
    blake3::Hash::from_bytes(*hash).to_hex().to_string()
}

/// The parts of a tree that are not stored yet.
#[derive(Default)]
pub(super) struct Unsaved {
    /// The packs, by number.
    pub(super) packs: Vec<(u64, Vec<u8>)>,
    /// The contents, by hash.
    pub(super) bodies: BTreeMap<[u8; 32], Bytes>,
    /// Where the root will be stored.
    pub(super) root: Option<PageId>,
    /// Whether some of it is already stored in a source that must not be relied on.
    is_copy: bool,
    /// The pages, with where and as what they are stored.
    saved_pages: Vec<(Arc<Link>, PageId, Vec<u8>)>,
    saved_nodes: Vec<(Arc<StateNode>, StoredBody)>,
}

impl Unsaved {
    /// Collects the parts of a tree that are not in the source that it may rely on. All of them must be in memory. They will be stored in
    /// the source `origin`, with `pack` as the number of the first pack.
    pub(super) fn of(root: &Arc<Link>, relied_on: Option<u32>, origin: u32, pack: u64) -> Result<Self> {
        let mut pages = Vec::new();
        collect(root, relied_on, &mut pages);
        let mut unsaved = Self { is_copy: pages.iter().any(|link| link.id().is_some()), ..Self::default() };
        let mut bodies = HashMap::new();
        for link in &pages {
            let Some(Page::Leaf(rows)) = link.loaded() else { continue };
            work::advance(PAGE_BYTES);
            for node in rows.iter().map(|row| &row.node).filter(|node| !node.is_directory()) {
                if node.body().is_some_and(|body| Some(body.origin) == relied_on) {
                    continue;
                }
                unsaved.is_copy |= node.body().is_some();
                let content = node.content().ok_or_else(unwritten)?;
                let hash = hash(content);
                let body = StoredBody { origin, hash };
                if !content.is_empty() {
                    unsaved.bodies.insert(hash, content.clone());
                }
                bodies.insert(Arc::as_ptr(node), body);
                unsaved.saved_nodes.push((node.clone(), body));
            }
        }
        let mut ids: HashMap<*const Link, PageId> = HashMap::new();
        let mut open = Pack { number: pack, ..Pack::default() };
        for link in pages {
            let page = link.loaded().ok_or_else(unwritten)?;
            work::advance(PAGE_BYTES);
            if open.size_bytes >= PACK_BYTES {
                unsaved.packs.push((open.number, open.finish()));
                open = Pack { number: open.number + 1, ..Pack::default() };
            }
            let bytes = write_page(page, open.number, &ids, &bodies)?;
            let id = PageId { origin, pack: open.number, index: open.pages.len() as u32 };
            open.push(&bytes);
            ids.insert(Arc::as_ptr(&link), id);
            unsaved.saved_pages.push((link, id, bytes));
        }
        if !open.pages.is_empty() {
            unsaved.packs.push((open.number, open.finish()));
        }
        unsaved.root = ids.get(&Arc::as_ptr(root)).copied().or(root.id());
        Ok(unsaved)
    }

    /// Returns whether pages can record where they were stored: a page has room for one location only.
    pub(super) fn can_be_marked(&self) -> bool {
        !self.is_copy
    }

    /// Records where each page was stored, and caches what was.
    pub(super) fn mark_saved(mut self, cache: &PageCache) {
        // So that contents that only the tree holds are not copied.
        self.bodies.clear();
        for (link, id, bytes) in self.saved_pages {
            link.set_id(id);
            if let Some(page) = link.loaded() {
                cache.insert_page(id, page, &bytes);
            }
        }
        for (node, body) in self.saved_nodes {
            node.set_body(body);
            if let Some(content) = node.content().filter(|content| !content.is_empty()) {
                cache.insert_body(body.origin, body.hash, content);
            }
        }
    }

    /// Returns the total size of the contents in bytes.
    pub(super) fn body_bytes(&self) -> usize {
        self.bodies.values().map(Bytes::len).sum()
    }
}

/// Loads the parts of a state that are stored only in sources that must not be relied on, because they must be stored again.
pub(super) async fn load_foreign(state: &StateSnapshot, relied_on: Option<u32>) -> Result<()> {
    let Some(source) = state.source() else { return Ok(()) };
    let mut links = vec![state.root().clone()];
    while let Some(link) = links.pop() {
        match link.id() {
            Some(id) if Some(id.origin) == relied_on => continue,
            Some(id) if link.loaded().is_none() => source.pages(&[id]).await?.into_iter().for_each(|page| link.load(page)),
            _ => {}
        }
        match link.loaded() {
            Some(Page::Inner(children)) => links.extend(children.iter().map(|child| child.link.clone())),
            Some(Page::Leaf(rows)) => load_bodies(rows, &**source, relied_on).await?,
            None => {}
        }
    }
    Ok(())
}

async fn load_bodies(rows: &[Row], source: &dyn PageSource, relied_on: Option<u32>) -> Result<()> {
    let unread = rows.iter().map(|row| &row.node).filter(|node| !node.is_directory() && node.content().is_none());
    let unread: Vec<_> = unread.filter_map(|node| Some((node, node.body()?))).filter(|(_, body)| Some(body.origin) != relied_on).collect();
    if unread.is_empty() {
        return Ok(());
    }
    let hashes: Vec<[u8; 32]> = unread.iter().map(|(_, body)| body.hash).collect();
    let contents = source.bodies(&hashes).await?;
    unread.iter().zip(contents).for_each(|((node, _), content)| node.load(content));
    Ok(())
}

/// Collects the pages that are not in the relied-on source, children first.
fn collect(link: &Arc<Link>, relied_on: Option<u32>, into: &mut Vec<Arc<Link>>) {
    if link.id().is_some_and(|id| Some(id.origin) == relied_on) {
        return;
    }
    if let Some(Page::Inner(children)) = link.loaded() {
        children.iter().for_each(|child| collect(&child.link, relied_on, into));
    }
    into.push(link.clone());
}

/// Pages that are stored together.
#[derive(Default)]
struct Pack {
    number: u64,
    pages: Vec<Vec<u8>>,
    size_bytes: usize,
}

impl Pack {
    fn push(&mut self, page: &[u8]) {
        self.size_bytes += page.len();
        self.pages.push(page.to_vec());
    }

    fn finish(&self) -> Vec<u8> {
        let lengths: Vec<u32> = self.pages.iter().map(|page| page.len() as u32).collect();
        let mut bytes = postcard::to_stdvec(&lengths).expect("numbers always serialize");
        self.pages.iter().for_each(|page| bytes.extend_from_slice(page));
        bytes
    }
}

/// Returns the pages of a pack.
fn unpack(bytes: &[u8]) -> Result<Vec<&[u8]>> {
    let (lengths, mut rest): (Vec<u32>, &[u8]) = postcard::take_from_bytes(bytes).map_err(|error| unreadable().with_source(error))?;
    let mut pages = Vec::with_capacity(lengths.len());
    for length in lengths {
        let (page, behind) = rest.split_at_checked(length as usize).ok_or_else(unreadable)?;
        pages.push(page);
        rest = behind;
    }
    Ok(pages)
}

impl Pages {
    /// Reads pages from the store, and caches them.
    async fn read(&self, ids: &[PageId]) -> Result<Vec<Page>> {
        let mut packs: Vec<u64> = ids.iter().map(|id| id.pack).collect();
        packs.sort_unstable();
        packs.dedup();
        let keys: Vec<String> = packs.iter().map(|pack| pack_key(*pack)).collect();
        let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
        let items = self.store.get_many(&self.packs, &keys, true).await?;
        let mut found = HashMap::new();
        for (pack, item) in packs.iter().zip(&items) {
            let item = item.as_ref().ok_or_else(gone)?;
            found.insert(*pack, unpack(&item.value)?);
        }
        ids.iter()
            .map(|id| {
                let bytes = found.get(&id.pack).and_then(|pages| pages.get(id.index as usize)).ok_or_else(unreadable)?;
                let page = read_page(bytes, self.origin, id.pack)?;
                self.cache.insert_page(*id, &page, bytes);
                Ok(page)
            })
            .collect()
    }

    /// Reads contents from the store, checks them against their hashes, and caches them.
    async fn read_bodies(&self, hashes: &[[u8; 32]]) -> Result<Vec<Bytes>> {
        let keys: Vec<String> = hashes.iter().map(body_key).collect();
        let items = match keys.as_slice() {
            [] => Vec::new(),
            [key] => vec![self.store.get(&self.bodies, key).await?],
            keys => {
                let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
                self.store.get_many(&self.bodies, &keys, true).await?
            }
        };
        let check = |(item, hash): (Option<treehold_store::Item>, &[u8; 32])| match item {
            Some(item) if blake3::hash(&item.value).as_bytes() == hash => {
                self.cache.insert_body(self.origin, *hash, &item.value);
                Ok(item.value)
            }
            Some(_) => Err(unreadable()),
            None => Err(gone()),
        };
        items.into_iter().zip(hashes).map(check).collect()
    }
}

#[async_trait]
impl PageSource for Pages {
    async fn pages(&self, ids: &[PageId]) -> Result<Vec<Page>> {
        let mut pages: Vec<Option<Page>> = ids.iter().map(|id| self.cache.page(*id)).collect::<Result<_>>()?;
        let uncached: Vec<PageId> = ids.iter().zip(&pages).filter(|(_, page)| page.is_none()).map(|(id, _)| *id).collect();
        if !uncached.is_empty() {
            let mut read = self.read(&uncached).await?.into_iter();
            for page in pages.iter_mut().filter(|page| page.is_none()) {
                *page = read.next();
            }
        }
        Ok(pages.into_iter().flatten().collect())
    }

    async fn bodies(&self, hashes: &[[u8; 32]]) -> Result<Vec<Bytes>> {
        let mut contents: Vec<Option<Bytes>> = hashes.iter().map(|hash| self.cache.body(self.origin, hash)).collect();
        let uncached: Vec<[u8; 32]> =
            hashes.iter().zip(&contents).filter(|(_, content)| content.is_none()).map(|(hash, _)| *hash).collect();
        let mut read = self.read_bodies(&uncached).await?.into_iter();
        for content in contents.iter_mut().filter(|content| content.is_none()) {
            *content = read.next();
        }
        Ok(contents.into_iter().flatten().collect())
    }

    async fn body_part(&self, hash: &[u8; 32], size_bytes: u64, range: Range<u64>) -> Result<Bytes> {
        if let Some(content) = self.cache.body(self.origin, hash) {
            if content.len() as u64 != size_bytes {
                return Err(unreadable());
            }
            let within = treehold_store::within(&range, content.len() as u64);
            return Ok(content.slice(within.start as usize..within.end as usize));
        }
        let part = self.store.get_part(&self.bodies, &body_key(hash), range).await?.ok_or_else(gone)?;
        if part.value_bytes == size_bytes { Ok(part.item.value) } else { Err(unreadable()) }
    }
}

fn gone() -> Error {
    Error::new(
        ErrorKind::Corrupt,
        "a part of a saved tree is missing: its checkpoint was pruned meanwhile, or the store is damaged; open the \
            thread again, or run `treehold doctor`",
    )
}
