//! One server asks a person, and another receives the reply.

use super::Served;
use serde_json::{Value, json};
use std::sync::Arc;
use treehold::MemoryStore;

fn delete(served: &Served, more: &Value) -> Value {
    let meta = json!({
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": {"elicitation": {"form": {}}},
    });
    let mut params = json!({"name": "delete", "arguments": {"path": "/memories/d", "recursive": true}, "_meta": meta});
    params.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    let headers = [
        ("content-type", "application/json"),
        ("accept", "application/json, text/event-stream"),
        ("mcp-protocol-version", "2026-07-28"),
        ("mcp-method", "tools/call"),
        ("mcp-name", "delete"),
    ];
    let body = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params});
    served.send("POST", "/mcp", &headers, body.to_string().as_bytes()).json()["result"].clone()
}

#[test]
fn reply_is_accepted_once_by_any_server_of_the_store() {
    let store = Arc::new(MemoryStore::new());
    let (one, two) = (Served::on(store.clone(), |options| options), Served::on(store, |options| options));
    one.put("/v1/fs/memories/d/a", b"x");
    let asked = delete(&one, &json!({}));
    assert_eq!(asked["resultType"], "input_required", "{asked}");
    let yes = json!({
        "inputResponses": {"confirm": {"action": "accept", "content": {"confirm": true}}},
        "requestState": asked["requestState"],
    });
    let done = delete(&two, &yes);
    assert!(done["content"][0]["text"].as_str().is_some_and(|text| text.starts_with("Deleted /memories/d")), "{done}");
    assert_eq!(one.get("/v1/fs/memories/d/a").code(), "not_found");
    // It is accepted only once, by any of the servers.
    one.put("/v1/fs/memories/d/a", b"x");
    for served in [&one, &two] {
        assert_eq!(delete(served, &yes)["resultType"], "input_required");
    }
    // Servers without a common store do not accept each other's questions.
    let stranger = Served::start();
    stranger.put("/v1/fs/memories/d/a", b"x");
    assert!(delete(&stranger, &yes).is_null(), "an error of the protocol");
}
