//! What a session tells of the history of its thread, and what it makes of it, as its tree allows.

use super::Session;
use crate::audit::{AuditPage, AuditRow};
use crate::backend::{Backend, StateSnapshot};
use crate::checkpoint::{At, Checkpoint, Diff, PutOptions, ThreadInfo, diff, find_checkpoint};
use crate::error::{Error, ErrorKind, Result};
use crate::ops::{Difference, Review, ReviewPurpose, Sight, Standing};
use crate::path::{VfsPath, VfsPathBuf};
use serde_json::Value;

/// How often a fork of the newest checkpoint starts over that was pruned meanwhile.
const FORKS_MAX: usize = 16;

/// How many differences or calls are looked at in one go.
const STEP: usize = 1_000;

impl Session {
    /// Returns a page of what differs between two states of threads of this user, as this session may see it: a path that its tree hides
    /// takes no place on the page, and [`PathDiff::is_readable`](crate::checkpoint::PathDiff::is_readable) says whose content it may read.
    ///
    /// Cost: that of [`diff`](crate::checkpoint::diff()), also of what is hidden.
    ///
    /// # Errors
    /// Those of the store, for states that were saved.
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
                    shown.next = shown.paths.last().map(|last| last.path.clone()).or_else(|| start_after.map(ToOwned::to_owned));
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

    /// Returns a checkpoint as this session may be told of it: how much it holds is 0 where a part of it is kept back.
    ///
    /// # Errors
    /// Those of the tree.
    pub async fn shown(&self, checkpoint: Checkpoint) -> Result<Checkpoint> {
        Ok(self.shown_all(vec![checkpoint]).await?.pop().expect("as many as were given"))
    }

    /// Returns checkpoints as [`Session::shown`] does.
    ///
    /// # Errors
    /// Those of the tree.
    pub async fn shown_all(&self, checkpoints: Vec<Checkpoint>) -> Result<Vec<Checkpoint>> {
        if self.tree.shows_all().await? {
            return Ok(checkpoints);
        }
        Ok(checkpoints.into_iter().map(|checkpoint| Checkpoint { entries: 0, size_bytes: 0, ..checkpoint }).collect())
    }

    /// Returns threads as this session may be told of them, as [`Session::shown`] does.
    ///
    /// # Errors
    /// Those of the tree.
    pub async fn shown_threads(&self, threads: Vec<ThreadInfo>) -> Result<Vec<ThreadInfo>> {
        if self.tree.shows_all().await? {
            return Ok(threads);
        }
        Ok(threads.into_iter().map(|thread| ThreadInfo { entries: 0, size_bytes: 0, ..thread }).collect())
    }

    /// Starts another thread from a checkpoint of this one, and returns its first checkpoint.
    ///
    /// What differs from the newest checkpoint of this thread is asked about as if it were written: an old checkpoint is no way to
    /// bring back what a rule protects.
    ///
    /// Cost: from the newest checkpoint O(1), from another it grows with what differs.
    ///
    /// # Errors
    /// [`AlreadyExists`](crate::ErrorKind::AlreadyExists) for a thread that is there, [`NotFound`](crate::ErrorKind::NotFound) for a checkpoint that is not,
    /// those of [`Backend::review`] and of [`Session::save`].
    pub async fn fork(&self, at: At, thread: &str, notes: &PutOptions) -> Result<Checkpoint> {
        self.scope.clone().with_thread(thread).validate()?;
        self.save().await?;
        let checkpointer = self.thread.checkpointer()?;
        let mut attempt = 1;
        let made = loop {
            let newest = checkpointer.open(&self.scope, At::Latest).await?;
            let head = newest.as_ref().map(|newest| newest.checkpoint.id);
            // What was asked about is what is forked, whatever is saved meanwhile.
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
                // The head moved on and was pruned: there is another now.
                Err(error) if at == At::Latest && head.is_some() && error.kind() == ErrorKind::NotFound && attempt < FORKS_MAX => {
                    attempt += 1
                }
                Err(error) => return Err(error),
            }
        };
        self.workspace.tell_restored(&self.scope.clone().with_thread(thread)).await?;
        self.shown(made).await
    }

    /// Copies the thread with all its checkpoints, and returns the newest one of the copy and how many there are. It holds what this thread
    /// holds, so nothing differs.
    ///
    /// # Errors
    /// [`AlreadyExists`](crate::ErrorKind::AlreadyExists) for a thread that is there, and those of [`Session::save`].
    pub async fn copy_thread(&self, thread: &str) -> Result<(Checkpoint, u64)> {
        let scope = self.scope.clone().with_thread(thread);
        scope.validate()?;
        self.save().await?;
        let checkpointer = self.thread.checkpointer()?;
        let count = checkpointer.copy(&self.scope, thread).await?;
        self.workspace.tell_restored(&scope).await?;
        let newest = find_checkpoint(&**checkpointer, &scope, "latest").await?;
        Ok((self.shown(newest).await?, count))
    }

    /// Returns a page of the record of the thread's calls, as [`AuditLog::calls`](crate::AuditLog::calls) does, without those that name a path
    /// which this session's tree hides.
    ///
    /// # Errors
    /// [`Unsupported`](crate::ErrorKind::Unsupported) in a workspace that records none, and those of the record.
    pub async fn calls(&self, after: Option<crate::CheckpointId>, until: Option<crate::CheckpointId>, limit: usize) -> Result<AuditPage> {
        let log = self.audit.as_ref().ok_or_else(|| Error::unsupported("this workspace keeps no record of calls"))?;
        let (mut after, mut shown) = (after, AuditPage::default());
        loop {
            let page = log.calls(&self.scope, after, until, limit.saturating_add(1).min(STEP)).await?;
            for row in page.calls {
                if !self.shows_row(&row).await? {
                    continue;
                }
                if shown.calls.len() == limit {
                    shown.next = shown.calls.last().map(|last| last.id);
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

    /// Tells whether every path that a row names may be known of.
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

/// Finds every text that names a path, however deep it stands; tells whether each was one. What is none, such as `/ok/../secret`, may
/// name anything.
fn named(arguments: &Value, paths: &mut Vec<VfsPathBuf>) -> bool {
    match arguments {
        // A pattern says where it looks too.
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
