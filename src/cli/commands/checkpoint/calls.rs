//! The tool calls between two checkpoints, for `show` and `diff`.

use crate::audit::AuditRow;
use crate::cli::context::Context;
use crate::cli::exit::Failure;
use crate::cli::output::Style;
use crate::cli::time::exact;
use crate::{CheckpointId, Error};

/// The most calls to request at a time.
const PAGE: usize = 1_000;

/// Returns the calls after one checkpoint and up to another, oldest first.
pub(super) async fn between(context: &mut Context, after: Option<CheckpointId>, until: CheckpointId) -> Result<Vec<AuditRow>, Error> {
    context.workspace()?.audit_log().ok_or_else(|| {
        Error::invalid_argument("tool calls are not recorded here; set `audit = true` under `[threads]` of the configuration")
    })?;
    let session = context.session().await?;
    let (mut all, mut after) = (Vec::new(), after);
    loop {
        let page = session.calls(after, Some(until), PAGE).await?;
        all.extend(page.calls);
        match page.next {
            Some(next) => after = Some(next),
            None => return Ok(all),
        }
    }
}

/// Prints one line per call: time, outcome, tool, arguments, call id and actor.
pub(super) fn print(context: &mut Context, calls: &[AuditRow]) -> Result<(), Failure> {
    for call in calls {
        let time = exact(call.at);
        let mut line = format!("{time}  {:<9}  {} {}", call.outcome, call.tool, call.arguments);
        for (name, value) in [("tool_call_id", &call.tool_call_id), ("actor", &call.actor)] {
            if let Some(value) = value {
                line.push_str(&format!("  {}", context.out.paint(Style::Faint, format_args!("{name}={}", value.escape_debug()))));
            }
        }
        context.out.line(line)?;
    }
    Ok(())
}
