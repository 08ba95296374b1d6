//! Checks code objects of the corpus with LLVM's tools.

mod common;

use atoll_passes::{
    FenceForm, Fencing, KernelReport, LoopDecision, PassOptions, Preemption, TransformOptions, analyze_idempotence,
    transform_with,
};
use atoll_ptx::Module;
use atoll_target_amd::{Architecture, KernelFacts, Options, compile};

/// The files of kernels, unless the whole corpus is tested, and the architectures. The second one
/// has kernels with long loops.
const FILE: &str = "elementwise.nvcc";
const FILE_OF_LOOPS: &str = "networks.nvcc";
const ARCHITECTURES: [Architecture; 2] = [Architecture::Gfx906, Architecture::Gfx1100];

fn files() -> Vec<common::File> {
    files_like(FILE)
}

fn files_like(name: &str) -> Vec<common::File> {
    let mut files = common::files();
    files.retain(|file| common::is_full() || file.name == name);
    files
}

fn architectures() -> &'static [Architecture] {
    if common::is_full() { &Architecture::ALL } else { &ARCHITECTURES }
}

/// The number after a key in one kernel's part of the notes.
fn noted(notes: &str, key: &str) -> Option<u32> {
    let line = notes.lines().find_map(|line| line.trim_start_matches(['-', ' ']).strip_prefix(key))?;
    line.strip_prefix(':')?.trim().parse().ok()
}

#[test]
fn facts_are_those_of_the_notes() {
    for file in files() {
        for &architecture in architectures() {
            let kernels: Vec<_> = common::accepted(&file, &file.module, architecture);
            let code = compile(&file.module, &kernels, architecture, &Options::default()).unwrap();
            let notes = common::llvm("llvm-readobj", &["--notes"], &code.elf);
            let all = notes.split("amdhsa.kernels:").nth(1).expect("a list of kernels");
            // One part per kernel. Its keys are sorted, and `.name` occurs once.
            let parts: Vec<&str> = all.split("  - ").collect();
            for facts in &code.kernels {
                let name = format!(".symbol:         {}.kd", facts.name);
                let at = parts.iter().position(|part| part.contains(&name)).expect("the kernel is listed");
                let expected = |key: &str| noted(parts[at], key);
                let KernelFacts { vgprs, sgprs, vgpr_spills, sgpr_spills, .. } = *facts;
                assert_eq!(Some(vgprs), expected(".vgpr_count"), "{architecture} {}", facts.name);
                assert_eq!(Some(sgprs), expected(".sgpr_count"), "{architecture} {}", facts.name);
                assert_eq!(Some(vgpr_spills), expected(".vgpr_spill_count"));
                assert_eq!(Some(sgpr_spills), expected(".sgpr_spill_count"));
                assert_eq!(Some(facts.shared_static_bytes), expected(".group_segment_fixed_size"));
                assert_eq!(Some(facts.scratch_bytes), expected(".private_segment_fixed_size"));
                assert_eq!(Some(facts.kernarg_bytes), expected(".kernarg_segment_size"));
                assert_eq!(Some(facts.wave_lanes), expected(".wavefront_size"));
            }
        }
    }
}

/// The lines of a kernel's machine code.
fn code_of<'a>(disassembly: &'a str, kernel: &str) -> Vec<&'a str> {
    let label = format!("<{kernel}>:");
    let lines = disassembly.lines().skip_while(|line| !line.ends_with(&label)).skip(1);
    lines.take_while(|line| !line.is_empty()).map(str::trim).collect()
}

/// Whether an instruction accesses memory through the vector unit.
fn is_access(line: &str) -> bool {
    ["global_", "flat_", "buffer_load", "buffer_store", "buffer_atomic"].iter().any(|head| line.starts_with(head))
}

/// Whether a load sees writes of the host while the kernel runs.
fn is_coherent_load(line: &str) -> bool {
    let code = line.split("//").next().unwrap_or(line);
    code.contains("_load_") && ["glc", "sc0 sc1", "scope:SCOPE_SYS"].iter().any(|bits| code.contains(bits))
}

/// The module after some passes, and the reports of its kernels. Blocks may run again if that is
/// proven for separate buffers.
fn transformed(file: &common::File, passes: &[&str]) -> (Module, Vec<KernelReport>) {
    let mut module = file.module.clone();
    let again = module.kernels().filter(|kernel| analyze_idempotence(&module, kernel).holds_on_buffers_apart());
    let options = PassOptions {
        blocks: file.kernels.iter().map(|k| (k.name.clone(), k.block)).collect(),
        may_run_again: again.map(|kernel| kernel.name.clone()).collect(),
        fence_form: FenceForm::Trap,
        ..PassOptions::default()
    };
    let report = transform_with(&mut module, passes, &options, &mut |_, _| {}).unwrap();
    (module, report.kernels)
}

/// Calls a function with the report and the machine code of each kernel of a module for each
/// architecture. The text names the kernel.
fn each_kernel(
    file: &common::File,
    module: &Module,
    reports: &[KernelReport],
    mut look: impl FnMut(&KernelReport, &[&str], &str),
) {
    for &architecture in architectures() {
        let kernels = common::accepted(file, module, architecture);
        let code = compile(module, &kernels, architecture, &Options::default()).unwrap();
        let disassembly = common::llvm("llvm-objdump", &["-d"], &code.elf);
        for kernel in &kernels {
            let report = reports.iter().find(|report| report.name == kernel.name.as_str()).expect("a report");
            let place = format!("{} of {} on {architecture}", kernel.name, file.name);
            look(report, &code_of(&disassembly, &kernel.name), &place);
        }
    }
}

/// A block marks itself as done by a byte in the progress map.
fn byte_stores(lines: &[&str]) -> usize {
    lines.iter().filter(|line| line.contains("_store_byte") || line.contains("_store_b8")).count()
}

#[test]
fn preemptible_kernels_check_the_epoch_at_their_entry() {
    let mut checked = 0;
    for file in files() {
        let passes: Vec<&str> = TransformOptions::default().names().collect();
        let (module, reports) = transformed(&file, &passes);
        let mut stores = Vec::new();
        each_kernel(&file, &file.module, &reports, |_, lines, place| {
            stores.push((place.to_owned(), byte_stores(lines)))
        });
        each_kernel(&file, &module, &reports, |report, lines, place| {
            if !matches!(report.preemption, Preemption::Injected { .. }) {
                return;
            }
            let first = lines.iter().position(|line| is_access(line)).expect("a kernel accesses memory");
            assert!(is_coherent_load(lines[first]), "{place} begins with {}", lines[first]);
            let is_branch = |line: &&str| line.starts_with("s_cbranch");
            let store = lines.iter().position(|line| line.starts_with("global_store")).unwrap_or(lines.len());
            assert!(lines[first..store].iter().any(is_branch), "{place} has no branch behind the check");
            let plain = stores.iter().find(|(of, _)| of == place).map_or(0, |(_, count)| *count);
            assert!(byte_stores(lines) > plain, "{place} does not mark its blocks as done");
            checked += 1;
        });
    }
    assert!(checked > 0, "no kernel was preemptible");
}

/// The address of an instruction, and its target if it is a branch.
fn places(line: &str) -> Option<(u64, Option<u64>)> {
    let (_, comment) = line.split_once("// ")?;
    let address = u64::from_str_radix(comment.split(':').next()?, 16).ok()?;
    // The target is relative to the kernel: `<kernel+0x40>`.
    let target =
        comment.rsplit_once("+0x").and_then(|(_, rest)| u64::from_str_radix(rest.trim_end_matches('>'), 16).ok());
    Some((address, target))
}

/// Whether a load that sees writes of the host lies between a branch and its earlier target.
fn checks_in_a_loop(lines: &[&str]) -> bool {
    let Some((begin, _)) = lines.first().and_then(|line| places(line)) else { return false };
    let loads: Vec<u64> =
        lines.iter().filter(|line| is_coherent_load(line)).filter_map(|line| Some(places(line)?.0)).collect();
    lines.iter().filter(|line| line.starts_with("s_branch") || line.starts_with("s_cbranch")).any(|line| {
        let Some((address, Some(target))) = places(line) else { return false };
        loads.iter().any(|load| (begin + target..address).contains(load))
    })
}

#[test]
fn long_loops_check_the_epoch() {
    let mut checked = 0;
    for file in files_like(FILE_OF_LOOPS) {
        let (module, reports) = transformed(&file, &["check_in_loops"]);
        each_kernel(&file, &module, &reports, |report, lines, place| {
            if report.loops.iter().any(|found| matches!(found.decision, LoopDecision::Checked { .. })) {
                assert!(checks_in_a_loop(lines), "{place} has no check in a loop:\n{}", lines.join("\n"));
                checked += 1;
            }
        });
    }
    assert!(checked > 0, "no loop was checked");
}

/// In the form that traps, comparisons stand before the first access. `passes.rs` runs such kernels.
#[test]
fn fenced_kernels_compare_before_they_access_memory() {
    let mut checked = 0;
    for file in files() {
        let (module, reports) = transformed(&file, &["fence_memory"]);
        each_kernel(&file, &module, &reports, |report, lines, place| {
            let Some(first) = lines.iter().position(|line| is_access(line)) else { return };
            if matches!(report.fencing, Fencing::Fenced { .. }) {
                let is_compare = |line: &&str| line.starts_with("v_cmp") || line.starts_with("s_cmp");
                assert!(lines[..first].iter().any(is_compare), "{place} accesses memory unchecked: {}", lines[first]);
                checked += 1;
            }
        });
    }
    assert!(checked > 0, "no kernel was fenced");
}
