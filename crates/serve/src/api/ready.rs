//! Readiness: whether the store currently accepts a durable write.
//!
//! A read proves too little. A store on a full or read-only disk, on a standby, or whose file was removed can answer reads for hours. So a
//! probe commits one small row and waits until it is durable. Concurrent requests share one probe, and its result is cached for [`HOLDS`].
//! However often the route is requested, the store sees at most one small commit in that time.

use super::{ANSWERS_NAMESPACE, Api};
use crate::problem;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::Mutex;
use treehold_core::error::{Error, ErrorKind, Result};
use treehold_store::{Batch, Namespace, Store};

/// How long the result of a probe is cached.
const HOLDS: Duration = Duration::from_secs(1);

/// How long a probe may take.
const TIMEOUT: Duration = Duration::from_secs(5);

/// How long the row of a probe lives. Each probe rewrites it.
const ROW_STAYS: Duration = Duration::from_secs(3_600);

/// The last probe. Concurrent requests wait for the one that runs.
#[derive(Debug, Default)]
pub(super) struct Readiness(Arc<Mutex<Option<Probed>>>);

/// When a probe ended, and its error if the store refused the write.
type Probed = (Instant, Option<Arc<Error>>);

impl Readiness {
    /// Returns an error if the store does not accept a durable write.
    pub(super) async fn probe(&self, store: &Arc<dyn Store>) -> Result<(), Arc<Error>> {
        let mut last = self.0.clone().lock_owned().await;
        if let Some((when, found)) = last.as_ref()
            && when.elapsed() < HOLDS
        {
            return found.clone().map_or(Ok(()), Err);
        }
        // A separate task holds the lock: the client may disconnect before the store answers, and the next request must not start another
        // commit.
        let store = store.clone();
        let probing = tokio::spawn(async move {
            let written = tokio::time::timeout(TIMEOUT, write(&*store)).await;
            let found = written.unwrap_or_else(|_| {
                Err(Error::new(ErrorKind::Unavailable, "the store did not complete a write within 5 seconds; check its disk or server"))
            });
            let found = found.err().map(Arc::new);
            *last = Some((Instant::now(), found.clone()));
            found
        });
        let found = probing.await.unwrap_or_else(|error| {
            Some(Arc::new(
                Error::new(
                    ErrorKind::Internal,
                    "the probe of the store was \
                interrupted",
                )
                .with_source(error),
            ))
        });
        found.map_or(Ok(()), Err)
    }
}

async fn write(store: &dyn Store) -> Result<()> {
    let namespace = Namespace::new(ANSWERS_NAMESPACE)?;
    store.commit(Batch::new().put_for(&namespace, "ready", "", ROW_STAYS)).await.map(drop)
}

/// Responds whether requests can be served.
pub(super) async fn ready(State(api): State<Arc<Api>>) -> Response {
    match api.readiness.probe(&api.store).await {
        Ok(()) => "ok\n".into_response(),
        Err(error) => problem::with_status(&error, StatusCode::SERVICE_UNAVAILABLE),
    }
}
