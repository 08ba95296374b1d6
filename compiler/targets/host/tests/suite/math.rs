//! Accuracy of the approximate functions against double precision.

use crate::common::{Args, Launch, at_every_level};

fn kernel(instruction: &str) -> String {
    format!(
        ".visible .entry f(.param .u64 in, .param .u64 out)
{{
  .reg .b32 %r<8>; .reg .f32 %f<4>; .reg .b64 %rd<8>;
  ld.param.u64 %rd1, [in]; ld.param.u64 %rd2, [out];
  mov.u32 %r1, %tid.x; mov.u32 %r2, %ctaid.x; mad.lo.u32 %r3, %r2, 32, %r1;
  mul.wide.u32 %rd3, %r3, 4; add.u64 %rd4, %rd1, %rd3; add.u64 %rd5, %rd2, %rd3;
  ld.global.f32 %f1, [%rd4];
  {instruction} %f2, %f1;
  st.global.f32 [%rd5], %f2;
  ret;
}}"
    )
}

/// Distance of two floats in units in the last place of the exact value.
fn ulps(found: f32, exact: f64) -> f64 {
    let reference = exact as f32;
    if found == reference || (found.is_nan() && reference.is_nan()) {
        return 0.0;
    }
    let spacing = f64::from(f32::from_bits(reference.abs().max(f32::MIN_POSITIVE).to_bits() + 1))
        - f64::from(reference.abs().max(f32::MIN_POSITIVE));
    (f64::from(found) - exact).abs() / spacing
}

/// Runs over `inputs` and checks that each result is within `bound` ulps or `absolute` of the exact
/// value.
fn check(instruction: &str, inputs: &[f32], exact: impl Fn(f64) -> f64, bound: f64, absolute: f64) {
    at_every_level(&kernel(instruction), "f", [32, 1, 1], |kernel| {
        let mut input = inputs.to_vec();
        input.resize(inputs.len().next_multiple_of(32), 1.0);
        let mut out = vec![0f32; input.len()];
        let blocks = input.len() as u32 / 32;
        kernel.run(Launch::grid(blocks, 1, 1), Args::new().slice(&mut input).slice(&mut out));
        let mut worst = (0.0, 0.0f32, 0.0f32);
        for (x, y) in input.iter().zip(&out) {
            let wanted = exact(f64::from(*x));
            let error = ulps(*y, wanted);
            if error > worst.0 && (f64::from(*y) - wanted).abs() > absolute {
                worst = (error, *x, *y);
            }
        }
        assert!(
            worst.0 <= bound,
            "{instruction} of {:e} is {:e}: {:.2} ulp, {:e} wanted",
            worst.1,
            worst.2,
            worst.0,
            exact(worst.1.into())
        );
    });
}

/// `count` numbers from `low` to `high`.
fn range(low: f32, high: f32, count: usize) -> Vec<f32> {
    (0..count).map(|i| low + (high - low) * (i as f32 / (count - 1) as f32)).collect()
}

#[test]
fn powers_of_two() {
    let mut inputs = range(-126.0, 127.9, 40_000);
    inputs.extend(range(-1.0, 1.0, 20_000));
    check("ex2.approx.f32", &inputs, f64::exp2, 1.0, 0.0);
    // Subnormal results, and arguments beyond both ends.
    check("ex2.approx.f32", &range(-150.0, -126.0, 1000), f64::exp2, 2.0, 2e-45);
    check(
        "ex2.approx.f32",
        &[200.0, 1e30, f32::INFINITY, -200.0, f32::NEG_INFINITY, f32::NAN, 128.0, 0.0, -0.0],
        f64::exp2,
        0.0,
        0.0,
    );
}

#[test]
fn logarithms() {
    let mut inputs = range(0.5, 2.0, 40_000);
    inputs.extend((0..20_000).map(|i| f32::from_bits(0x0000_0100 + i * 106_000)));
    check("lg2.approx.f32", &inputs, f64::log2, 1.0, 1e-10);
    check("lg2.approx.f32", &[0.0, 1.0, f32::INFINITY, -1.0, f32::NAN, 8.0, 1e-40], f64::log2, 1.0, 0.0);
}

#[test]
fn sines_and_cosines() {
    let mut inputs = range(-10.0, 10.0, 40_000);
    inputs.extend(range(-1e4, 1e4, 20_000));
    check("sin.approx.f32", &inputs, f64::sin, 2.0, 1.2e-7);
    check("cos.approx.f32", &inputs, f64::cos, 2.0, 1.2e-7);
    check("sin.approx.f32", &[0.0, f32::NAN], f64::sin, 1.0, 0.0);
    // The angle of so large a number is meaningless, but the result must be in the range of a sine.
    let huge: Vec<f32> =
        (0..3200).map(|i| f32::from_bits(0x4b00_0000 + i * 0x4_0000)).filter(|x| x.is_finite()).collect();
    check("sin.approx.f32", &huge, |_| 0.0, 0.0, 1.0);
    check("cos.approx.f32", &huge, |_| 0.0, 0.0, 1.0);
}

#[test]
fn hyperbolic_tangents() {
    let mut inputs = range(-10.0, 10.0, 40_000);
    inputs.extend(range(-1e-3, 1e-3, 1000));
    check("tanh.approx.f32", &inputs, f64::tanh, 6.0, 0.0);
    // Exact at both ends and for NaN.
    check("tanh.approx.f32", &range(9.011, 100.0, 1024), f64::tanh, 0.0, 0.0);
    let ends = [f32::INFINITY, f32::NEG_INFINITY, -100.0, f32::MAX, f32::MIN, 0.0, -0.0, f32::NAN].repeat(4);
    check("tanh.approx.f32", &ends, f64::tanh, 0.0, 0.0);
}

#[test]
fn roots_and_reciprocals() {
    let mut inputs = range(0.0, 4.0, 20_000);
    inputs.extend((0..20_000).map(|i| f32::from_bits(0x0000_0100 + i * 106_000)));
    check("rsqrt.approx.f32", &inputs, |x| 1.0 / x.sqrt(), 1.5, 0.0);
    check("sqrt.approx.f32", &inputs, f64::sqrt, 0.5, 0.0);
    check("rcp.approx.f32", &inputs, |x| 1.0 / x, 0.5, 0.0);
}
