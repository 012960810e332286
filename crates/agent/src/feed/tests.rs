use super::*;
use crate::session::ThreadDurability;
use crate::tools::ToolCall;
use crate::workspace::{Workspace, WorkspaceBuilder};
use serde_json::json;
use treehold_core::ops::{ApplyOptions, Change, StatOptions};
use treehold_core::path::VfsPath;
use treehold_store::MemoryStore;
use treehold_tree::backend::{Backend, BackendExt, StateBackend, StoreBackend};
use treehold_tree::checkpoint::{MemoryCheckpointer, PutOptions, StoreCheckpointer};

fn scope(user: &str, thread: &str) -> Scope {
    Scope::new().with_tenant("t").with_user(user).with_thread(thread).with_agent("coder")
}

fn path(text: &str) -> VfsPathBuf {
    VfsPathBuf::parse(text).expect("a legal path")
}

/// State at the root, rows by user at `/memories`, shared rows at `/shared`, and an in-memory tree at `/scratch`.
fn builder(store: &Arc<dyn Store>) -> WorkspaceBuilder {
    let scratch = Arc::new(StateBackend::new());
    let mut builder = Workspace::builder().feed(Feed::new(store.clone())).checkpointer(StoreCheckpointer::new(store.clone()));
    for (mount, user) in [("/memories", true), ("/shared", false)] {
        let rows = move |scope: &Scope| match (user, &scope.user) {
            (true, Some(user)) => Namespace::new([user, "memories"]),
            _ => Namespace::new(["all"]),
        };
        let (store, of_watch) = (store.clone(), store.clone());
        builder = builder
            .mount(mount, move |opening| Ok(Arc::new(StoreBackend::new(store.clone(), rows(opening.scope())?))))
            .and_then(|builder| builder.with_change_source(mount, move |scope| Ok((of_watch.clone(), rows(scope)?))))
            .expect("one mount");
    }
    builder
        .backend("/scratch", scratch)
        .and_then(|builder| builder.with_event_log("/scratch", |_| Feed::log("scratch", "one").map(Some)))
        .expect("one mount")
}

fn store() -> Arc<dyn Store> {
    Arc::new(MemoryStore::new())
}

async fn told(workspace: &Workspace, scope: &Scope) -> Vec<String> {
    let feed = workspace.feed().expect("changes are kept");
    let page = feed.after(&workspace.feed_view(scope).expect("a view"), &FeedPosition::start(), 1_000).await.expect("read");
    assert!(!page.more);
    page.events.iter().map(shown).collect()
}

fn shown(event: &FeedEvent) -> String {
    let target = event.target.as_ref().map(|target| format!(" -> {target}")).unwrap_or_default();
    format!("{} {}{target}", event.operation, event.path)
}

#[tokio::test]
async fn changes_of_every_tier_are_recorded_once() {
    let store = store();
    let workspace = builder(&store).build();
    let session = workspace.session(scope("ada", "t1")).await.expect("opened");
    let tree = session.backend();
    for mount in ["", "/memories", "/scratch"] {
        tree.write(&format!("{mount}/d/a"), "one").await.expect("written");
        tree.append(&format!("{mount}/d/a"), "two").await.expect("appended");
        tree.edit(&format!("{mount}/d/a"), "one", "three").await.expect("edited");
        tree.rename(&format!("{mount}/d/a"), &format!("{mount}/d/b")).await.expect("renamed");
        tree.copy(&format!("{mount}/d/b"), &format!("{mount}/d/c")).await.expect("copied");
        tree.create_dir(&format!("{mount}/e")).await.expect("made");
        tree.delete_all(&format!("{mount}/d")).await.expect("deleted");
        assert!(tree.delete(&format!("{mount}/none")).await.is_err());
    }
    session.save().await.expect("saved");
    let found = told(&workspace, &scope("ada", "t1")).await;
    for mount in ["", "/memories", "/scratch"] {
        let of_mount: Vec<&str> = found
            .iter()
            .map(String::as_str)
            .filter(|line| match mount {
                "" => !line.contains("/memories") && !line.contains("/scratch"),
                mount => line.contains(mount),
            })
            .collect();
        let expected: Vec<String> =
            ["write /d/a", "append /d/a", "edit /d/a", "rename /d/a -> /d/b", "copy /d/b -> /d/c", "create_dir /e", "delete /d"]
                .iter()
                .map(|line| line.replace(" /", &format!(" {mount}/")))
                .collect();
        assert_eq!(of_mount, expected, "{mount}");
    }
}

#[tokio::test]
async fn event_version_is_file_version() {
    let store = store();
    let workspace = builder(&store).build();
    let session = workspace.session(scope("ada", "t1")).await.expect("opened");
    let write = |at: &str, text: &'static str| Change::Write {
        path: path(at),
        content: text.into(),
        mode: treehold_core::ops::WriteMode::Overwrite,
    };
    let changes = [
        write("/memories/x/y/a", "1"),
        write("/memories/b", "2"),
        Change::Delete { path: path("/memories/b"), recursive: false, expect: None },
    ];
    let rows = session.backend().apply(&changes, &ApplyOptions::new()).await.expect("applied");
    let state = session.backend().write("/a", "1").await.expect("written");
    session.save().await.expect("saved");
    let feed = workspace.feed().expect("changes are kept");
    let page = feed.after(&workspace.feed_view(session.scope()).expect("a view"), &FeedPosition::start(), 9).await.expect("read");
    let versions: Vec<Option<Version>> = page.events.iter().map(|event| event.version).collect();
    assert_eq!(versions, [rows[0].version, rows[1].version, None, state.version]);
    let entry =
        session.backend().stat(VfsPath::parse("/memories/x/y/a").expect("a path").as_ref(), &StatOptions::new()).await.expect("there");
    assert_eq!(versions[0], entry.version);
    assert!(page.events[..3].windows(2).all(|pair| pair[0].position < pair[1].position), "those of one partition");
}

#[tokio::test]
async fn events_are_visible_only_with_their_tree() {
    let store = store();
    let workspace = builder(&store).build();
    let (ada, bob) = (scope("ada", "t1"), scope("bob", "t1"));
    let session = workspace.session(ada.clone()).await.expect("opened");
    for at in ["/own", "/memories/own", "/shared/all"] {
        session.backend().write(at, "text").await.expect("written");
    }
    session.save().await.expect("saved");
    assert_eq!(told(&workspace, &ada).await, ["write /memories/own", "write /shared/all", "write /own"]);
    assert_eq!(told(&workspace, &bob).await, ["write /shared/all"]);
    assert_eq!(
        told(&workspace, &ada.clone().with_tenant("other")).await,
        ["write /memories/own", "write /shared/all"],
        "its rows are by user"
    );

    let feed = workspace.feed().expect("changes are kept");
    let of = async |view: FeedView| {
        let page = feed.after(&view, &FeedPosition::start(), 9).await.expect("read");
        page.events.into_iter().map(|event| (shown(&event), event.thread, event.actor)).collect::<Vec<_>>()
    };
    let seen = of(workspace.feed_view(&bob).expect("a view")).await;
    assert_eq!(seen, [("write /shared/all".to_owned(), None, None)], "the event names neither the thread nor the actor of another user");
    let view = || workspace.feed_view(&ada).expect("a view");
    assert_eq!(of(view()).await[2].1.as_deref(), Some("t1"));
    assert_eq!(of(view().with_threads(["t2".to_owned()])).await.len(), 2, "no other thread's state");
    assert_eq!(of(view().with_prefix(VfsPath::parse("/memories").expect("a path").as_ref())).await.len(), 1);
    assert_eq!(of(view().with_filter(|path| path.as_str().starts_with("/shared"))).await.len(), 1);
}

#[tokio::test]
async fn state_changes_are_recorded_only_when_saved() {
    let store = store();
    let workspace = builder(&store).durability(ThreadDurability::Exit).build();
    let session = workspace.session(scope("ada", "t1")).await.expect("opened");
    session.backend().write("/a", "one").await.expect("written");
    assert!(told(&workspace, session.scope()).await.is_empty());
    session.reload().await.expect("the state is unchanged");
    session.backend().write("/b", "one").await.expect("written");
    session.save().await.expect("saved");
    assert_eq!(told(&workspace, session.scope()).await, ["write /b"]);
    session.save().await.expect("nothing new");
    let first = workspace.checkpointer().expect("kept").get(session.scope(), treehold_tree::checkpoint::At::Latest).await.expect("read");
    session.backend().write("/c", "two").await.expect("written");
    session.restore(first.expect("saved").checkpoint.id, PutOptions::new()).await.expect("restored");
    assert_eq!(told(&workspace, session.scope()).await, ["write /b", "write /c", "restore /"]);
    workspace.delete_thread(session.scope()).await.expect("removed");
    assert_eq!(told(&workspace, session.scope()).await.last().map(String::as_str), Some("restore /"));
}

#[tokio::test]
async fn state_saved_outside_store_is_recorded_too() {
    let store = store();
    for checkpointed in [false, true] {
        let mut builder = Workspace::builder().feed(Feed::new(store.clone()));
        if checkpointed {
            builder = builder.checkpointer(MemoryCheckpointer::new());
        }
        let workspace = builder.build();
        let scope = scope("ada", if checkpointed { "t2" } else { "t1" });
        let session = workspace.session(scope.clone()).await.expect("opened");
        session.backend().write("/a", "one").await.expect("written");
        session.save().await.expect("saved");
        let feed = workspace.feed().expect("changes are kept");
        let view = workspace.feed_view(&scope).expect("a view").with_threads(scope.thread.clone());
        let page = feed.after(&view, &FeedPosition::start(), 9).await.expect("read");
        assert_eq!(page.events.iter().map(shown).collect::<Vec<_>>(), ["write /a"], "{checkpointed}");
    }
}

#[tokio::test]
async fn pages_have_no_gap_or_repeat_in_either_direction() {
    let store = store();
    let workspace = builder(&store).build();
    let session = workspace.session(scope("ada", "t1")).await.expect("opened");
    for number in 0..40 {
        let mount = ["/memories", "/shared", "/scratch"][number % 3];
        session.backend().write(&format!("{mount}/{number}"), "text").await.expect("written");
    }
    // Rare among other commits, so that the search backwards has to go far.
    for number in 0..3_000 {
        let batch = treehold_store::Batch::new().put(&Namespace::parse("ada/memories/other").expect("legal"), format!("{number}"), "x");
        store.commit(batch).await.expect("committed");
    }
    session.backend().write("/memories/last", "text").await.expect("written");
    let all = told(&workspace, session.scope()).await;
    assert_eq!(all.len(), 41);
    let feed = workspace.feed().expect("changes are kept");
    let view = workspace.feed_view(session.scope()).expect("a view");
    let newest = feed.position(&view).await.expect("read");
    let none =
        [feed.after(&view, &FeedPosition::start(), 0).await, feed.before(&view, None, None, 0).await].map(|page| page.expect("read"));
    assert!(none.iter().all(|page| page.events.is_empty() && page.more));
    let [start, end] = none.map(|page| page.position);
    assert!(end.is_beyond(&newest) && !newest.is_beyond(&newest) && !start.is_beyond(&newest));
    assert_eq!(feed.after(&view, &start, 100).await.expect("read").events.len(), 41);
    assert!(!feed.after(&view, &newest, 0).await.expect("read").more);
    assert!(!feed.before(&view, Some(&Version::new(1).into()), None, 0).await.expect("read").more);
    for limit in [1, 2, 7, 40, 41, 100] {
        let (mut found, mut position) = (Vec::new(), FeedPosition::start());
        loop {
            let page = feed.after(&view, &position, limit).await.expect("read");
            assert!(page.events.len() <= limit);
            found.extend(page.events.iter().map(shown));
            position = page.position;
            if !page.more {
                break;
            }
        }
        assert_eq!(found, all, "{limit}");
        let (mut found, mut before) = (Vec::new(), None::<FeedPosition>);
        loop {
            let page = feed.before(&view, before.as_ref(), None, limit).await.expect("read");
            assert!(page.events.len() <= limit);
            found.extend(page.events.iter().map(shown));
            before = Some(page.position);
            if !page.more {
                break;
            }
        }
        found.reverse();
        assert_eq!(found, all, "{limit}");
    }
}

#[tokio::test]
async fn tail_resumes_without_missing_events() {
    let store = store();
    let workspace = builder(&store).build();
    let writer = workspace.clone();
    let feed = workspace.feed().expect("changes are kept").clone();
    let view = workspace.feed_view(&scope("ada", "t1")).expect("a view");
    let start = feed.position(&view).await.expect("read");
    let writing = tokio::spawn(async move {
        let session = writer.session(scope("ada", "t1")).await.expect("opened");
        for number in 0..60 {
            let call = ToolCall::from_json("write_file", json!({"path": format!("/memories/{number}"), "content": "x"})).expect("legal");
            assert!(!session.call(call).await.is_error);
            session.backend().write(&format!("/scratch/{number}"), "x").await.expect("written");
        }
    });
    let (mut found, mut position) = (Vec::new(), start);
    while found.len() < 120 {
        let mut tail = feed.follow(view.clone(), position).await.expect("followed");
        for _ in 0..7.min(120 - found.len()) {
            found.push(shown(&tail.next().await.expect("an event")));
        }
        position = tail.position().clone();
    }
    writing.await.expect("written");
    let all = told(&workspace, &scope("ada", "t1")).await;
    assert_eq!(found.len(), all.len());
    // Two mounts in two partitions have no order between them.
    for mount in ["/memories", "/scratch"] {
        let of_mount = |lines: &[String]| lines.iter().filter(|line| line.contains(mount)).cloned().collect::<Vec<_>>();
        assert_eq!(of_mount(&found), of_mount(&all));
    }
}

#[tokio::test]
async fn events_beneath_other_mount_are_hidden() {
    let store = store();
    let rows = || Namespace::new(["all"]);
    let mounted = |builder: WorkspaceBuilder, mount: &'static str, store: Arc<dyn Store>| {
        let (store, of_watch) = (store.clone(), store);
        builder
            .mount(mount, move |_| Ok(Arc::new(StoreBackend::new(store.clone(), rows()?))))
            .and_then(|builder| builder.with_change_source(mount, move |_| Ok((of_watch.clone(), rows()?))))
            .expect("one mount")
    };
    let builder =
        Workspace::builder().feed(Feed::new(store.clone())).backend("/x/inner", Arc::new(StateBackend::new())).expect("one mount");
    let workspace = mounted(mounted(builder, "/x", store.clone()), "/y", store.clone()).build();
    let session = workspace.session(scope("ada", "t1")).await.expect("opened");
    session.backend().write("/y/inner/hidden", "text").await.expect("written");
    session.backend().write("/y/open", "text").await.expect("written");
    assert_eq!(told(&workspace, session.scope()).await, ["write /y/inner/hidden", "write /x/open", "write /y/open"]);
    // A page keeps events of one position together, even if that exceeds the limit.
    let (feed, view) = (workspace.feed().expect("kept"), workspace.feed_view(session.scope()).expect("a view"));
    let page = feed.before(&view, None, None, 1).await.expect("read");
    assert_eq!((page.events.len(), page.more), (2, true));
    let rest = feed.before(&view, Some(&page.position), None, 1).await.expect("read");
    assert_eq!(rest.events.len(), 1);
}

#[tokio::test]
async fn rows_of_another_store_have_their_own_log() {
    let (store, other) = (store(), store());
    let mut builder = Workspace::builder().feed(Feed::new(store.clone()));
    for (mount, rows) in [("/here", &store), ("/there", &other)] {
        let (rows, of_watch) = (rows.clone(), rows.clone());
        let namespace = || Namespace::parse("notes");
        builder = builder
            .mount(mount, move |_| Ok(Arc::new(StoreBackend::new(rows.clone(), namespace()?))))
            .and_then(|builder| builder.with_change_source(mount, move |_| Ok((of_watch.clone(), namespace()?))))
            .expect("one mount");
    }
    let workspace = builder.build();
    let session = workspace.session(scope("ada", "t1")).await.expect("opened");
    session.backend().write("/there/a", "text").await.expect("written");
    session.backend().write("/here/b", "text").await.expect("written");
    assert_eq!(told(&workspace, session.scope()).await, ["write /there/a", "write /here/b"]);
}

#[tokio::test]
async fn many_unsaved_changes_collapse_into_one_restore_event() {
    let store = store();
    let workspace = builder(&store).durability(ThreadDurability::Exit).build();
    let session = workspace.session(scope("ada", "t1")).await.expect("opened");
    let tree = session.backend();
    for number in 0..10_100 {
        tree.write("/a", number.to_string()).await.expect("written");
    }
    session.save().await.expect("saved");
    let found = told(&workspace, session.scope()).await;
    assert_eq!(found.first().map(String::as_str), Some("restore /"));
    assert!(found.len() <= 100, "{}", found.len());
}

#[tokio::test]
async fn since_compares_commit_time() {
    let store = store();
    let workspace = builder(&store).build();
    let session = workspace.session(scope("ada", "t1")).await.expect("opened");
    session.backend().write("/memories/a", "x").await.expect("written");
    let feed = workspace.feed().expect("kept");
    let view = workspace.feed_view(session.scope()).expect("a view");
    let day = std::time::Duration::from_secs(86_400);
    let page = feed.before(&view, None, Some(Timestamp::now() - day), 9).await.expect("read");
    assert_eq!((page.events.len(), page.more), (1, false));
    let page = feed.before(&view, None, Some(Timestamp::now() + day), 9).await.expect("read");
    assert_eq!((page.events.len(), page.more), (0, false));
}

/// Regression: the builder needed a list of the hidden paths, and the changes under a layer that was not in it leaked.
#[tokio::test]
async fn events_omit_paths_that_only_a_layer_hides() {
    use treehold_tree::layer::{Operations, Permissions, Rule};

    let store = store();
    let open = builder(&store).build();
    let rules = [Rule::deny(Operations::ALL, ["/secret", "/memories/secret"]).expect("a rule")];
    let ruled = builder(&store).layer(move |tree, _| Arc::new(Permissions::new(rules.clone(), tree))).build();
    let session = open.session(scope("ada", "t1")).await.expect("opened");
    for at in ["/secret/a", "/own", "/memories/secret/a", "/memories/own"] {
        session.backend().write(at, "text").await.expect("written");
    }
    session.backend().rename("/secret/a", "/came").await.expect("renamed");
    session.save().await.expect("saved");
    assert_eq!(told(&open, session.scope()).await.len(), 5);
    let mut shown = told(&ruled, session.scope()).await;
    shown.sort();
    assert_eq!(shown, ["write /came", "write /memories/own", "write /own"]);
    let less = open.with_layer(|tree, _| Arc::new(Permissions::new([Rule::deny(Operations::ALL, ["/memories"]).expect("a rule")], tree)));
    assert_eq!(told(&less, session.scope()).await.len(), 3);
}

/// Makes a workspace whose user has events in several partitions, five in each of two mounts.
async fn filled() -> (Workspace, FeedView) {
    let workspace = builder(&store()).build();
    let session = workspace.session(scope("ada", "t1")).await.expect("opened");
    for number in 0..5 {
        for mount in ["/memories", "/shared"] {
            session.backend().write(&format!("{mount}/{number}"), "text").await.expect("written");
        }
    }
    session.backend().write("/scratch/a", "text").await.expect("written");
    session.backend().write("/own", "text").await.expect("written");
    session.save().await.expect("saved");
    // So that the partitions have different versions.
    session.backend().write("/memories/last", "text").await.expect("written");
    let view = workspace.feed_view(session.scope()).expect("a view");
    (workspace, view)
}

#[tokio::test]
async fn number_of_an_event_is_refused_where_it_would_skip_events_of_another_partition() {
    let (workspace, view) = filled().await;
    let feed = workspace.feed().expect("changes are kept");
    let all = feed.after(&view, &FeedPosition::start(), 100).await.expect("read").events;
    let last = all.iter().find(|event| event.path.as_str() == "/memories/last").expect("it is there").position;
    let refused = feed.after(&view, &last.into(), 10).await.expect_err("it is a position in one partition");
    assert_eq!(refused.kind(), ErrorKind::InvalidArgument);
    assert!(feed.follow(view.clone(), last.into()).await.is_err());
    let mut of_one = view;
    of_one.places.retain(|place| place.log.to_string().starts_with("ada/memories"));
    assert!(feed.after(&of_one, &last.into(), 10).await.expect("exact where there is one partition").events.is_empty());
}

/// Backwards it began again with the newest events of the other partitions.
#[tokio::test]
async fn number_of_an_event_is_refused_backwards_where_it_would_repeat_events_of_another_partition() {
    let (workspace, view) = filled().await;
    let session = workspace.session(scope("ada", "t1")).await.expect("opened");
    for number in 0..9 {
        session.backend().write(&format!("/memories/more-{number}"), "text").await.expect("written");
    }
    let feed = workspace.feed().expect("changes are kept");
    let newest = feed.before(&view, None, None, 100).await.expect("read").events;
    let last = newest.iter().find(|event| event.path.as_str() == "/memories/more-8").expect("it is there").position;
    let refused = feed.before(&view, Some(&last.into()), None, 10).await.expect_err("it is a position in one partition");
    assert_eq!(refused.kind(), ErrorKind::InvalidArgument);
    let mut of_one = view;
    of_one.places.retain(|place| place.log.to_string().starts_with("ada/memories"));
    let rest = feed.before(&of_one, Some(&last.into()), None, 100).await.expect("exact where there is one partition").events;
    let count = newest.iter().filter(|event| event.path.as_str().starts_with("/memories/")).count();
    assert_eq!(rest.len(), count - 1);
}

#[tokio::test]
async fn tail_that_began_at_a_number_resumes_in_every_partition() {
    let (workspace, view) = filled().await;
    let feed = workspace.feed().expect("changes are kept");
    // The position that clients of earlier versions have.
    let start = FeedPosition::from(Version::new(1));
    let all: Vec<String> = feed.after(&view, &start, 100).await.expect("read").events.iter().map(shown).collect();
    let (mut found, mut position) = (Vec::new(), start);
    while found.len() < all.len() {
        let mut tail = feed.follow(view.clone(), position).await.expect("followed");
        found.push(shown(&tail.next().await.expect("an event")));
        position = tail.position().to_string().parse().expect("its own text");
    }
    assert_eq!(found, all);
}

#[tokio::test]
async fn page_backwards_begins_with_the_newest_in_partitions_that_its_position_does_not_know() {
    let (workspace, view) = filled().await;
    let feed = workspace.feed().expect("changes are kept");
    let of_one = view.clone().with_prefix(VfsPath::parse("/memories").expect("a path").as_ref());
    let page = feed.before(&of_one, None, None, 2).await.expect("read");
    let rest = feed.before(&view, Some(&page.position), None, 100).await.expect("read");
    let shared = rest.events.iter().filter(|event| event.path.as_str().starts_with("/shared")).count();
    // The first view includes the thread's partition, in which it has seen nothing, so `/own` is not told again.
    assert_eq!((page.events.len(), shared, rest.events.len()), (2, 5, 5 + 6 + 1 - 2));
}
