//! Kernels of other compilers give the same results after every pass: undisturbed, and evicted at
//! random moments and resumed.
//!
//! Each case runs on one compute unit, so that atomics have the same order and results can be
//! compared bit by bit. `ATOLL_SEED` selects the moments and, in a run that is not full, the file and
//! the shape of each kernel; `ATOLL_PASS` tests a single pass.

use crate::corpus::modules;
use anyhow::{Context, Result, bail, ensure};
use atoll_core::rng::Rng;
use atoll_passes::{
    FenceForm, Fencing, KernelReport, LoopDecision, Outlining, PASSES, PassOptions, Preemption, Virtualization,
    analyze_idempotence, transform_with,
};
use atoll_pipeline::Target;
use atoll_ptx::Module;
use atoll_tests::corpus::{cases, launches};
use atoll_tests::walk::Walk;
use atoll_tests::{built_small, full, kernel_cache, sample, sample_groups};
use atoll_workbench::{
    Buffer, Evictions, HostBench, HostOptions, Inputs, Kernel, KernelDevice, LoadedKernel, without_others,
};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// The pass that refuses whole kernels; these must not be launched.
const FENCE: &str = "fence_memory";

/// Buffer memory: far more than a kernel needs, since a fenced kernel's buffers occupy ranges of
/// powers of two.
const MEMORY_BYTES: u64 = 1 << 30;

/// Evictions per launch.
const EVICTIONS: usize = 4;

/// Longest time before an eviction; most of these kernels take less than a tenth of a millisecond.
const MICROSECONDS_MAX: u64 = 40;

/// Each pass alone (or the one that `ATOLL_PASS` names), and finally all passes together.
fn selections() -> Vec<Vec<&'static str>> {
    let names: Vec<&'static str> = PASSES.iter().map(|pass| pass.name).collect();
    let wanted = std::env::var("ATOLL_PASS").ok();
    let alone = names.iter().filter(|name| wanted.as_ref().is_none_or(|wanted| wanted == *name));
    alone.map(|name| vec![*name]).chain([names.clone()]).collect()
}

/// Options of the passes for the kernels of a module, launched with this shape on buffers that do
/// not overlap.
fn options(module: &Module, block: [u32; 3]) -> PassOptions {
    let again = module.kernels().filter(|kernel| analyze_idempotence(module, kernel).holds_on_buffers_apart());
    PassOptions {
        blocks: module.kernels().map(|kernel| (kernel.name.clone(), block)).collect(),
        may_run_again: again.map(|kernel| kernel.name.clone()).collect(),
        // Frequent checks, so that the loops of small tests reach them.
        check_every: Some(4),
        ..PassOptions::default()
    }
}

/// The results of a kernel.
#[derive(PartialEq)]
struct Done {
    buffers: Vec<Buffer>,
    printed: String,
}

/// Runs kernels and counts what the passes did.
struct Bench {
    host: HostBench,
    random: Rng,
    seed: u64,
    evictions: u32,
    launches: u32,
    treated: BTreeMap<&'static str, (u32, u32)>,
}

impl Bench {
    fn start() -> Result<Bench> {
        let seed = atoll_tests::seed();
        let host =
            HostBench::start(HostOptions { compute_units: 1, memory_bytes: MEMORY_BYTES, ..HostOptions::default() })?
                .with_cache(kernel_cache());
        Ok(Bench { host, random: Rng::new(seed), seed, evictions: 0, launches: 0, treated: BTreeMap::new() })
    }

    fn plain(&mut self, module: &Module, entry: &str, inputs: &Inputs) -> Result<Done> {
        self.with_loaded(&Kernel { module, entry, report: None, block: inputs.block }, |bench, kernel| {
            bench.run(kernel, inputs, &Evictions::default())
        })
    }

    /// Loads a kernel once for all of its launches, since compiling takes longer than launching.
    fn with_loaded<R>(
        &mut self,
        kernel: &Kernel<'_>,
        launch: impl FnOnce(&mut Bench, &LoadedKernel) -> Result<R>,
    ) -> Result<R> {
        let loaded = self.host.load(kernel)?;
        let result = launch(self, &loaded);
        self.host.unload(loaded);
        result
    }

    fn run(&mut self, kernel: &LoadedKernel, inputs: &Inputs, evictions: &Evictions) -> Result<Done> {
        let mut buffers = inputs.buffers.clone();
        let outcome = match evictions.after.is_empty() {
            true => self.host.launch(kernel, &inputs.launch, &mut buffers, 1),
            false => self.host.launch_evicted(kernel, &inputs.launch, &mut buffers, evictions),
        }?;
        self.launches += 1;
        self.evictions += outcome.evictions;
        Ok(Done { buffers, printed: outcome.printed })
    }

    /// Compares a transformed kernel with the plain one, undisturbed and evicted.
    fn check(
        &mut self,
        module: &Module,
        entry: &str,
        inputs: &Inputs,
        passes: &[&'static str],
        expected: &Done,
    ) -> Result<()> {
        let alone = without_others(module, entry);
        let mut transformed = alone.clone();
        let fence_form = if self.random.below(2) == 0 { FenceForm::Mask } else { FenceForm::Trap };
        let options = PassOptions { fence_form, ..options(&alone, inputs.block) };
        let report = transform_with(&mut transformed, passes, &options, &mut |_, _| {})?;
        let report = report.kernels.iter().find(|kernel| kernel.name == entry).context("the kernel's report")?;
        self.note(report);
        if matches!(report.fencing, Fencing::Refused(_)) {
            let others: Vec<_> = passes.iter().copied().filter(|name| *name != FENCE).collect();
            return if others.is_empty() { Ok(()) } else { self.check(module, entry, inputs, &others, expected) };
        }
        if transformed == alone {
            return Ok(());
        }
        let kernel = Kernel { module: &transformed, entry, report: Some(report), block: inputs.block };
        self.with_loaded(&kernel, |bench, kernel| bench.launch_both_ways(kernel, report, inputs, expected))
            .with_context(|| format!("ATOLL_SEED={}, {fence_form:?}", self.seed))
    }

    /// Compares the results of a loaded kernel with the expected ones: undisturbed and, if it is
    /// preemptible, evicted and resumed.
    fn launch_both_ways(
        &mut self,
        kernel: &LoadedKernel,
        report: &KernelReport,
        inputs: &Inputs,
        expected: &Done,
    ) -> Result<()> {
        let undisturbed = self.run(kernel, inputs, &Evictions::default()).context("undisturbed")?;
        compare(expected, &undisturbed, true).context("undisturbed")?;
        if report.preempt_offset().is_some() {
            let mut moment = || Duration::from_micros(self.random.below(MICROSECONDS_MAX));
            let evictions = Evictions { after: (0..EVICTIONS).map(|_| moment()).collect() };
            let resumed = self.run(kernel, inputs, &evictions).context("evicted and resumed")?;
            // A block that stopped midway prints its output again.
            let prints_once = report.loops.iter().all(|found| matches!(found.decision, LoopDecision::Skipped(_)));
            compare(expected, &resumed, prints_once).context("evicted and resumed")?;
        }
        Ok(())
    }

    fn note(&mut self, report: &KernelReport) {
        let mut note = |what, done| {
            let (treated, left) = self.treated.entry(what).or_default();
            *if done { treated } else { left } += 1;
        };
        match &report.fencing {
            Fencing::NotAsked => {}
            fencing => note("fenced", matches!(fencing, Fencing::Fenced { .. })),
        }
        match &report.preemption {
            Preemption::NotAsked => {}
            preemption => note("preemptible", matches!(preemption, Preemption::Injected { .. })),
        }
        match &report.virtualization {
            Virtualization::NotAsked => {}
            virtualization => note("virtual", matches!(virtualization, Virtualization::Virtual(_))),
        }
        match &report.outlining {
            Outlining::NotAsked => {}
            outlining => note("outlined", matches!(outlining, Outlining::Outlined { .. })),
        }
        for found in &report.loops {
            note("loops checked", matches!(found.decision, LoopDecision::Checked { .. }));
        }
    }
}

fn compare(expected: &Done, found: &Done, with_prints: bool) -> Result<()> {
    for (expected, found) in expected.buffers.iter().zip(&found.buffers) {
        if let Some(at) = expected.bytes.iter().zip(&found.bytes).position(|(a, b)| a != b) {
            bail!("{}: byte {at} is {} and was {}", expected.name, found.bytes[at], expected.bytes[at]);
        }
    }
    if with_prints && expected.printed != found.printed {
        bail!("it printed {:?}, expected {:?}", found.printed, expected.printed);
    }
    Ok(())
}

#[test]
#[expect(clippy::print_stdout, reason = "what was treated is part of the test's output")]
fn transformed_kernels_give_the_same_results() -> Result<()> {
    let mut bench = Bench::start()?;
    let (cases, modules) = (cases()?, modules()?);
    let selections = selections();
    let all = selections.len() - 1;
    let mut failures = Vec::new();
    let launches = sample_groups("passes", launches(&cases), 2, |&(case, ..)| &case.name);
    for (turn, (case, path, shape)) in launches.into_iter().enumerate() {
        let (module, inputs) = (&modules[path], case.inputs(shape)?);
        let expected = match bench.plain(module, &case.name, &inputs) {
            Ok(done) => done,
            // Another test reports kernels that the host cannot run untransformed.
            Err(_) => continue,
        };
        for (number, passes) in selections.iter().enumerate() {
            // In a full run: all passes together for every shape, and each single pass for one shape
            // of the file, in turn. Otherwise: all passes for one kernel, a single pass for the next.
            let its_turn = if full() {
                // The same for all shapes of a file.
                let first = turn - shape;
                number == all || (first + number) % case.launches.len() == shape
            } else if turn % 2 == 0 {
                number == all
            } else {
                number == turn / 2 % all
            };
            if its_turn {
                let (file, block) = (path.display(), inputs.block);
                let name = format!("{} of {file}, block {block:?}, after {}", case.name, passes.join(","));
                let differs = bench.check(module, &case.name, &inputs, passes, &expected).err();
                failures.extend(differs.map(|error| format!("{name}: {error:#}")));
            }
        }
    }
    println!("{} launches, {} evictions; done and left: {:?}", bench.launches, bench.evictions, bench.treated);
    if !failures.is_empty() {
        bail!("{} of them differ:\n{}", failures.len(), failures.join("\n"));
    }
    Ok(())
}

/// What a kernel of a model does, by its name: `conv` of `conv` and of `conv_2`.
fn kind(name: &str) -> &str {
    match name.rsplit_once('_') {
        Some((kind, number)) if number.bytes().all(|byte| byte.is_ascii_digit()) => kind,
        _ => name,
    }
}

/// Models whose kernels are tested, in small variants; the first ones in every run, with two kernels
/// of each kind. Kernels are scheduled differently for the host and for GPUs.
const MODELS: [&str; 7] =
    ["squeezenet", "distilbert", "mobilenet_v2", "resnet18", "densenet121", "inception_v3", "vgg19"];

#[test]
#[expect(clippy::print_stdout, reason = "what was treated is part of the test's output")]
fn transformed_kernels_of_models_give_the_same_results() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let mut bench = Bench::start()?;
    let selections = selections();
    let (mut failures, mut kernels) = (Vec::new(), 0);
    for (number, name) in MODELS.into_iter().enumerate().take(if full() { MODELS.len() } else { 2 }) {
        let targets = [Target::NVIDIA, Target::this_host()];
        for target in
            targets.into_iter().enumerate().filter(|(index, _)| full() || *index == number).map(|(_, target)| target)
        {
            let mut walk =
                Walk::new(&built_small(name, folder.path())?, target, folder.path(), &mut Rng::new(bench.seed))?;
            let names = walk.module.kernels().map(|kernel| kernel.name.to_string()).collect();
            let test = format!("passes on {name}");
            let drawn: BTreeSet<String> = sample(&test, names, 2, |name| kind(name).to_owned()).into_iter().collect();
            walk.each_kernel(&mut |trial| {
                if !drawn.contains(trial.entry) {
                    return Ok(());
                }
                let inputs = Inputs::bytes(trial.launch.clone(), trial.block, trial.buffers.clone());
                let expected = bench.plain(trial.module, trial.entry, &inputs)?;
                kernels += 1;
                for (turn, passes) in selections.iter().enumerate() {
                    // All passes together for one kernel, a single pass for the next. In a full run,
                    // each selection for every fourth kernel.
                    let its_turn = if kernels % 2 == 0 {
                        turn + 1 == selections.len()
                    } else {
                        turn == kernels / 2 % selections.len()
                    };
                    if its_turn || full() && kernels % 4 == 0 {
                        let place =
                            format!("{} of {name} for {}, after {}", trial.entry, target.name(), passes.join(","));
                        let differs = bench.check(trial.module, trial.entry, &inputs, passes, &expected).err();
                        failures.extend(differs.map(|error| format!("{place}: {error:#}")));
                    }
                }
                Ok(())
            })?;
        }
    }
    println!(
        "{kernels} kernels, {} launches, {} evictions; done and left: {:?}",
        bench.launches, bench.evictions, bench.treated
    );
    ensure!(failures.is_empty(), "{} of them differ:\n{}", failures.len(), failures.join("\n"));
    Ok(())
}
