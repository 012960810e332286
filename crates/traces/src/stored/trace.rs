//! Creates, returns, changes and deletes traces.

use super::draft::Draft;
use super::registration::Registration;
use super::rows::{
    self, Description, Head, LIVE, Opened, Part, Removal, corrupt, description_key, head_key, position_key, time_text, trace_of,
};
use super::text::{check_key, checked, without};
use super::{StoredTraces, local, path, recent};
use crate::id::TraceId;
use crate::model::{NewTrace, Trace, TraceEvent, TraceStatus, TraceUpdate, kinds};
use serde_json::json;
use treehold_core::error::{Error, ErrorKind, Result};
use treehold_core::json::{row, stored};
use treehold_core::retry::Attempts;
use treehold_store::intent::Intent;
use treehold_store::{Batch, Condition};

/// The fields of a trace. No other field has one of these names.
const FIELDS: &[&str] = &[
    "trace_id",
    "mode",
    "task",
    "parent_trace_id",
    "parent_goal_id",
    "agent_type",
    "uid",
    "status",
    "total_messages",
    "total_tokens",
    "total_cost",
    "total_duration_ms",
    "last_sequence",
    "last_event_id",
    "current_goal_id",
    "head_sequence",
    "created_at",
    "completed_at",
    "run_config",
    "remote",
    "stale",
    "goal_tree",
];

impl StoredTraces {
    /// Creates a trace. Cost: three reads and three commits.
    pub(super) async fn create(&self, trace: NewTrace) -> Result<Trace> {
        let id = match &trace.trace_id {
            Some(address) => local(address)?.clone(),
            None => TraceId::new((self.traces.ids)())?,
        };
        let mode = trace.mode;
        let description = description_of(trace);
        let value = checked("trace", &description, self.options().trace_bytes_max)?;
        let mut attempts = Attempts::new();
        loop {
            let taken = || {
                let message = format!("the trace id `{id}` is taken; choose another one, or leave it out for a random one");
                Err(Error::new(ErrorKind::AlreadyExists, message).without_effect())
            };
            if self.owner(&id).await?.is_some() {
                return taken();
            }
            let now = self.traces.now();
            let head = Head {
                data: (self.traces.ids)(),
                mode,
                status: TraceStatus::Running,
                created_at: now,
                completed_at: None,
                last_sequence: 0,
                last_event_id: 1,
                total_tokens: 0,
                total_cost: 0.0,
                total_duration_ms: 0,
                current_goal_id: None,
                path: path::Path::default(),
            };
            let created = TraceEvent {
                event_id: head.last_event_id,
                event: kinds::TRACE_CREATED.to_owned(),
                ts: Some(time_text(now)),
                data: [("mode".to_owned(), json!(mode))].into_iter().collect(),
            };
            let traces = self.rows.traces()?;
            let batch = Batch::new()
                .expect(&traces, head_key(&id), Condition::Absent)
                .put(&traces, head_key(&id), row(&head))
                .put(&traces, description_key(&id), value.clone())
                .put(&self.rows.data(&head.data)?, LIVE, "")
                .put(&self.rows.part(&head.data, Part::Events)?, position_key(head.last_event_id), row(&created));
            let batch = recent::list(batch, &self.rows, &id, &head)?;
            match self.register(&id).await? {
                Registration::Intended(intent) => {
                    let batch = recent::count(batch, self.store(), &self.rows, &id, None, Some(head.kind())).await?;
                    if self.commit(intent.fulfil(batch)).await? {
                        return Ok(trace_of(&self.rows.user, &id, &head, description));
                    }
                    intent.withdraw(self.store()).await;
                }
                Registration::Taken => return taken(),
                Registration::Lost => {}
            }
            attempts.lost().await?;
        }
    }

    /// Returns a trace. Cost: one round trip.
    pub(super) async fn get(&self, id: &TraceId) -> Result<Option<Trace>> {
        let (traces, keys) = (self.rows.traces()?, [head_key(id), description_key(id)]);
        let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
        loop {
            let mut found = self.store().get_many(&traces, &keys, true).await?.into_iter();
            if let Some(head) = found.next().flatten() {
                let description = found.next().flatten().ok_or_else(|| no_description(id))?;
                let (head, description) = (Head::read(&head.value)?, stored("description of a trace", &description.value)?);
                return Ok(Some(trace_of(&self.rows.user, id, &head, description)));
            }
            if self.find(id).await?.is_none() {
                return Ok(None);
            }
        }
    }

    /// Changes a trace. Cost: three round trips; one more for another status.
    pub(super) async fn update(&self, id: &TraceId, update: TraceUpdate) -> Result<Trace> {
        let mut attempts = Attempts::new();
        loop {
            let mut draft = self.draft(id).await?;
            let planned = self.plan_update(&mut draft, id, &update).await?;
            let description = match planned {
                Some(description) => description,
                None => self.description(id).await?,
            };
            let head = draft.next.clone();
            if head == draft.opened.head || draft.commit().await? {
                return Ok(trace_of(&self.rows.user, id, &head, description));
            }
            attempts.lost().await?;
        }
    }

    /// Plans a change of a trace. Returns the description that it leads to, if that was read.
    ///
    /// Cost: one round trip for a task or configuration, and one for another head.
    pub(super) async fn plan_update(&self, draft: &mut Draft<'_>, id: &TraceId, update: &TraceUpdate) -> Result<Option<Description>> {
        let current_goal = update.current_goal_id.as_deref().map(|goal| (!goal.is_empty()).then_some(goal));
        if let Some(Some(goal)) = current_goal {
            check_key("goal", goal)?;
        }
        let mut changed = Vec::new();
        let mut described = None;
        if update.task.is_some() || update.run_config.is_some() {
            let before = self.description(id).await?;
            let mut next = before.clone();
            next.task = update.task.clone().or(next.task);
            next.run_config = update.run_config.clone().or(next.run_config);
            if next != before {
                let value = checked("trace", &next, self.options().trace_bytes_max)?;
                let traces = self.rows.traces()?;
                draft.add(|batch| batch.put(&traces, description_key(id), value));
                changed.extend((next.task != before.task).then_some("task"));
                changed.extend((next.run_config != before.run_config).then_some("run_config"));
            }
            described = Some(next);
        }
        if let Some(goal) = current_goal
            && draft.next.current_goal_id.as_deref() != goal
        {
            draft.next.current_goal_id = goal.map(str::to_owned);
            changed.push("current_goal_id");
        }
        if let Some(duration_ms) = update.add_duration_ms.filter(|duration_ms| *duration_ms > 0) {
            draft.next.total_duration_ms = draft.next.total_duration_ms.saturating_add(duration_ms);
            changed.push("total_duration_ms");
        }
        if !changed.is_empty() {
            draft.tell(kinds::TRACE_UPDATED, [("changed", json!(changed))])?;
        }
        if let Some(head) = update.head_sequence.filter(|head| *head != draft.next.sequence()) {
            draft.next.path = self.path_to(&draft.opened, head).await?;
            draft.tell(kinds::HEAD_MOVED, [("head_sequence", json!(head))])?;
        }
        if let Some(status) = update.status.filter(|status| *status != draft.next.status) {
            draft.next.status = status;
            draft.next.completed_at = status.is_final().then_some(draft.now);
            draft.tell(status_kind(status), [("status", json!(status))])?;
        }
        Ok(described)
    }

    async fn description(&self, id: &TraceId) -> Result<Description> {
        let item = self.store().get(&self.rows.traces()?, &description_key(id)).await?.ok_or_else(|| no_description(id))?;
        stored("description of a trace", &item.value)
    }

    /// Returns the path to a message; the empty path for 0. Cost: one round trip, none for the head.
    ///
    /// # Errors
    /// [`InvalidArgument`](ErrorKind::InvalidArgument) for a sequence that no message has.
    pub(super) async fn path_to(&self, opened: &Opened, sequence: u64) -> Result<path::Path> {
        if sequence == 0 {
            return Ok(path::Path::default());
        }
        if sequence == opened.head.sequence() {
            return Ok(opened.head.path.clone());
        }
        if !opened.head.has(sequence) {
            return Err(no_sequence(sequence, &opened.head));
        }
        let mut found = self.metas(opened, &[sequence]).await?;
        Ok(found.pop().expect("one for each sequence").path)
    }

    /// Deletes a trace: hides it with one commit, and then removes its rows. Returns whether it existed.
    ///
    /// If the removal fails or takes many steps, a [`TracesSweeper`](super::TracesSweeper) completes it.
    pub(super) async fn delete(&self, id: &TraceId) -> Result<bool> {
        let mut attempts = Attempts::new();
        loop {
            let Some(opened) = self.find(id).await? else { return Ok(false) };
            let head = &opened.head;
            let removal = Removal {
                tenant: self.rows.tenant.clone(),
                user: self.rows.user.clone(),
                trace: id.clone().into(),
                data: head.data.clone(),
            };
            let traces = self.rows.traces()?;
            let key = rows::new_key(&removal.deletions());
            let intent = Intent::put(self.store(), &self.rows.intents()?, key, self.traces.clock.now()).await?;
            self.store().commit(removal.put(Batch::new())).await?;
            let batch = Batch::new()
                .expect(&traces, head_key(id), Condition::Version(opened.version))
                .delete(&traces, head_key(id))
                .delete(&traces, description_key(id))
                .delete(&self.rows.data(&head.data)?, LIVE)
                // Whoever watches the events sees that the trace is gone.
                .delete(&self.part(&opened, Part::Events)?, position_key(1));
            let batch = recent::unlist(batch, &self.rows, id, head)?;
            let batch = recent::count(batch, self.store(), &self.rows, id, Some(head.kind()), None).await?;
            if self.commit(intent.fulfil(batch)).await? {
                if let Err(error) = self.traces.remove(&removal, None).await {
                    tracing::warn!(%error, trace = %id, "the rows of a deleted trace remain until the next sweep");
                }
                return Ok(true);
            }
            intent.withdraw(self.store()).await;
            attempts.lost().await?;
        }
    }
}

/// Makes the error for a sequence that no message has.
pub(super) fn no_sequence(sequence: u64, head: &Head) -> Error {
    let message = match head.last_sequence {
        0 => format!("the trace has no message {sequence}; it is empty"),
        last => format!("the trace has no message {sequence}; its messages are 1 to {last}"),
    };
    Error::invalid_argument(message)
}

pub(super) fn no_description(id: &TraceId) -> Error {
    corrupt(format!("the description of the trace `{id}` is missing; restore a backup"))
}

fn status_kind(status: TraceStatus) -> &'static str {
    match status {
        TraceStatus::Running => kinds::TRACE_RESUMED,
        TraceStatus::Completed => kinds::TRACE_COMPLETED,
        TraceStatus::Failed => kinds::TRACE_FAILED,
        TraceStatus::Stopped => kinds::TRACE_STOPPED,
    }
}

fn description_of(trace: NewTrace) -> Description {
    let NewTrace { task, parent_trace_id, parent_goal_id, agent_type, run_config, other, .. } = trace;
    Description { task, parent_trace_id, parent_goal_id, agent_type, run_config, other: without(&other, FIELDS) }
}
