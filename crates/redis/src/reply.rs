//! Parsing of the server's answers.

use super::error::{of_schema, unexpected};
use super::script::Keys;
use ::redis::Value;
use bytes::Bytes;
use treehold_core::error::Result;

/// The parts of an answer, in order.
pub(super) struct Reply(std::vec::IntoIter<Value>);

impl Reply {
    /// Parses an answer that is a list.
    pub(super) fn of(value: Value) -> Result<Self> {
        match value {
            Value::Array(parts) => Ok(Self(parts.into_iter())),
            _ => Err(unexpected()),
        }
    }

    /// Parses an answer that is a list and begins with the schema.
    ///
    /// # Errors
    /// When the schema is not the one that the keys should have, or is missing because the store is gone.
    pub(super) fn of_store(value: Value, keys: &Keys) -> Result<Self> {
        let mut reply = Self::of(value)?;
        let schema = reply.bytes_or_none()?.unwrap_or_default();
        if schema == keys.schema().as_bytes() { Ok(reply) } else { Err(of_schema(&schema)) }
    }

    /// Returns how many parts are left.
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Takes the next part as bytes; `None` for a null.
    pub(super) fn bytes_or_none(&mut self) -> Result<Option<Bytes>> {
        match self.0.next() {
            Some(Value::BulkString(bytes)) => Ok(Some(bytes.into())),
            Some(Value::SimpleString(text)) => Ok(Some(text.into_bytes().into())),
            Some(Value::Nil | Value::Boolean(false)) => Ok(None),
            _ => Err(unexpected()),
        }
    }

    /// Takes the next part as bytes.
    pub(super) fn bytes(&mut self) -> Result<Bytes> {
        self.bytes_or_none()?.ok_or_else(unexpected)
    }

    /// Takes the next part as text.
    pub(super) fn text(&mut self) -> Result<String> {
        String::from_utf8(self.bytes()?.into()).map_err(|_| unexpected())
    }

    /// Takes the next part as a number, which may be written as text.
    pub(super) fn number(&mut self) -> Result<u64> {
        match self.0.next() {
            Some(Value::Int(number)) => u64::try_from(number).map_err(|_| unexpected()),
            Some(Value::BulkString(text)) => std::str::from_utf8(&text).ok().and_then(|text| text.parse().ok()).ok_or_else(unexpected),
            _ => Err(unexpected()),
        }
    }

    /// Takes the next part as the score in a sorted set.
    pub(super) fn score(&mut self) -> Result<f64> {
        match self.0.next() {
            Some(Value::Double(score)) => Ok(score),
            Some(Value::BulkString(text)) => std::str::from_utf8(&text).ok().and_then(|text| text.parse().ok()).ok_or_else(unexpected),
            _ => Err(unexpected()),
        }
    }

    /// Takes the next part as a list.
    pub(super) fn list(&mut self) -> Result<Self> {
        self.0.next().ok_or_else(unexpected).and_then(Self::of)
    }
}
