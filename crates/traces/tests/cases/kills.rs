//! Changes that are interrupted at each of their commits.

use super::support::{Stage, Staged, Whole, add, address, begin, text, traces, whole};
use futures::FutureExt;
use futures::future::{BoxFuture, join_all};
use std::sync::Arc;
use treehold_core::error::Result;
use treehold_store::{MemoryStore, Store};
use treehold_traces::{
    AddOptions, GoalStatus, GoalTree, GoalUpdate, MessageRef, MessageUpdate, NewGoal, PathQuery, SequenceRange, StoredTraces, TraceStatus,
    TraceStore, TraceUpdate, TracesQuery,
};

pub(super) type Change = fn(StoredTraces) -> BoxFuture<'static, Result<()>>;

/// Every kind of change of a trace.
pub(super) fn changes() -> Vec<(&'static str, Change)> {
    macro_rules! change {
        ($name:literal, |$traces:ident| $call:expr) => {
            ($name, |$traces| async move { $call.await.map(drop) }.boxed())
        };
    }
    vec![
        change!("append", |traces| traces.add_messages(
            &address(),
            vec![text("a").with_goal("1").with_usage(5, 0.5), text("b").with_branch_type("reflection")],
            &AddOptions::new().with_idempotency_key("k")
        )),
        change!("append with a change of the trace", |traces| traces.add_messages(
            &address(),
            vec![text("a").with_parent(2)],
            &AddOptions::new().with_update(TraceUpdate::new().with_status(TraceStatus::Stopped).with_task("z"))
        )),
        change!("rewind", |traces| traces.add_messages(&address(), vec![text("a").with_parent(1)], &AddOptions::new())),
        change!("summary", |traces| traces.add_messages(
            &address(),
            vec![text("a").with_summarizes(SequenceRange { from: 1, to: 3 })],
            &AddOptions::new()
        )),
        change!("update of a message", |traces| {
            let update = MessageUpdate::new().with_tokens(9).with_goal("2");
            async move { traces.update_message(&address(), &MessageRef::Sequence(2), update).await }
        }),
        change!("status and head", |traces| traces
            .update_trace(&address(), TraceUpdate::new().with_status(TraceStatus::Completed).with_head(1).with_duration_ms(5))),
        change!("goal", |traces| traces.add_goal(&address(), NewGoal::new("y"))),
        change!("update of a goal", |traces| {
            let update = GoalUpdate::new().with_status(GoalStatus::Completed);
            async move { traces.update_goal(&address(), "1", update).await }
        }),
        change!("goal tree", |traces| traces.update_goal_tree(&address(), GoalTree::new("m", Vec::new()))),
        change!("event", |traces| traces.append_event(&address(), "noted", serde_json::Map::new())),
    ]
}

pub(super) async fn populate(traces: &StoredTraces) {
    begin(traces).await;
    traces.add_goal(&address(), NewGoal::new("x")).await.unwrap();
    add(traces, vec![text("1").with_goal("1").with_usage(1, 1.0), text("2").with_goal("1").with_usage(2, 2.0), text("3")]).await;
}

/// Leaves out what depends on the clock.
fn timeless(mut whole: Whole) -> Whole {
    whole.trace.created_at = None;
    whole.trace.completed_at = whole.trace.completed_at.map(|_| String::new());
    whole.messages.iter_mut().for_each(|message| message.created_at = None);
    whole.events.iter_mut().for_each(|event| event.ts = None);
    whole
}

pub(crate) async fn change_that_is_killed_leaves_the_old_trace_or_the_new(store: Arc<dyn Store>) {
    for (name, change) in changes() {
        let own = traces(&store);
        own.delete_trace(&address()).await.unwrap();
        populate(&own).await;
        let old = timeless(whole(&own).await);
        let model: Arc<dyn Store> = Arc::new(MemoryStore::new());
        populate(&traces(&model)).await;
        change(traces(&model)).await.unwrap();
        let new = timeless(whole(&traces(&model)).await);
        assert_ne!(old, new, "{name}");
        let dead: Arc<dyn Store> = Staged::new(&store, 0, Stage::Dead);
        assert!(change(traces(&dead)).await.is_err(), "{name}");
        assert_eq!(timeless(whole(&own).await), old, "{name}");
        let unanswered: Arc<dyn Store> = Staged::new(&store, 0, Stage::Unanswered);
        assert!(change(traces(&unanswered)).await.is_err(), "{name}");
        assert_eq!(timeless(whole(&own).await), new, "{name}");
        let total = own.list_traces(&TracesQuery::new().with_status(new.trace.status)).await.unwrap().total;
        assert_eq!(total, 1, "{name}");
    }
}

/// Another process is faster, with every kind of change against every other: the result is that of one change after the other.
pub(crate) async fn change_overtaken_by_another_is_planned_again(store: Arc<dyn Store>) {
    for (other_name, other) in changes() {
        for (name, change) in changes() {
            let model: Arc<dyn Store> = Arc::new(MemoryStore::new());
            populate(&traces(&model)).await;
            other(traces(&model)).await.unwrap();
            let expected = change(traces(&model)).await.map_err(|error| error.kind());
            let own = traces(&store);
            own.delete_trace(&address()).await.unwrap();
            populate(&own).await;
            let faster = own.clone();
            let staged = Staged::before(&store, 0, move || async move { other(faster).await.unwrap() });
            let raced: Arc<dyn Store> = staged.clone();
            let result = change(traces(&raced)).await.map_err(|error| error.kind());
            assert!(staged.was_reached(), "{name}");
            assert_eq!(result, expected, "{name} after {other_name}");
            assert_eq!(timeless(whole(&own).await), timeless(whole(&traces(&model)).await), "{name} after {other_name}");
        }
    }
}

pub(crate) async fn call_repeated_after_a_lost_answer_takes_effect_once(store: Arc<dyn Store>) {
    let own = traces(&store);
    begin(&own).await;
    let options = AddOptions::new().with_idempotency_key("k");
    let staged: Arc<dyn Store> = Staged::new(&store, 0, Stage::Unanswered);
    assert!(traces(&staged).add_messages(&address(), vec![text("once")], &options).await.is_err());
    let again = own.add_messages(&address(), vec![text("once")], &options).await.unwrap();
    assert!(again.repeated);
    assert_eq!((again.messages.len(), again.head_sequence), (1, 1));
    assert_eq!(whole(&own).await.messages, again.messages);
}

/// Two values of `Traces` share nothing but the store, as two processes do.
pub(crate) async fn writers_of_two_processes_lose_no_message(store: Arc<dyn Store>) {
    const WRITERS: usize = 50;
    let processes = [traces(&store), traces(&store)];
    begin(&processes[0]).await;
    let write = |writer: usize| {
        let traces = processes[writer % 2].clone();
        tokio::spawn(async move {
            let message = text(&writer.to_string()).with_goal((writer % 3).to_string()).with_usage(1, 1.0);
            if writer.is_multiple_of(10) {
                traces.append_event(&address(), "noted", serde_json::Map::new()).await.unwrap();
            }
            add(&traces, vec![message]).await.messages[0].sequence
        })
    };
    let mut given: Vec<u64> = join_all((0..WRITERS).map(write)).await.into_iter().map(|given| given.unwrap()).collect();
    given.sort_unstable();
    assert_eq!(given, (1..=WRITERS as u64).collect::<Vec<_>>());
    let now = whole(&processes[1]).await;
    assert_eq!((now.trace.total_tokens, now.trace.head_sequence), (WRITERS as u64, WRITERS as u64));
    assert_eq!(now.path, given);
    assert_eq!(now.events.len(), 1 + WRITERS + WRITERS.div_ceil(10));
    let path = processes[0].get_main_path(&address(), &PathQuery::new()).await.unwrap();
    assert_eq!(path.messages, now.messages);
}
