//! Paths in queries, bodies and URLs are parsed by the same rules everywhere.

use super::Served;
use serde_json::{Value, json};

/// Invalid paths.
const INVALID: [&str; 5] = ["/a/../b", "..", "relative", "/a\u{0}b", "/a\nb"];

/// Follows the references of a schema.
fn resolved<'d>(document: &'d Value, mut schema: &'d Value) -> &'d Value {
    while let Some(reference) = schema["$ref"].as_str() {
        schema = document.pointer(reference.trim_start_matches('#')).unwrap();
    }
    schema
}

/// Returns whether a property is a tree path.
fn is_path(document: &Value, schema: &Value) -> bool {
    let variants = ["anyOf", "oneOf", "allOf"].iter().filter_map(|key| schema[key].as_array()).flatten();
    let is =
        |schema: &Value| resolved(document, schema)["description"] == "an absolute path" || schema["$ref"] == "#/components/schemas/Path";
    is(schema) || variants.into_iter().any(is)
}

fn encoded(text: &str) -> String {
    text.bytes().map(|byte| if byte.is_ascii_alphanumeric() { char::from(byte).to_string() } else { format!("%{byte:02X}") }).collect()
}

#[test]
fn invalid_path_is_the_same_error_in_every_query_and_body() {
    let served = Served::start();
    served.put("/v1/threads/t/fs/a", b"x");
    let document = served.get("/openapi.json").json();
    let mut met = Vec::new();
    for (route, methods) in document["paths"].as_object().unwrap() {
        let url = route.replace("{thread}", "t").replace("{checkpoint}", "latest").replace("{path}", "a").replace("{name}", "ls");
        for (method, operation) in methods.as_object().unwrap() {
            let method = method.to_uppercase();
            for parameter in operation["parameters"].as_array().unwrap().iter().filter(|parameter| parameter["in"] == "query") {
                if !is_path(&document, &parameter["schema"]) {
                    continue;
                }
                let name = parameter["name"].as_str().unwrap();
                for invalid in INVALID {
                    let answer = served.send(&method, &format!("{url}?{name}={}", encoded(invalid)), &[], b"");
                    assert_eq!((answer.status, answer.code().as_str()), (400, "invalid_path"), "{method} {url}?{name}={invalid:?}");
                }
                met.push(format!("{method} {route} {name}"));
            }
            let body = resolved(&document, &operation["requestBody"]["content"]["application/json"]["schema"]);
            for (name, schema) in body["properties"].as_object().into_iter().flatten() {
                if !is_path(&document, schema) {
                    continue;
                }
                for invalid in INVALID {
                    let body = json!({name.as_str(): invalid}).to_string();
                    let answer = served.send(&method, &url, &[("content-type", "application/json")], body.as_bytes());
                    assert_eq!((answer.status, answer.code().as_str()), (400, "invalid_path"), "{method} {url} {body}");
                }
                met.push(format!("{method} {route} {name}"));
            }
            if route.contains("{path}") {
                let url = route.replace("{thread}", "t").replace("{checkpoint}", "latest");
                for invalid in ["a/%2E%2E/b", "a%00b", "%2E%2E"] {
                    let answer = served.send(&method, &url.replace("{path}", invalid), &[], b"{}");
                    assert_eq!(answer.status, 400, "{method} {invalid}");
                    if method != "HEAD" {
                        assert_eq!(answer.code(), "invalid_path", "{method} {invalid}");
                    }
                }
                met.push(format!("{method} {route}"));
            }
        }
    }
    for known in [
        "GET /v1/ls path",
        "POST /v1/ls path",
        "GET /v1/stat path",
        "GET /v1/tree path",
        "GET /v1/glob path",
        "GET /v1/glob cursor",
        "GET /v1/grep path",
        "POST /v1/grep base",
        "POST /v1/search path",
        "POST /v1/move from",
        "POST /v1/move to",
        "POST /v1/copy to",
        "GET /v1/events prefix",
        "GET /v1/timeline prefix",
        "PUT /v1/fs/{path}",
    ] {
        assert!(met.iter().any(|met| met == known), "`{known}` is not among {met:#?}");
    }
}

#[test]
fn invalid_path_within_a_batch_or_list_is_reported_as_such() {
    let served = Served::start();
    for invalid in INVALID {
        for (url, body) in [
            ("/v1/apply", json!({"changes": [{"operation": "write", "path": invalid, "content": "x"}]})),
            (
                "/v1/apply",
                json!({"changes": [{"operation": "delete", "path": "/a"}, {"operation": "rename", "from": "/a", "to": invalid}]}),
            ),
            ("/v1/grep", json!({"pattern": "x", "prune": ["/a", invalid]})),
        ] {
            assert_eq!(served.post(url, &body).code(), "invalid_path", "{url} {body}");
        }
        let called = served.post("/v1/tools/ls", &json!({"path": invalid}));
        assert_eq!(called.status, 200);
        let called = called.json();
        assert_eq!((&called["is_error"], &called["error"]["code"]), (&json!(true), &json!("invalid_path")), "{called}");
    }
    // Other failures keep their own code.
    for (url, body) in [("/v1/stat", json!({"path": 5})), ("/v1/stat", json!({"pth": "/a"})), ("/v1/apply", json!({"changes": 1}))] {
        assert_eq!(served.post(url, &body).code(), "invalid_argument", "{url} {body}");
    }
    assert_eq!(served.post("/v1/stat", &json!({"path": "/a/../b"})).code(), "invalid_path");
    assert_eq!(
        served.post("/v1/stat", &json!({"nothing": 1})).code(),
        "invalid_argument",
        "the error does not name the path of the previous request"
    );
}

#[test]
fn namespaces_are_listed_by_page_and_by_suffix() {
    let served = Served::start();
    for namespace in ["a", "b", "c", "d"] {
        for kind in ["notes", "tasks"] {
            let url = format!("/v1/store/item?namespace={namespace}&namespace={kind}&key=k");
            assert_eq!(served.send("PUT", &url, &[("content-type", "application/json")], b"1").status, 200);
        }
    }
    let pages = |query: &str| {
        let (mut found, mut cursor) = (Vec::new(), String::new());
        loop {
            let page = served.get(&format!("/v1/store/namespaces?limit=3{query}{cursor}")).json();
            found.extend(page["namespaces"].as_array().unwrap().clone());
            assert_eq!(page["truncated"], page.get("next").is_some(), "{page}");
            let Some(next) = page.get("next") else { return found };
            cursor = next.as_array().unwrap().iter().map(|component| format!("&cursor={}", component.as_str().unwrap())).collect();
        }
    };
    let all: Vec<Value> = ["a", "b", "c", "d"].iter().flat_map(|one| [json!([one, "notes"]), json!([one, "tasks"])]).collect();
    assert_eq!(pages(""), all);
    assert_eq!(pages("&suffix=tasks"), ["a", "b", "c", "d"].map(|one| json!([one, "tasks"])));
    assert_eq!(pages("&prefix=*&suffix=c&suffix=*"), [json!(["c", "notes"]), json!(["c", "tasks"])]);
    assert_eq!(pages("&depth_max=1"), ["a", "b", "c", "d"].map(|one| json!([one])));
    // A suffix does not match the components before those that the caller sees.
    assert_eq!(pages("&suffix=ada&suffix=a&suffix=tasks"), [Value::Null; 0]);
}
