//! Branches, calls, barriers, exits, and instructions without effect here.

use super::Decoder;
use crate::op::{BarrierKind, Callee, Op, Passed, Reduction, Src};
use atoll_ptx::analysis::StatementId;
use atoll_ptx::{Instruction, Operand, ScalarType, StateSpace, StatementKind};

impl Decoder<'_> {
    pub(super) fn flow(&self, id: StatementId, i: &Instruction) -> Result<Option<Op>, String> {
        Ok(Some(match i.opcode.as_str() {
            "bra" => Op::Branch(self.label(id, i.operands.first())?),
            "brx" => self.indexed_branch(id, i)?,
            "call" => self.call(id, i)?,
            "ret" => Op::Return,
            "exit" => Op::Exit,
            "trap" => Op::Trap,
            "bar" | "barrier" if i.has("warp") => return Ok(None),
            "bar" | "barrier" => self.barrier(id, i)?,
            "brkpt" | "nanosleep" | "griddepcontrol" | "pmevent" | "setmaxnreg" => Op::Nop,
            _ => return Ok(None),
        }))
    }

    fn label(&self, id: StatementId, operand: Option<&Operand>) -> Result<u32, String> {
        let Some(Operand::Name(name)) = operand else { return Err("it needs a label".into()) };
        let label = self.code.label_at(id, name).ok_or_else(|| format!("unknown label `{name}`"))?;
        Ok(self.targets[label.index()])
    }

    fn indexed_branch(&self, id: StatementId, i: &Instruction) -> Result<Op, String> {
        let [index, Operand::Name(table)] = i.operands.as_slice() else {
            return Err("it needs an index and a table".into());
        };
        let at = self.code.label_at(id, table).ok_or_else(|| format!("unknown table `{table}`"))?;
        let StatementKind::BranchTargets { targets, .. } = &self.code.statement(at).kind else {
            return Err(format!("`{table}` is not a table of branch targets"));
        };
        let targets =
            targets.iter().map(|t| self.label(at, Some(&Operand::Name(t.clone())))).collect::<Result<_, _>>()?;
        Ok(Op::BranchIndexed { index: self.source(id, index, ScalarType::U32)?, targets })
    }

    fn call(&self, id: StatementId, i: &Instruction) -> Result<Op, String> {
        let [Operand::List(returns), Operand::Name(name), Operand::List(arguments), ..] = i.operands.as_slice() else {
            return Err("its operands are not supported".into());
        };
        let callee = match (self.register(id, name)?, self.symbols.function(name)) {
            (Some(register), _) => Callee::Indirect(Src::Reg(register.slot)),
            (None, Some(index)) => Callee::Function(index as u32),
            (None, None) => match name.as_str() {
                "vprintf" => Callee::Vprintf,
                "__assertfail" => Callee::AssertFail,
                _ => return Err(format!("function `{name}` has no body")),
            },
        };
        if let Callee::Function(_) = callee {
            let function = self.module.function(name).ok_or("its callee is unknown")?;
            if (function.params.len(), function.returns.len()) != (arguments.len(), returns.len()) {
                return Err(format!("`{name}` has a different number of parameters or return values"));
            }
        }
        let arguments = arguments.iter().map(|a| self.passed(id, a, false)).collect::<Result<_, _>>()?;
        let returns = returns.iter().map(|r| self.passed(id, r, true)).collect::<Result<_, _>>()?;
        Ok(Op::Call { callee, returns, arguments })
    }

    fn passed(&self, id: StatementId, operand: &Operand, is_return: bool) -> Result<Passed, String> {
        if let Operand::Name(name) = operand
            && self.register(id, name)?.is_none()
            && let Some(variable) = self.code.variable_at(id, name).filter(|v| v.space == StateSpace::Param)
        {
            let place = self.frame.place(variable).ok_or_else(|| format!("`{name}` has no address"))?;
            return Ok(Passed::Param(place, variable.bytes().unwrap_or(0) as u32));
        }
        if is_return {
            return self
                .destination(id, operand)?
                .map(Passed::Register)
                .ok_or_else(|| "a return value needs a destination".into());
        }
        Ok(Passed::Value(self.source(id, operand, ScalarType::B64)?))
    }

    fn barrier(&self, id: StatementId, i: &Instruction) -> Result<Op, String> {
        if i.has("cluster") {
            return Err("clusters are not supported".into());
        }
        let kind = match (i.has("arrive"), i.has("red")) {
            (true, _) => BarrierKind::Arrive,
            (_, false) => BarrierKind::Sync,
            _ if i.has("and") => BarrierKind::Reduce(Reduction::And),
            _ if i.has("or") => BarrierKind::Reduce(Reduction::Or),
            _ if i.has("popc") => BarrierKind::Reduce(Reduction::Count),
            _ => return Err("its reduction is not supported".into()),
        };
        let mut operands = i.operands.as_slice();
        let (mut dst, mut predicate) = (None, None);
        if let BarrierKind::Reduce(_) = kind {
            let [to, between @ .., from] = operands else { return Err("it needs a predicate".into()) };
            dst = self.destination(id, to)?;
            predicate = Some(self.source(id, from, ScalarType::Pred)?);
            operands = between;
        }
        let number = operands.first().map_or(Ok(Src::Imm(0)), |o| self.source(id, o, ScalarType::U32))?;
        let count = operands.get(1).map(|o| self.source(id, o, ScalarType::U32)).transpose()?;
        if kind == BarrierKind::Arrive && count.is_none() {
            return Err("it needs a number of threads".into());
        }
        Ok(Op::Barrier { kind, number, count, predicate, dst })
    }
}
