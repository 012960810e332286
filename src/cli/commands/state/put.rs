//! `state put`: saves a state.

use super::{Owned, Whose, expected};
use crate::Error;
use crate::agent_state::{AGENT_STATE_KEY, AgentStateStore, Json, SaveOptions, StateVersion};
use crate::cli::context::{Context, content};
use crate::cli::exit::{Failure, Outcome};
use clap::Args;
use serde_json::json;

/// Save a state
///
/// The state is saved as it is given, with its spaces. With `--if-version`, a state that changed meanwhile stays as it is, and the exit
/// code is 4. It is 4, too, if the turn of `--fence` was lost.
#[derive(Debug, Args)]
#[command(after_long_help = "Examples:
  treehold state put monday < state.json
  treehold state put monday mood '\"good\"' --if-version 0
  treehold state put monday notes '[\"tea\", \"milk\"]' --list")]
pub(crate) struct Put {
    /// Session
    #[arg(value_name = "ID")]
    id: String,
    /// Key
    #[arg(default_value = AGENT_STATE_KEY)]
    key: String,
    /// JSON value, or `-` to read standard input [default: -]
    value: Option<String>,
    /// Save the elements of an array as a list
    #[arg(long)]
    list: bool,
    /// Fail unless this version is stored; 0 fails if any is
    #[arg(long, value_name = "VERSION")]
    if_version: Option<u64>,
    /// Fail if the turn with this fencing token was lost
    #[arg(long, value_name = "TOKEN")]
    fence: Option<u64>,
    #[command(flatten)]
    whose: Whose,
}

impl Put {
    pub(super) async fn run(self, context: &mut Context) -> Result<Outcome, Failure> {
        let owned = Owned::open(context, &self.whose)?;
        let slot = owned.slot(&self.id)?;
        let text = content(self.value).await?;
        let options = SaveOptions::new().with_expected(expected(self.if_version)).with_fence(owned.fence(&slot, self.fence)?);
        let version = match self.list {
            true => {
                let values: Vec<Json> = serde_json::from_slice(&text).map_err(|error| {
                    Error::invalid_argument(format!("the value is no JSON array: {error}; leave `--list` out, or correct it"))
                })?;
                owned.states.save_list(&slot, &self.key, &values, options).await?
            }
            false => owned.states.save(&slot, &self.key, &Json::from_bytes(&text)?, options).await?,
        };
        let version = version.map(StateVersion::number);
        match context.out.is_text() {
            true => context.out.detail(format_args!("saved version {}", version.unwrap_or_default())),
            false => context.out.json(&json!({"key": self.key, "version": version}))?,
        }
        Ok(Outcome::Done)
    }
}
