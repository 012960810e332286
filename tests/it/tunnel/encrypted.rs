//! Tunnels, mounts and traces over TLS: three real processes, and certificates that are trusted or not.

use super::{CLOUD, TERMINAL, home, token};
use crate::serve::process::command;
use crate::serve::within;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Stdio};
use tempfile::TempDir;

/// A process that is killed when it is dropped.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Writes a certificate for a name, and its key.
fn certify(directory: &Path, name: &str) {
    let made = rcgen::generate_simple_self_signed([name.to_owned()]).unwrap();
    std::fs::write(directory.join("cert.pem"), made.cert.pem()).unwrap();
    std::fs::write(directory.join("key.pem"), made.signing_key.serialize_pem()).unwrap();
}

/// Starts a command that trusts a certificate, and returns its first line.
fn started(home: &Path, trusted: &Path, args: &[&str]) -> (Killed, String) {
    let log = std::fs::File::options().create(true).append(true).open(home.join("log")).unwrap();
    let mut child = command(home, args).env("SSL_CERT_FILE", trusted).stdout(Stdio::piped()).stderr(log).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    (Killed(child), line)
}

fn logged(home: &Path) -> String {
    std::fs::read_to_string(home.join("log")).unwrap()
}

/// A server with a certificate for `localhost`.
struct Cloud {
    home: TempDir,
    url: String,
    _process: Killed,
}

impl Cloud {
    fn start() -> Self {
        let home = home(CLOUD);
        certify(home.path(), "localhost");
        let args = ["serve", "--tokens", "--listen", "127.0.0.1:0", "--tls-cert", "cert.pem", "--tls-key", "key.pem"];
        let (process, line) = started(home.path(), &home.path().join("cert.pem"), &args);
        let port = line.trim().strip_suffix("/mcp").and_then(|url| url.rsplit(':').next()).unwrap_or_else(|| panic!("{line}"));
        assert!(line.starts_with("https://127.0.0.1:"), "{line}");
        Self { url: format!("https://localhost:{port}"), home, _process: process }
    }

    fn certificate(&self) -> std::path::PathBuf {
        self.home.path().join("cert.pem")
    }

    /// Starts a terminal that dials the server at a URL, and trusts a certificate.
    fn dialled_by(&self, home: &Path, url: &str, trusted: &Path) -> Killed {
        std::fs::write(home.join("cloud-token"), token(self.home.path(), &["--connect-as", "laptop"])).unwrap();
        let args = ["serve", "--listen", "none", "--dial", url, "--dial-token-file", "cloud-token", "--dial-access", "write"];
        let (process, line) = started(home, trusted, &args);
        assert_eq!(line, "listening nowhere\n", "{}", logged(home));
        process
    }

    /// Runs a command of a caller that mounts the terminal through this server.
    fn called(&self, caller: &Path, args: &[&str]) -> (Option<i32>, String, String) {
        let output = command(caller, args).env("SSL_CERT_FILE", self.certificate()).output().unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        (output.status.code(), text(output.stdout), text(output.stderr))
    }

    /// Makes the directory of a caller.
    fn caller(&self) -> TempDir {
        let caller = home(&format!(
            "[stores.default]\nurl = \"sqlite:{{data}}/treehold.db\"\n[peers.cloud]\nurl = \"{}\"\ntoken = \"file:token\"\n\
             [routes.\"/cloud\"]\ntype = \"remote\"\nurl = \"agent://cloud\"\n",
            self.url
        ));
        std::fs::write(caller.path().join("token"), token(self.home.path(), &["--access", "write"])).unwrap();
        caller
    }
}

#[test]
fn terminal_is_reached_through_an_encrypted_tunnel() {
    let cloud = Cloud::start();
    let (terminal, caller) = (home(TERMINAL), cloud.caller());
    let process = cloud.dialled_by(terminal.path(), &cloud.url, &cloud.certificate());
    within(|| cloud.called(caller.path(), &["ls", "/cloud/laptop"]).0 == Some(0));
    let done = |args: &[&str]| {
        let (code, out, said) = cloud.called(caller.path(), args);
        assert_eq!(code, Some(0), "{args:?}: {said}");
        out
    };
    done(&["write", "/cloud/laptop/files/a.md", "one\nneedle\n"]);
    assert_eq!(done(&["cat", "/cloud/laptop/files/a.md"]), "one\nneedle\n");
    assert_eq!(crate::serve::process::ended(terminal.path(), &["cat", "/files/a.md"]).1, "one\nneedle\n");
    // A trace of the server, and one of the terminal behind it.
    assert_eq!(done(&["trace", "create", "in the cloud", "--id", "@cloud/t"]), "@cloud/t\n");
    done(&["trace", "continue", "@cloud/t", "hello", "--no-run"]);
    assert!(done(&["trace", "show", "@cloud/t"]).contains("in the cloud"));
    let of_cloud = crate::serve::process::ended(cloud.home.path(), &["trace", "ls"]).1;
    assert!(of_cloud.contains("in the cloud"), "{of_cloud}");
    // A terminal that ends and dials again is reached again.
    drop(process);
    let _process = cloud.dialled_by(terminal.path(), &cloud.url, &cloud.certificate());
    within(|| cloud.called(caller.path(), &["cat", "/cloud/laptop/files/a.md"]).1 == "one\nneedle\n");
    assert!(!logged(terminal.path()).contains("thd_") && !logged(cloud.home.path()).contains("thd_"), "no secret is logged");
}

/// A certificate of somebody else, or for another name: the terminal sends nothing, not even its token, and says why.
#[test]
fn certificate_that_cannot_be_trusted_gets_no_tunnel() {
    let cloud = Cloud::start();
    let other = tempfile::tempdir().unwrap();
    certify(other.path(), "localhost");
    let by_address = cloud.url.replace("localhost", "127.0.0.1");
    for (url, trusted) in [(&cloud.url, other.path().join("cert.pem")), (&by_address, cloud.certificate())] {
        let terminal = home(TERMINAL);
        let _process = cloud.dialled_by(terminal.path(), url, &trusted);
        within(|| logged(terminal.path()).contains("cannot connect"));
        assert!(logged(terminal.path()).to_lowercase().contains("certificate"), "{}", logged(terminal.path()));
        let caller = cloud.caller();
        let (code, _, said) = cloud.called(caller.path(), &["ls", "/cloud/laptop"]);
        assert!(code != Some(0) && said.contains("`laptop` is not connected"), "{said}");
    }
}
