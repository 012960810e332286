//! Plan mode.

use super::wire::{only_objects, or_default};
use serde::{Deserialize, Serialize};

/// Whether the agent plans: while it does, tools that change something are denied. It is a part of the stored state, so a session
/// keeps its mode when another process serves it.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(remote = "Self")]
pub struct PlanModeContext {
    /// Whether plan mode is on.
    #[serde(default, deserialize_with = "or_default")]
    pub plan_active: bool,
    /// The file with the plan, by its path in the workspace.
    #[serde(default)]
    pub current_plan_file: Option<String>,
}

impl PlanModeContext {
    /// Turns plan mode on. `file` replaces the current plan file if it is given.
    pub fn enter(&mut self, file: Option<&str>) {
        self.plan_active = true;
        if let Some(file) = file {
            self.current_plan_file = Some(file.to_owned());
        }
    }

    /// Turns plan mode off. The plan file stays, so that the plan can be carried out.
    pub fn exit(&mut self) {
        self.plan_active = false;
    }
}

only_objects!(PlanModeContext);
