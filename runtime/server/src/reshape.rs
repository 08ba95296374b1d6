//! Tensors that clients see with another shape than the model: Triton's `reshape`.

use crate::repository::settings::{Declared, Settings};
use crate::tensors::{row_fits_in_front, rows_first, tensor_metadata};
use atoll_kgraph::{BufferKind, KernelGraph};
use atoll_protocol::TensorMetadata;

/// The shapes of one tensor. Sizes of -1 are variable; both shapes have equally many, in the same
/// order. Between two of them both have the same number of elements.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Reshape {
    /// What clients send or get.
    outer: Vec<i64>,
    /// What the model gets or gives.
    inner: Vec<i64>,
}

/// The shapes of the tensors of a model that clients see with another one, by their index. Empty if
/// there are none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Reshapes {
    pub(crate) inputs: Vec<Option<Reshape>>,
    pub(crate) outputs: Vec<Option<Reshape>>,
}

/// Tensors of a model as clients see them.
pub(crate) fn seen(tensors: &[TensorMetadata], reshapes: &[Option<Reshape>]) -> Vec<TensorMetadata> {
    let one = |(at, tensor): (usize, &TensorMetadata)| match reshapes.get(at) {
        Some(Some(reshape)) => TensorMetadata { shape: reshape.outer.clone(), symbols: Vec::new(), ..tensor.clone() },
        _ => tensor.clone(),
    };
    tensors.iter().enumerate().map(one).collect()
}

impl Reshape {
    /// The shape that the model gets or gives.
    pub(crate) fn inner(&self) -> &[i64] {
        &self.inner
    }

    /// The shape that the model gets for a shape of a client; `None` if that does not fit.
    pub(crate) fn inward(&self, shape: &[i64]) -> Option<Vec<i64>> {
        moved(&self.outer, &self.inner, shape)
    }

    /// The shape that a client gets for a shape of the model. One that does not fit stays as it is.
    pub(crate) fn outward(&self, shape: &[i64]) -> Vec<i64> {
        moved(&self.inner, &self.outer, shape).unwrap_or_else(|| shape.to_vec())
    }
}

/// Puts the variable sizes of `shape`, which has the form `from`, into the form `to`.
fn moved(from: &[i64], to: &[i64], shape: &[i64]) -> Option<Vec<i64>> {
    let fits = from.len() == shape.len() && from.iter().zip(shape).all(|(known, given)| *known < 0 || known == given);
    if !fits {
        return None;
    }
    let mut variable = from.iter().zip(shape).filter(|(known, _)| **known < 0).map(|(_, given)| *given);
    to.iter().map(|size| if *size < 0 { variable.next() } else { Some(*size) }).collect()
}

/// The elements between variable sizes; `None` if there are too many to count.
fn parts(shape: &[i64]) -> Option<Vec<i64>> {
    let product = |part: &[i64]| part.iter().try_fold(1i64, |product, size| product.checked_mul(*size));
    shape.split(|size| *size < 0).map(product).collect()
}

/// Checks the tensors that settings declare against those of a graph.
///
/// # Errors
/// If the graph has no such tensor, or another type or shape.
pub(crate) fn reshapes(graph: &KernelGraph, settings: &Settings) -> Result<Reshapes, String> {
    let is_batched = settings.max_batch_size.is_some();
    if is_batched && settings.runs_sequences && !row_fits_in_front(graph) {
        return Err("max_batch_size is above 0, and some of the model's inputs or outputs have no room for rows in \
                    front; remove max_batch_size and put all sizes into `dims`"
            .into());
    }
    if is_batched && !settings.runs_sequences && !rows_first(graph) {
        // What `dims` leave out is not in front, so there is nothing to compare.
        return Ok(Reshapes::default());
    }
    let mut inputs = tensor_metadata(graph, BufferKind::Input);
    inputs.retain(|input| !settings.controls.iter().any(|control| control.name == input.name));
    let outputs = tensor_metadata(graph, BufferKind::Output);
    Ok(Reshapes {
        inputs: check("input", &settings.inputs, &inputs, is_batched)?,
        outputs: check("output", &settings.outputs, &outputs, is_batched)?,
    })
}

/// Checks the outputs that the configuration of an ensemble declares against those of its steps.
/// Ensembles have no `reshape`.
///
/// # Errors
/// If the steps make no such output, or one of another type or shape.
pub(crate) fn declared(
    what: &str,
    declared: &[Declared],
    known: &[TensorMetadata],
    has_rows: bool,
) -> Result<Vec<Option<Reshape>>, String> {
    let plain = |tensor: &Declared| Declared { reshape: None, ..tensor.clone() };
    check(what, &declared.iter().map(plain).collect::<Vec<_>>(), known, has_rows)
}

/// Checks tensors that a configuration declares against those of the model. Returns the shapes of
/// those that clients see with another one, in the order of the model.
///
/// # Errors
/// If the model has no such tensor, or another type or shape.
fn check(
    what: &str,
    declared: &[Declared],
    known: &[TensorMetadata],
    has_rows: bool,
) -> Result<Vec<Option<Reshape>>, String> {
    let mut reshapes = vec![None; known.len()];
    for (at, tensor) in declared.iter().enumerate() {
        if declared[..at].iter().any(|before| before.name == tensor.name) {
            return Err(format!("{what} `{}` is declared twice; keep one", tensor.name));
        }
    }
    for tensor in declared {
        match known.iter().position(|known| known.name == tensor.name) {
            Some(at) => reshapes[at] = one(what, tensor, &known[at], has_rows)?,
            // An input with a default in the ONNX file is a constant of the compiled model.
            None if what == "input" && tensor.optional => {}
            None => {
                let names: Vec<&str> = known.iter().map(|known| known.name.as_str()).collect();
                return Err(format!("unexpected {what} `{}`; the model has {}", tensor.name, names.join(", ")));
            }
        }
    }
    let is_missing = |known: &&TensorMetadata| !declared.iter().any(|tensor| tensor.name == known.name);
    // Clients send all inputs. They may do without outputs.
    if let Some(missing) = known.iter().find(is_missing).filter(|_| what == "input" && !declared.is_empty()) {
        return Err(format!(
            "the configuration declares {} of the {} inputs of the model; `{}` is missing: add it, or remove all \
             inputs",
            declared.len(),
            known.len(),
            missing.name
        ));
    }
    Ok(reshapes)
}

fn one(what: &str, tensor: &Declared, known: &TensorMetadata, has_rows: bool) -> Result<Option<Reshape>, String> {
    let name = &tensor.name;
    let of_model = known.datatype.config_name();
    if let Some(declared) = tensor.data_type.as_ref().filter(|declared| **declared != of_model) {
        return Err(format!("{what} `{name}` is declared as {declared}, and the model has {of_model}"));
    }
    let Some(dims) = &tensor.dims else { return Ok(None) };
    let full = |dims: &[i64]| if has_rows { [&[-1], dims].concat() } else { dims.to_vec() };
    let (outer, inner) = (full(dims), full(tensor.reshape.as_ref().unwrap_or(dims)));
    let fits = |(declared, known): (&i64, &i64)| *declared < 0 || *known < 0 || declared == known;
    if inner.len() != known.shape.len() || !inner.iter().zip(&known.shape).all(fits) {
        let rows = if has_rows { " with the rows of a batch in front, as `max_batch_size` says" } else { "" };
        let declared = if has_rows { &inner[1..] } else { &inner };
        return Err(format!(
            "{what} `{name}` is declared as {declared:?}{rows}, and the model has {:?}; change dims, reshape or \
             max_batch_size",
            known.shape
        ));
    }
    if tensor.reshape.is_none() {
        // Sizes that the model leaves open and the configuration states.
        let narrowed: Vec<i64> = inner.iter().zip(&known.shape).map(|(declared, known)| *declared.max(known)).collect();
        let is_narrower = narrowed != known.shape;
        return Ok(is_narrower.then(|| Reshape { outer: narrowed.clone(), inner: narrowed }));
    }
    // Without that, a shape of a client would not say which one the model gets.
    if parts(&outer).is_none_or(|outer| parts(&inner) != Some(outer)) {
        return Err(format!(
            "{what} `{name}` has dims {:?} and reshape {:?}, which differ in their elements between variable sizes",
            dims,
            tensor.reshape.as_deref().unwrap_or_default()
        ));
    }
    Ok(Some(Reshape { outer, inner }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use atoll_protocol::DataType;

    fn declared(dims: &[i64], reshape: Option<&[i64]>) -> Declared {
        Declared {
            name: "x".into(),
            data_type: Some("TYPE_FP32".into()),
            dims: Some(dims.to_vec()),
            reshape: reshape.map(<[i64]>::to_vec),
            optional: false,
        }
    }

    fn checked(tensor: Declared, shape: &[i64], has_rows: bool) -> Result<Option<Reshape>, String> {
        let known =
            TensorMetadata { name: "x".into(), datatype: DataType::Fp32, shape: shape.to_vec(), symbols: Vec::new() };
        check("input", &[tensor], &[known], has_rows).map(|mut reshapes| reshapes.remove(0))
    }

    #[test]
    fn shapes_go_in_and_out() {
        let image = checked(declared(&[3, 4, 4], Some(&[1, 3, 4, 4])), &[1, 3, 4, 4], false).unwrap().unwrap();
        assert_eq!(image.inward(&[3, 4, 4]), Some(vec![1, 3, 4, 4]));
        assert_eq!((image.inward(&[1, 3, 4, 4]), image.inward(&[3, 4, 5])), (None, None));
        assert_eq!(image.outward(&[1, 3, 4, 4]), [3, 4, 4]);
        let batch = checked(declared(&[1], Some(&[])), &[-1], true).unwrap().unwrap();
        assert_eq!((batch.inward(&[8, 1]), batch.outward(&[8])), (Some(vec![8]), vec![8, 1]));
        let variable = checked(declared(&[-1, 2, 3, -1], Some(&[-1, 6, -1])), &[-1, 6, -1], false).unwrap().unwrap();
        assert_eq!(variable.inward(&[5, 2, 3, 7]), Some(vec![5, 6, 7]));
        assert_eq!(variable.outward(&[5, 6, 7]), [5, 2, 3, 7]);
        assert_eq!(checked(declared(&[-1, 6], None), &[4, 6], false), Ok(None));
        // A size that the model leaves open and the configuration states.
        let narrower = checked(declared(&[4, 6], None), &[-1, 6], false).unwrap().unwrap();
        assert_eq!((narrower.inward(&[4, 6]), narrower.inward(&[2, 6])), (Some(vec![4, 6]), None));
        assert_eq!(narrower.outward(&[4, 6]), [4, 6]);
        assert_eq!(checked(declared(&[6], None), &[-1, 6], true), Ok(None), "the rows stay open");
    }

    #[test]
    fn all_inputs_are_declared_once_or_none_is() {
        let known = ["x", "y"].map(|name| TensorMetadata {
            name: name.into(),
            datatype: DataType::Fp32,
            shape: vec![4],
            symbols: Vec::new(),
        });
        let [x, y] = ["x", "y"].map(|name| Declared { name: name.into(), ..declared(&[4], None) });
        let checked = |what: &str, declared: &[Declared]| check(what, declared, &known, false).map(drop);
        assert_eq!((checked("input", &[]), checked("input", &[y.clone(), x.clone()])), (Ok(()), Ok(())));
        assert_eq!(checked("output", std::slice::from_ref(&x)), Ok(()));
        let message = checked("input", std::slice::from_ref(&x)).unwrap_err();
        assert!(message.contains("declares 1 of the 2 inputs") && message.contains("`y` is missing"), "{message}");
        for what in ["input", "output"] {
            let message = checked(what, &[x.clone(), y.clone(), x.clone()]).unwrap_err();
            assert!(message.contains("`x` is declared twice"), "{message}");
        }
    }

    #[test]
    fn what_contradicts_the_model_is_refused() {
        for (tensor, shape, has_rows, expected) in [
            (declared(&[3], None), &[4][..], false, "declared as [3], and the model has [4]"),
            (declared(&[3], None), &[3], true, "with the rows of a batch in front"),
            (declared(&[2, 3], Some(&[5])), &[5], false, "differ in their elements"),
            (declared(&[-1, 2], Some(&[2])), &[2], false, "differ in their elements"),
            (declared(&[i64::MAX, 4], Some(&[4])), &[4], false, "differ in their elements"),
            (Declared { data_type: Some("TYPE_INT8".into()), ..declared(&[4], None) }, &[4], false, "as TYPE_INT8"),
            (
                Declared { name: "y".into(), ..declared(&[4], None) },
                &[4],
                false,
                "unexpected input `y`; the model has x",
            ),
        ] {
            let message = checked(tensor, shape, has_rows).unwrap_err();
            assert!(message.contains(expected), "{message}");
        }
    }
}
