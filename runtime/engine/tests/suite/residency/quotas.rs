//! Constants and memory within tenants' quotas.

use super::*;

/// An engine with ample memory, in which tenant `one` has a quota.
fn start_with_quota(quota: TenantBytes) -> (Engine, EngineHandle, Controls) {
    let memory_quotas = MemoryQuotas { tenants: [(tenant("one"), quota)].into(), ..MemoryQuotas::default() };
    start(1 << 20, EngineConfig { memory_quotas, memory_overcommit: 2.0, ..EngineConfig::default() })
}

fn function_of_one(name: &str) -> FunctionKey {
    FunctionKey { tenant: tenant("one"), name: name.into() }
}

fn submit_to(handle: &EngineHandle, key: FunctionKey, class: Class, input: &[u32]) -> Receiver<Answer> {
    let (send, answer) = channel();
    handle.submit(toy::request_of(key, class, input), Box::new(move |result| drop(send.send(result))));
    answer
}

#[test]
fn a_tenant_takes_turns_within_its_quota_and_others_do_not_wait_for_it() {
    let quota = 256 * 12 + toy::invocation_memory(64);
    let (_engine, handle, device) = start_with_quota(TenantBytes { all: quota, best_effort: u64::MAX });
    let (a, b, other) = (model(1, 10), model(2, 10), model(3, 20));
    assert!(load_for(&handle, function_of_one("a"), &a, Class::BestEffort).expect("room").weights_resident);
    assert!(
        !load_for(&handle, function_of_one("b"), &b, Class::BestEffort).expect("over-commit").weights_resident,
        "its quota has no room for it yet"
    );
    load(&handle, "other", &other, Class::BestEffort).expect("room");
    let input = input(64, 1);
    device.pause();
    let first = submit_to(&handle, function_of_one("a"), Class::BestEffort, &input);
    device.wait_for_launches();
    // One invocation with the same constants, which only lacks memory of its own; one with other
    // constants, which lacks both; and one more urgent than these two.
    let again = submit_to(&handle, function_of_one("a"), Class::BestEffort, &input);
    let second = submit_to(&handle, function_of_one("b"), Class::BestEffort, &input);
    let urgent = submit_to(&handle, function_of_one("b"), Class::RealTime, &input);
    let foreign: Vec<_> = (0..40).map(|_| submit(&handle, "other", Class::BestEffort, &input).1).collect();
    device.resume();
    foreign.iter().for_each(|answer| drop(check(answer, &other, &input)));
    for (answer, constants) in [(&first, &a), (&again, &a), (&second, &b), (&urgent, &b)] {
        check(answer, constants, &input);
    }
    let statistics = handle.statistics();
    let [one] = &statistics.tenants[..] else { panic!("{:?}", statistics.tenants) };
    assert!(one.most.all <= quota && one.most.all > 256 * 10, "{one:?}");
    assert_eq!(function(&handle, "other").memory.state, ConstantState::Device, "constants of other tenants stay");
}

#[test]
fn an_invocation_over_its_quota_is_refused_with_all_figures() {
    let quota = 256 * 10 + toy::invocation_memory(16);
    let best_effort = 256 * 4 + toy::invocation_memory(16);
    let (_engine, handle, _) = start_with_quota(TenantBytes { all: quota, best_effort });
    load_for(&handle, function_of_one("a"), &model(1, 8), Class::RealTime).expect("room");
    let refused = |class, n| {
        let answer = submit_to(&handle, function_of_one("a"), class, &input(n, 1)).recv().expect("an answer");
        let InvokeError::OverQuota { tenant, wanted, constants, free, quota } = answer.expect_err("too much") else {
            panic!()
        };
        assert_eq!((tenant.as_str(), constants), ("one", 8 * 256));
        (wanted, free, quota)
    };
    assert_eq!(refused(Class::RealTime, 1024), (8 * 256 + toy::invocation_memory(1024), quota - 8 * 256, quota));
    assert_eq!(refused(Class::BestEffort, 16), (8 * 256 + toy::invocation_memory(16), quota - 8 * 256, best_effort));
    check(&submit_to(&handle, function_of_one("a"), Class::RealTime, &input(16, 1)), &model(1, 8), &input(16, 1));
    let error =
        load_for(&handle, function_of_one("b"), &model(2, 20), Class::RealTime).expect_err("more than the quota");
    assert!(matches!(error, EngineError::OverQuota { wanted: 5120, quota: told, .. } if told == quota), "{error}");
    let others = quota / 256 * 2 - 8;
    load_for(&handle, function_of_one("c"), &model(3, 9), Class::RealTime).expect("over-commit");
    let error = load_for(&handle, function_of_one("d"), &model(4, others as u32 - 8), Class::RealTime)
        .expect_err("too much for all");
    assert!(matches!(error, EngineError::OverQuota { all, limit, .. } if all > limit && limit == 2 * quota), "{error}");
    // Equal constants are not counted again, and other tenants are not affected.
    load_for(&handle, function_of_one("e"), &model(3, 9), Class::RealTime).expect("nothing new");
    load(&handle, "f", &model(5, 100), Class::RealTime).expect("room on the device");
}

#[test]
fn shared_constants_are_charged_in_full_and_stay_for_the_other_tenant() {
    let quota = 256 * 12 + toy::invocation_memory(16);
    let (_engine, handle, _) = start_with_quota(TenantBytes { all: quota, best_effort: u64::MAX });
    let (shared, own) = (model(1, 10), model(2, 10));
    load(&handle, "a", &shared, Class::BestEffort).expect("room");
    for (name, constants) in [("shared", &shared), ("own", &own)] {
        load_for(&handle, function_of_one(name), constants, Class::BestEffort).expect("room");
    }
    let charged = || handle.statistics().tenants.iter().map(|one| one.used.all).sum::<u64>();
    let idle = toy::invocation_memory(16);
    let input = input(16, 1);
    check(&submit_to(&handle, function_of_one("shared"), Class::BestEffort, &input), &shared, &input);
    assert_eq!(charged(), 10 * 256 + idle, "in full, although another tenant has them too");
    check(&submit_to(&handle, function_of_one("own"), Class::BestEffort, &input), &own, &input);
    assert_eq!(charged(), 10 * 256 + idle);
    // The constants loaded with `own` were reclaimed for the first call. Now they are loaded again,
    // and a charge is dropped, but no constants of others are reclaimed.
    assert_eq!(
        (function(&handle, "a").memory.state, handle.statistics().constants.evictions),
        (ConstantState::Device, 1)
    );
    check(&submit_to(&handle, function_of_one("shared"), Class::BestEffort, &input), &shared, &input);
    assert_eq!(
        (function(&handle, "own").memory.state, handle.statistics().constants.evictions),
        (ConstantState::Host, 2)
    );
}
