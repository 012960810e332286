//! `store`: rows by namespace. Commands for whole stores are in separate files.

mod archive;
mod compact;
mod copy;
mod index;
mod migrate;
mod put;
mod search;
mod snapshot;
mod stats;
mod sweep;
mod verify;

use crate::cli::context::Context;
use crate::cli::exit::{Failure, Outcome, error_of};
use crate::cli::output::{as_text, counted};
use crate::config::OpenStoreOptions;
use crate::error::ErrorRecord;
use crate::store::{AllNamespaces, Batch, Condition, Faults, Item, ScanEntry, ScanOptions, Withheld, escape_key, unescape_key};
use crate::{Error, ErrorKind, Namespace, Store as Rows};
use clap::{Args, Subcommand};
use serde_json::json;
use std::sync::Arc;

/// Inspect, repair, copy and back up stores
///
/// Store tiers keep their files as rows. Change those rows here only to repair them; use `write` to write files.
#[derive(Debug, Subcommand)]
pub(crate) enum Store {
    Ls(Ls),
    Get(Get),
    Put(put::Put),
    Rm(Rm),
    Search(search::Search),
    Compact(compact::Compact),
    Copy(copy::Copy),
    Export(archive::Export),
    Import(archive::Import),
    Index(index::Index),
    Migrate(migrate::Migrate),
    Snapshot(snapshot::Snapshot),
    Stats(stats::Stats),
    Sweep(sweep::Sweep),
    Verify(verify::Verify),
}

/// List namespaces, or the keys in a namespace
#[derive(Debug, Args)]
pub(crate) struct Ls {
    /// Namespace, such as `default/default/memories` [default: list the namespaces]
    namespace: Option<String>,
    /// List only keys that start with TEXT
    #[arg(long, value_name = "TEXT", default_value = "")]
    prefix: String,
    #[command(flatten)]
    store: StoreName,
}

/// Print the value of a row unchanged
#[derive(Debug, Args)]
pub(crate) struct Get {
    /// Namespace
    namespace: String,
    /// Key, as `ls` prints it
    key: String,
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

#[derive(Debug, Args)]
struct StoreName {
    /// Name of the store in the configuration, or a URL such as `sqlite:FILE` [default: the only one, or `default`]
    #[arg(long = "store", value_name = "NAME")]
    name: Option<String>,
}

/// What `copy`, `export` and `import` include only on request.
#[derive(Debug, Args)]
struct Included {
    /// Include rows that are left out by default (repeatable)
    ///
    /// `tokens`: access tokens with their rights, and the key that signs consent questions. `answers`: responses that a server
    /// keeps to answer repeated requests. Include them only in copies that you give to nobody, and only from sources that you
    /// trust.
    #[arg(long = "include", value_name = "NAME", value_parser = ["answers", "tokens"])]
    names: Vec<String>,
}

impl Included {
    fn all(&self) -> impl Iterator<Item = Withheld> {
        self.names.iter().filter_map(|name| Withheld::parse(name))
    }
}

impl StoreName {
    /// Returns the name or URL.
    fn name(&self, context: &Context) -> Result<String, Error> {
        named(context, self.name.as_deref())
    }

    async fn open(&self, context: &Context) -> Result<Arc<dyn Rows>, Error> {
        open_any(context, &self.name(context)?, false).await
    }

    /// Opens the store to fill it, creating the file or directory of a URL.
    async fn open_or_create(&self, context: &Context) -> Result<Arc<dyn Rows>, Error> {
        open_any(context, &self.name(context)?, true).await
    }
}

/// Returns a name or URL, or the name of the store that is meant where none is given.
fn named(context: &Context, name: Option<&str>) -> Result<String, Error> {
    name.map_or_else(|| Ok(context.config()?.default_store().to_owned()), |name| Ok(name.to_owned()))
}

/// Returns a name or URL without secrets, for messages.
fn shown(context: &Context, name: &str) -> String {
    if name.contains(':') { context.registry.shown_url(name) } else { name.to_owned() }
}

/// Opens a store by its name in the configuration or by URL. `create` creates the file or directory of a URL.
async fn open_any(context: &Context, name: &str, create: bool) -> Result<Arc<dyn Rows>, Error> {
    if name.contains(':') {
        return context.registry.open_store(name, &OpenStoreOptions::new().with_create(create)).await;
    }
    context.stores()?.get(name)
}

impl Store {
    pub(crate) async fn run(self, context: &mut Context) -> Result<Outcome, Failure> {
        match self {
            Self::Ls(ls) => ls.run(context).await,
            Self::Get(get) => get.run(context).await,
            Self::Put(put) => put.run(context).await,
            Self::Rm(rm) => rm.run(context).await,
            Self::Search(search) => search.run(context).await,
            Self::Compact(compact) => compact.run(context).await,
            Self::Copy(copy) => copy.run(context).await,
            Self::Export(export) => export.run(context).await,
            Self::Import(import) => import.run(context).await,
            Self::Index(index) => index.run(context).await,
            Self::Migrate(migrate) => migrate.run(context).await,
            Self::Snapshot(snapshot) => snapshot.run(context).await,
            Self::Stats(stats) => stats.run(context).await,
            Self::Sweep(sweep) => sweep.run(context).await,
            Self::Verify(verify) => verify.run(context).await,
        }
    }
}

impl Ls {
    async fn run(self, context: &mut Context) -> Result<Outcome, Failure> {
        let store = self.store.open(context).await?;
        match &self.namespace {
            Some(namespace) => list_keys(context, &*store, &Namespace::parse(namespace)?, self.prefix).await,
            None => list_namespaces(context, &*store).await,
        }
    }
}

async fn list_namespaces(context: &mut Context, store: &dyn Rows) -> Result<Outcome, Failure> {
    let (mut namespaces, mut faults) = (Vec::new(), Faults::new());
    let mut listing = AllNamespaces::new(store);
    while let Some(page) = next_past(&mut listing, &mut faults).await? {
        namespaces.extend(page);
    }
    match context.out.is_text() {
        true => namespaces.iter().try_for_each(|namespace| context.out.line(namespace))?,
        false => context.out.json_list(&namespaces)?,
    }
    Ok(tell_faults(context, &faults.records(), faults.count()))
}

/// Returns the next page of namespaces. Adds the parts of the store that cannot be listed to `faults`, and goes on after them.
async fn next_past(listing: &mut AllNamespaces<'_>, faults: &mut Faults) -> Result<Option<Vec<Namespace>>, Error> {
    loop {
        match listing.next_page().await {
            Err(error) if !listing.is_over() => faults.add(error),
            listed => return listed,
        }
    }
}

/// Names the parts of a store that failed while the others were handled. Returns the outcome of the command.
fn tell_faults(context: &mut Context, faults: &[ErrorRecord], count: u64) -> Outcome {
    let Some(first) = faults.first() else { return Outcome::Done };
    faults.iter().for_each(|fault| context.out.notice(&fault.message));
    let count = counted(usize::try_from(count).unwrap_or(usize::MAX), "part of the store", "parts of the store");
    context.out.notice(format_args!("{count} could not be handled; the rest was"));
    Outcome::Failed(error_of(first).kind())
}

async fn list_keys(context: &mut Context, store: &dyn Rows, namespace: &Namespace, prefix: String) -> Result<Outcome, Failure> {
    let mut options = ScanOptions::new().with_prefix(unescape_key(&prefix)?);
    let mut count = 0;
    loop {
        let page = store.scan(namespace, options.clone()).await?;
        for entry in &page.entries {
            let ScanEntry::Item(item) = entry else { continue };
            let key = escape_key(&item.key);
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
        let what = if options.prefix.is_empty() { "rows".to_owned() } else { format!("keys that start with `{}`", options.prefix) };
        context.out.notice(format_args!("`{namespace}` has no {what}; `treehold store ls` lists the namespaces"));
    }
    Ok(Outcome::found(count > 0))
}

impl Get {
    async fn run(self, context: &mut Context) -> Result<Outcome, Failure> {
        let (store, namespace) = (self.store.open(context).await?, Namespace::parse(&self.namespace)?);
        let item = get(&*store, &namespace, &self.key).await?;
        match context.out.is_text() {
            true => context.out.content(&item.value)?,
            false => {
                let (value, encoding) = as_text(&item.value);
                context.out.json(&json!({"key": self.key, "value": value, "encoding": encoding, "version": item.version}))?;
            }
        }
        Ok(Outcome::Done)
    }
}

async fn get(store: &dyn Rows, namespace: &Namespace, key: &str) -> Result<Item, Error> {
    let found = store.get(namespace, &unescape_key(key)?).await?;
    found.ok_or_else(|| Error::new(ErrorKind::NotFound, format!("no row `{key}` is in `{namespace}`; `treehold store ls` lists them")))
}

impl Rm {
    async fn run(self, context: &mut Context) -> Result<Outcome, Failure> {
        let (store, namespace) = (self.store.open(context).await?, Namespace::parse(&self.namespace)?);
        if self.all {
            let progress = context.progress("removing rows");
            progress.wait();
            store.commit(Batch::new().delete_prefix(&namespace, "")).await?;
            drop(progress);
            return told_removed(context, &json!({"namespace": namespace, "all": true}));
        }
        let mut batch = Batch::new();
        for key in &self.keys {
            let key = unescape_key(key)?;
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
