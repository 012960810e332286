//! A session's views of its thread's history, and forks and copies of it, within the rules of its tree.

use super::Session;
use crate::audit::{AuditPage, AuditRow};
use crate::feed::FeedKind;
use serde_json::Value;
use treehold_core::error::{Error, ErrorKind, Result};
use treehold_core::ops::{Difference, Review, ReviewPurpose, Sight, Standing};
use treehold_core::path::{VfsPath, VfsPathBuf};
use treehold_tree::backend::{Backend, StateSnapshot};
use treehold_tree::checkpoint::{At, Checkpoint, CheckpointId, Diff, PutOptions, ThreadInfo, diff, find_checkpoint};

/// How often a fork of the newest checkpoint retries after that checkpoint was pruned meanwhile.
const FORKS_MAX: usize = 16;

/// The number of differences or calls that are examined per page.
const STEP: usize = 1_000;

impl Session {
    /// Returns a page of the differences between two states of this user's threads, as this session may see them. Paths that its tree hides
    /// do not count towards the page, and [`PathDiff::is_readable`](treehold_tree::checkpoint::PathDiff::is_readable) tells whether it may
    /// read the content.
    ///
    /// Cost: that of [`diff`](treehold_tree::checkpoint::diff()), including hidden paths.
    ///
    /// # Errors
    /// The errors of the store, for states that were saved.
    pub async fn diff(&self, older: &StateSnapshot, newer: &StateSnapshot, start_after: Option<&VfsPath>, limit: usize) -> Result<Diff> {
        let mut shown = Diff::default();
        let mut after = start_after.map(ToOwned::to_owned);
        loop {
            let page = diff(older, newer, after.as_deref(), limit.saturating_add(1).min(STEP)).await?;
            let differences: Vec<Difference> = page.paths.iter().map(Difference::from).collect();
            let sights = self.tree.ask(ReviewPurpose::Show, &differences).await?;
            for (mut path, sight) in page.paths.into_iter().zip(sights) {
                if sight == Sight::Hidden {
                    continue;
                }
                if shown.paths.len() == limit {
                    let last = shown.paths.last().map(|last| &*last.path).or(start_after);
                    shown.next = Some(last.unwrap_or(VfsPath::ROOT).to_owned());
                    return Ok(shown);
                }
                path.is_readable = sight == Sight::Open;
                shown.paths.push(path);
            }
            match page.next {
                Some(next) => after = Some(next),
                None => return Ok(shown),
            }
        }
    }

    /// Returns a checkpoint as this session may see it: its sizes are 0 if a part of the state is withheld.
    ///
    /// # Errors
    /// The errors of the tree.
    pub async fn shown(&self, checkpoint: Checkpoint) -> Result<Checkpoint> {
        Ok(self.shown_all(vec![checkpoint]).await?.pop().expect("one checkpoint was given"))
    }

    /// Returns checkpoints as [`Session::shown`] does.
    ///
    /// # Errors
    /// The errors of the tree.
    pub async fn shown_all(&self, checkpoints: Vec<Checkpoint>) -> Result<Vec<Checkpoint>> {
        if self.tree.shows_all().await? {
            return Ok(checkpoints);
        }
        Ok(checkpoints.into_iter().map(|checkpoint| checkpoint.without_totals()).collect())
    }

    /// Returns threads as this session may see them, as [`Session::shown`] does.
    ///
    /// # Errors
    /// The errors of the tree.
    pub async fn shown_threads(&self, threads: Vec<ThreadInfo>) -> Result<Vec<ThreadInfo>> {
        if self.tree.shows_all().await? {
            return Ok(threads);
        }
        Ok(threads.into_iter().map(|thread| thread.without_totals()).collect())
    }

    /// Forks another thread from a checkpoint of this one, and returns its first checkpoint.
    ///
    /// The tree reviews every difference from the newest checkpoint of this thread as if it were written, so an old checkpoint cannot bring
    /// back what a rule protects.
    ///
    /// Cost: O(1) from the newest checkpoint; from another, proportional to the differences.
    ///
    /// # Errors
    /// [`AlreadyExists`](treehold_core::error::ErrorKind::AlreadyExists) for an existing thread, [`NotFound`](treehold_core::error::ErrorKind::NotFound) for a missing
    /// checkpoint, and the errors of [`Backend::review`] and [`Session::save`].
    pub async fn fork(&self, at: At, thread: &str, notes: &PutOptions) -> Result<Checkpoint> {
        self.scope.clone().with_thread(thread).validate()?;
        self.save().await?;
        let checkpointer = self.thread.checkpointer()?;
        let mut attempt = 1;
        let made = loop {
            let newest = checkpointer.open(&self.scope, At::Latest).await?;
            let head = newest.as_ref().map(|newest| newest.checkpoint.id);
            // Fork exactly what was reviewed, whatever is saved meanwhile.
            let chosen = match (at, head) {
                (At::Latest, Some(head)) => At::Id(head),
                (at, _) => at,
            };
            if chosen != head.map_or(At::Latest, At::Id)
                && let (Some(newest), Some(chosen)) = (newest, checkpointer.open(&self.scope, chosen).await?)
            {
                self.tree.allow(&newest.state, &chosen.state).await?;
            }
            match checkpointer.fork(&self.scope, chosen, thread, notes).await {
                Ok(made) => break made.checkpoint,
                // The head moved on and the old one was pruned: try the new one.
                Err(error) if at == At::Latest && head.is_some() && error.kind() == ErrorKind::NotFound && attempt < FORKS_MAX => {
                    attempt += 1
                }
                Err(error) => return Err(error),
            }
        };
        self.workspace.notify_replaced(&self.scope.clone().with_thread(thread), FeedKind::Fork).await?;
        self.shown(made).await
    }

    /// Copies the thread with all its checkpoints. Returns the newest checkpoint of the copy and the number of checkpoints. The copy holds
    /// what this thread holds, so no difference needs a review.
    ///
    /// # Errors
    /// [`AlreadyExists`](treehold_core::error::ErrorKind::AlreadyExists) for an existing thread, and the errors of [`Session::save`].
    pub async fn copy_thread(&self, thread: &str) -> Result<(Checkpoint, u64)> {
        let scope = self.scope.clone().with_thread(thread);
        scope.validate()?;
        self.save().await?;
        let checkpointer = self.thread.checkpointer()?;
        let count = checkpointer.copy(&self.scope, thread).await?;
        self.workspace.notify_replaced(&scope, FeedKind::Fork).await?;
        let newest = find_checkpoint(&**checkpointer, &scope, "latest").await?;
        Ok((self.shown(newest).await?, count))
    }

    /// Returns a page of the thread's audit rows as [`AuditLog::calls`](crate::audit::AuditLog::calls) does, without rows that name a path which
    /// this session's tree hides.
    ///
    /// # Errors
    /// [`Unsupported`](treehold_core::error::ErrorKind::Unsupported) in a workspace without an audit log, and the errors of the log.
    pub async fn calls(&self, after: Option<CheckpointId>, until: Option<CheckpointId>, limit: usize) -> Result<AuditPage> {
        let log = self.audit.as_ref().ok_or_else(|| Error::unsupported("this workspace does not record tool calls"))?;
        let (start_after, mut after, mut shown) = (after, after, AuditPage::default());
        loop {
            let page = log.calls(&self.scope, after, until, limit.saturating_add(1).min(STEP)).await?;
            for row in page.calls {
                if !self.shows_row(&row).await? {
                    continue;
                }
                if shown.calls.len() == limit {
                    shown.next = Some(shown.calls.last().map(|last| last.id).or(start_after).unwrap_or(CheckpointId::MIN));
                    return Ok(shown);
                }
                shown.calls.push(row);
            }
            match page.next {
                Some(next) => after = Some(next),
                None => return Ok(shown),
            }
        }
    }

    /// Returns whether every path that a row names may be shown.
    async fn shows_row(&self, row: &AuditRow) -> Result<bool> {
        let mut paths = Vec::new();
        if !named(&row.arguments, &mut paths) {
            return self.tree.shows_all().await;
        }
        if paths.is_empty() {
            return Ok(true);
        }
        let differences = paths.into_iter().map(|path| Difference::new(path, Some(Standing::Directory), None)).collect();
        let sights = self.backend.review(&Review::new(ReviewPurpose::Show, VfsPathBuf::root(), differences)).await?;
        Ok(sights.iter().all(|sight| *sight > Sight::Hidden))
    }
}

/// Collects every string that names a path, at any depth. Returns whether all of them were valid paths: an invalid one such as
/// `/ok/../secret` may name anything.
fn named(arguments: &Value, paths: &mut Vec<VfsPathBuf>) -> bool {
    match arguments {
        // A pattern also reveals where it searches.
        Value::String(text) if text.contains('/') => match VfsPathBuf::parse(format!("/{}", text.trim_matches('/'))) {
            Ok(path) => {
                paths.push(path);
                true
            }
            Err(_) => false,
        },
        Value::Array(items) => items.iter().all(|item| named(item, paths)),
        Value::Object(fields) => fields.values().all(|field| named(field, paths)),
        _ => true,
    }
}
