//! Layers that a program adds to its registry.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use treehold_core::error::{Error, Result};

/// A registered layer of the program, by name, with its settings.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct CustomLayerConfig {
    /// The name in the [`Registry`](super::Registry).
    pub name: String,
    /// The other keys of the table.
    #[serde(flatten)]
    pub settings: LayerSettings,
}

/// The settings of a layer: a table of the configuration without its `name`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct LayerSettings(toml::Table);

impl LayerSettings {
    /// Reads the settings into a type of the layer. Use `deny_unknown_fields` to refuse keys that it does not know.
    ///
    /// # Errors
    /// [`InvalidArgument`](treehold_core::error::ErrorKind::InvalidArgument) for settings that do not fit the type.
    pub fn parse<T: DeserializeOwned>(&self) -> Result<T> {
        toml::Value::Table(self.0.clone()).try_into().map_err(|error: toml::de::Error| {
            let message = error.message().trim().to_owned();
            Error::invalid_argument(message).with_source(error)
        })
    }
}
