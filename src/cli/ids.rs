//! Checkpoints by as few letters as name them, for a terminal.

use crate::checkpoint::ListOptions;
use crate::cli::exit::Failure;
use crate::cli::output::{Output, Style};
use crate::cli::table::Cell;
use crate::{CheckpointId, Checkpointer, Error, Scope};
use std::collections::BTreeSet;

/// The letters of an id that are shown.
const SHOWN: usize = 8;

/// The letters that are shown of an id in a thread that is too long to compare them all. They are as good as unique.
const SHOWN_IN_LONG: usize = 16;

/// The most checkpoints that are compared.
const COMPARED_MAX: usize = 20_000;

/// The most checkpoints to request at a time.
const PAGE: usize = 1_000;

/// The ids of one thread, to find how many letters tell one from the others.
#[derive(Debug)]
pub(crate) struct ShortIds {
    /// The letters of all ids in order; `None` if there are too many.
    ids: Option<Vec<String>>,
    /// Labels, which take precedence over the start of an id.
    labels: BTreeSet<String>,
}

impl ShortIds {
    /// Reads the ids of a thread.
    pub(crate) async fn of(checkpointer: &dyn Checkpointer, scope: &Scope) -> Result<Self, Error> {
        let (mut ids, mut labels) = (Vec::new(), BTreeSet::new());
        let mut options = ListOptions::new().with_limit(PAGE);
        loop {
            let page = checkpointer.list(scope, &options).await?;
            ids.extend(page.checkpoints.iter().map(|checkpoint| checkpoint.id.letters()));
            labels.extend(page.checkpoints.into_iter().filter_map(|checkpoint| checkpoint.label));
            match page.next {
                Some(_) if ids.len() >= COMPARED_MAX => return Ok(Self { ids: None, labels }),
                Some(next) => options.start_after = Some(next),
                None => break,
            }
        }
        ids.sort_unstable();
        Ok(Self { ids: Some(ids), labels })
    }

    /// Returns the start of an id that names it, and more letters to recognize it by.
    fn parts(&self, id: CheckpointId) -> (String, String) {
        let letters = id.letters();
        let Some(ids) = &self.ids else { return (letters[..SHOWN_IN_LONG].to_owned(), String::new()) };
        let place = ids.partition_point(|other| *other < letters);
        let before = place.checked_sub(1).and_then(|before| ids.get(before));
        let after = ids[place..].iter().find(|other| **other != letters);
        let shared = |other: &String| other.bytes().zip(letters.bytes()).take_while(|(one, other)| one == other).count();
        let mut unique = before.into_iter().chain(after).map(shared).max().unwrap_or(0) + 1;
        while unique < letters.len() && self.labels.contains(&letters[..unique]) {
            unique += 1;
        }
        let end = SHOWN.max(unique);
        (letters[..unique].to_owned(), letters[unique..end].to_owned())
    }

    /// Returns an id for a table. Without colours, the letters that suffice are in upper case.
    pub(crate) fn cell(&self, out: &Output, id: CheckpointId) -> Cell {
        let (unique, rest) = self.parts(id);
        let unique = if out.has_color() { unique } else { unique.to_uppercase() };
        Cell::styled(Style::Unique, unique).with(Some(Style::Faint), rest)
    }

    /// Returns an id for a line.
    pub(crate) fn text(&self, out: &Output, id: CheckpointId) -> String {
        self.cell(out, id).text(out)
    }
}

/// Prints the id of a checkpoint on a line: a short one on a terminal, all of it elsewhere.
pub(crate) async fn print(out: &mut Output, checkpointer: &dyn Checkpointer, scope: &Scope, id: CheckpointId) -> Result<(), Failure> {
    match out.width() {
        Some(_) => {
            let text = ShortIds::of(checkpointer, scope).await?.text(out, id);
            out.line(text)
        }
        None => out.line(id),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unique_start_is_longer_than_what_another_id_or_a_label_shares() {
        let id = |end: &str| format!("0195a1b2-0000-7000-8000-{end:0>12}").parse::<CheckpointId>().expect("an id");
        let [one, two, three] = [id("cba"), id("dba"), id("f")];
        let mut ids = [one, two, three].map(CheckpointId::letters).to_vec();
        ids.sort_unstable();
        let short = |labels: &[&str]| ShortIds { ids: Some(ids.clone()), labels: labels.iter().map(|label| (*label).to_owned()).collect() };
        let parts = |unique: &str, rest: &str| (unique.to_owned(), rest.to_owned());
        assert_eq!(short(&[]).parts(one), parts("pon", "zzzzz"));
        assert_eq!(short(&[]).parts(two), parts("pom", "zzzzz"));
        assert_eq!(short(&[]).parts(three), parts("k", "zzzzzzz"));
        assert_eq!(short(&["k", "kz", "before"]).parts(three), parts("kzz", "zzzzz"));
        let alone = ShortIds { ids: Some(vec![one.letters()]), labels: BTreeSet::new() };
        assert_eq!(alone.parts(one), parts("p", "onzzzzz"));
        let long = ShortIds { ids: None, labels: BTreeSet::new() };
        assert_eq!(long.parts(one), parts("ponzzzzzzzzzzzzr", ""));
    }
}
