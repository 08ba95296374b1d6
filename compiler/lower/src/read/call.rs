//! Calls: the called function is inlined.
//!
//! Recursive functions cannot be inlined and are rejected. A call through a register becomes a
//! chain of comparisons with every function that the register may hold. The "address" of a function
//! is a number outside of all memory.

use super::*;
use atoll_ptx::{FunctionKind, Initializer, Role};

/// Limit on the depth of calls: the reader's own stack grows with it.
const MAX_CALL_DEPTH: usize = 64;
/// Limit on the number of functions that a call through a register is compared with, if only a
/// prototype restricts them.
const MAX_CALLEES: usize = 256;
/// Function addresses start here. Memory has no addresses this high, so a load through one faults.
const FIRST_FUNCTION_ADDRESS: u64 = 0xF1 << 56;
/// Distance between function addresses, as if each function had some bytes.
const FUNCTION_STEP: u64 = 16;

/// The address of a function of a module: the same in every kernel and in initialisers.
pub fn function_address(module: &Module, name: &str) -> Option<u64> {
    let index = module.functions().position(|f| f.kind == FunctionKind::Func && f.name == name)?;
    Some(FIRST_FUNCTION_ADDRESS + FUNCTION_STEP * index as u64)
}

impl Signature {
    /// The signature of parameters and return values.
    pub(super) fn new(params: &[Variable], returns: &[Variable]) -> Signature {
        let sizes = |variables: &[Variable]| variables.iter().map(Variable::bytes).collect();
        Signature { params: sizes(params), returns: sizes(returns) }
    }
}

/// The operands of a call, by role.
struct Call<'i> {
    returns: &'i [Operand],
    callee: &'i Name,
    arguments: &'i [Operand],
    table: Option<&'i Name>,
}

impl<'i> Call<'i> {
    fn of(instruction: &'i Instruction) -> Option<Call<'i>> {
        let (returns, callee, arguments, table) = match instruction.operands.as_slice() {
            [Operand::List(r), Operand::Name(c), Operand::List(a)] => (r, c, a, None),
            [Operand::List(r), Operand::Name(c), Operand::List(a), Operand::Name(t)] => (r, c, a, Some(t)),
            _ => return None,
        };
        Some(Call { returns, callee, arguments, table })
    }
}

impl<'m> Reader<'m> {
    /// `call`
    pub(super) fn call(
        &mut self,
        instruction: &Instruction,
        guard: Option<(Reg, bool)>,
        line: u32,
    ) -> Result<(), LowerError> {
        let call = Call::of(instruction).ok_or_else(|| self.malformed(line, "unknown form of `call`"))?;
        let past = self.under_guard(guard, line)?;
        match self.register(call.callee) {
            Some(pointer) => self.call_through(pointer, &call, line)?,
            None => self.call_by_name(&call, line)?,
        }
        if let Some(past) = past {
            self.end(Term::Goto(past), line);
            self.start(past);
        }
        Ok(())
    }

    fn call_by_name(&mut self, call: &Call<'_>, line: u32) -> Result<(), LowerError> {
        let name = call.callee;
        match self.module.function(name) {
            Some(function) if function.kind == FunctionKind::Entry => {
                Err(self.malformed(line, format!("`{name}` is a kernel, which cannot be called")))
            }
            Some(function) if function.body.is_some() => self.inline(function, call, line),
            _ if name == "vprintf" => self.print(call, line),
            _ if name == "__assertfail" => self.assert_fail(call, line),
            Some(_) => {
                Err(self.unsupported(line, format!("calls of `{name}`, which the module declares and does not define")))
            }
            None => Err(self.malformed(line, format!("function `{name}` is not declared"))),
        }
    }

    /// `call (…), %register, (…), table`
    fn call_through(&mut self, pointer: Reg, call: &Call<'_>, line: u32) -> Result<(), LowerError> {
        let callees = self.callees(call, line)?;
        let join = self.new_block()?;
        for function in callees {
            let address = function_address(self.module, &function.name).unwrap_or(FIRST_FUNCTION_ADDRESS);
            let pred = self.new_register("%callee", Elem::I1);
            let address = Opnd::Imm(Immediate::Int(address.into()));
            self.emit("setp.eq.u64", None, vec![Opnd::Reg(pred), Opnd::Reg(pointer), address], line);
            let (taken, other) = (self.new_block()?, self.new_block()?);
            self.end(Term::Branch { pred, negated: false, taken, other }, line);
            self.start(taken);
            self.inline(function, call, line)?;
            self.end(Term::Goto(join), line);
            self.start(other);
        }
        // The register holds none of the functions.
        self.emit("trap", None, Vec::new(), line);
        self.end(Term::Goto(EXIT), line);
        self.start(join);
        Ok(())
    }

    /// The functions that a call through a register may reach.
    fn callees(&mut self, call: &Call<'_>, line: u32) -> Result<Vec<&'m Function>, LowerError> {
        let table = call
            .table
            .ok_or_else(|| self.malformed(line, "a call through a register needs a prototype or a table of targets"))?;
        let module = self.module;
        match self.table(table) {
            Some(Table::Functions(names)) => names
                .iter()
                .map(|n| {
                    let function = module.function(n).filter(|f| f.body.is_some());
                    function.ok_or_else(|| {
                        self.unsupported(line, format!("calls of `{n}`, which the module does not define"))
                    })
                })
                .collect(),
            Some(Table::Prototype(signature)) => {
                let known = self.address_taken.get_or_insert_with(|| functions_with_address(module));
                let fitting: Vec<&Function> =
                    known.iter().copied().filter(|f| Signature::new(&f.params, &f.returns) == signature).collect();
                match fitting.len() {
                    0..=MAX_CALLEES => Ok(fitting),
                    many => {
                        Err(self.unsupported(line, format!("calls through a register that may hold {many} functions")))
                    }
                }
            }
            _ => Err(self.malformed(line, format!("`{table}` is neither a prototype nor a table of functions"))),
        }
    }

    /// Inlines a function at a call.
    fn inline(&mut self, function: &'m Function, call: &Call<'_>, line: u32) -> Result<(), LowerError> {
        let name = &function.name;
        let Some(body) = &function.body else { return Ok(()) };
        if self.calls.contains(name) {
            return Err(self.unsupported(line, format!("recursion: `{name}` calls itself")));
        }
        if self.calls.len() > MAX_CALL_DEPTH {
            return Err(self.unsupported(line, format!("calls nested more than {MAX_CALL_DEPTH} deep")));
        }
        if call.arguments.len() != function.params.len() || call.returns.len() != function.returns.len() {
            return Err(self.malformed(line, format!("the call does not fit the parameters of `{name}`")));
        }
        let after = self.new_block()?;
        let outer_local = self.local_top;
        let callee = self.enter(function, body, call, line)?;
        let outer_return = std::mem::replace(&mut self.returns_to, after);
        self.calls.push(name.clone());
        self.scopes.push(Scope::default());
        self.body(body)?;
        self.end(Term::Goto(after), line);
        self.calls.pop();
        self.returns_to = outer_return;
        self.start(after);
        self.leave(callee, call, line)?;
        self.local_top = outer_local;
        Ok(())
    }

    /// Opens the callee's scope and assigns the arguments to its parameters.
    fn enter(
        &mut self,
        function: &'m Function,
        body: &'m Body,
        call: &Call<'_>,
        line: u32,
    ) -> Result<Callee, LowerError> {
        let accesses = formal::Accesses::of(body);
        let callers = self.scopes.split_off(1);
        self.scopes.push(Scope::default());
        let mut slots = Vec::new();
        for variable in function.params.iter().chain(&function.returns) {
            slots.push(self.declare_slot(variable, &accesses, line)?);
        }
        let scope = self.scopes.pop().unwrap_or_default();
        self.scopes.extend(callers);
        let returns = slots.split_off(function.params.len());
        for (slot, argument) in slots.iter().zip(call.arguments) {
            self.pass_argument(argument, *slot, line)?;
        }
        let callers = self.scopes.split_off(1);
        self.scopes.push(scope);
        Ok(Callee { returns, callers })
    }

    /// Returns to the caller's scopes and assigns the results.
    fn leave(&mut self, callee: Callee, call: &Call<'_>, line: u32) -> Result<(), LowerError> {
        self.scopes.truncate(1);
        self.scopes.extend(callee.callers);
        for (slot, target) in callee.returns.iter().zip(call.returns) {
            self.take_result(*slot, target, line)?;
        }
        Ok(())
    }

    fn declare_slot(
        &mut self,
        variable: &Variable,
        accesses: &formal::Accesses,
        line: u32,
    ) -> Result<Slot, LowerError> {
        match variable.space {
            StateSpace::Reg if variable.vector.is_some() => {
                Err(self.unsupported(line, format!("vectors of registers as parameters (`{}`)", variable.name)))
            }
            StateSpace::Reg => {
                let reg = self.new_register(&variable.name, storage(variable.ty));
                self.innermost().regs.insert(variable.name.clone(), register::Declared::One(reg));
                Ok(Slot::Register(reg))
            }
            _ => {
                self.declare_formal(variable, accesses, line)?;
                Ok(Slot::Formal(self.formals.len() - 1))
            }
        }
    }

    /// The `.param` variable of the caller that an operand of a call names.
    fn named_formal(&self, operand: &Operand) -> Option<usize> {
        match operand {
            Operand::Name(name) => self.formal(name),
            _ => None,
        }
    }

    fn pass_argument(&mut self, argument: &Operand, slot: Slot, line: u32) -> Result<(), LowerError> {
        match (self.named_formal(argument), slot) {
            (Some(from), Slot::Formal(to)) => self.copy_formal(from, to, line),
            (None, Slot::Formal(to)) => {
                let value = self.value(argument, line)?;
                let bytes = self.formals[to].bytes;
                self.write_formal(to, 0, bytes, &value, None, line)
            }
            (from, Slot::Register(to)) => {
                let bits = self.program.regs[to].elem.bits();
                let value = match from {
                    Some(from) => self.read_formal(from, 0, bits.div_ceil(8), line)?,
                    None => self.value(argument, line)?,
                };
                self.move_register(to, value, line);
                Ok(())
            }
        }
    }

    /// An argument that is one value.
    fn value(&mut self, argument: &Operand, line: u32) -> Result<Opnd, LowerError> {
        match self.operand(argument, line)? {
            value @ (Opnd::Reg(_) | Opnd::Imm(_) | Opnd::Special(_) | Opnd::Symbol(_)) => Ok(value),
            _ => Err(self.unsupported(line, format!("`{argument}` as an argument"))),
        }
    }

    fn take_result(&mut self, slot: Slot, target: &Operand, line: u32) -> Result<(), LowerError> {
        match (slot, self.named_formal(target)) {
            (Slot::Formal(from), Some(to)) => self.copy_formal(from, to, line),
            (Slot::Register(from), Some(to)) => {
                let bytes = self.formals[to].bytes;
                self.write_formal(to, 0, bytes, &Opnd::Reg(from), None, line)
            }
            (slot, None) => {
                let to = match self.operand(target, line)? {
                    Opnd::Reg(to) => to,
                    Opnd::Sink => return Ok(()),
                    _ => {
                        return Err(
                            self.unsupported(line, format!("`{target}` as the destination of a returned value"))
                        );
                    }
                };
                let value = match slot {
                    Slot::Register(from) => Opnd::Reg(from),
                    Slot::Formal(from) => self.read_formal(from, 0, self.formals[from].bytes, line)?,
                };
                self.move_register(to, value, line);
                Ok(())
            }
        }
    }

    fn move_register(&mut self, to: Reg, value: Opnd, line: u32) {
        let form = match self.program.regs[to].elem.bits() {
            1 => "mov.pred".to_owned(),
            bits => format!("mov.b{bits}"),
        };
        self.emit(&form, None, vec![Opnd::Reg(to), value], line);
    }

    /// Copies a `.param` variable, in the pieces that the receiver reads.
    fn copy_formal(&mut self, from: usize, to: usize, line: u32) -> Result<(), LowerError> {
        for (at, bytes) in self.pieces(to) {
            if at + bytes <= self.formals[from].bytes {
                let value = self.read_formal(from, at, bytes, line)?;
                self.write_formal(to, at, bytes, &value, None, line)?;
            }
        }
        Ok(())
    }

    /// An argument of a function that the device implements.
    fn argument(&mut self, call: &Call<'_>, index: usize, bytes: u32, line: u32) -> Result<Opnd, LowerError> {
        let operand = call.arguments.get(index);
        let operand = operand.ok_or_else(|| self.malformed(line, format!("`{}` needs more arguments", call.callee)))?;
        match self.named_formal(operand) {
            Some(formal) => self.read_formal(formal, 0, bytes, line),
            None => self.operand(operand, line),
        }
    }

    /// `vprintf(format, arguments)`
    fn print(&mut self, call: &Call<'_>, line: u32) -> Result<(), LowerError> {
        let (format, arguments) = (self.argument(call, 0, 8, line)?, self.argument(call, 1, 8, line)?);
        let result = self.new_register("%printed", Elem::I32);
        self.emit("vprintf", None, vec![Opnd::Reg(result), format, arguments], line);
        match call.returns.first() {
            Some(target) => self.take_result(Slot::Register(result), target, line),
            None => Ok(()),
        }
    }

    /// `__assertfail(message, file, line, function, size of a character)`: reports the failed
    /// assertion and ends the launch.
    fn assert_fail(&mut self, call: &Call<'_>, line: u32) -> Result<(), LowerError> {
        let sizes = [8, 8, 4, 8];
        let operands =
            (0..).zip(sizes).map(|(i, bytes)| self.argument(call, i, bytes, line)).collect::<Result<Vec<_>, _>>()?;
        self.emit("__assertfail", None, operands, line);
        self.end(Term::Goto(EXIT), line);
        // The code after it is read, but is unreachable.
        let dead = self.new_block()?;
        self.start(dead);
        Ok(())
    }
}

/// Where a parameter or return value of a function being read lives.
#[derive(Clone, Copy)]
enum Slot {
    Register(Reg),
    Formal(usize),
}

/// The state that is needed to return from a function.
struct Callee {
    returns: Vec<Slot>,
    callers: Vec<Scope>,
}

/// Functions of a module whose addresses it takes, in instructions or initialisers.
fn functions_with_address(module: &Module) -> Vec<&Function> {
    let mut named: std::collections::HashSet<&Name> = std::collections::HashSet::new();
    for item in &module.items {
        match &item.kind {
            ItemKind::Function(Function { body: Some(body), .. }) => in_body(body, &mut named),
            ItemKind::Variable(Variable { initializer: Some(initializer), .. }) => {
                in_initializer(initializer, &mut named)
            }
            _ => {}
        }
    }
    module.functions().filter(|f| f.kind == FunctionKind::Func && f.body.is_some() && named.contains(&f.name)).collect()
}

fn in_body<'m>(body: &'m Body, named: &mut std::collections::HashSet<&'m Name>) {
    for statement in &body.statements {
        match &statement.kind {
            StatementKind::Block(inner) => in_body(inner, named),
            StatementKind::Instruction(instruction) => instruction.visit_names(&mut |role, name| {
                if role == Role::Use {
                    named.insert(name);
                }
            }),
            _ => {}
        }
    }
}

fn in_initializer<'m>(initializer: &'m Initializer, named: &mut std::collections::HashSet<&'m Name>) {
    match initializer {
        Initializer::Symbol { name, .. } => {
            named.insert(name);
        }
        Initializer::List(items) => items.iter().for_each(|i| in_initializer(i, named)),
        Initializer::Immediate(_) => {}
    }
}
