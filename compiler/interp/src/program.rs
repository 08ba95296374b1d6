//! A kernel and all functions and variables it can reach, decoded once.

use crate::decode::Decoder;
use crate::memory::GlobalVariable;
use crate::op::{Dst, Formal, Function, Inst, Op};
use crate::symbols::Symbols;
use atoll_ptx::analysis::Code;
use atoll_ptx::{FunctionKind, ItemKind, Module, StateSpace, StatementKind, Variable};
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use thiserror::Error;

/// Maximum number of registers of one function. With this many, a thousand threads take half a
/// gigabyte.
const REGISTERS_MAX: usize = 1 << 16;

/// Maximum size in bytes of a frame's local memory, and of its parameters: the largest local memory
/// per thread of any device.
const FRAME_BYTES_MAX: u64 = atoll_ptx::limits::MAX_LOCAL_BYTES;

/// Counts programs, so that a [`Memory`](crate::Memory) can tell which program owns its variables.
static PROGRAMS: AtomicU64 = AtomicU64::new(1);

/// Why a kernel is not supported.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Refusal {
    /// The module has no such kernel with a body.
    #[error("the module has no kernel `{0}` with a body")]
    NoKernel(String),
    /// An instruction that is not supported or invalid.
    #[error("line {line}: {opcode}: {why}")]
    Instruction {
        /// Line of the PTX text; 0 for a built statement.
        line: u32,
        /// Opcode with modifiers.
        opcode: String,
        /// What is not supported.
        why: String,
    },
    /// The module as a whole is not supported.
    #[error("{0}")]
    Module(String),
}

/// A decoded kernel.
pub struct Program {
    pub(crate) id: u64,
    pub(crate) functions: Vec<Function>,
    pub(crate) globals: Vec<GlobalVariable>,
    pub(crate) constants: Vec<u8>,
    pub(crate) shared_static: u64,
}

impl std::fmt::Debug for Program {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Program").field("entry", &self.entry()).field("id", &self.id).finish_non_exhaustive()
    }
}

impl Program {
    /// Decodes a kernel and everything it can reach. The module should have passed
    /// [`atoll_ptx::verify`].
    pub fn new(module: &Module, entry: &str) -> Result<Program, Refusal> {
        let kernel = module.function(entry).filter(|f| f.kind == FunctionKind::Entry && f.body.is_some());
        let kernel = kernel.ok_or_else(|| Refusal::NoKernel(entry.to_owned()))?;
        address_size(module)?;
        let symbols = Symbols::of(module, kernel).map_err(Refusal::Module)?;
        let functions =
            symbols.functions.iter().map(|f| decode_function(module, &symbols, f)).collect::<Result<_, _>>()?;
        Ok(Program {
            id: PROGRAMS.fetch_add(1, Ordering::Relaxed),
            functions,
            shared_static: symbols.dynamic_shared(),
            globals: symbols.globals,
            constants: symbols.constants,
        })
    }

    /// The name of the kernel.
    pub fn entry(&self) -> &str {
        &self.functions[0].name
    }

    /// Size of the parameter block of a launch, in bytes.
    pub fn params_bytes(&self) -> usize {
        self.functions[0].own_params as usize
    }

    /// Bytes of static shared memory.
    pub fn shared_bytes(&self) -> u64 {
        self.shared_static
    }
}

/// Checks that the module has 64-bit addresses.
fn address_size(module: &Module) -> Result<(), Refusal> {
    for item in &module.items {
        if let ItemKind::Directive(directive) = &item.kind
            && directive.name == "address_size"
            && directive.arguments.first().is_some_and(|bits| bits != "64")
        {
            let why = "only 64-bit addresses are supported, as in `ptxas`".into();
            return Err(Refusal::Instruction { line: item.origin.line, opcode: format!(".{directive}"), why });
        }
    }
    Ok(())
}

/// The layout of a frame: its variables in the parameter area or in local memory.
#[derive(Default)]
pub(crate) struct Frame {
    places: HashMap<*const Variable, u32>,
    params_end: u64,
    local_end: u64,
}

impl Frame {
    pub(crate) fn place(&self, variable: &Variable) -> Option<u32> {
        self.places.get(&std::ptr::from_ref(variable)).copied()
    }

    fn add(&mut self, variable: &Variable) -> Result<(), String> {
        let end = match variable.space {
            StateSpace::Param => &mut self.params_end,
            StateSpace::Local => &mut self.local_end,
            _ => return Ok(()),
        };
        let at = end.next_multiple_of(u64::from(variable.alignment().max(1)));
        let bytes = variable.bytes().filter(|b| at + b <= FRAME_BYTES_MAX);
        *end =
            at + bytes.ok_or_else(|| format!("variable `{}` is larger than {FRAME_BYTES_MAX} bytes", variable.name))?;
        self.places.insert(std::ptr::from_ref(variable), at as u32);
        Ok(())
    }
}

fn decode_function(
    module: &Module,
    symbols: &Symbols<'_>,
    function: &atoll_ptx::Function,
) -> Result<Function, Refusal> {
    let whole = |why: String| Refusal::Module(format!("function `{}`: {why}", function.name));
    let code = Code::of(function);
    // Register 0 is the carry.
    let mut registers = 1usize;
    let slots: Vec<u32> = code
        .registers()
        .iter()
        .map(|r| {
            let at = registers as u32;
            registers += usize::from(r.vector.unwrap_or(1)) * r.ty.bytes().div_ceil(8) as usize;
            at
        })
        .collect();
    if registers > REGISTERS_MAX {
        return Err(whole(format!("more than {REGISTERS_MAX} registers")));
    }
    let mut frame = Frame::default();
    function.params.iter().try_for_each(|p| frame.add(p)).map_err(whole)?;
    let own_params = frame.params_end;
    function.returns.iter().try_for_each(|p| frame.add(p)).map_err(whole)?;
    for (_, statement) in code.statements() {
        if let StatementKind::Variable(variable) = &statement.kind {
            frame.add(variable).map_err(whole)?;
        }
    }
    // A register parameter that is never read has no slot; it is assigned to an extra slot that is
    // never read.
    let unread = registers as u32;
    let formal = |v: &Variable| match frame.place(v) {
        Some(at) => Formal::Memory(at, v.bytes().unwrap_or(0) as u32),
        None => {
            let found = code.registers().iter().position(|r| r.name == v.name);
            Formal::Register(Dst { slot: found.map_or(unread, |index| slots[index]), bits: v.ty.bits() })
        }
    };
    let (params, returns) =
        (function.params.iter().map(formal).collect(), function.returns.iter().map(formal).collect());
    let code =
        instructions(&Decoder { module, symbols, code: &code, slots: &slots, frame: &frame, targets: targets(&code) })?;
    Ok(Function {
        name: function.name.to_string(),
        code,
        registers: registers + 1,
        own_params: own_params as u32,
        params_bytes: frame.params_end as u32,
        local_bytes: frame.local_end.next_multiple_of(16) as u32,
        params,
        returns,
    })
}

/// Index of the instruction at or after each statement.
fn targets(code: &Code<'_>) -> Vec<u32> {
    let mut next = 0;
    code.statements()
        .map(|(_, statement)| {
            let at = next;
            next += u32::from(statement.instruction().is_some());
            at
        })
        .collect()
}

fn instructions(decoder: &Decoder<'_>) -> Result<Vec<Inst>, Refusal> {
    let mut list = Vec::new();
    for (id, statement) in decoder.code.statements() {
        let Some(i) = statement.instruction() else { continue };
        let line = statement.origin.line;
        let refuse = |why: String| Refusal::Instruction { line, opcode: i.dotted(), why };
        let guard = match &i.guard {
            None => None,
            Some(guard) => Some((decoder.predicate(id, &guard.predicate).map_err(refuse)?, !guard.negated)),
        };
        list.push(Inst { guard, line, op: decoder.operation(id, i).map_err(refuse)? });
    }
    // Running off the end is a return.
    let line = list.last().map_or(0, |i| i.line);
    list.push(Inst { guard: None, line, op: Op::Return });
    Ok(list)
}
