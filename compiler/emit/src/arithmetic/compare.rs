//! Comparisons and selections: `setp`, `set`, `selp`, `slct`.

use super::*;
use crate::writer::float;
use atoll_lower::program::{Opnd, elem_of, is_signed};
use atoll_ptx::{ScalarType, types::TypeClass};

impl<E: Emit> Arithmetic<'_, E> {
    /// `setp` and `set`, with the optional combination with a predicate.
    pub fn compare(&mut self, inst: &Inst) -> Result<(), LowerError> {
        let types: Vec<ScalarType> = inst.form.modifiers.iter().filter_map(|m| ScalarType::from_name(m)).collect();
        let Some(&ty) = types.last() else { return Err(self.malformed(inst, "has no type")) };
        let words: Vec<&str> = inst.form.modifiers.iter().map(|m| m.as_str()).collect();
        // The comparison precedes the Boolean operator; their names do not overlap.
        let Some(op) = words.iter().find_map(|w| comparison(w, ty)) else {
            return Err(self.unsupported(inst, "this comparison"));
        };
        let lanes = if inst.sources().iter().all(|o| self.is_uniform(o)) { 1 } else { self.lanes_of(inst) };
        let (a, b) = (self.comparands(inst, 1, ty, lanes)?, self.comparands(inst, 2, ty, lanes)?);
        let holds: Vec<Val> = a.iter().zip(&b).map(|(a, b)| self.w().compare(op, a, b)).collect();
        let combine = words.iter().copied().find(|w| matches!(*w, "and" | "or" | "xor"));
        let other = match combine {
            Some(_) => Some(self.get(self.op(inst, 3)?, Elem::I1, lanes)),
            None => None,
        };
        let joined = |e: &mut Self, value: &Val| match (combine, &other) {
            (Some(op), Some(other)) => e.w().bin(op, value, other),
            _ => value.clone(),
        };
        let first = joined(self, &holds[0]);
        if inst.form.opcode == "set" {
            let second = holds.get(1).map(|h| joined(self, h));
            return self.set_result(inst, &first, second.as_ref(), types[0]);
        }
        match (&inst.ops[0], holds.get(1)) {
            // For a pair of halves: the result of the lower half, and that of the upper half.
            (Opnd::Pair(p, q), Some(high)) => {
                let second = joined(self, high);
                self.set_operand(p, &first, false);
                self.set_operand(q, &second, false);
            }
            (Opnd::Pair(p, q), None) => {
                let fails = self.w().bin_const("xor", &holds[0], 1);
                let second = joined(self, &fails);
                self.set_operand(p, &first, false);
                self.set_operand(q, &second, false);
            }
            (_, Some(_)) => return Err(self.malformed(inst, "compares two pairs and needs two predicates")),
            (single, None) => self.set_operand(single, &first, false),
        }
        Ok(())
    }

    /// The values to compare: two for a pair of halves, one otherwise.
    fn comparands(&mut self, inst: &Inst, index: usize, ty: ScalarType, lanes: u32) -> Result<Vec<Val>, LowerError> {
        let operand = self.op(inst, index)?.clone();
        let ftz = inst.has("ftz");
        Ok(match ty {
            ScalarType::F16 | ScalarType::F16x2 | ScalarType::Bf16 | ScalarType::Bf16x2 => {
                self.halves(&operand, ty, lanes, ftz)
            }
            ScalarType::F32 => vec![self.float_operand(&operand, ty, lanes, ftz)],
            _ => vec![self.get(&operand, elem_of(ty), lanes)],
        })
    }

    /// The result of `set`: all ones, or 1.0, if the comparison holds.
    fn set_result(&mut self, inst: &Inst, holds: &Val, upper: Option<&Val>, ty: ScalarType) -> Result<(), LowerError> {
        let half = |ty| if matches!(ty, ScalarType::F16 | ScalarType::F16x2) { 0x3c00 } else { 0x3f80 };
        let (elem, yes) = match (ty, ty.class(), upper) {
            (ScalarType::F32, ..) => (Elem::F32, None),
            (ScalarType::F16 | ScalarType::Bf16, ..) | (ScalarType::F16x2 | ScalarType::Bf16x2, _, Some(_)) => {
                (Elem::I16, Some(half(ty)))
            }
            (_, TypeClass::Unsigned | TypeClass::Signed, Some(_)) => (Elem::I16, Some(-1)),
            (_, TypeClass::Unsigned | TypeClass::Signed, None) => (Elem::int(ty.bits()), Some(-1)),
            _ => return Err(self.unsupported(inst, "")),
        };
        let result = Ty { elem, lanes: holds.ty.lanes };
        let yes = yes.map_or_else(|| float(result, 1.0), |bits| constant(result, bits));
        let mut value = self.w().select(holds, &yes, &constant(result, 0));
        if let Some(upper) = upper {
            let high = self.w().select(upper, &yes, &constant(result, 0));
            value = self.join_halves(&value, &high);
        }
        self.set_operand(&inst.ops[0], &value, is_signed(ty));
        Ok(())
    }

    /// `selp`
    pub fn selp(&mut self, inst: &Inst) -> Result<(), LowerError> {
        let elem = elem_of(self.ty_of(inst)?);
        let mut lanes = self.lanes_of(inst);
        let (a, b) = (self.op(inst, 1)?, self.op(inst, 2)?);
        let condition = self.op(inst, 3)?;
        // Lane 0 of the result is the selection of lanes 0, for progressions too.
        if !self.is_uniform(condition) {
            lanes = self.0.all_lanes();
        }
        let (a, b) = (self.get(a, elem, lanes), self.get(b, elem, lanes));
        let condition = self.get(condition, Elem::I1, lanes);
        let value = self.w().select(&condition, &a, &b);
        self.set_operand(&inst.ops[0], &value, false);
        Ok(())
    }

    /// `slct.type.ctype d, a, b, c`: selects a if c ≥ 0.
    pub fn slct(&mut self, inst: &Inst) -> Result<(), LowerError> {
        let types: Vec<ScalarType> = inst.form.modifiers.iter().filter_map(|m| ScalarType::from_name(m)).collect();
        let [ty, condition_ty] = types[..] else { return Err(self.malformed(inst, "needs two types")) };
        let lanes = self.lanes_of(inst);
        let a = self.get(self.op(inst, 1)?, elem_of(ty), lanes);
        let b = self.get(self.op(inst, 2)?, elem_of(ty), lanes);
        let condition = self.op(inst, 3)?.clone();
        let (c, op) = match condition_ty {
            ScalarType::F32 => (self.float_operand(&condition, condition_ty, lanes, inst.has("ftz")), "fcmp oge"),
            _ => (self.get(&condition, Elem::I32, lanes), "icmp sge"),
        };
        let condition = self.w().compare(op, &c, &constant(c.ty, 0));
        let value = self.w().select(&condition, &a, &b);
        self.set_operand(&inst.ops[0], &value, false);
        Ok(())
    }
}

/// LLVM's predicate for a comparison of PTX.
fn comparison(word: &str, ty: ScalarType) -> Option<&'static str> {
    if matches!(ty.class(), TypeClass::Float) {
        return Some(match word {
            "eq" => "fcmp oeq",
            "ne" => "fcmp one",
            "lt" => "fcmp olt",
            "le" => "fcmp ole",
            "gt" => "fcmp ogt",
            "ge" => "fcmp oge",
            "equ" => "fcmp ueq",
            "neu" => "fcmp une",
            "ltu" => "fcmp ult",
            "leu" => "fcmp ule",
            "gtu" => "fcmp ugt",
            "geu" => "fcmp uge",
            "num" => "fcmp ord",
            "nan" => "fcmp uno",
            _ => return None,
        });
    }
    let signed = is_signed(ty);
    Some(match word {
        "eq" => "icmp eq",
        "ne" => "icmp ne",
        "lt" if signed => "icmp slt",
        "le" if signed => "icmp sle",
        "gt" if signed => "icmp sgt",
        "ge" if signed => "icmp sge",
        "lt" | "lo" => "icmp ult",
        "le" | "ls" => "icmp ule",
        "gt" | "hi" => "icmp ugt",
        "ge" | "hs" => "icmp uge",
        _ => return None,
    })
}
