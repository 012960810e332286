//! The model: writers, partitions and nodes, as a simulation of discrete events.
//!
//! A batch waits in the queue of its partition at its server. When the partition has no group under way and the server a free connection,
//! all that waits there, up to [`Grouping::max`], goes as one group to the node of the partition. There it takes a processor, and then waits
//! for a flush: flushes of a node take turns, and each covers all groups that wait when it begins. The answer ends every batch of the group.
//! Reads come before a batch, one after the other. Each takes a processor of the node, and waits for nothing else.
//!
//! All randomness comes from one seed, and events of one moment happen in the order in which they were planned. So a run with the same
//! numbers gives the same answer on every machine.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

/// What a node of an engine costs, in seconds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Costs {
    /// Of a processor for a group of batches.
    pub(crate) group: f64,
    /// Of a processor for each batch in it.
    pub(crate) batch: f64,
    /// Of a processor for a read of one row.
    pub(crate) read: f64,
    /// Of a flush to the disk.
    pub(crate) flush: f64,
    /// From a server to the node and back, with the work of the server.
    pub(crate) round_trip: f64,
}

/// How a store sends batches that wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Grouping {
    /// The most batches in a group.
    pub(crate) max: usize,
    /// Whether a partition has at most one group under way.
    pub(crate) is_serial: bool,
}

/// As the stores on SQL servers do.
pub(crate) const GROUPED: Grouping = Grouping { max: 64, is_serial: true };

/// As the store on Redis does.
pub(crate) const SINGLE: Grouping = Grouping { max: 1, is_serial: false };

/// A number of nodes, and who uses them.
#[derive(Debug, Clone)]
pub(crate) struct Fleet {
    pub(crate) costs: Costs,
    pub(crate) grouping: Grouping,
    pub(crate) nodes: usize,
    /// The processors of each node.
    pub(crate) processors: usize,
    pub(crate) servers: usize,
    /// How many groups a server has under way at once.
    pub(crate) connections: usize,
    pub(crate) partitions: usize,
    pub(crate) load: Load,
    /// How many reads of its partition come before each batch.
    pub(crate) reads: usize,
    /// A node that is gone from one time to another, in seconds from the start. Its partitions wait.
    pub(crate) lost: Option<(usize, f64, f64)>,
    /// The length of the run in seconds.
    pub(crate) seconds: f64,
    pub(crate) seed: u64,
}

/// Where batches come from.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Load {
    /// So many writers, each of which sends its next batch once it has the answer. Each keeps to one partition; they take them in turn.
    Writers(usize),
    /// So many batches a second, of partitions at random. The share of the first one is `hot`, and the others have the rest.
    Arrivals { per_second: f64, hot: f64 },
}

/// What came of a run.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Outcome {
    pub(crate) commits_per_second: f64,
    /// The times of commits in seconds: in the middle, of 99 in 100, and the longest.
    pub(crate) p50: f64,
    pub(crate) p99: f64,
    pub(crate) longest: f64,
    /// The batches that wait at the end.
    pub(crate) waiting: usize,
    /// The commits of the node with the most, as a multiple of the mean.
    pub(crate) imbalance: f64,
}

/// A batch that waits: when it was sent, and by which writer, if it came from one.
#[derive(Debug, Clone, Copy)]
struct Batch {
    at: f64,
    writer: Option<usize>,
}

#[derive(Debug)]
struct Group {
    partition: usize,
    batches: Vec<Batch>,
}

/// A read, and those that follow it before the batch.
#[derive(Debug)]
struct Read {
    partition: usize,
    writer: Option<usize>,
    /// How many come after it.
    left: usize,
}

/// What takes a processor of a node.
#[derive(Debug)]
enum Work {
    Group(Group),
    Read(Read),
}

impl Work {
    fn partition(&self) -> usize {
        match self {
            Self::Group(group) => group.partition,
            Self::Read(read) => read.partition,
        }
    }
}

#[derive(Debug)]
enum Event {
    /// A request for a partition, from a writer or from nobody in particular: reads, then a batch.
    Begun {
        partition: usize,
        writer: Option<usize>,
    },
    /// The batch of a request.
    Sent {
        partition: usize,
        writer: Option<usize>,
    },
    /// The next request of the arrivals.
    Arrival,
    Arrived(Work),
    Computed(Work),
    Flushed {
        node: usize,
    },
    Answered(Group),
    Back {
        node: usize,
    },
}

#[derive(Debug, Default)]
struct Partition {
    waiting: VecDeque<Batch>,
    is_under_way: bool,
    /// Whether it stands in the queue of its server for a connection.
    is_queued: bool,
}

#[derive(Debug, Default)]
struct Server {
    under_way: usize,
    /// Partitions that wait for a connection.
    queue: VecDeque<usize>,
}

#[derive(Debug, Default)]
struct Node {
    busy: usize,
    computing: VecDeque<Work>,
    flushing: Vec<Group>,
    to_flush: Vec<Group>,
    is_lost: bool,
    /// What came while it was lost.
    held: Vec<Work>,
    commits: u64,
}

/// An event in the order of time, and of planning.
struct Planned {
    at: f64,
    number: u64,
    event: Event,
}

impl PartialEq for Planned {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Planned {}

impl PartialOrd for Planned {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Planned {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.at.total_cmp(&other.at).then(self.number.cmp(&other.number))
    }
}

/// A stream of random numbers: splitmix64, by Steele, Lea and Flood, "Fast splittable pseudorandom number generators" (2014).
#[derive(Debug, Clone)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// Returns a number from 0 to below 1.
    pub(crate) fn part(&mut self) -> f64 {
        (self.number() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Returns a pause between arrivals that come independently of each other, with this mean.
    fn pause(&mut self, mean: f64) -> f64 {
        -mean * (1.0 - self.part()).ln()
    }
}

/// Returns the node of a partition: the one with the highest score, so that a node more or less moves few partitions.
fn node_of(partition: usize, nodes: usize) -> usize {
    let score = |node: usize| Random::new((partition as u64) << 20 | node as u64).number();
    (0..nodes).max_by_key(|node| score(*node)).unwrap_or(0)
}

/// A run.
struct Run<'f> {
    fleet: &'f Fleet,
    random: Random,
    now: f64,
    number: u64,
    events: BinaryHeap<Reverse<Planned>>,
    partitions: Vec<Partition>,
    servers: Vec<Server>,
    nodes: Vec<Node>,
    times: Vec<f64>,
}

/// Runs a fleet.
pub(crate) fn run(fleet: &Fleet) -> Outcome {
    let mut run = Run {
        fleet,
        random: Random::new(fleet.seed),
        now: 0.0,
        number: 0,
        events: BinaryHeap::new(),
        partitions: (0..fleet.partitions).map(|_| Partition::default()).collect(),
        servers: (0..fleet.servers).map(|_| Server::default()).collect(),
        nodes: (0..fleet.nodes).map(|_| Node::default()).collect(),
        times: Vec::new(),
    };
    match fleet.load {
        Load::Writers(count) => {
            for writer in 0..count {
                run.plan(0.0, Event::Begun { partition: writer % fleet.partitions, writer: Some(writer) });
            }
        }
        Load::Arrivals { .. } => run.plan(0.0, Event::Arrival),
    }
    if let Some((node, from, until)) = fleet.lost {
        run.nodes[node].is_lost = from <= 0.0;
        run.plan(until, Event::Back { node });
    }
    while let Some(Reverse(planned)) = run.events.pop() {
        if planned.at > fleet.seconds {
            break;
        }
        run.now = planned.at;
        if let Some((node, from, until)) = fleet.lost {
            run.nodes[node].is_lost = (from..until).contains(&run.now);
        }
        run.happen(planned.event);
    }
    run.outcome()
}

impl Run<'_> {
    fn plan(&mut self, pause: f64, event: Event) {
        self.number += 1;
        self.events.push(Reverse(Planned { at: self.now + pause, number: self.number, event }));
    }

    fn happen(&mut self, event: Event) {
        let Costs { flush, round_trip, .. } = self.fleet.costs;
        match event {
            Event::Begun { partition, writer } => match self.fleet.reads.checked_sub(1) {
                Some(left) => self.plan(round_trip / 2.0, Event::Arrived(Work::Read(Read { partition, writer, left }))),
                None => self.happen(Event::Sent { partition, writer }),
            },
            Event::Sent { partition, writer } => {
                self.partitions[partition].waiting.push_back(Batch { at: self.now, writer });
                self.begin(partition);
            }
            Event::Arrival => {
                let Load::Arrivals { per_second, hot } = self.fleet.load else { return };
                let count = self.partitions.len();
                let is_hot = self.random.part() < hot;
                let partition = if is_hot { 0 } else { (self.random.part() * count as f64) as usize % count };
                self.happen(Event::Begun { partition, writer: None });
                let pause = self.random.pause(1.0 / per_second);
                self.plan(pause, Event::Arrival);
            }
            Event::Arrived(work) => {
                let node = self.node(work.partition());
                if self.nodes[node].is_lost {
                    self.nodes[node].held.push(work);
                } else {
                    self.nodes[node].computing.push_back(work);
                    self.compute(node);
                }
            }
            Event::Computed(work) => {
                let node = self.node(work.partition());
                self.nodes[node].busy -= 1;
                match work {
                    Work::Group(group) => self.nodes[node].to_flush.push(group),
                    Work::Read(Read { partition, writer, left: 0 }) => self.plan(round_trip / 2.0, Event::Sent { partition, writer }),
                    // From the node to the server, and back with the next one.
                    Work::Read(read) => self.plan(round_trip, Event::Arrived(Work::Read(Read { left: read.left - 1, ..read }))),
                }
                self.compute(node);
                self.flush(node, flush);
            }
            Event::Flushed { node } => {
                for group in std::mem::take(&mut self.nodes[node].flushing) {
                    self.nodes[node].commits += group.batches.len() as u64;
                    self.plan(round_trip / 2.0, Event::Answered(group));
                }
                self.flush(node, flush);
            }
            Event::Answered(group) => {
                let partition = group.partition;
                for Batch { at, writer } in group.batches {
                    self.times.push(self.now - at);
                    if writer.is_some() {
                        self.plan(0.0, Event::Begun { partition, writer });
                    }
                }
                self.partitions[partition].is_under_way = false;
                let server = self.server(partition);
                self.servers[server].under_way -= 1;
                // Those who were just answered send their next batches first.
                if !self.partitions[partition].waiting.is_empty() {
                    self.begin(partition);
                }
                while self.servers[server].under_way < self.fleet.connections {
                    let Some(next) = self.servers[server].queue.pop_front() else { break };
                    self.partitions[next].is_queued = false;
                    self.begin(next);
                }
            }
            Event::Back { node } => {
                let held = std::mem::take(&mut self.nodes[node].held);
                self.nodes[node].computing.extend(held);
                self.compute(node);
            }
        }
    }

    /// Sends what waits for a partition, if it has no group under way and its server a connection.
    fn begin(&mut self, partition: usize) {
        let server = self.server(partition);
        let state = &mut self.partitions[partition];
        let Grouping { max, is_serial } = self.fleet.grouping;
        if is_serial && state.is_under_way || state.is_queued || state.waiting.is_empty() {
            return;
        }
        if self.servers[server].under_way == self.fleet.connections {
            state.is_queued = true;
            self.servers[server].queue.push_back(partition);
            return;
        }
        state.is_under_way = true;
        self.servers[server].under_way += 1;
        let count = state.waiting.len().min(max);
        let batches = state.waiting.drain(..count).collect();
        self.plan(self.fleet.costs.round_trip / 2.0, Event::Arrived(Work::Group(Group { partition, batches })));
    }

    fn compute(&mut self, node: usize) {
        let Costs { group: of_group, batch, read, .. } = self.fleet.costs;
        while self.nodes[node].busy < self.fleet.processors {
            let Some(work) = self.nodes[node].computing.pop_front() else { return };
            self.nodes[node].busy += 1;
            let seconds = match &work {
                Work::Group(group) => of_group + batch * group.batches.len() as f64,
                Work::Read(_) => read,
            };
            self.plan(seconds, Event::Computed(work));
        }
    }

    fn flush(&mut self, node: usize, seconds: f64) {
        let node_state = &mut self.nodes[node];
        if node_state.flushing.is_empty() && !node_state.to_flush.is_empty() {
            node_state.flushing = std::mem::take(&mut node_state.to_flush);
            self.plan(seconds, Event::Flushed { node });
        }
    }

    fn node(&self, partition: usize) -> usize {
        node_of(partition, self.fleet.nodes)
    }

    /// Returns the server that sends a partition's batches. A proxy may spread them; then groups are smaller and more.
    fn server(&self, partition: usize) -> usize {
        partition % self.fleet.servers
    }

    fn outcome(mut self) -> Outcome {
        self.times.sort_by(f64::total_cmp);
        let at = |part: f64| self.times.get(((self.times.len() as f64 - 1.0) * part).max(0.0) as usize).copied().unwrap_or(0.0);
        let commits: u64 = self.nodes.iter().map(|node| node.commits).sum();
        let most = self.nodes.iter().map(|node| node.commits).max().unwrap_or(0);
        Outcome {
            commits_per_second: self.times.len() as f64 / self.fleet.seconds,
            p50: at(0.5),
            p99: at(0.99),
            longest: at(1.0),
            waiting: self.partitions.iter().map(|partition| partition.waiting.len()).sum(),
            imbalance: most as f64 * self.fleet.nodes as f64 / commits.max(1) as f64,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COSTS: Costs = Costs { group: 1e-4, batch: 1e-5, read: 3e-5, flush: 1e-3, round_trip: 2e-4 };

    fn fleet(nodes: usize, partitions: usize, load: Load) -> Fleet {
        Fleet {
            costs: COSTS,
            grouping: GROUPED,
            nodes,
            processors: 2,
            servers: 1,
            connections: 64,
            partitions,
            load,
            reads: 0,
            lost: None,
            seconds: 20.0,
            seed: 1,
        }
    }

    #[test]
    fn one_writer_pays_every_cost_once() {
        let outcome = run(&fleet(1, 1, Load::Writers(1)));
        let expected = COSTS.group + COSTS.batch + COSTS.flush + COSTS.round_trip;
        assert!((outcome.p50 - expected).abs() < 1e-9 && (outcome.longest - expected).abs() < 1e-9, "{outcome:?}");
        assert!((outcome.commits_per_second * expected - 1.0).abs() < 0.01, "{outcome:?}");
    }

    #[test]
    fn reads_come_one_after_the_other_and_take_processors_from_commits() {
        let one = run(&Fleet { reads: 3, ..fleet(1, 1, Load::Writers(1)) });
        let commit = COSTS.group + COSTS.batch + COSTS.flush + COSTS.round_trip;
        let request = commit + 3.0 * (COSTS.read + COSTS.round_trip);
        assert!((one.longest - commit).abs() < 1e-9, "{one:?}");
        assert!((one.commits_per_second * request - 1.0).abs() < 0.01, "{one:?}");
        // The processor of one node limits these: 100 reads take 3 ms of it.
        let busy = Fleet { reads: 100, processors: 1, ..fleet(1, 64, Load::Writers(640)) };
        let (many, twice) = (run(&busy), run(&Fleet { processors: 2, ..busy.clone() }));
        assert!(many.commits_per_second < 1.0 / (100.0 * COSTS.read), "{many:?}");
        assert!(twice.commits_per_second > 1.8 * many.commits_per_second, "{many:?} {twice:?}");
        let lost = run(&Fleet { lost: Some((0, 0.0, 5.0)), reads: 1, ..fleet(1, 4, Load::Writers(4)) });
        assert!(lost.commits_per_second > 0.0 && lost.longest < 1.0, "reads wait for the node, and commits come after them: {lost:?}");
    }

    #[test]
    fn same_seed_gives_the_same_run() {
        let fleet = fleet(3, 50, Load::Arrivals { per_second: 3_000.0, hot: 0.1 });
        assert_eq!(run(&fleet), run(&fleet));
        assert_ne!(run(&fleet), run(&Fleet { seed: 2, ..fleet.clone() }));
    }

    #[test]
    fn writers_of_one_partition_share_groups_and_those_of_many_share_flushes() {
        let [alone, one, many] =
            [(1, 1), (16, 1), (16, 16)].map(|(writers, partitions)| run(&fleet(1, partitions, Load::Writers(writers))).commits_per_second);
        assert!(one > 5.0 * alone && many > 5.0 * alone, "{alone} {one} {many}");
        let slow = |connections| run(&Fleet { connections, ..fleet(1, 16, Load::Writers(16)) }).commits_per_second;
        assert!(slow(1) < 1.2 * alone && slow(4) > 2.0 * slow(1), "{} {}", slow(1), slow(4));
    }

    #[test]
    fn nodes_add_commits_and_a_lost_one_delays_its_own_partitions() {
        let busy = |nodes| run(&Fleet { processors: 1, ..fleet(nodes, 64, Load::Writers(2_000)) });
        let [one, two] = [1, 2].map(busy);
        assert!(two.commits_per_second > 1.7 * one.commits_per_second, "{one:?} {two:?}");
        let load = Load::Arrivals { per_second: 500.0, hot: 0.0 };
        let whole = run(&fleet(4, 64, load));
        let lost = run(&Fleet { lost: Some((0, 5.0, 8.0)), ..fleet(4, 64, load) });
        assert!(whole.longest < 0.1 && lost.longest > 2.5 && lost.longest < 3.5, "{whole:?} {lost:?}");
        assert_eq!((lost.waiting, lost.p50 < 0.01), (0, true), "{lost:?}");
    }
}
