//! Splits a content that comes in parts into lines.

/// The longest line that is returned, in bytes.
pub(super) const LINE_BYTES_MAX: usize = 4 << 20;

/// The lines of a content so far.
#[derive(Debug, Default)]
pub(super) struct Lines {
    /// The line that has not ended yet.
    open: Vec<u8>,
    is_too_long: bool,
    /// How many lines ended.
    count: u64,
}

/// A line, or `None` for one over the limit, with its number from 1.
pub(super) type Line = (u64, Option<Vec<u8>>);

impl Lines {
    /// Adds a part, and returns the lines that end in it, without their line feeds.
    pub(super) fn push(&mut self, part: &[u8]) -> Vec<Line> {
        let mut ended = Vec::new();
        for piece in part.split_inclusive(|byte| *byte == b'\n') {
            let text = piece.strip_suffix(b"\n").unwrap_or(piece);
            if self.open.len() + text.len() > LINE_BYTES_MAX {
                self.is_too_long = true;
                self.open = Vec::new();
            }
            if !self.is_too_long {
                self.open.extend_from_slice(text);
            }
            if piece.ends_with(b"\n") {
                ended.extend(self.end());
            }
        }
        ended
    }

    /// Returns the last line, if it lacks its line feed.
    pub(super) fn finish(mut self) -> Option<Line> {
        if self.open.is_empty() && !self.is_too_long { None } else { self.end() }
    }

    fn end(&mut self) -> Option<Line> {
        self.count += 1;
        let line = std::mem::take(&mut self.open);
        Some((self.count, if std::mem::take(&mut self.is_too_long) { None } else { Some(line) }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_the_same_whatever_the_parts() {
        let content = [&b"one\n\ntwo\r\n"[..], &vec![b'x'; LINE_BYTES_MAX + 1], b"\nlast"].concat();
        for size in [1_000_003, content.len()] {
            let mut lines = Lines::default();
            let mut all: Vec<Line> = content.chunks(size).flat_map(|part| lines.push(part)).collect();
            all.extend(lines.finish());
            let expected: [Option<&[u8]>; 5] = [Some(b"one"), Some(b""), Some(b"two\r"), None, Some(b"last")];
            assert_eq!(all.iter().map(|(_, line)| line.as_deref()).collect::<Vec<_>>(), expected);
            assert_eq!(all.iter().map(|(number, _)| *number).collect::<Vec<_>>(), [1, 2, 3, 4, 5]);
        }
        assert!(Lines::default().finish().is_none());
    }
}
