//! `status`: the thread, its changes and the routes, at a glance.

mod print;

use super::checkpoint::parent_of;
use crate::backend::{OverlayDiffOptions, StateSnapshot};
use crate::checkpoint::{At, ChangeKind, Checkpoint, Checkpointer, ListOptions, PathDiff};
use crate::cli::context::Context;
use crate::cli::exit::{Failure, Outcome};
use crate::config::{Config, EffectiveRoute, RouteType, ScopeConfig, Stores};
use crate::error::ErrorRecord;
use crate::ops::LsOptions;
use crate::{Backend, CheckpointId, Error, ErrorKind, Scope, Session};
use clap::Args;
use futures::future::join_all;
use jiff::Timestamp;
use serde::{Serialize, Serializer};
use std::path::PathBuf;
use std::time::Duration;

/// How many changed paths are named.
const PATHS_MAX: usize = 20;

/// How many changes of a thread or an overlay are counted.
const COUNTED_MAX: usize = 1_000;

/// How many checkpoints are searched for one with a label.
const CHECKPOINTS_MAX: usize = 200;

/// How long a store or server may take to answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// Show the thread, its changes and the routes
///
/// Prints when the thread was last saved, what changed since its newest labelled checkpoint (without one, in its last checkpoint), what
/// is mounted where and with whom it is shared, and what overlays hold that nobody has applied. Every command saves what it changes, so
/// nothing is ever unsaved.
///
/// A store or server that cannot be reached, or does not answer within 5 seconds, is reported in its place, and the exit code is that of
/// the first failure. `st` is short for it.
#[derive(Debug, Args)]
#[command(after_long_help = "Examples:
  treehold status
  treehold --thread monday st
  treehold status --json")]
pub(crate) struct Status {}

/// What is known, as it is printed as JSON.
#[derive(Debug, Serialize)]
struct Report {
    /// The configuration file in use; `None` for the built-in configuration.
    configuration: Option<PathBuf>,
    scope: ScopeConfig,
    /// The session whose documents are mounted.
    #[serde(skip_serializing_if = "Option::is_none")]
    session: Option<String>,
    thread: ThreadPart,
    routes: Vec<RoutePart>,
}

/// The thread.
#[derive(Debug, Default, Serialize)]
struct ThreadPart {
    /// Whether threads are saved.
    is_saved: bool,
    /// The latest checkpoint; `None` for a new thread.
    checkpoint: Option<Checkpoint>,
    changes: Option<Changes>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<Fault>,
}

/// What changed in the state of the thread.
#[derive(Debug, Serialize)]
struct Changes {
    /// The checkpoint that the state is compared with; `None` for the empty state.
    since: Option<Since>,
    added: usize,
    changed: usize,
    removed: usize,
    /// Whether there are more changes than were counted.
    more: bool,
    /// The first changes in path order.
    paths: Vec<PathDiff>,
}

impl Changes {
    fn count(&self) -> usize {
        self.added + self.changed + self.removed
    }
}

/// The checkpoint that the state is compared with.
#[derive(Debug, Clone, Serialize)]
struct Since {
    id: CheckpointId,
    /// The label. Without one, it is the parent of the latest checkpoint.
    #[serde(skip_serializing_if = "Option::is_none")]
    label: Option<String>,
    created_at: Timestamp,
}

/// A route.
#[derive(Debug, Serialize)]
struct RoutePart {
    #[serde(flatten)]
    route: EffectiveRoute,
    /// The changes in its overlay.
    #[serde(skip_serializing_if = "Option::is_none")]
    overlay_changes: Option<OverlayChanges>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<Fault>,
}

/// How many paths an overlay changes.
#[derive(Debug, Serialize)]
struct OverlayChanges {
    count: usize,
    /// Whether there are more than were counted.
    more: bool,
}

/// Why a part cannot be shown.
#[derive(Debug)]
struct Fault(Error);

impl Serialize for Fault {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        ErrorRecord::from(&self.0).serialize(serializer)
    }
}

impl Status {
    pub(crate) async fn run(self, context: &mut Context) -> Result<Outcome, Failure> {
        let config = context.config()?;
        let (stores, scope) = (context.stores()?, config.scope());
        let session = context.session().await?;
        let checkpointer = context.workspace()?.checkpointer().cloned();
        let thread = async {
            match &checkpointer {
                Some(checkpointer) => in_time(thread_part(&**checkpointer, &session, &scope)).await.unwrap_or_else(ThreadPart::failed),
                None => ThreadPart::default(),
            }
        };
        let routes = config.effective_routes()?.into_iter().map(|route| route_part(route, &config, &stores, &session));
        let (thread, mut routes) = tokio::join!(thread, join_all(routes));
        routes.iter_mut().filter(|part| follows_from(&part.route, &thread)).for_each(|part| part.error = None);
        let report = Report {
            configuration: config.base().file.clone(),
            scope: config.scope.clone(),
            session: config.sessions.mounted.clone(),
            thread,
            routes,
        };
        if context.out.is_text() {
            print::print(context, &report).await?;
        } else {
            context.out.json(&report)?;
        }
        let faults = report.thread.error.iter().chain(report.routes.iter().filter_map(|route| route.error.as_ref()));
        Ok(faults.map(|fault| Outcome::Failed(fault.0.kind())).next().unwrap_or(Outcome::Done))
    }
}

/// Returns whether what is said about the thread explains why a route cannot be shown: its state, and a past that it does not have yet.
fn follows_from(route: &EffectiveRoute, thread: &ThreadPart) -> bool {
    match route.tier {
        RouteType::State => thread.error.is_some(),
        RouteType::History => {
            let is_own = route.location.as_ref().is_some_and(|place| place.starts_with("{thread} at "));
            is_own && thread.checkpoint.is_none()
        }
        _ => false,
    }
}

/// Bounds how long a part may take.
async fn in_time<T>(part: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
    let late = |_| Error::new(ErrorKind::Deadline, format!("there was no answer within {} seconds; try again", PATIENCE.as_secs()));
    tokio::time::timeout(PATIENCE, part).await.unwrap_or_else(|elapsed| Err(late(elapsed)))
}

impl ThreadPart {
    fn failed(error: Error) -> Self {
        Self { is_saved: true, error: Some(Fault(error)), ..Self::default() }
    }
}

async fn thread_part(checkpointer: &dyn Checkpointer, session: &Session, scope: &Scope) -> Result<ThreadPart, Error> {
    let newest = checkpointer.list(scope, &ListOptions::new().with_limit(CHECKPOINTS_MAX)).await?.checkpoints;
    let Some(latest) = newest.first() else { return Ok(ThreadPart { is_saved: true, ..ThreadPart::default() }) };
    let changes = changes(checkpointer, session, scope, &newest, latest).await?;
    let checkpoint = Some(session.shown(latest.clone()).await?);
    Ok(ThreadPart { is_saved: true, checkpoint, changes, error: None })
}

/// Compares the latest checkpoint with the newest one that has a label, else with its parent. Returns `None` if that was pruned.
async fn changes(
    checkpointer: &dyn Checkpointer,
    session: &Session,
    scope: &Scope,
    newest: &[Checkpoint],
    latest: &Checkpoint,
) -> Result<Option<Changes>, Error> {
    let Some(now) = checkpointer.open(scope, At::Id(latest.id)).await? else { return Ok(None) };
    let labelled = match newest.iter().find(|checkpoint| checkpoint.label.is_some()) {
        Some(labelled) => checkpointer.open(scope, At::Id(labelled.id)).await?.map(|opened| (opened.checkpoint, opened.state)),
        None => None,
    };
    let (since, older) = match labelled {
        Some((checkpoint, state)) => (Some(checkpoint), state),
        None => match parent_of(checkpointer, scope, latest).await? {
            Some((mut parent, state)) => {
                // A label of another thread would name nothing here.
                parent.label = None;
                (Some(parent), state)
            }
            None if latest.parent.is_none() => (None, StateSnapshot::default()),
            None => return Ok(None),
        },
    };
    let page = session.diff(&older, &now.state, None, COUNTED_MAX).await?;
    let count = |kind| page.paths.iter().filter(|path| path.change == kind).count();
    let (added, changed, removed) = (count(ChangeKind::Added), count(ChangeKind::Changed), count(ChangeKind::Removed));
    let since = since.map(|Checkpoint { id, label, created_at, .. }| Since { id, label, created_at });
    let more = page.next.is_some();
    Ok(Some(Changes { since, added, changed, removed, more, paths: page.paths.into_iter().take(PATHS_MAX).collect() }))
}

async fn route_part(route: EffectiveRoute, config: &Config, stores: &Stores, session: &Session) -> RoutePart {
    let looked = in_time(async {
        session.backend().ls(&route.path, &LsOptions::new().with_limit(1)).await?;
        overlay_changes(&route, config, stores, session).await
    });
    match looked.await {
        Ok(overlay_changes) => RoutePart { route, overlay_changes, error: None },
        // A rule hides the route from its reader.
        Err(error) if !route.rules.is_empty() && matches!(error.kind(), ErrorKind::NotFound | ErrorKind::PermissionDenied) => {
            RoutePart { route, overlay_changes: None, error: None }
        }
        Err(error) => RoutePart { route, overlay_changes: None, error: Some(Fault(error)) },
    }
}

/// Counts the changes in the overlay of a route. Cost: grows with the counted changes.
async fn overlay_changes(
    route: &EffectiveRoute,
    config: &Config,
    stores: &Stores,
    session: &Session,
) -> Result<Option<OverlayChanges>, Error> {
    let Some(overlay) = config.overlay(route.path.as_str(), stores, &config.scope())? else { return Ok(None) };
    let overlay = overlay.with_mounted_tree(session.backend(), route.path.clone());
    let diff = overlay.diff(&OverlayDiffOptions::new().with_limit(COUNTED_MAX)).await.map_err(|error| error.rebased(&route.path, &[]))?;
    Ok(Some(OverlayChanges { count: diff.differences.len(), more: diff.truncated.is_some() }))
}
