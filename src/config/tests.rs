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
        (
            "[serve]\nhead_timeout = \"0s\"",
            "treehold.toml:2:16: `0s` is not a duration to wait for a client; write it as `30s` or \
            `2m`",
        ),
        ("[serve]\nconnections_max = 0", "treehold.toml:2:19: `connections_max` is 0, which would refuse every client; set at least 1"),
        ("[sessions]\npage_max = 0", "treehold.toml:2:12: `page_max` is 0, which allows nothing; set at least 1"),
        ("[sessions]\nstore = \"defalt\"", "treehold.toml:2:9: no store is named `defalt`; did you mean `default`?"),
        ("[sessions]\nmounted = \"..\"", "treehold.toml:2:11: the session id `..` cannot be the name of a directory; choose another one"),
        ("[sessions]\nidempotency_time = \"0s\"", "treehold.toml:2:20: `0s` is not a duration; write it as `24h` or `90m`"),
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
            "treehold.toml:4:11: `0s` is not a duration for a call; write it as `30s` or `500ms`",
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
        ("[agent_state]\nforget_after = \"0d\"", "treehold.toml:2:16: `0d` is not an age; write it as `30d` or `12h`, or write `never`"),
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
    let all: String = TEMPLATE
        .lines()
        .map(|line| match line.strip_prefix('#') {
            Some(key) if key.starts_with(|first: char| first.is_ascii_lowercase() || first == '[') => key,
            _ => line,
        })
        .flat_map(|line| [line, "\n"])
        .collect();
    let config = parsed(&all);
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
