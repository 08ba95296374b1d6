//! Scalar functions in f64, within a few units in the last place. Coefficients of `log`, `sin`,
//! `cos`, `atan` and `erf` are those of FreeBSD's libm (Sun Microsystems, 1993), those of the
//! exponential are the Taylor series, which converges fast enough on the reduced range.
#![expect(clippy::excessive_precision, clippy::approx_constant, reason = "coefficients as they were fitted")]

use crate::real::Real;
use atoll_frontend::tensor_graph::PointOp;
use atoll_ptx::{Operand, ScalarType};

/// ln 2 in two parts; products of the first with exponents are exact.
const LN2_HIGH: f64 = 6.931_471_803_691_238_164_90e-1;
const LN2_LOW: f64 = 1.908_214_929_270_587_700_02e-10;
const LN2: f64 = std::f64::consts::LN_2;
/// Beyond it, `x + 1` and `x` are as good as equal under a root or a logarithm.
const LARGE: f64 = 268_435_456.0;

impl Real<'_> {
    /// A function of one number in f64.
    pub(crate) fn function_f64(&mut self, op: PointOp, x: &Operand) -> Option<Operand> {
        Some(match op {
            PointOp::Exp => self.exp(x),
            PointOp::Log => self.log(x),
            PointOp::Erf => self.erf(x),
            PointOp::Sin => self.sine(x, 0),
            PointOp::Cos => self.sine(x, 1),
            PointOp::Tanh => self.tanh(x),
            PointOp::Sigmoid => self.sigmoid(x),
            PointOp::Softplus => self.softplus(x),
            PointOp::Asin => self.arc_sine(x),
            PointOp::Acos => self.arc_cosine(x),
            PointOp::Atan => self.arc_tangent(x),
            PointOp::Sinh => self.sinh(x),
            PointOp::Cosh => self.cosh(x),
            PointOp::Asinh => self.area_sine(x),
            PointOp::Acosh => self.area_cosine(x),
            PointOp::Atanh => self.area_tangent(x),
            _ => return None,
        })
    }

    fn bits(&mut self, x: &Operand) -> Operand {
        self.w.make(ScalarType::B64, "mov.b64", [x.clone()]).into()
    }

    fn bound(&mut self, x: &Operand, low: f64, high: f64) -> Operand {
        let (low, high) = (self.number(low), self.number(high));
        let raised = self.max(x, &low);
        self.min(&raised, &high)
    }

    // ---- exponentials ----

    /// `2^n` for a whole n from -1022 to 1023 in a 64-bit register.
    fn power_of_two(&mut self, n: &Operand) -> Operand {
        let biased = self.w.make(ScalarType::S64, "add.s64", [n.clone(), 1023.into()]);
        let bits = self.w.make(ScalarType::B64, "shl.b64", [biased.into(), 52.into()]);
        self.w.make(ScalarType::F64, "mov.b64", [bits.into()]).into()
    }

    /// `x = n ln 2 + r`: n as a float, and r in two parts.
    fn reduced(&mut self, x: &Operand) -> (Operand, Operand) {
        let scaled = self.mul(x, &self.number(std::f64::consts::LOG2_E));
        let n = self.rounded("rni", &scaled);
        let negated = self.neg(&n);
        let high = self.fma(&negated, &self.number(LN2_HIGH), x);
        let rest = self.fma(&negated, &self.number(LN2_LOW), &high);
        (n, rest)
    }

    /// `exp(r) - 1` for |r| up to ln 2 / 2, in two parts: r itself and the rest of the series.
    fn series(&mut self, r: &Operand) -> Operand {
        let mut factorial = 1.0;
        let mut coefficients: Vec<f64> = (2..14)
            .map(|k| {
                factorial *= f64::from(k);
                1.0 / factorial
            })
            .collect();
        coefficients.reverse();
        let sum = self.polynomial(r, &coefficients);
        let square = self.mul(r, r);
        self.mul(&square, &sum)
    }

    /// `value * 2^n`, in two steps, so that subnormal results are rounded once more at most.
    fn scaled_by(&mut self, value: &Operand, n: &Operand) -> Operand {
        let n = Operand::from(self.w.make(ScalarType::S64, "cvt.rzi.s64.f64", [n.clone()]));
        let half = Operand::from(self.w.make(ScalarType::S64, "shr.s64", [n.clone(), 1.into()]));
        let rest = Operand::from(self.w.make(ScalarType::S64, "sub.s64", [n, half.clone()]));
        let (first, second) = (self.power_of_two(&half), self.power_of_two(&rest));
        let value = self.mul(value, &first);
        self.mul(&value, &second)
    }

    pub(crate) fn exp(&mut self, x: &Operand) -> Operand {
        let zero = self.number(0.0);
        self.exp_of_sum(x, &zero)
    }

    /// `exp(high + low)` for a low part that is far smaller.
    fn exp_of_sum(&mut self, high: &Operand, low: &Operand) -> Operand {
        let bounded = self.bound(high, -800.0, 800.0);
        let (n, r) = self.reduced(&bounded);
        let sum = self.add(&r, low);
        let taken = self.sub(&sum, &r);
        let lost = self.sub(low, &taken);
        let series = self.series(&sum);
        let tail = self.add(&series, &lost);
        let power = self.add(&sum, &tail);
        let power = self.add(&power, &self.number(1.0));
        self.scaled_by(&power, &n)
    }

    /// `exp(x) - 1` for x up to 700.
    pub(crate) fn exp_minus_one(&mut self, x: &Operand) -> Operand {
        let bounded = self.bound(x, -800.0, 700.0);
        let (n, r) = self.reduced(&bounded);
        let series = self.series(&r);
        let part = self.add(&r, &series);
        let one = self.number(1.0);
        let power = self.scaled_by(&one, &n);
        let whole = self.sub(&power, &one);
        self.fma(&part, &power, &whole)
    }

    fn sigmoid(&mut self, x: &Operand) -> Operand {
        let negated = self.neg(x);
        let power = self.exp(&negated);
        let divisor = self.add(&power, &self.number(1.0));
        self.reciprocal(&divisor)
    }

    fn tanh(&mut self, x: &Operand) -> Operand {
        let magnitude = self.abs(x);
        let doubled = self.add(&magnitude, &magnitude);
        let doubled = self.min(&doubled, &self.number(50.0));
        let power = self.exp_minus_one(&doubled);
        let divisor = self.add(&power, &self.number(2.0));
        let value = self.div(&power, &divisor);
        self.with_sign_of(&value, x)
    }

    fn sinh(&mut self, x: &Operand) -> Operand {
        let magnitude = self.abs(x);
        let near = self.min(&magnitude, &self.number(22.0));
        let power = self.exp_minus_one(&near);
        let plus_one = self.add(&power, &self.number(1.0));
        let ratio = self.div(&power, &plus_one);
        let sum = self.add(&power, &ratio);
        let near = self.mul(&sum, &self.number(0.5));
        let far = self.half_exp(&magnitude);
        let is_far = self.compare("gt", &magnitude, &self.number(22.0));
        let value = self.select(&is_far, &far, &near);
        self.with_sign_of(&value, x)
    }

    fn cosh(&mut self, x: &Operand) -> Operand {
        let magnitude = self.abs(x);
        let near = self.min(&magnitude, &self.number(22.0));
        let power = self.exp(&near);
        let inverse = self.reciprocal(&power);
        let sum = self.add(&power, &inverse);
        let near = self.mul(&sum, &self.number(0.5));
        let far = self.half_exp(&magnitude);
        let is_far = self.compare("gt", &magnitude, &self.number(22.0));
        self.select(&is_far, &far, &near)
    }

    /// `exp(x) / 2`, also where `exp(x)` is not finite any more.
    fn half_exp(&mut self, x: &Operand) -> Operand {
        let half = self.mul(x, &self.number(0.5));
        let root = self.exp(&half);
        let halved = self.mul(&root, &self.number(0.5));
        self.mul(&halved, &root)
    }

    // ---- logarithms ----

    /// `x = m * 2^e` of a positive number, with m from √½ to √2, as `m - 1` and e.
    fn split(&mut self, x: &Operand) -> (Operand, Operand) {
        let small = self.compare("lt", x, &self.number(f64::MIN_POSITIVE));
        let raised = self.mul(x, &self.number(2f64.powi(54)));
        let normal = self.select(&small, &raised, x);
        let (shift, none) = (self.number(-54.0), self.number(0.0));
        let shift = self.select(&small, &shift, &none);
        let bits = self.bits(&normal);
        // From √½ on: its bits become those of 1/2^k exactly at the next power of two.
        let offset =
            Operand::from(self.w.make(ScalarType::S64, "sub.s64", [bits.clone(), 0x3fe6_a09e_667f_3bcd_i64.into()]));
        let exponent = Operand::from(self.w.make(ScalarType::S64, "shr.s64", [offset, 52.into()]));
        let up = self.w.make(ScalarType::B64, "shl.b64", [exponent.clone(), 52.into()]);
        let mantissa = self.w.make(ScalarType::S64, "sub.s64", [bits, up.into()]);
        let mantissa = Operand::from(self.w.make(ScalarType::F64, "mov.b64", [mantissa.into()]));
        let exponent = Operand::from(self.w.make(ScalarType::F64, "cvt.rn.f64.s64", [exponent]));
        let exponent = self.add(&exponent, &shift);
        (self.sub(&mantissa, &self.number(1.0)), exponent)
    }

    /// Natural logarithm.
    pub(crate) fn log(&mut self, x: &Operand) -> Operand {
        let (f, exponent) = self.split(x);
        let plus_two = self.add(&f, &self.number(2.0));
        let s = self.div(&f, &plus_two);
        let z = self.mul(&s, &s);
        let tail = self.polynomial(
            &z,
            &[
                1.479_819_860_511_658_591e-1,
                1.531_383_769_920_937_332e-1,
                1.818_357_216_161_805_012e-1,
                2.222_219_843_214_978_396e-1,
                2.857_142_874_366_239_149e-1,
                3.999_999_999_940_941_908e-1,
                6.666_666_666_666_735_130e-1,
            ],
        );
        let tail = self.mul(&tail, &z);
        let square = self.mul(&f, &f);
        let half = self.mul(&square, &self.number(0.5));
        let sum = self.add(&half, &tail);
        let low = self.mul(&exponent, &self.number(LN2_LOW));
        let low = self.fma(&s, &sum, &low);
        let low = self.sub(&half, &low);
        let low = self.sub(&low, &f);
        let high = self.mul(&exponent, &self.number(LN2_HIGH));
        let result = self.sub(&high, &low);
        self.log_edges(x, &result)
    }

    /// The logarithm of 0, infinity, NaN and what is below 0.
    fn log_edges(&mut self, x: &Operand, result: &Operand) -> Operand {
        let infinite = self.compare("eq", x, &self.number(f64::INFINITY));
        let result = self.select(&infinite, x, result);
        let zero = self.compare("eq", x, &self.number(0.0));
        let lowest = self.number(f64::NEG_INFINITY);
        let result = self.select(&zero, &lowest, &result);
        let valid = self.compare("ge", x, &self.number(0.0));
        let nan = self.number(f64::NAN);
        self.select(&valid, &result, &nan)
    }

    /// `ln(1 + x)`
    fn log_plus_one(&mut self, x: &Operand) -> Operand {
        // ln(u) * x / (u - 1) with u = 1 + x rounded: the rounding error of u cancels.
        let one = self.number(1.0);
        let u = self.add(x, &one);
        let logarithm = self.log(&u);
        let rounded = self.sub(&u, &one);
        let ratio = self.div(x, &rounded);
        let result = self.mul(&logarithm, &ratio);
        let is_tiny = self.compare("eq", &rounded, &self.number(0.0));
        let result = self.select(&is_tiny, x, &result);
        let infinite = self.compare("eq", x, &self.number(f64::INFINITY));
        self.select(&infinite, x, &result)
    }

    fn softplus(&mut self, x: &Operand) -> Operand {
        let magnitude = self.abs(x);
        let negated = self.neg(&magnitude);
        let power = self.exp(&negated);
        let rest = self.log_plus_one(&power);
        let positive = self.max(x, &self.number(0.0));
        self.add(&positive, &rest)
    }

    /// `ln(x) + ln 2` for large numbers.
    fn log_of_double(&mut self, x: &Operand) -> Operand {
        let logarithm = self.log(x);
        self.add(&logarithm, &self.number(LN2))
    }

    fn area_sine(&mut self, x: &Operand) -> Operand {
        let magnitude = self.abs(x);
        let one = self.number(1.0);
        let square = self.mul(&magnitude, &magnitude);
        let raised = self.add(&square, &one);
        let root = self.sqrt(&raised);
        let divisor = self.add(&root, &one);
        let part = self.div(&square, &divisor);
        let sum = self.add(&magnitude, &part);
        let near = self.log_plus_one(&sum);
        let far = self.log_of_double(&magnitude);
        let is_far = self.compare("gt", &magnitude, &self.number(LARGE));
        let value = self.select(&is_far, &far, &near);
        self.with_sign_of(&value, x)
    }

    fn area_cosine(&mut self, x: &Operand) -> Operand {
        let one = self.number(1.0);
        let above = self.sub(x, &one);
        let plus_two = self.add(&above, &self.number(2.0));
        let square = self.mul(&above, &plus_two);
        let root = self.sqrt(&square);
        let sum = self.add(&above, &root);
        let near = self.log_plus_one(&sum);
        let far = self.log_of_double(x);
        let is_far = self.compare("gt", x, &self.number(LARGE));
        let value = self.select(&is_far, &far, &near);
        let valid = self.compare("ge", x, &one);
        let nan = self.number(f64::NAN);
        self.select(&valid, &value, &nan)
    }

    fn area_tangent(&mut self, x: &Operand) -> Operand {
        let magnitude = self.abs(x);
        let one = self.in_own_register(1.0);
        let rest = self.sub(&one, &magnitude);
        let doubled = self.add(&magnitude, &magnitude);
        let ratio = self.div(&doubled, &rest);
        let logarithm = self.log_plus_one(&ratio);
        let value = self.mul(&logarithm, &self.number(0.5));
        self.with_sign_of(&value, x)
    }

    fn in_own_register(&mut self, value: f64) -> Operand {
        let value = self.number(value);
        self.w.in_register(&value, ScalarType::F64)
    }

    // ---- circular functions ----

    /// Sine, or with `quarter` = 1 cosine: reduced to [-pi/4, pi/4] in three steps, good up to
    /// about 1e9.
    fn sine(&mut self, x: &Operand, quarter: i64) -> Operand {
        let turns = self.mul(x, &self.number(std::f64::consts::FRAC_2_PI));
        let turns = self.rounded("rni", &turns);
        let negated = self.neg(&turns);
        let mut r = x.clone();
        for part in [1.570_796_326_794_896_558, 6.123_233_995_736_766_036e-17, -1.497_384_904_859_183_3e-33] {
            r = self.fma(&negated, &self.number(part), &r);
        }
        let z = self.mul(&r, &r);
        let sine = self.polynomial(
            &z,
            &[
                1.589_690_995_211_550_102_21e-10,
                -2.505_076_025_340_686_341_95e-8,
                2.755_731_370_707_006_767_89e-6,
                -1.984_126_982_985_794_931_34e-4,
                8.333_333_333_322_489_461_24e-3,
                -1.666_666_666_666_663_243_48e-1,
            ],
        );
        let sine = self.mul(&sine, &z);
        let sine = self.fma(&sine, &r, &r);
        let tail = self.polynomial(
            &z,
            &[
                -1.135_964_755_778_819_482_65e-11,
                2.087_572_321_298_174_827_90e-9,
                -2.755_731_435_139_066_330_35e-7,
                2.480_158_728_947_672_941_78e-5,
                -1.388_888_888_887_410_957_49e-3,
                4.166_666_666_666_660_190_37e-2,
            ],
        );
        let fourth = self.mul(&z, &z);
        let one = self.in_own_register(1.0);
        let half = self.mul(&z, &self.number(0.5));
        let high = self.sub(&one, &half);
        let lost = self.sub(&one, &high);
        let lost = self.sub(&lost, &half);
        let low = self.fma(&tail, &fourth, &lost);
        let cosine = self.add(&high, &low);

        let quadrant = self.w.make(ScalarType::S64, "cvt.rzi.s64.f64", [turns]);
        let quadrant = Operand::from(self.w.make(ScalarType::S64, "add.s64", [quadrant.into(), quarter.into()]));
        let odd = self.w.make(ScalarType::B64, "and.b64", [quadrant.clone(), 1.into()]);
        let is_odd = self.w.make(ScalarType::Pred, "setp.ne.s64", [odd.into(), 0.into()]);
        let value = self.select(&is_odd, &cosine, &sine);
        let half = self.w.make(ScalarType::B64, "and.b64", [quadrant, 2.into()]);
        let is_negative = self.w.make(ScalarType::Pred, "setp.ne.s64", [half.into(), 0.into()]);
        let negated = self.neg(&value);
        self.select(&is_negative, &negated, &value)
    }

    /// Arc tangent: reduced by the tangents of four angles.
    fn arc_tangent(&mut self, x: &Operand) -> Operand {
        let a = self.abs(x);
        let (mut top, mut bottom) = (a.clone(), self.in_own_register(1.0));
        let (mut high, mut low) = (self.in_own_register(0.0), self.in_own_register(0.0));
        // From a limit on: numerator and denominator as p * a + q, and the angle in two parts.
        let reductions = [
            (0.4375, [2.0, -1.0], [1.0, 2.0], [4.636_476_090_008_060_935_15e-1, 2.269_877_745_296_168_709_24e-17]),
            (0.6875, [1.0, -1.0], [1.0, 1.0], [7.853_981_633_974_482_789_99e-1, 3.061_616_997_868_383_017_93e-17]),
            (1.1875, [1.0, -1.5], [1.5, 1.0], [9.827_937_232_473_290_540_82e-1, 1.390_331_103_123_099_845_16e-17]),
            (2.4375, [0.0, -1.0], [1.0, 0.0], [1.570_796_326_794_896_558_00, 6.123_233_995_736_766_035_87e-17]),
        ];
        for (limit, numerator, denominator, angle) in reductions {
            let is_beyond = self.compare("ge", &a, &self.number(limit));
            let choose = |real: &mut Self, [p, q]: [f64; 2], before: &Operand| {
                let value = match (p, q) {
                    (0.0, q) => real.number(q),
                    (1.0, 0.0) => a.clone(),
                    (p, q) => {
                        let (p, q) = (real.number(p), real.number(q));
                        real.fma(&a, &p, &q)
                    }
                };
                real.select(&is_beyond, &value, before)
            };
            top = choose(self, numerator, &top);
            bottom = choose(self, denominator, &bottom);
            high = choose(self, [0.0, angle[0]], &high);
            low = choose(self, [0.0, angle[1]], &low);
        }
        let t = self.div(&top, &bottom);
        let z = self.mul(&t, &t);
        let series = self.polynomial(
            &z,
            &[
                1.628_582_011_536_578_236_23e-2,
                -3.653_157_274_421_691_552_70e-2,
                4.976_877_994_615_932_360_17e-2,
                -5.833_570_133_790_573_486_45e-2,
                6.661_073_137_387_531_206_69e-2,
                -7.691_876_205_044_829_994_95e-2,
                9.090_887_133_436_506_561_96e-2,
                -1.111_111_040_546_235_578_80e-1,
                1.428_571_427_250_346_637_11e-1,
                -1.999_999_999_987_648_324_76e-1,
                3.333_333_333_333_293_180_27e-1,
            ],
        );
        let series = self.mul(&series, &z);
        let bent = self.mul(&series, &t);
        let rest = self.sub(&bent, &low);
        let rest = self.sub(&rest, &t);
        let value = self.sub(&high, &rest);
        self.with_sign_of(&value, x)
    }

    /// `atan(x / sqrt((1 - x) * (1 + x)))`
    fn arc_sine(&mut self, x: &Operand) -> Operand {
        let one = self.in_own_register(1.0);
        let (below, above) = (self.sub(&one, x), self.add(&one, x));
        let product = self.mul(&below, &above);
        let root = self.sqrt(&product);
        let ratio = self.div(x, &root);
        self.arc_tangent(&ratio)
    }

    /// `2 * atan(sqrt((1 - x) / (1 + x)))`
    fn arc_cosine(&mut self, x: &Operand) -> Operand {
        let one = self.in_own_register(1.0);
        let (below, above) = (self.sub(&one, x), self.add(&one, x));
        let ratio = self.div(&below, &above);
        let root = self.sqrt(&ratio);
        let half = self.arc_tangent(&root);
        self.add(&half, &half)
    }

    // ---- error function ----

    /// Rational functions near 0 and near 1; beyond, `1 - exp(-x^2 + …) / x`.
    fn erf(&mut self, x: &Operand) -> Operand {
        let a = self.abs(x);
        let square = self.mul(x, x);
        let near = self.ratio(
            &square,
            &[
                -2.376_301_665_665_016_260_84e-5,
                -5.770_270_296_489_441_591_57e-3,
                -2.848_174_957_559_851_047_66e-2,
                -3.250_421_072_470_014_993_70e-1,
                1.283_791_670_955_125_585_61e-1,
            ],
            &[
                -3.960_228_278_775_368_123_20e-6,
                1.324_947_380_043_216_445_26e-4,
                5.081_306_281_875_765_627_76e-3,
                6.502_224_998_876_729_444_85e-2,
                3.979_172_239_591_553_528_19e-1,
                1.0,
            ],
        );
        let near = self.fma(&near, x, x);

        let s = self.sub(&a, &self.number(1.0));
        let middle = self.ratio(
            &s,
            &[
                -2.166_375_594_868_790_843_00e-3,
                3.547_830_432_561_823_593_71e-2,
                -1.108_946_942_823_966_774_76e-1,
                3.183_466_199_011_617_536_74e-1,
                -3.722_078_760_357_013_238_47e-1,
                4.148_561_186_837_483_316_66e-1,
                -2.362_118_560_752_659_440_77e-3,
            ],
            &[
                1.198_449_984_679_910_741_70e-2,
                1.363_708_391_202_905_073_62e-2,
                1.261_712_198_087_616_421_12e-1,
                7.182_865_441_419_626_628_68e-2,
                5.403_979_177_021_710_489_37e-1,
                1.064_208_804_008_442_282_86e-1,
                1.0,
            ],
        );
        let middle = self.add(&middle, &self.number(8.450_629_115_104_675_292_97e-1));

        let far = self.erf_far(&a);
        let is_far = self.compare("ge", &a, &self.number(1.25));
        let beyond = self.select(&is_far, &far, &middle);
        let beyond = self.with_sign_of(&beyond, x);
        let is_near = self.compare("lt", &a, &self.number(0.843_75));
        self.select(&is_near, &near, &beyond)
    }

    fn erf_far(&mut self, a: &Operand) -> Operand {
        let inverse = self.reciprocal(a);
        let z = self.mul(&inverse, &inverse);
        let lower = self.ratio(
            &z,
            &[
                -9.814_329_344_169_145_485_92,
                -8.128_743_550_630_659_342_46e1,
                -1.846_050_929_067_110_359_94e2,
                -1.623_966_694_625_734_703_55e2,
                -6.237_533_245_032_600_603_96e1,
                -1.055_862_622_532_329_098_14e1,
                -6.938_585_727_071_817_643_72e-1,
                -9.864_944_034_847_148_227_05e-3,
            ],
            &[
                -6.042_441_521_485_809_874_38e-2,
                6.570_249_770_319_281_701_35,
                1.086_350_055_417_794_351_34e2,
                4.290_081_400_275_678_333_86e2,
                6.453_872_717_332_678_803_36e2,
                4.345_658_774_752_292_288_21e2,
                1.376_577_541_435_190_426_00e2,
                1.965_127_166_743_925_712_92e1,
                1.0,
            ],
        );
        let upper = self.ratio(
            &z,
            &[
                -4.835_191_916_086_513_970_19e2,
                -1.025_095_131_611_077_249_54e3,
                -6.375_664_433_683_896_277_22e2,
                -1.606_363_848_558_219_160_62e2,
                -1.775_795_491_775_475_198_89e1,
                -7.992_832_376_805_230_065_74e-1,
                -9.864_942_924_700_099_285_97e-3,
            ],
            &[
                -2.244_095_244_658_581_833_62e1,
                4.745_285_412_069_553_672_15e2,
                2.553_050_406_433_164_425_83e3,
                3.199_858_219_508_595_539_08e3,
                1.536_729_586_084_436_959_94e3,
                3.257_925_129_965_739_188_26e2,
                3.033_806_074_348_245_829_24e1,
                1.0,
            ],
        );
        let is_upper = self.compare("ge", a, &self.number(1.0 / 0.35));
        let ratio = self.select(&is_upper, &upper, &lower);
        let square = self.mul(a, a);
        let exponent = self.sub(&ratio, &square);
        let exponent = self.sub(&exponent, &self.number(0.5625));
        let power = self.exp(&exponent);
        let rest = self.mul(&power, &inverse);
        let one = self.in_own_register(1.0);
        self.sub(&one, &rest)
    }

    fn ratio(&mut self, x: &Operand, top: &[f64], bottom: &[f64]) -> Operand {
        let (top, bottom) = (self.polynomial(x, top), self.polynomial(x, bottom));
        self.div(&top, &bottom)
    }

    // ---- powers ----

    /// `x^y` as `exp(y ln|x|)` with the logarithm in two parts, so that powers that are whole
    /// numbers come out exactly; with the cases of IEEE 754.
    pub(crate) fn pow(&mut self, x: &Operand, y: &Operand) -> Operand {
        let y = self.w.in_register(y, ScalarType::F64);
        let (zero, one, infinity) = (self.number(0.0), self.number(1.0), self.number(f64::INFINITY));
        let a = self.abs(x);
        let (high, low) = self.log_parts(&a);
        let product = self.mul(&y, &high);
        let negated = self.neg(&product);
        let lost = self.fma(&y, &high, &negated);
        let lost = self.fma(&y, &low, &lost);
        let finite = self.exp_of_sum(&product, &lost);

        // What has no finite logarithm or exponent.
        let is_rising = self.compare("gt", &y, &zero);
        let of_zero = self.select(&is_rising, &zero, &infinity);
        let of_infinity = self.select(&is_rising, &infinity, &zero);
        let is_zero = self.compare("eq", &a, &zero);
        let power = self.select(&is_zero, &of_zero, &finite);
        let is_infinite = self.compare("eq", &a, &infinity);
        let power = self.select(&is_infinite, &of_infinity, &power);
        let exponent = self.abs(&y);
        let is_endless = self.compare("eq", &exponent, &infinity);
        let is_large = self.compare("gt", &a, &one);
        let endless = self.select(&is_large, &of_infinity, &of_zero);
        let is_one = self.compare("eq", &a, &one);
        let endless = self.select(&is_one, &one, &endless);
        let power = self.select(&is_endless, &endless, &power);

        // The sign of an odd power; no other power of a negative number but a whole one.
        let whole = self.rounded("rzi", &y);
        let is_whole = self.compare("eq", &whole, &y);
        let half = self.mul(&y, &self.number(0.5));
        let half_whole = self.rounded("rzi", &half);
        let is_half = self.compare("neu", &half_whole, &half);
        let signed = self.with_sign_of(&power, x);
        let of_odd = self.select(&is_half, &signed, &power);
        let of_whole = self.select(&is_whole, &of_odd, &power);
        let is_negative = self.compare("lt", x, &zero);
        let nan = self.number(f64::NAN);
        let fractional = self.select(&is_negative, &nan, &power);
        let fractional = self.select(&is_infinite, &power, &fractional);
        let result = self.select(&is_whole, &of_whole, &fractional);
        let is_nan = self.compare("nan", x, &y);
        let result = self.select(&is_nan, &nan, &result);
        // Anything to the power 0 is 1, and 1 to any power is 1.
        let to_zero = self.compare("eq", &y, &zero);
        let result = self.select(&to_zero, &one, &result);
        let of_one = self.compare("eq", x, &one);
        self.select(&of_one, &one, &result)
    }

    /// The logarithm of a positive number as a sum of two, good to about 2^-65.
    fn log_parts(&mut self, x: &Operand) -> (Operand, Operand) {
        let (f, exponent) = self.split(x);
        let two = self.number(2.0);
        // s = f / (2 + f) in two parts.
        let sum = self.add(&f, &two);
        let taken = self.sub(&sum, &two);
        let sum_low = self.sub(&f, &taken);
        let s = self.div(&f, &sum);
        let negated = self.neg(&s);
        let rest = self.fma(&negated, &sum, &f);
        let rest = self.fma(&negated, &sum_low, &rest);
        let s_low = self.div(&rest, &sum);
        // z = s^2, c = s^3.
        let (z, z_low) = self.product((&s, &s_low), (&s, &s_low));
        let (c, c_low) = self.product((&s, &s_low), (&z, &z_low));
        // ln(1 + f) = 2 s + c (2/3 + z (2/5 + …)).
        let series = self.polynomial(
            &z,
            &[2.0 / 19.0, 2.0 / 17.0, 2.0 / 15.0, 2.0 / 13.0, 2.0 / 11.0, 2.0 / 9.0, 2.0 / 7.0, 2.0 / 5.0],
        );
        let bent = self.mul(&series, &z);
        let third = self.number(2.0 / 3.0);
        let p = self.add(&bent, &third);
        let taken = self.sub(&p, &third);
        let p_low = self.sub(&bent, &taken);
        // What 2/3 loses as a number.
        let p_low = self.add(&p_low, &self.number(3.700_743_415_417_188_4e-17));
        let (u, u_low) = self.product((&c, &c_low), (&p, &p_low));
        let (doubled, doubled_low) = (self.add(&s, &s), self.add(&s_low, &s_low));
        let (l, l_low) = self.sum(&doubled, &u);
        let low = self.add(&l_low, &u_low);
        let low = self.add(&low, &doubled_low);
        let scaled = self.mul(&exponent, &self.number(LN2_HIGH));
        let (high, lost) = self.sum(&scaled, &l);
        let low = self.add(&low, &lost);
        let low = self.fma(&exponent, &self.number(LN2_LOW), &low);
        (high, low)
    }

    /// The product of two sums of two numbers, as such a sum.
    fn product(&mut self, (a, a_low): (&Operand, &Operand), (b, b_low): (&Operand, &Operand)) -> (Operand, Operand) {
        let high = self.mul(a, b);
        let negated = self.neg(&high);
        let low = self.fma(a, b, &negated);
        let low = self.fma(a, b_low, &low);
        let low = self.fma(a_low, b, &low);
        (high, low)
    }

    /// A sum, and what its rounding lost.
    fn sum(&mut self, a: &Operand, b: &Operand) -> (Operand, Operand) {
        let sum = self.add(a, b);
        let b_part = self.sub(&sum, a);
        let a_part = self.sub(&sum, &b_part);
        let b_lost = self.sub(b, &b_part);
        let a_lost = self.sub(a, &a_part);
        let lost = self.add(&a_lost, &b_lost);
        (sum, lost)
    }
}
