//! Names of checkpoints: an id or the start of one, a label, or the distance from the newest.

use super::{At, Checkpoint, CheckpointId, Checkpointer, ListOptions, Opened};
use futures::future::BoxFuture;
use treehold_core::backoff::LostRaces;
use treehold_core::error::{Error, ErrorKind, Result};
use treehold_core::scope::Scope;

/// The fewest hexadecimal digits of an id that can name a checkpoint.
const PREFIX_CHARS_MIN: usize = 4;

/// Returns the checkpoint of the scope's thread that a name refers to.
///
/// `latest` is the newest; `latest~2` or `~2` is the second before it. Any other name is an id, else a label (the newest checkpoint with
/// it), else the start of exactly one id: at least one of its [letters](CheckpointId::letters), or at least four of its hexadecimal digits.
///
/// Cost: one round trip for `latest`, two for an id, a listing for the others.
///
/// # Errors
/// [`NotFound`](ErrorKind::NotFound) when the name matches no checkpoint of the thread, [`Ambiguous`](ErrorKind::Ambiguous) for a prefix of
/// several ids, [`InvalidArgument`](ErrorKind::InvalidArgument) for a `~` without a number.
pub async fn find_checkpoint(checkpointer: &dyn Checkpointer, scope: &Scope, name: &str) -> Result<Checkpoint> {
    if let Some(back) = back(name)? {
        return nth(checkpointer, scope, name, back).await;
    }
    if let Ok(id) = name.parse::<CheckpointId>() {
        let found = checkpointer.get(scope, At::Id(id)).await?;
        return found.map(|saved| saved.checkpoint).ok_or_else(|| missing(scope, name));
    }
    labelled(checkpointer, scope, name).await
}

/// Finds a checkpoint by name, as [`find_checkpoint`] does, and works on it. If it is pruned before the work is done, a relative name
/// (`latest`, `~2`) or a label refers to another checkpoint, and the work is done on that.
///
/// # Errors
/// The errors of [`find_checkpoint`] and of `work`.
pub async fn with_checkpoint<'w, T>(
    checkpointer: &dyn Checkpointer,
    scope: &Scope,
    name: &str,
    work: impl Fn(Checkpoint) -> BoxFuture<'w, Result<T>> + Send + Sync,
) -> Result<T> {
    let counts = back(name)?.is_some();
    let moves = |found: &Checkpoint| counts || found.label.as_deref() == Some(name);
    let mut found = find_checkpoint(checkpointer, scope, name).await?;
    let mut races = LostRaces::new();
    loop {
        let (id, moves) = (found.id, moves(&found));
        match work(found).await {
            Err(error) if moves && error.kind() == ErrorKind::NotFound => {
                found = find_checkpoint(checkpointer, scope, name).await?;
                if found.id == id {
                    return Err(error);
                }
            }
            ended => return ended,
        }
        if !races.lost().await {
            break;
        }
    }
    let message = format!("the checkpoint `{name}` kept being pruned before it could be used; try again");
    Err(Error::new(ErrorKind::Unavailable, message).without_effect())
}

/// Opens a checkpoint by name, as [`with_checkpoint`] finds it.
///
/// # Errors
/// The errors of [`find_checkpoint`] and of the checkpointer.
pub async fn open_checkpoint(checkpointer: &dyn Checkpointer, scope: &Scope, name: &str) -> Result<Opened> {
    let open = |found: Checkpoint| -> BoxFuture<'_, Result<Opened>> {
        Box::pin(async move { checkpointer.open(scope, At::Id(found.id)).await?.ok_or_else(|| missing(scope, name)) })
    };
    with_checkpoint(checkpointer, scope, name, open).await
}

/// Returns whether a text always names a checkpoint, whatever its labels are. Such a label could never be found.
pub fn is_reserved_name(name: &str) -> bool {
    !matches!(back(name), Ok(None)) || name.parse::<CheckpointId>().is_ok()
}

/// Checks the syntax of a name.
pub fn check_checkpoint_name(name: &str) -> Result<()> {
    back(name).map(drop)
}

/// Parses how far a name goes back from the newest; `None` for other names.
fn back(name: &str) -> Result<Option<usize>> {
    if name == "latest" {
        return Ok(Some(0));
    }
    let Some(count) = name.strip_prefix("latest").unwrap_or(name).strip_prefix('~') else { return Ok(None) };
    count.parse().map(Some).map_err(|_| {
        Error::invalid_argument(format!("`{name}` does not say how far back; write `~1` for the checkpoint before the latest"))
    })
}

/// Returns whether the meaning of a name may depend on a checkpoint that has `newer` newer ones: it is the meant one, or one of those that
/// are counted back to reach it.
pub(super) fn depends_on(name: &str, checkpoint: &Checkpoint, newer: u64) -> bool {
    match back(name) {
        Ok(Some(count)) => newer <= count as u64,
        _ => checkpoint.label.as_deref() == Some(name) || abbreviates(name, checkpoint.id),
    }
}

/// Returns whether an id starts with a name.
fn abbreviates(name: &str, id: CheckpointId) -> bool {
    let is_digits = name.len() >= PREFIX_CHARS_MIN && name.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b'-');
    let prefix = name.to_ascii_lowercase();
    (is_digits && id.to_string().starts_with(&prefix)) || (CheckpointId::is_letters(name) && id.letters().starts_with(&prefix))
}

async fn nth(checkpointer: &dyn Checkpointer, scope: &Scope, name: &str, back: usize) -> Result<Checkpoint> {
    let mut left = back;
    let mut options = ListOptions::new();
    loop {
        options.limit = left.saturating_add(1).min(1_000);
        let page = checkpointer.list(scope, &options).await?;
        let found = page.checkpoints.len();
        if let Some(checkpoint) = page.checkpoints.into_iter().nth(left) {
            return Ok(checkpoint);
        }
        left = left.saturating_sub(found);
        match page.next {
            Some(next) => options.start_after = Some(next),
            None => return Err(missing(scope, name)),
        }
    }
}

async fn labelled(checkpointer: &dyn Checkpointer, scope: &Scope, name: &str) -> Result<Checkpoint> {
    let (mut first, mut started) = (None, 0_usize);
    let mut options = ListOptions::new().with_limit(1_000);
    loop {
        let page = checkpointer.list(scope, &options).await?;
        for checkpoint in page.checkpoints {
            if checkpoint.label.as_deref() == Some(name) {
                return Ok(checkpoint);
            }
            if abbreviates(name, checkpoint.id) {
                started += 1;
                first.get_or_insert(checkpoint);
            }
        }
        match page.next {
            Some(next) => options.start_after = Some(next),
            None => break,
        }
    }
    match first {
        Some(_) if started > 1 => {
            Err(Error::new(ErrorKind::Ambiguous, format!("the ids of {started} checkpoints start with `{name}`; write more of the id")))
        }
        Some(checkpoint) => Ok(checkpoint),
        None => Err(missing(scope, name)),
    }
}

fn missing(scope: &Scope, name: &str) -> Error {
    let thread = scope.thread.as_deref().unwrap_or_default();
    let message = match name {
        "latest" => format!("thread `{thread}` has no checkpoint yet; make one first"),
        _ => format!("thread `{thread}` has no checkpoint `{name}`; `treehold checkpoint ls` lists them"),
    };
    Error::new(ErrorKind::NotFound, message)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::StateSnapshot;
    use crate::checkpoint::{MemoryCheckpointer, PruneOptions, PutOptions};
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[tokio::test]
    async fn relative_name_is_resolved_again_when_its_checkpoint_is_pruned_before_use() {
        for (name, expected) in [("latest", Ok(())), ("~0", Ok(())), ("~1", Err(ErrorKind::NotFound)), ("first", Err(ErrorKind::NotFound))]
        {
            let checkpointer = MemoryCheckpointer::new();
            let scope = Scope::new().with_thread("t");
            let first = PutOptions::new().with_label("first");
            let mut head = checkpointer.put(&scope, &StateSnapshot::default(), &first).await.expect("put").head;
            if name == "~1" {
                head = checkpointer.put(&scope, &StateSnapshot::default(), &PutOptions::new().with_head(head)).await.expect("put").head;
            }
            let (tries, (made, of)) = (AtomicUsize::new(0), (&checkpointer, &scope));
            let tries = &tries;
            let forked = with_checkpoint(&checkpointer, &scope, name, move |found| {
                Box::pin(async move {
                    if tries.fetch_add(1, Ordering::Relaxed) == 0 {
                        made.put(of, &StateSnapshot::default(), &PutOptions::new().with_head(head)).await?;
                        made.prune(of, &PruneOptions::new().with_keep_last(1)).await?;
                    }
                    made.fork(of, found.id.into(), "fork", &PutOptions::new()).await
                })
            });
            let forked = forked.await;
            assert_eq!(forked.as_ref().map(drop).map_err(Error::kind), expected, "{name}");
            if let Ok(forked) = forked {
                let parent = forked.checkpoint.parent.expect("a fork has a parent").id;
                assert_eq!(Some(parent), checkpointer.get(&scope, At::Latest).await.expect("read").map(|saved| saved.checkpoint.id));
            }
        }
    }

    #[tokio::test]
    async fn label_is_resolved_again_when_its_checkpoint_is_pruned_before_use() {
        let checkpointer = MemoryCheckpointer::new();
        let scope = Scope::new().with_thread("t");
        let put = async |label: &str, head| {
            let options = PutOptions::new().with_label(label).with_head(head);
            checkpointer.put(&scope, &StateSnapshot::default(), &options).await.expect("put")
        };
        let first = put("mark", None).await;
        let second = put("other", first.head).await;
        let (tries, checkpointer, scope, put) = (&AtomicUsize::new(0), &checkpointer, &scope, &put);
        let opened = with_checkpoint(checkpointer, scope, "mark", move |found| {
            Box::pin(async move {
                if tries.fetch_add(1, Ordering::Relaxed) == 0 {
                    let third = put("mark", second.head).await;
                    put("end", third.head).await;
                    checkpointer.prune(scope, &PruneOptions::new().with_keep_last(2)).await?;
                }
                checkpointer.open(scope, found.id.into()).await?.ok_or_else(|| missing(scope, "mark"))
            })
        });
        let opened = opened.await.expect("the label names another checkpoint").checkpoint;
        assert!(opened.id > second.checkpoint.id && opened.label.as_deref() == Some("mark"));
    }

    #[tokio::test]
    async fn checkpoint_is_found_by_each_of_its_names() {
        let checkpointer = MemoryCheckpointer::new();
        let scope = Scope::new().with_thread("t");
        let mut saved = Vec::new();
        let mut head = None;
        for (number, label) in [None, Some("start"), Some("start"), Some("018f"), None].into_iter().enumerate() {
            let id = format!("018f{number:04}-0000-7000-8000-00000000{number:04}").parse().expect("an id");
            let mut options = PutOptions::new().with_head(head).with_id(id);
            options.label = label.map(str::to_owned);
            let put = checkpointer.put(&scope, &StateSnapshot::default(), &options).await.expect("put");
            head = put.head;
            saved.push(put.checkpoint.id);
        }
        let find = async |name: &str| {
            let found = find_checkpoint(&checkpointer, &scope, name).await;
            found.map(|checkpoint| saved.iter().position(|id| *id == checkpoint.id)).map_err(|error| error.kind())
        };
        for (name, expected) in [
            ("latest", 4),
            ("latest~0", 4),
            ("~1", 3),
            ("latest~4", 0),
            ("start", 2),
            ("018f", 3),
            ("018f0001", 1),
            ("018F0001-00", 1),
            ("018f0000-0000-7000-8000-000000000000", 0),
            ("y", 1),
            ("Yz", 1),
            ("vzzz", 4),
            ("wzzzzzzzzzzzzzzrzzzszzzzwzzzkryz", 3),
        ] {
            assert_eq!(find(name).await, Ok(Some(expected)), "{name}");
        }
        for (name, expected) in [
            ("018f0", ErrorKind::Ambiguous),
            ("~5", ErrorKind::NotFound),
            ("018", ErrorKind::NotFound),
            ("end", ErrorKind::NotFound),
            ("", ErrorKind::NotFound),
            ("u", ErrorKind::NotFound),
            ("yk", ErrorKind::NotFound),
            ("~", ErrorKind::InvalidArgument),
            ("latest~x", ErrorKind::InvalidArgument),
            ("018f0009-0000-7000-8000-000000000000", ErrorKind::NotFound),
        ] {
            assert_eq!(find(name).await, Err(expected), "{name}");
        }
        assert!(["latest", "~3", "~x", "018f0000-0000-7000-8000-000000000000"].into_iter().all(is_reserved_name));
        assert!(!["start", "018f", "latest one"].into_iter().any(is_reserved_name));
    }
}
