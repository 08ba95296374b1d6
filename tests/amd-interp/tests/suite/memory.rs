//! Atomics and accesses of all widths, in every address space.

use std::fmt::Write;

use atoll_amd_interp::Memory;

use crate::tools::{Arguments, compiled, cpus, launch, line, read_words, words};

const HEAD: &str = "target triple = \"amdgcn-amd-amdhsa\"\ndeclare i32 @llvm.amdgcn.workitem.id.x()\n\
    declare void @llvm.amdgcn.s.barrier()\n\
    @cells = internal addrspace(3) global [64 x i64] poison, align 16\n";

/// An `atomicrmw` operation and its function; `kind` is the IR type of the element.
struct Update {
    op: &'static str,
    kind: &'static str,
    f: fn(u64, u64) -> u64,
}

const fn update(op: &'static str, kind: &'static str, f: fn(u64, u64) -> u64) -> Update {
    Update { op, kind, f }
}

const UPDATES: &[Update] = &[
    update("add", "i32", |o, v| o.wrapping_add(v)),
    update("sub", "i32", |o, v| o.wrapping_sub(v)),
    update("and", "i32", |o, v| o & v),
    update("or", "i32", |o, v| o | v),
    update("xor", "i32", |o, v| o ^ v),
    update("min", "i32", |o, v| (o as i32).min(v as i32) as u32 as u64),
    update("max", "i32", |o, v| (o as i32).max(v as i32) as u32 as u64),
    update("umin", "i32", |o, v| o.min(v)),
    update("umax", "i32", |o, v| o.max(v)),
    update("nand", "i32", |o, v| !(o & v)),
    update("uinc_wrap", "i32", |o, v| if o >= v { 0 } else { o + 1 }),
    update("udec_wrap", "i32", |o, v| if o == 0 || o > v { v } else { o - 1 }),
    update("xchg", "i32", |_, v| v),
    update("fadd", "float", |o, v| u64::from((f32::from_bits(o as u32) + f32::from_bits(v as u32)).to_bits())),
    update("fmax", "float", |o, v| u64::from(f32::from_bits(o as u32).max(f32::from_bits(v as u32)).to_bits())),
    update("add", "i64", |o, v| o.wrapping_add(v)),
    update("xor", "i64", |o, v| o ^ v),
    update("min", "i64", |o, v| (o as i64).min(v as i64) as u64),
    update("umax", "i64", |o, v| o.max(v)),
    update("xchg", "i64", |_, v| v),
    update("fadd", "double", |o, v| (f64::from_bits(o) + f64::from_bits(v)).to_bits()),
];

fn bytes_of(kind: &str) -> usize {
    if matches!(kind, "i64" | "double") { 8 } else { 4 }
}

/// A kernel of one update. Each lane updates its own cell and returns the old value, or all lanes
/// update seven cells.
fn atomic_kernel(update: &Update, space: &str, own: bool) -> String {
    let (op, kind) = (update.op, update.kind);
    let (name, cell) = if own { ("own", "%t") } else { ("shared", "%m") };
    let mut text = format!(
        "define amdgpu_kernel void @{op}_{kind}_{space}_{name}(ptr addrspace(1) %cells, ptr addrspace(1) %values, \
         ptr addrspace(1) %out) {{\n  %t = call i32 @llvm.amdgcn.workitem.id.x()\n  %m = urem i32 %t, 7\n  \
         %pv = getelementptr {kind}, ptr addrspace(1) %values, i32 %t\n  \
         %v = load {kind}, ptr addrspace(1) %pv\n  \
         %pc = getelementptr {kind}, ptr addrspace(1) %cells, i32 {cell}\n  \
         %pt = getelementptr {kind}, ptr addrspace(1) %cells, i32 %t\n"
    );
    let barrier = "  fence syncscope(\"workgroup\") seq_cst\n  call void @llvm.amdgcn.s.barrier()\n  \
                   fence syncscope(\"workgroup\") seq_cst\n";
    let pointer = match space {
        "global" => "ptr addrspace(1) %pc",
        "flat" => {
            text += "  %pf = addrspacecast ptr addrspace(1) %pc to ptr\n  %ps = call ptr asm \"\", \"=v,0\"(ptr %pf)\n";
            "ptr %ps"
        }
        _ => {
            let _ = write!(
                text,
                "  %x = load {kind}, ptr addrspace(1) %pt\n  \
                 %lt = getelementptr {kind}, ptr addrspace(3) @cells, i32 %t\n  \
                 store {kind} %x, ptr addrspace(3) %lt\n{barrier}  \
                 %pl = getelementptr {kind}, ptr addrspace(3) @cells, i32 {cell}\n"
            );
            "ptr addrspace(3) %pl"
        }
    };
    let _ = writeln!(text, "  %old = atomicrmw {op} {pointer}, {kind} %v syncscope(\"agent\") monotonic");
    if own {
        let _ = write!(
            text,
            "  %po = getelementptr {kind}, ptr addrspace(1) %out, i32 %t\n  \
             store {kind} %old, ptr addrspace(1) %po\n"
        );
    }
    if space == "lds" {
        let _ = write!(
            text,
            "{barrier}  %y = load {kind}, ptr addrspace(3) %lt\n  store {kind} %y, ptr addrspace(1) %pt\n"
        );
    }
    text + "  ret void\n}\n"
}

fn pack(values: &[u64], bytes: usize) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_le_bytes()[..bytes].to_vec()).collect()
}

fn unpack(bytes: &[u8], size: usize) -> Vec<u64> {
    let number = |c: &[u8]| c.iter().rev().fold(0, |n, &b| n << 8 | u64::from(b));
    bytes.chunks_exact(size).map(number).collect()
}

#[test]
fn atomics_on_own_and_on_shared_cells() {
    const LANES: usize = 32;
    let spaces = ["global", "flat", "lds"];
    let mut module = HEAD.to_owned();
    for (update, space) in UPDATES.iter().flat_map(|u| spaces.map(|s| (u, s))) {
        module += &atomic_kernel(update, space, true);
        module += &atomic_kernel(update, space, false);
    }
    for cpu in cpus() {
        let Some(program) = compiled(&module, cpu) else { return };
        for (update, space) in UPDATES.iter().flat_map(|u| spaces.map(|s| (u, s))) {
            let bytes = bytes_of(update.kind);
            let value = |i: usize, salt: u64| match update.kind {
                // Small integers, so that sums do not depend on the order.
                "float" => u64::from(((i as u64 * salt % 50) as f32).to_bits()),
                "double" => ((i as u64 * salt % 50) as f64).to_bits(),
                "i32" => (i as u64 + 1).wrapping_mul(0x9e37_79b9 * salt) & 0xffff_ffff,
                _ => (i as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_mul(salt),
            };
            let cells: Vec<u64> = (0..LANES).map(|i| value(i, 3)).collect();
            let values: Vec<u64> = (0..LANES).map(|i| value(i, 7)).collect();
            for own in [true, false] {
                let depends_on_order = matches!(update.op, "xchg" | "nand" | "uinc_wrap" | "udec_wrap");
                if !own && depends_on_order {
                    continue;
                }
                let mut memory = Memory::new();
                let pc = memory.add("cells", pack(&cells, bytes));
                let pv = memory.add("values", pack(&values, bytes));
                let po = memory.add("out", vec![0; LANES * bytes]);
                let arguments = Arguments::default().pointer(pc).pointer(pv).pointer(po);
                let name = format!("{}_{}_{space}_{}", update.op, update.kind, if own { "own" } else { "shared" });
                launch(&program, &name, &line(1, LANES as u32, arguments), &mut memory)
                    .unwrap_or_else(|e| panic!("{cpu} {name}: {e}"));
                let mut expected = cells.clone();
                let mask = u64::MAX >> (64 - 8 * bytes);
                for (lane, &v) in values.iter().enumerate() {
                    let cell = if own { lane } else { lane % 7 };
                    expected[cell] = (update.f)(expected[cell], v) & mask;
                }
                assert_eq!(unpack(memory.bytes(pc).unwrap(), bytes), expected, "{cpu} {name}");
                if own {
                    assert_eq!(unpack(memory.bytes(po).unwrap(), bytes), cells, "{cpu} {name}: old values");
                }
            }
        }
    }
}

#[test]
fn compare_and_exchange() {
    let mut module = HEAD.to_owned();
    for (kind, bits) in [("i32", 32), ("i64", 64)] {
        for space in [1, 3] {
            let base = if space == 1 { "%cells" } else { "@cells" };
            let _ = write!(
                module,
                "define amdgpu_kernel void @swap{bits}_{space}(ptr addrspace(1) %cells, ptr addrspace(1) %out) {{\n  \
                 %t = call i32 @llvm.amdgcn.workitem.id.x()\n  %w = zext i32 %t to i128\n  \
                 %k = trunc i128 %w to {kind}\n  \
                 %e = and {kind} %k, 3\n  %n = add {kind} %k, 100\n  \
                 %pg = getelementptr {kind}, ptr addrspace(1) %cells, i32 %t\n  \
                 %x = load {kind}, ptr addrspace(1) %pg\n  \
                 %pl = getelementptr {kind}, ptr addrspace(3) @cells, i32 %t\n  \
                 store {kind} %x, ptr addrspace(3) %pl\n  \
                 %p = getelementptr {kind}, ptr addrspace({space}) {base}, i32 %t\n  \
                 %r = cmpxchg ptr addrspace({space}) %p, {kind} %e, {kind} %n \
                 syncscope(\"agent\") monotonic monotonic\n  \
                 %o = extractvalue {{{kind}, i1}} %r, 0\n  \
                 %po = getelementptr {kind}, ptr addrspace(1) %out, i32 %t\n  \
                 store {kind} %o, ptr addrspace(1) %po\n  %y = load {kind}, ptr addrspace({space}) %p\n  \
                 store {kind} %y, ptr addrspace(1) %pg\n  ret void\n}}\n"
            );
        }
    }
    for cpu in cpus() {
        let Some(program) = compiled(&module, cpu) else { return };
        for (bits, space) in [(32, 1), (32, 3), (64, 1), (64, 3)] {
            let bytes = bits / 8;
            let mut memory = Memory::new();
            let cells: Vec<u64> = (0..32).map(|i| i % 5).collect();
            let pc = memory.add("cells", pack(&cells, bytes));
            let po = memory.add("out", vec![0; 32 * bytes]);
            let arguments = Arguments::default().pointer(pc).pointer(po);
            launch(&program, &format!("swap{bits}_{space}"), &line(1, 32, arguments), &mut memory).unwrap();
            let expected: Vec<u64> = (0..32).map(|i| if i % 5 == i & 3 { i + 100 } else { i % 5 }).collect();
            assert_eq!(unpack(memory.bytes(pc).unwrap(), bytes), expected, "{cpu} {bits} {space}");
            assert_eq!(unpack(memory.bytes(po).unwrap(), bytes), cells);
        }
    }
}

#[test]
fn copies_of_every_width_through_every_space() {
    const LANES: usize = 64;
    let types = [
        ("i8", 1),
        ("i16", 2),
        ("i32", 4),
        ("i64", 8),
        ("<3 x i32>", 16),
        ("<4 x i32>", 16),
        ("<2 x i8>", 2),
        ("<4 x i16>", 8),
        ("<8 x float>", 32),
        ("half", 2),
    ];
    let mut module = HEAD.to_owned();
    for (at, (ty, _)) in types.iter().enumerate() {
        let _ = write!(
            module,
            "@lds{at} = internal addrspace(3) global [{LANES} x {ty}] poison, align 16\n\
             define amdgpu_kernel void @copy{at}(ptr addrspace(4) %in, ptr addrspace(1) %out, i64 %far) {{\n  \
             %t = call i32 @llvm.amdgcn.workitem.id.x()\n  %a = alloca [4 x {ty}], addrspace(5)\n  \
             %u = call ptr addrspace(4) asm \"\", \"=s,0\"(ptr addrspace(4) %in)\n  \
             %p = getelementptr {ty}, ptr addrspace(4) %u, i32 %t\n  %x = load {ty}, ptr addrspace(4) %p\n  \
             %l = getelementptr {ty}, ptr addrspace(3) @lds{at}, i32 %t\n  \
             store volatile {ty} %x, ptr addrspace(3) %l\n  %y = load volatile {ty}, ptr addrspace(3) %l\n  \
             %k = and i32 %t, 3\n  %s = getelementptr {ty}, ptr addrspace(5) %a, i32 %k\n  \
             store volatile {ty} %y, ptr addrspace(5) %s\n  %z = load volatile {ty}, ptr addrspace(5) %s\n  \
             %g = addrspacecast ptr addrspace(5) %s to ptr\n  %w = load volatile {ty}, ptr %g\n  \
             %c = ptrtoint ptr addrspace(1) %out to i64\n  %d = sub i64 %c, %far\n  \
             %e = inttoptr i64 %d to ptr addrspace(1)\n  %f = getelementptr i8, ptr addrspace(1) %e, i64 %far\n  \
             %o = getelementptr {ty}, ptr addrspace(1) %f, i32 %t\n  \
             store {ty} %w, ptr addrspace(1) %o\n  ret void\n}}\n"
        );
    }
    for cpu in cpus() {
        let Some(program) = compiled(&module, cpu) else { return };
        for (at, (ty, bytes)) in types.iter().enumerate() {
            let mut memory = Memory::new();
            let data: Vec<u32> = (0..(LANES * bytes / 4) as u32).map(|i| i.wrapping_mul(0x0101_6b4d) ^ 0x80).collect();
            let input = memory.add("in", words(&data));
            let out = memory.add("out", vec![0; LANES * bytes]);
            let far = 0x1234_5678_9abc_def0u64;
            let arguments = Arguments::default().pointer(input).pointer(out).pointer(far);
            launch(&program, &format!("copy{at}"), &line(1, LANES as u32, arguments), &mut memory)
                .unwrap_or_else(|e| panic!("{cpu} {ty}: {e}"));
            let mut expected = data.clone();
            if *ty == "<3 x i32>" {
                expected.iter_mut().skip(3).step_by(4).for_each(|w| *w = 0);
            }
            assert_eq!(read_words(&memory, out), expected, "{cpu} {ty}");
        }
    }
}

#[test]
fn a_read_only_image_cannot_be_written() {
    let module = format!(
        "{HEAD}@table = internal addrspace(4) constant [4 x i32] [i32 1, i32 2, i32 3, i32 4]\n\
         define amdgpu_kernel void @k() {{\n  %p = addrspacecast ptr addrspace(4) @table to ptr\n  \
         %q = call ptr asm \"\", \"=v,0\"(ptr %p)\n  store i32 1, ptr %q\n  ret void\n}}\n"
    );
    for cpu in cpus() {
        let Some(program) = compiled(&module, cpu) else { return };
        let result = launch(&program, "k", &line(1, 1, Arguments::default()), &mut Memory::new());
        let message = result.unwrap_err().to_string();
        assert!(message.contains("read-only buffer `image"), "{message}");
    }
}
