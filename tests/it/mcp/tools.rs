//! The descriptions of tools, and the results of calls.

use super::{Client, ERAS, Era, text};
use crate::cli::Home;
use serde_json::{Value, json};
use std::io::Write;

#[test]
fn tool_list_is_the_same_for_both_protocol_forms() {
    let home = Home::new();
    let lists = ERAS.map(|era| Client::start(&home, era, &["mcp"]).result("tools/list", json!({})));
    insta::assert_json_snapshot!("tools", lists[0]["tools"]);
    assert_eq!(lists[0]["tools"], lists[1]["tools"]);
    assert_eq!((lists[0].get("resultType"), &lists[1]["resultType"]), (None, &json!("complete")));
    assert_eq!((&lists[1]["ttlMs"], &lists[1]["cacheScope"]), (&json!(3_600_000), &json!("public")));
}

#[test]
fn discover_describes_the_server() {
    let home = Home::new();
    let mut client = Client::start(&home, Era::Modern, &["mcp"]);
    let mut discovered = client.result("server/discover", json!({}));
    discovered["_meta"]["io.modelcontextprotocol/serverInfo"]["version"].take();
    // The text about memory has its own tests.
    let instructions = discovered["instructions"].as_str().unwrap().split("\n\n").next().unwrap().to_owned();
    discovered["instructions"] = instructions.into();
    insta::assert_json_snapshot!("discover", discovered);
}

#[test]
fn file_content_round_trips_as_text_only() {
    let home = Home::new();
    for era in ERAS {
        let mut client = Client::start(&home, era, &["mcp"]);
        let content = "\u{feff}\"quoted\"\\n\tüñ\r\nlast line without an end";
        client.text("write_file", json!({"path": "/memories/a.md", "content": content}));
        assert_eq!(client.text("read_file", json!({"path": "/memories/a.md"})), content);
        let edit = json!({"path": "/memories/a.md", "old_string": "last", "new_string": "first"});
        client.text("edit_file", edit);
        assert_eq!(
            client.text("grep", json!({"pattern": "first", "path": "/memories"})).trim_end(),
            "/memories/a.md:2:first line without an end"
        );
        let read = client.call("read_file", json!({"path": "/memories/a.md"}));
        assert_eq!(read["_meta"]["treehold/data"]["total_lines"], 2, "programs find the data in `_meta`: {read}");
        client.text("delete", json!({"path": "/memories/a.md"}));
        client.close();
    }
}

#[test]
fn errors_a_model_can_fix_are_results_and_others_protocol_errors() {
    let home = Home::new();
    for era in ERAS {
        let mut client = Client::start(&home, era, &["mcp"]);
        client.text("write_file", json!({"path": "/plan.md", "content": "x"}));
        let missing = client.call("read_file", json!({"path": "/plann.md"}));
        assert_eq!(text(&missing), "error [not_found]: `/plann.md` does not exist; did you mean `/plan.md`?");
        assert_eq!(missing["_meta"]["treehold/error"]["code"], "not_found");
        assert!(client.failure("read_file", json!({})).starts_with("error [invalid_argument]: `read_file` needs `path`"));
        assert!(client.failure("read_file", json!({"path": "plan.md"})).starts_with("error [invalid_path]: "));
        assert!(client.failure("read_file", json!({"path": "/plan.md", "thread_id": 7})).contains("`thread_id` must be text"));
        assert_eq!(client.error("tools/call", json!({"name": "fly", "arguments": {}}))["code"], -32602);
        assert_eq!(client.error("no/such/method", json!({}))["code"], -32601);
        assert_eq!(client.text("read_file", json!({"path": "/plan.md"})), "x", "errors end no connection");
    }
}

/// Lines that are made to be costly or ambiguous, and numbers that no tool can use, end neither the server nor the connection.
#[test]
fn hostile_lines_and_numbers_are_answered_and_next_call_works() {
    let home = Home::new();
    for era in ERAS {
        let mut client = Client::start(&home, era, &["mcp", "--tools", "admin"]);
        client.text("write_file", json!({"path": "/plan.md", "content": "x"}));
        let deep = format!("{}1{}", "[".repeat(50_000), "]".repeat(50_000));
        let call = |arguments: &str| {
            format!(r#"{{"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {{"name": "ls", "arguments": {arguments}}}}}"#)
        };
        let long = format!("{{\"path\": \"/{}\"}}", "x".repeat(17 << 20));
        for (line, code) in [
            (call(&format!("{{\"path\": {deep}}}")), -32700),
            (call(&format!("{{\"limit\": {}}}", "9".repeat(1_000))), -32700),
            (call(&long), -32600),
            ("[".repeat(1 << 20), -32700),
        ] {
            client.send_line(&line);
            let answer = client.next();
            assert_eq!((&answer["error"]["code"], &answer["id"]), (&json!(code), &Value::Null), "{answer}");
        }
        let stdin = client.stdin.as_mut().unwrap();
        stdin.write_all(b"{\"jsonrpc\": \"2.0\", \"id\": 1, \"method\": \"\xff\"}\n").unwrap();
        assert_eq!(client.next()["error"]["code"], -32700);
        let mut asked = 0;
        for tool in client.result("tools/list", json!({}))["tools"].as_array().unwrap() {
            let (name, schema) = (tool["name"].as_str().unwrap(), &tool["inputSchema"]);
            for (argument, property) in
                schema["properties"].as_object().unwrap().iter().filter(|(_, property)| property["type"] == "integer")
            {
                for number in [json!(0), json!(-1), json!(1.5), json!(1e308), json!(-1e308), json!(u64::MAX), json!(i64::MIN)] {
                    let mut arguments = json!({argument: number});
                    for required in schema["required"].as_array().into_iter().flatten().map(|required| required.as_str().unwrap()) {
                        let value = if required == "path" || required == "file_path" { "/plan.md" } else { "x" };
                        arguments.as_object_mut().unwrap().entry(required).or_insert_with(|| json!(value));
                    }
                    let result = client.call(name, arguments.clone());
                    // A large whole number may be a valid limit; 0, a negative number and a fraction are not.
                    let is_whole = number == json!(0) && argument != "limit" || number == json!(u64::MAX);
                    let may_be_valid = is_whole || property.get("minimum").is_none();
                    assert!(may_be_valid || result["isError"] == true, "{name} {arguments}: {result}");
                    asked += 1;
                }
            }
        }
        assert!(asked > 30, "{asked}");
        assert_eq!(client.text("read_file", json!({"path": "/plan.md"})), "x");
        client.close();
    }
}

#[test]
fn client_that_disconnects_at_once_is_not_an_error() {
    let home = Home::new();
    home.command(&["mcp"]).write_stdin("").assert().success().stdout("");
}

/// Regression: a line that was not JSON got no response, and its client waited.
#[test]
fn malformed_line_is_answered_with_a_protocol_error() {
    let home = Home::new();
    for era in ERAS {
        let mut client = Client::start(&home, era, &["mcp"]);
        for (line, code) in [("{\"jsonrpc\": \"2.0\", \"id\": 1, ", -32700), ("hello", -32700), ("[1, 2]", -32600)] {
            client.send_line(line);
            let answer = client.next();
            assert_eq!((&answer["error"]["code"], answer.get("id")), (&json!(code), Some(&json!(null))), "{answer}");
        }
        client.text("ls", json!({}));
        client.close();
    }
}
