//! Routes: which tier is mounted at a path, with which settings.

use super::{HistoryConfig, HistoryLimits, RouteIndex};
use serde::{Deserialize, Serialize};

/// The default namespace template of an overlay.
pub(super) const OVERLAY_TEMPLATE: &str = "{tenant}/{user}/{thread}";

/// The default thread and checkpoint of a history route.
pub(super) const HISTORY_THREAD: &str = "{thread}";
pub(super) const HISTORY_AT: &str = "latest";

/// The tier of a route.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum RouteType {
    /// The state of the thread.
    State,
    /// Rows of a store.
    Store,
    /// A directory of the host.
    Filesystem,
    /// The state of a thread at a checkpoint, read-only.
    History,
    /// The files of a store route as they were at a time, read-only.
    Past,
    /// The tree of another server.
    Remote,
    /// The traces of the user as files, read-only.
    Traces,
}

impl RouteType {
    /// Returns the name in a configuration file.
    pub const fn name(self) -> &'static str {
        match self {
            Self::State => "state",
            Self::Store => "store",
            Self::Filesystem => "filesystem",
            Self::History => "history",
            Self::Past => "past",
            Self::Remote => "remote",
            Self::Traces => "traces",
        }
    }
}

/// When a filesystem route flushes changes to disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum RouteSync {
    /// When the host chooses to.
    #[default]
    None,
    /// The content of a file, before its change is acknowledged.
    File,
    /// Content and name, before a change is acknowledged: it survives power loss.
    Full,
}

/// A route: the tier at one path of the tree, with its settings.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct RouteConfig {
    /// The tier.
    #[serde(rename = "type")]
    pub tier: RouteType,
    /// For a store route: the store. Default: the only one configured, or `default`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub store: Option<String>,
    /// For a store route: the namespace template of the rows, such as `{tenant}/{user}/memories`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// For a store route: the indexes of its files. Default `none`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub index: Option<RouteIndex>,
    /// For a store route without an overlay: how much of the past of its files is kept. By default 20 contents of each path for 30 days at
    /// `/memories` without a quota, and nothing elsewhere.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub history: Option<HistoryConfig>,
    /// For a filesystem route: the directory, optionally with scope fields, such as `/srv/{tenant}`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub root: Option<String>,
    /// For a filesystem route: when changes are flushed to disk. Default `none`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sync: Option<RouteSync>,
    /// For a filesystem route: whether to enter other file systems mounted beneath the root. Default false.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cross_mounts: Option<bool>,
    /// For a filesystem route: whether the first call that reaches it creates a missing root. Default false.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub create_root: Option<bool>,
    /// For a history route: the thread, optionally with scope fields. Default `{thread}`, the caller's own. For a remote route: the thread
    /// on the other server. Default that server's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub thread: Option<String>,
    /// For a past route: the path of the store route whose files it shows. That route must keep a history.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub of: Option<String>,
    /// For a history route: the checkpoint, by id, label, or number of steps back such as `~1`. Default `latest`. For a past route: a date,
    /// a time, or an age such as `1d`, counted back from when a session opens it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at: Option<String>,
    /// For a remote route: `agent://PEER/PATH` for one of `peers`, or the URL of a server that requires no token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    /// For a remote route: how many bytes of read content to cache. By default nothing is cached.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache_bytes_max: Option<usize>,
    /// For a remote route with a cache: whether to serve cached content while the server is unreachable. Default false.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub serve_stale: Option<bool>,
    /// Whether changes are refused. Default false; history, past and traces routes are always read-only.
    #[serde(default)]
    pub read_only: bool,
    /// Limits on what the tree may hold. Default none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quota: Option<QuotaConfig>,
    /// For a filesystem or store route: where changes are kept until they are applied or discarded. By default changes take effect at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub overlay: Option<OverlayConfig>,
}

/// Where an overlay keeps changes to a route.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct OverlayConfig {
    /// The store. Default: the only one configured, or `default`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub store: Option<String>,
    /// Who shares the changes. The rows lie beneath `_treehold/overlays` in the partition of those who share them, separate for each route. Default `{tenant}/{user}/{thread}`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
}

/// Limits on the tree of a route. They apply to each tree separately, so per user if the template contains `{user}`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct QuotaConfig {
    /// The most bytes of all files together; a directory counts as 4,096.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes_max: Option<u64>,
    /// The most files and directories.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub files_max: Option<u64>,
    /// The most bytes of one file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file_bytes_max: Option<u64>,
}

impl RouteConfig {
    /// Returns a route to the thread's state.
    pub fn state() -> Self {
        Self {
            tier: RouteType::State,
            store: None,
            namespace: None,
            index: None,
            history: None,
            root: None,
            sync: None,
            cross_mounts: None,
            create_root: None,
            thread: None,
            of: None,
            at: None,
            url: None,
            cache_bytes_max: None,
            serve_stale: None,
            read_only: false,
            quota: None,
            overlay: None,
        }
    }

    /// Returns a route to rows of a store.
    pub fn store(store: impl Into<String>, namespace: impl Into<String>) -> Self {
        Self {
            tier: RouteType::Store,
            store: Some(store.into()),
            namespace: Some(namespace.into()),
            index: Some(RouteIndex::default()),
            ..Self::state()
        }
    }

    /// Returns a route to the tree of another server.
    pub fn remote(url: impl Into<String>) -> Self {
        Self { tier: RouteType::Remote, url: Some(url.into()), ..Self::state() }
    }

    /// Returns a route to the files of a store route as they were at a time.
    pub fn past(of: impl Into<String>, at: impl Into<String>) -> Self {
        Self { tier: RouteType::Past, of: Some(of.into()), at: Some(at.into()), read_only: true, ..Self::state() }
    }

    /// Returns a route to the traces of the user.
    pub fn traces() -> Self {
        Self { tier: RouteType::Traces, read_only: true, ..Self::state() }
    }

    /// Returns a route to a directory of the host.
    pub fn filesystem(root: impl Into<String>) -> Self {
        Self {
            tier: RouteType::Filesystem,
            root: Some(root.into()),
            sync: Some(RouteSync::default()),
            cross_mounts: Some(false),
            create_root: Some(false),
            ..Self::state()
        }
    }

    /// Returns whether the store route at a path keeps the past of its files, whether its defaults are filled in or not.
    pub(super) fn keeps_history(&self, path: &str) -> bool {
        // A quota does not count the past, so a route with one keeps none unless its configuration says so.
        let is_memory = path.trim_end_matches('/') == "/memories" && self.quota.is_none();
        let kept = self.history.as_ref().map_or(is_memory, |history| history.policy().is_some());
        self.tier == RouteType::Store && self.overlay.is_none() && kept
    }

    /// Fills in the defaults of the tier for the route at a path. `everything` is the store of what names none.
    pub(super) fn fill_in(&mut self, path: &str, everything: &str) {
        if let Some(overlay) = &mut self.overlay {
            overlay.store.get_or_insert_with(|| everything.to_owned());
            overlay.namespace.get_or_insert_with(|| OVERLAY_TEMPLATE.to_owned());
        }
        match self.tier {
            RouteType::State => {}
            RouteType::Past | RouteType::Traces => self.read_only = true,
            RouteType::Remote => {
                if self.cache_bytes_max.is_some() {
                    self.serve_stale.get_or_insert(false);
                }
            }
            RouteType::History => {
                self.thread.get_or_insert_with(|| HISTORY_THREAD.to_owned());
                self.at.get_or_insert_with(|| HISTORY_AT.to_owned());
                self.read_only = true;
            }
            RouteType::Store => {
                self.store.get_or_insert_with(|| everything.to_owned());
                self.index.get_or_insert_default();
                if self.overlay.is_none() {
                    let is_kept = self.keeps_history(path);
                    self.history.get_or_insert_with(|| match is_kept {
                        true => HistoryConfig::Kept(HistoryLimits::default()),
                        false => HistoryConfig::Off,
                    });
                }
            }
            RouteType::Filesystem => {
                self.sync.get_or_insert_default();
                self.cross_mounts.get_or_insert(false);
                self.create_root.get_or_insert(false);
            }
        }
    }
}
