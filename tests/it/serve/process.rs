//! The real program as a server: started, asked, stopped and killed as operators do.

use crate::cli::binary;
use std::ffi::OsStr;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;
use ureq::Agent;
use ureq::http::Request;

/// One process of `treehold serve`, on a free port. It is killed when this is dropped.
pub(crate) struct Process {
    pub(crate) child: Child,
    pub(crate) address: SocketAddr,
    log: PathBuf,
}

/// Returns the command of the program with the configuration and the data of a directory, and nothing of the caller's.
pub(crate) fn command(home: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(binary());
    command.args(["--config", "treehold.toml"]).args(args).current_dir(home);
    command.env("TREEHOLD_DATA", home).env("HOME", home).stdin(Stdio::null());
    for name in ["CONFIG", "THREAD", "USER", "TENANT", "AGENT"] {
        command.env_remove(format!("TREEHOLD_{name}"));
    }
    command
}

/// Runs a command to its end; returns its exit code and what it printed on both streams.
pub(crate) fn ended(home: &Path, args: &[&str]) -> (Option<i32>, String, String) {
    let output = command(home, args).output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (output.status.code(), text(output.stdout), text(output.stderr))
}

impl Process {
    /// Starts a server on the configuration `treehold.toml` in a directory.
    pub(crate) fn start(home: &Path) -> Self {
        Self::start_with(home, &[])
    }

    /// Starts a server with more arguments.
    pub(crate) fn start_with(home: &Path, args: &[&str]) -> Self {
        Self::of(command(home, &[&["serve", "--listen", "127.0.0.1:0"], args].concat()), home)
    }

    /// Starts a server by a command, which prints where it listens.
    pub(crate) fn of(mut command: Command, home: &Path) -> Self {
        let log = home.join("log");
        let file = std::fs::File::options().create(true).append(true).open(&log).unwrap();
        let mut child = command.stdout(Stdio::piped()).stderr(file).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let place = line.trim().strip_prefix("http://").and_then(|rest| rest.strip_suffix("/mcp"));
        let address = place.unwrap_or_else(|| panic!("{line:?}: {}", std::fs::read_to_string(&log).unwrap()));
        Self { address: address.parse().unwrap(), child, log }
    }

    /// Returns where its API is.
    pub(crate) fn base(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Sends a signal, such as `-TERM`.
    pub(crate) fn signal(&self, name: &str) {
        assert!(Command::new("kill").args([OsStr::new(name), self.child.id().to_string().as_ref()]).status().unwrap().success());
    }

    /// Ends it in order.
    pub(crate) fn stop(mut self) -> ExitStatus {
        self.signal("-TERM");
        self.child.wait().unwrap()
    }

    /// Returns what it has written to standard error.
    pub(crate) fn said(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A client that takes a new connection for each request.
pub(crate) fn agent() -> Agent {
    let config = Agent::config_builder().http_status_as_error(false).max_idle_connections(0).timeout_global(Some(Duration::from_secs(60)));
    config.build().new_agent()
}

/// Sends a request; returns the status and the body of the answer.
pub(crate) fn ask(agent: &Agent, method: &str, url: &str, headers: &[(&str, &str)], body: &[u8]) -> Result<(u16, Vec<u8>), ureq::Error> {
    let mut request = Request::builder().method(method).uri(url);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let mut response = match method {
        "GET" => agent.run(request.body(()).unwrap()),
        _ => agent.run(request.body(body).unwrap()),
    }?;
    let content = response.body_mut().with_config().limit(1 << 30).read_to_vec()?;
    Ok((response.status().as_u16(), content))
}
