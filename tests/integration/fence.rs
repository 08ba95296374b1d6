//! Hostile kernels behind the fence: they access nothing outside of their tenant's memory.
//!
//! The memory of the host device is filled with one pattern, then with another; if a kernel could
//! read outside of its region, its results would differ. The interpreter, where every access
//! outside is an error, must give the same results. `ATOLL_SEED` selects addresses.

use anyhow::{Context, Result, bail, ensure};
use atoll_core::DeviceOffset;
use atoll_core::rng::Rng;
use atoll_device::{FaultKind, Memory};
use atoll_passes::{FenceForm, Fencing, KernelReport, NotFenced, PassOptions, transform_with};
use atoll_ptx::Module;
use atoll_target_nvidia::find_ptxas;
use atoll_tests::{full, sample, seed, skip};
use atoll_workbench::{
    Arg, BenchError, Buffer, HostBench, HostOptions, InterpBench, InterpKernel, Kernel, KernelDevice, Launch,
    LoadedKernel,
};
use std::ops::Range;

const HOSTILE: [&str; 2] = [include_str!("../fence/hostile.ptx"), include_str!("../fence/hostile_sm80.ptx")];

/// Stores the address of its region.
const STORES_ITS_ADDRESS: &str = "
.version 7.8
.target sm_75
.address_size 64
.visible .entry tells_its_address(.param .u64 home, .param .u64 constants, .param .u64 delta, .param .u64 wild)
{
    .reg .b64 %rd<2>;
    ld.param.u64 %rd1, [home];
    st.global.u64 [%rd1], %rd1;
    ret;
}
";

const FORMS: [FenceForm; 2] = [FenceForm::Mask, FenceForm::Trap];

/// Device memory: small, so that all of it can be checked after each launch.
const MEMORY_BYTES: usize = 512 << 10;

/// Kernels with device-dependent results: threads in divergent loops store to the same addresses,
/// and sums of NaNs have arbitrary bits.
const UNDECIDED: [&str; 3] = ["in_loops", "atomics", "reductions"];

/// Dynamic shared memory of every hostile kernel.
const SHARED_BYTES: u32 = 256;

/// Memory of this process, which a kernel on the host device could reach as well.
const OWN_BYTES: usize = 4096;

/// A module with every kernel fenced, and the reports of the pass.
fn fenced(text: &str, form: FenceForm) -> Result<(Module, Vec<KernelReport>)> {
    let mut module = atoll_ptx::parse(text).map_err(|e| anyhow::anyhow!("{e}"))?;
    let options = PassOptions { fence_form: form, ..PassOptions::default() };
    let report = transform_with(&mut module, &["fence_memory"], &options, &mut |_, _| {})?;
    Ok((module, report.kernels))
}

/// The parameters of an attack.
#[derive(Clone, Copy, Debug)]
struct Attack {
    delta: u64,
    wild: Wild,
}

/// An arbitrary address.
#[derive(Clone, Copy, Debug)]
enum Wild {
    /// Any number.
    Number(u64),
    /// An offset from the start of the region.
    Near(u64),
    /// An address in the memory of this process.
    Own(u64),
}

/// The buffers of a launch: the whole region and all constants.
fn buffers(region_bytes: usize, random: &mut Rng) -> Vec<Buffer> {
    let constants_bytes = 256 << random.below(5);
    let mut buffer = |name: &str, bytes: usize, writable| {
        let bytes = (0..bytes).map(|_| random.below(256) as u8).collect();
        Buffer { name: name.into(), bytes, writable }
    };
    vec![buffer("region", region_bytes, true), buffer("constants", constants_bytes, false)]
}

impl Attack {
    fn new(region_bytes: u64, random: &mut Rng) -> Attack {
        let any = |random: &mut Rng| random.below(1 << 53) << 11 ^ random.below(1 << 53);
        let little = |random: &mut Rng| random.below(65).wrapping_sub(32);
        let delta = match random.below(8) {
            0 => little(random),
            1 => region_bytes.wrapping_add(little(random)),
            2 => 0_u64.wrapping_sub(random.below(4) * region_bytes).wrapping_add(little(random)),
            3 => random.below(region_bytes),
            4 => random.below(2 * MEMORY_BYTES as u64).wrapping_sub(MEMORY_BYTES as u64),
            5 => (1_u64 << random.below(64)).wrapping_add(little(random)),
            6 => 4 * random.below(region_bytes),
            _ => any(random),
        };
        let wild = match random.below(8) {
            0 => Wild::Number(little(random)),
            1 => Wild::Number((1_u64 << random.below(64)).wrapping_add(little(random))),
            // Windows of private memory in the interpreter's generic addresses.
            2 => Wild::Number((0x7f_0000 + random.below(8)) << 40 | random.below(1 << 16)),
            3 => Wild::Number(any(random)),
            4 => Wild::Near(region_bytes.wrapping_add(little(random))),
            5 => Wild::Near(random.below(2 * MEMORY_BYTES as u64).wrapping_sub(MEMORY_BYTES as u64)),
            6 => Wild::Near(little(random)),
            _ => Wild::Own(random.below(OWN_BYTES as u64)),
        };
        Attack { delta, wild }
    }

    /// The arbitrary address, for a region that begins at `home`.
    fn wild(&self, home: u64, own: u64) -> u64 {
        match self.wild {
            Wild::Number(number) => number,
            Wild::Near(distance) => home.wrapping_add(distance),
            Wild::Own(offset) => own + offset,
        }
    }

    /// Whether its steps may lead into the constants, whose address differs in the interpreter.
    fn may_find(&self, constants: u64, home: u64, own: u64) -> bool {
        let reach = 8 * MEMORY_BYTES as u64;
        let is_near = |address: u64| address.wrapping_sub(constants).wrapping_add(reach) < 2 * reach;
        let steps = |from: u64| {
            (1..=64_u64)
                .flat_map(move |n| [n, n.wrapping_neg()])
                .map(move |n| from.wrapping_add(n.wrapping_mul(self.delta)))
        };
        let wild = self.wild(home, own);
        is_near(wild) || [wild, home, constants].into_iter().flat_map(steps).any(is_near)
    }

    fn launch(&self, home: u64, own: u64, grid: u32) -> Launch {
        let value = |value: u64| Arg::Value(value.to_le_bytes().to_vec());
        Launch {
            grid: [grid, 1, 1],
            shared_bytes: SHARED_BYTES,
            args: vec![Arg::buffer(0), Arg::buffer(1), value(self.delta), value(self.wild(home, own))],
        }
    }
}

/// The host device, with its memory filled with patterns.
struct Ground {
    host: HostBench,
    /// Address of device memory.
    base: u64,
    own: Vec<u8>,
    patterns: [Vec<u8>; 2],
}

/// How a launch ended.
#[derive(Debug, PartialEq)]
enum End {
    Complete,
    Trapped,
}

impl Ground {
    fn new() -> Result<Ground> {
        let options = HostOptions { compute_units: 1, memory_bytes: MEMORY_BYTES as u64, ..HostOptions::default() };
        let mut host = HostBench::start(options)?;
        let mut random = Rng::new(seed());
        let mut pattern = || (0..MEMORY_BYTES).map(|_| random.below(256) as u8).collect::<Vec<u8>>();
        let patterns = [pattern(), pattern()];
        let (module, reports) = fenced(STORES_ITS_ADDRESS, FenceForm::Mask)?;
        let kernel = load(&mut host, &module, &reports[0], 32)?;
        let mut buffers = buffers(4096, &mut random);
        let attack = Attack { delta: 0, wild: Wild::Number(0) };
        host.launch(&kernel, &attack.launch(0, 0, 1), &mut buffers, 1)?;
        let told = u64::from_le_bytes(buffers[0].bytes[..8].try_into()?);
        let base = told - HostBench::fence(&buffers).region.start;
        Ok(Ground { host, base, own: vec![0; OWN_BYTES], patterns })
    }

    fn own_address(&self) -> u64 {
        self.own.as_ptr().addr() as u64
    }

    /// Launches a kernel with one of the patterns around its memory, and returns the contents of
    /// its region.
    fn run(
        &mut self,
        kernel: &LoadedKernel,
        attack: &Attack,
        grid: u32,
        before: &[Buffer],
        pattern: usize,
    ) -> Result<(End, Vec<u8>)> {
        let mut buffers = before.to_vec();
        let fence = HostBench::fence(&buffers);
        let inside = |range: &Range<u64>| range.start as usize..range.end as usize;
        let pattern = &self.patterns[pattern];
        self.host.device().write(DeviceOffset(0), pattern)?;
        self.own.copy_from_slice(&pattern[..OWN_BYTES]);
        let launch = attack.launch(self.base + fence.region.start, self.own_address(), grid);
        let end = match self.host.launch(kernel, &launch, &mut buffers, 1) {
            Ok(_) => End::Complete,
            // Masked addresses are also aligned; others may be misaligned within the region.
            Err(BenchError::Fault { fault, .. }) if matches!(fault.kind, FaultKind::Trap | FaultKind::Misaligned) => {
                End::Trapped
            }
            Err(error) => return Err(error.into()),
        };
        let mut memory = vec![0; MEMORY_BYTES];
        self.host.device().read(DeviceOffset(0), &mut memory)?;
        ensure!(self.own == pattern[..OWN_BYTES], "it wrote to memory of this process");
        ensure!(memory[inside(&fence.constants)] == before[1].bytes, "it wrote to the constants");
        let is_inside = |at: usize| inside(&fence.region).contains(&at) || inside(&fence.constants).contains(&at);
        if let Some(at) = (0..MEMORY_BYTES).find(|&at| memory[at] != pattern[at] && !is_inside(at)) {
            bail!("it wrote to byte {at:#x} of device memory, its region is {:#x?}", fence.region);
        }
        Ok((end, memory[inside(&fence.region)].to_vec()))
    }
}

fn load<D: KernelDevice>(device: &mut D, module: &Module, report: &KernelReport, block: u32) -> Result<D::Loaded> {
    let kernel = Kernel { module, entry: &report.name, report: Some(report), block: [block, 1, 1] };
    device.load(&kernel).with_context(|| report.name.clone())
}

/// The contents of the region after a run in the interpreter, where an access outside is a fault.
/// `None` if the two devices may differ, because the address of the constants differs.
fn interpreted(
    kernel: &InterpKernel,
    form: FenceForm,
    attack: &Attack,
    ground: &Ground,
    before: &[Buffer],
) -> Result<Option<Vec<u8>>> {
    let own = ground.own_address();
    let fence = HostBench::fence(before);
    let [home, constants] = *kernel.bind(&attack.launch(0, 0, 1), before)?.addresses() else {
        bail!("two buffers have two addresses")
    };
    let differs = attack.may_find(constants, home, own)
        || attack.may_find(ground.base + fence.constants.start, ground.base + fence.region.start, own);
    let mut buffers = before.to_vec();
    match InterpBench::default().launch(kernel, &attack.launch(home, own, 1), &mut buffers, 1) {
        Ok(_) => Ok((!differs).then(|| buffers.swap_remove(0).bytes)),
        // A kernel that finds the constants traps here.
        Err(BenchError::Run(_)) if differs && form == FenceForm::Trap => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Number of attacks by result.
#[derive(Debug, Default)]
struct Tally {
    complete: usize,
    trapped: usize,
}

/// Attacks with every kernel of a text, fenced in a form.
fn attack(ground: &mut Ground, text: &str, form: FenceForm, rounds: usize, tally: &mut Tally) -> Result<()> {
    let (module, reports) = fenced(text, form)?;
    for report in &reports {
        let name = format!("{} fenced by {form:?}, ATOLL_SEED={}", report.name, seed());
        let kernels = [load(&mut ground.host, &module, report, 32)?, load(&mut ground.host, &module, report, 48)?];
        let oracle = load(&mut InterpBench::default(), &module, report, 32)?;
        let mut random = Rng::new(seed());
        for round in 0..rounds {
            let region_bytes = 4096 << random.below(4);
            let attack = Attack::new(region_bytes, &mut random);
            let before = buffers(region_bytes as usize, &mut random);
            // One warp, or blocks of one and a half warps.
            let (kernel, grid) = if round % 2 == 0 { (&kernels[0], 1) } else { (&kernels[1], 2) };
            let place = || format!("{name}, round {round}, {attack:x?}");
            let (end, after) = ground.run(kernel, &attack, grid, &before, 0).with_context(place)?;
            let (end_too, after_too) = ground.run(kernel, &attack, grid, &before, 1).with_context(place)?;
            ensure!(end == end_too && after == after_too, "{}: memory from outside makes a difference", place());
            match end {
                End::Complete => tally.complete += 1,
                End::Trapped => tally.trapped += 1,
            }
            ensure!(form == FenceForm::Trap || end == End::Complete, "{}: it trapped", place());
            if end == End::Complete && grid == 1 {
                let expected = interpreted(&oracle, form, &attack, ground, &before).with_context(place)?;
                let differs = expected.and_then(|expected| after.iter().zip(&expected).position(|(a, b)| a != b));
                let agrees = differs.is_none() || UNDECIDED.contains(&report.name.as_str());
                ensure!(agrees, "{}: byte {differs:?} of the region is another in the interpreter", place());
            }
        }
        kernels.into_iter().for_each(|kernel| ground.host.unload(kernel));
    }
    Ok(())
}

/// Variants of the text in which each straight-line kernel has a single access, since a kernel that
/// traps at its first access does not test the following ones. Each has its kernel and opcode.
fn one_access_each(text: &str) -> Vec<(String, String)> {
    const STRAIGHT: [&str; 5] = ["stores", "stores_to_constants", "loads", "atomics", "reductions"];
    let header = &text[..text.find(".const").unwrap_or(0)];
    let mut texts = Vec::new();
    for kernel in text.split_inclusive("\n}\n").filter_map(|item| item.find(".visible").map(|at| &item[at..])) {
        let name = kernel.split([' ', '(']).nth(2).unwrap_or_default();
        let is_access = |line: &str| match name {
            "loads" => line.starts_with("\tld") && !line.contains("param"),
            _ => ["\tst.", "\tatom.", "\tred."].iter().any(|opcode| line.starts_with(opcode)),
        };
        let accesses = kernel.lines().filter(|line| STRAIGHT.contains(&name) && is_access(line));
        texts.extend(accesses.map(|kept| {
            let opcode = kept.trim_start().split('.').next().unwrap_or_default();
            let lines = kernel.lines().filter(|line| !is_access(line) || *line == kept);
            (format!("{name} {opcode}"), lines.fold(header.to_owned(), |text, line| text + line + "\n"))
        }));
    }
    texts
}

#[test]
#[expect(clippy::print_stdout, reason = "how many launches trapped is part of the test's output")]
fn hostile_kernels_access_nothing_outside_their_region() -> Result<()> {
    let rounds = if full() { 300 } else { 15 };
    let mut ground = Ground::new()?;
    let mut tally = Tally::default();
    for (text, form) in HOSTILE.into_iter().flat_map(|text| FORMS.map(|form| (text, form))) {
        attack(&mut ground, text, form, rounds, &mut tally)?;
    }
    // Two of each kernel and opcode in a run that is not full.
    for (_, text) in sample("fence", one_access_each(HOSTILE[0]), 2, |(kind, _)| kind.clone()) {
        attack(&mut ground, &text, FenceForm::Trap, rounds, &mut tally).with_context(|| text.clone())?;
    }
    println!("{tally:?}");
    ensure!(tally.complete > 0 && tally.trapped > 0, "all launches ended in the same way");
    Ok(())
}

/// Instructions that access memory or jump and have no fence, each with the `.target` that it
/// needs.
const WITHOUT_A_FENCE: &[(&str, &str)] = &[
    ("sm_80", "tex.2d.v4.f32.f32 {%f1, %f2, %f3, %f4}, [%rd1, {%f5, %f6}];"),
    ("sm_80", "tex.1d.v4.s32.s32 {%r1, %r2, %r3, %r4}, [%rd1, {%r5}];"),
    ("sm_80", "tld4.r.2d.v4.f32.f32 {%f1, %f2, %f3, %f4}, [%rd1, {%f5, %f6}];"),
    ("sm_80", "txq.width.b32 %r1, [%rd1];"),
    ("sm_80", "suld.b.2d.b32.trap %r1, [%rd1, {%r2, %r3}];"),
    ("sm_80", "sust.b.2d.b32.trap [%rd1, {%r2, %r3}], %r1;"),
    ("sm_80", "sured.b.add.2d.u32.trap [%rd1, {%r2, %r3}], %r1;"),
    ("sm_80", "suq.width.b32 %r1, [%rd1];"),
    ("sm_80", "istypep.texref %p1, %rd1;"),
    ("sm_80", "wmma.load.a.sync.aligned.row.m16n16k16.f16 {%r1, %r2, %r3, %r4, %r5, %r6, %r7, %r8}, [%rd1], %r9;"),
    ("sm_80", "wmma.load.c.sync.aligned.row.m16n16k16.global.f16 {%r1, %r2, %r3, %r4}, [%rd1], %r9;"),
    ("sm_80", "wmma.store.d.sync.aligned.row.m16n16k16.global.f16 [%rd1], {%r1, %r2, %r3, %r4}, %r9;"),
    ("sm_80", "mbarrier.init.shared.b64 [%r1], %r2;"),
    ("sm_80", "mbarrier.arrive.b64 %rd2, [%rd1];"),
    ("sm_80", "mbarrier.test_wait.b64 %p1, [%rd1], %rd2;"),
    ("sm_80", "cp.async.mbarrier.arrive.b64 [%rd1];"),
    ("sm_80", "discard.global.L2 [%rd1], 128;"),
    ("sm_80", "applypriority.global.L2::evict_normal [%rd1], 128;"),
    ("sm_80", "prefetch.global.L2 [%rd1];"),
    ("sm_80", "prefetchu.L1 [%rd1];"),
    ("sm_80", "alloca.u64 %rd2, %rd1, 16;"),
    ("sm_80", "stacksave.u64 %rd2;"),
    ("sm_80", "stackrestore.u64 %rd1;"),
    ("sm_80", "call (%r1), %rd1, (%r2), shape;"),
    ("sm_80", "call somewhere, (%rd1);"),
    ("sm_90", "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r1], [%rd1], %r2, [%r3];"),
    ("sm_90", "cp.async.bulk.global.shared::cta.bulk_group [%rd1], [%r1], %r2;"),
    ("sm_90", "cp.async.bulk.prefetch.L2.global [%rd1], %r2;"),
    (
        "sm_90",
        "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%r1], [%rd1, {%r2, %r3}], \
        [%r4];",
    ),
    ("sm_90", "cp.async.bulk.tensor.1d.global.shared::cta.bulk_group [%rd1, {%r2}], [%r1];"),
    ("sm_90", "cp.async.bulk.prefetch.tensor.1d.L2.global.tile [%rd1, {%r2}];"),
    ("sm_90", "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.u32 [%rd1], [%r1], %r2;"),
    ("sm_90", "cp.async.bulk.wait_group 0;"),
    ("sm_90", "prefetch.tensormap [%rd1];"),
    ("sm_90", "tensormap.replace.tile.global_address.global.b1024.b64 [%rd1], %rd2;"),
    (
        "sm_90",
        "tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.gpu.sync.aligned [%rd1], [%rd2], 128;",
    ),
    ("sm_90", "fence.proxy.tensormap::generic.acquire.gpu [%rd1], 128;"),
    ("sm_90", "mapa.u64 %rd2, %rd1, %r1;"),
    ("sm_90", "getctarank.u64 %r1, %rd1;"),
    ("sm_90", "ld.shared::cluster.u32 %r1, [%rd1];"),
    ("sm_90", "st.shared::cluster.u32 [%rd1], %r1;"),
    ("sm_90", "atom.shared::cluster.add.u32 %r1, [%rd1], 1;"),
    ("sm_90", "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.u32 [%rd1], %r1, [%rd2];"),
    ("sm_90", "red.async.relaxed.cluster.shared::cluster.mbarrier::complete_tx::bytes.add.u32 [%rd1], %r1, [%rd2];"),
    ("sm_90", "multimem.ld_reduce.global.add.u32 %r1, [%rd1];"),
    ("sm_90", "multimem.st.global.u32 [%rd1], %r1;"),
    ("sm_90", "multimem.red.global.add.u32 [%rd1], %r1;"),
    ("sm_90", "griddepcontrol.wait;"),
    ("sm_90a", "setmaxnreg.inc.sync.aligned.u32 64;"),
    ("sm_90a", "wgmma.mma_async.sync.aligned.m64n8k16.f16.f16.f16 {%r1, %r2}, %rd1, %rd2, 1, 1, 1, 0, 0;"),
    ("sm_90a", "wgmma.fence.sync.aligned;"),
    ("sm_100a", "st.bulk.weak.shared::cta [%rd1], %rd2, 0;"),
    ("sm_100a", "tcgen05.ld.sync.aligned.32x32b.x1.b32 {%r1}, [%r2];"),
    ("sm_100a", "tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r1], 32;"),
    ("sm_100a", "clusterlaunchcontrol.try_cancel.async.shared::cta.mbarrier::complete_tx::bytes.b128 [%r1], [%r2];"),
    // Unknown instructions.
    ("sm_80", "frobnicate.global.u32 %r1, [%rd1];"),
    ("sm_80", "ld.frobnicated.global.u32 %r1, [%rd1];"),
    ("sm_80", "st.global.frobnicated.u32 [%rd1], %r1;"),
    ("sm_80", "cp.frobnicate [%rd1], [%rd2];"),
    // Memory of the module itself is outside of every region.
    ("sm_80", "st.global.u32 [counter], %r1;"),
    ("sm_80", "atom.global.add.u32 %r1, [counter+4], 1;"),
    // Parameters at a computed address.
    ("sm_80", "ld.param.u32 %r1, [%rd1];"),
];

#[test]
fn kernels_with_unfenced_instructions_are_refused() -> Result<()> {
    let mut slipped = Vec::new();
    for (target, instruction) in WITHOUT_A_FENCE {
        let text = format!(
            ".version 8.7\n.target {target}\n.address_size 64\n.extern .func somewhere(.param .b64 at);\n.global .u32 \
            counter[4];\n\
             .visible .entry k(.param .u64 at) {{\n.reg .pred %p<4>; .reg .b32 %r<12>; .reg .b64 %rd<4>; .reg .f32 \
             %f<8>;\n\
             shape: .callprototype (.reg .b32 _) _ (.reg .b32 _);\nld.param.u64 %rd1, [at];\n\
             {instruction}\nst.global.u32 [%rd1], %r1;\nret;\n}}\n"
        );
        let (module, reports) = fenced(&text, FenceForm::Mask).with_context(|| (*instruction).to_owned())?;
        let Fencing::Refused(reason) = &reports[0].fencing else {
            slipped.push(*instruction);
            continue;
        };
        // The reason names the instruction's line if it is about the instruction, and the kernel is
        // unchanged.
        let opcode = instruction.split(['.', ' ']).next().unwrap_or_default();
        let names_it = reason.to_string().contains("line 10:") || matches!(reason, NotFenced::UnknownCallee { .. });
        ensure!(names_it, "{opcode}: {reason}");
        ensure!(atoll_ptx::print(&module) == text, "{instruction}: refused, and changed");
        let kernel = Kernel { module: &module, entry: "k", report: Some(&reports[0]), block: [32, 1, 1] };
        let refused = InterpBench::default().load(&kernel).err().context("a kernel without a fence was loaded")?;
        ensure!(refused.to_string().starts_with("kernel `k` cannot be fenced: "), "{refused}");
    }
    ensure!(slipped.is_empty(), "these were accepted:\n{}", slipped.join("\n"));
    Ok(())
}

#[test]
fn fenced_kernels_assemble() -> Result<()> {
    let Some(ptxas) = find_ptxas() else {
        skip("ptxas is not installed; `make setup` installs it");
        return Ok(());
    };
    for form in FORMS {
        for (text, least) in HOSTILE.into_iter().zip([75, 80]) {
            let text = atoll_ptx::print(&fenced(text, form)?.0);
            for sm in [75, 80, 90, 120].into_iter().filter(|sm| *sm >= least) {
                ptxas.assemble(&text, &format!("sm_{sm}")).with_context(|| format!("{form:?}, sm_{sm}"))?;
            }
        }
    }
    Ok(())
}
