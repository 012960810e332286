//! `apply_patch`: changes to several files by one patch, all or none.
//!
//! Every section is worked out on what is read before anything is written; then one batch applies the results, each on the
//! condition that its file is still as it was read. So a patch that does not fit, and one that meets another writer, change
//! nothing. Where the tree cannot take the batch as a whole (several mounts, the host's disk), its changes are applied in
//! order after all of that has been verified, and a failure then says which files have changed.

use super::patch::{self, Section};
use super::render;
use super::{Hints, Tool, ToolOutput};
use crate::backend::Backend;
use crate::error::{Error, ErrorKind, Result};
use crate::file;
use crate::ops::{ApplyOptions, Change, EntryKind, ReadOptions, Version, WriteMode};
use crate::path::{VfsPath, VfsPathBuf};
use bytes::Bytes;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::collections::BTreeMap;

/// How often a patch that met another writer is worked out anew.
const ATTEMPTS_MAX: usize = 4;

/// The arguments of `apply_patch`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct ApplyPatch {
    /// The patch, from `*** Begin Patch` to `*** End Patch`.
    pub patch: String,
    /// The directory that relative paths of the patch start from, absolute.
    #[serde(default = "VfsPathBuf::root")]
    #[schemars(with = "String")]
    pub base: VfsPathBuf,
}

impl ApplyPatch {
    /// Applies a patch whose relative paths start from the root.
    pub fn new(patch: impl Into<String>) -> Self {
        Self { patch: patch.into(), base: VfsPathBuf::root() }
    }
}

impl Tool for ApplyPatch {
    const NAME: &'static str = "apply_patch";
    const TITLE: &'static str = "Apply patch";
    const DESCRIPTION: &'static str = "Changes one or more files by a patch, all or none.\n\n\
        *** Begin Patch\n\
        *** Add File: /docs/new.md\n\
        +every line of a new file\n\
        *** Update File: /src/app.py\n\
        *** Move to: /src/main.py\n\
        @@ def greet():\n \
        line that stays\n\
        -line that goes\n\
        +line that comes\n\
        *** Delete File: /old.txt\n\
        *** End Patch\n\n\
        - Give about 3 unchanged lines around each change; `@@ line` narrows the place to what follows that line.\n\
        - `*** Move to:` is optional; `*** End of File` after a chunk ties it to the end.";
    const HINTS: Hints = Hints::Writes { idempotent: false };
    const PATHS: &'static [&'static str] = &["base"];
    const ALIASES: &'static [(&'static str, &'static str)] = &[("input", "patch"), ("patchText", "patch"), ("patch_text", "patch")];

    async fn run(&self, backend: &dyn Backend) -> Result<ToolOutput> {
        let sections = patch::parse(&self.patch)?;
        let mut attempt = 1;
        loop {
            let mut plan = Plan::new(backend);
            for section in &sections {
                plan.add(&self.base, section).await?;
            }
            let batch = plan.changes();
            // A batch over several mounts is allowed: it was verified, and what a late failure leaves is told.
            match backend.apply(&batch, &ApplyOptions::new().with_allow_partial(true)).await {
                Ok(_) => return Ok(plan.summary.output()),
                Err(error) if attempt < ATTEMPTS_MAX && lost_race(&error) => attempt += 1,
                Err(error) => return Err(with_what_changed(error, &batch)),
            }
        }
    }
}

/// Tells whether a batch met another writer before it changed anything: then the patch is worked out on what is there now.
fn lost_race(error: &Error) -> bool {
    error.applied() == 0 && matches!(error.kind(), ErrorKind::Conflict | ErrorKind::AlreadyExists | ErrorKind::NotFound)
}

fn with_what_changed(error: Error, batch: &[Change]) -> Error {
    if batch.len() < 2 {
        return error;
    }
    let applied = error.applied().min(batch.len());
    let message = match applied {
        0 => format!("{}; nothing was changed", error.message()),
        applied => {
            let done: Vec<String> = batch[..applied].iter().map(|change| format!("`{}`", change.path())).collect();
            let rest: Vec<String> = batch[applied..].iter().map(|change| format!("`{}`", change.path())).collect();
            format!("{}; already changed: {}; not changed: {}", error.message(), done.join(", "), rest.join(", "))
        }
    };
    error.with_message(message)
}

/// What the files of a patch become, worked out section by section as if each had been applied.
struct Plan<'a> {
    backend: &'a dyn Backend,
    files: BTreeMap<VfsPathBuf, Planned>,
    summary: Summary,
}

/// One file: as it was read, and as it shall be.
struct Planned {
    before: Before,
    after: Content,
}

#[derive(Clone, Copy)]
enum Before {
    Absent,
    /// Links of the host have no version.
    There(Option<Version>),
}

#[derive(Clone)]
enum Content {
    /// As it was: known to exist, not read.
    Kept,
    Absent,
    Present(Bytes),
}

impl<'a> Plan<'a> {
    fn new(backend: &'a dyn Backend) -> Self {
        Self { backend, files: BTreeMap::new(), summary: Summary::default() }
    }

    async fn add(&mut self, base: &VfsPath, section: &Section) -> Result<()> {
        match section {
            Section::Add { path, content } => {
                self.put(resolved(base, path)?, Bytes::from(content.clone())).await?;
                note(&mut self.summary.added, path);
            }
            Section::Delete { path } => {
                self.remove(resolved(base, path)?).await?;
                note(&mut self.summary.deleted, path);
            }
            Section::Update { path, target, chunks } => {
                let source = resolved(base, path)?;
                let content = self.content(&source).await?;
                let updated = patch::update(path, &content, chunks).map_err(|error| error.at(&source))?;
                let place = target.as_deref().map(|target| resolved(base, target)).transpose()?;
                match place.filter(|place| *place != source) {
                    Some(place) => {
                        self.put(place, updated.into()).await?;
                        self.remove(source).await?;
                    }
                    None => self.put(source, updated.into()).await?,
                }
                note(&mut self.summary.modified, target.as_ref().unwrap_or(path));
            }
        }
        Ok(())
    }

    async fn put(&mut self, path: VfsPathBuf, content: Bytes) -> Result<()> {
        if !self.files.contains_key(&path) {
            // No content is needed, only whether a file is there and its version.
            let before = match self.backend.read(&path, &ReadOptions::bytes(0, 0)).await {
                Ok(read) => Before::There(Some(read.version)),
                Err(error) if error.kind() == ErrorKind::NotFound => Before::Absent,
                Err(error) => return Err(error),
            };
            self.files.insert(path.clone(), Planned { before, after: Content::Kept });
        }
        self.set(&path, Content::Present(content));
        Ok(())
    }

    async fn remove(&mut self, path: VfsPathBuf) -> Result<()> {
        if !self.files.contains_key(&path) {
            let entry = self.backend.stat(&path).await?;
            if entry.kind == EntryKind::Directory {
                let message = format!("`{path}` is a directory and a patch deletes files only; use the tool delete");
                return Err(Error::is_directory(&path).with_message(message));
            }
            self.files.insert(path.clone(), Planned { before: Before::There(entry.version), after: Content::Kept });
        }
        if matches!(self.files.get(&path), Some(Planned { after: Content::Absent, .. })) {
            return Err(Error::not_found(&path));
        }
        self.set(&path, Content::Absent);
        Ok(())
    }

    async fn content(&mut self, path: &VfsPathBuf) -> Result<Bytes> {
        match self.files.get(path).map(|planned| planned.after.clone()) {
            Some(Content::Present(content)) => return Ok(content),
            Some(Content::Absent) => return Err(Error::not_found(path)),
            Some(Content::Kept) | None => {}
        }
        let read = self.backend.read(path, &ReadOptions::new()).await?;
        if file::is_binary(&read.content) {
            let message = format!("`{path}` is binary ({} bytes); a patch updates text only", render::thousands(read.size_bytes));
            return Err(Error::invalid_argument(message).at(path));
        }
        self.files
            .insert(path.clone(), Planned { before: Before::There(Some(read.version)), after: Content::Present(read.content.clone()) });
        Ok(read.content)
    }

    fn set(&mut self, path: &VfsPath, content: Content) {
        if let Some(planned) = self.files.get_mut(path) {
            planned.after = content;
        }
    }

    /// Returns the batch: writes before deletes, so that a move that stops half-way leaves both files; but a file that makes way
    /// for a directory goes first.
    fn changes(&self) -> Vec<Change> {
        let mut first = Vec::new();
        let mut writes = Vec::new();
        let mut last = Vec::new();
        for (path, planned) in &self.files {
            let path = path.clone();
            match (&planned.after, planned.before) {
                (Content::Present(content), before) => {
                    let mode = match before {
                        Before::Absent => WriteMode::CreateNew,
                        Before::There(version) => version.map_or(WriteMode::Overwrite, WriteMode::IfVersion),
                    };
                    writes.push(Change::Write { path, content: content.clone(), mode });
                }
                (Content::Absent, Before::There(expect)) => {
                    let order = if self.makes_way(&path) { &mut first } else { &mut last };
                    order.push(Change::Delete { path, recursive: false, expect });
                }
                (Content::Absent, Before::Absent) | (Content::Kept, _) => {}
            }
        }
        first.append(&mut writes);
        first.append(&mut last);
        first
    }

    /// Tells whether a file is written beneath a path. What lies beneath it follows it in the order of paths.
    fn makes_way(&self, path: &VfsPath) -> bool {
        let beneath = self.files.range::<VfsPath, _>((std::ops::Bound::Excluded(path), std::ops::Bound::Unbounded));
        beneath.take_while(|(other, _)| other.starts_with(path)).any(|(_, planned)| matches!(planned.after, Content::Present(_)))
    }
}

/// What was done, in the words of the patch.
#[derive(Default)]
struct Summary {
    added: Vec<String>,
    modified: Vec<String>,
    deleted: Vec<String>,
}

impl Summary {
    fn output(&self) -> ToolOutput {
        let mut text = "Success. Updated the following files:".to_owned();
        for (mark, paths) in [("A", &self.added), ("M", &self.modified), ("D", &self.deleted)] {
            for path in paths {
                text.push_str(&format!("\n{mark} {path}"));
            }
        }
        ToolOutput::new(text).with_data(json!({"added": self.added, "modified": self.modified, "deleted": self.deleted}))
    }
}

fn note(paths: &mut Vec<String>, path: &str) {
    if !paths.iter().any(|known| known == path) {
        paths.push(path.to_owned());
    }
}

/// Makes a path of a patch absolute.
fn resolved(base: &VfsPath, path: &str) -> Result<VfsPathBuf> {
    let whole = if path.starts_with('/') { path.to_owned() } else { format!("{base}/{path}") };
    match VfsPathBuf::parse(&whole) {
        Ok(resolved) if resolved.is_root() => {
            Err(Error::new(ErrorKind::InvalidPath, format!("the patch names `{path}`, which is no file")))
        }
        Ok(resolved) => Ok(resolved),
        Err(invalid) => Err(Error::new(ErrorKind::InvalidPath, format!("the patch names `{path}`: {invalid}"))),
    }
}
