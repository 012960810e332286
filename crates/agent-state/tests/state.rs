//! The state: its JSON, what is kept, what is refused.

use jiff::Timestamp;
use jiff::tz::{TimeZone, offset};
use std::sync::Arc;
use treehold_agent_state::{
    AgentState, Block, CallState, Entries, Flaw, GenerateReason, Json, JsonForm, Message, MessageFields, NewTask, PermissionBehavior,
    PermissionMode, Role, RuntimeContext, StateSlot, TaskState, ToolCallState, ToolContext, ToolResultState, Usage, parse_message_time,
};
use treehold_core::ErrorKind;

const FRESH: [&str; 2] = [include_str!("fixtures/agentscope/fresh.compact.json"), include_str!("fixtures/agentscope/fresh.json")];
const FULL: [&str; 2] = [include_str!("fixtures/agentscope/full.compact.json"), include_str!("fixtures/agentscope/full.json")];
const CHANGED: [&str; 2] =
    [include_str!("fixtures/agentscope/full-changed.compact.json"), include_str!("fixtures/agentscope/full-changed.json")];

fn json(text: &str) -> Json {
    Json::parse(text).expect(text)
}

fn state(text: &str) -> AgentState {
    AgentState::from_json(&json(text)).expect(text)
}

fn text(state: &AgentState) -> String {
    state.to_json().expect("a state that can be written").as_str().to_owned()
}

fn slot(user: Option<&str>, session: &str) -> StateSlot {
    StateSlot::new(user, session).expect("a valid slot")
}

fn time(text: &str) -> Timestamp {
    text.parse().expect(text)
}

/// The files in `fixtures/agentscope` are the output of AgentScope for Java 2.0.
#[test]
fn states_of_agentscope_are_written_back_byte_for_byte() {
    for fixture in [FRESH, FULL, CHANGED].concat() {
        assert_eq!(text(&state(fixture)), fixture);
    }
    for [compact, pretty] in [FRESH, FULL, CHANGED] {
        assert_eq!(state(compact).to_pretty().expect("shallow"), pretty);
        assert_eq!(JsonForm::Compact.render(&json(pretty)), compact);
        assert_eq!(state(compact), state(pretty));
    }
}

#[test]
fn new_state_is_written_as_agentscope_writes_one() {
    let mut new = AgentState::new(&slot(None, "s-1"));
    assert_eq!(new.reply_id().len(), 32);
    new.set_reply_id(Some("r-1"));
    assert_eq!(text(&new), FRESH[0]);
    assert_eq!(new.to_pretty().expect("shallow"), FRESH[1]);
    let named = AgentState::new(&slot(Some("ada"), "s-1"));
    assert_eq!((named.user_id(), named.session_id()), (Some("ada"), "s-1"));
}

/// Both were changed in the same way: the fixture by AgentScope, the state here.
#[test]
fn changes_are_written_as_agentscope_writes_them() {
    for (before, after) in FULL.into_iter().zip(CHANGED) {
        let mut state = state(before);
        let usage = Usage { input_tokens: 1, output_tokens: 2, cached_tokens: 0, time: 0.25 };
        let message = MessageFields {
            id: Some("m-7".into()),
            name: Some("helper".into()),
            role: Some(Role::Assistant),
            content: vec![Block::text("done")],
            timestamp: Some("2026-05-25 10:00:06.000".into()),
            usage: Some(usage),
            ..MessageFields::default()
        };
        state.push(Message::from_fields(&message).expect("valid")).expect("allowed");
        state.set_summary("new");
        state.set_cur_iter(8);
        state.set_shutdown_interrupted(false);
        state.set_reply_id(Some("r-3"));
        state.set_permission_mode(PermissionMode::Bypass);
        state.tools_mut().activated_groups = vec!["web".into(), "shell".into()];
        state.tools_mut().spawn_registry.remove("agent:gp:abc").expect("it is there");
        // AgentScope does not keep the other side of a dependency, so the fixture lacks it.
        let blocked_by = r#""blocked_by" : [ "t-2" ]"#;
        let tasks = state.tasks_mut();
        tasks.create(NewTask::new("third", "x").with_id("t-3"), time("2026-05-26T10:00:00Z")).expect("new");
        state.plan_mut().exit();
        state.plan_mut().current_plan_file = None;
        let expected = after.replace(blocked_by, r#""blocked_by" : [ ]"#).replace(r#""blocked_by":["t-2"]"#, r#""blocked_by":[]"#);
        assert_eq!(text(&state), expected);
        assert_eq!(text(&AgentState::from_json(&state.to_json().expect("shallow")).expect("valid")), expected);
    }
}

#[test]
fn missing_fields_and_nulls_take_their_defaults_and_are_not_written() {
    let sections = "session_id user_id summary context reply_id cur_iter shutdown_interrupted permission_context tool_context \
                    tasks_context plan_mode_context";
    let inner = [
        ("permission_context", "mode working_directories allow_rules deny_rules ask_rules"),
        ("tool_context", "max_cache_files max_cache_bytes activated_groups spawn_registry"),
        ("tasks_context", "tasks"),
        ("plan_mode_context", "plan_active current_plan_file"),
    ];
    let nulls = |fields: &str| fields.split_whitespace().map(|field| format!(r#""{field}":null"#)).collect::<Vec<_>>().join(",");
    let mut texts = vec!["{}".to_owned(), "{ }".to_owned(), format!("{{{}}}", nulls(sections))];
    for (section, fields) in inner {
        texts.push(format!(r#"{{"{section}":{{}}}}"#));
        texts.push(format!(r#"{{"{section}":{{{}}}}}"#, nulls(fields)));
    }
    for written in texts {
        let state = state(&written);
        assert_eq!((state.session_id().len(), state.reply_id().len(), state.user_id()), (32, 32, None), "{written}");
        assert_eq!((state.summary(), state.cur_iter(), state.is_shutdown_interrupted()), ("", 0, false), "{written}");
        assert!(state.context().is_empty() && state.permissions().is_default() && state.tasks().tasks().is_empty(), "{written}");
        assert_eq!(*state.tools(), ToolContext::default(), "{written}");
        assert_eq!((state.tools().max_cache_files(), state.tools().max_cache_bytes()), (100, 25_000.0), "{written}");
        assert_eq!((state.plan().plan_active, state.plan().current_plan_file.as_deref()), (false, None), "{written}");
        assert_eq!(text(&state), written);
    }
}

#[test]
fn ids_that_were_made_up_are_written_with_the_first_change() {
    let mut changed = state(r#"{"summary":"a","new":1}"#);
    changed.set_summary("b");
    let written = text(&changed);
    let expected = format!(r#"{{"session_id":"{}","summary":"b","reply_id":"{}","new":1}}"#, changed.session_id(), changed.reply_id());
    assert_eq!(written, expected);
    assert_eq!(state(&written).session_id(), changed.session_id());
}

#[test]
fn a_message_creates_the_context_in_its_place() {
    for (before, after) in [
        (r#"{"session_id":"s","summary":"","reply_id":"r"}"#, r#"{"session_id":"s","summary":"","context":[M],"reply_id":"r"}"#),
        (r#"{"session_id":"s","context":null,"reply_id":"r"}"#, r#"{"session_id":"s","context":[M],"reply_id":"r"}"#),
        (r#"{"session_id":"s", "context": [ ], "reply_id":"r"}"#, r#"{"session_id":"s", "context": [M], "reply_id":"r"}"#),
        (r#"{"session_id":"s","reply_id":"r"}"#, r#"{"session_id":"s","reply_id":"r","context":[M]}"#),
    ] {
        let mut state = state(before);
        let message = Message::parse(r#"{"id":"m","role":"USER"}"#).expect("valid");
        state.push(message.clone()).expect("allowed");
        assert_eq!(text(&state), after.replace('M', message.json().as_str()));
    }
}

/// Every value of every enum: its name, in any case where AgentScope ignores it, and its place in a state.
#[test]
fn every_value_of_every_enum_is_read_and_written() {
    fn check<T: Copy + std::fmt::Display>(values: &[T], names: &[&str], ignores_case: bool, place: impl Fn(&str) -> String) {
        assert_eq!(values.iter().map(ToString::to_string).collect::<Vec<_>>(), names);
        for name in names {
            let written = place(name);
            assert_eq!(text(&state(&written)), written);
            let changed = if name.chars().any(char::is_uppercase) { name.to_lowercase() } else { name.to_uppercase() };
            let other = AgentState::from_json(&json(&place(&changed)));
            assert_eq!(other.is_ok(), ignores_case, "{changed}");
        }
        for unknown in ["bogus", "", "default "] {
            let stored = json(&place(unknown));
            let error = AgentState::from_json(&stored).expect_err("unknown");
            assert_eq!(error.kind(), ErrorKind::InvalidArgument);
            assert!(names.iter().all(|name| error.message().contains(&format!("`{name}`"))), "{error}");
            assert_eq!(AgentState::from_stored(&stored).expect_err("unknown").kind(), ErrorKind::Corrupt);
        }
    }
    let modes = ["default", "accept_edits", "explore", "bypass", "dont_ask"];
    check(PermissionMode::ALL, &modes, true, |name| format!(r#"{{"permission_context":{{"mode":"{name}"}}}}"#));
    check(PermissionBehavior::ALL, &["allow", "deny", "ask", "passthrough"], true, |name| {
        let rule = format!(r#"{{"tool_name":"t","rule_content":null,"behavior":"{name}","source":"u"}}"#);
        format!(r#"{{"permission_context":{{"ask_rules":{{"t":[{rule}]}}}}}}"#)
    });
    check(TaskState::ALL, &["pending", "in_progress", "completed"], true, |name| {
        format!(r#"{{"tasks_context":{{"tasks":[{{"subject":"s","description":"d","id":"t","state":"{name}"}}]}}}}"#)
    });
    check(Role::ALL, &["USER", "ASSISTANT", "SYSTEM", "TOOL"], false, |name| format!(r#"{{"context":[{{"role":"{name}"}}]}}"#));
    check(ToolCallState::ALL, &["pending", "asking", "allowed", "submitted", "finished"], false, |name| {
        format!(r#"{{"context":[{{"role":"ASSISTANT","content":[{{"type":"tool_use","state":"{name}"}}]}}]}}"#)
    });
    check(ToolResultState::ALL, &["success", "error", "interrupted", "denied", "running"], false, |name| {
        format!(r#"{{"context":[{{"role":"TOOL","content":[{{"type":"tool_result","state":"{name}"}}]}}]}}"#)
    });
}

#[test]
fn defaults_of_messages_and_blocks_are_those_of_agentscope() {
    let message = Message::parse("{}").expect("every field may be missing");
    assert_eq!(message.fields(), MessageFields::default());
    assert_eq!((message.id(), message.name(), message.role(), message.time(), message.usage()), (None, None, None, None, None));
    assert_eq!(message.generate_reason(), GenerateReason::ModelStop);
    let kinds = r#"[{"type":"text"},{"type":"thinking"},{"type":"hint"},{"type":"tool_use"},{"type":"tool_result"},{"type":"video"}]"#;
    let nulls = r#"[{"type":"text","text":null},{"type":"thinking","thinking":null,"metadata":null},{"type":"hint","id":null,"hint":null,
        "source":null},{"type":"tool_use","id":null,"name":null,"input":null,"content":null,"metadata":null,"state":null},{"type":
        "tool_result","id":null,"name":null,"output":null,"metadata":null,"state":null},{"type":"video","source":null,"fps":null}]"#;
    for content in [kinds, nulls] {
        let content = Message::parse(&format!(r#"{{"role":"ASSISTANT","content":{content}}}"#)).expect("valid").content();
        let [Block::Text(text), Block::Thinking(thinking), Block::Hint(hint), Block::ToolUse(call), Block::ToolResult(result), video] =
            content.as_slice()
        else {
            panic!("{content:?}");
        };
        assert_eq!((text.text.as_str(), thinking.thinking.as_str(), &thinking.metadata), ("", "", &None));
        assert_eq!((&hint.id, &hint.hint, &hint.source), (&None, &None, &None));
        assert_eq!((call.state, &call.input, &call.content), (ToolCallState::Pending, &Entries::new(), &None));
        assert_eq!((result.state, result.output.len(), result.metadata.len()), (ToolResultState::Running, 0, 0));
        assert!(matches!(video, Block::Video(video) if video.source.is_none() && video.fps.is_none()));
    }
}

#[test]
fn older_forms_of_messages_are_read() {
    // Sizes of media in snake case, and the usage in the metadata.
    let source = r#""source":{"type":"url","url":"https://example.com"}"#;
    let text = format!(
        r#"{{"content":[{{"type":"image",{source},"min_pixels":1,"max_pixels":2}},{{"type":"video",{source},"max_frames":3,"total_pixels":4,
        "totalPixels":5}}],"metadata":{{"_chat_usage":{{"inputTokens":300,"outputTokens":150,"time":3.0}},
        "agentscope_generate_reason":"INTERRUPTED"}}}}"#
    );
    let message = Message::parse(&text).expect("valid");
    let content = message.content();
    assert!(matches!(&content[0], Block::Image(image) if (image.min_pixels, image.max_pixels) == (Some(1), Some(2))));
    assert!(matches!(&content[1], Block::Video(video) if (video.max_frames, video.total_pixels) == (Some(3), Some(5))));
    assert_eq!(message.usage(), Some(Usage { input_tokens: 300, output_tokens: 150, cached_tokens: 0, time: 3.0 }));
    assert_eq!(message.generate_reason(), GenerateReason::Interrupted);
    for (reason, expected) in
        [("\"MAX_ITERATIONS\"", GenerateReason::MaxIterations), ("\"new\"", GenerateReason::ModelStop), ("5", GenerateReason::ModelStop)]
    {
        let message = Message::parse(&format!(r#"{{"metadata":{{"agentscope_generate_reason":{reason}}}}}"#)).expect("valid");
        assert_eq!(message.generate_reason(), expected);
    }
    assert_eq!(GenerateReason::ALL.len(), 11);
}

#[test]
fn unknown_kinds_of_blocks_and_sources_are_kept() {
    let text =
        r#"{"role":"USER","content":[{"type":"hologram","watts":9.50,"id":[ 1e999 ]},{"type":"image","source":{"type":"tape","at":1.0}}]}"#;
    let message = Message::parse(text).expect("unknown kinds are no error");
    assert_eq!(message.misplaced_kinds(), [""; 0]);
    let content = message.content();
    assert_eq!(content[0].kind(), "hologram");
    let edited = message.edited(|fields| fields.content.push(Block::text("x"))).expect("valid");
    assert_eq!(edited.json().as_str(), text.replace("}}]}", r#"}},{"type":"text","text":"x"}]}"#));
}

#[test]
fn edited_message_changes_only_what_was_edited() {
    for full in FULL {
        let state = state(full);
        for message in state.context() {
            let same = message.edited(|_| ()).expect("valid");
            assert_eq!(same, *message);
            let named = message.edited(|fields| fields.name = Some("eve".into())).expect("valid");
            let old = message.name().map_or("null".to_owned(), |name| format!("\"{name}\""));
            let expected = message.json().as_str().replacen(&format!(r#""name" : {old}"#), r#""name" : "eve""#, 1);
            let expected = expected.replacen(&format!(r#""name":{old}"#), r#""name":"eve""#, 1);
            assert_eq!(named.json().as_str(), expected);
        }
        // A call that is allowed, in the layout of its surroundings.
        let call = &state.context()[1];
        let allowed = call.edited(|fields| {
            if let Block::ToolUse(call) = &mut fields.content[3] {
                call.state = ToolCallState::Allowed;
                call.metadata.insert("by", json("\"ada\""));
            }
        });
        let expected = call.json().as_str().replacen("pending", "allowed", 1);
        let (pretty, compact) = (r#""metadata" : { },"#, r#""metadata":{},"#);
        let expected = expected.replacen(pretty, "\"metadata\" : {\n        \"by\" : \"ada\"\n      },", 1);
        let expected = expected.replacen(compact, r#""metadata":{"by":"ada"},"#, 1);
        assert_eq!(allowed.expect("valid").json().as_str(), expected);
    }
}

#[test]
fn synthetic_messages_are_not_stored_unless_they_were() {
    let synthetic = r#"{"id":"x","role":"USER","content":[],"metadata":{"agentscope_synthetic":true}}"#;
    let plain = r#"{"id":"y","role":"USER","content":[],"metadata":{"agentscope_synthetic":false}}"#;
    let stored = format!(r#"{{"session_id":"s","context":[{synthetic}],"reply_id":"r"}}"#);
    let mut state = state(&stored);
    assert!(state.context()[0].is_synthetic());
    for message in [synthetic, plain, synthetic] {
        state.push(Message::parse(message).expect("valid")).expect("allowed");
    }
    assert_eq!(state.context().len(), 4);
    assert_eq!(text(&state), format!(r#"{{"session_id":"s","context":[{synthetic},{plain}],"reply_id":"r"}}"#));
    let mut fresh = AgentState::new(&slot(None, "s"));
    fresh.push(Message::parse(synthetic).expect("valid")).expect("allowed");
    assert!(!text(&fresh).contains("synthetic"));
}

#[test]
fn times_are_utc_milliseconds_and_rendered_in_the_form_of_agentscope() {
    let moment = time("2026-05-25T10:00:00.250999Z");
    let message = Message::user("x", moment);
    assert_eq!(message.fields().timestamp.as_deref(), Some("2026-05-25 10:00:00.250"));
    assert_eq!(message.time(), Some(time("2026-05-25T10:00:00.250Z")));
    let zone = TimeZone::fixed(offset(8));
    assert_eq!(message.time_in(&zone), Some(time("2026-05-25T02:00:00.250Z")));
    for (text, expected) in [
        ("2026-05-25 10:00:00", Some("2026-05-25T10:00:00Z")),
        ("2026-05-25T10:00:00.5", Some("2026-05-25T10:00:00.5Z")),
        ("0001-01-01 00:00:00.000", Some("0001-01-01T00:00:00Z")),
        ("2026-05-25", None),
        ("2026-05-25 10:00:00Z", None),
        ("2026-05-25 10:00:00+08:00", None),
        ("2026-13-25 10:00:00", None),
        ("yesterday at ten", None),
        ("", None),
    ] {
        assert_eq!(parse_message_time(text, &TimeZone::UTC), expected.map(time), "{text}");
        let kept = Message::parse(&format!(r#"{{"timestamp":"{text}"}}"#)).expect("any text is kept");
        assert_eq!(kept.fields().timestamp.as_deref(), Some(text));
    }
}

/// The whole table of roles and kinds, and for each role a kind that is unknown.
#[test]
fn roles_hold_only_the_blocks_that_agentscope_allows() {
    let source = r#""source":{"type":"url","url":"https://example.com"}"#;
    for kind in Block::KINDS.into_iter().chain(["hologram"]) {
        for role in Role::ALL.iter().copied() {
            let expected = match role {
                Role::User => matches!(kind, "text" | "data" | "image" | "audio" | "video" | "hologram"),
                Role::System => matches!(kind, "text" | "hologram"),
                Role::Assistant | Role::Tool => true,
            };
            let source = if kind == "hint" { "\"x\":1" } else { source };
            let message = Message::parse(&format!(r#"{{"role":"{role}","content":[{{"type":"{kind}",{source}}}]}}"#)).expect("valid");
            let mut state = AgentState::new(&slot(None, "s"));
            let pushed = state.push(message.clone());
            assert_eq!(pushed.is_ok(), expected, "{role} {kind}");
            if let Err(error) = pushed {
                assert_eq!(error.kind(), ErrorKind::InvalidArgument);
                assert!(error.message().contains(kind), "{error}");
            }
            // A stored one can be read, so that it can be mended, and is reported.
            let stored = format!(r#"{{"context":[{}]}}"#, message.json());
            let flaws = AgentState::from_stored(&json(&stored)).expect("readable").flaws();
            let misplaced = flaws.iter().any(|flaw| matches!(flaw, Flaw::MisplacedBlock { message: 0, kind: found } if found == kind));
            assert_eq!(misplaced, !expected, "{role} {kind}");
        }
    }
    let error = AgentState::new(&slot(None, "s")).push(Message::parse("{}").expect("valid")).expect_err("no role");
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
}

fn call(id: &str) -> String {
    format!(r#"{{"type":"tool_use","id":"{id}","name":"t-{id}"}}"#)
}

fn result(id: &str) -> String {
    format!(r#"{{"type":"tool_result","id":"{id}","name":"t-{id}","output":[]}}"#)
}

fn conversation(messages: &[(&str, Vec<String>)]) -> AgentState {
    let messages: Vec<String> =
        messages.iter().map(|(role, blocks)| format!(r#"{{"role":"{role}","content":[{}]}}"#, blocks.join(","))).collect();
    state(&format!(r#"{{"session_id":"s","reply_id":"r","context":[{}]}}"#, messages.join(",")))
}

#[test]
fn open_calls_are_found_and_closed_behind_the_other_results() {
    let mut state = conversation(&[
        ("ASSISTANT", vec![call("1"), call("2"), call("3")]),
        ("TOOL", vec![result("2")]),
        ("USER", vec![]),
        // The model numbers its calls anew.
        ("ASSISTANT", vec![call("1")]),
        ("TOOL", vec![result("1")]),
        ("ASSISTANT", vec![call("1"), call("4")]),
        ("TOOL", vec![result("9")]),
    ]);
    let open: Vec<_> = state.open_calls().into_iter().map(|open| (open.message, open.call.id.expect("named"))).collect();
    assert_eq!(open, [(0, "1".into()), (0, "3".into()), (5, "1".into()), (5, "4".into())]);
    assert!(state.flaws().iter().any(|flaw| matches!(flaw, Flaw::OrphanResult { message: 6, call } if call.id.as_deref() == Some("9"))));
    let closed = state.close_open_calls("interrupted", ToolResultState::Interrupted, Timestamp::UNIX_EPOCH).expect("valid");
    assert_eq!((closed, state.open_calls()), (4, Vec::new()));
    let answers: Vec<Vec<_>> =
        state.context().iter().map(|message| message.answers().iter().filter_map(|call| call.id.as_deref()).collect()).collect();
    assert_eq!(answers, [vec![], vec!["2"], vec!["1", "3"], vec![], vec![], vec!["1"], vec![], vec!["9"], vec!["1", "4"]]);
    let added = state.context()[8].content();
    assert!(matches!(&added[1], Block::ToolResult(result) if result.name.as_deref() == Some("t-4")
        && result.state == ToolResultState::Interrupted && result.output_text() == "interrupted"));
    assert_eq!(state.close_open_calls("x", ToolResultState::Error, Timestamp::UNIX_EPOCH).expect("valid"), 0);
}

#[test]
fn bad_states_are_typed_errors_and_never_fresh_states() {
    let table = [
        "[]",
        "null",
        "5",
        r#""text""#,
        r#"{"context":{}}"#,
        r#"{"context":"x"}"#,
        r#"{"context":[null]}"#,
        r#"{"context":["x"]}"#,
        r#"{"context":[{"content":"hello"}]}"#,
        r#"{"context":[{"content":["hello"]}]}"#,
        r#"{"context":[{"content":[{"text":"no type"}]}]}"#,
        r#"{"context":[{"content":[{"type":5}]}]}"#,
        r#"{"context":[{"content":[{"type":"text","text":5}]}]}"#,
        r#"{"context":[{"content":[{"type":"image"}]}]}"#,
        r#"{"context":[{"content":[{"type":"audio"}]}]}"#,
        r#"{"context":[{"content":[{"type":"data"}]}]}"#,
        r#"{"context":[{"content":[{"type":"image","source":{"url":"no type"}}]}]}"#,
        r#"{"context":[{"content":[{"type":"image","source":{"type":"url"}}]}]}"#,
        r#"{"context":[{"content":[{"type":"image","source":{"type":"base64","data":""}}]}]}"#,
        r#"{"context":[{"id":5}]}"#,
        r#"{"context":[{"role":"oracle"}]}"#,
        r#"{"context":[{"usage":{"inputTokens":"many"}}]}"#,
        r#"{"context":[{"id":"a","id":"b"}]}"#,
        r#"{"summary":"a","summary":"b"}"#,
        r#"{"session_id":5}"#,
        r#"{"cur_iter":99999999999}"#,
        r#"{"cur_iter":"x"}"#,
        r#"{"shutdown_interrupted":"yes"}"#,
        r#"{"permission_context":[]}"#,
        r#"{"tool_context":[]}"#,
        r#"{"tasks_context":[]}"#,
        r#"{"plan_mode_context":[]}"#,
        r#"{"plan_mode_context":[true,"a"]}"#,
        r#"{"tasks_context":{"tasks":[["s","d"]]}}"#,
        r#"{"tool_context":{"spawn_registry":{"a":[]}}}"#,
        r#"{"permission_context":{"working_directories":{"a":["p","s"]}}}"#,
        r#"{"permission_context":{"allow_rules":{"t":[["t",null,"ask","u"]]}}}"#,
        r#"{"context":[[]]}"#,
        r#"{"context":[{"usage":[1,2,3,4]}]}"#,
        r#"{"context":[{"content":[["text","x"]]}]}"#,
        r#"{"context":[{"content":[{"type":"image","source":["url","u"]}]}]}"#,
        r#"{"permission_context":{"working_directories":{"a":null}}}"#,
        r#"{"permission_context":{"working_directories":{"a":{"path":"p"}}}}"#,
        r#"{"permission_context":{"allow_rules":{"t":[{"tool_name":"t","source":"u"}]}}}"#,
        r#"{"permission_context":{"allow_rules":{"t":[{"behavior":"ask","source":"u"}]}}}"#,
        r#"{"permission_context":{"allow_rules":{"t":[{"behavior":"ask","tool_name":"t"}]}}}"#,
        r#"{"tool_context":{"max_cache_files":1}}"#,
        r#"{"tool_context":{"max_cache_files":0}}"#,
        r#"{"tool_context":{"max_cache_bytes":10000}}"#,
        r#"{"tool_context":{"max_cache_bytes":9999.5}}"#,
        r#"{"tool_context":{"max_cache_bytes":1e999}}"#,
        r#"{"tool_context":{"activated_groups":[null]}}"#,
        r#"{"tool_context":{"spawn_registry":{"a":null}}}"#,
        r#"{"tasks_context":{"tasks":[{"description":"d"}]}}"#,
        r#"{"tasks_context":{"tasks":[{"subject":"s"}]}}"#,
        r#"{"plan_mode_context":{"plan_active":1}}"#,
    ];
    for bad in table {
        let bad = json(bad);
        assert_eq!(AgentState::from_json(&bad).expect_err(bad.as_str()).kind(), ErrorKind::InvalidArgument, "{bad}");
        let error = AgentState::from_stored(&bad).expect_err(bad.as_str());
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{bad}");
        assert!(error.message().starts_with("the stored state cannot be read: "), "{error}");
    }
    let deep = format!(r#"{{"metadata":{{"x":{}{}}}}}"#, "[".repeat(97), "]".repeat(97));
    assert_eq!(Message::parse(&deep).expect_err("too deep for a state").kind(), ErrorKind::InvalidArgument);
    assert_eq!(Message::parse("{").expect_err("cut").kind(), ErrorKind::InvalidArgument);
}

#[test]
fn deepest_message_fits_into_a_state() {
    let deepest = format!(r#"{{"role":"USER","metadata":{{"x":{}{}}}}}"#, "[".repeat(96), "]".repeat(96));
    let mut state = AgentState::new(&slot(None, "s"));
    state.push(Message::parse(&deepest).expect("as deep as it may be")).expect("allowed");
    let written = state.to_json().expect("not too deep");
    assert_eq!(AgentState::from_stored(&written).expect("readable").context()[0].json().as_str(), deepest);
}

#[test]
fn limits_of_the_tool_context_are_checked_by_setters() {
    let mut tools = ToolContext::default();
    for files in [i32::MIN, 0, 1] {
        assert_eq!(tools.set_max_cache_files(files).expect_err("too few").kind(), ErrorKind::InvalidArgument);
    }
    for size in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 0.0, 10_000.0] {
        assert_eq!(tools.set_max_cache_bytes(size).expect_err("too small").kind(), ErrorKind::InvalidArgument);
    }
    assert_eq!(tools, ToolContext::default());
    tools.set_max_cache_files(2).expect("the least");
    tools.set_max_cache_bytes(10_000.5).expect("just over");
    assert_eq!((tools.max_cache_files(), tools.max_cache_bytes()), (2, 10_000.5));
}

#[test]
fn tasks_are_created_ordered_and_removed() {
    let now = time("2026-05-25T10:00:00.5Z");
    let mut state = AgentState::new(&slot(None, "s"));
    let tasks = state.tasks_mut();
    let first = tasks.create(NewTask::new("one", "d").with_id("1").with_owner("bob"), now).expect("new");
    tasks.create(NewTask::new("two", "d").with_id("2").with_blocked_by(&first), now).expect("new");
    tasks.create(NewTask::new("three", "d").with_id("3").with_blocked_by("2"), now).expect("new");
    let kinds = [
        tasks.create(NewTask::new("x", "d").with_id("1"), now).expect_err("taken").kind(),
        tasks.create(NewTask::new("x", "d").with_id("4").with_blocked_by("9"), now).expect_err("missing").kind(),
        tasks.create(NewTask::new(" ", "d"), now).expect_err("no subject").kind(),
        tasks.create(NewTask::new("x", "d").with_id(""), now).expect_err("no id").kind(),
        tasks.block("3", "1").expect_err("a circle").kind(),
        tasks.block("1", "1").expect_err("a circle").kind(),
        tasks.block("1", "9").expect_err("missing").kind(),
        tasks.get_mut("9").expect_err("missing").kind(),
        tasks.remove("9").expect_err("missing").kind(),
    ];
    use ErrorKind::{AlreadyExists, InvalidArgument, NotFound};
    let expected =
        [AlreadyExists, NotFound, InvalidArgument, InvalidArgument, InvalidArgument, InvalidArgument, NotFound, NotFound, NotFound];
    assert_eq!(kinds, expected);
    assert_eq!(tasks.tasks().len(), 3);
    tasks.block("1", "3").expect("no circle");
    tasks.block("1", "3").expect("again");
    let one = tasks.get("1").expect("there");
    assert_eq!(
        (one.blocks(), one.created(), one.created_at.as_deref()),
        (&["2".into(), "3".into()][..], Some(now), Some("2026-05-25T10:00:00.5Z"))
    );
    assert_eq!(tasks.remove("2").expect("there").subject, "two");
    assert_eq!(
        (tasks.get("1").expect("there").blocks(), tasks.get("3").expect("there").blocked_by()),
        (&["3".into()][..], &["1".into()][..])
    );
    tasks.get_mut("1").expect("there").state = TaskState::Completed;
    assert_eq!(tasks.ready().map(|task| task.id()).collect::<Vec<_>>(), ["3"]);
    let expected = r#"{"subject":"three","description":"d","metadata":{},"created_at":"2026-05-25T10:00:00.5Z","state":"pending","id":"3","owner":null,"blocks":[],"blocked_by":["1"]}"#;
    assert!(text(&state).contains(expected), "{}", text(&state));
}

#[test]
fn tasks_without_ids_get_the_same_ids_at_each_read() {
    let task = r#"{"subject":"s","description":"d"}"#;
    let written = format!(r#"{{"tasks_context":{{"tasks":[{task},{task},{}]}}}}"#, task.replace("\"s\"", "\"t\""));
    let ids = || state(&written).tasks().tasks().iter().map(|task| task.id().to_owned()).collect::<Vec<_>>();
    assert_eq!(ids(), ids());
    let distinct: std::collections::HashSet<_> = ids().into_iter().collect();
    assert_eq!((distinct.len(), distinct.iter().all(|id| id.len() == 32)), (3, true));
    assert_eq!(text(&state(&written)), written);
}

#[test]
fn nothing_of_a_runtime_context_reaches_the_stored_state() {
    #[derive(Debug, PartialEq)]
    struct Secret(&'static str);
    let mut context = RuntimeContext::new(slot(Some("ada"), "s"));
    let call = CallState::new(state(FULL[0]));
    assert_eq!(context.resolve().expect_err("no call").kind(), ErrorKind::InvalidArgument);
    context.set_state(Some(call.clone()));
    context.put("key", Some("hunter2".to_owned()));
    context.put_type(Some(Secret("hunter2")));
    context.put_named("name", Some(Secret("hunter2 again")));
    context.extra_mut().insert("extra".into(), Arc::new(Secret("hunter2")));
    assert_eq!(text(&context.resolve().expect("in a call").lock()), FULL[0]);
    assert!(!format!("{context:?}").contains("hunter2"));
    // The call's own state is shared by its parts, the attributes of a clone are not.
    let mut tool = context.clone();
    tool.put::<String>("key", None);
    tool.put_type::<Secret>(None);
    tool.put_named::<Secret>("name", None);
    tool.extra_mut().remove("extra");
    tool.resolve().expect("in a call").lock().set_summary("by the tool");
    assert_eq!(call.snapshot().summary(), "by the tool");
    assert_eq!((tool.extra().len(), tool.get_type::<Secret>(), tool.get_named::<Secret>("name")), (0, None, None));
    assert_eq!(context.get::<String>("key").map(String::as_str), Some("hunter2"));
    assert_eq!(context.get_named::<Secret>("name"), Some(&Secret("hunter2 again")));
    // A name finds an attribute of the right type only, and one by name alone if there is none by type.
    assert_eq!((context.get::<u8>("key"), context.get_named::<u8>("name")), (None, None));
    assert_eq!(context.get_named::<Secret>("extra"), Some(&Secret("hunter2")));
    assert_eq!((context.user(), context.session()), (Some("ada"), "s"));
    let anonymous = RuntimeContext::new(slot(None, "s"));
    assert_eq!((anonymous.user(), anonymous.resolve().is_err()), (None, true));
}
