//! What a cache promises, over an owner that counts how often it is asked and can be away.

use super::*;
use crate::backend::{BackendExt, StateBackend};
use futures::channel::mpsc;
use std::sync::atomic::AtomicBool;
use treehold_core::path::VfsPathBuf;

/// An owner that counts what it is asked.
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

    async fn stat(&self, path: &VfsPath) -> Result<Entry> {
        self.ask("stat", path)?;
        self.tree.stat(path).await
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

/// A cache that a feed tells of changes, once the first news was heard.
async fn told(options: CacheOptions) -> (Arc<Owner>, CachedBackend<Arc<Owner>>, mpsc::UnboundedSender<TreeNews>) {
    let (owner, cache) = kept(options).await;
    let (news, feed) = mpsc::unbounded();
    let cache = cache.with_feed(feed.boxed());
    cache.listen();
    say(&cache, &news, TreeNews::Live).await;
    (owner, cache, news)
}

/// Says something, and waits until it was heard.
async fn say(_: &CachedBackend<Arc<Owner>>, news: &mpsc::UnboundedSender<TreeNews>, what: TreeNews) {
    news.unbounded_send(what).expect("somebody listens");
    // The runtime has one thread: the feed's task takes all there is and waits again.
    for _ in 0..10 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn without_a_feed_every_read_is_compared() {
    let (owner, cache) = kept(CacheOptions::new()).await;
    assert_eq!(cache.read_text("/d/a").await.expect("read"), "one\ntwo\n");
    assert_eq!(owner.take(), ["read /d/a"]);
    assert_eq!(cache.read_text("/d/a").await.expect("read"), "one\ntwo\n");
    let window = cache.read(&path("/d/a"), &ReadOptions::lines(1, 1)).await.expect("a window");
    assert_eq!((&window.content[..], window.size_bytes), (&b"two\n"[..], 8));
    assert_eq!(owner.take(), ["stat /d/a", "stat /d/a"]);
    owner.tree.write("/d/a", "other").await.expect("written behind the cache");
    assert_eq!(cache.read_text("/d/a").await.expect("read"), "other");
    assert_eq!(owner.take(), ["stat /d/a", "read /d/a"]);
    owner.tree.delete("/d/a").await.expect("deleted");
    assert_eq!(cache.read_text("/d/a").await.expect_err("gone").kind(), ErrorKind::NotFound);
    assert!(cache.ls(&path("/d"), &LsOptions::new()).await.expect("listed").entries.len() == 1);
    assert!(!cache.staleness().is_live);
}

#[tokio::test]
async fn with_a_feed_nothing_is_asked_until_it_changes() {
    let (owner, cache, news) = told(CacheOptions::new()).await;
    for _ in 0..3 {
        assert_eq!(cache.read_text("/d/a").await.expect("read"), "one\ntwo\n");
        assert_eq!(cache.ls(&path("/d"), &LsOptions::new()).await.expect("listed").entries.len(), 2);
        assert_eq!(cache.stat(&path("/d/b")).await.expect("there").size_bytes, 1);
    }
    assert_eq!(owner.take(), ["read /d/a", "ls /d", "stat /d/b"]);
    let second = cache.ls(&path("/d"), &LsOptions::new().with_limit(1).with_start_after("a")).await.expect("listed");
    assert_eq!((second.entries.len(), second.entries[0].name(), second.truncated), (1, "b", None));
    assert_eq!(owner.take(), [""; 0]);

    owner.tree.write("/d/a", "new").await.expect("written by another");
    say(&cache, &news, TreeNews::Changed(path("/d/a"))).await;
    assert_eq!(cache.read_text("/d/a").await.expect("read"), "new");
    cache.ls(&path("/d"), &LsOptions::new()).await.expect("listed");
    cache.stat(&path("/d/b")).await.expect("there");
    assert_eq!(owner.take(), ["read /d/a", "ls /d"], "what is beside it is kept");
}

#[tokio::test]
async fn after_a_gap_in_the_feed_everything_is_compared() {
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
        assert_eq!(owner.take(), [""; 0], "it was compared since");
    }
}

#[tokio::test]
async fn a_feed_that_ends_is_lost() {
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
async fn what_is_old_is_compared_although_the_feed_is_live() {
    let (owner, cache, _news) = told(CacheOptions::new().with_believed_for(Duration::from_secs(5))).await;
    cache.read_text("/d/a").await.expect("read");
    owner.take();
    tokio::time::advance(Duration::from_secs(4)).await;
    cache.read_text("/d/a").await.expect("read");
    assert_eq!(owner.take(), [""; 0]);
    tokio::time::advance(Duration::from_secs(1)).await;
    owner.tree.write("/d/a", "behind").await.expect("written, and no feed tells");
    assert_eq!(cache.read_text("/d/a").await.expect("read"), "behind");
}

#[tokio::test]
async fn a_change_goes_to_the_owner_and_is_seen_at_once() {
    let (owner, cache, _news) = told(CacheOptions::new()).await;
    cache.read_text("/d/a").await.expect("read");
    cache.ls(&path("/d"), &LsOptions::new()).await.expect("listed");
    cache.edit("/d/a", "one", "1").await.expect("edited");
    assert_eq!(cache.read_text("/d/a").await.expect("read"), "1\ntwo\n");
    cache.rename("/d", "/e").await.expect("renamed");
    assert_eq!(cache.read_text("/d/a").await.expect_err("it moved").kind(), ErrorKind::NotFound);
    assert_eq!(cache.read_text("/e/a").await.expect("read"), "1\ntwo\n");
    owner.take();
    // A change whose answer does not come may have had an effect.
    owner.is_away.store(true, Ordering::Relaxed);
    cache.write("/e/a", "2").await.expect_err("away");
    owner.is_away.store(false, Ordering::Relaxed);
    owner.take();
    cache.read_text("/e/a").await.expect("read");
    assert_eq!(owner.take(), ["read /e/a"]);
}

#[tokio::test]
async fn an_owner_that_is_away_is_told_of_or_stood_in_for() {
    let (owner, cache) = kept(CacheOptions::new()).await;
    cache.read_text("/d/a").await.expect("read");
    owner.is_away.store(true, Ordering::Relaxed);
    assert_eq!(cache.read_text("/d/a").await.expect_err("away").kind(), ErrorKind::Unavailable);
    assert_eq!(cache.staleness().stale_count, 0);

    let (owner, cache) = kept(CacheOptions::new().with_serve_stale(true)).await;
    cache.read_text("/d/a").await.expect("read");
    cache.stat(&path("/d/a")).await.expect("there");
    cache.ls(&path("/d"), &LsOptions::new()).await.expect("listed");
    owner.is_away.store(true, Ordering::Relaxed);
    owner.take();
    assert_eq!(cache.read_text("/d/a").await.expect("stale"), "one\ntwo\n");
    cache.stat(&path("/d/a")).await.expect("stale");
    assert_eq!(cache.ls(&path("/d"), &LsOptions::new()).await.expect("stale").entries.len(), 2);
    assert_eq!(owner.take(), ["stat /d/a"], "it is not asked again at once");
    let staleness = cache.staleness();
    assert_eq!((staleness.stale_count, staleness.away_since.is_some()), (3, true));
    assert_eq!(cache.read_text("/d/b").await.expect_err("not kept").kind(), ErrorKind::Unavailable);
    assert_eq!(cache.write("/d/a", "x").await.expect_err("away").kind(), ErrorKind::Unavailable);
    owner.is_away.store(false, Ordering::Relaxed);
    assert_eq!(cache.read_text("/d/b").await.expect("it is back"), "b");
    assert_eq!(cache.staleness().away_since, None);
}

#[tokio::test]
async fn a_large_file_is_not_kept() {
    let (owner, cache, _news) = told(CacheOptions::new().with_file_bytes_max(4)).await;
    for _ in 0..2 {
        assert_eq!(cache.read_text("/d/a").await.expect("read"), "one\ntwo\n");
    }
    assert_eq!(owner.take(), ["read /d/a", "read /d/a", "read /d/a"], "it is found out once");
    assert!(cache.staleness().bytes < 1_000);
}

#[tokio::test]
async fn the_bound_is_kept_whatever_is_read() {
    let (owner, cache) = kept(CacheOptions::new().with_bytes_max(20_000)).await;
    for number in 0..100 {
        owner.tree.write(&format!("/d/{number}"), vec![b'x'; 1_000]).await.expect("written");
    }
    for number in 0..100 {
        cache.read_bytes(&format!("/d/{number}")).await.expect("read");
        cache.stat(&path(&format!("/d/{number}"))).await.expect("there");
        assert!(cache.staleness().bytes <= 20_000);
    }
    assert!(cache.staleness().bytes > 10_000);
}
