//! Tests of the checker: histories known to be wrong, and small ones compared with trying every order.

use super::*;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;

fn operation(start: u64, end: u64, action: Action) -> Operation {
    Operation { process: 0, number: 0, start, end: (end < u64::MAX).then_some(end), action }
}

fn commit(start: u64, end: u64, conditions: &[(&str, Condition)], writes: Vec<Write>, outcome: Outcome) -> Operation {
    let conditions = conditions.iter().map(|(key, condition)| Requirement { key: (*key).to_owned(), condition: *condition }).collect();
    operation(start, end, Action::Commit { conditions, writes, outcome })
}

fn put_of(key: &str, value: &str) -> Write {
    Write::Put { key: key.to_owned(), value: value.to_owned() }
}

fn put(start: u64, end: u64, key: &str, value: &str, version: u64) -> Operation {
    commit(start, end, &[], vec![put_of(key, value)], Outcome::Done(vec![version]))
}

fn swap(start: u64, end: u64, key: &str, expected: u64, value: &str, outcome: Outcome) -> Operation {
    commit(start, end, &[(key, Condition::Version(expected))], vec![put_of(key, value)], outcome)
}

fn delete(start: u64, end: u64, key: &str) -> Operation {
    commit(start, end, &[], vec![Write::Delete { key: key.to_owned() }], Outcome::Done(Vec::new()))
}

fn read(start: u64, end: u64, rows: &[(&str, Option<(u64, &str)>)]) -> Operation {
    let sight = |(key, row): &(&str, Option<(u64, &str)>)| Sight {
        key: (*key).to_owned(),
        row: row.map(|(version, value)| Seen { version, value: Some(value.to_owned()) }),
    };
    operation(start, end, Action::Read(rows.iter().map(sight).collect()))
}

fn current(start: u64, end: u64, partition: &str, version: u64) -> Operation {
    operation(start, end, Action::CurrentVersion { partition: partition.to_owned(), version })
}

fn done(version: u64) -> Outcome {
    Outcome::Done(vec![version])
}

fn refused(met: Option<u64>) -> Outcome {
    Outcome::Refused { index: 0, met }
}

const NEVER: u64 = u64::MAX;

#[track_caller]
fn assert_legal(history: &[Operation]) {
    assert_eq!(check(history), Verdict::Linearizable);
    assert!(every_order(history), "trying every order finds one");
}

#[track_caller]
fn assert_violated(history: &[Operation], words: &str) {
    let Verdict::Violated(violation) = check(history) else { panic!("{history:#?} is accepted") };
    assert!(violation.to_string().contains(words), "{violation}");
    assert!(!every_order(history), "trying every order finds none");
}

#[test]
fn overlapping_calls_may_take_effect_in_either_order() {
    assert_legal(&[put(0, 10, "a", "1", 1), read(2, 3, &[("a", None)]), read(4, 5, &[("a", Some((1, "1")))])]);
    assert_legal(&[put(0, 10, "a", "1", 2), put(0, 10, "a", "2", 1), read(11, 12, &[("a", Some((2, "1")))])]);
    assert_legal(&[put(0, 1, "a", "1", 1), delete(2, 9, "a"), swap(3, 4, "a", 1, "2", done(3)), read(10, 11, &[("a", None)])]);
    assert_legal(&[put(0, 1, "a", "1", 1), delete(2, 9, "a"), swap(3, 4, "a", 1, "2", refused(None))]);
}

#[test]
fn stale_read_is_a_violation() {
    let history = [put(0, 1, "a", "1", 1), put(2, 3, "a", "2", 2), read(4, 5, &[("a", Some((1, "1")))])];
    assert_violated(&history, "`a` has version 2, operation 2 fits nowhere");
    assert_violated(&[put(0, 1, "a", "1", 1), read(2, 3, &[("a", None)])], "fits nowhere");
    assert_violated(&[put(0, 1, "a", "1", 1), delete(2, 3, "a"), read(4, 5, &[("a", Some((1, "1")))])], "fits nowhere");
}

#[test]
fn read_of_future_write_is_a_violation() {
    let fresh = read(2, 3, &[("a", Some((1, "1")))]);
    assert_violated(&[put(0, 10, "a", "1", 1), fresh, read(4, 5, &[("a", None)])], "fits nowhere");
    assert_violated(&[read(0, 1, &[("a", Some((1, "1")))]), put(2, 3, "a", "1", 1)], "");
}

#[test]
fn lost_update_is_a_violation() {
    let history = [
        put(0, 1, "a", "0", 1),
        swap(2, 9, "a", 1, "one", done(2)),
        swap(3, 8, "a", 1, "other", done(3)),
        read(10, 11, &[("a", Some((3, "other")))]),
    ];
    assert_violated(&history, "fits nowhere");
}

#[test]
fn swap_on_stale_version_is_a_violation() {
    assert_violated(&[put(0, 1, "a", "1", 1), put(2, 3, "a", "2", 2), swap(4, 5, "a", 1, "3", done(3))], "fits nowhere");
    assert_violated(&[put(0, 1, "a", "1", 1), delete(2, 3, "a"), swap(4, 5, "a", 1, "3", done(3))], "fits nowhere");
}

#[test]
fn refusal_without_reason_is_a_violation() {
    assert_violated(&[put(0, 1, "a", "1", 1), swap(2, 3, "a", 1, "2", refused(Some(1)))], "fits nowhere");
    assert_violated(&[put(0, 1, "a", "1", 1), swap(2, 3, "a", 9, "2", refused(None))], "fits nowhere");
    assert_legal(&[put(0, 1, "a", "1", 1), swap(2, 3, "a", 9, "2", refused(Some(1)))]);
}

#[test]
fn versions_out_of_order_are_a_violation() {
    assert_violated(&[put(0, 9, "a", "1", 1), put(0, 9, "b", "2", 1)], "version 1 was given twice");
    assert_violated(&[put(0, 1, "a", "1", 5), put(2, 3, "b", "2", 4)], "version 4 was given when 5 was known already");
    assert_violated(&[put(0, 1, "a", "1", 5), current(2, 3, "", 4)], "known already");
    assert_violated(&[current(0, 1, "", 5), put(2, 3, "a", "1", 5)], "known already");
    assert_legal(&[put(0, 1, "a", "1", 5), delete(2, 3, "a"), current(4, 5, "", 6), put(6, 7, "a", "2", 7)]);
    let two = commit(0, 1, &[], vec![put_of("a", "1"), put_of("b", "2")], Outcome::Done(vec![2, 1]));
    assert_violated(&[two], "do not grow");
}

#[test]
fn versions_are_compared_within_a_partition() {
    // Each partition counts from 1.
    assert_legal(&[
        put(0, 1, "p\0a", "1", 1),
        put(2, 3, "q\0a", "1", 1),
        put(4, 5, "p\0a", "2", 2),
        current(6, 7, "q", 1),
        current(8, 9, "p", 2),
        read(10, 11, &[("q\0a", Some((1, "1")))]),
        current(12, 13, "none", 0),
    ]);
    // One counter for all of them, which grows with changes elsewhere.
    assert_legal(&[
        put(0, 1, "p\0a", "1", 1),
        put(2, 3, "q\0a", "1", 2),
        put(4, 5, "p\0a", "2", 3),
        current(6, 7, "q", 3),
        put(8, 9, "q\0a", "2", 4),
        current(10, 11, "p", 4),
        current(12, 13, "none", 4),
    ]);
    // A change of another partition explains nothing.
    let beside = || put(2, 3, "q\0a", "1", 1);
    assert_violated(&[current(0, 1, "p", 3), beside(), current(4, 5, "p", 2)], "version 2 was given when 3 was known already");
    assert_violated(&[put(0, 1, "p\0a", "1", 3), beside(), current(4, 5, "p", 2)], "version 2 was given when 3 was known already");
    assert_violated(&[put(0, 1, "p\0a", "1", 3), beside(), put(4, 5, "p\0b", "1", 2)], "version 2 was given when 3 was known already");
    assert_violated(&[current(0, 1, "p", 3), beside(), put(4, 5, "p\0a", "1", 3)], "version 3 was given when 3 was known already");
    assert_violated(&[put(0, 9, "p\0a", "1", 1), beside(), put(0, 9, "p\0b", "1", 1)], "version 1 was given twice");
    assert_violated(&[put(0, 1, "p\0a", "1", 1), beside(), read(4, 5, &[("p\0a", None)])], "`p a` has version 1");
    // The open commit had an effect that the version read after it does not show.
    let open = commit(0, NEVER, &[], vec![put_of("p\0a", "1")], Outcome::Unknown);
    let seen = read(4, 5, &[("p\0a", Some((2, "1")))]);
    assert_violated(&[open.clone(), beside(), seen.clone(), current(6, 7, "p", 1)], "known already");
    assert_legal(&[open, beside(), seen, current(6, 7, "q", 1)]);
}

#[test]
fn answered_batch_over_two_partitions_is_a_violation() {
    let both = |outcome| commit(0, 1, &[], vec![put_of("p\0a", "1"), put_of("q\0a", "1")], outcome);
    let Verdict::Violated(violation) = check(&[both(Outcome::Done(vec![1, 2]))]) else { panic!("it is accepted") };
    assert!(violation.to_string().contains("over two partitions"), "{violation}");
    assert_eq!(check(&[both(Outcome::Failed), read(2, 3, &[("p\0a", None)])]), Verdict::Linearizable);
    let unknown = Operation { end: None, ..both(Outcome::Unknown) };
    assert!(matches!(check(&[unknown, read(2, 3, &[("p\0a", Some((1, "1")))])]), Verdict::Violated(_)));
}

/// Each row on its own is in order, but the version counter of their partition is not.
#[test]
fn version_that_becomes_visible_after_newer_one_is_a_violation() {
    let history =
        [put(0, 100, "a", "1", 10), put(0, 40, "b", "2", 20), read(50, 60, &[("a", None)]), read(101, 102, &[("a", Some((10, "1")))])];
    assert_violated(&history, "fits nowhere");
}

#[test]
fn value_that_nobody_wrote_is_a_violation() {
    assert_violated(&[put(0, 1, "a", "1", 1), read(2, 3, &[("a", Some((1, "2")))])], "fits nowhere");
    assert_violated(&[put(0, 1, "a", "1", 1), read(2, 3, &[("a", Some((2, "1")))])], "fits nowhere");
}

#[test]
fn partially_visible_batch_is_a_violation() {
    let both =
        |start, end, value: &str, versions| commit(start, end, &[], vec![put_of("a", value), put_of("b", value)], Outcome::Done(versions));
    let history = [both(0, 1, "1", vec![1, 2]), both(2, 9, "2", vec![3, 4]), read(3, 4, &[("a", Some((3, "2"))), ("b", Some((2, "1")))])];
    assert_violated(&history, "fits nowhere");
    // The same with two consecutive reads.
    let history = [
        both(0, 1, "1", vec![1, 2]),
        both(2, 9, "2", vec![3, 4]),
        read(3, 4, &[("a", Some((3, "2")))]),
        read(5, 6, &[("b", Some((2, "1")))]),
    ];
    assert_violated(&history, "fits nowhere");
    let prefix = commit(2, 9, &[], vec![Write::DeletePrefix { prefix: "d/".to_owned() }], Outcome::Done(Vec::new()));
    let rows = commit(0, 1, &[], vec![put_of("d/x", "1"), put_of("d/y", "1")], Outcome::Done(vec![1, 2]));
    assert_violated(&[rows, prefix, read(3, 4, &[("d/x", None)]), read(5, 6, &[("d/y", Some((2, "1")))])], "fits nowhere");
}

#[test]
fn open_commit_may_take_effect_at_any_time_or_never() {
    let open = |start, key, value| commit(start, NEVER, &[], vec![put_of(key, value)], Outcome::Unknown);
    assert_legal(&[open(0, "a", "1"), read(5, 6, &[("a", None)])]);
    assert_legal(&[open(0, "a", "1"), read(5, 6, &[("a", None)]), read(7, 8, &[("a", Some((1, "1")))]), put(9, 10, "b", "", 2)]);
    assert_violated(&[open(7, "a", "1"), read(5, 6, &[("a", Some((1, "1")))])], "fits nowhere");
    assert_violated(&[open(0, "a", "1"), read(5, 6, &[("a", Some((1, "1")))]), read(7, 8, &[("a", None)])], "fits nowhere");
    // Its version must be newer than those known before it took effect, and it has only one.
    let behind = [open(0, "a", "1"), put(1, 2, "b", "", 3), read(3, 4, &[("a", None)]), read(5, 6, &[("a", Some((2, "1")))])];
    assert_violated(&behind, "fits nowhere");
    let two = [open(0, "a", "1"), read(3, 4, &[("a", Some((2, "1")))]), read(5, 6, &[("a", Some((3, "1")))])];
    assert_violated(&two, "fits nowhere");
    // A batch whose answer was lost is still atomic.
    let both = commit(0, NEVER, &[], vec![put_of("a", "1"), put_of("b", "1")], Outcome::Unknown);
    assert_violated(&[both, read(3, 4, &[("a", Some((1, "1"))), ("b", None)])], "fits nowhere");
    // Of two open swaps, at most one wins.
    let swap_open = |value| swap(2, NEVER, "a", 1, value, Outcome::Unknown);
    assert_legal(&[put(0, 1, "a", "0", 1), swap_open("x"), swap_open("y"), read(5, 6, &[("a", Some((2, "y")))])]);
    let both_won = [
        put(0, 1, "a", "0", 1),
        swap_open("x"),
        swap_open("y"),
        read(5, 6, &[("a", Some((2, "x")))]),
        read(7, 8, &[("a", Some((3, "y")))]),
    ];
    assert_violated(&both_won, "fits nowhere");
}

#[test]
fn prefix_conditions_are_checked() {
    let since = |start, end, version, outcome| {
        commit(start, end, &[("d/", Condition::NoneBeneathSince(version))], vec![Write::DeletePrefix { prefix: "d/".to_owned() }], outcome)
    };
    let gone = Outcome::Done(Vec::new());
    assert_legal(&[put(0, 1, "d/x", "1", 1), since(2, 3, 1, gone.clone()), read(4, 5, &[("d/x", None)])]);
    assert_violated(&[put(0, 1, "d/x", "1", 1), put(2, 3, "d/y", "1", 2), since(4, 5, 1, gone.clone())], "fits nowhere");
    assert_legal(&[put(0, 1, "d/x", "1", 1), put(2, 3, "d/y", "1", 2), since(4, 5, 1, refused(Some(2)))]);
    // The open commit was put after version 6, and is visible.
    let open = commit(2, NEVER, &[], vec![put_of("d/x", "1")], Outcome::Unknown);
    let exists = commit(3, 4, &[("d/x", Condition::Exists)], vec![put_of("b", "")], done(8));
    assert_legal(&[put(0, 1, "b", "", 6), open.clone(), exists.clone(), since(5, 6, 7, gone.clone())]);
    assert_violated(&[put(0, 1, "b", "", 6), open, exists, since(5, 6, 6, gone)], "fits nowhere");
    let none = |outcome| commit(2, 3, &[("d/", Condition::NoneBeneath)], vec![put_of("e", "1")], outcome);
    assert_violated(&[put(0, 1, "d/x", "1", 1), none(done(2))], "fits nowhere");
    assert_legal(&[put(0, 1, "d/", "1", 1), none(done(2))]);
    assert_violated(&[none(refused(Some(1)))], "fits nowhere");
}

#[test]
fn search_over_step_limit_is_undecided() {
    let opens = (0..20).map(|number| commit(0, NEVER, &[], vec![put_of("a", &number.to_string())], Outcome::Unknown));
    let history: Vec<Operation> = opens.chain([read(5, 6, &[("a", Some((1, "never")))])]).collect();
    assert_eq!(check_with(&history, 1_000), Verdict::Undecided { keys: vec!["a".to_owned()] });
}

#[test]
fn violating_history_is_written_to_file() {
    let directory = tempfile::tempdir().expect("a directory");
    let history = [put(0, 1, "a\0b", "1", 1), read(2, 3, &[("a\0b", None)])];
    let path = directory.path().to_owned();
    let panic = std::panic::catch_unwind(|| assert_linearizable(&history, &path, "stale")).expect_err("it is not linearizable");
    let message = panic.downcast_ref::<String>().expect("a message");
    let file = std::fs::read_dir(&path).expect("a directory").next().expect("a file").expect("an entry").path();
    assert!(message.contains(&file.display().to_string()) && message.contains("`a b` has version 1"), "{message}");
    let lines = std::fs::read_to_string(&file).expect("a text");
    let kept: Vec<Operation> = lines.lines().map(|line| serde_json::from_str(line).expect("an operation")).collect();
    assert_eq!(kept, history);
}

/// Tries every order of a history that its times allow, with every version that an open put may have. Versions are doubled here,
/// so that an odd one stands for any version between two reported ones.
fn every_order(history: &[Operation]) -> bool {
    let told = history.iter().flat_map(|operation| -> Vec<u64> {
        match &operation.action {
            Action::Read(rows) => rows.iter().filter_map(|sight| Some(sight.row.as_ref()?.version)).collect(),
            Action::CurrentVersion { version, .. } => vec![*version],
            Action::Commit { outcome, conditions, .. } => {
                let named = conditions.iter().filter_map(|of| match of.condition {
                    Condition::NoneBeneathSince(version) | Condition::Version(version) => Some(version),
                    Condition::Absent | Condition::Exists | Condition::NoneBeneath => None,
                });
                let given = match outcome {
                    Outcome::Done(versions) => versions.clone(),
                    Outcome::Refused { met, .. } => met.iter().copied().collect(),
                    Outcome::Failed | Outcome::Unknown => Vec::new(),
                };
                named.chain(given).collect()
            }
        }
    });
    let mut versions: Vec<u64> = told.flat_map(|version| [2 * version, 2 * version + 1]).chain([1]).collect();
    versions.sort_unstable();
    versions.dedup();
    let is_open = |operation: &Operation| matches!(operation.action, Action::Commit { outcome: Outcome::Unknown, .. });
    let (open, left): (Vec<&Operation>, Vec<&Operation>) = history.iter().partition(|operation| is_open(operation));
    some_order(&left, &open, &World::default(), &versions)
}

#[derive(Clone, Default)]
struct World {
    rows: BTreeMap<String, (u64, String)>,
    /// The counter of each partition.
    counters: BTreeMap<String, u64>,
}

impl World {
    fn counter(&self, partition: &str) -> u64 {
        self.counters.get(partition).copied().unwrap_or_default()
    }

    fn counted(mut self, partition: &str, counter: u64) -> Self {
        self.counters.insert(partition.to_owned(), counter);
        self
    }
}

fn without<T: Clone>(all: &[T], at: usize) -> Vec<T> {
    [&all[..at], &all[at + 1..]].concat()
}

fn some_order(left: &[&Operation], open: &[&Operation], world: &World, versions: &[u64]) -> bool {
    if left.is_empty() {
        return true;
    }
    let first_end = left.iter().map(|operation| operation.end.unwrap_or(NEVER)).min().unwrap_or(NEVER);
    for (at, operation) in left.iter().enumerate().filter(|(_, operation)| operation.start <= first_end) {
        for next in worlds(world, operation, versions) {
            if some_order(&without(left, at), open, &next, versions) {
                return true;
            }
        }
    }
    for (at, operation) in open.iter().enumerate().filter(|(_, operation)| operation.start <= first_end) {
        for next in worlds(world, operation, versions) {
            if some_order(left, &without(open, at), &next, versions) {
                return true;
            }
        }
    }
    false
}

/// Returns the worlds that a call may lead to if this one gives its answer.
fn worlds(world: &World, operation: &Operation, versions: &[u64]) -> Vec<World> {
    let version_at = |key: &str| world.rows.get(key).map(|(version, _)| *version);
    match &operation.action {
        Action::Read(rows) => {
            let fits = rows.iter().all(|sight| match (&sight.row, world.rows.get(&sight.key)) {
                (None, None) => true,
                (Some(seen), Some((version, value))) => {
                    seen.version * 2 == *version && seen.value.as_ref().is_none_or(|seen| seen == value)
                }
                _ => false,
            });
            if fits { vec![world.clone()] } else { Vec::new() }
        }
        Action::CurrentVersion { partition, version } => {
            let is_possible = version * 2 >= world.counter(partition);
            if is_possible { vec![world.clone().counted(partition, version * 2)] } else { Vec::new() }
        }
        Action::Commit { conditions, writes, outcome } => {
            // The versions that may be reported for a violated condition; `None` in the list stands for an absent row.
            let against = |of: &Requirement| -> Option<Vec<Option<u64>>> {
                let beneath = |min: u64| -> Vec<Option<u64>> {
                    let rows = world.rows.iter().filter(|(key, _)| key.starts_with(&of.key) && **key != of.key);
                    rows.filter(|(_, (version, _))| *version > min).map(|(_, (version, _))| Some(*version)).collect()
                };
                let met = match of.condition {
                    Condition::Absent => version_at(&of.key).map(|version| vec![Some(version)]).unwrap_or_default(),
                    Condition::Exists => version_at(&of.key).map_or(vec![None], |_| Vec::new()),
                    Condition::Version(version) if version_at(&of.key) == Some(version * 2) => Vec::new(),
                    Condition::Version(_) => vec![version_at(&of.key)],
                    Condition::NoneBeneath => beneath(0),
                    Condition::NoneBeneathSince(version) => beneath(version * 2),
                };
                (!met.is_empty()).then_some(met)
            };
            match outcome {
                Outcome::Failed => vec![world.clone()],
                Outcome::Refused { index, met } => {
                    let held = conditions.iter().take(*index).all(|of| against(of).is_none());
                    let fits = conditions.get(*index).and_then(against).is_some_and(|all| all.contains(&met.map(|version| version * 2)));
                    if held && fits { vec![world.clone()] } else { Vec::new() }
                }
                Outcome::Done(_) | Outcome::Unknown if !conditions.iter().all(|of| against(of).is_none()) => Vec::new(),
                Outcome::Done(given) => {
                    let given: Vec<u64> = given.iter().map(|version| version * 2).collect();
                    written(world.clone(), writes, &mut given.iter().map(std::slice::from_ref))
                }
                Outcome::Unknown => written(world.clone(), writes, &mut std::iter::repeat(versions)),
            }
        }
    }
}

/// Applies writes, with each version that a put may have.
fn written(world: World, writes: &[Write], given: &mut dyn Iterator<Item = &[u64]>) -> Vec<World> {
    let mut worlds = vec![world];
    for write in writes {
        match write {
            Write::Delete { key } => worlds.iter_mut().for_each(|world| drop(world.rows.remove(key))),
            Write::DeletePrefix { prefix } => {
                worlds.iter_mut().for_each(|world| world.rows.retain(|key, _| !key.starts_with(prefix.as_str())));
            }
            Write::Put { key, value } => {
                let Some(given) = given.next() else { return Vec::new() };
                let mut next = Vec::new();
                for world in &worlds {
                    let counter = world.counter(partition_of(key));
                    // Between two even numbers there is room for any number of odd ones.
                    let is_newer = |version: u64| version > counter || (version == counter && version % 2 == 1);
                    for version in given.iter().copied().filter(|version| is_newer(*version)) {
                        let mut world = world.clone().counted(partition_of(key), version);
                        world.rows.insert(key.clone(), (version, value.clone()));
                        next.push(world);
                    }
                }
                worlds = next;
            }
        }
    }
    worlds
}

const KEYS: [&str; 4] = ["a", "a/x", "a/y", "b"];

/// A call before it is answered.
#[derive(Debug, Clone)]
enum Call {
    Read(Vec<&'static str>),
    CurrentVersion,
    Commit(Vec<(&'static str, Kind)>, Vec<Write>, Fate),
}

#[derive(Debug, Clone, Copy)]
enum Kind {
    Absent,
    Exists,
    Current,
    Version(u64),
    NoneBeneath,
    NoneBeneathSince(u64),
}

/// Whether a commit is answered, and if not, whether it takes effect.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Fate {
    Answered,
    OpenDone,
    OpenNever,
}

fn call() -> impl Strategy<Value = Call> {
    let key = || select(&KEYS[..]);
    let kind = prop_oneof![
        2 => Just(Kind::Absent),
        1 => Just(Kind::Exists),
        4 => Just(Kind::Current),
        1 => (0..9_u64).prop_map(Kind::Version),
        1 => Just(Kind::NoneBeneath),
        1 => (0..9_u64).prop_map(Kind::NoneBeneathSince),
    ];
    let write = prop_oneof![
        4 => (key(), select(vec!["p", "q"])).prop_map(|(key, value)| put_of(key, value)),
        2 => key().prop_map(|key| Write::Delete { key: key.to_owned() }),
        1 => select(vec!["a", "a/", "b"]).prop_map(|prefix| Write::DeletePrefix { prefix: prefix.to_owned() }),
    ];
    let fate = prop_oneof![6 => Just(Fate::Answered), 1 => Just(Fate::OpenDone), 1 => Just(Fate::OpenNever)];
    prop_oneof![
        4 => vec(key(), 1..3).prop_map(Call::Read),
        1 => Just(Call::CurrentVersion),
        6 => (vec((key(), kind), 0..2), vec(write, 1..3), fate).prop_map(|(conditions, writes, fate)| Call::Commit(conditions, writes, fate)),
    ]
}

/// Runs calls one after another, in the partition without a name, but lets their intervals overlap. Each takes effect within its
/// interval.
fn history(calls: &[(Call, u64, u64)]) -> Vec<Operation> {
    let mut world = World::default();
    let mut history = Vec::new();
    for (at, (call, before, behind)) in calls.iter().enumerate() {
        let moment = 100 + 10 * at as u64;
        let (start, mut end) = (moment - before, Some(moment + behind));
        let newest = world.counter("") / 2;
        let version_at = |key: &str| world.rows.get(key).map(|(version, _)| version / 2);
        let action = match call {
            Call::Read(keys) => {
                let row =
                    |key: &&str| world.rows.get(*key).map(|(version, value)| Seen { version: version / 2, value: Some(value.clone()) });
                Action::Read(keys.iter().map(|key| Sight { key: (*key).to_owned(), row: row(key) }).collect())
            }
            Call::CurrentVersion => Action::CurrentVersion { partition: String::new(), version: newest },
            Call::Commit(conditions, writes, fate) => {
                let condition = |(key, kind): &(&str, Kind)| {
                    let condition = match kind {
                        Kind::Absent => Condition::Absent,
                        Kind::Exists => Condition::Exists,
                        Kind::Current => version_at(key).map_or(Condition::Absent, Condition::Version),
                        Kind::Version(version) => Condition::Version(*version),
                        Kind::NoneBeneath => Condition::NoneBeneath,
                        Kind::NoneBeneathSince(version) => Condition::NoneBeneathSince(*version),
                    };
                    Requirement { key: (*key).to_owned(), condition }
                };
                let conditions: Vec<Requirement> = conditions.iter().map(condition).collect();
                let puts = writes.iter().filter(|write| matches!(write, Write::Put { .. })).count() as u64;
                let given: Vec<u64> = (1..=puts).map(|number| newest + number).collect();
                let of = |outcome| Action::Commit { conditions: conditions.clone(), writes: writes.clone(), outcome };
                let as_done = operation(0, 1, of(Outcome::Done(given.clone())));
                // Ask the oracle for the answer, one outcome after another.
                let refusals = (0..conditions.len())
                    .flat_map(|index| (0..=newest).map(Some).chain([None]).map(move |met| Outcome::Refused { index, met }));
                let outcome = match worlds(&world, &as_done, &[]).pop() {
                    Some(next) => {
                        if *fate != Fate::OpenNever {
                            world = next;
                        }
                        Outcome::Done(given)
                    }
                    None => {
                        let fits = |outcome: &Outcome| !worlds(&world, &operation(0, 1, of(outcome.clone())), &[]).is_empty();
                        refusals.into_iter().find(fits).expect("the outcome is one of the refusals")
                    }
                };
                if *fate != Fate::Answered {
                    end = None;
                }
                of(if *fate == Fate::Answered { outcome } else { Outcome::Unknown })
            }
        };
        history.push(Operation { process: 0, number: at as u64, start, end, action });
    }
    history
}

fn calls(max: usize) -> impl Strategy<Value = Vec<(Call, u64, u64)>> {
    vec((call(), 0..60_u64, 0..60_u64), 1..=max)
}

/// Changes one answer, or the times of one call.
fn mutate(history: &mut [Operation], at: usize, how: u64) {
    let count = history.len();
    let operation = &mut history[at % count];
    match (how % 7, &mut operation.action) {
        (0, Action::Read(rows)) => rows[0].row = None,
        (1, Action::Read(rows)) => {
            rows[0].row = Some(Seen { version: 1 + how % 5, value: Some(["p", "q"][(how % 2) as usize].to_owned()) });
        }
        (2, Action::Read(rows)) => {
            if let Some(row) = &mut rows[0].row {
                row.version = (row.version + how % 3).saturating_sub(1);
            }
        }
        (0..=3, Action::CurrentVersion { version, .. }) => *version = (*version + how % 3).saturating_sub(1),
        (0, Action::Commit { outcome: Outcome::Done(versions), .. }) => versions.iter_mut().for_each(|version| *version += how % 4),
        (1, Action::Commit { outcome, writes, .. }) => {
            let puts = writes.iter().filter(|write| matches!(write, Write::Put { .. })).count() as u64;
            *outcome = Outcome::Done((0..puts).map(|number| 1 + how % 6 + number).collect());
        }
        (2, Action::Commit { outcome: Outcome::Refused { met, .. }, .. }) => *met = met.map_or(Some(how % 5), |_| None),
        (3, Action::Commit { conditions, .. }) => conditions.clear(),
        _ => {
            operation.start = operation.start.saturating_sub(how % 90);
            operation.end = operation.end.map(|end| end.saturating_sub(how % 50).max(operation.start));
        }
    }
}

/// Moves a history to another partition.
fn moved(mut history: Vec<Operation>, partition: &str) -> Vec<Operation> {
    let place = |key: &mut String| *key = format!("{partition}\0{key}");
    for operation in &mut history {
        match &mut operation.action {
            Action::Read(rows) => rows.iter_mut().for_each(|sight| place(&mut sight.key)),
            Action::CurrentVersion { partition: of, .. } => partition.clone_into(of),
            Action::Commit { conditions, writes, .. } => {
                conditions.iter_mut().for_each(|of| place(&mut of.key));
                for write in writes {
                    match write {
                        Write::Put { key, .. } | Write::Delete { key } | Write::DeletePrefix { prefix: key } => place(key),
                    }
                }
            }
        }
    }
    history
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn executed_history_is_linearizable(calls in calls(60)) {
        prop_assert_eq!(check(&history(&calls)), Verdict::Linearizable);
    }

    #[test]
    fn checker_agrees_with_trying_every_order(calls in calls(7), changes in vec((any::<usize>(), 0..10_000_u64), 0..4)) {
        let mut history = history(&calls);
        changes.iter().for_each(|(at, how)| mutate(&mut history, *at, *how));
        prop_assert_eq!(check(&history) == Verdict::Linearizable, every_order(&history), "{:?} {:?}", check(&history), history);
    }

    #[test]
    fn history_of_two_partitions_is_that_of_each(
        one in calls(12),
        other in calls(12),
        changes in vec((any::<usize>(), 0..10_000_u64), 0..4),
    ) {
        let (mut one, other) = (history(&one), history(&other));
        changes.iter().for_each(|(at, how)| mutate(&mut one, *at, *how));
        let alone = check(&one) == Verdict::Linearizable;
        let both = [moved(one, "p"), moved(other, "q")].concat();
        prop_assert_eq!(check(&both) == Verdict::Linearizable, alone, "{:?} {:?}", check(&both), both);
    }
}
