//! Validates arguments against the published schemas, with the error messages of the reference server.

use serde_json::{Map, Value};

/// Validated arguments: all required ones are present, and all have their type.
#[derive(Debug)]
pub(super) struct Arguments(Map<String, Value>);

impl Arguments {
    pub(super) fn new(arguments: Map<String, Value>) -> Self {
        Self(arguments)
    }

    /// Returns all arguments.
    pub(super) fn given(&self) -> &Map<String, Value> {
        &self.0
    }

    /// Returns a string argument, or an empty string if it is absent.
    pub(super) fn text(&self, name: &str) -> &str {
        self.0.get(name).and_then(Value::as_str).unwrap_or_default()
    }

    pub(super) fn number(&self, name: &str) -> Option<f64> {
        self.0.get(name).and_then(Value::as_f64)
    }

    pub(super) fn flag(&self, name: &str) -> bool {
        self.0.get(name).and_then(Value::as_bool).unwrap_or_default()
    }

    pub(super) fn list(&self, name: &str) -> &[Value] {
        self.0.get(name).and_then(Value::as_array).map_or(&[], Vec::as_slice)
    }

    pub(super) fn texts(&self, name: &str) -> Vec<&str> {
        self.list(name).iter().filter_map(Value::as_str).collect()
    }
}

/// Validates arguments against the schema of their tool. The error lists all faults, one per line.
pub(super) fn check(schema: &Map<String, Value>, arguments: Map<String, Value>) -> Result<Map<String, Value>, String> {
    let mut faults = Vec::new();
    check_object(schema, &arguments, "", &mut faults);
    if faults.is_empty() { Ok(arguments) } else { Err(faults.join("\n")) }
}

fn check_object(schema: &Map<String, Value>, object: &Map<String, Value>, place: &str, faults: &mut Vec<String>) {
    let required: Vec<&str> = schema.get("required").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str).collect();
    let mut properties: Vec<(&String, &Value)> = schema.get("properties").and_then(Value::as_object).into_iter().flatten().collect();
    // The reference server checks required properties first.
    properties.sort_by_key(|(name, _)| required.iter().position(|required| required == name).unwrap_or(usize::MAX));
    for (name, property) in properties {
        let place = if place.is_empty() { name.clone() } else { format!("{place}.{name}") };
        match object.get(name) {
            None if !required.contains(&name.as_str()) => {}
            value => check_value(property, value, &place, faults),
        }
    }
}

fn check_value(schema: &Value, value: Option<&Value>, place: &str, faults: &mut Vec<String>) {
    let expected = schema["type"].as_str().unwrap_or_default();
    if let Some(allowed) = schema["enum"].as_array() {
        if !value.is_some_and(|value| allowed.contains(value)) {
            let allowed: Vec<String> = allowed.iter().map(Value::to_string).collect();
            faults.push(format!("Invalid option: expected one of {} at {place}", allowed.join("|")));
        }
        return;
    }
    let received = kind(value);
    if received != expected {
        faults.push(format!("Invalid input: expected {expected}, received {received} at {place}"));
        return;
    }
    match value {
        Some(Value::Array(items)) => {
            if let Some(fewest) = schema["minItems"].as_u64().filter(|fewest| (items.len() as u64) < *fewest) {
                faults.push(format!("Too small: expected array to have >={fewest} items at {place}"));
            }
            for (index, item) in items.iter().enumerate() {
                check_value(&schema["items"], Some(item), &format!("{place}[{index}]"), faults);
            }
        }
        Some(Value::Object(object)) => {
            if let Some(schema) = schema.as_object() {
                check_object(schema, object, place, faults);
            }
        }
        _ => {}
    }
}

fn kind(value: Option<&Value>) -> &'static str {
    match value {
        None => "undefined",
        Some(Value::Null) => "null",
        Some(Value::Bool(_)) => "boolean",
        Some(Value::Number(_)) => "number",
        Some(Value::String(_)) => "string",
        Some(Value::Array(_)) => "array",
        Some(Value::Object(_)) => "object",
    }
}
