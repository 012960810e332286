//! The writing side: rows are grouped into pages, and pages are written as entries.

use super::row::{Row, is_blob};
use super::{END, End, HEAD, Head, PAGE_BYTES, PAGE_ROWS};
use crate::digest::Digest;
use crate::{Item, Namespace};
use bytes::Bytes;
use std::collections::BTreeMap;
use std::io::{self, Write};
use tokio::sync::mpsc;
use treehold_core::error::{Error, ErrorKind, Result};
use treehold_core::ops::Version;

/// The writer's input, in this order: a head, pages, an end.
#[derive(Debug)]
pub(super) enum Part {
    Head(Head),
    Page(Page),
    End(End),
}

/// Some rows, and the contents that they refer to.
#[derive(Debug, Default)]
pub(super) struct Page {
    number: u64,
    lines: Vec<u8>,
    rows: usize,
    /// The contents, by hash.
    blobs: BTreeMap<String, Bytes>,
    blob_bytes: usize,
}

/// Groups rows into pages.
#[derive(Debug, Default)]
pub(super) struct Paged {
    page: Page,
    pages: u64,
    pub(super) rows: u64,
    pub(super) value_bytes: u64,
    digest: Digest,
}

impl Paged {
    /// Adds a row. Returns the page if it is full.
    pub(super) fn add(&mut self, namespace: &Namespace, item: Item) -> Result<Option<Page>> {
        self.rows += 1;
        self.value_bytes += item.value.len() as u64;
        self.digest.add(namespace, &item);
        let hash = is_blob(&item.value).then(|| blake3::hash(&item.value).to_hex());
        let row = Row::of(namespace, &item, hash.as_ref().map(|hash| hash.as_str()));
        serde_json::to_writer(&mut self.page.lines, &row)
            .map_err(|source| Error::new(ErrorKind::Internal, "a row cannot be written as JSON").with_source(source))?;
        self.page.lines.push(b'\n');
        self.page.rows += 1;
        if let Some(hash) = hash {
            // Count each row, so that reading a page never expands it beyond its size.
            self.page.blob_bytes += item.value.len();
            self.page.blobs.insert(hash.to_string(), item.value);
        }
        let is_full = self.page.rows >= PAGE_ROWS || self.page.lines.len() >= PAGE_BYTES || self.page.blob_bytes >= PAGE_BYTES;
        Ok(is_full.then(|| self.take()))
    }

    /// Returns the remaining rows and the end of the archive.
    pub(super) fn finish(mut self, version: Version) -> (Option<Page>, End) {
        let last = (self.page.rows > 0).then(|| self.take());
        let Self { pages, rows, value_bytes, digest, .. } = self;
        (last, End { pages, rows, value_bytes, version: version.number(), digest: digest.finish() })
    }

    fn take(&mut self) -> Page {
        self.pages += 1;
        Page { number: self.pages, ..std::mem::take(&mut self.page) }
    }
}

/// Writes its input. If the input has no end, the archive gets none either, so that it counts as incomplete.
pub(super) fn write(output: impl Write, mut parts: mpsc::Receiver<Part>) -> Result<()> {
    let mut archive = tar::Builder::new(output);
    while let Some(part) = parts.blocking_recv() {
        match part {
            Part::Head(head) => append_json(&mut archive, HEAD, &head)?,
            Part::Page(page) => {
                for (hash, content) in &page.blobs {
                    append(&mut archive, &format!("blobs/{hash}"), content)?;
                }
                append(&mut archive, &format!("items/{:08}.jsonl", page.number), &page.lines)?;
            }
            Part::End(end) => {
                append_json(&mut archive, END, &end)?;
                return archive.into_inner().and_then(|mut output| output.flush()).map_err(unwritten);
            }
        }
    }
    Ok(())
}

fn append_json(archive: &mut tar::Builder<impl Write>, name: &str, value: &impl serde::Serialize) -> Result<()> {
    let mut content = serde_json::to_vec_pretty(value)
        .map_err(|source| Error::new(ErrorKind::Internal, "an entry cannot be written as JSON").with_source(source))?;
    content.push(b'\n');
    append(archive, name, &content)
}

fn append(archive: &mut tar::Builder<impl Write>, name: &str, content: &[u8]) -> Result<()> {
    let mut header = tar::Header::new_ustar();
    header.set_path(name).map_err(unwritten)?;
    header.set_size(content.len() as u64);
    header.set_mode(0o600);
    header.set_mtime(0);
    header.set_cksum();
    archive.append(&header, content).map_err(unwritten)
}

fn unwritten(error: io::Error) -> Error {
    let message = match error.kind() {
        io::ErrorKind::StorageFull => "the disk of the archive is full; make room and export again",
        _ => "the archive cannot be written; check its destination and export again",
    };
    Error::new(ErrorKind::Unavailable, message).with_source(error)
}
