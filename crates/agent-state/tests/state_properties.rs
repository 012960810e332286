//! Whatever a state holds comes back byte for byte, and a change touches only what it changes.

use proptest::prelude::*;
use serde_json::Value;
use treehold_agent_state::{AgentState, Block, Json, JsonForm, Message, NewTask, PermissionMode, ToolResultState};

/// A JSON value whose objects keep the order of their fields, with the spelling of each word.
#[derive(Debug, Clone)]
enum Tree {
    Word(String),
    Array(Vec<Tree>),
    Object(Vec<(String, Tree)>),
}

fn word() -> impl Strategy<Value = Tree> {
    const WORDS: &[&str] =
        &["null", "true", "0", "-1", "1.0", "1e2", "12345678901234567890", r#""""#, r#""\u00e9\/""#, r#""é{[,:\"""#, r#""\u001f""#];
    prop::sample::select(WORDS).prop_map(|word| Tree::Word(word.to_owned()))
}

/// Any JSON.
fn any_json() -> impl Strategy<Value = Tree> {
    word().prop_recursive(3, 12, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Tree::Array),
            prop::collection::vec(("[a-c]", inner), 0..4).prop_map(|fields| Tree::Object(unique(fields))),
        ]
    })
}

fn unique(fields: Vec<(String, Tree)>) -> Vec<(String, Tree)> {
    let mut seen = std::collections::HashSet::new();
    fields.into_iter().filter(|(key, _)| seen.insert(key.clone())).collect()
}

/// An object with some of the known fields, each `null` at times, between unknown ones, in any order.
fn object(known: Vec<(&'static str, BoxedStrategy<Tree>)>, required: usize) -> BoxedStrategy<Tree> {
    let fields: Vec<_> = known
        .into_iter()
        .enumerate()
        .map(|(at, (name, value))| {
            let name = name.to_owned();
            let field = value.prop_map(move |value| Some((name.clone(), value)));
            if at < required { field.boxed() } else { prop_oneof![3 => field, 1 => Just(None)].boxed() }
        })
        .collect();
    (fields, prop::collection::vec(("x_[a-d]", any_json()), 0..3))
        .prop_map(|(known, unknown)| known.into_iter().flatten().chain(unknown).collect())
        .prop_shuffle()
        .prop_map(|fields| Tree::Object(unique(fields)))
        .boxed()
}

fn text_of(values: &'static [&'static str]) -> BoxedStrategy<Tree> {
    prop::sample::select(values).prop_map(|value| Tree::Word(value.to_owned())).boxed()
}

fn or_null(values: BoxedStrategy<Tree>) -> BoxedStrategy<Tree> {
    prop_oneof![4 => values, 1 => Just(Tree::Word("null".into()))].boxed()
}

fn string() -> BoxedStrategy<Tree> {
    text_of(&[r#""""#, r#""a""#, r#""é\u00e9\n""#, r#""a/b""#])
}

fn map_of(value: BoxedStrategy<Tree>) -> BoxedStrategy<Tree> {
    prop::collection::vec(("[a-c]", value), 0..3).prop_map(|fields| Tree::Object(unique(fields))).boxed()
}

fn list_of(value: BoxedStrategy<Tree>, max: usize) -> BoxedStrategy<Tree> {
    prop::collection::vec(value, 0..max).prop_map(Tree::Array).boxed()
}

fn metadata() -> BoxedStrategy<Tree> {
    or_null(map_of(any_json().boxed()))
}

fn source() -> BoxedStrategy<Tree> {
    prop_oneof![
        object(vec![("type", text_of(&[r#""url""#])), ("url", string()), ("mime_type", or_null(string()))], 2),
        object(vec![("type", text_of(&[r#""base64""#])), ("media_type", string()), ("data", string())], 3),
        object(vec![("type", text_of(&[r#""tape""#]))], 1),
    ]
    .boxed()
}

fn simple_block() -> BoxedStrategy<Tree> {
    prop_oneof![
        object(vec![("type", text_of(&[r#""text""#])), ("text", or_null(string()))], 1),
        object(vec![("type", text_of(&[r#""thinking""#])), ("thinking", or_null(string())), ("metadata", metadata())], 1),
        object(vec![("type", text_of(&[r#""image""#])), ("source", source()), ("minPixels", text_of(&["1", "null"]))], 2),
        object(vec![("type", text_of(&[r#""audio""#])), ("source", source())], 2),
        object(vec![("type", text_of(&[r#""video""#])), ("source", source()), ("fps", text_of(&["2", "2.50", "null"]))], 1),
        object(vec![("type", text_of(&[r#""hint""#])), ("hint", or_null(string())), ("source", or_null(string()))], 1),
        object(vec![("type", text_of(&[r#""data""#])), ("source", source()), ("name", or_null(string()))], 2),
        object(vec![("type", text_of(&[r#""hologram""#])), ("id", any_json().boxed())], 1),
    ]
    .boxed()
}

fn block() -> BoxedStrategy<Tree> {
    let id = || or_null(text_of(&[r#""1""#, r#""2""#, r#""3""#]));
    prop_oneof![
        3 => simple_block(),
        1 => object(
            vec![
                ("type", text_of(&[r#""tool_use""#])),
                ("id", id()),
                ("name", or_null(string())),
                ("input", metadata()),
                ("content", or_null(string())),
                ("metadata", metadata()),
                ("state", text_of(&[r#""pending""#, r#""finished""#, "null"])),
            ],
            1
        ),
        1 => object(
            vec![
                ("type", text_of(&[r#""tool_result""#])),
                ("id", id()),
                ("name", or_null(string())),
                ("output", or_null(list_of(simple_block(), 3))),
                ("metadata", metadata()),
                ("state", text_of(&[r#""success""#, r#""denied""#, "null"])),
            ],
            1
        ),
    ]
    .boxed()
}

fn message() -> BoxedStrategy<Tree> {
    let number = || text_of(&["0", "7", "null"]);
    let usage = object(
        vec![
            ("inputTokens", number()),
            ("outputTokens", number()),
            ("cachedTokens", number()),
            ("time", text_of(&["1", "1.50", "1e3", "null"])),
        ],
        0,
    );
    object(
        vec![
            ("id", or_null(string())),
            ("name", or_null(string())),
            ("role", text_of(&[r#""USER""#, r#""ASSISTANT""#, r#""SYSTEM""#, r#""TOOL""#, "null"])),
            ("content", or_null(list_of(block(), 4))),
            ("metadata", metadata()),
            ("timestamp", or_null(text_of(&[r#""2026-05-25 10:00:00.000""#, r#""later""#]))),
            ("usage", or_null(usage)),
        ],
        0,
    )
}

fn whole_state() -> BoxedStrategy<Tree> {
    let rule = object(
        vec![
            ("tool_name", string()),
            ("behavior", text_of(&[r#""allow""#, r#""ASK""#])),
            ("source", string()),
            ("rule_content", or_null(string())),
        ],
        3,
    );
    let rules = || or_null(map_of(or_null(list_of(rule.clone(), 3))));
    let permissions = object(
        vec![
            ("mode", text_of(&[r#""default""#, r#""EXPLORE""#, "null"])),
            ("working_directories", or_null(map_of(object(vec![("path", string()), ("source", string())], 2)))),
            ("allow_rules", rules()),
            ("deny_rules", rules()),
            ("ask_rules", rules()),
        ],
        0,
    );
    let spawn = object(vec![("key", or_null(string())), ("agent_id", or_null(string())), ("depth", text_of(&["1", "null"]))], 0);
    let tools = object(
        vec![
            ("max_cache_files", text_of(&["2", "null"])),
            ("max_cache_bytes", text_of(&["25000", "1.5e4", "null"])),
            ("activated_groups", or_null(list_of(string(), 3))),
            ("spawn_registry", or_null(map_of(spawn))),
        ],
        0,
    );
    let ids = || or_null(list_of(text_of(&[r#""1""#, r#""2""#]), 3));
    let task = object(
        vec![
            ("subject", string()),
            ("description", string()),
            ("metadata", metadata()),
            ("created_at", or_null(text_of(&[r#""2026-05-25T10:00:00+08:00""#]))),
            ("state", text_of(&[r#""pending""#, r#""IN_PROGRESS""#, "null"])),
            ("id", or_null(text_of(&[r#""1""#, r#""2""#]))),
            ("owner", or_null(string())),
            ("blocks", ids()),
            ("blocked_by", ids()),
        ],
        2,
    );
    object(
        vec![
            ("session_id", or_null(string())),
            ("user_id", or_null(string())),
            ("summary", or_null(string())),
            ("context", or_null(list_of(message(), 4))),
            ("reply_id", or_null(string())),
            ("cur_iter", text_of(&["3", "null"])),
            ("shutdown_interrupted", text_of(&["true", "null"])),
            ("permission_context", or_null(permissions)),
            ("tool_context", or_null(tools)),
            ("tasks_context", or_null(object(vec![("tasks", or_null(list_of(task, 3)))], 0))),
            (
                "plan_mode_context",
                or_null(object(vec![("plan_active", text_of(&["true", "null"])), ("current_plan_file", or_null(string()))], 0)),
            ),
        ],
        0,
    )
}

/// Writes a tree with white space from a list, over and over.
struct Printer<'a> {
    spaces: &'a [&'static str],
    at: usize,
    out: String,
}

impl Printer<'_> {
    fn space(&mut self) {
        if !self.spaces.is_empty() {
            self.out.push_str(self.spaces[self.at % self.spaces.len()]);
            self.at += 1;
        }
    }

    fn token(&mut self, token: &str) {
        self.out.push_str(token);
        self.space();
    }

    fn print(&mut self, tree: &Tree) {
        match tree {
            Tree::Word(word) => self.out.push_str(word),
            Tree::Array(elements) => {
                self.token("[");
                for (at, element) in elements.iter().enumerate() {
                    if at > 0 {
                        self.token(",");
                    }
                    self.print(element);
                    self.space();
                }
                self.out.push(']');
            }
            Tree::Object(fields) => {
                self.token("{");
                for (at, (key, value)) in fields.iter().enumerate() {
                    if at > 0 {
                        self.token(",");
                    }
                    self.token(&format!("\"{key}\""));
                    self.token(":");
                    self.print(value);
                    self.space();
                }
                self.out.push('}');
            }
        }
    }
}

fn printed(tree: impl Strategy<Value = Tree>) -> impl Strategy<Value = String> {
    let space = prop::sample::select(&["", "", " ", "\n  ", "\t"][..]);
    (tree, prop::collection::vec(space, 0..7)).prop_map(|(tree, spaces)| {
        let mut printer = Printer { spaces: &spaces, at: 0, out: String::new() };
        printer.print(&tree);
        printer.out
    })
}

fn json(text: &str) -> Json {
    Json::parse(text).expect(text)
}

fn value(text: &str) -> Value {
    serde_json::from_str(text).expect(text)
}

fn written(state: &AgentState) -> Value {
    value(state.to_json().expect("shallow").as_str())
}

/// Sets a field where it is missing or `null`.
fn fill(model: &mut Value, field: &str, default: Value) {
    if model[field].is_null() {
        model[field] = default;
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(500) })]

    #[test]
    fn unchanged_states_are_written_byte_for_byte(text in printed(whole_state())) {
        let state = AgentState::from_stored(&json(&text)).expect(&text);
        prop_assert_eq!(state.to_json().expect("shallow").to_string(), text.as_str());
        // Setting what is set already is no change.
        let mut same = state.clone();
        same.set_summary(state.summary());
        same.set_permission_mode(state.permissions().mode);
        same.set_reply_id(Some(state.reply_id()));
        prop_assert_eq!(same.to_json().expect("shallow").to_string(), text.as_str());
        prop_assert_eq!(same, state);
    }

    #[test]
    fn layouts_change_only_white_space(text in printed(any_json())) {
        let (pretty, compact) = (JsonForm::Pretty.render(&json(&text)), JsonForm::Compact.render(&json(&text)));
        prop_assert_eq!(value(&pretty), value(&text));
        prop_assert_eq!(JsonForm::Compact.render(&json(&pretty)), compact.clone());
        prop_assert_eq!(JsonForm::Pretty.render(&json(&compact)), pretty);
        prop_assert!(!compact.contains(['\n', '\t']));
    }

    /// Each change is applied to the state and to a plain JSON value. What the state writes is the value.
    #[test]
    fn changes_touch_nothing_else(text in printed(whole_state()), changes in prop::collection::vec(0..9_usize, 0..5)) {
        let mut state = AgentState::from_stored(&json(&text)).expect(&text);
        let mut model = value(&text);
        for change in &changes {
            match change {
                0 => {
                    state.set_summary("changed\u{1f}");
                    model["summary"] = "changed\u{1f}".into();
                }
                1 => {
                    state.set_permission_mode(PermissionMode::Bypass);
                    let empty = || Value::Object(serde_json::Map::new());
                    let defaults = ["working_directories", "allow_rules", "deny_rules", "ask_rules"].map(|field| (field.to_owned(), empty()));
                    fill(&mut model, "permission_context", Value::Object(defaults.into_iter().collect()));
                    model["permission_context"]["mode"] = "bypass".into();
                }
                2 => {
                    let message = r#"{"id":"m","role":"USER","x_new":1}"#;
                    state.push(Message::parse(message).expect("valid")).expect("allowed");
                    fill(&mut model, "context", Value::Array(Vec::new()));
                    model["context"].as_array_mut().expect("a list").push(value(message));
                }
                3 => {
                    if let Some(first) = state.context_mut().first_mut() {
                        *first = first.edited(|fields| fields.name = Some("eve".into())).expect("valid");
                        model["context"][0]["name"] = "eve".into();
                    }
                }
                4 => {
                    if let Ok(id) = state.tasks_mut().create(NewTask::new("s", "d").with_id("new"), jiff::Timestamp::UNIX_EPOCH) {
                        fill(&mut model, "tasks_context", Value::Object(serde_json::Map::new()));
                        fill(&mut model["tasks_context"], "tasks", Value::Array(Vec::new()));
                        model["tasks_context"]["tasks"].as_array_mut().expect("a list").push(value(&format!(
                            r#"{{"subject":"s","description":"d","metadata":{{}},"created_at":"1970-01-01T00:00:00Z","state":"pending",
                            "id":"{id}","owner":null,"blocks":[],"blocked_by":[]}}"#
                        )));
                    }
                }
                5 => {
                    if !state.context().is_empty() {
                        state.context_mut().remove(0);
                        model["context"].as_array_mut().expect("a list").remove(0);
                    }
                }
                6 => {
                    state.plan_mut().enter(Some("plans/a.md"));
                    fill(&mut model, "plan_mode_context", Value::Object(serde_json::Map::new()));
                    model["plan_mode_context"]["plan_active"] = true.into();
                    model["plan_mode_context"]["current_plan_file"] = "plans/a.md".into();
                }
                7 => {
                    if state.permissions_mut().working_directories.remove("a").is_some() {
                        model["permission_context"]["working_directories"].as_object_mut().expect("an object").remove("a");
                    }
                }
                _ => {
                    state.set_cur_iter(9);
                    model["cur_iter"] = 9.into();
                }
            }
        }
        // A context that the text does not have is not written while it is empty.
        if state.context().is_empty() && value(&text)["context"].is_null() {
            match value(&text).get("context") {
                Some(null) => model["context"] = null.clone(),
                None => drop(model.as_object_mut().expect("an object").remove("context")),
            }
        }
        let json = state.to_json().expect("shallow");
        if written(&state) != value(&text) {
            let fields_changed = changes.iter().any(|change| ![2, 3, 5].contains(change));
            for (field, id) in [("session_id", state.session_id()), ("reply_id", state.reply_id())] {
                if fields_changed && written(&state)[field] == *id {
                    fill(&mut model, field, id.into());
                }
            }
        }
        prop_assert_eq!(value(json.as_str()), model, "{} became {}", text, json);
        // What was written is read as the same state.
        let mut again = AgentState::from_stored(&json).expect("readable");
        if again.session_id() != state.session_id() || again.reply_id() != state.reply_id() {
            again = AgentState::from_json(&json).expect("readable");
            again.set_reply_id(Some(state.reply_id()));
            prop_assert_eq!(again.context(), state.context());
        } else {
            prop_assert_eq!(again, state);
        }
    }

    #[test]
    fn edited_messages_keep_all_that_was_not_edited(text in printed(message()), at in 0..4_usize) {
        let message = Message::parse(&text).expect(&text);
        prop_assert_eq!(message.edited(|_| ()).expect("valid").json().to_string(), text.as_str());
        let mut model = value(&text);
        // Blocks that are `null` are not counted.
        let edited = message.edited(|fields| {
            fields.id = Some("new".into());
            fields.metadata.insert("edited", json("true"));
            match fields.content.get_mut(at) {
                Some(Block::Text(block)) => block.text = "edited".into(),
                Some(Block::ToolResult(block)) => block.state = ToolResultState::Interrupted,
                _ => {}
            }
        });
        model["id"] = "new".into();
        fill(&mut model, "metadata", Value::Object(serde_json::Map::new()));
        model["metadata"]["edited"] = true.into();
        if let Some(block) = model.get_mut("content").and_then(|content| content.get_mut(at)) {
            match block["type"].as_str() {
                Some("text") => block["text"] = "edited".into(),
                Some("tool_result") => block["state"] = "interrupted".into(),
                _ => {}
            }
        }
        prop_assert_eq!(value(edited.expect("valid").json().as_str()), model, "{}", text);
    }

    /// Whatever the shape, it is a state or a typed error.
    #[test]
    fn any_json_is_a_state_or_a_typed_error(text in printed(any_json())) {
        let wrapped = [text.clone(), format!(r#"{{"context":{text}}}"#), format!(r#"{{"context":[{text}]}}"#), format!(r#"{{"tool_context":{text}}}"#)];
        for text in wrapped {
            match AgentState::from_stored(&json(&text)) {
                Ok(state) => prop_assert_eq!(state.to_json().expect("shallow").to_string(), text.as_str()),
                Err(error) => prop_assert_eq!(error.kind(), treehold_core::ErrorKind::Corrupt),
            }
        }
    }
}
