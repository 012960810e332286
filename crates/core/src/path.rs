//! Paths of the virtual tree: absolute, UTF-8, `/`-separated, normalized.
//!
//! Text becomes a path once, at the entry point, with [`VfsPath::parse`] (which borrows text that is already normal) or
//! [`VfsPathBuf::parse`]. From there on a [`VfsPath`] needs no further check: it starts with `/`, has no empty, `.` or `..`
//! segment, no control character and no trailing slash, and is never longer than [`PATH_BYTES_MAX`] unless it was made by
//! [`VfsPath::concat`]. The root is `/`.
//!
//! Paths are ordered segment by segment, so everything beneath a directory follows it directly: `/a`, `/a/b`, `/a-b`. This module uses no
//! other module of the crate.

use memchr::memrchr;
use ref_cast::{RefCastCustom, ref_cast_custom};
use std::borrow::{Borrow, Cow};
use std::cell::RefCell;
use std::cmp::Ordering;
use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

/// The longest path in bytes.
pub const PATH_BYTES_MAX: usize = 4096;

/// The longest segment of a path in bytes.
pub const SEGMENT_BYTES_MAX: usize = 255;

/// Why some text is not a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum InvalidPath {
    /// The text is empty.
    Empty,
    /// The text does not start with `/`.
    Relative,
    /// A segment is `..`, which paths of a virtual tree cannot have.
    Parent,
    /// The text contains NUL or another control character.
    Control,
    /// A segment is longer than [`SEGMENT_BYTES_MAX`].
    LongSegment,
    /// The path is longer than [`PATH_BYTES_MAX`].
    Long,
    /// The text is not UTF-8.
    NotUtf8,
}

impl fmt::Display for InvalidPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => f.write_str("the path is empty; name an absolute path such as `/notes.md`"),
            Self::Relative => f.write_str("the path is not absolute; start it with `/`"),
            Self::Parent => f.write_str("the path holds a `..` segment; name the target by its absolute path"),
            Self::Control => f.write_str("the path holds a control character; remove it"),
            Self::LongSegment => write!(f, "a name in the path is over {SEGMENT_BYTES_MAX} bytes; shorten it"),
            Self::Long => write!(f, "the path is over {PATH_BYTES_MAX} bytes; shorten it"),
            Self::NotUtf8 => f.write_str("the path is not UTF-8; rename the file"),
        }
    }
}

impl std::error::Error for InvalidPath {}

/// A borrowed, normalized path.
///
/// ```
/// use treehold_core::VfsPath;
///
/// let path = VfsPath::parse("/memories//notes/./a.md")?;
/// assert_eq!(path.as_str(), "/memories/notes/a.md");
/// assert_eq!(path.name(), "a.md");
/// assert!(VfsPath::parse("/memories/../etc").is_err());
/// assert!(VfsPath::parse("/src/foo..bar/[...slug].tsx").is_ok());
/// # Ok::<(), treehold_core::path::InvalidPath>(())
/// ```
#[derive(PartialEq, Eq, Hash, RefCastCustom)]
#[repr(transparent)]
pub struct VfsPath(str);

/// An owned, normalized path.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct VfsPathBuf(String);

impl VfsPath {
    #[ref_cast_custom]
    const fn wrap(text: &str) -> &Self;

    /// The root, `/`.
    pub const ROOT: &'static Self = Self::wrap("/");

    /// Parses text: collapses `//` and `/./`, and drops a trailing `/`. Borrows the text if it is normal already.
    ///
    /// Cost: one pass over the text.
    ///
    /// # Errors
    /// [`InvalidPath`] for relative or empty text, a `..` segment, a control character, or text that is too long.
    pub fn parse(text: &str) -> Result<Cow<'_, Self>, InvalidPath> {
        if is_plain(text) {
            return Ok(Cow::Borrowed(Self::wrap(text)));
        }
        if text.is_empty() {
            return Err(InvalidPath::Empty);
        }
        if !text.starts_with('/') {
            return Err(InvalidPath::Relative);
        }
        if text.chars().any(char::is_control) {
            return Err(InvalidPath::Control);
        }
        let mut normal = true;
        for (index, segment) in text[1..].split('/').enumerate() {
            match segment {
                "" if index == 0 && text.len() == 1 => {}
                "" | "." => normal = false,
                ".." => return Err(InvalidPath::Parent),
                long if long.len() > SEGMENT_BYTES_MAX => return Err(InvalidPath::LongSegment),
                _ => {}
            }
        }
        if normal {
            if text.len() > PATH_BYTES_MAX {
                return Err(InvalidPath::Long);
            }
            return Ok(Cow::Borrowed(Self::wrap(text)));
        }
        let mut path = VfsPathBuf(String::with_capacity(text.len()));
        for segment in text.split('/').filter(|segment| !matches!(*segment, "" | ".")) {
            path.0.push('/');
            path.0.push_str(segment);
        }
        if path.0.is_empty() {
            path.0.push('/');
        }
        if path.0.len() > PATH_BYTES_MAX {
            return Err(InvalidPath::Long);
        }
        Ok(Cow::Owned(path))
    }

    /// Borrows the path as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns whether this is `/`.
    pub fn is_root(&self) -> bool {
        self.0.len() == 1
    }

    /// Returns the last segment, or empty text for the root.
    pub fn name(&self) -> &str {
        &self.0[memrchr(b'/', self.0.as_bytes()).map_or(0, |slash| slash + 1)..]
    }

    /// Returns the directory that contains this path, or `None` for the root.
    pub fn parent(&self) -> Option<&Self> {
        if self.is_root() {
            return None;
        }
        match self.0.rfind('/') {
            Some(0) | None => Some(Self::ROOT),
            Some(slash) => Some(Self::wrap(&self.0[..slash])),
        }
    }

    /// Returns the segments from the root down. The root has none.
    pub fn segments(&self) -> impl DoubleEndedIterator<Item = &str> {
        self.0[1..].split('/').filter(|segment| !segment.is_empty())
    }

    /// Returns the number of segments: 0 for the root.
    pub fn depth(&self) -> usize {
        if self.is_root() { 0 } else { self.0.bytes().filter(|byte| *byte == b'/').count() }
    }

    /// Returns every directory above this path, starting with the root and excluding the path itself.
    pub fn ancestors(&self) -> impl Iterator<Item = &Self> {
        let end = if self.is_root() { 0 } else { self.0.len() };
        self.0[..end].match_indices('/').map(|(slash, _)| if slash == 0 { Self::ROOT } else { Self::wrap(&self.0[..slash]) })
    }

    /// Returns whether `prefix` is this path or a directory above it. Compares whole segments.
    pub fn starts_with(&self, prefix: &Self) -> bool {
        self.strip_prefix(prefix).is_some()
    }

    /// Returns the rest of the path beneath `prefix`, as a path of its own: `/mem/a.md` minus `/mem` is `/a.md`, minus itself
    /// `/`.
    ///
    /// Borrows. Cost: one comparison of the prefix.
    pub fn strip_prefix(&self, prefix: &Self) -> Option<&Self> {
        if prefix.is_root() {
            return Some(self);
        }
        match self.0.strip_prefix(&prefix.0)? {
            "" => Some(Self::ROOT),
            rest if rest.starts_with('/') => Some(Self::wrap(rest)),
            _ => None,
        }
    }

    /// Returns the path without its leading slash, as in patterns and archives. Empty for the root.
    pub fn relative(&self) -> &str {
        &self.0[1..]
    }

    /// Appends a whole path: `/mem` and `/a/b.md` make `/mem/a/b.md`.
    ///
    /// The result may be longer than [`PATH_BYTES_MAX`]. Only paths shown to callers are; stored paths were parsed at an entry
    /// point.
    pub fn concat(&self, rest: &Self) -> VfsPathBuf {
        if self.is_root() {
            return rest.to_owned();
        }
        if rest.is_root() {
            return self.to_owned();
        }
        let mut text = String::with_capacity(self.0.len() + rest.0.len());
        text.push_str(&self.0);
        text.push_str(&rest.0);
        VfsPathBuf(text)
    }

    /// Appends one name.
    ///
    /// # Errors
    /// [`InvalidPath`] if `name` is not a legal segment.
    pub fn child(&self, name: &str) -> Result<VfsPathBuf, InvalidPath> {
        check_name(name)?;
        let base = if self.is_root() { "" } else { &self.0 };
        if base.len() + 1 + name.len() > PATH_BYTES_MAX {
            return Err(InvalidPath::Long);
        }
        let mut text = String::with_capacity(base.len() + 1 + name.len());
        text.push_str(base);
        text.push('/');
        text.push_str(name);
        Ok(VfsPathBuf(text))
    }
}

impl VfsPathBuf {
    /// Parses text into an owned path, by the rules of [`VfsPath::parse`].
    ///
    /// # Errors
    /// As [`VfsPath::parse`].
    pub fn parse(text: impl AsRef<str>) -> Result<Self, InvalidPath> {
        VfsPath::parse(text.as_ref()).map(Cow::into_owned)
    }

    /// Returns the root, `/`.
    pub fn root() -> Self {
        VfsPath::ROOT.to_owned()
    }

    /// Replaces the last segment, so that a loop over siblings need not rebuild the path of their directory.
    ///
    /// # Errors
    /// [`InvalidPath`] if `name` is not a legal segment, and for the root. The path is then unchanged.
    pub fn set_name(&mut self, name: &str) -> Result<(), InvalidPath> {
        check_name(name)?;
        let end = self.0.len() - self.name().len();
        if self.is_root() {
            return Err(InvalidPath::Empty);
        }
        if end + name.len() > PATH_BYTES_MAX {
            return Err(InvalidPath::Long);
        }
        self.0.truncate(end);
        self.0.push_str(name);
        Ok(())
    }

    /// Returns the text.
    pub fn into_string(self) -> String {
        self.0
    }
}

impl Deref for VfsPathBuf {
    type Target = VfsPath;

    fn deref(&self) -> &VfsPath {
        VfsPath::wrap(&self.0)
    }
}

impl Borrow<VfsPath> for VfsPathBuf {
    fn borrow(&self) -> &VfsPath {
        self
    }
}

impl AsRef<VfsPath> for VfsPathBuf {
    fn as_ref(&self) -> &VfsPath {
        self
    }
}

impl AsRef<VfsPath> for VfsPath {
    fn as_ref(&self) -> &VfsPath {
        self
    }
}

/// Checks that some text is one legal segment.
fn check_name(name: &str) -> Result<(), InvalidPath> {
    match name {
        "" | "." => Err(InvalidPath::Empty),
        ".." => Err(InvalidPath::Parent),
        _ if name.len() > SEGMENT_BYTES_MAX => Err(InvalidPath::LongSegment),
        // Nearly all names consist of plain characters, which are fastest to check as bytes.
        _ if name.bytes().all(|byte| matches!(byte, b' '..=b'.' | b'0'..=b'~')) => Ok(()),
        _ if name.contains('/') || name.chars().any(char::is_control) => Err(InvalidPath::Control),
        _ => Ok(()),
    }
}

/// Returns whether some text is one legal segment.
pub fn is_name(text: &str) -> bool {
    check_name(text).is_ok()
}

/// Returns whether some text is already a normalized path of plain ASCII characters, as nearly all stored paths are.
fn is_plain(text: &str) -> bool {
    let bytes = text.as_bytes();
    if !(2..=PATH_BYTES_MAX).contains(&bytes.len()) || bytes[0] != b'/' {
        return false;
    }
    let is_legal = |segment: &[u8]| !matches!(segment, b"" | b"." | b"..") && segment.len() <= SEGMENT_BYTES_MAX;
    let mut start = 1;
    for (at, byte) in bytes.iter().enumerate().skip(1) {
        match byte {
            b'/' if is_legal(&bytes[start..at]) => start = at + 1,
            b'/' | ..0x20 | 0x7f.. => return false,
            _ => {}
        }
    }
    is_legal(&bytes[start..])
}

/// A path with shared ownership: cloning copies a pointer.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct SharedPath(Arc<str>);

impl From<&VfsPath> for SharedPath {
    fn from(path: &VfsPath) -> Self {
        Self(Arc::from(&path.0))
    }
}

impl SharedPath {
    /// Creates a path from stored text, or returns `None` if the text is not normalized.
    pub fn of_normal(text: &str) -> Option<Self> {
        match VfsPath::parse(text) {
            Ok(Cow::Borrowed(path)) => Some(Self::from(path)),
            _ => None,
        }
    }
}

impl Deref for SharedPath {
    type Target = VfsPath;

    fn deref(&self) -> &VfsPath {
        VfsPath::wrap(&self.0)
    }
}

impl fmt::Debug for SharedPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        VfsPath::fmt(self, f)
    }
}

impl ToOwned for VfsPath {
    type Owned = VfsPathBuf;

    fn to_owned(&self) -> VfsPathBuf {
        VfsPathBuf(self.0.to_owned())
    }
}

impl From<&VfsPath> for VfsPathBuf {
    fn from(path: &VfsPath) -> Self {
        path.to_owned()
    }
}

impl TryFrom<&str> for VfsPathBuf {
    type Error = InvalidPath;

    fn try_from(text: &str) -> Result<Self, InvalidPath> {
        Self::parse(text)
    }
}

impl TryFrom<String> for VfsPathBuf {
    type Error = InvalidPath;

    /// Keeps the text if it is already normal.
    fn try_from(text: String) -> Result<Self, InvalidPath> {
        match VfsPath::parse(&text)? {
            Cow::Owned(path) => Ok(path),
            Cow::Borrowed(_) => Ok(Self(text)),
        }
    }
}

impl std::str::FromStr for VfsPathBuf {
    type Err = InvalidPath;

    fn from_str(text: &str) -> Result<Self, InvalidPath> {
        Self::parse(text)
    }
}

impl PartialEq<str> for VfsPath {
    fn eq(&self, other: &str) -> bool {
        &self.0 == other
    }
}

impl PartialEq<&str> for VfsPathBuf {
    fn eq(&self, other: &&str) -> bool {
        self.0 == *other
    }
}

/// Compares segment by segment: `/` sorts before every other character.
impl Ord for VfsPath {
    fn cmp(&self, other: &Self) -> Ordering {
        let (left, right) = (self.0.as_bytes(), other.0.as_bytes());
        match left.iter().zip(right).position(|(a, b)| a != b) {
            None => left.len().cmp(&right.len()),
            Some(at) => {
                let key = |byte: u8| if byte == b'/' { 0 } else { byte };
                // `/` alone is a prefix of every other path, so the comparison by length above has handled it.
                key(left[at]).cmp(&key(right[at]))
            }
        }
    }
}

impl PartialOrd for VfsPath {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for VfsPathBuf {
    fn cmp(&self, other: &Self) -> Ordering {
        VfsPath::cmp(self, other)
    }
}

impl PartialOrd for VfsPathBuf {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl fmt::Display for VfsPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl fmt::Debug for VfsPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

impl fmt::Display for VfsPathBuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl fmt::Debug for VfsPathBuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

impl serde::Serialize for VfsPath {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}

impl serde::Serialize for VfsPathBuf {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}

impl schemars::JsonSchema for VfsPathBuf {
    fn schema_name() -> Cow<'static, str> {
        "Path".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({"type": "string", "pattern": "^/", "maxLength": PATH_BYTES_MAX, "description": "an absolute path"})
    }
}

impl<'de> serde::Deserialize<'de> for VfsPathBuf {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = Cow::<'de, str>::deserialize(deserializer)?;
        Self::parse(&*text).map_err(|invalid| {
            let error = serde::de::Error::custom(invalid);
            REFUSED.with_borrow_mut(|refused| *refused = Some(invalid));
            error
        })
    }
}

thread_local! {
    /// The last path rejected while deserializing on this thread. Serde errors carry only text, so the kind is passed on here.
    static REFUSED: RefCell<Option<InvalidPath>> = const { RefCell::new(None) };
}

/// Deserializes data that may contain paths. If a path made it fail, returns the reason next to the error.
pub fn reading<T, E>(read: impl FnOnce() -> Result<T, E>) -> Result<T, (E, Option<InvalidPath>)> {
    REFUSED.take();
    read().map_err(|error| (error, REFUSED.take()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Result<String, InvalidPath> {
        VfsPath::parse(text).map(|path| path.as_str().to_owned())
    }

    #[test]
    fn parse_normalizes_paths() {
        for (text, normal) in [
            ("/", "/"),
            ("//", "/"),
            ("/.", "/"),
            ("/a", "/a"),
            ("/a/", "/a"),
            ("//a///b//", "/a/b"),
            ("/./a/././b/.", "/a/b"),
            ("/foo..bar", "/foo..bar"),
            ("/...", "/..."),
            ("/[...slug]/..a/b..", "/[...slug]/..a/b.."),
            ("/ a /b c", "/ a /b c"),
            ("/é/日本語/🙂", "/é/日本語/🙂"),
            ("/~/x:y\\z", "/~/x:y\\z"),
        ] {
            assert_eq!(parsed(text).as_deref(), Ok(normal), "{text:?}");
        }
    }

    #[test]
    fn parse_rejects_illegal_paths() {
        let long = format!("/{}", "x".repeat(256));
        let deep = "/abcdefg".repeat(513);
        for (text, error) in [
            ("", InvalidPath::Empty),
            ("a", InvalidPath::Relative),
            ("./a", InvalidPath::Relative),
            ("/..", InvalidPath::Parent),
            ("/a/../b", InvalidPath::Parent),
            ("/a/..", InvalidPath::Parent),
            ("/a\0b", InvalidPath::Control),
            ("/a\nb", InvalidPath::Control),
            ("/a\u{7f}", InvalidPath::Control),
            ("/a\u{85}", InvalidPath::Control),
            (&long, InvalidPath::LongSegment),
            (&deep, InvalidPath::Long),
        ] {
            assert_eq!(parsed(text), Err(error), "{text:?}");
        }
        assert!(parsed(&format!("/{}", "x".repeat(255))).is_ok());
    }

    #[test]
    fn of_normal_accepts_only_normalized_paths() {
        for text in ["/a", "/a/b.md", "/é/日本語", "/foo..bar", "/...", "/ a"] {
            assert_eq!(SharedPath::of_normal(text).map(|path| path.as_str().to_owned()).as_deref(), Some(text));
        }
        let long = format!("/{}", "x".repeat(256));
        for text in ["", "a", "/a/", "//a", "/./a", "/a/..", "/a\0", "/a\u{85}", "/é/", &long, &"/abcdefg".repeat(513)] {
            assert!(SharedPath::of_normal(text).is_none(), "{text:?}");
        }
    }

    #[test]
    fn prefixes_match_whole_segments() {
        let path = |text: &str| VfsPathBuf::parse(text).expect("a legal path");
        let strip = |of: &str, prefix: &str| path(of).strip_prefix(&path(prefix)).map(|rest| rest.as_str().to_owned());
        assert_eq!(strip("/mem/a.md", "/mem").as_deref(), Some("/a.md"));
        assert_eq!(strip("/mem", "/mem").as_deref(), Some("/"));
        assert_eq!(strip("/memories", "/mem"), None);
        assert_eq!(strip("/a", "/").as_deref(), Some("/a"));
        assert_eq!(strip("/", "/").as_deref(), Some("/"));
        assert_eq!(strip("/", "/a"), None);
    }

    #[test]
    fn ancestors_parent_and_segments_agree() {
        let path = VfsPathBuf::parse("/a/b/c").expect("a legal path");
        assert_eq!(path.ancestors().map(VfsPath::as_str).collect::<Vec<_>>(), ["/", "/a", "/a/b"]);
        assert_eq!(path.parent().map(VfsPath::as_str), Some("/a/b"));
        assert_eq!(path.segments().collect::<Vec<_>>(), ["a", "b", "c"]);
        assert_eq!((path.depth(), VfsPath::ROOT.depth()), (3, 0));
        assert_eq!(VfsPath::ROOT.ancestors().count(), 0);
        assert_eq!(VfsPath::ROOT.segments().count(), 0);
        assert_eq!(VfsPath::ROOT.name(), "");
        assert_eq!(path.concat(VfsPath::ROOT), "/a/b/c");
        assert_eq!(VfsPath::ROOT.child("x").expect("a legal name"), "/x");
    }

    #[test]
    fn paths_are_ordered_by_segment() {
        let mut paths =
            ["/a-b", "/a/b", "/a", "/", "/a/b/c", "/a.b", "/a/b-c", "/b"].map(|text| VfsPathBuf::parse(text).expect("a legal path"));
        paths.sort();
        assert_eq!(paths.each_ref().map(|path| path.as_str()), ["/", "/a", "/a/b", "/a/b/c", "/a/b-c", "/a-b", "/a.b", "/b"]);
    }
}
