//! Floating-point operations. Results are equal bit for bit where LLVM promises IEEE 754's,
//! otherwise within an error.

use crate::numeric::{Case, check};

fn nan_or_equal32(a: u64, b: u64) -> bool {
    a == b || f32::from_bits(a as u32).is_nan() && f32::from_bits(b as u32).is_nan()
}

fn nan_or_equal64(a: u64, b: u64) -> bool {
    a == b || f64::from_bits(a).is_nan() && f64::from_bits(b).is_nan()
}

fn nan_or_equal16(a: u64, b: u64) -> bool {
    a == b || a & 0x7fff > 0x7c00 && b & 0x7fff > 0x7c00
}

fn nan_or_equal_bf16(a: u64, b: u64) -> bool {
    a == b || a & 0x7fff > 0x7f80 && b & 0x7fff > 0x7f80
}

/// Equal numbers, where either zero is a correct minimum or maximum of both.
fn equal_zeros32(a: u64, b: u64) -> bool {
    nan_or_equal32(a, b) || f32::from_bits(a as u32) == f32::from_bits(b as u32)
}

/// Whether numbers differ by at most two units in the last place, or are both tiny.
fn near32(a: u64, b: u64) -> bool {
    let (x, y) = (f32::from_bits(a as u32), f32::from_bits(b as u32));
    nan_or_equal32(a, b) || (a as i32).abs_diff(b as i32) <= 2 || x.abs() < 1.2e-38 && y.abs() < 1.2e-38
}

macro_rules! case {
    ($same:ident, $name:literal, $input:literal, $output:literal, $body:literal, $f:expr) => {
        Case { name: $name, input: $input, output: $output, body: $body, f: $f, same: $same }
    };
    ($same:ident, $name:literal, $ty:literal, $body:literal, $f:expr) => {
        case!($same, $name, $ty, $ty, $body, $f)
    };
}

fn exactly(a: u64, b: u64) -> bool {
    a == b
}

fn special(ty: &str) -> Vec<u64> {
    let half = [0, 1, 0x3ff, 0x400, 0x3555, 0x3c00, 0x3c01, 0x4200, 0x7bff, 0x7c00, 0x7e00, 0x7d00];
    let single = [
        0,
        1,
        0x7f_ffff,
        0x80_0000,
        0x3eaa_aaab,
        0x3f80_0000,
        0x3f80_0001,
        0x4040_0000,
        0x4f00_0000,
        0x7f7f_ffff,
        0x7f80_0000,
        0x7fc0_0000,
        0x7fa0_0000,
        0x4b00_0001,
        0x5f00_0000,
    ];
    let double = [
        0,
        1,
        0xf_ffff_ffff_ffff,
        0x10_0000_0000_0000,
        0x3fd5_5555_5555_5555,
        0x3ff0_0000_0000_0000,
        0x3ff0_0000_0000_0001,
        0x4008_0000_0000_0000,
        0x41e0_0000_0000_0000,
        0x43e0_0000_0000_0000,
        0x7fef_ffff_ffff_ffff,
        0x7ff0_0000_0000_0000,
        0x7ff8_0000_0000_0000,
        0x7ff4_0000_0000_0000,
        0x36a0_0000_0000_0001,
        0x47ef_ffff_ffff_ffff,
    ];
    let (values, sign): (&[u64], u64) = match ty {
        "half" | "bfloat" => (&half, 0x8000),
        "double" => (&double, 1 << 63),
        "float" => (&single, 1 << 31),
        _ => (&[0, 1, 2, 0x7fff_ffff, 0x8000_0000, 0xffff_ffff, 0x100_0001, 0x7fff_ffff_ffff_ffff], 1 << 63),
    };
    values.iter().flat_map(|&v| [v, v | sign]).collect()
}

fn f(v: u64) -> f32 {
    f32::from_bits(v as u32)
}

fn d(v: u64) -> f64 {
    f64::from_bits(v)
}

fn b(v: f32) -> u64 {
    v.to_bits().into()
}

/// Converts an f16 to f64, exactly.
fn h(v: u64) -> f64 {
    let (sign, exponent, fraction) = (v >> 15 & 1, v >> 10 & 31, (v & 0x3ff) as f64);
    let magnitude = match exponent {
        0 => fraction * 2f64.powi(-24),
        31 if fraction == 0.0 => f64::INFINITY,
        31 => f64::NAN,
        e => (1.0 + fraction / 1024.0) * 2f64.powi(e as i32 - 15),
    };
    if sign == 1 { -magnitude } else { magnitude }
}

/// Converts to the nearest f16, ties to even.
fn to_h(v: f64) -> u64 {
    let sign = u64::from(v.is_sign_negative()) << 15;
    let magnitude = v.abs();
    if v.is_nan() {
        return 0x7e00;
    }
    let exponent = ((magnitude.to_bits() >> 52) as i32 - 1023).max(-14);
    let steps = (magnitude * 2f64.powi(10 - exponent)).round_ties_even();
    let bits = ((exponent + 14) as u64).wrapping_mul(1024).wrapping_add(steps as u64);
    sign | if exponent > 15 || bits >= 0x7c00 { 0x7c00 } else { bits }
}

/// Converts an f32 to the nearest bf16.
fn to_bf16(v: f32) -> u64 {
    let bits = v.to_bits();
    if v.is_nan() { 0x7fc0 } else { u64::from((bits + 0x7fff + (bits >> 16 & 1)) >> 16) }
}

#[test]
fn single() {
    check(
        "declare float @llvm.fma.f32(float, float, float)\ndeclare float @llvm.sqrt.f32(float)\n\
         declare float @llvm.minnum.f32(float, float)\ndeclare float @llvm.maxnum.f32(float, float)\n\
         declare float @llvm.minimum.f32(float, float)\n\
         declare float @llvm.floor.f32(float)\ndeclare float @llvm.ceil.f32(float)\n\
         declare float @llvm.trunc.f32(float)\n\
         declare float @llvm.rint.f32(float)\ndeclare float @llvm.round.f32(float)\n\
         declare float @llvm.copysign.f32(float, float)\ndeclare float @llvm.fabs.f32(float)\n\
         declare i32 @llvm.fptosi.sat.i32.f32(float)\ndeclare i32 @llvm.fptoui.sat.i32.f32(float)\n\
         declare i64 @llvm.fptosi.sat.i64.f32(float)\ndeclare i8 @llvm.fptosi.sat.i8.f32(float)\n\
         declare float @llvm.ldexp.f32.i32(float, i32)\ndeclare float @llvm.exp2.f32(float)\n\
         declare float @llvm.log2.f32(float)\ndeclare float @llvm.amdgcn.fract.f32(float)",
        &[
            case!(nan_or_equal32, "add", "float", "%r = fadd float %a, %b", |v| b(f(v[0]) + f(v[1]))),
            case!(nan_or_equal32, "sub", "float", "%r = fsub float %a, %b", |v| b(f(v[0]) - f(v[1]))),
            case!(nan_or_equal32, "mul", "float", "%r = fmul float %a, %b", |v| b(f(v[0]) * f(v[1]))),
            case!(nan_or_equal32, "mul_add", "float", "%m = fmul float %a, %b; %r = fadd float %m, %c", |v| {
                b(f(v[0]) * f(v[1]) + f(v[2]))
            }),
            case!(nan_or_equal32, "fma", "float", "%r = call float @llvm.fma.f32(float %a, float %b, float %c)", |v| {
                b(f(v[0]).mul_add(f(v[1]), f(v[2])))
            }),
            case!(nan_or_equal32, "div", "float", "%r = fdiv float %a, %b", |v| b(f(v[0]) / f(v[1]))),
            case!(nan_or_equal32, "sqrt", "float", "%r = call float @llvm.sqrt.f32(float %a)", |v| b(f(v[0]).sqrt())),
            case!(equal_zeros32, "min", "float", "%r = call float @llvm.minnum.f32(float %a, float %b)", |v| {
                b(minnum(f(v[0]), f(v[1])))
            }),
            case!(equal_zeros32, "max", "float", "%r = call float @llvm.maxnum.f32(float %a, float %b)", |v| {
                b(-minnum(-f(v[0]), -f(v[1])))
            }),
            case!(nan_or_equal32, "minimum", "float", "%r = call float @llvm.minimum.f32(float %a, float %b)", |v| {
                let (x, y) = (f(v[0]), f(v[1]));
                if x.is_nan() || y.is_nan() {
                    return b(f32::NAN);
                }
                b(if x < y || x == y && x.is_sign_negative() { x } else { y })
            }),
            case!(
                nan_or_equal32,
                "floor",
                "float",
                "%r = call float @llvm.floor.f32(float %a)",
                |v| b(f(v[0]).floor())
            ),
            case!(nan_or_equal32, "ceil", "float", "%r = call float @llvm.ceil.f32(float %a)", |v| b(f(v[0]).ceil())),
            case!(
                nan_or_equal32,
                "trunc",
                "float",
                "%r = call float @llvm.trunc.f32(float %a)",
                |v| b(f(v[0]).trunc())
            ),
            case!(nan_or_equal32, "rint", "float", "%r = call float @llvm.rint.f32(float %a)", |v| {
                b(f(v[0]).round_ties_even())
            }),
            case!(
                nan_or_equal32,
                "round",
                "float",
                "%r = call float @llvm.round.f32(float %a)",
                |v| b(f(v[0]).round())
            ),
            case!(
                nan_or_equal32,
                "signs",
                "float",
                "%x = call float @llvm.copysign.f32(float %a, float %b); \
                %y = call float @llvm.fabs.f32(float %c); %z = fneg float %y; %r = fadd float %x, %z",
                |v| { b(f(v[0]).copysign(f(v[1])) - f(v[2]).abs()) }
            ),
            case!(exactly, "to_i32", "float", "i32", "%r = call i32 @llvm.fptosi.sat.i32.f32(float %a)", |v| f(v[0])
                as i32
                as u64),
            case!(
                exactly,
                "to_u32",
                "float",
                "i32",
                "%r = call i32 @llvm.fptoui.sat.i32.f32(float %a)",
                |v| u64::from(f(v[0]) as u32)
            ),
            case!(exactly, "to_i64", "float", "i64", "%r = call i64 @llvm.fptosi.sat.i64.f32(float %a)", |v| f(v[0])
                as i64
                as u64),
            case!(exactly, "to_i8", "float", "i8", "%r = call i8 @llvm.fptosi.sat.i8.f32(float %a)", |v| f(v[0]) as i8
                as u64),
            case!(nan_or_equal64, "to_double", "float", "double", "%r = fpext float %a to double", |v| f64::from(f(
                v[0]
            ))
            .to_bits()),
            case!(nan_or_equal16, "to_half", "float", "half", "%r = fptrunc float %a to half", |v| to_h(
                f(v[0]).into()
            )),
            case!(nan_or_equal_bf16, "to_bf16", "float", "bfloat", "%r = fptrunc float %a to bfloat", |v| to_bf16(f(
                v[0]
            ))),
            case!(
                exactly,
                "compare",
                "float",
                "i32",
                "%p = fcmp olt float %a, %b; %q = fcmp ueq float %a, %c; %s1 = fcmp ord float %b, %c; \
                %t1 = fcmp uge float %b, %a; %x = zext i1 %p to i32; %y = zext i1 %q to i32; \
                %z = zext i1 %s1 to i32; %w = zext i1 %t1 to i32; %y2 = shl i32 %y, 1; %z2 = shl i32 %z, 2; \
                %w2 = shl i32 %w, 3; %m = or i32 %x, %y2; %n = or i32 %m, %z2; %r = or i32 %n, %w2",
                |v| {
                    let (x, y, z) = (f(v[0]), f(v[1]), f(v[2]));
                    let equal = x == z || x.is_nan() || z.is_nan();
                    u64::from(x < y)
                        | u64::from(equal) << 1
                        | u64::from(!y.is_nan() && !z.is_nan()) << 2
                        | u64::from(y >= x || y.is_nan() || x.is_nan()) << 3
                }
            ),
            case!(
                nan_or_equal32,
                "ldexp",
                "float",
                "%x = bitcast float %b to i32; %y = ashr i32 %x, 23; \
                %r = call float @llvm.ldexp.f32.i32(float %a, i32 %y)",
                |v| { b((f64::from(f(v[0])) * 2f64.powi((v[1] as u32 as i32) >> 23)) as f32) }
            ),
            case!(near32, "exp2", "float", "%r = call float @llvm.exp2.f32(float %a)", |v| b(
                f64::from(f(v[0])).exp2() as f32
            )),
            case!(near32, "log2", "float", "%r = call float @llvm.log2.f32(float %a)", |v| b(
                f64::from(f(v[0])).log2() as f32
            )),
        ],
        special,
    );
}

/// The smaller; a number wins over NaN. LLVM may take a signaling NaN for a quiet one.
fn minnum(x: f32, y: f32) -> f32 {
    if x.is_nan() || y < x { y } else { x }
}

#[test]
fn double() {
    check(
        "declare double @llvm.fma.f64(double, double, double)\ndeclare double @llvm.sqrt.f64(double)\n\
         declare double @llvm.floor.f64(double)\ndeclare double @llvm.rint.f64(double)\n\
         declare i32 @llvm.fptosi.sat.i32.f64(double)\ndeclare i64 @llvm.fptoui.sat.i64.f64(double)\n\
         declare double @llvm.ldexp.f64.i32(double, i32)",
        &[
            case!(nan_or_equal64, "add", "double", "%r = fadd double %a, %b", |v| (d(v[0]) + d(v[1])).to_bits()),
            case!(nan_or_equal64, "mul", "double", "%r = fmul double %a, %b", |v| (d(v[0]) * d(v[1])).to_bits()),
            case!(
                nan_or_equal64,
                "fma",
                "double",
                "%r = call double @llvm.fma.f64(double %a, double %b, double %c)",
                |v| { d(v[0]).mul_add(d(v[1]), d(v[2])).to_bits() }
            ),
            case!(nan_or_equal64, "div", "double", "%r = fdiv double %a, %b", |v| (d(v[0]) / d(v[1])).to_bits()),
            case!(nan_or_equal64, "sqrt", "double", "%r = call double @llvm.sqrt.f64(double %a)", |v| d(v[0])
                .sqrt()
                .to_bits()),
            case!(nan_or_equal64, "floor", "double", "%r = call double @llvm.floor.f64(double %a)", |v| d(v[0])
                .floor()
                .to_bits()),
            case!(nan_or_equal64, "rint", "double", "%r = call double @llvm.rint.f64(double %a)", |v| {
                d(v[0]).round_ties_even().to_bits()
            }),
            case!(exactly, "to_i32", "double", "i32", "%r = call i32 @llvm.fptosi.sat.i32.f64(double %a)", |v| d(v[0])
                as i32
                as u64),
            case!(exactly, "to_u64", "double", "i64", "%r = call i64 @llvm.fptoui.sat.i64.f64(double %a)", |v| d(v[0])
                as u64),
            case!(nan_or_equal32, "to_single", "double", "float", "%r = fptrunc double %a to float", |v| b(
                d(v[0]) as f32
            )),
            case!(nan_or_equal16, "to_half", "double", "half", "%r = fptrunc double %a to half", |v| to_h(d(v[0]))),
            case!(
                exactly,
                "compare",
                "double",
                "i32",
                "%p = fcmp ole double %a, %b; %q = fcmp une double %b, %c; %m = xor i1 %p, %q; \
                %r = zext i1 %m to i32",
                |v| { u64::from((d(v[0]) <= d(v[1])) ^ (d(v[1]) != d(v[2]))) }
            ),
            case!(nan_or_equal64, "constant", "double", "%m = fmul double %a, 0.5; %r = fadd double %m, 3.0", |v| {
                (d(v[0]) * 0.5 + 3.0).to_bits()
            }),
        ],
        special,
    );
}

#[test]
fn half_and_bfloat() {
    check(
        "declare half @llvm.fma.f16(half, half, half)\ndeclare half @llvm.sqrt.f16(half)\n\
         declare half @llvm.floor.f16(half)\n\
         declare <2 x half> @llvm.fma.v2f16(<2 x half>, <2 x half>, <2 x half>)\n\
         declare float @llvm.fma.f32(float, float, float)\n\
         declare i16 @llvm.fptosi.sat.i16.f16(half)",
        &[
            case!(nan_or_equal16, "add", "half", "%r = fadd half %a, %b", |v| to_h(h(v[0]) + h(v[1]))),
            case!(nan_or_equal16, "mul", "half", "%r = fmul half %a, %b", |v| to_h(h(v[0]) * h(v[1]))),
            case!(nan_or_equal16, "sub_c", "half", "%m = fsub half 1.0, %a; %r = fmul half %m, 0.5", |v| {
                to_h(h(to_h(1.0 - h(v[0]))) * 0.5)
            }),
            case!(nan_or_equal16, "div", "half", "%r = fdiv half %a, %b", |v| to_h(h(v[0]) / h(v[1]))),
            case!(nan_or_equal16, "sqrt", "half", "%r = call half @llvm.sqrt.f16(half %a)", |v| to_h(h(v[0]).sqrt())),
            case!(nan_or_equal16, "floor", "half", "%r = call half @llvm.floor.f16(half %a)", |v| to_h(
                h(v[0]).floor()
            )),
            case!(nan_or_equal32, "to_single", "half", "float", "%r = fpext half %a to float", |v| b(h(v[0]) as f32)),
            case!(exactly, "to_i16", "half", "i16", "%r = call i16 @llvm.fptosi.sat.i16.f16(half %a)", |v| h(v[0])
                as i16
                as u64),
            case!(
                exactly,
                "compare",
                "half",
                "i32",
                "%p = fcmp olt half %a, %b; %q = fcmp uno half %b, %c; %m = or i1 %p, %q; \
                %r = zext i1 %m to i32",
                |v| { u64::from(h(v[0]) < h(v[1]) || h(v[1]).is_nan() || h(v[2]).is_nan()) }
            ),
            case!(
                nan_or_equal32,
                "mix",
                "half",
                "float",
                "%x = fpext half %a to float; %y = fpext half %b to float; %z = fpext half %c to float; \
                %r = call float @llvm.fma.f32(float %x, float %y, float %z)",
                |v| { b((h(v[0]) as f32).mul_add(h(v[1]) as f32, h(v[2]) as f32)) }
            ),
            case!(nan_or_equal_bf16, "bf_add", "bfloat", "%r = fadd bfloat %a, %b", |v| {
                to_bf16(f(v[0] << 16) + f(v[1] << 16))
            }),
            case!(nan_or_equal_bf16, "bf_mul", "bfloat", "%r = fmul bfloat %a, %b", |v| {
                to_bf16(f(v[0] << 16) * f(v[1] << 16))
            }),
        ],
        special,
    );
}

#[test]
fn packed() {
    fn halves(v: [u64; 3], op: fn([f64; 3]) -> f64) -> u64 {
        let [low, high] = [0, 16].map(|shift| to_h(op(v.map(|x| h(x >> shift & 0xffff)))));
        low | high << 16
    }
    fn same(a: u64, b: u64) -> bool {
        [0, 16].iter().all(|s| nan_or_equal16(a >> s & 0xffff, b >> s & 0xffff))
    }
    fn singles(v: u64, op: fn(f32) -> f32) -> u64 {
        b(op(f(v))) | b(op(f(v >> 32))) << 32
    }
    fn same_pair(a: u64, b: u64) -> bool {
        [0, 32].iter().all(|s| nan_or_equal32(a >> s & 0xffff_ffff, b >> s & 0xffff_ffff))
    }
    check(
        "",
        &[
            case!(
                same,
                "pk_add",
                "i32",
                "%x = bitcast i32 %a to <2 x half>; %y = bitcast i32 %b to <2 x half>; \
                %n = fadd <2 x half> %x, %y; %r = bitcast <2 x half> %n to i32",
                |v| halves(v, |[a, b, _]| a + b)
            ),
            case!(
                same,
                "pk_mul_c",
                "i32",
                "%x = bitcast i32 %a to <2 x half>; %n = fmul <2 x half> %x, <half 2.0, half 2.0>; \
                %r = bitcast <2 x half> %n to i32",
                |v| halves(v, |[a, ..]| a * 2.0)
            ),
            case!(
                same,
                "pk_neg",
                "i32",
                "%x = bitcast i32 %a to <2 x half>; %y = bitcast i32 %b to <2 x half>; \
                %m = fneg <2 x half> %y; %n = fmul <2 x half> %x, %m; %r = bitcast <2 x half> %n to i32",
                |v| halves(v, |[a, b, _]| a * -b)
            ),
            case!(
                same_pair,
                "pk_single",
                "i64",
                "%x = bitcast i64 %a to <2 x float>; %n = fadd <2 x float> %x, <float 1.5, float 1.5>; \
                %m = fmul <2 x float> %n, %n; %r = bitcast <2 x float> %m to i64",
                |v| singles(v[0], |x| (x + 1.5) * (x + 1.5))
            ),
        ],
        special,
    );
}

#[test]
fn from_integers() {
    check(
        "",
        &[
            case!(exactly, "i32_f32", "i32", "float", "%r = sitofp i32 %a to float", |v| b(v[0] as u32 as i32 as f32)),
            case!(exactly, "u32_f32", "i32", "float", "%r = uitofp i32 %a to float", |v| b(v[0] as u32 as f32)),
            case!(exactly, "i32_f64", "i32", "double", "%r = sitofp i32 %a to double", |v| f64::from(
                v[0] as u32 as i32
            )
            .to_bits()),
            case!(exactly, "i64_f32", "i64", "float", "%r = sitofp i64 %a to float", |v| b(v[0] as i64 as f32)),
            case!(exactly, "u64_f64", "i64", "double", "%r = uitofp i64 %a to double", |v| (v[0] as f64).to_bits()),
            case!(
                exactly,
                "u8_f32",
                "i32",
                "float",
                "%x = lshr i32 %a, 16; %y = and i32 %x, 255; %r = uitofp i32 %y to float",
                |v| b((v[0] >> 16 & 255) as f32)
            ),
            case!(exactly, "i16_f16", "i16", "half", "%r = sitofp i16 %a to half", |v| to_h(f64::from(v[0] as i16))),
        ],
        special,
    );
}
