//! Checks code objects of the corpus with LLVM's tools.

mod common;

use atoll_passes::{PassOptions, Preemption, TransformOptions};
use atoll_target_amd::{Architecture, KernelFacts, Options, compile};

/// The file of kernels, unless the whole corpus is tested, and the architectures.
const FILE: &str = "elementwise.nvcc";
const ARCHITECTURES: [Architecture; 2] = [Architecture::Gfx906, Architecture::Gfx1100];

fn files() -> Vec<common::File> {
    let mut files = common::files();
    files.retain(|file| common::is_full() || file.name == FILE);
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

#[test]
fn preemptible_kernels_check_the_epoch_at_their_entry() {
    let mut checked = 0;
    for file in files() {
        let mut module = file.module.clone();
        let blocks = file.kernels.iter().map(|k| (k.name.clone(), k.block)).collect();
        let options = PassOptions { blocks, ..PassOptions::default() };
        let passes: Vec<&str> = TransformOptions::default().names().collect();
        let report = atoll_passes::transform_with(&mut module, &passes, &options, &mut |_, _| {}).unwrap();
        for &architecture in architectures() {
            let kernels = common::accepted(&file, &module, architecture);
            let code = compile(&module, &kernels, architecture, &Options::default()).unwrap();
            let disassembly = common::llvm("llvm-objdump", &["-d"], &code.elf);
            for kernel in &kernels {
                let is_preemptible = report
                    .kernels
                    .iter()
                    .any(|k| k.name == kernel.name.as_str() && matches!(k.preemption, Preemption::Injected { .. }));
                if !is_preemptible {
                    continue;
                }
                let lines = code_of(&disassembly, &kernel.name);
                let place = format!("{} of {} on {architecture}", kernel.name, file.name);
                let first = lines.iter().position(|line| is_access(line)).expect("a kernel accesses memory");
                assert!(is_coherent_load(lines[first]), "{place} begins with {}", lines[first]);
                let is_branch = |line: &&str| line.starts_with("s_cbranch");
                let store = lines.iter().position(|line| line.starts_with("global_store")).unwrap_or(lines.len());
                assert!(lines[first..store].iter().any(is_branch), "{place} has no branch behind the check");
                checked += 1;
            }
        }
    }
    assert!(checked > 0, "no kernel was preemptible");
}
