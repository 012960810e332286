//! `grep`: lines that match text or a pattern, printed as `path:line:text`.

use crate::cli::args::{When, at_least_one};
use crate::cli::commands::glob::{add_failures, check_found, tell_unread};
use crate::cli::context::Context;
use crate::cli::exit::{Failure, Outcome};
use crate::cli::output::{Format, Output, Style, counted};
use crate::ops::{CaseMode, Encoding, GrepFile, GrepLine, GrepOptions, GrepOutput, GrepResult, OnFailure, Truncation};
use crate::{VfsPath, VfsPathBuf};
use clap::{Args, ValueEnum};
use serde::Serialize;

/// Search files for lines that match
///
/// PATTERN is literal text unless `--regex` is given. Prints each match as `path:line:text`, and lines of context with `-` in
/// place of `:`. On a terminal, the path stands above the matches of each file. Hidden files, binary files, and files excluded by `.gitignore` and `.ignore` are skipped unless PATH is the file
/// itself.
#[derive(Debug, Args)]
#[command(after_long_help = "Examples:
  treehold grep TODO /workspace
  treehold grep --regex 'fn \\w+_test' /workspace -g '*.rs' -C 2
  treehold grep -il budget /memories
  treehold grep budget / --at before

Differences from ripgrep:
  PATTERN is literal; `-e` takes no value and makes PATTERN a regular expression,
    and so does `-E`, unless an encoding follows
  output has full paths in path order, always with line numbers; `-n` and `-r` do nothing
  only `.gitignore` and `.ignore` within the tree apply, not `.rgignore` or git's own settings
  a `-g` that starts with `!` overrides the others in any order
  `-g` and `-t` never include hidden or ignored files
  `-c` omits files without a match; `--limit` bounds the whole output
  files are searched as bytes; `--encoding auto`, ripgrep's default, must be given
  links are not followed, `-a` is also `--binary`, and there is no configuration file")]
pub(crate) struct Grep {
    /// Text or regular expression to search for
    pattern: String,
    /// File or directory to search
    #[arg(default_value = "/")]
    path: String,
    /// Treat PATTERN as a regular expression
    #[arg(short = 'e', long, conflicts_with = "fixed_strings")]
    regex: bool,
    /// Treat PATTERN as literal text (the default)
    #[arg(short = 'F', long)]
    fixed_strings: bool,
    /// Ignore case
    #[arg(short, long)]
    ignore_case: bool,
    /// Ignore case unless PATTERN contains an upper-case letter
    #[arg(short = 'S', long, conflicts_with = "ignore_case")]
    smart_case: bool,
    /// Match only whole words
    #[arg(short, long)]
    word: bool,
    /// Match only whole lines
    #[arg(short = 'x', long)]
    line: bool,
    /// Print the lines that do not match
    #[arg(short = 'v', long)]
    invert: bool,
    /// Accepted for compatibility; lines are always numbered
    #[arg(short, hide = true)]
    n: bool,
    /// Accepted for compatibility; directories are always searched
    #[arg(short, short_alias = 'R', hide = true)]
    r: bool,
    /// Accepted for compatibility; paths are always printed
    #[arg(short = 'H', hide = true)]
    _paths: bool,
    /// Let matches span several lines
    #[arg(short = 'U', long)]
    multiline: bool,
    /// Print only the paths of files that match
    #[arg(short = 'l', long, conflicts_with = "count")]
    files: bool,
    /// Print only the number of matching lines per file
    #[arg(short, long)]
    count: bool,
    /// Search only files that match GLOB, or with `!GLOB` only files that do not (repeatable)
    #[arg(short, long, value_name = "GLOB")]
    glob: Vec<String>,
    /// Search only files of TYPE, such as `rust` or `py` (repeatable)
    #[arg(short, long = "type", value_name = "TYPE")]
    types: Vec<String>,
    /// Print N lines before and after each match
    #[arg(short = 'C', long, value_name = "N", default_value_t = 0)]
    context: usize,
    /// Print N lines after each match
    #[arg(short = 'A', long, value_name = "N")]
    after: Option<usize>,
    /// Print N lines before each match
    #[arg(short = 'B', long, value_name = "N")]
    before: Option<usize>,
    /// Also search binary files
    #[arg(short = 'a', long)]
    binary: bool,
    /// Decode files that start with a byte order mark (`auto`), or search their bytes (`none`)
    #[arg(short = 'E', long, value_name = "ENCODING", value_enum, default_value_t)]
    encoding: TextEncoding,
    /// Include hidden files and directories
    #[arg(long)]
    hidden: bool,
    /// Include files that `.gitignore` and `.ignore` exclude
    #[arg(long)]
    ignored: bool,
    /// Print at most N matching lines per file
    #[arg(short, long, value_name = "N")]
    max_count: Option<usize>,
    /// Print at most N matching lines, or with `-l` and `-c` at most N files
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    limit: Option<usize>,
    #[command(flatten)]
    when: When,
    // Replaces the global flag with this id, so that `-v` can mean invert, as in every other `grep`.
    /// Report on standard error what was done
    #[arg(long, help_heading = "Global options")]
    verbose: bool,
}

/// How files are read as text.
#[derive(Debug, Clone, Copy, Default, ValueEnum)]
enum TextEncoding {
    Auto,
    #[default]
    None,
}

/// The most matches to request at a time.
const PAGE: usize = 10_000;

impl Grep {
    pub(crate) async fn run(self, context: &mut Context) -> Result<Outcome, Failure> {
        let path = VfsPath::parse(&self.path)?;
        let tree = context.tree_at(&self.when).await?;
        let mut options = self.options();
        let with_context = options.before + options.after > 0;
        let mut printer = Printer { with_context, is_grouped: context.out.width().is_some(), after_line: None };
        let mut whole = GrepResult::default();
        let mut matches = 0;
        // As in every other `grep`, `-q` prints nothing, so one match suffices.
        let silent = context.global.quiet;
        let limit = if silent { Some(1) } else { self.limit };
        loop {
            options.matches_max = limit.map_or(PAGE, |limit| (limit - matches).min(PAGE));
            let page = tree.grep(&path, &options).await?;
            matches += page.matches();
            if !silent && context.out.format() != Format::Json {
                for file in &page.files {
                    printer.print(&mut context.out, &self, file)?;
                }
            }
            let more = add_page(&mut whole, page, context.out.format() == Format::Json);
            match more {
                Some(cut) if limit.is_none_or(|limit| matches < limit) => {
                    check_found(matches)?;
                    options.start_after = Some(cut.next_after(options.start_after.as_ref())?);
                }
                _ => break,
            }
        }
        if !silent && context.out.format() == Format::Json {
            context.out.json(&whole)?;
        }
        if whole.truncated.is_some() {
            context.out.notice("there are more matches; raise `--limit`");
        }
        if matches == 0 && self.is_like_regex() {
            context.out.notice("PATTERN was taken literally; `-e` makes it a regular expression, `-F` says that it is literal");
        }
        if whole.files_binary > 0 && matches == 0 {
            let files = counted(whole.files_binary, "binary file was", "binary files were");
            context.out.notice(format_args!("{files} not searched; `--binary` searches binary files too"));
        }
        Ok(match tell_unread(context, &whole.failures, whole.failures_count) {
            Some(kind) => Outcome::Failed(kind),
            None => Outcome::found(matches > 0),
        })
    }

    /// Returns whether the pattern looks like a regular expression but was not said to be one, nor to be literal.
    fn is_like_regex(&self) -> bool {
        !self.regex
            && !self.fixed_strings
            && (self.pattern.contains(['|', '[', ']', '(', ')', '^', '$', '\\']) || self.pattern.contains(".*"))
    }

    fn options(&self) -> GrepOptions {
        let case = match (self.ignore_case, self.smart_case) {
            (true, _) => CaseMode::Insensitive,
            (_, true) => CaseMode::Smart,
            _ => CaseMode::Sensitive,
        };
        let output = match (self.files, self.count) {
            (true, _) => GrepOutput::Files,
            (_, true) => GrepOutput::Counts,
            _ => GrepOutput::Content,
        };
        let encoding = match self.encoding {
            TextEncoding::Auto => Encoding::Auto,
            TextEncoding::None => Encoding::Bytes,
        };
        let mut options = if self.regex { GrepOptions::regex(&self.pattern) } else { GrepOptions::new(&self.pattern) }
            .with_case(case)
            .with_word(self.word)
            .with_whole_line(self.line)
            .with_invert(self.invert)
            .with_multiline(self.multiline)
            .with_context(self.before.unwrap_or(self.context), self.after.unwrap_or(self.context))
            .with_binary(self.binary)
            .with_encoding(encoding)
            .with_hidden(self.hidden)
            .with_ignored(self.ignored)
            .with_output(output)
            .with_on_failure(OnFailure::Partial);
        options.types = self.types.clone();
        options.file_matches_max = self.max_count;
        for glob in &self.glob {
            match glob.strip_prefix('!') {
                Some(glob) => options.exclude.push(glob.to_owned()),
                None => options.include.push(glob.clone()),
            }
        }
        options
    }
}

/// Adds a page to the previous results. Returns where to continue.
fn add_page(whole: &mut GrepResult, page: GrepResult, keep_files: bool) -> Option<Truncation> {
    if keep_files {
        whole.files.extend(page.files);
    }
    whole.files_searched += page.files_searched;
    whole.files_binary += page.files_binary;
    whole.files_too_large += page.files_too_large;
    let unnamed = page.failures_count - page.failures.len();
    whole.failures_count += unnamed + add_failures(&mut whole.failures, page.failures);
    whole.truncated = page.truncated;
    whole.truncated.clone()
}

/// Prints the results, file by file.
struct Printer {
    with_context: bool,
    /// Whether the path is printed once above the lines of a file.
    is_grouped: bool,
    /// The file and line printed last, to separate groups of lines that do not touch.
    after_line: Option<(VfsPathBuf, usize)>,
}

impl Printer {
    fn print(&mut self, out: &mut Output, grep: &Grep, file: &GrepFile) -> Result<(), Failure> {
        if out.format() == Format::JsonLines {
            return match file.lines.is_empty() {
                true => out.json(file),
                false => file.lines.iter().try_for_each(|line| out.json(&LineOf { path: &file.path, line })),
            };
        }
        let path = out.paint(Style::Path, &file.path).to_string();
        if grep.files {
            return out.line(path);
        }
        if grep.count {
            return out.line(format_args!("{path}:{}", file.count));
        }
        let follows = self.after_line.as_ref().map(|(path, _)| *path == file.path);
        if self.is_grouped && !file.lines.is_empty() && follows != Some(true) {
            if follows.is_some() {
                out.empty_line()?;
            }
            out.line(&path)?;
        }
        for line in &file.lines {
            self.print_line(out, &path, file, line)?;
        }
        Ok(())
    }

    fn print_line(&mut self, out: &mut Output, path: &str, file: &GrepFile, line: &GrepLine) -> Result<(), Failure> {
        let touches = self.after_line.as_ref().is_none_or(|(path, last)| match *path == file.path {
            true => last + 1 >= line.line,
            // The path above a group separates it from the file before.
            false => self.is_grouped,
        });
        if self.with_context && !touches {
            out.line("--")?;
        }
        let separator = if line.is_match { ':' } else { '-' };
        // A match over several lines is printed as several numbered lines.
        let mut start = 0;
        for (index, text) in line.text.split(|byte| *byte == b'\n').enumerate() {
            let number = line.line + index;
            let number_shown = out.paint(Style::Line, number);
            let head = match self.is_grouped {
                true => format!("{number_shown}{separator}"),
                false => format!("{path}{separator}{number_shown}{separator}"),
            };
            out.text(head)?;
            self.print_text(out, text, start, line)?;
            out.content(b"\n")?;
            start += text.len() + 1;
            self.after_line = Some((file.path.clone(), number));
        }
        Ok(())
    }

    /// Prints the text of one line with its matches coloured. `start` is its offset in the matched text.
    fn print_text(&self, out: &mut Output, text: &[u8], start: usize, line: &GrepLine) -> Result<(), Failure> {
        let mut at = 0;
        for range in &line.ranges {
            let from = range.start.saturating_sub(start).clamp(at, text.len());
            let to = range.end.saturating_sub(start).clamp(from, text.len());
            if range.end <= start || from == to {
                continue;
            }
            out.content(&text[at..from])?;
            out.painted_content(Style::Match, &text[from..to])?;
            at = to;
        }
        out.content(&text[at..])
    }
}

/// A matching line as one JSON value.
#[derive(Debug, Serialize)]
struct LineOf<'a> {
    path: &'a VfsPath,
    #[serde(flatten)]
    line: &'a GrepLine,
}
