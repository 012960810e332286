//! Sessions and their messages.

use super::support::{SESSION, TENANT, USER, append, calls, reference, result, sessions, texts, user, version, with_session};
use futures::future::{join_all, try_join_all};
use std::collections::BTreeSet;
use std::sync::Arc;
use treehold_core::ErrorKind;
use treehold_sessions::{
    AppendOptions, CompactOptions, InspectorDataSource, MemoScope, Message, OrchestrationPersistence, SandboxMemoProvider,
    SessionContextUsage, SessionStore, SessionTraceStore, SkillLog, SummarizeWith, Usage, UserSessionLister,
};
use treehold_store::{Batch, Namespace, NamespacesOptions, ScanEntry, ScanOptions, Store};

/// `get_or_create` never changes an existing session, and concurrent calls create it once.
pub(crate) async fn existing_session_is_returned_unchanged(store: Arc<dyn Store>) {
    let sessions = with_session(&store).await;
    append(&sessions, &[user(1)]).await;
    sessions.set_title(TENANT, SESSION, Some("Titled")).await.unwrap();
    let before = sessions.info(TENANT, SESSION).await.unwrap().unwrap();
    let again = sessions.get_or_create(TENANT, USER, "another", Some(SESSION)).await.unwrap();
    assert_eq!((again.session_id.as_str(), again.session_ref.to_string().as_str(), again.created), (SESSION, "acme:s-1", false));
    let after = sessions.info(TENANT, SESSION).await.unwrap().unwrap();
    assert_eq!(after, before);
    assert_eq!((after.agent_id.as_str(), after.title.as_deref()), ("helper", Some("Titled")));
    assert!(after.created_at < after.updated_at);
    assert_eq!(sessions.load_all(TENANT, SESSION).await.unwrap(), [user(1)]);
    let events = sessions.load_events(TENANT, SESSION).await.unwrap();
    let expected = format!(
        r#"{{"type":"init","sessionId":"s-1","tenantId":"acme","userId":"ada","agentId":"helper","title":null,"createdAt":{}}}"#,
        after.created_at
    );
    assert_eq!((events[0].as_str(), events.len()), (expected.as_str(), 2));
    // Concurrent calls create one session.
    let made = join_all((0..8).map(|_| sessions.get_or_create(TENANT, USER, "helper", Some("s-2")))).await;
    assert_eq!(made.into_iter().filter(|made| made.as_ref().unwrap().created).count(), 1);
}

/// Without an id, every call creates a session.
pub(crate) async fn session_without_id_gets_a_new_one(store: Arc<dyn Store>) {
    let sessions = sessions(&store);
    let one = sessions.get_or_create(TENANT, USER, "helper", None).await.unwrap();
    let other = sessions.get_or_create(TENANT, USER, "helper", None).await.unwrap();
    assert!(one.created && other.created && one.session_id != other.session_id);
}

/// Reads of an unknown session find nothing, and appends to it are refused.
pub(crate) async fn unknown_session_has_no_messages_and_takes_none(store: Arc<dyn Store>) {
    let sessions = sessions(&store);
    assert!(sessions.load_all(TENANT, "unknown").await.unwrap().is_empty());
    assert!(sessions.load_full(TENANT, "unknown").await.unwrap().is_empty());
    assert!(sessions.load_with_budget(TENANT, "unknown", 10).await.unwrap().is_empty());
    assert!(sessions.load_compacted(TENANT, "unknown", None, None).await.unwrap().is_empty());
    assert_eq!(sessions.info(TENANT, "unknown").await.unwrap(), None);
    let error = sessions.append(TENANT, "unknown", &[user(1)], &AppendOptions::new()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
}

/// A limit selects the newest messages; without one the whole window is loaded.
pub(crate) async fn load_with_limit_returns_the_newest_messages_in_order(store: Arc<dyn Store>) {
    let sessions = with_session(&store).await;
    let all: Vec<Message> = (0..75).map(user).collect();
    append(&sessions, &all[..60]).await;
    append(&sessions, &all[60..]).await;
    assert_eq!(sessions.load(TENANT, SESSION, None).await.unwrap(), all);
    for limit in [0, 1, 50, 74, 75, 76, usize::MAX] {
        let loaded = sessions.load(TENANT, SESSION, Some(limit)).await.unwrap();
        assert_eq!(loaded, all[75 - limit.min(75)..], "{limit}");
    }
    assert_eq!(sessions.load_full(TENANT, SESSION).await.unwrap(), all);
}

/// Messages keep their text, with white space, numbers, unknown fields and unknown kinds of blocks.
pub(crate) async fn messages_with_unknown_fields_survive_byte_for_byte(store: Arc<dyn Store>) {
    let sessions = with_session(&store).await;
    let given = [
        r#"{"role":"user","content":"é\u00e9\u0000","timestamp":1.50,"extra":{"b":1,"a":[ ]}}"#,
        r#"{ "role" : "assistant",  "content":[{"type":"hologram","watts":9.50},{"type":"toolCall","id":"c","name":"t","arguments":{"z":1,"a":2}}], "stopReason":"later" }"#,
        r#"{"role":"toolResult","toolCallId":"c","toolName":"t","content":[],"details":{"z":1,"a":2},"isError":false,"timestamp":3}"#,
    ];
    append(&sessions, &given.map(|text| Message::parse(text).unwrap())).await;
    assert_eq!(texts(&sessions.load_all(TENANT, SESSION).await.unwrap()), given);
}

/// A budget selects the longest tail that fits and separates no result from its call, otherwise the shortest such tail.
pub(crate) async fn load_with_budget_returns_the_longest_tail_of_whole_calls(store: Arc<dyn Store>) {
    let sessions = with_session(&store).await;
    let big = Message::user(&"x".repeat(4_000), 9);
    let all = [user(0), user(1), calls(&["a", "b"]), result("a"), user(2), result("b"), user(3), calls(&["c"]), result("c")];
    append(&sessions, &all).await;
    let tokens: Vec<u64> = all.iter().map(Message::tokens).collect();
    let sum = |from: usize| tokens[from..].iter().sum::<u64>();
    for (budget, from) in [
        (u64::MAX, 0),
        (sum(0), 0),
        (sum(0) - 1, 1),
        (sum(2), 2),
        // A tail that starts between the call of `a` and `b` and the last of their results would separate them.
        (sum(2) - 1, 6),
        (sum(6), 6),
        (sum(6) - 1, 7),
        (sum(7), 7),
        // Never less than the newest message with its call.
        (sum(7) - 1, 7),
        (1, 7),
        (0, 7),
    ] {
        assert_eq!(sessions.load_with_budget(TENANT, SESSION, budget).await.unwrap(), all[from..], "budget {budget}");
    }
    append(&sessions, std::slice::from_ref(&big)).await;
    assert_eq!(sessions.load_with_budget(TENANT, SESSION, 5).await.unwrap(), std::slice::from_ref(&big));
    // A tail that is longer than one read of the search.
    let many: Vec<Message> = (0..500).map(user).collect();
    append(&sessions, &many).await;
    assert_eq!(sessions.load_with_budget(TENANT, SESSION, 10 * 300).await.unwrap(), many[200..]);
    let everything = sessions.load_with_budget(TENANT, SESSION, u64::MAX).await.unwrap();
    assert_eq!(everything.len(), all.len() + 1 + many.len());
}

/// An append repeated with its idempotency key returns the first result and changes nothing.
pub(crate) async fn append_repeated_with_its_key_takes_effect_once(store: Arc<dyn Store>) {
    let sessions = with_session(&store).await;
    let before = version(&store).await;
    let nothing = sessions.append(TENANT, SESSION, &[], &AppendOptions::new()).await.unwrap();
    assert_eq!((nothing.positions, version(&store).await), (0..0, before));
    let once = AppendOptions::new().with_idempotency_key("k/1");
    let first = sessions.append(TENANT, SESSION, &[user(1), user(2)], &once).await.unwrap();
    assert_eq!((first.positions.clone(), first.repeated), (0..2, false));
    append(&sessions, &[user(3)]).await;
    let again = sessions.append(TENANT, SESSION, &[user(1), user(2)], &once).await.unwrap();
    assert_eq!((again.positions, again.repeated), (0..2, true));
    assert_eq!(sessions.load_all(TENANT, SESSION).await.unwrap(), [user(1), user(2), user(3)]);
    // Of concurrent appends with one key, one takes effect.
    let twice = AppendOptions::new().with_idempotency_key("k/2");
    let both = join_all((0..6).map(|_| sessions.append(TENANT, SESSION, std::slice::from_ref(&ONE), &twice))).await;
    assert_eq!(both.iter().filter(|done| !done.as_ref().unwrap().repeated).count(), 1);
    assert_eq!(sessions.load_all(TENANT, SESSION).await.unwrap().len(), 4);
}

static ONE: std::sync::LazyLock<Message> = std::sync::LazyLock::new(|| user(9));

/// Turn indexes are assigned in the commit, so they rise without gaps.
pub(crate) async fn concurrent_turns_get_indexes_without_gaps(store: Arc<dyn Store>) {
    let sessions = with_session(&store).await;
    let usage = Usage::of_tokens(10, 5).unwrap();
    let mut indexes = try_join_all((0..20).map(|_| sessions.record_turn(TENANT, SESSION, &usage))).await.unwrap();
    indexes.sort_unstable();
    assert_eq!(indexes, (0..20).collect::<Vec<u64>>());
    let events = sessions.load_events(TENANT, SESSION).await.unwrap();
    let turns: Vec<u64> =
        events[1..].iter().map(|event| event.view::<serde_json::Value>().unwrap()["turnIndex"].as_u64().unwrap()).collect();
    assert_eq!(turns, (0..20).collect::<Vec<u64>>());
}

/// Several writers may append to one session. No message is lost, stored twice, or separated from its batch.
pub(crate) async fn concurrent_appends_keep_each_batch_whole_and_in_order(store: Arc<dyn Store>) {
    let sessions = with_session(&store).await;
    let writer = async |number: usize| {
        for batch in 0..12 {
            let first = number * 1_000 + batch * 3;
            append(&sessions, &[user(first), user(first + 1), user(first + 2)]).await;
        }
    };
    join_all((0..4).map(writer)).await;
    let all = sessions.load_all(TENANT, SESSION).await.unwrap();
    let different: BTreeSet<&str> = texts(&all).into_iter().collect();
    assert_eq!((all.len(), different.len()), (144, 144));
    for batch in all.chunks(3) {
        let times: Vec<f64> = batch.iter().map(|message| message.timestamp().unwrap()).collect();
        assert!(times[0] + 1.0 == times[1] && times[1] + 1.0 == times[2], "{times:?}");
    }
    for number in 0..4 {
        let own = all.iter().map(|message| message.timestamp().unwrap() as usize).filter(|time| time / 1_000 == number);
        assert!(own.is_sorted(), "writer {number}");
    }
}

/// An append with usage records the messages, the turn and the time of the session together.
pub(crate) async fn append_with_usage_records_turn_and_time(store: Arc<dyn Store>) {
    let sessions = with_session(&store).await;
    let before = sessions.list(TENANT, USER, 10, None).await.unwrap().sessions[0].updated_at;
    let usage = Usage::parse(r#"{"inputTokens":7,"outputTokens":3,"cacheReadTokens":2,"cacheWriteTokens":1,"region":"eu"}"#).unwrap();
    let options = AppendOptions::new().with_usage(usage);
    let appended = sessions.append(TENANT, SESSION, &[user(1), user(2)], &options).await.unwrap();
    assert_eq!((appended.positions, appended.turn_index), (0..2, Some(0)));
    let listed = sessions.list(TENANT, USER, 10, None).await.unwrap().sessions;
    let info = sessions.info(TENANT, SESSION).await.unwrap().unwrap();
    assert!(listed.len() == 1 && listed[0].updated_at == info.updated_at && info.updated_at > before);
    let turn = sessions.load_events(TENANT, SESSION).await.unwrap().pop().unwrap();
    let expected = format!(
        r#"{{"type":"turn","turnIndex":0,"inputTokens":7,"outputTokens":3,"cacheReadTokens":2,"cacheWriteTokens":1,"updatedAt":{},"usage":{{"inputTokens":7,"outputTokens":3,"cacheReadTokens":2,"cacheWriteTokens":1,"region":"eu"}}}}"#,
        info.updated_at
    );
    assert_eq!(turn.as_str(), expected);
}

/// Pages list only the sessions of one user, newest first.
pub(crate) async fn sessions_of_a_user_are_listed_newest_first(store: Arc<dyn Store>) {
    let sessions = sessions(&store);
    for number in 0..25 {
        sessions.get_or_create(TENANT, USER, "helper", Some(&format!("s-{number:02}"))).await.unwrap();
    }
    sessions.get_or_create(TENANT, "bob", "helper", Some("bobs")).await.unwrap();
    sessions.get_or_create("other", USER, "helper", Some("elsewhere")).await.unwrap();
    sessions.append(TENANT, "s-03", &[user(1)], &AppendOptions::new()).await.unwrap();
    let mut expected: Vec<String> = (0..25).filter(|number| *number != 3).map(|number| format!("s-{number:02}")).rev().collect();
    expected.insert(0, "s-03".to_owned());
    let (mut listed, mut after) = (Vec::new(), None);
    loop {
        let page = sessions.list(TENANT, USER, 10, after.as_deref()).await.unwrap();
        assert!(page.sessions.len() <= 10 && page.sessions.iter().is_sorted_by(|one, next| one.updated_at >= next.updated_at));
        listed.extend(page.sessions.into_iter().map(|session| session.session_id));
        match page.next {
            Some(next) => after = Some(next),
            None => break,
        }
    }
    assert_eq!(listed, expected);
    assert_eq!(sessions.list_all(TENANT, USER).await.unwrap().len(), 25);
}

/// Deletion removes everything of a session, so a later session with the same id starts empty.
pub(crate) async fn session_recreated_after_deletion_is_empty(store: Arc<dyn Store>) {
    let sessions = with_session(&store).await;
    append(&sessions, &[calls(&["a"]), result("a")]).await;
    sessions.write_memory_document(TENANT, SESSION, treehold_sessions::MemoScope::Session, "NOTES.md", "old").await.unwrap();
    assert!(sessions.delete(TENANT, SESSION).await.unwrap());
    assert!(!sessions.delete(TENANT, SESSION).await.unwrap());
    assert!(sessions.load_all(TENANT, SESSION).await.unwrap().is_empty());
    assert!(sessions.list_all(TENANT, USER).await.unwrap().is_empty());
    let left = store.namespaces(NamespacesOptions::new()).await.unwrap().namespaces;
    assert_eq!(left.iter().map(ToString::to_string).collect::<Vec<_>>(), ["_treehold/sessions"], "the tenant stays");
    let again = sessions.get_or_create(TENANT, USER, "helper", Some(SESSION)).await.unwrap();
    assert!(again.created);
    assert!(sessions.load_full(TENANT, SESSION).await.unwrap().is_empty());
    let notes = sessions.read_memory_document(TENANT, SESSION, treehold_sessions::MemoScope::Session, "NOTES.md").await.unwrap();
    assert_eq!(notes, None);
    // The tool calls of the deleted session are gone as well.
    let error = sessions.append(TENANT, SESSION, &[result("a")], &AppendOptions::new()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
}

/// A session exists whole or not at all, wherever its deletion stops. A sweep removes the rows left behind.
pub(crate) async fn interrupted_deletion_is_finished_by_a_sweep(store: Arc<dyn Store>) {
    let sessions = with_session(&store).await;
    append(&sessions, &[user(1)]).await;
    // Each round drops the deletion after one more poll. After some of them the session is gone but its rows are not.
    for steps in 0..40 {
        sessions.get_or_create(TENANT, USER, "helper", Some(SESSION)).await.unwrap();
        append(&sessions, &[user(1)]).await;
        let mut deletion = Box::pin(sessions.delete(TENANT, SESSION));
        let mut is_done = false;
        for _ in 0..steps {
            if futures::poll!(&mut deletion).is_ready() {
                is_done = true;
                break;
            }
            tokio::task::yield_now().await;
        }
        drop(deletion);
        // Once a later commit to a partition is done, so is whatever the dropped deletion had submitted to it.
        for beside in ["acme/ada/beside", "acme//beside", "_treehold/sessions/beside"] {
            let beside = Namespace::parse(beside).unwrap();
            store.commit(Batch::new().delete(&beside, "k")).await.unwrap();
        }
        let is_gone = sessions.info(TENANT, SESSION).await.unwrap().is_none();
        assert_eq!(sessions.load_all(TENANT, SESSION).await.unwrap().is_empty(), is_gone, "after {steps} steps");
        sessions.sweep(TENANT, USER).await.unwrap();
        if is_done {
            break;
        }
    }
    assert_eq!(sessions.sweep(TENANT, USER).await.unwrap(), 0);
    let left = store.namespaces(NamespacesOptions::new()).await.unwrap().namespaces;
    assert!(!left.iter().any(|namespace| namespace.to_string().contains("/deleted")), "{left:?}");
}

/// Context usage counts the last turn alone, with cached tokens as input.
pub(crate) async fn context_usage_is_of_the_last_turn(store: Arc<dyn Store>) {
    let sessions = with_session(&store).await;
    assert_eq!(sessions.last_context_usage(TENANT, SESSION).await.unwrap(), None);
    sessions.record_turn(TENANT, SESSION, &Usage::of_tokens(1_000, 1).unwrap()).await.unwrap();
    let usage = Usage::parse(r#"{"inputTokens":90000,"outputTokens":1000,"cacheReadTokens":9000,"cacheWriteTokens":0}"#).unwrap();
    sessions.record_turn(TENANT, SESSION, &usage).await.unwrap();
    let expected = SessionContextUsage { input_tokens: 99_000, output_tokens: 1_000, budget_used_pct: 50 };
    assert_eq!(sessions.last_context_usage(TENANT, SESSION).await.unwrap(), Some(expected));
}

/// The name of a log has no unsafe characters. A second log of the same skill and time gets a number.
pub(crate) async fn skill_logs_get_safe_and_distinct_names(store: Arc<dyn Store>) {
    let sessions = with_session(&store).await;
    let log = SkillLog {
        skill_name: "deep/search é".to_owned(),
        task: "find".to_owned(),
        input: "tea".to_owned(),
        system_prompt: "be brief".to_owned(),
        messages: vec![user(1).json().clone(), user(2).json().clone()],
        result_text: "found".to_owned(),
        started_at: 1_500,
        finished_at: 1_750,
    };
    let session = reference();
    assert_eq!(sessions.persist_skill_log(&session, &log).await.unwrap(), "skill-deep_search__-1500.jsonl");
    assert_eq!(sessions.persist_skill_log(&session, &log).await.unwrap(), "skill-deep_search__-1500-2.jsonl");
    let logs = sessions.load_skill_logs(&session).await.unwrap();
    let lines: Vec<&str> = logs[0].content.lines().collect();
    assert_eq!((logs.len(), lines.len()), (2, 3));
    assert!(
        lines[0].starts_with(r#"{"type":"meta","skillName":"deep/search é""#) && lines[0].ends_with(r#""durationMs":250}"#),
        "{}",
        lines[0]
    );
    assert_eq!(lines[1..], [user(1).json().as_str(), user(2).json().as_str()]);
}

/// A damaged session is an error of its own calls. Lists leave out what they cannot read, and other sessions are not affected.
pub(crate) async fn damaged_session_is_corrupt_and_others_are_listed(store: Arc<dyn Store>) {
    let sessions = with_session(&store).await;
    sessions.get_or_create(TENANT, USER, "helper", Some("whole")).await.unwrap();
    append(&sessions, &[user(1)]).await;
    let namespaces = store.namespaces(NamespacesOptions::new()).await.unwrap().namespaces;
    let of = |end: &str| namespaces.iter().find(|namespace| namespace.to_string().ends_with(end)).expect("rows");
    store.commit(Batch::new().put(of("sessions/sessions"), SESSION, "{\"tenantId\":")).await.unwrap();
    for error in [
        sessions.info(TENANT, SESSION).await.unwrap_err(),
        sessions.load_all(TENANT, SESSION).await.unwrap_err(),
        sessions.append(TENANT, SESSION, &[user(2)], &AppendOptions::new()).await.unwrap_err(),
    ] {
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    }
    sessions.append(TENANT, "whole", &[user(1)], &AppendOptions::new()).await.unwrap();
    let inspected = sessions.list_sessions().await.unwrap();
    assert_eq!(inspected.iter().map(|session| session.session_id.as_str()).collect::<Vec<_>>(), ["whole"]);
    // The list by time has a row of its own.
    assert_eq!(sessions.list_all(TENANT, USER).await.unwrap().len(), 2);
    let page = store.scan(of("sessions/recent"), ScanOptions::new()).await.unwrap();
    let damaged = page.entries.iter().find_map(|entry| match entry {
        ScanEntry::Item(item) if item.key.ends_with(SESSION) => Some(item.key.clone()),
        _ => None,
    });
    store.commit(Batch::new().put(of("sessions/recent"), damaged.unwrap(), "{")).await.unwrap();
    let listed = sessions.list_all(TENANT, USER).await.unwrap();
    assert_eq!(listed.iter().map(|session| session.session_id.as_str()).collect::<Vec<_>>(), ["whole"]);
}

/// Descriptions have the fields of hosts, and times in milliseconds.
pub(crate) async fn descriptions_of_sessions_have_the_json_of_hosts(store: Arc<dyn Store>) {
    let sessions = with_session(&store).await;
    let info = sessions.info(TENANT, SESSION).await.unwrap().unwrap();
    let (created, updated) = (info.created_at, info.updated_at);
    assert!(created >= 1_800_000_000_000 && updated >= created);
    let expected = format!(
        r#"{{"sessionId":"s-1","tenantId":"acme","userId":"ada","agentId":"helper","title":null,"createdAt":{created},"updatedAt":{updated}}}"#
    );
    assert_eq!(serde_json::to_string(&info).unwrap(), expected);
    let listed = sessions.list(TENANT, USER, 1, None).await.unwrap().sessions;
    assert_eq!(serde_json::to_string(&listed).unwrap(), format!(r#"[{{"sessionId":"s-1","updatedAt":{updated}}}]"#));
    let handle = sessions.get_or_create(TENANT, USER, "helper", Some(SESSION)).await.unwrap();
    assert_eq!(serde_json::to_string(&handle).unwrap(), r#"{"sessionId":"s-1","sessionRef":"acme:s-1"}"#);
}

/// One object serves all six contracts through their traits.
pub(crate) async fn every_contract_is_served_through_its_trait(store: Arc<dyn Store>) {
    let sessions = sessions(&store);
    let (conversations, lister): (&dyn SessionStore, &dyn UserSessionLister) = (&sessions, &sessions);
    conversations.ping().await.unwrap();
    conversations.get_or_create(TENANT, USER, "helper", Some(SESSION)).await.unwrap();
    conversations.append_messages(TENANT, SESSION, &[]).await.unwrap();
    let all: Vec<Message> = (0..8).map(user).collect();
    conversations.append_messages(TENANT, SESSION, &all).await.unwrap();
    conversations.record_turn(TENANT, SESSION, &Usage::of_tokens(1, 1).unwrap()).await.unwrap();
    assert_eq!(conversations.load_messages(TENANT, SESSION, None).await.unwrap(), all);
    assert_eq!(conversations.load_messages(TENANT, SESSION, Some(3)).await.unwrap(), all[5..]);
    assert_eq!(conversations.load_messages_with_budget(TENANT, SESSION, 20).await.unwrap(), all[6..]);
    let summarize = SummarizeWith(|_| async { Ok("short".to_owned()) });
    let options = CompactOptions::new().with_trigger_tokens(80);
    assert!(conversations.compact_if_needed(TENANT, SESSION, &summarize, &options).await.unwrap());
    assert!(!conversations.compact_if_needed(TENANT, SESSION, &summarize, &options).await.unwrap());
    assert_eq!(conversations.load_all_messages(TENANT, SESSION).await.unwrap().len(), 5);
    assert_eq!(lister.list_sessions_by_user(TENANT, USER).await.unwrap().len(), 1);
    let memo: &dyn SandboxMemoProvider = conversations.memo().expect("it keeps memory documents");
    memo.write_memory_document(TENANT, USER, MemoScope::User, "USER.md", "likes").await.unwrap();
    memo.append_memory_document(TENANT, USER, MemoScope::User, "USER.md", " tea").await.unwrap();
    let document = memo.read_memory_document(TENANT, USER, MemoScope::User, "USER.md").await.unwrap();
    assert_eq!(document.as_deref(), Some("likes tea"));
    memo.write_tool_result_artifact(&reference(), "c", "full").await.unwrap();
    assert_eq!(memo.read_tool_result_artifact(&reference(), "c").await.unwrap().as_deref(), Some("full"));
    assert_eq!(memo.list_tool_result_artifact_ids(&reference()).await.unwrap(), ["c"]);
    let (trace, orchestration) = (sessions.trace(reference()), sessions.orchestration(reference()));
    let (trace, orchestration): (&dyn SessionTraceStore, &dyn OrchestrationPersistence) = (&trace, &orchestration);
    assert!(trace.load_envelopes().await.unwrap().is_empty());
    assert!(orchestration.load_events().await.unwrap().is_empty());
    let inspector: &dyn InspectorDataSource = &sessions;
    assert_eq!(inspector.list_sessions().await.unwrap()[0].turns, Some(1));
}

/// A change of the title is an event with the title and the time, and a removed title is `null`.
pub(crate) async fn change_of_the_title_is_an_event_of_the_session(store: Arc<dyn Store>) {
    let sessions = with_session(&store).await;
    let mut expected = Vec::new();
    for (title, written) in [(Some("Tea \"time\""), r#""Tea \"time\"""#), (None, "null")] {
        sessions.set_title(TENANT, SESSION, title).await.unwrap();
        let updated = sessions.info(TENANT, SESSION).await.unwrap().unwrap().updated_at;
        expected.push(format!(r#"{{"type":"update","title":{written},"updatedAt":{updated}}}"#));
    }
    let events = sessions.load_events(TENANT, SESSION).await.unwrap();
    assert_eq!(events[1..].iter().map(|event| event.as_str()).collect::<Vec<_>>(), expected);
}
