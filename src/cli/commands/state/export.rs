//! `state export`: a whole session as JSON, or its conversation as text for people.

use super::{Owned, Whose, no_key, no_session};
use crate::agent_state::{AGENT_STATE_KEY, AgentStateStore, conversation_markdown, export_session};
use crate::cli::context::Context;
use crate::cli::exit::{Failure, Outcome};
use clap::Args;

/// The most bytes of an exported session.
const BYTES_MAX: usize = 256 << 20;

/// Export a session as JSON, or its conversation as Markdown
///
/// The JSON has every state of the session: key, form, version and value. The Markdown has the summary and the messages.
#[derive(Debug, Args)]
#[command(after_long_help = "Examples:
  treehold state export monday > monday.json
  treehold state export monday --markdown > monday.md")]
pub(crate) struct Export {
    /// Session
    #[arg(value_name = "ID")]
    id: String,
    /// Print the conversation as Markdown
    #[arg(long, conflicts_with_all = ["json", "jsonl"])]
    markdown: bool,
    #[command(flatten)]
    whose: Whose,
}

impl Export {
    pub(super) async fn run(self, context: &mut Context) -> Result<Outcome, Failure> {
        let owned = Owned::open(context, &self.whose)?;
        let slot = owned.slot(&self.id)?;
        if self.markdown {
            let found = owned.states.get(&slot, AGENT_STATE_KEY).await?.ok_or_else(|| no_key(&slot, AGENT_STATE_KEY))?;
            let text = conversation_markdown(slot.session(), &found.value)?;
            context.out.content(text.as_bytes())?;
            return Ok(Outcome::Done);
        }
        let export = export_session(&owned.states, &slot, BYTES_MAX).await?.ok_or_else(|| no_session(&slot))?;
        context.out.json(&export)?;
        Ok(Outcome::Done)
    }
}
