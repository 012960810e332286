//! The mapping between paths and row keys.
//!
//! The key of a file is its path segments joined by U+0001. The key of a directory has one more U+0001 at its end. The root has
//! no row. No legal path contains U+0001, and every character of a legal path sorts after it. Therefore keys sort like paths,
//! everything beneath a directory starts with its key, and a file and a directory never share a key.

use bytes::Bytes;
use jiff::Timestamp;
use memchr::memrchr;
use treehold_core::error::{Error, ErrorKind, Result};
use treehold_core::file::FileRecord;
use treehold_core::ops::Entry;
use treehold_core::path::{VfsPath, VfsPathBuf};
use treehold_store::{Item, Namespace, Scan, ScanEntry, ScanOptions, Store};

/// The separator between the segments of a key.
pub(crate) const SEPARATOR: char = '\u{1}';

/// Returns the key of a file. `path` must not be the root.
pub(crate) fn file_key(path: &VfsPath) -> String {
    path.relative().replace('/', "\u{1}")
}

/// Returns the key of a directory. That of the root is empty: a prefix of all keys.
pub(crate) fn directory_key(path: &VfsPath) -> String {
    let mut key = file_key(path);
    if !path.is_root() {
        key.push(SEPARATOR);
    }
    key
}

/// Returns a key after a directory and everything beneath it, and before all other keys that follow.
pub(crate) fn after_directory(path: &VfsPath) -> String {
    let mut key = file_key(path);
    key.push('\u{2}');
    key
}

/// Decodes the keys of consecutive rows.
///
/// Most rows are siblings of the one before, so the directory is decoded only when it changes.
pub(crate) struct KeyReader {
    /// The key of the directory that holds `path`.
    directory: String,
    /// The last path decoded, initially the root.
    path: VfsPathBuf,
    /// How many times a directory was decoded.
    directories: usize,
}

impl KeyReader {
    pub(crate) fn new() -> Self {
        Self { directory: String::new(), path: VfsPathBuf::root(), directories: 0 }
    }

    /// Returns the last path decoded.
    pub(crate) fn path(&self) -> &VfsPath {
        &self.path
    }

    /// Returns a number that changes when the directory of the last path does.
    pub(crate) fn directories(&self) -> usize {
        self.directories
    }

    /// Decodes a key. Returns the path and whether it is a directory.
    ///
    /// # Errors
    /// As [`RowKey::of`].
    pub(crate) fn read(&mut self, key: &str) -> Result<(&VfsPath, bool)> {
        let (segments, is_directory) = segments(key);
        let (directory, name) = segments.split_at(memrchr(SEPARATOR as u8, segments.as_bytes()).map_or(0, |at| at + 1));
        if self.directory != directory || self.path.set_name(name).is_err() {
            self.path = RowKey::of(key)?.path;
            directory.clone_into(&mut self.directory);
            self.directories += 1;
        }
        Ok((&self.path, is_directory))
    }
}

/// Splits a key into its joined segments, and whether it is the key of a directory.
fn segments(key: &str) -> (&str, bool) {
    key.strip_suffix(SEPARATOR).map_or((key, false), |segments| (segments, true))
}

/// Returns whether a key belongs to a directory, or to a file with one of these names.
pub(crate) fn is_directory_or_named(key: &str, names: &[&str]) -> bool {
    let is_whole = |above: &str| above.is_empty() || above.ends_with(SEPARATOR);
    key.ends_with(SEPARATOR) || names.iter().any(|name| key.strip_suffix(name).is_some_and(is_whole))
}

/// A decoded row key: the file or directory that the row represents.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RowKey {
    /// Its path.
    pub(crate) path: VfsPathBuf,
    /// Whether it is a directory.
    pub(crate) is_directory: bool,
}

impl RowKey {
    /// Decodes a key.
    ///
    /// # Errors
    /// [`Corrupt`](ErrorKind::Corrupt) if the key maps to no path, which means that something else wrote into the namespace.
    pub(crate) fn of(key: &str) -> Result<Self> {
        let (segments, is_directory) = segments(key);
        let mut text = String::with_capacity(segments.len() + 1);
        for segment in segments.split(SEPARATOR) {
            text.push('/');
            text.push_str(segment);
        }
        // A key that parsing would normalize does not belong to a path; neither does the root.
        let is_normal = |path: &VfsPath| !path.is_root() && path.relative().len() == segments.len() && !segments.contains('/');
        match VfsPathBuf::try_from(text) {
            Ok(path) if is_normal(&path) => Ok(Self { path, is_directory }),
            _ => Err(Error::new(
                ErrorKind::Corrupt,
                format!("the row `{}` is not a file of this tree; remove it, or give the tree a namespace of its own", key.escape_debug()),
            )),
        }
    }

    /// Converts the node and its row to an entry of a listing.
    ///
    /// # Errors
    /// [`Corrupt`](ErrorKind::Corrupt) for a file whose record cannot be read.
    pub(crate) fn entry(self, item: &Item) -> Result<Entry> {
        if self.is_directory {
            return Ok(Entry::directory(self.path).with_times(Some(item.created_at), None));
        }
        let record = record(&self.path, item)?;
        let modified_at = modified_at(&record, item);
        Ok(Entry::file(self.path, record.size_bytes, item.version).with_times(Some(item.created_at), Some(modified_at)))
    }
}

/// Decodes the record of a file's row.
///
/// # Errors
/// [`Corrupt`](ErrorKind::Corrupt) if it cannot be decoded.
pub(crate) fn record(path: &VfsPath, item: &Item) -> Result<FileRecord> {
    FileRecord::from_bytes(&item.meta).map_err(|error| error.at(path))
}

/// Returns the body of a file's row. The row must have been read with its body.
///
/// # Errors
/// [`Corrupt`](ErrorKind::Corrupt) if its length differs from the record.
pub(crate) fn body(path: &VfsPath, item: &Item) -> Result<Bytes> {
    let record = record(path, item)?;
    if is_whole(&record, &item.value) { Ok(item.value.clone()) } else { Err(size_mismatch(path, &record, item.value.len() as u64)) }
}

/// Returns whether the body of a file's row has the length that the record states.
pub(crate) fn is_whole(record: &FileRecord, body: &Bytes) -> bool {
    record.size_bytes == body.len() as u64
}

/// Creates the error for a row whose body has `size_bytes` bytes, unlike its record.
pub(crate) fn size_mismatch(path: &VfsPath, record: &FileRecord, size_bytes: u64) -> Error {
    let message = format!("`{path}` was stored with {} bytes and has {size_bytes}; write the file again, or delete it", record.size_bytes);
    Error::new(ErrorKind::Corrupt, message).at(path)
}

/// Creates the error for rows whose directory has no row.
pub(crate) fn orphaned(directory: &VfsPath) -> Error {
    let message = format!("files lie beneath `{directory}`, which is not a directory; create the directory to make them accessible again");
    Error::new(ErrorKind::Corrupt, message).at(directory)
}

/// Returns when the content of a file was last modified.
pub(crate) fn modified_at(record: &FileRecord, item: &Item) -> Timestamp {
    record.modified_at_microseconds.and_then(|microseconds| Timestamp::from_microsecond(microseconds).ok()).unwrap_or(item.modified_at)
}

/// Reads rows with their bodies in one request. If a row is damaged, reads each row by itself, so that the intact ones are still
/// searched.
pub(crate) async fn read_each(store: &dyn Store, tree: &Namespace, keys: &[&str]) -> Result<Vec<Result<Option<Item>>>> {
    match store.get_many(tree, keys, true).await {
        Err(error) if error.kind() == ErrorKind::Corrupt => {}
        read => return Ok(read?.into_iter().map(Ok).collect()),
    }
    let mut items = Vec::with_capacity(keys.len());
    for key in keys {
        items.push(match store.get(tree, key).await {
            Err(error) if error.kind() != ErrorKind::Corrupt => return Err(error),
            read => read,
        });
    }
    Ok(items)
}

/// Returns a page of rows with their bodies, and the keys of the rows whose bodies cannot be read.
pub(crate) async fn read_page(store: &dyn Store, tree: &Namespace, options: &ScanOptions) -> Result<(Scan, Vec<(String, Error)>)> {
    match store.scan(tree, options.clone().with_values(true)).await {
        Err(error) if error.kind() == ErrorKind::Corrupt => {}
        page => return page.map(|page| (page, Vec::new())),
    }
    let mut page = store.scan(tree, options.clone().with_limit(100)).await?;
    let keys: Vec<String> = page.entries.iter().map(|entry| entry.key().to_owned()).collect();
    let borrowed: Vec<&str> = keys.iter().map(String::as_str).collect();
    let read = read_each(store, tree, &borrowed).await?;
    let mut unread = Vec::new();
    page.entries = Vec::new();
    for (key, item) in keys.into_iter().zip(read) {
        match item {
            Ok(item) => page.entries.extend(item.map(ScanEntry::Item)),
            Err(error) => unread.push((key, error)),
        }
    }
    Ok((page, unread))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(text: &str) -> VfsPathBuf {
        VfsPathBuf::parse(text).expect("a legal path")
    }

    #[test]
    fn keys_round_trip_and_sort_like_paths() {
        let paths = ["/a", "/a/b", "/a/b c", "/a b", "/a-b/c", "/a.md", "/ab", "/é/日本", "/~"].map(path);
        let mut keys: Vec<(String, &VfsPathBuf)> = paths.iter().map(|path| (directory_key(path), path)).collect();
        keys.sort();
        assert!(keys.windows(2).all(|pair| pair[0].1 < pair[1].1), "{keys:?}");
        for path in &paths {
            assert_eq!(RowKey::of(&file_key(path)).expect("a key"), RowKey { path: path.clone(), is_directory: false });
            assert_eq!(RowKey::of(&directory_key(path)).expect("a key"), RowKey { path: path.clone(), is_directory: true });
        }
        assert_eq!(file_key(&path("/a/b.md")), "a\u{1}b.md");
    }

    #[test]
    fn after_directory_sorts_between_contents_and_next_sibling() {
        let end = after_directory(&path("/a/b"));
        assert!(directory_key(&path("/a/b")) < end && file_key(&path("/a/b/\u{10FFFF}")) < end);
        assert!(end < file_key(&path("/a/b c")) && end < file_key(&path("/a/b!")));
    }

    #[test]
    fn directory_and_ignore_file_keys_are_recognized() {
        let names = [".gitignore", ".ignore"];
        for (key, expected) in
            [("a\u{1}", true), (".ignore", true), ("a\u{1}.gitignore", true), ("a", false), ("a.ignore", false), ("a\u{1}b", false)]
        {
            assert_eq!(is_directory_or_named(key, &names), expected, "{key:?}");
        }
    }

    const FOREIGN: [&str; 10] =
        ["", "\u{1}", "a\u{1}\u{1}", "a\u{1}\u{1}b", "a/b", "..", "a\nb", "a\u{1}..\u{1}b", "\u{1}a", "a\u{1}.\u{1}"];

    #[test]
    fn keys_of_no_path_are_corrupt() {
        for key in FOREIGN {
            assert_eq!(RowKey::of(key).expect_err("no path").kind(), ErrorKind::Corrupt, "{key:?}");
        }
    }

    #[test]
    fn key_reader_decodes_consecutive_keys_like_single_keys() {
        let legal = ["a", "b", "a\u{1}", "a\u{1}b", "a\u{1}c d", "a\u{1}é", "a\u{1}b\u{1}", "a\u{1}b\u{1}c", "b\u{1}c"];
        let long = "x".repeat(treehold_core::path::SEGMENT_BYTES_MAX + 1);
        let keys: Vec<&str> = legal.into_iter().chain(FOREIGN).chain([long.as_str()]).collect();
        let mut reader = KeyReader::new();
        // Every key after every other key.
        for key in keys.iter().flat_map(|one| keys.iter().flat_map(move |other| [one, other])) {
            let read = reader.read(key).map(|(path, is_directory)| RowKey { path: path.to_owned(), is_directory });
            assert_eq!(read.map_err(|error| error.to_string()), RowKey::of(key).map_err(|error| error.to_string()), "{key:?}");
        }
    }
}
