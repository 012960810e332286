//! The feed as news about one part of a tree, for code that keeps a copy of it.

use super::{Feed, FeedEvent, FeedTail, FeedView};
use futures::stream::{self, BoxStream, StreamExt};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;
use treehold_core::backoff::Backoff;
use treehold_core::error::Result;
use treehold_core::path::{VfsPath, VfsPathBuf};
use treehold_tree::backend::TreeNews;

/// How long to wait before a store that failed is asked again.
const AGAIN: Backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(10));

impl Feed {
    /// Follows the changes at and beneath a path from now on, as paths beneath it. The stream never ends; while the store fails, it reports
    /// that changes may be missed.
    ///
    /// Cost: as [`Feed::follow`].
    ///
    /// # Errors
    /// Those of [`Feed::follow`].
    pub async fn news(self: &Arc<Self>, view: FeedView, base: &VfsPath) -> Result<BoxStream<'static, TreeNews>> {
        let view = view.with_prefix(base);
        let now = self.position(&view).await?;
        let tail = self.follow(view, now).await?;
        let start = News { tail, base: base.to_owned(), ready: VecDeque::from([TreeNews::Live]), failures: 0 };
        Ok(stream::unfold(start, |mut news| async move {
            let next = news.next().await;
            Some((next, news))
        })
        .boxed())
    }
}

struct News {
    tail: FeedTail,
    base: VfsPathBuf,
    ready: VecDeque<TreeNews>,
    /// How often the store failed since it last answered.
    failures: u32,
}

impl News {
    async fn next(&mut self) -> TreeNews {
        loop {
            if let Some(ready) = self.ready.pop_front() {
                return ready;
            }
            if self.failures > 0 {
                AGAIN.wait(self.failures - 1).await;
            }
            match self.tail.next().await {
                Ok(event) => {
                    if std::mem::take(&mut self.failures) > 0 {
                        self.ready.push_back(TreeNews::Live);
                    }
                    self.ready.extend(changed(&self.base, &event).map(TreeNews::Changed));
                }
                Err(error) => {
                    if self.failures == 0 {
                        tracing::warn!(%error, "the changes of a tree cannot be followed; trying again");
                        self.ready.push_back(TreeNews::Lost);
                    }
                    self.failures += 1;
                }
            }
        }
    }
}

/// Returns the paths that an event changed, as paths beneath the base.
fn changed(base: &VfsPath, event: &FeedEvent) -> impl Iterator<Item = VfsPathBuf> {
    let paths = [Some(&event.path), event.target.as_ref()].into_iter().flatten();
    paths.filter_map(|path| match path.strip_prefix(base) {
        Some(beneath) => Some(beneath.to_owned()),
        // A directory above was replaced.
        None => base.starts_with(path).then(VfsPathBuf::root),
    })
}
