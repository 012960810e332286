//! `store`: the rows beneath, namespace by namespace.

use crate::context::{self, Context};
use crate::exit::{Failure, Outcome};
use crate::output::as_text;
use bytes::Bytes;
use clap::{Args, Subcommand};
use serde_json::json;
use std::sync::Arc;
use stratafs::store::{Batch, Condition, Item, NamespacesOptions, ScanEntry, ScanOptions};
use stratafs::{Error, ErrorKind, Namespace, Store as Rows};

/// Look into the stores: namespaces, keys, rows
///
/// What the tiers keep stands here as rows. Writing beneath a tier is for repairs; files are written by `write`.
#[derive(Debug, Subcommand)]
pub(crate) enum Store {
    Ls(Ls),
    Get(Get),
    Put(Put),
    Rm(Rm),
    Stats(Stats),
}

/// List namespaces, or the keys of one
#[derive(Debug, Args)]
pub(crate) struct Ls {
    /// Namespace, such as `default/default/memories`; without it the namespaces are listed
    namespace: Option<String>,
    /// Only keys that start with TEXT
    #[arg(long, value_name = "TEXT", default_value = "")]
    prefix: String,
    #[command(flatten)]
    store: StoreName,
}

/// Print the value of a row, byte for byte
#[derive(Debug, Args)]
pub(crate) struct Get {
    /// Namespace
    namespace: String,
    /// Key, as `ls` prints it
    key: String,
    #[command(flatten)]
    store: StoreName,
}

/// Put a row
#[derive(Debug, Args)]
pub(crate) struct Put {
    /// Namespace
    namespace: String,
    /// Key
    key: String,
    /// Value; `-` or none reads standard input
    value: Option<String>,
    #[command(flatten)]
    store: StoreName,
}

/// Remove rows
#[derive(Debug, Args)]
pub(crate) struct Rm {
    /// Namespace
    namespace: String,
    /// Keys
    #[arg(required_unless_present = "all", conflicts_with = "all")]
    keys: Vec<String>,
    /// Remove every row of the namespace
    #[arg(long)]
    all: bool,
    #[command(flatten)]
    store: StoreName,
}

/// Count the namespaces, rows and bytes of the stores
#[derive(Debug, Args)]
pub(crate) struct Stats {
    #[command(flatten)]
    store: StoreName,
}

#[derive(Debug, Args)]
struct StoreName {
    /// Name of the store in the configuration
    #[arg(long = "store", value_name = "NAME", default_value = stratafs::config::DEFAULT_STORE)]
    name: String,
}

impl StoreName {
    fn open(&self, context: &Context) -> Result<Arc<dyn Rows>, Error> {
        context.config()?.stores()?.get(&self.name)
    }
}

impl Store {
    pub(crate) async fn run(self, context: &mut Context) -> Result<Outcome, Failure> {
        match self {
            Self::Ls(ls) => ls.run(context).await,
            Self::Get(get) => get.run(context).await,
            Self::Put(put) => put.run(context).await,
            Self::Rm(rm) => rm.run(context).await,
            Self::Stats(stats) => stats.run(context).await,
        }
    }
}

impl Ls {
    async fn run(self, context: &mut Context) -> Result<Outcome, Failure> {
        let store = self.store.open(context)?;
        match &self.namespace {
            Some(namespace) => list_keys(context, &*store, &Namespace::parse(namespace)?, self.prefix).await,
            None => list_namespaces(context, &*store).await,
        }
    }
}

async fn list_namespaces(context: &mut Context, store: &dyn Rows) -> Result<Outcome, Failure> {
    let namespaces = all_namespaces(store).await?;
    match context.out.is_text() {
        true => namespaces.iter().try_for_each(|namespace| context.out.line(namespace))?,
        false => context.out.json_list(&namespaces)?,
    }
    Ok(Outcome::Done)
}

async fn all_namespaces(store: &dyn Rows) -> Result<Vec<Namespace>, Error> {
    let mut options = NamespacesOptions::new();
    let mut all = Vec::new();
    loop {
        let page = store.namespaces(options.clone()).await?;
        options.start_after = page.namespaces.last().cloned();
        all.extend(page.namespaces);
        if !page.more {
            return Ok(all);
        }
    }
}

async fn list_keys(context: &mut Context, store: &dyn Rows, namespace: &Namespace, prefix: String) -> Result<Outcome, Failure> {
    let mut options = ScanOptions::new().with_prefix(unescape(&prefix)?);
    let mut count = 0;
    loop {
        let page = store.scan(namespace, options.clone()).await?;
        for entry in &page.entries {
            let ScanEntry::Item(item) = entry else { continue };
            let key = escape(&item.key);
            match context.out.is_text() {
                true => context.out.line(key)?,
                false => {
                    let row = json!({
                        "key": key,
                        "version": item.version,
                        "created_at": item.created_at,
                        "modified_at": item.modified_at,
                        "expires_at": item.expires_at,
                    });
                    context.out.json_element(count, &row)?;
                }
            }
            count += 1;
        }
        match page.next {
            Some(next) => options.start_after = Some(next),
            None => break,
        }
    }
    if !context.out.is_text() {
        context.out.json_end(count)?;
    }
    if count == 0 {
        context.out.notice(format_args!("no such row is in `{namespace}`; `stratafs store ls` lists the namespaces"));
    }
    Ok(Outcome::found(count > 0))
}

impl Get {
    async fn run(self, context: &mut Context) -> Result<Outcome, Failure> {
        let (store, namespace) = (self.store.open(context)?, Namespace::parse(&self.namespace)?);
        let item = get(&*store, &namespace, &self.key).await?;
        match context.out.is_text() {
            true => context.out.bytes(&item.value)?,
            false => {
                let (value, encoding) = as_text(&item.value);
                context.out.json(&json!({"key": self.key, "value": value, "encoding": encoding, "version": item.version}))?;
            }
        }
        Ok(Outcome::Done)
    }
}

async fn get(store: &dyn Rows, namespace: &Namespace, key: &str) -> Result<Item, Error> {
    let found = store.get(namespace, &unescape(key)?).await?;
    found.ok_or_else(|| Error::new(ErrorKind::NotFound, format!("no row `{key}` is in `{namespace}`; `stratafs store ls` lists them")))
}

impl Put {
    async fn run(self, context: &mut Context) -> Result<Outcome, Failure> {
        let (store, namespace) = (self.store.open(context)?, Namespace::parse(&self.namespace)?);
        let key = unescape(&self.key)?;
        let value: Bytes = context::content(self.value).await?.into();
        let found = store.get_many(&namespace, &[&key], false).await?;
        if found.into_iter().flatten().any(|item| !item.meta.is_empty()) {
            let message = format!("`{}` in `{namespace}` is a row of a file tree or thread; write the file by `stratafs write`", self.key);
            return Err(Error::invalid_argument(message).into());
        }
        let versions = store.commit(Batch::new().put(&namespace, key, value)).await?;
        match context.out.is_text() {
            true => context.out.detail(format_args!("put `{}`", self.key)),
            false => context.out.json(&json!({"key": self.key, "version": versions.first()}))?,
        }
        Ok(Outcome::Done)
    }
}

impl Rm {
    async fn run(self, context: &mut Context) -> Result<Outcome, Failure> {
        let (store, namespace) = (self.store.open(context)?, Namespace::parse(&self.namespace)?);
        if self.all {
            let progress = context.progress("removing rows");
            progress.wait();
            store.commit(Batch::new().delete_prefix(&namespace, "")).await?;
            drop(progress);
            return told_removed(context, &json!({"namespace": namespace, "all": true}));
        }
        let mut batch = Batch::new();
        for key in &self.keys {
            let key = unescape(key)?;
            batch = batch.expect(&namespace, key.clone(), Condition::Exists).delete(&namespace, key);
        }
        store.commit(batch).await.map_err(|error| match (error.kind(), error.change().and_then(|index| self.keys.get(index))) {
            (ErrorKind::Conflict, Some(key)) => {
                Error::new(ErrorKind::NotFound, format!("no row `{key}` is in `{namespace}`; none was removed"))
            }
            _ => error,
        })?;
        told_removed(context, &json!({"namespace": namespace, "keys": self.keys}))
    }
}

fn told_removed(context: &mut Context, removed: &serde_json::Value) -> Result<Outcome, Failure> {
    if !context.out.is_text() {
        context.out.json(removed)?;
    }
    Ok(Outcome::Done)
}

impl Stats {
    async fn run(self, context: &mut Context) -> Result<Outcome, Failure> {
        let store = self.store.open(context)?;
        let progress = context.progress("counting rows");
        let mut rows = 0_u64;
        let mut bytes = 0_u64;
        let namespaces = all_namespaces(&*store).await?;
        for namespace in &namespaces {
            let mut options = ScanOptions::new().with_values(true);
            loop {
                let page = store.scan(namespace, options.clone()).await?;
                for entry in &page.entries {
                    let ScanEntry::Item(item) = entry else { continue };
                    rows += 1;
                    bytes += (item.meta.len() + item.value.len()) as u64;
                }
                progress.tell(rows, "rows");
                match page.next {
                    Some(next) => options.start_after = Some(next),
                    None => break,
                }
            }
        }
        drop(progress);
        let capabilities = store.capabilities();
        let out = &mut context.out;
        if !out.is_text() {
            out.json(&json!({
                "store": store.to_string(),
                "capabilities": capabilities,
                "namespaces": namespaces.len(),
                "rows": rows,
                "bytes": bytes,
            }))?;
            return Ok(Outcome::Done);
        }
        out.line(format_args!("store       {store}"))?;
        out.line(format_args!("durability  {}", capabilities.durability))?;
        out.line(format_args!("shared      {}", if capabilities.shared { "several processes" } else { "one process" }))?;
        out.line(format_args!("namespaces  {}", namespaces.len()))?;
        out.line(format_args!("rows        {rows}"))?;
        out.line(format_args!("bytes       {bytes}"))?;
        Ok(Outcome::Done)
    }
}

/// Shows a key: control characters and `%` as `%XX`, so that it can be given back.
fn escape(key: &str) -> String {
    let mut text = String::with_capacity(key.len());
    for character in key.chars() {
        if character == '%' || character.is_control() {
            let mut buffer = [0; 4];
            for byte in character.encode_utf8(&mut buffer).bytes() {
                text.push_str(&format!("%{byte:02X}"));
            }
        } else {
            text.push(character);
        }
    }
    text
}

/// Reads a key that [`escape`] shows.
fn unescape(text: &str) -> Result<String, Error> {
    let bad = || Error::invalid_argument(format!("the key `{text}` has a bad escape; write `%25` for a percent sign"));
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, after @ ..] = rest {
        rest = after;
        if *first != b'%' {
            bytes.push(*first);
            continue;
        }
        let digit = |index: usize| rest.get(index).and_then(|byte| char::from(*byte).to_digit(16));
        let (Some(high), Some(low)) = (digit(0), digit(1)) else { return Err(bad()) };
        bytes.push((high * 16 + low) as u8);
        rest = &rest[2..];
    }
    String::from_utf8(bytes).map_err(|_| bad())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_shown_and_read_back() {
        for key in ["a/b.md", "\u{1}a\u{1}b", "100%", "%41", "é\u{7f}ü"] {
            assert_eq!(unescape(&escape(key)).expect("its own text"), key);
            assert!(!escape(key).chars().any(char::is_control));
        }
        assert!(unescape("%4").is_err());
        assert!(unescape("%ZZ").is_err());
        assert!(unescape("%FF").is_err());
    }
}
