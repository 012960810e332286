//! Reads and copies open files: whole, by byte range, or by a window of lines.

use super::root::OpenFile;
use super::temp::write_all;
use bytes::Bytes;
use rustix::buffer::spare_capacity;
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::{Errno, Result as Host, pread, read};
use treehold_core::error::{Error, Result};
use treehold_core::ops::{FileRead, ReadOptions, ReadRange, Window};
use treehold_core::path::VfsPath;
use treehold_core::text::{self, LineCutter};

/// Up to this size, in bytes, a window of lines is cut from the whole content. Larger files are streamed.
const WHOLE_BYTES_MAX: u64 = 8 << 20;

/// The largest file, in bytes, that is read on the executor thread. The copy costs less than a hop to a blocking thread.
#[cfg(any(target_os = "linux", target_os = "android"))]
const IN_MEMORY_BYTES_MAX: u64 = 64 << 10;

/// The size in bytes of one read when a file is streamed.
const CHUNK_BYTES: usize = 256 << 10;

/// Reads the part of a file that `options` select.
pub(super) fn read_part(path: &VfsPath, file: &OpenFile, options: &ReadOptions, fault: impl Fn(Errno) -> Error) -> Result<FileRead> {
    let size_bytes = file.meta.size_bytes;
    let (content, window) = match options.range {
        ReadRange::Whole => {
            text::check_whole(size_bytes, options)?;
            let content = read_up_to(&file.handle, size_bytes, options.bytes_max.saturating_add(1)).map_err(&fault)?;
            // The file may have grown since it was opened.
            text::check_whole(content.len() as u64, options)?;
            (Bytes::from(content), None)
        }
        ReadRange::Bytes { offset, limit } => {
            text::checked_offset(offset, size_bytes)?;
            let length = limit.min(options.bytes_max).min(size_bytes - offset);
            (Bytes::from(read_range(&file.handle, offset, length).map_err(&fault)?), None)
        }
        ReadRange::Lines { .. } if size_bytes <= WHOLE_BYTES_MAX => {
            let content = read_up_to(&file.handle, size_bytes, u64::MAX).map_err(&fault)?;
            text::cut(&Bytes::from(content), options)?
        }
        ReadRange::Lines { offset, limit } => {
            let (content, window) = read_lines(&file.handle, offset, limit, options.bytes_max, &fault)?;
            (content, Some(window))
        }
    };
    Ok(part(path, file, content, window))
}

/// Reads the selected part of a small file if the page cache has all of it. Returns `None` if the host would have to wait for a
/// device.
#[cfg(any(target_os = "linux", target_os = "android"))]
pub(super) fn read_part_in_memory(path: &VfsPath, file: &OpenFile, options: &ReadOptions) -> Option<Result<FileRead>> {
    let size_bytes = file.meta.size_bytes;
    if size_bytes > IN_MEMORY_BYTES_MAX {
        return None;
    }
    // One spare byte shows whether the file ends where expected.
    let mut content = vec![0; size_bytes as usize + 1];
    let mut into = [std::io::IoSliceMut::new(&mut content)];
    let count = rustix::io::preadv2(&file.handle, &mut into, 0, rustix::io::ReadWriteFlags::NOWAIT).ok()?;
    if count as u64 != size_bytes {
        return None;
    }
    content.truncate(count);
    Some(text::cut(&Bytes::from(content), options).map(|(content, window)| part(path, file, content, window)))
}

#[cfg(not(any(target_os = "linux", target_os = "android")))]
pub(super) fn read_part_in_memory(_: &VfsPath, _: &OpenFile, _: &ReadOptions) -> Option<Result<FileRead>> {
    None
}

fn part(path: &VfsPath, file: &OpenFile, content: Bytes, window: Option<Window>) -> FileRead {
    let whole_bytes = content.len() as u64;
    let mut part = FileRead::new(content, file.meta.version(path), file.meta.modified_at());
    // If the file grew since `stat`, report at least the bytes that were read.
    part.size_bytes = file.meta.size_bytes.max(whole_bytes);
    part.window = window;
    part
}

/// Reads from the current position to the end, at most `limit` bytes. `size_bytes` is the expected size.
pub(super) fn read_up_to(file: &OwnedFd, size_bytes: u64, limit: u64) -> Host<Vec<u8>> {
    let mut content = Vec::with_capacity(size_bytes.min(limit) as usize);
    read_into(file, &mut content, size_bytes, limit)?;
    Ok(content)
}

/// Reads from the current position until the buffer has `size_bytes` bytes or the file ends, and never much more than `limit`. A
/// size of 0 is not trusted, because some host files (such as those in `/proc`) report 0.
pub(super) fn read_into(file: &OwnedFd, content: &mut Vec<u8>, size_bytes: u64, limit: u64) -> Host<()> {
    while (content.len() as u64) < limit {
        if content.len() == content.capacity() {
            content.reserve(CHUNK_BYTES);
        }
        match read(file, spare_capacity(content)) {
            Ok(0) => break,
            Ok(_) if content.len() as u64 == size_bytes => break,
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

/// Reads into the spare capacity of a buffer. Returns the number of bytes read, 0 at the end.
pub(super) fn read_more(file: &OwnedFd, content: &mut Vec<u8>) -> Host<usize> {
    loop {
        match read(file, spare_capacity(content)) {
            Err(Errno::INTR) => {}
            read => return read,
        }
    }
}

pub(super) fn read_range(file: &OwnedFd, offset: u64, length: u64) -> Host<Vec<u8>> {
    let length = length as usize;
    let mut content = Vec::with_capacity(length);
    while content.len() < length {
        let at = offset + content.len() as u64;
        match pread(file, spare_capacity(&mut content), at) {
            Ok(0) => break,
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
    content.truncate(length);
    Ok(content)
}

/// Cuts a window of lines out of a file of any size, by the rules of [`text::cut`]. Memory is bounded by the window.
fn read_lines(file: &OwnedFd, offset: usize, limit: usize, bytes_max: u64, fault: impl Fn(Errno) -> Error) -> Result<(Bytes, Window)> {
    let mut buffer = Vec::with_capacity(CHUNK_BYTES);
    let mut cutter = LineCutter::new(offset, limit, bytes_max);
    loop {
        buffer.clear();
        match read(file, spare_capacity(&mut buffer)) {
            Ok(0) => break,
            Ok(_) => {}
            Err(Errno::INTR) => continue,
            Err(errno) => return Err(fault(errno)),
        }
        cutter.push(&buffer)?;
    }
    cutter.finish()
}

/// Copies from the current position to the end, within the kernel if possible. Filesystems that share blocks then copy no data.
pub(super) fn copy_all(source: &OwnedFd, target: &OwnedFd) -> Host<()> {
    #[cfg(any(target_os = "linux", target_os = "android"))]
    match copy_in_kernel(source, target) {
        Ok(0) | Err(_) => {}
        Ok(_) => return Ok(()),
    }
    copy_through(source, target)
}

/// The most bytes one call copies within the kernel.
#[cfg(any(target_os = "linux", target_os = "android"))]
const COPY_BYTES_MAX: usize = 1 << 30;

#[cfg(any(target_os = "linux", target_os = "android"))]
fn copy_in_kernel(source: &OwnedFd, target: &OwnedFd) -> Host<u64> {
    let mut copied = 0;
    loop {
        match rustix::fs::copy_file_range(source, None, target, None, COPY_BYTES_MAX) {
            Ok(0) => return Ok(copied),
            Ok(count) => copied += count as u64,
            Err(Errno::INTR) => {}
            // The caller copies the rest in user space, continuing at the positions of both handles.
            Err(errno) => return Err(errno),
        }
    }
}

fn copy_through(source: &OwnedFd, target: impl AsFd) -> Host<()> {
    let mut buffer = Vec::with_capacity(CHUNK_BYTES);
    loop {
        buffer.clear();
        match read(source, spare_capacity(&mut buffer)) {
            Ok(0) => return Ok(()),
            Ok(_) => write_all(&target, &buffer)?,
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn cut_in_chunks(content: &[u8], chunk: usize, offset: usize, limit: usize, bytes_max: u64) -> Result<(Bytes, Window)> {
        let mut cutter = LineCutter::new(offset, limit, bytes_max);
        for chunk in content.chunks(chunk) {
            cutter.push(chunk)?;
        }
        cutter.finish()
    }

    proptest! {
        #[test]
        fn streamed_lines_equal_lines_of_whole_content(
            content in "[ab\n]{0,60}",
            chunk in 1_usize..9,
            offset in 0_usize..12,
            limit in 0_usize..12,
            bytes_max in 0_u64..30,
        ) {
            let content = Bytes::from(content);
            let whole = text::cut(&content, &ReadOptions::lines(offset, limit).with_bytes_max(bytes_max));
            let parts = cut_in_chunks(&content, chunk, offset, limit, bytes_max);
            match (whole, parts) {
                (Ok((bytes, window)), Ok((part, cut))) => prop_assert_eq!((bytes, window), (part, Some(cut))),
                (Err(whole), Err(part)) => prop_assert_eq!(whole.message(), part.message()),
                (whole, part) => prop_assert!(false, "{:?} against {:?}", whole, part),
            }
        }
    }
}
