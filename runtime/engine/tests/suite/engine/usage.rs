//! Usage accounting, and runs of random events that have to add up.

use super::*;

/// The sum of some usage rows.
fn bill(statistics: &EngineStatistics, which: impl Fn(&UsageRow) -> bool) -> Usage {
    statistics.usage.iter().filter(|row| which(row)).fold(Usage::default(), |mut sum, row| {
        sum += &row.usage;
        sum
    })
}

#[test]
fn tenants_are_billed_for_what_their_functions_used() {
    let setup = setup(EngineConfig::default());
    let tenants: [Tenant; 2] = ["a", "b"].map(|name| name.parse().expect("a name"));
    let key = |tenant: &Tenant| FunctionKey { tenant: tenant.clone(), name: "f".into() };
    for tenant in &tenants {
        setup
            .handle
            .load(Arc::clone(&setup.bundle), FunctionOptions { key: key(tenant), ..options("f") })
            .expect("a function");
    }
    let rows = setup.handle.statistics().usage;
    let names: Vec<_> = rows.iter().map(|row| (row.tenant.as_str(), row.function.as_deref(), row.class)).collect();
    let classes = |tenant| [Class::RealTime, Class::BestEffort].map(|class| (tenant, Some("f"), class));
    assert_eq!(names, ["a", "b", "local"].map(classes).concat(), "rows exist before anything ran");
    let constants = |row: &UsageRow| row.usage.memory[MemoryKind::Constants as usize].bytes;
    assert_eq!(rows.iter().map(constants).collect::<Vec<_>>(), [0, 85, 0, 85, 0, 86], "the constants exist once");

    for (tenant, count) in tenants.iter().zip([3, 5]) {
        for seed in 0..count {
            let request =
                InvocationRequest { function: key(tenant), ..request("f", Class::RealTime, &input(100, seed)) };
            submit(&setup.handle, request).result();
        }
    }
    let statistics = setup.handle.statistics();
    let [a, b, local] = ["a", "b", "local"].map(|name| bill(&statistics, |row| row.tenant.as_str() == name));
    assert_eq!((a.invocations, b.invocations, local.invocations), ([3, 0, 0, 0, 0], [5, 0, 0, 0, 0], [0; 5]));
    assert_eq!(
        (a.written_bytes, a.read_bytes, local.written_bytes, a.cold_starts, local.cold_starts),
        (1200, 1200, 32, 0, 1)
    );
    assert!(a.launches == 3 * 13 && b.launches == 5 * 13 && a.compute_unit_ns > 0 && local.compute_unit_ns == 0);
    assert_eq!(Some(a.compute_unit_ns + b.compute_unit_ns), statistics.device.busy_ns.map(u128::from));
    let held: u64 = bill(&statistics, |_| true).memory.iter().map(|memory| memory.bytes).sum();
    assert_eq!(held, statistics.device.memory_used_bytes);

    // The usage of an unloaded function stays with its tenant, and the others share its constants.
    setup.handle.unload(&key(&tenants[0])).expect("unloaded");
    let statistics = setup.handle.statistics();
    let gone = bill(&statistics, |row| row.tenant == tenants[0]);
    assert_eq!(
        (gone.compute_unit_ns, gone.invocations, gone.memory.map(|memory| memory.bytes)),
        (a.compute_unit_ns, a.invocations, [0; 3])
    );
    assert!(
        gone.memory[MemoryKind::Idle as usize].byte_ns > 0 && gone.memory[MemoryKind::Invocations as usize].byte_ns > 0
    );
    let rows = statistics.usage;
    assert_eq!(rows.iter().map(constants).sum::<u64>(), 256);
}

#[test]
fn random_events_leave_no_resources_behind() {
    let mut results = 0;
    for seed in 0..8 {
        let mut rng = atoll_core::rng::Rng::new(seed);
        let memory_limit_bytes = Some(256 * 2 + 4 * toy::invocation_memory(200));
        let policy = policies_for_both_classes().cycle().nth(seed as usize).expect("a policy").name.into();
        let setup =
            setup(EngineConfig { policy, memory_limit_bytes, evict_at_random: Some(seed), ..EngineConfig::default() });
        let (mut pending, results_before): (Vec<Pending>, _) = (Vec::new(), results);
        for step in 0..120 {
            let name = if rng.one_in(3) { "g" } else { "f" };
            match rng.below(12) {
                0..2 => drop(setup.handle.load(Arc::clone(&setup.bundle), options(name))),
                2 => drop(setup.handle.unload(&FunctionKey::local(name))),
                3 if !pending.is_empty() => setup.handle.cancel(pending[rng.below(pending.len() as u64) as usize].id),
                _ => {
                    let class = if rng.one_in(3) { Class::RealTime } else { Class::BestEffort };
                    let mut request = request(name, class, &input(rng.below(200) as u32, step));
                    request.deadline = rng.one_in(6).then(|| Duration::from_micros(rng.below(20_000)));
                    pending.push(submit(&setup.handle, request));
                }
            }
        }
        for pending in &pending {
            match pending
                .answers
                .recv_timeout(Duration::from_secs(20))
                .unwrap_or_else(|e| panic!("seed {seed}: no answer: {e}"))
            {
                Ok(result) => {
                    let expected = toy::expected(&pending.input);
                    assert_eq!(result.outputs[0].bytes, expected, "seed {seed}");
                    results += 1;
                }
                Err(InvokeError::Device(text)) => panic!("seed {seed}: {text}"),
                Err(_) => {}
            }
        }
        for name in ["f", "g"] {
            drop(setup.handle.unload(&FunctionKey::local(name)));
        }
        let statistics = setup.handle.statistics();
        let device = &statistics.device;
        assert_eq!((device.memory_used_bytes, setup.device.modules()), (0, 0), "seed {seed}");
        assert!(Some(device.memory_used_bytes_max) <= memory_limit_bytes);
        let bill = bill(&statistics, |_| true);
        assert_eq!(
            Some(bill.compute_unit_ns),
            device.busy_ns.map(u128::from),
            "seed {seed}: the usage differs from what the device did"
        );
        assert!(
            statistics.usage.iter().all(|row| row.function.is_none())
                && bill.memory.iter().all(|memory| memory.bytes == 0)
        );
        assert_eq!(bill.invocations[InvocationOutcome::Success as usize], results - results_before, "seed {seed}");
    }
    assert!(results > 100, "{results} results are too few to prove anything");
}
