//! The hash that AgentScope keeps beside a list, to notice that the list was edited and not only extended.
//!
//! AgentScope hashes the size of a list and five of its elements by `hashCode`. Messages have no `hashCode` of their own, so the JVM
//! uses the identity of the object. Only the process that wrote a list, with the same objects in memory, computes its hash again. Every
//! other process finds a different hash and rewrites the list.
//!
//! So a list that we wrote needs a hash that no AgentScope process can compute: each of them then rewrites the list instead of adding
//! its messages to ours. Ours samples the elements in the same way, hashes their texts, and starts with a letter that no hash of
//! AgentScope has.

/// The hash of the empty list.
pub(super) const EMPTY: &str = "empty:0";

/// Returns the hash of a list of texts.
pub(super) fn list_hash(items: &[String]) -> String {
    if items.is_empty() {
        return EMPTY.to_owned();
    }
    let sampled: String = samples(items.len()).into_iter().map(|index| format!("{index}:{},", java_hash(&items[index]))).collect();
    format!("text:{:x}", java_hash(&format!("size:{};{sampled}", items.len())))
}

/// Returns which elements are hashed.
fn samples(size: usize) -> Vec<usize> {
    match size {
        0..=5 => (0..size).collect(),
        _ => vec![0, size / 4, size / 2, size * 3 / 4, size - 1],
    }
}

/// Returns the `hashCode` of a Java string.
fn java_hash(text: &str) -> i32 {
    text.encode_utf16().fold(0_i32, |hash, unit| hash.wrapping_mul(31).wrapping_add(i32::from(unit)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn java_hashes_are_those_of_the_jvm() {
        for (text, hash) in [("", 0), ("a", 97), ("size:2;0:1,1:2,", 528_510_890), ("é😀", 1_996_812)] {
            assert_eq!(java_hash(text), hash, "{text}");
        }
    }

    #[test]
    fn five_elements_are_sampled_and_no_java_process_has_the_same_hash() {
        let items = |count: usize| (0..count).map(|item| item.to_string()).collect::<Vec<_>>();
        assert_eq!(list_hash(&[]), "empty:0");
        for count in 1..40 {
            let hash = list_hash(&items(count));
            assert!(hash.starts_with("text:") && hash != list_hash(&items(count + 1)), "{hash}");
        }
        assert_eq!(samples(5), [0, 1, 2, 3, 4]);
        assert_eq!(samples(6), [0, 1, 3, 4, 5]);
        assert_eq!(samples(100), [0, 25, 50, 75, 99]);
    }
}
