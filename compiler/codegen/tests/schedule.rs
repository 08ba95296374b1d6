//! Buffers, weights and dependencies of a schedule.

mod common;

use atoll_codegen::{WorkKind, schedule};
use atoll_frontend::tensor_graph::{MatMul, Op, PointOp, PointProgram};
use atoll_kgraph::{BUFFER_ALIGN, BufferKind, DType, NodeKind};
use common::{Model, cases};
use std::collections::HashSet;

fn plain(transpose_b: bool) -> Op {
    Op::MatMul(MatMul { transpose_a: false, transpose_b, epilogue: PointProgram::default() })
}

fn neg() -> Op {
    Op::Pointwise(PointProgram::single(PointOp::Neg, DType::F32, 1))
}

#[test]
fn every_schedule_satisfies_the_invariants_of_its_graph() {
    for model in cases::all() {
        let s = schedule(&model.graph).unwrap_or_else(|e| panic!("{}: {e}", model.graph.name));
        let of = |kind| s.graph.buffers_of(kind).count();
        assert_eq!(
            (of(BufferKind::Input), of(BufferKind::Output)),
            (model.graph.inputs.len(), model.graph.outputs.len()),
            "{}",
            model.graph.name
        );
        let names: HashSet<_> = s.graph.buffers.iter().map(|b| &b.name).collect();
        assert_eq!(names.len(), s.graph.buffers.len(), "{}: two buffers have one name", model.graph.name);
        let mut end = 0;
        for weight in &s.weights {
            assert!(
                weight.offset.is_multiple_of(BUFFER_ALIGN) && weight.offset >= end,
                "{}: weights overlap",
                model.graph.name
            );
            end = weight.offset + weight.bytes.len() as u64;
        }
        assert_eq!(end, s.weights_bytes);
        let mut written: HashSet<_> = s
            .graph
            .buffers_of(BufferKind::Input)
            .chain(s.graph.buffers_of(BufferKind::Const))
            .map(|(id, _)| id)
            .collect();
        for (index, node) in s.graph.nodes.iter().enumerate() {
            assert!(
                node.reads.iter().all(|b| written.contains(b)),
                "{}: {} reads a buffer that no node wrote",
                model.graph.name,
                node.name
            );
            assert!(
                node.reads.iter().all(|b| !node.writes.contains(b)),
                "{}: {} works in place",
                model.graph.name,
                node.name
            );
            for buffer in &node.reads {
                let writers = s.graph.nodes[..index].iter().enumerate().filter(|(_, n)| n.writes.contains(buffer));
                assert!(
                    writers.into_iter().all(|(w, _)| node.after.iter().any(|a| a.0 as usize == w)),
                    "{}: a dependency is missing",
                    node.name
                );
            }
            written.extend(&node.writes);
        }
    }
}

#[test]
fn equal_constants_are_stored_once() {
    let mut m = Model::new("equal_constants");
    let x = m.x(&[4, 8]);
    let w = m.weights(&[8, 8]);
    let copy = {
        let value = m.graph.value(w).clone();
        m.graph.add_value(atoll_frontend::tensor_graph::Value { name: "copy".into(), ..value })
    };
    let y = m.f32(plain(false), &[x, w], &[4, 8]);
    let z = m.f32(plain(false), &[y, copy], &[4, 8]);
    let s = schedule(&m.output(&[z]).graph).expect("a schedule");
    assert_eq!(s.weights.len(), 1);
    assert_eq!(s.weights_bytes, 8 * 8 * 4);
}

#[test]
fn constants_are_transposed_at_compile_time() {
    let mut m = Model::new("turned");
    let (x, w) = (m.x(&[4, 8]), m.weights(&[6, 8]));
    let content = m.graph.value(w).constant.clone().expect("a constant");
    let y = m.f32(plain(true), &[x, w], &[4, 6]);
    let s = schedule(&m.output(&[y]).graph).expect("a schedule");
    let WorkKind::Op(Op::MatMul(product)) = &s.work[0].kind else { panic!("a matrix product") };
    assert!(!product.transpose_b);
    assert_eq!(s.weights.len(), 1, "the untransposed constant is not stored");
    assert_eq!(s.weights[0].bytes[4..8], content[8 * 4..8 * 4 + 4]);
}

#[test]
fn reshapes_cost_nothing_and_outputs_are_written_where_they_are_produced() {
    let mut m = Model::new("reshapes");
    let x = m.x(&[4, 8]);
    let y = m.f32(neg(), &[x], &[4, 8]);
    let flat = m.f32(Op::Reshape, &[y], &[32]);
    let z = m.f32(neg(), &[flat], &[32]);
    let last = m.f32(Op::Reshape, &[z], &[2, 16]);
    let s = schedule(&m.output(&[last]).graph).expect("a schedule");
    assert_eq!(s.graph.nodes.len(), 2);
    assert!(s.graph.nodes.iter().all(|n| n.kind == NodeKind::Kernel));
    assert_eq!(s.graph.buffers.len(), 3, "one input, one output, one between");
}

#[test]
fn an_output_that_is_an_input_is_copied() {
    let mut m = Model::new("passed_on");
    let x = m.x(&[4, 8]);
    let s = schedule(&m.output(&[x, x]).graph).expect("a schedule");
    assert_eq!(s.graph.nodes.iter().filter(|n| matches!(n.kind, NodeKind::Copy { .. })).count(), 2);
}
