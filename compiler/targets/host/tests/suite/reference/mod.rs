//! Operations in the rounding modes and number formats of PTX, as references.

/// The f32 with these bits.
pub(crate) fn f(bits: u64) -> f32 {
    f32::from_bits(bits as u32)
}

/// The f64 with these bits.
pub(crate) fn g(bits: u64) -> f64 {
    f64::from_bits(bits)
}

/// The bits of an f32.
pub(crate) fn fb(value: f32) -> u64 {
    value.to_bits().into()
}

/// Runs an SSE instruction in a rounding mode: 1 down, 2 up, 3 towards zero.
macro_rules! in_mode {
    ($name:ident, $type:ty, $code:literal $(, $extra:ident)*) => {
        pub(crate) fn $name(mode: u32, a: $type, b: $type $(, $extra: $type)*) -> $type {
            let (mut found, wanted, mut result) = (0u32, 0x1F80 | mode << 13, a);
            // SAFETY: the code restores MXCSR.
            unsafe {
                std::arch::asm!(
                    "stmxcsr [{found}]", "ldmxcsr [{wanted}]", $code, "ldmxcsr [{found}]",
                    a = inout(xmm_reg) result, b = in(xmm_reg) b, $($extra = in(xmm_reg) $extra,)*
                    found = in(reg) &raw mut found, wanted = in(reg) &raw const wanted, out("rax") _,
                );
            }
            result
        }
    };
}

in_mode!(add32, f32, "addss {a}, {b}");
in_mode!(sub32, f32, "subss {a}, {b}");
in_mode!(mul32, f32, "mulss {a}, {b}");
in_mode!(div32, f32, "divss {a}, {b}");
in_mode!(sqrt32, f32, "sqrtss {a}, {b}");
in_mode!(fma32, f32, "vfmadd213ss {a}, {b}, {c}", c);
in_mode!(add64, f64, "addsd {a}, {b}");
in_mode!(mul64, f64, "mulsd {a}, {b}");
in_mode!(div64, f64, "divsd {a}, {b}");
in_mode!(sqrt64, f64, "sqrtsd {a}, {b}");
in_mode!(fma64, f64, "vfmadd213sd {a}, {b}, {c}", c);
in_mode!(narrow, f64, "cvtsd2ss {a}, {b}");
in_mode!(from_i64, f64, "movq rax, {b}\ncvtsi2sd {a}, rax");

/// The rounding modes of PTX, and their encodings in MXCSR.
pub(crate) const MODES: [(&str, u32); 4] = [("rn", 0), ("rm", 1), ("rp", 2), ("rz", 3)];

/// Exact rounding of a number to nearest even in a format with `fraction` bits and the smallest
/// exponent `least`.
pub(crate) fn round(value: f64, fraction: i32, least: i32) -> f64 {
    if value == 0.0 || !value.is_finite() {
        return value;
    }
    let exponent = ((value.abs().to_bits() >> 52) as i32 - 1023).max(least);
    let step = 2f64.powi(exponent - fraction);
    (value / step).round_ties_even() * step
}

/// A number rounded to the bits of an f16.
pub(crate) fn f16_bits(value: f64) -> u64 {
    let sign = if value.is_sign_negative() { 0x8000 } else { 0 };
    let rounded = round(value, 10, -14).abs();
    sign | match rounded {
        r if r.is_nan() => 0x7e00,
        r if r >= 65536.0 => 0x7c00,
        r if r < 2f64.powi(-14) => (r * 2f64.powi(24)) as u64,
        r => (r.to_bits() >> 42) - ((1023 - 15) << 10),
    }
}

/// The value of the bits of an f16.
pub(crate) fn f16(bits: u64) -> f64 {
    let (exponent, fraction) = ((bits >> 10 & 31) as i32, (bits & 0x3ff) as f64);
    let magnitude = match exponent {
        0 => fraction * 2f64.powi(-24),
        31 if fraction != 0.0 => f64::NAN,
        31 => f64::INFINITY,
        _ => (1024.0 + fraction) * 2f64.powi(exponent - 25),
    };
    if bits & 0x8000 != 0 { -magnitude } else { magnitude }
}

/// The value of the bits of a bf16.
pub(crate) fn bf16(bits: u64) -> f64 {
    f64::from(f32::from_bits((bits as u32) << 16))
}

/// A number rounded to the bits of a bf16.
pub(crate) fn bf16_bits(value: f64) -> u64 {
    // All numbers of the format are floats, and the number is already rounded.
    u64::from((round(value, 7, -126) as f32).to_bits() >> 16)
}

/// Flushes subnormal floats to zeros.
pub(crate) fn ftz(value: f32) -> f32 {
    if value.is_subnormal() { 0f32.copysign(value) } else { value }
}

/// `min` and `max`: −0 is less than +0; a NaN yields the other operand.
pub(crate) fn extreme(a: f32, b: f32, is_max: bool) -> f32 {
    match () {
        () if a.is_nan() => b,
        () if b.is_nan() => a,
        () if a == b => f32::from_bits(if is_max { a.to_bits() & b.to_bits() } else { a.to_bits() | b.to_bits() }),
        () => {
            if (a > b) == is_max {
                a
            } else {
                b
            }
        }
    }
}
