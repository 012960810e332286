//! Output of commands: raw bytes, lines or JSON on standard output; notices on standard error.

use crate::cli::args::Global;
use crate::cli::exit::Failure;
use crate::cli::pager::Pager;
use crate::cli::terminal;
use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde::Serialize;
use std::fmt;
use std::io::{self, BufWriter, IsTerminal, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Standard output and standard error, as configured by the flags.
///
/// Standard output is buffered. Content ([`Output::content`]) is written byte for byte unless standard output is a terminal. Everything
/// else, and content on a terminal, passes through [`terminal`](crate::cli::terminal). Colours are written only if they are displayed.
///
/// Lists are laid out for people on a terminal only ([`Output::width`]). What a pipe or a file receives stays the same.
#[derive(Debug)]
pub(crate) struct Output {
    stdout: BufWriter<Sink>,
    format: Format,
    color: bool,
    /// Whether a pager may show the output.
    pages: bool,
    /// Whether the first output starts the pager.
    starts_pager: bool,
    /// Notices that wait for the pager to end.
    waiting: String,
    /// Whether standard output is a terminal, which would interpret control characters.
    is_obeyed: bool,
    notices: bool,
    details: bool,
}

/// Where output goes.
#[derive(Debug)]
enum Sink {
    Stdout,
    Pager(Pager),
}

impl Write for Sink {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Stdout => io::stdout().write(bytes),
            Self::Pager(pager) => pager.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Stdout => io::stdout().flush(),
            Self::Pager(pager) => pager.flush(),
        }
    }
}

/// The output format.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Format {
    /// For people.
    Text,
    /// One JSON value.
    Json,
    /// One JSON value a line.
    JsonLines,
}

impl Output {
    /// Creates the output for some flags.
    pub(crate) fn new(global: &Global) -> Self {
        let format = match (global.json, global.jsonl) {
            (true, _) => Format::Json,
            (_, true) => Format::JsonLines,
            _ => Format::Text,
        };
        Self {
            stdout: BufWriter::with_capacity(64 << 10, Sink::Stdout),
            format,
            pages: format == Format::Text && !global.no_pager && stdout_is_terminal(),
            starts_pager: false,
            waiting: String::new(),
            color: format == Format::Text && anstream::AutoStream::choice(&io::stdout()) != anstream::ColorChoice::Never,
            is_obeyed: format == Format::Text && stdout_is_terminal(),
            notices: !global.quiet,
            details: global.verbose,
        }
    }

    /// Returns the output format.
    pub(crate) fn format(&self) -> Format {
        self.format
    }

    /// Returns whether the output is text for people.
    pub(crate) fn is_text(&self) -> bool {
        self.format == Format::Text
    }

    /// Returns the number of columns of the terminal that shows the output; `None` for a pipe, a file or JSON. A terminal of unknown width has
    /// 80.
    pub(crate) fn width(&self) -> Option<usize> {
        let wide = || terminal_size::terminal_size().map_or(0, |(width, _)| usize::from(width.0));
        self.is_obeyed.then(|| Some(wide()).filter(|width| *width > 0).unwrap_or(80))
    }

    /// Shows the output in a pager if it is for a terminal. The pager starts with the first output.
    pub(crate) fn page(&mut self) {
        self.starts_pager = self.pages;
    }

    /// Writes the output to its end, and waits until the user has closed the pager, if one is running. Then writes the notices of the meantime.
    pub(crate) fn close(&mut self) -> Result<(), Failure> {
        self.starts_pager = false;
        let written = self.stdout.flush();
        if matches!(self.stdout.get_ref(), Sink::Pager(_)) {
            // What the pager did not take is dropped with its buffer.
            let ended = std::mem::replace(&mut self.stdout, BufWriter::with_capacity(64 << 10, Sink::Stdout));
            if let (Sink::Pager(pager), _) = ended.into_parts() {
                pager.wait();
            }
        }
        let waiting = std::mem::take(&mut self.waiting);
        let _ = io::stderr().write_all(terminal::shown(&waiting, io::stderr().is_terminal()).as_bytes());
        Ok(written?)
    }

    /// Writes bytes that need no escaping.
    fn bytes(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        if std::mem::take(&mut self.starts_pager)
            && let Some(pager) = Pager::start()
        {
            *self.stdout.get_mut() = Sink::Pager(pager);
        }
        Ok(self.stdout.write_all(bytes)?)
    }

    /// Writes content or a part of it, byte for byte; on a terminal, control characters are made visible. The author of a file must not be
    /// able to move the cursor or set the title of a reader's terminal.
    pub(crate) fn content(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        if self.is_obeyed { self.bytes(&terminal::shown_bytes(bytes)) } else { self.bytes(bytes) }
    }

    /// Writes text of any number of lines, with control characters made visible.
    pub(crate) fn text(&mut self, text: impl fmt::Display) -> Result<(), Failure> {
        let text = text.to_string();
        self.bytes(terminal::shown(&text, self.is_obeyed).as_bytes())
    }

    /// Writes one line of text. Line breaks within it are escaped, so that stored names cannot imitate lines of the command.
    pub(crate) fn line(&mut self, line: impl fmt::Display) -> Result<(), Failure> {
        let line = line.to_string();
        self.text(format_args!("{}\n", terminal::one_line(&line)))
    }

    /// Writes an empty line.
    pub(crate) fn empty_line(&mut self) -> Result<(), Failure> {
        self.bytes(b"\n")
    }

    /// Writes a JSON value: indented if it is the only one, otherwise on one line.
    pub(crate) fn json(&mut self, value: &impl Serialize) -> Result<(), Failure> {
        match self.format {
            Format::JsonLines => self.json_line(value),
            _ => self.json_text(serde_json::to_vec_pretty(value)),
        }
    }

    /// Writes a JSON value on one line, for a list without an end.
    pub(crate) fn json_line(&mut self, value: &impl Serialize) -> Result<(), Failure> {
        self.json_text(serde_json::to_vec(value))
    }

    fn json_text(&mut self, json: serde_json::Result<Vec<u8>>) -> Result<(), Failure> {
        let mut json = terminal::shown_json(json.map_err(io::Error::from)?);
        json.push(b'\n');
        self.bytes(&json)
    }

    /// Writes the element at `index` of a list that is streamed. [`Output::json_end`] ends the list.
    pub(crate) fn json_element(&mut self, index: usize, value: &impl Serialize) -> Result<(), Failure> {
        if self.format == Format::Json {
            self.bytes(if index == 0 { b"[\n  " } else { b",\n  " })?;
            return self.bytes(&terminal::shown_json(serde_json::to_vec(value).map_err(io::Error::from)?));
        }
        self.json(value)
    }

    /// Ends a streamed list of `count` elements.
    pub(crate) fn json_end(&mut self, count: usize) -> Result<(), Failure> {
        match (self.format, count) {
            (Format::Json, 0) => self.bytes(b"[]\n"),
            (Format::Json, _) => self.bytes(b"\n]\n"),
            _ => Ok(()),
        }
    }

    /// Writes a list: as a JSON array, or one element per line as JSON lines.
    pub(crate) fn json_list<T: Serialize>(&mut self, values: &[T]) -> Result<(), Failure> {
        match self.format {
            Format::JsonLines => values.iter().try_for_each(|value| self.json(value)),
            _ => self.json(&values),
        }
    }

    /// Returns whether colours are displayed.
    pub(crate) fn has_color(&self) -> bool {
        self.color
    }

    /// Colours a text if colours are displayed.
    pub(crate) fn paint<T: fmt::Display>(&self, style: Style, text: T) -> Painted<T> {
        Painted { style: self.color.then_some(style), text }
    }

    /// Writes part of a line of content as [`Output::content`] does, coloured if colours are displayed.
    pub(crate) fn painted_content(&mut self, style: Style, bytes: &[u8]) -> Result<(), Failure> {
        if !self.color {
            return self.content(bytes);
        }
        // Reset the colour before the line break, so that a pager does not apply it to the next line.
        let (line, end) = match bytes.strip_suffix(b"\n") {
            Some(line) => (line, &b"\n"[..]),
            None => (bytes, &b""[..]),
        };
        self.text(terminal::color(style.code()))?;
        self.content(line)?;
        self.text(terminal::color("0"))?;
        self.bytes(end)
    }

    /// Flushes the buffer.
    pub(crate) fn flush(&mut self) -> Result<(), Failure> {
        Ok(self.stdout.flush()?)
    }

    /// Writes a notice to standard error, unless `--quiet` is set.
    pub(crate) fn notice(&mut self, text: impl fmt::Display) {
        if self.notices {
            self.write_stderr(text);
        }
    }

    /// Writes to standard error what was done, if `--verbose` is set.
    pub(crate) fn detail(&mut self, text: impl fmt::Display) {
        if self.details {
            self.write_stderr(text);
        }
    }

    fn write_stderr(&mut self, text: impl fmt::Display) {
        let text = format!("treehold: {}\n", terminal::one_message(&text.to_string()));
        if matches!(self.stdout.get_ref(), Sink::Pager(_)) {
            self.waiting.push_str(&text);
            return;
        }
        // On a terminal both streams appear together, so flush earlier output first.
        let _ = self.stdout.flush();
        let _ = io::stderr().write_all(terminal::shown(&text, io::stderr().is_terminal()).as_bytes());
    }
}

/// Returns whether standard output is a terminal, where the output itself shows progress.
pub(crate) fn stdout_is_terminal() -> bool {
    io::stdout().is_terminal()
}

/// Returns whether standard input is a terminal, so nothing is piped in.
pub(crate) fn stdin_is_terminal() -> bool {
    io::stdin().is_terminal()
}

/// Whether standard input has commands.
static STDIN_HAS_COMMANDS: AtomicBool = AtomicBool::new(false);

/// Reserves standard input for commands, so that none of them reads the others as content.
pub(crate) fn reserve_stdin() {
    STDIN_HAS_COMMANDS.store(true, Ordering::Relaxed);
}

/// Returns whether standard input has commands.
pub(crate) fn stdin_has_commands() -> bool {
    STDIN_HAS_COMMANDS.load(Ordering::Relaxed)
}

/// Returns content for a JSON string with its encoding: UTF-8 text as is, otherwise base64 (RFC 4648, with padding).
pub(crate) fn as_text(content: &[u8]) -> (String, &'static str) {
    match std::str::from_utf8(content) {
        Ok(text) => (text.to_owned(), "utf-8"),
        Err(_) => (BASE64.encode(content), "base64"),
    }
}

/// Formats a count with the singular or plural noun.
pub(crate) fn counted(count: usize, one: &str, many: &str) -> String {
    format!("{count} {}", if count == 1 { one } else { many })
}

/// The meaning of a colour.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Style {
    /// A directory.
    Directory,
    /// A path in front of matches.
    Path,
    /// A line number.
    Line,
    /// A match.
    Match,
    /// An added line.
    Added,
    /// A removed line.
    Removed,
    /// Less important text, such as positions.
    Faint,
    /// The heading of a column.
    Heading,
    /// The part of an id that suffices to name it.
    Unique,
}

impl Style {
    const fn code(self) -> &'static str {
        match self {
            Self::Directory => "1;34",
            Self::Path => "35",
            Self::Line | Self::Added => "32",
            Self::Match => "1;31",
            Self::Removed => "31",
            Self::Faint => "2",
            Self::Heading => "1",
            Self::Unique => "1;35",
        }
    }
}

/// Coloured text, only for [`Output::line`] and [`Output::text`], which convert the colour to an escape sequence.
#[derive(Debug)]
pub(crate) struct Painted<T> {
    style: Option<Style>,
    text: T,
}

impl<T: fmt::Display> fmt::Display for Painted<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.style {
            Some(style) => write!(f, "{}{}{}", terminal::color(style.code()), self.text, terminal::color("0")),
            None => self.text.fmt(f),
        }
    }
}

/// How long work takes before progress is shown.
const SHOWN_AFTER: Duration = Duration::from_millis(500);

/// A progress display on standard error, if that is a terminal, once the work has taken half a second.
#[derive(Debug)]
pub(crate) struct Progress {
    bar: Option<ProgressBar>,
    started: Instant,
    doing: &'static str,
}

impl Progress {
    pub(crate) fn new(doing: &'static str, wanted: bool) -> Self {
        let bar = (wanted && io::stderr().is_terminal()).then(|| {
            let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::hidden());
            bar.with_style(ProgressStyle::default_spinner())
        });
        Self { bar, started: Instant::now(), doing }
    }

    /// Updates the count of finished items.
    pub(crate) fn tell(&self, count: u64, what: &str) {
        let Some(bar) = self.shown() else { return };
        bar.set_position(count);
        bar.set_message(format!("{}: {count} {what}", self.doing));
    }

    /// Updates the finished share of a known total.
    pub(crate) fn share(&self, done: u64, total: u64, text: fmt::Arguments<'_>) {
        let Some(bar) = self.shown() else { return };
        if bar.length().is_none()
            && let Ok(style) = ProgressStyle::with_template("{wide_bar} {percent}% {msg}")
        {
            bar.set_style(style);
        }
        bar.set_length(total.max(done).max(1));
        bar.set_position(done);
        bar.set_message(text.to_string());
    }

    /// Returns the progress bar, making it visible once the work takes long.
    fn shown(&self) -> Option<&ProgressBar> {
        let bar = self.bar.as_ref()?;
        if bar.is_hidden() && self.started.elapsed() > SHOWN_AFTER {
            bar.set_draw_target(ProgressDrawTarget::stderr());
        }
        Some(bar)
    }
}

impl Progress {
    /// Shows a spinner for work without countable steps.
    pub(crate) fn wait(&self) {
        let Some(bar) = self.bar.clone() else { return };
        bar.set_message(self.doing);
        tokio::spawn(async move {
            tokio::time::sleep(SHOWN_AFTER).await;
            if !bar.is_finished() {
                bar.set_draw_target(ProgressDrawTarget::stderr());
                bar.enable_steady_tick(Duration::from_millis(100));
            }
        });
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_that_is_not_utf8_becomes_base64() {
        assert_eq!(as_text("für".as_bytes()), ("für".to_owned(), "utf-8"));
        assert_eq!(as_text(b"\xff\0\xfe"), ("/wD+".to_owned(), "base64"));
    }
}
