//! `store`: reading and writing rows directly.

use super::Home;

#[test]
fn rows_can_be_listed_read_put_and_removed() {
    let home = Home::new();
    home.ok(&["write", "/memories/a.md", "one"]);
    home.ok(&["write", "/memories/d/b.md", "two"]);
    let own = "default/default/_treehold/events/rows/memories\ndefault/default/_treehold/history/memories\n";
    assert_eq!(home.ok(&["store", "ls"]), format!("{own}default/default/memories\n"));
    let keys = home.ok(&["store", "ls", "default/default/memories"]);
    assert_eq!(keys.lines().count(), 3, "two files and a directory: {keys}");
    for key in keys.lines().filter(|key| key.contains(".md")) {
        assert!(["one", "two"].contains(&home.ok(&["store", "get", "default/default/memories", key]).as_str()));
    }
    home.with_stdin(&["store", "put", "own/rows", "k%25y", "-"], b"\0\xff").code(0);
    home.run(&["store", "get", "own/rows", "k%25y"], 0).stdout(&b"\0\xff"[..]);
    assert_eq!(home.ok(&["store", "ls", "own/rows", "--prefix", "k"]), "k%25y\n");
    assert!(home.error(&["store", "put", "default/default/memories", keys.lines().next().unwrap(), "x"], 2).contains("treehold write"));
    home.run(&["store", "rm", "own/rows", "k%25y", "absent"], 3);
    home.ok(&["store", "rm", "own/rows", "k%25y"]);
    home.run(&["store", "get", "own/rows", "k%25y"], 3);
    home.ok(&["store", "rm", "default/default/memories", "--all"]);
    assert_eq!(home.ok(&["store", "ls"]), own, "the event log and the history remain");
    home.run(&["store", "ls", "nowhere"], 1).stdout("");
    home.run(&["store", "ls", "--store", "none"], 3);
    home.run(&["store", "ls", "a///b"], 2);
}

#[test]
fn stats_count_rows_and_bytes() {
    let home = Home::new();
    home.ok(&["store", "put", "own", "k", "12345"]);
    let stats = home.json(&["--json", "store", "stats"]);
    assert_eq!((&stats["namespaces"], &stats["rows"], &stats["bytes"]), (&1.into(), &1.into(), &5.into()));
    assert!(home.ok(&["store", "stats"]).contains("rows        1\n"));
}

#[test]
fn json_items_are_found_by_filter() {
    let home = Home::new();
    home.ok(&["store", "put", "ada/tasks", "walk", r#"{"minutes": 30, "dog": "Rex"}"#, "--item"]);
    home.ok(&["store", "put", "ada/tasks", "feed", r#"{"minutes": 5, "dog": "Rex"}"#, "--item", "--ttl", "1h"]);
    home.ok(&["store", "put", "ada/tasks/old", "wash", r#"{"minutes": 40}"#, "--item"]);
    home.ok(&["store", "put", "ada/tasks", "note", "no json"]);
    let long = ["store", "search", "ada/tasks", "--filter", r#"{"minutes": {"$gte": 10}}"#];
    assert_eq!(home.ok(&long), "walk  {\"dog\":\"Rex\",\"minutes\":30}\n");
    let beneath = home.ok(&[&long[..], &["--beneath"]].concat());
    assert_eq!(beneath.lines().map(|line| line.split("  ").next().unwrap()).collect::<Vec<_>>(), ["ada/tasks", "ada/tasks/old"]);
    let found = home.json(&["--json", "store", "search", "ada/tasks", "--limit", "1"]);
    assert_eq!((&found[0]["key"], &found[0]["value"]["minutes"]), (&"feed".into(), &5.into()));
    assert!(!found[0]["expires_at"].is_null());
    let rest = home.ok(&["store", "search", "ada/tasks", "--start-after", "ada/tasks", "feed"]);
    assert_eq!(rest.lines().count(), 1, "{rest}");
    home.run(&["store", "search", "ada/tasks", "--filter", r#"{"minutes": 6}"#], 1).stdout("");
    assert!(home.error(&["store", "search", "ada/tasks", "--filter", r#"{"minutes": {"$near": 6}}"#], 2).contains("use $eq"));
    assert!(home.error(&["store", "put", "ada/tasks", "walk", "{", "--item"], 2).contains("the value is not JSON"));
    assert!(home.error(&["store", "put", "ada/tasks", "walk", "raw"], 2).contains("--item"));
}

#[test]
fn put_honors_version_conditions() {
    let home = Home::new();
    fn put<'a>(more: &[&'a str]) -> Vec<&'a str> {
        [&["--json", "store", "put", "own", "k", "1"], more].concat()
    }
    let version = home.json(&put(&["--if-absent"]))["version"].as_str().unwrap().to_owned();
    home.run(&put(&["--if-absent"]), 4);
    let newer = home.json(&put(&["--if-version", &version, "--item"]))["version"].as_str().unwrap().to_owned();
    home.run(&put(&["--if-version", &version, "--item"]), 4);
    assert_ne!(version, newer);
    home.run(&put(&["--item", "--ttl", "soon"]), 2);
}

/// `store put` refuses the reserved namespaces that hold no data of users, and a configuration refuses all of them.
#[test]
fn reserved_namespaces_refuse_rows_put_by_hand_and_routes() {
    let home = Home::new();
    for reserved in treehold::store::RESERVED_NAMESPACES {
        let name = reserved.components.join("/");
        if reserved.rows != treehold::store::ReservedRows::Data {
            for place in [format!("{name}/x"), format!("acme/ada/{name}/x"), format!("acme//{name}/x")] {
                let said = home.error(&["store", "put", &place, "admin", "{}"], 2);
                assert!(said.contains("is reserved; "), "{said}");
            }
        }
        for place in [format!("{name}/x"), format!("{{tenant}}/x/{name}"), format!("{{tenant}}//{name}")] {
            let config = home.put("routes.toml", format!("[routes.\"/r\"]\ntype = \"store\"\nnamespace = \"{place}\"\n"));
            let said = home.error(&["--config", config.to_str().unwrap(), "ls", "/r"], 2);
            assert!(said.contains("names `_treehold`, which is reserved"), "{said}");
        }
    }
}

/// Moves a store with the command, as an operator would: tokens are left out, and a notice counts them.
#[test]
fn tokens_are_exported_and_imported_only_on_request() {
    let home = Home::new();
    home.ok(&["write", "/memories/a.md", "one"]);
    home.ok(&["token", "create"]);
    let tokens = |store: &str| home.run(&["store", "ls", "_treehold/tokens", "--store", store], 1).get_output().stdout.is_empty();
    home.ok(&["store", "export", "plain.tar"]);
    home.ok(&["store", "export", "all.tar", "--include", "tokens"]);
    home.ok(&["store", "import", "plain.tar", "--store", "sqlite:plain.db"]);
    assert!(tokens("sqlite:plain.db"));
    let imported = home.run(&["store", "import", "all.tar", "--store", "sqlite:left.db"], 0);
    let said = String::from_utf8(imported.get_output().stderr.clone()).unwrap();
    assert!(said.contains("of `tokens` left out"), "{said}");
    assert!(tokens("sqlite:left.db"));
    home.ok(&["store", "copy", "default", "sqlite:copied.db"]);
    assert!(tokens("sqlite:copied.db"));
    home.ok(&["store", "import", "all.tar", "--store", "sqlite:all.db", "--include", "tokens"]);
    assert!(!home.ok(&["store", "ls", "_treehold/tokens", "--store", "sqlite:all.db"]).is_empty());
    // Input from a pipe is checked before the import too.
    let archive = std::fs::read(home.work().join("plain.tar")).unwrap();
    home.with_stdin(&["store", "import", "-", "--store", "sqlite:piped.db"], &archive).success();
    let damaged = home.with_stdin(&["store", "import", "-", "--store", "sqlite:damaged.db"], &archive[..archive.len() - 2_048]);
    damaged.code(6);
    assert_eq!(
        home.ok(&["store", "stats", "--store", "sqlite:damaged.db"]).lines().find(|line| line.starts_with("rows")),
        Some("rows        0")
    );
}

/// Rules apply to paths, not to rows, and whoever opens the database bypasses the tree. So agents get no access to rows.
#[test]
fn import_ignores_rules_about_paths_and_no_tool_imports() {
    let home = Home::new();
    home.ok(&["write", "/memories/a.md", "one"]);
    home.ok(&["store", "export", "all.tar"]);
    let rules = "[[layers.permissions]]\neffect = \"deny\"\noperations = [\"write\"]\npaths = [\"/memories\"]\n";
    home.put("treehold.toml", format!("[stores.default]\nurl = \"sqlite:other.db\"\n{rules}"));
    assert!(home.error(&["write", "/memories/a.md", "two"], 5).contains("forbids"));
    home.ok(&["store", "import", "all.tar"]);
    assert_eq!(home.ok(&["cat", "/memories/a.md"]), "one");
    for set in ["default", "memory", "text-editor", "agent"] {
        for tool in home.json(&["tools", "--set", set]).as_array().unwrap() {
            let name = tool["name"].as_str().or(tool["type"].as_str()).unwrap();
            assert!(!["import", "export", "store", "row"].iter().any(|word| name.contains(word)), "{set}: {name}");
        }
    }
}

/// The arguments of every `store` command, and of others that name stores. `URL` stands for the URL of the store.
const ON_A_STORE: &[&[&str]] = &[
    &["store", "ls", "--store", "URL"],
    &["store", "get", "a", "k", "--store", "URL"],
    &["store", "put", "a", "k", "v", "--store", "URL"],
    &["store", "rm", "a", "k", "--store", "URL"],
    &["store", "search", "a", "--store", "URL"],
    &["store", "compact", "--store", "URL"],
    &["store", "copy", "URL", "memory:"],
    &["store", "copy", "memory:", "URL"],
    &["store", "export", "out.tar", "--store", "URL"],
    &["store", "import", "in.tar", "--store", "URL"],
    &["store", "index", "/memories"],
    &["store", "migrate", "URL"],
    &["store", "migrate", "default"],
    &["store", "snapshot", "out.db", "--store", "URL"],
    &["store", "snapshot", "out.db", "--store", "default"],
    &["store", "stats", "--store", "URL"],
    &["store", "stats", "--store", "env:URL"],
    &["store", "sweep", "--store", "URL"],
    &["store", "verify", "--store", "URL"],
    // Usage errors quote arguments.
    &["store", "stats", "URL"],
    &["store", "stats", "env:URL"],
    &["store", "stats", "--sotre=URL"],
    &["store", "sweep", "--limit", "URL"],
    &["config", "show"],
    &["config", "show", "--effective"],
    &["config", "check"],
    &["config", "trust"],
    &["doctor"],
];

/// Regression: `snapshot`, `migrate` and usage errors printed the URL with its password.
#[test]
fn password_of_a_store_url_is_never_printed() {
    let home = Home::new();
    home.ok(&["write", "/memories/a.md", "one"]);
    home.ok(&["store", "export", "in.tar"]);
    let help = home.ok(&["store", "--help"]);
    let (_, commands) = help.split_once("Commands:\n").unwrap();
    for line in commands.lines().take_while(|line| !line.is_empty()) {
        let command = line.split_whitespace().next().unwrap();
        assert!(ON_A_STORE.iter().any(|args| args.starts_with(&["store", command])), "`store {command}` is in no row");
    }
    let schemes = ["postgres", "mysql", "redis", "postgre"];
    let mistyped = ["postgres://ada:it's hunter2@127.0.0.1:1/0", "postgres:ada:hunter2@127.0.0.1", "env:redis://:hunter2@127.0.0.1:1"];
    for url in schemes.map(|scheme| format!("{scheme}://ada:hunter2@127.0.0.1:1/0")).into_iter().chain(mistyped.map(str::to_owned)) {
        let (named, wrong) = (format!("env:{url}"), format!("--sotre={url}"));
        let route = "[routes.\"/memories\"]\ntype = \"store\"\nnamespace = \"memories\"\n";
        home.put("treehold.toml", format!("[stores.default]\nurl = \"{url}\"\n{route}"));
        for args in ON_A_STORE {
            let args = args.iter().map(|word| match *word {
                "URL" => url.as_str(),
                "env:URL" => named.as_str(),
                "--sotre=URL" => wrong.as_str(),
                word => word,
            });
            for flag in ["--verbose", "--json"] {
                let args: Vec<&str> = std::iter::once(flag).chain(args.clone()).collect();
                let output = home.command(&args).output().unwrap();
                let printed = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
                assert!(!printed.contains("hunter2"), "{args:?}: {printed}");
            }
        }
    }
}
