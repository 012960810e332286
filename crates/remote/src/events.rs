//! The change feed of another server: server-sent events, followed while somebody listens.

use super::client::Far;
use futures::StreamExt;
use futures::stream::{self, BoxStream};
use reqwest::header::{ACCEPT, ACCEPT_ENCODING, CONTENT_TYPE};
use reqwest::{Response, StatusCode};
use serde::Deserialize;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;
use treehold_core::backoff::Backoff;
use treehold_core::path::{VfsPath, VfsPathBuf};
use treehold_tree::backend::TreeNews;

/// The pause before reconnecting.
const BACKOFF: Backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(60));

/// The most bytes in one event. An event names up to two paths of 4,096 bytes each.
const EVENT_BYTES_MAX: usize = 256 << 10;

/// Follows the changes below a directory of the remote tree.
pub(super) fn follow(far: Arc<Far>, base: VfsPathBuf) -> BoxStream<'static, TreeNews> {
    let feed = Feed { far, base, last_id: None, connection: None, attempts: 0, news: VecDeque::new() };
    stream::unfold(feed, async |mut feed| Some((feed.next().await, feed))).boxed()
}

struct Feed {
    far: Arc<Far>,
    base: VfsPathBuf,
    /// The id of the last event, from which the feed resumes.
    last_id: Option<String>,
    connection: Option<(Response, Parser)>,
    /// How often connecting has failed in a row.
    attempts: u32,
    news: VecDeque<TreeNews>,
}

impl Feed {
    async fn next(&mut self) -> TreeNews {
        loop {
            if let Some(news) = self.news.pop_front() {
                return news;
            }
            let Some((response, parser)) = &mut self.connection else {
                self.connect().await;
                continue;
            };
            let chunk = tokio::time::timeout(self.far.options.feed_silence_max, response.chunk()).await;
            let events = match chunk {
                Ok(Ok(Some(chunk))) => parser.feed(&chunk),
                // The connection ended, failed, or was silent for too long.
                Ok(Ok(None) | Err(_)) | Err(_) => None,
            };
            match events {
                Some(events) => events.into_iter().for_each(|event| self.take(event)),
                None => {
                    tracing::debug!(peer = self.far.peer(), "the change feed was interrupted");
                    self.connection = None;
                    self.news.push_back(TreeNews::Lost);
                }
            }
        }
    }

    async fn connect(&mut self) {
        if self.attempts > 0 {
            BACKOFF.wait(self.attempts).await;
        }
        self.attempts = self.attempts.saturating_add(1);
        let mut url = self.far.url(["events"]);
        url.query_pairs_mut().append_pair("prefix", self.base.as_str());
        if let Some(thread) = &self.far.options.thread {
            url.query_pairs_mut().append_pair("thread", thread);
        }
        // Compressed events could be held back until a block is full.
        let mut request = self.far.get(url).header(ACCEPT, "text/event-stream").header(ACCEPT_ENCODING, "identity");
        if let Some(id) = &self.last_id {
            request = request.header("last-event-id", id);
        }
        let sent = tokio::time::timeout(self.far.options.timeout, request.send()).await;
        let Ok(Ok(response)) = sent else { return };
        let media_type = response.headers().get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
        if response.status() != StatusCode::OK || !media_type.starts_with("text/event-stream") {
            tracing::debug!(peer = self.far.peer(), status = response.status().as_u16(), "the server offers no change feed");
            return;
        }
        self.connection = Some((response, Parser::default()));
        self.attempts = 0;
        self.news.push_back(TreeNews::Live);
    }

    fn take(&mut self, event: Event) {
        match event.name.as_str() {
            "reset" => self.news.push_back(TreeNews::Reset),
            "change" => match serde_json::from_str::<ChangeEvent>(&event.data) {
                Ok(change) => {
                    let changed = std::iter::once(&change.path).chain(&change.target).filter_map(|path| seen_from(&self.base, path));
                    self.news.extend(changed.map(TreeNews::Changed));
                }
                // Something unknown changed.
                Err(_) => self.news.push_back(TreeNews::Reset),
            },
            // Progress marks, and events that later servers may add.
            _ => {}
        }
        if let Some(id) = event.id {
            self.last_id = Some(id);
        }
    }
}

/// Maps a changed path of the remote tree to the tree at `base`. A change above the base maps to the root.
fn seen_from(base: &VfsPath, changed: &VfsPath) -> Option<VfsPathBuf> {
    match changed.strip_prefix(base) {
        Some(path) => Some(path.to_owned()),
        None if base.starts_with(changed) => Some(VfsPathBuf::root()),
        None => None,
    }
}

/// The relevant fields of a change event.
#[derive(Debug, Deserialize)]
struct ChangeEvent {
    path: VfsPathBuf,
    #[serde(default)]
    target: Option<VfsPathBuf>,
}

/// An event as it was sent.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct Event {
    name: String,
    data: String,
    id: Option<String>,
}

/// Splits a byte stream into events as defined by the [HTML
/// standard](https://html.spec.whatwg.org/multipage/server-sent-events.html).
#[derive(Debug, Default)]
struct Parser {
    line: Vec<u8>,
    /// Whether the last byte was `\r`; a following `\n` belongs to the same line end.
    after_return: bool,
    event: Event,
}

impl Parser {
    /// Takes bytes and returns the events that they complete; `None` once an event is too large.
    fn feed(&mut self, bytes: &[u8]) -> Option<Vec<Event>> {
        let mut events = Vec::new();
        for &byte in bytes {
            let is_second_of_pair = byte == b'\n' && self.after_return;
            self.after_return = byte == b'\r';
            match byte {
                b'\n' if is_second_of_pair => {}
                b'\n' | b'\r' => events.extend(self.end_line()),
                _ => self.line.push(byte),
            }
            if self.line.len() + self.event.data.len() > EVENT_BYTES_MAX {
                return None;
            }
        }
        Some(events)
    }

    fn end_line(&mut self) -> Option<Event> {
        let line = std::mem::take(&mut self.line);
        if line.is_empty() {
            let event = std::mem::take(&mut self.event);
            return (!event.data.is_empty() || !event.name.is_empty() || event.id.is_some()).then_some(event);
        }
        let line = String::from_utf8_lossy(&line);
        let (field, value) = line.split_once(':').unwrap_or((&line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match field {
            "event" => value.clone_into(&mut self.event.name),
            "data" => {
                if !self.event.data.is_empty() {
                    self.event.data.push('\n');
                }
                self.event.data.push_str(value);
            }
            // The id is sent back as a header.
            "id" if !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_graphic()) => self.event.id = Some(value.to_owned()),
            // Comments keep the connection alive; other fields are not used.
            _ => {}
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(name: &str, data: &str, id: Option<&str>) -> Event {
        Event { name: name.to_owned(), data: data.to_owned(), id: id.map(str::to_owned) }
    }

    #[test]
    fn events_parse_across_arbitrary_chunk_boundaries() {
        let text = ": hello\n\nevent: change\r\nid: 7\r\ndata: {\"a\"\r\ndata:1}\r\n\r\nevent:reset\rdata\r\rretry: 3\n\n";
        let all = vec![event("change", "{\"a\"\n1}", Some("7")), event("reset", "", None)];
        assert_eq!(Parser::default().feed(text.as_bytes()), Some(all.clone()));
        for size in 1..9 {
            let mut parser = Parser::default();
            let events: Vec<Event> = text.as_bytes().chunks(size).flat_map(|bytes| parser.feed(bytes).expect("small")).collect();
            assert_eq!(events, all, "in pieces of {size}");
        }
    }

    #[test]
    fn oversized_event_is_rejected() {
        let mut parser = Parser::default();
        let fed = (0..10_000).try_for_each(|_| parser.feed(&[b'x'; 100]).map(drop));
        assert!(fed.is_none() && parser.line.len() <= EVENT_BYTES_MAX + 1);
        let mut parser = Parser::default();
        assert!((0..10_000).try_for_each(|_| parser.feed(b"data: xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx\n").map(drop)).is_none());
    }

    #[test]
    fn changed_paths_are_mapped_relative_to_the_base() {
        let path = |text: &str| VfsPathBuf::parse(text).expect("a legal path");
        let base = path("/w/x");
        for (changed, seen) in
            [("/w/x/a", Some("/a")), ("/w/x", Some("/")), ("/w", Some("/")), ("/", Some("/")), ("/w/y", None), ("/w/xx", None)]
        {
            assert_eq!(seen_from(&base, &path(changed)), seen.map(path), "{changed}");
        }
    }
}
