//! The rules of `.gitignore` and `.ignore` files, after [gitignore(5)](https://git-scm.com/docs/gitignore).

use super::pattern::without_posix_classes;
use crate::path::{VfsPath, VfsPathBuf};
use ::ignore::Match;
use ::ignore::gitignore::{Gitignore, GitignoreBuilder};
use std::collections::HashMap;

/// The names of ignore files, the one with the lowest precedence first.
pub const IGNORE_FILE_NAMES: [&str; 2] = [".gitignore", ".ignore"];

/// How many rules are compiled together.
const RULES_TOGETHER: usize = 256;

/// The ignore rules of the directories that a walk has met.
#[derive(Debug, Default)]
pub struct IgnoreFiles {
    /// The rules of each of [`IGNORE_FILE_NAMES`], by directory. Directories without rules are left out.
    directories: HashMap<VfsPathBuf, [Rules; 2]>,
}

impl IgnoreFiles {
    /// Creates an instance without rules.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the ignore files of one directory: the contents of those of [`IGNORE_FILE_NAMES`] that exist, in that order. Illegal
    /// lines are skipped, as git does.
    pub fn insert(&mut self, directory: &VfsPath, contents: [Option<&[u8]>; 2]) {
        let rules = contents.map(|content| content.map_or_else(Rules::default, |content| Rules::parse(directory, content)));
        if rules.iter().all(Rules::is_empty) {
            self.directories.remove(directory);
        } else {
            self.directories.insert(directory.to_owned(), rules);
        }
    }

    /// Returns whether the rules exclude a path, given that none of its parent directories is excluded. As in ripgrep, `.ignore`
    /// takes precedence over `.gitignore` wherever the two are. Among files of one name, the deeper directory takes precedence,
    /// and within a file the last matching line.
    ///
    /// Cost: one lookup for each parent directory, and one match against the rules of those that have any.
    pub fn excludes(&self, path: &VfsPath, is_directory: bool) -> bool {
        if self.is_empty() {
            return false;
        }
        let mut weaker = None;
        let mut directory = path.parent();
        while let Some(above) = directory {
            if let Some([gitignore, ignore]) = self.directories.get(above) {
                if let Some(excluded) = ignore.decide(path, is_directory) {
                    return excluded;
                }
                weaker = weaker.or_else(|| gitignore.decide(path, is_directory));
            }
            directory = above.parent();
        }
        weaker.unwrap_or(false)
    }

    /// Returns whether there are no rules, so that nothing is excluded.
    pub fn is_empty(&self) -> bool {
        self.directories.is_empty()
    }
}

/// The rules of one file, in order. They are compiled in runs, so that one that cannot be compiled does not disable the others.
#[derive(Debug, Default)]
struct Rules(Vec<Gitignore>);

impl Rules {
    fn parse(directory: &VfsPath, content: &[u8]) -> Self {
        let content = content.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(content);
        let content = String::from_utf8_lossy(content);
        let lines: Vec<&str> = content.lines().filter(|line| !line.is_empty() && !line.starts_with('#')).collect();
        let mut rules = Self::default();
        for run in lines.chunks(RULES_TOGETHER) {
            rules.compile(directory, run);
        }
        rules
    }

    fn compile(&mut self, directory: &VfsPath, lines: &[&str]) {
        let mut builder = GitignoreBuilder::new(directory.as_str());
        for line in lines {
            // Skip illegal rules, as git does.
            let _ = builder.add_line(None, &without_posix_classes(line));
        }
        match builder.build() {
            Ok(compiled) if compiled.is_empty() => {}
            Ok(compiled) => self.0.push(compiled),
            // Together they are too large. Halve them until the faulty one is alone, and skip that one.
            Err(_) if lines.len() > 1 => {
                let (first, second) = lines.split_at(lines.len() / 2);
                self.compile(directory, first);
                self.compile(directory, second);
            }
            Err(_) => {}
        }
    }

    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns whether the last matching rule excludes the path, or `None` if no rule matches.
    fn decide(&self, path: &VfsPath, is_directory: bool) -> Option<bool> {
        self.0.iter().rev().find_map(|rules| match rules.matched(path.as_str(), is_directory) {
            Match::None => None,
            Match::Ignore(_) => Some(true),
            Match::Whitelist(_) => Some(false),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(files: &[(&str, usize, &str)]) -> IgnoreFiles {
        let mut rules = IgnoreFiles::new();
        let mut directories: Vec<&str> = files.iter().map(|(directory, ..)| *directory).collect();
        directories.dedup();
        for directory in directories {
            let mut contents = [None, None];
            for (_, which, content) in files.iter().filter(|file| file.0 == directory) {
                contents[*which] = Some(content.as_bytes());
            }
            rules.insert(&VfsPathBuf::parse(directory).expect("a legal path"), contents);
        }
        rules
    }

    fn excludes(rules: &IgnoreFiles, path: &str) -> bool {
        let is_directory = path.ends_with('/');
        rules.excludes(&VfsPathBuf::parse(path).expect("a legal path"), is_directory)
    }

    #[test]
    fn rules_follow_gitignore_syntax() {
        for (content, excluded, kept) in [
            ("*.log", &["/a.log", "/x/a.log", "/a.log/"][..], &["/a.txt"][..]),
            ("/a", &["/a"], &["/x/a"]),
            ("a/b", &["/a/b"], &["/x/a/b"]),
            ("target/", &["/target/", "/x/target/"], &["/target"]),
            ("*.log\n!keep.log", &["/a.log"], &["/keep.log"]),
            ("!keep.log\n*.log", &["/keep.log"], &[]),
            ("# *.log\n\\#a", &["/#a"], &["/a.log"]),
            ("a\\ \nb   ", &["/a ", "/b"], &["/a"]),
            ("**/x\ny/**", &["/x", "/a/b/x", "/y/a"], &["/y"]),
            ("a\r\nb\r\n", &["/a", "/b"], &[]),
            ("\u{feff}a", &["/a"], &[]),
            ("[\n*.log", &["/a.log", "/["], &[]),
            ("{a\n*.log", &["/a.log"], &["/{a", "/a"]),
            ("日本*", &["/日本語"], &["/日"]),
            ("[[:digit:]]*.log", &["/1.log", "/x/2a.log"], &["/a.log", "/:.log"]),
            ("[![:alpha:]_]x", &["/1x"], &["/ax", "/_x"]),
            ("x[[:punct:]]", &["/x!", "/x]", "/x\\", "/x~"], &["/xa", "/x1"]),
            ("[:alpha:]", &["/a", "/:", "/l"], &["/b"]),
            ("[[:nonsense:]]", &[], &["/n"]),
        ] {
            let rules = rules(&[("/", 0, content)]);
            assert!(excluded.iter().all(|path| excludes(&rules, path)), "{content:?}");
            assert!(!kept.iter().any(|path| excludes(&rules, path)), "{content:?}");
        }
    }

    #[test]
    fn deeper_files_and_dot_ignore_take_precedence() {
        let deeper = rules(&[("/", 0, "*.log\n/b/x"), ("/a", 0, "!a.log\n/x")]);
        assert!(excludes(&deeper, "/a.log") && !excludes(&deeper, "/a/a.log") && excludes(&deeper, "/a/b.log"));
        assert!(excludes(&deeper, "/a/x") && !excludes(&deeper, "/x") && excludes(&deeper, "/b/x") && !excludes(&deeper, "/a/b/x"));
        let stronger = rules(&[("/", 0, "*.log"), ("/", 1, "!a.log"), ("/b", 0, "a.log")]);
        assert!(!excludes(&stronger, "/a.log") && excludes(&stronger, "/b.log") && !excludes(&stronger, "/b/a.log"));
    }

    #[test]
    fn directories_without_rules_are_not_stored() {
        assert!(rules(&[("/", 0, "\n# nothing\n\n"), ("/a", 1, "")]).is_empty());
        let mut replaced = rules(&[("/", 0, "a")]);
        replaced.insert(VfsPath::ROOT, [None, None]);
        assert!(replaced.is_empty() && !excludes(&replaced, "/a"));
    }

    #[test]
    fn uncompilable_rule_does_not_disable_others() {
        let mut content: String = (0..2000).map(|index| format!("name{index}\n")).collect();
        content.push_str(&"{a,b}".repeat(500));
        content.push_str("\n\\\n[\nlast\n!name7\n");
        let rules = rules(&[("/", 0, &content)]);
        assert!(excludes(&rules, "/name3") && excludes(&rules, "/name1999") && excludes(&rules, "/last") && !excludes(&rules, "/name7"));
    }
}
