//! Prints the GFLOP/s of a register-blocked matrix product in PTX on one core.
//!
//! ```text
//! cargo run --release -p atoll-target-host --example gemm [size]
//! ```
//! A block has 32×W threads and computes W·TM rows by 32·TN columns. A thread computes TM rows by
//! TN columns that are 32 apart, so that a warp reads A as one scalar and B as contiguous vectors
//! from shared memory.

#![allow(clippy::print_stdout, reason = "an example prints")]

#[path = "../tests/suite/common/mod.rs"]
mod common;

use common::{Args, Launch, Random, levels, try_compile};
use std::fmt::Write as _;
use std::time::Instant;

/// Tile shape.
#[derive(Clone, Copy)]
struct Tile {
    /// Warps per block.
    warps: u32,
    /// Rows per thread.
    rows: u32,
    /// Columns per thread.
    columns: u32,
}

/// Depth of a tile: one row of A is one load of a warp.
const DEPTH: u32 = 32;

/// The kernel's text. Sizes must be multiples of the tile's.
fn kernel(tile: Tile) -> String {
    let Tile { warps, rows, columns } = tile;
    let mut k = String::new();
    let mut put = |line: String| writeln!(k, "  {line}").expect("writing to a string");
    let accumulators = rows * columns;
    put(".reg .pred %p<4>; .reg .b32 %r<64>; .reg .b64 %rd<64>;".into());
    put(format!(".reg .f32 %c<{accumulators}>; .reg .f32 %a<{rows}>; .reg .f32 %b<{columns}>; .reg .f32 %t<4>;"));
    put(format!(".shared .align 16 .b8 tile_a[{}];", warps * rows * DEPTH * 4));
    put(format!(".shared .align 16 .b8 tile_b[{}];", DEPTH * columns * 128));
    put("ld.param.u64 %rd1, [a]; ld.param.u64 %rd2, [b]; ld.param.u64 %rd3, [c]; ld.param.u32 %r1, [n];".into());
    put("mov.u32 %r2, %tid.x; mov.u32 %r3, %tid.y; mov.u32 %r4, %ctaid.x; mov.u32 %r5, %ctaid.y;".into());
    // First row of A and C of this warp; first column of B and C of this thread.
    put(format!("mad.lo.s32 %r6, %r5, {warps}, %r3; mul.lo.s32 %r6, %r6, {rows};"));
    put(format!("mad.lo.s32 %r7, %r4, {}, %r2;", 32 * columns));
    put("mov.u64 %rd4, tile_a; mov.u64 %rd5, tile_b;".into());
    put(format!("mul.wide.u32 %rd6, %r3, {}; add.s64 %rd6, %rd6, %rd4;", rows * DEPTH * 4));
    put("mul.wide.u32 %rd7, %r2, 4; add.s64 %rd8, %rd6, %rd7; add.s64 %rd9, %rd5, %rd7;".into());
    // Elements this thread loads: of A, its warp's rows in column tid.x; of B, row tid.y in its
    // columns.
    put("mad.lo.s32 %r8, %r6, %r1, %r2; mul.wide.s32 %rd10, %r8, 4; add.s64 %rd10, %rd10, %rd1;".into());
    put("mad.lo.s32 %r9, %r3, %r1, %r7; mul.wide.s32 %rd11, %r9, 4; add.s64 %rd11, %rd11, %rd2;".into());
    put("mul.wide.s32 %rd12, %r1, 4;".into());
    put(format!("mul.wide.s32 %rd13, %r1, {};", 4 * warps));
    put(format!("mul.wide.u32 %rd14, %r3, {}; add.s64 %rd14, %rd14, %rd9;", columns * 128));
    for i in 0..accumulators {
        put(format!("mov.f32 %c{i}, 0f00000000;"));
    }
    put("mov.u32 %r10, 0;".into());
    put("TILE:".into());
    put("mov.u64 %rd20, %rd10;".into());
    for row in 0..rows {
        put(format!(
            "ld.global.f32 %t0, [%rd20]; st.shared.f32 [%rd8+{}], %t0; add.s64 %rd20, %rd20, %rd12;",
            row * DEPTH * 4
        ));
    }
    put("mov.u64 %rd21, %rd11;".into());
    for step in 0..DEPTH / warps {
        for column in 0..columns {
            let at = step * warps * columns * 128 + column * 128;
            put(format!("ld.global.f32 %t1, [%rd21+{}]; st.shared.f32 [%rd14+{at}], %t1;", column * 128));
        }
        put("add.s64 %rd21, %rd21, %rd13;".into());
    }
    put("bar.sync 0;".into());
    put("mov.u64 %rd22, %rd6; mov.u64 %rd23, %rd9; mov.u32 %r11, 0;".into());
    put("INNER:".into());
    for column in 0..columns {
        put(format!("ld.shared.f32 %b{column}, [%rd23+{}];", column * 128));
    }
    for row in 0..rows {
        put(format!("ld.shared.f32 %a{row}, [%rd22+{}];", row * DEPTH * 4));
        for column in 0..columns {
            let c = row * columns + column;
            put(format!("fma.rn.f32 %c{c}, %a{row}, %b{column}, %c{c};"));
        }
    }
    put(format!("add.s64 %rd22, %rd22, 4; add.s64 %rd23, %rd23, {};", columns * 128));
    put(format!("add.u32 %r11, %r11, 1; setp.lt.u32 %p1, %r11, {DEPTH};"));
    put("@%p1 bra INNER;".into());
    put("bar.sync 0;".into());
    put(format!(
        "add.s64 %rd10, %rd10, {}; mul.wide.s32 %rd24, %r1, {}; add.s64 %rd11, %rd11, %rd24;",
        4 * DEPTH,
        4 * DEPTH
    ));
    put(format!("add.u32 %r10, %r10, {DEPTH}; setp.lt.u32 %p2, %r10, %r1;"));
    put("@%p2 bra TILE;".into());
    put("mad.lo.s32 %r12, %r6, %r1, %r7; mul.wide.s32 %rd25, %r12, 4; add.s64 %rd25, %rd25, %rd3;".into());
    for row in 0..rows {
        for column in 0..columns {
            put(format!("st.global.f32 [%rd25+{}], %c{};", column * 128, row * columns + column));
        }
        put("add.s64 %rd25, %rd25, %rd12;".into());
    }
    put("ret;".into());
    format!(".visible .entry gemm(.param .u64 a, .param .u64 b, .param .u64 c, .param .u32 n)\n{{\n{k}}}\n")
}

fn main() {
    let wanted: u32 = std::env::args().nth(1).and_then(|a| a.parse().ok()).unwrap_or(768);
    println!("{:<16} {:>5} {:>9} {:>6} {:>10} {:>8}", "level", "warps", "thread", "size", "compile", "GFLOP/s");
    for level in levels() {
        let tiles = [
            (1, 6, 2),
            (4, 2, 1),
            (8, 2, 1),
            (16, 2, 1),
            (8, 3, 1),
            (8, 4, 1),
            (4, 6, 2),
            (8, 4, 2),
            (8, 5, 2),
            (8, 6, 2),
            (8, 8, 1),
            (8, 12, 1),
        ];
        for (warps, rows, columns) in tiles {
            let tile = Tile { warps, rows, columns };
            let side = wanted.next_multiple_of(warps * rows).next_multiple_of(32 * columns);
            if !side.is_multiple_of(warps * rows) {
                continue;
            }
            let start = Instant::now();
            let loaded = try_compile(&kernel(tile), "gemm", [32, warps, 1], level).unwrap_or_else(|e| panic!("{e}"));
            let compile = start.elapsed();
            if let (Ok(folder), Some(ir)) = (std::env::var("GEMM_IR"), &loaded.facts.optimised_ir) {
                std::fs::write(format!("{folder}/gemm-{}-{warps}-{rows}-{columns}.ll", level.target_name()), ir)
                    .expect("write IR");
            }
            let gflops = measure(&loaded, tile, side);
            let name = level.target_name();
            println!(
                "{name:<16} {warps:>5} {rows:>4}x{:<4} {side:>6} {:>7.0} ms {gflops:>8.1}",
                32 * columns,
                compile.as_secs_f64() * 1e3
            );
        }
    }
}

/// Checks a few elements, then reports the best of several runs.
fn measure(loaded: &common::Loaded, tile: Tile, side: u32) -> f64 {
    let n = side as usize;
    let mut random = Random::new(3);
    let (mut a, mut b, mut c) = (random.floats(n * n), random.floats(n * n), vec![0f32; n * n]);
    let grid = Launch::grid(side / (32 * tile.columns), side / (tile.warps * tile.rows), 1);
    let grid = grid.grid;
    let mut best = f64::MAX;
    for _ in 0..7 {
        let args = Args::new().slice(&mut a).slice(&mut b).slice(&mut c).u32(side);
        let start = Instant::now();
        loaded.run(Launch::grid(grid[0], grid[1], 1), args);
        best = best.min(start.elapsed().as_secs_f64());
    }
    for (row, column) in [(0, 0), (n - 1, n - 1), (n / 2, 7), (5, n - 33)] {
        let expected = (0..n).fold(0f32, |s, k| a[row * n + k].mul_add(b[k * n + column], s));
        assert_eq!(c[row * n + column], expected, "{row}, {column}");
    }
    2.0 * (n as f64).powi(3) / best / 1e9
}
