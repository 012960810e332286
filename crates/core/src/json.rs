//! JSON values that keep their original text.
//!
//! Agent hosts may add fields and kinds of blocks, and expect them back. So a value is stored and returned as its original
//! text. Typed views are parsed from the text and never replace it.

use crate::error::{Error, ErrorKind, Result};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::value::RawValue;
use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

/// How deep arrays and objects may nest.
pub const JSON_DEPTH_MAX: usize = 100;

/// One JSON value as its text. Comparison is by text. Clones share the text.
#[derive(Clone)]
pub struct Json(Arc<RawValue>);

impl Json {
    /// Parses one value. White space around it is dropped.
    ///
    /// # Errors
    /// [`InvalidArgument`](ErrorKind::InvalidArgument) for text that is not one JSON value, and for nesting deeper than
    /// [`JSON_DEPTH_MAX`].
    pub fn parse(text: &str) -> Result<Self> {
        let raw: &RawValue = serde_json::from_str(text).map_err(|error| invalid(&error))?;
        Self::from_raw(raw.to_owned())
    }

    /// Parses one value from bytes.
    ///
    /// # Errors
    /// As [`Json::parse`], and for bytes that are not UTF-8.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self> {
        let text = std::str::from_utf8(bytes).map_err(|error| Error::invalid_argument("the JSON is not UTF-8").with_source(error))?;
        Self::parse(text)
    }

    fn from_raw(raw: Box<RawValue>) -> Result<Self> {
        check_depth(raw.get())?;
        Ok(Self(raw.into()))
    }

    /// Serialises a value.
    ///
    /// # Errors
    /// [`InvalidArgument`](ErrorKind::InvalidArgument) for a value that JSON cannot express, such as a map whose keys are
    /// not texts.
    pub fn of<T: Serialize + ?Sized>(value: &T) -> Result<Self> {
        Self::from_raw(serde_json::value::to_raw_value(value).map_err(|error| invalid(&error))?)
    }

    /// Returns the text.
    pub fn as_str(&self) -> &str {
        self.0.get()
    }

    /// Returns the text without line breaks. Within strings JSON has none, so the value stays the same.
    pub fn on_one_line(&self) -> Cow<'_, str> {
        let text = self.as_str();
        if text.contains(['\n', '\r']) { Cow::Owned(text.replace(['\n', '\r'], "")) } else { Cow::Borrowed(text) }
    }

    /// Reads a typed view of the value.
    ///
    /// # Errors
    /// [`InvalidArgument`](ErrorKind::InvalidArgument) for a value of another shape.
    pub fn view<'a, T: Deserialize<'a>>(&'a self) -> Result<T> {
        serde_json::from_str(self.as_str()).map_err(|error| invalid(&error))
    }
}

impl fmt::Display for Json {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Debug for Json {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl PartialEq for Json {
    fn eq(&self, other: &Self) -> bool {
        self.as_str() == other.as_str()
    }
}

impl Eq for Json {}

impl Serialize for Json {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Json {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::from_raw(Box::deserialize(deserializer)?).map_err(|error| serde::de::Error::custom(error.message()))
    }
}

impl JsonSchema for Json {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Json".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({})
    }
}

/// Reads a row that [`row`] wrote.
///
/// # Errors
/// [`Corrupt`](ErrorKind::Corrupt), naming `what` the row is.
pub fn stored<T: DeserializeOwned>(what: &str, value: &[u8]) -> Result<T> {
    serde_json::from_slice(value)
        .map_err(|error| Error::new(ErrorKind::Corrupt, format!("the stored {what} cannot be read")).with_source(error))
}

/// Writes a row that [`stored`] reads.
pub fn row<T: Serialize>(value: &T) -> Vec<u8> {
    serde_json::to_vec(value).expect("rows are structs of plain fields")
}

fn invalid(error: &serde_json::Error) -> Error {
    Error::invalid_argument(format!("the JSON is not valid here: {error}"))
}

/// Refuses deep nesting. The text is valid JSON, so brackets outside of strings pair up.
fn check_depth(text: &str) -> Result<()> {
    let (mut depth, mut in_string, mut escaped) = (0_usize, false, false);
    for byte in text.bytes() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if in_string => escaped = true,
            b'"' => in_string = !in_string,
            _ if in_string => {}
            b'{' | b'[' => {
                depth += 1;
                if depth > JSON_DEPTH_MAX {
                    return Err(Error::invalid_argument(format!("the JSON nests deeper than {JSON_DEPTH_MAX} levels; flatten it")));
                }
            }
            b'}' | b']' => depth -= 1,
            _ => {}
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_survives_with_its_spaces_numbers_and_order() {
        let text = r#"{ "z": 1.0, "a": 1e2,  "é": "é", "n": 12345678901234567890123 }"#;
        let json = Json::parse(&format!("\n{text}\n")).expect("valid");
        assert_eq!(json.as_str(), text);
        let nested = serde_json::to_string(&vec![&json]).expect("plain");
        assert_eq!(nested, format!("[{text}]"));
        let again: Vec<Json> = serde_json::from_str(&nested).expect("valid");
        assert_eq!(again[0].as_str(), text);
    }

    #[test]
    fn deep_nesting_is_refused_and_brackets_in_strings_do_not_count() {
        let nested = |depth: usize| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
        assert!(Json::parse(&nested(JSON_DEPTH_MAX)).is_ok());
        assert_eq!(Json::parse(&nested(JSON_DEPTH_MAX + 1)).expect_err("too deep").kind(), ErrorKind::InvalidArgument);
        assert_eq!(Json::parse(&nested(1_000_000)).expect_err("too deep").kind(), ErrorKind::InvalidArgument);
        assert!(Json::parse(&format!(r#""\\\"{}""#, "[".repeat(1_000))).is_ok());
    }

    #[test]
    fn line_breaks_between_tokens_are_removed() {
        let json = Json::parse("{\n  \"a\": \"x\\ny\",\r\n  \"b\": [1,\n2]\n}").expect("valid");
        assert_eq!(json.on_one_line(), r#"{  "a": "x\ny",  "b": [1,2]}"#);
    }
}
