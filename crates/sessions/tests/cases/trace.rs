//! Traces, and the data of an inspector.

use super::support::{SESSION, TENANT, USER, append, reference, sessions, user, with_session};
use std::sync::Arc;
use treehold_core::ErrorKind;
use treehold_core::clock::Clock;
use treehold_sessions::trace::Envelope;
use treehold_sessions::{InspectedSession, InspectedStatus, InspectorDataSource, SessionTraceStore, Usage};
use treehold_store::Store;

fn envelope(sequence: usize, kind: &str) -> Envelope {
    let text = format!(
        r#"{{"id":"runtime-1-{sequence}","timestamp":"2026-11-23T00:00:00.000Z","sequence":{sequence},"source":"runtime","event":{{"type":"{kind}","z":1,"a":2.0}},"later":true}}"#
    );
    Envelope::parse(&text).unwrap()
}

/// The log orders envelopes, as their own sequence restarts with each request. Streamed parts are not stored.
pub(crate) async fn envelopes_with_restarting_sequences_keep_their_order(store: Arc<dyn Store>) {
    let sessions = with_session(&store).await;
    let trace = sessions.trace(reference());
    assert!(trace.load_envelopes().await.unwrap().is_empty());
    // The sequence restarts with each request.
    let given: Vec<Envelope> = [0, 1, 2, 0, 1].into_iter().map(|sequence| envelope(sequence, "turn_start")).collect();
    let mut positions = Vec::new();
    for envelope in &given {
        positions.push(trace.append_envelope(envelope).await.unwrap().expect("it is stored"));
    }
    assert!(positions.is_sorted_by(|one, next| one < next));
    assert_eq!(trace.append_envelope(&envelope(9, "text_delta")).await.unwrap(), None);
    let loaded = sessions.trace(reference()).load_envelopes().await.unwrap();
    assert_eq!(loaded, given);
    assert_eq!(loaded[0].json(), given[0].json());
    let page = trace.page(Some(positions[1]), 2).await.unwrap();
    assert!(page.more && page.entries.iter().map(|entry| entry.position).eq(positions[2..4].iter().copied()));
    let page = trace.page(Some(positions[3]), 2).await.unwrap();
    assert!(!page.more && page.entries.len() == 1);
}

/// The store returns the error of a failed append; only `SideWrites` swallows it.
pub(crate) async fn append_to_the_trace_of_a_deleted_session_is_refused(store: Arc<dyn Store>) {
    let sessions = with_session(&store).await;
    let trace = sessions.trace(reference());
    trace.append_envelope(&envelope(0, "error")).await.unwrap();
    sessions.delete(TENANT, SESSION).await.unwrap();
    assert_eq!(trace.append_envelope(&envelope(1, "error")).await.unwrap_err().kind(), ErrorKind::NotFound);
    assert!(trace.load_envelopes().await.unwrap().is_empty());
    sessions.get_or_create(TENANT, USER, "helper", Some(SESSION)).await.unwrap();
    trace.append_envelope(&envelope(2, "turn_end")).await.unwrap();
    assert_eq!(sessions.trace(reference()).load_envelopes().await.unwrap(), [envelope(2, "turn_end")]);
}

/// Sessions of the same time are listed by id, then by tenant.
pub(crate) async fn inspector_lists_sessions_of_one_time_by_id(store: Arc<dyn Store>) {
    let clock = Clock::from_fn(|| jiff::Timestamp::from_second(1_800_000_000).unwrap());
    let sessions = sessions(&store).with_clock(clock);
    for (tenant, session) in [("t1", "b"), ("t2", "a"), ("t1", "c"), ("t1", "a")] {
        sessions.get_or_create(tenant, USER, "helper", Some(session)).await.unwrap();
    }
    let listed = sessions.list_sessions().await.unwrap();
    assert!(listed.iter().all(|session| session.last_active.as_deref() == Some("2027-01-15T08:00:00.000Z")), "{listed:?}");
    let order: Vec<_> = listed.iter().map(|session| (session.session_id.as_str(), session.tenant_id.as_str())).collect();
    assert_eq!(order, [("a", "t1"), ("a", "t2"), ("b", "t1"), ("c", "t1")]);
}

/// The inspector lists the sessions of all tenants with their turns, tokens and errors.
pub(crate) async fn inspector_lists_all_sessions_newest_first(store: Arc<dyn Store>) {
    let sessions = sessions(&store);
    for (tenant, user, session) in [("t1", "ada", "a"), ("t1", "bob", "b"), ("t2", "ada", "a"), ("t1", "ada", "c")] {
        sessions.get_or_create(tenant, user, "helper", Some(session)).await.unwrap();
    }
    sessions.record_turn("t1", "a", &Usage::of_tokens(10, 5).unwrap()).await.unwrap();
    let failed = treehold_sessions::SessionRef::new("t1", "b").unwrap();
    sessions.trace(failed.clone()).append_envelope(&envelope(0, "error")).await.unwrap();
    let listed = sessions.list_sessions().await.unwrap();
    let lines: Vec<String> = listed.iter().map(|session| serde_json::to_string(session).unwrap()).collect();
    let order: Vec<_> = listed.iter().map(|session| (session.tenant_id.as_str(), session.session_id.as_str())).collect();
    assert_eq!(order, [("t1", "a"), ("t1", "c"), ("t2", "a"), ("t1", "b")]);
    assert!(lines[0].contains(r#""turns":1,"tokens":15,"status":"idle""#), "{}", lines[0]);
    assert!(lines[3].contains(r#""userId":"bob""#) && lines[3].ends_with(r#""status":"error"}"#), "{}", lines[3]);
    assert_eq!(sessions.load_trace_envelopes(&failed).await.unwrap().len(), 1);
    assert!(sessions.load_orchestration_events(&failed).await.unwrap().is_empty());
    sessions.get_or_create(TENANT, USER, "helper", Some(SESSION)).await.unwrap();
    append(&sessions, &[user(1)]).await;
    assert_eq!(InspectorDataSource::load_messages(&sessions, &reference()).await.unwrap(), [user(1)]);
    // The mark of an error does not outlive its session.
    sessions.delete("t1", "b").await.unwrap();
    sessions.get_or_create("t1", "bob", "helper", Some("b")).await.unwrap();
    let again = sessions.for_user("t1", "bob").unwrap().list_sessions().await.unwrap();
    assert_eq!(again.iter().map(|session| session.status).collect::<Vec<_>>(), [InspectedStatus::Idle]);
}

/// Pages of any size list each accessible session once: those of one user newest first, others by tenant and id.
pub(crate) async fn inspector_pages_list_every_session_once(store: Arc<dyn Store>) {
    let sessions = sessions(&store);
    let given =
        [("t:1", "ada", "a"), ("t:1", "bob", "b:b"), ("t2", "ada", "x"), ("t1", "ada", "a"), ("t1", "bob", "%"), ("t1", "ada", "c")];
    for (tenant, user, session) in given {
        sessions.get_or_create(tenant, user, "helper", Some(session)).await.unwrap();
    }
    sessions.get_or_create("empty", "ada", "helper", Some("gone")).await.unwrap();
    sessions.delete("empty", "gone").await.unwrap();
    let failed = treehold_sessions::SessionRef::new("t1", "%").unwrap();
    sessions.trace(failed).append_envelope(&envelope(0, "error")).await.unwrap();
    let of_all = ["t1 % true", "t1 a false", "t1 c false", "t2 x false", "t:1 a false", "t:1 b:b false"];
    let cases = [
        (sessions.clone(), &of_all[..]),
        (sessions.for_tenant("t1").unwrap(), &of_all[..3]),
        (sessions.for_tenant("empty").unwrap(), &[]),
        (sessions.for_user("t1", "ada").unwrap(), &["t1 c false", "t1 a false"]),
        (sessions.for_user("t1", "eve").unwrap(), &[]),
    ];
    for (seen, expected) in cases {
        for limit in 1..=7 {
            let (mut found, mut after) = (Vec::new(), None);
            loop {
                let page = seen.inspect_page(limit, after.as_deref()).await.unwrap();
                assert!(page.sessions.len() <= limit);
                let line = |session: &InspectedSession| {
                    let InspectedSession { tenant_id, session_id, status, .. } = session;
                    format!("{tenant_id} {session_id} {}", *status == InspectedStatus::Error)
                };
                found.extend(page.sessions.iter().map(line));
                match page.next {
                    Some(next) => after = Some(next),
                    None => break,
                }
            }
            assert_eq!(found, expected, "{limit}");
        }
        let mut whole: Vec<String> = seen.list_sessions().await.unwrap().into_iter().map(|session| session.session_id).collect();
        whole.sort();
        let mut expected: Vec<&str> = expected.iter().map(|line| line.split(' ').nth(1).unwrap()).collect();
        expected.sort_unstable();
        assert_eq!(whole, expected);
    }
    // A cursor of another reach shows nothing of it.
    let other = sessions.for_tenant("t2").unwrap().inspect_page(9, Some("t1:%25")).await.unwrap();
    assert_eq!((other.sessions.len(), other.next), (0, None));
    for bad in ["", ":", "a:", "%", "a:b:c\u{0}"] {
        assert_eq!(sessions.inspect_page(9, Some(bad)).await.unwrap_err().kind(), ErrorKind::InvalidArgument, "{bad}");
    }
}
