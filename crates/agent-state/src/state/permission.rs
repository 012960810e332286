//! What the agent may do in a session.

use super::entries::Entries;
use super::wire::{only_objects, or_default, wire_enum};
use serde::{Deserialize, Serialize};

wire_enum! {
    /// How calls of tools are judged.
    #[derive(Default)]
    PermissionMode, "permission mode", str::eq_ignore_ascii_case {
        /// By the rules.
        #[default]
        Default = "default",
        /// Edits of files are allowed.
        AcceptEdits = "accept_edits",
        /// Only reads are allowed.
        Explore = "explore",
        /// Everything is allowed.
        Bypass = "bypass",
        /// What a rule would ask about is denied.
        DontAsk = "dont_ask",
    }
}

wire_enum! {
    /// What a rule decides.
    PermissionBehavior, "permission behavior", str::eq_ignore_ascii_case {
        /// The call is allowed.
        Allow = "allow",
        /// The call is denied.
        Deny = "deny",
        /// The user is asked.
        Ask = "ask",
        /// The next rule decides.
        Passthrough = "passthrough",
    }
}

/// A rule about the calls of one tool.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(remote = "Self")]
pub struct PermissionRule {
    /// The tool.
    pub tool_name: String,
    /// Which calls: a pattern of the tool; `None` for all.
    #[serde(default)]
    pub rule_content: Option<String>,
    /// What it decides.
    pub behavior: PermissionBehavior,
    /// Who made the rule.
    pub source: String,
}

/// A directory outside of the workspace that the agent may use.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(remote = "Self")]
pub struct WorkingDirectory {
    /// Its path.
    pub path: String,
    /// Who added it.
    pub source: String,
}

/// The permissions of a session: the mode, further directories, and rules by tool.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(remote = "Self")]
pub struct PermissionContext {
    /// How calls are judged.
    #[serde(default, deserialize_with = "or_default")]
    pub mode: PermissionMode,
    /// Further directories by key.
    #[serde(default)]
    pub working_directories: Entries<WorkingDirectory>,
    /// Rules that allow, by tool.
    #[serde(default)]
    pub allow_rules: Entries<Rules>,
    /// Rules that deny, by tool.
    #[serde(default)]
    pub deny_rules: Entries<Rules>,
    /// Rules that ask, by tool.
    #[serde(default)]
    pub ask_rules: Entries<Rules>,
}

impl PermissionContext {
    /// Returns whether it restricts and allows nothing beyond the default.
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

/// The rules about one tool, in order. `null` reads as no rule.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Rules(#[serde(deserialize_with = "or_default")] pub Vec<PermissionRule>);

only_objects!(PermissionRule, WorkingDirectory, PermissionContext);
