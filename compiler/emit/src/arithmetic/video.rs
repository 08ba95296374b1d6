//! Video instructions: scalar ones on selected bytes, halves and words of their operands, and SIMD
//! ones on two or four numbers per register.
//!
//! A scalar instruction computes in 33 and 34 bits, as the ISA specifies, held in 64 bits here.
//! Since sm_50 `ptxas` replaces video instructions by sequences of plain ones; its sequences for
//! secondary minima and maxima and for `vmad` of whole unsigned words differ from the ISA if a
//! result has more than 32 bits. This lowering follows the ISA.

use super::*;
use atoll_lower::program::{Opnd, is_signed};
use atoll_ptx::ScalarType;

/// Width of a scalar instruction's intermediate result before and after saturation.
const WIDE_BITS: u32 = 34;
const RESULT_BITS: u32 = 33;

/// A byte, half or word of a register.
#[derive(Clone, Copy)]
struct Field {
    at: u32,
    bits: u32,
}

impl Field {
    const WORD: Field = Field { at: 0, bits: 32 };

    /// `b0` to `b3`, `h0`, `h1`.
    fn of_selector(selector: &str) -> Option<Field> {
        Some(match selector {
            "b0" | "b1" | "b2" | "b3" => Field { at: 8 * selector[1..].parse::<u32>().ok()?, bits: 8 },
            "h0" | "h1" => Field { at: 16 * selector[1..].parse::<u32>().ok()?, bits: 16 },
            _ => return None,
        })
    }

    /// The smallest and the largest number of its width.
    fn range(self, signed: bool) -> (i128, i128) {
        if signed { (-(1 << (self.bits - 1)), (1 << (self.bits - 1)) - 1) } else { (0, (1 << self.bits) - 1) }
    }
}

impl<E: Emit> Arithmetic<'_, E> {
    /// Lowers a video instruction.
    pub fn video(&mut self, inst: &Inst) -> Result<(), LowerError> {
        match inst.form.opcode.as_str() {
            "vmad" => self.video_product(inst),
            "vadd" | "vsub" | "vabsdiff" | "vmin" | "vmax" | "vshl" | "vshr" | "vset" => self.video_scalar(inst),
            opcode if opcode.ends_with('2') => self.video_lanes(inst, 16),
            _ => self.video_lanes(inst, 8),
        }
    }

    /// The types of the operands in order; the result of `vset` has none and is unsigned.
    fn video_types(&self, inst: &Inst) -> Result<[ScalarType; 3], LowerError> {
        let types: Vec<ScalarType> = inst.form.modifiers.iter().filter_map(|m| ScalarType::from_name(m)).collect();
        let of_two_signs = types.iter().all(|ty| matches!(ty, ScalarType::U32 | ScalarType::S32));
        match (inst.form.opcode.starts_with("vset"), types.as_slice()) {
            (true, &[a, b]) if of_two_signs => Ok([ScalarType::U32, a, b]),
            (false, &[d, a, b]) if of_two_signs => Ok([d, a, b]),
            _ => Err(self.malformed(inst, "needs a type of .u32 or .s32 for each operand")),
        }
    }

    /// The register of an operand, and its selector.
    fn selected<'i>(&self, inst: &'i Inst, index: usize) -> Result<(&'i Opnd, Option<&'i str>), LowerError> {
        Ok(match self.op(inst, index)? {
            Opnd::Part(whole, selector) => (whole, Some(selector)),
            plain => (plain, None),
        })
    }

    fn field_of(&self, inst: &Inst, selector: Option<&str>) -> Result<Field, LowerError> {
        match selector {
            None => Ok(Field::WORD),
            Some(selector) => {
                Field::of_selector(selector).ok_or_else(|| self.malformed(inst, &format!("selects .{selector}")))
            }
        }
    }

    /// A source operand extended to 64 bits from the selected part, according to its type.
    fn video_source(&mut self, inst: &Inst, index: usize, ty: ScalarType, lanes: u32) -> Result<Val, LowerError> {
        let (operand, selector) = self.selected(inst, index)?;
        let Field { at, bits } = self.field_of(inst, selector)?;
        let word = self.get(operand, Elem::I32, lanes);
        let value = self.sub_register(&word, at, bits, is_signed(ty));
        Ok(self.w().resize(&value, Elem::I64, is_signed(ty)))
    }

    /// `vadd.dtype.atype.btype{.sat}{.op2} d, a, b{, c}`; with `d.h1` the result is merged into c.
    fn video_scalar(&mut self, inst: &Inst) -> Result<(), LowerError> {
        let [d_ty, a_ty, b_ty] = self.video_types(inst)?;
        let lanes = self.lanes_of(inst);
        let (a, b) = (self.video_source(inst, 1, a_ty, lanes)?, self.video_source(inst, 2, b_ty, lanes)?);
        let (destination, selector) = self.selected(inst, 0)?;
        let place = self.field_of(inst, selector)?;
        let second = ["add", "min", "max"].into_iter().find(|op| inst.has(op));
        let mut value = self.video_primary(inst, &a, &b, b_ty)?;
        if inst.has("sat") {
            let (low, high) = place.range(is_signed(d_ty));
            value = self.clamped(&value, low, high);
        } else {
            value = self.wrapped(&value, RESULT_BITS);
        }
        let merges = selector.is_some();
        if second.is_some() || merges {
            let c = self.get(self.op(inst, 3)?, Elem::I32, lanes);
            let c = self.w().resize(&c, Elem::I64, is_signed(d_ty));
            value = match second {
                Some(_) if merges => return Err(self.malformed(inst, "merges its result and has a second operation")),
                Some("add") => self.w().bin("add", &value, &c),
                Some("min") => self.w().call("llvm.smin", c.ty, &[&value, &c]),
                Some(_) => self.w().call("llvm.smax", c.ty, &[&value, &c]),
                None => self.merged(&value, &c, place),
            };
        }
        let value = self.w().resize(&value, Elem::I32, false);
        self.set_operand(destination, &value, false);
        Ok(())
    }

    fn video_primary(&mut self, inst: &Inst, a: &Val, b: &Val, b_ty: ScalarType) -> Result<Val, LowerError> {
        Ok(match inst.form.opcode.as_str() {
            "vset" => {
                let holds = self.video_comparison(inst, a, b)?;
                self.w().resize(&holds, Elem::I64, false)
            }
            "vshl" | "vshr" => {
                if b_ty != ScalarType::U32 {
                    return Err(self.malformed(inst, "shifts by a .u32"));
                }
                let amount = match (inst.has("clamp"), inst.has("wrap")) {
                    (true, false) => self.w().call("llvm.umin", b.ty, &[b, &constant(b.ty, 32)]),
                    (false, true) => self.w().bin_const("and", b, 31),
                    _ => return Err(self.malformed(inst, "needs .clamp or .wrap")),
                };
                let op = if inst.form.opcode == "vshl" { "shl" } else { "ashr" };
                let moved = self.w().bin(op, a, &amount);
                self.wrapped(&moved, WIDE_BITS)
            }
            opcode => self.video_arithmetic(&opcode[1..], a, b),
        })
    }

    /// An operation shared by scalar and SIMD instructions.
    fn video_arithmetic(&mut self, operation: &str, a: &Val, b: &Val) -> Val {
        match operation {
            "add" => self.w().bin("add", a, b),
            "sub" => self.w().bin("sub", a, b),
            "min" => self.w().call("llvm.smin", a.ty, &[a, b]),
            "max" => self.w().call("llvm.smax", a.ty, &[a, b]),
            "avrg" => {
                let sum = self.w().bin("add", a, b);
                let not_negative = self.w().compare("icmp sge", &sum, &constant(sum.ty, 0));
                let up = self.w().resize(&not_negative, sum.ty.elem, false);
                let sum = self.w().bin("add", &sum, &up);
                self.w().bin_const("ashr", &sum, 1)
            }
            _ => {
                let distance = self.w().bin("sub", a, b);
                self.w().call("llvm.abs", a.ty, &[&distance, &constant(I1, 0)])
            }
        }
    }

    fn video_comparison(&mut self, inst: &Inst, a: &Val, b: &Val) -> Result<Val, LowerError> {
        let found = [("eq", "eq"), ("ne", "ne"), ("lt", "slt"), ("le", "sle"), ("gt", "sgt"), ("ge", "sge")]
            .into_iter()
            .find(|(word, _)| inst.has(word));
        let (_, predicate) = found.ok_or_else(|| self.malformed(inst, "needs a comparison"))?;
        Ok(self.w().compare(&format!("icmp {predicate}"), a, b))
    }

    /// `vmad.dtype.atype.btype{.sat}{.po}{.shr7,.shr15} d, a, b, c`; either the product or c may be
    /// negated.
    fn video_product(&mut self, inst: &Inst) -> Result<(), LowerError> {
        let [_, a_ty, b_ty] = self.video_types(inst)?;
        let lanes = self.lanes_of(inst);
        let mut is_negated = [false; 3];
        let mut plain = inst.clone();
        for (operand, negated) in plain.ops.iter_mut().skip(1).zip(&mut is_negated) {
            if let Opnd::Negated(inner) = operand {
                (*operand, *negated) = ((**inner).clone(), true);
            }
        }
        let negates_product = is_negated[0] != is_negated[1];
        if inst.has("po") && is_negated.contains(&true) || negates_product && is_negated[2] {
            return Err(self.malformed(inst, "negates more than the product or the summand, or with .po"));
        }
        let signed = is_signed(a_ty) || is_signed(b_ty) || negates_product || is_negated[2];
        let [a, b] =
            [(1, a_ty), (2, b_ty)].map(|(index, ty)| self.video_source(&plain, index, ty, lanes).map(|v| (v, ty)));
        let wide = |e: &mut Self, (value, ty): (Val, ScalarType)| e.w().resize(&value, Elem::I128, is_signed(ty));
        let (a, b) = (wide(self, a?), wide(self, b?));
        let c = self.get(self.op(&plain, 3)?, Elem::I32, lanes);
        let c = self.w().resize(&c, Elem::I128, signed);
        let product = self.w().bin("mul", &a, &b);
        let mut sum = match (negates_product, is_negated[2]) {
            (true, _) => self.w().bin("sub", &c, &product),
            (false, true) => self.w().bin("sub", &product, &c),
            (false, false) => self.w().bin("add", &product, &c),
        };
        if inst.has("po") {
            sum = self.w().bin_const("add", &sum, 1);
        }
        let scale = if inst.has("shr7") { 7 } else { 15 * i128::from(inst.has("shr15")) };
        let scaled = self.w().bin_const("ashr", &sum, scale);
        let mut value = self.w().resize(&scaled, Elem::I64, false);
        if inst.has("sat") {
            value = match signed {
                true => self.clamped(&value, i32::MIN.into(), i32::MAX.into()),
                false => self.w().call("llvm.umin", value.ty, &[&value, &constant(value.ty, u32::MAX.into())]),
            };
        }
        let value = self.w().resize(&value, Elem::I32, false);
        self.set_operand(&inst.ops[0], &value, false);
        Ok(())
    }

    /// `vadd4.dtype.atype.btype{.sat} d{.mask}, a{.sel}, b{.sel}, c`: operates on numbers of `bits`
    /// bits; those outside of the mask come from c. With `.add` the sum of those in the mask is
    /// added to c.
    fn video_lanes(&mut self, inst: &Inst, bits: u32) -> Result<(), LowerError> {
        let [d_ty, a_ty, b_ty] = self.video_types(inst)?;
        let (lanes, count) = (self.lanes_of(inst), 32 / bits);
        let (operand_a, a_selector) = self.selected(inst, 1)?;
        let (operand_b, b_selector) = self.selected(inst, 2)?;
        let (destination, mask) = self.selected(inst, 0)?;
        let [from_a, from_b] =
            [(a_selector, 0), (b_selector, count)].map(|(selector, first)| chosen(selector, first, count));
        let mask = places(mask, count);
        let (Some(from_a), Some(from_b), Some(mask)) = (from_a, from_b, mask) else {
            return Err(self.malformed(inst, "selects what is not there"));
        };
        let words = [operand_a, operand_b].map(|operand| self.get(operand, Elem::I32, lanes));
        let c = self.get(self.op(inst, 3)?, Elem::I32, lanes);
        let number = |e: &mut Self, place: u32, ty: ScalarType| {
            e.sub_register(&words[(place / count) as usize], place % count * bits, bits, is_signed(ty))
        };
        let adds = inst.has("add");
        if adds && inst.has("sat") {
            return Err(self.malformed(inst, "it has both .sat and .add"));
        }
        let mut result = c;
        for lane in (0..count).filter(|lane| mask[*lane as usize]) {
            let (x, y) = (number(self, from_a[lane as usize], a_ty), number(self, from_b[lane as usize], b_ty));
            let mut value = match inst.form.opcode.trim_end_matches(['2', '4']) {
                "vset" => {
                    let holds = self.video_comparison(inst, &x, &y)?;
                    self.w().resize(&holds, Elem::I32, false)
                }
                operation => self.video_arithmetic(&operation[1..], &x, &y),
            };
            let place = Field { at: lane * bits, bits };
            if inst.has("sat") {
                let (low, high) = place.range(is_signed(d_ty));
                value = self.clamped(&value, low, high);
            }
            result = if adds { self.w().bin("add", &result, &value) } else { self.merged(&value, &result, place) };
        }
        self.set_operand(destination, &result, false);
        Ok(())
    }

    /// Inserts the low bits of a value into a field of another value.
    fn merged(&mut self, value: &Val, into: &Val, Field { at, bits }: Field) -> Val {
        let ones = (1i128 << bits) - 1;
        let cut = self.w().bin_const("and", value, ones);
        let moved = self.w().bin_const("shl", &cut, at.into());
        let rest = self.w().bin_const("and", into, !(ones << at));
        self.w().bin("or", &rest, &moved)
    }

    fn clamped(&mut self, value: &Val, low: i128, high: i128) -> Val {
        let value = self.w().call("llvm.smax", value.ty, &[value, &constant(value.ty, low)]);
        self.w().call("llvm.smin", value.ty, &[&value, &constant(value.ty, high)])
    }

    /// The low bits of a 64-bit value, sign-extended.
    fn wrapped(&mut self, value: &Val, bits: u32) -> Val {
        let top = self.w().bin_const("shl", value, i128::from(64 - bits));
        self.w().bin_const("ashr", &top, i128::from(64 - bits))
    }
}

/// The numbers that a selector such as `h10` or `b7654` chooses from a followed by b, lowest first.
/// Without a selector, `count` numbers from `first` on.
fn chosen(selector: Option<&str>, first: u32, count: u32) -> Option<Vec<u32>> {
    let Some(selector) = selector else { return Some((first..first + count).collect()) };
    let places = digits(selector, count)?;
    (places.len() == count as usize && places.iter().all(|place| *place < 2 * count))
        .then(|| places.into_iter().rev().collect())
}

/// The numbers in a mask such as `h1` or `b310`; all if there is no mask.
fn places(mask: Option<&str>, count: u32) -> Option<Vec<bool>> {
    let Some(mask) = mask else { return Some(vec![true; count as usize]) };
    let named = digits(mask, count)?;
    let falls = named.windows(2).all(|pair| pair[0] > pair[1]);
    (!named.is_empty() && falls && named[0] < count).then(|| (0..count).map(|lane| named.contains(&lane)).collect())
}

/// The digits behind the letter for numbers of this width.
fn digits(selector: &str, count: u32) -> Option<Vec<u32>> {
    let letter = if count == 2 { 'h' } else { 'b' };
    selector.strip_prefix(letter)?.chars().map(|digit| digit.to_digit(10)).collect()
}
