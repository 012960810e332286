//! Damaged and missing rows.

use super::support::{Whole, add, address, begin, rows, text, traces, whole};
use std::sync::Arc;
use treehold_core::error::{ErrorKind, Result};
use treehold_store::{Batch, Item, Namespace, Store};
use treehold_traces::{
    AddOptions, MessageRef, MessageUpdate, MessagesQuery, NewGoal, NewMessage, PathQuery, StoredTraces, TraceStatus, TraceStore,
    TraceUpdate, TracesQuery,
};

fn keyed() -> Vec<NewMessage> {
    let own = text("b").with_id("own").with_goal("1").with_usage(1, 0.5);
    vec![text("a"), own, text("c").with_branch_type("reflection")]
}

/// Makes a trace with rows of every kind.
async fn populate(traces: &StoredTraces) {
    begin(traces).await;
    traces.add_goal(&address(), NewGoal::new("x")).await.unwrap();
    traces.add_messages(&address(), keyed(), &AddOptions::new().with_idempotency_key("k")).await.unwrap();
    add(traces, vec![text("d").with_parent(1)]).await;
}

/// Reads everything in every way. Returns the first error, after checking that every other result is that of the undamaged trace.
async fn read(traces: &StoredTraces, expected: &Whole) -> Result<()> {
    let at = address();
    let mut failed = Ok(());
    macro_rules! check {
        ($call:expr, $expected:expr) => {
            match $call.await {
                Ok(found) => assert_eq!(found, $expected),
                Err(error) => failed = Err(error),
            }
        };
    }
    check!(traces.get_trace(&at), Some(expected.trace.clone()));
    let all = MessagesQuery::new();
    let of_goal = MessagesQuery::new().with_goal("1");
    check!(async { traces.get_messages(&at, &all).await.map(|page| page.messages) }, expected.messages);
    check!(async { traces.get_messages(&at, &of_goal).await.map(|page| page.messages) }, expected.messages[1..2]);
    let path = async |end: Option<u64>| {
        let query = end.map_or_else(PathQuery::new, |end| PathQuery::new().with_head(end));
        traces.get_main_path(&at, &query).await.map(|page| page.messages.iter().map(|message| message.sequence).collect::<Vec<_>>())
    };
    check!(path(None), expected.path);
    check!(path(Some(3)), [1, 2, 3]);
    check!(traces.get_goal_tree(&at), expected.goals);
    check!(async { traces.get_events(&at, 0, 100).await.map(|page| page.events) }, expected.events);
    for message in &expected.messages {
        for reference in [MessageRef::Id(message.message_id.clone()), MessageRef::Sequence(message.sequence)] {
            check!(traces.get_message(&at, &reference), Some(message.clone()));
        }
    }
    let page = traces.list_traces(&TracesQuery::new()).await;
    match page {
        Ok(page) => assert_eq!((page.traces, page.total), (vec![expected.trace.clone()], 1)),
        Err(error) => failed = Err(error),
    }
    failed
}

/// Makes changes that read every kind of row.
async fn write(traces: &StoredTraces) -> Result<()> {
    let at = address();
    let usage = MessageUpdate::new().with_tokens(9);
    let once = AddOptions::new().with_idempotency_key("k");
    let results = [
        traces.update_trace(&at, TraceUpdate::new().with_status(TraceStatus::Completed)).await.map(drop),
        traces.update_message(&at, &MessageRef::Id("own".to_owned()), usage).await.map(drop),
        traces.add_goal(&at, NewGoal::new("y")).await.map(drop),
        traces.add_messages(&at, keyed(), &once).await.map(|added| assert!(added.repeated)),
    ];
    results.into_iter().collect()
}

async fn restore(store: &Arc<dyn Store>, rows_before: &[(Namespace, Item)]) {
    let now = rows(store).await;
    let batch = now.iter().fold(Batch::new(), |batch, (namespace, item)| batch.delete(namespace, item.key.as_str()));
    let put = |batch: Batch, (namespace, item): &(Namespace, Item)| {
        batch.put_with_meta(namespace, item.key.as_str(), item.meta.clone(), item.value.clone())
    };
    for (_, batch) in Batch::by_partition(rows_before.iter().fold(batch, put).writes) {
        store.commit(batch).await.unwrap();
    }
}

fn is_corrupt(result: &Result<()>) -> bool {
    result.as_ref().is_err_and(|error| error.kind() == ErrorKind::Corrupt)
}

pub(crate) async fn damaged_rows_are_corrupt_and_never_absent(store: Arc<dyn Store>) {
    let own = traces(&store);
    populate(&own).await;
    let (expected, before) = (whole(&own).await, rows(&store).await);
    read(&own, &expected).await.unwrap();
    for (namespace, item) in &before {
        for damage in [&b"{\"x"[..], b"\xFF", b"null"] {
            let put = |meta: &[u8], value: &[u8]| Batch::new().put_with_meta(namespace, item.key.as_str(), meta.to_vec(), value.to_vec());
            let damages = [
                // Rows that only exist have no value to damage.
                (!item.value.is_empty()).then(|| put(&item.meta, damage)),
                (!item.meta.is_empty()).then(|| put(damage, &item.value)),
            ];
            for batch in damages.into_iter().flatten() {
                store.commit(batch).await.unwrap();
                let (read, written) = (read(&own, &expected).await, write(&own).await);
                let shown = format!("{namespace} {}: {read:?} {written:?}", item.key);
                for result in [&read, &written] {
                    assert!(result.is_ok() || is_corrupt(result), "{shown}");
                }
                let is_directory = *namespace == Namespace::parse("acme//_treehold/traces").unwrap();
                // A trace of the user is found without the directory.
                assert!(is_directory || is_corrupt(&read) || is_corrupt(&written), "{shown}");
                restore(&store, &before).await;
            }
        }
    }
    read(&own, &expected).await.unwrap();
    let directory = Namespace::parse("acme//_treehold/traces").unwrap();
    store.commit(Batch::new().put(&directory, "other", "{")).await.unwrap();
    let other = treehold_traces::TraceId::new("other").unwrap().into();
    assert_eq!(own.get_trace(&other).await.map(drop).expect_err("damaged").kind(), ErrorKind::Corrupt);
    store.commit(Batch::new().put(&directory, "other", r#"{"user":"ada"}"#)).await.unwrap();
    assert_eq!(own.get_trace(&other).await.unwrap(), None, "as a process leaves it that died while it created the trace");
}

pub(crate) async fn missing_rows_are_corrupt(store: Arc<dyn Store>) {
    let own = traces(&store);
    populate(&own).await;
    let (expected, before) = (whole(&own).await, rows(&store).await);
    for (namespace, item) in &before {
        let kind = namespace.components().next_back().unwrap().into_owned();
        // A missing head, tree, key or row of a list is like one that never was.
        let is_needed = matches!(kind.as_str(), "messages" | "events") || item.key.ends_with("description");
        if is_needed {
            store.commit(Batch::new().delete(namespace, item.key.as_str())).await.unwrap();
            let read = read(&own, &expected).await;
            assert!(is_corrupt(&read), "{namespace} {}: {read:?}", item.key);
            restore(&store, &before).await;
        }
    }
}

/// A path is followed towards lesser sequences only, so damage never makes a read endless.
pub(crate) async fn path_in_a_circle_is_corrupt(store: Arc<dyn Store>) {
    let own = traces(&store);
    populate(&own).await;
    let before = rows(&store).await;
    let is_message = |namespace: &Namespace| namespace.components().next_back().is_some_and(|last| last == "messages");
    for (namespace, item) in before.iter().filter(|(namespace, _)| is_message(namespace)) {
        let sequence: u64 = item.key.parse().unwrap();
        for path in
            [format!("[[{sequence},1],[4,1]]"), format!("[[{sequence},9]]"), format!("[[{sequence},1],[{sequence},1]]"), "[]".into()]
        {
            let meta = format!(r#"{{"p":{path},"b":1}}"#);
            store.commit(Batch::new().put_with_meta(namespace, item.key.as_str(), meta, item.value.clone())).await.unwrap();
            let query = PathQuery::new().with_head(sequence);
            let read = own.get_main_path(&address(), &query).await.map(drop);
            assert!(sequence == 4 || is_corrupt(&read), "{sequence} {path}: {read:?}");
            restore(&store, &before).await;
        }
    }
}

/// Numbers that no row of the store has are reported, whatever is computed from them.
pub(crate) async fn numbers_out_of_range_are_corrupt(store: Arc<dyn Store>) {
    let own = traces(&store);
    populate(&own).await;
    let before = rows(&store).await;
    let max = u64::MAX;
    for (key, old, new) in [
        ("k", r#""count":3"#.to_owned(), r#""count":1000000000000"#.to_owned()),
        ("k", r#""first":1"#.to_owned(), format!(r#""first":{max}"#)),
        ("head", r#""last_sequence":4"#.to_owned(), format!(r#""last_sequence":{max}"#)),
        ("head", r#""last_sequence":4"#.to_owned(), r#""last_sequence":3"#.to_owned()),
        ("head", r#""last_event_id":6"#.to_owned(), format!(r#""last_event_id":{max}"#)),
        ("head", r#""path":[[4,1],[1,1]]"#.to_owned(), r#""path":[[4,1],[9,1]]"#.to_owned()),
        ("goal\u{1}1", r#""tokens":1"#.to_owned(), format!(r#""tokens":{max}"#)),
    ] {
        let (namespace, item) = before.iter().find(|(_, item)| item.key.ends_with(key)).unwrap();
        let value = String::from_utf8(item.value.to_vec()).unwrap();
        assert!(value.contains(&old), "{value}");
        store.commit(Batch::new().put(namespace, item.key.as_str(), value.replace(&old, &new))).await.unwrap();
        let repeated = own.add_messages(&address(), keyed(), &AddOptions::new().with_idempotency_key("k")).await.map(drop);
        let added = own.add_messages(&address(), vec![text("a").with_goal("1").with_usage(1, 0.0)], &AddOptions::new()).await.map(drop);
        let is_reported = |result: &Result<()>| {
            result.as_ref().is_err_and(|error| matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::InvalidArgument))
        };
        assert!(is_reported(&repeated) || is_reported(&added), "{new}: {repeated:?} {added:?}");
        restore(&store, &before).await;
    }
}
