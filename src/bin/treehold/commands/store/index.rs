//! `store index`: builds, removes and shows the indexes of a tree.

use crate::context::Context;
use crate::exit::{Failure, Outcome};
use crate::output::{Progress, counted};
use clap::{Args, ValueEnum};
use serde_json::json;
use treehold::backend::{IndexKind, IndexState};
use treehold::config::{RouteIndex, RouteType};
use treehold::{Error, ErrorKind, StoreBackend};

/// Make the indexes of the files of a store route, or go on with them
///
/// With `trigram` a grep reads only files that may match, with `words` a ranked search only the best. A route whose `index` names
/// a kind keeps it by itself from its first file on; this makes it for files that were there before. Others may read and write
/// meanwhile, and what was interrupted goes on where it was. From then on whoever writes to the tree keeps the index, whatever
/// the configuration says.
#[derive(Debug, Args)]
pub(crate) struct Index {
    /// Path of the route, such as `/memories`
    route: String,
    /// Only this kind; without it those that the route names or that are there, and where there are none every kind
    #[arg(long)]
    kind: Option<Kind>,
    /// Take away the indexes there are and make them anew
    #[arg(long)]
    rebuild: bool,
    /// Take away the indexes; refused while the route names the kind, as the next write would begin another
    #[arg(long, conflicts_with = "rebuild")]
    remove: bool,
    /// Only tell what there is
    #[arg(long, conflicts_with_all = ["rebuild", "remove"])]
    status: bool,
}

/// The kinds of index, as they are named here.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Kind {
    /// Runs of three bytes, for grep
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
            Error::new(ErrorKind::NotFound, format!("`{route}` is no route to rows of a store; {choice}"))
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
        "the route `{route}` names the {kind} index in its `index`, so the next write would begin another one; take it out of the \
         configuration first, or use --rebuild to make it anew"
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
