//! Stopping blocks in the middle, anywhere, and running them again: what holds claims of idempotence against what really happens.
//!
//! A kernel is given *fuel* for each of its blocks: every store to memory outside of the block takes one unit, and is not made where none is left. What has been stored by
//! then is what an execution stopped at that point leaves behind, whichever way the block's threads took turns. Threads go on, so that nobody misses what an
//! exited one should have given it; only nothing of it is seen any more.

use anyhow::{Context, Result, ensure};
use atoll_ptx::build::address;
use atoll_ptx::{
    Body, Function, Guard, Instruction, ItemKind, Module, Name, Operand, RegisterDeclaration, ScalarType, StateSpace, Statement,
    StatementKind, Variable,
};
use atoll_workbench::{Arg, Buffer, HostBench, Kernel, KernelDevice, Launch};

/// More than any test kernel takes.
const FULL: u32 = 1 << 30;

/// A small generator of random numbers (xorshift).
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// From a seed.
    pub fn new(seed: u64) -> Random {
        Random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    /// A number below `bound`, which is not 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % bound
    }
}

/// A kernel and a launch of it.
#[derive(Debug)]
pub struct Trial<'a> {
    /// The module.
    pub module: &'a Module,
    /// The kernel.
    pub entry: &'a str,
    /// Threads of a block.
    pub block: [u32; 3],
    /// The launch.
    pub launch: Launch,
    /// What it is launched on.
    pub buffers: Vec<Buffer>,
}

/// Stops every block at a random place and runs it again, `rounds` times; gives the number of rounds after which memory was not what
/// one undisturbed run leaves, and that memory.
pub fn differences(bench: &mut HostBench, trial: &Trial<'_>, rounds: u64, seed: u64) -> Result<(u64, Vec<Buffer>)> {
    let mut expected = trial.buffers.clone();
    let plain = Kernel { module: trial.module, entry: trial.entry, report: None, block: trial.block };
    let kernel = bench.load(&plain)?;
    bench.launch(&kernel, &trial.launch, &mut expected, 1)?;
    bench.unload(kernel);

    if rounds == 0 {
        return Ok((0, expected));
    }
    let module = stoppable(trial.module, trial.entry);
    let kernel = bench.load(&Kernel { module: &module, ..plain })?;
    let mut launch = trial.launch.clone();
    launch.args.push(Arg::buffer(trial.buffers.len()));
    let blocks: usize = launch.grid.iter().map(|&extent| extent as usize).product();
    let fuel = |of: &mut dyn FnMut(usize) -> u32| Buffer {
        name: "fuel".into(),
        bytes: (0..blocks).flat_map(|block| of(block).to_le_bytes()).collect(),
        writable: true,
    };
    let mut run = |buffers: &mut Vec<Buffer>, fuel: Buffer| -> Result<Vec<u32>> {
        buffers.push(fuel);
        bench.launch(&kernel, &launch, buffers, 1)?;
        let left = buffers.pop().context("the fuel")?;
        Ok(left.bytes.chunks_exact(4).map(|word| u32::from_le_bytes([word[0], word[1], word[2], word[3]])).collect())
    };

    let mut buffers = trial.buffers.clone();
    let used: Vec<u32> = run(&mut buffers, fuel(&mut |_| FULL))?.into_iter().map(|left| FULL - left).collect();
    ensure!(buffers == expected, "{} computes something else with fuel: {}", trial.entry, first_difference(&buffers, &expected));
    let mut random = Random::new(seed);
    let mut different = 0;
    for _ in 0..rounds {
        let mut buffers = trial.buffers.clone();
        run(&mut buffers, fuel(&mut |block| random.below(u64::from(used[block]) + 1) as u32))?;
        run(&mut buffers, fuel(&mut |_| FULL))?;
        different += u64::from(buffers != expected);
    }
    bench.unload(kernel);
    Ok((different, expected))
}

/// The first word of memory that is not what it should be.
fn first_difference(found: &[Buffer], expected: &[Buffer]) -> String {
    for (found, expected) in found.iter().zip(expected) {
        let words = found.bytes.chunks(4).zip(expected.bytes.chunks(4)).enumerate();
        if let Some((at, (found_word, word))) = words.into_iter().find(|(_, (a, b))| a != b) {
            return format!("word {at} of `{}` is {found_word:x?} instead of {word:x?}", found.name);
        }
    }
    "nothing differs".into()
}

const AT: &str = "%fuel_at";
const WIDE: &str = "%fuel_wide";
const LEFT: &str = "%fuel_left";
const STORES: &str = "%fuel_stores";

/// The module with a kernel that takes fuel: the address of one word per block, its last parameter.
pub fn stoppable(module: &Module, entry: &str) -> Module {
    let mut module = module.clone();
    for item in &mut module.items {
        if matches!(&item.kind, ItemKind::Function(f) if f.name == entry && f.body.is_some())
            && let ItemKind::Function(kernel) = item.edit()
        {
            add_fuel(kernel);
        }
    }
    module
}

fn add_fuel(kernel: &mut Function) {
    let param = Name::from(format!("{}_fuel", kernel.name));
    kernel.params.push(Variable::new(StateSpace::Param, ScalarType::U64, &param));
    let Some(body) = &mut kernel.body else { return };
    let prologue = prologue(&param);
    *body = checked(std::mem::take(body));
    let first = body
        .statements
        .iter()
        .position(|s| s.instruction().is_some() || matches!(s.kind, StatementKind::Label(_) | StatementKind::Block(_)));
    let first = first.unwrap_or(body.statements.len());
    body.statements.splice(first..first, prologue);
}

fn built(dotted: &str, operands: Vec<Operand>) -> Statement {
    let mut statement = Statement::built(StatementKind::Instruction(Instruction::new(dotted, operands)));
    statement.origin.leading = "\n\t".into();
    statement
}

/// The address of the block's own word.
fn prologue(param: &Name) -> Vec<Statement> {
    let registers = |ty: ScalarType, names: &[&str]| {
        let names = names.iter().map(|name| (Name::new(name), None)).collect();
        Statement::built(StatementKind::Registers(RegisterDeclaration { vector: None, ty, names }))
    };
    let mut code =
        vec![registers(ScalarType::B64, &[AT, WIDE]), registers(ScalarType::B32, &[LEFT]), registers(ScalarType::Pred, &[STORES])];
    let mut emit = |dotted: &str, operands: &[Operand]| code.push(built(dotted, operands.to_vec()));
    let [at, wide, left]: [Operand; 3] = [AT.into(), WIDE.into(), LEFT.into()];
    emit("mov.u64", &[at.clone(), 0.into()]);
    for (number, extent) in [("%ctaid.z", "%nctaid.y"), ("%ctaid.y", "%nctaid.x"), ("%ctaid.x", "")] {
        emit("mov.u32", &[left.clone(), number.into()]);
        emit("cvt.u64.u32", &[wide.clone(), left.clone()]);
        emit("add.s64", &[at.clone(), at.clone(), wide.clone()]);
        if !extent.is_empty() {
            emit("mov.u32", &[left.clone(), extent.into()]);
            emit("cvt.u64.u32", &[wide.clone(), left.clone()]);
            emit("mul.lo.s64", &[at.clone(), at.clone(), wide.clone()]);
        }
    }
    emit("shl.b64", &[at.clone(), at.clone(), 2.into()]);
    emit("ld.param.u64", &[wide.clone(), address(param, 0)]);
    emit("add.s64", &[at.clone(), at, wide]);
    code
}

/// Puts a question for fuel in front of every store to memory outside of the block, and its answer into the store's guard.
fn checked(body: Body) -> Body {
    let mut statements = Vec::new();
    for mut statement in body.statements {
        if let Some(guard) = statement.instruction().filter(|i| stores_outside(i)).map(|i| i.guard.clone()) {
            statements.push(built("atom.global.add.u32", vec![LEFT.into(), address(&Name::new(AT), 0), (-1).into()]));
            statements.push(built("setp.gt.s32", vec![STORES.into(), LEFT.into(), 0.into()]));
            if let Some(guard) = guard {
                let taken = if guard.negated { Operand::Not(guard.predicate) } else { Operand::Name(guard.predicate) };
                statements.push(built("setp.gt.and.s32", vec![STORES.into(), LEFT.into(), 0.into(), taken]));
            }
            if let StatementKind::Instruction(store) = statement.edit() {
                store.guard = Some(Guard { predicate: Name::new(STORES), negated: false });
            }
        }
        statements.push(statement);
    }
    Body { statements, ..body }
}

fn stores_outside(instruction: &Instruction) -> bool {
    matches!(instruction.opcode.as_str(), "st" | "atom" | "red") && matches!(instruction.space(), None | Some(StateSpace::Global))
}
