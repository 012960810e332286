//! Edits of a text file: exact where the text is there, else by lines whose indentation and trailing space do not matter.

use super::arguments::Arguments;
use super::paths::Allowed;
use super::read::{content, decoded};
use super::{Answer, Refused, diff, text, write};
use crate::backend::{Backend, BackendExt};
use crate::error::ErrorKind;
use crate::ops::{Change, ReadOptions, Version, WriteMode};
use crate::path::VfsPath;
use crate::text::EDIT_WORK_BYTES_MAX;
use crate::text::run::find_run;
use crate::work::{self, Stop};
use serde_json::Value;

/// How often an edit is done again on what another writer left.
const ATTEMPTS_MAX: u32 = 100;

pub(super) async fn file(tree: &dyn Backend, allowed: &Allowed, arguments: &Arguments) -> Answer {
    let path = allowed.path(tree, arguments.text("path")).await?;
    let mut attempts = 0;
    loop {
        // The version first: a writer between the two reads is met by the write, and not overwritten.
        let version = version(tree, &path).await;
        let before = decoded(&content(tree, &path, "open").await?).replace("\r\n", "\n");
        let edits = arguments.list("edits").to_vec();
        let (cost_bytes, name) = ((before.len() as u64 + 1).saturating_mul(edits.len() as u64 + 1), path.clone());
        let work = work::run(cost_bytes, move |stop| {
            let after = edited(&before, &edits, stop)?;
            let shown = fenced(&diff::unified(name.as_str(), &before, &after, stop));
            Ok((after, shown))
        });
        let (after, shown) = work.await.unwrap_or_else(|error| Err(Refused(error.message().to_owned())))?;
        if arguments.flag("dryRun") {
            return Ok(vec![text(shown)]);
        }
        let mode = version.map_or(WriteMode::Overwrite, WriteMode::IfVersion);
        match tree.apply_one(Change::Write { path: path.clone(), content: after.into(), mode }).await {
            Ok(_) => return Ok(vec![text(shown)]),
            // Another writer was between the read and the write.
            Err(error) if error.kind() == ErrorKind::Conflict && attempts < ATTEMPTS_MAX => attempts += 1,
            Err(error) => return Err(write::refusal(&error, &path)),
        }
    }
}

/// Returns the version that a write has to meet.
async fn version(tree: &dyn Backend, path: &VfsPath) -> Option<Version> {
    tree.read(path, &ReadOptions::bytes(0, 0)).await.ok().map(|read| read.version)
}

fn edited(before: &str, edits: &[Value], stop: &Stop) -> Result<String, Refused> {
    let mut content = before.to_owned();
    for edit in edits {
        stop.check().map_err(|error| Refused(error.message().to_owned()))?;
        if edits.len() > 1 && (content.len() as u64).saturating_mul(edits.len() as u64) > EDIT_WORK_BYTES_MAX {
            return Err(Refused(format!("{} edits of {} bytes are too much work; send fewer at once", edits.len(), content.len())));
        }
        let part = |name: &str| edit[name].as_str().unwrap_or_default().replace("\r\n", "\n");
        let (old, new) = (part("oldText"), part("newText"));
        content = if content.contains(&old) {
            content.replacen(&old, &new, 1)
        } else {
            by_lines(&content, &old, &new)
                .ok_or_else(|| Refused(format!("Could not find exact match for edit:\n{}", edit["oldText"].as_str().unwrap_or_default())))?
        };
    }
    Ok(content)
}

/// Replaces the first lines that are those of `old` but for the space around them. What is put there keeps the indentation of the first line,
/// and of the others what they are indented more than the lines they replace.
fn by_lines(content: &str, old: &str, new: &str) -> Option<String> {
    let (lines, wanted): (Vec<&str>, Vec<&str>) = (content.split('\n').collect(), old.split('\n').collect());
    let trimmed: Vec<&str> = wanted.iter().map(|line| line.trim()).collect();
    let at = find_run(lines.iter().map(|line| line.trim()), &trimmed)?;
    let indent = indent_of(lines[at]);
    let placed = new.split('\n').enumerate().map(|(number, line)| {
        if number == 0 {
            return format!("{indent}{}", line.trim_start());
        }
        let before = wanted.get(number).map_or("", |wanted| indent_of(wanted));
        let own = indent_of(line);
        if before.is_empty() || own.is_empty() {
            return line.to_owned();
        }
        let deeper = own.chars().count().saturating_sub(before.chars().count());
        format!("{indent}{}{}", " ".repeat(deeper), line.trim_start())
    });
    let mut result: Vec<String> = lines[..at].iter().map(|line| (*line).to_owned()).collect();
    result.extend(placed);
    result.extend(lines[at + wanted.len()..].iter().map(|line| (*line).to_owned()));
    Some(result.join("\n"))
}

fn indent_of(line: &str) -> &str {
    &line[..line.len() - line.trim_start().len()]
}

/// Puts a difference between backticks, more than it has in a row.
fn fenced(difference: &str) -> String {
    let longest = difference.split(|letter| letter != '`').map(str::len).max().unwrap_or(0);
    let fence = "`".repeat((longest + 1).max(3));
    format!("{fence}diff\n{difference}{fence}\n\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn exact_text_first_and_lines_else() {
        let edit = |content: &str, old: &str, new: &str| edited(content, &[json!({"oldText": old, "newText": new})], &Stop::default());
        assert_eq!(edit("a b a", "a", "$&").expect("there"), "$& b a");
        assert_eq!(edit("  one  \n\ttwo\n", "one\ntwo", "1\n2").expect("by lines"), "  1\n2\n");
        assert_eq!(edit("  f:\n    x\n", "f:\n  x", "g:\n    y").expect("by lines"), "  g:\n    y\n");
        assert_eq!(edit("a", "b", "c"), Err(Refused("Could not find exact match for edit:\nb".to_owned())));
        assert_eq!(fenced("````\n"), "`````diff\n````\n`````\n\n");
    }
}
