//! The signals that stop a command.
//!
//! A command that is stopped removes what it has not finished, and its exit code says which signal it was. Until a command waits for the
//! first time, a signal ends the process at once, since a command that blocks would not notice it. So a command waits once
//! ([`watched`]) before it creates something that must not stay.

/// A signal that asks the process to stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StopSignal {
    /// The terminal was closed: SIGHUP.
    Hangup,
    /// The user interrupts the command, as by Ctrl-C: SIGINT.
    Interrupt,
    /// A supervisor ends the process: SIGTERM.
    Terminate,
}

impl StopSignal {
    /// The signals that also end a program which continues after an interrupt.
    pub(crate) const FINAL: [Self; 2] = [Self::Hangup, Self::Terminate];

    /// Returns the exit code of a command that the signal stopped: 128 and the number of the signal, as shells report it.
    pub(crate) fn exit_code(self) -> u8 {
        match self {
            Self::Hangup => 129,
            Self::Interrupt => 130,
            Self::Terminate => 143,
        }
    }
}

/// Returns a future that ends when the process is asked to stop: by the user, by the end of the terminal, or by a supervisor. Requests count
/// from this call on, not from the first poll.
///
/// # Panics
/// Outside of a tokio runtime.
#[cfg(unix)]
pub(crate) fn stop() -> impl Future<Output = StopSignal> {
    unix::any_of(&[StopSignal::Interrupt, StopSignal::Terminate, StopSignal::Hangup])
}

/// Returns a future that ends when the process is asked to stop, except by an interrupt. Otherwise as [`stop`].
///
/// # Panics
/// Outside of a tokio runtime.
#[cfg(unix)]
pub(crate) fn final_stop() -> impl Future<Output = StopSignal> {
    unix::any_of(&StopSignal::FINAL)
}

/// Ends the process when it is asked to stop, except by an interrupt, whatever its threads wait for. It does so until the returned value is
/// dropped.
#[cfg(unix)]
pub(crate) fn exit_when_stopped() -> tokio::sync::oneshot::Sender<()> {
    let (sender, dropped) = tokio::sync::oneshot::channel::<()>();
    std::thread::spawn(move || {
        let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_all().build() else { return };
        runtime.block_on(async {
            tokio::select! {
                signal = final_stop() => std::process::exit(signal.exit_code().into()),
                _ = dropped => {}
            }
        });
    });
    sender
}

/// Returns a future that ends when the user asks the process to stop.
#[cfg(not(unix))]
pub(crate) async fn stop() -> StopSignal {
    // If the handler cannot be installed, wait forever.
    if tokio::signal::ctrl_c().await.is_err() {
        std::future::pending::<()>().await;
    }
    StopSignal::Interrupt
}

/// Waits once, so that signals are handled from here on: they drop the future of the command.
pub(crate) async fn watched() {
    tokio::task::yield_now().await;
}

#[cfg(unix)]
mod unix {
    use super::StopSignal;
    use std::io::{self, IsTerminal};
    use std::sync::OnceLock;
    use tokio::signal::unix::{SignalKind, signal};

    /// Returns a future that ends with the first of some signals.
    pub(super) fn any_of(signals: &'static [StopSignal]) -> impl Future<Output = StopSignal> {
        let counts = |signal: &StopSignal| *signal != StopSignal::Hangup || !ignores_hangups();
        let asked: Vec<_> = signals
            .iter()
            .copied()
            .filter(counts)
            .map(|asked| {
                let installed = signal(kind(asked));
                Box::pin(async move {
                    match installed {
                        Ok(mut signal) => drop(signal.recv().await),
                        // If the handler cannot be installed, wait forever.
                        Err(_) => std::future::pending().await,
                    }
                    asked
                })
            })
            .collect();
        async move { futures::future::select_all(asked).await.0 }
    }

    fn kind(signal: StopSignal) -> SignalKind {
        match signal {
            StopSignal::Hangup => SignalKind::hangup(),
            StopSignal::Interrupt => SignalKind::interrupt(),
            StopSignal::Terminate => SignalKind::terminate(),
        }
    }

    /// Returns whether the process was started with hangups ignored, as `nohup` does. A handler would undo that.
    fn ignores_hangups() -> bool {
        static IGNORES: OnceLock<bool> = OnceLock::new();
        *IGNORES.get_or_init(|| match std::fs::read_to_string("/proc/self/status") {
            Ok(status) => is_hangup_ignored(&status),
            // Systems other than Linux do not say. `nohup` leaves no output on a terminal.
            Err(_) => !io::stdout().is_terminal() && !io::stderr().is_terminal(),
        })
    }

    /// Reads the set of ignored signals: a hexadecimal number, whose lowest bit is SIGHUP.
    fn is_hangup_ignored(status: &str) -> bool {
        let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
        ignored.and_then(|set| u128::from_str_radix(set.trim(), 16).ok()).is_some_and(|set| set & 1 == 1)
    }

    #[cfg(test)]
    mod tests {
        use super::is_hangup_ignored;

        #[test]
        fn ignored_hangup_is_the_lowest_bit_of_the_set() {
            for (set, is_ignored) in [("0000000000001001", true), ("0000000000001000", false), ("0000000000000001", true), ("", false)] {
                let status = format!("Name:\ttreehold\nSigBlk:\t0000000000000001\nSigIgn:\t{set}\nSigCgt:\t0000000000000001\n");
                assert_eq!(is_hangup_ignored(&status), is_ignored, "{set}");
            }
            assert!(!is_hangup_ignored("Name:\ttreehold\n"));
        }
    }
}
