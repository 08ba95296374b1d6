//! Usage accounting: one account per function and class, and the totals that unloaded functions
//! leave to their tenant.
//!
//! It accesses no device and no clock: times are passed in. Sums are integers without rounding, so
//! all accounts together add up to the device's work, and their CPU time to what the kernel counted.

use crate::config::FunctionKey;
use crate::cpu_bill::{CpuBill, Divided, Reported};
use crate::error::InvokeError;
use atoll_core::{Class, Nanos, Tenant};
use atoll_device::{Completion, LaunchStatus};
use std::collections::BTreeMap;
use std::ops::AddAssign;

/// The purpose of device memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum MemoryKind {
    /// Constants. Equal ones are stored once, and their bytes divided among the functions that have
    /// them.
    Constants,
    /// Inputs, outputs and intermediate results of running invocations.
    Invocations,
    /// Memory kept from past invocations; reclaimed when memory is short.
    Idle,
}

impl MemoryKind {
    /// All kinds, in the order of [`Usage::memory`].
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
    /// It succeeded.
    Success,
    /// A kernel or the device failed.
    Failed,
    /// It was cancelled, or its function or the engine stopped.
    Cancelled,
    /// Its deadline passed.
    DeadlineExceeded,
    /// Its memory did not fit, its queue was full, or its request was invalid.
    Refused,
}

impl InvocationOutcome {
    /// All outcomes, in the order of [`Usage::invocations`].
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

/// Usage since the engine started, or since the function was loaded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Time that compute units ran blocks, summed over the compute units, in nanoseconds. Divided
    /// by their number it is the device time. As the device, or the executor, reports it.
    pub compute_unit_ns: u128,
    /// This account's part of the CPU time that the kernel counts for the tenant's executors, in
    /// nanoseconds. 0 for GPUs, and if kernels run in the daemon itself.
    pub cpu_ns: u128,
    /// Launches that ended on the device, repeated ones included.
    pub launches: u64,
    /// Launches that exited early.
    pub evicted_launches: u64,
    /// Launches that were ended by force after their invocation was over.
    pub aborted_launches: u64,
    /// Memory, by [`MemoryKind`].
    pub memory: [MemoryUse; MemoryKind::ALL.len()],
    /// Bytes written to the device: inputs and constants.
    pub written_bytes: u64,
    /// Bytes read from the device: outputs.
    pub read_bytes: u64,
    /// Finished invocations, by [`InvocationOutcome`].
    pub invocations: [u64; InvocationOutcome::ALL.len()],
    /// Times invocations were evicted in favour of others.
    pub preemptions: u64,
    /// Times invocations were retried because their executor was lost.
    pub retries: u64,
    /// Times constants had to be loaded onto the device before an invocation could run, the first
    /// time included.
    pub cold_starts: u64,
    /// Cold starts for which some constants had to be read from disk.
    pub disk_cold_starts: u64,
    /// Times constants were reclaimed.
    pub reclaims: u64,
}

impl InvocationOutcome {
    pub(crate) fn of<T>(answer: &Result<T, InvokeError>) -> InvocationOutcome {
        match answer {
            Ok(_) => InvocationOutcome::Success,
            Err(
                InvokeError::Device(_)
                | InvokeError::DeviceLost(_)
                | InvokeError::ExecutorLost(_)
                | InvokeError::Unavailable(_)
                | InvokeError::SessionLost,
            ) => InvocationOutcome::Failed,
            Err(InvokeError::DeadlineExceeded) => InvocationOutcome::DeadlineExceeded,
            Err(
                InvokeError::Cancelled
                | InvokeError::Unloaded
                | InvokeError::UnknownFunction
                | InvokeError::UnknownInstance(_)
                | InvokeError::InstanceRemoved(_)
                | InvokeError::ShuttingDown,
            ) => InvocationOutcome::Cancelled,
            Err(
                InvokeError::QueueFull { .. }
                | InvokeError::ClassRefused(_)
                | InvokeError::BadInput(_)
                | InvokeError::OutOfMemory { .. }
                | InvokeError::OverQuota { .. }
                | InvokeError::OverInstanceMemory { .. }
                | InvokeError::SessionBusy
                | InvokeError::NoSession
                | InvokeError::TooManySessions { .. },
            ) => InvocationOutcome::Refused,
        }
    }
}

impl Usage {
    /// Adds a launch. `busy_ns_max` limits what a device that reports wrong times can bill.
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
        self.cpu_ns += other.cpu_ns;
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

/// Usage of one function, or of a tenant's unloaded functions, in one class.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UsageRow {
    /// The tenant that is billed.
    pub tenant: Tenant,
    /// The function; `None` for the tenant's unloaded functions together.
    pub function: Option<String>,
    /// The class of the invocations. Constants and idle memory count for the function's default
    /// class.
    pub class: Class,
    /// The usage.
    pub usage: Usage,
    /// Whether the CPU time that the kernel counts is billed, instead of the reported time.
    pub is_billed_by_cpu: bool,
}

impl UsageRow {
    /// The billed time, summed over compute units, in nanoseconds.
    pub fn billed_ns(&self) -> u128 {
        if self.is_billed_by_cpu { self.usage.cpu_ns } else { self.usage.compute_unit_ns }
    }
}

/// The account that is charged for some memory, and the purpose of the memory.
pub(crate) type Holder = (AccountId, MemoryKind);

/// An open account.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AccountId(usize);

#[derive(Debug)]
struct Account {
    key: FunctionKey,
    class: Class,
    sum: Sum,
    /// The time up to which memory is counted in `usage`.
    since: [Nanos; MemoryKind::ALL.len()],
}

/// The usage of an account, and the part of its reports that divisions of CPU time have used.
#[derive(Clone, Copy, Debug, Default)]
struct Sum {
    usage: Usage,
    divided: Divided,
}

impl Sum {
    /// The reports that no division has used yet, including those of unfinished invocations.
    fn reported(&self, pending: Option<&Usage>) -> Reported {
        let (unit_ns, launches) = pending.map_or((0, 0), |usage| (usage.compute_unit_ns, usage.launches));
        self.divided.rest(self.usage.compute_unit_ns + unit_ns, self.usage.launches + launches)
    }
}

/// Usage of unfinished invocations, which is in no account yet.
#[derive(Debug, Default)]
pub(crate) struct Pending(BTreeMap<usize, Usage>);

impl Pending {
    /// The sums by account.
    pub(crate) fn of<'a>(usages: impl Iterator<Item = (AccountId, &'a Usage)>) -> Pending {
        let mut sums: BTreeMap<usize, Usage> = BTreeMap::new();
        usages.for_each(|(id, usage)| *sums.entry(id.0).or_default() += usage);
        Pending(sums)
    }
}

/// All accounts.
#[derive(Debug, Default)]
pub(crate) struct Accounts {
    /// Accounts of loaded functions, two each. Free entries are reused, so there are at most twice
    /// as many as functions were ever loaded at once.
    open: Vec<Option<Account>>,
    closed: BTreeMap<(Tenant, Class), Sum>,
    /// CPU time of tenants, if the kernel counts it for their executors.
    bills: BTreeMap<Tenant, CpuBill>,
}

impl Account {
    /// Adds the memory held up to `now`.
    fn settle(&mut self, kind: MemoryKind, now: Nanos) {
        let memory = &mut self.sum.usage.memory[kind as usize];
        let since = std::mem::replace(&mut self.since[kind as usize], now);
        memory.byte_ns += u128::from(memory.bytes) * u128::from(now.0.saturating_sub(since.0));
    }
}

impl Accounts {
    pub(crate) fn open(&mut self, key: &FunctionKey, class: Class, now: Nanos) -> AccountId {
        let account = Account { key: key.clone(), class, sum: Sum::default(), since: [now; MemoryKind::ALL.len()] };
        let free = self.open.iter().position(Option::is_none);
        let at = free.unwrap_or_else(|| {
            self.open.push(None);
            self.open.len() - 1
        });
        self.open[at] = Some(account);
        AccountId(at)
    }

    /// Closes the account of an unloaded function; its usage is added to its tenant's.
    pub(crate) fn close(&mut self, id: AccountId) {
        let Account { key, class, sum, .. } = self.open[id.0].take().expect("an account is closed once");
        assert!(sum.usage.memory.iter().all(|memory| memory.bytes == 0), "function `{key}` is gone and holds memory");
        let closed = self.closed.entry((key.tenant, class)).or_default();
        closed.usage += &sum.usage;
        closed.divided += sum.divided;
    }

    /// The usage of an account, to add to it. Memory is changed with [`Accounts::pass`] and
    /// [`Accounts::set`] only.
    pub(crate) fn of(&mut self, id: AccountId) -> &mut Usage {
        &mut self.account(id).sum.usage
    }

    /// Transfers memory between accounts; `None` is memory that no account is charged for.
    pub(crate) fn pass(&mut self, bytes: u64, from: Option<Holder>, to: Option<Holder>, now: Nanos) {
        if let Some((id, kind)) = from {
            self.release(id, kind, bytes, now);
        }
        if let Some((id, kind)) = to {
            self.hold(id, kind, bytes, now);
        }
    }

    /// Increases the memory that an account holds.
    fn hold(&mut self, id: AccountId, kind: MemoryKind, bytes: u64, now: Nanos) {
        let account = self.account(id);
        account.settle(kind, now);
        account.sum.usage.memory[kind as usize].bytes += bytes;
    }

    /// Decreases the memory that an account holds.
    fn release(&mut self, id: AccountId, kind: MemoryKind, bytes: u64, now: Nanos) {
        let account = self.account(id);
        account.settle(kind, now);
        let held = &mut account.sum.usage.memory[kind as usize].bytes;
        *held = held.checked_sub(bytes).expect("an account releases memory that it holds");
    }

    /// Sets the memory that an account holds.
    pub(crate) fn set(&mut self, id: AccountId, kind: MemoryKind, bytes: u64, now: Nanos) {
        let account = self.account(id);
        account.settle(kind, now);
        account.sum.usage.memory[kind as usize].bytes = bytes;
    }

    /// Divides the CPU time of a tenant's executors among the tenant's accounts. `counted_ns` is the
    /// kernel's count so far, which may be older than the reports by `lag_ns`. Time without launches
    /// goes to the tenant's unloaded functions once the tenant has no others.
    pub(crate) fn bill_cpu(&mut self, tenant: &Tenant, counted_ns: u64, lag_ns: u128, pending: &Pending) {
        let Accounts { open, closed, bills } = self;
        let bill = bills.entry(tenant.clone()).or_default();
        let open = open.iter_mut().enumerate().filter_map(|(at, account)| Some((at, account.as_mut()?)));
        let open = open.filter(|(_, account)| account.key.tenant == *tenant);
        let open = open.map(|(at, account)| (&mut account.sum, pending.0.get(&at)));
        let mut sums: Vec<(&mut Sum, Option<&Usage>)> = open.collect();
        let has_functions = !sums.is_empty();
        let of_tenant = closed.iter_mut().filter(|((owner, _), _)| owner == tenant);
        sums.extend(of_tenant.map(|(_, sum)| (sum, None)));
        let reported: Vec<Reported> = sums.iter().map(|(sum, pending)| sum.reported(*pending)).collect();
        let parts = bill.divide(counted_ns, lag_ns, &reported);
        for ((sum, _), (reported, part)) in sums.iter_mut().zip(reported.into_iter().zip(parts)) {
            sum.usage.cpu_ns += part.cpu_ns;
            sum.divided.add(reported, part);
        }
        let rest = if has_functions { 0 } else { bill.take_open() };
        if rest > 0 {
            closed.entry((tenant.clone(), Class::BestEffort)).or_default().usage.cpu_ns += rest;
        }
    }

    /// All usage up to `now`, by tenant, function and class.
    pub(crate) fn rows(&mut self, pending: &Pending, now: Nanos) -> Vec<UsageRow> {
        let Accounts { open, closed, bills } = self;
        let open = open.iter_mut().enumerate().filter_map(|(at, account)| {
            let account = account.as_mut()?;
            MemoryKind::ALL.into_iter().for_each(|kind| account.settle(kind, now));
            let mut usage = account.sum.usage;
            pending.0.get(&at).into_iter().for_each(|more| usage += more);
            let FunctionKey { tenant, name } = account.key.clone();
            let is_billed_by_cpu = bills.contains_key(&tenant);
            Some(UsageRow { tenant, function: Some(name), class: account.class, usage, is_billed_by_cpu })
        });
        let mut rows: Vec<UsageRow> = open.collect();
        rows.extend(closed.iter().map(|((tenant, class), sum)| UsageRow {
            tenant: tenant.clone(),
            function: None,
            class: *class,
            usage: sum.usage,
            is_billed_by_cpu: bills.contains_key(tenant),
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
