//! Random operations by two processes against a model.

use crate::cases::support::{Whole, address, begin, text, traces, whole};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::sync::Arc;
use treehold_core::error::ErrorKind;
use treehold_store::{MemoryStore, Store};
use treehold_traces::{
    AddOptions, GoalTree, MessageRef, MessageUpdate, MessagesQuery, NewGoal, NewMessage, PathQuery, SequenceRange, StoredTraces,
    TraceStatus, TraceStore, TraceUpdate, TracesQuery,
};

const GOALS: [&str; 3] = ["1", "2", "unknown"];

/// A message to append. Numbers choose among what exists.
#[derive(Debug, Clone)]
struct New {
    /// The parent: none given, the beginning, a message, or one that does not exist.
    parent: Option<u64>,
    goal: Option<usize>,
    tokens: Option<u64>,
    is_aside: bool,
}

#[derive(Debug, Clone)]
enum Operation {
    Append(Vec<New>),
    /// Appends together with a change of the status.
    AppendWithStatus(Vec<New>, u8),
    /// Appends with one of a few keys.
    Keyed(u8),
    /// Summarises the end of the path, beginning at one of its messages or at any message.
    Summarize(u64, bool),
    MoveHead(u64),
    Change(u64, Option<usize>, Option<u64>),
    Status(u8),
    AddGoal,
    ReplaceGoals,
    Note,
    Recreate,
}

fn new() -> impl Strategy<Value = New> {
    let parent = prop_oneof![6 => Just(None), 3 => any::<u64>().prop_map(Some)];
    (parent, prop::option::of(0..GOALS.len()), prop::option::of(0..100_u64), prop::bool::weighted(0.2))
        .prop_map(|(parent, goal, tokens, is_aside)| New { parent, goal, tokens, is_aside })
}

fn operation() -> impl Strategy<Value = Operation> {
    prop_oneof![
        8 => prop::collection::vec(new(), 1..5).prop_map(Operation::Append),
        2 => (prop::collection::vec(new(), 1..3), 0..4_u8).prop_map(|(news, status)| Operation::AppendWithStatus(news, status)),
        1 => (0..3_u8).prop_map(Operation::Keyed),
        2 => (any::<u64>(), prop::bool::weighted(0.8)).prop_map(|(from, on_path)| Operation::Summarize(from, on_path)),
        1 => any::<u64>().prop_map(Operation::MoveHead),
        2 => (any::<u64>(), prop::option::of(0..GOALS.len()), prop::option::of(0..100_u64))
            .prop_map(|(at, goal, tokens)| Operation::Change(at, goal, tokens)),
        1 => (0..4_u8).prop_map(Operation::Status),
        1 => Just(Operation::AddGoal),
        1 => Just(Operation::ReplaceGoals),
        1 => Just(Operation::Note),
        1 => Just(Operation::Recreate),
    ]
}

/// A message as the model keeps it.
#[derive(Debug, Clone, PartialEq)]
struct Kept {
    parent: Option<u64>,
    goal: Option<String>,
    tokens: Option<u64>,
}

#[derive(Debug, Default)]
struct Model {
    messages: Vec<Kept>,
    head: u64,
    status: TraceStatus,
    goals: Vec<(String, Option<String>)>,
    events: usize,
    keys: BTreeMap<u8, u64>,
}

impl Model {
    fn path(&self, end: u64) -> Vec<u64> {
        let mut path = Vec::new();
        let mut at = (end > 0).then_some(end);
        while let Some(sequence) = at {
            path.insert(0, sequence);
            at = self.messages[sequence as usize - 1].parent;
        }
        path
    }

    fn last(&self) -> u64 {
        self.messages.len() as u64
    }

    /// Appends messages, or nothing if one of them is refused.
    fn append(&mut self, news: &[New]) -> bool {
        let (messages, head) = (self.messages.clone(), self.head);
        let mut before = head;
        for new in news {
            let parent = match new.parent {
                None => before,
                Some(chosen) => choose(chosen, messages.len() as u64),
            };
            if parent > self.last() {
                (self.messages, self.head) = (messages, head);
                return false;
            }
            let goal = new.goal.map(|goal| GOALS[goal].to_owned());
            self.messages.push(Kept { parent: (parent > 0).then_some(parent), goal, tokens: new.tokens });
            before = self.last();
            if !new.is_aside {
                self.head = before;
            }
        }
        self.events += news.len();
        true
    }

    /// Returns the messages and tokens of a goal, and of those below it.
    fn stats(&self, goal: &str) -> ((u64, u64), (u64, u64)) {
        let of = |goal: &str| {
            let own = self.messages.iter().filter(|message| message.goal.as_deref() == Some(goal));
            own.fold((0, 0), |(count, tokens), message| (count + 1, tokens + message.tokens.unwrap_or(0)))
        };
        let below = self.goals.iter().filter(|(_, parent)| parent.as_deref() == Some(goal));
        let sum = below.map(|(id, _)| self.stats(id).1).fold(of(goal), |sum, stats| (sum.0 + stats.0, sum.1 + stats.1));
        (of(goal), sum)
    }
}

/// Chooses a sequence: 0 for the beginning, a message, or rarely one that does not exist.
fn choose(chosen: u64, last: u64) -> u64 {
    if chosen.is_multiple_of(29) { last + 1 + chosen % 3 } else { chosen % (last + 1) }
}

fn message(new: &New, last: u64) -> NewMessage {
    let mut message = text("x");
    message.parent_sequence = new.parent.map(|chosen| choose(chosen, last));
    message.goal_id = new.goal.map(|goal| GOALS[goal].to_owned());
    message.tokens = new.tokens;
    message.branch_type = new.is_aside.then(|| "reflection".to_owned());
    message
}

fn status(number: u8) -> TraceStatus {
    [TraceStatus::Running, TraceStatus::Completed, TraceStatus::Failed, TraceStatus::Stopped][usize::from(number)]
}

/// Appends messages. Returns whether they were accepted.
async fn append(traces: &StoredTraces, model: &mut Model, news: &[New], options: &AddOptions) -> bool {
    let last = model.last();
    let added = traces.add_messages(&address(), news.iter().map(|new| message(new, last)).collect(), options).await;
    match &added {
        Ok(added) => {
            assert!(model.append(news), "{news:?}");
            assert_eq!(added.head_sequence, model.head);
        }
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
            assert!(!model.append(news), "{news:?}: {error}");
        }
    }
    added.is_ok()
}

async fn apply(traces: &StoredTraces, model: &mut Model, operation: &Operation) {
    let at = address();
    match operation {
        Operation::Append(news) => drop(append(traces, model, news, &AddOptions::new()).await),
        Operation::AppendWithStatus(news, number) => {
            let status = status(*number);
            let options = AddOptions::new().with_update(TraceUpdate::new().with_status(status));
            if append(traces, model, news, &options).await {
                model.events += usize::from(status != model.status);
                model.status = status;
            }
        }
        Operation::Keyed(key) => {
            let options = AddOptions::new().with_idempotency_key(key.to_string());
            let added = traces.add_messages(&at, vec![text("keyed")], &options).await.unwrap();
            let first = model.keys.contains_key(key);
            assert_eq!(added.repeated, first);
            if !first {
                assert!(model.append(&[New { parent: None, goal: None, tokens: None, is_aside: false }]));
                model.keys.insert(*key, model.head);
            }
            assert_eq!((added.messages[0].sequence, added.head_sequence), (model.keys[key], model.keys[key]));
        }
        Operation::Summarize(chosen, on_path) => {
            let path = model.path(model.head);
            let from = match (on_path, path.len() as u64) {
                (true, count @ 1..) => path[(chosen % count) as usize],
                _ => choose(*chosen, model.last()),
            };
            let summary = text("summary").with_summarizes(SequenceRange { from, to: model.head });
            let added = traces.add_messages(&at, vec![summary], &AddOptions::new()).await;
            assert_eq!(added.is_ok(), path.contains(&from), "{from} on {path:?}");
            if added.is_ok() {
                let parent = model.messages[from as usize - 1].parent;
                model.messages.push(Kept { parent, goal: None, tokens: None });
                (model.head, model.events) = (model.last(), model.events + 1);
            }
        }
        Operation::MoveHead(chosen) => {
            let head = choose(*chosen, model.last());
            let moved = traces.update_trace(&at, TraceUpdate::new().with_head(head)).await;
            assert_eq!(moved.is_ok(), head <= model.last());
            if moved.is_ok() && head != model.head {
                (model.head, model.events) = (head, model.events + 1);
            }
        }
        Operation::Change(chosen, goal, tokens) => {
            let sequence = choose(*chosen, model.last());
            let update = goal.iter().fold(MessageUpdate::new(), |update, goal| update.with_goal(GOALS[*goal]));
            let update = tokens.iter().fold(update, |update, tokens| update.with_tokens(*tokens));
            let changed = traces.update_message(&at, &MessageRef::Sequence(sequence), update).await;
            assert_eq!(changed.is_ok(), (1..=model.last()).contains(&sequence));
            if let (Ok(_), Some(kept)) = (&changed, model.messages.get_mut((sequence as usize).wrapping_sub(1))) {
                let before = kept.clone();
                kept.goal = goal.map(|goal| GOALS[goal].to_owned()).or(before.goal.clone());
                kept.tokens = tokens.or(before.tokens);
                model.events += usize::from(*kept != before);
            }
        }
        Operation::Status(number) => {
            let status = status(*number);
            traces.update_trace(&at, TraceUpdate::new().with_status(status)).await.unwrap();
            model.events += usize::from(status != model.status);
            model.status = status;
        }
        Operation::AddGoal => {
            let parent = model.goals.last().map(|(id, _)| id.clone());
            let new = parent.iter().fold(NewGoal::new("x"), |new, parent| new.with_parent(parent));
            let added = traces.add_goal(&at, new).await.unwrap();
            assert_eq!(added.id, (model.goals.len() + 1).to_string());
            model.goals.push((added.id, parent));
            model.events += 1;
        }
        Operation::ReplaceGoals => {
            traces.update_goal_tree(&at, GoalTree::default()).await.unwrap();
            model.goals.clear();
            model.events += 1;
        }
        Operation::Note => {
            let event_id = traces.append_event(&at, "noted", serde_json::Map::new()).await.unwrap();
            model.events += 1;
            assert_eq!(event_id, model.events as u64);
        }
        Operation::Recreate => {
            assert!(traces.delete_trace(&at).await.unwrap());
            begin(traces).await;
            *model = Model { events: 1, ..Model::default() };
        }
    }
}

async fn compare(traces: &StoredTraces, model: &Model) {
    let Whole { trace, messages, path, goals, events } = whole(traces).await;
    assert_eq!((trace.head_sequence, trace.last_sequence, trace.status), (model.head, model.last(), model.status));
    assert_eq!(trace.total_tokens, model.messages.iter().filter_map(|message| message.tokens).sum::<u64>());
    assert_eq!(events.len(), model.events);
    let kept =
        messages.iter().map(|message| Kept { parent: message.parent_sequence, goal: message.goal_id.clone(), tokens: message.tokens });
    assert_eq!(kept.collect::<Vec<_>>(), model.messages);
    assert_eq!(path, model.path(model.head));
    for goal in &goals.goals {
        let (own, sum) = model.stats(&goal.id);
        assert_eq!((goal.self_stats.message_count, goal.self_stats.total_tokens), own, "{}", goal.id);
        assert_eq!((goal.cumulative_stats.message_count, goal.cumulative_stats.total_tokens), sum, "{}", goal.id);
    }
    assert_eq!(goals.goals.iter().map(|goal| goal.id.as_str()).collect::<Vec<_>>(), {
        model.goals.iter().map(|(id, _)| id.as_str()).collect::<Vec<_>>()
    });
    let total = traces.list_traces(&TracesQuery::new().with_status(model.status)).await.unwrap().total;
    assert_eq!((total, traces.list_traces(&TracesQuery::new()).await.unwrap().total), (1, 1));
}

/// Compares what is read in pages, from every end of a path.
async fn compare_pages(traces: &StoredTraces, model: &Model, limit: usize) {
    for end in 0..=model.last() {
        let (mut read, mut earlier) = (Vec::new(), Some(end));
        while let Some(head) = earlier {
            let page = traces.get_main_path(&address(), &PathQuery::new().with_head(head).with_limit(limit)).await.unwrap();
            read.splice(0..0, page.messages.iter().map(|message| message.sequence));
            earlier = page.earlier;
        }
        assert_eq!(read, model.path(end));
    }
    for goal in GOALS {
        let (mut read, mut since, mut more) = (Vec::new(), 0, true);
        while more {
            let query = MessagesQuery::new().with_goal(goal).with_since(since).with_limit(limit);
            let page = traces.get_messages(&address(), &query).await.unwrap();
            read.extend(page.messages.iter().map(|message| message.sequence));
            (since, more) = (read.last().copied().unwrap_or(0), page.more);
        }
        let of_goal = (1..).zip(&model.messages).filter(|(_, message)| message.goal.as_deref() == Some(goal));
        assert_eq!(read, of_goal.map(|(sequence, _)| sequence).collect::<Vec<u64>>());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn operations_of_two_processes_have_the_results_of_the_model(
        operations in prop::collection::vec((0..2_usize, operation()), 1..60),
        limit in 1..7_usize,
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
            let processes = [traces(&store), traces(&store)];
            begin(&processes[0]).await;
            let mut model = Model { events: 1, ..Model::default() };
            for (process, operation) in &operations {
                apply(&processes[*process], &mut model, operation).await;
                compare(&processes[1 - process], &model).await;
            }
            compare_pages(&processes[0], &model, limit).await;
        });
    }
}
