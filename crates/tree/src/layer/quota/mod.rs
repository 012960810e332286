//! Bounds on what a tree may hold, exact under concurrent writers.
//!
//! Start at [`Quota`]. A batch is planned before it runs ([`plan`]), its growth is reserved from what is left ([`ledger`]), and the
//! reservation is settled by the outcome. Writers of different files run concurrently. Writers of the same file, and changes that move,
//! copy or remove whole directories, take turns ([`turns`]), so that the sizes a plan is based on still hold.

use crate::backend::Backend;
use crate::forward_backend;
use async_trait::async_trait;
use count::Count;
use ledger::{Ledger, Reservation};
use plan::{Detail, Growth, Plan};
use std::fmt;
use treehold_core::error::{Error, ErrorKind, Result};
use treehold_core::ops::{ApplyOptions, Capabilities, Change, Changed, Review, ReviewPurpose, Sight, Standing};
pub use turns::Quiet;
use turns::{Turn, Turns};

mod count;
mod ledger;
mod plan;
mod turns;

/// Refuses a change that would take the tree over the limit of one file or of all files together, before any of it takes effect. Both
/// limits fail with `quota_exceeded`; `too_large` is for what no quota would allow.
///
/// Files count by their size in bytes, directories as a file of [`QuotaLimits::DIRECTORY_BYTES`] each; links are free. An atomic batch is
/// judged by what the tree would hold after all of it, a batch applied in order by the most that it would hold on the way. Changes that do
/// not grow the tree are always allowed, even over a limit.
///
/// The first change counts the usage with one walk of the whole tree. From then on the usage follows from what each change did, so it needs
/// no record of its own to survive restarts. After a change whose outcome is unknown (it was abandoned, or failed with an error that leaves
/// its effect open) the tree is counted again. If the caller of a count is dropped, the next caller continues it. Changes that bypass this
/// layer are seen only at the next count, so put one quota around each tree; [`Quota::recount`] and [`Quota::forget`] request a count.
///
/// Cost of a change: one `stat` for each file it names, and for a new file those of the directories above it up to the first existing one;
/// for a directory that is copied or removed, a walk of what lies beneath. An edit that might not fit, or is part of a longer batch, costs
/// one more read of the file if it has up to 16 MiB; the edit of a larger file is judged by an upper bound of the result. Changes of
/// different files run concurrently; renames, copies, and changes that create or remove directories run alone. Reads cost nothing.
///
/// ```
/// use treehold_tree::layer::{Quota, QuotaLimits};
/// use treehold_core::ErrorKind;
/// use treehold_tree::backend::{BackendExt, StateBackend};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> treehold_core::Result<()> {
/// let tree = Quota::new(QuotaLimits::new().with_bytes_max(10), StateBackend::new());
/// tree.write("/a.md", "12345678").await?;
/// assert_eq!(tree.append("/a.md", "90x").await.unwrap_err().kind(), ErrorKind::QuotaExceeded);
/// assert_eq!(tree.usage().await?.bytes, 8);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Quota<B> {
    limits: QuotaLimits,
    inner: B,
    ledger: Ledger,
    turns: Turns,
    /// The count in progress, also after its caller was dropped.
    counting: tokio::sync::Mutex<Option<Count>>,
}

/// What a tree may hold. Unlimited by default.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct QuotaLimits {
    /// The most bytes of all files together.
    pub bytes_max: Option<u64>,
    /// The most files and directories.
    pub files_max: Option<u64>,
    /// The most bytes of one file.
    pub file_bytes_max: Option<u64>,
}

impl QuotaLimits {
    /// The size that a directory counts for, in bytes: a block of most disks, and as much memory as the longest path takes.
    pub const DIRECTORY_BYTES: u64 = 4_096;

    /// Sets no limit.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the most bytes of all files together.
    #[must_use]
    pub fn with_bytes_max(mut self, bytes_max: u64) -> Self {
        self.bytes_max = Some(bytes_max);
        self
    }

    /// Sets the most files and directories.
    #[must_use]
    pub fn with_files_max(mut self, files_max: u64) -> Self {
        self.files_max = Some(files_max);
        self
    }

    /// Sets the most bytes of one file.
    #[must_use]
    pub fn with_file_bytes_max(mut self, file_bytes_max: u64) -> Self {
        self.file_bytes_max = Some(file_bytes_max);
        self
    }
}

impl fmt::Display for QuotaLimits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let limits = [("bytes", self.bytes_max), ("files", self.files_max), ("file bytes", self.file_bytes_max)];
        let set: Vec<String> = limits.iter().filter_map(|(name, max)| max.map(|max| format!("{name} {max}"))).collect();
        f.write_str(&set.join(", "))
    }
}

/// The usage of a tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Usage {
    /// The bytes of all files together, and [`QuotaLimits::DIRECTORY_BYTES`] for each directory.
    pub bytes: u64,
    /// The number of files.
    pub files: u64,
    /// The number of directories beneath the root.
    pub directories: u64,
}

impl Usage {
    /// Returns the number of files and directories.
    pub fn entries(&self) -> u64 {
        self.files.saturating_add(self.directories)
    }
}

impl<B: Backend> Quota<B> {
    /// Puts limits on a tree.
    pub fn new(limits: QuotaLimits, inner: B) -> Self {
        Self { limits, inner, ledger: Ledger::default(), turns: Turns::default(), counting: Default::default() }
    }

    /// Returns the backend inside.
    pub fn inner(&self) -> &B {
        &self.inner
    }

    /// Returns the usage, counting the tree if needed.
    ///
    /// # Errors
    /// The errors of [`Backend::glob`], if the tree must be counted.
    pub async fn usage(&self) -> Result<Usage> {
        if let Some(usage) = self.ledger.usage() {
            return Ok(usage);
        }
        let _alone = self.turns.alone().await;
        match self.ledger.usage() {
            Some(usage) => Ok(usage),
            None => self.count().await,
        }
    }

    /// Counts the usage with one walk of the tree, while no change runs.
    ///
    /// # Errors
    /// The errors of [`Backend::glob`].
    pub async fn recount(&self) -> Result<Usage> {
        let _alone = self.turns.alone().await;
        self.forget();
        self.count().await
    }

    /// Makes the next change count the tree again, because its content was replaced past this layer.
    pub fn forget(&self) {
        self.ledger.forget();
    }

    /// Waits until every admitted change has ended, and admits no other until the result is dropped.
    ///
    /// Code that replaces the tree past this layer takes this before any lock that changes wait for. Otherwise a change that fitted into
    /// the old tree would land in the new one.
    pub fn quiet(&self) -> impl Future<Output = Quiet> + use<B> {
        self.turns.quiet()
    }

    /// Counts the tree within an exclusive turn, continuing an abandoned count.
    async fn count(&self) -> Result<Usage> {
        let mut counting = self.counting.lock().await;
        loop {
            let epoch = self.ledger.epoch();
            let count = match counting.take() {
                Some(count) if count.epoch == epoch => counting.insert(count),
                _ => counting.insert(Count::new(epoch)),
            };
            let usage = count.finish(&self.inner).await?;
            *counting = None;
            if self.ledger.set(usage, epoch) {
                return Ok(usage);
            }
        }
    }

    /// Waits for a turn in which the sizes of what the changes name are stable and the usage is known.
    async fn turn(&self, changes: &[Change]) -> Result<Turn<'_>> {
        if self.ledger.usage().is_some() {
            let turn = self.turns.of(changes).await;
            // Meanwhile, another change may have ended with an unknown outcome.
            if self.ledger.usage().is_some() {
                return Ok(turn);
            }
        }
        self.turn_alone().await
    }

    /// Waits for an exclusive turn in which the usage is known.
    async fn turn_alone(&self) -> Result<Turn<'_>> {
        let turn = self.turns.alone().await;
        if self.ledger.usage().is_none() {
            self.count().await?;
        }
        Ok(turn)
    }

    /// Plans what the changes add, and reserves it.
    async fn admit(&self, changes: &[Change]) -> Result<(Plan, Reservation<'_>)> {
        // First bound the size after an edit, which needs no content. Compute it exactly only if the bound does not fit.
        if let [Change::Edit { .. }] = changes {
            match self.try_admit(changes, Detail::Bounds).await {
                Err(error) if error.kind() == ErrorKind::QuotaExceeded => {}
                done => return done,
            }
        }
        self.try_admit(changes, Detail::Exact).await
    }

    async fn try_admit(&self, changes: &[Change], detail: Detail) -> Result<(Plan, Reservation<'_>)> {
        let plan = Plan::sketch(&self.inner, changes, &self.limits, detail).await?;
        let is_atomic = self.inner.capabilities().atomic_batch;
        let growth = if is_atomic { plan.total() } else { plan.peak() };
        match self.ledger.reserve(growth, &self.limits) {
            Ok(reservation) => Ok((plan, reservation)),
            Err(usage) => Err(self.exceeded(changes, &plan, growth, usage)),
        }
    }

    /// Checks that differences which are about to be made past this layer leave a tree that fits.
    ///
    /// It takes no turn: the caller has taken one ([`Quota::quiet`]), or blocks the very changes that hold one. The caller that replaces
    /// the tree requests the new count ([`Quota::forget`]).
    async fn check(&self, review: &Review) -> Result<()> {
        let size = |standing: Option<Standing>| standing.and_then(Standing::size_bytes);
        let mut growth = Growth::default();
        for difference in &review.differences {
            let (before, after) = (size(difference.before), size(difference.after));
            if after > before {
                plan::check_size(&difference.path, after.unwrap_or_default(), self.limits.file_bytes_max.unwrap_or(u64::MAX))?;
            }
            growth += Growth::of_file(before, after);
            let directories = |standing| i128::from(standing == Some(Standing::Directory));
            growth += Growth::of_directories(directories(difference.after) - directories(difference.before));
        }
        if growth.bytes <= 0 && growth.entries() <= 0 {
            return Ok(());
        }
        let usage = match self.ledger.usage() {
            Some(usage) => usage,
            None => Count::new(self.ledger.epoch()).finish(&self.inner).await?,
        };
        if growth.is_over(usage, &self.limits) {
            return Err(Error::new(ErrorKind::QuotaExceeded, self.over(growth, usage)).at(&review.at));
        }
        Ok(())
    }

    fn exceeded(&self, changes: &[Change], plan: &Plan, growth: Growth, usage: Usage) -> Error {
        let index = plan.first_over(usage, &self.limits);
        let change = &changes[index];
        let path = change.target().unwrap_or_else(|| change.path());
        let message = self.over(growth, usage);
        Error::new(ErrorKind::QuotaExceeded, message).at(path).during(change.kind()).in_batch(index, 0)
    }

    /// Returns a message about the limit that a change would exceed.
    fn over(&self, growth: Growth, usage: Usage) -> String {
        let over_bytes = self.limits.bytes_max.filter(|max| growth.bytes > 0 && growth.after(usage).bytes > *max);
        match (over_bytes, self.limits.files_max) {
            (None, Some(max)) => format!(
                "the tree holds {} of {max} files and directories and the change would add {}; delete what is no longer needed",
                usage.entries(),
                growth.entries()
            ),
            (max, _) => {
                let counted = match growth.directories {
                    1.. => format!(", with {} for each directory", QuotaLimits::DIRECTORY_BYTES),
                    _ => String::new(),
                };
                format!(
                    "the tree holds {} of {} bytes and the change would add {}{counted}; delete what is no longer needed, or write less",
                    usage.bytes,
                    max.unwrap_or_default(),
                    growth.bytes
                )
            }
        }
    }
}

impl<B: Backend> fmt::Display for Quota<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.limits == QuotaLimits::default() {
            write!(f, "Quota({})", self.inner)
        } else {
            write!(f, "Quota({}, {})", self.limits, self.inner)
        }
    }
}

#[async_trait]
impl<B: Backend> Backend for Quota<B> {
    fn capabilities(&self) -> Capabilities {
        let inner = self.inner.capabilities();
        let file_bytes_max = [inner.file_bytes_max, self.limits.file_bytes_max].into_iter().flatten().min();
        inner.with_file_bytes_max(file_bytes_max)
    }

    forward_backend! { self => self.inner; stat, read, ls, glob, grep, search }

    async fn apply(&self, changes: &[Change], options: &ApplyOptions) -> Result<Vec<Changed>> {
        if changes.is_empty() || self.limits == QuotaLimits::default() {
            return self.inner.apply(changes, options).await;
        }
        let mut turn = self.turn(changes).await?;
        let (mut plan, mut reservation) = self.admit(changes).await?;
        if plan.has_directories && !turn.is_alone() {
            // Concurrent changes that create the same directory would count it too.
            reservation.settle(Growth::default());
            drop(turn);
            turn = self.turn_alone().await?;
            (plan, reservation) = self.admit(changes).await?;
        }
        // If dropped before it is settled, the reservation makes the tree be counted again.
        let result = self.inner.apply(changes, options).await;
        match plan.outcome(&result) {
            Some(growth) => reservation.settle(growth),
            None => drop(reservation),
        }
        drop(turn);
        result
    }

    async fn review(&self, review: &Review) -> Result<Vec<Sight>> {
        // What the tree shows already is part of its usage.
        if review.purpose == ReviewPurpose::Change && !review.is_shown && self.limits != QuotaLimits::default() {
            self.check(review).await?;
        }
        self.inner.review(review).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::{BackendExt, StateBackend};
    use crate::layer::{Fault, Layered};
    use proptest::prelude::*;
    use std::sync::Arc;
    use std::time::Duration;
    use treehold_core::ops::{Edit, WriteMode};
    use treehold_core::path::VfsPath;
    use treehold_core::path::VfsPathBuf;

    fn bytes(max: u64) -> Quota<StateBackend> {
        Quota::new(QuotaLimits::new().with_bytes_max(max), StateBackend::new())
    }

    fn path(text: &str) -> VfsPathBuf {
        VfsPathBuf::parse(text).expect("a legal path")
    }

    fn kind<T>(result: Result<T>) -> Option<ErrorKind> {
        result.err().map(|error| error.kind())
    }

    #[tokio::test]
    async fn change_over_quota_is_refused_before_any_effect_and_says_what_is_left() {
        let tree = bytes(10);
        tree.write("/a", "12345678").await.expect("fits");
        let error = tree.write("/b", "123").await.expect_err("3 more than 2");
        assert_eq!(
            error.message(),
            "the tree holds 8 of 10 bytes and the change would add 3; delete what is no longer needed, or write less"
        );
        assert_eq!((error.path().map(VfsPath::as_str), error.change(), error.applied()), (Some("/b"), Some(0), 0));
        assert!(!tree.exists("/b").await.expect("the tree answers"));
        tree.write("/b", "12").await.expect("fits to the byte");
        tree.write("/a", "").await.expect("shrinks");
        tree.copy("/b", "/c").await.expect("the copy fits again");
    }

    #[tokio::test]
    async fn file_count_and_single_file_size_are_limited() {
        let tree = Quota::new(QuotaLimits::new().with_files_max(2).with_file_bytes_max(4), StateBackend::new());
        assert_eq!(kind(tree.write("/a", "12345").await), Some(ErrorKind::QuotaExceeded));
        tree.write("/a", "1234").await.expect("fits");
        assert_eq!(kind(tree.append("/a", "5").await), Some(ErrorKind::QuotaExceeded));
        assert_eq!(kind(tree.edit("/a", "4", "45").await), Some(ErrorKind::QuotaExceeded));
        tree.edit("/a", "4", "5").await.expect("as large as before");
        tree.copy("/a", "/b").await.expect("the second file");
        let error = tree.write("/c", "").await.expect_err("the third file");
        assert_eq!(
            error.message(),
            "the tree holds 2 of 2 files and directories and the change would add 1; delete what is no longer needed"
        );
        assert_eq!(kind(tree.create_dir("/d").await), Some(ErrorKind::QuotaExceeded), "a directory counts as a file");
        tree.rename("/b", "/c").await.expect("as many as before");
        assert_eq!(tree.capabilities().file_bytes_max, Some(4));
        assert_eq!(tree.to_string(), "Quota(files 2, file bytes 4, State)");
    }

    /// Regression: directories were free, so a few bytes of a request could create any number of them.
    #[tokio::test]
    async fn directories_count_with_a_fixed_size() {
        let tree = bytes(10_000);
        let error = tree.write("/a/b/c", "x").await.map(drop).and(tree.create_dir("/d").await.map(drop)).expect_err("the third directory");
        assert_eq!(
            error.message(),
            "the tree holds 8193 of 10000 bytes and the change would add 4096, with 4096 for each directory; delete what is no longer \
             needed, or write less"
        );
        assert_eq!(tree.usage().await.expect("counted"), Usage { bytes: 8_193, files: 1, directories: 2 });
        assert_eq!(kind(tree.copy("/a", "/e").await), Some(ErrorKind::QuotaExceeded));
        tree.rename("/a/b", "/b").await.expect("as many as before");
        tree.delete("/a").await.expect("an empty one");
        tree.create_dir("/d").await.expect("there is room again");
        assert_eq!(tree.usage().await.expect("counted"), tree.recount().await.expect("counted"));
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
    async fn directory_created_by_concurrent_writers_counts_once() {
        let tree = Arc::new(bytes(1 << 20));
        let write = |number: usize| {
            let tree = Arc::clone(&tree);
            tokio::spawn(async move { tree.write(&format!("/d/{}/{number}", number % 3), "x").await.map(drop) })
        };
        for writer in (0..40).map(write).collect::<Vec<_>>() {
            writer.await.expect("no writer panics").expect("there is room");
        }
        assert_eq!(tree.usage().await.expect("counted"), Usage { bytes: 4 * 4_096 + 40, files: 40, directories: 4 });
    }

    #[tokio::test]
    async fn edit_whose_bound_does_not_fit_is_computed_exactly() {
        let tree = bytes(12);
        tree.write("/a", "aaaaaaaaab").await.expect("fits");
        // By its length alone, `b` could occur ten times in the file.
        tree.edit_all("/a", "b", "bcd").await.expect("fits to the byte");
        assert_eq!(kind(tree.edit("/a", "bcd", "bcde").await), Some(ErrorKind::QuotaExceeded));
        assert_eq!(kind(tree.edit("/a", "x", "xxxxxxxxxxxxx").await), Some(ErrorKind::NoMatch));
        assert_eq!(tree.usage().await.expect("counted"), Usage { bytes: 12, files: 1, directories: 0 });
    }

    #[tokio::test]
    async fn atomic_batch_is_judged_as_a_whole() {
        let tree = bytes(10);
        tree.write("/old", "12345678").await.expect("fits");
        let swap = [
            Change::Write { path: path("/new"), content: "123456789".into(), mode: WriteMode::Overwrite },
            Change::Delete { path: path("/old"), recursive: false, expect: None },
        ];
        tree.apply(&swap, &ApplyOptions::new()).await.expect("the result of the batch fits the quota");
        let more = [
            Change::Append { path: path("/new"), content: "0".into() },
            Change::Copy { from: path("/new"), to: path("/copy"), overwrite: false },
        ];
        let error = tree.apply(&more, &ApplyOptions::new()).await.expect_err("twice ten");
        assert_eq!((error.kind(), error.change(), error.path().map(VfsPath::as_str)), (ErrorKind::QuotaExceeded, Some(1), Some("/copy")));
        assert_eq!(tree.read_text("/new").await.expect("there"), "123456789");
    }

    #[tokio::test]
    async fn existing_content_is_counted() {
        let model = StateBackend::new();
        model.write("/.hidden/a", "12345").await.expect("written");
        model.write("/.gitignore", "b\n").await.expect("written");
        model.write("/b", "123").await.expect("written");
        let tree = Quota::new(QuotaLimits::new().with_bytes_max(4), model);
        assert_eq!(tree.usage().await.expect("counted"), Usage { bytes: 4_106, files: 3, directories: 1 });
        assert_eq!(kind(tree.append("/b", "4").await), Some(ErrorKind::QuotaExceeded));
        tree.write("/b", "12").await.expect("smaller is allowed over the limit too");
    }

    /// Regression: a count was part of the call that needed it. Abandoned with that call, it started over in the next, and never ended.
    #[tokio::test(start_paused = true)]
    async fn abandoned_count_is_continued_by_later_callers() {
        let model = StateBackend::new();
        let files =
            (0..30_000).map(|file| Change::Write { path: path(&format!("/{file:05}")), content: "x".into(), mode: WriteMode::Overwrite });
        model.apply(&files.collect::<Vec<_>>(), &ApplyOptions::new()).await.expect("written");
        let slow = Layered::new(Fault::from_nth(0).delaying(Duration::from_secs(2)), model);
        let tree = Quota::new(QuotaLimits::new().with_files_max(30_000), slow);
        let mut given_up = 0;
        let refused = loop {
            match tokio::time::timeout(Duration::from_secs(3), tree.write("/b", "")).await {
                Ok(ended) => break ended,
                Err(_) => given_up += 1,
            }
            assert!(given_up < 10, "the count starts over each time");
        };
        assert_eq!(kind(refused), Some(ErrorKind::QuotaExceeded));
        assert!(given_up > 0, "the first caller waited for all of it");
        assert_eq!(tree.usage().await.expect("counted"), Usage { bytes: 30_000, files: 30_000, directories: 0 });
    }

    /// Regression: an edit that might not fit was tried on the content, however large.
    #[tokio::test]
    async fn edit_of_large_file_is_judged_without_reading_it() {
        let model = StateBackend::new();
        let large = 17 << 20;
        model.write("/large", vec![b'a'; large]).await.expect("written");
        let meter = Layered::new(Fault::never(), model);
        let tree = Quota::new(QuotaLimits::new().with_bytes_max(large as u64 + 4), meter);
        let edit = |old: &str, new: &str, replace_all| Edit { old: old.into(), new: new.into(), replace_all };
        let batch = |edits: Vec<Edit>| vec![Change::Edit { path: path("/large"), edits, expect: None }];
        tree.usage().await.expect("counted");
        let before = tree.inner().layer().calls();
        // By its length alone, `aaab` could occur once in every four bytes; it does not.
        let result = tree.apply(&batch(vec![edit("aaab", "aaabb", true)]), &ApplyOptions::new()).await;
        assert_eq!(kind(result), Some(ErrorKind::QuotaExceeded));
        assert_eq!(tree.inner().layer().calls() - before, 2, "two stats, and no read");
        let mut two = batch(vec![edit("aaab", "aaabb", true)]);
        two.push(Change::CreateDir { path: path("/d") });
        assert_eq!(kind(tree.apply(&two, &ApplyOptions::new()).await), Some(ErrorKind::QuotaExceeded));
        let mut fits = batch(vec![edit("aaab", "aaa", true)]);
        fits.push(Change::Write { path: path("/b"), content: "1234".into(), mode: WriteMode::Overwrite });
        assert_eq!(kind(tree.apply(&fits, &ApplyOptions::new()).await), Some(ErrorKind::NoMatch));
        assert_eq!(tree.usage().await.expect("counted").files, 1);
    }

    #[tokio::test(start_paused = true)]
    async fn abandoned_change_causes_recount() {
        let fault = Layered::new(Fault::nth(0).on_changes().hanging().after_effect(), StateBackend::new());
        let tree = Quota::new(QuotaLimits::new().with_bytes_max(10), fault);
        assert!(tokio::time::timeout(Duration::from_secs(1), tree.write("/a", "1234567")).await.is_err());
        assert_eq!(kind(tree.write("/b", "12345").await), Some(ErrorKind::QuotaExceeded));
        assert_eq!(tree.usage().await.expect("counted"), Usage { bytes: 7, files: 1, directories: 0 });
    }

    #[tokio::test]
    async fn failure_with_unknown_effect_causes_recount() {
        for after_effect in [false, true] {
            let fault = Fault::nth(0).on_changes();
            let fault = if after_effect { fault.after_effect() } else { fault };
            let tree = Quota::new(QuotaLimits::new().with_bytes_max(10), Layered::new(fault, StateBackend::new()));
            assert_eq!(kind(tree.write("/a", "1234567").await), Some(ErrorKind::Unavailable));
            let bytes = if after_effect { 7 } else { 0 };
            assert_eq!(tree.usage().await.expect("counted").bytes, bytes);
        }
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
    async fn concurrent_writers_fill_quota_exactly_and_never_exceed_it() {
        let tree = Arc::new(bytes(1000));
        let writers: Vec<_> = (0..8)
            .map(|writer| {
                let tree = Arc::clone(&tree);
                tokio::spawn(async move {
                    let mut written = 0;
                    for _ in 0..50 {
                        written += u64::from(tree.append(&format!("/{}", writer % 5), "12345").await.is_ok()) * 5;
                        tokio::task::yield_now().await;
                    }
                    written
                })
            })
            .collect();
        let mut written = 0;
        for writer in writers {
            written += writer.await.expect("no writer panics");
        }
        assert_eq!(written, 1000);
        assert_eq!(tree.usage().await.expect("counted"), Usage { bytes: 1000, files: 5, directories: 0 });
        assert_eq!(tree.recount().await.expect("counted"), Usage { bytes: 1000, files: 5, directories: 0 });
    }

    fn some_path() -> impl Strategy<Value = VfsPathBuf> {
        prop::sample::select(vec!["/a", "/b", "/d", "/d/a", "/d/b", "/d/e", "/d/e/a", "/f/a", "/.h"]).prop_map(path)
    }

    fn some_change() -> impl Strategy<Value = Change> {
        let content = || "[ab\n]{0,6}".prop_map(bytes::Bytes::from);
        prop_oneof![
            3 => (some_path(), content(), prop_oneof![Just(WriteMode::Overwrite), Just(WriteMode::CreateNew)])
                .prop_map(|(path, content, mode)| Change::Write { path, content, mode }),
            2 => (some_path(), content()).prop_map(|(path, content)| Change::Append { path, content }),
            2 => (some_path(), "[ab]{1,2}", "[ab\n]{0,4}", any::<bool>()).prop_map(|(path, old, new, replace_all)| Change::Edit {
                path,
                edits: vec![Edit { old, new, replace_all }],
                expect: None
            }),
            1 => some_path().prop_map(|path| Change::CreateDir { path }),
            1 => (some_path(), any::<bool>()).prop_map(|(path, recursive)| Change::Delete { path, recursive, expect: None }),
            2 => (some_path(), some_path(), any::<bool>()).prop_map(|(from, to, overwrite)| Change::Rename { from, to, overwrite }),
            2 => (some_path(), some_path(), any::<bool>()).prop_map(|(from, to, overwrite)| Change::Copy { from, to, overwrite }),
        ]
    }

    /// Applies all accepted batches to a fresh tree, then one more. Returns the outcome of that one, and the usage before and after it.
    async fn replayed(accepted: &[Vec<Change>], batch: &[Change]) -> (Result<Vec<Changed>>, Usage, Usage) {
        let tree = Quota::new(QuotaLimits::new(), StateBackend::new());
        for batch in accepted {
            tree.inner().apply(batch, &ApplyOptions::new()).await.expect("it was accepted before");
        }
        let before = tree.recount().await.expect("counted");
        let result = tree.inner().apply(batch, &ApplyOptions::new()).await;
        (result, before, tree.recount().await.expect("counted"))
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]

        /// Accepts what fits, refuses what does not, and keeps the count equal to the content, for any batches.
        #[test]
        fn every_batch_is_judged_by_the_resulting_usage(batches in prop::collection::vec(prop::collection::vec(some_change(), 1..4), 1..12)) {
            const BYTES_MAX: u64 = 24 + 2 * QuotaLimits::DIRECTORY_BYTES;
            let limits = QuotaLimits::new().with_bytes_max(BYTES_MAX).with_files_max(6).with_file_bytes_max(9);
            let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
            runtime.block_on(async {
                let tree = Quota::new(limits, StateBackend::new());
                let mut accepted: Vec<Vec<Change>> = Vec::new();
                for batch in batches {
                    let (expected, before, after) = replayed(&accepted, &batch).await;
                    let result = tree.apply(&batch, &ApplyOptions::new()).await;
                    let is_over = (after.bytes > BYTES_MAX && after.bytes > before.bytes)
                        || (after.entries() > 6 && after.entries() > before.entries());
                    match (&result, expected) {
                        (Ok(results), Ok(expected)) => {
                            prop_assert!(!is_over, "{batch:?} was accepted");
                            prop_assert_eq!(results.len(), expected.len());
                            accepted.push(batch);
                        }
                        (Err(error), Ok(_)) => {
                            let is_quota = is_over || error.message().contains("one file may have 9");
                            prop_assert!(is_quota && error.kind() == ErrorKind::QuotaExceeded, "{batch:?} was refused: {error:?}");
                        }
                        (Err(_), Err(_)) => {}
                        (Ok(_), Err(error)) => prop_assert!(false, "{batch:?} was accepted: {error:?}"),
                    }
                    let counted = tree.usage().await.expect("counted");
                    prop_assert_eq!(counted, tree.recount().await.expect("counted"));
                }
                Ok(())
            })?;
        }
    }
}
