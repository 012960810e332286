//! What to ask a person before a destructive call.
//!
//! It asks about losses that are large or easily missed: removing a directory with its content, the files that a patch removes or replaces,
//! the file that a move replaces, and what added tools declare. It also asks about changes to files that make tools run code
//! ([`RUNS_CODE`](treehold_tree::layer::RUNS_CODE)), which are refused if nobody can be asked. If a call has two such reasons, one question
//! names both. It does not ask about other changes that a call states plainly about one file, such as new content or its removal, because
//! people who must confirm everything stop reading the questions.

use super::{ToolCall, ToolContext};
use treehold_core::error::{ErrorKind, Result};
use treehold_core::ops::{Change, Difference, Review, ReviewPurpose, Standing, StatOptions};
use treehold_core::path::{VfsPath, VfsPathBuf};
use treehold_core::scope::Scope;
use treehold_tree::backend::{Backend, BackendExt};
use treehold_tree::layer::{Allowance, Refusal};

/// How many entries are counted before the count reads "more than".
const COUNTED_MAX: usize = 1_000;

/// How many files a question names.
const NAMED_MAX: usize = 5;

/// A question to a person.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Question {
    /// What would be done, in lower case, to be used within a sentence.
    pub doing: String,
    /// The verb of a button that agrees.
    pub verb: &'static str,
    /// The path that it concerns most.
    pub path: Option<VfsPathBuf>,
}

impl Question {
    /// Makes a question.
    pub fn new(verb: &'static str, doing: impl Into<String>, path: Option<&VfsPath>) -> Self {
        Self { doing: doing.into(), verb, path: path.map(ToOwned::to_owned) }
    }

    /// Returns the question as a sentence.
    pub fn text(&self) -> String {
        let mut letters = self.doing.chars();
        let first = letters.next().map(|first| first.to_ascii_uppercase());
        format!("{}{}?", first.map(String::from).unwrap_or_default(), letters.as_str())
    }
}

/// Returns whether this kind of call may need consent, without inspecting the tree.
pub fn concerns(call: &ToolCall) -> bool {
    match call {
        ToolCall::Delete(delete) => delete.recursive,
        ToolCall::Memory(memory) => memory.removed().is_some(),
        ToolCall::Move(change) => change.overwrite,
        ToolCall::ApplyPatch(_) => true,
        ToolCall::Custom(custom) => !custom.tool().info().read_only,
        _ => false,
    }
}

/// Returns the question to ask before a call, given the current tree, or `None` if the call destroys nothing or would fail.
///
/// # Errors
/// Errors of inspecting what would be removed.
pub async fn question(tree: &dyn Backend, call: &ToolCall, scope: &Scope) -> Result<Option<Question>> {
    match call {
        ToolCall::Delete(delete) if delete.recursive => of_directory(tree, &delete.path).await,
        ToolCall::Memory(memory) => match memory.removed() {
            Some(path) => of_directory(tree, &path).await,
            None => Ok(None),
        },
        ToolCall::Move(change) if change.overwrite && change.from != change.to => {
            // A directory is never replaced, and a missing source replaces nothing; the call itself reports both.
            let is_file = tree.stat(&change.to, &StatOptions::new()).await.is_ok_and(|entry| !entry.is_directory());
            let replaces = is_file && tree.stat(&change.from, &StatOptions::new()).await.is_ok_and(|entry| !entry.is_directory());
            let doing = || format!("move `{}` to `{}` and replace the file that is there", change.from, change.to);
            Ok(replaces.then(|| Question::new("Replace", doing(), Some(&change.to))))
        }
        ToolCall::ApplyPatch(patch) => {
            let (removed, replaced) = patch.losses(tree).await;
            let parts = [("removes", removed), ("replaces", replaced)];
            let parts: Vec<String> =
                parts.iter().filter(|(_, paths)| !paths.is_empty()).map(|(verb, paths)| format!("{verb} {}", named(paths))).collect();
            let doing = format!("apply a patch that {}", parts.join(" and "));
            Ok((!parts.is_empty()).then(|| Question::new("Apply", doing, None)))
        }
        ToolCall::Custom(custom) => {
            let asked = custom.confirmation(&ToolContext::new(tree).with_scope(scope)).await?;
            Ok(asked.map(|asked| Question::new("Run", asked.doing, asked.path.as_deref())))
        }
        _ => Ok(None),
    }
}

/// Returns the question about files that make tools run code, which a call was refused to change. `refused` is not empty.
pub fn of_protected(refused: &[Refusal]) -> Question {
    Question::new("Change", changing(refused), refused.first().map(|refusal| &*refusal.path))
}

impl Question {
    /// Adds files that make tools run code to the same question, if there are any.
    #[must_use]
    pub fn and_protected(self, refused: &[Refusal]) -> Self {
        match refused {
            [] => self,
            _ => Self { doing: format!("{}, and {}", self.doing, changing(refused)), ..self },
        }
    }
}

fn changing(refused: &[Refusal]) -> String {
    let mut paths: Vec<VfsPathBuf> = refused.iter().map(|refusal| refusal.path.clone()).collect();
    paths.sort();
    paths.dedup();
    let reason = refused.first().map(|refusal| refusal.reason.as_str()).unwrap_or_default();
    format!("change {}, where {reason}", named(&paths))
}

/// Returns the files that make tools run code and that a call would change, so that a person can be asked before it runs. If they cannot be
/// determined, the call itself is refused.
pub async fn protected(tree: &dyn Backend, call: &ToolCall) -> Vec<Refusal> {
    let removal = |path: &VfsPath| Difference::new(path, Some(Standing::Directory), None);
    let write = |path: &VfsPath| Difference::new(path, None, Some(Standing::File(0)));
    let differences = match call {
        ToolCall::Delete(delete) => vec![removal(&delete.path)],
        ToolCall::Memory(memory) if memory.removed().is_some() => memory.removed().iter().map(|path| removal(path)).collect(),
        ToolCall::Move(change) => vec![removal(&change.from), write(&change.to)],
        ToolCall::ApplyPatch(patch) => {
            let changes = patch.changes(tree).await;
            let difference = |change: &Change| match change {
                Change::Delete { path, .. } => removal(path),
                _ => write(change.path()),
            };
            changes.iter().map(difference).collect()
        }
        call if call.info().read_only => Vec::new(),
        call => call.named_paths().unwrap_or_default().iter().map(|path| write(path)).collect(),
    };
    let allowance = Allowance::new(Vec::new());
    let review = async {
        for difference in differences {
            // Each path is reviewed in its own mount.
            let at = difference.path.clone();
            let _ = tree.review(&Review::new(ReviewPurpose::Consent, at, vec![difference])).await;
        }
    };
    allowance.clone().during(review).await;
    allowance.refused()
}

/// Returns the question about removing a directory with its content, or `None` if it is empty or missing, or the path is a file.
async fn of_directory(tree: &dyn Backend, path: &VfsPath) -> Result<Option<Question>> {
    let held = match tree.tree(path.as_str(), usize::MAX, COUNTED_MAX).await {
        Ok(held) => held,
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => return Ok(None),
        Err(error) => return Err(error),
    };
    if held.entries.is_empty() {
        return Ok(None);
    }
    let count = if held.truncated { format!("more than {COUNTED_MAX}") } else { held.entries.len().to_string() };
    let noun = if held.entries.len() == 1 { "entry" } else { "entries" };
    Ok(Some(Question::new("Remove", format!("remove `{path}` and the {count} {noun} in it"), Some(path))))
}

fn named(paths: &[VfsPathBuf]) -> String {
    let mut names: Vec<String> = paths.iter().take(NAMED_MAX).map(|path| format!("`{path}`")).collect();
    match paths.len() - names.len() {
        0 => {}
        1 => names.push("1 more file".to_owned()),
        more => names.push(format!("{more} more files")),
    }
    match names.pop() {
        Some(last) if !names.is_empty() => format!("{} and {last}", names.join(", ")),
        last => last.unwrap_or_default(),
    }
}

/// Returns the whole question to ask before a call, with the protected files that it would change, or `None` if there is nothing to ask.
///
/// A person who agrees allows the call to change these files ([`Allowance`]).
///
/// # Errors
/// Those of [`question`].
pub async fn asked(tree: &dyn Backend, call: &ToolCall, scope: &Scope) -> Result<Option<(Question, Vec<VfsPathBuf>)>> {
    let refused = protected(tree, call).await;
    let question = match question(tree, call, scope).await? {
        Some(question) => question.and_protected(&refused),
        None if refused.is_empty() => return Ok(None),
        None => of_protected(&refused),
    };
    Ok(Some((question, refused.into_iter().map(|refusal| refusal.path).collect())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn question_names_few_files_and_counts_the_rest() {
        let paths: Vec<VfsPathBuf> = (0..7).map(|number| VfsPathBuf::parse(format!("/{number}")).expect("legal")).collect();
        assert_eq!(named(&paths[..1]), "`/0`");
        assert_eq!(named(&paths[..2]), "`/0` and `/1`");
        assert_eq!(named(&paths[..6]), "`/0`, `/1`, `/2`, `/3`, `/4` and 1 more file");
        assert_eq!(named(&paths), "`/0`, `/1`, `/2`, `/3`, `/4` and 2 more files");
    }
}
