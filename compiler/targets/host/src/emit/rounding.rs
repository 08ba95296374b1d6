//! Correctly rounded operations in the rounding modes other than to nearest.
//!
//! LLVM's own instructions round to nearest. AVX-512 instructions take a directed mode as an
//! operand. On AVX2 inline assembly sets MXCSR, performs the operation and restores MXCSR; no
//! instruction in between can fault or leave the assembly.

use super::*;
use crate::CpuLevel;

/// The mode's encoding in MXCSR and in instruction operands.
fn number(rounding: Rounding) -> u32 {
    match rounding {
        Rounding::Nearest => 0,
        Rounding::Down => 1,
        Rounding::Up => 2,
        Rounding::Zero => 3,
    }
}

fn mnemonic(op: Rounded) -> &'static str {
    match op {
        Rounded::Add => "add",
        Rounded::Sub => "sub",
        Rounded::Mul => "mul",
        Rounded::Div => "div",
        Rounded::Sqrt => "sqrt",
        Rounded::Fma => "vfmadd",
        Rounded::Narrow => "cvtpd2ps",
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
    /// An operation in a rounding mode other than to nearest.
    pub(super) fn rounded_towards(&mut self, op: Rounded, rounding: Rounding, arguments: &[&Val]) -> Val {
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
        let mode = constant(I32, (NO_EXCEPTIONS | number(rounding)).into());
        let ty = arguments[0].ty;
        if op == Rounded::Narrow {
            let (result, all) = (ty.with(Elem::F32), constant(Ty::scalar(Elem::I8), -1));
            return self.w.call_named(
                "llvm.x86.avx512.mask.cvtpd2ps.512",
                result,
                &[&arguments[0], &constant(result, 0), &all, &mode],
            );
        }
        let name = format!("llvm.x86.avx512.{}.{}.512", mnemonic(op), packed(ty));
        let arguments: Vec<&Val> = arguments.iter().chain([&mode]).collect();
        self.w.call_named(&name, ty, &arguments)
    }

    /// Several AVX instructions between setting and restoring MXCSR.
    fn assembly(&mut self, op: Rounded, rounding: Rounding, rows: &[Vec<Val>]) -> Vec<Val> {
        let ty = rows[0][0].ty;
        let result = if op == Rounded::Narrow { ty.with(Elem::F32) } else { ty };
        let (found, wanted) = (self.w.alloca(I32), self.w.alloca(I32));
        self.w.store(&constant(I32, MXCSR_DEFAULT | i128::from(number(rounding)) << MXCSR_ROUNDING_SHIFT), &wanted);
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
                _ => format!("v{}{} ${}, ${}, ${row}\\0A", mnemonic(op), packed(ty), at(1), at(0)),
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

    /// Converts a float to f16 in a directed mode, with the instruction of F16C.
    pub(super) fn half_towards(&mut self, value: &Val, rounding: Rounding) -> Val {
        const WIDTH: u32 = 8;
        let lanes = value.ty.lanes;
        let mut parts = Vec::new();
        for index in 0..lanes.div_ceil(WIDTH) {
            let part = match lanes {
                1 => self.w.splat(value, WIDTH),
                _ => self.w.shuffle(value, &(index * WIDTH..(index + 1) * WIDTH).collect::<Vec<_>>()),
            };
            let mode = constant(I32, number(rounding).into());
            parts.push(self.w.call_named("llvm.x86.vcvtps2ph.256", part.ty.with(Elem::I16), &[&part, &mode]));
        }
        let whole = self.join(parts);
        if lanes == 1 { self.w.extract(&whole, &constant(I32, 0)) } else { whole }
    }
}

/// The suffix of an x86 instruction on packed numbers.
fn packed(ty: Ty) -> &'static str {
    if ty.elem == Elem::F64 { "pd" } else { "ps" }
}
