//! File tests: each folder beside this file is named after a pass (or `pipeline`, or `all`). Each
//! `NAME.ptx` in it is an input, and `NAME.snap` the expected output with a report on every kernel.
//! Blocks of kernels may run again unless the kernel's name ends in `_once`. To add a test, add an
//! input and run with `INSTA_UPDATE=always`, which writes the output; then review it.

#![expect(clippy::print_stderr, reason = "a skipped check must be seen")]

use atoll_passes::{
    FenceForm, Fencing, KernelReport, LoopDecision, Outlining, PASSES, PassOptions, Preemption, Virtualization,
    transform_with,
};
use atoll_target_nvidia::{Ptxas, find_ptxas};
use std::fs;
use std::path::{Path, PathBuf};

/// Architectures for which every output must assemble, unless its `.target` is newer.
const ARCHITECTURES: [u32; 4] = [75, 80, 90, 120];

/// Marks an input whose output cannot be assembled alone.
const NOT_ASSEMBLED: &str = "(not assembled";

/// The passes that fence kernels for GPUs, which they do in a form of their own.
const FOR_GPUS: [&str; 2] = ["fence_memory", "exit_on_trap"];

/// The folders of inputs, each with the passes that it runs.
fn folders() -> Vec<(&'static str, Vec<&'static str>)> {
    let alone = [
        "inject_preempt_flag",
        "fence_memory",
        "check_in_loops",
        "shared_to_dynamic",
        "virtualize_block_index",
        "outline_kernel_body",
        "reduce_divisions",
        "remove_unreachable_code",
        "remove_dead_registers",
    ];
    let together = [
        ("exit_on_trap", FOR_GPUS.to_vec()),
        ("pipeline", vec!["inject_preempt_flag", "shared_to_dynamic"]),
        ("all", PASSES.iter().map(|pass| pass.name).collect::<Vec<_>>()),
    ];
    alone.into_iter().map(|name| (name, vec![name])).chain(together).collect()
}

/// One test for all folders: insta counts the snapshots of a glob per test.
#[test]
fn outputs_match_the_snapshots() {
    insta::with_settings!({ prepend_module_to_snapshot => false, omit_expression => true }, {
        for (folder, passes) in folders() {
            insta::glob!(folder, "*.ptx", |input| {
                let source = fs::read_to_string(input).expect("text");
                let (report, output) = run(&source, &passes).unwrap_or_else(|error| panic!("{}: \
                {error}", input.display()));
                let name = input.file_stem().and_then(|name| name.to_str()).expect("a name");
                insta::with_settings!({ snapshot_path => folder, snapshot_suffix => "" }, {
                    insta::assert_snapshot!(name, report + &output)
                });
            });
        }
    });
}

#[test]
fn outputs_assemble() {
    let Some(ptxas) = find_ptxas() else {
        eprintln!("SKIPPED: no ptxas found; set ATOLL_PTXAS to assemble the outputs");
        return;
    };
    let inputs: Vec<(PathBuf, Vec<&str>)> = folders()
        .into_iter()
        .flat_map(|(folder, passes)| inputs(folder).map(move |input| (input, passes.clone())))
        .collect();
    assert!(!inputs.is_empty());
    // Two threads, because the test mostly waits for the assembler.
    let failures: Vec<String> = std::thread::scope(|scope| {
        let halves = inputs.chunks(inputs.len().div_ceil(2)).map(|half| {
            scope.spawn(|| half.iter().filter_map(|(input, passes)| failure(&ptxas, input, passes)).collect::<Vec<_>>())
        });
        halves.collect::<Vec<_>>().into_iter().flat_map(|half| half.join().expect("no panic")).collect()
    });
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

/// The inputs of a folder.
fn inputs(folder: &str) -> impl Iterator<Item = PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(folder);
    let files = fs::read_dir(folder).expect("the folder of a pass").flatten().map(|entry| entry.path());
    files.filter(|path| path.extension().is_some_and(|extension| extension == "ptx"))
}

/// The assembler's error for the output of an input, unless the input is marked as not assembled.
fn failure(ptxas: &Ptxas, input: &Path, passes: &[&str]) -> Option<String> {
    let source = fs::read_to_string(input).expect("text");
    let (_, output) = run(&source, passes).unwrap_or_else(|error| panic!("{}: {error}", input.display()));
    let error = (!source.contains(NOT_ASSEMBLED)).then(|| assemble(ptxas, &output)).flatten()?;
    Some(format!("{}: {error}", input.display()))
}

/// The report as comments, and the transformed text.
fn run(source: &str, passes: &[&str]) -> Result<(String, String), Box<dyn std::error::Error>> {
    let mut module = atoll_ptx::parse(source)?;
    let may_run_again =
        module.kernels().map(|kernel| kernel.name.clone()).filter(|name| !name.ends_with("_once")).collect();
    let fence_form = if passes == FOR_GPUS { FenceForm::Exit } else { FenceForm::Mask };
    let options = PassOptions { may_run_again, fence_form, ..PassOptions::default() };
    let report = transform_with(&mut module, passes, &options, &mut |_, _| {})?;
    Ok((report.kernels.iter().map(describe).collect(), atoll_ptx::print(&module)))
}

/// The report on a kernel, one line for each pass that changed or rejected it.
fn describe(kernel: &KernelReport) -> String {
    let mut lines = vec![format!("{} bytes of parameters", kernel.params_bytes)];
    if kernel.shared_bytes > 0 || kernel.has_dynamic_shared {
        let dynamic = if kernel.has_dynamic_shared { " and dynamic" } else { "" };
        lines.push(format!("{} bytes of shared memory{dynamic}", kernel.shared_bytes));
    }
    lines.extend(kernel.kept_shared.iter().map(|reason| format!("stays static: {reason}")));
    match &kernel.fencing {
        Fencing::NotAsked => {}
        Fencing::Fenced { offset } => lines.push(format!("fenced: parameters at {offset}")),
        Fencing::Refused(reason) => lines.push(format!("not fenced: {reason}")),
    }
    match &kernel.preemption {
        Preemption::NotAsked => {}
        Preemption::Injected { offset, completion } => {
            lines.push(format!("flag: parameters at {offset}, completion by {completion:?}"))
        }
        Preemption::NotPreemptible(reason) => lines.push(format!("not preemptible: {reason}")),
    }
    match &kernel.virtualization {
        Virtualization::NotAsked => {}
        Virtualization::Virtual(launch) => lines.push(format!("virtual: {launch:?}")),
        Virtualization::Refused(reason) => lines.push(format!("not virtual: {reason}")),
    }
    match &kernel.outlining {
        Outlining::NotAsked => {}
        Outlining::Outlined { function } => lines.push(format!("outlined as {function}")),
        Outlining::Refused(reason) => lines.push(format!("not outlined: {reason}")),
    }
    lines.extend(kernel.loops.iter().map(|outcome| match &outcome.decision {
        LoopDecision::Checked { every, strips } => {
            format!(
                "loop at line {}: checked every {every} iterations{}",
                outcome.line,
                if *strips { ", in strips" } else { "" }
            )
        }
        LoopDecision::Skipped(reason) => format!("loop at line {}: {reason}", outcome.line),
    }));
    let counts = [
        (kernel.unreachable_statements, "unreachable statements removed"),
        (kernel.reduced_divisions, "divisions reduced"),
        (kernel.dead_instructions, "dead instructions removed"),
    ];
    lines.extend(counts.into_iter().filter(|(count, _)| *count > 0).map(|(count, what)| format!("{count} {what}")));
    lines.iter().map(|line| format!("// {}: {line}\n", kernel.name)).collect()
}

/// The assembler's error for an output.
fn assemble(ptxas: &Ptxas, output: &str) -> Option<String> {
    let target: u32 = output.split(".target sm_").nth(1)?.split_whitespace().next()?.parse().ok()?;
    ARCHITECTURES
        .into_iter()
        .filter(|&sm| sm >= target)
        .find_map(|sm| ptxas.assemble(output, &format!("sm_{sm}")).err())
        .map(|error| error.to_string())
}
