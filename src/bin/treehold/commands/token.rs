//! `token`: manages access to a server.

use crate::context::Context;
use crate::exit::{Failure, Outcome};
use crate::output::Output;
use clap::{Args, Subcommand};
use jiff::Timestamp;
use serde_json::json;
use treehold::serve::{Access, Rights, TokenBook, TokenRecord};
use treehold::{Error, VfsPathBuf};

/// Make, list and revoke the tokens of `treehold serve --tokens`
///
/// A token belongs to the tenant and user of the command (--tenant, --user), and reaches nothing of others. It is shown once.
#[derive(Debug, Args)]
#[command(after_long_help = "Examples:
  treehold token create --user ada --access write --label laptop
  treehold token create --user bob --path /memories --for-thread monday
  treehold token ls
  treehold token revoke 0123456789abcdef0123")]
pub(crate) struct Token {
    #[command(subcommand)]
    command: TokenCommand,
}

#[derive(Debug, Subcommand)]
enum TokenCommand {
    /// Make a token and print it
    Create(Create),
    /// List tokens, without their secrets
    ///
    /// Prints the id, the access, tenant and user, the paths and threads that it reaches, when it ends, when it was last used (to the
    /// minute), and its label.
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
                    records.iter().try_for_each(|record| print(&mut context.out, record))?;
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

fn print(out: &mut Output, record: &TokenRecord) -> Result<(), Failure> {
    let TokenRecord { id, scope, rights, .. } = record;
    let owner = [&scope.tenant, &scope.user].map(|part| part.as_deref().unwrap_or("-")).join("/");
    let listed = |names: Vec<&str>| if names.is_empty() { "all".to_owned() } else { names.join(",") };
    let paths = listed(rights.paths.iter().map(|path| path.as_str()).collect());
    let threads = listed(rights.threads.iter().map(String::as_str).collect());
    let time = |time: Option<Timestamp>| time.map_or_else(|| "never".to_owned(), |time| time.strftime("%Y-%m-%dT%H:%M:%SZ").to_string());
    let (ends, used) = (time(record.expires_at), time(record.used_at));
    let label = record.label.as_deref().unwrap_or_default();
    let line = format!("{id}  {:<5}  {owner}  paths {paths}  threads {threads}  ends {ends}  used {used}  {label}", rights.access);
    out.line(line.trim_end())
}
