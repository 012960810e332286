//! A cache of recently read or written pages and contents, so that a request on a thread that this process has seen reads only its head.
//!
//! Neither ever changes under its name, so the head, which names the root, says whether they are current. Inner pages are kept decoded,
//! because every lookup starts at them, and without the pages beneath them. Leaves are kept as they are stored, and decoded for each
//! reader: a shared leaf would keep every content that a reader loads into it. So the size of the cache is known.

use super::pages::read_page;
use crate::backend::{Child, Link, Page, PageId};
use bytes::Bytes;
use parking_lot::Mutex;
use std::sync::Arc;
use treehold_core::error::Result;
use treehold_core::recent::Recent;

/// How many bytes of contents a cache holds at most, unless told otherwise.
pub(super) const BODY_BYTES_MAX: usize = 16 << 20;

/// Contents of more than this share of the cache are not kept, so that one large file does not displace many small ones.
const BODY_SHARE: usize = 16;

/// About how many bytes an entry takes besides what it holds.
const ENTRY_BYTES: usize = 96;

/// A cache of pages and contents.
#[derive(Debug)]
pub(super) struct PageCache {
    pages: Mutex<Recent<PageId, Kept>>,
    bodies: Mutex<Recent<(u32, [u8; 32]), Bytes>>,
}

/// A page without those beneath it.
#[derive(Debug, Clone)]
enum Kept {
    Inner(Arc<[Child]>),
    /// As it is stored.
    Leaf(Bytes),
}

impl Default for PageCache {
    fn default() -> Self {
        Self::new(BODY_BYTES_MAX)
    }
}

impl PageCache {
    /// Makes a cache for so many bytes of contents, and half as many of pages besides.
    pub(super) fn new(body_bytes_max: usize) -> Self {
        Self { pages: Mutex::new(Recent::new(body_bytes_max / 2)), bodies: Mutex::new(Recent::new(body_bytes_max)) }
    }

    /// Returns a page if it is cached.
    ///
    /// # Errors
    /// Those of decoding it.
    pub(super) fn page(&self, id: PageId) -> Result<Option<Page>> {
        let kept = self.pages.lock().get(&id);
        match kept {
            None => Ok(None),
            Some(Kept::Inner(children)) => Ok(detached(&children).map(Page::Inner)),
            Some(Kept::Leaf(bytes)) => read_page(&bytes, id.origin, id.pack).map(Some),
        }
    }

    /// Caches a page, given as it is stored, unless a page beneath it is not saved.
    pub(super) fn insert_page(&self, id: PageId, page: &Page, bytes: &[u8]) {
        let kept = match page {
            Page::Leaf(_) => Kept::Leaf(Bytes::copy_from_slice(bytes)),
            Page::Inner(children) => match detached(children) {
                Some(children) => Kept::Inner(children.into()),
                None => return,
            },
        };
        let decoded = match &kept {
            Kept::Inner(children) => {
                let paths: usize = children.iter().map(|child| child.first.as_str().len()).sum();
                size_of_val(&**children) + children.len() * ENTRY_BYTES + paths
            }
            Kept::Leaf(_) => 0,
        };
        self.pages.lock().insert(id, kept, bytes.len() + decoded + ENTRY_BYTES);
    }

    /// Forgets all contents, after some were removed from the store.
    pub(super) fn forget_bodies(&self) {
        self.bodies.lock().clear();
    }

    /// Returns a content if it is cached.
    pub(super) fn body(&self, origin: u32, hash: &[u8; 32]) -> Option<Bytes> {
        self.bodies.lock().get(&(origin, *hash))
    }

    /// Caches a content, unless it is large.
    pub(super) fn insert_body(&self, origin: u32, hash: [u8; 32], content: &Bytes) {
        let mut bodies = self.bodies.lock();
        if content.len() <= bodies.weight_max() / BODY_SHARE {
            // A slice would keep what it was cut from.
            let content = if content.is_unique() { content.clone() } else { Bytes::copy_from_slice(content) };
            let bytes = content.len();
            bodies.insert((origin, hash), content, bytes + ENTRY_BYTES);
        }
    }
}

/// Returns the children as links to stored pages, without the pages themselves.
fn detached(children: &[Child]) -> Option<Vec<Child>> {
    let detach = |child: &Child| Some(Child { link: Link::stored_at(child.link.id()?), ..child.clone() });
    children.iter().map(detach).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::Totals;
    use treehold_core::path::{SharedPath, VfsPath};

    fn id(index: u32) -> PageId {
        PageId { origin: 1, pack: 1, index }
    }

    fn page(index: u32) -> Page {
        let first = SharedPath::from(&*VfsPath::parse("/a").expect("a legal path"));
        let link = Link::stored_at(id(index + 1));
        link.load(Page::Leaf(Vec::new()));
        Page::Inner(vec![Child { first, totals: Totals::default(), link }])
    }

    #[test]
    fn used_pages_stay_cached_without_their_children() {
        const COUNT: u32 = 100_000;
        let cache = PageCache::default();
        for index in 0..COUNT {
            cache.insert_page(id(index), &page(index), &[0; 100]);
            let Ok(Some(Page::Inner(children))) = cache.page(id(0)) else { panic!("it is used all the time") };
            assert_eq!((children[0].link.id(), children[0].link.loaded().is_none()), (Some(id(1)), true));
        }
        assert!(cache.page(id(5)).expect("readable").is_none());
        assert!(cache.page(id(COUNT - 1)).expect("readable").is_some());
    }

    #[test]
    fn unsaved_pages_are_not_cached() {
        let cache = PageCache::default();
        let Page::Inner(mut children) = page(2) else { unreachable!("the test made an inner page") };
        children[0].link = Link::new(Page::Leaf(Vec::new()));
        cache.insert_page(id(2), &Page::Inner(children), &[]);
        assert!(cache.page(id(2)).expect("readable").is_none());
    }

    #[test]
    fn contents_take_no_more_than_their_share() {
        const BYTES_MAX: usize = 1 << 20;
        let cache = PageCache::new(BYTES_MAX);
        let hash = |number: u32| *blake3::hash(&number.to_le_bytes()).as_bytes();
        let held = |cache: &PageCache| {
            let bodies = cache.bodies.lock();
            let sizes = bodies.entries().map(|(content, bytes)| {
                assert!(bytes >= content.len());
                bytes
            });
            sizes.sum::<usize>()
        };
        for number in 0..10_000 {
            let size = (number as usize * 7_919) % 70_000;
            cache.insert_body(1, hash(number), &Bytes::from(vec![7; size]));
            assert!(held(&cache) <= BYTES_MAX, "{number}");
            assert_eq!(cache.body(1, &hash(number)).is_some(), size <= BYTES_MAX / BODY_SHARE, "{number}");
            assert!(cache.body(2, &hash(number)).is_none(), "of another user");
        }
        cache.insert_body(1, hash(1), &Bytes::from_static(b"again"));
        cache.insert_body(1, hash(1), &Bytes::from_static(b"again"));
        assert!(held(&cache) <= BYTES_MAX && held(&cache) > BYTES_MAX / 3);
    }
}
