//! Whether requests can be served: whether the store takes a durable write now.
//!
//! A read proves too little. A store on a full or read-only disk, on a standby, or whose file was removed answers reads for hours. So a
//! probe commits one small row and waits until it is durable. Probes that come together share one, and what it found holds for
//! [`HOLDS`]: however often the route is asked, the store sees at most one small commit in that time.

use super::{ANSWERS_NAMESPACE, Api, problem};
use crate::error::{Error, ErrorKind, Result};
use crate::store::{Batch, Namespace, Store};
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::Mutex;

/// How long what a probe found is told without another.
const HOLDS: Duration = Duration::from_secs(1);

/// How long a probe may take.
const TIMEOUT: Duration = Duration::from_secs(5);

/// How long the row of a probe stays. Each probe puts it anew.
const ROW_STAYS: Duration = Duration::from_secs(3_600);

/// The last probe, which those who ask meanwhile wait for.
#[derive(Debug, Default)]
pub(super) struct Readiness(Arc<Mutex<Option<Probed>>>);

/// When a probe ended, and why the store took no write.
type Probed = (Instant, Option<Arc<Error>>);

impl Readiness {
    /// Tells why the store takes no durable write, if it does not.
    async fn probe(&self, store: &Arc<dyn Store>) -> Result<(), Arc<Error>> {
        let mut last = self.0.clone().lock_owned().await;
        if let Some((when, found)) = last.as_ref()
            && when.elapsed() < HOLDS
        {
            return found.clone().map_or(Ok(()), Err);
        }
        // In a task of its own, which holds the lock: whoever asked may be gone before the store answers, and the next must not begin
        // another commit.
        let store = store.clone();
        let probing = tokio::spawn(async move {
            let written = tokio::time::timeout(TIMEOUT, write(&*store)).await;
            let found = written.unwrap_or_else(|_| {
                Err(Error::new(ErrorKind::Unavailable, "the store did not take a write within 5 seconds; look at its disk or server"))
            });
            let found = found.err().map(Arc::new);
            *last = Some((Instant::now(), found.clone()));
            found
        });
        let found = probing
            .await
            .unwrap_or_else(|error| Some(Arc::new(Error::new(ErrorKind::Internal, "the probe of the store broke off").with_source(error))));
        found.map_or(Ok(()), Err)
    }
}

async fn write(store: &dyn Store) -> Result<()> {
    let namespace = Namespace::new(ANSWERS_NAMESPACE)?;
    store.commit(Batch::new().put_for(&namespace, "ready", "", ROW_STAYS)).await.map(drop)
}

/// Answers whether requests can be served.
pub(super) async fn ready(State(api): State<Arc<Api>>) -> Response {
    match api.readiness.probe(&api.store).await {
        Ok(()) => "ok\n".into_response(),
        Err(error) => problem::with_status(&error, StatusCode::SERVICE_UNAVAILABLE),
    }
}
