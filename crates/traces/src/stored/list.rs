//! Lists the traces of a user.

use super::rows::{Head, corrupt, description_key, head_key, kind, trace_of};
use super::text::page_limit;
use super::trace::no_description;
use super::{StoredTraces, recent};
use crate::contract::{TracePage, TracesQuery};
use crate::id::TraceId;
use crate::model::{TraceMode, TraceStatus};
use treehold_core::error::{Error, Result};
use treehold_core::json::stored;
use treehold_store::ScanOptions;

/// The most traces of a page.
const TRACES_MAX: usize = 100;

impl StoredTraces {
    /// Returns a page of the user's traces, newest first. Cost: three round trips, however many traces there are.
    pub(super) async fn list(&self, query: &TracesQuery) -> Result<TracePage> {
        let mut query = query.clone();
        loop {
            let page = self.list_once(&query).await?;
            // All traces of the page were deleted while it was read. An empty page would look like the last one.
            if !page.traces.is_empty() || page.next.is_none() {
                return Ok(page);
            }
            query.cursor = page.next;
        }
    }

    async fn list_once(&self, query: &TracesQuery) -> Result<TracePage> {
        let limit = page_limit(query.limit, TRACES_MAX)?;
        let prefix = recent::prefix(query.status, query.mode);
        let mut options = ScanOptions::new().with_prefix(&prefix).with_limit(limit);
        if let Some(cursor) = &query.cursor {
            check_cursor(cursor)?;
            options = options.with_start_after(format!("{prefix}{cursor}"));
        }
        let kinds = kinds(query);
        let (listed, rows) = (self.rows.recent()?, &self.rows);
        let (page, total) = futures::try_join!(self.store().scan(&listed, options), recent::total(self.store(), rows, &kinds))?;
        let mut ids = Vec::with_capacity(page.entries.len());
        for entry in &page.entries {
            let position = entry.key().strip_prefix(&prefix);
            let id = position.and_then(|position| position.get(POSITION_DIGITS..)).and_then(|id| TraceId::new(id).ok());
            ids.push(id.ok_or_else(|| corrupt("a row of the list of traces cannot be read"))?);
        }
        let keys: Vec<String> = ids.iter().flat_map(|id| [head_key(id), description_key(id)]).collect();
        let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
        let found = self.store().get_many(&self.rows.traces()?, &keys, true).await?;
        let mut traces = Vec::with_capacity(ids.len());
        for (id, pair) in ids.iter().zip(found.chunks(2)) {
            match pair {
                [Some(head), Some(description)] => {
                    let (head, description) = (Head::read(&head.value)?, stored("description of a trace", &description.value)?);
                    traces.push(trace_of(&self.rows.user, id, &head, description));
                }
                [Some(_), _] => return Err(no_description(id)),
                // It was deleted meanwhile.
                _ => {}
            }
        }
        let next = page.next.and_then(|key| key.strip_prefix(&prefix).map(str::to_owned));
        Ok(TracePage { traces, total, next })
    }
}

/// How many digits precede the id in the position of a trace.
const POSITION_DIGITS: usize = 20;

fn check_cursor(cursor: &str) -> Result<()> {
    let digits = cursor.get(..POSITION_DIGITS).filter(|digits| digits.bytes().all(|byte| byte.is_ascii_digit()));
    match digits.map(|_| TraceId::new(&cursor[POSITION_DIGITS..])) {
        Some(Ok(_)) => Ok(()),
        _ => Err(Error::invalid_argument("the cursor is not the `next` of a page; leave it out for the first page")),
    }
}

/// Returns the kinds of traces that a query counts.
fn kinds(query: &TracesQuery) -> Vec<String> {
    let statuses = [TraceStatus::Running, TraceStatus::Completed, TraceStatus::Failed, TraceStatus::Stopped];
    let statuses = statuses.into_iter().filter(|status| query.status.is_none_or(|asked| asked == *status));
    let modes = [TraceMode::Call, TraceMode::Agent].into_iter().filter(|mode| query.mode.is_none_or(|asked| asked == *mode));
    let modes: Vec<TraceMode> = modes.collect();
    statuses.flat_map(|status| modes.iter().map(move |mode| kind(status, *mode))).collect()
}
