//! Following the events of a trace elsewhere.

use crate::support::{Reply, Scripted, address, problem, trace_json};
use futures::StreamExt as _;
use parking_lot::Mutex;
use treehold_core::error::ErrorKind;
use treehold_remote::Failure;
use treehold_traces::TraceStore;

fn event(id: u64) -> String {
    format!("id: {id}\nevent: noted\ndata: {{\"event_id\": {id}, \"event\": \"noted\", \"sub_trace_id\": \"s\"}}\n\n")
}

/// Answers the trace, and then each watch with the next of these replies.
fn network(replies: Vec<Reply>) -> std::sync::Arc<Scripted> {
    let replies = Mutex::new(replies.into_iter());
    Scripted::new(move |sent| match sent.path.contains("/watch") {
        true => replies.lock().next().unwrap_or(Reply::Lost(Failure::Unsent)),
        false => Reply::Json(200, trace_json("x")),
    })
}

#[tokio::test(start_paused = true)]
async fn lost_connection_resumes_after_the_last_event_and_each_event_comes_once() {
    let first = Reply::Events(vec![event(3), event(4)]);
    let again = Reply::Events(vec![event(4), ": still here\n\n".to_owned(), event(5)]);
    let network = network(vec![first, Reply::Lost(Failure::Broken), again]);
    let mut events = network.traces().watch(&address("@far/x"), 2).await.expect("readable");
    for id in 3..=5 {
        let event = events.next().await.expect("an event").expect("readable");
        assert_eq!((event.event_id, &event.data["sub_trace_id"]), (id, &serde_json::json!("@far/s")));
    }
    let sent = network.take();
    let watches: Vec<_> = sent.iter().filter(|sent| sent.path.contains("/watch")).collect();
    assert_eq!(watches[0].path, "/api/traces/x/watch?since_event_id=2");
    assert_eq!(watches.iter().map(|sent| sent.header("last-event-id")).collect::<Vec<_>>(), [Some("2"), Some("4"), Some("4")]);
}

#[tokio::test(start_paused = true)]
async fn stream_ends_with_the_error_that_ends_it() {
    let large = format!("data: {{\"event_id\": 2, \"event\": \"{}\"}}\n\n", "x".repeat(2 << 20));
    for (reply, kind) in [
        (Reply::Events(vec![event(1) + &large]), ErrorKind::TooLarge),
        (Reply::Events(vec![event(1), "data: {\"event_id\": \"x\"}\n\n".to_owned()]), ErrorKind::Corrupt),
        (Reply::Events(vec![event(1), format!("data: {}\n\n", "[".repeat(10_000))]), ErrorKind::Corrupt),
        (Reply::Events(vec![event(1), event(1).repeat(10_001)]), ErrorKind::Corrupt),
        (Reply::Events(vec![event(1)]), ErrorKind::Unavailable),
    ] {
        let mut events = network(vec![reply]).traces().watch(&address("@far/x"), 0).await.expect("readable");
        assert_eq!(events.next().await.expect("an event").expect("readable").event_id, 1);
        assert_eq!(events.next().await.expect("an error").expect_err("it ends").kind(), kind);
        assert!(events.next().await.is_none(), "{kind}");
    }
}

/// Callers choose the kinds of events, and the original has one that is called `error`.
#[tokio::test(start_paused = true)]
async fn event_of_any_kind_is_an_event() {
    let named =
        |id: u64, kind: &str| format!("id: {id}\nevent: {kind}\ndata: {{\"event_id\": {id}, \"event\": \"{kind}\", \"status\": 404}}\n\n");
    let kinds = ["error", "open", "reset", "close", "message", "retry"];
    let all: String = kinds.iter().zip(1..).map(|(kind, id)| named(id, kind)).collect();
    let mut events = network(vec![Reply::Events(vec![all])]).traces().watch(&address("@far/x"), 0).await.expect("readable");
    for (kind, id) in kinds.iter().zip(1..) {
        let event = events.next().await.expect("an event").expect("readable");
        assert_eq!((event.event_id, event.event.as_str()), (id, *kind));
    }
}

#[tokio::test]
async fn trace_that_cannot_be_read_is_refused_at_once() {
    let network = Scripted::new(|_| problem(ErrorKind::NotFound, "no trace"));
    let refused = network.traces().watch(&address("@far/x"), 0).await;
    assert_eq!(refused.err().expect("refused").kind(), ErrorKind::NotFound);
    let network = Scripted::new(|_| problem(ErrorKind::PermissionDenied, "Cannot access other user's trace"));
    let refused = network.traces().watch(&address("@far/x"), 0).await;
    assert_eq!(refused.err().expect("refused").kind(), ErrorKind::PermissionDenied);
}
