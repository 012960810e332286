//! Property tests of globs, compared with a recursive matcher and with `globset`.

use super::PathFilter;
use super::glob::{Glob, GlobRules, Hidden};
use crate::error::ErrorKind;
use crate::ops::{GlobOptions, GrepOptions};
use crate::path::{VfsPath, VfsPathBuf};
use proptest::collection::vec;
use proptest::prelude::*;

fn path(text: &str) -> VfsPathBuf {
    VfsPathBuf::parse(text).expect("a legal path")
}

/// Globs by naive recursion, with braces expanded first. A literal `**` becomes one marker character up front.
mod naive {
    const DEEP: char = '\u{2}';

    fn with_deep(pattern: &str) -> Vec<char> {
        let (mut marked, mut rest) = (Vec::new(), pattern);
        while let Some(next) = rest.chars().next() {
            let stars = rest.len() - rest.trim_start_matches('*').len();
            let taken = match next {
                '*' => stars,
                '\\' => 2,
                '[' => {
                    let characters: Vec<char> = rest.chars().collect();
                    characters[..=class_end(&characters, 0)].iter().map(|character| character.len_utf8()).sum()
                }
                other => other.len_utf8(),
            };
            match stars {
                0 => marked.extend(rest[..taken].chars()),
                2 => marked.push(DEEP),
                _ => marked.push('*'),
            }
            rest = &rest[taken..];
        }
        marked
    }

    /// Expands the first braces into their alternatives, recursively until none are left.
    fn expand(pattern: &[char]) -> Vec<Vec<char>> {
        let (mut edges, mut depth, mut at) = (Vec::new(), 0, 0);
        while at < pattern.len() {
            match pattern[at] {
                '\\' => at += 1,
                '[' => at = class_end(pattern, at),
                '{' => {
                    depth += 1;
                    if depth == 1 {
                        edges.push(at);
                    }
                }
                ',' if depth == 1 => edges.push(at),
                '}' if depth > 0 => {
                    depth -= 1;
                    if depth == 0 {
                        edges.push(at);
                        let with = |edge: &[usize]| [&pattern[..edges[0]], &pattern[edge[0] + 1..edge[1]], &pattern[at + 1..]].concat();
                        return edges.windows(2).flat_map(|edge| expand(&with(edge))).collect();
                    }
                }
                _ => {}
            }
            at += 1;
        }
        vec![pattern.to_vec()]
    }

    fn class_end(pattern: &[char], start: usize) -> usize {
        let first = start + 1 + usize::from(matches!(pattern[start + 1], '!' | '^'));
        (first + 1..pattern.len()).find(|at| pattern[*at] == ']').expect("the class is closed")
    }

    pub(super) fn is_match(pattern: &str, path: &str, sees_hidden: bool) -> bool {
        let anchored = pattern.trim_end_matches('/').contains('/');
        expand(&with_deep(pattern)).iter().any(|alternative| {
            let mut segments: Vec<&[char]> =
                alternative.split(|character| *character == '/').filter(|segment| !matches!(segment, [] | ['.'] | ['\\', '.'])).collect();
            if !anchored && !segments.is_empty() {
                segments.insert(0, &[DEEP]);
            }
            let path: Vec<Vec<char>> = path.split('/').map(|segment| segment.chars().collect()).collect();
            !segments.is_empty() && segments_match(&segments, &path, sees_hidden)
        })
    }

    fn segments_match(pattern: &[&[char]], path: &[Vec<char>], sees_hidden: bool) -> bool {
        let is_hidden = |segment: &Vec<char>| !sees_hidden && segment[0] == '.';
        match pattern {
            [] => path.is_empty(),
            [[DEEP]] => !path.is_empty() && !path.iter().any(is_hidden),
            [[DEEP], rest @ ..] => (0..=path.len())
                .take_while(|skipped| *skipped == 0 || !is_hidden(&path[skipped - 1]))
                .any(|skipped| segments_match(rest, &path[skipped..], sees_hidden)),
            [first, rest @ ..] => path.split_first().is_some_and(|(segment, below)| {
                let named = !is_hidden(segment) || matches!(first, ['.', ..] | ['\\', '.', ..]);
                named && segment_matches(first, segment) && segments_match(rest, below, sees_hidden)
            }),
        }
    }

    fn segment_matches(pattern: &[char], text: &[char]) -> bool {
        match pattern {
            [] => text.is_empty(),
            ['*' | DEEP, rest @ ..] => (0..=text.len()).any(|skipped| segment_matches(rest, &text[skipped..])),
            ['?', rest @ ..] => !text.is_empty() && segment_matches(rest, &text[1..]),
            ['\\', literal, rest @ ..] => text.first() == Some(literal) && segment_matches(rest, &text[1..]),
            ['[', ..] => {
                let end = class_end(pattern, 0);
                text.first().is_some_and(|character| class_matches(&pattern[1..end], *character))
                    && segment_matches(&pattern[end + 1..], &text[1..])
            }
            [literal, rest @ ..] => text.first() == Some(literal) && segment_matches(rest, &text[1..]),
        }
    }

    fn class_matches(class: &[char], character: char) -> bool {
        let negated = matches!(class[0], '!' | '^');
        let (mut found, mut members) = (false, &class[usize::from(negated)..]);
        while let [first, rest @ ..] = members {
            (found, members) = match rest {
                ['-', last, after @ ..] => (found || (*first..=*last).contains(&character), after),
                _ => (found || *first == character, rest),
            };
        }
        found != negated
    }
}

/// Patterns over a small alphabet, so that many match. Most are legal.
fn patterns() -> impl Strategy<Value = String> {
    let atom = || {
        prop_oneof![
            6 => prop::sample::select(vec!["a", "b", ".", "é", "ab", ".a"]).prop_map(str::to_owned),
            4 => Just("*".to_owned()),
            2 => Just("**".to_owned()),
            2 => Just("?".to_owned()),
            2 => prop::sample::select(vec!["[ab]", "[!a]", "[^b-é]", "[.]", r"\.", r"\*", "[a-]", "[]a]"]).prop_map(str::to_owned),
            4 => Just("/".to_owned()),
        ]
    };
    vec(
        atom().prop_recursive(3, 12, 4, |inner| {
            vec(vec(inner, 0..3).prop_map(|atoms| atoms.concat()), 1..4).prop_map(|alternatives| format!("{{{}}}", alternatives.join(",")))
        }),
        1..6,
    )
    .prop_map(|atoms| atoms.concat())
}

fn relative_paths() -> impl Strategy<Value = String> {
    vec("[ab.é]{1,3}", 1..5)
        .prop_map(|segments| segments.join("/"))
        .prop_filter("legal", |path| VfsPath::parse(&format!("/{path}")).is_ok_and(|parsed| parsed.relative() == path))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn glob_agrees_with_naive_recursion(pattern in patterns(), paths in vec(relative_paths(), 1..8)) {
        for hidden in [Hidden::Excluded, Hidden::Entered, Hidden::Included] {
            let Ok(glob) = Glob::compile(&pattern, GlobRules { case_insensitive: false, hidden, takes_beneath: false }) else { continue };
            let is_bare = !pattern.trim_end_matches('/').contains('/');
            for path in &paths {
                let matched = glob.is_match(path);
                // Such a pattern is matched against the name alone.
                let name = path.rsplit('/').next().unwrap_or_default();
                let met = if hidden == Hidden::Entered && is_bare { name } else { path };
                prop_assert_eq!(matched, naive::is_match(&pattern, met, hidden == Hidden::Included), "{} {} {:?}", pattern, path, hidden);
                if matched {
                    let prefix = glob.literal_prefix();
                    prop_assert!(prefix.is_empty() || path.strip_prefix(prefix).is_some_and(|rest| rest.starts_with('/')));
                    for (slash, _) in path.match_indices('/') {
                        prop_assert!(glob.can_match_beneath(&path[..slash]), "{} {} {}", pattern, path, slash);
                    }
                }
            }
        }
    }

    #[test]
    fn can_match_beneath_is_exact_without_double_star(
        pattern in patterns(),
        directory in relative_paths(),
        beneath in vec("[ab]{1,2}|\\.a", 1..3),
    ) {
        // The test above shows that no match is missed; this one that the answer is not simply always true.
        if let Ok(glob) = Glob::parse_visible(&pattern, false) {
            let path = format!("{directory}/{}", beneath.join("/"));
            prop_assert!(!glob.is_match(&path) || glob.can_match_beneath(&directory));
            if !pattern.contains("**") && pattern.trim_end_matches('/').contains('/') {
                let depth = pattern.matches('/').count();
                if directory.split('/').count() > depth {
                    prop_assert!(!glob.can_match_beneath(&directory), "{} {}", pattern, directory);
                }
            }
        }
    }

    #[test]
    fn glob_agrees_with_globset(
        segments in vec(
            prop_oneof![Just("**".to_owned()), r"[ab]?(\*|\?|\[ab\]|\[a-c\]|x\{a,b\*,\}|a\{b\{,a\},\?\})?[ab.]?\*?"],
            1..5,
        ),
        paths in vec("[abx.]{1,3}(/[abx.]{1,3}){0,4}", 1..8),
    ) {
        let segments: Vec<_> = segments.into_iter().filter(|segment| !segment.is_empty() && !segment.starts_with('.')).collect();
        prop_assume!(!segments.is_empty());
        let pattern = segments.join("/");
        let theirs = if segments.len() == 1 { format!("**/{pattern}") } else { pattern.clone() };
        let theirs = globset::GlobBuilder::new(&theirs).literal_separator(true).empty_alternates(true).build().expect("legal");
        let theirs = theirs.compile_matcher();
        let ours = Glob::parse(&pattern, false).expect("legal");
        for path in &paths {
            prop_assert_eq!(ours.is_match(path), theirs.is_match(path), "{} {}", pattern, path);
        }
    }

    #[test]
    fn case_insensitive_glob_ignores_only_case(pattern in "[aBé*?]{1,4}", path in "[AbÉ]{1,4}") {
        let glob = Glob::parse(&pattern, true).expect("legal");
        prop_assert_eq!(glob.is_match(&path), naive::is_match(&pattern.to_lowercase(), &path.to_lowercase(), true));
        prop_assert!(glob.is_match(&path.to_uppercase()) == glob.is_match(&path.to_lowercase()));
    }

    #[test]
    fn filter_bound_excludes_no_match(pattern in patterns(), base in relative_paths(), beneath in relative_paths(), hidden in any::<bool>()) {
        let mut options = GlobOptions::new(pattern.clone()).with_hidden(hidden);
        options.scope.base = path(&format!("/{base}"));
        let (root, found) = (path("/r"), path(&format!("/r/{beneath}")));
        if let Ok(filter) = PathFilter::for_glob(&root, &options) {
            let walked = found.ancestors().filter(|above| above.starts_with(&root) && **above != *root).all(|above| filter.enters(above));
            let selected = naive::is_match(&pattern, &format!("{base}/{beneath}"), hidden) && !pattern.ends_with('/');
            prop_assert_eq!(walked && filter.selects(&found, false), selected, "{} {} {}", pattern, base, beneath);
            prop_assert!(!selected || filter.bound().is_some_and(|bound| found.starts_with(&bound)));
        }
    }

    #[test]
    fn any_text_is_a_glob_or_refused(
        pattern in "\\PC{0,40}|[{}\\[\\]*?!,/\\\\.^a-]{0,40}",
        path in "\\PC{1,20}|[a.]{1,3}(/[a.]{1,3}){0,3}",
    ) {
        for insensitive in [true, false] {
            match Glob::parse(&pattern, insensitive) {
                Ok(glob) => {
                    prop_assert!(glob.can_match_beneath(""));
                    if glob.is_match(&path) {
                        for (end, _) in path.match_indices('/') {
                            prop_assert!(glob.can_match_beneath(&path[..end]), "{}", &path[..end]);
                        }
                    }
                }
                Err(error) => prop_assert_eq!(error.kind(), ErrorKind::InvalidArgument),
            }
        }
        let glob = PathFilter::for_glob(VfsPath::ROOT, &GlobOptions::new(&*pattern)).err();
        let grep = GrepOptions::new("x").with_include(&*pattern).with_exclude(&*pattern);
        let grep = PathFilter::for_grep(VfsPath::ROOT, &grep).err();
        // In options, a leading `!` excludes.
        if !pattern.starts_with('!') {
            let is_glob = Glob::parse(&pattern, false).is_ok();
            prop_assert_eq!((glob.is_none(), grep.is_none()), (is_glob, is_glob), "{:?} {:?}", glob, grep);
        }
        for error in [glob, grep].into_iter().flatten() {
            prop_assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        }
    }
}
