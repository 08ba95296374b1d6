//! Small tensor graphs, and a minimal device that runs their kernels in this process.

#![allow(
    dead_code,
    unreachable_pub,
    clippy::missing_panics_doc,
    reason = "each test binary uses its part; a failed expectation is the test's failure"
)]

pub mod cases;
pub mod device;
pub mod indexing;
pub mod nests;

use atoll_frontend::tensor::Tensor;
use atoll_frontend::tensor_graph::{Op, TensorGraph, TensorNode, Value, ValueId};
use atoll_kgraph::{DType, Expr, SymbolId, SymbolSpec};
use rand_xoshiro::SplitMix64;
use rand_xoshiro::rand_core::{Rng, SeedableRng};

/// A graph under construction, with the inputs on which it will run.
#[derive(Clone)]
pub struct Model {
    pub graph: TensorGraph,
    pub inputs: Vec<Tensor>,
    random: SplitMix64,
}

/// A shape of known dimensions.
pub fn dims(values: &[i64]) -> Vec<Expr> {
    values.iter().map(|&v| Expr::Const(v)).collect()
}

impl Model {
    pub fn new(name: &str) -> Model {
        let seed = name
            .bytes()
            .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3));
        Model {
            graph: TensorGraph { name: name.to_owned(), ..TensorGraph::default() },
            inputs: Vec::new(),
            random: SplitMix64::seed_from_u64(seed),
        }
    }

    /// A random number between -1 and 1.
    fn unit(&mut self) -> f64 {
        (self.random.next_u64() >> 40) as f64 / f64::from(1 << 23) - 1.0
    }

    pub fn random(&mut self, dtype: DType, shape: &[i64]) -> Tensor {
        let shape: Vec<usize> = shape.iter().map(|&d| d as usize).collect();
        let count = shape.iter().product();
        match dtype {
            DType::F16 | DType::Bf16 | DType::F32 | DType::F64 => {
                let values: Vec<f64> = (0..count).map(|_| self.unit()).collect();
                Tensor::floats(dtype, shape, values)
            }
            DType::Bool => {
                Tensor::ints(dtype, shape, (0..count).map(|_| i64::from(self.unit() > 0.0)).collect::<Vec<_>>())
            }
            _ => Tensor::ints(dtype, shape, (0..count).map(|_| (self.unit() * 100.0) as i64).collect::<Vec<_>>()),
        }
    }

    /// A symbol.
    pub fn symbol(&mut self, name: &str) -> Expr {
        self.graph.symbols.push(SymbolSpec::new(name, 1, 1 << 16));
        SymbolId(self.graph.symbols.len() as u32 - 1).into()
    }

    fn value(&mut self, dtype: DType, shape: Vec<Expr>, constant: Option<&Tensor>) -> ValueId {
        let name = format!("v{}", self.graph.values.len());
        self.graph.add_value(Value { name, dtype, shape, constant: constant.map(Tensor::to_bytes) })
    }

    /// An input with the given content.
    pub fn input_of(&mut self, shape: Vec<Expr>, tensor: Tensor) -> ValueId {
        let id = self.value(tensor.dtype, shape, None);
        self.graph.inputs.push(id);
        self.inputs.push(tensor);
        id
    }

    /// A random input.
    pub fn input(&mut self, dtype: DType, shape: &[i64]) -> ValueId {
        let tensor = self.random(dtype, shape);
        self.input_of(dims(shape), tensor)
    }

    /// A random f32 input.
    pub fn x(&mut self, shape: &[i64]) -> ValueId {
        self.input(DType::F32, shape)
    }

    /// A random f32 input with a symbolic shape.
    pub fn x_of(&mut self, shape: Vec<Expr>, extents: &[i64]) -> ValueId {
        let tensor = self.random(DType::F32, extents);
        self.input_of(shape, tensor)
    }

    /// A random f32 constant.
    pub fn weights(&mut self, shape: &[i64]) -> ValueId {
        let tensor = self.random(DType::F32, shape);
        self.constant(&tensor)
    }

    pub fn constant(&mut self, tensor: &Tensor) -> ValueId {
        let shape: Vec<i64> = tensor.shape.iter().map(|&d| d as i64).collect();
        self.value(tensor.dtype, dims(&shape), Some(tensor))
    }

    /// Applies an operator with one result.
    pub fn op(&mut self, op: Op, inputs: &[ValueId], dtype: DType, shape: Vec<Expr>) -> ValueId {
        self.ops(op, inputs, dtype, vec![shape])[0]
    }

    /// Applies an operator.
    pub fn ops(&mut self, op: Op, inputs: &[ValueId], dtype: DType, shapes: Vec<Vec<Expr>>) -> Vec<ValueId> {
        let outputs: Vec<ValueId> = shapes.into_iter().map(|shape| self.value(dtype, shape, None)).collect();
        let name = format!("n{}", self.graph.nodes.len());
        self.graph.nodes.push(TensorNode { name, op, inputs: inputs.to_vec(), outputs: outputs.clone() });
        outputs
    }

    /// Applies an operator of f32 with a known shape.
    pub fn f32(&mut self, op: Op, inputs: &[ValueId], shape: &[i64]) -> ValueId {
        self.op(op, inputs, DType::F32, dims(shape))
    }

    /// Ends the model.
    pub fn output(mut self, ids: &[ValueId]) -> Model {
        self.graph.outputs.extend_from_slice(ids);
        self
    }
}
