//! Reads a kernel of the PTX tree into a [`Program`].
//!
//! Called functions are inlined (`call`). All later stages therefore see one body and need no
//! special treatment of barriers, masks and shapes at calls.

mod call;
mod formal;
mod jump;
mod register;
mod variable;

pub use call::function_address;

use crate::elem::Elem;
use crate::error::LowerError;
use crate::forms;
use crate::program::*;
use crate::variables;
use atoll_ptx::{
    AddressBase, Body, Function, Guard, Immediate, Instruction, ItemKind, Module, Name, Operand, StateSpace,
    StatementKind, Variable,
};
use std::collections::HashMap;

/// Limit on the basic blocks of a kernel; guards against excessive unrolling.
const MAX_BLOCKS: usize = 1 << 16;
/// Limit on the instructions of a kernel, inlined functions counted at every call. LLVM compiles
/// this many in some tens of seconds. Guards against exponential inlining.
const MAX_INSTRUCTIONS: usize = 1 << 18;

/// Reads a kernel. With `one_warp`, barriers stay instructions, because the lanes of a warp run in
/// lock step. `target` is the name of the target in errors.
///
/// # Errors
/// [`LowerError`] with the line, if the kernel is malformed or uses something that the targets do
/// not support.
pub fn read_kernel<'m>(
    module: &'m Module,
    function: &'m Function,
    one_warp: bool,
    target: &'static str,
) -> Result<Program, LowerError> {
    let mut reader = Reader::new(module, function, one_warp, target)?;
    let body = function.body.as_ref().map_or_else(|| Err(reader.malformed(0, "it has no body")), Ok)?;
    reader.body(body)?;
    reader.finish()
}

/// The names declared in one scope.
#[derive(Debug, Default)]
struct Scope {
    regs: HashMap<Name, register::Declared>,
    /// `%r<100>`
    ranges: Vec<register::Range>,
    symbols: HashMap<Name, Symbol>,
    /// `.param` variables of functions, as indices into [`Reader::formals`].
    formals: HashMap<Name, usize>,
    labels: HashMap<Name, BlockId>,
    /// `.branchtargets`, `.calltargets` and `.callprototype` by name.
    tables: HashMap<Name, Table>,
}

#[derive(Debug)]
struct Reader<'m> {
    module: &'m Module,
    one_warp: bool,
    /// The name of the target in errors.
    target: &'static str,
    program: Program,
    scopes: Vec<Scope>,
    current: BlockId,
    /// Whether the current block still lacks a terminator.
    open: bool,
    /// Target of `ret`: the exit, or the code after the inlined call.
    returns_to: BlockId,
    /// The functions being inlined; the kernel comes first.
    calls: Vec<Name>,
    /// Instructions read so far.
    instructions: usize,
    /// Parameters and return values of the functions being inlined.
    formals: Vec<formal::Formal>,
    /// Static variables of functions: one instance each, however often the function is called.
    statics: HashMap<*const Variable, Symbol>,
    /// Names of the `.global` and `.const` variables of functions.
    of_functions: HashMap<*const Variable, Name>,
    /// Bytes of local memory in use at this point; the memory of a function is reused after it
    /// returns.
    local_top: u32,
    /// Functions whose addresses the module takes; computed on first use.
    address_taken: Option<Vec<&'m Function>>,
}

/// The meaning of a table's label.
#[derive(Clone, Debug)]
enum Table {
    /// Jump targets.
    Labels(Vec<Name>),
    /// Functions that may be called.
    Functions(Vec<Name>),
    /// Any function with parameters and return values of these sizes may be called.
    Prototype(Signature),
}

/// Sizes in bytes of parameters and return values.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Signature {
    params: Vec<Option<u64>>,
    returns: Vec<Option<u64>>,
}

impl<'m> Reader<'m> {
    fn new(
        module: &'m Module,
        function: &Function,
        one_warp: bool,
        target: &'static str,
    ) -> Result<Reader<'m>, LowerError> {
        let program = Program {
            name: function.name.clone(),
            regs: Vec::new(),
            blocks: Vec::new(),
            params_bytes: 0,
            shared_bytes: 0,
            local_bytes: 0,
        };
        let mut reader = Reader {
            module,
            one_warp,
            target,
            program,
            scopes: vec![Scope::default()],
            current: ENTRY,
            open: true,
            returns_to: EXIT,
            calls: vec![function.name.clone()],
            instructions: 0,
            formals: Vec::new(),
            statics: HashMap::new(),
            of_functions: variables::of_functions(module)
                .map(|(name, variable, _)| (std::ptr::from_ref(variable), name))
                .collect(),
            local_top: 0,
            address_taken: None,
        };
        reader.new_block()?;
        reader.new_block()?;
        reader.program.blocks[EXIT].term = Term::Exit;
        reader.address_size()?;
        reader.module_variables()?;
        reader.scopes.push(Scope::default());
        reader.params(function)?;
        reader.scopes.push(Scope::default());
        Ok(reader)
    }

    fn malformed(&self, line: u32, reason: impl Into<String>) -> LowerError {
        LowerError::Malformed { kernel: self.program.name.clone(), line, reason: reason.into() }
    }

    fn unsupported(&self, line: u32, what: impl Into<String>) -> LowerError {
        LowerError::Unsupported { target: self.target, kernel: self.program.name.clone(), line, what: what.into() }
    }

    fn new_block(&mut self) -> Result<BlockId, LowerError> {
        if self.program.blocks.len() >= MAX_BLOCKS {
            return Err(self.unsupported(0, format!("kernels of more than {MAX_BLOCKS} basic blocks")));
        }
        self.program.blocks.push(Block { insts: Vec::new(), term: Term::Goto(EXIT), line: 0 });
        Ok(self.program.blocks.len() - 1)
    }

    /// Checks the address size: every target has 64-bit addresses.
    fn address_size(&self) -> Result<(), LowerError> {
        for item in &self.module.items {
            if let ItemKind::Directive(directive) = &item.kind
                && directive.name == "address_size"
                && directive.arguments.first().is_some_and(|bits| bits != "64")
            {
                return Err(self.unsupported(
                    item.origin.line,
                    "addresses of 32 bits (`.address_size 32`), which `ptxas` does not assemble either",
                ));
            }
        }
        Ok(())
    }

    fn innermost(&mut self) -> &mut Scope {
        if self.scopes.is_empty() {
            self.scopes.push(Scope::default());
        }
        let last = self.scopes.len() - 1;
        &mut self.scopes[last]
    }

    /// Declares the labels and tables of a scope first: jumps may precede them.
    fn find_labels(&mut self, body: &Body) -> Result<(), LowerError> {
        for statement in &body.statements {
            let (name, table) = match &statement.kind {
                StatementKind::Label(name) => {
                    let block = self.new_block()?;
                    if self.innermost().labels.insert(name.clone(), block).is_some() {
                        return Err(self.malformed(statement.origin.line, format!("label `{name}` is declared twice")));
                    }
                    continue;
                }
                StatementKind::BranchTargets { name, targets } => (name, Table::Labels(targets.clone())),
                StatementKind::CallTargets { name, targets } => (name, Table::Functions(targets.clone())),
                StatementKind::CallPrototype { name, returns, params, .. } => {
                    (name, Table::Prototype(Signature::new(params, returns)))
                }
                _ => continue,
            };
            self.innermost().tables.insert(name.clone(), table);
        }
        Ok(())
    }

    /// Reads statements into the innermost scope, which must be new.
    fn body(&mut self, body: &'m Body) -> Result<(), LowerError> {
        self.find_labels(body)?;
        let accesses = formal::Accesses::of_declared(body);
        for statement in &body.statements {
            let line = statement.origin.line;
            match &statement.kind {
                StatementKind::Label(name) => self.label(name, line)?,
                StatementKind::Instruction(instruction) => self.instruction(instruction, line)?,
                StatementKind::Registers(declaration) => self.declare_registers(declaration, line)?,
                StatementKind::Variable(variable) if variable.space == StateSpace::Param => {
                    self.declare_formal(variable, &accesses, line)?
                }
                StatementKind::Variable(variable) => self.variable(variable, line)?,
                StatementKind::Directive(_) => {}
                StatementKind::Block(inner) => {
                    self.scopes.push(Scope::default());
                    self.body(inner)?;
                    self.scopes.pop();
                }
                StatementKind::BranchTargets { .. }
                | StatementKind::CallTargets { .. }
                | StatementKind::CallPrototype { .. } => {}
            }
        }
        Ok(())
    }

    fn symbol(&self, name: &Name) -> Option<Symbol> {
        self.scopes.iter().rev().find_map(|s| s.symbols.get(name)).cloned()
    }

    /// The block of a label that is visible from here.
    fn label_block(&self, name: &Name, line: u32) -> Result<BlockId, LowerError> {
        let block = self.scopes.iter().rev().find_map(|scope| scope.labels.get(name)).copied();
        block.ok_or_else(|| self.malformed(line, format!("label `{name}` does not exist")))
    }

    fn table(&self, name: &Name) -> Option<Table> {
        self.scopes.iter().rev().find_map(|scope| scope.tables.get(name)).cloned()
    }

    fn label(&mut self, name: &Name, line: u32) -> Result<(), LowerError> {
        let block = self.label_block(name, line)?;
        self.end(Term::Goto(block), line);
        self.start(block);
        Ok(())
    }

    fn start(&mut self, block: BlockId) {
        self.current = block;
        self.open = true;
    }

    /// Ends the current block, if it is open.
    fn end(&mut self, term: Term, line: u32) {
        if self.open {
            self.program.blocks[self.current].term = term;
            self.program.blocks[self.current].line = line;
        }
        self.open = false;
    }

    fn guard(&mut self, guard: &Guard, line: u32) -> Result<(Reg, bool), LowerError> {
        let reg = self.register(&guard.predicate);
        let reg = reg.ok_or_else(|| self.malformed(line, format!("`{}` is not declared", guard.predicate)))?;
        Ok((reg, guard.negated))
    }

    fn instruction(&mut self, instruction: &Instruction, line: u32) -> Result<(), LowerError> {
        if !self.open {
            // Code after an unconditional jump without a label is unreachable, but must still be
            // well-formed.
            let dead = self.new_block()?;
            self.start(dead);
        }
        let guard = instruction.guard.as_ref().map(|g| self.guard(g, line)).transpose()?;
        match instruction.opcode.as_str() {
            "bra" => {
                let Some(Operand::Name(target)) = instruction.operands.first() else {
                    return Err(self.malformed(line, "`bra` needs a label"));
                };
                let target = self.label_block(target, line)?;
                self.jump(guard, target, line)
            }
            "ret" => self.jump(guard, self.returns_to, line),
            "exit" => self.jump(guard, EXIT, line),
            "bar" | "barrier" if !self.one_warp && !instruction.has("warp") => self.barrier(instruction, guard, line),
            "trap" => {
                self.push(instruction, guard, line)?;
                if guard.is_none() {
                    self.end(Term::Goto(EXIT), line);
                }
                Ok(())
            }
            "brx" => self.branch_by_index(instruction, guard, line),
            "call" => self.call(instruction, guard, line),
            "ld" | "st" if self.accesses_formal(instruction) => self.access_formal(instruction, guard, line),
            _ => self.push(instruction, guard, line),
        }
    }

    fn jump(&mut self, guard: Option<(Reg, bool)>, target: BlockId, line: u32) -> Result<(), LowerError> {
        match guard {
            None => self.end(Term::Goto(target), line),
            Some((pred, negated)) => {
                let next = self.new_block()?;
                self.end(Term::Branch { pred, negated, taken: target, other: next }, line);
                self.start(next);
            }
        }
        Ok(())
    }

    fn push(&mut self, instruction: &Instruction, guard: Option<(Reg, bool)>, line: u32) -> Result<(), LowerError> {
        if let Some(what) = forms::unsupported_object(&instruction.opcode) {
            return Err(self.unsupported(line, format!("{what} (`{}`)", instruction.dotted())));
        }
        let mut ops = instruction.operands.iter().map(|o| self.operand(o, line)).collect::<Result<Vec<_>, _>>()?;
        if let Some(form) = ops.iter().find_map(|operand| forms::misplaced(&instruction.opcode, operand)) {
            return Err(self.malformed(line, format!("`{}` takes no {form}", instruction.dotted())));
        }
        self.add_carry(instruction, &mut ops);
        let form = Instruction { guard: None, operands: Vec::new(), ..instruction.clone() };
        self.instructions += 1;
        if self.instructions > MAX_INSTRUCTIONS {
            return Err(self.unsupported(
                line,
                format!("kernels of more than {MAX_INSTRUCTIONS} instructions with the functions that they call"),
            ));
        }
        self.program.blocks[self.current].insts.push(Inst { form, guard, ops, line, tied: false });
        Ok(())
    }

    /// Appends an instruction that the PTX text does not contain.
    fn emit(&mut self, dotted: &str, guard: Option<(Reg, bool)>, ops: Vec<Opnd>, line: u32) {
        let form = Instruction::new(dotted, Vec::new());
        self.program.blocks[self.current].insts.push(Inst { form, guard, ops, line, tied: false });
    }

    /// Adds a register that the PTX text does not declare.
    fn new_register(&mut self, name: &str, elem: Elem) -> Reg {
        self.program.regs.push(RegInfo { name: Name::new(name), elem });
        self.program.regs.len() - 1
    }

    /// Makes the condition code explicit: as a predicate beside the destination where it is
    /// written, and as the last operand where it is read.
    fn add_carry(&mut self, instruction: &Instruction, ops: &mut Vec<Opnd>) {
        if !instruction.reads_carry() && !instruction.writes_carry() {
            return;
        }
        let name = Name::new("%cc.cf");
        let carry = match self.scopes[0].regs.get(&name) {
            Some(register::Declared::One(known)) => *known,
            _ => {
                let made = self.new_register(&name, Elem::I1);
                self.scopes[0].regs.insert(name, register::Declared::One(made));
                made
            }
        };
        if instruction.reads_carry() {
            ops.push(Opnd::Reg(carry));
        }
        if let (true, Some(first)) = (instruction.writes_carry(), ops.first_mut()) {
            *first = Opnd::Pair(Box::new(first.clone()), Box::new(Opnd::Reg(carry)));
        }
    }

    fn operand(&mut self, operand: &Operand, line: u32) -> Result<Opnd, LowerError> {
        Ok(match operand {
            Operand::Name(name) => self.name(name, 0, line)?,
            Operand::NameOffset(name, offset) => self.name(name, *offset, line)?,
            Operand::Not(name) => match self.name(name, 0, line)? {
                Opnd::Reg(reg) => Opnd::Not(reg),
                _ => return Err(self.malformed(line, format!("`!{name}` is not a predicate"))),
            },
            Operand::Negated(name) => match self.name(name, 0, line)? {
                register @ (Opnd::Reg(_) | Opnd::Part(..)) => Opnd::Negated(Box::new(register)),
                _ => return Err(self.malformed(line, format!("`-{name}` is not a register"))),
            },
            Operand::Immediate(value) => Opnd::Imm(*value),
            Operand::Address(address) => {
                let base = match &address.base {
                    AddressBase::Name(name) => self.name(name, 0, line)?,
                    AddressBase::Absolute(value) => Opnd::Imm(Immediate::Int(i128::from(*value))),
                };
                Opnd::Addr(Box::new(base), address.offset)
            }
            Operand::Vector(parts) => Opnd::Vec(parts.iter().map(|p| self.operand(p, line)).collect::<Result<_, _>>()?),
            Operand::Pair(a, b) => Opnd::Pair(Box::new(self.operand(a, line)?), Box::new(self.operand(b, line)?)),
            Operand::Sink => Opnd::Sink,
            Operand::List(_) | Operand::Bracket(_) => return Err(self.unsupported(line, "this form of operand")),
        })
    }

    fn name(&mut self, name: &Name, offset: i64, line: u32) -> Result<Opnd, LowerError> {
        if name == "_" {
            return Ok(Opnd::Sink);
        }
        if let Some(register) = self.register_operand(name) {
            return Ok(register);
        }
        if let Some(special) = Special::from_name(name) {
            return Ok(Opnd::Special(special));
        }
        if let Some(axes) = Special::axes(name) {
            return Ok(Opnd::Vec(axes.map(Opnd::Special).into_iter().chain([Opnd::Imm(Immediate::Int(0))]).collect()));
        }
        if let Some(formal) = self.formal(name) {
            return Ok(Opnd::Symbol(Symbol::Local(self.local_formal(formal, offset, line)?)));
        }
        let Some(symbol) = self.symbol(name) else {
            if let Some(address) = function_address(self.module, name) {
                return Ok(Opnd::Imm(Immediate::Int(i128::from(address) + i128::from(offset))));
            }
            if variables::is_opaque(self.module, name) {
                return Err(self.unsupported(line, format!("textures, samplers and surfaces (`{name}`)")));
            }
            return Err(match name.starts_with('%') {
                true => {
                    self.unsupported(line, format!("`{name}`, which is neither declared nor a known special register"))
                }
                false => self.malformed(line, format!("`{name}` is not declared")),
            });
        };
        let moved = |at: u32| u32::try_from(i64::from(at) + offset).ok();
        let symbol = match symbol {
            Symbol::Dynamic(at) => moved(at).map(Symbol::Dynamic),
            Symbol::Param(at) => moved(at).map(Symbol::Param),
            Symbol::Shared(at) => moved(at).map(Symbol::Shared),
            Symbol::Local(at) => moved(at).map(Symbol::Local),
            Symbol::Global(name, at) => Some(Symbol::Global(name, at + offset)),
        };
        symbol
            .map(Opnd::Symbol)
            .ok_or_else(|| self.malformed(line, format!("`{name}{offset:+}` lies outside its state space")))
    }

    fn finish(mut self) -> Result<Program, LowerError> {
        self.end(Term::Goto(EXIT), 0);
        self.program.thread_jumps();
        // The local memory of every thread is aligned for any access.
        self.program.local_bytes = self.program.local_bytes.next_multiple_of(1 << LOCAL_ZEROS);
        Ok(self.program)
    }
}
