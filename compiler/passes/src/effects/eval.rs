//! Evaluation of instructions that compute values.

use super::linear::{AtomKey, Class, Linear, RootSet, mask};
use super::provenance::Provenance;
use atoll_ptx::analysis::StatementId;
use atoll_ptx::{Instruction, Name, Operand, ScalarType, types::TypeClass};

/// Integer operations whose result depends only on their operands; kept symbolically.
const PURE: &[&str] = &[
    "mul", "mad", "mul24", "mad24", "sad", "div", "rem", "abs", "min", "max", "popc", "clz", "bfind", "brev", "bfe",
    "bfi", "szext", "bmsk", "set", "setp", "selp", "slct", "and", "or", "xor", "not", "cnot", "lop3", "shf", "shl",
    "shr", "prmt", "cvt",
];

/// The evaluation of one instruction.
pub(super) struct Evaluation<'p, 'm> {
    pub(super) provenance: &'p mut Provenance<'m>,
    pub(super) function: usize,
    pub(super) statement: StatementId,
    pub(super) instruction: &'m Instruction,
}

impl<'m> Evaluation<'_, 'm> {
    /// Assigns a value to every register that the instruction writes.
    pub(super) fn run(mut self) {
        let Some(destination) = self.instruction.operands.first() else { return };
        if let Operand::Name(name) = destination
            && !name.contains('.')
        {
            let name = name.clone();
            if let Some(width) = self.width_of(&name) {
                match self.value(width) {
                    Outcome::Value(value) => {
                        let value = self.fit(value, width);
                        return self.define(&name, &value);
                    }
                    Outcome::NotYet if self.provenance.waits(self.function, self.statement) => return,
                    Outcome::Unknown | Outcome::NotYet => {}
                }
            }
        }
        self.define_results();
    }

    fn width_of(&self, name: &Name) -> Option<u32> {
        let code = &self.provenance.functions[self.function].code;
        code.register_at(self.statement, name).map(|r| code.register(r).ty.bits())
    }

    fn define(&mut self, name: &Name, value: &Linear) {
        self.provenance.define(self.function, self.statement, name, value);
    }

    /// Turns every register written into an atom that may point into the same roots as the
    /// operands.
    fn define_results(&mut self) {
        // `ldmatrix` loads rows from shared memory; the address says nothing about their contents.
        let is_row = self.instruction.opcode == "ldmatrix";
        let roots = if is_row { self.provenance.shared_roots() } else { self.operand_roots() };
        let written: Vec<Name> = self.instruction.writes().into_iter().cloned().collect();
        for (position, name) in written.iter().enumerate() {
            let Some(width) = self.width_of(name) else { continue };
            let value = self.provenance.result(self.function, self.statement, position, width, roots, None);
            self.define(name, &value);
        }
    }

    fn operand_roots(&mut self) -> RootSet {
        let mut sets = Vec::new();
        for name in self.instruction.reads() {
            if let Some(value) = self.provenance.name_value(self.function, self.statement, name) {
                sets.push(self.provenance.points_into(&value));
            }
        }
        self.provenance.roots.of_operands(sets.iter().copied())
    }

    fn operand(&mut self, index: usize, width: u32) -> Option<Linear> {
        let operand = self.instruction.operands.get(index)?;
        self.provenance.operand_value(self.function, self.statement, operand, width)
    }

    /// Adapts the value of a register that is wider than the operation.
    fn fit(&mut self, value: Linear, width: u32) -> Linear {
        if value.width() == width {
            value
        } else if value.width() > width {
            value.with_width(width)
        } else {
            self.widened(&value, width, false)
        }
    }

    fn value(&mut self, width: u32) -> Outcome {
        let instruction = self.instruction;
        // Packed types such as `.s16x2` are not scalar types.
        let Some(ty) = instruction.ty() else { return Outcome::Unknown };
        let is_plain = !instruction.has("sat") && !instruction.reads_carry();
        if ty.class() == TypeClass::Float || !is_plain {
            return Outcome::Unknown;
        }
        let bits = ty.bits();
        match instruction.opcode.as_str() {
            "mov" if matches!(instruction.operands.get(1), Some(Operand::Vector(_))) => Outcome::Unknown,
            "mov" => self.operand(1, bits.min(width)).into(),
            "cvta" => self.cvta(bits),
            "cvt" => self.cvt(ty),
            "add" | "sub" => {
                let factor = if instruction.opcode == "add" { 1 } else { u64::MAX };
                self.sum(bits, |e| Some((e.operand(1, bits)?, e.operand(2, bits)?, factor)))
            }
            "neg" => self.sum(bits, |e| Some((Linear::constant(bits, 0), e.operand(1, bits)?, u64::MAX))),
            "mul" if instruction.has("wide") => self.product(bits, true),
            "mul" if instruction.has("lo") => self.product(bits, false),
            "mad" if instruction.has("wide") || instruction.has("lo") => self.product_and_sum(bits),
            "shl" => self.shift_left(bits),
            "or" => self.or(bits),
            "selp" => self.select(bits),
            opcode if PURE.contains(&opcode) => self.pure(bits.max(1)),
            _ => Outcome::Unknown,
        }
    }

    /// Conversion to or from a generic address keeps the value. For shared and local memory only
    /// the pointer targets are kept.
    fn cvta(&mut self, bits: u32) -> Outcome {
        let value = self.operand(1, bits);
        if let Some(value) = &value
            && self.instruction.has("global")
            && let Some(atom) = value.as_atom()
            && matches!(self.provenance.atoms.get(atom).key, AtomKey::Param(..))
        {
            let roots = self.provenance.atoms.get(atom).roots;
            self.provenance.mark_pointer(roots);
        }
        value.into()
    }

    /// `cvt.to.from`, where both are integers.
    fn cvt(&mut self, from: ScalarType) -> Outcome {
        let Some(to) = self.instruction.modifiers.iter().find_map(|m| ScalarType::from_name(m)) else {
            return Outcome::Unknown;
        };
        if to.class() == TypeClass::Float {
            return Outcome::Unknown;
        }
        let Some(value) = self.operand(1, from.bits()) else { return Outcome::NotYet };
        Outcome::Value(if to.bits() <= from.bits() {
            self.truncated(&value, to.bits())
        } else {
            self.widened(&value, to.bits(), from.class() == TypeClass::Signed)
        })
    }

    /// The low bits of a sum. Truncating a widened value yields the narrow value again.
    fn truncated(&mut self, value: &Linear, width: u32) -> Linear {
        let mut sum = Linear::constant(width, value.offset());
        for &(atom, coefficient) in value.terms() {
            let narrow = self.provenance.atoms.get(atom).narrow.clone().filter(|n| n.width() >= width);
            let term = narrow.map_or_else(|| Linear::atom(width, atom), |n| n.with_width(width));
            match sum.plus(&term, coefficient) {
                Some(longer) => sum = longer,
                None => return value.with_width(width),
            }
        }
        sum
    }

    /// A sum extended by zeros or by its sign. If it cannot wrap around, it stays the same sum.
    fn widened(&mut self, value: &Linear, width: u32, by_sign: bool) -> Linear {
        if let Some(constant) = value.as_constant() {
            let extended = if by_sign { value.signed(constant) as u64 } else { constant & mask(value.width()) };
            return Linear::constant(width, extended);
        }
        let atoms = &mut self.provenance.atoms;
        if atoms.range(value).is_some() {
            return value.with_width(width);
        }
        let (class, roots) = (atoms.class(value), self.provenance.roots.of_sum(atoms, value));
        let operation = format!("{}{}:{width}", if by_sign { 's' } else { 'u' }, value.width());
        // A zero-extended value of few bits is small.
        let range = (!by_sign && value.width() < 32).then(|| (0, mask(value.width()) as i64));
        let atom = atoms.intern(AtomKey::Pure(operation, vec![value.clone()]), || (class, range));
        atoms.set_narrow(atom, value.clone());
        self.provenance.add_roots(atom, roots);
        Linear::atom(width, atom)
    }

    fn sum(&mut self, bits: u32, operands: impl FnOnce(&mut Self) -> Option<(Linear, Linear, u64)>) -> Outcome {
        let Some((left, right, factor)) = operands(self) else { return Outcome::NotYet };
        debug_assert_eq!(left.width(), bits);
        left.plus(&right, factor).map_or(Outcome::Unknown, Outcome::Value)
    }

    /// `mul.lo`, or `mul.wide` of operands with half the bits of the result.
    fn product(&mut self, bits: u32, is_wide: bool) -> Outcome {
        let (Some(left), Some(right)) = (self.operand(1, bits), self.operand(2, bits)) else { return Outcome::NotYet };
        self.multiply(&left, &right, is_wide)
            .map_or_else(|| self.pure(if is_wide { 2 * bits } else { bits }), Outcome::Value)
    }

    fn multiply(&mut self, left: &Linear, right: &Linear, is_wide: bool) -> Option<Linear> {
        let by_sign = self.instruction.ty().is_some_and(|ty| ty.class() == TypeClass::Signed);
        let width = if is_wide { 2 * left.width() } else { left.width() };
        let (left, right) = if is_wide {
            (self.widened(left, width, by_sign), self.widened(right, width, by_sign))
        } else {
            (left.clone(), right.clone())
        };
        match (left.as_constant(), right.as_constant()) {
            (_, Some(factor)) => Some(left.times(factor)),
            (Some(factor), _) => Some(right.times(factor)),
            _ => None,
        }
    }

    fn product_and_sum(&mut self, bits: u32) -> Outcome {
        let is_wide = self.instruction.has("wide");
        let width = if is_wide { 2 * bits } else { bits };
        let (Some(left), Some(right), Some(addend)) =
            (self.operand(1, bits), self.operand(2, bits), self.operand(3, width))
        else {
            return Outcome::NotYet;
        };
        let product = match self.multiply(&left, &right, is_wide) {
            Some(product) => product,
            None => self.atom_of(if is_wide { "mul.wide" } else { "mul.lo" }, vec![left, right], width),
        };
        addend.plus(&product, 1).map_or(Outcome::Unknown, Outcome::Value)
    }

    fn shift_left(&mut self, bits: u32) -> Outcome {
        let (Some(value), Some(amount)) = (self.operand(1, bits), self.operand(2, 32)) else { return Outcome::NotYet };
        match amount.as_constant() {
            Some(amount) if amount < u64::from(bits) => Outcome::Value(value.times(1 << amount)),
            Some(_) => Outcome::Value(Linear::constant(bits, 0)),
            None => self.pure(bits),
        }
    }

    /// `or` with bits that are zero in the other operand is a sum; compilers emit it for the low
    /// bits of indices.
    fn or(&mut self, bits: u32) -> Outcome {
        let (Some(left), Some(right)) = (self.operand(1, bits), self.operand(2, bits)) else { return Outcome::NotYet };
        let fits = |constant: &Linear, other: &Linear| {
            constant.as_constant().is_some_and(|c| c <= mask(other.trailing_zeros()))
        };
        if bits > 1 && (fits(&left, &right) || fits(&right, &left)) {
            return left.plus(&right, 1).map_or(Outcome::Unknown, Outcome::Value);
        }
        self.pure(bits)
    }

    /// One of two values. As a pointer it has two alternative targets; it is not a mixed value.
    fn select(&mut self, bits: u32) -> Outcome {
        let (Some(left), Some(right)) = (self.operand(1, bits), self.operand(2, bits)) else { return Outcome::NotYet };
        if left == right {
            return Outcome::Value(left);
        }
        let roots = self.provenance.points_into(&left).union(self.provenance.points_into(&right));
        let Some(condition) = self.operand(3, 1) else { return Outcome::NotYet };
        let key = AtomKey::Pure("selp".into(), vec![left, right, condition]);
        Outcome::Value(self.intern(key, bits, None, roots))
    }

    /// Keeps an operation symbolically.
    fn pure(&mut self, bits: u32) -> Outcome {
        let instruction = self.instruction;
        let mut operands = Vec::new();
        for index in 1..instruction.operands.len() {
            let width = self.source_width(index, instruction);
            let Some(width) = width else { return Outcome::Unknown };
            let Some(value) = self.operand(index, width) else { return Outcome::NotYet };
            operands.push(value);
        }
        let is_predicate = matches!(instruction.opcode.as_str(), "setp");
        let width = if is_predicate { 1 } else { bits };
        Outcome::Value(self.atom_of(&instruction.dotted(), operands, width))
    }

    /// The width of an operand: that of its register, or that of the operation for a literal.
    fn source_width(&self, index: usize, instruction: &Instruction) -> Option<u32> {
        match instruction.operands.get(index)? {
            Operand::Name(name) if atoll_ptx::is_special_register(name) => Some(32),
            Operand::Name(name) => self.width_of(name),
            Operand::Immediate(_) => Some(64),
            _ => None,
        }
    }

    fn atom_of(&mut self, operation: &str, operands: Vec<Linear>, width: u32) -> Linear {
        let sets: Vec<RootSet> = operands.iter().map(|value| self.provenance.points_into(value)).collect();
        let roots = self.provenance.roots.of_operands(sets.iter().copied());
        // Predicates are not pointers.
        let roots = if width == 1 { RootSet::NONE } else { roots };
        let range = self.range(operation, &operands);
        self.intern(AtomKey::Pure(format!("{operation}:{width}"), operands), width, range, roots)
    }

    fn intern(&mut self, key: AtomKey, width: u32, range: Option<(i64, i64)>, roots: RootSet) -> Linear {
        let AtomKey::Pure(_, operands) = &key else { unreachable!("only operations are interned here") };
        let class = operands.iter().map(|value| self.provenance.atoms.class(value)).max().unwrap_or(Class::Stable);
        let atom = self.provenance.atoms.intern(key, || (class, range));
        self.provenance.add_roots(atom, roots);
        Linear::atom(width, atom)
    }

    /// Smallest and largest result of an operation on unsigned integers.
    fn range(&self, operation: &str, operands: &[Linear]) -> Option<(i64, i64)> {
        let atoms = &self.provenance.atoms;
        let constant = |index: usize| operands.get(index)?.as_constant().and_then(|c| i64::try_from(c).ok());
        let first = operands.first().and_then(|value| atoms.range(value));
        let (opcode, rest) = operation.split_once('.').unwrap_or((operation, ""));
        let is_signed = rest.starts_with('s');
        match opcode {
            "and" => {
                let small = |index: usize| constant(index).or_else(|| atoms.range(operands.get(index)?).map(|r| r.1));
                Some((0, small(0).into_iter().chain(small(1)).min()?))
            }
            "rem" if !is_signed || first.is_some() => {
                constant(1).filter(|c| *c > 0).map(|c| (0, first.map_or(c - 1, |r| r.1.min(c - 1))))
            }
            "div" => {
                let by = constant(1).filter(|c| *c > 0)?;
                first.map(|(low, high)| (low / by, high / by))
            }
            "shr" => {
                let by = constant(1).filter(|c| (0..63).contains(c))?;
                match first {
                    Some((low, high)) => Some((low >> by, high >> by)),
                    None if !is_signed
                        && operands[0].width() == 32
                        && !rest.starts_with("b64")
                        && !rest.starts_with("u64") =>
                    {
                        Some((0, (u32::MAX as i64) >> by))
                    }
                    None => None,
                }
            }
            "min" if !is_signed || first.is_some() && constant(1).is_some_and(|c| c >= 0) => {
                let second = constant(1)?;
                Some((0, first.map_or(second, |r| r.1.min(second))))
            }
            "popc" | "clz" => Some((0, 64)),
            "bfe" if !is_signed => constant(2).filter(|bits| (0..=31).contains(bits)).map(|bits| (0, (1 << bits) - 1)),
            _ => None,
        }
    }
}

/// The result of an evaluation.
enum Outcome {
    Value(Linear),
    /// The result is a new, unknown value.
    Unknown,
    /// An operand has no value yet.
    NotYet,
}

impl From<Option<Linear>> for Outcome {
    fn from(value: Option<Linear>) -> Outcome {
        value.map_or(Outcome::NotYet, Outcome::Value)
    }
}
