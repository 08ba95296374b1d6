use super::*;
use crate::residency::RESIDENCY_POLICIES;

const DEVICE_BYTES: u64 = 1 << 20;

fn memory(overcommit: f64, quotas: MemoryQuotas) -> Memory {
    let spec = MemorySpec {
        memory_bytes: DEVICE_BYTES,
        constants_base: DeviceOffset(1 << 40),
        constants_bytes: DEVICE_BYTES,
        constants_granule: 256,
        limit_bytes: None,
        overcommit,
    };
    Memory::new(&spec, Residency::new((RESIDENCY_POLICIES[0].make)()), quotas)
}

fn unlimited() -> MemoryQuotas {
    MemoryQuotas { default: TenantBytes::UNLIMITED, tenants: BTreeMap::new() }
}

/// Registers a function with one constant.
fn try_register(memory: &mut Memory, function: u64, tenant: &Tenant, bytes: u64) -> Result<(), LoadRefusal> {
    let constants = vec![ConstantSpec { digest: [function as u8; 32], bytes, offset: 0 }];
    let (function, tenant) = (FunctionId(function), tenant.clone());
    memory.register(FunctionSpec { function, tenant, class: Class::BestEffort, constants }).map(|_| ())
}

fn register(memory: &mut Memory, function: u64, tenant: &Tenant) {
    try_register(memory, function, tenant, 256).expect("room");
}

fn tenant(name: &str) -> Tenant {
    name.parse().expect("a name")
}

#[test]
fn a_tenant_is_known_as_long_as_it_has_functions() {
    let mut memory = memory(1.0, unlimited());
    let tenants = ["a", "b"].map(tenant);
    register(&mut memory, 1, &tenants[0]);
    register(&mut memory, 2, &tenants[0]);
    register(&mut memory, 3, &tenants[1]);
    let known = |memory: &Memory| tenants.clone().map(|tenant| memory.tenants.contains_key(&tenant));
    for (function, left) in [(1, [true, true]), (2, [false, true]), (3, [false, false])] {
        memory.handle(Nanos(function), Event::Unloaded { function: FunctionId(function) });
        assert_eq!(known(&memory), left, "after function {function} was unloaded");
    }
}

#[test]
fn a_function_may_be_as_large_as_the_device() {
    let mut memory = memory(3.0, unlimited());
    let free = DEVICE_BYTES;
    assert_eq!(
        try_register(&mut memory, 1, &tenant("a"), DEVICE_BYTES + 256),
        Err(LoadRefusal::OutOfMemory { wanted: DEVICE_BYTES + 256, free, total: DEVICE_BYTES })
    );
    assert_eq!(try_register(&mut memory, 2, &tenant("a"), DEVICE_BYTES), Ok(()));
}

#[test]
fn functions_may_have_constants_up_to_the_overcommit_limit() {
    let mut memory = memory(1.5, unlimited());
    let (half, limit) = (DEVICE_BYTES / 2, DEVICE_BYTES / 2 * 3);
    assert_eq!(try_register(&mut memory, 1, &tenant("a"), DEVICE_BYTES), Ok(()));
    assert_eq!(
        try_register(&mut memory, 2, &tenant("b"), half + 256),
        Err(LoadRefusal::OverCommitted { wanted: half + 256, all: limit + 256, limit, total: DEVICE_BYTES })
    );
    assert_eq!(try_register(&mut memory, 3, &tenant("b"), half), Ok(()));
    assert_eq!(try_register(&mut memory, 3 + 256, &tenant("a"), half), Ok(()), "equal constants count once");
}

#[test]
fn a_tenant_may_have_constants_up_to_its_quota() {
    let quota = DEVICE_BYTES / 4;
    let mut memory =
        memory(2.0, MemoryQuotas { default: TenantBytes { all: quota, best_effort: quota }, ..unlimited() });
    let a = tenant("a");
    let refusal = |wanted, all| Err(LoadRefusal::OverQuota { wanted, free: quota, quota, all, limit: 2 * quota });
    assert_eq!(try_register(&mut memory, 1, &a, quota + 256), refusal(quota + 256, quota + 256));
    assert_eq!(try_register(&mut memory, 2, &a, quota), Ok(()));
    assert_eq!(try_register(&mut memory, 3, &a, quota - 256), Ok(()));
    assert_eq!(try_register(&mut memory, 4, &a, 512), refusal(512, 2 * quota + 256));
    assert_eq!(try_register(&mut memory, 5, &a, 256), Ok(()));
    assert_eq!(try_register(&mut memory, 5 + 256, &a, 256), Ok(()), "equal constants count once");
    assert_eq!(try_register(&mut memory, 6, &tenant("b"), quota), Ok(()), "another tenant's quota");
}

/// Sends an event and carries out the actions, as an engine on which nothing fails. Returns them.
fn send(memory: &mut Memory, event: Event) -> Vec<Action> {
    memory.handle(Nanos(1), event);
    let mut actions = Vec::new();
    while let Some(action) = memory.next_action() {
        match action {
            Action::Reserve { set, generation, .. } => {
                memory.handle(Nanos(1), Event::Reserved { set, generation, refused: None });
            }
            Action::Begin { task } => memory.handle(Nanos(1), Event::Prepared { task }),
            _ => {}
        }
        actions.push(action);
    }
    actions
}

/// A quarter of the device.
const QUARTER: u64 = DEVICE_BYTES / 4;

/// A device with one function that has no constants.
fn with_function() -> Memory {
    let (mut memory, function) = (memory(1.0, unlimited()), FunctionId(1));
    let spec = FunctionSpec { function, tenant: tenant("a"), class: Class::BestEffort, constants: Vec::new() };
    memory.register(spec).expect("it has no constants");
    send(&mut memory, Event::Load { function });
    send(&mut memory, Event::Advance);
    memory
}

/// Begins an invocation that takes a quarter of the device. Returns its slot and all actions.
fn begin(memory: &mut Memory, task: u64, shape: i64) -> (SlotId, Vec<Action>) {
    let (task, class) = (TaskId(task), Class::BestEffort);
    let stages = vec![StageSpec { function: FunctionId(1), shape: Box::new([shape]), bytes: QUARTER }];
    send(memory, Event::Arrived(InvocationSpec { task, class, tenant: tenant("a"), stages, session: None }));
    let actions = send(memory, Event::Prepare { task });
    let granted = actions.iter().find_map(|action| match action {
        Action::Grant { slots, .. } => Some(slots[0].slot),
        _ => None,
    });
    (granted.expect("there is room"), actions)
}

#[test]
fn retained_outputs_keep_their_memory_until_it_is_needed() {
    let mut memory = with_function();
    let (first, _) = begin(&mut memory, 1, 0);
    send(&mut memory, Event::RetainOutputs { slot: first });
    send(&mut memory, Event::Ended { task: TaskId(1) });
    let others = [2, 3, 4].map(|task| begin(&mut memory, task, 0).0);
    assert!(!others.contains(&first), "the device is full, and the first slot was not reused");
    send(&mut memory, Event::Ended { task: TaskId(2) });
    let freed = |actions: &[Action]| -> Vec<Action> {
        let is_it = |action: &&Action| matches!(action, Action::SaveOutputs { .. } | Action::FreeSlot { .. });
        actions.iter().filter(is_it).cloned().collect()
    };
    let (_, actions) = begin(&mut memory, 5, 1);
    let is_others = |action: &Action| matches!(action, Action::FreeSlot { slot, .. } if *slot == others[0]);
    assert!(matches!(&freed(&actions)[..], [only] if is_others(only)), "other memory is freed first: {actions:?}");
    let (_, actions) = begin(&mut memory, 6, 1);
    let [Action::SaveOutputs { slot: saved }, Action::FreeSlot { slot, .. }] = freed(&actions)[..] else {
        panic!("the outputs are saved before their memory is freed: {actions:?}")
    };
    assert_eq!((saved, slot), (first, first));
    assert!(send(&mut memory, Event::ReleaseOutputs { slot: first }).is_empty(), "they are not there any more");
}

#[test]
fn released_outputs_leave_their_memory_to_the_next_invocation() {
    let mut memory = with_function();
    let (first, _) = begin(&mut memory, 1, 0);
    send(&mut memory, Event::RetainOutputs { slot: first });
    send(&mut memory, Event::Ended { task: TaskId(1) });
    assert!(send(&mut memory, Event::ReleaseOutputs { slot: first }).is_empty(), "nothing is freed");
    assert_eq!(begin(&mut memory, 2, 0).0, first);
}

#[test]
fn a_function_keeps_a_bounded_number_of_outputs() {
    let spec = |task| StageSpec { function: FunctionId(1), shape: Box::new([task]), bytes: 256 };
    let mut memory = with_function();
    let mut saved = Vec::new();
    let many = limits::RETAINED_SLOTS_PER_FUNCTION_MAX as u64 + 2;
    for task in (1..=many).map(TaskId) {
        let (stages, class) = (vec![spec(task.0 as i64)], Class::BestEffort);
        send(&mut memory, Event::Arrived(InvocationSpec { task, class, tenant: tenant("a"), stages, session: None }));
        let actions = send(&mut memory, Event::Prepare { task });
        for action in actions {
            let Action::Grant { slots, .. } = action else { continue };
            send(&mut memory, Event::RetainOutputs { slot: slots[0].slot });
        }
        let actions = send(&mut memory, Event::Ended { task });
        saved.extend(actions.into_iter().filter(|action| matches!(action, Action::SaveOutputs { .. })));
    }
    assert_eq!(saved.len(), 2, "those that were left first");
}
