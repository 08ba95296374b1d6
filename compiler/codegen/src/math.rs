//! Scalar functions in f32, from `ex2.approx` and polynomials: the same text on every target, with
//! an error of about two units in the last place.
//!
//! `lg2.approx` is not used: its error is absolute, so a logarithm near 1 would have no correct
//! digit. The coefficients are minimax fits for the reduced range named at each function.
#![expect(
    clippy::excessive_precision,
    clippy::approx_constant,
    reason = "coefficients as they were fitted, and π/2 in parts of few bits"
)]

use crate::writer::Writer;
use atoll_ptx::{Immediate, Name, Operand, ScalarType};

const LOG2_E: f32 = std::f32::consts::LOG2_E;
/// The difference between log2(e) and `LOG2_E`.
const LOG2_E_LOW: f32 = 1.925_963e-8;
const LN_2: f32 = std::f32::consts::LN_2;
/// Up to here the reduction of angles in three steps is exact enough.
const SMALL_ANGLE_MAX: f32 = 1e5;
/// The bits of 2/pi behind a word with 0, with two bits before the point.
const TWO_OVER_PI: [u32; 8] =
    [0, 0x28be_60db, 0x9391_054a, 0x7f09_d5f4, 0x7d4d_3770, 0x36d8_a566, 0x4f10_e410, 0x7f94_58ea];

impl Writer {
    pub(crate) fn fma(&mut self, a: &Operand, b: &Operand, c: &Operand) -> Operand {
        self.f32("fma.rn.f32", [a.clone(), b.clone(), c.clone()])
    }

    pub(crate) fn fadd(&mut self, a: &Operand, b: &Operand) -> Operand {
        self.f32("add.f32", [a.clone(), b.clone()])
    }

    pub(crate) fn fsub(&mut self, a: &Operand, b: &Operand) -> Operand {
        self.f32("sub.f32", [a.clone(), b.clone()])
    }

    pub(crate) fn fmul(&mut self, a: &Operand, b: &Operand) -> Operand {
        self.f32("mul.f32", [a.clone(), b.clone()])
    }

    pub(crate) fn fmax(&mut self, a: &Operand, b: &Operand) -> Operand {
        self.f32("max.f32", [a.clone(), b.clone()])
    }

    pub(crate) fn fabs(&mut self, a: &Operand) -> Operand {
        self.f32("abs.f32", [a.clone()])
    }

    /// A float comparison: `fcompare("lt", a, b)`.
    pub(crate) fn fcompare(&mut self, how: &str, a: &Operand, b: &Operand) -> Name {
        self.make(ScalarType::Pred, &format!("setp.{how}.f32"), [a.clone(), b.clone()])
    }

    pub(crate) fn fselect(&mut self, condition: &Name, then: &Operand, otherwise: &Operand) -> Operand {
        self.f32("selp.f32", [then.clone(), otherwise.clone(), condition.into()])
    }

    /// `coefficients[0] * x^n + … + coefficients[n]` by Horner's rule.
    fn polynomial(&mut self, x: &Operand, coefficients: &[f32]) -> Operand {
        let mut sum = self.f32("mov.f32", [coefficients[0].into()]);
        for &coefficient in &coefficients[1..] {
            sum = self.fma(&sum, x, &coefficient.into());
        }
        sum
    }

    /// `magnitude` with the sign of `sign`.
    fn with_sign_of(&mut self, magnitude: &Operand, sign: &Operand) -> Operand {
        let bits = self.make(ScalarType::B32, "mov.b32", [sign.clone()]);
        let sign = self.make(ScalarType::B32, "and.b32", [bits.into(), Operand::from(i32::MIN)]);
        let magnitude = self.make(ScalarType::B32, "mov.b32", [magnitude.clone()]);
        let both = self.make(ScalarType::B32, "or.b32", [magnitude.into(), sign.into()]);
        self.f32("mov.b32", [both.into()])
    }

    /// `2^(x * log2 e)`, corrected by the rounding error of the product. Exact for infinities and
    /// NaN.
    pub(crate) fn exp(&mut self, x: &Operand) -> Operand {
        let scaled = self.fmul(x, &LOG2_E.into());
        let power = self.f32("ex2.approx.f32", [scaled]);
        // Beyond these bounds the result is 0 or infinity anyway; the correction must stay finite.
        let bounded = self.f32("max.f32", [x.clone(), (-104.0).into()]);
        let bounded = self.f32("min.f32", [bounded, 89.0.into()]);
        let product = self.fmul(&bounded, &LOG2_E.into());
        let negated = self.f32("neg.f32", [product]);
        let lost = self.fma(&bounded, &LOG2_E.into(), &negated);
        let lost = self.fma(&bounded, &LOG2_E_LOW.into(), &lost);
        let correction = self.fma(&lost, &LN_2.into(), &1.0.into());
        self.fmul(&power, &correction)
    }

    /// Natural logarithm, by exponent and a mantissa in [2/3, 4/3).
    pub(crate) fn log(&mut self, x: &Operand) -> Operand {
        // Subnormal numbers are scaled to normal ones first.
        let small = self.fcompare("lt", x, &f32::MIN_POSITIVE.into());
        let raised = self.fmul(x, &8_388_608.0.into());
        let normal = self.fselect(&small, &raised, x);
        let shift = self.fselect(&small, &(-23.0).into(), &0.0.into());

        let bits = self.make(ScalarType::B32, "mov.b32", [normal.clone()]);
        let offset = self.make(ScalarType::S32, "sub.s32", [(&bits).into(), 0x3f2a_aaab.into()]);
        let exponent = self.make(ScalarType::B32, "and.b32", [offset.into(), Operand::from(-0x0080_0000)]);
        let mantissa = self.make(ScalarType::S32, "sub.s32", [bits.into(), (&exponent).into()]);
        let mantissa = self.f32("mov.b32", [mantissa.into()]);
        let exponent = self.f32("cvt.rn.f32.s32", [exponent.into()]);
        let exponent = self.fma(&exponent, &1.192_092_9e-7.into(), &shift);

        let f = self.fadd(&mantissa, &(-1.0).into());
        let square = self.fmul(&f, &f);
        let even = self.polynomial(&square, &[-0.130_310_06, -0.121_483_51, -0.166_846_13, -0.249_996_2]);
        let odd = self.polynomial(&square, &[0.140_869_14, 0.139_814_85, 0.200_120_35]);
        let series = self.fma(&odd, &f, &even);
        let series = self.fma(&series, &f, &0.333_331_97.into());
        let series = self.fma(&series, &f, &(-0.5).into());
        let series = self.fma(&series, &square, &f);
        let result = self.fma(&exponent, &LN_2.into(), &series);

        // Special cases: 0, infinity, NaN and negative numbers.
        let infinite = self.fcompare("ge", x, &f32::INFINITY.into());
        let result = self.fselect(&infinite, x, &result);
        let zero = self.fcompare("eq", x, &0.0.into());
        let result = self.fselect(&zero, &f32::NEG_INFINITY.into(), &result);
        let valid = self.fcompare("ge", x, &0.0.into());
        self.fselect(&valid, &result, &f32::NAN.into())
    }

    /// `ln(1 + x)` for x in [0, 1].
    fn log_plus_one(&mut self, x: &Operand) -> Operand {
        // `ln(u) * x / (u - 1)` with `u = 1 + x` rounded: the rounding error of `u` cancels.
        let u = self.fadd(x, &1.0.into());
        let logarithm = self.log(&u);
        let rounded = self.fadd(&u, &(-1.0).into());
        let exact = self.fcompare("eq", &rounded, &0.0.into());
        let divisor = self.fselect(&exact, &1.0.into(), &rounded);
        let ratio = self.f32("div.rn.f32", [x.clone(), divisor]);
        let result = self.fmul(&logarithm, &ratio);
        self.fselect(&exact, x, &result)
    }

    /// `exp(x) - 1`.
    pub(crate) fn exp_minus_one(&mut self, x: &Operand) -> Operand {
        // `exp(x) - 1 = tanh(x / 2) * (exp(x) + 1)`, and `tanh` is accurate near 0.
        let half = self.fmul(x, &0.5.into());
        let tanh = self.tanh(&half);
        let power = self.exp(x);
        let plus_one = self.fadd(&power, &1.0.into());
        let near = self.fmul(&tanh, &plus_one);
        let far = self.fadd(&power, &(-1.0).into());
        let magnitude = self.fabs(x);
        let is_near = self.fcompare("lt", &magnitude, &0.5.into());
        self.fselect(&is_near, &near, &far)
    }

    /// Error function: an odd polynomial near 0, `1 - exp(polynomial)` elsewhere.
    pub(crate) fn erf(&mut self, x: &Operand) -> Operand {
        let magnitude = self.fabs(x);
        let square = self.fmul(x, x);
        let near = self.polynomial(
            &square,
            &[-5.967_617e-4, 4.991_194_2e-3, -2.676_813_5e-2, 1.128_199_25e-1, -3.761_253_4e-1, 1.283_791_7e-1],
        );
        let near = self.fma(&near, x, x);

        let high = self.fma(&magnitude, &(-1.728_534_7e-5).into(), &3.831_972e-4.into());
        let low = self.fma(&magnitude, &(-3.883_964_4e-3).into(), &2.425_462e-2.into());
        let far = self.fma(&high, &square, &low);
        let far = self.fma(&far, &magnitude, &(-1.067_778_77e-1).into());
        let far = self.fma(&far, &magnitude, &(-6.348_467e-1).into());
        let far = self.fma(&far, &magnitude, &(-1.287_175_1e-1).into());
        let negated = self.f32("neg.f32", [magnitude.clone()]);
        let far = self.fma(&far, &magnitude, &negated);
        let power = self.exp(&far);
        let far = self.fsub(&1.0.into(), &power);
        // Beyond 4 the polynomial is not monotone; erf is 1 there.
        let beyond = self.fcompare("gt", &magnitude, &4.0.into());
        let far = self.fselect(&beyond, &1.0.into(), &far);
        let far = self.with_sign_of(&far, x);

        let is_far = self.fcompare("gt", &magnitude, &0.927_734_4.into());
        self.fselect(&is_far, &far, &near)
    }

    /// Hyperbolic tangent: an odd polynomial below 0.625, `1 - 2 / (exp(2|x|) + 1)` elsewhere.
    pub(crate) fn tanh(&mut self, x: &Operand) -> Operand {
        let square = self.fmul(x, x);
        let near = self
            .polynomial(&square, &[-5.704_988_7e-3, 2.063_908_9e-2, -5.373_971_6e-2, 1.333_144_2e-1, -3.333_328_2e-1]);
        let near = self.fmul(&near, &square);
        let near = self.fma(&near, x, x);

        let magnitude = self.fabs(x);
        let doubled = self.fadd(&magnitude, &magnitude);
        let power = self.exp(&doubled);
        let divisor = self.fadd(&power, &1.0.into());
        let ratio = self.f32("rcp.approx.f32", [divisor]);
        let far = self.fma(&ratio, &(-2.0).into(), &1.0.into());
        let far = self.with_sign_of(&far, x);

        let is_near = self.fcompare("lt", &magnitude, &0.625.into());
        self.fselect(&is_near, &near, &far)
    }

    /// `1 / (1 + exp(-x))`
    pub(crate) fn sigmoid(&mut self, x: &Operand) -> Operand {
        let negated = self.f32("neg.f32", [x.clone()]);
        let power = self.exp(&negated);
        let divisor = self.fadd(&power, &1.0.into());
        self.f32("rcp.approx.f32", [divisor])
    }

    /// `max(x, 0) + ln(1 + exp(-|x|))`
    pub(crate) fn softplus(&mut self, x: &Operand) -> Operand {
        let magnitude = self.fabs(x);
        let negated = self.f32("neg.f32", [magnitude]);
        let power = self.exp(&negated);
        let rest = self.log_plus_one(&power);
        let positive = self.fmax(x, &0.0.into());
        self.fadd(&positive, &rest)
    }

    /// Sine or, with `quarter = 1`, cosine. Small angles are reduced to [-pi/4, pi/4] in three
    /// steps, large ones behind a branch.
    pub(crate) fn sine(&mut self, x: &Operand, quarter: u32) -> Operand {
        let turns = self.fmul(x, &std::f32::consts::FRAC_2_PI.into());
        let turns = self.f32("cvt.rni.f32.f32", [turns]);
        let mut rest = x.clone();
        for part in [-1.570_796, -3.139_164_7e-7, -5.390_302_5e-15] {
            rest = self.fma(&turns, &part.into(), &rest);
        }
        let quadrant = self.make(ScalarType::S32, "cvt.rzi.s32.f32", [turns]);
        let magnitude = self.fabs(x);
        let is_large = self.fcompare("gt", &magnitude, &SMALL_ANGLE_MAX.into());
        self.when(Some(&is_large), |w| {
            let (exact, turns) = w.reduced_large_angle(x);
            w.emit("mov.f32", [rest.clone(), exact]);
            w.emit("mov.b32", [(&quadrant).into(), turns.into()]);
        });
        let square = self.fmul(&rest, &rest);
        let sine = self.polynomial(&square, &[-1.951_529_6e-4, 8.332_161e-3, -1.666_665_5e-1]);
        let sine = self.fmul(&sine, &square);
        let sine = self.fma(&sine, &rest, &rest);
        let cosine = self.polynomial(&square, &[2.443_315_7e-5, -1.388_731_6e-3, 4.166_664_6e-2, -0.5, 1.0]);

        let quadrant = self.make(ScalarType::S32, "add.s32", [quadrant.into(), quarter.into()]);
        let odd = self.make(ScalarType::B32, "and.b32", [(&quadrant).into(), 1.into()]);
        let is_odd = self.make(ScalarType::Pred, "setp.ne.s32", [odd.into(), 0.into()]);
        let value = self.fselect(&is_odd, &cosine, &sine);
        let half = self.make(ScalarType::B32, "and.b32", [quadrant.into(), 2.into()]);
        let is_negative = self.make(ScalarType::Pred, "setp.ne.s32", [half.into(), 0.into()]);
        let negated = self.f32("neg.f32", [value.clone()]);
        self.fselect(&is_negative, &negated, &value)
    }

    /// An angle above [`SMALL_ANGLE_MAX`] as the rest and quarter turns, modulo 4 (Payne and
    /// Hanek): the mantissa times 96 bits of 2/pi, those that matter for the exponent, as a number
    /// with two bits before the point. The rest of an infinity is NaN.
    fn reduced_large_angle(&mut self, x: &Operand) -> (Operand, Name) {
        use ScalarType::{B32, B64, F64, S64, U32, U64};
        let bits = self.make(B32, "mov.b32", [x.clone()]);
        let mantissa = self.make(B32, "and.b32", [(&bits).into(), 0x007f_ffff.into()]);
        let mantissa = self.make(B32, "or.b32", [mantissa.into(), 0x0080_0000.into()]);
        let mantissa = self.make(B32, "shl.b32", [mantissa.into(), 8.into()]);
        let mantissa = Operand::from(self.make(U64, "cvt.u64.u32", [mantissa.into()]));
        let exponent = self.make(U32, "shr.u32", [(&bits).into(), 23.into()]);
        let exponent = self.make(B32, "and.b32", [exponent.into(), 255.into()]);
        let exponent = self.make(U32, "sub.s32", [exponent.into(), 126.into()]);
        let shift = Operand::from(self.make(B32, "and.b32", [(&exponent).into(), 31.into()]));

        // Three overlapping pairs of words, from the word of the exponent on.
        let pair = |word: usize| ((u64::from(TWO_OVER_PI[word]) << 32) | u64::from(TWO_OVER_PI[word + 1])) as i64;
        let mut pairs = [0, 1, 2].map(|part| self.make(B64, "mov.b64", [pair(part).into()]));
        for word in 1..=4_usize {
            let from = 32 * word as u32;
            let is_beyond = self.make(ScalarType::Pred, "setp.ge.u32", [(&exponent).into(), from.into()]);
            for (part, chosen) in pairs.iter_mut().enumerate() {
                let (there, before) = (pair(word + part).into(), Operand::from(&*chosen));
                *chosen = self.make(B64, "selp.b64", [there, before, (&is_beyond).into()]);
            }
        }
        let [high, middle, low] = pairs.map(|pair| {
            let shifted = self.make(B64, "shl.b64", [pair.into(), shift.clone()]);
            Operand::from(self.make(U64, "shr.u64", [shifted.into(), 32.into()]))
        });
        let product = self.make(U64, "mul.lo.s64", [mantissa.clone(), low]);
        let product = self.make(U64, "shr.u64", [product.into(), 32.into()]);
        let product = self.make(U64, "mad.lo.s64", [mantissa.clone(), middle, product.into()]);
        let top = self.make(U64, "mul.lo.s64", [mantissa, high]);
        let top = self.make(B64, "shl.b64", [top.into(), 32.into()]);
        let product = self.make(U64, "add.s64", [product.into(), top.into()]);

        let rounded = self.make(U64, "add.s64", [(&product).into(), (1_i64 << 61).into()]);
        let turns = self.make(U64, "shr.u64", [rounded.into(), 62.into()]);
        let turns = self.make(U32, "cvt.u32.u64", [turns.into()]);
        let fraction = self.make(B64, "shl.b64", [product.into(), 2.into()]);
        let fraction = self.make(S64, "shr.s64", [fraction.into(), 2.into()]);
        let fraction = self.make(F64, "cvt.rn.f64.s64", [fraction.into()]);
        // 2^62 is a quarter turn.
        let unit = std::f64::consts::FRAC_PI_2 / (1_u64 << 62) as f64;
        let unit = Operand::Immediate(Immediate::F64(unit.to_bits()));
        let rest = self.make(F64, "mul.f64", [fraction.into(), unit]);
        let rest = self.f32("cvt.rn.f32.f64", [rest.into()]);

        let is_negative = self.make(ScalarType::Pred, "setp.lt.s32", [bits.into(), 0.into()]);
        let negated = self.f32("neg.f32", [rest.clone()]);
        let rest = self.fselect(&is_negative, &negated, &rest);
        // The difference is 0, and NaN for infinities.
        let difference = self.fsub(x, x);
        let rest = self.fadd(&rest, &difference);
        let opposite = self.make(ScalarType::S32, "neg.s32", [(&turns).into()]);
        (rest, self.make(B32, "selp.b32", [opposite.into(), turns.into(), is_negative.into()]))
    }

    /// `x^y` as `exp(y ln|x|)`, with the sign of an odd power and the special cases of IEEE 754
    /// that models use.
    pub(crate) fn pow(&mut self, x: &Operand, y: &Operand) -> Operand {
        let x = self.f32("mov.f32", [x.clone()]);
        let y = self.f32("mov.f32", [y.clone()]);
        let magnitude = self.fabs(&x);
        let logarithm = self.log(&magnitude);
        let exponent = self.fmul(&logarithm, &y);
        let power = self.exp(&exponent);
        // The logarithm of 1 is 0; times an infinity that would be NaN.
        let is_unit = self.fcompare("eq", &magnitude, &1.0.into());
        let power = self.fselect(&is_unit, &1.0.into(), &power);

        let whole = self.f32("cvt.rzi.f32.f32", [y.clone()]);
        let is_whole = self.fcompare("eq", &whole, &y);
        let half = self.fmul(&y, &0.5.into());
        let half_whole = self.f32("cvt.rzi.f32.f32", [half.clone()]);
        let is_odd = self.fcompare("ne", &half_whole, &half);
        let negated = self.f32("neg.f32", [power.clone()]);
        let of_negative = self.fselect(&is_odd, &negated, &power);
        let is_infinite = self.fcompare("eq", &magnitude, &f32::INFINITY.into());
        let fractional = self.fselect(&is_infinite, &power, &f32::NAN.into());
        let of_negative = self.fselect(&is_whole, &of_negative, &fractional);
        let is_negative = self.fcompare("lt", &x, &0.0.into());
        let result = self.fselect(&is_negative, &of_negative, &power);
        // `x^0` is 1 and `1^y` is 1, for every x and y.
        let is_zero = self.fcompare("eq", &y, &0.0.into());
        let result = self.fselect(&is_zero, &1.0.into(), &result);
        let is_one = self.fcompare("eq", &x, &1.0.into());
        self.fselect(&is_one, &1.0.into(), &result)
    }
}
