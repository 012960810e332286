//! `run`: executes a transcript of tool calls and prints each result as the model would see it.

use crate::cli::commands::tools::Set;
use crate::cli::context::{self, Context};
use crate::cli::exit::{Failure, Outcome, error_of, tell};
use crate::cli::output::{Format, Style, counted, stdout_is_terminal};
use crate::error::ErrorRecord;
use crate::scope::ScopeField;
use crate::session::{CallNotes, Threads};
use crate::tools::{ToolRegistry, Transcript, TranscriptEvent};
use crate::{Error, ErrorKind, Scope, ToolCall, ToolOutput};
use clap::Args;
use serde::Serialize;
use serde_json::Value;
use std::fs::File;
use std::io::{self, BufRead, BufReader};
use tokio::sync::mpsc;

/// Play a transcript of tool calls
///
/// The transcript holds one call per line as JSON, or recorded messages of the Anthropic or OpenAI API. Makes each call and
/// prints the result that the model would see. A line such as `{"thread": "t2"}` switches to another thread. An invalid line
/// counts as a failed call and is reported by its number. A failed call does not stop the run, and neither does a closed output;
/// the exit code is that of the first failure.
#[derive(Debug, Args)]
#[command(after_long_help = r#"Examples:
  treehold run conversation.jsonl
  echo '{"tool": "ls", "args": {"path": "/memories"}}' | treehold run -"#)]
pub(crate) struct Run {
    /// Transcript file; `-` reads standard input
    file: String,
    /// Use only this tool set [default: the file tools, `memory` and `str_replace_based_edit_tool`]
    #[arg(long, value_enum, value_name = "SET")]
    set: Option<Set>,
    /// Exit with 0 even if calls fail
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
        context.check_mounted_session().await?;
        let tools = context.workspace()?.tools().clone();
        let mut events = match self.file.as_str() {
            "-" => {
                context::check_stdin()?;
                events(BufReader::new(io::stdin()), self.set, tools)
            }
            file => events(BufReader::new(File::open(file).map_err(|error| context::unread(file, error))?), self.set, tools),
        };
        let mut player = Player::new(context)?;
        player.threads.session(&player.scope).await?;
        let progress = context.progress("running");
        while let Some(event) = events.recv().await {
            player.play(context, event).await?;
            if !stdout_is_terminal() {
                progress.tell(player.calls as u64, "calls");
            }
        }
        drop(progress);
        let saved = context.until_saved(player.threads.close()).await;
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
fn events(reader: impl BufRead + Send + 'static, set: Option<Set>, tools: ToolRegistry) -> mpsc::Receiver<TranscriptEvent> {
    let (sender, receiver) = mpsc::channel(1);
    tokio::task::spawn_blocking(move || {
        let transcript = Transcript::new(reader).with_registry(tools);
        let transcript = set.map(Set::tools).into_iter().fold(transcript, Transcript::with_tools);
        for event in transcript {
            if sender.blocking_send(event).is_err() {
                break;
            }
        }
    });
    receiver
}

/// The state of a run: its thread and results.
struct Player {
    base: Scope,
    scope: Scope,
    threads: Threads,
    calls: usize,
    failures: usize,
    first_failure: Option<ErrorKind>,
    /// The calls so far, for the single JSON value at the end.
    played: Vec<Value>,
}

impl Player {
    fn new(context: &mut Context) -> Result<Self, Failure> {
        let (scope, threads) = (context.scope()?, Threads::new(context.workspace()?.clone()));
        Ok(Self { base: scope.clone(), scope, threads, calls: 0, failures: 0, first_failure: None, played: Vec::new() })
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
                let thread = self.scope.thread.as_deref().unwrap_or_default();
                let played = Played { line, id: id.as_deref(), thread, tool: &name, arguments, output: &output };
                print(context, &mut self.played, &played, &shown)
            }
            TranscriptEvent::Thread { scope, .. } => {
                context.until_saved(self.threads.close()).await?;
                if context.out.is_text() {
                    let head = context.out.paint(Style::Faint, format_args!("# {}", who(&scope))).to_string();
                    player_output(context.out.line(head).and_then(|()| context.out.empty_line()))?;
                }
                self.scope = overlaid(&self.base, scope);
                // A scope that the workspace cannot open is an error of this line, not of each call after it.
                self.threads.session(&self.scope).await?;
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
                (arguments, self.threads.call_with(&self.scope, call, notes).await)
            }
            Err(error) => (Value::Null, ToolOutput::from_error(&error)),
        }
    }

    fn failed(&mut self, error: &ErrorRecord) {
        self.failures += 1;
        self.first_failure.get_or_insert(error_of(error).kind());
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

/// Ignores a closed output: the effects of a transcript must not depend on who reads the output.
fn player_output(printed: Result<(), Failure>) -> Result<(), Failure> {
    match printed {
        Err(Failure::ClosedPipe) => Ok(()),
        printed => printed,
    }
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
