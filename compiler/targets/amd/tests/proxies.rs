//! Proxy kernels: what the metadata of a code object says about them, and launches of several
//! candidates in the interpreter, which give each candidate the results that it has alone.
//!
//! `ATOLL_SEED` selects the candidates that share a launch. `ATOLL_TEST_FULL=1` tests more of them,
//! on every architecture.

#[path = "proxies/bench.rs"]
mod bench;
#[path = "../../../../tests/dkp/cases.rs"]
mod cases;
mod common;

use atoll_amd_interp::Memory;
use atoll_kgraph::dkp::{LaunchError, Range, SLOTS, lay_out};
use atoll_passes::{PassOptions, transform_with};
use atoll_proxy_kernels::{AmdModel, Candidate, NotPadded, candidate_facts, dkp_modules};
use atoll_target_amd::{AmdError, Architecture, KernelShape, Options, compile};
use bench::{PARAMS_BYTES, Padded, Words, compiled, level_registers};
use cases::{CASES, Case};
use object::read::elf::ElfFile64;
use object::{Endianness, Object, ObjectSection, ObjectSymbol};
use rand_xoshiro::SplitMix64;
use rand_xoshiro::rand_core::{Rng as _, SeedableRng};

fn architectures() -> &'static [Architecture] {
    const USUAL: [Architecture; 3] = [Architecture::Gfx906, Architecture::Gfx90a, Architecture::Gfx1100];
    if common::is_full() { &Architecture::ALL } else { &USUAL }
}

fn seed() -> u64 {
    std::env::var("ATOLL_SEED").ok().and_then(|text| text.parse().ok()).unwrap_or(1)
}

/// A number below a limit.
fn below(numbers: &mut SplitMix64, limit: usize) -> usize {
    numbers.next_u64() as usize % limit
}

/// Words of a kernel's descriptor that must be equal in a proxy and its candidates.
fn entry_words(elf: &[u8], kernel: &str) -> [u32; 3] {
    let file = ElfFile64::<Endianness>::parse(elf).unwrap();
    let name = format!("{kernel}.kd");
    let at = file.dynamic_symbols().find(|symbol| symbol.name().is_ok_and(|found| found == name));
    let at = at.unwrap().address();
    let bytes = file.sections().find_map(|section| section.data_range(at, 64).ok().flatten()).unwrap();
    let word = |offset: usize| u32::from_le_bytes(bytes[offset..offset + 4].try_into().unwrap());
    // The mode of floating-point numbers, without the counts of registers; the user and system
    // registers; the properties, of which the upper half is reserved.
    [word(48) >> 12, word(52) & 0x7fff, word(56) & 0xffff]
}

#[test]
fn a_proxy_has_the_registers_of_its_level_and_the_entry_of_its_candidates() {
    for &architecture in architectures() {
        let model = AmdModel::find(architecture.name()).unwrap();
        let padded = Padded::new(&[CASES[1], CASES[5], CASES[7], CASES[8]], architecture, true);
        let Padded { proxy, level, code, dkp, .. } = &padded;
        assert_eq!(proxy.vgprs.next_multiple_of(4), level.vgprs, "{architecture}");
        assert!(proxy.sgprs <= level.sgprs, "{architecture}: {} scalar registers", proxy.sgprs);
        assert_eq!((proxy.scratch_bytes, proxy.vgpr_spills, proxy.sgpr_spills), (0, 0, 0), "{architecture}");
        for kernel in &code.kernels {
            let own = model.level_of(kernel.vgprs, kernel.sgprs).unwrap();
            assert!(own.waves >= level.waves, "{architecture} {}: {own:?} in {level:?}", kernel.name);
            assert_eq!((kernel.scratch_bytes, kernel.vgpr_spills), (0, 0), "{architecture} {}", kernel.name);
            assert!(kernel.shared_static_bytes <= proxy.shared_static_bytes, "{architecture} {}", kernel.name);
            assert_eq!(
                entry_words(&code.elf, &kernel.name),
                entry_words(&code.elf, &proxy.name),
                "{architecture}: the entry of {}",
                kernel.name
            );
        }
        let largest = *dkp.facts.threads.last().unwrap();
        let shared = dkp.facts.candidates.iter().map(|candidate| candidate.shared_bytes).max().unwrap();
        assert!(model.waves_per_simd(*level, shared, largest) > 0, "{architecture}");
    }
}

#[test]
fn a_proxy_leaves_the_registers_of_the_entry_alone() {
    for &architecture in architectures() {
        let padded = Padded::new(&CASES[..2], architecture, false);
        let text = common::llvm("llvm-objdump", &["-d"], &padded.code.elf);
        let label = format!("<{}>:", padded.proxy.name);
        let lines = text.lines().skip_while(|line| !line.ends_with(&label)).skip(1);
        let lines: Vec<&str> = lines.map(str::trim).take_while(|line| !line.starts_with("s_endpgm")).collect();
        assert_eq!(lines.iter().filter(|line| line.starts_with("s_setpc_b64")).count(), 2, "{architecture}\n{text}");
        for line in lines.iter().filter(|line| !line.is_empty() && !line.starts_with('<')) {
            let mut words = line.split([' ', ',']).filter(|word| !word.is_empty());
            let mnemonic = words.next().unwrap_or_default();
            let target = words.next().unwrap_or_default();
            let writes_none = ["s_cmp", "s_wait", "s_cbranch", "s_branch", "s_setpc", "s_delay", "s_code_end"]
                .iter()
                .any(|head| mnemonic.starts_with(head));
            let first = target.trim_start_matches(['s', '[']).split([':', ']']).next().unwrap_or_default();
            let is_behind = target.starts_with('s') && first.parse::<u32>().is_ok_and(|number| number >= 40);
            let is_own = ["vcc", "vcc_lo", "exec", "exec_lo", "v3"].contains(&target);
            // The block's index may be copied from a trap temporary.
            let is_copy = line.contains("ttmp");
            assert!(writes_none || is_behind || is_own || is_copy, "{architecture}: {line}");
        }
    }
}

/// Runs cases in one launch and compares each with a launch of its own. `parts` are the case, its
/// first block and its blocks.
fn check(architecture: Architecture, cases: &[Case], launches: &[Vec<(usize, u32, u32)>], seed: u64) {
    let padded = Padded::new(cases, architecture, false);
    let mut memory = Memory::new();
    let buffers: Vec<[u64; 2]> =
        cases.iter().zip(1..).map(|(case, number)| case.buffers(&mut memory, number)).collect();
    for parts in launches {
        let range = |&(index, first, blocks): &(usize, u32, u32)| {
            padded.range(index, &cases[index], buffers[index], None, [first, blocks])
        };
        let ranges: Vec<Range> = parts.iter().map(range).collect();
        padded.run(&ranges, &mut memory, seed);
    }
    for ((case, number), [_, output]) in cases.iter().zip(1..).zip(&buffers) {
        let found = memory.bytes(*output).unwrap();
        assert!(found == case.alone(architecture, number), "{architecture}: {case:?} of {cases:?}, seed {seed}");
    }
}

#[test]
fn one_to_three_candidates_beside_another_give_the_results_of_each_alone() {
    let seed = seed();
    let mut numbers = SplitMix64::seed_from_u64(seed);
    for round in 0..if common::is_full() { 24 } else { 3 } {
        let cases: Vec<Case> = (0..2 + round % 3).map(|_| CASES[below(&mut numbers, CASES.len())]).collect();
        let parts = (0..cases.len()).map(|index| (index, 0, cases[index].blocks())).collect();
        for &architecture in architectures() {
            check(architecture, &cases, std::slice::from_ref(&parts), seed);
        }
    }
}

#[test]
fn a_candidate_continues_in_a_later_launch() {
    let cases = [CASES[1], CASES[5], CASES[7]];
    let launches = [vec![(0, 0, 3), (2, 0, 2)], vec![(1, 3, 1), (2, 2, 5), (1, 0, 2)], vec![(2, 7, 2), (1, 2, 1)]];
    for &architecture in architectures() {
        check(architecture, &cases, &launches, seed());
    }
}

/// The epoch of the best-effort launch is raised when two of its blocks have run: the others leave,
/// the real-time blocks do not, and a later launch runs exactly those that are missing.
#[test]
fn best_effort_blocks_leave_in_the_middle_and_resume() {
    let cases = [CASES[5], CASES[7]];
    for &architecture in architectures() {
        let padded = Padded::new(&cases, architecture, true);
        let mut memory = Memory::new();
        let buffers = [cases[0].buffers(&mut memory, 1), cases[1].buffers(&mut memory, 2)];
        let words = [Words::new(&mut memory, cases[0].blocks()), Words::new(&mut memory, cases[1].blocks())];
        let whole = |index: usize, issued: u32| {
            let blocks = [0, cases[index].blocks()];
            padded.range(index, &cases[index], buffers[index], Some((words[index], issued)), blocks)
        };
        let raised_before = cases[0].blocks() + 2;
        padded.run_until(&[whole(0, 0), whole(1, 0)], &mut memory, raised_before, words[1].epoch);
        assert_eq!(memory.bytes(words[0].progress), Some(&[1; 4][..]), "{architecture}");
        assert_eq!(memory.bytes(words[0].evicted), Some(&[0; 4][..]), "{architecture}");
        assert_eq!(memory.bytes(words[1].progress), Some(&[1, 1, 0, 0, 0, 0, 0, 0, 0][..]), "{architecture}");
        assert_eq!(memory.bytes(words[1].evicted), Some(&[1, 0, 0, 0][..]), "{architecture}");
        assert!(memory.bytes(buffers[0][1]).unwrap() == cases[0].alone(architecture, 1), "{architecture}");
        let sums = cases[1].alone(architecture, 2);
        assert_eq!(memory.bytes(buffers[1][1]).unwrap()[..8], sums[..8], "{architecture}");
        assert_eq!(memory.bytes(buffers[1][1]).unwrap()[8..12], [0xEE; 4], "{architecture}");
        padded.run(&[whole(1, 1)], &mut memory, 1);
        assert_eq!(memory.bytes(words[1].progress), Some(&[1; 9][..]), "{architecture}");
        assert!(memory.bytes(buffers[1][1]).unwrap() == sums, "{architecture}");
    }
}

#[test]
fn a_launch_of_what_the_module_lacks_is_refused() {
    let case = CASES[1];
    let padded = Padded::new(&[case], Architecture::Gfx906, false);
    let range = padded.range(0, &case, [0, 0], None, [0, case.blocks()]);
    let refused = |ranges: &[Range]| lay_out(&padded.dkp.facts, ranges).expect_err("a refusal");
    assert!(lay_out(&padded.dkp.facts, std::slice::from_ref(&range)).is_ok());
    assert_eq!(refused(&[Range { candidate: 1, ..range.clone() }]), LaunchError::Candidate(1));
    assert_eq!(refused(&[]), LaunchError::Ranges(0));
    assert_eq!(refused(&vec![range.clone(); SLOTS + 1]), LaunchError::Ranges(SLOTS + 1));
    let beyond = refused(&[Range { first: 1, ..range.clone() }]);
    assert_eq!(beyond, LaunchError::Blocks { first: 1, end: 4, blocks: 3 });
    let short = refused(&[Range { arguments: Vec::new(), ..range }]);
    assert!(matches!(short, LaunchError::Arguments { candidate: 0, given: 0, .. }), "{short:?}");
}

/// A candidate number that the module does not have never becomes an address to jump to: its blocks
/// end and write nothing. Blocks of the other candidates run.
#[test]
fn a_forged_candidate_number_jumps_nowhere() {
    let cases = [CASES[1], CASES[5]];
    for &architecture in architectures() {
        let padded = Padded::new(&cases, architecture, false);
        for forged in [2, 3, 1000, 0x8000_0000, u32::MAX] {
            let mut memory = Memory::new();
            let buffers = [cases[0].buffers(&mut memory, 1), cases[1].buffers(&mut memory, 2)];
            let before = memory.bytes(buffers[0][1]).unwrap().to_vec();
            let range =
                |index: usize| padded.range(index, &cases[index], buffers[index], None, [0, cases[index].blocks()]);
            let ran = padded.run_forged(&[range(0), range(1)], &mut memory, forged);
            assert_eq!(ran, Ok(()), "{architecture}: candidate {forged}");
            assert!(memory.bytes(buffers[0][1]).unwrap() == before, "{architecture}: candidate {forged}");
            assert!(memory.bytes(buffers[1][1]).unwrap() == cases[1].alone(architecture, 2), "{architecture}");
        }
    }
}

/// The module of a level contains candidates that need fewer registers, as a real-time kernel or
/// beside one.
#[test]
fn candidates_of_two_levels_share_launches_in_the_module_with_more_registers() {
    let cases = [CASES[7], CASES[1], CASES[4]];
    for &architecture in architectures() {
        let few = level_registers(&cases, architecture);
        let many = AmdModel::find(architecture.name()).unwrap().levels().last().unwrap().vgprs;
        let modules = Padded::modules(&cases, &[few, many, few], architecture, false);
        let candidates = |padded: &Padded| padded.dkp.facts.candidates.iter().map(|c| c.index).collect::<Vec<_>>();
        assert_eq!(modules.iter().map(candidates).collect::<Vec<_>>(), [vec![0, 2], vec![1, 0, 2]], "{architecture}");
        assert_eq!(modules[1].proxy.vgprs.next_multiple_of(4), many, "{architecture}");
        let blocks = |module: usize, at: usize| modules[module].dkp.facts.candidates[at].unit_blocks;
        assert!(blocks(1, 1) < blocks(0, 0), "{architecture}: {} and {} blocks", blocks(1, 1), blocks(0, 0));
        for order in [[0, 1, 2], [2, 0, 1]] {
            let mut memory = Memory::new();
            let buffers: Vec<[u64; 2]> =
                cases.iter().zip(1..).map(|(case, number)| case.buffers(&mut memory, number)).collect();
            let range = |at: usize| {
                let index = modules[1].dkp.facts.candidates[at].index;
                modules[1].range(at, &cases[index], buffers[index], None, [0, cases[index].blocks()])
            };
            modules[1].run(&order.map(range), &mut memory, seed());
            for ((case, number), [_, output]) in cases.iter().zip(1..).zip(&buffers) {
                assert!(memory.bytes(*output).unwrap() == case.alone(architecture, number), "{architecture}: {case:?}");
            }
        }
    }
}

const REFUSED: &str = ".version 7.0\n.target sm_75\n.address_size 64\n\
    .visible .entry partial(.param .u64 out)\n{\n\tbar.sync 1, 32;\n\tret;\n}\n\
    .visible .entry local(.param .u64 out, .param .u32 at)\n{\n\
    \t.local .align 4 .b8 words[4096];\n\t.reg .b32 %r<4>;\n\t.reg .b64 %d<4>;\n\
    \tmov.u64 %d1, words;\n\tld.param.u32 %r1, [at];\n\tmul.wide.u32 %d2, %r1, 4;\n\tadd.s64 %d2, %d1, %d2;\n\
    \tst.local.u32 [%d2], %r1;\n\tld.local.u32 %r2, [words+8];\n\tld.param.u64 %d3, [out];\n\
    \tst.global.u32 [%d3], %r2;\n\tret;\n}\n";

#[test]
fn candidates_that_cannot_share_are_refused_with_the_reason() {
    let architecture = Architecture::Gfx906;
    let model = AmdModel::find(architecture.name()).unwrap();
    let mut module = atoll_ptx::parse(REFUSED).unwrap();
    let blocks = [("partial".into(), [64, 1, 1]), ("local".into(), [64, 1, 1])].into();
    let passes = ["shared_to_dynamic", "virtualize_block_index", "outline_kernel_body"];
    let report =
        transform_with(&mut module, &passes, &PassOptions { blocks, ..PassOptions::default() }, &mut |_, _| {});
    let report = report.unwrap();
    let facts = |name: &str| candidate_facts(report.kernels.iter().find(|k| k.name == name).unwrap()).unwrap();
    // Its barrier is for the first half of the block.
    let shape = KernelShape { name: "partial".into(), block: [64, 1, 1] };
    let error = compile(&module, &[shape], architecture, &Options::default()).unwrap_err().to_string();
    assert!(error.contains("barriers for a part of the threads"), "{error}");
    // Its threads have scratch memory, for which the launch of a proxy makes no room.
    let local = facts("local");
    let candidate = |registers, block| Candidate {
        module: &module,
        kernel: "local",
        facts: &local,
        block,
        registers,
        dynamic_shared_bytes: 0,
    };
    let made = dkp_modules(&[candidate(24, [64, 1, 1])], &model.device, PARAMS_BYTES);
    let error = compiled(&made.modules[0], model, architecture).unwrap_err();
    assert!(matches!(&error, AmdError::NotInProxy { index: 0, reason, .. } if reason.contains("scratch")), "{error}");
    // Its block does not fit a compute unit with the registers of its level.
    let made = dkp_modules(&[candidate(85, [1024, 1, 1])], &model.device, PARAMS_BYTES);
    assert!(matches!(made.refused[..], [(0, NotPadded::NoClass { threads: 1024, registers: 85, .. })]));
}
