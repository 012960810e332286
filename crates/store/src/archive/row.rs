//! One row of an archive: a line of JSON.

use super::{INLINE_BYTES_MAX, VERSION_MAX};
use crate::{Item, KEY_BYTES_MAX, META_BYTES_MAX, Namespace, whole_microseconds};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use treehold_core::ops::Version;

/// A line. One of `value`, `value_base64` and `blob` is set, or none for an empty body.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Row<'r> {
    namespace: Cow<'r, str>,
    key: Cow<'r, str>,
    version: u64,
    created_at: Timestamp,
    modified_at: Timestamp,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    expires_at: Option<Timestamp>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    meta_base64: Option<Cow<'r, str>>,
    size: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    value: Option<Cow<'r, str>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    value_base64: Option<Cow<'r, str>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    blob: Option<Cow<'r, str>>,
}

impl<'r> Row<'r> {
    /// Creates the line of an item; `blob` is the hash of a body that is an entry of its own.
    pub(super) fn of(namespace: &Namespace, item: &'r Item, blob: Option<&'r str>) -> Self {
        let inline = (blob.is_none() && !item.value.is_empty()).then_some(&item.value);
        let text = inline.and_then(|value| std::str::from_utf8(value).ok());
        Self {
            namespace: namespace.to_string().into(),
            key: item.key.as_str().into(),
            version: item.version.number(),
            created_at: item.created_at,
            modified_at: item.modified_at,
            expires_at: item.expires_at,
            meta_base64: (!item.meta.is_empty()).then(|| STANDARD.encode(&item.meta).into()),
            size: item.value.len() as u64,
            value: text.map(Cow::Borrowed),
            value_base64: inline.filter(|_| text.is_none()).map(|value| STANDARD.encode(value).into()),
            blob: blob.map(Cow::Borrowed),
        }
    }

    /// Returns the row; `blob` looks up a content by its hash. The error describes the problem.
    pub(super) fn into_item(self, blob: impl FnOnce(&str) -> Option<Bytes>) -> Result<(Namespace, Item), String> {
        let namespace = Namespace::parse(&self.namespace).ok().filter(|namespace| namespace.to_string() == self.namespace);
        let namespace = namespace.ok_or("the namespace is invalid or not in its canonical form")?;
        if self.key.is_empty() || self.key.contains('\0') || self.key.len() > KEY_BYTES_MAX {
            return Err(format!("the key is empty, holds NUL or is over {KEY_BYTES_MAX} bytes"));
        }
        if self.version == 0 || self.version > VERSION_MAX {
            return Err(format!("the version is not between 1 and {VERSION_MAX}"));
        }
        let decode = |text: &str, what| STANDARD.decode(text).map(Bytes::from).map_err(|_| format!("`{what}` is not Base64"));
        let meta = self.meta_base64.map_or(Ok(Bytes::new()), |text| decode(&text, "meta_base64"))?;
        if meta.len() > META_BYTES_MAX {
            return Err(format!("the meta is over {META_BYTES_MAX} bytes"));
        }
        let value = match (self.value, self.value_base64, self.blob) {
            (None, None, None) => Bytes::new(),
            (Some(text), None, None) => Bytes::from(text.into_owned()),
            (None, Some(text), None) => decode(&text, "value_base64")?,
            (None, None, Some(hash)) => blob(&hash).ok_or_else(|| format!("the content `{hash:.64}` does not precede it"))?,
            _ => return Err("it has more than one of `value`, `value_base64` and `blob`".to_owned()),
        };
        if value.len() as u64 != self.size {
            return Err(format!("the size is {} and the content has {} bytes", self.size, value.len()));
        }
        if [Some(self.created_at), Some(self.modified_at), self.expires_at].into_iter().flatten().any(|at| whole_microseconds(at) != at) {
            return Err("a time is not in whole microseconds".to_owned());
        }
        let item = Item::new(self.key, meta, value, Version::new(self.version), self.created_at, self.modified_at);
        Ok((namespace, item.with_expires_at(self.expires_at)))
    }
}

/// Returns whether a body becomes an entry of its own.
pub(super) fn is_blob(value: &[u8]) -> bool {
    value.len() > INLINE_BYTES_MAX
}
