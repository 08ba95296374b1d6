//! Client processes, each with a thread that starts it, gives it turns, reads its reports, and
//! restarts it after it was killed.

use super::books::{Books, Entry, Turn};
use anyhow::{Context, Result, bail, ensure};
use atoll_core::rng::Rng;
use atoll_tests::chaos::{Line, Orders, Role};
use rustix::process::{Pid, Signal, kill_process};
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Longest wait for open requests when no new ones are made. It takes 3 s to detect a hung
/// executor, and 2 s to abort a kernel.
const TIMEOUT: Duration = Duration::from_secs(60);

/// State shared by all threads.
#[derive(Default)]
pub(super) struct Shared {
    books: Mutex<Books>,
    /// Generation of the daemon; odd while none is running.
    pub(super) generation: AtomicU64,
    /// Incremented at the beginning and the end of each action on the daemon itself.
    pub(super) disturbances: AtomicU64,
    /// Whether latencies count as undisturbed.
    pub(super) is_calm: AtomicBool,
    latencies: Mutex<Latencies>,
    gate: Mutex<Gate>,
    gate_moved: Condvar,
    salts: AtomicU32,
}

/// Latencies of real-time requests, in microseconds.
#[derive(Clone, Default)]
pub(super) struct Latencies {
    pub(super) calm: Vec<u64>,
    pub(super) disturbed: Vec<u64>,
}

#[derive(Default)]
struct Gate {
    is_open: bool,
    is_over: bool,
    /// Clients in the middle of a turn.
    inside: Vec<String>,
}

impl Shared {
    pub(super) fn books(&self) -> MutexGuard<'_, Books> {
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn latencies(&self) -> Latencies {
        self.latencies.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn gate(&self) -> MutexGuard<'_, Gate> {
        self.gate.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets clients continue.
    pub(super) fn open(&self) {
        self.gate().is_open = true;
        self.gate_moved.notify_all();
    }

    /// Waits until every request has ended, and lets no client start another.
    pub(super) fn close(&self) -> Result<()> {
        let mut gate = self.gate();
        gate.is_open = false;
        let begin = Instant::now();
        while !gate.inside.is_empty() {
            ensure!(begin.elapsed() < TIMEOUT, "requests of {:?} do not end", gate.inside);
            gate = self
                .gate_moved
                .wait_timeout(gate, Duration::from_millis(100))
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
        Ok(())
    }

    fn end(&self) {
        self.gate().is_over = true;
        self.gate_moved.notify_all();
    }

    /// Waits for a turn; false if there are no more.
    fn enter(&self, member: &Member) -> bool {
        let mut gate = self.gate();
        while !gate.is_open && !gate.is_over {
            gate = self.gate_moved.wait(gate).unwrap_or_else(PoisonError::into_inner);
        }
        if !gate.is_over {
            gate.inside.push(member.name());
        }
        !gate.is_over
    }

    fn leave(&self, member: &Member) {
        let mut gate = self.gate();
        let at = gate.inside.iter().position(|inside| *inside == member.name());
        at.map(|at| gate.inside.swap_remove(at));
        drop(gate);
        self.gate_moved.notify_all();
    }
}

/// A client position, filled by one process after another.
pub(super) struct Member {
    /// Orders for its processes. The salt of the running one is in `salt`.
    orders: Orders,
    pub(super) salt: AtomicU32,
    process: Mutex<Option<Process>>,
}

struct Process {
    child: Child,
    was_killed: bool,
}

impl Member {
    pub(super) fn role(&self) -> Role {
        self.orders.role
    }

    pub(super) fn tenant(&self) -> &str {
        &self.orders.tenant
    }

    pub(super) fn name(&self) -> String {
        format!("a {:?} of {}", self.role(), self.tenant())
    }

    fn process(&self) -> MutexGuard<'_, Option<Process>> {
        self.process.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends a signal to the running process. Returns whether there was one.
    pub(super) fn signal(&self, signal: Signal) -> Result<bool> {
        // The process has not been waited for, so its id is still valid.
        let mut process = self.process();
        let Some(process) = process.as_mut() else { return Ok(false) };
        process.was_killed |= signal == Signal::KILL;
        kill_process(Pid::from_child(&process.child), signal)?;
        Ok(true)
    }
}

/// All clients. Dropping it kills them.
pub(super) struct Crowd {
    pub(super) members: Vec<Arc<Member>>,
    threads: Vec<JoinHandle<()>>,
    shared: Arc<Shared>,
}

impl Crowd {
    pub(super) fn start(shared: &Arc<Shared>, orders: Vec<Orders>) -> Crowd {
        let member = |orders| Arc::new(Member { orders, salt: AtomicU32::new(0), process: Mutex::default() });
        let members: Vec<_> = orders.into_iter().map(member).collect();
        let thread = |member: &Arc<Member>| {
            let (member, shared) = (member.clone(), shared.clone());
            std::thread::spawn(move || {
                if let Err(error) = attend(&member, &shared) {
                    shared.books().complaints.push(format!("{}: {error:#}", member.name()));
                }
            })
        };
        let threads = members.iter().map(thread).collect();
        Crowd { members, threads, shared: shared.clone() }
    }

    /// Whether a process with this salt is still running.
    pub(super) fn has(&self, salt: u32) -> bool {
        self.members.iter().any(|member| member.salt.load(SeqCst) == salt && member.process().is_some())
    }
}

impl Drop for Crowd {
    fn drop(&mut self) {
        self.shared.end();
        self.members.iter().for_each(|member| drop(member.signal(Signal::KILL)));
        self.threads.drain(..).for_each(|thread| drop(thread.join()));
    }
}

/// Gives one client turns until there are no more.
fn attend(member: &Member, shared: &Shared) -> Result<()> {
    let mut rng = Rng::new(member.orders.seed);
    let mut output = None;
    while shared.enter(member) {
        let turn = make_turn(member, shared, &mut rng, &mut output);
        let turn = turn.map(|turn| shared.books().enter(&turn));
        shared.leave(member);
        turn?;
    }
    if let Some(mut process) = member.process().take() {
        process.child.kill()?;
        process.child.wait()?;
    }
    Ok(())
}

fn make_turn(
    member: &Member,
    shared: &Shared,
    rng: &mut Rng,
    output: &mut Option<BufReader<ChildStdout>>,
) -> Result<Turn> {
    let begin = shared.generation.load(SeqCst);
    let lines = match output {
        Some(lines) => lines,
        None => output.insert(start(member, shared, rng.next_u64())?),
    };
    let count = 1 + rng.below(8);
    // A killed process is detected below.
    let _ = member
        .process()
        .as_mut()
        .and_then(|process| process.child.stdin.as_mut())
        .map(|input| writeln!(input, "{count}"));
    let mut entries = Vec::new();
    let is_whole = listen(member, shared, lines, &mut entries)?;
    let mut was_killed = false;
    if !is_whole {
        *output = None;
        let mut process = member.process().take().context("a process that said something")?;
        let status = process.child.wait()?;
        was_killed = process.was_killed;
        ensure!(was_killed, "a client ended by itself, with {status}");
    }
    let generations = (begin, shared.generation.load(SeqCst));
    let (tenant, role, salt) = (member.tenant().to_owned(), member.role(), member.salt.load(SeqCst));
    Ok(Turn { tenant, role, salt, was_killed, generations, entries })
}

fn start(member: &Member, shared: &Shared, seed: u64) -> Result<BufReader<ChildStdout>> {
    let salt = shared.salts.fetch_add(1, SeqCst) + 1;
    let orders = serde_json::to_string(&Orders { seed, salt, ..member.orders.clone() })?;
    let mut child = Command::new(env!("CARGO_BIN_EXE_chaos_client"))
        .arg(orders)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    let output = child.stdout.take().context("piped")?;
    member.salt.store(salt, SeqCst);
    *member.process() = Some(Process { child, was_killed: false });
    Ok(BufReader::new(output))
}

/// Reads a client's reports about a turn; false if the client ended within it.
fn listen(member: &Member, shared: &Shared, lines: &mut impl BufRead, entries: &mut Vec<Entry>) -> Result<bool> {
    let mut open: Option<(u64, u64)> = None;
    let mut text = String::new();
    loop {
        text.clear();
        if lines.read_line(&mut text)? == 0 || !text.ends_with('\n') {
            return Ok(false);
        }
        match (serde_json::from_str(&text)?, open) {
            (Line::Asks(number, request), None) => {
                open = Some((number, shared.disturbances.load(SeqCst)));
                entries.push(Entry { request, outcome: None });
            }
            (Line::Ended(number, outcome, took_us), Some((asked, disturbances))) if number == asked => {
                open = None;
                entries.last_mut().context("it asked")?.outcome = Some(outcome);
                let is_counted = disturbances.is_multiple_of(2) && disturbances == shared.disturbances.load(SeqCst);
                if member.role() == Role::Steady && is_counted {
                    note(shared, took_us);
                }
            }
            (Line::Done, None) => return Ok(true),
            (line, open) => bail!("{line:?} while request {open:?} is open: a request ends once"),
        }
    }
}

fn note(shared: &Shared, took_us: u64) {
    let mut latencies = shared.latencies.lock().unwrap_or_else(PoisonError::into_inner);
    let is_calm = shared.is_calm.load(SeqCst);
    if is_calm { latencies.calm.push(took_us) } else { latencies.disturbed.push(took_us) }
}
