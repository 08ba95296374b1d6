//! Products of matrices whose fragments are distributed over the lanes of a warp.
//!
//! Fragments of `mma` are laid out as in the ISA. With `g = lane / 4` and `t = lane % 4`, a
//! register of A holds row `g` (odd registers: `g + 8`), and as many adjacent columns as it has
//! elements, starting at `t` times that number. The second pair of registers is half a row further.
//! B has the same layout with rows and columns exchanged. The layout of `wmma` fragments is
//! unspecified; here each lane holds adjacent elements.
//!
//! Sums of floats are computed in f64 and rounded once. The ISA does not specify the order and
//! precision of the hardware.

use crate::format::{BF16, F16, F32, F64};
use crate::lanes::{Lanes, WARP};
use atoll_ptx::Instruction;

/// The element type of a matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Element {
    F16,
    Bf16,
    Tf32,
    F32,
    F64,
    S8,
    U8,
    S32,
}

/// An element: integers stay integers.
#[derive(Clone, Copy)]
enum Value {
    Float(f64),
    Int(i64),
}

impl Element {
    fn of(name: &str) -> Option<Element> {
        Some(match name {
            "f16" => Element::F16,
            "bf16" => Element::Bf16,
            "tf32" => Element::Tf32,
            "f32" => Element::F32,
            "f64" => Element::F64,
            "s8" => Element::S8,
            "u8" => Element::U8,
            "s32" => Element::S32,
            _ => return None,
        })
    }

    pub(crate) fn bits(self) -> u32 {
        match self {
            Element::S8 | Element::U8 => 8,
            Element::F16 | Element::Bf16 => 16,
            Element::Tf32 | Element::F32 | Element::S32 => 32,
            Element::F64 => 64,
        }
    }

    /// Elements in one register.
    pub(crate) fn packed(self) -> usize {
        (32 / self.bits()).max(1) as usize
    }

    fn read(self, bits: u64) -> Value {
        match self {
            Element::F16 => Value::Float(F16.to_f64(bits)),
            Element::Bf16 => Value::Float(BF16.to_f64(bits)),
            // The low 13 bits are ignored.
            Element::Tf32 => Value::Float(F32.to_f64(bits & !0x1fff)),
            Element::F32 => Value::Float(F32.to_f64(bits)),
            Element::F64 => Value::Float(f64::from_bits(bits)),
            Element::S8 => Value::Int((bits as i8).into()),
            Element::U8 => Value::Int((bits as u8).into()),
            Element::S32 => Value::Int((bits as i32).into()),
        }
    }

    fn write(self, value: Value, saturate: bool) -> u64 {
        match value {
            Value::Int(v) if saturate => v.clamp(i32::MIN.into(), i32::MAX.into()) as u32 as u64,
            Value::Int(v) => v as u32 as u64,
            Value::Float(v) => match self {
                Element::F16 => F16.round_f64(v),
                Element::Bf16 => BF16.round_f64(v),
                Element::F64 => F64.round_f64(v),
                _ => F32.round_f64(v),
            },
        }
    }

    /// One element in a lane's registers.
    fn element(self, registers: &[u64], index: usize) -> Value {
        let packed = self.packed();
        self.read(crate::alu::low(self.bits(), registers[index / packed] >> (self.bits() as usize * (index % packed))))
    }
}

/// A matrix of a product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operand {
    A,
    B,
    /// C or D.
    Sum,
}

/// `D = A · B + C`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Product {
    m: usize,
    n: usize,
    k: usize,
    a: Element,
    b: Element,
    c: Element,
    d: Element,
    saturate: bool,
    /// Whether its fragments are those of `wmma`. Their layout is unspecified, and A and B may have
    /// more registers than elements.
    opaque: bool,
}

fn shape(i: &Instruction) -> Result<[usize; 3], String> {
    let parse = |word: &str| -> Option<[usize; 3]> {
        let (m, rest) = word.strip_prefix('m')?.split_once('n')?;
        let (n, k) = rest.split_once('k')?;
        Some([m.parse().ok()?, n.parse().ok()?, k.parse().ok()?])
    };
    i.modifiers.iter().find_map(|m| parse(m)).ok_or_else(|| "its shape is not supported".into())
}

/// Supported shapes of `mma`, each with the element types of A.
const MMA: [([usize; 3], &[Element]); 6] = [
    ([16, 8, 8], &[Element::F16, Element::Bf16, Element::Tf32]),
    ([16, 8, 16], &[Element::F16, Element::Bf16, Element::S8, Element::U8]),
    ([16, 8, 32], &[Element::S8, Element::U8]),
    ([16, 8, 4], &[Element::Tf32]),
    ([8, 8, 4], &[Element::F64]),
    ([8, 8, 16], &[Element::S8, Element::U8]),
];

/// Supported shapes of `wmma`, each with the element types of A.
const WMMA: [([usize; 3], &[Element]); 5] = [
    ([16, 16, 16], &[Element::F16, Element::Bf16, Element::S8, Element::U8]),
    ([32, 8, 16], &[Element::F16, Element::Bf16, Element::S8, Element::U8]),
    ([8, 32, 16], &[Element::F16, Element::Bf16, Element::S8, Element::U8]),
    ([16, 16, 8], &[Element::Tf32]),
    ([8, 8, 4], &[Element::F64]),
];

impl Product {
    /// `mma.sync.aligned.shape.row.col.dtype.atype.btype.ctype`
    pub(crate) fn mma(i: &Instruction) -> Result<Product, String> {
        if !(i.has("row") && i.has("col")) || i.has("sp") {
            return Err("only dense row by column products are supported".into());
        }
        Product::of(i, &MMA, false)
    }

    /// `wmma.mma.sync.aligned.alayout.blayout.shape.dtype[.atype.btype].ctype`
    pub(crate) fn wmma(i: &Instruction) -> Result<Product, String> {
        Product::of(i, &WMMA, true)
    }

    fn of(i: &Instruction, supported: &[([usize; 3], &[Element])], opaque: bool) -> Result<Product, String> {
        let [m, n, k] = shape(i)?;
        let known = ["sync", "aligned", "row", "col", "satfinite", "mma", "rn"];
        let words: Vec<&str> = i.modifiers.iter().map(|w| w.as_str()).filter(|w| !known.contains(w)).skip(1).collect();
        let elements: Option<Vec<Element>> = words.iter().map(|w| Element::of(w)).collect();
        let (d, a, b, c) = match elements.as_deref() {
            Some(&[d, a, b, c]) => (d, a, b, c),
            Some(&[d, c]) if opaque => (d, Element::F16, Element::F16, c),
            _ => return Err("its types are not supported".into()),
        };
        if !supported.iter().any(|(shape, types)| *shape == [m, n, k] && types.contains(&a)) {
            return Err("its shape is not supported for its types".into());
        }
        Ok(Product { m, n, k, a, b, c, d, saturate: i.has("satfinite"), opaque })
    }

    /// Rows, columns and element type of a matrix.
    fn matrix(&self, operand: Operand) -> (usize, usize, Element) {
        match operand {
            Operand::A => (self.m, self.k, self.a),
            Operand::B => (self.k, self.n, self.b),
            Operand::Sum => (self.m, self.n, self.c),
        }
    }

    fn registers(&self, operand: Operand) -> usize {
        let (rows, columns, element) = self.matrix(operand);
        (rows * columns / WARP).div_ceil(element.packed())
    }

    /// The number of registers per lane for A, B and C, if `named` is the total that the
    /// instruction names.
    fn split(&self, named: usize) -> Option<[usize; 3]> {
        let [a, b, c] = [Operand::A, Operand::B, Operand::Sum].map(|o| self.registers(o));
        if !self.opaque {
            return (a + b + c == named).then_some([a, b, c]);
        }
        // Fragments of f16 always have eight registers.
        let stored = |needed: usize, element: Element| if element == Element::F16 { 8 } else { needed };
        let split = [stored(a, self.a), stored(b, self.b), c];
        (split.iter().sum::<usize>() == named).then_some(split)
    }

    /// Checks the number of registers that the instruction names.
    pub(crate) fn check(&self, named: usize) -> Result<(), String> {
        self.split(named).map(|_| ()).ok_or_else(|| format!("{named} registers do not hold matrices of this shape"))
    }

    /// Row and column of an element in a lane's registers.
    fn place(&self, operand: Operand, lane: usize, index: usize) -> (usize, usize) {
        let (rows, columns, element) = self.matrix(operand);
        if self.opaque {
            return linear(rows, columns, lane, index);
        }
        let (g, t) = (lane / 4, lane % 4);
        let packed = element.packed();
        let (register, within) = (index / packed, index % packed);
        match operand {
            // A matrix of eight rows has no registers for rows 8 to 15.
            Operand::A if self.m == 8 => (g, t * packed + within + 4 * packed * register),
            Operand::A => (g + 8 * (register & 1), t * packed + within + 4 * packed * (register >> 1)),
            Operand::B => (t * packed + within + 4 * packed * register, g),
            Operand::Sum => (g + 8 * (index >> 1), 2 * t + (index & 1)),
        }
    }

    fn gather(&self, operand: Operand, lanes: &Lanes, from: usize) -> Vec<Value> {
        let (rows, columns, element) = self.matrix(operand);
        let mut all = vec![Value::Float(0.0); rows * columns];
        for (lane, values) in lanes.iter().enumerate() {
            let Some(values) = values else { continue };
            for index in 0..rows * columns / WARP {
                let (row, column) = self.place(operand, lane, index);
                all[row * columns + column] = element.element(&values[from..], index);
            }
        }
        all
    }

    /// Computes the product; returns the registers of D.
    pub(crate) fn multiply(&self, lanes: &Lanes) -> Lanes {
        let named = lanes.iter().flatten().map(Vec::len).next().unwrap_or(0);
        let Some([a_count, b_count, _]) = self.split(named) else { return lanes.clone() };
        let a = self.gather(Operand::A, lanes, 0);
        let b = self.gather(Operand::B, lanes, a_count);
        let c = self.gather(Operand::Sum, lanes, a_count + b_count);
        let entry = |row: usize, column: usize| -> u64 {
            let products = (0..self.k).map(|k| (a[row * self.k + k], b[k * self.n + column]));
            let sum = products.fold(c[row * self.n + column], |sum, (x, y)| match (sum, x, y) {
                (Value::Int(sum), Value::Int(x), Value::Int(y)) => Value::Int(sum + x * y),
                // f64 products are fused; narrower products are exact in f64, so fusing makes no
                // difference.
                (Value::Float(sum), Value::Float(x), Value::Float(y)) => Value::Float(x.mul_add(y, sum)),
                _ => sum,
            });
            self.d.write(sum, self.saturate)
        };
        let packed = self.d.packed();
        let count = self.m * self.n / WARP;
        std::array::from_fn(|lane| {
            lanes[lane].as_ref().map(|_| {
                let mut registers = vec![0u64; count.div_ceil(packed)];
                for index in 0..count {
                    let (row, column) = self.place(Operand::Sum, lane, index);
                    registers[index / packed] |= entry(row, column) << (self.d.bits() as usize * (index % packed));
                }
                registers
            })
        })
    }
}

/// Row and column of an element of a `wmma` fragment.
fn linear(rows: usize, columns: usize, lane: usize, index: usize) -> (usize, usize) {
    let at = lane * (rows * columns / WARP) + index;
    (at / columns, at % columns)
}

/// A `wmma` fragment in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fragment {
    pub(crate) rows: usize,
    pub(crate) columns: usize,
    pub(crate) element: Element,
    row_major: bool,
}

impl Fragment {
    /// `wmma.load.{a,b,c}…` or `wmma.store.d…`
    pub(crate) fn of(i: &Instruction) -> Result<Fragment, String> {
        let [m, n, k] = shape(i)?;
        if !WMMA.iter().any(|(shape, _)| *shape == [m, n, k]) {
            return Err("its shape is not supported".into());
        }
        let which = i.modifiers.get(1).map_or("", |w| w.as_str());
        let (rows, columns) = match which {
            "a" => (m, k),
            "b" => (k, n),
            "c" | "d" => (m, n),
            _ => return Err("its matrix is not supported".into()),
        };
        let element = i.modifiers.last().and_then(|w| Element::of(w)).ok_or("its type is not supported")?;
        Ok(Fragment { rows, columns, element, row_major: i.has("row") })
    }

    pub(crate) fn registers(&self) -> usize {
        (self.rows * self.columns / WARP).div_ceil(self.element.packed())
    }

    /// Checks that `named` registers hold the fragment once or several times.
    pub(crate) fn check(&self, named: usize) -> Result<(), String> {
        let fits = named > 0 && named.is_multiple_of(self.registers());
        if fits { Ok(()) } else { Err(format!("{named} registers do not hold a fragment of this shape")) }
    }

    /// The address of an element in a lane's registers.
    pub(crate) fn address(&self, base: u64, stride: Option<u64>, lane: usize, index: usize) -> u64 {
        let (row, column) = linear(self.rows, self.columns, lane, index);
        let (line, within, length) =
            if self.row_major { (row, column, self.columns) } else { (column, row, self.rows) };
        let stride = stride.unwrap_or(length as u64);
        let offset = (line as u64)
            .wrapping_mul(stride)
            .wrapping_add(within as u64)
            .wrapping_mul((self.element.bits() / 8).into());
        base.wrapping_add(offset)
    }
}

/// `movmatrix`: transposes an 8×8 matrix of halves across the warp.
pub(crate) fn transpose(lanes: &Lanes) -> Lanes {
    let half = |row: usize, column: usize| -> u64 {
        let register = lanes[row * 4 + column / 2].as_ref().map_or(0, |v| v[0]);
        register >> (16 * (column % 2)) & 0xffff
    };
    std::array::from_fn(|lane| {
        lanes[lane].as_ref().map(|_| {
            let (row, column) = (lane / 4, 2 * (lane % 4));
            vec![half(column, row) | half(column + 1, row) << 16]
        })
    })
}
