//! `run`: plays a transcript of tool calls and prints each result as the model would see it.

use crate::commands::tools::Set;
use crate::context::{self, Context, REPLAYS_MAX, pause};
use crate::exit::{Failure, Outcome, error_of, tell};
use crate::output::{Format, Style, counted, stdout_is_terminal};
use clap::Args;
use serde::Serialize;
use serde_json::Value;
use std::fs::File;
use std::io::{self, BufRead, BufReader};
use tokio::sync::mpsc;
use treehold::error::ErrorRecord;
use treehold::scope::ScopeField;
use treehold::session::CallNotes;
use treehold::tools::{Transcript, TranscriptEvent};
use treehold::{Error, ErrorKind, Scope, Session, ToolCall, ToolOutput};

/// Play a transcript of tool calls
///
/// Reads JSON Lines of calls, or recorded messages of the Anthropic or OpenAI API, makes each call, and prints what the model
/// would be told. A line `{"thread": "t2"}` goes on in another thread. A line that is none of these, or has an unknown key, is told
/// of by its number and counts as failed. All calls are made; the exit code is that of the first
/// one that failed. A closed output does not stop the play.
#[derive(Debug, Args)]
#[command(after_long_help = r#"Examples:
  treehold run conversation.jsonl
  echo '{"tool": "ls", "args": {"path": "/memories"}}' | treehold run -"#)]
pub(crate) struct Run {
    /// Transcript; `-` reads standard input
    file: String,
    /// Read all calls as those of one set of tools [default: the file tools, `memory` and `str_replace_based_edit_tool`]
    #[arg(long, value_enum, value_name = "SET")]
    set: Option<Set>,
    /// Exit 0 although calls failed
    #[arg(long)]
    allow_errors: bool,
}

/// A call with its result as JSON.
#[derive(Debug, Serialize)]
struct Played<'a> {
    line: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<&'a str>,
    thread: &'a str,
    tool: &'a str,
    #[serde(skip_serializing_if = "Value::is_null")]
    arguments: Value,
    #[serde(flatten)]
    output: &'a ToolOutput,
}

impl Run {
    pub(crate) async fn run(self, context: &mut Context) -> Result<Outcome, Failure> {
        let mut events = match self.file.as_str() {
            "-" => events(BufReader::new(io::stdin()), self.set),
            file => events(BufReader::new(File::open(file).map_err(|error| context::unread(file, error))?), self.set),
        };
        let mut player = Player::new(context).await?;
        let progress = context.progress("playing");
        while let Some(event) = events.recv().await {
            player.play(context, event).await?;
            if !stdout_is_terminal() {
                progress.tell(player.calls as u64, "calls");
            }
        }
        drop(progress);
        let (player, saved) = player.end(context).await;
        if context.out.format() == Format::Json {
            let played = Value::Array(player.played);
            player_output(context.out.json(&played))?;
        }
        context.out.notice(format_args!("{}, {} failed", counted(player.calls, "call", "calls"), player.failures));
        saved?;
        Ok(match player.first_failure {
            Some(kind) if !self.allow_errors => Outcome::Failed(kind),
            _ => Outcome::Done,
        })
    }
}

/// Reads a transcript on a separate thread, so that a silent pipe does not delay signals.
fn events(reader: impl BufRead + Send + 'static, set: Option<Set>) -> mpsc::Receiver<TranscriptEvent> {
    let (sender, receiver) = mpsc::channel(1);
    tokio::task::spawn_blocking(move || {
        let transcript = Transcript::new(reader);
        let transcript = set.map(Set::tools).into_iter().fold(transcript, Transcript::with_tools);
        for event in transcript {
            if sender.blocking_send(event).is_err() {
                break;
            }
        }
    });
    receiver
}

/// The state of a play: its thread and results.
struct Player {
    base: Scope,
    session: Session,
    /// Whether the thread has changes that could not be saved.
    holds_unsaved: bool,
    calls: usize,
    failures: usize,
    first_failure: Option<ErrorKind>,
    /// The calls so far, for the single JSON value at the end.
    played: Vec<Value>,
}

impl Player {
    async fn new(context: &mut Context) -> Result<Self, Failure> {
        let session = context.session().await?;
        Ok(Self { base: context.scope()?, session, holds_unsaved: false, calls: 0, failures: 0, first_failure: None, played: Vec::new() })
    }

    async fn play(&mut self, context: &mut Context, event: TranscriptEvent) -> Result<(), Failure> {
        match event {
            TranscriptEvent::Call { line, id, name, call } => {
                self.calls += 1;
                let shown = call.as_ref().map_or_else(|_| name.clone(), ToString::to_string);
                let (arguments, output) = self.call(call, id.as_deref()).await;
                if let Some(error) = &output.error {
                    self.failed(error);
                }
                let thread = thread(&self.session);
                let played = Played { line, id: id.as_deref(), thread, tool: &name, arguments, output: &output };
                print(context, &mut self.played, &played, &shown)
            }
            TranscriptEvent::Thread { scope, .. } => {
                save(context, &self.session).await?;
                if context.out.is_text() {
                    let head = context.out.paint(Style::Faint, format_args!("# {}", who(&scope))).to_string();
                    player_output(context.out.line(head).and_then(|()| context.out.empty_line()))?;
                }
                let scope = overlaid(&self.base, scope);
                self.session = context.workspace()?.session(scope).await?;
                self.holds_unsaved = false;
                Ok(())
            }
            TranscriptEvent::Invalid { line, error } => {
                let message = format!("line {line}: {}", error.message());
                let error = error.with_message(message);
                self.failed(&ErrorRecord::from(&error));
                tell(&error, &context.global);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    async fn call(&mut self, call: Result<ToolCall, Error>, id: Option<&str>) -> (Value, ToolOutput) {
        match call {
            Ok(call) => {
                let notes = id.map_or_else(CallNotes::new, |id| CallNotes::new().with_tool_call_id(id));
                let arguments = call.arguments();
                (arguments, self.lasting(call, &notes).await)
            }
            Err(error) => (Value::Null, ToolOutput::from_error(&error)),
        }
    }

    /// Makes a call. If another session saved the thread meanwhile, the call is repeated on the new state, unless it changed something
    /// outside the thread or there were unsaved changes before it.
    async fn lasting(&mut self, call: ToolCall, notes: &CallNotes) -> ToolOutput {
        let mut attempt = 0;
        loop {
            let before = self.session.changes_elsewhere();
            let output = self.session.call_noting(call.clone(), notes.clone()).await;
            let is_refused = output.unsaved && output.error.as_ref().is_some_and(|error| error.code == ErrorKind::Conflict.code());
            let is_alone = !self.holds_unsaved && self.session.changes_elsewhere() == before;
            if !is_refused || !is_alone || attempt == REPLAYS_MAX || self.session.reload().await.is_err() {
                let saved_nothing = output.is_error || call.info().read_only;
                self.holds_unsaved = output.unsaved || self.holds_unsaved && saved_nothing;
                return output;
            }
            pause(attempt).await;
            attempt += 1;
        }
    }

    fn failed(&mut self, error: &ErrorRecord) {
        self.failures += 1;
        self.first_failure.get_or_insert(error_of(error).kind());
    }

    async fn end(self, context: &mut Context) -> (Self, Result<(), Failure>) {
        let saved = save(context, &self.session).await;
        (self, saved)
    }
}

/// Prints one call with its result, or keeps it for the single JSON value at the end.
fn print(context: &mut Context, kept: &mut Vec<Value>, played: &Played<'_>, shown: &str) -> Result<(), Failure> {
    let out = &mut context.out;
    match out.format() {
        Format::Json => kept.push(serde_json::to_value(played).unwrap_or_default()),
        // Flush each result, since whoever feeds the pipe waits for it.
        Format::JsonLines => player_output(out.json(played).and_then(|()| out.flush()))?,
        Format::Text => {
            let head = out.paint(Style::Faint, format_args!("> {shown}")).to_string();
            let end = if played.output.text.ends_with('\n') { "" } else { "\n" };
            player_output(out.line(head))?;
            player_output(out.text(format_args!("{}{end}\n", played.output.text)).and_then(|()| out.flush()))?;
        }
    }
    Ok(())
}

/// Saves the thread of a session. After a conflict with another save, the state is saved as a new thread instead, so that it is not lost.
async fn save(context: &mut Context, session: &Session) -> Result<(), Failure> {
    match context.save_session(session).await {
        Ok(()) => Ok(()),
        Err(error) => Err(context.set_aside(session, error).await.into()),
    }
}

/// Ignores a closed output: the effects of a play must not depend on its reader.
fn player_output(printed: Result<(), Failure>) -> Result<(), Failure> {
    match printed {
        Err(Failure::ClosedPipe) => Ok(()),
        printed => printed,
    }
}

fn thread(session: &Session) -> &str {
    session.scope().thread.as_deref().unwrap_or_default()
}

/// Describes the scope that a transcript sets, such as `user ada, thread t2`.
fn who(scope: &Scope) -> String {
    let named = ScopeField::ALL.into_iter().filter_map(|field| scope.field(field).map(|id| format!("{field} {id}")));
    named.collect::<Vec<_>>().join(", ")
}

/// Returns the caller's scope, overridden by the fields that a transcript sets.
fn overlaid(base: &Scope, set: Scope) -> Scope {
    let mut scope = base.clone();
    for (field, set) in
        [(&mut scope.tenant, set.tenant), (&mut scope.user, set.user), (&mut scope.agent, set.agent), (&mut scope.thread, set.thread)]
    {
        if set.is_some() {
            *field = set;
        }
    }
    scope
}
