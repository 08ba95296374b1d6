//! Who used how much: one account per function and class, and what functions that are gone have
//! left to their tenant.
//!
//! Nothing here knows a device or a clock. Times are handed in, sums are whole numbers, and nothing
//! is ever rounded or lost: what all accounts say together is what the device did.

use crate::config::FunctionKey;
use crate::error::InvokeError;
use atoll_core::{Class, Nanos, Tenant};
use atoll_device::{Completion, LaunchStatus};
use std::collections::BTreeMap;
use std::ops::AddAssign;

/// What device memory is held for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum MemoryKind {
    /// Constants; equal ones are held once, and their bytes divided among the functions that have
    /// them.
    Constants,
    /// Inputs, outputs and intermediate results of invocations that run.
    Invocations,
    /// What invocations left for the next ones, to be reclaimed whenever somebody needs it.
    Idle,
}

impl MemoryKind {
    /// All of them, in the order of [`Usage::memory`].
    pub const ALL: [MemoryKind; 3] = [MemoryKind::Constants, MemoryKind::Invocations, MemoryKind::Idle];

    /// Its name in metrics and tables.
    pub const fn label(self) -> &'static str {
        match self {
            MemoryKind::Constants => "constants",
            MemoryKind::Invocations => "invocations",
            MemoryKind::Idle => "idle",
        }
    }
}

/// How an invocation that was admitted ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum InvocationOutcome {
    /// It gave a result.
    Success,
    /// A kernel or the device failed.
    Failed,
    /// Nobody wanted it any more, or its function or the engine ended.
    Cancelled,
    /// Its deadline passed.
    DeadlineExceeded,
    /// There was no memory or no place in the queue for it.
    Refused,
}

impl InvocationOutcome {
    /// All of them, in the order of [`Usage::invocations`].
    pub const ALL: [InvocationOutcome; 5] = [
        InvocationOutcome::Success,
        InvocationOutcome::Failed,
        InvocationOutcome::Cancelled,
        InvocationOutcome::DeadlineExceeded,
        InvocationOutcome::Refused,
    ];

    /// Its name in metrics and tables.
    pub const fn label(self) -> &'static str {
        match self {
            InvocationOutcome::Success => "success",
            InvocationOutcome::Failed => "failed",
            InvocationOutcome::Cancelled => "cancelled",
            InvocationOutcome::DeadlineExceeded => "deadline_exceeded",
            InvocationOutcome::Refused => "refused",
        }
    }
}

/// Memory held, now and over time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryUse {
    /// Bytes held now.
    pub bytes: u64,
    /// The integral of the bytes over time: bytes × nanoseconds.
    pub byte_ns: u128,
}

/// What was used since the engine started, or since the function was loaded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// How long compute units ran blocks, summed over the compute units; divided by their number it
    /// is the device's time × the share of it.
    pub compute_unit_ns: u128,
    /// Launches that ended on the device, repeated ones included.
    pub launches: u64,
    /// Those that left early for others.
    pub evicted_launches: u64,
    /// Those that were ended because nobody wanted them any more.
    pub aborted_launches: u64,
    /// Memory, by [`MemoryKind`].
    pub memory: [MemoryUse; MemoryKind::ALL.len()],
    /// Bytes written to the device: inputs and constants.
    pub written_bytes: u64,
    /// Bytes read from the device: outputs.
    pub read_bytes: u64,
    /// Invocations that are over, by [`InvocationOutcome`].
    pub invocations: [u64; InvocationOutcome::ALL.len()],
    /// Times invocations were told to leave the device for others.
    pub preemptions: u64,
    /// Times invocations were run again because the device under them was lost.
    pub retries: u64,
    /// Times constants had to be brought to the device before something could run, the first time
    /// included.
    pub cold_starts: u64,
    /// Of these, times when some of them were on disk only.
    pub disk_cold_starts: u64,
    /// Times constants were taken off the device for others.
    pub reclaims: u64,
}

impl InvocationOutcome {
    pub(crate) fn of<T>(answer: &Result<T, InvokeError>) -> InvocationOutcome {
        match answer {
            Ok(_) => InvocationOutcome::Success,
            Err(InvokeError::Device(_) | InvokeError::Unavailable(_) | InvokeError::SessionLost) => {
                InvocationOutcome::Failed
            }
            Err(InvokeError::DeadlineExceeded) => InvocationOutcome::DeadlineExceeded,
            Err(
                InvokeError::Cancelled
                | InvokeError::Unloaded
                | InvokeError::UnknownFunction
                | InvokeError::ShuttingDown,
            ) => InvocationOutcome::Cancelled,
            Err(
                InvokeError::QueueFull { .. }
                | InvokeError::ClassRefused(_)
                | InvokeError::BadInput(_)
                | InvokeError::OutOfMemory { .. }
                | InvokeError::OverQuota { .. }
                | InvokeError::SessionBusy
                | InvokeError::NoSession
                | InvokeError::TooManySessions { .. },
            ) => InvocationOutcome::Refused,
        }
    }
}

impl Usage {
    /// Adds a launch. `busy_ns_max` bounds what a device that does not tell the truth can put on
    /// the bill.
    pub fn add_launch(&mut self, completion: &Completion, busy_ns_max: u64) {
        self.compute_unit_ns += u128::from(completion.busy_ns.min(busy_ns_max));
        self.launches += 1;
        self.evicted_launches += u64::from(completion.status == LaunchStatus::Evicted);
        self.aborted_launches += u64::from(completion.status == LaunchStatus::Aborted);
    }
}

impl AddAssign<&Usage> for Usage {
    fn add_assign(&mut self, other: &Usage) {
        self.compute_unit_ns += other.compute_unit_ns;
        self.launches += other.launches;
        self.evicted_launches += other.evicted_launches;
        self.aborted_launches += other.aborted_launches;
        for (memory, more) in self.memory.iter_mut().zip(&other.memory) {
            memory.bytes += more.bytes;
            memory.byte_ns += more.byte_ns;
        }
        self.written_bytes += other.written_bytes;
        self.read_bytes += other.read_bytes;
        self.invocations.iter_mut().zip(other.invocations).for_each(|(sum, more)| *sum += more);
        self.preemptions += other.preemptions;
        self.retries += other.retries;
        self.cold_starts += other.cold_starts;
        self.disk_cold_starts += other.disk_cold_starts;
        self.reclaims += other.reclaims;
    }
}

/// What one function, or a tenant's functions that are gone, used in one class.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UsageRow {
    /// Who is billed.
    pub tenant: Tenant,
    /// The function; `None` for all of the tenant's that are no longer loaded.
    pub function: Option<String>,
    /// The class of the invocations; constants and idle memory count in the function's own.
    pub class: Class,
    /// What it used.
    pub usage: Usage,
}

/// Who holds some memory, and what for.
pub(crate) type Holder = (AccountId, MemoryKind);

/// Names an open account.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AccountId(usize);

#[derive(Debug)]
struct Account {
    key: FunctionKey,
    class: Class,
    usage: Usage,
    /// Up to when memory is counted in `usage`.
    since: [Nanos; MemoryKind::ALL.len()],
}

/// All accounts.
#[derive(Debug, Default)]
pub(crate) struct Accounts {
    /// Of functions that are loaded; a place that is free is used again, so there are never more
    /// than functions were loaded at once, twice.
    open: Vec<Option<Account>>,
    closed: BTreeMap<(Tenant, Class), Usage>,
}

impl Account {
    /// Counts memory up to now.
    fn settle(&mut self, kind: MemoryKind, now: Nanos) {
        let memory = &mut self.usage.memory[kind as usize];
        let since = std::mem::replace(&mut self.since[kind as usize], now);
        memory.byte_ns += u128::from(memory.bytes) * u128::from(now.0.saturating_sub(since.0));
    }
}

impl Accounts {
    pub(crate) fn open(&mut self, key: &FunctionKey, class: Class, now: Nanos) -> AccountId {
        let account = Account { key: key.clone(), class, usage: Usage::default(), since: [now; MemoryKind::ALL.len()] };
        let free = self.open.iter().position(Option::is_none);
        let at = free.unwrap_or_else(|| {
            self.open.push(None);
            self.open.len() - 1
        });
        self.open[at] = Some(account);
        AccountId(at)
    }

    /// A function is gone: what it used stays with its tenant.
    pub(crate) fn close(&mut self, id: AccountId) {
        let Account { key, class, usage, .. } = self.open[id.0].take().expect("an account is closed once");
        assert!(usage.memory.iter().all(|memory| memory.bytes == 0), "function `{key}` is gone and holds memory");
        *self.closed.entry((key.tenant, class)).or_default() += &usage;
    }

    /// An account, to add to it. Its memory is changed by [`Accounts::pass`] and [`Accounts::set`].
    pub(crate) fn of(&mut self, id: AccountId) -> &mut Usage {
        &mut self.account(id).usage
    }

    /// Memory changes hands; nobody's is that of the device.
    pub(crate) fn pass(&mut self, bytes: u64, from: Option<Holder>, to: Option<Holder>, now: Nanos) {
        if let Some((id, kind)) = from {
            self.let_go(id, kind, bytes, now);
        }
        if let Some((id, kind)) = to {
            self.hold(id, kind, bytes, now);
        }
    }

    /// From now on it holds more.
    fn hold(&mut self, id: AccountId, kind: MemoryKind, bytes: u64, now: Nanos) {
        let account = self.account(id);
        account.settle(kind, now);
        account.usage.memory[kind as usize].bytes += bytes;
    }

    /// From now on it holds less.
    fn let_go(&mut self, id: AccountId, kind: MemoryKind, bytes: u64, now: Nanos) {
        let account = self.account(id);
        account.settle(kind, now);
        let held = &mut account.usage.memory[kind as usize].bytes;
        *held = held.checked_sub(bytes).expect("what is let go was held");
    }

    /// From now on it holds so much.
    pub(crate) fn set(&mut self, id: AccountId, kind: MemoryKind, bytes: u64, now: Nanos) {
        let account = self.account(id);
        account.settle(kind, now);
        account.usage.memory[kind as usize].bytes = bytes;
    }

    /// What everybody used up to now, by tenant, function and class. `pending` is what invocations
    /// that are not over have used and is in no account yet.
    pub(crate) fn rows<'a>(
        &mut self,
        pending: impl Iterator<Item = (AccountId, &'a Usage)>,
        now: Nanos,
    ) -> Vec<UsageRow> {
        let mut not_over: BTreeMap<usize, Usage> = BTreeMap::new();
        pending.for_each(|(id, usage)| *not_over.entry(id.0).or_default() += usage);
        let open = self.open.iter_mut().enumerate().filter_map(|(at, account)| {
            let account = account.as_mut()?;
            MemoryKind::ALL.into_iter().for_each(|kind| account.settle(kind, now));
            let mut usage = account.usage;
            not_over.get(&at).into_iter().for_each(|more| usage += more);
            let FunctionKey { tenant, name } = account.key.clone();
            Some(UsageRow { tenant, function: Some(name), class: account.class, usage })
        });
        let mut rows: Vec<UsageRow> = open.collect();
        let closed = self.closed.iter();
        rows.extend(closed.map(|((tenant, class), usage)| UsageRow {
            tenant: tenant.clone(),
            function: None,
            class: *class,
            usage: *usage,
        }));
        rows.sort_by(|a, b| (&a.tenant, &a.function, a.class).cmp(&(&b.tenant, &b.function, b.class)));
        rows
    }

    fn account(&mut self, id: AccountId) -> &mut Account {
        self.open[id.0].as_mut().expect("an account outlives what is charged to it")
    }
}

#[cfg(test)]
mod tests;
