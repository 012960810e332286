//! The command as users run it: a real process with its own data directory.

#[cfg(unix)]
mod cage;
mod complete;
mod configuration;
mod damage;
mod doctor;
#[cfg(unix)]
mod editor;
#[cfg(feature = "remote")]
mod embeddings;
mod exit;
mod files;
#[cfg(unix)]
mod git_patch;
mod habits;
mod help;
mod history;
#[cfg(feature = "remote")]
mod hostile;
#[cfg(unix)]
mod import;
mod indexes;
mod killed;
mod memory;
mod merge;
#[cfg(unix)]
mod mirror;
mod overlay;
mod past;
#[cfg(unix)]
mod people;
mod processes;
#[cfg(target_os = "linux")]
mod pty;
mod recall;
mod run;
mod search;
mod sessions;
mod shell;
#[cfg(unix)]
mod show;
#[cfg(unix)]
mod signals;
mod state;
#[cfg(unix)]
mod status;
mod stores;
#[cfg(unix)]
mod terminal;
mod threads;
mod timeline;
mod trace;
mod transfer;
mod waiting;

use assert_cmd::Command;
use assert_cmd::assert::Assert;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// A home directory with a data directory and a working directory.
pub(crate) struct Home {
    root: TempDir,
}

impl Home {
    pub(crate) fn new() -> Self {
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir(root.path().join("work")).unwrap();
        Self { root }
    }

    /// The working directory of commands, which is `/workspace`.
    pub(crate) fn work(&self) -> PathBuf {
        self.root.path().join("work")
    }

    pub(crate) fn data(&self) -> PathBuf {
        self.root.path().join("data")
    }

    pub(crate) fn put(&self, file: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.work().join(file);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, content).unwrap();
        if file == "treehold.toml" {
            self.trust();
        }
        path
    }

    /// Trusts the configuration in the working directory, as the user who wrote it would. An invalid configuration
    /// cannot be trusted.
    pub(crate) fn trust(&self) {
        self.command(&["config", "trust"]).output().unwrap();
    }

    /// The command, without the environment variables of the caller that it reads.
    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(binary());
        command.args(args).current_dir(self.work()).env("TREEHOLD_DATA", self.data()).env("HOME", self.root.path());
        for name in ["CONFIG", "THREAD", "USER", "TENANT", "AGENT", "SESSION"] {
            command.env_remove(format!("TREEHOLD_{name}"));
        }
        for name in ["NO_COLOR", "CLICOLOR", "CLICOLOR_FORCE", "XDG_DATA_HOME", "RUST_BACKTRACE"] {
            command.env_remove(name);
        }
        command.env("TREEHOLD_EDITOR", "true");
        // Only a command that hangs takes this long.
        command.timeout(std::time::Duration::from_secs(300));
        command
    }

    /// Runs a command that must succeed. Returns its output.
    pub(crate) fn ok(&self, args: &[&str]) -> String {
        String::from_utf8(self.run(args, 0).get_output().stdout.clone()).unwrap()
    }

    /// Runs a command that must exit with a code.
    fn run(&self, args: &[&str], code: i32) -> Assert {
        self.command(args).assert().code(code)
    }

    /// Runs a command that must exit with a code. Returns its standard error.
    fn error(&self, args: &[&str], code: i32) -> String {
        let assert = self.run(args, code);
        assert!(assert.get_output().stdout.is_empty(), "data and an error: {:?}", assert.get_output());
        String::from_utf8(assert.get_output().stderr.clone()).unwrap()
    }

    fn with_stdin(&self, args: &[&str], stdin: &[u8]) -> Assert {
        self.command(args).write_stdin(stdin).assert()
    }

    /// Runs a command with some input that must exit with a code. Returns its standard error.
    fn error_with_stdin(&self, args: &[&str], stdin: &[u8], code: i32) -> String {
        let assert = self.with_stdin(args, stdin).code(code);
        assert!(assert.get_output().stdout.is_empty(), "data and an error: {:?}", assert.get_output());
        String::from_utf8(assert.get_output().stderr.clone()).unwrap()
    }

    /// Runs a command that prints one JSON value.
    fn json(&self, args: &[&str]) -> serde_json::Value {
        let text = self.ok(args);
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
    }
}

pub(crate) fn binary() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_treehold"))
}
