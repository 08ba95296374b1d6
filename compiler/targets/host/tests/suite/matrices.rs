//! Matrix products and matrix transfers, compared with the ISA's tables of element positions.

use crate::common::{Args, Launch, Random, at_every_level, try_compile};

/// The type of factors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ty {
    F16,
    Bf16,
    Tf32,
    F64,
    S8,
    U8,
}

impl Ty {
    fn name(self) -> &'static str {
        match self {
            Ty::F16 => "f16",
            Ty::Bf16 => "bf16",
            Ty::Tf32 => "tf32",
            Ty::F64 => "f64",
            Ty::S8 => "s8",
            Ty::U8 => "u8",
        }
    }

    fn bits(self) -> usize {
        match self {
            Ty::F16 | Ty::Bf16 => 16,
            Ty::Tf32 => 32,
            Ty::F64 => 64,
            Ty::S8 | Ty::U8 => 8,
        }
    }

    /// Bits of a small number that the type represents exactly, and its value.
    fn number(self, random: &mut Random) -> (u64, f64) {
        let any = random.next_u32();
        match self {
            Ty::F16 => {
                let bits = (0x3000 + (any & 0x0fff)) | (any >> 3 & 0x8000);
                (bits.into(), half_value(bits as u16))
            }
            Ty::Bf16 => {
                let bits = (0x3d00 + (any & 0x1ff)) | (any >> 3 & 0x8000);
                (bits.into(), f64::from(f32::from_bits(bits << 16)))
            }
            Ty::Tf32 => {
                // The lower bits are nonzero and must be ignored.
                let bits = random.unit().to_bits();
                (bits.into(), f64::from(f32::from_bits(bits & 0xffff_e000)))
            }
            Ty::F64 => {
                let value = f64::from(random.unit()) + f64::from(random.unit()) * 1e-9;
                (value.to_bits(), value)
            }
            Ty::S8 => ((any & 0xff).into(), f64::from(any as i8)),
            Ty::U8 => ((any & 0xff).into(), f64::from(any as u8)),
        }
    }
}

fn half_value(bits: u16) -> f64 {
    let magnitude = f64::from(1024 + (bits & 0x3ff)) * 2f64.powi(i32::from(bits >> 10 & 31) - 25);
    if bits & 0x8000 != 0 { -magnitude } else { magnitude }
}

/// Row and column of element `i` of a lane's part of A, by the ISA's tables.
fn place_a(ty: Ty, k: usize, lane: usize, i: usize) -> (usize, usize) {
    let (g, t) = (lane / 4, lane % 4);
    match (ty, k) {
        (Ty::F16 | Ty::Bf16, 16) => {
            (if [0, 1, 4, 5].contains(&i) { g } else { g + 8 }, t * 2 + (i & 1) + if i < 4 { 0 } else { 8 })
        }
        (Ty::F16 | Ty::Bf16, _) => (if i < 2 { g } else { g + 8 }, t * 2 + (i & 1)),
        (Ty::S8 | Ty::U8, 32) => {
            (if i < 4 || (8..12).contains(&i) { g } else { g + 8 }, t * 4 + (i & 3) + if i < 8 { 0 } else { 16 })
        }
        (Ty::S8 | Ty::U8, _) => (if i < 4 { g } else { g + 8 }, t * 4 + (i & 3)),
        (Ty::Tf32 | Ty::F64, _) => (if i.is_multiple_of(2) { g } else { g + 8 }, t + i / 2 * 4),
    }
}

/// The same for B.
fn place_b(ty: Ty, lane: usize, i: usize) -> (usize, usize) {
    let (g, t) = (lane / 4, lane % 4);
    match ty {
        Ty::F16 | Ty::Bf16 => (t * 2 + (i & 1) + if i < 2 { 0 } else { 8 }, g),
        Ty::S8 | Ty::U8 => (t * 4 + (i & 3) + if i < 4 { 0 } else { 16 }, g),
        Ty::Tf32 | Ty::F64 => (t + 4 * i, g),
    }
}

fn place_c(lane: usize, i: usize) -> (usize, usize) {
    (lane / 4 + if i < 2 { 0 } else { 8 }, lane % 4 * 2 + (i & 1))
}

/// Registers of 32 lanes, filled with elements of `bits` bits.
fn fill(registers: usize, register_bits: usize, bits: usize, element: impl Fn(usize, usize) -> u64) -> Vec<u64> {
    let per = register_bits / bits;
    let mut all = vec![0; registers * 32];
    for (slot, value) in all.iter_mut().enumerate() {
        let (register, lane) = (slot / 32, slot % 32);
        *value = (0..per).map(|p| element(lane, register * per + p) << (p * bits)).sum();
    }
    all
}

/// Loads registers `%{name}0…` from a parameter, 8 bytes apart.
fn loads(name: &str, count: usize, bits: usize) -> String {
    let mut text = format!("  .reg .b{bits} %{name}<{count}>; ld.param.u64 %x1, [p{name}]; add.u64 %x1, %x1, %x0;\n");
    for i in 0..count {
        text += &format!("  ld.global.b{bits} %{name}{i}, [%x1+{}];\n", i * 256);
    }
    text
}

fn list(name: &str, count: usize) -> String {
    let all: Vec<String> = (0..count).map(|i| format!("%{name}{i}")).collect();
    format!("{{{}}}", all.join(", "))
}

/// One `mma` in the ISA's layout, compared with sums in ascending k.
fn check_product(ty: Ty, other: Ty, (m, n, k): (usize, usize, usize), accumulator: &str, satfinite: bool) {
    let factor_bits = if ty == Ty::F64 { 64 } else { 32 };
    let (a_count, b_count) = (m * k * ty.bits() / 32 / factor_bits, n * k * ty.bits() / 32 / factor_bits);
    let (sum_bits, c_count) = match accumulator {
        "f64" => (64, m * n / 32),
        "f16" => (32, m * n / 64),
        _ => (32, m * n / 32),
    };
    let mut random = Random::new((m * n * k) as u64);
    let a: Vec<(u64, f64)> = (0..m * k).map(|_| ty.number(&mut random)).collect();
    let b: Vec<(u64, f64)> = (0..n * k).map(|_| other.number(&mut random)).collect();
    let c: Vec<u64> = (0..m * n)
        .map(|_| match accumulator {
            "f64" => f64::from(random.unit()).to_bits(),
            "f32" => random.unit().to_bits().into(),
            "f16" => Ty::F16.number(&mut random).0,
            _ => {
                if satfinite {
                    i32::MAX as u64 - 5
                } else {
                    random.next_u32().into()
                }
            }
        })
        .collect();
    let expected = |row: usize, column: usize| -> u64 {
        let pairs = (0..k).map(|i| (a[row * k + i].1, b[i * n + column].1));
        let start = c[row * n + column];
        match accumulator {
            "f64" => pairs.fold(f64::from_bits(start), |sum, (x, y)| x.mul_add(y, sum)).to_bits(),
            "f32" => pairs
                .fold(f32::from_bits(start as u32), |sum, (x, y)| (x as f32).mul_add(y as f32, sum))
                .to_bits()
                .into(),
            "f16" => {
                let sum = pairs.fold(half_value(start as u16) as f32, |sum, (x, y)| (x as f32).mul_add(y as f32, sum));
                let step = 2f64.powi(((f64::from(sum).abs().to_bits() >> 52) as i32 - 1023).max(-14) - 10);
                let rounded = (f64::from(sum) / step).round_ties_even() * step;
                // Only values of the format are compared.
                rounded.to_bits()
            }
            _ => {
                let sum: i64 = pairs.map(|(x, y)| (x * y) as i64).sum::<i64>() + i64::from(start as i32);
                u64::from(if satfinite { sum.clamp(i32::MIN.into(), i32::MAX.into()) as u32 } else { sum as u32 })
            }
        }
    };
    let acc = if accumulator == "s32" { "s32" } else { accumulator };
    let sat = if satfinite { ".satfinite" } else { "" };
    let text = format!(
        ".visible .entry op(.param .u64 pa, .param .u64 pb, .param .u64 pc, .param .u64 pd)\n{{\n  .reg .b32 %r<2>; \
         .reg .b64 %x<4>;\n  mov.u32 %r0, %tid.x; \
         mul.wide.u32 %x0, %r0, 8;\n{}{}{}  .reg .b{sum_bits} %d<{c_count}>;\n  \
         mma.sync.aligned.m{m}n{n}k{k}.row.col{sat}.{acc}.{}.{}.{acc} {}, {}, {}, {};\n  ld.param.u64 %x1, [pd]; \
         add.u64 %x1, %x1, %x0;\n{}  ret;\n}}\n",
        loads("a", a_count, factor_bits),
        loads("b", b_count, factor_bits),
        loads("c", c_count, sum_bits),
        ty.name(),
        other.name(),
        list("d", c_count),
        list("a", a_count),
        list("b", b_count),
        list("c", c_count),
        (0..c_count).map(|i| format!("  st.global.b{sum_bits} [%x1+{}], %d{i};\n", i * 256)).collect::<String>(),
    );
    let mut a_regs = fill(a_count, factor_bits, ty.bits(), |lane, i| {
        let (row, column) = place_a(ty, k, lane, i);
        a[row * k + column].0
    });
    let mut b_regs = fill(b_count, factor_bits, ty.bits(), |lane, i| {
        let (row, column) = place_b(ty, lane, i);
        b[row * n + column].0
    });
    let element = if accumulator == "f16" { 16 } else { sum_bits };
    let mut c_regs = fill(c_count, sum_bits, element, |lane, i| {
        let (row, column) = place_c(lane, i);
        c[row * n + column]
    });
    at_every_level(&text, "op", [32, 1, 1], |kernel| {
        let mut d = vec![0u64; c_count * 32];
        kernel.run(
            Launch::grid(1, 1, 1),
            Args::new().slice(&mut a_regs).slice(&mut b_regs).slice(&mut c_regs).slice(&mut d),
        );
        for lane in 0..32 {
            for i in 0..m * n / 32 {
                let per = sum_bits / element;
                let found = d[i / per * 32 + lane] >> (i % per * element) & (u64::MAX >> (64 - element));
                let found = if accumulator == "f16" { half_value(found as u16).to_bits() } else { found };
                let (row, column) = place_c(lane, i);
                assert_eq!(found, expected(row, column), "m{m}n{n}k{k} {accumulator} of {ty:?} at {row}, {column}");
            }
        }
    });
}

#[test]
fn products_in_the_layout_of_the_isa() {
    for k in [8, 16] {
        check_product(Ty::F16, Ty::F16, (16, 8, k), "f32", false);
        check_product(Ty::F16, Ty::F16, (16, 8, k), "f16", false);
        check_product(Ty::Bf16, Ty::Bf16, (16, 8, k), "f32", false);
    }
    check_product(Ty::Tf32, Ty::Tf32, (16, 8, 4), "f32", false);
    check_product(Ty::Tf32, Ty::Tf32, (16, 8, 8), "f32", false);
    check_product(Ty::F64, Ty::F64, (8, 8, 4), "f64", false);
    check_product(Ty::S8, Ty::S8, (16, 8, 32), "s32", false);
    check_product(Ty::U8, Ty::S8, (16, 8, 16), "s32", false);
    check_product(Ty::S8, Ty::U8, (8, 8, 16), "s32", false);
    check_product(Ty::U8, Ty::U8, (16, 8, 32), "s32", true);
}

#[test]
fn undefined_products_are_rejected() {
    for product in [
        "m16n8k64.row.col.s32.s4.s4.s32",
        "m8n8k4.row.col.f32.f16.f16.f32",
        "m16n8k16.row.row.f32.f16.f16.f32",
        "m16n8k256.row.col.s32.b1.b1.s32.xor.popc",
    ] {
        let text = format!(
            ".visible .entry op()\n{{\n  .reg .b32 %r<9>;\n  mma.sync.aligned.{product} {{%r0, %r1, %r2, %r3}}, \
             {{%r0, %r1, %r2, %r3}}, {{%r4, %r5}}, {{%r0, %r1, %r2, %r3}};\n  ret;\n}}\n"
        );
        let error = try_compile(&text, "op", [32, 1, 1], atoll_target_host::CpuLevel::V3).err().map(|e| e.to_string());
        assert!(error.as_ref().is_some_and(|e| e.contains("mma.sync")), "{product}: {error:?}");
    }
}

#[test]
fn matrices_go_through_shared_memory() {
    // Input: four 8 × 8 matrices of numbered halves. Output: loaded, loaded transposed, stored
    // again transposed, moved.
    let text = "
.visible .entry op(.param .u64 in, .param .u64 out)
{
  .shared .align 16 .b8 tile[512]; .shared .align 16 .b8 back[512];
  .reg .b32 %r<32>; .reg .b64 %x<8>;
  ld.param.u64 %x1, [in]; ld.param.u64 %x2, [out];
  mov.u32 %r0, %tid.x; shl.b32 %r1, %r0, 4; mov.u32 %r2, tile; add.u32 %r2, %r2, %r1; mov.u32 %r3, back; \
  add.u32 %r3, %r3, %r1;
  cvt.u64.u32 %x3, %r1; add.u64 %x1, %x1, %x3;
  cp.async.cg.shared.global [%r2], [%x1], 16; cp.async.commit_group; cp.async.wait_group 0; bar.warp.sync -1;
  ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r4, %r5, %r6, %r7}, [%r2];
  ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%r8, %r9, %r10, %r11}, [%r2];
  stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%r3], {%r4, %r5, %r6, %r7};
  bar.warp.sync -1;
  ld.shared.v4.b32 {%r12, %r13, %r14, %r15}, [%r3];
  movmatrix.sync.aligned.m8n8.trans.b16 %r16, %r6;
  ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r17}, [%r2];
  mul.wide.u32 %x4, %r0, 4; add.u64 %x2, %x2, %x4;
  st.global.b32 [%x2], %r4; st.global.b32 [%x2+128], %r5; st.global.b32 [%x2+256], %r6; st.global.b32 [%x2+384], %r7;
  st.global.b32 [%x2+512], %r8; st.global.b32 [%x2+640], %r9; st.global.b32 [%x2+768], %r10; \
  st.global.b32 [%x2+896], %r11;
  st.global.b32 [%x2+1024], %r16; st.global.b32 [%x2+1152], %r17;
  mul.wide.u32 %x4, %r0, 12; add.u64 %x2, %x2, %x4;
  st.global.b32 [%x2+1280], %r12; st.global.b32 [%x2+1284], %r13; st.global.b32 [%x2+1288], %r14; \
  st.global.b32 [%x2+1292], %r15;
  ret;
}";
    at_every_level(text, "op", [32, 1, 1], |kernel| {
        let mut input: Vec<u16> = (0..256).collect();
        let mut out = vec![0u16; 896];
        kernel.run(Launch::grid(1, 1, 1), Args::new().slice(&mut input).slice(&mut out));
        for matrix in 0..4 {
            for lane in 0..32 {
                for half in 0..2 {
                    let (row, column) = (lane / 4, lane % 4 * 2 + half);
                    let (plain, turned) =
                        (input[matrix * 64 + row * 8 + column], input[matrix * 64 + column * 8 + row]);
                    assert_eq!(out[matrix * 64 + lane * 2 + half], plain, "x4");
                    assert_eq!(out[256 + matrix * 64 + lane * 2 + half], turned, "x4.trans");
                    assert_eq!(out[640 + matrix * 64 + row * 8 + column], turned, "stored transposed");
                    if matrix == 2 {
                        assert_eq!(out[512 + lane * 2 + half], turned, "movmatrix");
                    }
                    if matrix == 0 {
                        assert_eq!(out[576 + lane * 2 + half], plain, "x1");
                    }
                }
            }
        }
    });
}

/// A `wmma` product with given layouts of A and B.
fn check_fragments(m: usize, n: usize, a_layout: &str, b_layout: &str, accumulator: &str) {
    let k = 16;
    let c_count = if accumulator == "f16" { 4 } else { 8 };
    let c_class = 32;
    let (registers, results) = (list("a", 8), list("c", c_count));
    let b_registers = list("b", 8);
    let a_stride = if a_layout == "row" { k } else { m };
    let b_stride = if b_layout == "row" { n } else { k };
    let text = format!(
        ".visible .entry op(.param .u64 pa, .param .u64 pb, .param .u64 pc, .param .u64 pd)
{{
  .reg .b32 %a<8>; .reg .b32 %b<8>; .reg .b{c_class} %c<8>; .reg .b32 %r<4>; .reg .b64 %x<8>;
  ld.param.u64 %x1, [pa]; ld.param.u64 %x2, [pb]; ld.param.u64 %x3, [pc]; ld.param.u64 %x4, [pd];
  mov.u32 %r1, {a_stride};
  wmma.load.a.sync.aligned.{a_layout}.m{m}n{n}k16.global.f16 {registers}, [%x1], %r1;
  wmma.load.b.sync.aligned.{b_layout}.m{m}n{n}k16.global.f16 {b_registers}, [%x2], {b_stride};
  wmma.load.c.sync.aligned.row.m{m}n{n}k16.global.{accumulator} {results}, [%x3], {n};
  wmma.mma.sync.aligned.{a_layout}.{b_layout}.m{m}n{n}k16.{accumulator}.{accumulator} {results}, {registers}, \
  {b_registers}, {results};
  wmma.store.d.sync.aligned.col.m{m}n{n}k16.global.{accumulator} [%x4], {results}, {m};
  ret;
}}"
    );
    let mut random = Random::new((m + n) as u64);
    let a: Vec<(u64, f64)> = (0..m * k).map(|_| Ty::F16.number(&mut random)).collect();
    let b: Vec<(u64, f64)> = (0..n * k).map(|_| Ty::F16.number(&mut random)).collect();
    let turn = |values: &[(u64, f64)], rows: usize, columns: usize, layout: &str| -> Vec<u16> {
        (0..rows * columns)
            .map(|i| if layout == "row" { values[i].0 } else { values[i % rows * columns + i / rows].0 } as u16)
            .collect()
    };
    let (mut a_memory, mut b_memory) = (turn(&a, m, k, a_layout), turn(&b, k, n, b_layout));
    at_every_level(&text, "op", [32, 1, 1], |kernel| {
        let exact = |row: usize, column: usize, start: f32| {
            (0..k).fold(start, |sum, i| (a[row * k + i].1 as f32).mul_add(b[i * n + column].1 as f32, sum))
        };
        if accumulator == "f32" {
            let mut c: Vec<f32> = (0..m * n).map(|i| i as f32 / 7.0).collect();
            let mut d = vec![0f32; m * n];
            kernel.run(
                Launch::grid(1, 1, 1),
                Args::new().slice(&mut a_memory).slice(&mut b_memory).slice(&mut c).slice(&mut d),
            );
            for i in 0..m * n {
                assert_eq!(d[i % n * m + i / n], exact(i / n, i % n, c[i]), "m{m}n{n} {a_layout} {b_layout} at {i}");
            }
        } else {
            let mut c = vec![0x3c00u16; m * n];
            let mut d = vec![0u16; m * n];
            kernel.run(
                Launch::grid(1, 1, 1),
                Args::new().slice(&mut a_memory).slice(&mut b_memory).slice(&mut c).slice(&mut d),
            );
            for i in 0..m * n {
                let wanted = f64::from(exact(i / n, i % n, 1.0));
                let found = half_value(d[i % n * m + i / n]);
                assert!(
                    (found - wanted).abs() <= wanted.abs() * 2f64.powi(-11) + 1e-6,
                    "m{m}n{n} {a_layout} {b_layout} at {i}: {found}, {wanted}"
                );
            }
        }
    });
}

#[test]
fn fragments_of_every_layout() {
    for (m, n) in [(16, 16), (32, 8), (8, 32)] {
        check_fragments(m, n, "row", "col", "f32");
        check_fragments(m, n, "col", "row", "f32");
    }
    check_fragments(16, 16, "row", "row", "f16");
}

#[test]
fn copies_fill_up_with_zeros() {
    let text = |form: &str| {
        format!(
            ".visible .entry op(.param .u64 in, .param .u64 sizes, .param .u64 out)
{{
  .shared .align 16 .b8 tile[512];
  .reg .b32 %r<16>; .reg .b64 %x<8>; .reg .pred %p<3>;
  ld.param.u64 %x1, [in]; ld.param.u64 %x2, [sizes]; ld.param.u64 %x3, [out];
  mov.u32 %r0, %tid.x; mul.wide.u32 %x4, %r0, 4; mul.wide.u32 %x5, %r0, 16;
  add.u64 %x2, %x2, %x4; ld.global.u32 %r1, [%x2]; setp.eq.u32 %p1, %r1, 0; setp.gt.u32 %p2, %r1, 7;
  add.u64 %x1, %x1, %x5; add.u64 %x3, %x3, %x5;
  mov.u32 %r2, tile; shl.b32 %r3, %r0, 4; add.u32 %r2, %r2, %r3;
  mov.b32 %r4, -1; st.shared.v4.b32 [%r2], {{%r4, %r4, %r4, %r4}};
  {form}
  cp.async.wait_all;
  ld.shared.v4.b32 {{%r5, %r6, %r7, %r8}}, [%r2]; st.global.v4.b32 [%x3], {{%r5, %r6, %r7, %r8}};
  ret;
}}"
        )
    };
    let check = |form: &str, sizes: &dyn Fn(usize) -> u32, expected: &dyn Fn(usize, usize) -> u8| {
        at_every_level(&text(form), "op", [32, 1, 1], |kernel| {
            let mut input: Vec<u8> = (0..512).map(|i| (i % 250) as u8).collect();
            let mut sizes: Vec<u32> = (0..32).map(sizes).collect();
            let mut out = vec![0u8; 512];
            kernel.run(Launch::grid(1, 1, 1), Args::new().slice(&mut input).slice(&mut sizes).slice(&mut out));
            for (i, &found) in out.iter().enumerate() {
                assert_eq!(found, expected(i / 16, i % 16), "{form}, lane {}, byte {}", i / 16, i % 16);
            }
        });
    };
    let byte = |lane: usize, i: usize| ((lane * 16 + i) % 250) as u8;
    let some = |lane: usize| (lane % 17) as u32;
    check("cp.async.cg.shared.global [%r2], [%x1], 16, %r1;", &some, &|lane, i| {
        if i < lane % 17 { byte(lane, i) } else { 0 }
    });
    check("cp.async.cg.shared.global [%r2], [%x1], 16, %r1;", &|_| 16, &byte);
    check("cp.async.ca.shared.global.L2::128B [%r2], [%x1], 8, %r1;", &some, &|lane, i| match i {
        8.. => 255,
        _ if i < lane % 17 => byte(lane, i),
        _ => 0,
    });
    check("cp.async.ca.shared.global [%r2], [%x1], 4;", &some, &|lane, i| if i < 4 { byte(lane, i) } else { 255 });
    check("cp.async.cg.shared.global [%r2], [%x1], 16, %p1;", &some, &|lane, i| {
        if lane % 17 == 0 { 0 } else { byte(lane, i) }
    });
    check("@%p2 cp.async.cg.shared.global [%r2], [%x1], 16;", &some, &|lane, i| {
        if lane % 17 > 7 { byte(lane, i) } else { 255 }
    });
    check("@%p2 cp.async.cg.shared.global [%r2], [%x1], 16, %r1;", &some, &|lane, i| match lane % 17 {
        0..=7 => 255,
        size if i < size => byte(lane, i),
        _ => 0,
    });
}
