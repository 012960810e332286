//! Damaged rows.

use crate::cases::support::{KEY, json, load, rows, save, slot, state, states};
use bytes::Bytes;
use std::sync::Arc;
use treehold_agent_state::{AgentStateStore, DeleteSessionOptions, Json, SaveOptions, StateKey, StoreStates};
use treehold_core::error::{Error, ErrorKind};
use treehold_store::{Batch, Namespace, Store};

type Damage = fn(&[u8]) -> Option<Vec<u8>>;

/// What may happen to a row.
const DAMAGES: [(&str, Damage); 6] = [
    ("empty", |bytes| (!bytes.is_empty()).then(Vec::new)),
    ("cut", |bytes| (bytes.len() > 1).then(|| bytes[..bytes.len() - 1].to_vec())),
    ("longer", |bytes| (!bytes.is_empty()).then(|| [bytes, b" "].concat())),
    ("first bit", |bytes| flipped(bytes, 0)),
    ("middle bit", |bytes| flipped(bytes, bytes.len() / 2)),
    ("last bit", |bytes| flipped(bytes, bytes.len().saturating_sub(1))),
];

fn flipped(bytes: &[u8], at: usize) -> Option<Vec<u8>> {
    let mut bytes = bytes.to_vec();
    *bytes.get_mut(at)? ^= 1;
    Some(bytes)
}

/// What a read found: the whole state, or the error.
#[derive(Debug, PartialEq)]
struct Found {
    state: Option<Json>,
    list: Vec<Json>,
    keys: Vec<StateKey>,
    exists: bool,
}

async fn read(states: &StoreStates) -> Result<Found, Error> {
    let state = states.get(&slot(), KEY).await?.map(|found| found.value);
    states.version(&slot(), KEY).await?;
    let list = states.get_list(&slot(), "l").await?;
    let keys = states.keys(&slot()).await?;
    states.history(&slot(), &StateKey::Single(KEY.to_owned()), 0, 100).await?;
    Ok(Found { state, list, keys, exists: states.exists(&slot()).await? })
}

/// A damaged row of any kind is reported by reads and refused by saves, and never looks like an absent or different state. A deletion
/// removes the session all the same.
pub(crate) async fn damaged_rows_are_corrupt_and_never_absent(store: Arc<dyn Store>) {
    let states = states(&store);
    let (mut damaged, mut kinds) = (0, std::collections::BTreeSet::new());
    let intact = |row: &(Namespace, treehold_store::Item)| (row.0.to_string(), row.1.key.clone());
    for number in 0.. {
        states.delete_session(&slot(), DeleteSessionOptions::new()).await.unwrap();
        let version = save(&states, &state(0..4)).await;
        save(&states, &state([9, 2, 3])).await;
        states.save_list(&slot(), "l", &[json("1"), json("2")], SaveOptions::new()).await.unwrap();
        let whole = read(&states).await.unwrap();
        let all = rows(&store).await;
        let Some((namespace, item)) = all.get(number) else { break };
        for (name, damage) in DAMAGES {
            for in_meta in [true, false] {
                let Some(bytes) = damage(if in_meta { &item.meta } else { &item.value }) else { continue };
                let (meta, value) =
                    if in_meta { (Bytes::from(bytes), item.value.clone()) } else { (item.meta.clone(), Bytes::from(bytes)) };
                let put = |meta: Bytes, value: Bytes| Batch::new().put_with_meta(namespace, &item.key, meta, value);
                store.commit(put(meta, value)).await.unwrap();
                let at = format!("{name} {in_meta} {:?}", intact(&all[number]));
                match read(&states).await {
                    // The directory of users, last versions and messages that are no longer in a window.
                    Ok(found) => assert_eq!(found, whole, "{at}"),
                    Err(error) => {
                        assert_eq!(error.kind(), ErrorKind::Corrupt, "{at} {error:?}");
                        damaged += 1;
                        kinds.insert(item.key.split('\u{1}').next().unwrap_or_default().len());
                    }
                }
                // A save is refused, or makes the state whole again.
                match states.save(&slot(), KEY, &state([7]), SaveOptions::new()).await {
                    Ok(saved) => {
                        assert!(saved.unwrap().number() > version);
                        assert_eq!(load(&states).await, Some(state([7])), "{at}");
                        save(&states, &state([9, 2, 3])).await;
                    }
                    Err(error) => assert_eq!(error.kind(), ErrorKind::Corrupt, "{at} {error:?}"),
                }
                store.commit(put(item.meta.clone(), item.value.clone())).await.unwrap();
                // Saves may have replaced other rows.
                states.delete_session(&slot(), DeleteSessionOptions::new()).await.unwrap();
                for (namespace, item) in &all {
                    let put = Batch::new().put_with_meta(namespace, &item.key, item.meta.clone(), item.value.clone());
                    store.commit(put).await.unwrap();
                }
                assert_eq!(read(&states).await.unwrap(), whole, "{at}");
            }
        }
    }
    assert!(damaged > 30, "{damaged}");
}

/// A damaged session can be deleted, and its name used again; the versions continue.
pub(crate) async fn damaged_session_can_be_deleted(store: Arc<dyn Store>) {
    let states = states(&store);
    for number in 0.. {
        let version = save(&states, &state(0..3)).await;
        let all = rows(&store).await;
        let Some((namespace, item)) = all.get(number) else { break };
        let put = Batch::new().put_with_meta(namespace, &item.key, "damaged", "damaged");
        // The last version of a deleted state is not part of the session.
        if item.key.starts_with('f') {
            states.delete_session(&slot(), DeleteSessionOptions::new()).await.unwrap();
            continue;
        }
        store.commit(put).await.unwrap();
        states.delete_session(&slot(), DeleteSessionOptions::new()).await.unwrap();
        assert!(!states.exists(&slot()).await.unwrap());
        assert_eq!(load(&states).await, None, "{}", item.key);
        assert!(save(&states, &state(0..3)).await > version, "{}", item.key);
        states.delete_session(&slot(), DeleteSessionOptions::new()).await.unwrap();
    }
}

/// A missing row of a message is corrupt: for reads at once, and for a save that needs it.
pub(crate) async fn missing_message_is_corrupt(store: Arc<dyn Store>) {
    let states = states(&store);
    save(&states, &state(0..4)).await;
    for (namespace, item) in rows(&store).await {
        if !namespace.components().any(|component| component == "data") {
            continue;
        }
        store.commit(Batch::new().delete(&namespace, &item.key)).await.unwrap();
        assert_eq!(states.get(&slot(), KEY).await.unwrap_err().kind(), ErrorKind::Corrupt);
        let refused = states.save(&slot(), KEY, &state([8]), SaveOptions::new()).await;
        assert_eq!(refused.unwrap_err().kind(), ErrorKind::Corrupt);
        store.commit(Batch::new().put_with_meta(&namespace, &item.key, item.meta, item.value)).await.unwrap();
        assert_eq!(load(&states).await, Some(state(0..4)));
    }
}
