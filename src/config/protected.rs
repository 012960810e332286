//! What no tree of a configuration changes: the files that govern it, and those that make tools run code.

use super::stores::Engine;
use super::{Config, RouteType};
use crate::error::{Error, Result};
use crate::layer::Protections;
use crate::path::{VfsPath, VfsPathBuf};
use crate::scope::Scope;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

/// Files of a host that are read and not changed, because tools run what they say ([`RUNS_CODE`](crate::layer::RUNS_CODE)).
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[non_exhaustive]
pub struct ProtectedConfig {
    /// More names that are protected, such as `Justfile` or `.tool/config`, at any depth; `*` stands for any part of a name.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub also: Vec<String>,
    /// Names that are not, such as `.vscode/settings.json`; with a `/` before it, a path of the tree and all beneath it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub except: Vec<String>,
}

impl Config {
    /// Adds a file or directory of the host that governs the trees, such as a key: no tree changes it, wherever it is mounted.
    pub fn add_governing(&mut self, path: impl Into<PathBuf>, reason: impl Into<String>) {
        self.governing.push((path.into(), reason.into()));
    }

    /// Returns the files and directories of the host that govern the trees, and what they are.
    fn governing(&self) -> Vec<(PathBuf, String)> {
        let mut all = self.governing.clone();
        let mut add = |path: PathBuf, reason: &str| all.push((path, reason.to_owned()));
        if let Some(file) = &self.place.file {
            add(file.clone(), "it is the configuration of this tree");
        }
        add(self.data.clone(), "the data of this program lies there");
        for store in self.stores.values() {
            // What a variable that is not set would name is nothing yet.
            let Some(path) = Engine::named(&store.url, self).ok().and_then(|engine| engine.path().map(Path::to_owned)) else { continue };
            for suffix in ["", "-wal", "-shm", "-journal"] {
                let mut name = path.clone().into_os_string();
                name.push(suffix);
                add(name.into(), "a store lies there");
            }
        }
        for peer in self.peers.values() {
            if let Some(file) = peer.token.as_deref().and_then(|token| token.strip_prefix("file:")) {
                add(self.resolve(file), "it is the token of a peer");
            }
        }
        if let Some(file) = &self.layers.audit {
            add(self.resolve(file), "it is the record of calls");
        }
        all
    }

    /// Returns what is protected of a directory of the host that stands at a path of the tree.
    ///
    /// A tree may hold what governs it, where it is protected. It may not lie in it: then nothing would be left to write, or, where only a
    /// part of it is seen, nothing to protect it by. The data directory itself may hold trees beside what is kept there.
    ///
    /// # Errors
    /// [`InvalidArgument`](crate::ErrorKind::InvalidArgument) for a directory that lies at or in what governs the tree.
    pub(super) fn protections(&self, at: &str, root: &Path) -> Result<Protections> {
        let path = VfsPathBuf::parse(at)?;
        let mut protections = self.named_protections(&path)?.with_root(canonical(root));
        let roots = [absolute(root), canonical(root)];
        let data = [absolute(&self.data), canonical(&self.data)];
        for (path, reason) in self.governing() {
            let paths = [absolute(&path), canonical(&path)];
            for (path, root) in paths.iter().flat_map(|path| roots.iter().map(move |root| (path, root))) {
                if root == path || root.starts_with(path) && !data.contains(path) {
                    return Err(Error::invalid_argument(format!(
                        "the directory of the route `{at}` may not be mounted: {reason}; set its `root` to a directory apart from that"
                    )));
                }
                if let Ok(beneath) = path.strip_prefix(root) {
                    protections = governed(protections, beneath, &reason);
                }
            }
        }
        Ok(protections)
    }

    /// Returns what is protected by its name.
    pub(super) fn named_protections(&self, at: &VfsPath) -> Result<Protections> {
        Protections::new(at).with_names(&self.protected.also)?.without(&self.protected.except)
    }

    /// Returns a thread that belongs to the directory the configuration is about, the same whenever it is: the name of the directory and
    /// a hash of its path. That is the root of the first filesystem route, else the directory of the configuration.
    ///
    /// # Errors
    /// [`InvalidArgument`](crate::ErrorKind::InvalidArgument) for a scope that a root cannot be filled with.
    pub fn project_thread(&self, scope: &Scope) -> Result<String> {
        let mut routes = self.routes.iter().filter(|(_, route)| route.tier == RouteType::Filesystem).map(|(path, _)| path.as_str());
        let root = match routes.next() {
            Some(path) => self.filesystem_root(path, scope)?,
            None => None,
        };
        let root = canonical(&root.unwrap_or_else(|| self.place.directory.clone()));
        let hash = blake3::hash(root.as_os_str().as_encoded_bytes()).to_hex();
        let name: String = root.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        let name: String = name.chars().filter(|letter| letter.is_ascii_alphanumeric() || "-_".contains(*letter)).take(40).collect();
        let name = if name.is_empty() { "project" } else { &name };
        Ok(format!("{name}-{}", &hash[..8]))
    }

    /// Tells whether somebody named the thread of calls that name none: the configuration file, or the caller.
    pub fn names_thread(&self) -> bool {
        let keys = ["scope", "thread"];
        self.settings().iter().any(|setting| setting.keys == keys && setting.origin != super::Origin::Default)
    }
}

/// Protects what governs the tree at a path beneath its root. What no path of a tree can name is out of reach, but not the directories
/// above it.
fn governed(protections: Protections, beneath: &Path, reason: &str) -> Protections {
    let mut path = VfsPathBuf::root();
    for name in beneath {
        match name.to_str().and_then(|name| path.child(name).ok()) {
            Some(child) => path = child,
            None => return protections.with_governing_beneath(&path, reason),
        }
    }
    protections.with_governing(&path, reason)
}

/// Checks the names of a configuration.
pub(super) fn check_protected(protected: &ProtectedConfig) -> std::result::Result<(), (&'static str, Error)> {
    let none = || Protections::new(VfsPath::ROOT);
    none().with_names(&protected.also).map_err(|error| ("also", error))?;
    none().without(&protected.except).map(drop).map_err(|error| ("except", error))
}

fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned()).components().collect()
}

/// Returns a path without links, as far as it exists; what does not exist yet is added as it is.
fn canonical(path: &Path) -> PathBuf {
    let path = absolute(path);
    let found = path.ancestors().find_map(|above| Some((above, above.canonicalize().ok()?)));
    match found {
        Some((above, canonical)) => {
            path.strip_prefix(above).map_or_else(|_| path.clone(), |rest| canonical.join(rest).components().collect())
        }
        None => path,
    }
}

#[cfg(all(test, feature = "filesystem", unix))]
mod tests {
    use super::super::Place;
    use super::*;
    use crate::backend::{Backend, BackendExt};
    use crate::error::ErrorKind;
    use std::fs;
    use std::sync::Arc;

    /// Opens the tree of a route to a directory, in a home whose data lies in `data` and whose configuration in `etc/own.toml`.
    async fn routed(home: &Path, root: &Path) -> Arc<dyn Backend> {
        let text = format!(
            "[stores.default]\nurl = \"sled:{{data}}/rows\"\n[stores.other]\nurl = \"sqlite:{{data}}/db/other.db\"\n[threads]\nsave = \
             false\n[routes.\"/w\"]\ntype = \"filesystem\"\nroot = \"{}\"\n",
            root.display()
        );
        let place = Place::new(home.join("etc"), home.join("data")).with_file(home.join("etc/own.toml"));
        let mut config = Config::parse(&text, &place).expect("a sound configuration");
        config.add_governing(home.join("data/trusted"), "it says which configuration files are trusted");
        let session = config.workspace().expect("a workspace").session(config.scope()).await.expect("opened");
        session.backend()
    }

    /// A root in the data directory had nothing above it to protect.
    #[tokio::test]
    async fn route_into_what_governs_the_tree_is_refused_and_one_above_it_protects_it() {
        let directory = tempfile::tempdir().expect("a directory");
        let home = directory.path().canonicalize().expect("it is there");
        for made in ["data/trusted/deep", "data/rows/sub", "data/db", "data/work", "etc", "link-to"] {
            fs::create_dir_all(home.join(made)).expect("made");
        }
        fs::write(home.join("etc/own.toml"), "").expect("written");
        fs::write(home.join("data/db/other.db"), "").expect("written");
        std::os::unix::fs::symlink("../data", home.join("link-to/data")).expect("linked");
        for refused in ["data", "data/trusted", "data/trusted/deep", "data/rows", "data/rows/sub", "link-to/data", "link-to/data/trusted"] {
            let tree = routed(&home, &home.join(refused)).await;
            for tried in [
                tree.write("/w/x", "x").await.err(),
                tree.read_text("/w/x").await.err(),
                tree.ls(&VfsPath::parse("/w").expect("a path"), &Default::default()).await.err(),
            ] {
                let error = tried.expect("nothing is reached");
                assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{refused}: {error}");
                assert!(error.message().contains("the directory of the route `/w` may not be mounted"), "{error}");
            }
        }
        for (root, protected) in [
            ("", &["data/x", "data/trusted/x", "data/rows/x", "data/db/other.db", "etc/own.toml", "link-to/data/x"][..]),
            ("data/db", &["other.db", "other.db-wal"]),
            ("etc", &["own.toml"]),
        ] {
            let tree = routed(&home, &home.join(root)).await;
            for at in protected {
                let error = tree.write(&format!("/w/{at}"), "x").await.expect_err(at);
                assert!(error.message().contains("cannot be changed through this tree"), "{root} {at}: {error}");
            }
            tree.write("/w/free", "x").await.expect("beside it");
        }
        routed(&home, &home.join("data/work")).await.write("/w/x", "x").await.expect("nothing is kept there");
    }

    /// It was passed over, and a directory above it could be moved.
    #[tokio::test]
    async fn directories_above_data_that_no_path_can_name_stay() {
        use std::os::unix::ffi::OsStrExt as _;
        let directory = tempfile::tempdir().expect("a directory");
        let home = directory.path().canonicalize().expect("it is there");
        let inner = home.join("a/b").join(std::ffi::OsStr::from_bytes(b"\xff"));
        fs::create_dir_all(inner.join("data/trusted")).expect("made");
        let text = format!("[threads]\nsave = false\n[routes.\"/w\"]\ntype = \"filesystem\"\nroot = \"{}\"\n", home.display());
        let config = Config::parse(&text, &Place::new(&home, inner.join("data"))).expect("a sound configuration");
        let tree = config.workspace().expect("a workspace").session(config.scope()).await.expect("opened").backend();
        for above in ["/w/a", "/w/a/b"] {
            tree.rename(above, "/w/moved").await.expect_err(above);
            tree.delete_all(above).await.expect_err(above);
        }
        tree.write("/w/a/b/free", "x").await.expect("beside it");
    }
}
