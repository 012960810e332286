//! `token`: who may reach a server.

use crate::context::Context;
use crate::exit::{Failure, Outcome};
use clap::{Args, Subcommand};
use jiff::Timestamp;
use serde_json::json;
use stratafs::serve::{Access, Rights, TokenBook};
use stratafs::{Error, VfsPathBuf};

/// Make, list and revoke the tokens of `stratafs serve --tokens`
///
/// A token belongs to the tenant and user of the command (--tenant, --user), and reaches nothing of others. It is shown once.
#[derive(Debug, Args)]
#[command(after_long_help = "Examples:
  stratafs token create --user ada --access write --label laptop
  stratafs token create --user bob --path /memories --thread monday
  stratafs token ls
  stratafs token revoke 0123456789abcdef0123")]
pub(crate) struct Token {
    #[command(subcommand)]
    command: TokenCommand,
}

#[derive(Debug, Subcommand)]
enum TokenCommand {
    /// Make a token and print it
    Create(Create),
    /// List tokens, without their secrets
    Ls,
    /// End a token; servers refuse it within a second
    Revoke {
        /// The id, as `token ls` shows it
        id: String,
    },
}

#[derive(Debug, Args)]
struct Create {
    /// What it may do: read, write (and read), or admin (and all of these)
    #[arg(long, value_name = "ACCESS", default_value = "read", value_parser = access)]
    access: Access,
    /// Subtree that it reaches; all else is not there. May be repeated
    #[arg(long = "path", value_name = "PATH")]
    paths: Vec<VfsPathBuf>,
    /// Thread that it reaches. May be repeated
    #[arg(long = "for-thread", value_name = "THREAD")]
    threads: Vec<String>,
    /// What it is for
    #[arg(long, value_name = "TEXT")]
    label: Option<String>,
    /// When it ends by itself, such as 2027-01-31T00:00:00Z
    #[arg(long, value_name = "TIME")]
    expires: Option<Timestamp>,
}

fn access(text: &str) -> Result<Access, String> {
    Access::ALL.into_iter().find(|access| access.name() == text).ok_or_else(|| "the choices are read, write, admin".to_owned())
}

impl Token {
    pub(crate) async fn run(self, context: &mut Context) -> Result<Outcome, Failure> {
        let config = context.config()?;
        let book = TokenBook::new(context.stores()?.get(&config.threads.store)?);
        match self.command {
            TokenCommand::Create(create) => {
                let mut scope = config.scope();
                scope.thread = None;
                for thread in &create.threads {
                    scope.clone().with_thread(thread).validate()?;
                }
                if create.expires.is_some_and(|end| end <= Timestamp::now()) {
                    return Err(Error::invalid_argument("the time of --expires is over; name a later one").into());
                }
                let rights = Rights::new(create.access).with_paths(create.paths).with_threads(create.threads);
                let (record, text) = book.create(scope, rights, create.label, create.expires).await?;
                if context.out.is_text() {
                    context.out.line(format_args!("{text}"))?;
                } else {
                    context.out.json(&json!({"token": text, "record": record}))?;
                }
            }
            TokenCommand::Ls => {
                let records = book.list().await?;
                if !context.out.is_text() {
                    context.out.json_list(&records)?;
                } else {
                    for record in &records {
                        let scope = [&record.scope.tenant, &record.scope.user].map(|part| part.as_deref().unwrap_or("-")).join("/");
                        let ends = record.expires_at.map_or_else(|| "never".to_owned(), |end| end.to_string());
                        let label = record.label.as_deref().unwrap_or_default();
                        context.out.line(format_args!("{}  {}  {scope}  ends {ends}  {label}", record.id, record.rights.access))?;
                    }
                }
                if records.is_empty() {
                    return Ok(Outcome::Nothing);
                }
            }
            TokenCommand::Revoke { id } => book.revoke(&id).await?,
        }
        Ok(Outcome::Done)
    }
}
