//! The hosted data plane: what the agents of a fleet share, over the protocol that they speak to a control plane.
//!
//! Paths, fields and statuses are those of that protocol; errors have the form of this API. `agentName` and `namespace` name an agent among
//! those of the token's own tenant and user: whatever they say, a request reaches only rows beneath that user. They come in the query, or
//! in the body of requests that have one.

mod bus;
mod kv;
mod locks;
mod snapshots;
mod table;
mod tasks;
mod tools;

pub(super) use table::routes;

use super::exchange::{Answer, Asked, json};
use crate::problem::MayHaveEffect;
use crate::rights::Access;
use axum::http::StatusCode;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use treehold_agent_state::BundleOwner;
use treehold_core::error::{Error, ErrorKind, Result};
use treehold_store::Store;

/// The namespace of a request that names none.
const NAMESPACE: &str = "default";

/// The agent that a request is about.
#[derive(Debug, Default, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
struct AgentQuery {
    /// The agent. Required, here or in the body.
    agent_name: Option<String>,
    /// The namespace of the agent. Default `default`.
    namespace: Option<String>,
}

impl AgentQuery {
    fn new(agent_name: &Option<String>, namespace: &Option<String>) -> Self {
        Self { agent_name: agent_name.clone(), namespace: namespace.clone() }
    }

    /// Returns the id of the agent: the namespace, a slash and the name.
    ///
    /// # Errors
    /// [`InvalidArgument`](ErrorKind::InvalidArgument) without a name, and for a namespace with a slash, whose agents could be mistaken for
    /// those of another namespace.
    fn id(&self) -> Result<String> {
        let given = |text: &Option<String>| text.as_deref().map(str::trim).filter(|text| !text.is_empty()).map(str::to_owned);
        let agent = given(&self.agent_name).ok_or_else(|| Error::invalid_argument("`agentName` is required; name the agent"))?;
        let namespace = given(&self.namespace).unwrap_or_else(|| NAMESPACE.to_owned());
        if namespace.contains('/') {
            return Err(Error::invalid_argument("the namespace of an agent has no slash; choose another one"));
        }
        Ok(format!("{namespace}/{agent}"))
    }
}

/// The answer to a request that only says that it was done.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct StatusReply {
    /// Always `ok`.
    status: &'static str,
}

async fn health(asked: Asked) -> Answer {
    asked.caller.rights.need_sessions(Access::Read)?;
    json(StatusCode::OK, StatusReply { status: "ok" }).await
}

impl Asked {
    /// Returns the store, and whose rows a request is about. A body that names no agent leaves it to the query.
    fn bundle(&self, body: AgentQuery, access: Access) -> Result<(Arc<dyn Store>, BundleOwner)> {
        self.caller.rights.need_sessions(access)?;
        let scope = &self.caller.scope;
        let (Some(tenant), Some(user)) = (&scope.tenant, &scope.user) else {
            let message = "the data of agents belong to a tenant and a user, and this caller has none; name them in the configuration";
            return Err(Error::invalid_argument(message));
        };
        let query: AgentQuery = self.query()?;
        let agent = AgentQuery { agent_name: body.agent_name.or(query.agent_name), namespace: body.namespace.or(query.namespace) };
        Ok((self.api.store.clone(), BundleOwner::of_user(tenant, user, &agent.id()?)?))
    }

    /// Returns the store, and whose rows a request without a body is about.
    fn bundle_of_query(&self, access: Access) -> Result<(Arc<dyn Store>, BundleOwner)> {
        self.bundle(AgentQuery::default(), access)
    }
}

/// Answers a request that lost to another one, in the form that the clients of the protocol read. Nothing was done.
async fn conflict<T: Serialize + Send + 'static>(body: T) -> Answer {
    let mut response = json(StatusCode::CONFLICT, body).await?;
    response.extensions_mut().insert(MayHaveEffect(false));
    Ok(response)
}

fn not_found(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::NotFound, message)
}

/// Returns how many entries to read: at most `max`, however many the request asks for.
fn count(asked: Option<i64>, default: usize, max: usize) -> usize {
    asked.filter(|count| *count > 0).map_or(default, |count| usize::try_from(count).unwrap_or(max).min(max))
}
