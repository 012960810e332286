//! The memory of a process that served many sessions.

use super::{Subject, TENANT, USER, report};
use futures::StreamExt;
use treehold::sessions::{AppendOptions, Message, Sessions};

/// The sessions that the process serves before the first measurement, so that caches are full.
const WARM: u64 = 1_000;

const SESSIONS: u64 = 10_000;

/// The growth that is allowed: less than an entry of a table for each session. It was 1 to 6 KB for all of them.
const GROWTH_BYTES_MAX: usize = 256 << 10;

fn name(number: u64) -> String {
    format!("s-{number}")
}

/// How many sessions are served at once.
const AT_ONCE: usize = 16;

/// Appends to sessions and reads them, each once.
async fn serve(sessions: &Sessions, range: std::ops::Range<u64>) {
    let serve = async |number| {
        let name = name(number);
        sessions.append(TENANT, &name, &[Message::user("more", 1)], &AppendOptions::new()).await.unwrap();
        assert_eq!(sessions.load(TENANT, &name, Some(50)).await.unwrap().len(), 2);
    };
    futures::stream::iter(range).map(serve).buffer_unordered(AT_ONCE).collect::<()>().await;
}

/// Serves sessions. Reports how many bytes more are in use after the measured ones than before them.
async fn report_growth(sessions: Sessions) {
    let create = async |number| {
        let name = name(number);
        sessions.get_or_create(TENANT, USER, "helper", Some(&name)).await.unwrap();
        sessions.append(TENANT, &name, &[Message::user(&"x".repeat(1_000), 1)], &AppendOptions::new()).await.unwrap();
    };
    futures::stream::iter(0..SESSIONS + WARM).map(create).buffer_unordered(AT_ONCE).collect::<()>().await;
    serve(&sessions, 0..WARM).await;
    let before = crate::MEMORY.allocated();
    serve(&sessions, WARM..SESSIONS + WARM).await;
    report(crate::MEMORY.allocated().saturating_sub(before));
}

#[tokio::test(flavor = "multi_thread")]
async fn ten_thousand_idle_sessions_use_no_memory() {
    if let Some((sessions, _)) = super::part().await {
        return report_growth(sessions).await;
    }
    let subject = Subject::on_sqlite(concat!(module_path!(), "::ten_thousand_idle_sessions_use_no_memory")).await;
    let mut process = subject.start(0);
    let growth: usize = process.next().unwrap().parse().unwrap();
    assert!(growth < GROWTH_BYTES_MAX, "{growth} bytes for {SESSIONS} sessions");
}
