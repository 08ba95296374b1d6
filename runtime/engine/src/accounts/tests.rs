use super::*;
use atoll_core::LaunchId;
use proptest::prelude::*;

/// An event in the life of the accounts.
#[derive(Clone, Debug)]
enum Step {
    Open {
        tenant: u8,
        class: bool,
    },
    Close(prop::sample::Index),
    Hold(prop::sample::Index, usize, u32),
    Release(prop::sample::Index, usize),
    Run(prop::sample::Index, u32),
    /// The kernel counts more CPU time of a tenant.
    Cpu(u8, u32),
    Look,
}

fn step() -> impl Strategy<Value = Step> {
    let account = any::<prop::sample::Index>;
    prop_oneof![
        (0..3_u8, any::<bool>()).prop_map(|(tenant, class)| Step::Open { tenant, class }),
        account().prop_map(Step::Close),
        (account(), 0..3_usize, any::<u32>()).prop_map(|(at, kind, bytes)| Step::Hold(at, kind, bytes)),
        (account(), 0..3_usize).prop_map(|(at, kind)| Step::Release(at, kind)),
        (account(), any::<u32>()).prop_map(|(at, ns)| Step::Run(at, ns)),
        (0..3_u8, any::<u32>()).prop_map(|(tenant, ns)| Step::Cpu(tenant, ns)),
        Just(Step::Look),
    ]
}

fn total(rows: &[UsageRow], tenant: Option<&Tenant>) -> Usage {
    let mut sum = Usage::default();
    rows.iter().filter(|row| tenant.is_none_or(|tenant| row.tenant == *tenant)).for_each(|row| sum += &row.usage);
    sum
}

/// Memory as one number: bytes and their integral over all kinds.
fn memory(usage: &Usage) -> (u128, u128) {
    usage
        .memory
        .iter()
        .fold((0, 0), |(bytes, byte_ns), memory| (bytes + u128::from(memory.bytes), byte_ns + memory.byte_ns))
}

proptest! {
    #[test]
    fn all_accounts_add_up_to_what_happened(
        life in prop::collection::vec((step(), 0..1_000_000_u64), 1..200),
    ) {
        let (mut accounts, mut now) = (Accounts::default(), Nanos(0));
        // The open accounts, with the memory that each holds.
        let mut open: Vec<(AccountId, [Vec<u64>; 3])> = Vec::new();
        let (mut busy_ns, mut byte_ns, mut bytes) = (0_u128, 0_u128, 0_u128);
        let mut seen: BTreeMap<Tenant, Usage> = BTreeMap::new();
        let mut counted: BTreeMap<Tenant, u64> = BTreeMap::new();
        for (step, wait) in life {
            now.0 += wait;
            byte_ns += bytes * u128::from(wait);
            match step {
                Step::Open { tenant, class } => {
                    let tenant: Tenant = format!("t{tenant}").parse().expect("a name");
                    let class = if class { Class::RealTime } else { Class::BestEffort };
                    let key = FunctionKey { tenant, name: "f".into() };
                    open.push((accounts.open(&key, class, now), Default::default()));
                }
                Step::Close(at) if !open.is_empty() => {
                    let (id, held) = open.swap_remove(at.index(open.len()));
                    for (kind, held) in MemoryKind::ALL.into_iter().zip(held) {
                        held.iter().for_each(|&held| accounts.release(id, kind, held, now));
                        bytes -= held.iter().map(|&held| u128::from(held)).sum::<u128>();
                    }
                    accounts.close(id);
                }
                Step::Hold(at, kind, more) if !open.is_empty() => {
                    let (id, held) = at.get_mut(&mut open);
                    accounts.hold(*id, MemoryKind::ALL[kind], more.into(), now);
                    held[kind].push(more.into());
                    bytes += u128::from(more);
                }
                Step::Release(at, kind) if !open.is_empty() => {
                    let (id, held) = at.get_mut(&mut open);
                    if let Some(less) = held[kind].pop() {
                        accounts.release(*id, MemoryKind::ALL[kind], less, now);
                        bytes -= u128::from(less);
                    }
                }
                Step::Run(at, ns) if !open.is_empty() => {
                    accounts.of(at.get(&open).0).compute_unit_ns += u128::from(ns);
                    busy_ns += u128::from(ns);
                }
                Step::Cpu(tenant, ns) => {
                    let tenant: Tenant = format!("t{tenant}").parse().expect("a name");
                    let sum = counted.entry(tenant.clone()).or_default();
                    *sum += u64::from(ns);
                    accounts.bill_cpu(&tenant, *sum, 1_000, &Pending::default());
                }
                _ => {}
            }
            let rows = accounts.rows(&Pending::default(), now);
            let sum = total(&rows, None);
            prop_assert_eq!((sum.compute_unit_ns, memory(&sum)), (busy_ns, (bytes, byte_ns)));
            // A tenant's usage never decreases, whatever happens to its functions.
            for row in &rows {
                let (before, after) = (seen.entry(row.tenant.clone()).or_default(), total(&rows, Some(&row.tenant)));
                prop_assert!(after.compute_unit_ns >= before.compute_unit_ns && memory(&after).1 >= memory(before).1);
                let most = counted.get(&row.tenant).copied().unwrap_or(0);
                prop_assert!(after.cpu_ns >= before.cpu_ns && after.cpu_ns <= u128::from(most));
                *before = after;
            }
        }
        // Once a tenant has no functions, all that the kernel counted for it is in its accounts.
        open.into_iter().for_each(|(id, held)| {
            for (kind, held) in MemoryKind::ALL.into_iter().zip(held) {
                held.iter().for_each(|&held| accounts.release(id, kind, held, now));
            }
            accounts.close(id);
        });
        for (tenant, counted) in counted {
            accounts.bill_cpu(&tenant, counted, 1_000, &Pending::default());
            let rows = accounts.rows(&Pending::default(), now);
            prop_assert_eq!(total(&rows, Some(&tenant)).cpu_ns, u128::from(counted));
            prop_assert!(rows.iter().all(|row| row.is_billed_by_cpu == accounts.bills.contains_key(&row.tenant)));
        }
    }
}

#[test]
fn cpu_time_is_divided_among_functions_also_those_that_run_and_those_that_are_gone() {
    let mut accounts = Accounts::default();
    let tenant = Tenant::default();
    let [a, b] = ["a", "b"].map(|name| accounts.open(&FunctionKey::local(name), Class::RealTime, Nanos(0)));
    accounts.of(a).compute_unit_ns = 300;
    let running = Usage { compute_unit_ns: 100, launches: 1, ..Usage::default() };
    accounts.bill_cpu(&tenant, 800, 0, &Pending::of([(b, &running)].into_iter()));
    let cpu = |accounts: &mut Accounts| {
        let rows = accounts.rows(&Pending::default(), Nanos(0));
        rows.into_iter().map(|row| (row.function.clone(), row.billed_ns())).filter(|row| row.1 > 0).collect::<Vec<_>>()
    };
    let named = |name: &str, ns| (Some(name.to_owned()), ns);
    assert_eq!(cpu(&mut accounts), [named("a", 600), named("b", 200)]);
    // What ran is in the account now, and not divided by again; what is unloaded still has its part.
    *accounts.of(b) += &running;
    accounts.of(a).compute_unit_ns += 50;
    accounts.of(b).compute_unit_ns += 50;
    accounts.close(a);
    accounts.bill_cpu(&tenant, 1000, 0, &Pending::default());
    assert_eq!(cpu(&mut accounts), [(None, 700), named("b", 300)]);
    // Another tenant's executors are not counted: its reports are the bill.
    let other = FunctionKey { tenant: "t".parse().expect("a name"), name: "f".into() };
    let other = accounts.open(&other, Class::BestEffort, Nanos(0));
    accounts.of(other).compute_unit_ns = 5;
    assert_eq!(cpu(&mut accounts), [(None, 700), named("b", 300), named("f", 5)]);
}

#[test]
fn an_unloaded_function_leaves_its_usage_to_its_tenant() {
    let mut accounts = Accounts::default();
    let key = FunctionKey::local("f");
    let id = accounts.open(&key, Class::RealTime, Nanos(10));
    accounts.hold(id, MemoryKind::Idle, 100, Nanos(10));
    accounts.set(id, MemoryKind::Constants, 7, Nanos(20));
    accounts.set(id, MemoryKind::Constants, 0, Nanos(30));
    accounts.release(id, MemoryKind::Idle, 100, Nanos(40));
    accounts.of(id).cold_starts = 1;
    accounts.close(id);
    let again = accounts.open(&key, Class::RealTime, Nanos(50));
    assert_eq!(again, id, "the place is used again");
    let rows = accounts.rows(&Pending::default(), Nanos(60));
    let [gone, loaded] = rows.as_slice() else { panic!("{rows:?}") };
    assert_eq!((gone.function.as_deref(), gone.usage.cold_starts), (None, 1));
    assert_eq!(gone.usage.memory.map(|memory| memory.byte_ns), [70, 0, 3000]);
    assert_eq!((loaded.function.as_deref(), loaded.usage), (Some("f"), Usage::default()));
}

#[test]
fn billed_compute_time_is_limited_to_what_was_possible() {
    let mut usage = Usage::default();
    let launch = |status, busy_ns| Completion { busy_ns, ..Completion::unrun(LaunchId(0), status) };
    usage.add_launch(&launch(LaunchStatus::Complete, 70), 100);
    usage.add_launch(&launch(LaunchStatus::Aborted, u64::MAX), 100);
    assert_eq!((usage.compute_unit_ns, usage.launches, usage.aborted_launches), (170, 2, 1));
}
