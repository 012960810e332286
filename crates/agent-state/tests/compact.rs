//! Compaction: when, what stays, and that failures and interrupts change nothing.

use async_trait::async_trait;
use jiff::Timestamp;
use parking_lot::Mutex;
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::future::pending;
use std::sync::Arc;
use treehold_agent_state::compact::{
    Compaction, CompactionOptions, CompactionOutcome, Compactor, ContextOverflow, EvictionOptions, FALLBACK_TRIGGER_TOKENS, Flush, Keep,
    METADATA_EVICTED, Offload, SUMMARY_NAME, Summarizer, TokenTrigger, evict_tool_results, is_context_overflow, is_summary, prompt_text,
};
use treehold_agent_state::{
    AgentState, Block, CallState, Flaw, Json, Message, NewTask, PermissionMode, Role, StateSlot, ToolResultBlock, ToolResultState,
};
use treehold_core::clock::Clock;
use treehold_core::error::{Error, ErrorKind, Result};

/// What the hooks were called with, and which of them fail, or wait for ever.
#[derive(Default)]
struct Host {
    log: Mutex<Vec<(&'static str, Vec<String>)>>,
    files: Mutex<BTreeMap<String, String>>,
    fails: Option<&'static str>,
    hangs: Option<&'static str>,
    empty: bool,
    /// Done to the state while the summary is written.
    meanwhile: Mutex<Option<Box<dyn FnOnce() + Send>>>,
}

impl Host {
    async fn call(&self, name: &'static str, messages: &[Message]) -> Result<()> {
        let ids = messages.iter().map(|message| message.id().unwrap_or_default().to_owned()).collect();
        self.log.lock().push((name, ids));
        if self.hangs == Some(name) {
            pending::<()>().await;
        }
        if self.fails == Some(name) {
            return Err(Error::new(ErrorKind::Unavailable, format!("the {name} is down")));
        }
        Ok(())
    }

    fn called(&self) -> Vec<&'static str> {
        self.log.lock().iter().map(|(name, _)| *name).collect()
    }
}

#[async_trait]
impl Summarizer for Host {
    async fn summarize(&self, messages: &[Message]) -> Result<String> {
        if let Some(meanwhile) = self.meanwhile.lock().take() {
            meanwhile();
        }
        self.call("summary", messages).await?;
        Ok(if self.empty { "  \n".to_owned() } else { format!("  {} messages\n", messages.len()) })
    }
}

#[async_trait]
impl Flush for Host {
    async fn flush(&self, messages: &[Message]) -> Result<()> {
        self.call("flush", messages).await
    }
}

#[async_trait]
impl Offload for Host {
    async fn keep_messages(&self, messages: &[Message]) -> Result<Option<String>> {
        self.call("offload", messages).await.map(|()| Some("history/s1.jsonl".to_owned()))
    }

    async fn keep_tool_result(&self, path: &str, text: &str) -> Result<String> {
        self.call("file", &[]).await?;
        self.files.lock().insert(path.to_owned(), text.to_owned());
        Ok(format!("/workspace/{path}"))
    }
}

fn message(id: usize, role: Role, content: Vec<Block>) -> Message {
    let message = Message::new(role, content, Timestamp::UNIX_EPOCH).expect("valid");
    message.edited(|fields| fields.id = Some(format!("m{id}"))).expect("valid")
}

fn user(id: usize, text: &str) -> Message {
    message(id, Role::User, vec![Block::text(text)])
}

fn call(id: usize, calls: &[&str]) -> Message {
    message(id, Role::Assistant, calls.iter().map(|call| Block::tool_use(call, "look", treehold_agent_state::Entries::new())).collect())
}

fn result(id: usize, calls: &[&str]) -> Message {
    let result = |call: &&str| Block::ToolResult(ToolResultBlock::text(call, "look", "seen", ToolResultState::Success));
    message(id, Role::Tool, calls.iter().map(result).collect())
}

fn state(messages: Vec<Message>) -> CallState {
    let mut state = AgentState::new(&StateSlot::new(Some("ada"), "s1").expect("valid"));
    *state.context_mut() = messages;
    state.set_permission_mode(PermissionMode::Explore);
    state.plan_mut().enter(Some("plans/a.md"));
    state.tasks_mut().create(NewTask::new("ship", "Ship it").with_id("t"), Timestamp::UNIX_EPOCH).expect("new");
    CallState::new(state)
}

fn users(count: usize) -> Vec<Message> {
    (0..count).map(|id| user(id, "hello")).collect()
}

fn compactor(host: &Arc<Host>, options: CompactionOptions) -> Compactor {
    let clock = Clock::from_fn(|| Timestamp::UNIX_EPOCH);
    let compactor = Compactor::new(host.clone(), options).expect("valid").with_clock(clock);
    compactor.with_flush(host.clone()).with_offload(host.clone())
}

fn ids(state: &CallState) -> Vec<String> {
    let name = |message: &Message| if is_summary(message) { "summary".to_owned() } else { message.id().unwrap_or_default().to_owned() };
    state.lock().context().iter().map(name).collect()
}

fn done(outcome: CompactionOutcome) -> Compaction {
    match outcome {
        CompactionOutcome::Compacted(compaction) => compaction,
        other => panic!("{other:?}"),
    }
}

#[test]
fn defaults_and_dynamic_numbers_are_those_of_agentscope() {
    let options = CompactionOptions::new();
    assert_eq!((options.trigger_messages, options.keep_messages, options.reserved_tokens), (50, 20, 20_000));
    assert_eq!((options.keep_tokens_min, options.keep_tokens_max, options.keep_ratio), (2_000, 8_000, 0.25));
    assert_eq!(FALLBACK_TRIGGER_TOKENS, 160_000);
    for (window, trigger, keep) in [
        (None, 160_000, Keep::Messages(20)),
        (Some(128_000), 108_000, Keep::Tokens(8_000)),
        (Some(40_000), 20_000, Keep::Tokens(5_000)),
        (Some(28_000), 8_000, Keep::Tokens(2_000)),
        (Some(20_001), 1, Keep::Tokens(2_000)),
        // The reserve is larger than the window.
        (Some(20_000), 10_000, Keep::Tokens(2_000)),
        (Some(8_000), 4_000, Keep::Tokens(2_000)),
        (Some(0), 1, Keep::Tokens(2_000)),
        (Some(u64::MAX), u64::MAX - 20_000, Keep::Tokens(8_000)),
    ] {
        let options = CompactionOptions::new().with_context_window(window);
        assert_eq!((options.effective_trigger_tokens(), options.effective_keep()), (Some(trigger), keep), "{window:?}");
        assert_eq!((options.is_due(49, trigger - 1), options.is_due(49, trigger), options.is_due(50, 0)), (false, true, true));
    }
    let by_tokens = CompactionOptions::new().with_trigger_messages(0).with_trigger_tokens(TokenTrigger::At(10));
    assert_eq!((by_tokens.is_due(1_000, 9), by_tokens.is_due(0, 10)), (false, true));
    assert!(!by_tokens.with_trigger_tokens(TokenTrigger::Never).is_due(usize::MAX, u64::MAX));
    for ratio in [f64::NAN, -0.1, 1.1, f64::INFINITY] {
        let options = CompactionOptions::new().with_dynamic_keep(20, 1, 2, ratio);
        let error = Compactor::new(Arc::new(Host::default()), options).expect_err("outside of the range");
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    }
    let eviction = EvictionOptions::new();
    assert_eq!((eviction.chars_max, eviction.preview_chars, eviction.directory.as_str()), (80_000, 2_000, "large_tool_results"));
    assert_eq!(eviction.excluded_tools.len(), 9);
}

#[tokio::test]
async fn context_is_compacted_from_the_trigger_on_and_nothing_else_changes() {
    let host = Arc::new(Host::default());
    let compactor = compactor(&host, CompactionOptions::new());
    let short = state(users(49));
    assert!(matches!(compactor.compact_if_due(&short, pending()).await, Ok(CompactionOutcome::NotDue)));
    assert!(host.called().is_empty());

    let call = state(users(50));
    let before = call.snapshot();
    let compaction = done(compactor.compact_if_due(&call, pending()).await.expect("compacted"));
    assert_eq!((compaction.replaced, compaction.kept_at.as_deref()), (30, Some("history/s1.jsonl")));
    assert_eq!((compaction.tokens_before, compaction.tokens_after), (before.tokens(), call.lock().tokens()));
    assert!(compaction.flush_error.is_none());
    let expected: Vec<String> = (30..50).map(|id| format!("m{id}")).collect();
    assert_eq!(ids(&call)[1..], expected);
    // Memories and history first, then the summary.
    let replaced: Vec<String> = (0..30).map(|id| format!("m{id}")).collect();
    assert_eq!(*host.log.lock(), [("flush", replaced.clone()), ("offload", replaced.clone()), ("summary", replaced)]);
    let after = call.snapshot();
    let summary = &after.context()[0];
    assert_eq!((summary.role(), summary.name(), summary.time()), (Some(Role::User), Some(SUMMARY_NAME), Some(Timestamp::UNIX_EPOCH)));
    assert!(summary.text().contains("\n30 messages\n") && summary.text().contains("`history/s1.jsonl`"), "{}", summary.text());
    let mut restored = after.clone();
    *restored.context_mut() = before.context().to_vec();
    assert_eq!(restored, before);
    assert_eq!(after.permissions().mode, PermissionMode::Explore);
}

#[tokio::test]
async fn next_summary_replaces_the_one_before_and_the_hosts_messages_stay() {
    let host = Arc::new(Host::default());
    let compactor = compactor(&host, CompactionOptions::new().with_trigger_messages(4).with_keep(Keep::Messages(2)));
    let system = message(9, Role::System, vec![Block::text("be kind")]);
    let call = state([vec![system], users(4)].concat());
    done(compactor.compact_if_due(&call, pending()).await.expect("compacted"));
    assert_eq!(ids(&call), ["m9", "summary", "m2", "m3"]);
    call.lock().context_mut().extend([user(4, "x"), user(5, "y")]);
    done(compactor.compact_if_due(&call, pending()).await.expect("compacted"));
    assert_eq!(ids(&call), ["m9", "summary", "m4", "m5"]);
    // The summariser reads the earlier summary, the other hooks do not.
    let second: Vec<_> = host.log.lock()[3..].iter().map(|(name, ids)| (*name, ids.len())).collect();
    assert_eq!(second, [("flush", 2), ("offload", 2), ("summary", 3)]);
    // A summary alone is not summarised again.
    let alone = state(call.lock().context()[..2].to_vec());
    assert!(matches!(compactor.compact(&alone, pending()).await, Ok(CompactionOutcome::NotDue)));
    assert!(matches!(compactor.compact(&state(Vec::new()), pending()).await, Ok(CompactionOutcome::NotDue)));
}

#[tokio::test]
async fn equal_summaries_have_equal_ids() {
    let ids = async || {
        let call = state(users(50));
        done(compactor(&Arc::default(), CompactionOptions::new()).compact_if_due(&call, pending()).await.expect("compacted"));
        call.lock().context()[0].id().map(str::to_owned)
    };
    let id = ids().await.expect("an id");
    assert!(id.starts_with("__compaction_summary__:"), "{id}");
    assert_eq!(ids().await, Some(id));
}

#[tokio::test]
async fn kept_messages_start_before_the_call_of_their_first_result() {
    // The table: the context, how many to keep, and the first one that is kept.
    let table = [
        (vec![user(0, "a"), call(1, &["1"]), result(2, &["1"]), user(3, "b")], 2, Some("m1")),
        (vec![user(0, "a"), call(1, &["1", "2"]), result(2, &["1"]), result(3, &["2"]), user(4, "b")], 2, Some("m1")),
        // Calls that overlap pull each other in.
        (vec![user(0, "a"), call(1, &["1"]), call(2, &["2"]), result(3, &["1"]), result(4, &["2"]), user(5, "b")], 2, Some("m1")),
        // Nothing before the call: what follows its result is kept instead.
        (vec![call(0, &["1"]), result(1, &["1"]), user(2, "b"), user(3, "c")], 3, Some("m2")),
        (vec![call(0, &["1"]), result(1, &["1"])], 1, None),
        // The open call of the last answer stays, one that nobody will answer does not hold the rest back.
        (vec![user(0, "a"), call(1, &["1"])], 1, Some("m1")),
        (vec![user(0, "a"), call(1, &["1"]), user(2, "later"), user(3, "b")], 1, Some("m1")),
        (vec![call(0, &["1"]), user(1, "b"), message(2, Role::Assistant, vec![]), user(3, "c")], 1, Some("m3")),
    ];
    for (messages, keep, first) in table {
        let call = state(messages);
        let options = CompactionOptions::new().with_trigger_messages(1).with_keep(Keep::Messages(keep));
        let before = ids(&call);
        let outcome = compactor(&Arc::default(), options).compact_if_due(&call, pending()).await.expect("no failure");
        match first {
            Some(first) => assert_eq!((done(outcome).replaced > 0, ids(&call)[1].as_str()), (true, first), "{before:?}"),
            None => assert!(matches!(outcome, CompactionOutcome::NotDue), "{before:?}"),
        }
    }
}

#[tokio::test]
async fn tokens_to_keep_are_a_budget_with_at_least_one_message() {
    // Four tokens for the frame and one for each four characters.
    let messages = vec![user(0, &"x".repeat(400)), user(1, &"x".repeat(400)), user(2, &"x".repeat(40)), user(3, &"x".repeat(40))];
    for (budget, first) in [(28, 2), (27, 3), (1, 3), (132, 1), (131, 2)] {
        let call = state(messages.clone());
        let options = CompactionOptions::new().with_trigger_tokens(TokenTrigger::At(236)).with_keep(Keep::Tokens(budget));
        let compaction = done(compactor(&Arc::default(), options).compact_if_due(&call, pending()).await.expect("compacted"));
        assert_eq!((compaction.tokens_before, compaction.replaced), (236, first), "{budget}");
    }
    // Fifty short messages fit in the budget; the number of messages then decides.
    let call = state(users(50));
    let options = CompactionOptions::new().with_context_window(Some(128_000));
    assert_eq!(done(compactor(&Arc::default(), options).compact_if_due(&call, pending()).await.expect("compacted")).replaced, 30);
}

/// Each hook fails in turn. Only a flush may.
#[tokio::test]
async fn failed_hooks_leave_the_context_as_it_was() {
    for fails in ["flush", "offload", "summary"] {
        let host = Arc::new(Host { fails: Some(fails), ..Host::default() });
        let call = state(users(50));
        let before = call.snapshot();
        let outcome = compactor(&host, CompactionOptions::new()).compact_if_due(&call, pending()).await;
        if fails == "flush" {
            let error = done(outcome.expect("goes on")).flush_error.expect("it is reported");
            assert_eq!(error.kind(), ErrorKind::Unavailable);
        } else {
            assert_eq!(outcome.expect_err("fails").kind(), ErrorKind::Unavailable);
            assert_eq!(call.snapshot(), before);
        }
    }
    let host = Arc::new(Host { empty: true, ..Host::default() });
    let call = state(users(50));
    let error = compactor(&host, CompactionOptions::new()).compact_if_due(&call, pending()).await.expect_err("an empty summary");
    assert_eq!((error.kind(), ids(&call).len()), (ErrorKind::InvalidArgument, 50));
}

/// The interrupt comes before each hook, and during it.
#[tokio::test]
async fn interrupts_end_a_compaction_at_every_step() {
    let order = ["flush", "offload", "summary"];
    for (at, hangs) in order.into_iter().enumerate() {
        let host = Arc::new(Host { hangs: Some(hangs), ..Host::default() });
        let call = state(users(50));
        let before = call.snapshot();
        // Completes once the hook hangs.
        let interrupted = async {
            while host.called().last() != Some(&hangs) {
                tokio::task::yield_now().await;
            }
        };
        let outcome = compactor(&host, CompactionOptions::new()).compact_if_due(&call, interrupted).await;
        assert!(matches!(outcome, Ok(CompactionOutcome::Interrupted)), "{hangs}");
        assert_eq!((call.snapshot(), host.called()), (before, order[..=at].to_vec()));
    }
    let host = Arc::new(Host::default());
    let call = state(users(50));
    let outcome = compactor(&host, CompactionOptions::new()).compact_if_due(&call, async {}).await;
    assert!(matches!(outcome, Ok(CompactionOutcome::Interrupted)));
    assert_eq!((host.called(), ids(&call).len()), (Vec::new(), 50));
    // With the summary itself: the context is not touched any more.
    let interrupted = async {
        while host.called().last() != Some(&"summary") {
            tokio::task::yield_now().await;
        }
    };
    let outcome = compactor(&host, CompactionOptions::new()).compact_if_due(&call, interrupted).await;
    assert!(matches!(outcome, Ok(CompactionOutcome::Interrupted)));
    assert_eq!(ids(&call).len(), 50);
}

#[tokio::test]
async fn messages_that_come_during_the_summary_stay() {
    let call = state(users(50));
    let host = Arc::new(Host::default());
    let added = call.clone();
    *host.meanwhile.lock() = Some(Box::new(move || added.lock().context_mut().push(user(50, "new"))));
    done(compactor(&host, CompactionOptions::new()).compact_if_due(&call, pending()).await.expect("compacted"));
    assert_eq!((ids(&call).len(), ids(&call).last().map(String::as_str)), (22, Some("m50")));

    // If what was summarised has changed, the summary is void.
    let call = state(users(50));
    let changed = call.clone();
    *host.meanwhile.lock() = Some(Box::new(move || drop(changed.lock().context_mut().remove(3))));
    let error = compactor(&host, CompactionOptions::new()).compact_if_due(&call, pending()).await.expect_err("changed");
    assert_eq!((error.kind(), ids(&call).len()), (ErrorKind::Conflict, 49));
}

#[tokio::test]
async fn context_that_is_too_long_for_the_model_is_compacted_and_sent_once_more() {
    let overflow = || Error::from(ContextOverflow);
    // How often the model refuses; whether there is anything to compact; the interrupt; the calls of the model; success.
    let table = [(0, 3, false, 1, true), (1, 3, false, 2, true), (2, 3, false, 2, false), (1, 1, false, 1, false), (1, 3, true, 1, false)];
    for (refusals, messages, interrupt, expected, succeeds) in table {
        let call = state(users(messages));
        let interrupted = async {
            if !interrupt {
                pending::<()>().await;
            }
        };
        let mut calls = 0;
        let answer = compactor(&Arc::default(), CompactionOptions::new())
            .with_recovery(&call, interrupted, async |state: &CallState| {
                calls += 1;
                if calls <= refusals { Err(overflow()) } else { Ok(state.lock().context().len()) }
            })
            .await;
        assert_eq!((calls, answer.is_ok()), (expected, succeeds));
        if let Err(error) = answer {
            assert!(is_context_overflow(&error), "{error}");
        }
    }
    // Other errors are not answered by a compaction, and a failed one does not hide the refusal.
    let call = state(users(3));
    let host = Arc::new(Host { fails: Some("summary"), ..Host::default() });
    let other = async |_: &CallState| Err::<(), _>(Error::new(ErrorKind::Unavailable, "the model is down"));
    let error = compactor(&host, CompactionOptions::new()).with_recovery(&call, pending(), other).await.expect_err("down");
    assert_eq!((error.kind(), host.called().len()), (ErrorKind::Unavailable, 0));
    let refused = async |_: &CallState| Err::<(), _>(overflow());
    let error = compactor(&host, CompactionOptions::new()).with_recovery(&call, pending(), refused).await.expect_err("refused");
    assert!(is_context_overflow(&error) && host.called().contains(&"summary") && ids(&call).len() == 3);
}

#[test]
fn overflow_is_recognised_by_source_and_by_words() {
    let texts = [
        ("error code context_length_exceeded", true),
        ("This model's Maximum Context is 8192", true),
        ("please REDUCE THE LENGTH of the messages", true),
        ("too many tokens", true),
        ("too many requests", false),
        ("", false),
    ];
    for (text, overflow) in texts {
        assert_eq!(is_context_overflow(&Error::new(ErrorKind::Internal, text)), overflow, "{text}");
    }
    let wrapped = Error::new(ErrorKind::Internal, "the call failed").with_source(Error::from(ContextOverflow));
    assert!(is_context_overflow(&wrapped));
}

fn long_result(id: &str, tool: &str, text: &str) -> Message {
    message(0, Role::Tool, vec![Block::ToolResult(ToolResultBlock::text(id, tool, text, ToolResultState::Success))])
}

fn shown(call: &CallState, at: usize) -> ToolResultBlock {
    match call.lock().context()[at].content().into_iter().next() {
        Some(Block::ToolResult(result)) => result,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn long_results_go_to_files_and_short_and_excluded_ones_stay() {
    let host = Host::default();
    let options = EvictionOptions::new();
    let (exact, long) = ("é".repeat(80_000), format!("{}{}{}", "a".repeat(2_000), "é".repeat(80_000), "z".repeat(2_000)));
    let call = state(vec![
        long_result("call/1", "execute", &exact),
        long_result("call/1", "execute", &long),
        long_result("2", "read_file", &long),
        user(3, &long),
    ]);
    let before = call.snapshot();
    assert_eq!(evict_tool_results(&call, "my agent", &options, &host).await.expect("evicted"), 1);
    let after = call.snapshot();
    assert_eq!([0, 2, 3].map(|at| after.context()[at].clone()), [0, 2, 3].map(|at| before.context()[at].clone()));
    let files = host.files.lock().clone();
    let (path, text) = files.first_key_value().expect("a file");
    assert!(path.starts_with("large_tool_results/my_agent/call_1-") && *text == long, "{path}");
    let result = shown(&call, 1);
    let placeholder = result.output_text();
    assert!(placeholder.contains(&format!("`/workspace/{path}`")) && placeholder.contains("84000 characters"), "{placeholder}");
    assert!(placeholder.contains(&format!("\n{}\n", "a".repeat(2_000))) && placeholder.ends_with(&format!("\n{}", "z".repeat(2_000))));
    assert!(placeholder.chars().count() < 4_300);
    assert_eq!((result.state, result.metadata.get(METADATA_EVICTED).map(Json::as_str)), (ToolResultState::Success, Some("true")));
    // It is marked, so it is not evicted again.
    let small = options.clone().with_chars_max(10).with_excluded_tools(["execute"; 0]);
    let second = evict_tool_results(&call, "my agent", &small, &host).await.expect("evicted");
    assert_eq!((second, shown(&call, 1).output_text()), (2, placeholder));
}

#[tokio::test]
async fn failed_eviction_leaves_the_context_as_it_was() {
    let host = Host { fails: Some("file"), ..Host::default() };
    let call = state(vec![long_result("1", "execute", &"x".repeat(100))]);
    let before = call.snapshot();
    let options = EvictionOptions::new().with_chars_max(99);
    assert_eq!(evict_tool_results(&call, "a", &options, &host).await.expect_err("no file").kind(), ErrorKind::Unavailable);
    assert_eq!(call.snapshot(), before);
}

#[tokio::test]
async fn ids_that_look_alike_have_different_files_and_other_blocks_stay() {
    let host = Host::default();
    let image = r#"{"type":"image","source":{"type":"url","url":"https://example.com/x.png"},"note":1}"#;
    let text = "x".repeat(100);
    let parsed = |id: &str| {
        let block = format!(r#"{{"type":"tool_result","id":"{id}","output":[{image},{{"type":"text","text":"{text}"}}],"extra":1}}"#);
        Message::parse(&format!(r#"{{"id":"m{id}","role":"TOOL","content":[{block}]}}"#)).expect("valid")
    };
    let call = state(["a/b", "a_b", "../b"].map(parsed).to_vec());
    let options = EvictionOptions::new().with_chars_max(99).with_preview_chars(200).with_directory("big/");
    assert_eq!(evict_tool_results(&call, "../up", &options, &host).await.expect("evicted"), 3);
    let paths: Vec<String> = host.files.lock().keys().cloned().collect();
    assert_eq!(paths.len(), 3);
    assert!(paths.iter().all(|path| path.starts_with("big/___up/") && !path.contains("..")), "{paths:?}");
    assert_eq!(shown(&call, 0).output.len(), 2);
    // A preview is never more than the text.
    assert!(shown(&call, 0).output_text().contains("first 50 characters"));
    let state = call.lock();
    assert!(
        state.context().iter().all(|message| message.json().as_str().contains(image) && message.json().as_str().contains(r#""extra":1"#))
    );
}

#[test]
fn prompt_text_names_calls_and_cuts_results() {
    let long = "é".repeat(501);
    let messages = [
        message(0, Role::System, vec![Block::text("be kind")]),
        user(1, " hello "),
        call(2, &["1"]),
        message(3, Role::Tool, vec![Block::ToolResult(ToolResultBlock::text("1", "look", &long, ToolResultState::Error))]),
        message(4, Role::Assistant, vec![]),
    ];
    let expected = format!("User: hello\n\nAssistant: [call of look]\n\nTool: [result of look, error] {}…", "é".repeat(500));
    assert_eq!(prompt_text(&messages), expected);
}

/// A conversation of any shape: texts, calls, and results of any earlier calls.
fn conversations() -> impl Strategy<Value = Vec<Message>> {
    prop::collection::vec((0..4_u8, 0..4_usize, 0..6_usize), 0..24).prop_map(|steps| {
        let mut open: Vec<String> = Vec::new();
        let mut next = 0;
        let mut messages = Vec::new();
        for (id, (kind, size, which)) in steps.into_iter().enumerate() {
            messages.push(match kind {
                0 => user(id, &"word ".repeat(size * 20)),
                1 => message(id, if id == 0 { Role::System } else { Role::Assistant }, vec![Block::text("x")]),
                2 => {
                    let names: Vec<String> = (0..=size).map(|call| format!("{}", (next + call) % 7)).collect();
                    next += size + 1;
                    open.extend(names.iter().cloned());
                    call(id, &names.iter().map(String::as_str).collect::<Vec<_>>())
                }
                _ => {
                    let count = (size + 1).min(open.len());
                    let answered: Vec<String> = (0..count).map(|_| open.swap_remove(which % open.len())).collect();
                    result(id, &answered.iter().map(String::as_str).collect::<Vec<_>>())
                }
            });
        }
        messages
    })
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(400) })]

    /// Whatever the conversation and the options: what is kept is the end of the context, and no result loses its call.
    #[test]
    fn compaction_never_splits_calls_and_results(messages in conversations(), keep in 0..20_usize, by_tokens in any::<bool>()) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        let call = state(messages);
        let before = call.snapshot();
        let keep = if by_tokens { Keep::Tokens(keep as u64 * 10) } else { Keep::Messages(keep) };
        let options = CompactionOptions::new().with_trigger_messages(1).with_keep(keep);
        let outcome = runtime.block_on(compactor(&Arc::default(), options).compact(&call, pending())).expect("no failure");
        let after = call.snapshot();
        let orphans = |state: &AgentState| state.flaws().iter().filter(|flaw| matches!(flaw, Flaw::OrphanResult { .. })).count();
        prop_assert!(orphans(&after) <= orphans(&before));
        match outcome {
            CompactionOutcome::NotDue => prop_assert_eq!(after, before),
            CompactionOutcome::Compacted(compaction) => {
                let system = before.context().iter().take_while(|message| message.role() == Some(Role::System)).count();
                let kept = before.context().len() - system - compaction.replaced;
                prop_assert!(compaction.replaced > 0 && kept > 0);
                prop_assert_eq!(after.context().len(), system + 1 + kept);
                prop_assert_eq!(&after.context()[..system], &before.context()[..system]);
                prop_assert_eq!(&after.context()[system + 1..], &before.context()[before.context().len() - kept..]);
                // The open calls of the last answer are kept.
                if let Some(last) = before.context().iter().rposition(|message| message.role() == Some(Role::Assistant)) {
                    let open = |state: &AgentState, at: usize| state.open_calls().iter().filter(|open| open.message == at).count();
                    if open(&before, last) > 0 {
                        prop_assert_eq!(open(&after, last - compaction.replaced + 1), open(&before, last));
                    }
                }
                let result = after.to_json().expect("shallow");
                prop_assert_eq!(AgentState::from_stored(&result).expect("readable"), after);
            }
            CompactionOutcome::Interrupted => prop_assert!(false, "nobody interrupts"),
            _ => prop_assert!(false, "a new outcome"),
        }
    }
}
