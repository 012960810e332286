//! A notice that the command waits for a lock of another process.
//!
//! The engines report a long wait as a `tracing` event ([`lock_wait`](crate::lock_wait)). A command prints the first one. Servers have a
//! log instead.

use crate::cli::args::{Command, Global};
use crate::cli::terminal::{one_message, shown};
use crate::lock_wait::LOCK_WAIT;
use std::fmt::Debug;
use std::io::{self, IsTerminal, Write as _};
use std::sync::atomic::{AtomicBool, Ordering};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

/// Whether the running command still has to print the notice. Static, because a process has one subscriber, and may run several commands.
static IS_WANTED: AtomicBool = AtomicBool::new(false);

/// Prints the notice once for this command: as text only, and on a terminal or with `--verbose`.
pub(crate) fn begin(global: &Global, command: &Command) {
    let is_wanted = !global.quiet && !global.is_json() && (global.verbose || io::stderr().is_terminal());
    IS_WANTED.store(is_wanted, Ordering::Release);
    if is_wanted && !has_log(command) {
        // Keep a subscriber that was installed earlier.
        let _ = tracing::subscriber::set_global_default(Waits);
    }
}

/// Returns whether a command logs the events itself.
fn has_log(command: &Command) -> bool {
    match command {
        #[cfg(feature = "serve")]
        Command::Serve(_) => true,
        _ => false,
    }
}

struct Waits;

impl Subscriber for Waits {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() == LOCK_WAIT
    }

    fn max_level_hint(&self) -> Option<tracing::level_filters::LevelFilter> {
        Some(Level::INFO.into())
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        if !IS_WANTED.swap(false, Ordering::AcqRel) {
            return;
        }
        let mut place = Place::default();
        event.record(&mut place);
        let notice = format!("treehold: waiting for the lock of {}, which another process holds…\n", one_message(&place.0));
        // If standard error is not writable, there is no other place to report to.
        let _ = io::stderr().write_all(shown(&notice, true).as_bytes());
    }
}

/// The field that names what is locked.
#[derive(Default)]
struct Place(String);

impl Visit for Place {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        if field.name() == "place" {
            self.0 = format!("{value:?}");
        }
    }
}
