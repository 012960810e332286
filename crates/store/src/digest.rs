//! A hash over ordered rows: equal for two stores with the same rows.

use super::{Item, Namespace};

/// A BLAKE3 hash of rows.
#[derive(Debug, Default)]
pub(super) struct Digest(blake3::Hasher);

impl Digest {
    /// Adds a row.
    pub(super) fn add(&mut self, namespace: &Namespace, item: &Item) {
        self.add_as(namespace.encoded(), item);
    }

    /// Adds a row of a namespace with this text. Each part is prefixed with its length, so different rows never hash the same bytes.
    pub(super) fn add_as(&mut self, namespace: &str, item: &Item) {
        for part in [namespace.as_bytes(), item.key.as_bytes(), &item.meta, &item.value] {
            self.0.update(&(part.len() as u64).to_le_bytes());
            self.0.update(part);
        }
        let expires_at = item.expires_at.map_or(i64::MAX, |at| at.as_microsecond());
        for number in [item.created_at.as_microsecond(), item.modified_at.as_microsecond(), expires_at] {
            self.0.update(&number.to_le_bytes());
        }
        self.0.update(&item.version.number().to_le_bytes());
    }

    /// Returns the hash in hexadecimal.
    pub(super) fn finish(self) -> String {
        self.0.finalize().to_hex().to_string()
    }
}
