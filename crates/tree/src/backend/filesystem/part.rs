//! Reads one part of a file: the lines that start within it.

use bytes::Bytes;
use memchr::memchr;
use rustix::buffer::spare_capacity;
use rustix::fd::OwnedFd;
use rustix::io::{Errno, Result as Host, pread};
use treehold_core::search::{TOGETHER_BYTES_MAX, Unread, Window};

/// How many bytes to read at first beyond a part, to find the end of its last line.
const LINE_BYTES: usize = 1 << 10;

/// Reads a part of a file into a buffer. The parts in order add up to the whole file; a part within a long line is empty.
pub(super) fn read(file: &OwnedFd, number: u64, part_bytes: usize, mut buffer: Vec<u8>) -> Result<Window, Unread<Errno>> {
    buffer.clear();
    let start = number * part_bytes as u64;
    // The preceding byte shows whether a line starts at the start of the part.
    let (from, own) = if number == 0 { (0, part_bytes) } else { (start - 1, part_bytes + 1) };
    let mut ended = fill(file, from, own, &mut buffer).map_err(Unread::Failed)?;
    let last = own - 1;
    let first = match number {
        0 => Some(0),
        // A line that starts after the last byte belongs to the next part.
        _ => memchr(b'\n', &buffer[..last.min(buffer.len())]).map(|at| at + 1),
    };
    let Some(first) = first.filter(|first| *first < buffer.len()) else {
        buffer.clear();
        return Ok(Window::new(Bytes::from(buffer), start as usize));
    };
    let mut looked = last.min(buffer.len());
    let end = loop {
        if let Some(at) = memchr(b'\n', &buffer[looked..]) {
            break looked + at + 1;
        }
        looked = buffer.len();
        if ended {
            break looked;
        }
        if looked > TOGETHER_BYTES_MAX {
            return Err(Unread::TooLong);
        }
        // Most lines are short. A long one is read in steps that grow with it.
        let more = (looked - last).max(LINE_BYTES);
        ended = fill(file, from, looked + more, &mut buffer).map_err(Unread::Failed)?;
    };
    buffer.truncate(end);
    Ok(Window::new(Bytes::from(buffer).slice(first..), from as usize + first))
}

/// Reads until the buffer has `bytes` bytes of the file. Returns whether the file ended before.
fn fill(file: &OwnedFd, from: u64, bytes: usize, buffer: &mut Vec<u8>) -> Host<bool> {
    buffer.reserve_exact(bytes - buffer.len());
    while buffer.len() < bytes {
        let at = from + buffer.len() as u64;
        match pread(file, spare_capacity(buffer), at) {
            Ok(0) => return Ok(true),
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::io::Write;

    fn file(content: &[u8]) -> OwnedFd {
        let mut file = tempfile::tempfile().expect("a file");
        file.write_all(content).expect("written");
        file.into()
    }

    proptest! {
        #[test]
        fn parts_add_up_to_file_and_hold_whole_lines(
            lines in prop::collection::vec(0_usize..40, 0..40),
            is_ended: bool,
            part_bytes in 1_usize..50,
        ) {
            let mut content = lines.iter().map(|length| "x".repeat(*length)).collect::<Vec<_>>().join("\n").into_bytes();
            content.extend(is_ended.then_some(b'\n'));
            let file = file(&content);
            let (mut joined, mut buffer) = (Vec::new(), Vec::new());
            for number in 0..content.len().div_ceil(part_bytes) as u64 {
                let window = read(&file, number, part_bytes, buffer).expect("read");
                let lines = &window.content;
                prop_assert!(lines.is_empty() || window.origin == joined.len());
                joined.extend_from_slice(lines);
                prop_assert!(lines.is_empty() || lines.ends_with(b"\n") || joined.len() == content.len());
                buffer = window.into_buffer().expect("nothing else holds it");
            }
            prop_assert_eq!(joined, content);
        }
    }
}
