//! Shapes: what is known about the values of a register in the 32 lanes of a warp. The values are
//! equal, an arithmetic progression, or arbitrary.
//!
//! A register whose lanes are `base + lane · stride` is kept as the scalar `base`, the value of
//! lane 0. Element-wise operations then need only the lane-0 values of their operands, and memory
//! accesses are known to be contiguous. Progressions are exact modulo the register's width;
//! [`Shape::assumed`] describes the one exception.

mod arithmetic;

use crate::program::*;
use atoll_ptx::{Immediate, ScalarType, StateSpace, types::TypeClass};

/// Limit on the threads per axis of a launch. With `grid · block` below it, a global thread index
/// is an exact progression.
pub const MAX_THREADS_PER_AXIS: i128 = 1 << 31;
/// The last lane of a warp.
const LAST_LANE: i128 = 31;
/// Alignments are tracked up to this power of two.
const MAX_ALIGN_LOG2: u32 = 16;

/// The threads that agree on the value of lane 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// All warps of the block.
    Block,
    /// The lanes of one warp.
    Warp,
}

/// The shape of a register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Distance between lanes: `Some(0)` if all are equal, `None` if unknown.
    pub stride: Option<i64>,
    /// The threads that agree on lane 0.
    pub level: Level,
    /// The progression was widened without a proof that no lane wraps around in between. The value
    /// is correct in every lane whose address is valid. It may be used for addresses only; any
    /// other use makes the analysis give up the progression.
    pub assumed: bool,
    /// Bounds of every lane's value, taken as a mathematical integer; `None` if unknown.
    pub range: Option<(i128, i128)>,
    /// log2 of a power of two that divides lane 0.
    pub align_log2: u32,
}

impl Shape {
    /// Nothing is known.
    pub const VECTOR: Shape = Shape { stride: None, level: Level::Warp, assumed: false, range: None, align_log2: 0 };

    /// The same value in every lane.
    pub const fn uniform(level: Level) -> Shape {
        Shape { stride: Some(0), level, assumed: false, range: None, align_log2: 0 }
    }

    fn number(value: i128) -> Shape {
        let align_log2 = if value == 0 { MAX_ALIGN_LOG2 } else { value.trailing_zeros().min(MAX_ALIGN_LOG2) };
        Shape { range: Some((value, value)), align_log2, ..Shape::uniform(Level::Block) }
    }

    fn in_range(self, low: i128, high: i128) -> Shape {
        Shape { range: Some((low, high)), ..self }
    }

    fn aligned(self, align_log2: u32) -> Shape {
        Shape { align_log2: align_log2.min(MAX_ALIGN_LOG2), ..self }
    }

    /// Whether one scalar represents all lanes, alone or with a stride.
    pub fn is_scalar(self) -> bool {
        self.stride.is_some()
    }

    /// Whether all lanes are equal.
    pub fn is_uniform(self) -> bool {
        self.stride == Some(0)
    }

    /// The value of a uniform register, if known.
    pub fn known(self) -> Option<i128> {
        self.range.filter(|(low, high)| low == high && self.is_uniform()).map(|r| r.0)
    }

    /// The common part of the shapes of two definitions of a register.
    fn join(self, other: Shape) -> Shape {
        if self.stride != other.stride {
            return Shape::VECTOR;
        }
        let range = match (self.range, other.range) {
            (Some(a), Some(b)) => Some((a.0.min(b.0), a.1.max(b.1))),
            _ => None,
        };
        Shape {
            stride: self.stride,
            level: self.level.max(other.level),
            assumed: self.assumed || other.assumed,
            range,
            align_log2: self.align_log2.min(other.align_log2),
        }
    }

    /// Raises the level.
    pub fn at_least(self, level: Level) -> Shape {
        Shape { level: self.level.max(level), ..self }
    }

    /// Whether lane 0 is a multiple of `2^log2`, and the lanes ascend and stay within the `2^log2`
    /// values from lane 0 on.
    fn within_bucket(self, log2: u32) -> bool {
        self.stride.is_some_and(|s| s >= 0 && i128::from(s) * LAST_LANE < 1i128 << log2) && self.align_log2 >= log2
    }

    /// Keeps range and stride within a register of `bits` bits.
    fn wrapped(self, bits: u32) -> Shape {
        let fits = |r: &(i128, i128)| r.0 >= -(1i128 << (bits - 1)) && r.1 < 1i128 << bits;
        let stride = self.stride.map(|s| if bits >= 64 { s } else { (s << (64 - bits)) >> (64 - bits) });
        Shape { stride, range: self.range.filter(fits), ..self }
    }
}

/// The block shape that a kernel is compiled for, and what it implies for thread indices.
#[derive(Clone, Copy, Debug)]
pub struct BlockShape {
    /// Threads of a block along x, y, z.
    pub dims: [u32; 3],
}

impl BlockShape {
    /// Threads of a block.
    pub fn threads(self) -> u32 {
        self.dims.iter().product()
    }

    /// Warps of a block; the last one may be partial.
    pub fn warps(self) -> u32 {
        self.threads().div_ceil(32)
    }

    /// Whether every warp has 32 threads.
    pub fn is_full(self) -> bool {
        self.threads().is_multiple_of(32)
    }

    /// How `%tid` of an axis varies within a warp.
    pub fn tid(self, axis: usize) -> TidRun {
        let [x, y, z] = self.dims;
        if self.dims[axis] == 1 {
            TidRun::Zero
        } else if axis == 0 && y == 1 && z == 1 {
            TidRun::Linear
        } else if x.is_multiple_of(32) {
            if axis == 0 { TidRun::Row } else { TidRun::PerWarp }
        } else {
            TidRun::Irregular
        }
    }
}

/// How a thread index varies within a warp.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TidRun {
    /// Always 0.
    Zero,
    /// The linear thread index.
    Linear,
    /// `%tid.x` of a block whose rows are whole warps.
    Row,
    /// Equal in all lanes.
    PerWarp,
    /// Anything else.
    Irregular,
}

/// The shape of a special register.
pub fn special(special: Special, block: BlockShape) -> Shape {
    let uniform = Shape::uniform(Level::Block);
    match special {
        Special::Tid(axis) => {
            let top = i128::from(block.dims[axis]) - 1;
            match block.tid(axis) {
                TidRun::Zero => Shape::number(0),
                TidRun::Linear | TidRun::Row => {
                    let level = if block.warps() == 1 { Level::Block } else { Level::Warp };
                    Shape { stride: Some(1), ..Shape::uniform(level) }.in_range(0, top.max(LAST_LANE)).aligned(5)
                }
                TidRun::PerWarp => Shape::uniform(Level::Warp).in_range(0, top),
                TidRun::Irregular => Shape::VECTOR,
            }
        }
        Special::Ntid(axis) => Shape::number(block.dims[axis].into()),
        Special::Ctaid(axis) | Special::Nctaid(axis) => {
            uniform.in_range(0, MAX_THREADS_PER_AXIS / i128::from(block.dims[axis]) - 1)
        }
        Special::LaneId => Shape { stride: Some(1), ..uniform }.in_range(0, LAST_LANE).aligned(MAX_ALIGN_LOG2),
        Special::WarpId => Shape::uniform(if block.warps() == 1 { Level::Block } else { Level::Warp }).in_range(0, 31),
        Special::NWarpId => Shape::number(block.warps().into()),
        Special::NSmId => Shape::number(1),
        Special::SmId | Special::GridId | Special::DynamicShared | Special::TotalShared => uniform,
        Special::LaneMaskEq | Special::LaneMaskLe | Special::LaneMaskLt | Special::LaneMaskGe | Special::LaneMaskGt => {
            Shape::VECTOR
        }
        Special::Clock | Special::GlobalTimer => Shape::uniform(Level::Warp),
    }
}

/// Computes shapes of operands and results; `None` means "not known yet".
pub(crate) struct Operands<'a> {
    pub(crate) shapes: &'a [Option<Shape>],
    pub(crate) block: BlockShape,
    pub(crate) local_bytes: u32,
}

impl Operands<'_> {
    pub(crate) fn of(&self, operand: &Opnd) -> Option<Shape> {
        Some(match operand {
            Opnd::Reg(r) => self.shapes[*r]?,
            Opnd::Not(r) => Shape { range: None, align_log2: 0, ..self.shapes[*r]? },
            // Negation and selection of a part keep neither stride nor range.
            Opnd::Negated(whole) | Opnd::Part(whole, _) => self.meet(self.of(whole)?, Shape::uniform(Level::Block)),
            Opnd::Imm(Immediate::Int(value)) => Shape::number(*value),
            Opnd::Imm(_) | Opnd::Sink => Shape::uniform(Level::Block),
            Opnd::Special(s) => special(*s, self.block),
            Opnd::Symbol(Symbol::Param(at) | Symbol::Shared(at) | Symbol::Dynamic(at) | Symbol::Local(at)) => {
                // Static shared memory starts at a multiple of 16, as the dynamic part does.
                let align = if *at == 0 { 4 } else { at.trailing_zeros().min(4) };
                Shape::uniform(Level::Block).in_range(0, 1 << 31).aligned(align)
            }
            Opnd::Symbol(Symbol::Global(..)) => Shape::uniform(Level::Block),
            Opnd::Addr(base, _) => self.of(base)?,
            Opnd::Vec(parts) => self.all(parts)?,
            Opnd::Pair(a, b) => self.meet(self.of(a)?, self.of(b)?),
        })
    }

    /// Uniform if all operands are.
    fn all(&self, operands: &[Opnd]) -> Option<Shape> {
        operands.iter().try_fold(Shape::uniform(Level::Block), |sum, o| Some(self.meet(sum, self.of(o)?)))
    }

    fn meet(&self, a: Shape, b: Shape) -> Shape {
        if a.is_uniform() && b.is_uniform() { Shape::uniform(a.level.max(b.level)) } else { Shape::VECTOR }
    }

    /// The shape an instruction gives its destinations, without regard to its guard.
    pub(crate) fn result(&self, inst: &Inst) -> Option<Shape> {
        let sources = inst.sources();
        let ty = inst.form.ty();
        let bits = ty.map_or(32, ScalarType::bits);
        let is_int = ty.is_some_and(|t| matches!(t.class(), TypeClass::Bits | TypeClass::Unsigned | TypeClass::Signed))
            && !inst.has("sat");
        let arg = |i: usize| sources.get(i).map_or(Some(Shape::VECTOR), |o| self.of(o));
        Some(match inst.form.opcode.as_str() {
            "mov" if sources.len() == 1 && !matches!(sources[0], Opnd::Vec(_)) && inst.ops[0].is_single() => {
                // `mov` of a variable's name yields its address; any other `mov` keeps the shape of
                // its source.
                arg(0)?
            }
            "cvta" => self.cvta(inst, arg(0)?),
            // The carries of a progression form no progression: lanes overflow individually.
            "add" | "sub" | "mad" if inst.has("cc") => self.all(sources)?,
            "add" if is_int => arg(0)?.plus(arg(1)?).wrapped(bits),
            "sub" if is_int => arg(0)?.plus(arg(1)?.times_number(-1)).wrapped(bits),
            "neg" if is_int => arg(0)?.times_number(-1).wrapped(bits),
            "mul" if is_int && !inst.has("hi") => {
                let (a, b) = self.factors(inst, arg(0)?, arg(1)?, bits, ty);
                a.times(b).wrapped(if inst.has("wide") { 2 * bits } else { bits })
            }
            "mad" if is_int && !inst.has("hi") => {
                let (a, b) = self.factors(inst, arg(0)?, arg(1)?, bits, ty);
                a.times(b).plus(arg(2)?).wrapped(if inst.has("wide") { 2 * bits } else { bits })
            }
            "shl" => match arg(1)?.known() {
                Some(k) if (0..i128::from(bits)).contains(&k) => arg(0)?.times_number(1i128 << k).wrapped(bits),
                _ => self.meet(arg(0)?, arg(1)?),
            },
            "shr" => arg(0)?.shifted_right(arg(1)?).unwrap_or(self.meet(arg(0)?, arg(1)?)),
            "and" if is_int => {
                arg(0)?.masked(arg(1)?).or_else(|| arg(1)?.masked(arg(0)?)).unwrap_or(self.all(sources)?)
            }
            "or" if is_int => {
                arg(0)?.with_bits(arg(1)?).or_else(|| arg(1)?.with_bits(arg(0)?)).unwrap_or(self.all(sources)?)
            }
            "div" if is_int => {
                arg(0)?.divided(arg(1)?, ty.is_some_and(is_signed)).map_or(self.all(sources)?, |(q, _)| q)
            }
            "rem" if is_int => {
                let by = arg(1)?.known();
                let plain = self.all(sources)?;
                let result = arg(0)?.divided(arg(1)?, ty.is_some_and(is_signed)).map_or(plain, |(_, r)| r);
                match by {
                    Some(c) if c > 0 && (!ty.is_some_and(is_signed) || arg(0)?.range.is_some_and(|r| r.0 >= 0)) => {
                        result.in_range(0, c - 1)
                    }
                    _ => result,
                }
            }
            "setp" if is_int && sources.len() == 2 => self.compared(inst, arg(0)?, arg(1)?),
            "selp" if arg(2)?.is_uniform() && arg(0)?.stride == arg(1)?.stride && arg(0)?.is_scalar() => {
                arg(0)?.join(arg(1)?).at_least(arg(2)?.level)
            }
            "cvt" if sources.len() == 1 => self.converted(inst, arg(0)?)?,
            "ld" | "ldu" => self.loaded(inst, arg(0)?),
            "atom" | "vprintf" => Shape::VECTOR,
            // Lanes with different member masks get the results of their own groups.
            "vote" | "redux" if inst.has("sync") && !arg(1)?.is_uniform() => Shape::VECTOR,
            "vote" | "redux" | "activemask" => Shape::uniform(Level::Warp),
            "bar" | "barrier" => Shape::uniform(Level::Block),
            "shfl" => self.shuffled(inst, sources)?,
            "match" | "mma" | "wmma" | "ldmatrix" | "movmatrix" => Shape::VECTOR,
            _ => self.all(sources)?,
        })
    }

    /// Operands of a product, widened first for `mul.wide`.
    fn factors(&self, inst: &Inst, a: Shape, b: Shape, bits: u32, ty: Option<ScalarType>) -> (Shape, Shape) {
        if inst.has("wide") {
            let signed = ty.is_some_and(is_signed);
            (a.widened(bits, signed), b.widened(bits, signed))
        } else {
            (a, b)
        }
    }

    fn cvta(&self, inst: &Inst, a: Shape) -> Shape {
        if inst.form.space() != Some(StateSpace::Local) {
            return Shape { range: None, align_log2: a.align_log2.min(4), ..a };
        }
        // Each thread has its own part of the local memory.
        let step = i64::from(self.local_bytes);
        let sign = if inst.has("to") { -step } else { step };
        Shape { stride: a.stride.map(|s| s + sign), range: None, align_log2: 0, ..a }.at_least(Level::Warp)
    }

    fn converted(&self, inst: &Inst, a: Shape) -> Option<Shape> {
        let types: Vec<ScalarType> = inst.form.modifiers.iter().filter_map(|m| ScalarType::from_name(m)).collect();
        let (Some(&to), Some(&from)) = (types.first(), types.last()) else { return Some(Shape::VECTOR) };
        let is_float = |t: ScalarType| t.class() == TypeClass::Float;
        if types.len() != 2 || is_float(to) || is_float(from) || inst.has("sat") {
            return Some(if a.is_uniform() { Shape::uniform(a.level) } else { Shape::VECTOR });
        }
        // A register may be wider than the type read from it.
        let narrowed = a.wrapped(from.bits());
        Some(if to.bits() > from.bits() {
            narrowed.widened(from.bits(), is_signed(from))
        } else {
            narrowed.wrapped(to.bits())
        })
    }

    fn loaded(&self, inst: &Inst, address: Shape) -> Shape {
        let is_private = inst.form.space() == Some(StateSpace::Local);
        if !address.is_uniform() || is_private {
            return Shape::VECTOR;
        }
        // If other threads may change the value while the warps of the block read it in turn, only
        // the lanes of one warp agree on it.
        let is_weak = !["volatile", "relaxed", "acquire", "mmio"].iter().any(|m| inst.has(m));
        let level = if is_weak { address.level } else { Level::Warp };
        match inst.form.ty() {
            Some(ScalarType::U8) => Shape::uniform(level).in_range(0, 255),
            Some(ScalarType::U16) => Shape::uniform(level).in_range(0, 65535),
            _ => Shape::uniform(level),
        }
    }

    fn shuffled(&self, inst: &Inst, sources: &[Opnd]) -> Option<Shape> {
        let whole_warp = matches!(sources.get(2), Some(Opnd::Imm(Immediate::Int(31))));
        let from = sources.get(1).map_or(Some(Shape::VECTOR), |o| self.of(o))?;
        Some(if inst.has("idx") && whole_warp && from.is_uniform() {
            Shape::uniform(Level::Warp)
        } else {
            Shape::VECTOR
        })
    }

    /// A comparison is uniform if its operands are, or if no lane crosses the bound.
    fn compared(&self, inst: &Inst, a: Shape, b: Shape) -> Shape {
        let bucket = |x: Shape, bound: Shape| {
            let log2 = bound.align_log2.min(x.align_log2);
            bound.is_uniform() && x.stride.is_some_and(|s| s > 0) && x.within_bucket(log2)
        };
        let left = (inst.has("lt") || inst.has("ge") || inst.has("lo") || inst.has("hs")) && bucket(a, b);
        let right = (inst.has("gt") || inst.has("le") || inst.has("hi") || inst.has("ls")) && bucket(b, a);
        if left || right { Shape::uniform(a.level.max(b.level)) } else { self.meet(a, b) }
    }
}

impl Opnd {
    /// Whether the operand is a single register.
    pub fn is_single(&self) -> bool {
        matches!(self, Opnd::Reg(_))
    }
}
