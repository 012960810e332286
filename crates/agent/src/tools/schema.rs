//! JSON Schemas of the tools, in the formats of model APIs and MCP.
//!
//! The schemas are deliberately plain: no unions, nullable types, references or formats, and `additionalProperties` is
//! always false, so they fit every client's subset of JSON Schema. Optional arguments have defaults.

use super::{ToolInfo, ToolSet};
use schemars::JsonSchema;
use schemars::generate::SchemaSettings;
use serde_json::{Map, Value, json};
use std::fmt;
use treehold_core::error::{Error, Result};

/// The API whose format a schema takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ToolFormat {
    /// The `tools` of the Anthropic Messages API.
    Anthropic,
    /// The `tools` of the OpenAI Chat Completions API.
    OpenAi,
    /// The `tools` of an MCP `tools/list` result.
    Mcp,
}

impl ToolFormat {
    /// Every format.
    pub const ALL: [Self; 3] = [Self::Anthropic, Self::OpenAi, Self::Mcp];

    /// Returns the name used on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Anthropic => "anthropic",
            Self::OpenAi => "openai",
            Self::Mcp => "mcp",
        }
    }
}

impl fmt::Display for ToolFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl std::str::FromStr for ToolFormat {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        Self::ALL
            .into_iter()
            .find(|format| format.name() == text)
            .ok_or_else(|| Error::invalid_argument(format!("there is no tool format `{text}`; the formats are anthropic, openai and mcp")))
    }
}

/// Returns every tool of the default set as a JSON array, in the order of [`tools`](super::tools).
pub fn export(format: ToolFormat) -> Value {
    ToolSet::Default.export(format)
}

/// Returns one tool in the given format.
pub(super) fn shaped(info: &ToolInfo, format: ToolFormat) -> Value {
    match format {
        ToolFormat::Anthropic => json!({
            "name": info.name,
            "description": info.description,
            "input_schema": info.input_schema,
        }),
        ToolFormat::OpenAi => json!({
            "type": "function",
            "function": {
                "name": info.name,
                "description": info.description,
                "parameters": info.input_schema,
                "strict": false,
            },
        }),
        ToolFormat::Mcp => json!({
            "name": info.name,
            "title": info.title,
            "description": info.description,
            "inputSchema": info.input_schema,
            "annotations": {
                "readOnlyHint": info.read_only,
                "destructiveHint": info.destructive,
                "idempotentHint": info.idempotent,
                "openWorldHint": info.open_world,
            },
        }),
    }
}

/// Derives the schema of a tool's arguments.
pub(super) fn of_arguments<T: JsonSchema>() -> Value {
    let settings = SchemaSettings::draft2020_12().with(|settings| {
        settings.inline_subschemas = true;
        settings.meta_schema = None;
    });
    let mut schema = settings.into_generator().into_root_schema_for::<T>().to_value();
    // The tool has its own description.
    if let Value::Object(object) = &mut schema {
        object.remove("description");
    }
    simplify(&mut schema);
    schema
}

/// Reduces a derived schema to the plain subset.
fn simplify(schema: &mut Value) {
    let Value::Object(object) = schema else { return };
    // What the removed keywords demand of a text is checked when the arguments are parsed.
    for keyword in ["$schema", "format", "maxLength", "minLength", "pattern", "title"] {
        object.remove(keyword);
    }
    // An `Option` shown as its plain type has the default `null`: absent.
    if object.get("default") == Some(&Value::Null) {
        object.remove("default");
    }
    if let Some(Value::Array(variants)) = object.remove("oneOf") {
        object.insert("type".to_owned(), json!("string"));
        object.insert("enum".to_owned(), variants.iter().map(|variant| variant["const"].clone()).collect());
    }
    if let Some(Value::Object(properties)) = object.get_mut("properties") {
        properties.values_mut().for_each(simplify);
    }
    if let Some(items) = object.get_mut("items") {
        simplify(items);
        // The list has a description; that of its item type would repeat it.
        if let Value::Object(items) = items {
            items.remove("description");
        }
    }
    one_line_descriptions(object);
}

fn one_line_descriptions(object: &mut Map<String, Value>) {
    if let Some(Value::String(description)) = object.get_mut("description") {
        *description = description.split_whitespace().collect::<Vec<_>>().join(" ");
    }
}

/// Returns the parts of a schema of arguments that some client might reject, each as its location and the fault.
///
/// Plain are: the types `object`, `array`, `string`, `integer`, `number` and `boolean`, one for each value; `properties`, `required`,
/// `items`, `enum`, `minimum` and `default`; a description of one line, up to 160 bytes, for every property; and no further properties.
///
/// ```
/// use treehold_agent::tools::schema::faults;
/// use serde_json::json;
///
/// let schema = json!({"type": "object", "properties": {"a": {"type": ["string", "null"], "description": "x"}}});
/// assert_eq!(faults(&schema), ["arguments: additionalProperties", "arguments.a: type"]);
/// ```
pub fn faults(schema: &Value) -> Vec<String> {
    let mut places = Vec::new();
    find_faults(schema, "arguments", &mut places);
    places
}

fn find_faults(schema: &Value, place: &str, places: &mut Vec<String>) {
    const KEYWORDS: [&str; 9] =
        ["type", "description", "default", "enum", "minimum", "properties", "required", "additionalProperties", "items"];
    let Some(object) = schema.as_object() else {
        return places.push(format!("{place}: not an object"));
    };
    for keyword in object.keys().filter(|keyword| !KEYWORDS.contains(&keyword.as_str())) {
        places.push(format!("{place}: {keyword}"));
    }
    if !object.get("type").is_some_and(Value::is_string) {
        places.push(format!("{place}: type"));
    }
    if object.get("default").is_some_and(Value::is_null) {
        places.push(format!("{place}: null default"));
    }
    if schema["type"] == "object" && schema["additionalProperties"] != false {
        places.push(format!("{place}: additionalProperties"));
    }
    for (name, property) in schema["properties"].as_object().into_iter().flatten() {
        let inner = format!("{place}.{name}");
        if property["description"].as_str().is_none_or(|text| text.is_empty() || text.contains('\n') || text.len() > 160) {
            places.push(format!("{inner}: description"));
        }
        let required = schema["required"].as_array().is_some_and(|names| names.iter().any(|required| required == name.as_str()));
        if required && property.get("default").is_some() {
            places.push(format!("{inner}: required with a default"));
        }
        find_faults(property, &inner, places);
    }
    if let Some(items) = object.get("items") {
        find_faults(items, &format!("{place}[]"), places);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exports_match_snapshots_in_every_format() {
        for format in ToolFormat::ALL {
            insta::assert_json_snapshot!(format!("export_{format}"), export(format));
            assert_eq!(format.name().parse::<ToolFormat>().expect("its own name"), format);
        }
    }

    #[test]
    fn schemas_stay_within_the_plain_subset() {
        for info in ToolSet::ALL.iter().flat_map(|set| set.tools()) {
            assert_eq!(faults(&info.input_schema), Vec::<String>::new(), "{}", info.name);
        }
    }

    #[test]
    fn fault_finder_reports_every_known_fault() {
        for bad in [
            json!({"type": ["string", "null"], "description": "x"}),
            json!({"anyOf": [{"type": "string"}]}),
            json!({"$ref": "#/$defs/x"}),
            json!({"type": "object", "properties": {}}),
            json!({"type": "string", "default": null, "description": "x"}),
            json!({"type": "object", "additionalProperties": false, "properties": {"a": {"type": "string"}}}),
        ] {
            assert!(!faults(&bad).is_empty(), "{bad}");
        }
    }
}
