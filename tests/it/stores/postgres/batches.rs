//! Batches that are committed together: each takes effect and is answered by itself.

use super::{conditional, open, put, value};
use crate::servers::postgres::{proxied, schema};
use crate::servers::proxy::Break;
use crate::stores::namespace;
use std::time::Duration;
use treehold::ErrorKind;
use treehold::ops::Version;
use treehold::store::{Batch, Condition, Namespace, PostgresOptions, PostgresStore, ScanOptions, Store};

/// Regression: the following statements took effect one by one, although the commit was reported to have had no effect.
#[tokio::test]
#[ignore = "needs PostgreSQL: run scripts/servers.sh"]
async fn group_whose_transaction_does_not_begin_writes_nothing() {
    let schema = schema().await;
    let (proxy, url) = proxied(&schema).await;
    let store = PostgresStore::open_with(PostgresOptions::new(url).with_schema(&schema.name)).await.unwrap();
    for key in ["kept", "d/1", "d/2"] {
        put(&store, key, "before").await;
    }
    let writes = |key: &str| conditional(key).delete(&namespace(), "kept").delete_prefix(&namespace(), "d/");
    let touch = || Batch::new().touch(&namespace(), "kept", Some(Duration::from_secs(3_600)));
    let rows = async || {
        let rows = store.scan(&namespace(), ScanOptions::new().with_values(true)).await.unwrap();
        (rows, store.current_version(&namespace().partition()).await.unwrap())
    };
    // The connection has prepared the statements from here on, so a commit is one request.
    let other = Namespace::new(["other"]).unwrap();
    store
        .commit(Batch::new().expect(&other, "k", Condition::Absent).put(&other, "k", "v").delete(&other, "l").delete_prefix(&other, "d/"))
        .await
        .unwrap();
    store.commit(Batch::new().touch(&other, "k", None)).await.unwrap();
    let before = rows().await;
    for batch in [writes("new"), touch()] {
        proxy.break_next(Break::Begin);
        let error = store.commit(batch).await.unwrap_err();
        assert!(error.is_without_effect() && !error.may_have_effect(), "{error:?}");
        assert_eq!(rows().await, before);
    }
    // No batch of a group takes effect if its caller received a refusal, and a repeated batch is written once.
    let grouped = (0..4).map(|number| store.commit(writes(&format!("grouped {number}"))));
    proxy.break_next(Break::Begin);
    let answers = futures::future::join_all(grouped).await;
    for (number, answer) in answers.iter().enumerate() {
        let is_there = value(&store, &format!("grouped {number}")).await.is_some();
        assert_eq!(answer.is_ok(), is_there, "{number}: {answer:?}");
    }
    store.commit(writes("new")).await.unwrap();
    store.commit(touch()).await.unwrap();
    assert_eq!(value(&store, "new").await.as_deref(), Some("v"));
}

#[tokio::test]
#[ignore = "needs PostgreSQL: run scripts/servers.sh"]
async fn batch_refused_by_the_engine_fails_alone() {
    let schema = schema().await;
    let store = open(&schema).await;
    schema.run("ALTER TABLE {s}.rows ADD CHECK (head <> 'bad')").await;
    let batches = (0..20).map(|number| {
        let batch = if number % 2 == 0 { Batch::new() } else { conditional(&format!("c{number:02}")) };
        let batch = batch.put(&namespace(), format!("{number:02}"), "v");
        store.commit(if number % 5 == 2 { batch.put(&namespace(), "bad", "v") } else { batch })
    });
    let answers = futures::future::join_all(batches).await;
    for (number, answer) in answers.iter().enumerate() {
        match answer {
            Ok(_) => assert_ne!(number % 5, 2),
            Err(error) => assert!(number % 5 == 2 && error.is_without_effect() && error.kind() == ErrorKind::Internal, "{error:?}"),
        }
    }
    let kept = store.scan(&namespace(), ScanOptions::new()).await.unwrap().entries;
    assert_eq!(kept.iter().filter(|entry| !entry.key().starts_with('c')).count(), 16);
}

/// Independent batches share one statement.
#[tokio::test]
#[ignore = "needs PostgreSQL: run scripts/servers.sh"]
async fn each_batch_of_a_group_has_its_own_answer() {
    let schema = schema().await;
    let store = open(&schema).await;
    let taken = put(&store, "taken", "v").await;
    put(&store, "d/x", "v").await;
    let space = namespace();
    let batches = (0..30).map(|number| {
        let batch = conditional(&format!("{number:02}")).put(&space, format!("{number:02} too"), "v");
        match number % 5 {
            // The second condition fails, because something else is there.
            1 => batch.expect(&space, "taken", Condition::Absent),
            2 => batch.expect(&space, "d/", Condition::NoneBeneath),
            3 => batch.expect(&space, "taken", Condition::Version(taken)),
            _ => batch,
        }
    });
    let batches: Vec<Batch> = batches.collect();
    let answers = futures::future::join_all(batches.into_iter().map(|batch| store.commit(batch))).await;
    let mut versions = Vec::new();
    for (number, answer) in answers.into_iter().enumerate() {
        let keys = [format!("{number:02}"), format!("{number:02} too")];
        let items = store.get_many(&space, &[&keys[0], &keys[1]], false).await.unwrap();
        match (number % 5, answer) {
            (1 | 2, Err(error)) => {
                // The kind is that of the condition; the index and the version found belong to this batch.
                assert_eq!((error.change(), error.current_version().is_some()), (Some(1), true), "{number}: {error:?}");
                assert_eq!(items, [None, None], "{number} wrote nothing");
            }
            (0 | 3 | 4, Ok(given)) => {
                assert_eq!(items.iter().flatten().map(|item| item.version).collect::<Vec<_>>(), given, "{number}");
                versions.extend(given);
            }
            (_, answer) => panic!("{number}: {answer:?}"),
        }
    }
    // The versions are consecutive in the order of the batches, and failed batches took none.
    let first = versions[0].number();
    assert_eq!(versions, (first..first + 36).map(Version::new).collect::<Vec<_>>());
    assert_eq!(store.current_version(&space.partition()).await.unwrap(), versions[35]);
    // Overlapping batches are not combined: of those that require one key to be absent, exactly one succeeds.
    let race = (0..20).map(|number| store.commit(conditional("one").put(&space, format!("race {number:02}"), "v")));
    let won = futures::future::join_all(race).await.iter().filter(|answer| answer.is_ok()).count();
    assert_eq!(won, 1);
    assert_eq!(store.scan(&space, ScanOptions::new().with_prefix("race ")).await.unwrap().entries.len(), 1);
}
