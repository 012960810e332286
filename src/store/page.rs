//! How a page of a scan is put together: pure, shared by every engine.
//!
//! An engine seeks to [`PageBuilder::start`], shows the builder each live row in key order below [`PageBuilder::end`], and
//! does what it answers: the next row, a seek past a group, or the end. So the engines agree on prefixes, groups, cursors
//! and limits by construction.

use super::{Item, Scan, ScanEntry, ScanOptions};
use crate::error::Result;

/// What an engine does after it showed a row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Step {
    /// Shows the row after this one.
    Next,
    /// Shows the first row whose key is this or after it.
    Seek(String),
    /// Stops: the page is complete.
    End,
}

/// A row that stands on a page, made when it is known to.
#[derive(Debug)]
pub(super) struct Taken {
    item: Item,
    /// How long its body is, where that was left out.
    left_out: Option<u64>,
}

impl Taken {
    /// Takes a row whose body of so many bytes was left out.
    #[cfg_attr(not(any(feature = "mysql", feature = "postgres")), allow(dead_code, reason = "other engines return every body"))]
    pub(super) fn without_body(item: Item, value_bytes: u64) -> Self {
        Self { item, left_out: Some(value_bytes) }
    }
}

impl From<Item> for Taken {
    fn from(item: Item) -> Self {
        Self { item, left_out: None }
    }
}

/// A page that is being filled.
#[derive(Debug)]
pub(super) struct PageBuilder {
    options: ScanOptions,
    entries: Vec<ScanEntry>,
    value_bytes: usize,
    more: bool,
}

impl PageBuilder {
    /// Starts an empty page.
    pub(super) fn new(options: ScanOptions) -> Self {
        Self { options, entries: Vec::new(), value_bytes: 0, more: false }
    }

    /// Makes place for what a walk over so many rows brings; a listing meets fewer.
    pub(super) fn reserve(&mut self, rows: usize) {
        if self.options.delimiter.is_none() {
            self.entries.reserve(rows.min(self.options.limit));
        }
    }

    /// Returns the first key that may be on the page (inclusive); none when no key can be.
    pub(super) fn start(&self) -> Option<String> {
        let Some(after) = &self.options.start_after else { return Some(self.options.prefix.clone()) };
        if *after < self.options.prefix {
            return Some(self.options.prefix.clone());
        }
        if !after.starts_with(&self.options.prefix) {
            return None;
        }
        match self.group(after) {
            Some(group) => prefix_end(group),
            None => Some(key_after(after)),
        }
    }

    /// Returns the first key behind all that may be on the page (exclusive); none when there is no such bound.
    pub(super) fn end(&self) -> Option<String> {
        prefix_end(&self.options.prefix)
    }

    /// Takes a live row. `item` makes it, with its body if asked; it is called only for rows that stand on the page.
    pub(super) fn take<T: Into<Taken>>(&mut self, key: &str, item: impl FnOnce(bool) -> Result<T>) -> Result<Step> {
        if self.is_full() {
            self.more = true;
            return Ok(Step::End);
        }
        if let Some(group) = self.group(key) {
            let name = group.to_owned();
            let end = prefix_end(group);
            let item = if key == name { Some(item(false)?.into().item) } else { None };
            self.entries.push(ScanEntry::Group { name, item });
            return Ok(end.map_or(Step::End, Step::Seek));
        }
        let Taken { item, left_out } = item(self.options.with_values)?.into();
        let value_bytes = left_out.map_or(item.value.len(), |bytes| usize::try_from(bytes).unwrap_or(usize::MAX));
        self.value_bytes = self.value_bytes.saturating_add(value_bytes);
        self.entries.push(match left_out {
            Some(value_bytes) => ScanEntry::LeftOut { item, value_bytes },
            None => ScanEntry::Item(item),
        });
        Ok(Step::Next)
    }

    /// Returns the page.
    pub(super) fn finish(self) -> Scan {
        let Self { options, entries, more, .. } = self;
        let next = more.then(|| match entries.last() {
            Some(entry) => entry.key().to_owned(),
            None => options.start_after.unwrap_or_default(),
        });
        Scan::new(entries, next)
    }

    /// Tells whether the page takes no more entries; a row that is left then shows as more.
    pub(super) fn is_full(&self) -> bool {
        let has_its_bytes = self.options.with_values && !self.entries.is_empty() && self.value_bytes >= self.options.bytes_max;
        self.entries.len() >= self.options.limit || has_its_bytes
    }

    /// Returns the group that a key with the prefix lies in.
    fn group<'k>(&self, key: &'k str) -> Option<&'k str> {
        let delimiter = self.options.delimiter?;
        let after_prefix = self.options.prefix.len();
        let found = key[after_prefix..].find(delimiter)?;
        Some(&key[..after_prefix + found + delimiter.len_utf8()])
    }
}

/// Returns the smallest text after every text that starts with `prefix`; none when there is none (an empty prefix).
///
/// UTF-8 sorts bytewise as its characters do, so the last character is replaced by the one after it.
pub(super) fn prefix_end(prefix: &str) -> Option<String> {
    let mut characters = prefix.chars();
    while let Some(last) = characters.next_back() {
        let next = match last {
            '\u{D7FF}' => Some('\u{E000}'),
            _ => char::from_u32(u32::from(last) + 1),
        };
        if let Some(next) = next {
            let mut end = characters.as_str().to_owned();
            end.push(next);
            return Some(end);
        }
    }
    None
}

/// Returns the smallest text after `key`.
pub(super) fn key_after(key: &str) -> String {
    let mut after = String::with_capacity(key.len() + 1);
    after.push_str(key);
    after.push('\0');
    after
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::Version;
    use bytes::Bytes;
    use jiff::Timestamp;

    #[test]
    fn the_end_of_a_prefix_is_behind_all_it_starts() {
        for (prefix, end) in [
            ("", None),
            ("a", Some("b")),
            ("a/", Some("a0")),
            ("a\u{1}", Some("a\u{2}")),
            ("é", Some("ê")),
            ("\u{D7FF}", Some("\u{E000}")),
            ("a\u{10FFFF}", Some("b")),
            ("\u{10FFFF}\u{10FFFF}", None),
        ] {
            assert_eq!(prefix_end(prefix).as_deref(), end, "prefix {prefix:?}");
        }
        assert!("a\u{10FFFF}z" < "b" && "a\u{10FFFF}z".starts_with("a\u{10FFFF}"));
    }

    #[test]
    fn starts_behind_the_cursor_and_behind_its_group() {
        let scan = ScanOptions::new().with_prefix("d/");
        for (options, start) in [
            (scan.clone(), Some("d/")),
            (scan.clone().with_start_after(""), Some("d/")),
            (scan.clone().with_start_after("c"), Some("d/")),
            (scan.clone().with_start_after("d/x"), Some("d/x\0")),
            (scan.clone().with_start_after("d/x/"), Some("d/x/\0")),
            (scan.clone().with_start_after("e"), None),
            (scan.clone().with_delimiter('/').with_start_after("d/x"), Some("d/x\0")),
            (scan.clone().with_delimiter('/').with_start_after("d/"), Some("d/\0")),
            (scan.clone().with_delimiter('/').with_start_after("d/x/"), Some("d/x0")),
            (scan.with_delimiter('/').with_start_after("d/x/y/z"), Some("d/x0")),
        ] {
            assert_eq!(PageBuilder::new(options.clone()).start().as_deref(), start, "{options:?}");
        }
    }

    #[test]
    fn shows_a_row_of_a_full_page_only_as_more() {
        let mut page = PageBuilder::new(ScanOptions::new().with_limit(1).with_delimiter('/'));
        let item = |key: &'static str| {
            move |_| Ok(Item::new(key, Bytes::new(), Bytes::new(), Version::new(1), Timestamp::UNIX_EPOCH, Timestamp::UNIX_EPOCH))
        };
        assert_eq!(page.take("a/b", item("a/b")).expect("a step"), Step::Seek("a0".to_owned()));
        assert_eq!(page.take("b", item("b")).expect("a step"), Step::End);
        let scan = page.finish();
        assert_eq!(scan.entries, [ScanEntry::Group { name: "a/".to_owned(), item: None }]);
        assert_eq!(scan.next.as_deref(), Some("a/"));
    }
}
