//! Candidates from the tree, the threads and the configuration.
//!
//! Everything is bounded: one page of a directory or list, however many there are.

use super::subject::Subject;
use crate::checkpoint::{Checkpoint, ListOptions};
use crate::cli::args::{Cli, When};
use crate::cli::commands::thread::kept;
use crate::cli::context::Context;
use crate::cli::terminal::shown;
use crate::cli::time::ago;
use crate::ops::{LsOptions, OnFailure};
use crate::{Error, VfsPath, VfsPathBuf};
use clap::CommandFactory;
use clap_complete::engine::CompletionCandidate;
use jiff::Timestamp;

/// The most candidates, which a shell still shows after asking.
const CANDIDATES_MAX: usize = 500;

/// The most checkpoints that are offered.
const CHECKPOINTS_MAX: usize = 100;

/// The most versions of a file that are offered.
const VERSIONS_MAX: usize = 20;

/// The letters of a checkpoint's id that are offered. They are as good as unique.
const LETTERS: usize = 8;

/// Where the words on the line look.
#[derive(Debug, Clone)]
pub(crate) struct Place {
    /// The directory that relative paths start from, in a shell of the tree.
    pub(crate) directory: Option<VfsPathBuf>,
    /// The moment that the command reads the tree at.
    pub(crate) when: When,
    /// The first path on the line, whose versions are offered as moments.
    pub(crate) path: Option<String>,
}

/// Returns the candidates for a value of which the part `current` is written.
///
/// # Errors
/// Those of the stores and trees that are read.
pub(crate) async fn look_up(
    context: &mut Context,
    place: &Place,
    subject: Subject,
    current: &str,
) -> Result<Vec<CompletionCandidate>, Error> {
    let found = match subject {
        Subject::Path => paths(context, place, current, false).await?,
        Subject::Directory => paths(context, place, current, true).await?,
        Subject::Versioned => match current.rsplit_once('@').filter(|(path, moment)| !path.is_empty() && !moment.contains('/')) {
            Some((path, moment)) => {
                let moments = moments(context, place, Some(path), moment).await?;
                moments.into_iter().map(|moment| moment.add_prefix(format!("{path}@"))).collect()
            }
            None => paths(context, place, current, false).await?,
        },
        Subject::CheckpointOrPath if current.starts_with('/') => paths(context, place, current, false).await?,
        Subject::CheckpointOrPath | Subject::Checkpoint => checkpoints(context, current).await?,
        Subject::Moment => moments(context, place, place.path.as_deref(), current).await?,
        Subject::Thread => threads(context, current).await?,
        Subject::Session => sessions(context).await?,
        Subject::Token => tokens(context).await?,
        Subject::Store => {
            let config = context.config()?;
            let url = |url: &str| context.registry.shown_url(url);
            config.stores.iter().map(|(name, store)| candidate(name, Some(url(&store.url)))).collect()
        }
        Subject::Route => {
            let config = context.config()?;
            config.routes.keys().map(|path| candidate(path, None)).collect()
        }
        Subject::Command => Cli::command()
            .get_subcommands()
            .map(|command| CompletionCandidate::new(command.get_name().to_owned()).help(command.get_about().cloned()))
            .collect(),
        Subject::HostFile | Subject::HostDirectory | Subject::Other => Vec::new(),
    };
    // A value that a terminal would interpret cannot be written on a command line.
    let is_offered = |candidate: &CompletionCandidate| {
        candidate
            .get_value()
            .to_str()
            .is_some_and(|value| value.starts_with(current) && shown(value, true) == value && !value.contains(['\n', '\t']))
    };
    Ok(found.into_iter().filter(is_offered).take(CANDIDATES_MAX).collect())
}

fn candidate(value: &str, help: Option<String>) -> CompletionCandidate {
    CompletionCandidate::new(value.to_owned()).help(help.filter(|help| !help.is_empty()).map(Into::into))
}

/// Lists the paths that start with a text. Directories end with a `/`.
async fn paths(context: &mut Context, place: &Place, current: &str, only_directories: bool) -> Result<Vec<CompletionCandidate>, Error> {
    let (above, name) = match (current.rsplit_once('/'), &place.directory) {
        (Some((above, name)), _) => (format!("{above}/"), name),
        (None, Some(_)) => (String::new(), current),
        // On the command line, a path starts with a `/`.
        (None, None) if current.is_empty() => ("/".to_owned(), ""),
        (None, None) => return Ok(Vec::new()),
    };
    let directory = match &place.directory {
        Some(from) => crate::cli::shell_path::resolved(from, &above)?,
        None => VfsPathBuf::parse(if above.len() > 1 { above.trim_end_matches('/') } else { &above })?,
    };
    let tree = context.tree_at(&place.when).await?;
    let mut options = LsOptions::new().with_limit(CANDIDATES_MAX).with_on_failure(OnFailure::Partial);
    if !name.is_empty() {
        options.start_after = Some(before(name));
    }
    let listing = tree.ls(directory.as_ref() as &VfsPath, &options).await?;
    let entries = listing.entries.iter().filter(|entry| !only_directories || entry.is_directory());
    Ok(entries
        .map(|entry| {
            let slash = if entry.is_directory() { "/" } else { "" };
            candidate(&format!("{above}{}{slash}", entry.name()), None)
        })
        .collect())
}

/// Returns a text that sorts before every text that starts with `prefix`, and after nearly all others that do.
fn before(prefix: &str) -> String {
    let mut text = prefix.to_owned();
    if let Some(last) = text.pop()
        && let Some(previous) = (1..=0x800).find_map(|step| (last as u32).checked_sub(step).and_then(char::from_u32))
    {
        text.push(previous);
        text.push(char::MAX);
    }
    text
}

/// Lists the saved threads of the user that start with a text.
async fn threads(context: &mut Context, current: &str) -> Result<Vec<CompletionCandidate>, Error> {
    let (checkpointer, scope) = (kept(context)?, context.scope()?);
    let after = (!current.is_empty()).then(|| before(current));
    let page = checkpointer.threads(&scope, after.as_deref(), CANDIDATES_MAX).await?;
    let now = Timestamp::now();
    Ok(page.threads.iter().map(|info| candidate(&info.thread, Some(format!("saved {}", ago(info.saved_at, now))))).collect())
}

/// Lists the newest checkpoints of the thread: first their labels, then their ids.
async fn checkpoints(context: &mut Context, current: &str) -> Result<Vec<CompletionCandidate>, Error> {
    let (checkpointer, scope) = (kept(context)?, context.scope()?);
    let page = checkpointer.list(&scope, &ListOptions::new().with_limit(CHECKPOINTS_MAX)).await?;
    let now = Timestamp::now();
    let mut found = Vec::new();
    let mut labels = std::collections::BTreeSet::new();
    for checkpoint in &page.checkpoints {
        if let Some(label) = &checkpoint.label
            && labels.insert(label)
        {
            found.push(candidate(label, Some(format!("saved {}", ago(checkpoint.created_at, now)))));
        }
    }
    let letters = LETTERS.max(current.len());
    for checkpoint in &page.checkpoints {
        let id = checkpoint.id.letters();
        found.push(candidate(&id[..letters.min(id.len())], Some(described(checkpoint, now))));
    }
    Ok(found)
}

/// Lists moments of a path: the versions of a file that are kept, and the newest checkpoints of the thread.
async fn moments(context: &mut Context, place: &Place, path: Option<&str>, current: &str) -> Result<Vec<CompletionCandidate>, Error> {
    let mut found = Vec::new();
    let path = path.and_then(|path| match &place.directory {
        Some(from) => crate::cli::shell_path::resolved(from, path).ok(),
        None => VfsPathBuf::parse(path).ok(),
    });
    if let Some(path) = path {
        let session = context.session().await?;
        // The checkpoints of a state are listed anyway.
        let log = if session.is_state(&path) { None } else { session.log(&path, VERSIONS_MAX).await.ok() };
        let now = Timestamp::now();
        for (back, revision) in log.into_iter().flat_map(|log| log.revisions).enumerate() {
            let help = format!("{} {}", revision.operation, ago(revision.at, now));
            if back > 0 {
                found.push(candidate(&format!("~{back}"), Some(help.clone())));
            }
            found.push(candidate(&format!("v{}", revision.number), Some(help)));
        }
    }
    found.extend(checkpoints(context, current).await?);
    Ok(found)
}

/// Lists the tokens of the server, by id.
#[cfg(feature = "serve")]
async fn tokens(context: &mut Context) -> Result<Vec<CompletionCandidate>, Error> {
    let store = context.stores()?.get(&context.config()?.threads.store)?;
    let records = crate::serve::TokenBook::new(store).list().await?;
    Ok(records.iter().map(|record| candidate(&record.id, record.label.clone())).collect())
}

#[cfg(not(feature = "serve"))]
async fn tokens(_: &mut Context) -> Result<Vec<CompletionCandidate>, Error> {
    Ok(Vec::new())
}

fn described(checkpoint: &Checkpoint, now: Timestamp) -> String {
    let label = checkpoint.label.as_ref().map_or_else(String::new, |label| format!(", {label}"));
    format!("saved {}{label}", ago(checkpoint.created_at, now))
}

/// Lists the sessions of the user that changed last.
async fn sessions(context: &mut Context) -> Result<Vec<CompletionCandidate>, Error> {
    let scope = context.config()?.scope;
    let page = context.sessions()?.for_user(&scope.tenant, &scope.user)?.list(&scope.tenant, &scope.user, CANDIDATES_MAX, None).await?;
    Ok(page.sessions.iter().map(|session| candidate(&session.session_id, None)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_before_a_prefix_sorts_right_before_everything_that_starts_with_it() {
        for prefix in ["a", "me", "\u{1}", "é", "\u{e000}", "x\u{10000}"] {
            let before = before(prefix);
            assert!(*before < *prefix, "{prefix:?}");
            let mut below = prefix.to_owned();
            let last = below.pop().expect("not empty");
            if let Some(previous) = char::from_u32(last as u32 - 1) {
                below.push(previous);
                assert!(*below < *before, "{prefix:?}");
            }
        }
    }
}
