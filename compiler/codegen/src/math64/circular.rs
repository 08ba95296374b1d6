//! Sine, cosine and their inverses.

use crate::real::Real;
use atoll_ptx::{Operand, ScalarType};

impl Real<'_> {
    /// Sine or, with `quarter = 1`, cosine: reduced to [-pi/4, pi/4] in three steps; accurate up to
    /// about 1e9.
    pub(super) fn sine(&mut self, x: &Operand, quarter: i64) -> Operand {
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
    pub(super) fn atan(&mut self, x: &Operand) -> Operand {
        let a = self.abs(x);
        let (mut top, mut bottom) = (a.clone(), self.in_own_register(1.0));
        let (mut high, mut low) = (self.in_own_register(0.0), self.in_own_register(0.0));
        // From each limit on: numerator and denominator as `p * a + q`, and the angle as a sum of
        // two numbers.
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
    pub(super) fn asin(&mut self, x: &Operand) -> Operand {
        let one = self.in_own_register(1.0);
        let (below, above) = (self.sub(&one, x), self.add(&one, x));
        let product = self.mul(&below, &above);
        let root = self.sqrt(&product);
        let ratio = self.div(x, &root);
        self.atan(&ratio)
    }

    /// `2 * atan(sqrt((1 - x) / (1 + x)))`
    pub(super) fn acos(&mut self, x: &Operand) -> Operand {
        let one = self.in_own_register(1.0);
        let (below, above) = (self.sub(&one, x), self.add(&one, x));
        let ratio = self.div(&below, &above);
        let root = self.sqrt(&ratio);
        let half = self.atan(&root);
        self.add(&half, &half)
    }
}
