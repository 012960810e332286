//! The description of the API: [OpenAPI 3.1](https://spec.openapis.org/oas/v3.1.1.html), made of the table of routes and of the schemas
//! that the types themselves tell, and a page that shows it without anything from elsewhere.

use super::routes::{Content, Route, routes};
use crate::wire::{ACTOR_HEADER, PROBLEM_TYPE, Problem, THREAD_HEADER};
use schemars::generate::SchemaSettings;
use schemars::{Schema, SchemaGenerator};
use serde_json::{Map, Value, json};
use std::sync::LazyLock;

/// Returns the description.
pub(super) fn document() -> Value {
    static DOCUMENT: LazyLock<Value> = LazyLock::new(describe);
    DOCUMENT.clone()
}

/// Returns the page: the description as a list that a browser shows, with nothing loaded from elsewhere.
pub(super) fn page() -> String {
    let mut rows = String::new();
    for route in routes() {
        rows.push_str(&format!(
            "<tr><td><code>{}</code></td><td><code>{}</code></td><td>{}</td></tr>\n",
            route.method,
            shown(route.path),
            route.summary
        ));
    }
    format!(
        "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><meta name=\"viewport\" content=\"width=device-width\">\
         <title>stratafs</title><style>body{{font:15px/1.5 system-ui;margin:2rem auto;max-width:60rem;padding:0 1rem}}\
         td{{padding:.2rem .8rem .2rem 0;vertical-align:top}}</style>\
         <h1>stratafs {}</h1><p>One file tree. Described in full by <a href=\"/openapi.json\">openapi.json</a>; models reach it at \
         <code>/mcp</code>.</p><table>\n{rows}</table></html>",
        env!("CARGO_PKG_VERSION")
    )
}

fn shown(path: &str) -> String {
    path.replace("{*", "{")
}

fn describe() -> Value {
    // Requests and answers are described each as they are read and written, and share one list of components.
    let settings = || {
        let mut settings = SchemaSettings::draft2020_12();
        settings.definitions_path = "/components/schemas".into();
        settings.meta_schema = None;
        settings
    };
    let mut asked = SchemaGenerator::new(settings());
    let mut given = SchemaGenerator::new(settings().for_serialize());
    let problem = given.subschema_for::<Problem>();
    let mut paths: Map<String, Value> = Map::new();
    for route in routes() {
        let operation = operation(&route, &mut asked, &mut given, &problem);
        let path = paths.entry(shown(route.path)).or_insert_with(|| json!({}));
        path[route.method.as_str().to_ascii_lowercase()] = operation;
    }
    let mut schemas = asked.take_definitions(true);
    // Where both have one, what is answered is the more exact: every field stands in it.
    schemas.extend(given.take_definitions(true));
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "stratafs",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "One file tree for AI agents. Paths are those of the tree; errors are problems with a stable code.",
            "license": {"name": "Apache-2.0 OR MIT", "identifier": "Apache-2.0 OR MIT"}
        },
        "servers": [{"url": "/"}],
        "security": [{}, {"token": []}],
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
            "responses": {"Problem": {
                "description": "What went wrong and what to do",
                "content": {PROBLEM_TYPE: {"schema": problem}}
            }}
        }
    })
}

fn operation(route: &Route, asked: &mut SchemaGenerator, given: &mut SchemaGenerator, _: &Schema) -> Value {
    let mut parameters: Vec<Value> = Vec::new();
    for segment in route.path.split('/').filter_map(|segment| segment.strip_prefix('{')?.strip_suffix('}')) {
        let name = segment.trim_start_matches('*');
        let schema = match name {
            "path" => json!({"type": "string", "description": "the path without its first `/`; `/` in it may be written as it is"}),
            _ => json!({"type": "string", "minLength": 1, "maxLength": 255}),
        };
        parameters.push(json!({"name": name, "in": "path", "required": true, "schema": schema}));
    }
    if let Some(query) = route.query {
        parameters.extend(in_query(query(asked).to_value()));
    }
    if !route.path.contains("{thread}") {
        parameters.push(header(THREAD_HEADER, "the thread that the request is about"));
    }
    let writes = !matches!(route.method.as_str(), "GET" | "HEAD");
    if writes {
        parameters.push(header(ACTOR_HEADER, "who acts"));
        parameters.push(header("Idempotency-Key", "makes the change once, however often the request is sent"));
    }
    let is_file = route.path.contains("/fs/");
    if writes && (is_file || route.path == "/v1/store/item") {
        parameters.push(header("If-Match", "the tag that the file must have"));
    }
    if is_file && route.method == "PUT" {
        parameters.push(header("If-None-Match", "`*`: create only"));
    }
    if is_file && route.method == "GET" {
        parameters.push(header("Range", "the bytes to send, such as `bytes=0-99`"));
    }
    let mut operation = json!({"operationId": route.id, "summary": route.summary, "parameters": parameters});
    match route.body {
        Content::None => {}
        Content::Bytes => operation["requestBody"] = json!({"required": true, "content": {"application/octet-stream": {}}}),
        Content::Json(schema) => {
            operation["requestBody"] = json!({"required": true, "content": {"application/json": {"schema": schema(asked)}}});
        }
    }
    let reply = match route.reply {
        Content::None => json!({"description": route.summary}),
        Content::Bytes => json!({
            "description": "the bytes of the file",
            "headers": {"ETag": {"schema": {"type": "string"}}},
            "content": {"*/*": {"schema": {}}}
        }),
        Content::Json(schema) => json!({"description": route.summary, "content": {"application/json": {"schema": schema(given)}}}),
    };
    let mut responses = Map::new();
    responses.insert(route.status.to_string(), reply.clone());
    if matches!(route.method.as_str(), "PUT" | "POST" | "PATCH") && is_file {
        responses.insert("201".to_owned(), reply.clone());
    }
    if is_file && route.method == "GET" {
        responses.insert("206".to_owned(), reply.clone());
        responses.insert("304".to_owned(), json!({"description": "the file is as it was"}));
    }
    if route.id == "getItem" {
        responses.insert("304".to_owned(), json!({"description": "the item is as it was"}));
    }
    if route.method == "HEAD" {
        // An answer to HEAD has no body, whatever it says.
        responses.insert("default".to_owned(), json!({"description": "what went wrong, by its status"}));
    } else {
        responses.insert("default".to_owned(), json!({"$ref": "#/components/responses/Problem"}));
    }
    operation["responses"] = Value::Object(responses);
    operation
}

fn header(name: &str, description: &str) -> Value {
    let schema = json!({"type": "string"});
    json!({"name": name, "in": "header", "required": false, "description": description, "schema": schema})
}

/// Makes parameters of the properties of an object.
fn in_query(schema: Value) -> Vec<Value> {
    let required: Vec<&str> = schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    let Some(properties) = schema["properties"].as_object() else { return Vec::new() };
    properties
        .iter()
        .map(|(name, schema)| {
            let mut schema = schema.clone();
            let description = schema.as_object_mut().and_then(|schema| schema.remove("description")).unwrap_or_default();
            json!({"name": name, "in": "query", "required": required.contains(&name.as_str()), "description": description, "schema": schema})
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_description_is_whole() {
        let document = document();
        let text = document.to_string();
        // Every component that is named is there.
        for part in text.split("#/components/schemas/").skip(1) {
            let name = part.split('"').next().unwrap_or_default();
            assert!(document["components"]["schemas"].get(name).is_some(), "{name}");
        }
        assert_eq!(document["paths"]["/v1/fs/{path}"]["put"]["operationId"], "writeFile");
        assert!(page().contains("/v1/grep") && !page().contains("https://"));
    }
}
