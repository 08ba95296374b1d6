//! Writes one kernel: parameters together with their arguments, integers that are folded while they
//! are constants, loops and guards.

use crate::schedule::Tensor;
use atoll_kgraph::{Argument, BufferId, DType, Expr};
use atoll_ptx::build::{self, KernelBuilder};
use atoll_ptx::{Directive, Function, Name, Operand, ScalarType, StateSpace, StatementKind};
use std::collections::HashMap;

/// Lanes of a warp.
pub(crate) const LANES: u32 = 32;

/// A 32-bit integer of a kernel: a constant, or in a register.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Int {
    Known(i64),
    Reg(Name),
}

impl Int {
    pub(crate) fn known(&self) -> Option<i64> {
        match self {
            Int::Known(value) => Some(*value),
            Int::Reg(_) => None,
        }
    }

    pub(crate) fn is(&self, value: i64) -> bool {
        self.known() == Some(value)
    }

    pub(crate) fn operand(&self) -> Operand {
        match self {
            Int::Known(value) => (*value).into(),
            Int::Reg(name) => name.into(),
        }
    }
}

impl From<u32> for Int {
    fn from(value: u32) -> Int {
        Int::Known(value.into())
    }
}

impl From<Name> for Int {
    fn from(name: Name) -> Int {
        Int::Reg(name)
    }
}

/// A kernel under construction, with the arguments of its launch.
pub(crate) struct Writer {
    stem: String,
    builder: KernelBuilder,
    args: Vec<Argument>,
    sizes: HashMap<Expr, Name>,
    bases: HashMap<(BufferId, Expr), Name>,
    checks: HashMap<u32, Name>,
    specials: HashMap<&'static str, Name>,
}

/// A finished kernel and its launch.
pub(crate) struct Written {
    /// Prefix of its name and of the names of its parameters.
    pub(crate) stem: String,
    pub(crate) function: Function,
    pub(crate) block: [u32; 3],
    pub(crate) grid: [Expr; 3],
    pub(crate) args: Vec<Argument>,
}

impl Writer {
    pub(crate) fn new(stem: impl Into<String>) -> Writer {
        let stem = stem.into();
        let builder = KernelBuilder::new(&stem);
        Writer {
            stem,
            builder,
            args: Vec::new(),
            sizes: HashMap::new(),
            bases: HashMap::new(),
            checks: HashMap::new(),
            specials: HashMap::new(),
        }
    }

    /// Ends the kernel. `block` is `[x, y, z]`; its product is a multiple of 32.
    pub(crate) fn finish(mut self, block: [u32; 3], grid: [Expr; 3]) -> Written {
        self.emit("ret", []);
        let [x, y, z] = block.map(|d| d.to_string());
        self.builder.attribute("reqntid", &[&x, &y, &z]);
        Written { stem: self.stem, function: self.builder.finish(), block, grid, args: self.args }
    }

    // ---- parameters ----

    /// The global address of a tensor.
    pub(crate) fn base(&mut self, tensor: &Tensor) -> Name {
        let place = (tensor.buffer, tensor.offset.clone());
        if let Some(base) = self.bases.get(&place) {
            return base.clone();
        }
        let generic = self.builder.load_param(ScalarType::U64, "tensor");
        let base = self.builder.hoisted(ScalarType::U64, "cvta.to.global.u64", [generic.into()]);
        self.args.push(Argument::Buffer { buffer: tensor.buffer, offset: tensor.offset.clone() });
        self.bases.insert(place, base.clone());
        base
    }

    /// Reports a violation of check `check` (the kernel's own number) from the lanes where the
    /// predicate is true: emits a store to the word of the graph's check, whose address is an
    /// argument of the launch. Lanes that compute no element must not execute the store.
    pub(crate) fn violated(&mut self, check: u32, predicate: &Name) {
        let word = match self.checks.get(&check) {
            Some(word) => word.clone(),
            None => {
                let generic = self.builder.load_param(ScalarType::U64, "check");
                let word = self.builder.hoisted(ScalarType::U64, "cvta.to.global.u64", [generic.into()]);
                self.args.push(Argument::Check { check });
                self.checks.insert(check, word.clone());
                word
            }
        };
        let one = self.make(ScalarType::U32, "mov.u32", [1.into()]);
        self.emit_if(predicate, "st.global.u32", [mem(&word, 0), one.into()]);
    }

    /// A size: a constant, or a parameter.
    pub(crate) fn size(&mut self, size: &Expr) -> Int {
        match size.as_const() {
            Some(value) => Int::Known(value),
            None => self.parameter(size),
        }
    }

    /// A size as a parameter even if it is a constant, so that kernels that differ only in it have
    /// equal text.
    pub(crate) fn parameter(&mut self, size: &Expr) -> Int {
        if let Some(register) = self.sizes.get(size) {
            return Int::Reg(register.clone());
        }
        let register = self.builder.load_param(ScalarType::U32, "size");
        self.args.push(Argument::Int { dtype: DType::I32, value: size.clone() });
        self.sizes.insert(size.clone(), register.clone());
        Int::Reg(register)
    }

    /// A special register; it is read once, at the beginning of the kernel.
    pub(crate) fn special(&mut self, name: &'static str) -> Int {
        if let Some(register) = self.specials.get(name) {
            return Int::Reg(register.clone());
        }
        let register = self.builder.hoisted(ScalarType::U32, "mov.u32", [name.into()]);
        self.specials.insert(name, register.clone());
        Int::Reg(register)
    }

    /// Allocates shared memory of the block; returns its address in the shared window.
    pub(crate) fn shared(&mut self, name: &str, bytes: u32) -> Name {
        let array = self.builder.array(StateSpace::Shared, name, 16, bytes.into());
        self.builder.hoisted(ScalarType::U32, "mov.u32", [array.into()])
    }

    // ---- instructions ----

    /// Tells the assembler not to unroll the loop that begins here; must be the first statement of
    /// its body.
    pub(crate) fn keep_rolled(&mut self) {
        let arguments = vec![Name::new("\"nounroll\"")];
        self.builder.statement(StatementKind::Directive(Directive { name: Name::new("pragma"), arguments }));
    }

    pub(crate) fn emit(&mut self, dotted: &str, operands: impl IntoIterator<Item = Operand>) {
        self.builder.emit(dotted, operands);
    }

    pub(crate) fn reg(&mut self, ty: ScalarType) -> Name {
        self.builder.reg(ty)
    }

    /// Emits `dotted result, operands`; returns the result's register.
    pub(crate) fn make(&mut self, ty: ScalarType, dotted: &str, operands: impl IntoIterator<Item = Operand>) -> Name {
        let result = self.reg(ty);
        self.builder.emit(dotted, std::iter::once(Operand::from(&result)).chain(operands));
        result
    }

    /// Emits an instruction under a guard. The result's register must have been assigned before.
    pub(crate) fn emit_if(&mut self, guard: &Name, dotted: &str, operands: impl IntoIterator<Item = Operand>) {
        self.builder.emit_if(guard, false, dotted, operands);
    }

    pub(crate) fn f32(&mut self, dotted: &str, operands: impl IntoIterator<Item = Operand>) -> Operand {
        self.make(ScalarType::F32, dotted, operands).into()
    }

    /// A new register with a value, for variables of a loop.
    pub(crate) fn variable(&mut self, value: &Int) -> Name {
        self.make(ScalarType::U32, "mov.u32", [value.operand()])
    }

    pub(crate) fn f32_variable(&mut self, value: f32) -> Name {
        self.make(ScalarType::F32, "mov.f32", [value.into()])
    }

    // ---- integers ----

    fn binary(&mut self, dotted: &str, a: &Int, b: &Int) -> Int {
        // Constants are the right operand, the only place where every assembler accepts them.
        let (a, b) = match (a, b) {
            (Int::Known(_), Int::Reg(_)) if matches!(dotted, "add.s32" | "mul.lo.s32" | "and.b32") => (b, a),
            _ => (a, b),
        };
        Int::Reg(self.make(ScalarType::U32, dotted, [a.operand(), b.operand()]))
    }

    pub(crate) fn add(&mut self, a: &Int, b: &Int) -> Int {
        match (a.known(), b.known()) {
            (Some(a), Some(b)) => Int::Known(a + b),
            (Some(0), _) => b.clone(),
            (_, Some(0)) => a.clone(),
            _ => self.binary("add.s32", a, b),
        }
    }

    pub(crate) fn sub(&mut self, a: &Int, b: &Int) -> Int {
        match (a.known(), b.known()) {
            (Some(a), Some(b)) => Int::Known(a - b),
            (_, Some(0)) => a.clone(),
            (Some(0), _) => Int::Reg(self.make(ScalarType::S32, "neg.s32", [b.operand()])),
            _ => self.binary("sub.s32", a, b),
        }
    }

    pub(crate) fn mul(&mut self, a: &Int, b: &Int) -> Int {
        match (a.known(), b.known()) {
            (Some(a), Some(b)) => Int::Known(a * b),
            (Some(0), _) | (_, Some(0)) => Int::Known(0),
            (Some(1), _) => b.clone(),
            (_, Some(1)) => a.clone(),
            _ => self.binary("mul.lo.s32", a, b),
        }
    }

    /// `a * b + c`
    pub(crate) fn mad(&mut self, a: &Int, b: &Int, c: &Int) -> Int {
        match (a, b, c) {
            (Int::Reg(_), Int::Reg(_) | Int::Known(2..), Int::Reg(_)) | (Int::Known(2..), Int::Reg(_), Int::Reg(_)) => {
                let (a, b) = if a.known().is_some() { (b, a) } else { (a, b) };
                Int::Reg(self.make(ScalarType::U32, "mad.lo.s32", [a.operand(), b.operand(), c.operand()]))
            }
            _ => {
                let product = self.mul(a, b);
                self.add(&product, c)
            }
        }
    }

    /// Unsigned quotient.
    pub(crate) fn div(&mut self, a: &Int, b: &Int) -> Int {
        match (a.known(), b.known()) {
            (Some(a), Some(b)) if b != 0 => Int::Known(a / b),
            (_, Some(1)) => a.clone(),
            (_, Some(b)) if b > 0 && (b & (b - 1)) == 0 => {
                self.binary("shr.u32", a, &Int::Known(b.trailing_zeros().into()))
            }
            _ => self.binary("div.u32", a, b),
        }
    }

    /// Quotient and remainder, unsigned.
    pub(crate) fn div_rem(&mut self, a: &Int, b: &Int) -> (Int, Int) {
        match (a.known(), b.known()) {
            (Some(a), Some(b)) if b != 0 => (Int::Known(a / b), Int::Known(a % b)),
            (_, Some(1)) => (a.clone(), Int::Known(0)),
            (_, Some(b)) if b > 0 && (b & (b - 1)) == 0 => {
                (self.div(a, &Int::Known(b)), self.binary("and.b32", a, &Int::Known(b - 1)))
            }
            _ => {
                let quotient = self.binary("div.u32", a, b);
                let product = self.mul(&quotient, b);
                let rest = self.sub(a, &product);
                (quotient, rest)
            }
        }
    }

    /// The minimum, signed.
    pub(crate) fn min(&mut self, a: &Int, b: &Int) -> Int {
        match (a.known(), b.known()) {
            (Some(a), Some(b)) => Int::Known(a.min(b)),
            _ => self.binary("min.s32", a, b),
        }
    }

    /// The maximum, signed.
    pub(crate) fn max(&mut self, a: &Int, b: &Int) -> Int {
        match (a.known(), b.known()) {
            (Some(a), Some(b)) => Int::Known(a.max(b)),
            _ => self.binary("max.s32", a, b),
        }
    }

    /// A comparison as a predicate: `compare("lt.u32", a, b)`.
    pub(crate) fn compare(&mut self, how: &str, a: &Int, b: &Int) -> Name {
        self.make(ScalarType::Pred, &format!("setp.{how}"), [a.operand(), b.operand()])
    }

    /// The conjunction of optional predicates; `None` means true.
    pub(crate) fn both(&mut self, a: Option<&Name>, b: Option<&Name>) -> Option<Name> {
        match (a, b) {
            (Some(a), Some(b)) => Some(self.make(ScalarType::Pred, "and.pred", [a.into(), b.into()])),
            (a, b) => a.or(b).cloned(),
        }
    }

    /// Whether `0 <= value < limit`, as one unsigned comparison; `None` if it is known to be true.
    pub(crate) fn inside(&mut self, value: &Int, limit: &Int) -> Option<Name> {
        match (value.known(), limit.known()) {
            (Some(v), Some(l)) if 0 <= v && v < l => None,
            (Some(_), _) => {
                let register = Int::Reg(self.variable(value));
                Some(self.compare("lt.u32", &register, limit))
            }
            _ => Some(self.compare("lt.u32", value, limit)),
        }
    }

    // ---- addresses ----

    /// `base + index * bytes`; the index is signed.
    pub(crate) fn at(&mut self, base: &Name, index: &Int, bytes: u32) -> Name {
        match index {
            Int::Known(0) => base.clone(),
            Int::Known(known) => {
                self.make(ScalarType::U64, "add.s64", [base.into(), (known * i64::from(bytes)).into()])
            }
            Int::Reg(index) => self.make(ScalarType::U64, "mad.wide.s32", [index.into(), bytes.into(), base.into()]),
        }
    }

    /// Advances an address in place.
    pub(crate) fn advance(&mut self, address: &Name, index: &Int, bytes: u32) {
        match index {
            Int::Known(0) => {}
            Int::Known(known) => {
                self.emit("add.s64", [address.into(), address.into(), (known * i64::from(bytes)).into()])
            }
            Int::Reg(index) => self.emit("mad.wide.s32", [address.into(), index.into(), bytes.into(), address.into()]),
        }
    }

    /// A new register with the same address, which can be advanced.
    pub(crate) fn cursor(&mut self, address: &Name) -> Name {
        self.make(ScalarType::U64, "mov.u64", [address.into()])
    }

    // ---- control ----

    pub(crate) fn label(&mut self, stem: &str) -> Name {
        self.builder.label(stem)
    }

    pub(crate) fn place(&mut self, label: &Name) {
        self.builder.place(label);
    }

    /// Branches to a label if the predicate is true.
    pub(crate) fn branch_if(&mut self, guard: &Name, label: &Name) {
        self.builder.emit_if(guard, false, "bra", [Operand::from(label)]);
    }

    /// Branches to a label if the predicate is false.
    pub(crate) fn branch_unless(&mut self, guard: &Name, label: &Name) {
        self.builder.emit_if(guard, true, "bra", [Operand::from(label)]);
    }

    pub(crate) fn barrier(&mut self) {
        self.emit("bar.sync", [0.into()]);
    }

    /// Runs `body` if the predicate is true.
    pub(crate) fn when(&mut self, guard: Option<&Name>, body: impl FnOnce(&mut Writer)) {
        let Some(guard) = guard else { return body(self) };
        let end = self.label("end");
        self.builder.emit_if(guard, true, "bra", [Operand::from(&end)]);
        body(self);
        self.place(&end);
    }

    /// Runs `body` with `counter` from `from` in steps of `step` while it is below `to`. The
    /// counter is a register, unless the loop has at most one iteration.
    pub(crate) fn count(&mut self, from: &Int, to: &Int, step: &Int, body: impl FnOnce(&mut Writer, &Int)) {
        let rounds = match (from.known(), to.known(), step.known()) {
            (Some(from), Some(to), Some(step)) if to <= from => Some(i64::from(step < 0)),
            (Some(from), Some(to), Some(step)) => Some((to - from + step - 1) / step),
            _ => None,
        };
        match rounds {
            Some(0) => return,
            Some(1) => return body(self, from),
            _ => {}
        }
        let counter = Int::Reg(self.variable(from));
        let (head, end) = (self.label("loop"), self.label("done"));
        if rounds.is_none() {
            let none = self.compare("ge.s32", &counter, to);
            self.builder.emit_if(&none, false, "bra", [Operand::from(&end)]);
        }
        self.place(&head);
        body(self, &counter);
        self.emit("add.s32", [counter.operand(), counter.operand(), step.operand()]);
        let more = self.compare("lt.s32", &counter, to);
        self.builder.emit_if(&more, false, "bra", [Operand::from(&head)]);
        if rounds.is_none() {
            self.place(&end);
        }
    }

    /// One step of a butterfly reduction: the value of the lane whose index differs in the bits of
    /// `mask`.
    pub(crate) fn shuffle(&mut self, value: &Operand, mask: u32) -> Operand {
        let bits = self.make(ScalarType::B32, "mov.b32", [value.clone()]);
        let other =
            self.make(ScalarType::B32, "shfl.sync.bfly.b32", [bits.into(), mask.into(), 31.into(), Operand::from(-1)]);
        self.f32("mov.b32", [other.into()])
    }
}

/// A memory operand.
pub(crate) fn mem(base: &Name, offset: i64) -> Operand {
    build::address(base, offset)
}
