//! Merging one thread's changes into another.
//!
//! Both are compared with their newest common ancestor. A change that only one side made is taken. Text files that both changed are merged
//! by lines. Everything else that both changed, or that cannot coexist, is a conflict. Conflicts are data with both sides, and nothing is
//! written until each is decided, by a resolution for its path or by a strategy for all.
//!
//! The result is one new checkpoint of the thread, which records the merged checkpoint, so the next merge of the two starts from there.

mod ancestor;
mod lines;
mod options;
mod outcome;
mod paths;

pub use options::{MergeOptions, MergeResolution, MergeStrategy};
pub use outcome::{
    MergeChange, MergeConflict, MergeConflictKind, MergeHunk, MergeLines, MergeOrigin, MergeOutcome, MergeSide, MergeStatus,
};

use super::fault::{no_checkpoint, no_thread, saved_meanwhile};
use super::namespaces::thread_of;
use super::{At, CheckpointId, Checkpointer, Head, Opened, PutOptions, Reviewer, ThreadCheckpoint};
use crate::backend::StateSnapshot;
use treehold_core::clock::Clock;
use treehold_core::error::{Error, ErrorKind, Result};
use treehold_core::scope::Scope;
use treehold_core::text::merge::MarkerNames;
use treehold_store::whole_microseconds;

/// The metadata key of a checkpoint for the thread that was merged into it.
pub const MERGED_THREAD: &str = "merged_thread";

/// The metadata key of a checkpoint for the checkpoint that was merged into it.
pub const MERGED_CHECKPOINT: &str = "merged_checkpoint";

/// Merges a checkpoint of a thread into the scope's thread, as a new checkpoint after its head.
///
/// Nothing is written when the other thread has nothing new, when a conflict is undecided, or in a dry run; the outcome says which. A
/// thread without changes since the two diverged still gets a checkpoint of its own.
///
/// Cost: grows with the changes of either side since they diverged, and with the number of checkpoints since. Contents that only one side
/// changed are neither read nor written again.
///
/// # Errors
/// [`NotFound`](ErrorKind::NotFound) for a missing thread or checkpoint, and when the common ancestor was pruned or never existed;
/// [`Conflict`](ErrorKind::Conflict) when the thread got a new head meanwhile; [`InvalidArgument`](ErrorKind::InvalidArgument) for a
/// resolution of a path without a conflict. Nothing is written in these cases.
///
/// # Examples
/// ```
/// use treehold_tree::checkpoint::{At, Checkpointer, MemoryCheckpointer, MergeOptions, MergeStatus, PutOptions, merge};
/// use treehold_core::Scope;
/// use treehold_tree::backend::{BackendExt, StateBackend};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> treehold_core::Result<()> {
/// let (checkpoints, main) = (MemoryCheckpointer::new(), Scope::new().with_thread("main"));
/// let tree = StateBackend::new();
/// tree.write("/plan.md", "1. ask\n").await?;
/// checkpoints.put(&main, &tree.snapshot(), &PutOptions::new()).await?;
/// let forked = checkpoints.fork(&main, At::Latest, "try", &PutOptions::new()).await?;
///
/// tree.write("/answer.md", "42\n").await?;
/// let then = PutOptions::new().with_head(forked.head);
/// checkpoints.put(&Scope::new().with_thread("try"), &tree.snapshot(), &then).await?;
///
/// let outcome = merge(&checkpoints, &main, ("try", At::Latest), &MergeOptions::new()).await?;
/// assert_eq!(outcome.status, MergeStatus::Merged);
/// let merged = checkpoints.open(&main, At::Latest).await?.expect("it was merged into");
/// assert_eq!(merged.state.read_text("/answer.md").await?, "42\n");
/// # Ok(())
/// # }
/// ```
pub async fn merge(checkpointer: &dyn Checkpointer, scope: &Scope, source: (&str, At), options: &MergeOptions) -> Result<MergeOutcome> {
    let (mut outcome, planned) = plan_merge(checkpointer, scope, source, options, None).await?;
    if let Some((state, notes)) = planned {
        outcome.checkpoint = Some(checkpointer.put(scope, &state, &notes).await?.checkpoint);
    }
    Ok(outcome)
}

/// Plans a merge as [`merge`] does. Returns the state to put and its options, unless nothing is to be written.
pub async fn plan_merge(
    checkpointer: &dyn Checkpointer,
    scope: &Scope,
    (source, at): (&str, At),
    options: &MergeOptions,
    reviewer: Option<&Reviewer>,
) -> Result<(MergeOutcome, Option<(StateSnapshot, PutOptions)>)> {
    let thread = thread_of(scope)?;
    let ours = checkpointer.open(scope, At::Latest).await?.ok_or_else(|| no_thread(thread))?;
    if options.head.is_some() && options.head != ours.head {
        return Err(saved_meanwhile(thread, ours.head.map(|head| head.version)));
    }
    let theirs = open(checkpointer, scope, source, at).await?;
    let of = |thread: &str, opened: &Opened| ThreadCheckpoint { thread: thread.to_owned(), id: opened.checkpoint.id };
    let (our_place, their_place) = (of(thread, &ours), of(source, &theirs));
    let (base_place, base) = match options.base {
        Some(id) => base(checkpointer, scope, [thread, source], id).await?,
        None => {
            let place = ancestor::nearest(checkpointer, scope, [&our_place, &their_place]).await?;
            let opened = open(checkpointer, scope, &place.thread, At::Id(place.id)).await?;
            (place, opened.state)
        }
    };
    let mut outcome = MergeOutcome::new(base_place, our_place, their_place);
    let names = MarkerNames { ours: thread, base: "base", theirs: source };
    let plan = paths::plan([&base, &ours.state, &theirs.state], options, names).await?;
    let Some(mut plan) = plan else { return Ok((outcome, None)) };
    if let Some(reviewer) = reviewer {
        plan.review(reviewer).await?;
    }
    let grafts = plan.tell(&mut outcome, options);
    if outcome.status != MergeStatus::Merged || options.dry_run {
        return Ok((outcome, None));
    }
    let now = whole_microseconds(Clock::system().now());
    let started = u64::try_from(now.as_microsecond()).unwrap_or(0);
    let issued = started.max(theirs.state.version().number());
    let state = if grafts.is_empty() { ours.state } else { ours.state.grafted(grafts, issued, now).await? };
    let notes = noted(options, &outcome.theirs, ours.head);
    Ok((outcome, Some((state, notes))))
}

/// Returns put options that record the merged checkpoint.
fn noted(options: &MergeOptions, merged: &ThreadCheckpoint, head: Option<Head>) -> PutOptions {
    let notes = PutOptions { label: options.label.clone(), metadata: options.metadata.clone(), ..PutOptions::new() };
    notes
        .with_metadata(MERGED_THREAD, &merged.thread)
        .with_metadata(MERGED_CHECKPOINT, merged.id.to_string())
        .with_merged(merged.clone())
        .with_head(head)
}

async fn open(checkpointer: &dyn Checkpointer, scope: &Scope, thread: &str, at: At) -> Result<Opened> {
    let found = checkpointer.open(&scope.clone().with_thread(thread), at).await?;
    found.ok_or_else(|| match at {
        At::Latest => no_thread(thread),
        At::Id(id) => no_checkpoint(thread, id),
    })
}

/// Opens the named base, which belongs to one of the two threads.
async fn base(
    checkpointer: &dyn Checkpointer,
    scope: &Scope,
    threads: [&str; 2],
    id: CheckpointId,
) -> Result<(ThreadCheckpoint, StateSnapshot)> {
    for thread in threads {
        if let Some(opened) = checkpointer.open(&scope.clone().with_thread(thread), At::Id(id)).await? {
            return Ok((ThreadCheckpoint { thread: thread.to_owned(), id }, opened.state));
        }
    }
    let [ours, theirs] = threads;
    let message = format!("neither thread `{ours}` nor `{theirs}` has the base checkpoint `{id}`; list their checkpoints for a valid id");
    Err(Error::new(ErrorKind::NotFound, message))
}
