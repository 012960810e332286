//! The page that says how each line of the contract is held, against the tests that it names.

use std::collections::BTreeSet;
use std::path::Path;

#[test]
fn every_line_of_the_contract_names_tests_that_exist() {
    let pages = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/design");
    let page = std::fs::read_to_string(pages.join("traces-requirements.md")).unwrap();
    let (mut lines, mut named) = (BTreeSet::new(), 0);
    for row in page.lines().filter(|row| row.starts_with("| ") && !row.starts_with("| ---")) {
        let cells: Vec<&str> = row.trim_matches('|').split(" | ").collect();
        if let Some(numbers) = cells[0].trim().strip_prefix("002-") {
            lines.extend(numbers.split(", ").map(|number| number.parse::<u32>().unwrap()));
        }
        // The last cell has files, each with the names of tests in it.
        let mut found = 0;
        for group in cells[cells.len() - 1].split("; ").filter(|group| group.contains("](")) {
            let (file, tests) = group.split_once("](").unwrap().1.split_once("): ").unwrap();
            let source = std::fs::read_to_string(pages.join(file)).unwrap_or_else(|error| panic!("{file}: {error}"));
            for test in tests.split(", ").map(|test| test.trim().trim_matches('`')) {
                assert!(source.contains(&format!("fn {test}(")), "{file} has no test `{test}`");
                found += 1;
            }
        }
        assert!(found > 0 || cells.iter().any(|cell| cell.trim() == "tests"), "no test: {row}");
        named += found;
    }
    assert_eq!(lines, (1..=32).collect());
    assert!(named > 100, "{named}");
}
