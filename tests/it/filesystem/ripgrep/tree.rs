//! Generated trees with contents that are difficult to search.

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use std::fs;
use std::path::Path;
use treehold::ops::Encoding;

/// A file, and the properties that decide which queries can be compared on it.
#[derive(Debug, Clone)]
pub(super) struct File {
    pub(super) path: String,
    pub(super) content: Vec<u8>,
}

impl File {
    pub(super) fn is_binary(&self, encoding: Encoding) -> bool {
        self.content.contains(&0) && (encoding == Encoding::Bytes || !self.is_utf_16())
    }

    pub(super) fn is_utf_16(&self) -> bool {
        self.content.starts_with(b"\xff\xfe") || self.content.starts_with(b"\xfe\xff")
    }

    pub(super) fn has_carriage_returns(&self) -> bool {
        self.content.contains(&b'\r')
    }

    pub(super) fn is_text(&self) -> bool {
        std::str::from_utf8(&self.content).is_ok()
    }
}

/// Removes files below a path that is itself a file.
pub(super) fn files() -> impl Strategy<Value = Vec<File>> {
    let directory = select(vec![
        "",
        "",
        "src/",
        "src/lib/",
        "src/.cache/",
        "target/",
        "target/debug/",
        "a b/",
        ".hidden/",
        "docs/",
        "docs/日本/",
        "v1.0/",
        "src/target/",
    ]);
    let name = select(vec![
        "main.rs",
        "lib.rs",
        "a.py",
        "notes.md",
        "README",
        ".env",
        ".dotted.rs",
        "x.log",
        "keep.log",
        "é.txt",
        "a-b.txt",
        "a.b.c",
        "Upper.TXT",
        "[x].rs",
        "data.json",
        "x.rs.bak",
        "#x",
        "!y",
        "no",
        "tmp",
    ]);
    let file = (directory, name, content()).prop_map(|(directory, name, content)| File { path: format!("{directory}{name}"), content });
    let ignore = (
        select(vec!["", "", "src/", "target/", "docs/", ".hidden/", "src/lib/"]),
        select(vec![".gitignore", ".gitignore", ".ignore"]),
        rules(),
    )
        .prop_map(|(directory, name, rules)| File { path: format!("{directory}{name}"), content: rules.into_bytes() });
    (vec(file, 25..45), vec(ignore, 0..5)).prop_map(|(files, ignores)| {
        let mut all: Vec<File> = files.into_iter().chain(ignores).collect();
        all.sort_by(|one, other| one.path.cmp(&other.path));
        all.dedup_by(|one, other| one.path == other.path);
        all
    })
}

fn rules() -> impl Strategy<Value = String> {
    let rule = select(vec![
        "*.log",
        "!keep.log",
        "/target",
        "target/",
        "tmp",
        "src/*.py",
        "/src/lib/",
        "!/src/lib/main.rs",
        "**/debug",
        "docs/**",
        "!docs/notes.md",
        "a b",
        "*.txt",
        "!é.txt",
        "/a.*",
        "[nm]o*",
        "\\#x",
        "\\!y",
        "# a comment",
        "",
        "x.rs?bak",
        "lib.rs   ",
        "!lib.rs",
        "v1.0",
        "日本/",
        "*.[jp]*",
        "/",
        "src/target",
        "data.json\r",
    ]);
    vec(rule, 1..6).prop_map(|rules| rules.join("\n"))
}

fn content() -> impl Strategy<Value = Vec<u8>> {
    let line = select(vec![
        &b"needle"[..],
        b"a needle in a haystack",
        b"Needle NEEDLE needles",
        b"foo(bar)",
        b"foo_bar foobar foo-bar foo",
        b"",
        b"",
        b"    ",
        b"one two",
        b"two one two",
        b"x = y + 1; // note",
        "größe Größe GRÖSSE".as_bytes(),
        "日本語 needle".as_bytes(),
        b"\tfoo\t",
        b"end.",
        b"tail needle",
        b"aXbXc",
        b"1234 56",
        b"needleneedle",
        b"(needle)",
        b"$needle",
        b"a.b*c",
        b"[x]",
        b"foo",
        b"bar",
    ]);
    let ending = select(vec!["\n", "\n", "\n", "\n", "\r\n"]);
    let lines = (vec(line, 0..14), ending, any::<bool>()).prop_map(|(lines, ending, ended)| {
        let mut content = lines.join(ending.as_bytes());
        if ended && !content.is_empty() {
            content.extend_from_slice(ending.as_bytes());
        }
        content
    });
    (lines, 0..24_u8).prop_map(|(mut content, kind)| {
        match kind {
            0 => content.splice(0..0, *b"needle\0").for_each(drop),
            1 => content.extend_from_slice(b"foo\0"),
            2 => content.splice(0..0, *b"\xef\xbb\xbf").for_each(drop),
            3 => content.extend_from_slice(b"bad \xff needle \xc3\n"),
            4 | 5 => content = utf_16(&content, kind == 4),
            _ => {}
        }
        content
    })
}

fn utf_16(content: &[u8], is_little: bool) -> Vec<u8> {
    let text = format!("\u{feff}{}", String::from_utf8_lossy(content));
    text.encode_utf16().flat_map(|unit| if is_little { unit.to_le_bytes() } else { unit.to_be_bytes() }).collect()
}

pub(super) fn write(root: &Path, files: &[File]) {
    for file in files {
        let at = root.join(&file.path);
        fs::create_dir_all(at.parent().unwrap()).unwrap();
        fs::write(at, &file.content).unwrap();
    }
}
