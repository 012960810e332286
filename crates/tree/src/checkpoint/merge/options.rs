//! Options for merging.

use crate::checkpoint::{CheckpointId, Head};
use bytes::Bytes;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize, Serializer};
use std::collections::BTreeMap;
use std::fmt;
use treehold_core::path::{VfsPath, VfsPathBuf};
use treehold_core::text::merge::MarkerStyle;

/// A default decision for conflicts without a resolution.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum MergeStrategy {
    /// Takes the whole path from the thread that is merged into.
    Ours,
    /// Takes the whole path from the merged thread.
    Theirs,
    /// Takes the lines of both, ours first. For text only: other conflicts stay undecided.
    Union,
    /// Takes the lines of both, between conflict markers. For text only: other conflicts stay undecided.
    Markers,
}

impl fmt::Display for MergeStrategy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Ours => "ours",
            Self::Theirs => "theirs",
            Self::Union => "union",
            Self::Markers => "markers",
        })
    }
}

/// The decision for one conflict.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MergeResolution {
    /// Applies a strategy. It also covers conflicts beneath the path that have no nearer resolution.
    Strategy(MergeStrategy),
    /// Makes the path a file with this content.
    Content(Bytes),
    /// Leaves nothing at the path.
    Remove,
}

impl fmt::Display for MergeResolution {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Strategy(strategy) => strategy.fmt(f),
            Self::Content(_) => f.pad("content"),
            Self::Remove => f.pad("remove"),
        }
    }
}

/// Serialized as the name of the choice; a content is not repeated.
impl Serialize for MergeResolution {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl JsonSchema for MergeResolution {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "MergeResolution".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({"type": "string", "enum": ["ours", "theirs", "union", "markers", "content", "remove"]})
    }
}

impl From<MergeStrategy> for MergeResolution {
    fn from(strategy: MergeStrategy) -> Self {
        Self::Strategy(strategy)
    }
}

/// Options for merging.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct MergeOptions {
    /// The base: a checkpoint of either thread. The default is the newest common ancestor.
    pub base: Option<CheckpointId>,
    /// The decision for conflicts without a resolution. By default they stay undecided, and nothing is written.
    pub strategy: Option<MergeStrategy>,
    /// The decisions for conflicts, by path.
    pub resolutions: BTreeMap<VfsPathBuf, MergeResolution>,
    /// The style of conflict markers.
    pub marker_style: MarkerStyle,
    /// The head that the thread must have; any by default.
    pub head: Option<Head>,
    /// Writes nothing, and returns what would be done.
    pub dry_run: bool,
    /// The most changes, and the most conflicts, that the outcome lists. All are counted. Default 1,000.
    pub limit: usize,
    /// The label of the new checkpoint.
    pub label: Option<String>,
    /// The metadata of the new checkpoint.
    pub metadata: BTreeMap<String, String>,
}

impl Default for MergeOptions {
    fn default() -> Self {
        Self {
            base: None,
            strategy: None,
            resolutions: BTreeMap::new(),
            marker_style: MarkerStyle::default(),
            head: None,
            dry_run: false,
            limit: 1_000,
            label: None,
            metadata: BTreeMap::new(),
        }
    }
}

impl MergeOptions {
    /// Merges changes without conflicts.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the base.
    #[must_use]
    pub fn with_base(mut self, base: CheckpointId) -> Self {
        self.base = Some(base);
        self
    }

    /// Sets the decision for conflicts without a resolution.
    #[must_use]
    pub fn with_strategy(mut self, strategy: MergeStrategy) -> Self {
        self.strategy = Some(strategy);
        self
    }

    /// Decides the conflict at a path.
    #[must_use]
    pub fn with_resolution(mut self, path: VfsPathBuf, resolution: impl Into<MergeResolution>) -> Self {
        self.resolutions.insert(path, resolution.into());
        self
    }

    /// Sets the style of conflict markers.
    #[must_use]
    pub fn with_marker_style(mut self, style: MarkerStyle) -> Self {
        self.marker_style = style;
        self
    }

    /// Sets the head that the thread must have.
    #[must_use]
    pub fn with_head(mut self, head: Option<Head>) -> Self {
        self.head = head;
        self
    }

    /// Returns what would be done, without writing.
    #[must_use]
    pub fn with_dry_run(mut self, dry_run: bool) -> Self {
        self.dry_run = dry_run;
        self
    }

    /// Sets how many paths are listed.
    #[must_use]
    pub fn with_limit(mut self, limit: usize) -> Self {
        self.limit = limit;
        self
    }

    /// Sets the label of the new checkpoint.
    #[must_use]
    pub fn with_label(mut self, label: impl Into<String>) -> Self {
        self.label = Some(label.into());
        self
    }

    /// Adds a metadata entry to the new checkpoint.
    #[must_use]
    pub fn with_metadata(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.metadata.insert(name.into(), value.into());
        self
    }

    /// Returns the resolution of the conflict at a path: the one for the path itself, or for the nearest directory above it.
    pub(super) fn resolution(&self, path: &VfsPath) -> Option<(&VfsPath, MergeResolution)> {
        if let Some((said, resolution)) = self.resolutions.get_key_value(path) {
            return Some((said, resolution.clone()));
        }
        let above: Vec<&VfsPath> = path.ancestors().collect();
        above.into_iter().rev().find_map(|above| match self.resolutions.get_key_value(above) {
            Some((said, resolution @ MergeResolution::Strategy(_))) => Some((&**said, resolution.clone())),
            _ => None,
        })
    }
}
