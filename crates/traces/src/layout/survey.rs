//! The first reading of a trace's directory: what is there, and which messages can be taken.

use super::host::{HostDirectory, HostFile};
use super::read;
use super::{DAMAGES_MAX, Damage, ImportedTrace};
use crate::id::TraceId;
use crate::model::{GoalTree, Trace};
use crate::stored::{TracesOptions, check_goal_id, check_goal_kind, check_message};
use bytes::Bytes;
use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use treehold_core::error::{Error, ErrorKind, Result};
use treehold_core::path::VfsPath;

/// The files of the layout.
pub(super) const META: &str = "meta.json";
pub(super) const GOAL: &str = "goal.json";
pub(super) const EVENTS: &str = "events.jsonl";
pub(super) const MESSAGES: &str = "messages";

/// The largest `meta.json` and `goal.json`, in bytes.
const DESCRIPTION_BYTES_MAX: u64 = 16 << 20;

/// The largest file of a message that is read, in bytes.
pub(super) const MESSAGE_BYTES_MAX: u64 = 16 << 20;

/// The largest file that is kept, in bytes.
pub(super) const FILE_BYTES_MAX: u64 = 1 << 30;

/// The most entries of one directory.
pub(super) const ENTRIES_MAX: usize = 1_000_000;

/// The most sequences without a message of one trace, and the most event ids without an event.
pub(super) const GAPS_MAX: u64 = 100_000;

/// How deep directories that are not part of the layout may nest.
const DEPTH_MAX: usize = 16;

/// The longest path of a file beneath its trace, in bytes.
const PATH_BYTES_MAX: usize = 1_024;

impl ImportedTrace {
    pub(super) fn new(id: &TraceId) -> Self {
        Self { id: id.clone(), repeated: false, messages: 0, events: 0, other_files: 0, damages: Vec::new(), damages_count: 0 }
    }

    pub(super) fn damage(&mut self, path: impl Into<String>, line: Option<u64>, reason: impl Into<String>) {
        self.damages_count += 1;
        if self.damages.len() < DAMAGES_MAX {
            self.damages.push(Damage { path: path.into(), line, reason: reason.into() });
        }
    }
}

/// What a directory holds.
pub(super) struct Survey {
    pub(super) trace: Trace,
    pub(super) meta: Bytes,
    pub(super) goals: Option<GoalTree>,
    pub(super) goal: Option<Bytes>,
    /// The messages in the order of their sequences, which are unique.
    pub(super) messages: Vec<Found>,
    /// The greatest sequence of the trace: gaps up to it are filled.
    pub(super) last_sequence: u64,
    /// The hash of the events.
    pub(super) events: Option<u64>,
    /// The other files with their hashes, those that look like messages included.
    pub(super) others: Vec<(String, u64)>,
    pub(super) digest: String,
    pub(super) report: ImportedTrace,
}

/// A message that can be taken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Found {
    /// Its id, which its file is named after.
    pub(super) name: Box<str>,
    pub(super) sequence: u64,
    pub(super) hash: u64,
}

/// Returns a part of the hash of a content, which tells whether a file changed while it was imported.
pub(super) fn hash_of(content: &[u8]) -> u64 {
    short(&blake3::hash(content))
}

pub(super) fn short(hash: &blake3::Hash) -> u64 {
    let (start, _) = hash.as_bytes().split_first_chunk().expect("a hash has 32 bytes");
    u64::from_le_bytes(*start)
}

/// Returns the name of a message's file.
pub(super) fn file_name(message_id: &str) -> String {
    format!("{message_id}.json")
}

/// A reading in progress.
struct Surveyor<'a> {
    id: &'a TraceId,
    options: &'a TracesOptions,
    stop: &'a AtomicBool,
    digest: blake3::Hasher,
    report: ImportedTrace,
    others: Vec<(String, u64)>,
}

/// Reads the directory of a trace. Blocks. Stops early once `stop` is set.
///
/// # Errors
/// [`Corrupt`](ErrorKind::Corrupt) without a readable `meta.json`, [`TooLarge`](ErrorKind::TooLarge) over the limits, and those of the host.
pub(super) fn survey(directory: &HostDirectory, id: &TraceId, options: &TracesOptions, stop: &AtomicBool) -> Result<Survey> {
    let mut surveyor = Surveyor { id, options, stop, digest: blake3::Hasher::new(), report: ImportedTrace::new(id), others: Vec::new() };
    surveyor.run(directory)
}

impl Surveyor<'_> {
    fn run(&mut self, directory: &HostDirectory) -> Result<Survey> {
        let missing = || Error::new(ErrorKind::Corrupt, "it has no `meta.json`, which tells whose trace it is");
        let meta = directory.read(META, DESCRIPTION_BYTES_MAX)?.ok_or_else(missing)?;
        let (trace, left_out) = read::meta(self.id, &meta)?;
        left_out.into_iter().for_each(|reason| self.report.damage(META, None, reason));
        self.digest(META, &meta);
        let goal = directory.read(GOAL, DESCRIPTION_BYTES_MAX)?;
        let goals = goal.as_ref().and_then(|content| self.goals(content));
        let mut events = None;
        let mut messages = Vec::new();
        let names = directory.names(ENTRIES_MAX)?;
        for (name, reason) in names.refused {
            self.report.damage(name, None, reason);
        }
        for name in names.files {
            match name.as_str() {
                META | GOAL => {}
                EVENTS => events = self.stream(directory, EVENTS, EVENTS)?,
                _ => self.other(directory, &name, &name)?,
            }
        }
        for name in names.directories {
            let Some(inner) = directory.subdirectory(&name)? else { continue };
            match name.as_str() {
                MESSAGES => messages = self.messages(&inner)?,
                _ => self.others(&inner, &name, 1)?,
            }
        }
        let (messages, last_sequence) = self.ordered(messages, trace.last_sequence);
        self.report.other_files = self.others.len() as u64;
        Ok(Survey {
            trace,
            meta,
            goals,
            goal,
            messages,
            last_sequence,
            events,
            others: std::mem::take(&mut self.others),
            digest: self.digest.finalize().to_hex().to_string(),
            report: std::mem::replace(&mut self.report, ImportedTrace::new(self.id)),
        })
    }

    /// Reads the goals. What keeps them from being a tree is changed and reported.
    fn goals(&mut self, content: &Bytes) -> Option<GoalTree> {
        self.digest(GOAL, content);
        let (mut tree, left_out) = match read::goals(content) {
            Ok(taken) => taken,
            Err(error) => {
                self.report.damage(GOAL, None, error.message());
                return None;
            }
        };
        left_out.into_iter().for_each(|reason| self.report.damage(GOAL, None, reason));
        let mut ids = HashSet::new();
        let report = &mut self.report;
        tree.goals.retain(|goal| {
            let shown = goal.id.escape_debug();
            let checked = check_goal_id(&goal.id).and_then(|()| goal.kind.as_deref().map_or(Ok(()), check_goal_kind));
            match checked {
                Err(error) => report.damage(GOAL, None, format!("the goal `{shown}` cannot be taken: {}", error.message())),
                Ok(()) if !ids.insert(goal.id.clone()) => report.damage(GOAL, None, format!("another goal has the id `{shown}`")),
                Ok(()) => return true,
            }
            false
        });
        for goal in &mut tree.goals {
            if let Some(parent) = goal.parent_id.take_if(|parent| !ids.contains(parent.as_str())) {
                report.damage(
                    GOAL,
                    None,
                    format!("the parent `{}` of the goal `{}` is missing", parent.escape_debug(), goal.id.escape_debug()),
                );
            }
        }
        for index in circles(&tree) {
            let goal = &mut tree.goals[index];
            goal.parent_id = None;
            report.damage(GOAL, None, format!("the goal `{}` is above itself", goal.id.escape_debug()));
        }
        Some(tree)
    }

    /// Reads the messages. Files that are none are added to the other ones.
    fn messages(&mut self, directory: &HostDirectory) -> Result<Vec<Found>> {
        let names = directory.names(ENTRIES_MAX)?;
        for (name, reason) in names.refused {
            self.report.damage(format!("{MESSAGES}/{name}"), None, reason);
        }
        let mut found = Vec::new();
        for name in names.files {
            let path = format!("{MESSAGES}/{name}");
            let Some(message_id) = name.strip_suffix(".json") else {
                self.other(directory, &name, &path)?;
                continue;
            };
            let is_long = directory.file(&name)?.is_some_and(|file| file.size_bytes > MESSAGE_BYTES_MAX);
            if is_long {
                self.report.damage(&path, None, format!("it has over {MESSAGE_BYTES_MAX} bytes, the most of a message"));
                self.other(directory, &name, &path)?;
                continue;
            }
            self.check_stop()?;
            let Some(content) = directory.read(&name, MESSAGE_BYTES_MAX)? else { continue };
            let hash = self.digest(&path, &content);
            let taken = read::message(self.id, message_id, &content).and_then(|(message, left_out)| {
                check_message(self.options, self.id, &message)?;
                Ok((message.sequence, left_out))
            });
            match taken {
                Ok((sequence, left_out)) => {
                    left_out.into_iter().for_each(|reason| self.report.damage(&path, None, reason));
                    found.push(Found { name: message_id.into(), sequence, hash });
                }
                Err(error) => {
                    self.report.damage(&path, None, error.message());
                    self.others.push((path, hash));
                }
            }
        }
        for name in names.directories {
            if let Some(inner) = directory.subdirectory(&name)? {
                self.others(&inner, &format!("{MESSAGES}/{name}"), 2)?;
            }
        }
        Ok(found)
    }

    /// Sorts the messages by sequence. Those whose sequence another one has, or is far beyond the one before, are left to the other files.
    fn ordered(&mut self, mut found: Vec<Found>, last_of_meta: u64) -> (Vec<Found>, u64) {
        let default_id = |found: &Found| format!("{}-{:04}", self.id, found.sequence);
        found.sort_by_cached_key(|found| (found.sequence, *found.name != *default_id(found), found.name.clone()));
        let (mut kept, mut last, mut gaps, mut others) = (Vec::with_capacity(found.len()), 0_u64, 0_u64, Vec::new());
        for message in found {
            let path = format!("{MESSAGES}/{}", file_name(&message.name));
            let missing = message.sequence.saturating_sub(last.saturating_add(1));
            let reason = if message.sequence == last {
                format!("another message has the sequence {last}")
            } else if gaps + missing > GAPS_MAX {
                format!("its sequence {} comes after over {GAPS_MAX} sequences without a message", message.sequence)
            } else {
                if missing > 0 {
                    let reason = format!("{missing} sequences from {} on have no message", last + 1);
                    self.report.damage(MESSAGES, None, reason);
                }
                (gaps, last) = (gaps + missing, message.sequence);
                kept.push(message);
                continue;
            };
            self.report.damage(&path, None, reason);
            others.push((path, message.hash));
        }
        self.others.extend(others);
        // A sequence is never used again, so a message that is added later must come after all that there ever were.
        let known = self.others.iter().filter_map(|(path, _)| self.sequence_in(path)).chain([last_of_meta]);
        let end = known.filter(|known| known.saturating_sub(last) <= GAPS_MAX - gaps).max().unwrap_or(0);
        if end > last {
            self.report.damage(MESSAGES, None, format!("{} sequences from {} on have no message", end - last, last + 1));
            last = end;
        }
        if last_of_meta > last {
            let reason = format!("the last sequence {last_of_meta} is far beyond the last message, which is {last}");
            self.report.damage(META, None, reason);
        }
        (kept, last)
    }

    /// Returns the sequence in the path of a file that is named as a message but could not be read as one.
    fn sequence_in(&self, path: &str) -> Option<u64> {
        let name = path.strip_prefix(MESSAGES)?.strip_prefix('/')?.strip_suffix(".json")?;
        let digits = name.strip_prefix(self.id.as_str())?.strip_prefix('-')?;
        digits.parse().ok().filter(|sequence| *sequence <= read::POSITION_MAX)
    }

    /// Adds the files beneath a directory that is not part of the layout.
    fn others(&mut self, directory: &HostDirectory, prefix: &str, depth: usize) -> Result<()> {
        if depth > DEPTH_MAX {
            self.report.damage(prefix, None, format!("directories nest deeper than {DEPTH_MAX} levels; its files are not kept"));
            return Ok(());
        }
        let names = directory.names(ENTRIES_MAX)?;
        for (name, reason) in names.refused {
            self.report.damage(format!("{prefix}/{name}"), None, reason);
        }
        for name in names.files {
            self.other(directory, &name, &format!("{prefix}/{name}"))?;
        }
        for name in names.directories {
            if let Some(inner) = directory.subdirectory(&name)? {
                self.others(&inner, &format!("{prefix}/{name}"), depth + 1)?;
            }
        }
        Ok(())
    }

    /// Adds a file that is not part of the layout.
    fn other(&mut self, directory: &HostDirectory, name: &str, path: &str) -> Result<()> {
        if path.len() > PATH_BYTES_MAX || VfsPath::parse(&format!("/{path}")).is_err() {
            self.report.damage(path.escape_debug().to_string(), None, "its path is too long; it is not kept");
            return Ok(());
        }
        if self.others.len() >= ENTRIES_MAX {
            return Err(Error::new(
                ErrorKind::TooLarge,
                format!("the trace has over {ENTRIES_MAX} files, the most that are read; split it"),
            ));
        }
        if let Some(hash) = self.stream(directory, name, path)? {
            self.others.push((path.to_owned(), hash));
        }
        Ok(())
    }

    /// Reads a file part by part and returns its hash; `None` if it is missing or too large.
    fn stream(&mut self, directory: &HostDirectory, name: &str, path: &str) -> Result<Option<u64>> {
        let Some(file) = directory.file(name)? else { return Ok(None) };
        if file.size_bytes > FILE_BYTES_MAX {
            self.report.damage(path, None, format!("it has over {FILE_BYTES_MAX} bytes, the most of one file; it is not kept"));
            return Ok(None);
        }
        let hash = self.hash(&file)?;
        self.add(path, &hash);
        Ok(Some(short(&hash)))
    }

    fn hash(&self, file: &HostFile) -> Result<blake3::Hash> {
        let mut hasher = blake3::Hasher::new();
        loop {
            self.check_stop()?;
            let part = file.part()?;
            if part.is_empty() {
                return Ok(hasher.finalize());
            }
            hasher.update(&part);
        }
    }

    fn digest(&mut self, path: &str, content: &[u8]) -> u64 {
        let hash = blake3::hash(content);
        self.add(path, &hash);
        short(&hash)
    }

    /// Adds a file to the digest of the trace.
    fn add(&mut self, path: &str, hash: &blake3::Hash) {
        self.digest.update(&(path.len() as u64).to_le_bytes());
        self.digest.update(path.as_bytes());
        self.digest.update(hash.as_bytes());
    }

    fn check_stop(&self) -> Result<()> {
        if self.stop.load(Ordering::Relaxed) {
            return Err(Error::new(ErrorKind::Internal, "the import was abandoned"));
        }
        Ok(())
    }
}

/// Returns goals without which no goal is above itself, by their positions.
fn circles(tree: &GoalTree) -> Vec<usize> {
    let positions: HashMap<&str, usize> = tree.goals.iter().enumerate().map(|(position, goal)| (goal.id.as_str(), position)).collect();
    // The walk from which a goal was reached, by the position at which that walk began.
    let mut reached: Vec<Option<usize>> = vec![None; tree.goals.len()];
    let mut cut = Vec::new();
    for start in 0..tree.goals.len() {
        let mut at = Some(start);
        while let Some(position) = at {
            match reached[position] {
                Some(walk) if walk == start => {
                    cut.push(position);
                    break;
                }
                Some(_) => break,
                None => reached[position] = Some(start),
            }
            at = tree.goals[position].parent_id.as_deref().and_then(|parent| positions.get(parent)).copied();
        }
    }
    cut
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_circle_of_goals_is_cut_once() {
        let goals = |pairs: &[(&str, Option<&str>)]| GoalTree {
            goals: pairs
                .iter()
                .map(|(id, parent)| crate::model::Goal { id: (*id).into(), parent_id: parent.map(Into::into), ..Default::default() })
                .collect(),
            ..GoalTree::default()
        };
        for (pairs, expected) in [
            (&[("1", None), ("2", Some("1")), ("3", Some("2"))][..], &[][..]),
            (&[("1", Some("1"))], &[0]),
            (&[("1", Some("2")), ("2", Some("3")), ("3", Some("2")), ("4", Some("1"))], &[1]),
            (&[("a", Some("b")), ("b", Some("a")), ("c", Some("d")), ("d", Some("c"))], &[0, 2]),
        ] {
            assert_eq!(circles(&goals(pairs)), expected, "{pairs:?}");
        }
    }
}
