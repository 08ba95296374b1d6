//! File tests: each folder beside this file is a pass (or `pipeline`, all of them), each `NAME.ptx` in it an input, and `NAME.expected` what must come out, behind
//! a report on every kernel. To add a test, add an input and run with `ATOLL_BLESS=1`, which writes what comes out; then read it.

#![expect(clippy::print_stderr, reason = "a skipped check must be seen")]

use atoll_passes::{KernelReport, Preemption, TransformOptions, transform};
use atoll_target_nvidia::{Ptxas, find_ptxas};
use std::fs;
use std::path::{Path, PathBuf};

/// Architectures that every output must assemble for, where its `.target` is not newer.
const ARCHITECTURES: [u32; 3] = [75, 80, 90];

/// What an input says that cannot be assembled alone.
const NOT_ASSEMBLED: &str = "(not assembled";

#[test]
fn inject_preempt_flag() {
    check_folder("inject_preempt_flag", TransformOptions { inject_preempt_flag: true, shared_to_dynamic: false });
}

#[test]
fn shared_to_dynamic() {
    check_folder("shared_to_dynamic", TransformOptions { inject_preempt_flag: false, shared_to_dynamic: true });
}

#[test]
fn pipeline() {
    check_folder("pipeline", TransformOptions::default());
}

fn check_folder(folder: &str, options: TransformOptions) {
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
        let (report, output) = run(&source, options).unwrap_or_else(|error| panic!("{}: {error}", input.display()));
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
fn run(source: &str, options: TransformOptions) -> Result<(String, String), Box<dyn std::error::Error>> {
    let mut module = atoll_ptx::parse(source)?;
    let report = transform(&mut module, &options, &mut |_, _| {})?;
    Ok((report.kernels.iter().map(describe).collect(), atoll_ptx::print(&module)))
}

fn describe(kernel: &KernelReport) -> String {
    let preemption = match &kernel.preemption {
        Preemption::NotAsked => "not asked".to_owned(),
        Preemption::Injected { offset, completion } => format!("parameters at {offset}, completion by {completion:?}"),
        Preemption::NotCut(reason) => format!("not cut: {reason}"),
    };
    let shared = if kernel.has_dynamic_shared { " and dynamic" } else { "" };
    format!(
        "// {}: {} bytes of parameters, {} bytes of shared memory{shared}; {preemption}\n",
        kernel.name, kernel.params_bytes, kernel.shared_bytes
    )
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
