//! What a caller may do: how much, where, and in which threads.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::sync::Arc;
use treehold_core::error::{Error, ErrorKind, Result};
use treehold_core::path::VfsPathBuf;
use treehold_core::scope::Scope;
use treehold_tree::backend::Backend;
use treehold_tree::layer::{Effect, Operations, Permissions, Rule};

/// Wraps a tree in a layer.
type Wrap = Box<dyn Fn(Arc<dyn Backend>, &Scope) -> Arc<dyn Backend> + Send + Sync>;

/// How much a caller may do. Each level includes those before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Access {
    /// Read files and the history of threads.
    #[default]
    Read,
    /// Also change files, create checkpoints, fork and restore.
    Write,
    /// Also delete threads and checkpoints, and read the audit log.
    Admin,
}

impl Access {
    /// Every access level, from least to most.
    pub const ALL: [Self; 3] = [Self::Read, Self::Write, Self::Admin];

    /// Returns the stable name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Admin => "admin",
        }
    }
}

impl fmt::Display for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// Whose sessions a caller may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ActsFor {
    /// Those of the caller's own user.
    #[default]
    Own,
    /// Those of every user of the caller's tenant, for an agent host with several users.
    Tenant,
    /// Those of every user of every tenant, for an agent host with several tenants.
    All,
}

impl ActsFor {
    /// Every choice, from least to most.
    pub const ALL: [Self; 3] = [Self::Own, Self::Tenant, Self::All];

    /// Returns the stable name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Own => "own",
            Self::Tenant => "tenant",
            Self::All => "all",
        }
    }

    fn is_own(&self) -> bool {
        *self == Self::Own
    }
}

impl fmt::Display for ActsFor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// What a caller may do.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct Rights {
    /// The access level.
    pub access: Access,
    /// The subtrees that the caller may see, or empty for the whole tree. Everything else appears not to exist.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub paths: Vec<VfsPathBuf>,
    /// The threads that the caller may use, or empty for all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub threads: Vec<String>,
    /// Whose sessions the caller may use. Files, threads and items are always those of the caller's own user.
    #[serde(default, skip_serializing_if = "ActsFor::is_own")]
    pub acts_for: ActsFor,
    /// The name under which the holder may connect a machine that cannot be called. A token with this right allows nothing else.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub connect_as: Option<String>,
}

impl Rights {
    /// Allows an access level everywhere, for the caller's own user.
    pub fn new(access: Access) -> Self {
        Self { access, paths: Vec::new(), threads: Vec::new(), acts_for: ActsFor::Own, connect_as: None }
    }

    /// Sets whose sessions the caller may use.
    #[must_use]
    pub fn with_acts_for(mut self, acts_for: ActsFor) -> Self {
        self.acts_for = acts_for;
        self
    }

    /// Allows connecting a machine under a name, and nothing else.
    #[must_use]
    pub fn with_connect_as(mut self, name: Option<String>) -> Self {
        self.connect_as = name;
        self
    }

    /// Sets the subtrees that the caller may see.
    #[must_use]
    pub fn with_paths(mut self, paths: impl IntoIterator<Item = VfsPathBuf>) -> Self {
        self.paths = paths.into_iter().filter(|path| !path.is_root()).collect();
        self
    }

    /// Sets the threads that the caller may use.
    #[must_use]
    pub fn with_threads(mut self, threads: impl IntoIterator<Item = String>) -> Self {
        self.threads = threads.into_iter().collect();
        self
    }

    /// Returns whether the rights are unrestricted.
    pub fn is_whole(&self) -> bool {
        self.access == Access::Admin && self.paths.is_empty() && self.threads.is_empty() && self.connect_as.is_none()
    }

    /// Checks the access level.
    ///
    /// # Errors
    /// [`PermissionDenied`](ErrorKind::PermissionDenied) if it is insufficient.
    pub(super) fn need(&self, access: Access) -> Result<()> {
        if self.access >= access {
            return Ok(());
        }
        let message = format!("this token allows `{}`, and the request needs `{access}`; use another token", self.access);
        Err(Error::new(ErrorKind::PermissionDenied, message))
    }

    /// Checks the right to something that concerns a whole thread or lies outside all threads.
    ///
    /// # Errors
    /// [`PermissionDenied`](ErrorKind::PermissionDenied) if the caller is restricted to some paths, or the access level is insufficient.
    pub(super) fn need_history(&self, access: Access) -> Result<()> {
        self.need(access)?;
        if self.paths.is_empty() {
            return Ok(());
        }
        let message = "this token allows a part of the tree, and the request needs all of it; use another token";
        Err(Error::new(ErrorKind::PermissionDenied, message))
    }

    /// Checks the right to sessions, which lie outside all paths and threads.
    ///
    /// # Errors
    /// [`PermissionDenied`](ErrorKind::PermissionDenied) if the caller is restricted to some paths or threads, or the access level is
    /// insufficient.
    pub(super) fn need_sessions(&self, access: Access) -> Result<()> {
        self.need_history(access)?;
        if self.threads.is_empty() {
            return Ok(());
        }
        let message = "this token allows some threads, and sessions lie outside all threads; use another token";
        Err(Error::new(ErrorKind::PermissionDenied, message))
    }

    /// Checks that the rights allow anything but to connect a machine.
    ///
    /// # Errors
    /// [`PermissionDenied`](ErrorKind::PermissionDenied) for rights to connect.
    pub(super) fn need_more_than_connecting(&self) -> Result<()> {
        if self.connect_as.is_none() {
            return Ok(());
        }
        Err(Error::new(ErrorKind::PermissionDenied, "this token only allows connecting a machine; use another token").without_effect())
    }

    /// Checks the right to use a thread.
    ///
    /// # Errors
    /// [`PermissionDenied`](ErrorKind::PermissionDenied) for a thread that is not among those of the rights.
    pub(super) fn need_thread(&self, thread: &str) -> Result<()> {
        if self.threads.is_empty() || self.threads.iter().any(|own| own == thread) {
            return Ok(());
        }
        Err(Error::new(ErrorKind::PermissionDenied, format!("this token does not allow thread `{thread}`; name one that it allows")))
    }

    /// Returns the layer that restricts a tree to these rights, or `None` if they allow the whole tree. `past` lists the mounts that show
    /// earlier states of files; see [`Permissions::with_past`].
    pub(super) fn layer(&self, past: Vec<(VfsPathBuf, VfsPathBuf)>) -> Result<Option<Wrap>> {
        if self.access >= Access::Write && self.paths.is_empty() {
            return Ok(None);
        }
        let operations = if self.access >= Access::Write { Operations::ALL } else { Operations::READ };
        let rule = Rule::within(operations, &self.paths)?;
        Ok(Some(Box::new(move |tree, _| {
            Arc::new(Permissions::new([rule.clone()], tree).with_default(Effect::Deny).with_past(past.clone()))
        })))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use treehold_tree::backend::{BackendExt, StateBackend};

    fn path(text: &str) -> VfsPathBuf {
        VfsPathBuf::parse(text).expect("a legal path")
    }

    async fn tree(rights: &Rights) -> Arc<dyn Backend> {
        let state = Arc::new(StateBackend::new());
        for file in ["/a/own", "/a[b]/own", "/ab/other", "/other"] {
            state.write(file, "text").await.expect("written");
        }
        match rights.layer(Vec::new()).expect("legal rules") {
            Some(wrap) => wrap(state, &Scope::new()),
            None => state,
        }
    }

    #[tokio::test]
    async fn read_access_refuses_changes() {
        let tree = tree(&Rights::new(Access::Read)).await;
        assert_eq!(tree.read_text("/a/own").await.expect("read"), "text");
        assert_eq!(tree.write("/a/own", "x").await.expect_err("refused").kind(), ErrorKind::PermissionDenied);
        assert_eq!(tree.delete_all("/a").await.expect_err("refused").kind(), ErrorKind::PermissionDenied);
    }

    #[tokio::test]
    async fn paths_outside_the_rights_are_not_found() {
        let rights = Rights::new(Access::Write).with_paths([path("/a"), path("/a[b]")]);
        let tree = tree(&rights).await;
        for own in ["/a/own", "/a[b]/own"] {
            assert_eq!(tree.read_text(own).await.expect("read"), "text");
            tree.write(own, "new").await.expect("written");
        }
        for other in ["/ab/other", "/other"] {
            assert_eq!(tree.read_text(other).await.expect_err("hidden").kind(), ErrorKind::NotFound, "{other}");
            assert_eq!(tree.write(other, "x").await.expect_err("refused").kind(), ErrorKind::PermissionDenied, "{other}");
        }
        let names: Vec<String> = tree.tree("/", 1, 100).await.expect("listed").entries.iter().map(|entry| entry.path.to_string()).collect();
        assert_eq!(names, ["/a", "/a[b]"]);
        let found = tree.grep(treehold_core::path::VfsPath::ROOT, &treehold_core::ops::GrepOptions::new("text")).await.expect("searched");
        assert!(found.files.is_empty(), "the text is left only outside the allowed paths");
    }

    #[test]
    fn access_includes_lower_levels() {
        let rights = Rights::new(Access::Write).with_threads(["t".to_owned()]);
        rights.need(Access::Read).expect("less");
        rights.need(Access::Write).expect("its own");
        assert_eq!(rights.need(Access::Admin).expect_err("more").kind(), ErrorKind::PermissionDenied);
        rights.need_thread("t").expect("its own");
        assert!(rights.need_thread("u").is_err());
        assert!(rights.clone().with_paths([path("/a")]).need_history(Access::Read).is_err());
        assert!(!rights.is_whole() && Rights::new(Access::Admin).is_whole());
    }
}
