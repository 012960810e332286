//! What is asked of a server's tree: each question is one request with a validated answer.

use super::address::encoded;
use super::check::Check;
use super::client::{Answer, Ask, PeerClient};
use super::no_answer;
use http::header::{ETAG, HeaderMap};
use jiff::Timestamp;
use parking_lot::Mutex;
use serde::Serialize;
use serde::de::{DeserializeOwned, IgnoredAny};
use std::collections::HashMap;
use std::sync::{Arc, OnceLock};
use treehold_core::error::{Error, Result};
use treehold_core::ops::{
    ApplyOptions, Capabilities, Change, Changed, Entry, FileRead, GlobOptions, GlobResult, GrepOptions, GrepResult, Listing, LsOptions,
    OpKind, ReadOptions, ReadRange, SearchOptions, SearchResult, StatOptions, Version, Window,
};
use treehold_core::path::VfsPath;
use treehold_core::wire::{
    ApplyReply, ApplyRequest, CapabilitiesReply, GlobRequest, GrepRequest, LsRequest, MODIFIED_HEADER, PREFIX, ReadRequest, SIZE_HEADER,
    SearchRequest, StatRequest, WINDOW_HEADER,
};
use uuid::Uuid;

/// The most bytes of an answer about capabilities.
const CAPABILITIES_BYTES_MAX: u64 = 1 << 20;

/// The whole tree of a server.
#[derive(Debug)]
pub(super) struct RemoteTree {
    client: PeerClient,
    /// The capabilities of the remote tree, once known.
    declared: OnceLock<Capabilities>,
    /// Whether a task is fetching the capabilities.
    asking: Mutex<bool>,
}

/// Returns the path of a resource below `/v1`, with a query.
pub(super) fn path_of<'s>(segments: impl IntoIterator<Item = &'s str>, query: &[(&str, &str)]) -> String {
    let mut path = PREFIX.to_owned();
    for segment in segments {
        path.push('/');
        path.push_str(&encoded(segment));
    }
    for (index, (name, value)) in query.iter().enumerate() {
        path.push(if index == 0 { '?' } else { '&' });
        path.push_str(&in_form(name));
        path.push('=');
        path.push_str(&in_form(value));
    }
    path
}

/// Encodes text as the fields of HTML forms, in which a space is `+`.
fn in_form(text: &str) -> String {
    encoded(text).replace("%20", "+")
}

impl RemoteTree {
    pub(super) fn new(client: PeerClient) -> Self {
        Self { client, declared: OnceLock::new(), asking: Mutex::new(false) }
    }

    pub(super) fn client(&self) -> &PeerClient {
        &self.client
    }

    pub(super) fn peer(&self) -> &str {
        self.client.name()
    }

    /// Returns the capabilities of the remote tree as far as they are known.
    pub(super) fn declared(&self) -> Capabilities {
        let unknown = || Capabilities::new().with_atomic_batch(false).with_symlinks(true).with_indexed(true);
        self.declared.get().cloned().unwrap_or_else(unknown)
    }

    /// Fetches the capabilities of the remote tree.
    pub(super) async fn ask_capabilities(&self) -> Result<Capabilities> {
        let ask = Ask::get(path_of(["capabilities"], &[])).with_bytes_max(CAPABILITIES_BYTES_MAX);
        let reply: CapabilitiesReply = self.client.json(&self.client.ask(&ask).await?)?;
        Ok(self.declared.get_or_init(|| reply.capabilities).clone())
    }

    /// Fetches the capabilities in the background, without delaying the current call.
    pub(super) fn ask_capabilities_beside(self: &Arc<Self>) {
        if self.declared.get().is_some() || std::mem::replace(&mut *self.asking.lock(), true) {
            return;
        }
        let tree = self.clone();
        tokio::spawn(async move {
            if let Err(error) = tree.ask_capabilities().await {
                tracing::debug!(peer = tree.peer(), %error, "the capabilities of the remote tree are not known yet");
            }
            *tree.asking.lock() = false;
        });
    }

    /// Sends a request with a body.
    async fn question<Q: Serialize + Sync, T: DeserializeOwned>(&self, name: &str, question: &Q) -> Result<(T, Answer)> {
        let ask = Ask::post(path_of([name], &[])).with_json(question)?.with_bytes_max(self.client.options().answer_bytes_max);
        let answer = self.client.ask(&ask).await?;
        Ok((self.client.json(&answer)?, answer))
    }

    /// Rejects an answer that parses only because all its fields are optional: the field that names the result must be
    /// present.
    fn check_field(&self, answer: &Answer, field: &str) -> Result<()> {
        let fields: HashMap<String, IgnoredAny> = self.client.json(answer)?;
        if fields.contains_key(field) { Ok(()) } else { Err(no_answer(self.peer(), "unexpected JSON")) }
    }

    fn check(&self) -> Check<'_> {
        Check::new(self.peer())
    }

    pub(super) async fn stat_once(&self, path: &VfsPath, options: &StatOptions) -> Result<Entry> {
        let (entry, _): (Entry, _) = self.question("stat", &StatRequest::new(path, options)).await?;
        self.check().stat(path, &entry)?;
        Ok(entry)
    }

    pub(super) async fn ls_page(&self, path: &VfsPath, options: &LsOptions) -> Result<Listing> {
        let (listing, answer): (Listing, _) = self.question("ls", &LsRequest::new(path, options)).await?;
        self.check().listing(path, options, &listing)?;
        if listing.entries.is_empty() {
            self.check_field(&answer, "entries")?;
        }
        Ok(listing)
    }

    pub(super) async fn glob_page(&self, path: &VfsPath, options: &GlobOptions) -> Result<GlobResult> {
        let (result, answer): (GlobResult, _) = self.question("glob", &GlobRequest::new(path, options)).await?;
        self.check().glob(path, options, &result)?;
        if result.entries.is_empty() {
            self.check_field(&answer, "entries")?;
        }
        Ok(result)
    }

    pub(super) async fn grep_page(&self, path: &VfsPath, options: &GrepOptions) -> Result<GrepResult> {
        let (result, answer): (GrepResult, _) = self.question("grep", &GrepRequest::new(path, options)).await?;
        self.check().grep(path, options, &result)?;
        if result.files.is_empty() {
            self.check_field(&answer, "files")?;
        }
        Ok(result)
    }

    pub(super) async fn search_page(&self, path: &VfsPath, options: &SearchOptions) -> Result<SearchResult> {
        let (result, answer): (SearchResult, _) = self.question("search", &SearchRequest::new(path, options)).await?;
        self.check().search(path, options, &result)?;
        if result.hits.is_empty() {
            self.check_field(&answer, "hits")?;
        }
        Ok(result)
    }

    pub(super) async fn read_once(&self, path: &VfsPath, options: &ReadOptions) -> Result<FileRead> {
        let question = serde_json::to_value(ReadRequest::new(options)).expect("requests always serialize");
        let fields: Vec<(&str, String)> =
            question.as_object().into_iter().flatten().map(|(name, value)| (name.as_str(), value.to_string())).collect();
        let query: Vec<(&str, &str)> = fields.iter().map(|(name, value)| (*name, value.as_str())).collect();
        let asked = path_of(["fs"].into_iter().chain(path.segments()), &query);
        let bytes_max = match options.range {
            ReadRange::Whole | ReadRange::Bytes { .. } => options.bytes_max,
            // One line beyond the limit may still be returned.
            ReadRange::Lines { .. } => options.bytes_max.max(self.client.options().answer_bytes_max),
        };
        let answer = self.client.ask(&Ask::get(asked).with_bytes_max(bytes_max)).await?;
        let headers = &answer.headers;
        let lacks = |what| no_answer(self.peer(), format_args!("content without {what}"));
        let mut read = FileRead::new(answer.body.clone(), version(headers).ok_or_else(|| lacks("its version"))?, None);
        read.size_bytes = header(headers, SIZE_HEADER).ok_or_else(|| lacks("its size"))?;
        read.modified_at = header::<Timestamp>(headers, MODIFIED_HEADER);
        if let ReadRange::Lines { .. } = options.range {
            read.window = Some(window(headers).ok_or_else(|| lacks("its window of lines"))?);
        }
        self.check().read(options, &read)?;
        Ok(read)
    }

    pub(super) async fn apply_once(&self, changes: &[Change], options: &ApplyOptions) -> Result<Vec<Changed>> {
        let ask = Ask::post(path_of(["apply"], &[]))
            .with_json(&ApplyRequest::new(changes, options))?
            .with_key(Uuid::now_v7().to_string())
            .with_bytes_max(self.client.options().answer_bytes_max);
        let answer = self.client.ask(&ask).await?;
        // The changes were applied, whatever the answer says.
        let reply: ApplyReply = self.client.json(&answer).map_err(Error::with_unknown_effect)?;
        self.check().changed(changes, &reply.changed).map_err(Error::with_unknown_effect)?;
        Ok(reply.changed)
    }

    /// Adds the path and operation to an error without them.
    pub(super) fn about(&self, error: Error, path: &VfsPath, operation: OpKind) -> Error {
        let error = if error.path().is_none() { error.at(path) } else { error };
        error.during(operation)
    }
}

fn header<T: std::str::FromStr>(headers: &HeaderMap, name: &str) -> Option<T> {
    headers.get(name)?.to_str().ok()?.parse().ok()
}

/// Parses a strong tag: the version, possibly followed by the compression of the answer.
fn version(headers: &HeaderMap) -> Option<Version> {
    let tag = headers.get(ETAG)?.to_str().ok()?.strip_prefix('"')?.strip_suffix('"')?;
    let tag = ["-gzip", "-br", "-zstd"].into_iter().find_map(|suffix| tag.strip_suffix(suffix)).unwrap_or(tag);
    tag.parse().ok()
}

fn window(headers: &HeaderMap) -> Option<Window> {
    let mut numbers = headers.get(WINDOW_HEADER)?.to_str().ok()?.split(',').map(|number| number.trim().parse().ok());
    let (offset, lines, total_lines) = (numbers.next()??, numbers.next()??, numbers.next()??);
    let fits = usize::checked_add(offset, lines).is_some_and(|end| end <= total_lines);
    (numbers.next().is_none() && fits).then_some(Window { offset, lines, total_lines })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn path_and_query_are_encoded_so_that_they_decode_to_the_same_text() {
        assert_eq!(path_of(["fs", "a b", "%2F", "ü"], &[]), "/v1/fs/a%20b/%252F/%C3%BC");
        assert_eq!(path_of(["events"], &[("prefix", "/a b"), ("thread", "+%20&=")]), "/v1/events?prefix=%2Fa+b&thread=%2B%2520%26%3D");
    }
}
