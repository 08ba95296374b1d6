//! Runs fenced kernels on this machine's processor: a hostile one touches nothing outside its region, and honest ones do what they did.

#![expect(clippy::print_stderr, reason = "a skipped check must be seen")]

mod common;

use atoll_kgraph::fence_params;
use atoll_passes::{Fencing, PassOptions, transform_with};
use common::Loaded;

/// Size of the tenant's region and of the constants.
const REGION_BYTES: usize = 4096;
/// Bytes around them that nobody may touch.
const AROUND_BYTES: usize = 2 * REGION_BYTES;
/// What lies around.
const GUARD: u8 = 0x5A;

/// Two regions in one piece of memory, each aligned to its size, with guarded bytes around them.
struct Ground {
    memory: Vec<u8>,
    region: usize,
    constants: usize,
}

impl Ground {
    fn new() -> Ground {
        let memory = vec![GUARD; 2 * REGION_BYTES + 3 * AROUND_BYTES + REGION_BYTES];
        let start = memory.as_ptr().addr();
        let region = (start + AROUND_BYTES).next_multiple_of(REGION_BYTES) - start;
        Ground { memory, region, constants: region + REGION_BYTES + AROUND_BYTES }
    }

    fn address(&self, offset: usize) -> u64 {
        (self.memory.as_ptr().addr() + offset) as u64
    }

    /// The appended parameters behind the kernel's own.
    fn params(&self, own: &[u64], offset: u32, dynamic_shared_bytes: u32) -> Vec<u8> {
        let mut params: Vec<u8> = own.iter().flat_map(|value| value.to_le_bytes()).collect();
        params.resize(offset as usize, 0);
        let mask = REGION_BYTES as u64 - 1;
        let words = [self.address(self.region), mask, self.address(self.constants), mask];
        words.iter().for_each(|word| params.extend(word.to_le_bytes()));
        params.extend(dynamic_shared_bytes.to_le_bytes());
        assert_eq!(params.len(), (offset + fence_params::BYTES) as usize);
        params
    }

    /// Whether every byte outside of the region is as it was.
    fn is_intact_outside(&self) -> bool {
        let (before, rest) = self.memory.split_at(self.region);
        before.iter().chain(&rest[REGION_BYTES..]).all(|byte| *byte == GUARD)
    }
}

fn fence(source: &str, entry: &str) -> Option<(Loaded, u32)> {
    let mut module = atoll_ptx::parse(source).expect("the test's PTX reads well");
    let report = transform_with(&mut module, &["fence_memory"], &PassOptions::default(), &mut |_, _| {}).expect("valid");
    let kernel = report.kernels.iter().find(|k| k.name == entry).expect("the kernel");
    let Fencing::Fenced { offset } = kernel.fencing else { panic!("{entry}: {:?}", kernel.fencing) };
    let loaded = Loaded::new(&module, entry, [32, 1, 1]);
    if loaded.is_none() {
        eprintln!("SKIPPED: the host target does not support this processor");
    }
    loaded.map(|loaded| (loaded, offset))
}

const HOSTILE: &str = include_str!("fence/hostile.ptx");

/// Addresses that a hostile caller tries: ends of the region and of the constants, misaligned ones, the stack, nowhere.
fn targets(ground: &Ground) -> Vec<u64> {
    let word = 0_u64;
    let near = [0_i64, -1, -4, -16, 1, 3, 15].map(|by| by as u64);
    let edges = [ground.region, ground.region + REGION_BYTES, ground.constants, ground.constants + REGION_BYTES, ground.region - AROUND_BYTES];
    let mut targets: Vec<u64> = edges.iter().flat_map(|&edge| near.map(|by| ground.address(edge).wrapping_add(by))).collect();
    targets.extend([0, 1, u64::MAX, u64::MAX - 3, 1 << 63, (&raw const word).addr() as u64]);
    targets
}

#[test]
fn a_hostile_kernel_touches_nothing_outside_its_region() {
    for entry in ["writes_everywhere", "updates_everywhere", "private_out_of_bounds", "jumps_out_of_the_table"] {
        let Some((kernel, offset)) = fence(HOSTILE, entry) else { return };
        let mut ground = Ground::new();
        for target in targets(&ground) {
            kernel.run([2, 1, 1], 0..2, 256, &ground.params(&[target, target ^ 0xFFFF_FFFF], offset, 256));
            assert!(ground.is_intact_outside(), "{entry} at {target:#x} reached beyond its region");
        }
        let region = ground.region;
        assert!(ground.memory[region..region + REGION_BYTES].iter().any(|b| *b != GUARD), "{entry} wrote nothing at all");
        ground.memory.fill(GUARD);
    }
}

#[test]
fn what_is_read_is_of_the_region_or_of_the_constants() {
    let Some((kernel, offset)) = fence(HOSTILE, "reads_everywhere") else { return };
    let mut ground = Ground::new();
    let (region, constants) = (ground.region, ground.constants);
    for target in targets(&ground) {
        ground.memory.fill(GUARD);
        ground.memory[region..region + REGION_BYTES].fill(1);
        ground.memory[constants..constants + REGION_BYTES].fill(2);
        kernel.run([1, 1, 1], 0..1, 0, &ground.params(&[target, ground.address(region)], offset, 0));
        let read = &ground.memory[region..region + 32 * 4];
        assert!(read.iter().all(|byte| matches!(byte, 1 | 2)), "from {target:#x} came {read:x?}");
    }
    // Constants are found where they are.
    ground.memory[region..region + REGION_BYTES].fill(1);
    ground.memory[constants..constants + REGION_BYTES].fill(2);
    kernel.run([1, 1, 1], 0..1, 0, &ground.params(&[ground.address(constants), ground.address(region)], offset, 0));
    assert!(ground.memory[region..region + 32 * 4].iter().all(|byte| *byte == 2));
}
