//! The API description ([OpenAPI 3.1](https://spec.openapis.org/oas/v3.1.1.html)), generated from the table of routes and the schemas of
//! the types, and a self-contained page that shows it.

use super::route::{Content, Route, pattern};
use super::routes::routes;
use crate::caller::{is_of_sessions, is_of_states};
use axum::body::Body;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::Response;
use bytes::Bytes;
use schemars::SchemaGenerator;
use schemars::generate::SchemaSettings;
use serde_json::{Map, Value, json};
use std::sync::LazyLock;
use treehold_core::wire::{ACTOR_HEADER, CLAIM_HEADER, PROBLEM_TYPE, Problem, TENANT_HEADER, THREAD_HEADER, USER_HEADER};

/// The description as sent, and its tag without quotes. Generated once.
static DOCUMENT: LazyLock<(Bytes, String)> = LazyLock::new(|| {
    let bytes = Bytes::from(describe().to_string());
    let tag = blake3::hash(&bytes).to_hex()[..32].to_owned();
    (bytes, tag)
});

/// The media type of Markdown.
const MARKDOWN: &str = "text/markdown";

/// The page as sent.
static PAGE: LazyLock<Bytes> = LazyLock::new(|| Bytes::from(page()));

/// Responds with the description, or with 304 if the client has it.
pub(super) async fn show(headers: HeaderMap) -> Response {
    let (bytes, tag) = &*DOCUMENT;
    // The tag of a compressed response ends with the name of the coding.
    let is_own = |known: &str| {
        let known = known.trim().trim_start_matches("W/").trim_matches('"');
        known == "*" || known.split('-').next() == Some(tag)
    };
    let mut lines = headers.get_all(header::IF_NONE_MATCH).iter();
    let is_known = lines.any(|known| known.to_str().is_ok_and(|known| known.split(',').any(is_own)));
    let mut response = if is_known { Response::new(Body::empty()) } else { sent(bytes, "application/json") };
    if is_known {
        *response.status_mut() = StatusCode::NOT_MODIFIED;
    }
    response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    response
        .headers_mut()
        .insert(header::ETAG, HeaderValue::from_str(&format!("\"{tag}\"")).expect("hexadecimal digits are visible ASCII"));
    response
}

/// Responds with the page.
pub(super) async fn show_page() -> Response {
    let mut response = sent(&PAGE, "text/html; charset=utf-8");
    response.headers_mut().insert(header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(PAGE_POLICY));
    response
}

fn sent(bytes: &Bytes, media_type: &'static str) -> Response {
    let mut response = Response::new(Body::from(bytes.clone()));
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(media_type));
    response
}

/// What the page may do: talk to this server, and nothing else.
const PAGE_POLICY: &str = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; connect-src 'self'; base-uri 'none'; \
                           form-action 'none'; frame-ancestors 'none'";

/// Generates the page: it shows the description and sends requests, and loads nothing from elsewhere. Without scripts it lists the routes.
fn page() -> String {
    let mut rows = String::new();
    for route in routes() {
        rows.push_str(&format!(
            "<tr><td><code>{}</code></td><td><code>{}</code></td><td>{}</td></tr>\n",
            route.method,
            shown(route.path),
            route.summary
        ));
    }
    include_str!("page.html").replacen("VERSION", env!("CARGO_PKG_VERSION"), 1).replacen("ROUTES", &rows, 1)
}

fn shown(path: &str) -> String {
    path.replace("{*", "{")
}

fn describe() -> Value {
    // Requests have deserialization schemas and responses serialization schemas. Both share one set of components.
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
        let operation = operation(&route, &mut asked, &mut given);
        let path = paths.entry(shown(route.path)).or_insert_with(|| json!({}));
        path[route.method.as_str().to_ascii_lowercase()] = operation;
    }
    let mut schemas = asked.take_definitions(true);
    // If both define a component, that of the response is more precise: it lists every field.
    schemas.extend(given.take_definitions(true));
    for schema in schemas.values_mut() {
        for (_, property) in schema.get_mut("properties").and_then(Value::as_object_mut).into_iter().flatten() {
            *property = as_object(property.take());
        }
        as_enum(schema);
    }
    let mut document = json!({
        "openapi": "3.1.0",
        "info": {
            "title": "treehold",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "One file tree for AI agents. Paths are paths of the tree. Errors are RFC 9457 problem details with a stable code.",
            "license": {"name": "Apache-2.0 OR MIT", "identifier": "Apache-2.0 OR MIT"}
        },
        "servers": [{"url": "/"}],
        "security": [{}, {"token": []}],
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
            "responses": {"Problem": {
                "description": "An error: what went wrong and what to do next",
                "content": {PROBLEM_TYPE: {"schema": problem}}
            }}
        }
    });
    without_code_links(&mut document);
    document
}

/// Removes the links to code from all descriptions, which are the documentation of types. Clients cannot follow them.
fn without_code_links(document: &mut Value) {
    match document {
        Value::Object(members) => {
            for (name, member) in members {
                match member {
                    Value::String(text) if name == "description" => *text = unlinked(text),
                    member => without_code_links(member),
                }
            }
        }
        Value::Array(elements) => elements.iter_mut().for_each(without_code_links),
        _ => {}
    }
}

/// Replaces each link of rustdoc with its text: ``[`Scope`]`` and ``[`Scope`](crate::Scope)`` with `` `Scope` ``. Keeps links to the web.
fn unlinked(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, from)) = rest.split_once('[') {
        plain.push_str(before);
        let Some((label, after)) = from.split_once(']') else {
            plain.push('[');
            rest = from;
            continue;
        };
        let target = after.strip_prefix('(').and_then(|after| after.split_once(')'));
        rest = match target {
            Some((target, after)) if !target.starts_with("http") => {
                plain.push_str(label);
                after
            }
            None if label.starts_with('`') => {
                plain.push_str(label);
                after
            }
            _ => {
                plain.push('[');
                from
            }
        };
    }
    plain.push_str(rest);
    plain
}

fn operation(route: &Route, asked: &mut SchemaGenerator, given: &mut SchemaGenerator) -> Value {
    let mut parameters: Vec<Value> = Vec::new();
    for segment in pattern(route.path).0.split('/').filter_map(|segment| segment.strip_prefix('{')?.strip_suffix('}')) {
        let name = segment.trim_start_matches('*');
        let schema = match name {
            "path" => json!({"type": "string", "description": "path without the leading `/`; other `/` need no encoding"}),
            _ => json!({"type": "string", "minLength": 1, "maxLength": 255}),
        };
        parameters.push(json!({"name": name, "in": "path", "required": true, "schema": schema}));
    }
    if let Some(query) = route.query {
        parameters.extend(in_query(query(asked).to_value()));
    }
    let (is_session, is_state) = (is_of_sessions(route.path), is_of_states(route.path));
    if is_state {
        parameters.push(header(TENANT_HEADER, "tenant whose states to use; the caller's own by default"));
    } else if is_session {
        parameters.push(header(TENANT_HEADER, "tenant whose sessions to use; the caller's own by default"));
        parameters.push(header(USER_HEADER, "user whose sessions to use; the caller's own by default"));
    } else if !route.path.contains("{thread}") {
        parameters.push(header(THREAD_HEADER, "thread to use"));
    }
    if route.path.starts_with("/v1/admin/") {
        parameters.push(header("X-Agentscope-Admin-Operator", "operator to record for the request"));
        parameters.push(header("X-Agentscope-Admin-Token", "token of the caller, instead of `Authorization`"));
    }
    let writes = !matches!(route.method.as_str(), "GET" | "HEAD");
    if writes {
        if !is_session && !is_state {
            parameters.push(header(ACTOR_HEADER, "author to record for the change"));
        }
        if route.changes.is_some() {
            parameters.push(header(
                "Idempotency-Key",
                "makes the change only once, even if the request is repeated with the same key and token within a day",
            ));
        }
    }
    if writes && route.path.contains("/orchestration/") && route.id != "claimOrchestration" {
        parameters.push(header(CLAIM_HEADER, "claim that must hold; without it the write does not depend on one"));
    }
    let is_file = route.path.contains("/fs/");
    if matches!(route.id, "followEvents" | "followSession" | "watchTrace") {
        parameters.push(header("Last-Event-ID", "id of the last event received; the stream continues after it"));
    }
    let is_memo = matches!(route.id, "writeMemo" | "writeUserMemo" | "writeToolResult");
    if route.if_match {
        parameters.push(header("If-Match", "ETag that the target must have"));
    }
    if route.if_none_match {
        parameters.push(header("If-None-Match", "`*` creates only, and fails if the target exists"));
    }
    if is_file && route.method == "GET" {
        parameters.push(header("Range", "range of bytes to return, such as `bytes=0-99`"));
        parameters.push(header("If-None-Match", "ETag of the known content; the response is 304 if it is unchanged"));
    }
    let is_tagged = matches!(route.id, "getSession" | "readMemo" | "readUserMemo" | "readToolResult" | "getItem" | "getState");
    if is_tagged {
        parameters.push(header("If-None-Match", "ETag of the known version; the response is 304 if it is unchanged"));
    }
    let mut operation = json!({"operationId": route.id, "summary": route.summary, "tags": [group(route.path)], "parameters": parameters});
    // The form in which client generators recognize binary content.
    let bytes = json!({"schema": {"type": "string", "format": "binary"}});
    match route.body {
        Content::None | Content::Events(_) => {}
        // Generators of clients know no request body that is plain text.
        Content::Bytes | Content::Text => {
            operation["requestBody"] = json!({"required": true, "content": {"application/octet-stream": bytes}})
        }
        Content::Json(schema) => {
            let schema = as_object(schema(asked).to_value());
            operation["requestBody"] = json!({"required": true, "content": {"application/json": {"schema": schema}}});
        }
    }
    let mut reply = match route.reply {
        Content::None => json!({"description": route.summary}),
        Content::Bytes => json!({
            "description": "content of the file; the media type follows from its name",
            "content": {"application/octet-stream": bytes, "*/*": bytes}
        }),
        Content::Text => {
            let media = if route.id == "adminExport" { MARKDOWN } else { "text/plain" };
            json!({"description": route.summary, "content": {media: {"schema": {"type": "string"}}}})
        }
        Content::Json(schema) => {
            let schema = as_object(schema(given).to_value());
            json!({"description": route.summary, "content": {"application/json": {"schema": schema}}})
        }
        Content::Events(schema) => {
            // OpenAPI cannot describe streams, so the schema of the data goes beside that of the text.
            let data = schema(given);
            let description = match route.id {
                "watchTrace" => "one event per event of the trace, named by its kind, with its `event_id` as id and itself as data",
                _ => "first `open` or `reset`, then one `change` per change, with an event as data",
            };
            json!({
                "description": description,
                "content": {"text/event-stream": {"schema": {"type": "string"}, "x-event-data": data}}
            })
        }
    };
    if route.id == "exportState" {
        reply["content"][MARKDOWN] = json!({"schema": {"type": "string"}});
    }
    if (is_file && route.method != "DELETE") || is_tagged || is_memo || matches!(route.id, "putState" | "statState") {
        reply["headers"] = json!({"ETag": {"description": "version of the content", "schema": {"type": "string"}}});
    }
    if route.changes.is_some() {
        let said = |description: &str| json!({"description": description, "schema": {"type": "string"}});
        let headers = &mut reply["headers"];
        headers["Idempotency-Replayed"] = said("`true` if this is the stored response to an earlier request with the idempotency key");
        headers["Idempotency-State"] = said("`done` if the response is stored for the idempotency key");
        headers["Idempotency-Expires-In"] = said("seconds until the idempotency key expires");
    }
    let mut responses = Map::new();
    responses.insert(route.status.to_string(), reply.clone());
    if matches!(route.method.as_str(), "PUT" | "POST" | "PATCH") && is_file {
        responses.insert("201".to_owned(), reply.clone());
    }
    if is_file && route.method == "GET" {
        responses.insert("206".to_owned(), reply.clone());
        responses.insert("304".to_owned(), json!({"description": "the file is unchanged"}));
    }
    if is_tagged {
        responses.insert("304".to_owned(), json!({"description": "it is unchanged"}));
    }
    if route.id == "openSession" {
        responses.insert("200".to_owned(), reply.clone());
    }
    if matches!(route.id, "reflectTrace" | "runTrace") {
        responses.insert("200".to_owned(), reply.clone());
    }
    if route.id == "acquireTurn" {
        responses.insert("202".to_owned(), reply.clone());
    }
    if route.method == "HEAD" {
        // A response to HEAD never has a body.
        responses.insert("default".to_owned(), json!({"description": "an error, described by the status"}));
    } else {
        responses.insert("default".to_owned(), json!({"$ref": "#/components/responses/Problem"}));
    }
    operation["responses"] = Value::Object(responses);
    operation
}

/// Returns the tag under which generated clients group an operation.
fn group(path: &str) -> &'static str {
    match path.trim_start_matches("/v1/").split('/').next() {
        Some("threads") => "threads",
        Some("store") => "items",
        Some("tools" | "memory" | "audit") => "tools",
        Some("events" | "timeline") => "events",
        Some("sessions" | "user-memo" | "inspector") => "sessions",
        Some("admin") => "administration",
        Some("traces") => "traces",
        Some(state) if state == "state" || state.starts_with("turns:") => "states",
        _ => "files",
    }
}

/// Returns a schema in the form that generators accept: the schema of any value is `{}`, not `true`.
fn as_object(schema: Value) -> Value {
    if schema == Value::Bool(true) { json!({}) } else { schema }
}

/// Converts a `oneOf` of described constants to an `enum`, since some generators use only the first constant.
fn as_enum(schema: &mut Value) {
    let Some(object) = schema.as_object_mut() else { return };
    let words = |choice: &Value| match (&choice["const"], &choice["enum"]) {
        (Value::String(word), _) => Some(vec![word.clone()]),
        (_, Value::Array(words)) => words.iter().map(|word| word.as_str().map(str::to_owned)).collect(),
        _ => None,
    };
    let Some(choices) = object.get("oneOf").and_then(Value::as_array) else { return };
    let Some(all) = choices.iter().map(words).collect::<Option<Vec<_>>>() else { return };
    let mut description = object.get("description").and_then(Value::as_str).unwrap_or_default().to_owned();
    for (choice, words) in choices.iter().zip(&all) {
        if let Some(text) = choice["description"].as_str() {
            description.push_str(&format!("\n\n`{}`: {text}", words.join("`, `")));
        }
    }
    let all = all.concat();
    object.remove("oneOf");
    object.insert("type".to_owned(), json!("string"));
    object.insert("enum".to_owned(), json!(all));
    object.insert("description".to_owned(), json!(description.trim()));
}

fn header(name: &str, description: &str) -> Value {
    let schema = json!({"type": "string"});
    json!({"name": name, "in": "header", "required": false, "description": description, "schema": schema})
}

/// Converts the properties of an object to query parameters.
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

    /// Returns all descriptions of a document.
    fn descriptions(document: &Value) -> Vec<&str> {
        match document {
            Value::Object(members) => members
                .iter()
                .flat_map(|(name, member)| match member {
                    Value::String(text) if name == "description" => vec![text.as_str()],
                    member => descriptions(member),
                })
                .collect(),
            Value::Array(elements) => elements.iter().flat_map(descriptions).collect(),
            _ => Vec::new(),
        }
    }

    #[test]
    fn descriptions_do_not_link_to_code_or_name_its_paths() {
        let document = describe();
        let all = descriptions(&document);
        assert!(all.len() > 100, "{}", all.len());
        let leaks = |text: &&&str| text.contains("[`") || text.contains("::") || text.replace("](http", "").contains("](");
        assert_eq!(all.iter().filter(leaks).collect::<Vec<_>>(), [&""; 0]);
    }

    #[test]
    fn code_links_become_their_text() {
        for (text, plain) in [
            ("See [`Scope`].", "See `Scope`."),
            ("See [`Scope`](crate::Scope) and [the kinds](ErrorKind).", "See `Scope` and the kinds."),
            ("See [RFC 9110](https://www.rfc-editor.org/rfc/rfc9110).", "See [RFC 9110](https://www.rfc-editor.org/rfc/rfc9110)."),
            ("Such as `[a-z]`, [x] or [", "Such as `[a-z]`, [x] or ["),
        ] {
            assert_eq!(unlinked(text), plain);
        }
    }

    #[test]
    fn description_is_complete_and_readable_by_generators() {
        let document = describe();
        let text = document.to_string();
        // Every referenced component exists.
        for part in text.split("#/components/schemas/").skip(1) {
            let name = part.split('"').next().unwrap_or_default();
            assert!(document["components"]["schemas"].get(name).is_some(), "{name}");
        }
        assert_eq!(document["paths"]["/v1/fs/{path}"]["put"]["operationId"], "writeFile");
        // Forms that client generators cannot read, or that they would name by number.
        assert!(
            !text.contains("\"properties\":null")
                && !text.contains("\"schema\":true")
                && document["components"]["schemas"]["ItemRecord"]["properties"]["value"].is_object()
        );
        assert!(document["components"]["schemas"]["OpKind"]["enum"].as_array().is_some_and(|kinds| kinds.len() > 5));
        let changes = document["components"]["schemas"]["ChangeRecord"]["oneOf"].as_array().expect("variants");
        assert!(changes.iter().all(|change| change["title"].as_str().is_some_and(|title| title.ends_with("Change"))), "{changes:?}");
        assert!(page().contains("<code>/v1/grep</code>") && !page().contains("https://") && !page().contains("http://"));
    }
}
