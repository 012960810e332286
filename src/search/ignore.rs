//! The rules of `.gitignore` and `.ignore` files, after gitignore(5).

use crate::path::VfsPath;

/// The names of ignore files, weakest first.
pub const IGNORE_FILE_NAMES: [&str; 2] = [".gitignore", ".ignore"];

/// The ignore rules of the directories a walk has met.
#[derive(Debug, Default)]
pub struct IgnoreFiles {
    _private: (),
}

impl IgnoreFiles {
    /// Starts without rules.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds the ignore files of one directory: the contents of those of [`IGNORE_FILE_NAMES`] that exist, in that order. Lines that
    /// are no legal rule are passed over, as git does.
    pub fn insert(&mut self, directory: &VfsPath, contents: [Option<&[u8]>; 2]) {
        let _ = (directory, contents);
        unimplemented!()
    }

    /// Tells whether the rules so far exclude a path itself, given that no directory above it is excluded. Deeper directories
    /// win over outer ones, `.ignore` over `.gitignore`, the last matching line within a file.
    pub fn excludes(&self, path: &VfsPath, is_directory: bool) -> bool {
        let _ = (path, is_directory);
        unimplemented!()
    }

    /// Tells whether no rule was added: then nothing is excluded and `excludes` need not be asked.
    pub fn is_empty(&self) -> bool {
        unimplemented!()
    }
}
