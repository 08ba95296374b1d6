//! `atoll bench dkp`

#[cfg(feature = "native")]
mod interpreted;

use super::kernels::Given::{Bytes, Floats, Int};
use super::kernels::{KERNELS, MeasuredKernel, PTX};
use crate::device_name::DeviceName;
use crate::engine::bench_device;
use crate::failure::user_error;
use crate::output::{Align, Table};
use crate::random::Random;
use crate::report::Findings;
use crate::samples::Distribution;
use anyhow::{Context, Result, bail, ensure};
use atoll_core::limits::DEVICE_QUEUE_CAPACITY_DEFAULT;
use atoll_core::{DeviceOffset, Epoch, LaunchId, QueueId};
use atoll_device::{AddressSlots, Device, LaunchRecord, LaunchStatus, ModuleId, ModuleImage};
use atoll_kgraph::dkp::{DkpLaunch, Range, lay_out};
use atoll_kgraph::{Bundle, KernelFacts, preempt_params};
use atoll_pipeline::{CompileOptions, PaddedKernels, Silent, Target, pack, pad_bundles};
use regex::Regex;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::Serialize;
use std::fmt::Write;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

/// The target for which nvcc compiled the kernels.
const GPU: &str = "nvidia-sm_80";

/// Device memory layout: words of the launch, its progress map, its buffers.
const EPOCH_WORD: u64 = 256;
const EVICTED_WORD: u64 = 512;
const PROGRESS: u64 = 4096;
const BUFFERS: u64 = 1 << 20;

const EXAMPLES: &str = "\
Examples:
  atoll bench dkp
  atoll bench dkp --device cuda:0 --rounds 500 --json
  atoll bench dkp --architecture gfx90a,gfx1100

Each kernel runs as it is in a bundle (preemptible), and as the only kernel in a launch of its dkp module. The \
two alternate, and each pair gives a ratio. The difference is the cost of the module: the registers of its \
class, calls, and virtual block indices. Times are measured by the device.

With --architecture, code objects for AMD GPUs are interpreted on the CPU, one block of each kernel. The cost \
is in instructions of a wave: the proxy kernel's jump, and virtual block indices. A kernel is in the module of \
its occupancy level and in those of the levels with more registers. This needs no GPU and measures no time.";

/// Measure the cost of dkp modules: kernels alone, and in a module where others could be padded in
/// but none is
#[derive(Debug, clap::Args)]
#[command(about, after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Device: host (this machine's CPU cores), cuda or cuda:N (an NVIDIA GPU)
    #[arg(long, value_name = "DEVICE", default_value_t = DeviceName::Host)]
    device: DeviceName,

    /// Measure only kernels whose names match this regular expression
    #[arg(long, value_name = "REGEX")]
    only: Option<Regex>,

    /// Count instructions for AMD architectures instead: gfx906, gfx90a, gfx1100 and others
    #[arg(long, value_name = "GFX", value_delimiter = ',', conflicts_with_all = ["device", "rounds"])]
    architecture: Vec<String>,

    /// Number of pairs per kernel
    #[arg(long, value_name = "COUNT", default_value_t = NonZeroU32::new(200).expect("not zero"))]
    rounds: NonZeroU32,
}

#[derive(Debug, Serialize)]
struct Report {
    device: String,
    rows: Vec<Row>,
    /// Kernels that no dkp module contains.
    left_out: Vec<String>,
}

#[derive(Debug, Serialize)]
struct Row {
    name: &'static str,
    /// Entry of the module, which contains its register class on a GPU.
    module: String,
    alone: Distribution,
    dkp: Distribution,
    /// Time in the module over time alone, by pairs: 25th, 50th and 75th percentile.
    ratio: [f64; 3],
}

pub(crate) fn run(args: &Args) -> Result<Findings> {
    let wanted = |kernel: &&MeasuredKernel| args.only.as_ref().is_none_or(|only| only.is_match(kernel.name));
    let kernels: Vec<&MeasuredKernel> = KERNELS.iter().filter(wanted).collect();
    if kernels.is_empty() {
        return Err(user_error(format!(
            "--only matches no kernel; the kernels are {}",
            KERNELS.map(|kernel| kernel.name).join(", ")
        )));
    }
    if !args.architecture.is_empty() {
        #[cfg(feature = "native")]
        return interpreted::run(&kernels, &args.architecture);
        #[cfg(not(feature = "native"))]
        return Err(user_error("this program was built without LLVM, which compiles for AMD GPUs"));
    }
    let target = match args.device {
        #[cfg(feature = "native")]
        DeviceName::Host => Target::this_host(),
        #[cfg(not(feature = "native"))]
        DeviceName::Host => {
            return Err(user_error("this program was built without support for CPUs; use --device cuda or cuda:N"));
        }
        DeviceName::Cuda(_) => GPU.parse()?,
        DeviceName::Hip(_) => {
            return Err(user_error(
                "the cost of padding is not measured on AMD GPUs; use --architecture GFX, or --device host or cuda",
            ));
        }
    };
    let bundle = bundle(&kernels, target)?;
    let padded = pad_bundles(target, std::slice::from_ref(&bundle), None)?;
    let mut stage = Stage::load(args.device, target, &bundle, &padded)?;
    let (mut rows, mut left_out) = (Vec::new(), Vec::new());
    for kernel in kernels {
        match stage.measure(kernel, args.rounds.get())? {
            Some(row) => rows.push(row),
            None => left_out.push(kernel.name.to_owned()),
        }
    }
    let report = Report { device: stage.device.info().name.clone(), rows, left_out };
    Findings::new(&report, text(&report))
}

/// A bundle with the kernels as steps. Its graph is never run; only the compiled kernels are used.
fn bundle(kernels: &[&MeasuredKernel], target: Target) -> Result<Arc<Bundle>> {
    let folder = tempfile::tempdir()?;
    std::fs::write(folder.path().join("kernels.ptx"), PTX)?;
    let (mut buffers, mut steps) = (String::new(), String::new());
    for kernel in kernels {
        let mut words = Vec::new();
        let outputs = kernel.args.iter().rposition(|given| !matches!(given, Int(_)));
        for (at, given) in kernel.args.iter().enumerate() {
            let (dtype, count) = match given {
                Floats(count) => ("f32", *count),
                Bytes(count) => ("u8", *count),
                Int(value) => {
                    words.push(value.to_string());
                    continue;
                }
            };
            let kind = if Some(at) == outputs { "output" } else { "input" };
            writeln!(
                buffers,
                "{}_{at} = {{ kind = \"{kind}\", dtype = \"{dtype}\", shape = [{count}] }}",
                kernel.entry
            )?;
            words.push(format!("\"{}_{at}\"", kernel.entry));
        }
        let written = outputs.map_or_else(String::new, |at| format!("\"{}_{at}\"", kernel.entry));
        let MeasuredKernel { entry, grid, block, .. } = kernel;
        let args = words.join(", ");
        writeln!(
            steps,
            "[[step]]\nkernel = \"{entry}\"\ngrid = {grid:?}\nblock = {block:?}\nargs = [{args}]\nwrites = [{written}]"
        )?;
    }
    let (manifest, path) = (folder.path().join("kernels.toml"), folder.path().join("kernels.kg"));
    std::fs::write(&manifest, format!("name = \"kernels\"\nptx = [\"kernels.ptx\"]\n[buffers]\n{buffers}{steps}"))?;
    pack(&manifest, &path, &CompileOptions { targets: vec![target], ..CompileOptions::default() }, &Silent)?;
    // The bundle stays mapped after its file is deleted.
    Ok(Bundle::open(&path)?)
}

/// The parameter block of a launch of a kernel alone, and where it has addresses. `put` stores the
/// contents of a buffer and returns its address. `words` are the addresses of the epoch, the evicted
/// word and the progress map.
fn parameters(
    kernel: &MeasuredKernel,
    facts: &KernelFacts,
    words: [u64; 3],
    mut put: impl FnMut(Vec<u8>) -> Result<u64>,
) -> Result<(Vec<u8>, AddressSlots)> {
    let (mut random, mut params, mut addresses) = (Random::new(1), Vec::new(), AddressSlots::NONE);
    for given in kernel.args {
        let bytes: Vec<u8> = match given {
            Floats(count) => (0..*count).flat_map(|_| (random.normal() as f32).to_le_bytes()).collect(),
            Bytes(count) => (0..*count).map(|_| random.next_u64() as u8).collect(),
            Int(value) => {
                params.extend(value.to_le_bytes());
                continue;
            }
        };
        put_address(&mut params, &mut addresses, put(bytes)?);
    }
    if let Some(offset) = facts.preempt_offset {
        params.resize(offset as usize, 0);
        // In the order of the parameters. The epoch of all launches is 0 and never raised.
        debug_assert_eq!(
            [preempt_params::EPOCH_WORD, preempt_params::EVICTED_WORD, preempt_params::PROGRESS],
            [0, 8, 16]
        );
        words.into_iter().for_each(|at| put_address(&mut params, &mut addresses, at));
    }
    params.resize(facts.params_bytes as usize, 0);
    Ok((params, addresses))
}

/// A launch of a kernel's first blocks as the only kernel of a dkp module; `None` if it is not in
/// that module. `number` is the kernel's index in the bundle, and `params` are its parameters.
fn in_module(
    padded: &PaddedKernels,
    kernel: &MeasuredKernel,
    number: usize,
    params: &[u8],
    blocks: u32,
) -> Result<Option<DkpLaunch>> {
    let Some(candidate) = padded.candidates.iter().position(|(_, of)| *of as usize == number) else { return Ok(None) };
    let facts = &padded.facts.candidates[candidate].facts;
    let mut arguments = params.to_vec();
    arguments.resize(facts.virtual_offset as usize, 0);
    arguments.resize(facts.params_bytes as usize, 0);
    let range = Range { candidate, arguments, grid: kernel.grid, first: 0, blocks };
    Ok(Some(lay_out(&padded.facts, &[range])?))
}

/// A device with the kernels and their dkp modules.
struct Stage<'a> {
    device: Box<dyn Device>,
    facts: &'a [KernelFacts],
    plain: ModuleId,
    padded: Vec<(ModuleId, &'a PaddedKernels)>,
    launches: u64,
}

/// A launch without its id.
struct Prepared {
    record: LaunchRecord,
    params: Vec<u8>,
}

impl<'a> Stage<'a> {
    fn load(device: DeviceName, target: Target, bundle: &'a Bundle, padded: &'a [PaddedKernels]) -> Result<Stage<'a>> {
        let mut device = bench_device(device, 0, DEVICE_QUEUE_CAPACITY_DEFAULT)?;
        let name = target.name();
        let facts = &bundle.target(name).context("the bundle is for this target")?.kernels;
        let mut load = |code: &[u8], ptx, kernels: &[KernelFacts]| {
            device.load_module(ModuleImage { domain: "", target: name, code, ptx, kernels })
        };
        let plain = load(bundle.code(name).unwrap_or_default(), bundle.ptx(name), facts)?;
        let padded = padded
            .iter()
            .map(|padded| Ok((load(&padded.code, None, &padded.kernels)?, padded)))
            .collect::<Result<_>>()?;
        Ok(Stage { device, facts, plain, padded, launches: 0 })
    }

    /// Measures a kernel; `None` if it is in no dkp module.
    fn measure(&mut self, kernel: &MeasuredKernel, rounds: u32) -> Result<Option<Row>> {
        let number =
            self.facts.iter().position(|facts| facts.name == kernel.entry).context("the kernel is in the bundle")?;
        let alone = self.alone(kernel, number)?;
        let Some((dkp, module)) = self.beside_nothing(kernel, number, &alone)? else { return Ok(None) };
        let mut times: [Vec<Duration>; 2] = Default::default();
        // The first pair is a warm-up.
        for round in 0..=rounds {
            // The order alternates, so that neither variant always finds warm caches.
            let order = if round % 2 == 0 { [(0, &alone), (1, &dkp)] } else { [(1, &dkp), (0, &alone)] };
            for (which, prepared) in order {
                let time = self.run(kernel, prepared)?;
                times[which].extend((round > 0).then_some(time));
            }
        }
        let mut ratios: Vec<f64> =
            times[0].iter().zip(&times[1]).map(|(alone, dkp)| dkp.as_secs_f64() / alone.as_secs_f64()).collect();
        ratios.sort_by(f64::total_cmp);
        let ratio = [0.25, 0.5, 0.75].map(|q| ratios[((ratios.len() - 1) as f64 * q) as usize]);
        let [alone, dkp] = times.map(|times| Distribution::of(&times));
        Ok(Some(Row { name: kernel.name, module, alone, dkp, ratio }))
    }

    /// Fills the buffers of a kernel and prepares a launch of it alone.
    fn alone(&mut self, kernel: &MeasuredKernel, number: usize) -> Result<Prepared> {
        let facts = &self.facts[number];
        let (device, mut place) = (&mut self.device, BUFFERS);
        let put = |bytes: Vec<u8>| -> Result<u64> {
            let at = place;
            device.write(DeviceOffset(at), &bytes)?;
            place = (at + bytes.len() as u64).next_multiple_of(4096);
            Ok(at)
        };
        let (params, addresses) = parameters(kernel, facts, [EPOCH_WORD, EVICTED_WORD, PROGRESS], put)?;
        let record = LaunchRecord {
            launch: LaunchId(0),
            module: self.plain,
            kernel: number as u32,
            grid: kernel.grid,
            shared_bytes: facts.shared_bytes,
            address_slots: addresses,
            evicted_word: DeviceOffset(EVICTED_WORD),
            epoch_word: DeviceOffset(EPOCH_WORD),
            epoch: Epoch(0),
            preemptible: u32::from(facts.preempt_offset.is_some()),
            may_run_again: 0,
            followed: 0,
        };
        Ok(Prepared { record, params })
    }

    /// Prepares the same launch in a dkp module, and returns the module's name.
    fn beside_nothing(
        &self,
        kernel: &MeasuredKernel,
        number: usize,
        alone: &Prepared,
    ) -> Result<Option<(Prepared, String)>> {
        let blocks = kernel.grid.iter().product();
        let mut found = None;
        for (module, padded) in &self.padded {
            found = in_module(padded, kernel, number, &alone.params, blocks)?.map(|launch| (*module, *padded, launch));
            if found.is_some() {
                break;
            }
        }
        let Some((module, padded, laid_out)) = found else { return Ok(None) };
        let mut address_slots = AddressSlots::NONE;
        address_slots.extend_shifted(&alone.record.address_slots, laid_out.arguments_at[0] / 8);
        let record = LaunchRecord {
            module,
            kernel: laid_out.size as u32,
            grid: [laid_out.blocks, 1, 1],
            shared_bytes: laid_out.shared_bytes,
            address_slots,
            preemptible: 0,
            ..alone.record
        };
        Ok(Some((Prepared { record, params: laid_out.params }, padded.facts.entry.clone())))
    }

    /// Time of a launch on the device.
    fn run(&mut self, kernel: &MeasuredKernel, prepared: &Prepared) -> Result<Duration> {
        // Clears the progress map, since blocks that are marked as finished would not run again.
        self.device.fill(DeviceOffset(PROGRESS), 0, kernel.grid.iter().map(|extent| u64::from(*extent)).product())?;
        let record = LaunchRecord { launch: LaunchId(self.launches), ..prepared.record };
        self.launches += 1;
        if let Err(refusal) = self.device.submit(QueueId(0), &record, &prepared.params) {
            bail!("{}: the device refuses the launch: {refusal}", kernel.name);
        }
        let completion = loop {
            if let Some(completion) = self.device.next_completion() {
                break completion;
            }
            let fd = self.device.completion_fd();
            // The timeout covers a lost wake-up.
            let _ = poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&Timespec { tv_sec: 0, tv_nsec: 100_000_000 }));
        };
        let fault = self.device.report(completion.launch).and_then(|report| report.fault);
        ensure!(completion.status == LaunchStatus::Complete, "{}: {:?} {fault:?}", kernel.name, completion.status);
        Ok(Duration::from_nanos(completion.ended_ns.saturating_sub(completion.started_ns)))
    }
}

fn put_address(params: &mut Vec<u8>, addresses: &mut AddressSlots, at: u64) {
    params.resize(params.len().next_multiple_of(8), 0);
    addresses.insert(params.len() / 8);
    params.extend(at.to_le_bytes());
}

fn text(report: &Report) -> String {
    use Align::{Left, Right};
    let mut table = Table::new([
        ("kernel", Left),
        ("module", Left),
        ("alone p50 µs", Right),
        ("dkp p50 µs", Right),
        ("ratio p25", Right),
        ("p50", Right),
        ("p75", Right),
    ]);
    for row in &report.rows {
        let [alone, dkp] = [row.alone, row.dkp].map(|times| format!("{:.1}", times.p50_ms * 1e3));
        let [low, middle, high] = row.ratio.map(|ratio| format!("{ratio:.3}"));
        table.row([row.name.to_owned(), row.module.clone(), alone, dkp, low, middle, high]);
    }
    let mut text = format!("{}\n{table}", report.device);
    if !report.left_out.is_empty() {
        text += &format!("in no dkp module: {}\n", report.left_out.join(", "));
    }
    text
}
