//! What a compaction asks of its host.

use crate::state::Message;
use async_trait::async_trait;
use treehold_core::error::Result;

/// Summarises messages, usually by a model.
#[async_trait]
pub trait Summarizer: Send + Sync {
    /// Returns a summary of messages, oldest first. One of them may be the [summary](super::is_summary) of an earlier compaction, which
    /// the new one replaces. See [`prompt_text`](super::prompt_text) for a text to send to a model.
    ///
    /// # Errors
    /// Any. The context then stays as it is.
    async fn summarize(&self, messages: &[Message]) -> Result<String>;
}

/// Extracts what should outlive the messages, such as long-term memories.
#[async_trait]
pub trait Flush: Send + Sync {
    /// Reads messages before a compaction replaces them. Summaries of earlier compactions are not among them. After a compaction that
    /// failed or was interrupted, the next one passes the same messages again.
    ///
    /// # Errors
    /// Any. The compaction goes on; its report has the error.
    async fn flush(&self, messages: &[Message]) -> Result<()>;
}

/// Keeps elsewhere what leaves the context.
#[async_trait]
pub trait Offload: Send + Sync {
    /// Keeps messages before a compaction replaces them, and returns where to read them, if that is of use to the model. Summaries of
    /// earlier compactions are not among them. After a compaction that failed or was interrupted, the next one passes the same messages
    /// again: recognise them by their ids.
    ///
    /// # Errors
    /// Any. The context then stays as it is.
    async fn keep_messages(&self, messages: &[Message]) -> Result<Option<String>>;

    /// Writes the text of a tool's result to a file, and returns the path where the model can read it. `path` is relative, and depends
    /// on the call and the text alone: writing it twice writes the same.
    ///
    /// # Errors
    /// Any. The context then stays as it is.
    async fn keep_tool_result(&self, path: &str, text: &str) -> Result<String>;
}
