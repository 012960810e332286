//! Repositories without a fixed name: directories that a version control system recognizes by what they contain.
//!
//! Git treats any directory that contains `HEAD`, `objects` and `refs` as a repository, and runs the commands of its `config` and its
//! `hooks`: <https://git-scm.com/docs/git-config#Documentation/git-config.txt-safebareRepository>. The other systems of
//! [`RUNS_CODE`](super::RUNS_CODE) keep theirs in a directory of a fixed name (`.hg`, `.jj`, `.sl`, `.bzr`, `_darcs`, `CVSROOT`) or in
//! one file (`*.fossil`), which the list has. A Subversion server's repository is named on its command line and runs its `hooks`.

use super::name::{Folded, Pattern};
use std::collections::HashMap;
use std::sync::LazyLock;
use treehold_core::path::{VfsPath, VfsPathBuf};

/// A kind of repository.
#[derive(Debug)]
pub(super) struct Repository {
    /// The names that such a directory contains. The rarest is first, because the first missing one ends the check.
    pub(super) marks: &'static [&'static str],
    /// Whether programs find such a repository on their own. Then no change may complete one.
    pub(super) is_found: bool,
    pub(super) reason: &'static str,
}

const GIT: &str =
    "git treats the directory as a repository (`HEAD`, `objects`, `refs`) and runs the hooks and commands of its configuration";
const GIT_WORKTREE: &str =
    "git treats the directory as a repository (`HEAD`, `commondir`) and runs the hooks and commands of its configuration";
const SUBVERSION: &str = "the directory is a repository of subversion (`format`, `db`, `hooks`, `locks`), which runs the hooks in it";

static REPOSITORIES: [Repository; 3] = [
    Repository { marks: &["HEAD", "objects", "refs"], is_found: true, reason: GIT },
    Repository { marks: &["HEAD", "commondir"], is_found: true, reason: GIT_WORKTREE },
    Repository { marks: &["format", "locks", "hooks", "db"], is_found: false, reason: SUBVERSION },
];

static MARKS: LazyLock<Vec<(&str, Pattern)>> = LazyLock::new(|| {
    let all = REPOSITORIES.iter().flat_map(|repository| repository.marks);
    all.map(|mark| (*mark, Pattern::new(mark))).collect()
});

/// The marks found in each directory of a walk.
#[derive(Debug, Default)]
pub(super) struct Repositories(HashMap<VfsPathBuf, Vec<&'static str>>);

impl Repositories {
    pub(super) fn all() -> &'static [Repository] {
        &REPOSITORIES
    }

    /// Returns whether some file system treats a name as equal to a mark.
    pub(super) fn is_mark(mark: &str, name: &str) -> bool {
        let name = Folded::new(name);
        MARKS.iter().any(|(own, pattern)| *own == mark && name.is_of(pattern))
    }

    /// Returns whether a change of a path may complete a repository.
    pub(super) fn may_complete(path: &[Folded]) -> bool {
        let found = REPOSITORIES.iter().filter(|repository| repository.is_found).flat_map(|repository| repository.marks);
        let patterns: Vec<&Pattern> = found.flat_map(|mark| MARKS.iter().filter(move |(own, _)| own == mark)).map(|(_, own)| own).collect();
        path.iter().any(|name| patterns.iter().any(|pattern| name.is_of(pattern)))
    }

    /// Records a path of a walk. Returns the directory that it completes as a repository, if any.
    pub(super) fn meet(&mut self, path: &VfsPath) -> Option<(VfsPathBuf, &'static Repository)> {
        let mark = REPOSITORIES.iter().flat_map(|repository| repository.marks).find(|mark| Self::is_mark(mark, path.name()))?;
        let directory = path.parent()?;
        let met = self.0.entry(directory.to_owned()).or_default();
        if met.contains(mark) {
            return None;
        }
        met.push(mark);
        let complete = REPOSITORIES.iter().find(|one| one.marks.contains(mark) && one.marks.iter().all(|mark| met.contains(mark)))?;
        Some((directory.to_owned(), complete))
    }
}
