//! A view for ranked search, which reads every selected file by its path: it reads messages many at a time.

use super::find::MESSAGES_AT_ONCE;
use super::place::{Place, message_name};
use super::{TraceFiles, render};
use crate::id::TraceAddress;
use crate::model::Message;
use async_trait::async_trait;
use std::fmt;
use tokio::sync::Mutex;
use treehold_core::error::{Error, Result};
use treehold_core::ops::{FileRead, ReadOptions};
use treehold_core::path::VfsPath;
use treehold_tree::backend::Backend;
use treehold_tree::forward_backend;

/// The traces for one search. Holds the messages that were read last.
#[derive(Debug)]
pub(super) struct Recalled<'a> {
    files: &'a TraceFiles,
    page: Mutex<Option<(TraceAddress, Vec<Message>)>>,
}

impl<'a> Recalled<'a> {
    pub(super) fn new(files: &'a TraceFiles) -> Self {
        Self { files, page: Mutex::default() }
    }

    /// Returns a message, with the ones after it for the next calls.
    async fn message(&self, address: &TraceAddress, sequence: u64) -> Result<Option<Message>> {
        let find = |messages: &[Message]| {
            let at = messages.binary_search_by_key(&sequence, |message| message.sequence).ok()?;
            Some(messages[at].clone())
        };
        let mut page = self.page.lock().await;
        if let Some((of, messages)) = &*page
            && of == address
            && let Some(found) = find(messages)
        {
            return Ok(Some(found));
        }
        let read = self.files.page(address, sequence - 1, MESSAGES_AT_ONCE).await?;
        let found = find(&read.messages);
        *page = Some((address.clone(), read.messages));
        Ok(found)
    }
}

impl fmt::Display for Recalled<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.files.fmt(f)
    }
}

#[async_trait]
impl Backend for Recalled<'_> {
    forward_backend! { self => self.files; capabilities, stat, ls, glob, grep, search, apply, review }

    async fn read(&self, path: &VfsPath, options: &ReadOptions) -> Result<FileRead> {
        let Some(Place::Message(address, sequence, name)) = Place::of(path) else { return self.files.read(path, options).await };
        let read = async {
            let found = self.message(&address, sequence).await?.filter(|message| message_name(message) == name);
            render::message(&found.ok_or_else(|| Error::not_found(path))?)?.read(options).await
        };
        read.await.map_err(|error| error.at(path))
    }
}
