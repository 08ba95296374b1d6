//! Loads and stores of every type and width in every pattern of addresses, and atomics of every
//! type.

use crate::common::{Args, Launch, at_every_level, try_compile};

/// A pattern of addresses: its name, PTX that computes a lane's position from its number, and the
/// same in Rust.
type Pattern = (&'static str, &'static str, fn(usize) -> usize);

const PATTERNS: [Pattern; 4] = [
    ("in order", "", |i| i),
    ("backwards", "sub.u32 %r1, 63, %r1;", |i| 63 - i),
    ("scattered", "xor.b32 %r1, %r1, 21;", |i| i ^ 21),
    ("even ones", "and.b32 %r2, %r1, 1; setp.eq.u32 %p0, %r2, 0;", |i| i),
];

#[test]
fn accesses_of_every_type_and_width() {
    let types = [
        ("u8", 1, 16),
        ("s8", 1, 16),
        ("b16", 2, 16),
        ("f16", 2, 16),
        ("s16", 2, 32),
        ("b32", 4, 32),
        ("f32", 4, 32),
        ("b64", 8, 64),
        ("f64", 8, 64),
        ("b128", 16, 128),
    ];
    for (ty, bytes, register) in types {
        for count in [1, 2, 4, 8] {
            if bytes * count > 32 || (ty == "b128" && count > 1) {
                continue;
            }
            // All patterns, with the types whose instructions differ most.
            let patterns = if matches!(ty, "u8" | "b32") { &PATTERNS[..] } else { &PATTERNS[2..] };
            for &(name, code, place) in patterns {
                check_access(ty, bytes, register, count, (name, code, place));
            }
        }
    }
}

fn check_access(ty: &str, bytes: usize, register: usize, count: usize, (name, code, place): Pattern) {
    let size = bytes * count;
    let registers: Vec<String> = (0..count).map(|i| format!("%v{i}")).collect();
    let (width, list) = if count == 1 {
        (String::new(), "%v0".to_owned())
    } else {
        (format!(".v{count}"), format!("{{{}}}", registers.join(", ")))
    };
    let guard = if name == "even ones" { "@%p0 " } else { "" };
    let text = format!(
        ".visible .entry op(.param .u64 in, .param .u64 out)
{{
  .shared .align 32 .b8 tile[2048];
  .reg .pred %p<2>; .reg .b32 %r<8>; .reg .b64 %x<8>; .reg .b{register} %v<8>;
  ld.param.u64 %x1, [in]; ld.param.u64 %x2, [out];
  mov.u32 %r0, %tid.x; mov.u32 %r1, %r0; {code}
  mul.lo.u32 %r3, %r1, {size}; cvt.u64.u32 %x3, %r3; add.u64 %x1, %x1, %x3; add.u64 %x2, %x2, %x3;
  mov.u32 %r4, tile; add.u32 %r4, %r4, %r3;
  {guard}ld.volatile.global{width}.{ty} {list}, [%x1];
  {guard}st.shared{width}.{ty} [%r4], {list};
  {guard}ld.shared{width}.{ty} {list}, [%r4];
  {guard}st.global{width}.{ty} [%x2], {list};
  ret;
}}"
    );
    at_every_level(&text, "op", [64, 1, 1], |kernel| {
        let mut input: Vec<u8> = (0..64 * size).map(|i| (i * 37 + 11) as u8).collect();
        input.resize(64 * size + 32, 0);
        let mut out = vec![0xEEu8; 64 * size + 32];
        // The natural alignment of the widest access.
        let (a, b) = (input.as_ptr().align_offset(32), out.as_ptr().align_offset(32));
        input.rotate_right(a);
        assert_eq!(kernel.run(Launch::grid(1, 1, 1), Args::new().slice(&mut input[a..]).slice(&mut out[b..])), None);
        for lane in 0..64 {
            let at = place(lane) * size;
            let runs = name != "even ones" || lane % 2 == 0;
            let wanted = if runs { input[a + at..a + at + size].to_vec() } else { vec![0xEE; size] };
            assert_eq!(out[b + at..b + at + size], wanted, "{ty} v{count}, {name}, lane {lane}");
        }
    });
}

/// The result of an atomic from a number and an operand, as bits.
type Combine = Box<dyn Fn(u64, u64) -> u64>;

#[test]
fn integer_atomics() {
    let signed32 = |f: fn(i32, i32) -> i32| move |a: u64, b: u64| u64::from(f(a as i32, b as i32) as u32);
    let cases: Vec<(&str, usize, Combine)> = vec![
        ("add.u32", 4, Box::new(|a, b| (a + b) & 0xffff_ffff)),
        ("add.s32", 4, Box::new(|a, b| (a + b) & 0xffff_ffff)),
        ("add.u64", 8, Box::new(u64::wrapping_add)),
        ("min.s32", 4, Box::new(signed32(i32::min))),
        ("max.s32", 4, Box::new(signed32(i32::max))),
        ("min.u32", 4, Box::new(u64::min)),
        ("max.u32", 4, Box::new(u64::max)),
        ("min.s64", 8, Box::new(|a, b| (a as i64).min(b as i64) as u64)),
        ("max.u64", 8, Box::new(u64::max)),
        ("and.b32", 4, Box::new(|a, b| a & b)),
        ("or.b64", 8, Box::new(|a, b| a | b)),
        ("xor.b32", 4, Box::new(|a, b| a ^ b)),
        ("inc.u32", 4, Box::new(|a, b| if a >= b { 0 } else { a + 1 })),
        ("dec.u32", 4, Box::new(|a, b| if a == 0 || a > b { b } else { a - 1 })),
        ("exch.b32", 4, Box::new(|_, b| b)),
        ("exch.b64", 8, Box::new(|_, b| b)),
    ];
    for (op, bytes, combine) in &cases {
        check_atomic(op, *bytes, combine, |_, value| value);
    }
}

#[test]
fn floating_point_atomics() {
    let f32_sum = |a: u64, b: u64| -> u64 { (f32::from_bits(a as u32) + f32::from_bits(b as u32)).to_bits().into() };
    check_atomic("add.f32", 4, &f32_sum, |_, v| (v as f32 / 8.0).to_bits().into());
    let f64_sum = |a: u64, b: u64| (f64::from_bits(a) + f64::from_bits(b)).to_bits();
    check_atomic("add.f64", 8, &f64_sum, |_, v| (v as f64 / 3.0).to_bits());
    // Small integers are exact in both formats.
    check_atomic("add.noftz.f16", 2, &|a, b| f16(half(a) + half(b)), |_, v| f16((v % 4) as f32));
    check_atomic("add.noftz.bf16", 2, &|a, b| bf16(brain(a) + brain(b)), |_, v| bf16((v % 4) as f32));
    let pairs = |a: u64, b: u64| f16(half(a & 0xffff) + half(b & 0xffff)) | f16(half(a >> 16) + half(b >> 16)) << 16;
    check_atomic("add.noftz.f16x2", 4, &pairs, |_, v| f16((v % 3) as f32) | f16((v % 2) as f32) << 16);
}

fn half(bits: u64) -> f32 {
    if bits == 0 { 0.0 } else { (1.0 + (bits & 0x3ff) as f32 / 1024.0) * 2f32.powi((bits >> 10 & 31) as i32 - 15) }
}

fn f16(value: f32) -> u64 {
    if value == 0.0 { 0 } else { u64::from((value.to_bits() >> 13) - ((127 - 15) << 10)) }
}

fn brain(bits: u64) -> f32 {
    f32::from_bits((bits as u32) << 16)
}

fn bf16(value: f32) -> u64 {
    u64::from(value.to_bits() >> 16)
}

/// Every thread of a warp updates one of five cells and keeps the old value; in global, shared and
/// generic memory, and once without a result.
fn check_atomic(op: &str, bytes: usize, combine: &dyn Fn(u64, u64) -> u64, operand: impl Fn(usize, u64) -> u64) {
    let bits = bytes * 8;
    for (space, instruction) in [
        ("global", "atom.global"),
        ("shared", "atom.shared"),
        ("generic", "atom"),
        ("global", "red.relaxed.gpu.global"),
    ] {
        let is_red = instruction.starts_with("red");
        if is_red && (op.starts_with("exch") || op.starts_with("inc") || op.starts_with("dec")) {
            continue;
        }
        let (target, place) = (if is_red { "" } else { "%d, " }, if space == "shared" { "%r3" } else { "%x1" });
        let text = format!(
            ".visible .entry op(.param .u64 cells, .param .u64 values, .param .u64 out)
{{
  .shared .align 16 .b8 tile[64];
  .reg .b32 %r<8>; .reg .b64 %x<8>; .reg .b{bits} %v; .reg .b{bits} %d; .reg .pred %p<2>;
  ld.param.u64 %x1, [cells]; ld.param.u64 %x2, [values]; ld.param.u64 %x3, [out];
  mov.u32 %r0, %tid.x; rem.u32 %r1, %r0, 5; mul.lo.u32 %r2, %r1, {bytes}; mul.wide.u32 %x4, %r0, 8;
  cvt.u64.u32 %x5, %r2; mov.u32 %r3, tile; add.u32 %r3, %r3, %r2; add.u64 %x1, %x1, %x5; add.u64 %x2, %x2, %x4; \
  add.u64 %x3, %x3, %x4;
  setp.lt.u32 %p0, %r0, 5;
  @%p0 ld.global.b{bits} %d, [%x1]; @%p0 st.shared.b{bits} [%r3], %d;
  ld.global.b{bits} %v, [%x2];
  {instruction}.{op} {target}[{place}], %v;
  st.global.b{bits} [%x3], %d;
  @!%p0 bra end;
  ld.shared.b{bits} %d, [%r3];
  {back}
end: ret;
}}",
            back = if space == "shared" { format!("st.global.b{bits} [%x1], %d;") } else { String::new() },
        );
        at_every_level(&text, "op", [32, 1, 1], |kernel| {
            let mut cells: Vec<u8> = vec![0; 5 * bytes + 8];
            let mut values: Vec<u64> = (0..32).map(|i| operand(i, (i as u64 * 2_654_435_761) >> 3 & 0xff)).collect();
            let mut expected: Vec<u64> = (0..5).map(|i| operand(i, 40 + i as u64)).collect();
            for (i, value) in expected.iter().enumerate() {
                cells[i * bytes..(i + 1) * bytes].copy_from_slice(&value.to_le_bytes()[..bytes]);
            }
            let mut out = vec![0u64; 32];
            kernel.run(Launch::grid(1, 1, 1), Args::new().slice(&mut cells).slice(&mut values).slice(&mut out));
            for lane in 0..32 {
                if !is_red {
                    assert_eq!(out[lane], expected[lane % 5], "{instruction}.{op}: what lane {lane} found");
                }
                expected[lane % 5] = combine(expected[lane % 5], values[lane]);
            }
            for (i, wanted) in expected.iter().enumerate() {
                let mut found = [0; 8];
                found[..bytes].copy_from_slice(&cells[i * bytes..(i + 1) * bytes]);
                assert_eq!(u64::from_le_bytes(found), *wanted, "{instruction}.{op}: cell {i}");
            }
        });
    }
}

#[test]
fn swaps_reductions_and_vectors() {
    let text = "
.visible .entry op(.param .u64 in)
{
  .reg .b16 %h<8>; .reg .b32 %r<8>; .reg .b64 %x<8>; .reg .b128 %q<4>; .reg .f32 %f<4>; .reg .pred %p<2>;
  ld.param.u64 %x1, [in]; mov.u32 %r0, %tid.x;
  atom.global.cas.b32 %r1, [%x1], 7, 9;
  mov.b16 %h1, 3; mov.b16 %h2, 4; atom.global.acq_rel.sys.cas.b16 %h3, [%x1+8], %h1, %h2;
  mov.b64 %x2, 1; mov.b64 %x3, 2; mov.b128 %q1, {%x2, %x3}; mov.b128 %q2, {%x3, %x2};
  setp.eq.u32 %p0, %r0, 0;
  @%p0 atom.global.cas.b128 %q3, [%x1+16], %q1, %q2;
  @%p0 mov.b128 {%x4, %x5}, %q3; @%p0 st.global.v2.b64 [%x1+32], {%x4, %x5};
  mov.f32 %f1, 0f3f800000; mov.f32 %f2, 0f40000000;
  red.global.v2.f32.add [%x1+48], {%f1, %f2};
  red.global.add.u32 [%x1+56], %r0;
  red.global.max.s32 [%x1+60], -5;
  setp.gt.u32 %p1, %r0, 27;
  @%p1 red.global.min.u32 [%x1+64], %r0;
  red.global.add.u64 [%x1+72], 1;
  ret;
}";
    at_every_level(text, "op", [32, 1, 1], |kernel| {
        #[repr(align(16))]
        struct Memory([u32; 20]);
        let mut memory = Memory([0; 20]);
        (memory.0[0], memory.0[2], memory.0[4], memory.0[6]) = (7, 3, 1, 2);
        (memory.0[15], memory.0[16]) = (i32::MIN as u32, u32::MAX);
        kernel.run(Launch::grid(1, 1, 1), Args::new().slice(&mut memory.0));
        let m = memory.0;
        assert_eq!((m[0], m[2]), (9, 4));
        assert_eq!([m[4], m[6], m[8], m[10]], [2, 1, 1, 2], "128 bits");
        assert_eq!((f32::from_bits(m[12]), f32::from_bits(m[13])), (32.0, 64.0));
        assert_eq!((m[14], m[15] as i32, m[16], m[18]), (496, -5, 28, 32));
    });
}

#[test]
fn sums_of_f32_in_global_memory_flush() {
    let text = "
.visible .entry op(.param .u64 in)
{
  .shared .align 4 .b8 tile[4]; .reg .b32 %r<8>; .reg .b64 %x<8>;
  ld.param.u64 %x1, [in]; mov.b32 %r1, 1; mov.b32 %r2, tile; st.shared.b32 [%r2], %r1;
  atom.global.add.f32 %r3, [%x1], %r1;
  atom.shared.add.f32 %r4, [%r2], %r1; ld.shared.b32 %r5, [%r2]; st.global.b32 [%x1+4], %r5;
  ret;
}";
    at_every_level(text, "op", [1, 1, 1], |kernel| {
        let mut memory = [1u32, 0];
        kernel.run(Launch::grid(1, 1, 1), Args::new().slice(&mut memory));
        assert_eq!(memory, [0, 2]);
    });
}

#[test]
fn undefined_atomics_are_rejected() {
    for op in [
        "atom.global.add.b32 %r0, [%x0], %r1",
        "atom.global.min.f32 %r0, [%x0], %r1",
        "atom.global.cas.v2.b32 %r0, [%x0], %r1",
        "red.async.relaxed.cluster.add.u32 [%x0], %r1",
    ] {
        let text = format!(
            ".visible .entry op(.param .u64 p)\n{{\n  .reg .b32 %r<4>; \
             .reg .b64 %x<2>;\n  ld.param.u64 %x0, [p];\n  {op};\n  ret;\n}}"
        );
        let error = try_compile(&text, "op", [32, 1, 1], atoll_target_host::CpuLevel::V3).err().map(|e| e.to_string());
        assert!(error.is_some(), "{op} was accepted");
    }
}
