//! Accepts the connections of machines that cannot be called.

use crate::connection::Connected;
use axum::body::Body;
use axum::extract::Request;
use axum::http::{HeaderMap, HeaderValue, StatusCode, Version, header};
use axum::response::Response;
use hyper_util::rt::TokioIo;
use std::time::Duration;
use tokio::sync::watch;
use treehold_core::error::{Error, Result};
use treehold_core::scope::Scope;
use treehold_mcp::Standing;
use treehold_remote::{Reservation, TUNNEL_PROTOCOL, TunnelCounts, TunnelEnd, Tunnels};

/// How long an accepted connection may take to change its protocol.
const UPGRADE_TIMEOUT: Duration = Duration::from_secs(10);

/// How often the token of an open tunnel is checked if the store reports no changes.
const CHECKED_EVERY: Duration = Duration::from_secs(5);

/// The tunnels of a server, and the tasks that run them.
#[derive(Debug)]
pub(crate) struct ServedTunnels {
    tunnels: Option<Tunnels>,
    /// Each task holds a receiver.
    tasks: watch::Sender<()>,
}

impl ServedTunnels {
    pub(crate) fn new(tunnels: Option<Tunnels>) -> Self {
        Self { tunnels, tasks: watch::Sender::new(()) }
    }

    /// Returns the counts of the tunnels, for metrics.
    pub(crate) fn counts(&self) -> TunnelCounts {
        self.tunnels.as_ref().map(Tunnels::counts).unwrap_or_default()
    }

    /// Reserves a name for a machine of a caller that is about to connect.
    pub(crate) async fn reserve(&self, scope: &Scope, name: &str) -> Result<Reservation> {
        let tunnels = self.tunnels.as_ref().ok_or_else(|| Error::unsupported("this server accepts no tunnels"))?;
        tunnels.reserve(scope.tenant.clone(), scope.user.clone(), name).await
    }

    /// Switches protocols, and runs the tunnel once the connection has.
    pub(crate) fn accept(
        &self,
        reservation: Reservation,
        standing: Standing,
        mut stopping: watch::Receiver<bool>,
        mut request: Request,
    ) -> Response {
        // The connection counts as busy until the tunnel ends.
        let running = request.extensions().get::<Connected>().and_then(Connected::running);
        let task = self.tasks.subscribe();
        let upgrade = hyper::upgrade::on(&mut request);
        tokio::spawn(async move {
            let until = async {
                tokio::select! {
                    _ = stopping.wait_for(|is_stopping| *is_stopping) => TunnelEnd::Stopping,
                    ended = standing.ends(CHECKED_EVERY) => {
                        if let Err(error) = ended {
                            tracing::warn!(%error, "closing a tunnel because its token cannot be checked");
                        }
                        TunnelEnd::Revoked
                    }
                }
            };
            match tokio::time::timeout(UPGRADE_TIMEOUT, upgrade).await {
                Ok(Ok(stream)) => {
                    if let Err(error) = reservation.run(TokioIo::new(stream), until).await {
                        tracing::warn!(%error, "a tunnel was not opened");
                    }
                }
                Ok(Err(error)) => tracing::debug!(%error, "a connection was not upgraded"),
                Err(_) => tracing::debug!("a connection was not upgraded in time"),
            }
            drop((running, task));
        });
        let mut response = Response::new(Body::empty());
        *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
        switch(response.headers_mut());
        response
    }

    /// Waits for at most `limit` until all tunnels have ended.
    pub(crate) async fn ended(&self, limit: Duration) {
        if tokio::time::timeout(limit, self.tasks.closed()).await.is_err() {
            tracing::warn!("some tunnels did not end in time");
        }
    }
}

/// Returns whether a request asks for a tunnel.
pub(crate) fn is_upgrade(request: &Request) -> bool {
    let named = |name, value: &str| {
        let given = request.headers().get_all(name).iter().filter_map(|given| given.to_str().ok());
        given.flat_map(|given| given.split(',')).any(|given| given.trim().eq_ignore_ascii_case(value))
    };
    request.version() == Version::HTTP_11 && named(header::CONNECTION, "upgrade") && named(header::UPGRADE, TUNNEL_PROTOCOL)
}

/// Names the protocol of tunnels in the headers of a response.
pub(crate) fn switch(headers: &mut HeaderMap) {
    headers.insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
    headers.insert(header::UPGRADE, HeaderValue::from_static(TUNNEL_PROTOCOL));
}
