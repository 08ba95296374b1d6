//! Moves the body of a kernel to a device function that other entries can call. The candidates of a
//! dkp kernel are such functions.
//!
//! `k` becomes `k_atoll_body`, whose parameters have the names, sizes and order of the kernel's, so
//! that the body stays unchanged. The entry keeps its name, parameters and directives, and passes
//! its parameters to the function. If a body is called in only one place, assemblers inline it and
//! the parameters stay in constant memory.
//!
//! `exit` becomes `ret`, because the end of the body must not end the thread of a caller.
//!
//! A kernel that takes the *address* of a parameter is left unchanged. The address of a function's
//! parameter lies in another state space, and not all of its uses can be followed.

use crate::code::Code;
use crate::preemptible::visit_statements;
use atoll_ptx::{
    Address, AddressBase, Body, Function, FunctionKind, Instruction, Item, ItemKind, Linkage, Module, Name, Operand,
    ScalarType, StateSpace, Statement, StatementKind, Variable,
};

/// What the pass did to a kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outlining {
    /// The pass did not run.
    NotAsked,
    /// Its body is this device function.
    Outlined {
        /// The function's name.
        function: String,
    },
    /// It is unchanged.
    Refused(NotOutlined),
}

/// Why a kernel is not outlined.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotOutlined {
    /// A parameter's address is taken.
    #[error("line {line}: the address of the parameter `{parameter}` is taken")]
    AddressOfParameter {
        /// The parameter.
        parameter: Name,
        /// The line.
        line: u32,
    },
    /// A load from parameter memory through a register.
    #[error("line {line}: `{instruction}` reads parameter memory through a register")]
    ParameterPointer {
        /// The instruction.
        instruction: String,
        /// The line.
        line: u32,
    },
    /// A texture, sampler or surface reference, which device functions cannot have.
    #[error("a device function cannot have a parameter of the type of `{0}`")]
    OpaqueParameter(Name),
    /// More parameters than the pass copies.
    #[error("{bytes} bytes of parameters exceed the {PARAMS_BYTES_MAX} that are copied for a call")]
    TooManyParameters {
        /// Their size.
        bytes: u64,
    },
    /// A function with the new name exists.
    #[error("the module already has a function `{0}`")]
    NameTaken(Name),
}

/// Limit on the bytes of parameters that an entry passes: eight bytes take two instructions, and a
/// kernel with more parameters passes tables by value.
const PARAMS_BYTES_MAX: u64 = 4096;

/// The name of the function that holds a kernel's body.
pub(crate) fn body_name(kernel: &str) -> Name {
    Name::from(format!("{kernel}_atoll_body"))
}

/// Outlines the body of every kernel for which that is possible. Returns the outcome for each
/// kernel, in order.
pub(crate) fn outline_kernel_body(module: &mut Module) -> Vec<Outlining> {
    let outcomes: Vec<Outlining> = module
        .kernels()
        .map(|kernel| match check(module, kernel) {
            Ok(()) => Outlining::Outlined { function: body_name(&kernel.name).to_string() },
            Err(reason) => Outlining::Refused(reason),
        })
        .collect();
    let mut next = outcomes.iter();
    let mut items = Vec::with_capacity(module.items.len());
    for mut item in std::mem::take(&mut module.items) {
        let is_kernel =
            matches!(&item.kind, ItemKind::Function(f) if f.kind == FunctionKind::Entry && f.body.is_some());
        if is_kernel
            && matches!(next.next(), Some(Outlining::Outlined { .. }))
            && let ItemKind::Function(kernel) = item.edit()
        {
            let mut function = Item::built(ItemKind::Function(outline(kernel)));
            function.origin.leading = std::mem::replace(&mut item.origin.leading, "\n\n".into());
            items.push(function);
        }
        items.push(item);
    }
    module.items = items;
    outcomes
}

/// Checks that a kernel can be outlined.
fn check(module: &Module, kernel: &Function) -> Result<(), NotOutlined> {
    let name = body_name(&kernel.name);
    if module.function(&name).is_some() {
        return Err(NotOutlined::NameTaken(name));
    }
    if let Some(opaque) = kernel.params.iter().find(|p| p.bytes().is_none_or(|bytes| bytes == 0) || p.count.is_some()) {
        return Err(NotOutlined::OpaqueParameter(opaque.name.clone()));
    }
    let bytes = crate::module_facts::params_bytes(kernel);
    if bytes > PARAMS_BYTES_MAX {
        return Err(NotOutlined::TooManyParameters { bytes });
    }
    let mut found = Ok(());
    if let Some(body) = &kernel.body {
        visit_statements(body, &mut |statement| {
            if let Some(instruction) = statement.instruction().filter(|_| found.is_ok()) {
                found = check_instruction(kernel, instruction, statement.origin.line);
            }
        });
    }
    found
}

/// Checks that parameters are used only as addresses of `ld.param`.
fn check_instruction(kernel: &Function, instruction: &Instruction, line: u32) -> Result<(), NotOutlined> {
    let is_load = instruction.opcode == "ld" && instruction.space() == Some(StateSpace::Param);
    if is_load
        && let Some(Operand::Address(Address { base: AddressBase::Name(base), .. })) = instruction.operands.get(1)
        && base.starts_with('%')
    {
        return Err(NotOutlined::ParameterPointer { instruction: instruction.dotted(), line });
    }
    let parameter = instruction.reads().into_iter().find(|name| kernel.params.iter().any(|p| p.name == **name));
    match parameter {
        Some(parameter) if !is_load => Err(NotOutlined::AddressOfParameter { parameter: parameter.clone(), line }),
        _ => Ok(()),
    }
}

/// Moves the body out of a kernel and replaces it by a call.
fn outline(kernel: &mut Function) -> Function {
    let mut body = kernel.body.take().unwrap_or_default();
    end_by_return(&mut body);
    kernel.body = Some(calling_body(kernel));
    Function {
        linkage: Linkage::Internal,
        kind: FunctionKind::Func,
        returns: Vec::new(),
        name: body_name(&kernel.name),
        params: kernel.params.iter().map(|p| as_argument(p, &p.name)).collect(),
        attributes: Vec::new(),
        body: Some(body),
    }
}

/// A variable that holds a kernel's parameter in a call. Arguments of functions have at least 32
/// bits, and `.ptr` is allowed in entries only.
fn as_argument(parameter: &Variable, name: &str) -> Variable {
    let mut argument = Variable { name: Name::new(name), pointer: None, attributes: Vec::new(), ..parameter.clone() };
    if is_scalar(parameter) {
        argument.ty = bits(parameter.ty.bytes().max(4));
        argument.align = None;
    } else {
        argument.align = Some(parameter.alignment());
    }
    argument
}

fn is_scalar(parameter: &Variable) -> bool {
    parameter.dimensions.is_empty() && parameter.vector.is_none()
}

fn bits(bytes: u32) -> ScalarType {
    match bytes {
        1 => ScalarType::B8,
        2 => ScalarType::B16,
        4 => ScalarType::B32,
        8 => ScalarType::B64,
        _ => ScalarType::B128,
    }
}

/// Turns `exit` into `ret`.
fn end_by_return(body: &mut Body) {
    for statement in &mut body.statements {
        if let StatementKind::Block(inner) = &mut statement.kind {
            end_by_return(inner);
        }
        if statement.instruction().is_some_and(|i| i.opcode == "exit")
            && let StatementKind::Instruction(exit) = statement.edit()
        {
            exit.opcode = Name::new("ret");
        }
    }
}

// Registers of the entry, by size.
const NARROW: &str = "%atoll_argument";
const WIDE: &str = "%atoll_wide_argument";
const QUAD: &str = "%atoll_quad_argument";

/// The body of an entry that passes its parameters on.
fn calling_body(kernel: &Function) -> Body {
    let mut call = Code::default();
    let mut arguments = Vec::new();
    let mut sizes = [false; 3];
    for (index, parameter) in kernel.params.iter().enumerate() {
        let name = format!("atoll_argument_{index}");
        call.variable(as_argument(parameter, &name));
        copy(&mut call, parameter, &name, &mut sizes);
        arguments.push(Operand::from(name.as_str()));
    }
    call.emit(
        "call.uni",
        [Operand::List(Vec::new()), Operand::Name(body_name(&kernel.name)), Operand::List(arguments)],
    );
    let mut code = Code::default();
    for ((ty, register), _) in [(ScalarType::B32, NARROW), (ScalarType::B64, WIDE), (ScalarType::B128, QUAD)]
        .into_iter()
        .zip(sizes)
        .filter(|(_, used)| *used)
    {
        code.registers(ty, &[register]);
    }
    let mut block = Statement::built(StatementKind::Block(Body {
        statements: call.statements,
        before_open: "".into(),
        before_close: "\n\t".into(),
    }));
    block.origin.leading = "\n\t".into();
    code.statements.push(block);
    code.emit("ret", []);
    Body { statements: code.statements, before_open: "\n".into(), before_close: "\n".into() }
}

/// Copies a parameter of the entry to an argument, in the largest pieces that alignment and size
/// allow.
fn copy(code: &mut Code, parameter: &Variable, argument: &str, sizes: &mut [bool; 3]) {
    // `check` has rejected parameters without a size.
    let bytes = u32::try_from(parameter.bytes().unwrap_or(0)).unwrap_or(0);
    let mut offset = 0;
    while offset < bytes {
        let widest = if is_scalar(parameter) { 16 } else { 8 };
        let piece = [16, 8, 4, 2, 1].into_iter().find(|&size| {
            size <= widest
                && size <= bytes - offset
                && offset % size == 0
                && size <= parameter.alignment().max(parameter.ty.bytes())
        });
        let piece = piece.unwrap_or(1);
        let (register, slot) = match piece {
            16 => (QUAD, 2),
            8 => (WIDE, 1),
            _ => (NARROW, 0),
        };
        sizes[slot] = true;
        let from = atoll_ptx::build::address(&parameter.name, i64::from(offset));
        let to = atoll_ptx::build::address(&Name::new(argument), i64::from(offset));
        // A narrow value is zero-extended in its register, and so in the argument.
        let loaded = if piece < 4 { format!("ld.param.u{}", piece * 8) } else { format!("ld.param.b{}", piece * 8) };
        let stored = if is_scalar(parameter) { piece.max(4) } else { piece };
        code.emit(&loaded, [register.into(), from]);
        code.emit(&format!("st.param.b{}", stored * 8), [to, register.into()]);
        offset += piece;
    }
}
