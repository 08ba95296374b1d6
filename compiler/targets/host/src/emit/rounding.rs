//! Correctly rounded operations in the four rounding modes of PTX.
//!
//! LLVM's own instructions round to nearest. AVX-512 instructions take a directed mode as an
//! operand. On AVX2 inline assembly sets MXCSR, performs the operation and restores MXCSR; no
//! instruction in between can fault or leave the assembly.

use super::*;
use crate::CpuLevel;

/// A rounding mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rounding {
    Nearest,
    Zero,
    Down,
    Up,
}

impl Rounding {
    /// The rounding mode of an instruction; to nearest by default.
    pub(super) fn of(inst: &Inst) -> Rounding {
        match () {
            () if inst.has("rz") => Rounding::Zero,
            () if inst.has("rm") => Rounding::Down,
            () if inst.has("rp") => Rounding::Up,
            () => Rounding::Nearest,
        }
    }

    /// The mode's encoding in MXCSR and in instruction operands.
    pub(super) fn number(self) -> u32 {
        match self {
            Rounding::Nearest => 0,
            Rounding::Down => 1,
            Rounding::Up => 2,
            Rounding::Zero => 3,
        }
    }
}

/// An operation that is exact except for one rounding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rounded {
    Add,
    Sub,
    Mul,
    Div,
    Sqrt,
    /// `a · b + c`
    Fma,
    /// f64 to f32.
    Narrow,
}

impl Rounded {
    fn mnemonic(self) -> &'static str {
        match self {
            Rounded::Add => "add",
            Rounded::Sub => "sub",
            Rounded::Mul => "mul",
            Rounded::Div => "div",
            Rounded::Sqrt => "sqrt",
            Rounded::Fma => "vfmadd",
            Rounded::Narrow => "cvtpd2ps",
        }
    }
}

/// Number of result registers per inline assembly; with three operands each, twelve of AVX2's
/// sixteen registers are used.
const PIECES_PER_ASSEMBLY: usize = 4;
/// MXCSR with all exceptions masked, subnormal numbers kept, rounding to nearest.
const MXCSR_DEFAULT: i128 = 0x1F80;
/// Bit position of the rounding mode in MXCSR.
const MXCSR_ROUNDING_SHIFT: u32 = 13;
/// Keeps exceptions masked; required in the rounding operand of AVX-512's intrinsics.
const NO_EXCEPTIONS: u32 = 8;

impl Emitter<'_> {
    /// An operation in a rounding mode.
    pub(super) fn rounded(&mut self, op: Rounded, rounding: Rounding, arguments: &[&Val]) -> Val {
        let (ty, w) = (arguments[0].ty, &mut self.w);
        if rounding != Rounding::Nearest {
            return self.directed(op, rounding, arguments);
        }
        match op {
            Rounded::Add => w.bin("fadd", arguments[0], arguments[1]),
            Rounded::Sub => w.bin("fsub", arguments[0], arguments[1]),
            Rounded::Mul => w.bin("fmul", arguments[0], arguments[1]),
            Rounded::Div => w.bin("fdiv", arguments[0], arguments[1]),
            Rounded::Sqrt => w.call("llvm.sqrt", ty, arguments),
            Rounded::Fma => w.call("llvm.fma", ty, arguments),
            Rounded::Narrow => w.cast("fptrunc", arguments[0], Elem::F32),
        }
    }

    fn directed(&mut self, op: Rounded, rounding: Rounding, arguments: &[&Val]) -> Val {
        let lanes = arguments[0].ty.lanes;
        let width = self.level.vector_bits() / arguments[0].ty.elem.bits();
        let pieces: Vec<Vec<Val>> = arguments.iter().map(|a| self.cut(a, width)).collect();
        let rows: Vec<Vec<Val>> = (0..pieces[0].len()).map(|i| pieces.iter().map(|p| p[i].clone()).collect()).collect();
        let results = match self.level {
            CpuLevel::V4 => rows.iter().map(|row| self.embedded(op, rounding, row)).collect(),
            CpuLevel::V3 => {
                rows.chunks(PIECES_PER_ASSEMBLY).flat_map(|group| self.assembly(op, rounding, group)).collect()
            }
        };
        let whole = self.join(results);
        if lanes == 1 { self.w.extract(&whole, &constant(I32, 0)) } else { whole }
    }

    /// Splits a vector into pieces of `width` lanes; a scalar becomes the first lane of one.
    fn cut(&mut self, value: &Val, width: u32) -> Vec<Val> {
        if value.ty.lanes == 1 {
            return vec![self.w.splat(value, width)];
        }
        (0..value.ty.lanes / width)
            .map(|i| self.w.shuffle(value, &(i * width..(i + 1) * width).collect::<Vec<_>>()))
            .collect()
    }

    /// Concatenates vectors of equal length; their number is a power of two.
    pub(super) fn join(&mut self, mut parts: Vec<Val>) -> Val {
        while parts.len() > 1 {
            parts = parts
                .chunks(2)
                .map(|p| self.w.shuffle2(&p[0], &p[1], &(0..2 * p[0].ty.lanes).collect::<Vec<_>>()))
                .collect();
        }
        parts.remove(0)
    }

    /// One AVX-512 instruction with its rounding mode.
    fn embedded(&mut self, op: Rounded, rounding: Rounding, arguments: &[Val]) -> Val {
        let mode = constant(I32, (NO_EXCEPTIONS | rounding.number()).into());
        let ty = arguments[0].ty;
        if op == Rounded::Narrow {
            let (result, all) = (ty.with(Elem::F32), constant(Ty::scalar(Elem::I8), -1));
            return self.w.call_named(
                "llvm.x86.avx512.mask.cvtpd2ps.512",
                result,
                &[&arguments[0], &constant(result, 0), &all, &mode],
            );
        }
        let name = format!("llvm.x86.avx512.{}.{}.512", op.mnemonic(), packed(ty));
        let arguments: Vec<&Val> = arguments.iter().chain([&mode]).collect();
        self.w.call_named(&name, ty, &arguments)
    }

    /// Several AVX instructions between setting and restoring MXCSR.
    fn assembly(&mut self, op: Rounded, rounding: Rounding, rows: &[Vec<Val>]) -> Vec<Val> {
        let ty = rows[0][0].ty;
        let result = if op == Rounded::Narrow { ty.with(Elem::F32) } else { ty };
        let (found, wanted) = (self.w.alloca(I32), self.w.alloca(I32));
        self.w.store(&constant(I32, MXCSR_DEFAULT | i128::from(rounding.number()) << MXCSR_ROUNDING_SHIFT), &wanted);
        let (n, count) = (rows.len(), rows[0].len());
        // Operands: n results, the two words, then each row's arguments; the addend of an fma is
        // tied to its result.
        let own = if op == Rounded::Fma { count - 1 } else { count };
        let mut code = format!("stmxcsr (${n})\\0Aldmxcsr (${})\\0A", n + 1);
        for row in 0..n {
            let at = |i: usize| n + 2 + row * own + i;
            code += &match op {
                Rounded::Fma => format!("vfmadd231{} ${}, ${}, ${row}\\0A", packed(ty), at(1), at(0)),
                Rounded::Sqrt => format!("vsqrt{} ${}, ${row}\\0A", packed(ty), at(0)),
                Rounded::Narrow => format!("vcvtpd2ps ${}, ${row}\\0A", at(0)),
                _ => format!("v{}{} ${}, ${}, ${row}\\0A", op.mnemonic(), packed(ty), at(1), at(0)),
            };
        }
        code += &format!("ldmxcsr (${n})");
        let mut constraints = vec!["=&x".to_owned(); n];
        constraints.extend(["r".into(), "r".into()]);
        constraints.extend(std::iter::repeat_n("x".to_owned(), n * own));
        let mut operands = vec![found.to_string(), wanted.to_string()];
        operands.extend(rows.iter().flat_map(|row| &row[..own]).map(Val::to_string));
        if op == Rounded::Fma {
            constraints.extend((0..n).map(|row| row.to_string()));
            operands.extend(rows.iter().map(|row| row[own].to_string()));
        }
        constraints.push("~{memory}".into());
        self.assembly_results(
            result,
            n,
            &format!("asm sideeffect \"{code}\", \"{}\"({})", constraints.join(","), operands.join(", ")),
        )
    }

    /// Calls inline assembly with `count` results of one type.
    fn assembly_results(&mut self, result: Ty, count: usize, call: &str) -> Vec<Val> {
        if count == 1 {
            return vec![self.w.value(result, format_args!("call {result} {call}"))];
        }
        let all = format!("{{ {} }}", vec![result.to_string(); count].join(", "));
        let results = self.w.value(result, format_args!("call {all} {call}"));
        (0..count).map(|i| self.w.value(result, format_args!("extractvalue {all} {}, {i}", results.text))).collect()
    }

    /// The exact error of the rounded sum `a + b`, unless it overflowed (then NaN).
    pub(super) fn sum_error(&mut self, a: &Val, b: &Val, sum: &Val) -> Val {
        let b_part = self.w.bin("fsub", sum, a);
        let a_part = self.w.bin("fsub", sum, &b_part);
        let a_rest = self.w.bin("fsub", a, &a_part);
        let b_rest = self.w.bin("fsub", b, &b_part);
        self.w.bin("fadd", &a_rest, &b_rest)
    }

    /// Converts a number that was rounded to nearest to the number rounded to odd, given the sign
    /// of the rounding error. Rounding to odd truncates and sets the last bit if the result is
    /// inexact. Rounding it later to fewer bits gives the result of a single rounding.
    pub(super) fn make_odd(&mut self, nearest: &Val, error: &Val) -> Val {
        let int = Elem::int(nearest.ty.elem.bits());
        let (bits, error_bits) = (self.w.cast("bitcast", nearest, int), self.w.cast("bitcast", error, int));
        let differ = self.w.bin("xor", &bits, &error_bits);
        // 1 if rounding went away from zero.
        let step = self.w.bin_const("lshr", &differ, i128::from(int.bits()) - 1);
        let cut = self.w.bin("sub", &bits, &step);
        let odd = self.w.bin_const("or", &cut, 1);
        let inexact = self.w.compare("fcmp one", error, &constant(error.ty, 0));
        let chosen = self.w.select(&inexact, &odd, &bits);
        self.w.cast("bitcast", &chosen, nearest.ty.elem)
    }

    /// A double as a float rounded to odd.
    pub(super) fn narrow_to_odd(&mut self, value: &Val) -> Val {
        let single = self.w.cast("fptrunc", value, Elem::F32);
        let back = self.w.cast("fpext", &single, Elem::F64);
        // Too large for a float: an infinity, to which a narrower type rounds as well.
        let lost = self.w.bin("fsub", value, &back);
        let sign = self.w.call("llvm.copysign", lost.ty, &[&constant(lost.ty, 1f64.to_bits().into()), &lost]);
        let is_exact = self.w.compare("fcmp ueq", value, &back);
        let infinite = self.w.call("llvm.fabs", lost.ty, &[&lost]);
        let infinite = self.w.compare("fcmp oeq", &infinite, &constant(lost.ty, f64::INFINITY.to_bits().into()));
        let keep = self.w.bin("or", &is_exact, &infinite);
        let sign = self.w.select(&keep, &constant(lost.ty, 0), &sign);
        let sign = self.w.cast("fptrunc", &sign, Elem::F32);
        self.make_odd(&single, &sign)
    }
}

/// The suffix of an x86 instruction on packed numbers.
fn packed(ty: Ty) -> &'static str {
    if ty.elem == Elem::F64 { "pd" } else { "ps" }
}
