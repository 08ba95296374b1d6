//! Emits LLVM IR for an analysed kernel.
//!
//! The emitted function runs blocks `block_begin..block_end`. A block is a sequence of *regions*,
//! each the code from one barrier to the next; a region runs for all warps of the block before the
//! next one starts. Within a region a warp is 32 vector lanes (`flow`). PTX registers are stack
//! slots that LLVM turns into SSA values; values that a warp needs beyond a barrier are stored in
//! its record in scratch memory (`regions`). If warps may wait at different barriers, or spin on
//! memory, the code of a warp is one function and each warp has its own stack (`fibers`).
//!
//! Invariant: whenever emitted code runs, at least one lane of the current mask is active. Scalar
//! memory accesses therefore need no test for an active lane.

mod access;
mod atomic;
mod bounds;
mod copy;
mod faults;
mod fibers;
mod flow;
mod fragments;
mod inst;
mod matrix;
mod memory;
mod prefetch;
mod print;
mod regions;
mod rounding;
mod spaces;
mod strided;
mod value;
mod warp;

pub(crate) use fibers::{FIBER_ALIGN, FIBER_RESERVE_BYTES};

use crate::error::HostError;
use crate::{CpuLevel, TARGET};
use atoll_emit::math::Routine;
use atoll_emit::writer::{Elem, I1, I32, I64, Label, Ty, Val, Writer, constant};
use atoll_emit::{Arithmetic, Emit, Rounded, Rounding};
use atoll_kgraph::host_abi::offsets;
use atoll_lower::LowerError;
use atoll_lower::alignment::Alignments;
use atoll_lower::analysis::Analysis;
use atoll_lower::loads::Loads;
use atoll_lower::program::{Inst, Opnd, Program, Reg};
use atoll_ptx::ScalarType;
use std::collections::{BTreeSet, HashMap};

/// Lanes of a warp.
pub(crate) const LANES: u32 = 32;

/// A pointer.
pub(crate) const PTR: Ty = Ty { elem: Elem::Ptr, lanes: 1 };
/// A mask: one predicate per lane.
pub(crate) const MASK: Ty = Ty { elem: Elem::I1, lanes: LANES };

/// One kernel's IR and the requirements of its launch.
#[derive(Debug)]
pub(crate) struct EmittedKernel {
    /// The function's text, from `define` to `}`.
    pub(crate) text: String,
    /// The metadata that its text refers to.
    pub(crate) lines: String,
    /// Math routines it calls (see [`atoll_emit::math`]).
    pub(crate) math: BTreeSet<Routine>,
    /// Module variables it refers to.
    pub(crate) globals: BTreeSet<atoll_ptx::Name>,
    /// Scratch memory per compute unit in bytes, without the stacks of fibers.
    pub(crate) scratch_bytes: u32,
    /// Number of fibers, each of which needs a stack.
    pub(crate) fibers: u32,
}

/// Values computed once, at the start of the kernel.
#[derive(Debug)]
struct Fixed {
    params: Val,
    shared: Val,
    scratch: Val,
    stop_word: Val,
    helpers: Val,
    block_word: Val,
    halt_word: Val,
    grid: [Val; 3],
    begin: Val,
    end: Val,
}

/// Emits one kernel.
#[derive(Debug)]
pub(crate) struct Emitter<'a> {
    w: Writer,
    program: &'a Program,
    analysis: &'a Analysis,
    level: CpuLevel,
    /// Registers that never hold a subnormal f32.
    flushed: Vec<bool>,
    /// Stack slot of each register.
    slots: Vec<Val>,
    /// Block index along x, y, z.
    ctaid: [Val; 3],
    /// Index of the running warp.
    warp: Val,
    /// Lanes that have not left the kernel.
    live: Val,
    fixed: Fixed,
    /// Lanes that the current instruction works on; `None` means all 32.
    mask: Option<Val>,
    /// The current instruction's guard, if it is uniform; the result is then selected by it.
    scalar_guard: Option<Val>,
    /// The current instruction keeps old values under a guard that differs between lanes.
    keep_old: bool,
    line: u32,
    loads: Loads,
    alignments: Alignments,
    /// Every access is checked by the device first.
    check: bool,
    flow: flow::Flow,
    regions: regions::Regions,
    /// Stack arrays for lane loops, by element and purpose.
    lane_arrays: HashMap<(Elem, u8), Val>,
    math: BTreeSet<Routine>,
    globals: BTreeSet<atoll_ptx::Name>,
    /// Definitions of strings.
    texts: Vec<String>,
    /// The block's frame, in the function of a warp that runs as a fiber.
    frame: Option<Val>,
}

/// Emits a kernel's IR.
pub(crate) fn emit_kernel(
    program: &Program,
    analysis: &Analysis,
    level: CpuLevel,
    check: bool,
) -> Result<EmittedKernel, HostError> {
    let mut w = Writer::default();
    let slots = (program.regs.iter().zip(&analysis.shapes))
        .map(|(reg, shape)| w.register(Ty { elem: reg.elem, lanes: if shape.is_scalar() { 1 } else { LANES } }))
        .collect();
    let [x, y, z] = [0; 3].map(|_| w.register(I32));
    let (warp, live) = (w.register(I32), w.register(MASK));
    w.place(&Label("start".into()));
    let fixed = load_context(&mut w);
    let emitter = Emitter {
        w,
        program,
        analysis,
        level,
        flushed: atoll_lower::flushed::flushed_registers(program),
        slots,
        ctaid: [x, y, z],
        warp,
        live,
        fixed,
        mask: None,
        scalar_guard: None,
        keep_old: false,
        line: 0,
        loads: Loads::of(program),
        alignments: Alignments::of(program, analysis.block),
        check,
        flow: flow::Flow::new(program, analysis),
        regions: regions::Regions::plan(program, analysis)
            .map_err(|error| LowerError::too_large(TARGET, &program.name, error))?,
        lane_arrays: HashMap::new(),
        math: BTreeSet::new(),
        globals: BTreeSet::new(),
        texts: Vec::new(),
        frame: None,
    };
    emitter.run()
}

/// Loads the fields of the context that do not change.
fn load_context(w: &mut Writer) -> Fixed {
    let context = Val { ty: PTR, text: "%context".into() };
    let mut field = |offset: usize, ty: Ty| {
        let at = w.offset_const(&context, offset as u64);
        w.value(ty, format_args!("load {ty}, {at}, !invariant.load !0"))
    };
    Fixed {
        params: field(offsets::PARAMS, PTR),
        shared: field(offsets::SHARED, PTR),
        scratch: field(offsets::SCRATCH, PTR),
        stop_word: field(offsets::STOP_WORD, PTR),
        helpers: field(offsets::HELPERS, PTR),
        block_word: field(offsets::BLOCK_WORD, PTR),
        halt_word: field(offsets::HALT_WORD, PTR),
        grid: [0, 4, 8].map(|o| field(offsets::GRID + o, I32)),
        begin: field(offsets::BLOCK_BEGIN, I64),
        end: field(offsets::BLOCK_END, I64),
    }
}

impl Emitter<'_> {
    fn run(mut self) -> Result<EmittedKernel, HostError> {
        let functions = if self.analysis.scheduled {
            self.scheduled_kernel()?
        } else {
            self.block_loop()?;
            let lines = std::mem::take(&mut self.w.lines);
            let body = std::mem::take(&mut self.w).finish();
            self.w.lines = lines;
            format!("define void @{}(ptr noundef %context) #0 !dbg !103 {{\n{body}}}\n", quoted(&self.program.name))
        };
        Ok(EmittedKernel {
            text: self.texts.concat() + &functions,
            lines: self.w.lines.metadata(&self.program.name),
            math: self.math,
            globals: self.globals,
            scratch_bytes: self.regions.scratch_bytes(),
            fibers: if self.analysis.scheduled { self.analysis.block.warps() } else { 0 },
        })
    }

    /// The loop over blocks: polls the stop word, runs the regions, advances the block index.
    fn block_loop(&mut self) -> Result<(), HostError> {
        let index = self.w.register(I64);
        let (head, poll, body, done, out) = (
            self.w.label("blocks"),
            self.w.label("poll"),
            self.w.label("block"),
            self.w.label("block_done"),
            self.w.label("return"),
        );
        let begin = self.fixed.begin.clone();
        self.w.store(&begin, &index);
        self.first_block_index();
        self.w.place(&head);
        let now = self.w.load(I64, &index);
        let end = self.fixed.end.clone();
        let more = self.w.compare("icmp ult", &now, &end);
        self.w.br_if(&more, &poll, &out);
        self.w.place(&poll);
        let stop_word = self.fixed.stop_word.clone();
        let stop = self.w.value(I32, format_args!("load atomic volatile i32, {stop_word} monotonic, align 4"));
        let go = self.w.compare("icmp eq", &stop, &constant(I32, 0));
        self.w.br_if(&go, &body, &out);
        self.w.place(&body);
        let block_word = self.fixed.block_word.clone();
        self.w.effect(format_args!("store volatile {now}, {block_word}"));
        match self.analysis.scheduled {
            true => self.schedule(&done),
            false => self.regions(&done)?,
        }
        self.w.place(&done);
        self.next_block_index();
        let now = self.w.load(I64, &index);
        let next = self.w.bin_const("add", &now, 1);
        self.w.store(&next, &index);
        self.w.br(&head);
        self.w.place(&out);
        self.w.terminate(format_args!("ret void"));
        Ok(())
    }

    /// x, y, z of the first block, by division; the following blocks are found by stepping.
    fn first_block_index(&mut self) {
        let [gx, gy, _] = self.fixed.grid.clone().map(|g| self.w.resize(&g, Elem::I64, false));
        // An empty grid must not lead to a division by zero.
        let one = constant(I64, 1);
        let gx = self.w.call("llvm.umax", I64, &[&gx, &one]);
        let gy = self.w.call("llvm.umax", I64, &[&gy, &one]);
        let begin = self.fixed.begin.clone();
        let x = self.w.bin("urem", &begin, &gx);
        let rows = self.w.bin("udiv", &begin, &gx);
        let y = self.w.bin("urem", &rows, &gy);
        let z = self.w.bin("udiv", &rows, &gy);
        for (value, slot) in [x, y, z].iter().zip(self.ctaid.clone()) {
            let value = self.w.resize(value, Elem::I32, false);
            self.w.store(&value, &slot);
        }
    }

    fn next_block_index(&mut self) {
        let [x, y, z] = self.ctaid.clone();
        let [gx, gy, _] = self.fixed.grid.clone();
        let zero = constant(I32, 0);
        let step = |w: &mut Writer, slot: &Val, carry: &Val, limit: &Val| {
            let old = w.load(I32, slot);
            let next = w.bin("add", &old, carry);
            let wraps = w.compare("icmp eq", &next, limit);
            let kept = w.select(&wraps, &zero, &next);
            w.store(&kept, slot);
            w.resize(&wraps, Elem::I32, false)
        };
        let carry = step(&mut self.w, &x, &constant(I32, 1), &gx);
        let carry = step(&mut self.w, &y, &carry, &gy);
        let old = self.w.load(I32, &z);
        let next = self.w.bin("add", &old, &carry);
        self.w.store(&next, &z);
    }

    fn unsupported(&self, inst: &Inst, what: &str) -> HostError {
        let what = if what.is_empty() {
            format!("`{}`", inst.form.dotted())
        } else {
            format!("`{}`: {what}", inst.form.dotted())
        };
        LowerError::Unsupported { target: TARGET, kernel: self.program.name.clone(), line: self.line, what }.into()
    }

    fn malformed(&self, inst: &Inst, what: &str) -> HostError {
        LowerError::Malformed {
            kernel: self.program.name.clone(),
            line: self.line,
            reason: format!("`{}` {what}", inst.form.dotted()),
        }
        .into()
    }

    /// The context pointer.
    fn context(&self) -> Val {
        Val { ty: PTR, text: "%context".into() }
    }
}

impl Emit for Emitter<'_> {
    fn writer(&mut self) -> &mut Writer {
        &mut self.w
    }

    fn program(&self) -> &Program {
        self.program
    }

    fn target(&self) -> &'static str {
        TARGET
    }

    fn line(&self) -> u32 {
        self.line
    }

    fn get(&mut self, operand: &Opnd, elem: Elem, lanes: u32) -> Val {
        self.read_operand(operand, elem, lanes)
    }

    fn set_operand(&mut self, operand: &Opnd, value: &Val, signed: bool) {
        if let Opnd::Reg(reg) = operand {
            self.set(*reg, value, signed);
        }
    }

    fn lanes_of(&self, inst: &Inst) -> u32 {
        self.lanes_to_compute(inst)
    }

    fn all_lanes(&self) -> u32 {
        LANES
    }

    fn is_uniform(&self, operand: &Opnd) -> bool {
        self.stride(operand) == Some(0)
    }

    fn is_flushed(&self, reg: Reg) -> bool {
        self.flushed[reg]
    }

    fn extended(&mut self, operand: &Opnd, ty: ScalarType, to: Elem, lanes: u32) -> Val {
        self.extended_operand(operand, ty, to, lanes)
    }

    fn directed(&mut self, op: Rounded, rounding: Rounding, arguments: &[&Val]) -> Val {
        self.rounded_towards(op, rounding, arguments)
    }

    fn half_directed(&mut self, value: &Val, rounding: Rounding) -> Val {
        self.half_towards(value, rounding)
    }

    fn use_routine(&mut self, routine: Routine) {
        self.math.insert(routine);
    }
}

/// A symbol in LLVM's syntax. Quoted, because PTX names may contain `$`.
pub(crate) fn quoted(name: &str) -> String {
    format!("\"{name}\"")
}
