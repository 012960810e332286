//! The published rules of tools, and the tool through a session and through MCP.

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use treehold::mcp::{McpOptions, McpServer};
use treehold::tools::kit::ToolSubject;
use treehold::tools::{ToolFormat, ToolSet};
use treehold::{BackendExt, MemoryCheckpointer, Scope, Workspace};
use treehold_example_custom_tool::CsvTool;

const PEOPLE: &str = "name,city,about\nAda,London,\"first, of all\"\r\nGrace,New York,\"said \"\"bug\"\"\"\nAlan,London,\n";

fn subject() -> ToolSubject {
    ToolSubject::new(CsvTool::new())
        .with_file("/people.csv", PEOPLE)
        .with_call(json!({"path": "/people.csv"}))
        .with_call(json!({"path": "/people.csv", "column": "city", "equals": "London", "columns": ["name"], "limit": 1}))
}

treehold::tool_conformance!(csv_query, subject);

async fn workspace() -> (Workspace, Scope) {
    let workspace = Workspace::builder().checkpointer(MemoryCheckpointer::new()).tool(CsvTool::new()).expect("a legal tool").build();
    let scope = Scope::new().with_thread("tables");
    let session = workspace.session(scope.clone()).await.expect("opened");
    session.backend().write("/people.csv", PEOPLE).await.expect("written");
    session.save().await.expect("saved");
    (workspace, scope)
}

#[tokio::test]
async fn session_calls_the_tool_like_a_built_in_one() {
    let (workspace, scope) = workspace().await;
    let session = workspace.session(scope).await.expect("opened");
    let mut answers = String::new();
    for arguments in [
        json!({"path": "/people.csv"}),
        json!({"path": "/people.csv", "column": "city", "equals": "London", "columns": ["name"], "limit": 1}),
        json!({"path": "/people.csv", "columns": ["age"]}),
        json!({"path": "/nobody.csv"}),
    ] {
        let call = workspace.tools().from_json("csv_query", arguments).expect("legal arguments");
        answers.push_str(&format!("{}\n\n", session.call(call).await.text));
    }
    let wanted = "name | city | about\nAda | London | first, of all\nGrace | New York | said \"bug\"\nAlan | London | \n\n\
        name\nAda\n[csv_query] 1 of 2 rows; narrow the query or raise limit\n\n\
        error [invalid_argument]: there is no column `age`; the columns are name, city, about\n\n";
    assert!(answers.starts_with(wanted), "{answers}");
    assert!(answers[wanted.len()..].starts_with("error [not_found]:"), "{answers}");
    let exported = workspace.tools().export(ToolSet::Default, ToolFormat::Anthropic);
    assert_eq!(exported.as_array().and_then(|tools| tools.last()).map(|tool| &tool["name"]), Some(&json!("csv_query")));
}

#[tokio::test]
async fn mcp_clients_list_and_call_the_tool() {
    let (workspace, scope) = workspace().await;
    let (client, server) = tokio::io::duplex(64 << 10);
    let (input, output) = tokio::io::split(server);
    let server = McpServer::new(workspace, McpOptions::new(scope));
    let serving = tokio::spawn(async move { server.serve_over(input, output, std::future::pending()).await });
    let (reader, mut writer) = tokio::io::split(client);
    let mut lines = BufReader::new(reader).lines();
    let mut id = 0;
    let mut ask = async |method: &str, params: Value| {
        id += 1;
        let request = json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params});
        writer.write_all(format!("{request}\n").as_bytes()).await.expect("sent");
        loop {
            let line = lines.next_line().await.expect("read").expect("an answer");
            let answer: Value = serde_json::from_str(&line).expect("JSON");
            if answer["id"] == id {
                return answer["result"].clone();
            }
        }
    };
    let client = json!({"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "test", "version": "0"}});
    ask("initialize", client).await;
    let listed = ask("tools/list", json!({})).await;
    let tool = listed["tools"].as_array().and_then(|tools| tools.iter().find(|tool| tool["name"] == "csv_query")).expect("listed").clone();
    assert_eq!((&tool["annotations"]["readOnlyHint"], &tool["annotations"]["openWorldHint"]), (&json!(true), &json!(false)));
    assert_eq!(tool["inputSchema"]["required"], json!(["path"]));
    let arguments = json!({"path": "/people.csv", "column": "name", "equals": "Grace", "columns": ["city"]});
    let called = ask("tools/call", json!({"name": "csv_query", "arguments": arguments})).await;
    assert_eq!(called["content"][0]["text"], "city\nNew York");
    let refused = ask("tools/call", json!({"name": "csv_query", "arguments": {"path": 7}})).await;
    assert_eq!(refused["isError"], true);
    assert!(refused["content"][0]["text"].as_str().is_some_and(|text| text.contains("`path`")), "{refused}");
    serving.abort();
}

#[test]
fn command_line_offers_the_tool_and_the_layer() {
    let directory = tempfile::tempdir().expect("a directory");
    let run = |arguments: &[&str]| {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_custom_tool"));
        command.args(arguments).current_dir(directory.path()).env("TREEHOLD_DATA", directory.path().join("data"));
        let output = command.output().expect("it runs");
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        (output.status.code(), String::from_utf8(output.stdout).expect("text"), told)
    };
    let tools: Vec<Value> = serde_json::from_str(&run(&["tools"]).1).expect("JSON");
    assert!(tools.len() > 1 && tools.iter().any(|tool| tool["name"] == "csv_query"), "{tools:?}");
    let own = "[stores.main]\nurl = \"sqlite:{data}/own.db\"\n[routes.\"/\"]\ntype = \"state\"\n[[layers.custom]]\nname = \"turns\"\nat_once = 4\n";
    std::fs::write(directory.path().join("own.toml"), own).expect("written");
    std::fs::write(
        directory.path().join("calls.jsonl"),
        "{\"tool\": \"csv_query\", \"args\": {\"path\": \"/people.csv\", \"columns\": [\"name\"]}}\n",
    )
    .expect("written");
    assert_eq!(run(&["--config", "own.toml", "write", "/people.csv", PEOPLE]).0, Some(0));
    let (code, answer, told) = run(&["--config", "own.toml", "run", "calls.jsonl"]);
    assert!(code == Some(0) && answer.contains("Grace"), "{answer}{told}");
    let (code, checks, told) = run(&["--config", "own.toml", "doctor"]);
    assert_eq!(code, Some(0), "{checks}{told}");
    // The layer checks its settings, and the message names the layers that there are.
    for (wrong, fault) in [("at_once = 4", "at_most = 4"), ("\"turns\"", "\"turn\"")].map(|(from, to)| (own.replace(from, to), to)) {
        std::fs::write(directory.path().join("own.toml"), wrong).expect("written");
        let (code, _, told) = run(&["--config", "own.toml", "doctor"]);
        assert!(code != Some(0), "{fault}: {told}");
    }
}
