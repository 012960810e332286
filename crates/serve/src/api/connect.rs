//! `GET /v1/connect`: a machine that cannot be called connects, and this server sends requests to it over that connection.

use super::Api;
use crate::caller::Caller;
use crate::problem;
use crate::tunnels::{is_upgrade, switch};
use axum::Extension;
use axum::extract::{Request, State};
use axum::http::{StatusCode, Version};
use axum::response::Response;
use serde::Deserialize;
use std::sync::Arc;
use treehold_core::error::{Error, Result};
use treehold_remote::{Reservation, TUNNEL_PROTOCOL};

/// How a machine connects.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct ConnectQuery {
    /// The name to connect as. Default that of the token.
    name: Option<String>,
}

/// Upgrades a connection to a tunnel.
pub(super) async fn connect(State(api): State<Arc<Api>>, Extension(caller): Extension<Caller>, request: Request) -> Response {
    if !is_upgrade(&request) {
        let message =
            format!("this route accepts tunnels; send `Upgrade: {TUNNEL_PROTOCOL}` over HTTP/1.1, as `treehold serve --dial` does");
        let mut response = problem::with_status(&Error::invalid_argument(message).without_effect(), StatusCode::UPGRADE_REQUIRED);
        // HTTP/2 has no such header.
        if request.version() <= Version::HTTP_11 {
            switch(response.headers_mut());
        }
        return response;
    }
    let query = request.uri().query().unwrap_or_default().to_owned();
    match reserved(&api, &caller, &query).await {
        Ok(reservation) => api.tunnels.accept(reservation, caller.standing(request.headers()), api.stopping.subscribe(), request),
        Err(error) => problem::response(&error.without_effect()),
    }
}

/// Reserves the name that the caller connects as.
async fn reserved(api: &Api, caller: &Caller, query: &str) -> Result<Reservation> {
    let query: ConnectQuery = serde_html_form::from_str(query)
        .map_err(|error| Error::invalid_argument(format!("the query is invalid: {error}; it may hold `name`")))?;
    let name = caller.connects_as(query.name.as_deref())?;
    api.tunnels.reserve(&caller.scope, &name).await
}
