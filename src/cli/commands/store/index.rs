//! `store index`: builds, removes and shows the indexes of a tree.

use crate::backend::{IndexKind, IndexState};
use crate::cli::context::Context;
use crate::cli::exit::{Failure, Outcome};
use crate::cli::output::{Progress, counted};
use crate::config::{RouteIndex, RouteType};
use crate::{Error, ErrorKind, StoreBackend};
use clap::{Args, ValueEnum};
use serde_json::json;

/// Build or continue the search indexes of a store route
///
/// With a `trigram` index, grep reads only files that may match. With a `words` index, ranked search reads only the best files. A
/// route whose `index` setting names a kind maintains that index from its first file on; this command indexes files that existed
/// before. Others may read and write meanwhile, and an interrupted build resumes where it stopped. Once an index exists, every
/// writer maintains it, whatever the configuration says.
#[derive(Debug, Args)]
pub(crate) struct Index {
    /// Path of the route, such as `/memories`
    route: String,
    /// Kind of index [default: those that the route names or that exist, else all]
    #[arg(long)]
    kind: Option<Kind>,
    /// Remove existing indexes and build them again
    #[arg(long)]
    rebuild: bool,
    /// Remove the indexes; refused for a kind that the route names, because the next write would recreate it
    #[arg(long, conflicts_with = "rebuild")]
    remove: bool,
    /// Only show the existing indexes
    #[arg(long, conflicts_with_all = ["rebuild", "remove"])]
    status: bool,
}

/// The kinds of index, by their names on the command line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Kind {
    /// Sequences of three bytes, for grep
    Trigram,
    /// Words, for ranked search
    Words,
}

impl From<Kind> for IndexKind {
    fn from(kind: Kind) -> Self {
        match kind {
            Kind::Trigram => Self::Trigram,
            Kind::Words => Self::Words,
        }
    }
}

impl Index {
    pub(super) async fn run(self, context: &mut Context) -> Result<Outcome, Failure> {
        let config = context.config()?;
        let route = match self.route.trim_end_matches('/') {
            "" => "/",
            route => route,
        };
        let tree = config.store_tree(route, &context.stores()?, &config.scope())?.ok_or_else(|| {
            let of_rows = config.routes.iter().filter(|(_, route)| route.tier == RouteType::Store);
            let routes: Vec<String> = of_rows.map(|(path, _)| format!("`{path}`")).collect();
            let choice = match &routes[..] {
                [] => "the configuration has none; give a route `type = \"store\"`".to_owned(),
                [route] => format!("{route} is the only one"),
                routes => format!("those are {}", routes.join(", ")),
            };
            Error::new(ErrorKind::NotFound, format!("`{route}` is not a store route; {choice}"))
        })?;
        let named = config.routes.get(route).and_then(|route| route.index.as_ref()).map_or(&[][..], RouteIndex::kinds).to_vec();
        let kinds = match self.kind {
            Some(kind) => vec![kind.into()],
            None => kinds(&tree, &named).await?,
        };
        if self.remove
            && let Some(kind) = kinds.iter().find(|kind| named.contains(*kind))
        {
            return Err(named_still(route, *kind).into());
        }
        let mut states = Vec::new();
        for kind in kinds {
            if self.remove || self.rebuild {
                tree.remove_index(kind).await?;
            }
            let state = match self.remove || self.status {
                true => tree.index_state(kind).await?,
                false => Some(build(&tree, kind, &context.progress("indexing")).await?),
            };
            states.extend(state.map(|state| (kind, state)));
        }
        print(context, &states)
    }
}

/// Returns the kinds that a route names or that exist, or every kind if there are none.
async fn kinds(tree: &StoreBackend, named: &[IndexKind]) -> Result<Vec<IndexKind>, Error> {
    let mut kinds = Vec::new();
    for kind in IndexKind::ALL {
        if named.contains(&kind) || tree.index_state(kind).await?.is_some() {
            kinds.push(kind);
        }
    }
    Ok(if kinds.is_empty() { IndexKind::ALL.to_vec() } else { kinds })
}

/// Returns the error for removing an index that the next write would recreate.
fn named_still(route: &str, kind: IndexKind) -> Error {
    Error::invalid_argument(format!(
        "the route `{route}` names the {kind} index in its `index`, so the next write would create it again; remove it from the \
            configuration first, or use `--rebuild` to recreate it"
    ))
}

async fn build(tree: &StoreBackend, kind: IndexKind, progress: &Progress) -> Result<IndexState, Error> {
    tree.build_index(kind, |at| progress.tell(at.files, "files")).await
}

fn print(context: &mut Context, states: &[(IndexKind, IndexState)]) -> Result<Outcome, Failure> {
    let out = &mut context.out;
    if !out.is_text() {
        let indexes = states.iter().map(|(kind, state)| {
            json!({
                "kind": kind,
                "is_complete": state.is_complete,
                "segments": state.segments,
                "files_in_segments": state.files_in_segments,
                "files_in_tail": state.files_in_tail,
                "bytes": state.size_bytes,
            })
        });
        out.json(&json!({"indexes": indexes.collect::<Vec<_>>()}))?;
        return Ok(Outcome::Done);
    }
    if states.is_empty() {
        out.line("no index")?;
    }
    for (kind, state) in states {
        let files = counted((state.files_in_segments + state.files_in_tail) as usize, "file", "files");
        let segments = counted(state.segments, "segment", "segments");
        let share = if state.is_complete { "complete" } else { "not complete: searches read all files" };
        out.line(format_args!(
            "{kind} index, {share}: {files} in {segments} and a tail of {}, {} bytes",
            state.files_in_tail, state.size_bytes
        ))?;
    }
    Ok(Outcome::Done)
}
