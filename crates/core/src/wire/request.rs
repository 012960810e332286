//! Requests of reading operations. Their options are flat, so that the same fields work in a query string and in a body.

use crate::error::{Error, Result};
use crate::ops::{
    Capabilities, CaseMode, Encoding, GlobOptions, GrepOptions, GrepOutput, LsOptions, OnFailure, ReadOptions, ReadRange, SearchMerge,
    SearchOptions, SearchScope, Spelling, StatOptions,
};
use crate::path::{VfsPath, VfsPathBuf};
use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The most entries, matches or hits in one response, whatever the request says.
pub const LIMIT_MAX: usize = 100_000;

/// Which part of a file to read: lines or bytes, but not both. Default: all of it.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
#[non_exhaustive]
pub struct ReadRequest {
    /// The first line of a window, from 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub offset: Option<usize>,
    /// The most lines in the window.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<usize>,
    /// The first byte of a range, from 0. Past the end of the file, the range is empty.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub byte_offset: Option<u64>,
    /// The most bytes in the range.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub byte_limit: Option<u64>,
    /// The most bytes to return. A larger result fails with `too_large`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes_max: Option<u64>,
    /// Refuses with `permission_denied` to follow host links in the path. Default false.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub refuse_links: bool,
}

impl ReadRequest {
    /// Creates a request from options.
    pub fn new(options: &ReadOptions) -> Self {
        let mut request = Self { bytes_max: Some(options.bytes_max), refuse_links: options.refuse_links, ..Self::default() };
        match options.range {
            ReadRange::Whole => {}
            ReadRange::Lines { offset, limit } => (request.offset, request.limit) = (Some(offset), Some(limit)),
            ReadRange::Bytes { offset, limit } => (request.byte_offset, request.byte_limit) = (Some(offset), Some(limit)),
        }
        request
    }

    /// Converts the request to options.
    ///
    /// # Errors
    /// [`InvalidArgument`](crate::error::ErrorKind::InvalidArgument) if both lines and bytes are requested.
    pub fn options(&self) -> Result<ReadOptions> {
        let lines = self.offset.is_some() || self.limit.is_some();
        let bytes = self.byte_offset.is_some() || self.byte_limit.is_some();
        let mut options = match (lines, bytes) {
            (true, true) => return Err(Error::invalid_argument("a read takes either lines or bytes; leave one of them out")),
            (true, false) => ReadOptions::lines(self.offset.unwrap_or(0), self.limit.unwrap_or(usize::MAX)),
            (false, true) => ReadOptions::bytes(self.byte_offset.unwrap_or(0), self.byte_limit.unwrap_or(u64::MAX)),
            (false, false) => ReadOptions::new(),
        };
        if let Some(bytes_max) = self.bytes_max {
            options = options.with_bytes_max(bytes_max);
        }
        Ok(options.with_refuse_links(self.refuse_links))
    }
}

/// Looks up one path.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct StatRequest {
    /// The path. Default `/`.
    #[serde(default = "root")]
    pub path: VfsPathBuf,
    /// Refuses with `permission_denied` to follow host links in the path. Default false.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub refuse_links: bool,
}

impl StatRequest {
    /// Creates a request from options.
    pub fn new(path: &VfsPath, options: &StatOptions) -> Self {
        Self { path: path.to_owned(), refuse_links: options.refuse_links }
    }

    /// Converts the request to options.
    pub fn options(&self) -> StatOptions {
        StatOptions::new().with_refuse_links(self.refuse_links)
    }
}

/// Lists a directory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
#[non_exhaustive]
pub struct LsRequest {
    /// The directory. Default `/`.
    pub path: VfsPathBuf,
    /// The most entries. Default 10,000.
    #[schemars(range(min = 1, max = LIMIT_MAX))]
    pub limit: usize,
    /// The last name of the previous page: the `cursor` of a truncated response.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
    /// Reports what cannot be listed and continues instead of failing. Default false.
    pub partial: bool,
    /// Refuses with `permission_denied` to follow host links in the path. Default false.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub refuse_links: bool,
}

impl Default for LsRequest {
    fn default() -> Self {
        Self::new(VfsPath::ROOT, &LsOptions::new())
    }
}

impl LsRequest {
    /// Creates a request from options.
    pub fn new(path: &VfsPath, options: &LsOptions) -> Self {
        Self {
            path: path.to_owned(),
            limit: options.limit,
            cursor: options.start_after.clone(),
            partial: is_partial(options.on_failure),
            refuse_links: options.refuse_links,
        }
    }

    /// Converts the request to options.
    ///
    /// # Errors
    /// [`InvalidArgument`](crate::error::ErrorKind::InvalidArgument) for a limit out of bounds.
    pub fn options(self) -> Result<LsOptions> {
        let mut options = LsOptions::new()
            .with_limit(checked(self.limit)?)
            .with_on_failure(on_failure(self.partial))
            .with_refuse_links(self.refuse_links);
        options.start_after = self.cursor;
        Ok(options)
    }
}

/// Lists everything beneath a directory, level by level.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
#[non_exhaustive]
pub struct TreeRequest {
    /// The directory. Default `/`.
    pub path: VfsPathBuf,
    /// The number of levels. Default 3.
    #[schemars(range(min = 1, max = 1000))]
    pub depth: usize,
    /// The most entries. Default 1,000.
    #[schemars(range(min = 1, max = LIMIT_MAX))]
    pub limit: usize,
}

impl Default for TreeRequest {
    fn default() -> Self {
        Self { path: root(), depth: 3, limit: 1_000 }
    }
}

impl TreeRequest {
    /// Checks the bounds.
    ///
    /// # Errors
    /// [`InvalidArgument`](crate::error::ErrorKind::InvalidArgument) for a depth or limit out of bounds.
    pub fn checked(self) -> Result<Self> {
        if self.depth == 0 || self.depth > 1_000 {
            return Err(Error::invalid_argument(format!("the depth {} is not between 1 and 1000", self.depth)));
        }
        checked(self.limit)?;
        Ok(self)
    }
}

/// Finds paths that match a pattern.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct GlobRequest {
    /// The pattern, such as `**/*.md`. Without `/` it matches names at any depth.
    pub pattern: String,
    /// The root of the search. Default `/`.
    #[serde(default = "root")]
    pub path: VfsPathBuf,
    /// Ignores case. Default false.
    #[serde(default)]
    pub case_insensitive: bool,
    /// Finds directories too. Default false.
    #[serde(default)]
    pub directories: bool,
    /// The most entries. Default 10,000.
    #[serde(default = "limit")]
    #[schemars(range(min = 1, max = LIMIT_MAX))]
    pub limit: usize,
    /// Where the previous page ended: the `cursor` of a truncated response.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cursor: Option<VfsPathBuf>,
    /// Includes names that start with a dot. Default false.
    #[serde(default)]
    pub hidden: bool,
    /// Lets a pattern without `/`, or no pattern, find names in directories whose names start with a dot. Default false.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub hidden_directories: bool,
    /// Includes files that `.gitignore` files exclude. Default false.
    #[serde(default)]
    pub ignored: bool,
    /// Reports what cannot be searched and continues instead of failing. Default false.
    #[serde(default)]
    pub partial: bool,
    /// The path between the caller's root and the searched path, for a tree mounted in another. Default `/`.
    #[serde(default = "root")]
    pub base: VfsPathBuf,
    /// Subtrees to skip.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub prune: Vec<VfsPathBuf>,
    /// Refuses with `permission_denied` to follow host links in the path. Default false.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub refuse_links: bool,
}

impl GlobRequest {
    /// Creates a request from options. A guard is not included; the caller must apply it.
    pub fn new(path: &VfsPath, options: &GlobOptions) -> Self {
        Self {
            pattern: options.pattern.clone(),
            path: path.to_owned(),
            case_insensitive: options.case_insensitive,
            directories: options.directories,
            limit: options.limit,
            cursor: options.start_after.clone(),
            hidden: options.scope.hidden,
            hidden_directories: options.scope.hidden_directories,
            ignored: options.scope.ignored,
            partial: is_partial(options.scope.on_failure),
            base: options.scope.base.clone(),
            prune: options.scope.prune.clone(),
            refuse_links: options.scope.refuse_links,
        }
    }

    /// Converts the request to options.
    ///
    /// # Errors
    /// [`InvalidArgument`](crate::error::ErrorKind::InvalidArgument) for a limit out of bounds.
    pub fn options(self) -> Result<GlobOptions> {
        let mut options = GlobOptions::new(self.pattern)
            .with_case_insensitive(self.case_insensitive)
            .with_directories(self.directories)
            .with_limit(checked(self.limit)?);
        options.start_after = self.cursor;
        options.scope = scope(self.hidden, self.ignored, self.partial, self.base, self.prune, self.refuse_links);
        options.scope.hidden_directories = self.hidden_directories;
        Ok(options)
    }
}

/// Finds lines that match a pattern.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct GrepRequest {
    /// The text to find, or the regular expression if `regex` is set.
    pub pattern: String,
    /// The root of the search. Default `/`.
    #[serde(default = "root")]
    pub path: VfsPathBuf,
    /// Treats the pattern as a regular expression. Default false.
    #[serde(default)]
    pub regex: bool,
    /// How to compare upper and lower case. Default `sensitive`.
    #[serde(default)]
    pub case: CaseMode,
    /// Matches whole words only. Default false.
    #[serde(default)]
    pub word: bool,
    /// Matches whole lines only. Default false.
    #[serde(default)]
    pub whole_line: bool,
    /// Finds the lines that do not match. Default false.
    #[serde(default)]
    pub invert: bool,
    /// Lets a match span lines. Default false.
    #[serde(default)]
    pub multiline: bool,
    /// The number of lines to return before each match. Default 0.
    #[serde(default)]
    pub before: usize,
    /// The number of lines to return after each match. Default 0.
    #[serde(default)]
    pub after: usize,
    /// Searches only files that match one of these globs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub include: Vec<String>,
    /// Skips files that match one of these globs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub exclude: Vec<String>,
    /// Searches only files of these types, such as `rust`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub types: Vec<String>,
    /// Searches binary files too. Default false.
    #[serde(default)]
    pub binary: bool,
    /// How to decode content. Default `bytes`.
    #[serde(default)]
    pub encoding: Encoding,
    /// Skips files with more bytes than this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size_max_bytes: Option<u64>,
    /// What to return for each file. Default `content`.
    #[serde(default)]
    pub output: GrepOutput,
    /// The most matches. Default 10,000.
    #[serde(default = "limit")]
    #[schemars(range(min = 1, max = LIMIT_MAX))]
    pub limit: usize,
    /// The most matches in one file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file_limit: Option<usize>,
    /// Where the previous page ended: the `cursor` of a truncated response.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
    /// Includes names that start with a dot. Default false.
    #[serde(default)]
    pub hidden: bool,
    /// Lets a pattern without `/`, or no pattern, find names in directories whose names start with a dot. Default false.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub hidden_directories: bool,
    /// Includes files that `.gitignore` files exclude. Default false.
    #[serde(default)]
    pub ignored: bool,
    /// Reports what cannot be searched and continues instead of failing. Default false.
    #[serde(default)]
    pub partial: bool,
    /// The path between the caller's root and the searched path, for a tree mounted in another. Default `/`.
    #[serde(default = "root")]
    pub base: VfsPathBuf,
    /// Subtrees to skip.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub prune: Vec<VfsPathBuf>,
    /// Refuses with `permission_denied` to follow host links in the path. Default false.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub refuse_links: bool,
}

impl GrepRequest {
    /// Creates a request from options. A guard is not included; the caller must apply it.
    pub fn new(path: &VfsPath, options: &GrepOptions) -> Self {
        Self {
            pattern: options.pattern.clone(),
            path: path.to_owned(),
            regex: options.regex,
            case: options.case,
            word: options.word,
            whole_line: options.whole_line,
            invert: options.invert,
            multiline: options.multiline,
            before: options.before,
            after: options.after,
            include: options.include.clone(),
            exclude: options.exclude.clone(),
            types: options.types.clone(),
            binary: options.binary,
            encoding: options.encoding,
            size_max_bytes: options.size_max_bytes,
            output: options.output,
            limit: options.matches_max,
            file_limit: options.file_matches_max,
            cursor: options.start_after.as_ref().map(ToString::to_string),
            hidden: options.scope.hidden,
            hidden_directories: options.scope.hidden_directories,
            ignored: options.scope.ignored,
            partial: is_partial(options.scope.on_failure),
            base: options.scope.base.clone(),
            prune: options.scope.prune.clone(),
            refuse_links: options.scope.refuse_links,
        }
    }

    /// Converts the request to options.
    ///
    /// # Errors
    /// [`InvalidArgument`](crate::error::ErrorKind::InvalidArgument) for a limit out of bounds or an invalid cursor.
    pub fn options(self) -> Result<GrepOptions> {
        let mut options = GrepOptions::new(self.pattern);
        options.regex = self.regex;
        options.case = self.case;
        options.word = self.word;
        options.whole_line = self.whole_line;
        options.invert = self.invert;
        options.multiline = self.multiline;
        options.before = self.before;
        options.after = self.after;
        options.include = self.include;
        options.exclude = self.exclude;
        options.types = self.types;
        options.binary = self.binary;
        options.encoding = self.encoding;
        options.size_max_bytes = self.size_max_bytes;
        options.output = self.output;
        options.matches_max = checked(self.limit)?;
        options.file_matches_max = self.file_limit;
        options.start_after = self.cursor.map(|cursor| cursor.parse()).transpose()?;
        options.scope = scope(self.hidden, self.ignored, self.partial, self.base, self.prune, self.refuse_links);
        options.scope.hidden_directories = self.hidden_directories;
        Ok(options)
    }
}

/// Ranks files by the words of a query.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct SearchRequest {
    /// The words to search for.
    pub query: String,
    /// The root of the search. Default `/`.
    #[serde(default = "root")]
    pub path: VfsPathBuf,
    /// Searches only files that match one of these globs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub include: Vec<String>,
    /// Skips files that match one of these globs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub exclude: Vec<String>,
    /// Searches only files modified at this time or later.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub modified_since: Option<Timestamp>,
    /// Searches only files modified before this time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub modified_before: Option<Timestamp>,
    /// The most files. Default 10.
    #[serde(default = "hits")]
    #[schemars(range(min = 1, max = LIMIT_MAX))]
    pub limit: usize,
    /// The number of best files to skip. Default 0.
    #[serde(default)]
    pub offset: usize,
    /// The most snippets of a file. Default 3.
    #[serde(default = "snippets")]
    #[schemars(range(max = 100))]
    pub snippets_max: usize,
    /// Whether words that are spelled nearly like one of the query are found too: `"lenient"`, if no file contains the word; `"exact"`;
    /// or `{"near": [...]}` for these words. Default `"lenient"`.
    #[serde(default, skip_serializing_if = "is_lenient")]
    pub spelling: Spelling,
    /// For a caller that ranks several trees together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub merge: Option<SearchMerge>,
    /// Includes names that start with a dot. Default false.
    #[serde(default)]
    pub hidden: bool,
    /// Lets a pattern without `/`, or no pattern, find names in directories whose names start with a dot. Default false.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub hidden_directories: bool,
    /// Includes files that `.gitignore` files exclude. Default false.
    #[serde(default)]
    pub ignored: bool,
    /// Reports what cannot be searched and continues instead of failing. Default false.
    #[serde(default)]
    pub partial: bool,
    /// The path between the caller's root and the searched path, for a tree mounted in another. Default `/`.
    #[serde(default = "root")]
    pub base: VfsPathBuf,
    /// Subtrees to skip.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub prune: Vec<VfsPathBuf>,
    /// Refuses with `permission_denied` to follow host links in the path. Default false.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub refuse_links: bool,
}

impl SearchRequest {
    /// Creates a request from options. A guard is not included; the caller must apply it.
    pub fn new(path: &VfsPath, options: &SearchOptions) -> Self {
        Self {
            query: options.query.clone(),
            path: path.to_owned(),
            include: options.include.clone(),
            exclude: options.exclude.clone(),
            modified_since: options.modified_since,
            modified_before: options.modified_before,
            limit: options.limit,
            offset: options.offset,
            snippets_max: options.snippets_max,
            spelling: options.spelling.clone(),
            merge: options.merge.clone(),
            hidden: options.scope.hidden,
            hidden_directories: options.scope.hidden_directories,
            ignored: options.scope.ignored,
            partial: is_partial(options.scope.on_failure),
            base: options.scope.base.clone(),
            prune: options.scope.prune.clone(),
            refuse_links: options.scope.refuse_links,
        }
    }

    /// Converts the request to options.
    ///
    /// # Errors
    /// [`InvalidArgument`](crate::error::ErrorKind::InvalidArgument) for a limit out of bounds.
    pub fn options(self) -> Result<SearchOptions> {
        let mut options = SearchOptions::new(self.query)
            .with_limit(checked(self.limit)?)
            .with_offset(self.offset)
            .with_snippets_max(self.snippets_max.min(100));
        options.include = self.include;
        options.exclude = self.exclude;
        options.modified_since = self.modified_since;
        options.modified_before = self.modified_before;
        options.spelling = self.spelling;
        options.merge = self.merge;
        options.scope = scope(self.hidden, self.ignored, self.partial, self.base, self.prune, self.refuse_links);
        options.scope.hidden_directories = self.hidden_directories;
        Ok(options)
    }
}

fn is_lenient(spelling: &Spelling) -> bool {
    *spelling == Spelling::Lenient
}

/// The capabilities of a tree, and the version of its server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[non_exhaustive]
pub struct CapabilitiesReply {
    /// The version of the server program.
    pub version: String,
    /// The capabilities of the tree.
    pub capabilities: Capabilities,
    /// The mount points in the tree.
    pub mounts: Vec<VfsPathBuf>,
}

impl CapabilitiesReply {
    /// Creates the reply.
    pub fn new(capabilities: Capabilities, mounts: Vec<VfsPathBuf>) -> Self {
        Self { version: env!("CARGO_PKG_VERSION").to_owned(), capabilities, mounts }
    }
}

fn root() -> VfsPathBuf {
    VfsPathBuf::root()
}

fn limit() -> usize {
    10_000
}

fn hits() -> usize {
    10
}

fn snippets() -> usize {
    3
}

fn checked(limit: usize) -> Result<usize> {
    if limit == 0 || limit > LIMIT_MAX {
        return Err(Error::invalid_argument(format!(
            "the limit {limit} is not between 1 and {LIMIT_MAX}; use a smaller limit and continue with the cursor"
        )));
    }
    Ok(limit)
}

fn is_partial(on_failure: OnFailure) -> bool {
    on_failure == OnFailure::Partial
}

fn on_failure(partial: bool) -> OnFailure {
    if partial { OnFailure::Partial } else { OnFailure::Fail }
}

fn scope(hidden: bool, ignored: bool, partial: bool, base: VfsPathBuf, prune: Vec<VfsPathBuf>, refuse_links: bool) -> SearchScope {
    SearchScope { hidden, ignored, on_failure: on_failure(partial), base, prune, refuse_links, ..SearchScope::default() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::GrepCursor;

    fn path(text: &str) -> VfsPathBuf {
        VfsPathBuf::parse(text).expect("a legal path")
    }

    fn again<T: Serialize + for<'de> Deserialize<'de>>(request: &T) -> T {
        serde_json::from_slice(&serde_json::to_vec(request).expect("plain data")).expect("its own words")
    }

    #[test]
    fn options_round_trip_through_json() {
        let mut grep = GrepOptions::regex("a|b").with_case(CaseMode::Smart).with_context(1, 2).with_include("*.md").with_type("rust");
        grep = grep
            .with_hidden(true)
            .with_hidden_directories(true)
            .with_on_failure(OnFailure::Partial)
            .with_matches_max(7)
            .with_file_matches_max(2);
        grep = grep.with_output(GrepOutput::Counts).with_encoding(Encoding::Auto).with_size_max_bytes(9).with_multiline(true);
        grep.start_after = Some(GrepCursor { path: path("/a:b"), line: GrepCursor::END });
        grep.scope.base = path("/m");
        grep.scope.prune = vec![path("/x")];
        grep.scope.refuse_links = true;
        assert_eq!(again(&GrepRequest::new(&path("/d"), &grep)).options().expect("legal"), grep);
        let mut glob = GlobOptions::new("**/*.md").with_limit(3).with_directories(true).with_start_after(path("/a")).with_ignored(true);
        glob.scope.hidden_directories = true;
        glob.scope.base = path("/m");
        glob.scope.refuse_links = true;
        assert_eq!(again(&GlobRequest::new(&path("/d"), &glob)).options().expect("legal"), glob);
        let ls = LsOptions::new().with_limit(3).with_start_after("a").with_on_failure(OnFailure::Partial).with_refuse_links(true);
        assert_eq!(again(&LsRequest::new(&path("/d"), &ls)).options().expect("legal"), ls);
        let mut search = SearchOptions::new("words").with_limit(2).with_offset(4).with_snippets_max(1).with_exclude("*.rs");
        search.scope.refuse_links = true;
        search.scope.hidden_directories = true;
        search.spelling = Spelling::Near(vec!["word".to_owned()]);
        search.merge = Some(SearchMerge::new(crate::ops::Corpus::new(1)).with_spare(true));
        assert_eq!(again(&SearchRequest::new(&path("/d"), &search)).options().expect("legal"), search);
        for read in [ReadOptions::new(), ReadOptions::lines(3, 4), ReadOptions::bytes(5, 6).with_bytes_max(7).with_refuse_links(true)] {
            assert_eq!(again(&ReadRequest::new(&read)).options().expect("legal"), read);
        }
        for stat in [StatOptions::new(), StatOptions::new().with_refuse_links(true)] {
            assert_eq!(again(&StatRequest::new(&path("/d"), &stat)).options(), stat);
        }
    }

    #[test]
    fn omitted_fields_have_defaults_of_operation() {
        let grep: GrepRequest = serde_json::from_str(r#"{"pattern": "x"}"#).expect("all other fields are optional");
        assert_eq!(grep.options().expect("legal"), GrepOptions::new("x"));
        let glob: GlobRequest = serde_json::from_str(r#"{"pattern": "x"}"#).expect("all other fields are optional");
        assert_eq!(glob.options().expect("legal"), GlobOptions::new("x"));
        let search: SearchRequest = serde_json::from_str(r#"{"query": "x"}"#).expect("all other fields are optional");
        assert_eq!(search.options().expect("legal"), SearchOptions::new("x"));
        assert!(serde_json::from_str::<GrepRequest>(r#"{"pattern": "x", "regexp": true}"#).is_err());
        for limit in [0, LIMIT_MAX + 1] {
            let ls = LsRequest { limit, ..LsRequest::default() };
            assert!(ls.options().is_err(), "{limit}");
        }
        let both = ReadRequest { offset: Some(1), byte_offset: Some(1), ..ReadRequest::default() };
        assert!(both.options().is_err());
    }
}
