//! Places of request bodies where the description says that an object is due. serde also reads a struct from an array of its fields in
//! order, which no client may rely on: such a body would mean something else as soon as a field is added.
//!
//! The table takes routes and places from the API description, so that a new route is in it.

use super::{Answer, Served};
use serde_json::{Map, Value, json};
use std::collections::BTreeSet;

/// How deep places are looked for. Deeper ones are those of types that contain themselves.
const DEPTH_MAX: usize = 4;

/// A step from a value to a part of it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Step {
    Member(String),
    Element,
}

/// The description, and the places that were found in a body.
struct Places<'a> {
    document: &'a Value,
    found: BTreeSet<Vec<Step>>,
}

impl<'a> Places<'a> {
    fn of(document: &'a Value, schema: &'a Value) -> BTreeSet<Vec<Step>> {
        let mut places = Self { document, found: BTreeSet::new() };
        places.look(&[schema], &mut Vec::new());
        places.found
    }

    /// Returns what a value may be: the schemas behind references and choices.
    fn choices(&self, schema: &'a Value) -> Vec<&'a Value> {
        if let Some(name) = schema["$ref"].as_str() {
            let name = name.strip_prefix("#/components/schemas/").unwrap();
            return self.choices(&self.document["components"]["schemas"][name]);
        }
        let among = ["oneOf", "anyOf"].iter().filter_map(|choice| schema[*choice].as_array()).flatten();
        let mut choices: Vec<&Value> = among.flat_map(|choice| self.choices(choice)).collect();
        if choices.is_empty() || schema["properties"].is_object() {
            choices.push(schema);
        }
        choices
    }

    fn look(&mut self, schemas: &[&'a Value], at: &mut Vec<Step>) {
        let choices: Vec<&Value> = schemas.iter().flat_map(|schema| self.choices(schema)).collect();
        let is = |choice: &Value, kind: &str| match &choice["type"] {
            Value::Array(kinds) => kinds.iter().any(|own| own == kind),
            own => own == kind,
        };
        // What has no type may be anything.
        let may_be_array = choices.iter().any(|choice| choice["type"].is_null() || is(choice, "array"));
        if !may_be_array && choices.iter().any(|choice| is(choice, "object")) {
            self.found.insert(at.clone());
        }
        if at.len() == DEPTH_MAX {
            return;
        }
        let mut members: Map<String, Value> = Map::new();
        for choice in &choices {
            members.extend(choice["properties"].as_object().into_iter().flatten().map(|(name, _)| (name.clone(), Value::Null)));
        }
        for name in members.keys() {
            let of_name: Vec<&Value> = choices.iter().map(|choice| &choice["properties"][name]).filter(|own| !own.is_null()).collect();
            at.push(Step::Member(name.clone()));
            self.look(&of_name, at);
            at.pop();
        }
        let elements: Vec<&Value> = choices.iter().map(|choice| &choice["items"]).filter(|own| own.is_object()).collect();
        if !elements.is_empty() {
            at.push(Step::Element);
            self.look(&elements, at);
            at.pop();
        }
    }
}

/// Returns a body with a value at a place.
fn body(place: &[Step], value: &Value) -> Value {
    match place.split_first() {
        None => value.clone(),
        Some((Step::Member(name), rest)) => json!({name: body(rest, value)}),
        Some((Step::Element, rest)) => json!([body(rest, value)]),
    }
}

/// Returns the place as messages name it.
fn shown(place: &[Step]) -> String {
    let mut shown = String::new();
    for step in place {
        match step {
            Step::Member(name) if shown.is_empty() => shown.push_str(name),
            Step::Member(name) => shown.push_str(&format!(".{name}")),
            Step::Element => shown.push_str("[0]"),
        }
    }
    shown
}

/// A server with one of everything that paths name.
fn served() -> Served {
    let served = Served::start();
    let made = |method: &str, path: &str, body: Value| -> Answer {
        let answer = served.send(method, path, &[("content-type", "application/json")], body.to_string().as_bytes());
        assert!(answer.status < 300, "{method} {path}");
        answer
    };
    made("PUT", "/v1/fs/memories/a", json!("old"));
    made("POST", "/v1/sessions", json!({"agent_id": "helper", "session_id": "s"}));
    made("POST", "/v1/traces", json!({"trace_id": "t", "agent_type": "helper"}));
    made("PUT", "/v1/state/default/s/agent_state", json!({"context": []}));
    served
}

fn url(path: &str) -> String {
    let mut url = path.to_owned();
    for (name, value) in [
        ("path", "memories/a"),
        ("thread", "t"),
        ("name", "grep"),
        ("session", "s"),
        ("agent", "a"),
        ("id", "x"),
        ("trace", "t"),
        ("message", "m"),
        ("goal", "1"),
        ("tool_call", "c"),
        ("checkpoint", "latest"),
        ("user", "default"),
        ("key", "k"),
    ] {
        url = url.replace(&format!("{{{name}}}"), value);
    }
    assert!(!url.contains('{'), "say here what to put into {url}");
    url
}

#[test]
fn array_where_an_object_is_due_is_refused_in_every_body() {
    let served = served();
    let document = served.get("/openapi.json").json();
    let (mut bodies, mut nested, mut wrong) = (0, 0, Vec::new());
    for (path, methods) in document["paths"].as_object().unwrap() {
        for (method, operation) in methods.as_object().unwrap() {
            let schema = &operation["requestBody"]["content"]["application/json"]["schema"];
            let places = if schema.is_object() { Places::of(&document, schema) } else { BTreeSet::new() };
            let id = operation["operationId"].as_str().unwrap();
            bodies += usize::from(places.contains(&Vec::new()));
            nested += places.iter().filter(|place| !place.is_empty()).count();
            for place in &places {
                for array in [json!([]), json!(["a", null, 1, {}, []])] {
                    let sent = body(place, &array);
                    let headers = [("content-type", "application/json"), ("treehold-claim", "1")];
                    let answer = served.send(&method.to_uppercase(), &url(path), &headers, sent.to_string().as_bytes());
                    let (status, text) = (answer.status, answer.text());
                    let problem: Value = serde_json::from_str(&text).unwrap_or_default();
                    let detail = problem["detail"].as_str().unwrap_or_default();
                    let what = if place.is_empty() { "the body".to_owned() } else { format!("`{}` in the body", shown(place)) };
                    let says = format!("{what} is an array, and an object is due");
                    if (status, problem["code"].as_str()) != (400, Some("invalid_argument")) || !detail.starts_with(&says) {
                        wrong.push(format!("{id} {sent}: {status} {text}"));
                    }
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{} of {bodies} bodies and {nested} places: {wrong:#?}", wrong.len());
    assert!(bodies > 45 && nested > 40, "{bodies} {nested}");
}
