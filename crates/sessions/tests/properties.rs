//! Properties of conversations and recovery, on random histories.

#![allow(missing_docs, clippy::unwrap_used)]

use futures::future::join_all;
use proptest::prelude::*;
use std::collections::HashSet;
use std::sync::Arc;
use treehold_core::Result;
use treehold_sessions::orchestration::{OrchestrationEvent, SnapshotFields, recover};
use treehold_sessions::{AppendOptions, CompactOptions, Message, Placeholder, Role, Sessions, SummarizeWith};
use treehold_store::MemoryStore;

const T: &str = "t";
const S: &str = "s";

/// One step of a conversation.
#[derive(Debug, Clone)]
enum Step {
    User(usize),
    /// A message with tool calls. Some are answered later, after other messages.
    Calls(usize),
    /// A result of one of the earlier calls.
    Result(prop::sample::Index),
    Compact(f64),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => (0..200_usize).prop_map(Step::User),
        2 => (1..4_usize).prop_map(Step::Calls),
        4 => any::<prop::sample::Index>().prop_map(Step::Result),
        1 => (0.0..1.0).prop_map(Step::Compact),
    ]
}

fn calls(ids: &[String]) -> Message {
    let blocks: Vec<String> = ids.iter().map(|id| format!(r#"{{"type":"toolCall","id":"{id}","name":"t","arguments":{{}}}}"#)).collect();
    Message::parse(&format!(r#"{{"role":"assistant","content":[{}]}}"#, blocks.join(","))).unwrap()
}

fn result(id: &str, number: usize) -> Message {
    let text = format!(r#"{{"role":"toolResult","toolCallId":"{id}","content":[{{"type":"text","text":"{number}"}}]}}"#);
    Message::parse(&text).unwrap()
}

async fn opened() -> Sessions {
    let sessions = Sessions::new(Arc::new(MemoryStore::new()));
    sessions.get_or_create(T, "u", "a", Some(S)).await.unwrap();
    sessions
}

async fn summary(messages: Vec<Message>) -> Result<String> {
    for _ in 0..messages.len() % 5 {
        tokio::task::yield_now().await;
    }
    Ok(format!("{} messages", messages.len()))
}

/// Plays steps and returns every message that was appended.
async fn play(sessions: &Sessions, steps: &[Step]) -> Vec<Message> {
    let (mut all, mut ids): (Vec<Message>, Vec<String>) = (Vec::new(), Vec::new());
    for (number, step) in steps.iter().enumerate() {
        let message = match step {
            Step::User(length) => Message::user(&format!("{number} {}", "x".repeat(*length)), number as i64),
            Step::Calls(count) => {
                let new: Vec<String> = (0..*count).map(|call| format!("c{number}-{call}")).collect();
                ids.extend(new.iter().cloned());
                calls(&new)
            }
            Step::Result(_) if ids.is_empty() => continue,
            Step::Result(index) => result(index.get::<String>(&ids), number),
            Step::Compact(fraction) => {
                let options = CompactOptions::new().with_compact_fraction(*fraction);
                sessions.compact(T, S, &SummarizeWith(summary), &options).await.unwrap();
                continue;
            }
        };
        sessions.append(T, S, std::slice::from_ref(&message), &AppendOptions::new()).await.unwrap();
        all.push(message);
    }
    all
}

/// Returns whether `part`, the end of `window`, does not start with a result and holds no result whose call is before it.
fn is_whole(window: &[Message], part: &[Message]) -> bool {
    let before = &window[..window.len() - part.len()];
    let gone: HashSet<&String> = before.iter().flat_map(|message| message.tool_call_ids()).collect();
    let separated = part.iter().filter_map(Message::answers).any(|id| gone.iter().any(|call| call.as_str() == id));
    !separated && part.first().is_none_or(|first| first.role() != Role::ToolResult)
}

fn sum(messages: &[Message]) -> u64 {
    messages.iter().map(Message::tokens).sum()
}

fn run<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// A budget selects the longest tail that fits and separates no result from its call, otherwise the shortest such tail.
    #[test]
    fn load_with_budget_returns_the_longest_tail_of_whole_calls(steps in prop::collection::vec(step(), 1..60), budget in 0..2_000_u64) {
        run(async {
            let sessions = opened().await;
            play(&sessions, &steps).await;
            let window = sessions.load_all(T, S).await.unwrap();
            let loaded = sessions.load_with_budget(T, S, budget).await.unwrap();
            let whole = (0..window.len()).filter(|from| is_whole(&window, &window[*from..]));
            let whole: Vec<usize> = whole.collect();
            let expected = whole.iter().find(|from| sum(&window[**from..]) <= budget).or_else(|| whole.last());
            assert_eq!(loaded, window[expected.copied().unwrap_or(0)..]);
        });
    }

    /// The full history is every message, once and in order, however often the window was compacted.
    #[test]
    fn full_history_after_compactions_has_every_message_in_order(steps in prop::collection::vec(step(), 1..80)) {
        run(async {
            let sessions = opened().await;
            let all = play(&sessions, &steps).await;
            assert_eq!(sessions.load_full(T, S).await.unwrap(), all);
            let window = sessions.load_all(T, S).await.unwrap();
            let tail = if window.first().is_some_and(Placeholder::is) { &window[1..] } else { &window[..] };
            assert_eq!(tail, &all[all.len() - tail.len()..]);
            // A result that came after its call was compacted may be in the window, but not at its start.
            assert!(tail.len() == all.len() || tail.first().is_none_or(|first| first.role() != Role::ToolResult));
        });
    }

    /// Concurrent appends and compactions lose no message and store none twice.
    #[test]
    fn concurrent_appends_and_compactions_keep_every_message_once(
        writers in prop::collection::vec(1..12_usize, 1..4),
        compactions in prop::collection::vec((0.1..0.9, 0..20_usize), 1..5),
    ) {
        run(async {
            let sessions = opened().await;
            let append = async |writer: usize, count: usize| {
                for number in 0..count {
                    let message = Message::user(&format!("{writer} {number}"), number as i64);
                    sessions.append(T, S, &[message], &AppendOptions::new()).await.unwrap();
                    tokio::task::yield_now().await;
                }
            };
            let compact = async |fraction: f64, pause: usize| {
                for _ in 0..pause {
                    tokio::task::yield_now().await;
                }
                let options = CompactOptions::new().with_compact_fraction(fraction);
                sessions.compact(T, S, &SummarizeWith(summary), &options).await.unwrap();
            };
            let appends = join_all(writers.iter().enumerate().map(|(writer, count)| append(writer, *count)));
            let compacts = join_all(compactions.iter().map(|(fraction, pause)| compact(*fraction, *pause)));
            futures::join!(appends, compacts);
            let full = sessions.load_full(T, S).await.unwrap();
            assert_eq!(full.len(), writers.iter().sum::<usize>());
            for (writer, count) in writers.iter().enumerate() {
                let prefix = format!("{writer} ");
                let own: Vec<String> = full.iter().map(Message::text).filter(|text| text.starts_with(&prefix)).collect();
                assert_eq!(own, (0..*count).map(|number| format!("{writer} {number}")).collect::<Vec<_>>());
            }
        });
    }

    /// A log recovers to the same state from every checkpoint.
    #[test]
    fn recovery_from_any_checkpoint_equals_a_full_replay(kinds in prop::collection::vec((0..9_usize, 0..3_usize, 0..3_usize), 1..40)) {
        let events: Vec<OrchestrationEvent> = kinds.iter().enumerate().map(|(number, kind)| event(number, *kind)).collect();
        let mut model = SnapshotFields::default();
        for cut in 0..=events.len() {
            let recovered = recover(None, &events[..cut]).snapshot;
            assert_eq!(recovered, model);
            // The checkpoint as it is stored.
            let stored: SnapshotFields = serde_json::from_str(&serde_json::to_string(&model).unwrap()).unwrap();
            for end in cut..=events.len() {
                assert_eq!(recover(Some(stored.clone()), &events[..end]), recover(None, &events[..end]), "{cut} {end}");
            }
            if let Some(event) = events.get(cut) {
                model.apply(event);
            }
        }
    }
}

fn event(number: usize, (kind, one, two): (usize, usize, usize)) -> OrchestrationEvent {
    let rest = match kind {
        0 => format!(r#""type":"run_started","initialTask":{{"id":"k{one}","kind":"x","input":{{}}}}"#),
        1 => format!(r#""type":"agent_spawned","agent":{{"id":"a{one}","role":"r{two}"}}"#),
        2 => format!(r#""type":"agent_input_queued","input":{{"id":"i{two}","agentId":"a{one}","payload":{{"n":{number}}}}}"#),
        3 => format!(r#""type":"agent_input_removed","inputId":"i{two}","agentId":"a{one}","reason":"delivered""#),
        4 => format!(r#""type":"agent_status_changed","agentId":"a{one}","status":"running""#),
        5 => format!(r#""type":"agent_job_failed","agentId":"a{one}","job":{{"jobId":"j","inputIds":[],"outcome":"timed_out"}}"#),
        6 => format!(r#""type":"wait_registered","wait":{{"id":"w{two}","agentId":"a{one}","kind":"agent-idle"}}"#),
        7 => format!(r#""type":"wait_resolved","waitId":"w{two}","resolution":{{"n":{number}}}"#),
        _ => r#""type":"run_completed","status":"completed""#.to_owned(),
    };
    OrchestrationEvent::parse(&format!(r#"{{"eventId":"e{number}","occurredAt":"t{number}","runId":"r{two}",{rest}}}"#)).unwrap()
}
