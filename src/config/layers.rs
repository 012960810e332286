//! The layers around the whole tree, and permission rules.

use super::CustomLayerConfig;
#[cfg(doc)]
use super::Registry;
use serde::{Deserialize, Serialize};

/// The layers around the whole tree of each session. From the outside in: audit, permissions, those of the program, timeout, retry,
/// limit.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct LayersConfig {
    /// A file to which a record of every operation is appended, as JSON Lines. Default none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub audit: Option<String>,
    /// Whether to refuse an operation whose record cannot be written. Default false.
    #[serde(default)]
    pub audit_required: bool,
    /// How long an operation may take, such as `30s`. Default no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout: Option<String>,
    /// How many attempts a transiently failing operation gets in total, if repeating it is safe. Default 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempts_max: Option<usize>,
    /// How many operations of the process run concurrently; others wait. Default no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub running_max: Option<usize>,
    /// How many operations may wait; others are refused. Default no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waiting_max: Option<usize>,
    /// Permission rules; the first that matches an operation decides. Operations without a matching rule are allowed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub permissions: Vec<PermissionConfig>,
    /// Layers that the program added to its [`Registry`], the outermost first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub custom: Vec<CustomLayerConfig>,
}

/// The effect of a rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum PermissionEffect {
    /// Allows the operation.
    Allow,
    /// Refuses the operation. Paths that may not be read appear not to exist.
    Deny,
    /// Asks an approver, if the workspace has one. Refuses the operation if nobody can be asked, as on the command line.
    Ask,
}

/// A permission rule.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct PermissionConfig {
    /// The effect.
    pub effect: PermissionEffect,
    /// The operations that it applies to: `read`, `write`, `all`, or individual names.
    pub operations: Vec<String>,
    /// The paths that it applies to, including everything beneath them: absolute globs.
    pub paths: Vec<String>,
    /// Whether paths match in any letter case. Default false.
    #[serde(default)]
    pub ignore_case: bool,
}
