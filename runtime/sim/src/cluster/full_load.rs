//! A pool under full load: every device is busy, and as many requests wait as there are devices.
//! All service times are equal, so requests end in the order of their dispatch.

use atoll_core::placement::{
    DeviceKind, DeviceSpec, Expected, FunctionId, FunctionSpec, GroupId, PlacementEntry, Pool, PoolAction, PoolConfig,
    PoolEvent, RequestEnd, RequestId, RequestSpec, Suits,
};
use atoll_core::rng::Rng;
use atoll_core::{Class, DeviceId, Nanos};
use std::collections::VecDeque;

/// Service and reload time of every function.
const SERVICE_NS: u64 = 1_000_000;
/// Ratio of all functions to those that fit the memory of a device.
const FIT: u32 = 5;
/// Placements per device that warm up a new pool.
const WARM_UP: u32 = 8;

/// Parameters of a [`FullLoad`].
#[derive(Clone, Copy, Debug)]
pub struct FullLoadSetup {
    /// The policy.
    pub policy: &'static PlacementEntry,
    /// Devices, at least 1. Each has one slot, and memory for a fifth of the functions.
    pub devices: u16,
    /// Functions, at least 1, each of its own group. All are called equally often.
    pub functions: u32,
    /// Seed of the functions that requests call, and of the policy.
    pub seed: u64,
}

/// The parts of a placement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// A request ends.
    Finish,
    /// The policy chooses requests for the free device, and the pool dispatches them.
    Dispatch,
    /// The device reports constants that it evicted.
    Evict,
    /// Another request arrives.
    Arrive,
    /// The policy decides again. No device is free; it may load or unload functions.
    Replicate,
    /// Work outside the pool: that of the simulated clients and devices.
    Caller,
}

impl Part {
    /// All parts, with their names in reports. The value of a part is its index.
    pub const ALL: [(Part, &str); 6] = [
        (Part::Finish, "finish"),
        (Part::Dispatch, "dispatch"),
        (Part::Evict, "evict"),
        (Part::Arrive, "arrive"),
        (Part::Replicate, "replicate"),
        (Part::Caller, "caller"),
    ];
}

/// A pool under full load: every device is busy, and as many requests wait as there are devices.
pub struct FullLoad {
    pool: Pool,
    actions: Vec<PoolAction>,
    in_flight: VecDeque<(RequestId, DeviceId)>,
    /// The functions on each device, the least recently dispatched one first.
    resident: Vec<Vec<FunctionId>>,
    /// The function of each request, by its number.
    called: Vec<FunctionId>,
    evicted: Vec<(DeviceId, FunctionId)>,
    rng: Rng,
    now: u64,
    /// Virtual time between the ends of two requests.
    step_ns: u64,
    functions: u32,
    dispatches: u64,
}

/// How many of `functions` functions fit the memory of a device.
fn fit(functions: u32) -> usize {
    (functions / FIT).max(1) as usize
}

impl FullLoad {
    /// A pool whose devices are all busy.
    pub fn new(setup: &FullLoadSetup) -> FullLoad {
        let mut config = PoolConfig::new(setup.policy);
        config.options.seed = setup.seed;
        let mut load = FullLoad {
            pool: Pool::new(config),
            actions: Vec::new(),
            in_flight: VecDeque::new(),
            resident: vec![Vec::new(); usize::from(setup.devices)],
            called: Vec::new(),
            evicted: Vec::new(),
            rng: Rng::new(setup.seed),
            now: 0,
            step_ns: SERVICE_NS / u64::from(setup.devices),
            functions: setup.functions,
            dispatches: 0,
        };
        for device in 0..setup.devices {
            let memory_bytes = fit(setup.functions) as u64;
            let spec = DeviceSpec { kind: DeviceKind(0), slots: 1, memory_bytes };
            load.note(PoolEvent::DeviceAdded { device: DeviceId(device), spec });
        }
        for function in 0..setup.functions {
            let expected = Expected { service: Some(Nanos(SERVICE_NS)), reload: Some(Nanos(SERVICE_NS)) };
            let spec = FunctionSpec {
                group: GroupId(function),
                constant_bytes: 1,
                suits: Suits::All,
                expected: vec![(DeviceKind(0), expected)],
            };
            load.note(PoolEvent::FunctionAdded { function: FunctionId(function), spec });
        }
        for device in 0..setup.devices {
            while load.resident[usize::from(device)].len() < fit(setup.functions) {
                let function = load.any_function();
                if !load.resident[usize::from(device)].contains(&function) {
                    load.resident[usize::from(device)].push(function);
                    load.note(PoolEvent::Resident { device: DeviceId(device), function });
                }
            }
        }
        (0..2 * u32::from(setup.devices)).for_each(|_| load.arrive(&mut |_| ()));
        (0..WARM_UP * u32::from(setup.devices)).for_each(|_| load.place(|_| ()));
        load
    }

    fn any_function(&mut self) -> FunctionId {
        FunctionId(self.rng.below(u64::from(self.functions)) as u32)
    }

    fn note(&mut self, event: PoolEvent) {
        self.pool.note(Nanos(self.now), event, &mut self.actions);
    }

    fn decide(&mut self) {
        self.pool.decide(Nanos(self.now), &mut self.actions);
    }

    /// One placement: a request ends, the next one is dispatched, and another one arrives. Calls
    /// `lap` at the end of each part.
    pub fn place(&mut self, mut lap: impl FnMut(Part)) {
        self.now += self.step_ns;
        if let Some((request, device)) = self.in_flight.pop_front() {
            let end = RequestEnd::Done { service: Nanos(SERVICE_NS), loaded: None };
            lap(Part::Caller);
            self.note(PoolEvent::Finished { request, device, end });
            lap(Part::Finish);
            self.decide();
            lap(Part::Dispatch);
            self.carry_out(&mut lap);
        }
        self.arrive(&mut lap);
    }

    fn arrive(&mut self, lap: &mut impl FnMut(Part)) {
        let function = self.any_function();
        let request = RequestId(self.called.len() as u64);
        self.called.push(function);
        let spec = RequestSpec {
            function,
            class: Class::BestEffort,
            is_batched: false,
            arrival: Nanos(self.now),
            deadline: None,
            may_retry: true,
        };
        lap(Part::Caller);
        self.note(PoolEvent::Arrived { request, spec });
        lap(Part::Arrive);
        self.decide();
        lap(Part::Replicate);
        self.carry_out(lap);
    }

    /// Carries out the pool's actions. Each device keeps the functions that it used most recently.
    fn carry_out(&mut self, lap: &mut impl FnMut(Part)) {
        for action in self.actions.drain(..) {
            match action {
                PoolAction::Dispatch { request, device } => {
                    self.dispatches += 1;
                    self.in_flight.push_back((request, device));
                    let function = self.called[request.0 as usize];
                    let resident = &mut self.resident[usize::from(device.0)];
                    if let Some(at) = resident.iter().rposition(|other| *other == function) {
                        resident.remove(at);
                    }
                    resident.push(function);
                    if resident.len() > fit(self.functions) {
                        self.evicted.push((device, resident.remove(0)));
                    }
                }
                PoolAction::Load { function, device } => {
                    // The pool counts it as resident already. The device keeps it unless a later
                    // dispatch needs the room.
                    self.resident[usize::from(device.0)].insert(0, function);
                }
                PoolAction::Unload { function, device } => {
                    let resident = &mut self.resident[usize::from(device.0)];
                    if let Some(at) = resident.iter().position(|other| *other == function) {
                        resident.remove(at);
                        self.evicted.push((device, function));
                    }
                }
                PoolAction::Reject { .. } | PoolAction::Move { .. } => {}
            }
        }
        lap(Part::Caller);
        while let Some((device, function)) = self.evicted.pop() {
            self.note(PoolEvent::Evicted { device, function });
        }
        lap(Part::Evict);
    }

    /// Requests dispatched so far.
    pub fn dispatches(&self) -> u64 {
        self.dispatches
    }

    /// Requests that wait for a device.
    pub fn waiting(&self) -> usize {
        self.pool.waiting()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use atoll_core::placement::PLACEMENTS;

    #[test]
    fn parts_have_their_index() {
        for (index, (part, _)) in Part::ALL.into_iter().enumerate() {
            assert_eq!(part as usize, index);
        }
    }

    #[test]
    fn all_devices_stay_busy_under_every_policy() {
        for policy in PLACEMENTS {
            for (devices, functions) in [(1, 1), (7, 3), (40, 30)] {
                let setup = FullLoadSetup { policy, devices, functions, seed: 1 };
                let mut load = FullLoad::new(&setup);
                let (before, mut parts) = (load.dispatches(), Vec::new());
                for _ in 0..200 {
                    load.place(|part| parts.push(part));
                    let requests = load.in_flight.len() + load.waiting();
                    assert_eq!(requests, 2 * usize::from(devices), "{}: every request waits or runs", policy.name);
                    let fits = |resident: &Vec<FunctionId>| resident.len() <= fit(functions);
                    assert!(load.resident.iter().all(fits), "{}: constants fit", policy.name);
                }
                let dispatched = load.dispatches() - before;
                assert!(dispatched >= 100, "{}: {dispatched} dispatches on {devices} devices", policy.name);
                for (part, name) in Part::ALL {
                    assert!(parts.contains(&part), "{}: part {name}", policy.name);
                }
            }
        }
    }

    /// Devices and functions of each pool.
    const POOLS: [(u16, u32); 3] = [(1000, 200), (300, 700), (64, 1)];
    /// Digests of the requests in flight and the functions on each device of these pools, after many
    /// placements under each policy.
    const DIGESTS: [(&str, [u64; 3]); 8] = [
        ("cost", [0x06EF_844F_542A_5E93, 0x748B_8CFE_0C22_CEAD, 0xB1DA_DB68_6148_84E5]),
        ("round-robin", [0x4CAE_22AD_58FA_375F, 0xB544_6D6C_C3EB_2C08, 0xB1DA_DB68_6148_84E5]),
        ("balance", [0x4CAE_22AD_58FA_375F, 0xB544_6D6C_C3EB_2C08, 0xB1DA_DB68_6148_84E5]),
        ("srtf", [0x4CAE_22AD_58FA_375F, 0xB544_6D6C_C3EB_2C08, 0xB1DA_DB68_6148_84E5]),
        ("mlfqs", [0x4CAE_22AD_58FA_375F, 0xB544_6D6C_C3EB_2C08, 0xB1DA_DB68_6148_84E5]),
        ("exclusive", [0x4993_F50F_86AB_63DE, 0xAD9A_02E6_BC45_CE6E, 0xB1DA_DB68_6148_84E5]),
        ("affinity", [0x96A9_319E_427A_C370, 0xCF95_7FD7_4711_9D8D, 0xB1DA_DB68_6148_84E5]),
        ("static", [0x2DB1_E043_A141_0D50, 0xC82A_33E0_58F9_9AB7, 0xB1DA_DB68_6148_84E5]),
    ];

    /// FNV-1a.
    fn digest(load: &FullLoad) -> u64 {
        let in_flight = load.in_flight.iter().map(|(request, device)| request.0 << 16 | u64::from(device.0));
        let resident = load.resident.iter().flatten().map(|function| u64::from(function.0));
        in_flight
            .chain(resident)
            .fold(0xCBF2_9CE4_8422_2325, |hash, number| (hash ^ number).wrapping_mul(0x0100_0000_01B3))
    }

    #[test]
    fn decisions_of_large_pools_stay_as_recorded() {
        let digests = PLACEMENTS.iter().map(|policy| {
            let of = |(devices, functions)| {
                let mut load = FullLoad::new(&FullLoadSetup { policy, devices, functions, seed: 1 });
                (0..3000).for_each(|_| load.place(|_| ()));
                digest(&load)
            };
            (policy.name, POOLS.map(of))
        });
        assert_eq!(digests.collect::<Vec<_>>(), DIGESTS);
    }
}
