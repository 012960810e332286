//! Edits of a text file: by exact text if it occurs, otherwise by lines that differ only in indentation and trailing space.

use super::arguments::Arguments;
use super::paths::Allowed;
use super::read::{content, decoded};
use super::{Answer, Refused, diff, write};
use serde_json::Value;
use treehold_core::backoff::LostRaces;
use treehold_core::error::ErrorKind;
use treehold_core::ops::{Change, Edit, ReadOptions, Version, WriteMode};
use treehold_core::path::VfsPath;
use treehold_core::text::run::find_run;
use treehold_core::text::{self, EDIT_WORK_BYTES_MAX};
use treehold_core::work;
use treehold_tree::backend::{Backend, BackendExt};

pub(super) async fn file(tree: &dyn Backend, allowed: &Allowed, arguments: &Arguments) -> Answer {
    let path = allowed.path(tree, arguments.text("path")).await?;
    let mut races = LostRaces::new();
    loop {
        // Read the version first, so that the write conflicts with any writer between the two reads.
        let version = version(tree, &path).await;
        let before = content(tree, &path, "open").await?;
        let edits = arguments.list("edits").to_vec();
        let (cost_bytes, name) = ((before.len() as u64 + 1).saturating_mul(edits.len() as u64 + 1), path.clone());
        let work = work::run(cost_bytes, move |_| {
            let after = edited(&before, &edits)?;
            let folded = |content: &[u8]| decoded(&text::folded(content));
            let shown = fenced(&diff::unified(name.as_str(), &folded(&before), &folded(&after)));
            Ok((after, shown))
        });
        let (after, shown) = work.await.unwrap_or_else(|error| Err(Refused(error.message().to_owned())))?;
        if arguments.flag("dryRun") {
            return Ok(vec![super::text(shown)]);
        }
        let mode = version.map_or(WriteMode::Overwrite, WriteMode::IfVersion);
        match tree.apply_one(Change::Write { path: path.clone(), content: after.into(), mode }).await {
            Ok(_) => return Ok(vec![super::text(shown)]),
            // There was another writer between the read and the write.
            Err(error) => {
                if error.kind() != ErrorKind::Conflict || !races.lost().await {
                    return Err(write::refusal(&error, &path));
                }
            }
        }
    }
}

/// Returns the version that the write is conditional on.
async fn version(tree: &dyn Backend, path: &VfsPath) -> Option<Version> {
    tree.read(path, &ReadOptions::bytes(0, 0)).await.ok().map(|read| read.version)
}

/// Applies the edits in order. The reference server rewrites the file with `\n`; this keeps line endings, as [`text::edit`] does.
fn edited(before: &[u8], edits: &[Value]) -> Result<Vec<u8>, Refused> {
    let mut content = before.to_vec();
    for edit in edits {
        work::advance(content.len());
        if edits.len() > 1 && (content.len() as u64).saturating_mul(edits.len() as u64) > EDIT_WORK_BYTES_MAX {
            return Err(Refused(format!("{} edits of {} bytes are too much work; send fewer at once", edits.len(), content.len())));
        }
        let part = |name: &str| edit[name].as_str().unwrap_or_default();
        let (old, new) = (part("oldText"), part("newText"));
        let exact = match old {
            "" => Some(text::splice(&content, 0..0, new.as_bytes())),
            old => text::replace_first(&content, &Edit::new(old, new)),
        };
        content = match exact {
            Some(replaced) => replaced,
            None => by_lines(&content, &old.replace("\r\n", "\n"), &new.replace("\r\n", "\n"))
                .ok_or_else(|| Refused(format!("Could not find exact match for edit:\n{old}")))?,
        };
    }
    Ok(content)
}

/// Replaces the first run of lines that equals `old` except for surrounding whitespace. The first line of the replacement gets the
/// indentation of the first replaced line; each other line keeps its indentation relative to the line that it replaces.
fn by_lines(content: &[u8], old: &str, new: &str) -> Option<Vec<u8>> {
    let lines = content.split(|byte| *byte == b'\n').inspect(|line| work::advance(line.len() + 1));
    let decoded: Vec<_> = lines.map(String::from_utf8_lossy).collect();
    let (lines, wanted): (Vec<&str>, Vec<&str>) = (decoded.iter().map(AsRef::as_ref).collect(), old.split('\n').collect());
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
    let placed = placed.collect::<Vec<_>>().join("\n");
    let mut raw = content.split_inclusive(|byte| *byte == b'\n');
    let start: usize = raw.by_ref().take(at).map(<[u8]>::len).sum();
    let length: usize = raw.by_ref().take(wanted.len()).map(<[u8]>::len).sum();
    // Keep the terminator of the last line.
    let end = start + text::trim_terminator(&content[start..start + length]).len();
    Some(text::splice(content, start..end, placed.as_bytes()))
}

fn indent_of(line: &str) -> &str {
    &line[..line.len() - line.trim_start().len()]
}

/// Encloses a diff in a fence longer than any run of backticks within it.
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
    fn edit_matches_exact_text_then_lines() {
        let edit = |content: &str, old: &str, new: &str| {
            let edited = edited(content.as_bytes(), &[json!({"oldText": old, "newText": new})]);
            edited.map(|content| String::from_utf8(content).expect("text stays text"))
        };
        assert_eq!(edit("a b a", "a", "$&").expect("there"), "$& b a");
        assert_eq!(edit("  one  \n\ttwo\n", "one\ntwo", "1\n2").expect("the lines match"), "  1\n2\n");
        assert_eq!(edit("  f:\n    x\n", "f:\n  x", "g:\n    y").expect("the lines match"), "  g:\n    y\n");
        assert_eq!(edit("a\r\n  b\r\nc\n", "a\nb\nc", "x\ny\nz").expect("the lines match"), "x\r\ny\r\nz\n");
        assert_eq!(edit("x\r\nfoo\r\n", "\nfoo", "bar").expect("there"), "xbar\r\n");
        assert_eq!(edit("a", "b", "c"), Err(Refused("Could not find exact match for edit:\nb".to_owned())));
        assert_eq!(fenced("````\n"), "`````diff\n````\n`````\n\n");
    }
}
