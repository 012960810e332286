//! Traces of agents: the contract of [`TraceStore`] as resources.
//!
//! A request is about the traces of the caller's own tenant and user. An id in a path may be qualified if the server was started with a
//! store that reaches other places; the server's own store refuses such ids. A trace of another user of the tenant is refused in the words
//! of the protocol, and traces of other tenants do not exist.
//!
//! Every route is served twice: beneath `/v1/traces` with the rest of this API, and beneath [`ORIGINAL`], where clients of the original
//! protocol expect it.

mod events;
mod goals;
mod messages;
mod records;
mod runs;
mod socket;
mod table;
mod watch;

pub(super) use table::routes;

use super::exchange::Asked;
use crate::rights::Access;
use serde::de::value::MapAccessDeserializer;
use serde::de::{DeserializeOwned, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;
use treehold_core::error::{Error, ErrorKind, Result};
use treehold_traces::{Trace, TraceAddress, TraceStore};

/// The first segments of the routes of traces.
const OWN: &str = "/v1/traces";

/// The same where clients of the original protocol expect them.
const ORIGINAL: &str = "/api/traces";

/// Returns whether a route is about traces.
pub(super) fn is_of_traces(path: &str) -> bool {
    path.strip_prefix(OWN).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// Returns the second path of a route of traces.
pub(super) fn original(path: &str) -> Option<String> {
    is_of_traces(path).then(|| path.replacen(OWN, ORIGINAL, 1))
}

/// The trace that a request names, whether or not it exists, and the store to reach it in.
struct At {
    store: Arc<dyn TraceStore>,
    trace: TraceAddress,
}

impl At {
    /// Returns the trace.
    ///
    /// # Errors
    /// [`NotFound`](ErrorKind::NotFound) if it does not exist.
    async fn found(&self) -> Result<Trace> {
        self.store.get_trace(&self.trace).await?.ok_or_else(|| absent(&self.trace))
    }
}

impl Asked {
    /// Returns the traces of the caller.
    fn traces(&self, access: Access) -> Result<Arc<dyn TraceStore>> {
        self.caller.rights.need_sessions(access)?;
        let (tenant, user) = self.trace_owner()?;
        self.api.traces.of_user(tenant, user)
    }

    /// Returns the tenant and user of the caller.
    fn trace_owner(&self) -> Result<(&str, &str)> {
        let scope = &self.caller.scope;
        let message = "traces belong to a tenant and a user, and this caller has none; name them in the configuration";
        scope.tenant.as_deref().zip(scope.user.as_deref()).ok_or_else(|| Error::invalid_argument(message))
    }

    /// Parses the body, which is an object. An empty body is an empty object.
    async fn fields<T: DeserializeOwned + Send + 'static>(&mut self) -> Result<T> {
        self.json().await.map(|Fields(fields)| fields)
    }

    /// Returns the trace that the path names.
    fn trace(&self, access: Access) -> Result<At> {
        let store = self.traces(access)?;
        Ok(At { store, trace: TraceAddress::parse(self.param("trace"))? })
    }
}

/// A value that is written as a JSON object. A plain value would also be read from a list of its fields in order.
#[derive(Debug)]
struct Fields<T>(T);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Fields<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Object<T>(PhantomData<T>);
        impl<'de, T: Deserialize<'de>> Visitor<'de> for Object<T> {
            type Value = Fields<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Fields<T>, A::Error> {
                T::deserialize(MapAccessDeserializer::new(map)).map(Fields)
            }
        }
        deserializer.deserialize_map(Object(PhantomData))
    }
}

/// Returns the error for a trace that does not exist.
fn absent(trace: &TraceAddress) -> Error {
    Error::new(ErrorKind::NotFound, format!("the trace `{trace}` does not exist; `POST {OWN}` creates one")).without_effect()
}

/// Returns the number of entries of a page.
fn page(limit: Option<usize>, default: usize, most: usize) -> Result<usize> {
    match limit {
        None => Ok(default),
        Some(limit) if (1..=most).contains(&limit) => Ok(limit),
        Some(limit) => Err(Error::invalid_argument(format!("the limit {limit} is not between 1 and {most}"))),
    }
}
