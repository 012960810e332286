//! One piece of work on a thread: where it starts, how it is saved, and whether it is repeated.

use super::Threads;
use super::writes::Writing;
use crate::live::unsaved_until;
use crate::session::{Done, Session, Target};
use std::collections::BTreeMap;
use tokio::sync::OwnedMutexGuard;
use treehold_core::backoff::LostRaces;
use treehold_core::error::{Error, ErrorKind, Result};
use treehold_core::scope::Scope;
use uuid::Uuid;

/// How often work is attempted while other writers save first. An attempt costs the work and a commit, so the bound is lower than
/// [`LostRaces::MAX`].
const ATTEMPTS_MAX: u32 = 200;

/// One piece of work on a thread. [`Threads::work`] is the loop around it.
///
/// Work on [`Turn::session`], then call [`Turn::save`]. If it returns `None`, the session is a new one at the new head: do the work again.
#[derive(Debug)]
pub struct Turn<'t> {
    threads: &'t Threads,
    scope: Scope,
    session: Session,
    /// Held by work that changes the thread.
    guard: Option<OwnedMutexGuard<()>>,
    _writing: Writing<'t>,
    /// Whether the session holds nothing but this work. A state that was not saved before holds more.
    is_fresh: bool,
    /// The session's changes of other mounts before the work.
    elsewhere: u64,
    races: LostRaces,
    /// The metadata of the checkpoint.
    notes: BTreeMap<String, String>,
}

impl<'t> Turn<'t> {
    pub(super) async fn begin(threads: &'t Threads, scope: &Scope, target: &Target) -> Result<Self> {
        // This reads nothing of the thread until the work needs it.
        let opened = threads.current(scope).await?;
        let guard = match target.is_thread(&opened.reach) || threads.is_kept(scope) {
            true => Some(threads.turn(scope).await),
            false => None,
        };
        let writing = threads.writes.begin();
        if guard.is_some() && !threads.is_saved_at_the_end() {
            threads.settle(scope).await;
        }
        let is_fresh = guard.is_none() || !threads.is_kept(scope);
        let session = match is_fresh && !threads.is_saved_at_the_end() {
            true => opened,
            false => threads.current(scope).await?,
        };
        let elsewhere = session.changes_elsewhere();
        Ok(Self {
            threads,
            scope: scope.clone(),
            session,
            guard,
            _writing: writing,
            is_fresh,
            elsewhere,
            races: LostRaces::at_most(ATTEMPTS_MAX),
            notes: BTreeMap::new(),
        })
    }

    /// Adds metadata to the checkpoint that [`Turn::save`] makes, such as [`TOOL`](crate::session::TOOL) and
    /// [`CALL`](crate::session::CALL). Checkpoints and changes elsewhere of one call are undone together.
    pub fn note(&mut self, metadata: impl IntoIterator<Item = (String, String)>) {
        self.notes.extend(metadata);
    }

    /// Returns the session to work on.
    pub fn session(&self) -> &Session {
        &self.session
    }

    /// Saves the thread on the condition of the head that it was opened at. Does nothing in a workspace that saves threads at the end.
    /// `done.unsaved` is the error of a save that the work itself tried, which is then not tried again.
    ///
    /// Returns the result, or `None` if others saved the thread meanwhile and the work must be repeated on the new session. If the thread
    /// cannot be saved for another reason, the result says why, and the state stays in memory until the next work on the thread.
    ///
    /// Cost: at most one commit.
    ///
    /// # Errors
    /// [`Conflict`](ErrorKind::Conflict) when others saved the thread meanwhile and the work cannot be repeated: its state is set aside as
    /// another thread.
    pub async fn save<T>(&mut self, done: Done<T>) -> Result<Option<Done<T>>> {
        let Done { answer, unsaved } = done;
        if self.threads.is_saved_at_the_end() {
            self.threads.kept.lock().insert(self.scope.clone(), self.session.clone());
            return Ok(Some(Done { answer, unsaved }));
        }
        let saved = match unsaved {
            Some(error) => Err(error),
            None => self.session.save_noted(&self.notes).await.map(drop),
        };
        let Err(error) = saved else {
            if self.guard.is_some() {
                self.threads.kept.lock().remove(&self.scope);
            }
            return Ok(Some(Done::saved(answer)));
        };
        if self.guard.is_none() {
            // The work changed the thread although its target said otherwise.
            self.guard = Some(self.threads.turn(&self.scope).await);
            self.threads.settle(&self.scope).await;
        }
        if error.kind() != ErrorKind::Conflict {
            return Ok(Some(Done { answer, unsaved: Some(self.keep(error)) }));
        }
        if !self.is_repeatable() {
            let error = set_aside(&self.session, error).await;
            self.threads.kept.lock().remove(&self.scope);
            return Err(error);
        }
        if !self.races.lost().await {
            let lost = self.races.count();
            let message = format!("other sessions saved the thread {lost} times meanwhile, and nothing was changed; try again");
            return Err(error.with_message(message).without_effect());
        }
        self.repeat().await?;
        Ok(None)
    }

    /// Returns whether the session holds nothing but this work, which changed nothing but the thread, and saved none of it.
    fn is_repeatable(&self) -> bool {
        self.is_fresh && self.session.changes_elsewhere() == self.elsewhere && !self.session.has_saved()
    }

    /// Opens the thread at its new head.
    async fn repeat(&mut self) -> Result<()> {
        // The repeated work takes the rows of its outbox again.
        self.session.drop_held();
        self.is_fresh = !self.threads.is_kept(&self.scope);
        self.session = self.threads.current(&self.scope).await?;
        self.elsewhere = self.session.changes_elsewhere();
        Ok(())
    }

    /// Keeps a state that cannot be saved now. Returns the error for the caller.
    fn keep(&self, error: Error) -> Error {
        tracing::warn!(%error, "a thread is not saved yet and stays in memory");
        if self.threads.is_of_command {
            let message = format!("the changes to the thread are not saved: {}", error.message());
            return error.with_message(message).with_unknown_effect();
        }
        if self.is_fresh && self.threads.is_kept(&self.scope) {
            let message = format!("the change was made but is not saved: {}; check the files and repeat it", error.message());
            return error.with_message(message).with_unknown_effect();
        }
        self.threads.kept.lock().insert(self.scope.clone(), self.session.clone());
        unsaved_until(error, "the next call on this thread saves it first")
    }
}

/// Saves the state of a session whose save conflicted as a separate thread, so that it is not lost, and says so in the error.
pub(super) async fn set_aside(session: &Session, error: Error) -> Error {
    if error.kind() != ErrorKind::Conflict {
        return error;
    }
    let thread = session.scope().thread.as_deref().unwrap_or_default();
    let aside = format!("{thread}.{}", Uuid::now_v7());
    if let Err(error) = session.save_as(&aside).await {
        return error;
    }
    session.drop_held();
    let message = format!(
        "thread `{thread}` was saved by another session meanwhile and stays as that session left it; what this call left at `/` is saved as thread \
         `{aside}`; check the files and repeat what is missing"
    );
    error.with_message(message).with_unknown_effect()
}
