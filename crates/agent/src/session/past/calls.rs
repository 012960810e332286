//! The calls that an undo can revert: what histories and checkpoints recorded of them, newest first.

use super::{CALL, PAGE, UNDOES, author_of_checkpoint};
use crate::session::Session;
use crate::workspace::time_of;
use jiff::Timestamp;
use std::collections::{HashSet, VecDeque};
use std::sync::Arc;
use treehold_core::error::Result;
use treehold_core::ops::Author;
use treehold_core::path::VfsPathBuf;
use treehold_tree::backend::{RecordedCall, StoreBackend};
use treehold_tree::checkpoint::{Checkpoint, CheckpointId, ListOptions};

/// How many calls and checkpoints an undo looks through.
const CALLS_MAX: usize = 10_000;

/// Whose calls an undo reverts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum UndoOf {
    /// Those of the session's thread.
    #[default]
    Thread,
    /// Those of all threads of its user. Only files with a history are reverted, because a state belongs to its thread.
    User,
}

/// What a call changed in a tree, and the mounts that show the tree, the most suitable to change it by first.
pub(super) type ChangedFiles = (Arc<[VfsPathBuf]>, StoreBackend, RecordedCall);

/// A call that can be undone.
pub(super) struct UndoableCall {
    pub(super) id: String,
    pub(super) at: Timestamp,
    /// The time of its id.
    began: Timestamp,
    pub(super) author: Author,
    pub(super) files: Vec<ChangedFiles>,
    /// The first of its consecutive checkpoints.
    pub(super) checkpoint: Option<Checkpoint>,
    /// The last of them.
    pub(super) last: Option<Checkpoint>,
}

impl Session {
    /// Finds the newest call that is not an undo, not undone, and not idle. What an earlier undo reverted of it is left out.
    pub(super) async fn newest_call(&self, of: UndoOf, idle: &HashSet<String>) -> Result<Option<UndoableCall>> {
        let mut author = Author::new();
        (author.tenant, author.user) = (self.scope.tenant.clone(), self.scope.user.clone());
        let thread = (of == UndoOf::Thread).then(|| self.scope.thread.clone());
        let trees = self.workspace.histories(&self.scope, &self.thread)?.into_iter();
        let mut sources: Vec<Source> = trees.map(|history| Source::of_tree(history.mounts.into(), history.tree, author.clone())).collect();
        if of == UndoOf::Thread && self.workspace.checkpointer().is_some() {
            sources.push(Source::of_checkpoints(self));
        }
        // By source: an undo of the user's files leaves the state alone, and an undo can fail between two mounts.
        let mut undone: HashSet<(usize, String)> = HashSet::new();
        let mut found: Option<UndoableCall> = None;
        for _ in 0..CALLS_MAX {
            let mut newest: Option<(usize, Timestamp)> = None;
            for (index, source) in sources.iter_mut().enumerate() {
                if let Some(at) = source.peek().await?
                    && newest.is_none_or(|(_, newest)| at > newest)
                {
                    newest = Some((index, at));
                }
            }
            let Some((index, at)) = newest else { break };
            // Nothing that a call did is older than its id.
            if found.as_ref().is_some_and(|found| at < found.began) {
                break;
            }
            let Some(step) = sources[index].pop() else { break };
            // An undo counts from whichever thread it was made.
            if let Some(undoes) = &step.undoes {
                undone.insert((index, undoes.clone()));
                continue;
            }
            if undone.contains(&(index, step.id.clone())) || idle.contains(&step.id) {
                continue;
            }
            if thread.as_ref().is_some_and(|thread| step.author.thread != *thread) {
                continue;
            }
            match &mut found {
                Some(found) if found.id == step.id => found.add(step),
                Some(_) => {}
                None => found = Some(UndoableCall::of(step)),
            }
        }
        Ok(found)
    }
}

impl UndoableCall {
    fn of(step: Step) -> Self {
        let began = step.id.parse::<CheckpointId>().map_or(step.at, CheckpointId::time);
        let Step { id, at, author, files, checkpoint, .. } = step;
        Self { id, at, began, author, files: files.into_iter().collect(), last: checkpoint.clone(), checkpoint }
    }

    fn add(&mut self, step: Step) {
        match (&self.checkpoint, step.checkpoint) {
            (None, first) => (self.last, self.checkpoint) = (first.clone(), first),
            // With another's checkpoint between them, only the later part is undone; the next undo continues with the rest.
            (Some(later), Some(earlier)) if later.parent.as_ref().is_some_and(|parent| parent.id == earlier.id) => {
                self.checkpoint = Some(earlier);
            }
            (Some(_), _) => {}
        }
        let Some((mounts, tree, recorded)) = step.files else { return };
        match self.files.iter_mut().find(|(other, ..)| *other == mounts) {
            Some((_, _, before)) => {
                let known: HashSet<&VfsPathBuf> = before.paths.iter().collect();
                let paths: Vec<VfsPathBuf> = recorded.paths.into_iter().filter(|path| !known.contains(path)).collect();
                before.paths.extend(paths);
                before.is_cut |= recorded.is_cut;
            }
            None => self.files.push((mounts, tree, recorded)),
        }
    }
}

/// A part of a call: what it changed in one tree.
struct Step {
    id: String,
    at: Timestamp,
    author: Author,
    undoes: Option<String>,
    files: Option<ChangedFiles>,
    checkpoint: Option<Checkpoint>,
}

/// Steps of calls, newest first.
struct Source<'s> {
    kind: SourceKind<'s>,
    read: VecDeque<Step>,
    is_over: bool,
}

enum SourceKind<'s> {
    Tree { mounts: Arc<[VfsPathBuf]>, tree: Box<StoreBackend>, author: Box<Author>, after: Option<String> },
    Checkpoints { session: &'s Session, after: Option<CheckpointId> },
}

impl<'s> Source<'s> {
    fn of_tree(mounts: Arc<[VfsPathBuf]>, tree: StoreBackend, author: Author) -> Self {
        Self {
            kind: SourceKind::Tree { mounts, tree: Box::new(tree), author: Box::new(author), after: None },
            read: VecDeque::new(),
            is_over: false,
        }
    }

    fn of_checkpoints(session: &'s Session) -> Self {
        Self { kind: SourceKind::Checkpoints { session, after: None }, read: VecDeque::new(), is_over: false }
    }

    /// Returns the time of the next step.
    async fn peek(&mut self) -> Result<Option<Timestamp>> {
        while self.read.is_empty() && !self.is_over {
            self.fill().await?;
        }
        Ok(self.read.front().map(|step| step.at))
    }

    fn pop(&mut self) -> Option<Step> {
        self.read.pop_front()
    }

    async fn fill(&mut self) -> Result<()> {
        match &mut self.kind {
            SourceKind::Tree { mounts, tree, author, after } => {
                let (calls, next) = tree.calls(author, after.take(), PAGE).await?;
                self.is_over = next.is_none();
                *after = next;
                self.read.extend(calls.into_iter().map(|call| Step {
                    id: call.author.call.clone().unwrap_or_default(),
                    at: call.at,
                    author: call.author.clone(),
                    undoes: call.author.undoes.clone(),
                    files: Some((mounts.clone(), StoreBackend::clone(tree), call)),
                    checkpoint: None,
                }));
            }
            SourceKind::Checkpoints { session, after } => {
                let mut options = ListOptions::new().with_limit(PAGE);
                options.start_after = after.take();
                let page = session.thread.checkpointer()?.list(&session.scope, &options).await?;
                self.is_over = page.next.is_none();
                *after = page.next;
                self.read.extend(page.checkpoints.into_iter().map(|checkpoint| Step {
                    id: checkpoint.metadata.get(CALL).cloned().unwrap_or_else(|| checkpoint.id.to_string()),
                    at: time_of(&checkpoint),
                    author: author_of_checkpoint(&checkpoint, &session.scope),
                    undoes: checkpoint.metadata.get(UNDOES).cloned(),
                    files: None,
                    checkpoint: Some(checkpoint),
                }));
            }
        }
        Ok(())
    }
}
