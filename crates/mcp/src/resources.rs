//! The tree as resources. Each mount is a resource, with a template for the paths beneath it. Every file can be read and every directory
//! listed.

use super::{media, uri};
use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use rmcp::ErrorData;
use rmcp::model::{
    Annotations, CacheScope, DIRECTORY_MIME_TYPE, ErrorCode, ListResourceTemplatesResult, ListResourcesResult, ReadResourceResult,
    Resource, ResourceContents, ResourceTemplate,
};
use serde_json::json;
use treehold_core::error::{Error, ErrorKind, Result};
use treehold_core::file;
use treehold_core::ops::{Entry, EntryKind, LsOptions, OnFailure, ReadOptions};
use treehold_core::path::{VfsPath, VfsPathBuf};
use treehold_core::work;
use treehold_tree::backend::Backend;

/// The largest file that can be read as a resource, in bytes: a client receives all of it or nothing.
const READ_BYTES_MAX: u64 = 8 << 20;

/// The most directory entries of one response; a cursor continues.
const ENTRIES_MAX: usize = 1_000;

/// Returns every mount as a resource.
pub(super) fn list(mounts: &[VfsPathBuf]) -> ListResourcesResult {
    let resources = mounts.iter().map(|mount| {
        let name = if mount.is_root() { "/" } else { mount.name() };
        Resource::new(uri::of(mount), name).with_description(meaning(mount)).with_mime_type(DIRECTORY_MIME_TYPE)
    });
    ListResourcesResult::with_all_items(resources.collect()).with_ttl_ms(0).with_cache_scope(CacheScope::Private)
}

/// Returns a template for the paths beneath each mount.
pub(super) fn templates(mounts: &[VfsPathBuf]) -> ListResourceTemplatesResult {
    let templates = mounts.iter().map(|mount| {
        let name = format!("files of {mount}");
        ResourceTemplate::new(uri::template_beneath(mount), name).with_description(meaning(mount))
    });
    ListResourceTemplatesResult::with_all_items(templates.collect()).with_ttl_ms(0).with_cache_scope(CacheScope::Private)
}

fn meaning(mount: &VfsPath) -> String {
    if mount.is_root() { "The files of this conversation, and all mounts".to_owned() } else { format!("What is mounted at {mount}") }
}

/// Reads a file, as text if it is text. A directory reads as its entry names, one per line, for clients that cannot list directories.
pub(super) async fn read(tree: &dyn Backend, path: &VfsPath, uri: &str) -> Result<ReadResourceResult> {
    let contents = match tree.read(path, &ReadOptions::new().with_bytes_max(READ_BYTES_MAX)).await {
        Ok(read) => {
            let (path, uri) = (path.to_owned(), uri.to_owned());
            work::run(read.content.len() as u64, move |_| content(&path, &uri, read.content.into())).await?
        }
        Err(error) if error.kind() == ErrorKind::IsDirectory => {
            let listing = tree.ls(path, &LsOptions::new().with_limit(ENTRIES_MAX).with_on_failure(OnFailure::Partial)).await?;
            let mut text: String = listing.entries.iter().map(|entry| format!("{}\n", shown(entry))).collect();
            if listing.truncated.is_some() {
                text.push_str("... and more; read the directory by resources/directory/read\n");
            }
            ResourceContents::text(text, uri)
        }
        Err(error) => return Err(error),
    };
    Ok(ReadResourceResult::new(vec![contents]).with_ttl_ms(0).with_cache_scope(CacheScope::Private))
}

fn content(path: &VfsPath, uri: &str, bytes: Vec<u8>) -> ResourceContents {
    let is_binary = file::is_binary(&bytes);
    match String::from_utf8(bytes) {
        Ok(text) if !is_binary => ResourceContents::text(text, uri).with_mime_type(media::of(path.name(), true)),
        Ok(text) => blob(path, uri, text.as_bytes()),
        Err(error) => blob(path, uri, error.as_bytes()),
    }
}

fn blob(path: &VfsPath, uri: &str, bytes: &[u8]) -> ResourceContents {
    ResourceContents::blob(BASE64.encode(bytes), uri).with_mime_type(media::of(path.name(), false))
}

fn shown(entry: &Entry) -> String {
    if entry.is_directory() { format!("{}/", entry.name()) } else { entry.name().to_owned() }
}

/// Lists the direct children of a directory, starting after the cursor.
pub(super) async fn directory(tree: &dyn Backend, path: &VfsPath, cursor: Option<String>) -> Result<ListResourcesResult> {
    let mut options = LsOptions::new().with_limit(ENTRIES_MAX).with_on_failure(OnFailure::Partial);
    options.start_after = cursor;
    let listing = tree.ls(path, &options).await?;
    let mut result = ListResourcesResult::with_all_items(listing.entries.iter().map(resource).collect())
        .with_ttl_ms(0)
        .with_cache_scope(CacheScope::Private);
    result.next_cursor = listing.truncated.map(|truncation| truncation.cursor);
    Ok(result)
}

/// Converts an entry of a listing to a resource.
fn resource(entry: &Entry) -> Resource {
    let mut resource = Resource::new(uri::of(&entry.path), entry.name());
    match entry.kind {
        EntryKind::Directory => resource.mime_type = Some(DIRECTORY_MIME_TYPE.to_owned()),
        EntryKind::File => {
            resource.mime_type = media::of_name(entry.name()).map(str::to_owned);
            resource.size = Some(entry.size_bytes);
        }
        _ => {}
    }
    if let Some(time) = entry.modified_at {
        let mut annotations = Annotations::default();
        annotations.last_modified = Some(time.to_string());
        resource.annotations = Some(annotations);
    }
    resource
}

/// Converts an error to a protocol error. The code for a missing resource depends on the protocol revision; `rmcp` sets it.
pub(super) fn protocol_error(error: &Error, uri: &str) -> ErrorData {
    let data = Some(json!({"uri": uri, "code": error.kind().code()}));
    let message = error.message().to_owned();
    match error.kind() {
        ErrorKind::NotFound => ErrorData::resource_not_found(message, data),
        ErrorKind::Unavailable | ErrorKind::Deadline | ErrorKind::Corrupt | ErrorKind::Internal => {
            ErrorData::new(ErrorCode::INTERNAL_ERROR, message, data)
        }
        _ => ErrorData::invalid_params(message, data),
    }
}

/// Returns the error for a URI that is not in this tree.
pub(super) fn foreign(uri: &str) -> ErrorData {
    let message = format!("`{uri}` is not a resource of this tree; write `vfs://` and an absolute path, such as `vfs:///notes.md`");
    ErrorData::resource_not_found(message, Some(json!({"uri": uri})))
}

/// Converts an error of a method that requires a directory or a skill. A missing one is an invalid parameter in every revision.
pub(super) fn not_a_directory(error: &Error, uri: &str) -> ErrorData {
    let mut error = protocol_error(error, uri);
    if error.code == ErrorCode::RESOURCE_NOT_FOUND {
        error.code = ErrorCode::INVALID_PARAMS;
    }
    error
}
