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
    pub(super) fn protections(&self, at: &str, root: &Path) -> Result<Protections> {
        let at = VfsPathBuf::parse(at)?;
        let mut protections = self.named_protections(&at)?;
        let roots = [absolute(root), canonical(root)];
        for (path, reason) in self.governing() {
            let paths = [absolute(&path), canonical(&path)];
            let beneath = paths.iter().flat_map(|path| roots.iter().filter_map(|root| path.strip_prefix(root).ok()));
            for beneath in beneath {
                let Some(text) = beneath.to_str().filter(|text| !text.is_empty()) else { continue };
                if let Ok(path) = VfsPathBuf::parse(format!("/{text}")) {
                    protections = protections.with_governing(&path, &reason);
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
