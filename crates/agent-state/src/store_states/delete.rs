//! Deleting values and sessions.

use super::StoreStates;
use super::commit::fenced;
use super::head::{SeenHead, SeenSession};
use crate::bundle::remove_session;
use crate::contract::{DeleteOptions, DeleteSessionOptions, StateConflict, StateForm};
use crate::rows::{
    Due, FLOOR_TIME, Floor, Form, Owner, SessionRow, Task, floor_key, head_key, new_id, sealed_row, session_floor_key, session_key,
};
use crate::slot::StateSlot;
use bytes::Bytes;
use std::collections::BTreeSet;
use treehold_core::error::Result;
use treehold_core::retry::Attempts;
use treehold_store::{Batch, Condition};

impl StoreStates {
    /// Deletes a session with all of its values, and what a bundle keeps of it.
    pub(super) async fn delete_all(&self, slot: &StateSlot, options: &DeleteSessionOptions) -> Result<()> {
        let owner = self.owner(slot.user())?;
        let (states, session_key) = (owner.states()?, session_key(slot.session()));
        let mut attempts = Attempts::new();
        loop {
            let mut batch = remove_session(fenced(&owner, options.fence.as_ref())?, &owner.bundle()?, slot.session())?;
            let Some(session) = self.store().get(&states, &session_key).await? else {
                if self.commit(batch.expect(&states, &session_key, Condition::Absent), options.fence.is_some()).await? {
                    return Ok(());
                }
                attempts.lost().await?;
                continue;
            };
            batch = batch.expect(&states, &session_key, Condition::Version(session.version)).delete(&states, &session_key);
            let mut floor = 0;
            let mut data: BTreeSet<String> = SeenSession::read(&session).map(|session| session.row.data).into_iter().collect();
            for (form, key, item) in self.heads(&owner, slot.session()).await? {
                let key = head_key(slot.session(), form, &key);
                batch = batch.expect(&states, &key, Condition::Version(item.version)).delete(&states, key);
                // Versions of rows grow faster than those of states.
                let row_version = item.version.number();
                let meta = SeenHead::read(item).map(|head| head.meta);
                floor = meta.as_ref().map_or(row_version, |meta| meta.version).max(floor);
                data.extend(meta.map(|meta| meta.data));
            }
            if data.is_empty() {
                // All that named the data is damaged. The removal still looks whether this was the user's last session.
                data.insert(new_id());
            }
            batch = batch.put_for(&states, session_floor_key(slot.session()), sealed_row(&Floor { version: floor }), FLOOR_TIME);
            let due = |data| Due { owner: owner.clone(), session: slot.session().to_owned(), data, task: Task::RemoveData };
            if self.commit_removal(&owner, batch, data.into_iter().map(due).collect(), options.fence.is_some()).await? {
                return Ok(());
            }
            attempts.lost().await?;
        }
    }

    /// Deletes forms of a key. Returns false if another writer was faster.
    pub(super) async fn delete_forms(&self, owner: &Owner, slot: &StateSlot, key: &str, options: &DeleteOptions) -> Result<bool> {
        let (states, session_key) = (owner.states()?, session_key(slot.session()));
        let forms: &[Form] = match options.only_form() {
            None => &Form::ALL,
            Some(StateForm::Single) => &[Form::Single],
            Some(StateForm::List) => &[Form::List],
        };
        let mut keys = vec![session_key.clone()];
        keys.extend(forms.iter().map(|form| head_key(slot.session(), *form, key)));
        let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
        let mut found = self.store().get_many(&states, &keys, false).await?.into_iter();
        let session = found.next().flatten().map(|item| SeenSession::read(&item)).transpose()?;
        let mut heads = Vec::with_capacity(forms.len());
        for (form, item) in forms.iter().zip(found) {
            let head = item.map(SeenHead::read).transpose()?.filter(|head| head.is_of(session.as_ref()));
            heads.extend(head.map(|head| (*form, head)));
        }
        let current = heads.first().map(|(_, head)| head.state_version()).transpose()?;
        if !options.expected.admits(current) {
            return Err(StateConflict::new(slot, key, options.expected, current).into_error());
        }
        let (batch, is_fenced) = (fenced(owner, options.fence.as_ref())?, options.fence.is_some());
        let Some(session) = session.filter(|_| !heads.is_empty()) else {
            return if is_fenced { self.commit(batch, true).await } else { Ok(true) };
        };
        let mut batch = batch.expect(&states, &session_key, Condition::Version(session.version));
        let due = |task| Due { owner: owner.clone(), session: slot.session().to_owned(), data: session.row.data.clone(), task };
        let mut dues = Vec::new();
        for (form, head) in &heads {
            let (head_key, floor) = (head_key(slot.session(), *form, key), Floor { version: head.meta.version });
            batch = batch.expect(&states, &head_key, Condition::Version(head.version)).delete(&states, head_key).put_for(
                &states,
                floor_key(slot.session(), *form, key),
                sealed_row(&floor),
                FLOOR_TIME,
            );
            dues.extend(head.meta.log.clone().map(|log| due(Task::RemoveLog(log))));
        }
        let keys = session.row.keys.saturating_sub(heads.len() as u64);
        if keys == 0 {
            batch = batch.delete(&states, session_key);
            dues = vec![due(Task::RemoveData)];
        } else {
            let row = SessionRow { keys, ..session.row.clone() };
            let time_to_live = self.states.options.expiry.time_to_live(slot);
            batch = batch.put_item(&states, session_key, sealed_row(&row), Bytes::new(), time_to_live);
        }
        self.commit_removal(owner, batch, dues, is_fenced).await
    }

    /// Commits a deletion, and then removes what remains. Otherwise as [`StoreStates::commit`].
    async fn commit_removal(&self, owner: &Owner, mut batch: Batch, dues: Vec<Due>, is_fenced: bool) -> Result<bool> {
        let visit = owner.visit_for_deletion(self.states.now());
        for due in &dues {
            batch = batch.put(&owner.due()?, due.key(visit), sealed_row(due));
        }
        let proofs = if dues.is_empty() { Vec::new() } else { vec![self.states.needed_visit(owner, visit).await?] };
        if !self.commit_with(owner, batch, &proofs, is_fenced).await? {
            return Ok(false);
        }
        for due in &dues {
            // The state is gone, whatever happens to its log.
            if let Err(error) = self.states.remove(due, &due.key(visit)).await {
                tracing::warn!(%error, session = due.session, "the messages of a deleted state remain until the next sweep");
            }
        }
        Ok(true)
    }
}
