//! `config`, and the flags and variables that override it.

use super::Home;

#[test]
fn every_command_reports_configuration_faults_with_line_and_column() {
    let home = Home::new();
    home.put("treehold.toml", "");
    home.put("treehold.toml", "[stores.main]\nurl = \"sqlite:a.db\"\n\n[routes.\"/m\"]\ntype = \"store\"\nnamespase = \"m\"\n");
    let fault = "treehold: treehold.toml:6:1: unknown key `namespase`; did you mean `namespace`?\n";
    for args in [&["config", "check"][..], &["ls"], &["write", "/m/a", "x"]] {
        assert_eq!(home.error(args, 2), fault);
    }
    let checked = home.run(&["--json", "config", "check"], 2);
    let checked: serde_json::Value = serde_json::from_slice(&checked.get_output().stdout).unwrap();
    assert_eq!((&checked["line"], &checked["column"]), (&6.into(), &1.into()));
}

#[test]
fn check_accepts_a_valid_configuration() {
    let home = Home::new();
    assert_eq!(home.ok(&["config", "check"]), "no configuration file; using built-in defaults\n");
    let file = home.put("one.toml", "[scope]\nuser = \"ada\"\n");
    assert!(home.ok(&["config", "check", file.to_str().unwrap()]).ends_with("one.toml is valid\n"));
    home.run(&["config", "check", "missing.toml"], 3);
}

/// A URL in an environment variable is known to `config check` and to whoever opens the stores, but not to the parser.
#[test]
fn overlapping_stores_are_refused_by_the_check_and_by_commands() {
    let home = Home::new();
    let told = "the store `two` lies within the store `one`; give each store a place of its own";
    for (url, is_parsed) in [("sqlite:parts/x.db", true), ("env:TREEHOLD_TEST_STORE", false)] {
        home.put("two.toml", format!("[stores.one]\nurl = \"sqlite:parts/\"\n[stores.two]\nurl = \"{url}\"\n"));
        for (args, has_line) in [(&["config", "check", "two.toml"][..], true), (&["--config", "two.toml", "cat", "/memories/a"], is_parsed)]
        {
            let failed = home.command(args).env("TREEHOLD_TEST_STORE", "sqlite:parts/x.db").assert().code(2);
            let error = String::from_utf8(failed.get_output().stderr.clone()).unwrap();
            assert!(error.contains(told) && error.contains("two.toml:4:7: ") == has_line, "{args:?} {url}: {error}");
        }
    }
    assert!(!home.work().join("parts").exists(), "nothing was opened");
}

#[test]
fn show_prints_effective_settings_and_their_origin() {
    let home = Home::new();
    home.put("treehold.toml", "[scope]\nuser = \"ada\"\n");
    let shown = home.ok(&["config", "show", "--thread", "t2"]);
    assert!(shown.contains("user = \"ada\"  # treehold.toml:2\n"), "{shown}");
    assert!(shown.contains("thread = \"t2\"  # --thread or TREEHOLD_THREAD\n"), "{shown}");
    assert!(shown.contains("tenant = \"default\"\n"), "{shown}");
    let again = home.put("again.toml", &shown);
    home.ok(&["config", "check", again.to_str().unwrap()]);
    let settings = home.json(&["--json", "config", "show"]);
    assert!(settings.as_array().unwrap().iter().any(|setting| setting["keys"] == serde_json::json!(["scope", "user"])));
}

#[test]
fn effective_configuration_is_drawn_as_a_tree() {
    let home = Home::new();
    let routes = "[routes.\"/\"]\ntype = \"state\"\n[routes.\"/memories\"]\ntype = \"store\"\nnamespace = \"{tenant}/{user}/m\"\n\
        [routes.\"/memories/team\"]\ntype = \"store\"\nnamespace = \"{tenant}/team\"\nquota = { files_max = 10 }\n\
        [routes.\"/workspace\"]\ntype = \"filesystem\"\nroot = \"/srv/none\"\n[routes.\"/workspace\".overlay]\n\
        [routes.\"/before\"]\ntype = \"history\"\nat = \"~1\"\n";
    let rules = "[[layers.permissions]]\neffect = \"deny\"\noperations = [\"write\"]\npaths = [\"/memories/team/**\"]\n";
    home.put("treehold.toml", format!("[stores.main]\nurl = \"sqlite:/srv/agent.db\"\n{routes}{rules}"));
    insta::assert_snapshot!("config_effective", home.ok(&["config", "show", "--effective"]));
    let json = home.json(&["config", "show", "--effective", "--json"]);
    assert_eq!((&json[0]["path"], &json[0]["sharing"], &json[0]["store"]["name"]), (&"/".into(), &"thread".into(), &"main".into()));
}

#[test]
fn only_store_holds_the_history_too() {
    let home = Home::new();
    home.put("treehold.toml", "[stores.main]\nurl = \"sqlite:agent.db\"\n");
    home.ok(&["write", "/plan.md", "1"]);
    home.ok(&["write", "/memories/a.md", "1"]);
    assert!(!home.data().join("treehold.db").exists(), "nothing is kept elsewhere");
    let named = home.ok(&["store", "ls", "--store", "main"]);
    assert_eq!(home.ok(&["store", "ls"]), named);
    assert!(named.contains("_treehold/threads") || named.contains("threads"), "{named}");
    assert!(home.ok(&["store", "migrate"]).contains("`main` has the current layout"));
    assert_eq!(home.ok(&["timeline"]).lines().count(), 2);
}

#[test]
fn init_writes_a_file_equal_to_the_defaults() {
    let home = Home::new();
    let before = home.json(&["--json", "config", "show"]);
    home.ok(&["config", "init"]);
    home.ok(&["config", "check"]);
    let values = |settings: &serde_json::Value| -> Vec<serde_json::Value> {
        settings.as_array().unwrap().iter().map(|setting| setting["value"].clone()).collect()
    };
    assert_eq!(values(&home.json(&["--json", "config", "show"])), values(&before));
    assert!(home.error(&["config", "init"], 4).contains("exists already"));
}

#[test]
fn relative_paths_resolve_against_the_file() {
    let home = Home::new();
    let config = home.put("nested/treehold.toml", "[routes.\"/here\"]\ntype = \"filesystem\"\nroot = \"files\"\ncreate_root = true\n");
    home.ok(&["--config", config.to_str().unwrap(), "write", "/here/a.md", "one"]);
    assert_eq!(std::fs::read_to_string(home.work().join("nested/files/a.md")).unwrap(), "one");
    home.run(&["cat", "/workspace/nested/files/a.md"], 0).stdout("one");
}

#[test]
fn root_with_scope_fields_is_separate_and_sealed() {
    let home = Home::new();
    home.put("treehold.toml", "[routes.\"/own\"]\ntype = \"filesystem\"\nroot = \"homes/{tenant}/{user}\"\ncreate_root = true\n");
    home.ok(&["--user", "ada", "write", "/own/a.md", "ada's"]);
    home.run(&["--user", "bob", "cat", "/own/a.md"], 3);
    assert!(home.work().join("homes/default/ada/a.md").exists());
    for user in ["..", ".", "../../etc", "/etc", "a/b"] {
        assert!(home.error(&["--user", user, "ls", "/own"], 2).contains("cannot be a directory"), "{user}");
    }
    home.run(&["--user", "", "ls", "/own"], 2);
}

#[test]
fn template_with_a_missing_scope_field_is_refused() {
    let home = Home::new();
    home.put("treehold.toml", "[routes.\"/own\"]\ntype = \"store\"\nnamespace = \"{agent}/notes\"\n");
    let told = home.error(&["ls", "/own"], 2);
    assert!(told.contains("the route `/own` leads to `{agent}/notes`") && told.contains("`--agent`"), "{told}");
    home.ok(&["--agent", "coder", "ls", "/own"]);
}

#[test]
fn reserved_root_is_refused_as_tenant_user_agent_and_thread() {
    let home = Home::new();
    home.put("treehold.toml", "[routes.\"/m\"]\ntype = \"store\"\nnamespace = \"{tenant}/{user}\"\n");
    for flag in ["tenant", "user", "agent", "thread"] {
        let said = home.error(&[&format!("--{flag}"), "_treehold", "ls", "/m"], 2);
        assert!(said.contains(&format!("the {flag} id `_treehold` is reserved")), "{said}");
        home.put("scoped.toml", format!("[scope]\n{flag} = \"_treehold\"\n"));
        assert!(home.error(&["--config", "scoped.toml", "ls", "/"], 2).contains("is reserved"), "{flag}");
    }
    for field in ["tenant", "user", "agent"] {
        let said = home.error(&["token", "create", &format!("--{field}"), "_treehold"], 2);
        assert!(said.contains("is reserved"), "{said}");
    }
    home.ok(&["--tenant", "threads", "ls", "/m"]);
}

#[test]
fn routes_share_a_store_and_may_use_different_engines() {
    let home = Home::new();
    home.put(
        "treehold.toml",
        "[stores.one]\nurl = \"sqlite:{data}/one.db\"\n[stores.quick]\nurl = \"memory:\"\n\
         [stores.tree]\nurl = \"sled:tree\"\n\
         [routes.\"/tree\"]\ntype = \"store\"\nstore = \"tree\"\nnamespace = \"t\"\n\
         [routes.\"/a\"]\ntype = \"store\"\nstore = \"one\"\nnamespace = \"shared\"\n\
         [routes.\"/b\"]\ntype = \"store\"\nstore = \"one\"\nnamespace = \"shared\"\n\
         [routes.\"/quick\"]\ntype = \"store\"\nstore = \"quick\"\nnamespace = \"q\"\n",
    );
    home.ok(&["write", "/a/x", "one"]);
    assert_eq!(home.ok(&["cat", "/b/x"]), "one");
    home.ok(&["write", "/quick/x", "gone with the process"]);
    home.run(&["cat", "/quick/x"], 3);
    home.ok(&["write", "/tree/x", "kept"]);
    assert_eq!(home.ok(&["cat", "/tree/x"]), "kept");
    assert!(home.data().join("one.db").exists() && home.work().join("tree").is_dir());
}

#[test]
fn configured_layers_apply_to_the_tree() {
    let home = Home::new();
    home.put(
        "treehold.toml",
        r#"
        [routes."/memories"]
        type = "store"
        namespace = "{user}/memories"
        [routes."/memories".quota]
        bytes_max = 10
        [routes."/workspace"]
        type = "filesystem"
        root = "."

        [layers]
        audit = "audit.jsonl"
        timeout = "30s"
        attempts_max = 3
        running_max = 4
        [[layers.permissions]]
        effect = "deny"
        operations = ["all"]
        paths = ["/**/.env"]
        [[layers.permissions]]
        effect = "deny"
        operations = ["write"]
        paths = ["/workspace/fixed"]
        [[layers.permissions]]
        effect = "ask"
        operations = ["read"]
        paths = ["/workspace/asked"]
        "#,
    );
    home.put(".env", "KEY=1");
    home.put("fixed/a", "one");
    home.put("asked", "one");
    home.ok(&["write", "/memories/a", "12345678"]);
    assert!(home.error(&["append", "/memories/a", "901"], 5).contains("10"), "over the quota");
    let told = home.error(&["write", "/workspace/fixed/a", "two"], 5);
    assert!(told.contains("rule 2 (`/workspace/fixed`) forbids `write` of `/workspace/fixed/a`"), "{told}");
    assert!(home.error(&["cat", "/workspace/asked"], 5).contains("needs approval and nobody is here to give it"));
    home.run(&["cat", "/workspace/.env"], 3);
    assert!(!home.ok(&["find", "/workspace"]).contains(".env"));
    let audit = std::fs::read_to_string(home.work().join("audit.jsonl")).unwrap();
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt as _;
        let mode = std::fs::metadata(home.work().join("audit.jsonl")).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "only the owner may read the audit log");
    }
    let records: Vec<serde_json::Value> = audit.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(records.iter().any(|record| record["operation"] == "write" && record["scope"]["user"] == "default"));
    assert!(!audit.contains("12345678"), "never content");
}

#[test]
fn missing_root_fails_only_its_own_route() {
    let home = Home::new();
    home.put(
        "treehold.toml",
        "[routes.\"/gone\"]\ntype = \"filesystem\"\nroot = \"missing\"\n\
         [routes.\"/here\"]\ntype = \"filesystem\"\nroot = \".\"\n",
    );
    home.put("a.md", "todo");
    assert_eq!(home.ok(&["ls", "/"]), "gone/\nhere/\n");
    assert_eq!(home.ok(&["cat", "/here/a.md"]), "todo");
    home.ok(&["write", "/b.md", "state"]);
    for args in [&["ls", "/gone"][..], &["cat", "/gone/x"], &["write", "/gone/x", "y"], &["rm", "-f", "/gone/x"], &["stat", "/gone"]] {
        let json: Vec<&str> = ["--json"].iter().chain(args).copied().collect();
        let record: serde_json::Value = serde_json::from_str(&home.error(&json, 6)).unwrap();
        assert_eq!((&record["code"], &record["path"]), (&"unavailable".into(), &"/gone".into()), "{args:?}: {record}");
        assert!(!record.to_string().contains(home.work().to_str().unwrap()), "no path of the host: {record}");
    }
    let found = home.run(&["grep", "-l", "todo", "/"], 6).stdout("/here/a.md\n");
    assert!(String::from_utf8_lossy(&found.get_output().stderr).contains("/gone"));
    let drawn = home.run(&["tree", "/"], 6);
    let drawn = String::from_utf8_lossy(&drawn.get_output().stdout).into_owned();
    assert!(drawn.contains("gone/ [unavailable]\n") && drawn.contains("a.md\n"), "{drawn}");
    let checked = home.run(&["config", "check"], 0);
    assert!(String::from_utf8_lossy(&checked.get_output().stderr).contains("the root of `/gone`"));
    std::fs::create_dir(home.work().join("missing")).unwrap();
    home.ok(&["write", "/gone/x", "y"]);
}

#[test]
fn write_to_a_volatile_store_warns() {
    let home = Home::new();
    home.put("treehold.toml", "[stores.default]\nurl = \"memory:\"\n");
    let written = home.run(&["write", "/memories/a", "x"], 0);
    assert!(String::from_utf8_lossy(&written.get_output().stderr).contains("the store `default` is in memory"));
    let checked = home.json(&["--json", "config", "check"]);
    assert!(checked["warnings"][0].as_str().unwrap().contains("content is lost"));
}

#[test]
fn directory_of_a_store_that_does_not_exist_is_a_warning() {
    let home = Home::new();
    let checked = |url: &str| {
        home.put("named.toml", format!("[stores.default]\nurl = \"{url}\"\n"));
        home.json(&["--json", "config", "check", "named.toml"])["warnings"].clone()
    };
    let warnings = checked("sqlite:none/deeper/team.db");
    assert!(warnings[0].as_str().unwrap().contains("none/deeper, does not exist"), "{warnings}");
    for url in ["sqlite:team.db", "sqlite:{data}/team.db", "postgres://db/x"] {
        assert_eq!(checked(url), serde_json::json!([]), "{url}");
    }
}

#[test]
fn every_quota_limit_exits_with_the_quota_code() {
    let home = Home::new();
    home.put(
        "treehold.toml",
        "[routes.\"/m\"]\ntype = \"store\"\nnamespace = \"m\"\n[routes.\"/m\".quota]\nbytes_max = 20\nfiles_max = 2\nfile_bytes_max = 10\n",
    );
    let code = |args: &[&str]| {
        let json: Vec<&str> = ["--json"].iter().chain(args).copied().collect();
        let record: serde_json::Value = serde_json::from_str(&home.error(&json, 5)).unwrap();
        record["code"].as_str().unwrap().to_owned()
    };
    assert_eq!(code(&["write", "/m/a", "12345678901"]), "quota_exceeded");
    home.ok(&["write", "/m/a", "1234567890"]);
    home.ok(&["write", "/m/b", "123456789"]);
    assert_eq!(code(&["write", "/m/c", ""]), "quota_exceeded");
    assert_eq!(code(&["append", "/m/b", "12"]), "quota_exceeded");
}
