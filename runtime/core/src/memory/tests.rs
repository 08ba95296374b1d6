use super::*;
use crate::residency::RESIDENCY_POLICIES;

fn memory() -> Memory {
    let spec = MemorySpec {
        memory_bytes: 1 << 20,
        constants_base: DeviceOffset(1 << 40),
        constants_bytes: 1 << 20,
        constants_granule: 256,
        limit_bytes: None,
        overcommit: 1.0,
    };
    let quotas = MemoryQuotas { default: TenantBytes::UNLIMITED, tenants: BTreeMap::new() };
    Memory::new(&spec, Residency::new((RESIDENCY_POLICIES[0].make)()), quotas)
}

fn register(memory: &mut Memory, function: u64, tenant: &Tenant) {
    let constants = vec![ConstantSpec { digest: [function as u8; 32], bytes: 256, offset: 0 }];
    let (function, tenant) = (FunctionId(function), tenant.clone());
    memory.register(FunctionSpec { function, tenant, class: Class::BestEffort, constants }).expect("room");
}

#[test]
fn a_tenant_is_known_as_long_as_it_has_functions() {
    let mut memory = memory();
    let tenants = ["a", "b"].map(|name| name.parse::<Tenant>().expect("a name"));
    register(&mut memory, 1, &tenants[0]);
    register(&mut memory, 2, &tenants[0]);
    register(&mut memory, 3, &tenants[1]);
    let known = |memory: &Memory| tenants.clone().map(|tenant| memory.tenants.contains_key(&tenant));
    for (function, left) in [(1, [true, true]), (2, [false, true]), (3, [false, false])] {
        memory.handle(Nanos(function), Event::Unloaded { function: FunctionId(function) });
        assert_eq!(known(&memory), left, "after function {function} was unloaded");
    }
}
