//! `store verify`: checks a whole store for damage.

use super::StoreName;
use crate::backend::Verification;
use crate::checkpoint::check_row;
use crate::cli::context::Context;
use crate::cli::exit::{Failure, Outcome, causes};
use crate::cli::output::counted;
use crate::error::ErrorRecord;
use crate::store::{AllNamespaces, INDEX_NAMESPACE, StoreVerification, verify};
use crate::{Error, ErrorKind, Namespace, Store as Rows, StoreBackend};
use clap::Args;
use serde_json::json;
use std::sync::Arc;
use treehold_core::reserved::subject_of;

/// Check a whole store for damage
///
/// Runs the engine's own check and reads every row of every namespace. Prints one line per fault, and exits with 6 if there is
/// one.
#[derive(Debug, Args)]
pub(crate) struct Verify {
    #[command(flatten)]
    store: StoreName,
}

/// Checks that the indexes of trees find every file.
async fn check_indexes(store: &Arc<dyn Rows>, found: &mut StoreVerification) -> Result<(), Error> {
    let mut listing = AllNamespaces::new(&**store);
    loop {
        let page = match listing.next_page().await {
            Ok(Some(page)) => page,
            Ok(None) => return Ok(()),
            // The rows of this partition could not be listed either, which is a fault already.
            Err(error) if error.kind() == ErrorKind::Corrupt || !listing.is_over() => continue,
            Err(error) => return Err(error),
        };
        for namespace in &page {
            let Some(tree) = subject_of(namespace, INDEX_NAMESPACE) else { continue };
            let verified = match StoreBackend::new(store.clone(), tree.clone()).verify(|_| {}).await {
                Ok(verified) => verified,
                Err(error) if error.kind() == ErrorKind::Corrupt || listing.partition().is_some() => {
                    found.add_fault(in_tree(error, &tree));
                    continue;
                }
                Err(error) => return Err(error),
            };
            add_failures(found, &tree, &verified);
        }
    }
}

/// Adds the faults of a tree, of which only the first are listed.
fn add_failures(found: &mut StoreVerification, tree: &Namespace, verified: &Verification) {
    verified.failures.iter().for_each(|failure| found.add_fault(in_tree(Error::from(&failure.error), tree)));
    found.faults_count += verified.failures_count.saturating_sub(verified.failures.len()) as u64;
}

fn in_tree(fault: Error, tree: &Namespace) -> Error {
    let message = format!("{} (in the tree at `{tree}`)", fault.message());
    fault.with_message(message)
}

impl Verify {
    pub(super) async fn run(self, context: &mut Context) -> Result<Outcome, Failure> {
        let store = self.store.open(context).await?;
        let progress = context.progress("reading");
        let found = verify(&*store, check_row, |at| {
            progress.share(at.rows, at.rows_total, format_args!("reading: {} rows, {} bytes", at.rows, at.bytes));
        })
        .await?;
        let mut found = found;
        check_indexes(&store, &mut found).await?;
        drop(progress);
        if context.out.is_text() {
            for fault in &found.faults {
                let causes: Vec<String> = causes(fault).map(ToString::to_string).collect();
                match causes.is_empty() {
                    true => context.out.line(fault)?,
                    false => context.out.line(format_args!("{fault} ({})", causes.join(": ")))?,
                }
            }
            if found.faults_count > found.faults.len() as u64 {
                context.out.line(format_args!("{} more faults", found.faults_count - found.faults.len() as u64))?;
            }
            if found.faults_count == 0 {
                context.out.line(format_args!("{} can be read", counted(found.rows as usize, "row", "rows")))?;
            }
        } else {
            let faults: Vec<ErrorRecord> = found.faults.iter().map(ErrorRecord::from).collect();
            context.out.json(&json!({
                "rows": found.rows,
                "value_bytes": found.value_bytes,
                "versions_shared": found.versions_shared,
                "faults": faults,
                "faults_count": found.faults_count,
            }))?;
        }
        Ok(if found.faults_count == 0 { Outcome::Done } else { Outcome::Failed(ErrorKind::Corrupt) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::VfsPath;
    use crate::ops::Failure;

    /// Regression: the faults of trees were kept beyond the first 1,000.
    #[test]
    fn faults_of_trees_are_kept_up_to_the_bound_and_all_are_counted() {
        let damaged = || Error::new(ErrorKind::Corrupt, "the index lacks a file");
        let mut verified = Verification::default();
        verified.failures = vec![Failure { path: VfsPath::ROOT.to_owned(), error: ErrorRecord::from(&damaged()) }; 100];
        verified.failures_count = 250;
        let tree = Namespace::new(["acme", "ada", "memories"]).expect("a legal namespace");
        let mut found = StoreVerification::default();
        for trees in 1..=12_u64 {
            add_failures(&mut found, &tree, &verified);
            assert_eq!(found.faults.len() as u64, (trees * 100).min(1_000), "after {trees} trees");
            assert_eq!(found.faults_count, trees * 250);
        }
        assert_eq!(found.faults[0].message(), "the index lacks a file (in the tree at `acme/ada/memories`)");
    }
}
