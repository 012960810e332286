//! The pager: a program of the user that shows output a screen at a time.

use std::io::{self, Write};
use std::process::{Child, ChildStdin, Command, Stdio};

/// A running pager.
#[derive(Debug)]
pub(crate) struct Pager {
    child: Child,
    /// `None` once all output is written.
    input: Option<ChildStdin>,
    /// While this process waits for the pager, nothing else handles a signal.
    #[cfg(unix)]
    _stops: tokio::sync::oneshot::Sender<()>,
}

impl Pager {
    /// Starts the pager that the environment names: `TREEHOLD_PAGER`, else `PAGER`, else `less`. Returns `None` if it is empty or `cat`, if it
    /// cannot be started, or if the terminal cannot move its cursor (`TERM=dumb`).
    pub(crate) fn start() -> Option<Self> {
        let named = ["TREEHOLD_PAGER", "PAGER"].into_iter().find_map(|name| std::env::var(name).ok());
        let command = named.unwrap_or_else(|| "less".to_owned());
        if ["", "cat"].contains(&command.trim()) || std::env::var("TERM").is_ok_and(|term| term == "dumb") {
            return None;
        }
        outlive_interrupts();
        let mut pager = shell(&command);
        pager.stdin(Stdio::piped());
        if std::env::var_os("LESS").is_none() {
            // As git sets it: leave at once if one screen suffices, show colours, keep the screen.
            pager.env("LESS", "FRX");
        }
        let mut child = pager.spawn().ok()?;
        let input = child.stdin.take();
        Some(Self {
            child,
            input,
            #[cfg(unix)]
            _stops: crate::cli::signal::exit_when_stopped(),
        })
    }

    /// Ends its input and waits until the user closes it.
    pub(crate) fn wait(mut self) {
        drop(self.input.take());
        // However it ends, the output has been shown as far as the user wanted.
        let _ = self.child.wait();
    }
}

impl Write for Pager {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match &mut self.input {
            Some(input) => input.write(bytes),
            None => Err(io::ErrorKind::BrokenPipe.into()),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        self.input.as_mut().map_or(Ok(()), Write::flush)
    }
}

/// Returns the command that runs a line of the user's shell, with options and quotes.
#[cfg(unix)]
pub(crate) fn shell(line: &str) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", line]);
    command
}

/// Returns the command that runs a line of the user's shell.
#[cfg(not(unix))]
pub(crate) fn shell(line: &str) -> Command {
    let mut command = Command::new("cmd");
    command.args(["/C", line]);
    command
}

/// Keeps an interrupt, which the terminal also sends to the pager, from ending this process first: the shell would take the terminal back.
#[cfg(unix)]
pub(crate) fn outlive_interrupts() {
    use tokio::signal::unix::{SignalKind, signal};
    // Once installed, the handler stays for the rest of the process.
    drop(signal(SignalKind::interrupt()));
}

/// Does nothing: a console keeps the process of a shell's command alive.
#[cfg(not(unix))]
pub(crate) fn outlive_interrupts() {}
