//! Writes LLVM IR as text.
//!
//! Lowering writes text instead of calling a builder. `--emit llvm` shows this text, the text is
//! the same for all supported LLVM versions except for [`intrinsics`], and one set of functions
//! serves scalars and vectors.

use crate::lines::Lines;
pub use atoll_lower::elem::Elem;
use atoll_ptx::Immediate;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Write as _};

/// The spelling of a value: `%12`, `5`, `splat (i32 5)`.
pub type Spelling = atoll_ptx::Name;

/// A scalar (`lanes` 1) or vector type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Ty {
    /// The type of one lane.
    pub elem: Elem,
    /// The number of lanes.
    pub lanes: u32,
}

impl Ty {
    /// A scalar type.
    pub fn scalar(elem: Elem) -> Ty {
        Ty { elem, lanes: 1 }
    }

    /// The same number of lanes with another element type.
    pub fn with(self, elem: Elem) -> Ty {
        Ty { elem, ..self }
    }

    /// The suffix of an overloaded intrinsic: `v32f32`, `i64`.
    pub fn mangled(self) -> String {
        if self.lanes == 1 { self.elem.mangled().into() } else { format!("v{}{}", self.lanes, self.elem.mangled()) }
    }
}

impl fmt::Display for Ty {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.lanes == 1 { self.elem.fmt(f) } else { write!(f, "<{} x {}>", self.lanes, self.elem) }
    }
}

/// A typed value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Val {
    /// Its type.
    pub ty: Ty,
    /// Its spelling.
    pub text: Spelling,
}

impl fmt::Display for Val {
    /// Type and spelling, as an operand is written: `i32 %5`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.ty, self.text)
    }
}

/// The constant `value` in every lane; for floats, `value` is their bits.
pub fn constant(ty: Ty, value: i128) -> Val {
    let one: Spelling = match ty.elem {
        Elem::I1 => if value & 1 == 1 { "true" } else { "false" }.into(),
        Elem::Ptr | Elem::Space(_) => "null".into(),
        Elem::F16 => format!("0xH{:04X}", value as u16).into(),
        Elem::F32 => format!("0x{:016X}", f64::from(f32::from_bits(value as u32)).to_bits()).into(),
        Elem::F64 => format!("0x{:016X}", value as u64).into(),
        int => {
            // LLVM reads signed decimal integers, if they fit.
            let shift = 128 - int.bits();
            ((value << shift) >> shift).to_string().into()
        }
    };
    Val { ty, text: if ty.lanes == 1 { one } else { format!("splat ({} {one})", ty.elem).into() } }
}

/// The `f32` constant in every lane.
pub fn float(ty: Ty, value: f32) -> Val {
    constant(ty, value.to_bits().into())
}

/// The bits of a literal of PTX as an element type.
pub fn bits_of(immediate: Immediate, elem: Elem) -> i128 {
    match (immediate, elem) {
        (Immediate::Int(value), _) => value,
        (Immediate::F32(bits), Elem::F64) => f64::from(f32::from_bits(bits)).to_bits().into(),
        (Immediate::F32(bits), _) => bits.into(),
        (Immediate::F64(bits), Elem::F32) => (f64::from_bits(bits) as f32).to_bits().into(),
        (Immediate::F64(bits), _) => bits.into(),
    }
}

/// A predicate.
pub const I1: Ty = Ty { elem: Elem::I1, lanes: 1 };
/// A 32-bit integer.
pub const I32: Ty = Ty { elem: Elem::I32, lanes: 1 };
/// A 64-bit integer.
pub const I64: Ty = Ty { elem: Elem::I64, lanes: 1 };

/// A label of a basic block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Label(pub Spelling);

/// An alignment check that the lanes of a mask have passed. The address has the form parameter plus
/// offset.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Check {
    /// Offset of the parameter.
    pub parameter: u32,
    /// The offset modulo the alignment.
    pub offset: i64,
    /// The alignment.
    pub align: i64,
    /// The mask; all lanes if absent.
    pub mask: Option<Spelling>,
}

/// Facts that hold on all paths to a place in the text.
#[derive(Clone, Debug, Default)]
pub struct Known {
    /// The values of [register](Writer::register) slots.
    registers: BTreeMap<Spelling, Val>,
    checked: BTreeSet<Check>,
}

/// Writes one function: allocas first, then blocks in the order in which they are placed.
#[derive(Debug, Default)]
pub struct Writer {
    allocas: String,
    body: String,
    next: u32,
    /// Whether the current block still needs a terminator.
    open: bool,
    registers: BTreeSet<Spelling>,
    known: Known,
    /// The address space of the stack; 0 if absent.
    stack: Option<u8>,
    /// Lines of PTX of the emitted instructions.
    pub lines: Lines,
}

impl Writer {
    /// A writer for a processor whose stack has its own address space.
    pub fn with_stack(space: u8) -> Writer {
        Writer { stack: Some(space), ..Writer::default() }
    }

    fn fresh(&mut self) -> Spelling {
        self.next += 1;
        format!("%v{}", self.next).into()
    }

    /// A slot that is accessed by [`Writer::load`] and [`Writer::store`] only. Registers are kept
    /// in such slots until LLVM turns them into SSA values; within a block the writer does so
    /// itself ([`Known`]), so that LLVM has less to read.
    pub fn register(&mut self, ty: Ty) -> Val {
        let slot = self.alloca(ty);
        self.registers.insert(slot.text.clone());
        slot
    }

    /// A stack slot.
    pub fn alloca(&mut self, ty: Ty) -> Val {
        self.stack_memory(&ty.to_string(), ty.elem.bytes() * ty.lanes)
    }

    /// Memory on the stack of an LLVM type, with an alignment in bytes.
    pub fn stack_memory(&mut self, ty: &str, align: u32) -> Val {
        let name = self.fresh();
        let (space, pointer) = match self.stack {
            Some(space) => (format!(", align {}, addrspace({space})", align.next_power_of_two()), Elem::Space(space)),
            None => (String::new(), Elem::Ptr),
        };
        let _ = writeln!(self.allocas, "  {name} = alloca {ty}{space}");
        Val { ty: Ty::scalar(pointer), text: name }
    }

    /// A label to be placed later.
    pub fn label(&mut self, stem: &str) -> Label {
        self.next += 1;
        Label(format!("{stem}.{}", self.next).into())
    }

    /// Starts the block of a label; an open block falls through to it.
    pub fn place(&mut self, label: &Label) {
        if self.open {
            self.br(label);
        }
        let _ = writeln!(self.body, "{}:", label.0);
        self.known = Known::default();
        self.open = true;
    }

    /// The facts that hold at the current place.
    pub fn known(&self) -> Known {
        self.known.clone()
    }

    /// Starts the block of a label that is reached only from places where these facts held, with no
    /// store to a register in between.
    pub fn place_behind(&mut self, label: &Label, known: Known) {
        self.place(label);
        self.known = known;
    }

    /// Whether a check was made on all paths to this place; records that it is made now.
    pub fn was_checked(&mut self, check: Check) -> bool {
        !self.known.checked.insert(check)
    }

    /// Emits an instruction with a result.
    pub fn value(&mut self, ty: Ty, text: fmt::Arguments<'_>) -> Val {
        let name = self.fresh();
        let _ = writeln!(self.body, "  {name} = {text}{}", self.lines.suffix());
        Val { ty, text: name }
    }

    /// Emits an instruction without a result.
    pub fn effect(&mut self, text: fmt::Arguments<'_>) {
        let _ = writeln!(self.body, "  {text}{}", self.lines.suffix());
    }

    /// Ends the block.
    pub fn terminate(&mut self, text: fmt::Arguments<'_>) {
        if self.open {
            let _ = writeln!(self.body, "  {text}{}", self.lines.suffix());
        }
        self.open = false;
    }

    /// Ends the block with a jump.
    pub fn br(&mut self, to: &Label) {
        self.terminate(format_args!("br label %{}", to.0));
    }

    /// Ends the block with a branch.
    pub fn br_if(&mut self, condition: &Val, yes: &Label, no: &Label) {
        self.terminate(format_args!("br {condition}, label %{}, label %{}", yes.0, no.0));
    }

    /// `op a, b` with the type of `a`.
    pub fn bin(&mut self, op: &str, a: &Val, b: &Val) -> Val {
        debug_assert_eq!(a.ty, b.ty, "{op}");
        self.value(a.ty, format_args!("{op} {a}, {}", b.text))
    }

    /// `op a, constant`.
    pub fn bin_const(&mut self, op: &str, a: &Val, b: i128) -> Val {
        let b = constant(a.ty, b);
        self.bin(op, a, &b)
    }

    /// `icmp` or `fcmp` by its full name (`icmp slt`).
    pub fn compare(&mut self, op: &str, a: &Val, b: &Val) -> Val {
        debug_assert_eq!(a.ty, b.ty, "{op}");
        self.value(a.ty.with(Elem::I1), format_args!("{op} {a}, {}", b.text))
    }

    /// `a` in the lanes where the condition holds, `b` elsewhere.
    pub fn select(&mut self, condition: &Val, a: &Val, b: &Val) -> Val {
        debug_assert_eq!(a.ty, b.ty, "select");
        self.value(a.ty, format_args!("select {condition}, {a}, {b}"))
    }

    /// A conversion instruction, or the value itself if it already has the type.
    pub fn cast(&mut self, op: &str, a: &Val, elem: Elem) -> Val {
        if a.ty.elem == elem {
            return a.clone();
        }
        let ty = a.ty.with(elem);
        self.value(ty, format_args!("{op} {a} to {ty}"))
    }

    /// Zero- or sign-extends or truncates an integer.
    pub fn resize(&mut self, a: &Val, elem: Elem, signed: bool) -> Val {
        let op = if elem.bits() < a.ty.elem.bits() {
            "trunc"
        } else if signed {
            "sext"
        } else {
            "zext"
        };
        self.cast(op, a, elem)
    }

    /// Reinterprets the bits as another type; extends or truncates if the width differs.
    pub fn reinterpret(&mut self, value: &Val, elem: Elem, signed: bool) -> Val {
        let from = value.ty.elem;
        if from == elem {
            return value.clone();
        }
        let int = if from.is_float() { self.cast("bitcast", value, Elem::int(from.bits())) } else { value.clone() };
        let sized = self.resize(&int, Elem::int(elem.bits()), signed);
        if elem.is_float() { self.cast("bitcast", &sized, elem) } else { sized }
    }

    /// A call of an intrinsic overloaded on its result type: `llvm.fma` becomes `@llvm.fma.v32f32`.
    pub fn call(&mut self, intrinsic: &str, ty: Ty, arguments: &[&Val]) -> Val {
        let overload = ty.mangled();
        self.call_named(&format!("{intrinsic}.{overload}"), ty, arguments)
    }

    /// A call by full name.
    pub fn call_named(&mut self, name: &str, ty: Ty, arguments: &[&Val]) -> Val {
        let arguments: Vec<String> = arguments.iter().map(|a| a.to_string()).collect();
        self.value(ty, format_args!("call {ty} @{name}({})", arguments.join(", ")))
    }

    /// One value in every lane.
    pub fn splat(&mut self, a: &Val, lanes: u32) -> Val {
        if lanes == 1 || a.ty.lanes != 1 {
            return a.clone();
        }
        let ty = Ty { elem: a.ty.elem, lanes };
        let is_constant = !a.text.starts_with('%') && !a.text.starts_with('@') && a.ty.elem != Elem::Ptr;
        if is_constant {
            return Val { ty, text: format!("splat ({} {})", a.ty.elem, a.text).into() };
        }
        let one = self.value(ty, format_args!("insertelement {ty} poison, {a}, i64 0"));
        self.value(ty, format_args!("shufflevector {one}, {ty} poison, <{lanes} x i32> zeroinitializer"))
    }

    /// A shuffle of one vector by a constant pattern.
    pub fn shuffle(&mut self, a: &Val, pattern: &[u32]) -> Val {
        let ty = Ty { elem: a.ty.elem, lanes: pattern.len() as u32 };
        let lanes: Vec<String> = pattern.iter().map(|i| format!("i32 {i}")).collect();
        self.value(ty, format_args!("shufflevector {a}, {} poison, <{} x i32> <{}>", a.ty, ty.lanes, lanes.join(", ")))
    }

    /// A shuffle of two vectors by a constant pattern.
    pub fn shuffle2(&mut self, a: &Val, b: &Val, pattern: &[u32]) -> Val {
        let ty = Ty { elem: a.ty.elem, lanes: pattern.len() as u32 };
        let lanes: Vec<String> = pattern.iter().map(|i| format!("i32 {i}")).collect();
        self.value(ty, format_args!("shufflevector {a}, {b}, <{} x i32> <{}>", ty.lanes, lanes.join(", ")))
    }

    /// Lane `index` (any integer type) of a vector.
    pub fn extract(&mut self, a: &Val, index: &Val) -> Val {
        self.value(Ty::scalar(a.ty.elem), format_args!("extractelement {a}, {index}"))
    }

    /// Loads from a stack slot or a pointer with natural alignment.
    pub fn load(&mut self, ty: Ty, pointer: &Val) -> Val {
        if let Some(value) = self.known.registers.get(&pointer.text) {
            debug_assert_eq!(value.ty, ty, "a register is of one type");
            return value.clone();
        }
        let value = self.value(ty, format_args!("load {ty}, {pointer}"));
        self.note(pointer, &value);
        value
    }

    /// Stores to a stack slot or a pointer with natural alignment.
    pub fn store(&mut self, value: &Val, pointer: &Val) {
        self.effect(format_args!("store {value}, {pointer}"));
        self.note(pointer, value);
    }

    fn note(&mut self, slot: &Val, value: &Val) {
        if self.registers.contains(&slot.text) {
            self.known.registers.insert(slot.text.clone(), value.clone());
        }
    }

    /// `pointer + bytes`.
    pub fn offset(&mut self, pointer: &Val, bytes: &Val) -> Val {
        self.value(pointer.ty, format_args!("getelementptr i8, {pointer}, {bytes}"))
    }

    /// `pointer + bytes` for a constant distance.
    pub fn offset_const(&mut self, pointer: &Val, bytes: u64) -> Val {
        if bytes == 0 {
            pointer.clone()
        } else {
            self.value(pointer.ty, format_args!("getelementptr i8, {pointer}, i64 {bytes}"))
        }
    }

    /// The finished body, from the entry block on.
    pub fn finish(self) -> String {
        format!("entry:\n{}  br label %start\n{}", self.allocas, self.body)
    }
}

/// Intrinsics whose spelling depends on the LLVM version. Only this table differs between versions.
pub mod intrinsics {
    use super::{Elem, Ty, Val, Writer};

    /// `align n` is an attribute of the pointer since LLVM 22 and an operand of its own before.
    fn pointer_and_align(pointer: &Val, align: u32) -> String {
        if cfg!(feature = "llvm19") {
            format!("{pointer}, i32 {align}")
        } else {
            format!("{} align {align} {}", pointer.ty, pointer.text)
        }
    }

    /// The smaller or larger of two numbers; −0 is less than +0, and a NaN yields the other
    /// operand.
    pub fn extreme_number(w: &mut Writer, is_max: bool, a: &Val, b: &Val) -> Val {
        if cfg!(not(feature = "llvm19")) {
            return w.call(if is_max { "llvm.maximumnum" } else { "llvm.minimumnum" }, a.ty, &[a, b]);
        }
        let plain = w.call(if is_max { "llvm.maximum" } else { "llvm.minimum" }, a.ty, &[a, b]);
        let a_is_nan = w.compare("fcmp uno", a, a);
        let b_is_nan = w.compare("fcmp uno", b, b);
        let value = w.select(&b_is_nan, a, &plain);
        w.select(&a_is_nan, b, &value)
    }

    /// Contiguous load of the lanes in `mask`; the others are zero.
    ///
    /// A wide load is written in pieces of one machine register: if LLVM 22 has to split a load
    /// itself, it treats a piece with a constant false mask as a load without a mask, and so reads
    /// memory that the lanes must not read.
    pub fn masked_load(w: &mut Writer, ty: Ty, pointer: &Val, align: u32, mask: &Val, register_bits: u32) -> Val {
        let lanes = (register_bits / ty.elem.bits()).min(ty.lanes);
        let piece = Ty { lanes, ..ty };
        let mut pieces: Vec<Val> = (0..ty.lanes / lanes)
            .map(|i| {
                let part: Vec<u32> = (i * lanes..(i + 1) * lanes).collect();
                let mask = if lanes == ty.lanes { mask.clone() } else { w.shuffle(mask, &part) };
                let at = w.offset_const(pointer, u64::from(i * lanes * ty.elem.bytes()));
                let at = pointer_and_align(&at, align);
                w.value(
                    piece,
                    format_args!(
                        "call {piece} @llvm.masked.load.{}.p0({at}, {mask}, {piece} zeroinitializer)",
                        piece.mangled()
                    ),
                )
            })
            .collect();
        while pieces.len() > 1 {
            pieces = pieces
                .chunks(2)
                .map(|pair| w.shuffle2(&pair[0], &pair[1], &(0..2 * pair[0].ty.lanes).collect::<Vec<_>>()))
                .collect();
        }
        pieces.remove(0)
    }

    /// Contiguous store of the lanes in `mask`.
    pub fn masked_store(w: &mut Writer, value: &Val, pointer: &Val, align: u32, mask: &Val) {
        let at = pointer_and_align(pointer, align);
        w.effect(format_args!("call void @llvm.masked.store.{}.p0({value}, {at}, {mask})", value.ty.mangled()));
    }

    /// Load through a vector of pointers.
    pub fn gather(w: &mut Writer, elem: Elem, pointers: &Val, align: u32, mask: &Val) -> Val {
        let ty = pointers.ty.with(elem);
        let at = pointer_and_align(pointers, align);
        let name = format!("llvm.masked.gather.{}.{}", ty.mangled(), pointers.ty.mangled());
        w.value(ty, format_args!("call {ty} @{name}({at}, {mask}, {ty} zeroinitializer)"))
    }

    /// Store through a vector of pointers; of two lanes with the same address the higher one wins.
    pub fn scatter(w: &mut Writer, value: &Val, pointers: &Val, align: u32, mask: &Val) {
        let at = pointer_and_align(pointers, align);
        let name = format!("llvm.masked.scatter.{}.{}", value.ty.mangled(), pointers.ty.mangled());
        w.effect(format_args!("call void @{name}({value}, {at}, {mask})"));
    }
}
