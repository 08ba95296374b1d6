//! Loads, stores and fences.

use super::*;
use atoll_lower::program::{is_signed, storage};
use atoll_ptx::StateSpace;

/// The memory order of an access.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Order {
    /// No order.
    Weak,
    /// The memory is not written while the kernel runs.
    Invariant,
    /// No order, and non-temporal: caches need not keep the data.
    Streaming,
    Volatile,
    /// Atomic, with LLVM's name of the memory order.
    Atomic(&'static str),
}

impl Order {
    fn of(inst: &Inst, is_load: bool) -> Order {
        if inst.has("volatile") || inst.has("mmio") || inst.has("cv") || inst.has("wt") {
            Order::Volatile
        } else if inst.has("relaxed") {
            Order::Atomic("monotonic")
        } else if inst.has("acquire") || inst.has("release") {
            Order::Atomic(if is_load { "acquire" } else { "release" })
        } else if inst.has("nc") || matches!(inst.form.space(), Some(StateSpace::Const | StateSpace::Param)) {
            Order::Invariant
        } else if inst.has("cs") || inst.has("lu") {
            Order::Streaming
        } else {
            Order::Weak
        }
    }
}

/// LLVM's scope of an instruction, with a blank at the end; empty for the whole system.
pub(super) fn scope(inst: &Inst) -> &'static str {
    if inst.has("cta") {
        "syncscope(\"workgroup\") "
    } else if inst.has("sys") || inst.has("mmio") {
        ""
    } else {
        // `.gpu`, `.cluster`, `.gl` of `membar`, or no scope.
        "syncscope(\"agent\") "
    }
}

impl Emitter<'_> {
    /// Number of elements, and their type in memory.
    fn access(&self, inst: &Inst) -> Result<(u32, ScalarType), LowerError> {
        let ty = self.ty_of(inst)?;
        let count = [("v2", 2), ("v4", 4), ("v8", 8)].into_iter().find(|(word, _)| inst.has(word));
        if storage(ty) == Elem::I1 {
            return Err(self.malformed(inst, "cannot access predicates in memory"));
        }
        Ok((count.map_or(1, |(_, count)| count), ty))
    }

    fn elements(&self, inst: &Inst, operand: &Opnd, count: u32) -> Result<Vec<Opnd>, LowerError> {
        let parts = match operand {
            Opnd::Vec(parts) => parts.clone(),
            single => vec![single.clone()],
        };
        if parts.len() != count as usize {
            return Err(self.malformed(inst, "has a vector whose length differs from its type"));
        }
        Ok(parts)
    }

    pub(super) fn load(&mut self, inst: &Inst) -> Result<(), LowerError> {
        let (count, ty) = self.access(inst)?;
        let targets = self.elements(inst, self.op(inst, 0)?, count)?;
        let (order, scope) = (Order::of(inst, true), scope(inst));
        let from = self.pointer(inst, self.op(inst, 1)?)?;
        let elem = storage(ty);
        self.refuse_wide_atomic(inst, elem, order)?;
        let values: Vec<Val> = match order {
            Order::Atomic(name) => (0..count)
                .map(|i| {
                    let at = self.w.offset_const(&from, (i * elem.bytes()).into());
                    let one = Ty::scalar(elem);
                    self.w.value(
                        one,
                        format_args!("load atomic volatile {one}, {at} {scope}{name}, align {}", elem.bytes()),
                    )
                })
                .collect(),
            order => {
                let whole = Ty { elem, lanes: count };
                let align = elem.bytes() * count;
                let value = match order {
                    Order::Volatile => {
                        self.w.value(whole, format_args!("load volatile {whole}, {from}, align {align}"))
                    }
                    Order::Invariant => {
                        self.w.value(whole, format_args!("load {whole}, {from}, align {align}, !invariant.load !0"))
                    }
                    Order::Streaming => {
                        self.w.value(whole, format_args!("load {whole}, {from}, align {align}, !nontemporal !1"))
                    }
                    _ => self.w.value(whole, format_args!("load {whole}, {from}, align {align}")),
                };
                (0..count).map(|i| self.element(&value, i)).collect()
            }
        };
        for (target, value) in targets.iter().zip(values) {
            self.set_operand(target, &value, is_signed(ty));
        }
        Ok(())
    }

    /// Refuses ordered accesses of 128 bits: AMD GPUs access at most 64 bits atomically.
    fn refuse_wide_atomic(&self, inst: &Inst, elem: Elem, order: Order) -> Result<(), LowerError> {
        match order {
            Order::Atomic(_) if elem == Elem::I128 => Err(self.unsupported(inst, "an ordered access of 128 bits")),
            _ => Ok(()),
        }
    }

    fn element(&mut self, vector: &Val, index: u32) -> Val {
        if vector.ty.lanes == 1 { vector.clone() } else { self.w.extract(vector, &constant(I32, index.into())) }
    }

    pub(super) fn store(&mut self, inst: &Inst) -> Result<(), LowerError> {
        let (count, ty) = self.access(inst)?;
        let sources = self.elements(inst, self.op(inst, 1)?, count)?;
        let (order, scope) = (Order::of(inst, false), scope(inst));
        let to = self.pointer(inst, self.op(inst, 0)?)?;
        let elem = storage(ty);
        self.refuse_wide_atomic(inst, elem, order)?;
        let values: Vec<Val> = sources.iter().map(|source| self.operand(source, elem)).collect();
        if let Order::Atomic(name) = order {
            for (index, value) in (0u64..).zip(&values) {
                let at = self.w.offset_const(&to, index * u64::from(elem.bytes()));
                let align = elem.bytes();
                self.w.effect(format_args!("store atomic volatile {value}, {at} {scope}{name}, align {align}"));
            }
            return Ok(());
        }
        let (whole, align) = (self.vector(&values), elem.bytes() * count);
        match order {
            Order::Volatile => self.w.effect(format_args!("store volatile {whole}, {to}, align {align}")),
            Order::Streaming => self.w.effect(format_args!("store {whole}, {to}, align {align}, !nontemporal !1")),
            _ => self.w.effect(format_args!("store {whole}, {to}, align {align}")),
        }
        Ok(())
    }

    /// Joins values to a vector.
    pub(super) fn vector(&mut self, values: &[Val]) -> Val {
        if let [one] = values {
            return one.clone();
        }
        let ty = Ty { elem: values[0].ty.elem, lanes: values.len() as u32 };
        let mut whole = Emitter::spelled(ty, "poison");
        for (index, value) in values.iter().enumerate() {
            whole = self.w.value(ty, format_args!("insertelement {whole}, {value}, i32 {index}"));
        }
        whole
    }

    /// `membar` and `fence`
    pub(super) fn fence(&mut self, inst: &Inst) -> Result<(), LowerError> {
        let order = if inst.has("acquire") {
            "acquire"
        } else if inst.has("release") {
            "release"
        } else if inst.has("acq_rel") || inst.has("proxy") {
            "acq_rel"
        } else {
            "seq_cst"
        };
        self.w.effect(format_args!("fence {}{order}", scope(inst)));
        Ok(())
    }
}
