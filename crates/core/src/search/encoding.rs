//! Decodes content that declares its encoding by a byte order mark.

use crate::ops::Encoding;
use bytes::Bytes;
use encoding_rs::{CoderResult, Decoder, Encoding as Decodes, UTF_8};

/// How many bytes suffice to recognize a byte order mark.
const MARK_BYTES: usize = 3;

/// How many bytes are read before decoding.
const RAW_BYTES: usize = 64 << 10;

/// Returns the text of some content. Content without a byte order mark is returned as is, without a copy.
pub(super) fn decoded(content: &Bytes, encoding: Encoding) -> Bytes {
    match mark(content, encoding) {
        None => content.clone(),
        Some((decodes, length)) if decodes == UTF_8 => content.slice(length..),
        Some((decodes, length)) => {
            let text = decodes.decode_without_bom_handling(&content[length..]).0;
            Bytes::from(text.into_owned().into_bytes())
        }
    }
}

/// Returns whether content that starts like this must be decoded, so that its raw bytes do not tell whether it is binary.
pub(crate) fn is_decoded(start: &[u8], encoding: Encoding) -> bool {
    mark(start, encoding).is_some_and(|(decodes, _)| decodes != UTF_8)
}

/// Returns whether content starts with a byte order mark.
pub(crate) fn starts_with_mark(start: &[u8], encoding: Encoding) -> bool {
    mark(start, encoding).is_some()
}

fn mark(start: &[u8], encoding: Encoding) -> Option<(&'static Decodes, usize)> {
    match encoding {
        Encoding::Bytes => None,
        Encoding::Auto => Decodes::for_bom(start),
    }
}

/// Decodes content while it is read.
pub struct Decoded<R> {
    read: R,
    encoding: Encoding,
    state: State,
    /// Bytes that were read but not decoded yet.
    raw: Vec<u8>,
    ended: bool,
}

enum State {
    /// Not yet checked for a byte order mark.
    Unknown,
    Plain,
    Decodes(Decoder),
    /// Everything was decoded.
    Over,
}

impl<E, R: FnMut(&mut Vec<u8>) -> Result<usize, E>> Decoded<R> {
    /// Starts decoding. `read` appends to the spare capacity of a buffer and returns the number of bytes read, 0 at the end.
    pub fn new(read: R, encoding: Encoding) -> Self {
        Self { read, encoding, state: State::Unknown, raw: Vec::new(), ended: false }
    }

    /// Appends text to a buffer and returns the number of bytes written, 0 at the end.
    pub fn read(&mut self, buffer: &mut Vec<u8>) -> Result<usize, E> {
        if matches!(self.state, State::Unknown) {
            self.start()?;
        }
        match &mut self.state {
            State::Unknown | State::Over => Ok(0),
            State::Plain if self.raw.is_empty() => (self.read)(buffer),
            State::Plain => {
                let start = self.raw.drain(..self.raw.len().min(buffer.capacity() - buffer.len()));
                let length = start.len();
                buffer.extend(start);
                Ok(length)
            }
            State::Decodes(_) => self.decode(buffer),
        }
    }

    fn start(&mut self) -> Result<(), E> {
        if self.encoding != Encoding::Bytes {
            self.raw.reserve(RAW_BYTES);
            while !self.ended && self.raw.len() < MARK_BYTES {
                self.ended = (self.read)(&mut self.raw)? == 0;
            }
        }
        self.state = match mark(&self.raw, self.encoding) {
            None => State::Plain,
            Some((decodes, length)) => {
                self.raw.drain(..length);
                if decodes == UTF_8 { State::Plain } else { State::Decodes(decodes.new_decoder_without_bom_handling()) }
            }
        };
        Ok(())
    }

    fn decode(&mut self, buffer: &mut Vec<u8>) -> Result<usize, E> {
        // Without room for a character the decoder would make no progress.
        buffer.reserve(64);
        let start = buffer.len();
        while let State::Decodes(decoder) = &mut self.state {
            if self.raw.is_empty() && !self.ended {
                self.raw.reserve(RAW_BYTES);
                self.ended = (self.read)(&mut self.raw)? == 0;
            }
            buffer.resize(buffer.capacity(), 0);
            let (result, read, written, _) = decoder.decode_to_utf8(&self.raw, &mut buffer[start..], self.ended);
            buffer.truncate(start + written);
            self.raw.drain(..read);
            if self.ended && result == CoderResult::InputEmpty {
                self.state = State::Over;
            }
            if written > 0 {
                return Ok(written);
            }
        }
        Ok(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn in_parts(content: &[u8], encoding: Encoding, part: usize, room: usize) -> Vec<u8> {
        let mut left = content;
        let mut decoded = Decoded::new(
            |buffer: &mut Vec<u8>| {
                let (now, later) = left.split_at(left.len().min(part).min(buffer.capacity() - buffer.len()));
                buffer.extend_from_slice(now);
                left = later;
                Ok::<_, std::convert::Infallible>(now.len())
            },
            encoding,
        );
        let mut text = Vec::new();
        loop {
            let mut buffer = Vec::with_capacity(room);
            match decoded.read(&mut buffer) {
                Ok(0) => return text,
                Ok(_) => text.extend_from_slice(&buffer),
                Err(never) => match never {},
            }
        }
    }

    proptest! {
        #[test]
        fn decoding_in_parts_equals_decoding_whole(
            mark in prop::sample::select(vec![&b"\xff\xfe"[..], b"\xfe\xff", b"\xef\xbb\xbf", b"\xef\xbb", b"\xff", b""]),
            rest in prop::collection::vec(prop_oneof![any::<u8>(), Just(0), Just(0xd8), Just(b'\n')], 0..80),
            part in 1..9_usize,
            room in 1..90_usize,
            encoding in prop::sample::select(vec![Encoding::Bytes, Encoding::Auto]),
        ) {
            let content = Bytes::from([mark, &rest].concat());
            prop_assert_eq!(in_parts(&content, encoding, part, room), decoded(&content, encoding));
        }
    }

    #[test]
    fn byte_order_mark_selects_encoding() {
        for (content, text) in [
            (&b"\xff\xfef\0\xe9\0"[..], "fé"),
            (b"\xfe\xff\0f\0\xe9", "fé"),
            (b"\xef\xbb\xbff\xc3\xa9", "fé"),
            (b"f\0", "f\0"),
            (b"\xff\xfe", ""),
            (b"\xff\xfea\0b", "a\u{fffd}"),
            (b"", ""),
        ] {
            assert_eq!(decoded(&Bytes::copy_from_slice(content), Encoding::Auto), text, "{content:?}");
            assert_eq!(decoded(&Bytes::copy_from_slice(content), Encoding::Bytes), content);
        }
    }
}
