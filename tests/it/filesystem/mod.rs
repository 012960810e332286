//! The filesystem tier on a hostile host: entries beside, above and below the root, and concurrent writers.

mod changes;
#[cfg(all(feature = "cli", feature = "remote", feature = "serve"))]
mod doors;
mod large;
mod processes;
mod ripgrep;
mod seal;
mod search;

use std::fs;
use std::path::{Path, PathBuf};
use tempfile::TempDir;
use treehold::ops::{ApplyOptions, Change};
use treehold::{Backend, Error, ErrorKind, FilesystemBackend, FilesystemOptions, VfsPath, VfsPathBuf};

/// Content that no read may return and no write may change.
const SECRET: &str = "the secret outside";

/// A root, and a directory beside it that must stay out of reach.
struct Host {
    directory: TempDir,
    tree: FilesystemBackend,
}

impl Host {
    fn new(options: FilesystemOptions) -> Self {
        let directory = tempfile::tempdir().unwrap();
        fs::create_dir(directory.path().join("root")).unwrap();
        fs::create_dir(directory.path().join("outside")).unwrap();
        fs::write(directory.path().join("outside/secret"), SECRET).unwrap();
        let tree = FilesystemBackend::open(directory.path().join("root"), options).unwrap();
        Self { directory, tree }
    }

    /// One host per way of resolving paths.
    fn both() -> [Self; 2] {
        [true, false].map(|openat2| Self::new(FilesystemOptions::new().with_openat2(openat2)))
    }

    fn root(&self) -> PathBuf {
        self.directory.path().join("root")
    }

    fn outside(&self) -> PathBuf {
        self.directory.path().join("outside")
    }

    fn at(&self, name: &str) -> PathBuf {
        self.root().join(name)
    }

    /// Checks that everything outside the root is unchanged.
    fn assert_outside_is_untouched(&self) {
        let names: Vec<_> = fs::read_dir(self.outside()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(names, ["secret"]);
        assert_eq!(fs::read_to_string(self.outside().join("secret")).unwrap(), SECRET);
    }

    /// Checks that no unfinished write was left anywhere below the root.
    fn assert_no_leftovers(&self) {
        assert_eq!(leftovers(&self.root()), Vec::<PathBuf>::new());
    }
}

fn leftovers(directory: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory).unwrap() {
        let entry = entry.unwrap();
        if entry.file_name().to_string_lossy().starts_with(".treehold-") {
            found.push(entry.path());
        } else if entry.file_type().unwrap().is_dir() {
            found.extend(leftovers(&entry.path()));
        }
    }
    found
}

fn path(text: &str) -> VfsPathBuf {
    VfsPathBuf::parse(text).unwrap()
}

fn kind<T: std::fmt::Debug>(result: Result<T, Error>) -> ErrorKind {
    result.unwrap_err().kind()
}

/// Attempts one change of each kind at a path. Returns the error kinds.
async fn refusals(tree: &FilesystemBackend, at: &VfsPath) -> Vec<ErrorKind> {
    use treehold::ops::{Edit, WriteMode};
    let path = at.to_owned();
    let other = VfsPathBuf::parse("/refused").unwrap();
    let mut kinds = Vec::new();
    for change in [
        Change::Write { path: path.clone(), content: "x".into(), mode: WriteMode::Overwrite },
        Change::Append { path: path.clone(), content: "x".into() },
        Change::Edit { path: path.clone(), edits: vec![Edit::new("secret", "x")], expect: None },
        Change::Copy { from: path.clone(), to: other, overwrite: false },
    ] {
        kinds.push(kind(tree.apply(std::slice::from_ref(&change), &ApplyOptions::new()).await));
    }
    kinds
}
