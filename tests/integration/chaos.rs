//! Clients, executors and the daemon are killed and stopped at random, under load. No request may
//! be lost or answered twice, and no resource leaked.
//!
//! Each round does one thing to one process, while client processes call functions, chains and a
//! model, and use objects. One tenant is hostile: its native code attacks its executor, and its
//! client misuses each way into the daemon. All others must get what they would get without it.
//!
//! A client reports each request before sending it, and its outcome afterwards; `books.rs` checks the
//! outcomes. From time to time all requests pause, and `audit.rs` checks the invariants of an idle
//! daemon. `ATOLL_SEED` selects another run: it determines the order of actions, but not their
//! timing.

mod audit;
mod books;
mod crowd;
mod house;

use anyhow::{Context, Result, ensure};
use atoll_client::{DataType, Tensor};
use atoll_core::rng::Rng;
use atoll_tests::chaos::grind::bytes;
use atoll_tests::chaos::{Orders, Role};
use atoll_tests::{full, seed};
use audit::Idle;
use books::Promise;
use crowd::{Crowd, Member, Shared};
use house::{FAULTY, HOSTILE, Holdings, House, STEADY, VICTIMS, WILD, table_of};
use rustix::process::{Signal, kill_process};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

/// Rounds between two audits.
const ROUNDS_PER_AUDIT: u32 = 20;

/// Number of executors that a tenant can lose without becoming unavailable; the daemon's limit is
/// five per minute.
const HARMS_MAX: u32 = 4;

/// Number of actions shown after a failure.
const ACTIONS_SHOWN: usize = 12;

/// Number of objects that are never removed.
const PERMANENT_OBJECTS: u32 = 4;

/// Counters shown at the end; the first and the last one must be nonzero.
const COUNTED: [&str; 4] = [
    "atoll_retries_total",
    "atoll_executor_losses_total{cause=\"died\"}",
    "atoll_executor_losses_total{cause=\"hung\"}",
    "atoll_executor_losses_total{cause=\"protocol_violation\"}",
];

struct Chaos {
    rng: Rng,
    house: House,
    shared: Arc<Shared>,
    crowds: Vec<Crowd>,
    examples: Vec<(String, String)>,
    idle: Idle,
    /// Holdings of the daemon before anything was deployed.
    empty: Holdings,
    /// Executors that each tenant lost with this daemon.
    harms: BTreeMap<&'static str, u32>,
    actions: VecDeque<String>,
    /// The daemons' values of the metrics in [`COUNTED`], by generation, as of the last audit of
    /// each.
    counted: BTreeMap<u64, [f64; COUNTED.len()]>,
}

#[test]
fn nothing_is_lost_when_processes_die() -> Result<()> {
    let (seed, rounds) = (seed(), if full() { 1000 } else { 40 });
    let mut chaos = Chaos::begin(seed)?;
    let outcome = chaos.run(rounds);
    chaos.tell(seed, rounds, outcome.is_ok());
    let told = chaos.actions.make_contiguous().join("\n  ");
    let log = chaos.house.last_words();
    outcome.with_context(|| {
        format!("repeat with ATOLL_SEED={seed}; the last actions:\n  {told}\nthe daemon's log:\n  {log}\n")
    })
}

impl Chaos {
    fn begin(seed: u64) -> Result<Chaos> {
        let (house, empty) = House::open()?;
        let examples = house.examples()?;
        let shared = Arc::new(Shared::default());
        shared.books().add_calls(0, "local", examples.len() as u64);
        store_permanent_objects(&house, &shared)?;
        let idle = Idle::of(&house)?;
        let (rng, crowds) = (Rng::new(seed), Vec::new());
        let mut chaos = Chaos {
            rng,
            house,
            shared,
            crowds,
            examples,
            idle,
            empty,
            harms: BTreeMap::new(),
            actions: VecDeque::new(),
            counted: BTreeMap::new(),
        };
        let (busy, web) = (Role::Busy, Role::Web);
        chaos.gather(&[
            (STEADY, Role::Steady),
            ("a", busy),
            ("a", busy),
            ("b", busy),
            ("b", Role::Deployer),
            ("local", web),
            ("local", web),
        ]);
        Ok(chaos)
    }

    fn gather(&mut self, places: &[(&str, Role)]) {
        let order = |(tenant, role): &(&str, Role)| Orders {
            socket: self.house.path("atoll.sock"),
            addresses: self.house.path("ready"),
            bundle: self.house.bundle(tenant),
            tenant: (*tenant).to_owned(),
            role: *role,
            seed: self.rng.next_u64(),
            salt: 0,
            table: table_of(tenant),
            examples: if *role == Role::Web { self.examples.clone() } else { Vec::new() },
        };
        let orders = places.iter().map(order).collect();
        self.crowds.push(Crowd::start(&self.shared, orders));
    }

    fn run(&mut self, rounds: u32) -> Result<()> {
        self.shared.is_calm.store(true, SeqCst);
        self.shared.open();
        std::thread::sleep(Duration::from_secs(if full() { 20 } else { 2 }));
        self.audit()?;
        self.shared.is_calm.store(false, SeqCst);
        for round in 0..rounds {
            if round == rounds / 4 {
                self.gather(&[(HOSTILE, Role::Hostile)]);
            }
            if round == rounds / 2 {
                self.gather(&[(FAULTY, Role::Faulty), (WILD, Role::Wild)]);
            }
            let has_restarted = self.make_round(round)?;
            if has_restarted || round % ROUNDS_PER_AUDIT == ROUNDS_PER_AUDIT - 1 {
                self.audit()?;
                self.lose_one()?;
            }
        }
        self.audit()?;
        self.end()
    }

    /// Does one action. Returns whether it ended a daemon.
    fn make_round(&mut self, round: u32) -> Result<bool> {
        self.shared.open();
        let pause = Duration::from_millis(10 + self.rng.below(100));
        let short = Duration::from_millis(2 + self.rng.below(60));
        let choice = self.rng.below(100);
        let action = match choice {
            0..4 => self.kill_daemon()?,
            4..10 => self.stop_daemon(short)?,
            10..38 => self.harm_executor(None)?,
            38..58 => self.harm_executor(Some(short))?,
            58..62 => self.hang_executor()?,
            62..82 => self.harm_client(None)?,
            _ => self.harm_client(Some(short))?,
        };
        self.actions.push_back(format!("round {round}: {action}"));
        self.actions.drain(..self.actions.len().saturating_sub(ACTIONS_SHOWN));
        std::thread::sleep(pause);
        self.check_complaints()?;
        Ok(choice < 4)
    }

    fn check_complaints(&self) -> Result<()> {
        let complaints = &self.shared.books().complaints;
        ensure!(complaints.is_empty(), "{}", complaints.join("\n"));
        Ok(())
    }

    fn kill_daemon(&mut self) -> Result<String> {
        self.shared.disturbances.fetch_add(1, SeqCst);
        self.shared.generation.fetch_add(1, SeqCst);
        self.house.kill_and_restart()?;
        self.shared.generation.fetch_add(1, SeqCst);
        self.shared.disturbances.fetch_add(1, SeqCst);
        self.harms.clear();
        Ok("the daemon was killed and another one started".into())
    }

    fn stop_daemon(&mut self, time: Duration) -> Result<String> {
        let pid = rustix::process::Pid::from_child(self.house.daemon.process());
        self.shared.disturbances.fetch_add(1, SeqCst);
        kill_process(pid, Signal::STOP)?;
        std::thread::sleep(time);
        kill_process(pid, Signal::CONT)?;
        self.shared.disturbances.fetch_add(1, SeqCst);
        Ok(format!("the daemon was stopped for {time:?}"))
    }

    /// A tenant that may lose another executor; occasionally one that may not.
    fn victim(&mut self) -> Option<&'static str> {
        let dares = self.rng.one_in(12);
        let first = self.rng.below(VICTIMS.len() as u64) as usize;
        let mut victims = VICTIMS.iter().cycle().skip(first).take(VICTIMS.len());
        victims.find(|tenant| dares || self.harms.get(**tenant).is_none_or(|harms| *harms < HARMS_MAX)).copied()
    }

    /// Kills an executor, or stops it for a while.
    fn harm_executor(&mut self, stop: Option<Duration>) -> Result<String> {
        let Some(tenant) = self.victim() else { return self.harm_client(stop) };
        let Some(executor) = self.house.executor(tenant)? else {
            return Ok(format!("there is no executor of {tenant}"));
        };
        match stop {
            None => {
                self.note_harm(tenant, executor);
                // It may have ended meanwhile.
                let _ = kill_process(executor, Signal::KILL);
                Ok(format!("executor {executor} of {tenant} was killed"))
            }
            Some(time) => {
                let _ = kill_process(executor, Signal::STOP);
                std::thread::sleep(time);
                let _ = kill_process(executor, Signal::CONT);
                Ok(format!("executor {executor} of {tenant} was stopped for {time:?}"))
            }
        }
    }

    /// Stops an executor until the daemon detects the hang.
    fn hang_executor(&mut self) -> Result<String> {
        let Some(tenant) = self.victim() else { return Ok("no tenant may lose another executor".into()) };
        let Some(executor) = self.house.executor(tenant)? else {
            return Ok(format!("there is no executor of {tenant}"));
        };
        self.note_harm(tenant, executor);
        let _ = kill_process(executor, Signal::STOP);
        Ok(format!("executor {executor} of {tenant} was stopped permanently"))
    }

    fn note_harm(&mut self, tenant: &'static str, executor: rustix::process::Pid) {
        *self.harms.entry(tenant).or_default() += 1;
        self.shared.books().harmed.insert(executor.as_raw_nonzero().get() as u32);
    }

    /// Kills a client, or stops it for a while; never the one whose latency is measured.
    fn harm_client(&mut self, stop: Option<Duration>) -> Result<String> {
        let victims: Vec<Arc<Member>> = self
            .crowds
            .iter()
            .flat_map(|crowd| &crowd.members)
            .filter(|member| member.role() != Role::Steady)
            .cloned()
            .collect();
        let victim = &victims[self.rng.below(victims.len() as u64) as usize];
        let name = victim.name();
        let Some(time) = stop else {
            return Ok(format!("{name} was {}", if victim.signal(Signal::KILL)? { "killed" } else { "not there" }));
        };
        victim.signal(Signal::STOP)?;
        std::thread::sleep(time);
        victim.signal(Signal::CONT)?;
        Ok(format!("{name} was stopped for {time:?}"))
    }

    /// Kills one executor and nothing else. No request may fail, because each may be retried once.
    fn lose_one(&mut self) -> Result<()> {
        let tenant = VICTIMS[self.rng.below(VICTIMS.len() as u64) as usize];
        if self.harms.get(tenant).is_some_and(|harms| *harms + 1 >= HARMS_MAX) {
            return Ok(());
        }
        let begin = Duration::from_millis(40 + self.rng.below(80));
        self.shared.books().is_strict = true;
        self.shared.open();
        std::thread::sleep(begin);
        if let Some(executor) = self.house.executor(tenant)? {
            self.note_harm(tenant, executor);
            kill_process(executor, Signal::KILL)?;
            self.actions.push_back(format!("executor {executor} of {tenant} was killed, and nothing else was done"));
        }
        std::thread::sleep(begin);
        let closed = self.shared.close();
        self.shared.books().is_strict = false;
        self.check_complaints()?;
        closed.with_context(|| format!("{:#?}", self.house.processes()))
    }

    /// Pauses all requests and checks the invariants.
    fn audit(&mut self) -> Result<()> {
        let closed = self.shared.close();
        self.check_complaints()?;
        closed.with_context(|| format!("{:#?}", self.house.processes()))?;
        // A stopped executor without work is not detected, and need not be.
        self.house.wake_executors()?;
        let generation = self.shared.generation.load(SeqCst);
        let is_alive = |salt| salt == 0 || self.crowds.iter().any(|crowd| crowd.has(salt));
        audit::promises_are_kept(&self.house, &self.shared, is_alive)?;
        audit::is_idle(&self.house, &self.idle)?;
        audit::bills_add_up(&self.house, &self.shared, generation)?;
        let metrics = self.house.metrics()?;
        self.counted.insert(generation, COUNTED.map(|name| metrics.get(name).copied().unwrap_or_default()));
        Ok(())
    }

    /// Removes everything and stops all processes.
    fn end(&mut self) -> Result<()> {
        self.crowds.clear();
        audit::everything_can_be_removed(&self.house, &self.empty)?;
        let last = crate::executors::children(self.house.pid())?;
        let daemon = self.house.pid();
        let status = self.house.daemon.signal(Signal::TERM)?;
        ensure!(status.code() == Some(0), "SIGTERM ended the daemon with {status}");
        ensure!(!last.iter().any(|pid| crate::executors::is_child_of(*pid, daemon)), "an executor outlived its daemon");
        ensure!(
            self.sums()[0] > 0.0,
            "no request was ever tried again: nothing was under way when executors were killed"
        );
        ensure!(self.sums()[3] > 0.0, "no executor was ended for what its native code did");
        Ok(())
    }

    fn sums(&self) -> [f64; COUNTED.len()] {
        std::array::from_fn(|index| self.counted.values().map(|counts| counts[index]).sum())
    }

    /// Prints a summary.
    #[expect(clippy::print_stderr, reason = "the figures of a run")]
    fn tell(&self, seed: u64, rounds: u32, is_well: bool) {
        let [retries, died, hung, violations] = self.sums();
        let (outcomes, latencies) = (&self.shared.books().outcomes, self.shared.latencies());
        let end = if is_well { "well" } else { "badly" };
        eprintln!("chaos, seed {seed}, {rounds} rounds, {} daemons, ended {end}", self.counted.len());
        eprintln!(
            "  requests: {outcomes:?}; {retries} tried again; executors: {died} died, {hung} hung, {violations} broke \
            the protocol"
        );
        eprintln!("  real-time requests beside load: {}", quantiles(latencies.calm));
        eprintln!("  the same while others are killed and stopped: {}", quantiles(latencies.disturbed));
    }
}

/// Stores objects that are never removed, so that every daemon has to restore some.
fn store_permanent_objects(house: &House, shared: &Shared) -> Result<()> {
    let mut client = house.client("a")?;
    for i in 0..PERMANENT_OBJECTS {
        let tensor = Tensor { datatype: DataType::Uint32, shape: vec![1000], bytes: bytes(&vec![i; 1000]) };
        let digest = client.put(&tensor, None)?;
        shared.books().objects.insert(("a".into(), digest), Promise::Kept(0));
    }
    Ok(())
}

fn quantiles(mut us: Vec<u64>) -> String {
    us.sort_unstable();
    let at = |share: f64| {
        us.get(((us.len() as f64 * share) as usize).min(us.len().saturating_sub(1))).copied().unwrap_or_default()
    };
    format!(
        "{} requests, p50 {} µs, p90 {} µs, p99 {} µs, longest {} µs",
        us.len(),
        at(0.5),
        at(0.9),
        at(0.99),
        at(1.0)
    )
}
