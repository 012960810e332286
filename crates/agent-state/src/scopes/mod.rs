//! Who shares the files of an agent, and where they are kept.
//!
//! [`IsolationScope`] decides who shares; [`WorkspaceRoute`] is a part of the workspace that is shared at all. Both map to namespaces by
//! pure functions, and one rule holds everywhere: a call without the identity that its scope needs is refused, unless anonymous calls are
//! allowed. Anonymous files are kept apart from those of every user and session, whatever their ids are.
//!
//! [`AgentWorkspace`] builds the file tree of a call from them.

mod identity;
mod route;
mod workspace;

pub use identity::{AnonymousCalls, CallIdentity, IsolationScope};
pub use route::WorkspaceRoute;
pub use workspace::AgentWorkspace;
