//! Runs fenced kernels on this machine's CPU: well-behaved kernels compute the same results.
//! Hostile kernels are tested in `tests/integration/fence.rs`.

#![expect(clippy::print_stderr, reason = "a trap must be seen")]

mod common;

use atoll_kgraph::fence_params;
use atoll_passes::{FenceForm, Fencing, PassOptions, transform_with};
use common::Loaded;
use rand_xoshiro::SplitMix64;
use rand_xoshiro::rand_core::{Rng, SeedableRng};

/// Size of the tenant's region and of the constants.
const REGION_BYTES: usize = 4096;
/// The value of the bytes around the regions.
const GUARD: u8 = 0x5A;

/// Two regions in one allocation, each aligned to its size, surrounded by guard bytes.
struct Regions {
    memory: Vec<u8>,
    region: usize,
    constants: usize,
    /// Size of each of the two regions.
    size: usize,
}

impl Regions {
    fn new(size: usize) -> Regions {
        let memory = vec![GUARD; 8 * size];
        let start = memory.as_ptr().addr();
        let region = (start + size).next_multiple_of(size) - start;
        Regions { memory, region, constants: region + 3 * size, size }
    }

    fn address(&self, offset: usize) -> u64 {
        (self.memory.as_ptr().addr() + offset) as u64
    }

    fn region_bytes(&mut self) -> &mut [u8] {
        &mut self.memory[self.region..self.region + self.size]
    }

    /// A kernel's own parameters, followed by the appended ones.
    fn params(&self, mut own: Vec<u8>, offset: u32, dynamic_shared_bytes: u32) -> Vec<u8> {
        own.resize(offset as usize, 0);
        let mask = self.size as u64 - 1;
        let words = [self.address(self.region), mask, self.address(self.constants), mask];
        words.iter().for_each(|word| own.extend(word.to_le_bytes()));
        own.extend(dynamic_shared_bytes.to_le_bytes());
        assert_eq!(own.len(), (offset + fence_params::BYTES) as usize);
        own
    }

    /// Whether every byte outside of the region is unchanged.
    fn is_intact_outside(&self) -> bool {
        let (before, rest) = self.memory.split_at(self.region);
        before.iter().chain(&rest[self.size..]).all(|byte| *byte == GUARD)
    }
}

/// Fences a kernel; an error contains the reason why it cannot be fenced.
fn fenced(source: &str, entry: &str, form: FenceForm) -> Result<(atoll_ptx::Module, u32), String> {
    let mut module = atoll_ptx::parse(source).expect("the test's PTX reads well");
    let options = PassOptions { fence_form: form, ..PassOptions::default() };
    let report = transform_with(&mut module, &["fence_memory"], &options, &mut |_, _| {}).expect("valid");
    match &report.kernels.iter().find(|k| k.name == entry).expect("the kernel").fencing {
        Fencing::Fenced { offset } => Ok((module, *offset)),
        other => Err(format!("{entry}: {other:?}")),
    }
}

/// Buffers in a region, and the parameter block, for the launch line of a labelled kernel (see
/// `idempotence/sources.cu`); `None` for arguments that contain addresses of other buffers.
fn arguments(line: &str, region: &mut [u8]) -> Option<([u32; 3], [u32; 3], Vec<u8>)> {
    let address = region.as_ptr().addr() as u64;
    let mut words = line.split(' ');
    let mut shape = || {
        let extents: Vec<u32> =
            words.next().expect("a shape").split(',').map(|e| e.parse().expect("a number")).collect();
        [extents[0], *extents.get(1).unwrap_or(&1), *extents.get(2).unwrap_or(&1)]
    };
    let (grid, block) = (shape(), shape());
    let (mut params, mut used, mut random) = (Vec::new(), 0, SplitMix64::seed_from_u64(1));
    for word in words {
        let (kind, value) = word.split_once(':')?;
        let (bytes, bound) = value.split_once(':').unwrap_or((value, "16"));
        let width = if kind == "idx64" { 8 } else { 4 };
        let mut put = |value: &[u8]| {
            params.resize(params.len().next_multiple_of(value.len()), 0);
            params.extend_from_slice(value);
        };
        match kind {
            "u32" => put(&value.parse::<u32>().expect("a number").to_le_bytes()),
            "f32" => put(&value.parse::<f32>().expect("a number").to_le_bytes()),
            "buf" | "zero" | "idx" | "idx64" => {
                let bytes: usize = bytes.parse().expect("a size");
                let bound: u32 = bound.parse().expect("a bound");
                for element in region[used..used + bytes].chunks_exact_mut(width) {
                    let number = if kind == "zero" { 0 } else { random.next_u64() % u64::from(bound) };
                    element.copy_from_slice(&number.to_le_bytes()[..width]);
                }
                put(&(address + used as u64).to_le_bytes());
                used = (used + bytes).next_multiple_of(256);
            }
            _ => return None,
        }
    }
    Some((grid, block, params))
}

#[test]
fn fenced_kernels_compute_the_same_results() {
    let mut ran = 0;
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/idempotence");
    for entry in std::fs::read_dir(folder).expect("the labelled kernels").flatten() {
        let path = entry.path();
        let Some(name) = path.file_name().and_then(|n| n.to_str()?.strip_suffix(".ptx")) else { continue };
        // One stores the value of a clock, two wait for other blocks.
        if matches!(name, "measure_time" | "spin_on_flag" | "lock") {
            continue;
        }
        let text = std::fs::read_to_string(&path).expect("text");
        let line = text.lines().find_map(|line| line.strip_prefix("// launch: ")).expect("a launch");
        let mut regions = Regions::new(16 * REGION_BYTES);
        let Some((grid, block, params)) = arguments(line, regions.region_bytes()) else { continue };
        let blocks = grid.iter().map(|&extent| u64::from(extent)).product();
        let Some(kernel) = Loaded::new(&atoll_ptx::parse(&text).expect("its PTX reads well"), name, block) else {
            return;
        };
        kernel.run(grid, 0..blocks, 0, &params);
        let expected = regions.region_bytes().to_vec();
        // Alternates between the forms, because each kernel takes time to compile.
        let form = if ran % 2 == 0 { FenceForm::Mask } else { FenceForm::Trap };
        let Ok((module, offset)) = fenced(&text, name, form) else { continue };
        regions.region_bytes().fill(GUARD);
        let Some((_, _, params)) = arguments(line, regions.region_bytes()) else { continue };
        let params = regions.params(params, offset, 0);
        Loaded::new(&module, name, block).expect("the plain one was loaded").run(grid, 0..blocks, 0, &params);
        assert!(regions.region_bytes() == expected, "{name} computes something else when fenced by {form:?}");
        assert!(regions.is_intact_outside(), "{name}, fenced by {form:?}, reached beyond its region");
        ran += 1;
    }
    assert!(ran > 60, "only {ran} fenced kernels ran");
}
