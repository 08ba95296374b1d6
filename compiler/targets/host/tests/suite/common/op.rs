//! Runs one instruction on many operands.

use super::{Args, Launch, Random, at_every_level};

/// The type of an operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Int(u32),
    F16,
    F16x2,
    Bf16,
    Bf16x2,
    F32,
    F64,
}

use Kind::*;

impl Kind {
    pub(crate) fn bits(self) -> u32 {
        match self {
            Int(bits) => bits,
            F16 | Bf16 => 16,
            F32 | F16x2 | Bf16x2 => 32,
            F64 => 64,
        }
    }

    /// Edge values: numbers at which instructions change their behaviour.
    pub(crate) fn edges(self) -> Vec<u64> {
        let of16 = |list: &[u16]| list.iter().map(|&v| u64::from(v)).collect::<Vec<_>>();
        match self {
            Int(bits) => {
                let top = 1u64 << (bits - 1);
                let max = if bits == 64 { u64::MAX } else { (1 << bits) - 1 };
                let mut all = vec![
                    0,
                    1,
                    2,
                    3,
                    7,
                    8,
                    15,
                    16,
                    31,
                    32,
                    33,
                    63,
                    64,
                    100,
                    127,
                    128,
                    255,
                    top - 1,
                    top,
                    top + 1,
                    max - 1,
                    max,
                    max / 3,
                ];
                all.extend(
                    [0xffff, 0x1_0000, 0x00ff_ffff, 0x7fff_ffff, 0x8000_0000, 0xffff_ffff, 0x8000_ffff]
                        .map(|v: u64| v & max),
                );
                all
            }
            F16 => of16(&[
                0, 0x8000, 1, 0x8001, 0x3ff, 0x83ff, 0x400, 0x8400, 0x3c00, 0xbc00, 0x3c01, 0x3bff, 0x3800, 0x4100,
                0xc248, 0x7bff, 0xfbff, 0x7c00, 0xfc00, 0x7e00, 0x5555, 0x1234, 0x0801,
            ]),
            // The last one is −126, whose power of two is the smallest normal number.
            Bf16 => of16(&[
                0, 0x8000, 1, 0x8001, 0x7f, 0x80, 0x8080, 0x3f80, 0xbf80, 0x3f81, 0x3f7f, 0x3f00, 0x4020, 0xc049,
                0x7f7f, 0xff7f, 0x7f80, 0xff80, 0x7fc0, 0x4995, 0x2000, 0x2001, 0x5f81, 0xc2fc,
            ]),
            F16x2 => pairs(&F16.edges()),
            Bf16x2 => pairs(&Bf16.edges()),
            F32 => {
                F32_EDGES.iter().map(|f| u64::from(f.to_bits())).chain([1, 0x8000_0001, 0x7f_ffff, 0x80_0001]).collect()
            }
            F64 => F32_EDGES
                .iter()
                .map(|&f| f64::from(f).to_bits())
                .chain([1, 1 << 63 | 1, 0xf_ffff_ffff_ffff, 0x10_0000_0000_0000])
                .chain(F64_EDGES.map(f64::to_bits))
                .collect(),
        }
    }

    /// Random bits; for floats, mostly numbers of moderate size.
    fn random(self, random: &mut Random) -> u64 {
        let any = u64::from(random.next_u32()) << 32 | u64::from(random.next_u32());
        match self {
            F32 if any & 3 != 0 => u64::from((random.unit() * 100.0).to_bits()),
            F64 if any & 3 != 0 => (f64::from(random.unit()) * 100.0 + f64::from(random.unit()) * 1e-9).to_bits(),
            F16 if any & 3 != 0 => (any & 0x83ff) | (0x3000 + (any >> 20 & 0x1c00)),
            Bf16 if any & 3 != 0 => (any & 0x807f) | (0x3e00 + (any >> 20 & 0x180)),
            _ if self.bits() == 64 => any,
            _ => any & ((1 << self.bits()) - 1),
        }
    }

    /// Whether the bits are a NaN of a floating-point kind.
    pub(crate) fn is_nan(self, bits: u64) -> bool {
        match self {
            Int(_) | F16x2 | Bf16x2 => false,
            F16 => bits & 0x7fff > 0x7c00,
            Bf16 => bits & 0x7fff > 0x7f80,
            F32 => f32::from_bits(bits as u32).is_nan(),
            F64 => f64::from_bits(bits).is_nan(),
        }
    }

    /// The numbers in a register: one, or the two of a pair.
    pub(crate) fn parts(self, bits: u64) -> Vec<(Kind, u64)> {
        match self {
            F16x2 => vec![(F16, bits & 0xffff), (F16, bits >> 16)],
            Bf16x2 => vec![(Bf16, bits & 0xffff), (Bf16, bits >> 16)],
            _ => vec![(self, bits)],
        }
    }

    /// The position of a float in the order of its format; neighbours differ by one.
    pub(crate) fn ordered(self, bits: u64) -> i64 {
        let magnitude = (bits & ((1 << (self.bits() - 1)) - 1)) as i64;
        if bits >> (self.bits() - 1) & 1 == 1 { -magnitude } else { magnitude }
    }

    /// The value of a float.
    pub(crate) fn number(self, bits: u64) -> f64 {
        match self {
            Bf16 => f32::from_bits((bits << 16) as u32).into(),
            F32 => f32::from_bits(bits as u32).into(),
            F64 => f64::from_bits(bits),
            _ => f16_number(bits),
        }
    }

    /// Whether two results are equal; all NaNs are equal.
    pub(crate) fn same(self, a: u64, b: u64) -> bool {
        match self {
            F16x2 => F16.same(a & 0xffff, b & 0xffff) && F16.same(a >> 16, b >> 16),
            Bf16x2 => Bf16.same(a & 0xffff, b & 0xffff) && Bf16.same(a >> 16, b >> 16),
            _ => a == b || self.is_nan(a) && self.is_nan(b),
        }
    }
}

const F32_EDGES: [f32; 40] = [
    0.0,
    -0.0,
    1.0,
    -1.0,
    0.5,
    -0.5,
    1.5,
    2.5,
    -2.5,
    3.0,
    -3.7,
    0.1,
    1.000_000_1,
    0.999_999_94,
    1e10,
    -1e10,
    16_777_216.0,
    16_777_215.0,
    2_147_483_600.0,
    2_147_483_648.0,
    -2_147_483_648.0,
    4_294_967_300.0,
    9.3e18,
    -9.3e18,
    1.9e19,
    65504.0,
    65519.996,
    65520.0,
    6.1e-5,
    3e-8,
    -6e-8,
    1e-20,
    f32::MIN_POSITIVE,
    -f32::MIN_POSITIVE,
    f32::MAX,
    f32::MIN,
    f32::INFINITY,
    f32::NEG_INFINITY,
    f32::NAN,
    255.5,
];

const F64_EDGES: [f64; 8] = [
    1.000_000_000_000_000_2,
    1e300,
    -1e300,
    1e-300,
    3.4028235677973366e38,
    1.401298464324817e-45,
    f64::MAX,
    4503599627370497.5,
];

fn f16_number(bits: u64) -> f64 {
    let (exponent, fraction) = ((bits >> 10 & 31) as i32, (bits & 0x3ff) as f64);
    let magnitude = match exponent {
        0 => fraction * 2f64.powi(-24),
        31 if fraction == 0.0 => f64::INFINITY,
        31 => f64::NAN,
        _ => (1024.0 + fraction) * 2f64.powi(exponent - 25),
    };
    if bits >> 15 & 1 == 1 { -magnitude } else { magnitude }
}

fn pairs(list: &[u64]) -> Vec<u64> {
    list.iter().enumerate().map(|(i, low)| list[(i * 7 + 3) % list.len()] << 16 | low).collect()
}

/// Whether the long versions of the tests are enabled.
fn is_full_run() -> bool {
    std::env::var_os("ATOLL_TEST_FULL").is_some_and(|v| v == "1")
}

/// Operand lists: all pairs of edge values of the first two operands, with edge values of the
/// others, followed by random ones.
pub(crate) fn operands(kinds: &[Kind], seed: u64) -> Vec<Vec<u64>> {
    let random_count = if is_full_run() { 8192 } else { 512 };
    let mut random = Random::new(seed);
    let edges: Vec<Vec<u64>> = kinds.iter().map(|k| k.edges()).collect();
    let mut lists = vec![Vec::new(); kinds.len()];
    let second = edges.get(1).map_or(1, Vec::len);
    for i in 0..edges[0].len() {
        for j in 0..second {
            for (k, list) in lists.iter_mut().enumerate() {
                let pick = match k {
                    0 => i,
                    1 => j,
                    _ => random.next_u32() as usize,
                };
                list.push(edges[k][pick % edges[k].len()]);
            }
        }
    }
    let wanted = (lists[0].len() + random_count).next_multiple_of(64);
    for (list, kind) in lists.iter_mut().zip(kinds) {
        while list.len() < wanted {
            list.push(kind.random(&mut random));
        }
    }
    lists
}

/// A kernel that runs `code` on the operands `%a`, `%b`, … of each thread, stored eight bytes
/// apart, and stores `%d`.
pub(crate) fn kernel(code: &str, result: Kind, kinds: &[Kind]) -> String {
    let names = ["a", "b", "c", "e"];
    let mut text = String::from(".visible .entry op(");
    for name in &names[..kinds.len()] {
        text += &format!(".param .u64 p{name}, ");
    }
    text += ".param .u64 pd)\n{\n  .reg .pred %p<4>; .reg .b16 %h<8>; .reg .b32 %r<16>; .reg .b64 %x<16>; \
    .reg .f32 %f<8>; .reg .f64 %g<8>;\n";
    text += &format!("  .reg .b{} %d;\n", result.bits().max(16));
    text += "  mov.u32 %r0, %tid.x; mov.u32 %r1, %ctaid.x; mad.lo.u32 %r0, %r1, 64, %r0; mul.wide.u32 %x0, %r0, 8;\n";
    for (name, kind) in names.iter().zip(kinds) {
        text += &format!(
            "  .reg .b{} %{name}; ld.param.u64 %x1, [p{name}]; add.u64 %x1, %x1, %x0; ld.global.b{} %{name}, [%x1];\n",
            kind.bits().max(16),
            kind.bits()
        );
    }
    text += &format!(
        "  {code}\n  ld.param.u64 %x1, [pd]; add.u64 %x1, %x1, %x0; st.global.b{} [%x1], %d; ret;\n}}\n",
        result.bits()
    );
    text
}

/// Runs an instruction on edge values and random ones at every level, and checks each result.
pub(crate) fn check(code: &str, result: Kind, kinds: &[Kind], expected: impl Fn(&[u64]) -> u64) {
    let lists = operands(kinds, code.len() as u64);
    at_every_level(&kernel(code, result, kinds), "op", [64, 1, 1], |kernel| {
        let mut lists = lists.clone();
        let count = lists[0].len();
        let mut out = vec![0u64; count];
        let mut args = Args::new();
        for list in &mut lists {
            args = args.slice(list);
        }
        kernel.run(Launch::grid(count as u32 / 64, 1, 1), args.slice(&mut out));
        for i in 0..count {
            let given: Vec<u64> = lists.iter().map(|l| l[i]).collect();
            let wanted = expected(&given);
            assert!(result.same(out[i], wanted), "{code} of {given:x?}: {:#x}, not {wanted:#x}", out[i]);
        }
    });
}
