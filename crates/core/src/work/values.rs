//! Counts the values of JSON without parsing it.
//!
//! A value may have two bytes as JSON and takes many times more once it is parsed, so the size of a document does not bound its memory.

use super::advance;
use crate::error::{Error, ErrorKind, Result};
use memchr::memchr2;

/// The most values in the JSON of one request: elements, members and brackets. An object counts as 16.
pub const JSON_VALUES_MAX: usize = 1_000_000;

/// How many values an object counts as, since even the smallest takes much more memory than a number.
const OBJECT_VALUES: usize = 16;

/// Refuses JSON with too many values. Cost: one pass; texts are skipped at memory speed.
///
/// # Errors
/// [`TooLarge`](ErrorKind::TooLarge) for more than [`JSON_VALUES_MAX`] values.
pub fn check_json_values(json: &[u8]) -> Result<()> {
    if json.len() <= JSON_VALUES_MAX / OBJECT_VALUES || values(json) <= JSON_VALUES_MAX {
        return Ok(());
    }
    let message = format!("the JSON has over {JSON_VALUES_MAX} values; send fewer at once");
    Err(Error::new(ErrorKind::TooLarge, message).without_effect())
}

/// Counts the commas and opening brackets outside texts, which are at least as many as the values less one.
fn values(json: &[u8]) -> usize {
    let (mut count, mut at) = (0, 0);
    while let Some(byte) = json.get(at) {
        let next = if *byte == b'"' { end_of_text(json, at + 1) } else { at + 1 };
        count += match byte {
            b',' | b'[' => 1,
            b'{' => OBJECT_VALUES,
            _ => 0,
        };
        advance(next - at);
        at = next;
    }
    count
}

/// Returns the position after the quote that ends a text.
fn end_of_text(json: &[u8], mut at: usize) -> usize {
    while let Some(found) = memchr2(b'"', b'\\', json.get(at..).unwrap_or_default()) {
        at += found;
        if json[at] == b'"' {
            return at + 1;
        }
        at += 2;
    }
    json.len()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::{Value, json};

    fn value() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![Just(Value::Null), any::<i64>().prop_map(Value::from), r#"[,\[{"\\a]{0,9}"#.prop_map(Value::from)];
        leaf.prop_recursive(4, 64, 8, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..8).prop_map(Value::from),
                prop::collection::hash_map(r#"[,\[{"\\a]{0,9}"#, inner, 0..8).prop_map(|map| map.into_iter().collect()),
            ]
        })
    }

    /// Returns how many values a value consists of, without itself, and how many brackets it has.
    fn parts(value: &Value) -> (usize, usize) {
        let inner: Vec<_> = match value {
            Value::Array(items) => items.iter().map(parts).collect(),
            Value::Object(members) => members.values().map(parts).collect(),
            _ => return (0, 0),
        };
        inner.iter().fold((inner.len(), 1), |(values, brackets), (more, deeper)| (values + more, brackets + deeper))
    }

    proptest! {
        #[test]
        fn count_bounds_values_from_both_sides(value in value()) {
            let (counted, (parts, brackets)) = (values(value.to_string().as_bytes()), parts(&value));
            prop_assert!(parts <= counted && counted <= parts + OBJECT_VALUES * brackets, "{counted} {parts} {value}");
        }

        #[test]
        fn any_bytes_are_counted(bytes in prop::collection::vec(prop_oneof![Just(b'"'), Just(b'\\'), Just(b','), any::<u8>()], 0..64)) {
            prop_assert!(values(&bytes) <= OBJECT_VALUES * bytes.len());
        }
    }

    #[test]
    fn many_values_are_refused_and_long_texts_are_not() {
        let many = format!("[{}0]", "0,".repeat(JSON_VALUES_MAX));
        assert_eq!(check_json_values(many.as_bytes()).expect_err("too many").kind(), ErrorKind::TooLarge);
        check_json_values(json!({"text": ",".repeat(4 * JSON_VALUES_MAX)}).to_string().as_bytes()).expect("one text");
    }
}
