//! Kernels that share a dkp launch give exactly the results that each gives alone.
//!
//! `ATOLL_SEED` selects the kernels of other compilers and the pairs.

#[path = "../dkp/cases.rs"]
mod cases;

use crate::corpus::modules;
use anyhow::{Context, Result};
use atoll_core::rng::Rng;
use atoll_kgraph::dkp::{CandidateFacts, Range, lay_out};
use atoll_kgraph::validate::PARAMS_BYTES_MAX;
use atoll_passes::{CANDIDATE_PASSES, PassOptions, transform_with};
use atoll_pipeline::Target;
use atoll_proxy_kernels::{Candidate, DeviceModel, DkpModule, NotPadded, candidate_facts, dkp_modules};
use atoll_ptx::Module;
use atoll_tests::corpus;
use atoll_tests::walk::Walk;
use atoll_tests::{built_small, full, kernel_cache, sample_groups, seed};
use atoll_workbench::{
    Arg, Buffer, HostBench, HostOptions, Inputs, Kernel, KernelDevice, Launch, ParameterBlock, parameter_count,
    without_others,
};
use cases::{CANDIDATES, CASES, Case};

impl Case {
    /// Input and output buffers; the input depends on the seed.
    fn buffers(&self, seed: u32) -> Vec<Buffer> {
        let buffer = |(name, bytes): (&str, Vec<u8>)| Buffer { name: name.into(), bytes, writable: true };
        ["in", "out"].into_iter().zip(self.buffers_of(seed)).map(buffer).collect()
    }

    fn args(&self, first_buffer: usize) -> Vec<Arg> {
        let integers = self.integers().into_iter().map(|value| Arg::Value(value.to_le_bytes().to_vec()));
        [first_buffer, first_buffer + 1].map(Arg::buffer).into_iter().chain(integers).collect()
    }

    fn alone(&self, host: &mut HostBench, module: &Module, seed: u32) -> Vec<u8> {
        let kernel = host.load(&Kernel { module, entry: self.entry, report: None, block: self.block }).unwrap();
        let mut buffers = self.buffers(seed);
        host.launch(&kernel, &Launch { grid: self.grid, shared_bytes: 0, args: self.args(0) }, &mut buffers, 1)
            .unwrap();
        host.unload(kernel);
        buffers.remove(1).bytes
    }
}

/// One dkp launch of several cases, each with its blocks split into ranges `parts` of (case, first
/// block, blocks).
fn together(
    host: &mut HostBench,
    dkp: &DkpModule,
    source: &Module,
    cases: &[Case],
    parts: &[(usize, u32, u32)],
    buffers: &mut [Buffer],
) {
    let mut ranges = Vec::new();
    let mut addresses = Vec::new();
    for &(index, first, blocks) in parts {
        let candidate = &dkp.facts.candidates[index].facts;
        let kernel = source.function(cases[index].entry).unwrap();
        let own = parameter_count(kernel, Some(candidate.virtual_offset));
        let mut block = ParameterBlock::new(kernel, own, &cases[index].args(2 * index), buffers).unwrap();
        block.bytes.resize(candidate.params_bytes as usize, 0);
        addresses.push(block.addresses);
        ranges.push(Range { candidate: index, arguments: block.bytes, grid: cases[index].grid, first, blocks });
    }
    launch(host, dkp, ranges.into_iter().zip(addresses).collect(), buffers).unwrap();
}

/// The candidates' module after the passes for this shape. One module per case, since a shape may
/// be compiled in.
fn prepared(case: &Case, with_shape: bool) -> (Module, CandidateFacts) {
    let mut module = atoll_ptx::parse(CANDIDATES).unwrap();
    let mut options = PassOptions::default();
    if with_shape {
        options.blocks.insert(case.entry.into(), case.block);
    }
    let report = transform_with(&mut module, CANDIDATE_PASSES, &options, &mut |_, _| {}).unwrap();
    let report = report.kernels.iter().find(|k| k.name == case.entry).unwrap();
    (module, candidate_facts(report).unwrap())
}

fn candidate<'a>(case: &Case, (module, facts): &'a (Module, CandidateFacts)) -> Candidate<'a> {
    Candidate { module, kernel: case.entry, facts, block: case.block, registers: 32, dynamic_shared_bytes: 0 }
}

#[test]
fn any_two_kernels_give_the_same_results_together_as_alone() {
    let source = atoll_ptx::parse(CANDIDATES).unwrap();
    let device = DeviceModel::find("host").unwrap();
    let mut host =
        HostBench::start(HostOptions { compute_units: 2, memory_bytes: 1 << 20, ..HostOptions::default() }).unwrap();
    let prepared: Vec<_> = CASES.iter().map(|case| prepared(case, true)).collect();
    for a in 0..CASES.len() {
        for b in a..CASES.len() {
            let cases = [CASES[a], CASES[b]];
            let candidates = [candidate(&CASES[a], &prepared[a]), candidate(&CASES[b], &prepared[b])];
            let modules = dkp_modules(&candidates, device, PARAMS_BYTES_MAX);
            assert!(modules.refused.is_empty(), "{:?}", modules.refused);
            let dkp = &modules.modules[0];
            let mut buffers: Vec<Buffer> =
                cases.iter().zip([1, 2]).flat_map(|(case, seed)| case.buffers(seed)).collect();
            let parts = [(0, 0, cases[0].blocks()), (1, 0, cases[1].blocks())];
            together(&mut host, dkp, &source, &cases, &parts, &mut buffers);
            for (index, case) in cases.iter().enumerate() {
                let expected = case.alone(&mut host, &source, index as u32 + 1);
                assert!(
                    buffers[2 * index + 1].bytes == expected,
                    "{} {:?} beside case {a}/{b}",
                    case.entry,
                    case.block
                );
            }
        }
    }
}

#[test]
fn a_kernel_continues_in_a_later_launch() {
    let source = atoll_ptx::parse(CANDIDATES).unwrap();
    let device = DeviceModel::find("host").unwrap();
    let mut host =
        HostBench::start(HostOptions { compute_units: 2, memory_bytes: 1 << 20, ..HostOptions::default() }).unwrap();
    // Here shapes are parameters, so only cases that need full warps.
    let cases = [CASES[1], CASES[5], CASES[7]];
    let prepared: Vec<_> = cases.iter().map(|case| prepared(case, false)).collect();
    let candidates: Vec<_> = cases.iter().zip(&prepared).map(|(case, p)| candidate(case, p)).collect();
    let modules = dkp_modules(&candidates, device, PARAMS_BYTES_MAX);
    assert!(modules.refused.is_empty(), "{:?}", modules.refused);
    let mut buffers: Vec<Buffer> = cases.iter().zip([1, 2, 3]).flat_map(|(case, seed)| case.buffers(seed)).collect();
    for parts in [vec![(0, 0, 3), (2, 0, 2)], vec![(1, 3, 1), (2, 2, 5), (1, 0, 2)], vec![(2, 7, 2), (1, 2, 1)]] {
        together(&mut host, &modules.modules[0], &source, &cases, &parts, &mut buffers);
    }
    for (index, case) in cases.iter().enumerate() {
        assert!(buffers[2 * index + 1].bytes == case.alone(&mut host, &source, index as u32 + 1), "{}", case.entry);
    }
}

/// A kernel with a KiB of parameters: `out[i] = OPERATION(last word, first word) + i`.
const WIDE: &str = "
.visible .entry NAME(.param .u64 out, .param .align 8 .b8 words[1024])
{
	.reg .b32 %r<8>;
	.reg .b64 %d<3>;
	mov.u32 %r1, %ctaid.x;
	mov.u32 %r2, %ntid.x;
	mov.u32 %r3, %tid.x;
	mad.lo.s32 %r4, %r1, %r2, %r3;
	ld.param.u32 %r5, [words];
	ld.param.u32 %r6, [words+1020];
	OPERATION.s32 %r7, %r6, %r5;
	add.s32 %r7, %r7, %r4;
	ld.param.u64 %d1, [out];
	mul.wide.u32 %d2, %r4, 4;
	add.s64 %d1, %d1, %d2;
	st.global.u32 [%d1], %r7;
	ret;
}
";

#[test]
fn kernels_with_a_kibibyte_of_parameters_share_a_launch() {
    let (names, operations) = (["sums", "differences"], ["add", "sub"]);
    let kernel = |index: usize| WIDE.replace("NAME", names[index]).replace("OPERATION", operations[index]);
    let kernels = kernel(0) + &kernel(1);
    let source = atoll_ptx::parse(&format!(".version 7.0\n.target sm_75\n.address_size 64\n{kernels}")).unwrap();
    let mut module = source.clone();
    let report = transform_with(&mut module, CANDIDATE_PASSES, &PassOptions::default(), &mut |_, _| {}).unwrap();
    let facts = names.map(|name| candidate_facts(report.kernels.iter().find(|k| k.name == name).unwrap()).unwrap());
    let candidates = [0, 1].map(|index| Candidate {
        module: &module,
        kernel: names[index],
        facts: &facts[index],
        block: [64, 1, 1],
        registers: 32,
        dynamic_shared_bytes: 0,
    });
    let modules = dkp_modules(&candidates, DeviceModel::find("host").unwrap(), PARAMS_BYTES_MAX);
    assert!(modules.refused.is_empty(), "{:?}", modules.refused);

    let mut buffers = names.map(|name| Buffer { name: name.into(), bytes: vec![0xEE; 4 * 128], writable: true });
    let word = |index: u32, at: u32| at * 77 + 1000 * (index + 1);
    let part = |index: u32| {
        let words = (0..256).flat_map(|at| word(index, at).to_le_bytes()).collect();
        let args = [Arg::buffer(index as usize), Arg::Value(words)];
        let kernel = source.function(names[index as usize]).unwrap();
        let mut block = ParameterBlock::new(kernel, args.len(), &args, &buffers).unwrap();
        block.bytes.resize(facts[index as usize].params_bytes as usize, 0);
        let range = Range { candidate: index as usize, arguments: block.bytes, grid: [2, 1, 1], first: 0, blocks: 2 };
        (range, block.addresses)
    };
    let parts = vec![part(0), part(1)];
    let options = HostOptions { compute_units: 2, memory_bytes: 1 << 20, ..HostOptions::default() };
    launch(&mut HostBench::start(options).unwrap(), &modules.modules[0], parts, &mut buffers).unwrap();
    let combined = [word(0, 255) + word(0, 0), word(1, 255) - word(1, 0)];
    for (buffer, combined) in buffers.iter().zip(combined) {
        let expected: Vec<u8> = (0..128).flat_map(|thread| (combined + thread).to_le_bytes()).collect();
        assert!(buffer.bytes == expected, "{}", buffer.name);
    }
}

/// A kernel of the corpus in one shape, prepared for padding.
struct Foreign {
    name: String,
    source: Module,
    prepared: Module,
    entry: String,
    facts: Result<CandidateFacts, NotPadded>,
    inputs: Inputs,
}

impl Foreign {
    fn new(name: String, source: &Module, entry: &str, inputs: Inputs) -> Result<Foreign> {
        // Other kernels of a model's module would be copied once per candidate.
        let source = without_others(source, entry);
        let mut prepared = source.clone();
        let blocks = [(entry.into(), inputs.block)].into();
        let report = transform_with(
            &mut prepared,
            CANDIDATE_PASSES,
            &PassOptions { blocks, ..PassOptions::default() },
            &mut |_, _| {},
        )?;
        let facts = candidate_facts(report.kernels.iter().find(|k| k.name == entry).context("the kernel's report")?);
        Ok(Foreign { name, source, prepared, entry: entry.into(), facts, inputs })
    }

    fn candidate(&self) -> Result<Candidate<'_>, &NotPadded> {
        let dynamic_shared_bytes = self.inputs.launch.shared_bytes;
        let (module, kernel, block) = (&self.prepared, self.entry(), self.inputs.block);
        Ok(Candidate { module, kernel, facts: self.facts.as_ref()?, block, registers: 32, dynamic_shared_bytes })
    }

    /// Why no dkp module accepts it.
    fn refusal(&self, device: &'static DeviceModel) -> Option<String> {
        match self.candidate() {
            Ok(candidate) => dkp_modules(&[candidate], device, PARAMS_BYTES_MAX)
                .refused
                .first()
                .map(|(_, reason)| reason.to_string()),
            Err(reason) => Some(reason.to_string()),
        }
    }

    fn entry(&self) -> &str {
        &self.entry
    }

    fn alone(&self, host: &mut HostBench) -> Result<Vec<Buffer>> {
        let kernel =
            host.load(&Kernel { module: &self.source, entry: self.entry(), report: None, block: self.inputs.block })?;
        let mut buffers = self.inputs.buffers.clone();
        host.launch(&kernel, &self.inputs.launch, &mut buffers, 1)?;
        host.unload(kernel);
        Ok(buffers)
    }

    /// Its whole launch as a range, with its buffers starting at an index.
    fn range(
        &self,
        dkp: &DkpModule,
        candidate: usize,
        first_buffer: usize,
        buffers: &[Buffer],
    ) -> Result<(Range, Addresses)> {
        let facts = &dkp.facts.candidates[candidate].facts;
        let kernel = self.source.function(self.entry()).expect("it was prepared");
        let shift = |arg: &Arg| match arg {
            Arg::Buffer { index, offset } => Arg::Buffer { index: index + first_buffer, offset: *offset },
            other => other.clone(),
        };
        let args: Vec<Arg> = self.inputs.launch.args.iter().map(shift).collect();
        let mut block = ParameterBlock::new(kernel, parameter_count(kernel, None), &args, buffers)?;
        block.bytes.resize(facts.params_bytes as usize, 0);
        let grid = self.inputs.launch.grid;
        Ok((
            Range { candidate, arguments: block.bytes, grid, first: 0, blocks: grid.iter().product() },
            block.addresses,
        ))
    }
}

type Addresses = Vec<(usize, usize, u64)>;

/// Every kernel of the corpus that can be a candidate, in each of its shapes, with the shape
/// compiled in; in a run that is not full, one file and shape of every second kernel. Cases whose results
/// depend on the order of blocks are left out.
fn foreign() -> Result<Vec<Foreign>> {
    let cases: Vec<_> = corpus::cases()?.into_iter().filter(|case| case.compare.is_none()).collect();
    let (modules, mut found) = (modules()?, Vec::new());
    for (case, path, launch) in sample_groups("dkp", corpus::launches(&cases), 2, |&(case, ..)| &case.name) {
        let name = format!("{} ({})", case.name, path.file_name().unwrap_or_default().to_string_lossy());
        found.push(Foreign::new(name, &modules[path], &case.name, case.inputs(launch)?)?);
    }
    Ok(found)
}

/// The kernels of small variants of models, with the inputs that the preceding nodes computed.
fn of_models(names: &[&str], random: &mut Rng) -> Result<Vec<Foreign>> {
    let folder = tempfile::tempdir()?;
    let mut found = Vec::new();
    for name in names {
        Walk::new(&built_small(name, folder.path())?, Target::NVIDIA, folder.path(), random)?.each_kernel(
            &mut |trial| {
                let inputs = Inputs::bytes(trial.launch.clone(), trial.block, trial.buffers.clone());
                found.push(Foreign::new(format!("{} ({name})", trial.entry), trial.module, trial.entry, inputs)?);
                Ok(())
            },
        )?;
    }
    Ok(found)
}

#[test]
fn kernels_of_other_compilers_share_launches() -> Result<()> {
    share_launches(&foreign()?, if full() { 150 } else { 20 })
}

#[test]
fn kernels_of_models_share_launches() -> Result<()> {
    let names: &[&str] =
        if full() { &["squeezenet", "distilbert", "mobilenet_v2", "densenet121"] } else { &["squeezenet"] };
    share_launches(&of_models(names, &mut Rng::new(seed()))?, if full() { 100 } else { 6 })
}

/// Launches pairs of kernels together and compares with each kernel alone.
#[expect(clippy::print_stdout, reason = "what was compared, and what was not and why, is part of the test's output")]
fn share_launches(candidates: &[Foreign], pairs: usize) -> Result<()> {
    let seed = seed();
    let mut random = Rng::new(seed);
    let device = DeviceModel::find("host").expect("a device of the table");
    let mut host = HostBench::start(HostOptions { compute_units: 2, memory_bytes: 1 << 30, ..HostOptions::default() })?
        .with_cache(kernel_cache());
    let mut reasons = Vec::new();
    let usable: Vec<&Foreign> = candidates
        .iter()
        .filter(|foreign| {
            let refusal = foreign.refusal(device);
            reasons.extend(refusal.as_ref().map(|reason| format!("{}: {reason}", foreign.name)));
            refusal.is_none()
        })
        .collect();
    reasons.dedup();
    println!("{} launches can share, {} kernels cannot:\n{}", usable.len(), reasons.len(), reasons.join("\n"));
    let pick = |random: &mut Rng| usable[random.below(usable.len() as u64) as usize];
    for _ in 0..pairs {
        let pair = [pick(&mut random), pick(&mut random)];
        let candidates = pair.map(|foreign| foreign.candidate().expect("only those that can share are paired"));
        let dkp = dkp_modules(&candidates, device, PARAMS_BYTES_MAX).modules.remove(0);
        let second = pair[0].inputs.buffers.len();
        let mut buffers: Vec<Buffer> = pair.iter().flat_map(|foreign| foreign.inputs.buffers.clone()).collect();
        let parts = vec![pair[0].range(&dkp, 0, 0, &buffers)?, pair[1].range(&dkp, 1, second, &buffers)?];
        let context = format!(
            "{} {:?} beside {} {:?}, ATOLL_SEED={seed}",
            pair[0].name, pair[0].inputs.block, pair[1].name, pair[1].inputs.block
        );
        launch(&mut host, &dkp, parts, &mut buffers).map_err(|e| e.context(context.clone()))?;
        let expected: Vec<Buffer> = [pair[0].alone(&mut host)?, pair[1].alone(&mut host)?].concat();
        for (found, expected) in buffers.iter().zip(&expected) {
            anyhow::ensure!(found.bytes == expected.bytes, "{}: {context}", found.name);
        }
    }
    Ok(())
}

fn launch(host: &mut HostBench, dkp: &DkpModule, parts: Vec<(Range, Addresses)>, buffers: &mut [Buffer]) -> Result<()> {
    let (ranges, addresses): (Vec<Range>, Vec<Addresses>) = parts.into_iter().unzip();
    let laid_out = lay_out(&dkp.facts, &ranges)?;
    let addresses = laid_out
        .arguments_at
        .iter()
        .zip(addresses)
        .flat_map(|(at, list)| list.into_iter().map(move |(a, b, o)| (at + a, b, o)));
    let slots = Arg::Struct { bytes: laid_out.params, addresses: addresses.collect() };
    let loaded = host.load(&Kernel {
        module: &dkp.module,
        entry: &dkp.facts.entry,
        report: None,
        block: [dkp.facts.threads[laid_out.size], 1, 1],
    })?;
    let launch = Launch { grid: [laid_out.blocks, 1, 1], shared_bytes: laid_out.shared_bytes, args: vec![slots] };
    let outcome = host.launch(&loaded, &launch, buffers, 1);
    host.unload(loaded);
    outcome?;
    Ok(())
}
