//! Following a trace by server-sent events.

use super::{BASES, Caller, admin};
use crate::serve::{Served, within};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader};
use treehold::serve::{Access, Rights, TokenBook};

/// A stream that is read event by event.
pub(super) struct Stream {
    lines: Box<dyn BufRead + Send>,
}

impl Stream {
    pub(super) fn open(caller: &Caller<'_>, path: &str, headers: &[(&str, &str)]) -> Self {
        let answer = caller.with("GET", path, headers, b"");
        assert_eq!(answer.status, 200, "{path}");
        assert_eq!(answer.header("content-type").as_deref(), Some("text/event-stream"));
        Self { lines: Box::new(BufReader::new(answer.reader())) }
    }

    /// Returns the id, name and data of the next event; `None` at the end.
    pub(super) fn next(&mut self) -> Option<(u64, String, Value)> {
        let (mut id, mut name, mut data) = (0, String::new(), String::new());
        loop {
            let mut line = String::new();
            if self.lines.read_line(&mut line).ok()? == 0 {
                return None;
            }
            match line.trim_end_matches('\n').split_once(": ") {
                Some(("id", value)) => id = value.parse().unwrap(),
                Some(("event", value)) => name = value.to_owned(),
                Some(("data", value)) => data.push_str(value),
                _ if line == "\n" && !data.is_empty() => return Some((id, name, serde_json::from_str(&data).unwrap())),
                _ => {}
            }
        }
    }

    /// Reads a number of events, and returns their ids and names.
    fn take(&mut self, count: usize) -> Vec<(u64, String)> {
        let take = |_| {
            let (id, name, data) = self.next().expect("the stream goes on");
            assert_eq!((&data["event_id"], &data["event"]), (&json!(id), &json!(name)), "{data}");
            (id, name)
        };
        (0..count).map(take).collect()
    }
}

fn named(events: &[(u64, &str)]) -> Vec<(u64, String)> {
    events.iter().map(|(id, name)| (*id, (*name).to_owned())).collect()
}

#[test]
fn stream_replays_events_and_goes_on_with_new_ones() {
    let served = Served::closed();
    let ada = admin(&served);
    for (number, base) in BASES.into_iter().enumerate() {
        let trace = format!("t{number}");
        ada.create(&trace);
        ada.say(&trace, &["one"]);
        let watch = format!("{base}/{trace}/watch");
        let mut all = Stream::open(&ada, &watch, &[]);
        assert_eq!(all.take(2), named(&[(1, "trace_created"), (2, "message_added")]));
        let mut live = Stream::open(&ada, &format!("{watch}?since_event_id=2"), &[]);
        ada.say(&trace, &["two"]);
        ada.ok("POST", &format!("{base}/{trace}/events"), json!({"event": "thinking", "about": "tea"}));
        ada.ok("PATCH", &format!("{base}/{trace}"), json!({"status": "completed"}));
        let rest = named(&[(3, "message_added"), (4, "thinking"), (5, "trace_completed")]);
        assert_eq!((all.take(3), live.take(3)), (rest.clone(), rest.clone()));
        // A client that was away resumes after the last event that it saw, whatever the query says.
        let mut resumed = Stream::open(&ada, &format!("{watch}?since_event_id=1"), &[("last-event-id", "3")]);
        assert_eq!(resumed.take(2), rest[1..]);
        // A client that saw none yet has no id.
        assert_eq!(Stream::open(&ada, &watch, &[("last-event-id", "")]).take(1)[0].0, 1);
        for wrong in ["x", "-1", "1.5", "3 4", "18446744073709551616"] {
            let answer = ada.with("GET", &watch, &[("last-event-id", wrong)], b"");
            assert_eq!((answer.status, answer.code().as_str()), (400, "invalid_argument"), "{wrong}");
        }
        // Deleting the trace ends its streams, and a client that connects again learns why.
        ada.ok("DELETE", &format!("{base}/{trace}"), Value::Null);
        assert!([all.next(), live.next(), resumed.next()].into_iter().all(|end| end.is_none()));
        assert_eq!(ada.send("GET", &watch, &Value::Null).code(), "not_found");
    }
}

#[test]
fn no_event_is_lost_between_replay_and_live() {
    const EVENTS: u64 = 300;
    let served = Served::closed();
    let ada = admin(&served);
    ada.create("t");
    std::thread::scope(|scope| {
        scope.spawn(|| (1..EVENTS).for_each(|_| drop(ada.say("t", &["x"]))));
        let readers: Vec<_> = (0..4)
            .map(|_| {
                scope.spawn(|| {
                    let mut stream = Stream::open(&ada, "/api/traces/t/watch", &[]);
                    stream.take(EVENTS as usize).into_iter().map(|(id, _)| id).collect::<Vec<_>>()
                })
            })
            .collect();
        for reader in readers {
            assert_eq!(reader.join().unwrap(), (1..=EVENTS).collect::<Vec<_>>());
        }
    });
}

#[test]
fn revoked_token_ends_its_streams_without_another_event() {
    let served = Served::closed();
    let ada = admin(&served);
    ada.create("t");
    let lent = Caller::new(&served, "acme", "ada", Rights::new(Access::Read));
    let mut stream = Stream::open(&lent, "/api/traces/t/watch?since_event_id=1", &[]);
    served.block_on(TokenBook::new(served.store.clone()).revoke(lent.token.split('_').nth(1).unwrap())).unwrap();
    // Nothing happens in the trace, and the stream ends.
    assert_eq!(stream.next(), None);
    assert_eq!(lent.send("GET", "/api/traces/t/watch", &Value::Null).status, 401);
}

#[test]
fn streams_are_limited_and_end_with_the_server() {
    let served = Served::with(|options| options.with_tokens(true).with_streams_max(2));
    let ada = admin(&served);
    ada.create("t");
    let mut first = Stream::open(&ada, "/api/traces/t/watch", &[]);
    let second = Stream::open(&ada, "/v1/traces/t/watch", &[]);
    let refused = ada.send("GET", "/api/traces/t/watch", &Value::Null);
    assert_eq!((refused.status, refused.code().as_str()), (503, "unavailable"));
    drop(second);
    within(|| {
        // The server notices the disconnect when it next sends something.
        ada.say("t", &["x"]);
        ada.send("GET", "/api/traces/t/watch", &Value::Null).status == 200
    });
    let ending = std::thread::spawn(move || while first.next().is_some() {});
    served.stop().expect("in order");
    ending.join().unwrap();
}

/// The kind of an event becomes a line of the stream.
#[test]
fn kinds_of_events_cannot_forge_lines_of_the_stream() {
    let served = Served::closed();
    let ada = admin(&served);
    ada.create("t");
    for kind in ["a\nb", "a\rb", "a\r\ndata: forged", "\u{0}", "", "a\u{7f}"] {
        let answer = ada.send("POST", "/api/traces/t/events", &json!({"event": kind}));
        assert_eq!((answer.status, answer.code().as_str()), (400, "invalid_argument"), "{kind:?}");
    }
    ada.ok("POST", "/api/traces/t/events", json!({"event": "é: x\u{2028}", "text": "a\ndata: forged\n\n"}));
    let (id, name, data) = Stream::open(&ada, "/api/traces/t/watch?since_event_id=1", &[]).next().unwrap();
    assert_eq!((id, name.as_str(), &data["text"]), (2, "é: x\u{2028}", &json!("a\ndata: forged\n\n")));
}
