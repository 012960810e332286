//! `memory`: the prompt memory of an agent.

use super::glob::tell_unread;
use crate::context::Context;
use crate::exit::{Failure, Outcome};
use crate::output::counted;
use clap::{Args, Subcommand};
use serde::Serialize;
use treehold::memory::{MemoryFiles, MemoryPrompt};

/// Look at the memory that agents are told at the start
#[derive(Debug, Subcommand)]
pub(crate) enum Memory {
    Show(Show),
}

/// Print the memory of the thread's tree as a system prompt tells it
///
/// The files are read in order; what is absent is passed over, HTML comments are left out, and what is over the budget of tokens is cut. Tokens
/// are estimated: four ASCII characters are one, any other character is one by itself.
#[derive(Debug, Args)]
#[command(after_long_help = "Examples:
  treehold memory show
  treehold memory show /memories/AGENTS.md /memories/style.md --tokens 2000
  treehold --thread friday memory show --json")]
pub(crate) struct Show {
    /// Files, in the order they are told [default: `sources` of the configuration]
    path: Vec<String>,
    /// Take at most N tokens [default: `tokens_max` of the configuration, 8000]
    #[arg(long, value_name = "N")]
    tokens: Option<usize>,
}

/// The prompt memory and its sources as JSON.
#[derive(Debug, Serialize)]
struct Shown<'a> {
    #[serde(flatten)]
    prompt: &'a MemoryPrompt,
    absent: &'a [treehold::VfsPathBuf],
    failures: &'a [treehold::ops::Failure],
}

impl Memory {
    pub(crate) async fn run(self, context: &mut Context) -> Result<Outcome, Failure> {
        match self {
            Self::Show(show) => show.run(context).await,
        }
    }
}

impl Show {
    async fn run(self, context: &mut Context) -> Result<Outcome, Failure> {
        let session = context.session().await?;
        let settings = session.memory_settings();
        let configured = || settings.sources.iter().map(ToString::to_string).collect();
        let sources: Vec<String> = if self.path.is_empty() { configured() } else { self.path };
        let memory = session.memory(&sources).await?;
        let mut options = settings.prompt.clone();
        options.tokens_max = self.tokens.unwrap_or(options.tokens_max);
        let prompt = memory.prompt(&options);
        print(context, &memory, &prompt)?;
        Ok(match tell_unread(context, &memory.failures, memory.failures.len()) {
            Some(kind) => Outcome::Failed(kind),
            None => Outcome::found(!memory.files.is_empty()),
        })
    }
}

fn print(context: &mut Context, memory: &MemoryFiles, prompt: &MemoryPrompt) -> Result<(), Failure> {
    if !context.out.is_text() {
        return context.out.json(&Shown { prompt, absent: &memory.absent, failures: &memory.failures });
    }
    context.out.content(prompt.text.as_bytes())?;
    for file in prompt.files.iter().filter(|file| file.tokens_shown < file.tokens) {
        let tokens = counted(file.tokens, "token", "tokens");
        context.out.notice(format_args!("of `{}` about {} of {tokens} are shown; raise `--tokens`", file.path, file.tokens_shown));
    }
    Ok(())
}
