//! Reverse connections: machines that dial this server (`accept`), and servers that this one dials (`dial`).
//!
//! `GET /v1/connect` upgrades a connection. HTTP/2 then runs over it in reverse, and this server asks the machine that dialled, by the name
//! of its token ([`Tunnels`](treehold_remote::Tunnels)). The machine that dialled answers with its own router and its own authentication.

mod accept;
mod dial;
mod merged;

pub(super) use accept::{ServedTunnels, is_upgrade, switch};
pub use dial::Dial;
pub(super) use dial::Dialling;
