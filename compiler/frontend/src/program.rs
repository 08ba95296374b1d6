//! Building and composing scalar programs ([`PointProgram`]).

use crate::tensor::is_float;
use crate::tensor_graph::{PointArg, PointOp, PointProgram, PointStep, ValueId};
use atoll_kgraph::DType;

/// Builds a program step by step; the last step is the result.
#[derive(Default)]
pub struct ProgramBuilder {
    steps: Vec<PointStep>,
}

impl ProgramBuilder {
    /// Adds a step and returns its result as an operand.
    pub fn step(&mut self, op: PointOp, ty: DType, args: &[PointArg]) -> PointArg {
        self.steps.push(PointStep { op, ty, args: args.to_vec() });
        PointArg::Step(self.steps.len() as u32 - 1)
    }

    /// The program.
    pub fn finish(self) -> PointProgram {
        PointProgram { steps: self.steps }
    }
}

impl PointStep {
    /// Whether the step divides integers by a value that may be zero, which fails the invocation.
    pub fn may_divide_by_zero(&self) -> bool {
        let divides = matches!(self.op, PointOp::Div | PointOp::Mod) && !is_float(self.ty);
        divides && !matches!(self.args.get(1), Some(PointArg::Const(divisor)) if *divisor != 0.0)
    }

    /// The type of the step's result.
    pub fn result_type(&self) -> DType {
        match self.op {
            PointOp::Equal | PointOp::Less | PointOp::LessOrEqual | PointOp::Greater | PointOp::GreaterOrEqual => {
                DType::Bool
            }
            PointOp::And | PointOp::Or | PointOp::Xor | PointOp::Not => DType::Bool,
            _ => self.ty,
        }
    }
}

impl PointProgram {
    /// Whether the program returns input 0.
    pub fn is_identity(&self) -> bool {
        self.steps.is_empty()
    }

    /// Whether a step may divide an integer by zero.
    pub fn may_divide_by_zero(&self) -> bool {
        self.steps.iter().any(PointStep::may_divide_by_zero)
    }

    /// A program of one step on inputs `0..inputs`.
    pub fn single(op: PointOp, ty: DType, inputs: u32) -> PointProgram {
        PointProgram { steps: vec![PointStep { op, ty, args: (0..inputs).map(PointArg::Input).collect() }] }
    }

    /// A cast of input 0.
    pub fn cast(to: DType) -> PointProgram {
        PointProgram::single(PointOp::Cast, to, 1)
    }

    /// How many operands of the program's steps are the input `input`.
    pub fn reads_of(&self, input: u32) -> usize {
        self.steps.iter().flat_map(|s| &s.args).filter(|a| **a == PointArg::Input(input)).count()
    }
}

/// A program and the values that are its inputs.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Applied {
    /// The program.
    pub program: PointProgram,
    /// The value of each input.
    pub inputs: Vec<ValueId>,
}

/// Inlines `producer` into `consumer`, replacing the input `at` of `consumer`.
///
/// The producer's inputs come first and keep their indices, so input 0 of an epilogue stays the
/// accumulated element. Equal inputs are merged, and so are equal steps.
pub fn inline(producer: &Applied, at: ValueId, consumer: &Applied) -> Applied {
    let mut result = Applied { program: PointProgram::default(), inputs: producer.inputs.clone() };
    let mut steps = producer.program.steps.clone();
    let produced =
        if producer.program.is_identity() { PointArg::Input(0) } else { PointArg::Step(steps.len() as u32 - 1) };
    let inputs: Vec<PointArg> = consumer
        .inputs
        .iter()
        .map(|id| {
            if *id == at {
                return produced;
            }
            let position = result.inputs.iter().position(|known| known == id).unwrap_or_else(|| {
                result.inputs.push(*id);
                result.inputs.len() - 1
            });
            PointArg::Input(position as u32)
        })
        .collect();
    let mut moved: Vec<PointArg> = Vec::with_capacity(consumer.program.steps.len());
    for step in &consumer.program.steps {
        let args = step
            .args
            .iter()
            .map(|arg| match arg {
                PointArg::Input(i) => inputs[*i as usize],
                PointArg::Step(i) => moved[*i as usize],
                PointArg::Const(_) => *arg,
            })
            .collect();
        let step = PointStep { op: step.op, ty: step.ty, args };
        let index = steps.iter().position(|known| *known == step).unwrap_or_else(|| {
            steps.push(step);
            steps.len() - 1
        });
        moved.push(PointArg::Step(index as u32));
    }
    // The program's result is its last step. If the result of the consumer is an earlier step or an
    // input, an identity step copies it.
    let outcome = moved.last().copied().unwrap_or(inputs.first().copied().unwrap_or(produced));
    let ends_there = outcome == PointArg::Step((steps.len() as u32).wrapping_sub(1));
    let is_plain_input = steps.is_empty() && outcome == PointArg::Input(0);
    if !ends_there && !is_plain_input {
        let ty = consumer.program.steps.last().map_or(DType::F32, PointStep::result_type);
        steps.push(PointStep { op: PointOp::Identity, ty, args: vec![outcome] });
    }
    result.program = PointProgram { steps };
    result
}
