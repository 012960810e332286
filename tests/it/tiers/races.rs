//! Races at their narrowest: another writer acts between the read and the commit of a change.

use super::spy::Spy;
use super::{kind, namespace, path};
use std::collections::BTreeMap;
use std::sync::Arc;
use tokio::task::JoinSet;
use treehold::ops::{ApplyOptions, Change, StatOptions, WriteMode};
use treehold::store::{ScanEntry, ScanOptions, Store};
use treehold::{Backend, BackendExt, ErrorKind, StoreBackend};

/// A tree, the same tree as seen by another process, and their common store.
struct Race {
    tree: StoreBackend,
    other: StoreBackend,
    spy: Spy,
}

impl Race {
    async fn of(files: &[(&str, &'static str)]) -> Self {
        let spy = Spy::default();
        let tree = StoreBackend::new(Arc::new(spy.clone()), namespace());
        let other = StoreBackend::new(Arc::new(spy.inner.clone()), namespace());
        for (file, content) in files {
            other.write(file, *content).await.unwrap();
        }
        Self { tree, other, spy }
    }

    /// Makes the other process act just before the next commit of the tree.
    fn meanwhile<F: Future<Output = ()> + Send + 'static>(&self, act: impl FnOnce(StoreBackend) -> F + Send + 'static) {
        let other = self.other.clone();
        self.spy.before_commit(move || act(other));
    }

    /// Returns all paths, directories with a trailing `/`, after checking every row.
    async fn whole(&self) -> Vec<String> {
        whole(&self.spy.inner).await
    }
}

/// Checks the invariants of the rows and returns their paths.
async fn whole(store: &dyn Store) -> Vec<String> {
    let mut rows = BTreeMap::new();
    let mut options = ScanOptions::new();
    loop {
        let page = store.scan(&namespace(), options.clone()).await.unwrap();
        for entry in page.entries {
            let ScanEntry::Item(item) = entry else { panic!("no delimiter was given") };
            rows.insert(item.key.clone(), item);
        }
        match page.next {
            Some(next) => options.start_after = Some(next),
            None => break,
        }
    }
    for key in rows.keys() {
        let own = key.trim_end_matches('\u{1}');
        assert!(!(rows.contains_key(own) && rows.contains_key(&format!("{own}\u{1}"))), "{key:?} is a file and a directory");
        for (end, _) in own.match_indices('\u{1}') {
            assert!(rows.contains_key(&own[..=end]), "{key:?} has no parent directory");
        }
    }
    rows.into_keys().map(|key| format!("/{}", key.replace('\u{1}', "/"))).collect()
}

#[tokio::test]
async fn write_recreates_a_directory_removed_meanwhile() {
    let race = Race::of(&[("/d/old", "")]).await;
    race.meanwhile(async |other| {
        other.delete_all("/d").await.unwrap();
    });
    assert!(race.tree.write("/d/new", "x").await.unwrap().created);
    assert_eq!(race.whole().await, ["/d/", "/d/new"]);
}

#[tokio::test]
async fn write_is_refused_if_a_directory_appears_at_its_path() {
    let race = Race::of(&[]).await;
    race.meanwhile(async |other| {
        other.write("/a/b", "").await.unwrap();
    });
    assert_eq!(kind(race.tree.write("/a", "x").await), ErrorKind::IsDirectory);
    race.meanwhile(async |other| {
        other.write("/f", "").await.unwrap();
    });
    assert_eq!(kind(race.tree.write("/f/x/y", "x").await), ErrorKind::NotADirectory);
    race.meanwhile(async |other| {
        other.write("/g", "").await.unwrap();
    });
    assert_eq!(kind(race.tree.create_dir("/g").await), ErrorKind::AlreadyExists);
    assert_eq!(race.whole().await, ["/a/", "/a/b", "/f", "/g"]);
}

#[tokio::test]
async fn overwrite_reports_whether_it_created_the_file_even_in_a_race() {
    let race = Race::of(&[("/a", "old")]).await;
    race.meanwhile(async |other| {
        other.delete("/a").await.unwrap();
    });
    assert!(race.tree.write("/a", "new").await.unwrap().created);
    race.meanwhile(async |other| {
        other.write("/b", "").await.unwrap();
    });
    assert!(!race.tree.write("/b", "new").await.unwrap().created);
}

#[tokio::test]
async fn edit_that_lost_a_race_is_repeated_on_the_new_content() {
    let race = Race::of(&[("/a", "one\ntwo\n")]).await;
    race.meanwhile(async |other| {
        other.edit("/a", "one", "1").await.unwrap();
    });
    race.tree.edit("/a", "two", "2").await.unwrap();
    race.meanwhile(async |other| {
        other.append("/a", "3\n").await.unwrap();
    });
    race.tree.append("/a", "4\n").await.unwrap();
    assert_eq!(race.tree.read_text("/a").await.unwrap(), "1\n2\n3\n4\n");
    race.meanwhile(async |other| {
        other.write("/a", "other").await.unwrap();
    });
    assert_eq!(kind(race.tree.edit("/a", "2", "two").await), ErrorKind::NoMatch);
    race.meanwhile(async |other| {
        other.delete("/a").await.unwrap();
    });
    assert_eq!(kind(race.tree.edit("/a", "other", "").await), ErrorKind::NotFound);
}

#[tokio::test]
async fn change_of_an_expected_version_is_a_conflict_with_the_current_version() {
    let race = Race::of(&[("/a", "one")]).await;
    let version = race.tree.stat(&path("/a"), &StatOptions::new()).await.unwrap().version.unwrap();
    race.meanwhile(async |other| {
        other.write("/a", "two").await.unwrap();
    });
    let error = race.tree.write_if("/a", "three", version).await.unwrap_err();
    let current = race.tree.stat(&path("/a"), &StatOptions::new()).await.unwrap().version;
    assert_eq!((error.kind(), error.current_version()), (ErrorKind::Conflict, current));
    race.meanwhile(async |other| {
        other.write("/new", "theirs").await.unwrap();
    });
    assert_eq!(kind(race.tree.create("/new", "mine").await), ErrorKind::AlreadyExists);
    assert_eq!(race.tree.read_text("/new").await.unwrap(), "theirs");
}

#[tokio::test]
async fn delete_of_an_empty_directory_never_deletes_a_file_added_meanwhile() {
    let race = Race::of(&[]).await;
    race.other.create_dir("/d").await.unwrap();
    race.meanwhile(async |other| {
        other.write("/d/new", "x").await.unwrap();
    });
    assert_eq!(kind(race.tree.delete("/d").await), ErrorKind::InvalidArgument);
    // The same when the batch itself emptied the directory.
    race.meanwhile(async |other| {
        other.write("/d/newer", "x").await.unwrap();
    });
    let delete = |text: &str| Change::Delete { path: path(text), recursive: false, expect: None };
    let error = race.tree.apply(&[delete("/d/new"), delete("/d")], &ApplyOptions::new()).await.unwrap_err();
    assert_eq!((error.kind(), error.change(), error.applied()), (ErrorKind::InvalidArgument, Some(1), 0));
    assert_eq!(race.whole().await, ["/d/", "/d/new", "/d/newer"]);
    race.tree.apply(&[delete("/d/new"), delete("/d/newer"), delete("/d")], &ApplyOptions::new()).await.unwrap();
    assert_eq!(race.whole().await, Vec::<String>::new());
}

#[tokio::test]
async fn moved_directory_includes_files_added_meanwhile() {
    let race = Race::of(&[("/d/a", "1"), ("/d/e/b", "2")]).await;
    race.meanwhile(async |other| {
        other.write("/d/e/new", "3").await.unwrap();
    });
    assert_eq!(race.tree.rename("/d", "/moved/once").await.unwrap().entries, 5);
    race.meanwhile(async |other| {
        other.write("/moved/once/a", "changed").await.unwrap();
    });
    assert_eq!(race.tree.rename("/moved/once", "/to/there").await.unwrap().entries, 5);
    race.tree.delete("/moved").await.unwrap();
    assert_eq!(race.whole().await, ["/to/", "/to/there/", "/to/there/a", "/to/there/e/", "/to/there/e/b", "/to/there/e/new"]);
    assert_eq!(race.tree.read_text("/to/there/a").await.unwrap(), "changed");
    race.meanwhile(async |other| {
        other.delete("/to/there/e/b").await.unwrap();
    });
    assert_eq!(race.tree.copy("/to/there", "/copy").await.unwrap().entries, 4);
    race.meanwhile(async |other| {
        other.write("/moved", "").await.unwrap();
    });
    assert_eq!(kind(race.tree.rename("/copy", "/moved").await), ErrorKind::AlreadyExists);
}

#[tokio::test]
async fn moved_file_has_its_newest_content() {
    let race = Race::of(&[("/a", "old")]).await;
    race.meanwhile(async |other| {
        other.append("/a", " and new").await.unwrap();
    });
    race.tree.rename("/a", "/b").await.unwrap();
    assert_eq!(race.tree.read_text("/b").await.unwrap(), "old and new");
    race.meanwhile(async |other| {
        other.write("/c", "theirs").await.unwrap();
    });
    assert_eq!(kind(race.tree.rename("/b", "/c").await), ErrorKind::AlreadyExists);
    race.meanwhile(async |other| {
        other.delete("/b").await.unwrap();
    });
    assert_eq!(kind(race.tree.copy("/b", "/d").await), ErrorKind::NotFound);
    assert_eq!(race.whole().await, ["/c"]);
}

#[tokio::test]
async fn batch_that_lost_a_race_is_repeated_as_a_whole() {
    let race = Race::of(&[("/a", "a"), ("/b", "b")]).await;
    race.meanwhile(async |other| {
        other.write("/b", "B").await.unwrap();
    });
    let batch = [
        Change::Append { path: path("/a"), content: "1".into() },
        Change::Append { path: path("/b"), content: "2".into() },
        Change::Copy { from: path("/b"), to: path("/c/d"), overwrite: false },
        Change::Write { path: path("/c/d"), content: "3".into(), mode: WriteMode::Overwrite },
    ];
    let results = race.tree.apply(&batch, &ApplyOptions::new()).await.unwrap();
    assert_eq!(race.tree.stat(&path("/c/d"), &StatOptions::new()).await.unwrap().version, results[3].version);
    assert_ne!(results[2].version, results[3].version);
    for (file, content) in [("/a", "a1"), ("/b", "B2"), ("/c/d", "3")] {
        assert_eq!(race.tree.read_text(file).await.unwrap(), content);
    }
}

/// Files are created while their directory moves back and forth: each exists exactly once at the end, and every row has a parent directory.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn files_created_in_a_moving_directory_are_never_lost() {
    let race = Race::of(&[("/here/first", "")]).await;
    let mut tasks = JoinSet::new();
    for task in 0..4 {
        let tree = race.other.clone();
        tasks.spawn(async move {
            for round in 0..100 {
                tree.write(&format!("/here/sub{}/{task}-{round}", round % 3), "x").await.unwrap();
            }
        });
    }
    let tree = race.other.clone();
    tasks.spawn(async move {
        for round in 0..50 {
            // The writers recreate `/here`, so files moved before are merged by hand, one by one.
            tree.rename("/here", &format!("/there/{round}")).await.ok();
            tokio::task::yield_now().await;
        }
    });
    while let Some(result) = tasks.join_next().await {
        result.unwrap();
    }
    let files: Vec<String> = race.whole().await.into_iter().filter(|file| file.contains('-')).collect();
    let mut names: Vec<&str> = files.iter().filter_map(|file| file.rsplit('/').next()).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!((files.len(), names.len()), (400, 400));
}

/// Changes of every kind by many tasks over few paths: the rows stay a tree.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn rows_form_a_tree_under_any_concurrent_writes() {
    let race = Race::of(&[]).await;
    let mut tasks = JoinSet::new();
    for task in 0..6_usize {
        let tree = race.other.clone();
        tasks.spawn(async move {
            let mut random = task * 7_919 + 1;
            let mut next = |below: usize| {
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                (random >> 33) % below
            };
            let places = ["/a", "/b", "/a/a", "/a/b", "/b/a", "/a/a/a", "/a/b/a"];
            for _ in 0..300 {
                let (at, to) = (places[next(places.len())], places[next(places.len())]);
                let result = match next(7) {
                    0 | 1 => tree.write(at, "x").await,
                    2 => tree.append(at, "x").await,
                    3 => tree.create_dir(at).await,
                    4 => tree.delete(at).await,
                    5 => tree.delete_all(at).await,
                    _ => tree.rename(at, to).await,
                };
                if let Err(error) = result {
                    let refusals = [
                        ErrorKind::NotFound,
                        ErrorKind::AlreadyExists,
                        ErrorKind::IsDirectory,
                        ErrorKind::NotADirectory,
                        ErrorKind::InvalidArgument,
                    ];
                    assert!(refusals.contains(&error.kind()), "{error:?}");
                }
            }
        });
    }
    while let Some(result) = tasks.join_next().await {
        result.unwrap();
    }
    race.whole().await;
}
