//! Where sessions and traces are, of which earlier versions had one partition each.

use super::{Namespace, Partition, event_log};
use treehold_core::error::Result;
use treehold_core::reserved::{EVENTS, HISTORY, INDEXES, OVERLAYS, RESERVED_ROOT, SESSIONS, TRACES, beside};

/// Returns where rows of the former place go, by the components of their namespace; `None` for a namespace that is in its place.
pub(crate) fn user_place(parts: &[&str]) -> Option<Result<Namespace>> {
    let (&[root, kind], rest) = parts.split_first_chunk()?;
    let kind = [SESSIONS, TRACES].into_iter().find(|known| *known == [root, kind])?;
    let of_user = |tenant: &str, user: &str, name: &[&str]| Partition::new([tenant, user])?.namespace(kind.iter().chain(name));
    Some(match rest {
        [RESERVED_ROOT, beside_kind, tenant, user, name @ ..] if [HISTORY[1], INDEXES[1], OVERLAYS[1]].contains(beside_kind) => {
            of_user(tenant, user, name).and_then(|of| beside(&of, [RESERVED_ROOT, beside_kind]))
        }
        [RESERVED_ROOT, events, "rows", tenant, user, name @ ..] if *events == EVENTS[1] => {
            of_user(tenant, user, name).map(|of| event_log(&of))
        }
        [] | [RESERVED_ROOT, ..] => return None,
        [tenant] => Partition::new([tenant]).and_then(|partition| partition.namespace(kind)),
        [tenant, user, name @ ..] => of_user(tenant, user, name),
    })
}
