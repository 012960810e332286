//! The parts of a workspace that are shared.

use treehold_core::error::{Error, Result};
use treehold_core::path::{VfsPath, VfsPathBuf};

/// Files at the root of a workspace that are shared.
const ROOT_FILES: [&str; 3] = ["/AGENTS.md", "/MEMORY.md", "/tools.json"];

/// Directories at the root of a workspace that are shared.
const DIRECTORIES: [&str; 5] = ["memory", "skills", "subagents", "knowledge", "plans"];

/// Directories of an agent that are shared.
const AGENT_DIRECTORIES: [&str; 2] = ["sessions", "tasks"];

/// A part of a workspace that is shared, and the components beneath the namespace of the scope where it is kept. Two routes never share
/// components, except the files at the root, which have different names.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct WorkspaceRoute {
    /// The path in the workspace.
    pub path: VfsPathBuf,
    /// Whether the path is a file.
    pub is_file: bool,
    /// The components.
    pub segments: Vec<String>,
}

impl WorkspaceRoute {
    fn new(path: &str, is_file: bool, segments: &[&str]) -> Result<Self> {
        let segments = segments.iter().map(|segment| (*segment).to_owned()).collect();
        Ok(Self { path: path.parse()?, is_file, segments })
    }

    /// Returns the routes that every workspace of an agent has: `AGENTS.md`, `MEMORY.md`, `tools.json`, `memory/`, `skills/`, `subagents/`,
    /// `knowledge/`, `plans/`, `agents/{agent}/sessions/` and `agents/{agent}/tasks/`.
    ///
    /// # Errors
    /// [`InvalidArgument`](treehold_core::ErrorKind::InvalidArgument) for an agent whose id cannot be the name of a directory.
    pub fn of_agent(agent: &str) -> Result<Vec<Self>> {
        if agent.contains('/') {
            let message = format!("the agent id `{agent}` holds a slash and cannot be the name of a directory; choose another one");
            return Err(Error::invalid_argument(message));
        }
        let files = ROOT_FILES.iter().map(|path| Self::new(path, true, &["root"]));
        let directories = DIRECTORIES.iter().map(|name| Self::new(&format!("/{name}"), false, &[name]));
        let of_agent = AGENT_DIRECTORIES.iter().map(|name| Self::new(&format!("/agents/{agent}/{name}"), false, &[name]));
        files.chain(directories).chain(of_agent).collect()
    }

    /// Makes the route of a directory that a configuration adds.
    ///
    /// # Errors
    /// [`InvalidArgument`](treehold_core::ErrorKind::InvalidArgument) for the root.
    pub fn extra(path: &VfsPath) -> Result<Self> {
        if path.is_root() {
            return Err(Error::invalid_argument("the root of a workspace cannot be shared as a whole; name a directory"));
        }
        Self::new(path.as_str(), false, &["extra", path.as_str()])
    }

    /// Returns the route that a path is shared by: the one with the longest prefix.
    pub fn of_path<'r>(routes: &'r [Self], path: &VfsPath) -> Option<&'r Self> {
        let holds = |route: &&Self| path == &*route.path || !route.is_file && path.strip_prefix(&route.path).is_some();
        routes.iter().filter(holds).max_by_key(|route| route.path.as_str().len())
    }
}
