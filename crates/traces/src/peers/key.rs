//! The API key of another server.

use std::fmt;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use treehold_core::error::{AtHost, Error, ErrorKind, Result};

/// The longest key in a file, in bytes.
const KEY_BYTES_MAX: u64 = 64 << 10;

/// The API key of another server, or where it is. It is read when the first request needs it, and never shown.
#[derive(Clone)]
pub struct ApiKey(Place);

#[derive(Clone)]
enum Place {
    Text(String),
    Variable(String),
    File(PathBuf),
    Read(Arc<dyn Fn() -> Result<String> + Send + Sync>),
}

impl ApiKey {
    /// Uses a text.
    pub fn text(key: impl Into<String>) -> Self {
        Self(Place::Text(key.into()))
    }

    /// Reads the key with a function.
    pub fn from_fn(read: impl Fn() -> Result<String> + Send + Sync + 'static) -> Self {
        Self(Place::Read(Arc::new(read)))
    }

    /// Parses a key, or the place of one: `env:VARIABLE`, or `file:PATH` with a path relative to `directory`.
    pub fn parse(text: &str, directory: &Path) -> Self {
        match text.split_once(':') {
            Some(("env", variable)) if !variable.is_empty() => Self(Place::Variable(variable.to_owned())),
            Some(("file", file)) if !file.is_empty() => Self(Place::File(directory.join(file))),
            _ => Self::text(text),
        }
    }

    /// Reads the key. Errors reveal neither the key nor the path of its file.
    pub(super) fn read(&self) -> Result<String> {
        let key = match &self.0 {
            Place::Text(key) => key.clone(),
            Place::Variable(variable) => std::env::var(variable).map_err(|_| {
                Error::invalid_argument(format!("the variable `{variable}` is not set; put the API key of the agent into it"))
            })?,
            Place::File(file) => {
                let unread = |error: std::io::Error| {
                    let message = "the file of the agent's API key cannot be read; check `api_key` of the agent";
                    Error::new(ErrorKind::Unavailable, message).with_source(AtHost::new(file).with_cause(error))
                };
                let mut key = String::new();
                std::fs::File::open(file).and_then(|file| file.take(KEY_BYTES_MAX).read_to_string(&mut key)).map_err(unread)?;
                key
            }
            Place::Read(read) => read()?,
        };
        match key.trim() {
            "" => Err(Error::invalid_argument("the API key of the agent is empty; leave it out if none is required")),
            key => Ok(key.to_owned()),
        }
    }
}

impl fmt::Debug for ApiKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ApiKey(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_is_a_text_or_the_place_of_one() {
        let directory = tempfile::tempdir().expect("a directory");
        std::fs::write(directory.path().join("key"), " s3cret \n").expect("written");
        let read = |text: &str| ApiKey::parse(text, directory.path()).read();
        assert_eq!(read("plain").expect("a text"), "plain");
        assert_eq!(read("sk:1").expect("a text"), "sk:1");
        assert_eq!(read("file:key").expect("a file"), "s3cret");
        assert_eq!(read("file:none").expect_err("no file").kind(), ErrorKind::Unavailable);
        assert_eq!(read("env:TREEHOLD_NO_SUCH_KEY").expect_err("not set").kind(), ErrorKind::InvalidArgument);
        assert_eq!(read(" ").expect_err("empty").kind(), ErrorKind::InvalidArgument);
        assert_eq!(format!("{:?}", ApiKey::text("s3cret")), "ApiKey(..)");
    }
}
