//! `store put`: writes one row or JSON item.

use super::StoreName;
use crate::context::{self, Context};
use crate::exit::{Failure, Outcome};
use bytes::Bytes;
use clap::Args;
use serde_json::{Value, json};
use std::time::Duration;
use treehold::ops::Version;
use treehold::store::{Batch, Condition, JsonStore, Reserved, ReservedRows, Withheld, is_reserved, unescape_key};
use treehold::{Error, Namespace, Store as _};

/// Put a row
#[derive(Debug, Args)]
pub(crate) struct Put {
    /// Namespace
    namespace: String,
    /// Key
    key: String,
    /// Value; `-` or none reads standard input
    value: Option<String>,
    /// The value is JSON, and `store search` finds it
    #[arg(long)]
    item: bool,
    /// How long the row lives, such as `1h`; for good without it. Of an item, counted from its last read by an application
    #[arg(long, value_name = "TIME", value_parser = crate::args::duration)]
    ttl: Option<Duration>,
    /// Put only where no row is
    #[arg(long, conflicts_with = "if_version")]
    if_absent: bool,
    /// Put only over this version
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
                    format!("`{}` in `{namespace}` is a row of a file tree or thread; write the file by `treehold write`", self.key);
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
                .map_err(|error| Error::invalid_argument(format!("the value is no JSON: {error}; leave `--item` out, or mend it")))?;
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
        Some(ReservedRows::Withheld(Withheld::Tokens)) => "make a token by `treehold token create`",
        Some(ReservedRows::Derived) => "make an index anew by `treehold store index --rebuild`",
        _ => "treehold writes what lies there itself",
    };
    Err(Error::invalid_argument(format!("no row is put into `{namespace}`, which is reserved; {message}")))
}
