//! The configuration of an organisation, against a real server.

use super::Server;
use treehold::ErrorKind;
use treehold::config::{Config, ConfigBase};
use treehold::traces::{AddOptions, NewMessage, NewTrace, PathQuery, TraceAddress, TracesQuery};

fn config(directory: &std::path::Path, text: &str) -> Config {
    let text = format!("[stores.default]\nurl = \"memory:\"\n{text}");
    Config::parse(&text, &ConfigBase::new(directory, directory)).unwrap_or_else(|fault| panic!("{fault}: {text}"))
}

#[tokio::test]
async fn peers_agents_and_external_hosts_are_reached_by_members_only() {
    let (one, two, three) = (Server::start().await, Server::start().await, Server::start().await);
    let directory = tempfile::tempdir().unwrap();
    for (file, server) in [("one", &one), ("two", &two), ("three", &three)] {
        std::fs::write(directory.path().join(file), server.token("ada").await).unwrap();
    }
    let agents = format!("agents:\n  two:\n    url: {}\n    api_key: file:two\n    type: terminal\n", two.url);
    std::fs::write(directory.path().join("agents.yaml"), agents).unwrap();
    let config = config(
        directory.path(),
        &format!(
            "[peers.one]\nurl = \"{}/workspace\"\ntoken = \"file:one\"\n[traces]\nagents_file = \"agents.yaml\"\n\
             external = {{ type = \"remote\", agents = [{{ url = \"{}\", api_key = \"file:three\" }}] }}\n",
            one.url, three.url
        ),
    );
    let traces = config.trace_stores(&config.stores().unwrap()).unwrap();
    let host = three.url.strip_prefix("http://").unwrap();
    let member = traces.for_user("default", "ada").unwrap();
    for (id, server) in [("@one/t".to_owned(), &one), ("@two/t".to_owned(), &two), (format!("agent://{host}/t"), &three)] {
        let id: TraceAddress = id.parse().unwrap();
        let created = member.create_trace(NewTrace::new("tea").with_id(id.clone())).await.unwrap();
        assert_eq!((&created.trace_id, created.remote), (&id, true));
        member.add_messages(&id, vec![NewMessage::text("user", "hi")], &AddOptions::new()).await.unwrap();
        assert_eq!(member.get_main_path(&id, &PathQuery::default()).await.unwrap().messages.len(), 1);
        assert!(treehold::traces::TraceStore::get_trace(&server.traces("ada"), &id.stripped()).await.unwrap().is_some());
        // Callers of other tenants do not use the keys of this one.
        let stranger = traces.for_user("other", "ada").unwrap();
        assert_eq!(stranger.get_trace(&id).await.unwrap_err().kind(), ErrorKind::InvalidArgument);
    }
    assert_eq!(member.list_traces(&TracesQuery::default()).await.unwrap().total, 0, "no copy is kept here");
    assert!(!format!("{traces:?}").contains("th_"), "no key is shown");
}

#[tokio::test]
async fn agents_of_an_organization_share_its_database() {
    let directory = tempfile::tempdir().unwrap();
    let text = "[traces]\ntenant = \"acme\"\nuser = \"agents\"\ninternal = { type = \"database\", url = \"sqlite:{data}/traces.db\" }\n";
    let open = || {
        let config = config(directory.path(), text);
        config.trace_stores(&config.stores().unwrap()).unwrap()
    };
    let trace = open().for_user("default", "ada").unwrap().create_trace(NewTrace::new("tea")).await.unwrap().trace_id;
    let other = open();
    assert!(other.for_user("default", "bob").unwrap().get_trace(&trace).await.unwrap().is_some());
    assert!(other.for_user("other", "bob").unwrap().get_trace(&trace).await.unwrap().is_none());
    assert!(directory.path().join("traces.db").exists());
}

/// Returns how many rows of a store hold a text.
async fn rows_with(store: &std::sync::Arc<dyn treehold::store::Store>, text: &str) -> usize {
    use treehold::store::{NamespacesOptions, ScanEntry, ScanOptions};
    let mut count = 0;
    for namespace in store.namespaces(NamespacesOptions::new()).await.unwrap().namespaces {
        let page = store.scan(&namespace, ScanOptions::new().with_values(true)).await.unwrap();
        assert!(page.next.is_none());
        let holds = |entry: &&ScanEntry| match entry {
            ScanEntry::Item(item) => item.key.contains(text) || String::from_utf8_lossy(&item.value).contains(text),
            _ => false,
        };
        count += page.entries.iter().filter(holds).count();
    }
    count
}

/// A cache serves a trace while its owner is away, and writes nothing of it to the store unless copies were asked for.
#[tokio::test]
async fn cached_trace_is_written_nowhere_unless_copies_are_asked_for() {
    for (keep, is_kept) in [("", false), ("keep_copies_for = \"1h\"\n", true)] {
        let server = Server::start().await;
        let proxy = super::proxy::Proxy::start(&server.url).await;
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("key"), server.token("ada").await).unwrap();
        let text = format!("[peers.far]\nurl = \"{}\"\ntoken = \"file:key\"\n[traces]\ncache_bytes_max = 1000000\n{keep}", proxy.url());
        let config = config(directory.path(), &text);
        let stores = config.stores().unwrap();
        let member = config.trace_stores(&stores).unwrap().for_user("default", "ada").unwrap();
        let id: TraceAddress = "@far/t".parse().unwrap();
        member.create_trace(NewTrace::new("marker of the task").with_id(id.clone())).await.unwrap();
        let messages = vec![NewMessage::text("user", "marker of a message"); 3];
        member.add_messages(&id, messages, &AddOptions::new()).await.unwrap();
        member.get_main_path(&id, &PathQuery::default()).await.unwrap();
        member.get_goal_tree(&id).await.unwrap();
        proxy.close(true);
        // It is served, so it is cached.
        let page = member.get_main_path(&id, &PathQuery::default()).await.unwrap();
        assert_eq!((page.messages.len(), page.stale), (3, true));
        let store = stores.get("default").unwrap();
        let rows = rows_with(&store, "marker").await;
        assert_eq!(rows, if is_kept { 4 } else { 0 });
        // Another process of the same store has it only then.
        let later = config.trace_stores(&stores).unwrap().for_user("default", "ada").unwrap();
        assert_eq!(later.get_trace(&id).await.is_ok_and(|found| found.is_some_and(|found| found.stale)), is_kept);
        let stranger = config.trace_stores(&stores).unwrap().for_user("other", "ada").unwrap();
        assert_eq!(stranger.get_trace(&id).await.unwrap_err().kind(), ErrorKind::InvalidArgument);
    }
}
