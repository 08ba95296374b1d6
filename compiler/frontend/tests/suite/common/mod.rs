//! Tiny ONNX models for tests, built with the same structs that the importer reads.

pub(crate) mod flows;

use atoll_frontend::onnx::proto::*;
use atoll_frontend::onnx::{ImportError, ImportOptions, import_bytes};
use atoll_frontend::reference;
use atoll_frontend::tensor::Tensor;
use atoll_frontend::tensor_graph::TensorGraph;
use atoll_frontend::transform::transform;
use prost::Message;
use rand_xoshiro::SplitMix64;
use rand_xoshiro::rand_core::{Rng, SeedableRng};

/// A dimension: a number or a name.
#[derive(Clone)]
pub(crate) enum Dim {
    N(i64),
    S(&'static str),
}

impl From<i64> for Dim {
    fn from(value: i64) -> Dim {
        Dim::N(value)
    }
}

impl From<&'static str> for Dim {
    fn from(name: &'static str) -> Dim {
        Dim::S(name)
    }
}

/// Builds a model node by node.
pub(crate) struct Model {
    pub proto: ModelProto,
    seed: u32,
}

impl Model {
    pub(crate) fn new(opset: i64) -> Model {
        let graph = GraphProto { name: "test".into(), ..GraphProto::default() };
        let opset_import = vec![OperatorSetIdProto { domain: String::new(), version: opset }];
        Model {
            proto: ModelProto { ir_version: 8, graph: Some(graph), opset_import, ..ModelProto::default() },
            seed: 1,
        }
    }

    pub(crate) fn graph(&mut self) -> &mut GraphProto {
        self.proto.graph.as_mut().unwrap()
    }

    pub(crate) fn input<D: Into<Dim> + Clone>(&mut self, name: &str, data_type: DataType, dims: &[D]) -> String {
        let dim = dims
            .iter()
            .map(|d| Dimension {
                value: Some(match d.clone().into() {
                    Dim::N(n) => DimensionValue::DimValue(n),
                    Dim::S(s) => DimensionValue::DimParam(s.into()),
                }),
            })
            .collect();
        let tensor_type = Some(TensorTypeProto { elem_type: data_type as i32, shape: Some(TensorShapeProto { dim }) });
        self.graph().input.push(ValueInfoProto {
            name: name.into(),
            r#type: Some(TypeProto { tensor_type, ..TypeProto::default() }),
            ..ValueInfoProto::default()
        });
        name.into()
    }

    pub(crate) fn output(&mut self, name: &str) {
        self.graph().output.push(ValueInfoProto { name: name.into(), ..ValueInfoProto::default() });
    }

    pub(crate) fn floats(&mut self, name: &str, dims: &[i64], values: &[f32]) -> String {
        let raw_data = values.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<u8>>().into();
        self.graph().initializer.push(TensorProto {
            name: name.into(),
            dims: dims.to_vec(),
            data_type: 1,
            raw_data,
            ..TensorProto::default()
        });
        name.into()
    }

    pub(crate) fn ints(&mut self, name: &str, values: &[i64]) -> String {
        let dims = vec![values.len() as i64];
        self.graph().initializer.push(TensorProto {
            name: name.into(),
            dims,
            data_type: 7,
            int64_data: values.to_vec(),
            ..TensorProto::default()
        });
        name.into()
    }

    pub(crate) fn int32(&mut self, name: &str, dims: &[i64], values: &[i32]) -> String {
        let int32_data = values.to_vec();
        self.graph().initializer.push(TensorProto {
            name: name.into(),
            dims: dims.to_vec(),
            data_type: 6,
            int32_data,
            ..TensorProto::default()
        });
        name.into()
    }

    /// Random weights around `mean`, seeded.
    pub(crate) fn random(&mut self, name: &str, dims: &[i64], mean: f32, spread: f32) -> String {
        let count = dims.iter().product::<i64>() as usize;
        let values = noise(self.seed, count).into_iter().map(|v| mean + spread * v).collect::<Vec<f32>>();
        self.seed += 1;
        self.floats(name, dims, &values)
    }

    /// Adds a node with one result; the result has the node's name.
    pub(crate) fn node(&mut self, op: &str, name: &str, inputs: &[&str], attributes: Vec<AttributeProto>) -> String {
        self.graph().node.push(NodeProto {
            op_type: op.into(),
            name: name.into(),
            input: inputs.iter().map(|i| i.to_string()).collect(),
            output: vec![name.into()],
            attribute: attributes,
            ..NodeProto::default()
        });
        name.into()
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        self.proto.encode_to_vec()
    }

    pub(crate) fn import(&self) -> Result<TensorGraph, ImportError> {
        import_bytes(self.bytes(), "test", &ImportOptions::default())
    }

    /// Imports and transforms the model; checks that both graphs give the same outputs for
    /// `inputs`. Returns the transformed graph and the outputs.
    pub(crate) fn transformed(&self, inputs: &[Tensor]) -> (TensorGraph, Vec<Tensor>) {
        let imported = self.import().unwrap();
        let expected = reference::run(&imported, inputs).unwrap();
        let graph = transform(imported).unwrap();
        let found = reference::run(&graph, inputs).unwrap();
        for (found, expected) in found.iter().zip(&expected) {
            assert_eq!(found.shape, expected.shape);
            let close = |(a, b): (f64, f64)| (a - b).abs() <= 1e-5 + 1e-4 * b.abs();
            assert!(
                found.to_f64().into_iter().zip(expected.to_f64()).all(close),
                "the passes changed the result:\n{graph}"
            );
        }
        (graph, found)
    }
}

/// Random numbers in -1..1, the same in every run.
pub(crate) fn noise(seed: u32, count: usize) -> Vec<f32> {
    let mut random = SplitMix64::seed_from_u64(seed.into());
    (0..count).map(|_| (random.next_u64() >> 32) as f32 / u32::MAX as f32 * 2.0 - 1.0).collect()
}

pub(crate) fn random_tensor(seed: u32, shape: &[usize]) -> Tensor {
    let values = noise(seed, shape.iter().product());
    Tensor::floats(atoll_kgraph::DType::F32, shape.to_vec(), values.into_iter().map(f64::from))
}

pub(crate) fn int(name: &str, i: i64) -> AttributeProto {
    AttributeProto { name: name.into(), i, r#type: AttributeType::Int as i32, ..AttributeProto::default() }
}

pub(crate) fn ints(name: &str, ints: &[i64]) -> AttributeProto {
    AttributeProto {
        name: name.into(),
        ints: ints.to_vec(),
        r#type: AttributeType::Ints as i32,
        ..AttributeProto::default()
    }
}

/// A convolution with batch normalisation, and optionally `relu`.
pub(crate) fn conv_bn(
    m: &mut Model,
    name: &str,
    x: &str,
    [from, to]: [i64; 2],
    [kernel, stride]: [i64; 2],
    relu: bool,
) -> String {
    let w = m.random(
        &format!("{name}.w"),
        &[to, from, kernel, kernel],
        0.0,
        (3.0 / (from * kernel * kernel) as f32).sqrt(),
    );
    let pad = kernel / 2;
    let attributes = vec![ints("kernel_shape", &[kernel; 2]), ints("strides", &[stride; 2]), ints("pads", &[pad; 4])];
    let y = m.node("Conv", &format!("{name}.conv"), &[x, &w], attributes);
    let scale = m.random(&format!("{name}.scale"), &[to], 1.0, 0.2);
    let bias = m.random(&format!("{name}.bias"), &[to], 0.0, 0.1);
    let mean = m.random(&format!("{name}.mean"), &[to], 0.0, 0.1);
    let variance = m.random(&format!("{name}.var"), &[to], 1.0, 0.3);
    let y = m.node("BatchNormalization", &format!("{name}.bn"), &[&y, &scale, &bias, &mean, &variance], vec![]);
    if relu { m.node("Relu", &format!("{name}.relu"), &[&y], vec![]) } else { y }
}

/// The structure of ResNet-50, with `width` instead of 64 channels, a dynamic batch and images of
/// `size` by `size` pixels.
pub(crate) fn resnet50(width: i64, size: i64) -> Model {
    let mut m = Model::new(13);
    let x = m.input("image", DataType::Float, &[Dim::S("batch"), Dim::N(3), Dim::N(size), Dim::N(size)]);
    let x = conv_bn(&mut m, "stem", &x, [3, width], [7, 2], true);
    let attributes = vec![ints("kernel_shape", &[3, 3]), ints("strides", &[2, 2]), ints("pads", &[1; 4])];
    let mut x = m.node("MaxPool", "stem.pool", &[&x], attributes);
    let mut channels = width;
    for (stage, blocks) in [3, 4, 6, 3].into_iter().enumerate() {
        let inner = width << stage;
        for block in 0..blocks {
            let name = format!("s{stage}.b{block}");
            let stride = if stage > 0 && block == 0 { 2 } else { 1 };
            let y = conv_bn(&mut m, &format!("{name}.a"), &x, [channels, inner], [1, 1], true);
            let y = conv_bn(&mut m, &format!("{name}.b"), &y, [inner, inner], [3, stride], true);
            let y = conv_bn(&mut m, &format!("{name}.c"), &y, [inner, inner * 4], [1, 1], false);
            let shortcut = if block == 0 {
                conv_bn(&mut m, &format!("{name}.d"), &x, [channels, inner * 4], [1, stride], false)
            } else {
                x
            };
            let sum = m.node("Add", &format!("{name}.add"), &[&y, &shortcut], vec![]);
            x = m.node("Relu", &format!("{name}.out"), &[&sum], vec![]);
            channels = inner * 4;
        }
    }
    let pooled = m.node("GlobalAveragePool", "pool", &[&x], vec![]);
    let flat = m.node("Flatten", "flat", &[&pooled], vec![int("axis", 1)]);
    let w = m.random("fc.w", &[100, channels], 0.0, 0.05);
    let b = m.random("fc.b", &[100], 0.0, 0.1);
    m.node("Gemm", "logits", &[&flat, &w, &b], vec![int("transB", 1)]);
    m.output("logits");
    m
}
