//! The reading side. It does not trust the archive.
//!
//! Entries are read as they are in the stream, without extensions of the tar format: names are short and files are plain, so memory is
//! allocated only for what is read here. Everything declared is checked before it is read, and everything read is bounded by what is
//! actually there.

use super::row::Row;
use super::{ARCHIVE_FORMAT, END, End, FIRST_FORMAT, FORMER_HEAD, Found, HEAD, Head, INLINE_BYTES_MAX, PAGE_BYTES, PARTITIONED_FORMAT};
use crate::digest::Digest;
use crate::{Item, Namespace, Reserved, ReservedRows, is_reserved, migrate};
use bytes::Bytes;
use serde::de::DeserializeOwned;
use std::collections::HashMap;
use std::io::{self, BufRead, BufReader, Read};
use treehold_core::error::{Error, ErrorKind, Result};

/// The most bytes of `treehold.json` and `end.json`.
const JSON_BYTES_MAX: u64 = 64 << 10;

/// The most bytes of a page's lines: the size after which a page ends, and one line.
const LINES_BYTES_MAX: u64 = PAGE_BYTES as u64 + LINE_BYTES_MAX;

/// The longest line in bytes: a key and a namespace with every character escaped, and metadata and a body in base64.
const LINE_BYTES_MAX: u64 = 256 << 10;

/// The most bytes of the contents that a page's rows refer to, besides the largest of them. A content counts once for each row that refers
/// to it, so that a small archive never becomes a large store.
const BLOBS_BYTES_MAX: u64 = PAGE_BYTES as u64;

/// The limits of the reader.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    /// The largest content in bytes.
    pub(super) blob_bytes_max: u64,
}

/// Reads an archive to its end, and passes on each page.
pub(super) fn read(input: impl Read, limits: Limits, mut page: impl FnMut(Found) -> Result<()>) -> Result<End> {
    let mut archive = tar::Archive::new(BufReader::with_capacity(64 << 10, input));
    let mut entries = archive.entries().map_err(|error| unread("its first entry", error))?.raw(true);
    let mut state = State { limits, blobs: HashMap::new(), totals: Totals::default(), last: None, format: ARCHIVE_FORMAT };
    let mut has_head = false;
    while let Some(entry) = entries.next().transpose().map_err(|error| unread("an entry", error))? {
        let name = String::from_utf8_lossy(&entry.path_bytes()).into_owned();
        if !entry.header().entry_type().is_file() {
            return Err(broken(&name, "it is not a plain file, and an export holds only those"));
        }
        let size = entry.size();
        match name.as_str() {
            HEAD | FORMER_HEAD if !has_head => {
                let head = json::<Head>(&name, entry, size)?;
                check_head(&head)?;
                state.format = head.format;
                has_head = true;
            }
            _ if !has_head => return Err(broken(&name, &format!("an export begins with `{HEAD}`"))),
            END => {
                let end = json(&name, entry, size)?;
                state.check_end(&name, &end)?;
                return match entries.next().transpose().map_err(|error| unread("what follows the end", error))? {
                    None => Ok(end),
                    Some(entry) => Err(broken(&String::from_utf8_lossy(&entry.path_bytes()), &format!("it comes after `{END}`"))),
                };
            }
            _ => match name.strip_prefix("blobs/") {
                Some(hash) => state.blob(&name, hash, entry, size)?,
                None => page(state.lines(&name, entry, size)?)?,
            },
        }
    }
    let message = match has_head {
        true => format!("the archive is cut off: `{END}` is missing; export the store again"),
        false => "this is not an export of a store: it is empty; name another file".to_owned(),
    };
    Err(Error::new(ErrorKind::Corrupt, message))
}

fn check_head(head: &Head) -> Result<()> {
    match head.format {
        FIRST_FORMAT..=ARCHIVE_FORMAT => Ok(()),
        0 => Err(broken(HEAD, "the number of its format is 0")),
        newer => {
            let message = format!(
                "the archive has format {newer}, but this program reads formats up to \
                {ARCHIVE_FORMAT}; import it with a newer version"
            );
            Err(Error::unsupported(message))
        }
    }
}

struct State {
    limits: Limits,
    /// The contents of the next page by hash, and whether a row has referred to each.
    blobs: HashMap<String, (Bytes, bool)>,
    totals: Totals,
    /// The last row, with the text of its namespace.
    last: Option<(String, String)>,
    /// The format of the archive. Its order and hash refer to the namespaces as written there.
    format: u32,
}

#[derive(Default)]
struct Totals {
    pages: u64,
    rows: u64,
    value_bytes: u64,
    digest: Digest,
}

impl State {
    fn blob(&mut self, name: &str, hash: &str, content: impl Read, size: u64) -> Result<()> {
        let is_hash = hash.len() == 64 && hash.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        if !is_hash {
            return Err(broken(name, "a content is named by its BLAKE3 hash in hexadecimal digits"));
        }
        if self.blobs.contains_key(hash) {
            return Err(broken(name, "it occurs twice before one page"));
        }
        if size > self.limits.blob_bytes_max {
            let message = format!(
                "the content `{name}` has {size} bytes and the store accepts at most {}; import it into another engine",
                self.limits.blob_bytes_max
            );
            return Err(Error::new(ErrorKind::TooLarge, message));
        }
        check_blobs(name, self.blobs.values().map(|(content, _)| content.len() as u64).chain([size]))?;
        let content = bytes_of(name, content, size)?;
        if blake3::hash(&content).to_hex().as_str() != hash {
            return Err(broken(name, "the content does not match the hash that names it"));
        }
        self.blobs.insert(hash.to_owned(), (content.into(), false));
        Ok(())
    }

    /// Reads the lines of a page.
    fn lines(&mut self, name: &str, content: impl Read, size: u64) -> Result<Found> {
        let expected = format!("items/{:08}.jsonl", self.totals.pages + 1);
        if name != expected {
            return Err(broken(name, &format!("it is unknown or out of order: expected `{expected}`, its contents or `{END}`")));
        }
        if size > LINES_BYTES_MAX {
            return Err(too_large(name, &format!("its lines exceed {LINES_BYTES_MAX} bytes")));
        }
        self.totals.pages += 1;
        let mut lines = BufReader::new(content);
        let mut found = Vec::new();
        let mut line = Vec::new();
        let mut bytes = 0;
        loop {
            line.clear();
            let length = lines.by_ref().take(LINE_BYTES_MAX).read_until(b'\n', &mut line).map_err(|error| unread(name, error))?;
            bytes += length as u64;
            if length == 0 {
                break;
            }
            let at = || format!("{name}, line {}", found.len() + 1);
            if line.pop() != Some(b'\n') {
                if bytes < size && (length as u64) < LINE_BYTES_MAX {
                    return Err(cut_off(name));
                }
                return Err(broken(&at(), &format!("it does not end within {LINE_BYTES_MAX} bytes")));
            }
            let (namespace, item) = self.row(&line).map_err(|what| broken(&at(), &what))?;
            found.push((namespace, item));
        }
        if bytes != size {
            return Err(cut_off(name));
        }
        if found.is_empty() {
            return Err(broken(name, "a page has at least one row"));
        }
        if let Some((hash, _)) = self.blobs.iter().find(|(_, (_, is_named))| !is_named) {
            return Err(broken(&format!("blobs/{hash}"), "no row of the page after it names it"));
        }
        self.blobs.clear();
        check_blobs(name, found.iter().map(|(_, item)| item.value.len() as u64).filter(|size| *size > INLINE_BYTES_MAX as u64))?;
        Ok(found)
    }

    fn row(&mut self, line: &[u8]) -> Result<(Namespace, Item), String> {
        let row: Row<'_> = serde_json::from_slice(line).map_err(|error| format!("it is not a row: {error}"))?;
        let blobs = &mut self.blobs;
        let (namespace, item) = row.into_item(|hash| {
            let (content, is_named) = blobs.get_mut(hash)?;
            *is_named = true;
            Some(content.clone())
        })?;
        let text = match self.format {
            PARTITIONED_FORMAT.. => namespace.encoded().to_owned(),
            _ if namespace.to_string().contains("//") => {
                return Err("the namespace is invalid or not in its canonical form".to_owned());
            }
            _ => format!("{namespace}/"),
        };
        let here = (text, item.key.clone());
        if self.last.as_ref().is_some_and(|last| *last >= here) {
            return Err("the row is not after the one before it, in order of namespace and key".to_owned());
        }
        self.totals.rows += 1;
        self.totals.value_bytes += item.value.len() as u64;
        self.totals.digest.add_as(&here.0, &item);
        self.last = Some(here);
        let namespace = match self.format {
            ARCHIVE_FORMAT => namespace,
            PARTITIONED_FORMAT => migrate::moved_to_users(namespace)?,
            FIRST_FORMAT => migrate::moved_to_partition(&migrate::moved(namespace)?)?,
            _ => migrate::moved_to_partition(&namespace)?,
        };
        check_reserved(&namespace)?;
        Ok((namespace, item))
    }

    fn check_end(&mut self, name: &str, end: &End) -> Result<()> {
        if !self.blobs.is_empty() {
            return Err(broken(name, "the contents before it are not named by any page"));
        }
        let Totals { pages, rows, value_bytes, digest } = std::mem::take(&mut self.totals);
        if (end.pages, end.rows, end.value_bytes) != (pages, rows, value_bytes) || end.digest != digest.finish() {
            return Err(broken(name, "the archive does not match the totals at its end"));
        }
        if end.version > super::VERSION_MAX {
            return Err(broken(name, &format!("the version is over {}", super::VERSION_MAX)));
        }
        Ok(())
    }
}

/// Rejects rows below the reserved root that no export writes.
fn check_reserved(namespace: &Namespace) -> Result<(), String> {
    match Reserved::of(namespace).map(|reserved| reserved.rows) {
        None if is_reserved(namespace) => Err(format!("the namespace `{namespace}` is reserved, and this version does not know it")),
        Some(ReservedRows::Derived | ReservedRows::Note) => Err(format!("the namespace `{namespace}` is reserved, and never exported")),
        _ => Ok(()),
    }
}

/// Checks the size of the contents of a page's rows.
fn check_blobs(name: &str, sizes: impl Iterator<Item = u64>) -> Result<()> {
    let (sum, largest) = sizes.fold((0_u64, 0), |(sum, largest), size| (sum.saturating_add(size), size.max(largest)));
    if sum - largest > BLOBS_BYTES_MAX {
        return Err(too_large(name, &format!("the contents of one page exceed {BLOBS_BYTES_MAX} bytes, not counting the largest")));
    }
    Ok(())
}

fn json<T: DeserializeOwned>(name: &str, content: impl Read, size: u64) -> Result<T> {
    if size > JSON_BYTES_MAX {
        return Err(too_large(name, &format!("it is over {JSON_BYTES_MAX} bytes")));
    }
    let content = bytes_of(name, content, size)?;
    serde_json::from_slice(&content).map_err(|error| broken(name, &format!("it does not have the form of an export: {error}")))
}

/// Reads `size` bytes. Allocates as they arrive, not as declared.
fn bytes_of(name: &str, content: impl Read, size: u64) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    content.take(size).read_to_end(&mut bytes).map_err(|error| unread(name, error))?;
    if bytes.len() as u64 != size {
        return Err(cut_off(name));
    }
    Ok(bytes)
}

/// Escapes and truncates the name of an entry, which may be anything.
fn shown(name: &str) -> String {
    name.chars().take(100).flat_map(char::escape_debug).collect()
}

fn broken(name: &str, what: &str) -> Error {
    Error::new(ErrorKind::Corrupt, format!("`{}` of the archive is wrong: {what}", shown(name)))
}

fn too_large(name: &str, what: &str) -> Error {
    Error::new(ErrorKind::TooLarge, format!("`{}` of the archive is too large: {what}", shown(name)))
}

fn cut_off(name: &str) -> Error {
    Error::new(ErrorKind::Corrupt, format!("the archive is cut off in `{}`; export the store again", shown(name)))
}

/// Converts a failure to seek back to the start of the stream.
pub(super) fn unread_again(error: io::Error) -> Error {
    let message = "the archive cannot be read twice, to be checked before it is imported; name it as a file";
    Error::new(ErrorKind::Unavailable, message).with_source(error)
}

/// Converts a failure to read the stream or its content.
fn unread(name: &str, error: io::Error) -> Error {
    if error.raw_os_error().is_some() {
        return Error::new(ErrorKind::Unavailable, "the archive cannot be read; check its location and try again").with_source(error);
    }
    let message = format!("`{}` of the archive cannot be read: this is not a tar archive, or it is cut off", shown(name));
    Error::new(ErrorKind::Corrupt, message).with_source(error)
}
