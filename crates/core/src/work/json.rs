//! Writing values as JSON: in place if they are short, otherwise on a blocking thread.

use super::size;
use super::{LARGE, advance, run};
use crate::error::{Error, ErrorKind, Result};
use serde::Serialize;
use std::io;

/// Returns whether writing a value as JSON is large work, by the lengths of its strings and the number of its parts. Cost: at most that of
/// [`IN_PLACE_BYTES`](super::IN_PLACE_BYTES).
pub fn is_large_json<T: Serialize + ?Sized>(value: &T) -> bool {
    size::is_large(value)
}

/// Writes a value as JSON. A long one is written on a blocking thread, which stops when the caller is gone.
///
/// # Errors
/// [`Internal`](ErrorKind::Internal) for a value that JSON cannot represent, such as a map whose keys are not strings, and the errors of
/// [`run`].
pub async fn to_json<T: Serialize + Send + 'static>(value: T) -> Result<Vec<u8>> {
    let json = if is_large_json(&value) { run(LARGE, move |_| written(&value)).await? } else { serde_json::to_vec(&value) };
    json.map_err(|error| Error::new(ErrorKind::Internal, "the answer cannot be written as JSON").with_source(error))
}

fn written<T: Serialize>(value: &T) -> serde_json::Result<Vec<u8>> {
    let mut json = Vec::new();
    serde_json::to_writer(Advancing(&mut json), value)?;
    Ok(json)
}

/// A writer that reports its progress, so that the work ends with its caller.
struct Advancing<'a>(&'a mut Vec<u8>);

impl io::Write for Advancing<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        advance(bytes.len());
        self.0.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
