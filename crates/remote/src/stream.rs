//! Server-sent events of another server, followed while somebody listens.

use super::client::{PeerClient, essence};
use super::transport::TransportResponse;
use bytes::Bytes;
use futures::StreamExt;
use futures::stream::{self, BoxStream};
use http::header::{ACCEPT, ACCEPT_ENCODING, CONTENT_TYPE, HeaderValue};
use http::{HeaderMap, Method, StatusCode};
use std::collections::VecDeque;
use std::time::Duration;
use treehold_core::backoff::Backoff;
use treehold_core::error::{Error, ErrorKind};

/// The pause before reconnecting.
const BACKOFF: Backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(60));

/// The most bytes in one event.
const EVENT_BYTES_MAX: usize = 1 << 20;

/// What a stream of events reports.
#[derive(Debug)]
#[non_exhaustive]
pub enum StreamNews {
    /// The stream is connected. After a loss, the server resumes after the last event if it can.
    Live,
    /// An event arrived.
    Event(ServerEvent),
    /// The connection was lost; it is being reestablished.
    Lost,
    /// The server refused to open the stream, or sent an event that is too large. The client tries again after a pause; drop the stream if
    /// that is pointless.
    Refused(Error),
}

/// One event, as sent.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct ServerEvent {
    /// The name, empty if the server sent none.
    pub name: String,
    /// The data; lines are joined by `\n`.
    pub data: String,
    /// The id, from which a stream resumes.
    pub id: Option<String>,
}

impl PeerClient {
    /// Follows the server-sent events of a path. The stream never ends: a lost connection is reported, reestablished, and resumed after
    /// the last event by `Last-Event-ID`.
    pub fn stream(&self, path_and_query: &str) -> BoxStream<'static, StreamNews> {
        follow(self.clone(), path_and_query.to_owned(), None)
    }

    /// Follows the server-sent events of a path after the event with an id.
    pub fn stream_after(&self, path_and_query: &str, id: impl Into<String>) -> BoxStream<'static, StreamNews> {
        follow(self.clone(), path_and_query.to_owned(), Some(id.into()))
    }
}

fn follow(client: PeerClient, path_and_query: String, last_id: Option<String>) -> BoxStream<'static, StreamNews> {
    let feed = Feed { client, path_and_query, last_id, connection: None, attempts: 0, news: VecDeque::new() };
    stream::unfold(feed, async |mut feed| Some((feed.next().await, feed))).boxed()
}

struct Feed {
    client: PeerClient,
    path_and_query: String,
    /// The id of the last event, from which the feed resumes.
    last_id: Option<String>,
    connection: Option<(TransportResponse, Parser)>,
    /// How often it has connected in a row without an event.
    attempts: u32,
    news: VecDeque<StreamNews>,
}

impl Feed {
    async fn next(&mut self) -> StreamNews {
        loop {
            if let Some(news) = self.news.pop_front() {
                return self.taken(news);
            }
            let Some((response, parser)) = &mut self.connection else {
                self.connect().await;
                continue;
            };
            let chunk = tokio::time::timeout(self.client.options().feed_silence_max, response.body.next()).await;
            // The connection ended, failed, or was silent for too long.
            let Ok(Some(Ok(chunk))) = chunk else {
                self.lose();
                continue;
            };
            let Fed { events, is_too_large } = parser.feed(&chunk);
            // A server that closes each stream at once is not asked again without a pause.
            if !events.is_empty() {
                self.attempts = 0;
            }
            self.news.extend(events.into_iter().map(StreamNews::Event));
            if is_too_large {
                let message = format!("`{}` sent an event of over {EVENT_BYTES_MAX} bytes", self.client.name());
                self.news.push_back(StreamNews::Refused(Error::new(ErrorKind::TooLarge, message).without_effect()));
                self.lose();
            }
        }
    }

    /// Ends the connection, which the next call opens again.
    fn lose(&mut self) {
        tracing::debug!(peer = self.client.name(), "an event stream was interrupted");
        self.connection = None;
        self.news.push_back(StreamNews::Lost);
    }

    /// Notes the id of an event once the listener has it. A stream that breaks earlier would otherwise skip the event.
    fn taken(&mut self, news: StreamNews) -> StreamNews {
        if let StreamNews::Event(ServerEvent { id: Some(id), .. }) = &news {
            self.last_id = Some(id.clone());
        }
        news
    }

    async fn connect(&mut self) {
        if self.attempts > 0 {
            BACKOFF.wait(self.attempts).await;
        }
        self.attempts = self.attempts.saturating_add(1);
        let mut headers = HeaderMap::new();
        headers.insert(ACCEPT, HeaderValue::from_static("text/event-stream"));
        // Compressed events could be held back until a block is full.
        headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
        if let Some(id) = self.last_id.as_deref().and_then(|id| HeaderValue::from_str(id).ok()) {
            headers.insert("last-event-id", id);
        }
        let opened = self.client.open(Method::GET, &self.path_and_query, headers, None);
        let Ok(Ok(response)) = tokio::time::timeout(self.client.options().timeout, opened).await else { return };
        let media_type = response.headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
        if response.status == StatusCode::OK && essence(media_type) == "text/event-stream" {
            self.connection = Some((response, Parser::default()));
            self.news.push_back(StreamNews::Live);
            return;
        }
        tracing::debug!(peer = self.client.name(), status = response.status.as_u16(), "the server offers no event stream");
        let refusal = tokio::time::timeout(self.client.options().timeout, self.client.refusal_of(response));
        if let Ok(error) = refusal.await {
            self.news.push_back(StreamNews::Refused(error));
        }
    }
}

/// Splits a byte stream into events as defined by the [HTML
/// standard](https://html.spec.whatwg.org/multipage/server-sent-events.html).
#[derive(Debug, Default)]
struct Parser {
    line: Vec<u8>,
    /// Whether the last byte was `\r`; a following `\n` belongs to the same line end.
    after_return: bool,
    event: ServerEvent,
}

/// What a parser made of some bytes.
#[derive(Debug, PartialEq, Eq)]
struct Fed {
    /// The events that the bytes complete.
    events: Vec<ServerEvent>,
    /// Whether the event after them is too large. Then the rest of the stream cannot be parsed.
    is_too_large: bool,
}

impl Parser {
    /// Takes bytes.
    fn feed(&mut self, bytes: &Bytes) -> Fed {
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
                return Fed { events, is_too_large: true };
            }
        }
        Fed { events, is_too_large: false }
    }

    fn end_line(&mut self) -> Option<ServerEvent> {
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

    fn event(name: &str, data: &str, id: Option<&str>) -> ServerEvent {
        ServerEvent { name: name.to_owned(), data: data.to_owned(), id: id.map(str::to_owned) }
    }

    #[test]
    fn events_parse_across_arbitrary_chunk_boundaries() {
        let text = ": hello\n\nevent: change\r\nid: 7\r\ndata: {\"a\"\r\ndata:1}\r\n\r\nevent:reset\rdata\r\rretry: 3\n\n";
        let all = vec![event("change", "{\"a\"\n1}", Some("7")), event("reset", "", None)];
        let fed = Parser::default().feed(&Bytes::from_static(text.as_bytes()));
        assert_eq!(fed, Fed { events: all.clone(), is_too_large: false });
        for size in 1..9 {
            let mut parser = Parser::default();
            let pieces = text.as_bytes().chunks(size).map(Bytes::from_static);
            let events: Vec<ServerEvent> = pieces.flat_map(|bytes| parser.feed(&bytes).events).collect();
            assert_eq!(events, all, "in pieces of {size}");
        }
    }

    #[test]
    fn oversized_event_is_rejected() {
        let mut parser = Parser::default();
        assert!((0..20_000).any(|_| parser.feed(&Bytes::from_static(&[b'x'; 100])).is_too_large));
        assert!(parser.line.len() <= EVENT_BYTES_MAX + 1);
        let mut parser = Parser::default();
        let line = Bytes::from_static(b"data: xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx\n");
        assert!((0..40_000).any(|_| parser.feed(&line).is_too_large));
    }

    #[test]
    fn events_before_an_oversized_one_are_kept() {
        let bytes = [b"data: small\n\ndata: ".as_slice(), &vec![b'x'; EVENT_BYTES_MAX + 1]].concat();
        assert_eq!(Parser::default().feed(&bytes.into()), Fed { events: vec![event("", "small", None)], is_too_large: true });
    }
}
