//! A file that is searched in windows gives the same results as one that is searched whole.

use super::Host;
use std::fs;
use treehold::ops::{CaseMode, Encoding, GrepCursor, GrepOptions, GrepOutput};
use treehold::{Backend, BackendExt, FilesystemOptions, StateBackend, VfsPath};

/// Lines of many lengths, some with each line ending and one longer than any window: 10 MiB in all, without a final
/// line ending.
fn content() -> Vec<u8> {
    let mut content = Vec::new();
    let mut seed = 7_u32;
    while content.len() < 10 << 20 {
        seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let length = (seed >> 8) as usize % 900;
        content.resize(content.len() + length, b'a' + (seed >> 24) as u8 % 20);
        match seed >> 16 & 127 {
            0 => content.extend_from_slice(b" needle \xff here"),
            1 => content.extend_from_slice(b" Needle"),
            2 => content.extend_from_slice("\r".as_bytes()),
            _ => {}
        }
        content.push(b'\n');
    }
    let middle = content.len() / 2;
    let long = [&b"needle in a long line "[..], &[b'z'; 900_000], b"\n"].concat();
    let at = middle + content[middle..].iter().position(|byte| *byte == b'\n').unwrap() + 1;
    content.splice(at..at, long);
    content.extend_from_slice(b"the last needle");
    content
}

#[tokio::test]
async fn windowed_search_equals_search_in_memory() {
    let host = Host::new(FilesystemOptions::new());
    let state = StateBackend::new();
    let content = content();
    fs::write(host.at("large"), &content).unwrap();
    state.write("/large", content).await.unwrap();
    let needle = || GrepOptions::new("needle");
    let after = |line| GrepCursor { path: super::path("/large"), line };
    for options in [
        needle(),
        needle().with_context(3, 5),
        needle().with_context(2000, 0).with_matches_max(20),
        needle().with_case(CaseMode::Insensitive).with_context(0, 2).with_file_matches_max(100),
        needle().with_matches_max(17),
        needle().with_context(1, 400).with_start_after(after(9_000)),
        needle().with_file_matches_max(90).with_context(1, 1).with_start_after(after(5_000)),
        needle().with_start_after(after(1_000_000)),
        needle().with_output(GrepOutput::Counts),
        needle().with_output(GrepOutput::Counts).with_file_matches_max(3),
        needle().with_output(GrepOutput::Files),
        needle().with_invert(true).with_matches_max(12_000),
        needle().with_invert(true).with_output(GrepOutput::Counts),
        GrepOptions::regex("(needle|NEEDLE)$"),
        GrepOptions::regex("^b+$").with_context(1, 0),
        GrepOptions::regex(r"needle.*\n").with_multiline(true),
        GrepOptions::new("nothing of that kind"),
        needle().with_encoding(Encoding::Auto),
    ] {
        let found = host.tree.grep(VfsPath::ROOT, &options).await.unwrap();
        let expected = state.grep(VfsPath::ROOT, &options).await.unwrap();
        assert!(found == expected, "{options:?}: {} and {}", found.matches(), expected.matches());
        let named = host.tree.grep(&super::path("/large"), &options).await.unwrap();
        assert!(named.files == expected.files, "{options:?}");
    }
}

#[tokio::test]
async fn large_file_is_binary_by_its_start_only() {
    let host = Host::new(FilesystemOptions::new());
    for (name, at) in [("early", 8_191), ("late", 8_192)] {
        let mut content = b"a needle in here\n".repeat(200_000);
        content[at] = 0;
        fs::write(host.at(name), content).unwrap();
    }
    let options = || GrepOptions::new("needle").with_output(GrepOutput::Counts);
    let counts = async |options| {
        let result = host.tree.grep(VfsPath::ROOT, &options).await.unwrap();
        (result.files.iter().map(|file| (file.path.to_string(), file.count)).collect::<Vec<_>>(), result.files_binary)
    };
    assert_eq!(counts(options()).await, (vec![("/late".to_owned(), 200_000 - usize::from(8_192 % 17 < 8 && 8_192 % 17 > 1))], 1));
    assert_eq!(counts(options().with_binary(true)).await.0.len(), 2);
    assert_eq!(counts(options().with_size_max_bytes(1 << 20)).await.0.len(), 0);
}

/// Regression: a file over 1 GiB was refused because of its size.
#[tokio::test]
async fn file_over_a_gigabyte_is_searched() {
    let host = Host::new(FilesystemOptions::new());
    let file = fs::File::create(host.at("huge")).unwrap();
    std::io::Write::write_all(&mut &file, "a needle at the start\n".repeat(1000).as_bytes()).unwrap();
    file.set_len((1 << 30) + (1 << 20)).unwrap();
    let first = host.tree.grep(VfsPath::ROOT, &GrepOptions::new("needle").with_file_matches_max(5)).await.unwrap();
    assert_eq!((first.matches(), first.files_too_large), (5, 0));
}

#[tokio::test]
async fn large_utf16_file_is_decoded_while_read() {
    let host = Host::new(FilesystemOptions::new());
    let state = StateBackend::new();
    let text: String = (0..200_000).map(|line| format!("größe {line} 日本\n")).collect();
    for (name, mark, big) in [("big", "\u{feff}", true), ("little", "\u{feff}", false), ("unmarked", "", false)] {
        let unit = |unit: u16| if big { unit.to_be_bytes() } else { unit.to_le_bytes() };
        let content: Vec<u8> = format!("{mark}{text}").encode_utf16().flat_map(unit).collect();
        fs::write(host.at(name), &content).unwrap();
        state.write(format!("/{name}").as_str(), content).await.unwrap();
    }
    let options = GrepOptions::regex("größe 1?7777 日").with_context(1, 1).with_encoding(Encoding::Auto);
    let found = host.tree.grep(VfsPath::ROOT, &options).await.unwrap();
    assert_eq!((found.matches(), found.files.len(), found.files_binary), (4, 2, 1));
    assert!(found == state.grep(VfsPath::ROOT, &options).await.unwrap());
}
