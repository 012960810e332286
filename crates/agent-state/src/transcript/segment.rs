//! Segments: immutable files of entries, one line each, as object stores hold transcripts.
//!
//! The name of a segment says which entries it holds, so a segment that was written never changes. An export continues after the last
//! segment; what it writes depends only on the log and on where it starts.

use super::{APPEND_BYTES_MAX, Appended, ENTRIES_MAX, TranscriptEntry, Transcripts};
use crate::owner::{check_limit, check_name};
use bytes::Bytes;
use treehold_core::error::{Error, Result};
use treehold_core::escape::{escape_bytes, is_unreserved};
use treehold_core::json::Json;
use treehold_core::work;

/// How many entries an export reads at once.
const PAGE: usize = 100;

/// Once it has this many bytes, a segment ends.
const SEGMENT_BYTES: usize = 8 << 20;

/// A file with entries of a transcript.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct TranscriptSegment {
    /// Where it belongs: `{tenant}/{agent}/{session}/events/{first}-{last}-{writer}.jsonl`, with percent-encoded ids.
    pub path: String,
    /// The position of its first entry.
    pub first: u64,
    /// The position of its last entry. The next segment starts after it.
    pub last: u64,
    /// The entries, one line each.
    pub content: Bytes,
}

impl Transcripts {
    /// Returns the segment that starts after a position, or `None` if there are no more entries. It has at most `entries_max` entries, and
    /// ends once it has 8 MiB. `writer` is the last part of its name.
    ///
    /// Cost: one round trip for each 100 entries and for each entry that is kept aside.
    ///
    /// # Errors
    /// [`InvalidArgument`](treehold_core::ErrorKind::InvalidArgument) for a bad writer or an `entries_max` that is not 1 to
    /// [`ENTRIES_MAX`]. Otherwise as [`Transcripts::read`] and [`Transcripts::body`].
    pub async fn segment(&self, session: &str, after: Option<u64>, writer: &str, entries_max: usize) -> Result<Option<TranscriptSegment>> {
        check_name("writer of the segment", writer)?;
        check_limit(entries_max, ENTRIES_MAX)?;
        let (mut content, mut count, mut first, mut last) = (String::new(), 0, None, after);
        'pages: loop {
            let page = self.read(session, last, PAGE.min(entries_max - count)).await?;
            for entry in &page.entries {
                content.push_str(&self.body(session, entry).await?.on_one_line());
                content.push('\n');
                first = first.or(Some(entry.position));
                last = Some(entry.position);
                count += 1;
                if content.len() >= SEGMENT_BYTES {
                    break 'pages;
                }
            }
            if page.next.is_none() || count == entries_max {
                break;
            }
        }
        let (Some(first), Some(last)) = (first, last) else { return Ok(None) };
        let [tenant, agent, session, writer] =
            [self.owner.tenant(), self.owner.agent(), session, writer].map(|id| escape_bytes(id.as_bytes(), is_unreserved));
        let path = format!("{tenant}/{agent}/{session}/events/{first:020}-{last:020}-{writer}.jsonl");
        Ok(Some(TranscriptSegment { path, first, last, content: content.into() }))
    }

    /// Appends the entries of a segment. Importing a segment again adds nothing. Cost: that of an append for each 1,000 entries or 16 MiB.
    ///
    /// # Errors
    /// [`InvalidArgument`](treehold_core::ErrorKind::InvalidArgument), with the number of the line, for a line that is not an entry; the
    /// lines before it may have been appended. Otherwise as [`Transcripts::append`].
    pub async fn import_segment(&self, session: &str, content: &[u8]) -> Result<Appended> {
        let text = std::str::from_utf8(content).map_err(|error| Error::invalid_argument("the segment is not UTF-8").with_source(error))?;
        let (mut done, mut entries, mut bytes) = (Appended::default(), Vec::new(), 0);
        for (number, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
            work::step().await;
            let entry = Json::parse(line).and_then(TranscriptEntry::parse).map_err(|error| {
                let message = format!("line {} of the segment is not an entry: {}", number + 1, error.message());
                error.with_message(message)
            })?;
            if entries.len() == ENTRIES_MAX || bytes + line.len() > APPEND_BYTES_MAX {
                self.import(session, &mut entries, &mut done).await?;
                bytes = 0;
            }
            bytes += line.len();
            entries.push(entry);
        }
        self.import(session, &mut entries, &mut done).await?;
        Ok(done)
    }

    async fn import(&self, session: &str, entries: &mut Vec<TranscriptEntry>, done: &mut Appended) -> Result<()> {
        let appended = self.append(session, entries).await?;
        entries.clear();
        done.added += appended.added;
        done.repeated += appended.repeated;
        Ok(())
    }
}
