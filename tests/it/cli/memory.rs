//! `memory show`: the memory in an agent's system prompt.

use super::Home;

#[test]
fn memory_show_prints_the_configured_sources() {
    let home = Home::new();
    let nothing = home.run(&["memory", "show"], 1);
    assert!(String::from_utf8_lossy(&nothing.get_output().stdout).contains("There is no memory yet."));
    home.ok(&["write", "/memories/AGENTS.md", "The colour is green. <!-- since Monday -->\n"]);
    home.put("AGENTS.md", "Run the tests.\n");
    let shown = home.ok(&["memory", "show"]);
    let files = "<memory path=\"/memories/AGENTS.md\">\nThe colour is green. \n</memory>\n\n\
        <memory path=\"/workspace/AGENTS.md\">\nRun the tests.\n</memory>\n";
    assert!(shown.starts_with("# Memory\n\n") && shown.ends_with(files), "{shown}");
    let json = home.json(&["--json", "memory", "show", "/workspace/AGENTS.md", "/none.md"]);
    assert_eq!(json["text"].as_str().unwrap().matches("<memory path").count(), 1);
    assert_eq!((&json["files"][0]["tokens"], &json["absent"][0]), (&4.into(), &"/none.md".into()));
    // One source is a directory, which is reported; the other source is shown.
    let failed = home.run(&["memory", "show", "/memories", "/workspace/AGENTS.md"], 2);
    assert!(String::from_utf8_lossy(&failed.get_output().stdout).contains("Run the tests."));
    assert!(String::from_utf8_lossy(&failed.get_output().stderr).contains("`/memories` is a directory"));
}

#[test]
fn sources_and_budget_come_from_the_configuration() {
    let home = Home::new();
    home.put("treehold.toml", "[memory]\nsources = [\"/style.md\"]\ntokens_max = 420\n");
    home.ok(&["write", "/style.md", &"use spaces\n".repeat(300)]);
    let json = home.json(&["--json", "memory", "show"]);
    assert!(json["tokens"].as_u64().unwrap() <= 420, "{json}");
    assert!(json["files"][0]["tokens_shown"].as_u64() < json["files"][0]["tokens"].as_u64());
    let told = home.run(&["memory", "show"], 0);
    assert!(String::from_utf8_lossy(&told.get_output().stderr).contains("raise `--tokens`"));
    home.put("treehold.toml", "[memory]\nsources = [\"style.md\"]\n");
    assert!(home.error(&["memory", "show"], 2).starts_with("treehold: treehold.toml:2:"));
}
