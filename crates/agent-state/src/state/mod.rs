//! The state of one session of an agent: its fields, their JSON, and views of it.
//!
//! A state is read from JSON and written back as JSON. Fields that this version does not know are kept at every level, and whatever was
//! not changed keeps its text byte for byte: unknown fields, white space, the order of fields, each message. See [`text`].

mod block;
mod context;
mod entries;
mod message;
mod permission;
mod plan;
mod tasks;
mod text;
mod time;
mod tool;
mod validity;
mod wire;

pub use block::{
    AudioBlock, Base64Source, Block, DataBlock, HintBlock, ImageBlock, Source, TextBlock, ThinkingBlock, ToolCallState, ToolResultBlock,
    ToolResultState, ToolUseBlock, UrlSource, VideoBlock,
};
pub use context::{Attribute, CallState, RuntimeContext};
pub use entries::Entries;
pub use message::{
    CallName, GenerateReason, METADATA_CHAT_USAGE, METADATA_GENERATE_REASON, METADATA_SYNTHETIC, Message, MessageFields, Role, Usage,
};
pub use permission::{PermissionBehavior, PermissionContext, PermissionMode, PermissionRule, Rules, WorkingDirectory};
pub use plan::PlanModeContext;
pub use tasks::{NewTask, TASKS_MAX, Task, TaskState, TasksContext};
pub use text::JsonForm;
pub(crate) use text::depth as text_depth;
pub use time::{parse_message_time, render_message_time};
pub use tool::{SpawnEntry, ToolContext};
pub(crate) use validity::Pairs;
pub use validity::{Flaw, OpenCall};

use crate::slot::StateSlot;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use text::{Parts, Separators};
use treehold_core::error::{Error, ErrorKind, Result};
use treehold_core::json::Json;
use uuid::Uuid;
use wire::{or_default, written};

/// The state of one session: what a call loads at its start, changes, and saves at its end.
///
/// ```
/// use treehold_agent_state::{AgentState, Message, PermissionMode, StateSlot};
///
/// let mut state = AgentState::new(&StateSlot::new(Some("ada"), "s1")?);
/// state.push(Message::user("hello", jiff::Timestamp::UNIX_EPOCH))?;
/// state.set_permission_mode(PermissionMode::Explore);
/// let stored = state.to_json()?;
/// let loaded = AgentState::from_stored(&stored)?;
/// assert_eq!(loaded, state);
/// assert_eq!(loaded.to_json()?, stored);
/// # Ok::<(), treehold_core::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct AgentState {
    fields: Fields,
    context: Vec<Message>,
    read: Read,
}

/// The JSON that a state was read from.
#[derive(Debug, Clone)]
struct Read {
    /// The text without the elements of the context.
    parts: Parts<'static>,
    form: JsonForm,
    separators: Separators,
    /// The fields that the text has, and all fields with those that were made up for it.
    base: String,
    filled: String,
}

/// The fields besides the context.
#[derive(Debug, Clone, PartialEq, Serialize)]
struct Fields {
    session_id: Option<String>,
    user_id: Option<String>,
    summary: String,
    /// Keeps the place of the context.
    context: [(); 0],
    reply_id: Option<String>,
    cur_iter: i32,
    shutdown_interrupted: bool,
    permission_context: PermissionContext,
    tool_context: ToolContext,
    tasks_context: TasksContext,
    plan_mode_context: PlanModeContext,
}

#[derive(Deserialize)]
struct Raw<'a> {
    session_id: Option<String>,
    user_id: Option<String>,
    #[serde(default, deserialize_with = "or_default")]
    summary: String,
    #[serde(borrow)]
    context: Option<&'a RawValue>,
    reply_id: Option<String>,
    #[serde(default, deserialize_with = "or_default")]
    cur_iter: i32,
    #[serde(default, deserialize_with = "or_default")]
    shutdown_interrupted: bool,
    #[serde(default, deserialize_with = "or_default")]
    permission_context: PermissionContext,
    #[serde(default, deserialize_with = "or_default")]
    tool_context: ToolContext,
    #[serde(default, deserialize_with = "or_default")]
    tasks_context: TasksContext,
    #[serde(default, deserialize_with = "or_default")]
    plan_mode_context: PlanModeContext,
}

fn new_id() -> String {
    Uuid::new_v4().simple().to_string()
}

impl AgentState {
    /// Creates the state of a session that has none.
    pub fn new(slot: &StateSlot) -> Self {
        let fields = Fields {
            session_id: Some(slot.session().to_owned()),
            user_id: slot.user().map(str::to_owned),
            summary: String::new(),
            context: [],
            reply_id: Some(new_id()),
            cur_iter: 0,
            shutdown_interrupted: false,
            permission_context: PermissionContext::default(),
            tool_context: ToolContext::default(),
            tasks_context: TasksContext::default(),
            plan_mode_context: PlanModeContext::default(),
        };
        let form = JsonForm::Compact;
        let parts = Parts { parts: Vec::new(), tail: "{}".into() };
        let read = Read { parts, form, separators: Separators::new(form), base: "{}".to_owned(), filled: String::new() };
        Self { fields, context: Vec::new(), read }
    }

    /// Reads a state that a caller gave.
    ///
    /// Missing fields and fields that are `null` have their defaults. The default of the ids is a random text of 32 hexadecimal digits.
    /// Cost: a few passes over the text.
    ///
    /// # Errors
    /// [`InvalidArgument`](ErrorKind::InvalidArgument) for JSON of another shape, an unknown role, mode or state, and limits out of
    /// their range. Unknown fields and unknown kinds of blocks are no error.
    pub fn from_json(json: &Json) -> Result<Self> {
        let raw: Raw<'_> = json.view()?;
        let parts = Parts::of(json.as_str(), true)?;
        let form = if parts.parts.first().is_some_and(|part| part.lead.contains('\n')) { JsonForm::Pretty } else { JsonForm::Compact };
        let (mut context, mut separators) = (Vec::new(), Separators::new(form));
        if let Some(raw) = raw.context {
            let array = Parts::of(raw.get(), false)?;
            separators = Separators::of(&array, form);
            context.reserve(array.parts.len());
            for (at, part) in array.parts.iter().enumerate() {
                let wrong = |error: Error| {
                    let message = format!("message {at} of the context: {}", error.message());
                    error.with_message(message)
                };
                context.push(Json::parse(&part.value).and_then(Message::stored).map_err(wrong)?);
            }
        }
        let mut fields = Fields {
            session_id: raw.session_id,
            user_id: raw.user_id,
            summary: raw.summary,
            context: [],
            reply_id: raw.reply_id,
            cur_iter: raw.cur_iter,
            shutdown_interrupted: raw.shutdown_interrupted,
            permission_context: raw.permission_context,
            tool_context: raw.tool_context,
            tasks_context: raw.tasks_context,
            plan_mode_context: raw.plan_mode_context,
        };
        let base = written(&fields);
        fields.session_id.get_or_insert_with(new_id);
        fields.reply_id.get_or_insert_with(new_id);
        let filled = written(&fields);
        let mut parts = parts;
        if raw.context.is_some()
            && let Some(at) = parts.position("context")
        {
            parts.parts[at].value = "".into();
        }
        Ok(Self { fields, context, read: Read { parts: parts.into_owned(), form, separators, base, filled } })
    }

    /// Reads a stored state.
    ///
    /// # Errors
    /// [`Corrupt`](ErrorKind::Corrupt) where [`AgentState::from_json`] fails. A state that cannot be read never becomes a fresh one.
    pub fn from_stored(json: &Json) -> Result<Self> {
        Self::from_json(json).map_err(|error| {
            let message = format!("the stored state cannot be read: {}", error.message());
            error.with_kind(ErrorKind::Corrupt).with_message(message)
        })
    }

    /// Writes the state.
    ///
    /// Of a state that was read, all that was not changed keeps its text; a new state is written without white space. Messages that are
    /// [synthetic](Message::is_synthetic) are left out, unless the state was read with them. Cost: one copy of the text.
    ///
    /// # Errors
    /// [`InvalidArgument`](ErrorKind::InvalidArgument) if the JSON nests too deep.
    pub fn to_json(&self) -> Result<Json> {
        self.write(&self.read.parts, self.read.form)
    }

    /// Writes the state in lines, as AgentScope writes it, whatever form it was read in.
    ///
    /// # Errors
    /// As [`AgentState::to_json`].
    pub fn to_pretty(&self) -> Result<String> {
        Ok(JsonForm::Pretty.render(&self.to_json()?))
    }

    fn write(&self, parts: &Parts<'static>, form: JsonForm) -> Result<Json> {
        let mut parts = parts.clone();
        let new = written(&self.fields);
        if new != self.read.filled {
            text::patch_parts(&mut parts, &self.read.base, &new, form, 0)?;
        }
        let mut stored = self.context.iter().filter(|message| message.is_stored()).peekable();
        let at = match parts.position("context") {
            // An absent context stays absent until there is a message.
            None if stored.peek().is_some() => {
                let at = parts.position("summary").map_or(parts.parts.len(), |summary| summary + 1);
                parts.insert(at, "context", String::new(), form, 1);
                Some(at)
            }
            Some(at) if &*parts.parts[at].value == "null" && stored.peek().is_none() => None,
            at => at,
        };
        if let Some(at) = at {
            let mut array = String::new();
            self.read.separators.write(stored.map(|message| message.text_in(form)), &mut array);
            parts.parts[at].value = array.into();
        }
        Json::parse(&parts.text())
    }

    /// Returns the id of the session.
    pub fn session_id(&self) -> &str {
        self.fields.session_id.as_deref().unwrap_or_default()
    }

    /// Returns the id of the user; `None` if the session is anonymous.
    pub fn user_id(&self) -> Option<&str> {
        self.fields.user_id.as_deref()
    }

    /// Returns the rolling summary; empty at first.
    pub fn summary(&self) -> &str {
        &self.fields.summary
    }

    /// Sets the rolling summary.
    pub fn set_summary(&mut self, summary: impl Into<String>) {
        self.fields.summary = summary.into();
    }

    /// Returns the messages.
    pub fn context(&self) -> &[Message] {
        &self.context
    }

    /// Returns the messages for changes. [`AgentState::push`] checks what it adds; this does not.
    pub fn context_mut(&mut self) -> &mut Vec<Message> {
        &mut self.context
    }

    /// Appends a message.
    ///
    /// # Errors
    /// [`InvalidArgument`](ErrorKind::InvalidArgument) for a message without a role, and for a block that its [role](Role::allows)
    /// does not allow.
    pub fn push(&mut self, message: Message) -> Result<()> {
        let role = message.role().ok_or_else(|| Error::invalid_argument("the message has no `role`; name its author"))?;
        if let Some(kind) = message.misplaced_kinds().first() {
            let message = format!("a message of the role `{role}` may not hold a `{kind}` block; send it with another role");
            return Err(Error::invalid_argument(message));
        }
        self.context.push(message);
        Ok(())
    }

    /// Returns the id of the current reply.
    pub fn reply_id(&self) -> &str {
        self.fields.reply_id.as_deref().unwrap_or_default()
    }

    /// Sets the id of the current reply. `None` makes a random one.
    pub fn set_reply_id(&mut self, id: Option<&str>) {
        self.fields.reply_id = Some(id.map_or_else(new_id, str::to_owned));
    }

    /// Returns the number of the current iteration of reasoning and acting.
    pub fn cur_iter(&self) -> i32 {
        self.fields.cur_iter
    }

    /// Sets the number of the current iteration.
    pub fn set_cur_iter(&mut self, iteration: i32) {
        self.fields.cur_iter = iteration;
    }

    /// Returns whether a shutdown interrupted the last call.
    pub fn is_shutdown_interrupted(&self) -> bool {
        self.fields.shutdown_interrupted
    }

    /// Sets whether a shutdown interrupted the last call.
    pub fn set_shutdown_interrupted(&mut self, interrupted: bool) {
        self.fields.shutdown_interrupted = interrupted;
    }

    /// Returns the permissions.
    pub fn permissions(&self) -> &PermissionContext {
        &self.fields.permission_context
    }

    /// Returns the permissions for changes.
    pub fn permissions_mut(&mut self) -> &mut PermissionContext {
        &mut self.fields.permission_context
    }

    /// Sets how calls of tools are judged. The rules stay.
    pub fn set_permission_mode(&mut self, mode: PermissionMode) {
        self.fields.permission_context.mode = mode;
    }

    /// Returns what tools keep.
    pub fn tools(&self) -> &ToolContext {
        &self.fields.tool_context
    }

    /// Returns what tools keep for changes.
    pub fn tools_mut(&mut self) -> &mut ToolContext {
        &mut self.fields.tool_context
    }

    /// Returns the tasks.
    pub fn tasks(&self) -> &TasksContext {
        &self.fields.tasks_context
    }

    /// Returns the tasks for changes.
    pub fn tasks_mut(&mut self) -> &mut TasksContext {
        &mut self.fields.tasks_context
    }

    /// Returns the plan mode.
    pub fn plan(&self) -> &PlanModeContext {
        &self.fields.plan_mode_context
    }

    /// Returns the plan mode for changes.
    pub fn plan_mut(&mut self) -> &mut PlanModeContext {
        &mut self.fields.plan_mode_context
    }

    /// Returns the estimate of the tokens of all messages.
    pub fn tokens(&self) -> u64 {
        self.context.iter().fold(0, |sum, message| sum.saturating_add(message.tokens()))
    }

    /// Returns the calls of tools without a result, in order.
    pub fn open_calls(&self) -> Vec<OpenCall> {
        Pairs::of(&self.context).open
    }

    /// Returns what a model would not accept, in order of the messages. A state with flaws can be stored and read.
    pub fn flaws(&self) -> Vec<Flaw> {
        validity::flaws(&self.context)
    }

    /// Answers all open calls with a text, so that a model accepts the context. The results of each message follow its other results.
    /// Returns how many calls were open.
    pub fn close_open_calls(&mut self, text: &str, state: ToolResultState, now: Timestamp) -> Result<usize> {
        let open = self.open_calls();
        let count = open.len();
        // From the last to the first, so that places stay valid.
        let mut rest = open.as_slice();
        while let Some(last) = rest.last() {
            let from = rest.partition_point(|call| call.message < last.message);
            let results = rest[from..].iter().map(|open| ToolResultBlock {
                id: open.call.id.clone(),
                name: open.call.name.clone(),
                output: vec![Block::text(text)],
                metadata: Entries::new(),
                state,
            });
            let after = self.context[last.message + 1..].iter().take_while(|message| message.role() == Some(Role::Tool)).count();
            let message = Message::tool_results(results.collect(), now)?;
            self.context.insert(last.message + 1 + after, message);
            rest = &rest[..from];
        }
        Ok(count)
    }
}

/// Compares the fields and the texts of the messages, not the layout.
impl PartialEq for AgentState {
    fn eq(&self, other: &Self) -> bool {
        let texts = |state: &Self| state.context.iter().map(|message| JsonForm::Compact.render(message.json())).collect::<Vec<_>>();
        self.fields == other.fields && self.context.len() == other.context.len() && texts(self) == texts(other)
    }
}
