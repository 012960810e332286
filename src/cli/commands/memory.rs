//! `memory`: the prompt memory of an agent.

use super::glob::tell_unread;
use crate::cli::context::Context;
use crate::cli::exit::{Failure, Outcome};
use crate::cli::output::counted;
use crate::memory::{MemoryFiles, MemoryPrompt};
use clap::{Args, Subcommand};
use serde::Serialize;

/// Show the prompt memory, which agents receive in their system prompt
#[derive(Debug, Subcommand)]
pub(crate) enum Memory {
    Show(Show),
}

/// Print the prompt memory as it appears in the system prompt
///
/// Reads the files in order, skips missing ones, removes HTML comments, and truncates the result to the token budget. Token
/// counts are estimates: one token per four ASCII characters, and one per other character.
/// Without PATH, also lists what else lies under the directories of `index` in the configuration, newest first.
#[derive(Debug, Args)]
#[command(after_long_help = "Examples:
  treehold memory show
  treehold memory show /memories/AGENTS.md /memories/style.md --tokens 2000
  treehold --thread friday memory show --json")]
pub(crate) struct Show {
    /// Files, in order [default: `sources` of the configuration]
    path: Vec<String>,
    /// Print at most N tokens [default: `tokens_max` of the configuration, 8000]
    #[arg(long, value_name = "N")]
    tokens: Option<usize>,
}

/// The prompt memory and its sources as JSON.
#[derive(Debug, Serialize)]
struct Shown<'a> {
    #[serde(flatten)]
    prompt: &'a MemoryPrompt,
    absent: &'a [crate::VfsPathBuf],
    failures: &'a [crate::ops::Failure],
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
        let memory = if self.path.is_empty() { session.configured_memory().await } else { session.memory(&self.path).await? };
        let mut options = settings.prompt.clone();
        options.tokens_max = self.tokens.unwrap_or(options.tokens_max);
        let prompt = memory.prompt(&options);
        print(context, &memory, &prompt)?;
        Ok(match tell_unread(context, &memory.failures, memory.failures.len()) {
            Some(kind) => Outcome::Failed(kind),
            None => Outcome::found(!memory.files.is_empty() || !memory.index.is_empty()),
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
        context.out.notice(format_args!("`{}` is truncated to about {} of {tokens}; raise `--tokens`", file.path, file.tokens_shown));
    }
    Ok(())
}
