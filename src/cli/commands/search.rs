//! `search`: files by relevance, best first.

use super::glob::tell_unread;
use crate::cli::args::{When, at_least_one, time};
use crate::cli::context::Context;
use crate::cli::exit::{Failure, Outcome};
use crate::cli::output::{Format, Output, Style};
use crate::ops::{OnFailure, SearchHit, SearchOptions, SearchResult, Spelling};
use crate::{Backend, VfsPath};
use clap::Args;
use jiff::Timestamp;

/// Find files by topic, best match first
///
/// Finds files whose path or text contains any word of the query. Files that contain more of the words, and rarer ones, rank
/// higher. Word endings, accents and case are ignored. A word that no file contains finds those spelled nearly like it. Prints the
/// best matching lines of each file.
#[derive(Debug, Args)]
#[command(after_long_help = "Examples:
  treehold search 'when do we deploy' /memories
  treehold search 'rust style' -g '*.md' --since 30d
  treehold search invoices --since 2026-10-01 --before 2026-11-01 --json")]
pub(crate) struct Search {
    /// Words to search for
    query: String,
    /// File or directory to search
    #[arg(default_value = "/")]
    path: String,
    /// Search only files that match GLOB, or with `!GLOB` only files that do not (repeatable)
    #[arg(short, long, value_name = "GLOB")]
    glob: Vec<String>,
    /// Search only files changed since TIME: a date, a time, or an age such as `7d`
    #[arg(long, value_name = "TIME", value_parser = time)]
    since: Option<Timestamp>,
    /// Search only files changed before TIME
    #[arg(long, value_name = "TIME", value_parser = time)]
    before: Option<Timestamp>,
    /// Print at most N files
    #[arg(short = 'n', long, value_name = "N", default_value = "10", value_parser = at_least_one)]
    limit: usize,
    /// Skip the N best files
    #[arg(long, value_name = "N", default_value = "0")]
    offset: usize,
    /// Print at most N matching lines per file
    #[arg(long, value_name = "N", default_value = "3")]
    snippets: usize,
    /// Include hidden files and directories
    #[arg(long)]
    hidden: bool,
    /// Find words only as they are spelled, even if no file contains them
    #[arg(long)]
    exact: bool,
    /// Include files that `.gitignore` and `.ignore` exclude
    #[arg(long)]
    ignored: bool,
    #[command(flatten)]
    when: When,
}

impl Search {
    pub(crate) async fn run(self, context: &mut Context) -> Result<Outcome, Failure> {
        let path = VfsPath::parse(&self.path)?;
        let mut options = SearchOptions::new(&self.query)
            .with_limit(self.limit)
            .with_offset(self.offset)
            .with_snippets_max(self.snippets)
            .with_hidden(self.hidden)
            .with_ignored(self.ignored)
            .with_on_failure(OnFailure::Partial);
        if self.exact {
            options.spelling = Spelling::Exact;
        }
        options.include = self.glob;
        (options.modified_since, options.modified_before) = (self.since, self.before);
        let tree = context.tree_at(&self.when).await?;
        let result = tree.search(&path, &options).await?;
        print_hits(context, &result)?;
        tell_near(context, &result);
        match result.truncated.as_ref().map(|truncation| truncation.cursor.as_str()) {
            Some("") => context.out.notice(format_args!("there are more files; use more precise words")),
            Some(offset) => context.out.notice(format_args!("there are more files; raise `--limit`, or continue with `--offset {offset}`")),
            None => {}
        }
        // Everything was searched by words, and something was found.
        if result.failures_count > 0 && result.failures_of_meaning == result.failures_count && !result.hits.is_empty() {
            tell_unmeant(context, &result);
            return Ok(Outcome::Done);
        }
        Ok(match tell_unread(context, &result.failures, result.failures_count) {
            Some(kind) => Outcome::Failed(kind),
            None => Outcome::found(!result.hits.is_empty()),
        })
    }
}

/// Says why something was found by words alone.
fn tell_unmeant(context: &mut Context, result: &SearchResult) {
    for failure in &result.failures {
        context.out.notice(format_args!("`{}`: searched by words alone: {}", failure.path, failure.error.message));
    }
    let unnamed = result.failures_count - result.failures.len();
    if unnamed > 0 {
        context.out.notice(format_args!("{unnamed} more were searched by words alone"));
    }
}

/// Says which words were found in place of those that no file contains, and what was searched if nothing was found.
fn tell_near(context: &mut Context, result: &SearchResult) {
    for near in &result.near {
        match near.found.is_empty() {
            true if result.hits.is_empty() => {}
            true => context.out.notice(format_args!("no file contains `{}`", near.spelled)),
            false => context.out.notice(format_args!("no file contains `{}`; found instead: {}", near.spelled, near.found.join(", "))),
        }
    }
    if result.is_near_omitted {
        let advice = "name a directory to find words that are spelled nearly like those of the query";
        context.out.notice(format_args!("too much text to look for other spellings; {advice}"));
    }
    if result.hits.is_empty() && result.truncated.is_none() {
        let (files, alike) = (result.corpus.files, if result.near.is_empty() { "" } else { ", nor one that is spelled like it," });
        context
            .out
            .notice(format_args!("nothing found: no word of the query{alike} in {files} {}", if files == 1 { "file" } else { "files" }));
    }
}

fn print_hits(context: &mut Context, result: &SearchResult) -> Result<(), Failure> {
    let out = &mut context.out;
    match out.format() {
        Format::Json => out.json(result)?,
        Format::JsonLines => out.json_list(&result.hits)?,
        Format::Text => result.hits.iter().try_for_each(|hit| print_hit(out, hit))?,
    }
    Ok(())
}

/// Prints a file with its matching lines, the words coloured.
fn print_hit(out: &mut Output, hit: &SearchHit) -> Result<(), Failure> {
    let path = out.paint(Style::Path, &hit.path).to_string();
    out.line(path)?;
    for snippet in &hit.snippets {
        let number = out.paint(Style::Line, snippet.line).to_string();
        out.text(format_args!("  {number}: "))?;
        let text = snippet.text.as_bytes();
        let mut at = 0;
        for range in &snippet.ranges {
            let start = range.start.clamp(at, text.len());
            let end = range.end.clamp(start, text.len());
            out.content(&text[at..start])?;
            out.painted_content(Style::Match, &text[start..end])?;
            at = end;
        }
        out.content(&text[at..])?;
        out.content(b"\n")?;
    }
    Ok(())
}
