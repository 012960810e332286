//! Host files that no tree may change: those that govern the trees, and those that make tools run code.

use super::{Config, RouteType};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
#[cfg(all(feature = "cli", unix))]
use std::sync::Arc;
use treehold_core::error::{Error, Result};
use treehold_core::path::{VfsPath, VfsPathBuf};
use treehold_core::scope::Scope;
#[cfg(all(feature = "cli", unix))]
use treehold_tree::backend::{Backend, FilesystemBackend, FilesystemOptions};
use treehold_tree::layer::Protections;

/// Host files that can be read but not changed, because tools run what they contain ([`RUNS_CODE`](treehold_tree::layer::RUNS_CODE)).
///
/// Files that govern the trees, such as the configuration and the files of stores, are protected wherever a route mounts them. A session
/// finds them by the links of the host as these were when a call first reached the route, or up to a second before. On a route with a
/// `quota`, sessions that are open at the same time use what the first of them found.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[non_exhaustive]
pub struct ProtectedConfig {
    /// Additional protected names, such as `Justfile` or `.tool/config`, at any depth; `*` matches any part of a name.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub also: Vec<String>,
    /// Names to exclude from protection, such as `.vscode/settings.json`. With a leading `/`, a path of the tree with everything beneath
    /// it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub except: Vec<String>,
}

impl Config {
    /// Adds a host file or directory that governs the trees, such as a key. No tree can change it, wherever it is mounted.
    pub fn add_governing(&mut self, path: impl Into<PathBuf>, reason: impl Into<String>) {
        self.governing.push((path.into(), reason.into()));
    }

    /// Returns the host files and directories that govern the trees, each with the reason.
    fn governing(&self) -> Vec<(PathBuf, String)> {
        let mut all = self.governing.clone();
        let mut add = |path: PathBuf, reason: &str| all.push((path, reason.to_owned()));
        if let Some(file) = &self.base.file {
            add(file.clone(), "it is the configuration of this tree");
        }
        add(self.data.clone(), "it holds the data of this program");
        let internal = self.traces.internal.iter().map(|internal| &internal.url);
        for url in self.stores.values().map(|store| &store.url).chain(internal) {
            // The variable may be unset; then there is no path to protect.
            let Some(path) = self.locate(url).ok().and_then(|located| located.path().map(Path::to_owned)) else { continue };
            for suffix in ["", "-wal", "-shm", "-journal"] {
                let mut name = path.clone().into_os_string();
                name.push(suffix);
                add(name.into(), "it holds a store");
            }
        }
        for peer in self.peers.values() {
            if let Some(file) = peer.token.as_deref().and_then(|token| token.strip_prefix("file:")) {
                add(self.resolve(file), "it is the token of a peer");
            }
        }
        for server in self.serve.dial.values() {
            if let Some(file) = server.token.as_deref().and_then(|token| token.strip_prefix("file:")) {
                add(self.resolve(file), "it is the token of a server to dial");
            }
        }
        if let Some(file) = &self.traces.agents_file {
            add(self.resolve(file), "it names other agents and their keys");
        }
        for agent in self.traces.external.iter().flat_map(|external| &external.agents) {
            if let Some(file) = agent.api_key.as_deref().and_then(|key| key.strip_prefix("file:")) {
                add(self.resolve(file), "it is the key of another agent");
            }
        }
        if let Some(file) = &self.layers.audit {
            add(self.resolve(file), "it is the record of calls");
        }
        all
    }

    /// Returns what is protected in a host directory that is mounted at a path of the tree.
    ///
    /// A tree may contain what governs it; that part is protected. A tree must not lie inside it: then nothing would be writable, or, if
    /// only a part of it is visible, nothing could be protected. The data directory itself may contain trees beside what is kept there.
    ///
    /// # Errors
    /// [`InvalidArgument`](treehold_core::error::ErrorKind::InvalidArgument) for a directory at or inside something that governs the trees.
    pub(super) fn protections(&self, at: &str, root: &Path) -> Result<Protections> {
        let refused = |reason: &str| {
            Error::invalid_argument(format!(
                "the directory of the route `{at}` may not be mounted: {reason}; set its `root` to a directory apart from that"
            ))
        };
        self.protections_or(&VfsPathBuf::parse(at)?, root, refused)
    }

    /// Returns what is protected in a host directory, or the error that `refused` makes of the reason why no tree may be there.
    fn protections_or(&self, at: &VfsPath, root: &Path, refused: impl Fn(&str) -> Error) -> Result<Protections> {
        let mut protections = self.named_protections(at)?.with_root(canonical(root));
        let roots = [absolute(root), canonical(root)];
        let data = [absolute(&self.data), canonical(&self.data)];
        for (path, reason) in self.governing() {
            let paths = [absolute(&path), canonical(&path)];
            for (path, root) in paths.iter().flat_map(|path| roots.iter().map(move |root| (path, root))) {
                if root == path || root.starts_with(path) && !data.contains(path) {
                    return Err(refused(&reason));
                }
                if let Ok(beneath) = path.strip_prefix(root) {
                    protections = governed(protections, beneath, &reason);
                }
            }
        }
        Ok(protections)
    }

    /// Opens a directory of the host for a command that only reads it.
    ///
    /// # Errors
    /// [`NotFound`](treehold_core::error::ErrorKind::NotFound) without such a directory, and those of
    /// [`FilesystemBackend::open`](treehold_tree::backend::FilesystemBackend::open).
    #[cfg(all(feature = "cli", unix))]
    pub(crate) fn read_directory(&self, directory: &Path) -> Result<Arc<dyn Backend>> {
        let opened = FilesystemBackend::open(directory, FilesystemOptions::new()).map_err(|error| unopened(directory, &error))?;
        Ok(Arc::new(opened))
    }

    /// Opens a directory of the host for a command that writes into it, and creates it if it is missing. What is protected in a mounted
    /// directory is protected in it, too.
    ///
    /// # Errors
    /// [`InvalidArgument`](treehold_core::error::ErrorKind::InvalidArgument) for a directory at or inside something that governs the trees,
    /// and those of [`FilesystemBackend::open`](treehold_tree::backend::FilesystemBackend::open).
    #[cfg(all(feature = "cli", unix))]
    pub(crate) fn write_directory(&self, directory: &Path) -> Result<Arc<dyn Backend>> {
        let shown = directory.display();
        let refused =
            |reason: &str| Error::invalid_argument(format!("`{shown}` may not be written: {reason}; name a directory apart from that"));
        // Nothing is created in a place that is refused. A new directory has no other name that would be refused.
        self.protections_or(VfsPath::ROOT, directory, refused)?;
        let options = FilesystemOptions::new().with_create_root(true);
        let opened = FilesystemBackend::open(directory, options).map_err(|error| unopened(directory, &error))?;
        Ok(Arc::new(treehold_tree::layer::Protected::new(self.protections_or(VfsPath::ROOT, directory, refused)?, opened)))
    }

    /// Returns what is protected by name.
    pub(crate) fn named_protections(&self, at: &VfsPath) -> Result<Protections> {
        Protections::new(at).with_names(&self.protected.also)?.without(&self.protected.except)
    }

    /// Returns a stable thread id for the directory that the configuration is about: the name of the directory and a hash of its path. The
    /// directory is the root of the first filesystem route, or else the directory of the configuration.
    ///
    /// # Errors
    /// [`InvalidArgument`](treehold_core::error::ErrorKind::InvalidArgument) if the scope lacks a field of the root.
    pub fn project_thread(&self, scope: &Scope) -> Result<String> {
        let mut routes = self.routes.iter().filter(|(_, route)| route.tier == RouteType::Filesystem).map(|(path, _)| path.as_str());
        let root = match routes.next() {
            Some(path) => self.filesystem_root(path, scope)?,
            None => None,
        };
        let root = canonical(&root.unwrap_or_else(|| self.base.directory.clone()));
        let hash = blake3::hash(root.as_os_str().as_encoded_bytes()).to_hex();
        let name: String = root.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        let name: String = name.chars().filter(|letter| letter.is_ascii_alphanumeric() || "-_".contains(*letter)).take(40).collect();
        let name = if name.is_empty() { "project" } else { &name };
        Ok(format!("{name}-{}", &hash[..8]))
    }

    /// Returns whether the configuration file or the caller sets the thread of calls that name none.
    pub fn names_thread(&self) -> bool {
        let keys = ["scope", "thread"];
        self.settings().iter().any(|setting| setting.keys == keys && setting.origin != super::Origin::Default)
    }
}

/// Protects a path beneath the root that governs the trees. If no tree path can name it, it is out of reach, but the directories above it
/// are protected.
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

/// Checks the configured names.
pub(super) fn check_protected(protected: &ProtectedConfig) -> std::result::Result<(), (&'static str, Error)> {
    let none = || Protections::new(VfsPath::ROOT);
    none().with_names(&protected.also).map_err(|error| ("also", error))?;
    none().without(&protected.except).map(drop).map_err(|error| ("except", error))
}

fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned()).components().collect()
}

/// Names the host directory in an error that its root had.
#[cfg(all(feature = "cli", unix))]
fn unopened(directory: &Path, error: &Error) -> Error {
    Error::new(error.kind(), format!("the directory `{}` cannot be opened: {}", directory.display(), error.message()))
}

/// Resolves the links in a path as far as it exists. The missing rest is appended unchanged.
pub(super) fn canonical(path: &Path) -> PathBuf {
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
    use super::super::ConfigBase;
    use super::*;
    use std::fs;
    use std::sync::Arc;
    use treehold_agent::workspace::Workspace;
    use treehold_core::error::ErrorKind;
    use treehold_tree::backend::{Backend, BackendExt};

    /// Opens the tree of a route to a directory. In `home`, the data directory is `data` and the configuration `etc/own.toml`.
    async fn routed(home: &Path, root: &Path) -> Arc<dyn Backend> {
        let config = config(home, root);
        opened(&config, &config.workspace().expect("a workspace")).await
    }

    async fn opened(config: &Config, workspace: &Workspace) -> Arc<dyn Backend> {
        workspace.session(config.scope()).await.expect("opened").backend()
    }

    fn config(home: &Path, root: &Path) -> Config {
        let text = format!(
            "[stores.default]\nurl = \"sled:{{data}}/rows\"\n[stores.other]\nurl = \"sqlite:{{data}}/db/other.db\"\n[threads]\nsave = \
             false\n[traces]\nagents_file = \"agents.yaml\"\ninternal = {{ type = \"database\", url = \"sqlite:{{data}}/db/traces.db\" }}\n\
             external = {{ type = \"remote\", agents = [{{ url = \"https://h\", api_key = \"file:agent.key\" }}] }}\n[routes.\"/w\"]\ntype = \"filesystem\"\nroot = \"{}\"\n",
            root.display()
        );
        let place = ConfigBase::new(home.join("etc"), home.join("data")).with_file(home.join("etc/own.toml"));
        let mut config = Config::parse(&text, &place).expect("a sound configuration");
        config.add_governing(home.join("data/trusted"), "it says which configuration files are trusted");
        config
    }

    /// The directory that an earlier session opened stays open for a while, and must not hide where its path leads by now.
    #[tokio::test]
    async fn next_session_sees_where_the_root_leads_by_now() {
        let directory = tempfile::tempdir().expect("a directory");
        let home = directory.path().canonicalize().expect("it exists");
        for made in ["data/trusted", "etc", "one", "two"] {
            fs::create_dir_all(home.join(made)).expect("made");
        }
        let root = home.join("root");
        let lead = |to: &str| {
            let _ = fs::remove_file(&root);
            std::os::unix::fs::symlink(home.join(to), &root).expect("linked");
        };
        let config = config(&home, &root);
        let workspace = config.workspace().expect("a workspace");
        // An absent directory is looked for again by each call.
        let early = opened(&config, &workspace).await;
        early.read_text("/w/x").await.expect_err("nothing is there yet");
        lead("one");
        early.write("/w/x", "one").await.expect("written");
        assert_eq!(opened(&config, &workspace).await.read_text("/w/x").await.expect("read"), "one");
        lead("two");
        opened(&config, &workspace).await.write("/w/x", "two").await.expect("written");
        lead("data");
        let error = opened(&config, &workspace).await.write("/w/x", "data").await.expect_err("it holds the data of this program");
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
        lead("one");
        assert_eq!(opened(&config, &workspace).await.read_text("/w/x").await.expect("read"), "one");
        assert_eq!(fs::read_to_string(home.join("two/x")).expect("read"), "two");
        assert!(!home.join("data/x").exists());
    }

    /// Regression: with a root inside the data directory, nothing was protected.
    #[tokio::test]
    async fn route_inside_governing_files_is_refused_and_route_above_protects_them() {
        let directory = tempfile::tempdir().expect("a directory");
        let home = directory.path().canonicalize().expect("it exists");
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
                let error = tried.expect("every operation is refused");
                assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{refused}: {error}");
                assert!(error.message().contains("the directory of the route `/w` may not be mounted"), "{error}");
            }
        }
        for (root, protected) in [
            ("", &["data/x", "data/trusted/x", "data/rows/x", "data/db/other.db", "etc/own.toml", "link-to/data/x"][..]),
            ("data/db", &["other.db", "other.db-wal", "traces.db", "traces.db-shm"]),
            ("etc", &["own.toml", "agents.yaml", "agent.key"]),
        ] {
            let tree = routed(&home, &home.join(root)).await;
            for at in protected {
                let error = tree.write(&format!("/w/{at}"), "x").await.expect_err(at);
                assert!(error.message().contains("cannot be changed through this tree"), "{root} {at}: {error}");
            }
            tree.write("/w/free", "x").await.expect("the path is not protected");
        }
        routed(&home, &home.join("data/work")).await.write("/w/x", "x").await.expect("nothing is kept there");
    }

    /// Regression: the data was ignored, and a directory above it could be moved.
    #[tokio::test]
    async fn directories_above_unnameable_data_are_protected() {
        use std::os::unix::ffi::OsStrExt as _;
        let directory = tempfile::tempdir().expect("a directory");
        let home = directory.path().canonicalize().expect("it exists");
        let inner = home.join("a/b").join(std::ffi::OsStr::from_bytes(b"\xff"));
        fs::create_dir_all(inner.join("data/trusted")).expect("made");
        let text = format!("[threads]\nsave = false\n[routes.\"/w\"]\ntype = \"filesystem\"\nroot = \"{}\"\n", home.display());
        let config = Config::parse(&text, &ConfigBase::new(&home, inner.join("data"))).expect("a sound configuration");
        let tree = config.workspace().expect("a workspace").session(config.scope()).await.expect("opened").backend();
        for above in ["/w/a", "/w/a/b"] {
            tree.rename(above, "/w/moved").await.expect_err(above);
            tree.delete_all(above).await.expect_err(above);
        }
        tree.write("/w/a/b/free", "x").await.expect("the path is not protected");
    }
}
