//! The tasks that the agent tracks in a session.

use super::entries::Entries;
use super::wire::{only_from_objects, only_objects, or_default, wire_enum};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use std::collections::{HashMap, HashSet};
use treehold_core::error::{Error, ErrorKind, Result};
use treehold_core::json::Json;
use uuid::Uuid;

/// The most tasks of a session.
pub const TASKS_MAX: usize = 10_000;

wire_enum! {
    /// How far a task is.
    #[derive(Default)]
    TaskState, "task state", str::eq_ignore_ascii_case {
        /// Not begun.
        #[default]
        Pending = "pending",
        /// Begun.
        InProgress = "in_progress",
        /// Done.
        Completed = "completed",
    }
}

/// A task.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(remote = "Self")]
pub struct Task {
    /// A short name.
    pub subject: String,
    /// What is to be done.
    pub description: String,
    /// Further facts.
    #[serde(default)]
    pub metadata: Entries<Json>,
    /// When it was created: ISO 8601 with an offset.
    #[serde(default)]
    pub created_at: Option<String>,
    /// How far it is.
    #[serde(default, deserialize_with = "or_default")]
    pub state: TaskState,
    /// Its id. A stored task without one gets one from its other fields when it is read.
    #[serde(default, deserialize_with = "or_default")]
    id: String,
    /// Who works on it.
    #[serde(default)]
    pub owner: Option<String>,
    /// The tasks that wait for this one.
    #[serde(default, deserialize_with = "or_default")]
    blocks: Vec<String>,
    /// The tasks that this one waits for.
    #[serde(default, deserialize_with = "or_default")]
    blocked_by: Vec<String>,
}

impl Task {
    /// Returns its id.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Returns the ids of the tasks that wait for this one. See [`TasksContext::block`].
    pub fn blocks(&self) -> &[String] {
        &self.blocks
    }

    /// Returns the ids of the tasks that this one waits for.
    pub fn blocked_by(&self) -> &[String] {
        &self.blocked_by
    }

    /// Returns when it was created, if it says so in a form that can be read.
    pub fn created(&self) -> Option<Timestamp> {
        self.created_at.as_deref()?.parse().ok()
    }
}

/// A task to create.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct NewTask {
    /// A short name.
    pub subject: String,
    /// What is to be done.
    pub description: String,
    /// The id; a random one if there is none.
    pub id: Option<String>,
    /// Who works on it.
    pub owner: Option<String>,
    /// Further facts.
    pub metadata: Entries<Json>,
    /// The tasks that it waits for.
    pub blocked_by: Vec<String>,
}

impl NewTask {
    /// Describes a task.
    pub fn new(subject: impl Into<String>, description: impl Into<String>) -> Self {
        Self { subject: subject.into(), description: description.into(), ..Self::default() }
    }

    /// Sets the id.
    #[must_use]
    pub fn with_id(mut self, id: impl Into<String>) -> Self {
        self.id = Some(id.into());
        self
    }

    /// Sets who works on it.
    #[must_use]
    pub fn with_owner(mut self, owner: impl Into<String>) -> Self {
        self.owner = Some(owner.into());
        self
    }

    /// Adds a fact.
    #[must_use]
    pub fn with_metadata(mut self, key: impl Into<String>, value: Json) -> Self {
        self.metadata.insert(key, value);
        self
    }

    /// Adds a task that it waits for.
    #[must_use]
    pub fn with_blocked_by(mut self, id: impl Into<String>) -> Self {
        self.blocked_by.push(id.into());
        self
    }
}

/// The tasks of a session, in the order of their creation.
///
/// ```
/// use treehold_agent_state::{NewTask, TaskState, TasksContext};
///
/// let mut tasks = TasksContext::default();
/// let now = jiff::Timestamp::UNIX_EPOCH;
/// let build = tasks.create(NewTask::new("build", "Build the release"), now)?;
/// let ship = tasks.create(NewTask::new("ship", "Ship it").with_blocked_by(&build), now)?;
/// assert_eq!(tasks.ready().map(|task| task.id()).collect::<Vec<_>>(), [&build]);
/// tasks.get_mut(&build)?.state = TaskState::Completed;
/// assert_eq!(tasks.ready().map(|task| task.id()).collect::<Vec<_>>(), [&ship]);
/// # Ok::<(), treehold_core::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(from = "Fields")]
pub struct TasksContext {
    tasks: Vec<Task>,
}

#[derive(Deserialize)]
#[serde(remote = "Self")]
struct Fields {
    #[serde(default, deserialize_with = "or_default")]
    tasks: Vec<Task>,
}

impl From<Fields> for TasksContext {
    fn from(fields: Fields) -> Self {
        let mut tasks = fields.tasks;
        let mut seen = HashMap::new();
        for task in tasks.iter_mut().filter(|task| task.id.is_empty()) {
            // The same task gets the same id at each read; equal ones are counted.
            let text = format!("{:?}", (&task.subject, &task.description, &task.created_at));
            let count = seen.entry(text.clone()).and_modify(|count| *count += 1).or_insert(0_usize);
            task.id = blake3::hash(format!("{text}{count}").as_bytes()).to_hex()[..32].to_owned();
        }
        Self { tasks }
    }
}

impl TasksContext {
    /// Returns the tasks.
    pub fn tasks(&self) -> &[Task] {
        &self.tasks
    }

    /// Returns the task with an id.
    pub fn get(&self, id: &str) -> Option<&Task> {
        self.tasks.iter().find(|task| task.id == id)
    }

    /// Returns the task with an id for changes.
    ///
    /// # Errors
    /// [`NotFound`](ErrorKind::NotFound) if there is none.
    pub fn get_mut(&mut self, id: &str) -> Result<&mut Task> {
        self.tasks.iter_mut().find(|task| task.id == id).ok_or_else(|| absent(id))
    }

    /// Creates a task and returns its id. The tasks that it waits for name it in [`Task::blocks`].
    ///
    /// # Errors
    /// [`AlreadyExists`](ErrorKind::AlreadyExists) if the id is taken. [`NotFound`](ErrorKind::NotFound) if it waits for a task that
    /// is not there. [`InvalidArgument`](ErrorKind::InvalidArgument) for an empty subject or id. [`TooLarge`](ErrorKind::TooLarge)
    /// beyond [`TASKS_MAX`].
    pub fn create(&mut self, new: NewTask, now: Timestamp) -> Result<String> {
        if self.tasks.len() >= TASKS_MAX {
            let message = format!("the session has {TASKS_MAX} tasks already; remove completed ones");
            return Err(Error::new(ErrorKind::TooLarge, message));
        }
        if new.subject.trim().is_empty() {
            return Err(Error::invalid_argument("the subject of a task is empty; say in a few words what it is"));
        }
        let id = new.id.unwrap_or_else(|| Uuid::new_v4().simple().to_string());
        if id.is_empty() {
            return Err(Error::invalid_argument("the id of a task is empty; leave it out to get one"));
        }
        if self.get(&id).is_some() {
            return Err(Error::new(ErrorKind::AlreadyExists, format!("the task `{id}` exists already")));
        }
        if let Some(missing) = new.blocked_by.iter().find(|blocker| self.get(blocker).is_none()) {
            return Err(absent(missing));
        }
        self.tasks.push(Task {
            subject: new.subject,
            description: new.description,
            metadata: new.metadata,
            created_at: Some(now.to_string()),
            state: TaskState::Pending,
            id: id.clone(),
            owner: new.owner,
            blocks: Vec::new(),
            blocked_by: Vec::new(),
        });
        for blocker in new.blocked_by {
            self.block(&blocker, &id)?;
        }
        Ok(id)
    }

    /// Makes the task `blocked` wait for the task `blocker`. Doing it twice changes nothing.
    ///
    /// # Errors
    /// [`NotFound`](ErrorKind::NotFound) if one is not there. [`InvalidArgument`](ErrorKind::InvalidArgument) if `blocker` waits for
    /// `blocked` already, directly or through others.
    pub fn block(&mut self, blocker: &str, blocked: &str) -> Result<()> {
        let known: HashMap<&str, &Task> = self.tasks.iter().map(|task| (task.id(), task)).collect();
        for id in [blocker, blocked] {
            if !known.contains_key(id) {
                return Err(absent(id));
            }
        }
        let (mut open, mut seen) = (vec![blocker], HashSet::new());
        while let Some(id) = open.pop() {
            if id == blocked {
                return Err(Error::invalid_argument(format!("the task `{blocker}` waits for `{blocked}`, so it cannot block it")));
            }
            if seen.insert(id) {
                open.extend(known.get(id).into_iter().flat_map(|task| task.blocked_by.iter().map(String::as_str)));
            }
        }
        drop(known);
        let add = |list: &mut Vec<String>, id: &str| {
            if list.iter().all(|other| other != id) {
                list.push(id.to_owned());
            }
        };
        add(&mut self.get_mut(blocker)?.blocks, blocked);
        add(&mut self.get_mut(blocked)?.blocked_by, blocker);
        Ok(())
    }

    /// Removes a task, and its id from the tasks that wait for it or that it waits for.
    ///
    /// # Errors
    /// [`NotFound`](ErrorKind::NotFound) if it is not there.
    pub fn remove(&mut self, id: &str) -> Result<Task> {
        let at = self.tasks.iter().position(|task| task.id == id).ok_or_else(|| absent(id))?;
        let removed = self.tasks.remove(at);
        for task in &mut self.tasks {
            task.blocks.retain(|other| other != id);
            task.blocked_by.retain(|other| other != id);
        }
        Ok(removed)
    }

    /// Returns the pending tasks that wait for no other: all that they wait for are completed or gone.
    pub fn ready(&self) -> impl Iterator<Item = &Task> {
        let open: HashSet<&str> = self.tasks.iter().filter(|task| task.state != TaskState::Completed).map(Task::id).collect();
        self.tasks
            .iter()
            .filter(move |task| task.state == TaskState::Pending && task.blocked_by.iter().all(|id| !open.contains(id.as_str())))
    }
}

fn absent(id: &str) -> Error {
    Error::new(ErrorKind::NotFound, format!("there is no task `{}`; list the tasks for their ids", id.escape_debug()))
}

only_objects!(Task);
only_from_objects!(Fields);
