//! Emits LLVM IR for a kernel.
//!
//! A thread of PTX is a lane. A basic block of the kernel is a basic block of LLVM, and a branch is
//! a branch. Registers of PTX are stack slots, which LLVM turns into SSA values.
//!
//! *Addresses.* Shared memory has addresses from 0, like the LDS of a block. Local memory has
//! addresses from the start of the thread's stack array. Global and generic addresses are those of
//! the processor.

mod access;
mod atomic;
mod barrier;
mod clock;
mod copy;
mod directed;
mod fragments;
mod inst;
mod matrix;
mod memory;
mod print;
mod trap;
mod value;
mod warp;

pub(crate) use print::print_definitions;

use crate::TARGET;
use crate::abi;
use crate::architecture::Architecture;
use atoll_emit::math::Routine;
use atoll_emit::writer::{Elem, I1, I32, I64, Label, Spelling, Ty, Val, Writer, constant};
use atoll_emit::{Emit, Rounded, Rounding};
use atoll_lower::LowerError;
use atoll_lower::analysis::Analysis;
use atoll_lower::program::{BlockId, ENTRY, EXIT, Inst, Opnd, Program, Reg, Term};
use atoll_lower::shape::BlockShape;
use atoll_ptx::{Name, ScalarType};
use std::collections::BTreeSet;

/// The address space of global memory.
const GLOBAL: u8 = 1;
/// The address space of shared memory (LDS).
const SHARED: u8 = 3;
/// The address space of memory that does not change during a launch.
const CONSTANT: u8 = 4;
/// The address space of a thread's private memory (scratch).
const PRIVATE: u8 = 5;

/// The IR of one kernel, and what its module needs for it.
#[derive(Debug)]
pub(crate) struct EmittedKernel {
    pub(crate) name: Name,
    /// The body of the function.
    pub(crate) body: String,
    /// The math routines that it calls.
    pub(crate) math: BTreeSet<Routine>,
    /// The block shape.
    pub(crate) block: BlockShape,
    /// Bytes of PTX's parameter block.
    pub(crate) params_bytes: u32,
    /// Bytes of shared memory of every block, up to the start of the dynamic part.
    pub(crate) shared_bytes: u32,
    /// Whether it prints; see [`print_definitions`].
    pub(crate) prints: bool,
}

/// Emits one kernel.
#[derive(Debug)]
pub(crate) struct Emitter<'a> {
    w: Writer,
    program: &'a Program,
    analysis: &'a Analysis,
    architecture: Architecture,
    /// Registers that never hold a subnormal f32.
    flushed: Vec<bool>,
    /// The stack slot of each register.
    slots: Vec<Val>,
    /// The label of each block.
    labels: Vec<Label>,
    /// The thread's local memory.
    local: Option<Val>,
    /// The predicate of the current instruction, if its destination keeps the old value where the
    /// predicate does not hold.
    kept_unless: Option<Val>,
    line: u32,
    barriers: barrier::Plan,
    math: BTreeSet<Routine>,
    /// Whether the kernel prints.
    prints: bool,
}

/// Emits a kernel's IR.
pub(crate) fn emit_kernel(
    program: &Program,
    analysis: &Analysis,
    architecture: Architecture,
) -> Result<EmittedKernel, LowerError> {
    let mut w = Writer::with_stack(PRIVATE);
    let slots = program.regs.iter().map(|reg| w.register(Ty::scalar(reg.elem))).collect();
    let local = (program.local_bytes > 0).then(|| {
        let array = format!("[{} x i8]", program.local_bytes);
        w.stack_memory(&array, 1 << atoll_lower::program::LOCAL_ZEROS)
    });
    let labels = (0..program.blocks.len()).map(|block| w.label(&format!("b{block}"))).collect();
    let barriers = barrier::Plan::of(program, analysis, architecture);
    let emitter = Emitter {
        w,
        program,
        analysis,
        architecture,
        flushed: atoll_lower::flushed::flushed_registers(program),
        slots,
        labels,
        local,
        kept_unless: None,
        line: 0,
        barriers,
        math: BTreeSet::new(),
        prints: false,
    };
    emitter.run()
}

impl Emitter<'_> {
    fn run(mut self) -> Result<EmittedKernel, LowerError> {
        self.refuse_spins()?;
        self.w.place(&Label("start".into()));
        let entry = self.labels[ENTRY].clone();
        self.w.br(&entry);
        for block in (ENTRY..self.program.blocks.len()).chain([EXIT]) {
            let label = self.labels[block].clone();
            self.w.place(&label);
            let program = self.program;
            for inst in &program.blocks[block].insts {
                self.instruction(inst)?;
            }
            self.line = program.blocks[block].line;
            self.terminator(block)?;
        }
        Ok(EmittedKernel {
            name: self.program.name.clone(),
            body: self.w.finish(),
            math: self.math,
            block: self.analysis.block,
            params_bytes: self.program.params_bytes,
            shared_bytes: self.barriers.dynamic_start(),
            prints: self.prints,
        })
    }

    fn terminator(&mut self, block: BlockId) -> Result<(), LowerError> {
        match &self.program.blocks[block].term {
            Term::Goto(next) => self.goto(*next),
            Term::Branch { pred, negated, taken, other } => {
                let holds = self.read(*pred);
                let (taken, other) = (self.labels[*taken].clone(), self.labels[*other].clone());
                let (yes, no) = if *negated { (&other, &taken) } else { (&taken, &other) };
                self.w.br_if(&holds, yes, no);
            }
            Term::Barrier { next, participants, reduce } => {
                self.barrier(block, participants, reduce.as_ref())?;
                self.goto(*next);
            }
            Term::Exit => self.w.terminate(format_args!("ret void")),
        }
        Ok(())
    }

    fn goto(&mut self, block: BlockId) {
        let label = self.labels[block].clone();
        self.w.br(&label);
    }

    /// Refuses loops that wait for a lock. The lanes of a wave run in lock step: a lane that has
    /// taken the lock would wait after the loop for the lanes that still wait for the lock.
    fn refuse_spins(&self) -> Result<(), LowerError> {
        let Some(head) = self.analysis.spins.first().filter(|_| self.analysis.block.threads() > 1) else {
            return Ok(());
        };
        let block = &self.program.blocks[*head];
        let line = block.insts.iter().map(|inst| inst.line).find(|line| *line > 0).unwrap_or(block.line);
        Err(self.refused(line, "a loop that waits for a write of another thread, which may be a lane of the same wave"))
    }

    fn refused(&self, line: u32, what: impl Into<String>) -> LowerError {
        LowerError::Unsupported { target: TARGET, kernel: self.program.name.clone(), line, what: what.into() }
    }

    fn unsupported(&self, inst: &Inst, what: &str) -> LowerError {
        atoll_emit::unsupported(self, inst, what)
    }

    fn malformed(&self, inst: &Inst, what: &str) -> LowerError {
        atoll_emit::malformed(self, inst, what)
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

    fn get(&mut self, operand: &Opnd, elem: Elem, _lanes: u32) -> Val {
        self.operand(operand, elem)
    }

    fn set_operand(&mut self, operand: &Opnd, value: &Val, signed: bool) {
        if let Opnd::Reg(reg) = operand {
            self.set(*reg, value, signed);
        }
    }

    fn lanes_of(&self, _inst: &Inst) -> u32 {
        1
    }

    fn all_lanes(&self) -> u32 {
        1
    }

    fn is_uniform(&self, _operand: &Opnd) -> bool {
        true
    }

    fn is_flushed(&self, reg: Reg) -> bool {
        self.flushed[reg]
    }

    fn extended(&mut self, operand: &Opnd, ty: ScalarType, to: Elem, _lanes: u32) -> Val {
        let value = self.operand(operand, Elem::int(ty.bits()));
        self.w.resize(&value, to, atoll_lower::program::is_signed(ty))
    }

    fn directed(&mut self, op: Rounded, rounding: Rounding, arguments: &[&Val]) -> Val {
        self.rounded_towards(op, rounding, arguments)
    }

    fn half_directed(&mut self, value: &Val, rounding: Rounding) -> Val {
        self.half_towards(value, rounding)
    }

    /// LLVM 22 makes a product that is rounded to f16 a `v_fma_mixlo_f16` with an addend of +0, so
    /// a product of −0 would become +0.
    fn before_half(&mut self, value: &Val) -> Val {
        self.w.value(value.ty, format_args!("call {} asm \"\", \"=v,0\"({value})", value.ty))
    }

    fn use_routine(&mut self, routine: Routine) {
        self.math.insert(routine);
    }

    fn approximation(&mut self, inst: &Inst, arguments: &[Val]) -> Option<Val> {
        let name = match inst.form.opcode.as_str() {
            "ex2" => "llvm.exp2",
            "lg2" => "llvm.log2",
            _ => return None,
        };
        let [a] = arguments else { return None };
        Some(self.w.call(name, a.ty, &[a]))
    }
}

/// A symbol in LLVM's syntax. Quoted, because PTX names may contain `$`.
pub(crate) fn quoted(name: &str) -> String {
    format!("\"{name}\"")
}

/// A pointer type.
fn pointer(space: u8) -> Elem {
    if space == 0 { Elem::Ptr } else { Elem::Space(space) }
}
