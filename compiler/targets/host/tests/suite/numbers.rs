//! Instructions on edge values and random ones, compared with Rust bit for bit; all NaNs are equal.

use crate::common;
use crate::common::op::{Kind, Kind::*, check};
use crate::reference::*;

const I16: Kind = Int(16);
const I32: Kind = Int(32);
const I64: Kind = Int(64);

#[test]
fn single_precision_in_every_rounding_mode() {
    for (name, mode) in MODES {
        check(&format!("add.{name}.f32 %d, %a, %b;"), F32, &[F32, F32], |v| fb(add32(mode, f(v[0]), f(v[1]))));
        check(&format!("sub.{name}.f32 %d, %a, %b;"), F32, &[F32, F32], |v| fb(sub32(mode, f(v[0]), f(v[1]))));
        check(&format!("mul.{name}.f32 %d, %a, %b;"), F32, &[F32, F32], |v| fb(mul32(mode, f(v[0]), f(v[1]))));
        check(&format!("div.{name}.f32 %d, %a, %b;"), F32, &[F32, F32], |v| fb(div32(mode, f(v[0]), f(v[1]))));
        check(&format!("fma.{name}.f32 %d, %a, %b, %c;"), F32, &[F32, F32, F32], |v| {
            fb(fma32(mode, f(v[0]), f(v[1]), f(v[2])))
        });
        check(&format!("rcp.{name}.f32 %d, %a;"), F32, &[F32], |v| fb(div32(mode, 1.0, f(v[0]))));
        check(&format!("sqrt.{name}.f32 %d, %a;"), F32, &[F32], |v| fb(sqrt32(mode, 0.0, f(v[0]))));
        check(&format!("cvt.{name}.f32.f64 %d, %a;"), F32, &[F64], |v| {
            narrow(mode, 0.0, g(v[0])).to_bits() & 0xffff_ffff
        });
    }
}

#[test]
fn double_precision_in_every_rounding_mode() {
    for (name, mode) in MODES {
        check(&format!("add.{name}.f64 %d, %a, %b;"), F64, &[F64, F64], |v| add64(mode, g(v[0]), g(v[1])).to_bits());
        check(&format!("mul.{name}.f64 %d, %a, %b;"), F64, &[F64, F64], |v| mul64(mode, g(v[0]), g(v[1])).to_bits());
        check(&format!("div.{name}.f64 %d, %a, %b;"), F64, &[F64, F64], |v| div64(mode, g(v[0]), g(v[1])).to_bits());
        check(&format!("fma.{name}.f64 %d, %a, %b, %c;"), F64, &[F64, F64, F64], |v| {
            fma64(mode, g(v[0]), g(v[1]), g(v[2])).to_bits()
        });
        check(&format!("sqrt.{name}.f64 %d, %a;"), F64, &[F64], |v| sqrt64(mode, 0.0, g(v[0])).to_bits());
        check(&format!("cvt.{name}.f64.s64 %d, %a;"), F64, &[I64], |v| from_i64(mode, 0.0, g(v[0])).to_bits());
    }
}

#[test]
fn a_uniform_operation_rounds_as_asked_too() {
    for (name, mode) in MODES {
        let code = format!(
            "mov.b32 %f0, 0f3dcccccd; mov.b32 %f1, 0f3e4ccccd; ld.param.f32 %f1, [pa]; add.{name}.f32 %f2, %f0, %f1; \
             mov.b32 %d, %f2;"
        );
        // The low word of an address is an arbitrary float, but the same in all threads.
        let kernel = common::op::kernel(&code, F32, &[F32]);
        common::at_every_level(&kernel, "op", [64, 1, 1], |k| {
            let (mut a, mut d) = (vec![0u64; 64], vec![0u64; 64]);
            let address = a.as_ptr() as u64;
            k.run(common::Launch::grid(1, 1, 1), common::Args::new().slice(&mut a).slice(&mut d));
            let wanted = add32(mode, 0.1, f(address & 0xffff_ffff));
            assert!(d.iter().all(|&d| F32.same(d, fb(wanted))), "{code}");
        });
    }
}

#[test]
fn flushing_to_zero_and_saturating() {
    check("add.ftz.f32 %d, %a, %b;", F32, &[F32, F32], |v| fb(ftz(ftz(f(v[0])) + ftz(f(v[1])))));
    check("mul.ftz.f32 %d, %a, %b;", F32, &[F32, F32], |v| fb(ftz(ftz(f(v[0])) * ftz(f(v[1])))));
    check("fma.rn.ftz.f32 %d, %a, %b, %c;", F32, &[F32, F32, F32], |v| {
        fb(ftz(ftz(f(v[0])).mul_add(ftz(f(v[1])), ftz(f(v[2])))))
    });
    check("mul.ftz.f32 %f0, %a, %b; add.ftz.f32 %d, %f0, %f0;", F32, &[F32, F32], |v| {
        let product = ftz(ftz(f(v[0])) * ftz(f(v[1])));
        fb(ftz(product + product))
    });
    check("max.ftz.f32 %d, %a, %b;", F32, &[F32, F32], |v| fb(extreme(ftz(f(v[0])), ftz(f(v[1])), true)));
    check("abs.ftz.f32 %d, %a;", F32, &[F32], |v| fb(ftz(f(v[0])).abs()));
    check("neg.ftz.f32 %d, %a;", F32, &[F32], |v| fb(-ftz(f(v[0]))));
    check("cvt.ftz.f32.f32 %d, %a;", F32, &[F32], |v| fb(ftz(f(v[0]))));
    check("cvt.rpi.ftz.s32.f32 %d, %a;", I32, &[F32], |v| u64::from(ftz(f(v[0])).ceil() as i32 as u32));
    check("cvt.rn.ftz.f32.f64 %d, %a;", F32, &[F64], |v| fb(ftz(g(v[0]) as f32)));
    check("setp.lt.ftz.f32 %p0, %a, %b; selp.b32 %d, 1, 0, %p0;", I32, &[F32, F32], |v| {
        u64::from(ftz(f(v[0])) < ftz(f(v[1])))
    });
    let sat = |x: f32| if x > 0.0 { x.min(1.0) } else { 0.0 };
    check("add.sat.f32 %d, %a, %b;", F32, &[F32, F32], |v| fb(sat(f(v[0]) + f(v[1]))));
    check("fma.rz.sat.f32 %d, %a, %b, %c;", F32, &[F32, F32, F32], |v| fb(sat(fma32(3, f(v[0]), f(v[1]), f(v[2])))));
    check("cvt.sat.f32.f32 %d, %a;", F32, &[F32], |v| fb(sat(f(v[0]))));
}

#[test]
fn smallest_and_largest() {
    for (name, is_max) in [("min", false), ("max", true)] {
        let of = move |a, b| extreme(a, b, is_max);
        check(&format!("{name}.f32 %d, %a, %b;"), F32, &[F32, F32], |v| fb(of(f(v[0]), f(v[1]))));
        check(&format!("{name}.f32 %d, %a, 0f00000000;"), F32, &[F32], |v| fb(of(f(v[0]), 0.0)));
        check(&format!("{name}.f32 %d, %a, %b, %c;"), F32, &[F32, F32, F32], |v| fb(of(of(f(v[0]), f(v[1])), f(v[2]))));
        let nan = move |a: f32, b: f32| if a.is_nan() || b.is_nan() { f32::NAN } else { of(a, b) };
        check(&format!("{name}.NaN.f32 %d, %a, %b;"), F32, &[F32, F32], |v| fb(nan(f(v[0]), f(v[1]))));
        check(&format!("{name}.xorsign.abs.f32 %d, %a, %b;"), F32, &[F32, F32], |v| {
            let sign = (v[0] ^ v[1]) & 0x8000_0000;
            fb(of(f(v[0]).abs(), f(v[1]).abs())) & 0x7fff_ffff | sign
        });
        check(&format!("{name}.f16x2 %d, %a, %b;"), F16x2, &[F16x2, F16x2], |v| {
            let half = |s: u32| f16_bits(f64::from(of(f16(v[0] >> s & 0xffff) as f32, f16(v[1] >> s & 0xffff) as f32)));
            half(0) | half(16) << 16
        });
        check(&format!("{name}.NaN.bf16 %d, %a, %b;"), Bf16, &[Bf16, Bf16], |v| {
            bf16_bits(f64::from(nan(bf16(v[0]) as f32, bf16(v[1]) as f32)))
        });
        let pairs = move |a: u64, b: u64| {
            let of = |s: u32| {
                let (a, b) = ((a >> s) as i16, (b >> s) as i16);
                u64::from(if is_max { a.max(b) } else { a.min(b) } as u16) << s
            };
            of(0) | of(16)
        };
        check(&format!("{name}.s16x2 %d, %a, %b;"), I32, &[I32, I32], |v| pairs(v[0], v[1]));
    }
    check("max.relu.s32 %d, %a, %b;", I32, &[I32, I32], |v| u64::from((v[0] as i32).max(v[1] as i32).max(0) as u32));
    check("add.u16x2 %d, %a, %b;", I32, &[I32, I32], |v| {
        u64::from((v[0] as u16).wrapping_add(v[1] as u16))
            | u64::from(((v[0] >> 16) as u16).wrapping_add((v[1] >> 16) as u16)) << 16
    });
}

#[test]
fn halves_round_once() {
    check("add.f16 %d, %a, %b;", F16, &[F16, F16], |v| f16_bits(f16(v[0]) + f16(v[1])));
    check("sub.rn.f16 %d, %a, %b;", F16, &[F16, F16], |v| f16_bits(f16(v[0]) - f16(v[1])));
    check("mul.f16 %d, %a, %b;", F16, &[F16, F16], |v| f16_bits(f16(v[0]) * f16(v[1])));
    // In double precision the product is exact, and the error of the sum does not affect rounding
    // to f16.
    check("fma.rn.f16 %d, %a, %b, %c;", F16, &[F16, F16, F16], |v| f16_bits(f16(v[0]).mul_add(f16(v[1]), f16(v[2]))));
    check("fma.rn.relu.f16 %d, %a, %b, %c;", F16, &[F16, F16, F16], |v| {
        let value = f16(v[0]).mul_add(f16(v[1]), f16(v[2]));
        f16_bits(if value <= 0.0 { 0.0 } else { value })
    });
    check("fma.rn.sat.f16 %d, %a, %b, %c;", F16, &[F16, F16, F16], |v| {
        let value = f16(v[0]).mul_add(f16(v[1]), f16(v[2]));
        f16_bits(if value > 0.0 { value.min(1.0) } else { 0.0 })
    });
    let flush = |v: f64| if v.abs() < 2f64.powi(-14) { 0f64.copysign(v) } else { v };
    check("add.ftz.f16 %d, %a, %b;", F16, &[F16, F16], |v| {
        f16_bits(flush(f16(f16_bits(flush(f16(v[0])) + flush(f16(v[1]))))))
    });
    check("fma.rn.f16x2 %d, %a, %b, %c;", F16x2, &[F16x2, F16x2, F16x2], |v| {
        let half = |s: u32| f16_bits(f16(v[0] >> s & 0xffff).mul_add(f16(v[1] >> s & 0xffff), f16(v[2] >> s & 0xffff)));
        half(0) | half(16) << 16
    });
    check("neg.f16x2 %d, %a;", F16x2, &[F16x2], |v| v[0] ^ 0x8000_8000);
    check("abs.bf16x2 %d, %a;", Bf16x2, &[Bf16x2], |v| v[0] & 0x7fff_7fff);
    check("add.bf16 %d, %a, %b;", Bf16, &[Bf16, Bf16], |v| bf16_sum(bf16(v[0]), bf16(v[1])));
    check("mul.bf16x2 %d, %a, %b;", Bf16x2, &[Bf16x2, Bf16x2], |v| {
        let half = |s: u32| bf16_bits(bf16(v[0] >> s & 0xffff) * bf16(v[1] >> s & 0xffff));
        half(0) | half(16) << 16
    });
    check("fma.rn.bf16 %d, %a, %b, %c;", Bf16, &[Bf16, Bf16, Bf16], |v| bf16_sum(bf16(v[0]) * bf16(v[1]), bf16(v[2])));
}

/// The sum of two numbers that are far shorter than doubles, rounded once: the rounding error of
/// the double only decides on which side of a tie the sum lies.
fn bf16_sum(a: f64, b: f64) -> u64 {
    let sum = a + b;
    let error = (a - (sum - (sum - a))) + (b - (sum - a));
    if error == 0.0 || !error.is_finite() {
        return bf16_bits(sum);
    }
    // Moves the rounded sum by the smallest step in the direction of the error.
    let up = (error > 0.0) == (sum > 0.0);
    bf16_bits(f64::from_bits(if up { sum.to_bits() + 1 } else { sum.to_bits() - 1 }))
}

#[test]
fn conversions_from_floats() {
    for (mode, of) in
        [("rni", f64::round_ties_even as fn(f64) -> f64), ("rzi", f64::trunc), ("rmi", f64::floor), ("rpi", f64::ceil)]
    {
        check(&format!("cvt.{mode}.s32.f32 %d, %a;"), I32, &[F32], |v| u64::from(of(f(v[0]).into()) as i32 as u32));
        check(&format!("cvt.{mode}.u32.f64 %d, %a;"), I32, &[F64], |v| u64::from(of(g(v[0])) as u32));
        check(&format!("cvt.{mode}.s64.f64 %d, %a;"), I64, &[F64], |v| of(g(v[0])) as i64 as u64);
        check(&format!("cvt.{mode}.u64.f32 %d, %a;"), I64, &[F32], |v| of(f(v[0]).into()) as u64);
        check(&format!("cvt.{mode}.s16.f16 %d, %a;"), I16, &[F16], |v| u64::from(of(f16(v[0])) as i16 as u16));
        check(&format!("cvt.{mode}.u8.f32 %h0, %a; cvt.u32.u16 %d, %h0;"), I32, &[F32], |v| {
            u64::from(of(f(v[0]).into()) as u8)
        });
        check(&format!("cvt.{mode}.f32.f32 %d, %a;"), F32, &[F32], |v| fb(of(f(v[0]).into()) as f32));
        check(&format!("cvt.{mode}.f16.f16 %d, %a;"), F16, &[F16], |v| f16_bits(of(f16(v[0]))));
    }
    check("cvt.f32.f16 %d, %a;", F32, &[F16], |v| fb(f16(v[0]) as f32));
    check("cvt.f64.f16 %d, %a;", F64, &[F16], |v| f16(v[0]).to_bits());
    check("cvt.f32.bf16 %d, %a;", F32, &[Bf16], |v| v[0] << 16);
    check("cvt.rn.f16.f32 %d, %a;", F16, &[F32], |v| f16_bits(f(v[0]).into()));
    check("cvt.rn.f16.f64 %d, %a;", F16, &[F64], |v| f16_bits(g(v[0])));
    check("cvt.rn.bf16.f32 %d, %a;", Bf16, &[F32], |v| bf16_bits(f(v[0]).into()));
    check("cvt.rn.relu.bf16.f32 %d, %a;", Bf16, &[F32], |v| {
        bf16_bits(if f(v[0]) <= 0.0 { 0.0 } else { f(v[0]).into() })
    });
    check("cvt.rz.bf16.f32 %d, %a;", Bf16, &[F32], |v| v[0] >> 16);
    check("cvt.rn.f16x2.f32 %d, %a, %b;", F16x2, &[F32, F32], |v| {
        f16_bits(f(v[1]).into()) | f16_bits(f(v[0]).into()) << 16
    });
    check("cvt.rn.bf16x2.f32 %d, %a, %b;", Bf16x2, &[F32, F32], |v| {
        bf16_bits(f(v[1]).into()) | bf16_bits(f(v[0]).into()) << 16
    });
    let toward = |value: f64, up: bool| {
        let near = f16_bits(value);
        let is_wrong = !value.is_nan() && if up { f16(near) < value } else { f16(near) > value };
        // One step of the encoding in the rounding direction.
        let away = up != (near & 0x8000 != 0);
        if !is_wrong {
            near
        } else if away {
            near + 1
        } else if near & 0x7fff == 0 {
            near ^ 0x8000 | 1
        } else {
            near - 1
        }
    };
    check("cvt.rm.f16.f32 %d, %a;", F16, &[F32], |v| toward(f(v[0]).into(), false));
    check("cvt.rp.f16.f32 %d, %a;", F16, &[F32], |v| toward(f(v[0]).into(), true));
    check("cvt.rz.f16.f32 %d, %a;", F16, &[F32], |v| toward(f(v[0]).into(), f(v[0]) < 0.0));
    check(
        "cvt.rna.tf32.f32 %d, %a;",
        F32,
        &[F32],
        |v| if f(v[0]).is_nan() { v[0] } else { (v[0] + 0x1000) & 0xffff_e000 },
    );
}

#[test]
fn conversions_from_integers() {
    check("cvt.rn.f32.s32 %d, %a;", F32, &[I32], |v| fb(v[0] as i32 as f32));
    check("cvt.rn.f32.u64 %d, %a;", F32, &[I64], |v| fb(v[0] as f32));
    check("cvt.rn.f32.s64 %d, %a;", F32, &[I64], |v| fb(v[0] as i64 as f32));
    check("cvt.rn.f64.u64 %d, %a;", F64, &[I64], |v| (v[0] as f64).to_bits());
    check("cvt.rz.f32.u32 %d, %a;", F32, &[I32], |v| narrow(3, 0.0, v[0] as f64).to_bits() & 0xffff_ffff);
    check("cvt.rp.f32.s64 %d, %a;", F32, &[I64], |v| narrow(2, 0.0, from_i64(2, 0.0, g(v[0]))).to_bits() & 0xffff_ffff);
    check("cvt.rn.f16.s32 %d, %a;", F16, &[I32], |v| f16_bits(f64::from(v[0] as i32)));
    check("cvt.rn.bf16.u32 %d, %a;", Bf16, &[I32], |v| bf16_bits(v[0] as f64));
    check("cvt.rn.bf16.s64 %d, %a;", Bf16, &[I64], |v| {
        // 8 bits of a 64-bit number. Of the lower 32 bits it matters only whether any is set.
        let (high, sticky) = (v[0] as i64 >> 32, i64::from(v[0] & 0xffff_ffff != 0));
        let large = (high << 1 | sticky) as f64 * 2f64.powi(31);
        bf16_bits(if (v[0] as i64).unsigned_abs() >> 48 == 0 { v[0] as i64 as f64 } else { large })
    });
    check(
        "cvt.sat.s8.s32 %r2, %a; mov.b32 %d, %r2;",
        I32,
        &[I32],
        |v| u64::from((v[0] as i32).clamp(-128, 127) as u32),
    );
    check("cvt.sat.u32.s64 %d, %a;", I32, &[I64], |v| (v[0] as i64).clamp(0, 0xffff_ffff) as u64);
    check("cvt.u64.s16 %d, %a;", I64, &[I16], |v| v[0] as i16 as i64 as u64);
}

#[test]
fn eight_bit_floats() {
    let value = |byte: u64, fraction: u32, bias: i32, e4m3: bool| {
        let magnitude = byte & 0x7f;
        let (exponent, part) = ((magnitude >> fraction) as i32, magnitude & ((1 << fraction) - 1));
        let number = match (e4m3, magnitude) {
            (true, 0x7f) => f64::NAN,
            (false, 0x7c) => f64::INFINITY,
            (false, 0x7d..) => f64::NAN,
            _ if exponent == 0 => part as f64 * 2f64.powi(1 - bias - fraction as i32),
            _ => (1.0 + part as f64 / f64::from(1 << fraction)) * 2f64.powi(exponent - bias),
        };
        if byte & 0x80 != 0 { -number } else { number }
    };
    for (name, fraction, bias, max, e4m3) in [("e4m3x2", 3, 7, 448.0, true), ("e5m2x2", 2, 15, 57344.0, false)] {
        let of = move |byte: u64| value(byte, fraction, bias, e4m3);
        check(&format!("cvt.rn.f16x2.{name} %d, %a;"), F16x2, &[I16], |v| {
            f16_bits(of(v[0] & 0xff)) | f16_bits(of(v[0] >> 8)) << 16
        });
        // The nearest of all values of the format; the even one of two.
        let nearest = move |x: f64| {
            if x.is_nan() {
                return 0x7f;
            }
            let clamped = x.abs().min(max);
            let best = (0u64..0x7f).filter(|&b| of(b).is_finite()).min_by(|&a, &b| {
                let (da, db) = ((of(a) - clamped).abs(), (of(b) - clamped).abs());
                da.total_cmp(&db).then((a & 1).cmp(&(b & 1)))
            });
            best.unwrap_or(0) | if x.is_sign_negative() { 0x80 } else { 0 }
        };
        check(&format!("cvt.rn.satfinite.{name}.f32 %d, %a, %b;"), I16, &[F32, F32], |v| {
            nearest(f(v[1]).into()) | nearest(f(v[0]).into()) << 8
        });
        check(&format!("cvt.rn.satfinite.{name}.f16x2 %d, %a;"), I16, &[F16x2], |v| {
            nearest(f16(v[0] & 0xffff)) | nearest(f16(v[0] >> 16)) << 8
        });
    }
}

#[test]
#[allow(
    clippy::neg_cmp_op_on_partial_ord,
    clippy::double_comparisons,
    reason = "what holds of numbers that cannot be compared is the point"
)]
fn comparisons_with_nan() {
    type Test = fn(f64, f64) -> bool;
    let tests: [(&str, Test); 14] = [
        ("eq", |a, b| a == b),
        ("ne", |a, b| a < b || a > b),
        ("lt", |a, b| a < b),
        ("le", |a, b| a <= b),
        ("gt", |a, b| a > b),
        ("ge", |a, b| a >= b),
        ("equ", |a, b| a == b || a.is_nan() || b.is_nan()),
        ("neu", |a, b| a != b),
        ("ltu", |a, b| !(a >= b)),
        ("leu", |a, b| !(a > b)),
        ("gtu", |a, b| !(a <= b)),
        ("geu", |a, b| !(a < b)),
        ("num", |a, b| !a.is_nan() && !b.is_nan()),
        ("nan", |a, b| a.is_nan() || b.is_nan()),
    ];
    for (name, holds) in tests {
        check(
            &format!(
                "setp.{name}.f32 %p0|%p1, %a, %b; selp.b32 %r2, 1, 0, %p0; selp.b32 %r3, 2, 0, %p1; \
                 or.b32 %d, %r2, %r3;"
            ),
            I32,
            &[F32, F32],
            |v| {
                if holds(f(v[0]).into(), f(v[1]).into()) { 1 } else { 2 }
            },
        );
        check(&format!("setp.{name}.f16 %p0, %a, %b; selp.b32 %d, 1, 0, %p0;"), I32, &[F16, F16], |v| {
            u64::from(holds(f16(v[0]), f16(v[1])))
        });
        check(
            &format!(
                "setp.{name}.bf16x2 %p0|%p1, %a, %b; selp.b32 %r2, 1, 0, %p0; selp.b32 %r3, 2, 0, %p1; \
                 or.b32 %d, %r2, %r3;"
            ),
            I32,
            &[Bf16x2, Bf16x2],
            |v| {
                u64::from(holds(bf16(v[0] & 0xffff), bf16(v[1] & 0xffff)))
                    | u64::from(holds(bf16(v[0] >> 16), bf16(v[1] >> 16))) << 1
            },
        );
        check(&format!("set.{name}.f16x2.f16x2 %d, %a, %b;"), F16x2, &[F16x2, F16x2], |v| {
            let one = |s: u32| if holds(f16(v[0] >> s & 0xffff), f16(v[1] >> s & 0xffff)) { 0x3c00u64 << s } else { 0 };
            one(0) | one(16)
        });
        check(&format!("set.{name}.f32.f64 %d, %a, %b;"), F32, &[F64, F64], |v| {
            fb(f32::from(u8::from(holds(g(v[0]), g(v[1])))))
        });
    }
    check("setp.ne.u32 %p0, 0, 0; set.lt.and.s32.f32 %d, %a, %b, %p0;", I32, &[F32, F32], |_| 0);
    check("slct.b32.f32 %d, %a, %b, %c;", I32, &[I32, I32, F32], |v| if f(v[2]) >= 0.0 { v[0] } else { v[1] });
    for (name, holds) in [
        ("finite", f32::is_finite as fn(f32) -> bool),
        ("infinite", f32::is_infinite),
        ("number", |x| !x.is_nan()),
        ("notanumber", f32::is_nan),
        ("normal", |x| x.is_normal()),
        ("subnormal", f32::is_subnormal),
    ] {
        check(&format!("testp.{name}.f32 %p0, %a; selp.b32 %d, 1, 0, %p0;"), I32, &[F32], |v| {
            u64::from(holds(f(v[0])))
        });
    }
}

#[test]
fn odds_and_ends() {
    check("copysign.f32 %d, %a, %b;", F32, &[F32, F32], |v| (v[0] & 0x8000_0000) | (v[1] & 0x7fff_ffff));
    check("neg.f64 %d, %a;", F64, &[F64], |v| v[0] ^ 1 << 63);
    check("abs.f16 %d, %a;", F16, &[F16], |v| v[0] & 0x7fff);
    check("mad.rz.f32 %d, %a, %b, %c;", F32, &[F32, F32, F32], |v| fb(fma32(3, f(v[0]), f(v[1]), f(v[2]))));
    check("div.full.f32 %d, %a, %b;", F32, &[F32, F32], |v| fb(f(v[0]) / f(v[1])));
    check("div.approx.ftz.f32 %d, %a, %b;", F32, &[F32, F32], |v| fb(ftz(ftz(f(v[0])) / ftz(f(v[1])))));
    check("sqrt.approx.ftz.f32 %d, %a;", F32, &[F32], |v| fb(ftz(f(v[0])).sqrt()));
    // Only the upper halves of argument and result are used.
    let upper = |bits: u64| bits & !0xffff_ffff;
    let flush = |x: f64| if x.is_subnormal() { 0f64.copysign(x) } else { x };
    check("rcp.approx.ftz.f64 %d, %a;", F64, &[F64], |v| upper(flush(1.0 / flush(g(upper(v[0])))).to_bits()));
    check("rsqrt.approx.ftz.f64 %d, %a;", F64, &[F64], |v| upper((1.0 / flush(g(upper(v[0]))).sqrt()).to_bits()));
    check("setp.ne.u32 %p0, 0, 0; set.gt.or.u32.f32 %d, %a, %b, %p0;", I32, &[F32, F32], |v| {
        if f(v[0]) > f(v[1]) { 0xffff_ffff } else { 0 }
    });
    check("setp.ne.u32 %p0, 0, 0; setp.gt.and.f32 %p1, %a, %b, !%p0; selp.b32 %d, 1, 0, %p1;", I32, &[F32, F32], |v| {
        u64::from(f(v[0]) > f(v[1]))
    });
    check("ex2.approx.ftz.f32 %d, 0f00000001;", F32, &[F32], |_| fb(1.0));
    check("lg2.approx.ftz.f32 %d, 0f80000001;", F32, &[F32], |_| fb(f32::NEG_INFINITY));
    // Only numbers with an exact result.
    check("cvt.rzi.s32.f16 %r2, %a; cvt.rn.f16.s32 %h0, %r2; ex2.approx.f16 %d, %h0;", F16, &[F16], |v| {
        f16_bits(2f64.powf(f64::from(f16(v[0]).trunc() as i32)))
    });
    check("tanh.approx.bf16 %d, %a;", Bf16, &[Bf16], |v| bf16_bits(bf16(v[0]).tanh()));
}
