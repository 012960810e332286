//! `search` across the tiers.

use super::Home;

#[test]
fn search_ranks_files_across_mounts() {
    let home = Home::new();
    home.put("notes/deploy.md", "Deploying takes ten minutes.\n");
    home.put(".hidden.md", "deploy\n");
    home.ok(&["write", "/memories/rules.md", "# Rules\n\nNever deploy on Fridays.\nDeploy twice, if you must deploy.\n"]);
    home.ok(&["write", "/memories/food.md", "tea\n"]);
    home.ok(&["write", "/scratch.md", "nothing of it\n"]);
    let found = home.ok(&["search", "deploys on a friday"]);
    let paths: Vec<&str> = found.lines().filter(|line| line.starts_with('/')).collect();
    assert_eq!(paths, ["/memories/rules.md", "/workspace/notes/deploy.md"], "{found}");
    assert!(found.contains("\n  3: Never deploy on Fridays.\n  4: Deploy twice, if you must deploy.\n"), "{found}");
    assert_eq!(home.ok(&["search", "deploy", "/workspace", "--snippets", "0"]), "/workspace/notes/deploy.md\n");
    assert_eq!(home.ok(&["search", "friday", "-g", "!*.txt", "--snippets", "0"]), "/memories/rules.md\n");
    assert_eq!(home.ok(&["search", "deploy", "-n", "1", "--offset", "1", "--snippets", "0"]).lines().count(), 1);
    home.run(&["search", "deploy", "-n", "1"], 0).stderr(predicates::str::contains("--offset 1"));
    home.run(&["search", "absent"], 1).stdout("");
    home.run(&["search", "deploy", "--before", "2001-01-01"], 1).stdout("");
    assert_eq!(home.ok(&["search", "deploy", "--since", "1d", "--snippets", "0"]).lines().count(), 2);
    home.run(&["search", "..."], 2);
    home.run(&["search", "deploy", "--since", "soon"], 2);
    home.run(&["search", "deploy", "/missing"], 3);
}

#[test]
fn search_results_are_available_as_json() {
    let home = Home::new();
    home.ok(&["write", "/memories/a.md", "one word\n"]);
    let whole: serde_json::Value = serde_json::from_str(&home.ok(&["search", "word", "--json"])).unwrap();
    assert_eq!((&whole["hits"][0]["path"], &whole["words"][0]), (&"/memories/a.md".into(), &"word".into()));
    assert_eq!(whole["hits"][0]["snippets"][0], serde_json::json!({"line": 1, "text": "one word", "ranges": [[4, 8]]}));
    let line: serde_json::Value = serde_json::from_str(&home.ok(&["search", "word", "--jsonl"])).unwrap();
    assert_eq!(line["path"], "/memories/a.md");
}
