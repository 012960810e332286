//! The agent against a scripted endpoint: an HTTP server on loopback that answers like a model and records its
//! requests.

use super::*;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::sync::mpsc::{Receiver, channel};
use treehold::checkpoint::ListOptions;

/// A recorded request: its head in lowercase, and its body.
struct Asked {
    head: String,
    body: Value,
}

/// Serves one answer with a status per request, in order.
fn serve(answers: Vec<(u16, Value)>) -> (String, Receiver<Asked>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let url = format!("http://{}", listener.local_addr().expect("an address"));
    let (sender, asked) = channel();
    std::thread::spawn(move || {
        for (status, answer) in answers {
            let (stream, _) = listener.accept().expect("a client");
            let mut reader = BufReader::new(&stream);
            let mut head = String::new();
            while !head.ends_with("\r\n\r\n") {
                assert_ne!(reader.read_line(&mut head).expect("a request"), 0, "the request has a head");
            }
            let head = head.to_lowercase();
            let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")).expect("a length").trim();
            let mut body = vec![0; length.parse().expect("a number")];
            reader.read_exact(&mut body).expect("the body");
            sender.send(Asked { head, body: serde_json::from_slice(&body).expect("JSON") }).expect("the test listens");
            let answer = answer.to_string();
            let head = format!(
                "HTTP/1.1 {status} Scripted\r\ncontent-type: application/json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
                answer.len()
            );
            (&stream).write_all((head + &answer).as_bytes()).expect("the client reads the answer");
        }
    });
    (url, asked)
}

fn endpoint(api: Api, base_url: String) -> Endpoint {
    Endpoint { api, base_url, key: "key".to_owned(), model: "scripted".to_owned() }
}

/// A project, and a data directory beside it: a tree does not reach the files that govern it.
fn base(directory: &Path) -> ConfigBase {
    let project = directory.join("project");
    std::fs::create_dir_all(&project).expect("a directory");
    ConfigBase::new(project, directory.join("data"))
}

/// Opens a session as another process would.
async fn session(data: &Path, thread: &str) -> Session {
    let mut config = Config::builtin(&base(data));
    config.scope.thread = thread.to_owned();
    config.workspace().expect("a sound configuration").session(config.scope()).await.expect("a session")
}

fn says(text: &str) -> (u16, Value) {
    (200, json!({"role": "assistant", "content": [{"type": "text", "text": text}], "stop_reason": "end_turn"}))
}

fn uses(calls: &[(&str, Value)]) -> (u16, Value) {
    let blocks: Vec<Value> = calls
        .iter()
        .enumerate()
        .map(|(index, (name, input))| json!({"type": "tool_use", "id": format!("toolu_{index}"), "name": name, "input": input}))
        .collect();
    (200, json!({"role": "assistant", "content": blocks, "stop_reason": "tool_use"}))
}

#[tokio::test]
async fn memory_of_one_thread_is_in_the_prompt_of_the_next() {
    let data = tempfile::tempdir().expect("a directory");
    let (url, asked) = serve(vec![
        uses(&[
            ("memory", json!({"command": "create", "path": "/memories/AGENTS.md", "file_text": "The house is green.\n"})),
            ("ls", json!({"path": "/"})),
        ]),
        uses(&[("read_file", json!({"path": "/nowhere"}))]),
        says("Noted."),
        says("Green."),
        says("As I said: green."),
    ]);
    let endpoint = endpoint(Api::Anthropic, url);
    let monday = session(data.path(), "monday").await;
    assert_eq!(run(&monday, &endpoint, "Remember: the house is green.").await.expect("an answer"), "Noted.");
    monday.close().await.expect("saved");

    let [first, second, third] = [(); 3].map(|()| asked.recv().expect("a request"));
    assert!(first.head.starts_with("post /v1/messages http/1.1\r\n") && first.head.contains("x-api-key: key\r\n"), "{}", first.head);
    let prompt = first.body["system"].as_str().expect("a text");
    assert!(prompt.contains("There is no memory yet."), "{prompt}");
    let tools: Vec<&Value> = first.body["tools"].as_array().expect("tools").iter().map(|tool| &tool["name"]).collect();
    assert_eq!((tools.len(), tools[10]), (11, &json!("memory")));
    let results = &second.body["messages"][2]["content"];
    assert_eq!(results[0]["content"], "File created successfully at: /memories/AGENTS.md");
    assert_eq!((&results[1]["tool_use_id"], &results[1]["is_error"]), (&json!("toolu_1"), &json!(false)));
    // What was learned in this turn is already in the next prompt.
    assert!(second.body["system"].as_str().expect("a text").contains("The house is green."));
    assert_eq!(third.body["messages"][4]["content"][0]["is_error"], true);

    let friday = session(data.path(), "friday").await;
    assert_eq!(run(&friday, &endpoint, "Which colour has the house?").await.expect("an answer"), "Green.");
    friday.close().await.expect("saved");
    let fourth = asked.recv().expect("a request");
    assert_eq!(fourth.body["messages"].as_array().expect("messages").len(), 1, "another thread has messages of its own");
    assert!(
        fourth.body["system"].as_str().expect("a text").contains("<memory path=\"/memories/AGENTS.md\">\nThe house is green.\n</memory>")
    );

    // The first thread continues where it stopped, in another process.
    let monday = session(data.path(), "monday").await;
    assert_eq!(run(&monday, &endpoint, "Again?").await.expect("an answer"), "As I said: green.");
    let fifth = asked.recv().expect("a request");
    let roles: Vec<&str> =
        fifth.body["messages"].as_array().expect("messages").iter().filter_map(|message| message["role"].as_str()).collect();
    assert_eq!(roles, ["user", "assistant", "user", "assistant", "user", "assistant", "user"]);
    let config = Config::builtin(&base(data.path()));
    let workspace = config.workspace().expect("a sound configuration");
    let checkpoints = workspace.checkpointer().expect("threads are kept").list(monday.scope(), &ListOptions::new()).await.expect("a list");
    assert!(checkpoints.checkpoints.len() >= 3, "{checkpoints:?}");
}

#[tokio::test]
async fn openai_endpoint_is_queried_in_its_format() {
    let data = tempfile::tempdir().expect("a directory");
    let call = json!({"id": "call_1", "type": "function", "function": {"name": "write_file", "arguments": "{\"path\": \"/plan.md\", \"content\": \"1. ask\\n\"}"}});
    let wrong = json!({"id": "call_2", "type": "function", "function": {"name": "write", "arguments": "{"}});
    let (url, asked) = serve(vec![
        (200, json!({"choices": [{"message": {"role": "assistant", "content": null, "tool_calls": [call, wrong]}}]})),
        (200, json!({"choices": [{"message": {"role": "assistant", "content": "Planned."}}]})),
    ]);
    let session = session(data.path(), "t").await;
    assert_eq!(run(&session, &endpoint(Api::OpenAi, format!("{url}/v1")), "Plan.").await.expect("an answer"), "Planned.");
    assert_eq!(session.backend().read_text("/plan.md").await.expect("the file"), "1. ask\n");
    let [first, second] = [(); 2].map(|()| asked.recv().expect("a request"));
    assert!(first.head.starts_with("post /v1/chat/completions ") && first.head.contains("authorization: bearer key\r\n"), "{}", first.head);
    assert_eq!(first.body["tools"][10]["function"]["name"], "memory");
    let messages = second.body["messages"].as_array().expect("messages");
    assert_eq!(
        (&messages[0]["role"], &messages[3]["tool_call_id"], &messages[4]["tool_call_id"]),
        (&json!("system"), &json!("call_1"), &json!("call_2"))
    );
    assert!(messages[4]["content"].as_str().expect("a text").starts_with("error [invalid_argument]: "), "{}", messages[4]);
}

#[tokio::test]
async fn endpoint_error_is_reported_and_finished_work_is_kept() {
    let data = tempfile::tempdir().expect("a directory");
    let (url, _asked) = serve(vec![
        uses(&[("write_file", json!({"path": "/plan.md", "content": "1. ask\n"}))]),
        (529, json!({"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}})),
    ]);
    let session = session(data.path(), "t").await;
    let error = run(&session, &endpoint(Api::Anthropic, url), "Plan.").await.expect_err("refused");
    assert_eq!((error.kind(), error.message()), (ErrorKind::Unavailable, "the endpoint refused (529): Overloaded"));
    assert_eq!(session.backend().read_text("/plan.md").await.expect("the file"), "1. ask\n");
    assert_eq!(conversation(&session).await.expect("messages").len(), 3);
}

#[test]
fn environment_selects_the_endpoint() {
    let of = |variables: &[(&str, &str)]| {
        Endpoint::from_environment(|name| variables.iter().find(|(other, _)| *other == name).map(|(_, value)| (*value).to_owned()))
    };
    let anthropic = of(&[("ANTHROPIC_API_KEY", "a"), ("AGENT_MODEL", "m"), ("ANTHROPIC_BASE_URL", "http://localhost:1/")]).expect("named");
    assert_eq!((anthropic.api, &*anthropic.base_url, &*anthropic.key), (Api::Anthropic, "http://localhost:1", "a"));
    let openai = of(&[("OPENAI_API_KEY", "o"), ("AGENT_MODEL", "m")]).expect("named");
    assert_eq!((openai.api, &*openai.base_url), (Api::OpenAi, "https://api.openai.com/v1"));
    assert!(of(&[("OPENAI_API_KEY", "o")]).expect_err("no model").message().contains("AGENT_MODEL"));
    assert!(of(&[]).expect_err("no key").message().contains("ANTHROPIC_API_KEY"));
}
