//! JSON values with a typed view.

use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::borrow::Cow;
use std::fmt;
use std::ops::Deref;
use treehold_core::error::Result;
use treehold_core::json::Json;

/// A JSON value with a typed view of it. It derefs to the view and serialises as its original text.
#[derive(Clone, PartialEq)]
pub struct Kept<T> {
    json: Json,
    view: T,
}

impl<T: DeserializeOwned> Kept<T> {
    /// Parses a value.
    ///
    /// # Errors
    /// [`InvalidArgument`](treehold_core::error::ErrorKind::InvalidArgument) for text that is not JSON, or not of this shape.
    pub fn parse(text: &str) -> Result<Self> {
        Self::from_json(Json::parse(text)?)
    }

    /// Reads a view of a parsed value.
    ///
    /// # Errors
    /// As [`Kept::parse`].
    pub fn from_json(json: Json) -> Result<Self> {
        Ok(Self { view: json.view()?, json })
    }
}

impl<T: Serialize> Kept<T> {
    /// Serialises a view that did not come from JSON.
    ///
    /// # Errors
    /// As [`Json::of`].
    pub fn of(view: T) -> Result<Self> {
        Ok(Self { json: Json::of(&view)?, view })
    }
}

impl<T> Kept<T> {
    /// Returns the text.
    pub fn json(&self) -> &Json {
        &self.json
    }

    /// Returns the view without the text.
    pub fn into_view(self) -> T {
        self.view
    }
}

impl<T> Deref for Kept<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.view
    }
}

/// The schema of the view. It allows further fields, which are kept.
impl<T: JsonSchema> JsonSchema for Kept<T> {
    fn inline_schema() -> bool {
        T::inline_schema()
    }

    fn schema_name() -> Cow<'static, str> {
        T::schema_name()
    }

    fn schema_id() -> Cow<'static, str> {
        T::schema_id()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        T::json_schema(generator)
    }
}

impl<T> fmt::Debug for Kept<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.json.fmt(f)
    }
}

impl<T> Serialize for Kept<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.json.serialize(serializer)
    }
}

impl<'de, T: DeserializeOwned> Deserialize<'de> for Kept<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::from_json(Json::deserialize(deserializer)?).map_err(|error| serde::de::Error::custom(error.message()))
    }
}
