//! The host directories of a route. A session opens one with the first call that reaches it, and other sessions share it for a second.

use async_trait::async_trait;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::fmt;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use treehold_core::error::Result;
use treehold_core::ops::Capabilities;
use treehold_core::path::VfsPath;
use treehold_tree::backend::Backend;
use treehold_tree::forward_backend;

/// How many directories a route keeps open. Each takes a file handle.
const OPEN_MAX: usize = 256;

/// How long a directory stays open. What is protected in it depends on links of the host above it and above the files that govern the
/// trees; a change of those takes effect within this time.
const KEPT_FOR: Duration = Duration::from_secs(1);

/// Host directories by path. A session gets the one that is open instead of resolving all paths of the host that no tree may change.
pub(super) struct Directories {
    /// The capabilities of every directory of the route.
    capabilities: Capabilities,
    open: Open,
    kept: Mutex<Kept>,
}

type Open = Box<dyn Fn(&Path) -> Result<Arc<dyn Backend>> + Send + Sync>;

#[derive(Debug, Default)]
struct Kept {
    opened: HashMap<PathBuf, Opened>,
    /// The task that closes them in time. It ends with its runtime, or when none is open.
    closing: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Opened {
    tree: Arc<dyn Backend>,
    identity: Identity,
    at: Instant,
}

/// The device and the number of a directory. The number is not given to another directory while this one is open.
type Identity = (u64, u64);

impl Directories {
    /// Keeps the directories that `open` opens.
    pub(super) fn new(capabilities: Capabilities, open: impl Fn(&Path) -> Result<Arc<dyn Backend>> + Send + Sync + 'static) -> Self {
        Self { capabilities, open: Box::new(open), kept: Mutex::default() }
    }

    /// Returns the tree of a directory. Opens it if it was not opened within the last second, or if the path leads to another one by now.
    ///
    /// Cost: one system call for a directory that is open.
    ///
    /// # Errors
    /// Those of opening, which are not kept.
    fn get_or_open(self: &Arc<Self>, root: &Path) -> Result<Arc<dyn Backend>> {
        let tree = self.get_or_open_at(root, Instant::now())?;
        self.close_in_time();
        Ok(tree)
    }

    fn get_or_open_at(&self, root: &Path, now: Instant) -> Result<Arc<dyn Backend>> {
        let before = identity(root);
        if let Some(opened) = self.kept.lock().opened.get(root)
            && before == Some(opened.identity)
            && opened.is_fresh(now)
        {
            return Ok(opened.tree.clone());
        }
        let tree = (self.open)(root)?;
        // If the path led elsewhere in between, nobody knows which directory was opened.
        if let Some(identity) = before.filter(|before| identity(root) == Some(*before)) {
            self.kept.lock().insert(root, Opened { tree: tree.clone(), identity, at: now });
        }
        Ok(tree)
    }

    /// Closes directories in time, so that a route which is no longer used keeps no file system busy. Without a runtime, the next opening
    /// closes them.
    fn close_in_time(self: &Arc<Self>) {
        let mut kept = self.kept.lock();
        if kept.opened.is_empty() || kept.closing.as_ref().is_some_and(|task| !task.is_finished()) {
            return;
        }
        let Ok(runtime) = Handle::try_current() else { return };
        let directories = Arc::downgrade(self);
        kept.closing = Some(runtime.spawn(async move {
            loop {
                tokio::time::sleep(KEPT_FOR).await;
                let Some(directories) = directories.upgrade() else { return };
                let mut kept = directories.kept.lock();
                kept.close_old(Instant::now());
                if kept.opened.is_empty() {
                    kept.closing = None;
                    return;
                }
            }
        }));
    }
}

/// The host directory of one session. The first call that opens it successfully pins it for the session. If it cannot be opened, calls that
/// reach it fail, and the rest of the tree works.
#[derive(Debug)]
pub(super) struct Directory {
    all: Arc<Directories>,
    root: PathBuf,
    opened: OnceLock<Arc<dyn Backend>>,
}

impl Directory {
    /// Makes the tree of a directory, without opening it.
    pub(super) fn new(all: Arc<Directories>, root: PathBuf) -> Self {
        Self { all, root, opened: OnceLock::new() }
    }

    fn tree(&self) -> Result<&Arc<dyn Backend>> {
        match self.opened.get() {
            Some(tree) => Ok(tree),
            None => {
                // The failure concerns the root, whatever path was requested.
                let tree = self.all.get_or_open(&self.root).map_err(|error| error.at(VfsPath::ROOT))?;
                Ok(self.opened.get_or_init(|| tree))
            }
        }
    }
}

impl fmt::Display for Directory {
    /// Shows an unopened directory as an open one, without its host path.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.opened.get(), self.root.file_name()) {
            (Some(tree), _) => tree.fmt(f),
            (None, Some(name)) => write!(f, "Protected(Filesystem({}))", name.to_string_lossy()),
            (None, None) => f.write_str("Protected(Filesystem)"),
        }
    }
}

#[async_trait]
impl Backend for Directory {
    fn capabilities(&self) -> Capabilities {
        self.all.capabilities.clone()
    }

    forward_backend! { self => self.tree()?; stat, read, ls, glob, grep, search, apply, review }
}

impl fmt::Debug for Directories {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Directories").field("kept", &self.kept).finish_non_exhaustive()
    }
}

impl Kept {
    fn close_old(&mut self, now: Instant) {
        self.opened.retain(|_, opened| opened.is_fresh(now));
    }

    /// Keeps a directory open. If there are too many, the one opened first is closed.
    fn insert(&mut self, root: &Path, opened: Opened) {
        self.close_old(opened.at);
        if self.opened.len() >= OPEN_MAX
            && !self.opened.contains_key(root)
            && let Some(oldest) = self.opened.iter().min_by_key(|(_, opened)| opened.at).map(|(root, _)| root.clone())
        {
            self.opened.remove(&oldest);
        }
        self.opened.insert(root.to_owned(), opened);
    }
}

impl Opened {
    fn is_fresh(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.at) < KEPT_FOR
    }
}

fn identity(root: &Path) -> Option<Identity> {
    fs::metadata(root).ok().map(|found| (found.dev(), found.ino()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;
    use std::sync::atomic::{AtomicBool, Ordering};
    use treehold_core::error::Error;
    use treehold_tree::backend::{BackendExt, FilesystemBackend, FilesystemOptions, StateBackend};

    fn opened() -> Arc<dyn Backend> {
        Arc::new(StateBackend::new())
    }

    fn directories(open: impl Fn(&Path) -> Result<Arc<dyn Backend>> + Send + Sync + 'static) -> Directories {
        Directories::new(Capabilities::new(), open)
    }

    #[test]
    fn open_directory_is_shared_until_it_is_replaced_or_old() {
        let home = tempfile::tempdir().expect("a directory");
        let (one, other, link) = (home.path().join("one"), home.path().join("other"), home.path().join("link"));
        fs::create_dir(&one).expect("made");
        fs::create_dir(&other).expect("made");
        symlink(&one, &link).expect("linked");
        let (all, now) = (directories(|_| Ok(opened())), Instant::now());
        let get = |root: &Path, now: Instant| all.get_or_open_at(root, now).expect("opened");
        let first = get(&link, now);
        assert!(Arc::ptr_eq(&first, &get(&link, now + KEPT_FOR / 2)), "a second session opened it again");
        assert!(!Arc::ptr_eq(&first, &get(&one, now)), "two paths, two trees");
        let late = get(&link, now + KEPT_FOR);
        assert!(!Arc::ptr_eq(&first, &late), "what governs it was not looked at again");
        fs::remove_file(&link).expect("removed");
        symlink(&other, &link).expect("linked");
        assert!(!Arc::ptr_eq(&late, &get(&link, now + KEPT_FOR)), "the link leads to another directory");
    }

    #[test]
    fn what_may_be_another_directory_is_not_kept() {
        let home = tempfile::tempdir().expect("a directory");
        let (one, other, link) = (home.path().join("one"), home.path().join("other"), home.path().join("link"));
        fs::create_dir(&one).expect("made");
        fs::create_dir(&other).expect("made");
        symlink(&one, &link).expect("linked");
        let (swapped, to) = (link.clone(), other.clone());
        let all = directories(move |root| {
            if root == swapped {
                fs::remove_file(&swapped).expect("removed");
                symlink(&to, &swapped).expect("linked");
            }
            fs::create_dir_all(root).map_err(|error| Error::invalid_argument(error.to_string()))?;
            Ok(opened())
        });
        let now = Instant::now();
        all.get_or_open_at(&link, now).expect("opened");
        assert!(all.kept.lock().opened.is_empty(), "the link was changed meanwhile");
        let absent = home.path().join("absent");
        all.get_or_open_at(&absent, now).expect("opened");
        assert!(all.kept.lock().opened.is_empty(), "it was created meanwhile");
        let made = all.get_or_open_at(&absent, now).expect("opened");
        assert!(Arc::ptr_eq(&made, &all.get_or_open_at(&absent, now).expect("opened")));
    }

    #[test]
    fn failure_is_not_kept() {
        let home = tempfile::tempdir().expect("a directory");
        let is_refused = Arc::new(AtomicBool::new(true));
        let refused = is_refused.clone();
        let all = directories(move |_| match refused.load(Ordering::Relaxed) {
            true => Err(Error::invalid_argument("it governs")),
            false => Ok(opened()),
        });
        let now = Instant::now();
        all.get_or_open_at(home.path(), now).expect_err("refused");
        is_refused.store(false, Ordering::Relaxed);
        all.get_or_open_at(home.path(), now).expect("opened");
    }

    #[test]
    fn number_of_open_directories_is_bounded() {
        let home = tempfile::tempdir().expect("a directory");
        let (all, now) = (directories(|_| Ok(opened())), Instant::now());
        for number in 0..OPEN_MAX as u32 + 10 {
            let root = home.path().join(number.to_string());
            fs::create_dir(&root).expect("made");
            all.get_or_open_at(&root, now + Duration::from_micros(number.into())).expect("opened");
        }
        let mut kept = all.kept.lock();
        assert_eq!(kept.opened.len(), OPEN_MAX);
        assert!(!kept.opened.contains_key(&home.path().join("0")), "the first one opened is closed first");
        kept.close_old(now + Duration::from_micros(20) + KEPT_FOR);
        assert_eq!(kept.opened.len(), OPEN_MAX + 10 - 21, "those of an earlier second are closed");
    }

    #[tokio::test]
    async fn session_opens_its_directory_when_it_exists_and_keeps_it() {
        let home = tempfile::tempdir().expect("a directory");
        let (root, old) = (home.path().join("root"), home.path().join("old"));
        let open = |root: &Path| Ok(Arc::new(FilesystemBackend::open(root, FilesystemOptions::new())?) as Arc<dyn Backend>);
        let all = Arc::new(Directories::new(FilesystemOptions::new().capabilities(), open));
        let session = || Directory::new(all.clone(), root.clone());
        let early = session();
        let missing = early.read_text("/plan.md").await.expect_err("no directory");
        assert_eq!(missing.path(), Some(VfsPath::ROOT));
        let fill = |content: &str| {
            fs::create_dir(&root).expect("made");
            fs::write(root.join("plan.md"), content).expect("written");
        };
        fill("before");
        assert_eq!(early.read_text("/plan.md").await.expect("read"), "before");
        fs::rename(&root, &old).expect("moved away");
        fill("after");
        assert_eq!(session().read_text("/plan.md").await.expect("read"), "after", "the next session follows the path");
        assert_eq!(early.read_text("/plan.md").await.expect("read"), "before", "an open one does not");
    }

    /// A route that is no longer used must not keep a file system busy.
    #[tokio::test(start_paused = true)]
    async fn idle_directory_is_closed() {
        let home = tempfile::tempdir().expect("a directory");
        let all = Arc::new(directories(|_| Ok(opened())));
        let tree = Arc::downgrade(&all.get_or_open(home.path()).expect("opened"));
        assert!(tree.upgrade().is_some(), "it stays open between sessions");
        tokio::time::sleep(2 * KEPT_FOR).await;
        assert!(tree.upgrade().is_none());
        assert!(all.kept.lock().closing.is_none());
    }

    #[test]
    fn idle_directory_is_closed_although_an_earlier_runtime_has_ended() {
        let home = tempfile::tempdir().expect("a directory");
        let all = Arc::new(directories(|_| Ok(opened())));
        let runtime = || tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().expect("a runtime");
        runtime().block_on(async { all.get_or_open(home.path()).expect("opened") });
        runtime().block_on(async {
            let tree = Arc::downgrade(&all.get_or_open(home.path()).expect("opened"));
            tokio::time::sleep(2 * KEPT_FOR).await;
            assert!(tree.upgrade().is_none());
        });
    }
}
