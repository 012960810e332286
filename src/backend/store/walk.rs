//! The rows of a tree that a search selects, page by page.
//!
//! A walk reads keys in order, from the deepest directory that all results lie beneath, and seeks past what is not entered. The
//! ignore files it needs are read with one request a page: those on the page, and those that may still follow in directories
//! that the page leaves open.

use super::StoreBackend;
use super::rows::{Place, after_directory, directory_key, file_key};
use super::search::read_each;
use crate::backend::flat::{Stretch, Walk};
use crate::error::{ErrorKind, Result};
use crate::path::{VfsPath, VfsPathBuf};
use crate::search::ignore::IGNORE_FILE_NAMES;
use crate::store::{Item, ScanEntry, ScanOptions};
use bytes::Bytes;
use std::collections::{BTreeMap, HashMap, HashSet};

/// How many rows the first page has: few, as a limit may end the search with it.
const PAGE_ROWS_FIRST: usize = 128;

/// How many rows a page has at most.
const PAGE_ROWS_MAX: usize = 1_024;

/// A node that a search selected, with its row.
#[derive(Debug)]
pub(super) struct Selected {
    pub(super) place: Place,
    pub(super) item: Item,
    /// Whether the row was read with its body.
    pub(super) has_value: bool,
}

/// A walk in the making.
pub(super) struct StoreWalk<'b> {
    backend: &'b StoreBackend,
    walk: Walk,
    /// What comes next; none at the end.
    scan: Option<ScanOptions>,
    /// What was met before the first page.
    first: Option<Selected>,
    /// Of the last page: how many files stood on it, and how many of them were selected.
    yielded: (usize, usize),
    /// The directories that are still open, of which it is known whether they have ignore files, and which.
    resolved: HashSet<VfsPathBuf>,
}

impl<'b> StoreWalk<'b> {
    /// Looks at the search root and starts beneath it, or behind the cursor. Returns none when the root is a file. One round trip.
    ///
    /// # Errors
    /// [`NotFound`](crate::ErrorKind::NotFound) and those of the store.
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
        let mut this = Self { backend, walk, scan: None, first: None, yielded: (0, 0), resolved };
        this.add(ignores.by_directory()?);
        if let Some(stretch) = stretch {
            this.start(root, &stretch, rows.place(&stretch.from));
        }
        Ok(Some(this))
    }

    /// Finds the first row to ask for. The start itself was looked at already, so the scan runs behind it.
    fn start(&mut self, root: &VfsPath, stretch: &Stretch, from: Option<(Place, Item)>) {
        let mut start_after = directory_key(&stretch.from);
        if let Some(directory) = self.walk.obstacle(stretch) {
            start_after = after_directory(directory);
        } else if let Some((place, item)) = from.filter(|_| *stretch.from != *root) {
            let visit = self.walk.visit(&place.path, place.is_directory);
            if !visit.entered {
                start_after = after_directory(&place.path);
            }
            let ends = place.path == stretch.within && !visit.entered;
            self.first = visit.selected.then_some(Selected { place, item, has_value: false });
            if ends {
                return;
            }
        }
        let mut scan = ScanOptions::new().with_prefix(directory_key(&stretch.within)).with_limit(PAGE_ROWS_FIRST);
        scan.start_after = Some(start_after).filter(|key| !key.is_empty());
        self.scan = Some(scan);
    }

    /// Returns where the search starts.
    pub(super) fn root(&self) -> &VfsPath {
        self.walk.root()
    }

    /// Tells whether most files of the last page were selected.
    pub(super) fn wants_most(&self) -> bool {
        let (files, selected) = self.yielded;
        files > 0 && selected * 4 >= files * 3
    }

    /// Returns what is selected on the next page, and the error of each row that is no node of the tree; none at the end. Two round
    /// trips at most.
    ///
    /// # Errors
    /// Those of the store.
    pub(super) async fn next_page(&mut self, with_values: bool) -> Result<Option<Vec<Result<Selected>>>> {
        if let Some(first) = self.first.take() {
            return Ok(Some(vec![Ok(first)]));
        }
        let Some(mut scan) = self.scan.take() else { return Ok(None) };
        scan.with_values = with_values;
        let page = match self.backend.store.scan(&self.backend.namespace, scan.clone()).await {
            // One of the bodies is damaged: the keys are read alone, and each body when its turn comes.
            Err(error) if error.kind() == ErrorKind::Corrupt && with_values => {
                scan.with_values = false;
                self.backend.store.scan(&self.backend.namespace, scan.clone()).await?
            }
            page => page?,
        };
        let with_values = scan.with_values;
        let mut rows = Vec::with_capacity(page.entries.len());
        let mut selected = Vec::new();
        for entry in page.entries {
            let ScanEntry::Item(item) = entry else { continue };
            match Place::of(&item.key) {
                Ok(place) => rows.push((place, item)),
                // It stands nowhere in the tree, so it is told of where it is met: before what is selected with it.
                Err(error) => selected.push(Err(error)),
            }
        }
        let strangers = selected.len();
        self.read_ignore_files(&rows, page.next.is_some()).await?;
        let mut passing: Option<VfsPathBuf> = None;
        let count = rows.len() + strangers;
        let files = rows.iter().filter(|(place, _)| !place.is_directory).count();
        for (place, item) in rows {
            if passing.as_ref().is_some_and(|directory| place.path.starts_with(directory)) {
                continue;
            }
            let visit = self.walk.visit(&place.path, place.is_directory);
            passing = (place.is_directory && !visit.entered).then(|| place.path.clone());
            if visit.selected {
                selected.push(Ok(Selected { place, item, has_value: with_values }));
            }
        }
        self.yielded = (files, selected.len() - strangers);
        if let Some(next) = page.next {
            // What the page ended in is passed over; there may be more of the kind, so the next page is a small one.
            let (start_after, limit) = match passing {
                Some(directory) => (after_directory(&directory), (count / 4).max(16)),
                None => (next, (count * 2).clamp(PAGE_ROWS_FIRST, PAGE_ROWS_MAX)),
            };
            self.scan = Some(scan.with_start_after(start_after).with_limit(limit));
        }
        Ok(Some(selected))
    }

    /// Reads the ignore files that rule the rows of a page and of what follows it in the same directories.
    ///
    /// A directory that starts and ends on the page has none but those on it. One that the page leaves open may have some
    /// behind its last row; of one that earlier pages left open that is known.
    async fn read_ignore_files(&mut self, rows: &[(Place, Item)], goes_on: bool) -> Result<()> {
        let Some((last, last_item)) = rows.last().filter(|_| self.walk.wants_ignore_files()) else { return Ok(()) };
        let mut wanted = Rows::default();
        let mut passing: Option<&VfsPath> = None;
        for (place, _) in rows {
            if passing.is_some_and(|directory| place.path.starts_with(directory)) {
                continue;
            }
            // The rules are not complete yet and one may take another back, so they do not count here.
            passing = (place.is_directory && !self.walk.may_enter(&place.path)).then_some(&*place.path);
            if place.is_directory || !IGNORE_FILE_NAMES.contains(&place.path.name()) {
                continue;
            }
            if !self.resolved.contains(place.path.parent().unwrap_or(VfsPath::ROOT)) {
                wanted.ask(file_key(&place.path));
            }
        }
        self.resolved.retain(|directory| last.path.starts_with(directory));
        if goes_on {
            let itself = (last.is_directory && passing.is_none()).then_some(&*last.path);
            let end = passing.unwrap_or(&last.path);
            for directory in end.ancestors().chain(itself) {
                if self.resolved.insert(directory.to_owned()) {
                    wanted.ask_ignore_files_after(directory, &last_item.key);
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

/// Rows to be read by key, and what was read.
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
        // A directory whose path is too long for the name has no such file.
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
        // A damaged ignore file rules nothing, as one that is not there; the search tells of it if it selects it.
        let items = match with_values {
            true => read_each(backend, &keys).await?.into_iter().filter_map(Result::ok).collect(),
            false => backend.store.get_many(&backend.namespace, &keys, false).await?,
        };
        for item in items.into_iter().flatten() {
            self.keys.insert(item.key.clone(), Some(item));
        }
        Ok(())
    }

    fn place(&self, path: &VfsPath) -> Option<(Place, Item)> {
        let of = |key: String, is_directory: bool| {
            let item = self.keys.get(&key)?.clone()?;
            Some((Place { path: path.to_owned(), is_directory }, item))
        };
        of(file_key(path), false).or_else(|| of(directory_key(path), true))
    }

    /// Returns the ignore files read, by directory.
    fn by_directory(self) -> Result<BTreeMap<VfsPathBuf, [Option<Bytes>; 2]>> {
        let mut by_directory: BTreeMap<VfsPathBuf, [Option<Bytes>; 2]> = BTreeMap::new();
        for item in self.keys.into_values().flatten() {
            let Place { path, .. } = Place::of(&item.key)?;
            let slot = IGNORE_FILE_NAMES.iter().position(|name| *name == path.name());
            if let (Some(slot), Some(directory)) = (slot, path.parent()) {
                by_directory.entry(directory.to_owned()).or_default()[slot] = Some(item.value);
            }
        }
        Ok(by_directory)
    }
}
