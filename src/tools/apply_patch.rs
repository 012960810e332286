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
                Err(error) if error.kind() == ErrorKind::NotADirectory && self.is_cleared(&path) => Before::Absent,
                Err(error) => return Err(error),
            };
            self.files.insert(path.clone(), Planned { before, after: Content::Kept });
        }
        self.set(&path, Content::Present(content));
        Ok(())
    }

    /// Tells whether a file above a path is gone by then.
    fn is_cleared(&self, path: &VfsPath) -> bool {
        path.ancestors().any(|above| self.files.get(above).is_some_and(|planned| matches!(planned.after, Content::Absent)))
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
            let message = format!("`{path}` is binary ({}); a patch updates text only", render::size(read.size_bytes));
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

#[cfg(test)]
mod tests {
    use super::super::stage::{call, played, tree};
    use super::*;
    use crate::backend::{BackendExt, StateBackend};
    use crate::composite::{CompositeBackend, CompositeBuilder};
    use crate::layer::{Layered, ReadOnly};
    use crate::ops::{Capabilities, Changed, Entry, FileRead, GlobOptions, GlobResult, GrepOptions, GrepResult, Listing, LsOptions};
    use async_trait::async_trait;
    use std::fmt;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    fn patch(body: &str) -> serde_json::Value {
        json!({"patch": format!("*** Begin Patch\n{body}\n*** End Patch")})
    }

    /// Returns every file with its content.
    async fn files(backend: &dyn Backend) -> Vec<(String, String)> {
        let mut files = Vec::new();
        for entry in backend.tree("/", 9, 100).await.expect("a tree").entries {
            if entry.kind == EntryKind::File {
                let content = backend.read_text(entry.path.as_str()).await.expect("text");
                files.push((entry.path.into_string(), content));
            }
        }
        files
    }

    fn owned(files: &[(&str, &str)]) -> Vec<(String, String)> {
        files.iter().map(|(path, content)| (path.to_string(), content.to_string())).collect()
    }

    #[tokio::test]
    async fn answers() {
        let backend = tree(&[("/src/app.py", "def greet():\n    print('hi')\n"), ("/old.txt", "x\n"), ("/readme.md", "# A\n")]).await;
        backend.write("/image.png", &b"\0"[..]).await.expect("bytes");
        let calls = [
            patch(
                "*** Add File: docs/new.md\n+# New\n*** Update File: src/app.py\n*** Move to: src/main.py\n@@ def greet():\n-    print('hi')\n+    print('hello')\n\
                 *** Delete File: /old.txt\n*** Update File: readme.md\n-# A\n+# B",
            ),
            patch("*** Update File: src/app.py\n-a\n+b"),
            patch("*** Update File: readme.md\n-# A\n+# C"),
            patch("*** Update File: image.png\n-a\n+b"),
            patch("*** Delete File: src"),
            patch("*** Delete File: missing.md"),
            patch("*** Add File: src\n+x"),
            patch("*** Add File: ../x\n+x"),
            patch("*** Add File: /\n+x"),
            patch("*** Frobnicate File: x"),
        ];
        insta::assert_snapshot!(played(&backend, "apply_patch", &calls).await);
        let left = owned(&[
            ("/docs/new.md", "# New\n"),
            ("/image.png", "\0"),
            ("/readme.md", "# B\n"),
            ("/src/main.py", "def greet():\n    print('hello')\n"),
        ]);
        assert_eq!(files(&backend).await, left);
    }

    #[tokio::test]
    async fn scenarios() {
        let start = [("/a", "1\n2\n3\n"), ("/b", "x\n"), ("/d/e", "e\n")];
        for (what, body, expected) in [
            ("add replaces", "*** Add File: a\n+new", vec![("/a", "new\n"), ("/b", "x\n"), ("/d/e", "e\n")]),
            ("move replaces", "*** Update File: a\n*** Move to: b\n-2\n+two", vec![("/b", "1\ntwo\n3\n"), ("/d/e", "e\n")]),
            (
                "move onto itself",
                "*** Update File: a\n*** Move to: ./a\n-2\n+two",
                vec![("/a", "1\ntwo\n3\n"), ("/b", "x\n"), ("/d/e", "e\n")],
            ),
            (
                "later sections see earlier ones",
                "*** Update File: a\n-1\n+one\n*** Update File: a\n one\n-2\n*** Add File: c\n+c\n*** Update File: c\n-c\n+C\n*** Delete File: b\n*** Add File: b\n+y",
                vec![("/a", "one\n3\n"), ("/b", "y\n"), ("/c", "C\n"), ("/d/e", "e\n")],
            ),
            (
                "a moved file is patched under its new name",
                "*** Update File: a\n*** Move to: z/a\n-1\n+one\n*** Update File: z/a\n-3\n+three",
                vec![("/b", "x\n"), ("/d/e", "e\n"), ("/z/a", "one\n2\nthree\n")],
            ),
            (
                "a file makes way for a directory",
                "*** Delete File: a\n*** Add File: a/b\n+x",
                vec![("/a/b", "x\n"), ("/b", "x\n"), ("/d/e", "e\n")],
            ),
            (
                "added and deleted",
                "*** Add File: n\n+x\n*** Delete File: n\n*** Delete File: b",
                vec![("/a", "1\n2\n3\n"), ("/d/e", "e\n")],
            ),
        ] {
            let backend = tree(&start).await;
            let output = call(&backend, "apply_patch", patch(body)).await;
            assert!(!output.is_error, "{what}: {}", output.text);
            assert_eq!(files(&backend).await, owned(&expected), "{what}");
        }
    }

    #[tokio::test]
    async fn a_patch_that_fails_late_changes_nothing() {
        let start = [("/a", "1\n"), ("/b", "x\n")];
        for body in [
            "*** Add File: n\n+x\n*** Update File: missing\n-a\n+b",
            "*** Delete File: a\n*** Update File: b\n-y\n+z",
            "*** Delete File: a\n*** Delete File: a",
            "*** Delete File: a\n*** Update File: a\n-1\n+2",
            "*** Update File: a\n*** Move to: b/c\n-1\n+2",
        ] {
            let backend = tree(&start).await;
            assert!(call(&backend, "apply_patch", patch(body)).await.is_error, "{body}");
            assert_eq!(files(&backend).await, owned(&start), "{body}");
        }
    }

    #[tokio::test]
    async fn relative_paths_start_from_the_base() {
        let backend = tree(&[("/w/a", "1\n")]).await;
        let body = "*** Begin Patch\n*** Update File: a\n-1\n+2\n*** Add File: /top\n+x\n*** End Patch";
        let output = call(&backend, "apply_patch", json!({"patch": body, "base": "/w/"})).await;
        assert_eq!(output.text, "Success. Updated the following files:\nA /top\nM a");
        assert_eq!(files(&backend).await, owned(&[("/top", "x\n"), ("/w/a", "2\n")]));
    }

    /// A tree in which another writer is faster than each of the first batches.
    #[derive(Debug)]
    struct Contended {
        inner: Arc<dyn Backend>,
        other: Change,
        times: AtomicUsize,
    }

    impl Contended {
        fn new(inner: impl Backend + 'static, other: Change, times: usize) -> Self {
            Self { inner: Arc::new(inner), other, times: AtomicUsize::new(times) }
        }
    }

    fn append() -> Change {
        Change::Append { path: VfsPathBuf::parse("/a").expect("a legal path"), content: "other\n".into() }
    }

    impl fmt::Display for Contended {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(f, "Contended({})", self.inner)
        }
    }

    #[async_trait]
    impl Backend for Contended {
        fn capabilities(&self) -> Capabilities {
            self.inner.capabilities()
        }
        async fn stat(&self, path: &VfsPath) -> Result<Entry> {
            self.inner.stat(path).await
        }
        async fn read(&self, path: &VfsPath, options: &ReadOptions) -> Result<FileRead> {
            self.inner.read(path, options).await
        }
        async fn ls(&self, path: &VfsPath, options: &LsOptions) -> Result<Listing> {
            self.inner.ls(path, options).await
        }
        async fn glob(&self, path: &VfsPath, options: &GlobOptions) -> Result<GlobResult> {
            self.inner.glob(path, options).await
        }
        async fn grep(&self, path: &VfsPath, options: &GrepOptions) -> Result<GrepResult> {
            self.inner.grep(path, options).await
        }
        async fn apply(&self, changes: &[Change], options: &ApplyOptions) -> Result<Vec<Changed>> {
            if self.times.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)).is_ok() {
                self.inner.apply_one(self.other.clone()).await?;
            }
            self.inner.apply(changes, options).await
        }
    }

    #[tokio::test]
    async fn a_lost_race_is_worked_out_anew_and_nothing_of_either_writer_is_lost() {
        let backend = Contended::new(tree(&[("/a", "1\n")]).await, append(), 2);
        let output = call(&backend, "apply_patch", patch("*** Update File: a\n-1\n+one\n*** Add File: n\n+x")).await;
        assert!(!output.is_error, "{}", output.text);
        assert_eq!(files(&backend).await, owned(&[("/a", "one\nother\nother\n"), ("/n", "x\n")]));
    }

    #[tokio::test]
    async fn a_race_lost_again_and_again_is_a_conflict_and_changes_nothing() {
        let backend = Contended::new(tree(&[("/a", "1\n")]).await, append(), 100);
        let output = call(&backend, "apply_patch", patch("*** Add File: 0\n+x\n*** Update File: a\n-1\n+one")).await;
        assert_eq!(output.error.expect("a conflict").code, "conflict");
        assert!(output.text.ends_with("; nothing was changed"), "{}", output.text);
        assert_eq!(files(&backend).await.len(), 1);
    }

    #[tokio::test]
    async fn over_several_mounts_all_is_verified_first() {
        let backend = mounted(tree(&[("/a", "1\n")]).await, Arc::new(tree(&[("/m", "x\n")]).await));
        let output = call(&backend, "apply_patch", patch("*** Update File: a\n-1\n+2\n*** Update File: memories/m\n-x\n+y")).await;
        assert!(!output.is_error, "{}", output.text);
        let output = call(&backend, "apply_patch", patch("*** Update File: a\n-2\n+3\n*** Update File: memories/m\n-z\n+y")).await;
        assert!(output.is_error);
        assert_eq!(files(&backend).await, owned(&[("/a", "2\n"), ("/memories/m", "y\n")]));
    }

    #[tokio::test]
    async fn a_failure_between_mounts_says_what_has_changed() {
        let memories = Layered::new(ReadOnly::new(), tree(&[("/m", "x\n")]).await);
        let backend = mounted(tree(&[("/a", "1\n")]).await, Arc::new(memories));
        let output = call(&backend, "apply_patch", patch("*** Update File: memories/m\n-x\n+y\n*** Update File: a\n-1\n+2")).await;
        assert_eq!(
            output.text,
            "error [read_only]: `/memories/m` lies in a read-only tree; already changed: `/a`; not changed: `/memories/m`"
        );
        assert_eq!(output.error.expect("a failure").applied, Some(1));
    }

    fn mounted(state: StateBackend, memories: Arc<dyn Backend>) -> CompositeBackend {
        CompositeBackend::builder(Arc::new(state)).route("/memories", memories).and_then(CompositeBuilder::build).expect("two mounts")
    }

    #[cfg(all(feature = "filesystem", unix))]
    mod on_the_host {
        use super::*;
        use crate::backend::{FilesystemBackend, FilesystemOptions};

        fn directory() -> (tempfile::TempDir, FilesystemBackend) {
            let directory = tempfile::tempdir().expect("a directory");
            let backend = FilesystemBackend::open(directory.path(), FilesystemOptions::new()).expect("a root");
            (directory, backend)
        }

        #[tokio::test]
        async fn a_patch_moves_adds_and_deletes() {
            let (directory, backend) = directory();
            backend.write("/a", "1\r\n").await.expect("a file");
            std::os::unix::fs::symlink("a", directory.path().join("link")).expect("a link");
            let body = "*** Delete File: link\n*** Update File: a\n*** Move to: d/b\n-1\n+2\n*** Add File: c\n+x";
            let output = call(&backend, "apply_patch", patch(body)).await;
            assert!(!output.is_error, "{}", output.text);
            assert_eq!(files(&backend).await, owned(&[("/c", "x\n"), ("/d/b", "2\r\n")]));
            assert!(!directory.path().join("link").is_symlink());
        }

        #[tokio::test]
        async fn a_failure_half_way_says_what_has_changed() {
            let (_directory, backend) = directory();
            backend.write("/a", "1\n").await.expect("a file");
            let path = VfsPathBuf::parse("/b").expect("a legal path");
            let backend = Contended::new(backend, Change::CreateDir { path }, 1);
            let output = call(&backend, "apply_patch", patch("*** Add File: b\n+x\n*** Update File: a\n-1\n+2\n*** Add File: c\n+x")).await;
            assert!(output.text.ends_with("; already changed: `/a`; not changed: `/b`, `/c`"), "{}", output.text);
            assert_eq!(files(&backend).await, owned(&[("/a", "2\n")]));
        }
    }
}
