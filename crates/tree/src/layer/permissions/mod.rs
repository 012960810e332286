//! Rules about operations on paths. A path that may not be seen looks absent.
//!
//! Start at [`Permissions`]. The evaluation of rules is pure ([`rule`]); [`changes`] checks a batch; [`refill`] fills up a listing with
//! hidden entries; an [`Approver`] decides what rules ask about.

use crate::backend::Backend;
use async_trait::async_trait;
use refill::{Next, Refill};
use rule::Policy;
use std::fmt;
use std::sync::Arc;
use treehold_core::error::{Error, ErrorKind, Result};
use treehold_core::ops::{
    ApplyOptions, Capabilities, Change, Changed, Entry, EntryKind, FileRead, GlobOptions, GlobResult, GrepCursor, GrepOptions, GrepResult,
    Listing, LsOptions, OpKind, PathGuard, ReadOptions, Review, SearchOptions, SearchResult, Sight, StatOptions, Truncation,
};
use treehold_core::path::{VfsPath, VfsPathBuf};

mod approval;
mod changes;
mod refill;
mod review;
mod rule;

pub use approval::{Approval, ApprovalRequest, Approver};
pub use rule::{Effect, Operations, Rule};

/// Checks a list of rules before every call: the first rule that covers the operation and the path decides.
///
/// **Hidden.** A path whose `stat` is denied, for example by a rule about [`Operations::READ`], looks absent: no listing, glob or grep
/// shows it, its content is not searched, and operations that need it to exist fail with `not_found`. A write to it is refused with
/// `permission_denied`, whether or not something is there. A directory above an allowed path is shown, with only that path in it. Searches
/// skip hidden paths while they walk, so limits, pages and counts are those of a tree without them.
///
/// **Denied.** Other forbidden operations fail with `permission_denied` if requested by path, and are skipped in searches: a grep skips
/// files that may not be read.
///
/// **Asked.** With [`Effect::Ask`] an [`Approver`] decides, once per call or batch and before any effect; without one the call fails with
/// `permission_denied`. `stat` never asks, and names are listed without asking, because listing is not reading. A grep asks if its own path
/// needs approval, and otherwise skips files that do.
///
/// **Changes.** An edit also needs `read`, because its errors reveal content. A rename needs `rename` at both ends, `delete` at the source
/// and `write` at the target; a copy needs `read` at the source, `copy` and `write` at the target. For a directory that applies to
/// everything in it: a recursive delete, a rename or a copy that includes a hidden or protected path is refused. If rules may apply within
/// the directory, it is walked before the change; a path that another caller creates there at the same moment, past this layer, is not
/// seen.
///
/// **Links.** Rules are about paths, and a link of the host has two. A tree does not show the target of a link, so calls that would follow
/// one are refused with `permission_denied`, unless [`Permissions::with_links_followed`] declares links trusted. The inner tree also
/// refuses them while it resolves the path ([`ReadOptions::refuse_links`] and the like), so a link created between the check and the use is
/// not followed either. Cost: one `stat` for each directory of the path, in trees that have links.
///
/// **Past the tree.** What a restore, a merge or a fork changes, and what a diff between two checkpoints shows, is checked as if it were
/// written, removed and read here ([`Backend::review`]).
///
/// Names are compared exactly; use [`Rule::ignoring_case`] for hosts that ignore case.
///
/// ```
/// use treehold_tree::layer::{Operations, Permissions, Rule};
/// use treehold_core::ErrorKind;
/// use treehold_tree::backend::{BackendExt, StateBackend};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> treehold_core::Result<()> {
/// let state = std::sync::Arc::new(StateBackend::new());
/// state.write("/.env", "KEY=1").await?;
/// state.write("/docs/a.md", "text").await?;
/// let rules = [Rule::deny(Operations::ALL, ["/**/.env"])?, Rule::deny(Operations::WRITE, ["/docs"])?];
/// let tree = Permissions::new(rules, state);
/// assert_eq!(tree.read_bytes("/.env").await.unwrap_err().kind(), ErrorKind::NotFound);
/// assert_eq!(tree.read_text("/docs/a.md").await?, "text");
/// assert_eq!(tree.write("/docs/a.md", "x").await.unwrap_err().kind(), ErrorKind::PermissionDenied);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Permissions<B> {
    policy: Arc<Policy>,
    approver: Option<Arc<dyn Approver>>,
    follows_links: bool,
    inner: B,
}

impl<B: Backend> Permissions<B> {
    /// Applies rules to a tree. Everything that no rule covers is allowed.
    pub fn new(rules: impl IntoIterator<Item = Rule>, inner: B) -> Self {
        let policy = Policy { rules: rules.into_iter().collect(), default: Effect::Allow, past: Vec::new() };
        Self { policy: Arc::new(policy), approver: None, follows_links: false, inner }
    }

    /// Sets the effect if no rule decides. The root itself can always be listed.
    #[must_use]
    pub fn with_default(self, default: Effect) -> Self {
        let policy = Policy { rules: self.policy.rules.clone(), default, past: self.policy.past.clone() };
        Self { policy: Arc::new(policy), ..self }
    }

    /// Declares pairs of paths: at each first path, past versions of the files at the second are shown, such as by a history route. The
    /// rules about a file also apply to its past versions. A path is allowed if both it and the file's live path are.
    #[must_use]
    pub fn with_past(self, past: impl IntoIterator<Item = (VfsPathBuf, VfsPathBuf)>) -> Self {
        let policy = Policy { rules: self.policy.rules.clone(), default: self.policy.default, past: past.into_iter().collect() };
        Self { policy: Arc::new(policy), ..self }
    }

    /// Sets the approver for rules that ask.
    #[must_use]
    pub fn with_approver(mut self, approver: impl Approver + 'static) -> Self {
        self.approver = Some(Arc::new(approver));
        self
    }

    /// Follows links of the host wherever they lead within the tree. For trees in which only trusted people create links.
    #[must_use]
    pub fn with_links_followed(mut self) -> Self {
        self.follows_links = true;
        self
    }

    /// Returns the backend inside.
    pub fn inner(&self) -> &B {
        &self.inner
    }

    /// Checks that a path may be seen.
    async fn see(&self, path: &VfsPath) -> Result<()> {
        if self.policy.shows(path, false) {
            return Ok(());
        }
        // Only a directory may be visible because of what lies beneath it.
        if self.policy.shows(path, true) && (path.is_root() || self.is_directory(path).await?) {
            return Ok(());
        }
        Err(Error::not_found(path))
    }

    async fn is_directory(&self, path: &VfsPath) -> Result<bool> {
        match self.inner.stat(path, &self.stat_options(&StatOptions::new())).await {
            Ok(entry) => Ok(entry.is_directory()),
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Returns whether the inner tree must refuse links itself, because a path may change between the check and its use.
    fn refuses_links(&self) -> bool {
        !self.follows_links && !self.policy.is_open()
    }

    fn stat_options(&self, options: &StatOptions) -> StatOptions {
        options.clone().with_refuse_links(options.refuse_links || self.refuses_links())
    }

    /// Checks that no link is followed on the way to a path.
    async fn check_links(&self, path: &VfsPath, follows_last: bool) -> Result<()> {
        if !self.refuses_links() || !self.inner.capabilities().symlinks {
            return Ok(());
        }
        for step in path.ancestors().skip(1).chain(follows_last.then_some(path)) {
            match self.inner.stat(step, &StatOptions::new()).await {
                Ok(entry) if entry.kind == EntryKind::Symlink => {
                    let message = format!("`{step}` is a link and may bypass the rules of this tree; use the path of its target");
                    return Err(Error::new(ErrorKind::PermissionDenied, message).at(step));
                }
                Ok(entry) if entry.is_directory() => {}
                Ok(_) => return Ok(()),
                Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => return Ok(()),
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Checks that a call on a visible path is allowed, asking if needed. Returns whether it asked.
    async fn check_read(&self, kinds: &[OpKind], path: &VfsPath, is_search: bool) -> Result<bool> {
        let mut asks = false;
        for kind in kinds {
            match self.policy.decide(*kind, path) {
                Effect::Allow => {}
                Effect::Ask => asks = true,
                // A directory may be searched for what is allowed beneath it.
                Effect::Deny if is_search && self.policy.admits(*kind, path, true, true) && self.is_directory(path).await? => {}
                Effect::Deny => return Err(denied(&self.policy, kinds[0], *kind, path)),
            }
        }
        if asks {
            self.ask(kinds[0], vec![path.to_owned()], &[]).await?;
        }
        Ok(asks)
    }

    async fn ask(&self, operation: OpKind, paths: Vec<VfsPathBuf>, changes: &[Change]) -> Result<()> {
        let about = paths.first().cloned().unwrap_or_else(VfsPathBuf::root);
        let refused = |message: String| Err(Error::new(ErrorKind::PermissionDenied, message).at(&about).during(operation));
        let Some(approver) = &self.approver else {
            return refused(format!("`{operation}` of `{about}` needs approval and nobody is here to give it; skip it, or tell the user"));
        };
        match approver.approve(&ApprovalRequest { operation, paths, changes }).await? {
            Approval::Granted => Ok(()),
            Approval::Refused { reason: Some(reason) } => refused(format!("approval of `{operation}` of `{about}` was refused: {reason}")),
            Approval::Refused { reason: None } => refused(format!("approval of `{operation}` of `{about}` was refused")),
        }
    }

    /// Returns the guard for a search beneath `at`, which checks that a path is visible and that all the operations are allowed there.
    /// `None` if nothing is refused beneath.
    fn guard(&self, kinds: &[OpKind], asks: bool, at: &VfsPath) -> Option<PathGuard> {
        let kinds: Vec<(OpKind, bool)> = std::iter::once((OpKind::Stat, true)).chain(kinds.iter().map(|kind| (*kind, asks))).collect();
        let kinds = self.policy.distinct(&kinds, at);
        if kinds.is_empty() {
            return None;
        }
        let policy = Arc::clone(&self.policy);
        Some(PathGuard::new(move |path, is_directory| kinds.iter().all(|(kind, asks)| policy.admits(*kind, path, is_directory, *asks))))
    }
}

impl<B: Backend> fmt::Display for Permissions<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = self.policy.rules.len();
        write!(f, "Permissions({count} {}, {})", if count == 1 { "rule" } else { "rules" }, self.inner)
    }
}

#[async_trait]
impl<B: Backend> Backend for Permissions<B> {
    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    async fn stat(&self, path: &VfsPath, options: &StatOptions) -> Result<Entry> {
        if !self.policy.shows(path, true) {
            return Err(Error::not_found(path));
        }
        self.check_links(path, false).await?;
        let mut entry = self.inner.stat(path, &self.stat_options(options)).await?;
        // The target of a link may be hidden.
        entry.leads_to = entry.leads_to.filter(|target| self.policy.shows(target, true));
        if self.policy.shows(path, entry.is_directory()) { Ok(entry) } else { Err(Error::not_found(path)) }
    }

    async fn read(&self, path: &VfsPath, options: &ReadOptions) -> Result<FileRead> {
        self.see(path).await?;
        self.check_links(path, true).await?;
        self.check_read(&[OpKind::Read], path, false).await?;
        self.inner.read(path, &options.clone().with_refuse_links(options.refuse_links || self.refuses_links())).await
    }

    async fn ls(&self, path: &VfsPath, options: &LsOptions) -> Result<Listing> {
        self.see(path).await?;
        self.check_links(path, true).await?;
        self.check_read(&[OpKind::Ls], path, true).await?;
        let mut refill = Refill::new(options.limit);
        let mut page_options = options.clone();
        page_options.refuse_links |= self.refuses_links();
        loop {
            let page = self.inner.ls(path, &page_options).await?;
            let shows = |entry: &Entry| self.policy.shows(&entry.path, entry.is_directory());
            match refill.add(page.entries, page.failures, page.truncated, shows, |failure| self.policy.shows(&failure.path, true)) {
                Next::Page { cursor, limit } => (page_options.start_after, page_options.limit) = (Some(cursor), limit),
                Next::Done(truncated) => {
                    let mut listing = Listing::from_sorted(refill.entries, options);
                    listing.truncated = truncated.or(listing.truncated);
                    listing.failures = refill.failures;
                    return Ok(listing);
                }
            }
        }
    }

    async fn glob(&self, path: &VfsPath, options: &GlobOptions) -> Result<GlobResult> {
        self.see(path).await?;
        self.check_links(path, true).await?;
        self.check_read(&[OpKind::Glob], path, true).await?;
        let mut page_options = options.clone();
        page_options.scope.refuse_links |= self.refuses_links();
        let Some(guard) = self.guard(&[OpKind::Glob], true, path) else {
            return self.inner.glob(path, &page_options).await;
        };
        let mut refill = Refill::new(options.limit);
        page_options.scope.guard = Some(options.scope.guard.as_ref().map_or(guard.clone(), |outer| outer.and(&guard)));
        loop {
            let page = self.inner.glob(path, &page_options).await?;
            let shows = |entry: &Entry| guard.admits(&entry.path, entry.is_directory());
            match refill.add(page.entries, page.failures, page.truncated, shows, |failure| guard.admits(&failure.path, true)) {
                Next::Page { cursor, limit } => {
                    (page_options.start_after, page_options.limit) = (Some(VfsPathBuf::parse(cursor)?), limit);
                }
                Next::Done(truncated) => {
                    let mut result = GlobResult::from_sorted(refill.entries, options);
                    result.truncated = truncated.or(result.truncated);
                    result.failures = refill.failures;
                    return Ok(result);
                }
            }
        }
    }

    async fn grep(&self, path: &VfsPath, options: &GrepOptions) -> Result<GrepResult> {
        self.see(path).await?;
        self.check_links(path, true).await?;
        let asks = self.check_read(&[OpKind::Grep, OpKind::Read], path, true).await?;
        let mut page_options = options.clone();
        page_options.scope.refuse_links |= self.refuses_links();
        let Some(guard) = self.guard(&[OpKind::Grep, OpKind::Read], asks, path) else {
            return self.inner.grep(path, &page_options).await;
        };
        page_options.scope.guard = Some(options.scope.guard.as_ref().map_or(guard.clone(), |outer| outer.and(&guard)));
        let mut found = GrepResult::default();
        loop {
            let mut page = self.inner.grep(path, &page_options).await?;
            let came = page.files.len();
            page.files.retain(|file| guard.admits(&file.path, false));
            let failed = page.failures.len();
            page.failures.retain(|failure| guard.admits(&failure.path, true));
            page.failures_count -= failed - page.failures.len();
            let left_out = page.files.len() < came;
            let truncated = page.truncated.take();
            merge(&mut found, page);
            let missing = options.matches_max.saturating_sub(found.matches());
            match truncated {
                // Something was left out only if the tree does not ask the guard; request replacements for it.
                Some(truncated) if left_out && missing > 0 => {
                    (page_options.start_after, page_options.matches_max) = (Some(truncated.cursor.parse::<GrepCursor>()?), missing);
                }
                truncated => {
                    found.truncated = truncated.map(|truncated| shown(truncated, &guard, &found));
                    return Ok(found);
                }
            }
        }
    }

    async fn search(&self, path: &VfsPath, options: &SearchOptions) -> Result<SearchResult> {
        self.see(path).await?;
        self.check_links(path, true).await?;
        let asks = self.check_read(&[OpKind::Search, OpKind::Read], path, true).await?;
        let mut guarded = options.clone();
        guarded.scope.refuse_links |= self.refuses_links();
        let Some(guard) = self.guard(&[OpKind::Search, OpKind::Read], asks, path) else {
            return self.inner.search(path, &guarded).await;
        };
        guarded.scope.guard = Some(options.scope.guard.as_ref().map_or(guard.clone(), |outer| outer.and(&guard)));
        let mut found = self.inner.search(path, &guarded).await?;
        // Only a tree that does not ask the guard finds something to leave out.
        found.hits.retain(|hit| guard.admits(&hit.path, false));
        let failed = found.failures.len();
        found.failures.retain(|failure| guard.admits(&failure.path, true));
        found.failures_count -= failed - found.failures.len();
        Ok(found)
    }

    async fn apply(&self, changes: &[Change], options: &ApplyOptions) -> Result<Vec<Changed>> {
        let asked = changes::check(self, changes).await?;
        if !asked.is_empty() {
            let operation = if let [only] = changes { only.kind() } else { OpKind::Apply };
            self.ask(operation, asked, changes).await.map_err(|error| error.in_batch(0, 0))?;
        }
        self.inner.apply(changes, &options.clone().with_refuse_links(options.refuse_links || self.refuses_links())).await
    }

    async fn review(&self, review: &Review) -> Result<Vec<Sight>> {
        review::review(self, review).await
    }
}

/// Returns the error for an operation that is refused because rules refuse `kind`. The path is visible, so its rule is no secret.
fn denied(policy: &Policy, operation: OpKind, kind: OpKind, path: &VfsPath) -> Error {
    let message = match policy.decided_by(kind, path) {
        Some((number, pattern)) => {
            format!("rule {number} (`{pattern}`) forbids `{operation}` of `{path}`; choose another path, or tell the user")
        }
        None => format!("no rule allows `{operation}` of `{path}`; choose another path, or tell the user"),
    };
    Error::new(ErrorKind::PermissionDenied, message).at(path).during(operation)
}

/// Appends a page of a grep. The file at which a page ends continues in the next.
fn merge(found: &mut GrepResult, page: GrepResult) {
    found.files_searched += page.files_searched;
    found.files_binary += page.files_binary;
    found.files_too_large += page.files_too_large;
    found.failures_count += page.failures_count;
    found.failures.extend(page.failures);
    found.failures.truncate(GrepResult::FAILURES_MAX);
    for file in page.files {
        match found.files.last_mut().filter(|last| last.path == file.path) {
            Some(last) => {
                last.count += file.count;
                last.lines.extend(file.lines);
            }
            None => found.files.push(file),
        }
    }
}

/// Keeps a cursor from naming a hidden file: the search continues after the last file found.
fn shown(truncated: Truncation, guard: &PathGuard, found: &GrepResult) -> Truncation {
    let names_hidden = truncated.cursor.parse::<GrepCursor>().is_ok_and(|cursor| !guard.admits(&cursor.path, false));
    match found.files.last().filter(|_| names_hidden) {
        Some(last) => Truncation { cursor: GrepCursor { path: last.path.clone(), line: GrepCursor::END }.to_string(), ..truncated },
        None => truncated,
    }
}

#[cfg(test)]
mod tests;
