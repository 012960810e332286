//! What each file of the layout holds.

use super::{AGENTS, ARCHIVES, CHECKPOINT, MESSAGES, ORCHESTRATION, RESULTS, SESSION, SKILL_LOGS, SessionFiles, TRACE, id_of};
use crate::compact::archive_number;
use crate::memo::{MemoScope, tool_call_of};
use treehold_core::path::VfsPathBuf;

/// The content of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Place<'a> {
    Session,
    Messages,
    Archive(u64),
    /// A memory document or tool result.
    Memo,
    Trace,
    Orchestration,
    Checkpoint,
    Mailbox(String),
    MailboxState(String),
    History(String),
    SkillLog(&'a str),
    /// A file that is not part of the layout.
    Other,
}

/// Returns what the file with a path holds. A file is part of the layout only under the name that an export gives it.
pub(super) fn place_of(path: &str) -> Place<'_> {
    match path {
        SESSION => return Place::Session,
        MESSAGES => return Place::Messages,
        TRACE => return Place::Trace,
        ORCHESTRATION => return Place::Orchestration,
        CHECKPOINT => return Place::Checkpoint,
        _ => {}
    }
    if let Some(number) = archive_of(path) {
        return Place::Archive(number);
    }
    if MemoScope::Session.documents().contains(&path) || path.strip_prefix(RESULTS).and_then(tool_call_of).is_some() {
        return Place::Memo;
    }
    match path.strip_prefix(SKILL_LOGS) {
        Some(name) if !name.contains('/') => Place::SkillLog(name),
        _ => agent_file(path).unwrap_or(Place::Other),
    }
}

/// Returns the number of the archive in a file, of whatever size it is.
fn archive_of(path: &str) -> Option<u64> {
    let id = path.strip_prefix(ARCHIVES)?.strip_suffix(".jsonl")?;
    let is_long = id.len() > 4 && id.bytes().all(|byte| byte.is_ascii_digit()) && !id.starts_with('0');
    archive_number(id).or(is_long.then_some(u64::MAX))
}

fn agent_file(path: &str) -> Option<Place<'static>> {
    let (name, file) = path.strip_prefix(AGENTS)?.split_once('/')?;
    let agent = || id_of("agent", name);
    match file {
        "mailbox.jsonl" => agent().map(Place::Mailbox),
        "mailbox-state.json" => agent().map(Place::MailboxState),
        "history.json" => agent().map(Place::History),
        _ => None,
    }
}

/// Returns whether a path is that of a file.
pub(super) fn is_path(path: &str) -> bool {
    !path.is_empty() && VfsPathBuf::parse(format!("/{path}")).is_ok_and(|parsed| parsed.as_str()[1..] == *path)
}

/// Returns why a file cannot be kept beside the others and those that a session may get later; `None` if it can.
pub(super) fn conflict_of(path: &str, files: &SessionFiles) -> Option<String> {
    if is_directory(path) {
        return Some(format!("`{path}` is a directory of the layout and cannot be a file; rename it"));
    }
    let is_file = |above: &&str| files.contains_key(*above) || is_file_of_layout(above);
    let above = path.match_indices('/').map(|(end, _)| &path[..end]).find(is_file)?;
    Some(format!("`{path}` is beneath `{above}`, which is a file; rename one of them"))
}

/// Returns whether the layout has a directory with a path.
fn is_directory(path: &str) -> bool {
    let is_named = [ARCHIVES, RESULTS, AGENTS, SKILL_LOGS].iter().any(|directory| directory.trim_end_matches('/') == path);
    let is_agent = || path.strip_prefix(AGENTS).is_some_and(|name| !name.contains('/') && id_of("agent", name).is_some());
    is_named || matches!(path, "trace" | "orchestration") || is_agent()
}

fn is_file_of_layout(path: &str) -> bool {
    match place_of(path) {
        Place::Other => false,
        // Hosts may keep other files in directories here.
        Place::SkillLog(name) => name.ends_with(".jsonl"),
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_part_of_the_layout_only_under_their_exported_names() {
        for (path, place) in [
            ("messages.compactions/0001.jsonl", Place::Archive(1)),
            ("messages.compactions/18446744073709551615.jsonl", Place::Archive(u64::MAX)),
            ("messages.compactions/99999999999999999999.jsonl", Place::Archive(u64::MAX)),
            ("tool-results/a%2Fb.txt", Place::Memo),
            ("orchestration/subagents/a%2Fb/history.json", Place::History("a/b".to_owned())),
            ("subagent-logs/x", Place::SkillLog("x")),
        ] {
            assert_eq!(place_of(path), place, "{path}");
        }
        for path in [
            "messages.compactions/1.jsonl",
            "messages.compactions/00001.jsonl",
            "messages.compactions/0000.jsonl",
            "messages.compactions/99999999999999999999",
            "tool-results/call%41.txt",
            "tool-results/a%2fb.txt",
            "tool-results/sub/x.txt",
            "tool-results/.txt",
            "orchestration/subagents/a%41/history.json",
            "orchestration/subagents/a%0A/history.json",
            "orchestration/subagents/_treehold/history.json",
            "orchestration/subagents/a/b/history.json",
            "subagent-logs/x/y",
        ] {
            assert_eq!(place_of(path), Place::Other, "{path}");
        }
    }

    #[test]
    fn files_beneath_files_are_refused() {
        let files = SessionFiles::from(["x", "tool-results/c.txt"].map(|path| (path.to_owned(), "".into())));
        for bad in ["../x", "/x", "a//b", "", "a/", "."] {
            assert!(!is_path(bad), "{bad}");
        }
        for bad in [
            "x/y",
            "x/y/z",
            "trace",
            "orchestration",
            "orchestration/subagents/a",
            "tool-results",
            "session.jsonl/x",
            "messages.compactions/0009.jsonl/x",
            "tool-results/later.txt/x",
            "NOTES.md/x",
            "orchestration/subagents/a/history.json/x",
            "subagent-logs/skill-a-1.jsonl/x",
        ] {
            assert!(conflict_of(bad, &files).is_some(), "{bad}");
        }
        for good in ["x", "xy/z", "trace/events.jsonl", "trace/y", "tool-results/sub/x.txt", "subagent-logs/a/b", "orchestration/a/b"] {
            assert_eq!(conflict_of(good, &files), None, "{good}");
        }
    }
}
