//! Exit codes, and how errors are reported.

use crate::cli::args::{Color, Global};
use crate::cli::signal::StopSignal;
use crate::cli::terminal::{one_message, shown, shown_json};
use crate::config::without_password;
use crate::error::ErrorRecord;
use crate::{Error, ErrorKind};
use clap::ValueEnum;
use std::borrow::Cow;
use std::io::{self, Write};

/// The outcome of a command that did not fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// Done.
    Done,
    /// Nothing was found, or two files differ.
    Nothing,
    /// Done, except for calls that failed and were reported. The kind is that of the first.
    Failed(ErrorKind),
    /// Stopped by a signal.
    Interrupted(StopSignal),
}

impl Outcome {
    /// Returns `Done` if something was found, otherwise `Nothing`.
    pub(crate) fn found(any: bool) -> Self {
        if any { Self::Done } else { Self::Nothing }
    }
}

impl From<Outcome> for u8 {
    fn from(outcome: Outcome) -> Self {
        match outcome {
            Outcome::Done => 0,
            Outcome::Nothing => 1,
            Outcome::Failed(kind) => code(kind),
            Outcome::Interrupted(signal) => signal.exit_code(),
        }
    }
}

/// Why a command failed.
#[derive(Debug)]
pub(crate) enum Failure {
    /// An error of the library.
    Library(Error),
    /// The reader of the output has closed it; this is not an error.
    ClosedPipe,
    /// The output cannot be written.
    Output(io::Error),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Library(error)
    }
}

impl From<crate::InvalidPath> for Failure {
    fn from(invalid: crate::InvalidPath) -> Self {
        Self::Library(invalid.into())
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::BrokenPipe => Self::ClosedPipe,
            _ => Self::Output(error),
        }
    }
}

/// Returns the exit code of an error.
pub(crate) fn code(kind: ErrorKind) -> u8 {
    match kind {
        ErrorKind::NotFound => 3,
        ErrorKind::Conflict | ErrorKind::AlreadyExists | ErrorKind::NoMatch | ErrorKind::Ambiguous => 4,
        ErrorKind::PermissionDenied | ErrorKind::ReadOnly | ErrorKind::QuotaExceeded => 5,
        ErrorKind::InvalidPath
        | ErrorKind::InvalidArgument
        | ErrorKind::IsDirectory
        | ErrorKind::NotADirectory
        | ErrorKind::TooLarge
        | ErrorKind::Unsupported => 2,
        _ => 6,
    }
}

/// Converts the record of an error to an error.
pub(crate) fn error_of(record: &ErrorRecord) -> Error {
    record.into()
}

/// Reports a failure on standard error and returns its exit code.
pub(crate) fn report(failure: &Failure, global: &Global) -> u8 {
    match failure {
        Failure::ClosedPipe => 0,
        Failure::Output(error) => {
            tell(&Error::new(ErrorKind::Unavailable, format!("the output cannot be written: {error}")), global);
            6
        }
        Failure::Library(error) => {
            tell(error, global);
            code(error.kind())
        }
    }
}

/// Writes an error to standard error: as a JSON object in JSON mode, otherwise as a line.
pub(crate) fn tell(error: &Error, global: &Global) {
    let mut stderr = anstream::stderr().lock();
    // If standard error is not writable, there is no other place to report to.
    let _ = if global.is_json() {
        writeln!(stderr, "{}", json(&ErrorRecord::from(error)))
    } else {
        writeln!(stderr, "\u{1b}[31mtreehold:\u{1b}[0m {}", shown(&one_message(&message(error)), true))
    };
    if global.verbose {
        for cause in causes(error) {
            let _ = writeln!(stderr, "  caused by: {}", shown(&one_message(&cause.to_string()), true));
        }
    }
}

fn json(record: &ErrorRecord) -> String {
    String::from_utf8(shown_json(serde_json::json!(record).to_string().into_bytes())).expect("JSON is UTF-8")
}

/// Returns the causes of an error, which are for the operator: host paths and system errors.
pub(crate) fn causes(error: &Error) -> impl Iterator<Item = &(dyn std::error::Error + 'static)> {
    std::iter::successors(std::error::Error::source(error), |cause| cause.source())
}

/// Returns the message, preceded by the path unless the message contains it.
pub(crate) fn message(error: &Error) -> String {
    match error.path() {
        Some(path) if !error.message().contains(&format!("`{path}`")) => format!("`{path}`: {}", error.message()),
        _ => error.message().to_owned(),
    }
}

/// Reports an invalid command line, or prints the requested help.
pub(crate) fn usage(error: &clap::Error) -> u8 {
    let as_json = std::env::args_os().take_while(|arg| arg != "--").any(|arg| arg == "--json" || arg == "--jsonl");
    let rendered = error.render().to_string();
    // Only an error quotes arguments.
    let text = if error.use_stderr() { without_passwords(&rendered) } else { Cow::Borrowed(&*rendered) };
    if error.use_stderr() && as_json {
        let message = text.trim_start_matches("error: ").split("\n\n").next().unwrap_or_default().to_owned();
        let record = ErrorRecord::from(&Error::new(ErrorKind::InvalidArgument, message));
        let _ = writeln!(io::stderr(), "{}", json(&record));
    } else {
        // If an argument contains escape sequences, they are indistinguishable from our colours, so print without colours.
        let text = match (shown(&text, true), &text) {
            (Cow::Owned(shown), _) => shown,
            (Cow::Borrowed(shown), Cow::Owned(_)) => shown.to_owned(),
            _ => error.render().ansi().to_string(),
        };
        asked_color().write_global();
        let _ = match error.use_stderr() {
            true => write!(anstream::stderr(), "{text}"),
            false => write!(anstream::stdout(), "{text}"),
        };
    }
    if error.use_stderr() { 2 } else { 0 }
}

/// Hides the passwords of the URLs among the arguments, which a usage error quotes.
fn without_passwords(text: &str) -> Cow<'_, str> {
    let mut text = Cow::Borrowed(text);
    for arg in std::env::args_os().filter_map(|arg| arg.into_string().ok()) {
        let value = arg.split_once('=').map(|(_, value)| value);
        let is_url = |part: &&str| part.contains("://") || part.contains('@') && part.contains(':');
        for part in value.into_iter().chain([arg.as_str()]).filter(is_url) {
            let hidden = without_password(part);
            if hidden != part && text.contains(part) {
                text = Cow::Owned(text.replace(part, &hidden));
            }
        }
    }
    text
}

/// Prints the short help of the program: as data if it was asked for, otherwise as the answer to a command line without a command.
pub(crate) fn short_help(is_asked: bool) -> u8 {
    let help = super::habits::SHORT_HELP.as_bytes();
    let _ = if is_asked { io::stdout().write_all(help) } else { io::stderr().write_all(help) };
    if is_asked { 0 } else { 2 }
}

/// Returns the colour choice from a command line that could not be parsed.
fn asked_color() -> Color {
    let args: Vec<_> = std::env::args_os().take_while(|arg| arg != "--").filter_map(|arg| arg.into_string().ok()).collect();
    let after = |index: usize| args.get(index + 1).map(String::as_str);
    let values =
        args.iter().enumerate().filter_map(|(index, arg)| if arg == "--color" { after(index) } else { arg.strip_prefix("--color=") });
    values.rev().find_map(|value| Color::from_str(value, false).ok()).unwrap_or(Color::Auto)
}
