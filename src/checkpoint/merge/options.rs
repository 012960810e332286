//! How to merge.

use crate::checkpoint::{CheckpointId, Head};
use crate::path::{VfsPath, VfsPathBuf};
use crate::text::merge::MarkerStyle;
use bytes::Bytes;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize, Serializer};
use std::collections::BTreeMap;
use std::fmt;

/// How to decide all conflicts that nothing is said of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum MergeStrategy {
    /// What the thread that is merged into has at the path, wholly.
    Ours,
    /// What the merged thread has at the path, wholly.
    Theirs,
    /// The lines of both, ours first. Only for texts: other conflicts stay undecided.
    Union,
    /// The lines of both between conflict markers. Only for texts: other conflicts stay undecided.
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

/// How to decide one conflict.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MergeResolution {
    /// By a strategy. It also holds for the conflicts beneath the path that nothing nearer is said of.
    Strategy(MergeStrategy),
    /// The path is a file of this content.
    Content(Bytes),
    /// Nothing stands at the path.
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

/// Written as its name; a content is not repeated.
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

/// How to merge.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct MergeOptions {
    /// The checkpoint to compare both with, of either thread. By default the newest that both come from.
    pub base: Option<CheckpointId>,
    /// How to decide conflicts that no resolution is given for. By default they stay undecided, and nothing is written.
    pub strategy: Option<MergeStrategy>,
    /// How to decide conflicts by path.
    pub resolutions: BTreeMap<VfsPathBuf, MergeResolution>,
    /// How conflict markers are written.
    pub marker_style: MarkerStyle,
    /// The head that the thread must have; any by default.
    pub head: Option<Head>,
    /// Writes nothing, and tells what would be done.
    pub dry_run: bool,
    /// The most paths that the outcome lists of changes, and of conflicts. All are counted. Default 1,000.
    pub limit: usize,
    /// What to call the new checkpoint.
    pub label: Option<String>,
    /// What to note with the new checkpoint.
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
    /// Merges what has no conflict.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the checkpoint to compare both with.
    #[must_use]
    pub fn with_base(mut self, base: CheckpointId) -> Self {
        self.base = Some(base);
        self
    }

    /// Sets how to decide conflicts.
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

    /// Sets how conflict markers are written.
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

    /// Only tells what would be done.
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

    /// Sets what to call the new checkpoint.
    #[must_use]
    pub fn with_label(mut self, label: impl Into<String>) -> Self {
        self.label = Some(label.into());
        self
    }

    /// Notes something with the new checkpoint.
    #[must_use]
    pub fn with_metadata(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.metadata.insert(name.into(), value.into());
        self
    }

    /// Returns what was said of the conflict at a path: of the path itself, or of the nearest directory above it.
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
