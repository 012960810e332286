//! The real program as a server: started, used, stopped and killed as operators do.

use crate::cli::binary;
use std::ffi::OsStr;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;
use ureq::Agent;
use ureq::http::Request;

/// A `treehold serve` process on a free port. Dropping it kills the process.
pub(crate) struct Process {
    pub(crate) child: Child,
    pub(crate) address: SocketAddr,
    log: PathBuf,
}

/// Returns a command that uses the configuration and data of a directory, and nothing from the environment.
pub(crate) fn command(home: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(binary());
    command.args(["--config", "treehold.toml"]).args(args).current_dir(home);
    command.env("TREEHOLD_DATA", home).env("HOME", home).stdin(Stdio::null());
    for name in ["CONFIG", "THREAD", "USER", "TENANT", "AGENT", "SESSION"] {
        command.env_remove(format!("TREEHOLD_{name}"));
    }
    command
}

/// Runs a command to its end. Returns its exit code, standard output and standard error.
pub(crate) fn ended(home: &Path, args: &[&str]) -> (Option<i32>, String, String) {
    let output = command(home, args).output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (output.status.code(), text(output.stdout), text(output.stderr))
}

impl Process {
    /// Starts a server with the configuration `treehold.toml` in a directory.
    pub(crate) fn start(home: &Path) -> Self {
        Self::start_with(home, &[])
    }

    /// Starts a server with additional arguments.
    pub(crate) fn start_with(home: &Path, args: &[&str]) -> Self {
        Self::of(command(home, &[&["serve", "--listen", "127.0.0.1:0"], args].concat()), home)
    }

    /// Starts a server with a command that prints its address.
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

    /// Returns the base URL of its API.
    pub(crate) fn base(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Sends a signal, such as `-TERM`.
    pub(crate) fn signal(&self, name: &str) {
        assert!(Command::new("kill").args([OsStr::new(name), self.child.id().to_string().as_ref()]).status().unwrap().success());
    }

    /// Stops the server gracefully.
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

/// A client that opens a new connection for each request.
pub(crate) fn agent() -> Agent {
    let config = Agent::config_builder().http_status_as_error(false).max_idle_connections(0).timeout_global(Some(Duration::from_secs(60)));
    config.build().new_agent()
}

/// Sends a request and returns the status and body of the response.
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
