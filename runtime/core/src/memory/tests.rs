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
