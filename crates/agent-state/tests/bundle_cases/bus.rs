//! Queues, logs and broadcasts.

use super::support::{damage, json, kind, look_alike_owners, numbered, owner, partition};
use std::sync::Arc;
use treehold_agent_state::bus::{
    BusEntry, BusOptions, ENTRIES_MAX, EntryId, LOG_LEN_MAX, MessageBus, SESSION_EVENTS_MAX, Wakeup, inbox_key, session_events_key,
};
use treehold_core::ErrorKind;
use treehold_store::Store;

fn bus(store: &Arc<dyn Store>) -> MessageBus {
    MessageBus::new(store.clone(), owner())
}

fn texts(entries: &[BusEntry]) -> Vec<&str> {
    entries.iter().map(|entry| entry.payload.as_str()).collect()
}

fn expected(numbers: impl IntoIterator<Item = usize>) -> Vec<String> {
    numbers.into_iter().map(|number| numbered(number).as_str().to_owned()).collect()
}

pub(crate) async fn drained_entries_arrive_once_and_in_order(store: Arc<dyn Store>) {
    let bus = bus(&store);
    assert!(!bus.queue_peek("q").await.unwrap());
    assert_eq!(bus.queue_drain("q", 5).await.unwrap(), []);
    let mut ids = Vec::new();
    for number in 0..7 {
        ids.push(bus.queue_push("q", &numbered(number)).await.unwrap());
        bus.queue_push("another", &numbered(100)).await.unwrap();
    }
    assert!(bus.queue_peek("q").await.unwrap());
    let mut drained = Vec::new();
    for count in [3, 3, 1, 0] {
        let entries = bus.queue_drain("q", 3).await.unwrap();
        assert_eq!(entries.len(), count);
        drained.extend(entries);
    }
    assert_eq!(texts(&drained), expected(0..7));
    assert_eq!(drained.iter().map(|entry| entry.id).collect::<Vec<_>>(), ids);
    assert!(ids.is_sorted());
    bus.queue_delete("another").await.unwrap();
    bus.queue_delete("another").await.unwrap();
    assert!(!bus.queue_peek("another").await.unwrap());
}

pub(crate) async fn concurrent_consumers_receive_each_entry_once(store: Arc<dyn Store>) {
    let bus = bus(&store);
    for number in 0..40 {
        bus.queue_push("q", &numbered(number)).await.unwrap();
    }
    let consumers = (0..4).map(|_| {
        let bus = bus.clone();
        tokio::spawn(async move {
            let mut received = Vec::new();
            loop {
                let entries = bus.queue_drain("q", 3).await.unwrap();
                if entries.is_empty() {
                    return received;
                }
                assert!(entries.is_sorted_by_key(|entry| entry.id));
                received.extend(entries.into_iter().map(|entry| entry.payload.as_str().to_owned()));
            }
        })
    });
    let mut received: Vec<String> = futures::future::join_all(consumers).await.into_iter().flat_map(|task| task.unwrap()).collect();
    received.sort();
    let mut all = expected(0..40);
    all.sort();
    assert_eq!(received, all);
}

pub(crate) async fn unacknowledged_entries_are_read_again(store: Arc<dyn Store>) {
    let bus = bus(&store);
    for number in 0..4 {
        bus.queue_push("q", &numbered(number)).await.unwrap();
    }
    let read = bus.queue_read("q", 3).await.unwrap();
    assert_eq!(texts(&read), expected(0..3));
    assert_eq!(bus.queue_read("q", 3).await.unwrap(), read, "reading removes nothing");
    bus.queue_acknowledge("q", &[read[1].id]).await.unwrap();
    bus.queue_acknowledge("q", &[read[1].id]).await.unwrap();
    bus.queue_acknowledge("q", &[]).await.unwrap();
    assert_eq!(texts(&bus.queue_read("q", 9).await.unwrap()), expected([0, 2, 3]));
}

pub(crate) async fn log_is_replayed_from_any_entry(store: Arc<dyn Store>) {
    let bus = bus(&store);
    let mut ids = vec![EntryId::new(0)];
    for number in 0..6 {
        ids.push(bus.log_append("l", &numbered(number), None).await.unwrap());
    }
    for _ in 0..2 {
        for (from, id) in ids.iter().enumerate() {
            let id: EntryId = id.to_string().parse().unwrap();
            assert_eq!(texts(&bus.log_read("l", Some(id), 100).await.unwrap()), expected(from..6));
        }
        assert_eq!(texts(&bus.log_read("l", None, 2).await.unwrap()), expected(0..2));
    }
    bus.log_trim("l").await.unwrap();
    assert_eq!(bus.log_read("l", None, 100).await.unwrap(), []);
    assert!(bus.log_append("l", &numbered(9), None).await.unwrap() > ids[6], "a cursor stays valid after a trim");
}

pub(crate) async fn log_stays_near_its_cap(store: Arc<dyn Store>) {
    // Two processes write.
    let buses = [bus(&store), bus(&store)];
    for cap in [1, 2, 8, 16] {
        let key = format!("l{cap}");
        for number in 0..3 * cap {
            buses[number % 2].log_append(&key, &numbered(number), Some(cap)).await.unwrap();
            let kept = buses[0].log_read(&key, None, ENTRIES_MAX).await.unwrap();
            let slack = 2 * (cap / 8).max(1);
            assert!(kept.len() <= cap + slack, "{} entries with a cap of {cap}", kept.len());
            // The newest are kept, without gaps.
            assert_eq!(texts(&kept), expected(number + 1 - kept.len()..number + 1), "cap {cap}");
            assert!(kept.len() >= cap.min(number + 1), "{} entries with a cap of {cap}", kept.len());
        }
    }
}

pub(crate) async fn subscriber_receives_what_is_published_after_it_subscribed(store: Arc<dyn Store>) {
    let bus = bus(&store);
    bus.publish("c", &numbered(0)).await.unwrap();
    let mut early = bus.subscribe("c").await.unwrap();
    bus.publish("c", &numbered(1)).await.unwrap();
    let mut late = bus.subscribe("c").await.unwrap();
    let waiting = tokio::spawn(async move {
        let mut received = Vec::new();
        for _ in 0..3 {
            received.push(early.next().await.unwrap());
        }
        received
    });
    for number in 2..4 {
        bus.publish("c", &numbered(number)).await.unwrap();
        bus.publish("another", &numbered(100)).await.unwrap();
    }
    assert_eq!(texts(&waiting.await.unwrap()), expected(1..4));
    let received = [late.next().await.unwrap(), late.next().await.unwrap()];
    assert_eq!(texts(&received), expected(2..4));
}

pub(crate) async fn domain_helpers_use_the_agreed_keys(store: Arc<dyn Store>) {
    let bus = bus(&store);
    assert_eq!(inbox_key("s1"), "agentscope:inbox:s1");
    assert_eq!(session_events_key("s1"), "agentscope:session:events:s1");
    assert_eq!(SESSION_EVENTS_MAX, 1_000);
    bus.inbox_push("s1", &numbered(1)).await.unwrap();
    assert!(bus.inbox_has_messages("s1").await.unwrap() && !bus.inbox_has_messages("s2").await.unwrap());
    assert_eq!(texts(&bus.queue_drain("agentscope:inbox:s1", 9).await.unwrap()), expected([1]));
    bus.queue_push("agentscope:inbox:s1", &numbered(2)).await.unwrap();
    assert_eq!(texts(&bus.inbox_drain("s1", 9).await.unwrap()), expected([2]));

    let mut signals = bus.subscribe_wakeups().await.unwrap();
    let wakeup = Wakeup { user_id: "ada".into(), session_id: "s1".into(), agent_id: "helper".into() };
    bus.enqueue_wakeup(&wakeup).await.unwrap();
    signals.next().await.unwrap();
    let queued = bus.queue_read("agentscope:wakeups", 9).await.unwrap();
    assert_eq!(texts(&queued), [r#"{"userId":"ada","sessionId":"s1","agentId":"helper"}"#]);
    bus.queue_push("agentscope:wakeups", &json(r#"{"unknown": true}"#)).await.unwrap();
    assert_eq!(bus.drain_wakeups(9).await.unwrap(), [wakeup]);

    let mut events = bus.subscribe_session_events("s1").await.unwrap();
    let first = bus.publish_session_event("s1", &numbered(3)).await.unwrap();
    bus.publish_session_event("s1", &numbered(4)).await.unwrap();
    assert_eq!(events.next().await.unwrap().payload, numbered(3));
    assert_eq!(texts(&bus.read_session_events("s1", Some(first), 9).await.unwrap()), expected([4]));
    bus.trim_session_events("s1").await.unwrap();
    assert_eq!(bus.read_session_events("s1", None, 9).await.unwrap(), []);
}

pub(crate) async fn bad_arguments_of_the_bus_write_nothing(store: Arc<dyn Store>) {
    let bus = bus(&store).with_options(BusOptions::new().with_payload_bytes_max(16));
    let before = store.current_version(&partition()).await.unwrap();
    let (long, payload) = ("k".repeat(600), json("{}"));
    for key in ["", " ", "a\0b", "a\u{1}b", &long] {
        let kinds = [
            kind(bus.queue_push(key, &payload).await),
            kind(bus.queue_drain(key, 1).await),
            kind(bus.queue_read(key, 1).await),
            kind(bus.queue_acknowledge(key, &[EntryId::new(1)]).await),
            kind(bus.queue_peek(key).await),
            kind(bus.queue_delete(key).await),
            kind(bus.log_append(key, &payload, None).await),
            kind(bus.log_read(key, None, 1).await),
            kind(bus.log_trim(key).await),
            kind(bus.publish(key, &payload).await),
            kind(bus.subscribe(key).await),
        ];
        assert_eq!(kinds, [ErrorKind::InvalidArgument; 11], "{key:.9}");
    }
    for max in [0, ENTRIES_MAX + 1] {
        assert_eq!(kind(bus.queue_drain("q", max).await), ErrorKind::InvalidArgument);
        assert_eq!(kind(bus.queue_read("q", max).await), ErrorKind::InvalidArgument);
        assert_eq!(kind(bus.log_read("q", None, max).await), ErrorKind::InvalidArgument);
    }
    for cap in [0, LOG_LEN_MAX + 1] {
        assert_eq!(kind(bus.log_append("q", &payload, Some(cap)).await), ErrorKind::InvalidArgument);
    }
    for (payload, expected) in
        [("[]", ErrorKind::InvalidArgument), ("1", ErrorKind::InvalidArgument), ("{\"a\": \"0123456789\"}", ErrorKind::TooLarge)]
    {
        assert_eq!(kind(bus.queue_push("q", &json(payload)).await), expected, "{payload}");
        assert_eq!(kind(bus.log_append("q", &json(payload), None).await), expected, "{payload}");
        assert_eq!(kind(bus.publish("q", &json(payload)).await), expected, "{payload}");
    }
    for id in ["", "-1", "+1", "1 ", "0x1", "18446744073709551616", "é"] {
        assert_eq!(kind(id.parse::<EntryId>()), ErrorKind::InvalidArgument, "{id}");
    }
    assert_eq!(store.current_version(&partition()).await.unwrap(), before);

    bus.queue_push("q", &payload).await.unwrap();
    bus.log_append("q", &payload, None).await.unwrap();
    assert_eq!(damage(&store, "queues").await + damage(&store, "logs").await, 2);
    assert_eq!(kind(bus.queue_read("q", 1).await), ErrorKind::Corrupt);
    assert_eq!(kind(bus.queue_drain("q", 1).await), ErrorKind::Corrupt);
    assert_eq!(kind(bus.log_read("q", None, 1).await), ErrorKind::Corrupt);
}

pub(crate) async fn buses_of_different_owners_share_nothing(store: Arc<dyn Store>) {
    let owners = look_alike_owners();
    for (number, owner) in owners.iter().enumerate() {
        let bus = MessageBus::new(store.clone(), owner.clone());
        bus.queue_push("q", &numbered(number)).await.unwrap();
        bus.log_append("q", &numbered(number), None).await.unwrap();
    }
    for (number, owner) in owners.into_iter().enumerate() {
        let bus = MessageBus::new(store.clone(), owner);
        let drained = bus.queue_drain("q", 9).await.unwrap();
        assert_eq!(texts(&drained), expected([number]));
        assert_eq!(texts(&bus.log_read("q", None, 9).await.unwrap()), expected([number]), "a queue and a log of one key are apart");
    }
}
