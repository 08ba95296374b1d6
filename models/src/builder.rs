//! Builds an ONNX graph node by node. Tensors are identified by name; methods take and return
//! names.

use crate::random::SplitMix;
use atoll_frontend::onnx::proto::*;

/// Opset of the built models: the one that most exporters write.
const OPSET: i64 = 17;
/// The IR version that belongs to it.
const IR_VERSION: i64 = 8;

/// A 2-D window: size, stride, padding.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Window {
    pub(crate) size: [u32; 2],
    pub(crate) stride: u32,
    pub(crate) pads: [u32; 2],
}

/// A square window with padding `size / 2`, which keeps the image size at stride 1 for odd sizes.
pub(crate) fn same(size: u32, stride: u32) -> Window {
    Window { size: [size; 2], stride, pads: [size / 2; 2] }
}

/// A square window without padding.
pub(crate) fn valid(size: u32, stride: u32) -> Window {
    Window { size: [size; 2], stride, pads: [0; 2] }
}

/// A dimension of an input or an output.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Size {
    Known(i64),
    /// The batch size: 1, or the symbol `batch` in a symbolic model.
    Batch,
    /// The sequence length: a number, or the symbol `sequence` in a symbolic model.
    Sequence(u32),
}

impl<T: Into<i64>> From<T> for Size {
    fn from(size: T) -> Size {
        Size::Known(size.into())
    }
}

/// The value of an attribute.
#[derive(Debug)]
pub(crate) enum Attribute {
    Int(i64),
    Ints(Vec<i64>),
    Float(f32),
    Text(&'static str),
}

#[derive(Debug)]
pub(crate) struct Builder {
    graph: GraphProto,
    random: SplitMix,
    width: f64,
    symbolic: bool,
    names: u32,
}

impl Builder {
    pub(crate) fn new(name: &str, seed: u64, width: f64, symbolic: bool) -> Builder {
        let graph = GraphProto { name: name.into(), ..GraphProto::default() };
        Builder { graph, random: SplitMix::new(seed ^ 0x00a7_0110_a701_1000), width, symbolic, names: 0 }
    }

    /// Whether batch size and sequence length are symbols.
    pub(crate) fn is_symbolic(&self) -> bool {
        self.symbolic
    }

    pub(crate) fn finish(self) -> ModelProto {
        ModelProto {
            ir_version: IR_VERSION,
            producer_name: "atoll-models".into(),
            graph: Some(self.graph),
            opset_import: vec![OperatorSetIdProto { domain: String::new(), version: OPSET }],
            ..ModelProto::default()
        }
    }

    /// A channel count scaled by the width factor: a multiple of 8, at least 8.
    pub(crate) fn channels(&self, published: u32) -> u32 {
        if self.width == 1.0 {
            published
        } else {
            ((f64::from(published) * self.width / 8.0).round() as u32).max(1) * 8
        }
    }

    pub(crate) fn input(&mut self, name: &str, data_type: DataType, shape: &[Size]) -> String {
        let info = self.value_info(name, data_type, shape);
        self.graph.input.push(info);
        name.into()
    }

    pub(crate) fn output(&mut self, name: &str, tensor: &str, shape: &[Size]) {
        self.push("Identity", &[tensor], &[name], &[]);
        let info = self.value_info(name, DataType::Float, shape);
        self.graph.output.push(info);
    }

    fn value_info(&self, name: &str, data_type: DataType, shape: &[Size]) -> ValueInfoProto {
        let known = DimensionValue::DimValue;
        let named = |name: &str, size| if self.symbolic { DimensionValue::DimParam(name.into()) } else { known(size) };
        let dim = shape.iter().map(|size| match *size {
            Size::Known(size) => known(size),
            Size::Batch => named("batch", 1),
            Size::Sequence(length) => named("sequence", length.into()),
        });
        let dim = dim.map(|value| Dimension { value: Some(value) }).collect();
        let tensor = TensorTypeProto { elem_type: data_type as i32, shape: Some(TensorShapeProto { dim }) };
        ValueInfoProto {
            name: name.into(),
            r#type: Some(TypeProto { tensor_type: Some(tensor), ..TypeProto::default() }),
            ..ValueInfoProto::default()
        }
    }

    /// Adds a node with one result; returns its new name.
    pub(crate) fn node(&mut self, op: &str, inputs: &[&str], attributes: &[(&str, Attribute)]) -> String {
        self.nodes(op, inputs, attributes, 1).remove(0)
    }

    /// Adds a node with `results` results; returns their new names.
    pub(crate) fn nodes(
        &mut self,
        op: &str,
        inputs: &[&str],
        attributes: &[(&str, Attribute)],
        results: usize,
    ) -> Vec<String> {
        self.names += 1;
        let name = format!("{}_{}", op.to_lowercase(), self.names);
        let outputs: Vec<String> =
            (0..results).map(|i| if i == 0 { name.clone() } else { format!("{name}_{i}") }).collect();
        let named: Vec<&str> = outputs.iter().map(String::as_str).collect();
        self.push(op, inputs, &named, attributes);
        outputs
    }

    fn push(&mut self, op: &str, inputs: &[&str], outputs: &[&str], attributes: &[(&str, Attribute)]) {
        self.graph.node.push(NodeProto {
            input: inputs.iter().map(|s| s.to_string()).collect(),
            output: outputs.iter().map(|s| s.to_string()).collect(),
            name: format!("{op}_{}", outputs[0]),
            op_type: op.into(),
            attribute: attributes.iter().map(|(name, value)| attribute(name, value)).collect(),
            ..NodeProto::default()
        });
    }

    /// Adds a float constant with elements drawn uniformly from `low..high`.
    pub(crate) fn random(&mut self, shape: &[u32], low: f32, high: f32) -> String {
        let count = shape.iter().map(|&d| d as usize).product();
        let mut bytes = Vec::with_capacity(count * 4);
        for _ in 0..count {
            bytes.extend_from_slice(&(low + (high - low) * self.random.unit()).to_le_bytes());
        }
        let dims: Vec<i64> = shape.iter().map(|&d| d.into()).collect();
        self.constant(DataType::Float, &dims, bytes)
    }

    /// Adds the weights of a layer: uniform, with the variance of He initialization.
    fn weights(&mut self, shape: &[u32], fan_in: u32) -> String {
        let bound = (6.0 / fan_in as f32).sqrt();
        self.random(shape, -bound, bound)
    }

    /// Adds a constant of 64-bit integers.
    pub(crate) fn ints(&mut self, values: &[i64]) -> String {
        let bytes = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        self.constant(DataType::Int64, &[values.len() as i64], bytes)
    }

    /// Adds a causal mask `[1, 1, size, size]`: true where the column is at most the row.
    pub(crate) fn causal(&mut self, size: u32) -> String {
        let bytes = (0..size).flat_map(|row| (0..size).map(move |column| u8::from(column <= row))).collect();
        self.constant(DataType::Bool, &[1, 1, size.into(), size.into()], bytes)
    }

    /// The size of one axis of a tensor, as a vector of one element.
    pub(crate) fn size_of(&mut self, x: &str, axis: i64) -> String {
        let shape = self.node("Shape", &[x], &[]);
        let axis = self.ints(&[axis]);
        self.node("Gather", &[&shape, &axis], &[("axis", Attribute::Int(0))])
    }

    /// The first `length` elements along an axis; `length` is a vector of one element.
    pub(crate) fn first(&mut self, x: &str, axis: i64, length: &str) -> String {
        let (zero, axis) = (self.ints(&[0]), self.ints(&[axis]));
        self.node("Slice", &[x, &zero, length, &axis], &[])
    }

    /// Adds a scalar float constant.
    pub(crate) fn scalar(&mut self, value: f32) -> String {
        self.constant(DataType::Float, &[], value.to_le_bytes().to_vec())
    }

    fn constant(&mut self, data_type: DataType, dims: &[i64], bytes: Vec<u8>) -> String {
        self.names += 1;
        let name = format!("w_{}", self.names);
        self.graph.initializer.push(TensorProto {
            dims: dims.to_vec(),
            data_type: data_type as i32,
            name: name.clone(),
            raw_data: bytes.into(),
            ..TensorProto::default()
        });
        name
    }

    /// Adds a convolution, with a random bias if `bias` is set.
    pub(crate) fn conv(&mut self, x: &str, channels: [u32; 2], window: Window, groups: u32, bias: bool) -> String {
        let [from, to] = channels;
        let fan_in = from / groups * window.size[0] * window.size[1];
        let weights = self.weights(&[to, from / groups, window.size[0], window.size[1]], fan_in);
        let bias = bias.then(|| self.random(&[to], -0.1, 0.1));
        let mut inputs = vec![x, &weights];
        inputs.extend(bias.as_deref());
        let mut attributes = window_attributes(window);
        attributes.push(("dilations", Attribute::Ints(vec![1, 1])));
        attributes.push(("group", Attribute::Int(groups.into())));
        self.node("Conv", &inputs, &attributes)
    }

    /// Adds a batch normalization with random statistics. Its scale is at most `gain`: residual
    /// branches use a small gain, so that the sum of many branches does not grow without bound.
    pub(crate) fn batch_norm(&mut self, x: &str, channels: u32, gain: f32) -> String {
        let scale = self.random(&[channels], gain / 3.0, gain);
        let bias = self.random(&[channels], -0.2, 0.2);
        let mean = self.random(&[channels], -0.2, 0.2);
        let variance = self.random(&[channels], 0.5, 1.5);
        self.node("BatchNormalization", &[x, &scale, &bias, &mean, &variance], &[("epsilon", Attribute::Float(1e-5))])
    }

    pub(crate) fn relu(&mut self, x: &str) -> String {
        self.node("Relu", &[x], &[])
    }

    /// Adds a convolution without bias, a batch normalization and a ReLU.
    pub(crate) fn conv_norm_relu(&mut self, x: &str, channels: [u32; 2], window: Window) -> String {
        let x = self.conv(x, channels, window, 1, false);
        let x = self.batch_norm(&x, channels[1], 1.5);
        self.relu(&x)
    }

    pub(crate) fn max_pool(&mut self, x: &str, window: Window, ceil: bool) -> String {
        let mut attributes = window_attributes(window);
        attributes.push(("ceil_mode", Attribute::Int(ceil.into())));
        self.node("MaxPool", &[x], &attributes)
    }

    pub(crate) fn average_pool(&mut self, x: &str, window: Window) -> String {
        let mut attributes = window_attributes(window);
        attributes.push(("count_include_pad", Attribute::Int(1)));
        self.node("AveragePool", &[x], &attributes)
    }

    pub(crate) fn concat(&mut self, parts: &[&str], axis: i64) -> String {
        self.node("Concat", parts, &[("axis", Attribute::Int(axis))])
    }

    /// `x · Wᵀ + b` with `W [to, from]`: a linear layer on vectors, as PyTorch exports it.
    pub(crate) fn gemm(&mut self, x: &str, from: u32, to: u32) -> String {
        let weights = self.weights(&[to, from], from);
        let bias = self.random(&[to], -0.1, 0.1);
        self.node("Gemm", &[x, &weights, &bias], &[("transB", Attribute::Int(1))])
    }

    /// `x · W + b` with `W [from, to]`: a linear layer on sequences, as PyTorch exports it. The
    /// weights are smaller than He's, as in transformers.
    pub(crate) fn linear(&mut self, x: &str, from: u32, to: u32) -> String {
        let bound = 1.0 / (from as f32).sqrt();
        let weights = self.random(&[from, to], -bound, bound);
        let bias = self.random(&[to], -0.1, 0.1);
        let x = self.node("MatMul", &[x, &weights], &[]);
        self.node("Add", &[&bias, &x], &[])
    }

    /// Global average pooling, flattening, and a classifier with 1,000 classes.
    pub(crate) fn classifier(&mut self, x: &str, channels: u32) {
        let x = self.node("GlobalAveragePool", &[x], &[]);
        let x = self.node("Flatten", &[&x], &[("axis", Attribute::Int(1))]);
        let x = self.gemm(&x, channels, 1000);
        self.output("output", &x, &[Size::Batch, 1000.into()]);
    }

    pub(crate) fn image(&mut self, pixels: u32) -> String {
        self.input("input", DataType::Float, &[Size::Batch, 3.into(), pixels.into(), pixels.into()])
    }
}

fn window_attributes(window: Window) -> Vec<(&'static str, Attribute)> {
    let pair = |[a, b]: [u32; 2]| vec![i64::from(a), i64::from(b)];
    let [top, left] = window.pads;
    vec![
        ("kernel_shape", Attribute::Ints(pair(window.size))),
        ("strides", Attribute::Ints(pair([window.stride; 2]))),
        ("pads", Attribute::Ints([pair([top, left]), pair([top, left])].concat())),
    ]
}

fn attribute(name: &str, value: &Attribute) -> AttributeProto {
    let mut proto = AttributeProto { name: name.into(), ..AttributeProto::default() };
    let kind = match value {
        Attribute::Int(value) => {
            proto.i = *value;
            AttributeType::Int
        }
        Attribute::Ints(values) => {
            proto.ints = values.clone();
            AttributeType::Ints
        }
        Attribute::Float(value) => {
            proto.f = *value;
            AttributeType::Float
        }
        Attribute::Text(value) => {
            proto.s = value.as_bytes().into();
            AttributeType::String
        }
    };
    proto.r#type = kind as i32;
    proto
}
