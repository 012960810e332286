//! `store index`, and routes that maintain an index.

use super::Home;

const ROUTES: &str = "[routes.\"/\"]\ntype = \"state\"\n[routes.\"/memories\"]\ntype = \"store\"\nnamespace = \"{user}/memories\"\n";

fn statuses(home: &Home) -> Vec<serde_json::Value> {
    let told: serde_json::Value = serde_json::from_str(&home.ok(&["--json", "store", "index", "/memories", "--status"])).unwrap();
    told["indexes"].as_array().unwrap().clone()
}

fn status(home: &Home) -> serde_json::Value {
    let [status] = &statuses(home)[..] else { panic!("there is not exactly one index") };
    status.clone()
}

#[test]
fn route_maintains_its_index_from_the_first_file() {
    let home = Home::new();
    home.put("treehold.toml", format!("{ROUTES}index = \"trigram\"\n"));
    home.ok(&["write", "/memories/plan.md", "tea and cake\n"]);
    home.ok(&["write", "/memories/other.md", "bread\n"]);
    assert_eq!((&status(&home)["is_complete"], &status(&home)["files_in_tail"]), (&true.into(), &2.into()));
    assert_eq!(home.ok(&["grep", "and cake", "/memories"]), "/memories/plan.md:1:tea and cake\n");
    home.ok(&["edit", "/memories/plan.md", "cake", "honey"]);
    home.run(&["grep", "and cake", "/memories"], 1);
    assert_eq!(home.ok(&["grep", "-e", "and h.*ney$", "/"]), "/memories/plan.md:1:tea and honey\n");
    // The index stays when the configuration no longer asks for one, and writers keep maintaining it.
    home.put("treehold.toml", ROUTES);
    home.ok(&["write", "/memories/third.md", "honey and bread\n"]);
    assert_eq!(status(&home)["files_in_tail"], 3);
    assert_eq!(home.ok(&["grep", "-l", "honey", "/memories"]), "/memories/plan.md\n/memories/third.md\n");
    home.ok(&["doctor"]);
    home.ok(&["store", "verify"]);
    home.ok(&["store", "index", "/memories", "--remove"]);
    assert_eq!(home.ok(&["store", "index", "/memories", "--status"]), "no index\n");
    assert_eq!(home.ok(&["grep", "-l", "honey", "/memories"]), "/memories/plan.md\n/memories/third.md\n");
}

#[test]
fn index_is_built_for_existing_files() {
    let home = Home::new();
    home.put("treehold.toml", ROUTES);
    for number in 0..5 {
        home.ok(&["write", &format!("/memories/{number}.md"), &format!("number {number} of all\n")]);
    }
    home.put("treehold.toml", format!("{ROUTES}index = \"trigram\"\n"));
    home.ok(&["write", "/memories/5.md", "number 5 of all\n"]);
    assert_eq!(status(&home)["is_complete"], false);
    assert_eq!(home.ok(&["grep", "-c", "of all", "/memories"]).lines().count(), 6);
    home.ok(&["store", "index", "/memories"]);
    assert_eq!(status(&home)["is_complete"], true);
    assert_eq!(home.ok(&["grep", "-l", "number 3", "/memories"]), "/memories/3.md\n");
    // A row that is missing from the index is reported, and rebuilt.
    let namespace = "default/memories/_treehold/indexes";
    home.ok(&["store", "rm", namespace, "a5.md"]);
    let told = home.ok(&["store", "index", "/memories", "--rebuild"]);
    assert!(told.starts_with("trigram index, complete: 6 files in "), "{told}");
    let refused = home.error(&["store", "index", "/"], 3);
    assert!(refused.contains("`/` is not a store route; `/memories` is the only one"), "{refused}");
}

#[test]
fn verify_reports_a_file_missing_from_the_index() {
    let home = Home::new();
    home.put("treehold.toml", format!("{ROUTES}index = \"trigram\"\n"));
    home.ok(&["write", "/memories/plan.md", "tea and cake\n"]);
    home.ok(&["store", "rm", "default/memories/_treehold/indexes", "aplan.md"]);
    let told = home.run(&["store", "verify"], 6).get_output().stdout.clone();
    let told = String::from_utf8(told).unwrap();
    assert!(told.contains("does not find `/plan.md`") && told.contains("default/memories"), "{told}");
    home.run(&["doctor"], 6);
}

#[test]
fn both_index_kinds_are_built_and_removed_independently() {
    let home = Home::new();
    home.put("treehold.toml", ROUTES);
    home.ok(&["write", "/memories/plan.md", "We drink tea.\n"]);
    home.put("treehold.toml", format!("{ROUTES}index = [\"trigram\", \"words\"]\n"));
    home.ok(&["write", "/memories/other.md", "Tea is drunk, tea is brewed.\n"]);
    assert_eq!(statuses(&home).iter().map(|status| &status["is_complete"]).collect::<Vec<_>>(), [false, false]);
    let told = home.ok(&["store", "index", "/memories", "--kind", "words"]);
    assert!(told.starts_with("words index, complete: "), "{told}");
    let kinds =
        |home: &Home| statuses(home).iter().map(|status| (status["kind"].clone(), status["is_complete"].clone())).collect::<Vec<_>>();
    assert_eq!(kinds(&home), [("trigram".into(), false.into()), ("words".into(), true.into())]);
    assert_eq!(home.ok(&["store", "index", "/memories"]).lines().count(), 2);
    assert_eq!(kinds(&home), [("trigram".into(), true.into()), ("words".into(), true.into())]);
    home.ok(&["doctor"]);
    home.ok(&["write", "/memories/third.md", "Coffee.\n"]);
    home.ok(&["doctor"]);
    home.ok(&["store", "rm", "default/memories/_treehold/indexes", "cthird.md"]);
    home.run(&["doctor"], 6);
    home.ok(&["store", "index", "/memories", "--rebuild"]);
    home.ok(&["doctor"]);
    // An index that the configuration asks for would come back incomplete with the next write.
    let refused = home.run(&["store", "index", "/memories", "--remove", "--kind", "words"], 2).get_output().stderr.clone();
    let refused = String::from_utf8(refused).unwrap();
    assert!(refused.contains("names the words index") && refused.contains("--rebuild"), "{refused}");
    home.run(&["store", "index", "/memories", "--remove"], 2);
    home.put("treehold.toml", format!("{ROUTES}index = \"trigram\"\n"));
    home.ok(&["store", "index", "/memories", "--remove", "--kind", "words"]);
    assert_eq!(kinds(&home), [("trigram".into(), true.into())]);
}
