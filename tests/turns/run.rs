//! Three processes run calls of many sessions, while one after another is killed and started again, or stalled for longer than a lease.
//! The recorded history is checked by a program.
//!
//! `TREEHOLD_TURNS_SECONDS`, `TREEHOLD_TURNS_SESSIONS` and `TREEHOLD_TURNS_PAUSE` (seconds between two kills or stalls) make a long run;
//! `scripts/turns.sh` sets them.

use super::history::{End, History};
use super::process::{LEASE, MARK, Place, agent, now, slot};
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

const PROCESSES: usize = 3;

/// How many calls may run or wait for each session.
const CALLS_PER_SESSION: usize = 2;

/// A run goes on until more calls than this are done.
const DONE_MIN: usize = 10;

/// How long a process may take to start, a run to do enough, and its calls to end.
const PATIENCE: Duration = Duration::from_secs(120);

fn setting(name: &str, usual: u64) -> u64 {
    std::env::var(format!("TREEHOLD_TURNS_{name}")).ok().and_then(|text| text.parse().ok()).unwrap_or(usual)
}

/// A process that runs.
struct Running {
    child: Child,
    input: ChildStdin,
    lines: Receiver<String>,
    /// Each start is a process of its own in the history.
    id: usize,
    stalled_until: Option<Instant>,
}

impl Running {
    fn start(place: &Place, id: usize) -> Self {
        let mut child = place.start().stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (input, output) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            // The last line of a killed process may be torn in the middle.
            for line in BufReader::new(output).split(b'\n').map_while(Result::ok) {
                let line = String::from_utf8_lossy(&line).into_owned();
                if let Some(at) = line.find(MARK) {
                    let _ = sender.send(line[at + MARK.len()..].to_owned());
                }
            }
        });
        let running = Self { child, input, lines, id, stalled_until: None };
        assert_eq!(running.lines.recv_timeout(PATIENCE).unwrap(), "ready");
        running
    }

    fn send(&mut self, command: &str) {
        writeln!(self.input, "{command}").unwrap();
    }

    fn signal(&self, signal: rustix::process::Signal) {
        let id = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(id, signal).unwrap();
    }

    /// Notes what the process said, and returns how many interrupts hit a call.
    fn drain(&self, history: &mut History) -> usize {
        let mut hits = 0;
        while let Ok(line) = self.lines.try_recv() {
            match line.as_str() {
                "interrupt true" => hits += 1,
                "interrupt false" => {}
                _ => history.note(&line),
            }
        }
        hits
    }

    /// Kills the process, and notes what it said before.
    fn kill(mut self, history: &mut History) -> usize {
        self.signal(rustix::process::Signal::KILL);
        self.child.wait().unwrap();
        let at = now();
        let mut hits = 0;
        loop {
            match self.lines.recv_timeout(Duration::from_secs(10)) {
                Ok(line) if line == "interrupt true" => hits += 1,
                Ok(line) if line == "interrupt false" => {}
                Ok(line) => history.note(&line),
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => panic!("the output of a killed process does not end"),
            }
        }
        history.kill(self.id, at);
        hits
    }
}

/// A small generator of numbers: the same schedule for the same seed.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) % end as u64) as usize
    }
}

pub(crate) async fn run(place: &Place) {
    let (seconds, sessions) = (setting("SECONDS", 8), setting("SESSIONS", 6) as usize);
    let pause = Duration::from_secs(setting("PAUSE", 2));
    let seed = setting("SEED", now() as u64);
    println!("{}: {sessions} sessions for {seconds} seconds, seed {seed}", place.engine);
    let store = place.open().await;
    let reader = agent(&store);
    let (mut numbers, mut history, mut next_number, mut next_id) = (Numbers(seed), History::default(), 0, PROCESSES);
    let mut running: Vec<Running> = (0..PROCESSES).map(|id| Running::start(place, id)).collect();
    let began = Instant::now();
    let (mut disturb_at, mut disturbed, mut hits, mut peeks) = (began + pause, 0_usize, 0, 0);
    let is_little = |history: &History, disturbed| history.count(End::Done) <= DONE_MIN || disturbed == 0;
    while began.elapsed() < Duration::from_secs(seconds) || is_little(&history, disturbed) && began.elapsed() < PATIENCE {
        for process in &mut running {
            hits += process.drain(&mut history);
            if process.stalled_until.is_some_and(|until| Instant::now() >= until) {
                process.stalled_until = None;
                process.signal(rustix::process::Signal::CONT);
            }
        }
        if Instant::now() >= disturb_at {
            disturb_at += pause;
            disturbed += 1;
            let Some(at) = (0..PROCESSES).map(|at| (at + disturbed) % PROCESSES).find(|at| running[*at].stalled_until.is_none()) else {
                continue;
            };
            if disturbed.is_multiple_of(3) {
                // Longer than a lease: what it saves afterwards is too late.
                history.stall(running[at].id);
                running[at].signal(rustix::process::Signal::STOP);
                running[at].stalled_until = Some(Instant::now() + LEASE + Duration::from_secs(1));
            } else {
                let killed = std::mem::replace(&mut running[at], Running::start(place, next_id));
                hits += killed.kill(&mut history);
                next_id += 1;
            }
        }
        let session = numbers.below(sessions);
        let open = history.calls.values().filter(|record| record.session == session && record.end.is_none()).count();
        if open < CALLS_PER_SESSION {
            let at = numbers.below(PROCESSES);
            let lasts = numbers.below(40);
            history.calls.insert(next_number, super::history::Record { session, process: running[at].id, ..Default::default() });
            running[at].send(&format!("call {next_number} {session} {lasts}"));
            next_number += 1;
        }
        match numbers.below(8) {
            0 => {
                let at = numbers.below(PROCESSES);
                running[at].send(&format!("interrupt {session}"));
            }
            1 => {
                peeks += 1;
                let state = reader.state(&slot(session)).await.unwrap();
                assert!(state.is_none_or(|state| state.open_calls().is_empty()), "a call of a tool without a result is stored");
            }
            _ => tokio::time::sleep(Duration::from_millis(2)).await,
        }
    }
    // All calls of the processes that live come to an end.
    let until = Instant::now() + PATIENCE;
    while history.open() > 0 {
        assert!(Instant::now() < until, "{} calls do not end", history.open());
        for process in &mut running {
            if process.stalled_until.take().is_some() {
                process.signal(rustix::process::Signal::CONT);
            }
            hits += process.drain(&mut history);
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let (done, interrupted) = (history.count(End::Done), history.count(End::Interrupted));
    let (lost, killed) = (history.count(End::Lost), history.count(End::Killed));
    println!(
        "{}: {} calls: {done} done, {interrupted} interrupted, {lost} lost with their turn, {killed} killed; \
        {disturbed} kills and stalls, {hits} interrupts hit, {peeks} peeks",
        place.engine,
        history.calls.len()
    );
    for process in running {
        process.kill(&mut history);
    }
    for session in 0..sessions {
        history.check(session, reader.state(&slot(session)).await.unwrap().as_ref());
    }
    assert!(done > DONE_MIN && disturbed > 0, "too little happened");
}
