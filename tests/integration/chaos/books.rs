//! Records the outcomes that clients report, checks whether they are permitted, and derives what
//! the daemon has promised.

use atoll_client::{Digest, RefusalKind};
use atoll_tests::chaos::{Outcome, Request, Role};
use std::collections::{BTreeMap, BTreeSet};

/// What is known about an object or a function after the last request that changed it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Promise {
    /// It must exist; the process with this salt was told so.
    Kept(u32),
    /// The outcome of the last change is unknown.
    Unknown,
}

/// One request.
pub(super) struct Entry {
    pub(super) request: Request,
    /// Its outcome; `None` if the client was killed before.
    pub(super) outcome: Option<Outcome>,
}

/// Consecutive requests of one client process.
pub(super) struct Turn {
    pub(super) tenant: String,
    pub(super) role: Role,
    pub(super) salt: u32,
    /// Whether the client was killed during the turn.
    pub(super) was_killed: bool,
    /// Generations of the daemon at its beginning and end; odd means that no daemon was running.
    pub(super) generations: (u64, u64),
    pub(super) entries: Vec<Entry>,
}

impl Turn {
    /// Whether the same daemon was running all the time.
    fn is_undisturbed(&self) -> bool {
        self.generations.0 == self.generations.1 && self.generations.0.is_multiple_of(2)
    }

    /// The last daemon that may have counted requests of this turn.
    fn last_generation(&self) -> u64 {
        self.generations.1.next_multiple_of(2)
    }
}

/// Number of calls that a daemon must have counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Calls {
    /// It returned results for these.
    pub(super) right: u64,
    /// It may have returned results for these as well.
    pub(super) unknown: u64,
}

/// Everything that clients reported.
#[derive(Default)]
pub(super) struct Books {
    /// Violations.
    pub(super) complaints: Vec<String>,
    /// Executors that were killed or stopped.
    pub(super) harmed: BTreeSet<u32>,
    /// Whether only failures caused by a request's own kernels are permitted.
    pub(super) is_strict: bool,
    /// By generation and tenant.
    calls: BTreeMap<(u64, String), Calls>,
    pub(super) objects: BTreeMap<(String, Digest), Promise>,
    pub(super) functions: BTreeMap<(String, String), Promise>,
    /// Outcomes of requests, for the summary.
    pub(super) outcomes: BTreeMap<&'static str, u64>,
}

impl Books {
    pub(super) fn calls(&self, generation: u64, tenant: &str) -> Calls {
        self.calls.get(&(generation, tenant.to_owned())).copied().unwrap_or_default()
    }

    /// Records successful calls of the test itself.
    pub(super) fn add_calls(&mut self, generation: u64, tenant: &str, count: u64) {
        self.calls.entry((generation, tenant.to_owned())).or_default().right += count;
    }

    /// Records a turn.
    pub(super) fn enter(&mut self, turn: &Turn) {
        for entry in &turn.entries {
            if let Err(complaint) = self.judge(turn, entry) {
                let (tenant, role) = (&turn.tenant, turn.role);
                self.complaints.push(format!(
                    "{tenant} ({role:?}, generations {:?}), {:?}: {complaint}",
                    turn.generations, entry.request
                ));
            }
            self.count(turn, entry);
            self.promise(turn, entry);
        }
    }

    /// Checks whether an outcome is permitted.
    fn judge(&self, turn: &Turn, entry: &Entry) -> Result<(), String> {
        match &entry.outcome {
            Some(Outcome::Right) => Ok(()),
            None if turn.was_killed => Ok(()),
            None => Err("no answer".into()),
            Some(Outcome::Wrong(how)) => Err(format!("a wrong answer: {how}")),
            Some(Outcome::Lost(_)) if !turn.is_undisturbed() => Ok(()),
            Some(Outcome::Lost(how)) => Err(format!("the connection was lost although the daemon was running: {how}")),
            Some(Outcome::Refused(kind, message)) if self.is_named(turn, *kind, message) => Ok(()),
            Some(Outcome::Refused(kind, message)) => {
                Err(format!("refused without a known cause, as {kind:?}: {message}"))
            }
        }
    }

    /// Whether a refusal has a known cause.
    fn is_named(&self, turn: &Turn, kind: RefusalKind, message: &str) -> bool {
        match kind {
            // The daemon has just been started.
            RefusalKind::Busy | RefusalKind::NotFound if !turn.is_undisturbed() => true,
            RefusalKind::Function | RefusalKind::Deadline if turn.role.is_hostile() => true,
            RefusalKind::Function => !self.is_strict && self.is_loss(turn.role, message),
            _ => false,
        }
    }

    /// Whether a message names an executor that was killed or stopped.
    fn is_loss(&self, role: Role, message: &str) -> bool {
        let number = |text: &str| text.chars().take_while(char::is_ascii_digit).collect::<String>().parse::<u32>().ok();
        let mut named = message.split("executor ").skip(1).filter_map(number).peekable();
        let are_ours = named.peek().is_some() && named.all(|pid| self.harmed.contains(&pid));
        role != Role::Steady && are_ours
    }

    fn count(&mut self, turn: &Turn, entry: &Entry) {
        *self.outcomes.entry(label(entry.outcome.as_ref())).or_default() += 1;
        let Request::Run { functions, .. } = entry.request else { return };
        let calls = self.calls.entry((turn.last_generation(), turn.tenant.clone())).or_default();
        match &entry.outcome {
            Some(Outcome::Right) if turn.is_undisturbed() => calls.right += u64::from(functions),
            Some(Outcome::Refused(..)) => {}
            _ => calls.unknown += u64::from(functions),
        }
    }

    fn promise(&mut self, turn: &Turn, entry: &Entry) {
        let (name, is_wanted) = match &entry.request {
            Request::Put(digest) | Request::Run { keep: Some(digest), .. } => (Named::Object(*digest), true),
            Request::Drop(digest) => (Named::Object(*digest), false),
            Request::Deploy(name) => (Named::Function(name.clone()), true),
            Request::Remove(name) => (Named::Function(name.clone()), false),
            Request::Run { keep: None, .. } | Request::Get(_) | Request::Attack(_) => return,
        };
        let promise = match entry.outcome {
            Some(Outcome::Right) => is_wanted.then_some(Promise::Kept(turn.salt)),
            // Nothing has changed.
            Some(Outcome::Refused(..)) => return,
            _ => Some(Promise::Unknown),
        };
        match name {
            Named::Object(digest) => set(&mut self.objects, (turn.tenant.clone(), digest), promise),
            Named::Function(name) => set(&mut self.functions, (turn.tenant.clone(), name), promise),
        }
    }
}

enum Named {
    Object(Digest),
    Function(String),
}

fn set<K: Ord>(promises: &mut BTreeMap<K, Promise>, key: K, promise: Option<Promise>) {
    match promise {
        Some(promise) => promises.insert(key, promise),
        None => promises.remove(&key),
    };
}

fn label(outcome: Option<&Outcome>) -> &'static str {
    match outcome {
        Some(Outcome::Right) => "right",
        Some(Outcome::Wrong(_)) => "wrong",
        Some(Outcome::Refused(RefusalKind::Function, _)) => "failed with the cause",
        Some(Outcome::Refused(..)) => "refused",
        Some(Outcome::Lost(_)) => "lost with the daemon",
        None => "killed with the client",
    }
}
