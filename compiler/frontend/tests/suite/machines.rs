//! Support vector machines: one that can be computed by hand, and what is refused. The integration
//! tests compare others with ONNX Runtime.

use crate::common::{Model, int, ints};
use atoll_frontend::onnx::proto::{AttributeProto, AttributeType, DataType, OperatorSetIdProto};
use atoll_frontend::tensor::Tensor;
use atoll_kgraph::DType;

fn floats(name: &str, floats: &[f32]) -> AttributeProto {
    let r#type = AttributeType::Floats as i32;
    AttributeProto { name: name.into(), floats: floats.to_vec(), r#type, ..AttributeProto::default() }
}

fn text(name: &str, text: &str) -> AttributeProto {
    let r#type = AttributeType::String as i32;
    AttributeProto { name: name.into(), s: text.as_bytes().to_vec().into(), r#type, ..AttributeProto::default() }
}

/// A node of `ai.onnx.ml` on one row of two features.
fn model(operator: &str, attributes: Vec<AttributeProto>, outputs: &[&str]) -> Model {
    let mut model = Model::new(20);
    model.input("x", DataType::Float, &[1, 2]);
    model.node(operator, outputs[0], &["x"], attributes);
    let node = &mut model.graph().node[0];
    node.domain = "ai.onnx.ml".into();
    node.output = outputs.iter().map(|output| (*output).to_owned()).collect();
    model.proto.opset_import.push(OperatorSetIdProto { domain: "ai.onnx.ml".into(), version: 1 });
    outputs.iter().for_each(|output| model.output(output));
    model
}

/// Three classes with one support vector each.
fn three() -> Vec<AttributeProto> {
    vec![
        ints("classlabels_ints", &[7, 8, 9]),
        ints("vectors_per_class", &[1, 1, 1]),
        floats("support_vectors", &[1.0, 0.0, 0.0, 1.0, 1.0, 1.0]),
        floats("coefficients", &[1.0, -1.0, 2.0, 3.0, 1.0, -1.0]),
        floats("rho", &[0.5, -20.0, 1.0]),
    ]
}

/// The attributes with some of them replaced or added.
fn with(attributes: Vec<AttributeProto>, other: &[AttributeProto]) -> Vec<AttributeProto> {
    let kept = attributes.into_iter().filter(|known| other.iter().all(|other| other.name != known.name));
    kept.chain(other.iter().cloned()).collect()
}

#[test]
fn pairs_of_classes_vote() {
    let x = Tensor::floats(DType::F32, vec![1, 2], [2.0, 3.0]);
    let (_, found) = model("SVMClassifier", three(), &["label", "scores"]).transformed(&[x]);
    // The kernels are 2, 3 and 5: 1 * 2 - 1 * 3 + 0.5, 3 * 2 + 2 * 5 - 20, and 1 * 3 - 1 * 5 + 1.
    assert_eq!((found[0].to_f64(), found[1].to_f64()), (vec![9.0], vec![-0.5, -4.0, -1.0]));
}

#[test]
fn contradictions_of_a_classifier_are_refused() {
    let two = || {
        let labels = ints("classlabels_ints", &[0, 1]);
        let sizes = ints("vectors_per_class", &[2, 1]);
        with(three(), &[labels, sizes, floats("coefficients", &[1.0, 1.0, -1.0]), floats("rho", &[0.5])])
    };
    assert!(model("SVMClassifier", two(), &["label", "scores"]).import().is_ok());
    for (attributes, expected) in [
        (with(three(), &[floats("rho", &[0.5, 1.0])]), "6 coefficients and 2 numbers in rho for 3 support vectors"),
        (with(three(), &[floats("coefficients", &[0.5])]), "1 coefficients and 3 numbers in rho"),
        (with(three(), &[floats("support_vectors", &[0.5])]), "1 numbers for 3 vectors of 2 features"),
        (with(three(), &[ints("vectors_per_class", &[1, 2])]), "of 2 classes for 3 labels"),
        (with(three(), &[ints("vectors_per_class", &[1, -1, 3])]), "its vectors_per_class are [1, -1, 3]"),
        (with(three(), &[floats("prob_a", &[1.0])]), "1 prob_a and 0 prob_b for 3 pairs of classes"),
        (with(three(), &[floats("kernel_params", &[1.0])]), "1 kernel_params; it needs gamma, coef0 and degree"),
        (with(three(), &[text("kernel_type", "CUBIC")]), "kernel_type is \"CUBIC\""),
        (with(three(), &[ints("classlabels_ints", &[7])]), "1 labels of classes; 2 are needed"),
        (with(two(), &[text("post_transform", "SOFTMAX")]), "post_transform = SOFTMAX for 2 classes"),
        (with(two(), &[ints("vectors_per_class", &[])]), "2 classes without support vectors"),
        (with(three(), &[ints("vectors_per_class", &[]), floats("rho", &[])]), "it has no rho"),
    ] {
        let refused = model("SVMClassifier", attributes, &["label", "scores"]).import().unwrap_err().to_string();
        assert!(refused.contains(expected), "{expected}: {refused}");
    }
}

#[test]
fn contradictions_of_a_regressor_are_refused() {
    let one = || {
        let vectors = floats("support_vectors", &[1.0, 0.0, 0.0, 1.0]);
        vec![int("n_supports", 2), vectors, floats("coefficients", &[1.0, -1.0]), floats("rho", &[0.5])]
    };
    let x = Tensor::floats(DType::F32, vec![1, 2], [2.0, 3.0]);
    let (_, found) = model("SVMRegressor", one(), &["y"]).transformed(&[x]);
    assert_eq!((found[0].to_f64(), found[0].shape.as_slice()), (vec![-0.5], &[1, 1][..]));
    for (other, expected) in [
        (floats("rho", &[]), "0 numbers in rho; it needs one"),
        (floats("coefficients", &[1.0]), "1 coefficients for 2 support vectors"),
        (int("n_supports", 3), "2 coefficients for 3 support vectors"),
        (text("post_transform", "LOGISTIC"), "a post_transform"),
    ] {
        let refused = model("SVMRegressor", with(one(), &[other]), &["y"]).import().unwrap_err().to_string();
        assert!(refused.contains(expected), "{expected}: {refused}");
    }
}
