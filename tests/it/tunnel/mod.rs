//! A server that can be called, and a terminal that listens nowhere and dials it: two real processes.

mod encrypted;

use crate::serve::process::{Process, agent, ask, command, ended};
use crate::serve::within;
use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Stdio};
use tempfile::TempDir;
use ureq::Agent;

const CLOUD: &str = r#"
[scope]
tenant = "acme"
user = "ada"
[stores.default]
url = "sqlite:{data}/treehold.db"
[peers.laptop]
reverse = true
[routes."/laptop"]
type = "remote"
url = "agent://laptop"
"#;

const TERMINAL: &str = r#"
[scope]
tenant = "home"
user = "ada"
[stores.default]
url = "sqlite:{data}/treehold.db"
[routes."/files"]
type = "store"
namespace = "{user}/files"
"#;

/// A server that accepts machines, and the token of a caller.
struct Cloud {
    home: TempDir,
    process: Process,
    token: String,
    agent: Agent,
}

fn home(config: &str) -> TempDir {
    let home = tempfile::tempdir().unwrap();
    std::fs::write(home.path().join("treehold.toml"), config).unwrap();
    home
}

/// Makes a token, and returns its text.
fn token(home: &Path, args: &[&str]) -> String {
    let (code, out, said) = ended(home, &[&["token", "create"], args].concat());
    assert_eq!(code, Some(0), "{said}");
    out.trim().to_owned()
}

fn serve(home: &Path, listen: &str) -> Process {
    Process::of(command(home, &["serve", "--tokens", "--listen", listen]), home)
}

impl Cloud {
    fn start() -> Self {
        let home = home(CLOUD);
        let token = token(home.path(), &["--access", "write"]);
        Self { process: serve(home.path(), "127.0.0.1:0"), home, token, agent: agent() }
    }

    /// Kills the server and starts it again at the same address.
    fn restart(&mut self) {
        let address = self.process.address.to_string();
        self.process.child.kill().unwrap();
        self.process.child.wait().unwrap();
        self.process = serve(self.home.path(), &address);
    }

    fn send(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> (u16, String) {
        let bearer = format!("Bearer {}", self.token);
        let headers = [&[("authorization", bearer.as_str())], headers].concat();
        let (status, body) = ask(&self.agent, method, &format!("{}{path}", self.process.base()), &headers, body).unwrap();
        (status, String::from_utf8(body).unwrap())
    }

    fn get(&self, path: &str) -> (u16, String) {
        self.send("GET", path, &[], b"")
    }

    /// Returns whether the terminal is connected.
    fn is_connected(&self) -> bool {
        self.get("/v1/stat?path=%2Flaptop%2Ffiles").0 == 200
    }
}

/// A terminal that listens nowhere. Dropping it kills the process.
struct Terminal {
    child: Child,
}

impl Terminal {
    /// Starts a terminal in a directory that has the token to connect.
    fn start(home: &Path, cloud: &Cloud) -> Self {
        let base = cloud.process.base();
        let args = ["serve", "--listen", "none", "--dial", &base, "--dial-token-file", "cloud-token", "--dial-access", "write"];
        let log = std::fs::File::options().create(true).append(true).open(home.join("log")).unwrap();
        let mut child = command(home, &args).stdout(Stdio::piped()).stderr(log).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "listening nowhere\n", "{}", std::fs::read_to_string(home.join("log")).unwrap());
        Self { child }
    }
}

impl Terminal {
    fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Makes the directory of a terminal, with a token to connect as `laptop`.
fn terminal_home(cloud: &Cloud) -> TempDir {
    let home = home(TERMINAL);
    std::fs::write(home.path().join("cloud-token"), token(cloud.home.path(), &["--connect-as", "laptop"])).unwrap();
    home
}

#[test]
fn cloud_works_in_the_tree_of_a_terminal_that_listens_nowhere() {
    let cloud = Cloud::start();
    let (status, body) = cloud.get("/v1/fs/laptop/files/a.md");
    assert_eq!(status, 503, "{body}");
    assert!(body.contains("`laptop` is not connected to this server; run `treehold serve --dial URL` on it"), "{body}");
    let home = terminal_home(&cloud);
    let terminal = Terminal::start(home.path(), &cloud);
    within(|| cloud.is_connected());
    assert_eq!(cloud.send("PUT", "/v1/fs/laptop/files/a.md", &[], b"one\nneedle\n").0, 201);
    assert_eq!(cloud.get("/v1/fs/laptop/files/a.md"), (200, "one\nneedle\n".to_owned()));
    let found: Value = serde_json::from_str(&cloud.get("/v1/grep?pattern=needle&path=%2Flaptop").1).unwrap();
    assert_eq!(found["files"][0]["path"], "/laptop/files/a.md", "{found}");
    // The terminal's own command line sees the same file.
    let (code, out, said) = ended(home.path(), &["cat", "/files/a.md"]);
    assert_eq!((code, out.as_str()), (Some(0), "one\nneedle\n"), "{said}");
    let metrics = cloud.get("/metrics").1;
    assert!(metrics.contains("vfs_tunnels 1\n"), "{metrics}");
    drop(terminal);
    within(|| !cloud.is_connected());
}

/// The terminal is killed between appends, and so is the cloud. Each acknowledged append is in the file once, in order.
#[test]
fn appends_are_made_once_while_either_side_is_killed_and_restarted() {
    let mut cloud = Cloud::start();
    let home = terminal_home(&cloud);
    let mut terminal = Terminal::start(home.path(), &cloud);
    within(|| cloud.is_connected());
    assert_eq!(cloud.send("PUT", "/v1/fs/laptop/files/log", &[], b"").0, 201);
    let mut expected = String::new();
    for number in 0..12 {
        match number {
            3 | 9 => {
                terminal.kill();
                terminal = Terminal::start(home.path(), &cloud);
            }
            6 => {
                cloud.restart();
                within(|| cloud.is_connected());
            }
            _ => {}
        }
        let line = format!("{number}\n");
        let (status, body) = cloud.send("POST", "/v1/fs/laptop/files/log", &[], line.as_bytes());
        assert_eq!(status, 200, "{number}: {body}");
        expected.push_str(&line);
    }
    assert_eq!(cloud.get("/v1/fs/laptop/files/log").1, expected);
}

#[test]
fn revoked_token_ends_the_connection_of_a_terminal() {
    let cloud = Cloud::start();
    let home = terminal_home(&cloud);
    let _terminal = Terminal::start(home.path(), &cloud);
    within(|| cloud.is_connected());
    let (_, listed, _) = ended(cloud.home.path(), &["token", "ls"]);
    let line = listed.lines().find(|line| line.contains("connects laptop")).unwrap_or_else(|| panic!("{listed}"));
    let id = line.split_whitespace().next().unwrap();
    assert_eq!(ended(cloud.home.path(), &["token", "revoke", id]).0, Some(0));
    within(|| !cloud.is_connected());
    within(|| std::fs::read_to_string(home.path().join("log")).unwrap().contains("rejects its token"));
    assert!(!std::fs::read_to_string(home.path().join("log")).unwrap().contains("thd_"), "no secret is logged");
}

#[test]
fn terminal_without_a_rule_for_requests_does_not_start() {
    let home = home(TERMINAL);
    let (code, _, said) = ended(home.path(), &["serve", "--listen", "none", "--dial", "https://files.example.org"]);
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains("would need no token"), "{said}");
    let (code, _, said) = ended(home.path(), &["serve", "--listen", "none"]);
    assert_eq!(code, Some(2), "{said}");
    let (code, _, said) = ended(home.path(), &["serve", "--dial", "http://files.example.org", "--dial-access", "read"]);
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains("unencrypted"), "{said}");
}
