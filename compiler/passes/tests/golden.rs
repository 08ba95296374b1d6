//! File tests: each folder beside this file is a pass (or `pipeline`, all of them), each `NAME.ptx` in it an input, and `NAME.expected` what must come out, behind
//! a report on every kernel. Kernels but those named `…_once` may be run again. To add a test, add an input and run with `ATOLL_BLESS=1`, which writes what comes out; then read it.

#![expect(clippy::print_stderr, reason = "a skipped check must be seen")]

use atoll_passes::{Fencing, KernelReport, LoopDecision, Outlining, PASSES, PassOptions, Preemption, Virtualization, transform_with};
use atoll_target_nvidia::{Ptxas, find_ptxas};
use std::fs;
use std::path::{Path, PathBuf};

/// Architectures that every output must assemble for, where its `.target` is not newer.
const ARCHITECTURES: [u32; 4] = [75, 80, 90, 120];

/// What an input says that cannot be assembled alone.
const NOT_ASSEMBLED: &str = "(not assembled";

#[test]
fn inject_preempt_flag() {
    check_folder("inject_preempt_flag", &["inject_preempt_flag"]);
}

#[test]
fn fence_memory() {
    check_folder("fence_memory", &["fence_memory"]);
}

#[test]
fn check_in_loops() {
    check_folder("check_in_loops", &["check_in_loops"]);
}

#[test]
fn shared_to_dynamic() {
    check_folder("shared_to_dynamic", &["shared_to_dynamic"]);
}

#[test]
fn virtualize_block_index() {
    check_folder("virtualize_block_index", &["virtualize_block_index"]);
}

#[test]
fn outline_kernel_body() {
    check_folder("outline_kernel_body", &["outline_kernel_body"]);
}

#[test]
fn reduce_divisions() {
    check_folder("reduce_divisions", &["reduce_divisions"]);
}

#[test]
fn remove_unreachable_code() {
    check_folder("remove_unreachable_code", &["remove_unreachable_code"]);
}

#[test]
fn remove_dead_registers() {
    check_folder("remove_dead_registers", &["remove_dead_registers"]);
}

#[test]
fn pipeline() {
    check_folder("pipeline", &["inject_preempt_flag", "shared_to_dynamic"]);
}

#[test]
fn all() {
    check_folder("all", &PASSES.iter().map(|pass| pass.name).collect::<Vec<_>>());
}

fn check_folder(folder: &str, passes: &[&str]) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(folder);
    let mut inputs: Vec<PathBuf> = fs::read_dir(&folder).expect("the folder of a pass").flatten().map(|entry| entry.path()).collect();
    inputs.retain(|path| path.extension().is_some_and(|extension| extension == "ptx"));
    inputs.sort();
    assert!(!inputs.is_empty(), "no inputs in {}", folder.display());
    let ptxas = find_ptxas();
    if ptxas.is_none() {
        eprintln!("SKIPPED: no ptxas found; set ATOLL_PTXAS to assemble the outputs");
    }
    let bless = std::env::var_os("ATOLL_BLESS").is_some();
    let mut failures = Vec::new();
    for input in inputs {
        let source = fs::read_to_string(&input).expect("text");
        let (report, output) = run(&source, passes).unwrap_or_else(|error| panic!("{}: {error}", input.display()));
        let actual = report + &output;
        let expected = input.with_extension("expected");
        if bless {
            fs::write(&expected, &actual).expect("the folder can be written");
        } else if fs::read_to_string(&expected).unwrap_or_default() != actual {
            failures.push(format!("{} differs; this came out:\n{actual}", expected.display()));
        }
        if let Some(ptxas) = ptxas.as_ref().filter(|_| !source.contains(NOT_ASSEMBLED)) {
            failures.extend(assemble(ptxas, &output).map(|error| format!("{}: {error}", input.display())));
        }
    }
    assert!(failures.is_empty(), "{}\nATOLL_BLESS=1 accepts new outputs", failures.join("\n"));
}

/// The report as comments, and the transformed text.
fn run(source: &str, passes: &[&str]) -> Result<(String, String), Box<dyn std::error::Error>> {
    let mut module = atoll_ptx::parse(source)?;
    let may_run_again = module.kernels().map(|kernel| kernel.name.clone()).filter(|name| !name.ends_with("_once")).collect();
    let report = transform_with(&mut module, passes, &PassOptions { may_run_again, ..PassOptions::default() }, &mut |_, _| {})?;
    Ok((report.kernels.iter().map(describe).collect(), atoll_ptx::print(&module)))
}

/// The report on a kernel, a line for each pass that had something to say.
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
        Preemption::Injected { offset, completion } => lines.push(format!("flag: parameters at {offset}, completion by {completion:?}")),
        Preemption::NotCut(reason) => lines.push(format!("not cut: {reason}")),
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
            format!("loop at line {}: checked every {every} rounds{}", outcome.line, if *strips { ", in strips" } else { "" })
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

/// What the assembler has against an output.
fn assemble(ptxas: &Ptxas, output: &str) -> Option<String> {
    let target: u32 = output.split(".target sm_").nth(1)?.split_whitespace().next()?.parse().ok()?;
    ARCHITECTURES
        .into_iter()
        .filter(|&sm| sm >= target)
        .find_map(|sm| ptxas.assemble(output, &format!("sm_{sm}")).err())
        .map(|error| error.to_string())
}
