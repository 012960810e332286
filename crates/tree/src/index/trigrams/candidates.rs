//! Finds the files that a grep needs to read.

use super::matrix::{files_meeting, set_bits};
use super::{SignedFiles, Trigrams};
use crate::index::TreeIndexes;
use crate::index::files::{FILES_PER_ROW, IndexedFile};
use crate::index::kind::Kind;
use crate::index::lookup::{LookedUp, Query};
use crate::index::manifest::{Manifest, damaged, places};
use bytes::Bytes;
use std::collections::BTreeSet;
use treehold_core::error::Result;
use treehold_core::search::trigram::{Need, Trigram};

/// The files that may satisfy a [`Need`].
#[derive(Clone)]
struct Candidates<'n> {
    need: &'n Need,
    trigrams: BTreeSet<Trigram>,
    keys: BTreeSet<String>,
    /// The number of files in the index, and how many of them match.
    all: usize,
    met: usize,
}

impl TreeIndexes {
    /// Returns the keys of the files that may satisfy a need, in order, or `None` if the index cannot narrow the search.
    ///
    /// Cost: one pass over the tail, then one bit of every file for each trigram and segment, then the names of the matching
    /// files: three round trips, and one more the first time.
    ///
    /// # Errors
    /// Errors of the store.
    pub(crate) async fn candidates(&self, need: &Need) -> Result<Option<BTreeSet<String>>> {
        if *need == Need::Nothing {
            return Ok(None);
        }
        let query = Candidates { need, trigrams: need.trigrams(), keys: BTreeSet::new(), all: 0, met: 0 };
        let Some(LookedUp { query: found, .. }) = self.look_up::<Trigrams, _>(&query).await? else { return Ok(None) };
        Ok((!found.matches_most()).then_some(found.keys))
    }
}

impl Candidates<'_> {
    /// Returns whether most files match. Then scanning pages with their bodies is faster than reading the files by key.
    fn matches_most(&self) -> bool {
        self.met * 2 >= self.all && self.all >= FILES_PER_ROW
    }
}

impl Query<Trigrams> for Candidates<'_> {
    type Hit = ();

    fn take_tail(&mut self, key: &str, row: &[u8]) -> Result<()> {
        let signature = Trigrams::from_bytes(row)?;
        if self.need.is_met(&|trigram| signature.may_hold(trigram)) {
            self.keys.insert(key.to_owned());
            self.met += 1;
        }
        Ok(())
    }

    fn among(&mut self, manifest: &Manifest<SignedFiles>, tail_files: usize) {
        self.all = tail_files + places(manifest);
    }

    fn rows(&self, segment: SignedFiles) -> Result<(BTreeSet<usize>, usize)> {
        let size = segment.size()?;
        let rows: BTreeSet<usize> = self.trigrams.iter().map(|trigram| size.bit_of(*trigram) / segment.bits_per_row()).collect();
        let size_bytes = rows.len() * segment.bits_per_row() * segment.stride();
        Ok((rows, size_bytes))
    }

    fn hits(&mut self, segment: SignedFiles, row: &dyn Fn(usize) -> Result<Bytes>) -> Result<Vec<(usize, ())>> {
        let size = segment.size()?;
        let slice = |trigram: Trigram| -> Result<Bytes> {
            let bit = size.bit_of(trigram);
            let row = row(bit / segment.bits_per_row())?;
            let start = bit % segment.bits_per_row() * segment.stride();
            let slice = (row.len() >= start + segment.stride()).then(|| row.slice(start..start + segment.stride()));
            slice.ok_or_else(|| damaged("a row of a segment"))
        };
        let hits: Vec<(usize, ())> = set_bits(&files_meeting(self.need, segment, &slice)?).map(|number| (number, ())).collect();
        self.met += hits.len();
        // Skip reading names that will not be used.
        Ok(if self.matches_most() { Vec::new() } else { hits })
    }

    fn take(&mut self, (): (), file: IndexedFile) {
        self.keys.insert(file.key);
    }
}
