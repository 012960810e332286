//! `apply_patch`: changes several files by one patch, all or none.
//!
//! Every section is computed from what is read before anything is written. Then one batch applies the results, each on
//! the condition that its file has not changed since. So a patch that does not fit, or that meets another writer,
//! changes nothing. If the tree cannot apply the batch atomically (several mounts, a host directory), the changes are
//! applied in order once all are verified, and an error then says which files have changed.

mod plan;

use self::plan::{Plan, Summary};
use super::patch;
use super::{FileTool, Hints, ToolOutput};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;
use treehold_core::backoff::LostRaces;
use treehold_core::error::{Error, ErrorKind, Result};
use treehold_core::ops::{ApplyOptions, Change};
use treehold_core::path::VfsPathBuf;
use treehold_core::work;
use treehold_tree::backend::Backend;

/// How often a patch is planned. A refusal that repeats can look like a lost race, so the bound is low.
const PLANS_MAX: u32 = 4;

/// The arguments of `apply_patch`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct ApplyPatch {
    /// The patch, from `*** Begin Patch` to `*** End Patch`.
    pub patch: String,
    /// The directory that relative paths in the patch start from, absolute.
    #[serde(default = "VfsPathBuf::root")]
    #[schemars(with = "String")]
    pub base: VfsPathBuf,
}

impl ApplyPatch {
    /// Applies a patch whose relative paths start from the root.
    pub fn new(patch: impl Into<String>) -> Self {
        Self { patch: patch.into(), base: VfsPathBuf::root() }
    }

    /// Returns the files whose content the patch would destroy: those it removes, and those it replaces without reading
    /// them. Both are empty if the patch does not fit the tree.
    pub async fn losses(&self, backend: &dyn Backend) -> (Vec<VfsPathBuf>, Vec<VfsPathBuf>) {
        let mut plan = Plan::new(backend);
        let patch = self.patch.clone();
        let sections = work::run(patch.len() as u64, move |_| patch::parse(&patch)).await.flatten();
        for section in &sections.unwrap_or_default() {
            if plan.add(&self.base, section).await.is_err() {
                return Default::default();
            }
        }
        plan.losses()
    }

    /// Returns the changes that the patch would make to the tree as it is; none if it fails.
    pub async fn changes(&self, backend: &dyn Backend) -> Vec<Change> {
        let mut plan = Plan::new(backend);
        let patch = self.patch.clone();
        let sections = work::run(patch.len() as u64, move |_| patch::parse(&patch)).await.flatten();
        for section in &sections.unwrap_or_default() {
            if plan.add(&self.base, section).await.is_err() {
                return Vec::new();
            }
        }
        plan.changes()
    }

    /// Returns the paths in the patch as written; none if it cannot be parsed.
    pub(super) fn paths(&self) -> Vec<String> {
        let sections = patch::parse(&self.patch).unwrap_or_default();
        let paths = sections.into_iter().flat_map(|section| match section {
            patch::Section::Add { path, .. } | patch::Section::Delete { path } => [Some(path), None],
            patch::Section::Update { path, target, .. } => [Some(path), target],
        });
        paths.flatten().collect()
    }
}

impl FileTool for ApplyPatch {
    const NAME: &'static str = "apply_patch";
    const TITLE: &'static str = "Apply patch";
    const DESCRIPTION: &'static str = "Changes one or more files by a patch, all or nothing.\n\n\
        *** Begin Patch\n\
        *** Add File: /docs/new.md\n\
        +every line of a new file\n\
        *** Update File: /src/app.py\n\
        *** Move to: /src/main.py\n\
        @@ def greet():\n \
        unchanged line\n\
        -removed line\n\
        +added line\n\
        *** Delete File: /old.txt\n\
        *** End Patch\n\n\
        - Give about 3 unchanged lines around each change; `@@ line` restricts the change to what follows that line.\n\
        - `*** Move to:` is optional; `*** End of File` after a chunk anchors it to the end of the file.";
    const HINTS: Hints = Hints::Writes { idempotent: false };
    const PATHS: &'static [&'static str] = &["base"];
    const ALIASES: &'static [(&'static str, &'static str)] = &[("input", "patch"), ("patchText", "patch"), ("patch_text", "patch")];

    async fn run(&self, backend: &dyn Backend) -> Result<ToolOutput> {
        let patch = self.patch.clone();
        let sections = work::run(patch.len() as u64, move |_| patch::parse(&patch)).await??;
        let mut races = LostRaces::at_most(PLANS_MAX);
        loop {
            let mut plan = Plan::new(backend);
            for section in &sections {
                plan.add(&self.base, section).await?;
            }
            let batch = plan.changes();
            // Batches over several mounts are allowed: everything was verified, and a later failure reports what has
            // changed.
            match backend.apply(&batch, &ApplyOptions::new().with_allow_partial(true)).await {
                Ok(_) => return Ok(plan.summary.output()),
                Err(error) => {
                    if !lost_race(&error) || !races.lost().await {
                        return Err(with_what_changed(error, &batch));
                    }
                }
            }
        }
    }
}

/// Returns whether a batch lost to another writer before it changed anything, so that the patch can be recomputed.
fn lost_race(error: &Error) -> bool {
    error.applied() == 0
        && !error.may_have_effect()
        && matches!(error.kind(), ErrorKind::Conflict | ErrorKind::AlreadyExists | ErrorKind::NotFound)
}

/// Adds to the error of a failed batch which files have changed.
fn with_what_changed(error: Error, batch: &[Change]) -> Error {
    let (done, rest) = batch.split_at(error.applied().min(batch.len()));
    let what = match (done, error.may_have_effect()) {
        ([], false) => "nothing was changed".to_owned(),
        ([], true) => "the patch may have taken effect; read its files again".to_owned(),
        (done, false) => format!("already changed: {}; not changed: {}", paths(done), paths(rest)),
        (done, true) => format!("already changed: {}; unknown: {}", paths(done), paths(rest)),
    };
    let message = format!("{}; {what}", error.message());
    error.with_message(message)
}

fn paths(changes: &[Change]) -> String {
    changes.iter().map(|change| format!("`{}`", change.path())).collect::<Vec<_>>().join(", ")
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

#[cfg(test)]
mod tests {
    use super::super::stage::{call, played, tree};
    use super::*;
    use async_trait::async_trait;
    use std::fmt;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use treehold_core::ops::{Changed, EntryKind, Op, Review, Sight};
    use treehold_tree::forward_backend;

    use treehold_tree::backend::{BackendExt, StateBackend};
    use treehold_tree::composite::{CompositeBackend, CompositeBuilder};
    use treehold_tree::layer::{Fault, Layer, LayerName, Layered, Next, ReadOnly, Reply};

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
    async fn answers_name_the_changed_files() {
        let backend = tree(&[("/src/app.py", "def greet():\n    print('hi')\n"), ("/old.txt", "x\n"), ("/readme.md", "# A\n")]).await;
        backend.write("/image.png", &b"\0"[..]).await.expect("bytes");
        let calls = [
            patch(
                "*** Add File: docs/new.md\n+# New\n\
                 *** Update File: src/app.py\n*** Move to: src/main.py\n@@ def greet():\n-    print('hi')\n+    print('hello')\n\
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
    async fn sections_build_on_each_other() {
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
                "*** Update File: a\n-1\n+one\n*** Update File: a\n one\n-2\n\
                 *** Add File: c\n+c\n*** Update File: c\n-c\n+C\n*** Delete File: b\n*** Add File: b\n+y",
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
    async fn patch_with_a_bad_last_section_changes_nothing() {
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
    async fn relative_paths_resolve_against_the_base() {
        let backend = tree(&[("/w/a", "1\n")]).await;
        let body = "*** Begin Patch\n*** Update File: a\n-1\n+2\n*** Add File: /top\n+x\n*** End Patch";
        let output = call(&backend, "apply_patch", json!({"patch": body, "base": "/w/"})).await;
        assert_eq!(output.text, "Success. Updated the following files:\nA /top\nM a");
        assert_eq!(files(&backend).await, owned(&[("/top", "x\n"), ("/w/a", "2\n")]));
    }

    /// A tree in which another writer gets ahead of each of the first batches.
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
        forward_backend! { self => self.inner; capabilities, stat, read, ls, glob, grep, search }

        async fn apply(&self, changes: &[Change], options: &ApplyOptions) -> Result<Vec<Changed>> {
            if self.times.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)).is_ok() {
                self.inner.apply_one(self.other.clone()).await?;
            }
            self.inner.apply(changes, options).await
        }

        async fn review(&self, review: &Review) -> Result<Vec<Sight>> {
            Ok(review.open())
        }
    }

    #[tokio::test]
    async fn patch_that_loses_a_race_is_recomputed_and_keeps_both_changes() {
        let backend = Contended::new(tree(&[("/a", "1\n")]).await, append(), 2);
        let output = call(&backend, "apply_patch", patch("*** Update File: a\n-1\n+one\n*** Add File: n\n+x")).await;
        assert!(!output.is_error, "{}", output.text);
        assert_eq!(files(&backend).await, owned(&[("/a", "one\nother\nother\n"), ("/n", "x\n")]));
    }

    #[tokio::test]
    async fn patch_that_keeps_losing_is_a_conflict_and_changes_nothing() {
        let backend = Contended::new(tree(&[("/a", "1\n")]).await, append(), 100);
        let output = call(&backend, "apply_patch", patch("*** Add File: 0\n+x\n*** Update File: a\n-1\n+one")).await;
        assert_eq!(output.error.expect("a conflict").code, "conflict");
        assert!(output.text.ends_with("; nothing was changed"), "{}", output.text);
        assert_eq!(files(&backend).await.len(), 1);
    }

    #[tokio::test]
    async fn patch_over_several_mounts_is_verified_before_any_write() {
        let backend = mounted(tree(&[("/a", "1\n")]).await, Arc::new(tree(&[("/m", "x\n")]).await));
        let output = call(&backend, "apply_patch", patch("*** Update File: a\n-1\n+2\n*** Update File: memories/m\n-x\n+y")).await;
        assert!(!output.is_error, "{}", output.text);
        let output = call(&backend, "apply_patch", patch("*** Update File: a\n-2\n+3\n*** Update File: memories/m\n-z\n+y")).await;
        assert!(output.is_error);
        assert_eq!(files(&backend).await, owned(&[("/a", "2\n"), ("/memories/m", "y\n")]));
    }

    #[tokio::test]
    async fn failure_between_mounts_reports_what_has_changed() {
        let memories = Layered::new(ReadOnly::new(), tree(&[("/m", "x\n")]).await);
        let backend = mounted(tree(&[("/a", "1\n")]).await, Arc::new(memories));
        let output = call(&backend, "apply_patch", patch("*** Update File: memories/m\n-x\n+y\n*** Update File: a\n-1\n+2")).await;
        assert_eq!(
            output.text,
            "error [read_only]: `/memories/m` lies in a read-only tree; already changed: `/a`; not changed: `/memories/m`"
        );
        assert_eq!(output.error.expect("a failure").applied, Some(1));
    }

    #[tokio::test]
    async fn failure_with_unknown_effect_says_so() {
        let faulty =
            Layered::new(Fault::nth(0).on_changes().after_effect().with_kind(ErrorKind::Unavailable), tree(&[("/a", "1\n")]).await);
        let output = call(&faulty, "apply_patch", patch("*** Update File: a\n-1\n+2")).await;
        assert!(output.text.ends_with("; the patch may have taken effect; read its files again"), "{}", output.text);
        assert_eq!(files(&faulty).await, owned(&[("/a", "2\n")]));
    }

    /// Regression: the message depended on the kind of the error alone.
    #[tokio::test]
    async fn reported_outcome_follows_the_errors_effect_not_its_kind() {
        /// Fails changes with a given error.
        #[derive(Debug)]
        struct Failing(fn(Error) -> Error);

        #[async_trait]
        impl Layer for Failing {
            fn name(&self) -> LayerName {
                LayerName::new("Failing")
            }

            async fn around<T: Reply>(&self, op: Op<'_>, next: Next<'_, T>) -> Result<T> {
                if op.kind.writes() {
                    return Err((self.0)(Error::new(ErrorKind::Unavailable, "gone")));
                }
                next.run().await
            }
        }

        let unknown = "the patch may have taken effect; read its files again";
        type Case = (fn(Error) -> Error, &'static str);
        let cases: [Case; 4] = [
            (Error::without_effect, "nothing was changed"),
            (|error| error, unknown),
            (|_| Error::new(ErrorKind::PermissionDenied, "gone"), "nothing was changed"),
            (|_| Error::new(ErrorKind::Conflict, "gone").with_unknown_effect(), unknown),
        ];
        for (failing, expected) in cases {
            let tree = Layered::new(Failing(failing), tree(&[("/a", "1\n")]).await);
            let output = call(&tree, "apply_patch", patch("*** Update File: a\n-1\n+2")).await;
            assert!(output.text.ends_with(expected), "{}", output.text);
        }
    }

    fn mounted(state: StateBackend, memories: Arc<dyn Backend>) -> CompositeBackend {
        CompositeBackend::builder(Arc::new(state)).route("/memories", memories).and_then(CompositeBuilder::build).expect("two mounts")
    }

    #[cfg(unix)]
    mod on_the_host {
        use super::*;
        use treehold_tree::backend::{FilesystemBackend, FilesystemOptions};

        fn directory() -> (tempfile::TempDir, FilesystemBackend) {
            let directory = tempfile::tempdir().expect("a directory");
            let backend = FilesystemBackend::open(directory.path(), FilesystemOptions::new()).expect("a root");
            (directory, backend)
        }

        #[tokio::test]
        async fn patch_moves_adds_and_deletes() {
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
        async fn partial_failure_reports_what_has_changed() {
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
