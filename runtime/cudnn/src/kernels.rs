//! The kernels: templates in PTX, and the variants that are made from them.

use atoll_cuda_library::{Kernels, Number, TARGET, Variables, fill_in};

const POINT: &str = include_str!("../kernels/point.template");
const ROWS: &str = include_str!("../kernels/rows.template");
const WINDOW: &str = include_str!("../kernels/window.template");
const CONVOLVE: &str = include_str!("../kernels/convolve.template");
const SPLIT: &str = include_str!("../kernels/split.template");

/// Templates that others include.
const PARTS: [(&str, &str); 10] = [
    ("activation", include_str!("../kernels/activation.template")),
    ("combine", include_str!("../kernels/combine.template")),
    ("exp", include_str!("../kernels/exp.template")),
    ("expm1", include_str!("../kernels/expm1.template")),
    ("exponent", include_str!("../kernels/exponent.template")),
    ("index", include_str!("../kernels/index.template")),
    ("log", include_str!("../kernels/log.template")),
    ("power", include_str!("../kernels/power.template")),
    ("registers", include_str!("../kernels/registers.template")),
    ("split", SPLIT),
];

/// Threads of a block, except in kernels on rows.
pub(crate) const THREADS: u32 = 256;

/// The types of a kernel's tensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Types {
    /// Of the tensors that are only read.
    pub(crate) input: Number,
    /// Of the tensor that is written.
    pub(crate) output: Number,
}

impl Types {
    /// The type in which kernels compute, which factors have too.
    pub(crate) fn sum(self) -> Number {
        if self.input == Number::F64 { Number::F64 } else { Number::F32 }
    }
}

/// A module, with one kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Code {
    /// `point`: elements of tensors with `rank` dimensions.
    Point { types: Types, op: Point, rank: u32 },
    /// `rows`: elements of rows with `inner` dimensions, of which there are several in `outer`
    /// dimensions.
    Rows { types: Types, op: Rows, outer: u32, inner: u32, threads: u32 },
    /// `window`.
    Window { types: Types, op: Window },
    /// `convolve`. The gradient with respect to the input divides coordinates by strides.
    Convolve { types: Types, divides: bool, has_bias: bool, activation: Activation },
}

/// An operation on elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Point {
    /// alpha.
    Set,
    /// alpha * activation(a).
    Copy(Activation),
    /// The square root of alpha * a.
    Root,
    /// 1 - alpha * a.
    Not,
    /// alpha * a and alpha_b * b, combined.
    Combine(Combine),
    /// alpha * ((a - mean) / sqrt(variance + coefficient) * scale + bias).
    Normalize,
}

/// A way to combine numbers. `keeps_nan`: whether the result is NaN if one number is, or else the
/// other number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Combine {
    Add,
    Mul,
    Min { keeps_nan: bool },
    Max { keeps_nan: bool },
}

/// An operation on rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Rows {
    Softmax,
    LogSoftmax,
    /// The numbers combined.
    Reduce(Combine),
    /// The largest magnitude.
    MaxMagnitude {
        keeps_nan: bool,
    },
    Average,
    /// The sum of magnitudes.
    Norm1,
    /// The root of the sum of squares.
    Norm2,
    /// The product of the numbers that are not 0.
    ProductWithoutZeros,
}

/// An operation on windows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Window {
    Max {
        keeps_nan: bool,
    },
    /// The sum over the number of elements of the window.
    AverageAll,
    /// The sum over the number of elements of the window that are in the tensor.
    AverageInside,
    /// Local response normalization across channels.
    Response,
}

/// A function of a number. `keeps_nan`: whether it is NaN for NaN, else 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Activation {
    Identity,
    Sigmoid,
    Tanh,
    Relu {
        keeps_nan: bool,
    },
    /// At most the coefficient.
    ClippedRelu {
        keeps_nan: bool,
    },
    /// For negative numbers, coefficient * (exp(v) - 1).
    Elu,
    /// v * sigmoid(coefficient * v).
    Swish,
}

impl Code {
    /// The kernel's name.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Code::Point { .. } => "point",
            Code::Rows { .. } => "rows",
            Code::Window { .. } => "window",
            Code::Convolve { .. } => "convolve",
        }
    }

    fn types(self) -> Types {
        match self {
            Code::Point { types, .. }
            | Code::Rows { types, .. }
            | Code::Window { types, .. }
            | Code::Convolve { types, .. } => types,
        }
    }

    /// The template, and the variables that are not common to all kernels.
    fn parts(self) -> (&'static str, Vec<(&'static str, String)>) {
        match self {
            Code::Point { op, rank, .. } => (POINT, point(op, rank)),
            Code::Rows { types, op, outer, inner, threads } => (ROWS, rows(types, op, [outer, inner], threads)),
            Code::Window { op, .. } => (WINDOW, window(op)),
            Code::Convolve { divides, has_bias, activation, .. } => {
                let mut variables =
                    vec![("digits", "w h d q g p".to_owned()), ("divides", yes(divides)), ("bias", yes(has_bias))];
                variables.extend(activate(activation));
                (CONVOLVE, variables)
            }
        }
    }
}

impl Kernels for Code {
    const LIBRARY: &'static str = "cuDNN";

    fn ptx(self) -> String {
        let types = self.types();
        let (template, own) = self.parts();
        let common = [("target", TARGET), ("in", types.input.name()), ("out", types.output.name())];
        let mut variables: Variables = Vec::new();
        let texts = PARTS.iter().chain(&common).map(|(name, text)| ((*name).to_owned(), (*text).to_owned()));
        variables.extend(texts);
        variables.extend(own.into_iter().map(|(name, text)| (name.to_owned(), text)));
        variables.extend(constants(types.sum()).map(|(name, text)| (name.to_owned(), text)));
        fill_in(template, types.sum(), variables)
    }
}

fn yes(is: bool) -> String {
    if is { "yes" } else { "no" }.to_owned()
}

fn activate(activation: Activation) -> [(&'static str, String); 2] {
    let (name, keeps_nan) = match activation {
        Activation::Identity => ("identity", true),
        Activation::Sigmoid => ("sigmoid", true),
        Activation::Tanh => ("tanh", true),
        Activation::Relu { keeps_nan } => ("relu", keeps_nan),
        Activation::ClippedRelu { keeps_nan } => ("clipped_relu", keeps_nan),
        Activation::Elu => ("elu", true),
        Activation::Swish => ("swish", true),
    };
    [("activation_mode", name.to_owned()), ("nan", yes(keeps_nan))]
}

impl Combine {
    fn variables(self) -> (&'static str, String) {
        match self {
            Combine::Add => ("add", yes(true)),
            Combine::Mul => ("mul", yes(true)),
            Combine::Min { keeps_nan } => ("min", yes(keeps_nan)),
            Combine::Max { keeps_nan } => ("max", yes(keeps_nan)),
        }
    }
}

fn point(op: Point, rank: u32) -> Vec<(&'static str, String)> {
    let (name, data, parameters) = match op {
        Point::Set => ("set", "", ""),
        Point::Copy(_) => ("copy", "a", ""),
        Point::Root => ("sqrt", "a", ""),
        Point::Not => ("not", "a", ""),
        Point::Combine(_) => ("combine", "a b", ""),
        Point::Normalize => ("normalize", "a", "scale bias mean variance"),
    };
    let mut variables = vec![
        ("op", name.to_owned()),
        ("rank", rank.to_string()),
        ("digits", digits("", rank)),
        ("operands", format!("{data} {parameters}")),
        ("data", data.to_owned()),
        ("parameters", parameters.to_owned()),
    ];
    match op {
        Point::Copy(activation) => variables.extend(activate(activation)),
        Point::Combine(combine) => {
            let (pass, nan) = combine.variables();
            variables.extend([("pass", pass.to_owned()), ("nan", nan)]);
        }
        _ => {}
    }
    variables
}

/// The names of dimensions, the last first.
fn digits(prefix: &str, rank: u32) -> String {
    (0..rank).rev().map(|digit| format!("{prefix}{digit}")).collect::<Vec<_>>().join(" ")
}

fn rows(types: Types, op: Rows, [outer, inner]: [u32; 2], threads: u32) -> Vec<(&'static str, String)> {
    let (kind, name, (passes, nan)) = match op {
        Rows::Softmax => ("softmax", "softmax", ("max add", yes(false))),
        Rows::LogSoftmax => ("softmax", "log_softmax", ("max add", yes(false))),
        Rows::Reduce(combine) => ("reduce", "reduce", combine.variables()),
        Rows::MaxMagnitude { keeps_nan } => ("reduce", "amax", Combine::Max { keeps_nan }.variables()),
        Rows::Average => ("reduce", "avg", Combine::Add.variables()),
        Rows::Norm1 => ("reduce", "norm1", Combine::Add.variables()),
        Rows::Norm2 => ("reduce", "norm2", Combine::Add.variables()),
        Rows::ProductWithoutZeros => ("reduce", "mul_no_zeros", Combine::Mul.variables()),
    };
    vec![
        ("kind", kind.to_owned()),
        ("op", name.to_owned()),
        ("passes", passes.to_owned()),
        ("nan", nan),
        ("row_digits", digits("o", outer)),
        ("inner_digits", digits("i", inner)),
        ("split_row", SPLIT.replace("${digits}", "${row_digits}")),
        ("split_inner", SPLIT.replace("${digits}", "${inner_digits}")),
        ("threads", threads.to_string()),
        ("half", (threads / 2).to_string()),
        ("bytes", types.sum().bytes().to_string()),
    ]
}

fn window(op: Window) -> Vec<(&'static str, String)> {
    let (name, combine) = match op {
        Window::Max { keeps_nan } => ("max", Combine::Max { keeps_nan }),
        Window::AverageAll => ("average_all", Combine::Add),
        Window::AverageInside => ("average_inside", Combine::Add),
        Window::Response => ("lrn", Combine::Add),
    };
    let is_response = op == Window::Response;
    let (pass, nan) = combine.variables();
    vec![
        ("op", name.to_owned()),
        ("kind", if is_response { "lrn" } else { "pooling" }.to_owned()),
        ("pass", pass.to_owned()),
        ("nan", nan),
        ("digits", "w h d c n".to_owned()),
        // The coordinates that are the same in both tensors.
        ("fixed", if is_response { "n d h w" } else { "n c" }.to_owned()),
    ]
}

/// Terms of the power series of exp(r) - 1 over r, for |r| <= ln 2 / 2, the last first; the error is
/// below half a unit in the last place.
fn exponent_terms(number: Number) -> String {
    let terms = if number == Number::F64 { 13 } else { 7 };
    let factorial = |term: u32| (1..=term).map(f64::from).product::<f64>();
    literals(number, (1..=terms).rev().map(|term| 1.0 / factorial(term)))
}

/// Terms of the power series of log((1 + s) / (1 - s)) over s in powers of s * s, for |s| < 0.172, the
/// last first.
fn log_terms(number: Number) -> String {
    let terms = if number == Number::F64 { 12 } else { 5 };
    literals(number, (0..terms).rev().map(|term| 2.0 / f64::from(2 * term + 1)))
}

fn literals(number: Number, values: impl Iterator<Item = f64>) -> String {
    values.map(|value| number.literal(value)).collect::<Vec<_>>().join(" ")
}

/// Literals and bounds of the type in which a kernel computes.
fn constants(number: Number) -> impl Iterator<Item = (&'static str, String)> {
    let is_wide = number == Number::F64;
    // The upper part of ln 2 has few bits, so that its product with a power of 2 is exact.
    let high = if is_wide { f64::from_bits(0x3fe6_2e42_fee0_0000) } else { f64::from_bits(0x3fe6_2e40_0000_0000) };
    let ln2 = std::f64::consts::LN_2;
    let low = if is_wide { 1.908_214_929_270_587_7e-10 } else { ln2 - high };
    let root_bits = if is_wide { 0.5f64.sqrt().to_bits() } else { u64::from(0.5f32.sqrt().to_bits()) };
    let literal = |value: f64| number.literal(value);
    [
        ("acc", number.name().to_owned()),
        ("zero", literal(0.0)),
        ("one", literal(1.0)),
        ("two", literal(2.0)),
        ("twenty", literal(20.0)),
        ("minus_forty", literal(-40.0)),
        ("infinity", literal(f64::INFINITY)),
        ("minus_infinity", literal(f64::NEG_INFINITY)),
        ("ln2", literal(ln2)),
        ("log2_e", literal(std::f64::consts::LOG2_E)),
        ("minus_ln2_high", literal(-high)),
        ("minus_ln2_low", literal(-low)),
        ("exponent_terms", exponent_terms(number)),
        ("log_terms", log_terms(number)),
        ("root_bits", root_bits.to_string()),
        // Arguments of exp beyond which the result is 0 or infinite.
        ("exp_low", literal(if is_wide { -800.0 } else { -120.0 })),
        ("exp_high", literal(if is_wide { 720.0 } else { 90.0 })),
        ("power_low", if is_wide { "-2040" } else { "-250" }.to_owned()),
        ("power_high", if is_wide { "2040" } else { "250" }.to_owned()),
    ]
    .into_iter()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel_checks::{can_be_fenced, is_valid};

    const TYPES: [Number; 4] = [Number::F64, Number::F32, Number::F16, Number::Bf16];

    const COMBINES: [Combine; 6] = [
        Combine::Add,
        Combine::Mul,
        Combine::Min { keeps_nan: false },
        Combine::Min { keeps_nan: true },
        Combine::Max { keeps_nan: false },
        Combine::Max { keeps_nan: true },
    ];

    const ACTIVATIONS: [Activation; 9] = [
        Activation::Identity,
        Activation::Sigmoid,
        Activation::Tanh,
        Activation::Relu { keeps_nan: false },
        Activation::Relu { keeps_nan: true },
        Activation::ClippedRelu { keeps_nan: false },
        Activation::ClippedRelu { keeps_nan: true },
        Activation::Elu,
        Activation::Swish,
    ];

    /// Every operation once, and each with some of the types and numbers of dimensions.
    fn all() -> Vec<Code> {
        let mut points = vec![Point::Set, Point::Root, Point::Not, Point::Normalize];
        points.extend(ACTIVATIONS.map(Point::Copy));
        points.extend(COMBINES.map(Point::Combine));
        let mut rows = vec![
            Rows::Softmax,
            Rows::LogSoftmax,
            Rows::MaxMagnitude { keeps_nan: true },
            Rows::Average,
            Rows::Norm1,
            Rows::Norm2,
            Rows::ProductWithoutZeros,
        ];
        rows.extend(COMBINES.map(Rows::Reduce));
        let windows = [
            Window::Max { keeps_nan: false },
            Window::Max { keeps_nan: true },
            Window::AverageAll,
            Window::AverageInside,
            Window::Response,
        ];
        let mut all = Vec::new();
        for number in TYPES {
            let types = Types { input: number, output: number };
            let ranks = points.iter().enumerate().map(|(index, op)| (*op, 1 + index as u32 % 4));
            all.extend(ranks.map(|(op, rank)| Code::Point { types, op, rank }));
            let ranks = rows.iter().enumerate().map(|(index, op)| (*op, index as u32));
            all.extend(ranks.map(|(op, index)| {
                let threads = if index % 2 == 0 { 32 } else { 256 };
                Code::Rows { types, op, outer: 1 + index % 3, inner: 1 + index % 2, threads }
            }));
            all.extend(windows.map(|op| Code::Window { types, op }));
            all.extend(ACTIVATIONS.iter().enumerate().map(|(index, activation)| {
                let (divides, has_bias) = (index % 2 == 0, index % 3 == 0);
                Code::Convolve { types, divides, has_bias, activation: *activation }
            }));
        }
        let types = Types { input: Number::F16, output: Number::F32 };
        all.push(Code::Point { types, op: Point::Copy(Activation::Identity), rank: 8 });
        all
    }

    #[test]
    fn every_kernel_is_valid_ptx() {
        all().into_iter().for_each(|code| is_valid(&code, &code.ptx()));
    }

    #[test]
    fn every_kernel_can_be_fenced() {
        all().into_iter().for_each(|code| can_be_fenced(&code, &code.ptx()));
    }
}
