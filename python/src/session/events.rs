//! The events that a caller sees.

use super::PySession;
use crate::errors::raised;
use crate::feed::{Place, PyFeedTail};
use crate::values::timestamp;
use crate::work::{Work, operations};
use pyo3::prelude::*;
use std::sync::Arc;
use treehold::Error;
use treehold::feed::{Feed, FeedPage, FeedView};

operations! { PySession {
    #[pyo3(signature = (after = None, *, limit = 100))]
    fn feed, afeed(this, py, after: Option<Place>, limit: usize) {
        this.feed_work(py, after, limit)
    }

    #[pyo3(signature = (before = None, *, since = None, limit = 100))]
    fn timeline, atimeline(this, py, before: Option<Place>, since: Option<&Bound<'_, PyAny>>, limit: usize) {
        this.timeline_work(py, before, since, limit)
    }

    #[pyo3(signature = (after = None))]
    fn follow, afollow(this, py, after: Option<Place>) {
        this.follow_work(py, after)
    }
} }

impl PySession {
    fn events(&self, py: Python<'_>) -> PyResult<(Arc<Feed>, FeedView)> {
        let (workspace, session) = (self.workspace(py)?, self.session(py)?);
        let feed = workspace.feed().cloned();
        let feed = feed.ok_or_else(|| raised(py, Error::unsupported("this workspace records no events; set `events.save`")))?;
        Ok((feed, workspace.feed_view(session.scope()).map_err(|error| raised(py, error))?))
    }

    fn feed_work(&self, py: Python<'_>, after: Option<Place>, limit: usize) -> PyResult<Work<FeedPage>> {
        let (feed, view) = self.events(py)?;
        Ok(Work::new(async move {
            let after = match after {
                Some(after) => after.position()?,
                None => feed.position(&view).await?,
            };
            feed.after(&view, &after, limit).await
        }))
    }

    fn timeline_work(
        &self,
        py: Python<'_>,
        before: Option<Place>,
        since: Option<&Bound<'_, PyAny>>,
        limit: usize,
    ) -> PyResult<Work<FeedPage>> {
        let (feed, view) = self.events(py)?;
        let since = since.map(timestamp).transpose()?;
        Ok(Work::new(async move {
            let before = before.map(Place::position).transpose()?;
            feed.before(&view, before.as_ref(), since, limit).await
        }))
    }

    fn follow_work(&self, py: Python<'_>, after: Option<Place>) -> PyResult<Work<PyFeedTail>> {
        let (feed, view) = self.events(py)?;
        Ok(Work::new(async move {
            let after = match after {
                Some(after) => after.position()?,
                None => feed.position(&view).await?,
            };
            Ok(PyFeedTail::from(feed.follow(view, after).await?))
        }))
    }
}
