//! Instructions that compilers emit rarely, written in assembly: rounding modes, SDWA, dual
//! instructions, jumps between code objects; and refused instructions.

use atoll_amd_interp::{FaultKind, Launch, LoadError, Memory, Options, Program, RunError};
use rand_xoshiro::SplitMix64;
use rand_xoshiro::rand_core::{Rng, SeedableRng};

use crate::tools::{Arguments, CPUS, code_object, launch, launch_with, line, program, read_words, seed, words};

/// A kernel `k` with these instructions. The address of its arguments is in `s[0:1]`.
fn assembled(body: &str, cpu: &str) -> Option<Program> {
    let accumulators = if cpu == "gfx90a" { ".amdhsa_accum_offset 16\n" } else { "" };
    let source = format!(
        ".text\n.globl k\n.p2align 8\n.type k,@function\nk:\n{body}\ns_endpgm\n.section .rodata\n.p2align 6\n\
         .amdhsa_kernel k\n.amdhsa_user_sgpr_kernarg_segment_ptr 1\n.amdhsa_kernarg_size 32\n\
         .amdhsa_next_free_vgpr 16\n.amdhsa_next_free_sgpr 32\n{accumulators}.end_amdhsa_kernel\n"
    );
    Some(Program::load(&code_object(&source, "s", cpu, &[])?).unwrap())
}

/// Loads a word of each input buffer into v2, v3 and v4. Sets `s[10:11]` to the output and v1 to
/// the lane's byte offset.
const LOAD: &str = "s_load_dwordx4 s[4:7], s[0:1], 0x0\ns_load_dwordx4 s[8:11], s[0:1], 0x10\n\
    v_and_b32 v0, 0x3ff, v0\nv_lshlrev_b32 v1, 2, v0\ns_waitcnt lgkmcnt(0)\nglobal_load_dword v2, v1, s[4:5]\n\
    global_load_dword v3, v1, s[6:7]\nglobal_load_dword v4, v1, s[8:9]\ns_waitcnt vmcnt(0)\n";

/// Stores v5 and advances the output by 32 words.
const STORE: &str = "global_store_dword v1, v5, s[10:11]\ns_add_u32 s10, s10, 128\ns_addc_u32 s11, s11, 0\n";

/// Runs 32 lanes on three buffers of 32 words. Returns `outputs` words for each lane.
fn run_words(program: &Program, inputs: [&[u32]; 3], outputs: usize) -> Vec<u32> {
    let mut memory = Memory::new();
    let mut arguments = Arguments::default();
    for input in inputs {
        arguments = arguments.pointer(memory.add("in", words(input)));
    }
    let out = memory.add("out", vec![0; 128 * outputs]);
    launch(program, "k", &line(1, 32, arguments.pointer(out)), &mut memory).unwrap();
    read_words(&memory, out)
}

/// `high + low`, rounded to f32 in a mode of the hardware: to nearest, up, down, to zero.
fn directed(high: f64, low: f64, mode: usize) -> f32 {
    let nearest = high as f32;
    let below = f64::from(nearest) < high || f64::from(nearest) == high && low > 0.0;
    let above = f64::from(nearest) > high || f64::from(nearest) == high && low < 0.0;
    let negative = high < 0.0;
    match mode {
        1 if below => nearest.next_up(),
        2 if above => nearest.next_down(),
        3 if above && !negative => nearest.next_down(),
        3 if below && negative => nearest.next_up(),
        _ => nearest,
    }
}

/// The f64 sum of two numbers and its exact error.
fn two_sum(a: f64, b: f64) -> (f64, f64) {
    let sum = a + b;
    let part = sum - a;
    (sum, (a - (sum - part)) + (b - part))
}

#[test]
fn rounding_modes_of_sums_products_and_conversions() {
    let mut body = LOAD.to_owned();
    for mode in 0..4 {
        body += &format!("s_setreg_imm32_b32 hwreg(HW_REG_MODE, 0, 4), {}\n", mode * 5);
        for op in ["v_add_f32 v5, v2, v3", "v_mul_f32 v5, v2, v3", "v_fma_f32 v5, v2, v3, v4", "v_cvt_f32_i32 v5, v2"] {
            body += &format!("{op}\n{STORE}");
        }
    }
    let mut random = SplitMix64::seed_from_u64(seed());
    let mut numbers = || -> Vec<u32> { (0..32).map(|_| random.next_u32() & 0x83ff_ffff | 0x3c00_0000).collect() };
    let (a, b, c) = (numbers(), numbers(), numbers());
    for cpu in CPUS {
        let Some(program) = assembled(&body, cpu) else { return };
        let got = run_words(&program, [&a, &b, &c], 16);
        for lane in 0..32 {
            let [x, y, z] = [&a, &b, &c].map(|v| f64::from(f32::from_bits(v[lane])));
            let (sum, error) = two_sum(x, y);
            let (fma, fma_error) = two_sum(x * y, z);
            for mode in 0..4 {
                let expected = [
                    directed(sum, error, mode),
                    directed(x * y, 0.0, mode),
                    directed(fma, fma_error, mode),
                    directed(f64::from(a[lane] as i32), 0.0, mode),
                ];
                for (op, expected) in expected.into_iter().enumerate() {
                    let got = f32::from_bits(got[(mode * 4 + op) * 32 + lane]);
                    assert_eq!(
                        got.to_bits(),
                        expected.to_bits(),
                        "{cpu} mode {mode} operation {op}: {x} {y} {z}: {got}"
                    );
                }
            }
        }
    }
}

#[test]
fn subnormal_values_are_flushed_where_the_mode_says_so() {
    let body = format!(
        "{LOAD}s_setreg_imm32_b32 hwreg(HW_REG_MODE, 4, 4), 0xf\nv_add_f32 v5, v2, v3\n{STORE}\
         s_setreg_imm32_b32 hwreg(HW_REG_MODE, 4, 4), 0xc\nv_add_f32 v5, v2, v3\n{STORE}v_mul_f32 v5, 1.0, v2\n{STORE}"
    );
    for cpu in CPUS {
        let Some(program) = assembled(&body, cpu) else { return };
        let got = run_words(&program, [&[0x8000_0007; 32], &[3; 32], &[0; 32]], 3);
        assert_eq!([got[0], got[32], got[64]], [0x8000_0004, 0, 0x8000_0000], "{cpu}");
    }
}

/// Each lane reads the word of the lane that is as far from the end.
#[test]
fn an_offset_is_added_to_a_negative_lds_address() {
    let body = format!(
        "{LOAD}s_mov_b32 m0, -1\nds_write_b32 v1, v2\nv_sub_u32 v6, 0, v1\ns_waitcnt lgkmcnt(0)\n\
         ds_read_b32 v5, v6 offset:124\ns_waitcnt lgkmcnt(0)\n{STORE}"
    );
    for cpu in ["gfx906", "gfx90a"] {
        let Some(program) = assembled(&body, cpu) else { return };
        let mut memory = Memory::new();
        let input: Vec<u32> = (0..32).collect();
        let mut arguments = Arguments::default();
        for _ in 0..3 {
            arguments = arguments.pointer(memory.add("in", words(&input)));
        }
        let out = memory.add("out", vec![0; 128]);
        let shape = Launch { dynamic_lds: 128, ..line(1, 32, arguments.pointer(out)) };
        launch(&program, "k", &shape, &mut memory).unwrap();
        assert!(read_words(&memory, out).into_iter().eq(input.into_iter().rev()), "{cpu}");
    }
}

#[test]
fn parts_of_registers_by_sdwa() {
    let lines = [
        "v_add_u32_sdwa v5, v2, v3 dst_sel:DWORD dst_unused:UNUSED_PAD src0_sel:BYTE_1 src1_sel:WORD_1",
        "v_mov_b32 v5, v4\nv_add_u32_sdwa v5, sext(v2), v3 dst_sel:WORD_1 \
         dst_unused:UNUSED_PRESERVE src0_sel:BYTE_3 src1_sel:BYTE_0",
        "v_mov_b32_sdwa v5, v2 dst_sel:BYTE_2 dst_unused:UNUSED_PAD src0_sel:BYTE_1",
        "v_mul_f32_sdwa v5, -v2, |v3| dst_sel:DWORD dst_unused:UNUSED_PAD src0_sel:DWORD src1_sel:DWORD",
        "v_cmp_lt_u32_sdwa vcc, v2, v3 src0_sel:BYTE_0 src1_sel:BYTE_1\nv_cndmask_b32 v5, 7, v2, vcc",
    ];
    let body = LOAD.to_owned() + &lines.map(|l| format!("{l}\n{STORE}")).concat();
    for cpu in ["gfx906", "gfx90a"] {
        let Some(program) = assembled(&body, cpu) else { return };
        let (a, b, c) = (0xc123_8655u32, 0xc5a4_7002u32, 0x1111_2222u32);
        let got = run_words(&program, [&[a; 32], &[b; 32], &[c; 32]], 5);
        let product = -f32::from_bits(a) * f32::from_bits(b).abs();
        let expected = [
            0x86 + 0xc5a4,
            ((0xc1u8 as i8 as u32).wrapping_add(2) & 0xffff) << 16 | 0x2222,
            0x86 << 16,
            product.to_bits(),
            a,
        ];
        let got: Vec<u32> = got.chunks(32).map(|c| c[9]).collect();
        assert_eq!(got, expected, "{cpu}");
    }
}

#[test]
fn dual_instructions_read_before_they_write() {
    let body = format!(
        "{LOAD}v_mov_b32 v5, v4\nv_dual_add_f32 v5, v2, v3 :: v_dual_mov_b32 v2, v3\n{STORE}v_mov_b32 v5, v2\n{STORE}"
    );
    let Some(program) = assembled(&body, "gfx1100") else { return };
    let bits = |f: f32| f.to_bits();
    let got = run_words(&program, [&[bits(1.5); 32], &[bits(2.25); 32], &[0; 32]], 2);
    assert_eq!([got[0], got[32]], [bits(3.75), bits(2.25)]);
}

/// A proxy kernel as padding launches it: it jumps to the address in its last argument.
fn proxy(cpu: &str, kernarg: &str) -> Option<Program> {
    let source = format!(
        "target triple = \"amdgcn-amd-amdhsa\"\n\
         define amdgpu_kernel void @proxy(ptr addrspace(1) %a, ptr addrspace(1) %b, ptr addrspace(1) %c, i32 %n, \
         i64 %target) {{\n  call void asm sideeffect \
         \"s_load_dwordx2 s[30:31], {kernarg}, 0x20\\0As_waitcnt lgkmcnt(0)\\0A\
         s_setpc_b64 s[30:31]\", \"~{{s30}},~{{s31}},~{{v31}}\"()\n  ret void\n}}\n"
    );
    Some(Program::load(&code_object(&source, "ll", cpu, &[])?).unwrap())
}

#[test]
fn a_proxy_jumps_to_a_candidate_of_another_code_object() {
    for (cpu, kernarg) in [("gfx906", "s[8:9]"), ("gfx90a", "s[8:9]"), ("gfx1100", "s[4:5]")] {
        let Some(proxy) = proxy(cpu, kernarg) else { return };
        let source = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/kernels/control.ll")).unwrap();
        let elf = code_object(&source, "ll", cpu, &[]).unwrap();
        let candidate = Program::load_at(&elf, 0x7100_0000_0000).unwrap();
        let target = candidate.kernel("vector_add").unwrap().entry;
        let mut memory = Memory::new();
        let floats = words(&(0..50).map(|i| (i as f32).to_bits()).collect::<Vec<_>>());
        let [a, b, c] = ["a", "b", "c"].map(|name| memory.add(name, floats.clone()));
        let arguments = Arguments::default().pointer(a).pointer(b).pointer(c).word(50);
        let shape = line(1, 96, arguments.clone().pointer(target));
        launch_with(&[&proxy, &candidate], "proxy", &shape, &mut memory, &Options::default()).unwrap();
        assert_eq!(read_words(&memory, c), (0..50).map(|i| (2.0 * i as f32).to_bits()).collect::<Vec<_>>());
        // Jumps without the candidate's code in memory, and into the middle of an instruction.
        for (programs, target) in [(vec![&proxy], target), (vec![&proxy, &candidate], target + 2)] {
            let shape = line(1, 96, arguments.clone().pointer(target));
            match launch_with(&programs, "proxy", &shape, &mut memory, &Options::default()) {
                Err(RunError::Fault(fault)) => assert_eq!(fault.kind, FaultKind::OutsideCode(target)),
                other => panic!("{other:?}"),
            }
        }
    }
}

#[test]
fn what_is_not_known_is_refused_by_name() {
    let fault = |body: &str, cpu: &str| -> Option<FaultKind> {
        let program = assembled(body, cpu)?;
        let arguments = Arguments(vec![0; 32]);
        match launch(&program, "k", &line(1, 32, arguments), &mut Memory::new()) {
            Err(RunError::Fault(fault)) => Some(fault.kind),
            other => panic!("{other:?}"),
        }
    };
    for cpu in CPUS {
        let Some(kind) = fault("v_cubeid_f32 v0, v1, v2, v3", cpu) else { return };
        assert_eq!(kind, FaultKind::UnknownInstruction("v_cubeid_f32".to_owned()), "{cpu}");
        assert!(matches!(fault("s_getreg_b32 s0, hwreg(5)", cpu), Some(FaultKind::Unsupported(_))));
        assert_eq!(fault("s_trap 7", cpu), Some(FaultKind::Trap(7)));
        let beyond = fault("v_mov_b32 v200, 0", cpu).unwrap();
        assert!(matches!(beyond, FaultKind::RegisterNotAllocated { .. }), "{beyond}");
    }
}

#[test]
fn damaged_files_are_refused_and_never_crash() {
    let source = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/kernels/control.ll")).unwrap();
    let Some(elf) = code_object(&source, "ll", "gfx90a", &[]) else { return };
    for length in [0, 1, 63, 64, 200, elf.len() / 2] {
        assert!(Program::load(&elf[..length]).is_err(), "{length} bytes");
    }
    let mut other = elf.clone();
    other[0x30] = 0xee;
    assert_eq!(Program::load(&other).err(), Some(LoadError::UnknownArchitecture(0xee)));
    let mut random = SplitMix64::seed_from_u64(seed());
    let mut ran = 0;
    let rounds = if std::env::var_os("ATOLL_TEST_FULL").is_some() { 500 } else { 60 };
    for _ in 0..rounds {
        let mut damaged = elf.clone();
        for _ in 0..1 + random.next_u32() % 40 {
            let at = random.next_u64() as usize % damaged.len();
            damaged[at] = random.next_u32() as u8;
        }
        let Ok(program) = Program::load(&damaged) else { continue };
        let names: Vec<String> = program.kernels().map(|k| k.name.clone()).collect();
        for name in names {
            let mut memory = Memory::new();
            let out = memory.add("out", vec![0; 4096]);
            let arguments = (0..8).fold(Arguments::default(), |a, _| a.pointer(out));
            let options = Options { limit: 300, ..Options::default() };
            ran += u32::from(launch_with(&[&program], &name, &line(1, 64, arguments), &mut memory, &options).is_ok());
        }
    }
    assert!(ran > 0, "no damaged program ran to its end");
}

#[test]
fn the_order_of_waves_follows_the_seed() {
    for cpu in CPUS {
        let Some(program) = program("control.ll", cpu) else { return };
        let run_with = |seed| {
            let mut memory = Memory::new();
            let data: Vec<u32> = (0..512).collect();
            let [input, out] = [("in", words(&data)), ("out", vec![0; 8])].map(|(n, b)| memory.add(n, b));
            let shape = line(2, 256, Arguments::default().pointer(input).pointer(out));
            let options = Options { seed, ..Options::default() };
            let stats = launch_with(&[&program], "reduce", &shape, &mut memory, &options).unwrap();
            (stats, read_words(&memory, out))
        };
        assert_eq!(run_with(5), run_with(5));
        assert_eq!(run_with(5).1, run_with(6).1);
    }
}
