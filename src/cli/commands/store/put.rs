//! `store put`: writes one row or JSON item.

use super::StoreName;
use crate::cli::context::{self, Context};
use crate::cli::exit::{Failure, Outcome};
use crate::ops::Version;
use crate::store::{Batch, Condition, JsonStore, Reserved, ReservedRows, Withheld, is_reserved, unescape_key};
use crate::{Error, Namespace, Store as _};
use bytes::Bytes;
use clap::Args;
use serde_json::{Value, json};
use std::time::Duration;

/// Write a row
#[derive(Debug, Args)]
pub(crate) struct Put {
    /// Namespace
    namespace: String,
    /// Key
    key: String,
    /// Value, or `-` to read standard input [default: -]
    value: Option<String>,
    /// Write VALUE as a JSON item, which `store search` can find
    #[arg(long)]
    item: bool,
    /// Let the row expire after TIME, such as `1h`; reading an item restarts the time
    #[arg(long, value_name = "TIME", value_parser = crate::cli::args::duration)]
    ttl: Option<Duration>,
    /// Fail if the row exists
    #[arg(long, conflicts_with = "if_version")]
    if_absent: bool,
    /// Fail unless the row has this version
    #[arg(long, value_name = "VERSION")]
    if_version: Option<Version>,
    #[command(flatten)]
    store: StoreName,
}

impl Put {
    pub(super) async fn run(self, context: &mut Context) -> Result<Outcome, Failure> {
        let (store, namespace) = (self.store.open(context).await?, Namespace::parse(&self.namespace)?);
        let key = unescape_key(&self.key)?;
        refuse_own_rows(&namespace)?;
        let value: Bytes = context::content(self.value).await?.into();
        let found = store.get_many(&namespace, &[&key], false).await?;
        match found.into_iter().flatten().next() {
            Some(row) if !JsonStore::is_item(&row) => {
                let message =
                    format!("`{}` in `{namespace}` is a row of a file tree or thread; write the file with `treehold write`", self.key);
                return Err(Error::invalid_argument(message).into());
            }
            Some(row) if !self.item && !row.meta.is_empty() => {
                let message = format!("`{}` in `{namespace}` is a JSON item; put it with `--item`", self.key);
                return Err(Error::invalid_argument(message).into());
            }
            _ => {}
        }
        let condition = match self.if_version {
            Some(version) => Some(Condition::Version(version)),
            None => self.if_absent.then_some(Condition::Absent),
        };
        let version = if self.item {
            let value: Value = serde_json::from_slice(&value)
                .map_err(|error| Error::invalid_argument(format!("the value is not JSON: {error}; leave `--item` out, or correct it")))?;
            let items = JsonStore::new(store).with_time_to_live(self.ttl);
            match condition {
                Some(condition) => items.put_if(&namespace, &key, &value, condition).await?,
                None => items.put(&namespace, &key, &value).await?,
            }
        } else {
            let batch = condition.into_iter().fold(Batch::new(), |batch, condition| batch.expect(&namespace, &*key, condition));
            store.commit(batch.put_item(&namespace, key, Bytes::new(), value, self.ttl)).await?[0]
        };
        match context.out.is_text() {
            true => context.out.detail(format_args!("put `{}`", self.key)),
            false => context.out.json(&json!({"key": self.key, "version": version}))?,
        }
        Ok(Outcome::Done)
    }
}

/// Refuses the namespaces beneath the reserved root that hold no user data. Their rows must never be repaired by hand.
fn refuse_own_rows(namespace: &Namespace) -> Result<(), Error> {
    let message = match Reserved::of(namespace).map(|reserved| reserved.rows) {
        None if !is_reserved(namespace) => return Ok(()),
        Some(ReservedRows::Data) => return Ok(()),
        Some(ReservedRows::Withheld(Withheld::Tokens)) => "create a token with `treehold token create`",
        Some(ReservedRows::Derived) => "recreate an index with `treehold store index --rebuild`",
        _ => "only treehold itself writes its rows",
    };
    Err(Error::invalid_argument(format!("the namespace `{namespace}` is reserved; {message}")))
}
