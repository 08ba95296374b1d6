//! Element types and shapes of tensors, for checking the connections of a graph.

use std::fmt;

/// The size of one dimension of a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Size {
    /// Known when the graph is deployed.
    Fixed(u64),
    /// Known and checked only when the function is called.
    Any,
}

/// Element type and shape of a tensor.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Form {
    /// The name of the element type in the metadata of functions, such as `FP32`. It is only
    /// compared.
    pub element: String,
    /// Sizes, outermost first.
    pub shape: Vec<Size>,
}

impl Form {
    /// Whether a tensor of this form may be used where `wanted` is declared: the same element type
    /// and number of dimensions, and equal sizes where both are known.
    pub fn fits(&self, wanted: &Form) -> bool {
        let agrees = |(a, b): (&Size, &Size)| match (a, b) {
            (Size::Fixed(a), Size::Fixed(b)) => a == b,
            _ => true,
        };
        self.element == wanted.element
            && self.shape.len() == wanted.shape.len()
            && self.shape.iter().zip(&wanted.shape).all(agrees)
    }

    /// Whether the tensor can have exactly one element: each known size is 1.
    pub fn may_be_scalar(&self) -> bool {
        self.shape.iter().all(|size| matches!(size, Size::Fixed(1) | Size::Any))
    }

    /// Whether a condition can compare an element of this type with a number.
    pub fn is_number(&self) -> bool {
        !matches!(self.element.as_str(), "BYTES" | "BOOL")
    }
}

impl fmt::Display for Form {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let size = |size: &Size| match size {
            Size::Fixed(size) => size.to_string(),
            Size::Any => "?".into(),
        };
        write!(f, "{}[{}]", self.element, self.shape.iter().map(size).collect::<Vec<_>>().join(", "))
    }
}

/// A named tensor of a graph or a function.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TensorSpec {
    /// Its name.
    pub name: String,
    /// Its element type and shape.
    pub form: Form,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn form(element: &str, shape: &[Size]) -> Form {
        Form { element: element.into(), shape: shape.to_vec() }
    }

    #[test]
    fn known_sizes_have_to_agree() {
        let fixed = form("FP32", &[Size::Fixed(1), Size::Fixed(4)]);
        assert!(fixed.fits(&fixed) && fixed.fits(&form("FP32", &[Size::Any, Size::Fixed(4)])));
        assert!(form("FP32", &[Size::Any, Size::Any]).fits(&fixed));
        for other in [
            form("INT32", &[Size::Fixed(1), Size::Fixed(4)]),
            form("FP32", &[Size::Fixed(1), Size::Fixed(5)]),
            form("FP32", &[Size::Fixed(1)]),
        ] {
            assert!(!fixed.fits(&other), "{other}");
        }
        assert_eq!(form("FP32", &[Size::Any, Size::Fixed(4)]).to_string(), "FP32[?, 4]");
    }

    #[test]
    fn a_scalar_has_one_element() {
        assert!(form("FP32", &[]).may_be_scalar() && form("FP32", &[Size::Fixed(1), Size::Any]).may_be_scalar());
        assert!(!form("FP32", &[Size::Fixed(2)]).may_be_scalar());
        assert!(form("FP32", &[]).is_number() && !form("BYTES", &[]).is_number() && !form("BOOL", &[]).is_number());
    }
}
