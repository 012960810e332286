//! `sweep`: removes what the configuration does not keep.

use crate::agent_state::AgentStates;
use crate::cli::context::Context;
use crate::cli::exit::{Failure, Outcome};
use crate::cli::output::counted;
use crate::retention::{Retention, RetentionReport};
use crate::sessions::Sessions;
use crate::store::{Faults, Pace, PacedStore, Store, StoreExt, SweepCount};
use crate::traces::Traces;
use crate::{Error, ErrorKind};
use clap::Args;
use std::sync::Arc;

/// Remove what the configuration does not keep
///
/// Removes expired rows from every store, the data that deleted or expired sessions and traces left behind, and from all threads of
/// all users the checkpoints and recorded calls that `[retention]` does not keep, with the contents that only they held. Then gives
/// the space back to the file system, where the engine can. Works at the rate of `rows_per_second`, and may be stopped and repeated.
/// A server does the same by itself, in the stores that it uses.
#[derive(Debug, Args)]
#[command(after_long_help = "Examples:
  treehold sweep --dry-run
  treehold sweep")]
pub(crate) struct Sweep {
    /// Only count what would be removed, without the data of sessions and traces
    #[arg(long)]
    dry_run: bool,
}

impl Sweep {
    pub(crate) async fn run(self, context: &mut Context) -> Result<Outcome, Failure> {
        let (config, stores) = (context.config()?, context.stores()?);
        let retention = config.retention(&stores)?;
        let keeps_everything = retention.policy().keeps_everything();
        let progress = context.progress("removing");
        progress.wait();
        let mut report = RetentionReport::default();
        let mut kind = ErrorKind::Corrupt;
        if let Err(error) = retention.run(self.dry_run, &mut report).await {
            kind = error.kind();
            report.fail(format!("threads: {error}"));
        }
        let deleted = SweepCount::new();
        if !self.dry_run {
            let pace = Pace::new().with_rows_per_second(retention.policy().rows_per_second);
            let paced = |store: &Arc<dyn Store>| Arc::new(PacedStore::new(store.clone(), pace.clone()));
            let (sessions, states, traces) = (config.sessions(&stores)?, config.agent_states(&stores)?, config.traces(&stores)?);
            let sessions = Sessions::new(paced(sessions.store())).with_options(sessions.options().clone());
            let states = AgentStates::new(paced(states.store())).with_options(states.options().clone());
            let traces = Traces::new(paced(traces.store())).with_options(traces.options().clone());
            for (what, swept) in [
                ("sessions of agent hosts", sessions.sweep_counting(usize::MAX, &deleted).await.map(drop)),
                ("states of agents", states.sweep_counting(usize::MAX, &deleted).await.map(drop)),
                ("traces", traces.sweep_counting(usize::MAX, &deleted).await.map(drop)),
            ] {
                if let Err(error) = swept {
                    kind = error.kind();
                    report.fail(format!("{what}: {error}"));
                }
            }
        }
        let deleted = deleted.get();
        let (expired, pages) = (SweepCount::new(), SweepCount::new());
        for (name, store) in stores.iter() {
            let of_store = Retention::new(store.clone(), retention.policy().clone());
            // The dry run counts in one call, without a pace: scans hide expired rows, and `sweep` finds them only by removing them.
            let mut faults = Faults::new();
            let tidied = match self.dry_run {
                true => {
                    let counted = store.stats_with_faults(&mut faults).await;
                    counted.map(|stats| expired.add(usize::try_from(stats.expired).unwrap_or(usize::MAX)))
                }
                false => tidy(&of_store, &expired, &pages).await,
            };
            // The other stores, and the other partitions, are handled all the same.
            for error in faults.kept().iter().chain(&tidied.err()) {
                kind = error.kind();
                report.fail(format!("store `{name}`: {error}"));
            }
        }
        let (expired, pages) = (expired.get(), pages.get());
        drop(progress);
        if !context.out.is_text() {
            let mut value = serde_json::to_value(&report).map_err(std::io::Error::from)?;
            (value["expired"], value["pages"], value["dry_run"]) = (expired.into(), pages.into(), self.dry_run.into());
            value["deleted"] = deleted.into();
            context.out.json(&value)?;
        } else {
            print(context, &report, expired, pages, self.dry_run)?;
            if deleted > 0 {
                let deleted = count(deleted, "deleted or expired session or trace", "deleted or expired sessions and traces");
                context.out.line(format_args!("removed the data of {deleted}"))?;
            }
        }
        if keeps_everything {
            context.out.notice("`[retention]` has no rules, so checkpoints and calls were kept");
        }
        if report.deferred > 0 {
            let deferred = count(report.deferred, "checkpoint", "checkpoints");
            context.out.notice(format_args!("{deferred} more may go after the `grace` of `[retention]`"));
        }
        if report.failed > 0 {
            let failed = count(report.failed, "thread, user, partition or store", "threads, users, partitions or stores");
            report.faults.iter().for_each(|fault| context.out.notice(fault));
            context.out.notice(format_args!("{failed} could not be handled; the rest was"));
            return Ok(Outcome::Failed(kind));
        }
        Ok(Outcome::Done)
    }
}

/// Removes the expired rows of a store and gives its space back, also if rows of one partition cannot be removed. Counts both.
async fn tidy(retention: &Retention, expired: &SweepCount, pages: &SweepCount) -> Result<(), Error> {
    let removed = retention.remove_expired(expired).await;
    let given = retention.shrink(pages).await;
    removed.and(given)
}

fn count(count: u64, one: &str, many: &str) -> String {
    counted(usize::try_from(count).unwrap_or(usize::MAX), one, many)
}

fn print(context: &mut Context, report: &RetentionReport, expired: u64, pages: u64, dry_run: bool) -> Result<(), Failure> {
    let verb = if dry_run { "would remove" } else { "removed" };
    let (checkpoints, calls) = (count(report.checkpoints, "checkpoint", "checkpoints"), count(report.calls, "call", "calls"));
    let (contents, rows) = (count(report.contents, "content", "contents"), count(expired, "expired row", "expired rows"));
    context.out.line(format_args!("{verb} {checkpoints}, {calls}, {contents} of {} bytes, {rows}", report.content_bytes))?;
    if pages > 0 {
        context.out.line(format_args!("gave back {} to the file system", count(pages, "page", "pages")))?;
    }
    Ok(())
}
