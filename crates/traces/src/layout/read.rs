//! Reads the files of a trace as values. What does not fit is left out and reported.

use super::merge::{FIELDS_MAX, Fields};
use crate::id::TraceId;
use crate::model::{Goal, GoalTree, Message, Trace, TraceEvent};
use serde::de::DeserializeOwned;
use treehold_core::error::{Error, ErrorKind, Result};
use treehold_core::json::Json;

/// The greatest sequence and event id that is imported. Every JSON reader represents it exactly.
pub(super) const POSITION_MAX: u64 = 1 << 53;

/// A value, with the reasons why parts of its file were not taken.
pub(super) type Taken<T> = (T, Vec<String>);

/// Reads `meta.json`.
///
/// # Errors
/// [`Corrupt`](ErrorKind::Corrupt) for content that does not tell the trace and its user: without them, the trace could become another
/// user's.
pub(super) fn meta(id: &TraceId, content: &[u8]) -> Result<Taken<Trace>> {
    let fields =
        object(content).map_err(|error| corrupt("`meta.json` cannot be read, which tells whose trace it is").with_source(error))?;
    let text = |name: &str| fields.get(name).filter(|value| value.as_str() != "null").map(|value| value.view::<String>());
    match text("trace_id") {
        Some(Ok(found)) if found == id.as_str() => {}
        Some(Ok(found)) => {
            let found: String = found.chars().take(80).collect();
            return Err(corrupt(&format!("`meta.json` is that of the trace `{}`; rename the directory", found.escape_debug())));
        }
        _ => return Err(corrupt("`meta.json` has no `trace_id`")),
    }
    if let Some(Err(_)) = text("uid") {
        return Err(corrupt("the `uid` in `meta.json` is not a text"));
    }
    lenient(fields, &["trace_id"])
}

/// Reads `goal.json`.
pub(super) fn goals(content: &[u8]) -> Result<Taken<GoalTree>> {
    let mut fields = object(content)?;
    let elements = fields.0.iter().rposition(|(name, _)| name == "goals").map(|index| fields.0.remove(index).1);
    let (mut tree, mut left_out) = lenient::<GoalTree>(fields, &[])?;
    let elements: Vec<Json> = match elements.map(|elements| elements.view()) {
        Some(Ok(elements)) => elements,
        Some(Err(error)) => {
            left_out.push(format!("`goals` does not fit: {}", error.message()));
            Vec::new()
        }
        None => Vec::new(),
    };
    tree.goals.clear();
    for (index, element) in elements.iter().enumerate() {
        match element.view().and_then(|fields| lenient::<Goal>(fields, &["id"])) {
            Ok((goal, reasons)) => {
                left_out.extend(reasons.into_iter().map(|reason| format!("goal `{}`: {reason}", goal.id.escape_debug())));
                tree.goals.push(goal);
            }
            Err(error) => left_out.push(format!("goal {} cannot be taken: {}", index + 1, error.message())),
        }
    }
    Ok((tree, left_out))
}

/// Reads the file of a message with a name, which is its id.
///
/// # Errors
/// [`InvalidArgument`](ErrorKind::InvalidArgument) for content that is not a message of the trace with a place in its tree.
pub(super) fn message(id: &TraceId, name: &str, content: &[u8]) -> Result<Taken<Message>> {
    let mut fields = object(content)?;
    for (field, expected) in [("message_id", name), ("trace_id", id.as_str())] {
        match fields.get(field).map(|value| value.view::<String>()) {
            None => fields.0.push((field.to_owned(), Json::of(expected)?)),
            Some(Ok(found)) if found == expected => {}
            Some(_) => return Err(Error::invalid_argument(format!("its `{field}` is not `{expected}`"))),
        }
    }
    for field in ["role", "sequence"] {
        if fields.get(field).is_none() {
            return Err(Error::invalid_argument(format!("it has no `{field}`")));
        }
    }
    let (message, left_out) = lenient::<Message>(fields, &["message_id", "trace_id", "role", "sequence"])?;
    if !(1..=POSITION_MAX).contains(&message.sequence) {
        return Err(Error::invalid_argument(format!("its sequence {} is not from 1 to {POSITION_MAX}", message.sequence)));
    }
    if message.parent_sequence.is_some_and(|parent| parent >= message.sequence) {
        return Err(Error::invalid_argument("its parent does not come before it"));
    }
    Ok((message, left_out))
}

/// Reads a line of `events.jsonl`, which comes after the event with an id.
pub(super) fn event(after: u64, line: &[u8]) -> Result<TraceEvent> {
    let json = Json::from_bytes(line)?;
    let event: TraceEvent = json.view()?;
    if event.event_id <= after {
        return Err(Error::invalid_argument(format!("its event id {} does not come after {after}", event.event_id)));
    }
    if event.event_id > POSITION_MAX {
        return Err(Error::invalid_argument(format!("its event id {} is over {POSITION_MAX}", event.event_id)));
    }
    Ok(event)
}

/// Reads an object.
fn object(content: &[u8]) -> Result<Fields> {
    Json::from_bytes(content)?.view()
}

/// Reads a value from its fields. Fields that do not fit are left out; those that are null without being allowed to are not reported.
///
/// Each field is tried alone, beside those that every value needs.
fn lenient<T: DeserializeOwned>(fields: Fields, needed: &[&str]) -> Result<Taken<T>> {
    if fields.0.len() > FIELDS_MAX {
        return Err(Error::invalid_argument(format!("it has over {FIELDS_MAX} fields")));
    }
    let first = match fields.to_json()?.view() {
        Ok(value) => return Ok((value, Vec::new())),
        Err(error) => error,
    };
    let core: Vec<(String, Json)> = fields.0.iter().filter(|(name, _)| needed.contains(&name.as_str())).cloned().collect();
    let (mut kept, mut left_out) = (Vec::new(), Vec::new());
    for (name, value) in fields.0 {
        let mut alone = core.clone();
        if !needed.contains(&name.as_str()) {
            alone.push((name.clone(), value.clone()));
        }
        match Fields(alone).to_json()?.view::<T>() {
            Ok(_) => kept.push((name, value)),
            Err(_) if value.as_str() == "null" => {}
            Err(error) => left_out.push(format!("`{}` does not fit: {}", name.escape_debug(), error.message())),
        }
    }
    match Fields(kept).to_json()?.view() {
        Ok(value) => Ok((value, left_out)),
        Err(_) => Err(first),
    }
}

fn corrupt(message: &str) -> Error {
    Error::new(ErrorKind::Corrupt, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id() -> TraceId {
        TraceId::new("t").expect("an id")
    }

    #[test]
    fn fields_that_do_not_fit_are_left_out_and_reported() {
        let content = br#"{"trace_id":"t","status":"waiting","total_tokens":null,"total_cost":1,"odd":[1],"task":"tea","task":"coffee"}"#;
        let (trace, left_out) = meta(&id(), content).expect("a trace");
        assert_eq!((trace.task.as_deref(), trace.total_cost, trace.total_tokens), (Some("coffee"), 1.0, 0));
        assert_eq!(trace.other["odd"], serde_json::json!([1]));
        assert!(left_out.len() == 1 && left_out[0].starts_with("`status` does not fit"), "{left_out:?}");
    }

    #[test]
    fn meta_without_an_owner_that_can_be_told_is_refused() {
        for content in [
            "",
            "[]",
            "{",
            "{}",
            r#"{"trace_id":"other"}"#,
            r#"{"trace_id":7}"#,
            r#"{"trace_id":"t","uid":7}"#,
            "\u{feff}{\"trace_id\":\"t\"}",
        ] {
            assert_eq!(meta(&id(), content.as_bytes()).expect_err(content).kind(), ErrorKind::Corrupt, "{content}");
        }
    }

    #[test]
    fn messages_without_a_place_in_the_tree_are_refused() {
        for content in [
            r#"{"sequence":1}"#,
            r#"{"role":"user"}"#,
            r#"{"role":"user","sequence":0}"#,
            r#"{"role":"user","sequence":-1}"#,
            r#"{"role":"user","sequence":1,"parent_sequence":1}"#,
            r#"{"role":"user","sequence":18446744073709551615}"#,
            r#"{"role":"user","sequence":1,"trace_id":"x"}"#,
            r#"{"role":"user","sequence":1,"message_id":"x"}"#,
            r#"{"role":["user"],"sequence":1}"#,
            "\"text\"",
        ] {
            assert!(message(&id(), "m", content.as_bytes()).is_err(), "{content}");
        }
        let content = r#"{"role":"user","sequence":2,"parent_sequence":1,"tokens":"many","content":{"b":1,"a":[1.0]}}"#;
        let (message, left_out) = message(&id(), "m", content.as_bytes()).expect("a message");
        assert_eq!(message.content.as_ref().map(Json::as_str), Some(r#"{"b":1,"a":[1.0]}"#));
        assert_eq!((message.message_id.as_str(), left_out.len()), ("m", 1));
    }
}
