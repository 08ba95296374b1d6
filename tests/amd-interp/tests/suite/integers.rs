//! Integer operations against Rust's.

use crate::numeric::{Case, check};

macro_rules! case {
    ($name:literal, $input:literal, $output:literal, $body:literal, $f:expr) => {
        Case { name: $name, input: $input, output: $output, body: $body, f: $f, same: |a, b| a == b }
    };
    ($name:literal, $ty:literal, $body:literal, $f:expr) => {
        case!($name, $ty, $ty, $body, $f)
    };
}

fn special(ty: &str) -> Vec<u64> {
    let bits = ty.trim_start_matches('i').parse::<u32>().unwrap_or(32);
    let sign = 1u64 << (bits - 1);
    vec![0, 1, 2, 31, 33, sign - 1, sign, sign + 1, u64::MAX, u64::MAX - 1, 0x5555_5555_5555_5555, 0xff00]
}

fn s(v: u64) -> i32 {
    v as u32 as i32
}

fn u(v: u64) -> u32 {
    v as u32
}

#[test]
fn words() {
    check(
        "declare i32 @llvm.ctpop.i32(i32)\ndeclare i32 @llvm.ctlz.i32(i32, i1)\ndeclare i32 @llvm.cttz.i32(i32, i1)\n\
         declare i32 @llvm.bitreverse.i32(i32)\ndeclare i32 @llvm.bswap.i32(i32)\n\
         declare i32 @llvm.fshl.i32(i32, i32, i32)\ndeclare i32 @llvm.fshr.i32(i32, i32, i32)\n\
         declare i32 @llvm.uadd.sat.i32(i32, i32)\ndeclare i32 @llvm.sadd.sat.i32(i32, i32)\n\
         declare i32 @llvm.usub.sat.i32(i32, i32)\ndeclare i32 @llvm.ssub.sat.i32(i32, i32)\n\
         declare i32 @llvm.smin.i32(i32, i32)\ndeclare i32 @llvm.smax.i32(i32, i32)\n\
         declare i32 @llvm.umin.i32(i32, i32)\ndeclare i32 @llvm.umax.i32(i32, i32)\n\
         declare i32 @llvm.abs.i32(i32, i1)\n\
         declare {i32, i1} @llvm.uadd.with.overflow.i32(i32, i32)\n\
         declare {i32, i1} @llvm.smul.with.overflow.i32(i32, i32)\n\
         declare i32 @llvm.amdgcn.perm(i32, i32, i32)\ndeclare i32 @llvm.amdgcn.sad.u8(i32, i32, i32)\n\
         declare i32 @llvm.amdgcn.ubfe.i32(i32, i32, i32)\ndeclare i32 @llvm.amdgcn.sbfe.i32(i32, i32, i32)\n\
         declare i32 @llvm.amdgcn.alignbyte(i32, i32, i32)",
        &[
            case!("add", "i32", "%r = add i32 %a, %b", |[a, b, _]| a.wrapping_add(b)),
            case!("sub", "i32", "%r = sub i32 %a, %b", |[a, b, _]| a.wrapping_sub(b)),
            case!("mul", "i32", "%r = mul i32 %a, %b", |[a, b, _]| a.wrapping_mul(b)),
            case!("mad", "i32", "%m = mul i32 %a, %b; %r = add i32 %m, %c", |[a, b, c]| a
                .wrapping_mul(b)
                .wrapping_add(c)),
            case!("and_or", "i32", "%m = and i32 %a, %b; %r = or i32 %m, %c", |[a, b, c]| a & b | c),
            case!("xor3", "i32", "%m = xor i32 %a, %b; %r = xor i32 %m, %c", |[a, b, c]| a ^ b ^ c),
            case!(
                "bfi",
                "i32",
                "%m = and i32 %a, %b; %n = xor i32 %a, -1; %o = and i32 %n, %c; %r = or i32 %m, %o",
                |[a, b, c]| a & b | !a & c
            ),
            case!("andn", "i32", "%m = xor i32 %b, -1; %r = and i32 %a, %m", |[a, b, _]| a & !b),
            case!("shl", "i32", "%m = and i32 %b, 31; %r = shl i32 %a, %m", |[a, b, _]| a << (b & 31)),
            case!("lshr", "i32", "%m = and i32 %b, 31; %r = lshr i32 %a, %m", |[a, b, _]| a >> (b & 31)),
            case!("ashr", "i32", "%m = and i32 %b, 31; %r = ashr i32 %a, %m", |[a, b, _]| (s(a) >> (b & 31)) as u64),
            case!("shl_add", "i32", "%m = shl i32 %a, 3; %r = add i32 %m, %c", |[a, _, c]| (a << 3).wrapping_add(c)),
            case!("udiv", "i32", "%m = or i32 %b, 1; %r = udiv i32 %a, %m", |[a, b, _]| a / (b | 1)),
            case!("sdiv", "i32", "%m = or i32 %b, 3; %r = sdiv i32 %a, %m", |[a, b, _]| {
                s(a).wrapping_div(s(b | 3)) as u64
            }),
            case!("urem", "i32", "%m = or i32 %b, 1; %r = urem i32 %a, %m", |[a, b, _]| a % (b | 1)),
            case!("srem", "i32", "%m = or i32 %b, 3; %r = srem i32 %a, %m", |[a, b, _]| {
                s(a).wrapping_rem(s(b | 3)) as u64
            }),
            case!(
                "mulhi_u",
                "i32",
                "%x = zext i32 %a to i64; %y = zext i32 %b to i64; %m = mul i64 %x, %y; \
                %n = lshr i64 %m, 32; %r = trunc i64 %n to i32",
                |[a, b, _]| (a * b) >> 32
            ),
            case!(
                "mulhi_s",
                "i32",
                "%x = sext i32 %a to i64; %y = sext i32 %b to i64; %m = mul i64 %x, %y; \
                %n = lshr i64 %m, 32; %r = trunc i64 %n to i32",
                |[a, b, _]| ((i64::from(s(a)) * i64::from(s(b))) >> 32) as u64
            ),
            case!(
                "mul24",
                "i32",
                "%x = and i32 %a, 16777215; %y = and i32 %b, 16777215; %r = mul i32 %x, %y",
                |[a, b, _]| (a & 0xff_ffff) * (b & 0xff_ffff)
            ),
            case!(
                "mul_wide",
                "i32",
                "i64",
                "%x = zext i32 %a to i64; %y = zext i32 %b to i64; %z = zext i32 %c to i64; \
                %m = mul i64 %x, %y; %r = add i64 %m, %z",
                |[a, b, c]| a * b + c
            ),
            case!(
                "mul_wide_s",
                "i32",
                "i64",
                "%x = sext i32 %a to i64; %y = sext i32 %b to i64; %z = sext i32 %c to i64; \
                %m = mul i64 %x, %y; %r = add i64 %m, %z",
                |[a, b, c]| (i64::from(s(a)) * i64::from(s(b)) + i64::from(s(c))) as u64
            ),
            case!("popc", "i32", "%r = call i32 @llvm.ctpop.i32(i32 %a)", |[a, ..]| a.count_ones().into()),
            case!("clz", "i32", "%r = call i32 @llvm.ctlz.i32(i32 %a, i1 false)", |[a, ..]| u(a)
                .leading_zeros()
                .into()),
            case!("ctz", "i32", "%r = call i32 @llvm.cttz.i32(i32 %a, i1 false)", |[a, ..]| u(a)
                .trailing_zeros()
                .into()),
            case!("brev", "i32", "%r = call i32 @llvm.bitreverse.i32(i32 %a)", |[a, ..]| u(a).reverse_bits().into()),
            case!("bswap", "i32", "%r = call i32 @llvm.bswap.i32(i32 %a)", |[a, ..]| u(a).swap_bytes().into()),
            case!("fshl", "i32", "%r = call i32 @llvm.fshl.i32(i32 %a, i32 %b, i32 %c)", |[a, b, c]| {
                ((a << 32 | b) << (c & 31)) >> 32
            }),
            case!("fshr", "i32", "%r = call i32 @llvm.fshr.i32(i32 %a, i32 %b, i32 %c)", |[a, b, c]| {
                (a << 32 | b) >> (c & 31)
            }),
            case!("uadd_sat", "i32", "%r = call i32 @llvm.uadd.sat.i32(i32 %a, i32 %b)", |[a, b, _]| {
                u(a).saturating_add(u(b)).into()
            }),
            case!("sadd_sat", "i32", "%r = call i32 @llvm.sadd.sat.i32(i32 %a, i32 %b)", |[a, b, _]| {
                s(a).saturating_add(s(b)) as u64
            }),
            case!("usub_sat", "i32", "%r = call i32 @llvm.usub.sat.i32(i32 %a, i32 %b)", |[a, b, _]| {
                u(a).saturating_sub(u(b)).into()
            }),
            case!("ssub_sat", "i32", "%r = call i32 @llvm.ssub.sat.i32(i32 %a, i32 %b)", |[a, b, _]| {
                s(a).saturating_sub(s(b)) as u64
            }),
            case!(
                "min3",
                "i32",
                "%m = call i32 @llvm.smin.i32(i32 %a, i32 %b); %r = call i32 @llvm.smin.i32(i32 %m, i32 %c)",
                |[a, b, c]| s(a).min(s(b)).min(s(c)) as u64
            ),
            case!("max_u", "i32", "%r = call i32 @llvm.umax.i32(i32 %a, i32 %b)", |[a, b, _]| a.max(b)),
            case!("min_u", "i32", "%r = call i32 @llvm.umin.i32(i32 %a, i32 %b)", |[a, b, _]| a.min(b)),
            case!("max_s", "i32", "%r = call i32 @llvm.smax.i32(i32 %a, i32 %b)", |[a, b, _]| s(a).max(s(b)) as u64),
            case!("abs", "i32", "%r = call i32 @llvm.abs.i32(i32 %a, i1 false)", |[a, ..]| s(a).wrapping_abs() as u64),
            case!(
                "overflow_u",
                "i32",
                "%p = call {i32, i1} @llvm.uadd.with.overflow.i32(i32 %a, i32 %b); \
                %o = extractvalue {i32, i1} %p, 1; %r = zext i1 %o to i32",
                |[a, b, _]| u(a).overflowing_add(u(b)).1.into()
            ),
            case!(
                "overflow_m",
                "i32",
                "%p = call {i32, i1} @llvm.smul.with.overflow.i32(i32 %a, i32 %b); \
                %o = extractvalue {i32, i1} %p, 1; %r = zext i1 %o to i32",
                |[a, b, _]| s(a).overflowing_mul(s(b)).1.into()
            ),
            case!(
                "compare",
                "i32",
                "%x = icmp slt i32 %a, %b; %y = icmp ugt i32 %a, %c; %z = icmp ne i32 %b, %c; \
                %m = xor i1 %x, %y; %n = and i1 %m, %z; %r = select i1 %n, i32 %a, i32 %b",
                |[a, b, c]| if ((s(a) < s(b)) ^ (a > c)) && b != c { a } else { b }
            ),
            case!(
                "perm",
                "i32",
                "%m = and i32 %c, 202116108; %r = call i32 @llvm.amdgcn.perm(i32 %a, i32 %b, i32 %m)",
                |[a, b, c]| {
                    let bytes = a << 32 | b;
                    (0..4).fold(0, |all, at| {
                        let select = c >> (8 * at) & 12;
                        let byte = match select {
                            0..=7 => bytes >> (8 * select) & 0xff,
                            8 => (bytes >> 15 & 1) * 0xff,
                            _ => 0,
                        };
                        all | byte << (8 * at)
                    })
                }
            ),
            case!("sad", "i32", "%r = call i32 @llvm.amdgcn.sad.u8(i32 %a, i32 %b, i32 %c)", |[a, b, c]| {
                (0..4).map(|at| (a >> (8 * at) & 255).abs_diff(b >> (8 * at) & 255)).sum::<u64>() + c
            }),
            case!(
                "ubfe",
                "i32",
                "%x = and i32 %b, 15; %y = and i32 %c, 15; \
                %r = call i32 @llvm.amdgcn.ubfe.i32(i32 %a, i32 %x, i32 %y)",
                |[a, b, c]| a >> (b & 15) & ((1 << (c & 15)) - 1)
            ),
            case!("sbfe", "i32", "%r = call i32 @llvm.amdgcn.sbfe.i32(i32 %a, i32 5, i32 9)", |[a, ..]| ((s(a) << 18)
                >> 23)
                as u64),
            case!("alignbyte", "i32", "%r = call i32 @llvm.amdgcn.alignbyte(i32 %a, i32 %b, i32 %c)", |[a, b, c]| (a
                << 32
                | b)
                >> (8 * (c & 3))),
            case!(
                "bytes",
                "i32",
                "%x = lshr i32 %a, 8; %y = trunc i32 %x to i8; %z = sext i8 %y to i32; \
                %w = and i32 %b, 65535; %r = add i32 %z, %w",
                |[a, b, _]| ((a >> 8) as i8 as i64 + (b & 0xffff) as i64) as u64
            ),
        ],
        special,
    );
}

#[test]
fn double_words() {
    check(
        "declare i64 @llvm.ctpop.i64(i64)\ndeclare i64 @llvm.ctlz.i64(i64, i1)\ndeclare i64 @llvm.cttz.i64(i64, i1)\n\
         declare i64 @llvm.bitreverse.i64(i64)\ndeclare i64 @llvm.smax.i64(i64, i64)\n\
         declare i64 @llvm.uadd.sat.i64(i64, i64)",
        &[
            case!("add", "i64", "%r = add i64 %a, %b", |[a, b, _]| a.wrapping_add(b)),
            case!("sub", "i64", "%r = sub i64 %a, %b", |[a, b, _]| a.wrapping_sub(b)),
            case!("mul", "i64", "%r = mul i64 %a, %b", |[a, b, _]| a.wrapping_mul(b)),
            case!(
                "mulhi",
                "i64",
                "%x = zext i64 %a to i128; %y = zext i64 %b to i128; %m = mul i128 %x, %y; \
                %n = lshr i128 %m, 64; %r = trunc i128 %n to i64",
                |[a, b, _]| ((u128::from(a) * u128::from(b)) >> 64) as u64
            ),
            case!("shl", "i64", "%m = and i64 %b, 63; %r = shl i64 %a, %m", |[a, b, _]| a << (b & 63)),
            case!("lshr", "i64", "%m = and i64 %b, 63; %r = lshr i64 %a, %m", |[a, b, _]| a >> (b & 63)),
            case!("ashr", "i64", "%m = and i64 %b, 63; %r = ashr i64 %a, %m", |[a, b, _]| (a as i64 >> (b & 63))
                as u64),
            case!("udiv", "i64", "%m = or i64 %b, 1; %r = udiv i64 %a, %m", |[a, b, _]| a / (b | 1)),
            case!("srem", "i64", "%m = or i64 %b, 3; %r = srem i64 %a, %m", |[a, b, _]| {
                (a as i64).wrapping_rem((b | 3) as i64) as u64
            }),
            case!("logic", "i64", "%m = and i64 %a, %b; %n = xor i64 %m, %c; %r = or i64 %n, 4096", |[a, b, c]| a & b
                ^ c
                | 4096),
            case!("popc", "i64", "%r = call i64 @llvm.ctpop.i64(i64 %a)", |[a, ..]| a.count_ones().into()),
            case!("clz", "i64", "%r = call i64 @llvm.ctlz.i64(i64 %a, i1 false)", |[a, ..]| a.leading_zeros().into()),
            case!("ctz", "i64", "%r = call i64 @llvm.cttz.i64(i64 %a, i1 false)", |[a, ..]| a.trailing_zeros().into()),
            case!("brev", "i64", "%r = call i64 @llvm.bitreverse.i64(i64 %a)", |[a, ..]| a.reverse_bits()),
            case!("max", "i64", "%r = call i64 @llvm.smax.i64(i64 %a, i64 %b)", |[a, b, _]| (a as i64).max(b as i64)
                as u64),
            case!("sat", "i64", "%r = call i64 @llvm.uadd.sat.i64(i64 %a, i64 %b)", |[a, b, _]| a.saturating_add(b)),
            case!(
                "compare",
                "i64",
                "%x = icmp slt i64 %a, %b; %y = icmp uge i64 %a, %c; %m = xor i1 %x, %y; \
                %r = select i1 %m, i64 %b, i64 %c",
                |[a, b, c]| if ((a as i64) < (b as i64)) ^ (a >= c) { b } else { c }
            ),
            case!(
                "equal",
                "i64",
                "%x = icmp eq i64 %a, %b; %r = select i1 %x, i64 %c, i64 -7",
                |[a, b, c]| if a == b { c } else { -7i64 as u64 }
            ),
        ],
        special,
    );
}

#[test]
fn halves_and_pairs() {
    check(
        "declare i16 @llvm.smax.i16(i16, i16)\ndeclare i16 @llvm.uadd.sat.i16(i16, i16)\n\
         declare i16 @llvm.ssub.sat.i16(i16, i16)\n\
         declare <2 x i16> @llvm.smin.v2i16(<2 x i16>, <2 x i16>)",
        &[
            case!("add", "i16", "%r = add i16 %a, %b", |[a, b, _]| a.wrapping_add(b)),
            case!("mad", "i16", "%m = mul i16 %a, %b; %r = add i16 %m, %c", |[a, b, c]| a
                .wrapping_mul(b)
                .wrapping_add(c)),
            case!("ashr", "i16", "%m = and i16 %b, 15; %r = ashr i16 %a, %m", |[a, b, _]| (a as i16 >> (b & 15))
                as u64),
            case!("lshr", "i16", "%m = and i16 %b, 15; %r = lshr i16 %a, %m", |[a, b, _]| a >> (b & 15)),
            case!("max", "i16", "%r = call i16 @llvm.smax.i16(i16 %a, i16 %b)", |[a, b, _]| (a as i16).max(b as i16)
                as u64),
            case!("uadd_sat", "i16", "%r = call i16 @llvm.uadd.sat.i16(i16 %a, i16 %b)", |[a, b, _]| (a as u16)
                .saturating_add(b as u16)
                .into()),
            case!("ssub_sat", "i16", "%r = call i16 @llvm.ssub.sat.i16(i16 %a, i16 %b)", |[a, b, _]| (a as i16)
                .saturating_sub(b as i16)
                as u64),
            case!("compare", "i16", "%x = icmp slt i16 %a, %b; %r = select i1 %x, i16 %c, i16 %a", |[a, b, c]| if (a
                as i16)
                < (b as i16)
            {
                c
            } else {
                a
            }),
            case!(
                "widen",
                "i16",
                "i32",
                "%x = sext i16 %a to i32; %y = zext i16 %b to i32; %r = mul i32 %x, %y",
                |[a, b, _]| (a as i16 as i64 * b as i64) as u64
            ),
            case!("bytes", "i8", "%m = mul i8 %a, %b; %r = add i8 %m, %c", |[a, b, c]| a
                .wrapping_mul(b)
                .wrapping_add(c)),
            case!(
                "pk_mad",
                "i32",
                "%x = bitcast i32 %a to <2 x i16>; %y = bitcast i32 %b to <2 x i16>; \
                %z = bitcast i32 %c to <2 x i16>; %m = mul <2 x i16> %x, %y; %n = add <2 x i16> %m, %z; \
                %r = bitcast <2 x i16> %n to i32",
                |v| pair(v, |[a, b, c]| a.wrapping_mul(b).wrapping_add(c))
            ),
            case!(
                "pk_swap",
                "i32",
                "%x = bitcast i32 %a to <2 x i16>; %y = bitcast i32 %b to <2 x i16>; \
                %w = shufflevector <2 x i16> %y, <2 x i16> %y, <2 x i32> <i32 1, i32 0>; \
                %n = sub <2 x i16> %x, %w; %r = bitcast <2 x i16> %n to i32",
                |[a, b, _]| pair([a, b >> 16 | b << 16, 0], |[a, b, _]| a.wrapping_sub(b))
            ),
            case!(
                "pk_min",
                "i32",
                "%x = bitcast i32 %a to <2 x i16>; %y = bitcast i32 %b to <2 x i16>; \
                %n = call <2 x i16> @llvm.smin.v2i16(<2 x i16> %x, <2 x i16> %y); \
                %r = bitcast <2 x i16> %n to i32",
                |v| pair(v, |[a, b, _]| (a as i16).min(b as i16) as u16)
            ),
            case!(
                "pk_shift",
                "i32",
                "%x = bitcast i32 %a to <2 x i16>; %n = ashr <2 x i16> %x, <i16 3, i16 3>; \
                %r = bitcast <2 x i16> %n to i32",
                |v| pair(v, |[a, ..]| (a as i16 >> 3) as u16)
            ),
        ],
        special,
    );
}

fn pair(v: [u64; 3], f: fn([u16; 3]) -> u16) -> u64 {
    let [low, high] = [0, 16].map(|shift| u64::from(f(v.map(|x| (x >> shift) as u16))));
    low | high << 16
}
