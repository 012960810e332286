//! The page that says how each requirement of the original is held, against the tests that it names.

use std::collections::BTreeSet;
use std::path::Path;

/// Adds the names of the functions in a folder.
fn add_functions(folder: &Path, functions: &mut BTreeSet<String>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            add_functions(&path, functions);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let source = std::fs::read_to_string(&path).unwrap();
            let named = source.split("fn ").skip(1).filter_map(|rest| rest.split('(').next());
            functions.extend(named.map(str::to_owned));
        }
    }
}

#[test]
fn every_requirement_names_tests_that_exist() {
    let top = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let page = std::fs::read_to_string(top.join("docs/design/agent-state-requirements.md")).unwrap();
    let mut functions = BTreeSet::new();
    for folder in ["crates/agent-state/tests", "crates/conformance/src", "tests"] {
        add_functions(&top.join(folder), &mut functions);
    }
    // Those that have a reason in place of a test.
    let mut untested = BTreeSet::new();
    let (mut requirements, mut named) = (Vec::new(), 0);
    for row in page.lines().filter_map(|line| line.strip_prefix("| 003-")) {
        let (numbers, held) = row.split_once(" | ").unwrap();
        let numbers: Vec<u32> = numbers.split(", ").map(|number| number.parse().unwrap()).collect();
        let tests: Vec<&str> = held.split('`').skip(1).step_by(2).filter(|name| name.matches('_').count() >= 3).collect();
        for test in &tests {
            assert!(functions.contains(*test), "{numbers:?} names `{test}`, which is no test");
        }
        if tests.is_empty() {
            untested.extend(&numbers);
        }
        requirements.extend(numbers);
        named += tests.len();
    }
    assert_eq!(requirements, (1..=54).collect::<Vec<_>>());
    assert_eq!(untested, BTreeSet::from([25, 35, 41, 43]));
    assert!(named > 90, "{named}");
}
