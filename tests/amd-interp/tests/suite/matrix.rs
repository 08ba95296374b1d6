//! Compares matrix instructions with products in Rust, in the register layouts of AMD's documents.

use std::fmt::Write;

use atoll_amd_interp::Memory;

use crate::tools::{Arguments, compiled, launch, line, read_words, words};

/// An instruction: its intrinsic, and the places of elements.
struct Product {
    cpu: &'static str,
    name: &'static str,
    /// IR types of A and B, and of C and D.
    types: [&'static str; 2],
    /// The operands of the intrinsic in LLVM's syntax: A, B, C and constants.
    call: &'static str,
    rows: usize,
    depth: usize,
    input: Number,
    /// Lane and element of A\[row\]\[k\].
    a: fn(usize, usize) -> (usize, usize),
    /// Lane and element of D\[row\]\[column\].
    d: fn(usize, usize) -> (usize, usize),
}

#[derive(Clone, Copy, PartialEq)]
enum Number {
    Half,
    Bfloat,
    Single,
    Double,
    Byte,
}

const PRODUCTS: &[Product] = &[
    Product {
        cpu: "gfx90a",
        name: "llvm.amdgcn.mfma.f32.16x16x16f16",
        types: ["<4 x half>", "<4 x float>"],
        call: "<4 x half> %a, <4 x half> %b, <4 x float> %c, i32 0, i32 0, i32 0",
        rows: 16,
        depth: 16,
        input: Number::Half,
        a: |row, k| (k / 4 * 16 + row, k % 4),
        d: |row, column| (row / 4 * 16 + column, row % 4),
    },
    Product {
        cpu: "gfx90a",
        name: "llvm.amdgcn.mfma.f32.32x32x8f16",
        types: ["<4 x half>", "<16 x float>"],
        call: "<4 x half> %a, <4 x half> %b, <16 x float> %c, i32 0, i32 0, i32 0",
        rows: 32,
        depth: 8,
        input: Number::Half,
        a: |row, k| (k / 4 * 32 + row, k % 4),
        d: |row, column| (row / 4 % 2 * 32 + column, row / 8 * 4 + row % 4),
    },
    Product {
        cpu: "gfx90a",
        name: "llvm.amdgcn.mfma.f32.16x16x16bf16.1k",
        types: ["<4 x i16>", "<4 x float>"],
        call: "<4 x i16> %a, <4 x i16> %b, <4 x float> %c, i32 0, i32 0, i32 0",
        rows: 16,
        depth: 16,
        input: Number::Bfloat,
        a: |row, k| (k / 4 * 16 + row, k % 4),
        d: |row, column| (row / 4 * 16 + column, row % 4),
    },
    Product {
        cpu: "gfx90a",
        name: "llvm.amdgcn.mfma.f32.16x16x4f32",
        types: ["float", "<4 x float>"],
        call: "float %a, float %b, <4 x float> %c, i32 0, i32 0, i32 0",
        rows: 16,
        depth: 4,
        input: Number::Single,
        a: |row, k| (k * 16 + row, 0),
        d: |row, column| (row / 4 * 16 + column, row % 4),
    },
    Product {
        cpu: "gfx90a",
        name: "llvm.amdgcn.mfma.f64.16x16x4f64",
        types: ["double", "<4 x double>"],
        call: "double %a, double %b, <4 x double> %c, i32 0, i32 0, i32 0",
        rows: 16,
        depth: 4,
        input: Number::Double,
        a: |row, k| (k * 16 + row, 0),
        d: |row, column| (row % 4 * 16 + column, row / 4),
    },
    Product {
        cpu: "gfx90a",
        name: "llvm.amdgcn.mfma.i32.16x16x16i8",
        types: ["i32", "<4 x i32>"],
        call: "i32 %a, i32 %b, <4 x i32> %c, i32 0, i32 0, i32 0",
        rows: 16,
        depth: 16,
        input: Number::Byte,
        a: |row, k| (k / 4 * 16 + row, k % 4),
        d: |row, column| (row / 4 * 16 + column, row % 4),
    },
    Product {
        cpu: "gfx1100",
        name: "llvm.amdgcn.wmma.f32.16x16x16.f16.v8f32.v16f16",
        types: ["<16 x half>", "<8 x float>"],
        call: "<16 x half> %a, <16 x half> %b, <8 x float> %c",
        rows: 16,
        depth: 16,
        input: Number::Half,
        a: |row, k| (row, k),
        d: |row, column| (row % 2 * 16 + column, row / 2),
    },
    Product {
        cpu: "gfx1100",
        name: "llvm.amdgcn.wmma.f32.16x16x16.bf16.v8f32.v16i16",
        types: ["<16 x i16>", "<8 x float>"],
        call: "<16 x i16> %a, <16 x i16> %b, <8 x float> %c",
        rows: 16,
        depth: 16,
        input: Number::Bfloat,
        a: |row, k| (row, k),
        d: |row, column| (row % 2 * 16 + column, row / 2),
    },
    Product {
        cpu: "gfx1201",
        name: "llvm.amdgcn.wmma.f32.16x16x16.f16.v8f32.v8f16",
        types: ["<8 x half>", "<8 x float>"],
        call: "<8 x half> %a, <8 x half> %b, <8 x float> %c",
        rows: 16,
        depth: 16,
        input: Number::Half,
        a: |row, k| (k / 8 * 16 + row, k % 8),
        d: |row, column| (row / 8 * 16 + column, row % 8),
    },
];

impl Number {
    fn bits(self) -> usize {
        match self {
            Number::Half | Number::Bfloat => 16,
            Number::Single => 32,
            Number::Double => 64,
            Number::Byte => 8,
        }
    }

    /// Encodes a small integer, which every format represents exactly.
    fn encode(self, value: i32) -> u64 {
        match self {
            Number::Byte => value as u8 as u64,
            Number::Double => f64::from(value).to_bits(),
            Number::Single => (value as f32).to_bits().into(),
            Number::Bfloat => ((value as f32).to_bits() >> 16).into(),
            Number::Half if value == 0 => 0,
            Number::Half => {
                let single = (value as f32).to_bits();
                let exponent = (single >> 23 & 255) - 127 + 15;
                u64::from(single >> 16 & 0x8000 | exponent << 10 | single >> 13 & 0x3ff)
            }
        }
    }
}

/// The registers of all lanes, filled with elements.
struct Registers {
    words_per_lane: usize,
    words: Vec<u32>,
}

impl Registers {
    fn new(lanes: usize, bits_per_lane: usize) -> Self {
        let words_per_lane = bits_per_lane / 32;
        Self { words_per_lane, words: vec![0; lanes * words_per_lane] }
    }

    fn put(&mut self, (lane, element): (usize, usize), bits: usize, value: u64) {
        let at = lane * self.words_per_lane * 32 + element * bits;
        for part in 0..bits.div_ceil(32) {
            self.words[at / 32 + part] |= ((value >> (32 * part)) << (at % 32)) as u32;
        }
    }
}

fn type_bits(ty: &str) -> usize {
    let (count, element) = match ty.strip_prefix('<') {
        Some(rest) => rest.trim_end_matches('>').split_once(" x ").unwrap(),
        None => ("1", ty),
    };
    let bits = match element {
        "half" | "i16" => 16,
        "double" => 64,
        _ => 32,
    };
    count.parse::<usize>().unwrap() * bits
}

fn module(product: &Product) -> String {
    let [input, output] = product.types;
    let mut text = String::from("target triple = \"amdgcn-amd-amdhsa\"\ndeclare i32 @llvm.amdgcn.workitem.id.x()\n");
    let arguments: Vec<&str> = product.call.split(", ").map(|a| a.rsplit_once(' ').unwrap().0).collect();
    let _ = write!(
        text,
        "declare {output} @{}({})\ndefine amdgpu_kernel void @k(ptr addrspace(1) %pa, ptr addrspace(1) %pb, \
         ptr addrspace(1) %pc) {{\n  %t = call i32 @llvm.amdgcn.workitem.id.x()\n",
        product.name,
        arguments.join(", ")
    );
    for (name, ty) in [("a", input), ("b", input), ("c", output)] {
        let _ = write!(
            text,
            "  %q{name} = getelementptr {ty}, ptr addrspace(1) %p{name}, i32 %t\n  \
             %{name} = load {ty}, ptr addrspace(1) %q{name}, align 4\n"
        );
    }
    let _ = write!(
        text,
        "  %d = call {output} @{}({})\n  store {output} %d, ptr addrspace(1) %qc, align 4\n  ret void\n}}\n",
        product.name, product.call
    );
    text
}

#[test]
fn products_of_small_integers_are_exact() {
    for product in PRODUCTS {
        let Some(program) = compiled(&module(product), product.cpu) else { return };
        let lanes = if product.cpu.starts_with("gfx9") { 64 } else { 32 };
        let (rows, depth, bits) = (product.rows, product.depth, product.input.bits());
        let a = |row: usize, k: usize| (row * 7 + k * 5) as i32 % 11 - 5;
        let b = |k: usize, column: usize| (column * 3 + k * k) as i32 % 13 - 6;
        let c = |row: usize, column: usize| (row * 2) as i32 - column as i32;
        let [mut ra, mut rb] = [(); 2].map(|()| Registers::new(lanes, type_bits(product.types[0])));
        let copies = if product.cpu == "gfx1100" { 2 } else { 1 };
        for (row, k) in (0..rows).flat_map(|row| (0..depth).map(move |k| (row, k))) {
            let (lane, element) = (product.a)(row, k);
            for copy in 0..copies {
                ra.put((lane + 16 * copy, element), bits, product.input.encode(a(row, k)));
                rb.put((lane + 16 * copy, element), bits, product.input.encode(b(k, row)));
            }
        }
        let output = match product.input {
            Number::Double => |v: i32| f64::from(v).to_bits(),
            Number::Byte => |v: i32| u64::from(v as u32),
            _ => |v: i32| (v as f32).to_bits().into(),
        };
        let output_bits = if product.input == Number::Double { 64 } else { 32 };
        let [mut rc, mut rd] = [(); 2].map(|()| Registers::new(lanes, type_bits(product.types[1])));
        for (row, column) in (0..rows).flat_map(|row| (0..rows).map(move |column| (row, column))) {
            let sum: i32 = (0..depth).map(|k| a(row, k) * b(k, column)).sum();
            let place = (product.d)(row, column);
            rc.put(place, output_bits, output(c(row, column)));
            rd.put(place, output_bits, output(sum + c(row, column)));
        }
        let mut memory = Memory::new();
        let [pa, pb, pc] = [("a", &ra), ("b", &rb), ("c", &rc)].map(|(name, r)| memory.add(name, words(&r.words)));
        let arguments = Arguments::default().pointer(pa).pointer(pb).pointer(pc);
        launch(&program, "k", &line(1, lanes as u32, arguments), &mut memory).unwrap();
        assert_eq!(read_words(&memory, pc), rd.words, "{}", product.name);
    }
}
