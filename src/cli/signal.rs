//! The signals that stop a server or a mirror.

#[cfg(unix)]
use std::future::Future;

/// Returns a future that ends when the process is asked to stop: by the user, or by its supervisor. Requests count from this call on,
/// not from the first poll.
///
/// # Panics
/// Outside of a tokio runtime.
#[cfg(unix)]
pub(crate) fn stop() -> impl Future<Output = ()> {
    use tokio::signal::unix::{SignalKind, signal};
    let asked = [SignalKind::interrupt(), SignalKind::terminate()].map(|kind| {
        let installed = signal(kind);
        Box::pin(async move {
            match installed {
                Ok(mut signal) => drop(signal.recv().await),
                // If the handler cannot be installed, wait forever.
                Err(_) => std::future::pending().await,
            }
        })
    });
    async move { drop(futures::future::select_all(asked).await) }
}

/// Returns a future that ends when the user asks the process to stop.
#[cfg(not(unix))]
pub(crate) async fn stop() {
    // If the handler cannot be installed, wait forever.
    if tokio::signal::ctrl_c().await.is_err() {
        std::future::pending().await
    }
}
