//! Media types of files: by extension, otherwise by content.

/// The extensions whose media types matter to clients. Other text is `text/plain`.
const TYPES: [(&str, &str); 28] = [
    ("css", "text/css"),
    ("csv", "text/csv"),
    ("flac", "audio/flac"),
    ("gif", "image/gif"),
    ("htm", "text/html"),
    ("html", "text/html"),
    ("jpeg", "image/jpeg"),
    ("jpg", "image/jpeg"),
    ("js", "text/javascript"),
    ("json", "application/json"),
    ("jsonl", "application/jsonl"),
    ("markdown", "text/markdown"),
    ("md", "text/markdown"),
    ("mjs", "text/javascript"),
    ("mp3", "audio/mpeg"),
    ("ogg", "audio/ogg"),
    ("pdf", "application/pdf"),
    ("png", "image/png"),
    ("svg", "image/svg+xml"),
    ("tar", "application/x-tar"),
    ("toml", "application/toml"),
    ("txt", "text/plain"),
    ("wav", "audio/wav"),
    ("webp", "image/webp"),
    ("xml", "application/xml"),
    ("yaml", "application/yaml"),
    ("yml", "application/yaml"),
    ("zip", "application/zip"),
];

/// Returns the media type for an extension, if known.
pub(super) fn of_name(name: &str) -> Option<&'static str> {
    let extension = name.rsplit_once('.')?.1.to_ascii_lowercase();
    TYPES.binary_search_by_key(&extension.as_str(), |(known, _)| known).ok().map(|at| TYPES[at].1)
}

/// Returns the type of a file with this name and content.
pub(super) fn of(name: &str, is_text: bool) -> &'static str {
    let unnamed = if is_text { "text/plain" } else { "application/octet-stream" };
    of_name(name).unwrap_or(unnamed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn media_type_depends_on_extension_then_content() {
        assert!(TYPES.is_sorted_by_key(|(extension, _)| *extension));
        assert_eq!((of("a.MD", true), of("a.rs", true), of("a.rs", false)), ("text/markdown", "text/plain", "application/octet-stream"));
        assert_eq!((of_name("md"), of_name(".md"), of_name("zip.unknown")), (None, Some("text/markdown"), None));
    }
}
