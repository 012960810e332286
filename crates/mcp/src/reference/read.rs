//! Reading: whole text files or their first or last lines, several files at once, and media.

use super::arguments::Arguments;
use super::paths::Allowed;
use super::{Answer, Refused, failed, text};
use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use bytes::Bytes;
use serde_json::{Value, json};
use treehold_core::ops::{ReadOptions, StatOptions};
use treehold_core::path::VfsPath;
use treehold_core::work;
use treehold_tree::backend::Backend;

/// The most bytes that one call reads: of the largest file that is read whole, and of several files together.
const READ_BYTES_MAX: u64 = 64 << 20;

pub(super) async fn content(tree: &dyn Backend, path: &VfsPath, call: &str) -> Result<Bytes, Refused> {
    content_within(tree, path, call, READ_BYTES_MAX).await
}

async fn content_within(tree: &dyn Backend, path: &VfsPath, call: &str, bytes_max: u64) -> Result<Bytes, Refused> {
    let options = ReadOptions::new().with_bytes_max(bytes_max);
    tree.read(path, &options).await.map(|read| read.content).map_err(|error| failed(&error, call, path))
}

/// Decodes content to text as the reference server does.
pub(super) fn decoded(content: &[u8]) -> String {
    String::from_utf8_lossy(content).into_owned()
}

/// Converts content: on a blocking thread if it is long.
async fn converted<T: Send + 'static>(content: Bytes, convert: impl FnOnce(Bytes) -> T + Send + 'static) -> Result<T, Refused> {
    let cost = content.len() as u64;
    work::run(cost, move |_| convert(content)).await.map_err(|error| Refused(error.message().to_owned()))
}

pub(super) async fn text_file(tree: &dyn Backend, allowed: &Allowed, arguments: &Arguments) -> Answer {
    let path = allowed.path(tree, arguments.text("path")).await?;
    // Zero counts as absent, as in JavaScript.
    let asked = |name: &str| arguments.number(name).filter(|count| *count != 0.0);
    // For a negative count the result is empty, without reading the file.
    let nothing = async |call: &str| match tree.stat(&path, &StatOptions::new()).await {
        Ok(_) => Ok(String::new()),
        Err(error) => Err(failed(&error, call, &path)),
    };
    let shown = match (asked("head"), asked("tail")) {
        (Some(count), None) if count < 0.0 => nothing("open").await?,
        (None, Some(count)) if count < 0.0 => nothing("stat").await?,
        (Some(_), Some(_)) => return Err(Refused("Cannot specify both head and tail parameters simultaneously".to_owned())),
        (Some(count), None) => converted(content(tree, &path, "open").await?, move |content| head(&decoded(&content), count)).await?,
        (None, Some(count)) => converted(content(tree, &path, "stat").await?, move |content| tail(&decoded(&content), count)).await?,
        (None, None) => converted(content(tree, &path, "open").await?, |content| decoded(&content)).await?,
    };
    Ok(vec![text(shown)])
}

/// Returns the first lines, without the terminator of the last one.
fn head(content: &str, count: f64) -> String {
    let count = count.ceil() as usize;
    let content = content.strip_suffix('\n').unwrap_or(content);
    content.split('\n').take(count).collect::<Vec<_>>().join("\n")
}

/// Returns the last lines. The empty text after a final line break counts as a line.
fn tail(content: &str, count: f64) -> String {
    let content = content.replace("\r\n", "\n");
    let lines: Vec<&str> = content.split('\n').collect();
    let first = lines.len().saturating_sub((count.trunc() as usize).max(1));
    lines[first..].join("\n")
}

pub(super) async fn multiple_files(tree: &dyn Backend, allowed: &Allowed, arguments: &Arguments) -> Answer {
    let (mut parts, mut bytes_left) = (Vec::new(), READ_BYTES_MAX);
    for asked in arguments.texts("paths") {
        let read = async {
            let path = allowed.path(tree, asked).await?;
            content_within(tree, &path, "open", bytes_left).await
        };
        let read = match read.await {
            Ok(content) => {
                bytes_left -= content.len() as u64;
                Ok(content)
            }
            Err(Refused(message)) => Err(message),
        };
        parts.push((asked.to_owned(), read));
    }
    let shown = |(asked, read): (String, Result<Bytes, String>)| match read {
        Ok(content) => format!("{asked}:\n{}\n", decoded(&content)),
        Err(message) => format!("{asked}: Error - {message}"),
    };
    let cost = READ_BYTES_MAX - bytes_left;
    let joined = work::run(cost, move |_| parts.into_iter().map(shown).collect::<Vec<_>>().join("\n---\n")).await;
    Ok(vec![text(joined.map_err(|error| Refused(error.message().to_owned()))?)])
}

/// The extensions that the reference server knows; anything else is a blob.
const MEDIA: [(&str, &str); 11] = [
    ("bmp", "image/bmp"),
    ("flac", "audio/flac"),
    ("gif", "image/gif"),
    ("jpeg", "image/jpeg"),
    ("jpg", "image/jpeg"),
    ("mp3", "audio/mpeg"),
    ("ogg", "audio/ogg"),
    ("png", "image/png"),
    ("svg", "image/svg+xml"),
    ("wav", "audio/wav"),
    ("webp", "image/webp"),
];

pub(super) async fn media_file(tree: &dyn Backend, allowed: &Allowed, arguments: &Arguments) -> Answer {
    let path = allowed.path(tree, arguments.text("path")).await?;
    let data = converted(content(tree, &path, "open").await?, |content| BASE64.encode(content)).await?;
    // A leading dot does not start an extension.
    let extension = path.name().get(1..).and_then(|rest| rest.rsplit_once('.')).map(|(_, extension)| extension.to_ascii_lowercase());
    let known = extension.and_then(|extension| MEDIA.iter().find(|(known, _)| *known == extension)).map(|(_, media)| *media);
    let block: Value = match known {
        Some(media) if media.starts_with("image/") => json!({"type": "image", "data": data, "mimeType": media}),
        Some(media) => json!({"type": "audio", "data": data, "mimeType": media}),
        None => {
            let uri = super::super::uri::of(&path).replacen("vfs://", "file://", 1);
            json!({"type": "resource", "resource": {"uri": uri, "mimeType": "application/octet-stream", "blob": data}})
        }
    };
    Ok(vec![block])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn head_and_tail_return_first_and_last_lines() {
        assert_eq!(
            (head("a\nb\n", 5.0), head("a\nb", 1.0), head("a\n\nb", 1.5), head("a", -1.0)),
            ("a\nb".into(), "a".into(), "a\n".into(), String::new())
        );
        assert_eq!(
            (tail("a\nb\n", 1.0), tail("a\nb\n", 2.0), tail("a\r\nb", 9.0), tail("", 3.0)),
            (String::new(), "b\n".into(), "a\nb".into(), String::new())
        );
    }
}
