//! Following the events of a trace elsewhere.

use super::Place;
use crate::contract::EventStream;
use crate::model::TraceEvent;
use futures::StreamExt;
use futures::stream::{self, BoxStream};
use std::time::Duration;
use tokio::time::{Instant, timeout_at};
use treehold_core::error::{Error, ErrorKind, Result};
use treehold_core::work::check_json_values;
use treehold_remote::StreamNews;

/// How long a connection may be lost before the stream ends with an error.
const LOST_MAX: Duration = Duration::from_secs(5 * 60);

/// The most events in a row that were already seen. After a loss, a server repeats those that it does not know to have arrived.
const REPEATED_MAX: usize = 10_000;

/// Follows the events after one.
pub(super) fn follow(place: Place, path: &str, since_event_id: u64) -> EventStream {
    let news = match since_event_id {
        0 => place.client.stream(path),
        id => place.client.stream_after(path, id.to_string()),
    };
    let following = Following { place, news, last: since_event_id, repeated: 0, lost_until: Some(Instant::now() + LOST_MAX) };
    stream::unfold(Some(following), async |following| {
        let mut following = following?;
        match following.next().await {
            Ok(event) => Some((Ok(event), Some(following))),
            // An error is the end.
            Err(error) => Some((Err(error), None)),
        }
    })
    .boxed()
}

struct Following {
    place: Place,
    news: BoxStream<'static, StreamNews>,
    /// The id of the last event.
    last: u64,
    repeated: usize,
    /// When a lost connection is given up.
    lost_until: Option<Instant>,
}

impl Following {
    async fn next(&mut self) -> Result<TraceEvent> {
        loop {
            let news = match self.lost_until {
                Some(deadline) => timeout_at(deadline, self.news.next()).await.map_err(|_| self.lost())?,
                None => self.news.next().await,
            };
            match news.ok_or_else(|| self.lost())? {
                StreamNews::Live => self.lost_until = None,
                StreamNews::Event(event) if event.data.is_empty() => {}
                // The name says nothing more than the data: it is the kind, which callers choose.
                StreamNews::Event(event) => {
                    if let Some(event) = self.taken(&event.data)? {
                        return Ok(event);
                    }
                }
                StreamNews::Lost => self.begin_loss(),
                StreamNews::Refused(error) if error.kind().is_transient() => self.begin_loss(),
                StreamNews::Refused(error) => return Err(super::as_received(error)),
                // News that a later version adds.
                _ => {}
            }
        }
    }

    /// Reads an event; `None` for one that was seen.
    fn taken(&mut self, data: &str) -> Result<Option<TraceEvent>> {
        check_json_values(data.as_bytes()).map_err(|error| self.place.invalid("an event that is too large").with_source(error))?;
        let event: TraceEvent = serde_json::from_str(data).map_err(|error| self.place.invalid("an unknown event").with_source(error))?;
        if event.event_id <= self.last {
            self.repeated += 1;
            return if self.repeated > REPEATED_MAX { Err(self.place.invalid("event ids that do not advance")) } else { Ok(None) };
        }
        (self.last, self.repeated) = (event.event_id, 0);
        Ok(Some(self.place.event_received(event)))
    }

    fn begin_loss(&mut self) {
        self.lost_until.get_or_insert_with(|| Instant::now() + LOST_MAX);
    }

    fn lost(&self) -> Error {
        let message = format!(
            "`{}` cannot be followed any more: it did not answer for {} minutes",
            self.place.client.name(),
            LOST_MAX.as_secs() / 60
        );
        Error::new(ErrorKind::Unavailable, message)
    }
}
