//! Arrays as parameters of a statement: what a batch names, however much it is, in a text of one shape.

use super::key::Key;
use super::script::Script;
use super::step::name;
use treehold_store::Namespace;

/// Keys as the arrays of a statement: name of the namespace, head, digest.
#[derive(Default)]
pub(super) struct KeyArrays<'g> {
    names: Vec<&'g str>,
    heads: Vec<&'g str>,
    digests: Vec<Vec<u8>>,
}

impl<'g> KeyArrays<'g> {
    pub(super) fn push(&mut self, namespace: &'g Namespace, key: &'g str) {
        let key = Key::of(key);
        self.names.push(name(namespace));
        self.heads.push(key.head);
        self.digests.push(key.digest());
    }

    pub(super) fn is_empty(&self) -> bool {
        self.heads.is_empty()
    }

    pub(super) fn parameters(self, script: &mut Script<'g>) -> String {
        let (names, heads) = (script.parameter(self.names), script.parameter(self.heads));
        format!("{names}::text[], {heads}::text[], {}::bytea[]", script.parameter(self.digests))
    }
}

/// The positions of conditions as arrays: the part, and the index within it.
#[derive(Default)]
pub(super) struct PlaceArrays {
    parts: Vec<i32>,
    indexes: Vec<i64>,
}

impl PlaceArrays {
    pub(super) fn push(&mut self, (part, index): (i32, i64)) {
        self.parts.push(part);
        self.indexes.push(index);
    }

    pub(super) fn parameters(self, script: &mut Script<'_>) -> String {
        let (parts, indexes) = (script.parameter(self.parts), script.parameter(self.indexes));
        format!("{parts}::int4[], {indexes}::bigint[]")
    }
}

/// Ranges of keys as arrays: name of the namespace, and head and tail of the first key within it and of the first after it.
#[derive(Default)]
pub(super) struct RangeArrays<'g> {
    names: Vec<&'g str>,
    starts: Vec<String>,
    ends: Vec<String>,
}

impl<'g> RangeArrays<'g> {
    pub(super) fn push(&mut self, namespace: &'g Namespace, start: String, end: String) {
        self.names.push(name(namespace));
        self.starts.push(start);
        self.ends.push(end);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.starts.is_empty()
    }

    pub(super) fn parameters(self, script: &mut Script<'g>) -> String {
        let heads = |bounds: &[String]| bounds.iter().map(|bound| Key::of(bound).head.to_owned()).collect::<Vec<_>>();
        let tails = |bounds: &[String]| bounds.iter().map(|bound| Key::of(bound).tail.to_owned()).collect::<Vec<_>>();
        let names = script.parameter(self.names);
        let (from_heads, from_tails) = (script.parameter(heads(&self.starts)), script.parameter(tails(&self.starts)));
        let (to_heads, to_tails) = (script.parameter(heads(&self.ends)), script.parameter(tails(&self.ends)));
        format!("{names}::text[], {from_heads}::text[], {from_tails}::text[], {to_heads}::text[], {to_tails}::text[]")
    }
}
