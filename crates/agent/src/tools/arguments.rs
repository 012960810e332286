//! Parsing of JSON arguments into typed ones, with errors that name the argument and the allowed values.
//!
//! Arguments are checked against the tool's published schema, so what models read and what is enforced cannot differ.

use super::{FileTool, ToolInfo, render, suggest};
use serde_json::{Map, Value};
use treehold_core::error::{Error, ErrorKind, Result};
use treehold_core::path::VfsPath;

/// How many characters of a wrong value an error quotes.
const VALUE_CHARS_MAX: usize = 60;

/// Parses the arguments of a tool.
///
/// Accepts what is unambiguous: `null` for an absent optional argument, `10.0` for `10`, an object encoded as a string, one text for a list
/// of texts, and argument names that models know from other tools.
///
/// # Errors
/// [`InvalidArgument`](ErrorKind::InvalidArgument) and [`InvalidPath`](ErrorKind::InvalidPath).
pub(super) fn decode<T: FileTool>(info: &ToolInfo, arguments: Value) -> Result<T> {
    let arguments = checked(info, T::ALIASES, arguments)?;
    info.parse(&arguments)
}

/// Checks arguments against the schema of a tool.
///
/// # Errors
/// As [`decode`].
pub(super) fn checked(info: &ToolInfo, aliases: &[(&str, &str)], arguments: Value) -> Result<Value> {
    let mut arguments = object(info, arguments)?;
    rename(info, aliases, &mut arguments)?;
    let mut arguments = Value::Object(arguments);
    check(&mut arguments, &info.input_schema, &info.name, "")?;
    for name in &info.path_arguments {
        if let Some(Value::String(text)) = arguments.get(&**name) {
            check_path(name, text)?;
        }
    }
    Ok(arguments)
}

fn object(info: &ToolInfo, arguments: Value) -> Result<Map<String, Value>> {
    let arguments = match arguments {
        Value::String(text) if text.trim().is_empty() => Value::Null,
        Value::String(text) => serde_json::from_str(&text).unwrap_or(Value::String(text)),
        other => other,
    };
    match arguments {
        Value::Object(object) => Ok(object),
        Value::Null => Ok(Map::new()),
        other => Err(Error::invalid_argument(format!("the arguments of `{}` must be an object; they are {}", info.name, shown(&other)))),
    }
}

fn rename(info: &ToolInfo, aliases: &[(&str, &str)], arguments: &mut Map<String, Value>) -> Result<()> {
    for (alias, name) in aliases {
        if let Some(value) = arguments.remove(*alias)
            && arguments.insert((*name).to_owned(), value).is_some_and(|other| !other.is_null())
        {
            return Err(Error::invalid_argument(format!(
                "`{}` got both `{name}` and `{alias}`, which mean the same; leave out `{alias}`",
                info.name
            )));
        }
    }
    Ok(())
}

fn check_path(name: &str, text: &str) -> Result<()> {
    let Err(invalid) = VfsPath::parse(text) else { return Ok(()) };
    let hint = match text.trim_start_matches("./") {
        rest if !rest.is_empty() && !text.starts_with(['/', '~', '\\']) && VfsPath::parse(&format!("/{rest}")).is_ok() => {
            format!(", as in `/{}`", excerpt(rest))
        }
        _ => String::new(),
    };
    Err(Error::new(ErrorKind::InvalidPath, format!("`{name}` is `{}`: {invalid}{hint}", excerpt(text))))
}

/// Checks a value against its schema. `place` locates it within the arguments, such as `edits[0].old_string`; it is
/// empty for the whole.
fn check(value: &mut Value, schema: &Value, tool: &str, place: &str) -> Result<()> {
    let wrong = |expected: &str, value: &Value| {
        Err(Error::invalid_argument(format!("`{place}` of `{tool}` must be {expected}; it is {}", shown(value))))
    };
    match schema["type"].as_str() {
        Some("object") => match value {
            Value::Object(object) => check_object(object, schema, tool, place),
            other => wrong("an object", other),
        },
        Some("array") => match value {
            // One text where a list of texts may stand.
            Value::String(text) if schema["items"]["type"] == "string" => {
                *value = Value::Array(vec![Value::String(std::mem::take(text))]);
                check(value, schema, tool, place)
            }
            Value::Array(items) => {
                items.iter_mut().enumerate().try_for_each(|(index, item)| check(item, &schema["items"], tool, &format!("{place}[{index}]")))
            }
            other => wrong("a list", other),
        },
        Some("string") => match (&*value, schema["enum"].as_array()) {
            (Value::String(_), Some(allowed)) if !allowed.contains(value) => {
                let allowed: Vec<&str> = allowed.iter().filter_map(Value::as_str).collect();
                wrong(&format!("one of {}", allowed.join(", ")), value)
            }
            (Value::String(_), _) => Ok(()),
            (other, _) => wrong("text", other),
        },
        Some("boolean") if value.is_boolean() => Ok(()),
        Some("boolean") => wrong("true or false", value),
        Some("integer") => {
            let minimum = schema["minimum"].as_i64();
            match whole(value).filter(|number| minimum.is_none_or(|minimum| *number >= minimum)) {
                Some(number) => {
                    *value = number.into();
                    Ok(())
                }
                None => {
                    wrong(&minimum.map_or("a whole number".to_owned(), |minimum| format!("a whole number of {minimum} or more")), value)
                }
            }
        }
        _ => Ok(()),
    }
}

fn check_object(object: &mut Map<String, Value>, schema: &Value, tool: &str, place: &str) -> Result<()> {
    let properties = schema["properties"].as_object();
    let required: Vec<&str> = schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    object.retain(|name, value| !value.is_null() || required.contains(&name.as_str()));
    let owner = if place.is_empty() { format!("`{tool}`") } else { format!("`{place}` of `{tool}`") };
    for name in &required {
        if !object.contains_key(*name) {
            let meaning = properties.and_then(|properties| properties.get(*name)?["description"].as_str()).unwrap_or_default();
            return Err(Error::invalid_argument(format!("{owner} needs `{name}`: {}", sentence(meaning))));
        }
    }
    for (name, value) in object.iter_mut() {
        let Some(property) = properties.and_then(|properties| properties.get(name)) else {
            let known: Vec<&str> = properties.into_iter().flat_map(Map::keys).map(String::as_str).collect();
            let near = suggest::nearest(name, known.iter().copied());
            let takes = if near.is_empty() { "; it takes" } else { " It takes" };
            return Err(Error::invalid_argument(format!(
                "{owner} has no argument `{}`{}{takes} {}",
                excerpt(name),
                suggest::did_you_mean(&near),
                known.join(", ")
            )));
        };
        let inner = if place.is_empty() { name.clone() } else { format!("{place}.{name}") };
        check(value, property, tool, &inner)?;
    }
    Ok(())
}

/// Parses an integer; JSON does not distinguish `10` from `10.0`.
fn whole(value: &Value) -> Option<i64> {
    value.as_i64().or_else(|| {
        let float = value.as_f64().filter(|float| float.fract() == 0.0 && (-9e15..=9e15).contains(float))?;
        Some(float as i64)
    })
}

/// Adapts a description to follow a colon: lowercase first letter, no full stop.
fn sentence(text: &str) -> String {
    let text = text.trim_end_matches('.');
    let mut letters = text.chars();
    letters.next().map(|first| first.to_lowercase().chain(letters).collect()).unwrap_or_default()
}

fn shown(value: &Value) -> String {
    match value {
        Value::Null => "null".to_owned(),
        Value::Object(_) => "an object".to_owned(),
        Value::Array(_) => "a list".to_owned(),
        Value::String(text) => format!("the text `{}`", excerpt(text)),
        other => format!("`{other}`"),
    }
}

/// Returns the start of a text without control characters.
fn excerpt(text: &str) -> String {
    let (start, more) = render::cut_line(text, 0, VALUE_CHARS_MAX);
    let visible = start.chars().map(|letter| if letter.is_control() { letter.escape_default().to_string() } else { letter.to_string() });
    visible.chain(more.then(|| "...".to_owned())).collect()
}

#[cfg(test)]
mod tests {
    use super::super::ToolCall;
    use super::*;
    use serde_json::json;

    fn refused(tool: &str, arguments: Value) -> String {
        let error = ToolCall::from_json(tool, arguments).expect_err("wrong arguments");
        format!("[{}] {}", error.kind(), error.message())
    }

    #[test]
    fn wrong_arguments_are_refused_by_name() {
        let cases = [
            ("read_file", json!({})),
            ("read_file", json!({"path": null})),
            ("read_file", json!([1])),
            ("read_file", json!("not json")),
            ("read_file", json!({"path": 7})),
            ("read_file", json!({"path": "/a", "limit": "ten"})),
            ("read_file", json!({"path": "/a", "limit": 0})),
            ("read_file", json!({"path": "/a", "offset": -1})),
            ("read_file", json!({"path": "/a", "offset": 1.5})),
            ("read_file", json!({"path": "/a", "line_numbers": "yes"})),
            ("read_file", json!({"path": "/a", "ofset": 1})),
            ("read_file", json!({"path": "/a", "file_path": "/b"})),
            ("read_file", json!({"path": "notes.md"})),
            ("read_file", json!({"path": "./notes.md"})),
            ("read_file", json!({"path": ""})),
            ("read_file", json!({"path": "~/notes.md"})),
            ("read_file", json!({"path": "/a/../b"})),
            ("read_file", json!({"path": "/a\u{0}b"})),
            ("grep", json!({"pattern": "x", "output_mode": "lines"})),
            ("edit_file", json!({"path": "/a", "edits": {}})),
            ("edit_file", json!({"path": "/a", "edits": ["x"]})),
            ("edit_file", json!({"path": "/a", "edits": [{"old_string": "x"}]})),
            ("edit_file", json!({"path": "/a", "edits": [{"old_string": "x", "new_string": 1}]})),
            ("edit_file", json!({"path": "/a", "edits": [{"old_string": "x", "new_string": "y", "all": true}]})),
            ("move", json!({"from": "/a"})),
        ];
        let shown: Vec<String> =
            cases.into_iter().map(|(tool, arguments)| format!("{tool} {arguments}\n    {}", refused(tool, arguments.clone()))).collect();
        insta::assert_snapshot!("wrong_arguments", shown.join("\n"));
    }

    #[test]
    fn unambiguous_variants_are_accepted() {
        let plain = ToolCall::from_json("read_file", json!({"path": "/a/b", "limit": 10})).expect("a legal call");
        for same in [
            json!({"path": "/a/b/", "limit": 10}),
            json!({"path": "/a//b", "limit": 10.0}),
            json!({"path": "/a/b", "limit": 10, "offset": null}),
            json!({"file_path": "/a/b", "limit": 10}),
            json!({"file_path": "/a/b", "path": null, "limit": 10}),
            json!(r#"{"path": "/a/b", "limit": 10}"#),
        ] {
            assert_eq!(ToolCall::from_json("read_file", same.clone()).expect("the same call"), plain, "{same}");
        }
        assert!(ToolCall::from_json("ls", Value::Null).is_ok());
        assert!(ToolCall::from_json("ls", json!("")).is_ok());
    }
}
