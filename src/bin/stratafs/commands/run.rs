//! `run`: a transcript of tool calls played, each answered as the model would see it.

use crate::context::{self, Context};
use crate::exit::{Failure, Outcome, error_of, tell};
use crate::output::{Format, Style};
use clap::Args;
use serde::Serialize;
use serde_json::Value;
use std::fs::File;
use std::io::{self, BufRead, BufReader};
use stratafs::error::ErrorRecord;
use stratafs::tools::{Transcript, TranscriptEvent};
use stratafs::{Error, ErrorKind, Scope, Session, ToolCall, ToolOutput};
use uuid::Uuid;

/// Play a transcript of tool calls
///
/// Reads JSON Lines of calls, or recorded messages of the Anthropic or OpenAI API, makes each call, and prints what the model
/// would be told. A line `{"thread": "t2"}` goes on in another thread. All calls are made; the exit code is that of the first
/// one that failed. A closed output does not stop the play.
#[derive(Debug, Args)]
#[command(after_long_help = r#"Example:
  echo '{"tool": "write_file", "args": {"path": "/memories/a.md", "content": "hello"}}' | stratafs run -"#)]
pub(crate) struct Run {
    /// Transcript; `-` reads standard input
    file: String,
    /// Exit 0 although calls failed
    #[arg(long)]
    allow_errors: bool,
}

/// One call with its answer, as JSON.
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
        let reader: Box<dyn BufRead> = match self.file.as_str() {
            "-" => Box::new(BufReader::new(io::stdin())),
            file => Box::new(BufReader::new(File::open(file).map_err(|error| context::unread(file, error))?)),
        };
        let mut player = Player::new(context).await?;
        for event in Transcript::new(reader) {
            player.play(context, event).await?;
        }
        let (player, saved) = player.end(context).await;
        if context.out.format() == Format::Json {
            let played = Value::Array(player.played);
            player_output(context.out.json(&played))?;
        }
        context.out.notice(format_args!("{} calls, {} failed", player.calls, player.failures));
        saved?;
        Ok(match player.first_failure {
            Some(kind) if !self.allow_errors => Outcome::Failed(kind),
            _ => Outcome::Done,
        })
    }
}

/// A play: the thread it stands in, and how it went.
struct Player {
    base: Scope,
    session: Session,
    calls: usize,
    failures: usize,
    first_failure: Option<ErrorKind>,
    /// The calls played, for the one JSON value at the end.
    played: Vec<Value>,
}

impl Player {
    async fn new(context: &mut Context) -> Result<Self, Failure> {
        let session = context.session().await?;
        Ok(Self { base: context.scope()?, session, calls: 0, failures: 0, first_failure: None, played: Vec::new() })
    }

    async fn play(&mut self, context: &mut Context, event: TranscriptEvent) -> Result<(), Failure> {
        match event {
            TranscriptEvent::Call { line, id, name, call } => {
                self.calls += 1;
                let (arguments, output) = self.call(call).await;
                if let Some(error) = &output.error {
                    self.failed(error);
                }
                let thread = thread(&self.session);
                let played = Played { line, id: id.as_deref(), thread, tool: &name, arguments, output: &output };
                print(context, &mut self.played, &played)
            }
            TranscriptEvent::Thread { scope, .. } => {
                save(context, &self.session).await?;
                let scope = overlaid(&self.base, scope);
                self.session = context.workspace()?.session(scope).await?;
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

    async fn call(&self, call: Result<ToolCall, Error>) -> (Value, ToolOutput) {
        match call {
            Ok(call) => (call.arguments(), self.session.call(call).await),
            Err(error) => (Value::Null, ToolOutput::from_error(&error)),
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

/// Prints one call with its answer; for the one JSON value at the end it is kept.
fn print(context: &mut Context, kept: &mut Vec<Value>, played: &Played<'_>) -> Result<(), Failure> {
    let out = &mut context.out;
    match out.format() {
        Format::Json => kept.push(serde_json::to_value(played).unwrap_or_default()),
        Format::JsonLines => player_output(out.json(played))?,
        Format::Text => {
            let head = format!("> {} {}", played.tool, played.arguments);
            let head = out.paint(Style::Faint, head).to_string();
            let end = if played.output.text.ends_with('\n') { "" } else { "\n" };
            player_output(out.bytes(format!("{head}\n{}{end}\n", played.output.text).as_bytes()))?;
        }
    }
    Ok(())
}

/// Saves the thread of a session. What meets another's save is not lost: it is saved as a thread of its own.
async fn save(context: &mut Context, session: &Session) -> Result<(), Failure> {
    let Err(error) = context.save_session(session).await else { return Ok(()) };
    if error.kind() != ErrorKind::Conflict {
        return Err(error.into());
    }
    let aside = format!("{}.{}", thread(session), Uuid::now_v7());
    session.save_as(&aside).await?;
    let message = format!(
        "thread `{}` was saved by another session meanwhile and stays as that left it; what this run left at `/` is saved as thread `{aside}`",
        thread(session)
    );
    Err(error.with_message(message).into())
}

/// Plays on when whoever read the output has gone: what a play does must not depend on who reads it.
fn player_output(printed: Result<(), Failure>) -> Result<(), Failure> {
    match printed {
        Err(Failure::ClosedPipe) => Ok(()),
        printed => printed,
    }
}

fn thread(session: &Session) -> &str {
    session.scope().thread.as_deref().unwrap_or_default()
}

/// Returns a scope with the fields that a transcript sets over those of the caller.
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
