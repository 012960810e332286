//! Compiles grep patterns, with a small cache.
//!
//! Compiling a Unicode class such as `\w` takes milliseconds, as long as searching some thousand files, and one call over many
//! mounts compiles the same expression for each of them. So the last few are cached. Each caller gets a clone with scratch space
//! of its own, which is dropped with it.

use super::literal;
use super::trigram::Need;
use crate::error::{Error, Result};
use crate::ops::{CaseMode, GrepOptions};
use bytes::Bytes;
use grep_regex::{ErrorKind, RegexMatcher, RegexMatcherBuilder};
use parking_lot::Mutex;
use regex_syntax::ParserBuilder;
use regex_syntax::hir::{Class, Hir, HirKind};
use std::collections::VecDeque;

/// The longest pattern in bytes.
pub const PATTERN_BYTES_MAX: usize = 64 * 1024;

/// The largest compiled expression in bytes.
const COMPILED_BYTES_MAX: usize = 10 << 20;

/// How many bytes of automaton states a search may cache, for each thread.
const STATES_BYTES_MAX: usize = 32 << 20;

/// The most steps of one call of an expression: its states times the bytes it reads. Such a call cannot be interrupted. An expression
/// that defeats the cache of automaton states takes about half a nanosecond a step (`rg -U '(?s-u)(a|b).{40000}z'`: 19 s for 1 MiB),
/// so the longest call takes some seconds.
const CALL_STEPS_MAX: u64 = 1 << 33;

/// The least and the most bytes that one call may read, however large or small the expression is.
const CALL_BYTES_MAX: std::ops::RangeInclusive<u64> = (64 << 10)..=(64 << 20);

/// How many compiled expressions are cached.
const REMEMBERED_MAX: usize = 4;

static REMEMBERED: Mutex<VecDeque<(Expression, RegexMatcher)>> = Mutex::new(VecDeque::new());

/// Everything that determines what a pattern compiles to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Expression {
    pattern: String,
    is_regex: bool,
    case: CaseMode,
    word: bool,
    whole_line: bool,
    multiline: bool,
}

impl Expression {
    /// Takes the pattern and its flags from the options. Literal text with a line break implies `multiline`.
    pub(super) fn of(options: &GrepOptions) -> Self {
        Self {
            pattern: options.pattern.clone(),
            is_regex: options.regex,
            case: options.case,
            word: options.word,
            whole_line: options.whole_line,
            multiline: options.multiline || (!options.regex && options.pattern.contains('\n')),
        }
    }

    /// Returns whether a match may span lines.
    pub(super) fn is_multiline(&self) -> bool {
        self.multiline
    }

    /// Returns the text that matches exactly, if the pattern is plain text that can be found without the expression.
    pub(super) fn plain_text(&self) -> Option<&str> {
        let is_plain = !self.is_regex && self.case == CaseMode::Sensitive && !self.word && !self.whole_line && !self.multiline;
        (is_plain && !self.pattern.is_empty()).then_some(&*self.pattern)
    }

    /// Returns what content must contain to match.
    pub(super) fn need(&self) -> Need {
        if !self.is_regex && !self.spans_lines() && self.case == CaseMode::Sensitive {
            return Need::of_text(self.pattern.as_bytes());
        }
        self.parse().map_or(Need::Nothing, |expression| Need::of_expression(&expression))
    }

    /// Returns the most bytes that one call may search: as many as keep an uninterruptible call to some seconds.
    pub(super) fn call_bytes_max(&self) -> usize {
        let states = self.parse().map_or(1, |expression| states(&expression)).max(1);
        (CALL_STEPS_MAX / states).clamp(*CALL_BYTES_MAX.start(), *CALL_BYTES_MAX.end()) as usize
    }

    /// Returns whether the pattern is literal text of several lines.
    fn spans_lines(&self) -> bool {
        !self.is_regex && self.pattern.contains('\n')
    }

    /// Parses a legal pattern to an expression that matches whatever the pattern matches, and possibly more.
    fn parse(&self) -> Option<Hir> {
        let pattern = match (self.is_regex, self.spans_lines()) {
            (true, _) => self.pattern.clone(),
            (false, true) => literal_over_lines(&self.pattern),
            (false, false) => regex::escape(&self.pattern),
        };
        let mut parser = ParserBuilder::new();
        // Ignoring `word` and `whole_line` only adds matches, and so does ignoring case.
        parser.utf8(false).multi_line(true).crlf(true).case_insensitive(self.case != CaseMode::Sensitive);
        parser.build().parse(&pattern).ok()
    }

    /// Returns a text that all matching content contains verbatim: the longest one known.
    pub(crate) fn literal(&self) -> Option<Bytes> {
        if !self.is_regex && !self.spans_lines() && self.case == CaseMode::Sensitive {
            return (!self.pattern.is_empty()).then(|| Bytes::copy_from_slice(self.pattern.as_bytes()));
        }
        self.parse().as_ref().and_then(literal::of_expression)
    }

    /// Compiles the expression, or returns it from the cache.
    pub(super) fn compile(self) -> Result<RegexMatcher> {
        // Literal text compiles in microseconds and is not worth caching.
        let is_costly = self.is_regex || self.case != CaseMode::Sensitive;
        if is_costly && let Some(found) = REMEMBERED.lock().iter().find(|(known, _)| *known == self) {
            return Ok(found.1.clone());
        }
        let matcher = self.build()?;
        if is_costly {
            let mut remembered = REMEMBERED.lock();
            remembered.truncate(REMEMBERED_MAX - 1);
            remembered.push_front((self, matcher.clone()));
        }
        Ok(matcher)
    }

    fn build(&self) -> Result<RegexMatcher> {
        if self.pattern.len() > PATTERN_BYTES_MAX {
            return Err(Error::invalid_argument(format!("the pattern is over {PATTERN_BYTES_MAX} bytes; search for a part of it")));
        }
        let spans_lines = self.spans_lines();
        let mut builder = RegexMatcherBuilder::new();
        builder
            .case_insensitive(self.case == CaseMode::Insensitive)
            .case_smart(self.case == CaseMode::Smart)
            .word(self.word)
            .whole_line(self.whole_line)
            .fixed_strings(!self.is_regex && !spans_lines)
            .multi_line(true)
            .crlf(true)
            .line_terminator((!self.multiline).then_some(b'\n'))
            // Within a line, `.` must match `\r`, which it does not if line breaks are `\r\n`. The line terminator is excluded
            // from it anyway.
            .dot_matches_new_line(!self.multiline)
            .size_limit(COMPILED_BYTES_MAX)
            .dfa_size_limit(STATES_BYTES_MAX);
        let built = if spans_lines { builder.build(&literal_over_lines(&self.pattern)) } else { builder.build(&self.pattern) };
        built.or_else(|error| {
            // The builder appends `)`, which a trailing comment swallows: `(?x) foo # comment`. Retry with a line break at the
            // end.
            let ended = self.is_regex && self.pattern.contains('#') && self.parse().is_some();
            let ended = ended.then(|| builder.build(&format!("{}\n", self.pattern)).ok()).flatten();
            ended.ok_or_else(|| malformed(&self.pattern, &error))
        })
    }
}

/// Estimates how many states an expression compiles to.
fn states(expression: &Hir) -> u64 {
    match expression.kind() {
        HirKind::Empty | HirKind::Look(_) => 1,
        HirKind::Literal(literal) => literal.0.len() as u64,
        HirKind::Class(Class::Bytes(_)) => 1,
        HirKind::Class(Class::Unicode(class)) => class.ranges().len().max(1) as u64,
        HirKind::Repetition(repetition) => {
            let times = u64::from(repetition.max.unwrap_or(repetition.min).max(1));
            states(&repetition.sub).saturating_add(1).saturating_mul(times)
        }
        HirKind::Capture(capture) => states(&capture.sub).saturating_add(2),
        HirKind::Concat(parts) | HirKind::Alternation(parts) => parts.iter().fold(1, |sum, part| sum.saturating_add(states(part))),
    }
}

/// Converts literal text of several lines to an expression whose line breaks match both line endings.
fn literal_over_lines(text: &str) -> String {
    let lines: Vec<String> = text.split('\n').map(|line| regex::escape(line.strip_suffix('\r').unwrap_or(line))).collect();
    lines.join(r"\r?\n")
}

fn malformed(pattern: &str, error: &grep_regex::Error) -> Error {
    let shown: String = pattern.chars().take(100).collect();
    let more = if shown.len() < pattern.len() { "..." } else { "" };
    let problem = match error.kind() {
        ErrorKind::NotAllowed(_) => "it contains a line break; set multiline to match across lines".to_owned(),
        ErrorKind::Regex(message) if message.contains("size limit") => "it is too large when compiled; repeat less or split it".to_owned(),
        // The message draws the expression; the problem is in its last line.
        ErrorKind::Regex(message) => {
            let last = message.lines().last().unwrap_or_default();
            format!("{}; escape what is meant literally, or search for literal text", last.strip_prefix("error: ").unwrap_or(last))
        }
        _ => "it cannot be compiled".to_owned(),
    };
    Error::invalid_argument(format!("the expression `{shown}{more}` is malformed: {problem}"))
}
