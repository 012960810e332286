//! What a caller may do: how much, where, and in which threads.

use crate::backend::Backend;
use crate::error::{Error, ErrorKind, Result};
use crate::layer::{Effect, Operations, Permissions, Rule};
use crate::path::VfsPathBuf;
use crate::scope::Scope;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::sync::Arc;

/// What puts a layer around a tree.
type Wrap = Box<dyn Fn(Arc<dyn Backend>, &Scope) -> Arc<dyn Backend> + Send + Sync>;

/// How much a caller may do. Each may do what those before it may.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Access {
    /// Looks at files and at the history of threads.
    #[default]
    Read,
    /// Changes files, makes checkpoints, forks and goes back.
    Write,
    /// Removes threads and checkpoints, and reads the record of calls.
    Admin,
}

impl Access {
    /// Every access, the least first.
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

/// What a caller may do.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct Rights {
    /// How much.
    pub access: Access,
    /// The subtrees that it is about; the whole tree when there are none. All else is not there.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub paths: Vec<VfsPathBuf>,
    /// The threads that it is about; any when there are none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub threads: Vec<String>,
}

impl Rights {
    /// Allows an access everywhere.
    pub fn new(access: Access) -> Self {
        Self { access, paths: Vec::new(), threads: Vec::new() }
    }

    /// Sets the subtrees that it is about.
    #[must_use]
    pub fn with_paths(mut self, paths: impl IntoIterator<Item = VfsPathBuf>) -> Self {
        self.paths = paths.into_iter().filter(|path| !path.is_root()).collect();
        self
    }

    /// Sets the threads that it is about.
    #[must_use]
    pub fn with_threads(mut self, threads: impl IntoIterator<Item = String>) -> Self {
        self.threads = threads.into_iter().collect();
        self
    }

    /// Tells whether nothing is kept from who has them.
    pub fn is_whole(&self) -> bool {
        self.access == Access::Admin && self.paths.is_empty() && self.threads.is_empty()
    }

    /// Checks that there is enough access.
    ///
    /// # Errors
    /// [`PermissionDenied`](ErrorKind::PermissionDenied) when there is not.
    pub(super) fn need(&self, access: Access) -> Result<()> {
        if self.access >= access {
            return Ok(());
        }
        let message = format!("this token may `{}`, and this needs `{access}`; ask for another token", self.access);
        Err(Error::new(ErrorKind::PermissionDenied, message))
    }

    /// Checks that what is about a whole thread, or lies beside all threads, may be touched.
    ///
    /// # Errors
    /// [`PermissionDenied`](ErrorKind::PermissionDenied) for who is kept to some paths, or has less access.
    pub(super) fn need_history(&self, access: Access) -> Result<()> {
        self.need(access)?;
        if self.paths.is_empty() {
            return Ok(());
        }
        let message = "this token is for a part of the tree, and this is about all of it; ask for another token";
        Err(Error::new(ErrorKind::PermissionDenied, message))
    }

    /// Checks that a thread may be named.
    ///
    /// # Errors
    /// [`PermissionDenied`](ErrorKind::PermissionDenied) for one that is not among those of the rights.
    pub(super) fn need_thread(&self, thread: &str) -> Result<()> {
        if self.threads.is_empty() || self.threads.iter().any(|own| own == thread) {
            return Ok(());
        }
        Err(Error::new(ErrorKind::PermissionDenied, format!("this token is not for thread `{thread}`; name one of its own")))
    }

    /// Returns what keeps a tree to these rights; none where they allow all of it. `past` is where files are shown as they were.
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
    use crate::backend::{BackendExt, StateBackend};

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
    async fn who_may_read_changes_nothing() {
        let tree = tree(&Rights::new(Access::Read)).await;
        assert_eq!(tree.read_text("/a/own").await.expect("read"), "text");
        assert_eq!(tree.write("/a/own", "x").await.expect_err("refused").kind(), ErrorKind::PermissionDenied);
        assert_eq!(tree.delete_all("/a").await.expect_err("refused").kind(), ErrorKind::PermissionDenied);
    }

    #[tokio::test]
    async fn what_is_beside_the_paths_is_not_there() {
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
        let found = tree.grep(crate::path::VfsPath::ROOT, &crate::ops::GrepOptions::new("text")).await.expect("searched");
        assert!(found.files.is_empty(), "only the others hold it now");
    }

    #[test]
    fn each_access_holds_those_before_it() {
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
