//! The contract of [`TraceStore`] as test cases, for every store of traces (feature `conformance`).
//!
//! A case gets a fresh, empty store. [`trace_store_conformance!`](crate::trace_store_conformance) creates one test for each case:
//!
//! ```no_run
//! use std::sync::Arc;
//! use treehold_conformance::Fresh;
//! use treehold_store::MemoryStore;
//! use treehold_traces::{TraceStore, Traces};
//!
//! async fn fresh() -> Fresh<dyn TraceStore> {
//!     let traces = Traces::new(Arc::new(MemoryStore::new())).for_user("acme", "ada").expect("legal ids");
//!     Fresh::new(Arc::new(traces))
//! }
//!
//! treehold_traces::trace_store_conformance!(memory, fresh);
//! ```
//!
//! The ids that a store returns may be qualified, so a case uses the ids that it got.

mod events;
mod goals;
mod messages;
mod paths;
mod traces;

use events::*;
use goals::*;
use messages::*;
use paths::*;
use traces::*;

use crate::contract::{AddOptions, Added, MessageRef, MessagesQuery, PathQuery, TraceStore, TracesQuery};
use crate::id::{TraceAddress, TraceId};
use crate::model::{
    Goal, GoalStats, GoalStatus, GoalTree, GoalUpdate, Message, MessageUpdate, NewGoal, NewMessage, NewTrace, SequenceRange, Trace,
    TraceEvent, TraceMode, TraceStatus, TraceUpdate, kinds,
};
use std::sync::Arc;
use treehold_conformance::Case;
use treehold_core::error::{ErrorKind, Result};
use treehold_core::json::Json;

/// The subject of a case.
type Subject = Arc<dyn TraceStore>;

/// Creates a trace and returns its id.
async fn begin(traces: &Subject) -> TraceAddress {
    traces.create_trace(NewTrace::new("make tea")).await.expect("created").trace_id
}

/// Returns the id of another trace at the same place.
fn sibling(trace: &TraceAddress, id: &str) -> TraceAddress {
    let id = TraceId::new(id).expect("a legal id");
    match trace.location() {
        Some(location) => TraceAddress::at(location.clone(), id),
        None => id.into(),
    }
}

async fn get(traces: &Subject, trace: &TraceAddress) -> Trace {
    traces.get_trace(trace).await.expect("readable").expect("it exists")
}

async fn add(traces: &Subject, trace: &TraceAddress, messages: Vec<NewMessage>) -> Added {
    traces.add_messages(trace, messages, &AddOptions::new()).await.expect("added")
}

/// Adds a message with a text, and returns its sequence.
async fn say(traces: &Subject, trace: &TraceAddress, text: &str) -> u64 {
    add(traces, trace, vec![NewMessage::text("user", text)]).await.messages[0].sequence
}

/// Adds `count` messages in a row.
async fn fill(traces: &Subject, trace: &TraceAddress, count: usize) {
    add(traces, trace, (0..count).map(|number| NewMessage::text("user", &number.to_string())).collect()).await;
}

/// Requires that adding messages fails, and that nothing of the trace changes.
async fn refuse(traces: &Subject, trace: &TraceAddress, messages: Vec<NewMessage>, options: &AddOptions, kind: ErrorKind) {
    let before = (get(traces, trace).await, all(traces, trace).await, events(traces, trace).await);
    let shown = format!("{messages:?}");
    let refused = traces.add_messages(trace, messages, options).await;
    assert_eq!(refused.map(|added| added.messages).expect_err(&shown).kind(), kind, "{shown}");
    assert_eq!((get(traces, trace).await, all(traces, trace).await, events(traces, trace).await), before, "{shown}");
}

/// Returns the first page of all messages.
async fn all(traces: &Subject, trace: &TraceAddress) -> Vec<Message> {
    let query = MessagesQuery { limit: 1_000, ..MessagesQuery::default() };
    traces.get_messages(trace, &query).await.expect("readable").messages
}

/// Returns the sequences of a path.
async fn path(traces: &Subject, trace: &TraceAddress, head: Option<u64>) -> Vec<u64> {
    let query = PathQuery { head_sequence: head, limit: None };
    sequences(&traces.get_main_path(trace, &query).await.expect("readable").messages)
}

fn sequences(messages: &[Message]) -> Vec<u64> {
    messages.iter().map(|message| message.sequence).collect()
}

async fn events(traces: &Subject, trace: &TraceAddress) -> Vec<TraceEvent> {
    traces.get_events(trace, 0, 1_000).await.expect("readable").events
}

async fn event_kinds(traces: &Subject, trace: &TraceAddress) -> Vec<String> {
    events(traces, trace).await.into_iter().map(|event| event.event).collect()
}

fn json(text: &str) -> Json {
    Json::parse(text).expect("valid JSON")
}

/// Declares the cases: the list [`CASES`], and a macro that creates one test for each. The first token is a literal `$`, needed to define
/// the inner macro.
macro_rules! cases {
    ($dollar:tt: $($name:ident,)+) => {
        /// Every case of this contract.
        pub const CASES: &[Case<dyn TraceStore>] = &[$(Case::new(stringify!($name), |subject| Box::pin($name(subject))),)+];

        /// Creates a module of tests, one for each case of the contract of a [`TraceStore`](crate::TraceStore):
        /// `trace_store_conformance!(name, fresh)`, where `fresh` is an async function that returns a
        /// [`Fresh<dyn TraceStore>`](treehold_conformance::Fresh). Attributes before the name go to each test.
        #[macro_export]
        macro_rules! trace_store_conformance {
            ($dollar (#[$dollar attribute:meta])* $dollar row:ident, $dollar fresh:expr) => {
                mod $dollar row {
                    use super::*;
                    $(
                        #[test]
                        $dollar (#[$dollar attribute])*
                        fn $name() {
                            $crate::conformance::run(stringify!($name), $dollar fresh);
                        }
                    )+
                }
            };
        }
    };
}

cases! { $:
    // traces
    created_trace_is_returned_as_it_is_stored,
    taken_id_is_refused,
    unknown_trace_is_none_and_takes_nothing,
    update_changes_what_it_names,
    final_status_sets_the_time_of_completion_and_running_clears_it,
    traces_are_listed_newest_first_with_an_exact_total,
    lists_filter_by_status_and_mode,
    list_continues_at_its_cursor,
    deleted_trace_is_gone_and_its_id_is_free,
    fields_of_the_store_cannot_be_set_by_callers,
    // messages
    sequences_begin_at_one_and_have_no_gaps,
    message_keeps_its_content_and_unknown_fields,
    message_is_found_by_its_id_and_sequence,
    message_ids_are_unique,
    refused_messages_store_nothing,
    unexpected_head_is_a_conflict,
    call_repeated_with_its_key_takes_effect_once,
    key_used_for_other_messages_is_refused,
    append_changes_the_trace_in_the_same_commit,
    change_that_no_append_can_make_is_refused,
    totals_are_the_sums_of_all_messages,
    changed_message_corrects_the_totals,
    pages_of_messages_follow_each_other,
    messages_of_a_goal_are_listed_in_order,
    concurrent_writers_get_unique_sequences_without_gaps,
    concurrent_rewinds_summaries_and_moves_of_the_head_leave_a_tree,
    concurrent_repetitions_of_one_key_take_effect_once,
    // paths
    main_path_follows_the_parents_from_the_head,
    rewind_leaves_the_old_end_as_a_branch,
    side_branch_does_not_move_the_head,
    summary_takes_the_place_of_its_span,
    summary_of_anything_but_the_end_of_the_path_is_refused,
    path_pages_continue_at_the_earlier_message,
    path_with_many_jumps_is_complete,
    path_to_an_unknown_end_is_refused,
    new_path_begins_without_a_parent,
    head_can_move_without_a_message,
    empty_trace_has_an_empty_path,
    // goals
    goals_form_a_tree_with_free_ids,
    goal_statistics_are_sums_of_their_messages,
    changed_goal_keeps_everything_else,
    replaced_tree_keeps_the_statistics,
    trees_that_are_no_trees_are_refused,
    goal_at_work_is_the_same_in_trace_and_tree,
    // events
    every_change_is_one_event_in_order,
    events_of_callers_get_the_next_id,
    pages_of_events_follow_each_other,
    watch_replays_and_continues_with_new_events,
    watch_of_a_deleted_trace_ends_with_an_error,
    concurrent_events_are_watched_once_and_in_order,
}

/// Runs the named case on a fresh store.
///
/// # Panics
/// If the rule is broken, or if there is no such case.
pub fn run<F: Future<Output = treehold_conformance::Fresh<dyn TraceStore>>>(name: &str, fresh: impl FnOnce() -> F) {
    treehold_conformance::run_case(CASES, name, fresh);
}
