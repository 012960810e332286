//! The contract of a cache, tested over an owner that records its calls and can be unreachable.

use super::*;
use crate::backend::{BackendExt, StateBackend};
use futures::channel::mpsc;
use std::sync::atomic::AtomicBool;
use treehold_core::ops::{Capabilities, GlobOptions, GlobResult, GrepOptions, GrepResult, Review, SearchOptions, SearchResult, Sight};
use treehold_core::path::VfsPathBuf;

/// An owner that records its calls.
#[derive(Debug, Default)]
struct Owner {
    tree: StateBackend,
    asked: Mutex<Vec<String>>,
    is_away: AtomicBool,
}

impl Owner {
    fn ask(&self, what: &str, path: &VfsPath) -> Result<()> {
        self.asked.lock().push(format!("{what} {path}"));
        if self.is_away.load(Ordering::Relaxed) {
            return Err(Error::new(ErrorKind::Unavailable, "`https://owner` cannot be reached").at(path));
        }
        Ok(())
    }

    fn take(&self) -> Vec<String> {
        std::mem::take(&mut *self.asked.lock())
    }
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Owner")
    }
}

#[async_trait]
impl Backend for Owner {
    fn capabilities(&self) -> Capabilities {
        self.tree.capabilities()
    }

    async fn stat(&self, path: &VfsPath, options: &StatOptions) -> Result<Entry> {
        self.ask("stat", path)?;
        self.tree.stat(path, options).await
    }

    async fn read(&self, path: &VfsPath, options: &ReadOptions) -> Result<FileRead> {
        self.ask("read", path)?;
        self.tree.read(path, options).await
    }

    async fn ls(&self, path: &VfsPath, options: &LsOptions) -> Result<Listing> {
        self.ask("ls", path)?;
        self.tree.ls(path, options).await
    }

    async fn glob(&self, path: &VfsPath, options: &GlobOptions) -> Result<GlobResult> {
        self.ask("glob", path)?;
        self.tree.glob(path, options).await
    }

    async fn grep(&self, path: &VfsPath, options: &GrepOptions) -> Result<GrepResult> {
        self.ask("grep", path)?;
        self.tree.grep(path, options).await
    }

    async fn search(&self, path: &VfsPath, options: &SearchOptions) -> Result<SearchResult> {
        self.ask("search", path)?;
        self.tree.search(path, options).await
    }

    async fn apply(&self, changes: &[Change], options: &ApplyOptions) -> Result<Vec<Changed>> {
        self.ask("apply", changes[0].path())?;
        self.tree.apply(changes, options).await
    }

    async fn review(&self, review: &Review) -> Result<Vec<Sight>> {
        Ok(review.open())
    }
}

fn path(text: &str) -> VfsPathBuf {
    VfsPathBuf::parse(text).expect("a legal path")
}

async fn kept(options: CacheOptions) -> (Arc<Owner>, CachedBackend<Arc<Owner>>) {
    let owner = Arc::new(Owner::default());
    owner.tree.write("/d/a", "one\ntwo\n").await.expect("written");
    owner.tree.write("/d/b", "b").await.expect("written");
    (owner.clone(), CachedBackend::new(owner, options))
}

/// Returns a cache with a feed, after it has received the first news.
async fn told(options: CacheOptions) -> (Arc<Owner>, CachedBackend<Arc<Owner>>, mpsc::UnboundedSender<TreeNews>) {
    let (owner, cache) = kept(options).await;
    let (news, feed) = mpsc::unbounded();
    let cache = cache.with_feed(feed.boxed());
    cache.listen();
    say(&cache, &news, TreeNews::Live).await;
    (owner, cache, news)
}

/// Sends news, and waits until the cache has received it.
async fn say(_: &CachedBackend<Arc<Owner>>, news: &mpsc::UnboundedSender<TreeNews>, what: TreeNews) {
    news.unbounded_send(what).expect("somebody listens");
    // The runtime has one thread: the feed's task receives everything sent and waits again.
    for _ in 0..10 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn every_read_is_revalidated_without_a_feed() {
    let (owner, cache) = kept(CacheOptions::new()).await;
    assert_eq!(cache.read_text("/d/a").await.expect("read"), "one\ntwo\n");
    assert_eq!(owner.take(), ["read /d/a"]);
    assert_eq!(cache.read_text("/d/a").await.expect("read"), "one\ntwo\n");
    let window = cache.read(&path("/d/a"), &ReadOptions::lines(1, 1)).await.expect("a window");
    assert_eq!((&window.content[..], window.size_bytes), (&b"two\n"[..], 8));
    assert_eq!(owner.take(), ["stat /d/a", "stat /d/a"]);
    owner.tree.write("/d/a", "other").await.expect("the owner's tree is writable");
    assert_eq!(cache.read_text("/d/a").await.expect("read"), "other");
    assert_eq!(owner.take(), ["stat /d/a", "read /d/a"]);
    owner.tree.delete("/d/a").await.expect("deleted");
    assert_eq!(cache.read_text("/d/a").await.expect_err("gone").kind(), ErrorKind::NotFound);
    assert!(cache.ls(&path("/d"), &LsOptions::new()).await.expect("listed").entries.len() == 1);
    assert!(!cache.staleness().is_live);
}

#[tokio::test]
async fn cached_content_is_served_without_requests_until_the_feed_reports_a_change() {
    let (owner, cache, news) = told(CacheOptions::new()).await;
    for _ in 0..3 {
        assert_eq!(cache.read_text("/d/a").await.expect("read"), "one\ntwo\n");
        assert_eq!(cache.ls(&path("/d"), &LsOptions::new()).await.expect("listed").entries.len(), 2);
        assert_eq!(cache.stat(&path("/d/b"), &StatOptions::new()).await.expect("there").size_bytes, 1);
    }
    assert_eq!(owner.take(), ["read /d/a", "ls /d", "stat /d/b"]);
    let second = cache.ls(&path("/d"), &LsOptions::new().with_limit(1).with_start_after("a")).await.expect("listed");
    assert_eq!((second.entries.len(), second.entries[0].name(), second.truncated), (1, "b", None));
    assert_eq!(owner.take(), [""; 0]);

    owner.tree.write("/d/a", "new").await.expect("written by another");
    say(&cache, &news, TreeNews::Changed(path("/d/a"))).await;
    assert_eq!(cache.read_text("/d/a").await.expect("read"), "new");
    cache.ls(&path("/d"), &LsOptions::new()).await.expect("listed");
    cache.stat(&path("/d/b"), &StatOptions::new()).await.expect("there");
    assert_eq!(owner.take(), ["read /d/a", "ls /d"], "siblings stay cached");
}

#[tokio::test]
async fn gap_in_the_feed_causes_revalidation_of_everything() {
    for gap in [vec![TreeNews::Lost, TreeNews::Live], vec![TreeNews::Reset]] {
        let (owner, cache, news) = told(CacheOptions::new()).await;
        cache.read_text("/d/a").await.expect("read");
        cache.ls(&path("/d"), &LsOptions::new()).await.expect("listed");
        owner.take();
        for told in gap {
            say(&cache, &news, told).await;
        }
        cache.read_text("/d/a").await.expect("read");
        cache.ls(&path("/d"), &LsOptions::new()).await.expect("listed");
        assert_eq!(owner.take(), ["stat /d/a", "ls /d"]);
        cache.read_text("/d/a").await.expect("read");
        assert_eq!(owner.take(), [""; 0], "the file was validated meanwhile");
    }
}

#[tokio::test]
async fn ended_feed_counts_as_lost() {
    let (owner, cache, news) = told(CacheOptions::new()).await;
    cache.read_text("/d/a").await.expect("read");
    assert!(cache.staleness().is_live);
    drop(news);
    for _ in 0..10 {
        tokio::task::yield_now().await;
    }
    assert!(!cache.staleness().is_live);
    owner.take();
    cache.read_text("/d/a").await.expect("read");
    assert_eq!(owner.take(), ["stat /d/a"]);
}

#[tokio::test(start_paused = true)]
async fn old_content_is_revalidated_even_with_a_live_feed() {
    let (owner, cache, _news) = told(CacheOptions::new().with_believed_for(Duration::from_secs(5))).await;
    cache.read_text("/d/a").await.expect("read");
    owner.take();
    tokio::time::advance(Duration::from_secs(4)).await;
    cache.read_text("/d/a").await.expect("read");
    assert_eq!(owner.take(), [""; 0]);
    tokio::time::advance(Duration::from_secs(1)).await;
    owner.tree.write("/d/a", "behind").await.expect("the owner's tree is writable");
    assert_eq!(cache.read_text("/d/a").await.expect("read"), "behind");
}

#[tokio::test]
async fn change_is_sent_to_the_owner_and_visible_at_once() {
    let (owner, cache, _news) = told(CacheOptions::new()).await;
    cache.read_text("/d/a").await.expect("read");
    cache.ls(&path("/d"), &LsOptions::new()).await.expect("listed");
    cache.edit("/d/a", "one", "1").await.expect("edited");
    assert_eq!(cache.read_text("/d/a").await.expect("read"), "1\ntwo\n");
    cache.rename("/d", "/e").await.expect("renamed");
    assert_eq!(cache.read_text("/d/a").await.expect_err("it moved").kind(), ErrorKind::NotFound);
    assert_eq!(cache.read_text("/e/a").await.expect("read"), "1\ntwo\n");
    owner.take();
    // A change without an answer may have taken effect.
    owner.is_away.store(true, Ordering::Relaxed);
    cache.write("/e/a", "2").await.expect_err("away");
    owner.is_away.store(false, Ordering::Relaxed);
    owner.take();
    cache.read_text("/e/a").await.expect("read");
    assert_eq!(owner.take(), ["read /e/a"]);
}

#[tokio::test]
async fn unreachable_owner_is_an_error_or_served_from_the_cache() {
    let (owner, cache) = kept(CacheOptions::new()).await;
    cache.read_text("/d/a").await.expect("read");
    owner.is_away.store(true, Ordering::Relaxed);
    assert_eq!(cache.read_text("/d/a").await.expect_err("away").kind(), ErrorKind::Unavailable);
    assert_eq!(cache.staleness().stale_count, 0);

    let (owner, cache) = kept(CacheOptions::new().with_serve_stale(true)).await;
    cache.read_text("/d/a").await.expect("read");
    cache.stat(&path("/d/a"), &StatOptions::new()).await.expect("there");
    cache.ls(&path("/d"), &LsOptions::new()).await.expect("listed");
    owner.is_away.store(true, Ordering::Relaxed);
    owner.take();
    assert_eq!(cache.read_text("/d/a").await.expect("stale"), "one\ntwo\n");
    cache.stat(&path("/d/a"), &StatOptions::new()).await.expect("stale");
    assert_eq!(cache.ls(&path("/d"), &LsOptions::new()).await.expect("stale").entries.len(), 2);
    assert_eq!(owner.take(), ["stat /d/a"], "an unreachable owner is not contacted again at once");
    let staleness = cache.staleness();
    assert_eq!((staleness.stale_count, staleness.away_since.is_some()), (3, true));
    assert_eq!(cache.read_text("/d/b").await.expect_err("not kept").kind(), ErrorKind::Unavailable);
    assert_eq!(cache.write("/d/a", "x").await.expect_err("away").kind(), ErrorKind::Unavailable);
    owner.is_away.store(false, Ordering::Relaxed);
    assert_eq!(cache.read_text("/d/b").await.expect("it is back"), "b");
    assert_eq!(cache.staleness().away_since, None);
}

#[tokio::test]
async fn large_file_is_not_cached() {
    let (owner, cache, _news) = told(CacheOptions::new().with_file_bytes_max(4)).await;
    for _ in 0..2 {
        assert_eq!(cache.read_text("/d/a").await.expect("read"), "one\ntwo\n");
    }
    assert_eq!(owner.take(), ["read /d/a", "read /d/a", "read /d/a"], "only the first read learns that the file is too large");
    assert!(cache.staleness().bytes < 1_000);
}

#[tokio::test]
async fn cache_stays_within_its_bound_for_any_reads() {
    let (owner, cache) = kept(CacheOptions::new().with_bytes_max(20_000)).await;
    for number in 0..100 {
        owner.tree.write(&format!("/d/{number}"), vec![b'x'; 1_000]).await.expect("written");
    }
    for number in 0..100 {
        cache.read_bytes(&format!("/d/{number}")).await.expect("read");
        cache.stat(&path(&format!("/d/{number}")), &StatOptions::new()).await.expect("there");
        assert!(cache.staleness().bytes <= 20_000);
    }
    assert!(cache.staleness().bytes > 10_000);
}
