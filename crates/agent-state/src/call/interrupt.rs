//! Requests to stop a running call.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use treehold_core::json::Json;

/// Who interrupts a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum InterruptSource {
    /// A person, or a program that acts for one. The call ends with a partial result.
    #[default]
    User,
    /// The runtime, which shuts down. The call fails, and can be repeated.
    System,
}

/// A request to stop one running call. It is never part of a state.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Interrupt {
    /// Who interrupts.
    #[serde(default)]
    pub source: InterruptSource,
    /// What the person said, as a message or as text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<Json>,
}

impl Interrupt {
    /// A person interrupts.
    pub fn user() -> Self {
        Self::default()
    }

    /// The runtime interrupts.
    pub fn system() -> Self {
        Self { source: InterruptSource::System, message: None }
    }

    /// Sets what the person said.
    #[must_use]
    pub fn with_message(mut self, message: Option<Json>) -> Self {
        self.message = message;
        self
    }
}
