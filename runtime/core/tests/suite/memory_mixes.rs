//! Replays the recorded request mixes (`models/mixes`) through memory decisions: hits, loads and
//! reclaims are those of commit f95a0d3.
//!
//! The figures were recorded with residency alone, driven as by `atoll bench residency`: one
//! request at a time, a fixed reload time per byte, sizes in whole granules. Memory decisions have
//! to reach the same figures, although they place constants one by one and reclaim for each.

use atoll_core::memory::{
    Action, ConstantSpec, Event, FunctionId, FunctionSpec, InvocationSpec, Memory, MemoryQuotas, MemorySpec, StageSpec,
};
use atoll_core::residency::{Residency, residency_policy_by_name};
use atoll_core::{Class, DeviceOffset, Nanos, TaskId, Tenant};
use std::collections::BTreeSet;
use std::path::Path;

const GRANULE: u64 = 256;

/// Mix, policy, then hits, loads and reclaims.
const GOLDEN: &[(&str, &str, [u64; 3])] = &[
    ("anticorrelated", "cost", [3323, 677, 659]),
    ("anticorrelated", "two-level-lru", [3126, 874, 857]),
    ("bursts", "cost", [3362, 646, 629]),
    ("bursts", "two-level-lru", [3351, 657, 641]),
    ("chains", "cost", [9667, 2333, 2315]),
    ("chains", "two-level-lru", [8989, 3011, 2997]),
    ("loop", "cost", [462, 3538, 3531]),
    ("loop", "two-level-lru", [0, 4000, 3993]),
    ("periodic", "cost", [2031, 1969, 1961]),
    ("periodic", "two-level-lru", [1680, 2320, 2313]),
    ("phases", "cost", [2748, 1252, 1239]),
    ("phases", "two-level-lru", [2630, 1370, 1354]),
    ("scan", "cost", [2274, 1726, 1706]),
    ("scan", "two-level-lru", [1512, 2488, 2471]),
    ("tiers", "cost", [3005, 995, 982]),
    ("tiers", "two-level-lru", [2814, 1186, 1174]),
    ("uniform", "cost", [1499, 2501, 2492]),
    ("uniform", "two-level-lru", [1470, 2530, 2521]),
    ("zipf", "cost", [2905, 1095, 1079]),
    ("zipf", "two-level-lru", [2725, 1275, 1258]),
];

struct Mix {
    memory_bytes: u64,
    /// Bytes and class of each function.
    functions: Vec<(u64, Class)>,
    /// Arrival time in nanoseconds, and functions called.
    requests: Vec<(u64, Vec<usize>)>,
}

fn read(name: &str) -> Mix {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/mixes").join(name).with_extension("mix");
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let number = |text: &str| text.parse::<u64>().expect("a number");
    let (mut mix, mut at_ms) = (Mix { memory_bytes: 0, functions: vec![], requests: vec![] }, 0);
    for line in text.lines() {
        let words: Vec<&str> = line.split(' ').collect();
        match words[0] {
            "memory_bytes" => mix.memory_bytes = number(words[1]),
            "function" => {
                let class = if words[3] == "rt" { Class::RealTime } else { Class::BestEffort };
                mix.functions.push((number(words[1]).next_multiple_of(GRANULE), class));
            }
            "requests" => {
                for request in &words[1..] {
                    let (after_ms, functions) = request.split_once(':').expect("milliseconds and functions");
                    at_ms += number(after_ms);
                    mix.requests.push((
                        at_ms * 1_000_000,
                        functions.split('+').map(|function| number(function) as usize).collect(),
                    ));
                }
            }
            _ => {}
        }
    }
    mix
}

/// Memory decisions, an engine that carries out everything at once, and counts of hits, loads and
/// reclaims.
struct Replay {
    memory: Memory,
    now: Nanos,
    prepare: bool,
    counts: [u64; 3],
}

impl Replay {
    fn send(&mut self, event: Event) {
        self.memory.handle(self.now, event);
        while let Some(action) = self.memory.next_action() {
            let now = self.now;
            match action {
                Action::Reserve { set, generation, .. } => {
                    self.memory.handle(now, Event::Reserved { set, generation, refused: None })
                }
                Action::Stage { set, .. } => self.memory.handle(now, Event::Staged { set, end: usize::MAX }),
                // Five bytes per nanosecond, the initial estimate of memory decisions.
                Action::Write { from, .. } => {
                    let bytes = from.len() as u64;
                    self.memory.handle(now, Event::Written { bytes, took_ns: bytes / 5 });
                }
                Action::Admitted { ready, .. } => self.prepare = ready,
                Action::Ready { .. } => self.prepare = true,
                Action::Begin { task } => self.memory.handle(now, Event::Prepared { task }),
                Action::Loaded { .. } => self.counts[1] += 1,
                Action::Reclaimed { .. } => self.counts[2] += 1,
                _ => {}
            }
        }
    }

    fn serve(&mut self, number: u64, at: u64, functions: &[usize]) {
        self.now = Nanos(at);
        let stages = functions.iter().map(|&function| StageSpec {
            function: FunctionId(function as u64),
            shape: Box::new([]),
            bytes: 1,
        });
        let task = TaskId(number);
        let loads_before = self.counts[1];
        self.prepare = false;
        let spec = InvocationSpec {
            task,
            class: Class::BestEffort,
            tenant: Tenant::default(),
            stages: stages.collect(),
            session: None,
        };
        assert_eq!(self.memory.check(&spec), Ok(()), "a request fits on the device");
        self.send(Event::Arrived(spec));
        while !self.prepare {
            assert!(self.memory.is_loading(), "request {number} waits for nothing");
            self.send(Event::Advance);
        }
        self.send(Event::Prepare { task });
        self.send(Event::Ended { task });
        self.send(Event::Resume);
        let uses: BTreeSet<usize> = functions.iter().copied().collect();
        self.counts[0] += uses.len() as u64 - (self.counts[1] - loads_before);
    }
}

/// Hits, loads and reclaims of a mix under a policy.
fn replay(mix: &Mix, policy: &str) -> [u64; 3] {
    // Extra room for the memory of invocations, which this test ignores, and enough addresses that
    // constants are never fragmented.
    let spare_bytes = 64 * GRANULE;
    let spec = MemorySpec {
        memory_bytes: mix.memory_bytes + spare_bytes,
        constants_base: DeviceOffset(1 << 50),
        constants_bytes: 1 << 50,
        constants_granule: GRANULE,
        limit_bytes: None,
        overcommit: 1e6,
    };
    let policy = residency_policy_by_name(policy).expect("a policy");
    let memory = Memory::new(&spec, Residency::new((policy.make)()), MemoryQuotas::default());
    let mut replay = Replay { memory, now: Nanos(0), prepare: false, counts: [0; 3] };
    for (index, &(bytes, class)) in mix.functions.iter().enumerate() {
        let mut digest = [0; 32];
        digest[..8].copy_from_slice(&(index as u64).to_le_bytes());
        let constants = vec![ConstantSpec { digest, bytes, offset: 0 }];
        let function = FunctionId(index as u64);
        replay
            .memory
            .register(FunctionSpec { function, tenant: Tenant::default(), class, constants })
            .expect("there is no limit");
    }
    for (number, (at, functions)) in mix.requests.iter().enumerate() {
        replay.serve(number as u64, *at, functions);
    }
    replay.counts
}

#[test]
fn the_recorded_mixes_come_to_the_same_figures() {
    assert_eq!(GOLDEN.len(), 20, "ten mixes, two policies");
    for (name, policy, golden) in GOLDEN {
        assert_eq!(replay(&read(name), policy), *golden, "mix {name}, policy {policy}: hits, loads, reclaims");
    }
}
