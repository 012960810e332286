//! Where sessions, traces and states of agents are, each of which had one partition in earlier versions.

use super::{Namespace, Partition, event_log};
use treehold_core::error::Result;
use treehold_core::reserved::{AGENT_STATE, EVENTS, HISTORY, INDEXES, OVERLAYS, RESERVED_ROOT, SESSIONS, TRACES, beside};

/// Returns where rows of the former place go, by the components of their namespace; `None` for a namespace that is in its place.
pub(crate) fn user_place(parts: &[&str]) -> Option<Result<Namespace>> {
    let (&[root, kind], rest) = parts.split_first_chunk()?;
    let kind = [SESSIONS, TRACES, AGENT_STATE].into_iter().find(|known| *known == [root, kind])?;
    match rest {
        [RESERVED_ROOT, beside_kind, name @ ..] if [HISTORY[1], INDEXES[1], OVERLAYS[1]].contains(beside_kind) => {
            Some(place_of(kind, name)?.and_then(|of| beside(&of, [RESERVED_ROOT, beside_kind])))
        }
        [RESERVED_ROOT, events, "rows", name @ ..] if *events == EVENTS[1] => Some(place_of(kind, name)?.map(|of| event_log(&of))),
        name => place_of(kind, name),
    }
}

/// Returns where the rows of a name are, of which the tenant is the first component; `None` for rows of no tenant, and for names that no
/// version wrote.
fn place_of(kind: [&str; 2], name: &[&str]) -> Option<Result<Namespace>> {
    let of_user = |tenant: &str, user: &str, name: &[&str]| Partition::new([tenant, user])?.namespace(kind.iter().chain(name));
    let of_tenant = |tenant: &str, name: &[&str]| Partition::new([tenant])?.namespace(kind.iter().chain(name));
    match name {
        [] | [RESERVED_ROOT, ..] => None,
        [tenant, "users", user, name @ ..] if kind == AGENT_STATE => Some(of_user(tenant, user, name)),
        [tenant, name @ ..] if kind == AGENT_STATE => {
            let is_shared = ["anonymous", "shared", "global", "directory"].contains(name.first()?);
            is_shared.then(|| of_tenant(tenant, name))
        }
        [tenant] => Some(of_tenant(tenant, &[])),
        [tenant, user, name @ ..] => Some(of_user(tenant, user, name)),
    }
}
