//! Walks the rows that a search selects, page by page.
//!
//! A walk reads keys in order, starting at the deepest directory that contains all possible results, and seeks past directories
//! that it does not enter. It reads the ignore files it needs with one request for each page: those on the page, and those that
//! may follow in directories that the page leaves open.
//!
//! If an index names the candidate files, the walk visits only those and their parent directories.

use super::StoreBackend;
use super::lent::LentStretch;
use crate::backend::flat::{Stretch, Walk};
use crate::rows::{KeyReader, RowKey, SEPARATOR, after_directory, directory_key, file_key, is_directory_or_named, read_each};
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use treehold_core::error::{ErrorKind, Result};
use treehold_core::path::{VfsPath, VfsPathBuf};
use treehold_core::search::ignore::IGNORE_FILE_NAMES;
use treehold_store::{Item, RowsSnapshot, ScanEntry, ScanOptions, StoreExt};

/// The number of rows on the first page. It is small because a limit may end the search within it.
const PAGE_ROWS_FIRST: usize = 128;

/// The most rows on a page.
const PAGE_ROWS_MAX: usize = 1_024;

/// A node that a search selected, with its row.
#[derive(Debug)]
pub(super) struct Selected {
    pub(super) item: Item,
    pub(super) body: Body,
}

/// How the body of a row was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Body {
    /// It was not requested.
    Unread,
    /// It is in the item.
    Read,
    /// The store left it out: it has this many bytes and does not contain the requested text.
    LeftOut(u64),
}

/// The files that an index names.
#[derive(Debug)]
struct Listed {
    keys: std::vec::IntoIter<String>,
    /// Whether each visited directory is entered.
    entered: HashMap<VfsPathBuf, bool>,
}

/// A walk in progress.
pub(super) struct StoreWalk<'b> {
    backend: &'b StoreBackend,
    walk: Walk,
    /// The next scan, or `None` at the end.
    scan: Option<ScanOptions>,
    /// If set, the only rows to visit.
    listed: Option<Listed>,
    /// If set, the text that a body must contain to be of use.
    holding: Option<Bytes>,
    /// A node that was selected before the first page.
    first: Option<Selected>,
    /// The number of files on the last page, and how many of them were selected.
    yielded: (usize, usize),
    /// The start of the walk. All directories down to it have been looked up.
    from: VfsPathBuf,
    /// The open directories whose ignore files are known.
    resolved: HashSet<VfsPathBuf>,
}

impl<'b> StoreWalk<'b> {
    /// Looks up the search root and starts beneath it, or after the cursor. Returns `None` if the root is a file. Cost: one round
    /// trip.
    ///
    /// # Errors
    /// [`NotFound`](treehold_core::error::ErrorKind::NotFound) if there is no such path, and errors of the store.
    pub(super) async fn begin(backend: &'b StoreBackend, walk: Walk, root: &VfsPath, cursor: Option<&VfsPath>) -> Result<Option<Self>> {
        let stretch = walk.stretch(cursor);
        let from = stretch.as_ref().map_or(root, |stretch| &stretch.from);
        let mut rows = Rows::default();
        rows.ask_place(root);
        rows.ask_place(from);
        let mut ignores = Rows::default();
        if walk.wants_ignore_files() && stretch.is_some() {
            for directory in from.ancestors().chain([from]) {
                ignores.ask_ignore_files(directory);
            }
        }
        futures::try_join!(rows.fetch(backend, false), ignores.fetch(backend, true))?;
        match rows.place(root) {
            _ if root.is_root() => {}
            Some((place, _)) if place.is_directory => {}
            Some(_) => return Ok(None),
            None => return Err(backend.missing(root).await),
        }
        let resolved = from.ancestors().chain([from]).map(ToOwned::to_owned).collect();
        let mut this =
            Self { backend, walk, scan: None, listed: None, holding: None, first: None, yielded: (0, 0), from: from.to_owned(), resolved };
        this.add(ignores.by_directory()?);
        if let Some(stretch) = stretch {
            this.start(root, &stretch, rows.place(&stretch.from));
        }
        Ok(Some(this))
    }

    /// Determines the first scan. It starts after the start path, which has been looked up already.
    fn start(&mut self, root: &VfsPath, stretch: &Stretch, from: Option<(RowKey, Item)>) {
        let mut start_after = directory_key(&stretch.from);
        if let Some(directory) = self.walk.obstacle(stretch) {
            start_after = after_directory(directory);
        } else if let Some((place, item)) = from.filter(|_| *stretch.from != *root) {
            let visit = self.walk.visit(&place.path, place.is_directory);
            if !visit.entered {
                start_after = after_directory(&place.path);
            }
            let ends = place.path == stretch.within && !visit.entered;
            self.first = visit.selected.then_some(Selected { item, body: Body::Unread });
            if ends {
                return;
            }
        }
        let mut scan = ScanOptions::new().with_prefix(directory_key(&stretch.within)).with_limit(PAGE_ROWS_FIRST);
        scan.start_after = Some(start_after).filter(|key| !key.is_empty());
        self.scan = Some(scan);
    }

    /// Continues the walk over rows that the store lends.
    pub(super) fn over(self, rows: Arc<dyn RowsSnapshot>) -> LentStretch {
        let keys = self.scan.map(|scan| {
            // The scan excludes its start key, so begin with the smallest key after it.
            let start = scan.start_after.filter(|after| *after >= scan.prefix).map_or_else(|| scan.prefix.clone(), |after| after + "\0");
            (start, scan.prefix.strip_suffix(SEPARATOR).map(|directory| format!("{directory}\u{2}")))
        });
        let first = self.first.map(|selected| selected.item.key);
        LentStretch { rows, walk: self.walk, from: self.from, first, keys }
    }

    /// Restricts the walk to these files.
    pub(super) fn only(&mut self, keys: BTreeSet<String>) {
        let Some(scan) = self.scan.take() else { return };
        let after = scan.start_after.as_deref().unwrap_or_default();
        let keys: Vec<String> = keys.into_iter().filter(|key| key.starts_with(&scan.prefix) && **key > *after).collect();
        self.listed = Some(Listed { keys: keys.into_iter(), entered: HashMap::new() });
    }

    /// Lets the store leave out bodies that do not contain this text.
    pub(super) fn only_containing(&mut self, text: Option<Bytes>) {
        self.holding = text;
    }

    /// Returns the selected files among the next ones of the list, or `None` at the end. Cost: at most two round trips.
    async fn next_listed(&mut self, mut listed: Listed) -> Result<Option<Vec<Result<Selected>>>> {
        let keys: Vec<String> = listed.keys.by_ref().take(PAGE_ROWS_MAX).collect();
        if keys.is_empty() {
            return Ok(None);
        }
        let mut places = Vec::with_capacity(keys.len());
        let mut wanted = Rows::default();
        let mut unknown = BTreeSet::new();
        for key in keys {
            // Only files of the tree are indexed.
            let Ok(place) = RowKey::of(&key) else { continue };
            for directory in place.path.ancestors().filter(|above| above.starts_with(self.walk.root()) && **above != *self.walk.root()) {
                if !listed.entered.contains_key(directory) && unknown.insert(directory.to_owned()) && self.walk.wants_ignore_files() {
                    wanted.ask_ignore_files(directory);
                }
            }
            places.push((place, key));
        }
        wanted.fetch(self.backend, true).await?;
        self.add(wanted.by_directory()?);
        for directory in unknown {
            // Parents come first, and nothing beneath a skipped directory is entered.
            let above = directory.parent().and_then(|parent| listed.entered.get(parent)).copied().unwrap_or(true);
            let entered = self.from.starts_with(&directory) || (above && self.walk.visit(&directory, true).entered);
            listed.entered.insert(directory, entered);
        }
        places.retain(|(place, _)| {
            let is_in = place.path.parent().and_then(|parent| listed.entered.get(parent)).copied().unwrap_or(true);
            is_in && self.walk.visit(&place.path, false).selected
        });
        self.listed = Some(listed);
        let keys: Vec<&str> = places.iter().map(|(_, key)| key.as_str()).collect();
        let items = if keys.is_empty() { Vec::new() } else { self.backend.store.get_many(&self.backend.namespace, &keys, false).await? };
        Ok(Some(items.into_iter().flatten().map(|item| Ok(Selected { item, body: Body::Unread })).collect()))
    }

    /// Returns the root of the search.
    pub(super) fn root(&self) -> &VfsPath {
        self.walk.root()
    }

    /// Returns whether at least three quarters of the files on the last page were selected.
    pub(super) fn wants_most(&self) -> bool {
        let (files, selected) = self.yielded;
        files > 0 && selected * 4 >= files * 3
    }

    /// Returns the selected nodes of the next page, and an error for each row that does not belong to the tree; `None` at the
    /// end. Cost: at most two round trips.
    ///
    /// # Errors
    /// Errors of the store.
    pub(super) async fn next_page(&mut self, with_values: bool) -> Result<Option<Vec<Result<Selected>>>> {
        if let Some(first) = self.first.take() {
            return Ok(Some(vec![Ok(first)]));
        }
        if let Some(listed) = self.listed.take() {
            return self.next_listed(listed).await;
        }
        let Some(mut scan) = self.scan.take() else { return Ok(None) };
        scan.with_values = with_values;
        let (store, namespace) = (&self.backend.store, &self.backend.namespace);
        let page = match &self.holding {
            Some(text) => store.scan_holding(namespace, scan.clone(), text).await,
            None => store.scan(namespace, scan.clone()).await,
        };
        let page = match page {
            // A body is damaged: read only the keys now, and the bodies one by one later.
            Err(error) if error.kind() == ErrorKind::Corrupt && with_values => {
                scan.with_values = false;
                store.scan(namespace, scan.clone()).await?
            }
            page => page?,
        };
        let with_values = scan.with_values;
        self.read_ignore_files(&page.entries, page.next.is_some()).await?;
        let (count, mut files) = (page.entries.len(), 0);
        let mut foreign = Vec::new();
        let mut passing: Option<VfsPathBuf> = None;
        // Most rows are visited once and then dropped, so decode their paths into one buffer, and reuse the list that the store
        // allocated.
        let mut reader = KeyReader::new();
        let select = |entry| {
            let (item, body) = match entry {
                ScanEntry::Item(item) => (item, if with_values { Body::Read } else { Body::Unread }),
                ScanEntry::LeftOut { item, value_bytes } => (item, Body::LeftOut(value_bytes)),
                ScanEntry::Group { .. } => return None,
            };
            let (path, is_directory) = match reader.read(&item.key) {
                Ok(read) => read,
                // The row has no position in the tree, so report it before the nodes selected on its page.
                Err(error) => {
                    foreign.push(Err(error));
                    return None;
                }
            };
            files += usize::from(!is_directory);
            if passing.as_ref().is_some_and(|directory| path.starts_with(directory)) {
                return None;
            }
            let visit = self.walk.visit(path, is_directory);
            passing = (is_directory && !visit.entered).then(|| path.to_owned());
            visit.selected.then_some(Ok(Selected { item, body }))
        };
        let mut selected: Vec<Result<Selected>> = page.entries.into_iter().filter_map(select).collect();
        self.yielded = (files, selected.len());
        if !foreign.is_empty() {
            selected.splice(..0, foreign);
        }
        if let Some(next) = page.next {
            // Skip the rest of the directory the page ended in. There may be more such directories, so the next page is small.
            let (start_after, limit) = match passing {
                Some(directory) => (after_directory(&directory), (count / 4).max(16)),
                None => (next, (count * 2).clamp(PAGE_ROWS_FIRST, PAGE_ROWS_MAX)),
            };
            self.scan = Some(scan.with_start_after(start_after).with_limit(limit));
        }
        Ok(Some(selected))
    }

    /// Reads the ignore files that apply to the rows of a page and to later rows in the same directories.
    ///
    /// If a directory starts and ends on the page, all its ignore files are on it. If the page leaves a directory open, more may
    /// follow after the last row. Those of directories that earlier pages left open are known already.
    async fn read_ignore_files(&mut self, rows: &[ScanEntry], goes_on: bool) -> Result<()> {
        if !self.walk.wants_ignore_files() {
            return Ok(());
        }
        let last = rows.iter().rev().find_map(|row| Some((RowKey::of(row.key()).ok()?, row.key())));
        let Some((last, last_key)) = last else { return Ok(()) };
        let mut wanted = Rows::default();
        let mut passing: Option<VfsPathBuf> = None;
        // Only directories and ignore files matter here, and they are a small share of the rows.
        let decisive = rows.iter().map(ScanEntry::key).filter(|key| is_directory_or_named(key, &IGNORE_FILE_NAMES));
        for place in decisive.filter_map(|key| RowKey::of(key).ok()) {
            if passing.as_ref().is_some_and(|directory| place.path.starts_with(directory)) {
                continue;
            }
            if !place.is_directory {
                if !self.resolved.contains(place.path.parent().unwrap_or(VfsPath::ROOT)) {
                    wanted.ask(file_key(&place.path));
                }
                continue;
            }
            // Rules of this page are not loaded yet and one may re-include the directory, so ask only whether it may be entered.
            passing = (!self.walk.may_enter(&place.path)).then_some(place.path);
        }
        let passing = passing.filter(|directory| last.path.starts_with(directory));
        self.resolved.retain(|directory| last.path.starts_with(directory));
        if goes_on {
            let itself = (last.is_directory && passing.is_none()).then_some(&*last.path);
            let end = passing.as_ref().unwrap_or(&last.path);
            for directory in end.ancestors().chain(itself) {
                if self.resolved.insert(directory.to_owned()) {
                    wanted.ask_ignore_files_after(directory, last_key);
                }
            }
        }
        wanted.fetch(self.backend, true).await?;
        self.add(wanted.by_directory()?);
        Ok(())
    }

    fn add(&mut self, by_directory: BTreeMap<VfsPathBuf, [Option<Bytes>; 2]>) {
        for (directory, contents) in by_directory {
            self.walk.add_ignore_files(&directory, [contents[0].as_deref(), contents[1].as_deref()]);
        }
    }
}

/// Rows to be read by key, and the results.
#[derive(Default)]
struct Rows {
    keys: HashMap<String, Option<Item>>,
}

impl Rows {
    fn ask(&mut self, key: String) {
        if !key.is_empty() {
            self.keys.insert(key, None);
        }
    }

    fn ask_place(&mut self, path: &VfsPath) {
        self.ask(file_key(path));
        self.ask(directory_key(path));
    }

    fn ask_ignore_files(&mut self, directory: &VfsPath) {
        self.ask_ignore_files_after(directory, "");
    }

    fn ask_ignore_files_after(&mut self, directory: &VfsPath, key: &str) {
        // If the path would be too long, the file cannot exist.
        let files = IGNORE_FILE_NAMES.iter().filter_map(|name| directory.child(name).ok());
        for file in files.map(|path| file_key(&path)).filter(|file| &**file > key) {
            self.ask(file);
        }
    }

    async fn fetch(&mut self, backend: &StoreBackend, with_values: bool) -> Result<()> {
        if self.keys.is_empty() {
            return Ok(());
        }
        let keys: Vec<&str> = self.keys.keys().map(String::as_str).collect();
        // Treat a damaged ignore file as absent; the search reports it if it selects it.
        let items = match with_values {
            true => read_each(&*backend.store, &backend.namespace, &keys).await?.into_iter().filter_map(Result::ok).collect(),
            false => backend.store.get_many(&backend.namespace, &keys, false).await?,
        };
        for item in items.into_iter().flatten() {
            self.keys.insert(item.key.clone(), Some(item));
        }
        Ok(())
    }

    fn place(&self, path: &VfsPath) -> Option<(RowKey, Item)> {
        let of = |key: String, is_directory: bool| {
            let item = self.keys.get(&key)?.clone()?;
            Some((RowKey { path: path.to_owned(), is_directory }, item))
        };
        of(file_key(path), false).or_else(|| of(directory_key(path), true))
    }

    /// Returns the ignore files that were read, by directory.
    fn by_directory(self) -> Result<BTreeMap<VfsPathBuf, [Option<Bytes>; 2]>> {
        let mut by_directory: BTreeMap<VfsPathBuf, [Option<Bytes>; 2]> = BTreeMap::new();
        for item in self.keys.into_values().flatten() {
            let RowKey { path, .. } = RowKey::of(&item.key)?;
            let slot = IGNORE_FILE_NAMES.iter().position(|name| *name == path.name());
            if let (Some(slot), Some(directory)) = (slot, path.parent()) {
                by_directory.entry(directory.to_owned()).or_default()[slot] = Some(item.value);
            }
        }
        Ok(by_directory)
    }
}
