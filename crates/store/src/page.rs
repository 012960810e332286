//! Assembling a page of a scan: logic without I/O that every engine shares.
//!
//! An engine seeks to [`PageBuilder::start`] and offers the builder each live row in key order below
//! [`PageBuilder::end`]. The builder answers with the next step: continue, seek past a group, or stop. So all engines
//! agree on prefixes, groups, cursors and limits.

use super::{Item, Scan, ScanEntry, ScanOptions};
use treehold_core::error::Result;

/// What the engine does after offering a row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Offer the following row.
    Next,
    /// Seek to the first row whose key is at or after this one.
    Seek(String),
    /// Stop: the page is complete.
    End,
}

/// A row on a page, built only once it is known to belong there.
#[derive(Debug)]
pub struct PageRow {
    item: Item,
    /// The length of the body in bytes, if it was left out.
    left_out: Option<u64>,
}

impl PageRow {
    /// Wraps a row whose body of `value_bytes` bytes was left out.
    pub fn without_body(item: Item, value_bytes: u64) -> Self {
        Self { item, left_out: Some(value_bytes) }
    }
}

impl From<Item> for PageRow {
    fn from(item: Item) -> Self {
        Self { item, left_out: None }
    }
}

/// A page under construction.
#[derive(Debug)]
pub struct PageBuilder {
    options: ScanOptions,
    entries: Vec<ScanEntry>,
    value_bytes: usize,
    more: bool,
}

impl PageBuilder {
    /// Starts an empty page.
    pub fn new(options: ScanOptions) -> Self {
        Self { options, entries: Vec::new(), value_bytes: 0, more: false }
    }

    /// Allocates space for up to `rows` entries, unless the scan groups rows and will return fewer.
    pub fn reserve(&mut self, rows: usize) {
        if self.options.delimiter.is_none() {
            self.entries.reserve(rows.min(self.options.limit));
        }
    }

    /// Returns the first key that can be on the page (inclusive); `None` if no key can.
    pub fn start(&self) -> Option<String> {
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

    /// Returns the end of the keys that can be on the page (exclusive); `None` if they are unbounded.
    pub fn end(&self) -> Option<String> {
        prefix_end(&self.options.prefix)
    }

    /// Offers a live row. `item` builds it, with its body if requested, and is called only for rows that go on the page.
    pub fn offer<T: Into<PageRow>>(&mut self, key: &str, item: impl FnOnce(bool) -> Result<T>) -> Result<Step> {
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
        let PageRow { item, left_out } = item(self.options.with_values)?.into();
        let value_bytes = left_out.map_or(item.value.len(), |bytes| usize::try_from(bytes).unwrap_or(usize::MAX));
        self.value_bytes = self.value_bytes.saturating_add(value_bytes);
        self.entries.push(match left_out {
            Some(value_bytes) => ScanEntry::LeftOut { item, value_bytes },
            None => ScanEntry::Item(item),
        });
        Ok(Step::Next)
    }

    /// Returns the finished page.
    pub fn finish(self) -> Scan {
        let Self { options, entries, more, .. } = self;
        let next = more.then(|| match entries.last() {
            Some(entry) => entry.key().to_owned(),
            None => options.start_after.unwrap_or_default(),
        });
        Scan::new(entries, next)
    }

    /// Returns whether the page is full. Any further row only shows that there are more.
    pub fn is_full(&self) -> bool {
        let has_its_bytes = self.options.with_values && !self.entries.is_empty() && self.value_bytes >= self.options.bytes_max;
        self.entries.len() >= self.options.limit || has_its_bytes
    }

    /// Returns the group that a key with the prefix belongs to.
    fn group<'k>(&self, key: &'k str) -> Option<&'k str> {
        let delimiter = self.options.delimiter?;
        let after_prefix = self.options.prefix.len();
        let found = key[after_prefix..].find(delimiter)?;
        Some(&key[..after_prefix + found + delimiter.len_utf8()])
    }
}

/// Returns the least text greater than every text that starts with `prefix`; `None` if there is none, as for an empty
/// prefix.
///
/// UTF-8 sorts bytewise in the order of its characters, so replacing the last character with its successor is enough.
pub fn prefix_end(prefix: &str) -> Option<String> {
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

/// Returns the least text greater than `key`.
pub fn key_after(key: &str) -> String {
    let mut after = String::with_capacity(key.len() + 1);
    after.push_str(key);
    after.push('\0');
    after
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use jiff::Timestamp;
    use treehold_core::ops::Version;

    #[test]
    fn prefix_end_sorts_after_every_text_with_the_prefix() {
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
    fn page_starts_after_its_cursor_or_the_cursors_group() {
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
    fn row_after_a_full_page_only_sets_the_cursor() {
        let mut page = PageBuilder::new(ScanOptions::new().with_limit(1).with_delimiter('/'));
        let item = |key: &'static str| {
            move |_| Ok(Item::new(key, Bytes::new(), Bytes::new(), Version::new(1), Timestamp::UNIX_EPOCH, Timestamp::UNIX_EPOCH))
        };
        assert_eq!(page.offer("a/b", item("a/b")).expect("a step"), Step::Seek("a0".to_owned()));
        assert_eq!(page.offer("b", item("b")).expect("a step"), Step::End);
        let scan = page.finish();
        assert_eq!(scan.entries, [ScanEntry::Group { name: "a/".to_owned(), item: None }]);
        assert_eq!(scan.next.as_deref(), Some("a/"));
    }
}
