//! Verification that both sides are equal, row by row.

use super::{CopyStage, Run};
use crate::digest::Digest;
use crate::walk::SideBySide;
use crate::{Item, Namespace, Store, escape_key};
use treehold_core::error::{Error, ErrorKind, Result};

/// The content of two equal sides.
#[derive(Debug, Default)]
pub(super) struct Compared {
    pub(super) namespaces: u64,
    pub(super) rows: u64,
    pub(super) value_bytes: u64,
    /// The number of rows that only the target has.
    pub(super) left: u64,
    /// The hash of the rows in order.
    pub(super) digest: String,
}

impl Run<'_> {
    /// Reads both sides and compares every row; the inner error is the first difference. Rows of partitions that the source has lost may
    /// differ, and where it is unknown which it has lost, the target may have rows of any.
    pub(super) async fn compare(&mut self) -> Result<Result<Compared>> {
        let mut sides = SideBySide::new(self.walk_source(self.pages()), self.walk(self.target, self.pages()));
        let mut compared = Compared::default();
        let mut digest = Digest::default();
        let mut last: Option<Namespace> = None;
        while let Some(pair) = sides.next().await? {
            let is_lost = sides.one_has_lost(&pair.namespace) || self.lost.has(&pair.namespace);
            let may_be_lost = sides.one_may_have_lost(&pair.namespace) || self.lost.may_hold(&pair.namespace);
            let (one, other) = match (pair.one, pair.other) {
                (Some(one), Some(other)) => (one, other),
                (Some(_), None) if is_lost => continue,
                (None, Some(_)) if may_be_lost => continue,
                (None, Some(_)) if self.options.onto => {
                    compared.left += 1;
                    continue;
                }
                (one, other) => {
                    let Some(item) = one.or(other) else { continue };
                    if self.has_ended(&pair.namespace, &item).await? {
                        continue;
                    }
                    return Ok(Err(different(&pair.namespace, &item.key, "is on one side only")));
                }
            };
            match difference(&one, &other) {
                Some(_) if is_lost => continue,
                Some(what) => return Ok(Err(different(&pair.namespace, &one.key, what))),
                None => {}
            }
            if last.as_ref() != Some(&pair.namespace) {
                compared.namespaces += 1;
                last = Some(pair.namespace.clone());
            }
            compared.rows += 1;
            compared.value_bytes += one.value.len() as u64;
            digest.add(&pair.namespace, &one);
            if compared.rows.is_multiple_of(100) {
                self.report(CopyStage::Verifying, compared.rows, compared.value_bytes);
            }
        }
        self.lost.append(sides.into_lost());
        compared.digest = digest.finish();
        Ok(Ok(compared))
    }

    /// Returns whether a row expired between the reads of the two sides.
    async fn has_ended(&mut self, namespace: &Namespace, item: &Item) -> Result<bool> {
        if item.expires_at.is_none() {
            return Ok(false);
        }
        let is_live =
            async |store: &dyn Store| store.get_many(namespace, &[&item.key], false).await.map(|found| found.iter().any(Option::is_some));
        match is_live(self.source).await {
            Ok(true) => Ok(false),
            Ok(false) => Ok(!is_live(self.target).await?),
            // As good as ended: what of the partition can be read is not known.
            Err(error) => self.lose(namespace, error).map(|()| true),
        }
    }
}

/// Returns what differs between two rows with the same key.
fn difference(one: &Item, other: &Item) -> Option<&'static str> {
    match () {
        () if one.version != other.version => Some("has another version"),
        () if one.value != other.value => Some("has another body"),
        () if one.meta != other.meta => Some("has another meta"),
        () if one != other => Some("has other times"),
        () => None,
    }
}

fn different(namespace: &Namespace, key: &str, what: &str) -> Error {
    let key = escape_key(key);
    let message =
        format!("the row `{key}` in `{namespace}` {what} after the copy; check both stores with `treehold store verify`, then copy again");
    Error::new(ErrorKind::Corrupt, message)
}
