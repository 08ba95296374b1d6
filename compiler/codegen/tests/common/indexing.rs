//! ONNX operators that read or write at positions given by an index, through the importer: they
//! become loop nests and compositions.

use super::Model;
use DType::{Bool, F16, F32, F64, I8, I32, I64, U8, U16};
use atoll_frontend::onnx::proto::{
    AttributeProto, AttributeType, Dimension, DimensionValue, GraphProto, ModelProto, NodeProto, OperatorSetIdProto,
    TensorProto, TensorShapeProto, TensorTypeProto, TypeProto, ValueInfoProto,
};
use atoll_frontend::onnx::{ImportOptions, import_model};
use atoll_frontend::tensor::Tensor;
use atoll_kgraph::DType;

/// Every case.
pub fn indexing() -> Vec<Model> {
    [gathers(), scatters(), lines(), positions(), sums()].concat()
}

/// One operator, with its operands (some of them constants) and its attributes.
struct Case {
    model: Model,
    operator: &'static str,
    inputs: Vec<(Tensor, bool)>,
    attributes: Vec<AttributeProto>,
}

impl Case {
    fn new(name: &str, operator: &'static str) -> Case {
        Case { model: Model::new(name), operator, inputs: Vec::new(), attributes: Vec::new() }
    }

    fn random(mut self, dtype: DType, shape: &[i64]) -> Case {
        let tensor = self.model.random(dtype, shape);
        self.inputs.push((tensor, false));
        self
    }

    /// Indices into an axis with `extent` elements, some of them negative; `step` determines their
    /// order.
    fn indices(mut self, dtype: DType, shape: &[i64], extent: i64, step: i64) -> Case {
        let count: i64 = shape.iter().product();
        let values = (0..count).map(|i| (i * step + 1).rem_euclid(2 * extent) - extent);
        self.inputs.push((Tensor::ints(dtype, shape.iter().map(|d| *d as usize).collect(), values), false));
        self
    }

    fn numbers(mut self, shape: &[usize], values: &[i64]) -> Case {
        self.inputs.push((Tensor::ints(I64, shape.to_vec(), values.iter().copied()), true));
        self
    }

    fn int(mut self, name: &str, i: i64) -> Case {
        self.attributes.push(AttributeProto {
            name: name.into(),
            i,
            r#type: AttributeType::Int as i32,
            ..AttributeProto::default()
        });
        self
    }

    fn text(mut self, name: &str, text: &str) -> Case {
        let s = text.as_bytes().to_vec().into();
        self.attributes.push(AttributeProto {
            name: name.into(),
            s,
            r#type: AttributeType::String as i32,
            ..AttributeProto::default()
        });
        self
    }

    /// The imported graph with `results` outputs.
    fn model(mut self, results: usize) -> Model {
        let names: Vec<String> = (0..self.inputs.len()).map(|i| format!("i{i}")).collect();
        let outputs: Vec<String> = (0..results).map(|i| format!("o{i}")).collect();
        let mut graph = GraphProto { name: self.model.graph.name.clone(), ..GraphProto::default() };
        graph.node.push(NodeProto {
            op_type: self.operator.into(),
            input: names.clone(),
            output: outputs.clone(),
            attribute: self.attributes,
            ..NodeProto::default()
        });
        for ((tensor, is_constant), name) in self.inputs.into_iter().zip(names) {
            if is_constant {
                graph.initializer.push(initializer(&name, &tensor));
            } else {
                graph.input.push(value_info(&name, &tensor));
                self.model.inputs.push(tensor);
            }
        }
        graph.output = outputs.into_iter().map(|name| ValueInfoProto { name, ..ValueInfoProto::default() }).collect();
        let opset_import = vec![OperatorSetIdProto { domain: String::new(), version: 24 }];
        let proto = ModelProto { ir_version: 10, graph: Some(graph), opset_import, ..ModelProto::default() };
        self.model.graph = import_model(&proto, "case", None, &ImportOptions::default())
            .unwrap_or_else(|e| panic!("{}: {e}", self.operator));
        self.model
    }
}

fn initializer(name: &str, tensor: &Tensor) -> TensorProto {
    TensorProto {
        name: name.into(),
        dims: tensor.shape.iter().map(|d| *d as i64).collect(),
        data_type: number_of(tensor.dtype),
        raw_data: tensor.to_bytes().to_vec().into(),
        ..TensorProto::default()
    }
}

fn value_info(name: &str, tensor: &Tensor) -> ValueInfoProto {
    let dim = tensor.shape.iter().map(|d| Dimension { value: Some(DimensionValue::DimValue(*d as i64)) }).collect();
    let tensor_type =
        Some(TensorTypeProto { elem_type: number_of(tensor.dtype), shape: Some(TensorShapeProto { dim }) });
    ValueInfoProto {
        name: name.into(),
        r#type: Some(TypeProto { tensor_type, ..TypeProto::default() }),
        ..ValueInfoProto::default()
    }
}

/// ONNX's number of a type.
fn number_of(dtype: DType) -> i32 {
    match dtype {
        F32 => 1,
        U8 => 2,
        I8 => 3,
        U16 => 4,
        I32 => 6,
        I64 => 7,
        Bool => 9,
        F16 => 10,
        F64 => 11,
        other => panic!("no case has {other:?}"),
    }
}

fn gathers() -> Vec<Model> {
    let mut models = Vec::new();
    for dtype in [F32, F16, F64, U8, I8, U16, I32, I64, Bool] {
        let name = |operator: &str| format!("{operator}_{dtype:?}");
        let elements = Case::new(&name("gather_elements"), "GatherElements").random(dtype, &[3, 7, 40]);
        models.push(elements.indices(I64, &[3, 5, 40], 7, 5).int("axis", 1).model(1));
        let slices = Case::new(&name("gather_nd"), "GatherND").random(dtype, &[4, 7, 33]);
        models.push(slices.indices(I32, &[6, 2], 4, 3).model(1));
        let gather = Case::new(&name("gather"), "Gather").random(dtype, &[4, 7, 33]);
        models.push(gather.indices(I32, &[2, 3], 7, 3).int("axis", 1).model(1));
    }
    let batched = Case::new("gather_nd_batched", "GatherND").random(F32, &[3, 5, 6, 4]);
    models.push(batched.indices(I64, &[3, 2, 2], 5, 3).int("batch_dims", 1).model(1));
    models
}

fn scatters() -> Vec<Model> {
    let mut models = Vec::new();
    for dtype in [F32, F16, F64, U8, I32, I64] {
        let all = matches!(dtype, F32 | I64);
        for reduction in if all { &["none", "add", "mul", "max", "min"][..] } else { &["add"] } {
            let name = |operator: &str| format!("{operator}_{reduction}_{dtype:?}");
            let case = Case::new(&name("scatter_elements"), "ScatterElements").random(dtype, &[5, 9, 6]).indices(
                I64,
                &[4, 12, 6],
                9,
                5,
            );
            models.push(case.random(dtype, &[4, 12, 6]).int("axis", 1).text("reduction", reduction).model(1));
            let case =
                Case::new(&name("scatter_nd"), "ScatterND").random(dtype, &[300, 8]).indices(I64, &[4, 1], 300, 77);
            models.push(case.random(dtype, &[4, 8]).text("reduction", reduction).model(1));
        }
    }
    let case = Case::new("scatter_elements_Bool", "ScatterElements").random(Bool, &[9, 6]).indices(I32, &[12, 6], 9, 5);
    models.push(case.random(Bool, &[12, 6]).int("axis", 0).model(1));
    for mode in ["linear", "circular"] {
        let case = Case::new(&format!("tensor_scatter_{mode}"), "TensorScatter")
            .random(F32, &[2, 3, 8, 5])
            .random(F32, &[2, 3, 3, 5]);
        models.push(case.numbers(&[2], &[1, 5]).text("mode", mode).model(1));
    }
    models
}

fn lines() -> Vec<Model> {
    let mut models = Vec::new();
    for dtype in [F32, F16, F64, U8, I8, I64] {
        for largest in [0, 1] {
            let case =
                Case::new(&format!("top_k_{largest}_{dtype:?}"), "TopK").random(dtype, &[3, 60, 4]).numbers(&[1], &[7]);
            models.push(case.int("axis", 1).int("largest", largest).model(2));
        }
    }
    for (dtype, flags) in [(F32, 0), (F16, 1), (F64, 2), (I32, 3), (I64, 0)] {
        let case = Case::new(&format!("cum_sum_{dtype:?}"), "CumSum").random(dtype, &[3, 11, 4]).numbers(&[], &[1]);
        models.push(case.int("exclusive", flags & 1).int("reverse", flags >> 1).model(1));
    }
    let case = Case::new("reverse_sequence", "ReverseSequence").random(F32, &[4, 3, 5]).numbers(&[3], &[1, 4, 2]);
    models.push(case.model(1));
    models.push(Case::new("det", "Det").random(F32, &[6, 4, 4]).model(1));
    models.push(Case::new("det_F64", "Det").random(F64, &[5, 5]).model(1));
    models
}

fn positions() -> Vec<Model> {
    let mut models = Vec::new();
    for operator in ["ArgMax", "ArgMin"] {
        for (dtype, last) in [(F32, 0), (I32, 1), (I64, 0), (U8, 1)] {
            let case = Case::new(&format!("{operator}_{dtype:?}"), operator).random(dtype, &[5, 70, 3]);
            models.push(case.int("axis", 1).int("select_last_index", last).model(1));
        }
    }
    for (dtype, upper) in [(F32, 0), (Bool, 1), (I64, 0)] {
        let case = Case::new(&format!("trilu_{dtype:?}"), "Trilu").random(dtype, &[2, 6, 7]).numbers(&[], &[-1]);
        models.push(case.int("upper", upper).model(1));
    }
    let case = Case::new("one_hot", "OneHot").indices(I32, &[3, 5], 8, 3).numbers(&[], &[6]).random(F32, &[2]);
    models.push(case.int("axis", 1).model(1));
    models
}

fn sums() -> Vec<Model> {
    let mut models = Vec::new();
    for (index, (equation, a, b)) in [
        ("bij,bjk->bik", &[2i64, 5, 6][..], &[2i64, 6, 7][..]),
        ("bhid,bhjd->bihj", &[2, 3, 5, 8], &[2, 3, 4, 8]),
        ("iij,kj->ki", &[5, 5, 6], &[4, 6]),
        ("...i,...i->...", &[2, 3, 9], &[3, 9]),
    ]
    .into_iter()
    .enumerate()
    {
        for dtype in [F32, F64, I32] {
            let case = Case::new(&format!("einsum_{index}_{dtype:?}"), "Einsum").random(dtype, a).random(dtype, b);
            models.push(case.text("equation", equation).model(1));
        }
    }
    models.push(Case::new("dft", "DFT").random(F32, &[2, 20, 2]).model(1));
    models.push(Case::new("dft_split", "DFT").random(F32, &[2, 1200, 1]).int("onesided", 1).model(1));
    models.push(Case::new("stft", "STFT").random(F32, &[2, 90, 1]).numbers(&[], &[8]).random(F32, &[16]).model(1));
    models
}
