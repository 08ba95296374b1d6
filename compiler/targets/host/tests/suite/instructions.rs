//! Arithmetic, conversions and forms of memory accesses, compared with Rust.

use crate::common::{Args, Launch, Random, at_every_level, try_compile};
use atoll_target_host::{CpuLevel, HostError, LowerError};

/// A kernel on three u32 inputs `%r1`, `%r2`, `%r3` per thread, whose code leaves its result in
/// `%r4`.
fn ternary(code: &str) -> String {
    format!(
        ".visible .entry op(.param .u64 a, .param .u64 b, .param .u64 c, .param .u64 d)
{{
  .reg .pred %p<6>; .reg .b16 %h<8>; .reg .b32 %r<24>; .reg .f32 %f<12>; .reg .f64 %fd<6>; .reg .b64 %rd<24>;
  ld.param.u64 %rd1, [a]; ld.param.u64 %rd2, [b]; ld.param.u64 %rd3, [c]; ld.param.u64 %rd4, [d];
  mov.u32 %r20, %tid.x; mov.u32 %r21, %ctaid.x; mov.u32 %r22, %ntid.x; mad.lo.u32 %r20, %r21, %r22, %r20;
  mul.wide.u32 %rd5, %r20, 4;
  add.u64 %rd6, %rd1, %rd5; add.u64 %rd7, %rd2, %rd5; add.u64 %rd8, %rd3, %rd5; add.u64 %rd9, %rd4, %rd5;
  ld.global.u32 %r1, [%rd6]; ld.global.u32 %r2, [%rd7]; ld.global.u32 %r3, [%rd8];
  mov.b32 %f1, %r1; mov.b32 %f2, %r2; mov.b32 %f3, %r3;
  {code}
  st.global.u32 [%rd9], %r4;
  ret;
}}"
    )
}

/// Edge values, and some others.
fn inputs() -> [Vec<u32>; 3] {
    let edges = [
        0u32,
        1,
        2,
        3,
        7,
        31,
        32,
        33,
        255,
        0x7fff_ffff,
        0x8000_0000,
        0x8000_0001,
        0xffff_fffe,
        0xffff_ffff,
        0x0001_0000,
        1000,
    ];
    let mut lists = [Vec::new(), Vec::new(), Vec::new()];
    let mut random = Random::new(11);
    for a in edges {
        for b in edges {
            lists[0].push(a);
            lists[1].push(b);
            lists[2].push(random.next_u32() % 300);
        }
    }
    while lists[0].len() < 1024 {
        lists.iter_mut().for_each(|l| l.push(random.next_u32()));
    }
    lists
}

fn check(code: &str, expected: impl Fn(u32, u32, u32) -> u32) {
    check_on(inputs(), code, expected);
}

fn check_on(lists: [Vec<u32>; 3], code: &str, expected: impl Fn(u32, u32, u32) -> u32) {
    let text = ternary(code);
    at_every_level(&text, "op", [64, 1, 1], |kernel| {
        let [mut a, mut b, mut c] = lists.clone();
        let mut d = vec![0u32; a.len()];
        kernel.run(
            Launch::grid(a.len() as u32 / 64, 1, 1),
            Args::new().slice(&mut a).slice(&mut b).slice(&mut c).slice(&mut d),
        );
        for i in 0..a.len() {
            let want = expected(a[i], b[i], c[i]);
            assert_eq!(d[i], want, "{code} of {:#x}, {:#x}, {:#x}: {:#x}, not {want:#x}", a[i], b[i], c[i], d[i]);
        }
    });
}

#[test]
fn division_never_traps() {
    check("div.u32 %r4, %r1, %r2;", |a, b, _| a.checked_div(b).unwrap_or(u32::MAX));
    check("rem.u32 %r4, %r1, %r2;", |a, b, _| a.checked_rem(b).unwrap_or(u32::MAX));
    check("div.s32 %r4, %r1, %r2;", |a, b, _| if b == 0 { u32::MAX } else { (a as i32).wrapping_div(b as i32) as u32 });
    check("rem.s32 %r4, %r1, %r2;", |a, b, _| if b == 0 { u32::MAX } else { (a as i32).wrapping_rem(b as i32) as u32 });
    check("div.u32 %r4, %r1, 7;", |a, _, _| a / 7);
    check(
        "cvt.s64.s32 %rd10, %r1; cvt.s64.s32 %rd11, %r2; div.s64 %rd12, %rd10, %rd11; cvt.u32.u64 %r4, %rd12;",
        |a, b, _| {
            if b == 0 { u32::MAX } else { (i64::from(a as i32)).wrapping_div(i64::from(b as i32)) as u32 }
        },
    );
}

#[test]
fn products_and_sums() {
    check("mul.hi.s32 %r4, %r1, %r2;", |a, b, _| ((i64::from(a as i32) * i64::from(b as i32)) >> 32) as u32);
    check("mad.lo.s32 %r4, %r1, %r2, %r3;", |a, b, c| a.wrapping_mul(b).wrapping_add(c));
    check("mul.wide.s32 %rd10, %r1, %r2; shr.s64 %rd10, %rd10, 13; cvt.u32.u64 %r4, %rd10;", |a, b, _| {
        ((i64::from(a as i32) * i64::from(b as i32)) >> 13) as u32
    });
    check("add.sat.s32 %r4, %r1, %r2;", |a, b, _| (a as i32).saturating_add(b as i32) as u32);
    check("sad.u32 %r4, %r1, %r2, %r3;", |a, b, c| c.wrapping_add(a.abs_diff(b)));
    check("min.s32 %r4, %r1, %r2;", |a, b, _| (a as i32).min(b as i32) as u32);
    check("max.u32 %r4, %r1, %r2;", |a, b, _| a.max(b));
    check("abs.s32 %r4, %r1;", |a, _, _| (a as i32).wrapping_abs() as u32);
    check("neg.s32 %r4, %r1;", |a, _, _| a.wrapping_neg());
}

#[test]
fn bits() {
    check("shl.b32 %r4, %r1, %r2;", |a, b, _| if b > 31 { 0 } else { a << b });
    check("shr.u32 %r4, %r1, %r2;", |a, b, _| if b > 31 { 0 } else { a >> b });
    check("shr.s32 %r4, %r1, %r2;", |a, b, _| ((a as i32) >> b.min(31)) as u32);
    check("shf.l.wrap.b32 %r4, %r1, %r2, %r3;", |a, b, c| {
        ((u64::from(b) << 32 | u64::from(a)) << (c & 31) >> 32) as u32
    });
    check("popc.b32 %r4, %r1;", |a, _, _| a.count_ones());
    check("clz.b32 %r4, %r1;", |a, _, _| a.leading_zeros());
    check("brev.b32 %r4, %r1;", |a, _, _| a.reverse_bits());
    check("bfind.u32 %r4, %r1;", |a, _, _| if a == 0 { u32::MAX } else { 31 - a.leading_zeros() });
    check("lop3.b32 %r4, %r1, %r2, %r3, 0x96;", |a, b, c| a ^ b ^ c);
    check("prmt.b32 %r4, %r1, %r2, %r3;", |a, b, c| {
        let bytes = (u64::from(b) << 32 | u64::from(a)).to_le_bytes();
        let pick = |n: u32| {
            let byte = bytes[(n & 7) as usize];
            if n & 8 != 0 { if byte & 0x80 != 0 { 0xff } else { 0 } } else { byte }
        };
        u32::from_le_bytes([pick(c), pick(c >> 4), pick(c >> 8), pick(c >> 12)])
    });
    // The ISA's definition of bit fields.
    let field = |a: u32, pos: u32, len: u32, signed: bool| {
        let (pos, len) = (pos & 255, len & 255);
        let bit = |n: u32| if n < 32 { a >> n & 1 } else { 0 };
        let sign = if !signed || len == 0 { 0 } else { bit((pos + len - 1).min(31)) };
        (0..32).map(|i| if i < len && pos + i <= 31 { bit(pos + i) << i } else { sign << i }).sum::<u32>()
    };
    check("bfe.u32 %r4, %r1, %r2, %r3;", |a, b, c| field(a, b, c, false));
    check("bfe.s32 %r4, %r1, %r2, %r3;", |a, b, c| field(a, b, c, true));
    check("bfi.b32 %r4, %r1, %r2, %r3, 9;", |a, b, c| {
        let pos = c & 255;
        (0..32).map(|i| if i >= pos && i < pos + 9 { (a >> (i - pos) & 1) << i } else { b & 1 << i }).sum::<u32>()
    });
}

#[test]
fn predicates_and_choices() {
    check("setp.lt.s32 %p1, %r1, %r2; selp.b32 %r4, 1, 2, %p1;", |a, b, _| if (a as i32) < b as i32 { 1 } else { 2 });
    check("setp.lo.u32 %p1, %r1, %r2; selp.b32 %r4, %r3, 2, %p1;", |a, b, c| if a < b { c } else { 2 });
    check(
        "setp.gt.u32 %p2, %r3, 100; setp.eq.and.u32 %p1|%p3, %r1, %r2, %p2; selp.u32 %r4, 1, 0, %p1; \
         selp.u32 %r5, 2, 0, %p3; add.u32 %r4, %r4, %r5;",
        |a, b, c| {
            if c > 100 { if a == b { 1 } else { 2 } } else { 0 }
        },
    );
    check("set.ge.u32.s32 %r4, %r1, %r2;", |a, b, _| if a as i32 >= b as i32 { u32::MAX } else { 0 });
    check("slct.b32.s32 %r4, %r1, %r2, %r3;", |a, b, c| if c as i32 >= 0 { a } else { b });
    check(
        "mov.u32 %r4, 5; setp.lt.u32 %p1, %r1, %r2; @%p1 mov.u32 %r4, %r3; @!%p1 add.u32 %r4, %r4, %r1;",
        |a, b, c| {
            if a < b { c } else { 5u32.wrapping_add(a) }
        },
    );
    check("setp.lt.u32 %p1, %r1, %r2; xor.pred %p2, %p1, 1; not.pred %p3, %p2; selp.u32 %r4, 1, 0, %p3;", |a, b, _| {
        u32::from(a < b)
    });
}

#[test]
fn packing_and_narrow_types() {
    check("mov.b64 %rd10, {%r1, %r2}; mov.b64 {%r5, %r6}, %rd10; sub.u32 %r4, %r6, %r5;", |a, b, _| b.wrapping_sub(a));
    check("mov.b32 {%h1, %h2}, %r1; mov.b32 %r4, {%h2, %h1};", |a, _, _| a.rotate_left(16));
    check("cvt.u16.u32 %h1, %r1; cvt.s32.s16 %r4, %h1;", |a, _, _| a as i16 as i32 as u32);
    check("cvt.s32.s8 %r4, %r1;", |a, _, _| a as i8 as i32 as u32);
    check("cvt.sat.u8.s32 %r4, %r1;", |a, _, _| (a as i32).clamp(0, 255) as u32);
    check("cvt.sat.s32.u32 %r4, %r1;", |a, _, _| a.min(i32::MAX as u32));
}

/// Float inputs, as bits, for the usual lists.
fn floats() -> [Vec<u32>; 3] {
    let edges = [
        0.0f32,
        -0.0,
        1.0,
        -1.0,
        0.5,
        2.5,
        -3.5,
        65504.0,
        1e-7,
        -6e-8,
        3e9,
        -3e9,
        1e20,
        f32::INFINITY,
        f32::NEG_INFINITY,
        f32::NAN,
    ];
    let mut lists = [Vec::new(), Vec::new(), Vec::new()];
    let mut random = Random::new(12);
    for a in edges {
        for b in edges {
            lists[0].push(a.to_bits());
            lists[1].push(b.to_bits());
            lists[2].push((random.unit() * 10.0).to_bits());
        }
    }
    while lists[0].len() < 1024 {
        lists.iter_mut().for_each(|l| l.push((random.unit() * 100.0).to_bits()));
    }
    lists
}

fn check_float(code: &str, expected: impl Fn(f32, f32, f32) -> f32) {
    check_on(
        floats(),
        &format!("{code} mov.b32 %r4, %f4; setp.nan.f32 %p5, %f4, %f4; selp.b32 %r4, 0x7fc00000, %r4, %p5;"),
        |a, b, c| {
            let value = expected(f32::from_bits(a), f32::from_bits(b), f32::from_bits(c));
            if value.is_nan() { 0x7fc0_0000 } else { value.to_bits() }
        },
    );
}

#[test]
fn float_arithmetic_is_exactly_rounded() {
    check_float("add.f32 %f4, %f1, %f2;", |a, b, _| a + b);
    check_float("mul.f32 %f5, %f1, %f2; add.f32 %f4, %f5, %f3;", |a, b, c| a * b + c);
    check_float("fma.rn.f32 %f4, %f1, %f2, %f3;", |a, b, c| a.mul_add(b, c));
    check_float("div.rn.f32 %f4, %f1, %f2;", |a, b, _| a / b);
    check_float("sqrt.rn.f32 %f4, %f1;", |a, _, _| a.sqrt());
    check_float("rcp.rn.f32 %f4, %f1;", |a, _, _| 1.0 / a);
    check_float("max.f32 %f4, %f1, %f3;", |a, _, c| if a.is_nan() { c } else { a.max(c) });
    check_float("abs.f32 %f5, %f1; neg.f32 %f4, %f5;", |a, _, _| -a.abs());
    check_float("copysign.f32 %f4, %f1, %f2;", |a, b, _| b.copysign(a));
    check_float(
        "add.sat.f32 %f4, %f1, %f2;",
        |a, b, _| if (a + b).is_nan() { 0.0 } else { (a + b).clamp(0.0, 1.0) + 0.0 },
    );
    check_float(
        "cvt.f64.f32 %fd1, %f1; cvt.f64.f32 %fd2, %f3; mul.f64 %fd3, %fd1, %fd2; cvt.rn.f32.f64 %f4, %fd3;",
        |a, _, c| (f64::from(a) * f64::from(c)) as f32,
    );
}

#[test]
fn conversions_of_floats() {
    let int =
        |code: &str, expected: &dyn Fn(f32) -> u32| check_on(floats(), code, |a, _, _| expected(f32::from_bits(a)));
    int("cvt.rzi.s32.f32 %r4, %f1;", &|a| a as i32 as u32);
    int("cvt.rni.s32.f32 %r4, %f1;", &|a| a.round_ties_even() as i32 as u32);
    int("cvt.rmi.u32.f32 %r4, %f1;", &|a| a.floor() as u32);
    int("cvt.rpi.s32.f32 %r4, %f1;", &|a| a.ceil() as i32 as u32);
    check("cvt.rn.f32.u32 %f4, %r1; mov.b32 %r4, %f4;", |a, _, _| (a as f32).to_bits());
    check("cvt.rn.f32.s32 %f4, %r1; mov.b32 %r4, %f4;", |a, _, _| (a as i32 as f32).to_bits());
    check_float("cvt.rpi.f32.f32 %f4, %f1;", |a, _, _| a.ceil());
}

/// Rounds to half precision by the definition: the nearest representable value, ties to even.
fn to_half(value: f32) -> u16 {
    let sign = ((value.to_bits() >> 16) & 0x8000) as u16;
    let magnitude = f64::from(value.abs());
    if value.is_nan() || value.is_infinite() {
        return if value.is_nan() { 0x7e00 } else { sign | 0x7c00 };
    }
    let step = |exponent: i32| 2f64.powi(exponent - 10);
    let exponent = (magnitude.log2().floor() as i32).max(-14);
    let rounded = if magnitude == 0.0 { 0.0 } else { (magnitude / step(exponent)).round_ties_even() * step(exponent) };
    if rounded >= 65520.0 {
        return sign | 0x7c00;
    }
    if rounded < 2f64.powi(-14) {
        return sign | (rounded / 2f64.powi(-24)) as u16;
    }
    let exponent = rounded.log2().floor() as i32;
    let fraction = (rounded / step(exponent)) as u16 & 0x3ff;
    sign | (((exponent + 15) as u16) << 10) | fraction
}

#[test]
fn half_precision() {
    let canonical = |bits: u16| if bits & 0x7fff > 0x7c00 { 0x7e00 } else { bits };
    check_on(
        floats(),
        "cvt.rn.f16.f32 %h1, %f1; cvt.u32.u16 %r4, %h1; and.b32 %r5, %r4, 0x7fff; setp.gt.u32 %p1, %r5, 0x7c00; \
         selp.b32 %r4, 0x7e00, %r4, %p1;",
        |a, _, _| u32::from(canonical(to_half(f32::from_bits(a)))),
    );
    check_on(
        [(0..1024).map(|i| (i * 31) | ((i << 15) & 0x8000)).collect(), vec![0; 1024], vec![0; 1024]],
        "cvt.u16.u32 %h1, %r1; cvt.f32.f16 %f4, %h1; cvt.rn.f16.f32 %h2, %f4; cvt.u32.u16 %r4, %h2;",
        |a, _, _| a,
    );
    check_on(
        [
            vec![to_half(1.5).into(); 1024],
            (0..1024).map(|i| to_half(i as f32 / 8.0).into()).collect(),
            vec![to_half(-2.25).into(); 1024],
        ],
        "cvt.u16.u32 %h1, %r1; cvt.u16.u32 %h2, %r2; cvt.u16.u32 %h3, %r3; fma.rn.f16 %h4, %h1, %h2, %h3; \
         cvt.f32.f16 %f4, %h4; mov.b32 %r4, %f4;",
        |_, b, _| {
            // All operations are exact except for the last rounding.
            let b = half_value(b as u16);
            half_value(to_half(b.mul_add(1.5, -2.25))).to_bits()
        },
    );
}

/// The value of finite half-precision bits.
fn half_value(bits: u16) -> f32 {
    let (exponent, fraction) = (i32::from(bits >> 10 & 31), f32::from(bits & 0x3ff));
    let magnitude =
        if exponent == 0 { fraction * 2f32.powi(-24) } else { (1024.0 + fraction) * 2f32.powi(exponent - 25) };
    if bits & 0x8000 != 0 { -magnitude } else { magnitude }
}

#[test]
fn an_instruction_that_is_not_supported_is_named_with_its_line() {
    let text = ".visible .entry bad(.param .u64 a)\n{\n  .reg .b32 %r<9>;\n  wgmma.fence.sync.aligned;\n  ret;\n}";
    let error = try_compile(text, "bad", [32, 1, 1], CpuLevel::V3)
        .err()
        .map(|e| (e.to_string(), matches!(e, HostError::Lower(LowerError::Unsupported { line: 7, .. }))));
    let (message, is_right) = error.expect("it was accepted");
    assert!(is_right && message.contains("wgmma.fence.sync.aligned"), "{message}");
}
