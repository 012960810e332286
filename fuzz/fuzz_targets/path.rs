//! Random pairs of texts as paths: accepted paths are in normal form, and the laws of prefixes and order hold.
//!
//! Input: two lines.

#![no_main]

use libfuzzer_sys::fuzz_target;
use treehold_core::path::{PATH_BYTES_MAX, SEGMENT_BYTES_MAX};
use treehold_core::{VfsPath, VfsPathBuf};

fuzz_target!(|input: &str| {
    let (one, other) = input.split_once('\n').unwrap_or((input, "/a"));
    let (Ok(one), Ok(other)) = (VfsPath::parse(one), VfsPath::parse(other)) else { return };
    for path in [&*one, &*other] {
        check_normal(path);
        check_relatives(path);
    }
    check_pair(&one, &other);
});

fn check_normal(path: &VfsPath) {
    let text = path.as_str();
    assert!(text.starts_with('/') && text.len() <= PATH_BYTES_MAX && !text.chars().any(char::is_control));
    assert!(text == "/" || !text.ends_with('/'));
    for segment in path.segments() {
        assert!(!matches!(segment, "" | "." | "..") && segment.len() <= SEGMENT_BYTES_MAX && !segment.contains('/'));
    }
    let again = VfsPath::parse(text).expect("an accepted path is accepted again");
    assert!(matches!(again, std::borrow::Cow::Borrowed(same) if same == path));
    let json = serde_json::to_string(path).expect("a path is a string");
    assert_eq!(serde_json::from_str::<VfsPathBuf>(&json).expect("the JSON parses back"), path.to_owned());
}

fn check_relatives(path: &VfsPath) {
    let rebuilt = path.segments().try_fold(VfsPathBuf::root(), |above, name| above.child(name)).expect("segments are names");
    assert_eq!(rebuilt, path.to_owned());
    assert_eq!(path.depth(), path.segments().count());
    assert_eq!(path.depth(), path.ancestors().count());
    for above in path.ancestors() {
        assert!(path.starts_with(above) && above < path);
        let rest = path.strip_prefix(above).expect("an ancestor is a prefix");
        assert_eq!(above.concat(rest), path.to_owned());
    }
    assert_eq!(path.parent(), path.ancestors().last());
    assert_eq!(path.name(), path.segments().next_back().unwrap_or_default());
}

fn check_pair(one: &VfsPath, other: &VfsPath) {
    assert_eq!(one.cmp(other), one.segments().cmp(other.segments()), "paths are ordered by segments");
    assert_eq!(one.cmp(other), other.cmp(one).reverse());
    let is_prefix = one.segments().count() <= other.segments().count() && one.segments().zip(other.segments()).all(|(a, b)| a == b);
    assert_eq!(other.starts_with(one), is_prefix);
    let joined = one.concat(other);
    assert_eq!(joined.strip_prefix(one), Some(other));
}
