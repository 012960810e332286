//! Parsing, defaults and faults of configurations.

use super::*;
use std::path::Path;

fn base() -> ConfigBase {
    ConfigBase::new("/etc/agent", "/var/lib/treehold").with_file("treehold.toml")
}

fn parsed(text: &str) -> Config {
    Config::parse(text, &base()).expect("a sound configuration")
}

#[test]
fn route_keeps_the_indexes_it_names() {
    let index = |index: &str| {
        let config = parsed(&format!("[routes.\"/m\"]\ntype = \"store\"\nnamespace = \"m\"\n{index}"));
        config.routes["/m"].index.clone().expect("a store route says which").kinds().to_vec()
    };
    use treehold_tree::backend::IndexKind::{Trigram, Words};
    assert_eq!((index(""), index("index = \"none\""), index("index = []")), (vec![], vec![], vec![]));
    assert_eq!((index("index = \"trigram\""), index("index = [\"words\"]")), (vec![Trigram], vec![Words]));
    assert_eq!(index("index = [\"words\", \"trigram\", \"words\"]"), [Trigram, Words]);
}

#[test]
fn fault_names_line_column_and_intended_key() {
    let table = [
        ("dta = \"x\"", "treehold.toml:1:1: unknown key `dta`; did you mean `data`?"),
        ("\n[routs]", "treehold.toml:2:2: unknown key `routs`; did you mean `routes`?"),
        ("[scope]\nusr = \"ada\"", "treehold.toml:2:1: unknown key `usr`; did you mean `user`?"),
        ("data = 3", "treehold.toml:1:8: the value is integer `3`; write text in quotes"),
        ("stores = []", "treehold.toml:1:10: the value is a list; write a table"),
        ("[threads]\nsave = \"no\"", "treehold.toml:2:8: the value is text \"no\"; write `true` or `false`"),
        ("[memory]\nsources = \"/a\"", "treehold.toml:2:11: the value is text \"/a\"; write a list in brackets, such as `[\"a\", \"b\"]`"),
        (
            "[routes.\"/m\"]\ntype = \"state\"\noverlay = true",
            "treehold.toml:3:11: the value is `true`; write a table, such as `{ key = \"value\" }`",
        ),
        ("data = ", "treehold.toml:1:8: string values must be quoted, expected literal string"),
        ("[stores.a]\nurl = \"sqlit:a.db\"", "treehold.toml:2:7: no store engine is named `sqlit`; did you mean `sqlite`?"),
        (
            "[stores.a]\nurl = \"a.db\"",
            "treehold.toml:2:7: `a.db` names no engine; use `sqlite:FILE`, `sqlite:DIRECTORY/`, `sled:DIRECTORY`, `postgres://…`, `mysql://…`, `redis://…`, `env:VARIABLE` or `memory:`",
        ),
        ("[stores.a]", "treehold.toml:1:1: the key `url` is missing"),
        ("[threads]\nstore = \"defalt\"", "treehold.toml:2:9: no store is named `defalt`; did you mean `default`?"),
        (
            "[routes.\"/m\"]\ntype = \"store\"\nnamespace = \"m\"\nindex = \"word\"",
            "treehold.toml:4:9: unknown value `word`; did you mean `words`?",
        ),
        (
            "[routes.\"/m\"]\ntype = \"store\"\nnamespace = \"m\"\nindex = 3",
            "treehold.toml:4:9: the value is integer `3`; write `none`, a kind of index, or a list of them",
        ),
        (
            "[routes.\"/m\"]\ntype = \"store\"\nnamespace = \"m\"\nindex = [\"none\"]",
            "treehold.toml:4:9: `none` cannot be combined: write `index = \"none\"`, or leave it out of the list",
        ),
        ("[routes.\"/m\"]\ntype = \"stor\"", "treehold.toml:2:8: unknown value `stor`; did you mean `store`?"),
        (
            "[routes.\"/m\"]\ntype = \"store\"",
            "treehold.toml:1:9: the route `/m` has no `namespace`; write `namespace = \"{tenant}/{user}/memories\"`",
        ),
        (
            "[routes.\"/m\"]\ntype = \"store\"\nnamespace = \"{usr}/m\"",
            "treehold.toml:3:13: the template `{usr}` names `{usr}`; the fields are {tenant}, {user}, {agent} and {thread}",
        ),
        (
            "[routes.\"/w\"]\ntype = \"filesystem\"\nroot = \".\"\nnamespace = \"a\"",
            "treehold.toml:4:13: `namespace` belongs to a route of type `store` and this one is `filesystem`",
        ),
        ("[routes.\"m\"]\ntype = \"state\"", "treehold.toml:1:9: the path is not absolute; start it with `/`"),
        ("[layers]\ntimeout = \"soon\"", "treehold.toml:2:11: `soon` is not a duration for a call; write it as `30s` or `500ms`"),
        (
            "[layers]\nrunning_max = 0",
            "treehold.toml:2:15: `running_max` is 0, which would refuse every call; name at least 1, or leave it out",
        ),
        (
            "[[layers.permissions]]\neffect = \"deny\"\noperations = [\"fly\"]\npaths = [\"/\"]",
            "treehold.toml:3:1: `fly` is not an operation of a rule; name `read`, `write`, `all` or one of stat, read, ls, glob, grep, search, \
             write, append, edit, create_dir, delete, rename, copy",
        ),
        (
            "[routes.\"/m\"]\ntype = \"store\"\nat = \"latest\"\nnamespace = \"m\"",
            "treehold.toml:3:6: `at` belongs to a route of type `history` and this one is `store`",
        ),
        (
            "[routes.\"/b\"]\ntype = \"history\"\nat = \"~x\"",
            "treehold.toml:3:6: `~x` does not say how far back; write `~1` for the checkpoint before the latest",
        ),
        (
            "[routes.\"/b\"]\ntype = \"history\"\nthread = \"{thred}\"",
            "treehold.toml:3:10: the template `{thred}` names `{thred}`; the fields are {tenant}, {user}, {agent} and {thread}",
        ),
        (
            "[threads]\nsave = false\n[routes.\"/b\"]\ntype = \"history\"",
            "treehold.toml:4:8: threads are not saved, so they have no history; set `save = true` under `[threads]`",
        ),
        (
            "[routes.\"/b\"]\ntype = \"history\"\nquota = { files_max = 3 }",
            "treehold.toml:3:1: `quota` bounds what is written, and a history route is read-only; leave it out",
        ),
        ("[serve]\nhead_timeout = \"0s\"", "treehold.toml:2:16: `0s` is too short: it must be longer than `0s`; write it as `30s` or `2m`"),
        ("[serve]\nconnections_max = 0", "treehold.toml:2:19: `connections_max` is 0, which would refuse every client; set at least 1"),
        ("[sessions]\npage_max = 0", "treehold.toml:2:12: `page_max` is 0, which allows nothing; set at least 1"),
        ("[sessions]\nstore = \"defalt\"", "treehold.toml:2:9: no store is named `defalt`; did you mean `default`?"),
        ("[sessions]\nmounted = \"..\"", "treehold.toml:2:11: the session id `..` cannot be the name of a directory; choose another one"),
        ("[sessions]\nidempotency_time = \"soon\"", "treehold.toml:2:20: `soon` is not a duration; write it as `24h` or `90m`"),
        (
            "[sessions]\nmounted = \"s\"\n[routes.\"/memo/user\"]\ntype = \"filesystem\"\nroot = \".\"",
            "treehold.toml:3:9: `/memo/user` is where the memory documents of a session are mounted; choose another path for this route",
        ),
        (
            "[embeddings]\nurl = \"http://127.0.0.1/v1/embeddings\"\nmodel = \"m\"\nstore = \"defalt\"",
            "treehold.toml:4:9: no store is named `defalt`; did you mean `default`?",
        ),
        (
            "[embeddings]\nurl = \"http://127.0.0.1/v1/embeddings\"\nmodel = \"m\"\nkey = \"sk-secret\"",
            "treehold.toml:4:7: a token must not be written into the configuration; write `env:VARIABLE` or `file:PATH`",
        ),
        (
            "[embeddings]\nurl = \"http://127.0.0.1/v1/embeddings\"\nmodel = \"m\"\ndimensions = 0",
            "treehold.toml:4:14: a vector of 0 numbers says nothing; leave it out for the model's own choice",
        ),
        (
            "[embeddings]\nurl = \"http://127.0.0.1/v1/embeddings\"\nmodel = \"m\"\nsimilarity_min = 1.5",
            "treehold.toml:4:18: a similarity is a number from 0 to 1",
        ),
        (
            "[embeddings]\nurl = \"http://127.0.0.1/v1/embeddings\"\nmodel = \"m\"\ntimeout = \"0s\"",
            "treehold.toml:4:11: `0s` is too short: it must be longer than `0s`; write it as `30s` or `500ms`",
        ),
        (
            "[embeddings]\nurl = \"http://127.0.0.1/\"\nmodel = \"\"",
            "treehold.toml:3:9: the model has no name; write the one that the endpoint knows",
        ),
        ("[memory]\nindex = [\"notes\"]", "treehold.toml:2:1: `notes`: the path is not absolute; start it with `/`"),
        ("[agent_state]\nkeys_max = 0", "treehold.toml:2:12: `keys_max` is 0, which allows nothing; set at least 1"),
        ("[agent_state]\nstore = \"defalt\"", "treehold.toml:2:9: no store is named `defalt`; did you mean `default`?"),
        (
            "[agent_state]\nexpire_after = \"soon\"",
            "treehold.toml:2:16: `soon` is not an age; write it as `30d` or `12h`, or write `never`",
        ),
        (
            "[agent_state]\nforget_after = \"0d\"",
            "treehold.toml:2:16: `0d` is too short: it must be longer than `0s`; write it as `30d` or `12h`, or write `never`",
        ),
        (
            "[agent_state.expire_prefix_after]\nguest = \"1x\"",
            "treehold.toml:2:9: `1x` is not an age; write it as `30d` or `12h`, or write `never`",
        ),
        ("[traces]\npage_max = 0", "treehold.toml:2:12: `page_max` is 0, which allows nothing; set at least 1"),
        ("[traces]\nstore = \"defalt\"", "treehold.toml:2:9: no store is named `defalt`; did you mean `default`?"),
        ("[traces]\nidempotency_time = \"soon\"", "treehold.toml:2:20: `soon` is not a duration; write it as `24h` or `30s`"),
        ("[traces]\nuser = \"..\"", "treehold.toml:2:8: the user id `..` cannot be the name of a directory; choose another one"),
        ("[traces]\nown_location = \"cloud\"", "treehold.toml:2:16: `cloud` names no place; write `@AGENT` or `agent://HOST`"),
        (
            "[traces]\nallow_private_hosts = true",
            "treehold.toml:2:23: `allow_private_hosts` is about hosts that are not registered, and those are refused; set \
             `allow_unregistered_hosts` too, or leave it out",
        ),
        (
            "[traces]\nkeep_copies_for = \"7d\"",
            "treehold.toml:2:19: `keep_copies_for` keeps copies of cached traces, and nothing is cached; set `cache_bytes_max` too",
        ),
        (
            "[stores.traces]\nurl = \"memory:\"\n[traces]\ninternal = { type = \"database\", url = \"memory:\" }",
            "treehold.toml:4:1: `internal` makes a store `traces`, and `stores` has one of that name; leave `internal` out and write \
             `store = \"traces\"`",
        ),
        (
            "[traces]\ninternal = { type = \"databas\", url = \"memory:\" }",
            "treehold.toml:2:21: unknown value `databas`; did you mean `database`?",
        ),
        (
            "[traces.external]\ntype = \"remote\"\nagents = [{ url = \"https://h\", api_key = \"s3cret\" }]",
            "treehold.toml:3:42: a token must not be written into the configuration; write `env:VARIABLE` or `file:PATH`",
        ),
        ("[scope]\nuser = \"\"", "treehold.toml:2:8: the user id is empty; leave it out or name one"),
    ];
    for (text, fault) in table {
        assert_eq!(Config::parse(text, &base()).expect_err(text).to_string(), fault, "{text}");
    }
}

/// The template with every key in use.
fn whole_template() -> String {
    TEMPLATE
        .lines()
        .map(|line| match line.strip_prefix('#') {
            Some(key) if key.starts_with(|first: char| first.is_ascii_lowercase() || first == '[') => key,
            _ => line,
        })
        .flat_map(|line| [line, "\n"])
        .collect()
}

/// Regression: a duration of the right form that was too long or too short was called malformed. Every key of the template whose value
/// is a duration is tried, or `never`, which stands for one.
#[test]
fn duration_out_of_bounds_is_refused_with_its_bound() {
    let all = whole_template();
    let lines: Vec<&str> = all.lines().collect();
    let is_time = |value: &str| value == "never" || treehold_core::clock::parse_age(value).is_ok();
    let mut tried = 0;
    for (number, line) in lines.iter().enumerate().filter(|(_, line)| !line.starts_with('#')) {
        // Texts in quotes are at the odd places.
        let parts: Vec<&str> = line.split('"').collect();
        for place in (1..parts.len()).step_by(2).filter(|place| is_time(parts[*place])) {
            tried += 1;
            for (value, bound) in [
                ("1000001d", Some("too long: the longest is `1000000d`")),
                ("99999999999999999999h", Some("too long: the longest is `1000000d`")),
                ("-1m", Some("too short: ")),
                ("400d", None),
            ] {
                let mut parts = parts.clone();
                parts[place] = value;
                let (changed, mut lines) = (parts.join("\""), lines.clone());
                lines[number] = &changed;
                match (Config::parse(&lines.join("\n"), &base()), bound) {
                    (Ok(_), None) => {}
                    (Err(fault), Some(bound)) => {
                        // The age of a moment is told from its other forms.
                        let told = [format!("`{value}` is {bound}"), format!("`{value}`: the age is {bound}")];
                        assert!(told.iter().any(|told| fault.message.starts_with(told)), "{changed}: {fault}");
                        assert_eq!(fault.line, number + 1, "{changed}: {fault}");
                    }
                    (read, _) => panic!("{changed}: {:?}", read.map(drop)),
                }
            }
        }
    }
    assert!(tried >= 20, "{tried} durations are in the template");
}

#[test]
fn duplicate_route_and_second_state_are_refused() {
    let fault = |text: &str| Config::parse(text, &base()).expect_err("a fault").to_string();
    let text = "[routes.\"/a\"]\ntype = \"filesystem\"\nroot = \".\"\n[routes.\"/a/\"]\ntype = \"filesystem\"\nroot = \".\"\n";
    assert_eq!(fault(text), "treehold.toml:4:9: `/a/` and `/a` are the same path; keep one of them");
    let text = "[routes.\"/\"]\ntype = \"state\"\n[routes.\"/a\"]\ntype = \"state\"\n";
    assert_eq!(
        fault(text),
        "treehold.toml:4:8: the thread's state is mounted at `/` already; a thread has one state; write beneath \
        it"
    );
    let text = "[routes.\"/a\"]\ntype = \"state\"\n";
    assert!(fault(text).contains("add `[routes.\"/\"]`"));
}

/// Regression: stores at overlapping places were accepted, and damaged each other's files.
#[cfg(all(feature = "postgres", feature = "sled", feature = "sqlite"))]
#[test]
fn overlapping_stores_are_refused_and_names_of_one_store_are_not() {
    let table = [
        ("sqlite:x/", "sqlite:x/sub/", Some("lies within")),
        ("sqlite:x/sub/", "sqlite:x/", Some("contains")),
        ("sqlite:x/", "sqlite:x/y.db", Some("lies within")),
        ("sqlite:x/", "sled:x/y", Some("lies within")),
        ("sled:x", "sqlite:x/y.db", Some("lies within")),
        ("sled:x", "sqlite:x/y/", Some("lies within")),
        ("sled:x/y/z", "sled:x", Some("contains")),
        ("sqlite:x.db", "sqlite:x.db/y.db", Some("lies within")),
        ("sqlite:x", "sqlite:x/", Some("has the place of")),
        ("sqlite:x", "sled:x", Some("has the place of")),
        ("sqlite:x/", "sled:x", Some("has the place of")),
        ("sqlite:x.db", "sqlite:x.db-wal", Some("has the place of a file of")),
        ("sqlite:x.db", "sled:x.db-journal", Some("has the place of a file of")),
        ("sqlite:x.db-shm", "sqlite:x.db", Some("keeps a file at the place of")),
        ("sqlite:{data}/x/", "sqlite:/var/lib/treehold/x/y.db", Some("lies within")),
        ("sqlite:x/", "sqlite:/etc/agent/x/y.db", Some("lies within")),
        ("sqlite:x.db", "sqlite:y.db", None),
        ("sqlite:x/", "sqlite:x2/", None),
        ("sqlite:x/", "sqlite:x.db", None),
        ("sqlite:x/y/", "sqlite:x/z.db", None),
        ("sqlite:x/", "sqlite:x-wal", None),
        // One store with two names.
        ("sqlite:x.db", "sqlite:./x.db", None),
        ("sqlite:x/", "sqlite:/etc/agent/x/", None),
        ("sled:x", "sled:x", None),
        ("memory:", "memory:", None),
        ("postgres://h/d", "postgres://h/d", None),
        ("env:NO_SUCH_URL", "sqlite:x.db", None),
    ];
    for (one, two, relation) in table {
        let stores = format!("[stores.a]\nurl = \"{one}\"\n[stores.b]\nurl = \"{two}\"\n");
        let internal = format!("[stores.a]\nurl = \"{one}\"\n[traces]\ninternal = {{ type = \"database\", url = \"{two}\" }}\n");
        for (text, name, line) in [(stores, "b", "4:7"), (internal, "traces", "4:")] {
            let told = Config::parse(&text, &base()).err().map(|fault| fault.to_string());
            let Some(relation) = relation else {
                assert_eq!(told, None, "{one} {two}");
                continue;
            };
            let told = told.unwrap_or_else(|| panic!("{one} {two} are accepted"));
            let expected = format!("the store `{name}` {relation} the store `a`; give each store a place of its own, or remove one");
            assert!(told.starts_with(&format!("treehold.toml:{line}")) && told.contains(&expected), "{one} {two}: {told}");
        }
    }
    // The built-in store counts where it is used.
    let all = "[stores.all]\nurl = \"sqlite:{data}/\"\n";
    parsed(all);
    let told = Config::parse(&format!("{all}[threads]\nstore = \"default\"\n"), &base()).expect_err("they overlap").to_string();
    assert!(told.contains("the store `default` lies within the store `all`"), "{told}");
}

#[test]
fn empty_file_equals_builtin() {
    let builtin = Config::builtin(&base());
    assert_eq!(parsed("").routes, builtin.routes);
    assert_eq!(builtin.routes.keys().collect::<Vec<_>>(), ["/", "/memories", "/workspace"]);
    assert_eq!(builtin.data, Path::new("/var/lib/treehold"));
}

#[test]
fn template_shows_the_defaults() {
    let written = parsed(TEMPLATE);
    let builtin = Config::builtin(&base());
    assert_eq!((written.routes, written.stores, written.scope), (builtin.routes, builtin.stores, builtin.scope));
}

#[test]
fn template_contains_every_key() {
    let config = parsed(&whole_template());
    assert_eq!(config.scope.agent.as_deref(), Some("coder"));
    // Every setting must also appear in the template.
    for setting in config.settings() {
        assert!(matches!(setting.origin, Origin::File { .. }), "`{}` is not in the template", setting.keys.join("."));
    }
}

#[test]
fn paths_are_resolved_against_the_file() {
    assert_eq!(parsed("data = \"state/db\"").data, Path::new("/etc/agent/state/db"));
    assert_eq!(parsed("data = \"/srv/db\"").data, Path::new("/srv/db"));
    assert_eq!(parsed("").resolve("."), Path::new("/etc/agent"));
}

#[test]
fn settings_have_an_origin_and_round_trip() {
    let config = parsed("[scope]\nuser = \"ada\"\n[routes.\"/w\"]\ntype = \"filesystem\"\nroot = \".\"\n");
    let settings = config.settings();
    let origin =
        |keys: &[&str]| settings.iter().find(|setting| setting.keys == keys).map(|setting| setting.origin.to_string()).unwrap_or_default();
    assert_eq!(origin(&["scope", "user"]), "treehold.toml:2");
    assert_eq!(origin(&["scope", "tenant"]), "default");
    assert_eq!(origin(&["routes", "/w", "root"]), "treehold.toml:5");
    assert_eq!(origin(&["routes", "/w", "sync"]), "default");
    let mut text = String::new();
    let mut table = None;
    for setting in &settings {
        if setting.table() != table {
            table = setting.table();
            text.push_str(&format!("[{}]\n", table.as_deref().unwrap_or_default()));
        }
        text.push_str(&format!("{} = {}\n", setting.key(), setting.value));
    }
    assert_eq!(parsed(&text).routes, config.routes, "{text}");
}

#[test]
fn only_store_is_the_store_of_everything_that_names_none() {
    let stores = |config: &Config| {
        let sections =
            [&config.threads.store, &config.events.store, &config.sessions.store, &config.agent_state.store, &config.traces.store];
        sections.map(String::clone)
    };
    let routes = "[routes.\"/m\"]\ntype = \"store\"\nnamespace = \"m\"\n[routes.\"/w\"]\ntype = \"filesystem\"\nroot = \".\"\n[routes.\"/w\".overlay]\n";
    let main = parsed(&format!("[stores.main]\nurl = \"memory:\"\n{routes}"));
    assert_eq!(stores(&main), ["main"; 5]);
    assert_eq!((main.routes["/m"].store.as_deref(), main.default_store()), (Some("main"), "main"));
    assert_eq!(main.routes["/w"].overlay.as_ref().and_then(|overlay| overlay.store.as_deref()), Some("main"));
    assert_eq!(main.stores.keys().collect::<Vec<_>>(), ["main"], "nothing is kept elsewhere");
    let without_routes = parsed("[stores.main]\nurl = \"memory:\"\n");
    assert_eq!(without_routes.routes["/memories"].store.as_deref(), Some("main"));

    // What is said holds, also if it is the name of the default store.
    let said = parsed("[threads]\nstore = \"default\"\n[stores.main]\nurl = \"memory:\"\n");
    assert_eq!(stores(&said), ["default", "main", "main", "main", "main"]);
    assert_eq!(said.stores.keys().collect::<Vec<_>>(), ["default", "main"]);
    let inline = parsed("threads = { store = \"default\" }\nstores = { main = { url = \"memory:\" } }\n");
    assert_eq!(stores(&inline), stores(&said));

    // Of several stores, none is meant more than another.
    let two = parsed("[stores.a]\nurl = \"memory:\"\n[stores.b]\nurl = \"memory:\"\n");
    assert_eq!((stores(&two), two.default_store()), (["default"; 5].map(str::to_owned), "default"));
    let none = parsed("");
    assert_eq!((stores(&none), none.default_store()), (["default"; 5].map(str::to_owned), "default"));
    for config in [main, said, two, none] {
        let text: String = config
            .settings()
            .iter()
            .map(|setting| match setting.table() {
                Some(table) => format!("{table}.{} = {}\n", setting.key(), setting.value),
                None => format!("{} = {}\n", setting.key(), setting.value),
            })
            .collect();
        let again = parsed(&text);
        assert_eq!((stores(&again), &again.stores), (stores(&config), &config.stores), "{text}");
    }
}

#[test]
fn effective_route_says_where_files_are_and_who_shares_them() {
    let text = "[stores.main]\nurl = \"memory:\"\n[threads]\nsave = true\n\
        [routes.\"/memories\"]\ntype = \"store\"\nnamespace = \"{tenant}/{user}/m\"\n\
        [routes.\"/team\"]\ntype = \"store\"\nnamespace = \"{tenant}/team\"\n\
        [routes.\"/all\"]\ntype = \"store\"\nnamespace = \"all\"\nread_only = true\n\
        [routes.\"/mine\"]\ntype = \"store\"\nnamespace = \"{user}/{thread}/x\"\n\
        [routes.\"/w\"]\ntype = \"filesystem\"\nroot = \"/srv/{user}\"\nsync = \"full\"\n[routes.\"/w\".overlay]\n\
        [[layers.permissions]]\neffect = \"deny\"\noperations = [\"write\"]\npaths = [\"/memories/shared/**\"]\n\
        [[layers.permissions]]\neffect = \"deny\"\noperations = [\"all\"]\npaths = [\"/**/.env\"]\n";
    let routes = parsed(text).effective_routes().expect("nothing is opened");
    let found = |path: &str| routes.iter().find(|route| route.path.as_str() == path).expect(path);
    for (path, sharing) in [
        ("/", Sharing::Thread),
        ("/memories", Sharing::User),
        ("/team", Sharing::Tenant),
        ("/all", Sharing::Everyone),
        ("/mine", Sharing::Thread),
        ("/w", Sharing::User),
    ] {
        assert_eq!(found(path).sharing, sharing, "{path}");
    }
    use treehold_core::ops::Durability;
    assert_eq!((found("/").checkpoints, found("/memories").checkpoints), (true, false));
    assert_eq!((found("/memories").durability, found("/w").durability), (Some(Durability::None), Some(Durability::Power)));
    assert_eq!((found("/all").durability, found("/all").events_kept.as_deref()), (None, None));
    assert_eq!(found("/memories").filled_namespace.as_deref(), Some("default/default/m"));
    assert_eq!(found("/w").location.as_deref(), Some("/srv/default"));
    assert_eq!(found("/w").overlay.as_ref().map(|overlay| (&*overlay.store.name, overlay.sharing)), Some(("main", Sharing::Thread)));
    let rules = |path: &str| found(path).rules.len();
    assert_eq!((rules("/memories"), rules("/"), rules("/team"), rules("/w")), (2, 2, 1, 1));
}
