//! The error function.

use crate::real::Real;
use atoll_ptx::Operand;

impl Real<'_> {
    /// Rational functions near 0 and near 1; elsewhere `1 - exp(-x^2 + …) / x`.
    pub(super) fn erf(&mut self, x: &Operand) -> Operand {
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
}
