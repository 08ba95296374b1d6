//! Runs small kernels in the interpreter: tiles of warps, barriers with numbers, and clocks, which
//! count instructions there.

use atoll_amd_interp::{Launch, Memory, Options as RunOptions, Program, RunError, run};
use atoll_target_amd::{AmdError, Architecture, CodeObject, KernelShape, Options, abi, compile};

/// A kernel of a thread index `%t`, a lane index `%lane` and a mask `%tile` of the 16 lanes of the
/// thread's tile, whose code leaves its result in `%r`.
fn thread_kernel(code: &str) -> String {
    format!(
        "
.version 7.0
.target sm_80
.address_size 64
.visible .entry op(.param .u64 out)
{{
    .reg .pred %p, %q;
    .reg .b16 %h, %k;
    .reg .b32 %t, %lane, %tile, %r, %a;
    .reg .f32 %f;
    .reg .b64 %at, %out;
    .shared .align 4 .b8 words[512];
    ld.param.u64 %out, [out];
    mov.u32 %t, %tid.x;
    mul.wide.u32 %at, %t, 4;
    add.u64 %out, %out, %at;
    mov.u32 %lane, %laneid;
    and.b32 %tile, %lane, 16;
    shl.b32 %tile, 0xffff, %tile;
    {code}
    st.global.u32 [%out], %r;
    ret;
}}"
    )
}

/// Compares the results of 96 threads on all architectures.
fn check(code: &str, expected: impl Fn(u32) -> u32) {
    let module = atoll_ptx::parse(&thread_kernel(code)).unwrap_or_else(|error| panic!("{code}: {error}"));
    let (grid, block) = ([1; 3], [96, 1, 1]);
    for architecture in Architecture::ALL {
        let shape = KernelShape { name: "op".into(), block };
        let code_object = compile(&module, &[shape], architecture, &Options::default()).unwrap();
        let program = Program::load(&code_object.elf).unwrap();
        let mut memory = Memory::new();
        let out = memory.add("out", vec![0; 4 * 96]);
        let kernarg = abi::kernarg(&out.to_le_bytes(), grid, block, 0, abi::Records::default());
        let launch = Launch { grid, block, dynamic_lds: 0, kernarg };
        run(&[&program], "op", &launch, &mut memory, &RunOptions::default())
            .unwrap_or_else(|error| panic!("{architecture}: {code}: {error}"));
        let words = memory.bytes(out).unwrap().chunks_exact(4);
        let found: Vec<u32> = words.map(|word| u32::from_le_bytes(word.try_into().unwrap())).collect();
        assert_eq!(found, (0..96).map(&expected).collect::<Vec<u32>>(), "{architecture}: {code}");
    }
}

/// The lanes of a warp run an instruction together, with the mask of their own tile.
#[test]
fn tiles_have_results_of_their_own() {
    check("and.b32 %a, %t, 5; setp.eq.u32 %p, %a, 5; vote.sync.ballot.b32 %r, %p, %tile;", |t| 0xa0a0 << (t & 16));
    check("setp.eq.u32 %p, %lane, 3; vote.sync.any.pred %q, %p, %tile; selp.b32 %r, 1, 0, %q;", |t| {
        (t % 32 < 16).into()
    });
    check("setp.lt.u32 %p, %lane, 16; vote.sync.all.pred %q, %p, %tile; selp.b32 %r, 1, 0, %q;", |t| {
        (t % 32 < 16).into()
    });
    check("and.b32 %a, %t, 3; match.any.sync.b32 %r, %a, %tile;", |t| 0x1111 << (t & 16 | t & 3));
    check("max.u32 %a, %lane, 15; match.all.sync.b32 %r|%p, %a, %tile;", |t| if t % 32 < 16 { 0xffff } else { 0 });
    check("redux.sync.add.s32 %r, %lane, %tile;", |t| if t % 32 < 16 { 120 } else { 376 });
}

/// The hardware's barrier serves for all numbers if all threads take part.
#[test]
fn a_barrier_of_all_threads_may_have_a_number() {
    let code = "mov.u32 %a, words; shl.b32 %r, %t, 2; add.u32 %a, %a, %r; st.shared.u32 [%a], %t; bar.sync 3; \
                sub.u32 %r, 380, %r; mov.u32 %a, words; add.u32 %a, %a, %r; ld.shared.u32 %r, [%a];";
    check(code, |t| 95 - t);
    check("setp.gt.u32 %p, %t, 89; barrier.red.popc.u32 %r, 7, %p;", |_| 6);
}

/// A product of f32 and f16 that is rounded to f16, of which one factor is an integer.
#[test]
fn a_product_of_f16_keeps_the_sign_of_its_zero() {
    let code = "and.b32 %a, %t, 31; cvt.rn.f32.s32 %f, %a; cvt.rn.f16.f32 %h, %f; cvt.u16.u32 %k, %a; \
                or.b16 %k, %k, 0x8000; mul.f16 %h, %h, %k; cvt.u32.u16 %r, %h;";
    // One factor is −n times the least subnormal number.
    check(code, |t| 0x8000 | ((t % 32) * (t % 32)));
}

/// Waits for as many cycles or nanoseconds as its parameter says.
fn wait(clock: &str) -> String {
    format!(
        "
.version 7.0
.target sm_80
.address_size 64
.visible .entry wait(.param .u64 count)
{{
    .reg .pred %more;
    .reg .b64 %begin, %now, %count;
    ld.param.u64 %count, [count];
    mov.u64 %begin, {clock};
LOOP:
    mov.u64 %now, {clock};
    sub.s64 %now, %now, %begin;
    setp.lt.s64 %more, %now, %count;
    @%more bra LOOP;
    ret;
}}
"
    )
}

fn compiled(clock: &str, architecture: Architecture) -> Result<CodeObject, AmdError> {
    let module = atoll_ptx::parse(&wait(clock)).unwrap();
    let shape = KernelShape { name: "wait".into(), block: [64, 1, 1] };
    compile(&module, &[shape], architecture, &Options::default())
}

/// The number of instructions until a wait ends.
fn instructions(code: &CodeObject, count: u64) -> Result<u64, RunError> {
    let program = Program::load(&code.elf).unwrap();
    let (grid, block) = ([1; 3], [64, 1, 1]);
    let kernarg = abi::kernarg(&count.to_le_bytes(), grid, block, 0, abi::Records::default());
    let launch = Launch { grid, block, dynamic_lds: 0, kernarg };
    let options = RunOptions { limit: 10_000_000, ..RunOptions::default() };
    run(&[&program], "wait", &launch, &mut Memory::new(), &options).map(|stats| stats.total())
}

/// The shader clock of gfx10 and gfx11 has 20 bits: a longer wait on it would never end.
#[test]
fn a_wait_may_be_longer_than_2_to_the_20_cycles() {
    let count = (1 << 20) + 1000;
    for architecture in Architecture::ALL {
        let code = compiled("%clock64", architecture).unwrap();
        let waited = instructions(&code, count).unwrap_or_else(|error| panic!("{architecture}: {error}"));
        assert!(waited > count / 25, "{architecture}: {waited} instructions");
    }
}

#[test]
fn the_global_timer_is_in_nanoseconds_or_refused() {
    for architecture in Architecture::ALL {
        match compiled("%globaltimer", architecture) {
            Ok(code) => {
                // A tick of the counter, which is an instruction here, is 10 ns.
                let waited = instructions(&code, 100_000).unwrap();
                assert!((10_000..11_000).contains(&waited), "{architecture}: {waited} instructions");
            }
            Err(error) => {
                assert!(["gfx906", "gfx908", "gfx90a"].contains(&architecture.name()), "{architecture}: {error}");
                let text = error.to_string();
                assert!(text.contains("line 10") && text.contains("depends on the board"), "{text}");
            }
        }
    }
}
