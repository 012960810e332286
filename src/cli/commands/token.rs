//! `token`: manages access to a server.

use crate::cli::context::Context;
use crate::cli::exit::{Failure, Outcome};
use crate::cli::output::Output;
use crate::cli::time::exact;
use crate::clock::{parse_age, parse_time};
use crate::serve::{Access, ActsFor, Rights, TokenBook, TokenRecord};
use crate::{Error, VfsPathBuf};
use clap::{Args, Subcommand};
use jiff::Timestamp;
use serde_json::json;
use treehold_core::scope::check_peer_name;

/// Create, list and revoke tokens for `treehold serve --tokens`
///
/// A token belongs to the tenant and user given by --tenant and --user, and gives no access to others' data, except to their
/// sessions with --acts-for. Its secret is shown only once.
#[derive(Debug, Args)]
#[command(after_long_help = "Examples:
  treehold token create --user ada --access write --label laptop --expires 30d
  treehold token create --user bob --path /memories --for-thread monday
  treehold token create --user ada --connect-as laptop
  treehold token ls
  treehold token revoke 0123456789abcdef0123")]
pub(crate) struct Token {
    #[command(subcommand)]
    command: TokenCommand,
}

#[derive(Debug, Subcommand)]
enum TokenCommand {
    /// Create a token and print it
    Create(Create),
    /// List tokens, without their secrets
    ///
    /// Prints the id, access, tenant and user, paths, threads, whose sessions it may use if not its own, expiry, last use (to the
    /// minute) and label of each. A token that connects a machine has its name instead of access, paths and threads.
    Ls,
    /// Revoke a token; servers refuse it within a second
    Revoke {
        /// Id of the token, as `token ls` prints it
        id: String,
    },
}

#[derive(Debug, Args)]
struct Create {
    /// Access level: read, write (includes read) or admin (includes both)
    #[arg(long, value_name = "ACCESS", default_value = "read", value_parser = access)]
    access: Access,
    /// Limit the token to this subtree (repeatable)
    #[arg(long = "path", value_name = "PATH")]
    paths: Vec<VfsPathBuf>,
    /// Limit the token to this thread (repeatable)
    #[arg(long = "for-thread", value_name = "THREAD")]
    threads: Vec<String>,
    /// Whose sessions the token may use: own, tenant (all users of its tenant) or all (those of every tenant)
    #[arg(long, value_name = "WHO", default_value = "own", value_parser = acts_for)]
    acts_for: ActsFor,
    /// Allow the token to connect a machine under this name (`treehold serve --dial`), and nothing else
    #[arg(long, value_name = "NAME", conflicts_with_all = ["access", "paths", "threads", "acts_for"])]
    connect_as: Option<String>,
    /// Describe the token's purpose
    #[arg(long, value_name = "TEXT")]
    label: Option<String>,
    /// Expire the token at TIME: an age from now such as 12h or 30d, a date, or 2027-01-31T00:00:00Z
    #[arg(long, value_name = "TIME", value_parser = expiry)]
    expires: Option<Timestamp>,
}

/// Parses when a token ends: an age from now, or a time.
fn expiry(text: &str) -> Result<Timestamp, String> {
    match parse_age(text) {
        Ok(age) => Timestamp::now().checked_add(age).map_err(|_| "it is after the latest possible time; name an earlier one".to_owned()),
        Err(invalid) if invalid.is_out_of_bounds() => Err(invalid.to_string()),
        Err(_) => parse_time(text, Timestamp::UNIX_EPOCH).map_err(|_| {
            "write how long it holds as `12h` or `30d`, a date as `2027-01-31`, or a time as `2027-01-31T00:00:00Z`".to_owned()
        }),
    }
}

pub(super) fn access(text: &str) -> Result<Access, String> {
    Access::ALL.into_iter().find(|access| access.name() == text).ok_or_else(|| "the choices are read, write, admin".to_owned())
}

fn acts_for(text: &str) -> Result<ActsFor, String> {
    ActsFor::ALL.into_iter().find(|acts_for| acts_for.name() == text).ok_or_else(|| "the choices are own, tenant, all".to_owned())
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
                    return Err(Error::invalid_argument("the time of `--expires` has passed; name a later one").into());
                }
                create.connect_as.as_deref().map(check_peer_name).transpose()?;
                let rights = Rights::new(create.access)
                    .with_paths(create.paths)
                    .with_threads(create.threads)
                    .with_acts_for(create.acts_for)
                    .with_connect_as(create.connect_as);
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
    let time = |time: Option<Timestamp>| time.map_or_else(|| "never".to_owned(), exact);
    let (ends, used) = (time(record.expires_at), time(record.used_at));
    let label = record.label.as_deref().unwrap_or_default();
    let acts_for = if rights.acts_for == ActsFor::Own { String::new() } else { format!("  acts for {}", rights.acts_for) };
    let may = match &rights.connect_as {
        Some(name) => format!("connects {name}"),
        None => format!("paths {paths}  threads {threads}{acts_for}"),
    };
    let access = if rights.connect_as.is_some() { "-" } else { rights.access.name() };
    let line = format!("{id}  {access:<5}  {owner}  {may}  ends {ends}  used {used}  {label}");
    out.line(line.trim_end())
}

#[cfg(test)]
mod tests {
    use super::*;
    use jiff::SignedDuration;

    #[test]
    fn expiry_is_an_age_from_now_or_a_time() {
        for (text, hours) in [("12h", 12), ("30d", 30 * 24), ("2w", 14 * 24)] {
            let left = expiry(text).expect("an age").duration_since(Timestamp::now());
            assert!(left <= SignedDuration::from_hours(hours) && left > SignedDuration::from_hours(hours - 1), "{text}");
        }
        let time = "2027-01-31T00:00:00Z".parse::<Timestamp>().ok();
        assert_eq!((expiry("2027-01-31").ok(), expiry("2027-01-31T01:00:00+01:00").ok()), (time, time));
        for (text, told) in [("soon", "write how long"), ("", "write how long"), ("30", "write how long"), ("99999999999w", "too long")] {
            assert!(expiry(text).is_err_and(|error| error.starts_with(told)), "{text}");
        }
    }
}
