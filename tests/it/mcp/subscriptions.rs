//! Change notifications, for both forms of the protocol.

use super::{Client, Era};
use crate::cli::Home;
use serde_json::{Value, json};

/// Waits for the next notification of a changed resource, and returns its URI.
fn updated(client: &mut Client) -> String {
    let is_update = |message: &Value| message["method"] == "notifications/resources/updated";
    loop {
        let heard = client.heard.iter().position(is_update);
        let message = match heard {
            Some(at) => client.heard.remove(at),
            None => client.next(),
        };
        if is_update(&message) {
            if client.era == Era::Modern {
                assert!(message["params"]["_meta"].get("io.modelcontextprotocol/subscriptionId").is_some(), "{message}");
            }
            return message["params"]["uri"].as_str().unwrap().to_owned();
        }
    }
}

/// Waits for a notification about a resource. Notifications about others may come first, since changes made while a subscription starts are
/// reported once more.
fn hear(client: &mut Client, uri: &str) {
    while updated(client) != uri {}
}

/// Waits for the acknowledgement of a subscription.
fn acknowledged(client: &mut Client) -> Value {
    loop {
        let message = client.next();
        if message["method"] == "notifications/subscriptions/acknowledged" {
            return message;
        }
        assert_eq!(message["method"], "notifications/resources/updated", "{message}");
    }
}

fn listen(client: &mut Client, uris: &[&str]) -> u64 {
    let id = client.ask("subscriptions/listen", json!({"notifications": {"resourceSubscriptions": uris, "toolsListChanged": true}}));
    let acknowledged = acknowledged(client);
    let accepted = &acknowledged["params"]["notifications"];
    assert!(accepted["resourceSubscriptions"].as_array().unwrap().iter().all(|uri| uri.as_str().unwrap().starts_with("vfs:///")));
    assert!(accepted.get("toolsListChanged").is_none_or(|changed| changed == false), "{acknowledged}");
    id
}

#[test]
fn listener_is_notified_of_changes_by_this_server_and_others() {
    let home = Home::new();
    home.put("on-disk.md", "before");
    let mut client = Client::start(&home, Era::Modern, &["mcp"]);
    let watched = ["vfs:///memories/a.md", "vfs:///own.md", "vfs:///workspace/on-disk.md", "vfs:///workspace/new", "file:///etc/passwd"];
    let id = listen(&mut client, &watched);
    client.text("write_file", json!({"path": "/memories/a.md", "content": "of this server"}));
    hear(&mut client, "vfs:///memories/a.md");
    home.ok(&["write", "/memories/a.md", "of a command"]);
    hear(&mut client, "vfs:///memories/a.md");
    home.ok(&["write", "/own.md", "of a command, in this thread"]);
    hear(&mut client, "vfs:///own.md");
    home.put("on-disk.md", "of another program");
    hear(&mut client, "vfs:///workspace/on-disk.md");
    home.put("new/file", "");
    hear(&mut client, "vfs:///workspace/new");
    client.text("delete", json!({"path": "/memories/a.md"}));
    hear(&mut client, "vfs:///memories/a.md");
    client.send(json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": id}}));
    client.text("ls", json!({}));
    client.close();
}

#[test]
fn write_right_after_acknowledgement_is_notified() {
    let home = Home::new();
    let mut client = Client::start(&home, Era::Modern, &["mcp"]);
    for number in 0..30 {
        let (path, uri) = (format!("/memories/{number}.md"), format!("vfs:///memories/{number}.md"));
        // Both requests are sent before either is answered.
        let id = client.ask("subscriptions/listen", json!({"notifications": {"resourceSubscriptions": [uri]}}));
        acknowledged(&mut client);
        client.text("write_file", json!({"path": path, "content": "x"}));
        hear(&mut client, &uri);
        client.send(json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": id}}));
        client.heard.clear();
    }
}

#[test]
fn legacy_subscriber_is_notified_until_it_unsubscribes() {
    let home = Home::new();
    let mut client = Client::start(&home, Era::Legacy, &["mcp"]);
    client.result("resources/subscribe", json!({"uri": "vfs:///memories/a.md"}));
    client.result("resources/subscribe", json!({"uri": "vfs:///memories/b.md"}));
    client.error("resources/subscribe", json!({"uri": "file:///etc/passwd"}));
    client.text("write_file", json!({"path": "/memories/a.md", "content": "x"}));
    assert_eq!(updated(&mut client), "vfs:///memories/a.md");
    client.result("resources/unsubscribe", json!({"uri": "vfs:///memories/a.md"}));
    client.text("write_file", json!({"path": "/memories/a.md", "content": "y"}));
    client.text("write_file", json!({"path": "/memories/b.md", "content": "y"}));
    assert_eq!(updated(&mut client), "vfs:///memories/b.md", "no notification of the other resource comes first");
    client.close();
}

#[test]
fn subscription_beyond_the_limit_is_refused() {
    let home = Home::new();
    let mut client = Client::start(&home, Era::Modern, &["mcp"]);
    let first = listen(&mut client, &["vfs:///memories/a.md"]);
    for _ in 1..1_000 {
        listen(&mut client, &["vfs:///memories/a.md"]);
    }
    let uris = ["vfs:///memories/b.md"];
    let request = || json!({"notifications": {"resourceSubscriptions": uris}});
    let refused = client.error("subscriptions/listen", request());
    assert_eq!((&refused["code"], &refused["data"]["code"]), (&json!(-32000), &json!("unavailable")), "{refused}");
    client.send(json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": first}}));
    // The server frees the slot once it has processed the cancellation.
    loop {
        let id = client.ask("subscriptions/listen", request());
        acknowledged(&mut client);
        client.text("write_file", json!({"path": "/memories/b.md", "content": id.to_string()}));
        let is_refusal = |message: &Value| message["id"] == id && message.get("error").is_some();
        let heard = |message: &Value| message["params"]["uri"] == uris[0];
        let answer = loop {
            match client.heard.iter().position(|message| is_refusal(message) || heard(message)) {
                Some(at) => break client.heard.remove(at),
                None => {
                    let message = client.next();
                    client.heard.push(message);
                }
            }
        };
        if heard(&answer) {
            break;
        }
    }
}
