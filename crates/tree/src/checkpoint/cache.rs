//! A cache of recently read or written inner pages, decoded.
//!
//! Every lookup in a saved tree starts at its upper pages, and pages never change, so those of the trees in use are kept decoded. They are
//! kept without the pages beneath them, so that the size of the cache is known.

use crate::backend::{Child, Link, Page, PageId};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;

/// The number of pages in a generation: two generations take about 3 MiB at most.
const GENERATION: usize = 512;

/// A cache of two generations: evicts pages that were not used while the younger one filled.
#[derive(Debug, Default)]
pub(super) struct PageCache(Mutex<Generations>);

#[derive(Debug, Default)]
struct Generations {
    young: HashMap<PageId, Arc<[Child]>>,
    old: HashMap<PageId, Arc<[Child]>>,
}

impl Generations {
    fn insert(&mut self, id: PageId, children: Arc<[Child]>) {
        if self.young.len() >= GENERATION {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(id, children);
    }
}

impl PageCache {
    /// Returns a page if it is cached.
    pub(super) fn get(&self, id: PageId) -> Option<Page> {
        let children = {
            let mut generations = self.0.lock();
            match generations.young.get(&id) {
                Some(children) => children.clone(),
                None => {
                    let children = generations.old.remove(&id)?;
                    generations.insert(id, children.clone());
                    children
                }
            }
        };
        Some(Page::Inner(detached(&children)?))
    }

    /// Caches a page if it is an inner one whose children are all saved.
    pub(super) fn insert(&self, id: PageId, page: &Page) {
        if let Page::Inner(children) = page
            && let Some(children) = detached(children)
        {
            self.0.lock().insert(id, children.into());
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
        let cache = PageCache::default();
        for index in 0..10 * GENERATION as u32 {
            cache.insert(id(index), &page(index));
            let Some(Page::Inner(children)) = cache.get(id(0)) else { panic!("it is used all the time") };
            assert_eq!((children[0].link.id(), children[0].link.loaded().is_none()), (Some(id(1)), true));
        }
        assert!(cache.get(id(5)).is_none());
        let generations = cache.0.lock();
        assert!(generations.young.len() + generations.old.len() <= 2 * GENERATION);
    }

    #[test]
    fn leaves_and_unsaved_pages_are_not_cached() {
        let cache = PageCache::default();
        cache.insert(id(1), &Page::Leaf(Vec::new()));
        let Page::Inner(mut children) = page(2) else { unreachable!("the test made an inner page") };
        children[0].link = Link::new(Page::Leaf(Vec::new()));
        cache.insert(id(2), &Page::Inner(children));
        assert!(cache.get(id(1)).is_none() && cache.get(id(2)).is_none());
    }
}
