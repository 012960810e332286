//! How a call selects its thread, and that the thread is saved.

use super::{Client, ERAS, Era};
use crate::cli::Home;
use serde_json::json;

#[test]
fn call_uses_the_thread_it_names_and_shares_memories() {
    let home = Home::new();
    for era in ERAS {
        let mut client = Client::start(&home, era, &["mcp"]);
        for thread in ["one", "two"] {
            client.text("write_file", json!({"path": "/own.md", "content": thread, "thread_id": thread}));
            client.text("write_file", json!({"path": format!("/memories/{thread}.md"), "content": thread, "thread_id": thread}));
        }
        for thread in ["one", "two"] {
            assert_eq!(client.text("read_file", json!({"path": "/own.md", "thread_id": thread})), thread);
            assert_eq!(client.text("glob", json!({"pattern": "/memories/*.md", "thread_id": thread})).lines().count(), 2);
        }
        assert!(client.failure("read_file", json!({"path": "/own.md"})).contains("not_found"), "the connection's own thread has none");
        assert!(client.failure("ls", json!({"thread_id": "a\nb"})).starts_with("error [invalid_argument]: "));
    }
}

#[test]
fn server_and_command_line_share_a_thread() {
    let home = Home::new();
    let mut client = Client::start(&home, Era::Modern, &["--thread", "shared", "mcp"]);
    client.text("write_file", json!({"path": "/a.md", "content": "of the server"}));
    assert_eq!(home.ok(&["--thread", "shared", "cat", "/a.md"]), "of the server");
    home.ok(&["--thread", "shared", "write", "/a.md", "of the command"]);
    assert_eq!(client.text("read_file", json!({"path": "/a.md"})), "of the command");
    client.text("edit_file", json!({"path": "/a.md", "old_string": "of the", "new_string": "of a"}));
    assert_eq!(home.ok(&["--thread", "shared", "cat", "/a.md"]), "of a command");
    client.close();
    assert_eq!(home.ok(&["--thread", "shared", "cat", "/a.md"]), "of a command");
}

#[test]
fn concurrent_servers_on_one_thread_lose_nothing() {
    const FILES: usize = 25;
    let home = Home::new();
    std::thread::scope(|scope| {
        for server in ["a", "b"] {
            let mut client = Client::start(&home, Era::Modern, &["mcp"]);
            scope.spawn(move || {
                for number in 0..FILES {
                    client.text("write_file", json!({"path": format!("/{server}-{number}.md"), "content": "x"}));
                }
                client.close();
            });
        }
    });
    assert_eq!(home.ok(&["glob", "/*.md"]).lines().count(), 2 * FILES);
}

#[test]
fn concurrent_calls_over_one_connection_lose_nothing() {
    const CALLS: usize = 50;
    let home = Home::new();
    let mut client = Client::start(&home, Era::Legacy, &["mcp"]);
    client.text("write_file", json!({"path": "/log.md", "content": ""}));
    let append = |number: usize| json!({"path": "/log.md", "content": format!("{number}\n"), "mode": "append"});
    let asked: Vec<u64> =
        (0..CALLS).map(|number| client.ask("tools/call", json!({"name": "write_file", "arguments": append(number)}))).collect();
    let mut open = asked.len();
    while open > 0 {
        let answer = client.next();
        assert_ne!(answer["result"]["isError"], true, "{answer}");
        open -= 1;
    }
    let log = client.text("read_file", json!({"path": "/log.md"}));
    let mut lines: Vec<usize> = log.lines().map(|line| line.parse().unwrap()).collect();
    lines.sort_unstable();
    assert_eq!(lines, (0..CALLS).collect::<Vec<_>>());
}

/// Regression: two clients of two projects wrote to the same `/`.
#[cfg(unix)]
#[test]
fn each_project_has_its_own_thread_unless_one_is_named() {
    use std::process::Command;
    let home = Home::new();
    let started = |directory: &str, args: &[&str]| {
        let directory = home.work().join(directory);
        std::fs::create_dir_all(&directory).unwrap();
        let mut command = Command::new(crate::cli::binary());
        command.args(args).arg("mcp").current_dir(&directory).env_clear().env("TREEHOLD_DATA", home.data()).env("HOME", home.data());
        command.stdin(std::process::Stdio::null());
        let output = command.output().unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stderr).unwrap()
    };
    let thread = |told: &str| told.split('`').nth(1).map(str::to_owned);
    let (one, other, again) = (started("one", &[]), started("two/one", &[]), started("one", &[]));
    let (one, other, again) = (thread(&one).unwrap(), thread(&other).unwrap(), thread(&again).unwrap());
    assert!(one.starts_with("one-") && other.starts_with("one-") && one != other, "{one} {other}");
    assert_eq!(one, again);
    std::os::unix::fs::symlink(home.work().join("one"), home.work().join("link")).unwrap();
    assert_eq!(thread(&started("link", &[])).unwrap(), one, "a link to a directory is the directory");
    assert_eq!(started("one", &["--thread", "own"]), "", "no notice is printed for a named thread");
    let config = home.put("named.toml", "[scope]\nthread = \"mine\"\n");
    assert_eq!(started("one", &["--config", config.to_str().unwrap()]), "");
}
